// SPDX-License-Identifier: Apache-2.0
//
// What has to hold of an automaton before it is used: every node leads to an end (so that no answer
// is led into a dead end), no rule reaches itself without a byte (so that closures end). Both are
// one pass over reversed or straight edges, linear in their number.
#include <string.h>

#include "core/mem.h"
#include "grammar/nfa.h"

// Edges backwards, and the calls of each rule: lists by counting.
typedef struct reverse {
    int32_t *first, *from; // of node n: from[first[n] .. first[n + 1])
    int32_t *first_call, *call;
    uint8_t *good;      // nodes that lead to an end
    uint8_t *rule_good; // whose start does
    int32_t *rule_at;   // node -> rule that starts there, -1
    int32_t *work;
    int32_t num_work;
} reverse;

static void mark(reverse *r, int32_t node)
{
    if (r->good[node]) return;
    r->good[node] = 1;
    r->work[r->num_work++] = node;
}

typedef struct arrow {
    int32_t from, to, rule; // rule -1: no call
} arrow;

// A repetition that has a least number is left behind a round, not in front of the first: where no
// round has an end, as in "(a[^\\s\\S]){8}", nothing leads out.
static int32_t exit_from(const msgl_nfa *a, int32_t node, int32_t region)
{
    const msgl_nfa_region *r = &a->regions[region];
    return r->is_len || r->min == 0 ? node : r->end;
}

// One pass over all edges, in a fixed order; bytes: those that take a byte too.
static int64_t arrows(const msgl_nfa *a, bool bytes, arrow *out)
{
    int64_t n = 0;
    for (int32_t i = 0; i < a->num_nodes; i++) {
        const msgl_nfa_node *x = &a->nodes[i];
        for (int32_t k = 0; bytes && k < x->num_edges; k++) {
            out[n++] = (arrow){i, a->edges[x->edges + k].to, -1};
        }
        for (int32_t k = 0; k < x->num_eps; k++) {
            const msgl_nfa_eps e = a->eps[x->eps + k];
            if (e.kind == MSGL_EPS_END) continue;
            const int32_t from = e.kind == MSGL_EPS_EXIT ? exit_from(a, i, e.arg) : i;
            out[n++] = (arrow){from, e.to, e.kind == MSGL_EPS_CALL ? e.arg : -1};
        }
    }
    return n;
}

static bool has_end(const msgl_nfa *a, int32_t node)
{
    for (int32_t k = 0; k < a->nodes[node].num_eps; k++) {
        if (a->eps[a->nodes[node].eps + k].kind == MSGL_EPS_END) return true;
    }
    return false;
}

static void run(const msgl_nfa *a, reverse *r, const arrow *all)
{
    for (int32_t i = 0; i < a->num_nodes; i++) {
        if (has_end(a, i)) mark(r, i);
    }
    while (r->num_work > 0) {
        const int32_t node = r->work[--r->num_work];
        for (int32_t k = r->first[node]; k < r->first[node + 1]; k++) {
            const arrow *e = &all[r->from[k]];
            if (e->rule < 0 || r->rule_good[e->rule]) mark(r, e->from);
        }
        const int32_t rule = r->rule_at[node];
        if (rule < 0) continue;
        r->rule_good[rule] = 1;
        for (int32_t k = r->first_call[rule]; k < r->first_call[rule + 1]; k++) {
            const arrow *e = &all[r->call[k]];
            if (r->good[e->to]) mark(r, e->from);
        }
    }
}

