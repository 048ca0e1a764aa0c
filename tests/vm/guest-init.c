/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * guest-init.c - First program of a guest, alone in the initrd: loads the modules, mounts the
 * host's root read-only by 9p with a tmpfs above it and everything else that a guest has
 * mounted, and becomes guest-setup. One static program without a shell, since each exec costs an
 * emulated CPU a quarter of a second. Must not touch the host: every write lands in a tmpfs, but
 * for those to /out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define P9 "trans=virtio,version=9p2000.L,msize=262144,"

static char cmdline[4096];

static void die(const char *what)
{
	printf("guest-init: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	_exit(1);
}

// The value of a word "name=value" of the kernel's command line; a copy.
static char *parameter(const char *name)
{
	char *at = strstr(cmdline, name);

	if (!at) {
		errno = ENOENT;
		die(name);
	}
	at += strlen(name);
	return strndup(at, strcspn(at, " \n"));
}

static void read_cmdline(void)
{
	int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, cmdline, sizeof(cmdline) - 1);

	if (n < 0)
		die("/proc/cmdline");
	close(fd);
}

static void need_mount(const char *source, const char *target, const char *type,
		       unsigned long flags, const char *options)
{
	if (mount(source, target, type, flags, options))
		die(target);
}

// A module that does not fit this kernel or CPU is no loss; a needed one shows below.
static void load_module(const char *name)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "/modules/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || syscall(SYS_finit_module, fd, "", 0))
		printf("guest-init: %s: %s\n", name, strerror(errno));
	if (fd >= 0)
		close(fd);
}

static void load_modules(void)
{
	FILE *order = fopen("/modules/order", "re");
	char name[128];

	if (!order)
		die("/modules/order");
	while (fscanf(order, "%127s", name) == 1)
		load_module(name);
	fclose(order);
}

// cache=loose is fast, but files look as they were when first read.
static void mount_root(void)
{
	need_mount("rootfs", "/lower", "9p", MS_RDONLY, P9 "cache=loose");
	need_mount("rw", "/rw", "tmpfs", 0, "size=50%");
	if (mkdir("/rw/upper", 0755) || mkdir("/rw/work", 0755))
		die("/rw");
	need_mount("overlay", "/newroot", "overlay", 0,
		   "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work");
	need_mount("/proc", "/newroot/proc", NULL, MS_MOVE, NULL);
	need_mount("/sys", "/newroot/sys", NULL, MS_MOVE, NULL);
	need_mount("/dev", "/newroot/dev", NULL, MS_MOVE, NULL);
}

static void switch_root(void)
{
	if (chdir("/newroot"))
		die("/newroot");
	need_mount(".", "/", NULL, MS_MOVE, NULL);
	if (chroot(".") || chdir("/"))
		die("chroot");
}

static void make_path(const char *path)
{
	char part[1024];

	for (size_t i = 1; path[i - 1] && i < sizeof(part); i++) {
		if (path[i] != '/' && path[i])
			continue;
		memcpy(part, path, i);
		part[i] = 0;
		if (mkdir(part, 0755) && errno != EEXIST)
			die(part);
	}
}

static void make_dev(void)
{
	make_path("/dev/shm");
	make_path("/dev/pts");
	need_mount("shm", "/dev/shm", "tmpfs", 0, NULL);
	need_mount("pts", "/dev/pts", "devpts", 0, NULL);
	if (symlink("/proc/self/fd", "/dev/fd") || symlink("fd/0", "/dev/stdin") ||
	    symlink("fd/1", "/dev/stdout") || symlink("fd/2", "/dev/stderr"))
		die("/dev");
}

static void mount_rest(const char *repo, const char *kernel)
{
	char modules[1024];

	need_mount("tmp", "/tmp", "tmpfs", 0, NULL);
	need_mount("run", "/run", "tmpfs", 0, NULL);
	need_mount("bpf", "/sys/fs/bpf", "bpf", 0, NULL);
	need_mount("trace", "/sys/kernel/tracing", "tracefs", 0, NULL);
	need_mount("debug", "/sys/kernel/debug", "debugfs", 0, NULL);
	need_mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, NULL);
	make_path("/run/netns");
	make_path("/out");
	make_path("/lib/modules");
	make_path(repo);
	// No cache: a program rebuilt on the host while the guest runs is seen at its next start.
	need_mount("repo", repo, "9p", MS_RDONLY, P9 "cache=none");
	need_mount("out", "/out", "9p", 0, P9 "cache=none");
	snprintf(modules, sizeof(modules), "%s/build/vm/%s/root/lib/modules", repo, kernel);
	need_mount(modules, "/lib/modules", NULL, MS_BIND, NULL);
}

int main(void)
{
	char setup[1024];
	char *repo;

	setvbuf(stdout, NULL, _IOLBF, 0);
	need_mount("proc", "/proc", "proc", 0, NULL);
	need_mount("sys", "/sys", "sysfs", 0, NULL);
	need_mount("dev", "/dev", "devtmpfs", 0, NULL);
	read_cmdline();
	load_modules();
	mount_root();
	switch_root();
	make_dev();
	repo = parameter("railyard.repo=");
	mount_rest(repo, parameter("railyard.kernel="));
	snprintf(setup, sizeof(setup), "%s/tests/vm/guest-setup", repo);
	execl("/bin/sh", "sh", setup, (char *)NULL);
	die(setup);
}
