// SPDX-License-Identifier: Apache-2.0
#include "attention/bench.h"

#include <math.h>

#include "attention/bench_calls.h"
#include "attention/double_sparsity/channels.h"
#include "core/mem.h"
#include "core/round.h"
#include "core/seqs.h"
#include "core/settings.h"
#include "utils/clock.h"
#include "utils/random.h"
#include "utils/stats.h"

enum { MAX_LAYERS = 64 };

typedef struct bench {
    const msgl_attn_bench_shape *shape;
    msgl_device *device; // NULL: the CPU
    msgl_exec exec;
    msgl_kv_pool pool;
    msgl_page_table table;
    int32_t *device_table; // GPU
    size_t table_bytes;
    const msgl_attn_desc *desc;
    msgl_attn_backend *backend;
    msgl_attn_sparse sparse; // of backends with labels
    int32_t dual_len;        // of backends for dual chunks, else 0
    msgl_batch batch;
    msgl_seqs seqs;
    void *lengths, *device_lengths; // what seqs points to
    void *q, *out;                  // of exec.act
    size_t q_bytes, q_row;
} bench;

static int check_shape(const msgl_attn_bench_shape *s, msgl_err *err)
{
    const int64_t len = (int64_t)s->cached_len + s->extend_len;
    if (s->batch < 1 || s->batch > 4096 || s->cached_len < 0 || s->extend_len < 1 ||
        len > 1 << 24 || s->page_size < 1 || s->page_size > 4096 || s->num_kv_heads < 1 ||
        s->num_q_heads < 1 || s->num_q_heads > 1 << 12 || s->head_dim < 1 || s->v_dim < 0 ||
        s->v_dim > s->head_dim || len * s->batch > 1 << 26) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "bench attn: impossible shape (batch %d, %d cached, %d new tokens)",
                             (int)s->batch, (int)s->cached_len, (int)s->extend_len);
    }
    return 0;
}

static msgl_cache_kind kind_of(const msgl_attn_bench_shape *s)
{
    return s->v_dim > 0 ? MSGL_CACHE_LATENT : MSGL_CACHE_KV;
}

// A GPU's activations are what its cache is, but for one of 8 bits.
static msgl_dtype act_of(const msgl_attn_bench_shape *s, bool gpu)
{
    if (!gpu) return MSGL_F32;
    return s->kv_dtype == MSGL_E4M3 ? MSGL_BF16 : s->kv_dtype;
}

// A quarter of the sequence, so that there are keys of all three kinds.
static int32_t dual_len_of(const msgl_attn_desc *d, const msgl_attn_bench_shape *s)
{
    const int32_t quarter = (s->cached_len + s->extend_len) / 4;
    return !d->dual_chunk ? 0 : quarter > 0 ? quarter : 1;
}

// Labels, by the settings' defaults, of channels that lie evenly in a head. Random K and labels
// choose random tokens, as far apart as real ones can be.
static int choose_channels(bench *b, msgl_err *err)
{
    const msgl_attn_bench_shape *s = b->shape;
    msgl_options o = {0};
    msgl__settings_default(&msgl__engine_settings, &o);
    const int32_t n = s->head_dim < o.ds_heavy_channel_num ? 8 : o.ds_heavy_channel_num;
    const size_t heads = (size_t)MAX_LAYERS * (size_t)s->num_kv_heads;
    b->sparse =
        (msgl_attn_sparse){.dims = {MAX_LAYERS, s->num_q_heads, s->num_kv_heads, s->head_dim},
                           .heavy_channels = n,
                           .heavy_tokens = o.ds_heavy_token_num,
                           .threshold = o.ds_sparse_decode_threshold};
    b->sparse.channels = msgl__calloc(heads * (size_t)n, sizeof *b->sparse.channels);
    if (b->sparse.channels == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "bench attn: out of memory");
    }
    for (size_t i = 0; i < heads * (size_t)n; i++) {
        b->sparse.channels[i] = (uint16_t)((int32_t)(i % (size_t)n) * s->head_dim / n);
    }
    return 0;
}

