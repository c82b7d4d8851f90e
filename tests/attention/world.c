// SPDX-License-Identifier: Apache-2.0
#include "attention/world.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/round.h"
#include "core/seqs.h"
#include "utils/random.h"

bool world_full(void)
{
    const char *tests = getenv("MINISGL_TESTS");
    return tests != NULL && strcmp(tests, "full") == 0;
}

uint64_t world_random(world *w)
{
    return msgl__random(&w->rng);
}

int world_int(world *w, int lo, int hi)
{
    return lo + (int)(world_random(w) % (uint64_t)(hi - lo + 1));
}

static bool is_latent(const world *w)
{
    return w->spec.v_dim > 0 && !w->spec.v_apart;
}

// Elements of a token in K, V or labels.
static size_t row_of(const world *w, int kv)
{
    const msgl_cache_spec *s = &w->pool.spec;
    const int dims[] = {s->k_dim, s->v_dim, s->label_dim};
    return (size_t)s->num_heads * (size_t)dims[kv];
}

// Arrays of the pool: K, and V unless it lies in K.
static int arrays(const world *w)
{
    return is_latent(w) ? 1 : 2;
}

msgl_dtype world_act(const world *w)
{
    return w->spec.dtype == MSGL_E4M3 ? MSGL_BF16 : w->spec.dtype;
}

static float normal(world *w) // sum of four uniforms of 16 bits, variance 1
{
    const uint64_t bits = msgl__random(&w->rng);
    uint32_t s = 0;
    for (int i = 0; i < 64; i += 16) s += bits >> i & 0xffff;
    return ((float)s * 0x1p-16f - 2) * 1.7320508f;
}

enum { SCRATCH = 16 << 20, RADIUS = 20 };

// Bytes of a table of mods, of which each begins on a border of 64.
static size_t table_bytes(size_t n)
{
    return msgl__round_up(n * 4, 64);
}

static size_t tables_bytes(const world *w)
{
    const size_t rows = (size_t)w->spec.max_running + 1, heads = (size_t)w->cfg.num_q_heads;
    return table_bytes(rows * (size_t)w->spec.max_seq_len) + table_bytes(rows) +
           table_bytes(heads) + table_bytes(heads * (2 * RADIUS + 1));
}

// Pointers into the tables at `base`.
static msgl_attn_mods mods_at(const world *w, const char *base)
{
    const size_t rows = (size_t)w->spec.max_running + 1, ld = (size_t)w->spec.max_seq_len;
    const char *prefixes = base + table_bytes(rows * ld), *slopes = prefixes + table_bytes(rows);
    const char *bias = slopes + table_bytes((size_t)w->cfg.num_q_heads);
    return (msgl_attn_mods){.masks = w->spec.masks,
                            .scores = w->spec.scores,
                            .window = w->spec.window,
                            .softcap = w->spec.softcap,
                            .documents = (const int32_t *)(const void *)base,
                            .documents_ld = ld,
                            .prefixes = (const int32_t *)(const void *)prefixes,
                            .slopes = (const float *)(const void *)slopes,
                            .bias = (const float *)(const void *)bias,
                            .radius = RADIUS};
}

static void *take(world *w, size_t bytes)
{
    void *p = w->spec.dev->ops->alloc(w->spec.dev, bytes);
    if (p == NULL) fail_msg("no GPU memory for %zu bytes", bytes);
    return p;
}

static size_t sinks_bytes(const world *w)
{
    return (size_t)w->cfg.num_q_heads * sizeof *w->sinks;
}

// Everything queued on the GPU is done.
static void finish(world *w)
{
    msgl_device *d = w->spec.dev;
    d->ops->arm(d, 0);
    d->ops->record(d, 0);
    if (d->ops->wait(d, 0) != 0) fail_msg("%s", d->fault.text);
}

static void open_gpu(world *w)
{
    const world_spec *s = &w->spec;
    world_device *g = &w->gpu;
    const size_t size = msgl__dtype_size(world_act(w));
    g->pool = w->pool;
    g->pool.base = take(w, w->pool.bytes);
    g->table_bytes = ((size_t)s->max_running + 1) * (size_t)w->table.stride * sizeof(int32_t);
    g->table = take(w, g->table_bytes);
    g->lengths = take(w, 2 * msgl__seqs_bytes(MAX_REQS));
    g->rows = (size_t)s->max_step_tokens + MAX_REQS;
    g->q_bytes = g->rows * w->ld * size;
    g->out_bytes = g->rows * w->out_ld * size;
    g->q = take(w, g->q_bytes);
    g->out = take(w, g->out_bytes);
    if (w->sinks != NULL) w->layer.sinks = g->sinks = take(w, sinks_bytes(w));
    g->scratch = take(w, SCRATCH);
    g->mods = take(w, tables_bytes(w));
    g->tree = take(w, g->rows * sizeof *g->tree);
    g->staging = malloc(g->q_bytes + g->out_bytes);
    assert_non_null(g->staging);
    msgl__arena_init(&g->arena, g->scratch, SCRATCH);
    const msgl_device_options options = {.ordinal = 0};
    msgl_err err = {0};
    if (s->plugin->kernels(&options, &w->kernels, &err) != 0) fail_msg("%s", err.text);
    w->exec.device = s->dev;
    w->exec.act = world_act(w);
    w->exec.scratch = &g->arena;
    w->cfg.pool = &g->pool;
    w->cfg.dev = s->dev;
    w->cfg.device_table = g->table;
    w->cfg.device_table_stride = (size_t)w->table.stride * (size_t)s->page_size;
}

