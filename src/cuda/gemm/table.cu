// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/table.cuh"

#include <string.h>

#include "cuda/gemm/codes_sm90.h"
#include "cuda/gemm/fp8.h"
#include "cuda/gemm/fused_norm.cuh"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemv.h"
#include "cuda/gemm/mid_sm90.h"
#include "cuda/gemm/narrow_sm90.h"
#include "cuda/gemm/stream_sm90.h"
#include "cuda/gemm/tall_sm90.h"
#include "cuda/gemm/wide_sm90.h"
#include "cuda/ops/ops.h"

// --- the table ---------------------------------------------------------------------------------

// Weights in the activations' dtype.
static bool plain(const msgl_exec *x, const msgl_linear_call *c)
{
    return msgl__weight_is(c->w, x->act);
}

// What most kernels of our own take: plain weights, gates by silu.
static bool usual(const msgl_exec *x, const msgl_linear_call *c)
{
    return plain(x, c) && (!c->gated || c->activation == MSGL_SILU);
}

static bool gemv_can(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    return rope == NULL && usual(x, c) && msgl__cuda_gemv_can(x, c);
}
static bool gemv_run(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *)
{
    return msgl__cuda_gemv(x, c);
}

static bool mid_can(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    return rope == NULL && usual(x, c) && msgl__cuda_mid_sm90_can(x, c);
}
static bool mid_run(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *)
{
    return msgl__cuda_mid_sm90(x, c, NULL);
}

static bool tall_can(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    return rope == NULL && usual(x, c) && msgl__cuda_tall_sm90_can(x, c);
}
static bool tall_run(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *)
{
    return msgl__cuda_tall_sm90(x, c, NULL);
}

static bool narrow_can(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    return rope == NULL && usual(x, c) && msgl__cuda_narrow_sm90_can(x, c);
}
static bool narrow_run(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *)
{
    return msgl__cuda_narrow_sm90(x, c, NULL);
}

// The call behind its norm, whose output is dense in scratch.
static msgl_linear_call behind_norm(const msgl_linear_call *c)
{
    msgl_linear_call normed = *c;
    if (c->norm == NULL) return normed;
    normed.norm = NULL;
    normed.in = NULL;
    normed.ld_in = (size_t)c->w->k;
    return normed;
}

static bool wide_can(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    const msgl_linear_call normed = behind_norm(c);
    return usual(x, c) && msgl__cuda_wide_sm90_can(x, &normed, rope);
}
static bool wide_run(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    msgl_linear_call normed;
    return msgl__cuda_norm_first(x, c, &normed) && msgl__cuda_wide_sm90(x, &normed, rope);
}
static bool heads_can(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    return rope != NULL && wide_can(x, c, rope);
}
static bool gated_can(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    return rope == NULL && wide_can(x, c, NULL);
}

static bool stream_can(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    const msgl_linear_call normed = behind_norm(c);
    return rope == NULL && usual(x, c) && msgl__cuda_stream_sm90_can(x, &normed);
}
static bool stream_run(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *)
{
    msgl_linear_call normed;
    return msgl__cuda_norm_first(x, c, &normed) && msgl__cuda_stream_sm90(x, &normed);
}

static bool library_can(const msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    return rope == NULL && plain(x, c);
}
static bool library_run(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *)
{
    msgl__cuda_linear_library(x, c);
    return true;
}

static bool apart_can(const msgl_exec *, const msgl_linear_call *, const msgl_rope_call *rope)
{
    return rope != NULL;
}
static bool apart_run(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    msgl__cuda_linear(x, c);
    msgl__cuda_qk_norm_rope_store(x, rope);
    return true;
}

enum { ALL_ROWS = INT32_MAX, FEW_MIB = 16 << 20, SOME_MIB = 24 << 20 };

// The windows hold for Qwen3-0.6B on an H200 about. A kernel without rows is taken only where it
// was measured.
const msgl_product_kernel msgl__cuda_product_kernels[MSGL_PRODUCT_KERNELS] = {
    {"mid", mid_can, mid_run, true, true, 17, 64, FEW_MIB},
    {"tall", tall_can, tall_run, true, false, 65, 256, FEW_MIB},
    {"narrow", narrow_can, narrow_run, false, false, 9, 32, SOME_MIB},
    {"gemv", gemv_can, gemv_run, false, true, 1, ALL_ROWS, SIZE_MAX},
    {"norm+stream", stream_can, stream_run, false, false, 1, 0, 0},
    {"norm+wide", gated_can, wide_run, false, false, 512, ALL_ROWS, SIZE_MAX},
    {"norm+library+gate", library_can, library_run, false, false, 1, ALL_ROWS, SIZE_MAX},
    {"norm+wide+heads", heads_can, wide_run, false, false, 512, ALL_ROWS, SIZE_MAX},
    {"linear+rope", apart_can, apart_run, false, false, 1, ALL_ROWS, SIZE_MAX},
};

int msgl__cuda_library_kernel(void)
{
    int i = 0;
    while (msgl__cuda_product_kernels[i].run != library_run) i++;
    return i;
}

static const char *name_of(int kernel)
{
    return msgl__cuda_product_kernels[kernel].name;
}

msgl_kernel_names msgl__cuda_product_names(void)
{
    return {name_of, MSGL_PRODUCT_KERNELS};
}

