/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin_recover.c - ports fail under traffic and come back: every message arrives once and right,
 * nothing comes into a buffer that is done, no call waits, and the port is used again.
 *
 * Two connections, one each way, between four ports "low" (devices 0 .. 3) and four "high" (4 .. 7)
 * of this process; rail i is the ports i and i + 4. What must happen is waited for, with patience;
 * how long it takes is printed, not judged. RIG_SEED gives the random cases another seed.
 */
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util.h"

enum {
	RAILS = 4,
	PORTS = 2 * RAILS,
	RETRY_MS = 40, /* of the fake's queue pairs */
	BIG = TEST_SCALE < 100 ? 1 << 19 : 4 << 20,
	AGAIN_BYTES = BIG / 4, /* that show a port in use */
	SOON_MS = 120000       /* by when what must happen has happened, on any machine */
};

struct world {
	struct pair p[2];
	struct run *run[2];
	uint64_t random;
};

static const char *seed_text(void)
{
	const char *text = getenv("RIG_SEED");

	return text ? text : "1";
}

static void times_set(void)
{
	rig_env("RAILYARD_RETEST_MS", "100");
	rig_env("RAILYARD_OUTAGE_TIMEOUT", "120");
}

/* Ports first .. first + count - 1 as one device. */
static int device_of(int first, int count)
{
	struct ry_net_vdev_v12 v = {.ndevs = count};
	int dev = first;

	for (int i = 0; i < count; i++)
		v.devs[i] = first + i;
	if (count > 1)
		CHECK_INT(ncclNetPlugin_v12.makeVDevice(&dev, &v), RY_NET_SUCCESS);
	return dev;
}

static struct traffic mix(const struct world *w, bool queued)
{
	return (struct traffic){.members = RIG_GROUP_MAX,
				.random_members = true,
				.window = 4,
				.bytes_max = BIG,
				.rare = 12,
				.queued = queued,
				.seed = w->random};
}

static void world_open_with(struct world *w, const struct fake_config *fakes, int ports,
			    const struct traffic *t)
{
	int low, high;

	rig_begin(fakes);
	fake_retry_set(RETRY_MS);
	low = device_of(0, ports);
	high = device_of(RAILS, ports);
	for (int i = 0; i < 2; i++) {
		struct traffic one = *t;

		one.seed += (uint64_t)i;
		if (t->queued) {
			pair_start(&w->p[i], i ? low : high);
			while (!pair_step(&w->p[i], i ? high : low))
				rig_pause_us(fake_step() ? 1 : 200);
		} else {
			pair_open(&w->p[i], i ? high : low, i ? low : high);
		}
		w->run[i] = traffic_start(&w->p[i], &one);
	}
	traffic_times_reset(false);
}

static void world_open(struct world *w, const struct fake_config *more, bool queued)
{
	struct fake_config fakes = *more;
	struct traffic t;

	*w = (struct world){.random = strtoull(seed_text(), NULL, 0)};
	t = mix(w, queued);
	fakes.device_count = PORTS;
	fakes.delivery = queued ? FAKE_QUEUED : FAKE_IMMEDIATE;
	fakes.seed = w->random;
	world_open_with(w, &fakes, RAILS, &t);
}

static void step(struct world *w)
{
	bool moved = false;

	for (int i = 0; i < 50; i++) {
		for (int k = 0; k < 2; k++)
			moved |= traffic_step(w->run[k]);
	}
	if (!moved)
		rig_pause_us(100);
}

static void run_ms(struct world *w, unsigned ms)
{
	uint64_t end_ns = now_ns() + ms * NS_PER_MS;

	while (now_ns() < end_ns)
		step(w);
}

/* So many more groups done each way: the traffic does not stand still. */
static void run_groups(struct world *w, unsigned groups, const char *when)
{
	uint64_t end_ns = now_ns() + SOON_MS * NS_PER_MS;
	unsigned want[2];

	for (int k = 0; k < 2; k++)
		want[k] = traffic_groups(w->run[k]) + rig_scaled(groups);
	while (traffic_groups(w->run[0]) < want[0] || traffic_groups(w->run[1]) < want[1]) {
		step(w);
		if (now_ns() > end_ns)
			rig_die(__FILE__, __LINE__,
				"%s: the traffic stands: %u and %u groups done, %u and %u wanted",
				when, traffic_groups(w->run[0]), traffic_groups(w->run[1]), want[0],
				want[1]);
	}
}

