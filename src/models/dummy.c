// SPDX-License-Identifier: Apache-2.0
//
// Random weights without a checkpoint, for benchmarks and tests of any config. Drawing hundreds of
// millions of numbers would take longer than reading them from disk, so one block is drawn and
// every group of rows is packed from another place in it. A device that can draw numbers itself
// does, if the weight holds a dtype.
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "kernel/device.h"
#include "models/weights.h"
#include "utils/hash.h"
#include "utils/random.h"

enum { BLOCK = 1 << 21 }; // elements

// Uniform in +-0.02 sqrt(3), whose standard deviation is 0.02: the initialisation of the published
// models, which keeps activations near 1 behind every norm.
static void draw(uint16_t *block, size_t n)
{
    const float half_width = 0.0346410162f;
    for (size_t i = 0; i < n; i++) {
        const float unit = (float)(msgl__mix_bits(i) >> 40) * 0x1p-24f;
        block[i] = msgl__f32_to_bf16((2 * unit - 1) * half_width);
    }
}

// On the device, which packs nothing: rows are where they are in a row-major matrix.
static void draw_rows(const msgl_wanted *w, msgl_exec *x, uint64_t seed)
{
    const msgl_dtype dtype = w->weight->format->dtype;
    const size_t cols = (size_t)w->cols, size = msgl__dtype_size(dtype);
    x->device->ops->fill_normal(x->device, (char *)w->weight->data + (size_t)w->row * cols * size,
                                dtype, (size_t)w->rows * cols, seed, 0.02f);
}

// What is drawn is said by what it is for, so that ranks have the same of what all of them have.
static uint64_t seed_of(const msgl_wanted *w)
{
    const int32_t part[] = {w->expert, w->first, w->skip};
    return msgl__hash(msgl__hash(MSGL_HASH_START, w->name, strlen(w->name)), part, sizeof part);
}

static void fill_rows(const msgl_wanted *w, msgl_exec *x, const uint16_t *block, size_t block_len)
{
    const size_t cols = (size_t)w->cols;
    const int32_t step = (int32_t)(BLOCK / 2 / cols > 0 ? BLOCK / 2 / cols : 1);
    for (int32_t r = 0; r < w->rows; r += step) {
        const int32_t rows = w->rows - r < step ? w->rows - r : step;
        const size_t room = block_len - (size_t)rows * cols;
        const size_t at = msgl__mix_bits(seed_of(w) + (uint64_t)r) % (room + 1);
        w->weight->format->pack(x, w->weight, w->row + r, rows, block + at, MSGL_BF16, cols);
        msgl__arena_reset(x->scratch);
    }
}

int msgl__weights_dummy(const msgl_weight_plan *p, msgl_exec *x, msgl_load_progress progress,
                        void *ctx, msgl_err *err)
{
    uint16_t *block = msgl__reallocarray(NULL, BLOCK, sizeof *block);
    if (block == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    draw(block, BLOCK);
    uint64_t total = 0, done = 0;
    for (size_t i = 0; i < p->num_wanted; i++) {
        total += (uint64_t)p->wanted[i].rows * (uint64_t)(p->wanted[i].cols + 1);
    }
    for (size_t i = 0; i < p->num_wanted; i++) {
        const msgl_wanted *w = &p->wanted[i];
        if (w->weight == NULL) {
            msgl__fill_vector(*w->vector + w->row, w->rows, w->dummy, x);
        } else if (w->router && p->collapsed) {
            // 0 as the region was
        } else if (x->device->ops->fill_normal != NULL &&
                   w->weight->format->dtype < MSGL_DTYPE_COUNT) {
            draw_rows(w, x, seed_of(w));
        } else {
            fill_rows(w, x, block, BLOCK);
        }
        done += (uint64_t)w->rows * (uint64_t)(w->cols + 1);
        if (progress != NULL) progress(ctx, done, total);
    }
    msgl__fill_ones(p, x);
    msgl__free(block);
    return x->status == 0 ? 0 : msgl__err_set(err, x->status, "filling weights failed");
}
