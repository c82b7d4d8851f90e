// SPDX-License-Identifier: Apache-2.0
//
// The tokenizer in the metadata of a GGUF file. It becomes what the tokenizer.json of the same
// model becomes: a file says which pipeline its family has by name only ("pre"), so these are
// written out here; added tokens have lost their flags lstrip, rstrip and single_word.
#ifndef MSGL_TOKENIZER_LOAD_GGUF_H
#define MSGL_TOKENIZER_LOAD_GGUF_H

#include "tokenizer/internal.h"
#include "utils/gguf.h"

// MSGL_EFORMAT, MSGL_EUNSUPPORTED (names the model or pre-tokenizer and those known), MSGL_ELIMIT,
// MSGL_ENOMEM; all name the file and the key. *out is NULL after a failure.
int msgl__tokenizer_from_gguf(const msgl_gguf *g, msgl_tokenizer **out, msgl_err *err);

// score_merges.c: the merges of a SentencePiece model: each way to cut a piece into two others,
// pieces of higher score first. scores [ids of the vocabulary]; NAN: the token is not to be merged,
// nor made by merging. by_piece: all cuts of a piece have one rank, so that the leftmost is taken;
// scores have to differ then. `name` of the list of tokens, for messages.
int msgl__score_merges(msgl_bpe *bpe, const float *scores, bool by_piece, const char *name,
                       msgl_err *err);

#endif