// --- which of them -----------------------------------------------------------------------------

msgl_gemm_key msgl__cuda_call_key(const msgl_exec *x, const msgl_linear_call *c,
                                  const msgl_rope_call *rope)
{
    const size_t element = msgl__dtype_size(x->act);
    msgl_gemm_key key;
    memset(&key, 0, sizeof key);
    key.n = c->w->n;
    key.k = c->w->k;
    key.bucket = msgl__gemm_bucket(c->m);
    key.in_type = (uint8_t)c->w->format->id;
    key.out_type = (uint8_t)(c->f32_out ? MSGL_F32 : x->act);
    // A bias is one rank's, and all ranks of a sum have to choose alike.
    key.bias = c->bias != NULL && c->sum == NULL;
    key.accumulate = c->accumulate;
    key.align_in = msgl__cuda_alignment(c->in, c->ld_in, element);
    key.align_out = msgl__cuda_alignment(c->out, c->ld_out, c->f32_out ? sizeof(float) : element);
    int call = MSGL_CALL;
    if (c->gated) call |= MSGL_CALL_GATED;
    if (c->gated && c->activation != MSGL_SILU) call |= MSGL_CALL_NOT_SILU;
    if (c->norm != NULL) call |= MSGL_CALL_NORM;
    if (c->norm != NULL && msgl__has_norm_stats(c)) call |= MSGL_CALL_NORM_STATS;
    if (rope != NULL) call |= MSGL_CALL_ROPE;
    if (c->sum != NULL) call |= MSGL_CALL_SUM;
    key.call = (uint16_t)call;
    return key;
}

int msgl__cuda_default_product(const msgl_exec *x, const msgl_linear_call *c,
                               const msgl_rope_call *rope, int from)
{
    const size_t bytes = msgl__weight_bytes(c->w);
    for (int i = from; i < MSGL_PRODUCT_KERNELS; i++) {
        const msgl_product_kernel *k = &msgl__cuda_product_kernels[i];
        const bool sums = c->sum != NULL && k->sums;
        if (c->sum != NULL && !sums && k->run != library_run) continue;
        if (c->m >= k->least_rows && c->m <= k->most_rows && (sums || bytes <= k->most_weights) &&
            k->can(x, c, rope)) {
            return i;
        }
    }
    return MSGL_PRODUCT_KERNELS - 1;
}

int msgl__cuda_choose_product(const msgl_exec *x, const msgl_linear_call *c,
                              const msgl_rope_call *rope)
{
    const msgl_gemm_choices *choices = &msgl__cuda_device(x)->blas->choices;
    msgl_gemm_key key = msgl__cuda_call_key(x, c, rope);
    const msgl_gemm_choice *known = msgl__choices_nearest(choices, &key);
    if (known == NULL && (key.call & MSGL_CALL_NORM_STATS) != 0) {
        // No kernel that takes norm_stats can do the call: look it up as one without them.
        key.call &= (uint16_t)~MSGL_CALL_NORM_STATS;
        known = msgl__choices_nearest(choices, &key);
    }
    if (known != NULL && msgl__cuda_product_kernels[known->kernel].can(x, c, rope)) {
        return known->kernel;
    }
    return msgl__cuda_default_product(x, c, rope, 0);
}

bool msgl__cuda_run_product(msgl_exec *x, int kernel, const msgl_linear_call *c,
                            const msgl_rope_call *rope)
{
    const size_t used = x->scratch->used;
    const bool done = msgl__cuda_product_kernels[kernel].run(x, c, rope);
    x->scratch->used = used; // the stream's order protects what is reused
    return done;
}

static void run_call(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    if (msgl__cuda_run_product(x, msgl__cuda_choose_product(x, c, rope), c, rope)) return;
    for (int i = 0; i < MSGL_PRODUCT_KERNELS && x->status == 0; i++) {
        i = msgl__cuda_default_product(x, c, rope, i);
        if (msgl__cuda_run_product(x, i, c, rope)) return;
    }
}

void msgl__cuda_linear(msgl_exec *x, const msgl_linear_call *c)
{
    if (c->m == 0 || x->status != 0) return;
    const bool deterministic = msgl__cuda_device(x)->deterministic;
    if (plain(x, c) && !deterministic) {
        run_call(x, c, NULL);
        return;
    }
    // Each kernel has sums of its own order: on a deterministic device the same one for every m.
    // What no kernel takes as it is goes to the library on all.
    const size_t used = x->scratch->used;
    if (deterministic || !(msgl__cuda_fp8(x, c) || msgl__cuda_codes_sm90(x, c))) {
        x->scratch->used = used;
        if (x->status == 0) msgl__cuda_linear_library(x, c);
    }
    x->scratch->used = used;
}

bool msgl__cuda_linear_rope(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope)
{
    if (c->m == 0 || x->status != 0 || !plain(x, c) || msgl__cuda_device(x)->deterministic) {
        return false;
    }
    run_call(x, c, rope);
    return true;
}

bool msgl__cuda_linear_sum(msgl_exec *x, const msgl_linear_call *c)
{
    if (!plain(x, c) || msgl__cuda_device(x)->deterministic) return false;
    const int kernel = msgl__cuda_choose_product(x, c, NULL);
    return msgl__cuda_product_kernels[kernel].sums && msgl__cuda_run_product(x, kernel, c, NULL);
}
