// SPDX-License-Identifier: Apache-2.0
//
// The automaton while it grows: edges as linked lists. Shared by nfa.c and nfa_parts.c.
#ifndef MSGL_GRAMMAR_NFA_BUILD_H
#define MSGL_GRAMMAR_NFA_BUILD_H

#include "grammar/nfa.h"

typedef struct msgl_link_edge {
    int32_t set, to, next;
} msgl_link_edge;

typedef struct msgl_link_eps {
    int32_t kind, to, arg, next;
} msgl_link_eps;

typedef struct msgl_link_node {
    int32_t edge, eps; // first of their lists, -1: none
    int32_t region;
    uint8_t plain;
} msgl_link_node;

typedef struct msgl_nfa_builder {
    msgl_gx_builder *b;
    msgl_link_node *nodes;
    int32_t num_nodes, cap_nodes;
    msgl_link_edge *edges;
    int32_t num_edges, cap_edges;
    msgl_link_eps *eps;
    int32_t num_eps, cap_eps;
    msgl_nfa_region *regions;
    int32_t num_regions, cap_regions;
    msgl_byte_set *sets;
    int32_t num_sets, cap_sets;
    int32_t *set_hash; // [SET_HASH] first set of the chain
    int32_t *set_next;
    int32_t cap_set_next;
    int32_t *rule_of; // [builder's rules] number here, -1: not reached yet
    int32_t *queue;   // number here -> builder's rule, or -2 - expression
    int32_t *starts;
    int32_t num_rules, cap_queue, cap_starts;
    int32_t region;  // that nodes made now belong to, -1
    bool ticking;    // characters tick: inside MSGL_GX_LEN
    int32_t inlined; // rules that alternatives were made of instead of calling them
} msgl_nfa_builder;

int32_t msgl__nfa_node(msgl_nfa_builder *x);
void msgl__nfa_go(msgl_nfa_builder *x, int32_t from, msgl_eps_kind kind, int32_t to, int32_t arg);
void msgl__nfa_byte(msgl_nfa_builder *x, int32_t from, const msgl_byte_set *set, int32_t to);
void msgl__nfa_range(msgl_nfa_builder *x, int32_t from, uint8_t first, uint8_t last, int32_t to);

// nfa.c. Edges from `from` to `to` for every text of the expression. Adds no edge to `to` and none
// back to `from`, so that alternatives may share both. As deep as the expression, which is bounded.
void msgl__nfa_emit(msgl_nfa_builder *x, int32_t id, int32_t from, int32_t to);
// nfa_alt.c: the same of alternatives, where characters do not tick.
void msgl__nfa_alt(msgl_nfa_builder *x, int32_t id, int32_t from, int32_t to);

// nfa_parts.c: the parts of expressions that are about bytes.
void msgl__nfa_class(msgl_nfa_builder *x, const uint32_t *pairs, int32_t n, int32_t from,
                     int32_t to);
void msgl__nfa_bytes(msgl_nfa_builder *x, const char *p, int32_t n, int32_t from, int32_t to);
void msgl__nfa_except(msgl_nfa_builder *x, const msgl_gx *e, int32_t from, int32_t to);
// The characters of a JSON string without its escapes, or only what of it has an escape.
extern const uint32_t msgl__plain_pairs[6];
#define MSGL_PLAIN_PAIRS 3

#endif
