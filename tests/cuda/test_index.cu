// SPDX-License-Identifier: Apache-2.0
//
// Index keys and the choice of keys (kernel/index.h) against what the host makes of the same
// numbers: keys and queries within a rounding; the choice exactly, of small whole numbers whose
// scores are exact and often equal. cuda_index [--seed N] [--quick].
#include <algorithm>
#include <vector>

#include "tests/cuda/paged_seqs.cuh"

extern "C" {
#include "tests/cuda/index_cpu.h"
}

// --- keys and queries ----------------------------------------------------------------------------

struct store_case {
    msgl_dtype dtype;
    int tokens, heads, dim, half;
    bool rms; // norms without a mean and a bias, of keys and queries
};

// What a vector of `dim` elements becomes. bias NULL: its norm is RMS; weight NULL: none.
static std::vector<double> stored(const float *row, const store_case &t, const float *weight,
                                  const float *bias, const float *angles)
{
    std::vector<double> v(row, row + t.dim), out;
    double mean = 0, squares = 0;
    for (int i = 0; i < t.dim && bias != NULL; i++) mean += v[i] / t.dim;
    for (int i = 0; i < t.dim; i++) squares += (v[i] - mean) * (v[i] - mean) / t.dim;
    for (int i = 0; i < t.dim && weight != NULL; i++) {
        v[i] = (v[i] - mean) / sqrt(squares + MSGL_INDEX_EPS) * weight[i];
        if (bias != NULL) v[i] += bias[i];
    }
    for (int i = 0; i < t.dim; i++) {
        const int p = t.half > 0 ? i % t.half : 0;
        const double c = angles[p], s = angles[t.half + p];
        out.push_back(i < t.half       ? v[p] * c - v[t.half + p] * s
                      : i < 2 * t.half ? v[t.half + p] * c + v[p] * s
                                       : v[i]);
    }
    return out;
}

static void check_store(bench_exec *e, family *f, const store_case &t, uint64_t *seed)
{
    const int dim = t.dim, tokens = t.tokens;
    const size_t ld_q = (size_t)t.heads * dim + 8, ld_k = (size_t)dim + 8;
    e->x.act = t.dtype;
    array q = array_new(t.dtype, tokens * ld_q, 2, seed), got = q;
    array k = array_new(t.dtype, tokens * ld_k, 2, seed);
    array weight = array_new(MSGL_F32, dim, 1, seed), bias = array_new(MSGL_F32, dim, 1, seed);
    array q_weight = array_new(MSGL_F32, dim, 1, seed);
    array angles = array_new(MSGL_F32, (size_t)tokens * 2 * t.half + 1, 1, seed);
    array pool = array_new(t.dtype, (size_t)(2 * tokens) * dim, 0, seed);
    std::vector<int32_t> slots;
    for (int i = 0; i < tokens; i++) slots.push_back(2 * (tokens - 1 - i) + i % 2);
    int32_t *const slots_dev = ints_upload(slots.data(), slots.size());
    msgl_index_store_call c = {};
    c.tokens = tokens, c.heads = t.heads, c.dim = dim, c.half = t.half;
    c.q = q.dev, c.ld_q = ld_q, c.k = k.dev, c.ld_k = ld_k;
    c.k_weight = (const float *)weight.dev;
    c.k_bias = t.rms ? NULL : (const float *)bias.dev;
    c.q_weight = t.rms ? (const float *)q_weight.dev : NULL;
    c.eps = MSGL_INDEX_EPS;
    c.cos_sin = (const float *)angles.dev;
    c.dtype = t.dtype, c.pool = pool.dev, c.slots = slots_dev;
    msgl__cuda_index_store(&e->x, &c);
    exec_sync(e);
    got.host = (float *)malloc((q.n + 1) * sizeof(float));
    array_download(&got);
    array_download(&pool);
    const double error = dtype_error(t.dtype) * 1.01 + 1e-6;
    for (int i = 0; i < tokens; i++) {
        const float *a = angles.host + (size_t)i * 2 * t.half;
        const std::vector<double> key =
            stored(k.host + i * ld_k, t, weight.host, t.rms ? NULL : bias.host, a);
        for (int d = 0; d < dim; d++) {
            expect_near(f, pool.host[(size_t)slots[i] * dim + d], key[d],
                        (fabs(key[d]) + 2) * error, "key");
        }
        for (int h = 0; h < t.heads; h++) {
            const size_t at = i * ld_q + (size_t)h * dim;
            const std::vector<double> query =
                stored(q.host + at, t, t.rms ? q_weight.host : NULL, NULL, a);
            for (int d = 0; d < dim; d++) {
                expect_near(f, got.host[at + d], query[d], (fabs(query[d]) + 2) * error, "query");
            }
        }
        for (size_t d = (size_t)t.heads * dim; d < ld_q; d++) {
            expect(f, got.host[i * ld_q + d] == q.host[i * ld_q + d], "what is beside the queries");
        }
    }
    free(got.host), cudaFree(slots_dev);
    array_free(&q), array_free(&k), array_free(&weight), array_free(&bias), array_free(&angles);
    array_free(&pool), array_free(&q_weight);
}

