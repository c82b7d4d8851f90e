// SPDX-License-Identifier: Apache-2.0
//
// All attention backends, in the order shown to users. A new one adds its line to BACKENDS.
#include <string.h>

#include "attention/cutlass_mla/cutlass_mla.h"
#include "attention/cutlass_mla/cutlass_mla_cuda.h"
#include "attention/double_sparsity/double_sparsity.h"
#include "attention/double_sparsity/double_sparsity_cuda.h"
#include "attention/dual_chunk/dual_chunk.h"
#include "attention/dual_chunk/dual_chunk_cuda.h"
#include "attention/fa/fa.h"
#include "attention/fa/fa_cuda.h"
#include "attention/fi/fi.h"
#include "attention/fi/fi_cuda.h"
#include "attention/flashmla/flashmla.h"
#include "attention/flashmla/flashmla_cuda.h"
#include "attention/flex/flex.h"
#include "attention/flex/flex_cuda.h"
#include "attention/torch_native/torch_native.h"
#include "attention/torch_native/torch_native_cuda.h"
#include "attention/triton/triton.h"
#include "attention/triton/triton_cuda.h"
#include "attention/trtllm/trtllm.h"
#include "attention/trtllm/trtllm_cuda.h"
#include "attention/trtllm_mla/trtllm_mla.h"
#include "attention/trtllm_mla/trtllm_mla_cuda.h"
#include "core/attributes.h"

static const msgl_attn_desc *const BACKENDS[] = {
    &msgl__attn_fa,           &msgl__attn_fa_cuda,
    &msgl__attn_fi,           &msgl__attn_fi_cuda,
    &msgl__attn_flashinfer,   &msgl__attn_flashinfer_cuda,
    &msgl__attn_trtllm,       &msgl__attn_trtllm_cuda,
    &msgl__attn_trtllm_mha,   &msgl__attn_trtllm_mha_cuda,
    &msgl__attn_torch_native, &msgl__attn_torch_native_cuda,
    &msgl__attn_triton,       &msgl__attn_triton_cuda,
    &msgl__attn_flashmla,     &msgl__attn_flashmla_cuda,
    &msgl__attn_trtllm_mla,   &msgl__attn_trtllm_mla_cuda,
    &msgl__attn_cutlass_mla,  &msgl__attn_cutlass_mla_cuda,
    &msgl__attn_flex,         &msgl__attn_flex_cuda,
    &msgl__attn_fa4,          &msgl__attn_fa4_cuda,
    &msgl__attn_dual_chunk,   &msgl__attn_dual_chunk_cuda,
    &msgl__attn_sparse,       &msgl__attn_sparse_cuda,
};

const msgl_attn_desc *const *msgl__attn_backends(int *count)
{
    *count = (int)MSGL_COUNT(BACKENDS);
    return BACKENDS;
}

static bool named(const msgl_attn_desc *d, const char *name)
{
    if (strcmp(name, d->name) == 0) return true;
    for (int a = 0; d->aliases[a] != NULL; a++) {
        if (strcmp(name, d->aliases[a]) == 0) return true;
    }
    return false;
}

const msgl_attn_desc *msgl__attn_find(const char *name, msgl_device_kind device)
{
    for (size_t i = 0; i < MSGL_COUNT(BACKENDS); i++) {
        const msgl_attn_desc *d = BACKENDS[i];
        if ((d->devices & 1u << device) != 0 && named(d, name)) return d;
    }
    return NULL;
}
