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
//   MSGL_T_GATED         1: gate() exists
//   MSGL_T_ROWS_<P>      most rows whose sums fit in registers together with P = 1, 2, 4 panels
//   MSGL_T_SHAPES(X)     X(rows, panels) for all those shapes
//   MSGL_T_LOAD_W(line, sub), broadcast(a, sub), madd(sum, w, x), zero(), store(out, sum),
//   add(out, sum)        out += sum
//   gate(out, g, u)      out = silu(g) * u; blocks have no `up` without it
//
// Sums are named variables, not arrays: GCC 12 keeps arrays of vectors in memory. Unused ones
// disappear, because the functions are inlined with constant R (rows) and P (panels). Every
// (row, feature) has one sum that runs over k from first to last, whatever R and P are.

// Distance of the prefetch in each of P streams of weights. Hardware prefetchers stop at page
// borders and start late on short panels.
#define MSGL_T_AHEAD(P) ((P) > 2 ? 1024 : 4096)

// Lines between two prefetches of the panels that come next.
#define MSGL_T_CHUNK 4

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
    bool add, gated;           // out +=; out = gate of panels 0 and 1
    bool fetch_out;            // out is probably not in the L1 cache
    // Panels that come next, which this pass brings into the L2 cache: [far, far_end) of stream 0
    // and as much of the others, far_lines lines of each per chunk.
    const char *far, *far_end;
    int far_lines;
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
                const float y = sums[i] + (t->bias == NULL ? 0.0f : t->bias[col + (size_t)i]);
                out[i] = t->add ? out[i] + y : y;
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

