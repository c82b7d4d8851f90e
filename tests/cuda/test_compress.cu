// SPDX-License-Identifier: Apache-2.0
//
// Compressed keys (kernel/compress.h) against the CPU's kernels of the same numbers, within a
// rounding; and a token's entry to the bit, alone and with others. cuda_compress [--seed N]
// [--quick].
#include "tests/cuda/paged_seqs.cuh"

extern "C" {
#include "tests/cuda/compress_cpu.h"
}

static void check_status(int code)
{
    if (code != 0) printf("the CPU's kernel failed\n"), exit(1);
}

// Rows [tokens] of a pool of twice as many slots, in another order.
static std::vector<int32_t> some_slots(int tokens)
{
    std::vector<int32_t> slots;
    for (int i = 0; i < tokens; i++) slots.push_back(2 * (tokens - 1 - i) + i % 2);
    return slots;
}

// A pool [2 tokens, dim] as the CPU left it; slots that have no row are NaN in both.
static void expect_pool(family *f, array *got, const std::vector<float> &want,
                        const std::vector<int32_t> &slots, int dim, double error)
{
    std::vector<bool> written(got->n / dim, false);
    array_download(got);
    for (int32_t slot : slots) written[slot] = true;
    for (size_t i = 0; i < got->n; i++) {
        if (written[i / dim]) {
            expect_near(f, got->host[i], want[i], fabs(want[i]) * error + dtype_floor(got->dtype),
                        "a row in its slot");
        } else {
            expect(f, isnan(got->host[i]), "other slots are as they were");
        }
    }
}

static double error_of(msgl_dtype dtype)
{
    return dtype_error(dtype) * 1.01 + 2e-5;
}

// --- heads --------------------------------------------------------------------------------------

struct rotate_case {
    msgl_dtype dtype;
    int tokens, heads, dim, half, beside; // beside: elements behind the heads of a row
    bool normed, weighed, back, in_place;
};

static void check_rotate(bench_exec *e, family *f, const rotate_case &t, uint64_t *seed)
{
    const size_t width = (size_t)t.heads * t.dim, ld = width + t.beside;
    e->x.act = t.dtype;
    array in = array_new(t.dtype, t.tokens * ld, 2, seed);
    array out = array_new(t.dtype, t.tokens * ld, t.in_place ? 2 : 0, seed);
    array weight = array_new(MSGL_F32, t.dim, 1, seed);
    array angles = array_new(MSGL_F32, (size_t)t.tokens * 2 * t.half + 1, 1, seed);
    std::vector<float> want(in.host, in.host + in.n), before(out.host, out.host + out.n);
    msgl_pair_rope_call c = {};
    c.tokens = t.tokens, c.heads = t.heads, c.dim = t.dim, c.half = t.half;
    c.in = c.out = want.data(), c.ld_in = c.ld_out = ld;
    c.normed = t.normed, c.weight = t.weighed ? weight.host : NULL, c.eps = 1e-6f;
    c.back = t.back, c.cos_sin = angles.host;
    check_status(rotate_on_cpu(&c));
    c.in = in.dev, c.out = t.in_place ? in.dev : out.dev;
    c.weight = t.weighed ? (const float *)weight.dev : NULL;
    c.cos_sin = (const float *)angles.dev;
    msgl__cuda_rotate_pairs(&e->x, &c);
    exec_sync(e);
    array *const got = t.in_place ? &in : &out;
    if (t.in_place) before.assign(in.host, in.host + in.n);
    array_download(got);
    expect_rows(f, got, before.data(), t.tokens, (int)width, ld, "heads");
    for (size_t i = 0; i < got->n; i++) {
        if (i % ld >= width) continue;
        expect_near(f, got->host[i], want[i], (fabs(want[i]) + 2) * error_of(t.dtype), "a head");
    }
    array_free(&in), array_free(&out), array_free(&weight), array_free(&angles);
}