static void close_gpu(world *w)
{
    const world_device *g = &w->gpu;
    msgl_device *d = w->spec.dev;
    finish(w);
    d->ops->free(d, g->pool.base, w->pool.bytes);
    d->ops->free(d, g->table, g->table_bytes);
    d->ops->free(d, g->lengths, 2 * msgl__seqs_bytes(MAX_REQS));
    d->ops->free(d, g->q, g->q_bytes);
    d->ops->free(d, g->out, g->out_bytes);
    d->ops->free(d, g->scratch, SCRATCH);
    d->ops->free(d, g->mods, tables_bytes(w));
    d->ops->free(d, g->tree, g->rows * sizeof *g->tree);
    if (g->sinks != NULL) d->ops->free(d, g->sinks, sinks_bytes(w));
    free(g->staging);
}

// Runs of random documents, whose numbers come again.
static void make_mods(world *w)
{
    const int rows = w->spec.max_running + 1, heads = w->cfg.num_q_heads;
    w->tables = calloc(1, tables_bytes(w));
    w->mods = mods_at(w, w->tables);
    w->documents = (int32_t *)(uintptr_t)w->mods.documents;
    w->prefixes = (int32_t *)(uintptr_t)w->mods.prefixes;
    w->slopes = (float *)(uintptr_t)w->mods.slopes;
    w->bias = (float *)(uintptr_t)w->mods.bias;
    int document = 0, left = 0;
    for (int i = 0; i < rows * w->spec.max_seq_len; i++) {
        if (left-- == 0) {
            document = world_int(w, 0, 2);
            left = world_int(w, 0, 200);
        }
        w->documents[i] = document;
    }
    for (int i = 0; i < rows; i++) w->prefixes[i] = world_int(w, 0, w->spec.max_seq_len);
    for (int i = 0; i < heads; i++) w->slopes[i] = (float)world_int(w, 0, 100) / 200;
    for (int i = 0; i < heads * (2 * RADIUS + 1); i++) w->bias[i] = normal(w);
    if (w->spec.dev != NULL) w->mods = mods_at(w, w->gpu.mods);
    w->layer.mods = &w->mods;
    w->cfg.variants.all[0].mods = &w->mods;
}

world_spec world_base(const msgl_attn_desc *desc, int max_running, int max_seq_len,
                      int max_step_tokens)
{
    return (world_spec){.desc = desc,
                        .level = msgl__cpu_level_detect(),
                        .dtype = MSGL_BF16,
                        .group = 2,
                        .num_kv_heads = 2,
                        .head_dim = 64,
                        .page_size = 16,
                        .max_running = max_running,
                        .max_seq_len = max_seq_len,
                        .max_step_tokens = max_step_tokens,
                        .threads = 2,
                        .window = -1,
                        .seed = 7};
}

void world_suit(world_spec *s)
{
    if (s->desc->dual_chunk) s->dual_len = 160;
    if (s->desc->page_rule == MSGL_PAGE_SET) s->page_size = s->desc->page_override;
    if (s->desc->labels) {
        s->heavy_channels = 16;
        s->heavy_tokens = 64;
    }
    if (s->desc->caches != 1u << MSGL_CACHE_LATENT) return;
    s->group *= s->num_kv_heads;
    s->num_kv_heads = 1;
    s->head_dim = 72;
    s->v_dim = 64;
}

static const msgl_attn_set *set_of(const world_spec *s)
{
    return s->plugin != NULL ? s->plugin->backends : &msgl__attn_cpu;
}

int world_supports(const world_spec *s, msgl_err *err)
{
    const bool gpu = s->dev != NULL;
    const msgl_dtype act = s->dtype == MSGL_E4M3 ? MSGL_BF16 : s->dtype;
    msgl_attn_needs n = {.cache = s->v_dim != 0 && !s->v_apart ? MSGL_CACHE_LATENT : MSGL_CACHE_KV,
                         .backends = set_of(s),
                         .capability = gpu ? s->dev->capability : 0,
                         .num_q_heads = s->group * s->num_kv_heads,
                         .num_kv_heads = s->num_kv_heads,
                         .head_dim = s->head_dim,
                         .page_size = s->page_size,
                         .v_dim = s->v_dim,
                         .act = gpu ? act : MSGL_F32,
                         .kv_dtype = s->dtype,
                         .deterministic = s->deterministic,
                         .tree = s->tree,
                         .dual_len = s->dual_len};
    const msgl_attn_sparse sparse = {.heavy_channels = s->heavy_channels};
    if (s->heavy_channels > 0) n.sparse = &sparse;
    const msgl_attn_mods mods = {.masks = s->masks, .scores = s->scores};
    const msgl_attn_variant v = {.window = s->window,
                                 .softcap = s->softcap,
                                 .sinks = s->sinks,
                                 .mods = s->masks != 0 ? &mods : NULL,
                                 .chunk = s->chunk};
    msgl__attn_variants_add(&n.variants, v);
    return msgl__attn_supports(s->desc, &n, err);
}

// The query of a token at pos that meets the key at p: in the order of the contract.
static size_t query_of(const world *w, int pos, int p)
{
    const int len = w->spec.dual_len;
    const int apart = len > 0 ? pos / len - p / len : 0;
    return (size_t)(apart < 2 ? apart : 2);
}

// Around the largest logit of some hundred keys, some of them far above or below. The data that
// follow are the same with and without.
static void make_sinks(world *w, int heads)
{
    static const float far[] = {-200, 200, 12, -INFINITY};
    const uint64_t rng = w->rng;
    w->sinks = malloc((size_t)heads * sizeof *w->sinks);
    for (int h = 0; h < heads; h++) {
        const int i = world_int(w, 0, 30);
        w->sinks[h] = i < 4 ? far[i] : 2 * normal(w) + 2;
    }
    w->rng = rng;
    w->layer.sinks = w->sinks;
}

