// SPDX-License-Identifier: Apache-2.0
//
// Draft heads against the arithmetic of their originals (tests/vectors/drafts): the logits of a
// chain of four drafts behind a prompt, computed at once and in chunks.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "harness.h"

#define VECTORS MSGL_SOURCE_DIR "/tests/vectors/drafts/"

enum { MAX_IDS = 64, DRAFTS = 4 };

typedef struct vectors {
    const char *name, *algorithm;
    bool demo; // of the shipped model
} vectors;

static const vectors CASES[] = {
    {"eagle3", "EAGLE3", false},          {"eagle3_wide", "EAGLE3", false},
    {"eagle3_entering", "EAGLE3", false}, {"eagle3_speculators", "EAGLE3", false},
    {"qwen3_mtp", "NEXTN", false},        {"qwen3_next", "NEXTN", false},
    {"deepseek_v3", "NEXTN", false},      {"glm4_moe_lite", "NEXTN", false},
    {"demo_eagle3", "EAGLE3", true},      {"demo_mtp", "NEXTN", true}};

// The last row of every block of logits that the head computes.
typedef struct seen {
    float *rows; // [DRAFTS, vocab]
    int32_t num, vocab;
} seen;

static void on_logits(void *ctx, const int32_t *rows, int32_t num_rows, int32_t vocab,
                      const float *logits)
{
    seen *s = ctx;
    (void)rows;
    assert_true(s->num < DRAFTS && vocab == s->vocab);
    memcpy(s->rows + (size_t)s->num++ * (size_t)vocab,
           logits + (size_t)(num_rows - 1) * (size_t)vocab, (size_t)vocab * sizeof *logits);
}

static void folders(const vectors *v, char target[256], char draft[256])
{
    static const char ROOT[] = MSGL_SOURCE_DIR "/models/";
    if (v->demo) {
        snprintf(target, 256, "%sdemo", ROOT);
        snprintf(draft, 256, "%sdemo-%s", ROOT, v->name + strlen("demo_"));
        return;
    }
    char config[300];
    snprintf(target, 256, VECTORS "%s/target", v->name);
    snprintf(draft, 256, VECTORS "%s/draft", v->name);
    snprintf(config, sizeof config, "%s/config.json", draft);
    FILE *f = fopen(config, "r");
    if (f == NULL) draft[0] = '\0'; // it is in the target's files
    if (f != NULL) fclose(f);
}

static void compare(const vectors *v, const seen *s)
{
    char path[256];
    snprintf(path, sizeof path, VECTORS "%s/logits.bin", v->name);
    float *expected = load_floats(path, DRAFTS * (size_t)s->vocab);
    double worst = 0;
    for (size_t i = 0; i < DRAFTS * (size_t)s->vocab; i++) {
        const double diff = (double)s->rows[i] - (double)expected[i];
        if (diff > worst || -diff > worst) worst = diff > 0 ? diff : -diff;
    }
    free(expected);
    if (!(worst < 1e-3)) fail_msg("%s: logits differ by %g", v->name, worst);
}

// chunk: tokens of the prompt that are computed before the others; 0: none.
static void check(const vectors *v, int32_t chunk)
{
    char target[256], draft[256], path[256];
    int32_t ids[MAX_IDS], drafts[DRAFTS];
    folders(v, target, draft);
    msgl_options o = harness_config(target, "float32");
    o.speculative_algorithm = v->algorithm;
    o.speculative_draft_model_path = draft[0] != '\0' ? draft : NULL;
    snprintf(path, sizeof path, VECTORS "%s/drafts.json", v->name);
    const int32_t n = load_ids(path, "ids", ids, MAX_IDS) - 1;
    assert_int_equal(load_ids(path, "drafts", drafts, DRAFTS), DRAFTS);
    harness h;
    harness_open(&h, &o);
    msgl_engine *head = msgl__draft_model_engine(h.e->draft);
    seen s = {.vocab = msgl__engine_info(head)->vocab_size};
    s.rows = calloc(DRAFTS * (size_t)s.vocab, sizeof *s.rows);
    assert_non_null(s.rows);
    assert_int_equal(msgl__engine_observe_logits(head, on_logits, &s), 0);
    harness_pages(&h, 0, n + DRAFTS + 2);
    harness_tokens(&h, 0, ids, n);
    if (chunk > 0) {
        msgl_batch_req first = harness_req(0, 0, chunk);
        first.sample = false;
        first.logits_from = chunk;
        first.prompt_len = n;
        harness_step(&h, MSGL_PREFILL, &first, 1);
    }
    msgl_batch_req r = harness_req(0, chunk, n);
    r.logits_from = n - chunk - 1;
    r.prompt_len = n;
    r.propose = DRAFTS;
    harness_step(&h, MSGL_PREFILL, &r, 1);
    assert_int_equal(h.result.tokens[0], ids[n]);
    assert_non_null(h.result.num_proposals);
    assert_int_equal(h.result.num_proposals[0], DRAFTS);
    assert_memory_equal(h.result.proposals, drafts, sizeof drafts);
    assert_int_equal(s.num, DRAFTS);
    compare(v, &s);
    free(s.rows);
    harness_close(&h);
}

