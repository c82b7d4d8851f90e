// SPDX-License-Identifier: Apache-2.0
//
// torch_native on GPUs, as PyTorch's SDPA does without a fused kernel: request by request K and V
// are gathered by their slots, multiplied with the queries (cuBLASLt, all KV heads at once, rows
// are tokens times query heads of the KV head), the scores become probabilities, and these are
// multiplied with V. Sums, scores and the softmax are f32, probabilities have the activations'
// dtype. A latent cache is one KV head whose V lies in K.
//
// Launches depend on the lengths, so there are no graphs.
//
// Memory, taken when it is made: K and V of one request of max_seq_len tokens, and for a block of
// up to MSGL_TORCH_ROWS tokens queries, results, scores (f32) and probabilities; of scores SCORES,
// or what one token has over max_seq_len keys, if that is more.
//
// Tolerance against exact attention (world_tolerance_gpu in tests/attention/world.c): that of two
// roundings, of probabilities after they are normalised and of the result.
#include "cuda/backends/torch_native.h"

#include "attention/paged.h"
#include "core/mem.h"
#include "cuda/backends/torch_blocks.h"

enum { SCORES = 16 << 20 };

typedef struct torch_memory {
    void *k, *v;   // [keys, num_kv_heads, head_dim]; v is k in a latent cache
    void *q, *o;   // [num_kv_heads] of [tokens * group, head_dim], and of [tokens * group, v_dim]
    float *scores; // [num_kv_heads] of [tokens * group, keys of the block]
    void *p;       // the same in the activations' dtype; f32: the scores themselves
} torch_memory;

typedef struct torch_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    size_t room; // tokens * keys of a block
    torch_memory memory;
    void *allocation; // that of bytes
    size_t bytes;
} torch_backend;

// A layer of a step.
typedef struct torch_call {
    const torch_backend *b;
    msgl_exec *x;
    void *stream;
    msgl_cuda_attn_call attn;
    const msgl_attn_layer *layer;
    size_t elem; // bytes of an activation
} torch_call;

// Rows of [num_kv_heads] matrices: a block's queries or results.
typedef struct torch_rows {
    char *p;
    size_t ld, head; // elements
} torch_rows;

static void torch_destroy(msgl_attn_backend *base)
{
    torch_backend *b = (torch_backend *)base;
    if (b == NULL) return;
    if (b->allocation != NULL) b->cfg.dev->ops->free(b->cfg.dev, b->allocation, b->bytes);
    msgl__free(b);
}

// Bytes of each of memory's members; 0: it is another one.
static void measure(const torch_backend *b, size_t bytes[6])
{
    const msgl_attn_config *cfg = &b->cfg;
    const size_t elem = msgl__dtype_size(msgl__cuda_attn_act(cfg));
    const size_t heads = (size_t)cfg->num_q_heads, dim = (size_t)cfg->head_dim;
    const size_t v_dim = (size_t)cfg->pool->spec.v_dim, tokens = (size_t)cfg->max_step_tokens;
    const size_t rows = heads * (tokens < MSGL_TORCH_ROWS ? tokens : MSGL_TORCH_ROWS);
    const size_t kv = msgl__round_up((size_t)cfg->max_seq_len, MSGL_NATIVE_KEYS) *
                      (size_t)cfg->num_kv_heads * dim * elem;
    bytes[0] = kv;
    bytes[1] = msgl__attn_latent(cfg) ? 0 : kv;
    bytes[2] = rows * dim * elem;
    bytes[3] = rows * v_dim * elem;
    bytes[4] = b->room * heads * sizeof(float);
    bytes[5] = elem == sizeof(float) ? 0 : b->room * heads * elem;
}

static int take_memory(torch_backend *b, msgl_err *err)
{
    const msgl_attn_config *cfg = &b->cfg;
    const size_t keys = msgl__round_up((size_t)cfg->max_seq_len, MSGL_NATIVE_KEYS);
    const size_t all = keys * MSGL_TORCH_ROWS, some = SCORES / (size_t)cfg->num_q_heads;
    size_t bytes[6];
    b->room = some < keys ? keys : some < all ? some : all;
    measure(b, bytes);
    for (int i = 0; i < 6; i++) b->bytes += msgl__round_up(bytes[i], 64);
    char *at = b->allocation = cfg->dev->ops->alloc(cfg->dev, b->bytes);
    if (at == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM,
                             "torch_native: no memory for a workspace of %zu bytes", b->bytes);
    }
    torch_memory *m = &b->memory;
    m->k = m->v = msgl__attn_carve(&at, bytes[0]);
    if (bytes[1] > 0) m->v = msgl__attn_carve(&at, bytes[1]);
    m->q = msgl__attn_carve(&at, bytes[2]);
    m->o = msgl__attn_carve(&at, bytes[3]);
    m->p = m->scores = msgl__attn_carve(&at, bytes[4]);
    if (bytes[5] > 0) m->p = msgl__attn_carve(&at, bytes[5]);
    return 0;
}

