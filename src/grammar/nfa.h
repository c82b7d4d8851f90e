// SPDX-License-Identifier: Apache-2.0
//
// The automaton that all grammars end as: nodes with edges over sets of bytes and edges over
// nothing, one sub-automaton per rule. A call of a rule puts the node to return to on a stack; a
// node in a counted region has a count with it (so that x{0,10000} is one copy of x). Immutable
// once built. Every node that is left leads to an end, and no rule calls itself before a byte.
#ifndef MSGL_GRAMMAR_NFA_H
#define MSGL_GRAMMAR_NFA_H

#include <stdint.h>

#include "grammar/expr.h"

typedef enum msgl_eps_kind {
    MSGL_EPS_GO,
    MSGL_EPS_CALL,  // rule `arg`, then `to`
    MSGL_EPS_TAIL,  // rule `arg`, then the caller's caller: nothing stays on the stack
    MSGL_EPS_END,   // of a rule
    MSGL_EPS_ENTER, // region `arg`: only while its count is below max
    MSGL_EPS_TICK,  // the count grows by one, if it is below max
    MSGL_EPS_EXIT,  // only with a count of min or more; it becomes 0
} msgl_eps_kind;

typedef struct msgl_nfa_edge {
    int32_t set, to;
} msgl_nfa_edge;

typedef struct msgl_nfa_eps {
    int32_t kind, to, arg;
} msgl_nfa_eps;

typedef struct msgl_nfa_region {
    int32_t min, max; // max MSGL_GX_INF: none, and the count stays at min
    // Of MSGL_GX_LEN: its nodes [first, end), which begin with the entry; rows of `words` words
    // from msgl_nfa.alive + alive on, a bit per count with which the node leads out. Of a
    // repetition: `end` is the node whose MSGL_EPS_TICK ends a round.
    bool is_len;
    int32_t first, end, words, alive;
} msgl_nfa_region;

// How many plain characters (any but quote, backslash and what is below 0x20) may come at a node
// one after the other, whatever they are.
typedef enum msgl_plain {
    MSGL_PLAIN_NONE,
    MSGL_PLAIN_ONE,     // one, and then something else: not used to skip
    MSGL_PLAIN_ANY,     // any number
    MSGL_PLAIN_COUNTED, // what is left of the region's max
} msgl_plain;

typedef struct msgl_nfa_node {
    int32_t edges, num_edges; // in msgl_nfa.edges
    int32_t eps, num_eps;
    int32_t region; // whose count the node has; -1: none
    uint8_t plain;
} msgl_nfa_node;

typedef struct msgl_byte_set {
    uint32_t w[8];
} msgl_byte_set;

static inline bool msgl__byte_set_has(const msgl_byte_set *s, uint8_t c)
{
    return s->w[c >> 5] >> (c & 31) & 1;
}

#define MSGL_NFA_WIDTH 2048

typedef struct msgl_nfa {
    msgl_nfa_node *nodes;
    int32_t num_nodes;
    msgl_nfa_edge *edges;
    msgl_nfa_eps *eps;
    int32_t num_edges, num_eps;
    msgl_nfa_region *regions;
    int32_t num_regions;
    uint64_t *alive;
    int32_t num_alive;
    msgl_byte_set *sets;
    int32_t num_sets;
    int32_t *starts; // of each rule; rule 0 is the grammar's
    int32_t num_rules;
    uint8_t class_of[256]; // bytes that no set tells apart have one class
    uint8_t byte_of[256];  // one byte of each class
    int32_t num_classes;
    int32_t width; // alternatives that are kept while matching: as many as one place has, or
                   // MSGL_NFA_WIDTH where all have fewer
    size_t bytes;
} msgl_nfa;

// Builds the automaton of rule `root`; rules that it does not reach are left out. The failure is
// the builder's: -1. Free with msgl__nfa_free in either case.
int msgl__nfa_build(msgl_gx_builder *b, int32_t root, msgl_nfa *out);
void msgl__nfa_free(msgl_nfa *a);

// nfa_check.c, the last step of building: cuts what leads to no end, refuses left recursion and a
// grammar without texts, finds tail calls.
int msgl__nfa_check(msgl_gx_builder *b, msgl_nfa *a, const int32_t *rule_ids);

// nfa_len.c, before it: which counts lead out of the regions of MSGL_GX_LEN.
int msgl__nfa_lengths(msgl_gx_builder *b, msgl_nfa *a);

// nfa_width.c, as a part of the check: no place has too many alternatives; sets a->width.
// rule_empty: of each rule.
int msgl__nfa_widths(msgl_gx_builder *b, msgl_nfa *a, const uint8_t *rule_empty);

static inline bool msgl__nfa_alive(const msgl_nfa *a, int32_t node, int32_t count)
{
    const int32_t region = a->nodes[node].region;
    if (region < 0 || !a->regions[region].is_len) return true;
    const msgl_nfa_region *r = &a->regions[region];
    return a->alive[r->alive + (node - r->first) * r->words + count / 64] >> (count % 64) & 1;
}

#endif
