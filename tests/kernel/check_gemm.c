// SPDX-License-Identifier: Apache-2.0
//
// Family gemm against sums in f64 of the rounded operands.
#include "kernel/checkkern.h"

#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "utils/rounded.h"

void msgl__check_gemm(checkkern *ck);

// An f32 sum of k products errs by at most 2^-24 of a partial sum per step, and partial sums are at
// most sum |x w|. Errors of k steps add up like a random walk: 4 sqrt(k) is four deviations, and 8
// covers the shortest sums. bf16 products are exact in f32, f16 and f32 ones are fused or rounded
// once more; those of int8 are exact over a group, and rounded with its two scales.
//
// Of a sum of k products, as a share of the sum of their magnitudes.
static double roundings(int k)
{
    return 0x1p-24 * (4 * sqrt((double)k) + 8);
}

// What such a sum may be off besides, by k products and k additions of numbers below 2^-126, each
// of which is rounded to a multiple of 2^-149. Units that flush such numbers lose more of them,
// which only check_small has.
static double small_roundings(int k)
{
    return 0x1p-149 * k;
}

static ck_tol tolerance(int k, double largest_abs_sum)
{
    return (ck_tol){
        .abs = roundings(k) * largest_abs_sum + small_roundings(k), .rel = 0, .nmse = 1e-10};
}

typedef struct problem {
    msgl_wformat_id format;
    int m, n, k;
    size_t ld_in, ld_out;
    bool bias;
} problem;

typedef struct operands {
    msgl_weight w;
    float *rows; // W as f32, [n, k]: what the format holds
    float *in;   // [m, ld_in], NaN between k and ld_in
    float *bias;
} operands;

// What products work with: of rows of a weight, and of activations.
static void round_to_format(float *v, int n, msgl_wformat_id f, bool weight)
{
    if (f == MSGL_W_INT8) round_to_int8(v, n);
    if (f == MSGL_W_INT8 || (f != MSGL_W_BF16 && !weight)) return;
    for (int i = 0; i < n; i++) v[i] = rounded(v[i], (msgl_dtype)f);
}

static void round_rows(operands *o)
{
    for (int r = 0; r < o->w.n; r++) {
        round_to_format(o->rows + (size_t)r * (size_t)o->w.k, o->w.k, o->w.format->id, true);
    }
}

// Packs o->rows in pieces of random size, last rows first.
static void pack_in_pieces(checkkern *ck, operands *o, msgl_dtype src_dtype)
{
    const int n = o->w.n, k = o->w.k;
    const size_t ld = (size_t)k + 3;
    char *src = msgl__ck_alloc(ck, (size_t)n * ld * sizeof(float));
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < k; i++) {
            msgl__store_f32(src, src_dtype, (size_t)r * ld + (size_t)i,
                            o->rows[(size_t)r * (size_t)k + (size_t)i]);
        }
    }
    for (int end = n; end > 0;) {
        const int rows = msgl__ck_int(ck, 1, end < 70 ? end : 70);
        end -= rows;
        o->w.format->pack(ck->exec, &o->w, end, rows,
                          src + (size_t)end * ld * msgl__dtype_size(src_dtype), src_dtype, ld);
    }
}

static msgl_weight new_weight(checkkern *ck, msgl_wformat_id format, int n, int k)
{
    msgl_weight w = {.format = &ck->cur->gemm.formats[format], .n = n, .k = k};
    w.data = msgl__ck_alloc(ck, msgl__weight_bytes(&w));
    return w;
}

static operands make(checkkern *ck, const problem *p)
{
    const size_t n = (size_t)p->n, k = (size_t)p->k;
    operands o = {.w = new_weight(ck, p->format, p->n, p->k),
                  .rows = msgl__ck_alloc(ck, n * k * sizeof(float)),
                  .in = msgl__ck_alloc(ck, (size_t)(p->m + 1) * p->ld_in * sizeof(float)),
                  .bias = p->bias ? msgl__ck_alloc(ck, n * sizeof(float)) : NULL};
    for (size_t i = 0; i < n * k; i++) o.rows[i] = msgl__ck_normal(ck);
    pack_in_pieces(ck, &o, MSGL_F32);
    round_rows(&o);
    for (size_t r = 0; r < (size_t)p->m; r++) {
        for (size_t i = 0; i < p->ld_in; i++) {
            o.in[r * p->ld_in + i] = i < k ? msgl__ck_normal(ck) : NAN;
        }
    }
    for (size_t i = 0; p->bias && i < n; i++) o.bias[i] = msgl__ck_normal(ck);
    return o;
}

// want [m, n]; returns the largest sum of |x w| over the finite results.
static double oracle(checkkern *ck, const problem *p, const operands *o, double *want)
{
    double largest = 0;
    float *x = msgl__ck_alloc(ck, (size_t)p->k * sizeof *x);
    for (int r = 0; r < p->m; r++) {
        memcpy(x, o->in + (size_t)r * p->ld_in, (size_t)p->k * sizeof *x);
        round_to_format(x, p->k, p->format, false);
        for (int c = 0; c < p->n; c++) {
            double sum = 0, abs_sum = 0;
            for (int i = 0; i < p->k; i++) {
                const double a =
                    (double)x[i] * (double)o->rows[(size_t)c * (size_t)p->k + (size_t)i];
                sum += a;
                abs_sum += fabs(a);
            }
            if (o->bias != NULL) {
                sum += (double)o->bias[c];
                abs_sum += fabs((double)o->bias[c]);
            }
            want[(size_t)r * (size_t)p->n + (size_t)c] = sum;
            if (isfinite(abs_sum) && abs_sum > largest) largest = abs_sum;
        }
    }
    return largest;
}

