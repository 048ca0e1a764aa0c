/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * dump_page.c - see dump_page.h. The file may be any other program's, half a page, or made by
 * somebody who means harm to root: nothing in it is used before it was checked.
 */
#define _GNU_SOURCE
#include "dump_page.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void text_clean(char *text, size_t bytes)
{
	text[bytes - 1] = '\0';
	for (; *text; text++) {
		*text = *text < ' ' || *text > '~' ? '?' : *text;
	}
}

/* NULL, or what is wrong. */
static const char *head_check(const struct railstate_head *h, size_t bytes)
{
	if (bytes < offsetof(struct railstate_head, bytes) || h->magic != RAILSTATE_MAGIC) {
		return "no state page of Railyard";
	}
	if (h->version != RAILSTATE_VERSION) {
		return "a state page of another version than this `railyard` reads";
	}
	if (bytes < sizeof(struct railstate)) {
		return "a state page that is cut short";
	}
	if (bytes != sizeof(struct railstate) || h->bytes != bytes ||
	    h->head_bytes != sizeof(struct railstate_head) ||
	    h->port_bytes != sizeof(struct railstate_port) || h->ports_max != RAILSTATE_PORTS ||
	    h->comm_bytes != sizeof(struct railstate_comm) || h->comms_max != RAILSTATE_COMMS ||
	    h->lane_bytes != sizeof(struct railstate_lane) || h->lanes_max != RAILSTATE_LANES) {
		return "a damaged state page: its sizes are not right";
	}
	return NULL;
}

static bool comm_check(struct railstate_comm *c)
{
	text_clean(c->peer, sizeof(c->peer));
	for (int i = 0; i < 8; i++) {
		text_clean(c->peer_port[i], sizeof(c->peer_port[i]));
	}
	return (c->kind == RAILSTATE_SEND || c->kind == RAILSTATE_RECV) && c->peer_ports <= 8 &&
	       c->oldest <= c->next;
}

static bool lane_check(struct railstate_lane *lane)
{
	text_clean(lane->cause, sizeof(lane->cause));
	return lane->state < RAILSTATE_LANE_STATES && lane->port < RAILSTATE_PORTS &&
	       lane->peer_port < 8;
}

static void records_take(struct page *p, const struct railstate *from)
{
	struct railstate *s = &p->s;

	for (uint32_t i = 0; i < RAILSTATE_PORTS; i++) { /* kept in place: lanes name them so */
		struct railstate_port *port = &s->port[i];

		if (!railstate_copy(port, &from->port[i], sizeof(*port))) {
			p->damaged++;
			snprintf(port->name, sizeof(port->name), "?");
		}
		text_clean(port->name, sizeof(port->name));
		p->port_count = port->name[0] != '\0' ? i + 1 : p->port_count;
	}
	for (uint32_t i = 0; i < RAILSTATE_COMMS; i++) {
		struct railstate_comm *c = &s->comm[p->comm_count];
		bool whole = railstate_copy(c, &from->comm[i], sizeof(*c));

		p->comm_count += whole && c->id != 0 && comm_check(c);
		p->damaged += !whole || (c->id != 0 && !comm_check(c));
	}
	for (uint32_t i = 0; i < RAILSTATE_LANES; i++) {
		struct railstate_lane *lane = &s->lane[p->lane_count];
		bool whole = railstate_copy(lane, &from->lane[i], sizeof(*lane));

		p->lane_count += whole && lane->comm != 0 && lane_check(lane);
		p->damaged += !whole || (lane->comm != 0 && !lane_check(lane));
	}
}

/* ---- order ---- */

static int compare(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static uint64_t waits_since(const struct railstate_comm *c)
{
	uint64_t open = c->open_ns ? c->open_ns : UINT64_MAX;

	return c->wanted_ns && c->wanted_ns < open ? c->wanted_ns : open;
}

static int comm_order(const void *a, const void *b)
{
	const struct railstate_comm *x = a, *y = b;
	int failed = (y->error != 0) - (x->error != 0);
	int since = compare(waits_since(x), waits_since(y));

	return failed ? failed : since ? since : compare(x->id, y->id);
}

static int lane_order(const void *a, const void *b)
{
	const struct railstate_lane *x = a, *y = b;
	int used = (x->state == RAILSTATE_ACTIVE) - (y->state == RAILSTATE_ACTIVE);
	int comm = compare(x->comm, y->comm);

	return used ? used : comm ? comm : compare(x->number, y->number);
}

/* ---- the file ---- */

static void page_take(struct page *p, const struct railstate *from)
{
	struct railstate_head *h = &p->s.head;

	*h = from->head;
	text_clean(h->plugin, sizeof(h->plugin));
	text_clean(h->mode, sizeof(h->mode));
	text_clean(h->host, sizeof(h->host));
	records_take(p, from);
	qsort(p->s.comm, p->comm_count, sizeof(p->s.comm[0]), comm_order);
	qsort(p->s.lane, p->lane_count, sizeof(p->s.lane[0]), lane_order);
}

static bool is_locked(int fd)
{
	struct flock whole = {.l_type = F_RDLCK, .l_whence = SEEK_SET};

	return fcntl(fd, F_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
}

static int file_read(int fd, struct page *p, const char **why)
{
	struct railstate_head head;
	struct stat st;
	ssize_t bytes;
	void *at;

	if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		*why = "no state page: not a file";
		return -EINVAL;
	}
	bytes = pread(fd, &head, sizeof(head), 0);
	*why = head_check(&head, bytes == sizeof(head) ? (size_t)st.st_size : 0);
	if (*why) {
		return -EINVAL;
	}
	at = mmap(NULL, sizeof(struct railstate), PROT_READ, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		*why = strerror(errno);
		return -errno;
	}
	p->alive = is_locked(fd);
	page_take(p, at);
	munmap(at, sizeof(struct railstate));
	return 0;
}

int page_read(const char *path, struct page **out, char *why, size_t why_bytes)
{
	struct page *p = calloc(1, sizeof(*p));
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	const char *text = strerror(fd < 0 ? errno : ENOMEM);
	int rc = fd < 0 ? -errno : -ENOMEM;

	if (fd >= 0 && p) {
		rc = file_read(fd, p, &text);
	}
	if (rc == 0) {
		*out = p;
	} else {
		snprintf(why, why_bytes, "%s: %s", path, text);
		free(p);
	}
	if (fd >= 0) {
		close(fd);
	}
	return rc;
}

const struct railstate_comm *page_comm(const struct page *p, const struct railstate_lane *lane)
{
	for (uint32_t i = 0; i < p->comm_count; i++) {
		if (p->s.comm[i].id == lane->comm) {
			return &p->s.comm[i];
		}
	}
	return NULL;
}

static int is_page(const struct dirent *entry)
{
	return strncmp(entry->d_name, RAILSTATE_PREFIX, strlen(RAILSTATE_PREFIX)) == 0;
}

int page_each(void (*fn)(const char *path, void *arg), void *arg)
{
	struct dirent **entries;
	int count = scandir(RAILSTATE_DIR, &entries, is_page, versionsort);

	for (int i = 0; i < count; i++) {
		char path[sizeof(RAILSTATE_DIR) + sizeof(entries[i]->d_name) + 1];

		snprintf(path, sizeof(path), RAILSTATE_DIR "/%s", entries[i]->d_name);
		fn(path, arg);
		free(entries[i]);
	}
	if (count >= 0) {
		free(entries);
	}
	return count > 0 ? count : 0;
}
