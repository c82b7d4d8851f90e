// SPDX-License-Identifier: Apache-2.0
#include "engine/determinism.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"

enum { TOKENS = 64, OTHERS = 31, PATH = 512 };

typedef struct fixture {
    harness h;
    int32_t ids[TOKENS];
    float *want;    // [TOKENS, vocab], one prefill alone
    float *decoded; // [TOKENS, vocab], rows [20, 40) decoded alone
    size_t row_bytes;
} fixture;

static void open_fixture(fixture *f, const char *model, const harness_target *target)
{
    char dir[PATH], prompt[PATH];
    snprintf(dir, sizeof dir, MSGL_SOURCE_DIR "/tests/vectors/models/%s", model);
    snprintf(prompt, sizeof prompt, MSGL_SOURCE_DIR "/tests/vectors/models/%s/prompt.json", model);
    assert_int_equal(load_ids(prompt, "ids", f->ids, TOKENS), TOKENS);
    const msgl_options cfg = harness_config_for(dir, "auto", target);
    msgl_err err = {0};
    if (harness_try_open(&f->h, &cfg, &err) != 0) fail_msg("%s: %s", model, err.text);
    f->row_bytes = (size_t)f->h.info->vocab_size * sizeof(float);
}

// Prefills row `row` in chunks of `chunk` tokens, appending to out [TOKENS, vocab].
static void prefill_chunks(fixture *f, int32_t row, int32_t from, int32_t chunk, float *out)
{
    for (int32_t at = from; at < TOKENS; at += chunk) {
        const int32_t end = at + chunk < TOKENS ? at + chunk : TOKENS;
        msgl_batch_req r = harness_req(row, at, end);
        r.prompt_len = TOKENS;
        r.sample = end == TOKENS;
        harness_step(&f->h, MSGL_PREFILL, &r, 1);
        memcpy((char *)out + (size_t)at * f->row_bytes, harness_row(&f->h, 0),
               (size_t)(end - at) * f->row_bytes);
    }
}

static void start(fixture *f, int32_t row)
{
    harness_pages(&f->h, row, TOKENS + 1);
    harness_tokens(&f->h, row, f->ids, TOKENS);
}

static void expect_rows(const fixture *f, const float *got, int32_t from, int32_t to,
                        const char *what, int32_t n)
{
    for (int32_t t = from; t < to; t++) {
        const size_t at = (size_t)t * f->row_bytes;
        if (memcmp((const char *)f->want + at, (const char *)got + at, f->row_bytes) != 0) {
            fail_msg("%s, %s: %s %d: other bits at position %d", f->h.info->architecture,
                     f->h.info->device, what, n, t);
        }
    }
}

static void check_chunks(fixture *f, float *got)
{
    const int32_t chunks[] = {1, 7, 16, 33};
    for (size_t i = 0; i < MSGL_COUNT(chunks); i++) {
        start(f, 1);
        prefill_chunks(f, 1, 0, chunks[i], got);
        expect_rows(f, got, 0, TOKENS, "chunks of", chunks[i]);
    }
}

// Decodes positions [20, 40) of row 2, whose other K and V come from prefill.
static void decode_alone(fixture *f, float *got)
{
    start(f, 2);
    msgl_batch_req r = harness_req(2, 0, 20);
    r.prompt_len = TOKENS; // as if all of it were the prompt: dynamic NTK depends on its length
    harness_step(&f->h, MSGL_PREFILL, &r, 1);
    harness_tokens(&f->h, 2, f->ids, TOKENS); // the sampled token is not the one to go on with
    for (int32_t t = 20; t < 40; t++) {
        r = harness_req(2, t, t + 1);
        r.prompt_len = TOKENS;
        r.sample = false;
        harness_step(&f->h, MSGL_DECODE, &r, 1);
        memcpy((char *)got + (size_t)t * f->row_bytes, harness_row(&f->h, 0), f->row_bytes);
    }
}

