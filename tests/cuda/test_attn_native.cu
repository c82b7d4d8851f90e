// SPDX-License-Identifier: Apache-2.0
//
// torch_native's steps (attn/native.h), each alone: gathered and copied rows to the bit, softmax
// and products against f64. Outputs are NaN before, and so is all that must not matter. On a
// deterministic device a row of a product has the same bits in any number of rows and with any
// number of keys behind its own.
#include "cuda/attn/native.h"
#include "cuda/device_api.h"
#include "tests/cuda/ops_check.cuh"

static const msgl_dtype DTYPES[] = {MSGL_F32, MSGL_F16, MSGL_BF16};

static int range(uint64_t *seed, int lo, int hi) // inclusive
{
    return lo + (int)(rng_next(seed) % (uint64_t)(hi - lo + 1));
}

// An array's bytes.
static char *bytes_of(const array *a, size_t *n)
{
    *n = a->n * msgl__dtype_size(a->dtype);
    char *raw = (char *)malloc(*n);
    CUDA_OK(cudaMemcpy(raw, a->dev, *n, cudaMemcpyDeviceToHost));
    return raw;
}

static void check_gather(family *f, const msgl_native_gather *g, const array *pool, array *to,
                         const int32_t *slots, uint64_t width)
{
    array_download(to);
    bool same = true;
    for (size_t row = 0; row < (size_t)g->rows; row++) {
        const bool there = (int32_t)row >= g->first && (int32_t)row < g->end;
        for (size_t i = 0; i < width; i++) {
            const float want = there ? pool->host[(size_t)slots[row] * width + i] : 0;
            same = same && to->host[row * width + i] == want;
        }
    }
    for (size_t i = (size_t)g->rows * width; i < to->n; i++) same = same && isnan(to->host[i]);
    expect(f, same, "rows");
}

static void test_gather(uint64_t *seed, int rounds)
{
    family f = {"gather"};
    for (int round = 0; round < rounds; round++) {
        const bool e4m3 = round % 4 == 3, latent = round % 5 == 4 && !e4m3;
        const msgl_dtype dtype = e4m3 ? MSGL_BF16 : DTYPES[round % 3];
        static const int pages[] = {1, 7, 16};
        const int page = pages[round % 3], num_slots = 20 * page;
        const int rows = range(seed, 1, 2) * MSGL_NATIVE_KEYS;
        const size_t width = (size_t)range(seed, 1, 80) * 8;
        int32_t slots[2 * MSGL_NATIVE_KEYS], table[4 * MSGL_NATIVE_KEYS];
        const int place = range(seed, 0, 2 * MSGL_NATIVE_KEYS - 1); // of the first row
        const msgl_dtype kept = e4m3 ? MSGL_E4M3 : dtype;
        array k = array_new(kept, num_slots * width, 3, seed);
        array v = array_new(kept, num_slots * width, 3, seed);
        array to_k = array_new(dtype, ((size_t)rows + 3) * width, 0, seed);
        array to_v = array_new(dtype, ((size_t)rows + 3) * width, 0, seed);
        msgl_native_gather g = {};
        g.dtype = dtype;
        g.e4m3 = e4m3;
        g.width = (int32_t)width;
        g.k = k.dev;
        g.v = latent ? NULL : v.dev;
        g.first = range(seed, 0, rows - 1);
        g.end = range(seed, g.first + 1, rows);
        g.rows = rows;
        g.to_k = to_k.dev;
        g.to_v = to_v.dev;
        // Entries that are not the request's are never read.
        for (int i = 0; i <= (place + rows - 1) / page; i++) {
            const bool own = i >= (place + g.first) / page && i <= (place + g.end - 1) / page;
            table[i] = own ? range(seed, 0, 19) : -1000000;
        }
        for (int i = 0; i < rows; i++) {
            slots[i] = table[(place + i) / page] * page + (place + i) % page;
        }
        int32_t *dev = ints_upload(table, (size_t)(place + rows - 1) / page + 1);
        g.table = dev;
        g.paging = msgl__paging_of(page);
        g.place = place;
        CUDA_OK(msgl__cuda_native_gather(&g, 0));
        CUDA_OK(cudaDeviceSynchronize());
        check_gather(&f, &g, &k, &to_k, slots, width);
        if (!latent) check_gather(&f, &g, &v, &to_v, slots, width);
        CUDA_OK(cudaFree(dev));
        array_free(&k);
        array_free(&v);
        array_free(&to_k);
        array_free(&to_v);
    }
    printf("gather: %ld checks, %ld failures\n", f.checks, f.failures);
    if (f.failures > 0) exit(1);
}