static msgl_linear_call linear_call(const problem *p, const operands *o, float *out)
{
    return (msgl_linear_call){.w = &o->w,
                              .bias = o->bias,
                              .in = o->in,
                              .ld_in = p->ld_in,
                              .m = p->m,
                              .out = out,
                              .ld_out = p->ld_out};
}

static void run_linear(checkkern *ck, msgl_exec *x, const problem *p, const operands *o, float *out)
{
    const msgl_linear_call c = linear_call(p, o, out);
    ck->cur->gemm.linear(x, &c);
}

// The result, then that one thread gives the same bits, then every row alone and blocks of rows.
static void check_problem(checkkern *ck, const problem *p, const operands *o)
{
    ck_buf out = msgl__ck_buf(ck, p->m, p->n, p->ld_out);
    double *want = msgl__ck_alloc(ck, (size_t)p->m * (size_t)p->n * sizeof *want);
    const double largest = oracle(ck, p, o, want);
    const size_t before = ck->exec->scratch->used;
    run_linear(ck, ck->exec, p, o, out.data);
    msgl__ck_true(ck, ck->exec->scratch->used == before, "gives its scratch back");
    msgl__ck_near(ck, "out", &out, want, tolerance(p->k, largest));
    ck_buf other = msgl__ck_buf(ck, p->m, p->n, p->ld_out);
    const size_t all = (size_t)p->m * p->ld_out;
    run_linear(ck, ck->exec1, p, o, other.data);
    msgl__ck_same(ck, "one thread", out.data, other.data, all);
    for (int step = 1; step <= p->m; step += step < 3 ? 1 : 10) {
        other = msgl__ck_buf(ck, p->m, p->n, p->ld_out);
        for (int r = 0; r < p->m; r += step) {
            problem part = *p;
            operands rows = *o;
            part.m = p->m - r < step ? p->m - r : step;
            rows.in += (size_t)r * p->ld_in;
            run_linear(ck, ck->exec, &part, &rows, other.data + (size_t)r * p->ld_out);
        }
        if (!msgl__ck_same(ck, "independent of m", out.data, other.data, all)) return;
    }
}

static const char *short_name(int t)
{
    static const char *const NAMES[MSGL_W_CODES] = {
        [MSGL_W_F32] = "f32", [MSGL_W_F16] = "f16", [MSGL_W_BF16] = "bf16", [MSGL_W_INT8] = "int8"};
    return NAMES[t];
}

static bool due_linear(checkkern *ck, msgl_wformat_id t, const char *what)
{
    return msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear),
                         "linear_%s%s_%s", short_name(t), ck->exec->prompts_only ? "_prompts" : "",
                         what);
}

static void check_linear(checkkern *ck, msgl_wformat_id t)
{
    static const int SHAPES[][3] = {
        {1, 1, 1},     {1, 16, 32},   {1, 17, 33},    {2, 31, 64},   {3, 64, 96},   {4, 100, 70},
        {5, 129, 31},  {6, 64, 128},  {7, 80, 1024},  {8, 256, 257}, {12, 48, 100}, {13, 97, 40},
        {16, 144, 65}, {17, 33, 160}, {31, 50, 96},   {32, 64, 64},  {33, 65, 63},  {48, 40, 130},
        {65, 96, 250}, {100, 31, 32}, {129, 70, 515}, {1, 512, 3072}};
    if (!due_linear(ck, t, "shapes")) return;
    for (size_t i = 0; i < MSGL_COUNT(SHAPES); i++) {
        const int m = SHAPES[i][0], n = SHAPES[i][1], k = SHAPES[i][2];
        const problem p = {t,         m, n, k, (size_t)k + (i % 3) * 5, (size_t)n + (i % 2) * 7,
                           i % 4 == 1};
        const operands o = make(ck, &p);
        check_problem(ck, &p, &o);
        msgl__ck_reset(ck);
    }
}

// Values that break shortcuts: infinities and NaNs stay in their row and column, zeros keep
// 0 * finite = 0, subnormals may count as zero, large and small magnitudes meet.
static void check_special(checkkern *ck, msgl_wformat_id t)
{
    if (!due_linear(ck, t, "special")) return;
    const problem p = {t, 19, 37, 70, 70, 37, true};
    operands o = make(ck, &p);
    const size_t k = (size_t)p.k;
    for (size_t i = 0; i < k; i++) {
        o.in[2 * p.ld_in + i] = 0;
        o.in[3 * p.ld_in + i] = i % 2 ? -0.0f : 1e-42f;
        o.in[4 * p.ld_in + i] = i % 2 ? 1e4f : -1e-4f;
        o.rows[11 * k + i] = 0;
        o.rows[12 * k + i] = i % 3 ? 1e4f : -1e-4f;
    }
    o.in[5 * p.ld_in + 7] = INFINITY;
    o.in[6 * p.ld_in + 69] = -INFINITY;
    o.in[7 * p.ld_in + 33] = NAN;
    o.in[18 * p.ld_in] = INFINITY;
    o.in[18 * p.ld_in + 1] = -INFINITY;
    o.rows[20 * k + 5] = INFINITY;
    o.rows[36 * k + 69] = NAN;
    pack_in_pieces(ck, &o, MSGL_F32);
    round_rows(&o);
    check_problem(ck, &p, &o);
}

