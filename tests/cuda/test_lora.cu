// SPDX-License-Identifier: Apache-2.0
//
// Adapters of a linear layer against sums in f64: rows of any adapter or of none in any order,
// ranks 1 to 256, several parts, products of any shape, blocks of rows, norms. Rows without an
// adapter keep their bits; a row's bits do not depend on how many others there are; a captured call
// serves other adapters and rows than it was captured with. cuda_lora [--seed N] [--quick].
#include <vector>

#include "cuda/gemm/gemm.h"
#include "tests/cuda/ops_check.cuh"

extern "C" {
#include "kernel/lora_tiles.h"
}

static int below(uint64_t *seed, int n)
{
    return (int)(rng_next(seed) % (uint64_t)n);
}

static int padded(int rank)
{
    return (rank + MSGL_LORA_RANK_STEP - 1) / MSGL_LORA_RANK_STEP * MSGL_LORA_RANK_STEP;
}

// One part of one adapter: a [rank, k] within the adapter's A, b [n, rank].
struct part {
    int rank, at, col, n;
    array b;
};

// What one slot has of the layer; no parts: nothing.
struct adapter {
    std::vector<part> parts;
    array a;
    int ranks;
};

struct layer {
    msgl_dtype act;
    int n, k, parts, max_ranks;
    std::vector<adapter> slots;
    msgl_lora_entry *entries; // device
};

static array values(msgl_dtype act, const std::vector<float> &v)
{
    array a = {act, v.size(), (float *)malloc((v.size() + 1) * sizeof(float)), NULL};
    CUDA_OK(cudaMalloc(&a.dev, v.size() * msgl__dtype_size(act) + 16));
    memcpy(a.host, v.data(), v.size() * sizeof(float));
    array_upload(&a);
    array_download(&a);
    return a;
}

// Random in what the part's rank has, zeros in what that is padded by.
static std::vector<float> matrix(int rows, int cols, int of_rows, int of_cols, float scale,
                                 uint64_t *seed)
{
    std::vector<float> v((size_t)rows * cols);
    for (int i = 0; i < of_rows; i++) {
        for (int j = 0; j < of_cols; j++) v[(size_t)i * cols + j] = scale * rng_normal(seed);
    }
    return v;
}

// Parts of ascending columns with gaps, as q, k and v of which an adapter has some.
static adapter adapter_new(const layer *l, int num_parts, int max_rank, uint64_t *seed)
{
    adapter ad = {};
    std::vector<float> a;
    const int share = l->n / (num_parts > 0 ? num_parts : 1);
    for (int p = 0; p < num_parts; p++) {
        const int rank = p == 0 ? max_rank : 1 + below(seed, max_rank), room = padded(rank);
        const int skip = below(seed, 3) == 0 ? below(seed, share) : 0;
        part one = {room, ad.ranks, p * share + skip, share - skip, {}};
        if (p == num_parts - 1 && skip == 0) one.n = l->n - one.col;
        one.b = values(l->act, matrix(one.n, room, one.n, rank, 0.3f, seed));
        const std::vector<float> rows =
            matrix(room, l->k, rank, l->k, 1 / sqrtf((float)l->k), seed);
        a.insert(a.end(), rows.begin(), rows.end());
        ad.ranks += room;
        ad.parts.push_back(one);
    }
    ad.a = values(l->act, a);
    return ad;
}

// The device's table of the slots; stride 1.
static void write_entries(const layer *l)
{
    std::vector<msgl_lora_entry> all(l->slots.size());
    for (size_t s = 0; s < all.size(); s++) {
        const adapter &ad = l->slots[s];
        all[s] = {};
        if (ad.parts.empty()) continue;
        all[s].a = ad.a.dev;
        all[s].ranks = ad.ranks;
        all[s].num_parts = (int32_t)ad.parts.size();
        for (size_t p = 0; p < ad.parts.size(); p++) {
            const part &q = ad.parts[p];
            all[s].parts[p] = {q.b.dev, q.n, q.rank, q.at, q.col};
        }
    }
    device_write(l->entries, all.data(), all.size() * sizeof all[0]);
}

