// SPDX-License-Identifier: Apache-2.0
#include "attention/expand_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernel/device.h"

enum { PAGE_SIZE = 6, LAYERS = 2, LAYER = 1, STEP_SLOTS = 2, STEP_SLOT = 1 };
static const float K_SCALE = 0.25f;

// A host array and, on a GPU, its copy.
typedef struct both {
    void *host, *device; // device is host on the CPU
    size_t bytes;
} both;

typedef struct expand_world {
    const expand_case *c;
    uint64_t rng;
    msgl_dtype act;
    size_t act_size;
    int rows;  // new tokens
    int total; // keys
    int cu[EXPAND_MAX_REQS + 1], rows_of_table[EXPAND_MAX_REQS], first_key[EXPAND_MAX_REQS];
    msgl_kernels kernels;
    msgl_kv_pool pool;
    msgl_page_table table;
    msgl_exec exec;
    msgl_attn_config cfg;
    msgl_seqs seqs;
    both memory, table_memory, q, latent, rotary_keys, kv, out, partial_out, lse, partial_lse;
    float *tokens;   // [total, rank + rotary] as a reader of the pool finds them
    float *expanded; // [total, heads, nope + v_dim]
    float *w;        // [heads * (nope + v_dim), rank]
} expand_world;

static float uniform(expand_world *w)
{
    w->rng = w->rng * 6364136223846793005ull + 1442695040888963407ull;
    return (float)(int32_t)(w->rng >> 32) * 0x1p-31f;
}

static void finish(expand_world *w)
{
    msgl_device *d = w->c->dev;
    d->ops->arm(d, 0);
    d->ops->record(d, 0);
    if (d->ops->wait(d, 0) != 0) fail_msg("%s", d->fault.text);
}

static both take(expand_world *w, size_t elements, size_t size)
{
    both b = {.bytes = elements * size};
    b.host = aligned_alloc(64, (b.bytes + 63) / 64 * 64);
    assert_non_null(b.host);
    memset(b.host, 0xff, b.bytes); // NaN in every dtype
    b.device = w->c->dev == NULL ? b.host : w->c->dev->ops->alloc(w->c->dev, b.bytes);
    assert_non_null(b.device);
    return b;
}

static void give(expand_world *w, both *b)
{
    if (b->device != b->host) w->c->dev->ops->free(w->c->dev, b->device, b->bytes);
    free(b->host);
}

static void upload(expand_world *w, const both *b)
{
    if (b->device != b->host) w->c->dev->ops->copy_in(w->c->dev, b->device, b->host, b->bytes);
}

static void download(expand_world *w, const both *b)
{
    if (b->device == b->host) return;
    w->c->dev->ops->copy_out(w->c->dev, b->host, b->device, b->bytes);
    finish(w);
}

static size_t width(const expand_world *w) // of a key's expansion
{
    return (size_t)w->c->heads * (size_t)(w->c->nope + w->c->v_dim);
}

// The product that the layer does, of one key.
static void expand(const expand_world *w, const float *latent, float *to)
{
    for (size_t i = 0; i < width(w); i++) {
        float sum = 0;
        const float *row = w->w + i * (size_t)w->c->rank;
        for (int d = 0; d < w->c->rank; d++) sum += row[d] * latent[d];
        uint64_t rounded[1];
        msgl__store_f32(rounded, w->act, 0, sum);
        to[i] = msgl__load_f32(rounded, w->act, 0);
    }
}

