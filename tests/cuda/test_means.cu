// SPDX-License-Identifier: Apache-2.0
//
// Blocks of keys by their means (kernel/index.h): the keys that the pool holds against f64, with
// the same bits however a prompt is cut; the choice exactly as the CPU's, of small whole numbers
// whose scores are exact and often equal; a token's scores and choice in a chunk and alone to the
// bit. cuda_means [--seed N] [--quick].
#include <vector>

#include "tests/cuda/paged_seqs.cuh"

extern "C" {
#include "tests/cuda/index_cpu.h"
}

// --- keys and queries ----------------------------------------------------------------------------

struct store_case {
    msgl_dtype dtype;
    int heads, dim, half, size, page;
    std::vector<int32_t> lens; // of requests
};

// What all steps of a case have.
struct store_world {
    bench_exec *e;
    family *f;
    const store_case *t;
    paged p; // of all tokens
    array k, q_weight, k_weight, inv_freq;
    std::vector<array> q; // of each request, [len, heads, dim]
    std::vector<size_t> first;
};

static double turn(const store_world &w, int i, int pos)
{
    return (double)((float)pos * w.inv_freq.host[i]);
}

// Normed and rotated, as position `pos`.
static std::vector<double> finished(const store_world &w, std::vector<double> v,
                                    const float *weight, int pos)
{
    double squares = 0;
    for (double x : v) squares += x * x / w.t->dim;
    for (int i = 0; i < w.t->dim; i++) v[i] *= weight[i] / sqrt(squares + 1e-6);
    for (int i = 0; i < w.t->half; i++) {
        const double c = 1.25 * cos(turn(w, i, pos)), s = 1.25 * sin(turn(w, i, pos));
        const double a = v[i], b = v[w.t->half + i];
        v[i] = a * c - b * s, v[w.t->half + i] = b * c + a * s;
    }
    return v;
}

// One step: tokens [from[r], to[r]) of each request, none of some. split: each token is a request
// of its own, as rows of drafts are.
static void store_step(store_world *w, const std::vector<int32_t> &from,
                       const std::vector<int32_t> &to, bool split, array *pool)
{
    const store_case &t = *w->t;
    const size_t dim = t.dim, queries = t.heads * dim, ld = queries + dim + 3;
    std::vector<int32_t> cu = {0}, begins = {0}, lens, rows; // the last three: of seqs
    for (size_t r = 0; r < from.size(); r++) {
        cu.push_back(cu[r] + to[r] - from[r]);
        for (int len = split ? from[r] + 1 : to[r]; len <= to[r]; len++) {
            begins.push_back(cu[r] + len - from[r]);
            lens.push_back(len), rows.push_back(w->p.rows[r]);
        }
    }
    const size_t tokens = cu.back();
    array qk = array_new(t.dtype, tokens * ld, 0, NULL);
    array angles = array_new(MSGL_F32, tokens * 2 * t.half + 1, 0, NULL);
    for (size_t r = 0; r < from.size(); r++) {
        for (int pos = from[r]; pos < to[r]; pos++) {
            const size_t row = cu[r] + pos - from[r];
            std::copy_n(w->q[r].host + pos * queries, queries, qk.host + row * ld);
            std::copy_n(w->k.host + (w->first[r] + pos) * dim, dim, qk.host + row * ld + queries);
            for (int i = 0; i < t.half; i++) {
                angles.host[row * 2 * t.half + i] = (float)(1.25 * cos(turn(*w, i, pos)));
                angles.host[row * 2 * t.half + t.half + i] = (float)(1.25 * sin(turn(*w, i, pos)));
            }
        }
    }
    array_upload(&qk), array_upload(&angles);
    msgl_seqs s = w->p.seqs;
    int32_t *const begins_dev = ints_upload(begins.data(), begins.size());
    int32_t *const lens_dev = ints_upload(lens.data(), lens.size());
    int32_t *const rows_dev = ints_upload(rows.data(), rows.size());
    s.size = (int32_t)lens.size(), s.num_tokens = (int32_t)tokens, s.related = split;
    s.dev_cu_seqlens_q = begins_dev, s.dev_seqlens_k = lens_dev, s.dev_table_rows = rows_dev;
    msgl_index_means_store_call c = {};
    c.seqs = &s;
    c.heads = t.heads, c.dim = t.dim, c.half = t.half, c.size = t.size;
    c.q = qk.dev, c.k = (char *)qk.dev + queries * msgl__dtype_size(t.dtype), c.ld = ld;
    c.q_weight = (const float *)w->q_weight.dev, c.k_weight = (const float *)w->k_weight.dev;
    c.eps = 1e-6f, c.scale = 1.25f;
    c.cos_sin = (const float *)angles.dev, c.inv_freq = (const float *)w->inv_freq.dev;
    c.dtype = t.dtype, c.pool = pool->dev;
    c.pages = w->p.device[3], c.page_stride = w->p.stride, c.page_size = t.page;
    msgl__cuda_index_store_means(&w->e->x, &c);
    exec_sync(w->e);
    array_download(&qk);
    const double error = dtype_error(t.dtype) * 1.01 + 2e-6;
    for (size_t r = 0; r < from.size(); r++) {
        for (int pos = from[r]; pos < to[r]; pos++) {
            const float *row = qk.host + (cu[r] + pos - from[r]) * ld;
            for (int h = 0; h < t.heads; h++) {
                const float *raw = w->q[r].host + pos * queries + h * dim;
                const std::vector<double> want =
                    finished(*w, std::vector<double>(raw, raw + dim), w->q_weight.host, pos);
                for (size_t d = 0; d < dim; d++) {
                    expect_near(w->f, row[h * dim + d], want[d], (fabs(want[d]) + 2) * error,
                                "query");
                }
            }
            const float *raw = w->k.host + (w->first[r] + pos) * dim;
            expect(w->f, memcmp(row + queries, raw, dim * sizeof(float)) == 0, "raw key");
            for (size_t d = queries + dim; d < ld; d++) {
                expect(w->f, isnan(row[d]), "what is behind the key");
            }
        }
    }
    array_free(&qk), array_free(&angles);
    cudaFree(begins_dev), cudaFree(lens_dev), cudaFree(rows_dev);
}

