// SPDX-License-Identifier: Apache-2.0
#include "kernel/x86/ops.h"

#define MSGL_OPS_FILL msgl__ops_fill_avx512
#include "kernel/ref/ops_impl.h"
