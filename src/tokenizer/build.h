// SPDX-License-Identifier: Apache-2.0
//
// The BPE model from its parts, whatever file they are read from: first all tokens, then the
// merges, then what is worked out from them once.
#ifndef MSGL_TOKENIZER_BUILD_H
#define MSGL_TOKENIZER_BUILD_H

#include "tokenizer/internal.h"

// What the file calls the two lists, for messages.
typedef struct msgl_model_names {
    const char *vocab, *merges;
} msgl_model_names;

// Room for `count` tokens of `bytes` bytes in all with ids below num_ids. Each of these functions
// returns 0, or an error that names the list.
int msgl__model_vocab(msgl_bpe *bpe, size_t num_ids, size_t count, size_t bytes, msgl_err *err);
// Adds a token; p[0, n) is UTF-8, its id new.
int msgl__model_token(msgl_bpe *bpe, const msgl_model_names *names, const char *p, size_t n,
                      int32_t id, msgl_err *err);
// Room for n merges.
int msgl__model_merges(msgl_bpe *bpe, const msgl_model_names *names, size_t n, msgl_err *err);
// Adds merge i: of both[0, split) with the rest of it.
int msgl__model_merge(msgl_bpe *bpe, const msgl_model_names *names, const msgl_strbuf *both,
                      size_t split, size_t i, msgl_err *err);
// The same of tokens whose ids are known.
void msgl__model_pair(msgl_bpe *bpe, const msgl_tok_str *left, const msgl_tok_str *right,
                      int32_t left_id, int32_t right_id, uint32_t rank, int32_t id);
// "left right" to "leftright" and where it was split. 1; 0: there is not just one space inside.
int msgl__merge_split(msgl_strbuf *both, size_t *split);
// Needs the pre-tokenizer, and the flags of t->bpe. unk->p NULL: there is no unknown token.
int msgl__model_finish(msgl_tokenizer *t, const msgl_tok_str *unk, msgl_err *err);

#endif