// Other channels for every layer and head. The data that follow are the same with and without.
static void make_channels(world *w)
{
    const uint64_t rng = w->rng;
    const world_spec *s = &w->spec;
    const int layers = w->pool.spec.num_layers, dim = s->head_dim;
    w->sparse = (msgl_attn_sparse){.dims = {.num_layers = layers,
                                            .num_q_heads = s->num_kv_heads * s->group,
                                            .num_kv_heads = s->num_kv_heads,
                                            .head_dim = dim},
                                   .heavy_channels = s->heavy_channels,
                                   .heavy_tokens = s->heavy_tokens,
                                   .threshold = s->threshold};
    const int rows = layers * s->num_kv_heads;
    w->sparse.channels = malloc((size_t)(rows * s->heavy_channels) * sizeof *w->sparse.channels);
    for (int r = 0; r < rows; r++) {
        const int first = world_int(w, 0, dim - 1);
        for (int i = 0; i < s->heavy_channels; i++) { // different ones: 7 divides no dim
            w->sparse.channels[r * s->heavy_channels + i] = (uint16_t)((first + 7 * i) % dim);
        }
    }
    w->rng = rng;
    w->cfg.sparse = &w->sparse;
}

// Arrays that requests have something in: K, V, labels.
static bool has_array(const world *w, int kv)
{
    return kv < arrays(w) || (kv == 2 && w->spec.heavy_channels > 0);
}

static bool in_half(world *rng)
{
    return world_int(rng, 0, 1) == 0;
}

void world_random_mods(world *rng, world_spec *s)
{
    s->masks = 1u << (in_half(rng) ? MSGL_MASK_CAUSAL : MSGL_MASK_PREFIX);
    if (in_half(rng)) s->masks |= 1u << MSGL_MASK_DOCUMENT;
    if (s->window >= 0 || world_int(rng, 0, 9) == 0) s->masks |= 1u << MSGL_MASK_WINDOW;
    if (s->softcap > 0) s->scores |= 1u << MSGL_SCORE_SOFTCAP;
    if (in_half(rng)) s->scores |= 1u << MSGL_SCORE_ALIBI;
    if (in_half(rng)) s->scores |= 1u << MSGL_SCORE_BIAS;
}

void world_open(world *w, const world_spec *spec)
{
    msgl_err err = {0};
    *w = (world){.spec = *spec, .rng = spec->seed};
    const int hkv = spec->num_kv_heads, hq = hkv * spec->group;
    const int pages_each = msgl__ceil_div(spec->max_seq_len, spec->page_size);
    msgl__kernels_init_cpu(&w->kernels, spec->level);
    w->pool = (msgl_kv_pool){.spec = {.kind = is_latent(w) ? MSGL_CACHE_LATENT : MSGL_CACHE_KV,
                                      .num_layers = 2,
                                      .window = spec->window,
                                      .num_heads = hkv,
                                      .k_dim = spec->head_dim,
                                      .v_dim = spec->v_dim > 0 ? spec->v_dim : spec->head_dim,
                                      .label_dim = spec->heavy_channels,
                                      .dtype = spec->dtype},
                             .num_pages = pages_each * spec->max_running,
                             .page_size = spec->page_size};
    w->pool.bytes = msgl__kv_pool_bytes(&w->pool);
    w->pool.base = aligned_alloc(64, msgl__round_up(w->pool.bytes, 64));
    memset(w->pool.base, 0xff, w->pool.bytes); // NaN in every dtype
    // The dummy page is written by nobody but read by padding requests.
    for (int kv = 0; kv < arrays(w); kv++) {
        const size_t row = row_of(w, kv), page = row * (size_t)spec->page_size;
        for (size_t i = 0; i < page; i++) {
            msgl__store_f32(msgl__kv_layer(&w->pool, kv, 1), spec->dtype,
                            (size_t)w->pool.num_pages * page + i, 0);
        }
    }
    w->table.max_running = spec->max_running;
    w->table.stride = pages_each;
    w->table.paging = msgl__paging_of(spec->page_size);
    const size_t entries = ((size_t)spec->max_running + 1) * (size_t)w->table.stride;
    w->table.pages = malloc(entries * sizeof(int32_t));
    for (size_t i = 0; i < entries; i++) w->table.pages[i] = -1;
    for (int i = 0; i < w->table.stride; i++) {
        msgl__page_table_row(&w->table, spec->max_running)[i] = w->pool.num_pages;
    }
    w->num_free = w->pool.num_pages;
    w->free_pages = malloc((size_t)w->num_free * sizeof(int));
    for (int i = 0; i < w->num_free; i++) w->free_pages[i] = i;
    w->exec.act = MSGL_F32;
    assert_int_equal(msgl__pool_create(spec->threads, &w->exec.pool, &err), 0);
    w->cfg = (msgl_attn_config){.num_q_heads = hq,
                                .num_kv_heads = hkv,
                                .head_dim = spec->head_dim,
                                .page_size = spec->page_size,
                                .max_running = spec->max_running,
                                .max_seq_len = spec->max_seq_len,
                                .max_step_tokens = spec->max_step_tokens,
                                .max_in_flight = 2,
                                .deterministic = spec->deterministic,
                                .apart = spec->apart,
                                .kernels = &w->kernels,
                                .pool = &w->pool,
                                .page_table = &w->table,
                                .num_threads = spec->threads};
    w->layer = (msgl_attn_layer){.layer = 1,
                                 .scale = 1 / sqrtf((float)spec->head_dim),
                                 .softcap = spec->softcap,
                                 .window = spec->window,
                                 .chunk = spec->chunk,
                                 .k_scale = 0.75f,
                                 .v_scale = 1.5f};
    if (spec->sinks) make_sinks(w, hq);
    if (spec->heavy_channels > 0) make_channels(w);
    const msgl_attn_variant v = {.window = spec->window,
                                 .softcap = spec->softcap,
                                 .sinks = spec->sinks,
                                 .chunk = spec->chunk};
    msgl__attn_variants_add(&w->cfg.variants, v);
    w->cfg.dual_len = spec->dual_len;
    w->cfg.pattern = spec->pattern;
    w->q_width = (size_t)hq * (size_t)spec->head_dim * (spec->dual_len > 0 ? 3 : 1);
    w->out_ld = (size_t)hq * (size_t)w->pool.spec.v_dim;
    w->ld = w->q_width;
    if (spec->dual_len == 0) w->ld += 2 * msgl__kv_slot_stride(&w->pool) + (size_t)spec->head_dim;
    w->lengths = malloc(2 * msgl__seqs_bytes(MAX_REQS));
    if (spec->dev != NULL) open_gpu(w);
    if (spec->masks != 0) make_mods(w);
    msgl_attn_choice one = {0};
    if (spec->desc != NULL) one = msgl__attn_alone(set_of(spec), spec->desc);
    const msgl_attn_choice *choice = spec->choice != NULL ? spec->choice : &one;
    if (msgl__attn_apart(choice)) w->cfg.apart = true;
    if (msgl__attn_create(choice, &w->cfg, &w->attn, &err) != 0) fail_msg("create: %s", err.text);
    w->backend = w->attn.decode;
}

