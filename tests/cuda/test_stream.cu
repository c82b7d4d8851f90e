// SPDX-License-Identifier: Apache-2.0
//
// stream_sm90: random shapes against sums in f64 on the host, outputs and workspace poisoned with
// NaN beforehand; and kernels that follow each other early against the same ones with waits between
// them.
#include "cuda/device_api.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.cuh"
#include "cuda/gemm/stream_sm90.h"
#include "tests/cuda/ops_check.cuh"

typedef struct world {
    msgl_device *device;
    msgl_exec x;
    msgl_arena scratch;
} world;

typedef struct stream_case {
    int m, n, k;         // n: rows of W
    int pad_in, pad_out; // beyond the rows
    msgl_dtype type;
} stream_case;

typedef struct operands {
    array in, w, out;
    float *before; // out's
    size_t ld_in, ld_out;
    int columns;
} operands;

static int below(uint64_t *seed, int n)
{
    return (int)(rng_next(seed) % (uint64_t)n);
}

static void wait(world *e)
{
    CUDA_OK(cudaStreamSynchronize(msgl__cuda_stream(&e->x)));
    if (e->x.status != 0) {
        printf("status %d: %s\n", e->x.status, e->device->fault.text);
        exit(1);
    }
}

static operands make_operands(const stream_case *c, uint64_t *seed)
{
    operands o = {};
    o.columns = c->n / 2;
    o.ld_in = (size_t)(c->k + c->pad_in), o.ld_out = (size_t)(o.columns + c->pad_out);
    o.in = array_new(c->type, c->m * o.ld_in, 1, seed);
    o.w = array_new(c->type, (size_t)c->n * c->k, 1 / sqrtf((float)c->k), seed);
    o.out = array_new(c->type, c->m * o.ld_out, 0, seed);
    o.before = (float *)malloc(o.out.n * sizeof(float) + 1);
    memcpy(o.before, o.out.host, o.out.n * sizeof(float));
    return o;
}

static void free_operands(operands *o)
{
    array_free(&o->in);
    array_free(&o->w);
    array_free(&o->out);
    free(o->before);
}

static double dot(const stream_case *c, const operands *o, int i, int j)
{
    const float *row = o->in.host + i * o->ld_in, *w = o->w.host + (size_t)j * c->k;
    double sum = 0;
    for (int p = 0; p < c->k; p++) sum += (double)row[p] * (double)w[p];
    return sum;
}

static double reference(const stream_case *c, const operands *o, int i, int j)
{
    const double v = dot(c, o, i, j);
    return v / (1 + exp(-v)) * dot(c, o, i, j + c->n / 2);
}

