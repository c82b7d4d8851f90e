// SPDX-License-Identifier: Apache-2.0
//
// Layers of experts: against the formula in f64, row by row; and what a caller may rely on (a row
// depends on that row only, experts that nobody chose are not read, workspace() is enough).
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/err.h"
#include "kernel/route_oracle.h"
#include "moe/moe.h"
#include "utils/random.h"

enum { HIDDEN = 64, INTER = 48, EXPERTS = 6, TOP_K = 2, ROWS = 7, ARENA = 1 << 22 };

typedef struct fixture {
    msgl_kernels k;
    msgl_exec x;
    msgl_arena scratch;
    float gate_up[EXPERTS][2 * INTER * HIDDEN], down[EXPERTS][HIDDEN * INTER];
    float in[ROWS * HIDDEN], before[ROWS * HIDDEN], norm[HIDDEN];
    float router[EXPERTS * HIDDEN], bias[EXPERTS], correction[EXPERTS];
    float normed[ROWS * HIDDEN], logits[ROWS * EXPERTS]; // what they give
    msgl_weight w_up[EXPERTS], w_down[EXPERTS], w_router;
    msgl_moe_experts experts;
} fixture;

static float random_value(uint64_t *rng) // [-1, 1)
{
    return 2 * msgl__random_unit(rng) - 1;
}

static void pack(fixture *f, msgl_weight *w, int n, int k, const float *values)
{
    *w = (msgl_weight){.format = &f->k.gemm.formats[MSGL_W_F32], .n = n, .k = k};
    w->data = msgl__pages_alloc(msgl__weight_bytes(w));
    assert_non_null(w->data);
    w->format->pack(&f->x, w, 0, n, values, MSGL_F32, (size_t)k);
}

static void make_logits(fixture *f)
{
    const msgl_linear_call c = {.w = &f->w_router,
                                .bias = f->bias,
                                .in = f->normed,
                                .ld_in = HIDDEN,
                                .m = ROWS,
                                .f32_out = true,
                                .out = f->logits,
                                .ld_out = EXPERTS};
    f->k.norm.rms_norm(&f->x, f->in, HIDDEN, f->norm, 1e-6f, f->normed, HIDDEN, ROWS, HIDDEN);
    f->k.gemm.linear(&f->x, &c);
    for (int r = 0; r < ROWS; r++) {
        for (int e = 0; e < EXPERTS - 1; e++) {
            assert_true(f->logits[r * EXPERTS + e] > f->logits[r * EXPERTS + EXPERTS - 1]);
        }
    }
    assert_true(f->logits[2] == f->logits[3] && f->logits[3] == f->logits[4]);
    assert_true(f->logits[2] > f->logits[0] && f->logits[2] > f->logits[1]);
}

// Qwen's without and with normed weights, DeepSeek V2's and V3's.
typedef enum router_kind { PLAIN, NORMED, GROUPS, CORRECTED, ROUTERS } router_kind;

static msgl_router router_of(fixture *f, router_kind kind)
{
    const bool groups = kind >= GROUPS, v3 = kind == CORRECTED;
    return (msgl_router){.top_k = TOP_K,
                         .scoring = v3 ? MSGL_SCORE_SIGMOID : MSGL_SCORE_SOFTMAX,
                         .norm_topk = kind == NORMED || v3,
                         .scale = groups ? 2.5f : 1,
                         .correction = v3 ? f->correction : NULL,
                         .num_groups = groups ? EXPERTS / 2 : 0,
                         .top_groups = groups ? 1 : 0,
                         .group_pairs = v3};
}

