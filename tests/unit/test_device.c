/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_device.c - device.h on fake devices and a sysfs made for the test: which ports are found,
 * their order, numbers and names, fused devices, GID choice, and every verbs call failing once.
 */
#include <criterion/criterion.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "device.h"
#include "device_sys.h"
#include "fake/fake_verbs.h"
#include "log_capture.h"
#include "worker_fake.h"

static char root[64];

/* ---- a sysfs ---- */

static void mkdirs(const char *path)
{
	char part[512];

	for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
		if (mkdir(part, 0755) && errno != EEXIST)
			cr_assert_fail("mkdir %s: %s", part, strerror(errno));
	}
}

__attribute__((format(printf, 2, 3))) static void sys_file(const char *text, const char *fmt, ...)
{
	char path[512];
	int n = snprintf(path, sizeof(path), "%s/", root);
	va_list args;
	FILE *f;

	va_start(args, fmt);
	vsnprintf(path + n, sizeof(path) - (size_t)n, fmt, args);
	va_end(args);
	mkdirs(path);
	f = fopen(path, "w");
	cr_assert(f, "%s: %s", path, strerror(errno));
	fputs(text, f);
	fclose(f);
}

/* fakeN/device -> a directory below root/devices */
static void sys_pci(int device, const char *pci)
{
	char target[256], link[256];

	snprintf(target, sizeof(target), "%s/devices/%s/", root, pci);
	mkdirs(target);
	snprintf(link, sizeof(link), "%s/class/infiniband/fake%d/device", root, device);
	mkdirs(link);
	snprintf(target, sizeof(target), "../../../devices/%s", pci);
	cr_assert_eq(symlink(target, link), 0, "%s", strerror(errno));
}

static const char *below_root(const char *path)
{
	size_t len = strlen(root);

	cr_assert(path && strncmp(path, root, len) == 0, "%s", path ? path : "(none)");
	return path + len;
}

/* ---- set-up ---- */

static void env(const char *name, const char *value)
{
	setenv(name, value, 1);
}

static void setup(void)
{
	for (unsigned i = 0; i < config_count(); i++)
		unsetenv(config_name(i));
	strcpy(root, "/tmp/ry-device-XXXXXX");
	cr_assert(mkdtemp(root));
	device_sys_root(root);
	verbs = fake_verbs_ops;
	memset(&workers, 0, sizeof(workers));
}

static void teardown(void)
{
	char command[128], leaks[256];

	device_fini();
	device_forget();
	cr_assert_eq(fake_leaks(leaks, sizeof(leaks)), 0, "%s", leaks);
	cr_assert_null(fake_fault(), "%s", fake_fault());
	cr_assert_eq(workers.running, 0);
	snprintf(command, sizeof(command), "rm -rf '%s'", root);
	cr_assert_eq(system(command), 0);
}

/* Not as Criterion's own fixtures: what fails in those does not fail the test. */
#define DEVICE_TEST(name)                                                                          \
	static void name(void);                                                                    \
	Test(device, name)                                                                         \
	{                                                                                          \
		setup();                                                                           \
		name();                                                                            \
		teardown();                                                                        \
	}                                                                                          \
	static void name(void)

static void devices(int count, int ports)
{
	fake_init(&(struct fake_config){.device_count = count, .port_count = ports});
}

static int init(void)
{
	capture_start();
	config_reload();
	return device_init();
}

/* The names of the ports, in order, with a blank between. */
static const char *names(void)
{
	static char text[1024];

	text[0] = '\0';
	for (int i = 0; i < port_count(); i++) {
		strcat(text, i ? " " : "");
		strcat(text, port_at(i)->name);
	}
	return text;
}

/* ---- discovery ---- */

DEVICE_TEST(one_port)
{
	struct port *port;

	devices(1, 1);
	cr_assert_eq(init(), 1);
	port = port_at(0);
	cr_assert_str_eq(port->name, "fake0:1");
	cr_assert_str_eq(port->ibdev, "fake0");
	cr_assert_eq(port->num, 1);
	cr_assert_eq(port->link_layer, IBV_LINK_LAYER_ETHERNET);
	cr_assert_eq(port->guid, htobe64(0x0200fa4e00000000u));
	cr_assert_null(port->pci_path);
	cr_assert_eq(port->nccl_port, 1);
	cr_assert_eq(port->rail_id, -1);
	cr_assert_eq(port->plane_id, -1);
	cr_assert_eq(port->word.down, 0);
	cr_assert_eq(port->attr.max_qp, 65536);
	cr_assert_not_null(port->worker);
	cr_assert_str_eq(port->worker->name, "ry-fake0");
	cr_assert_null(port_at(1));
	cr_assert_null(port_at(-1));
	cr_assert_eq(vdevice_count(), 1);
	cr_assert_str_eq(vdevice_at(0)->name, "fake0");
	cr_assert_eq(vdevice_at(0)->port_count, 1);
	cr_assert_eq(vdevice_at(0)->port[0], 0);
	cr_assert_null(vdevice_at(1));
	cr_assert_null(vdevice_at(-1));
	cr_assert_eq(capture_warnings(), 0);
	cr_assert_eq(capture_has("Using [0]fake0:1/RoCE [RO]"), 1, "%s", capture.text[0]);
}

