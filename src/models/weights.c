// SPDX-License-Identifier: Apache-2.0
#include "models/weights.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "kernel/device.h"
#include "models/source.h"
#include "utils/file.h"

// Bounds the plan of a hostile config; the largest published model wants some 50,000.
static const size_t MAX_WANTED = (size_t)1 << 20;
// Of rows on their way from the file to the packer: work for 16 threads at a time, and still what a
// large cache holds.
static const size_t STAGE_BYTES = (size_t)16 << 20;

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

// Whether the tensor is a vector of n elements, be it with dimensions of 1 around them (Kimi
// Linear: A_log [1, 1, heads, 1]), or a number of shape [] for [1] (Apertus).
static bool is_vector_of(const msgl_tensor *t, int64_t n)
{
    int64_t longest = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->dims[i] != 1 && longest != 1) return false;
        if (t->dims[i] != 1) longest = t->dims[i];
    }
    return longest == n;
}

// Bytes of an integer of the tensor; 0: it has none that can be wanted.
static size_t integer_bytes(const msgl_tensor *t)
{
    return strcmp(t->type, "I64") == 0 ? 8 : strcmp(t->type, "I32") == 0 ? 4 : 0;
}

static int64_t integer_at(const msgl_tensor *t, size_t i)
{
    int64_t wide;
    int32_t narrow;
    if (integer_bytes(t) == sizeof wide) {
        memcpy(&wide, t->data + i * sizeof wide, sizeof wide);
        return wide;
    }
    memcpy(&narrow, t->data + i * sizeof narrow, sizeof narrow);
    return narrow;
}

// Of the tensors with integers.
static int check_integers(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    for (size_t i = 0; i < p->num_wanted; i++) {
        const msgl_wanted *w = &p->wanted[i];
        const msgl_tensor *t = w->below > 0 ? msgl__checkpoint_find(c, w->name) : NULL;
        const size_t n = t != NULL ? t->bytes / integer_bytes(t) : 0;
        for (size_t e = 0; e < n; e++) {
            const int64_t v = integer_at(t, e);
            if (v >= 0 && v < w->below) continue;
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%s: tensor %s: element %zu: found %lld, allowed 0..%d",
                                 msgl__checkpoint_file(c, t), msgl__tensor_label(t), e,
                                 (long long)v, (int)w->below - 1);
        }
    }
    return 0;
}

static int check_tensor(const msgl_wanted *w, const msgl_checkpoint *c, msgl_err *err)
{
    const msgl_tensor *t = msgl__checkpoint_find(c, w->name);
    if (t == NULL) {
        const char *file = msgl__checkpoint_count(c) > 0
                               ? msgl__checkpoint_file(c, msgl__checkpoint_at(c, 0))
                               : "checkpoint";
        return msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: missing", file, w->name);
    }
    if (w->below > 0 ? integer_bytes(t) == 0 : !t->loadable) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: tensor %s: dtype: found %s, expected %s",
                             msgl__checkpoint_file(c, t), msgl__tensor_label(t), t->type,
                             w->below > 0 ? "I64, I32" : c->format->types);
    }
    int64_t expected[3];
    const int32_t ndim = msgl__wanted_shape(w, t, expected);
    if (ndim == 1 && is_vector_of(t, expected[0])) return 0;
    if (t->ndim != ndim || memcmp(t->dims, expected, (size_t)ndim * sizeof *expected) != 0) {
        char found[80], want_shape[48];
        return msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: shape: found %s, expected %s",
                             msgl__checkpoint_file(c, t), msgl__tensor_label(t),
                             msgl__shape_show(t->dims, t->ndim, found, sizeof found),
                             msgl__shape_show(expected, ndim, want_shape, sizeof want_shape));
    }
    return 0;
}

