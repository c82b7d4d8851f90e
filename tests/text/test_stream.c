// SPDX-License-Identifier: Apache-2.0
//
// One answer's text with the tokenizer of the demo model: against what the tokenizer makes of all
// ids at once and a search for stop strings at every byte, with random tokens, in events of one
// token and of several.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/err.h"
#include "core/mem.h"
#include "text/stream.h"
#include "utils/random.h"

enum { MAX_TOKENS = 24 };

static msgl_tokenizer *tok;
static int32_t vocab, eos;

static int setup(void **state)
{
    (void)state;
    msgl_err err;
    if (msgl__tokenizer_load(MSGL_SOURCE_DIR "/models/demo", &tok, &err) != 0) {
        fail_msg("%s", err.text);
    }
    vocab = msgl__tokenizer_vocab_size(tok);
    eos = msgl__tokenizer_id(tok, "<|im_end|>");
    assert_true(eos > 0 && msgl__tokenizer_is_special(tok, eos));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    msgl__tokenizer_free(tok);
    return 0;
}

static uint64_t rng = 1;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)msgl__random_below(&rng, n);
}

// Half of them single bytes, so that there are characters of several tokens and broken ones.
static int draw_ids(int32_t ids[MAX_TOKENS])
{
    const int n = (int)draw(MAX_TOKENS + 1);
    for (int i = 0; i < n; i++) ids[i] = (int32_t)draw(draw(2) ? 256 : (uint32_t)vocab);
    return n;
}

static size_t decode(const int32_t *ids, int n, char text[2048])
{
    msgl_strbuf b;
    msgl_err err;
    msgl__strbuf_init(&b, 2047);
    assert_int_equal(msgl__tokenizer_decode(tok, ids, (size_t)n, 1, &b, &err), 0);
    const size_t len = b.len;
    memcpy(text, msgl__strbuf_str(&b), len + 1);
    msgl__strbuf_free(&b);
    return len;
}

