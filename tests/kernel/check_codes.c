// SPDX-License-Identifier: Apache-2.0
//
// Family gemm with weights that keep a file's blocks: against sums in f64 of what the blocks stand
// for (quant/blocks.h, which tests/quant compares with other implementations), and of activations
// rounded as kernel/gemm_codes.h says.
#include "kernel/checkkern.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "quant/stored.h"
#include "utils/code_forms.h"
#include "utils/rounded.h"

void msgl__check_codes(checkkern *ck);

static const char *const NAMES[] = {
    "Q4_0",   "Q4_1",  "Q5_0",  "Q5_1",    "Q8_0",   "Q2_K",  "Q3_K",    "Q4_K",  "Q5_K",
    "Q6_K",   "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL",
    "IQ4_XS", "TQ1_0", "TQ2_0", "Q1_0",    "Q2_0",   "MXFP4", "NVFP4",
};

// A weight in blocks, and what they stand for.
typedef struct stored {
    msgl_weight w;
    float *values; // [n, k], or [n, places] of columns in an order
} stored;

// Repacked in pieces of random size, last rows first. order: of the columns, or NULL.
static stored make_ordered(checkkern *ck, const msgl_blocks *b, bool exact, int n, int k,
                           const msgl_column_order *order)
{
    const int places = order != NULL ? order->num : k;
    const size_t row = (size_t)(places / b->elements) * (size_t)b->bytes, ld = row + 5;
    msgl_wformat *format = msgl__ck_alloc(ck, sizeof *format);
    msgl__ck_true(ck, ck->cur->gemm.keep(b, places, exact, format), "%s is kept", b->name);
    format->order = order;
    stored s = {.w = {.format = format, .n = n, .k = k},
                .values = msgl__ck_alloc(ck, (size_t)n * (size_t)places * sizeof(float))};
    uint8_t *src = msgl__ck_alloc(ck, (size_t)n * ld);
    uint64_t seed = msgl__ck_rand(ck);
    for (size_t r = 0; r < (size_t)n; r++) {
        code_row_draw(&seed, b, places, src + r * ld, s.values + r * (size_t)places);
    }
    s.w.data = msgl__ck_alloc(ck, msgl__weight_bytes(&s.w));
    for (int end = n; end > 0;) {
        const int rows = msgl__ck_int(ck, 1, end < 40 ? end : 40);
        end -= rows;
        s.w.format->repack(ck->exec, &s.w, end, rows, src + (size_t)end * ld, ld);
    }
    return s;
}

static stored make(checkkern *ck, const msgl_blocks *b, bool exact, int n, int k)
{
    return make_ordered(ck, b, exact, n, k, NULL);
}

// What products of codes work with, of n activations.
static void round_activations(checkkern *ck, float *v, int n)
{
    for (int i = 0; i < n && ck->cur->gemm.codes_by_bf16; i++) {
        v[i] = msgl__bf16_to_f32(msgl__f32_to_bf16(v[i]));
    }
    if (ck->cur->gemm.codes_by_bf16) return;
    for (int at = 0; at < n; at += 16) {
        float low = 0, high = 0;
        for (int i = at; i < at + 16 && i < n; i++) {
            low = fminf(low, v[i]);
            high = fmaxf(high, v[i]);
        }
        const float range = high - low, inverse = range < 1e-30f ? 0 : 253 / range;
        for (int i = at; i < at + 16 && i < n; i++) {
            v[i] = nearbyintf(v[i] * inverse) * (range / 253);
        }
    }
}

// want [m, n]; returns the largest sum of |x w|. in: [m, k], or [m, places].
static double oracle(checkkern *ck, const stored *s, float *in, int m, const float *bias,
                     double *want)
{
    const msgl_column_order *order = s->w.format->order;
    const int k = order != NULL ? order->num : s->w.k, n = s->w.n;
    double largest = 0;
    for (int r = 0; r < m; r++) {
        float *x = in + (size_t)r * (size_t)k;
        if (s->w.format->id == MSGL_W_CODES) round_activations(ck, x, k);
        for (int c = 0; c < n; c++) {
            double sum = bias == NULL ? 0 : (double)bias[c], abs_sum = 0;
            for (int i = 0; i < k; i++) {
                const double a =
                    (double)x[i] * (double)s->values[(size_t)c * (size_t)k + (size_t)i];
                sum += a;
                abs_sum += fabs(a);
            }
            want[(size_t)r * (size_t)n + (size_t)c] = sum;
            largest = fmax(largest, abs_sum);
        }
    }
    return largest;
}

