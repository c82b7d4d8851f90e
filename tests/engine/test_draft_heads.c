// SPDX-License-Identifier: Apache-2.0
//
// Draft heads against the arithmetic of their originals (tests/vectors/drafts): the logits of a
// chain of four drafts behind a prompt, computed at once and in chunks, by a model on one rank and
// on two, of which the first has the head.
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "harness.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define ON_CPU (strcmp(TEST_DEVICE, "cpu") == 0) // where there are ranks

#define VECTORS MSGL_SOURCE_DIR "/tests/vectors/drafts/"

enum { MAX_IDS = 64, DRAFTS = 4, NODES = 15 }; // of a chain; of a tree of that depth

typedef struct vectors {
    const char *name, *algorithm;
    bool demo;    // of the shipped model
    bool experts; // the model has some
} vectors;

static const vectors CASES[] = {
    {"eagle3", "EAGLE3", false, false},          {"eagle3_wide", "EAGLE3", false, false},
    {"eagle3_entering", "EAGLE3", false, false}, {"eagle3_speculators", "EAGLE3", false, false},
    {"qwen3_mtp", "NEXTN", false, false},        {"qwen3_next", "NEXTN", false, true},
    {"deepseek_v3", "NEXTN", false, true},       {"glm4_moe_lite", "NEXTN", false, true},
    {"glm4_moe", "NEXTN", false, true},          {"mimo_v2", "NEXTN", false, true},
    {"nemotron_h", "NEXTN", false, true},        {"demo_eagle3", "EAGLE3", true, false},
    {"demo_mtp", "NEXTN", true, false}};

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

static int g_topk = 1; // of the next models

// A model of these folders on so many ranks, without the head if `algorithm` is "none".
static void open_model(harness *h, const char *target, const char *draft, const char *algorithm,
                       const harness_target *t)
{
    const bool own = draft[0] != '\0' && strcmp(algorithm, "none") != 0; // a folder
    harness_target here = *t;
    here.device = TEST_DEVICE;
    here.graph_max_bs = ON_CPU ? 0 : 16;
    msgl_options o = harness_config_for(target, "float32", &here);
    o.speculative_algorithm = algorithm;
    o.speculative_draft_model_path = own ? draft : NULL;
    o.speculative_eagle_topk = g_topk;
    harness_open(h, &o);
}

static void compare(const vectors *v, const seen *s)
{
    char path[256];
    const size_t size = (size_t)s->num * (size_t)s->vocab;
    snprintf(path, sizeof path, VECTORS "%s/logits.bin", v->name);
    float *expected = load_floats(path, size);
    double worst = 0;
    for (size_t i = 0; i < size; i++) {
        const double diff = (double)s->rows[i] - (double)expected[i];
        if (diff > worst || -diff > worst) worst = diff > 0 ? diff : -diff;
    }
    free(expected);
    if (!(worst < 1e-3)) fail_msg("%s: logits differ by %g", v->name, worst);
}

enum { LAST = -1 }; // chunk: all but the last

// chunk: tokens of the prompt that are computed before the others; 0: none.
static void check(const vectors *v, int32_t chunk, const harness_target *t)
{
    char target[256], draft[256], path[256];
    int32_t ids[MAX_IDS], drafts[DRAFTS];
    folders(v, target, draft);
    snprintf(path, sizeof path, VECTORS "%s/drafts.json", v->name);
    const int32_t n = load_ids(path, "ids", ids, MAX_IDS) - 1;
    const int32_t num = load_ids(path, "drafts", drafts, DRAFTS);
    if (chunk == LAST) chunk = n - 1;
    harness h;
    open_model(&h, target, draft, v->algorithm, t);
    const msgl_draft_model *d = h.e->draft;
    const int32_t heads = msgl__draft_model_engines(d);
    assert_true(heads == 1 ? num == DRAFTS : num == heads && h.r->max_propose == heads);
    seen s = {.vocab = msgl__engine_info(msgl__draft_model_engine(d, 0))->vocab_size};
    s.rows = calloc(DRAFTS * (size_t)s.vocab, sizeof *s.rows);
    assert_non_null(s.rows);
    for (int32_t i = 0; i < heads; i++) {
        msgl_engine *head = msgl__draft_model_engine(d, i);
        assert_int_equal(msgl__engine_observe_logits(head, on_logits, &s), 0);
    }
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
    assert_int_equal(h.result.num_proposals[0], num);
    assert_memory_equal(h.result.proposals, drafts, (size_t)num * sizeof *drafts);
    assert_int_equal(s.num, num);
    compare(v, &s);
    free(s.rows);
    harness_close(&h);
}