static int make_memory(bench *b, msgl_err *err)
{
    const msgl_attn_bench_shape *s = b->shape;
    const int32_t len = s->cached_len + s->extend_len;
    const int32_t pages_each = msgl__ceil_div(len, s->page_size);
    b->pool = (msgl_kv_pool){.spec = {.kind = kind_of(s),
                                      .num_layers = 1,
                                      .window = -1,
                                      .num_heads = s->num_kv_heads,
                                      .k_dim = s->head_dim,
                                      .v_dim = s->v_dim > 0 ? s->v_dim : s->head_dim,
                                      .label_dim = b->desc->labels ? b->sparse.heavy_channels : 0,
                                      .dtype = s->kv_dtype},
                             .num_pages = pages_each * s->batch,
                             .page_size = s->page_size};
    const size_t layer = msgl__kv_pool_bytes(&b->pool);
    if (layer == 0) return msgl__err_set(err, MSGL_ELIMIT, "bench attn: KV pool too large");
    const size_t layers = MSGL_BENCH_BYTES / layer;
    b->pool.spec.num_layers = layers < 1 ? 1 : layers > MAX_LAYERS ? MAX_LAYERS : (int32_t)layers;
    b->pool.bytes = msgl__kv_pool_bytes(&b->pool);
    b->pool.base = msgl__bench_take(b->device, b->pool.bytes);
    const size_t tokens = (size_t)s->batch * (size_t)s->extend_len;
    const size_t queries = b->dual_len > 0 ? MSGL_DUAL_QUERIES : 1;
    b->q_row = queries * (size_t)s->num_q_heads * (size_t)s->head_dim;
    b->q_bytes = tokens * b->q_row * msgl__dtype_size(b->exec.act);
    b->q = msgl__bench_take(b->device, b->q_bytes);
    b->out = msgl__bench_take(b->device, b->q_bytes);
    b->batch.reqs = msgl__calloc((size_t)s->batch, sizeof *b->batch.reqs);
    b->lengths = msgl__calloc(1, msgl__seqs_bytes(s->batch));
    if (b->pool.base == NULL || b->q == NULL || b->out == NULL || b->batch.reqs == NULL ||
        b->lengths == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "bench attn: no memory for a KV pool of %zu bytes",
                             b->pool.bytes);
    }
    const size_t elements = b->pool.bytes / msgl__dtype_size(s->kv_dtype);
    int rc = msgl__bench_fill(b->device, b->pool.base, s->kv_dtype, elements, 1, err);
    if (rc == 0) rc = msgl__bench_fill(b->device, b->q, b->exec.act, tokens * b->q_row, 2, err);
    if (rc != 0) return rc;
    return msgl__page_table_create(s->batch, len, s->page_size, b->pool.num_pages, &b->table, err);
}