static void free_step(world *w)
{
    free(w->qkv);
    free(w->out);
    free(w->tree);
    w->qkv = w->out = NULL;
    w->tree = NULL;
}

static void free_request(world_req *r)
{
    free(r->stored[2]);
    free(r->q);
    free(r->k);
    free(r->v);
    free(r->stored[0]);
    free(r->stored[1]);
    *r = (world_req){0};
}

void world_close(world *w)
{
    free_step(w);
    msgl__attn_destroy(&w->attn);
    if (w->spec.dev != NULL) close_gpu(w);
    msgl__pool_destroy(w->exec.pool);
    for (int i = 0; i < MAX_REQS; i++) free_request(&w->reqs[i]);
    free(w->tables);
    free(w->sinks);
    free(w->sparse.channels);
    free(w->lengths);
    free(w->free_pages);
    free(w->table.pages);
    free(w->pool.base);
}

static float *random_rows(world *w, size_t n)
{
    float *p = malloc(n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = normal(w);
    for (size_t i = 0; i < n && w->spec.heavy_channels > 0; i++) p[i] = roundf(p[i] * 4) / 4;
    return p;
}

// [len, q_width] of which the last `asked` tokens have any.
static float *random_queries(world *w, int len, int asked)
{
    if (asked == len) return random_rows(w, (size_t)len * w->q_width);
    float *q = calloc((size_t)len * w->q_width, sizeof *q);
    float *last = random_rows(w, (size_t)asked * w->q_width);
    const size_t n = (size_t)asked * w->q_width;
    memcpy(q + (size_t)len * w->q_width - n, last, n * sizeof *q);
    free(last);
    return q;
}

// What double sparsity keeps of K.
static void make_labels(const world *w, world_req *r)
{
    const size_t n = (size_t)w->spec.heavy_channels, dim = (size_t)w->spec.head_dim;
    const size_t heads = (size_t)w->spec.num_kv_heads, rows = (size_t)r->len * heads;
    const uint16_t *channels = msgl__attn_channels(&w->sparse, w->layer.layer);
    r->stored[2] = malloc(rows * n * msgl__dtype_size(w->spec.dtype));
    for (size_t row = 0; row < rows; row++) {
        for (size_t i = 0; i < n; i++) {
            const size_t c = channels[row % heads * n + i];
            msgl__store_f32(r->stored[2], w->spec.dtype, row * n + i, r->k[row * dim + c]);
        }
    }
}

static void round_rows(float *p, size_t n, msgl_dtype dtype, float scale)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t cell;
        msgl__store_f32(&cell, dtype, 0, p[i]);
        p[i] = scale * msgl__load_f32(&cell, dtype, 0);
    }
}

void world_request(world *w, int row, int len)
{
    world_req *r = &w->reqs[row];
    r->len = len;
    const int asked = w->spec.most_new > 0 && w->spec.most_new < len ? w->spec.most_new : len;
    r->q = random_queries(w, len, asked);
    if (w->spec.dev != NULL) round_rows(r->q, (size_t)len * w->q_width, world_act(w), 1);
    r->k = random_rows(w, (size_t)len * row_of(w, 0));
    if (!is_latent(w)) r->v = random_rows(w, (size_t)len * row_of(w, 1));
    for (int i = 0; i < arrays(w); i++) {
        float *values = i == 0 ? r->k : r->v;
        const size_t n = (size_t)len * row_of(w, i);
        r->stored[i] = malloc(n * msgl__dtype_size(w->spec.dtype));
        for (size_t at = 0; at < n; at++) {
            msgl__store_f32(r->stored[i], w->spec.dtype, at, values[at]);
        }
        round_rows(values, n, w->spec.dtype,
                   i == 0 ? msgl__attn_k_scale(&w->pool, &w->layer)
                          : msgl__attn_v_scale(&w->pool, &w->layer));
    }
    if (w->spec.heavy_channels > 0) make_labels(w, r);
    int32_t *pages = msgl__page_table_row(&w->table, row);
    for (int i = 0; i < msgl__ceil_div(len, w->spec.page_size); i++) {
        const int pick = world_int(w, 0, w->num_free - 1);
        pages[i] = w->free_pages[pick];
        w->free_pages[pick] = w->free_pages[--w->num_free];
    }
}