// Tensors that published checkpoints carry although the model computes them itself, or has no use
// for them.
// Whether a tensor is of a layer that attends to K and V of another, and of its own ones.
static bool is_shared_kv(const msgl_weight_plan *p, const char *name)
{
    static const char LAYERS[] = "layers.", OF[] = ".self_attn.";
    const char *at = strstr(name, LAYERS);
    char *end;
    if (p->shared_kv_from == 0 || at == NULL) return false;
    if (strtol(at + sizeof LAYERS - 1, &end, 10) < p->shared_kv_from) return false;
    if (strncmp(end, OF, sizeof OF - 1) != 0) return false;
    end += sizeof OF - 1;
    return strncmp(end, "k_", 2) == 0 || strncmp(end, "v_", 2) == 0;
}

static bool harmless(const msgl_weight_plan *p, const char *name)
{
    if (is_shared_kv(p, name)) return true;
    if (p->ignores_all) return true;
    for (size_t i = 0; i < p->num_scales; i++) {
        if (strcmp(name, p->scales[i].name) == 0) return true;
    }
    for (size_t i = 0; i < p->num_numbers; i++) {
        if (strcmp(name, p->numbers[i].name) == 0) return true;
    }
    for (int32_t i = 0; i < p->num_ignored; i++) {
        const char *begin = p->ignored[i];
        if (begin != NULL && strncmp(name, begin, strlen(begin)) == 0) return true;
    }
    static const char LAYERS[] = "model.layers.";
    if (p->ignored_from > 0 && strncmp(name, LAYERS, sizeof LAYERS - 1) == 0 &&
        strtol(name + sizeof LAYERS - 1, NULL, 10) >= p->ignored_from) {
        return true;
    }
    static const char *const SUFFIXES[] = {".rotary_emb.inv_freq", ".masked_bias", ".attn.bias",
                                           ".position_ids"};
    const size_t n = strlen(name);
    for (size_t i = 0; i < MSGL_COUNT(SUFFIXES); i++) {
        const size_t s = strlen(SUFFIXES[i]);
        if (n > s && strcmp(name + n - s, SUFFIXES[i]) == 0) return true;
    }
    // A tied model's head may be stored beside the embedding that it is a copy of.
    return strcmp(name, "lm_head.weight") == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const msgl_wanted *)a)->name, ((const msgl_wanted *)b)->name);
}

static void rename_one(char name[MSGL_TENSOR_NAME], const msgl_checkpoint *c, const char *own,
                       const char *other)
{
    char alias[MSGL_TENSOR_NAME];
    const size_t before = strcspn(own, "*"), to = strcspn(other, "*"); // all of it: there is none
    const bool any = own[before] == '*' && other[to] == '*';
    if (strncmp(name, own, before) != 0 || msgl__checkpoint_find(c, name) != NULL) return;
    const char *const number = name + before;
    const size_t digits = any ? strspn(number, "0123456789") : 0;
    const char *const behind = any ? own + before + 1 : "", *rest = number + digits;
    if (strncmp(rest, behind, strlen(behind)) != 0) return;
    const int len = snprintf(alias, sizeof alias, "%.*s%.*s%s%s", (int)to, other, (int)digits,
                             number, any ? other + to + 1 : "", rest + strlen(behind));
    if (len < 0 || (size_t)len >= sizeof alias || msgl__checkpoint_find(c, alias) == NULL) return;
    memcpy(name, alias, (size_t)len + 1);
}

void msgl__weights_rename(msgl_weight_plan *p, const msgl_checkpoint *c, const char *own,
                          const char *other)
{
    for (size_t i = 0; i < p->num_wanted; i++) rename_one(p->wanted[i].name, c, own, other);
    for (size_t i = 0; i < p->num_scales; i++) rename_one(p->scales[i].name, c, own, other);
}

