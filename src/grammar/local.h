// SPDX-License-Identifier: Apache-2.0
//
// Which tokens a set of configurations with the same stack allows, as far as that can be said
// without looking at the stack: the tokens that end before the stack is popped, and for those that
// pop it the bytes that are then left, as a tree of their own. What a string, a number or white
// space allows is thereby worked out once per grammar, wherever it stands; at a token what remains
// is the small tree, walked with the real stack. Immutable, counted, shared by a grammar's
// matchers.
#ifndef MSGL_GRAMMAR_LOCAL_H
#define MSGL_GRAMMAR_LOCAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "grammar/pda.h"
#include "grammar/vocab.h"

// A node and count of the key: counts that no short token can tell apart are one.
typedef struct msgl_local_key {
    int32_t node, count;
} msgl_local_key;

typedef struct msgl_local {
    atomic_int refs;
    uint64_t hash;
    int32_t num_key;
    msgl_local_key *key;
    bool no_long;   // the long tokens are not in it: counts were made one
    bool too_large; // nothing is in it: too many tokens pop the stack in too many places
    int32_t depth;  // of the stack that its tokens build at most
    uint32_t *bits; // [ceil(vocab / 32)], or NULL: list instead
    int32_t *list;
    int32_t num_list;
    msgl_trie rest; // what is left of tokens that popped the stack
    size_t bytes;
    struct msgl_local *next; // in the cache
} msgl_local;

typedef struct msgl_local_cache {
    pthread_mutex_t lock;
    bool has_lock;
    msgl_grammar_vocab *vocab; // that its masks are of: the first matcher's; a reference
    msgl_local **slot;         // [MSGL_LOCAL_SLOTS] chains
    size_t bytes, max_bytes;
} msgl_local_cache;
#define MSGL_LOCAL_SLOTS 256

int msgl__local_cache_init(msgl_local_cache *c, size_t max_bytes);
void msgl__local_cache_free(msgl_local_cache *c);
// The counts that stand for those of s's configurations [at, at + n), sorted; whether any changed.
bool msgl__local_make_key(const msgl_pda *p, const msgl_config *c, int32_t n, msgl_local_key *key);
uint64_t msgl__local_hash(const msgl_local_key *key, int32_t n);
// A reference to what the cache or else a walk has for the key; NULL: *rc says why. p is used for
// the walk.
msgl_local *msgl__local_get(msgl_local_cache *c, msgl_grammar_vocab *v, msgl_pda *p,
                            const msgl_local_key *key, int32_t n, bool clamped, int *rc);
void msgl__local_unref(msgl_local *l); // NULL allowed

// Sets the bits of the tokens below `state` in a tree. states: room for MSGL_GRAMMAR_MAX_TOKEN + 1.
// MSGL_ELIMIT, MSGL_ENOMEM: the automaton's.
int msgl__trie_walk(const msgl_trie *t, msgl_pda *p, int32_t state, int32_t *states,
                    uint32_t *bits);

#endif