// Decode steps (phase decode, one token each) leave the same K and V and logits as a prefill; and a
// prefill over a prefix whose K and V came from decode steps, as after a cache hit on generated
// text, continues with the same bits.
static void check_decode(fixture *f, float *got, bool phases)
{
    decode_alone(f, got);
    if (!phases) {
        const float *want = f->want;
        f->want = f->decoded;
        expect_rows(f, got, 20, 40, "decode from", 20);
        f->want = (float *)want;
        return;
    }
    expect_rows(f, got, 20, 40, "decode from", 20);
    prefill_chunks(f, 2, 40, TOKENS, got);
    expect_rows(f, got, 40, TOKENS, "prefill over decoded prefix of", 40);
}

// One prefill of all tokens before those that the requests are about to compute: a state cannot be
// taken back, as K and V could.
static void go_back(fixture *f, const msgl_batch_req *reqs, int32_t n)
{
    msgl_batch_req before[OTHERS + 1];
    int32_t num = 0;
    for (int32_t i = 0; i < n; i++) {
        harness_tokens(&f->h, reqs[i].table_idx, f->ids, TOKENS);
        if (reqs[i].cached_len == 0) continue;
        before[num] = harness_req(reqs[i].table_idx, 0, reqs[i].cached_len);
        before[num].prompt_len = reqs[i].prompt_len;
        before[num++].sample = false;
    }
    harness_step(&f->h, MSGL_PREFILL, before, num);
}

// The request amid 31 others of other lengths and cached lengths.
static void check_batch(fixture *f, float *got, bool phases)
{
    msgl_batch_req reqs[OTHERS + 1];
    int32_t first = 0;
    for (int32_t i = 0; i <= OTHERS; i++) {
        start(f, i);
        const int32_t len = i == 17 ? TOKENS : 1 + (i * 37) % TOKENS;
        const int32_t cached = i % 3 == 1 && i != 17 ? len / 2 : 0;
        if (cached > 0) {
            msgl_batch_req r = harness_req(i, 0, cached);
            harness_step(&f->h, MSGL_PREFILL, &r, 1);
            harness_tokens(&f->h, i, f->ids, TOKENS);
        }
        reqs[i] = harness_req(i, cached, len);
        if (i < 17) first += len - cached;
    }
    harness_step(&f->h, MSGL_PREFILL, reqs, OTHERS + 1);
    memcpy(got, harness_row(&f->h, first), TOKENS * f->row_bytes);
    expect_rows(f, got, 0, TOKENS, "prefill batch of", OTHERS + 1);

    // Decode: all at other lengths; the request at position 39, its next token the prompt's.
    for (int32_t i = 0; i <= OTHERS; i++) {
        const int32_t len = i == 17 ? 40 : 1 + (i * 37) % TOKENS;
        reqs[i] = harness_req(i, len - 1, len);
        if (i == 17) reqs[i].prompt_len = TOKENS;
    }
    go_back(f, reqs, OTHERS + 1);
    harness_step(&f->h, MSGL_DECODE, reqs, OTHERS + 1);
    memcpy((char *)got + 39 * f->row_bytes, harness_row(&f->h, 17), f->row_bytes);
    if (phases) {
        expect_rows(f, got, 39, 40, "decode batch of", OTHERS + 1);
        return;
    }
    // K and V of the positions before it come from one prefill here, as in decode_alone only up to
    // 20: compared with a decode alone over the same.
    float *alone = malloc(f->row_bytes);
    go_back(f, &reqs[17], 1);
    harness_step(&f->h, MSGL_DECODE, &reqs[17], 1);
    memcpy(alone, harness_row(&f->h, 0), f->row_bytes);
    if (memcmp(alone, (const char *)got + 39 * f->row_bytes, f->row_bytes) != 0) {
        fail_msg("%s, %s: a decode in a batch of %d has other bits than alone",
                 f->h.info->architecture, f->h.info->device, OTHERS + 1);
    }
    free(alone);
}

