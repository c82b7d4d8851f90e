// SPDX-License-Identifier: Apache-2.0
//
// triton: the number of splits against SGLang's formula as Python states it, that splits cover the
// keys once, and what stage 1 leaves, element by element, against both stages in f64.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/triton/splits.h"
#include "attention/triton/triton.h"
#include "attention/world.h"
#include "core/attributes.h"

static void test_golden(void **state)
{
    (void)state;
    enum { MAX = 8, CORES = 132 };
    static const struct {
        int32_t batch, heads, kv_heads, count, lens[MAX], splits[MAX];
    } rows[] = {
#include "attention/triton_splits.inc"
    };
    for (size_t i = 0; i < MSGL_COUNT(rows); i++) {
        int32_t min = INT32_MAX, max = 0;
        for (int32_t j = 0; j < rows[i].count; j++) {
            min = rows[i].lens[j] < min ? rows[i].lens[j] : min;
            max = rows[i].lens[j] > max ? rows[i].lens[j] : max;
        }
        const msgl_triton_chunks c = msgl__triton_chunks(rows[i].batch, min, max, rows[i].heads,
                                                         rows[i].heads / rows[i].kv_heads, CORES);
        for (int32_t j = 0; j < rows[i].count; j++) {
            assert_int_equal(msgl__triton_num_splits(c, rows[i].lens[j]), rows[i].splits[j]);
        }
    }
}

// Neighbours from the first key seen to the last one, each but the last a multiple of 32; behind
// them nothing.
static void test_ranges(void **state)
{
    (void)state;
    world rng = {.rng = 3};
    for (int i = 0; i < 100000; i++) {
        const int32_t len = world_int(&rng, 1, 1 << world_int(&rng, 0, 17));
        const int32_t window = world_int(&rng, 0, 1) ? -1 : world_int(&rng, 0, 5000);
        const int32_t seen = msgl__triton_seen(len, window);
        const int32_t n = world_int(&rng, 1, MSGL_TRITON_MAX_SPLITS);
        assert_int_equal(seen, window >= 0 && len > window + 1 ? window + 1 : len);
        int32_t at = len - seen;
        for (int32_t split = 0; split < MSGL_TRITON_MAX_SPLITS; split++) {
            const msgl_triton_range r = msgl__triton_range(len, seen, n, split);
            if (r.begin == r.end) continue;
            assert_int_equal(r.begin, at);
            assert_true(split < n && r.end <= len);
            assert_true(r.end == len || (r.end - r.begin) % MSGL_TRITON_SPLIT_UNIT == 0);
            at = r.end;
        }
        assert_int_equal(at, len);
    }
}

// Stage 1 in f64: the normalised sum of V over keys [begin, end) of head h, and its LSE.
static double exact_split(const world *w, const world_req *r, int pos, int h,
                          msgl_triton_range keys, double *o)
{
    const size_t dim = (size_t)w->spec.head_dim, v_dim = (size_t)w->pool.spec.v_dim;
    const size_t kv_heads = (size_t)w->spec.num_kv_heads, kv_head = (size_t)(h / w->spec.group);
    const float *values = r->v != NULL ? r->v : r->k;
    const float *q = r->q + (size_t)pos * w->q_width + (size_t)h * dim;
    double sum = 0;
    memset(o, 0, v_dim * sizeof *o);
    for (int p = keys.begin; p < keys.end; p++) {
        const size_t at = ((size_t)p * kv_heads + kv_head) * dim;
        double s = 0;
        for (size_t d = 0; d < dim; d++) s += (double)q[d] * (double)r->k[at + d];
        s *= (double)w->layer.scale;
        if (w->spec.softcap > 0) s = (double)w->spec.softcap * tanh(s / (double)w->spec.softcap);
        const double e = exp(s); // scores of a test are small
        sum += e;
        for (size_t d = 0; d < v_dim; d++) o[d] += e * (double)values[at + d];
    }
    for (size_t d = 0; d < v_dim; d++) o[d] /= sum;
    return log(sum);
}

