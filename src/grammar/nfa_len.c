// SPDX-License-Identifier: Apache-2.0
//
// Where a text has to match a pattern and have a length, a node may lead to an end and yet not with
// the count that it has: /(abc)*/ of 4 to 6 characters has one text. For these regions it is worked
// out, backwards from the exit, with which counts each node leads out: a row of bits per node.
#include <string.h>

#include "core/mem.h"
#include "grammar/nfa.h"

enum { MAX_BYTES = 16 << 20 };

// row |= other, or other one count further on; whether that changed it. The last bit stands for
// itself and more where there is no upper bound.
static bool merge(uint64_t *row, const uint64_t *other, int32_t words, bool tick, int32_t last,
                  bool endless)
{
    bool changed = false;
    for (int32_t i = 0; i < words; i++) {
        uint64_t v = other[i];
        if (tick) v = v >> 1 | (i + 1 < words ? other[i + 1] << 63 : 0);
        if (tick && endless && i == last / 64) v |= other[i] & UINT64_C(1) << (last % 64);
        if ((row[i] | v) == row[i]) continue;
        row[i] |= v;
        changed = true;
    }
    return changed;
}

static bool pass_node(const msgl_nfa *a, const msgl_nfa_region *r, uint64_t *rows, int32_t node,
                      int32_t last)
{
    const msgl_nfa_node *x = &a->nodes[node];
    const bool endless = r->max == MSGL_GX_INF;
    uint64_t *row = rows + (int64_t)(node - r->first) * r->words;
    bool changed = false;
    for (int32_t k = 0; k < x->num_edges; k++) {
        const int32_t to = a->edges[x->edges + k].to;
        if (to < r->first || to >= r->end) continue;
        changed |=
            merge(row, rows + (int64_t)(to - r->first) * r->words, r->words, false, last, endless);
    }
    for (int32_t k = 0; k < x->num_eps; k++) {
        const msgl_nfa_eps e = a->eps[x->eps + k];
        if (e.kind == MSGL_EPS_EXIT) {
            changed |= (row[last / 64] >> (last % 64) & 1) == 0;
            for (int32_t c = r->min; c <= last; c++) row[c / 64] |= UINT64_C(1) << (c % 64);
        } else if (e.to >= r->first && e.to < r->end) {
            changed |= merge(row, rows + (int64_t)(e.to - r->first) * r->words, r->words,
                             e.kind == MSGL_EPS_TICK, last, endless);
        }
    }
    return changed;
}

// Without any way out the region is none: its exit leads nowhere, and what comes to it is cut.
static void close_exit(msgl_nfa *a, const msgl_nfa_region *r)
{
    for (int32_t node = r->first; node < r->end; node++) {
        const msgl_nfa_node *x = &a->nodes[node];
        for (int32_t k = 0; k < x->num_eps; k++) {
            msgl_nfa_eps *e = &a->eps[x->eps + k];
            if (e->kind == MSGL_EPS_EXIT) *e = (msgl_nfa_eps){MSGL_EPS_GO, node, 0};
        }
    }
}

int msgl__nfa_lengths(msgl_gx_builder *b, msgl_nfa *a)
{
    for (int32_t i = 0; i < a->num_regions && b->rc == 0; i++) {
        msgl_nfa_region *r = &a->regions[i];
        if (!r->is_len) continue;
        const int32_t last = r->max == MSGL_GX_INF ? r->min : r->max;
        r->words = last / 64 + 1;
        const int64_t words = (int64_t)(r->end - r->first) * r->words;
        if (((int64_t)a->num_alive + words) * 8 > MAX_BYTES) {
            return msgl__gx_fail(b, MSGL_ELIMIT,
                                 "grammar: a pattern and its length take more than %d bytes "
                                 "(limit: lengths)",
                                 MAX_BYTES);
        }
        if (msgl__gx_spend(b, 0, (size_t)words * 8) != 0) return -1;
        uint64_t *more = msgl__reallocarray(a->alive, (size_t)(a->num_alive + words), sizeof *more);
        if (more == NULL) return msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
        a->alive = more;
        r->alive = a->num_alive;
        uint64_t *rows = more + r->alive;
        memset(rows, 0, (size_t)words * sizeof *rows);
        a->num_alive += (int32_t)words;
        a->bytes += (size_t)words * sizeof *rows;
        bool changed = true; // later nodes first: most edges lead forward
        const size_t pass = (size_t)words / 16 + (size_t)(r->end - r->first);
        while (changed && msgl__gx_spend(b, pass, 0) == 0) {
            changed = false;
            for (int32_t node = r->end - 1; node >= r->first; node--) {
                changed |= pass_node(a, r, rows, node, last);
            }
        }
        if ((rows[0] & 1) == 0) close_exit(a, r);
    }
    return b->rc;
}
