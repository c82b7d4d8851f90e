// SPDX-License-Identifier: Apache-2.0
//
// The vocabulary as a tree of bytes in the order of a depth-first walk, so that what hangs below a
// node is a range, of nodes and of tokens: a walk skips what is refused, and takes at once what is
// allowed as a whole.
#ifndef MSGL_GRAMMAR_VOCAB_H
#define MSGL_GRAMMAR_VOCAB_H

#include <stdatomic.h>

#include "grammar/grammar.h"

// Tokens of more characters are in a tree of their own: what a count allows is worked out for those
// of the first tree and does not depend on the count where more than that is left.
#define MSGL_VOCAB_SHORT 32
#define MSGL_VOCAB_TREES 3
#define MSGL_VOCAB_PLAIN(i) (MSGL_VOCAB_SHORT >> (i)) // 32, 16, 8
#define MSGL_TRIE_NOT_PLAIN 255

typedef struct msgl_trie {
    int32_t num_nodes;  // node 0 is the root
    uint8_t *byte;      // that leads to node i
    uint16_t *depth;    // bytes from the root
    int32_t *size;      // nodes below it and itself: i + size[i] is the next one beside it
    int32_t *first;     // [num_nodes + 1] tokens that end at it: tokens[first[i] .. first[i + 1])
    uint8_t *plain;     // most plain characters on a way down from it; MSGL_TRIE_NOT_PLAIN: other
                        // bytes are on one, or more characters than that
    uint8_t *from_root; // 1: the way from the root is plain characters, the last one whole
    int32_t *tokens;    // ids
} msgl_trie;

struct msgl_grammar_vocab {
    atomic_int refs;
    int32_t size, num_eos, max_depth;
    int32_t *eos;
    int32_t *at; // [size + 1] bytes of token t: text[at[t] .. at[t + 1]); none for what is left out
    char *text;
    // [0] short tokens, [1] long ones. [2 + i]: of the short ones those that a string which takes
    // MSGL_VOCAB_PLAIN(i) plain characters more does not take anyway.
    msgl_trie trie[2 + MSGL_VOCAB_TREES];
    uint32_t *plain; // [n] for n up to MSGL_VOCAB_SHORT: bits of tokens of up to n plain characters
    // Tokens without bytes that are shown as a text, ids ascending: shown[i] is shown_text from
    // shown_at[i] to shown_at[i + 1].
    int32_t num_shown;
    int32_t *shown, *shown_at;
    char *shown_text;
    size_t bytes;
};

static inline void msgl__bit_set(uint32_t *bits, int32_t i)
{
    bits[i >> 5] |= 1u << (i & 31);
}

static inline bool msgl__bit_get(const uint32_t *bits, int32_t i)
{
    return bits[i >> 5] >> (i & 31) & 1;
}

#endif
