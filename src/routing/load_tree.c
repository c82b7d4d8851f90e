// SPDX-License-Identifier: Apache-2.0
#include "routing/load_tree.h"

#include "core/err.h"
#include "core/mem.h"

static int32_t less(const msgl_load_tree *t, int32_t a, int32_t b)
{
    if (a < 0 || b < 0) return a < 0 ? b : a;
    const msgl_load_leaf *x = &t->leaves[a], *y = &t->leaves[b];
    if (x->load != y->load) return x->load < y->load ? a : b;
    return x->chosen <= y->chosen ? a : b;
}

// Who comes out of node i, inner nodes being 1 to width - 1 and leaves behind them.
static int32_t winner(const msgl_load_tree *t, int32_t i)
{
    if (i < t->width) return t->winners[i];
    const int32_t leaf = i - t->width;
    return leaf < t->num_leaves && t->leaves[leaf].up ? leaf : -1;
}

int msgl__load_tree_init(msgl_load_tree *t, int32_t n)
{
    *t = (msgl_load_tree){.num_leaves = n, .width = 2};
    while (t->width < n) t->width *= 2;
    t->leaves = msgl__calloc((size_t)n, sizeof *t->leaves);
    t->winners = msgl__reallocarray(NULL, (size_t)t->width, sizeof *t->winners);
    if (t->leaves == NULL || t->winners == NULL) {
        msgl__load_tree_free(t);
        return MSGL_ENOMEM;
    }
    for (int32_t i = 0; i < n; i++) t->leaves[i].chosen = (uint64_t)i;
    for (int32_t i = 0; i < t->width; i++) t->winners[i] = -1;
    return 0;
}

void msgl__load_tree_free(msgl_load_tree *t)
{
    msgl__free(t->leaves);
    msgl__free(t->winners);
    *t = (msgl_load_tree){0};
}

void msgl__load_tree_changed(msgl_load_tree *t, int32_t leaf)
{
    for (int32_t i = (t->width + leaf) / 2; i >= 1; i /= 2) {
        t->winners[i] = less(t, winner(t, 2 * i), winner(t, 2 * i + 1));
    }
}