// Requests in rows of the table, their tokens in pages of their own, in no order.
static void fill_pool(expand_world *w)
{
    const expand_case *c = w->c;
    const int row = c->rank + c->rotary;
    const float scale = c->dtype == MSGL_E4M3 ? K_SCALE : 1;
    char *layer = msgl__kv_k(&w->pool, LAYER);
    layer = (char *)w->memory.host + (layer - (char *)w->pool.base);
    for (int i = 0, key = 0, page = 0; i < c->size; i++) {
        w->rows_of_table[i] = (i * 5 + 3) % EXPAND_MAX_REQS;
        w->first_key[i] = key;
        for (int p = 0; p < c->keys[i]; p++, key++) {
            if (p % PAGE_SIZE == 0) {
                msgl__page_table_row(&w->table, w->rows_of_table[i])[p / PAGE_SIZE] =
                    (int32_t)((int64_t)page++ * 7919 % w->pool.num_pages);
            }
            const int32_t slot = msgl__page_table_slot(&w->table, w->rows_of_table[i], p);
            for (int d = 0; d < row; d++) {
                const size_t at = (size_t)slot * (size_t)row + (size_t)d;
                msgl__store_f32(layer, c->dtype, at, uniform(w) / scale);
                w->tokens[(size_t)key * (size_t)row + (size_t)d] =
                    scale * msgl__load_f32(layer, c->dtype, at);
            }
            expand(w, w->tokens + (size_t)key * (size_t)row, w->expanded + (size_t)key * width(w));
        }
    }
    upload(w, &w->memory);
    upload(w, &w->table_memory);
}

static void open_pool(expand_world *w)
{
    const expand_case *c = w->c;
    const int row = c->rank + c->rotary;
    int longest = 0;
    for (int i = 0; i < c->size; i++) longest = c->keys[i] > longest ? c->keys[i] : longest;
    w->pool = (msgl_kv_pool){.spec = {.kind = MSGL_CACHE_LATENT,
                                      .num_layers = LAYERS,
                                      .window = -1,
                                      .num_heads = 1,
                                      .k_dim = row,
                                      .v_dim = c->rank,
                                      .dtype = c->dtype},
                             .num_pages = w->total + 7920, // has no factor with 7919
                             .page_size = PAGE_SIZE};
    while (w->pool.num_pages % 7919 == 0) w->pool.num_pages++;
    w->pool.bytes = msgl__kv_pool_bytes(&w->pool);
    w->memory = take(w, w->pool.bytes, 1);
    w->pool.base = w->memory.device;
    w->table = (msgl_page_table){.max_running = EXPAND_MAX_REQS,
                                 .stride = longest / PAGE_SIZE + 9,
                                 .paging = msgl__paging_of(PAGE_SIZE)};
    w->table_memory =
        take(w, (size_t)(EXPAND_MAX_REQS + 1) * (size_t)w->table.stride, sizeof(int32_t));
    w->table.pages = w->table_memory.host;
}

static void open_world(expand_world *w, const expand_case *c)
{
    *w = (expand_world){.c = c, .rng = c->seed * 2 + 1};
    w->act = c->dev == NULL ? MSGL_F32 : MSGL_BF16;
    w->act_size = msgl__dtype_size(w->act);
    for (int i = 0; i < c->size; i++) {
        w->cu[i + 1] = w->cu[i] + c->tokens[i];
        w->total += c->keys[i];
    }
    w->rows = w->cu[c->size];
    assert_true(w->rows <= c->max_step_tokens);
    open_pool(w);
    const size_t rows = (size_t)w->rows, heads = (size_t)c->heads, total = (size_t)w->total;
    const size_t most = (size_t)c->max_step_tokens; // keys of a pass
    w->tokens = malloc(total * (size_t)(c->rank + c->rotary) * sizeof *w->tokens);
    w->expanded = malloc(total * width(w) * sizeof *w->expanded);
    w->w = malloc(width(w) * (size_t)c->rank * sizeof *w->w);
    assert_true(w->tokens != NULL && w->expanded != NULL && w->w != NULL);
    const float deviation = 1 / sqrtf((float)c->rank);
    for (size_t i = 0; i < width(w) * (size_t)c->rank; i++) w->w[i] = deviation * uniform(w);
    fill_pool(w);
    w->q = take(w, rows * heads * (size_t)(c->nope + c->rotary), w->act_size);
    for (size_t i = 0; i < w->q.bytes / w->act_size; i++) {
        msgl__store_f32(w->q.host, w->act, i, uniform(w));
    }
    upload(w, &w->q);
    w->latent = take(w, most * (size_t)c->rank, w->act_size);
    w->rotary_keys = take(w, most * (size_t)c->rotary, w->act_size);
    w->kv = take(w, most * width(w), w->act_size);
    w->out = take(w, rows * heads * (size_t)c->v_dim, w->act_size);
    w->partial_out = take(w, rows * heads * (size_t)c->v_dim, w->act_size);
    w->lse = take(w, rows * heads, sizeof(float));
    w->partial_lse = take(w, rows * heads, sizeof(float));
    const both *const poison[] = {&w->out, &w->partial_out, &w->lse, &w->partial_lse};
    for (int i = 0; i < 4; i++) upload(w, poison[i]);
}

