// SPDX-License-Identifier: Apache-2.0
//
// The part of kernel family gemm that all ISA levels share. linear() is grouped() with one expert,
// heads() with an expert a head: all make a list of segments (an expert and its rows), prepare the
// rows, and run tasks of about TASK_US each over (segment, block of rows, some panels). A norm is
// part of the preparation; an addition and a gate are part of the product where the level's kernel
// can do that. Else an addition is done by the task that has just made the product, a gate when all
// products are there.
#include "kernel/gemm_int8.h"

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

typedef struct segment {
    int expert, row, rows;
    size_t in, out;    // elements to where its rows are, of the activations and of the result
    int first_task;    // of the products
    int first_prepare; // of the preparation, blocks of MSGL_GEMM_ROWS
} segment;

// The tasks of a product as one run of neighbours per thread, so that a kernel can fetch the panels
// that its thread will need next. Who has finished his own run helps with the others.
typedef struct runs {
    int num, tasks, each; // run i: tasks [i * each, (i + 1) * each), as far as there are any
    atomic_int next[MAX_RUNS];
} runs;

typedef struct plan {
    const msgl_gemm_micro *micro;
    const msgl_row_ops *row_ops;
    const msgl_weight *weights;
    const float *bias; // [segments' experts, n], or NULL
    const float *in, *norm;
    float norm_eps;
    bool gated, accumulate;
    msgl_activation activation;
    bool fused; // the gate or the addition is left to the kernel
    size_t ld_in, ld_out, ld_product, a_row_bytes, panel_bytes;
    float *out;
    float *normed;  // [rows, k] when there is a norm
    float *product; // out, or [rows, n] of scratch when it is gated or added afterwards
    char *a;
    int gate_rows; // rows per task of the gate
    const segment *segments;
    int num_segments, kpad;
    int row_block;    // rows per task, a multiple of MSGL_GEMM_ROWS
    int panels;       // of one weight, or of its gate when that is fused
    int task_panels;  // panels per task
    int panel_blocks; // tasks along n
    runs *runs;
} plan;

size_t msgl__gemm_panels_size(int n, size_t panel_bytes)
{
    size_t bytes;
    if (n < 1) return 0;
    const int rc = msgl__size_mul((size_t)msgl__ceil_div(n, MSGL_GEMM_LANES), panel_bytes, &bytes);
    return rc == 0 ? bytes : 0;
}

size_t msgl__gemm_packed_size(const msgl_wformat *f, int n, int k)
{
    if (k < 1 || k > INT32_MAX - MSGL_GEMM_K_ALIGN) return 0;
    const size_t column = MSGL_GEMM_LANES * msgl__dtype_size(f->dtype);
    return msgl__gemm_panels_size(n, (size_t)msgl__gemm_kpad(k) * column);
}