DEVICE_TEST(ports_are_in_order_of_their_pci_addresses)
{
	devices(5, 1);
	sys_pci(0, "pci0000:80/0000:80:01.0/0000:af:00.0");
	sys_pci(1, "pci0000:00/0000:00:01.0/0000:0a:00.1");
	sys_pci(2, "pci0000:00/0000:00:01.0/0000:0a:00.0");
	sys_pci(3, "pci10000:00/10000:00:01.0");
	sys_pci(4, "pci0000:00/0000:00:02.0/0000:9b:00.0");
	cr_assert_eq(init(), 5);
	cr_assert_str_eq(names(), "fake2:1 fake1:1 fake4:1 fake0:1 fake3:1");
}

DEVICE_TEST(pci_order_can_be_turned_off)
{
	devices(2, 1);
	sys_pci(0, "0000:af:00.0");
	sys_pci(1, "0000:0a:00.0");
	env("NCCL_IB_DEVICE_PCI_ORDER", "0");
	cr_assert_eq(init(), 2);
	cr_assert_str_eq(names(), "fake0:1 fake1:1");
}

DEVICE_TEST(ports_without_a_path_come_last_by_name)
{
	devices(12, 1);
	sys_pci(11, "0000:0a:00.0");
	cr_assert_eq(init(), 12);
	cr_assert_str_eq(names(), "fake11:1 fake0:1 fake1:1 fake2:1 fake3:1 fake4:1 fake5:1 "
				  "fake6:1 fake7:1 fake8:1 fake9:1 fake10:1");
	cr_assert_not_null(port_at(0)->pci_path);
	for (int i = 1; i < 12; i++) {
		cr_assert_null(port_at(i)->pci_path);
		cr_assert_eq(port_at(i)->nccl_port, 1);
	}
}

DEVICE_TEST(functions_of_a_card_have_one_path_and_different_ports)
{
	devices(4, 1);
	sys_pci(0, "pci0000:00/0000:0a:00.0");
	sys_pci(1, "pci0000:00/0000:0a:00.1");
	sys_pci(2, "pci0000:00/0000:0a:01.2"); /* a virtual function */
	sys_pci(3, "pci0000:00/0000:0b:00.0");
	cr_assert_eq(init(), 4);
	cr_assert_str_eq(names(), "fake0:1 fake1:1 fake2:1 fake3:1");
	for (int i = 0; i < 3; i++) {
		cr_assert_str_eq(below_root(port_at(i)->pci_path),
				 "/devices/pci0000:00/0000:0a:00.0");
		cr_assert_eq(port_at(i)->nccl_port, 1 + i);
	}
	cr_assert_str_eq(below_root(port_at(3)->pci_path), "/devices/pci0000:00/0000:0b:00.0");
	cr_assert_eq(port_at(3)->nccl_port, 1);
}

DEVICE_TEST(virtual_functions_stay_apart_if_told)
{
	devices(2, 1);
	sys_pci(0, "0000:0a:00.0");
	sys_pci(1, "0000:0a:01.2");
	env("NCCL_IB_MERGE_VFS", "0");
	cr_assert_eq(init(), 2);
	cr_assert_str_eq(below_root(port_at(0)->pci_path), "/devices/0000:0a:00.0");
	cr_assert_str_eq(below_root(port_at(1)->pci_path), "/devices/0000:0a:01.0");
	cr_assert_eq(port_at(1)->nccl_port, 1);
}

DEVICE_TEST(a_child_of_a_pci_function_has_that_path)
{
	devices(2, 1);
	sys_pci(0, "pci0000:00/0000:00:03.0/virtio2");
	sys_pci(1, "platform/soc:0");
	cr_assert_eq(init(), 2);
	cr_assert_str_eq(below_root(port_at(0)->pci_path), "/devices/pci0000:00/0000:00:00.0");
	cr_assert_null(port_at(1)->pci_path);
}

