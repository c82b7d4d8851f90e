// SPDX-License-Identifier: Apache-2.0
#include "kernel/x86/init.h"
#include "kernel/x86/ops.h"

#define MSGL_OPS_NAME(base) base##avx512
#include "kernel/ref/ops.inc"