static float *draw_rows(checkkern *ck, size_t rows, size_t cols)
{
    float *v = msgl__ck_alloc(ck, rows * cols * sizeof *v);
    for (size_t i = 0; i < rows * cols; i++) v[i] = msgl__ck_normal(ck);
    return v;
}

// Activations to be rounded to 8 bits, whose groups of 16 columns are in turn as they are drawn, of
// one sign, zeros, and small beside one of them.
static float *draw_activations(checkkern *ck, int m, int k)
{
    float *v = draw_rows(ck, (size_t)m, (size_t)k);
    for (int i = 0; i < m * k; i++) {
        const int column = i % k, kind = (column / 16 + i / k) % 5;
        if (kind == 1) v[i] = fabsf(v[i]);
        if (kind == 2) v[i] = -fabsf(v[i]);
        if (kind == 3) v[i] = 0;
        if (kind == 4 && column % 16 == 5) v[i] *= 50;
    }
    return v;
}

static void run(checkkern *ck, msgl_exec *x, const msgl_weight *w, const float *in, int m,
                const float *bias, float *out, size_t ld_out)
{
    const msgl_linear_call c = {.w = w,
                                .bias = bias,
                                .in = in,
                                .ld_in = (size_t)w->k,
                                .m = m,
                                .out = out,
                                .ld_out = ld_out};
    ck->cur->gemm.linear(x, &c);
}

// Each value is rounded where scale and minimum meet, each block's sum twice, and sums over k as
// f32 has it: see check_gemm.c. A form with a minimum adds q and min apart, which are up to twice
// the value.
//
// By bf16 each weight is off by up to 2^-8 of itself, and for its scale in f16 a little more. Those
// of a sum are independent: 4 / sqrt(k) of the worst case is some seven deviations. Of all outputs
// a relative error of 2^-8 / sqrt(3) / 1.4 is to be expected, 2.6e-6 as a mean square (more where
// a minimum takes most of q away again), and of few nothing, as all may be close to 0.
static ck_tol tolerance(const checkkern *ck, const msgl_wformat *f, int outputs, int k,
                        double largest)
{
    if (f->id == MSGL_W_CODES && ck->cur->gemm.codes_by_bf16) {
        return (ck_tol){.abs = 0x1.2p-8 * largest * fmin(1, 4 / sqrt((double)k)),
                        .nmse = outputs < 64 ? INFINITY : 3e-5};
    }
    return (ck_tol){.abs = 0x1p-24 * (8 * sqrt((double)k) + 16) * 2 * largest + 0x1p-149 * k,
                    .nmse = 1e-10};
}

// A product, with one thread, then rows one by one; and rows looked up.
static void check_shape(checkkern *ck, const msgl_blocks *b, bool exact, int m, int n, int k)
{
    const stored s = make(ck, b, exact, n, k);
    const size_t ld = (size_t)n + 3, all = (size_t)m * ld;
    const bool by8 = s.w.format->id == MSGL_W_CODES && !ck->cur->gemm.codes_by_bf16;
    float *in = by8 ? draw_activations(ck, m, k) : draw_rows(ck, (size_t)m, (size_t)k);
    const float *bias = n % 2 == 0 ? NULL : draw_rows(ck, 1, (size_t)n);
    ck_buf out = msgl__ck_buf(ck, m, n, ld), other = msgl__ck_buf(ck, m, n, ld);
    double *want = msgl__ck_alloc(ck, (size_t)m * (size_t)n * sizeof *want);
    run(ck, ck->exec, &s.w, in, m, bias, out.data, ld);
    run(ck, ck->exec1, &s.w, in, m, bias, other.data, ld);
    msgl__ck_same(ck, "one thread", out.data, other.data, all);
    other = msgl__ck_buf(ck, m, n, ld);
    for (int r = 0; r < m; r++) {
        run(ck, ck->exec, &s.w, in + (size_t)r * (size_t)k, 1, bias, other.data + (size_t)r * ld,
            ld);
    }
    msgl__ck_same(ck, "independent of m", out.data, other.data, all);
    const double largest = oracle(ck, &s, in, m, bias, want);
    if (!msgl__ck_near(ck, "out", &out, want, tolerance(ck, s.w.format, m * n, k, largest))) {
        msgl__ck_true(ck, false, "%s, exact %d, m %d, n %d, k %d", b->name, exact, m, n, k);
    }
    int32_t *ids = msgl__ck_alloc(ck, (size_t)n * sizeof *ids);
    double *rows = msgl__ck_alloc(ck, (size_t)n * (size_t)k * sizeof *rows);
    for (size_t i = 0; i < (size_t)n; i++) {
        ids[i] = (int32_t)((size_t)n - 1 - i);
        for (size_t j = 0; j < (size_t)k; j++) {
            rows[i * (size_t)k + j] = (double)s.values[(size_t)ids[i] * (size_t)k + j];
        }
    }
    ck_buf found = msgl__ck_buf(ck, n, k, (size_t)k);
    s.w.format->gather(ck->exec, &s.w, ids, n, found.data);
    msgl__ck_near(ck, "gather", &found, rows, (ck_tol){0, 0, 0});
    msgl__ck_reset(ck);
}

