// SPDX-License-Identifier: Apache-2.0
//
// The engine as a whole: what start-up refuses, greedy decoding against transformers with steps in
// flight, log-probabilities, random weights, NaN, and no heap calls while decoding.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "engine/harness.h"
#include "models/folder.h"

enum { TOKENS = 64, PATH = 512 };

#define MODEL(name) MSGL_SOURCE_DIR "/tests/vectors/models/" name

static void expect_failure(const msgl_options *cfg, int code, const char *a, const char *b)
{
    msgl_engine *e = NULL;
    msgl_err err = {0};
    const int got = msgl__engine_create(cfg, NULL, &e, &err);
    if (got != code || strstr(err.text, a) == NULL || strstr(err.text, b) == NULL ||
        strchr(err.text, '\n') != NULL) {
        fail_msg("expected %d, %s, %s; got %d \"%s\"", code, a, b, got, err.text);
    }
    assert_null(e);
}

static void test_flags(void **state)
{
    (void)state;
    msgl_options c = harness_config(MODEL("qwen3"), "int8");
    expect_failure(&c, MSGL_EINVAL, "dtype is \"int8\"", "bfloat16");
    c = harness_config(MODEL("qwen3"), "auto");
    c.device = "tpu";
    expect_failure(&c, MSGL_EINVAL, "--device", "cpu");
    c = harness_config(MODEL("qwen3"), "auto");
    c.moe_backend = "fused";
    expect_failure(&c, MSGL_EINVAL, "moe_backend is \"fused\"", "auto|grouped");
    c = harness_config(MODEL("qwen3"), "auto");
    c.cpu_level = "sse9";
    expect_failure(&c, MSGL_EINVAL, "sse9", "avx2");
    c = harness_config(MODEL("qwen3"), "auto");
    c.memory_ratio = 1.5;
    expect_failure(&c, MSGL_EINVAL, "memory_ratio is \"1.5\"", "0.01 to 0.99");
    c = harness_config("/nonexistent", "auto");
    expect_failure(&c, MSGL_ENOENT, "/nonexistent/config.json", "No such file");
    c = harness_config(MODEL("qwen3"), "auto");
    c.num_pages = 1;
    c.page_size = 1;
    expect_failure(&c, MSGL_EINVAL, "--num-pages 1", "a request needs at least 2");
    c = harness_config(MODEL("qwen3"), "auto");
    c.num_pages = INT32_MAX / 2;
    expect_failure(&c, MSGL_ENOMEM, "--num-pages", "MiB");
}

// A config whose weights no machine holds is refused by the plan, before memory is touched.
static void test_too_large(void **state)
{
    (void)state;
    folder f;
    folder_make(&f);
    json_t *c = small_config("LlamaForCausalLM");
    set_field(c, "hidden_size", "131072");
    set_field(c, "intermediate_size", "1048576");
    set_field(c, "num_hidden_layers", "1024");
    set_field(c, "vocab_size", "16777216");
    folder_write_json(&f, "config.json", c);
    msgl_options cfg = harness_config(f.dir, "auto");
    cfg.dummy_weight = true;
    expect_failure(&cfg, MSGL_ENOMEM, "need", "too large for this machine");
    json_decref(c);
    c = small_config("Qwen3MoeForCausalLM");
    set_field(c, "num_hidden_layers", "1024");
    set_field(c, "num_experts", "1024");
    folder_write_json(&f, "config.json", c);
    expect_failure(&cfg, MSGL_ELIMIT, "too many tensors", "experts");
    json_decref(c);
    folder_remove(&f);
}

// A copy of the qwen3 vectors whose safetensors header can be edited.
typedef struct copy {
    folder f;
    json_t *header;
    uint8_t *data;
    size_t size;
} copy;