/* Every port carries pieces again. Returns how long that took, in ms. */
static unsigned run_until_used(struct world *w, unsigned ports, const char *when)
{
	uint64_t start = now_ns(), from[PORTS];
	unsigned waiting = ports;

	for (int i = 0; i < PORTS; i++)
		from[i] = fake_port_bytes(i, 1);
	while (waiting) {
		step(w);
		for (int i = 0; i < PORTS; i++) {
			if (fake_port_bytes(i, 1) - from[i] >= AGAIN_BYTES)
				waiting &= ~(1u << i);
		}
		if (now_ns() - start > SOON_MS * NS_PER_MS)
			rig_die(__FILE__, __LINE__, "%s: ports 0x%x are not used again", when,
				waiting);
	}
	return (unsigned)((now_ns() - start) / NS_PER_MS);
}

static void world_close(struct world *w, const char *what)
{
	for (int k = 0; k < 2; k++)
		traffic_drain(w->run[k]);
	traffic_times_print(what);
	for (int k = 0; k < 2; k++)
		traffic_stop(w->run[k]);
	for (int k = 0; k < 2; k++)
		pair_close(&w->p[k]);
	rig_end();
}

/* ---- faults ---- */

enum fault {
	FAULT_CUT,
	FAULT_DOWN,
	FAULT_ACKS,
	FAULT_IN,
	FAULT_OUT,
	FAULT_HANG, /* cut, and commands take 200 ms */
	FAULT_GID,  /* down, and up with another GID */
	FAULT_COUNT
};

static const char *const fault_name[FAULT_COUNT] = {
	"cut", "down", "acks lost", "lost inwards", "lost outwards", "cut and hung", "new GID",
};

/* The IPv4 GID of a port's device gets its next address. */
static void gid_next(int device)
{
	static uint8_t turn;
	union ibv_gid gid = {{0}};

	gid.raw[10] = gid.raw[11] = 0xff;
	gid.raw[12] = 10;
	gid.raw[13] = 65;
	gid.raw[14] = (uint8_t)device;
	gid.raw[15] = ++turn;
	fake_gid_set(device, 1, FAKE_GID_INDEX_IPV4_V2, &gid, 2);
}

static void fault_begin(enum fault fault, int device)
{
	switch (fault) {
	case FAULT_DOWN:
		fake_port_set(device, 1, false);
		break;
	case FAULT_ACKS:
		fake_port_lose(device, 1, FAKE_LOSE_ACKS);
		break;
	case FAULT_IN:
		fake_port_lose(device, 1, FAKE_LOSE_IN);
		break;
	case FAULT_OUT:
		fake_port_lose(device, 1, FAKE_LOSE_OUT);
		break;
	case FAULT_HANG:
		fake_hang(device, 200);
		fake_port_lose(device, 1, FAKE_CUT);
		break;
	case FAULT_GID:
		fake_port_set(device, 1, false);
		gid_next(device);
		break;
	default:
		fake_port_lose(device, 1, FAKE_CUT);
		break;
	}
}

static void fault_end(int device)
{
	fake_hang(device, 0);
	fake_port_lose(device, 1, 0);
	fake_port_set(device, 1, true);
}

/* Nothing fails: what the other figures are to be seen beside. */
static void healthy(void)
{
	struct world w;

	for (int queued = 0; queued < 2; queued++) {
		world_open(&w, &(struct fake_config){0}, queued);
		run_until_used(&w, (1u << PORTS) - 1, "healthy");
		run_ms(&w, 500);
		printf("       %u groups\n", traffic_groups(w.run[0]));
		world_close(&w, queued ? "healthy, queued" : "healthy");
	}
}

/* One port of each rail in turn, at the one end and at the other. */
static void each_port(enum fault fault)
{
	struct world w;

	world_open(&w, &(struct fake_config){.torn = true, .resolve_ms = 300}, false);
	run_until_used(&w, (1u << PORTS) - 1, "before");
	for (int rail = 0; rail < RAILS; rail++) {
		int device = rail + (rail % 2 ? RAILS : 0);

		fault_begin(fault, device);
		run_groups(&w, 50, fault_name[fault]);
		run_ms(&w, 150);
		fault_end(device);
		printf("       port %d %s: used again %u ms after\n", device, fault_name[fault],
		       run_until_used(&w, 1u << device | 1u << (device + RAILS) % PORTS,
				      fault_name[fault]));
	}
	world_close(&w, fault_name[fault]);
}