// Columns that are whole blocks of every form, whole chunks and less.
static void check_form(checkkern *ck, const msgl_blocks *b, bool exact)
{
    static const int SHAPES[][3] = {{1, 1, 1},   {1, 17, 3},   {2, 33, 2},
                                    {5, 16, 9},  {4, 18, 21},  {9, 40, 1},
                                    {70, 35, 2}, {131, 20, 1}, {261, 150, 1}};
    if (exact != (b->codes == NULL) && b->codes == NULL) return; // nothing but exact
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear), "linear_%s%s",
                       b->name, exact ? "_exact" : "")) {
        return;
    }
    const int unit = b->elements < 32 ? 32 : b->elements;
    for (size_t i = 0; i < MSGL_COUNT(SHAPES); i++) {
        check_shape(ck, b, exact, SHAPES[i][0], SHAPES[i][1], SHAPES[i][2] * unit);
    }
}

// Codes of parts, each by a name of its own.
static void check_parts_of_codes(checkkern *ck)
{
    for (int i = 0; i < code_forms_count(); i++) {
        code_form form;
        code_forms_get(i, &form);
        check_form(ck, &form.blocks, false);
        check_form(ck, &form.blocks, true);
    }
}

// The largest scales that f16 has: values of up to 2^28, beside one feature of ordinary ones.
static void check_large(checkkern *ck)
{
    static const struct {
        const char *name;
        size_t at; // of d
    } FORMS[] = {{"Q2_K", 80}, {"Q3_K", 108}, {"Q4_K", 0}, {"Q6_K", 208}, {"Q8_0", 0}, {"Q4_1", 0}};
    enum { M = 3, N = 20, K = 512 };
    for (size_t i = 0; i < MSGL_COUNT(FORMS); i++) {
        const msgl_blocks *b = msgl__blocks_of_ggml(FORMS[i].name);
        if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear),
                           "linear_%s_large", b->name)) {
            continue;
        }
        const size_t row = K / (size_t)b->elements * (size_t)b->bytes;
        msgl_wformat format;
        uint8_t *src = msgl__ck_alloc(ck, N * row);
        stored s = {.w = {.format = &format, .n = N, .k = K},
                    .values = msgl__ck_alloc(ck, sizeof(float) * N * K)};
        uint64_t seed = msgl__ck_rand(ck);
        for (size_t r = 0; r < N; r++) {
            code_row_draw(&seed, b, K, src + r * row, s.values + r * K);
            for (size_t at = 0; r > 0 && at < row; at += (size_t)b->bytes) {
                const uint16_t largest = 0x7bff;
                memcpy(src + r * row + at + FORMS[i].at, &largest, sizeof largest);
                msgl__blocks_expand(b, src + r * row + at,
                                    s.values + r * K + at / (size_t)b->bytes * (size_t)b->elements);
            }
        }
        msgl__ck_true(ck, ck->cur->gemm.keep(b, K, false, &format), "%s is kept", b->name);
        s.w.data = msgl__ck_alloc(ck, msgl__weight_bytes(&s.w));
        format.repack(ck->exec, &s.w, 0, N, src, row);
        float *in = draw_rows(ck, M, K);
        ck_buf out = msgl__ck_buf(ck, M, N, N);
        double *want = msgl__ck_alloc(ck, sizeof *want * M * N);
        run(ck, ck->exec, &s.w, in, M, NULL, out.data, N);
        const double most = oracle(ck, &s, in, M, NULL, want);
        msgl__ck_near(ck, "out", &out, want, tolerance(ck, &format, M * N, K, most));
        msgl__ck_reset(ck);
    }
}