static void copy_model(copy *c)
{
    folder_make(&c->f);
    json_t *config = json_load_file(MODEL("qwen3") "/config.json", 0, NULL);
    assert_non_null(config);
    folder_write_json(&c->f, "config.json", config);
    json_decref(config);
    FILE *f = fopen(MODEL("qwen3") "/model.safetensors", "rb");
    assert_non_null(f);
    uint8_t len[8];
    assert_int_equal(fread(len, 1, 8, f), 8);
    const size_t n = (size_t)len[0] | (size_t)len[1] << 8 | (size_t)len[2] << 16;
    char *text = malloc(n);
    assert_int_equal(fread(text, 1, n, f), n);
    c->header = json_loadb(text, n, 0, NULL);
    assert_non_null(c->header);
    free(text);
    c->data = malloc(64 << 20);
    c->size = fread(c->data, 1, 64 << 20, f);
    fclose(f);
}

static void write_copy(const copy *c)
{
    char *text = json_dumps(c->header, JSON_COMPACT);
    write_safetensors(&c->f, "model.safetensors", text, c->data, c->size);
    free(text);
}

static void free_copy(copy *c)
{
    json_decref(c->header);
    free(c->data);
    folder_remove(&c->f);
}

static void expect_copy_failure(const copy *c, int code, const char *a, const char *b)
{
    write_copy(c);
    const msgl_options cfg = harness_config(c->f.dir, "auto");
    expect_failure(&cfg, code, a, b);
}

static void test_checkpoints(void **state)
{
    (void)state;
    const char *const k_proj = "model.layers.1.self_attn.k_proj.weight";
    copy c;
    copy_model(&c);
    json_t *entry = json_deep_copy(json_object_get(c.header, k_proj));
    json_object_set_new(c.header, "model.layers.1.self_attn.k_proj.weights", entry);
    json_object_del(c.header, k_proj);
    expect_copy_failure(&c, MSGL_EFORMAT, k_proj, "missing");
    free_copy(&c);

    copy_model(&c); // a tensor without elements needs no data
    json_object_set_new(
        c.header, "model.layers.7.mlp.gate_proj.weight",
        json_pack("{s:s, s:[i,i], s:[i,i]}", "dtype", "BF16", "shape", 0, 4, "data_offsets", 0, 0));
    expect_copy_failure(&c, MSGL_EFORMAT, "model.layers.7.mlp.gate_proj.weight", "no such");
    json_object_del(c.header, "model.layers.7.mlp.gate_proj.weight");
    json_object_set_new(
        c.header, "model.layers.0.self_attn.rotary_emb.inv_freq",
        json_pack("{s:s, s:[i], s:[i,i]}", "dtype", "F32", "shape", 0, "data_offsets", 0, 0));
    write_copy(&c);
    harness h; // a leftover that published files have is no reason to refuse
    const msgl_options cfg = harness_config(c.f.dir, "auto");
    harness_open(&h, &cfg);
    harness_close(&h);
    free_copy(&c);

    copy_model(&c);
    json_t *shape = json_object_get(json_object_get(c.header, k_proj), "shape");
    const json_int_t rows = json_integer_value(json_array_get(shape, 0));
    json_array_set_new(shape, 0, json_integer(rows / 2));
    json_array_set_new(shape, 1, json_integer(json_integer_value(json_array_get(shape, 1)) * 2));
    expect_copy_failure(&c, MSGL_EFORMAT, k_proj, "expected [");
    json_array_append_new(shape, json_integer(1));
    expect_copy_failure(&c, MSGL_EFORMAT, k_proj, "shape: found [");
    free_copy(&c);

    copy_model(&c);
    set_field(json_object_get(c.header, k_proj), "dtype", "\"I16\"");
    expect_copy_failure(&c, MSGL_EUNSUPPORTED, k_proj, "found I16, expected F32, F16 or BF16");
    free_copy(&c);

    copy_model(&c);
    c.size -= 1;
    expect_copy_failure(&c, MSGL_EFORMAT, "model.safetensors", "data");
    c.size = 0;
    expect_copy_failure(&c, MSGL_EFORMAT, "model.safetensors", "0 bytes of data");
    free_copy(&c);
}