DEVICE_TEST(both_ports_of_a_device_share_context_and_worker)
{
	devices(1, 2);
	sys_pci(0, "0000:0a:00.0");
	cr_assert_eq(init(), 2);
	cr_assert_str_eq(names(), "fake0:1 fake0:2");
	cr_assert_eq(port_at(0)->ctx, port_at(1)->ctx);
	cr_assert_eq(port_at(0)->worker, port_at(1)->worker);
	cr_assert_eq(workers.running, 1);
}

DEVICE_TEST(a_down_port_is_left_out)
{
	devices(3, 1);
	fake_port_set(1, 1, false);
	cr_assert_eq(init(), 2);
	cr_assert_str_eq(names(), "fake0:1 fake2:1");
}

DEVICE_TEST(a_down_port_named_as_a_prefix_is_left_out)
{
	devices(3, 1);
	fake_port_set(1, 1, false);
	env("NCCL_IB_HCA", "fake0,fake1,fake2");
	cr_assert_eq(init(), 2);
}

DEVICE_TEST(a_down_port_named_exactly_is_kept_as_down)
{
	devices(3, 1);
	fake_port_set(1, 1, false);
	env("NCCL_IB_HCA", "=fake0,fake1");
	cr_assert_eq(init(), 2);
	cr_assert_str_eq(names(), "fake0:1 fake1:1");
	cr_assert_eq(port_at(0)->word.down, 0);
	cr_assert_eq(port_at(1)->word.down, 1);
	cr_assert_eq(capture_has("[1]fake1:1/RoCE(down)"), 1);
	cr_assert_eq(capture_warnings(), 0);
}

DEVICE_TEST(the_filter_chooses_and_names_rails)
{
	devices(4, 2);
	env("NCCL_IB_HCA", "=fake3:1:0:1,fake1:2:5");
	cr_assert_eq(init(), 2);
	cr_assert_str_eq(names(), "fake1:2 fake3:1");
	cr_assert_eq(port_at(0)->rail_id, 5);
	cr_assert_eq(port_at(0)->plane_id, -1);
	cr_assert_eq(port_at(1)->rail_id, 0);
	cr_assert_eq(port_at(1)->plane_id, 1);
	cr_assert_eq(vdevice_at(1)->plane_id, 1);
}

DEVICE_TEST(the_filter_excludes)
{
	devices(3, 1);
	env("NCCL_IB_HCA", "^fake1");
	cr_assert_eq(init(), 2);
	cr_assert_str_eq(names(), "fake0:1 fake2:1");
}

DEVICE_TEST(a_bad_filter_gives_one_line_and_filters_nothing)
{
	devices(2, 1);
	env("NCCL_IB_HCA", "fake0:one");
	cr_assert_eq(init(), 2);
	cr_assert_eq(capture_warnings(), 1);
	cr_assert_eq(capture_has("NCCL_IB_HCA=fake0:one: bad entry 'fake0:one'"), 1);
}

DEVICE_TEST(no_port_is_said_once)
{
	devices(2, 1);
	env("NCCL_IB_HCA", "mlx5");
	cr_assert_eq(init(), 0);
	cr_assert_eq(capture.count, 1);
	cr_assert_eq(capture_has("NCCL_IB_HCA=mlx5"), 1);
	cr_assert_eq(vdevice_count(), 0);
	cr_assert_eq(workers.running, 0);
}

DEVICE_TEST(ib_disable_finds_nothing)
{
	devices(2, 1);
	env("NCCL_IB_DISABLE", "1");
	cr_assert_eq(init(), 0);
	cr_assert_eq(capture_has("NCCL_IB_DISABLE"), 1);
	cr_assert_eq(capture_warnings(), 0);
}

DEVICE_TEST(at_most_32_ports)
{
	devices(16, 4);
	cr_assert_eq(init(), PORTS_MAX);
	cr_assert_geq(capture_warnings(), 1);
	cr_assert_geq(capture_has("more than 32 ports"), 1);
	cr_assert_eq(workers.running, 8);
}

/* ---- speeds ---- */

static struct ibv_port_attr port_attr;

static int scripted_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	(void)ctx;
	(void)port;
	*attr = port_attr;
	return 0;
}

static int one_speed(uint8_t speed, uint8_t width)
{
	int mbps;

	port_attr = (struct ibv_port_attr){.state = IBV_PORT_ACTIVE,
					   .active_mtu = IBV_MTU_4096,
					   .link_layer = IBV_LINK_LAYER_INFINIBAND,
					   .active_speed = speed,
					   .active_width = width,
					   .gid_tbl_len = 8};
	verbs.query_port = scripted_query_port;
	devices(1, 1);
	cr_assert_eq(init(), 1);
	mbps = (int)port_at(0)->mbps;
	cr_assert_eq(vdevice_at(0)->mbps, mbps);
	cr_assert_eq((int)port_at(0)->word.mbps, mbps);
	device_fini();
	device_forget();
	return mbps;
}

