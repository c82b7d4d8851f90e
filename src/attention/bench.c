// SPDX-License-Identifier: Apache-2.0
#include "attention/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "utils/clock.h"

enum { MAX_SAMPLES = 4096, MIN_SAMPLES = 5, MAX_LAYERS = 64 };

static const size_t POOL_BYTES = (size_t)512 << 20;

typedef struct bench {
    const msgl_attn_bench_shape *shape;
    msgl_kv_pool pool;
    msgl_page_table table;
    msgl_attn_backend *backend;
    msgl_batch batch;
    float *q, *out;
    size_t q_bytes, out_bytes, q_row;
    double *samples;
} bench;

static int check_shape(const msgl_attn_bench_shape *s, msgl_err *err)
{
    const int64_t len = (int64_t)s->cached_len + s->extend_len;
    if (s->batch < 1 || s->batch > 4096 || s->cached_len < 0 || s->extend_len < 1 ||
        len > 1 << 24 || s->page_size < 1 || s->page_size > 4096 || s->num_kv_heads < 1 ||
        s->num_q_heads < 1 || s->num_q_heads > 1 << 12 || s->head_dim < 1 ||
        len * s->batch > 1 << 26) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "bench attn: impossible shape (batch %d, %d cached, %d new tokens)",
                             (int)s->batch, (int)s->cached_len, (int)s->extend_len);
    }
    return 0;
}

static uint64_t next_random(uint64_t *state) // splitmix64
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static float next_unit(uint64_t *state)
{
    return (float)(next_random(state) >> 40) / (float)(1 << 23) - 1;
}

static void fill_pool(msgl_kv_pool *p)
{
    uint64_t rng = 1;
    const size_t n = p->bytes / msgl__dtype_size(p->dtype);
    // A random stretch, repeated: drawing every element would take longer than the measurement.
    const size_t stretch = n < 65536 ? n : 65536, size = msgl__dtype_size(p->dtype);
    for (size_t i = 0; i < stretch; i++) msgl__store_f32(p->base, p->dtype, i, next_unit(&rng));
    for (size_t at = stretch; at < n; at += stretch) {
        const size_t m = n - at < stretch ? n - at : stretch;
        memcpy((char *)p->base + at * size, p->base, m * size);
    }
}

static int make_memory(bench *b, msgl_err *err)
{
    const msgl_attn_bench_shape *s = b->shape;
    const int32_t len = s->cached_len + s->extend_len;
    const int32_t pages_each = (len + s->page_size - 1) / s->page_size;
    b->pool = (msgl_kv_pool){.dtype = s->kv_dtype,
                             .num_layers = 1,
                             .num_pages = pages_each * s->batch,
                             .page_size = s->page_size,
                             .num_kv_heads = s->num_kv_heads,
                             .head_dim = s->head_dim};
    const size_t layer = msgl__kv_pool_bytes(&b->pool);
    if (layer == 0) return msgl__err_set(err, MSGL_ELIMIT, "bench attn: KV pool too large");
    const size_t layers = POOL_BYTES / layer;
    b->pool.num_layers = layers < 1 ? 1 : layers > MAX_LAYERS ? MAX_LAYERS : (int32_t)layers;
    b->pool.bytes = msgl__kv_pool_bytes(&b->pool);
    b->pool.base = msgl__pages_alloc(b->pool.bytes);
    const size_t tokens = (size_t)s->batch * (size_t)s->extend_len;
    const size_t q_row = (size_t)s->num_q_heads * (size_t)s->head_dim;
    b->q_row = q_row;
    b->q_bytes = b->out_bytes = tokens * q_row * sizeof(float);
    b->q = msgl__pages_alloc(b->q_bytes);
    b->out = msgl__pages_alloc(b->out_bytes);
    b->batch.reqs = msgl__calloc((size_t)s->batch, sizeof *b->batch.reqs);
    b->batch.positions = msgl__calloc(tokens, sizeof(int32_t));
    b->batch.out_loc = msgl__calloc(tokens, sizeof(int32_t));
    b->samples = msgl__calloc(MAX_SAMPLES, sizeof *b->samples);
    if (b->pool.base == NULL || b->q == NULL || b->out == NULL || b->batch.reqs == NULL ||
        b->batch.positions == NULL || b->batch.out_loc == NULL || b->samples == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "bench attn: no memory for a KV pool of %zu bytes",
                             b->pool.bytes);
    }
    fill_pool(&b->pool);
    uint64_t rng = 2;
    for (size_t i = 0; i < tokens * q_row; i++) b->q[i] = next_unit(&rng);
    return msgl__page_table_create(s->batch, len, b->pool.num_pages * s->page_size, &b->table, err);
}

static int fill_table(bench *b, msgl_err *err)
{
    const msgl_attn_bench_shape *s = b->shape;
    const int32_t len = s->cached_len + s->extend_len, n = b->pool.num_pages;
    int32_t *pages = msgl__calloc((size_t)n, sizeof *pages);
    if (pages == NULL) return msgl__err_set(err, MSGL_ENOMEM, "bench attn: out of memory");
    for (int32_t i = 0; i < n; i++) pages[i] = i;
    uint64_t rng = 3;
    for (int32_t i = n - 1; i > 0 && s->shuffled; i--) {
        const int32_t j = (int32_t)(next_random(&rng) % (uint64_t)(i + 1)), t = pages[i];
        pages[i] = pages[j];
        pages[j] = t;
    }
    const int32_t *next = pages;
    size_t token = 0;
    for (int32_t r = 0; r < s->batch; r++) {
        int32_t *row = msgl__page_table_row(&b->table, r);
        for (int32_t p = 0; p < len; p++) {
            if (p % s->page_size == 0) row[p] = *next++ * s->page_size;
            if (p % s->page_size != 0) row[p] = row[p - 1] + 1;
            if (p < s->cached_len) continue;
            b->batch.positions[token] = p;
            b->batch.out_loc[token++] = row[p];
        }
        b->batch.reqs[r] = (msgl_batch_req){
            .table_idx = r, .cached_len = s->cached_len, .device_len = len, .prompt_len = len};
    }
    b->batch.phase = s->phase;
    b->batch.size = b->batch.padded_size = s->batch;
    b->batch.num_tokens = (int32_t)token;
    msgl__free(pages);
    return 0;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples, int n)
{
    qsort(samples, (size_t)n, sizeof *samples, by_value);
    return samples[n / 2];
}