// The place of task `t` in a list ordered by first_task (offset 0) or first_prepare.
static const segment *find(const plan *p, int t, int prepare)
{
    int lo = 0, hi = p->num_segments;
    while (hi - lo > 1) {
        const int mid = lo + (hi - lo) / 2;
        const segment *s = &p->segments[mid];
        if ((prepare ? s->first_prepare : s->first_task) <= t) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return &p->segments[lo];
}

static void prepare_task(void *arg, int task, int worker)
{
    (void)worker;
    const plan *p = arg;
    const segment *s = find(p, task, 1);
    const int at = (task - s->first_prepare) * MSGL_GEMM_ROWS, left = s->rows - at;
    const int rows = left < MSGL_GEMM_ROWS ? left : MSGL_GEMM_ROWS, k = p->weights->k;
    const size_t row = (size_t)s->row + (size_t)at;
    const float *in = p->in + s->in + (size_t)at * p->ld_in;
    size_t ld_in = p->ld_in;
    if (p->norm != NULL) {
        float *normed = p->normed + row * (size_t)k;
        for (int r = 0; r < rows; r++) {
            p->row_ops->rms_norm(in + (size_t)r * ld_in, p->norm, p->norm_eps,
                                 normed + (size_t)r * (size_t)k, k);
        }
        in = normed;
        ld_in = (size_t)k;
    }
    p->micro->prepare(in, ld_in, rows, k, p->a + row * p->a_row_bytes, p->a_row_bytes);
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
static int panels_behind(const plan *p, int task, int panel_block)
{
    const int run_end = min((task / p->runs->each + 1) * p->runs->each, p->runs->tasks);
    const int tasks = min(run_end - 1 - task, p->panel_blocks - 1 - panel_block);
    return min((panel_block + 1 + tasks) * p->task_panels, p->panels) -
           min((panel_block + 1) * p->task_panels, p->panels);
}

// Where row `at` of a segment's products goes: to the result itself, or on its way there.
static float *product_at(const plan *p, const segment *s, int at)
{
    if (p->product != p->out) return p->product + ((size_t)s->row + (size_t)at) * p->ld_product;
    return p->out + s->out + (size_t)at * p->ld_out;
}

static void product_task(void *arg, int ticket, int worker)
{
    (void)ticket;
    const plan *p = arg;
    const int task = claim(p->runs, worker);
    const segment *s = find(p, task, 0);
    const msgl_weight *w = &p->weights[s->expert];
    const int panel_block = (task - s->first_task) % p->panel_blocks;
    const int at = (task - s->first_task) / p->panel_blocks * p->row_block;
    const int panel = panel_block * p->task_panels, n = p->fused && p->gated ? w->n / 2 : w->n;
    const int col = panel * MSGL_GEMM_LANES, cols = p->task_panels * MSGL_GEMM_LANES;
    const size_t row = (size_t)s->row + (size_t)at;
    const msgl_gemm_block b = {
        .w = (const char *)w->data + (size_t)panel * p->panel_bytes,
        .panel_bytes = p->panel_bytes,
        .kpad = p->kpad,
        .a = p->a + row * p->a_row_bytes,
        .a_row_bytes = p->a_row_bytes,
        .rows = min(s->rows - at, p->row_block),
        .cols = min(n - col, cols),
        .bias = p->bias == NULL ? NULL : p->bias + (size_t)s->expert * (size_t)w->n + col,
        .out = product_at(p, s, at) + col,
        .ld_out = p->ld_product,
        .add = p->fused && p->accumulate,
        .up = p->fused && p->gated ? (size_t)p->panels * p->panel_bytes : 0,
        .follow = panels_behind(p, task, panel_block),
    };
    p->micro->block(&b);
    for (int r = 0; p->accumulate && !p->fused && r < b.rows; r++) {
        float *out = p->out + s->out + ((size_t)at + (size_t)r) * p->ld_out + col;
        const float *from = b.out + (size_t)r * b.ld_out;
        for (int i = 0; i < b.cols; i++) out[i] += from[i];
    }
}

static void gate_task(void *arg, int task, int worker)
{
    (void)worker;
    const plan *p = arg;
    const segment *last = &p->segments[p->num_segments - 1];
    const int first = task * p->gate_rows, rows = last->row + last->rows;
    for (int r = first; r < first + p->gate_rows && r < rows; r++) {
        p->row_ops->gate[p->activation](p->product + (size_t)r * p->ld_product,
                                        p->out + (size_t)r * p->ld_out, p->weights->n / 2);
    }
}

// How rows and panels are cut. None of this changes a result: a block's value at (row, feature)
// depends on that row and that feature only.
static void split(plan *p, int threads, int largest)
{
    const size_t fit = (size_t)p->micro->l2_kb * 1024 / p->a_row_bytes / 32 * 32;
    const int most = fit < 32 ? 32 : fit > 512 ? 512 : (int)fit;
    const int rows =
        msgl__ceil_div(largest, msgl__ceil_div(largest, most)); // blocks of about equal size
    p->row_block = msgl__ceil_div(rows, 32) * 32;
    const int products = p->fused && p->gated ? 2 : 1; // per panel
    const double read_us = (double)p->panel_bytes * products / READ_BYTES_PER_US;
    const double math_us =
        (double)p->kpad * MSGL_GEMM_LANES * products * rows / (1e3 * p->micro->kmacs_per_us);
    const int wanted = (int)(TASK_US / (read_us > math_us ? read_us : math_us));
    const int fair =
        p->panels * msgl__ceil_div(largest, p->row_block) / (threads * TASKS_PER_THREAD);
    // Kernels walk up to four panels at a time; fewer only when there are more threads than that.
    const int least = p->panels < 4 * threads ? 1 : 4;
    int n = wanted < fair ? wanted : fair;
    n = n < least ? least : n / least * least;
    p->task_panels = n < p->panels ? n : p->panels;
    p->panel_blocks = msgl__ceil_div(p->panels, p->task_panels);
}

static void gate_rows(const plan *p, msgl_exec *x, int total_rows)
{
    plan g = *p;
    const int n = p->weights->n;
    g.gate_rows = n < GATE_ELEMENTS ? GATE_ELEMENTS / n : 1;
    if ((size_t)total_rows * (size_t)n < GATE_INLINE) g.gate_rows = total_rows;
    msgl__pool_run(x->pool, msgl__ceil_div(total_rows, g.gate_rows), gate_task, &g);
}

// `s` holds expert, row and rows of p->num_segments segments; the rest is filled in here.
static void run(plan *p, msgl_exec *x, segment *s, int total_rows)
{
    const int threads = msgl__pool_threads(x->pool);
    int largest = 0, tasks = 0, prepares = 0;
    for (int i = 0; i < p->num_segments; i++) largest = s[i].rows > largest ? s[i].rows : largest;
    p->segments = s;
    split(p, threads, largest);
    for (int i = 0; i < p->num_segments; i++) {
        s[i].first_task = tasks;
        s[i].first_prepare = prepares;
        tasks += msgl__ceil_div(s[i].rows, p->row_block) * p->panel_blocks;
        prepares += msgl__ceil_div(s[i].rows, MSGL_GEMM_ROWS);
    }
    if ((size_t)total_rows * (size_t)p->kpad <= PREPARE_INLINE) {
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

// k of w's panels.
static int padded_k(const msgl_weight *w)
{
    const int group = w->format->group;
    return group > 0 ? msgl__ceil_div(w->k, group) * group : msgl__gemm_kpad(w->k);
}

static size_t a_row_bytes(const msgl_gemm_micro *micro, const msgl_weight *w)
{
    const size_t elements = (size_t)(padded_k(w) + micro->a_pad) * (size_t)micro->a_size;
    return elements + (w->format->group > 0 ? msgl__int8_heads_bytes(w->k) : 0);
}

static plan make_plan(const msgl_gemm_level *level, const msgl_weight *w)
{
    const msgl_gemm_micro *m = &level->micro[w->format->id];
    return (plan){
        .micro = m,
        .row_ops = level->row_ops,
        .weights = w,
        .kpad = padded_k(w),
        .panels = msgl__ceil_div(w->n, MSGL_GEMM_LANES),
        .a_row_bytes = a_row_bytes(m, w),
        .panel_bytes = msgl__gemm_panel_bytes(w),
    };
}

static void *scratch(msgl_exec *x, size_t bytes)
{
    void *p = msgl__arena_alloc(x->scratch, bytes);
    if (p == NULL && x->status == 0) x->status = MSGL_ENOMEM;
    return p;
}

// Whether the kernel gates (by silu) or adds itself; a gate's columns have to be whole panels.
static void choose_fused(plan *p, int m)
{
    const int n = p->weights->n, from = p->micro->gate_rows;
    if (p->gated) {
        p->fused = from > 0 && m >= from && p->bias == NULL && p->activation == MSGL_SILU &&
                   n / 2 % MSGL_GEMM_LANES == 0;
        if (p->fused) p->panels /= 2;
    } else {
        p->fused = p->accumulate && p->micro->adds;
    }
}

// Takes the scratch of m rows: normed and prepared rows, products on their way.
static bool take_scratch(plan *p, msgl_exec *x, int m)
{
    const size_t rows = (size_t)m, n = (size_t)p->weights->n, k = (size_t)p->weights->k;
    choose_fused(p, m);
    p->product = p->out;
    p->ld_product = p->ld_out;
    p->a = scratch(x, rows * p->a_row_bytes);
    if (p->norm != NULL) p->normed = scratch(x, rows * k * sizeof(float));
    if ((p->gated || p->accumulate) && !p->fused) {
        p->product = scratch(x, rows * n * sizeof(float));
        p->ld_product = n;
    }
    return p->a != NULL && (p->norm == NULL || p->normed != NULL) && p->product != NULL;
}

// What take_scratch takes at most at any level.
static size_t rows_scratch(const msgl_weight *w, int m, bool norm, bool product)
{
    // The widest prepared row is f32 with 16 elements of padding; one of int8, at most half as
    // wide, has room for its heads there.
    const size_t prepared = (size_t)padded_k(w) + 16;
    const size_t more = (norm ? (size_t)w->k : 0) + (product ? (size_t)w->n : 0);
    return m <= 0 ? 0 : (size_t)m * (prepared + more) * sizeof(float) + 3 * 64;
}

void msgl__gemm_linear(const msgl_gemm_level *level, msgl_exec *x, const msgl_linear_call *c)
{
    if (c->m <= 0) return;
    plan p = make_plan(level, c->w);
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
    segment s = {.rows = c->m}; // in and out begin with it
    p.num_segments = 1;
    if (take_scratch(&p, x, c->m)) run(&p, x, &s, c->m);
    x->scratch->used = mark;
}

void msgl__gemm_grouped(const msgl_gemm_level *level, msgl_exec *x, const msgl_grouped_call *c)
{
    const int begin = c->offsets[0], m = c->offsets[c->num_experts] - begin;
    if (m <= 0) return;
    plan p = make_plan(level, c->experts);
    p.in = (const float *)c->in + (size_t)begin * c->ld_in;
    p.ld_in = c->ld_in;
    p.gated = c->gated;
    p.activation = c->activation;
    p.bias = c->bias;
    p.out = (float *)c->out + (size_t)begin * c->ld_out;
    p.ld_out = c->ld_out;
    const size_t mark = x->scratch->used;
    segment *s = scratch(x, (size_t)(m < c->num_experts ? m : c->num_experts) * sizeof *s);
    if (s != NULL && take_scratch(&p, x, m)) {
        for (int e = 0; e < c->num_experts; e++) {
            const int first = c->offsets[e] - begin, rows = c->offsets[e + 1] - begin - first;
            if (rows > 0) {
                s[p.num_segments++] = (segment){.expert = e,
                                                .row = first,
                                                .rows = rows,
                                                .in = (size_t)first * p.ld_in,
                                                .out = (size_t)first * p.ld_out};
            }
        }
        run(&p, x, s, m);
    }
    x->scratch->used = mark;
}

void msgl__gemm_heads(const msgl_gemm_level *level, msgl_exec *x, const msgl_heads_call *c)
{
    if (c->m <= 0) return;
    plan p = make_plan(level, c->w);
    p.in = c->in;
    p.ld_in = c->ld_in;
    p.out = c->out;
    p.ld_out = c->ld_out;
    const size_t mark = x->scratch->used;
    segment *s = scratch(x, (size_t)c->heads * sizeof *s);
    if (s != NULL && take_scratch(&p, x, c->m * c->heads)) {
        for (int h = 0; h < c->heads; h++) {
            s[h] = (segment){.expert = h,
                             .row = h * c->m,
                             .rows = c->m,
                             .in = (size_t)h * c->head_in,
                             .out = (size_t)h * c->head_out};
        }
        p.num_segments = c->heads;
        run(&p, x, s, c->m * c->heads);
    }
    x->scratch->used = mark;
}

size_t msgl__gemm_linear_scratch(const msgl_linear_call *c)
{
    return rows_scratch(c->w, c->m, c->norm != NULL, c->gated || c->accumulate);
}

size_t msgl__gemm_grouped_scratch(const msgl_grouped_call *c)
{
    const int segments = c->rows < c->num_experts ? c->rows : c->num_experts;
    return rows_scratch(c->experts, c->rows, false, c->gated) + (size_t)segments * sizeof(segment) +
           64;
}

size_t msgl__gemm_heads_scratch(const msgl_heads_call *c)
{
    return rows_scratch(c->w, c->m * c->heads, false, false) + (size_t)c->heads * sizeof(segment) +
           64;
}

typedef struct packing {
    msgl_gemm_pack_fn fn;
    msgl_weight *w;
    int row, end; // rows of W to write
    const char *src;
    msgl_dtype src_dtype;
    size_t ld_src;
    int task_panels;
} packing;

static void pack_task(void *arg, int task, int worker)
{
    (void)worker;
    const packing *p = arg;
    const size_t bytes = msgl__gemm_panel_bytes(p->w);
    const size_t src_row = p->ld_src * msgl__dtype_size(p->src_dtype);
    const int first = p->row / MSGL_GEMM_LANES + task * p->task_panels;
    for (int i = first; i < first + p->task_panels; i++) {
        const int begin = i * MSGL_GEMM_LANES > p->row ? i * MSGL_GEMM_LANES : p->row;
        const int stop = (i + 1) * MSGL_GEMM_LANES < p->end ? (i + 1) * MSGL_GEMM_LANES : p->end;
        if (begin >= stop) return;
        p->fn((char *)p->w->data + (size_t)i * bytes, p->w->format, p->w->k,
              begin % MSGL_GEMM_LANES, stop - begin, p->src + (size_t)(begin - p->row) * src_row,
              p->src_dtype, p->ld_src);
    }
}

void msgl__gemm_pack(msgl_gemm_pack_fn fn, msgl_exec *x, msgl_weight *w, int row, int rows,
                     const void *src, msgl_dtype src_dtype, size_t ld_src)
{
    if (rows <= 0) return;
    const size_t per_task = PACK_BYTES / msgl__gemm_panel_bytes(w);
    packing p = {.fn = fn,
                 .w = w,
                 .row = row,
                 .end = row + rows,
                 .src = src,
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
} gathering;

static void gather_task(void *arg, int task, int worker)
{
    (void)worker;
    const gathering *g = arg;
    const msgl_weight *w = g->w;
    const int row = g->ids[task] - w->first, lane = row % MSGL_GEMM_LANES;
    float *out = g->out + (size_t)task * (size_t)w->k;
    if (row < 0 || row >= w->n) {
        memset(out, 0, (size_t)w->k * sizeof *out);
        return;
    }
    const char *panel =
        (const char *)w->data + (size_t)(row / MSGL_GEMM_LANES) * msgl__gemm_panel_bytes(w);
    if (w->format->id == MSGL_W_INT8) {
        msgl__int8_expand(panel, lane, w->k, out);
    } else if (w->format->id == MSGL_W_BF16) {
        const uint16_t *p = (const uint16_t *)panel + 2 * lane;
        for (int i = 0; i < w->k; i++) {
            out[i] = msgl__bf16_to_f32(p[(i >> 1) * 2 * MSGL_GEMM_LANES + (i & 1)]);
        }
    } else if (w->format->id == MSGL_W_F16) {
        const uint16_t *p = (const uint16_t *)panel + lane;
        for (int i = 0; i < w->k; i++) out[i] = msgl__f16_to_f32(p[i * MSGL_GEMM_LANES]);
    } else {
        const float *p = (const float *)panel + lane;
        for (int i = 0; i < w->k; i++) out[i] = p[i * MSGL_GEMM_LANES];
    }
}

void msgl__gemm_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, void *out)
{
    gathering g = {w, ids, out};
    msgl__pool_run(x->pool, rows, gather_task, &g);
}
