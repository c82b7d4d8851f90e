// SPDX-License-Identifier: Apache-2.0
//
// The four products of a layer with weights of codes beside the same ones in bf16, each by the
// kernels that a step takes, and all four behind each other as a step runs them (norms by
// norm_stats, no attention): microseconds, bf16's time over them, and the share of what reading the
// weights takes at the speed that a copy reaches on this card. Every call of a graph has other
// weights. bench_codes [--model 8B|14B] [--rows M,M,...] [--forms NAME,NAME,...] [--once PRODUCT]
// --once: only that product of each form, three times in a row and not timed, for a profiler.
#include "bench/cuda/codes_bench.cuh"
#include "cuda/device_api.h"
#include "cuda/gemm/lt.cuh"
#include "tests/cuda/codes_case.cuh"
extern "C" {
#include "quant/stored.h"
}

enum { PRODUCTS = 4, MAX_SETS = 24, LAYERS = 4, MOST_ROWS = 16384 };
static const size_t BEYOND_L2 = (size_t)300 << 20;

struct product {
    const char *name;
    int n, k;
    bool gated, adds;
};

static const product MODELS[2][PRODUCTS] = {
    {{"qkv", 6144, 4096, false, false},
     {"o", 4096, 4096, false, true},
     {"gate_up", 24576, 4096, true, false},
     {"down", 4096, 12288, false, true}},
    {{"qkv", 7168, 5120, false, false},
     {"o", 5120, 5120, false, true},
     {"gate_up", 34816, 5120, true, false},
     {"down", 5120, 17408, false, true}},
};

struct bench {
    msgl_device *device;
    msgl_exec x;
    msgl_arena scratch, activations; // activations: of tune
    cudaStream_t stream;
    char *in, *middle, *wide, *scaled;
    float *norm, *sums;
    double bytes_per_us; // of a copy, read and written
};

struct weights {
    std::vector<msgl_weight> sets;
    size_t bytes; // of one
};

// A packed form of 4 bits with numbers of two bytes.
static msgl_blocks packed_form(const char *name, msgl_codes *c, int span, msgl_offset offset)
{
    *c = {};
    c->bits = 4;
    c->group = 32;
    c->zero = 8;
    c->span = span;
    c->number = MSGL_NUMBER_F16;
    c->offset = offset;
    msgl_blocks b = {};
    b.name = name;
    b.elements = 32;
    b.bytes = sizeof(msgl_code_part);
    b.codes = c;
    return b;
}

// E4M3 with a scale for blocks of 128 x 128, or, span 0, for rows.
static msgl_blocks fp8_form(const char *name, msgl_codes *c, int span)
{
    msgl_blocks b = packed_form(name, c, span, MSGL_OFFSET_NONE);
    c->bits = 8;
    c->zero = 0;
    c->floats = true;
    c->number = MSGL_NUMBER_F32;
    c->rows = span == 128 ? 128 : 0;
    return b;
}

static bool is_fp8(const msgl_weight *w)
{
    return w->format->blocks != NULL && w->format->blocks->codes->bits == 8 &&
           w->format->blocks->codes->floats;
}

static weights make_weights(const msgl_wformat *f, const product *p, int sets, uint64_t *seed)
{
    weights w = {};
    const rows_of rows = draw_rows(f, p->n, p->k, seed);
    w.bytes = rows.bytes.size();
    if (sets == 0) sets = (int)(BEYOND_L2 / w.bytes) + 2;
    for (int i = 0; i < (sets < MAX_SETS ? sets : MAX_SETS); i++) {
        msgl_weight one = {};
        one.format = f;
        one.n = p->n;
        one.k = p->k;
        one.data = device_copy(rows.bytes.data(), w.bytes);
        w.sets.push_back(one);
    }
    return w;
}

static void free_weights(weights *w)
{
    for (msgl_weight &one : w->sets) CUDA_OK(cudaFree(one.data));
}

static void check(const bench *b, const char *what)
{
    CUDA_OK(cudaStreamSynchronize(b->stream));
    if (b->x.status == 0 && b->device->fault.code == 0) return;
    fprintf(stderr, "bench_codes: %s: status %d %s\n", what, b->x.status, b->device->fault.text);
    exit(1);
}

