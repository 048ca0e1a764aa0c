/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_rocev2.c - the packet parser of the BPF programs, on bytes. The same header is compiled into
 * them by clang; here each packet is built field by field, so a wrong offset on either side shows.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "../../bpf/rocev2.h"

struct packet {
	unsigned char bytes[128];
	unsigned int l3_bytes;
	unsigned int total;
};

static void put16(unsigned char *p, unsigned int value)
{
	p[0] = (unsigned char)(value >> 8);
	p[1] = (unsigned char)value;
}

static void add_transport(struct packet *p, unsigned int port, unsigned int opcode, int syndrome)
{
	unsigned char *udp = p->bytes + p->l3_bytes;

	put16(udp, 49152);
	put16(udp + 2, port);
	udp[8] = (unsigned char)opcode;
	p->total = p->l3_bytes + 20;
	if (syndrome >= 0) {
		udp[20] = (unsigned char)syndrome;
		p->total += 4;
	}
	p->total += 4; /* the invariant CRC */
}

static struct packet ipv4(unsigned int tos, unsigned int words, unsigned int opcode, int syndrome)
{
	struct packet p;

	memset(&p, 0, sizeof(p));
	p.bytes[0] = (unsigned char)(0x40 | words);
	p.bytes[1] = (unsigned char)tos;
	p.bytes[9] = 17;
	p.l3_bytes = words * 4;
	add_transport(&p, 4791, opcode, syndrome);
	put16(p.bytes + 2, p.total);
	return p;
}

static struct packet ipv6(unsigned int traffic_class, unsigned int opcode, int syndrome)
{
	struct packet p;

	memset(&p, 0, sizeof(p));
	p.bytes[0] = (unsigned char)(0x60 | traffic_class >> 4);
	p.bytes[1] = (unsigned char)(traffic_class << 4);
	p.bytes[6] = 17;
	p.l3_bytes = 40;
	add_transport(&p, 4791, opcode, syndrome);
	put16(p.bytes + 4, p.total - 40);
	return p;
}

/* As the BPF programs do it: one read per header. */
static enum rocev2_kind parse_cut(const struct packet *p, unsigned int bytes, struct rocev2_l3 *l3)
{
	if (rocev2_parse_l3(p->bytes, bytes, l3) || bytes < l3->l4_off) {
		return ROCEV2_NOT;
	}
	return rocev2_parse_l4(p->bytes + l3->l4_off, bytes - l3->l4_off);
}

static enum rocev2_kind parse(const struct packet *p, struct rocev2_l3 *l3)
{
	return parse_cut(p, p->total, l3);
}

Test(rocev2, a_data_packet_over_ipv4)
{
	struct packet p = ipv4(0x02, 5, 0x0a, -1);
	struct rocev2_l3 l3;

	cr_assert_eq(parse(&p, &l3), ROCEV2_DATA);
	cr_assert_eq(l3.l4_off, 20);
	cr_assert_eq(l3.ip_bytes, 44);
	cr_assert_eq(l3.ce, 0);
}

Test(rocev2, only_both_ecn_bits_are_congestion)
{
	struct rocev2_l3 l3;

	for (unsigned int tos = 0; tos < 256; tos++) {
		struct packet p4 = ipv4(tos, 5, 0x0a, -1);
		struct packet p6 = ipv6(tos, 0x0a, -1);

		cr_assert_eq(parse(&p4, &l3), ROCEV2_DATA);
		cr_assert_eq(l3.ce, (tos & 3) == 3, "ipv4 tos %#x", tos);
		cr_assert_eq(parse(&p6, &l3), ROCEV2_DATA);
		cr_assert_eq(l3.ce, (tos & 3) == 3, "ipv6 class %#x", tos);
	}
}

Test(rocev2, ipv4_options_move_the_transport_header)
{
	struct packet p = ipv4(0, 15, ROCEV2_OP_CNP, -1);
	struct rocev2_l3 l3;

	cr_assert_eq(parse(&p, &l3), ROCEV2_CNP);
	cr_assert_eq(l3.l4_off, 60);
}

