// SPDX-License-Identifier: Apache-2.0
//
// Time of the GPU's small kernels, in a captured graph of 16 calls over different buffers, as they
// stand in a step: microseconds per call, and the bytes that a call has to move as a share of what
// the memory gives (4.2 TB/s). Small calls read what the L2 holds, as in a step.
#include "bench/cuda/median.cuh"
#include "tests/cuda/ops_check.cuh"

#include "cuda/device_api.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.cuh"

#define CALLS 16
#define REPEATS 25
#define MEMORY_BYTES_PER_US 4.2e6
#define SETS_BYTES (400u << 20)

enum { SAMPLE_TOKENS = 8193 };

struct bench_case {
    int rows, sets;
    char *in[CALLS], *out[CALLS]; // per set
    float *weight;
    msgl_rope_call rope;
    msgl_sample_row *sample_rows;
    int32_t *pool; // of tokens, [rows, SAMPLE_TOKENS]; the last one is the chosen one
    float *saved;
    int vocab, dim, experts;
    msgl_router how;
    bool any_random, any_filter;
    int32_t *ints[5];
    float *floats;
};

typedef void (*bench_fn)(bench_exec *e, const bench_case *c, int set);

static float graph_us(bench_exec *e, const bench_case *c, bench_fn fn)
{
    const cudaStream_t s = e->device.stream;
    const cudaGraphExec_t exec = cuda_capture(s, [&] {
        for (int i = 0; i < CALLS; i++) fn(e, c, i % c->sets);
    });
    const float us = median_graph_ms(s, exec, 3, REPEATS) * 1e3f / CALLS;
    CUDA_OK(cudaGraphExecDestroy(exec));
    exec_sync(e);
    return us;
}

static void report(const char *what, const char *shape, int rows, double bytes, float us)
{
    printf("%-12s %-22s %6d rows %9.2f us %5.1f%%\n", what, shape, rows, us,
           100 * bytes / MEMORY_BYTES_PER_US / us);
}

// in_bytes and out_bytes per set, filled with random bf16 or f32.
static void buffers(bench_exec *e, bench_case *c, size_t in_bytes, size_t out_bytes,
                    msgl_dtype type)
{
    const size_t both = in_bytes + out_bytes;
    c->sets = (int)(SETS_BYTES / both + 1);
    if (c->sets > CALLS) c->sets = CALLS;
    for (int i = 0; i < c->sets; i++) {
        CUDA_OK(cudaMalloc((void **)&c->in[i], in_bytes + 64));
        CUDA_OK(cudaMalloc((void **)&c->out[i], out_bytes + 64));
        msgl__cuda_fill_normal(e->device.stream, c->in[i], type, in_bytes / msgl__dtype_size(type),
                               i + 1, 1.5f);
        msgl__cuda_fill_normal(e->device.stream, c->out[i], type,
                               out_bytes / msgl__dtype_size(type), i + 99, 1.5f);
    }
    exec_sync(e);
}

static void release(bench_case *c)
{
    for (int i = 0; i < c->sets; i++) {
        CUDA_OK(cudaFree(c->in[i]));
        CUDA_OK(cudaFree(c->out[i]));
    }
}

