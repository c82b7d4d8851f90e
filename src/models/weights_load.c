// SPDX-License-Identifier: Apache-2.0
//
// From a checked checkpoint's tensors to the placed weights that want them.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "kernel/device.h"
#include "models/source.h"
#include "models/weights.h"
#include "quant/number.h"

// Of rows on their way from the file to the packer: work for 16 threads at a time, and still what a
// large cache holds.
static const size_t STAGE_BYTES = (size_t)16 << 20;

static int by_place(const void *a, const void *b)
{
    const msgl_tensor *x = ((const msgl_load_item *)a)->tensor;
    const msgl_tensor *y = ((const msgl_load_item *)b)->tensor;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    if (x != y) return x->data < y->data ? -1 : 1;
    const size_t from = ((const msgl_load_item *)a)->from, to = ((const msgl_load_item *)b)->from;
    return from < to ? -1 : from > to;
}

static msgl_source source_of(const msgl_load_item *it)
{
    const msgl_wanted *w = it->want;
    const msgl_dtype dtype = w->weight != NULL ? w->weight->format->dtype : MSGL_F32;
    const bool kept = w->weight != NULL && w->weight->format->repack != NULL;
    const bool one = w->experts > 0 && w->cols > 0,
               columns = one && msgl__columns_first(w, it->tensor);
    const int32_t expert_rows = columns ? w->all_cols : w->unsharded_rows; // of the tensor
    return (msgl_source){.t = it->tensor,
                         .want = dtype < MSGL_DTYPE_COUNT ? dtype : MSGL_F32,
                         .blocks = kept ? w->weight->format->blocks : NULL,
                         .order = kept ? w->weight->format->order : NULL,
                         .cols = (size_t)w->cols,
                         .all_cols = (size_t)w->all_cols,
                         .first_col = (size_t)w->first_col,
                         .first = one ? (size_t)w->expert * (size_t)expert_rows : (size_t)w->first,
                         .transposed = w->transposed || columns,
                         .head = w->head,
                         .unpaired = w->unpaired,
                         .pairs = w->pairs,
                         .head_groups = w->head_groups,
                         .group_heads = w->group_heads,
                         .head_cols = w->head_cols};
}

// Of a checked tensor with integers.
static msgl_number integers_of(const msgl_tensor *t)
{
    return strcmp(t->type, "I64") == 0 ? MSGL_NUMBER_I64 : MSGL_NUMBER_I32;
}

static void load_vector(const msgl_load_item *it, msgl_exec *x)
{
    const msgl_wanted *w = it->want;
    const msgl_source s = source_of(it);
    const msgl_number integers = integers_of(it->tensor);
    const size_t n = (size_t)w->rows;
    float *host = msgl__reallocarray(NULL, n, sizeof *host);
    if (host == NULL) {
        x->status = MSGL_ENOMEM;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const size_t at = (size_t)w->skip + i;
        host[i] = w->below > 0 ? msgl__number_at(it->tensor->data, integers, at)
                               : msgl__source_element(&s, at);
        host[i] += w->add;
        if (w->times != 0) host[i] *= w->times;
        if (w->log_of_minus) host[i] = logf(-host[i]);
    }
    x->device->ops->copy_in(x->device, *w->vector + w->row, host, n * sizeof *host);
    msgl__free(host);
}

// Whether all integers are below what they have to be below.
static int check_integers(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    for (size_t i = 0; i < p->num_wanted; i++) {
        const msgl_wanted *w = &p->wanted[i];
        const msgl_tensor *t = w->below > 0 ? msgl__checkpoint_find(c, w->name) : NULL;
        if (t == NULL) continue;
        const msgl_number type = integers_of(t);
        for (size_t e = 0; e < t->bytes / msgl__number_size(type); e++) {
            const int64_t v = msgl__integer_at(t->data, type, e);
            if (v >= 0 && v < w->below) continue;
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%s: tensor %s: element %zu: found %lld, allowed 0..%d",
                                 msgl__checkpoint_file(c, t), msgl__tensor_label(t), e,
                                 (long long)v, (int)w->below - 1);
        }
    }
    return 0;
}

