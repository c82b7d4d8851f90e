// SPDX-License-Identifier: Apache-2.0
#include "grammar/nfa.h"

#include <string.h>

#include "core/mem.h"
#include "grammar/nfa_build.h"
#include "utils/hash.h"

enum {
    SET_HASH = 1024,
    // A repetition of up to so many copies of so many nodes is written out; else it counts.
    UNROLL_TIMES = 4,
    UNROLL_NODES = 64,
};

int32_t msgl__nfa_node(msgl_nfa_builder *x)
{
    if (x->num_nodes >= x->b->limits.nodes) {
        return msgl__gx_fail(x->b, MSGL_ELIMIT,
                             "grammar: its automaton has more than %d nodes (limit: nodes)",
                             x->b->limits.nodes);
    }
    if (msgl__gx_spend(x->b, 1, 0) != 0 ||
        msgl__gx_room(x->b, (void **)&x->nodes, &x->cap_nodes, (int64_t)x->num_nodes + 1,
                      sizeof *x->nodes) != 0) {
        return -1;
    }
    x->nodes[x->num_nodes] = (msgl_link_node){-1, -1, x->region, MSGL_PLAIN_NONE};
    return x->num_nodes++;
}

void msgl__nfa_go(msgl_nfa_builder *x, int32_t from, msgl_eps_kind kind, int32_t to, int32_t arg)
{
    if (x->b->rc != 0 || from < 0 || msgl__gx_spend(x->b, 1, 0) != 0 ||
        msgl__gx_room(x->b, (void **)&x->eps, &x->cap_eps, (int64_t)x->num_eps + 1,
                      sizeof *x->eps) != 0) {
        return;
    }
    x->eps[x->num_eps] = (msgl_link_eps){(int32_t)kind, to, arg, x->nodes[from].eps};
    x->nodes[from].eps = x->num_eps++;
}

// The number of a set, the same for equal ones.
static int32_t set_id(msgl_nfa_builder *x, const msgl_byte_set *set)
{
    const uint32_t h = (uint32_t)(msgl__hash(MSGL_HASH_START, set, sizeof *set) % SET_HASH);
    for (int32_t i = x->set_hash[h]; i >= 0; i = x->set_next[i]) {
        if (memcmp(&x->sets[i], set, sizeof *set) == 0) return i;
    }
    const int64_t need = (int64_t)x->num_sets + 1;
    if (msgl__gx_room(x->b, (void **)&x->sets, &x->cap_sets, need, sizeof *x->sets) != 0 ||
        msgl__gx_room(x->b, (void **)&x->set_next, &x->cap_set_next, need, sizeof *x->set_next)) {
        return -1;
    }
    x->sets[x->num_sets] = *set;
    x->set_next[x->num_sets] = x->set_hash[h];
    x->set_hash[h] = x->num_sets;
    return x->num_sets++;
}

void msgl__nfa_byte(msgl_nfa_builder *x, int32_t from, const msgl_byte_set *set, int32_t to)
{
    if (x->b->rc != 0 || from < 0 || to < 0) return;
    const int32_t id = set_id(x, set);
    if (id < 0 || msgl__gx_spend(x->b, 1, 0) != 0 ||
        msgl__gx_room(x->b, (void **)&x->edges, &x->cap_edges, (int64_t)x->num_edges + 1,
                      sizeof *x->edges) != 0) {
        return;
    }
    x->edges[x->num_edges] = (msgl_link_edge){id, to, x->nodes[from].edge};
    x->nodes[from].edge = x->num_edges++;
}

void msgl__nfa_range(msgl_nfa_builder *x, int32_t from, uint8_t first, uint8_t last, int32_t to)
{
    msgl_byte_set set = {{0}};
    for (int c = first; c <= last; c++) set.w[c >> 5] |= 1u << (c & 31);
    msgl__nfa_byte(x, from, &set, to);
}

