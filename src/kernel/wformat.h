// SPDX-License-Identifier: Apache-2.0
//
// Weights, and how their values are stored: a const descriptor per format and device. Formats are
// apart from dtypes: activations and the KV cache have a dtype, and a weight has a format, chosen
// for each weight when it is planned (models/weights.h). Three formats store one dtype as it is.
// How to add one: docs/adding-a-weight-format.md.
#ifndef MSGL_KERNEL_WFORMAT_H
#define MSGL_KERNEL_WFORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"
#include "kernel/exec.h"

// Places in msgl_gemm_kernels.formats. A dtype is the place of the format that stores it.
typedef enum msgl_wformat_id {
    MSGL_W_F32 = MSGL_F32,
    MSGL_W_F16 = MSGL_F16,
    MSGL_W_BF16 = MSGL_BF16,
    MSGL_W_INT8, // in a GPU's table it is codes, whose id is MSGL_W_CODES there
    // A file's blocks that stay as they are (msgl_gemm_kernels.keep), or, in the table, q4's
    // (MSGL_WFORMAT_Q4). A CPU multiplies them ...
    MSGL_W_CODES,  // ... as integers, by activations rounded to integers;
    MSGL_W_BLOCKS, // ... as the f32 numbers that they are. A GPU expands codes before products.
    MSGL_WFORMATS,
} msgl_wformat_id;

typedef struct msgl_wformat msgl_wformat;
typedef struct msgl_weight msgl_weight;
struct msgl_blocks;       // quant/blocks.h
struct msgl_column_order; // quant/codes.h
struct msgl_code_part;    // quant/stored.h
struct msgl_part_tile;    // quant/stored.h

// Rows of parts that are made when they are asked for.
typedef struct msgl_part_rows {
    // The tile's parts of these rows, its rows ld parts apart. On any thread.
    void (*read)(const void *rows, const struct msgl_part_tile *t, struct msgl_code_part *out,
                 size_t ld);
    const void *rows;
} msgl_part_rows;

struct msgl_weight {
    const msgl_wformat *format;
    int n, k;   // [n, k]: out features, in features
    void *data; // device memory of packed_size bytes, 64-byte aligned, owner: loader
    int first;  // for gather: these are rows [first, first + n) of a matrix that ranks share
    // Rows of several formats, one part below the other: with num_parts > 0 format and data are
    // not used, and the parts' n add up to n. Host memory, owner: the model.
    const msgl_weight *parts; // [num_parts]
    int num_parts;
};

struct msgl_wformat {
    const char *name; // of --dtype and --weight-dtype; NULL: the device has no such format
    msgl_wformat_id id;
    msgl_dtype dtype; // of the stored values; MSGL_DTYPE_COUNT: they are no dtype's
    int group; // columns of a row that share a scale, which is packed with them; 0: there are none
    // Bytes of the packed form (padding and scales included); 0 when the product overflows.
    size_t (*packed_size)(const msgl_wformat *f, int n, int k);
    // Packs rows [row, row + rows) of w from row-major host memory src (first row at src, ld_src
    // elements apart). Any row; on the CPU parallel over the pool; rows may arrive in any order.
    // data must be zeroed.
    void (*pack)(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                 msgl_dtype src_dtype, size_t ld_src);
    // out[i, 0..k) = w[ids[i] - w->first, :] as exec->act, for i < rows; zeros where the id is not
    // among w's rows, which only happens to a part of a matrix. ids on the device. w has no parts:
    // rows that are looked up are all of one tensor.
    void (*gather)(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, void *out);
    // Of a format that keeps blocks: which, and instead of pack: rows [row, row + rows) of w from
    // the blocks of rows in host memory, ld_src bytes apart.
    const struct msgl_blocks *blocks;
    void (*repack)(msgl_exec *x, msgl_weight *w, int row, int rows, const uint8_t *src,
                   size_t ld_src);
    // The same of rows of parts, unless NULL: whoever packs them asks for what it takes next.
    void (*repack_parts)(msgl_exec *x, msgl_weight *w, int row, int rows,
                         const msgl_part_rows *src);
    // Of such a format, unless NULL: rows are kept with their columns in this order, in which
    // repack is given them, and have `num` places instead of k columns. Activations and rows that
    // are looked up have k. Owner: the model.
    const struct msgl_column_order *order;
};

// The beginnings of descriptors, the same on every device.
#define MSGL_WFORMAT_F32 "float32", MSGL_W_F32, MSGL_F32, 0
#define MSGL_WFORMAT_F16 "float16", MSGL_W_F16, MSGL_F16, 0
#define MSGL_WFORMAT_BF16 "bfloat16", MSGL_W_BF16, MSGL_BF16, 0
// Integers of -127 to 127 and an f32 scale for every 64 columns of a row (the last ones may be
// fewer): with the largest |v| of them, scale = largest / 127 and q = v * (127 / largest), rounded
// to nearest even. Both are 0 where the largest is below 1e-30; the scale of a group with an
// infinity or a NaN is NaN.
#define MSGL_WFORMAT_INT8(id) "int8", id, MSGL_DTYPE_COUNT, MSGL_INT8_GROUP
#define MSGL_INT8_GROUP 64
// Blocks of ggml's Q4_0, 32 columns of a row each: with v the value whose |v| is largest (the first
// of several), d = v / -8 as f16 and q = v / d + 8, with d before it is rounded, rounded to nearest
// even and at most 15. All are 8 where d is 0 as f16; d is NaN where a value is none or infinite.
#define MSGL_WFORMAT_Q4(id) "q4", id, MSGL_DTYPE_COUNT, 32

// Whether all of the weight is stored as this dtype.
static inline bool msgl__weight_is(const msgl_weight *w, msgl_dtype dtype)
{
    return w->num_parts == 0 && w->format->dtype == dtype;
}

static inline size_t msgl__weight_bytes(const msgl_weight *w)
{
    size_t bytes = 0;
    if (w->num_parts == 0) return w->format->packed_size(w->format, w->n, w->k);
    for (int i = 0; i < w->num_parts; i++) bytes += msgl__weight_bytes(&w->parts[i]);
    return bytes;
}

#endif