// --- the choice ----------------------------------------------------------------------------------

struct choice {
    msgl_dtype dtype;
    int heads, dim, top_k, page, score_rows;
    std::vector<int32_t> q_lens, k_lens;
    int every = 0; // as in msgl_index_choose_call
};

// Whole numbers from -2 to 2, and NaN where `nan` says so.
template <typename NAN_AT> static void fill(array *a, uint64_t *seed, const NAN_AT &nan)
{
    for (size_t i = 0; i < a->n; i++) a->host[i] = nan(i) ? NAN : (float)(below(seed, 5) - 2);
    array_upload(a);
}

// Keys of nobody are NaN, and now and then one of somebody.
static array keys_new(msgl_dtype dtype, const paged &p, int dim, uint64_t *seed)
{
    array pool = array_new(dtype, p.owned.size() * dim, 1, seed);
    fill(&pool, seed, [&](size_t i) { return !p.owned[i / dim] || i / dim % 41 == 7; });
    return pool;
}

static double dot_of(const float *q, const float *k, int dim)
{
    double dot = 0;
    for (int d = 0; d < dim; d++) dot += (double)q[d] * k[d];
    return dot;
}

// The n first of scores, of equal ones the earlier, a NaN behind all; in order.
static std::vector<int32_t> first_of(const std::vector<double> &scores, int n)
{
    std::vector<std::pair<double, int32_t>> best; // of the lowest first
    std::vector<int32_t> out;
    for (double s : scores) best.push_back({isnan(s) ? INFINITY : -s, (int32_t)best.size()});
    std::sort(best.begin(), best.end());
    for (int i = 0; i < std::min(n, (int)best.size()); i++) out.push_back(best[i].second);
    std::sort(out.begin(), out.end());
    return out;
}

static void check_choice(bench_exec *e, family *f, const choice &t, uint64_t *seed)
{
    e->x.act = t.dtype;
    paged p = paged_new(t.q_lens, t.k_lens, t.page, seed);
    array q = array_new(t.dtype, (size_t)p.tokens * t.heads * t.dim, 1, seed);
    array weights = array_new(MSGL_F32, (size_t)p.tokens * t.heads, 1, seed);
    fill(&q, seed, [](size_t) { return false; });
    fill(&weights, seed, [](size_t) { return false; });
    array pool = keys_new(t.dtype, p, t.dim, seed);
    const std::vector<int32_t> none((size_t)p.tokens * t.top_k, -1);
    int32_t *const slots_dev = ints_upload(none.data(), none.size());
    int32_t *const counts_dev = ints_upload(none.data(), (size_t)p.tokens);
    void *const scores = device_copy(NULL, (size_t)t.score_rows * p.most * sizeof(float));
    msgl_index_choose_call c = {};
    c.seqs = &p.seqs;
    c.heads = t.heads, c.dim = t.dim, c.top_k = t.top_k, c.every = t.every;
    c.q = q.dev, c.ld_q = (size_t)t.heads * t.dim;
    c.weights = (const float *)weights.dev;
    c.dtype = t.dtype, c.pool = pool.dev;
    c.pages = p.device[3], c.page_stride = p.stride, c.page_size = t.page;
    c.scores = (float *)scores, c.score_rows = t.score_rows, c.max_keys = p.most;
    c.slots = slots_dev, c.counts = counts_dev;
    msgl__cuda_index_choose(&e->x, &c);
    exec_sync(e);
    const std::vector<int32_t> got = ints_download(slots_dev, none.size()),
                               counts = ints_download(counts_dev, p.tokens);
    for (int i = 0; i < p.seqs.size; i++) {
        for (int token = p.cu[i]; token < p.cu[i + 1]; token++) {
            const int n = t.k_lens[i] - (p.cu[i + 1] - token) + 1;
            const int every = std::max(t.every, 1);
            std::vector<double> sums;
            for (int key = every - 1; key < n; key += every) {
                double score = 0;
                for (int h = 0; h < t.heads; h++) {
                    const size_t row = (size_t)token * t.heads + h;
                    const double dot = dot_of(q.host + row * t.dim,
                                              pool.host + (size_t)p.slot(i, key) * t.dim, t.dim);
                    score += weights.host[row] * (dot < 0 ? 0 : dot);
                }
                sums.push_back(score);
            }
            std::vector<int32_t> want = first_of(sums, t.top_k);
            for (int32_t &key : want) key = p.slot(i, (key + 1) * every - 1);
            expect(f, counts[token] == (int)want.size(), "number of keys");
            want.resize(t.top_k, -1);
            const auto from = got.begin() + (size_t)token * t.top_k;
            expect(f, std::equal(want.begin(), want.end(), from), "choice");
        }
    }
    cudaFree(slots_dev), cudaFree(counts_dev), cudaFree(scores);
    array_free(&q), array_free(&weights), array_free(&pool), paged_free(&p);
}

