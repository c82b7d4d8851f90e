// SPDX-License-Identifier: Apache-2.0
//
// Attention variants: plain, and one with sliding window and soft cap chosen at run time, which
// halves the number of kernels against FlashInfer's own compile-time choice.
#ifndef MSGL_CUDA_FI_VARIANT_CUH
#define MSGL_CUDA_FI_VARIANT_CUH

#include <flashinfer/attention/variants.cuh>

typedef flashinfer::DefaultAttention<false, false, false, false> msgl_fi_plain;

// Logits are scaled (to base 2) here and not in the exponent: there, exp2(m * scale - m' * scale)
// is an fma and not exactly 1 for m = m', so tiles without a visible key would change a row's bits.
struct msgl_fi_general : flashinfer::AttentionVariantBase {
    static constexpr bool use_softmax = true;
    static constexpr float sm_scale_log2 = 1;
    uint32_t qo_len, kv_len;
    uint32_t window_left;
    float scale_log2; // of logits, or of the tanh
    float pre_tanh_scale;

    template <typename Params>
    __device__ __host__ msgl_fi_general(const Params &params, uint32_t batch_idx, uint8_t *smem)
    {
        (void)smem;
        qo_len = params.get_qo_len(batch_idx);
        kv_len = params.get_kv_len(batch_idx);
        const bool cap = params.logits_soft_cap > 0;
        pre_tanh_scale = cap ? params.sm_scale / params.logits_soft_cap : 0.f;
        scale_log2 = (cap ? params.logits_soft_cap : params.sm_scale) * flashinfer::math::log2e;
        window_left = params.window_left >= 0 ? params.window_left : kv_len;
    }

    // The GPU's tanh instruction is good to 2^-11 only, which a cap of 50 makes 0.02 in the
    // exponent.
    static __device__ __forceinline__ float accurate_tanh(float x)
    {
        const float e = flashinfer::math::ptx_exp2(x * (2 * flashinfer::math::log2e));
        return 1.f - 2.f * flashinfer::math::ptx_rcp(1.f + e);
    }

    REGISTER_LOGITS_TRANSFORM(params, logits, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
        const float x = logits;
        return scale_log2 * (pre_tanh_scale > 0 ? accurate_tanh(x * pre_tanh_scale) : x);
    })

    REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx,
                         { return kv_idx + qo_len + window_left >= kv_len + qo_idx; })
};

// With every mask in LogitsMask and no keys skipped: for MaskMode::kCustom, which masks all tiles.
// Where the keys that msgl_fi_general skips end depends on the query tile, and a sum's order with
// it.
struct msgl_fi_masked : msgl_fi_general {
    uint32_t window;

    template <typename Params>
    __device__ __host__ msgl_fi_masked(const Params &params, uint32_t batch_idx, uint8_t *smem)
        : msgl_fi_general(params, batch_idx, smem)
    {
        window = window_left;
        window_left = kv_len;
    }

    REGISTER_LOGITS_MASK(params, batch_idx, qo_idx, kv_idx, qo_head_idx, kv_head_idx, {
        return kv_idx + qo_len <= kv_len + qo_idx && kv_idx + qo_len + window >= kv_len + qo_idx;
    })
};

#endif
