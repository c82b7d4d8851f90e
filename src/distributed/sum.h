// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_DISTRIBUTED_SUM_H
#define MSGL_DISTRIBUTED_SUM_H

#include <stddef.h>

// out[i] = ((rows[0][i] + rows[1][i]) + rows[2][i]) + ... in f32, for i < n and num_rows >= 2 rows.
// out overlaps no row.
void msgl__sum_rows(const float *const *rows, int num_rows, size_t n, float *out);

#endif
