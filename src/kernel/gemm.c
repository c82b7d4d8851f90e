// SPDX-License-Identifier: Apache-2.0
//
// The part of kernel family gemm that all ISA levels share. linear() is grouped() with one expert,
// heads() with an expert a head: all make a list of ranges (the rows of an expert) and of segments
// (such rows and a part of the expert's weight, which is of one format), prepare the rows as the
// formats need them, and run tasks of about TASK_US each over (segment, block of rows, some
// panels). A norm is part of the preparation; an addition and a gate are part of the product where
// the level's kernel can do that. Else an addition is done by the task that has just made the
// product, a gate when all products are there.
#include "kernel/gemm_codes.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "core/round.h"

enum {
    TASK_US = 30,              // long against the hand-out of a task, short against its result
    TASKS_PER_THREAD = 8,      // when there is enough for it, so that a slow core can do fewer
    READ_BYTES_PER_US = 16000, // what one core reads from memory, roughly
    PREPARE_INLINE = 32768,    // elements that the caller prepares alone: cheaper than a hand-out
    GATE_INLINE = 16384,       // the same, of gate and up values
    GATE_ELEMENTS = 16384,     // of gate and up per task
    PACK_BYTES = 1 << 20,      // of packed panels per task
    MAX_RUNS = 64,
};

// How rows of a call are prepared for some of the products that they are for.
typedef struct form {
    const msgl_gemm_micro *micro;   // one that takes such rows
    const msgl_column_order *order; // of their columns; NULL: as the call has them
    size_t row_bytes;
    char *a; // of the range's rows
} form;

// Rows of one expert.
typedef struct range {
    int first_prepare; // of the preparation, blocks of MSGL_GEMM_ROWS
    int expert, row, rows;
    size_t in, out; // elements to where the rows are, of the activations and of the result
    form *forms;    // [num_forms] of the expert's weight
    int num_forms;
} range;

// A range and a part of its expert's weight.
typedef struct segment {
    int first_task;
    const range *rows;
    const msgl_weight *w; // of one format
    const msgl_gemm_micro *micro;
    const form *form; // of its prepared rows
    int col;          // of the result, the first of w's
    size_t panel_bytes;
    int panels;       // of w, or of its gate when that is fused
    int task_panels;  // panels per task
    int panel_blocks; // tasks along n
} segment;

// The tasks of a product as one run of neighbours per thread, so that a kernel can fetch the panels
// that its thread will need next. Who has finished his own run helps with the others.
typedef struct runs {
    int num, tasks, each; // run i: tasks [i * each, (i + 1) * each), as far as there are any
    atomic_int next[MAX_RUNS];
} runs;

typedef struct plan {
    const msgl_gemm_level *level;
    bool prompts_only;
    const msgl_weight *weights; // of the experts
    const float *bias;          // [experts, n], or NULL
    const float *in, *norm;
    float norm_eps;
    bool gated, accumulate;
    msgl_activation activation;
    bool fused; // the gate or the addition is left to the kernel
    size_t ld_in, ld_out, ld_product;
    float *out;
    float *normed;  // [rows, k] when there is a norm
    float *ordered; // [rows, places] when some columns have an order: of one form after the other
    size_t places;  // of the longest order, or 0
    float *product; // out, or [rows, n] of scratch when it is gated or added afterwards
    form *forms;    // of all ranges
    int num_forms;
    int gate_rows; // rows per task of the gate
    range *ranges;
    int num_ranges;
    segment *segments;
    int num_segments;
    int row_block; // rows per task, a multiple of MSGL_GEMM_ROWS
    int alike;     // segments that are about as large: so many are shared out together
    runs *runs;
} plan;

size_t msgl__gemm_panels_size(int n, size_t panel_bytes)
{
    size_t bytes;
    if (n < 1) return 0;
    const int rc = msgl__size_mul((size_t)msgl__ceil_div(n, MSGL_GEMM_LANES), panel_bytes, &bytes);
    return rc == 0 ? bytes : 0;
}

size_t msgl__gemm_row_bytes_f32(int kpad)
{
    return ((size_t)kpad + 16) * sizeof(float);
}

size_t msgl__gemm_packed_size(const msgl_wformat *f, int n, int k)
{
    if (k < 1 || k > INT32_MAX - MSGL_GEMM_K_ALIGN) return 0;
    const size_t column = MSGL_GEMM_LANES * msgl__dtype_size(f->dtype);
    return msgl__gemm_panels_size(n, (size_t)msgl__gemm_kpad(k) * column);
}

