// SPDX-License-Identifier: Apache-2.0
//
// The experts of a mixture's layer behind their choice, with weights of codes beside the same in
// bf16, each by the kernels that a step takes: gate and up, down, and the combination.
// Microseconds, bf16's time over them, and the share of what reading the experts that are hit takes
// at the speed that a copy reaches on this card; for the whole and for both products alone. Experts
// are drawn evenly; every call of a graph has other ones, or others' weights.
// bench_experts [--model 30B-A3B|gpt-oss-20b] [--rows M,M,...] [--forms NAME,NAME,...]
#include "bench/cuda/codes_bench.cuh"
#include "tests/cuda/codes_case.cuh"
extern "C" {
#include "quant/stored.h"
}

enum { SETS = 2, CALLS = 8, MOST_ROWS = 16384 };

struct model {
    const char *name;
    int hidden, inter, experts, top_k;
    bool biased; // and its gate clamped
};

static const model MODELS[] = {{"30B-A3B", 2048, 768, 128, 8, false},
                               {"gpt-oss-20b", 2880, 2880, 32, 4, true}};

struct form {
    const char *name;
    int bits, span;
    msgl_number number;
    msgl_offset offset;
    bool e2m1, e4m3;
};

static const form FORMS[] = {
    {"bf16", 16, 0, MSGL_NUMBER_BF16, MSGL_OFFSET_NONE, false, false},
    {"int4_g128_zero", 4, 128, MSGL_NUMBER_F16, MSGL_OFFSET_ZERO, false, false},
    {"int4_g128", 4, 128, MSGL_NUMBER_F16, MSGL_OFFSET_NONE, false, false},
    {"int4_g32", 4, 32, MSGL_NUMBER_F16, MSGL_OFFSET_NONE, false, false},
    {"fp8_blocks", 8, 128, MSGL_NUMBER_BF16, MSGL_OFFSET_NONE, false, true},
    {"mxfp4", 4, 32, MSGL_NUMBER_E8M0, MSGL_OFFSET_NONE, true, false},
};

struct bench {
    bench_exec e;
    const model *m;
    char *in, *sorted, *act, *result, *out;
    float *weights, *bias;
    int32_t *ids[CALLS], *source[CALLS], *offsets[CALLS];
    int hit; // experts, on average of the calls
    double bytes_per_us;
};

// One kind of matrix: SETS times all experts.
struct matrices {
    msgl_wformat format;
    msgl_codes codes;
    msgl_blocks blocks;
    std::vector<msgl_weight> list;
    char *memory;
    size_t bytes; // of an expert
};

static void matrices_make(matrices *w, const bench *b, const form *f, int n, int k, uint64_t *seed)
{
    static const int8_t E2M1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    w->codes = {};
    w->codes.bits = f->bits;
    w->codes.group = 32;
    w->codes.zero = f->e2m1 || f->e4m3 ? 0 : 8;
    w->codes.values = f->e2m1 ? E2M1 : NULL;
    w->codes.floats = f->e4m3;
    w->codes.factor = f->e2m1 ? 0.5f : 0;
    w->codes.offset = f->offset;
    w->codes.span = f->span;
    w->codes.rows = f->e4m3 ? f->span : 0; // blocks
    w->codes.number = f->number;
    w->blocks = {};
    w->blocks.name = f->name;
    w->blocks.elements = 32;
    w->blocks.bytes = sizeof(msgl_code_part);
    w->blocks.codes = &w->codes;
    w->format = f->bits == 16 ? format_of_dtype(MSGL_BF16) : format_of_codes(&w->blocks);
    const rows_of rows = draw_rows(&w->format, n, k, seed);
    w->bytes = rows.bytes.size();
    const size_t stride = (w->bytes + 63) / 64 * 64, num = (size_t)(SETS * b->m->experts);
    w->memory = (char *)device_copy(NULL, num * stride);
    w->list.clear();
    for (size_t i = 0; i < num; i++) {
        msgl_weight one = {};
        one.format = &w->format;
        one.n = n;
        one.k = k;
        one.data = w->memory + i * stride;
        if (i == 0) device_write(one.data, rows.bytes.data(), w->bytes);
        if (i > 0) {
            CUDA_OK(cudaMemcpy(one.data, w->memory, w->bytes, cudaMemcpyDeviceToDevice));
        }
        w->list.push_back(one);
    }
}