static int torch_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                        msgl_attn_backend **out, msgl_err *err)
{
    int code = msgl__attn_config_check(desc, cfg, err);
    if (code != 0) return code;
    torch_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "torch_native: out of memory");
    b->base.desc = desc;
    b->cfg = *cfg;
    code = take_memory(b, err);
    if (code != 0) {
        torch_destroy(&b->base);
        return code;
    }
    *out = &b->base;
    return 0;
}

static bool failed(const torch_call *c, int code)
{
    msgl__cuda_attn_result(c->x, "torch_native", code);
    return code != 0;
}

// K and V at positions [from, from + rows) of a request with `len` tokens; those before `first` or
// behind its end become zeros.
static bool gather(const torch_call *c, int32_t table_row, int32_t from, int32_t first, int32_t len)
{
    const msgl_attn_config *cfg = &c->b->cfg;
    const torch_memory *m = &c->b->memory;
    const msgl_native_gather g = {.dtype = c->attn.dtype,
                                  .e4m3 = c->attn.e4m3,
                                  .width = cfg->num_kv_heads * cfg->head_dim,
                                  .k = c->attn.k,
                                  .v = m->v != m->k ? c->attn.v : NULL,
                                  .table = cfg->device_table,
                                  .paging = msgl__paging_of(cfg->page_size),
                                  .place = table_row * (int32_t)cfg->device_table_stride + from,
                                  .first = first - from,
                                  .end = len - from,
                                  .rows =
                                      (int32_t)msgl__round_up((size_t)len, MSGL_NATIVE_KEYS) - from,
                                  .to_k = m->k,
                                  .to_v = m->v};
    return !failed(c, msgl__cuda_native_gather(&g, c->stream));
}

// The rows of a block, heads of dim elements at `lies`, ld from token to token: there, if rows are
// equally far apart, else in `packed`.
static torch_rows rows_of(const torch_call *c, char *lies, size_t ld, size_t dim, int32_t tokens,
                          void *packed)
{
    const size_t group = (size_t)(c->attn.num_q_heads / c->attn.num_kv_heads), run = group * dim;
    if (tokens == 1 || ld == run) return (torch_rows){lies, dim, run};
    if (group == 1) return (torch_rows){lies, ld, dim};
    return (torch_rows){packed, dim, (size_t)tokens * run};
}

// Copies heads of dim elements from tokens, ld apart, to packed rows, or back.
static bool copy(const torch_call *c, int32_t tokens, size_t dim, char *lies, size_t ld,
                 const torch_rows *packed, bool pack)
{
    const size_t group = (size_t)(c->attn.num_q_heads / c->attn.num_kv_heads);
    const size_t run = group * dim * c->elem, head = packed->head * c->elem, token = ld * c->elem;
    msgl_native_copy call = {.from = lies,
                             .from_head = run,
                             .from_token = token,
                             .to = packed->p,
                             .to_head = head,
                             .to_token = run,
                             .heads = c->attn.num_kv_heads,
                             .tokens = tokens,
                             .bytes = (int32_t)run};
    if (!pack) {
        call.from = packed->p, call.from_head = head, call.from_token = run;
        call.to = lies, call.to_head = run, call.to_token = token;
    }
    return !failed(c, msgl__cuda_native_copy(&call, c->stream));
}

// A block's scores and probabilities. from: position of the first gathered key.
static bool weigh(const torch_call *c, const msgl_torch_block *block, int32_t pos, int32_t from,
                  const torch_rows *q)
{
    const msgl_attn_config *cfg = &c->b->cfg;
    const torch_memory *m = &c->b->memory;
    const int32_t group = cfg->num_q_heads / cfg->num_kv_heads, rows = block->tokens * group;
    const size_t dim = (size_t)cfg->head_dim, width = (size_t)cfg->num_kv_heads * dim;
    const size_t keys = (size_t)block->keys, skip = (size_t)(block->first_key - from);
    const msgl_native_product qk = {.in_type = c->attn.dtype,
                                    .out_type = MSGL_F32,
                                    .transposed = true,
                                    .heads = cfg->num_kv_heads,
                                    .m = rows,
                                    .n = block->keys,
                                    .k = cfg->head_dim,
                                    .a = q->p,
                                    .ld_a = q->ld,
                                    .head_a = q->head,
                                    .b = (const char *)m->k + skip * width * c->elem,
                                    .ld_b = width,
                                    .head_b = dim,
                                    .out = m->scores,
                                    .ld_out = keys,
                                    .head_out = (size_t)rows * keys,
                                    .scale = c->attn.scale};
    const msgl_native_softmax s = {.scores = m->scores,
                                   .p = m->p,
                                   .dtype = c->attn.dtype,
                                   .num_kv_heads = cfg->num_kv_heads,
                                   .group = group,
                                   .tokens = block->tokens,
                                   .keys = block->keys,
                                   .first_key = block->first_key,
                                   .first_pos = pos,
                                   .window = c->layer->window,
                                   .chunk = c->layer->chunk,
                                   .softcap = c->layer->softcap,
                                   .sinks = c->layer->sinks};
    msgl__cuda_native_product(c->x, &qk);
    if (c->x->status != 0) return false;
    return !failed(c, msgl__cuda_native_softmax(&s, c->stream));
}

