/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * railmap.c - open, check and read the kernel's rail map. See railmap.h.
 *
 * A map is opened read-write, because the kernel lets only such a descriptor be
 * mmapped; that it is frozen, so that nobody can write through it, is checked by trying.
 */
#include "railmap.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define BPFFS_MAGIC 0xcafe4a11u
#define PATH_BYTES  256
#define READ_TRIES  16

static int refuse(int err, char *why, size_t why_bytes, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

static int refuse(int err, char *why, size_t why_bytes, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	if (why_bytes) {
		vsnprintf(why, why_bytes, fmt, args);
	}
	va_end(args);
	return err;
}

/* ---- is it to be believed? ---- */

int railmap_vet(const struct railmap_facts *f, char *why, size_t why_bytes)
{
	if (!f->on_bpffs) {
		return refuse(-EPERM, why, why_bytes,
			      "rail map: the pin is not on a bpf file system");
	}
	if (!f->owned_by_root) {
		return refuse(-EPERM, why, why_bytes, "rail map: the pin is not owned by root");
	}
	if (!f->frozen) {
		return refuse(-EPERM, why, why_bytes,
			      "rail map: not frozen, so other programs can write it: run "
			      "`railyard unload` and `railyard load`");
	}
	if (f->map_type != BPF_MAP_TYPE_ARRAY ||
	    f->hdr_value_bytes < sizeof(f->abi) + sizeof(f->row_bytes)) {
		return refuse(-EPROTO, why, why_bytes,
			      "rail map: the pin is some other program's map");
	}
	if (f->abi == 0) {
		return refuse(-ESTALE, why, why_bytes,
			      "rail map: being replaced, or not finished: run `railyard load`");
	}
	if (f->abi != RAILMAP_ABI) {
		return refuse(
			-EPROTO, why, why_bytes,
			"rail map: abi %u, this program reads %u: run `railyard load` of the same "
			"version",
			f->abi, RAILMAP_ABI);
	}
	if (f->hdr_value_bytes != sizeof(struct railmap_hdr) ||
	    f->rows_value_bytes != sizeof(struct railmap_row) ||
	    f->row_bytes != sizeof(struct railmap_row) || f->rows_max != RAILMAP_ROWS) {
		return refuse(-EPROTO, why, why_bytes,
			      "rail map: %u rows of %u bytes, this program reads %u of %zu: run "
			      "`railyard load` of the same version",
			      f->rows_max, f->rows_value_bytes, RAILMAP_ROWS,
			      sizeof(struct railmap_row));
	}
	if (f->heartbeat_age_ns > RAILMAP_STALE_NS) {
		return refuse(-ESTALE, why, why_bytes,
			      "rail map: no heartbeat for %llu s: run `railyard load`",
			      (unsigned long long)(f->heartbeat_age_ns / 1000000000));
	}
	return 0;
}

/* ---- opening ---- */

static int sys_bpf(enum bpf_cmd cmd, union bpf_attr *attr)
{
	int ret = (int)syscall(SYS_bpf, cmd, attr, sizeof(*attr));

	return ret < 0 ? -errno : ret;
}

static int map_get(const char *path)
{
	union bpf_attr attr;
	int fd;

	memset(&attr, 0, sizeof(attr));
	attr.pathname = (uint64_t)(uintptr_t)path;
	fd = sys_bpf(BPF_OBJ_GET, &attr); /* the kernel sets close-on-exec */
	return fd;
}

static int map_info(int fd, struct bpf_map_info *info)
{
	union bpf_attr attr;

	memset(&attr, 0, sizeof(attr));
	memset(info, 0, sizeof(*info));
	attr.info.bpf_fd = (uint32_t)fd;
	attr.info.info_len = sizeof(*info);
	attr.info.info = (uint64_t)(uintptr_t)info;
	return sys_bpf(BPF_OBJ_GET_INFO_BY_FD, &attr);
}

static bool map_is_frozen(int fd)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED) {
		return errno == EPERM;
	}
	munmap(p, bytes);
	return false;
}

