/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * hooks.c - try each BPF program alone. See hooks.h.
 *
 * Asking the kernel is the only sure test: there are kernels whose BTF has a function and which
 * still refuse a program on it.
 */
#include "hooks.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "railyard.skel.h"

#define ENOTSUPP_KERNEL 524 /* the kernel's own ENOTSUPP, which has no name in user space */

const struct hook_info hook_infos[RAILMAP_HOOK_COUNT] = {
	[RAILMAP_HOOK_QDISC_RESET] = {"on_qdisc_reset", "qdisc_reset", "link loss",
				      "link loss is seen only through carrier hooks or rtnetlink",
				      0},
	[RAILMAP_HOOK_TX_TIMEOUT] = {"on_tx_timeout", "net_dev_xmit_timeout", "transmit watchdog",
				     "hung transmit queues are not seen", 0},
	[RAILMAP_HOOK_HEARTBEAT] = {NULL, "heartbeat", "liveness of the map, link-up within 0.1 s",
				    "nobody believes the map", 0},
	[RAILMAP_HOOK_TX_PACKET] = {"on_tx_packet", "net_dev_start_xmit",
				    "packets and bytes sent (soft RoCE)",
				    "no packet counts of soft RoCE rails", 1},
	[RAILMAP_HOOK_RX_PACKET] = {"on_rx_packet", "netif_receive_skb",
				    "CE, CNP, NAK and RNR received (soft RoCE)",
				    "no congestion signals of soft RoCE rails", 1},
	[RAILMAP_HOOK_CARRIER_OFF] = {"on_carrier_off", "netif_carrier_off", "link loss at once",
				      "a second loss within a second is seen up to 1 s late", 2},
	[RAILMAP_HOOK_CARRIER_ON] = {"on_carrier_on", "netif_carrier_on", "link-up at once",
				     "link-up is seen up to 0.1 s late", 2},
	[RAILMAP_HOOK_QDISC_CREATE] = {"on_qdisc_create", "qdisc_create",
				       "rows follow netdevs that move or are made anew",
				       "rows follow at the next loss, or `load --add`", 0},
};

static struct bpf_program *program_of(struct railyard_bpf *skel, const char *name)
{
	return bpf_object__find_program_by_name(skel->obj, name);
}

/* Load the object with `program` alone; NULL = maps and publish only. */
static int try_load(const char *program)
{
	struct railyard_bpf *skel = railyard_bpf__open();
	struct bpf_program *prog;
	int ret;

	if (!skel) {
		return -errno;
	}
	bpf_object__for_each_program(prog, skel->obj)
	{
		bpf_program__set_autoload(prog, false);
	}
	bpf_program__set_autoload(program ? program_of(skel, program) : skel->progs.publish, true);
	ret = railyard_bpf__load(skel);
	railyard_bpf__destroy(skel);
	return ret;
}

void hook_refused(struct hook_status *status, const char *kind, int err)
{
	status->state = HOOK_MISSING;
	switch (-err) {
	case EPERM:
		snprintf(status->why, sizeof(status->why), "this kernel refuses %s", kind);
		break;
	case ESRCH:
	case ENOENT:
		snprintf(status->why, sizeof(status->why), "this kernel has nothing of that name");
		break;
	case ENOTSUPP_KERNEL:
	case EOPNOTSUPP:
		snprintf(status->why, sizeof(status->why), "this kernel cannot attach %s", kind);
		break;
	default:
		snprintf(status->why, sizeof(status->why), "%s", strerror(-err));
	}
}

void hook_missing(struct hook_status *status, enum railmap_hook hook, int err)
{
	hook_refused(status, hook_infos[hook].tier == 2 ? "fentry programs" : "this program", err);
}

bool hooks_locked_down(void)
{
	char line[128] = "";
	FILE *f = fopen("/sys/kernel/security/lockdown", "re");

	if (f) {
		if (!fgets(line, sizeof(line), f)) {
			line[0] = '\0';
		}
		fclose(f);
	}
	return strstr(line, "[confidentiality]") != NULL;
}

static int probe_base(void)
{
	int ret;

	if (access("/sys/kernel/btf/vmlinux", R_OK)) {
		fprintf(stderr,
			"railyard: load: this kernel has no BTF (/sys/kernel/btf/vmlinux): it "
			"needs CONFIG_DEBUG_INFO_BTF\n");
		return -ENOTSUP;
	}
	ret = try_load(NULL);
	if (ret && hooks_locked_down()) {
		fprintf(stderr,
			"railyard: load: kernel lockdown \"confidentiality\" refuses BPF programs "
			"that read kernel memory\n");
	} else if (ret == -EPERM || ret == -EACCES) {
		fprintf(stderr,
			"railyard: load: the kernel refuses BPF (%s): needs root with CAP_BPF "
			"and CAP_PERFMON\n",
			strerror(-ret));
	} else if (ret) {
		fprintf(stderr, "railyard: load: the kernel refuses the publish program: %s\n",
			strerror(-ret));
	}
	return ret;
}

static int libbpf_says_nothing(enum libbpf_print_level level, const char *fmt, va_list args)
{
	(void)level;
	(void)fmt;
	(void)args;
	return 0;
}

void hooks_quiet(void)
{
	libbpf_set_print(libbpf_says_nothing);
}

bool hook_is_off(struct hook_status *status, enum railmap_hook hook, bool soft)
{
	bool off = hook_infos[hook].tier == 1 && !soft;

	if (off) {
		status->state = HOOK_OFF;
		snprintf(status->why, sizeof(status->why), "no rail is soft RoCE");
	}
	return off;
}

int hooks_probe(bool soft, struct hook_status status[RAILMAP_HOOK_COUNT])
{
	int ret = probe_base();

	if (ret) {
		return ret;
	}
	for (int i = 0; i < RAILMAP_HOOK_COUNT; i++) {
		memset(&status[i], 0, sizeof(status[i]));
		if (hook_is_off(&status[i], (enum railmap_hook)i, soft)) {
			continue;
		}
		ret = hook_infos[i].program ? try_load(hook_infos[i].program) : 0;
		if (ret) {
			hook_missing(&status[i], (enum railmap_hook)i, ret);
		}
	}
	return 0;
}

void hook_print(const struct hook_status *status, const char *name, const char *gives)
{
	static const char *const words[] = {"live", "off", "missing"};

	printf("  %-8s %-23s ", words[status->state], name);
	printf("%s\n", status->state == HOOK_LIVE ? gives : status->why);
}

void hooks_print(const struct hook_status status[RAILMAP_HOOK_COUNT])
{
	printf("hooks:\n");
	for (int i = 0; i < RAILMAP_HOOK_COUNT; i++) {
		const struct hook_info *info = &hook_infos[i];
		struct hook_status s = status[i];

		if (s.state == HOOK_MISSING) {
			snprintf(s.why, sizeof(s.why), "%.60s: %.64s", status[i].why,
				 info->without);
		}
		hook_print(&s, info->name, info->gives);
	}
}