// --- the choice of blocks ------------------------------------------------------------------------

struct block_choice {
    msgl_dtype dtype;
    int heads, dim, size, top_k, local, page, tokens; // tokens: of a call
    std::vector<int32_t> q_lens, k_lens;
};

// What the heads of a token attend to on the CPU; c: the GPU's call, of the step with that token.
struct wanted {
    std::vector<int32_t> keys, counts;
};

static wanted on_cpu(const msgl_index_blocks_call &gpu, const paged &p, const array &q,
                     const array &pool, int token)
{
    const size_t lists = (size_t)gpu.heads * gpu.top_k * gpu.size;
    wanted w = {std::vector<int32_t>(lists, -1), std::vector<int32_t>(gpu.heads, -1)};
    std::vector<float> scores((size_t)gpu.heads * gpu.max_blocks);
    const msgl_seqs s = paged_host(p);
    msgl_index_blocks_call c = gpu;
    c.seqs = &s, c.first = token, c.tokens = 1;
    c.q = q.host, c.dtype = MSGL_F32, c.pool = pool.host;
    c.pages = p.pages.data(), c.scores = scores.data();
    c.keys = w.keys.data(), c.counts = w.counts.data();
    if (blocks_on_cpu(&c) != 0) printf("the CPU's kernel failed\n"), exit(1);
    return w;
}

static void check_blocks(bench_exec *e, family *f, const block_choice &t, uint64_t *seed)
{
    e->x.act = t.dtype;
    paged p = paged_new(t.q_lens, t.k_lens, t.page, seed);
    const size_t ld = (size_t)(t.heads + 1) * t.dim + t.dim % 2; // keys are beside the queries
    array q = array_new(t.dtype, p.tokens * ld, 1, seed);
    fill(&q, seed, [&](size_t i) { return i % ld >= (size_t)t.heads * t.dim; });
    array pool = keys_new(t.dtype, p, t.dim, seed);
    const int list = t.size * t.top_k, most = (p.most + t.size - 1) / t.size;
    const std::vector<int32_t> none((size_t)t.heads * t.tokens * list, -1);
    void *const scores = device_copy(NULL, (size_t)t.heads * t.tokens * most * sizeof(float));
    msgl_index_blocks_call c = {};
    c.seqs = &p.seqs;
    c.heads = t.heads, c.dim = t.dim, c.size = t.size, c.top_k = t.top_k, c.local = t.local;
    c.q = q.dev, c.ld_q = ld;
    c.dtype = t.dtype, c.pool = pool.dev;
    c.pages = p.device[3], c.page_stride = p.stride, c.page_size = t.page;
    c.scores = (float *)scores, c.max_blocks = most;
    for (int first = 0; first < p.tokens; first += t.tokens) {
        c.first = first, c.tokens = std::min(t.tokens, p.tokens - first);
        c.keys = ints_upload(none.data(), none.size());
        c.counts = ints_upload(none.data(), (size_t)t.heads * t.tokens);
        msgl__cuda_index_choose_blocks(&e->x, &c);
        exec_sync(e);
        const std::vector<int32_t> got = ints_download(c.keys, none.size()),
                                   counts = ints_download(c.counts, t.heads * t.tokens);
        for (int token = first; token < first + c.tokens; token++) {
            const wanted want = on_cpu(c, p, q, pool, token);
            for (int h = 0; h < t.heads; h++) {
                const size_t at = (size_t)h * c.tokens + (token - first);
                const auto keys = want.keys.begin() + (size_t)h * list;
                expect(f, counts[at] == want.counts[h], "number of keys of blocks");
                expect(f, std::equal(keys, keys + list, got.begin() + at * list),
                       "choice of blocks");
            }
        }
        cudaFree(c.keys), cudaFree(c.counts);
    }
    cudaFree(scores);
    array_free(&q), array_free(&pool), paged_free(&p);
}

