// SPDX-License-Identifier: Apache-2.0
//
// Mixture of experts around the grouped product: routing, sorting assignments by expert, combining.
#include <math.h>
#include <string.h>

#include "core/round.h"
#include "kernel/kernel.h"

void msgl__moe_fill_ref(msgl_kernels *k);

#define ALMOST_0 1e-20f // transformers' DeepseekV3TopkRouter: for sigmoids that are all 0

// Inserts i into a list of n, at most `most`, indices by falling value; of equal values the one
// that came first stays in front. Returns the new n.
static int insert(const float *values, int i, int32_t *list, int n, int most)
{
    int at = n;
    while (at > 0 && values[i] > values[list[at - 1]]) at--;
    if (at >= most) return n;
    const int last = n < most ? n++ : n - 1;
    memmove(list + at + 1, list + at, (size_t)(last - at) * sizeof *list);
    list[at] = i;
    return n;
}

// What scores of a row are made of.
typedef struct row_scores {
    msgl_scoring scoring;
    const float *logits;
    float max, sum; // softmax
} row_scores;

static row_scores scores_of(const msgl_router *how, const float *logits, int experts)
{
    row_scores s = {.scoring = how->scoring, .logits = logits, .max = -INFINITY};
    if (how->scoring != MSGL_SCORE_SOFTMAX) return s; // of its own logit
    for (int e = 0; e < experts; e++) s.max = logits[e] > s.max ? logits[e] : s.max;
    for (int e = 0; e < experts; e++) s.sum += expf(logits[e] - s.max);
    return s;
}

static float score(const row_scores *s, int expert)
{
    const float l = s->logits[expert];
    if (s->scoring == MSGL_SCORE_SQRT_SOFTPLUS) return sqrtf(l > 20 ? l : log1pf(expf(l)));
    return s->scoring == MSGL_SCORE_SIGMOID ? 1 / (1 + expf(-l)) : expf(l - s->max) / s->sum;
}

// A group's score: the largest of its values, or the sum of the largest two.
static float group_score(const float *values, int n, bool pairs)
{
    float best = -INFINITY, second = -INFINITY;
    for (int e = 0; e < n; e++) {
        second = values[e] > best ? best : values[e] > second ? values[e] : second;
        best = values[e] > best ? values[e] : best;
    }
    return pairs ? best + second : best;
}

// Bit g: experts of group g may be chosen.
static uint32_t choose_groups(const msgl_router *how, const float *values, int size)
{
    float scores[MSGL_MAX_EXPERT_GROUPS];
    int32_t best[MSGL_MAX_EXPERT_GROUPS];
    uint32_t chosen = 0;
    int n = 0;
    for (int g = 0; g < how->num_groups; g++) {
        scores[g] = group_score(values + g * size, size, how->group_pairs);
        n = insert(scores, g, best, n, how->top_groups);
    }
    for (int i = 0; i < n; i++) chosen |= 1u << best[i];
    return chosen;
}

// The weights w of a row's choices id.
static void weigh_row(const msgl_router *how, const row_scores *s, const int32_t *id, float *w)
{
    float kept = 0;
    for (int c = 0; c < how->top_k; c++) {
        w[c] = score(s, id[c]);
        kept += w[c];
    }
    kept = how->norm_topk ? fmaxf(kept + ALMOST_0, how->least_sum) : 1;
    for (int c = 0; c < how->top_k; c++) w[c] = w[c] / kept * how->scale;
}

// values: what experts are chosen by; where no two of them are added that is the logits, in whose
// order the scores are.
static void route_row(const msgl_router *how, const row_scores *s, const float *values, int experts,
                      int32_t *id, float *w)
{
    const bool groups = how->num_groups > 1;
    const int size = groups ? experts / how->num_groups : experts;
    const uint32_t chosen = groups ? choose_groups(how, values, size) : 1;
    int n = 0;
    for (int e = 0; e < experts; e++) {
        if ((chosen >> (e / size) & 1) != 0) n = insert(values, e, id, n, how->top_k);
    }
    weigh_row(how, s, id, w);
}