// One head to its slot.
static void check_rotate_store(bench_exec *e, family *f, msgl_dtype dtype, msgl_dtype kept, int dim,
                               int half, int beside, uint64_t *seed)
{
    const int tokens = 7;
    const size_t ld = (size_t)dim + beside;
    e->x.act = dtype;
    array in = array_new(dtype, tokens * ld, 2, seed);
    array weight = array_new(MSGL_F32, dim, 1, seed);
    array angles = array_new(MSGL_F32, (size_t)tokens * 2 * half, 1, seed);
    array pool = array_new(kept, (size_t)2 * tokens * dim, 0, seed);
    const std::vector<int32_t> slots = some_slots(tokens);
    int32_t *const slots_dev = ints_upload(slots.data(), slots.size());
    std::vector<float> want(pool.n);
    msgl_pair_rope_call c = {};
    c.tokens = tokens, c.heads = 1, c.dim = dim, c.half = half;
    c.in = in.host, c.ld_in = ld, c.normed = true, c.weight = weight.host, c.eps = 1e-5f;
    c.cos_sin = angles.host;
    c.dtype = MSGL_F32, c.pool = want.data(), c.slots = slots.data();
    check_status(rotate_on_cpu(&c));
    c.in = in.dev, c.weight = (const float *)weight.dev, c.cos_sin = (const float *)angles.dev;
    c.dtype = kept, c.pool = pool.dev, c.slots = slots_dev;
    msgl__cuda_rotate_pairs(&e->x, &c);
    exec_sync(e);
    expect_pool(f, &pool, want, slots, dim, error_of(kept));
    cudaFree(slots_dev);
    array_free(&in), array_free(&weight), array_free(&angles), array_free(&pool);
}

static void check_heads(bench_exec *e, family *f, msgl_dtype dtype, bool quick, uint64_t *seed)
{
    check_rotate(e, f, {dtype, 5, 3, 16, 4, 8, true, false, false, true}, seed);
    check_rotate(e, f, {dtype, 3, 5, 512, 32, 0, true, true, false, false}, seed);
    check_rotate(e, f, {dtype, 3, 2, 1024, 512, 8, false, false, true, true}, seed);
    check_rotate(e, f, {dtype, 2, 3, 264, 2, 16, false, false, true, false}, seed);
    check_rotate(e, f, {dtype, 4, 4, 33, 7, 1, true, true, true, true}, seed);
    check_rotate(e, f, {dtype, 4, 1, 40, 5, 3, true, false, true, true}, seed);
    check_rotate(e, f, {dtype, quick ? 2 : 200, 64, 512, 32, 0, true, false, false, true}, seed);
    for (msgl_dtype kept : {MSGL_F32, MSGL_F16, MSGL_BF16, MSGL_E4M3}) {
        check_rotate_store(e, f, dtype, kept, 512, 32, 24, seed);
        check_rotate_store(e, f, dtype, kept, 22, 3, 5, seed);
    }
}

// --- raw rows -----------------------------------------------------------------------------------

static void check_store(bench_exec *e, family *f, msgl_dtype dtype, msgl_dtype kept, int dim,
                        int beside, uint64_t *seed)
{
    const int tokens = 6;
    const size_t ld = (size_t)dim + beside;
    e->x.act = dtype;
    array in = array_new(dtype, tokens * ld, 2, seed);
    array pool = array_new(kept, (size_t)2 * tokens * dim, 0, seed);
    const std::vector<int32_t> slots = some_slots(tokens);
    int32_t *const slots_dev = ints_upload(slots.data(), slots.size());
    std::vector<float> want(pool.n);
    msgl_store_rows_call c = {};
    c.tokens = tokens, c.dim = dim, c.in = in.host, c.ld_in = ld;
    c.dtype = MSGL_F32, c.pool = want.data(), c.slots = slots.data();
    check_status(store_rows_on_cpu(&c));
    c.in = in.dev, c.dtype = kept, c.pool = pool.dev, c.slots = slots_dev;
    msgl__cuda_store_rows(&e->x, &c);
    exec_sync(e);
    expect_pool(f, &pool, want, slots, dim, dtype_error(kept) * 1.01);
    cudaFree(slots_dev);
    array_free(&in), array_free(&pool);
}

