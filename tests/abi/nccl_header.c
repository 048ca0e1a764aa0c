/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * nccl_header.c - our declarations against an installed NCCL header, at compile time.
 *
 * Built once for each ABI version that the header has: V is the version, NCCL_NET_HEADER the file.
 */
#include NCCL_NET_HEADER

#include "../../src/nccl_net.h"

#define JOIN_(a, b, c) a##b##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define THEIRS JOIN(ncclNet_v, V, _t)
#define THEIR_PROPS JOIN(ncclNetProperties_v, V, _t)
#define OURS JOIN(struct ry_net_v, V, )
#if V == 10
#define OUR_PROPS struct ry_net_props_v9
#else
#define OUR_PROPS JOIN(struct ry_net_props_v, V, )
#endif

#define SAME(member) \
	_Static_assert(offsetof(THEIRS, member) == offsetof(OURS, member), #member)
#define SAME_PROPERTY(member) \
	_Static_assert(offsetof(THEIR_PROPS, member) == offsetof(OUR_PROPS, member), #member)

_Static_assert(sizeof(THEIRS) == sizeof(OURS), "size of the table");
_Static_assert(sizeof(THEIR_PROPS) == sizeof(OUR_PROPS), "size of the properties");
SAME(name);
SAME(init);
SAME(devices);
SAME(getProperties);
SAME(listen);
SAME(connect);
SAME(accept);
SAME(regMr);
SAME(regMrDmaBuf);
SAME(deregMr);
SAME(isend);
SAME(irecv);
SAME(iflush);
SAME(test);
SAME(closeSend);
SAME(closeRecv);
SAME(closeListen);
SAME(getDeviceMr);
SAME(irecvConsumed);
SAME_PROPERTY(name);
SAME_PROPERTY(pciPath);
SAME_PROPERTY(guid);
SAME_PROPERTY(ptrSupport);
SAME_PROPERTY(regIsGlobal);
SAME_PROPERTY(speed);
SAME_PROPERTY(port);
SAME_PROPERTY(latency);
SAME_PROPERTY(maxComms);
SAME_PROPERTY(maxRecvs);
SAME_PROPERTY(netDeviceType);
SAME_PROPERTY(netDeviceVersion);
#if V >= 9
SAME(makeVDevice);
SAME_PROPERTY(forceFlush);
SAME_PROPERTY(vProps);
SAME_PROPERTY(maxP2pBytes);
SAME_PROPERTY(maxCollBytes);
#endif
#if V >= 11
SAME(finalize);
SAME(setNetAttr);
SAME_PROPERTY(maxMultiRequestSize);
#endif
#if V >= 12
SAME_PROPERTY(railId);
SAME_PROPERTY(planeId);
#endif
