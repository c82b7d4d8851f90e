// SPDX-License-Identifier: Apache-2.0
//
// FLASHINFER_USE_TENSOR_CORES, the variable by which FlashInfer's users choose decode kernels; or
// MINISGL_FLASHINFER_USE_TENSOR_CORES, which Mini-SGLang reads.
#ifndef MSGL_ATTENTION_FI_TENSOR_CORES_H
#define MSGL_ATTENTION_FI_TENSOR_CORES_H

#include <stdbool.h>

#include "core/err.h"

// Whether it is set, to anything but "".
bool msgl__fi_tensor_cores_set(void);
// *use becomes what it says, and stays as it is when it is not set. MSGL_EINVAL names what is
// allowed.
int msgl__fi_tensor_cores(bool *use, msgl_err *err);

#endif
