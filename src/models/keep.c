// SPDX-License-Identifier: Apache-2.0
//
// The formats of weights. Which stay as the file has them is decided for each tensor by its blocks,
// or by its codes and their scales, once a checkpoint is open. A weight whose tensors differ
// becomes parts.
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "models/source.h"
#include "models/weights.h"

// A format that weights are kept in. Of codes, which differ between files, it has its own
// description; `blocks` is empty otherwise. Of columns in an order, it has that order too, or an
// earlier form of the list has it.
typedef struct msgl_kept_form {
    msgl_wformat format;
    msgl_blocks blocks;
    msgl_codes codes;
    msgl_column_order *order; // owned
    struct msgl_kept_form *next;
} msgl_kept_form;

// Forms that are compared with a tensor's. Neighbours have mostly the same, and no two experts of
// NVFP4 do, which would be compared with all.
enum { LOOK_BACK = 64 };

// A wanted tensor's rows, and the format they are kept in.
typedef struct piece {
    msgl_wanted *want;
    const msgl_weight *weight;  // as planned: not its part
    const msgl_wformat *format; // as planned, where they are not kept
} piece;

typedef struct keeping {
    msgl_weight_plan *p;
    const msgl_checkpoint *c;
    bool failed;   // out of memory
    piece *pieces; // [num] by weight, then by row
    size_t num;
} keeping;

static int by_weight(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    if (x->weight != y->weight) return (uintptr_t)x->weight < (uintptr_t)y->weight ? -1 : 1;
    return x->want->row < y->want->row ? -1 : x->want->row > y->want->row;
}

static bool collect(keeping *k)
{
    k->pieces = msgl__reallocarray(NULL, k->p->num_wanted + 1, sizeof *k->pieces);
    if (k->pieces == NULL) return false;
    for (size_t i = 0; i < k->p->num_wanted; i++) {
        msgl_wanted *w = &k->p->wanted[i];
        if (w->weight != NULL && w->rows > 0) k->pieces[k->num++] = (piece){w, w->weight, NULL};
    }
    qsort(k->pieces, k->num, sizeof *k->pieces, by_weight);
    return true;
}

// The pieces of a weight, and how many.
static piece *pieces_of(const keeping *k, const msgl_weight *w, size_t *num)
{
    size_t lo = 0, hi = k->num, end;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if ((uintptr_t)k->pieces[mid].weight < (uintptr_t)w) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    for (end = lo; end < k->num && k->pieces[end].weight == w;) end++;
    *num = end - lo;
    return k->pieces + lo;
}

void msgl__kept_forms_free(msgl_kept_form *forms)
{
    while (forms != NULL) {
        msgl_kept_form *next = forms->next;
        msgl__free(forms->order);
        msgl__free(forms);
        forms = next;
    }
}

static bool same_codes(const msgl_codes *a, const msgl_codes *b)
{
    return a->bits == b->bits && a->group == b->group && a->zero == b->zero &&
           a->values == b->values && a->scaling == b->scaling && a->offset == b->offset &&
           a->split == b->split && a->span == b->span && a->rows == b->rows &&
           a->number == b->number && a->factor == b->factor && a->divided == b->divided &&
           a->factor_last == b->factor_last && a->floats == b->floats &&
           memcmp(a->book, b->book, sizeof a->book) == 0;
}

static bool same_order(const msgl_column_order *a, const msgl_column_order *b)
{
    return a->num == b->num &&
           memcmp(a->columns, b->columns, (size_t)a->num * sizeof a->columns[0]) == 0;
}

static bool same_form(const msgl_kept_form *a, const msgl_kept_form *b)
{
    if (a->format.id != b->format.id || a->blocks.bytes != b->blocks.bytes) return false;
    if (a->format.order != b->format.order) return false;
    return a->blocks.bytes == 0 ? a->format.blocks == b->format.blocks
                                : same_codes(&a->codes, &b->codes);
}

bool msgl__same_format(const msgl_wformat *a, const msgl_wformat *b)
{
    if (a == b || a == NULL || b == NULL || a->repack == NULL || b->repack == NULL) return a == b;
    const msgl_kept_form *x = (const msgl_kept_form *)a, *y = (const msgl_kept_form *)b;
    msgl_kept_form other = *y;
    if (a->order != NULL && b->order != NULL && same_order(a->order, b->order)) {
        other.format.order = a->order;
    }
    return same_form(x, &other);
}