static void close_world(expand_world *w)
{
    both *const all[] = {&w->memory,      &w->table_memory, &w->q,   &w->latent,
                         &w->rotary_keys, &w->kv,           &w->out, &w->partial_out,
                         &w->lse,         &w->partial_lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) give(w, all[i]);
    free(w->tokens);
    free(w->expanded);
    free(w->w);
    if (w->exec.pool != NULL) msgl__pool_destroy(w->exec.pool);
}

static void configure(expand_world *w)
{
    const expand_case *c = w->c;
    msgl_err err = {0};
    if (c->dev == NULL) {
        msgl__kernels_init_cpu(&w->kernels, msgl__cpu_level_detect());
        if (msgl__pool_create(2, &w->exec.pool, &err) != 0) fail_msg("%s", err.text);
    }
    w->exec.device = c->dev;
    w->exec.act = w->act;
    w->cfg = (msgl_attn_config){
        .num_q_heads = c->heads,
        .num_kv_heads = 1,
        .head_dim = c->rank + c->rotary,
        .page_size = PAGE_SIZE,
        .max_running = EXPAND_MAX_REQS,
        .max_step_tokens = c->max_step_tokens,
        .max_in_flight = STEP_SLOTS,
        .expanded = {.prompts = c->prompts != 0 ? c->prompts : MSGL_PROMPTS_EXPANDED,
                     .nope = c->nope,
                     .v_dim = c->v_dim},
        .kernels = &w->kernels,
        .pool = &w->pool,
        .page_table = &w->table,
        .dev = c->dev,
        .device_table = w->table_memory.device,
        .device_table_stride = (size_t)w->table.stride * PAGE_SIZE,
    };
    w->seqs = (msgl_seqs){.phase = MSGL_PREFILL,
                          .size = c->size,
                          .num_tokens = w->rows,
                          .cu_seqlens_q = w->cu,
                          .seqlens_k = c->keys,
                          .table_rows = w->rows_of_table,
                          .step_slot = STEP_SLOT};
}

// What the pass has gathered becomes K and V.
static void multiply(expand_world *w, int32_t keys)
{
    const size_t rank = (size_t)w->c->rank;
    float *latent = malloc(rank * sizeof *latent), *kv = malloc(width(w) * sizeof *kv);
    assert_true(latent != NULL && kv != NULL);
    download(w, &w->latent);
    memset(w->kv.host, 0xff, w->kv.bytes);
    for (size_t i = 0; i < (size_t)keys; i++) {
        for (size_t d = 0; d < rank; d++) {
            latent[d] = msgl__load_f32(w->latent.host, w->act, i * rank + d);
        }
        expand(w, latent, kv);
        for (size_t d = 0; d < width(w); d++) {
            msgl__store_f32(w->kv.host, w->act, i * width(w) + d, kv[d]);
        }
    }
    upload(w, &w->kv);
    if (w->c->dev != NULL) finish(w);
    free(latent);
    free(kv);
}

