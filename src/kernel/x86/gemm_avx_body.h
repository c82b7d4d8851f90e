// SPDX-License-Identifier: Apache-2.0
//
// The vector kernels of family gemm, as a template: the including file says what a vector of 16
// features is and how one step over k is done, and gets a block function.
//
//   acc                  type: 16 f32 sums
//   wvec, xval           types: 16 features' weights and one broadcast activation, for one step
//   MSGL_T(name)         makes a name of this instance
//   MSGL_T_SUBS          steps per line (2: even and odd k of a bf16 pair by separate products)
//   MSGL_T_LINE          bytes of weights per line; kpad / MSGL_T_K lines per panel
//   MSGL_T_K             elements of k per line
//   MSGL_T_A             bytes of a prepared row per line
//   MSGL_T_ROWS_<P>      most rows whose sums fit in registers together with P = 1, 2, 4 panels
//   MSGL_T_SHAPES(X)     X(rows, panels) for all those shapes
//   MSGL_T_LOAD_W(line, sub), broadcast(a, sub), madd(sum, w, x), zero(), store(out, sum)
//
// Sums are named variables, not arrays: GCC 12 keeps arrays of vectors in memory. Unused ones
// disappear, because the functions are inlined with constant R (rows) and P (panels). Every
// (row, feature) has one sum that runs over k from first to last, whatever R and P are.

// Distance of the prefetch in each stream. Hardware prefetchers stop at page borders and start
// late on short panels.
#define MSGL_T_AHEAD 1024

#define MSGL_T_EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

typedef struct MSGL_T(tile) {
    const char *w; // line 0 of the first panel
    size_t stream; // bytes from one of the P panels to the next
    const char *a; // row 0
    size_t a_row;
    int lines;
    const float *bias; // of the first panel's columns, or NULL
    float *out;
    size_t ld_out, out_stream; // elements; out_stream: from one panel's columns to the next
    int last_cols;             // valid columns of the last of the P panels
} MSGL_T(tile);

// Sums with a bias, or for a last panel of less than 16 columns.
static MSGL_NOINLINE void MSGL_T(finish)(const MSGL_T(tile) * t, const float *sums, int R, int P)
{
    for (int r = 0; r < R; r++) {
        for (int p = 0; p < P; p++, sums += 16) {
            const size_t col = (size_t)p * t->out_stream;
            float *out = t->out + (size_t)r * t->ld_out + col;
            const int cols = p == P - 1 ? t->last_cols : 16;
            for (int i = 0; i < cols; i++) {
                out[i] = sums[i] + (t->bias == NULL ? 0.0f : t->bias[col + (size_t)i]);
            }
        }
    }
}

#define MSGL_T_DECLARE(r)                                                                          \
    acc c##r##_0 = zero(), c##r##_1 = c##r##_0, c##r##_2 = c##r##_0, c##r##_3 = c##r##_0;
#define MSGL_T_MADD(r)                                                                             \
    if (R > r) {                                                                                   \
        const xval x = broadcast(a + r * t->a_row, sub);                                           \
        c##r##_0 = madd(c##r##_0, w0, x);                                                          \
        if (P > 1) c##r##_1 = madd(c##r##_1, w1, x);                                               \
        if (P > 2) c##r##_2 = madd(c##r##_2, w2, x);                                               \
        if (P > 2) c##r##_3 = madd(c##r##_3, w3, x);                                               \
    }