// Gives form the order of an earlier one that has the same, as q, k and v mostly have: rows of
// activations are put in order once for each that there is.
static void share_order(const keeping *k, msgl_kept_form *form)
{
    int looked = 0;
    for (const msgl_kept_form *f = k->p->forms; f != NULL && looked < LOOK_BACK; f = f->next) {
        looked++;
        if (f->format.order == NULL || !same_order(f->format.order, form->order)) continue;
        form->format.order = f->format.order;
        msgl__free(form->order);
        form->order = NULL;
        return;
    }
}

// One that stays where it is; if it is new it takes over form's order.
static const msgl_wformat *add_form(keeping *k, msgl_kept_form *form)
{
    if (form->order != NULL) share_order(k, form);
    int looked = 0;
    for (const msgl_kept_form *f = k->p->forms; f != NULL && looked < LOOK_BACK; f = f->next) {
        if (same_form(f, form)) return &f->format;
        looked++;
    }
    msgl_kept_form *own = msgl__malloc(sizeof *own);
    if (own == NULL) {
        k->failed = true;
        return NULL;
    }
    *own = *form;
    form->order = NULL;
    own->next = k->p->forms;
    k->p->forms = own;
    if (own->blocks.bytes == 0) return &own->format;
    own->blocks.codes = &own->codes;
    own->format.blocks = &own->blocks;
    return &own->format;
}

// Whether runs of `rows` rows of the file are such runs of the weight, too. Rows that move within
// heads stay in a run that is whole heads.
static bool keeps_rows_together(const msgl_wanted *w, int32_t rows)
{
    return rows > 0 && w->row % rows == 0 && w->skip % rows == 0 && w->first % rows == 0 &&
           (w->pairs == 0 || rows % w->head == 0);
}

// The blocks of these rows, in the file or made of its codes, which *form then describes; NULL:
// they are none that can stay.
static const msgl_blocks *blocks_of(keeping *k, const msgl_wanted *w, msgl_kept_form *form)
{
    const msgl_tensor *t = msgl__checkpoint_find(k->c, w->name);
    const msgl_packing *how = &t->packing;
    const msgl_packed p = msgl__packed_of(t);
    const size_t first = (size_t)w->first_col, cols = (size_t)w->cols;
    if (how->form == NULL || w->transposed || w->head_cols > 0 || msgl__columns_first(w, t)) {
        return NULL;
    }
    if (how->sides[MSGL_ORDER].data != NULL) {
        if (!k->p->formats.kernels->keeps_order) return NULL;
        form->order = msgl__stored_order(&p, first, cols);
        k->failed = k->failed || form->order == NULL;
        if (form->order == NULL) return NULL;
    }
    if (msgl__stored_codes(&p, first, cols, form->order, &form->codes)) {
        if (!keeps_rows_together(w, form->codes.rows)) form->codes.rows = 0;
        form->blocks = (msgl_blocks){.name = how->form->name,
                                     .elements = 32,
                                     .bytes = sizeof(msgl_code_part),
                                     .codes = &form->codes};
        return &form->blocks;
    }
    const bool plain = how->form == &msgl__stored_blocks && how->sides[MSGL_SCALES].data == NULL;
    return plain && w->first_col % how->blocks->elements == 0 ? how->blocks : NULL;
}

// Of many ranks, each has few columns of a group, and the places that fill up 32 may cost more than
// the codes save.
static bool saves(const msgl_wformat *kept, const msgl_wformat *planned, const msgl_wanted *w)
{
    const size_t bytes = kept->packed_size(kept, w->rows, w->cols);
    return bytes > 0 && bytes < planned->packed_size(planned, w->rows, w->cols);
}

// The format that keeps these rows, or the planned one.
static const msgl_wformat *format_of(keeping *k, const msgl_planned *planned, const msgl_wanted *w)
{
    msgl_kept_form form = {0};
    const msgl_blocks *blocks = blocks_of(k, w, &form);
    const int32_t places = form.order != NULL ? form.order->num : w->cols;
    const msgl_weight_formats *f = &k->p->formats;
    const bool exact = planned->exact || f->dtype == MSGL_F32;
    const msgl_wformat *kept = NULL;
    if (blocks != NULL && f->kernels->keep(blocks, places, exact, &form.format)) {
        form.format.order = form.order;
        if (form.order == NULL || saves(&form.format, planned->w->format, w)) {
            kept = add_form(k, &form);
        }
    }
    msgl__free(form.order);
    return kept != NULL ? kept : planned->w->format;
}

