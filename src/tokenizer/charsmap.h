// SPDX-License-Identifier: Apache-2.0
//
// SentencePiece's compiled normalisation (`Precompiled`): what strings of characters are replaced
// by. The file has a trie as a double array (Aoe 1989; Darts-clone's 32-bit units) over the
// strings, whose values are places in a text of replacements, each with a NUL behind it.
#ifndef MSGL_TOKENIZER_CHARSMAP_H
#define MSGL_TOKENIZER_CHARSMAP_H

#include "tokenizer/workspace.h"

// From the base64 text of precompiled_charsmap; `where` names its object. On success *out is owned
// by the caller (msgl__charsmap_free).
int msgl__charsmap_load(const char *base64, size_t n, const char *where, msgl_charsmap **out,
                        msgl_err *err);
void msgl__charsmap_free(msgl_charsmap *m);
// As every normalizer (normalize.c).
int msgl__norm_charsmap(msgl_tok_ws *ws, const msgl_charsmap *m, const msgl_text *in,
                        msgl_tok_buf *out);

#endif