static msgl_linear_call call_of(bench *b, const product *p, const msgl_weight *w, int m)
{
    msgl_linear_call c = {};
    c.w = w;
    c.m = m;
    c.in = p->k > 8192 ? b->wide : p->adds ? b->middle : b->in;
    c.ld_in = (size_t)p->k;
    c.gated = p->gated;
    c.accumulate = p->adds;
    c.out = p->gated ? b->wide : p->adds ? b->in : b->middle;
    c.ld_out = (size_t)(p->gated ? p->n / 2 : p->n);
    return c;
}

static double time_product(bench *b, const product *p, const weights *w, int m)
{
    const int num = (int)w->sets.size();
    const double us = graph_us(b->stream, num, [&](int i) {
        const msgl_linear_call c = call_of(b, p, &w->sets[(size_t)i], m);
        msgl__cuda_linear(&b->x, &c);
    });
    check(b, p->name);
    return us;
}

// All of a layer's products, with norms in front of the first and the third.
static double time_layer(bench *b, const product *p, const weights *w, int m)
{
    const double us = graph_us(b->stream, LAYERS, [&](int layer) {
        msgl_norm_stats stats = {b->scaled, b->sums, 0, NULL, NULL, 0, false};
        msgl_handover between = {&w[PRODUCTS - 1].sets[(size_t)layer], false};
        for (int i = 0; i < PRODUCTS; i++) {
            msgl_linear_call c = call_of(b, &p[i], &w[i].sets[(size_t)layer], m);
            if (i >= 2) c.handover = &between;
            if (m <= 256) c.norm_stats = &stats;
            if (p[i].adds && m <= 256) c.next_norm = b->norm;
            if (!p[i].adds) c.norm = b->norm;
            if (i == 0 && m <= 256) { // as the layer in front leaves them
                stats.coded = is_fp8(c.w);
                stats.num_tiles = p[0].k / (stats.coded ? 128 : 64);
                stats.x = c.in;
                stats.weight = b->norm;
                stats.m = m;
            }
            c.norm_eps = 1e-6f;
            if (p[i].adds) stats.num_tiles = 0;
            msgl__cuda_linear(&b->x, &c);
        }
    });
    check(b, "layer");
    return us;
}

static void tune(bench *b, const product *p, const weights *w, const std::vector<int32_t> &ms)
{
    std::vector<msgl_linear_call> calls;
    for (const msgl_weight &one : w->sets) {
        msgl_linear_call c = call_of(b, p, &one, 1);
        c.m = 0;
        calls.push_back(c);
    }
    for (int normed = 0; normed < 2; normed++) {
        if (normed == 1 && p->adds) break;
        for (msgl_linear_call &c : calls) c.norm = normed ? b->norm : NULL;
        msgl_tune_product t = {};
        t.calls = calls.data();
        t.num_calls = (int32_t)calls.size();
        msgl__cuda_gemm_tune(&b->x, &b->activations, &t, ms.data(), (int32_t)ms.size());
        check(b, "tune");
    }
}

static void bench_form(bench *b, const product *model, const msgl_wformat *f,
                       const std::vector<int32_t> &ms, std::vector<double> *plain, uint64_t *seed)
{
    const bool is_plain = f->id == MSGL_W_BF16;
    weights w[PRODUCTS];
    size_t bytes = 0;
    for (int i = 0; i < PRODUCTS; i++) {
        w[i] = make_weights(f, &model[i], 0, seed);
        bytes += w[i].bytes;
        if ((int)w[i].sets.size() < LAYERS) { // of the layer
            free_weights(&w[i]);
            w[i] = make_weights(f, &model[i], LAYERS, seed);
        }
        tune(b, &model[i], &w[i], ms); // what there is to choose
    }
    for (size_t j = 0; j < ms.size(); j++) {
        printf("%-10s m %5d", is_plain ? "bf16" : f->name, (int)ms[j]);
        for (int i = 0; i <= PRODUCTS; i++) {
            const bool layer = i == PRODUCTS;
            const double us =
                layer ? time_layer(b, model, w, ms[j]) : time_product(b, &model[i], &w[i], ms[j]);
            const double limit = (double)(layer ? bytes : w[i].bytes) / b->bytes_per_us;
            if (is_plain) plain->push_back(us);
            printf("  %s %8.1f %5.2fx %3.0f%%", layer ? "layer" : model[i].name, us,
                   (*plain)[j * (PRODUCTS + 1) + (size_t)i] / us, 100 * limit / us);
            fflush(stdout);
        }
        printf("\n");
    }
    for (weights &one : w) free_weights(&one);
}

