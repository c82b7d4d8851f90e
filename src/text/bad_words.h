// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_TEXT_BAD_WORDS_H
#define MSGL_TEXT_BAD_WORDS_H

#include "tokenizer/tokenizer.h"

enum { MSGL_MAX_BAD_WORDS = 256, MSGL_MAX_BAD_WORD_BYTES = 256 };

// Appends the token sequences that `word` is spelled by, at the beginning of a text and behind a
// space, each with its length before it (core/req_extra.h, `banned`). As vLLM has it: the second
// only if it differs in its first token and is as long. MSGL_EINVAL: the word has no tokens.
int msgl__bad_word_add(const msgl_tokenizer *t, const char *word, size_t len, msgl_ids *out,
                       msgl_err *err);

#endif