#define MSGL_T_STORE(r)                                                                            \
    if (R > r) {                                                                                   \
        float *o = out + r * ld;                                                                   \
        store(o, c##r##_0);                                                                        \
        if (P > 1) store(o + next, c##r##_1);                                                      \
        if (P > 2) store(o + 2 * next, c##r##_2);                                                  \
        if (P > 2) store(o + 3 * next, c##r##_3);                                                  \
    }

// R rows times P panels (1, 2 or 4).
MSGL_INLINE void MSGL_T(rows)(const MSGL_T(tile) * t, const int R, const int P)
{
    const char *w = t->w, *a = t->a;
    const size_t s = t->stream;
    MSGL_T_EACH_ROW(MSGL_T_DECLARE)
    for (int i = 0; i < t->lines; i++, w += MSGL_T_LINE, a += MSGL_T_A) {
        _mm_prefetch(w + MSGL_T_AHEAD, _MM_HINT_T0);
        if (P > 1) _mm_prefetch(w + s + MSGL_T_AHEAD, _MM_HINT_T0);
        if (P > 2) _mm_prefetch(w + 2 * s + MSGL_T_AHEAD, _MM_HINT_T0);
        if (P > 2) _mm_prefetch(w + 3 * s + MSGL_T_AHEAD, _MM_HINT_T0);
#pragma GCC unroll 2
        for (int sub = 0; sub < MSGL_T_SUBS; sub++) {
            const wvec w0 = MSGL_T_LOAD_W(w, sub);
            const wvec w1 = P > 1 ? MSGL_T_LOAD_W(w + s, sub) : w0;
            const wvec w2 = P > 2 ? MSGL_T_LOAD_W(w + 2 * s, sub) : w0;
            const wvec w3 = P > 2 ? MSGL_T_LOAD_W(w + 3 * s, sub) : w0;
            MSGL_T_EACH_ROW(MSGL_T_MADD)
        }
    }
    const bool direct = t->bias == NULL && t->last_cols == 16;
    float sums[12 * 2 * 16]; // R * P <= 24
    float *out = direct ? t->out : sums;
    const size_t ld = direct ? t->ld_out : (size_t)P * 16, next = direct ? t->out_stream : 16;
    MSGL_T_EACH_ROW(MSGL_T_STORE)
    if (!direct) MSGL_T(finish)(t, sums, R, P);
}

// One function per shape, so that each gets its own registers.
#define MSGL_T_SHAPE(r, p)                                                                         \
    static MSGL_NOINLINE void MSGL_T(rows_##r##x##p)(const MSGL_T(tile) * t)                       \
    {                                                                                              \
        MSGL_T(rows)(t, r, p);                                                                     \
    }
MSGL_T_SHAPES(MSGL_T_SHAPE)

static void MSGL_T(dispatch)(const MSGL_T(tile) * t, int rows, int panels)
{
#define MSGL_T_CASE(r, p)                                                                          \
    case (p)*16 + (r): MSGL_T(rows_##r##x##p)(t); break;
    switch (panels * 16 + rows) {
        MSGL_T_SHAPES(MSGL_T_CASE)
    default: assert(!"no such shape");
    }
}

static void MSGL_T(block)(const msgl_gemm_block *b)
{
    const int panels = (b->cols + 15) / 16;
    const int passes = (b->rows + MSGL_T_ROWS_1 - 1) / MSGL_T_ROWS_1;
    const int most = (b->rows + passes - 1) / passes; // rows are shared evenly among the passes
    int first = 0;
    for (int P = most <= MSGL_T_ROWS_4 ? 4 : most <= MSGL_T_ROWS_2 ? 2 : 1; P > 0; P /= 2) {
        // P streams of consecutive panels each, so that a stream goes on where a panel ends.
        const int groups = (panels - first) / P;
        for (int at = first; at < first + groups; at++) {
            const int last = at + (P - 1) * groups, left = b->cols - last * 16;
            MSGL_T(tile)
            t = {.w = b->w + (size_t)at * b->panel_bytes,
                 .stream = (size_t)groups * b->panel_bytes,
                 .a = b->a,
                 .a_row = b->a_row_bytes,
                 .lines = b->kpad / MSGL_T_K,
                 .bias = b->bias == NULL ? NULL : b->bias + at * 16,
                 .out = b->out + at * 16,
                 .ld_out = b->ld_out,
                 .out_stream = (size_t)groups * 16,
                 .last_cols = left < 16 ? left : 16};
            for (int i = 0; i < passes; i++) {
                const int rows = b->rows / passes + (i < b->rows % passes);
                MSGL_T(dispatch)(&t, rows, P);
                t.a += (size_t)rows * b->a_row_bytes;
                t.out += (size_t)rows * b->ld_out;
            }
        }
        first += groups * P;
    }
}

#undef MSGL_T_AHEAD
#undef MSGL_T_EACH_ROW
#undef MSGL_T_DECLARE
#undef MSGL_T_MADD
#undef MSGL_T_STORE
#undef MSGL_T_SHAPE
#undef MSGL_T_CASE
#undef MSGL_T
#undef MSGL_T_LOAD_W
#undef MSGL_T_SUBS
#undef MSGL_T_LINE
#undef MSGL_T_K
#undef MSGL_T_A
