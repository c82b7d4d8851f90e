// SPDX-License-Identifier: Apache-2.0
//
// mid_sm90: random shapes, plans and flags, and the plans that it chooses itself.
#include "kernel/cuda/gemm/mid_sm90.h"
#include "tests/cuda/fed_case.cuh"

// plan NULL: the kernel's own choice.
static void check(bench_exec *e, family *f, const fed_case *c, uint64_t *seed,
                  const msgl_mid_plan *p)
{
    char plan[200] = "chosen";
    if (p != NULL) {
        snprintf(plan, sizeof plan,
                 "columns %d splits %d across %d down %d shared %d late %d fetch %d", p->columns,
                 p->splits, p->across, p->down, p->shared >> 10, p->late, p->fetch);
    }
    check_fed(e, f, c, seed, plan,
              [&](const msgl_linear_call *call) { return msgl__cuda_mid_sm90(&e->x, call, p); });
}

static void test_plans(bench_exec *e, const options *opt)
{
    static const int PLAIN[] = {32, 64}, GATED[] = {48, 64, 96};
    family f = {"plans", 0, 0, 0};
    uint64_t seed = opt->seed;
    for (int i = 0; i < (opt->quick ? 12 : 60); i++) {
        fed_case c = {};
        c.gated = below(&seed, 3) == 0;
        c.m = 1 + below(&seed, 256);
        c.n = 16 * (1 + below(&seed, below(&seed, 6) == 0 ? 100 : 30));
        c.k = 8 * (1 + below(&seed, below(&seed, 6) == 0 ? 250 : 80));
        c.norm = below(&seed, 2) == 0;
        c.pad_in = c.norm ? 0 : 8 * below(&seed, 3); // what is fed has no gaps
        c.pad_out = 8 * below(&seed, 3);
        c.bias = below(&seed, 3) == 0;
        c.accumulate = !c.gated && below(&seed, 2) == 0;
        c.feed = !c.gated && !c.norm && below(&seed, 2) == 0;
        msgl_mid_plan plan = {}, *p = &plan;
        p->columns = c.gated ? GATED[below(&seed, 3)] : PLAIN[below(&seed, 2)];
        const int steps = (c.k + 63) / 64, most = steps < 8 ? steps : 8;
        p->splits = opt->quick || c.gated ? 1 : 1 + below(&seed, most);
        do {
            p->across = 1 << below(&seed, 3);
            p->down = 1 << below(&seed, 3);
        } while (p->splits * p->across * p->down > 8 ||
                 p->columns / (p->down == 4 ? 4 : 2) % 8 != 0);
        p->shared = (below(&seed, 2) == 0 ? 113 : 226) << 10;
        p->least = below(&seed, 2) * (116 << 10);
        p->late = below(&seed, 2) == 0;
        p->fetch = below(&seed, 2) == 0;
        check(e, &f, &c, &seed, p);
    }
    if (family_end(&f) != 0) exit(1);
}

// The products of a decoder's layers by the plans that the engine gets.
static void test_chosen(bench_exec *e, const options *opt)
{
    static const struct {
        int n, k;
        bool norm, gated, accumulate;
    } SHAPES[] = {{1152, 896, true, false, false},  {896, 896, false, false, true},
                  {7936, 896, true, true, false},   {896, 4864, false, false, true},
                  {4096, 1024, true, false, false}, {1024, 2048, false, false, true},
                  {6144, 1024, true, true, false},  {1024, 3072, false, false, true},
                  {40, 72, false, false, true},     {264, 136, false, false, false},
                  {2048, 2048, false, false, true}, {3072, 2048, true, false, false}};
    static const int MS[] = {17, 31, 33, 48, 63, 64};
    family f = {"chosen", 0, 0, 0};
    uint64_t seed = opt->seed;
    for (size_t i = 0; i < sizeof SHAPES / sizeof SHAPES[0]; i++) {
        fed_case c = {};
        c.m = MS[i % (sizeof MS / sizeof MS[0])];
        c.n = SHAPES[i].n, c.k = SHAPES[i].k;
        c.norm = SHAPES[i].norm, c.gated = SHAPES[i].gated, c.accumulate = SHAPES[i].accumulate;
        c.feed = c.accumulate;
        c.bias = i % 4 == 1;
        if (!opt->quick || c.n < 1000) check(e, &f, &c, &seed, NULL);
    }
    // Values of another x, weight or number of rows are not taken.
    alignas(16) const float x[8] = {}, weight[8] = {};
    msgl_norm_feed fed = {(void *)x, (float *)x, 1, x, weight, 17};
    const msgl_weight w = {MSGL_BF16, 64, 64, (void *)x};
    for (int i = 0; i < 4; i++) {
        msgl_linear_call call = {};
        call.w = &w, call.in = x, call.m = 17, call.norm = weight, call.feed = &fed;
        call.ld_in = call.ld_out = 64, call.out = (void *)x;
        expect(&f, msgl__is_fed(&call), "a feed of its own");
        if (i == 0) call.in = x + 4;
        if (i == 1) call.norm = weight + 4;
        if (i == 2) call.m = 18;
        if (i == 3) fed.parts = 0;
        expect(&f, !msgl__cuda_mid_sm90(&e->x, &call, NULL), "a feed of something else");
    }
    if (family_end(&f) != 0) exit(1);
}

int main(int argc, char **argv)
{
    const options opt = parse_options(argc, argv);
    bench_exec e;
    exec_open(&e, 1 << 20);
    e.x.act = MSGL_BF16;
    test_plans(&e, &opt);
    test_chosen(&e, &opt);
    return 0;
}