// A GPU's recurrence and latent attention are of other sizes, and not in float32.
static bool runs_here(const vectors *v)
{
    static const char *const others[] = {"qwen3_next", "deepseek_v3", "glm4_moe_lite",
                                         "nemotron_h"};
    for (size_t i = 0; i < MSGL_COUNT(others) && !ON_CPU; i++) {
        if (strcmp(v->name, others[i]) == 0) return false;
    }
    return true;
}

static void test_chains(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        if (!runs_here(&CASES[i])) continue;
        check(&CASES[i], 0, &(harness_target){0});
        check(&CASES[i], 5, &(harness_target){0});
        check(&CASES[i], LAST, &(harness_target){0});
    }
}

// The ranks that have no head compute what the head reads with the one that has it.
static void test_chains_of_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        check(&CASES[i], 0, &(harness_target){.ranks = 2});
        check(&CASES[i], 5, &(harness_target){.ranks = 2});
        if (CASES[i].experts) check(&CASES[i], 5, &(harness_target){.ranks = 2, .expert_ranks = 2});
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
    const char *reason; // or what else the line says
} AUTO[] = {
    {"drafts/qwen3_next/target", 1, true, ""},
    {"drafts/deepseek_v3/target", 1, true, ""},
    {"drafts/glm4_moe_lite/target", 1, true, ""},
    {"drafts/mimo_v2/target", 1, true, "3 heads in the model's files"},
    {"drafts/nemotron_h/target", 1, true, ""},
    // config.json announces a head (num_nextn_predict_layers), or its kind of model has one.
    {"models/deepseek_v3", 1, false,
     "deepseek_v3/model.safetensors: tensor model.layers.2.shared_head.norm.weight: missing"},
    {"models/mimo_v2", 1, false,
     "mimo_v2/model.safetensors: tensor model.mtp.layers.0.final_layernorm.weight: missing"},
    {"models/nemotron_h", 1, false,
     "nemotron_h/model.safetensors: tensor mtp.layers.1.final_layernorm.weight: missing"},
    {"models/qwen3_next", 1, false, "qwen3_next/model.safetensors: tensor mtp."},
    {"models/qwen3", 1, false, "Qwen3ForCausalLM has no layers that predict tokens further ahead"},
    {"drafts/deepseek_v3/target", 2, true, ""},
    {"drafts/mimo_v2/target", 2, true, "3 heads in the model's files"},
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
        const char *begin = AUTO[i].head ? "NEXTN, by the " : "SUFFIX; not NEXTN: ";
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
        if (draft[0] == '\0') check(&v, 5, &(harness_target){0});
    }
}

// A head that reads the stream between layers, where there are several.
static void test_streams_refused(void **state)
{
    (void)state;
    static const char *const refused[][2] = {
        {"qwen4_exp", "Qwen4ExpForCausalLM has 3 (hc_count); allowed: SUFFIX"},
        {"deepseek_v4", "DeepseekV4ForCausalLM has 4 (hc_mult); allowed: SUFFIX"}};
    for (size_t i = 0; i < MSGL_COUNT(refused); i++) {
        char target[256];
        harness h;
        msgl_err err = {0};
        snprintf(target, sizeof target, MSGL_SOURCE_DIR "/tests/vectors/models/%s", refused[i][0]);
        msgl_options o = harness_config(target, "float32");
        o.speculative_algorithm = "EAGLE3";
        o.speculative_draft_model_path = MSGL_SOURCE_DIR "/tests/vectors/drafts/eagle3/draft";
        assert_int_equal(harness_try_open(&h, &o, &err), MSGL_EUNSUPPORTED);
        if (strstr(err.text, refused[i][1]) == NULL) fail_msg("%s", err.text);
    }
}

// The shipped model with a head, and its question computed; how many tokens that has.
static int32_t ask(harness *h, const vectors *v, const harness_target *t, int32_t more)
{
    char target[256], draft[256], path[256];
    int32_t ids[MAX_IDS];
    folders(v, target, draft);
    snprintf(path, sizeof path, VECTORS "%s/drafts.json", v->name);
    const int32_t n = load_ids(path, "ids", ids, MAX_IDS) - 1;
    open_model(h, target, draft, v->algorithm, t);
    harness_pages(h, 0, n + more + 2 * NODES + 2);
    harness_tokens(h, 0, ids, n);
    msgl_batch_req r = harness_req(0, 0, n);
    r.logits_from = n - 1;
    r.propose = DRAFTS;
    r.propose_nodes = g_topk > 1 ? NODES : 0;
    harness_step(h, MSGL_PREFILL, &r, 1);
    return n;
}

typedef struct drafts {
    int32_t tokens[MSGL_MAX_DRAFTS];
    int16_t parents[MSGL_MAX_DRAFTS];
} drafts;