// A step of both kinds: answers of others before, the request's chunk and others' behind, and then
// the request's answer beside a chunk.
static void check_mixed(fixture *f, float *got, bool phases)
{
    enum { ANSWERS = 5, ALL = 9 };
    msgl_batch_req reqs[ALL];
    for (int32_t chunk = 9; chunk <= 45; chunk += 18) {
        for (int32_t i = 0; i < ALL; i++) start(f, i);
        for (int32_t i = 0; i < ANSWERS; i++) {
            msgl_batch_req r = harness_req(i, 0, 10 + 7 * i);
            harness_step(&f->h, MSGL_PREFILL, &r, 1);
            harness_tokens(&f->h, i, f->ids, TOKENS);
        }
        for (int32_t at = 0; at < TOKENS; at += chunk) {
            for (int32_t i = 0; i < ANSWERS; i++) {
                const int32_t len = 10 + 7 * i + at / chunk;
                reqs[i] = harness_req(i, len, len + 1);
                reqs[i].prompt_len = TOKENS;
                reqs[i].sample = false;
            }
            for (int32_t i = ANSWERS; i < ALL; i++) {
                const int32_t end = at + chunk < TOKENS ? at + chunk : TOKENS;
                reqs[i] = harness_req(i, at, end);
                reqs[i].prompt_len = TOKENS;
            }
            const int32_t first = ANSWERS + msgl__extend_len(&reqs[5]);
            harness_mixed(&f->h, ANSWERS, reqs, ALL);
            memcpy((char *)got + (size_t)at * f->row_bytes, harness_row(&f->h, first),
                   (size_t)msgl__extend_len(&reqs[6]) * f->row_bytes);
            for (int32_t i = ANSWERS; i < ALL; i++) { // sampled tokens do not go on
                harness_tokens(&f->h, i, f->ids, TOKENS);
            }
        }
        expect_rows(f, got, 0, TOKENS, "beside answers, chunks of", chunk);
    }
    if (!phases) return;
    start(f, 2);
    msgl_batch_req r = harness_req(2, 0, 20);
    r.prompt_len = TOKENS;
    harness_step(&f->h, MSGL_PREFILL, &r, 1);
    harness_tokens(&f->h, 2, f->ids, TOKENS);
    start(f, 3);
    reqs[0] = harness_req(2, 20, 21);
    reqs[0].prompt_len = TOKENS;
    reqs[1] = harness_req(3, 0, 30);
    harness_mixed(&f->h, 1, reqs, 2);
    memcpy((char *)got + 20 * f->row_bytes, harness_row(&f->h, 0), f->row_bytes);
    expect_rows(f, got, 20, 21, "an answer beside a chunk of", 30);
}

void check_determinism(const char *model, const harness_target *base, bool phases,
                       const harness_target *others, size_t num_others)
{
    fixture f;
    open_fixture(&f, model, base);
    const size_t bytes = TOKENS * f.row_bytes;
    float *want = malloc(bytes), *decoded = malloc(bytes), *got = malloc(bytes);
    assert_true(want != NULL && decoded != NULL && got != NULL);
    start(&f, 0);
    prefill_chunks(&f, 0, 0, TOKENS, want);
    decode_alone(&f, decoded);
    for (size_t i = 0; i <= num_others; i++) {
        if (i > 0) open_fixture(&f, model, &others[i - 1]);
        f.want = want;
        f.decoded = decoded;
        start(&f, 0);
        prefill_chunks(&f, 0, 0, TOKENS, got);
        expect_rows(&f, got, 0, TOKENS, "page size", f.h.info->page_size);
        if (i == 0) check_chunks(&f, got);
        check_decode(&f, got, phases);
        check_batch(&f, got, phases);
        check_mixed(&f, got, phases);
        harness_close(&f.h);
    }
    free(want);
    free(decoded);
    free(got);
}
