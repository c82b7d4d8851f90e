// SPDX-License-Identifier: Apache-2.0
//
// The least busy of many replicas: a tournament tree over their loads. Among equals the one that
// was chosen longest ago wins, so that idle replicas take turns.
#ifndef MSGL_ROUTING_LOAD_TREE_H
#define MSGL_ROUTING_LOAD_TREE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct msgl_load_leaf {
    int64_t load;
    uint64_t chosen; // number of the choice that took it last
    bool up;
} msgl_load_leaf;

typedef struct msgl_load_tree {
    int32_t num_leaves;
    msgl_load_leaf *leaves; // [num_leaves]
    int32_t width;          // a power of two, at least num_leaves
    int32_t *winners;       // [width] of each inner node, [1] being the root: a leaf, or -1
} msgl_load_tree;

// n >= 1 leaves, down, of load 0, leaf i chosen before i + 1. MSGL_ENOMEM.
int msgl__load_tree_init(msgl_load_tree *t, int32_t n);
void msgl__load_tree_free(msgl_load_tree *t);                  // zero-initialised allowed
void msgl__load_tree_changed(msgl_load_tree *t, int32_t leaf); // after a change; O(log n)
// The leaf with the least load of those that are up, or -1.
static inline int32_t msgl__load_tree_least(const msgl_load_tree *t)
{
    return t->winners[1];
}

#endif
