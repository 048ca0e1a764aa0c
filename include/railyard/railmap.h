/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * railmap.h - the rail map: public layout, shared by the BPF programs, the
 * plugin and anyone who wants to look.
 *
 * Two pinned BPF arrays, both mmapable and frozen: user space, root included,
 * can only read them; BPF programs alone write.
 *
 *   DIR/v1/rail_hdr   struct railmap_hdr [1]
 *   DIR/v1/rails      struct railmap_row [RAILMAP_ROWS]
 *
 * Rules that readers may rely on:
 *  - Counters are raw, monotonic, 64 bits, aligned: a plain load is enough.
 *    Those of the hw part begin anew when the driver does.
 *    Rates and thresholds are the reader's business.
 *  - All times are CLOCK_MONOTONIC nanoseconds of the initial time namespace.
 *  - Each 64-byte line has one kind of writer, named at the line.
 *  - The id line and the hw lines carry a sequence count: odd while they are
 *    being written; read it before and after, and try again if it changed.
 *  - Absent is not zero: see the hw_valid bits, and `hooks` in the header.
 *
 * A change of the layout changes RAILMAP_ABI and the "v1" in the path.
 */
#ifndef RAILYARD_RAILMAP_H
#define RAILYARD_RAILMAP_H

#include <stdint.h>

#define RAILMAP_ABI	     1u
#define RAILMAP_ROWS	     64u
#define RAILMAP_NAME_BYTES   16
#define RAILMAP_HEARTBEAT_NS 100000000ull

/* Where `railyard load` pins the maps, first choice first. */
#define RAILMAP_DIR_SYSTEM "/sys/fs/bpf/railyard"
#define RAILMAP_DIR_OWN	   "/run/railyard/bpf"
#define RAILMAP_SUBDIR	   "v1"

/* Bits of railmap_hdr.hooks: which programs are attached. */
enum railmap_hook {
	RAILMAP_HOOK_QDISC_RESET = 0,  /* tier 0: link loss */
	RAILMAP_HOOK_TX_TIMEOUT = 1,   /* tier 0: transmit watchdog */
	RAILMAP_HOOK_HEARTBEAT = 2,    /* tier 0: the timer; also sees link-up */
	RAILMAP_HOOK_TX_PACKET = 3,    /* tier 1: soft RoCE, sent packets */
	RAILMAP_HOOK_RX_PACKET = 4,    /* tier 1: soft RoCE, received packets */
	RAILMAP_HOOK_CARRIER_OFF = 5,  /* tier 2: link loss at once */
	RAILMAP_HOOK_CARRIER_ON = 6,   /* tier 2: link-up at once */
	RAILMAP_HOOK_QDISC_CREATE = 7, /* tier 0: a row follows to a new netdev */
	RAILMAP_HOOK_COUNT = 8,
};

/* The last thing that took a link down (link_down_why). */
enum railmap_why {
	RAILMAP_WHY_NONE = 0,
	RAILMAP_WHY_CARRIER = 1, /* no carrier */
	RAILMAP_WHY_ADMIN = 2,	 /* set down by an administrator */
	RAILMAP_WHY_AT_LOAD = 3, /* was down when the row was made */
	RAILMAP_WHY_PORT = 4,	 /* the RDMA port said so (no netdev) */
	RAILMAP_WHY_FATAL = 5,	 /* the RDMA device failed */
	RAILMAP_WHY_COUNT = 6,
};

/* Bits of railmap_row.flags. */
#define RAILMAP_ROW_USED 0x01u
#define RAILMAP_ROW_SOFT 0x02u /* its packets pass the kernel: soft_* counts */
#define RAILMAP_ROW_PCI	 0x04u /* key is (pci_*, dev_port), else (netns, ifname) */
#define RAILMAP_ROW_RDMA 0x08u /* has an RDMA port: ibdev, ib_port */
#define RAILMAP_ROW_PORT 0x10u /* pci_* is the RDMA device's, which the netdev is not of */

/* Bits of railmap_row.hw_valid: the driver has this counter. */
enum railmap_hw {
	RAILMAP_HW_RX_PKTS = 0,
	RAILMAP_HW_TX_PKTS,
	RAILMAP_HW_RX_CNP,
	RAILMAP_HW_TX_CNP,
	RAILMAP_HW_RX_ECN,
	RAILMAP_HW_OUT_OF_SEQ,
	RAILMAP_HW_RX_NAK_SEQ,
	RAILMAP_HW_ACK_TIMEOUT,
	RAILMAP_HW_RX_RNR,
	RAILMAP_HW_RX_DISCARD,
	RAILMAP_HW_RX_PAUSE,
	RAILMAP_HW_TX_PAUSE,
	RAILMAP_HW_COUNT,
};