// Nothing of an earlier kernel may be of use, and the flags are as it found them.
static void poison(world *e, family *f)
{
    const msgl_cuda_blas *b = msgl__cuda_device(&e->x)->blas;
    static int32_t flags[MSGL_GEMM_FLAGS];
    CUDA_OK(cudaMemset(b->workspace, 0xff, b->workspace_bytes));
    CUDA_OK(cudaMemcpy(flags, b->flags, sizeof flags, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaDeviceSynchronize());
    bool lowered = true;
    for (int i = 0; i < MSGL_GEMM_FLAGS; i++) lowered &= flags[i] == 0;
    expect(f, lowered, "flags are lowered");
}

static msgl_linear_call make_call(const stream_case *c, const msgl_weight *w, const operands *o)
{
    msgl_linear_call call = {};
    call.w = w;
    call.in = o->in.dev;
    call.ld_in = o->ld_in;
    call.m = c->m;
    call.gated = true;
    call.out = o->out.dev;
    call.ld_out = o->ld_out;
    return call;
}

static void check(world *e, family *f, const stream_case *c, uint64_t *seed)
{
    enum { SAMPLES = 400 };
    operands o = make_operands(c, seed);
    const msgl_weight weight = {&msgl__cuda_formats[c->type], c->n, c->k, o.w.dev};
    const msgl_linear_call call = make_call(c, &weight, &o);
    char what[200];
    snprintf(what, sizeof what, "m %d n %d k %d%s pad %d %d", c->m, c->n, c->k,
             c->type == MSGL_F16 ? " f16" : "", c->pad_in, c->pad_out);
    e->x.act = c->type;
    poison(e, f);
    expect(f, msgl__cuda_stream_sm90(&e->x, &call), what);
    wait(e);
    array_download(&o.out);
    bool finite = true, kept = true;
    for (size_t i = 0; i < o.out.n; i++) {
        if ((int)(i % o.ld_out) < o.columns) {
            finite &= isfinite(o.out.host[i]);
        } else {
            kept &= memcmp(&o.out.host[i], &o.before[i], sizeof(float)) == 0;
        }
    }
    expect(f, finite, what);
    expect(f, kept, what);
    for (int s = 0; s < SAMPLES; s++) {
        const int i = below(seed, c->m), j = below(seed, o.columns);
        const double want = reference(c, &o, i, j), got = (double)o.out.host[i * o.ld_out + j];
        const double size = 4 + fabs(want);
        expect_near(f, got, want, dtype_error(c->type) * fabs(want) + 2e-5 * size, what);
    }
    free_operands(&o);
}

static void test_shapes(world *e, const options *opt)
{
    static const int MS[] = {1, 65, 80, 81, 96, 128, 129, 144, 160, 191, 192, 200, 224, 255, 256};
    family f = {"shapes", 0, 0, 0};
    uint64_t seed = opt->seed;
    for (int i = 0; i < (opt->quick ? 12 : 90); i++) {
        stream_case c = {};
        c.type = i % 4 == 3 ? MSGL_F16 : MSGL_BF16;
        c.m = i % 2 == 0 ? 1 + below(&seed, 256) : MS[i / 2 % (sizeof MS / sizeof MS[0])];
        // From tiles that many clusters share to several tiles of a cluster.
        c.n = 16 * (1 + below(&seed, i % 5 == 0 ? 600 : 60));
        c.k = 8 * (1 + below(&seed, i % 5 == 1 && !opt->quick ? 2000 : i % 5 == 0 ? 20 : 120));
        c.pad_in = 8 * below(&seed, 3);
        c.pad_out = 8 * below(&seed, 3);
        check(e, &f, &c, &seed);
    }
    if (family_end(&f) != 0) exit(1);
}

// --- kernels one after the other ----------------------------------------------------------------

enum { HIDDEN = 1024, INNER = 3072, KERNELS = 6 };

typedef struct chain {
    array x, start, inner, up, down;
    msgl_weight w[2];
    int m;
} chain;

// From x to inner and back: every kernel reads what the one in front wrote, and writes what that
// one read.
static void issue(world *e, const chain *c, bool waits)
{
    for (int i = 0; i < KERNELS; i++) {
        const bool up = i % 2 == 0;
        msgl_linear_call call = {};
        call.w = &c->w[i % 2];
        call.in = up ? c->x.dev : c->inner.dev;
        call.ld_in = up ? HIDDEN : INNER;
        call.m = c->m;
        call.gated = true;
        call.out = up ? c->inner.dev : c->x.dev;
        call.ld_out = up ? INNER : HIDDEN;
        if (!msgl__cuda_stream_sm90(&e->x, &call)) exit(1);
        if (waits) wait(e);
    }
}

static void restart(chain *c)
{
    memcpy(c->x.host, c->start.host, c->x.n * sizeof(float));
    array_upload(&c->x);
}

static void test_chain(world *e, const options *opt)
{
    static const int MS[] = {65, 100, 128, 160, 200, 256};
    family f = {"chain", 0, 0, 0};
    uint64_t seed = opt->seed;
    e->x.act = MSGL_BF16;
    for (int i = 0; i < (opt->quick ? 2 : 6); i++) {
        chain c = {};
        c.m = MS[opt->quick ? 3 * i : i];
        c.start = array_new(MSGL_BF16, (size_t)c.m * HIDDEN, 1, &seed);
        c.x = array_new(MSGL_BF16, (size_t)c.m * HIDDEN, 0, &seed);
        c.inner = array_new(MSGL_BF16, (size_t)c.m * INNER, 0, &seed);
        // Gates and ups of about 1.3, whose products keep the size of what is multiplied.
        c.up = array_new(MSGL_BF16, (size_t)2 * INNER * HIDDEN, 0.04f, &seed);
        c.down = array_new(MSGL_BF16, (size_t)2 * HIDDEN * INNER, 0.0235f, &seed);
        c.w[0] = {&msgl__cuda_formats[MSGL_W_BF16], 2 * INNER, HIDDEN, c.up.dev};
        c.w[1] = {&msgl__cuda_formats[MSGL_W_BF16], 2 * HIDDEN, INNER, c.down.dev};
        const size_t bytes = c.x.n * sizeof(float);
        float *want = (float *)malloc(bytes);
        restart(&c);
        issue(e, &c, true);
        array_download(&c.x);
        memcpy(want, c.x.host, bytes);
        bool finite = true, nonzero = false;
        for (size_t j = 0; j < c.x.n; j++) {
            finite &= isfinite(want[j]);
            nonzero |= want[j] != 0;
        }
        expect(&f, finite && nonzero, "results");
        for (int r = 0; r < 5; r++) {
            restart(&c);
            poison(e, &f);
            issue(e, &c, false);
            wait(e);
            array_download(&c.x);
            expect(&f, memcmp(c.x.host, want, bytes) == 0, "early launches change no bits");
        }
        msgl_err err;
        e->device->ops->graph_begin(e->device);
        issue(e, &c, false);
        msgl_graph *g = e->device->ops->graph_end(e->device, &err);
        for (int r = 0; r < 5 && g != NULL; r++) {
            restart(&c);
            e->device->ops->graph_launch(e->device, g);
            wait(e);
            array_download(&c.x);
            expect(&f, memcmp(c.x.host, want, bytes) == 0, "replays change no bits");
        }
        expect(&f, g != NULL, "a graph");
        poison(e, &f); // no flag is up behind the last one either
        if (g != NULL) e->device->ops->graph_destroy(e->device, g);
        array *const all[] = {&c.x, &c.start, &c.inner, &c.up, &c.down};
        for (array *a : all) array_free(a);
        free(want);
    }
    if (family_end(&f) != 0) exit(1);
}

int main(int argc, char **argv)
{
    const options opt = parse_options(argc, argv);
    static world e;
    msgl_err err;
    if (msgl__cuda_device_open(0, false, NULL, &e.device, NULL, &err) != 0) {
        fprintf(stderr, "cuda_stream: %s\n", err.text);
        return 1;
    }
    void *scratch;
    CUDA_OK(cudaMalloc(&scratch, 1 << 20));
    msgl__arena_init(&e.scratch, scratch, 1 << 20);
    e.x.device = e.device;
    e.x.scratch = &e.scratch;
    test_shapes(&e, &opt);
    test_chain(&e, &opt);
    e.device->ops->destroy(e.device);
    return 0;
}