// --- windows ------------------------------------------------------------------------------------

struct make_case {
    msgl_dtype rows, kept; // dtypes of raw rows and of entries
    int rate, dim, half;
    bool two_series;
    int at, beside; // elements of a raw row in front of and behind those that are read
    int page;
    std::vector<int32_t> q_lens, k_lens;
};

// Where the entries of these sequences' tokens go: token t's to slot t of `pool`.
static void make_entries(bench_exec *e, const msgl_compress_call &c, array *pool)
{
    msgl__cuda_compress(&e->x, &c);
    exec_sync(e);
    array_download(pool);
}

// Rows of tokens that no window of the step has, and of nobody, are NaN.
static array raw_rows(const make_case &t, const paged &p, size_t ld, uint64_t *seed)
{
    array rows = array_new(t.rows, p.owned.size() * ld, 1, seed);
    std::vector<bool> read(p.owned.size(), false);
    for (int i = 0; i < p.seqs.size; i++) {
        for (int end = t.k_lens[i] - t.q_lens[i] + 1; end <= t.k_lens[i]; end++) {
            const int from = std::max(end - (t.two_series ? 2 : 1) * t.rate, 0);
            for (int key = from; key < end && end % t.rate == 0; key++) read[p.slot(i, key)] = true;
        }
    }
    for (size_t i = 0; i < rows.n; i++) {
        if (!read[i / ld]) rows.host[i] = NAN;
    }
    array_upload(&rows);
    return rows;
}

static void check_make(bench_exec *e, family *f, const make_case &t, uint64_t *seed)
{
    const int series = t.two_series ? 2 : 1, dim = t.dim;
    const size_t ld = (size_t)t.at + 2 * series * dim + t.beside;
    e->x.act = t.rows;
    paged p = paged_new(t.q_lens, t.k_lens, t.page, seed);
    array rows = raw_rows(t, p, ld, seed);
    array bias = array_new(MSGL_F32, (size_t)t.rate * series * dim, 2, seed);
    array weight = array_new(MSGL_F32, dim, 1, seed);
    array freq = array_new(MSGL_F32, t.half + 1, 0.1f, seed);
    array pool = array_new(t.kept, (size_t)p.tokens * dim, 0, seed);
    std::vector<float> want(pool.n, NAN);
    std::vector<int32_t> slots;
    for (int i = 0; i < p.tokens; i++) slots.push_back(p.tokens - 1 - i);
    int32_t *const slots_dev = ints_upload(slots.data(), slots.size());
    const msgl_seqs host = paged_host(p);
    msgl_compress_call c = {};
    c.seqs = &host;
    c.rate = t.rate, c.dim = dim, c.half = t.half, c.two_series = t.two_series;
    c.rows_dtype = MSGL_F32, c.rows = rows.host, c.ld_rows = ld, c.at = t.at;
    c.pages = p.pages.data(), c.page_stride = p.stride, c.page_size = t.page;
    c.bias = bias.host, c.weight = weight.host, c.eps = 1e-6f;
    c.inv_freq = freq.host, c.scale = 1.25f;
    c.dtype = MSGL_F32, c.pool = want.data(), c.slots = slots.data();
    check_status(compress_on_cpu(&c));
    c.seqs = &p.seqs, c.rows_dtype = t.rows, c.rows = rows.dev, c.pages = p.device[3];
    c.bias = (const float *)bias.dev, c.weight = (const float *)weight.dev;
    c.inv_freq = (const float *)freq.dev;
    c.dtype = t.kept, c.pool = pool.dev, c.slots = slots_dev;
    make_entries(e, c, &pool);
    long made = 0;
    for (size_t i = 0; i < pool.n; i++) {
        expect(f, isnan(pool.host[i]) == isnan(want[i]), "tokens that end a window, and no others");
        if (isnan(want[i])) continue;
        made++;
        expect_near(f, pool.host[i], want[i], (fabs(want[i]) + 1) * error_of(t.kept), "an entry");
    }
    expect(f, made > 0, "some windows end");

    // The same tokens as the last ones of requests of their own step: a request each.
    array alone = array_new(t.kept, pool.n, 0, seed);
    for (int i = 0; i < p.seqs.size; i++) {
        const int32_t cu[] = {0, p.cu[i + 1] - p.cu[i]};
        int32_t *const cu_dev = ints_upload(cu, 2);
        msgl_seqs one = p.seqs;
        one.size = 1, one.num_tokens = cu[1];
        one.dev_cu_seqlens_q = cu_dev, one.dev_seqlens_k += i, one.dev_table_rows += i;
        c.seqs = &one, c.pool = alone.dev, c.slots = slots_dev + p.cu[i];
        make_entries(e, c, &alone);
        cudaFree(cu_dev);
    }
    expect(f, memcmp(alone.host, pool.host, pool.n * sizeof(float)) == 0,
           "an entry's bits are its request's");
    cudaFree(slots_dev);
    array_free(&rows), array_free(&bias), array_free(&weight), array_free(&freq);
    array_free(&pool), array_free(&alone), paged_free(&p);
}