#define MSGL_T_ADD(r)                                                                              \
    if (R > r) {                                                                                   \
        float *o = t->out + r * t->ld_out;                                                         \
        add(o, c##r##_0);                                                                          \
        if (P > 1) add(o + t->out_stream, c##r##_1);                                               \
        if (P > 2) add(o + 2 * t->out_stream, c##r##_2);                                           \
        if (P > 2) add(o + 3 * t->out_stream, c##r##_3);                                           \
    }
#if MSGL_T_GATED
#define MSGL_T_GATE(r)                                                                             \
    if (R > r) gate(t->out + r * t->ld_out, c##r##_0, c##r##_1);
#endif

// What the products of this tile will need later.
MSGL_INLINE void MSGL_T(fetch_out)(const MSGL_T(tile) * t, const int R, const int P)
{
    const int panels = t->gated ? 1 : P;
    for (int r = 0; r < R; r++) {
        for (int p = 0; p < panels; p++) {
            __builtin_prefetch(t->out + (size_t)r * t->ld_out + (size_t)p * t->out_stream, 1);
        }
    }
}

// R rows times P panels (1, 2 or 4).
MSGL_INLINE void MSGL_T(rows)(const MSGL_T(tile) * t, const int R, const int P)
{
    const char *w = t->w, *a = t->a, *far = t->far;
    const size_t s = t->stream;
    if (t->fetch_out) MSGL_T(fetch_out)(t, R, P);
    MSGL_T_EACH_ROW(MSGL_T_DECLARE)
    for (int c = 0; c < t->lines; c += MSGL_T_CHUNK) {
        for (int i = 0; i < t->far_lines && far < t->far_end; i++, far += 64) {
            for (int p = 0; p < P; p++) _mm_prefetch(far + (size_t)p * s, _MM_HINT_T1);
        }
        for (int i = 0; i < MSGL_T_CHUNK; i++, w += MSGL_T_LINE, a += MSGL_T_A) {
            _mm_prefetch(w + MSGL_T_AHEAD(P), _MM_HINT_T0);
            if (P > 1) _mm_prefetch(w + s + MSGL_T_AHEAD(P), _MM_HINT_T0);
            if (P > 2) _mm_prefetch(w + 2 * s + MSGL_T_AHEAD(P), _MM_HINT_T0);
            if (P > 2) _mm_prefetch(w + 3 * s + MSGL_T_AHEAD(P), _MM_HINT_T0);
#pragma GCC unroll 2
            for (int sub = 0; sub < MSGL_T_SUBS; sub++) {
                const wvec w0 = MSGL_T_LOAD_W(w, sub);
                const wvec w1 = P > 1 ? MSGL_T_LOAD_W(w + s, sub) : w0;
                const wvec w2 = P > 2 ? MSGL_T_LOAD_W(w + 2 * s, sub) : w0;
                const wvec w3 = P > 2 ? MSGL_T_LOAD_W(w + 3 * s, sub) : w0;
                MSGL_T_EACH_ROW(MSGL_T_MADD)
            }
        }
    }
#if MSGL_T_GATED
    if (P == 2 && t->gated) {
        MSGL_T_EACH_ROW(MSGL_T_GATE)
        return;
    }
#endif
    const bool direct = t->bias == NULL && t->last_cols == 16;
    if (direct && t->add) {
        MSGL_T_EACH_ROW(MSGL_T_ADD)
        return;
    }
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

// All rows of b against the panels of tile t, whose rows start at b's first. What they bring in
// meanwhile is `next` bytes away, unless that is 0.
static void MSGL_T(passes)(const msgl_gemm_block *b, MSGL_T(tile) * t, int passes, int P,
                           size_t next)
{
    const size_t lines = (b->panel_bytes / 64 + (size_t)passes - 1) / (size_t)passes;
    const int chunks = t->lines / MSGL_T_CHUNK;
    for (int i = 0; i < passes; i++) {
        const int rows = b->rows / passes + (i < b->rows % passes);
        if (next != 0) {
            t->far = t->w + next + (size_t)i * lines * 64;
            t->far_end = t->far + lines * 64;
            t->far_lines = msgl__ceil_div((int)lines, chunks);
        }
        MSGL_T(dispatch)(t, rows, P);
        t->a += (size_t)rows * b->a_row_bytes;
        t->out += (size_t)rows * b->ld_out;
    }
}

// One pass: P streams of consecutive panels each, so that a stream goes on where a panel ends. With
// more passes the P panels are neighbours, and while the passes compute, they share the reading of
// the P panels behind, which the first of them would otherwise have to wait for.
static void MSGL_T(block)(const msgl_gemm_block *b)
{
    const int panels = msgl__ceil_div(b->cols, 16), follow = b->follow;
    const int full = b->up != 0 ? MSGL_T_ROWS_2 : MSGL_T_ROWS_1;
    const int passes = msgl__ceil_div(b->rows, full);
    const int most = msgl__ceil_div(b->rows, passes); // rows are shared evenly among the passes
    int first = 0, P = most <= MSGL_T_ROWS_4 ? 4 : most <= MSGL_T_ROWS_2 ? 2 : 1;
    if (b->up != 0) P = 2;
    for (; first < panels; P /= 2) {
        const int each = b->up != 0 ? 1 : P; // panels of the result per group
        const int groups = (panels - first) / each, apart = passes > 1 ? 1 : groups;
        for (int i = 0; i < groups; i++) {
            const int at = first + (passes > 1 ? i * each : i), last = at + (each - 1) * apart;
            const int left = b->cols - last * 16, behind = panels + follow - at - each;
            MSGL_T(tile)
            t = {.w = b->w + (size_t)at * b->panel_bytes,
                 .stream = b->up != 0 ? b->up : (size_t)apart * b->panel_bytes,
                 .a = b->a,
                 .a_row = b->a_row_bytes,
                 .lines = b->kpad / MSGL_T_K,
                 .bias = b->bias == NULL ? NULL : b->bias + at * 16,
                 .out = b->out + at * 16,
                 .ld_out = b->ld_out,
                 .out_stream = (size_t)apart * 16,
                 .last_cols = left < 16 ? left : 16,
                 .add = b->add,
                 .gated = b->up != 0,
                 .fetch_out = b->add || passes > 4};
            const bool more = passes > 1 && behind >= each;
            MSGL_T(passes)(b, &t, passes, P, more ? (size_t)each * b->panel_bytes : 0);
        }
        first += groups * each;
    }
}

#undef MSGL_T_AHEAD
#undef MSGL_T_CHUNK
#undef MSGL_T_EACH_ROW
#undef MSGL_T_DECLARE
#undef MSGL_T_MADD
#undef MSGL_T_STORE
#undef MSGL_T_ADD
#undef MSGL_T_GATE
#undef MSGL_T_SHAPE
#undef MSGL_T_CASE
#undef MSGL_T
#undef MSGL_T_LOAD_W
#undef MSGL_T_SUBS
#undef MSGL_T_LINE
#undef MSGL_T_K
#undef MSGL_T_A
#undef MSGL_T_GATED