static void test_copy(uint64_t *seed, int rounds)
{
    family f = {"copy"};
    for (int round = 0; round < rounds; round++) {
        const int heads = range(seed, 1, 5), tokens = range(seed, 1, 70), run = range(seed, 1, 90);
        const size_t ld = (size_t)(heads * run + range(seed, 0, 3)) * 4; // floats
        array from = array_new(MSGL_F32, (size_t)tokens * ld, 1, seed);
        array to = array_new(MSGL_F32, (size_t)(heads * tokens * run + 7) * 4, 0, seed);
        msgl_native_copy c = {};
        c.from = from.dev;
        c.to = to.dev;
        c.heads = heads;
        c.tokens = tokens;
        c.bytes = run * 16;
        c.from_head = c.to_token = (size_t)c.bytes;
        c.from_token = ld * sizeof(float);
        c.to_head = (size_t)tokens * c.to_token;
        CUDA_OK(msgl__cuda_native_copy(&c, 0));
        CUDA_OK(cudaDeviceSynchronize());
        array_download(&to);
        const size_t n = (size_t)run * 4;
        bool same = true;
        for (size_t h = 0; h < (size_t)heads; h++) {
            for (size_t t = 0; t < (size_t)tokens; t++) {
                same = same && memcmp(to.host + (h * (size_t)tokens + t) * n,
                                      from.host + t * ld + h * n, n * sizeof(float)) == 0;
            }
        }
        for (size_t i = (size_t)(heads * tokens) * n; i < to.n; i++) {
            same = same && isnan(to.host[i]);
        }
        expect(&f, same, "runs");
        array_free(&from);
        array_free(&to);
    }
    printf("copy: %ld checks, %ld failures\n", f.checks, f.failures);
    if (f.failures > 0) exit(1);
}

static bool sees(const msgl_native_softmax *s, int pos, int key)
{
    return key <= pos && (s->window < 0 || key >= pos - s->window) &&
           (s->chunk == 0 || key / s->chunk == pos / s->chunk);
}

// A row of scores or probabilities.
static const float *row_of(const msgl_native_softmax *s, const array *a, int head, int row)
{
    return a->host +
           ((size_t)head * (size_t)(s->tokens * s->group) + (size_t)row) * (size_t)s->keys;
}

static double softmax_error(const msgl_native_softmax *s, const array *scores, const array *p,
                            const array *sinks, int head, int row)
{
    const float *x = row_of(s, scores, head, row), *got = row_of(s, p, head, row);
    const int pos = s->first_pos + row / s->group;
    double *e = (double *)malloc((size_t)s->keys * sizeof *e), most = -INFINITY, sum = 0, worst = 0;
    for (int i = 0; i < s->keys; i++) {
        const double cap = s->softcap;
        e[i] = cap > 0 ? cap * tanh(x[i] / cap) : x[i];
        if (!sees(s, pos, s->first_key + i)) e[i] = -INFINITY;
        if (e[i] > most) most = e[i];
    }
    for (int i = 0; i < s->keys; i++) sum += e[i] = exp(e[i] - most);
    if (s->sinks != NULL) sum += exp(sinks->host[head * s->group + row % s->group] - most);
    for (int i = 0; i < s->keys; i++) {
        const bool zero = !sees(s, pos, s->first_key + i);
        const double error = fabs(got[i] - e[i] / sum);
        if (!(error <= worst)) worst = zero && got[i] != 0 ? INFINITY : error;
    }
    free(e);
    return worst;
}

static msgl_native_softmax random_softmax(uint64_t *seed, int round)
{
    msgl_native_softmax s = {};
    const int unit = MSGL_NATIVE_KEYS;
    s.dtype = DTYPES[round % 3];
    s.num_kv_heads = range(seed, 1, 3);
    s.group = range(seed, 1, 5);
    s.tokens = range(seed, 1, 40);
    s.first_pos = range(seed, 0, round % 2 ? 5000 : 300);
    s.window = range(seed, 0, 1) ? range(seed, 0, 1500) : -1;
    s.chunk = range(seed, 0, 2) == 0 ? range(seed, 1, 700) : 0;
    s.softcap = range(seed, 0, 2) == 0 ? 20.f : 0.f;
    int first = s.window >= 0 && s.first_pos > s.window ? s.first_pos - s.window : 0;
    if (s.chunk > 0 && s.first_pos / s.chunk * s.chunk > first) {
        first = s.first_pos / s.chunk * s.chunk;
    }
    s.first_key = first / unit * unit;
    s.keys = (s.first_pos + s.tokens + unit - 1) / unit * unit - s.first_key;
    return s;
}