// Answers, chunks and both; blocks that a tile has several of, and of several tiles; pages that
// end inside of blocks and behind them; more heads than rows of a warp, and more than of all.
static void check_all_blocks(bench_exec *e, family *f, msgl_dtype dtype, bool quick, uint64_t *seed)
{
    const block_choice cases[] = {
        {dtype, 2, 16, 8, 3, 1, 4, 64, {1, 1, 20, 3, 1}, {1, 9, 20, 70, 25}},
        {dtype, 2, 32, 5, 4, 2, 16, 32, {1, 40, 7, 1}, {150, 90, 33, 21}},
        {dtype, 1, 64, 80, 2, 1, 7, 16, {1, 1, 1}, {700, 81, 160}},
        {dtype, 4, 128, 128, 3, 1, 64, 64, {33, 1, 2}, {1100, 640, 385}},
        {dtype, 4, 128, 128, 3, 0, 16, 8, {1, 1, 1, 1}, {1409, 640, 385, 2}},
        {dtype, 2, 16, 24, 3, 0, 4, 64, {40, 9, 1}, {150, 101, 85}},
        {dtype, 2, 15, 24, 3, 0, 4, 64, {40, 9, 1}, {150, 101, 85}},
        {dtype, 3, 200, 16, 4, 4, 1, 9, {2, 18}, {200, 90}},
        {dtype, 17, 24, 9, 2, 1, 8, 16, {5, 1}, {60, 30}},
        {dtype, 70, 8, 4, 3, 1, 8, 4, {3, 2}, {40, 19}},
        {dtype, 2, 33, 6, 3, 1, 4, 32, {1, 9}, {80, 30}},
        {dtype, 1, 16, 1, 20, 2, 3, 32, {30, 1}, {90, 55}},
    };
    for (const block_choice &t : cases) check_blocks(e, f, t, seed);
    if (quick) return;
    check_blocks(
        e, f, {dtype, 4, 128, 128, 16, 1, 64, 256, {1, 300, 1, 1}, {9000, 2500, 2048, 2049}}, seed);
    check_blocks(e, f, {dtype, 1, 128, 128, 16, 1, 16, 256, {1, 1}, {70000, 3}}, seed);
}

// --- lists ---------------------------------------------------------------------------------------

struct listing {
    int window, every, top_k, page, first, tokens; // top_k 0: all keys of windows
    std::vector<int32_t> q_lens, k_lens;
};

// Against the CPU's, whose lists are whole numbers.
static void check_list(bench_exec *e, family *f, const listing &t, uint64_t *seed)
{
    paged p = paged_new(t.q_lens, t.k_lens, t.page, seed);
    const msgl_seqs s = paged_host(p);
    const size_t ld = (size_t)t.window + (size_t)std::max(t.top_k, p.most) + 3;
    std::vector<int32_t> chosen((size_t)p.tokens * t.top_k + 1), counts;
    for (int32_t &slot : chosen) slot = below(seed, (int)p.owned.size());
    for (int i = 0; i < p.tokens; i++) counts.push_back(below(seed, t.top_k + 1));
    std::vector<int32_t> want((size_t)t.tokens * ld, -1), want_counts(t.tokens, -1);
    int32_t *const chosen_dev = ints_upload(chosen.data(), chosen.size());
    int32_t *const counts_dev = ints_upload(counts.data(), counts.size());
    int32_t *const keys_dev = ints_upload(want.data(), want.size());
    int32_t *const num_dev = ints_upload(want_counts.data(), want_counts.size());
    msgl_index_list_call c = {};
    c.seqs = &s;
    c.first = t.first, c.tokens = t.tokens, c.window = t.window;
    c.every = t.every, c.shift = (int)p.owned.size();
    c.chosen = t.top_k > 0 ? chosen.data() : NULL, c.chosen_counts = counts.data();
    c.ld_chosen = t.top_k;
    c.pages = p.pages.data(), c.page_stride = p.stride, c.page_size = t.page;
    c.keys = want.data(), c.counts = want_counts.data(), c.ld_keys = ld;
    if (list_on_cpu(&c) != 0) printf("the CPU's kernel failed\n"), exit(1);
    c.seqs = &p.seqs;
    c.chosen = t.top_k > 0 ? chosen_dev : NULL, c.chosen_counts = counts_dev;
    c.pages = p.device[3], c.keys = keys_dev, c.counts = num_dev;
    msgl__cuda_index_list(&e->x, &c);
    exec_sync(e);
    expect(f, ints_download(keys_dev, want.size()) == want, "keys of a list");
    expect(f, ints_download(num_dev, want_counts.size()) == want_counts, "length of a list");
    cudaFree(chosen_dev), cudaFree(counts_dev), cudaFree(keys_dev), cudaFree(num_dev);
    paged_free(&p);
}