// Whether the pieces are all rows of w, one behind the other.
static bool whole(const msgl_weight *w, const piece *pieces, size_t num)
{
    int32_t row = 0;
    for (size_t i = 0; i < num && pieces[i].want->row == row; i++) row += pieces[i].want->rows;
    return row == w->n;
}

// How many runs of rows with one format the pieces are.
static size_t count_runs(const piece *pieces, size_t num)
{
    size_t runs = 0;
    for (size_t i = 0; i < num; i++) runs += i == 0 || pieces[i].format != pieces[i - 1].format;
    return runs;
}

// Formats of all pieces; returns how many parts weights with several runs need, or fails the plan.
static size_t choose_formats(keeping *k)
{
    size_t parts = 0;
    for (size_t i = 0; i < k->p->num_planned; i++) {
        const msgl_planned *planned = &k->p->planned[i];
        size_t num;
        piece *pieces = pieces_of(k, planned->w, &num);
        const bool may = whole(planned->w, pieces, num);
        for (size_t j = 0; j < num; j++) {
            pieces[j].format = may ? format_of(k, planned, pieces[j].want) : planned->w->format;
        }
        const size_t runs = count_runs(pieces, num);
        parts += runs > 1 ? runs : 0;
    }
    return parts;
}

// Takes `runs` parts from `parts` on for the pieces of one weight.
static void split(keeping *k, msgl_weight *w, msgl_weight *parts, const piece *pieces, size_t num)
{
    int32_t first = 0; // row of the part
    w->parts = parts;
    for (size_t i = 0; i < num; i++) {
        msgl_wanted *want = pieces[i].want;
        msgl_weight *part = &parts[w->num_parts - (i > 0)];
        if (i == 0 || pieces[i].format != pieces[i - 1].format) {
            part = &parts[w->num_parts++];
            *part = (msgl_weight){.format = pieces[i].format, .k = w->k};
            first = want->row;
        }
        part->n = want->row + want->rows - first;
        want->weight = part;
        want->row -= first;
    }
    for (int i = 0; i < w->num_parts; i++) {
        msgl__plan_place(k->p, &parts[i].data, msgl__weight_bytes(&parts[i]));
    }
}

static void apply(keeping *k)
{
    msgl_weight *next = k->p->parts;
    for (size_t i = 0; i < k->p->num_planned; i++) {
        const msgl_planned *planned = &k->p->planned[i];
        msgl_weight *w = planned->w;
        size_t num;
        const piece *pieces = pieces_of(k, w, &num);
        const size_t runs = count_runs(pieces, num);
        if (runs == 0) continue;
        for (size_t j = 0; j < num; j++) k->p->keeps |= pieces[j].format->repack != NULL;
        w->format = pieces[0].format;
        k->p->places[planned->place].bytes = runs == 1 ? msgl__weight_bytes(w) : 0;
        if (runs == 1) continue;
        split(k, w, next, pieces, num);
        next += runs;
    }
    k->p->bytes = 0;
    msgl__plan_lay_out(k->p, 0);
}

const msgl_wformat *msgl__planned_format(const msgl_weight_formats *f, bool exact)
{
    return exact ? &f->kernels->formats[f->dtype] : f->converted;
}

int msgl__weights_keep(msgl_weight_plan *p, const msgl_checkpoint *c, msgl_err *err)
{
    keeping all = {.p = p, .c = c};
    if (!p->formats.keeps || p->formats.kernels->keep == NULL) return 0;
    if (!collect(&all)) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const size_t parts = choose_formats(&all);
    p->parts = msgl__reallocarray(NULL, parts + 1, sizeof *p->parts);
    const bool failed = all.failed || p->parts == NULL;
    if (!failed) {
        apply(&all);
    } else {
        msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    msgl__free(all.pieces);
    return failed ? MSGL_ENOMEM : p->status;
}