// The pool of the whole prompts against f64; slots of nobody stay NaN.
static void check_pool(store_world *w, const array &pool)
{
    const store_case &t = *w->t;
    const size_t dim = t.dim;
    const double error = dtype_error(t.dtype) * 1.01 + 2e-6;
    for (size_t slot = 0; slot < w->p.owned.size(); slot++) {
        for (size_t d = 0; d < dim && !w->p.owned[slot]; d++) {
            expect(w->f, isnan(pool.host[slot * dim + d]), "slots of nobody");
        }
    }
    for (size_t r = 0; r < t.lens.size(); r++) {
        std::vector<double> sum(dim, 0);
        for (int pos = 0; pos < t.lens[r]; pos++) {
            const float *raw = w->k.host + (w->first[r] + pos) * dim;
            const float *got = pool.host + (size_t)w->p.slot((int)r, pos) * dim;
            for (size_t d = 0; d < dim; d++) sum[d] += raw[d] / (double)t.size;
            if ((pos + 1) % t.size != 0) {
                expect(w->f, memcmp(raw, got, dim * sizeof(float)) == 0, "a raw key as it was");
                continue;
            }
            const std::vector<double> want = finished(*w, sum, w->k_weight.host, pos + 1 - t.size);
            for (size_t d = 0; d < dim; d++) {
                expect_near(w->f, got[d], want[d], (fabs(want[d]) + 2) * error, "a block's key");
            }
            sum.assign(dim, 0);
        }
    }
}

