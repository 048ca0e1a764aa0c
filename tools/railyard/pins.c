/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * pins.c - directories and mounts of the rail map's pins. See pins.h.
 */
#include "pins.h"

#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define BPFFS_MAGIC  0xcafe4a11u
#define SYSTEM_BPFFS "/sys/fs/bpf"
#define OWN_PARENT   "/run/railyard"
#define LOCK_TRIES   20

static bool is_bpffs(const char *path)
{
	struct statfs fs;

	return statfs(path, &fs) == 0 && (uint32_t)fs.f_type == BPFFS_MAGIC;
}

static bool open_to_all(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && (st.st_mode & 0005) == 0005;
}

static int make_dir(const char *path)
{
	if (mkdir(path, 0755) && errno != EEXIST) {
		return -errno;
	}
	return chmod(path, 0755) ? -errno : 0; /* whatever the umask is */
}

static int mount_own(void)
{
	int ret;

	if (is_bpffs(RAILMAP_DIR_OWN)) {
		return 0;
	}
	ret = make_dir(OWN_PARENT);
	if (ret == 0) {
		ret = make_dir(RAILMAP_DIR_OWN);
	}
	if (ret == 0 &&
	    mount("bpf", RAILMAP_DIR_OWN, "bpf", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755")) {
		ret = -errno;
	}
	if (ret) {
		fprintf(stderr,
			"railyard: cannot mount a bpf file system at " RAILMAP_DIR_OWN
			": %s: mount one and name it with --bpffs\n",
			strerror(-ret));
	}
	return ret;
}

static int prepare_wanted(const char *wanted)
{
	int ret = make_dir(wanted);

	if (ret) {
		fprintf(stderr, "railyard: %s: %s\n", wanted, strerror(-ret));
		return ret;
	}
	if (!is_bpffs(wanted)) {
		fprintf(stderr,
			"railyard: %s is not on a bpf file system: mount -t bpf -o mode=0755 bpf "
			"%s\n",
			wanted, wanted);
		return -EINVAL;
	}
	return 0;
}

int pins_prepare(const char *wanted, char dir[PIN_PATH_BYTES])
{
	int ret;

	if (wanted && strlen(wanted) > PIN_PATH_BYTES / 2) {
		fprintf(stderr, "railyard: --bpffs: name too long\n");
		return -ENAMETOOLONG;
	}
	if (wanted) {
		snprintf(dir, PIN_PATH_BYTES, "%s", wanted);
		return prepare_wanted(wanted);
	}
	if (is_bpffs(SYSTEM_BPFFS) && open_to_all(SYSTEM_BPFFS)) {
		snprintf(dir, PIN_PATH_BYTES, "%s", RAILMAP_DIR_SYSTEM);
		ret = make_dir(dir);
		if (ret) {
			fprintf(stderr, "railyard: %s: %s\n", dir, strerror(-ret));
		}
		return ret;
	}
	snprintf(dir, PIN_PATH_BYTES, "%s", RAILMAP_DIR_OWN);
	return mount_own();
}

const char *pins_place(const char *wanted, unsigned int i)
{
	static const char *const usual[] = {RAILMAP_DIR_SYSTEM, RAILMAP_DIR_OWN};

	if (wanted) {
		return i == 0 ? wanted : NULL;
	}
	return i < sizeof(usual) / sizeof(usual[0]) ? usual[i] : NULL;
}

bool pins_exist(const char *dir)
{
	char path[PIN_PATH_BYTES];

	snprintf(path, sizeof(path), "%.*s/" RAILMAP_SUBDIR, PIN_PATH_BYTES / 2, dir);
	return is_bpffs(path);
}

int pins_lock(const char *dir)
{
	struct timespec pause = {.tv_nsec = 50000000};
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0) {
		return -errno;
	}
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
			return fd;
		}
		nanosleep(&pause, NULL);
	}
	close(fd);
	return -EBUSY;
}

int pins_publish(int prog_fd, struct railmap_publish *p)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts, .ctx_in = p, .ctx_size_in = sizeof(*p));
	int ret;

	p->result = -EIO;
	ret = bpf_prog_test_run_opts(prog_fd, &opts);
	return ret ? ret : p->result;
}

int pins_open_publish(const char *dir)
{
	char path[PIN_PATH_BYTES];

	snprintf(path, sizeof(path), "%.*s/" RAILMAP_SUBDIR "/publish", PIN_PATH_BYTES / 2, dir);
	return bpf_obj_get(path);
}

static void retire(const char *dir, const char *sub)
{
	struct railmap_publish p = {.op = RAILMAP_OP_RETIRE};
	char path[PIN_PATH_BYTES];
	int fd;

	snprintf(path, sizeof(path), "%.*s/%s/publish", PIN_PATH_BYTES / 2, dir, sub);
	fd = bpf_obj_get(path);
	if (fd >= 0) {
		pins_publish(fd, &p); /* if it fails, the heartbeat stops with the pins */
		close(fd);
	}
}

/* Pins are files in directories two deep at most. */
static int remove_tree(const char *path, int depth)
{
	char name[PIN_PATH_BYTES];
	struct dirent *entry;
	DIR *dir = opendir(path);
	int ret = 0;

	if (!dir) {
		return errno == ENOENT ? 0 : -errno;
	}
	while (ret == 0 && (entry = readdir(dir)) != NULL) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
			continue;
		}
		snprintf(name, sizeof(name), "%.*s/%.32s", PIN_PATH_BYTES - 40, path,
			 entry->d_name);
		if (entry->d_type == DT_DIR && depth > 0) {
			ret = remove_tree(name, depth - 1);
		} else if (unlink(name)) {
			ret = -errno;
		}
	}
	closedir(dir);
	if (ret == 0 && rmdir(path)) {
		ret = -errno;
	}
	return ret;
}

int pins_clear(const char *dir, const char *sub)
{
	char path[PIN_PATH_BYTES];

	snprintf(path, sizeof(path), "%.*s/%s", PIN_PATH_BYTES / 2, dir, sub);
	if (access(path, F_OK)) {
		return errno == ENOENT ? 0 : -errno;
	}
	if (!is_bpffs(path)) {
		return -EINVAL; /* not ours to delete */
	}
	retire(dir, sub);
	return remove_tree(path, 1);
}

void pins_forget(const char *dir)
{
	if (strcmp(dir, RAILMAP_DIR_OWN) == 0 && is_bpffs(dir)) {
		/*
		 * The folder above stays: a container that has it mounted would lose the next map.
		 */
		umount2(dir, UMOUNT_NOFOLLOW);
		rmdir(dir);
	} else if (strcmp(dir, RAILMAP_DIR_SYSTEM) == 0) {
		rmdir(dir);
	}
}