static void init(fixture *f, msgl_cpu_level level, router_kind kind)
{
    uint64_t rng = 11;
    memset(f, 0, sizeof *f);
    msgl__kernels_init_cpu(&f->k, level);
    msgl__arena_init(&f->scratch, msgl__pages_alloc(ARENA), ARENA);
    f->x = (msgl_exec){.act = MSGL_F32, .scratch = &f->scratch};
    assert_int_equal(msgl__pool_create(2, &f->x.pool, NULL), 0);
    for (int i = 0; i < ROWS * HIDDEN; i++) f->in[i] = random_value(&rng);
    for (int i = 0; i < ROWS * HIDDEN; i++) f->before[i] = random_value(&rng);
    for (int i = 0; i < HIDDEN; i++) f->norm[i] = 1 + random_value(&rng) / 2;
    for (int i = 0; i < EXPERTS * HIDDEN; i++) f->router[i] = random_value(&rng) / 2;
    for (int h = 0; h < HIDDEN; h++) { // the first row's best three are equal: the lowest two
        for (int e = 2; e < 5; e++) f->router[e * HIDDEN + h] = f->in[h] > 0 ? 0.2f : -0.2f;
    }
    f->bias[EXPERTS - 1] = -100; // nobody chooses the last expert
    for (int e = 0; e < EXPERTS; e++) f->correction[e] = e == EXPERTS - 1 ? -9 : random_value(&rng);
    pack(f, &f->w_router, EXPERTS, HIDDEN, f->router);
    make_logits(f);
    for (int e = 0; e < EXPERTS; e++) {
        for (int i = 0; i < 2 * INTER * HIDDEN; i++) {
            f->gate_up[e][i] = e == EXPERTS - 1 ? NAN : random_value(&rng);
        }
        for (int i = 0; i < HIDDEN * INTER; i++) {
            f->down[e][i] = e == EXPERTS - 1 ? NAN : random_value(&rng);
        }
        pack(f, &f->w_up[e], 2 * INTER, HIDDEN, f->gate_up[e]);
        pack(f, &f->w_down[e], HIDDEN, INTER, f->down[e]);
    }
    f->experts = (msgl_moe_experts){.num_experts = EXPERTS,
                                    .own = EXPERTS,
                                    .router = router_of(f, kind),
                                    .gate_up = f->w_up,
                                    .down = f->w_down};
}

static void done(fixture *f)
{
    for (int e = 0; e < EXPERTS; e++) {
        msgl__pages_free(f->w_up[e].data, msgl__weight_bytes(&f->w_up[e]));
        msgl__pages_free(f->w_down[e].data, msgl__weight_bytes(&f->w_down[e]));
    }
    msgl__pages_free(f->w_router.data, msgl__weight_bytes(&f->w_router));
    msgl__pages_free(f->scratch.base, ARENA);
    msgl__pool_destroy(f->x.pool);
}

// Rows [first, first + n) of the layer, on as much memory as it asks for, `less` bytes of it
// missing.
static int forward(fixture *f, const msgl_moe_desc *moe, int first, int n, bool accumulate,
                   size_t less, float *out)
{
    const size_t bytes = moe->workspace(&f->experts, MSGL_F32, n);
    char *base = msgl__pages_alloc(bytes);
    assert_non_null(base);
    memset(base, 0xff, bytes); // NaN, where it is read before it is written
    msgl_arena arena;
    msgl__arena_init(&arena, base, bytes - less);
    f->x.status = 0;
    const msgl_moe_call c = {.experts = &f->experts,
                             .norm = f->norm,
                             .norm_eps = 1e-6f,
                             .router = &f->w_router,
                             .router_bias = f->bias,
                             .in = f->in + first * HIDDEN,
                             .rows = n,
                             .accumulate = accumulate,
                             .out = out};
    moe->forward(&f->x, &f->k, &arena, &c);
    msgl__pages_free(base, bytes);
    return f->x.status;
}

