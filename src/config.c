/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * config.c - the table of environment variables and the one parser, printer and complainer over it.
 *
 * Invariant: after config_load() every field of `config` holds a value inside its row's range.
 * Sentinels of NCCL (-1 not set, -2 automatic) are ordinary values below a row's useful range.
 * To add a variable: a field in struct config and a row here, sorted within its group.
 * Must not act on a value: that is the reader's job.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "log.h"
#include "util.h"

extern char **environ;

struct config config;

enum type {
	TYPE_INT,
	TYPE_BOOL,
	TYPE_STRING,
	TYPE_ENUM,
	TYPE_SIZE,
	TYPE_NONE
};

static const char *const type_names[] = {"int", "bool", "string", "enum", "size", "-"};

struct choice {
	const char *name;
	int64_t value;
};

struct variable {
	const char *name;
	enum type type;
	int64_t def, min, max; /* in `unit` */
	const char *unit;
	const char *text;
	size_t offset, bytes;	      /* of the field in struct config */
	int64_t scale;		      /* field = value * scale; 0 = 1 */
	const struct choice *choices; /* of an enum, up to a NULL name */
};

static const struct choice borrows[] = {
	{"failure", BORROW_FAILURE}, {"off", BORROW_OFF}, {NULL, 0}};
static const struct choice modes[] = {
	{"on", MODE_ON}, {"observe", MODE_OBSERVE}, {"off", MODE_OFF}, {NULL, 0}};
static const struct choice families[] = {{"AF_INET", AF_INET}, {"AF_INET6", AF_INET6}, {NULL, 0}};

/* Arguments here are initialisers. NOLINTBEGIN(bugprone-macro-parentheses) */
#define FIELD(field) .offset = offsetof(struct config, field), .bytes = sizeof(config.field)
#define INT(name_, field, def_, min_, max_, unit_, text_)                                          \
	{                                                                                          \
		.name = name_, .type = TYPE_INT, .def = def_, .min = min_, .max = max_,            \
		.unit = unit_, .text = text_, FIELD(field)                                         \
	}
#define SCALED(name_, field, scale_, def_, min_, max_, unit_, text_)                               \
	{                                                                                          \
		.name = name_, .type = TYPE_INT, .def = def_, .min = min_, .max = max_,            \
		.unit = unit_, .text = text_, .scale = scale_, FIELD(field)                        \
	}
#define BOOL(name_, field, def_, text_)                                                            \
	{                                                                                          \
		.name = name_, .type = TYPE_BOOL, .def = def_, .max = 1, .unit = "0|1",            \
		.text = text_, FIELD(field)                                                        \
	}
#define STRING(name_, field, unit_, text_)                                                         \
	{                                                                                          \
		.name = name_, .type = TYPE_STRING, .unit = unit_, .text = text_, FIELD(field)     \
	}
#define ENUM(name_, field, choices_, def_, text_)                                                  \
	{                                                                                          \
		.name = name_, .type = TYPE_ENUM, .def = def_, .unit = "name", .text = text_,      \
		.choices = choices_, FIELD(field)                                                  \
	}
#define SIZE(name_, field, def_, min_, max_, text_)                                                \
	{                                                                                          \
		.name = name_, .type = TYPE_SIZE, .def = def_, .min = min_, .max = max_,           \
		.unit = "bytes", .text = text_, FIELD(field)                                       \
	}
/* Known to NCCL's transport, meaningless here: accepted, and named in one line when set. */
#define NO_EFFECT(name_, unit_, text_)                                                             \
	{                                                                                          \
		.name = name_, .type = TYPE_NONE, .unit = unit_, .text = "no effect: " text_       \
	}

/* NOLINTEND(bugprone-macro-parentheses) */

