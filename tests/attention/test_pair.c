// SPDX-License-Identifier: Apache-2.0
//
// A step's sequences and the backends of a pair: each part of a mixed step gets what its half alone
// gives, through the functions of its half only.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "attention/fa/fa.h"
#include "attention/fi/fi.h"
#include "attention/world.h"

static void expect_half(const world_spec *pair, const msgl_attn_desc *desc, const step_req *r,
                        const float *got)
{
    world_spec spec = *pair;
    world half;
    spec.choice = NULL;
    spec.desc = desc;
    world_open(&half, &spec);
    world_request(&half, 0, 900);
    world_request(&half, 1, 900);
    world_step(&half, r->device - r->cached == 1 ? MSGL_DECODE : MSGL_PREFILL, r, 1);
    const size_t n = (size_t)(r->device - r->cached) * half.out_ld * sizeof(float);
    assert_memory_equal(got, half.out, n);
    world_close(&half);
}

// An answer and a chunk of a step, each as its half alone would do it.
static void expect_halves(const msgl_attn_choice *pair, bool apart)
{
    world_spec spec = world_base(NULL, 4, 1000, 1000);
    spec.choice = pair;
    spec.apart = apart;
    const step_req reqs[] = {{0, 899, 900}, {1, 100, 400}};
    world both;
    world_open(&both, &spec);
    world_request(&both, 0, 900);
    world_request(&both, 1, 900);
    world_mixed(&both, 1, reqs, 2);
    assert_int_equal(both.num_seqs, 2);
    assert_int_equal(both.seqs[0].phase, MSGL_DECODE);
    assert_int_equal(both.seqs[1].phase, MSGL_PREFILL);
    assert_int_equal(both.seqs[1].first_token, 1);
    expect_half(&spec, pair->decode, &reqs[0], both.out);
    expect_half(&spec, pair->prefill, &reqs[1], both.out + both.out_ld);
    world_close(&both);
}

static void test_halves(void **state)
{
    (void)state;
    const msgl_attn_choice pair = {&msgl__attn_fa, &msgl__attn_fi};
    assert_true(msgl__attn_apart(&pair));
    expect_halves(&pair, false);
}

// One ragged backend whose steps are cut for the sake of another group of layers.
static void test_apart(void **state)
{
    (void)state;
    const msgl_attn_choice alone[] = {{&msgl__attn_fa, &msgl__attn_fa},
                                      {&msgl__attn_fi, &msgl__attn_fi}};
    for (size_t i = 0; i < 2; i++) {
        assert_false(msgl__attn_apart(&alone[i]));
        expect_halves(&alone[i], true);
    }
}

// A made-up backend: which of its functions were called.
typedef struct probe {
    msgl_attn_backend base;
    int prepared, copied, begun, ran, destroyed;
    int overlaps; // calls that may overlap another one
} probe;

static probe PROBES[2];

static probe *of(msgl_attn_backend *b)
{
    return (probe *)b;
}

static void destroy(msgl_attn_backend *b)
{
    of(b)->destroyed++;
}

static int prepare(msgl_attn_backend *b, const msgl_seqs *seqs)
{
    (void)seqs;
    of(b)->prepared++;
    return 0;
}

static void copy_in(msgl_attn_backend *b, msgl_exec *x, const msgl_seqs *seqs)
{
    (void)x, (void)seqs;
    of(b)->copied++;
}

static void begin(msgl_attn_backend *b, msgl_exec *x, const msgl_seqs *seqs)
{
    (void)x, (void)seqs;
    of(b)->begun++;
}

static void forward(msgl_attn_backend *b, msgl_exec *x, const msgl_attn_layer *layer,
                    const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    (void)x, (void)layer, (void)seqs, (void)out;
    of(b)->ran++;
    of(b)->overlaps += in->first + in->second;
}

static bool takes(const msgl_attn_backend *b, const msgl_seqs *seqs)
{
    (void)b, (void)seqs;
    return true;
}

static int create(const msgl_attn_desc *d, const msgl_attn_config *cfg, msgl_attn_backend **out,
                  msgl_err *err)
{
    (void)cfg, (void)err;
    probe *p = PROBES[0].base.desc == NULL ? &PROBES[0] : &PROBES[1];
    *p = (probe){.base.desc = d};
    *out = &p->base;
    return 0;
}

static const msgl_attn_desc ALL = {.create = create,
                                   .destroy = destroy,
                                   .prepare = prepare,
                                   .copy_in = copy_in,
                                   .begin = begin,
                                   .forward = forward,
                                   .takes_rope = takes};
// Without what is optional.
static const msgl_attn_desc MINIMAL = {.create = create, .destroy = destroy, .forward = forward};

static int create_fails(const msgl_attn_desc *d, const msgl_attn_config *cfg,
                        msgl_attn_backend **out, msgl_err *err)
{
    (void)d, (void)cfg, (void)out;
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "not here");
}

static void test_routes(void **state)
{
    (void)state;
    const msgl_attn_config cfg = {.num_threads = 1};
    for (int bits = 0; bits < 4; bits++) { // which halves have everything
        const msgl_attn_desc *half[] = {bits & 1 ? &ALL : &MINIMAL, bits & 2 ? &ALL : &MINIMAL};
        const msgl_attn_choice choice = {half[0], half[1]};
        const bool same = half[0] == half[1];
        msgl_attn a;
        msgl_err err = {0};
        memset(PROBES, 0, sizeof PROBES);
        assert_int_equal(msgl__attn_create(&choice, &cfg, &a, &err), 0);
        assert_int_equal(same, a.prefill == a.decode);
        for (int phase = 0; phase < 2; phase++) {
            const msgl_seqs seqs = {.phase = (msgl_phase)phase};
            const msgl_attn_input in = {.first = phase == MSGL_DECODE,
                                        .second = phase != MSGL_DECODE};
            const bool all = half[phase] == &ALL;
            probe *p = of(phase == MSGL_DECODE ? a.decode : a.prefill);
            const probe before = *p;
            assert_int_equal(msgl__attn_prepare(&a, &seqs), 0);
            msgl__attn_copy_in(&a, NULL, &seqs);
            msgl__attn_begin(&a, NULL, &seqs);
            msgl__attn_forward(&a, NULL, NULL, &seqs, &in, NULL);
            assert_int_equal(msgl__attn_takes_rope(&a, &seqs), all);
            assert_int_equal(p->prepared - before.prepared, all);
            assert_int_equal(p->copied - before.copied, all);
            assert_int_equal(p->begun - before.begun, all);
            assert_int_equal(p->ran - before.ran, 1);
            assert_int_equal(p->overlaps - before.overlaps, same); // only with its like
        }
        msgl__attn_destroy(&a);
        assert_int_equal(PROBES[0].destroyed, 1);
        assert_int_equal(PROBES[1].destroyed, same ? 0 : 1);
        assert_null(a.prefill);
    }
}

static void test_create_fails(void **state)
{
    (void)state;
    static const msgl_attn_desc failing = {.create = create_fails};
    const msgl_attn_config cfg = {.num_threads = 1};
    const msgl_attn_choice choice = {&ALL, &failing};
    msgl_attn a;
    msgl_err err = {0};
    memset(PROBES, 0, sizeof PROBES);
    assert_int_equal(msgl__attn_create(&choice, &cfg, &a, &err), MSGL_EUNSUPPORTED);
    assert_int_equal(PROBES[0].destroyed, 1); // the half that was made is not left behind
    assert_null(a.prefill);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_create_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