// Which nodes lead to their rule's end, by all edges or by those that take no byte.
static int lead_to_end(msgl_gx_builder *b, const msgl_nfa *a, bool bytes, uint8_t *good,
                       uint8_t *rule_good)
{
    const size_t n = (size_t)a->num_nodes, rules = (size_t)a->num_rules;
    const size_t most = (size_t)(a->num_edges + a->num_eps) + 1;
    reverse r = {.good = good, .rule_good = rule_good};
    arrow *all = msgl__reallocarray(NULL, most, sizeof *all);
    r.first = msgl__calloc(n + 2, sizeof *r.first);
    r.from = msgl__reallocarray(NULL, most, sizeof *r.from);
    r.first_call = msgl__calloc(rules + 2, sizeof *r.first_call);
    r.call = msgl__reallocarray(NULL, most, sizeof *r.call);
    r.rule_at = msgl__reallocarray(NULL, n, sizeof *r.rule_at);
    r.work = msgl__reallocarray(NULL, n + 1, sizeof *r.work);
    if (all == NULL || r.first == NULL || r.from == NULL || r.first_call == NULL ||
        r.call == NULL || r.rule_at == NULL || r.work == NULL) {
        msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    } else {
        memset(good, 0, n);
        memset(rule_good, 0, rules);
        memset(r.rule_at, -1, n * sizeof *r.rule_at);
        for (size_t i = 0; i < rules; i++) r.rule_at[a->starts[i]] = (int32_t)i;
        const int64_t num = arrows(a, bytes, all);
        // Counting sort: first[n + 1] ends as the end of n's list, which is the start of n + 1's.
        for (int64_t i = 0; i < num; i++) {
            r.first[all[i].to + 2]++;
            if (all[i].rule >= 0) r.first_call[all[i].rule + 2]++;
        }
        for (size_t i = 2; i < n + 2; i++) r.first[i] += r.first[i - 1];
        for (size_t i = 2; i < rules + 2; i++) r.first_call[i] += r.first_call[i - 1];
        for (int64_t i = 0; i < num; i++) {
            r.from[r.first[all[i].to + 1]++] = (int32_t)i;
            if (all[i].rule >= 0) r.call[r.first_call[all[i].rule + 1]++] = (int32_t)i;
        }
        run(a, &r, all);
    }
    msgl__free(all);
    msgl__free(r.first);
    msgl__free(r.from);
    msgl__free(r.first_call);
    msgl__free(r.call);
    msgl__free(r.rule_at);
    msgl__free(r.work);
    return b->rc;
}

// Removes edges to nodes, and calls of rules, from which no text comes.
static void cut(msgl_nfa *a, const uint8_t *good, const uint8_t *rule_good)
{
    for (int32_t i = 0; i < a->num_nodes; i++) {
        msgl_nfa_node *x = &a->nodes[i];
        int32_t n = 0;
        for (int32_t k = 0; k < x->num_edges; k++) {
            const msgl_nfa_edge e = a->edges[x->edges + k];
            if (good[e.to]) a->edges[x->edges + n++] = e;
        }
        x->num_edges = n;
        n = 0;
        for (int32_t k = 0; k < x->num_eps; k++) {
            const msgl_nfa_eps e = a->eps[x->eps + k];
            const bool keep = e.kind == MSGL_EPS_END ||
                              (good[e.to] && (e.kind != MSGL_EPS_CALL || rule_good[e.arg]));
            if (keep) a->eps[x->eps + n++] = e;
        }
        x->num_eps = n;
    }
}

// ---- left recursion: a call on a cycle of edges without bytes ----

// The i-th way on from a node without a byte; -1: there are no more. A call leads into the rule,
// and past it where the rule has the empty text.
static int32_t next_left(const msgl_nfa *a, const uint8_t *rule_empty, int32_t node, int32_t *i,
                         int32_t *rule)
{
    const msgl_nfa_node *x = &a->nodes[node];
    while (*i < 2 * x->num_eps) {
        const msgl_nfa_eps e = a->eps[x->eps + *i / 2];
        const bool second = (*i)++ % 2 != 0;
        *rule = -1;
        if (e.kind == MSGL_EPS_END) continue;
        if (e.kind != MSGL_EPS_CALL) {
            if (second) continue;
            return e.to;
        }
        if (!second) {
            *rule = e.arg;
            return a->starts[e.arg];
        }
        if (rule_empty[e.arg]) return e.to;
    }
    return -1;
}

typedef struct tarjan {
    int32_t *index, *low, *stack, *path, *at, *group;
    int32_t num_stack, num_path, next, num_groups;
} tarjan;

static void enter(tarjan *t, int32_t node)
{
    t->index[node] = t->low[node] = ++t->next;
    t->stack[t->num_stack++] = node;
    t->path[t->num_path++] = node;
    t->at[node] = 0;
}