Test(rocev2, cnp_nak_rnr_and_ack_are_told_apart)
{
	struct rocev2_l3 l3;
	struct packet cnp = ipv6(0, ROCEV2_OP_CNP, -1);
	struct packet ack = ipv4(0, 5, ROCEV2_OP_RC_ACK, 0x1f);
	struct packet nak = ipv4(0, 5, ROCEV2_OP_RC_ACK, 0x60);
	struct packet access = ipv6(0, ROCEV2_OP_RC_ACK, 0x62);
	struct packet rnr = ipv4(0, 5, ROCEV2_OP_RC_ACK, 0x2e);

	cr_assert_eq(parse(&cnp, &l3), ROCEV2_CNP);
	cr_assert_eq(l3.ip_bytes, 64);
	cr_assert_eq(parse(&ack, &l3), ROCEV2_DATA);
	cr_assert_eq(parse(&nak, &l3), ROCEV2_NAK);
	cr_assert_eq(parse(&access, &l3), ROCEV2_NAK);
	cr_assert_eq(parse(&rnr, &l3), ROCEV2_RNR);
}

Test(rocev2, a_syndrome_outside_an_ack_means_nothing)
{
	struct packet p = ipv4(0, 5, 0x0a, 0x60);
	struct rocev2_l3 l3;

	cr_assert_eq(parse(&p, &l3), ROCEV2_DATA);
}

Test(rocev2, other_traffic_is_not_ours)
{
	struct rocev2_l3 l3;
	struct packet p = ipv4(3, 5, 0x0a, -1);

	p.bytes[9] = 6; /* TCP */
	cr_assert_eq(parse(&p, &l3), ROCEV2_NOT);
	p = ipv4(3, 5, 0x0a, -1);
	put16(p.bytes + 22, 4792);
	cr_assert_eq(parse(&p, &l3), ROCEV2_NOT);
	p = ipv4(3, 5, 0x0a, -1);
	put16(p.bytes + 6, 0x2000); /* first fragment */
	cr_assert_eq(parse(&p, &l3), ROCEV2_NOT);
	put16(p.bytes + 6, 0x0001); /* last fragment */
	cr_assert_eq(parse(&p, &l3), ROCEV2_NOT);
	put16(p.bytes + 6, 0x4000); /* "don't fragment" is no fragment */
	cr_assert_eq(parse(&p, &l3), ROCEV2_DATA);
	p = ipv6(3, 0x0a, -1);
	p.bytes[6] = 44; /* fragment header */
	cr_assert_eq(parse(&p, &l3), ROCEV2_NOT);
	p = ipv4(3, 4, 0x0a, -1); /* header shorter than IPv4's minimum */
	cr_assert_eq(parse(&p, &l3), ROCEV2_NOT);
	p.bytes[0] = 0x55;
	cr_assert_eq(parse(&p, &l3), ROCEV2_NOT);
}

Test(rocev2, a_cut_packet_never_says_more_than_it_holds)
{
	struct packet p = ipv4(0, 5, ROCEV2_OP_RC_ACK, 0x60);
	struct rocev2_l3 l3;

	for (unsigned int bytes = 0; bytes <= p.total; bytes++) {
		enum rocev2_kind want = ROCEV2_NAK;

		if (bytes < 20) {
			want = ROCEV2_NOT;
		} else if (bytes < 24) {
			want = ROCEV2_UNSEEN;
		} else if (bytes < 44) {
			want = ROCEV2_DATA;
		}
		cr_assert_eq(parse_cut(&p, bytes, &l3), want, "%u bytes", bytes);
	}
}

Test(rocev2, vlan_types)
{
	cr_assert(rocev2_is_vlan(0x8100));
	cr_assert(rocev2_is_vlan(0x88a8));
	cr_assert_not(rocev2_is_vlan(0x0800));
	cr_assert_not(rocev2_is_vlan(0x0081));
}