// One slot of K, V or labels: token p of the request, or poison.
static void poke(world *w, int kv, int slot, const world_req *r, int p)
{
    const size_t n = row_of(w, kv);
    const size_t size = msgl__dtype_size(w->spec.dtype);
    char *to = (char *)msgl__kv_layer(&w->pool, kv, 1) + (size_t)slot * n * size;
    if (r != NULL) {
        memcpy(to, (const char *)r->stored[kv] + (size_t)p * n * size, n * size);
    } else {
        memset(to, 0xff, n * size); // NaN in every dtype
    }
}

void world_release(world *w, int row)
{
    world_req *r = &w->reqs[row];
    int32_t *pages = msgl__page_table_row(&w->table, row);
    for (int p = 0; p < r->len; p++) {
        for (int kv = 0; kv < 3; kv++) {
            if (has_array(w, kv)) poke(w, kv, msgl__page_table_slot(&w->table, row, p), NULL, p);
        }
    }
    for (int i = 0; i < msgl__ceil_div(r->len, w->spec.page_size); i++) {
        w->free_pages[w->num_free++] = pages[i];
        pages[i] = -1;
    }
    free_request(r);
}

static void add_seqs(world *w, int first, int end)
{
    const size_t at = (size_t)w->num_seqs * msgl__seqs_bytes(MAX_REQS);
    const char *device = w->spec.dev != NULL ? w->gpu.lengths + at : w->lengths + at;
    msgl_seqs *seqs = &w->seqs[w->num_seqs++];
    msgl__seqs_fill(&w->batch, first, end, w->graph_size, w->spec.max_running, MAX_REQS,
                    w->lengths + at, device, seqs);
    if (w->tree != NULL) {
        seqs->tree = w->tree + seqs->first_token;
        seqs->dev_tree = (w->spec.dev != NULL ? w->gpu.tree : w->tree) + seqs->first_token;
    }
    if (w->graph_size > 0) seqs->max_seqlen_k = w->spec.max_seq_len;
    seqs->graph = w->graph_size > 0;
}

static void make_seqs(world *w)
{
    int32_t ends[2];
    const int n = msgl__attn_split_seqs(w->cfg.apart, w->batch.num_decode, w->batch.size, ends);
    w->num_seqs = 0;
    for (int i = 0; i < n; i++) add_seqs(w, i == 0 ? 0 : ends[0], ends[i]);
    for (int i = 0; i < w->num_seqs; i++) {
        assert_int_equal(msgl__attn_prepare(&w->attn, &w->seqs[i]), 0);
    }
}

static bool reads_behind_window(const world *w)
{
    return w->attn.prefill->desc->reads_behind_window || w->attn.decode->desc->reads_behind_window;
}

// Each new token's parent is a random earlier one of its request, most often the one before it, or
// the last token before the new ones.
static void make_tree(world *w, const step_req *reqs, int n, int tokens)
{
    w->tree = malloc((size_t)(tokens + MAX_REQS) * sizeof *w->tree);
    int t = 0;
    for (int i = 0; i < n; i++) {
        const uint64_t *first = w->tree + t;
        for (int j = 0; j < reqs[i].device - reqs[i].cached; j++, t++) {
            const int parent = world_int(w, 0, 1) == 0 ? j - 1 : world_int(w, -1, j - 1);
            w->tree[t] = (parent >= 0 ? first[parent] : 0) | (uint64_t)1 << j;
        }
    }
}

static void prepare(world *w, int num_decode, const step_req *reqs, int n)
{
    free_step(w);
    int tokens = 0;
    for (int i = 0; i < n; i++) tokens += reqs[i].device - reqs[i].cached;
    w->qkv = malloc((size_t)(tokens + MAX_REQS) * w->ld * sizeof(float));
    w->out = malloc((size_t)(tokens + MAX_REQS) * w->out_ld * sizeof(float));
    for (size_t i = 0; i < (size_t)(tokens + MAX_REQS) * w->ld; i++) w->qkv[i] = NAN;
    for (size_t i = 0; i < (size_t)(tokens + MAX_REQS) * w->out_ld; i++) w->out[i] = NAN;
    w->batch = (msgl_batch){.size = n,
                            .num_decode = num_decode,
                            .num_tokens = tokens,
                            .reqs = w->batch_reqs,
                            .step_slot = w->next_step_slot};
    if (w->spec.tree) make_tree(w, reqs, n, tokens);
    w->next_step_slot = (w->next_step_slot + 1) % w->cfg.max_in_flight;
    int t = 0;
    for (int i = 0; i < n; i++) {
        const world_req *r = &w->reqs[reqs[i].req];
        w->batch_reqs[i] = (msgl_batch_req){
            .table_idx = reqs[i].req, .cached_len = reqs[i].cached, .device_len = reqs[i].device};
        // Only what this and earlier steps stored is there, and of that nothing behind the window
        // or the chunk of the first query. On a GPU that is whole pages, as they are given back;
        // the CPU's kernels promise more.
        const int grain = w->spec.dev != NULL ? w->spec.page_size : 1;
        const bool slides = w->spec.window >= 0 && !reads_behind_window(w);
        const int seen = slides ? reqs[i].cached - w->spec.window : 0;
        const int chunk = w->spec.chunk > 0 ? reqs[i].cached % w->spec.chunk : reqs[i].cached;
        const int least = seen > reqs[i].cached - chunk ? seen : reqs[i].cached - chunk;
        const int from = least > 0 ? least / grain * grain : 0;
        for (int p = 0; p < r->len; p++) {
            const world_req *kept = p >= from && p < reqs[i].device ? r : NULL;
            const int slot = msgl__page_table_slot(&w->table, reqs[i].req, p);
            for (int kv = 0; kv < arrays(w); kv++) poke(w, kv, slot, kept, p);
            // Labels of new tokens are the backend's to write.
            if (has_array(w, 2)) poke(w, 2, slot, p < reqs[i].cached ? r : NULL, p);
        }
        for (int p = reqs[i].cached; p < reqs[i].device; p++, t++) {
            float *row = w->qkv + (size_t)t * w->ld;
            memcpy(row, r->q + (size_t)p * w->q_width, w->q_width * sizeof *row);
        }
    }
    make_seqs(w);
}

