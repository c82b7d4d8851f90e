// SPDX-License-Identifier: Apache-2.0
//
// fa: one row's arithmetic is defined once. Chunking, batch composition, phase, page size, page
// order and thread count change no bit of a request's output.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/dual_chunk/dual_chunk.h"
#include "attention/fa/fa.h"
#include "attention/invariance.h"

static world_spec base_spec(void)
{
    return world_base(&msgl__attn_fa, 36, 1300, 4096);
}

static const struct variant {
    int group, head_dim, window;
    float softcap;
    msgl_dtype dtype;
    bool sinks;
} VARIANTS[] = {
    {2, 128, -1, 0, MSGL_BF16, false}, {1, 64, -1, 0, MSGL_BF16, false},
    {5, 80, 300, 0, MSGL_BF16, false}, {7, 96, -1, 30, MSGL_BF16, false},
    {16, 64, 17, 0, MSGL_BF16, false}, {3, 64, -1, 0, MSGL_F16, false},
    {4, 128, 100, 0, MSGL_F32, false}, {8, 64, 127, 0, MSGL_BF16, true},
    {2, 128, -1, 0, MSGL_E4M3, false},
};

static world_spec variant_spec(const struct variant *v, msgl_cpu_level level)
{
    world_spec s = base_spec();
    s.level = level;
    s.group = v->group;
    s.head_dim = v->head_dim;
    s.window = v->window;
    s.softcap = v->softcap;
    s.dtype = v->dtype;
    s.sinks = v->sinks;
    return s;
}

// The reference kernel is the slowest by far: of it one short case, and all in full tests.
static bool brief(msgl_cpu_level level)
{
    return level == MSGL_CPU_REF && !world_full();
}

static void check_variant(const struct variant *v, msgl_cpu_level level)
{
    const world_spec spec = variant_spec(v, level);
    const invariance how = {.tolerance = world_tolerance("fa", spec.dtype),
                            .phases = true,
                            .pages = {1, 64, 48},
                            .rounds = brief(level) ? 2 : 6};
    check_invariance(&spec, brief(level) ? 270 : level == MSGL_CPU_REF ? 300 : 1100, &how);
}

static void test_one_arithmetic(void **state)
{
    (void)state;
    const msgl_cpu_level have = msgl__cpu_level_detect();
    const char *last = "";
    for (int level = 0; level <= have; level++) {
        msgl_kernels k;
        msgl__kernels_init_cpu(&k, level);
        if (strcmp(k.attn.name, last) == 0) continue; // this level adds nothing
        last = k.attn.name;
        const size_t n = level == MSGL_CPU_REF ? 2 : sizeof VARIANTS / sizeof VARIANTS[0];
        for (size_t i = brief(level) ? 1 : 0; i < n; i++) check_variant(&VARIANTS[i], level);
    }
}

// Lengths and pages of a step with answers, chunks and whole prompts.
static void test_metadata(void **state)
{
    (void)state;
    world_spec spec = base_spec();
    world w;
    world_open(&w, &spec);
    for (int i = 0; i < 3; i++) world_request(&w, i, 40);
    const struct {
        step_req reqs[3];
        int32_t cu_q[4];
    } cases[] = {
        {{{0, 3, 4}, {1, 20, 21}, {2, 0, 1}}, {0, 1, 2, 3}},
        {{{0, 0, 4}, {1, 0, 21}, {2, 0, 1}}, {0, 4, 25, 26}},
        {{{0, 2, 4}, {1, 20, 30}, {2, 0, 1}}, {0, 2, 12, 13}},
    };
    for (size_t i = 0; i < 3; i++) {
        world_prepare(&w, i == 0 ? MSGL_DECODE : MSGL_PREFILL, cases[i].reqs, 3);
        const msgl_seqs *seqs = &w.seqs[0];
        const msgl_table_metadata *md = msgl__table_metadata(w.backend, seqs->step_slot);
        assert_int_equal(w.num_seqs, 1);
        assert_int_equal(seqs->phase, i == 0 ? MSGL_DECODE : MSGL_PREFILL);
        assert_int_equal(seqs->num_tokens, cases[i].cu_q[3]);
        assert_memory_equal(seqs->cu_seqlens_q, cases[i].cu_q, sizeof cases[i].cu_q);
        for (int r = 0; r < 3; r++) {
            const int pages = (cases[i].reqs[r].device + 15) / 16;
            assert_int_equal(seqs->seqlens_k[r], cases[i].reqs[r].device);
            assert_int_equal(seqs->table_rows[r], r);
            for (int p = 0; p < (seqs->max_seqlen_k + 15) / 16; p++) {
                const int32_t got = md->page_table[r * md->table_width + p];
                const int32_t page = msgl__page_table_row(&w.table, r)[p];
                assert_int_equal(got, p < pages ? page : -1);
            }
        }
        assert_int_equal(md->table_width, 82);
    }
    world_close(&w);
}

// The same promise with dual chunks, whether or not they end where the kernel's tiles do.
static void test_dual_chunk(void **state)
{
    (void)state;
    static const int lens[] = {100, 256, 300};
    for (int level = 0; level <= msgl__cpu_level_detect(); level++) {
        const bool few = brief(level);
        for (size_t i = 0; i < (few ? 1 : sizeof lens / sizeof lens[0]); i++) {
            world_spec s = world_base(&msgl__attn_dual_chunk, 36, 1300, 4096);
            s.level = level;
            s.group = few ? 2 : 7;
            s.dual_len = lens[i];
            const invariance how = {.tolerance = world_tolerance(s.desc->name, s.dtype),
                                    .phases = true,
                                    .pages = {1, 64, 48},
                                    .rounds = few ? 2 : 6};
            check_invariance(&s, few ? 270 : level == MSGL_CPU_REF ? 320 : 1000, &how);
        }
    }
}

// A tree that is one path has the bits of a causal sequence, on both sides of a tile's end and
// where the keys are split into parts.
static void test_chain(void **state)
{
    (void)state;
    static const step_req STEPS[] = {{0, 230, 270}, {0, 0, 64}, {0, 1296, 1300}, {0, 1021, 1029}};
    const world_spec spec = base_spec();
    world w;
    world_open(&w, &spec);
    world_request(&w, 0, 1300);
    for (size_t i = 0; i < sizeof STEPS / sizeof STEPS[0]; i++) {
        const int n = STEPS[i].device - STEPS[i].cached;
        const size_t bytes = (size_t)n * w.out_ld * sizeof(float);
        float *causal = malloc(bytes);
        w.spec.tree = false;
        world_step(&w, MSGL_PREFILL, &STEPS[i], 1);
        memcpy(causal, w.out, bytes);
        w.spec.tree = true;
        world_prepare(&w, MSGL_PREFILL, &STEPS[i], 1);
        for (int t = 0; t < n; t++) w.tree[t] = UINT64_MAX >> (63 - t);
        world_forward(&w);
        assert_memory_equal(w.out, causal, bytes);
        w.tree[n - 1] &= ~((uint64_t)1 << (n / 2)); // another path
        world_forward(&w);
        assert_memory_not_equal(w.out, causal, bytes);
        free(causal);
    }
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dual_chunk),
        cmocka_unit_test(test_one_arithmetic),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_metadata),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