// Column `col` of row `row` as the formula has it, and in *scale the same of absolute values, which
// bounds every rounding error.
static double expected(const fixture *f, int row, int col, double *scale)
{
    int32_t chosen[TOP_K];
    double weights[TOP_K], value = 0;
    const msgl_router *how = &f->experts.router;
    assert_true(
        route_oracle(how, how->correction, f->logits + row * EXPERTS, EXPERTS, chosen, weights));
    *scale = 0;
    for (int c = 0; c < TOP_K; c++) {
        const int32_t e = chosen[c];
        for (int i = 0; i < INTER; i++) {
            double gate = 0, up = 0, abs_gate = 0, abs_up = 0;
            for (int h = 0; h < HIDDEN; h++) {
                const double x = (double)f->normed[row * HIDDEN + h];
                const double g = x * (double)f->gate_up[e][i * HIDDEN + h];
                const double u = x * (double)f->gate_up[e][(INTER + i) * HIDDEN + h];
                gate += g, up += u, abs_gate += fabs(g), abs_up += fabs(u);
            }
            const double down = weights[c] * (double)f->down[e][col * INTER + i];
            value += down * (gate / (1 + exp(-gate))) * up;
            *scale += fabs(down) * abs_gate * abs_up;
        }
    }
    return value;
}

static void test_formula(void **state)
{
    (void)state;
    const msgl_moe_desc *moe;
    assert_int_equal(msgl__moe_select("auto", &moe, NULL), 0);
    static fixture f;
    const int levels = msgl__cpu_level_detect() + 1;
    for (int i = 0; i < ROUTERS * levels; i++) {
        init(&f, i / ROUTERS, (router_kind)(i % ROUTERS));
        float out[ROWS * HIDDEN], sum[ROWS * HIDDEN];
        memcpy(sum, f.before, sizeof sum);
        assert_int_equal(forward(&f, moe, 0, ROWS, false, 0, out), 0);
        assert_int_equal(forward(&f, moe, 0, ROWS, true, 0, sum), 0);
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < HIDDEN; c++) {
                double scale;
                const double want = expected(&f, r, c, &scale);
                const double most = 2 * (HIDDEN + INTER) * (double)FLT_EPSILON * scale;
                assert_true(fabs((double)out[r * HIDDEN + c] - want) <= most);
                const double added = (double)f.before[r * HIDDEN + c] + want;
                assert_true(fabs((double)sum[r * HIDDEN + c] - added) <= most);
            }
        }
        done(&f);
    }
}

// Ranks that have parts of the experts have together what one that has them all has; one whose
// experts nobody chose has zeros.
static void test_parts(void **state)
{
    (void)state;
    static const int cuts[][4] = {{0, 2, 4, EXPERTS}, {0, 1, EXPERTS - 1, EXPERTS}, {0, 3, 6, 6}};
    const msgl_moe_desc *moe;
    assert_int_equal(msgl__moe_select("grouped", &moe, NULL), 0);
    static fixture f;
    for (size_t i = 0; i < ROUTERS * MSGL_COUNT(cuts); i++) {
        const int *cut = cuts[i / ROUTERS];
        init(&f, msgl__cpu_level_detect(), (router_kind)(i % ROUTERS));
        float out[ROWS * HIDDEN], sum[ROWS * HIDDEN] = {0};
        for (int p = 0; p < 3 && cut[p] < EXPERTS; p++) {
            f.experts.first = cut[p];
            f.experts.own = cut[p + 1] - cut[p];
            f.experts.gate_up = f.w_up + cut[p];
            f.experts.down = f.w_down + cut[p];
            assert_int_equal(forward(&f, moe, 0, ROWS, false, 0, out), 0);
            assert_int_equal(forward(&f, moe, 0, ROWS, true, 0, sum), 0);
            for (int j = 0; j < ROWS * HIDDEN && cut[p] == EXPERTS - 1; j++) {
                assert_true(out[j] == 0);
            }
        }
        for (int r = 0; r < ROWS; r++) {
            for (int c = 0; c < HIDDEN; c++) {
                double scale;
                const double want = expected(&f, r, c, &scale);
                const double most = 2 * (HIDDEN + INTER) * (double)FLT_EPSILON * scale;
                assert_true(fabs((double)sum[r * HIDDEN + c] - want) <= most);
            }
        }
        done(&f);
    }
}