// Weights that are NaN give no token and a status of their own, and the engine goes on.
static void test_nan(void **state)
{
    (void)state;
    copy c;
    copy_model(&c);
    const json_t *at =
        json_object_get(json_object_get(c.header, "model.norm.weight"), "data_offsets");
    const size_t from = (size_t)json_integer_value(json_array_get(at, 0));
    c.data[from] = c.data[from + 1] = 0xff;
    write_copy(&c);
    harness h;
    const msgl_options cfg = harness_config(c.f.dir, "auto");
    harness_open(&h, &cfg);
    const int32_t ids[] = {1, 2, 3};
    harness_pages(&h, 0, 8);
    harness_tokens(&h, 0, ids, 3);
    for (int i = 0; i < 2; i++) {
        msgl_batch_req r = harness_req(0, i == 0 ? 0 : 3, i == 0 ? 3 : 4);
        r.sampling.logprobs = 3;
        harness_step(&h, i == 0 ? MSGL_PREFILL : MSGL_DECODE, &r, 1);
        assert_int_equal(h.result.tokens[0], -1);
        assert_int_equal(h.result.status[0], MSGL_ENUMERIC);
        assert_int_equal(h.result.num_logprobs, 1);
        assert_int_equal(h.result.logprobs[0].num_top, 0);
        assert_true(isnan(h.result.logprobs[0].logprob));
    }
    harness_close(&h);
    free_copy(&c);
}

// Greedy decoding with two steps in flight, the host never seeing a token before the next step is
// submitted, gives transformers' tokens.
static void check_greedy(const char *model)
{
    char dir[PATH], prompt[PATH];
    int32_t ids[TOKENS], want[TOKENS], prompt_len;
    snprintf(dir, sizeof dir, MODEL("%s"), model);
    snprintf(prompt, sizeof prompt, MODEL("%s/prompt.json"), model);
    load_ids(prompt, "ids", ids, TOKENS);
    const int32_t n = load_ids(prompt, "greedy", want, TOKENS);
    json_t *root = json_load_file(prompt, 0, NULL);
    prompt_len = (int32_t)json_integer_value(json_object_get(root, "greedy_prompt_len"));
    json_decref(root);

    harness h;
    const msgl_options cfg = harness_config(dir, "float32");
    harness_open(&h, &cfg);
    harness_pages(&h, 5, prompt_len + n + 1);
    harness_tokens(&h, 5, ids, prompt_len);
    msgl_step_result result;
    for (int32_t step = 0; step <= n; step++) {
        if (step < n) {
            const int32_t len = prompt_len + step;
            msgl_batch_req r = harness_req(5, step == 0 ? 0 : len - 1, len);
            r.logits_from = msgl__extend_len(&r) - 1;
            r.prompt_len = prompt_len;
            msgl_batch b = {.size = 1,
                            .num_decode = step == 0 ? 0 : 1,
                            .num_tokens = msgl__extend_len(&r),
                            .reqs = &r,
                            .step_slot = step % 2};
            assert_int_equal(h.r->submit(h.r->ctx, &b), 0);
        }
        if (step == 0) continue;
        assert_int_equal(h.r->wait(h.r->ctx, (step - 1) % 2, &result), 0);
        if (result.tokens[0] != want[step - 1]) {
            fail_msg("%s: token %d is %d, expected %d", model, step - 1, result.tokens[0],
                     want[step - 1]);
        }
    }
    harness_close(&h);
}

static void test_greedy(void **state)
{
    (void)state;
    // llama_rope_dynamic is not among them: transformers changes the base at every token there.
    const char *const models[] = {"llama",  "llama_rope_yarn",    "mistral_swa",     "qwen2_gqa7",
                                  "qwen3",  "qwen3_moe",          "qwen3_moe_mixed", "llama_f16",
                                  "llama4", "gemma4_conditional", "gemma4_moe",      "gemma4_kv",
                                  "mimo_v2"};
    for (size_t i = 0; i < MSGL_COUNT(models); i++) check_greedy(models[i]);
}

