// SPDX-License-Identifier: Apache-2.0
//
// How many alternatives are open behind a byte: nodes that wait for the next one. A grammar that
// has more than limits.state_width at one place is refused. While matching as many are kept as the
// widest place has, so none is lost where one place is open; where several are at once, which is a
// matter of the answer, those beyond that are left out (pda.c), and the answer goes on.
#include <string.h>

#include "core/mem.h"
#include "grammar/pda.h"

typedef struct widths {
    msgl_gx_builder *b;
    msgl_nfa *a;
    const uint8_t *rule_empty;
    int32_t *most; // of each node: what is reached without a byte, ways that meet counted twice
    int32_t *at, *path;
    uint8_t *state;
    int32_t width;
} widths;

enum { NEW, OPEN, DONE };

// The i-th node that follows without a byte; -1: there are no more.
static int32_t next_of(const widths *w, int32_t node, int32_t *i)
{
    const msgl_nfa_node *x = &w->a->nodes[node];
    while (*i < 2 * x->num_eps) {
        const msgl_nfa_eps e = w->a->eps[x->eps + *i / 2];
        const bool second = (*i)++ % 2 != 0;
        if (e.kind == MSGL_EPS_END) continue;
        if (e.kind == MSGL_EPS_CALL && !second) return w->a->starts[e.arg];
        if (e.kind == MSGL_EPS_CALL ? w->rule_empty[e.arg] : !second) return e.to;
    }
    return -1;
}

static void add(widths *w, int32_t node, int32_t more)
{
    const int64_t sum = (int64_t)w->most[node] + more;
    w->most[node] = sum > INT32_MAX ? INT32_MAX : (int32_t)sum;
}

// Depth first, without recursion.
static void measure(widths *w, int32_t start)
{
    int32_t n = 0;
    w->path[n++] = start;
    w->state[start] = OPEN;
    w->most[start] = 1;
    while (n > 0) {
        const int32_t node = w->path[n - 1], to = next_of(w, node, &w->at[node]);
        if (to < 0) {
            w->state[node] = DONE;
            if (--n > 0) add(w, w->path[n - 1], w->most[node]);
        } else if (w->state[to] == NEW) {
            w->path[n++] = to;
            w->state[to] = OPEN;
            w->most[to] = 1;
        } else {
            // A way back: nothing is known by counting.
            add(w, node, w->state[to] == DONE ? w->most[to] : INT32_MAX);
        }
    }
}

// Counts what counting above could not tell, by the automaton itself: the alternatives at a node,
// or behind a byte of it.
static int count(widths *w, msgl_pda *p, int32_t node, int byte)
{
    const msgl_config c = {node, 0, MSGL_FRAME_UNKNOWN};
    msgl__pda_rest(p);
    int32_t state = msgl__pda_state(p, &c, 1);
    if (byte >= 0 && p->rc == 0) state = msgl__pda_step(p, state, (uint8_t)byte);
    if (p->rc == MSGL_ENOMEM)
        return msgl__gx_fail(w->b, MSGL_ENOMEM, "out of memory for a grammar");
    if (p->rc != 0 || p->pruned) {
        return msgl__gx_fail(w->b, MSGL_ELIMIT,
                             "grammar: more than %d alternatives are open at one place (limit: "
                             "alternatives)",
                             w->b->limits.state_width);
    }
    if (p->states[state].n > w->width) w->width = p->states[state].n;
    return msgl__gx_spend(w->b, (size_t)(MSGL_PDA_EFFORT - p->effort), 0);
}

// The same if the bound is not good enough.
static int check(widths *w, msgl_pda *p, int32_t node, int byte, int64_t most)
{
    if (most <= w->width) return 0;
    if (most > w->b->limits.state_width) return count(w, p, node, byte);
    w->width = (int32_t)most;
    return 0;
}

// Behind each byte of a node, whose edges may take the same one.
static int check_node(widths *w, msgl_pda *p, int32_t node)
{
    const msgl_nfa_node *x = &w->a->nodes[node];
    int64_t all = 0;
    for (int32_t k = 0; k < x->num_edges; k++) all += w->most[w->a->edges[x->edges + k].to];
    if (all <= w->width) return 0;
    int64_t sums[256] = {0};
    int most = 0;
    for (int32_t k = 0; k < x->num_edges; k++) {
        const msgl_nfa_edge e = w->a->edges[x->edges + k];
        for (int c = 0; c < 256; c++) {
            if (msgl__byte_set_has(&w->a->sets[e.set], (uint8_t)c)) sums[c] += w->most[e.to];
        }
    }
    for (int c = 1; c < 256; c++) {
        if (sums[c] > sums[most]) most = c;
    }
    if (msgl__gx_spend(w->b, 8 * (size_t)x->num_edges, 0) != 0) return -1;
    return check(w, p, node, most, sums[most]);
}

static int check_all(widths *w, msgl_pda *p)
{
    const int32_t start = w->a->starts[0];
    if (check(w, p, start, -1, w->most[start]) != 0) return -1;
    for (int32_t i = 0; i < w->a->num_nodes; i++) {
        if (check_node(w, p, i) != 0) return -1;
    }
    return 0;
}

int msgl__nfa_widths(msgl_gx_builder *b, msgl_nfa *a, const uint8_t *rule_empty)
{
    const size_t n = (size_t)a->num_nodes;
    if (msgl__gx_spend(b, n, n * (3 * sizeof(int32_t) + 1)) != 0) return -1;
    int32_t *mem = msgl__calloc(n * 3 + 1, sizeof *mem);
    uint8_t *state = msgl__calloc(n + 1, 1);
    msgl_pda p = {0};
    widths w = {.b = b, .a = a, .rule_empty = rule_empty, .state = state};
    if (mem == NULL || state == NULL || msgl__pda_init(&p, a, &b->limits) != 0) {
        msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    } else {
        w.most = mem;
        w.at = mem + n;
        w.path = mem + 2 * n;
        for (int32_t i = 0; i < a->num_nodes; i++) {
            if (w.state[i] == NEW) measure(&w, i);
        }
        w.width = MSGL_NFA_WIDTH;
        a->width = b->limits.state_width;
        check_all(&w, &p);
        a->width = w.width;
    }
    msgl__pda_free(&p);
    msgl__free(mem);
    msgl__free(state);
    msgl__gx_give_back(b, n * (3 * sizeof(int32_t) + 1));
    return b->rc;
}