void world_prepare(world *w, msgl_phase phase, const step_req *reqs, int n)
{
    prepare(w, phase == MSGL_DECODE ? n : 0, reqs, n);
}

void world_prepare_dummies(world *w, int n)
{
    w->graph_size = n;
    prepare(w, 0, NULL, 0);
    memset(w->qkv, 0, (size_t)n * w->ld * sizeof(float));
    w->num_seqs = 0;
    add_seqs(w, 0, 0);
    assert_int_equal(w->seqs[0].phase, MSGL_DECODE);
    assert_int_equal(msgl__attn_prepare(&w->attn, &w->seqs[0]), 0);
}

// Rows that a step has, with those of requests that only pad it.
static size_t rows_of(const world *w)
{
    const int padding = w->graph_size - w->batch.size;
    return (size_t)(w->batch.num_tokens + (padding > 0 ? padding : 0));
}

void world_upload(world *w)
{
    msgl_device *d = w->spec.dev;
    if (d == NULL) return;
    const world_device *g = &w->gpu;
    const msgl_dtype act = world_act(w);
    const size_t size = msgl__dtype_size(act), n = rows_of(w) * w->ld;
    char *poison = (char *)g->staging + g->q_bytes;
    if (rows_of(w) > g->rows) fail_msg("a step of %zu rows, room for %zu", rows_of(w), g->rows);
    for (size_t i = 0; i < n; i++) msgl__store_f32(g->staging, act, i, w->qkv[i]);
    memset(poison, 0xff, rows_of(w) * w->out_ld * size); // NaN in every dtype
    d->ops->copy_in(d, g->pool.base, w->pool.base, w->pool.bytes);
    d->ops->copy_in(d, g->table, w->table.pages, g->table_bytes);
    d->ops->copy_in(d, g->q, g->staging, n * size);
    if (g->sinks != NULL) d->ops->copy_in(d, g->sinks, w->sinks, sinks_bytes(w));
    d->ops->copy_in(d, g->out, poison, rows_of(w) * w->out_ld * size);
    d->ops->copy_in(d, g->lengths, w->lengths, 2 * msgl__seqs_bytes(MAX_REQS));
    if (w->tables != NULL) d->ops->copy_in(d, g->mods, w->tables, tables_bytes(w));
    if (w->tree != NULL) d->ops->copy_in(d, g->tree, w->tree, rows_of(w) * sizeof *w->tree);
    for (int i = 0; i < w->num_seqs; i++) msgl__attn_copy_in(&w->attn, &w->exec, &w->seqs[i]);
    finish(w);
}

void world_attend(world *w)
{
    const bool gpu = w->spec.dev != NULL;
    const size_t size = gpu ? msgl__dtype_size(world_act(w)) : sizeof(float);
    char *q = gpu ? w->gpu.q : (void *)w->qkv, *out = gpu ? w->gpu.out : (void *)w->out;
    for (int i = 0; i < w->num_seqs; i++) msgl__attn_begin(&w->attn, &w->exec, &w->seqs[i]);
    for (int i = 0; i < w->num_seqs; i++) {
        const size_t first = (size_t)w->seqs[i].first_token;
        const msgl_attn_input in = {.q = q + first * w->ld * size, .ld = w->ld};
        msgl__attn_forward(&w->attn, &w->exec, &w->layer, &w->seqs[i], &in,
                           out + first * w->out_ld * size);
    }
    if (w->exec.status != 0) {
        fail_msg("forward: status %d%s%s", w->exec.status, gpu ? ": " : "",
                 gpu ? w->spec.dev->fault.text : "");
    }
}

void world_download(world *w)
{
    msgl_device *d = w->spec.dev;
    if (d == NULL) return;
    const size_t n = rows_of(w) * w->out_ld;
    const msgl_dtype act = world_act(w);
    d->ops->copy_out(d, w->gpu.staging, w->gpu.out, n * msgl__dtype_size(act));
    finish(w);
    for (size_t i = 0; i < n; i++) w->out[i] = msgl__load_f32(w->gpu.staging, act, i);
}

void world_forward(world *w)
{
    world_upload(w);
    world_attend(w);
    world_download(w);
}

void world_step(world *w, msgl_phase phase, const step_req *reqs, int n)
{
    world_prepare(w, phase, reqs, n);
    world_forward(w);
}

void world_mixed(world *w, int num_decode, const step_req *reqs, int n)
{
    prepare(w, num_decode, reqs, n);
    world_forward(w);
}

// A key that a query sees, and how many positions it lies before the query, which is at pos.
typedef struct seen_key {
    int key, distance, pos;
} seen_key;