static void cut(void)
{
	each_port(FAULT_CUT);
}

static void down(void)
{
	each_port(FAULT_DOWN);
}

static void acks_lost(void)
{
	each_port(FAULT_ACKS);
}

static void one_way(void)
{
	each_port(FAULT_IN);
	each_port(FAULT_OUT);
}

static void hung(void)
{
	each_port(FAULT_HANG);
}

static void gid_changed(void)
{
	each_port(FAULT_GID);
}

/* Two rails; both ends of one; all. */
static void several(void)
{
	static const unsigned sets[] = {0x03, 0x24, 0x11, 0x77, 0x0f, 0xff};
	struct world w;

	world_open(&w, &(struct fake_config){0}, false);
	for (unsigned s = 0; s < sizeof(sets) / sizeof(sets[0]); s++) {
		bool all = sets[s] == 0x0f || sets[s] == 0xff;

		for (int i = 0; i < PORTS; i++) {
			if (sets[s] & 1u << i)
				fault_begin(s % 2 ? FAULT_DOWN : FAULT_CUT, i);
		}
		if (!all)
			run_groups(&w, 50, "several");
		run_ms(&w, all ? 1000 : 200);
		for (int i = 0; i < PORTS; i++)
			fault_end(i);
		printf("       ports 0x%02x: used again %u ms after\n", sets[s],
		       run_until_used(&w, (1u << PORTS) - 1, "several"));
	}
	world_close(&w, "several");
}

/* A link that comes and goes faster than it can be used. */
static void flaps(void)
{
	struct world w;

	world_open(&w, &(struct fake_config){0}, false);
	for (unsigned i = 0; i < rig_scaled(60); i++) {
		fault_begin(i % 2 ? FAULT_DOWN : FAULT_CUT, 2);
		run_ms(&w, (unsigned)(rig_random(&w.random) % 40));
		fault_end(2);
		run_ms(&w, (unsigned)(rig_random(&w.random) % 60));
	}
	printf("       used again %u ms after\n", run_until_used(&w, 0x44, "flaps"));
	world_close(&w, "flaps");
}

/* Random faults, up to three at a time, also while recovery from others is under way. */
static void random_faults(const struct fake_config *more, bool queued, unsigned faults)
{
	struct {
		int device;
		uint64_t end_ns;
	} open[3] = {{-1, 0}, {-1, 0}, {-1, 0}};
	struct world w;

	world_open(&w, more, queued);
	printf("       seed %s, %s\n", seed_text(), queued ? "queued" : "immediate");
	while (faults > 0) {
		unsigned k = (unsigned)(rig_random(&w.random) % 3);
		int device = (int)(rig_random(&w.random) % PORTS);

		if (open[k].device >= 0 && now_ns() > open[k].end_ns) {
			fault_end(open[k].device);
			open[k].device = -1;
		} else if (open[k].device < 0) {
			for (int i = 0; i < 3; i++)
				device = open[i].device == device ? -1 : device;
			if (device < 0)
				continue;
			fault_begin((enum fault)(rig_random(&w.random) % FAULT_COUNT), device);
			open[k].device = device;
			open[k].end_ns = now_ns() + rig_random(&w.random) % 200 * NS_PER_MS;
			faults--;
		}
		if (rig_random(&w.random) % 16 == 0)
			fake_fail_nth_of("post_send", 1 + (unsigned)(rig_random(&w.random) % 50),
					 rig_random(&w.random) % 2 ? ENOMEM : EIO);
		run_ms(&w, (unsigned)(rig_random(&w.random) % 50));
	}
	fake_fail_nth(0, 0);
	for (int i = 0; i < PORTS; i++)
		fault_end(i);
	printf("       all used again %u ms after\n",
	       run_until_used(&w, (1u << PORTS) - 1, "random"));
	world_close(&w, "random");
}

static void random_immediate(void)
{
	random_faults(&(struct fake_config){.torn = true, .err_lands = true}, false,
		      rig_scaled(200));
}

static void random_queued(void)
{
	random_faults(
		&(struct fake_config){
			.torn = true, .err_lands = true, .reuse_qpn = true, .resolve_ms = 300},
		true, rig_scaled(200));
}

static void random_cleaned(void)
{
	random_faults(&(struct fake_config){.destroy_cleans_cq = true, .no_recv_flush = true}, true,
		      rig_scaled(100));
}