static void check_all_lists(bench_exec *e, family *f, uint64_t *seed)
{
    const listing cases[] = {
        {8, 0, 0, 4, 0, 26, {1, 1, 20, 3, 1}, {1, 9, 20, 70, 25}},
        {8, 4, 0, 4, 3, 23, {1, 1, 20, 3, 1}, {1, 9, 20, 70, 25}},
        {8, 4, 3, 16, 0, 26, {1, 1, 20, 3, 1}, {1, 9, 20, 70, 25}},
        {128, 128, 0, 64, 5, 32, {1, 40, 7}, {1150, 290, 33}},
        {128, 4, 512, 7, 0, 48, {1, 40, 7}, {1150, 290, 33}},
        {1, 1, 0, 5, 2, 2, {2, 2}, {30, 2}},
    };
    for (const listing &t : cases) check_list(e, f, t, seed);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family store = {"index store"}, chosen = {"index choice"}, blocks = {"index blocks"};
    family lists = {"index lists"};
    check_all_lists(&e, &lists, &seed);
    for (msgl_dtype dtype : {MSGL_F32, MSGL_F16, MSGL_BF16}) {
        for (bool rms : {false, true}) {
            check_store(&e, &store, {dtype, 5, 3, 16, 4, rms}, &seed);
            check_store(&e, &store, {dtype, o.quick ? 2 : 70, 64, 128, 32, rms}, &seed);
            check_store(&e, &store, {dtype, 3, 1, 256, 128, rms}, &seed);
            check_store(&e, &store, {dtype, 4, 4, 33, 0, rms}, &seed);
        }
        check_all_blocks(&e, &blocks, dtype, o.quick, &seed);
    }
    const msgl_dtype half[] = {MSGL_BF16, MSGL_F16};
    for (int d = 0; d < 2; d++) {
        check_choice(&e, &chosen, {half[d], 4, 16, 8, 4, 32, {1, 1, 20, 3, 1}, {1, 9, 20, 70, 8}},
                     &seed);
        check_choice(&e, &chosen, {half[d], 20, 64, 33, 16, 32, {1, 40, 7}, {150, 90, 33}}, &seed);
        check_choice(&e, &chosen, {half[d], 64, 128, 64, 1, 32, {1, 2}, {300, 65}}, &seed);
        check_choice(&e, &chosen, {half[d], 5, 200, 16, 7, 32, {2, 1}, {200, 17}}, &seed);
        check_choice(&e, &chosen,
                     {half[d], 4, 16, 3, 4, 32, {1, 1, 20, 3, 1}, {1, 9, 20, 70, 8}, 4}, &seed);
        check_choice(&e, &chosen, {half[d], 20, 64, 33, 16, 32, {1, 40, 7}, {550, 290, 33}, 3},
                     &seed);
        check_choice(&e, &chosen, {half[d], 64, 128, 16, 5, 32, {1, 2}, {300, 65}, 1}, &seed);
    }
    if (!o.quick) {
        check_choice(&e, &chosen,
                     {MSGL_BF16, 64, 128, 2048, 64, 100, {1, 130, 1, 1}, {5000, 2100, 2048, 2049}},
                     &seed);
        check_choice(
            &e, &chosen,
            {MSGL_BF16, 64, 128, 512, 64, 100, {1, 130, 1, 1}, {9000, 2100, 2048, 2051}, 4}, &seed);
        check_choice(&e, &chosen, {MSGL_BF16, 32, 128, 512, 16, 32, {33}, {9000}}, &seed);
    }
    int failed = family_end(&store);
    failed |= family_end(&blocks) | family_end(&lists);
    return family_end(&chosen) | failed;
}