static void run_norm(bench_exec *e, const bench_case *c, int set)
{
    msgl__cuda_rms_norm(&e->x, c->in[set], c->dim, c->weight, 1e-6f, c->out[set], c->dim, c->rows,
                        c->dim);
}
static void run_add(bench_exec *e, const bench_case *c, int set)
{
    msgl__cuda_add(&e->x, c->out[set], c->in[set], NULL, 0, 1, c->rows, c->dim);
}
static void run_silu(bench_exec *e, const bench_case *c, int set)
{
    msgl__cuda_gate(&e->x, MSGL_SILU, c->in[set], c->out[set], c->rows, c->dim);
}
static void run_rope(bench_exec *e, const bench_case *c, int set)
{
    msgl_rope_call r = c->rope;
    r.qkv = c->in[set];
    r.k_pool = c->out[set];
    r.v_pool = c->out[set] + (size_t)c->rows * r.num_kv_heads * r.head_dim * 2;
    msgl__cuda_qk_norm_rope_store(&e->x, &r);
}
static void run_table(bench_exec *e, const bench_case *c, int set)
{
    msgl__cuda_rope_table(&e->x, c->ints[0], c->rows, c->weight, 64, 1, (float *)c->out[set]);
}
static void run_sample(bench_exec *e, const bench_case *c, int set)
{
    msgl_sample_call s = {};
    s.logits = (float *)c->in[set], s.ld = c->vocab, s.num_rows = c->rows, s.vocab = c->vocab;
    s.rows = c->sample_rows, s.any_random = c->any_random, s.any_filter = c->any_filter;
    s.tokens = (int32_t *)c->out[set], s.status = s.tokens + c->rows;
    s.pool = c->pool, s.pool_index = c->ints[0], s.saved = c->saved;
    msgl__cuda_sample(&e->x, &s);
}
static void run_logprobs(bench_exec *e, const bench_case *c, int set)
{
    msgl__cuda_logprobs(&e->x, (float *)c->in[set], c->vocab, c->rows, c->vocab,
                        (msgl_token_logprobs *)c->floats);
}
static void run_route(bench_exec *e, const bench_case *c, int set)
{
    msgl__cuda_moe_route(&e->x, &c->how, (float *)c->in[set], c->rows, c->experts, c->ints[1],
                         c->floats);
}
static void run_sort(bench_exec *e, const bench_case *c, int set)
{
    (void)set;
    msgl__cuda_moe_sort(&e->x, c->ints[1], c->rows, c->how.top_k, c->experts, c->ints[2],
                        c->ints[3]);
}
// in: the rows, then the router.
static void run_choose(bench_exec *e, const bench_case *c, int set)
{
    const msgl_weight router = {&msgl__cuda_formats[MSGL_W_BF16], c->experts, c->dim,
                                c->in[set] + (size_t)c->rows * c->dim * 2};
    msgl_choose_call call = {};
    call.in = c->in[set], call.rows = c->rows;
    call.norm = c->weight, call.norm_eps = 1e-6f;
    call.router = &router, call.choice = &c->how;
    call.normed = c->out[set];
    call.weights = c->floats, call.logits = c->floats + c->rows * c->how.top_k;
    call.ids = c->ints[1], call.offsets = c->ints[2], call.source = c->ints[3];
    if (!msgl__cuda_moe_choose(&e->x, &call)) {
        fprintf(stderr, "the choice of %d rows is not taken\n", c->rows);
        exit(1);
    }
}
static void run_gather(bench_exec *e, const bench_case *c, int set)
{
    msgl__cuda_moe_gather(&e->x, c->in[set], c->ints[3], c->rows, c->how.top_k, c->dim,
                          c->out[set]);
}
static void run_combine(bench_exec *e, const bench_case *c, int set)
{
    msgl__cuda_moe_combine(&e->x, c->out[set], c->ints[3], c->floats, c->rows, c->how.top_k, c->dim,
                           true, c->in[set]);
}
static void run_take(bench_exec *e, const bench_case *c, int set)
{
    (void)set;
    msgl_step_tokens s = {};
    s.count = s.num_answers = c->rows;
    s.pool = c->ints[0], s.index = s.pages[0] = c->ints[1];
    s.row_places = c->rows, s.paging = msgl__paging_of(1), s.num_tables = 1;
    s.tables[0] = c->ints[3], s.slots[0] = c->ints[4];
    msgl__cuda_take_tokens(e->device.stream, &s, c->ints[2]);
}

struct model_shape {
    const char *name;
    int hidden, inter, q, kv;
};
static const model_shape MODELS[] = {{"0.6B", 1024, 3072, 16, 8}, {"14B", 5120, 17408, 40, 8}};