static int load_scales(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    for (size_t i = 0; i < p->num_scales; i++) {
        const msgl_tensor *t = msgl__checkpoint_find(c, p->scales[i].name);
        if (t == NULL) continue;
        int64_t elements = 1;
        for (int32_t d = 0; d < t->ndim; d++) elements *= t->dims[d];
        const msgl_source s = {.t = t, .want = MSGL_F32};
        const float scale = elements == 1 && t->loadable ? msgl__source_element(&s, 0) : 0;
        if (!(scale > 0) || !isfinite(scale)) {
            return msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: expected one number above 0",
                                 msgl__checkpoint_file(c, t), msgl__tensor_label(t));
        }
        *p->scales[i].to = scale;
    }
    return 0;
}

// Rows of a weight that its packer takes at a time: all from the file itself, or what the stage
// holds.
static int32_t rows_at_a_time(const msgl_source *s, int32_t rows)
{
    const size_t fit = STAGE_BYTES / msgl__source_row_bytes(s);
    if (msgl__source_direct(s, 0) != NULL || fit >= (size_t)rows) return rows;
    return fit > 0 ? (int32_t)fit : 1;
}

// Whether the packer asks for the rows in its turn.
static bool asks(const msgl_source *s, const msgl_wanted *w)
{
    return msgl__source_splits(s) && w->weight->format->repack_parts != NULL;
}

// Bytes of the stage: what the largest step of these weights needs; 0: none is staged.
static size_t stage_bytes(const msgl_load_item *items, size_t n)
{
    size_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const msgl_source s = source_of(&items[i]);
        if (items[i].want->weight == NULL || asks(&s, items[i].want)) continue;
        if (msgl__source_direct(&s, 0) != NULL) continue;
        const size_t rows = (size_t)rows_at_a_time(&s, items[i].want->rows);
        const size_t bytes = rows * msgl__source_row_bytes(&s);
        most = bytes > most ? bytes : most;
    }
    return most;
}

// A source's rows from the model's row `skip` on.
typedef struct skipped_rows {
    const msgl_source *s;
    size_t skip;
} skipped_rows;

static void read_parts(const void *rows, const msgl_part_tile *t, msgl_code_part *out, size_t ld)
{
    const skipped_rows *from = rows;
    const msgl_part_tile at = {from->skip + t->row, t->rows, t->col, t->cols};
    msgl__source_parts(from->s, &at, out, ld);
}

static void load_rows(const msgl_load_item *it, void *stage, msgl_exec *x)
{
    const msgl_wanted *w = it->want;
    const msgl_source s = source_of(it);
    const msgl_wformat *f = w->weight->format;
    if (asks(&s, w)) {
        const skipped_rows from = {&s, (size_t)w->skip};
        f->repack_parts(x, w->weight, w->row, w->rows, &(msgl_part_rows){read_parts, &from});
        msgl__arena_reset(x->scratch);
        return;
    }
    const void *direct = msgl__source_direct(&s, (size_t)w->skip);
    const int32_t step = rows_at_a_time(&s, w->rows);
    for (int32_t r = 0; r < w->rows && x->status == 0; r += step) {
        const int32_t n = w->rows - r < step ? w->rows - r : step;
        const void *rows = direct != NULL ? direct : stage;
        if (direct == NULL) msgl__source_rows(x->pool, &s, w->skip + r, n, stage);
        if (s.blocks != NULL) {
            f->repack(x, w->weight, w->row + r, n, rows,
                      direct != NULL ? msgl__source_tensor_row_bytes(&s)
                                     : msgl__source_row_bytes(&s));
        } else {
            f->pack(x, w->weight, w->row + r, n, rows, msgl__source_dtype(&s),
                    direct != NULL ? s.all_cols : s.cols);
        }
        msgl__arena_reset(x->scratch);
    }
}