/* Who wrote the hw part (hw_src). */
enum railmap_src {
	RAILMAP_SRC_NONE = 0,
	RAILMAP_SRC_PUBLISH = 1, /* a reader of RDMA netlink, through OP_HW */
	RAILMAP_SRC_TAP = 2,	 /* a driver tap saw somebody else's read */
};

struct railmap_hdr {
	/* Line 0. Writer: the publish program. */
	uint32_t abi;	     /* RAILMAP_ABI; 0 = map retired */
	uint32_t row_bytes;  /* sizeof(struct railmap_row) */
	uint32_t row_count;  /* rows 0 .. row_count - 1 may be in use */
	uint32_t rows_max;   /* RAILMAP_ROWS */
	uint64_t hooks;	     /* bits: enum railmap_hook */
	uint64_t load_ns;    /* when this map was loaded */
	uint64_t generation; /* 1, 2, ... of loads on this host since boot */
	uint32_t loader_pid;
	uint32_t reserved0;
	char version[16]; /* of the `railyard` that loaded it */
	/* Line 1. Writer: the heartbeat timer. */
	uint64_t heartbeat_ns; /* stamped every RAILMAP_HEARTBEAT_NS */
	uint64_t heartbeats;
	uint64_t reserved1[6];
} __attribute__((aligned(64)));

struct railmap_row {
	/* Line 0, who and whether to use it. Writer: the publish program; the
	 * link hooks, when a known PCI function shows up under another ifindex.
	 * All but drained_ns under id_seq. */
	uint32_t id_seq;
	uint8_t flags;	   /* RAILMAP_ROW_* */
	uint8_t ib_port;   /* 1, 2, ...; 0 = no RDMA port */
	uint16_t dev_port; /* netdev's dev_port */
	uint32_t pci_domain;
	uint8_t pci_bus;
	uint8_t pci_devfn; /* device << 3 | function */
	uint16_t reserved0;
	uint32_t netns; /* inode number of the netdev's namespace */
	uint32_t ifindex;
	uint64_t drained_ns; /* 0 = in service; else since when drained */
	char ibdev[RAILMAP_NAME_BYTES];
	char ifname[RAILMAP_NAME_BYTES];

	/* Line 1, link. Writer: the link hooks (and the row's creation).
	 * Down if link_down_ns > link_up_ns; unknown if both are 0. */
	uint64_t link_down_ns; /* first sign of the latest loss */
	uint64_t link_up_ns;   /* latest sign that it is up */
	uint64_t link_downs;
	uint64_t link_ups;
	uint32_t link_down_why;	     /* enum railmap_why */
	uint32_t carrier_down_count; /* of the netdev, at the latest event: also */
	uint32_t carrier_up_count;   /* counts flaps too short for an event */
	uint32_t ib_event;	     /* latest enum ib_event_type of the port; 0 = none seen */
	uint64_t tx_timeouts;	     /* transmit watchdog fired */
	uint64_t tx_timeout_ns;

	/* Line 2, RoCEv2 packets that passed the kernel. Writer: packet hooks. */
	uint64_t soft_rx_pkts;
	uint64_t soft_tx_pkts;
	uint64_t soft_rx_bytes; /* IP length */
	uint64_t soft_tx_bytes;
	uint64_t soft_rx_ce;  /* congestion experienced (ECN = 3) */
	uint64_t soft_rx_cnp; /* congestion notification packets */
	uint64_t soft_rx_nak; /* NAK: the peer saw loss or an error */
	uint64_t soft_rx_rnr; /* RNR NAK: the peer's process was not ready */

