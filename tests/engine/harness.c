// SPDX-License-Identifier: Apache-2.0
#include "engine/harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/settings.h"
#include "device/devices.h"

msgl_options harness_config(const char *dir, const char *dtype)
{
    msgl_options o = {0};
    msgl__settings_default(&msgl__engine_settings, &o);
    o.model_dir = dir;
    o.device = "cpu";
    o.dtype = dtype;
    o.attention = "fa";
    o.threads = 1;
    o.max_running = 40;
    o.max_seq_len = 128;
    o.max_prefill_tokens = 4096;
    o.num_pages = 6144;
    o.memory_ratio = 0.5;
    o.graph_max_bs = 0;
    return o;
}

// log-softmax in double, so that its rounding is not part of what is compared.
static void keep_rows(void *ctx, const int32_t *rows, int32_t num_rows, int32_t vocab,
                      const float *logits)
{
    harness *h = ctx;
    for (int32_t r = 0; r < num_rows; r++) {
        const float *in = logits + (size_t)r * (size_t)vocab;
        float *out = h->logprobs + (size_t)rows[r] * (size_t)vocab;
        double max = -INFINITY, sum = 0;
        for (int32_t i = 0; i < vocab; i++) max = in[i] > max ? in[i] : max;
        for (int32_t i = 0; i < vocab; i++) sum += exp((double)in[i] - max);
        for (int32_t i = 0; i < vocab; i++) out[i] = (float)((double)in[i] - max - log(sum));
    }
}

msgl_options harness_config_for(const char *dir, const char *dtype, const harness_target *target)
{
    msgl_options c = harness_config(dir, dtype);
    if (target->device != NULL) c.device = target->device;
    if (target->attention != NULL) c.attention = target->attention;
    if (target->page_size > 0) c.page_size = target->page_size;
    if (target->threads > 0) c.threads = target->threads;
    if (target->max_seq_len > 0) c.max_seq_len = target->max_seq_len;
    if (target->ranks > 0) c.tp_size = target->ranks;
    c.ep_size = target->expert_ranks;
    c.disable_custom_all_reduce = target->no_peers;
    // Windows of 8 tokens get 7 of 128 of them: 2,240; 32 requests of 65 tokens have 2,080.
    c.num_pages = 40960 / c.page_size + 1;
    c.cpu_level = target->level;
    if (target->weights != NULL) c.weight_dtype = target->weights;
    if (target->kv != NULL) c.kv_cache_dtype = target->kv;
    c.graph_max_bs = target->graph_max_bs;
    c.deterministic = target->deterministic;
    c.mpi = target->mpi;
    return c;
}

bool harness_has_device(const char *device)
{
    msgl_device_choice choice;
    msgl_err err = {0};
    if (strcmp(device, "cpu") == 0 || msgl__device_choose(device, 0, 1, &choice, &err) == 0) {
        return true;
    }
    fprintf(stderr, "skipped: %s\n", err.text);
    return false;
}

void harness_open(harness *h, const msgl_options *cfg)
{
    msgl_err err = {0};
    if (harness_try_open(h, cfg, &err) != 0) fail_msg("%s", err.text);
}

int harness_try_open(harness *h, const msgl_options *cfg, msgl_err *err)
{
    memset(h, 0, sizeof *h);
    const int code = msgl__engine_create(cfg, NULL, &h->e, err);
    if (code != 0) return code;
    h->info = msgl__engine_info(h->e);
    h->r = msgl__engine_runner(h->e);
    h->max_rows = cfg->max_prefill_tokens;
    h->logprobs = calloc((size_t)h->max_rows * (size_t)h->info->vocab_size, sizeof(float));
    assert_non_null(h->logprobs);
    assert_int_equal(msgl__engine_observe_logits(h->e, keep_rows, h), 0);
    return 0;
}

void harness_close(harness *h)
{
    msgl__engine_destroy(h->e);
    free(h->logprobs);
}

void harness_pages(harness *h, int32_t row, int32_t tokens)
{
    const msgl_cache_layout *c = &h->info->cache;
    for (int32_t s = 0; s < c->num_spans && c->spans[s].kind != MSGL_SPAN_STATE; s++) {
        int32_t *pages = msgl__page_table_row(&msgl__engine_page_tables(h->e)[s], row);
        int32_t next = h->next_page;
        for (int32_t i = 0; i < msgl__ceil_div(tokens, c->page_size); i++) {
            // 2,029 and the page counts have no common factor, so pages are scattered yet distinct.
            pages[i] = (int32_t)((int64_t)++next * 2029 % c->spans[s].num_units);
        }
    }
    h->next_page += (tokens + c->page_size - 1) / c->page_size;
}