static int check_request(const world *w, const msgl_triton_stage *s, int i, const step_req *q)
{
    const int heads = w->spec.num_kv_heads * w->spec.group, v_dim = w->pool.spec.v_dim;
    const int seen = msgl__triton_seen(q->device, w->spec.window), n = s->md->num_kv_splits[i];
    double o[512];
    int used = 0;
    for (int h = 0; h < heads; h++) {
        for (int split = 0; split < MSGL_TRITON_MAX_SPLITS; split++) {
            const msgl_triton_range keys = msgl__triton_range(q->device, seen, n, split);
            if (keys.begin == keys.end) continue;
            used += h == 0;
            const double lse = exact_split(w, &w->reqs[q->req], q->device - 1, h, keys, o);
            const size_t at =
                ((size_t)i * (size_t)heads + (size_t)h) * MSGL_TRITON_MAX_SPLITS + (size_t)split;
            const double lse_error = fabs((double)s->attn_lse[at] - lse);
            if (!(lse_error < 1e-5)) fail_msg("LSE of split %d: off by %g", split, lse_error);
            for (int d = 0; d < v_dim; d++) {
                const float got = s->attn_logits[at * (size_t)v_dim + (size_t)d];
                const double error = fabs((double)got - o[d]);
                if (!(error < 5e-6)) fail_msg("split %d, column %d: off by %g", split, d, error);
            }
        }
    }
    return used;
}

// Every dtype, groups of one head, less and more than a block, windows, caps, latent vectors.
static void test_stages(void **state)
{
    (void)state;
    static const struct {
        msgl_dtype dtype;
        int group, kv_heads, head_dim, v_dim, window;
        float softcap;
        bool sinks, deterministic;
    } cases[] = {
        {MSGL_F32, 1, 4, 64, 0, -1, 0, false, false},
        {MSGL_BF16, 4, 2, 128, 0, -1, 0, false, false},
        {MSGL_F16, 20, 2, 96, 0, -1, 30, false, false},
        {MSGL_BF16, 4, 2, 64, 0, 300, 0, false, false},
        {MSGL_BF16, 5, 1, 72, 0, 31, 30, false, false},
        {MSGL_F16, 16, 1, 200, 136, -1, 0, false, false},
        {MSGL_BF16, 18, 1, 576, 512, -1, 0, false, false},
        {MSGL_BF16, 2, 2, 64, 0, -1, 0, true, true},
    };
    int most = 0;
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        world_spec spec = world_base(&msgl__attn_triton, 8, 1500, 64);
        spec.dtype = cases[i].dtype;
        spec.group = cases[i].group;
        spec.num_kv_heads = cases[i].kv_heads;
        spec.head_dim = cases[i].head_dim;
        spec.v_dim = cases[i].v_dim;
        spec.window = cases[i].window;
        spec.softcap = cases[i].softcap;
        spec.sinks = cases[i].sinks;
        spec.deterministic = cases[i].deterministic;
        spec.seed = 40 + i;
        world w;
        world_open(&w, &spec);
        for (int r = 0; r < 4; r++) world_request(&w, r, r == 0 ? 1500 : world_int(&w, 1, 400));
        for (int round = 0; round < 4; round++) {
            step_req reqs[4];
            const int n = round == 0 ? 1 : 4;
            for (int r = 0; r < n; r++) {
                const int at = round == 0 ? 1499 : world_int(&w, 0, w.reqs[r].len - 1);
                reqs[r] = (step_req){.req = r, .cached = at, .device = at + 1};
            }
            world_step(&w, MSGL_DECODE, reqs, n);
            assert_true(world_error(&w, reqs, n) < 2e-6);
            const msgl_triton_stage s = msgl__triton_stage(w.backend, w.batch.step_slot);
            for (int r = 0; r < n; r++) {
                const int used = check_request(&w, &s, r, &reqs[r]);
                most = used > most ? used : most;
            }
        }
        world_close(&w);
    }
    assert_true(most > 4); // requests were really split
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
