// SPDX-License-Identifier: Apache-2.0
//
// Mixture of experts around the grouped product: routing, sorting assignments by expert, combining.
#include <math.h>
#include <string.h>

#include "core/round.h"
#include "kernel/kernel.h"

void msgl__moe_fill_ref(msgl_kernels *k);

// Softmax over all experts in f32, then the top_k largest; transformers' order of the two
// (Qwen3-MoE).
static void route(msgl_exec *x, const float *logits, int rows, int experts, int top_k,
                  int norm_topk, int32_t *ids, float *weights)
{
    (void)x;
    for (int r = 0; r < rows; r++) {
        const float *l = logits + (size_t)r * (size_t)experts;
        int32_t *id = ids + (size_t)r * (size_t)top_k;
        float *w = weights + (size_t)r * (size_t)top_k;
        float max = -INFINITY, sum = 0, kept = 0;
        for (int e = 0; e < experts; e++) max = l[e] > max ? l[e] : max;
        for (int e = 0; e < experts; e++) sum += expf(l[e] - max);
        int n = 0;
        // Insertion into a list of at most top_k, largest first; equal logits keep the lower index.
        for (int e = 0; e < experts; e++) {
            int at = n;
            while (at > 0 && l[e] > l[id[at - 1]]) at--;
            if (at >= top_k) continue;
            const int last = n < top_k ? n++ : n - 1;
            memmove(id + at + 1, id + at, (size_t)(last - at) * sizeof *id);
            id[at] = e;
        }
        for (int c = 0; c < top_k; c++) {
            w[c] = expf(l[id[c]] - max) / sum;
            kept += w[c];
        }
        for (int c = 0; norm_topk && c < top_k; c++) w[c] /= kept;
    }
}

static void sort(msgl_exec *x, const int32_t *ids, int rows, int top_k, int experts,
                 int32_t *offsets, int32_t *source)
{
    (void)x;
    const int n = rows * top_k;
    memset(offsets, 0, ((size_t)experts + 1) * sizeof *offsets);
    for (int i = 0; i < n; i++) offsets[ids[i] + 1]++;
    for (int e = 0; e < experts; e++) offsets[e + 1] += offsets[e];
    for (int i = 0; i < n; i++) source[offsets[ids[i]]++] = i;
    // Each offset has advanced to the end of its expert, which is the next one's start: shift back.
    memmove(offsets + 1, offsets, (size_t)experts * sizeof *offsets);
    offsets[0] = 0;
}

struct moe_args {
    const float *in, *weights;
    const int32_t *source;
    float *out;
    int top_k, dim, n;
    bool accumulate;
};

#define MOE_ROWS_PER_TASK 8

static void gather_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct moe_args *a = arg;
    for (int j = task * MOE_ROWS_PER_TASK; j < (task + 1) * MOE_ROWS_PER_TASK && j < a->n; j++) {
        memcpy(a->out + (size_t)j * (size_t)a->dim,
               a->in + (size_t)(a->source[j] / a->top_k) * (size_t)a->dim,
               (size_t)a->dim * sizeof(float));
    }
}

static void gather(msgl_exec *x, const void *in, const int32_t *source, int rows, int top_k,
                   int dim, void *out)
{
    struct moe_args a = {
        .in = in, .source = source, .out = out, .top_k = top_k, .dim = dim, .n = rows * top_k};
    msgl__pool_run(x->pool, msgl__ceil_div(a.n, MOE_ROWS_PER_TASK), gather_task, &a);
}

enum { COLUMNS = 256 };

// Columns [first, first + n) of a row. The sum is complete before it is added.
static void combine_columns(const struct moe_args *a, int row, int first, int n)
{
    float sum[COLUMNS] = {0};
    float *out = a->out + (size_t)row * (size_t)a->dim + first;
    for (int c = 0; c < a->top_k; c++) {
        const size_t i = (size_t)row * (size_t)a->top_k + (size_t)c;
        const float *in = a->in + (size_t)a->source[i] * (size_t)a->dim + first;
        const float w = a->weights[i];
        for (int d = 0; d < n; d++) sum[d] += w * in[d];
    }
    for (int d = 0; d < n; d++) out[d] = a->accumulate ? out[d] + sum[d] : sum[d];
}

static void combine_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct moe_args *a = arg;
    for (int r = task * MOE_ROWS_PER_TASK; r < (task + 1) * MOE_ROWS_PER_TASK && r < a->n; r++) {
        for (int d = 0; d < a->dim; d += COLUMNS) {
            combine_columns(a, r, d, a->dim - d < COLUMNS ? a->dim - d : COLUMNS);
        }
    }
}

static void combine(msgl_exec *x, const void *in, const int32_t *source, const float *weights,
                    int rows, int top_k, int dim, bool accumulate, void *out)
{
    const int n = rows * top_k;
    const size_t used = x->scratch->used;
    int32_t *place = msgl__arena_alloc(x->scratch, (size_t)n * sizeof *place);
    if (place == NULL) {
        x->status = MSGL_EINTERNAL;
        return;
    }
    for (int j = 0; j < n; j++) place[source != NULL ? source[j] : j] = j;
    struct moe_args a = {.in = in,
                         .weights = weights,
                         .source = place,
                         .out = out,
                         .top_k = top_k,
                         .dim = dim,
                         .n = rows,
                         .accumulate = accumulate};
    msgl__pool_run(x->pool, msgl__ceil_div(rows, MOE_ROWS_PER_TASK), combine_task, &a);
    x->scratch->used = used;
}

struct shared_args {
    const float *in, *gate;
    float *out;
    int rows, dim;
};

static void shared_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct shared_args *a = arg;
    for (int r = task * MOE_ROWS_PER_TASK; r < (task + 1) * MOE_ROWS_PER_TASK && r < a->rows; r++) {
        const float by = 1 / (1 + expf(-a->gate[r]));
        const float *in = a->in + (size_t)r * (size_t)a->dim;
        float *out = a->out + (size_t)r * (size_t)a->dim;
        for (int d = 0; d < a->dim; d++) out[d] += by * in[d];
    }
}

static void add_shared(msgl_exec *x, const void *in, const float *gate, int rows, int dim,
                       void *out)
{
    struct shared_args a = {in, gate, out, rows, dim};
    msgl__pool_run(x->pool, (rows + MOE_ROWS_PER_TASK - 1) / MOE_ROWS_PER_TASK, shared_task, &a);
}

void msgl__moe_fill_ref(msgl_kernels *k)
{
    k->moe = (msgl_moe_kernels){.route = route,
                                .sort = sort,
                                .gather = gather,
                                .combine = combine,
                                .add_shared = add_shared};
}
