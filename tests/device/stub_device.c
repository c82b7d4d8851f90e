// SPDX-License-Identifier: Apache-2.0
//
// minisgl-stub.so: the smallest device that runs models. It has memory and a queue of its own as
// far as the engine can tell, which are the host's; the CPU's kernels, in f32; an attention backend
// and a form of weights that nobody else has. What the core does for it, it does for every plug-in.
#include <math.h>
#include <string.h>

#include "attention/attention.h"
#include "core/mem.h"
#include "device/stub.h"
#include "kernel/kernel.h"
#include "kernel/plugin.h"

#define EXPORTED __attribute__((visibility("default")))

const msgl_plugin *msgl_device_plugin(void);
extern stub_counts stub;
EXPORTED stub_counts stub;

enum { DEVICES = 2 };
#define MEMORY ((size_t)2 << 30)

// ---- the device: the CPU's queue, its memory counted ----

static atomic_size_t taken;
static const msgl_device_ops *host;

static void *stub_alloc(msgl_device *d, size_t bytes)
{
    if (atomic_fetch_add(&taken, bytes) + bytes > MEMORY) {
        atomic_fetch_sub(&taken, bytes);
        return NULL;
    }
    return host->alloc(d, bytes);
}

static void stub_free(msgl_device *d, void *p, size_t bytes)
{
    atomic_fetch_sub(&taken, bytes);
    host->free(d, p, bytes);
}

static size_t stub_available(msgl_device *d)
{
    (void)d;
    return MEMORY - atomic_load(&taken);
}

static int stub_count(msgl_err *reason)
{
    (void)reason;
    return DEVICES;
}

static int stub_props(int ordinal, msgl_device_props *out, msgl_err *err)
{
    (void)ordinal, (void)err;
    *out = (msgl_device_props){.name = "stub of a device",
                               .details = "no processors",
                               .driver = "no driver",
                               .capability = 10,
                               .total_bytes = MEMORY,
                               .free_bytes = MEMORY - atomic_load(&taken)};
    return 0;
}

static int stub_open(const msgl_device_options *o, msgl_device **out, msgl_device_props *props,
                     msgl_err *err)
{
    static msgl_device_ops ops;
    if (props != NULL) (void)stub_props(o->ordinal, props, err);
    const int code = msgl__device_cpu_create(out, err);
    if (code != 0) return code;
    host = (*out)->ops;
    ops = *host;
    ops.alloc = stub_alloc;
    ops.free = stub_free;
    ops.available = stub_available;
    (*out)->ops = &ops;
    (*out)->on_host = false;
    (*out)->capability = 10;
    atomic_fetch_add(&stub.opened, 1);
    return 0;
}

// ---- a form of weights: the CPU's f32, rounded to bf16 ----

static const msgl_wformat *plain;

static size_t rounded_size(const msgl_wformat *f, int n, int k)
{
    (void)f;
    return plain->packed_size(plain, n, k);
}

static void rounded_pack(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                         msgl_dtype src_dtype, size_t ld_src)
{
    const size_t k = (size_t)w->k;
    float *values = msgl__malloc((size_t)rows * k * sizeof *values);
    if (values == NULL) {
        x->status = MSGL_ENOMEM;
        return;
    }
    for (size_t i = 0; i < (size_t)rows * k; i++) {
        const float v = msgl__load_f32(src, src_dtype, i / k * ld_src + i % k);
        values[i] = msgl__bf16_to_f32(msgl__f32_to_bf16(v));
    }
    plain->pack(x, w, row, rows, values, MSGL_F32, k);
    msgl__free(values);
    atomic_fetch_add(&stub.packed, 1);
}

static void rounded_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                           void *out)
{
    plain->gather(x, w, ids, rows, out);
}

static const msgl_wformat ROUNDED = {.name = "rounded",
                                     .id = MSGL_W_F32, // whose products multiply it
                                     .dtype = MSGL_F32,
                                     .packed_size = rounded_size,
                                     .pack = rounded_pack,
                                     .gather = rounded_gather};
static const msgl_wformat *const FORMATS[] = {&ROUNDED, NULL};

static int stub_kernels(const msgl_device_options *o, msgl_kernels *k, msgl_err *err)
{
    static msgl_kernels of_cpu;
    msgl_cpu_level level;
    const int code = msgl__cpu_level_select(o->cpu_level, &level, err);
    if (code != 0) return code;
    msgl__kernels_init_cpu(&of_cpu, level);
    plain = &of_cpu.gemm.formats[MSGL_W_F32];
    *k = of_cpu;
    return 0;
}

// ---- an attention backend: the definition, in f64 ----

typedef struct plain_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    double *scores; // [max_seq_len]
} plain_backend;

