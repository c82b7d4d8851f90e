// SPDX-License-Identifier: Apache-2.0
//
// Plain C of the attn family: the version that is always there and that the others are read
// against. Sums run over visible keys in ascending order; q stays f32 for every KV dtype.
#include <math.h>
#include <string.h>

#include "core/attributes.h"
#include "kernel/attn_internal.h"
#include "kernel/ladder.h"

enum { BLOCK = 16 };

typedef struct ref_scratch {
    msgl_dtype dtype;
    float s[MSGL_ATTN_TILE];
    float m[BLOCK], l[BLOCK], o[BLOCK * MSGL_ATTN_MAX_LATENT];
    float q[MSGL_ATTN_MAX_ROWS * MSGL_ATTN_MAX_LATENT];
} ref_scratch;

static size_t ref_scratch_size(int head_dim)
{
    (void)head_dim;
    return sizeof(ref_scratch);
}

static void ref_load_q(const msgl__attn_query *q, void *scratch)
{
    ref_scratch *r = scratch;
    const size_t dim = (size_t)q->call->head_dim;
    r->dtype = q->call->dtype == MSGL_E4M3 ? MSGL_BF16 : q->call->dtype;
    for (int i = 0; i < q->work->rows; i++) {
        memcpy(r->q + (size_t)i * dim, msgl__attn_q_row(q, 0, i), dim * sizeof(float));
    }
}

static void ref_load_keys(const msgl__attn_keys *keys, int rows, void *scratch)
{
    (void)keys;
    (void)rows;
    (void)scratch;
}

// s in base 2: scale * log2(e) * q.k, capped before the change of base.
static float ref_score(const ref_scratch *r, const msgl__attn_keys *keys, int row, int key)
{
    const float *q = r->q + (size_t)row * (size_t)keys->head_dim;
    const void *k = keys->k + (size_t)keys->slots[key] * keys->slot_bytes;
    float s = 0;
    for (int d = 0; d < keys->head_dim; d++) s += q[d] * msgl__load_f32(k, r->dtype, (size_t)d);
    s *= keys->scale;
    if (keys->softcap > 0) s = keys->softcap * tanhf(s / keys->softcap);
    return s * (float)M_LOG2E;
}

static void ref_tile(const msgl__attn_keys *keys, msgl__attn_block *b, void *scratch)
{
    ref_scratch *r = scratch;
    const int dim = keys->v_dim, padded = msgl__attn_padded_dim(dim);
    b->m = r->m;
    b->l = r->l;
    b->o = r->o;
    memset(r->o, 0, (size_t)b->n * (size_t)padded * sizeof *r->o);
    for (int i = 0; i < b->n; i++) {
        float m = -INFINITY, l = 0, *o = r->o + (size_t)i * (size_t)padded;
        for (int j = b->lo[i]; j < b->hi[i]; j++) {
            r->s[j] = ref_score(r, keys, b->row + i, j);
            m = r->s[j] > m || isnan(r->s[j]) ? r->s[j] : m;
        }
        for (int j = b->lo[i]; j < b->hi[i]; j++) {
            const void *v = keys->v + (size_t)keys->slots[j] * keys->v_slot_bytes;
            const float p = exp2f(r->s[j] - m);
            l += p;
            for (int d = 0; d < dim; d++) o[d] += p * msgl__load_f32(v, r->dtype, (size_t)d);
        }
        r->m[i] = m;
        r->l[i] = l;
    }
}

static void ref_fold(int n, int padded_dim, float *M, float *L, float *O, const float *m,
                     const float *l, const float *o)
{
    for (int i = 0; i < n; i++, o += padded_dim, O += padded_dim) {
        const float top = m[i] > M[i] || isnan(m[i]) ? m[i] : M[i];
        if (top == -INFINITY) continue; // nothing seen so far: zeros, and no inf - inf
        const float a = exp2f(M[i] - top), b = exp2f(m[i] - top);
        M[i] = top;
        L[i] = L[i] * a + l[i] * b;
        for (int d = 0; d < padded_dim; d++) O[d] = O[d] * a + o[d] * b;
    }
}

static void ref_write(int v_dim, const float *o, float f, float *out)
{
    for (int d = 0; d < v_dim; d++) out[d] = o[d] * f;
}

static void ref_store_f32(const float *from, void *to, int n)
{
    memcpy(to, from, (size_t)n * sizeof *from);
}

static void ref_store_f16(const float *from, void *to, int n)
{
    uint16_t *half = to;
    for (int i = 0; i < n; i++) half[i] = msgl__f32_to_f16(from[i]);
}

static void ref_store_bf16(const float *from, void *to, int n)
{
    uint16_t *half = to;
    for (int i = 0; i < n; i++) half[i] = msgl__f32_to_bf16(from[i]);
}

const msgl_kv_store_fn msgl__kv_store_ref[MSGL_DTYPE_COUNT] = {[MSGL_F32] = ref_store_f32,
                                                               [MSGL_F16] = ref_store_f16,
                                                               [MSGL_BF16] = ref_store_bf16,
                                                               [MSGL_E4M3] = msgl__e4m3_store_ref};

static const msgl__attn_ops REF = {.block = BLOCK,
                                   .scratch = ref_scratch_size,
                                   .load_q = ref_load_q,
                                   .load_keys = ref_load_keys,
                                   .tile = ref_tile,
                                   .fold = ref_fold,
                                   .write = ref_write};

void msgl__attn_init_ref(msgl_attn_kernels *k)
{
    *k = (msgl_attn_kernels){
        .ops = {[MSGL_F32] = &REF, [MSGL_F16] = &REF, [MSGL_BF16] = &REF},
        .latent_ops = {[MSGL_F32] = &REF, [MSGL_F16] = &REF, [MSGL_BF16] = &REF},
        .expand = msgl__e4m3_expand_ref,
        .paged = msgl__attn_paged,
        .scratch_size = msgl__attn_scratch_size,
        .gather = msgl__attn_gather_ref,
        .expanded = msgl__attn_expanded_ref};
}