static layer layer_new(msgl_dtype act, int n, int k, int slots, int parts, int max_rank,
                       uint64_t *seed)
{
    layer l = {act, n, k, parts, parts * padded(max_rank)};
    for (int s = 0; s < slots; s++) {
        // One slot has nothing of this layer, others have fewer parts and smaller ranks.
        const bool none = slots > 1 && s == 1;
        const int has = none ? 0 : s == 0 ? parts : 1 + below(seed, parts);
        const int rank = s == 0 ? max_rank : 1 + below(seed, max_rank);
        l.slots.push_back(adapter_new(&l, has, rank, seed));
    }
    CUDA_OK(cudaMalloc(&l.entries, (size_t)slots * sizeof *l.entries));
    write_entries(&l);
    return l;
}

static void layer_free(layer *l)
{
    for (adapter &ad : l->slots) {
        for (part &p : ad.parts) array_free(&p.b);
        array_free(&ad.a);
    }
    CUDA_OK(cudaFree(l->entries));
}

// A step's rows and which slot each has, -1: none; on the device as the kernels get them.
struct rows {
    std::vector<int> slot;
    int tile_rows, room, listed;
    int32_t *order;        // device, [slot.size()]
    msgl_lora_tile *tiles; // device, [room]
};

static void rows_write(family *f, rows *r, int slots)
{
    std::vector<msgl_lora_span> spans;
    for (size_t i = 0; i < r->slot.size(); i++) {
        if (r->slot[i] >= 0) spans.push_back({(int32_t)i, 1, r->slot[i]});
    }
    std::vector<int32_t> starts((size_t)slots + 1), order(r->slot.size(), -1);
    std::vector<msgl_lora_tile> tiles((size_t)r->room);
    const int n = msgl__lora_tiles_fill(spans.data(), (int32_t)spans.size(), slots, r->tile_rows,
                                        starts.data(), order.data(), tiles.data(), r->room);
    expect(f, n >= 0, "tiles have room");
    for (int i = n; i < r->room; i++) tiles[(size_t)i] = {};
    device_write(r->order, order.data(), order.size() * sizeof order[0]);
    device_write(r->tiles, tiles.data(), tiles.size() * sizeof tiles[0]);
}

static rows rows_new(family *f, int n, int slots, int tile_rows, bool runs, uint64_t *seed)
{
    rows r = {};
    for (int i = 0; i < n; i++) {
        const bool same = runs && i > 0 && below(seed, 40) > 0;
        r.slot.push_back(same ? r.slot[(size_t)i - 1] : below(seed, slots + 1) - 1);
    }
    r.tile_rows = tile_rows;
    r.room = n / tile_rows + (n < slots ? n : slots);
    CUDA_OK(cudaMalloc(&r.order, (size_t)n * sizeof *r.order));
    CUDA_OK(cudaMalloc(&r.tiles, (size_t)(r.room + 1) * sizeof *r.tiles));
    rows_write(f, &r, slots);
    return r;
}

static void rows_free(rows *r)
{
    CUDA_OK(cudaFree(r->order));
    CUDA_OK(cudaFree(r->tiles));
}

static msgl_lora_tiles_call call_of(const layer *l, const rows *r)
{
    msgl_lora_tiles_call c = {};
    c.entries = l->entries;
    c.stride = 1;
    c.parts = l->parts;
    c.max_ranks = l->max_ranks;
    c.tiles = r->tiles;
    c.num_tiles = r->room;
    c.tile_rows = r->tile_rows;
    c.order = r->order;
    c.rows = (int32_t)r->slot.size();
    c.m = c.rows;
    c.n = l->n;
    c.k = l->k;
    return c;
}

static void run(bench_exec *e, const msgl_lora_tiles_call *c)
{
    const msgl_lora_size size = {c->rows, c->k, c->n, c->max_ranks, MSGL_MAX_LORA_PARTS};
    const size_t room = e->scratch.size;
    e->scratch.used = 0;
    e->scratch.size = msgl__cuda_lora_scratch(&size, e->x.act); // enough
    if (e->scratch.size > room) {
        printf("scratch of the test: %zu bytes\n", e->scratch.size);
        exit(1);
    }
    msgl__cuda_lora_tiles(&e->x, c);
    e->scratch.size = room;
}

