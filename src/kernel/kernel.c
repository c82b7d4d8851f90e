// SPDX-License-Identifier: Apache-2.0
#include "kernel/ladder.h"

void msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level)
{
    *k = (msgl_kernels){.level = level};
    for (int l = 0; l <= level; l++) {
        const msgl_cpu_level_desc *d = &msgl__cpu_ladder.levels[l];
        if (d->gemm != NULL) d->gemm(&k->gemm);
        if (d->attn != NULL) d->attn(&k->attn);
        if (d->ops != NULL) d->ops(k);
    }
    k->gemm.name = k->attn.name = msgl__cpu_level_name(level);
    // The driver expands tiles of E4M3 to bf16, whichever level brought the functions for that.
    k->attn.ops[MSGL_E4M3] = k->attn.ops[MSGL_BF16];
    k->attn.latent_ops[MSGL_E4M3] = k->attn.latent_ops[MSGL_BF16];
}