// Whether a level's unit takes subnormal operands as zero and leaves zero where a sum is subnormal,
// as vdpbf16ps and tdpbf16ps do, whatever MXCSR says.
static bool flushes(checkkern *ck, msgl_wformat_id t)
{
    const problem p = {t, 1, 1, 1, 1, 1, false};
    operands o = make(ck, &p);
    float *out = msgl__ck_alloc(ck, sizeof *out);
    o.rows[0] = 1;
    o.in[0] = 0x1p-130f;
    pack_in_pieces(ck, &o, MSGL_F32);
    run_linear(ck, ck->exec, &p, &o, out);
    return *out == 0;
}

// Sums of small numbers down to subnormal ones. Where these are flushed, each step may lose up to
// 2^-126 of a partial sum, not 2^-24 of it, and as much of a weight where the activation is taken
// as zero: twice 2^-102 as much.
static void check_small(checkkern *ck, msgl_wformat_id t)
{
    static const int EXPONENTS[] = {-100, -116, -124, -132, -140};
    static const int SHAPES[][3] = {{1, 33, 70}, {3, 40, 1}, {21, 64, 96}, {40, 17, 515}};
    if (!due_linear(ck, t, "small")) return;
    const bool flushed = flushes(ck, t);
    for (size_t i = 0; i < MSGL_COUNT(EXPONENTS) * MSGL_COUNT(SHAPES); i++) {
        const int *shape = SHAPES[i / MSGL_COUNT(EXPONENTS)], m = shape[0], n = shape[1],
                  k = shape[2], exponent = EXPONENTS[i % MSGL_COUNT(EXPONENTS)];
        const problem p = {t, m, n, k, (size_t)k, (size_t)n, false};
        const operands o = make(ck, &p);
        for (int j = 0; j < m * k; j++) o.in[j] = ldexpf(o.in[j], exponent);
        ck_buf out = msgl__ck_buf(ck, m, n, p.ld_out);
        double *want = msgl__ck_alloc(ck, (size_t)(m * n) * sizeof *want);
        ck_tol tol = tolerance(k, oracle(ck, &p, &o, want));
        if (flushed) tol.abs += 0x1p-101 * roundings(k);
        tol.nmse = INFINITY; // a multiple of 2^-149 may be far off, as a share
        run_linear(ck, ck->exec, &p, &o, out.data);
        if (!msgl__ck_near(ck, "out", &out, want, tol)) {
            msgl__ck_true(ck, false, "m %d, n %d, k %d, activations about 2^%d", m, n, k, exponent);
        }
        msgl__ck_reset(ck);
    }
}

static void set_prompts_only(checkkern *ck, bool on)
{
    ck->exec->prompts_only = ck->exec1->prompts_only = on;
}

// Root of the mean square error of a product against the oracle.
static double rms_error(checkkern *ck, const problem *p, const operands *o, bool prompts_only,
                        const double *want)
{
    const size_t size = (size_t)p->m * (size_t)p->n;
    float *out = msgl__ck_alloc(ck, size * sizeof *out);
    double sum = 0;
    set_prompts_only(ck, prompts_only);
    run_linear(ck, ck->exec, p, o, out);
    for (size_t i = 0; i < size; i++) sum += pow((double)out[i] - want[i], 2);
    return sqrt(sum / (double)size);
}

// A product of f32 errs no more than that of the same level where rows may come one by one, also
// where numbers are large against their sum.
static void check_prompts_error(checkkern *ck)
{
    if (!due_linear(ck, MSGL_W_F32, "prompts_error")) return;
    static const int KS[] = {40, 384, 1536};
    for (size_t i = 0; i < 2 * MSGL_COUNT(KS); i++) {
        const int k = KS[i / 2];
        const problem p = {MSGL_W_F32, 48, 64, k, (size_t)k, 64, false};
        operands o = make(ck, &p);
        for (size_t j = 0; i % 2 == 1 && j < 48 * (size_t)k; j++) o.in[j] += 100;
        double *want = msgl__ck_alloc(ck, (size_t)48 * 64 * sizeof *want);
        oracle(ck, &p, &o, want);
        const double one = rms_error(ck, &p, &o, false, want);
        const double many = rms_error(ck, &p, &o, true, want);
        msgl__ck_true(ck, many <= one, "k %d: error %g of prompts, %g else", k, many, one);
        set_prompts_only(ck, false);
        msgl__ck_reset(ck);
    }
}