static void check(bench *b, const char *what)
{
    CUDA_OK(cudaStreamSynchronize(b->e.device.stream));
    if (b->e.x.status == 0) return;
    fprintf(stderr, "bench_experts: %s: status %d %s\n", what, b->e.x.status,
            b->e.device.base.fault.text);
    exit(1);
}

// The choices of every call.
static void choose(bench *b, int rows, uint64_t *seed)
{
    const int top_k = b->m->top_k, experts = b->m->experts, n = rows * top_k;
    b->hit = 0;
    for (int call = 0; call < CALLS; call++) {
        std::vector<int32_t> ids((size_t)n), source((size_t)n), offsets((size_t)experts + 1);
        for (int r = 0; r < rows; r++) {
            for (int c = 0; c < top_k;) {
                int32_t *const own = &ids[(size_t)(r * top_k)];
                own[c] = (int32_t)(rng_next(seed) % (uint64_t)experts);
                if (std::find(own, own + c, own[c]) == own + c) c++;
            }
        }
        for (int i = 0; i < n; i++) source[(size_t)i] = i, offsets[(size_t)ids[(size_t)i] + 1]++;
        std::stable_sort(source.begin(), source.end(),
                         [&](int32_t x, int32_t y) { return ids[(size_t)x] < ids[(size_t)y]; });
        for (int x = 0; x < experts; x++) {
            b->hit += offsets[(size_t)x + 1] > 0;
            offsets[(size_t)x + 1] += offsets[(size_t)x];
        }
        device_write(b->ids[call], ids.data(), ids.size() * 4);
        device_write(b->source[call], source.data(), source.size() * 4);
        device_write(b->offsets[call], offsets.data(), offsets.size() * 4);
    }
    b->hit = (b->hit + CALLS / 2) / CALLS;
}

// What src/moe/grouped.c makes of a step: all of it, or a product alone.
enum part { ALL, UP, DOWN };

static void run_call(bench *b, const matrices *up, const matrices *down, int rows, int call,
                     part which)
{
    const model *m = b->m;
    const size_t set = (size_t)(call % SETS * m->experts);
    msgl_experts_call few = {};
    few.gate_up = &up->list[set];
    few.down = &down->list[set];
    few.activation = m->biased ? MSGL_SWIGLU_CLAMPED : MSGL_SILU;
    few.gate_up_bias = few.down_bias = m->biased ? b->bias : NULL;
    few.num_experts = m->experts;
    few.top_k = m->top_k;
    few.rows = rows;
    few.in = b->in;
    few.ids = b->ids[call];
    few.weights = b->weights;
    few.source = b->source[call];
    few.act = b->act;
    few.accumulate = true;
    few.out = b->out;
    if (which == ALL && msgl__cuda_experts(&b->e.x, &few)) return;
    msgl_grouped_call c = {};
    c.num_experts = m->experts;
    c.offsets = b->offsets[call];
    c.rows = rows * m->top_k;
    c.bias = few.gate_up_bias;
    c.activation = few.activation;
    if (which != DOWN) {
        c.experts = few.gate_up;
        c.in = b->in;
        c.ld_in = (size_t)m->hidden;
        c.gated = true;
        c.out = b->act;
        c.ld_out = (size_t)m->inter;
        c.from = few.source;
        c.from_per = m->top_k;
        c.gathered = b->sorted;
        msgl__cuda_grouped(&b->e.x, &c);
    }
    if (which != UP) {
        c.experts = few.down;
        c.in = b->act;
        c.ld_in = (size_t)m->inter;
        c.gated = false;
        c.out = b->result;
        c.ld_out = (size_t)m->hidden;
        c.from = NULL;
        c.to = few.source;
        c.inputs_ready = true;
        msgl__cuda_grouped(&b->e.x, &c);
    }
    if (which == ALL) {
        msgl__cuda_moe_combine(&b->e.x, b->result, NULL, b->weights, rows, m->top_k, m->hidden,
                               true, b->out);
    }
}

