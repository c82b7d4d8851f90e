// SPDX-License-Identifier: Apache-2.0
//
// tokenizer.ggml.pre: the names by which llama.cpp knows a byte-level pipeline, and what it is.
#ifndef MSGL_TOKENIZER_GGUF_PRE_H
#define MSGL_TOKENIZER_GGUF_PRE_H

#include "tokenizer/scan.h"

enum { MSGL_GGUF_MAX_PATTERNS = 6 };

typedef struct msgl_gguf_pre {
    const char *name;
    enum msgl_scan scan; // instead of patterns
    // One after the other, each on the pieces of the one before it; none: ByteLevel's own.
    const char *patterns[MSGL_GGUF_MAX_PATTERNS];
    int nfc, digits; // normalizer; each digit a piece
    int ignore_merges, add_bos;
} msgl_gguf_pre;

const msgl_gguf_pre *msgl__gguf_pre_find(const char *name); // NULL: unknown
const msgl_gguf_pre *msgl__gguf_pre_at(int i);              // NULL: no more

#endif