// What a unit of fewer bits cannot multiply comes out as f32 does it: sums that are no finite
// numbers, products of numbers that round to an infinity; sums near the subnormal numbers as if
// each activation was rounded by up to 2^-134, which the sums' own roundings then follow.
static void check_prompts_special(checkkern *ck)
{
    if (!due_linear(ck, MSGL_W_F32, "prompts_special")) return;
    const problem p = {MSGL_W_F32, 21, 33, 70, 70, 33, false};
    operands o = make(ck, &p);
    const size_t k = (size_t)p.k, ld = p.ld_out;
    for (size_t i = 0; i < k; i++) {
        for (size_t r = 0; r < 5; r++) o.in[r * k + i] = ldexpf(o.in[r * k + i], -108 - 8 * (int)r);
        o.in[8 * k + i] = 0;
    }
    o.in[5 * k + 1] = INFINITY;
    o.in[6 * k + 69] = -INFINITY;
    o.in[7 * k + 40] = NAN;
    memcpy(&o.in[8 * k + 3], &(uint32_t){0x7f7fffff}, 4); // the largest number
    memcpy(&o.in[16 * k], &(uint32_t){0x7f800001}, 4);    // a NaN of low bits alone
    o.rows[4 * k + 3] = 1e-9f;
    o.rows[9 * k + 3] = 1; // of which the second and the third part are 0
    o.rows[9 * k + 1] = 1;
    pack_in_pieces(ck, &o, MSGL_F32);
    float *one = msgl__ck_alloc(ck, 21 * 33 * sizeof *one);
    float *many = msgl__ck_alloc(ck, 21 * 33 * sizeof *many);
    run_linear(ck, ck->exec, &p, &o, one);
    set_prompts_only(ck, true);
    run_linear(ck, ck->exec, &p, &o, many);
    set_prompts_only(ck, false);
    int same = 0;
    for (size_t i = 0; i < 21 * ld; i++) {
        const size_t row = i / ld, col = i % ld;
        double weights = 0, products = 0;
        for (size_t j = 0; j < k; j++) {
            weights += fabs((double)o.rows[col * k + j]);
            products += fabs((double)o.rows[col * k + j] * (double)o.in[row * k + j]);
        }
        const bool tiny = row < 5 && fabsf(one[i]) < 0x1p-100f;
        if (!tiny && row != 8 && isfinite(one[i])) continue;
        const double most =
            tiny ? 0x1p-133 * weights + roundings(p.k) * products : 0x1p-22 * fabs((double)one[i]);
        const bool equal = isnan(one[i])   ? isnan(many[i])
                           : isinf(one[i]) ? one[i] == many[i]
                                           : fabs((double)many[i] - (double)one[i]) <= most;
        msgl__ck_true(ck, equal, "row %zu, column %zu: %g, not %g", row, col, (double)many[i],
                      (double)one[i]);
        same++;
    }
    msgl__ck_true(ck, same > 5 * 33, "%d values were compared", same);
    msgl__ck_reset(ck);
}

static void check_scratch(checkkern *ck)
{
    if (!due_linear(ck, MSGL_W_BF16, "scratch")) return;
    for (int t = 0; t < MSGL_W_CODES; t++) {
        const problem p = {(msgl_wformat_id)t, 40, 33, 100, 100, 33, false};
        const operands o = make(ck, &p);
        float *out = msgl__ck_alloc(ck, 40 * 33 * sizeof *out);
        msgl_linear_call c = linear_call(&p, &o, out);
        const size_t enough = ck->cur->gemm.linear_scratch(&c, MSGL_F32);
        char *memory = msgl__ck_alloc(ck, enough);
        msgl_arena arena;
        msgl_exec x = *ck->exec1;
        x.scratch = &arena;
        msgl__arena_init(&arena, memory, enough);
        run_linear(ck, &x, &p, &o, out);
        msgl__ck_true(ck, x.status == 0, "linear_scratch() is enough for %s", short_name(t));
        msgl__arena_init(&arena, memory, 64);
        run_linear(ck, &x, &p, &o, out);
        msgl__ck_true(ck, x.status == MSGL_ENOMEM, "full scratch is reported");
        float *none = msgl__ck_alloc(ck, 64);
        memset(none, 0x55, 64);
        c.m = 0;
        c.out = none;
        ck->cur->gemm.linear(ck->exec, &c);
        msgl__ck_true(ck, ((char *)none)[0] == 0x55, "m = 0 writes nothing");
    }
    const msgl_weight large = {
        .format = &ck->cur->gemm.formats[MSGL_W_F32], .n = INT32_MAX, .k = INT32_MAX};
    msgl__ck_true(ck, msgl__weight_bytes(&large) == 0, "packed_size() reports overflow");
}

// Every source dtype into every format; gather gives back each row, exactly.
static void check_pack(checkkern *ck)
{
    static const int SHAPES[][2] = {{1, 1}, {16, 32}, {33, 31}, {64, 300}, {100, 64}, {48, 1030}};
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.formats[MSGL_W_F32].pack),
                       CK_PREV(ck, gemm.formats[MSGL_W_F32].pack), "pack"))
        return;
    enum { SOURCES = MSGL_BF16 + 1 };
    const int each = MSGL_W_CODES * SOURCES;
    for (int c = 0; c < each * (int)MSGL_COUNT(SHAPES); c++) {
        const msgl_wformat_id t = (msgl_wformat_id)(c % MSGL_W_CODES);
        const msgl_dtype src = (msgl_dtype)(c / MSGL_W_CODES % SOURCES);
        const int n = SHAPES[c / each][0], k = SHAPES[c / each][1];
        const size_t size = (size_t)n * (size_t)k;
        operands o = {.w = new_weight(ck, t, n, k), .rows = msgl__ck_alloc(ck, size * 4)};
        for (size_t i = 0; i < size; i++) o.rows[i] = rounded(msgl__ck_normal(ck), src);
        if (size > 32) {
            o.rows[3] = INFINITY;
            o.rows[7] = rounded(1e30f, src);
            o.rows[9] = rounded(1e-6f, src);
            o.rows[11] = -0.0f;
        }
        pack_in_pieces(ck, &o, src);
        round_rows(&o);
        int32_t *ids = msgl__ck_alloc(ck, (size_t)(2 * n) * sizeof *ids);
        for (int i = 0; i < 2 * n; i++) ids[i] = i < n ? n - 1 - i : msgl__ck_int(ck, 0, n - 1);
        ck_buf out = msgl__ck_buf(ck, 2 * n, k, (size_t)k);
        double *want = msgl__ck_alloc(ck, 2 * size * sizeof *want);
        for (int i = 0; i < 2 * n; i++) {
            for (int j = 0; j < k; j++) {
                want[(size_t)i * (size_t)k + (size_t)j] =
                    (double)o.rows[(size_t)ids[i] * (size_t)k + (size_t)j];
            }
        }
        o.w.format->gather(ck->exec, &o.w, ids, 2 * n, out.data);
        if (!msgl__ck_near(ck, "gather after pack", &out, want, (ck_tol){0, 0, 0})) {
            msgl__ck_true(ck, false, "weight %s, source %s, n %d, k %d", short_name(t),
                          short_name(src), n, k);
            return;
        }
        msgl__ck_reset(ck);
    }
}