// Behind `len` tokens, the step that verifies what the last one has left; *d has to stay while it
// runs.
static msgl_batch_req verify(const harness *h, int32_t n, int32_t len, drafts *d)
{
    const int32_t num = h->result.num_proposals[0];
    memcpy(d->tokens, h->result.proposals, (size_t)num * sizeof *d->tokens);
    memcpy(d->parents, h->result.proposal_parents, (size_t)num * sizeof *d->parents);
    msgl_batch_req r = harness_req(0, len, len + 1 + num);
    r.prompt_len = n;
    r.num_drafts = num;
    r.drafts = d->tokens;
    r.propose = DRAFTS;
    if (g_topk == 1) return r;
    r.draft_parents = d->parents;
    r.propose_nodes = NODES;
    return r;
}

// What heads say behind an answer whose drafts were mostly wrong is what they say behind the same
// tokens as a prompt: nothing of wrong drafts stays.
static void test_behind_answers(void **state)
{
    (void)state;
    enum { STEPS = 6, MORE = STEPS * (DRAFTS + 1) };
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        const vectors *v = &CASES[i];
        char path[256], target[256], draft[256];
        int32_t tokens[MAX_IDS + MORE], said[DRAFTS], num = 0, wrong = 0;
        harness h;
        drafts d;
        if (v->demo || !runs_here(v)) continue;
        snprintf(path, sizeof path, VECTORS "%s/drafts.json", v->name);
        (void)load_ids(path, "ids", tokens, MAX_IDS);
        const int32_t n = ask(&h, v, &(harness_target){0}, MORE);
        // A scheduler says which states a step begins with: test_with_engine.c.
        const msgl_cache_layout *c = &h.info->cache;
        const bool states = c->spans[c->num_spans - 1].kind == MSGL_SPAN_STATE;
        for (int32_t step = 0; step < STEPS && !states; step++) {
            msgl_batch_req r = verify(&h, n, n + num, &d);
            harness_step(&h, MSGL_PREFILL, &r, 1);
            wrong += h.result.cu_tokens[1] <= r.num_drafts;
            for (int32_t k = 0; k < h.result.cu_tokens[1]; k++) {
                tokens[n + 1 + num++] = h.result.tokens[k];
            }
        }
        assert_true(states || wrong > STEPS / 2);
        const int32_t all = h.result.num_proposals[0];
        memcpy(said, h.result.proposals, (size_t)all * sizeof *said);
        harness_close(&h);
        if (states) continue;
        folders(v, target, draft);
        open_model(&h, target, draft, v->algorithm, &(harness_target){0});
        harness_pages(&h, 0, n + num + DRAFTS + 2);
        harness_tokens(&h, 0, tokens, n + num);
        msgl_batch_req r = harness_req(0, 0, n + num);
        r.logits_from = n + num - 1;
        r.prompt_len = n + num;
        r.propose = DRAFTS;
        harness_step(&h, MSGL_PREFILL, &r, 1);
        if (h.result.tokens[0] != tokens[n + num]) fail_msg("%s: another answer", v->name);
        assert_int_equal(h.result.num_proposals[0], all);
        if (memcmp(h.result.proposals, said, (size_t)all * sizeof *said) != 0) {
            fail_msg("%s: other drafts", v->name);
        }
        harness_close(&h);
    }
}

enum { TOKENS = 60, EOS = 6137 }; // <|im_end|>, of models/demo/config.json

// The shipped model's own answer to its question, verified chain by chain, up to its end or TOKENS
// of whatever comes. Returns the steps.
static int32_t answer(const vectors *v, const harness_target *t, bool past_end, int32_t *tokens,
                      int32_t *num)
{
    harness h;
    drafts d;
    int32_t steps = 0;
    const int32_t n = ask(&h, v, t, TOKENS);
    bool ended = false;
    for (*num = 0; *num < TOKENS && !ended; steps++) {
        msgl_batch_req r = verify(&h, n, n + *num, &d);
        harness_step(&h, MSGL_PREFILL, &r, 1);
        for (int32_t i = 0; i < h.result.cu_tokens[1]; i++) {
            ended = ended || (h.result.tokens[i] == EOS && !past_end);
            tokens[(*num)++] = h.result.tokens[i];
        }
    }
    harness_close(&h);
    return steps;
}

