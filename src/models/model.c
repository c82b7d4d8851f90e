// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"

#include <math.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/arch.h"

// A window of W keys includes the query's own; the contract counts those before it.
static int32_t window_of(const msgl_model_config *c, int32_t layer)
{
    return (c->layer_flags[layer] & MSGL_LAYER_SLIDING) != 0 ? c->sliding_window - 1 : -1;
}

msgl_attn_variants msgl__model_variants(const msgl_model_config *c)
{
    msgl_attn_variants v = {0};
    // A config has one window, so there are two at most.
    for (int32_t l = 0; l < c->num_layers; l++) {
        (void)msgl__attn_variants_add(&v, window_of(c, l), 0);
    }
    return v;
}

static void build_attention(const msgl_model *m, int32_t index, msgl_attention *a)
{
    const msgl_model_config *c = &m->cfg;
    a->eps = c->rms_eps;
    a->num_heads = c->num_heads;
    a->num_kv_heads = c->num_kv_heads;
    a->head_dim = c->head_dim;
    a->out.row_parallel = true;
    a->geometry = (msgl_attn_layer){
        .layer = index,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .softcap = 0,
        .window = window_of(c, index),
    };
}

static int32_t sparse_layers(const msgl_model_config *c)
{
    int32_t n = 0;
    for (int32_t l = 0; l < c->num_layers; l++) n += (c->layer_flags[l] & MSGL_LAYER_SPARSE) != 0;
    return n;
}

static void build_layers(msgl_model *m)
{
    const msgl_model_config *c = &m->cfg;
    msgl_weight *experts = m->experts;
    for (int32_t l = 0; l < c->num_layers; l++) {
        msgl_decoder_layer *layer = &m->layers[l];
        layer->attn_norm.eps = layer->ffn_norm.eps = c->rms_eps;
        layer->attn_norm.dim = layer->ffn_norm.dim = c->hidden_size;
        build_attention(m, l, &layer->attn);
        layer->mlp.down.row_parallel = true;
        layer->sparse = (c->layer_flags[l] & MSGL_LAYER_SPARSE) != 0;
        if (!layer->sparse) continue;
        layer->moe.backend = m->target.moe;
        layer->moe.experts = (msgl_moe_experts){.num_experts = c->num_experts,
                                                .top_k = c->top_k,
                                                .norm_topk = c->norm_topk,
                                                .gate_up = experts,
                                                .down = experts + c->num_experts};
        experts += 2 * (size_t)c->num_experts;
    }
    m->final_norm = (msgl_norm){.eps = c->rms_eps, .dim = c->hidden_size};
}

int msgl__model_build(msgl_model *m, const msgl_model_target *target, msgl_err *err)
{
    m->target = *target;
    m->layers = msgl__calloc((size_t)m->cfg.num_layers, sizeof *m->layers);
    m->experts = msgl__calloc((size_t)sparse_layers(&m->cfg) * 2 * (size_t)m->cfg.num_experts,
                              sizeof *m->experts);
    if (m->layers == NULL || m->experts == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "model: out of memory");
    }
    build_layers(m);
    msgl__weight_plan_init(&m->plan, target->kernels, target->dtype, err);
    m->cfg.arch->declare(m, &m->plan);
    return m->plan.status;
}

void msgl__model_free(msgl_model *m)
{
    msgl__weight_plan_free(&m->plan);
    msgl__free(m->layers);
    msgl__free(m->experts);
    m->layers = NULL;
    m->experts = NULL;
}

int msgl__model_load(msgl_model *m, void *region, const char *dir, msgl_exec *x,
                     msgl_load_progress progress, void *ctx, msgl_err *err)
{
    msgl__weight_plan_place(&m->plan, region);
    if (m->cfg.tie_embeddings) m->lm_head.w = m->embed;
    int code;
    if (dir == NULL) {
        code = msgl__weights_dummy(&m->plan, x, progress, ctx, err);
    } else {
        msgl_checkpoint *ckpt = NULL;
        code = msgl__checkpoint_open(dir, &ckpt, err);
        if (code == 0) code = msgl__weights_check(&m->plan, ckpt, err);
        if (code == 0) code = msgl__weights_load(&m->plan, ckpt, x, progress, ctx, err);
        msgl__checkpoint_close(ckpt);
    }
    msgl__weight_plan_free(&m->plan);
    return code;
}