// Each expert's rows have the bits that linear() gives them; the oracle sees a few experts.
static void check_grouped(checkkern *ck, msgl_wformat_id t)
{
    enum { EXPERTS = 9, N = 70, K = 96 };
    static const int32_t OFFSETS[][EXPERTS + 1] = {{0, 0, 1, 1, 4, 24, 24, 60, 61, 61},
                                                   {0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
                                                   {0, 40, 40, 40, 40, 40, 40, 40, 40, 40},
                                                   {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}};
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.grouped), CK_PREV(ck, gemm.grouped), "grouped_%s%s",
                       short_name(t), ck->exec->prompts_only ? "_prompts" : ""))
        return;
    for (size_t c = 0; c < MSGL_COUNT(OFFSETS); c++) {
        const int32_t *offsets = OFFSETS[c];
        const int m = offsets[EXPERTS];
        operands o[EXPERTS];
        msgl_weight w[EXPERTS];
        for (int e = 0; e < EXPERTS; e++) {
            o[e] = make(ck, &(problem){t, 1, N, K, K, N, false});
            w[e] = o[e].w;
        }
        const problem all = {t, m, N, K, K + 2, N + 5, false};
        const operands in = make(ck, &all);
        ck_buf out = msgl__ck_buf(ck, m, N, all.ld_out), other = msgl__ck_buf(ck, m, N, all.ld_out);
        double *want = msgl__ck_alloc(ck, (size_t)m * N * sizeof *want);
        double largest = 0;
        for (int e = 0; e < EXPERTS; e++) {
            const size_t row = (size_t)offsets[e];
            problem p = all;
            operands part = o[e];
            p.m = offsets[e + 1] - offsets[e];
            part.in = in.in + row * all.ld_in;
            largest = fmax(largest, oracle(ck, &p, &part, want + row * N));
            run_linear(ck, ck->exec, &p, &part, other.data + row * all.ld_out);
        }
        msgl_grouped_call call = {.experts = w,
                                  .num_experts = EXPERTS,
                                  .offsets = offsets,
                                  .rows = m,
                                  .in = in.in,
                                  .ld_in = all.ld_in,
                                  .out = out.data,
                                  .ld_out = all.ld_out};
        ck->cur->gemm.grouped(ck->exec, &call);
        msgl__ck_near(ck, "grouped", &out, want, tolerance(K, largest));
        msgl__ck_same(ck, "as linear", out.data, other.data, (size_t)m * all.ld_out);
        out = msgl__ck_buf(ck, m, N, all.ld_out);
        call.out = out.data;
        ck->cur->gemm.grouped(ck->exec1, &call);
        msgl__ck_same(ck, "one thread", out.data, other.data, (size_t)m * all.ld_out);
        // The last experts alone leave the rows of the others as they are.
        const int last = 4;
        const size_t before = (size_t)offsets[last] * all.ld_out;
        const ck_buf none = msgl__ck_buf(ck, m, N, all.ld_out);
        out = msgl__ck_buf(ck, m, N, all.ld_out);
        call.out = out.data;
        call.experts = w + last;
        call.num_experts = EXPERTS - last;
        call.offsets = offsets + last;
        ck->cur->gemm.grouped(ck->exec, &call);
        msgl__ck_same(ck, "before the last experts", out.data, none.data, before);
        msgl__ck_same(ck, "the last experts", out.data + before, other.data + before,
                      (size_t)m * all.ld_out - before);
        msgl__ck_reset(ck);
    }
}

// Each head has the bits that linear() gives it, between strides that leave gaps.
static void check_heads(checkkern *ck, msgl_wformat_id t)
{
    enum { HEADS = 5, N = 40, K = 24, IN = K + 8, OUT = N + 3 };
    static const int ROWS[] = {1, 3, 33};
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.heads), CK_PREV(ck, gemm.heads), "heads_%s",
                       short_name(t)))
        return;
    for (size_t r = 0; r < MSGL_COUNT(ROWS); r++) {
        const problem all = {t,    ROWS[r], HEADS * IN, HEADS * IN, HEADS * IN + 2, HEADS * OUT + 5,
                             false};
        const operands in = make(ck, &all);
        ck_buf out = msgl__ck_buf(ck, all.m, HEADS * OUT, all.ld_out);
        ck_buf other = msgl__ck_buf(ck, all.m, HEADS * OUT, all.ld_out);
        msgl_weight w[HEADS];
        for (size_t h = 0; h < HEADS; h++) {
            const problem p = {t, all.m, N, K, all.ld_in, all.ld_out, false};
            operands head = make(ck, &(problem){t, 1, N, K, K, N, false});
            w[h] = head.w;
            head.in = in.in + h * IN;
            run_linear(ck, ck->exec, &p, &head, other.data + h * OUT);
        }
        const msgl_heads_call call = {.w = w,
                                      .heads = HEADS,
                                      .m = all.m,
                                      .in = in.in,
                                      .ld_in = all.ld_in,
                                      .head_in = IN,
                                      .out = out.data,
                                      .ld_out = all.ld_out,
                                      .head_out = OUT};
        const size_t enough = ck->cur->gemm.heads_scratch(&call, MSGL_F32);
        msgl_arena arena;
        msgl_exec x = *ck->exec;
        x.scratch = &arena;
        msgl__arena_init(&arena, msgl__ck_alloc(ck, enough), enough);
        ck->cur->gemm.heads(&x, &call);
        msgl__ck_true(ck, x.status == 0 && arena.used == 0, "heads_scratch() is enough");
        msgl__ck_same(ck, "as linear", out.data, other.data, (size_t)all.m * all.ld_out);
        msgl__ck_reset(ck);
    }
}

