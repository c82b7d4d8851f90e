// SPDX-License-Identifier: Apache-2.0
//
// The Unigram model: of all ways to cut a text into tokens the one with the largest sum of scores
// (Kudo 2018, section 3.2), by the Viterbi algorithm.
#ifndef MSGL_TOKENIZER_UNIGRAM_H
#define MSGL_TOKENIZER_UNIGRAM_H

#include "tokenizer/internal.h"

enum { MSGL_UNIGRAM_MAX_PIECE = 512 }; // bytes; of published models they have some dozens

// What is worked out of t->bpe.vocab and t->unigram.scores once. MSGL_ENOMEM, or MSGL_ELIMIT: a
// token is too long.
int msgl__unigram_build(msgl_tokenizer *t, msgl_err *err);
void msgl__unigram_free(msgl_unigram *u);
// Appends the ids of one piece to *out. A character that is no token has a score below all others,
// and a run of such ones becomes the tokens of its bytes, or the unknown one. As msgl__bpe_encode.
int msgl__unigram_encode(const msgl_tokenizer *t, msgl_tok_ws *ws, const char *p, size_t n,
                         msgl_ids *out);

#endif