static const struct variable variables[] = {
	INT("NCCL_IB_ADAPTIVE_ROUTING", ib_adaptive_routing, -2, -2, 1, "0|1",
	    "let the fabric reorder bulk data; -2: 1 on IB, 0 on RoCE"),
	ENUM("NCCL_IB_ADDR_FAMILY", ib_addr_family, families, AF_INET,
	     "address family of the RoCE GID to use"),
	STRING("NCCL_IB_ADDR_RANGE", ib_addr_range, "CIDR",
	       "use only RoCE GIDs whose address is inside, e.g. 10.1.0.0/16"),
	SIZE("NCCL_IB_AR_THRESHOLD", ib_ar_threshold, 8192, 0, INT_MAX,
	     "with adaptive routing, bigger pieces are a write and a 0-byte write with immediate"),
	BOOL("NCCL_IB_DEVICE_PCI_ORDER", ib_device_pci_order, 1, "order ports by PCI address"),
	BOOL("NCCL_IB_DISABLE", ib_disable, 0, "use no RDMA port"),
	INT("NCCL_IB_FIFO_TC", ib_fifo_tc, -1, -1, 255, "class",
	    "traffic class of clear-to-send records; -1: as the data"),
	INT("NCCL_IB_GID_INDEX", ib_gid_index, -1, -1, 255, "index",
	    "RoCE GID to use, unchecked; -1: found by family, range and version"),
	STRING("NCCL_IB_HCA", ib_hca, "list",
	       "ports to use: [^][=]name[:port[:rail[:plane]]],... (^ all but these, = exact "
	       "names)"),
	BOOL("NCCL_IB_MERGE_NICS", ib_merge_nics, 1, "let NCCL fuse ports into one device"),
	BOOL("NCCL_IB_MERGE_VFS", ib_merge_vfs, 1, "report virtual functions as one card"),
	BOOL("NCCL_IB_MQP_RETRY_ALL", ib_mqp_retry_all, 0,
	     "retry a failed queue pair change whatever the error, not only on a time-out"),
	INT("NCCL_IB_MQP_RETRY_CNT", ib_mqp_retry_cnt, 34, 0, INT_MAX, "tries",
	    "retries of a failed queue pair change"),
	INT("NCCL_IB_MQP_RETRY_SLEEP_MSEC", ib_mqp_retry_sleep_msec, 100, 0, INT_MAX, "ms",
	    "wait before the n-th retry of a queue pair change, times n"),
	INT("NCCL_IB_PCI_RELAXED_ORDERING", ib_pci_relaxed_ordering, 2, 0, 2, "mode",
	    "relaxed PCI ordering of memory regions: 0 off, 1 on, 2 if the library can"),
	INT("NCCL_IB_PKEY", ib_pkey, 0, 0, 65535, "index", "partition key, by index"),
	INT("NCCL_IB_QPS_PER_CONNECTION", ib_qps_per_connection, 1, 1, 128, "lanes",
	    "queue pairs per connection and port"),
	BOOL("NCCL_IB_QUERY_PORT_SPEED", ib_query_port_speed, 1,
	     "ask the library for a port's speed; 0: lane speed times width"),
	INT("NCCL_IB_RETRY_CNT", ib_retry_cnt, 7, 0, 7, "tries",
	    "transport retries of a queue pair"),
	INT("NCCL_IB_ROCE_VERSION_NUM", ib_roce_version_num, 2, 1, 2, "version",
	    "RoCE version of the GID to use"),
	INT("NCCL_IB_ROUTABLE_FLID_GID_INDEX", ib_routable_flid_gid_index, 1, 0, 255, "index",
	    "IB: GID to use if it carries a routable FLID, else 0"),
	INT("NCCL_IB_SL", ib_sl, -1, -1, 15, "level", "service level; -1: NCCL's traffic class"),
	BOOL("NCCL_IB_SPLIT_DATA_ON_QPS", ib_split_data_on_qps, 0,
	     "split each message over all lanes of a port, not over one in turn"),
	INT("NCCL_IB_TC", ib_tc, -1, -1, 255, "class", "traffic class; -1: NCCL's, else 0"),
	INT("NCCL_IB_TIMEOUT", ib_timeout, 20, 0, 31, "exponent",
	    "acknowledgement time-out of a queue pair, 4.096 us * 2^n"),
	BOOL("NCCL_IB_USE_INLINE", ib_use_inline, 0, "send clear-to-send records inline"),
	STRING("NCCL_IBVERBS_LIB", ibverbs_lib, "path", "libibverbs to open; empty: the system's"),
	BOOL("NCCL_GDR_FLUSH_DISABLE", gdr_flush_disable, 0, "never flush received GPU data"),
	STRING("NCCL_SOCKET_FAMILY", socket_family, "name",
	       "address family of control connections: AF_INET or AF_INET6; empty: any"),
	STRING("NCCL_SOCKET_IFNAME", socket_ifname, "list",
	       "interfaces of control connections: [^][=]name,..."),

	ENUM("RAILYARD_BORROW", borrow, borrows, BORROW_FAILURE,
	     "failure: with no home port left, use another port of the host; off: never"),
	STRING("RAILYARD_BPFFS", bpffs, "path",
	       "where the rail map is pinned; empty: the usual places"),
	SCALED("RAILYARD_CONNECT_TIMEOUT", connect_timeout_ms, 1000, 60, 1, 86400, "s",
	       "a connection that takes longer to set up fails"),
	BOOL("RAILYARD_FLIGHT", flight, 0,
	     "record each connection in /dev/shm, for `railyard replay`"),
	INT("RAILYARD_FLIGHT_KIB", flight_kib, 1024, 256, 65536, "KiB",
	    "size of each of the two halves of such a record"),
	ENUM("RAILYARD_MODE", mode, modes, MODE_ON,
	     "on; observe: equal striping, all measured; off: NCCL takes its own transport"),
	SCALED("RAILYARD_OUTAGE_TIMEOUT", outage_timeout_ms, 1000, 120, 1, 86400, "s",
	       "with every path to a peer down, wait this long before the communicator fails"),
	INT("RAILYARD_PRESSURE_MAX_PCT", pressure_max_pct, 25, 0, 90, "%",
	    "at most this much of a port's rate is taken off for congestion"),
	INT("RAILYARD_RETEST_MS", retest_ms, 1000, 10, 600000, "ms",
	    "a path that failed is tried again at least this often, with pauses up to twice as "
	    "long"),
	INT("RAILYARD_SIGNAL_POLL_MS", signal_poll_ms, 10, 1, 60000, "ms",
	    "how often the rail map and counters are read"),
	SIZE("RAILYARD_SMALL_BYTES", small_bytes, 16384, 0, 1 << 30,
	     "a message up to this much per port is one piece"),
	INT("RAILYARD_STALL_MS", stall_ms, 100, 10, 600000, "ms",
	    "a lane without progress for this long, while others have some, is given up"),
	BOOL("RAILYARD_STATE", state, 1, "show the connections to `railyard dump`, in /dev/shm"),
	INT("RAILYARD_WINDOW_US", window_us, 10000, 10, 10000000, "us",
	    "a lane holds about this much time of work"),

	NO_EFFECT("NCCL_GIN_IB_TC", "class", "belongs to NCCL's device API"),
	NO_EFFECT("NCCL_IB_DATA_DIRECT", "mode", "ports are used through the ordinary PCI path"),
	NO_EFFECT("NCCL_IB_ECE_ENABLE", "0|1", "enhanced connection options are not negotiated"),
	NO_EFFECT("NCCL_IB_EVENT_BASED_LB", "0|1", "shares follow what lanes deliver"),
	NO_EFFECT("NCCL_IB_EVENT_BASED_LB_REMOTE", "0|1", "shares follow what lanes deliver"),
	NO_EFFECT("NCCL_IB_OOO_RQ", "0|1", "pieces may arrive in any order over lanes anyway"),
	NO_EFFECT("NCCL_IB_PKEY_VALUE", "key", "give the index with NCCL_IB_PKEY"),
	NO_EFFECT("NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS", "0|1", "receives are always posted"),
	NO_EFFECT("NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME", "mode", "pieces name themselves"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_FAILOVER", "0|1", "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS", "tries",
		  "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY", "ms", "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY", "0|1", "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT", "ms", "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL", "ms",
		  "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE", "count",
		  "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE", "count",
		  "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT", "ms",
		  "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX", "tries",
		  "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY", "ms", "of NCCL's own transport"),
	NO_EFFECT("NCCL_IB_RETURN_ASYNC_EVENTS", "0|1",
		  "a port's event stops new pieces on it, queue pairs tell the rest"),
	NO_EFFECT("NCCL_IB_SUBNET_AWARE_ROUTING", "0|1", "NCCL's choice of device is kept"),
	NO_EFFECT("NCCL_IB_SUBNET_PREFIX_LEN", "bits", "NCCL's choice of device is kept"),
	NO_EFFECT("NCCL_IB_WARN_RAIL_LOCAL", "0|1", "ports are paired by subnet"),
	NO_EFFECT("NCCL_IB_WQE_LATENCY_REPORT", "0|1", "not measured this way"),
	NO_EFFECT("NCCL_IB_WQE_LATENCY_THRESHOLD_NS", "ns", "not measured this way"),
};

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

