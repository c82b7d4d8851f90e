// SPDX-License-Identifier: Apache-2.0
//
// Dual chunk attention on a GPU against f64: rotation and store, prompts, and answers as the
// backend makes them (ranges, the decode kernel, the merge); equal bits of prompts in one piece and
// in two. cuda_dual [--seed N] [--quick] [--bench]
#include "tests/cuda/dual_world.cuh"
#include "tests/cuda/ops_check.cuh"

#include "cuda/attn/prefill_sm80.h"

static const msgl_dual_sparse NONE = {INT32_MAX, INT32_MAX};

static void answers(const dual_world *d, cudaStream_t stream)
{
    msgl_cuda_attn_call merge = d->w.call;
    merge.lse = d->lse;
    CUDA_OK(msgl__cuda_dual_ranges(&d->w.call, d->len, &d->to, stream));
    CUDA_OK(msgl__cuda_fa_decode(&d->ranges, stream));
    CUDA_OK(msgl__cuda_dual_merge(&merge, d->len, d->results, stream));
}

static void compare(dual_world *d, family *f, const char *what)
{
    attn_world *w = &d->w;
    const msgl_cuda_attn_call *c = &w->call;
    const double allowed = allowed_error(c->dtype);
    void *out = malloc(w->out_bytes);
    double o[256];
    decode_world(w);
    CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    int count = 0;
    for (int r = 0; r < c->batch; r++) {
        for (int t = 0; t < w->q_lens[r]; t++) {
            for (int h = 0; h < c->num_q_heads; h++) {
                if (count++ % 3 != 0) continue;
                const size_t at = ((size_t)w->cu_q[r] + (size_t)t) * c->ld_out;
                dual_exact(d, r, t, h, NULL, o);
                for (int i = 0; i < c->head_dim; i++) {
                    const float got = attn_get(c->dtype, out, at + (size_t)(h * c->head_dim + i));
                    expect_near(f, got, o[i], allowed, what);
                }
            }
        }
    }
    free(out);
}

enum { BATCH = 6 };
static const int GROUPS[] = {1, 2, 7, 4, 16}, PAGES[] = {1, 16, 64, 7};

static void check_prompts(attn_rng *rng, family *f, int i, bool quick)
{
    static const int dims[] = {128, 64, 8, 80, 256, 200};
    int32_t q[BATCH], k[BATCH];
    for (int r = 0; r < BATCH; r++) {
        q[r] = r == 0 ? 1 : attn_range(rng, 1, quick ? 60 : 300);
        k[r] = q[r] + (r % 2 ? 0 : attn_range(rng, 0, quick ? 60 : 500));
    }
    dual_world d;
    dual_open(&d, rng, i % 2 ? MSGL_F16 : MSGL_BF16, BATCH, q, k, GROUPS[i % 5] * 2, 2, dims[i % 6],
              PAGES[i % 4], attn_range(rng, 20, 200));
    d.w.call.lse = NULL;
    void *const plan = dual_plan(&d, d.w.cu_q, k, NULL);
    for (int planned = 0; planned <= (plan != NULL); planned++) {
        attn_poison(&d.w);
        d.w.call.plan = planned ? plan : NULL;
        // (Twice: a launch leaves the plan as the next one wants it.)
        for (int n = 0; n < 1 + planned; n++)
            CUDA_OK(msgl__cuda_dual_prefill(&d.w.call, d.len, NONE, 0));
        CUDA_OK(cudaDeviceSynchronize());
        compare(&d, f, planned ? "prompts by a plan" : "prompts");
    }
    CUDA_OK(cudaFree(plan));
    dual_close(&d);
}

