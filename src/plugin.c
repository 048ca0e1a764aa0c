/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * plugin.c - the engine: started by the first init, stopped by the last finalize.
 *
 * Order of start: configuration, verbs, devices, plugin thread, control, signals. Stop mirrors it.
 * A fork is noticed: the child has none of the threads and is told so instead of hanging.
 */
#include "plugin.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "config.h"
#include "signals.h"
#include "state.h"

static struct {
	pthread_mutex_t lock;
	int users;
	pid_t pid;
} engine = { .lock = PTHREAD_MUTEX_INITIALIZER };

struct plugin_ctx *plugin_ctx_create(int traffic_class)
{
	struct plugin_ctx *ctx = malloc(sizeof(*ctx));

	if (ctx != NULL) {
		ctx->traffic_class = traffic_class;
	}
	return ctx;
}

void plugin_ctx_destroy(struct plugin_ctx *ctx)
{
	free(ctx);
}

static const char *mode_name(void)
{
	return config.mode == MODE_OBSERVE ? "observe: equal striping, nothing moved" : "on";
}

static int engine_services_start(void)
{
	int rc = plugin_thread_start();

	if (rc != 0) {
		return rc;
	}
	rc = control_start(&connect_handler);
	if (rc != 0) {
		goto err_thread;
	}
	if (config.state) {
		state_start(RAILSTATE_DIR, control_instance(), mode_name());
	}
	if (config.flight) {
		flight_start(RAILSTATE_DIR, (uint32_t)config.flight_kib);
	}
	rc = signals_start(connect_ports_tell);
	if (rc != 0) {
		goto err_control;
	}
	return 0;
err_control:
	recover_stop();
	flight_stop();
	state_stop();
	control_stop();
err_thread:
	plugin_thread_stop();
	return rc;
}

static int engine_start(void)
{
	char why[192];

	config_load();
	if (config.mode == MODE_OFF || config.ib_disable) {
		log_info("declined: %s", config.mode == MODE_OFF ? "RAILYARD_MODE=off" :
								    "NCCL_IB_DISABLE=1");
		return -ENODEV;
	}
	if (verbs_load(why, sizeof(why)) != 0) {
		log_info("declined: %s", why);
		return -ENODEV;
	}
	int ports = device_init();

	if (ports < 0) {
		return ports;
	}
	if (ports == 0) {
		return 0; /* said there; NCCL takes another transport */
	}
	int rc = engine_services_start();

	if (rc != 0) {
		device_fini();
		return rc;
	}
	log_info("Railyard %s, mode %s; wire version %d. Not covered: GIN/RMA, SHARP CollNet",
		 RAILYARD_VERSION, mode_name(), WIRE_VERSION_MAX);
	return 0;
}

static void engine_stop(void)
{
	if (port_count() > 0) {
		connect_forget();
		signals_stop();
		recover_stop();
		control_stop();
		plugin_thread_stop();
		flight_stop();
		state_stop();
	}
	device_fini();
}

int plugin_init(log_sink_fn sink)
{
	int rc = 0;

	pthread_mutex_lock(&engine.lock);
	if (sink != NULL) {
		log_set_sink(sink);
	}
	if (engine.users > 0 && engine.pid != getpid()) {
		log_warn("initialised before fork() and used after it: initialise in the child");
		rc = -ENOTSUP;
	} else if (engine.users == 0) {
		rc = engine_start();
		engine.pid = getpid();
	}
	engine.users += rc == 0;
	pthread_mutex_unlock(&engine.lock);
	return rc;
}

void plugin_fini(void)
{
	pthread_mutex_lock(&engine.lock);
	if (engine.users > 0 && engine.pid == getpid() && --engine.users == 0) {
		engine_stop();
		log_set_sink(NULL);
	}
	pthread_mutex_unlock(&engine.lock);
}

int plugin_devices(int *count)
{
	*count = port_count();
	return 0;
}

int plugin_fuse(int count, const int *devs, int *index)
{
	return vdevice_make(count, devs, index);
}

