// SPDX-License-Identifier: Apache-2.0
//
// Family attn at level AVX-512: f32 products for every dtype of the pool, q in f32.
#include "kernel/x86/attn_avx512_rows.h"
#include "kernel/x86/init.h"
#include "kernel/x86/ops.h"

static void write_row(int v_dim, const float *o, float f, float *out)
{
    const __m512 vf = _mm512_set1_ps(f);
    for (int d = 0; d < v_dim; d += 16) {
        const int left = v_dim - d;
        const __mmask16 k = left >= 16 ? 0xffff : (__mmask16)((1u << left) - 1);
        _mm512_mask_storeu_ps(out + d, k, _mm512_mul_ps(_mm512_loadu_ps(o + d), vf));
    }
}

#define Q float
#define VECTOR 16
#define VALUE_ROWS 8
#define FINISH(p, from, to) (void)0
#define NAME(x) f32_##x
#define LOAD(p, d, k) _mm512_maskz_loadu_ps(k, (const float *)(const void *)(p) + (d))
#define SAVE(p, d, k, x) _mm512_mask_storeu_ps((float *)(p) + (d), k, x)
#include "kernel/x86/attn_avx512_dtype.inc"
#undef NAME
#undef LOAD
#undef SAVE

#define NAME(x) f16_##x
#define LOAD(p, d, k)                                                                              \
    _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(k, (const uint16_t *)(const void *)(p) + (d)))
#define SAVE(p, d, k, x)                                                                           \
    _mm256_mask_storeu_epi16((uint16_t *)(p) + (d), k,                                             \
                             _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#include "kernel/x86/attn_avx512_dtype.inc"
#undef NAME
#undef LOAD
#undef SAVE

#define NAME(x) bf16_##x
#define LOAD(p, d, k)                                                                              \
    _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(          \
                                              k, (const uint16_t *)(const void *)(p) + (d))),      \
                                          16))
#define SAVE(p, d, k, x) _mm256_mask_storeu_epi16((uint16_t *)(p) + (d), k, msgl__to_bf16_avx512(x))
#include "kernel/x86/attn_avx512_dtype.inc"

const msgl_kv_store_fn msgl__kv_store_avx512[MSGL_DTYPE_COUNT] = {[MSGL_F32] = f32_store,
                                                                  [MSGL_F16] = f16_store,
                                                                  [MSGL_BF16] = bf16_store,
                                                                  [MSGL_E4M3] =
                                                                      msgl__e4m3_store_avx512};

void msgl__attn_init_avx512(msgl_attn_kernels *k)
{
    k->ops[MSGL_F32] = k->latent_ops[MSGL_F32] = &f32_ops;
    k->ops[MSGL_F16] = k->latent_ops[MSGL_F16] = &f16_ops;
    k->ops[MSGL_BF16] = k->latent_ops[MSGL_BF16] = &bf16_ops;
    k->expand = msgl__e4m3_expand_avx512;
}