// Whether the masks let a query at key `at` of row `row` see another key.
static bool let_through(const world *w, int row, int at, seen_key k)
{
    const world_spec *s = &w->spec;
    const int32_t *documents = w->documents + (size_t)row * (size_t)s->max_seq_len;
    if (s->masks == 0) {
        const bool near = s->window < 0 || k.distance <= s->window;
        return k.key <= at && near && (s->chunk == 0 || k.distance <= k.pos % s->chunk);
    }
    if ((s->masks & 1u << MSGL_MASK_CAUSAL) != 0 && k.key > at) return false;
    if ((s->masks & 1u << MSGL_MASK_WINDOW) != 0 && k.distance > s->window) return false;
    if ((s->masks & 1u << MSGL_MASK_DOCUMENT) != 0 && documents[k.key] != documents[at]) {
        return false;
    }
    const bool prefix = (s->masks & 1u << MSGL_MASK_PREFIX) != 0;
    return !prefix || k.key <= at || k.key < w->prefixes[row];
}

// What new token `token` of a request sees: of all its keys, or of its path where `tree` (of the
// request's first token) is not NULL, those that the masks let through. Returns how many.
static int visible_keys(const world *w, const step_req *q, int token, const uint64_t *tree,
                        seen_key *keys)
{
    const int at = q->cached + token;
    int n = 0, seen = 0;
    for (int p = 0; p < q->device; p++) {
        const int j = p - q->cached;
        if (tree != NULL && j >= 0 && (j > token || (tree[token] >> j & 1) == 0)) continue;
        keys[n++] = (seen_key){.key = p, .distance = at - p, .pos = at};
    }
    for (int i = 0; i < n; i++) {
        if (tree != NULL) {
            keys[i].distance = n - 1 - i;
            keys[i].pos = n - 1;
        }
        if (let_through(w, q->req, at, keys[i])) keys[seen++] = keys[i];
    }
    return seen;
}

static double rescore(const world *w, int head, int distance, double s)
{
    if (w->spec.softcap > 0) s = (double)w->spec.softcap * tanh(s / (double)w->spec.softcap);
    if ((w->spec.scores & 1u << MSGL_SCORE_ALIBI) != 0) {
        s -= (double)w->slopes[head] * (double)distance;
    }
    if ((w->spec.scores & 1u << MSGL_SCORE_BIAS) != 0) {
        const int d = distance < -RADIUS ? -RADIUS : distance > RADIUS ? RADIUS : distance;
        s += (double)w->bias[head * (2 * RADIUS + 1) + d + RADIUS];
    }
    return s;
}

// Whether a query head of a sparse answer does not attend to each of its keys: those with the
// heavy_tokens largest scores by label are chosen, of equal ones the first.
static void leave_out(const world *w, const float *q, const world_req *r, int kv_head, int n,
                      bool *out)
{
    const size_t dim = (size_t)w->spec.head_dim, heads = (size_t)w->spec.num_kv_heads;
    const uint16_t *channels =
        msgl__attn_channels(&w->sparse, w->layer.layer) + kv_head * w->spec.heavy_channels;
    double *s = malloc((size_t)n * sizeof *s);
    for (int p = 0; p < n; p++) {
        const float *k = r->k + ((size_t)p * heads + (size_t)kv_head) * dim;
        s[p] = 0;
        for (int i = 0; i < w->spec.heavy_channels; i++) {
            s[p] += (double)q[channels[i]] * (double)k[channels[i]];
        }
    }
    for (int p = 0; p < n; p++) {
        int before = 0;
        for (int j = 0; j < n; j++) before += s[j] > s[p] || (s[j] == s[p] && j < p);
        out[p] = before >= w->spec.heavy_tokens;
    }
    free(s);
}

// Of four sums, so that an addition need not wait for the one before; n is a multiple of 4.
static double product(const float *a, const float *b, int n)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    for (int d = 0; d < n; d += 4) {
        s0 += (double)a[d] * (double)b[d];
        s1 += (double)a[d + 1] * (double)b[d + 1];
        s2 += (double)a[d + 2] * (double)b[d + 2];
        s3 += (double)a[d + 3] * (double)b[d + 3];
    }
    return (s0 + s1) + (s2 + s3);
}

static void add_times(double *restrict sum, double e, const float *restrict v, int n)
{
    for (int d = 0; d < n; d += 4) {
        sum[d] += e * (double)v[d];
        sum[d + 1] += e * (double)v[d + 1];
        sum[d + 2] += e * (double)v[d + 2];
        sum[d + 3] += e * (double)v[d + 3];
    }
}

// Exact attention of query position pos of request row to n keys, [num_q_heads, v_dim]; sparse: to
// the chosen ones of them.
static void oracle(const world *w, int row, int pos, const seen_key *keys, int n, bool sparse,
                   double *out)
{
    const world_req *r = &w->reqs[row];
    const int dim = w->spec.head_dim, v_dim = w->pool.spec.v_dim;
    const float *values = is_latent(w) ? r->k : r->v;
    const int ld_v = is_latent(w) ? dim : v_dim;
    const int hkv = w->spec.num_kv_heads, hq = hkv * w->spec.group;
    double *s = malloc((size_t)(n + 1) * sizeof *s);
    bool *left_out = calloc((size_t)n + 1, sizeof *left_out);
    for (int h = 0; h < hq; h++) {
        const float *first = r->q + (size_t)pos * w->q_width + (size_t)h * (size_t)dim;
        const int kh = h / w->spec.group;
        const double z = w->sinks != NULL ? (double)w->sinks[h] : -INFINITY;
        double m = z, l = 0;
        if (sparse) leave_out(w, first, r, kh, n, left_out);
        for (int p = 0; p < n; p++) {
            const float *k = r->k + ((size_t)keys[p].key * (size_t)hkv + (size_t)kh) * (size_t)dim;
            const float *q = first + query_of(w, pos, keys[p].key) * (size_t)hq * (size_t)dim;
            const double dot = product(q, k, dim);
            s[p] = rescore(w, h, keys[p].distance, dot * (double)w->layer.scale);
            if (left_out[p]) s[p] = -INFINITY;
            m = s[p] > m ? s[p] : m;
        }
        double *o = out + (size_t)h * (size_t)v_dim;
        for (int d = 0; d < v_dim; d++) o[d] = 0;
        for (int p = 0; p < n; p++) {
            const float *v =
                values + ((size_t)keys[p].key * (size_t)hkv + (size_t)kh) * (size_t)ld_v;
            const double e = exp(s[p] - m);
            l += e;
            add_times(o, e, v, v_dim);
        }
        if (n > 0) l += exp(z - m);
        for (int d = 0; d < v_dim && n > 0; d++) o[d] /= l;
    }
    free(left_out);
    free(s);
}

