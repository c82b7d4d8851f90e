// SPDX-License-Identifier: Apache-2.0
//
// The first byte chooses the reader, the rest is its text. Whatever it says, there is a grammar or
// one line; along an answer that takes the lowest and highest allowed tokens in turn, each mask has
// what the matcher then accepts, and some token wherever the vocabulary (all bytes) can go on.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SIZE = 300, STEPS = 40, EOS = 256 };

static msgl_grammar_vocab *vocab(void)
{
    static const char *const WORDS[] = {"\"",   "{\"", "\":", "\",", "}}",
                                        "true", "ab",  "é",   "  ",  "\n  "};
    static msgl_grammar_vocab *v;
    if (v != NULL) return v;
    static char bytes[256];
    msgl_grammar_token t[SIZE] = {{0}};
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (msgl_grammar_token){bytes + i, 1};
    }
    for (int i = 257; i < SIZE; i++) {
        const char *w = WORDS[i % 10];
        t[i] = (msgl_grammar_token){w, strlen(w)};
    }
    const int32_t eos = EOS;
    if (msgl__grammar_vocab_create(t, SIZE, &eos, 1, &v, NULL) != 0) __builtin_trap();
    return v;
}

static void answer(msgl_grammar *g)
{
    uint32_t bits[(SIZE + 31) / 32];
    msgl_matcher *m = msgl__matcher_create(g, vocab());
    for (int step = 0; m != NULL && step < STEPS; step++) {
        const int rc = msgl__matcher_fill_mask(m, bits);
        if (rc == MSGL_ELIMIT) break;
        if (rc != 0) __builtin_trap();
        int pick = -1;
        for (int t = 0; t < SIZE; t++) {
            if ((bits[t >> 5] >> (t & 31) & 1) == 0) continue;
            if (pick < 0 || step % 2 == 1) pick = t;
        }
        if (pick < 0) __builtin_trap();
        const int taken = msgl__matcher_accept(m, pick);
        if (taken == MSGL_ELIMIT) break;
        if (taken != 0) __builtin_trap();
    }
    msgl__matcher_destroy(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int (*const READERS[])(const char *, size_t, const msgl_grammar_limits *,
                                  msgl_grammar **, msgl_err *) = {
        msgl__grammar_json_schema, msgl__grammar_regex, msgl__grammar_gbnf, msgl__grammar_lark};
    if (size == 0) return 0;
    // Printable seeds begin with a letter that says which: j, r, g, l; anything else by its number.
    static const char LETTERS[] = "jrgl";
    const char *known = data[0] != '\0' ? strchr(LETTERS, data[0]) : NULL;
    const int which = known != NULL ? (int)(known - LETTERS) : data[0] % 4;
    msgl_grammar_limits limits;
    msgl__grammar_limits_init(&limits);
    limits.compile_bytes = (size_t)8 << 20;
    limits.nodes = 50000;
    limits.lenient = size % 2 != 0;
    msgl_grammar *g = NULL;
    msgl_err err = {0};
    const int rc = READERS[which]((const char *)data + 1, size - 1, &limits, &g, &err);
    if (rc != 0 && (rc != err.code || strlen(err.text) == 0 || g != NULL)) __builtin_trap();
    if (rc == 0) answer(g);
    msgl__grammar_unref(g);
    return 0;
}