static const void *map_view(int fd, size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

static int open_pin(const char *dir, const char *name, struct railmap_facts *facts, char *why,
		    size_t why_bytes)
{
	char path[PATH_BYTES];
	struct statfs fs;
	struct stat st;
	int fd;

	if (snprintf(path, sizeof(path), "%s/" RAILMAP_SUBDIR "/%s", dir, name) >=
	    (int)sizeof(path)) {
		return refuse(-ENAMETOOLONG, why, why_bytes, "rail map: %s: name too long", dir);
	}
	if (stat(path, &st) || statfs(path, &fs)) {
		int err = errno;

		return refuse(-err, why, why_bytes, "rail map: %s: %s", path,
			      err == ENOENT ? "not there: `railyard load` makes it"
					    : strerror(err));
	}
	facts->on_bpffs &= (uint32_t)fs.f_type == BPFFS_MAGIC;
	facts->owned_by_root &= st.st_uid == 0;
	if (!facts->on_bpffs) {
		return railmap_vet(facts, why, why_bytes);
	}
	fd = map_get(path);
	if (fd < 0) {
		return refuse(fd, why, why_bytes, "rail map: %s: %s%s", path, strerror(-fd),
			      fd == -EPERM ? " (bpf(2) refused: seccomp, or a kernel before 5.19)"
					   : "");
	}
	return fd;
}

struct opened {
	int hdr_fd;
	int rows_fd;
};

static int open_pins(const char *dir, struct opened *o, struct railmap_facts *facts, char *why,
		     size_t why_bytes)
{
	struct bpf_map_info info;
	int ret;

	facts->on_bpffs = true;
	facts->owned_by_root = true;
	o->hdr_fd = open_pin(dir, "rail_hdr", facts, why, why_bytes);
	if (o->hdr_fd < 0) {
		return o->hdr_fd;
	}
	o->rows_fd = open_pin(dir, "rails", facts, why, why_bytes);
	if (o->rows_fd < 0) {
		ret = o->rows_fd;
		goto err_close_hdr;
	}
	ret = map_info(o->hdr_fd, &info);
	facts->map_type = info.type;
	facts->hdr_value_bytes = info.value_size;
	if (ret == 0) {
		ret = map_info(o->rows_fd, &info);
	}
	if (ret < 0) {
		refuse(ret, why, why_bytes, "rail map: %s: bpf(2) info: %s", dir, strerror(-ret));
		goto err_close_rows;
	}
	if (info.type != BPF_MAP_TYPE_ARRAY) {
		facts->map_type = info.type;
	}
	facts->rows_value_bytes = info.value_size;
	facts->rows_max = info.max_entries;
	facts->frozen = map_is_frozen(o->hdr_fd) && map_is_frozen(o->rows_fd);
	return 0;

err_close_rows:
	close(o->rows_fd);
err_close_hdr:
	close(o->hdr_fd);
	return ret;
}

static uint64_t load(const uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static uint64_t age(uint64_t now_ns, uint64_t then_ns)
{
	return now_ns > then_ns ? now_ns - then_ns : then_ns - now_ns;
}

/* An old heartbeat is a dead map, or the clock of another time namespace: then it moves. */
static void check_heartbeat(struct railmap *m, struct railmap_facts *facts, uint64_t now_ns)
{
	struct timespec pause = {.tv_nsec = 2 * RAILMAP_HEARTBEAT_NS};
	uint64_t beat = load(&m->hdr->heartbeat_ns);

	facts->heartbeat_age_ns = age(now_ns, beat);
	if (beat && facts->heartbeat_age_ns > RAILMAP_STALE_NS) {
		nanosleep(&pause, NULL);
		now_ns += 2 * RAILMAP_HEARTBEAT_NS;
		if (load(&m->hdr->heartbeat_ns) != beat) {
			beat = load(&m->hdr->heartbeat_ns);
			m->clock_ahead_ns = now_ns - beat;
			facts->heartbeat_age_ns = 0;
		}
	}
	m->beat_ns = beat;
	m->beat_seen_ns = now_ns;
}

/* The two views are only long enough to be read if the maps have our sizes: vet comes between. */
static int view_maps(struct railmap *m, const struct opened *o, struct railmap_facts *facts,
		     uint64_t now_ns, char *why, size_t why_bytes)
{
	int ret;

	facts->abi = RAILMAP_ABI;
	facts->row_bytes = sizeof(struct railmap_row);
	ret = railmap_vet(facts, why, why_bytes);
	m->hdr = map_view(o->hdr_fd, sizeof(*m->hdr));
	if (!m->hdr) {
		return ret ? ret
			   : refuse(-errno, why, why_bytes, "rail map: mmap: %s", strerror(errno));
	}
	facts->abi = m->hdr->abi; /* within the first page, whatever the layout */
	facts->row_bytes = m->hdr->row_bytes;
	ret = railmap_vet(facts, why, why_bytes);
	if (ret) {
		return ret;
	}
	check_heartbeat(m, facts, now_ns);
	ret = railmap_vet(facts, why, why_bytes);
	if (ret) {
		return ret;
	}
	m->rows = map_view(o->rows_fd, RAILMAP_ROWS * sizeof(*m->rows));
	return m->rows ? 0 : refuse(-errno, why, why_bytes, "rail map: mmap: %s", strerror(errno));
}

static int open_dir(struct railmap *m, const char *dir, uint64_t now_ns, char *why,
		    size_t why_bytes)
{
	struct railmap_facts facts;
	struct opened o;
	int ret;

	memset(&facts, 0, sizeof(facts));
	memset(m, 0, sizeof(*m));
	ret = open_pins(dir, &o, &facts, why, why_bytes);
	if (ret < 0) {
		return ret;
	}
	ret = view_maps(m, &o, &facts, now_ns, why, why_bytes);
	close(o.rows_fd); /* a mapping outlives its descriptor */
	close(o.hdr_fd);
	if (ret) {
		railmap_close(m);
	}
	return ret;
}

int railmap_open(struct railmap *m, const char *dir, uint64_t now_ns, char *why, size_t why_bytes)
{
	int ret;

	if (dir) {
		return open_dir(m, dir, now_ns, why, why_bytes);
	}
	ret = open_dir(m, RAILMAP_DIR_SYSTEM, now_ns, why, why_bytes);
	if (ret != -ENOENT && ret != -EACCES) {
		return ret;
	}
	ret = open_dir(m, RAILMAP_DIR_OWN, now_ns, why, why_bytes);
	if (ret == -ENOENT) {
		return refuse(ret, why, why_bytes,
			      "rail map: none on this host: `railyard load` makes it");
	}
	return ret;
}

void railmap_close(struct railmap *m)
{
	if (m->hdr) {
		munmap((void *)(uintptr_t)m->hdr, sizeof(*m->hdr));
	}
	if (m->rows) {
		munmap((void *)(uintptr_t)m->rows, RAILMAP_ROWS * sizeof(*m->rows));
	}
	m->hdr = NULL;
	m->rows = NULL;
}

/* ---- reading ---- */

bool railmap_alive(struct railmap *m, uint64_t now_ns)
{
	uint64_t beat;

	if (!m->hdr) {
		return false;
	}
	beat = load(&m->hdr->heartbeat_ns);
	if (beat != m->beat_ns) {
		m->beat_ns = beat;
		m->beat_seen_ns = now_ns;
	}
	return beat && (now_ns < m->beat_seen_ns || now_ns - m->beat_seen_ns < RAILMAP_STALE_NS);
}

/* One multi-word part under a sequence count: false if its writer got in between. */
static bool copy_try(const uint32_t *seq, void *to, const void *from, size_t bytes)
{
	uint32_t before = __atomic_load_n(seq, __ATOMIC_ACQUIRE);

	if (before & 1) {
		return false;
	}
	for (size_t i = 0; i < bytes / sizeof(uint64_t); i++) {
		((uint64_t *)to)[i] = load((const uint64_t *)from + i);
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	return __atomic_load_n(seq, __ATOMIC_RELAXED) == before;
}

static int copy_part(const uint32_t *seq, void *to, const void *from, size_t bytes)
{
	for (int i = 0; i < READ_TRIES; i++) {
		if (copy_try(seq, to, from, bytes)) {
			return 0;
		}
	}
	return -EAGAIN;
}

#define ID_BYTES offsetof(struct railmap_row, link_down_ns)
#define HW_BYTES (sizeof(struct railmap_row) - offsetof(struct railmap_row, hw_seq))

int railmap_row_copy(const struct railmap *m, uint32_t index, struct railmap_row *out)
{
	const struct railmap_row *row;
	int ret;

	if (!m->hdr || index >= RAILMAP_ROWS) {
		return -ENOENT;
	}
	row = &m->rows[index];
	ret = copy_part(&row->id_seq, out, row, ID_BYTES);
	if (ret == 0) {
		ret = copy_part(&row->hw_seq, &out->hw_seq, &row->hw_seq, HW_BYTES);
	}
	if (ret) {
		return ret;
	}
	for (size_t at = ID_BYTES; at < offsetof(struct railmap_row, hw_seq); at += 8) {
		*(uint64_t *)(void *)((char *)out + at) =
			load((const uint64_t *)(const void *)((const char *)row + at));
	}
	return out->flags & RAILMAP_ROW_USED ? 0 : -ENOENT;
}

static bool same_name(const char *field, const char *name)
{
	/* A name longer than its field was cut when the row was made. */
	return strnlen(field, RAILMAP_NAME_BYTES) == strnlen(name, RAILMAP_NAME_BYTES - 1) &&
	       strncmp(field, name, RAILMAP_NAME_BYTES - 1) == 0;
}

/* Hex digits, then `end` (which is passed), no more than `max`. */
static bool hex_field(const char **at, char end, unsigned long max, unsigned long *out)
{
	char *stop;

	if (!isxdigit((unsigned char)**at)) {
		return false;
	}
	*out = strtoul(*at, &stop, 16);
	if (*stop != end || *out > max) {
		return false;
	}
	*at = stop + 1;
	return true;
}

bool railmap_parse_pci(const char *name, uint32_t *domain, uint8_t *bus, uint8_t *devfn)
{
	unsigned long field[4];

	if (!hex_field(&name, ':', UINT32_MAX, &field[0]) ||
	    !hex_field(&name, ':', 0xff, &field[1]) || !hex_field(&name, '.', 0x1f, &field[2]) ||
	    !hex_field(&name, '\0', 7, &field[3])) {
		return false;
	}
	*domain = (uint32_t)field[0];
	*bus = (uint8_t)field[1];
	*devfn = (uint8_t)(field[2] << 3 | field[3]);
	return true;
}

static bool same_pci(const struct railmap_row *row, const char *pci, uint32_t dev_port)
{
	uint32_t domain;
	uint8_t bus;
	uint8_t devfn;

	return row->flags & RAILMAP_ROW_PCI && railmap_parse_pci(pci, &domain, &bus, &devfn) &&
	       row->pci_domain == domain && row->pci_bus == bus && row->pci_devfn == devfn &&
	       row->dev_port == dev_port;
}

static bool row_is(const struct railmap_row *row, const struct railmap_who *who)
{
	return !(who->ibdev && !same_name(row->ibdev, who->ibdev)) &&
	       !(who->ib_port && row->ib_port != who->ib_port) &&
	       !(who->pci && !same_pci(row, who->pci, who->dev_port)) &&
	       !(who->ifname && !same_name(row->ifname, who->ifname)) &&
	       !(who->ifindex && row->ifindex != who->ifindex) &&
	       !(who->netns && row->netns != who->netns);
}

int railmap_find(const struct railmap *m, const struct railmap_who *who)
{
	struct railmap_row row;

	if (!who->ibdev && !who->pci && !who->ifname && !who->ifindex) {
		return -ENOENT;
	}
	for (uint32_t i = 0; i < RAILMAP_ROWS; i++) {
		if (railmap_row_copy(m, i, &row) == 0 && row_is(&row, who)) {
			return (int)i;
		}
	}
	return -ENOENT;
}

static void view_link(const struct railmap *m, const struct railmap_row *row,
		      struct railmap_view *view)
{
	uint64_t change_ns;

	if (row->link_down_ns > row->link_up_ns) {
		view->link = RAILMAP_STATE_DOWN;
		view->down_why = (enum railmap_why)row->link_down_why;
		change_ns = row->link_down_ns;
	} else {
		view->link = row->link_up_ns ? RAILMAP_STATE_UP : RAILMAP_STATE_UNKNOWN;
		view->down_why = RAILMAP_WHY_NONE;
		change_ns = row->link_up_ns;
	}
	view->link_change_ns = change_ns ? change_ns + m->clock_ahead_ns : 0;
}

static void view_soft(const struct railmap *m, const struct railmap_row *row,
		      struct railmap_view *view)
{
	if (!(row->flags & RAILMAP_ROW_SOFT) || !railmap_has_hook(m, RAILMAP_HOOK_RX_PACKET)) {
		return;
	}
	view->valid = RAILMAP_V_CE | RAILMAP_V_CNP | RAILMAP_V_NAK | RAILMAP_V_RNR;
	view->rx_ce = row->soft_rx_ce;
	view->rx_cnp = row->soft_rx_cnp;
	view->rx_nak = row->soft_rx_nak;
	view->rx_rnr = row->soft_rx_rnr;
	if (railmap_has_hook(m, RAILMAP_HOOK_TX_PACKET)) {
		view->valid |= RAILMAP_V_PKTS;
		view->rx_pkts = row->soft_rx_pkts;
		view->tx_pkts = row->soft_tx_pkts;
	}
}

/* Where the NIC counts for itself, its word stands: no packet of an offloaded port passes us. */
static void view_hw(const struct railmap_row *row, struct railmap_view *view)
{
	const uint32_t pkts = 1u << RAILMAP_HW_RX_PKTS | 1u << RAILMAP_HW_TX_PKTS;
	uint32_t valid = row->hw_sample_ns ? row->hw_valid : 0;

	if (row->flags & RAILMAP_ROW_SOFT) {
		return;
	}
	if ((valid & pkts) == pkts) {
		view->valid |= RAILMAP_V_PKTS;
		view->rx_pkts = row->hw_rx_pkts;
		view->tx_pkts = row->hw_tx_pkts;
	}
	if (valid >> RAILMAP_HW_RX_ECN & 1) {
		view->valid |= RAILMAP_V_CE;
		view->rx_ce = row->hw_rx_ecn;
	}
	if (valid >> RAILMAP_HW_RX_CNP & 1) {
		view->valid |= RAILMAP_V_CNP;
		view->rx_cnp = row->hw_rx_cnp;
	}
	if (valid >> RAILMAP_HW_RX_NAK_SEQ & 1) {
		view->valid |= RAILMAP_V_NAK;
		view->rx_nak = row->hw_rx_nak_seq;
	}
	if (valid >> RAILMAP_HW_RX_RNR & 1) {
		view->valid |= RAILMAP_V_RNR;
		view->rx_rnr = row->hw_rx_rnr;
	}
}

int railmap_read(const struct railmap *m, uint32_t index, struct railmap_view *view)
{
	struct railmap_row row;
	int ret = railmap_row_copy(m, index, &row);

	if (ret) {
		return ret;
	}
	memset(view, 0, sizeof(*view));
	view_link(m, &row, view);
	view->drained = row.drained_ns != 0;
	view->tx_timeouts = row.tx_timeouts;
	view_soft(m, &row, view);
	view_hw(&row, view);
	return 0;
}

/* ---- pressure ---- */

#define PRESSURE_FULL_Q8    (255u << 8)
#define PRESSURE_NAK_WEIGHT 4
#define PRESSURE_HALF_SHARE 100 /* 1 mark in so many packets is half of full scale */

static uint64_t view_marks(const struct railmap_view *v)
{
	return v->rx_ce + v->rx_cnp + PRESSURE_NAK_WEIGHT * v->rx_nak;
}

/* marks / (marks + pkts/100): rises from 0 with a finite slope, never passes full scale. */
static uint32_t pressure_of(uint64_t marks, uint64_t pkts)
{
	uint64_t scaled = marks * PRESSURE_HALF_SHARE;

	return scaled ? (uint32_t)(scaled * PRESSURE_FULL_Q8 / (scaled + pkts)) : 0;
}

uint8_t pressure_update(struct pressure *p, const struct railmap_view *view, uint64_t now_ns)
{
	uint64_t marks = view_marks(view);
	uint64_t pkts = view->rx_pkts + view->tx_pkts;
	uint64_t windows;
	uint32_t target;

	if (!p->since_ns || view->valid != p->valid || marks < p->marks || pkts < p->pkts) {
		*p = (struct pressure){now_ns, marks, pkts, view->valid, p->value_q8};
		return pressure_value(p);
	}
	if (now_ns < p->since_ns + PRESSURE_WINDOW_NS) {
		return pressure_value(p);
	}
	/* A caller who slept had one long window: forget as fast as if he had not. */
	windows = (now_ns - p->since_ns) / PRESSURE_WINDOW_NS;
	target = pressure_of(marks - p->marks, view->valid & RAILMAP_V_PKTS
						       ? pkts - p->pkts
						       : PRESSURE_PKTS_GUESS * windows);
	/* More than a chance mark counts at once; what it meant is forgotten by halves. */
	if (marks - p->marks > 1 && target > p->value_q8) {
		p->value_q8 = target;
	}
	for (uint64_t i = 0; i < windows && p->value_q8 != target && i < 32; i++) {
		p->value_q8 = (p->value_q8 + target) / 2;
	}
	p->since_ns = now_ns;
	p->marks = marks;
	p->pkts = pkts;
	return pressure_value(p);
}
