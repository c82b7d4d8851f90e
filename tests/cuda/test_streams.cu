// SPDX-License-Identifier: Apache-2.0
//
// Gated residual streams (kernel/streams.h) against sums in f64; a row's bits in a batch and alone.
// cuda_streams [--seed N] [--quick].
#include <vector>

#include "tests/cuda/ops_check.cuh"

enum { GUARD = 9 }; // elements behind a result

struct shape {
    msgl_dtype dtype;
    int rows, n, dim;
    int gap;    // elements between rows that have a stride
    int offset; // elements in front of everything: 1 is no address for whole vectors
};

// n elements behind t.offset ones, and GUARD behind them; scale 0: a result, NaN.
struct piece {
    array all;
    const shape *t;
    std::vector<float> before;

    piece(const shape &of, size_t n, float scale, uint64_t *seed)
        : all(array_new(of.dtype, n + of.offset + GUARD, scale, seed)), t(&of)
    {
        before.assign(all.host, all.host + all.n);
    }
    ~piece()
    {
        array_free(&all);
    }
    char *dev(size_t at = 0) const
    {
        return (char *)all.dev + (t->offset + at) * msgl__dtype_size(t->dtype);
    }
    float was(size_t at) const
    {
        return before[t->offset + at];
    }
    float is(size_t at) const
    {
        return all.host[t->offset + at];
    }
    void reset()
    {
        std::copy(before.begin(), before.end(), all.host);
        array_upload(&all);
    }
    void read(family *f)
    {
        array_download(&all);
        bool kept = true;
        for (size_t i = 0; i < all.n; i++) {
            if (i >= (size_t)t->offset && i < all.n - GUARD) continue;
            kept = kept && memcmp(&all.host[i], &before[i], sizeof(float)) == 0;
        }
        expect(f, kept, "nothing beside the rows is written");
    }
    std::vector<float> bits() const
    {
        return std::vector<float>(all.host, all.host + all.n);
    }
};

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void near_of(family *f, const shape &t, double got, double want, double size,
                    const char *what)
{
    expect_near(f, got, want, (fabs(want) + 1e-3 * size) * dtype_error(t.dtype) * 1.01 + 1e-6,
                what);
}

// run(row, rows) queues a call about these rows: all at once, then, of few, each alone, into the
// same place.
template <typename RUN>
static void check_rows(bench_exec *e, family *f, const shape &t, piece *out, const RUN &run)
{
    run(0, t.rows);
    exec_sync(e);
    out->read(f);
    if (t.rows > 100) return; // (many launches)
    const std::vector<float> all = out->bits();
    out->reset();
    for (int r = 0; r < t.rows; r++) run(r, 1);
    exec_sync(e);
    out->read(f);
    const std::vector<float> each = out->bits();
    expect(f, memcmp(all.data(), each.data(), all.size() * sizeof(float)) == 0,
           "a row alone has the bits that it has in a batch");
}

static void check_spread(bench_exec *e, family *f, const shape &t, uint64_t *seed)
{
    const size_t dim = t.dim, width = (size_t)t.n * dim;
    piece in(t, t.rows * dim, 1, seed), out(t, t.rows * width, 0, seed);
    check_rows(e, f, t, &out, [&](int r, int rows) {
        msgl__cuda_streams_spread(&e->x, in.dev(r * dim), rows, t.n, t.dim, out.dev(r * width));
    });
    bool same = true;
    for (size_t i = 0; i < t.rows * width; i++) {
        same = same && out.is(i) == in.was(i / width * dim + i % dim);
    }
    expect(f, same, "streams that are copies of their row");
    piece block(t, t.rows * dim, 1, seed);
    check_rows(e, f, t, &block, [&](int r, int rows) {
        msgl__cuda_streams_clear(&e->x, block.dev(r * dim), rows, t.dim);
    });
    for (size_t i = 0; i < t.rows * dim; i++) same = same && block.is(i) == 0;
    expect(f, same, "zeros");
}

