// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_TESTS_FUZZ_ROUND_TRIP_H
#define MSGL_TESTS_FUZZ_ROUND_TRIP_H

#include <stddef.h>

#include "tokenizer/tokenizer.h"

// Encodes, decodes in both ways, and compares them: what the fuzz targets of texts and of
// tokenizers' files end in.
void round_trip(const msgl_tokenizer *t, const char *text, size_t n, const msgl_encode_opts *opts);

#endif
