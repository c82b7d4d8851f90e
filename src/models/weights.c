// SPDX-License-Identifier: Apache-2.0
#include "models/weights.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"

// Bounds the plan of a hostile config; the largest published model wants some 50,000.
static const size_t MAX_WANTED = (size_t)1 << 20;

void msgl__weight_plan_init(msgl_weight_plan *p, const msgl_weight_formats *formats, msgl_err *err)
{
    *p = (msgl_weight_plan){.err = err};
    if (formats != NULL) p->formats = *formats;
}

void msgl__weight_plan_free(msgl_weight_plan *p)
{
    msgl__free(p->wanted);
    msgl__free(p->places);
    msgl__free(p->scales);
    msgl__free(p->numbers);
    msgl__free(p->ones);
    msgl__free(p->same);
    msgl__free(p->kept);
    msgl__free(p->planned);
    msgl__free(p->parts);
    msgl__kept_forms_free(p->forms);
    *p = (msgl_weight_plan){0};
}

void msgl__weight_plan_trim(msgl_weight_plan *p)
{
    msgl__free(p->wanted);
    msgl__free(p->ones);
    msgl__free(p->numbers);
    msgl__free(p->kept);
    p->wanted = NULL;
    p->ones = NULL;
    p->numbers = NULL;
    p->kept = NULL;
    p->num_wanted = p->cap_wanted = p->num_ones = p->cap_ones = p->num_numbers = p->cap_numbers =
        p->num_kept = p->cap_kept = 0;
    p->err = NULL;
}

static void plan_fail(msgl_weight_plan *p, int code, const char *text)
{
    if (p->status == 0) p->status = msgl__err_set(p->err, code, "model: %s", text);
}

// Room for one more element of an array that doubles; false after a failure.
static bool grow(msgl_weight_plan *p, void **array, size_t count, size_t *cap, size_t size)
{
    if (p->status != 0) return false;
    if (count < *cap) return true;
    const size_t want = *cap == 0 ? 256 : *cap * 2;
    if (want > 2 * MAX_WANTED) {
        plan_fail(p, MSGL_ELIMIT, "too many tensors: layers x experts is too large");
        return false;
    }
    void *grown = msgl__reallocarray(*array, want, size);
    if (grown == NULL) {
        plan_fail(p, MSGL_ENOMEM, "out of memory for the list of its tensors");
        return false;
    }
    *array = grown;
    *cap = want;
    return true;
}

void msgl__plan_lay_out(msgl_weight_plan *p, size_t first)
{
    for (size_t i = first; i < p->num_places; i++) {
        size_t padded;
        if (msgl__size_add(p->places[i].bytes, 63, &padded) != 0) {
            plan_fail(p, MSGL_ELIMIT, "the weights are too large");
            return;
        }
        p->places[i].offset = p->bytes;
        if (msgl__size_add(p->bytes, padded & ~(size_t)63, &p->bytes) != 0) {
            plan_fail(p, MSGL_ELIMIT, "the weights are too large");
        }
    }
}

void msgl__plan_place(msgl_weight_plan *p, void **where, size_t bytes)
{
    if (!grow(p, (void **)&p->places, p->num_places, &p->cap_places, sizeof *p->places)) return;
    p->places[p->num_places++] = (msgl_placement){.where = where, .bytes = bytes};
    msgl__plan_lay_out(p, p->num_places - 1);
}

// What this rank keeps of a weight or vector.
typedef struct msgl_plan_kept {
    const void *what;
    msgl_kept kept;
} msgl_plan_kept;

void msgl__plan_keep(msgl_weight_plan *p, const void *what, const msgl_kept *kept)
{
    if (!grow(p, (void **)&p->kept, p->num_kept, &p->cap_kept, sizeof *p->kept)) return;
    p->kept[p->num_kept++] = (msgl_plan_kept){.what = what, .kept = *kept};
}

// NULL: all of it. What is declared was mostly announced just before.
static const msgl_kept *kept_of(const msgl_weight_plan *p, const void *what)
{
    for (size_t i = p->num_kept; i > 0; i--) {
        if (p->kept[i - 1].what == what) return &p->kept[i - 1].kept;
    }
    return NULL;
}

static void push(msgl_weight_plan *p, const msgl_wanted *w)
{
    if (!grow(p, (void **)&p->wanted, p->num_wanted, &p->cap_wanted, sizeof *p->wanted)) return;
    p->wanted[p->num_wanted++] = *w;
}

// The rows of w that lie in what is kept, each run as a piece of its own.
static void push_kept(msgl_weight_plan *plan, const msgl_kept *kept, const msgl_wanted *w)
{
    const int32_t end = w->row + w->rows, period = kept->period > 0 ? kept->period : end;
    const msgl_range some = kept->periods;
    int32_t before = 0; // rows kept of those in front
    for (int32_t p = 0, base = 0; base < end; base += period, p++) {
        if (some.count > 0 && (p < some.from || p >= some.from + some.count)) continue;
        for (int32_t i = 0; i < kept->num_rows; i++) {
            const int32_t from = base + kept->rows[i].from, to = from + kept->rows[i].count;
            const int32_t first = from > w->row ? from : w->row, last = to < end ? to : end;
            if (first < last) {
                msgl_wanted piece = *w;
                piece.row = before + first - from;
                piece.rows = last - first;
                piece.skip = first - w->row;
                push(plan, &piece);
            }
            before += kept->rows[i].count;
        }
    }
    if (plan->num_wanted > plan->declared) return;
    msgl_wanted none = *w; // of other ranks alone
    none.row = none.rows = 0;
    push(plan, &none);
}

