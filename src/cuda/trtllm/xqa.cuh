// SPDX-License-Identifier: Apache-2.0
//
// One XQA kernel: the source is configured by macros and compiled once per dtype, head dimension,
// group and page size (the generated files set them). Its own launchers are renamed, as every
// instance defines them, and not used: they look shared memory up in a static initializer, which
// needs a driver when the plug-in is opened and a current device that is the right one.
#include "cuda/trtllm/entry.cuh"

#define NDEBUG 1
#define BEAM_WIDTH 1
#define USE_INPUT_KV 0
#define USE_CUSTOM_BARRIER 1
#define SLIDING_WINDOW 1
#define LOW_PREC_OUTPUT 0
#define SPEC_DEC 0
#define MLA_WRAPPER 0

static inline cudaError_t xqa_nothing(void)
{
    return cudaSuccess;
}

#define MSGL_JOIN(a, b) a##b
#define MSGL_NAME(a, b) MSGL_JOIN(a, b)
#define launchMHA MSGL_NAME(xqa_unused_a_, MSGL_XQA_ID)
#define launchMHAFlashInfer MSGL_NAME(xqa_unused_b_, MSGL_XQA_ID)
#define cudaMemcpyFromSymbol(...) xqa_nothing()
#define cudaFuncSetAttribute(...) xqa_nothing()
#include "xqa_mha.cu"
#undef cudaMemcpyFromSymbol
#undef cudaFuncSetAttribute

// The kernel's shared memory has another layout in device code than in host code.
static int xqa_prepare(uint32_t *shared_bytes)
{
    const cudaError_t code = cudaMemcpyFromSymbol(shared_bytes, smemSize, sizeof *shared_bytes);
    if (code != cudaSuccess) return code;
    return cudaFuncSetAttribute(kernel_mha, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)*shared_bytes);
}

static int xqa_launch(const msgl_xqa_call *c, int32_t splits, cudaStream_t stream)
{
    const KVCacheList<true> cache = {(GMemCacheHead *)c->k, (GMemCacheHead *)c->v, c->pages,
                                     (const uint32_t *)c->seqlens_k, (uint32_t)c->pages_stride};
    const uint32_t heads = (uint32_t)c->shape.num_kv_heads;
    // The kernel multiplies by head_dim^-0.5 itself, and q.k of E4M3 by what the result is
    // multiplied by: it has one scale for K and V.
    const float q_scale = CACHE_ELEM_ENUM != 0 ? 1 / c->bmm2_scale : 1;
    const float scale = c->bmm1_scale * sqrtf((float)HEAD_ELEMS) * q_scale;
    const uint32_t window = c->window >= 0 ? (uint32_t)c->window + 1 : UINT32_MAX;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3(splits, heads, c->batch);
    cfg.blockDim = dim3(warp_size * ctaShapeInWarps.x, ctaShapeInWarps.y, ctaShapeInWarps.z);
    cfg.dynamicSmemBytes = c->device.shared_bytes;
    cfg.stream = stream;
    cfg.attrs = &early;
    cfg.numAttrs = c->pdl ? 1 : 0;
    return cudaLaunchKernelEx(&cfg, kernel_mha, heads, window, scale, (const float *)NULL,
                              (OutputHead *)c->out, (const InputHead *)c->q, c->sinks, cache,
                              (uint32_t)c->batch, c->bmm2_scale, (const float *)c->ld_q,
                              heads * TOKENS_PER_PAGE, heads, 1u, c->semaphores, c->scratch);
}
