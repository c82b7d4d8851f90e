// SPDX-License-Identifier: Apache-2.0
//
// From a tensor's bytes in a file to the rows that a packer takes: as they stand where that is
// possible, else a few at a time through the caller's buffer, with packed values expanded
// (quant/stored.h) or left in their blocks, and rows in the order that the model wants.
#ifndef MSGL_MODELS_SOURCE_H
#define MSGL_MODELS_SOURCE_H

#include <stdbool.h>
#include <stddef.h>

#include "models/checkpoint.h"
#include "utils/threadpool.h"

typedef struct msgl_source {
    const msgl_tensor *t;
    msgl_dtype want; // that what is expanded becomes at once; the rest stays as it is
    // Not NULL: rows are handed over in these blocks, of which cols and first_col are whole ones:
    // those of the tensor's packing, or its parts (msgl__stored_codes).
    const msgl_blocks *blocks;
    // Of parts, unless NULL: the columns from first_col on come in this order.
    const msgl_column_order *order;
    size_t cols; // of a row; 0: the tensor has one dimension
    // Not 0: a row of the tensor has all_cols columns, and the model's column j is its column
    // first_col + j.
    size_t all_cols, first_col;
    // Which rows or elements, and in which order: msgl_wanted (models/weights.h) has the same
    // members.
    size_t first;
    int32_t head, unpaired, pairs;
    int32_t head_groups, group_heads, head_cols; // in which case there are no `blocks`
    bool transposed;
} msgl_source;

// The tensor as a matrix: what is in front of its last dimension are rows.
msgl_packed msgl__packed_of(const msgl_tensor *t);
// The rows as they stand in the file, or NULL when they have to be written by msgl__source_rows.
// From the model's row `skip` on; rows are the tensor's columns apart.
const void *msgl__source_direct(const msgl_source *s, size_t skip);
msgl_dtype msgl__source_dtype(const msgl_source *s); // of rows that are not in blocks
size_t msgl__source_row_bytes(const msgl_source *s); // of a row as msgl__source_rows writes it
size_t msgl__source_tensor_row_bytes(const msgl_source *s); // from one to the next in the file
// The bytes of the tensor that the model's rows [skip, skip + rows) are made of, or with cols 0 its
// elements: from *from on, *bytes of them. Of some columns: whole rows, as a disk reads pages.
void msgl__source_span(const msgl_source *s, size_t skip, size_t rows, size_t *from, size_t *bytes);
// Writes the model's rows [first, first + rows).
void msgl__source_rows(msgl_pool *pool, const msgl_source *s, int32_t first, int32_t rows,
                       void *out);
// Whether rows become parts of 32 columns on their way (msgl_code_part), which msgl__source_rows
// writes to an aligned `out`.
bool msgl__source_splits(const msgl_source *s);
// Of such: the parts of a tile of the model's rows, and of columns from first_col on, or places of
// the order; as msgl__stored_split, on any thread.
void msgl__source_parts(const msgl_source *s, const msgl_part_tile *t, msgl_code_part *out,
                        size_t ld);
// The model's element i of a tensor of one dimension.
float msgl__source_element(const msgl_source *s, size_t i);

#endif
