// SPDX-License-Identifier: Apache-2.0
//
// The exact choice of the largest scores, by counting digits of their bits (a radix select).
#ifndef MSGL_ATTENTION_LARGEST_H
#define MSGL_ATTENTION_LARGEST_H

#include <stdint.h>

// Writes the indices of the n largest of len scores, n <= len, ascending; of equal ones the first
// are taken. -0 and 0 are equal, infinities are scores as others.
void msgl__attn_largest(const float *scores, int32_t len, int32_t n, int32_t *indices);

#endif
