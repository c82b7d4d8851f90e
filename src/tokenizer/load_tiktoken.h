// SPDX-License-Identifier: Apache-2.0
//
// A tokenizer from tiktoken.model, which folders of Kimi models have in place of tokenizer.json:
// the tokens' bytes with their ranks. What goes with it is in tokenizer_config.json and, in such
// folders, in Python code that is not run: the pattern and the special tokens' places are here.
#ifndef MSGL_TOKENIZER_LOAD_TIKTOKEN_H
#define MSGL_TOKENIZER_LOAD_TIKTOKEN_H

#include "tokenizer/tokenizer.h"

// Where such a tokenizer cuts texts; also in GGUF files.
extern const char msgl__kimi_pattern[];

// From the texts of tiktoken.model and tokenizer_config.json (NULL: there is none, an error).
// MSGL_EFORMAT, MSGL_EUNSUPPORTED (another tokenizer_class), MSGL_ELIMIT, MSGL_ENOMEM; all name the
// file. *out is NULL after a failure.
int msgl__tokenizer_from_tiktoken(const char *ranks, size_t len, const char *config,
                                  size_t config_len, msgl_tokenizer **out, msgl_err *err);

#endif
