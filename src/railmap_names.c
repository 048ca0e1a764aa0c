/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * railmap_names.c - counters of the drivers. See railmap_names.h.
 *
 * Left out on purpose: counters of one IP version only (irdma's ip4InPkts), counters that tell of
 * the host and not of the path (mlx5's out_of_buffer), and optional ones that must be switched on.
 */
#include "railmap_names.h"

#include <errno.h>
#include <string.h>

#include <railyard/railmap.h>

struct name {
	const char *name;
	enum railmap_hw field;
	bool wrap32;
};

static const struct name names[] = {
	/* mlx5_ib: those of its q counters have 32 bits, those of congestion control 64 */
	{"rp_cnp_handled", RAILMAP_HW_RX_CNP, false},
	{"np_cnp_sent", RAILMAP_HW_TX_CNP, false},
	{"np_ecn_marked_roce_packets", RAILMAP_HW_RX_ECN, false},
	{"out_of_sequence", RAILMAP_HW_OUT_OF_SEQ, true},
	{"packet_seq_err", RAILMAP_HW_RX_NAK_SEQ, true},
	{"local_ack_timeout_err", RAILMAP_HW_ACK_TIMEOUT, true},
	{"rnr_nak_retry_err", RAILMAP_HW_RX_RNR, true},
	/* bnxt_re */
	{"rx_pkts", RAILMAP_HW_RX_PKTS, false},
	{"tx_pkts", RAILMAP_HW_TX_PKTS, false},
	{"rx_cnp_pkts", RAILMAP_HW_RX_CNP, false},
	{"tx_cnp_pkts", RAILMAP_HW_TX_CNP, false},
	{"rx_ecn_marked_pkts", RAILMAP_HW_RX_ECN, false},
	{"oos_drop_count", RAILMAP_HW_OUT_OF_SEQ, false},
	{"seq_err_naks_rcvd", RAILMAP_HW_RX_NAK_SEQ, false},
	{"to_retransmits", RAILMAP_HW_ACK_TIMEOUT, false},
	{"rnr_naks_rcvd", RAILMAP_HW_RX_RNR, false},
	{"rx_roce_discards", RAILMAP_HW_RX_DISCARD, false},
	/* irdma */
	{"cnpHandled", RAILMAP_HW_RX_CNP, false},
	{"cnpSent", RAILMAP_HW_TX_CNP, false},
	{"RxECNMrkd", RAILMAP_HW_RX_ECN, false},
	/* hns_roce */
	{"rx_cnp_pkt", RAILMAP_HW_RX_CNP, false},
	{"tx_cnp_pkt", RAILMAP_HW_TX_CNP, false},
	/* rdma_rxe */
	{"rcvd_pkts", RAILMAP_HW_RX_PKTS, false},
	{"sent_pkts", RAILMAP_HW_TX_PKTS, false},
	{"out_of_seq_request", RAILMAP_HW_OUT_OF_SEQ, false},
	{"rcvd_seq_err", RAILMAP_HW_RX_NAK_SEQ, false},
	{"completer_retry_err", RAILMAP_HW_ACK_TIMEOUT, false},
	{"rcvd_rnr_err", RAILMAP_HW_RX_RNR, false},
};

int railmap_field(const char *name, bool *wrap32)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (strcmp(names[i].name, name) == 0) {
			*wrap32 = names[i].wrap32;
			return (int)names[i].field;
		}
	}
	return -ENOENT;
}
