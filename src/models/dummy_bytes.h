// SPDX-License-Identifier: Apache-2.0
//
// Random bytes for weights that no file has, as packers would have written them: codes that are
// about normal, and scales that give their values the standard deviation of the random weights in
// bf16. They are the same every time.
#ifndef MSGL_MODELS_DUMMY_BYTES_H
#define MSGL_MODELS_DUMMY_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/blocks.h"
#include "quant/number.h"

// Of all random weights: the initialisation of the published models, which keeps activations near 1
// behind every norm.
#define MSGL_DUMMY_DEVIATION 0.02f

// What the bytes of a tensor are.
typedef enum msgl_dummy_kind {
    MSGL_DUMMY_CODES,   // integers of `bits`, 4 or 8, around their middle
    MSGL_DUMMY_ZEROS,   // zero points of `bits`, from `least` to `most`
    MSGL_DUMMY_NUMBERS, // E4M3 or I8, as `number` says
    MSGL_DUMMY_E2M1,    // two in a byte
    MSGL_DUMMY_SCALES,  // of `number`: `mean` and up to a quarter more or less
    MSGL_DUMMY_BLOCKS,  // of `blocks`: Q4_0, Q8_0, Q4_K or Q6_K
    MSGL_DUMMY_SHAPE,   // two I64: `rows` and `cols`
    MSGL_DUMMY_ORDER,   // I32 for each of `cols` columns: its group of `group`, dealt out at random
} msgl_dummy_kind;

typedef struct msgl_dummy_content {
    msgl_dummy_kind kind;
    int32_t bits, least, most;
    msgl_number number;
    float mean;
    const msgl_blocks *blocks;
    int64_t rows, cols, group;
} msgl_dummy_content;

bool msgl__dummy_content_equal(const msgl_dummy_content *a, const msgl_dummy_content *b);

// Standard deviations of what is scaled, in units of the scale.
#define MSGL_DUMMY_CODES_4 2.5f  // of CODES of 4 bits, whose ends are 3 of them away
#define MSGL_DUMMY_CODES_8 36.0f // of CODES of 8 bits, and of I8
#define MSGL_DUMMY_E4M3 100.0f   // whose largest magnitude is 448
#define MSGL_DUMMY_FP4 2.0f      // of E2M1, whose largest magnitude is 6

// About normal, of mean 0 and deviation 1.
enum { MSGL_DUMMY_NORMALS = 1048573 }; // a prime: what repeats after so many has no period in rows
void msgl__dummy_normals(float *normals);

// n bytes. normals: [MSGL_DUMMY_NORMALS] of those.
void msgl__dummy_bytes(const msgl_dummy_content *what, const float *normals, uint8_t *to, size_t n);

#endif