// The number here of what is called: a rule of the builder's, or an expression of its own.
static int32_t new_rule(msgl_nfa_builder *x, int32_t what)
{
    const int64_t need = (int64_t)x->num_rules + 1;
    if (msgl__gx_room(x->b, (void **)&x->queue, &x->cap_queue, need, sizeof *x->queue) != 0 ||
        msgl__gx_room(x->b, (void **)&x->starts, &x->cap_starts, need, sizeof *x->starts) != 0) {
        return -1;
    }
    const int32_t region = x->region;
    x->region = -1;
    x->queue[x->num_rules] = what;
    x->starts[x->num_rules] = msgl__nfa_node(x);
    x->region = region;
    return x->starts[x->num_rules] < 0 ? -1 : x->num_rules++;
}

static int32_t rule_number(msgl_nfa_builder *x, int32_t rule)
{
    if (x->rule_of[rule] < 0) x->rule_of[rule] = new_rule(x, rule);
    return x->rule_of[rule];
}

static bool pairs_cover_plain(const uint32_t *pairs, int32_t n)
{
    for (int k = 0; k < MSGL_PLAIN_PAIRS; k++) {
        uint32_t need = msgl__plain_pairs[2 * k]; // ranges ascend, so one pass is enough
        for (int32_t i = 0; i < n; i++) {
            if (pairs[2 * i] <= need && pairs[2 * i + 1] >= need) need = pairs[2 * i + 1] + 1;
            if (need == 0xd800) need = 0xe000;
        }
        if (need <= msgl__plain_pairs[2 * k + 1]) return false;
    }
    return true;
}

// Whether any plain character alone is a text of the expression.
static bool takes_plain(const msgl_nfa_builder *x, int32_t id)
{
    const msgl_gx *e = &x->b->ex[id];
    if (e->kind == MSGL_GX_CLASS) return pairs_cover_plain(x->b->ranges + e->at, e->n);
    if (e->kind != MSGL_GX_ALT) return false;
    for (int32_t i = 0; i < e->n; i++) {
        if (takes_plain(x, x->b->kids[e->at + i])) return true;
    }
    return false;
}

// Whether the expression has the empty text; of a reference that is not known here: false, and
// the automaton's own checks see to it that nothing repeats without a byte.
static bool nullable(const msgl_nfa_builder *x, int32_t id)
{
    const msgl_gx *e = &x->b->ex[id];
    switch (e->kind) {
    case MSGL_GX_LIT: return e->n == 0;
    case MSGL_GX_REP: return e->min == 0 || nullable(x, e->at);
    case MSGL_GX_LEN: return e->min <= 0 && nullable(x, e->at);
    case MSGL_GX_SEQ:
        for (int32_t i = 0; i < e->n; i++) {
            if (!nullable(x, x->b->kids[e->at + i])) return false;
        }
        return true;
    case MSGL_GX_ALT:
        for (int32_t i = 0; i < e->n; i++) {
            if (nullable(x, x->b->kids[e->at + i])) return true;
        }
        return false;
    default: return false;
    }
}

// Nodes that an expression takes, about; saturates.
static int64_t cost(const msgl_nfa_builder *x, int32_t id)
{
    const msgl_gx *e = &x->b->ex[id];
    int64_t sum = 1;
    switch (e->kind) {
    case MSGL_GX_LIT: return e->n + 1;
    case MSGL_GX_CLASS: return x->b->ranges[e->at + 2 * e->n - 1] > 0x7f ? 8 : 1;
    case MSGL_GX_REP: return cost(x, e->at) + 2;
    case MSGL_GX_SEQ:
    case MSGL_GX_ALT:
        for (int32_t i = 0; i < e->n && sum < UNROLL_NODES; i++) {
            sum += cost(x, x->b->kids[e->at + i]);
        }
        return sum;
    default: return 4;
    }
}