void harness_tokens(harness *h, int32_t row, const int32_t *ids, int32_t n)
{
    assert_int_equal(h->r->write_tokens(h->r->ctx, row, 0, ids, n), 0);
}

msgl_batch_req harness_req(int32_t row, int32_t cached_len, int32_t device_len)
{
    msgl_batch_req r = {
        .uid = (uint64_t)row + 1,
        .table_idx = row,
        .cached_len = cached_len,
        .device_len = device_len,
        .prompt_len = device_len,
        .logits_from = 0,
        .load_state = -1,
        .sample = true,
        .sampling = msgl__sampling_params_default(),
    };
    r.sampling.logprobs = r.sampling.prompt_logprobs = -1;
    return r;
}

void harness_step(harness *h, msgl_phase phase, msgl_batch_req *reqs, int32_t n)
{
    harness_mixed(h, phase == MSGL_DECODE ? n : 0, reqs, n);
}

// No two tokens of a step are stored at one slot, as with a scheduler: which of them stays would be
// chance.
static void check_slots(const harness *h, const msgl_batch *b)
{
    const msgl_cache_layout *c = &h->info->cache;
    for (int32_t s = 0; s < c->num_spans && c->spans[s].kind != MSGL_SPAN_STATE; s++) {
        bool *taken = calloc((size_t)c->spans[s].num_units * (size_t)c->page_size, sizeof *taken);
        assert_non_null(taken);
        for (int32_t i = 0; i < b->size; i++) {
            const msgl_batch_req *r = &b->reqs[i];
            const msgl_page_table *table = &msgl__engine_page_tables(h->e)[s];
            for (int32_t t = r->cached_len; t < r->device_len; t++) {
                const int32_t slot = msgl__page_table_slot(table, r->table_idx, t);
                if (taken[slot]) {
                    fail_msg("span %d of %d pages: slot %d is two tokens'", s,
                             c->spans[s].num_units, slot);
                }
                taken[slot] = true;
            }
        }
        free(taken);
    }
}

void harness_mixed(harness *h, int32_t num_decode, msgl_batch_req *reqs, int32_t n)
{
    msgl_batch b = {.size = n, .num_decode = num_decode, .reqs = reqs, .step_slot = 0};
    for (int32_t i = 0; i < n; i++) b.num_tokens += msgl__extend_len(&reqs[i]);
    check_slots(h, &b);
    assert_int_equal(h->r->submit(h->r->ctx, &b), 0);
    assert_int_equal(h->r->wait(h->r->ctx, 0, &h->result), 0);
}

float *harness_prompt_of(harness *h, const int32_t *ids, int32_t n)
{
    harness_pages(h, 3, n + 1);
    harness_tokens(h, 3, ids, n);
    msgl_batch_req req = harness_req(3, 0, n);
    harness_step(h, MSGL_PREFILL, &req, 1);
    const size_t size = (size_t)n * (size_t)h->info->vocab_size * sizeof(float);
    float *out = malloc(size);
    assert_non_null(out);
    memcpy(out, h->logprobs, size);
    return out;
}

float *harness_prompt(const msgl_options *cfg, const int32_t *ids, int32_t n)
{
    harness h;
    harness_open(&h, cfg);
    float *out = harness_prompt_of(&h, ids, n);
    harness_close(&h);
    return out;
}

const float *harness_row(const harness *h, int32_t token)
{
    return h->logprobs + (size_t)token * (size_t)h->info->vocab_size;
}

float *load_floats(const char *path, size_t count)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s: cannot open", path);
    float *data = malloc(count * sizeof *data);
    assert_non_null(data);
    assert_int_equal(fread(data, sizeof *data, count, f), count);
    fclose(f);
    return data;
}

int32_t load_ids(const char *path, const char *key, int32_t *ids, int32_t max)
{
    json_error_t e;
    json_t *root = json_load_file(path, 0, &e);
    if (root == NULL) fail_msg("%s: %s", path, e.text);
    const json_t *list = json_object_get(root, key);
    const int32_t n = (int32_t)json_array_size(list);
    assert_true(n > 0 && n <= max);
    for (int32_t i = 0; i < n; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    }
    json_decref(root);
    return n;
}