DEVICE_TEST(speed_is_lanes_times_lane_speed)
{
	cr_assert_eq(one_speed(1, 1), 2500);
	cr_assert_eq(one_speed(32, 2), 100000);
	cr_assert_eq(one_speed(64, 2), 200000);
	cr_assert_eq(one_speed(128, 2), 400000);
	cr_assert_eq(one_speed(32, 16), 50000);
	cr_assert_eq(one_speed(4, 8), 120000);
	cr_assert_eq(one_speed(0, 0), 2500);
}

DEVICE_TEST(speed_is_asked_for_first)
{
	fake_init(&(struct fake_config){.mbps = 123000});
	cr_assert_eq(init(), 1);
	cr_assert_eq(port_at(0)->mbps, 123000);
	device_fini();
	device_forget();
	env("NCCL_IB_QUERY_PORT_SPEED", "0");
	cr_assert_eq(init(), 1);
	cr_assert_eq(port_at(0)->mbps, 100000);
}

/* ---- GPU memory ---- */

DEVICE_TEST(dmabuf_is_what_the_driver_knows)
{
	fake_init(&(struct fake_config){.dmabuf = true});
	cr_assert_eq(init(), 1);
	cr_assert(port_at(0)->has_dmabuf);
	cr_assert_not(port_at(0)->has_peermem);
	device_fini();
	device_forget();
	devices(1, 1);
	sys_file("1.0\n", "module/nvidia_peermem/version");
	cr_assert_eq(init(), 1);
	cr_assert_not(port_at(0)->has_dmabuf);
	cr_assert(port_at(0)->has_peermem);
}

DEVICE_TEST(older_peermem_modules_count_too)
{
	devices(1, 1);
	sys_file("1.0\n", "kernel/mm/memory_peers/nv_mem_nc/version");
	cr_assert_eq(init(), 1);
	cr_assert(port_at(0)->has_peermem);
}

static int no_iova2(void)
{
	return 0;
}

DEVICE_TEST(relaxed_ordering_is_said)
{
	devices(1, 1);
	verbs.supports_iova2 = no_iova2;
	cr_assert_eq(init(), 1);
	cr_assert_eq(capture_has("[RO]"), 0);
	cr_assert_eq(capture_warnings(), 0);
	device_fini();
	device_forget();
	env("NCCL_IB_PCI_RELAXED_ORDERING", "1");
	cr_assert_eq(init(), 1);
	cr_assert_eq(capture_has("NCCL_IB_PCI_RELAXED_ORDERING=1"), 1);
}

/* ---- references ---- */

DEVICE_TEST(the_last_user_stops_the_workers_and_ports_stay)
{
	struct ibv_context *ctx;

	devices(3, 1);
	cr_assert_eq(init(), 3);
	cr_assert_eq(device_init(), 3);
	ctx = port_at(0)->ctx;
	cr_assert_eq(workers.running, 3);
	cr_assert_eq(workers.starts, 3);
	device_fini();
	cr_assert_eq(workers.running, 3);
	device_fini();
	cr_assert_eq(workers.running, 0);
	cr_assert_eq(port_count(), 3);
	cr_assert_eq(device_init(), 3);
	cr_assert_eq(workers.running, 3);
	cr_assert_eq(port_at(0)->ctx, ctx);
}

DEVICE_TEST(a_worker_that_cannot_start_fails_init_with_one_line)
{
	devices(3, 1);
	workers.fail_at = 3;
	cr_assert_eq(init(), -EAGAIN);
	cr_assert_eq(capture_warnings(), 1);
	cr_assert_eq(workers.running, 0);
	cr_assert_eq(device_init(), 3); /* later there may be room */
	cr_assert_eq(workers.running, 3);
}

/* ---- every verbs call fails once ---- */

/* A driver that complains and frees all the same, so that what is left over is the code's leak. */
static int grumbling_dealloc_pd(struct ibv_pd *pd)
{
	int rc = fake_verbs_ops.dealloc_pd(pd);

	if (rc)
		cr_assert_eq(fake_verbs_ops.dealloc_pd(pd), 0);
	return rc;
}