// How many tokens a step brings: one less would come with drafts of next to no use. On two ranks as
// many.
static void test_acceptance(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        int32_t tokens[2][TOKENS + DRAFTS + 1], num[2], steps[2];
        if (!CASES[i].demo) continue;
        for (int32_t k = 0; k < 1 + ON_CPU; k++) {
            const harness_target t = {.ranks = 1 + k};
            steps[k] = answer(&CASES[i], &t, false, tokens[k], &num[k]);
        }
        print_message("%s: %d tokens, %.2f a step\n", CASES[i].name, (int)num[0],
                      (double)num[0] / steps[0]);
        assert_true(2 * num[0] > 5 * steps[0]);
        if (!ON_CPU) continue;
        assert_int_equal(num[1], num[0]);
        assert_memory_equal(tokens[1], tokens[0], (size_t)num[0] * sizeof **tokens);
        assert_int_equal(steps[1], steps[0]);
    }
}

// Trees of drafts are right more often than the chain that is their likeliest path, and the answer
// is the same.
static void test_trees(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        int32_t tokens[2][TOKENS + DRAFTS + 1], num[2], steps[2];
        if (!CASES[i].demo) continue;
        for (int32_t k = 0; k < 2; k++) {
            g_topk = k == 0 ? 1 : 4;
            steps[k] = answer(&CASES[i], &(harness_target){0}, true, tokens[k], &num[k]);
        }
        g_topk = 1;
        print_message("%s: %.2f a step in chains, %.2f in trees of %d\n", CASES[i].name,
                      (double)num[0] / steps[0], (double)num[1] / steps[1], (int)NODES);
        assert_memory_equal(tokens[1], tokens[0], TOKENS * sizeof **tokens);
        assert_true(steps[1] < steps[0]);
    }
}

// Beside several ranks a head's bytes are those on one, and of embedding and product of logits, of
// which the ranks have shards, what it has none of its own of: none, the one or both, or the one
// that is both.
static void test_weights_of_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t shared; // of [vocabulary, hidden]
    } wanted[] = {
        {"eagle3_wide", 0}, {"eagle3", 1}, {"qwen3_mtp", 1}, {"deepseek_v3", 2}, {"mimo_v2", 2}};
    for (size_t i = 0; i < MSGL_COUNT(wanted); i++) {
        const vectors *v = CASES;
        while (strcmp(v->name, wanted[i].name) != 0) v++;
        char target[256], draft[256];
        folders(v, target, draft);
        size_t of_head[2], one = 0;
        for (int32_t k = 0; k < 2; k++) {
            const harness_target t = {.ranks = 1 + k};
            size_t bytes[2];
            for (int with = 0; with < 2; with++) {
                harness h;
                open_model(&h, target, draft, with ? v->algorithm : "none", &t);
                bytes[with] = h.info->weight_bytes;
                msgl_weight whole = h.e->model.embed;
                whole.n = h.info->vocab_size;
                one = msgl__weight_bytes(&whole);
                harness_close(&h);
            }
            of_head[k] = bytes[1] - bytes[0];
        }
        const size_t more = of_head[1] - of_head[0], least = wanted[i].shared * one;
        if (more < least || more >= least + 64 * (wanted[i].shared + 1)) // places are whole lines
            fail_msg("%s: %zu bytes more, of %zu each", v->name, more, one);
    }
}

// A rank ends while a step verifies drafts, for which rank 0 waits: its name is the error, as of
// any step, and nobody is left.
static void test_rank_killed(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        if (!CASES[i].demo) continue;
        harness h;
        drafts d;
        const int32_t n = ask(&h, &CASES[i], &(harness_target){.ranks = 2}, TOKENS);
        const pid_t other = msgl__ranks_process(&h.e->place, 1);
        msgl_batch_req r = verify(&h, n, n, &d);
        msgl_batch b = {.size = 1, .num_tokens = 1 + r.num_drafts, .reqs = &r};
        assert_int_equal(r.num_drafts, DRAFTS);
        kill(other, SIGSTOP); // so that the step does not end before
        assert_int_equal(h.r->submit(h.r->ctx, &b), 0);
        kill(other, SIGKILL);
        assert_int_equal(h.r->wait(h.r->ctx, 0, &h.result), MSGL_EPEER);
        assert_string_equal(h.r->fault(h.r->ctx), "rank 1 of 2 failed");
        harness_close(&h);
        assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
        assert_int_equal(errno, ECHILD);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chains), cmocka_unit_test(test_behind_answers),
        cmocka_unit_test(test_acceptance), cmocka_unit_test(test_trees)};
    const struct CMUnitTest on_cpu[] = {
        cmocka_unit_test(test_chains_of_ranks), cmocka_unit_test(test_weights_of_ranks),
        cmocka_unit_test(test_rank_killed), cmocka_unit_test(test_auto),
        cmocka_unit_test(test_streams_refused)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return !ON_CPU ? failed : failed + cmocka_run_group_tests(on_cpu, NULL, NULL);
}
