// SPDX-License-Identifier: Apache-2.0
//
// Groups of torch.distributed that a trainer broadcasts weights in: rank 0 is the trainer's, the
// engine's ranks are some of the others. A thread for each meets the group at its store, joins it
// through the device's plug-in, and receives: what waits for the trainer is never a step, and the
// scheduler's thread can beat meanwhile.
#ifndef MSGL_ENGINE_WEIGHT_GROUPS_H
#define MSGL_ENGINE_WEIGHT_GROUPS_H

#include <stdint.h>

#include "core/admin.h"
#include "core/err.h"
#include "kernel/plugin.h"

typedef struct msgl_weight_groups msgl_weight_groups;
struct msgl_heartbeat;

// ops: of the plug-in; ordinal of the device, and path of its libnccl.so.2, borrowed. NULL: no
// memory.
msgl_weight_groups *msgl__weight_groups_create(const msgl_group_ops *ops, int ordinal,
                                               const char *nccl);
// Leaves all groups; one that still waits for others is left to its thread. NULL allowed.
void msgl__weight_groups_destroy(msgl_weight_groups *g);
// Joins a->group at a->host and a->port as rank a->rank + rank of a->size. Returns when the group's
// store knows, which rank 0 waits for; how the rest goes receive says. MSGL_EINVAL: there is one of
// this name, or too many; MSGL_EIO: nobody answers.
int msgl__weight_groups_join(msgl_weight_groups *g, const msgl_admin *a, int rank,
                             struct msgl_heartbeat *h, msgl_err *err);
int msgl__weight_groups_leave(msgl_weight_groups *g, const char *name, msgl_err *err);
// Receives parts, one broadcast each, behind each other into `to`. MSGL_EINVAL: there is no such
// group; MSGL_EDEVICE: it has failed, and has been left.
int msgl__weight_groups_receive(msgl_weight_groups *g, const char *name,
                                const msgl_weight_part *parts, uint64_t num, void *to,
                                struct msgl_heartbeat *h, msgl_err *err);

#endif