static size_t chars_of(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

// Without stop strings: the pieces are the text, a token's place is what came before it, and
// nothing is held back but the start of a character.
static void test_all_text(void **state)
{
    (void)state;
    for (int round = 0; round < 3000; round++) {
        int32_t ids[MAX_TOKENS];
        char want[2048];
        const int n = draw_ids(ids);
        const size_t len = decode(ids, n, want);
        static const char prompt[] = "\xc3\xa9:";
        msgl_text_stream s;
        msgl_strbuf out;
        msgl__strbuf_init(&out, 4096);
        assert_int_equal(msgl__text_init(&s, tok, true, NULL, 0), 0);
        const bool behind = round % 2;
        if (behind) msgl__text_begin_behind(&s, prompt, sizeof prompt - 1);
        for (int i = 0; i < n; i++) {
            assert_int_equal(s.chars, chars_of(msgl__strbuf_str(&out), out.len) + (behind ? 2 : 0));
            assert_int_equal(msgl__text_token(&s, ids[i], &out), 0);
            assert_true(out.len <= len);
            assert_memory_equal(msgl__strbuf_str(&out), want, out.len);
            assert_int_equal(s.shown, out.len);
            assert_int_equal(s.made, out.len);
            char now[2048]; // its end may be U+FFFD for bytes that can still become a character
            assert_true(out.len + 3 >= decode(ids, i + 1, now));
        }
        const msgl_token_event end = {.finish = MSGL_FINISH_LENGTH};
        assert_int_equal(msgl__text_event(&s, &end, 0, &out), 0);
        assert_int_equal(out.len, len);
        assert_memory_equal(msgl__strbuf_str(&out), want, len);
        assert_int_equal(s.made, len);
        assert_int_equal(s.shown, len);
        assert_false(s.stopped);
        msgl__text_free(&s);
        msgl__strbuf_free(&out);
    }
}

// Where text[0, len) is cut when it has come so far: before the earliest stop string in it.
static size_t cut_of(const char *text, size_t len, const char *const *stops, int n)
{
    for (size_t at = 0; at < len; at++) {
        for (int i = 0; i < n; i++) {
            const size_t m = strlen(stops[i]);
            if (at + m <= len && memcmp(text + at, stops[i], m) == 0) return at;
        }
    }
    return len;
}

// Stop strings out of the text itself and others; the answer in random events, whose last token is
// text or ends it.
static void test_stops_and_events(void **state)
{
    (void)state;
    int stopped = 0, whole = 0;
    for (int round = 0; round < 6000; round++) {
        int32_t ids[MAX_TOKENS + 1];
        char text[2048], stop_text[3][64];
        const char *stops[3];
        const int n = draw_ids(ids), num_stops = (int)draw(4);
        const size_t len = decode(ids, n, text);
        for (int i = 0; i < num_stops; i++) {
            // Out of the text, or begun by its end, or neither.
            const size_t m = 1 + draw(3),
                         from = draw(2) || len < m ? draw((uint32_t)len + 1) : len - m;
            const bool own = draw(4) && from + m <= len && memchr(text + from, 0, m) == NULL;
            memcpy(stop_text[i], own ? text + from : "zq#", m);
            memcpy(stop_text[i] + m, "z", 2);
            if (from + m < len) stop_text[i][m] = '\0';
            stops[i] = stop_text[i];
        }
        const bool by_eos = draw(2);
        const int total = n + by_eos;
        if (by_eos) ids[n] = eos;
        // The text as it comes, token for token.
        char plain[2048];
        size_t plain_len = 0, cut = 0;
        msgl_detok *d = msgl__detok_create(tok, 1);
        msgl_strbuf all, out;
        msgl__strbuf_init(&all, 4096);
        msgl__strbuf_init(&out, 4096);
        msgl_text_stream s;
        assert_int_equal(msgl__text_init(&s, tok, true, stops, num_stops), 0);
        for (int i = 0; i < total || i == 0;) {
            const int m = total == 0 ? 0 : 1 + (int)draw((uint32_t)(total - i));
            const bool last = i + m == total;
            const msgl_token_event e = {.tokens = ids + i,
                                        .num_tokens = m,
                                        .finish = !last    ? MSGL_FINISH_NONE
                                                  : by_eos ? MSGL_FINISH_STOP
                                                           : MSGL_FINISH_LENGTH};
            for (int t = 0; t == 0 || t < m; t++, i++) {
                const bool was = s.stopped;
                assert_int_equal(msgl__text_event(&s, &e, t, &out), 0);
                if (!was) {
                    if (i < n) assert_int_equal(msgl__detok_push(d, ids[i], &all), 0);
                    if (i + 1 >= total) assert_int_equal(msgl__detok_finish(d, &all), 0);
                    plain_len = all.len;
                    memcpy(plain, msgl__strbuf_str(&all), plain_len);
                    cut = cut_of(plain, plain_len, stops, num_stops);
                    assert_int_equal(s.stopped, cut < plain_len);
                    assert_int_equal(s.made, plain_len);
                }
                assert_true(out.len <= cut);
                assert_int_equal(s.shown, out.len);
                assert_memory_equal(msgl__strbuf_str(&out), plain, out.len);
            }
        }
        assert_int_equal(out.len, cut);
        if (!s.stopped) assert_int_equal(cut, len);
        stopped += s.stopped;
        whole += !s.stopped && num_stops > 0;
        msgl__detok_destroy(d);
        msgl__text_free(&s);
        msgl__strbuf_free(&all);
        msgl__strbuf_free(&out);
    }
    assert_true(stopped > 1000 && whole > 1000);
}

// The token that ends an answer is not text, whichever it is; one without text is none.
static void test_no_text(void **state)
{
    (void)state;
    msgl_text_stream s;
    msgl_strbuf out;
    msgl__strbuf_init(&out, 100);
    const int32_t a = msgl__tokenizer_id(tok, "a");
    const int32_t ids[] = {a, vocab, vocab + 100, a};
    const msgl_token_event e = {.tokens = ids, .num_tokens = 4, .finish = MSGL_FINISH_STOP};
    assert_int_equal(msgl__text_init(&s, tok, true, NULL, 0), 0);
    for (int t = 0; t < 4; t++) assert_int_equal(msgl__text_event(&s, &e, t, &out), 0);
    assert_string_equal(msgl__strbuf_str(&out), "a");
    msgl__text_free(&s);
    msgl__strbuf_clear(&out);

    assert_int_equal(msgl__text_init(&s, tok, false, NULL, 0), 0); // special tokens are shown
    assert_int_equal(msgl__text_token(&s, eos, &out), 0);
    assert_string_equal(msgl__strbuf_str(&out), "<|im_end|>");
    msgl__text_free(&s);

    // One special token is shown, others are not.
    const char *const keep[] = {"<|im_end|>", "<|im", "no token", NULL};
    const int32_t start = msgl__tokenizer_id(tok, "<|im_start|>");
    assert_true(start >= 0 && start != eos);
    msgl__strbuf_clear(&out);
    assert_int_equal(msgl__text_init(&s, tok, true, NULL, 0), 0);
    assert_int_equal(msgl__text_keep_special(&s, tok, NULL, keep), 0);
    assert_int_equal(msgl__text_token(&s, start, &out), 0);
    assert_int_equal(msgl__text_token(&s, a, &out), 0);
    assert_int_equal(msgl__text_token(&s, eos, &out), 0);
    assert_int_equal(msgl__text_token(&s, vocab, &out), 0);
    assert_string_equal(msgl__strbuf_str(&out), "a<|im_end|>");
    msgl__text_free(&s);
    msgl__strbuf_clear(&out);
    assert_int_equal(msgl__strbuf_adds(&out, "<|im_end|>"), 0);

    assert_int_equal(msgl__text_init(&s, NULL, true, NULL, 0), 0);
    assert_int_equal(msgl__text_event(&s, &e, 0, &out), 0);
    assert_int_equal(msgl__text_event(&s, &e, 3, &out), 0);
    assert_int_equal(out.len, strlen("<|im_end|>"));
    msgl__text_free(&s);
    const char *const empty[] = {""};
    assert_int_equal(msgl__text_init(&s, tok, true, empty, 1), MSGL_EINVAL);
    msgl__text_free(&s);
    msgl__strbuf_free(&out);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    const int32_t id = msgl__tokenizer_id(tok, "a");
    const char *const stops[] = {"aab"};
    bool reached_end = false;
    for (uint64_t nth = 1; !reached_end; nth++) {
        assert_true(nth < 1000);
        msgl_text_stream s;
        msgl_strbuf out;
        msgl__strbuf_init(&out, 1000);
        msgl__mem_fail_from(nth);
        int rc = msgl__text_init(&s, tok, true, stops, 1);
        for (int i = 0; i < 100 && rc == 0; i++) rc = msgl__text_token(&s, id, &out);
        msgl__mem_fail_from(0);
        assert_true(rc == 0 || rc == MSGL_ENOMEM);
        reached_end = rc == 0;
        if (reached_end) assert_true(out.len == 98 && msgl__text_bytes(&s) >= 2);
        msgl__text_free(&s);
        msgl__strbuf_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_text), cmocka_unit_test(test_stops_and_events),
        cmocka_unit_test(test_no_text), cmocka_unit_test(test_out_of_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
