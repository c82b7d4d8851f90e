// SPDX-License-Identifier: Apache-2.0
//
// tall_sm90: random shapes, plans and flags, and the plans that it chooses itself.
#include "cuda/gemm/tall_sm90.h"
#include "tests/cuda/fused_norm_case.cuh"

// plan NULL: the kernel's own choice.
static void check(bench_exec *e, family *f, const fused_norm_case *c, uint64_t *seed,
                  const msgl_tall_plan *p)
{
    char plan[200] = "chosen";
    if (p != NULL) {
        snprintf(plan, sizeof plan, "columns %d splits %d shared %d least %d", p->columns,
                 p->splits, p->shared >> 10, p->least >> 10);
    }
    check_fused_norm(e, f, c, seed, plan, [&](const msgl_linear_call *call) {
        return msgl__cuda_tall_sm90(&e->x, call, p);
    });
}

static void test_plans(bench_exec *e, const options *opt)
{
    family f = {"plans", 0, 0, 0};
    uint64_t seed = opt->seed;
    for (int i = 0; i < (opt->quick ? 12 : 100); i++) {
        const fused_norm_case c = random_case(&seed);
        msgl_tall_plan plan = {}, *p = &plan;
        p->columns = 16 * (3 + below(&seed, 6));
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
    static const int MS[6] = {1, 48, 65, 127, 200, 256};
    static const fused_norm_shape MORE[2] = {{40, 520, false, false, true},
                                             {1536, 2048, false, false, true}};
    family f = {"chosen", 0, 0, 0};
    uint64_t seed = opt->seed;
    check_chosen(opt, MS, MORE, [&](const fused_norm_case *c) { check(e, &f, c, &seed, NULL); });
    check_other_norm_stats(&f, 70, [&](const msgl_linear_call *call) {
        return msgl__cuda_tall_sm90(&e->x, call, NULL);
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
