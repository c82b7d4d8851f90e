// SPDX-License-Identifier: Apache-2.0
//
// A thread makes eight neighbours of a row: reads of a warp are next to each other, and so are its
// writes, which are most of the traffic. Launched in the stream's order: scratch may still be read
// by the kernel in front.
#include "cuda/gemm/expand.h"

#include "cuda/device.cuh"
#include "cuda/gemm/codes_row.h"
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"

enum {
    THREADS = 256,
    SLAB_BYTES = 64 << 20, // products of fewer rows would not fill a GPU
    SLAB_ROWS = 128,       // and no fewer than these, however long they are
};

// `rows` rows of each of gridDim.y weights that lie `stride` bytes apart.
struct expand_args {
    const uint8_t *w; // the first one's first row; of codes, the first one
    ptrdiff_t stride;
    int rows;
    const int32_t *offsets; // as in msgl_expand_call
    void *out;
    size_t out_stride; // elements
    int k;             // elements of a row of out
};

// The weight's rows of this block, and the eight columns of the thread in `rows` rows from p->row
// on; false: there are none.
struct place {
    const uint8_t *w;
    uint32_t row, eight;
};

static __device__ __forceinline__ bool find_place(const expand_args &a, uint32_t eights,
                                                  uint32_t rows, place *p)
{
    const uint32_t unit = blockIdx.x * THREADS + threadIdx.x;
    const bool idle = a.offsets != NULL && a.offsets[blockIdx.y] == a.offsets[blockIdx.y + 1];
    p->w = a.w + (ptrdiff_t)blockIdx.y * a.stride;
    p->row = unit / eights * rows;
    p->eight = unit % eights;
    return !idle && p->row < (uint32_t)a.rows;
}

