/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * rocev2.h - read what a RoCEv2 packet says about its path.
 *
 * Pure functions on bytes, in two steps because the position of the transport
 * header is only known after the network header: the BPF programs copy each
 * header out of the packet with one read of fixed size, the unit tests (and
 * rocev2_parse) work on a whole packet. Nothing here may loop, allocate or
 * read beyond the sizes it asks for.
 *
 * RoCEv2: Ethernet / [VLAN]* / IPv4 or IPv6 / UDP port 4791 / BTH (12 bytes) /
 * [AETH (4 bytes) in acknowledgements]. Fields are in network byte order.
 */
#ifndef RAILYARD_ROCEV2_H
#define RAILYARD_ROCEV2_H

#define ROCEV2_UDP_PORT	      4791
#define ROCEV2_L3_BYTES	      40 /* enough for either network header's fixed part */
#define ROCEV2_L4_BYTES	      24 /* UDP + BTH + AETH */
#define ROCEV2_L4_BYTES_BTH   20 /* UDP + BTH */
#define ROCEV2_L4_BYTES_PORTS 4

#define ROCEV2_OP_RC_ACK 0x11
#define ROCEV2_OP_CNP	 0x81

struct rocev2_l3 {
	unsigned int l4_off;   /* from the start of the network header */
	unsigned int ip_bytes; /* length of the IP packet */
	unsigned int ce;       /* 1 if marked "congestion experienced" */
};

enum rocev2_kind {
	ROCEV2_NOT = 0, /* not RoCEv2 */
	ROCEV2_UNSEEN,	/* UDP, but its ports are out of sight */
	ROCEV2_DATA,	/* anything without a message for us */
	ROCEV2_CNP,
	ROCEV2_NAK,
	ROCEV2_RNR,
};

static inline unsigned int rocev2_be16(const unsigned char *p)
{
	return (unsigned int)p[0] << 8 | p[1];
}

/* 1 if `ethertype` announces a VLAN tag: 4 more bytes before the next header. */
static inline int rocev2_is_vlan(unsigned int ethertype)
{
	return ethertype == 0x8100 || ethertype == 0x88a8;
}

static inline int rocev2_l3_ipv4(const unsigned char *p, struct rocev2_l3 *out)
{
	unsigned int ihl = (p[0] & 0xfu) * 4;

	if (ihl < 20 || p[9] != 17) {
		return -1;
	}
	if (rocev2_be16(p + 6) & 0x3fff) {
		return -1; /* a fragment: RoCEv2 is never fragmented */
	}
	out->l4_off = ihl;
	out->ip_bytes = rocev2_be16(p + 2);
	out->ce = (p[1] & 3) == 3;
	return 0;
}

static inline int rocev2_l3_ipv6(const unsigned char *p, struct rocev2_l3 *out)
{
	if (p[6] != 17) {
		return -1; /* RoCEv2 allows no extension header */
	}
	out->l4_off = 40;
	out->ip_bytes = 40 + rocev2_be16(p + 4);
	out->ce = ((p[1] >> 4) & 3) == 3;
	return 0;
}

/*
 * Network header at `p`, of which ROCEV2_L3_BYTES can be read and the first
 * `bytes` are the packet's. Returns 0 if it is UDP over IP, else -1.
 */
static inline int rocev2_parse_l3(const unsigned char *p, unsigned int bytes, struct rocev2_l3 *out)
{
	if (bytes >= 20 && p[0] >> 4 == 4) {
		return rocev2_l3_ipv4(p, out);
	}
	if (bytes >= 40 && p[0] >> 4 == 6) {
		return rocev2_l3_ipv6(p, out);
	}
	return -1;
}

/*
 * UDP header at `p`, of which ROCEV2_L4_BYTES can be read and the first
 * `bytes` are the packet's. What is out of sight is not guessed: a packet whose
 * opcode cannot be seen is data.
 */
static inline enum rocev2_kind rocev2_parse_l4(const unsigned char *p, unsigned int bytes)
{
	unsigned int opcode;
	unsigned int syndrome;

	if (bytes < ROCEV2_L4_BYTES_PORTS) {
		return ROCEV2_UNSEEN;
	}
	if (rocev2_be16(p + 2) != ROCEV2_UDP_PORT) {
		return ROCEV2_NOT;
	}
	if (bytes < ROCEV2_L4_BYTES_BTH) {
		return ROCEV2_DATA;
	}
	opcode = p[8];
	if (opcode == ROCEV2_OP_CNP) {
		return ROCEV2_CNP;
	}
	if (opcode != ROCEV2_OP_RC_ACK || bytes < ROCEV2_L4_BYTES) {
		return ROCEV2_DATA;
	}
	syndrome = p[20] & 0x60u;
	if (syndrome == 0x60) {
		return ROCEV2_NAK;
	}
	if (syndrome == 0x20) {
		return ROCEV2_RNR;
	}
	return ROCEV2_DATA;
}

#endif