static void bench_step(bench_exec *e, const model_shape *m, int rows)
{
    bench_case c = {};
    const double n = rows, hidden = m->hidden, inter = m->inter;
    c.rows = rows;
    array w = {MSGL_F32, 65536};
    CUDA_OK(cudaMalloc(&w.dev, 65536 * 4));
    msgl__cuda_fill_normal(e->device.stream, w.dev, MSGL_F32, 65536, 5, 0.5f);
    c.weight = (float *)w.dev;
    char shape[64];

    c.dim = m->hidden;
    buffers(e, &c, (size_t)(n * hidden * 2), (size_t)(n * hidden * 2), MSGL_BF16);
    snprintf(shape, sizeof shape, "%s %d", m->name, m->hidden);
    report("rms_norm", shape, rows, n * hidden * 4, graph_us(e, &c, run_norm));
    report("add", shape, rows, n * hidden * 6, graph_us(e, &c, run_add));
    release(&c);

    c.dim = m->inter;
    buffers(e, &c, (size_t)(n * inter * 4), (size_t)(n * inter * 2), MSGL_BF16);
    snprintf(shape, sizeof shape, "%s 2 x %d", m->name, m->inter);
    report("silu_mul", shape, rows, n * inter * 6, graph_us(e, &c, run_silu));
    release(&c);

    const int heads = m->q + 2 * m->kv;
    buffers(e, &c, (size_t)rows * heads * 256, (size_t)rows * 2 * m->kv * 256, MSGL_BF16);
    int32_t *ints = (int32_t *)malloc(rows * 4);
    for (int i = 0; i < rows; i++) ints[i] = (i * 1021) % rows;
    c.ints[0] = ints_upload(ints, rows);
    void *table;
    CUDA_OK(cudaMalloc(&table, (size_t)rows * 512));
    msgl__cuda_rope_table(&e->x, c.ints[0], rows, c.weight, 64, 1, (float *)table);
    c.rope.ld = (size_t)heads * 128, c.rope.tokens = rows, c.rope.num_q_heads = m->q;
    c.rope.num_kv_heads = m->kv, c.rope.head_dim = 128, c.rope.half = 64;
    c.rope.q_weight = c.weight, c.rope.k_weight = c.weight + 128, c.rope.eps = 1e-6f;
    c.rope.cos_sin = (float *)table, c.rope.kv_dtype = MSGL_BF16, c.rope.slots = c.ints[0];
    snprintf(shape, sizeof shape, "%s %d/%d x 128", m->name, m->q, m->kv);
    // Read all heads, write back q and k, write k and v, read the angles.
    report("qk_rope_kv", shape, rows, n * 256 * (heads + m->q + m->kv + 2 * m->kv) + n * 512,
           graph_us(e, &c, run_rope));
    if (m == MODELS) report("table", "half 64", rows, n * 512, graph_us(e, &c, run_table));
    release(&c);
    CUDA_OK(cudaFree(table));
    CUDA_OK(cudaFree(c.ints[0]));
    CUDA_OK(cudaFree(w.dev));
    free(ints);
}

