// SPDX-License-Identifier: Apache-2.0
#include "grammar/fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/vocab.h"
#include "utils/random.h"

static const char *const PIECES[] = {
    "\"",    "\",",  "\":",      "\": ",     "{\"",      "{",
    "}",     "}\n",  "[",        "]",        "],",       ",",
    ", ",    " ",    "  ",       "\n",       "\n  ",     "a",
    "b",     "ab",   "the",      "name",     "é",        "\xc3",
    "\xa9",  "日本", "\xe6\x97", "\xe0\x80", "\xed\xa0", "\xf4\x90",
    "1",     "12",   "0",        "-",        ".5",       "e",
    "E+",    "true", "false",    "null",     "\\",       "\\n",
    "\\u00", "\\\"", "/",        "x",        "_",        "y\"",
    "cat",   "dog",  "2024",     "-01",      ":",        "@",
    "id",    "z",    "A",        "Z",        "\t",       "                    ",
};

msgl_grammar_vocab *fixture_vocab(int32_t more, uint64_t seed)
{
    const int32_t size = 257 + more;
    msgl_grammar_token *tokens = msgl__calloc((size_t)size, sizeof *tokens);
    char *text = msgl__malloc((size_t)size * 128);
    assert_non_null(tokens);
    assert_non_null(text);
    size_t at = 0;
    for (int32_t i = 1; i < size; i++) {
        const size_t start = at;
        if (i <= 256) {
            text[at++] = (char)(i - 1);
        } else {
            const uint64_t parts = 1 + msgl__random_below(&seed, i % 50 == 0 ? 8 : 3);
            for (uint64_t k = 0; k < parts; k++) {
                const char *p = PIECES[msgl__random_below(&seed, MSGL_COUNT(PIECES))];
                if (at - start + strlen(p) > 100) break;
                memcpy(text + at, p, strlen(p));
                at += strlen(p);
            }
        }
        tokens[i] = (msgl_grammar_token){text + start, at - start};
    }
    const int32_t eos = FIXTURE_EOS;
    msgl_grammar_vocab *v = NULL;
    msgl_err err;
    assert_int_equal(msgl__grammar_vocab_create(tokens, size, &eos, 1, &v, &err), 0);
    msgl__free(tokens);
    msgl__free(text);
    return v;
}

int32_t fixture_check_mask(msgl_matcher *m, const msgl_grammar_vocab *v)
{
    const int32_t size = msgl__grammar_vocab_size(v);
    uint32_t *bits = msgl__calloc(((size_t)size + 31) / 32, sizeof *bits);
    int32_t n = 0;
    assert_int_equal(msgl__matcher_fill_mask(m, bits), 0);
    for (int32_t t = 0; t < size; t++) {
        const int rc = msgl__matcher_accept(m, t);
        if (rc == 0) assert_int_equal(msgl__matcher_rollback(m, 1), 0);
        if ((rc == 0) != msgl__bit_get(bits, t)) {
            fail_msg("token %d '%.*s': mask %d, brute force %d", t, v->at[t + 1] - v->at[t],
                     v->text + v->at[t], msgl__bit_get(bits, t), rc);
        }
        n += rc == 0;
    }
    msgl__free(bits);
    return n;
}

int fixture_random_way(msgl_matcher *m, const msgl_grammar_vocab *v, int tokens, uint64_t *rng)
{
    const int32_t size = msgl__grammar_vocab_size(v);
    uint32_t *bits = msgl__calloc(((size_t)size + 31) / 32, sizeof *bits);
    int done = 0;
    for (; done < tokens && !msgl__matcher_is_finished(m); done++) {
        const int32_t n = fixture_check_mask(m, v);
        assert_true(n > 0);
        assert_int_equal(msgl__matcher_fill_mask(m, bits), 0);
        int32_t pick = (int32_t)msgl__random_below(rng, (uint64_t)n), t = 0;
        for (;; t++) {
            if (msgl__bit_get(bits, t) && pick-- == 0) break;
        }
        assert_int_equal(msgl__matcher_accept(m, t), 0);
    }
    msgl__free(bits);
    return done;
}

bool fixture_accepts(msgl_grammar *g, msgl_grammar_vocab *v, const char *text, size_t n)
{
    msgl_matcher *m = msgl__matcher_create(g, v);
    assert_non_null(m);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) rc = msgl__matcher_accept_bytes(m, text + i, 1);
    const bool whole = rc == 0 && msgl__matcher_may_end(m);
    msgl__matcher_destroy(m);
    return whole;
}
