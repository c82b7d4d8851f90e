// SPDX-License-Identifier: Apache-2.0
//
// Microseconds of one thread for products with float32 weights, where rows may be answers' and
// where they are prompts' alone (msgl_exec.prompts_only): turn by turn, by the thread's own time,
// the least and the median of them. The same kernels serve both below AMX (docs/decisions/068).
//   [MINISGL_CPU=LEVEL] bench_prompts [TURNS]
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/attributes.h"
#include "kernel/cpu.h"
#include "kernel/kernel.h"
#include "utils/random.h"

enum { MOST_TURNS = 10000, MOST_OUT = 16 * 16384, SCRATCH = 64 << 20 };

// Rows, features, k: in caches, and 512 MiB of weights.
static const int SHAPES[][3] = {
    {512, 128, 384}, {256, 128, 768}, {128, 128, 1536}, {128, 128, 1024}, {64, 128, 384},
    {32, 128, 1024}, {16, 128, 1024}, {1, 512, 1024},   {1, 16384, 8192}, {16, 16384, 8192}};

static float *noise(size_t n, uint64_t *seed)
{
    float *p = msgl__pages_alloc(n * sizeof *p);
    for (size_t i = 0; i < n && p != NULL; i++) p[i] = 2 * msgl__random_unit(seed) - 1;
    return p;
}

static double now_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// [0]: answers may be among the rows, [1]: none.
static void measure(const msgl_kernels *k, msgl_exec *x, const msgl_linear_call *c, int turns)
{
    static double us[2][MOST_TURNS];
    for (int t = -1; t < turns; t++) { // the first one warms up
        for (int prompts = 0; prompts < 2; prompts++) {
            x->prompts_only = prompts == 1;
            msgl__arena_reset(x->scratch);
            const double from = now_us();
            k->gemm.linear(x, c);
            if (t >= 0) us[prompts][t] = now_us() - from;
        }
    }
    for (int i = 0; i < 2; i++) qsort(us[i], (size_t)turns, sizeof us[i][0], by_value);
    printf("%4d x %5d x %4d: %7.1f (%7.1f) us, of prompts %7.1f (%7.1f), %.2f times as fast\n",
           (int)c->m, c->w->n, c->w->k, us[0][0], us[0][turns / 2], us[1][0], us[1][turns / 2],
           us[0][0] / us[1][0]);
}

int main(int argc, char **argv)
{
    static msgl_kernels k;
    const int turns = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 300;
    uint64_t seed = 1;
    msgl_err err;
    msgl_cpu_level level;
    msgl_exec x = {.act = MSGL_F32};
    msgl_arena arena;
    if (turns < 1 || turns > MOST_TURNS) {
        fprintf(stderr, "usage: bench_prompts [TURNS]; TURNS is in 1..%d\n", MOST_TURNS);
        return 2;
    }
    if (msgl__cpu_level_select(getenv("MINISGL_CPU"), &level, &err) != 0 ||
        msgl__pool_create(1, &x.pool, &err) != 0) {
        fprintf(stderr, "bench_prompts: %s\n", err.text);
        return 1;
    }
    msgl__kernels_init_cpu(&k, level);
    msgl__arena_init(&arena, msgl__pages_alloc(SCRATCH), SCRATCH);
    x.scratch = &arena;
    float *out = msgl__pages_alloc(MOST_OUT * sizeof *out);
    for (size_t i = 0; i < MSGL_COUNT(SHAPES); i++) {
        const int rows = SHAPES[i][0];
        msgl_weight w = {
            .format = &k.gemm.formats[MSGL_W_F32], .n = SHAPES[i][1], .k = SHAPES[i][2]};
        const size_t cols = (size_t)w.k, in_size = (size_t)rows * cols;
        const size_t size = (size_t)w.n * cols, bytes = msgl__weight_bytes(&w);
        w.data = msgl__pages_alloc(bytes);
        float *values = noise(size, &seed), *in = noise(in_size, &seed);
        if (arena.base == NULL || out == NULL || w.data == NULL || values == NULL || in == NULL) {
            fprintf(stderr, "bench_prompts: no memory\n");
            return 1;
        }
        w.format->pack(&x, &w, 0, w.n, values, MSGL_F32, cols);
        const msgl_linear_call c = {
            .w = &w, .in = in, .ld_in = cols, .m = rows, .out = out, .ld_out = (size_t)w.n};
        measure(&k, &x, &c, bytes < (size_t)64 << 20 ? turns : (turns + 15) / 16);
        msgl__pages_free(w.data, bytes);
        msgl__pages_free(values, size * sizeof *values);
        msgl__pages_free(in, in_size * sizeof *in);
    }
    msgl__pages_free(out, MOST_OUT * sizeof *out);
    msgl__pages_free(arena.base, SCRATCH);
    msgl__pool_destroy(x.pool);
    return x.status != 0;
}