// A row's input and what comes of it: h of one rank, and its terms' sizes.
static double dot(const layer *l, const float *x, const float *norm, double factor, const float *a,
                  double *size)
{
    double sum = 0;
    *size = 0;
    for (int i = 0; i < l->k; i++) {
        const double p = x[i] * factor * (norm != NULL ? norm[i] : 1.0) * a[i];
        sum += p;
        *size += fabs(p);
    }
    return sum;
}

// What the adapter adds to a row's columns [0, n), and by how much it may be off.
static void wanted(const layer *l, const adapter &ad, const float *x, const float *norm, float eps,
                   std::vector<double> *add, std::vector<double> *off)
{
    const double step = dtype_error(l->act);
    double squares = 0;
    for (int i = 0; i < l->k; i++) squares += (double)x[i] * x[i];
    const double factor = norm != NULL ? 1 / sqrt(squares / l->k + eps) : 1;
    add->assign((size_t)l->n, 0);
    off->assign((size_t)l->n, 0);
    for (const part &p : ad.parts) {
        for (int r = 0; r < p.rank; r++) {
            double size;
            const double h = dot(l, x, norm, factor, ad.a.host + (size_t)(p.at + r) * l->k, &size);
            // h is rounded once, its input's values once more where they are normed.
            const double h_off = fabs(h) * step + size * ((norm != NULL ? step : 0) + 0x1p-20);
            for (int j = 0; j < p.n; j++) {
                const double b = p.b.host[(size_t)j * p.rank + r];
                (*add)[(size_t)(p.col + j)] += h * b;
                (*off)[(size_t)(p.col + j)] += fabs(b) * h_off + fabs(h * b) * 0x1p-20;
            }
        }
    }
}

struct shape {
    int n, k, slots, parts, max_rank, rows, tile_rows;
    bool norm, f32_out, strides, runs;
    int first, m; // the call's block of rows; m 0: all
};

static void check_rows(family *f, const layer *l, const rows *r, const msgl_lora_tiles_call *c,
                       const array *in, const array *norm, const std::vector<float> &before,
                       const array *out, const char *what)
{
    bool kept = true;
    std::vector<double> add, off;
    for (int i = 0; i < c->m; i++) {
        const int slot = r->slot[(size_t)(c->first + i)];
        const bool has = slot >= 0 && !l->slots[(size_t)slot].parts.empty();
        if (has) {
            wanted(l, l->slots[(size_t)slot], in->host + (size_t)i * c->ld_in,
                   c->norm != NULL ? norm->host : NULL, c->norm_eps, &add, &off);
        }
        for (size_t j = 0; j < c->ld_out; j++) {
            const size_t at = (size_t)i * c->ld_out + j;
            const float was = before[at];
            if (!has || j >= (size_t)l->n || (add[j] == 0 && off[j] == 0)) {
                kept = kept && memcmp(&out->host[at], &was, sizeof was) == 0;
                continue;
            }
            const double want = was + add[j];
            const double step = c->f32_out ? 0x1p-20 : dtype_error(l->act);
            expect_near(f, out->host[at], want, off[j] + fabs(want) * step + 1e-30, what);
        }
    }
    expect(f, kept, "rows and columns without an adapter keep their bits");
}

