/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * state.h - the state page: public layout of /dev/shm/railyard.PID, in which a process with the
 * plugin shows its connections to anyone of the same user, also after it has died.
 *
 * The file is a struct railstate.
 *
 * Rules that readers may rely on:
 *  - The plugin thread alone writes, when it looks at its connections: at each change of a lane or
 *    port, else at most every 100 ms, and where nothing happens at least each second or so. The
 *    stamps say when: head.look_ns, comm.update_ns.
 *  - All times are CLOCK_MONOTONIC nanoseconds of the process; 0 = never.
 *  - Each record begins with a sequence count: odd while it is being written (for ever, if the
 *    process died just then). railstate_copy() takes a whole record or none. Fields of the head
 *    that change are single aligned words.
 *  - A record without a name (port), id (comm) or comm (lane) is not in use.
 *  - The writer holds a POSIX write lock (fcntl F_GETLK tells) on the file for its life.
 *
 * A change of the layout changes RAILSTATE_VERSION.
 */
#ifndef RAILYARD_STATE_LAYOUT_H
#define RAILYARD_STATE_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RAILSTATE_DIR	  "/dev/shm"
#define RAILSTATE_PREFIX  "railyard." /* then the pid */
#define RAILSTATE_MAGIC	  0x0065746174537952ull /* "RyState" */
#define RAILSTATE_VERSION 1u
#define RAILSTATE_PORTS	  32u
#define RAILSTATE_COMMS	  256u
#define RAILSTATE_LANES	  2048u

struct railstate_head {
	uint64_t magic; /* RAILSTATE_MAGIC, written last */
	uint32_t version;
	uint32_t bytes; /* of the file */
	uint32_t head_bytes, port_bytes, comm_bytes, lane_bytes; /* of a record */
	uint32_t ports_max, comms_max, lanes_max;		 /* records */
	uint32_t pid;	    /* as the process knows itself */
	uint64_t start_ns;  /* of the plugin */
	uint64_t instance;  /* random; names the process to its peers */
	uint64_t look_ns;   /* the plugin thread's last look */
	uint64_t looks;
	uint32_t comms_shown;
	uint32_t comms_hidden; /* there was no room for */
	char plugin[24];       /* its version */
	char mode[40];	       /* RAILYARD_MODE, in words */
	char host[64];
	uint64_t reserved[5];
};

struct railstate_port {
	uint32_t seq;
	uint32_t down;	   /* 1: no new pieces */
	uint32_t dead;	   /* 1: and that is confirmed: its lanes are fenced */
	uint32_t drain;	   /* 1: an operator drains it */
	uint32_t pressure; /* 0 .. 255 */
	uint32_t mbps;
	uint64_t change_ns; /* when one of the first three changed */
	char name[72];	    /* "mlx5_0:1" */
	uint64_t reserved[3];
};

enum railstate_kind {
	RAILSTATE_SEND = 1,
	RAILSTATE_RECV = 2
};

struct railstate_comm {
	uint32_t seq;
	uint8_t kind; /* enum railstate_kind */
	uint8_t peer_ports;
	uint16_t lane_count;
	int32_t error;	  /* -errno: it has failed */
	uint32_t connected; /* 1: its control connection to the peer is up */
	uint64_t id;	  /* never given twice in a process */
	uint64_t peer_id; /* of the other half, in the peer */
	uint64_t update_ns;
	/*
	 * Messages are numbered from 0; oldest == next: none is open. Sender: one is open from
	 * isend until all of it is acknowledged. Receiver: from irecv until all of it is here.
	 */
	uint64_t oldest;
	uint64_t next;
	uint64_t open_ns;   /* the first look that saw `oldest` open; 0 = none is */
	uint64_t wanted_ns; /* sender: since then the peer waits for `next`; 0 = it does not */
	uint64_t outage_ns; /* no lane can be used since; 0 = there is one */
	uint64_t heard_ns;  /* anything of the peer, over control; a peer that lives: each 0.5 s */
	char peer[144];	    /* "host (pid N, address)" */
	char peer_port[8][32];
	uint64_t reserved[3];
};

enum railstate_lane_state {
	RAILSTATE_ACTIVE, /* in use; all others are not */
	RAILSTATE_FENCING,
	RAILSTATE_FENCED,
	RAILSTATE_ASKED,
	RAILSTATE_DOWN,
	RAILSTATE_PREPARING,
	RAILSTATE_OFFERED,
	RAILSTATE_CONNECTING,
	RAILSTATE_READY,
	RAILSTATE_VERIFYING,
	RAILSTATE_WAIT_LIVE,
	RAILSTATE_LANE_STATES
};

struct railstate_lane {
	uint32_t seq;
	uint8_t state;	   /* enum railstate_lane_state */
	uint8_t port;	   /* record of the local port */
	uint8_t peer_port; /* in the comm's list */
	uint8_t number;	   /* in the comm */
	uint64_t comm;	   /* its id */
	uint32_t generation;
	uint32_t units;	    /* sender: posted and not completed */
	uint64_t bytes;	    /* sender: completed */
	uint64_t since_ns;  /* of the state */
	uint64_t fault_ns;  /* last fault */
	uint64_t opened_ns; /* when it last came into use */
	uint32_t faults;
	uint32_t tries;	 /* to make it anew, failed since the last time it was in use */
	uint32_t again;	 /* sender: units sent again after faults */
	uint32_t landed; /* sender: units that had landed although no completion said so */
	uint32_t again_last, landed_last; /* after the last fault */
	char cause[48];	 /* of the last fault; "" = none yet */
};

struct railstate {
	struct railstate_head head;
	struct railstate_port port[RAILSTATE_PORTS];
	struct railstate_comm comm[RAILSTATE_COMMS];
	struct railstate_lane lane[RAILSTATE_LANES];
};

_Static_assert(sizeof(struct railstate_head) == 256, "fixed layout");
_Static_assert(sizeof(struct railstate_port) == 128, "fixed layout");
_Static_assert(sizeof(struct railstate_comm) == 512, "fixed layout");
_Static_assert(sizeof(struct railstate_lane) == 128, "fixed layout");

/*
 * railstate_copy - copy one record of a mapped page. False: it was being written, at each of many
 * tries; what is in `to` is then no state that ever was.
 */
static inline bool railstate_copy(void *to, const void *record, size_t bytes)
{
	const uint32_t *seq = (const uint32_t *)record;

	for (int i = 0; i < 1000; i++) {
		uint32_t before = __atomic_load_n(seq, __ATOMIC_ACQUIRE);

		memcpy(to, record, bytes);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if ((before & 1) == 0 && __atomic_load_n(seq, __ATOMIC_RELAXED) == before) {
			return true;
		}
	}
	return false;
}

#endif