static void check_store(bench_exec *e, family *f, const store_case &t, uint64_t *seed)
{
    store_world w = {e, f, &t, paged_new(t.lens, t.lens, t.page, seed)};
    const size_t requests = t.lens.size(), slots = w.p.owned.size() * t.dim;
    size_t tokens = 0;
    e->x.act = t.dtype;
    for (size_t r = 0; r < requests; r++) {
        w.first.push_back(tokens), tokens += t.lens[r];
        w.q.push_back(array_new(t.dtype, (size_t)t.lens[r] * t.heads * t.dim, 2, seed));
    }
    w.k = array_new(t.dtype, tokens * t.dim, 2, seed);
    w.q_weight = array_new(MSGL_F32, t.dim, 1, seed);
    w.k_weight = array_new(MSGL_F32, t.dim, 1, seed);
    w.inv_freq = array_new(MSGL_F32, t.half + 1, 1, seed);
    for (int i = 0; i < t.half; i++) w.inv_freq.host[i] = (float)pow(1000, -(double)i / t.half);
    array_upload(&w.inv_freq);
    array whole = array_new(t.dtype, slots, 0, NULL), cut = array_new(t.dtype, slots, 0, NULL);
    std::vector<int32_t> at(requests, 0);
    store_step(&w, at, t.lens, false, &whole);
    array_download(&whole);
    check_pool(&w, whole);
    // Of each request in turn a part, now and then as drafts, or of all of them one token.
    for (size_t step = 0; at != t.lens; step++) {
        std::vector<int32_t> to = at;
        for (size_t r = 0; r < requests; r++) {
            const int n = step % 3 == 0          ? 1
                          : step % requests == r ? 1 + below(seed, 2 * t.size)
                                                 : 0;
            to[r] = std::min(at[r] + n, t.lens[r]);
        }
        store_step(&w, at, to, step % 3 == 1, &cut);
        at = to;
    }
    array_download(&cut);
    expect(f, memcmp(whole.host, cut.host, slots * sizeof(float)) == 0,
           "the pool's bits, whatever the cuts");
    for (array &q : w.q) array_free(&q);
    array_free(&w.k), array_free(&w.q_weight), array_free(&w.k_weight), array_free(&w.inv_freq);
    array_free(&whole), array_free(&cut), paged_free(&w.p);
}

// --- the choice ----------------------------------------------------------------------------------

struct choice {
    msgl_dtype dtype;
    int heads, queries, dim, size, top_k, page, tokens; // tokens: of a call
    std::vector<int32_t> q_lens, k_lens;
};

static int list_of(const choice &t)
{
    return t.top_k * t.size + t.size - 1;
}

// Whole numbers from -2 to 2 as blocks' keys, now and then NaN; what is no block's key is NaN.
static array keys_new(const choice &t, const paged &p, uint64_t *seed)
{
    array pool = array_new(t.dtype, p.owned.size() * t.dim, 0, NULL);
    for (size_t r = 0; r < t.k_lens.size(); r++) {
        for (int pos = t.size - 1; pos < t.k_lens[r]; pos += t.size) {
            const size_t slot = p.slot((int)r, pos);
            for (int d = 0; d < t.dim && slot % 41 != 7; d++) {
                pool.host[slot * t.dim + d] = (float)(below(seed, 5) - 2);
            }
        }
    }
    array_upload(&pool);
    return pool;
}

// A call of the GPU's about tokens [first, first + tokens), its lists and counts being -1.
struct chosen {
    std::vector<int32_t> keys, counts; // [heads, tokens, list], [heads, tokens]
    std::vector<uint32_t> orders;      // [tokens, max_blocks]
};

static msgl_index_blocks_call call_of(const choice &t, const paged &p, const array &q, size_t ld,
                                      const array &pool)
{
    msgl_index_blocks_call c = {};
    c.seqs = &p.seqs;
    c.heads = t.heads, c.queries = t.queries, c.dim = t.dim, c.size = t.size, c.top_k = t.top_k;
    c.q = q.dev, c.ld_q = ld;
    c.dtype = t.dtype, c.pool = pool.dev;
    c.pages = p.device[3], c.page_stride = p.stride, c.page_size = t.page;
    c.max_blocks = (p.most + t.size - 1) / t.size;
    return c;
}

