// SPDX-License-Identifier: Apache-2.0
//
// The automaton at work: a state is a set of configurations (node, count, stack) closed over edges
// without bytes; stacks are chains of frames. Frames and states are made when first met, kept once
// each and numbered, and what a byte does to a state is remembered, so that going on is one look-up
// where the way is known and a state is copied by copying its number. The tables belong to one
// matcher.
#ifndef MSGL_GRAMMAR_PDA_H
#define MSGL_GRAMMAR_PDA_H

#include "grammar/nfa.h"

#define MSGL_FRAME_UNKNOWN 0 // the stack below is not looked at: popping it gives MSGL_NODE_OUT
#define MSGL_FRAME_ROOT 1    // popping it gives MSGL_NODE_DONE
#define MSGL_NODE_OUT (-1)
#define MSGL_NODE_DONE (-2)
#define MSGL_STATE_DEAD 0 // of no configuration: the text is not in the grammar
#define MSGL_STATE_NEW (-1)

typedef struct msgl_config {
    int32_t node, count, frame;
} msgl_config;

typedef struct msgl_frame {
    int32_t node, count, parent; // where to go on
    bool over_unknown;           // its chain ends in MSGL_FRAME_UNKNOWN
    int32_t depth, popped;       // state after popping it, MSGL_STATE_NEW: not known yet
} msgl_frame;

typedef struct msgl_pda_state {
    int32_t at, n; // configurations, sorted by frame, node, count
    uint64_t hash;
} msgl_pda_state;

typedef struct msgl_hash_set {
    int32_t *slot; // number + 1, 0: free
    uint32_t mask;
    int32_t n;
} msgl_hash_set;

typedef struct msgl_pda {
    const msgl_nfa *a;
    const msgl_grammar_limits *limits;
    msgl_frame *frames;
    int32_t num_frames, cap_frames;
    msgl_pda_state *states;
    int32_t num_states, cap_states;
    msgl_config *configs;
    int32_t num_configs, cap_configs;
    int32_t *rows; // [state][class] -> state
    int32_t cap_rows;
    msgl_hash_set frame_set, state_set;
    // the closure being computed
    msgl_config *work;
    int32_t num_work, cap_work;
    uint8_t *entered; // of work[i]: it went into a counted body without a byte
    int32_t cap_entered;
    msgl_hash_set seen;
    int32_t unknown_depth; // of the deepest frame over MSGL_FRAME_UNKNOWN so far
    int64_t effort;        // configurations that may still be closed before the next msgl__pda_rest
    bool pruned;           // at some time there were more alternatives than are kept
    int rc;                // MSGL_ELIMIT, MSGL_ENOMEM: the state asked for is not known
} msgl_pda;

int msgl__pda_init(msgl_pda *p, const msgl_nfa *a, const msgl_grammar_limits *l);
// Before each call from outside: what one of them may cost begins anew.
#define MSGL_PDA_EFFORT (1 << 20)
static inline void msgl__pda_rest(msgl_pda *p)
{
    p->effort = MSGL_PDA_EFFORT;
}
void msgl__pda_free(msgl_pda *p);
size_t msgl__pda_bytes(const msgl_pda *p);
int32_t msgl__pda_start(msgl_pda *p); // the state before the first byte
// The state of configurations, which are closed over edges without bytes first.
int32_t msgl__pda_state(msgl_pda *p, const msgl_config *c, int32_t n);
int32_t msgl__pda_step_new(msgl_pda *p, int32_t state, uint8_t class);
static inline int32_t msgl__pda_step(msgl_pda *p, int32_t state, uint8_t byte)
{
    const uint8_t k = p->a->class_of[byte];
    const int32_t to = p->rows[(int64_t)state * p->a->num_classes + k];
    return to != MSGL_STATE_NEW ? to : msgl__pda_step_new(p, state, k);
}
int32_t msgl__pda_pop(msgl_pda *p, int32_t frame); // the state after popping it
static inline bool msgl__pda_has(const msgl_pda *p, int32_t state, int32_t node)
{
    const msgl_pda_state *s = &p->states[state]; // OUT and DONE sort first: their frames are lowest
    for (int32_t i = 0; i < s->n && p->configs[s->at + i].frame <= MSGL_FRAME_ROOT; i++) {
        if (p->configs[s->at + i].node == node) return true;
    }
    return false;
}
// Plain characters that may come next in a state, as far as one configuration says: INT32_MAX for
// any number of them.
int32_t msgl__pda_plain(const msgl_pda *p, int32_t state);
// Forgets everything but roots[0, n), which get new numbers.
int msgl__pda_compact(msgl_pda *p, int32_t *roots, int32_t n);

#endif