static void test_chains(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        check(&CASES[i], 0);
        check(&CASES[i], 5);
    }
}

// The last line of an engine's log that says who makes drafts.
static void keep_line(void *ctx, const char *line)
{
    char *said = ctx;
    if (strncmp(line, "speculation: ", 13) == 0) snprintf(said, 512, "%s", line + 13);
}

// What --speculative-algorithm auto makes of a model: a head, or guesses, for this reason.
static const struct {
    const char *model;
    int ranks;
    bool head;
    const char *reason;
} AUTO[] = {
    {"drafts/qwen3_next/target", 1, true, ""},
    {"drafts/deepseek_v3/target", 1, true, ""},
    {"drafts/glm4_moe_lite/target", 1, true, ""},
    // config.json announces a head (num_nextn_predict_layers), or its kind of model has one.
    {"models/deepseek_v3", 1, false,
     "deepseek_v3/model.safetensors: tensor model.layers.2.shared_head.norm.weight: missing"},
    {"models/qwen3_next", 1, false, "qwen3_next/model.safetensors: tensor mtp."},
    {"models/qwen3", 1, false, "Qwen3ForCausalLM has no layers that predict tokens further ahead"},
    {"drafts/deepseek_v3/target", 2, false, "a head beside a model on 2 ranks; allowed: 1"},
};

static void test_auto(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(AUTO); i++) {
        char target[256], said[512] = "";
        snprintf(target, sizeof target, MSGL_SOURCE_DIR "/tests/vectors/%s", AUTO[i].model);
        msgl_options o = harness_config(target, "float32");
        o.speculative_algorithm = "auto";
        o.tp_size = AUTO[i].ranks;
        o.log = keep_line;
        o.ctx = said;
        harness h;
        harness_open(&h, &o);
        const char *begin = AUTO[i].head ? "NEXTN, by the head" : "SUFFIX; not NEXTN: ";
        if (strncmp(said, begin, strlen(begin)) != 0 || strstr(said, AUTO[i].reason) == NULL) {
            fail_msg("%s: %s", AUTO[i].model, said);
        }
        assert_int_equal(h.r->max_propose > 0, AUTO[i].head);
        assert_int_equal(h.e->hidden.kind != MSGL_HIDDEN_NONE, AUTO[i].head);
        assert_true(h.r->max_drafts > 0); // SUFFIX takes what there is room for
        harness_close(&h);
    }
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        vectors v = CASES[i];
        char target[256], draft[256];
        folders(&v, target, draft);
        v.algorithm = "auto";
        if (draft[0] == '\0') check(&v, 5);
    }
}

// The shipped model's own answer to its question, verified chain by chain: how many tokens a step
// brings. One token less would come with drafts of next to no use.
static void check_acceptance(const vectors *v)
{
    enum { TOKENS = 60, EOS = 6137 }; // <|im_end|>, of models/demo/config.json
    char target[256], draft[256], path[256];
    int32_t ids[MAX_IDS], drafts[MSGL_MAX_PROPOSALS];
    folders(v, target, draft);
    msgl_options o = harness_config(target, "float32");
    o.speculative_algorithm = v->algorithm;
    o.speculative_draft_model_path = draft;
    snprintf(path, sizeof path, VECTORS "%s/drafts.json", v->name);
    const int32_t n = load_ids(path, "ids", ids, MAX_IDS) - 1;
    harness h;
    harness_open(&h, &o);
    harness_pages(&h, 0, n + TOKENS + 2 * DRAFTS + 2);
    harness_tokens(&h, 0, ids, n);
    msgl_batch_req r = harness_req(0, 0, n);
    r.logits_from = n - 1;
    r.propose = DRAFTS;
    harness_step(&h, MSGL_PREFILL, &r, 1);
    int32_t steps = 0, tokens = 0, len = n;
    bool ended = false;
    while (tokens < TOKENS && !ended) {
        const int32_t num = h.result.num_proposals[0];
        memcpy(drafts, h.result.proposals, (size_t)num * sizeof *drafts);
        r = harness_req(0, len, len + 1 + num);
        r.prompt_len = n;
        r.num_drafts = num;
        r.drafts = drafts;
        r.propose = DRAFTS;
        harness_step(&h, MSGL_PREFILL, &r, 1);
        const int32_t more = h.result.cu_tokens[1];
        for (int32_t i = 0; i < more; i++) ended = ended || h.result.tokens[i] == EOS;
        len += more;
        tokens += more;
        steps++;
    }
    harness_close(&h);
    print_message("%s: %d tokens, %.2f a step\n", v->name, (int)tokens, (double)tokens / steps);
    assert_true(2 * tokens > 5 * steps);
}

static void test_acceptance(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        if (CASES[i].demo) check_acceptance(&CASES[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chains), cmocka_unit_test(test_auto),
                                       cmocka_unit_test(test_acceptance)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