void msgl__load_weight(const msgl_load_item *items, size_t n, msgl_exec *x)
{
    void *stage = msgl__malloc(stage_bytes(items, n));
    if (stage == NULL) x->status = MSGL_ENOMEM;
    for (size_t i = 0; i < n && x->status == 0; i++) load_rows(&items[i], stage, x);
    msgl__free(stage);
}

uint64_t msgl__load_items(const msgl_weight_plan *p, const msgl_checkpoint *c,
                          msgl_load_item *items)
{
    uint64_t total = 0;
    for (size_t i = 0; i < p->num_wanted; i++) {
        msgl_load_item *it = &items[i];
        const msgl_wanted *w = &p->wanted[i];
        *it = (msgl_load_item){.want = w, .tensor = msgl__checkpoint_find(c, w->name)};
        if (w->rows == 0) continue; // another rank's
        const msgl_source s = source_of(it);
        msgl__source_span(&s, (size_t)w->skip, (size_t)w->rows, &it->from, &it->bytes);
        total += it->bytes;
    }
    qsort(items, p->num_wanted, sizeof *items, by_place);
    return total;
}

// Whether item i of n is the last that its tensor is needed for.
static bool ends_tensor(const msgl_load_item *items, size_t n, size_t i)
{
    return i + 1 == n || items[i + 1].tensor != items[i].tensor;
}

size_t msgl__read_ahead(const msgl_load_item *items, size_t n, size_t first, uint64_t done,
                        uint64_t *asked)
{
    while (first < n && *asked < done + MSGL_READ_AHEAD) {
        *asked += items[first++].bytes;
    }
    return first;
}

void msgl__fill_vector(float *to, int32_t n, float value, msgl_exec *x)
{
    float host[64];
    for (int i = 0; i < 64; i++) host[i] = value;
    for (int32_t at = 0; at < n; at += 64) {
        const size_t some = n - at < 64 ? (size_t)(n - at) : 64;
        x->device->ops->copy_in(x->device, to + at, host, some * sizeof *host);
    }
}

void msgl__fill_ones(const msgl_weight_plan *p, msgl_exec *x)
{
    for (size_t i = 0; i < p->num_ones; i++) {
        msgl__fill_vector(*p->ones[i].vector, p->ones[i].n, 1, x);
    }
}

int msgl__weights_load(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_exec *x,
                       msgl_load_progress progress, void *ctx, msgl_err *err)
{
    int code = load_scales(p, c, err);
    if (code == 0) code = check_integers(p, c, err);
    if (code != 0) return code;
    msgl_load_item *items = msgl__reallocarray(NULL, p->num_wanted + 1, sizeof *items);
    if (items == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const uint64_t total = msgl__load_items(p, c, items);
    uint64_t done = 0, asked = 0;
    void *stage = msgl__malloc(stage_bytes(items, p->num_wanted));
    if (stage == NULL) x->status = MSGL_ENOMEM;
    for (size_t i = 0, ahead = 0; i < p->num_wanted && x->status == 0; i++) {
        const size_t end = msgl__read_ahead(items, p->num_wanted, ahead, done, &asked);
        for (; ahead < end; ahead++) {
            const msgl_load_item *it = &items[ahead];
            if (it->bytes > 0) msgl__tensor_will_need(it->tensor, it->from, it->bytes);
        }
        if (items[i].want->rows == 0) {
            // another rank's
        } else if (items[i].want->weight == NULL) {
            load_vector(&items[i], x);
        } else {
            load_rows(&items[i], stage, x);
        }
        done += items[i].bytes;
        if (!ends_tensor(items, p->num_wanted, i)) continue;
        msgl__tensor_drop(items[i].tensor);
        if (progress != NULL) progress(ctx, done, total);
    }
    msgl__fill_ones(p, x);
    msgl__free(stage);
    msgl__free(items);
    return x->status == 0 ? 0 : msgl__err_set(err, x->status, "loading weights failed");
}