static void run_once(bench *b, const product *model, const char *name, const msgl_wformat *f,
                     const std::vector<int32_t> &ms, uint64_t *seed)
{
    enum { TIMES = 3 };
    for (int i = 0; i < PRODUCTS; i++) {
        if (strcmp(model[i].name, name) != 0) continue;
        weights w = make_weights(f, &model[i], TIMES, seed);
        for (const int32_t m : ms) {
            for (const msgl_weight &one : w.sets) {
                const msgl_linear_call c = call_of(b, &model[i], &one, m);
                msgl__cuda_linear(&b->x, &c);
            }
        }
        check(b, name);
        free_weights(&w);
    }
}

static void open_bench(bench *b)
{
    const size_t scratch = (size_t)3 << 30, activations = (size_t)4 << 30;
    const size_t row = (size_t)MOST_ROWS * 17408 * 2;
    msgl_err err;
    if (msgl__cuda_device_open(0, false, NULL, &b->device, NULL, &err) != 0) {
        fprintf(stderr, "bench_codes: %s\n", err.text);
        exit(1);
    }
    msgl__arena_init(&b->scratch, device_copy(NULL, scratch), scratch);
    msgl__arena_init(&b->activations, device_copy(NULL, activations), activations);
    b->x.device = b->device;
    b->x.act = MSGL_BF16;
    b->x.scratch = &b->scratch;
    b->stream = msgl__cuda_stream(&b->x);
    for (char **p : {&b->in, &b->middle, &b->wide, &b->scaled}) {
        *p = (char *)device_copy(NULL, row);
        noise<<<1024, 512, 0, b->stream>>>((__nv_bfloat16 *)*p, row / 2, 0.05f);
    }
    b->norm = (float *)device_copy(NULL, 32768 * 4);
    b->sums = (float *)device_copy(NULL, 1024 * 256 * 4);
    CUDA_OK(cudaMemset(b->norm, 0x3c, 32768 * 4)); // 0.0115 each
    CUDA_OK(cudaMemset(b->sums, 0x3c, 1024 * 256 * 4));
    check(b, "inputs");
    b->bytes_per_us = print_copy_speed(b->stream);
}

int main(int argc, char **argv)
{
    static bench b;
    std::vector<int> ms = {1, 8, 32, 64, 128, 256};
    std::string forms = "g128,g128_zero,g32,Q4_K,Q6_K,Q8_0";
    const char *once = NULL;
    int model = 1;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--model") model = strcmp(argv[i + 1], "8B") == 0 ? 0 : 1;
        if (name == "--forms") forms = argv[i + 1];
        if (name == "--once") once = argv[i + 1];
        if (name == "--rows") ms = listed_numbers(argv[i + 1]);
    }
    open_bench(&b);
    uint64_t seed = 1;
    std::vector<double> plain;
    const msgl_wformat bf16 = msgl__cuda_formats[MSGL_W_BF16];
    if (once == NULL) bench_form(&b, MODELS[model], &bf16, ms, &plain, &seed);
    msgl_codes codes[6];
    const msgl_blocks packed[6] = {
        packed_form("g128", &codes[0], 128, MSGL_OFFSET_NONE),
        packed_form("g128_zero", &codes[1], 128, MSGL_OFFSET_ZERO),
        packed_form("g32", &codes[2], 32, MSGL_OFFSET_NONE),
        packed_form("g64_float", &codes[3], 64, MSGL_OFFSET_FLOAT),
        fp8_form("fp8", &codes[4], 128),
        fp8_form("fp8_row", &codes[5], 0),
    };
    for (const std::string &name : listed(forms)) {
        const msgl_blocks *blocks = msgl__blocks_of_ggml(name.c_str());
        for (const msgl_blocks &one : packed) {
            if (name == one.name) blocks = &one;
        }
        if (name == "int8") blocks = &msgl__int8_blocks;
        if (blocks == NULL) {
            fprintf(stderr, "bench_codes: no form %s\n", name.c_str());
            return 1;
        }
        const msgl_wformat f = format_of_codes(blocks);
        if (once != NULL) {
            run_once(&b, MODELS[model], once, &f, ms, &seed);
        } else {
            bench_form(&b, MODELS[model], &f, ms, &plain, &seed);
        }
    }
    b.device->ops->destroy(b.device);
    return 0;
}
