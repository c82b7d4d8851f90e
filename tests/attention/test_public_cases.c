// SPDX-License-Identifier: Apache-2.0
//
// The shapes of the originals' public tests (public_cases.c) by every CPU backend that has them
// (each by every other one of these unless the tests are run in full), against exact attention in
// f64.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "attention/public_cases.h"

// How many backends have it.
static int run_case(const public_group *g, int index)
{
    int have = 0;
    const public_case *c = &g->cases[index];
    const msgl_attn_desc *const *all = msgl__attn_cpu.all;
    for (int i = 0; all[i] != NULL; i++) {
        const world_spec spec = public_spec(c, all[i]);
        if (world_supports(&spec, NULL) != 0) continue;
        if ((have++ + index) % 2 != 0 && !world_full()) continue;
        const double error = public_run(c, &spec);
        const double allowed = world_tolerance(all[i]->name, c->dtype);
        if (error > allowed) {
            fail_msg("%s, case %d of %s: error %g > %g", all[i]->name, index, g->source, error,
                     allowed);
        }
    }
    return have;
}

static void test_group(void **state)
{
    const public_group *g = *state;
    int all = 0;
    for (int i = 0; i < g->count; i++) {
        const int have = run_case(g, i);
        // flex_attention and fa4 have masks, fa and torch_native local attention.
        const int least = g->cases[i].all || g->cases[i].chunk > 0 ? 2 : 4;
        if (have < least) fail_msg("case %d of %s: by %d backends only", i, g->source, have);
        all += have;
    }
    print_message("%d cases, %d with their backends\n", g->count, all);
}

int main(void)
{
    enum { MOST = 32 };
    struct CMUnitTest tests[MOST];
    int count;
    const public_group *groups = public_groups(&count);
    for (int i = 0; i < count && i < MOST; i++) {
        tests[i] = (struct CMUnitTest){groups[i].source, test_group, NULL, NULL,
                                       (void *)(uintptr_t)&groups[i]};
    }
    if (count > MOST) return 1;
    return _cmocka_run_group_tests("public cases", tests, (size_t)count, NULL, NULL);
}