// The copies of page table and lengths on the GPU.
static int copy_table(bench *b, msgl_err *err)
{
    if (b->device == NULL) return 0;
    const msgl_device_ops *ops = b->device->ops;
    ops->copy_in(b->device, b->device_lengths, b->lengths, msgl__seqs_bytes(b->shape->batch));
    b->table_bytes = ((size_t)b->table.max_running + 1) * (size_t)b->table.stride * 4;
    b->device_table = msgl__bench_take(b->device, b->table_bytes);
    if (b->device_table == NULL) return msgl__err_set(err, MSGL_ENOMEM, "bench attn: no memory");
    ops->copy_in(b->device, b->device_table, msgl__page_table_row(&b->table, 0), b->table_bytes);
    return msgl__bench_wait(b->device, err);
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
        const int32_t j = (int32_t)msgl__random_below(&rng, (uint64_t)i + 1), t = pages[i];
        pages[i] = pages[j];
        pages[j] = t;
    }
    const int32_t *next = pages;
    for (int32_t r = 0; r < s->batch; r++) {
        int32_t *row = msgl__page_table_row(&b->table, r);
        for (int32_t p = 0; p < msgl__ceil_div(len, s->page_size); p++) row[p] = *next++;
        b->batch.reqs[r] = (msgl_batch_req){
            .table_idx = r, .cached_len = s->cached_len, .device_len = len, .prompt_len = len};
    }
    msgl__free(pages);
    b->batch.size = s->batch;
    b->batch.num_decode = s->phase == MSGL_DECODE ? s->batch : 0;
    const size_t bytes = msgl__seqs_bytes(s->batch);
    b->device_lengths = b->device != NULL ? msgl__bench_take(b->device, bytes) : b->lengths;
    if (b->device_lengths == NULL) return msgl__err_set(err, MSGL_ENOMEM, "bench attn: no memory");
    msgl__seqs_fill(&b->batch, 0, s->batch, 0, s->batch, s->batch, b->lengths, b->device_lengths,
                    &b->seqs);
    return 0;
}

static void forward(void *ctx, int64_t call)
{
    bench *b = ctx;
    const msgl_attn_bench_shape *s = b->shape;
    const msgl_attn_layer layer = {.layer = (int32_t)(call % b->pool.spec.num_layers),
                                   .scale = 1 / sqrtf((float)s->head_dim),
                                   .softcap = s->softcap,
                                   .window = s->window,
                                   .k_scale = 1,
                                   .v_scale = 1};
    const msgl_attn_input in = {.q = b->q, .ld = b->q_row};
    b->backend->desc->forward(b->backend, &b->exec, &layer, &b->seqs, &in, b->out);
}

static int measure_prepare(bench *b, msgl_attn_bench_result *out)
{
    const msgl_attn a = {.prefill = b->backend, .decode = b->backend};
    double prepare[16];
    for (int i = 0; i < 16; i++) {
        const uint64_t t = msgl__now_ns();
        const int rc = msgl__attn_prepare(&a, &b->seqs);
        if (rc != 0) return rc;
        prepare[i] = (double)(msgl__now_ns() - t) * 1e-6;
    }
    out->prepare_ms = msgl__median(prepare, 16);
    msgl__attn_copy_in(&a, &b->exec, &b->seqs);
    msgl__attn_begin(&a, &b->exec, &b->seqs);
    return b->exec.status;
}

static int measure(bench *b, double seconds, msgl_attn_bench_result *out, msgl_err *err)
{
    enum { GRAPH_CALLS = 8 };
    const msgl_bench_calls calls = {.exec = &b->exec, .run = forward, .ctx = b};
    int rc = measure_prepare(b, out);
    if (rc != 0) return msgl__bench_failed(&b->exec, rc, err);
    rc = msgl__bench_time(&calls, seconds, &out->forward_ms, err);
    if (rc != 0 || b->device == NULL || b->shape->phase != MSGL_DECODE) return rc;
    if (!b->backend->desc->graph) return 0;
    return msgl__bench_graph(&calls, GRAPH_CALLS, seconds, &out->graph_ms, err);
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
    const int32_t v_dim = s->v_dim > 0 ? s->v_dim : s->head_dim;
    const int32_t read = s->v_dim > 0 ? s->head_dim : 2 * s->head_dim; // elements a key and head
    out->flops = 2 * pairs * s->num_q_heads * (s->head_dim + v_dim) * s->batch;
    out->bytes = keys * s->num_kv_heads * read * (double)msgl__dtype_size(s->kv_dtype) * s->batch;
}

static msgl_attn_variants variants_of(const msgl_attn_bench_shape *s)
{
    msgl_attn_variants v = {0};
    const msgl_attn_variant variant = {.window = s->window, .softcap = s->softcap};
    (void)msgl__attn_variants_add(&v, variant);
    return v;
}