	/* Lines 3 and 4, the NIC's counters. Writers: the publish program and the
	 * driver taps, one at a time, whoever gets hw_seq. All under hw_seq. */
	uint32_t hw_seq;
	uint32_t hw_valid;     /* bits: enum railmap_hw */
	uint64_t hw_sample_ns; /* when they were read; 0 = never */
	uint64_t hw_rx_pkts;
	uint64_t hw_tx_pkts;
	uint64_t hw_rx_cnp;	/* peers, or switches, tell us to slow down */
	uint64_t hw_tx_cnp;	/* we tell peers to slow down */
	uint64_t hw_rx_ecn;	/* packets that arrived marked */
	uint64_t hw_out_of_seq; /* loss seen by us as receiver */
	uint64_t hw_rx_nak_seq; /* loss seen by the peer */
	uint64_t hw_ack_timeout;
	uint64_t hw_rx_rnr; /* peer's process not ready: no network signal */
	uint64_t hw_rx_discard;
	uint64_t hw_rx_pause; /* PFC pause frames got */
	uint64_t hw_tx_pause; /* PFC pause frames sent: this host is slow */
	uint32_t hw_src;      /* enum railmap_src: who wrote this sample */
	uint32_t reserved1;
	uint64_t reserved2;
} __attribute__((aligned(64)));

_Static_assert(sizeof(struct railmap_hdr) == 128, "header is two lines");
_Static_assert(__builtin_offsetof(struct railmap_hdr, heartbeat_ns) == 64, "line 1");
_Static_assert(sizeof(struct railmap_row) == 320, "a row is five lines");
_Static_assert(__builtin_offsetof(struct railmap_row, link_down_ns) == 64, "line 1");
_Static_assert(__builtin_offsetof(struct railmap_row, soft_rx_pkts) == 128, "line 2");
_Static_assert(__builtin_offsetof(struct railmap_row, hw_seq) == 192, "line 3");
_Static_assert(__builtin_offsetof(struct railmap_row, hw_tx_pause) ==
		       __builtin_offsetof(struct railmap_row, hw_rx_pkts) +
			       8ul * RAILMAP_HW_TX_PAUSE,
	       "counters stand in the order of enum railmap_hw");

/*
 * railmap_extend32 - a driver's 32-bit counter made one of 64 bits.
 * @before: what the row says; @raw: what the driver says now
 * Less than before is a wrap if that is less than half a turn ahead, else the driver began anew,
 * and so does the result. Whoever writes a hw part uses it: OP_HW does, for the bits of hw_wrap32.
 */
static inline uint64_t railmap_extend32(uint64_t before, uint32_t raw)
{
	uint32_t ahead = raw - (uint32_t)before;

	return raw < (uint32_t)before && ahead >= 0x80000000u ? raw : before + ahead;
}

/*
 * The pinned "publish" program (SEC("syscall"), run by BPF_PROG_TEST_RUN) is
 * the only way for user space to write. It takes this context and leaves 0 or
 * -errno in `result`.
 */
enum railmap_op {
	RAILMAP_OP_START = 1,  /* hdr: fill the header, start the heartbeat */
	RAILMAP_OP_HOOKS = 2,  /* hdr.hooks */
	RAILMAP_OP_ROW = 3,    /* row: create or refresh; index out */
	RAILMAP_OP_HW = 4,     /* row.hw_*; index in */
	RAILMAP_OP_DRAIN = 5,  /* row.drained_ns != 0 drains; index in */
	RAILMAP_OP_RETIRE = 6, /* stop the heartbeat, abi = 0 */
};

/* State of the link as user space sees it when it makes a row. */
enum railmap_link {
	RAILMAP_LINK_UNKNOWN = 0,
	RAILMAP_LINK_UP = 1,
	RAILMAP_LINK_DOWN = 2,
};

struct railmap_publish {
	uint32_t op; /* enum railmap_op */
	int32_t result;
	uint32_t index; /* of the row */
	uint32_t link;	/* ROW: enum railmap_link */
	uint64_t value; /* START: generation; HOOKS: bits; ROW: when `link` was so; DRAIN: 0, 1 */
	/* START */
	uint32_t loader_pid;
	/* ROW: as in struct railmap_row */
	uint32_t netns;
	uint32_t ifindex;
	uint32_t pci_domain;
	uint8_t pci_bus;
	uint8_t pci_devfn;
	uint16_t dev_port;
	uint8_t flags;
	uint8_t ib_port;
	uint8_t reserved[2];
	char ifname[RAILMAP_NAME_BYTES];
	/* START: version; ROW: name of the RDMA device */
	char name[RAILMAP_NAME_BYTES];
	/* ROW: kernel's name of the PCI function, "0000:3b:00.0", zero-padded */
	char pci[RAILMAP_NAME_BYTES];
	/* HW */
	uint32_t hw_valid;
	uint32_t hw_wrap32; /* bits: enum railmap_hw: the driver's counter has 32 bits */
	uint64_t hw[RAILMAP_HW_COUNT];
};

#endif