// Columns [first, first + 8) of a row of k, those of them that it has.
template <typename T>
static __device__ __forceinline__ void put_eight(T *row, int first, int k, const float v[8])
{
    if (k % 8 == 0) {
        if (first < k) store8(row + first, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (first + i < k) row[first + i] = from_f32<T>(v[i]);
    }
}

// Places [8 eight, 8 eight + 8) of a row to where their columns are, which is there where columns
// is NULL; those beyond the row's k are left out. Example: with columns 3 and -1 in places 8 and 9,
// the value of place 8 is row[3], and that of place 9 nothing's.
template <typename T>
static __device__ __forceinline__ void put_places(T *row, const int32_t *columns, uint32_t eight,
                                                  int k, const float v[8])
{
    if (columns == NULL) {
        put_eight(row, 8 * (int)eight, k, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int32_t column = columns[8 * eight + i];
        if (column >= 0) row[column] = from_f32<T>(v[i]);
    }
}

// Codes of weights with n rows, of which rows `row` and up are expanded.
struct coded_rows {
    const int32_t *columns; // of the places, or NULL
    int n, row;
};

template <typename T, int BITS>
static __global__ void __launch_bounds__(THREADS)
    expand_codes(const expand_args a, const __grid_constant__ msgl_codes_row l, const coded_rows of)
{
    __shared__ float book[16];
    const uint32_t eights = (uint32_t)l.k / 8;
    if (threadIdx.x < 16) book[threadIdx.x] = l.book[threadIdx.x];
    __syncthreads();
    place p;
    if (!find_place(a, eights, 1, &p)) return;
    float v[8];
    const uint32_t r = (uint32_t)of.row + p.row;
    msgl__codes_row_eight(&l, book, BITS, p.w + (size_t)r * l.codes, p.w + (size_t)of.n * l.codes,
                          (uint32_t)of.n, r, p.eight, v);
    T *const out = (T *)a.out + blockIdx.y * a.out_stride;
    put_places(out + (size_t)p.row * (size_t)a.k, of.columns, p.eight, a.k, v);
}

// Integers are most of what is expanded. The steps of msgl__codes_row_value as the same ones for
// every form, each exact where a form does not have it: ((code + add) scale + behind) last.
struct integer_steps {
    float add, scale, behind, last;
};

static __device__ __forceinline__ integer_steps steps_of(const msgl_codes_row &l,
                                                         const uint8_t *scales, uint32_t n,
                                                         uint32_t r, uint32_t column)
{
    integer_steps s = {(float)-l.zero, 0, -0.0f, l.factor_last ? l.factor : 1.0f};
    float offset;
    msgl__codes_row_scale(&l, scales, n, r, column, &s.scale, &offset);
    if (l.offset == MSGL_OFFSET_NONE) return s;
    s.last = 1;
    if (l.offset == MSGL_OFFSET_ZERO) s.add -= offset;
    if (l.offset == MSGL_OFFSET_MIN) s.add = 0, s.behind = offset;
    if (l.offset == MSGL_OFFSET_FLOAT) s.add = -offset;
    return s;
}

// The codes of eight columns by pairs, the first of a pair in the lower half.
template <int BITS>
static __device__ __forceinline__ void load_pairs(const msgl_codes_row &l, const uint8_t *codes,
                                                  uint32_t eight, uint32_t (&pairs)[4])
{
    const uint32_t part = eight / 4, q = eight % 4;
    if (BITS == 8) {
        const uint32_t *const w = (const uint32_t *)(codes + part * 32) + q / 2;
#pragma unroll
        for (int t = 0; t < 4; t++) pairs[t] = w[2 * t] >> q % 2 * 8 & 0x00ff00ff;
        return;
    }
    const uint4 w = *(const uint4 *)(codes + part * 16);
    const uint32_t low[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int t = 0; t < 4; t++) pairs[t] = low[t] >> 4 * q & 0x000f000f;
    if (BITS == 5) { // a byte of a pair: bit q of the first, 4 + q of the second
        const uint32_t h = *(const uint32_t *)(codes + l.upper + part * 4) >> q;
#pragma unroll
        for (int t = 0; t < 4; t++) {
            pairs[t] |= (h >> 8 * t & 1) << 4 | (h >> (8 * t + 4) & 1) << 20;
        }
    } else if (BITS == 6) { // two bytes of a pair: bits 2 q of the first, 8 + 2 q of the second
        const uint2 h = *(const uint2 *)(codes + l.upper + part * 8);
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const uint32_t v = (t < 2 ? h.x : h.y) >> (16 * (t % 2) + 2 * q);
            pairs[t] |= (v & 3) << 4 | (v & 0x300) << 12;
        }
    }
}

// As expand_codes, of integers of 4 bits and more whose columns are in their order: a thread makes
// eight columns of several rows.
enum { INTEGER_ROWS = 4 };
template <typename T, int BITS>
static __global__ void __launch_bounds__(THREADS)
    expand_integers(const expand_args a, const __grid_constant__ msgl_codes_row l,
                    const coded_rows of)
{
    const uint32_t eights = (uint32_t)l.k / 8, rows = (uint32_t)a.rows;
    place p;
    if (!find_place(a, eights, INTEGER_ROWS, &p)) return;
    const uint8_t *const scales = p.w + (size_t)of.n * l.codes;
    T *const out = (T *)a.out + blockIdx.y * a.out_stride + (size_t)p.row * (size_t)a.k;
    uint32_t pairs[INTEGER_ROWS][4];
#pragma unroll
    for (uint32_t i = 0; i < INTEGER_ROWS; i++) {
        const uint32_t row = p.row + i < rows ? p.row + i : p.row;
        load_pairs<BITS>(l, p.w + (size_t)((uint32_t)of.row + row) * l.codes, p.eight, pairs[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < INTEGER_ROWS; i++) {
        if (p.row + i >= rows) return;
        const uint32_t r = (uint32_t)of.row + p.row + i;
        const integer_steps s = steps_of(l, scales, (uint32_t)of.n, r, 8 * p.eight);
        float v[8];
#pragma unroll
        for (int c = 0; c < 8; c++) {
            // The lowest bits of 2^23 are ones.
            const uint32_t code = c % 2 == 0 ? pairs[i][c / 2] & 0xffff : pairs[i][c / 2] >> 16;
            const float q = MSGL_ADD(msgl__codes_row_float(code | 0x4b000000), -0x1p23f);
            const float product = MSGL_MUL(s.scale, MSGL_ADD(q, s.add));
            v[c] = MSGL_MUL(MSGL_ADD(product, s.behind), s.last);
        }
        put_eight(out + (size_t)i * (size_t)a.k, 8 * (int)p.eight, a.k, v);
    }
}

// What is in the activations' dtype beside other rows.
template <typename T>
static __global__ void __launch_bounds__(THREADS) copy_plain(const expand_args a, int k)
{
    place p;
    if (!find_place(a, (uint32_t)(k + 7) / 8, 1, &p)) return;
    const int first = 8 * (int)p.eight;
    const T *const row = (const T *)p.w + (size_t)p.row * (size_t)k;
    float v[8];
    if (k % 8 == 0) {
        load8(row + first, v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = first + i < k ? to_f32(row[first + i]) : 0.0f;
    }
    put_eight((T *)a.out + blockIdx.y * a.out_stride + (size_t)p.row * (size_t)k, first, k, v);
}

// A block for each row that is looked up.
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    gather_codes(const uint8_t *w, const __grid_constant__ msgl_codes_row l, const int32_t *columns,
                 const int32_t *ids, int first, int n, int k, T *out)
{
    __shared__ float book[16];
    if (threadIdx.x < 16) book[threadIdx.x] = l.book[threadIdx.x];
    __syncthreads();
    const int id = ids[blockIdx.x] - first;
    const bool there = (unsigned)id < (unsigned)n;
    const uint32_t row = there ? (uint32_t)id : 0;
    const uint8_t *const codes = w + (size_t)row * l.codes, *const scales = w + (size_t)n * l.codes;
    T *const to = out + (size_t)blockIdx.x * (size_t)k;
    for (uint32_t eight = threadIdx.x; eight < (uint32_t)l.k / 8; eight += THREADS) {
        float v[8] = {};
        if (there) {
            msgl__codes_row_eight(&l, book, l.bits, codes, scales, (uint32_t)n, row, eight, v);
        }
        put_places(to, columns, eight, k, v);
    }
}

// --- host ---------------------------------------------------------------------------------------

int32_t msgl__cuda_slab_rows(int k, msgl_dtype act)
{
    const size_t rows = SLAB_BYTES / ((size_t)k * msgl__dtype_size(act));
    return rows < SLAB_ROWS ? SLAB_ROWS : (int32_t)(rows / SLAB_ROWS * SLAB_ROWS);
}

size_t msgl__cuda_slab_bytes(size_t rows, int k, msgl_dtype act)
{
    const size_t most = (size_t)msgl__cuda_slab_rows(k, act);
    return (rows < most ? rows : most) * (size_t)k * msgl__dtype_size(act) + 64;
}

static const msgl_weight *part_of(const msgl_weight *w, int i)
{
    return w->num_parts > 0 ? &w->parts[i] : w;
}

static int parts_of(const msgl_weight *w)
{
    return w->num_parts > 0 ? w->num_parts : 1;
}

static ptrdiff_t distance(const msgl_weight *a, const msgl_weight *b, int part)
{
    return (const char *)part_of(b, part)->data - (const char *)part_of(a, part)->data;
}

// How many weights from w on, of `num`, are in the same formats and lie at equal distances: one
// launch expands them all.
static int32_t alike(const msgl_weight *w, int32_t num)
{
    int32_t run = 1;
    for (; run < num; run++) {
        if (w[run].num_parts != w->num_parts) return run;
        for (int i = 0; i < parts_of(w); i++) {
            const msgl_weight *a = part_of(w, i), *b = part_of(&w[run], i);
            if (a->format != b->format || a->n != b->n ||
                distance(&w[run - 1], &w[run], i) != distance(&w[0], &w[1], i)) {
                return run;
            }
        }
    }
    return run;
}

// rows: of a thread.
static dim3 grid_of(const expand_args &a, int k, int rows, int32_t num)
{
    const size_t units = (size_t)((a.rows + rows - 1) / rows) * (size_t)((k + 7) / 8);
    return dim3((unsigned)((units + THREADS - 1) / THREADS), (unsigned)num);
}

template <typename T, int BITS>
static void launch_bits(msgl_exec *x, const expand_args &a, const msgl_codes_row &l,
                        const coded_rows &of, int32_t num)
{
    const cudaStream_t stream = msgl__cuda_stream(x);
    if constexpr (BITS >= 4) {
        if (!l.looked_up && !l.e4m3 && of.columns == NULL) {
            MSGL_CUDA_TRY(x, msgl__launch_in_order(expand_integers<T, BITS>,
                                                   grid_of(a, l.k, INTEGER_ROWS, num),
                                                   dim3(THREADS), 0, stream, a, l, of));
            return;
        }
    }
    MSGL_CUDA_TRY(x, msgl__launch_in_order(expand_codes<T, BITS>, grid_of(a, l.k, 1, num),
                                           dim3(THREADS), 0, stream, a, l, of));
}

template <typename T>
static void launch_codes(msgl_exec *x, const expand_args &a, const msgl_codes_row &l,
                         const coded_rows &of, int32_t num)
{
    switch (l.bits) {
    case 2: launch_bits<T, 2>(x, a, l, of, num); break;
    case 3: launch_bits<T, 3>(x, a, l, of, num); break;
    case 4: launch_bits<T, 4>(x, a, l, of, num); break;
    case 5: launch_bits<T, 5>(x, a, l, of, num); break;
    case 6: launch_bits<T, 6>(x, a, l, of, num); break;
    default: launch_bits<T, 8>(x, a, l, of, num);
    }
}

// The layout of the weight's rows, and the columns of their places, in device memory or NULL.
static bool layout_of(const msgl_weight *w, msgl_codes_row *l, const int32_t **columns)
{
    const int places = msgl__codes_row_places(w->format, w->k);
    if (!msgl__codes_row_of(w->format->blocks, places, l)) return false;
    const uint8_t *const behind =
        (const uint8_t *)w->data + msgl__codes_rows_bytes(l, (size_t)w->n);
    *columns = w->format->order != NULL ? (const int32_t *)behind : NULL;
    return true;
}

template <typename T>
static void launch_copy(msgl_exec *x, const expand_args &a, int k, int32_t num)
{
    MSGL_CUDA_TRY(x, msgl__launch_in_order(copy_plain<T>, grid_of(a, k, 1, num), dim3(THREADS), 0,
                                           msgl__cuda_stream(x), a, k));
}

// Of weights whose first is w, which may be a part: rows from `row` on.
static void expand_rows(msgl_exec *x, const msgl_weight *w, int32_t row, expand_args a, int32_t num)
{
    const size_t k = (size_t)w->k;
    const uint8_t *const data = (const uint8_t *)w->data;
    msgl_codes_row l;
    const int32_t *columns;
    a.k = w->k;
    if (msgl__weight_is(w, x->act)) {
        a.w = data + (size_t)row * k * msgl__dtype_size(x->act);
        MSGL_BY_DTYPE(x->act, launch_copy, x, a, w->k, num);
    } else if (w->format->id == MSGL_W_CODES && layout_of(w, &l, &columns)) {
        const coded_rows of = {columns, w->n, row};
        a.w = data;
        MSGL_BY_DTYPE(x->act, launch_codes, x, a, l, of, num);
    } else {
        x->status = MSGL_EUNSUPPORTED;
    }
}

void msgl__cuda_expand(msgl_exec *x, const msgl_expand_call *c)
{
    const size_t size = msgl__dtype_size(x->act), k = (size_t)c->w->k;
    for (int32_t e = 0, run; e < c->num && x->status == 0; e += run) {
        const msgl_weight *w = &c->w[e];
        run = alike(w, c->num - e);
        char *out = (char *)c->out + (size_t)e * c->out_stride * size;
        for (int i = 0, first = 0; i < parts_of(w); i++) { // rows in front of the part
            const msgl_weight *part = part_of(w, i);
            const int32_t begin = c->row > first ? c->row - first : 0;
            const int32_t behind = c->row + c->rows - first;
            const int32_t end = behind < part->n ? behind : part->n;
            first += part->n;
            if (begin >= end || x->status != 0) continue;
            const expand_args a = {.w = NULL,
                                   .stride = run > 1 ? distance(&w[0], &w[1], i) : 0,
                                   .rows = end - begin,
                                   .offsets = c->offsets != NULL ? c->offsets + e : NULL,
                                   .out = out,
                                   .out_stride = c->out_stride,
                                   .k = 0};
            expand_rows(x, part, begin, a, run);
            out += (size_t)(end - begin) * k * size;
        }
    }
}

template <typename T>
static void launch_gather(msgl_exec *x, const msgl_weight *w, const msgl_codes_row &l,
                          const int32_t *columns, const int32_t *ids, int rows, void *out)
{
    MSGL_CUDA_TRY(x, msgl__launch_in_order(gather_codes<T>, dim3((unsigned)rows), dim3(THREADS), 0,
                                           msgl__cuda_stream(x), (const uint8_t *)w->data, l,
                                           columns, ids, w->first, w->n, w->k, (T *)out));
}

void msgl__cuda_codes_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                             void *out)
{
    msgl_codes_row l;
    if (rows <= 0 || x->status != 0) return;
    const int32_t *columns;
    if (!layout_of(w, &l, &columns)) {
        x->status = MSGL_EUNSUPPORTED;
        return;
    }
    MSGL_BY_DTYPE(x->act, launch_gather, x, w, l, columns, ids, rows, out);
}