/* ---- printing of values and ranges ---- */

enum {
	VALUE_BYTES = 64,
	RANGE_BYTES = 64
};

static const char *choice_name(const struct variable *v, int64_t value)
{
	for (const struct choice *c = v->choices; c->name; c++) {
		if (c->value == value)
			return c->name;
	}
	return "?";
}

static void range_text(const struct variable *v, char out[RANGE_BYTES])
{
	size_t used = 0;

	switch (v->type) {
	case TYPE_ENUM:
		out[0] = '\0';
		for (const struct choice *c = v->choices; c->name; c++)
			used += (size_t)snprintf(out + used, RANGE_BYTES - used, "%s%s",
						 used ? "|" : "", c->name);
		break;
	case TYPE_STRING:
	case TYPE_NONE:
		snprintf(out, RANGE_BYTES, "-");
		break;
	case TYPE_INT:
	case TYPE_BOOL:
	case TYPE_SIZE:
	default:
		snprintf(out, RANGE_BYTES, "%lld..%lld", (long long)v->min, (long long)v->max);
		break;
	}
}

static void value_text(const struct variable *v, int64_t value, char out[VALUE_BYTES])
{
	if (v->type == TYPE_ENUM)
		snprintf(out, VALUE_BYTES, "%s", choice_name(v, value));
	else if (v->type == TYPE_STRING || v->type == TYPE_NONE)
		snprintf(out, VALUE_BYTES, "-");
	else
		snprintf(out, VALUE_BYTES, "%lld", (long long)value);
}