void msgl__model_logits(const msgl_model *m, msgl_forward *f, const void *hidden, int32_t rows,
                        float *logits)
{
    msgl__linear_f32(f, &m->lm_head, &m->final_norm, hidden, logits, rows);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

// Of a call of the kind that the layers make. The weights have no place yet, so whether there is a
// norm or a bias is said by the address of something else.
static size_t linear_scratch(const msgl_model *m, const msgl_linear *l, bool norm, int32_t rows,
                             bool gated, bool accumulate)
{
    static const float something = 0;
    msgl_linear_call c = {.w = &l->w,
                          .m = rows,
                          .ld_in = (size_t)l->w.k,
                          .norm = norm ? &something : NULL,
                          .gated = gated,
                          .accumulate = accumulate,
                          .ld_out = (size_t)(gated ? l->w.n / 2 : l->w.n)};
    const size_t plain = m->target.kernels->gemm.linear_scratch(&c);
    c.bias = &something;
    return larger(plain, m->target.kernels->gemm.linear_scratch(&c));
}

static size_t moe_scratch(const msgl_model *m, const msgl_moe *moe, int32_t block)
{
    const msgl_moe_experts *e = &moe->experts;
    msgl_grouped_call c = {.experts = e->gate_up,
                           .num_experts = e->num_experts,
                           .rows = block * e->top_k,
                           .ld_in = (size_t)e->gate_up->k,
                           .gated = true,
                           .ld_out = (size_t)e->gate_up->n / 2};
    const size_t up = m->target.kernels->gemm.grouped_scratch(&c);
    c = (msgl_grouped_call){.experts = e->down,
                            .num_experts = e->num_experts,
                            .rows = block * e->top_k,
                            .ld_in = (size_t)e->down->k,
                            .ld_out = (size_t)e->down->n};
    const size_t down = m->target.kernels->gemm.grouped_scratch(&c);
    // Sorting and combining number the assignments, and count them by expert.
    const size_t places = ((size_t)c.rows + (size_t)c.num_experts + 64) * 2 * sizeof(int32_t);
    const size_t router = linear_scratch(m, &moe->router, false, block, false, false);
    return larger(larger(up, down), larger(places, router));
}

size_t msgl__model_scratch(const msgl_model *m, int32_t max_tokens, int32_t max_rows)
{
    const int32_t block = msgl__ffn_rows(m->target.kernels, max_tokens);
    const bool add = m->target.ranks == 1;
    // Tied embeddings become the head when they are loaded.
    const msgl_linear head = {.w = m->cfg.tie_embeddings ? m->embed : m->lm_head.w};
    size_t most = linear_scratch(m, &head, true, max_rows, false, false);
    for (int32_t i = 0; i < m->cfg.num_layers; i++) {
        const msgl_decoder_layer *l = &m->layers[i];
        const msgl_attention *a = &l->attn;
        most = larger(most, linear_scratch(m, &a->qkv, true, max_tokens, false, false));
        most = larger(most, linear_scratch(m, &a->out, false, max_tokens, false, add));
        if (l->sparse) {
            most = larger(most, moe_scratch(m, &l->moe, block));
        } else {
            const msgl_mlp *mlp = &l->mlp;
            most = larger(most, linear_scratch(m, &mlp->gate_up, true, block, true, false));
            most = larger(most, linear_scratch(m, &mlp->down, false, block, false, add));
        }
    }
    return most;
}

// Row counts worth a measurement of their own: 1, 4 and 8, every 16 up to 64 and every 32 up to
// 256, then four in every doubling up to 2,048, where a tile more or less shows in steps of answers
// and chunks; powers of two above.
static int32_t tuned_rows(int32_t most, int32_t *ms, int32_t room)
{
    int32_t n = 0, doubling = 256;
    for (int32_t m = 1; m <= most && n < room;) {
        ms[n++] = m;
        if (m >= 2 * doubling) doubling *= 2;
        m += m == 1 ? 3 : m < 16 ? m : m < 64 ? 16 : m < 256 ? 32 : m < 2048 ? doubling / 4 : m;
    }
    return n;
}

static int32_t rows_up_to(int32_t most, const int32_t *ms, int32_t num)
{
    int32_t n = 0;
    while (n < num && ms[n] <= most) n++;
    return n;
}

// The layers' products, of the first layers of a kind: enough that their weights do not stay in a
// cache from one use to the next.
enum { TUNED_LAYERS = 8 };

typedef struct tuned_layers {
    const msgl_model *model;
    msgl_linear_call qkv[TUNED_LAYERS], out[TUNED_LAYERS], gate_up[TUNED_LAYERS],
        down[TUNED_LAYERS];
    int32_t num, num_mlp, num_down;
} tuned_layers;

static msgl_linear_call tuned_call(const msgl_linear *l, const msgl_norm *norm)
{
    return (msgl_linear_call){.w = &l->w,
                              .bias = l->bias,
                              .norm = norm != NULL ? norm->weight : NULL,
                              .norm_eps = norm != NULL ? norm->eps : 0};
}

// As msgl__linear_add calls it.
static msgl_linear_call tuned_add(const msgl_model *m, const msgl_linear *l, const msgl_norm *next)
{
    msgl_linear_call c = tuned_call(l, NULL);
    c.accumulate = m->target.ranks == 1;
    if (c.accumulate && next != NULL) c.next_norm = next->weight;
    return c;
}

static void take_layers(tuned_layers *t)
{
    const msgl_model *m = t->model;
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        const msgl_decoder_layer *layer = &m->layers[l];
        const msgl_norm *norm = layer->sparse ? NULL : &layer->ffn_norm;
        if (t->num < TUNED_LAYERS && layer->sparse == m->layers[0].sparse) {
            t->qkv[t->num] = tuned_call(&layer->attn.qkv, &layer->attn_norm);
            t->out[t->num++] = tuned_add(m, &layer->attn.out, norm);
        }
        if (t->num_mlp == TUNED_LAYERS || layer->sparse) continue;
        t->gate_up[t->num_mlp] = tuned_call(&layer->mlp.gate_up, norm);
        t->gate_up[t->num_mlp++].gated = true;
        // The last layer's leaves nothing for a norm behind: a call of another kind, once a step.
        const msgl_norm *next = l + 1 < m->cfg.num_layers ? &layer[1].attn_norm : NULL;
        if (next == NULL && t->num_down > 0) continue;
        t->down[t->num_down++] = tuned_add(m, &layer->mlp.down, next);
    }
}