/* Posting fails once, now with an error that may pass, now with one that does not. */
static void post_fails(void)
{
	struct world w;

	world_open(&w, &(struct fake_config){0}, false);
	for (unsigned i = 0; i < rig_scaled(40); i++) {
		fake_fail_nth_of(i % 4 == 3 ? "post_recv" : "post_send",
				 1 + (unsigned)(rig_random(&w.random) % 100), i % 2 ? EIO : ENOMEM);
		run_groups(&w, 10, "posting fails");
	}
	fake_fail_nth(0, 0);
	run_until_used(&w, (1u << PORTS) - 1, "posting failed");
	world_close(&w, "posting fails");
}

/* Packets of old queue pairs come late, when their numbers belong to new ones. */
static void ghosts(void)
{
	unsigned kept = 0, landed = 0;
	struct world w;

	world_open(&w, &(struct fake_config){.reuse_qpn = true}, false);
	for (unsigned i = 0; i < rig_scaled(12); i++) {
		int device = (int)(i % PORTS);

		for (int generation = 0; generation < 2; generation++) {
			fake_port_lose(device, 1, FAKE_DELAY);
			run_groups(&w, 20, "ghosts");
			run_ms(&w, 2 * RETRY_MS);
			fake_port_lose(device, 1, 0);
			run_until_used(&w, 1u << device, "ghosts");
		}
		kept += fake_ghosts();
		landed += fake_ghosts_release();
	}
	printf("       %u ghosts, %u landed\n", kept, landed);
	CHECK(kept > 0);
	CHECK_INT(landed, 0);
	world_close(&w, "ghosts");
}

/* A device dies for good: the others carry on. */
static void device_dies(void)
{
	struct world w;

	world_open(&w, &(struct fake_config){0}, false);
	run_groups(&w, 50, "before");
	fake_device_fatal(1);
	run_groups(&w, 200, "a dead device");
	run_ms(&w, 500);
	run_groups(&w, 200, "a dead device");
	run_until_used(&w, 0xdd, "a dead device");
	world_close(&w, "a dead device");
}

/* Commands hang for 2 s while ports fail: no call waits for one. */
static void no_call_waits(void)
{
	struct world w;

	world_open(&w, &(struct fake_config){0}, false);
	traffic_times_reset(true);
	for (int i = 0; i < PORTS; i++)
		fake_hang(i, 2000);
	for (int i = 0; i < RAILS - 1; i++) {
		fault_begin(FAULT_CUT, i);
		run_groups(&w, 20, "hung commands");
		run_ms(&w, 500);
	}
	for (int i = 0; i < PORTS; i++)
		fault_end(i);
	run_until_used(&w, (1u << PORTS) - 1, "hung commands");
	CHECK(traffic_longest_wait_ns() < 1000 * NS_PER_MS);
	world_close(&w, "hung commands");
}

/* A destroy that takes long holds up nothing where the reset before it is the fence. */
static void slow_destroy(void)
{
	enum { SLOW_MS = 8000, RXE = 0xffffff };
	uint64_t start;
	struct world w;

	world_open(&w, &(struct fake_config){.vendor_id = RXE}, false);
	run_groups(&w, 20, "before");
	for (int i = 0; i < PORTS; i++)
		fake_destroy_slow(i, SLOW_MS);
	start = now_ns();
	fault_begin(FAULT_DOWN, 0);
	run_groups(&w, 50, "slow destroy");
	CHECK(now_ns() - start < SLOW_MS * NS_PER_MS);
	for (int i = 0; i < PORTS; i++)
		fake_destroy_slow(i, 0);
	fault_end(0);
	run_until_used(&w, (1u << PORTS) - 1, "slow destroy");
	world_close(&w, "slow destroy");
}

/* ---- outage ---- */

static bool is_failed(const struct world *w)
{
	for (int k = 0; k < 2; k++) {
		if (traffic_send_rc(w->run[k]) == RY_NET_SUCCESS ||
		    traffic_recv_rc(w->run[k]) == RY_NET_SUCCESS)
			return false;
	}
	return true;
}