static void check(bench_exec *e, family *f, msgl_dtype act, const shape &s, uint64_t *seed)
{
    layer l = layer_new(act, s.n, s.k, s.slots, s.parts, s.max_rank, seed);
    rows r = rows_new(f, s.rows, s.slots, s.tile_rows, s.runs, seed);
    msgl_lora_tiles_call c = call_of(&l, &r);
    c.first = s.first;
    if (s.m > 0) c.m = s.m;
    c.ld_in = (size_t)s.k + (s.strides ? 24 : 0);
    c.ld_out = (size_t)s.n + (s.strides ? 8 : 0);
    c.f32_out = s.f32_out;
    c.norm_eps = 1e-5f;
    array in = array_new(act, (size_t)c.m * c.ld_in, 1, seed);
    array norm = array_new(MSGL_F32, (size_t)s.k, 1, seed);
    array out = array_new(s.f32_out ? MSGL_F32 : act, (size_t)c.m * c.ld_out, 1, seed);
    const std::vector<float> before(out.host, out.host + out.n);
    c.in = in.dev;
    c.out = out.dev;
    c.norm = s.norm ? (const float *)norm.dev : NULL;
    e->x.act = act;
    run(e, &c);
    exec_sync(e);
    array_download(&out);
    char what[160];
    snprintf(what, sizeof what,
             "dtype %d, n %d, k %d, %d slots, %d parts, rank %d, %d rows of %d%s", (int)act, s.n,
             s.k, s.slots, s.parts, s.max_rank, s.rows, s.tile_rows, s.norm ? ", norm" : "");
    check_rows(f, &l, &r, &c, &in, &norm, before, &out, what);
    array_free(&in);
    array_free(&norm);
    array_free(&out);
    rows_free(&r);
    layer_free(&l);
}

static shape random_shape(bool quick, uint64_t *seed)
{
    static const int RANKS[] = {1, 7, 8, 16, 31, 64, 256};
    shape s = {};
    s.slots = 1 + below(seed, 6);
    s.parts = 1 + below(seed, 3 + 2 * !quick);
    s.max_rank = RANKS[below(seed, quick ? 6 : 7)];
    s.n = 8 * s.parts * (1 + below(seed, quick ? 12 : 90));
    if (below(seed, 3) == 0) s.n += 1 + below(seed, 30); // nothing is aligned
    s.k = 8 * (1 + below(seed, quick ? 90 : 300));
    if (below(seed, 4) == 0) s.k += 1 + below(seed, 7);
    s.rows = 1 + below(seed, quick ? 24 : 150);
    s.tile_rows = below(seed, 3) == 0 ? 64 : 8;
    s.norm = below(seed, 2) == 0;
    s.f32_out = below(seed, 5) == 0;
    s.strides = below(seed, 2) == 0;
    s.runs = below(seed, 2) == 0;
    if (below(seed, 4) == 0) {
        s.first = below(seed, s.rows);
        s.m = 1 + below(seed, s.rows - s.first);
    }
    return s;
}

// A row alone, in a tile of 8, against the same among 600 in tiles of 64, whose block takes all of
// k: their bits.
static void check_same_bits(bench_exec *e, family *f, msgl_dtype act, bool norm, uint64_t *seed)
{
    enum { MANY = 600, PICKED = 3, K = 1544, N = 200 };
    layer l = layer_new(act, N, K, 3, 2, 40, seed);
    array in = array_new(act, (size_t)MANY * K, 1, seed);
    array weight = array_new(MSGL_F32, K, 1, seed);
    array out = array_new(act, (size_t)MANY * N, 1, seed), one = out;
    one.n = N;
    one.host = (float *)malloc((N + 1) * sizeof(float));
    CUDA_OK(cudaMalloc(&one.dev, N * msgl__dtype_size(act) + 16));
    rows all = rows_new(f, MANY, 3, 64, true, seed);
    msgl_lora_tiles_call c = call_of(&l, &all);
    c.norm = norm ? (const float *)weight.dev : NULL;
    c.norm_eps = 1e-6f;
    c.ld_in = K;
    c.ld_out = N;
    c.in = in.dev;
    c.out = out.dev;
    e->x.act = act;
    const std::vector<float> before(out.host, out.host + out.n);
    run(e, &c);
    exec_sync(e);
    array_download(&out);
    for (int i = 0; i < PICKED; i++) {
        const int row = below(seed, MANY);
        rows single = rows_new(f, 1, 3, 8, false, seed);
        single.slot[0] = all.slot[(size_t)row];
        rows_write(f, &single, 3);
        memcpy(one.host, &before[(size_t)row * N], N * sizeof(float));
        array_upload(&one);
        msgl_lora_tiles_call alone = call_of(&l, &single);
        alone.norm = c.norm;
        alone.norm_eps = c.norm_eps;
        alone.ld_in = K;
        alone.ld_out = N;
        alone.in = (const char *)in.dev + (size_t)row * K * msgl__dtype_size(act);
        alone.out = one.dev;
        run(e, &alone);
        exec_sync(e);
        array_download(&one);
        expect(f, memcmp(one.host, out.host + (size_t)row * N, N * sizeof(float)) == 0,
               "a row has the same bits alone and among many");
        rows_free(&single);
    }
    array_free(&in);
    array_free(&weight);
    array_free(&out);
    array_free(&one);
    rows_free(&all);
    layer_free(&l);
}