static void bench_form(bench *b, const form *f, const std::vector<int> &ms,
                       std::vector<double> *plain, uint64_t *seed)
{
    const model *m = b->m;
    matrices up = {}, down = {};
    matrices_make(&up, b, f, 2 * m->inter, m->hidden, seed);
    matrices_make(&down, b, f, m->hidden, m->inter, seed);
    for (size_t i = 0; i < ms.size(); i++) {
        uint64_t same = 7;
        choose(b, ms[i], &same);
        printf("%-14s m %4d, %3d hit", f->name, ms[i], b->hit);
        for (part which : {ALL, UP, DOWN}) {
            const double us = graph_us(b->e.device.stream, CALLS, [&](int call) {
                run_call(b, &up, &down, ms[i], call, which);
            });
            check(b, f->name);
            const size_t bytes = (which != DOWN ? up.bytes : 0) + (which != UP ? down.bytes : 0);
            const double limit = (double)bytes * b->hit / b->bytes_per_us;
            if (f->bits == 16) plain->push_back(us);
            printf("  %s %7.1f %5.2fx %3.0f%%",
                   which == ALL  ? "all"
                   : which == UP ? "up"
                                 : "down",
                   us, (*plain)[i * 3 + (size_t)which] / us, 100 * limit / us);
        }
        printf("\n");
        fflush(stdout);
    }
    CUDA_OK(cudaFree(up.memory));
    CUDA_OK(cudaFree(down.memory));
}

static void open_bench(bench *b)
{
    const size_t rows = (size_t)MOST_ROWS * 8 * 5760 * 2;
    exec_open(&b->e, (size_t)1 << 30);
    b->e.x.act = MSGL_BF16;
    for (char **p : {&b->in, &b->sorted, &b->act, &b->result, &b->out}) {
        *p = (char *)device_copy(NULL, rows);
        noise<<<1024, 512, 0, b->e.device.stream>>>((__nv_bfloat16 *)*p, rows / 2, 0.05f);
    }
    b->weights = (float *)device_copy(NULL, MOST_ROWS * 8 * 4);
    b->bias = (float *)device_copy(NULL, 128 * 5760 * 4);
    CUDA_OK(cudaMemset(b->weights, 0x3c, MOST_ROWS * 8 * 4)); // 0.0115 each
    CUDA_OK(cudaMemset(b->bias, 0x3c, 128 * 5760 * 4));
    for (int i = 0; i < CALLS; i++) {
        b->ids[i] = (int32_t *)device_copy(NULL, MOST_ROWS * 8 * 4);
        b->source[i] = (int32_t *)device_copy(NULL, MOST_ROWS * 8 * 4);
        b->offsets[i] = (int32_t *)device_copy(NULL, 129 * 4);
    }
    check(b, "inputs");
    b->bytes_per_us = print_copy_speed(b->e.device.stream);
}

int main(int argc, char **argv)
{
    static bench b;
    std::vector<int> ms = {1, 8, 64};
    std::string forms = "int4_g128_zero,int4_g32,fp8_blocks,mxfp4";
    b.m = &MODELS[0];
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name = argv[i];
        if (name == "--model" && strcmp(argv[i + 1], MODELS[1].name) == 0) b.m = &MODELS[1];
        if (name == "--forms") forms = argv[i + 1];
        if (name == "--rows") ms = listed_numbers(argv[i + 1]);
    }
    open_bench(&b);
    uint64_t seed = 1;
    std::vector<double> plain;
    const std::vector<std::string> names = listed(forms);
    for (const form &f : FORMS) {
        const bool wanted = std::find(names.begin(), names.end(), f.name) != names.end();
        if (f.bits == 16 || wanted) bench_form(&b, &f, ms, &plain, &seed);
    }
    return 0;
}