int plugin_properties(int dev, struct ry_net_props_v12 *p)
{
	const struct vdevice *v = vdevice_at(dev);
	int ptr = RY_NET_PTR_HOST | RY_NET_PTR_CUDA | RY_NET_PTR_DMABUF;

	if (v == NULL) {
		return -EINVAL;
	}
	const struct port *first = port_at(v->port[0]);

	memset(p, 0, sizeof(*p));
	p->railId = (int16_t)v->rail_id; /* RY_NET_UNDEF is -1 there too */
	p->planeId = (int16_t)v->plane_id;
	p->vProps.ndevs = v->port_count;
	for (int i = 0; i < v->port_count; i++) {
		const struct port *port = port_at(v->port[i]);

		p->vProps.devs[i] = v->port[i];
		ptr &= port->has_peermem ? ~0 : ~RY_NET_PTR_CUDA;
		ptr &= port->has_dmabuf ? ~0 : ~RY_NET_PTR_DMABUF;
	}
	p->name = (char *)(uintptr_t)v->name;
	p->pciPath = first->pci_path;
	p->guid = first->guid;
	p->ptrSupport = ptr;
	p->regIsGlobal = 1;
	p->speed = v->mbps;
	p->port = first->nccl_port;
	p->maxComms = first->attr.max_qp;
	p->maxRecvs = CORE_GROUP_MAX;
	p->netDeviceType = RY_NET_DEVICE_HOST;
	p->netDeviceVersion = RY_NET_DEVICE_VERSION_INVALID;
	p->maxP2pBytes = RY_NET_P2P_BYTES_MAX_V8; /* sizes are int in test() */
	p->maxCollBytes = RY_NET_P2P_BYTES_MAX_V8;
	p->maxMultiRequestSize = 1;
	return 0;
}

int plugin_listen(int dev, void *handle, void **listen_comm)
{
	struct vdevice *v = vdevice_at(dev);
	struct listen_comm *l;

	if (v == NULL) {
		return -EINVAL;
	}
	int rc = connect_listen(v, handle, &l);

	if (rc == 0) {
		*listen_comm = l;
	}
	return rc;
}

int plugin_connect(int dev, void *handle, int traffic_class, void **send_comm)
{
	struct vdevice *v = vdevice_at(dev);
	struct comm *c = NULL;

	*send_comm = NULL;
	if (v == NULL) {
		return -EINVAL;
	}
	int rc = connect_connect(v, handle, traffic_class, &c);

	*send_comm = c;
	return rc;
}

int plugin_accept(void *listen_comm, void **recv_comm)
{
	struct comm *c = NULL;
	int rc = connect_accept(listen_comm, &c);

	*recv_comm = c;
	return rc;
}

int plugin_register(void *comm, void *data, size_t bytes, int type, uint64_t offset, int fd,
		    void **mhandle)
{
	struct comm *c = comm;
	struct mr *mr;
	int rc = mr_register(c->dev, data, bytes, type, offset, fd, &mr);

	if (rc != 0) {
		return rc;
	}
	if (c->kind == COMM_RECV) {
		/* A peer that cannot be told now is told by the first irecv. */
		(void)keys_tell(c->peer, c->keys, mr);
	}
	*mhandle = mr;
	return 0;
}

int plugin_deregister(void *comm, void *mhandle)
{
	if (mhandle != NULL) {
		request_abandon(comm, mhandle);
		keys_forget(mhandle);
		mr_deregister(mhandle);
	}
	return 0;
}

int plugin_close(void *comm)
{
	if (comm != NULL) {
		comm_destroy(comm);
	}
	return 0;
}

int plugin_close_listen(void *listen_comm)
{
	if (listen_comm != NULL) {
		connect_listen_close(listen_comm);
	}
	return 0;
}

enum ry_net_result plugin_result(int rc)
{
	switch (rc) {
	case 0:
		return RY_NET_SUCCESS;
	case -EINVAL:
		return RY_NET_INVALID_ARGUMENT;
	case -EREMOTEIO:
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -ENOTCONN:
	case -ETIMEDOUT:
	case -EPROTO:
	case -EPROTONOSUPPORT:
		return RY_NET_REMOTE_ERROR;
	case -ENOTSUP:
		return RY_NET_INVALID_USAGE;
	default:
		return RY_NET_SYSTEM_ERROR;
	}
}
