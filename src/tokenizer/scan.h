// SPDX-License-Identifier: Apache-2.0
//
// Hand-written scanners for the pre-tokenizer patterns of the public byte-level models: the same
// pieces as the regular expression, several times faster. A test holds each against PCRE2.
#ifndef MSGL_TOKENIZER_SCAN_H
#define MSGL_TOKENIZER_SCAN_H

#include <stddef.h>

#include "tokenizer/unicode.h"

enum msgl_scan {
    MSGL_SCAN_NONE,
    MSGL_SCAN_GPT2,
    MSGL_SCAN_QWEN2,  // also Qwen2.5 and Qwen3: single digits
    MSGL_SCAN_LLAMA3, // the cl100k family: up to three digits
};

// The pattern of a scanner, as it stands in tokenizer.json.
const char *msgl__scan_pattern(enum msgl_scan scan);
// Which scanner pattern[0, len) is, MSGL_SCAN_NONE for an unknown one.
enum msgl_scan msgl__scan_known(const char *pattern, size_t len);
// End of the match that starts at text[pos], pos < len. Every character belongs to a match.
size_t msgl__scan_next(enum msgl_scan scan, const msgl_unicode *u, const char *text, size_t len,
                       size_t pos);

#endif