// A row alone has the bits that it has among others.
static void test_rows_are_independent(void **state)
{
    (void)state;
    const msgl_moe_desc *moe;
    assert_int_equal(msgl__moe_select(NULL, &moe, NULL), 0);
    static fixture f;
    init(&f, msgl__cpu_level_detect(), CORRECTED);
    float all[ROWS * HIDDEN], one[HIDDEN];
    assert_int_equal(forward(&f, moe, 0, ROWS, false, 0, all), 0);
    for (int r = 0; r < ROWS; r++) {
        assert_int_equal(forward(&f, moe, r, 1, false, 0, one), 0);
        assert_memory_equal(one, all + r * HIDDEN, sizeof one);
    }
    done(&f);
}

static void test_memory(void **state)
{
    (void)state;
    const msgl_moe_desc *moe;
    assert_int_equal(msgl__moe_select("grouped", &moe, NULL), 0);
    static fixture f;
    init(&f, MSGL_CPU_REF, NORMED);
    float out[ROWS * HIDDEN];
    assert_int_equal(forward(&f, moe, 0, ROWS, false, 64, out), MSGL_EINTERNAL);
    done(&f);
}

// What the products of a few rows have been given, and whether the expert of all tokens had begun.
static struct {
    const msgl_weight *shared_up;
    int begun, begun_before;
} FEW;

static bool few_rows(msgl_exec *x, const msgl_experts_call *c)
{
    (void)x;
    FEW.shared_up = c->shared_up;
    FEW.begun_before = FEW.begun;
    return true;
}

static void begin(void *ctx)
{
    (void)ctx;
    FEW.begun++;
}

// Products of a few rows take the expert of all tokens along, and the layer is told so: not one
// that is not theirs (a gate's, c->shared NULL), nor where they get rows times their weights, which
// it must not see.
static void test_shared(void **state)
{
    (void)state;
    const msgl_moe_desc *moe;
    assert_int_equal(msgl__moe_select("grouped", &moe, NULL), 0);
    static fixture f;
    init(&f, MSGL_CPU_REF, NORMED);
    f.k.moe.experts = few_rows;
    const msgl_moe_shared shared = {.gate_up = &f.w_up[0], .down = &f.w_down[0], .begin = begin};
    char *base = msgl__pages_alloc(ARENA);
    for (int i = 0; i < 3; i++) {
        float out[HIDDEN];
        memset(&FEW, 0, sizeof FEW);
        msgl_arena arena;
        msgl__arena_init(&arena, base, ARENA);
        f.experts.weighs_input = i == 2;
        const msgl_moe_call c = {.experts = &f.experts,
                                 .norm = f.norm,
                                 .norm_eps = 1e-6f,
                                 .router = &f.w_router,
                                 .in = f.in,
                                 .rows = 1,
                                 .out = out,
                                 .shared = i > 0 ? &shared : NULL};
        assert_int_equal(moe->forward(&f.x, &f.k, &arena, &c), i == 1);
        assert_ptr_equal(FEW.shared_up, i == 1 ? &f.w_up[0] : NULL);
        assert_int_equal(FEW.begun, i == 2);
        assert_int_equal(FEW.begun_before, FEW.begun);
    }
    msgl__pages_free(base, ARENA);
    done(&f);
}

static void test_names(void **state)
{
    (void)state;
    const msgl_moe_desc *moe = NULL;
    msgl_err err;
    assert_int_equal(msgl__moe_select("triton", &moe, &err), MSGL_EINVAL);
    assert_string_equal(err.text, "--moe-backend: found \"triton\", allowed auto, grouped");
    assert_null(moe);
    assert_int_equal(msgl__moe_select("grouped", &moe, &err), 0);
    assert_string_equal(moe->name, "grouped");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula), cmocka_unit_test(test_rows_are_independent),
        cmocka_unit_test(test_parts),   cmocka_unit_test(test_memory),
        cmocka_unit_test(test_shared),  cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