// A call whose weight has parts gives `want` [m, n], what its parts give alone, from scratch that
// is just enough; and with a gate behind it what the gate makes of that.
static void compare_parts(checkkern *ck, msgl_linear_call c, const float *want)
{
    const size_t n = (size_t)c.w->n, all = (size_t)c.m * n;
    const size_t enough = ck->cur->gemm.linear_scratch(&c, MSGL_F32);
    float *out = msgl__ck_alloc(ck, all * sizeof *out);
    float *gated = msgl__ck_alloc(ck, all / 2 * sizeof *gated);
    msgl_arena arena;
    msgl_exec x = *ck->exec;
    x.scratch = &arena;
    msgl__arena_init(&arena, msgl__ck_alloc(ck, enough), enough);
    c.out = out;
    c.ld_out = n;
    ck->cur->gemm.linear(&x, &c);
    msgl__ck_true(ck, x.status == 0, "linear_scratch() is enough");
    msgl__ck_same(ck, "parts", out, want, all);
    ck->cur->act.gate(ck->exec, MSGL_SILU, want, gated, c.m, c.w->n / 2);
    c.gated = true;
    c.activation = MSGL_SILU;
    c.ld_out = n / 2;
    ck->cur->gemm.linear(ck->exec, &c);
    msgl__ck_same(ck, "gated parts", out, gated, all / 2);
}

// Experts give what each gives alone, from scratch that is just enough. in: [offsets[num], k].
static void compare_experts(checkkern *ck, const msgl_weight *experts, int num,
                            const int32_t *offsets, const float *in)
{
    const size_t n = (size_t)experts[0].n, k = (size_t)experts[0].k;
    const size_t all = (size_t)offsets[num] * n;
    float *out = msgl__ck_alloc(ck, all * sizeof *out);
    float *want = msgl__ck_alloc(ck, all * sizeof *want);
    const msgl_grouped_call g = {.experts = experts,
                                 .num_experts = num,
                                 .offsets = offsets,
                                 .rows = offsets[num],
                                 .in = in,
                                 .ld_in = k,
                                 .out = out,
                                 .ld_out = n};
    const size_t enough = ck->cur->gemm.grouped_scratch(&g, MSGL_F32);
    msgl_arena arena;
    msgl_exec x = *ck->exec;
    x.scratch = &arena;
    msgl__arena_init(&arena, msgl__ck_alloc(ck, enough), enough);
    ck->cur->gemm.grouped(&x, &g);
    msgl__ck_true(ck, x.status == 0, "grouped_scratch() is enough");
    for (int e = 0; e < num; e++) {
        const size_t first = (size_t)offsets[e];
        run(ck, ck->exec, &experts[e], in + first * k, offsets[e + 1] - offsets[e], NULL,
            want + first * n, n);
    }
    msgl__ck_same(ck, "experts that differ", out, want, all);
}

// A weight with rows of several formats gives each of them the bits that it has alone; a gate and
// an addition behind the product those of one after the other. So do experts whose formats differ.
static void check_parts(checkkern *ck)
{
    enum { PARTS = 4, K = 256, M = 21, EACH = 40, N = PARTS * EACH };
    static const char *const FORMS[PARTS] = {"Q4_K", "Q6_K", "IQ2_XS", "Q8_0"};
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear), "linear_parts")) {
        return;
    }
    msgl_weight parts[PARTS];
    const float *in = draw_rows(ck, M, K), *bias = draw_rows(ck, 1, N);
    float *want = msgl__ck_alloc(ck, (size_t)M * N * sizeof *want);
    for (int i = 0; i < PARTS; i++) {
        parts[i] = make(ck, msgl__blocks_of_ggml(FORMS[i]), i == 3, EACH, K).w;
        run(ck, ck->exec, &parts[i], in, M, bias + i * EACH, want + i * EACH, N);
    }
    const msgl_weight w = {.n = N, .k = K, .parts = parts, .num_parts = PARTS};
    compare_parts(ck, (msgl_linear_call){.w = &w, .bias = bias, .in = in, .ld_in = K, .m = M},
                  want);
    compare_experts(ck, parts, PARTS, (const int32_t[]){0, 3, 3, 20, M}, in);
    msgl__ck_reset(ck);
}

