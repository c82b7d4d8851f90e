// SPDX-License-Identifier: Apache-2.0
//
// What is done to a running engine beside its requests (docs/decisions/065): steps stop and go on,
// its weights become others, its memory is given back and taken again. One struct from the front to
// the scheduler, to the engine and to its other ranks.
#ifndef MSGL_CORE_ADMIN_H
#define MSGL_CORE_ADMIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum {
    MSGL_MAX_WEIGHT_VERSION = 128, // bytes of its name
    MSGL_MAX_ADMIN_PATH = 4096,
    MSGL_MAX_GROUP_NAME = 128, // bytes
    MSGL_MAX_GROUP_HOST = 255,
    MSGL_ADMIN_DATA = 16 << 20, // bytes of tensors in a message at most
};

typedef enum msgl_admin_kind {
    MSGL_ADMIN_PAUSE,    // no steps until MSGL_ADMIN_CONTINUE
    MSGL_ADMIN_CONTINUE, //
    MSGL_ADMIN_DISK,     // weights of `path`
    MSGL_ADMIN_DATA_OF,  // `bytes` from `at` on of tensors that MSGL_ADMIN_TENSORS is to load
    MSGL_ADMIN_TENSORS,  // weights of the bytes that have come: a safetensors file of some tensors
    MSGL_ADMIN_VERSION,  // the same weights by another name
    MSGL_ADMIN_RELEASE,  // memory of `tags` goes back to the system
    MSGL_ADMIN_RESUME,   // and is taken again
    MSGL_ADMIN_JOIN,     // a trainer's group, which broadcasts weights
    MSGL_ADMIN_LEAVE,    //
    MSGL_ADMIN_RECEIVE,  // weights that it broadcasts, as the bytes that have come say
} msgl_admin_kind;

// What becomes of requests in the engine.
typedef enum msgl_pause_mode {
    MSGL_PAUSE_ABORT,    // they end
    MSGL_PAUSE_RETRACT,  // they go back to the queue, and are computed anew from their tokens
    MSGL_PAUSE_IN_PLACE, // they keep what the cache has of them
} msgl_pause_mode;

// Bits of tags.
enum {
    MSGL_MEMORY_WEIGHTS = 1,
    MSGL_MEMORY_CACHE = 2,
    MSGL_MEMORY_ALL = MSGL_MEMORY_WEIGHTS | MSGL_MEMORY_CACHE
};

// What the bytes of MSGL_ADMIN_RECEIVE begin with: the number of tensors in 8 bytes, then one of
// these for each, in the order in which they are broadcast; then comes a safetensors header of
// them.
typedef struct msgl_weight_part {
    uint64_t dtype; // msgl_dtype
    uint64_t count; // elements
} msgl_weight_part;

typedef struct msgl_admin {
    msgl_admin_kind kind;
    msgl_pause_mode mode; // of MSGL_ADMIN_PAUSE
    int32_t tags;         // of MSGL_ADMIN_RELEASE and _RESUME
    bool discard;         // of MSGL_ADMIN_RELEASE: the weights will not be wanted again
    bool flush;           // of MSGL_ADMIN_DISK and _TENSORS: nothing computed so far is shared
    const char *path;     // of MSGL_ADMIN_DISK; or NULL
    const char *version;  // of the weights from now on; NULL: as it was
    uint64_t at, total;   // of MSGL_ADMIN_DATA_OF; of MSGL_ADMIN_TENSORS total
    const void *bytes;    // [num_bytes]
    int32_t num_bytes;
    const char *group; // of _JOIN, _LEAVE and _RECEIVE; else NULL
    const char *host;  // of _JOIN: where the group meets; else NULL
    int32_t port;
    int32_t rank, size; // of _JOIN: of the engine's rank 0 in it; ranks in all
} msgl_admin;

// Whether the weights are others behind it.
static inline bool msgl__admin_updates(const msgl_admin *a)
{
    return a->kind == MSGL_ADMIN_DISK || a->kind == MSGL_ADMIN_TENSORS ||
           a->kind == MSGL_ADMIN_RECEIVE;
}

// What of an engine such calls have changed.
typedef struct msgl_admin_state {
    const char *version;  // of the weights; NULL: nobody has named them
    const char *unusable; // why no request can be answered, one line; NULL: they can be
    int32_t released;     // MSGL_MEMORY_ bits
    bool paused;
} msgl_admin_state;

// What an engine does of it, for the scheduler; zero: nothing.
typedef struct msgl_admin_calls {
    void *ctx;
    // MSGL_ADMIN_DISK, _TENSORS and _RECEIVE (a->bytes are all of them, a->total), _RELEASE,
    // _RESUME, _JOIN and _LEAVE, while no step is in flight. 0, or why not: then the weights are as
    // they were, unless `unusable` says otherwise.
    int (*admin)(void *ctx, const msgl_admin *a, msgl_err *err);
    // Sets what the engine knows of *out: unusable and released.
    void (*state)(void *ctx, msgl_admin_state *out);
} msgl_admin_calls;

#endif