DEVICE_TEST(any_verbs_call_may_fail_once)
{
	unsigned n = 0;
	int fallbacks = 0, errors = 0;

	verbs.dealloc_pd = grumbling_dealloc_pd;
	for (;; n++) {
		char leaks[256];
		int rc;

		fake_init(&(struct fake_config){.device_count = 2, .port_count = 2});
		fake_fail_nth(n + 1, EIO);
		rc = init();
		if (!fake_failed()) {
			fake_fail_nth(0, 0);
			cr_assert_eq(rc, 4);
			cr_assert_eq(capture_warnings(), 0);
			break;
		}
		cr_assert_leq(capture_warnings(), 1, "%s", fake_failed());
		if (rc < 0) {
			errors++;
			cr_assert_eq(rc, -EIO, "%s: %d", fake_failed(), rc);
			cr_assert_eq(capture_warnings(), 1, "%s", fake_failed());
			cr_assert_eq(workers.running, 0);
			cr_assert_eq(port_count(), 0);
		} else {
			fallbacks++;
			cr_assert_geq(rc, 2, "%s left %d ports", fake_failed(), rc);
			if (rc < 4 ||
			    !strcmp(fake_failed(), "dealloc_pd")) /* what is lost is said */
				cr_assert_eq(capture_warnings(), 1, "%s", fake_failed());
			device_fini();
		}
		device_forget();
		cr_assert_eq(fake_leaks(leaks, sizeof(leaks)), 0, "%s: %s", fake_failed(), leaks);
		cr_assert_null(fake_fault(), "%s: %s", fake_failed(), fake_fault());
	}
	cr_assert_geq(n, 20, "only %u calls were tried", n);
	cr_assert_eq(errors, 1); /* the list of devices itself */
	cr_assert_eq(fallbacks + errors, (int)n);
}

/* ---- fused devices ---- */

DEVICE_TEST(ports_fuse)
{
	int index = -1;

	devices(4, 1);
	cr_assert_eq(init(), 4);
	cr_assert_eq(vdevice_make(2, (const int[]){2, 0}, &index), 0);
	cr_assert_eq(index, 4);
	cr_assert_eq(vdevice_count(), 5);
	cr_assert_str_eq(vdevice_at(4)->name, "fake2+fake0");
	cr_assert_eq(vdevice_at(4)->port_count, 2);
	cr_assert_eq(vdevice_at(4)->port[0], 2);
	cr_assert_eq(vdevice_at(4)->port[1], 0);
	cr_assert_eq(vdevice_at(4)->mbps, 200000);
	cr_assert_eq(vdevice_at(4)->rail_id, -1);
	cr_assert_eq(vdevice_at(4)->plane_id, -1);
	/* the same again is the same device, other sets are not */
	cr_assert_eq(vdevice_make(2, (const int[]){2, 0}, &index), 0);
	cr_assert_eq(index, 4);
	cr_assert_eq(vdevice_make(4, (const int[]){0, 1, 2, 3}, &index), 0);
	cr_assert_eq(index, 5);
	cr_assert_eq(vdevice_make(1, (const int[]){3}, &index), 0);
	cr_assert_eq(index, 3);
}

DEVICE_TEST(rails_and_planes_of_a_fused_device)
{
	int index;

	devices(4, 1);
	env("NCCL_IB_HCA", "fake0:1:2:7,fake1:1:2:9,fake2:1:3:7,fake3");
	cr_assert_eq(init(), 4);
	cr_assert_eq(vdevice_make(2, (const int[]){0, 1}, &index), 0);
	cr_assert_eq(vdevice_at(index)->rail_id, 2);
	cr_assert_eq(vdevice_at(index)->plane_id, 0x4003);
	cr_assert_eq(vdevice_make(2, (const int[]){0, 2}, &index), 0);
	cr_assert_eq(vdevice_at(index)->rail_id, -1);
	cr_assert_eq(vdevice_at(index)->plane_id, 0x4001);
	cr_assert_eq(vdevice_make(2, (const int[]){1, 3}, &index), 0);
	cr_assert_eq(vdevice_at(index)->plane_id, 0x4006);
}

static void fusing_refused(int count, const int *devs, const char *why)
{
	int index = 77;

	capture_start();
	cr_assert_eq(vdevice_make(count, devs, &index), -EINVAL, "%s", why);
	cr_assert_eq(index, 77);
	cr_assert_eq(capture_warnings(), 1, "%s", why);
	cr_assert_eq(capture_has(why), 1, "%s: %s", why, capture.text[0]);
}

DEVICE_TEST(bad_fusing_is_refused_with_one_line)
{
	int before, index;

	devices(9, 1);
	cr_assert_eq(init(), 9);
	before = vdevice_count();
	fusing_refused(0, NULL, "1..8");
	fusing_refused(9, (const int[]){0, 1, 2, 3, 4, 5, 6, 7, 8}, "1..8");
	fusing_refused(2, (const int[]){0, 9}, "0..8");
	fusing_refused(2, (const int[]){-1, 0}, "0..8");
	fusing_refused(2, (const int[]){1, 1}, "named twice");
	port_at(1)->link_layer = IBV_LINK_LAYER_INFINIBAND;
	fusing_refused(2, (const int[]){0, 1}, "cannot be fused");
	cr_assert_eq(vdevice_count(), before);
	config.ib_merge_nics = 0;
	cr_assert_eq(vdevice_make(2, (const int[]){0, 2}, &index), -EPERM);
}

