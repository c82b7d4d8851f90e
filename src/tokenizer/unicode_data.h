// SPDX-License-Identifier: Apache-2.0
//
// The generated tables behind unicode.c (tools/make_unicode_tables.py): facts of the Unicode
// versions that `tokenizers` is built with, stored as ranges.
#ifndef MSGL_TOKENIZER_UNICODE_DATA_H
#define MSGL_TOKENIZER_UNICODE_DATA_H

#include <stddef.h>
#include <stdint.h>

typedef struct msgl_uni_range {
    uint32_t first, last; // both included
} msgl_uni_range;

typedef struct msgl_uni_lower {
    uint32_t first, last;
    int32_t delta;
} msgl_uni_lower;

typedef struct msgl_uni_script {
    const char *name;
    uint32_t first, count; // of msgl__uni_script_ranges
} msgl_uni_script;

// General category by runs: start << 8 | category (enum msgl_gc), or | MSGL_GC_ALTERNATING for
// Lu, Ll, Lu, Ll ...; a run ends where the next starts.
extern const uint32_t msgl__uni_gc_runs[];
extern const size_t msgl__uni_num_gc_runs;
// Where the Punctuation pre-tokenizer's answer is not "category P, or ASCII punctuation".
extern const msgl_uni_range msgl__uni_punct_flips[];
extern const size_t msgl__uni_num_punct_flips;
// Characters newer than the normalizer's Unicode version: it neither decomposes nor reorders them.
extern const msgl_uni_range msgl__uni_inert[];
extern const size_t msgl__uni_num_inert;
// Characters that canonical composition can join to a preceding one.
extern const msgl_uni_range msgl__uni_seconds[];
extern const size_t msgl__uni_num_seconds;
// The scripts that patterns may name.
extern const msgl_uni_range msgl__uni_script_ranges[];
extern const msgl_uni_script msgl__uni_scripts[];
extern const size_t msgl__uni_num_scripts;
// Lower-case mappings that Unicode 14 does not have.
extern const msgl_uni_lower msgl__uni_lower[];
extern const size_t msgl__uni_num_lower;

#endif