// A gate behind a product gives the bits of one after the other, whether the kernel does both or
// not.
static void check_gate(checkkern *ck)
{
    enum { K = 512, N = 2 * 112, M = 40 };
    static const char *const FORMS[] = {"Q4_K", "Q8_0", "Q6_K", "IQ2_XS"};
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear), "linear_gate")) {
        return;
    }
    for (size_t i = 0; i < MSGL_COUNT(FORMS); i++) {
        const msgl_weight w = make(ck, msgl__blocks_of_ggml(FORMS[i]), false, N, K).w;
        const float *in = draw_rows(ck, M, K);
        float *product = msgl__ck_alloc(ck, (size_t)M * N * sizeof *product);
        float *want = msgl__ck_alloc(ck, (size_t)M * N / 2 * sizeof *want);
        run(ck, ck->exec, &w, in, M, NULL, product, N);
        ck->cur->act.gate(ck->exec, MSGL_SILU, product, want, M, N / 2);
        for (int m = 1; m <= M; m += 13) {
            ck_buf out = msgl__ck_buf(ck, m, N / 2, N / 2);
            const msgl_linear_call c = {.w = &w,
                                        .in = in,
                                        .ld_in = K,
                                        .m = m,
                                        .gated = true,
                                        .activation = MSGL_SILU,
                                        .out = out.data,
                                        .ld_out = N / 2};
            ck->cur->gemm.linear(ck->exec, &c);
            msgl__ck_same(ck, FORMS[i], out.data, want, (size_t)m * N / 2);
        }
        msgl__ck_reset(ck);
    }
}

// A feature with a scale that is no number has no result; those beside it and in the panels behind
// have theirs.
static void check_none(checkkern *ck)
{
    enum { N = 3300, M = 40 }; // several panels a task
    static const int KS[] = {32, 64, 300};
    const msgl_wformat *q4 = &ck->cur->gemm.formats[MSGL_W_CODES];
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear), "linear_none")) {
        return;
    }
    for (size_t i = 0; i < MSGL_COUNT(KS); i++) {
        const int k = KS[i];
        msgl_weight w = {.format = q4, .n = N, .k = k};
        float *src = draw_rows(ck, N, (size_t)k);
        for (int r = 3; r < N; r += 17) src[r * k + k - 1] = INFINITY;
        w.data = msgl__ck_alloc(ck, msgl__weight_bytes(&w));
        q4->pack(ck->exec, &w, 0, N, src, MSGL_F32, (size_t)k);
        const float *in = draw_rows(ck, M, (size_t)k);
        for (int m = 1; m <= M; m += 13) { // 1, 14, 27, 40
            ck_buf out = msgl__ck_buf(ck, m, N, N);
            run(ck, ck->exec, &w, in, m, NULL, out.data, N);
            int wrong = 0;
            for (int j = 0; j < m * N; j++) wrong += isnan(out.data[j]) != (j % N % 17 == 3);
            msgl__ck_true(ck, wrong == 0, "%d of %d x %d, k %d", wrong, m, N, k);
        }
        msgl__ck_reset(ck);
    }
}

// ---- columns in an order of groups ----

// Columns dealt out to `groups` groups at random, or with `even` as many to each; of a group they
// are in order and fill up whole spans.
static msgl_column_order *draw_order(checkkern *ck, int k, int groups, int span, bool even)
{
    const int room = (k + groups * span) / span * span;
    msgl_column_order *o = msgl__ck_alloc(ck, sizeof *o + (size_t)room * sizeof o->columns[0]);
    int *group = msgl__ck_alloc(ck, (size_t)k * sizeof *group);
    for (int i = 0; i < k; i++) group[i] = even ? i * groups / k : msgl__ck_int(ck, 0, groups - 1);
    for (int i = k - 1; i > 0; i--) {
        const int j = msgl__ck_int(ck, 0, i), other = group[i];
        group[i] = group[j];
        group[j] = other;
    }
    for (int g = 0; g < groups; g++) {
        for (int i = 0; i < k; i++) {
            if (group[i] == g) o->columns[o->num++] = i;
        }
        while (o->num % span != 0) o->columns[o->num++] = -1;
    }
    return o;
}