static void test_softmax(uint64_t *seed, int rounds)
{
    family f = {"softmax"};
    for (int round = 0; round < rounds; round++) {
        msgl_native_softmax s = random_softmax(seed, round);
        const int rows = s.tokens * s.group;
        const size_t n = (size_t)(s.num_kv_heads * rows) * (size_t)s.keys;
        array scores = array_new(MSGL_F32, n, 4, seed), p = array_new(s.dtype, n, 0, seed);
        array sinks = array_new(MSGL_F32, (size_t)(s.num_kv_heads * s.group), 4, seed);
        for (size_t i = 0; i < n; i++) {
            const int key = s.first_key + (int)(i % (size_t)s.keys);
            const int row = (int)(i / (size_t)s.keys) % rows;
            if (!sees(&s, s.first_pos + row / s.group, key)) scores.host[i] = NAN;
        }
        sinks.host[0] = round % 4 == 0 ? 200.f : -INFINITY;
        array_upload(&scores);
        array_upload(&sinks);
        const bool in_place = s.dtype == MSGL_F32 && round % 2 == 0;
        s.scores = (const float *)scores.dev;
        s.p = in_place ? scores.dev : p.dev;
        s.sinks = range(seed, 0, 1) ? (const float *)sinks.dev : NULL;
        CUDA_OK(msgl__cuda_native_softmax(&s, 0));
        CUDA_OK(cudaDeviceSynchronize());
        array got = p;
        if (in_place) got.dev = scores.dev;
        array_download(&got);
        // Of what is at most 1; and f32 sums, exponents and tanh.
        const double allowed = (s.dtype == MSGL_F32 ? 0 : dtype_error(s.dtype)) + 3e-6;
        for (int h = 0; h < s.num_kv_heads; h++) {
            for (int row = 0; row < rows; row++) {
                const double error = softmax_error(&s, &scores, &got, &sinks, h, row) / allowed;
                if (!(error <= f.worst)) f.worst = error;
                expect(&f, error <= 1, "row");
            }
        }
        array_free(&scores);
        array_free(&p);
        array_free(&sinks);
    }
    printf("softmax: %ld rows, %ld failures, largest error %.2f of what is allowed\n", f.checks,
           f.failures, f.worst);
    if (f.failures > 0) exit(1);
}

// Shapes as torch_native has them: K and V rows of all heads, queries and results packed or lying
// between other heads.
typedef struct shape {
    bool transposed, packed;
    msgl_dtype dtype;
    int heads, rows, dim, len;
} shape;

static msgl_native_product product_of(const shape *s)
{
    msgl_native_product p = {};
    const size_t dim = (size_t)s->dim, rows = (size_t)s->rows, len = (size_t)s->len;
    const size_t width = (size_t)s->heads * dim;
    p.in_type = s->dtype;
    p.out_type = s->transposed ? MSGL_F32 : s->dtype;
    p.transposed = s->transposed;
    p.heads = s->heads;
    p.m = s->rows;
    p.n = s->transposed ? s->len : s->dim;
    p.k = s->transposed ? s->dim : s->len;
    p.scale = 0.25f;
    p.ld_b = width;
    p.head_b = dim;
    size_t *ld_lies = s->transposed ? &p.ld_a : &p.ld_out;
    size_t *head_lies = s->transposed ? &p.head_a : &p.head_out;
    *ld_lies = s->packed ? dim : width;
    *head_lies = s->packed ? rows * dim : dim;
    *(s->transposed ? &p.ld_out : &p.ld_a) = len;
    *(s->transposed ? &p.head_out : &p.head_a) = rows * len;
    return p;
}

static double product_error(const msgl_native_product *p, const array *a, const array *b,
                            const array *out, int head, int row, int column)
{
    double sum = 0, size = 0;
    const size_t h = (size_t)head, i = (size_t)row, j = (size_t)column;
    for (size_t l = 0; l < (size_t)p->k; l++) {
        const double x = a->host[h * p->head_a + i * p->ld_a + l];
        const size_t at = p->transposed ? j * p->ld_b + l : l * p->ld_b + j;
        const double y = b->host[h * p->head_b + at];
        sum += x * y;
        size += fabs(x * y);
    }
    const double want = p->scale * sum, got = out->host[h * p->head_out + i * p->ld_out + j];
    const double rounding = p->out_type == MSGL_F32 ? 0 : dtype_error(p->out_type) * fabs(want);
    return fabs(got - want) / (rounding + 3e-6 * p->scale * size + 1e-30);
}

static void run_product(msgl_device *device, const msgl_native_product *p)
{
    msgl_exec x = {};
    x.device = device;
    msgl__cuda_native_product(&x, p);
    CUDA_OK(cudaDeviceSynchronize());
    if (x.status == 0) return;
    printf("FAILED: status %d: %s\n", x.status, device->fault.text);
    exit(1);
}