static void tune(const msgl_model *m, msgl_exec *x, msgl_arena *memory, const msgl_tune_product *p,
                 const int32_t *ms, int32_t num)
{
    if (p->num_calls == 0) return;
    m->target.kernels->gemm.tune(x, memory, p, ms, num);
    msgl__arena_reset(memory);
    msgl__arena_reset(x->scratch);
}

void msgl__model_tune(const msgl_model *m, msgl_exec *x, msgl_arena *memory, int32_t max_batch,
                      int32_t max_tokens)
{
    int32_t ms[32];
    if (m->target.kernels->gemm.tune == NULL) return;
    const int32_t num = tuned_rows(max_tokens, ms, MSGL_COUNT(ms));
    const int32_t mlp_rows = rows_up_to(msgl__ffn_rows(m->target.kernels, max_tokens), ms, num);
    tuned_layers t = {.model = m};
    take_layers(&t);
    const msgl_attention *a = &m->layers[0].attn;
    const msgl_rope_call rope = {.num_q_heads = a->num_heads,
                                 .num_kv_heads = a->num_kv_heads,
                                 .head_dim = a->head_dim,
                                 .q_weight = a->q_norm,
                                 .k_weight = a->k_norm,
                                 .eps = a->eps,
                                 .half = a->head_dim / 2,
                                 .kv_dtype = m->target.act};
    msgl_linear_call logits = tuned_call(&m->lm_head, &m->final_norm);
    logits.f32_out = true;
    const msgl_tune_product head = {.calls = &logits, .num_calls = 1};
    const msgl_tune_product qkv = {.calls = t.qkv, .num_calls = t.num, .rope = &rope};
    const msgl_tune_product gate_up = {.calls = t.gate_up, .num_calls = t.num_mlp};
    const msgl_tune_product out = {.calls = t.out,
                                   .num_calls = t.num,
                                   .behind = t.num_mlp > 0 ? &gate_up : NULL}; // else experts
    const msgl_tune_product down = {.calls = t.down, .num_calls = t.num_down, .behind = &qkv};
    // Logits are of at most a decode batch's rows at a time. Who takes a norm's feed comes before
    // who leaves it.
    tune(m, x, memory, &head, ms, rows_up_to(max_batch, ms, num));
    tune(m, x, memory, &qkv, ms, num);
    tune(m, x, memory, &gate_up, ms, mlp_rows);
    tune(m, x, memory, &out, ms, num);
    tune(m, x, memory, &down, ms, mlp_rows);
}