DEVICE_TEST(there_is_room_for_256_devices)
{
	int index, made = 12;

	devices(12, 1);
	cr_assert_eq(init(), 12);
	for (int a = 0; a < 12; a++) {
		for (int b = 0; b < 12 && made < VDEVICES_MAX; b++) {
			for (int c = 0; c < 12 && made < VDEVICES_MAX; c++) {
				const int devs[] = {a, b, c};

				if (a == b || a == c || b == c)
					continue;
				cr_assert_eq(vdevice_make(3, devs, &index), 0);
				cr_assert_eq(index, made++);
			}
		}
	}
	capture_start();
	cr_assert_eq(vdevice_make(2, (const int[]){10, 11}, &index), -ENOSPC);
	cr_assert_eq(capture_warnings(), 1);
	cr_assert_eq(vdevice_count(), VDEVICES_MAX);
}

/* ---- addresses ---- */

enum {
	TABLE_LEN = 8
};

static struct {
	const char *gid; /* NULL: empty */
	int version;	 /* < 0: an error */
} table[TABLE_LEN];

static int scripted_query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	(void)ctx;
	(void)port;
	if (index >= TABLE_LEN || !table[index].gid)
		return -ENODATA;
	cr_assert_eq(inet_pton(AF_INET6, table[index].gid, gid->raw), 1);
	return 0;
}

static int scripted_gid_version(struct ibv_context *ctx, uint8_t port, int index)
{
	(void)ctx;
	(void)port;
	return table[index].version;
}

static void table_set(int index, const char *gid, int version)
{
	table[index].gid = gid;
	table[index].version = version;
}

/* As a RoCE port with one IPv4 and one IPv6 address has it. */
static void table_usual(void)
{
	memset(table, 0, sizeof(table));
	table_set(0, "fe80::1", 1);
	table_set(1, "fe80::1", 2);
	table_set(2, "::ffff:10.1.0.5", 1);
	table_set(3, "::ffff:10.1.0.5", 2);
	table_set(4, "2001:db8::5", 1);
	table_set(5, "2001:db8::5", 2);
	table_set(6, "::ffff:192.168.3.5", 2);
}

static void scripted_port(uint8_t link_layer)
{
	port_attr = (struct ibv_port_attr){.state = IBV_PORT_ACTIVE,
					   .active_mtu = IBV_MTU_1024,
					   .lid = 17,
					   .link_layer = link_layer,
					   .gid_tbl_len = TABLE_LEN};
	verbs.query_port = scripted_query_port;
	verbs.query_gid = scripted_query_gid;
	verbs.query_gid_version = scripted_gid_version;
	devices(1, 1);
}

/* The index chosen, or -errno. */
static int chosen(void)
{
	struct port_address address = {.gid_index = -77};
	union ibv_gid expected;
	int rc;

	cr_assert_eq(init(), 1);
	rc = port_address(port_at(0), &address);
	if (rc == 0) {
		cr_assert_eq(address.mtu, IBV_MTU_1024);
		cr_assert_eq(address.lid, 17);
		cr_assert_eq(address.link_layer, port_attr.link_layer);
		cr_assert_eq(scripted_query_gid(NULL, 1, address.gid_index, &expected), 0);
		cr_assert_eq(memcmp(&address.gid, &expected, sizeof(expected)), 0);
	} else {
		cr_assert_eq(address.gid_index, -77, "set although it failed");
	}
	device_fini();
	device_forget();
	return rc ? rc : address.gid_index;
}

DEVICE_TEST(roce_takes_the_wanted_family_and_version)
{
	scripted_port(IBV_LINK_LAYER_ETHERNET);
	table_usual();
	cr_assert_eq(chosen(), 3);
	env("NCCL_IB_ROCE_VERSION_NUM", "1");
	cr_assert_eq(chosen(), 2);
	env("NCCL_IB_ADDR_FAMILY", "AF_INET6");
	cr_assert_eq(chosen(), 4);
	unsetenv("NCCL_IB_ROCE_VERSION_NUM");
	cr_assert_eq(chosen(), 5);
	cr_assert_eq(capture_warnings(), 0);
}

