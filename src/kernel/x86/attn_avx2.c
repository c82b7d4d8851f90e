// SPDX-License-Identifier: Apache-2.0
//
// Family attn at level AVX2: f32 products for every dtype of the pool, q in f32.
#include <immintrin.h>

#include "kernel/x86/attn_exp2.h"
#include "kernel/x86/attn_rows.h"
#include "kernel/x86/init.h"
#include "kernel/x86/ops.h"

// As msgl__exp2_avx512, but 0 below -125: the exponent is added as an integer.
static inline __m256 exp2_8(__m256 x)
{
    const __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256 r = _mm256_sub_ps(x, n);
    __m256 g = _mm256_fmadd_ps(_mm256_set1_ps(MSGL_EXP2_C5), r, _mm256_set1_ps(MSGL_EXP2_C4));
    g = _mm256_fmadd_ps(g, r, _mm256_set1_ps(MSGL_EXP2_C3));
    g = _mm256_fmadd_ps(g, r, _mm256_set1_ps(MSGL_EXP2_C2));
    g = _mm256_fmadd_ps(g, r, _mm256_set1_ps(MSGL_EXP2_C1));
    g = _mm256_fmadd_ps(g, r, _mm256_set1_ps(MSGL_EXP2_C0));
    g = _mm256_fmadd_ps(g, r, _mm256_set1_ps(1));
    const __m256i e = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    const __m256 y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(g), e));
    const __m256 keep = _mm256_cmp_ps(x, _mm256_set1_ps(-125), _CMP_NLT_UQ);
    return _mm256_and_ps(y, keep);
}

// log2(e) * cap * tanh(s * scale / cap), tanh(x) = 1 - 2 / (e^2x + 1).
static inline __m256 softcap_8(__m256 s, float scale, float cap)
{
    const __m256 x = _mm256_mul_ps(s, _mm256_set1_ps(scale / cap)), one = _mm256_set1_ps(1);
    const __m256 e = exp2_8(
        _mm256_mul_ps(_mm256_min_ps(_mm256_set1_ps(40), x), _mm256_set1_ps((float)(2 * M_LOG2E))));
    const __m256 t = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2), _mm256_add_ps(e, one)));
    return _mm256_mul_ps(t, _mm256_set1_ps(cap * (float)M_LOG2E));
}

// Lane j of the result: the sum of all lanes of a[SLOT(j)], added 4, 2, 1 lanes apart.
#define SLOT(j) ((j) / 4 * 4 + ((j) % 4 == 1 ? 2 : (j) % 4 == 2 ? 1 : (j) % 4))
static inline __m256 reduce_8(const __m256 a[8])
{
    __m256 b[4], c[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], a[i + 4], 0x20),
                             _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        c[i] = _mm256_add_ps(_mm256_shuffle_ps(b[i], b[i + 2], 0x44),
                             _mm256_shuffle_ps(b[i], b[i + 2], 0xee));
    }
    return _mm256_add_ps(_mm256_shuffle_ps(c[0], c[1], 0x88), _mm256_shuffle_ps(c[0], c[1], 0xdd));
}

static inline float sum_8(__m256 x)
{
    const __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

static inline float max_8(__m256 x)
{
    const __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 b = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

// Scores of one row to probabilities. The sum is taken as 8 sums over keys equal mod 8.
static void rows_softmax(rows_scratch *s, const msgl__attn_keys *keys, int row, int lo, int hi,
                         int from, int to)
{
    float *p = s->s[row];
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256 none = _mm256_set1_ps(-INFINITY);
    const __m256 factor = _mm256_set1_ps(keys->scale * (float)M_LOG2E);
    __m256 top = none;
    for (int key = from; key < to; key += 8) {
        const __m256i at = _mm256_add_epi32(lane, _mm256_set1_epi32(key));
        const __m256i in = _mm256_and_si256(_mm256_cmpgt_epi32(at, _mm256_set1_epi32(lo - 1)),
                                            _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), at));
        __m256 x = _mm256_load_ps(p + key);
        x = keys->softcap > 0 ? softcap_8(x, keys->scale, keys->softcap) : _mm256_mul_ps(x, factor);
        x = _mm256_blendv_ps(none, x, _mm256_castsi256_ps(in));
        top = _mm256_max_ps(top, x);
        _mm256_store_ps(p + key, x);
    }
    const float m = max_8(top);
    const __m256 base = _mm256_set1_ps(m == -INFINITY ? 0 : m);
    __m256 sum = _mm256_setzero_ps();
    for (int key = from; key < to; key += 8) {
        const __m256 x = exp2_8(_mm256_sub_ps(_mm256_load_ps(p + key), base));
        sum = _mm256_add_ps(sum, x);
        _mm256_store_ps(p + key, x);
    }
    s->m[row] = m;
    s->l[row] = sum_8(sum);
}