// Of one row by MSGL_SCORE_SPARSEMIXER.
static void mix_row(const msgl_router *how, const float *logits, int experts, int32_t *id, float *w)
{
    for (int c = 0; c < how->top_k; c++) {
        int best = -1;
        float sum = 0;
        for (int pass = 0; pass < 2; pass++) { // the best one, then the sum of those near it
            for (int e = 0; e < experts; e++) {
                bool taken = false;
                for (int i = 0; i < c; i++) taken = taken || id[i] == e;
                if (taken) continue;
                if (pass == 0) {
                    if (best < 0 || logits[e] > logits[best]) best = e;
                    continue;
                }
                const float l = logits[best], size = fabsf(logits[e]);
                const float away = (l - logits[e]) / (size > l ? size : l);
                if (!(away > how->spread)) sum += expf(logits[e] - l);
            }
        }
        id[c] = best;
        w[c] = 1 / sum;
    }
}

static void route(msgl_exec *x, const msgl_router *how, const float *logits, int rows, int experts,
                  int32_t *ids, float *weights)
{
    const size_t used = x->scratch->used;
    float *values = NULL;
    if (how->correction != NULL || (how->num_groups > 1 && how->group_pairs)) {
        values = msgl__arena_alloc(x->scratch, (size_t)experts * sizeof *values);
        if (values == NULL) {
            x->status = MSGL_EINTERNAL;
            return;
        }
    }
    for (int r = 0; r < rows; r++) {
        const float *l = logits + (size_t)r * (size_t)experts;
        if (how->scoring == MSGL_SCORE_SPARSEMIXER) {
            mix_row(how, l, experts, ids + (size_t)r * (size_t)how->top_k,
                    weights + (size_t)r * (size_t)how->top_k);
            continue;
        }
        const row_scores s = scores_of(how, l, experts);
        for (int e = 0; values != NULL && e < experts; e++) {
            values[e] = score(&s, e) + (how->correction != NULL ? how->correction[e] : 0);
        }
        route_row(how, &s, values != NULL ? values : l, experts,
                  ids + (size_t)r * (size_t)how->top_k, weights + (size_t)r * (size_t)how->top_k);
    }
    x->scratch->used = used;
}

static void look_up(msgl_exec *x, const msgl_router *how, const float *logits,
                    const int32_t *tokens, int rows, int experts, int32_t *ids, float *weights)
{
    (void)x;
    const size_t top_k = (size_t)how->top_k;
    for (int r = 0; r < rows; r++) {
        const row_scores s = scores_of(how, logits + (size_t)r * (size_t)experts, experts);
        int32_t *id = ids + (size_t)r * top_k, token = tokens[r] < 0 ? 0 : tokens[r];
        if (token >= how->table_ids) token = how->table_ids - 1;
        for (size_t c = 0; c < top_k; c++) id[c] = (int32_t)how->table[(size_t)token * top_k + c];
        weigh_row(how, &s, id, weights + (size_t)r * top_k);
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
        if (w == 0) continue;
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

static void keep_own(msgl_exec *x, const int32_t *ids, int n, int first, int own, float *weights)
{
    (void)x;
    for (int i = 0; i < n; i++) {
        if (ids[i] < first || ids[i] >= first + own) weights[i] = 0;
    }
}

static void scale_choices(msgl_exec *x, const int32_t *ids, int n, const float *by, float *weights)
{
    (void)x;
    for (int i = 0; i < n; i++) weights[i] *= by[ids[i]];
}

struct weigh_args {
    float *p, *weights;
    int rows, dim;
};

static void weigh_task(void *arg, int task, int worker)
{
    (void)worker;
    const struct weigh_args *a = arg;
    for (int r = task * MOE_ROWS_PER_TASK; r < (task + 1) * MOE_ROWS_PER_TASK && r < a->rows; r++) {
        float *p = a->p + (size_t)r * (size_t)a->dim;
        for (int d = 0; d < a->dim; d++) p[d] *= a->weights[r];
        a->weights[r] = 1;
    }
}

static void weigh_input(msgl_exec *x, void *p, float *weights, int rows, int dim)
{
    struct weigh_args a = {p, weights, rows, dim};
    msgl__pool_run(x->pool, msgl__ceil_div(rows, MOE_ROWS_PER_TASK), weigh_task, &a);
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
        const float by = a->gate != NULL ? 1 / (1 + expf(-a->gate[r])) : 1;
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
                                .look_up = look_up,
                                .sort = sort,
                                .gather = gather,
                                .keep_own = keep_own,
                                .scale_choices = scale_choices,
                                .ids_on_host = true,
                                .combine = combine,
                                .weigh_input = weigh_input,
                                .add_shared = add_shared};
}