static void want(msgl_weight_plan *p, const void *what, msgl_wanted w, const char *fmt, va_list ap)
{
    const msgl_kept *kept = kept_of(p, what);
    if (vsnprintf(w.name, sizeof w.name, fmt, ap) >= (int)sizeof w.name) {
        plan_fail(p, MSGL_EINTERNAL, "a tensor name is too long");
        return;
    }
    p->declared = p->num_wanted;
    w.form = p->form;
    w.unsharded_rows = w.rows;
    w.all_cols = w.cols;
    if (kept != NULL && kept->cols.count > 0) {
        w.all_cols = kept->all_cols;
        w.first_col = kept->cols.from;
    }
    if (kept != NULL && kept->num_rows > 0) {
        push_kept(p, kept, &w);
    } else {
        push(p, &w);
    }
}

static void plan_weight(msgl_weight_plan *p, msgl_weight *w, bool exact, int32_t n, int32_t k)
{
    *w = (msgl_weight){.format = msgl__planned_format(&p->formats, exact), .n = n, .k = k};
    if (n == 0) return;
    const size_t bytes = msgl__weight_bytes(w);
    if (bytes == 0) {
        plan_fail(p, MSGL_ELIMIT, "a weight is too large");
        return;
    }
    if (!grow(p, (void **)&p->planned, p->num_planned, &p->cap_planned, sizeof *p->planned)) return;
    p->planned[p->num_planned++] = (msgl_planned){.w = w, .place = p->num_places, .exact = exact};
    msgl__plan_place(p, &w->data, bytes);
}

void msgl__plan_weight(msgl_weight_plan *p, msgl_weight *w, int32_t n, int32_t k)
{
    plan_weight(p, w, false, n, k);
}

void msgl__plan_take_same(const msgl_weight_plan *p)
{
    for (size_t i = 0; i < p->num_same; i++) *p->same[i].to = *p->same[i].of;
}

void msgl__plan_same_weight(msgl_weight_plan *p, msgl_weight *to, const msgl_weight *of)
{
    if (!grow(p, (void **)&p->same, p->num_same, &p->cap_same, sizeof *p->same)) return;
    p->same[p->num_same++] = (msgl_same_weight){.to = to, .of = of};
    *to = *of;
}

void msgl__plan_exact_weight(msgl_weight_plan *p, msgl_weight *w, int32_t n, int32_t k)
{
    plan_weight(p, w, true, n, k);
}

void msgl__plan_rows(msgl_weight_plan *p, msgl_weight *w, int32_t row, int32_t rows,
                     const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    want(p, w, (msgl_wanted){.weight = w, .row = row, .rows = rows, .cols = w->k}, fmt, ap);
    va_end(ap);
}

void msgl__plan_vector(msgl_weight_plan *p, float **v, int32_t n)
{
    msgl__plan_place(p, (void **)v, (size_t)n * sizeof(float));
}

void msgl__plan_ones(msgl_weight_plan *p, float **v, int32_t n)
{
    if (!grow(p, (void **)&p->ones, p->num_ones, &p->cap_ones, sizeof *p->ones)) return;
    msgl__plan_vector(p, v, n);
    p->ones[p->num_ones++] = (msgl_ones){.vector = v, .n = n};
}

void msgl__plan_elements(msgl_weight_plan *p, float **v, int32_t at, int32_t n, float dummy,
                         const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    want(p, v, (msgl_wanted){.vector = v, .row = at, .rows = n, .dummy = dummy}, fmt, ap);
    va_end(ap);
}

void msgl__plan_add_one(msgl_weight_plan *p)
{
    if (p->status != 0) return;
    for (size_t i = p->declared; i < p->num_wanted; i++) p->wanted[i].add = 1;
}

void msgl__plan_times(msgl_weight_plan *p, float factor)
{
    if (p->status != 0) return;
    for (size_t i = p->declared; i < p->num_wanted; i++) p->wanted[i].times = factor;
}

void msgl__plan_log_of_minus(msgl_weight_plan *p)
{
    if (p->status != 0) return;
    for (size_t i = p->declared; i < p->num_wanted; i++) p->wanted[i].log_of_minus = true;
}

void msgl__plan_pairs(msgl_weight_plan *p, int32_t head, int32_t unpaired, int32_t pairs)
{
    if (p->status != 0) return;
    for (size_t i = p->declared; i < p->num_wanted; i++) {
        msgl_wanted *w = &p->wanted[i];
        w->head = head;
        w->unpaired = unpaired;
        w->pairs = pairs;
    }
}