/* Everything is down for longer than allowed: both ends of both say so, and no sooner. */
static void outage(void)
{
	struct world w = {.random = strtoull(seed_text(), NULL, 0)};
	struct traffic t = mix(&w, false);
	uint64_t start;

	rig_env("RAILYARD_OUTAGE_TIMEOUT", "2");
	t.may_fail = true;
	world_open_with(&w, &(struct fake_config){.device_count = PORTS}, RAILS, &t);
	run_groups(&w, 50, "before");
	for (int i = 0; i < PORTS; i++)
		fault_begin(i < RAILS ? FAULT_DOWN : FAULT_CUT, i);
	start = now_ns();
	while (!is_failed(&w)) {
		step(&w);
		CHECK(now_ns() - start < SOON_MS * NS_PER_MS);
	}
	printf("       outage of 2 s: errors at all ends after %u ms, %u warnings\n",
	       (unsigned)((now_ns() - start) / NS_PER_MS), rig_warnings());
	CHECK(now_ns() - start > 1900 * NS_PER_MS);
	for (int k = 0; k < 2; k++) {
		CHECK_INT(traffic_send_rc(w.run[k]), RY_NET_REMOTE_ERROR);
		CHECK_INT(traffic_recv_rc(w.run[k]), RY_NET_REMOTE_ERROR);
	}
	CHECK(rig_warnings() > 0 && rig_warnings() <= 4);
	for (int k = 0; k < 2; k++) {
		traffic_stop(w.run[k]);
		pair_close(&w.p[k]);
	}
	rig_stop();
	rig_clean();
}

/* ---- one device per comm ---- */

static uint64_t bytes_of(int first, int count)
{
	uint64_t bytes = 0;

	for (int i = first; i < first + count; i++)
		bytes += fake_port_bytes(i, 1);
	return bytes;
}

static void lent_until(struct world *w, bool lent)
{
	uint64_t end_ns = now_ns() + SOON_MS * NS_PER_MS;

	/* A stretch in which the other ports, or none of them, carry the traffic. */
	for (bool is = !lent; is != lent;) {
		uint64_t from = bytes_of(1, RAILS - 1) + bytes_of(RAILS + 1, RAILS - 1);

		run_ms(w, 200);
		is = bytes_of(1, RAILS - 1) + bytes_of(RAILS + 1, RAILS - 1) - from >= AGAIN_BYTES;
		if (now_ns() > end_ns)
			rig_die(__FILE__, __LINE__, "the other ports are%s used",
				lent ? " not" : " still");
	}
}

static void borrow(void)
{
	struct world w = {.random = strtoull(seed_text(), NULL, 0)};
	struct traffic t = mix(&w, false);

	rig_env("RAILYARD_BORROW", "failure");
	world_open_with(&w, &(struct fake_config){.device_count = PORTS}, 1, &t);
	run_groups(&w, 50, "before");
	CHECK_INT((long long)bytes_of(1, RAILS - 1), 0);
	for (int i = 0; i < 4; i++) {
		int device = i % 2 ? RAILS : 0;

		fault_begin(i / 2 ? FAULT_DOWN : FAULT_CUT, device);
		run_groups(&w, 100, "borrowing");
		lent_until(&w, true);
		fault_end(device);
		run_until_used(&w, 0x11, "after borrowing");
		lent_until(&w, false);
	}
	world_close(&w, "borrowing");
}

/* Without leave to borrow it waits for its own port. */
static void borrow_off(void)
{
	struct world w = {.random = strtoull(seed_text(), NULL, 0)};
	struct traffic t = mix(&w, false);

	rig_env("RAILYARD_BORROW", "off");
	world_open_with(&w, &(struct fake_config){.device_count = PORTS}, 1, &t);
	fault_begin(FAULT_CUT, 0);
	run_ms(&w, 1500);
	fault_end(0);
	run_groups(&w, 100, "after the cut");
	CHECK_INT((long long)(bytes_of(1, RAILS - 1) + bytes_of(RAILS + 1, RAILS - 1)), 0);
	world_close(&w, "not borrowing");
}

int main(int argc, char **argv)
{
	static const struct rig_case cases[] = {
		{"healthy", healthy},
		{"cut", cut},
		{"down", down},
		{"acks_lost", acks_lost},
		{"one_way", one_way},
		{"hung", hung},
		{"gid_changed", gid_changed},
		{"several", several},
		{"flaps", flaps},
		{"random_immediate", random_immediate},
		{"random_queued", random_queued},
		{"random_cleaned", random_cleaned},
		{"post_fails", post_fails},
		{"ghosts", ghosts},
		{"device_dies", device_dies},
		{"no_call_waits", no_call_waits},
		{"slow_destroy", slow_destroy},
		{"outage", outage},
		{"borrow", borrow},
		{"borrow_off", borrow_off},
	};

	times_set();
	return rig_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