// Records of prompt rows and of the sampled row against the logits themselves.
static void test_logprobs(void **state)
{
    (void)state;
    harness h;
    int32_t ids[TOKENS];
    load_ids(MODEL("qwen3") "/prompt.json", "ids", ids, TOKENS);
    const msgl_options cfg = harness_config(MODEL("qwen3"), "auto");
    harness_open(&h, &cfg);
    msgl_batch_req reqs[3];
    for (int32_t i = 0; i < 3; i++) {
        harness_pages(&h, i, TOKENS + 1);
        harness_tokens(&h, i, ids, TOKENS);
        reqs[i] = harness_req(i, 0, 10 + i);
    }
    reqs[0].sampling.prompt_logprobs = 4;
    reqs[0].sampling.logprobs = 2;
    reqs[1].logits_from = reqs[1].device_len - reqs[1].cached_len - 1; // only its token
    reqs[2].sampling.prompt_logprobs = 0;
    reqs[2].sample = false; // a chunk that is not the last: its last row predicts a prompt token
    harness_step(&h, MSGL_PREFILL, reqs, 3);
    assert_int_equal(h.result.num_logprobs, 10 + 12);
    const int32_t cu_tokens[] = {0, 1, 2, 2};
    assert_memory_equal(h.result.cu_tokens, cu_tokens, sizeof cu_tokens);
    for (int32_t i = 0; i < h.result.num_logprobs; i++) {
        const msgl_token_logprobs *rec = &h.result.logprobs[i];
        const int32_t req = i < 10 ? 0 : 2, pos = i < 10 ? i + 1 : i - 10 + 1;
        const bool sampled = req == 0 && pos == 10;
        assert_int_equal(rec->req, req);
        assert_int_equal(rec->position, pos);
        assert_int_equal(rec->token, sampled ? h.result.tokens[0] : ids[pos]);
        assert_int_equal(rec->num_top, sampled ? 2 : req == 0 ? 4 : 0);
        const float *row = harness_row(&h, req == 0 ? pos - 1 : 10 + 11 + pos - 1);
        assert_true(fabsf(rec->logprob - row[rec->token]) < 1e-5f);
        int32_t better = 0, equal = 0; // after the rounding of `row`
        for (int32_t t = 0; t < h.info->vocab_size; t++) {
            better += row[t] > row[rec->token];
            equal += row[t] == row[rec->token];
        }
        assert_true(rec->rank > better && rec->rank <= better + equal);
        for (int32_t t = 0; t < rec->num_top; t++) {
            assert_true(fabsf(rec->top_logprobs[t] - row[rec->top_ids[t]]) < 1e-5f);
        }
    }
    harness_close(&h);
}

// Random weights of every architecture: finite, near-uniform logits, the same every time.
static void test_dummy(void **state)
{
    (void)state;
    for (int i = 0; i < msgl__arch_count(); i++) {
        if (msgl__arch_at(i)->family->encodes) continue; // which have no logits
        folder f;
        folder_make(&f);
        json_t *c = small_config(msgl__arch_at(i)->name);
        folder_write_json(&f, "config.json", c);
        json_decref(c);
        float first[50];
        for (int run = 0; run < 2; run++) {
            harness h;
            msgl_options cfg = harness_config(f.dir, "auto");
            cfg.dummy_weight = true;
            harness_open(&h, &cfg);
            const int32_t ids[] = {7, 3, 11, 49};
            harness_pages(&h, 0, 8);
            harness_tokens(&h, 0, ids, 4);
            msgl_batch_req r = harness_req(0, 0, 4);
            harness_step(&h, MSGL_PREFILL, &r, 1);
            const float *row = harness_row(&h, 3);
            for (int t = 0; t < 50; t++) assert_true(row[t] < 0 && row[t] > -10);
            if (run == 0) memcpy(first, row, sizeof first);
            assert_memory_equal(first, row, sizeof first);
            harness_close(&h);
        }
        folder_remove(&f);
    }
}

// What the router chose, as its kernel left it on the CPU: an expert's bit for each layer's rows.
static struct {
    void (*route)(msgl_exec *x, const msgl_router *how, const float *logits, int rows, int experts,
                  int32_t *ids, float *weights);
    int64_t sum;
    int32_t per_layer, rows; // of the layer so far
    uint64_t seen;
} routed;

static void route_and_note(msgl_exec *x, const msgl_router *how, const float *logits, int rows,
                           int experts, int32_t *ids, float *weights)
{
    routed.route(x, how, logits, rows, experts, ids, weights);
    for (int32_t i = 0; i < rows * how->top_k; i++) routed.seen |= 1ull << ids[i];
    routed.rows += rows;
    if (routed.rows < routed.per_layer) return;
    routed.sum += __builtin_popcountll(routed.seen);
    routed.seen = 0;
    routed.rows = 0;
}