static void emit_star(msgl_nfa_builder *x, int32_t kid, int32_t from, int32_t to)
{
    const int32_t loop = msgl__nfa_node(x);
    const bool plain = x->b->rc == 0 && !x->ticking && takes_plain(x, kid);
    msgl__nfa_go(x, from, MSGL_EPS_GO, loop, 0);
    msgl__nfa_emit(x, kid, loop, loop);
    if (plain && x->b->rc == 0) x->nodes[loop].plain = MSGL_PLAIN_ANY;
    msgl__nfa_go(x, loop, MSGL_EPS_GO, to, 0);
}

static void emit_copies(msgl_nfa_builder *x, int32_t kid, int32_t min, int32_t max, int32_t from,
                        int32_t to)
{
    const int32_t last = max == MSGL_GX_INF ? min : max;
    for (int32_t i = 0; i < last && x->b->rc == 0; i++) {
        const int32_t next = msgl__nfa_node(x);
        if (i >= min) msgl__nfa_go(x, from, MSGL_EPS_GO, to, 0);
        msgl__nfa_emit(x, kid, from, next);
        from = next;
    }
    if (max == MSGL_GX_INF) {
        emit_star(x, kid, from, to);
    } else {
        msgl__nfa_go(x, from, MSGL_EPS_GO, to, 0);
    }
}

// A small rule that may be empty is written out where it is used: white space with a stack of its
// own would pop it after every blank.
static bool inlined(const msgl_nfa_builder *x, int32_t rule)
{
    const int32_t e = x->b->rules[rule].expr;
    return e >= 0 && x->b->ex[e].simple && nullable(x, e) && cost(x, e) <= UNROLL_NODES / 2;
}

// Whether a repetition would need a count of its own below.
static bool has_count(const msgl_nfa_builder *x, int32_t id)
{
    const msgl_gx *e = &x->b->ex[id];
    switch (e->kind) {
    case MSGL_GX_LEN: return true;
    case MSGL_GX_REP: return e->min > UNROLL_TIMES || e->max > UNROLL_TIMES || has_count(x, e->at);
    case MSGL_GX_SEQ:
    case MSGL_GX_ALT:
        for (int32_t i = 0; i < e->n; i++) {
            if (has_count(x, x->b->kids[e->at + i])) return true;
        }
        return false;
    case MSGL_GX_REF: return inlined(x, e->at) && has_count(x, x->b->rules[e->at].expr);
    default: return false;
    }
}

static int32_t new_region(msgl_nfa_builder *x, int32_t min, int32_t max)
{
    if (msgl__gx_room(x->b, (void **)&x->regions, &x->cap_regions, (int64_t)x->num_regions + 1,
                      sizeof *x->regions) != 0) {
        return -1;
    }
    x->regions[x->num_regions] = (msgl_nfa_region){.min = min, .max = max};
    return x->num_regions++;
}

// from -> head; head enters the body while the count allows it, the body's end ticks back to it.
static void emit_counted(msgl_nfa_builder *x, int32_t kid, int32_t min, int32_t max, int32_t from,
                         int32_t to)
{
    const int32_t region = new_region(x, min, max);
    if (region < 0) return;
    x->region = region;
    const int32_t head = msgl__nfa_node(x), body = msgl__nfa_node(x), end = msgl__nfa_node(x);
    msgl__nfa_go(x, from, MSGL_EPS_GO, head, 0);
    msgl__nfa_go(x, head, MSGL_EPS_ENTER, body, region);
    if (x->b->rc == 0) x->regions[region].end = end;
    const bool plain = x->b->rc == 0 && takes_plain(x, kid);
    if (has_count(x, kid)) {
        // What is counted becomes a rule as a whole: its parts, white space among them, then have
        // one stack, and only its end pops it.
        msgl__nfa_go(x, body, MSGL_EPS_CALL, end, new_rule(x, -2 - kid));
    } else {
        msgl__nfa_emit(x, kid, body, end);
    }
    if (plain && x->b->rc == 0) {
        x->nodes[body].plain = max == MSGL_GX_INF ? MSGL_PLAIN_ANY : MSGL_PLAIN_COUNTED;
    }
    msgl__nfa_go(x, end, MSGL_EPS_TICK, head, region);
    msgl__nfa_go(x, head, MSGL_EPS_EXIT, to, region);
    x->region = -1;
}