static void plain_destroy(msgl_attn_backend *base)
{
    msgl__free(((plain_backend *)base)->scores);
    msgl__free(base);
}

static int plain_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                        msgl_attn_backend **out, msgl_err *err)
{
    plain_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "plain: out of memory");
    *b = (plain_backend){.base.desc = desc, .cfg = *cfg};
    b->scores = msgl__calloc((size_t)cfg->max_seq_len, sizeof *b->scores);
    *out = &b->base;
    if (b->scores != NULL) return 0;
    plain_destroy(&b->base);
    return msgl__err_set(err, MSGL_ENOMEM, "plain: out of memory");
}

static size_t slot_of(const plain_backend *b, int32_t place)
{
    const int32_t size = b->cfg.page_size;
    return (size_t)(b->cfg.device_table[place / size] * size + place % size);
}

// One head's query at position pos, whose keys are at places `place` to place + pos.
static void attend(const plain_backend *b, const msgl_attn_layer *layer, int32_t place, int32_t pos,
                   size_t head, const float *q, float *out)
{
    const msgl_kv_pool *pool = b->cfg.pool;
    const size_t dim = (size_t)b->cfg.head_dim, stride = msgl__kv_slot_stride(pool);
    const size_t group = (size_t)(b->cfg.num_q_heads / b->cfg.num_kv_heads);
    const size_t at = head / group * dim;
    const void *k = msgl__kv_k(pool, layer->layer), *v = msgl__kv_v(pool, layer->layer);
    const msgl_dtype t = pool->spec.dtype;
    const int32_t from = layer->window >= 0 && pos > layer->window ? pos - layer->window : 0;
    double most = -INFINITY, sum = 0;
    for (int32_t p = from; p <= pos; p++) {
        double s = 0;
        for (size_t d = 0; d < dim; d++) {
            s += (double)q[d] *
                 (double)msgl__load_f32(k, t, slot_of(b, place + p) * stride + at + d);
        }
        b->scores[p] = s * (double)layer->scale;
        most = fmax(most, b->scores[p]);
    }
    for (int32_t p = from; p <= pos; p++) sum += b->scores[p] = exp(b->scores[p] - most);
    for (size_t d = 0; d < dim; d++) {
        double o = 0;
        for (int32_t p = from; p <= pos; p++) {
            o += b->scores[p] *
                 (double)msgl__load_f32(v, t, slot_of(b, place + p) * stride + at + d);
        }
        out[d] = (float)(o / sum);
    }
}

static void plain_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                          const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const plain_backend *b = (const plain_backend *)base;
    const size_t heads = (size_t)b->cfg.num_q_heads, dim = (size_t)b->cfg.head_dim;
    (void)x;
    atomic_fetch_add(&stub.attended, 1);
    for (int32_t r = 0; r < seqs->size; r++) {
        const int32_t place = seqs->dev_table_rows[r] * (int32_t)b->cfg.device_table_stride;
        const int32_t first = seqs->dev_cu_seqlens_q[r], end = seqs->dev_cu_seqlens_q[r + 1];
        for (int32_t t = first; t < end; t++) {
            const int32_t pos = seqs->dev_seqlens_k[r] - (end - t);
            for (size_t h = 0; h < heads; h++) {
                attend(b, layer, place, pos, h, (const float *)in->q + (size_t)t * in->ld + h * dim,
                       (float *)out + ((size_t)t * heads + h) * dim);
            }
        }
    }
}

static const msgl_attn_desc PLAIN = {.name = "plain",
                                     .aliases = {NULL},
                                     .summary = "the definition of attention, in f64",
                                     .page_rule = MSGL_PAGE_ANY,
                                     .kv_dtypes = 1u << MSGL_F32,
                                     .sliding_window = true,
                                     .ragged = true,
                                     .create = plain_create,
                                     .destroy = plain_destroy,
                                     .forward = plain_forward};
static const msgl_attn_desc *const ALL[] = {&PLAIN, NULL};
static const msgl_attn_pair PAIRS[] = {{.prefill = "plain", .decode = "plain"}, {.prefill = NULL}};
static const msgl_attn_set BACKENDS = {.device = "the stub", .all = ALL, .pairs = PAIRS};

EXPORTED const msgl_plugin *msgl_device_plugin(void)
{
    static const msgl_plugin PLUGIN = {.abi = MSGL_PLUGIN_ABI,
                                       .name = "stub",
                                       .build = "for tests",
                                       .count = stub_count,
                                       .props = stub_props,
                                       .open = stub_open,
                                       .kernels = stub_kernels,
                                       .backends = &BACKENDS,
                                       .formats = FORMATS};
    return &PLUGIN;
}
