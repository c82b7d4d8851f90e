// SPDX-License-Identifier: Apache-2.0
//
// Index keys and the choice of keys (kernel/index.h) against what the host makes of the same
// numbers: keys and queries within a rounding; the choice exactly, of small whole numbers whose
// scores are exact and often equal. cuda_index [--seed N] [--quick].
#include <algorithm>
#include <vector>

#include "tests/cuda/ops_check.cuh"

static int below(uint64_t *seed, int n)
{
    return (int)(rng_next(seed) % (uint64_t)n);
}

// --- keys and queries ----------------------------------------------------------------------------

static void check_store(bench_exec *e, family *f, msgl_dtype dtype, int tokens, int heads, int dim,
                        int half, uint64_t *seed)
{
    const size_t ld_q = (size_t)heads * dim + 8, ld_k = (size_t)dim + 8;
    e->x.act = dtype;
    array q = array_new(dtype, tokens * ld_q, 2, seed), got = q;
    array k = array_new(dtype, tokens * ld_k, 2, seed);
    array weight = array_new(MSGL_F32, dim, 1, seed), bias = array_new(MSGL_F32, dim, 1, seed);
    array angles = array_new(MSGL_F32, (size_t)tokens * 2 * half + 1, 1, seed);
    array pool = array_new(dtype, (size_t)(2 * tokens) * dim, 0, seed);
    std::vector<int32_t> slots;
    for (int t = 0; t < tokens; t++) slots.push_back(2 * (tokens - 1 - t) + t % 2);
    int32_t *const slots_dev = ints_upload(slots.data(), slots.size());
    msgl_index_store_call c = {};
    c.tokens = tokens, c.heads = heads, c.dim = dim, c.half = half;
    c.q = q.dev, c.ld_q = ld_q, c.k = k.dev, c.ld_k = ld_k;
    c.k_weight = (const float *)weight.dev, c.k_bias = (const float *)bias.dev;
    c.eps = MSGL_INDEX_EPS;
    c.cos_sin = (const float *)angles.dev;
    c.dtype = dtype, c.pool = pool.dev, c.slots = slots_dev;
    msgl__cuda_index_store(&e->x, &c);
    exec_sync(e);
    got.host = (float *)malloc((q.n + 1) * sizeof(float));
    array_download(&got);
    array_download(&pool);
    for (int t = 0; t < tokens; t++) {
        const float *a = angles.host + (size_t)t * 2 * half, *row = k.host + t * ld_k;
        std::vector<double> key(dim);
        double mean = 0, squares = 0;
        for (int i = 0; i < dim; i++) mean += (double)row[i] / dim;
        for (int i = 0; i < dim; i++) squares += (row[i] - mean) * (row[i] - mean) / dim;
        for (int i = 0; i < dim; i++) {
            key[i] =
                (row[i] - mean) / sqrt(squares + MSGL_INDEX_EPS) * weight.host[i] + bias.host[i];
        }
        const auto rotated = [&](int i, double x, double y) { // of pair i % half
            const int p = i % half;
            return i < half ? x * a[p] - y * a[half + p] : y * a[p] + x * a[half + p];
        };
        for (int i = 0; i < dim; i++) {
            const int p = half > 0 ? i % half : 0;
            const double want = i < 2 * half ? rotated(i, key[p], key[half + p]) : key[i];
            expect_near(f, pool.host[(size_t)slots[t] * dim + i], want,
                        (fabs(want) + 2) * (dtype_error(dtype) * 1.01 + 1e-6), "key");
        }
        for (int i = 0; i < heads * dim; i++) {
            const float *before = q.host + t * ld_q + i / dim * dim;
            const int d = i % dim, p = half > 0 ? d % half : 0;
            const double want = d < 2 * half ? rotated(d, before[p], before[half + p]) : before[d];
            expect_near(f, got.host[t * ld_q + i], want,
                        (fabs(want) + 2) * (dtype_error(dtype) * 1.01 + 1e-6), "query");
        }
        for (size_t i = (size_t)heads * dim; i < ld_q; i++) {
            expect(f, got.host[t * ld_q + i] == q.host[t * ld_q + i], "what is beside the queries");
        }
    }
    free(got.host), cudaFree(slots_dev);
    array_free(&q), array_free(&k), array_free(&weight), array_free(&bias), array_free(&angles);
    array_free(&pool);
}