static int measure(bench *b, msgl_exec *x, double seconds, msgl_attn_bench_result *out)
{
    const msgl_attn_bench_shape *s = b->shape;
    const msgl_attn_desc *d = b->backend->desc;
    double prepare[16];
    for (int i = 0; i < 16; i++) {
        const uint64_t t = msgl__now_ns();
        const int rc = d->prepare_metadata(b->backend, &b->batch);
        if (rc != 0) return rc;
        prepare[i] = (double)(msgl__now_ns() - t) * 1e-6;
    }
    out->prepare_ms = median(prepare, 16);
    const uint64_t start = msgl__now_ns();
    int n = 0;
    for (int call = -1; n < MAX_SAMPLES; call++) { // the first call warms up (and plans)
        const msgl_attn_layer layer = {.layer = (call + 1) % b->pool.num_layers,
                                       .scale = 1 / sqrtf((float)s->head_dim),
                                       .softcap = s->softcap,
                                       .window = s->window};
        const uint64_t t = msgl__now_ns();
        d->forward(b->backend, x, &layer, &b->batch, b->q, b->q_row, b->out);
        const uint64_t end = msgl__now_ns();
        if (x->status != 0) return x->status;
        if (call >= 0) b->samples[n++] = (double)(end - t) * 1e-6;
        if (n >= MIN_SAMPLES && (double)(end - start) * 1e-9 > seconds) break;
    }
    out->forward_ms = median(b->samples, n);
    return 0;
}

static void count_work(const msgl_attn_bench_shape *s, msgl_attn_bench_result *out)
{
    double pairs = 0;
    for (int32_t i = 0; i < s->extend_len; i++) {
        const double seen = (double)s->cached_len + i + 1;
        pairs += s->window >= 0 && seen > s->window + 1 ? s->window + 1 : seen;
    }
    double keys = (double)s->cached_len + s->extend_len;
    if (s->window >= 0) keys = fmin(keys, (double)s->window + s->extend_len);
    out->flops = 4 * pairs * s->num_q_heads * s->head_dim * s->batch;
    out->bytes =
        2 * keys * s->num_kv_heads * s->head_dim * (double)msgl__dtype_size(s->kv_dtype) * s->batch;
}

int msgl__attn_bench(const msgl_attn_desc *backend, const msgl_attn_bench_shape *shape,
                     const msgl_kernels *kernels, msgl_pool *pool, double seconds,
                     msgl_attn_bench_result *out, msgl_err *err)
{
    bench b = {.shape = shape};
    *out = (msgl_attn_bench_result){0};
    int rc = check_shape(shape, err);
    const msgl_attn_needs needs = {.device = MSGL_DEVICE_CPU,
                                   .num_q_heads = shape->num_q_heads,
                                   .num_kv_heads = shape->num_kv_heads,
                                   .head_dim = shape->head_dim,
                                   .page_size = shape->page_size,
                                   .kv_dtype = shape->kv_dtype,
                                   .sliding_window = shape->window >= 0,
                                   .softcap = shape->softcap > 0};
    if (rc == 0) rc = msgl__attn_supports(backend, &needs, err);
    if (rc == 0) rc = make_memory(&b, err);
    if (rc == 0) rc = fill_table(&b, err);
    if (rc == 0) {
        const msgl_attn_config cfg = {.device = MSGL_DEVICE_CPU,
                                      .num_q_heads = shape->num_q_heads,
                                      .num_kv_heads = shape->num_kv_heads,
                                      .head_dim = shape->head_dim,
                                      .page_size = shape->page_size,
                                      .max_running = shape->batch,
                                      .max_seq_len = shape->cached_len + shape->extend_len,
                                      .max_step_tokens = shape->batch * shape->extend_len,
                                      .num_slots = 1,
                                      .kernels = kernels,
                                      .pool = &b.pool,
                                      .page_table = &b.table,
                                      .num_threads = msgl__pool_threads(pool)};
        rc = backend->create(&cfg, &b.backend, err);
    }
    if (rc == 0) {
        msgl_exec x = {.act = MSGL_F32, .pool = pool};
        rc = measure(&b, &x, seconds, out);
        if (rc != 0) msgl__err_set(err, rc, "bench attn: %s", msgl__status_text(rc));
        count_work(shape, out);
    }
    if (b.backend != NULL) backend->destroy(b.backend);
    msgl__page_table_destroy(&b.table);
    msgl__free(b.samples);
    msgl__free(b.batch.out_loc);
    msgl__free(b.batch.positions);
    msgl__free(b.batch.reqs);
    msgl__pages_free(b.out, b.out_bytes);
    msgl__pages_free(b.q, b.q_bytes);
    msgl__pages_free(b.pool.base, b.pool.bytes);
    return rc;
}
