// SPDX-License-Identifier: Apache-2.0
//
// The WordPiece model: of a word the longest token that it begins with, then the longest one that
// goes on from there, and so on (Wu et al. 2016; Devlin et al. 2019).
#ifndef MSGL_TOKENIZER_WORDPIECE_H
#define MSGL_TOKENIZER_WORDPIECE_H

#include "tokenizer/internal.h"

// What is worked out of t->bpe.vocab once: tokens that begin with prefix go on a word, without it.
// MSGL_ENOMEM.
int msgl__wordpiece_build(msgl_tokenizer *t, const msgl_tok_str *prefix, msgl_err *err);
void msgl__wordpiece_free(msgl_wordpiece *w);
// Appends the ids of one word to *out; one that no tokens make up is the unknown token. As
// msgl__bpe_encode.
int msgl__wordpiece_encode(const msgl_tokenizer *t, msgl_tok_ws *ws, const char *p, size_t n,
                           msgl_ids *out);

#endif