static void emit_rep(msgl_nfa_builder *x, int32_t id, int32_t from, int32_t to)
{
    const msgl_gx e = x->b->ex[id];
    const bool empty = nullable(x, e.at);
    const int32_t min = empty ? 0 : e.min;
    const int32_t last = e.max == MSGL_GX_INF ? min : e.max;
    if (min == 0 && e.max == MSGL_GX_INF) {
        emit_star(x, e.at, from, to);
        return;
    }
    const bool few = last <= UNROLL_TIMES && last * cost(x, e.at) <= UNROLL_NODES;
    // A count is in use already where characters tick or around this repetition: then it is written
    // out, or becomes a rule, whose count is its own.
    if (few || x->ticking) {
        emit_copies(x, e.at, min, e.max, from, to);
    } else if (x->region >= 0) {
        const int32_t rule = new_rule(x, -2 - id);
        msgl__nfa_go(x, from, MSGL_EPS_CALL, to, rule);
    } else {
        emit_counted(x, e.at, min, e.max, from, to);
    }
}

static void emit_len(msgl_nfa_builder *x, int32_t id, int32_t from, int32_t to)
{
    const msgl_gx e = x->b->ex[id];
    if (x->region >= 0 || x->ticking || !x->b->ex[e.at].simple) {
        const int32_t rule = new_rule(x, -2 - id);
        msgl__nfa_go(x, from, MSGL_EPS_CALL, to, rule);
        return;
    }
    const int32_t region = new_region(x, e.min, e.max);
    if (region < 0) return;
    x->region = region;
    x->ticking = true;
    const int32_t body = msgl__nfa_node(x), end = msgl__nfa_node(x);
    msgl__nfa_go(x, from, MSGL_EPS_GO, body, 0);
    msgl__nfa_emit(x, e.at, body, end);
    msgl__nfa_go(x, end, MSGL_EPS_EXIT, to, region);
    x->ticking = false;
    x->region = -1;
    if (x->b->rc != 0) return;
    x->regions[region].is_len = true;
    x->regions[region].first = body;
    x->regions[region].end = x->num_nodes;
}

static void emit_alt(msgl_nfa_builder *x, int32_t id, int32_t from, int32_t to)
{
    const msgl_gx e = x->b->ex[id];
    if (!x->ticking) {
        msgl__nfa_alt(x, id, from, to);
        return;
    }
    for (int32_t i = 0; i < e.n && x->b->rc == 0; i++)
        msgl__nfa_emit(x, x->b->kids[e.at + i], from, to);
}

static void emit_one(msgl_nfa_builder *x, int32_t kid, int32_t from, int32_t to)
{
    if (!x->ticking) {
        msgl__nfa_emit(x, kid, from, to);
        return;
    }
    const int32_t tick = msgl__nfa_node(x);
    x->ticking = false;
    msgl__nfa_emit(x, kid, from, tick);
    x->ticking = true;
    msgl__nfa_go(x, tick, MSGL_EPS_TICK, to, x->region);
}

static void emit_class(msgl_nfa_builder *x, const msgl_gx *e, int32_t from, int32_t to)
{
    if (!x->ticking) {
        msgl__nfa_class(x, x->b->ranges + e->at, e->n, from, to);
        return;
    }
    const int32_t tick = msgl__nfa_node(x);
    msgl__nfa_class(x, x->b->ranges + e->at, e->n, from, tick);
    msgl__nfa_go(x, tick, MSGL_EPS_TICK, to, x->region);
}