// A norm before the product, a bias in it, and a gate or an addition behind it give the bits of the
// same steps one by one; so does a gate behind a grouped product.
static void check_fused(checkkern *ck, msgl_wformat_id t)
{
    static const int SHAPES[][3] = {{1, 64, 96}, {5, 130, 70},  {40, 96, 33},  {70, 34, 256},
                                    {9, 64, 70}, {12, 160, 64}, {33, 128, 96}, {200, 192, 40}};
    if (!due_linear(ck, t, "fused")) return;
    enum { ADD, SILU, GELU, KINDS };
    for (size_t i = 0; i < KINDS * MSGL_COUNT(SHAPES); i++) {
        const int *shape = SHAPES[i / KINDS], m = shape[0], n = shape[1], k = shape[2];
        const bool gated = i % KINDS != ADD, norm = (i / KINDS + i % KINDS) % 2 == 0;
        const msgl_activation activation = i % KINDS == GELU ? MSGL_GELU_TANH : MSGL_SILU;
        const problem p = {t, m, n, k, (size_t)k + 3, (size_t)n, i % 3 == 0};
        const operands o = make(ck, &p);
        const int cols = gated ? n / 2 : n;
        float *weight = msgl__ck_alloc(ck, (size_t)k * sizeof *weight);
        float *normed = msgl__ck_alloc(ck, (size_t)(m * k) * sizeof *normed);
        float *product = msgl__ck_alloc(ck, (size_t)(m * n) * sizeof *product);
        float *want = msgl__ck_alloc(ck, (size_t)(m * cols) * sizeof *want);
        double *exact = msgl__ck_alloc(ck, (size_t)(m * cols) * sizeof *exact);
        ck_buf out = msgl__ck_buf(ck, m, cols, (size_t)cols + 5);
        for (int j = 0; j < k; j++) weight[j] = msgl__ck_normal(ck);
        for (int j = 0; j < m * cols; j++) {
            const float before = msgl__ck_normal(ck);
            out.data[(size_t)(j / cols) * out.ld + (size_t)(j % cols)] = want[j] = before;
        }
        msgl_linear_call c = linear_call(&p, &o, out.data);
        c.norm = norm ? weight : NULL;
        c.norm_eps = 1e-5f;
        c.gated = gated;
        c.activation = activation;
        c.accumulate = !gated;
        c.ld_out = out.ld;
        const size_t enough = ck->cur->gemm.linear_scratch(&c, MSGL_F32);
        msgl_arena arena;
        msgl_exec x = *ck->exec;
        x.scratch = &arena;
        msgl__arena_init(&arena, msgl__ck_alloc(ck, enough), enough);
        ck->cur->gemm.linear(&x, &c);
        msgl__ck_true(ck, x.status == 0 && arena.used == 0, "linear_scratch() is enough");
        c = linear_call(&p, &o, product);
        if (norm) {
            ck->cur->norm.rms_norm(ck->exec, o.in, p.ld_in, weight, 1e-5f, normed, (size_t)k, m, k);
            c.in = normed;
            c.ld_in = (size_t)k;
        }
        ck->cur->gemm.linear(ck->exec, &c);
        if (gated) {
            ck->cur->act.gate(ck->exec, activation, product, want, m, cols);
        } else {
            ck->cur->norm.add(ck->exec, want, product, NULL, 0, 1, m, n);
        }
        for (int j = 0; j < m * cols; j++) exact[j] = (double)want[j];
        msgl__ck_near(ck, "as one by one", &out, exact, (ck_tol){0, 0, 0});
        msgl__ck_reset(ck);
    }
}

