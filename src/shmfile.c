/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * shmfile.c - making such files, and telling whether their process is gone.
 */
#include "shmfile.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRIES = 3 };

/* A lock of the process, not of the descriptor: a forked child must not keep it. */
static int lock(int fd)
{
	struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	return fcntl(fd, F_SETLK, &whole) == 0 ? 0 : -EBUSY;
}

/* Returns a descriptor with the lock of a file that a dead process of ours left, or -errno. */
static int left_open(const char *path)
{
	int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), rc = 0;
	struct stat st;

	if (fd < 0) {
		return -errno;
	}
	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
		rc = -EPERM;
	}
	rc = rc != 0 ? rc : lock(fd);
	if (rc != 0) {
		close(fd);
	}
	return rc != 0 ? rc : fd;
}

bool shmfile_is_left(const char *path)
{
	int fd = left_open(path);

	if (fd >= 0) {
		close(fd);
	}
	return fd >= 0;
}

static int stale_remove(const char *path)
{
	int fd = left_open(path), rc = 0;

	if (fd < 0) {
		return fd == -ENOENT ? 0 : fd;
	}
	if (unlink(path) != 0) {
		rc = -errno;
	}
	close(fd);
	return rc;
}

static int file_make(const char *path)
{
	for (int i = 0; i < TRIES; i++) {
		int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
		int rc = -errno;

		if (fd >= 0 || rc != -EEXIST) {
			return fd >= 0 ? fd : rc;
		}
		rc = stale_remove(path);
		if (rc != 0) {
			return rc;
		}
	}
	return -EEXIST;
}

int shmfile_make(const char *path, size_t bytes, void **at)
{
	int fd = file_make(path), rc;
	void *map = MAP_FAILED;

	if (fd < 0) {
		return fd;
	}
	rc = lock(fd);
	rc = rc != 0 ? rc : -posix_fallocate(fd, 0, (off_t)bytes);
	if (rc == 0) {
		map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		rc = map == MAP_FAILED ? -errno : 0;
	}
	if (rc != 0) {
		(void)unlink(path);
		close(fd);
		return rc;
	}
	*at = map;
	return fd;
}

const char *shmfile_why(int rc)
{
	return rc == -EBUSY ? "another process (of another container?) uses it" : strerror(-rc);
}
