// SPDX-License-Identifier: Apache-2.0
//
// How files hold the values of a matrix [rows, cols]: a descriptor for each form, which gives any
// columns of any row as f32. A form is one const msgl_stored at the end of its functions, in the
// file of its family; readers of values ask it and nothing else. What differs between two tensors
// of one form (bits of a code, columns of a group, tensors of scales) is in the tensor's
// msgl_packing.
#ifndef MSGL_QUANT_STORED_H
#define MSGL_QUANT_STORED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/blocks.h"
#include "quant/number.h"

// What else than its own bytes the values of a tensor are made of: other tensors, by their role.
typedef enum msgl_role {
    MSGL_SCALES,        // that values are multiplied by
    MSGL_ZEROS,         // that codes are counted from
    MSGL_BIASES,        // that are added to what is scaled
    MSGL_ORDER,         // [cols]: the group of each column
    MSGL_GLOBAL,        // one more scale, of all
    MSGL_NESTED,        // scales of the scales, ...
    MSGL_NESTED_VALUES, // ... and the values of the scales' codes
    MSGL_VALUES,        // of the codes
    MSGL_ROLES,
} msgl_role;

typedef struct msgl_side {
    const uint8_t *data; // aligned to nothing; NULL: there is none
    size_t bytes;
    msgl_number type;
} msgl_side;

typedef struct msgl_packing {
    const struct msgl_stored *form; // NULL: values stand one by one, as a dtype
    const msgl_blocks *blocks;
    msgl_number number;       // of the elements, where they are numbers
    size_t group_rows, group; // rows and columns that share a scale, or elements in all rows' order
    int32_t bits;             // of a code
    int32_t per_word;         // codes in a word of 32 bits; 0: codes are one stream of bits
    int32_t zero;             // that codes are counted from, where there are no ZEROS
    uint32_t zeros_plus;      // that is added to each word of ZEROS first
    uint32_t zero_plus;       // that is added to each of ZEROS, which may leave its bits
    bool strided;             // elements that are `group` apart share a scale, not neighbours
    bool divided;             // SCALES are divided by GLOBAL, not multiplied
    float factor;             // what elements are multiplied by at last; 0: nothing
    float nested_plus;        // that is added to the scales that NESTED ones make
    msgl_side sides[MSGL_ROLES];
} msgl_packing;

// A tensor as a form reads it.
typedef struct msgl_packed {
    const msgl_packing *how;
    const uint8_t *data;
    size_t rows, cols;
} msgl_packed;

// What 32 columns are made of: see msgl_code_block.
typedef struct msgl_code_part {
    uint8_t codes[32];
    uint32_t d, dmin;
    uint8_t c[2], e[2];
} msgl_code_part;

// Rows [row, row + rows) of columns [col, col + cols), which are whole parts.
typedef struct msgl_part_tile {
    size_t row, rows, col, cols;
} msgl_part_tile;

typedef struct msgl_stored {
    const char *name;
    // values[0, n): columns [from, from + n) of a row. Exact: no two roundings of one value, unless
    // those who write such files round twice. Scales that are infinite or NaN do as in arithmetic.
    void (*expand)(const msgl_packed *p, size_t row, size_t from, size_t n, float *values);
    // The bytes of the tensor that elements [begin, end) are made of; they count from row to row,
    // so that element 10 of rows of 8 is column 2 of row 1. NULL: all of them.
    void (*span)(const msgl_packed *p, size_t begin, size_t end, size_t *from, size_t *bytes);
    // Of values that are small integers with scales, unless NULL: what they are, but for `split`,
    // span being the file's (of any number of columns). false: those of this tensor are none.
    bool (*codes)(const msgl_packed *p, msgl_codes *out);
    // The 32 columns of a row from `from` on, a multiple of 32, of a tensor that has codes. What
    // the form does not have is left in *out.
    void (*split)(const msgl_packed *p, size_t row, size_t from, msgl_code_part *out);
    // msgl__stored_split of the form, whose parts are written whole. NULL: they are split one by
    // one.
    void (*split_tile)(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                       size_t ld);
    // The same of a tensor with ORDER: columns first_col + columns[i], which have one group; what
    // is -1 is left too (msgl_column_order). NULL: the form has no ORDER.
    void (*pick)(const msgl_packed *p, size_t row, size_t first_col, const int32_t columns[32],
                 msgl_code_part *out);
} msgl_stored;

// Of a tensor with ORDER: the columns [first_col, first_col + cols) by ascending group, each
// column as its distance from first_col; those of a group stay as they follow each other. Freed by
// msgl__free; NULL: there is no memory.
msgl_column_order *msgl__stored_order(const msgl_packed *p, size_t first_col, size_t cols);

// The codes of columns [first_col, first_col + cols) of all rows, as parts of 32 columns; with
// ORDER in the order that msgl__stored_order gives, else NULL. false: they are none, or no whole
// parts, or not every part has one scale, or one for each half.
bool msgl__stored_codes(const msgl_packed *p, size_t first_col, size_t cols,
                        const msgl_column_order *order, msgl_codes *out);

// A tile of a tensor that has codes and no ORDER: the parts of a row next to each other, the tile's
// rows ld parts apart.
void msgl__stored_split(const msgl_packed *p, const msgl_part_tile *t, msgl_code_part *out,
                        size_t ld);

// How threads divide parts of a matrix [rows, cols]: into tasks of 128 rows and 512 columns or what
// is left of these, which are read by tiles of MSGL_TILE_ROWS of their rows. AWQ has 128 rows in a
// line of a cache, and each of their columns in a page of its own, which is found once for all of
// them; a tile stays in the innermost cache, and of 4 bits it is four lines of each row.
enum { MSGL_TASK_ROWS = 128, MSGL_TASK_COLS = 512, MSGL_TILE_ROWS = 16 };
int msgl__stored_tasks(size_t rows, size_t cols);
msgl_part_tile msgl__stored_task(size_t rows, size_t cols, int task);
// The next tile of what is left of a task, by which that gets smaller; false: nothing is left.
bool msgl__stored_tile(msgl_part_tile *left, msgl_part_tile *tile);

static inline float msgl__side_at(const msgl_packed *p, msgl_role role, size_t i)
{
    const msgl_side *s = &p->how->sides[role];
    return msgl__number_at(s->data, s->type, i);
}

// stored_blocks.c: `blocks`, each row a whole number of them. SCALES: a factor for each block.
extern const msgl_stored msgl__stored_blocks;
// stored_numbers.c: `number`, E4M3 or I8, one by one. SCALES: a factor for each group_rows x group
// of them. ZEROS: a number for each of those, or none.
extern const msgl_stored msgl__stored_numbers;
// stored_codes.c: integers of `bits`, packed into words of 32 bits.
extern const msgl_stored msgl__stored_rows, msgl__stored_affine, msgl__stored_gptq,
    msgl__stored_awq, msgl__stored_awq_rows, msgl__stored_int4;
// stored_bands.c: integers of `bits`, in bands of rows of `group`. ZEROS: floats.
extern const msgl_stored msgl__stored_bands;
// stored_fp4.c: e2m1, the first of two in the lower half of a byte. SCALES: for each `group` of a
// row; GLOBAL: of all.
extern const msgl_stored msgl__stored_fp4;
// stored_codebook.c: codes of 4 bits that stand for VALUES, the first of two in the upper half of a
// byte. SCALES: for each `group` elements, whatever rows they are in.
extern const msgl_stored msgl__stored_codebook;

#endif
