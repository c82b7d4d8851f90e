// SPDX-License-Identifier: Apache-2.0
//
// Which replicas are believed to have which prefixes in their caches. A prompt is cut into blocks,
// and a block is known by a key of itself and all before it, so that a replica that holds a block
// holds the whole prefix that ends with it. Each block has a list of its copies, one for each
// replica that has it. A replica holds a bounded number of blocks and loses the one that was used
// longest ago, the last ones of a prefix first, as the cache that this stands for does.
//
// Every operation costs O(1) a block, whatever the number of replicas.
#ifndef MSGL_ROUTING_PREFIX_INDEX_H
#define MSGL_ROUTING_PREFIX_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

typedef struct msgl_prefix_index msgl_prefix_index;

// Memory of an index, in bytes; none of it is touched before it is needed.
size_t msgl__prefix_index_bytes(int32_t num_replicas, int32_t blocks_per_replica);
// Both at least 1, their product below 2^30. MSGL_ENOMEM.
int msgl__prefix_index_create(int32_t num_replicas, int32_t blocks_per_replica,
                              msgl_prefix_index **out, msgl_err *err);
void msgl__prefix_index_destroy(msgl_prefix_index *x); // NULL allowed

// A prompt as the index knows it: out[i] for keys[i], as far as anybody holds them, and how many
// these are. They are valid until the next insert or forget.
int32_t msgl__prefix_index_find(const msgl_prefix_index *x, const uint64_t *keys, int32_t n,
                                int32_t *out);
// How many of found[0..n) this replica has a copy of. O(log n).
int32_t msgl__prefix_index_match(const msgl_prefix_index *x, const int32_t *found, int32_t n,
                                 int32_t replica);
int32_t msgl__prefix_index_num_copies(const msgl_prefix_index *x, int32_t found);
// Some of the replicas with a copy of a found block, at most max of them, the latest first; returns
// how many.
int32_t msgl__prefix_index_replicas(const msgl_prefix_index *x, int32_t found, int32_t *replicas,
                                    int32_t max);

// The replica has all of these now, or the first of them, as many as it may hold.
void msgl__prefix_index_insert(msgl_prefix_index *x, int32_t replica, const uint64_t *keys,
                               int32_t n);
// It has nothing any more. O(what it held).
void msgl__prefix_index_forget(msgl_prefix_index *x, int32_t replica);
// The same, and it holds at most so many from here on: 0 to blocks_per_replica.
void msgl__prefix_index_resize(msgl_prefix_index *x, int32_t replica, int32_t blocks);

#endif