// Captured over rows that have no adapter, launched with several mixes, and with a slot's adapter
// replaced by another one.
static void check_captured(bench_exec *e, family *f, msgl_dtype act, bool quick, uint64_t *seed)
{
    const int n = quick ? 96 : 1000, k = quick ? 520 : 2048, size = 64, slots = 16;
    layer l = layer_new(act, n, k, slots, 2, 16, seed);
    rows r = rows_new(f, size, slots, msgl__lora_tile_rows(size), false, seed);
    std::fill(r.slot.begin(), r.slot.end(), -1);
    rows_write(f, &r, slots);
    array in = array_new(act, (size_t)size * k, 1, seed);
    array norm = array_new(MSGL_F32, (size_t)k, 1, seed);
    array out = array_new(act, (size_t)size * n, 1, seed);
    msgl_lora_tiles_call c = call_of(&l, &r);
    c.in = in.dev;
    c.ld_in = (size_t)k;
    c.out = out.dev;
    c.ld_out = (size_t)n;
    c.norm = (const float *)norm.dev;
    c.norm_eps = 1e-6f;
    e->x.act = act;
    const cudaGraphExec_t graph = cuda_capture(e->device.stream, [&] { run(e, &c); });
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < size; i++) {
            r.slot[(size_t)i] = round == 0   ? -1
                                : round == 1 ? i % slots
                                             : below(seed, slots + 1) - 1;
        }
        if (round == 3) { // slot 1 had none
            l.slots[1] = adapter_new(&l, 2, 9, seed);
            write_entries(&l);
        }
        rows_write(f, &r, slots);
        for (size_t i = 0; i < out.n; i++) out.host[i] = rng_normal(seed);
        array_upload(&out);
        array_download(&out);
        const std::vector<float> before(out.host, out.host + out.n);
        CUDA_OK(cudaGraphLaunch(graph, e->device.stream));
        exec_sync(e);
        array_download(&out);
        check_rows(f, &l, &r, &c, &in, &norm, before, &out, "captured");
    }
    CUDA_OK(cudaGraphExecDestroy(graph));
    array_free(&in);
    array_free(&norm);
    array_free(&out);
    rows_free(&r);
    layer_free(&l);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, (size_t)256 << 20);
    family shapes = {"shapes"}, bits = {"bits"}, captured = {"captured"};
    for (int i = 0; i < (o.quick ? 60 : 300); i++) {
        check(&e, &shapes, (msgl_dtype)(i % 3), random_shape(o.quick, &seed), &seed);
    }
    for (int act = 0; act < 3; act++) {
        // What Qwen3-14B's q, k and v are on a rank of four; its down, gate and up; and rank 256.
        if (!o.quick) {
            check(&e, &shapes, (msgl_dtype)act, {1792, 5120, 16, 3, 16, 64, 8, true}, &seed);
            check(&e, &shapes, (msgl_dtype)act, {5120, 17408, 16, 1, 16, 64, 8}, &seed);
            check(&e, &shapes, (msgl_dtype)act, {34816, 5120, 16, 2, 16, 64, 8, true}, &seed);
            check(&e, &shapes, (msgl_dtype)act, {5120, 4352, 3, 1, 256, 700, 64}, &seed);
        }
        check_same_bits(&e, &bits, (msgl_dtype)act, act == 0 || !o.quick, &seed);
        check_captured(&e, &captured, (msgl_dtype)act, o.quick, &seed);
    }
    int failed = family_end(&shapes);
    failed |= family_end(&bits);
    failed |= family_end(&captured);
    return failed;
}