static void fold(int n, int padded_dim, float *M, float *L, float *O, const float *m,
                 const float *l, const float *o)
{
    for (int i = 0; i < n; i++, o += padded_dim, O += padded_dim) {
        const float top = m[i] > M[i] || isnan(m[i]) ? m[i] : M[i];
        if (top == -INFINITY) continue; // nothing seen so far: zeros, and no inf - inf
        const __m256 a = exp2_8(_mm256_set1_ps(M[i] - top)), b = exp2_8(_mm256_set1_ps(m[i] - top));
        M[i] = top;
        L[i] = L[i] * _mm256_cvtss_f32(a) + l[i] * _mm256_cvtss_f32(b);
        for (int d = 0; d < padded_dim; d += 8) {
            const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(o + d), b);
            _mm256_storeu_ps(O + d, _mm256_fmadd_ps(_mm256_loadu_ps(O + d), a, x));
        }
    }
}

static void write_row(int v_dim, const float *o, float f, float *out)
{
    for (int d = 0; d < v_dim; d += 8) {
        _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(o + d), _mm256_set1_ps(f)));
    }
}

// bf16 by integer rounding to nearest even; NaN stays a quiet NaN.
static inline __m128i to_bf16(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const __m256i y =
        _mm256_srli_epi32(_mm256_castps_si256(_mm256_blendv_ps(_mm256_castsi256_ps(up),
                                                               _mm256_castsi256_ps(quiet), nan)),
                          16);
    return _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
}

#define Q float
#define VECTOR 8
#define VALUE_ROWS 4
#define FINISH(p, from, to) (void)0
#define NAME(x) f32_##x
#define LOAD(p, d) _mm256_loadu_ps((const float *)(const void *)(p) + (d))
#define SAVE(p, d, x) _mm256_storeu_ps((float *)(p) + (d), x)
#include "kernel/x86/attn_avx2_dtype.inc"
#undef NAME
#undef LOAD
#undef SAVE

#define NAME(x) f16_##x
#define HALVES(p, d) _mm_loadu_si128((const __m128i *)(const void *)((p) + (d)*2))
#define LOAD(p, d) _mm256_cvtph_ps(HALVES(p, d))
#define SAVE(p, d, x)                                                                              \
    _mm_storeu_si128((__m128i *)(void *)((uint16_t *)(p) + (d)),                                   \
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#include "kernel/x86/attn_avx2_dtype.inc"
#undef NAME
#undef LOAD
#undef SAVE

#define NAME(x) bf16_##x
#define LOAD(p, d) _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(HALVES(p, d)), 16))
#define SAVE(p, d, x) _mm_storeu_si128((__m128i *)(void *)((uint16_t *)(p) + (d)), to_bf16(x))
#include "kernel/x86/attn_avx2_dtype.inc"

const msgl_kv_store_fn msgl__kv_store_avx2[MSGL_DTYPE_COUNT] = {[MSGL_F32] = f32_store,
                                                                [MSGL_F16] = f16_store,
                                                                [MSGL_BF16] = bf16_store,
                                                                [MSGL_E4M3] =
                                                                    msgl__e4m3_store_avx2};

void msgl__attn_init_avx2(msgl_attn_kernels *k)
{
    k->ops[MSGL_F32] = k->latent_ops[MSGL_F32] = &f32_ops;
    k->ops[MSGL_F16] = k->latent_ops[MSGL_F16] = &f16_ops;
    k->ops[MSGL_BF16] = k->latent_ops[MSGL_BF16] = &bf16_ops;
    k->expand = msgl__e4m3_expand_avx2;
}
