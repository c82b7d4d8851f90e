// SPDX-License-Identifier: Apache-2.0
//
// The CPU's attention backends, in the order shown to users. A new one adds its line to ALL; those
// of another device are listed by its plug-in.
#include <string.h>

#include "attention/attention.h"
#include "attention/double_sparsity/double_sparsity.h"
#include "attention/dual_chunk/dual_chunk.h"
#include "attention/fa/fa.h"
#include "attention/fi/fi.h"
#include "attention/flex/flex.h"
#include "attention/latent/latent.h"
#include "attention/torch_native/torch_native.h"
#include "attention/triton/triton.h"
#include "attention/trtllm/trtllm.h"

static const msgl_attn_desc *const ALL[] = {
    &msgl__attn_fa,          &msgl__attn_fi,         &msgl__attn_flashinfer,
    &msgl__attn_trtllm,      &msgl__attn_trtllm_mha, &msgl__attn_torch_native,
    &msgl__attn_triton,      &msgl__attn_flashmla,   &msgl__attn_trtllm_mla,
    &msgl__attn_cutlass_mla, &msgl__attn_flex,       &msgl__attn_fa4,
    &msgl__attn_dual_chunk,  &msgl__attn_sparse,     NULL,
};

// fa is the fastest in every shape of `minisgl bench attn`.
static const msgl_attn_pair PAIRS[] = {
    {.prefill = "fa", .decode = "fa"},
    {.prefill = "fi", .decode = "fi"},
    {.prefill = "torch_native", .decode = "torch_native"},
    {.prefill = "dual_chunk_flash_attn", .decode = "dual_chunk_flash_attn"},
    {.prefill = NULL},
};

const msgl_attn_set msgl__attn_cpu = {.device = "the CPU", .all = ALL, .pairs = PAIRS};

static bool named(const msgl_attn_desc *d, const char *name)
{
    if (strcmp(name, d->name) == 0) return true;
    for (int a = 0; d->aliases[a] != NULL; a++) {
        if (strcmp(name, d->aliases[a]) == 0) return true;
    }
    return false;
}

const msgl_attn_desc *msgl__attn_find(const msgl_attn_set *set, const char *name)
{
    for (const msgl_attn_desc *const *d = set->all; *d != NULL; d++) {
        if (named(*d, name)) return *d;
    }
    return NULL;
}