static void check_squash(bench_exec *e, family *f, const shape &t, uint64_t *seed)
{
    const size_t ld = t.dim + t.gap;
    piece p(t, t.rows * ld, 4, seed);
    check_rows(e, f, t, &p, [&](int r, int rows) {
        msgl__cuda_streams_squash(&e->x, p.dev(r * ld), ld, rows, t.n, t.dim);
    });
    for (size_t i = 0; i < t.rows * ld; i++) {
        const double v = p.was(i) / (double)t.n;
        if (i % ld < (size_t)t.dim) {
            near_of(f, t, p.is(i), v * sigmoid(v), fabs(v), "squash");
        } else {
            expect(f, p.is(i) == p.was(i), "what is between the rows");
        }
    }
}

static void check_mix(bench_exec *e, family *f, const shape &t, uint64_t *seed)
{
    const size_t dim = t.dim, width = (size_t)t.n * dim;
    piece gates(t, t.rows * width, 3, seed), in(t, t.rows * width, 2, seed);
    piece out(t, t.rows * dim, 0, seed);
    check_rows(e, f, t, &out, [&](int r, int rows) {
        msgl__cuda_streams_mix(&e->x, gates.dev(r * width), in.dev(r * width), rows, t.n, t.dim,
                               out.dev(r * dim));
    });
    for (size_t r = 0; r < (size_t)t.rows; r++) {
        for (size_t d = 0; d < dim; d++) {
            double sum = 0, size = 0;
            for (size_t s = 0; s < (size_t)t.n; s++) {
                const size_t at = r * width + s * dim + d;
                sum += sigmoid(gates.was(at)) * in.was(at) / t.n;
                size += fabs(in.was(at)) / t.n;
            }
            near_of(f, t, out.is(r * dim + d), sum, size, "mix");
        }
    }
}

static void check_inject(bench_exec *e, family *f, const shape &t, uint64_t *seed)
{
    const size_t dim = t.dim, width = (size_t)t.n * dim, ld = t.n + t.gap;
    piece weights(t, t.rows * ld, 4, seed), block(t, t.rows * dim, 1, seed);
    piece streams(t, t.rows * width, 2, seed);
    check_rows(e, f, t, &streams, [&](int r, int rows) {
        msgl__cuda_streams_inject(&e->x, weights.dev(r * ld), ld, block.dev(r * dim), rows, t.n,
                                  t.dim, streams.dev(r * width));
    });
    for (size_t i = 0; i < t.rows * width; i++) {
        const size_t r = i / width, s = i % width / dim;
        const double add =
            2 * sigmoid(weights.was(r * ld + s) / (double)t.n) * block.was(r * dim + i % dim);
        near_of(f, t, streams.is(i), streams.was(i) + add, fabs(streams.was(i)) + fabs(add),
                "inject");
    }
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family spread = {"spread"}, squash = {"squash"}, mix = {"mix"}, inject = {"inject"};
    for (msgl_dtype dtype : {MSGL_F32, MSGL_F16, MSGL_BF16}) {
        std::vector<shape> shapes = {{dtype, 5, 4, 64, 8, 0},   {dtype, 1, 4, 1032, 4, 0},
                                     {dtype, 3, 3, 37, 1, 0},   {dtype, 4, 2, 48, 3, 1},
                                     {dtype, 2, 16, 40, 16, 0}, {dtype, 3, 5, 1, 0, 1},
                                     {dtype, 2, 7, 136, 0, 0}};
        if (!o.quick) {
            shapes.push_back({dtype, 70, 4, 2048, 8, 0});
            shapes.push_back({dtype, 66000, 2, 8, 0, 0}); // more rows than a grid has
        }
        e.x.act = dtype;
        for (const shape &t : shapes) {
            check_spread(&e, &spread, t, &seed);
            check_squash(&e, &squash, t, &seed);
            check_mix(&e, &mix, t, &seed);
            check_inject(&e, &inject, t, &seed);
        }
    }
    int failed = family_end(&spread);
    failed |= family_end(&squash);
    failed |= family_end(&mix);
    return family_end(&inject) | failed;
}