// Tarjan's strongly connected components (1972), without recursion. group 0: none is known yet.
static void components(const msgl_nfa *a, const uint8_t *empty, tarjan *t, int32_t start)
{
    enter(t, start);
    while (t->num_path > 0) {
        const int32_t node = t->path[t->num_path - 1];
        int32_t rule;
        const int32_t to = next_left(a, empty, node, &t->at[node], &rule);
        if (to >= 0) {
            if (t->index[to] == 0) {
                enter(t, to);
            } else if (t->group[to] == 0 && t->index[to] < t->low[node]) {
                t->low[node] = t->index[to];
            }
            continue;
        }
        t->num_path--;
        if (t->num_path > 0) {
            const int32_t above = t->path[t->num_path - 1];
            if (t->low[node] < t->low[above]) t->low[above] = t->low[node];
        }
        if (t->low[node] != t->index[node]) continue;
        t->num_groups++;
        int32_t x;
        do {
            x = t->stack[--t->num_stack];
            t->group[x] = t->num_groups;
        } while (x != node);
    }
}

static int refuse_left(msgl_gx_builder *b, const msgl_nfa *a, const uint8_t *empty,
                       const int32_t *rule_ids)
{
    const size_t n = (size_t)a->num_nodes;
    int32_t *mem = msgl__calloc(n * 6 + 1, sizeof *mem);
    if (mem == NULL) return msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    tarjan t = {.index = mem,
                .low = mem + n,
                .stack = mem + 2 * n,
                .path = mem + 3 * n,
                .at = mem + 4 * n,
                .group = mem + 5 * n};
    for (int32_t i = 0; i < a->num_nodes; i++) {
        if (t.index[i] == 0) components(a, empty, &t, i);
    }
    for (int32_t i = 0; i < a->num_nodes && b->rc == 0; i++) {
        int32_t at = 0, rule, to;
        while ((to = next_left(a, empty, i, &at, &rule)) >= 0) {
            if (rule < 0 || t.group[to] != t.group[i]) continue;
            const int32_t id = rule_ids[rule];
            msgl__gx_fail(b, MSGL_EUNSUPPORTED,
                          "grammar: rule %s calls itself before any character (left recursion)",
                          id >= 0 ? msgl__gx_rule_name(b, id) : "(unnamed)");
            break;
        }
    }
    msgl__free(mem);
    return b->rc;
}

// A call behind which nothing but the end comes needs no place on the stack.
static void find_tails(msgl_nfa *a)
{
    for (int32_t i = 0; i < a->num_eps; i++) {
        msgl_nfa_eps *e = &a->eps[i];
        if (e->kind != MSGL_EPS_CALL) continue;
        int32_t to = e->to;
        for (int hops = 0; hops < 8; hops++) {
            const msgl_nfa_node *x = &a->nodes[to];
            if (x->num_edges != 0 || x->num_eps != 1) break;
            const msgl_nfa_eps next = a->eps[x->eps];
            if (next.kind == MSGL_EPS_END) {
                e->kind = MSGL_EPS_TAIL;
                break;
            }
            if (next.kind != MSGL_EPS_GO) break;
            to = next.to;
        }
    }
}

int msgl__nfa_check(msgl_gx_builder *b, msgl_nfa *a, const int32_t *rule_ids)
{
    uint8_t *good = msgl__malloc((size_t)a->num_nodes + (size_t)a->num_rules + 1);
    if (good == NULL) return msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    uint8_t *rule_good = good + a->num_nodes;
    if (lead_to_end(b, a, true, good, rule_good) == 0) {
        cut(a, good, rule_good);
        if (!rule_good[0]) msgl__gx_fail(b, MSGL_EINVAL, "grammar: no text satisfies it");
    }
    if (b->rc == 0 && lead_to_end(b, a, false, good, rule_good) == 0) {
        refuse_left(b, a, rule_good, rule_ids);
    }
    if (b->rc == 0) msgl__nfa_widths(b, a, rule_good);
    if (b->rc == 0) find_tails(a);
    msgl__free(good);
    return b->rc;
}
