// SPDX-License-Identifier: Apache-2.0
//
// Embeddings of n-grams (kernel/ngrams.h): rows of the table exactly, gated values against f64, and
// a row's bits in a batch and alone. cuda_ngrams [--seed N] [--quick].
#include <vector>

#include "tests/cuda/ops_check.cuh"

extern "C" {
#include "kernel/ngrams.h"
}

// --- hashes --------------------------------------------------------------------------------------

struct hash_case {
    int size, heads, vocab, shift;
    std::vector<int32_t> before, tokens; // of each request: tokens in front of the step and in it
};

// Row `head` of the table for the last of a request's ids, as the header says it.
static int64_t row_of(const msgl_ngram_hash &h, const std::vector<int32_t> &ids, size_t last,
                      int head)
{
    const int order = head / h.heads + 2;
    uint64_t hash = 0;
    bool ended = false;
    for (int i = 0; i < order; i++) {
        if (i > 0) ended = ended || (size_t)i > last || ids[last - i] == h.end;
        hash ^= (uint64_t)(uint32_t)(ended ? h.end : ids[last - i]) * h.factors[i];
    }
    return h.offsets[head] + (int64_t)(hash % (uint64_t)h.moduli[head]);
}

static msgl_ngram_hash hash_new(const hash_case &t, uint64_t *seed)
{
    msgl_ngram_hash h = {};
    h.size = t.size, h.heads = t.heads, h.end = 3;
    for (int i = 0; i < t.size; i++) {
        h.factors[i] = (rng_next(seed) >> 1) / (uint64_t)t.vocab | 1;
    }
    for (int i = 0, at = 0; i < (t.size - 1) * t.heads; i++) {
        h.moduli[i] = 97 + 2 * (int32_t)(rng_next(seed) % 1000000);
        h.offsets[i] = at, at += h.moduli[i];
    }
    return h;
}