/* ---- fields ---- */

static void *field_of(const struct variable *v)
{
	return (char *)&config + v->offset;
}

static int64_t scale_of(const struct variable *v)
{
	return v->scale ? v->scale : 1;
}

static void number_store(const struct variable *v, int64_t value)
{
	int64_t scaled = value * scale_of(v);

	if (v->bytes == sizeof(int64_t)) {
		memcpy(field_of(v), &scaled, sizeof(scaled));
	} else {
		int32_t small = (int32_t)scaled;

		memcpy(field_of(v), &small, sizeof(small));
	}
}

static int64_t number_fetch(const struct variable *v)
{
	int64_t wide;
	int32_t small;

	if (v->bytes == sizeof(wide)) {
		memcpy(&wide, field_of(v), sizeof(wide));
		return wide / scale_of(v);
	}
	memcpy(&small, field_of(v), sizeof(small));
	return small;
}

static const char **string_of(const struct variable *v)
{
	return (const char **)field_of(v);
}

static void string_store(const struct variable *v, const char *value)
{
	static const char empty[] = "";
	const char **field = string_of(v);
	const char *copy = value ? strdup(value) : NULL;

	if (*field && **field)
		free((void *)(uintptr_t)*field);
	*field = copy ? copy : empty;
}

/* ---- parsing ---- */

/* Bytes may carry K, M, G (powers of 1024) and a B or iB after it. Returns 0 if it is no suffix. */
static int64_t suffix_scale(const char *s)
{
	static const char units[] = "kmg";
	const char *unit = *s ? strchr(units, tolower((unsigned char)*s)) : NULL;
	const char *rest = unit ? s + 1 : s;

	if (unit && tolower((unsigned char)*rest) == 'i')
		rest++;
	if (tolower((unsigned char)*rest) == 'b')
		rest++;
	if (*rest)
		return 0;
	return unit ? 1ll << (10 * (unit - units + 1)) : 1;
}

/* Decimal, 0x... and, as NCCL reads them, octal numbers. */
static int number_parse(const struct variable *v, const char *text, int64_t *out)
{
	char *end;
	long long number;
	int64_t scale = 1;

	errno = 0;
	number = strtoll(text, &end, 0);
	if (errno || end == text)
		return -EINVAL;
	if (v->type == TYPE_SIZE)
		scale = suffix_scale(end);
	else if (*end)
		return -EINVAL;
	if (scale == 0 || number > INT64_MAX / scale || number < INT64_MIN / scale)
		return -EINVAL;
	number *= scale;
	if (v->type == TYPE_BOOL) /* NCCL takes any number but 0 as yes */
		number = number != 0;
	if (number < v->min || number > v->max)
		return -ERANGE;
	*out = number;
	return 0;
}

static int choice_parse(const struct variable *v, const char *text, int64_t *out)
{
	for (const struct choice *c = v->choices; c->name; c++) {
		if (strcasecmp(c->name, text) == 0) {
			*out = c->value;
			return 0;
		}
	}
	return -EINVAL;
}