void msgl__plan_column_heads(msgl_weight_plan *p, int32_t groups, int32_t each, int32_t cols)
{
    if (p->status != 0) return;
    for (size_t i = p->declared; i < p->num_wanted; i++) {
        msgl_wanted *w = &p->wanted[i];
        w->head_groups = groups;
        w->group_heads = each;
        w->head_cols = cols;
    }
}

void msgl__plan_taps(msgl_weight_plan *p, int32_t taps)
{
    if (p->status != 0) return;
    for (size_t i = p->declared; i < p->num_wanted; i++) p->wanted[i].taps = taps;
}

void msgl__plan_integers(msgl_weight_plan *p, int32_t below)
{
    if (p->status != 0) return;
    for (size_t i = p->declared; i < p->num_wanted; i++) p->wanted[i].below = below;
}

void msgl__plan_slice(msgl_weight_plan *p, int32_t tensor_rows, int32_t first, bool transposed)
{
    if (p->status != 0) return;
    for (size_t i = p->declared; i < p->num_wanted; i++) {
        msgl_wanted *w = &p->wanted[i];
        w->tensor_rows = tensor_rows;
        w->first = first;
        w->transposed = transposed;
    }
}

void msgl__plan_expert(msgl_weight_plan *p, int32_t experts, int32_t expert, bool by_columns)
{
    if (p->status != 0) return;
    for (size_t i = p->declared; i < p->num_wanted; i++) {
        msgl_wanted *w = &p->wanted[i];
        w->experts = experts;
        w->expert = expert;
        w->by_columns = by_columns;
    }
}

void msgl__plan_form(msgl_weight_plan *p, msgl_form form)
{
    p->form = form;
}

void msgl__plan_router(msgl_weight_plan *p)
{
    if (p->status != 0) return;
    size_t i = p->num_wanted - 1;
    while (p->wanted[i].weight == NULL) i--; // its bias comes behind it
    p->wanted[i].router = true;
}

void msgl__plan_scale(msgl_weight_plan *p, float *to, const char *fmt, ...)
{
    msgl_optional_scale s = {.to = to};
    va_list ap;
    va_start(ap, fmt);
    const int length = vsnprintf(s.name, sizeof s.name, fmt, ap);
    va_end(ap);
    if (!grow(p, (void **)&p->scales, p->num_scales, &p->cap_scales, sizeof s)) return;
    if (length >= (int)sizeof s.name) {
        plan_fail(p, MSGL_EINTERNAL, "a tensor name is too long");
        return;
    }
    p->scales[p->num_scales++] = s;
}

void msgl__plan_numbers(msgl_weight_plan *p, const int64_t *values, int32_t num, const char *fmt,
                        ...)
{
    msgl_known_numbers n = {.num = num};
    va_list ap;
    va_start(ap, fmt);
    const int length = vsnprintf(n.name, sizeof n.name, fmt, ap);
    va_end(ap);
    if (!grow(p, (void **)&p->numbers, p->num_numbers, &p->cap_numbers, sizeof n)) return;
    if (length >= (int)sizeof n.name || num > MSGL_MAX_NUMBERS) {
        plan_fail(p, MSGL_EINTERNAL, "a tensor name or a list of numbers is too long");
        return;
    }
    memcpy(n.values, values, (size_t)num * sizeof *values);
    p->numbers[p->num_numbers++] = n;
}

void msgl__weight_plan_place(msgl_weight_plan *p, void *region)
{
    for (size_t i = 0; i < p->num_places; i++) {
        void *const at = (char *)region + p->places[i].offset;
        memcpy(p->places[i].where, &at, sizeof at); // a float * or a void *
    }
    msgl__plan_take_same(p);
}

bool msgl__columns_first(const msgl_wanted *w, const msgl_tensor *t)
{
    // Hubs have Qwen3-VL-MoE's experts [experts, in, out], transformers 5 writes [experts, out,
    // in].
    const bool rows_first = t->ndim == 3 && w->all_cols != w->unsharded_rows &&
                            t->dims[1] == w->unsharded_rows && t->dims[2] == w->all_cols;
    return w->by_columns && t->packing.form == NULL && !rows_first;
}

int32_t msgl__wanted_shape(const msgl_wanted *w, const msgl_tensor *t, int64_t shape[3])
{
    if (w->taps > 0) {
        shape[0] = (w->tensor_rows > 0 ? w->tensor_rows : w->unsharded_rows) / w->taps;
        shape[1] = 1, shape[2] = w->taps;
        return 3;
    }
    if (w->experts > 0 && w->cols == 0) {
        shape[0] = w->experts;
        shape[1] = (w->tensor_rows > 0 ? w->tensor_rows : w->unsharded_rows) / w->experts;
        return 2;
    }
    if (w->experts > 0) {
        shape[0] = w->experts;
        shape[1] = msgl__columns_first(w, t) ? w->all_cols : w->unsharded_rows;
        shape[2] = msgl__columns_first(w, t) ? w->unsharded_rows : w->all_cols;
        return 3;
    }
    shape[0] = w->tensor_rows > 0 ? w->tensor_rows : w->unsharded_rows;
    shape[1] = w->transposed ? w->unsharded_rows : w->all_cols;
    return w->cols > 0 ? 2 : 1;
}