void msgl__nfa_emit(msgl_nfa_builder *x, int32_t id, int32_t from, int32_t to)
{
    if (x->b->rc != 0) return;
    const msgl_gx e = x->b->ex[id];
    switch (e.kind) {
    case MSGL_GX_LIT: msgl__nfa_bytes(x, x->b->text + e.at, e.n, from, to); break;
    case MSGL_GX_CLASS: emit_class(x, &e, from, to); break;
    case MSGL_GX_SEQ:
        for (int32_t i = 0; i < e.n && x->b->rc == 0; i++) {
            const int32_t next = i + 1 == e.n ? to : msgl__nfa_node(x);
            msgl__nfa_emit(x, x->b->kids[e.at + i], from, next);
            from = next;
        }
        break;
    case MSGL_GX_ALT: emit_alt(x, id, from, to); break;
    case MSGL_GX_REP: emit_rep(x, id, from, to); break;
    case MSGL_GX_REF: {
        const int32_t inner = x->b->rules[e.at].expr;
        if (inlined(x, e.at) && (!has_count(x, inner) || (x->region < 0 && !x->ticking))) {
            msgl__nfa_emit(x, inner, from, to);
            break;
        }
        const int32_t rule = rule_number(x, e.at);
        msgl__nfa_go(x, from, MSGL_EPS_CALL, to, rule);
        break;
    }
    case MSGL_GX_LEN: emit_len(x, id, from, to); break;
    case MSGL_GX_ONE: emit_one(x, e.at, from, to); break;
    case MSGL_GX_EXCEPT: msgl__nfa_except(x, &e, from, to); break;
    default: break;
    }
}

static void emit_rules(msgl_nfa_builder *x, int32_t root)
{
    rule_number(x, root);
    for (int32_t r = 0; r < x->num_rules && x->b->rc == 0; r++) {
        const int32_t what = x->queue[r];
        const int32_t expr = what >= 0 ? x->b->rules[what].expr : -2 - what;
        if (expr < 0) {
            msgl__gx_fail(x->b, MSGL_EFORMAT, "grammar: rule %s is used, but not defined",
                          msgl__gx_rule_name(x->b, what));
            return;
        }
        const int32_t end = msgl__nfa_node(x);
        msgl__nfa_emit(x, expr, x->starts[r], end);
        msgl__nfa_go(x, end, MSGL_EPS_END, 0, 0);
    }
}

// From linked lists to arrays.
static void pack(msgl_nfa_builder *x, msgl_nfa *out)
{
    const size_t n = (size_t)x->num_nodes;
    // As much again for a moment, and what nfa_check.c takes.
    const size_t packed =
        n * (sizeof *out->nodes + 32) + ((size_t)x->num_edges + (size_t)x->num_eps) * 32;
    if (msgl__gx_spend(x->b, n, packed) != 0) return;
    out->nodes = msgl__calloc(n, sizeof *out->nodes);
    out->edges = msgl__reallocarray(NULL, (size_t)x->num_edges + 1, sizeof *out->edges);
    out->eps = msgl__reallocarray(NULL, (size_t)x->num_eps + 1, sizeof *out->eps);
    if (out->nodes == NULL || out->edges == NULL || out->eps == NULL) {
        msgl__gx_fail(x->b, MSGL_ENOMEM, "out of memory for a grammar");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        msgl_nfa_node *to = &out->nodes[i];
        *to = (msgl_nfa_node){.edges = out->num_edges,
                              .eps = out->num_eps,
                              .region = x->nodes[i].region,
                              .plain = x->nodes[i].plain};
        for (int32_t k = x->nodes[i].edge; k >= 0; k = x->edges[k].next) {
            out->edges[out->num_edges++] = (msgl_nfa_edge){x->edges[k].set, x->edges[k].to};
        }
        for (int32_t k = x->nodes[i].eps; k >= 0; k = x->eps[k].next) {
            const msgl_link_eps e = x->eps[k];
            out->eps[out->num_eps++] = (msgl_nfa_eps){e.kind, e.to, e.arg};
        }
        to->num_edges = out->num_edges - to->edges;
        to->num_eps = out->num_eps - to->eps;
    }
    out->num_nodes = x->num_nodes;
    out->regions = x->regions;
    out->num_regions = x->num_regions;
    out->sets = x->sets;
    out->num_sets = x->num_sets;
    out->starts = x->starts;
    out->num_rules = x->num_rules;
    x->regions = NULL;
    x->sets = NULL;
    x->starts = NULL;
    out->bytes =
        n * sizeof *out->nodes + (size_t)x->num_edges * sizeof *out->edges +
        (size_t)x->num_eps * sizeof *out->eps + (size_t)x->cap_regions * sizeof *out->regions +
        (size_t)x->cap_sets * sizeof *out->sets + (size_t)x->cap_starts * sizeof *out->starts;
}

