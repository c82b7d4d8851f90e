// SPDX-License-Identifier: Apache-2.0
//
// double_sparsity's kernels: attention to the tokens to choose in f64, and, to the token, which
// ones are chosen: with a scale of 0 every chosen token has the same weight, and where V is 1 or -1
// at random the sums over different tokens differ somewhere. Queries and keys are quarters, so that
// scores are exact in f32, and often equal.
#include "tests/cuda/attn_world.cuh"
#include "tests/cuda/family.cuh"

#include "attention/triton/splits.h"
#include "cuda/attn/double_sparsity.h"
#include "cuda/attn/double_sparsity/cut.h"

static const double TOLERANCE[MSGL_DTYPE_COUNT] = {0, 1.5e-3, 1e-2}; // |v| < 1; f16, bf16

static int failures, checks;
static double worst;

typedef struct shape {
    msgl_dtype dtype;
    int group, kv_heads, dim, page;
    int channels, tokens, least, round;
    float softcap;
} shape;

typedef struct step {
    attn_world w;
    msgl_triton_lists_call lists;
    msgl_sparse_call call;
    uint16_t *channels; // host copy
    int32_t *all_cu;    // device: every token is new
    int32_t *splits;    // device
} step;

static void quarter(msgl_dtype t, void *host, void *device, size_t bytes)
{
    for (size_t i = 0; i < bytes / 2; i++) {
        attn_put(t, host, i, roundf(attn_get(t, host, i) * 4) / 4);
    }
    CUDA_OK(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

static void step_make(step *s, attn_rng *rng, const shape *f, int batch, const int32_t *lens)
{
    memset(s, 0, sizeof *s);
    int32_t ones[64], cu[65] = {0};
    for (int i = 0; i < batch; i++) ones[i] = 1, cu[i + 1] = cu[i] + lens[i];
    attn_world *w = &s->w;
    const int heads = f->group * f->kv_heads;
    attn_world_make(w, rng, f->dtype, batch, ones, lens, heads, f->kv_heads, f->dim, f->page);
    quarter(f->dtype, w->q, w->q_dev, w->q_bytes);
    quarter(f->dtype, w->k, w->k_dev, w->kv_bytes);
    w->qf = attn_decode(f->dtype, w->q, w->q_bytes);
    w->kf = attn_decode(f->dtype, w->k, w->kv_bytes);
    w->vf = attn_decode(f->dtype, w->v, w->kv_bytes);
    w->call.softcap = f->softcap;
    s->all_cu = (int32_t *)device_copy(cu, (batch + 1) * 4);
    const int n = f->kv_heads * f->channels;
    s->channels = (uint16_t *)malloc(n * 2);
    for (int i = 0; i < n; i++) {
        // 7 divides no dimension.
        s->channels[i] = (uint16_t)((i / f->channels * 3 + i % f->channels * 7) % f->dim);
    }
    const size_t rows = (size_t)batch * heads, round_rows = (size_t)f->round * heads;
    s->splits = (int32_t *)device_copy(NULL, batch * 4);
    msgl_sparse_call *c = &s->call;
    c->dense.attn = w->call;
    c->dense.kv_indptr = (int32_t *)device_copy(NULL, (batch + 1) * 4);
    c->dense.kv_indices = (int32_t *)device_copy(NULL, (size_t)batch * w->max_len * 4);
    c->dense.num_kv_splits = c->num_kv_splits = s->splits;
    const size_t partials = rows * MSGL_TRITON_MAX_SPLITS;
    c->dense.attn_logits = (float *)device_copy(NULL, partials * f->dim * 4);
    c->dense.attn_lse = (float *)device_copy(NULL, partials * 4);
    c->labels = device_copy(NULL, (size_t)w->call.num_slots * n * 2);
    c->channels = (uint16_t *)device_copy(s->channels, n * 2);
    c->heavy_channels = f->channels, c->heavy_tokens = f->tokens;
    c->least = f->least > f->tokens ? f->least : f->tokens;
    c->round = f->round;
    c->room = msgl__sparse_room(f->group, w->max_len, f->tokens);
    c->orders = (uint32_t *)device_copy(NULL, round_rows * c->room * 4);
    c->tokens = (int32_t *)device_copy(NULL, round_rows * c->room * 4);
    c->done = (int32_t *)device_copy(NULL, round_rows * 4);
    CUDA_OK(cudaMemset(c->done, 0, round_rows * 4));
    msgl_triton_lists_call *l = &s->lists;
    l->lists.kv_indptr = (int32_t *)c->dense.kv_indptr;
    l->lists.kv_indices = (int32_t *)c->dense.kv_indices;
    l->lists.num_kv_splits = s->splits;
    l->lists.splits_stride = batch;
    l->batch = batch, l->num_q_heads = heads, l->num_kv_heads = f->kv_heads;
    l->seqlens_k = w->call.seqlens_k, l->table = w->call.table;
    l->table_rows = w->call.table_rows, l->table_stride = w->call.table_stride;
    l->paging = w->call.paging;
    l->max_seqlen_k = w->max_len, l->num_windows = 1, l->windows[0] = -1;
}

static void step_free(step *s)
{
    const msgl_sparse_call *c = &s->call;
    cudaFree((void *)c->dense.kv_indptr), cudaFree((void *)c->dense.kv_indices);
    cudaFree(c->dense.attn_logits), cudaFree(c->dense.attn_lse), cudaFree(c->labels);
    cudaFree((void *)c->channels), cudaFree(c->orders), cudaFree(c->tokens), cudaFree(c->done);
    cudaFree(s->all_cu), cudaFree(s->splits);
    free(s->channels);
    attn_world_free(&s->w);
}

static size_t label_width(const step *s)
{
    return (size_t)s->w.call.num_kv_heads * s->call.heavy_channels;
}

// Labels of all tokens, as of prompts, poison elsewhere; then, for answers, poison for the last
// tokens again: these are new.
static void write_labels(step *s, const int32_t *lens)
{
    const attn_world *w = &s->w;
    const size_t bytes = label_width(s) * 2;
    CUDA_OK(cudaMemset(s->call.labels, 0xff, w->call.num_slots * bytes));
    msgl_sparse_call c = s->call;
    c.dense.attn.cu_seqlens_q = s->all_cu;
    c.dense.attn.max_seqlen_q = w->max_len;
    CUDA_OK(msgl__cuda_sparse_labels(&c, 0));
    for (int i = 0; i < w->call.batch; i++) {
        const int32_t slot = w->slots[(size_t)w->rows[i] * w->call.table_stride + lens[i] - 1];
        CUDA_OK(cudaMemset((char *)s->call.labels + slot * bytes, 0xff, bytes));
    }
}

// Labels are the keys' channels, of all tokens, and nothing elsewhere.
static void check_labels(const step *s)
{
    const attn_world *w = &s->w;
    const size_t width = label_width(s), n = w->call.num_slots * width;
    uint16_t *got = (uint16_t *)malloc(n * 2), *want = (uint16_t *)malloc(n * 2);
    CUDA_OK(cudaMemcpy(got, s->call.labels, n * 2, cudaMemcpyDeviceToHost));
    memset(want, 0xff, n * 2);
    for (int i = 0; i < w->call.batch; i++) {
        for (int32_t p = 0; p < w->k_lens[i]; p++) {
            const size_t slot = w->slots[(size_t)w->rows[i] * w->call.table_stride + p];
            for (size_t e = 0; e < width; e++) {
                const size_t head = e / s->call.heavy_channels;
                const uint16_t *k = (const uint16_t *)w->k +
                                    (slot * w->call.num_kv_heads + head) * w->call.head_dim;
                want[slot * width + e] = k[s->channels[e]];
            }
        }
    }
    checks++;
    if (memcmp(got, want, n * 2) != 0) {
        failures++;
        printf("FAIL labels: %d x %d channels\n", w->call.num_kv_heads, s->call.heavy_channels);
    }
    free(got), free(want);
}

static void queue(const step *s, cudaStream_t stream)
{
    CUDA_OK(msgl__cuda_triton_lists(&s->lists, stream));
    CUDA_OK(msgl__cuda_sparse_begin(&s->call, stream));
    CUDA_OK(msgl__cuda_triton_decode(&s->call.dense, stream));
    CUDA_OK(msgl__cuda_sparse_decode(&s->call, stream));
}

static void fail(const shape *f, const char *what, int req, int32_t len, int head, double error)
{
    failures++;
    printf("FAIL %s: dtype %d group %d x %d dim %d page %d channels %d tokens %d least %d: request "
           "%d of %d tokens, head %d: %g\n",
           what, (int)f->dtype, f->group, f->kv_heads, f->dim, f->page, f->channels, f->tokens,
           f->least, req, len, head, error);
}

typedef struct scored {
    float score;
    int32_t token;
} scored;

static int larger(const void *a, const void *b)
{
    const scored *x = (const scored *)a, *y = (const scored *)b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->token - y->token;
}

static int by_token(const void *a, const void *b)
{
    return ((const scored *)a)->token - ((const scored *)b)->token;
}

// What head h of request req attends to; returns how many.
static int chosen_of(const step *s, const shape *f, int req, int32_t len, int h, scored *all)
{
    const attn_world *w = &s->w;
    const int kvh = h / f->group;
    const int32_t *slots = w->slots + (size_t)w->rows[req] * w->call.table_stride;
    const float *q = w->qf + (size_t)w->cu_q[req] * w->call.ld_q + (size_t)h * f->dim;
    for (int32_t p = 0; p < len; p++) {
        const float *k = w->kf + ((size_t)slots[p] * f->kv_heads + kvh) * f->dim;
        float x = 0;
        for (int i = 0; i < f->channels; i++) {
            const int ch = s->channels[kvh * f->channels + i];
            x += q[ch] * k[ch];
        }
        all[p].score = x, all[p].token = p;
    }
    if (len < s->call.least) return len;
    qsort(all, len, sizeof *all, larger);
    qsort(all, f->tokens, sizeof *all, by_token);
    return f->tokens;
}

static double attend_error(const step *s, const shape *f, int req, int h, const scored *tokens,
                           int n, const void *out)
{
    const attn_world *w = &s->w;
    const int32_t *slots = w->slots + (size_t)w->rows[req] * w->call.table_stride;
    const float *q = w->qf + (size_t)w->cu_q[req] * w->call.ld_q + (size_t)h * f->dim;
    double o[256] = {}, l = 0, most = 0;
    for (int i = 0; i < n; i++) {
        const size_t at = ((size_t)slots[tokens[i].token] * f->kv_heads + h / f->group) * f->dim;
        double x = 0;
        for (int d = 0; d < f->dim; d++) x += (double)q[d] * w->kf[at + d];
        x *= w->call.scale;
        if (f->softcap > 0) x = f->softcap * tanh(x / f->softcap);
        l += exp(x); // scores are far below 700
        for (int d = 0; d < f->dim; d++) o[d] += exp(x) * w->vf[at + d];
    }
    for (int d = 0; d < f->dim; d++) {
        const size_t at = (size_t)w->cu_q[req] * w->call.ld_out + (size_t)h * f->dim + d;
        const double e = fabs(attn_get(f->dtype, out, at) - o[d] / l);
        if (!(e <= most)) most = e; // NaN too
    }
    return most;
}

static void check(const step *s, const shape *f, const int32_t *lens, int every)
{
    const attn_world *w = &s->w;
    const int heads = f->group * f->kv_heads, batch = w->call.batch;
    void *out = malloc(w->out_bytes);
    scored *all = (scored *)malloc(((size_t)w->max_len + f->tokens) * sizeof *all);
    CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < batch; i++) {
        for (int h = i % every; h < heads; h += every) {
            const int n = chosen_of(s, f, i, lens[i], h, all);
            const double e = attend_error(s, f, i, h, all, n, out);
            checks++;
            if (!(e <= worst)) worst = e;
            if (!(e <= TOLERANCE[f->dtype])) fail(f, "attention", i, lens[i], h, e);
        }
    }
    free(out), free(all);
}

// V of 1 and -1, and all scores equal.
static void make_votes(step *s, attn_rng *rng)
{
    attn_world *w = &s->w;
    for (size_t i = 0; i < w->kv_bytes / 2; i++) {
        w->vf[i] = attn_range(rng, 0, 1) ? 1.f : -1.f;
        attn_put(w->call.dtype, w->v, i, w->vf[i]);
    }
    CUDA_OK(cudaMemcpy(w->v_dev, w->v, w->kv_bytes, cudaMemcpyHostToDevice));
    s->call.dense.attn.scale = 0;
}

// Each sum of the chosen tokens' votes: another token would change some by 2.
static void check_votes(const step *s, const shape *f, const int32_t *lens, int every)
{
    const attn_world *w = &s->w;
    const int heads = f->group * f->kv_heads;
    void *out = malloc(w->out_bytes);
    scored *all = (scored *)malloc(((size_t)w->max_len + f->tokens) * sizeof *all);
    CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    for (int i = 0; i < w->call.batch; i++) {
        const int32_t *slots = w->slots + (size_t)w->rows[i] * w->call.table_stride;
        for (int h = i % every; h < heads && lens[i] >= s->call.least; h += every) {
            const int n = chosen_of(s, f, i, lens[i], h, all);
            int wrong = 0;
            for (int d = 0; d < f->dim; d++) {
                const size_t at = (size_t)w->cu_q[i] * w->call.ld_out + (size_t)h * f->dim + d;
                float sum = 0;
                for (int k = 0; k < n; k++) {
                    const size_t slot = slots[all[k].token];
                    sum += w->vf[(slot * f->kv_heads + h / f->group) * f->dim + d];
                }
                wrong += !(fabsf(attn_get(f->dtype, out, at) * n - sum) < 1);
            }
            checks++;
            if (wrong > 0) fail(f, "choice", i, lens[i], h, wrong);
        }
    }
    free(out), free(all);
}

static void run(attn_rng *rng, const shape *f, int batch, const int32_t *lens, int every)
{
    step s;
    step_make(&s, rng, f, batch, lens);
    s.call.dense.attn.deterministic = attn_range(rng, 0, 1) != 0;
    for (int votes = 0; votes < 2; votes++) {
        if (votes) make_votes(&s, rng);
        write_labels(&s, lens);
        attn_poison(&s.w);
        queue(&s, 0);
        CUDA_OK(cudaDeviceSynchronize());
        check_labels(&s);
        votes ? check_votes(&s, f, lens, every) : check(&s, f, lens, every);
    }
    step_free(&s);
}

// A captured step follows the lengths: dense ones become sparse and back.
static void graph(attn_rng *rng)
{
    const shape f = {MSGL_BF16, 4, 2, 128, 16, 32, 100, 700, 2, 0};
    const int32_t lens[5] = {2600, 2500, 2400, 2300, 2200};
    step s;
    step_make(&s, rng, &f, 5, lens);
    write_labels(&s, lens);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    const cudaGraphExec_t exec = cuda_capture(stream, [&] { queue(&s, stream); });
    for (int round = 0; round < 6; round++) {
        int32_t now[5];
        for (int i = 0; i < 5; i++) {
            now[i] = round == 0 ? 1 : attn_range(rng, 1, round % 2 ? 1000 : 2200);
        }
        device_write(s.w.lens_dev, lens, sizeof lens);
        write_labels(&s, now);
        device_write(s.w.lens_dev, now, sizeof now);
        attn_poison(&s.w);
        CUDA_OK(cudaGraphLaunch(exec, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        check_labels(&s);
        check(&s, &f, now, 1);
    }
    CUDA_OK(cudaGraphExecDestroy(exec));
    CUDA_OK(cudaStreamDestroy(stream));
    step_free(&s);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv, 1);
    const bool quick = o.quick;
    attn_rng rng = {o.seed};
    static const shape shapes[] = {{MSGL_BF16, 4, 2, 128, 16, 32, 256, 0, 64, 0},
                                   {MSGL_F16, 1, 3, 64, 1, 16, 64, 0, 3, 0},
                                   {MSGL_BF16, 5, 1, 96, 7, 8, 1, 0, 2, 0},
                                   {MSGL_BF16, 8, 1, 256, 64, 64, 700, 0, 64, 0},
                                   {MSGL_F16, 20, 2, 128, 16, 40, 33, 1000, 1, 30},
                                   {MSGL_F16, 7, 6, 64, 16, 32, 100, 300, 64, 0},
                                   {MSGL_BF16, 2, 2, 128, 1, 32, 512, 0, 64, 0}};
    const int32_t lens[] = {1, 31, 32, 33, 64, 255, 256, 257, 700, 1023, 1024, 1025, 3000};
    for (const shape &f : shapes) {
        run(&rng, &f, quick ? 11 : 13, lens, 1);
    }
    const int32_t longs[] = {40000, 4096, 131071};
    run(&rng, &shapes[0], quick ? 1 : 2, longs, 5);
    if (!quick) run(&rng, &shapes[1], 1, longs + 2, 2);
    graph(&rng);
    printf("%d results, largest error %.2e; %d failures\n", checks, worst, failures);
    return failures != 0;
}