// Probabilities times V.
static bool mix(const torch_call *c, const msgl_torch_block *block, int32_t from,
                const torch_rows *o)
{
    const msgl_attn_config *cfg = &c->b->cfg;
    const torch_memory *m = &c->b->memory;
    const int32_t rows = block->tokens * (cfg->num_q_heads / cfg->num_kv_heads);
    const size_t dim = (size_t)cfg->head_dim, width = (size_t)cfg->num_kv_heads * dim;
    const size_t keys = (size_t)block->keys, skip = (size_t)(block->first_key - from);
    const msgl_native_product pv = {.in_type = c->attn.dtype,
                                    .out_type = c->attn.dtype,
                                    .heads = cfg->num_kv_heads,
                                    .m = rows,
                                    .n = c->attn.v_dim,
                                    .k = block->keys,
                                    .a = m->p,
                                    .ld_a = keys,
                                    .head_a = (size_t)rows * keys,
                                    .b = (const char *)m->v + skip * width * c->elem,
                                    .ld_b = width,
                                    .head_b = dim,
                                    .out = o->p,
                                    .ld_out = o->ld,
                                    .head_out = o->head,
                                    .scale = c->attn.out_scale};
    msgl__cuda_native_product(c->x, &pv);
    return c->x->status == 0;
}

// A block of tokens, the first in row `row` of the step and at position pos of its request.
static bool attend_block(const torch_call *c, const msgl_torch_block *block, int32_t row,
                         int32_t pos, int32_t from)
{
    const msgl_cuda_attn_call *a = &c->attn;
    const size_t dim = (size_t)a->head_dim, v_dim = (size_t)a->v_dim;
    char *q_lies = (char *)(uintptr_t)a->q + (size_t)row * a->ld_q * c->elem;
    char *o_lies = (char *)a->out + (size_t)row * a->ld_out * c->elem;
    const torch_rows q = rows_of(c, q_lies, a->ld_q, dim, block->tokens, c->b->memory.q);
    const torch_rows o = rows_of(c, o_lies, a->ld_out, v_dim, block->tokens, c->b->memory.o);
    if (q.p != q_lies && !copy(c, block->tokens, dim, q_lies, a->ld_q, &q, true)) return false;
    if (!weigh(c, block, pos, from, &q) || !mix(c, block, from, &o)) return false;
    return o.p == o_lies || copy(c, block->tokens, v_dim, o_lies, a->ld_out, &o, false);
}

static bool attend_request(const torch_call *c, const msgl_seqs *seqs, int32_t req)
{
    const int32_t row = seqs->cu_seqlens_q[req], tokens = seqs->cu_seqlens_q[req + 1] - row;
    const int32_t len = seqs->seqlens_k[req], pos = len - tokens;
    const int32_t first = msgl__torch_first_key(c->layer, pos);
    const int32_t from = first - first % MSGL_NATIVE_KEYS;
    if (!gather(c, seqs->table_rows[req], from, first, len)) return false;
    for (int32_t at = 0; at < tokens;) {
        const msgl_torch_block block =
            msgl__torch_block(c->layer, pos + at, tokens - at, c->b->room);
        if (!attend_block(c, &block, row + at, pos + at, from)) return false;
        at += block.tokens;
    }
    return true;
}

static void torch_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                          const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const torch_backend *b = (const torch_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    torch_call c = {.b = b,
                    .x = x,
                    .stream = msgl__cuda_device_stream(x->device),
                    .layer = layer,
                    .elem = msgl__dtype_size(x->act)};
    msgl__cuda_attn_call(cfg, layer, seqs, in, out, &c.attn);
    for (int32_t i = 0; i < seqs->size && attend_request(&c, seqs, i); i++) continue;
}

const msgl_attn_desc msgl__attn_torch_native_cuda = {
    .name = "torch_native",
    .aliases = {NULL},
    .summary = "gather, product, softmax, product, by cuBLASLt: the readable baseline",
    .min_capability = 80,
    .page_rule = MSGL_PAGE_ANY,
    .caches = 1u << MSGL_CACHE_KV | 1u << MSGL_CACHE_LATENT,
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16 | 1u << MSGL_E4M3,
    .sliding_window = true,
    .local_chunks = true,
    .softcap = true,
    .sinks = true,
    .supports = msgl__cuda_supports,
    .create = torch_create,
    .destroy = torch_destroy,
    .forward = torch_forward,
};