static void check_grouped_gate(checkkern *ck, msgl_wformat_id t, const int N, bool clamped)
{
    enum { EXPERTS = 4, K = 40, M = 50 };
    static const int32_t OFFSETS[EXPERTS + 1] = {0, 3, 3, 45, M};
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.grouped), CK_PREV(ck, gemm.grouped),
                       "grouped_%s_%s_%d", short_name(t), clamped ? "clamped" : "gated", N))
        return;
    const size_t size = (size_t)M * (size_t)N;
    msgl_weight w[EXPERTS];
    for (int e = 0; e < EXPERTS; e++)
        w[e] = make(ck, &(problem){t, 1, N, K, K, (size_t)N, false}).w;
    const operands in = make(ck, &(problem){t, M, N, K, K, (size_t)N, false});
    float *product = msgl__ck_alloc(ck, size * sizeof *product);
    float *want = msgl__ck_alloc(ck, size * sizeof *want);
    double *exact = msgl__ck_alloc(ck, size * sizeof *exact);
    ck_buf out = msgl__ck_buf(ck, M, N / 2, (size_t)N / 2 + 3);
    msgl_grouped_call c = {.experts = w,
                           .num_experts = EXPERTS,
                           .offsets = OFFSETS,
                           .rows = M,
                           .in = in.in,
                           .ld_in = K,
                           .gated = true,
                           .out = out.data,
                           .ld_out = out.ld};
    if (clamped) {
        float *bias = msgl__ck_alloc(ck, (size_t)(EXPERTS * N) * sizeof *bias);
        for (int i = 0; i < EXPERTS * N; i++) bias[i] = 3 * msgl__ck_normal(ck);
        c.bias = bias;
        c.activation = MSGL_SWIGLU_CLAMPED;
    }
    const size_t enough = ck->cur->gemm.grouped_scratch(&c, MSGL_F32);
    msgl_arena arena;
    msgl_exec x = *ck->exec;
    x.scratch = &arena;
    msgl__arena_init(&arena, msgl__ck_alloc(ck, enough), enough);
    ck->cur->gemm.grouped(&x, &c);
    msgl__ck_true(ck, x.status == 0 && arena.used == 0, "grouped_scratch() is enough");
    const float *bias = c.bias;
    c.gated = false;
    c.bias = NULL;
    c.out = product;
    c.ld_out = (size_t)N;
    ck->cur->gemm.grouped(ck->exec, &c);
    for (int e = 0; e < EXPERTS && bias != NULL; e++) {
        for (int r = OFFSETS[e]; r < OFFSETS[e + 1]; r++) {
            for (int i = 0; i < N; i++) product[r * N + i] += bias[e * N + i];
        }
    }
    ck->cur->act.gate(ck->exec, c.activation, product, want, M, N / 2);
    for (int j = 0; j < M * (N / 2); j++) exact[j] = (double)want[j];
    msgl__ck_near(ck, "as one by one", &out, exact, (ck_tol){0, 0, 0});
    msgl__ck_reset(ck);
}

// Bytes of packed weights that a benchmark walks through: more than the caches keep.
static const size_t BENCH_BYTES = (size_t)768 << 20;

typedef struct bench {
    checkkern *ck;
    msgl_weight w;
    char *base;
    int copies, m;
    float *in, *out;
    const uint16_t *src;
} bench;

static void bench_linear(void *arg, int i)
{
    bench *b = arg;
    msgl_weight w = b->w;
    w.data = b->base + (size_t)(i % b->copies) * msgl__weight_bytes(&w);
    const msgl_linear_call c = {.w = &w,
                                .in = b->in,
                                .ld_in = (size_t)w.k,
                                .m = b->m,
                                .out = b->out,
                                .ld_out = (size_t)w.n};
    b->ck->cur->gemm.linear(b->ck->exec, &c);
}

static void bench_pack(void *arg, int i)
{
    bench *b = arg;
    msgl_weight w = b->w;
    w.data = b->base + (size_t)(i % b->copies) * msgl__weight_bytes(&w);
    w.format->pack(b->ck->exec, &w, 0, w.n, b->src, MSGL_BF16, (size_t)w.k);
}

// Layers of Qwen3-0.6B: qkv, o, gate and up, down, output.
static void bench_shapes(checkkern *ck, msgl_wformat_id t, char *base)
{
    static const int SHAPES[][2] = {
        {4096, 1024}, {1024, 2048}, {6144, 1024}, {1024, 3072}, {151936, 1024}};
    static const int ROWS[] = {1, 8, 16, 512};
    for (size_t s = 0; s < MSGL_COUNT(SHAPES); s++) {
        const int n = SHAPES[s][0], k = SHAPES[s][1];
        bench b = {
            .ck = ck, .w = {.format = &ck->cur->gemm.formats[t], .n = n, .k = k}, .base = base};
        const size_t size = msgl__weight_bytes(&b.w);
        b.copies = (int)(BENCH_BYTES / size);
        for (size_t i = 0; i < MSGL_COUNT(ROWS); i++) {
            const int m = b.m = ROWS[i];
            if ((m > 16 && n > 10000) || b.copies < 1) continue;
            if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.linear), CK_PREV(ck, gemm.linear),
                               "linear_%s_%dx%d_m%d", short_name(t), n, k, m))
                continue;
            const size_t out_bytes = (size_t)m * (size_t)n * 4;
            b.in = msgl__ck_alloc(ck, (size_t)m * (size_t)k * 4);
            b.out = msgl__pages_alloc(out_bytes); // as the engine does
            if (b.out == NULL) return;
            for (int j = 0; j < m * k; j++) b.in[j] = msgl__ck_uniform(ck, -1, 1);
            msgl__ck_time(ck, bench_linear, &b, (double)size, 2.0 * m * n * k,
                          t == MSGL_W_INT8   ? CK_LIMIT_INT8
                          : t == MSGL_W_BF16 ? CK_LIMIT_BF16
                                             : CK_LIMIT_F32);
            msgl__ck_true(ck, isfinite(b.out[0]), "the result is a number");
            msgl__pages_free(b.out, out_bytes);
            msgl__ck_reset(ck);
        }
        if (t == MSGL_W_BF16 && n < 10000 &&
            msgl__ck_func(ck, CK_FN(ck->cur->gemm.formats[MSGL_W_F32].pack),
                          CK_PREV(ck, gemm.formats[MSGL_W_F32].pack), "pack_%dx%d", n, k)) {
            uint16_t *src = msgl__ck_alloc(ck, size);
            for (size_t j = 0; j < size / 2; j++) src[j] = (uint16_t)(0x3f00 | (j * 31 & 0x80ff));
            b.src = src;
            msgl__ck_time(ck, bench_pack, &b, 2.0 * (double)size, 0, CK_LIMIT_READ);
            msgl__ck_true(ck, ((uint16_t *)base)[0] == src[0], "packed");
        }
    }
}

