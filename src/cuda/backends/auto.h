// SPDX-License-Identifier: Apache-2.0
//
// What `auto` knows of GPUs that were measured: auto_table.inc, written by `minisgl bench attn
// --write-table`, has a row per kind of GPU, phase, head_dim, GQA group and page size.
#ifndef MSGL_CUDA_BACKENDS_AUTO_H
#define MSGL_CUDA_BACKENDS_AUTO_H

#include "attention/attention.h"

// The names of backends, fastest first, NULL-terminated unless full; NULL: this GPU and head_dim
// have not been measured, nor has any cache of E4M3. The row is that of the nearest group and of
// the largest measured page size that is not above the wanted one.
const char *const *msgl__attn_measured(const msgl_attn_needs *n, msgl_phase phase);

#endif
