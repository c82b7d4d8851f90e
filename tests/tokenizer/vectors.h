// SPDX-License-Identifier: Apache-2.0
//
// Access to tests/vectors/tokenizer (tools/make_tokenizer_vectors.py): small tokenizers of every
// pipeline, and what the `tokenizers` library makes of nasty texts with them; of one that is in
// tiktoken's file, what `tiktoken` does (tools/make_tiktoken_vectors.py).
#ifndef MSGL_TESTS_TOKENIZER_VECTORS_H
#define MSGL_TESTS_TOKENIZER_VECTORS_H

#include <jansson.h>

#include "tokenizer/tokenizer.h"

extern const char *const vector_names[];
enum { NUM_VECTORS = 17 };

msgl_tokenizer *vector_tokenizer(const char *name); // fails the test on error
json_t *vector_cases(const char *name);             // {"encode": [...], "decode": [...]}
// Ids of a JSON array, appended to *out.
void vector_ids(const json_t *array, msgl_ids *out);

#endif