static void number_load(const struct variable *v, const char *text)
{
	char range[RANGE_BYTES], def[VALUE_BYTES];
	int64_t value = v->def;
	int rc = 0;

	if (text)
		rc = v->type == TYPE_ENUM ? choice_parse(v, text, &value)
					  : number_parse(v, text, &value);
	if (rc) {
		range_text(v, range);
		value_text(v, v->def, def);
		log_warn("%s=%s is not in the allowed range %s (%s); using the default, %s",
			 v->name, text, range, v->unit, def);
	}
	number_store(v, value);
}

/* NULL if unset or empty: to NCCL both are the same. */
static const char *env_of(const struct variable *v)
{
	const char *text = getenv(v->name); /* NOLINT(concurrency-mt-unsafe) */

	return text && *text ? text : NULL;
}

static void no_effect_say(void)
{
	char names[1024] = "";
	size_t used = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(variables); i++) {
		const struct variable *v = &variables[i];

		if (v->type != TYPE_NONE || !env_of(v) || used >= sizeof(names))
			continue;
		used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%s",
					 used ? ", " : "", v->name);
	}
	if (used)
		log_info("set, but without effect here: %s", names);
}

static bool is_known(const char *entry, size_t len)
{
	for (unsigned i = 0; i < ARRAY_SIZE(variables); i++) {
		if (strlen(variables[i].name) == len && !strncmp(variables[i].name, entry, len))
			return true;
	}
	return false;
}

/* A misspelt name would otherwise be a setting silently lost. */
static void unknown_say(void)
{
	static const char prefix[] = "RAILYARD_";

	for (char **entry = environ; entry && *entry; entry++) {
		size_t len = strcspn(*entry, "=");

		if (strncmp(*entry, prefix, sizeof(prefix) - 1) != 0 || is_known(*entry, len))
			continue;
		log_warn("%.*s is set, but there is no such variable: `railyard env` lists them",
			 (int)len, *entry);
	}
}

static void load_locked(void)
{
	for (unsigned i = 0; i < ARRAY_SIZE(variables); i++) {
		const struct variable *v = &variables[i];

		if (v->type == TYPE_STRING)
			string_store(v, env_of(v));
		else if (v->type != TYPE_NONE)
			number_load(v, env_of(v));
	}
	no_effect_say();
	unknown_say();
	loaded = true;
}

void config_load(void)
{
	pthread_mutex_lock(&load_lock);
	if (!loaded)
		load_locked();
	pthread_mutex_unlock(&load_lock);
}

void config_reload(void)
{
	pthread_mutex_lock(&load_lock);
	load_locked();
	pthread_mutex_unlock(&load_lock);
}

/* ---- the table itself ---- */

static void row_print(FILE *out, const struct variable *v, int name_width)
{
	char range[RANGE_BYTES], def[VALUE_BYTES], now[VALUE_BYTES] = "";

	range_text(v, range);
	value_text(v, v->def, def);
	fprintf(out, "%-*s  %-6s  %-7s  %-16s  %-8s  %s", name_width, v->name, type_names[v->type],
		def, range, v->unit, v->text);
	if (v->type == TYPE_STRING && **string_of(v)) {
		fprintf(out, " [now %s]", *string_of(v));
	} else if (v->type != TYPE_STRING && v->type != TYPE_NONE && number_fetch(v) != v->def) {
		value_text(v, number_fetch(v), now);
		fprintf(out, " [now %s]", now);
	}
	fputc('\n', out);
}

void config_print(FILE *out)
{
	int width = 0;

	config_load();
	for (unsigned i = 0; i < ARRAY_SIZE(variables); i++) {
		int len = (int)strlen(variables[i].name);

		width = len > width ? len : width;
	}
	fprintf(out, "%-*s  %-6s  %-7s  %-16s  %-8s  %s\n", width, "NAME", "TYPE", "DEFAULT",
		"RANGE", "UNIT", "TEXT [value in force where it is not the default]");
	for (unsigned i = 0; i < ARRAY_SIZE(variables); i++)
		row_print(out, &variables[i], width);
}

unsigned config_count(void)
{
	return ARRAY_SIZE(variables);
}

const char *config_name(unsigned i)
{
	return i < ARRAY_SIZE(variables) ? variables[i].name : NULL;
}

const char *config_unit(unsigned i)
{
	return i < ARRAY_SIZE(variables) ? variables[i].unit : NULL;
}

const char *config_text(unsigned i)
{
	return i < ARRAY_SIZE(variables) ? variables[i].text : NULL;
}