static int create(bench *b, const msgl_attn_bench_env *env, msgl_err *err)
{
    const msgl_attn_bench_shape *s = b->shape;
    const msgl_attn_config cfg = {
        .num_q_heads = s->num_q_heads,
        .num_kv_heads = s->num_kv_heads,
        .head_dim = s->head_dim,
        .page_size = s->page_size,
        .max_running = s->batch,
        .max_seq_len = s->cached_len + s->extend_len,
        .max_step_tokens = s->batch * s->extend_len,
        .max_in_flight = 1,
        .kernels = env->kernels,
        .pool = &b->pool,
        .page_table = &b->table,
        .num_threads = env->threads != NULL ? msgl__pool_threads(env->threads) : 1,
        .dev = b->device,
        .device_table = b->device_table,
        .device_table_stride = (size_t)b->table.stride * (size_t)s->page_size,
        .variants = variants_of(s),
        .dual_len = b->dual_len,
        .sparse = b->desc->labels ? &b->sparse : NULL,
    };
    return b->desc->create(b->desc, &cfg, &b->backend, err);
}

static void release(bench *b)
{
    if (b->backend != NULL) b->backend->desc->destroy(b->backend);
    msgl__page_table_destroy(&b->table);
    if (b->device != NULL)
        msgl__bench_give(b->device, b->device_lengths, msgl__seqs_bytes(b->shape->batch));
    msgl__free(b->lengths);
    msgl__free(b->batch.reqs);
    msgl__attn_sparse_free(&b->sparse);
    msgl__bench_give(b->device, b->device_table, b->table_bytes);
    msgl__bench_give(b->device, b->out, b->q_bytes);
    msgl__bench_give(b->device, b->q, b->q_bytes);
    msgl__bench_give(b->device, b->pool.base, b->pool.bytes);
}

int msgl__attn_bench(const msgl_attn_desc *backend, const msgl_attn_bench_shape *shape,
                     const msgl_attn_bench_env *env, double seconds, msgl_attn_bench_result *out,
                     msgl_err *err)
{
    const bool gpu = env->device != NULL;
    bench b = {.shape = shape,
               .device = env->device,
               .desc = backend,
               .dual_len = dual_len_of(backend, shape),
               .exec = {.device = env->device, .act = act_of(shape, gpu), .pool = env->threads}};
    *out = (msgl_attn_bench_result){0};
    int rc = check_shape(shape, err);
    const msgl_attn_needs needs = {.cache = kind_of(shape),
                                   .backends = env->backends,
                                   .capability = gpu ? env->device->capability : 0,
                                   .num_q_heads = shape->num_q_heads,
                                   .num_kv_heads = shape->num_kv_heads,
                                   .head_dim = shape->head_dim,
                                   .v_dim = shape->v_dim,
                                   .page_size = shape->page_size,
                                   .act = b.exec.act,
                                   .kv_dtype = shape->kv_dtype,
                                   .variants = variants_of(shape),
                                   .dual_len = b.dual_len,
                                   .sparse = backend->labels ? &b.sparse : NULL};
    const bool decode = shape->phase == MSGL_DECODE;
    const char *by = decode ? backend->decode_by : backend->prefill_by;
    if (rc == 0 && by != NULL) {
        rc = msgl__err_set(err, MSGL_EUNSUPPORTED, "attention backend %s: %s are %s's",
                           backend->name, decode ? "answers" : "prompts", by);
    }
    if (rc == 0) rc = msgl__attn_supports(backend, &needs, err);
    if (rc == 0 && backend->labels) rc = choose_channels(&b, err);
    if (rc == 0) rc = make_memory(&b, err);
    if (rc == 0) rc = fill_table(&b, err);
    if (rc == 0) rc = copy_table(&b, err);
    if (rc == 0) rc = create(&b, env, err);
    if (rc == 0) rc = measure(&b, seconds, out, err);
    if (rc == 0) count_work(shape, out);
    release(&b);
    return rc;
}