// Rows of activations [m, k] with their columns in order.
static float *in_order(checkkern *ck, const msgl_column_order *o, const float *in, int m, int k)
{
    float *out = msgl__ck_alloc(ck, (size_t)m * (size_t)o->num * sizeof *out);
    for (int r = 0; r < m; r++) {
        for (int i = 0; i < o->num; i++) {
            const int from = o->columns[i];
            out[r * o->num + i] = from < 0 ? 0 : in[r * k + from];
        }
    }
    return out;
}

// A product against f64, with one thread, row by row; and rows looked up, whose columns are those
// of activations. The memory is that of the places.
static void check_ordered_shape(checkkern *ck, const msgl_blocks *b, bool exact, int m, int n,
                                const msgl_column_order *o, int k)
{
    const stored s = make_ordered(ck, b, exact, n, k, o);
    const stored plain = make(ck, b, exact, n, o->num);
    msgl__ck_true(ck, msgl__weight_bytes(&s.w) == msgl__weight_bytes(&plain.w), "bytes of codes");
    const float *in = draw_rows(ck, (size_t)m, (size_t)k), *bias = draw_rows(ck, 1, (size_t)n);
    const size_t ld = (size_t)n, all = (size_t)m * ld;
    ck_buf out = msgl__ck_buf(ck, m, n, ld), other = msgl__ck_buf(ck, m, n, ld);
    double *want = msgl__ck_alloc(ck, all * sizeof *want);
    run(ck, ck->exec, &s.w, in, m, bias, out.data, ld);
    run(ck, ck->exec1, &s.w, in, m, bias, other.data, ld);
    msgl__ck_same(ck, "one thread", out.data, other.data, all);
    other = msgl__ck_buf(ck, m, n, ld);
    for (size_t r = 0; r < (size_t)m; r++) {
        run(ck, ck->exec, &s.w, in + r * (size_t)k, 1, bias, other.data + r * ld, ld);
    }
    msgl__ck_same(ck, "independent of m", out.data, other.data, all);
    const double largest = oracle(ck, &s, in_order(ck, o, in, m, k), m, bias, want);
    msgl__ck_near(ck, "out", &out, want, tolerance(ck, s.w.format, m * n, k, largest));
    int32_t *ids = msgl__ck_alloc(ck, (size_t)n * sizeof *ids);
    double *rows = msgl__ck_alloc(ck, (size_t)n * (size_t)k * sizeof *rows);
    for (int i = 0; i < n; i++) {
        ids[i] = n - 1 - i;
        for (int j = 0; j < o->num; j++) {
            if (o->columns[j] < 0) continue;
            rows[i * k + o->columns[j]] = (double)s.values[ids[i] * o->num + j];
        }
    }
    ck_buf found = msgl__ck_buf(ck, n, k, (size_t)k);
    s.w.format->gather(ck->exec, &s.w, ids, n, found.data);
    msgl__ck_near(ck, "gather", &found, rows, (ck_tol){0, 0, 0});
    msgl__ck_reset(ck);
}

// Whole groups, and what a rank has of them: groups of any size, columns that are no multiple of
// 32.
static void check_ordered_form(checkkern *ck, msgl_codes c, const char *name)
{
    static const int ROWS[] = {1, 5, 40};
    const msgl_blocks b = {name, 32, sizeof(msgl_code_part), &c, NULL};
    for (int i = 0; i < 2; i++) {
        const bool exact = i == 1;
        if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear),
                           "linear_%s_ordered%s", name, exact ? "_exact" : "")) {
            continue;
        }
        for (size_t r = 0; r < MSGL_COUNT(ROWS); r++) {
            const int k = 5 * c.span + 37;
            check_ordered_shape(ck, &b, exact, ROWS[r], 40,
                                draw_order(ck, 4 * c.span, 4, c.span, true), 4 * c.span);
            check_ordered_shape(ck, &b, exact, ROWS[r], 21, draw_order(ck, k, 9, c.span, false), k);
        }
    }
}