static void check_ids(bench_exec *e, family *f, const hash_case &t, uint64_t *seed)
{
    const msgl_ngram_hash h = hash_new(t, seed);
    const int heads = (t.size - 1) * t.heads, places = 64;
    const size_t num = t.tokens.size();
    std::vector<int32_t> pool((num + 2) * places, -7), index, positions, want;
    for (size_t r = 0; r < num; r++) {
        const size_t row = num - r; // row 0 is nobody's
        std::vector<int32_t> ids;
        for (int i = 0; i < t.before[r] + t.tokens[r]; i++) {
            const int32_t id = (int32_t)(rng_next(seed) % (uint64_t)t.vocab);
            ids.push_back(i % 5 == 2 ? h.end : i % 11 == 6 ? -1 - id : id); // some of no vocabulary
            pool[row * places + t.shift + i] = ids.back();
        }
        for (int i = t.before[r]; i < t.before[r] + t.tokens[r]; i++) {
            index.push_back((int32_t)(row * places) + i);
            positions.push_back(i);
            for (int head = 0; head < heads; head++) {
                want.push_back((int32_t)row_of(h, ids, i, head));
            }
        }
    }
    const std::vector<int32_t> none(want.size() + 1, -9);
    int32_t *const pool_dev = ints_upload(pool.data(), pool.size());
    int32_t *const index_dev = ints_upload(index.data(), index.size());
    int32_t *const positions_dev = ints_upload(positions.data(), positions.size());
    int32_t *const ids_dev = ints_upload(none.data(), none.size());
    msgl_step_tokens tokens = {};
    tokens.count = (int32_t)index.size(), tokens.shift = t.shift;
    tokens.pool = pool_dev, tokens.index = index_dev;
    msgl__cuda_ngram_ids(&e->x, &h, &tokens, positions_dev, ids_dev);
    exec_sync(e);
    std::vector<int32_t> got(none.size());
    CUDA_OK(cudaMemcpy(got.data(), ids_dev, got.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < want.size(); i++) {
        expect(f, got[i] == want[i], "row of the table");
        const int head = (int)i % heads;
        expect(f, got[i] >= h.offsets[head] && got[i] < h.offsets[head] + h.moduli[head],
               "a row of its head's part");
    }
    expect(f, got.back() == -9, "nothing behind the rows is written");
    cudaFree(pool_dev), cudaFree(index_dev), cudaFree(positions_dev), cudaFree(ids_dev);
}

// --- gates ---------------------------------------------------------------------------------------

struct gate_case {
    msgl_dtype dtype;
    int rows, num, dim, gap;
};

static void check_gate(bench_exec *e, family *f, const gate_case &t, uint64_t *seed)
{
    const size_t dim = t.dim, width = t.num * dim, ld = width + dim + t.gap;
    const size_t elem = msgl__dtype_size(t.dtype);
    e->x.act = t.dtype;
    array kv = array_new(t.dtype, t.rows * ld, 1, seed);
    array queries = array_new(t.dtype, t.rows * width, 1, seed);
    for (size_t d = 0; d < dim; d++) queries.host[d] = 0; // a product of exactly 0
    array_upload(&queries);
    array out = array_new(t.dtype, t.rows * width + 8, 0, seed);
    msgl_ngram_gate_call c = {};
    c.rows = t.rows, c.num = t.num, c.dim = t.dim;
    c.keys = kv.dev, c.values = (char *)kv.dev + width * elem, c.ld = ld;
    c.queries = queries.dev, c.out = out.dev;
    msgl__cuda_ngram_gate(&e->x, &c);
    exec_sync(e);
    array_download(&out);
    for (size_t i = 0; i < t.rows * width; i++) {
        const size_t r = i / width, s = i % width / dim;
        double g = 0, size = 0;
        for (size_t d = 0; d < dim; d++) {
            const double p =
                (double)kv.host[r * ld + s * dim + d] * queries.host[i / dim * dim + d];
            g += p / sqrt(t.dim), size += fabs(p) / sqrt(t.dim);
        }
        const double root = sqrt(fmax(fabs(g), 1e-6)), value = kv.host[r * ld + width + i % dim];
        const double by = 1 / (1 + exp(g == 0 ? 0 : g < 0 ? root : -root));
        // Of a sum in f32 and the root of it, whose slope is 1 / (2 root) and that of the gate 1/4.
        const double slack = size * 1e-6 / root + 2e-6;
        expect_near(f, out.host[i], by * value,
                    fabs(by * value) * dtype_error(t.dtype) * 1.01 + fabs(value) * slack + 1e-6,
                    "gated value");
    }
    expect(f, isnan(out.host[out.n - 1]), "nothing behind the rows is written");
    array alone = array_new(t.dtype, t.rows * width + 8, 0, seed);
    for (size_t r = 0; r < (size_t)t.rows; r++) {
        msgl_ngram_gate_call one = c;
        one.rows = 1;
        one.keys = (char *)kv.dev + r * ld * elem;
        one.values = (char *)kv.dev + (r * ld + width) * elem;
        one.queries = (char *)queries.dev + r * width * elem;
        one.out = (char *)alone.dev + r * width * elem;
        msgl__cuda_ngram_gate(&e->x, &one);
    }
    exec_sync(e);
    array_download(&alone);
    expect(f, memcmp(alone.host, out.host, t.rows * width * sizeof(float)) == 0,
           "a row alone has the bits that it has in a batch");
    array_free(&kv), array_free(&queries), array_free(&out), array_free(&alone);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family ids = {"ngram ids"}, gates = {"ngram gate"};
    check_ids(&e, &ids, {3, 8, 248320, 0, {0, 0, 1, 2, 40}, {1, 20, 1, 7, 1}}, &seed);
    check_ids(&e, &ids, {2, 1, 50, 1, {0, 17}, {9, 3}}, &seed);
    check_ids(&e, &ids, {8, 9, 1 << 30, 0, {0, 5, 31}, {30, 1, 12}}, &seed);
    for (msgl_dtype dtype : {MSGL_F32, MSGL_F16, MSGL_BF16}) {
        check_gate(&e, &gates, {dtype, 3, 4, 64, 0}, &seed);
        check_gate(&e, &gates, {dtype, 5, 3, 33, 1}, &seed);
        check_gate(&e, &gates, {dtype, 2, 16, 40, 8}, &seed);
        check_gate(&e, &gates, {dtype, 2, 9, 24, 4}, &seed);
        check_gate(&e, &gates, {dtype, 1, 2, 1032, 0}, &seed);
        check_gate(&e, &gates, {dtype, 7, 1, 1, 0}, &seed);
        if (!o.quick) check_gate(&e, &gates, {dtype, 70, 4, 2048, 0}, &seed);
    }
    return family_end(&ids) | family_end(&gates);
}
