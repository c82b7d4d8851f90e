// SPDX-License-Identifier: Apache-2.0
//
// Trees of drafts in the engine: of whatever shape, and wherever in it the answer's path is, rows
// on the path and the steps behind it have the bits of an answer without drafts, so K and V of the
// path are where they should be; beside answers and chains, and with rows of drafts split as on a
// GPU.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"
#include "utils/random.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define ON_CPU                                                                                     \
    (strcmp(TEST_DEVICE, "cpu") == 0) // else trees have a kernel of their own: other bits

#define MODELS MSGL_SOURCE_DIR "/tests/vectors/models/"

enum { PROMPT = 30, TOKENS = 90, NODES = 24, TOPK = 4, TREE_ROW = 1, CHAIN_ROW, ANSWER_ROW };

// Trees need a head that draws them; here the test does.
static bool g_splits;
int __wrap_msgl__drafts_choose(msgl_engine *e, const msgl_options *o, msgl_err *err);
int __wrap_msgl__drafts_choose(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    (void)o, (void)err;
    e->max_drafts = 2 * NODES;
    e->draft_rows = g_splits ? MSGL_ROWS_SPLIT : ON_CPU ? MSGL_ROWS_CHUNK : MSGL_ROWS_PACKED;
    return 0;
}

typedef struct fixture {
    harness h;
    int32_t ids[TOKENS + 1];
    float *want; // [TOKENS, vocab] of one token a step behind the prompt
    size_t row;  // bytes
    uint64_t random;
} fixture;

typedef struct tree {
    int32_t num, tokens[NODES];
    int16_t parents[NODES];
    int32_t path; // drafts of it that are meant to be right, one behind the other
} tree;

static void open_model(fixture *f, const char *name, int32_t page_size, const char *kv)
{
    char dir[256], prompt[300];
    snprintf(dir, sizeof dir, MODELS "%s", name);
    snprintf(prompt, sizeof prompt, "%s/prompt.json", dir);
    const harness_target here = {.device = TEST_DEVICE, .graph_max_bs = ON_CPU ? 0 : 16};
    msgl_options cfg = harness_config_for(dir, ON_CPU ? "auto" : "float32", &here);
    cfg.speculative_eagle_topk = TOPK;
    cfg.page_size = page_size;
    if (kv != NULL) cfg.kv_cache_dtype = kv;
    harness_open(&f->h, &cfg);
    assert_true(load_ids(prompt, "ids", f->ids, TOKENS) >= PROMPT);
    f->row = (size_t)f->h.info->vocab_size * sizeof(float);
    f->want = malloc(TOKENS * f->row);
    assert_non_null(f->want);
    for (int32_t row = 0; row <= ANSWER_ROW; row++) {
        harness_pages(&f->h, row, TOKENS + NODES + 2);
        harness_tokens(&f->h, row, f->ids, PROMPT);
    }
    for (int32_t len = 0; len < TOKENS;) {
        const int32_t next = len == 0 ? PROMPT : len + 1;
        msgl_batch_req r = harness_req(0, len, next);
        harness_step(&f->h, len == 0 ? MSGL_PREFILL : MSGL_DECODE, &r, 1);
        memcpy((char *)f->want + (size_t)len * f->row, harness_row(&f->h, 0),
               (size_t)(next - len) * f->row);
        f->ids[next] = f->h.result.tokens[0];
        len = next;
    }
}

static int32_t below(fixture *f, int32_t n)
{
    return (int32_t)msgl__random_below(&f->random, (uint64_t)n);
}

// A token that is not `right`.
static int32_t wrong(fixture *f, int32_t right)
{
    return (right + 1 + below(f, f->h.info->vocab_size - 1)) % f->h.info->vocab_size;
}