// A product of parts with two orders and none, gated, and of experts with one each: the bits of
// each by itself.
static void check_ordered_parts(checkkern *ck)
{
    enum { PARTS = 4, K = 352, M = 21, EACH = 40, N = PARTS * EACH };
    msgl_codes c = {.bits = 4, .group = 32, .zero = 8, .span = 32};
    const msgl_blocks b = {"parts", 32, sizeof(msgl_code_part), &c, NULL};
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear),
                       "linear_ordered_parts")) {
        return;
    }
    const msgl_column_order *one = draw_order(ck, K, 5, 32, false);
    const msgl_column_order *const orders[PARTS] = {one, draw_order(ck, K, 7, 32, false), NULL,
                                                    one};
    msgl_weight parts[PARTS];
    const float *in = draw_rows(ck, M, K), *norm = draw_rows(ck, 1, K);
    float *want = msgl__ck_alloc(ck, (size_t)M * N * sizeof *want);
    msgl_linear_call call = {
        .in = in, .ld_in = K, .m = M, .norm = norm, .norm_eps = 1e-5f, .ld_out = N};
    for (int i = 0; i < PARTS; i++) {
        parts[i] = make_ordered(ck, &b, false, EACH, K, orders[i]).w;
        call.w = &parts[i];
        call.out = want + i * EACH;
        ck->cur->gemm.linear(ck->exec, &call);
    }
    const msgl_weight w = {.n = N, .k = K, .parts = parts, .num_parts = PARTS};
    call.w = &w;
    compare_parts(ck, call, want);
    compare_experts(ck, parts, PARTS, (const int32_t[]){0, 3, 3, 20, M}, in);
    msgl__ck_reset(ck);
}

static void check_ordered(checkkern *ck)
{
    msgl_codes c = {.bits = 4, .group = 32, .zero = 8, .span = 128, .number = MSGL_NUMBER_F16};
    check_ordered_form(ck, c, "4_bits_128");
    c.span = 32;
    c.offset = MSGL_OFFSET_ZERO;
    check_ordered_form(ck, c, "4_bits_zero");
    c.bits = 3;
    c.zero = 4;
    c.number = MSGL_NUMBER_BF16;
    check_ordered_form(ck, c, "3_bits_zero");
    c.bits = 8;
    c.zero = 128;
    c.span = 64;
    check_ordered_form(ck, c, "8_bits_zero");
    check_ordered_parts(ck);
}

// What is packed into 4 bits is found again, of any dtype and of rows that are no whole blocks.
static void check_q4(checkkern *ck)
{
    static const int SHAPES[][2] = {{1, 1}, {16, 32}, {33, 31}, {40, 300}, {20, 256}};
    const msgl_wformat *q4 = &ck->cur->gemm.formats[MSGL_W_CODES];
    if (!msgl__ck_func(ck, CK_FN(q4->pack), CK_PREV(ck, gemm.formats[MSGL_W_CODES].pack), "q4")) {
        return;
    }
    for (size_t i = 0; i < 3 * MSGL_COUNT(SHAPES); i++) {
        const size_t n = (size_t)SHAPES[i / 3][0], k = (size_t)SHAPES[i / 3][1];
        const msgl_dtype dtype = (msgl_dtype)(i % 3);
        msgl_weight w = {.format = q4, .n = (int)n, .k = (int)k};
        char *src = msgl__ck_alloc(ck, n * k * sizeof(float));
        double *want = msgl__ck_alloc(ck, n * k * sizeof *want);
        float *row = msgl__ck_alloc(ck, k * sizeof *row);
        int32_t *ids = msgl__ck_alloc(ck, n * sizeof *ids);
        ck_buf out = msgl__ck_buf(ck, (int)n, (int)k, k);
        w.data = msgl__ck_alloc(ck, msgl__weight_bytes(&w));
        for (size_t r = 0; r < n; r++) {
            for (size_t j = 0; j < k; j++) {
                float v = msgl__ck_normal(ck) * (j < 32 && r == 3 ? 1e-9f : 1);
                if (r == 5 && j == 40) v = INFINITY;
                msgl__store_f32(src, dtype, r * k + j, v);
                row[j] = msgl__load_f32(src, dtype, r * k + j);
            }
            round_to_q4(row, (int)k);
            for (size_t j = 0; j < k; j++) want[r * k + j] = (double)row[j];
            ids[r] = (int32_t)r;
        }
        q4->pack(ck->exec, &w, 0, w.n, src, dtype, k);
        q4->gather(ck->exec, &w, ids, w.n, out.data);
        msgl__ck_near(ck, "q4", &out, want, (ck_tol){0, 0, 0});
        msgl__ck_reset(ck);
    }
}

