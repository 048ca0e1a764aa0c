/* SPDX-License-Identifier: BSD-3-Clause OR GPL-2.0-only */
/*
 * mini.h - the few kernel types and constants the BPF programs use.
 *
 * CO-RE relocates each field by name against the running kernel's BTF, so only
 * names and kinds (pointer, integer, enum, struct) must be right here: a kind
 * that differs (int for enum) poisons the program on load. No kernel headers
 * are needed to build, and one object fits all kernels.
 */
#ifndef RAILYARD_BPF_MINI_H
#define RAILYARD_BPF_MINI_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;

#define NULL ((void *)0)

/* User space ABI of bpf(2): numbers are fixed for ever. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
};

enum {
	BPF_ANY = 0,
	BPF_F_MMAPABLE = 1u << 10,
};

struct bpf_timer {
	__u64 : 64;
	__u64 : 64;
} __attribute__((aligned(8)));

#define CLOCK_MONOTONIC 1

#define EPERM  1
#define ENOENT 2
#define EBUSY  16
#define EEXIST 17
#define EINVAL 22
#define ENOSPC 28

/* Bits of net_device.state (enum netdev_state_t, unchanged since 2.6). */
#define LINK_STATE_START     0x1ul
#define LINK_STATE_PRESENT   0x2ul
#define LINK_STATE_NOCARRIER 0x4ul

/* As in skb->protocol, host order. */
#define ETH_P_IP   0x0800
#define ETH_P_IPV6 0x86dd

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	int counter;
} atomic_t;

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct bus_type {
	const char *name;
};

struct kobject {
	const char *name;
};

struct device {
	struct kobject kobj;
	struct device *parent;
	const struct bus_type *bus;
};

struct net_device {
	char name[16];
	unsigned long state;
	int ifindex;
	possible_net_t nd_net;
	struct device dev;
	unsigned short dev_port;
	atomic_t carrier_up_count;
	atomic_t carrier_down_count;
};

struct netdev_queue {
	struct net_device *dev;
};

struct Qdisc_ops; /* only passed by */

struct Qdisc {
	struct netdev_queue *dev_queue;
};

struct sk_buff {
	struct net_device *dev;
	unsigned char *head;
	unsigned char *data;
	__u16 network_header;
	__u32 tail;
	__be16 protocol;
};

struct rdma_stat_desc {
	const char *name;
};

struct rdma_hw_stats {
	const struct rdma_stat_desc *descs;
	int num_counters;
	__u64 value[];
};

struct ib_device {
	char name[64];
};

/* An enum, as the kernel has it: an int here would not match. */
enum ib_event_type {
	IB_EVENT_DEVICE_FATAL = 8,
	IB_EVENT_PORT_ACTIVE = 9,
	IB_EVENT_PORT_ERR = 10,
};

struct ib_event {
	struct ib_device *device;
	union {
		__u32 port_num;
	} element;
	enum ib_event_type event;
};

#pragma clang attribute pop

#endif