// Windows that end in a step with those in front of it, first windows, more terms than groups of
// threads and fewer, and rows of which other keys have the rest.
static void check_windows(bench_exec *e, family *f, msgl_dtype rows, msgl_dtype kept, bool quick,
                          uint64_t *seed)
{
    const std::vector<int32_t> q = {1, 1, 20, 3, 1, 13}, k = {8, 9, 20, 72, 25, 40};
    check_make(e, f, {rows, kept, 4, 16, 4, true, 0, 0, 4, q, k}, seed);
    check_make(e, f, {rows, kept, 4, 128, 32, true, 512, 8, 16, q, k}, seed);
    check_make(e, f, {rows, kept, 8, 512, 32, false, 0, 0, 7, q, k}, seed);
    check_make(e, f, {rows, kept, 4, 22, 3, true, 5, 1, 4, q, k}, seed);
    check_make(e, f, {rows, kept, 5, 33, 16, false, 3, 2, 16, q, k}, seed);
    check_make(e, f, {rows, kept, 1, 24, 0, true, 0, 0, 8, {3, 1}, {3, 2}}, seed);
    check_make(e, f, {rows, kept, 128, 512, 32, false, 0, 0, 64, {1, 2, 30}, {128, 257, 300}},
               seed);
    check_make(e, f, {rows, kept, 3, 1024, 512, true, 0, 0, 5, {4, 1}, {4, 6}}, seed);
    if (quick) return;
    check_make(e, f, {rows, kept, 4, 512, 32, true, 0, 512, 64, {1, 300, 1}, {8000, 900, 4}}, seed);
    check_make(e, f, {rows, kept, 128, 512, 32, false, 0, 0, 64, {300, 1}, {1000, 70016}}, seed);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family heads = {"pair rope"}, store = {"raw rows"}, windows = {"windows"};
    for (msgl_dtype dtype : {MSGL_F32, MSGL_F16, MSGL_BF16}) {
        check_heads(&e, &heads, dtype, o.quick, &seed);
        for (msgl_dtype kept : {MSGL_F32, MSGL_F16, MSGL_BF16}) {
            check_store(&e, &store, dtype, kept, 2560, 1544, &seed);
            check_store(&e, &store, dtype, kept, 37, 3, &seed);
        }
        check_windows(&e, &windows, dtype, dtype, o.quick, &seed);
    }
    check_windows(&e, &windows, MSGL_BF16, MSGL_E4M3, true, &seed);
    const int failed = family_end(&heads) | family_end(&store);
    return family_end(&windows) | failed;
}