enum { BENCH_EXPERTS = 64, BENCH_N = 1536, BENCH_K = 2048 };

typedef struct moe_bench {
    checkkern *ck;
    msgl_weight w[BENCH_EXPERTS];
    int32_t offsets[BENCH_EXPERTS + 1];
    float *in, *out;
} moe_bench;

static void bench_grouped(void *arg, int i)
{
    moe_bench *b = arg;
    (void)i;
    const msgl_grouped_call c = {.experts = b->w,
                                 .num_experts = BENCH_EXPERTS,
                                 .offsets = b->offsets,
                                 .rows = b->offsets[BENCH_EXPERTS],
                                 .in = b->in,
                                 .ld_in = BENCH_K,
                                 .out = b->out,
                                 .ld_out = BENCH_N};
    b->ck->cur->gemm.grouped(b->ck->exec, &c);
}

// Gate and up of half of Qwen3-30B-A3B's experts: `rows` assignments spread at random.
static void bench_moe(checkkern *ck, char *base, int rows)
{
    if (!msgl__ck_func(ck, CK_FN(ck->cur->gemm.grouped), CK_PREV(ck, gemm.grouped),
                       "grouped_bf16_%dx%dx%d_m%d", BENCH_EXPERTS, BENCH_N, BENCH_K, rows))
        return;
    const msgl_weight one = {
        .format = &ck->cur->gemm.formats[MSGL_W_BF16], .n = BENCH_N, .k = BENCH_K};
    const size_t size = msgl__weight_bytes(&one);
    moe_bench *b = msgl__ck_alloc(ck, sizeof *b);
    int count[BENCH_EXPERTS] = {0}, active = 0;
    b->ck = ck;
    for (int i = 0; i < rows; i++) count[msgl__ck_int(ck, 0, BENCH_EXPERTS - 1)]++;
    for (int e = 0; e < BENCH_EXPERTS; e++) {
        b->w[e] = one;
        b->w[e].data = base + (size_t)e * size;
        b->offsets[e + 1] = b->offsets[e] + count[e];
        active += count[e] > 0;
    }
    b->in = msgl__ck_alloc(ck, (size_t)rows * BENCH_K * sizeof(float));
    b->out = msgl__ck_alloc(ck, (size_t)rows * BENCH_N * sizeof(float));
    for (int j = 0; j < rows * BENCH_K; j++) b->in[j] = msgl__ck_uniform(ck, -1, 1);
    msgl__ck_time(ck, bench_grouped, b, (double)size * active, 2.0 * rows * BENCH_N * BENCH_K,
                  CK_LIMIT_BF16);
    msgl__ck_true(ck, isfinite(b->out[0]), "the result is a number");
    msgl__ck_reset(ck);
}

static void bench_gemm(checkkern *ck)
{
    char *base = msgl__pages_alloc(BENCH_BYTES);
    if (base == NULL) return;
    for (int i = MSGL_W_CODES; i-- > 0;) {
        const msgl_wformat_id t = (msgl_wformat_id)i;
        // Weights of about +-1: neither zeros nor subnormals, which some units handle faster.
        for (size_t j = 0; j < BENCH_BYTES / 2; j++) {
            ((uint16_t *)base)[j] =
                (uint16_t)((t == MSGL_W_F16 ? 0x3800 : 0x3f00) | (j * 40503 & 0x80ff));
        }
        bench_shapes(ck, t, base);
        if (t != MSGL_W_BF16) continue;
        bench_moe(ck, base, 8);
        bench_moe(ck, base, 64);
        bench_moe(ck, base, 1024);
    }
    msgl__pages_free(base, BENCH_BYTES);
}

void msgl__check_gemm(checkkern *ck)
{
    if (ck->bench) {
        bench_gemm(ck);
        return;
    }
    check_pack(ck);
    check_scratch(ck);
    check_prompts_error(ck);
    check_prompts_special(ck);
    set_prompts_only(ck, true);
    check_linear(ck, MSGL_W_F32);
    check_special(ck, MSGL_W_F32);
    check_grouped(ck, MSGL_W_F32);
    check_fused(ck, MSGL_W_F32);
    set_prompts_only(ck, false);
    for (int t = 0; t < MSGL_W_CODES; t++) {
        check_linear(ck, (msgl_wformat_id)t);
        check_special(ck, (msgl_wformat_id)t);
        if (t != MSGL_W_INT8) check_small(ck, (msgl_wformat_id)t);
        check_grouped(ck, (msgl_wformat_id)t);
        check_heads(ck, (msgl_wformat_id)t);
        check_fused(ck, (msgl_wformat_id)t);
        check_grouped_gate(ck, (msgl_wformat_id)t, 70, false);
        check_grouped_gate(ck, (msgl_wformat_id)t, 64, false); // whole panels of gate and up
        check_grouped_gate(ck, (msgl_wformat_id)t, 70, true);
    }
}