// Bytes that are in the same sets get the same class.
static void classify(msgl_nfa *a)
{
    int n = 1;
    memset(a->class_of, 0, sizeof a->class_of);
    for (int32_t s = 0; s < a->num_sets && n < 256; s++) {
        int16_t split[256];
        uint16_t size[256] = {0}, inside[256] = {0};
        for (int c = 0; c < 256; c++) {
            size[a->class_of[c]]++;
            inside[a->class_of[c]] += msgl__byte_set_has(&a->sets[s], (uint8_t)c);
        }
        const int before = n;
        for (int k = 0; k < before; k++) {
            split[k] = -1;
            if (inside[k] > 0 && inside[k] < size[k]) split[k] = (int16_t)n++;
        }
        for (int c = 0; c < 256; c++) {
            const int k = a->class_of[c];
            if (split[k] >= 0 && msgl__byte_set_has(&a->sets[s], (uint8_t)c)) {
                a->class_of[c] = (uint8_t)split[k];
            }
        }
    }
    a->num_classes = n;
    for (int c = 255; c >= 0; c--) a->byte_of[a->class_of[c]] = (uint8_t)c;
}

int msgl__nfa_build(msgl_gx_builder *b, int32_t root, msgl_nfa *out)
{
    *out = (msgl_nfa){0};
    if (b->rc != 0 || root < 0) return -1;
    msgl_nfa_builder x = {.b = b, .region = -1};
    x.set_hash = msgl__reallocarray(NULL, SET_HASH, sizeof *x.set_hash);
    x.rule_of = msgl__reallocarray(NULL, (size_t)b->num_rules, sizeof *x.rule_of);
    if (x.set_hash == NULL || x.rule_of == NULL) {
        msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    } else {
        memset(x.set_hash, -1, SET_HASH * sizeof *x.set_hash);
        memset(x.rule_of, -1, (size_t)b->num_rules * sizeof *x.rule_of);
        emit_rules(&x, root);
    }
    if (b->rc == 0) pack(&x, out);
    if (b->rc == 0) msgl__nfa_lengths(b, out);
    if (b->rc == 0) classify(out);
    if (b->rc == 0) msgl__nfa_check(b, out, x.queue);
    msgl__free(x.nodes);
    msgl__free(x.edges);
    msgl__free(x.eps);
    msgl__free(x.regions);
    msgl__free(x.sets);
    msgl__free(x.set_hash);
    msgl__free(x.set_next);
    msgl__free(x.rule_of);
    msgl__free(x.queue);
    msgl__free(x.starts);
    return b->rc == 0 ? 0 : -1;
}

void msgl__nfa_free(msgl_nfa *a)
{
    msgl__free(a->nodes);
    msgl__free(a->edges);
    msgl__free(a->eps);
    msgl__free(a->regions);
    msgl__free(a->sets);
    msgl__free(a->alive);
    msgl__free(a->starts);
    *a = (msgl_nfa){0};
}
