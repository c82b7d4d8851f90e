// SPDX-License-Identifier: Apache-2.0
//
// Random weights without a checkpoint, for benchmarks and tests of any config. Drawing hundreds of
// millions of numbers would take longer than reading them from disk, so one block is drawn and
// every group of rows is packed from another place in it. A device that can draw numbers itself
// does, if the weight holds a dtype. Of packed weights one of each shape is loaded as from a file,
// and the others are copies of it on the device, each at its own address.
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "kernel/device.h"
#include "models/dummy_bytes.h"
#include "models/weights.h"
#include "utils/hash.h"
#include "utils/random.h"

enum { BLOCK = 1 << 21 }; // elements

// Uniform in +-a sqrt(3), whose standard deviation is a.
static void draw(uint16_t *block, size_t n)
{
    const float half_width = 1.73205081f * MSGL_DUMMY_DEVIATION;
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
                                dtype, (size_t)w->rows * cols, seed, MSGL_DUMMY_DEVIATION);
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

// A weight that was loaded from packed tensors: items[first, first + num).
typedef struct loaded_weight {
    size_t first, num;
} loaded_weight;

typedef struct filling {
    const msgl_weight_plan *p;
    msgl_exec *x;
    uint16_t *block;       // [BLOCK]
    msgl_load_item *items; // [p->num_wanted]: tensors of those that are packed, else NULL
    loaded_weight *loaded; // [num_loaded], all different
    size_t num_loaded, cap_loaded;
} filling;

static bool prepare(filling *f, const msgl_checkpoint *c)
{
    const msgl_weight_plan *p = f->p;
    f->block = msgl__reallocarray(NULL, BLOCK, sizeof *f->block);
    f->items = msgl__reallocarray(NULL, p->num_wanted + 1, sizeof *f->items);
    if (f->block == NULL || f->items == NULL) return false;
    draw(f->block, BLOCK);
    for (size_t i = 0; i < p->num_wanted; i++) {
        const msgl_tensor *t = c != NULL ? msgl__checkpoint_find(c, p->wanted[i].name) : NULL;
        if (t != NULL && t->packing.form == NULL) t = NULL;
        f->items[i] = (msgl_load_item){.want = &p->wanted[i], .tensor = t};
    }
    return true;
}

// Whether two packed tensors, of one form and so with equal bytes beside them, give the same rows
// to the same places.
static bool equal_items(const msgl_load_item *x, const msgl_load_item *y)
{
    const msgl_wanted *a = x->want, *b = y->want;
    return x->tensor->data == y->tensor->data && a->row == b->row && a->rows == b->rows &&
           a->cols == b->cols && a->unsharded_rows == b->unsharded_rows && a->skip == b->skip &&
           a->all_cols == b->all_cols && a->first_col == b->first_col &&
           a->tensor_rows == b->tensor_rows && a->first == b->first &&
           a->transposed == b->transposed && a->experts == b->experts && a->expert == b->expert &&
           a->head == b->head && a->unpaired == b->unpaired && a->pairs == b->pairs &&
           a->head_groups == b->head_groups && a->group_heads == b->group_heads &&
           a->head_cols == b->head_cols;
}

static bool equal_weights(const filling *f, loaded_weight a, loaded_weight b)
{
    const msgl_weight *x = f->items[a.first].want->weight, *y = f->items[b.first].want->weight;
    if (x->format != y->format || x->n != y->n || x->k != y->k || a.num != b.num) return false;
    for (size_t i = 0; i < a.num; i++) {
        if (!equal_items(&f->items[a.first + i], &f->items[b.first + i])) return false;
    }
    return true;
}

static bool remember(filling *f, loaded_weight l)
{
    if (f->num_loaded == f->cap_loaded) {
        const size_t cap = f->cap_loaded == 0 ? 64 : 2 * f->cap_loaded;
        loaded_weight *grown = msgl__reallocarray(f->loaded, cap, sizeof *grown);
        if (grown == NULL) return false;
        f->loaded = grown;
        f->cap_loaded = cap;
    }
    f->loaded[f->num_loaded++] = l;
    return true;
}

// The weight of item `first`, or as much of it as the packed items from there on are; how many.
static size_t fill_packed(filling *f, size_t first)
{
    const msgl_weight *w = f->items[first].want->weight;
    msgl_device *d = f->x->device;
    loaded_weight own = {.first = first};
    int32_t rows = 0;
    for (size_t i = first; i < f->p->num_wanted && f->items[i].tensor != NULL; i++, own.num++) {
        if (f->items[i].want->weight != w) break;
        rows += f->items[i].want->rows;
    }
    const bool whole = rows > 0 && rows == w->n;
    for (size_t i = 0; i < f->num_loaded && whole; i++) {
        if (!equal_weights(f, f->loaded[i], own)) continue;
        const msgl_weight *other = f->items[f->loaded[i].first].want->weight;
        d->ops->copy(d, w->data, other->data, msgl__weight_bytes(w));
        return own.num;
    }
    if (rows > 0) msgl__load_weight(f->items + first, own.num, f->x);
    if (rows > 0 && whole && !remember(f, own)) f->x->status = MSGL_ENOMEM;
    return own.num;
}

static void fill_plain(const filling *f, const msgl_wanted *w)
{
    if (w->weight == NULL) {
        msgl__fill_vector(*w->vector + w->row, w->rows, w->dummy, f->x);
    } else if (w->router && f->p->collapsed) {
        // 0 as the region was
    } else if (f->x->device->ops->fill_normal != NULL &&
               w->weight->format->dtype < MSGL_DTYPE_COUNT) {
        draw_rows(w, f->x, seed_of(w));
    } else {
        fill_rows(w, f->x, f->block, BLOCK);
    }
}

static uint64_t cost_of(const msgl_wanted *w)
{
    return (uint64_t)w->rows * (uint64_t)(w->cols + 1);
}

static void fill_all(filling *f, msgl_load_progress progress, void *ctx)
{
    const msgl_weight_plan *p = f->p;
    uint64_t total = 0, done = 0;
    for (size_t i = 0; i < p->num_wanted; i++) total += cost_of(&p->wanted[i]);
    for (size_t i = 0, n; i < p->num_wanted && f->x->status == 0; i += n) {
        n = 1;
        if (f->items[i].tensor != NULL) {
            n = fill_packed(f, i);
        } else {
            fill_plain(f, &p->wanted[i]);
        }
        for (size_t k = i; k < i + n; k++) done += cost_of(&p->wanted[k]);
        if (progress != NULL) progress(ctx, done, total);
    }
    msgl__fill_ones(p, f->x);
}

int msgl__weights_dummy(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_exec *x,
                        msgl_load_progress progress, void *ctx, msgl_err *err)
{
    filling f = {.p = p, .x = x};
    const bool prepared = prepare(&f, c);
    if (prepared) fill_all(&f, progress, ctx);
    msgl__free(f.block);
    msgl__free(f.items);
    msgl__free(f.loaded);
    if (!prepared) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    return x->status == 0 ? 0 : msgl__err_set(err, x->status, "filling weights failed");
}
