// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_TEXT_DRY_BREAKERS_H
#define MSGL_TEXT_DRY_BREAKERS_H

#include "tokenizer/tokenizer.h"

enum { MSGL_MAX_BREAKERS = 64, MSGL_MAX_BREAKER_BYTES = 40 };

// Appends the tokens, each once, whose text has one of the strings in it: where one of them stands
// in a history, DRY sees no repeat across it. Of a string that is in no token, the last token that
// spells it is taken. texts NULL: llama.cpp's default ones, of which those that no token has are
// left out. MSGL_EINVAL: texts[*at] is empty or too long; MSGL_EFORMAT: it is not UTF-8;
// MSGL_ENOMEM.
int msgl__dry_breakers(const msgl_tokenizer *t, const char *const *texts, int count, msgl_ids *out,
                       int *at, msgl_err *err);

#endif