// --- the choice ----------------------------------------------------------------------------------

struct choice {
    msgl_dtype dtype;
    int heads, dim, top_k, page, score_rows;
    std::vector<int32_t> q_lens, k_lens;
};

// Whole numbers from -2 to 2, and NaN where `nan` says so.
template <typename NAN_AT> static void fill(array *a, uint64_t *seed, const NAN_AT &nan)
{
    for (size_t i = 0; i < a->n; i++) a->host[i] = nan(i) ? NAN : (float)(below(seed, 5) - 2);
    array_upload(a);
}

static void check_choice(bench_exec *e, family *f, const choice &t, uint64_t *seed)
{
    const int batch = (int)t.q_lens.size();
    std::vector<int32_t> cu = {0}, rows, table;
    int most = 1, pages = 0;
    for (int i = 0; i < batch; i++) {
        cu.push_back(cu[i] + t.q_lens[i]);
        rows.push_back(batch - i); // row 0 is nobody's
        most = std::max(most, t.k_lens[i]);
    }
    const int stride = most / t.page + 2, tokens = cu[batch];
    table.assign((size_t)(batch + 1) * stride, 0);
    std::vector<bool> owned;
    for (int i = 0; i < batch; i++) {
        for (int p = 0; p * t.page < t.k_lens[i]; p++) table[rows[i] * stride + p] = pages++;
    }
    std::vector<int32_t> order;
    for (int i = 0; i <= pages; i++) order.push_back(i);
    for (int i = pages; i > 0; i--) std::swap(order[i], order[below(seed, i + 1)]);
    owned.assign((size_t)(pages + 1) * t.page, false);
    const auto slot = [&](int req, int key) {
        return order[table[rows[req] * stride + key / t.page]] * t.page + key % t.page;
    };
    for (int i = 0; i < batch; i++) {
        for (int key = 0; key < t.k_lens[i]; key++) owned[slot(i, key)] = true;
    }
    e->x.act = t.dtype;
    array q = array_new(t.dtype, (size_t)tokens * t.heads * t.dim, 1, seed);
    array weights = array_new(MSGL_F32, (size_t)tokens * t.heads, 1, seed);
    array pool = array_new(t.dtype, owned.size() * t.dim, 1, seed);
    fill(&q, seed, [](size_t) { return false; });
    fill(&weights, seed, [](size_t) { return false; });
    // Keys of nobody are NaN, and now and then one of somebody.
    fill(&pool, seed, [&](size_t i) { return !owned[i / t.dim] || i / t.dim % 41 == 7; });
    std::vector<int32_t> mapped;
    for (int32_t page : table) mapped.push_back(order[page]);

    msgl_seqs s = {};
    s.size = batch, s.num_tokens = tokens, s.max_seqlen_k = most;
    int32_t *const ints[] = {
        ints_upload(cu.data(), cu.size()), ints_upload(t.k_lens.data(), t.k_lens.size()),
        ints_upload(rows.data(), rows.size()), ints_upload(mapped.data(), mapped.size())};
    s.dev_cu_seqlens_q = ints[0], s.dev_seqlens_k = ints[1], s.dev_table_rows = ints[2];
    const std::vector<int32_t> none((size_t)tokens * t.top_k, -1);
    int32_t *const slots_dev = ints_upload(none.data(), none.size());
    int32_t *const counts_dev = ints_upload(none.data(), (size_t)tokens);
    void *const scores = device_copy(NULL, (size_t)t.score_rows * most * sizeof(float));
    msgl_index_choose_call c = {};
    c.seqs = &s;
    c.heads = t.heads, c.dim = t.dim, c.top_k = t.top_k;
    c.q = q.dev, c.ld_q = (size_t)t.heads * t.dim;
    c.weights = (const float *)weights.dev;
    c.dtype = t.dtype, c.pool = pool.dev;
    c.pages = ints[3], c.page_stride = stride, c.page_size = t.page;
    c.scores = (float *)scores, c.score_rows = t.score_rows, c.max_keys = most;
    c.slots = slots_dev, c.counts = counts_dev;
    msgl__cuda_index_choose(&e->x, &c);
    exec_sync(e);
    std::vector<int32_t> got(none.size()), counts(tokens);
    CUDA_OK(cudaMemcpy(got.data(), slots_dev, got.size() * 4, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(counts.data(), counts_dev, counts.size() * 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < batch; i++) {
        for (int at = 0; at < t.q_lens[i]; at++) {
            const int token = cu[i] + at, n = t.k_lens[i] - t.q_lens[i] + at + 1;
            std::vector<std::pair<double, int>> best; // of the lowest first
            for (int key = 0; key < n; key++) {
                double score = 0;
                for (int h = 0; h < t.heads; h++) {
                    double dot = 0;
                    for (int d = 0; d < t.dim; d++) {
                        dot += (double)q.host[((size_t)token * t.heads + h) * t.dim + d] *
                               pool.host[(size_t)slot(i, key) * t.dim + d];
                    }
                    score += weights.host[(size_t)token * t.heads + h] * (dot < 0 ? 0 : dot);
                }
                best.push_back({isnan(score) ? INFINITY : -score, key});
            }
            std::sort(best.begin(), best.end());
            std::vector<int32_t> want;
            for (int k = 0; k < std::min(n, t.top_k); k++) want.push_back(best[k].second);
            std::sort(want.begin(), want.end());
            for (int32_t &key : want) key = slot(i, key);
            expect(f, counts[token] == (int)want.size(), "number of keys");
            want.resize(t.top_k, -1);
            const auto from = got.begin() + (size_t)token * t.top_k;
            expect(f, std::equal(want.begin(), want.end(), from), "choice");
        }
    }
    for (int32_t *p : ints) cudaFree(p);
    cudaFree(slots_dev), cudaFree(counts_dev), cudaFree(scores);
    array_free(&q), array_free(&weights), array_free(&pool);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family store = {"index store"}, chosen = {"index choice"};
    for (msgl_dtype dtype : {MSGL_F32, MSGL_F16, MSGL_BF16}) {
        check_store(&e, &store, dtype, 5, 3, 16, 4, &seed);
        check_store(&e, &store, dtype, o.quick ? 2 : 70, 64, 128, 32, &seed);
        check_store(&e, &store, dtype, 3, 1, 256, 128, &seed);
    }
    const msgl_dtype half[] = {MSGL_BF16, MSGL_F16};
    for (int d = 0; d < 2; d++) {
        check_choice(&e, &chosen, {half[d], 4, 16, 8, 4, 32, {1, 1, 20, 3, 1}, {1, 9, 20, 70, 8}},
                     &seed);
        check_choice(&e, &chosen, {half[d], 20, 64, 33, 16, 32, {1, 40, 7}, {150, 90, 33}}, &seed);
        check_choice(&e, &chosen, {half[d], 64, 128, 64, 1, 32, {1, 2}, {300, 65}}, &seed);
        check_choice(&e, &chosen, {half[d], 5, 200, 16, 7, 32, {2, 1}, {200, 17}}, &seed);
    }
    if (!o.quick) {
        check_choice(&e, &chosen,
                     {MSGL_BF16, 64, 128, 2048, 64, 100, {1, 130, 1, 1}, {5000, 2100, 2048, 2049}},
                     &seed);
        check_choice(&e, &chosen, {MSGL_BF16, 32, 128, 512, 16, 32, {33}, {9000}}, &seed);
    }
    const int failed = family_end(&store);
    return family_end(&chosen) | failed;
}