static chosen choose(bench_exec *e, msgl_index_blocks_call c, int first, int tokens, int list)
{
    const size_t lists = (size_t)c.heads * tokens, scores = (size_t)tokens * c.max_blocks;
    const std::vector<int32_t> none(std::max(lists * list, scores), -1);
    int32_t *const scores_dev = ints_upload(none.data(), scores);
    c.first = first, c.tokens = tokens;
    c.keys = ints_upload(none.data(), lists * list), c.counts = ints_upload(none.data(), lists);
    c.scores = (float *)scores_dev;
    msgl__cuda_index_choose_means(&e->x, &c);
    exec_sync(e);
    chosen got = {ints_download(c.keys, lists * list), ints_download(c.counts, lists)};
    for (int32_t order : ints_download(scores_dev, scores)) got.orders.push_back((uint32_t)order);
    cudaFree(c.keys), cudaFree(c.counts), cudaFree(scores_dev);
    return got;
}

static chosen on_cpu(const msgl_index_blocks_call &gpu, const paged &p, const array &q,
                     const array &pool, int token, int list)
{
    chosen w = {std::vector<int32_t>((size_t)gpu.heads * list, -1),
                std::vector<int32_t>(gpu.heads, -1)};
    std::vector<float> scores(gpu.max_blocks);
    const msgl_seqs s = paged_host(p);
    msgl_index_blocks_call c = gpu;
    c.seqs = &s, c.first = token, c.tokens = 1;
    c.q = q.host, c.dtype = MSGL_F32, c.pool = pool.host;
    c.pages = p.pages.data(), c.scores = scores.data();
    c.keys = w.keys.data(), c.counts = w.counts.data();
    if (means_on_cpu(&c) != 0) printf("the CPU's kernel failed\n"), exit(1);
    return w;
}

static void check_choice(bench_exec *e, family *f, const choice &t, uint64_t *seed)
{
    e->x.act = t.dtype;
    paged p = paged_new(t.q_lens, t.k_lens, t.page, seed);
    const size_t ld = (size_t)(t.queries + 1) * t.dim + t.dim % 2; // keys are beside the queries
    const int list = list_of(t);
    array q = array_new(t.dtype, p.tokens * ld, 0, NULL);
    for (size_t i = 0; i < q.n; i++) {
        if (i % ld < (size_t)t.queries * t.dim) q.host[i] = (float)(below(seed, 5) - 2);
    }
    array_upload(&q);
    array pool = keys_new(t, p, seed);
    const msgl_index_blocks_call c = call_of(t, p, q, ld, pool);
    for (int first = 0; first < p.tokens; first += t.tokens) {
        const int tokens = std::min(t.tokens, p.tokens - first);
        const chosen got = choose(e, c, first, tokens, list);
        for (int token = first; token < first + tokens; token++) {
            const chosen want = on_cpu(c, p, q, pool, token, list);
            for (int h = 0; h < t.heads; h++) {
                const size_t at = (size_t)h * tokens + (token - first);
                const auto keys = want.keys.begin() + (size_t)h * list;
                expect(f, got.counts[at] == want.counts[h], "number of keys");
                expect(f, std::equal(keys, keys + list, got.keys.begin() + at * list), "choice");
            }
        }
    }
    array_free(&q), array_free(&pool), paged_free(&p);
}

