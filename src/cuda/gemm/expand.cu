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
    INT8_GROUP = MSGL_INT8_GROUP,
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

// The weight's rows of this block, and the eight columns of the thread; false: there are none.
struct place {
    const uint8_t *w;
    uint32_t row, eight;
};

static __device__ __forceinline__ bool find_place(const expand_args &a, uint32_t eights, place *p)
{
    const uint32_t unit = blockIdx.x * THREADS + threadIdx.x;
    const bool idle = a.offsets != NULL && a.offsets[blockIdx.y] == a.offsets[blockIdx.y + 1];
    p->w = a.w + (ptrdiff_t)blockIdx.y * a.stride;
    p->row = unit / eights;
    p->eight = unit % eights;
    return !idle && p->row < (uint32_t)a.rows;
}

// Places [8 eight, 8 eight + 8) of a row to where their columns are, which is there where columns
// is NULL. Example: with columns 3 and -1 in places 8 and 9, the value of place 8 is row[3], and
// that of place 9 nothing's.
template <typename T>
static __device__ __forceinline__ void put_places(T *row, const int32_t *columns, uint32_t eight,
                                                  const float v[8])
{
    if (columns == NULL) {
        store8(row + 8 * eight, v);
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
    if (!find_place(a, eights, &p)) return;
    float v[8];
    const uint32_t r = (uint32_t)of.row + p.row;
    msgl__codes_row_eight(&l, book, BITS, p.w + (size_t)r * l.codes, p.w + (size_t)of.n * l.codes,
                          (uint32_t)of.n, r, p.eight, v);
    T *const out = (T *)a.out + blockIdx.y * a.out_stride;
    put_places(out + (size_t)p.row * (size_t)a.k, of.columns, p.eight, v);
}

// Columns [first, first + 8) of a row of k, those of them that it has.
template <typename T>
static __device__ __forceinline__ void put_eight(T *row, int first, int k, const float v[8])
{
    if (k % 8 == 0) {
        store8(row + first, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (first + i < k) row[first + i] = from_f32<T>(v[i]);
    }
}

// values: q + 128, groups * INT8_GROUP a row; scales of the same rows are scales_at bytes behind
// the first one's.
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    expand_int8(const expand_args a, ptrdiff_t scales_at, int k, int groups)
{
    place p;
    if (!find_place(a, (uint32_t)(k + 7) / 8, &p)) return;
    const int first = 8 * (int)p.eight;
    const size_t row = (size_t)p.row * (size_t)groups;
    const uint2 codes = *(const uint2 *)(p.w + row * INT8_GROUP + first);
    const float scale = ((const float *)(p.w + scales_at))[row + (size_t)(first / INT8_GROUP)];
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t code = (i < 4 ? codes.x : codes.y) >> 8 * (i % 4) & 0xff;
        v[i] = scale * (float)((int)code - 128);
    }
    put_eight((T *)a.out + blockIdx.y * a.out_stride + (size_t)p.row * (size_t)k, first, k, v);
}

// What is in the activations' dtype beside other rows.
template <typename T>
static __global__ void __launch_bounds__(THREADS) copy_plain(const expand_args a, int k)
{
    place p;
    if (!find_place(a, (uint32_t)(k + 7) / 8, &p)) return;
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
        put_places(to, columns, eight, v);
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

static dim3 grid_of(const expand_args &a, int k, int32_t num)
{
    const size_t units = (size_t)a.rows * (size_t)((k + 7) / 8);
    return dim3((unsigned)((units + THREADS - 1) / THREADS), (unsigned)num);
}

template <typename T, int BITS>
static void launch_bits(msgl_exec *x, const expand_args &a, const msgl_codes_row &l,
                        const coded_rows &of, int32_t num)
{
    MSGL_CUDA_TRY(x, msgl__launch_in_order(expand_codes<T, BITS>, grid_of(a, l.k, num),
                                           dim3(THREADS), 0, msgl__cuda_stream(x), a, l, of));
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
static void launch_int8(msgl_exec *x, const expand_args &a, ptrdiff_t scales_at, int k, int32_t num)
{
    const int groups = (k + INT8_GROUP - 1) / INT8_GROUP;
    MSGL_CUDA_TRY(x, msgl__launch_in_order(expand_int8<T>, grid_of(a, k, num), dim3(THREADS), 0,
                                           msgl__cuda_stream(x), a, scales_at, k, groups));
}

template <typename T>
static void launch_copy(msgl_exec *x, const expand_args &a, int k, int32_t num)
{
    MSGL_CUDA_TRY(x, msgl__launch_in_order(copy_plain<T>, grid_of(a, k, num), dim3(THREADS), 0,
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
    } else if (w->format->id == MSGL_W_INT8) {
        const size_t groups = (k + INT8_GROUP - 1) / INT8_GROUP, at = (size_t)row * groups;
        const size_t scales = (size_t)w->n * groups * INT8_GROUP + at * sizeof(float);
        a.w = data + at * INT8_GROUP;
        MSGL_BY_DTYPE(x->act, launch_int8, x, a, (ptrdiff_t)(scales - at * INT8_GROUP), w->k, num);
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