// Experts are counted a layer and a phase, once however many blocks of rows a layer has, and by
// nobody before and behind.
static void test_expert_hits(void **state)
{
    (void)state;
    enum { PROMPT = 40, REQS = 30 }; // 1,200 tokens: more than the CPU's blocks of rows
    harness h;
    msgl_err err = {0};
    msgl_expert_hits hits[2] = {0};
    int32_t ids[PROMPT];
    msgl_batch_req reqs[REQS];
    msgl_options cfg = harness_config(MODEL("qwen3_moe"), "auto");
    cfg.dummy_weight = true;
    harness_open(&h, &cfg);
    assert_int_equal(h.info->num_experts, 8);
    assert_true(PROMPT * REQS > h.e->kernels.gemm.block_rows);
    routed.route = h.e->kernels.moe.route;
    h.e->kernels.moe.route = route_and_note;
    for (int32_t i = 0; i < REQS; i++) {
        for (int32_t t = 0; t < PROMPT; t++) ids[t] = (i * 31 + t * 7) % 250;
        harness_pages(&h, i, PROMPT + 2);
        harness_tokens(&h, i, ids, PROMPT);
        reqs[i] = harness_req(i, 0, PROMPT);
    }
    assert_int_equal(msgl__engine_count_experts(h.e, hits, &err), 0);
    routed.per_layer = PROMPT * REQS;
    harness_step(&h, MSGL_PREFILL, reqs, REQS);
    assert_int_equal(hits[MSGL_PREFILL].layers, 2);
    assert_int_equal(hits[MSGL_PREFILL].experts, routed.sum);
    assert_int_equal(hits[MSGL_DECODE].layers, 0);
    routed.sum = 0;
    routed.per_layer = 3;
    for (int32_t i = 0; i < 3; i++) reqs[i].cached_len = PROMPT, reqs[i].device_len = PROMPT + 1;
    harness_step(&h, MSGL_DECODE, reqs, 3);
    assert_int_equal(hits[MSGL_DECODE].layers, 2);
    assert_int_equal(hits[MSGL_DECODE].experts, routed.sum);
    assert_true(routed.sum >= 2 * 2 && routed.sum <= 2 * 6);
    // Two layers of eight experts, of which the rest was not read.
    const double each = hits[MSGL_DECODE].unread_bytes / (double)(2 * 8 - routed.sum);
    assert_int_equal(hits[MSGL_DECODE].steps, 1);
    assert_true(each > 0 && 16 * each < (double)h.info->weight_bytes);
    assert_true(hits[MSGL_PREFILL].unread_bytes ==
                each * (double)(2 * 8 - hits[MSGL_PREFILL].experts));
    assert_int_equal(msgl__engine_count_experts(h.e, NULL, &err), 0);
    harness_step(&h, MSGL_DECODE, reqs, 3);
    assert_int_equal(hits[MSGL_DECODE].layers, 2);
    harness_close(&h);
}

// After warm-up, decode steps do not touch the heap: not with log-probabilities, not when requests
// come and go.
static void check_no_heap(const char *model)
{
    harness h;
    int32_t ids[TOKENS];
    load_ids(MODEL("qwen3_moe") "/prompt.json", "ids", ids, TOKENS);
    msgl_options cfg = harness_config(model, "auto");
    cfg.threads = 2;
    harness_open(&h, &cfg);
    msgl_batch_req reqs[16];
    uint64_t before = 0;
    for (int32_t round = 0; round < 3; round++) {
        if (round == 1) before = msgl__mem_allocs();
        for (int32_t i = 0; i < 16; i++) {
            harness_pages(&h, i, 20 + i + 8);
            harness_tokens(&h, i, ids, 20 + i);
            reqs[i] = harness_req(i, 0, 20 + i);
        }
        harness_step(&h, MSGL_PREFILL, reqs, 16);
        for (int32_t step = 0; step < 8; step++) {
            for (int32_t i = 0; i < 16; i++) {
                reqs[i].cached_len = 20 + i + step;
                reqs[i].device_len = reqs[i].cached_len + 1;
                reqs[i].sampling.temperature = i % 2 == 0 ? 0.8f : 0;
                reqs[i].sampling.top_k = i % 4 == 0 ? 20 : 0;
                reqs[i].sampling.top_p = 0.9f;
                reqs[i].sampling.logprobs = i % 3 == 0 ? 5 : -1;
            }
            harness_step(&h, MSGL_DECODE, reqs, 16 - step);
        }
    }
    assert_int_equal(msgl__mem_allocs() - before, 0);
    harness_close(&h);
}