// Packed weights that a benchmark walks through: more than the caches keep.
enum { BENCH_BYTES = 384 << 20, BENCH_N = 2048, BENCH_K = 2048 };

typedef struct bench {
    checkkern *ck;
    msgl_weight w;
    char *base;
    int copies, m;
    float *in, *out;
} bench;

static void bench_linear(void *arg, int i)
{
    bench *b = arg;
    b->w.data = b->base + (size_t)(i % b->copies) * msgl__weight_bytes(&b->w);
    run(b->ck, b->ck->exec, &b->w, b->in, b->m, NULL, b->out, BENCH_N);
}

static void bench_rows(checkkern *ck, const char *name, const msgl_weight *w, char *base)
{
    static const int ROWS[] = {1, 8, 16, 512};
    const size_t size = msgl__weight_bytes(w);
    bench b = {.ck = ck, .w = *w, .base = base, .copies = (int)(BENCH_BYTES / size)};
    for (int i = 0; i < b.copies; i++) memcpy(base + (size_t)i * size, w->data, size);
    b.in = draw_rows(ck, 512, BENCH_K);
    b.out = msgl__ck_alloc(ck, (size_t)512 * BENCH_N * sizeof *b.out);
    for (size_t i = 0; i < MSGL_COUNT(ROWS); i++) {
        b.m = ROWS[i];
        if (b.m > 1 && w->format->id == MSGL_W_BLOCKS) continue; // expanded: slow
        if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear), "%s_m%d",
                           name, b.m)) {
            continue;
        }
        msgl__ck_time(ck, bench_linear, &b, (double)size, 2.0 * b.m * BENCH_N * BENCH_K,
                      w->format->id == MSGL_W_CODES && !ck->cur->gemm.codes_by_bf16
                          ? CK_LIMIT_INT8
                          : CK_LIMIT_BF16);
    }
}

// All forms of GGUF files beside bf16 and int8, in one shape.
static void bench_forms(checkkern *ck)
{
    static const msgl_wformat_id OTHERS[] = {MSGL_W_BF16, MSGL_W_INT8};
    char *base = msgl__pages_alloc(BENCH_BYTES);
    for (size_t i = 0; base != NULL && i < MSGL_COUNT(OTHERS); i++) {
        const msgl_wformat *f = &ck->cur->gemm.formats[OTHERS[i]];
        msgl_weight w = {.format = f, .n = BENCH_N, .k = BENCH_K};
        w.data = msgl__ck_alloc(ck, msgl__weight_bytes(&w));
        f->pack(ck->exec, &w, 0, BENCH_N, draw_rows(ck, BENCH_N, BENCH_K), MSGL_F32, BENCH_K);
        bench_rows(ck, f->name, &w, base);
        msgl__ck_reset(ck);
    }
    for (size_t i = 0; base != NULL && i < MSGL_COUNT(NAMES); i++) {
        const stored s = make(ck, msgl__blocks_of_ggml(NAMES[i]), false, BENCH_N, BENCH_K);
        bench_rows(ck, NAMES[i], &s.w, base);
        msgl__ck_reset(ck);
    }
    if (base != NULL) msgl__pages_free(base, BENCH_BYTES);
}

void msgl__check_codes(checkkern *ck)
{
    if (ck->bench) {
        bench_forms(ck);
        return;
    }
    check_q4(ck);
    for (size_t i = 0; i < MSGL_COUNT(NAMES); i++) {
        check_form(ck, msgl__blocks_of_ggml(NAMES[i]), false);
        check_form(ck, msgl__blocks_of_ggml(NAMES[i]), true);
    }
    check_parts_of_codes(ck);
    check_large(ck);
    check_parts(ck);
    check_gate(ck);
    check_none(ck);
    check_ordered(ck);
}
