// SPDX-License-Identifier: Apache-2.0
//
// The door between the core and a kind of device: all that the core knows of one is this table. The
// CPU's is built in (device/cpu.c); any other is a shared object, minisgl-NAME.so, which
// `--device NAME` opens, with one exported function, MSGL_PLUGIN_SYMBOL, that returns the table.
// The core never links a device's libraries. docs/adding-a-device.md says how to write one.
#ifndef MSGL_KERNEL_PLUGIN_H
#define MSGL_KERNEL_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"
#include "kernel/device.h"

struct msgl_attn_set; // attention/attention.h
struct msgl_kernels;  // kernel/kernel.h
struct msgl_wformat;  // kernel/wformat.h
struct msgl_comm;     // distributed/communicator.h

#define MSGL_PLUGIN_ABI 41 // changes with any struct that crosses the boundary
#define MSGL_PLUGIN_SYMBOL "msgl_device_plugin"

// What one device of the kind is.
typedef struct msgl_device_props {
    char name[128];                 // "NVIDIA H200"
    char details[96];               // for people: "compute capability 9.0, 132 SMs"
    char driver[48];                // for people: "driver for CUDA 13.0"
    int32_t capability;             // as in msgl_device
    size_t total_bytes, free_bytes; // of its memory, before anything of it is taken
} msgl_device_props;

typedef struct msgl_device_options {
    int ordinal;           // which of the kind's devices, from 0 on
    bool deterministic;    // results of a row must not depend on what else is in its batch
    const char *cache_dir; // where measured choices of kernels are kept, or NULL
    const char *cpu_level; // --cpu-level, of devices that have the CPU's kernels
} msgl_device_options;

// How the ranks of one model find each other before their communicator is there.
typedef struct msgl_device_ranks {
    int rank, size;
    // all [size, bytes]: everybody's `own`, by rank; bytes is a multiple of 4. Every rank calls it
    // as often, in the same order. False: one of the others has ended.
    bool (*exchange)(void *ctx, const void *own, size_t bytes, void *all);
    void *ctx;
    const char *nccl; // path of libnccl.so.2; "auto": looked for; "none": not used
    bool no_peers;    // devices do not read each other's memory
} msgl_device_ranks;

#define MSGL_GROUP_ID_BYTES 128 // of ncclUniqueId

// Groups of other programs' processes, from any thread; each call blocks it.
typedef struct msgl_group_ops {
    // As rank `rank` of `size`, until all of them are there. *out is the caller's until `leave`.
    // nccl: as in msgl_device_ranks. MSGL_EUNSUPPORTED, MSGL_EDEVICE, MSGL_ENOMEM.
    int (*join)(int ordinal, const char id[MSGL_GROUP_ID_BYTES], int rank, int size,
                const char *nccl, void **out, msgl_err *err);
    // What rank 0 broadcasts next, `count` elements, into the host's memory. MSGL_EDEVICE,
    // MSGL_ENOMEM: the group is of no use any more.
    int (*receive)(void *group, msgl_dtype dtype, size_t count, void *host, msgl_err *err);
    void (*leave)(void *group);
} msgl_group_ops;

typedef struct msgl_plugin {
    uint32_t abi;      // MSGL_PLUGIN_ABI
    const char *name;  // of --device: "cuda"
    const char *build; // for people: "CUDA 13.0, sm_80 sm_90a"
    // How many devices of the kind there are; 0 with a reason where there are none, or no driver.
    int (*count)(msgl_err *reason);
    int (*props)(int ordinal, msgl_device_props *out, msgl_err *err);
    // Opens a device, which its ops destroy. props: NULL, or takes what it was before.
    int (*open)(const msgl_device_options *o, msgl_device **out, msgl_device_props *props,
                msgl_err *err);
    // Fills the table of kernels, with the formats of weights that they multiply
    // (msgl_gemm_kernels.formats); attention's family only where backends read it there.
    int (*kernels)(const msgl_device_options *o, struct msgl_kernels *k, msgl_err *err);
    const struct msgl_attn_set *backends; // of attention
    // NULL, or forms of weights beside those of its kernels' table, which --weight-dtype knows by
    // their names; NULL-terminated.
    const struct msgl_wformat *const *formats;
    // NULL: ranks combine their parts in the host's memory, as the CPU's do. Else a communicator on
    // an opened device's queue; *out is the caller's until its destroy, and *note gets a line that
    // says how the ranks are connected. MSGL_EPEER: another rank ended; MSGL_EUNSUPPORTED: nothing
    // connects them (says why); MSGL_EDEVICE, MSGL_ENOMEM.
    int (*communicator)(msgl_device *d, const msgl_device_ranks *ranks, struct msgl_comm **out,
                        char *note, size_t note_size, msgl_err *err);
    // NULL, or gives rank 0's measured choices of kernels to the others, which then measure only
    // what is missing, so that all ranks choose the same: by experts' scores all must route alike.
    // MSGL_EPEER, MSGL_ENOMEM.
    int (*share_choices)(msgl_device *d, const msgl_device_ranks *ranks, msgl_err *err);
    // NULL: its devices are in no group of NCCL.
    const msgl_group_ops *groups;
} msgl_plugin;

typedef const msgl_plugin *(*msgl_plugin_fn)(void);

#endif