static int run(expand_world *w)
{
    const expand_case *c = w->c;
    const msgl_attn_layer layer = {.layer = LAYER, .scale = 0.3f, .window = -1, .k_scale = K_SCALE};
    const msgl_expand_io io = {.q = w->q.device,
                               .ld_q = (size_t)(c->heads * (c->nope + c->rotary)),
                               .kv = w->kv.device,
                               .rotary_keys = w->rotary_keys.device,
                               .out = w->out.device,
                               .partial_out = w->partial_out.device,
                               .lse = w->lse.device,
                               .partial_lse = w->partial_lse.device};
    const msgl_expand_kernels *kernels = c->kernels != NULL ? c->kernels : &msgl__expand_cpu;
    msgl_expand *e = NULL;
    msgl_err err = {0};
    if (msgl__expand_create(kernels, &w->cfg, &e, &err) != 0) fail_msg("%s", err.text);
    const int passes = e != NULL ? msgl__expand_prepare(e, &w->seqs) : 0;
    assert_int_equal(msgl__expand_passes(e, &w->seqs), passes);
    if (passes > 0) msgl__expand_copy_in(e, &w->seqs);
    for (int i = 0; i < passes; i++) {
        const int32_t keys = msgl__expand_pass_keys(e, &w->seqs, i);
        assert_true(keys > 0 && keys <= c->max_step_tokens);
        msgl__expand_gather(e, &w->exec, &layer, &w->seqs, i, w->latent.device,
                            w->rotary_keys.device);
        multiply(w, keys);
        msgl__expand_attend(e, &w->exec, &layer, &w->seqs, i, &io);
        if (w->exec.status != 0) {
            fail_msg("status %d: %s", w->exec.status, c->dev != NULL ? c->dev->fault.text : "");
        }
    }
    download(w, &w->out);
    download(w, &w->lse);
    msgl__expand_destroy(e);
    return passes;
}

// One head's result of a token that sees `seen` keys from `first` on; returns its log-sum-exp.
static double exact(const expand_world *w, int head, int token, int first, int seen, double *out)
{
    const expand_case *c = w->c;
    const int dim = c->nope + c->rotary, row = c->rank + c->rotary;
    const size_t at = ((size_t)token * (size_t)c->heads + (size_t)head) * (size_t)dim;
    double *s = malloc((size_t)seen * sizeof *s), top = -INFINITY, sum = 0;
    assert_non_null(s);
    for (int j = 0; j < seen; j++) {
        const size_t key = (size_t)(first + j);
        const float *k = w->expanded + key * width(w) + head * (c->nope + c->v_dim);
        const float *rotary = w->tokens + key * (size_t)row + c->rank;
        s[j] = 0;
        for (int d = 0; d < dim; d++) {
            s[j] += (double)msgl__load_f32(w->q.host, w->act, at + (size_t)d) *
                    (double)(d < c->nope ? k[d] : rotary[d - c->nope]);
        }
        s[j] *= (double)0.3f;
        top = s[j] > top ? s[j] : top;
    }
    memset(out, 0, (size_t)c->v_dim * sizeof *out);
    for (int j = 0; j < seen; j++) {
        const float *v =
            w->expanded + (size_t)(first + j) * width(w) + head * (c->nope + c->v_dim) + c->nope;
        const double p = exp(s[j] - top);
        sum += p;
        for (int d = 0; d < c->v_dim; d++) out[d] += p * (double)v[d];
    }
    for (int d = 0; d < c->v_dim; d++) out[d] /= sum;
    free(s);
    return top + log(sum);
}

static void compare(const expand_world *w, expand_result *r)
{
    const expand_case *c = w->c;
    double *out = malloc((size_t)c->v_dim * sizeof *out);
    assert_non_null(out);
    for (int i = 0; i < c->size; i++) {
        for (int t = w->cu[i]; t < w->cu[i + 1]; t++) {
            const int seen = c->keys[i] - c->tokens[i] + t - w->cu[i] + 1;
            for (int h = 0; h < c->heads; h++) {
                const size_t row = (size_t)t * (size_t)c->heads + (size_t)h;
                const double lse = exact(w, h, t, w->first_key[i], seen, out);
                const double off = fabs((double)((const float *)w->lse.host)[row] - lse);
                if (!(off <= r->lse)) r->lse = isnan(off) ? INFINITY : off;
                for (int d = 0; d < c->v_dim; d++) {
                    const size_t at = row * (size_t)c->v_dim + (size_t)d;
                    const double e = fabs((double)msgl__load_f32(w->out.host, w->act, at) - out[d]);
                    if (!(e <= r->out)) r->out = isnan(e) ? INFINITY : e;
                }
            }
        }
    }
    free(out);
}

expand_result expand_check(const expand_case *c)
{
    expand_result r = {0};
    expand_world w;
    open_world(&w, c);
    configure(&w);
    r.passes = run(&w);
    if (r.passes > 0) compare(&w, &r);
    close_world(&w);
    return r;
}