typedef struct error_args {
    const world *w;
    const step_req *reqs;
    double *worst; // [requests], NaN where a result is
} error_args;

static void error_task(void *arg, int i, int worker)
{
    (void)worker;
    const error_args *a = arg;
    const world *w = a->w;
    const step_req *q = &a->reqs[i];
    double *exact = malloc(w->out_ld * sizeof *exact), worst = 0;
    seen_key *keys = malloc((size_t)q->device * sizeof *keys);
    size_t t = 0;
    for (int j = 0; j < i; j++) t += (size_t)(a->reqs[j].device - a->reqs[j].cached);
    const uint64_t *tree = w->tree != NULL ? w->tree + t : NULL;
    const int samples = w->spec.samples > 0 ? w->spec.samples : 24;
    const int stride = 1 + (q->device - q->cached) / samples;
    for (int p = q->cached; p < q->device; p++, t++) {
        if ((p - q->cached) % stride != 0 && p + 1 < q->device) continue;
        const int n = visible_keys(w, q, p - q->cached, tree, keys);
        const bool sparse = w->spec.heavy_channels > 0 && i < w->batch.num_decode &&
                            n >= w->spec.heavy_tokens && n >= w->spec.threshold;
        oracle(w, q->req, p, keys, n, sparse, exact);
        for (size_t j = 0; j < w->out_ld; j++) {
            const double error = fabs((double)w->out[t * w->out_ld + j] - exact[j]);
            worst = isnan(error) || error > worst ? error : worst;
            if (isnan(worst)) break;
        }
        if (isnan(worst)) break;
    }
    a->worst[i] = worst;
    free(exact);
    free(keys);
}

double world_error(const world *w, const step_req *reqs, int n)
{
    double each[MAX_REQS], worst = 0, vmax = 0;
    error_args a = {.w = w, .reqs = reqs, .worst = each};
    msgl__pool_run(w->exec.pool, n, error_task, &a);
    for (int i = 0; i < n; i++) {
        const world_req *r = &w->reqs[reqs[i].req];
        const size_t count = (size_t)reqs[i].device * row_of(w, is_latent(w) ? 0 : 1);
        const float *values = is_latent(w) ? r->k : r->v;
        for (size_t j = 0; j < count; j++) vmax = fmax(vmax, fabs((double)values[j]));
        if (isnan(each[i])) {
            fail_msg("request %d of %d (positions %d to %d) has a NaN: dtype %d, group %d, dim "
                     "%d, page %d, window %d",
                     i, n, reqs[i].cached, reqs[i].device, (int)w->spec.dtype, w->spec.group,
                     w->spec.head_dim, w->spec.page_size, w->spec.window);
        }
        worst = fmax(worst, each[i]);
    }
    return worst / vmax;
}

// The tolerances stated at the head of each backend: error over the largest |v|.
double world_tolerance(const char *backend, msgl_dtype dtype)
{
    if (strcmp(backend, "torch_native") == 0) return 2e-6;
    if (strcmp(backend, "flex_attention") == 0) return 4e-6;
    if (dtype == MSGL_BF16 || dtype == MSGL_E4M3) return 4e-3;
    return strcmp(backend, "fa4") == 0 ? 4e-6 : 2e-6;
}

// Half a unit in the last place of the output, and as much for probabilities that are rounded to
// the dtype before the product with V (in f32 sums of up to some thousand terms, and exponentials
// of 2 ulp); kernels whose soft cap uses the GPU's approximate tanh (2^-11 before the cap is
// multiplied in) say so at their descriptor. torch_native rounds probabilities that are normalised
// already, as PyTorch does, where the largest of the others is exactly 1: whole relative errors of
// both roundings, 2^-8 in bf16 and 2^-11 in f16, which a few keys come near to.
double world_tolerance_gpu(const world_spec *spec)
{
    const bool bf16 = spec->dtype == MSGL_BF16 || spec->dtype == MSGL_E4M3;
    const bool half = bf16 || spec->dtype == MSGL_F16;
    if (half && strcmp(spec->desc->name, "torch_native") == 0) return bf16 ? 0x1p-7 : 0x1p-10;
    const double dtype = bf16 ? 4e-3 : spec->dtype == MSGL_F16 ? 5e-4 : 4e-6;
    const bool merged = strcmp(spec->desc->name, "flashinfer") == 0;
    const bool fi = merged || strcmp(spec->desc->name, "fi") == 0;
    const bool approximate = spec->softcap > 0 && fi;
    // FlashInfer's kernels round a result, which is rounded again with its sink; and both results
    // of flashinfer's chunks are, before they are merged.
    const int roundings = 1 + (fi && spec->sinks) + merged;
    return roundings * dtype + (approximate ? (double)spec->softcap * 0x1p-11 : 0);
}
