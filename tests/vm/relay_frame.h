/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * relay_frame.h - what a frame on a rail is: RoCEv2 data, an acknowledgement, or something else.
 *
 * Pure. A frame too short or not understood is "other"; nothing is read past its end.
 */
#ifndef RAILYARD_TESTS_VM_RELAY_FRAME_H
#define RAILYARD_TESTS_VM_RELAY_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum frame_kind { FRAME_OTHER, FRAME_DATA, FRAME_ACK };

/* In the order of the words of relay's commands. */
enum frame_match { MATCH_ALL, MATCH_ROCE, MATCH_DATA, MATCH_ACKS };

enum {
	ETHERNET_BYTES = 14,
	UDP_BYTES = 8,
	IP_PROTOCOL_UDP = 17,
	ROCE_PORT = 4791,
	/* BTH opcodes of the RC service. */
	OPCODE_ACK = 0x11,
	OPCODE_ATOMIC_ACK = 0x12,
};

/* @bytes of an Ethernet frame with IPv4, without VLAN tags. */
static inline enum frame_kind frame_kind(const uint8_t *data, size_t bytes)
{
	size_t ip = ETHERNET_BYTES, udp, bth;

	if (bytes < ip + 20 || data[12] != 0x08 || data[13] != 0x00 || data[ip] >> 4 != 4 ||
	    data[ip + 9] != IP_PROTOCOL_UDP) {
		return FRAME_OTHER;
	}
	udp = ip + (size_t)(data[ip] & 15) * 4;
	bth = udp + UDP_BYTES;
	if (bytes <= bth || ((unsigned)data[udp + 2] << 8 | data[udp + 3]) != ROCE_PORT) {
		return FRAME_OTHER;
	}
	return data[bth] == OPCODE_ACK || data[bth] == OPCODE_ATOMIC_ACK ? FRAME_ACK : FRAME_DATA;
}

static inline bool frame_matches(enum frame_kind kind, enum frame_match match)
{
	return match == MATCH_ALL || (match == MATCH_ROCE && kind != FRAME_OTHER) ||
	       (match == MATCH_DATA && kind == FRAME_DATA) ||
	       (match == MATCH_ACKS && kind == FRAME_ACK);
}

#endif /* RAILYARD_TESTS_VM_RELAY_FRAME_H */
