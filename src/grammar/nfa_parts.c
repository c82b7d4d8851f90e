// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "grammar/json_text.h"
#include "grammar/nfa_build.h"
#include "utils/utf8.h"

const uint32_t msgl__plain_pairs[6] = {0x20, 0x21, 0x23, 0x5b, 0x5d, 0x10ffff};

// Continuation bytes that are free lead to the same node, whatever came before: made once per
// class.
typedef struct tails {
    msgl_nfa_builder *x;
    int32_t to;
    int32_t free[4]; // [k]: k free continuation bytes are left; [0] is to
} tails;

static int32_t tail(tails *t, int left)
{
    if (left == 0) return t->to;
    if (t->free[left] < 0) {
        const int32_t node = msgl__nfa_node(t->x);
        if (node < 0) return -1;
        msgl__nfa_range(t->x, node, 0x80, 0xbf, tail(t, left - 1));
        t->free[left] = node;
    }
    return t->free[left];
}

// Edges for the characters first to last, which have n bytes each; k bytes of them are behind.
static void span(tails *t, int32_t from, uint32_t first, uint32_t last, int n, int k)
{
    if (t->x->b->rc != 0) return;
    const int left = n - 1 - k; // bytes after this one
    const int shift = 6 * left;
    const uint32_t low = left == 0 ? 0 : (1u << shift) - 1;
    const uint32_t mask = k == 0 ? (n == 1 ? 0x7fu : 0x7fu >> n) : 0x3fu;
    const uint32_t mark = k == 0 ? (n == 1 ? 0u : 0xf00u >> n & 0xffu) : 0x80u;
    uint32_t a = first >> shift, z = last >> shift;
    if (a == z && ((first & low) != 0 || (last & low) != low)) {
        const int32_t node = msgl__nfa_node(t->x);
        const uint8_t c = (uint8_t)(mark | (a & mask));
        msgl__nfa_range(t->x, from, c, c, node);
        span(t, node, first, last, n, k + 1);
        return;
    }
    if ((first & low) != 0) {
        span(t, from, first, first | low, n, k);
        a++;
    }
    uint32_t end = z;
    if ((last & low) != low) {
        span(t, from, last & ~low, last, n, k);
        if (z == 0) return;
        end = z - 1;
    }
    if (a > end) return;
    msgl__nfa_range(t->x, from, (uint8_t)(mark | (a & mask)), (uint8_t)(mark | (end & mask)),
                    tail(t, left));
}

void msgl__nfa_class(msgl_nfa_builder *x, const uint32_t *pairs, int32_t n, int32_t from,
                     int32_t to)
{
    static const uint32_t LAST[4] = {0x7f, 0x7ff, 0xffff, 0x10ffff};
    tails t = {.x = x, .to = to, .free = {-1, -1, -1, -1}};
    msgl_byte_set ascii = {{0}};
    bool any = false;
    for (int32_t i = 0; i < n && x->b->rc == 0; i++) {
        uint32_t first = pairs[2 * i];
        const uint32_t last = pairs[2 * i + 1];
        for (; first <= last && first < 0x80; first++) {
            ascii.w[first >> 5] |= 1u << (first & 31);
            any = true;
        }
        for (int k = 1; k < 4; k++) {
            if (first > last || first > LAST[k]) continue;
            const uint32_t end = last < LAST[k] ? last : LAST[k];
            span(&t, from, first, end, k + 1, 0);
            first = end + 1;
        }
    }
    if (any) msgl__nfa_byte(x, from, &ascii, to);
}

// Bytes at from to a new node, or to `to` at a character's end.
void msgl__nfa_bytes(msgl_nfa_builder *x, const char *p, int32_t n, int32_t from, int32_t to)
{
    if (n == 0) msgl__nfa_go(x, from, MSGL_EPS_GO, to, 0);
    for (int32_t i = 0; i < n && x->b->rc == 0; i++) {
        int32_t next = i + 1 == n ? to : msgl__nfa_node(x);
        const uint8_t c = (uint8_t)p[i];
        // Where characters tick, one does so when its last byte is there.
        const bool ends = i + 1 == n || ((uint8_t)p[i + 1] & 0xc0) != 0x80;
        if (x->ticking && ends) {
            const int32_t tick = msgl__nfa_node(x);
            msgl__nfa_range(x, from, c, c, tick);
            msgl__nfa_go(x, tick, MSGL_EPS_TICK, next, x->region);
        } else {
            msgl__nfa_range(x, from, c, c, next);
        }
        from = next;
    }
}

typedef struct lit {
    const char *p;
    int32_t n;
} lit;

static int lit_order(const void *a, const void *b)
{
    const lit *p = a, *q = b;
    const int32_t n = p->n < q->n ? p->n : q->n;
    const int c = n > 0 ? memcmp(p->p, q->p, (size_t)n) : 0;
    return c != 0 ? c : (p->n > q->n) - (p->n < q->n);
}

// ---- names that a key must not be ----

// What any key may go on with: plain characters and escapes, then the quote. One per EXCEPT.
static int32_t free_key(msgl_nfa_builder *x, int32_t to)
{
    const int32_t loop = msgl__nfa_node(x);
    if (loop < 0) return -1;
    msgl__nfa_class(x, msgl__plain_pairs, MSGL_PLAIN_PAIRS, loop, loop);
    x->nodes[loop].plain = MSGL_PLAIN_ANY;
    for (int k = 0; k < MSGL_JSON_SHORT_ESCAPES; k++) {
        msgl__nfa_bytes(x, msgl__json_short_escapes[k].text, 2, loop, loop);
    }
    msgl__nfa_range(x, loop, '"', '"', to);
    return loop;
}