DEVICE_TEST(roce_takes_the_wanted_range)
{
	scripted_port(IBV_LINK_LAYER_ETHERNET);
	table_usual();
	env("NCCL_IB_ADDR_RANGE", "192.168.0.0/16");
	cr_assert_eq(chosen(), 6);
	env("NCCL_IB_ADDR_RANGE", "10.1.0.4/31");
	cr_assert_eq(chosen(), 3);
	env("NCCL_IB_ADDR_RANGE", "10.1.0.5/32");
	cr_assert_eq(chosen(), 3);
	env("NCCL_IB_ADDR_RANGE", "0.0.0.0/0");
	cr_assert_eq(chosen(), 3);
	env("NCCL_IB_ADDR_FAMILY", "AF_INET6");
	env("NCCL_IB_ADDR_RANGE", "2001:db8::/33");
	cr_assert_eq(chosen(), 5);
	cr_assert_eq(capture_warnings(), 0);
}

DEVICE_TEST(a_bad_range_gives_one_line_and_is_no_rule)
{
	static const char *const bad[] = {"10.1.0.0",	   "10.1.0.0/33", "10.1.0/16",
					  "/16",	   "10.1.0.0/",	  "10.1.0.0/8x",
					  "2001:db8::/32", "10.1.0.0/-1"};

	scripted_port(IBV_LINK_LAYER_ETHERNET);
	table_usual();
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		env("NCCL_IB_ADDR_RANGE", bad[i]);
		cr_assert_eq(chosen(), 3, "%s", bad[i]);
		cr_assert_eq(capture_warnings(), 1, "%s", bad[i]);
		cr_assert_eq(capture_has(bad[i]), 1);
	}
}

DEVICE_TEST(a_forced_index_is_taken_unchecked)
{
	scripted_port(IBV_LINK_LAYER_ETHERNET);
	table_usual();
	env("NCCL_IB_GID_INDEX", "0");
	cr_assert_eq(chosen(), 0);
	env("NCCL_IB_GID_INDEX", "4");
	cr_assert_eq(chosen(), 4);
	cr_assert_eq(capture_warnings(), 0);
	env("NCCL_IB_GID_INDEX", "7"); /* empty */
	cr_assert_eq(chosen(), -ENODATA);
	cr_assert_eq(capture_warnings(), 1);
	cr_assert_eq(capture_has("NCCL_IB_GID_INDEX"), 1);
}

DEVICE_TEST(a_gid_of_another_version_is_better_than_none)
{
	scripted_port(IBV_LINK_LAYER_ETHERNET);
	table_usual();
	table_set(3, NULL, 0);
	table_set(6, NULL, 0);
	cr_assert_eq(chosen(), 2);
}

DEVICE_TEST(a_gid_of_another_namespace_is_passed_over)
{
	scripted_port(IBV_LINK_LAYER_ETHERNET);
	table_usual();
	table[2].version = table[3].version = -ENOENT;
	cr_assert_eq(chosen(), 6);
	table[6].version = -EOPNOTSUPP; /* cannot be told here */
	cr_assert_eq(chosen(), 6);
}

DEVICE_TEST(without_a_match_gid_0_is_used_and_said)
{
	scripted_port(IBV_LINK_LAYER_ETHERNET);
	memset(table, 0, sizeof(table));
	table_set(0, "fe80::1", 1);
	table_set(1, "2001:db8::5", 2);
	cr_assert_eq(chosen(), 0);
	cr_assert_eq(capture_warnings(), 1); /* once, though asked for at init and here */
	cr_assert_eq(capture_has("fake0:1 has no GID of family AF_INET;"), 1, "%s",
		     capture.text[1]);
	cr_assert_eq(capture_has("NCCL_IB_ADDR_FAMILY"), 1);
	env("NCCL_IB_ADDR_RANGE", "10.0.0.0/8");
	cr_assert_eq(chosen(), 0);
	cr_assert_eq(capture_has("inside 10.0.0.0/8"), 1);
}

DEVICE_TEST(without_any_gid_there_is_no_address)
{
	scripted_port(IBV_LINK_LAYER_ETHERNET);
	memset(table, 0, sizeof(table));
	cr_assert_eq(chosen(), -ENODATA);
	cr_assert_eq(capture_warnings(), 1);
	table_set(0, "::", 1);
	cr_assert_eq(chosen(), -EADDRNOTAVAIL);
	cr_assert_eq(capture_warnings(), 1);
}