// The first `first` tokens of a prompt, then the others, give the bits of all at once.
static void check_pieces(attn_rng *rng, family *f, int i, bool planned)
{
    const int32_t n[1] = {700}, first[2] = {0, attn_range(rng, 1, 699)};
    dual_world d;
    dual_open(&d, rng, MSGL_BF16, 1, n, n, 4, 2, i % 2 ? 64 : 128, 16, attn_range(rng, 30, 300));
    attn_world *w = &d.w;
    void *whole = malloc(w->out_bytes), *pieces = malloc(w->out_bytes);
    void *plan = planned ? dual_plan(&d, w->cu_q, n, NULL) : NULL;
    w->call.plan = plan;
    CUDA_OK(msgl__cuda_dual_prefill(&w->call, d.len, NONE, 0));
    CUDA_OK(cudaMemcpy(whole, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    attn_poison(w);
    const size_t skip_q = (size_t)first[1] * w->call.ld_q * 2;
    const size_t skip_out = (size_t)first[1] * w->call.ld_out * 2;
    for (int piece = 0; piece < 2; piece++) {
        const int32_t cu[2] = {0, piece == 0 ? first[1] : n[0] - first[1]};
        const int32_t len[1] = {piece == 0 ? first[1] : n[0]};
        msgl_cuda_attn_call c = w->call;
        device_write(w->cu_dev, cu, sizeof cu);
        device_write(w->lens_dev, len, sizeof len);
        c.total_q = c.max_seqlen_q = cu[1];
        c.max_seqlen_k = len[0];
        c.lse = NULL;
        c.q = (const char *)c.q + (piece == 0 ? 0 : skip_q);
        c.out = (char *)c.out + (piece == 0 ? 0 : skip_out);
        CUDA_OK(cudaFree(plan));
        c.plan = plan = planned ? dual_plan(&d, cu, len, NULL) : NULL;
        CUDA_OK(msgl__cuda_dual_prefill(&c, d.len, NONE, 0));
        CUDA_OK(cudaDeviceSynchronize());
    }
    CUDA_OK(cudaMemcpy(pieces, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    for (int32_t t = 0; t < n[0]; t++) {
        const size_t at = (size_t)t * w->call.ld_out * 2, bytes = d.ranges.ld_q * 2;
        expect(f, memcmp((char *)whole + at, (char *)pieces + at, bytes) == 0, "other bits");
    }
    free(whole), free(pieces);
    CUDA_OK(cudaFree(plan));
    dual_close(&d);
}

// A plan without the prompts that are left out: their output stays as it was, the others' is right.
static void check_left_out(attn_rng *rng, family *f, int i)
{
    const int32_t q[3] = {90, 200, 30}, k[3] = {90, 450, 600};
    const msgl_dual_sparse sparse = {64, 400}; // the second one
    dual_world d;
    dual_open(&d, rng, MSGL_BF16, 3, q, k, 4, 2, i % 2 ? 64 : 128, 16, 70);
    attn_world *w = &d.w;
    w->call.lse = NULL;
    void *const plan = dual_plan(&d, w->cu_q, k, &sparse);
    if (plan != NULL) {
        w->call.plan = plan;
        CUDA_OK(cudaMemset(w->out_dev, 0x5a, w->out_bytes));
        CUDA_OK(msgl__cuda_dual_prefill(&w->call, d.len, sparse, 0));
        uint8_t *const out = (uint8_t *)malloc(w->out_bytes);
        CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
        const size_t row = w->call.ld_out * 2, end = (size_t)w->cu_q[2] * row;
        bool left = true;
        for (size_t at = (size_t)w->cu_q[1] * row; at < end; at++) left &= out[at] == 0x5a;
        expect(f, left, "left out");
        expect(f, out[0] != 0x5a || out[1] != 0x5a, "the first");
        expect(f, out[end] != 0x5a || out[end + 1] != 0x5a, "the last");
        free(out);
    }
    CUDA_OK(cudaFree(plan));
    dual_close(&d);
}

// Launched, launched again, and as a graph.
static void check_answers(attn_rng *rng, family *f, int i)
{
    static const int dims[] = {128, 64, 96, 256};
    int32_t q[BATCH], k[BATCH];
    const int32_t len = attn_range(rng, 20, 200);
    for (int r = 0; r < BATCH; r++) {
        q[r] = 1;
        k[r] = attn_range(rng, 1, r < 2 ? len : 2000);
        if (r == 5) k[r] = len * attn_range(rng, 1, 4);
    }
    dual_world d;
    dual_open(&d, rng, i % 2 ? MSGL_F16 : MSGL_BF16, BATCH, q, k, GROUPS[i % 5] * 2, 2, dims[i % 4],
              PAGES[i % 4], len);
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    attn_poison(&d.w);
    CUDA_OK(cudaDeviceSynchronize());
    answers(&d, stream);
    CUDA_OK(cudaDeviceSynchronize());
    compare(&d, f, "answers");
    const cudaGraphExec_t graph = cuda_capture(stream, [&] { answers(&d, stream); });
    attn_poison(&d.w);
    CUDA_OK(cudaMemset(d.to.seqlens_k, 0, BATCH * MSGL_DUAL_QUERIES * 4));
    CUDA_OK(cudaDeviceSynchronize());
    for (int n = 0; n < 3; n++) CUDA_OK(cudaGraphLaunch(graph, stream));
    CUDA_OK(cudaDeviceSynchronize());
    compare(&d, f, "answers in a graph");
    CUDA_OK(cudaGraphExecDestroy(graph));
    CUDA_OK(cudaStreamDestroy(stream));
    dual_close(&d);
}

static double rotated(const float *v, const float *cos_sin, int half, int i)
{
    if (i >= 2 * half) return v[i];
    const int pair = i % half;
    const double other = i < half ? -(double)v[i + half] : (double)v[i - half];
    return (double)v[i] * (double)cos_sin[pair] + other * (double)cos_sin[half + pair];
}

static void check_rope(bench_exec *e, family *f, msgl_dtype dtype, int dim, int half, int gap,
                       bool scaled_keys, uint64_t *seed)
{
    enum { TOKENS = 9, Q = 6, KV = 2, SLOTS = TOKENS + 3 };
    const size_t width = Q * (size_t)dim, ld = (Q + 2 * KV) * (size_t)dim + (size_t)gap;
    const size_t set = 2 * (size_t)half, slot = KV * (size_t)dim;
    const msgl_dual_chunk dual = {24, 32, 50, scaled_keys};
    int32_t positions[TOKENS], prompt_lens[TOKENS], slots[TOKENS];
    array qkv = array_new(dtype, TOKENS * ld, 1, seed), freq = array_new(MSGL_F32, half, 1, seed);
    array table = array_new(MSGL_F32, TOKENS * MSGL_DUAL_SETS * set, 0, seed);
    array queries = array_new(dtype, TOKENS * MSGL_DUAL_QUERIES * width, 0, seed);
    array k = array_new(dtype, SLOTS * slot, 0, seed), v = array_new(dtype, SLOTS * slot, 0, seed);
    for (int t = 0; t < TOKENS; t++) {
        positions[t] = t * 11, prompt_lens[t] = t % 2 ? 200 : 50, slots[t] = SLOTS - 1 - t;
    }
    int32_t *dev_positions = ints_upload(positions, TOKENS);
    int32_t *dev_prompt_lens = ints_upload(prompt_lens, TOKENS),
            *dev_slots = ints_upload(slots, TOKENS);
    msgl_dual_table_call angles = {};
    angles.positions = dev_positions, angles.prompt_lens = dev_prompt_lens, angles.tokens = TOKENS;
    angles.inv_freq = (const float *)freq.dev, angles.half = half, angles.scale = 0.5f;
    angles.dual = dual, angles.cos_sin = (float *)table.dev;
    msgl_dual_rope_call c = {};
    c.rope.qkv = qkv.dev, c.rope.ld = ld, c.rope.tokens = TOKENS, c.rope.num_q_heads = Q;
    c.rope.num_kv_heads = KV, c.rope.head_dim = dim, c.rope.half = half, c.rope.kv_dtype = dtype;
    c.rope.cos_sin = (const float *)table.dev, c.rope.slots = dev_slots;
    c.rope.k_pool = k.dev, c.rope.v_pool = v.dev, c.queries = queries.dev;
    e->x.act = dtype;
    msgl__cuda_dual_table(&e->x, &angles);
    msgl__cuda_dual_rope_store(&e->x, &c);
    exec_sync(e);
    array_download(&table);
    array_download(&queries);
    array_download(&k);
    array_download(&v);
    for (size_t t = 0; t < TOKENS; t++) {
        const int own = positions[t] % 24, at[] = {own, own, own < 8 ? own + 24 : 32, 32};
        const bool answer = positions[t] >= prompt_lens[t];
        const double n = answer ? positions[t] + 1 : prompt_lens[t];
        const double factor = 1 + 0.1 * log(n / 50), key = scaled_keys && !answer ? factor : 1;
        const float *sets = table.host + t * MSGL_DUAL_SETS * set, *row = qkv.host + t * ld;
        for (size_t s = 0; s < MSGL_DUAL_SETS; s++) {
            for (int i = 0; i < half; i++) {
                const double angle = (double)((float)at[s] * freq.host[i]);
                const double query = scaled_keys ? factor : factor * factor;
                const double scale = 0.5 * (s == 0 ? key : query);
                expect_near(f, sets[s * set + i], scale * cos(angle), 1e-5, "cosine");
                expect_near(f, sets[s * set + half + i], scale * sin(angle), 1e-5, "sine");
            }
        }
        for (size_t i = 0; i < (Q + 2 * KV) * (size_t)dim; i++) {
            const float *head = row + i / dim * dim;
            const int at_dim = (int)(i % dim);
            for (size_t q = 0; q < MSGL_DUAL_QUERIES && i < width; q++) {
                const double want = rotated(head, sets + (q + 1) * set, half, at_dim);
                const float got = queries.host[(t * MSGL_DUAL_QUERIES + q) * width + i];
                expect_near(f, got, want, fabs(want) * dtype_error(dtype) + 4e-6, "query");
            }
            const size_t to = (size_t)slots[t] * slot;
            if (i >= width && i < width + slot) {
                const double want = rotated(head, sets, half, at_dim);
                expect_near(f, k.host[to + i - width], want, fabs(want) * dtype_error(dtype) + 4e-6,
                            "key");
            } else if (i >= width) {
                expect(f, v.host[to + i - width - slot] == head[at_dim], "value");
            }
        }
    }
    CUDA_OK(cudaFree(dev_positions));
    CUDA_OK(cudaFree(dev_prompt_lens));
    CUDA_OK(cudaFree(dev_slots));
    array *const all[] = {&qkv, &freq, &table, &queries, &k, &v};
    for (array *a : all) array_free(a);
}

// Qwen2.5-7B-Instruct-1M's shape: 28 heads over 4, chunks of 7168 tokens.
static void bench(attn_rng *rng)
{
    enum { HEADS = 28, KV = 4, DIM = 128, CHUNK = 7168 };
    printf("bf16, %d heads over %d, head_dim %d, chunks of %d, us\n", HEADS, KV, DIM, CHUNK);
    printf(
        "| prompt | by a plan | TFLOP/s | dual | TFLOP/s | plain, prefill for sm_80 | TFLOP/s |\n");
    for (int i = 0; i < 3; i++) {
        const int32_t one[1] = {1}, n[1] = {i == 0 ? 4096 : i == 1 ? 16384 : 65536};
        const double flops = 2.0 * HEADS * DIM * (double)n[0] * (double)n[0];
        dual_world d;
        dual_open(&d, rng, MSGL_BF16, 1, one, n, HEADS, KV, DIM, 64, CHUNK);
        make_prompt(&d);
        const int times = i == 2 ? 2 : 5;
        const auto prompt = [&] { CUDA_OK(msgl__cuda_dual_prefill(&d.w.call, CHUNK, NONE, 0)); };
        const double dual = time_us(times, prompt);
        const double plain =
            time_us(times, [&] { CUDA_OK(msgl__cuda_fa_prefill_sm80(&d.w.call, 0)); });
        const int32_t cu[2] = {0, n[0]};
        void *const plan = dual_plan(&d, cu, n, NULL);
        d.w.call.plan = plan;
        const double planned = plan != NULL ? time_us(times, prompt) : dual;
        printf("| 1x%d | %.0f | %.0f | %.0f | %.0f | %.0f | %.0f |\n", (int)n[0], planned,
               flops / planned * 1e-6, dual, flops / dual * 1e-6, plain, flops / plain * 1e-6);
        CUDA_OK(cudaFree(plan));
        dual_close(&d);
    }
    printf("| answers | dual | GB/s | plain | GB/s |\n");
    for (int i = 0; i < 4; i++) {
        const int batch = i < 2 ? 1 : i == 2 ? 16 : 64;
        const int32_t len = i == 0 ? 16384 : i == 1 ? 65536 : i == 2 ? 16384 : 8192;
        int32_t q[64], k[64];
        for (int r = 0; r < batch; r++) q[r] = 1, k[r] = len;
        dual_world d;
        dual_open(&d, rng, MSGL_BF16, batch, q, k, HEADS, KV, DIM, 64, CHUNK);
        const double bytes = (double)batch * len * KV * DIM * 4;
        d.ranges.max_seqlen_k = len - CHUNK > CHUNK ? len - CHUNK : CHUNK;
        msgl_cuda_attn_call plain_call = d.w.call;
        plain_call.lse = NULL;
        const double dual = time_us(50, [&] { answers(&d, 0); });
        const double plain = time_us(50, [&] { CUDA_OK(msgl__cuda_fa_decode(&plain_call, 0)); });
        printf("| %dx%d | %.1f | %.0f | %.1f | %.0f |\n", batch, (int)len, dual,
               bytes / dual * 1e-3, plain, bytes / plain * 1e-3);
        dual_close(&d);
    }
}

int main(int argc, char **argv)
{
    const options args = parse_options(argc, argv);
    uint64_t seed = args.seed;
    attn_rng rng = {args.seed};
    family rope = {"dual rope"}, prompts = {"dual prompts"}, pieces = {"dual pieces"};
    family decode = {"dual answers"};
    static bench_exec e;
    exec_open(&e, 1 << 20);
    for (int d = 0; d < 3; d++) {
        const msgl_dtype dtype = d == 0 ? MSGL_BF16 : d == 1 ? MSGL_F16 : MSGL_F32;
        check_rope(&e, &rope, dtype, 128, 64, 8, false, &seed);
        check_rope(&e, &rope, dtype, 80, 32, 0, true, &seed);
        check_rope(&e, &rope, dtype, 40, 10, 3, false, &seed);
    }
    for (int i = 0; i < (args.quick ? 6 : 30); i++) check_prompts(&rng, &prompts, i, args.quick);
    for (int i = 0; i < (args.quick ? 2 : 12); i++) check_pieces(&rng, &pieces, i / 2, i % 2 == 1);
    for (int i = 0; i < 2; i++) check_left_out(&rng, &pieces, i);
    for (int i = 0; i < (args.quick ? 2 : 20); i++) check_answers(&rng, &decode, i);
    int failed = family_end(&rope);
    failed |= family_end(&prompts);
    failed |= family_end(&pieces);
    failed |= family_end(&decode);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) bench(&rng);
    }
    return failed;
}