// The last of num elements, `size` bytes each, whose first task is not behind `task`. An element
// begins with its first task, an int.
static const void *find(const void *list, size_t size, int num, int task)
{
    int lo = 0, hi = num, first;
    while (hi - lo > 1) {
        const int mid = lo + (hi - lo) / 2;
        memcpy(&first, (const char *)list + (size_t)mid * size, sizeof first);
        if (first <= task) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return (const char *)list + (size_t)lo * size;
}

// rows [rows, num] of columns in an order, zeros where it has none.
static void put_in_order(const msgl_column_order *order, const float *in, size_t ld_in, int rows,
                         float *out)
{
    const int32_t *columns = order->columns;
    for (int r = 0; r < rows; r++, in += ld_in, out += order->num) {
        for (int i = 0; i < order->num; i++) {
            const float v = in[columns[i] < 0 ? 0 : columns[i]];
            out[i] = columns[i] < 0 ? 0 : v;
        }
    }
}

// Up to MSGL_GEMM_ROWS rows, in all forms of their range.
static void prepare_task(void *arg, int task, int worker)
{
    (void)worker;
    const plan *p = arg;
    const range *s = find(p->ranges, sizeof *s, p->num_ranges, task);
    const int at = (task - s->first_prepare) * MSGL_GEMM_ROWS, left = s->rows - at;
    const int rows = left < MSGL_GEMM_ROWS ? left : MSGL_GEMM_ROWS, k = p->weights[s->expert].k;
    const size_t row = (size_t)s->row + (size_t)at;
    const float *in = p->in + s->in + (size_t)at * p->ld_in;
    size_t ld_in = p->ld_in;
    if (p->norm != NULL) {
        float *normed = p->normed + row * (size_t)k;
        for (int r = 0; r < rows; r++) {
            p->level->row_ops->rms_norm(in + (size_t)r * ld_in, p->norm, p->norm_eps,
                                        normed + (size_t)r * (size_t)k, k);
        }
        in = normed;
        ld_in = (size_t)k;
    }
    for (int i = 0; i < s->num_forms; i++) {
        const form *f = &s->forms[i];
        char *a = f->a + (size_t)at * f->row_bytes;
        if (f->order == NULL) {
            f->micro->prepare(in, ld_in, rows, k, a, f->row_bytes);
            continue;
        }
        float *ordered = p->ordered + row * p->places;
        put_in_order(f->order, in, ld_in, rows, ordered);
        f->micro->prepare(ordered, (size_t)f->order->num, rows, f->order->num, a, f->row_bytes);
    }
}

static int min(int a, int b)
{
    return a < b ? a : b;
}

// The next task of this worker's run, or of another's. The pool calls as often as there are tasks,
// so there is one.
static int claim(runs *r, int worker)
{
    for (int i = 0; i < r->num; i++) {
        const int run = (worker + i) % r->num, end = min((run + 1) * r->each, r->tasks);
        if (atomic_load_explicit(&r->next[run], memory_order_relaxed) >= end) continue;
        const int task = atomic_fetch_add_explicit(&r->next[run], 1, memory_order_relaxed);
        if (task < end) return task;
    }
    assert(!"more calls than tasks");
    return 0;
}

// Panels behind those of `task` that its thread will probably come to: up to the end of the run or
// of the block of rows.
static int panels_behind(const plan *p, const segment *s, int task, int panel_block)
{
    const int run_end = min((task / p->runs->each + 1) * p->runs->each, p->runs->tasks);
    const int tasks = min(run_end - 1 - task, s->panel_blocks - 1 - panel_block);
    return min((panel_block + 1 + tasks) * s->task_panels, s->panels) -
           min((panel_block + 1) * s->task_panels, s->panels);
}

// Where row `at` of a range's products goes: to the result itself, or on its way there.
static float *product_at(const plan *p, const range *r, int at)
{
    if (p->product != p->out) return p->product + ((size_t)r->row + (size_t)at) * p->ld_product;
    return p->out + r->out + (size_t)at * p->ld_out;
}

// k of w's panels.
static int padded_k(const msgl_weight *w)
{
    const int group = w->format->group, columns = msgl__gemm_columns(w->format, w->k);
    return group > 0 ? msgl__ceil_div(columns, group) * group : msgl__gemm_kpad(columns);
}

// Columns of the result that panels of a segment make.
static int result_columns(const plan *p, const segment *s)
{
    return p->fused && p->gated ? s->w->n / 2 : s->w->n;
}

static void product_task(void *arg, int ticket, int worker)
{
    (void)ticket;
    const plan *p = arg;
    const int task = claim(p->runs, worker);
    const segment *s = find(p->segments, sizeof *s, p->num_segments, task);
    const range *r = s->rows;
    const form *f = s->form;
    const int panel_block = (task - s->first_task) % s->panel_blocks;
    const int at = (task - s->first_task) / s->panel_blocks * p->row_block;
    const int panel = panel_block * s->task_panels, first = panel * MSGL_GEMM_LANES;
    const int col = s->col + first, cols = s->task_panels * MSGL_GEMM_LANES;
    const size_t n = (size_t)p->weights->n;
    const msgl_gemm_block b = {
        .format = s->w->format,
        .w = (const char *)s->w->data + (size_t)panel * s->panel_bytes,
        .panel_bytes = s->panel_bytes,
        .k = msgl__gemm_columns(s->w->format, s->w->k),
        .kpad = padded_k(s->w),
        .a = f->a + (size_t)at * f->row_bytes,
        .a_row_bytes = f->row_bytes,
        .rows = min(r->rows - at, p->row_block),
        .cols = min(result_columns(p, s) - first, cols),
        .bias = p->bias == NULL ? NULL : p->bias + (size_t)r->expert * n + col,
        .out = product_at(p, r, at) + col,
        .ld_out = p->ld_product,
        .add = p->fused && p->accumulate,
        .up = p->fused && p->gated ? (size_t)s->panels * s->panel_bytes : 0,
        .follow = panels_behind(p, s, task, panel_block),
    };
    s->micro->block(&b);
    for (int i = 0; p->accumulate && !p->fused && i < b.rows; i++) {
        float *out = p->out + r->out + ((size_t)at + (size_t)i) * p->ld_out + col;
        const float *from = b.out + (size_t)i * b.ld_out;
        for (int j = 0; j < b.cols; j++) out[j] += from[j];
    }
}

static void gate_task(void *arg, int task, int worker)
{
    (void)worker;
    const plan *p = arg;
    const range *last = &p->ranges[p->num_ranges - 1];
    const int first = task * p->gate_rows, rows = last->row + last->rows;
    for (int r = first; r < first + p->gate_rows && r < rows; r++) {
        p->level->row_ops->gate[p->activation](p->product + (size_t)r * p->ld_product,
                                               p->out + (size_t)r * p->ld_out, p->weights->n / 2);
    }
}

// How many rows a task has. Neither this nor the number of panels changes a result: a block's value
// at (row, feature) depends on that row and that feature only.
static int rows_of_task(const plan *p, int largest)
{
    int most = MSGL_GEMM_TASK_ROWS;
    for (int i = 0; i < p->num_forms; i++) {
        const form *f = &p->forms[i];
        most = min(most, (int)((size_t)f->micro->l2_kb * 1024 / f->row_bytes / 32 * 32));
    }
    if (most < 32) most = 32;
    const int rows = msgl__ceil_div(largest, msgl__ceil_div(largest, most)); // about equal
    return msgl__ceil_div(rows, 32) * 32;
}

static void cut_panels(const plan *p, segment *s, int threads, int largest)
{
    const int rows = min(largest, p->row_block);
    const int products = p->fused && p->gated ? 2 : 1; // per panel
    const double read_us = (double)s->panel_bytes * products / READ_BYTES_PER_US;
    const double math_us =
        (double)padded_k(s->w) * MSGL_GEMM_LANES * products * rows / (1e3 * s->micro->kmacs_per_us);
    const int wanted = (int)(TASK_US / (read_us > math_us ? read_us : math_us));
    const int fair =
        s->panels * msgl__ceil_div(largest, p->row_block) * p->alike / (threads * TASKS_PER_THREAD);
    // Kernels walk up to four panels at a time; fewer only when there are more threads than that.
    const int least = s->panels < 4 * threads ? 1 : 4;
    int n = wanted < fair ? wanted : fair;
    n = n < least ? least : n / least * least;
    s->task_panels = n < s->panels ? n : s->panels;
    s->panel_blocks = msgl__ceil_div(s->panels, s->task_panels);
}

static void gate_rows(const plan *p, msgl_exec *x, int total_rows)
{
    plan g = *p;
    const int n = p->weights->n;
    g.gate_rows = n < GATE_ELEMENTS ? GATE_ELEMENTS / n : 1;
    if ((size_t)total_rows * (size_t)n < GATE_INLINE) g.gate_rows = total_rows;
    msgl__pool_run(x->pool, msgl__ceil_div(total_rows, g.gate_rows), gate_task, &g);
}

// p's ranges hold expert, row, rows, in and out; the rest is filled in here.
static void run(plan *p, msgl_exec *x, int total_rows)
{
    const int threads = msgl__pool_threads(x->pool);
    int largest = 0, tasks = 0, prepares = 0;
    for (int i = 0; i < p->num_ranges; i++) {
        range *r = &p->ranges[i];
        largest = r->rows > largest ? r->rows : largest;
        r->first_prepare = prepares;
        prepares += msgl__ceil_div(r->rows, MSGL_GEMM_ROWS);
    }
    p->row_block = rows_of_task(p, largest);
    for (int i = 0; i < p->num_segments; i++) {
        segment *s = &p->segments[i];
        cut_panels(p, s, threads, largest);
        s->first_task = tasks;
        tasks += msgl__ceil_div(s->rows->rows, p->row_block) * s->panel_blocks;
    }
    if ((size_t)total_rows * (size_t)p->weights->k <= PREPARE_INLINE) {
        for (int i = 0; i < prepares; i++) prepare_task(p, i, 0);
    } else {
        msgl__pool_run(x->pool, prepares, prepare_task, p);
    }
    runs r = {.num = min(threads, MAX_RUNS), .tasks = tasks};
    r.each = msgl__ceil_div(tasks, r.num);
    for (int i = 0; i < r.num; i++) atomic_init(&r.next[i], i * r.each);
    p->runs = &r;
    msgl__pool_run(x->pool, tasks, product_task, p);
    if (p->gated && !p->fused) gate_rows(p, x, total_rows);
}

static plan make_plan(const msgl_gemm_level *level, const msgl_exec *x, const msgl_weight *w)
{
    return (plan){.level = level, .prompts_only = x->prompts_only, .weights = w, .alike = 1};
}

static const msgl_gemm_micro *micro_of(const plan *p, const msgl_weight *w)
{
    const msgl_gemm_level *l = p->level;
    const bool prompts = p->prompts_only && w->format->id == MSGL_W_F32 && l->prompts_f32 != NULL;
    return prompts ? l->prompts_f32 : &l->micro[w->format->id];
}

static void *scratch(msgl_exec *x, size_t bytes)
{
    void *p = msgl__arena_alloc(x->scratch, bytes);
    if (p == NULL && x->status == 0) x->status = MSGL_ENOMEM;
    return p;
}

static int num_parts(const msgl_weight *w)
{
    return w->num_parts > 0 ? w->num_parts : 1;
}

static const msgl_weight *part_of(const msgl_weight *w, int i)
{
    return w->num_parts > 0 ? &w->parts[i] : w;
}

// Which of the range's forms this weight multiplies, a new one if none; NULL: no scratch. A range's
// forms are next to each other, as one range is done after the other.
static const form *form_of(plan *p, msgl_exec *x, range *r, const msgl_weight *w)
{
    const msgl_gemm_micro *m = micro_of(p, w);
    const msgl_column_order *order = w->format->order;
    for (int i = 0; i < r->num_forms; i++) {
        const form *f = &r->forms[i];
        if (f->micro->prepare == m->prepare && f->order == order) return f;
    }
    form *f = &p->forms[p->num_forms++];
    *f = (form){.micro = m, .order = order, .row_bytes = m->row_bytes(padded_k(w))};
    f->a = scratch(x, (size_t)r->rows * f->row_bytes);
    if (r->num_forms++ == 0) r->forms = f;
    if (order != NULL && (size_t)order->num > p->places) p->places = (size_t)order->num;
    return f->a != NULL ? f : NULL;
}

// The kernel gates (by silu) or adds itself if that of every weight can; a gate's columns have to
// be whole panels of one weight.
static void choose_fused(plan *p, int m)
{
    const int n = p->weights->n;
    p->fused = p->gated
                   ? p->bias == NULL && p->activation == MSGL_SILU && n / 2 % MSGL_GEMM_LANES == 0
                   : p->accumulate;
    for (int i = 0; i < p->num_segments && p->fused; i++) {
        const segment *s = &p->segments[i];
        const int from = s->micro->gate_rows;
        p->fused = p->gated ? s->w->n == n && from > 0 && m >= from : s->micro->adds;
    }
    for (int i = 0; i < p->num_segments && p->fused && p->gated; i++) p->segments[i].panels /= 2;
}

// A segment for each range and part, and the rooms of prepared rows.
static bool make_segments(plan *p, msgl_exec *x)
{
    int num = 0;
    for (int i = 0; i < p->num_ranges; i++) num += num_parts(&p->weights[p->ranges[i].expert]);
    p->segments = scratch(x, (size_t)num * sizeof *p->segments);
    p->forms = scratch(x, (size_t)num * sizeof *p->forms);
    if (p->segments == NULL || p->forms == NULL) return false;
    for (int i = 0; i < p->num_ranges; i++) {
        const msgl_weight *whole = &p->weights[p->ranges[i].expert];
        for (int j = 0, col = 0; j < num_parts(whole); j++) {
            const msgl_weight *w = part_of(whole, j);
            const form *f = form_of(p, x, &p->ranges[i], w);
            if (f == NULL) return false;
            p->segments[p->num_segments++] =
                (segment){.rows = &p->ranges[i],
                          .w = w,
                          .micro = micro_of(p, w),
                          .form = f,
                          .col = col,
                          .panel_bytes = msgl__gemm_panel_bytes(w),
                          .panels = msgl__ceil_div(w->n, MSGL_GEMM_LANES)};
            col += w->n;
        }
    }
    return true;
}

// Of the ranges' weights, which adapters have of several sizes.
static int most_columns(const plan *p)
{
    int n = 0;
    for (int i = 0; i < p->num_ranges; i++) {
        const int own = p->weights[p->ranges[i].expert].n;
        n = own > n ? own : n;
    }
    return n;
}

// Takes the scratch of m rows: segments, normed and prepared rows, products on their way.
static bool take_scratch(plan *p, msgl_exec *x, int m)
{
    const size_t rows = (size_t)m, n = (size_t)most_columns(p), k = (size_t)p->weights->k;
    if (!make_segments(p, x)) return false;
    choose_fused(p, m);
    p->product = p->out;
    p->ld_product = p->ld_out;
    if (p->norm != NULL) p->normed = scratch(x, rows * k * sizeof(float));
    if (p->places > 0) p->ordered = scratch(x, rows * p->places * sizeof(float));
    if ((p->gated || p->accumulate) && !p->fused) {
        p->product = scratch(x, rows * n * sizeof(float));
        p->ld_product = n;
    }
    return (p->norm == NULL || p->normed != NULL) && (p->places == 0 || p->ordered != NULL) &&
           p->product != NULL;
}

// What rows of a call with several weights take at most, of the weight that takes most.
typedef struct room {
    size_t parts;
    size_t prepared; // elements of f32 of a row, at any level
    size_t places;   // of the longest order
} room;

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

// k is padded to a group of at most 64; then see msgl_gemm_micro.row_bytes.
static size_t prepared_floats(const msgl_wformat *f, size_t columns)
{
    const size_t floats = columns + 64 + 64;
    return f->id == MSGL_W_F32 ? floats + floats / 2 : floats;
}

// Rows are prepared once for each format and order of w's parts.
static void add_room(room *r, const msgl_weight *w)
{
    const int parts = num_parts(w);
    size_t prepared = 0;
    for (int i = 0; i < parts; i++) {
        const msgl_wformat *f = part_of(w, i)->format;
        const size_t columns = (size_t)msgl__gemm_columns(f, w->k);
        bool known = false;
        for (int j = 0; j < i && !known; j++) {
            const msgl_wformat *other = part_of(w, j)->format;
            known = other->id == f->id && other->order == f->order;
        }
        if (!known) prepared += prepared_floats(f, columns);
        if (f->order != NULL) r->places = larger(r->places, columns);
    }
    r->prepared = larger(r->prepared, prepared);
    r->parts = larger(r->parts, (size_t)parts);
}

// What take_scratch and a list of ranges take at most at any level, for m rows in `ranges` ranges.
static size_t rows_scratch(const msgl_weight *w, int num_weights, int m, int ranges, bool norm,
                           bool product)
{
    room r = {0};
    for (int i = 0; i < num_weights; i++) add_room(&r, &w[i]);
    const size_t more = (norm ? (size_t)w->k : 0) + (product ? (size_t)w->n : 0);
    // Each form's rows begin at 64 bytes.
    const size_t part = sizeof(segment) + sizeof(form) + 64;
    if (m <= 0) return 0;
    return (size_t)m * (r.prepared + r.places + more) * sizeof(float) +
           (size_t)ranges * (sizeof(range) + r.parts * part) + (size_t)6 * 64;
}

void msgl__gemm_linear(const msgl_gemm_level *level, msgl_exec *x, const msgl_linear_call *c)
{
    if (c->m <= 0) return;
    plan p = make_plan(level, x, c->w);
    p.bias = c->bias;
    p.in = c->in;
    p.ld_in = c->ld_in;
    p.norm = c->norm;
    p.norm_eps = c->norm_eps;
    p.gated = c->gated;
    p.activation = c->activation;
    p.accumulate = c->accumulate;
    p.out = c->out;
    p.ld_out = c->ld_out;
    // The products are done when this returns, so the scratch is free again.
    const size_t mark = x->scratch->used;
    range r = {.rows = c->m}; // in and out begin with it
    p.ranges = &r;
    p.num_ranges = 1;
    if (take_scratch(&p, x, c->m)) run(&p, x, c->m);
    x->scratch->used = mark;
}

void msgl__gemm_grouped(const msgl_gemm_level *level, msgl_exec *x, const msgl_grouped_call *c)
{
    const int begin = c->offsets[0], m = c->offsets[c->num_experts] - begin;
    if (m <= 0) return;
    plan p = make_plan(level, x, c->experts);
    p.in = (const float *)c->in + (size_t)begin * c->ld_in;
    p.ld_in = c->ld_in;
    p.gated = c->gated;
    p.activation = c->activation;
    p.bias = c->bias;
    p.out = (float *)c->out + (size_t)begin * c->ld_out;
    p.ld_out = c->ld_out;
    const size_t mark = x->scratch->used;
    p.ranges = scratch(x, (size_t)(m < c->num_experts ? m : c->num_experts) * sizeof *p.ranges);
    for (int e = 0; e < c->num_experts && p.ranges != NULL; e++) {
        const int first = c->offsets[e] - begin, rows = c->offsets[e + 1] - begin - first;
        if (rows == 0) continue;
        p.ranges[p.num_ranges++] = (range){.expert = e,
                                           .row = first,
                                           .rows = rows,
                                           .in = (size_t)first * p.ld_in,
                                           .out = (size_t)first * p.ld_out};
    }
    if (p.ranges != NULL && take_scratch(&p, x, m)) run(&p, x, m);
    x->scratch->used = mark;
}

void msgl__gemm_heads(const msgl_gemm_level *level, msgl_exec *x, const msgl_heads_call *c)
{
    if (c->m <= 0) return;
    plan p = make_plan(level, x, c->w);
    p.in = c->in;
    p.ld_in = c->ld_in;
    p.out = c->out;
    p.ld_out = c->ld_out;
    const size_t mark = x->scratch->used;
    p.ranges = scratch(x, (size_t)c->heads * sizeof *p.ranges);
    for (int h = 0; h < c->heads && p.ranges != NULL; h++) {
        p.ranges[p.num_ranges++] = (range){.expert = h,
                                           .row = h * c->m,
                                           .rows = c->m,
                                           .in = (size_t)h * c->head_in,
                                           .out = (size_t)h * c->head_out};
    }
    if (p.ranges != NULL && take_scratch(&p, x, c->m * c->heads)) run(&p, x, c->m * c->heads);
    x->scratch->used = mark;
}

// Rows of adapters that are multiplied at a time: bounds what the second product takes on its way,
// for parts of so many columns.
enum { LORA_ROWS = 256, LORA_LEAST = 16, LORA_ELEMENTS = 4 << 20 };

static int lora_rows(int parts, int n)
{
    const int fit = (int)((size_t)LORA_ELEMENTS / ((size_t)parts * (size_t)n));
    return fit > LORA_ROWS ? LORA_ROWS : fit < LORA_LEAST ? LORA_LEAST : fit;
}

// What some runs are in all.
static msgl_lora_size lora_size(const msgl_lora_run *some, int n)
{
    msgl_lora_size s = {.n = 1, .parts = 1};
    for (int i = 0; i < n; i++) {
        const msgl_lora_run *r = &some[i];
        s.rows += r->rows;
        s.ranks = r->a->n > s.ranks ? r->a->n : s.ranks;
        s.parts = r->num_parts > s.parts ? r->num_parts : s.parts;
        for (int j = 0; j < r->num_parts; j++)
            s.n = r->parts[j].b->n > s.n ? r->parts[j].b->n : s.n;
    }
    return s;
}

// The ranges of the first product, [size.rows, size.ranks], and of the second, to which each part
// is a range of its own; how many rows these have.
static int lora_ranges(const msgl_lora_call *c, const msgl_lora_run *some, int n, size_t ld,
                       msgl_weight *w, plan *a, plan *b)
{
    int b_rows = 0;
    for (int i = 0, row = 0; i < n; row += some[i].rows, i++) {
        const msgl_lora_run *r = &some[i];
        const size_t at = (size_t)row * ld;
        w[i] = *r->a;
        a->ranges[a->num_ranges++] = (range){
            .expert = i, .row = row, .rows = r->rows, .in = (size_t)r->row * c->ld_in, .out = at};
        for (int j = 0; j < r->num_parts; j++, b_rows += r->rows) {
            const msgl_lora_part *part = &r->parts[j];
            w[n + b->num_ranges] = *part->b;
            b->ranges[b->num_ranges] =
                (range){.expert = b->num_ranges,
                        .row = b_rows,
                        .rows = r->rows,
                        .in = at + (size_t)part->at,
                        .out = (size_t)r->row * c->ld_out + (size_t)part->col};
            b->num_ranges++;
        }
    }
    return b_rows;
}

static void lora_products(const msgl_gemm_level *level, msgl_exec *x, const msgl_lora_call *c,
                          const msgl_lora_run *some, int n)
{
    const msgl_lora_size s = lora_size(some, n);
    const size_t ld = (size_t)s.ranks, num = (size_t)n * (1 + (size_t)s.parts);
    msgl_weight *w = scratch(x, num * sizeof *w);
    range *ranges = scratch(x, num * sizeof *ranges);
    float *h = scratch(x, (size_t)s.rows * ld * sizeof *h);
    if (w == NULL || ranges == NULL || h == NULL) return;
    plan a = make_plan(level, x, w), b = make_plan(level, x, w + n);
    a.in = c->in, a.ld_in = c->ld_in;
    a.norm = c->norm, a.norm_eps = c->norm_eps;
    a.out = h, a.ld_out = ld;
    a.ranges = ranges;
    b.in = h, b.ld_in = ld;
    b.out = c->out, b.ld_out = c->ld_out;
    b.accumulate = true;
    b.ranges = ranges + n;
    const int b_rows = lora_ranges(c, some, n, ld, w, &a, &b);
    a.alike = n, b.alike = b.num_ranges;
    if (take_scratch(&a, x, s.rows)) run(&a, x, s.rows);
    if (b_rows > 0 && x->status == 0 && take_scratch(&b, x, b_rows)) run(&b, x, b_rows);
}

void msgl__gemm_lora(const msgl_gemm_level *level, msgl_exec *x, const msgl_lora_call *c)
{
    const msgl_lora_size all = lora_size(c->runs, c->num_runs);
    const int most = lora_rows(all.parts, all.n);
    msgl_lora_run some[LORA_ROWS];
    int num = 0, rows = 0;
    for (int i = 0, done = 0; i < c->num_runs;) {
        const msgl_lora_run *r = &c->runs[i];
        const int n = min(r->rows - done, most - rows);
        some[num] = *r;
        some[num].row += done;
        some[num++].rows = n;
        rows += n;
        done += n;
        if (done == r->rows) done = 0, i++;
        if (rows < most && i < c->num_runs) continue;
        const size_t mark = x->scratch->used;
        lora_products(level, x, c, some, num);
        x->scratch->used = mark;
        num = rows = 0;
    }
}

size_t msgl__gemm_lora_scratch(const msgl_lora_size *s, msgl_dtype act)
{
    (void)act;
    enum { EDGES = 16 * 64 };
    const size_t rows = (size_t)min(s->rows, LORA_ROWS), parts = (size_t)s->parts;
    const size_t least = (size_t)LORA_LEAST * parts * (size_t)s->n;
    const size_t product = least > LORA_ELEMENTS ? least : LORA_ELEMENTS;
    // A normed row is k floats, a product's ranks; prepared ones are half as much again.
    const size_t k = (size_t)s->k, ranks = (size_t)s->ranks;
    const size_t prepared = k + ranks + (k + ranks) / 2 * 3 + 192 * (1 + parts);
    // A row may be a run of its own.
    const size_t each = sizeof(msgl_weight) + sizeof(range) + sizeof(segment) + sizeof(form) + 64;
    return (rows * prepared + product) * sizeof(float) + rows * (1 + parts) * each + EDGES;
}

size_t msgl__gemm_linear_scratch(const msgl_linear_call *c, msgl_dtype act)
{
    (void)act;
    return rows_scratch(c->w, 1, c->m, 1, c->norm != NULL, c->gated || c->accumulate);
}

size_t msgl__gemm_grouped_scratch(const msgl_grouped_call *c, msgl_dtype act)
{
    (void)act;
    const int ranges = c->rows < c->num_experts ? c->rows : c->num_experts;
    return rows_scratch(c->experts, c->num_experts, c->rows, ranges, false, c->gated);
}

size_t msgl__gemm_heads_scratch(const msgl_heads_call *c, msgl_dtype act)
{
    (void)act;
    return rows_scratch(c->w, c->heads, c->m * c->heads, c->heads, false, false);
}

typedef struct packing {
    msgl_gemm_pack_fn fn;
    msgl_weight *w;
    int row, end; // rows of W to write
    const char *src;
    size_t src_row; // bytes
    msgl_dtype src_dtype;
    size_t ld_src;
    int task_panels;
} packing;

static void pack_task(void *arg, int task, int worker)
{
    (void)worker;
    const packing *p = arg;
    const size_t bytes = msgl__gemm_panel_bytes(p->w);
    const int first = p->row / MSGL_GEMM_LANES + task * p->task_panels;
    for (int i = first; i < first + p->task_panels; i++) {
        const int begin = i * MSGL_GEMM_LANES > p->row ? i * MSGL_GEMM_LANES : p->row;
        const int stop = (i + 1) * MSGL_GEMM_LANES < p->end ? (i + 1) * MSGL_GEMM_LANES : p->end;
        if (begin >= stop) return;
        p->fn((char *)p->w->data + (size_t)i * bytes, p->w->format, p->w->k,
              begin % MSGL_GEMM_LANES, stop - begin, p->src + (size_t)(begin - p->row) * p->src_row,
              p->src_dtype, p->ld_src);
    }
}

void msgl__gemm_pack(msgl_gemm_pack_fn fn, msgl_exec *x, msgl_weight *w, int row, int rows,
                     const void *src, size_t src_row, msgl_dtype src_dtype, size_t ld_src)
{
    if (rows <= 0) return;
    const size_t per_task = PACK_BYTES / msgl__gemm_panel_bytes(w);
    packing p = {.fn = fn,
                 .w = w,
                 .row = row,
                 .end = row + rows,
                 .src = src,
                 .src_row = src_row,
                 .src_dtype = src_dtype,
                 .ld_src = ld_src,
                 .task_panels = per_task < 1 ? 1 : (int)per_task};
    const int panels = (row + rows - 1) / MSGL_GEMM_LANES - row / MSGL_GEMM_LANES + 1;
    msgl__pool_run(x->pool, msgl__ceil_div(panels, p.task_panels), pack_task, &p);
}

typedef struct gathering {
    const msgl_weight *w;
    const int32_t *ids;
    float *out;
    bool keeps; // rows that w does not have
} gathering;

static void lane_f32(const msgl_wformat *f, const char *panel, int lane, int k, float *out)
{
    (void)f;
    const float *p = (const float *)panel + lane;
    for (int i = 0; i < k; i++) out[i] = p[i * MSGL_GEMM_LANES];
}

static void lane_f16(const msgl_wformat *f, const char *panel, int lane, int k, float *out)
{
    (void)f;
    const uint16_t *p = (const uint16_t *)panel + lane;
    for (int i = 0; i < k; i++) out[i] = msgl__f16_to_f32(p[i * MSGL_GEMM_LANES]);
}

static void lane_bf16(const msgl_wformat *f, const char *panel, int lane, int k, float *out)
{
    (void)f;
    const uint16_t *p = (const uint16_t *)panel + 2 * lane;
    for (int i = 0; i < k; i++) {
        out[i] = msgl__bf16_to_f32(p[(i >> 1) * 2 * MSGL_GEMM_LANES + (i & 1)]);
    }
}

// The feature in this lane of a panel: out[0, k).
typedef void (*lane_fn)(const msgl_wformat *f, const char *panel, int lane, int k, float *out);
static const lane_fn LANES[MSGL_WFORMATS] = {
    [MSGL_W_F32] = lane_f32,          [MSGL_W_F16] = lane_f16,
    [MSGL_W_BF16] = lane_bf16,        [MSGL_W_INT8] = msgl__int8_lane,
    [MSGL_W_CODES] = msgl__kept_lane, [MSGL_W_BLOCKS] = msgl__kept_lane,
};

static void gather_task(void *arg, int task, int worker)
{
    (void)worker;
    const gathering *g = arg;
    const msgl_weight *w = g->w;
    const int row = g->ids[task] - w->first, lane = row % MSGL_GEMM_LANES;
    float *out = g->out + (size_t)task * (size_t)w->k;
    if (row < 0 || row >= w->n) {
        if (!g->keeps) memset(out, 0, (size_t)w->k * sizeof *out);
        return;
    }
    const char *panel =
        (const char *)w->data + (size_t)(row / MSGL_GEMM_LANES) * msgl__gemm_panel_bytes(w);
    LANES[w->format->id](w->format, panel, lane, w->k, out);
}

void msgl__gemm_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, void *out)
{
    gathering g = {w, ids, out, false};
    msgl__pool_run(x->pool, rows, gather_task, &g);
}

void msgl__gemm_gather_own(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                           void *out)
{
    gathering g = {w, ids, out, true};
    msgl__pool_run(x->pool, rows, gather_task, &g);
}