DEVICE_TEST(ib_takes_gid_0_or_the_routable_one)
{
	scripted_port(IBV_LINK_LAYER_INFINIBAND);
	memset(table, 0, sizeof(table));
	table_set(0, "fe80::1", 0);
	cr_assert_eq(chosen(), 0);
	table_set(1, "fec0:0:0:0:2::1", 0);
	cr_assert_eq(chosen(), 0, "no FLID");
	table_set(1, "fec0:0:7::1", 0);
	cr_assert_eq(chosen(), 1);
	env("NCCL_IB_ROUTABLE_FLID_GID_INDEX", "2");
	cr_assert_eq(chosen(), 0);
	cr_assert_eq(capture_warnings(), 0);
}

DEVICE_TEST(addresses_are_read_anew_each_time)
{
	struct port_address address;

	scripted_port(IBV_LINK_LAYER_ETHERNET);
	table_usual();
	cr_assert_eq(init(), 1);
	cr_assert_eq(port_address(port_at(0), &address), 0);
	cr_assert_eq(address.gid_index, 3);
	/* a flap: the address is back at another index */
	table_set(7, table[3].gid, 2);
	table_set(2, NULL, 0);
	table_set(3, NULL, 0);
	table_set(6, NULL, 0);
	port_attr.active_mtu = IBV_MTU_4096;
	cr_assert_eq(port_address(port_at(0), &address), 0);
	cr_assert_eq(address.gid_index, 7);
	cr_assert_eq(address.mtu, IBV_MTU_4096);
}

DEVICE_TEST(the_netdev_is_that_of_the_gid)
{
	struct port_address address;

	devices(1, 1);
	sys_file("lo\n", "class/infiniband/fake0/ports/1/gid_attrs/ndevs/3");
	sys_file("other0\n", "class/infiniband/fake0/ports/1/gid_attrs/ndevs/0");
	cr_assert_eq(init(), 1);
	cr_assert_str_eq(port_at(0)->netdev, "lo");
	cr_assert_eq(port_at(0)->ifindex, 1);
	/* if that GID has none, any other's; then a soft device's parent; then none */
	sys_file("", "class/infiniband/fake0/ports/1/gid_attrs/ndevs/3");
	cr_assert_eq(port_address(port_at(0), &address), 0);
	cr_assert_str_eq(port_at(0)->netdev, "other0");
	cr_assert_eq(port_at(0)->ifindex, 0);
	sys_file("", "class/infiniband/fake0/ports/1/gid_attrs/ndevs/0");
	sys_file("lo\n", "class/infiniband/fake0/parent");
	cr_assert_eq(port_address(port_at(0), &address), 0);
	cr_assert_str_eq(port_at(0)->netdev, "lo");
	sys_file("", "class/infiniband/fake0/parent");
	cr_assert_eq(port_address(port_at(0), &address), 0);
	cr_assert_str_eq(port_at(0)->netdev, "");
	cr_assert_eq(port_at(0)->ifindex, 0);
}

DEVICE_TEST(any_verbs_call_of_an_address_may_fail_once)
{
	struct port_address address;
	unsigned n = 1;

	devices(1, 1);
	cr_assert_eq(init(), 1);
	for (;; n++) {
		int rc;

		port_at(0)->gid_limit = (struct log_limit){0};
		capture_start();
		fake_fail_nth(n, EIO);
		rc = port_address(port_at(0), &address);
		if (!fake_failed())
			break;
		if (rc) /* only the port itself has no substitute */
			cr_assert_str_eq(fake_failed(), "query_port");
		cr_assert_eq(capture_warnings(), rc ? 1 : 0, "%s", fake_failed());
	}
	fake_fail_nth(0, 0);
	cr_assert_geq(n, 5);
}

/* ---- protection domains ---- */

DEVICE_TEST(the_protection_domain_is_shared_and_freed_by_the_last)
{
	struct ibv_pd *a, *b, *c = NULL;

	devices(1, 1);
	cr_assert_eq(init(), 1);
	cr_assert_eq(fake_leaks(NULL, 0), 1); /* the context */
	cr_assert_eq(port_pd_get(port_at(0), &a), 0);
	cr_assert_eq(port_pd_get(port_at(0), &b), 0);
	cr_assert_eq(a, b);
	cr_assert_eq(fake_leaks(NULL, 0), 2);
	port_pd_put(port_at(0));
	cr_assert_eq(fake_leaks(NULL, 0), 2);
	port_pd_put(port_at(0));
	cr_assert_eq(fake_leaks(NULL, 0), 1);
	capture_start();
	fake_fail_nth(1, ENOMEM);
	cr_assert_eq(port_pd_get(port_at(0), &c), -ENOMEM);
	cr_assert_null(c);
	cr_assert_eq(capture_warnings(), 0); /* the caller's to say, once for all its ports */
	cr_assert_eq(port_pd_get(port_at(0), &c), 0);
	port_pd_put(port_at(0));
}