// A node of the tree of names: `names` sorted, all with the same first `at` bytes, [lo, hi).
// Iterative, since names are as long as the client likes: a work list of ranges.
typedef struct except_item {
    int32_t node, lo, hi, at;
} except_item;

typedef struct except_job {
    msgl_nfa_builder *x;
    lit *names;
    except_item *items;
    int32_t num_items, cap_items;
    int32_t loop, to;
} except_job;

static void except_push(except_job *j, except_item it)
{
    if (msgl__gx_room(j->x->b, (void **)&j->items, &j->cap_items, (int64_t)j->num_items + 1,
                      sizeof *j->items) == 0) {
        j->items[j->num_items++] = it;
    }
}

// Edges of all characters but those that names go on with; the latter to nodes of their own.
static void except_node(except_job *j, except_item it)
{
    msgl_nfa_builder *x = j->x;
    bool whole = false;
    bool escaped[MSGL_JSON_SHORT_ESCAPES] = {false};
    uint32_t *taken = msgl__reallocarray(NULL, (size_t)(it.hi - it.lo) * 2 + 14, sizeof *taken);
    int32_t n = 0;
    if (taken == NULL) {
        msgl__gx_fail(x->b, MSGL_ENOMEM, "out of memory for a grammar");
        return;
    }
    // Not plain: quote, backslash, controls.
    const uint32_t fixed[6] = {0, 0x1f, '"', '"', '\\', '\\'};
    memcpy(taken, fixed, sizeof fixed);
    n = 3;
    for (int32_t i = it.lo; i < it.hi && x->b->rc == 0;) {
        if (j->names[i].n == it.at) {
            whole = true;
            i++;
            continue;
        }
        size_t end = (size_t)it.at;
        const uint32_t cp = msgl__utf8_next(j->names[i].p, &end);
        int32_t k = i + 1;
        while (k < it.hi && (size_t)j->names[k].n >= end &&
               memcmp(j->names[k].p + it.at, j->names[i].p + it.at, end - (size_t)it.at) == 0) {
            k++;
        }
        const int32_t next = msgl__nfa_node(x);
        const int e = msgl__json_short_escape(cp);
        if (e >= 0) {
            escaped[e] = true;
            msgl__nfa_bytes(x, msgl__json_short_escapes[e].text, 2, it.node, next);
        } else if (cp >= 0x20) {
            taken[2 * n] = taken[2 * n + 1] = cp;
            n++;
            msgl__nfa_bytes(x, j->names[i].p + it.at, (int32_t)end - it.at, it.node, next);
        } // a control without a short escape is in no key, so nothing leads to `next`
        except_push(j, (except_item){next, i, k, (int32_t)end});
        i = k;
    }
    const int32_t others = msgl__gx_class(x->b, taken, n, true);
    msgl__free(taken);
    if (others < 0) return;
    const msgl_gx e = x->b->ex[others];
    if (e.kind == MSGL_GX_CLASS) {
        msgl__nfa_class(x, x->b->ranges + e.at, e.n, it.node, j->loop);
    }
    for (int k = 0; k < MSGL_JSON_SHORT_ESCAPES; k++) {
        if (escaped[k]) continue;
        msgl__nfa_bytes(x, msgl__json_short_escapes[k].text, 2, it.node, j->loop);
    }
    if (!whole) msgl__nfa_range(x, it.node, '"', '"', j->to);
}

void msgl__nfa_except(msgl_nfa_builder *x, const msgl_gx *e, int32_t from, int32_t to)
{
    const int32_t n = e->n, at = e->at;
    except_job j = {.x = x, .to = to};
    j.names = msgl__reallocarray(NULL, (size_t)n + 1, sizeof *j.names);
    if (j.names == NULL) {
        msgl__gx_fail(x->b, MSGL_ENOMEM, "out of memory for a grammar");
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const msgl_gx *k = &x->b->ex[x->b->kids[at + i]];
        // A copy: the text moves when it grows.
        char *copy = msgl__malloc((size_t)k->n + 1);
        if (copy == NULL) msgl__gx_fail(x->b, MSGL_ENOMEM, "out of memory for a grammar");
        if (copy != NULL && k->n > 0) memcpy(copy, x->b->text + k->at, (size_t)k->n);
        j.names[i] = (lit){copy, copy == NULL ? 0 : k->n};
    }
    if (x->b->rc == 0) {
        qsort(j.names, (size_t)n, sizeof *j.names, lit_order);
        j.loop = free_key(x, to);
        if (n == 0) msgl__nfa_go(x, from, MSGL_EPS_GO, j.loop, 0);
        if (n > 0) except_push(&j, (except_item){from, 0, n, 0});
    }
    while (j.num_items > 0 && x->b->rc == 0) except_node(&j, j.items[--j.num_items]);
    for (int32_t i = 0; i < n; i++) msgl__free((char *)(uintptr_t)j.names[i].p);
    msgl__free(j.names);
    msgl__free(j.items);
}