void msgl__weights_choose_form(msgl_weight_plan *p, const msgl_checkpoint *c)
{
    bool apart = false, stacked = false;
    for (size_t i = 0; i < p->num_wanted && !stacked; i++) {
        const msgl_wanted *w = &p->wanted[i];
        apart = apart || w->form == MSGL_FORM_APART;
        stacked =
            c != NULL && w->form == MSGL_FORM_STACKED && msgl__checkpoint_find(c, w->name) != NULL;
    }
    const msgl_form other = stacked || !apart ? MSGL_FORM_APART : MSGL_FORM_STACKED;
    size_t kept = 0;
    for (size_t i = 0; i < p->num_wanted; i++) {
        if (p->wanted[i].form != other) p->wanted[kept++] = p->wanted[i];
    }
    p->num_wanted = kept;
}

// Whether no tensor of the checkpoint is one that the plan does not know.
static int check_surplus(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    msgl_wanted *sorted = msgl__reallocarray(NULL, p->num_wanted + 1, sizeof *sorted);
    if (sorted == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    memcpy(sorted, p->wanted, p->num_wanted * sizeof *sorted);
    qsort(sorted, p->num_wanted, sizeof *sorted, by_name);
    int code = 0;
    for (size_t i = 0, w = 0; i < msgl__checkpoint_count(c) && code == 0; i++) {
        const msgl_tensor *t = msgl__checkpoint_at(c, i); // both lists are ordered by name
        while (w < p->num_wanted && strcmp(sorted[w].name, t->name) < 0) w++;
        if (w < p->num_wanted && strcmp(sorted[w].name, t->name) == 0) continue;
        if (t->is_side || harmless(p, t->name)) continue;
        char name[96];
        code = msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: found, but the model has no such",
                             msgl__checkpoint_file(c, t),
                             msgl__printable(msgl__tensor_label(t), name, sizeof name));
    }
    msgl__free(sorted);
    return code;
}

// What a model's own numbers say has to be what its config says: they are not read.
static int check_numbers(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    for (size_t i = 0; i < p->num_numbers; i++) {
        const msgl_known_numbers *n = &p->numbers[i];
        const msgl_tensor *t = msgl__checkpoint_find(c, n->name);
        if (t == NULL) continue;
        const bool shaped = strcmp(t->type, "I64") == 0 && t->ndim == 1 && t->dims[0] == n->num;
        if (shaped && memcmp(t->data, n->values, (size_t)n->num * sizeof *n->values) == 0) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s: tensor %s: other numbers; allowed: the %d that follow from "
                             "config.json, as I64",
                             msgl__checkpoint_file(c, t), n->name, (int)n->num);
    }
    return 0;
}

int msgl__weights_check(const msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    for (size_t i = 0; i < p->num_wanted; i++) {
        const int code = check_tensor(&p->wanted[i], c, err);
        if (code != 0) return code;
    }
    const int code = check_numbers(p, c, err);
    return code != 0 ? code : check_surplus(p, c, err);
}

int msgl__weights_check_some(msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    int code = check_surplus(p, c, err);
    if (code == 0) code = check_numbers(p, c, err);
    size_t n = 0;
    for (size_t i = 0; i < p->num_wanted && code == 0; i++) {
        if (msgl__checkpoint_find(c, p->wanted[i].name) == NULL) continue;
        code = check_tensor(&p->wanted[i], c, err);
        p->wanted[n++] = p->wanted[i];
    }
    if (code == 0) p->num_wanted = n;
    return code;
}

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

static void load_vector(const msgl_load_item *it, msgl_exec *x)
{
    const msgl_wanted *w = it->want;
    const msgl_source s = source_of(it);
    const size_t n = (size_t)w->rows;
    float *host = msgl__reallocarray(NULL, n, sizeof *host);
    if (host == NULL) {
        x->status = MSGL_ENOMEM;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const size_t at = (size_t)w->skip + i;
        host[i] = w->below > 0 ? (float)integer_at(it->tensor, at) : msgl__source_element(&s, at);
        host[i] += w->add;
        if (w->times != 0) host[i] *= w->times;
        if (w->log_of_minus) host[i] = logf(-host[i]);
    }
    x->device->ops->copy_in(x->device, *w->vector + w->row, host, n * sizeof *host);
    msgl__free(host);
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