static void bench_sample(bench_exec *e, int rows)
{
    bench_case c = {};
    c.rows = rows, c.vocab = 151936;
    const double bytes = (double)rows * c.vocab * 4;
    buffers(e, &c, (size_t)bytes, (size_t)rows * 8 + 64, MSGL_F32);
    static const struct {
        const char *name;
        float temperature, top_p, min_p;
        int top_k;
        float repetition, frequency; // with a prompt and an answer of so many tokens
        int prompt, answer;
    } kinds[] = {{"greedy", 0, 1, 0, 0},
                 {"temperature", 0.6f, 1, 0, 0},
                 {"top_k 50", 0.6f, 1, 0, 50},
                 {"top_p 0.9", 0.6f, 0.9f, 0, 0},
                 {"top_k 20, top_p 0.95", 0.6f, 0.95f, 0, 20},
                 {"top_p 0.9, T 1.5", 1.5f, 0.9f, 0, 0},
                 {"min_p 0.05", 0.6f, 1, 0.05f, 0},
                 {"repetition, 1k tokens", 0.6f, 1, 0, 0, 1.05f, 0, 768, 256},
                 {"repetition, 8k tokens", 0.6f, 1, 0, 0, 1.05f, 0, 7168, 1024},
                 {"frequency, 1k tokens", 0.6f, 1, 0, 0, 1, 0.5f, 0, 1024}};
    msgl_sample_row *p = (msgl_sample_row *)calloc(rows, sizeof *p);
    CUDA_OK(cudaMalloc((void **)&c.sample_rows, rows * sizeof *p));
    const size_t places = (size_t)rows * SAMPLE_TOKENS;
    int32_t *pool = (int32_t *)malloc(places * sizeof *pool);
    for (size_t i = 0; i < places; i++) pool[i] = (int32_t)(i * 2654435761u % c.vocab);
    CUDA_OK(cudaMalloc((void **)&c.pool, places * sizeof *pool));
    CUDA_OK(cudaMalloc((void **)&c.saved, places * sizeof *c.saved));
    CUDA_OK(cudaMemcpy(c.pool, pool, places * sizeof *pool, cudaMemcpyHostToDevice));
    for (int r = 0; r < rows; r++) pool[r] = (r + 1) * SAMPLE_TOKENS - 1;
    CUDA_OK(cudaMalloc((void **)&c.ints[0], rows * sizeof *pool));
    CUDA_OK(cudaMemcpy(c.ints[0], pool, rows * sizeof *pool, cudaMemcpyHostToDevice));
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int r = 0; r < rows; r++) {
            p[r] = msgl_sample_row{};
            p[r].temperature = kinds[k].temperature, p[r].top_p = kinds[k].top_p;
            p[r].min_p = kinds[k].min_p, p[r].top_k = kinds[k].top_k;
            p[r].seed = r + 1, p[r].position = r;
            if (kinds[k].answer == 0) continue;
            p[r].adjusts = true, p[r].tokens = r * SAMPLE_TOKENS;
            p[r].repetition = kinds[k].repetition, p[r].frequency = kinds[k].frequency;
            p[r].prompt_len = kinds[k].prompt;
            p[r].position = kinds[k].prompt + kinds[k].answer;
        }
        CUDA_OK(cudaMemcpy(c.sample_rows, p, rows * sizeof *p, cudaMemcpyHostToDevice));
        c.any_random = k > 0;
        c.any_filter = kinds[k].top_k > 0 || kinds[k].top_p < 1 || kinds[k].min_p > 0;
        report("sample", kinds[k].name, rows, bytes, graph_us(e, &c, run_sample));
    }
    msgl_token_logprobs *lp = (msgl_token_logprobs *)calloc(rows, sizeof *lp);
    for (int r = 0; r < rows; r++) lp[r].token = r, lp[r].num_top = 5;
    CUDA_OK(cudaMalloc((void **)&c.floats, rows * sizeof *lp));
    CUDA_OK(cudaMemcpy(c.floats, lp, rows * sizeof *lp, cudaMemcpyHostToDevice));
    report("logprobs", "top 5", rows, bytes, graph_us(e, &c, run_logprobs));
    release(&c);
    CUDA_OK(cudaFree(c.floats));
    CUDA_OK(cudaFree(c.sample_rows));
    CUDA_OK(cudaFree(c.pool));
    CUDA_OK(cudaFree(c.ints[0]));
    CUDA_OK(cudaFree(c.saved));
    free(p), free(lp), free(pool);
}

// As DeepSeek-V3's, one group only where there are fewer experts.
static msgl_router v3_router(bench_case *c, int experts)
{
    msgl_router how = {};
    how.top_k = c->how.top_k, how.norm_topk = true, how.scale = 2.5f;
    how.scoring = MSGL_SCORE_SIGMOID;
    how.num_groups = experts < 256 ? 1 : 8, how.top_groups = (how.num_groups + 1) / 2;
    how.group_pairs = true;
    CUDA_OK(cudaMalloc((void **)&how.correction, (size_t)experts * 4));
    CUDA_OK(cudaMemset(how.correction, 0, (size_t)experts * 4));
    c->experts = experts;
    return how;
}

static void bench_moe(bench_exec *e, int rows)
{
    bench_case c = {};
    c.rows = rows, c.experts = 128, c.how.top_k = 8, c.dim = 2048;
    c.how.norm_topk = true, c.how.scale = 1;
    const double n = rows, k = c.how.top_k, row = c.dim * 2.0;
    buffers(e, &c, (size_t)(n * row), (size_t)(n * k * row), MSGL_BF16);
    for (int i = 1; i < 5; i++) {
        CUDA_OK(cudaMalloc((void **)&c.ints[i], (size_t)(n * k + 1024) * 4));
    }
    CUDA_OK(cudaMalloc((void **)&c.floats, (size_t)(n * k) * 4));
    report("moe route", "128, top 8", rows, n * 128 * 4, graph_us(e, &c, run_route));
    report("moe sort", "128, top 8", rows, n * k * 8, graph_us(e, &c, run_sort));
    report("moe gather", "2048, top 8", rows, n * row * (1 + k), graph_us(e, &c, run_gather));
    report("moe combine", "2048, top 8", rows, n * row * (2 + k), graph_us(e, &c, run_combine));
    c.how = v3_router(&c, 256);
    report("moe route", "256, 4 of 8 groups", rows, n * 256 * 4, graph_us(e, &c, run_route));
    CUDA_OK(cudaFree(c.how.correction));
    release(&c);
    for (int i = 1; i < 5; i++) CUDA_OK(cudaFree(c.ints[i]));
    CUDA_OK(cudaFree(c.floats));
}