// With a path that is right for up to `most` tokens behind position len, somewhere in it.
static void make_tree(fixture *f, int32_t len, int32_t most, tree *t)
{
    int32_t at = 0; // the path's last row
    *t = (tree){.num = 1 + below(f, NODES)};
    for (int32_t i = 0; i < t->num; i++) {
        const bool right = t->path < most && below(f, 4) == 0;
        const int32_t parent = right ? at : below(f, i + 1);
        t->parents[i] = (int16_t)parent;
        t->tokens[i] = wrong(f, parent == at ? f->ids[len + 1 + t->path] : f->ids[len]);
        if (!right) continue;
        t->tokens[i] = f->ids[len + 1 + t->path++];
        at = 1 + i;
    }
}

// The rows of a step's tokens first + rows[0, n) are those behind positions len, len + 1, ..
static void compare_rows(const fixture *f, int32_t first, const int32_t *rows, int32_t n,
                         int32_t len)
{
    for (int32_t i = 0; i < n; i++) {
        const float *got = harness_row(&f->h, first + rows[i]);
        const float *want = f->want + (size_t)(len + i) * (size_t)f->h.info->vocab_size;
        if (ON_CPU) assert_memory_equal(got, want, f->row);
        for (int32_t v = 0; v < f->h.info->vocab_size; v++) {
            assert_float_equal(got[v], want[v], 1e-3);
        }
    }
}

// The rows on the path of right tokens, which may be longer by chance.
static int32_t path_rows(const fixture *f, const tree *t, int32_t len, int32_t rows[NODES + 1])
{
    int32_t n = 1;
    rows[0] = 0;
    for (int32_t i = 0; i < t->num; i++) {
        if (t->parents[i] == rows[n - 1] && t->tokens[i] == f->ids[len + n]) rows[n++] = 1 + i;
    }
    return n;
}

static void prefill(fixture *f, int32_t row)
{
    msgl_batch_req r = harness_req(row, 0, PROMPT);
    harness_step(&f->h, MSGL_PREFILL, &r, 1);
}

// Steps of an answer, one with a tree, and one with a chain, each until they have all tokens.
static void check_steps(fixture *f)
{
    int32_t lens[ANSWER_ROW + 1] = {0}, moved = 0;
    for (int32_t row = TREE_ROW; row <= ANSWER_ROW; row++) {
        prefill(f, row);
        lens[row] = PROMPT;
    }
    while (lens[TREE_ROW] < TOKENS - 8 && lens[CHAIN_ROW] < TOKENS - 8) {
        const int32_t len = lens[TREE_ROW], chain = lens[CHAIN_ROW], most = TOKENS - 1 - len;
        int32_t rows[NODES + 1], linear[NODES + 1] = {0}, drafts[4];
        tree t;
        make_tree(f, len, most < 6 ? most : 6, &t);
        const int32_t n = path_rows(f, &t, len, rows), right = below(f, 4);
        for (int32_t i = 0; i < 3; i++) {
            linear[i] = i;
            drafts[i] = i < right ? f->ids[chain + 1 + i] : wrong(f, f->ids[chain + 1 + i]);
        }
        linear[3] = 3;
        msgl_batch_req r[3] = {harness_req(ANSWER_ROW, lens[ANSWER_ROW], lens[ANSWER_ROW] + 1),
                               harness_req(CHAIN_ROW, chain, chain + 4),
                               harness_req(TREE_ROW, len, len + 1 + t.num)};
        r[1].num_drafts = 3;
        r[1].drafts = drafts;
        r[2].num_drafts = t.num;
        r[2].drafts = t.tokens;
        r[2].draft_parents = t.parents;
        const bool swapped = below(f, 2) == 0; // the tree before the chain
        if (swapped) {
            const msgl_batch_req first = r[1];
            r[1] = r[2];
            r[2] = first;
        }
        for (int i = 0; i < 3; i++) r[i].prompt_len = PROMPT;
        harness_mixed(&f->h, 1, r, 3);
        const int32_t first_tree = swapped ? 1 : 5, first_chain = swapped ? 2 + t.num : 1;
        const int32_t *cu = f->h.result.cu_tokens, tree_req = swapped ? 1 : 2;
        assert_int_equal(cu[tree_req + 1] - cu[tree_req], n);
        assert_memory_equal(f->h.result.tokens + cu[tree_req], f->ids + len + 1,
                            (size_t)n * sizeof *f->ids);
        assert_int_equal(cu[4 - tree_req] - cu[3 - tree_req], right + 1);
        compare_rows(f, first_tree, rows, n, len);
        compare_rows(f, first_chain, linear, right + 1, chain);
        compare_rows(f, 0, linear, 1, lens[ANSWER_ROW]);
        moved += rows[n - 1] != n - 1;
        lens[TREE_ROW] += n;
        lens[CHAIN_ROW] += right + 1;
        lens[ANSWER_ROW]++;
    }
    assert_true(moved > 3);
}

