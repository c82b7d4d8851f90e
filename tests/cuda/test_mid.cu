// SPDX-License-Identifier: Apache-2.0
//
// mid_sm90: random shapes, plans and flags, and the plans that it chooses itself.
#include "cuda/gemm/mid_sm90.h"
#include "tests/cuda/fused_norm_case.cuh"

// plan NULL: the kernel's own choice.
static void check(bench_exec *e, family *f, const fused_norm_case *c, uint64_t *seed,
                  const msgl_mid_plan *p)
{
    char plan[200] = "chosen";
    if (p != NULL) {
        snprintf(plan, sizeof plan, "columns %d splits %d shared %d least %d", p->columns,
                 p->splits, p->shared >> 10, p->least >> 10);
    }
    check_fused_norm(e, f, c, seed, plan, [&](const msgl_linear_call *call) {
        return msgl__cuda_mid_sm90(&e->x, call, p);
    });
}

static void test_plans(bench_exec *e, const options *opt)
{
    static const int PLAIN[] = {32, 64}, GATED[] = {48, 64, 96, 144, 208};
    family f = {"plans", 0, 0, 0};
    uint64_t seed = opt->seed;
    for (int i = 0; i < (opt->quick ? 12 : 60); i++) {
        const fused_norm_case c = random_case(&seed);
        msgl_mid_plan plan = {}, *p = &plan;
        p->columns = c.gated ? GATED[below(&seed, 5)] : PLAIN[below(&seed, 2)];
        if (c.accumulate && below(&seed, 2) == 0) p->columns = 80;
        const int steps = (c.k + 63) / 64, most = steps < 8 ? steps : 8;
        p->splits = opt->quick || c.gated ? 1 : 1 + below(&seed, most);
        p->shared = (below(&seed, 2) == 0 ? 113 : 226) << 10;
        p->least = below(&seed, 2) * (116 << 10);
        check(e, &f, &c, &seed, p);
    }
    if (family_end(&f) != 0) exit(1);
}

static void test_chosen(bench_exec *e, const options *opt)
{
    static const int MS[6] = {1, 17, 33, 64, 65, 256};
    static const fused_norm_shape MORE[2] = {{40, 72, false, false, true},
                                             {2048, 2048, false, false, true}};
    family f = {"chosen", 0, 0, 0};
    uint64_t seed = opt->seed;
    check_chosen(opt, MS, MORE, [&](const fused_norm_case *c) { check(e, &f, c, &seed, NULL); });
    for (int m : MS) { // large weights
        fused_norm_case c = {};
        c.m = m, c.n = 5120, c.k = 2560;
        c.accumulate = c.norm_stats = true;
        c.bias = m % 2 == 1;
        if (!opt->quick) check(e, &f, &c, &seed, NULL);
        c.n = 17408, c.k = 1536;
        c.gated = c.norm = true;
        c.accumulate = c.norm_stats = false;
        if (!opt->quick) check(e, &f, &c, &seed, NULL);
    }
    check_other_norm_stats(&f, 17, [&](const msgl_linear_call *call) {
        return msgl__cuda_mid_sm90(&e->x, call, NULL);
    });
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