// Norm, router, choice and sort in one kernel; rows and router of its own for every call.
static void bench_choose(bench_exec *e, int rows)
{
    bench_case c = {};
    c.rows = rows, c.experts = 128, c.how.top_k = 8, c.dim = 2048;
    c.how.norm_topk = true, c.how.scale = 1;
    const size_t n = (size_t)rows, k = (size_t)c.how.top_k, row = (size_t)c.dim * 2;
    const size_t router = (size_t)c.experts * row;
    buffers(e, &c, n * row + router, n * row, MSGL_BF16);
    for (int i = 1; i < 5; i++) CUDA_OK(cudaMalloc((void **)&c.ints[i], (n * k + 1024) * 4));
    CUDA_OK(cudaMalloc((void **)&c.floats, n * (k + (size_t)c.experts) * 4));
    CUDA_OK(cudaMalloc((void **)&c.weight, (size_t)c.dim * 4));
    msgl__cuda_fill_normal(e->device.stream, c.weight, MSGL_F32, (size_t)c.dim, 5, 0.5f);
    report("moe choose", "2048, 128, top 8", rows, (double)(2 * n * row + router),
           graph_us(e, &c, run_choose));
    c.how = v3_router(&c, 128);
    report("moe choose", "the same by sigmoid", rows, (double)(2 * n * row + router),
           graph_us(e, &c, run_choose));
    CUDA_OK(cudaFree(c.how.correction));
    release(&c);
    for (int i = 1; i < 5; i++) CUDA_OK(cudaFree(c.ints[i]));
    CUDA_OK(cudaFree(c.floats));
    CUDA_OK(cudaFree(c.weight));
}

static void bench_device(bench_exec *e)
{
    bench_case c = {};
    int32_t ints[256];
    for (int i = 0; i < 256; i++) ints[i] = i;
    c.rows = 256, c.sets = 1;
    for (int i = 0; i < 5; i++) c.ints[i] = ints_upload(ints, 256);
    report("take", "tokens", 256, 256 * 20, graph_us(e, &c, run_take));
    const size_t n = (size_t)4 << 30;
    void *p;
    CUDA_OK(cudaMalloc(&p, n * 2));
    cudaEvent_t a, b;
    CUDA_OK(cudaEventCreate(&a));
    CUDA_OK(cudaEventCreate(&b));
    float ms = 0;
    for (int i = 0; i < 2; i++) {
        CUDA_OK(cudaEventRecord(a, e->device.stream));
        msgl__cuda_fill_normal(e->device.stream, p, MSGL_BF16, n, 1, 0.02f);
        CUDA_OK(cudaEventRecord(b, e->device.stream));
        exec_sync(e);
        CUDA_OK(cudaEventElapsedTime(&ms, a, b));
    }
    report("fill_normal", "8 GiB bf16", 1, n * 2.0, ms * 1e3f);
    CUDA_OK(cudaFree(p));
}

int main(int argc, char **argv)
{
    static bench_exec e;
    exec_open(&e, 64 << 20);
    e.x.act = MSGL_BF16;
    static msgl_cuda_blas blas; // its flags
    e.device.blas = &blas;
    CUDA_OK(cudaMalloc((void **)&blas.flags, MSGL_GEMM_FLAGS * sizeof(int32_t)));
    CUDA_OK(cudaMemset(blas.flags, 0, MSGL_GEMM_FLAGS * sizeof(int32_t)));
    const char *only = argc > 1 ? argv[1] : "all";
    const bool all = strcmp(only, "all") == 0;
    const int rows[] = {1, 8, 64, 256, 16384};
    for (int m = 0; m < 2 && (all || strcmp(only, "step") == 0); m++) {
        for (int i = 0; i < 5; i++) bench_step(&e, &MODELS[m], rows[i]);
    }
    for (int i = 0; i < 4 && (all || strcmp(only, "sample") == 0); i++) bench_sample(&e, rows[i]);
    for (int i = 0; i < 5 && (all || strcmp(only, "moe") == 0); i++) bench_moe(&e, rows[i]);
    for (int i = 0; i < 4 && (all || strcmp(only, "moe") == 0); i++) bench_choose(&e, rows[i]);
    if (all || strcmp(only, "device") == 0) bench_device(&e);
    return 0;
}