// Numbers that are not exact: the tokens of requests as chunks, and each as the one new token of
// its request.
static void check_bits(bench_exec *e, family *f, const choice &t, uint64_t *seed)
{
    e->x.act = t.dtype;
    paged p = paged_new(t.q_lens, t.k_lens, t.page, seed);
    const size_t ld = (size_t)t.queries * t.dim;
    const int list = list_of(t);
    array q = array_new(t.dtype, p.tokens * ld, 1, seed);
    array pool = array_new(t.dtype, p.owned.size() * t.dim, 1, seed);
    msgl_index_blocks_call c = call_of(t, p, q, ld, pool);
    const chosen all = choose(e, c, 0, p.tokens, list);
    for (size_t r = 0; r < t.q_lens.size(); r++) {
        for (int token = p.cu[r]; token < p.cu[r + 1]; token++) {
            const int32_t len = t.k_lens[r] - (p.cu[r + 1] - token) + 1;
            const int32_t host[] = {0, 1, len, p.rows[r]};
            int32_t *const dev = ints_upload(host, 4);
            msgl_seqs s = p.seqs;
            s.size = s.num_tokens = s.max_seqlen_q = 1, s.max_seqlen_k = len;
            s.dev_cu_seqlens_q = dev, s.dev_seqlens_k = dev + 2, s.dev_table_rows = dev + 3;
            c.seqs = &s, c.q = (char *)q.dev + token * ld * msgl__dtype_size(t.dtype);
            const chosen one = choose(e, c, 0, 1, list);
            const auto orders = all.orders.begin() + (size_t)token * c.max_blocks;
            expect(f, std::equal(one.orders.begin(), one.orders.end(), orders), "scores' bits");
            for (int h = 0; h < t.heads; h++) {
                const auto keys = all.keys.begin() + ((size_t)h * p.tokens + token) * list;
                expect(f, std::equal(keys, keys + list, one.keys.begin() + (size_t)h * list),
                       "choice alone");
            }
            cudaFree(dev);
        }
    }
    array_free(&q), array_free(&pool), paged_free(&p);
}

// Answers, chunks and both; blocks of one key up to more than a warp's lanes; pages that end inside
// of blocks and behind them; queries that fill rows of a warp, that do not, and of several passes.
static void check_choices(bench_exec *e, family *f, msgl_dtype dtype, bool quick, uint64_t *seed)
{
    const choice cases[] = {
        {dtype, 2, 3, 16, 4, 3, 4, 64, {1, 1, 20, 3, 1}, {1, 9, 20, 70, 25}},
        {dtype, 1, 1, 32, 5, 4, 16, 32, {1, 40, 7, 1}, {150, 90, 33, 21}},
        {dtype, 3, 4, 64, 1, 20, 7, 16, {1, 1, 1}, {300, 81, 20}},
        {dtype, 2, 16, 128, 16, 3, 64, 64, {33, 1, 2}, {1100, 640, 385}},
        {dtype, 2, 8, 128, 8, 5, 16, 8, {1, 1, 1, 1}, {1409, 640, 385, 2}},
        {dtype, 4, 40, 200, 3, 4, 1, 9, {2, 18}, {200, 90}},
        {dtype, 1, 6, 24, 40, 2, 8, 16, {5, 1}, {260, 130}},
        {dtype, 2, 3, 33, 6, 3, 4, 32, {1, 9}, {80, 30}},
        {dtype, 2, 5, 15, 2, 3, 4, 64, {40, 9, 1}, {150, 101, 85}},
    };
    for (const choice &t : cases) check_choice(e, f, t, seed);
    check_bits(e, f, {dtype, 2, 3, 64, 4, 6, 16, 0, {21, 30}, {600, 30}}, seed);
    check_bits(e, f, {dtype, 1, 20, 128, 2, 9, 16, 0, {10}, {200}}, seed);
    if (quick) return;
    check_choice(
        e, f, {dtype, 2, 16, 128, 4, 512, 64, 256, {1, 300, 1, 1}, {9000, 2500, 2048, 2049}}, seed);
    check_choice(e, f, {dtype, 2, 16, 128, 32, 64, 16, 256, {1, 1}, {70000, 3}}, seed);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family stored = {"means store"}, choices = {"means choice"};
    for (msgl_dtype dtype : {MSGL_F32, MSGL_F16, MSGL_BF16}) {
        check_store(&e, &stored, {dtype, 3, 16, 4, 4, 16, {1, 9, 20, 35}}, &seed);
        check_store(&e, &stored, {dtype, 4, 128, 32, 5, 4, {30, 11}}, &seed);
        check_store(&e, &stored, {dtype, 1, 33, 8, 1, 7, {5, 3}}, &seed);
        check_store(&e, &stored, {dtype, 5, 256, 128, 16, 64, {70, 16}}, &seed);
        if (!o.quick) check_store(&e, &stored, {dtype, 16, 128, 64, 32, 64, {900, 333}}, &seed);
        check_choices(&e, &choices, dtype, o.quick, &seed);
    }
    return family_end(&stored) | family_end(&choices);
}