static void test_no_heap(void **state)
{
    (void)state;
    check_no_heap(MODEL("qwen3_moe"));
    check_no_heap(MODEL("gemma2")); // of two groups
    check_no_heap(MODEL("deepseek_v3"));
}

// Every allocation of a start fails in turn: a clean error each time, nothing leaked.
static void check_out_of_memory(const char *model)
{
    msgl_options cfg = harness_config(model, "auto");
    int code = MSGL_ENOMEM;
    for (uint64_t nth = 1; code != 0 && nth < 2000; nth++) {
        msgl_engine *e = NULL;
        msgl_err err = {0};
        msgl__mem_fail_from(nth);
        code = msgl__engine_create(&cfg, NULL, &e, &err);
        msgl__mem_fail_from(0);
        if (code != 0 && (err.code != code || err.text[0] == '\0')) fail_msg("no text at %d", code);
        msgl__engine_destroy(e);
    }
    assert_int_equal(code, 0);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    check_out_of_memory(MODEL("qwen3"));
    check_out_of_memory(MODEL("gemma2"));
    check_out_of_memory(MODEL("deepseek_v3"));
}

typedef struct lines {
    int count;
    char text[2048];
} lines;

static void keep_line(void *ctx, const char *line)
{
    lines *l = ctx;
    l->count++;
    const size_t n = strlen(l->text);
    snprintf(l->text + n, sizeof l->text - n, "%s\n", line);
}

static void test_plan(void **state)
{
    (void)state;
    lines l = {0};
    msgl_options cfg = harness_config(MODEL("qwen3"), "auto");
    cfg.log = keep_line;
    cfg.ctx = &l;
    cfg.num_pages = 96;
    harness h;
    harness_open(&h, &cfg);
    assert_int_equal(h.info->num_pages, 96);
    assert_int_equal(h.info->max_seq_len, 96); // bounded by the pool
    assert_non_null(strstr(l.text, "warning: --max-seq-len-override 128 is cut to 96"));
    assert_true(h.info->kv_bytes > 0 && h.info->weight_bytes > 0 && h.info->workspace_bytes > 0);
    const char *const rows[] = {"memory plan", "weights",   "KV pages",
                                "96 pages",    "workspace", "left"};
    for (size_t i = 0; i < MSGL_COUNT(rows); i++) assert_non_null(strstr(l.text, rows[i]));
    harness_close(&h);
    cfg.num_pages = 0;
    cfg.max_seq_len = 5000;
    harness_open(&h, &cfg);
    assert_int_equal(h.info->max_seq_len, 5000);
    assert_non_null(strstr(l.text, "warning: --max-seq-len-override 5000 is beyond the "));
    harness_close(&h);
    cfg.num_pages = 0; // from the ratio, but never more than max_running requests can fill
    cfg.max_seq_len = 0;
    l = (lines){0};
    harness_open(&h, &cfg);
    assert_null(strstr(l.text, "warning"));
    assert_int_equal(h.info->num_pages, cfg.max_running * h.info->max_seq_len);
    assert_false(h.info->no_prefix_sharing);
    harness_close(&h);
    cfg = harness_config(MODEL("llama_rope_dynamic"), "auto");
    harness_open(&h, &cfg);
    assert_true(h.info->no_prefix_sharing);
    harness_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags),         cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_checkpoints),   cmocka_unit_test(test_nan),
        cmocka_unit_test(test_greedy),        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_dummy),         cmocka_unit_test(test_expert_hits),
        cmocka_unit_test(test_no_heap),       cmocka_unit_test(test_plan),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