static void check_model(const char *name, int32_t page_size, const char *kv)
{
    for (int splits = 0; splits < 2; splits++) {
        fixture f = {.random = (uint64_t)page_size};
        g_splits = splits;
        open_model(&f, name, page_size, kv);
        for (int i = 0; i < 3; i++) check_steps(&f);
        free(f.want);
        harness_close(&f.h);
    }
}

static void test_models(void **state)
{
    (void)state;
    static const char *const names[] = {
        "qwen3", "gemma2", "gpt_oss", "deepseek_v2_lite", "mixtral", "phi3_longrope_short"};
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        if (!ON_CPU && strcmp(names[i], "deepseek_v2_lite") == 0) continue; // bf16 and 576 alone
        check_model(names[i], i % 3 == 0 ? 1 : i % 3 == 1 ? 4 : 16, NULL);
    }
    if (ON_CPU) check_model("llama4", 1, NULL); // whose chunks no GPU's kernel knows in trees
    if (ON_CPU) check_model("gemma4_conditional", 4, NULL);
    if (ON_CPU) check_model("mimo_v2", 4, "fp8_e4m3");
    if (ON_CPU) check_model("qwen3", 4, "fp8_e4m3");
}

// What indexes memory, or would need more than rows see.
static void test_refused(void **state)
{
    (void)state;
    fixture f = {.random = 1};
    open_model(&f, "qwen3", 1, NULL);
    prefill(&f, TREE_ROW);
    const int32_t tokens[] = {1, 2, 3};
    const struct {
        int16_t parents[3];
        int kind; // 0: a tree; of a request with a penalty; beside a chunk; without its known token
        int code;
    } cases[] = {
        {{0, 0, 1}, 0, 0},           {{0, 2, 1}, 0, MSGL_EINVAL}, {{-1, 0, 1}, 0, MSGL_EINVAL},
        {{0, 0, 1}, 1, MSGL_EINVAL}, {{0, 0, 1}, 2, MSGL_EINVAL}, {{-1, -1, 0}, 3, MSGL_EINVAL}};
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        const int32_t rows = cases[i].kind == 3 ? 3 : 4;
        msgl_batch_req r[2] = {harness_req(TREE_ROW, PROMPT, PROMPT + rows),
                               harness_req(ANSWER_ROW, 0, PROMPT)};
        r[0].num_drafts = 3;
        r[0].drafts = tokens;
        r[0].draft_parents = cases[i].parents;
        if (cases[i].kind == 1) r[0].sampling.repetition_penalty = 1.1f;
        msgl_batch b = {.size = cases[i].kind == 2 ? 2 : 1, .reqs = r, .num_tokens = rows};
        if (b.size == 2) b.num_tokens += PROMPT;
        assert_int_equal(f.h.r->submit(f.h.r->ctx, &b), cases[i].code);
        if (cases[i].code == 0) assert_int_equal(f.h.r->wait(f.h.r->ctx, 0, &f.h.result), 0);
    }
    free(f.want);
    harness_close(&f.h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_models),
                                       cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