// The first rows of `a` and the first keys alone have the bits that they have among more.
static void check_bits(family *f, msgl_device *device, const shape *all, msgl_native_product p,
                       const array *out, uint64_t *seed)
{
    shape s = *all;
    s.rows = range(seed, 1, all->rows);
    const msgl_native_product few = product_of(&s);
    array other = array_new(few.out_type, out->n, 0, seed);
    p.m = few.m;
    p.out = other.dev;
    run_product(device, &p);
    size_t n;
    char *want = bytes_of(out, &n), *got = bytes_of(&other, &n);
    const size_t size = msgl__dtype_size(p.out_type);
    bool same = true;
    for (size_t h = 0; h < (size_t)p.heads; h++) {
        for (size_t i = 0; i < (size_t)p.m; i++) {
            const size_t at = (h * p.head_out + i * p.ld_out) * size;
            same = same && memcmp(want + at, got + at, (size_t)p.n * size) == 0;
        }
    }
    expect(f, same, "bits of fewer rows");
    free(want);
    free(got);
    array_free(&other);
}

// Zeros behind the keys: the bits of all keys are those of the first ones.
static void check_zeros(family *f, msgl_device *device, msgl_native_product p, array *a,
                        const array *out, uint64_t *seed)
{
    const int keep = range(seed, 1, p.k / MSGL_NATIVE_KEYS) * MSGL_NATIVE_KEYS;
    for (size_t h = 0; h < (size_t)p.heads; h++) {
        for (size_t i = 0; i < (size_t)p.m; i++) {
            for (int l = keep; l < p.k; l++) a->host[h * p.head_a + i * p.ld_a + (size_t)l] = 0;
        }
    }
    array_upload(a);
    array few = array_new(p.out_type, out->n, 0, seed),
          all = array_new(p.out_type, out->n, 0, seed);
    p.out = all.dev;
    run_product(device, &p);
    p.k = keep;
    p.out = few.dev;
    run_product(device, &p);
    size_t n;
    char *want = bytes_of(&all, &n), *got = bytes_of(&few, &n);
    expect(f, memcmp(want, got, n) == 0, "bits of fewer keys");
    free(want);
    free(got);
    array_free(&few);
    array_free(&all);
}

static void test_product(uint64_t *seed, int rounds, bool deterministic)
{
    static const int dims[] = {8, 64, 72, 128, 256, 512, 576};
    family f = {deterministic ? "product, deterministic" : "product"};
    msgl_device *device;
    msgl_err err;
    if (msgl__cuda_device_open(0, deterministic, NULL, &device, NULL, &err) != 0) {
        printf("%s\n", err.text);
        exit(1);
    }
    for (int round = 0; round < rounds; round++) {
        shape s = {};
        s.transposed = round % 2 == 0;
        s.packed = range(seed, 0, 1) != 0;
        s.dtype = DTYPES[round / 2 % 3];
        s.heads = range(seed, 1, 4);
        s.rows = range(seed, 1, range(seed, 0, 2) == 0 ? 500 : 12);
        s.dim = dims[range(seed, 0, 6)];
        s.len = range(seed, 1, 12) * MSGL_NATIVE_KEYS;
        msgl_native_product p = product_of(&s);
        array a = array_new(s.dtype, (size_t)s.heads * s.rows * p.k, 1, seed);
        array b = array_new(s.dtype, (size_t)s.heads * s.dim * s.len, 1, seed);
        array out = array_new(p.out_type, (size_t)s.heads * s.rows * p.n, 0, seed);
        p.a = a.dev;
        p.b = b.dev;
        p.out = out.dev;
        run_product(device, &p);
        array_download(&out);
        for (int i = 0; i < 500; i++) {
            const int head = range(seed, 0, s.heads - 1), row = range(seed, 0, s.rows - 1);
            const int column = i == 0 ? p.n - 1 : range(seed, 0, p.n - 1);
            const double error =
                product_error(&p, &a, &b, &out, head, i == 0 ? s.rows - 1 : row, column);
            if (!(error <= f.worst)) f.worst = error;
            expect(&f, error <= 1, "sum");
        }
        for (size_t i = 0; i < out.n; i++) expect(&f, !isnan(out.host[i]), "not written");
        if (deterministic) check_bits(&f, device, &s, p, &out, seed);
        if (deterministic && !s.transposed) check_zeros(&f, device, p, &a, &out, seed);
        array_free(&a);
        array_free(&b);
        array_free(&out);
    }
    device->ops->destroy(device);
    printf("%s: %ld checks, %ld failures, largest error %.2f of what is allowed\n", f.name,
           f.checks, f.failures, f.worst);
    if (f.failures > 0) exit(1);
}

int main(int argc, char **argv)
{
    bool quick = false;
    uint64_t seed = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) quick = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) seed = strtoull(argv[++i], NULL, 10);
    }
    test_gather(&seed, quick ? 10 : 40);
    test_copy(&seed, quick ? 6 : 30);
    test_softmax(&seed, quick ? 9 : 45);
    test_product(&seed, quick ? 12 : 60, false);
    test_product(&seed, quick ? 12 : 60, true);
    return 0;
}
