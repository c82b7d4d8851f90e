// SPDX-License-Identifier: Apache-2.0
//
// Weights onto the device, and rows of them as activations. Rows are copied by the pool's threads
// into pinned memory, from where the copy engine takes them while the next ones are copied; what
// has another dtype in the file is converted on the device.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <string.h>

#include "cuda/gemm/codes_row.h"
#include "cuda/gemm/expand.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/lt.cuh"
#include "cuda/gemm/quantize.h"

enum { PIECES_PER_THREAD = 4, BLOCK = 256 };

size_t msgl__cuda_packed_size(const msgl_wformat *f, int n, int k)
{
    size_t elements, bytes, padded;
    if (msgl__size_mul((size_t)n, (size_t)k, &elements) != 0 ||
        msgl__size_mul(elements, msgl__dtype_size(f->dtype), &bytes) != 0 ||
        msgl__size_add(bytes, 63, &padded) != 0) {
        return 0;
    }
    return padded / 64 * 64;
}

static __device__ float as_f32(float v)
{
    return v;
}
static __device__ float as_f32(__half v)
{
    return __half2float(v);
}
static __device__ float as_f32(__nv_bfloat16 v)
{
    return __bfloat162float(v);
}

template <typename S, typename D> __global__ void convert(const S *src, D *dst, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x; i < n;
         i += (size_t)gridDim.x * BLOCK) {
        dst[i] = D(as_f32(src[i]));
    }
}

template <typename S>
static void convert_from(msgl_exec *x, const S *src, void *dst, msgl_dtype type, size_t n)
{
    const int blocks = 8 * msgl__cuda_device(x)->sm_count;
    cudaStream_t stream = msgl__cuda_stream(x);
    if (type == MSGL_F32) convert<<<blocks, BLOCK, 0, stream>>>(src, (float *)dst, n);
    if (type == MSGL_F16) convert<<<blocks, BLOCK, 0, stream>>>(src, (__half *)dst, n);
    if (type == MSGL_BF16) convert<<<blocks, BLOCK, 0, stream>>>(src, (__nv_bfloat16 *)dst, n);
    MSGL_CUDA_LAUNCHED(x);
}

// --- the staging ring ---------------------------------------------------------------------------

// Writes share `task` of `tasks` of a slot.
typedef void (*fill_fn)(const void *what, char *slot, int task, int tasks);

struct stage_job {
    fill_fn fill;
    const void *what;
    char *slot;
    int tasks;
};

static void stage_task(void *arg, int task, int worker)
{
    const stage_job *j = (const stage_job *)arg;
    (void)worker;
    j->fill(j->what, j->slot, task, j->tasks);
}

static bool open_staging(msgl_exec *x, msgl_gemm_staging *s)
{
    if (s->memory[0] != NULL) return true;
    for (int i = 0; i < MSGL_GEMM_STAGES; i++) {
        // Cached: rows of codes are written in pieces, and pieces of a line that are not written
        // one behind the other each go to memory by themselves where writes are combined.
        MSGL_CUDA_TRY(x, cudaHostAlloc(&s->memory[i], MSGL_GEMM_STAGE_BYTES, cudaHostAllocDefault));
        MSGL_CUDA_TRY(x, cudaEventCreateWithFlags(&s->taken[i], cudaEventDisableTiming));
    }
    return x->status == 0;
}

// Shares of what may be cut anywhere.
static int pieces(const msgl_exec *x)
{
    return x->pool != NULL ? PIECES_PER_THREAD * msgl__pool_threads(x->pool) : 1;
}

// Fills the ring's next slot, once it was taken, on the pool's threads, in `tasks` shares; the copy
// engine takes `bytes` of it to `landing`, device memory, meanwhile and behind that.
static void stage(msgl_exec *x, fill_fn fill, const void *what, int tasks, void *landing,
                  size_t bytes)
{
    msgl_gemm_staging *s = &msgl__cuda_device(x)->blas->staging;
    if (x->status != 0 || !open_staging(x, s)) return;
    const int i = s->next++ % MSGL_GEMM_STAGES;
    stage_job j = {fill, what, (char *)s->memory[i], tasks};
    MSGL_CUDA_TRY(x, cudaEventSynchronize(s->taken[i]));
    if (x->status != 0) return;
    if (x->pool != NULL) {
        msgl__pool_run(x->pool, tasks, stage_task, &j);
    } else {
        for (int t = 0; t < tasks; t++) stage_task(&j, t, 0);
    }
    cudaStream_t stream = msgl__cuda_stream(x);
    MSGL_CUDA_TRY(x, cudaMemcpyAsync(landing, j.slot, bytes, cudaMemcpyHostToDevice, stream));
    MSGL_CUDA_TRY(x, cudaEventRecord(s->taken[i], stream));
}

// --- values -------------------------------------------------------------------------------------

// Rows [0, rows) of row_bytes, stride bytes apart, which are dense in the slot.
struct piece {
    const char *src;
    size_t rows, row_bytes, stride;
};

static void copy_piece(const void *what, char *slot, int task, int tasks)
{
    const piece *p = (const piece *)what;
    const size_t total = p->rows * p->row_bytes;
    size_t at = total * (size_t)task / (size_t)tasks;
    const size_t end = total * (size_t)(task + 1) / (size_t)tasks;
    while (at < end) {
        const size_t row = at / p->row_bytes, column = at % p->row_bytes;
        const bool dense = p->stride == p->row_bytes;
        size_t bytes = dense ? end - at : p->row_bytes - column;
        if (bytes > end - at) bytes = end - at;
        memcpy(slot + at, p->src + row * p->stride + column, bytes);
        at += bytes;
    }
}

// n values of src_dtype in `landing` to those of dtype in `dst`, both on the device.
static void convert_to(msgl_exec *x, msgl_dtype src_dtype, const void *landing, void *dst,
                       msgl_dtype dtype, size_t n)
{
    if (src_dtype == MSGL_F32) convert_from(x, (const float *)landing, dst, dtype, n);
    if (src_dtype == MSGL_F16) convert_from(x, (const __half *)landing, dst, dtype, n);
    if (src_dtype == MSGL_BF16) convert_from(x, (const __nv_bfloat16 *)landing, dst, dtype, n);
}

void msgl__cuda_pack(msgl_exec *x, msgl_weight *w, int row, int rows, const void *src,
                     msgl_dtype src_dtype, size_t ld_src)
{
    const size_t k = (size_t)w->k, size = msgl__dtype_size(src_dtype);
    const bool same = src_dtype == w->format->dtype;
    const bool codes = w->format->blocks != NULL; // whose rows are msgl__cuda_quantize's to find
    const size_t dst_size = codes ? 0 : msgl__dtype_size(w->format->dtype);
    void *const workspace = msgl__cuda_device(x)->blas->workspace;
    if (rows <= 0 || k == 0) return;
    // Whole rows, or parts of one: as many columns, whole groups, as fit in every dtype.
    const size_t most = MSGL_GEMM_STAGE_BYTES / sizeof(float), per_row = (k + most - 1) / most;
    const size_t step = per_row > 1 ? 1 : MSGL_GEMM_STAGE_BYTES / (k * size);
    for (size_t r = 0; r < (size_t)rows && x->status == 0; r += step) {
        for (size_t part = 0; part < per_row && x->status == 0; part++) {
            const size_t from = part * most, columns = from + most < k ? most : k - from;
            const size_t some = (size_t)rows - r < step ? (size_t)rows - r : step;
            const piece p = {(const char *)src + (r * ld_src + from) * size, some, columns * size,
                             ld_src * size};
            char *const dst = (char *)w->data + (((size_t)row + r) * k + from) * dst_size;
            void *const landing = same ? dst : workspace;
            stage(x, copy_piece, &p, pieces(x), landing, some * p.row_bytes);
            if (x->status != 0 || same) continue;
            if (codes) {
                msgl__cuda_quantize(x, w, (size_t)row + r, some, from, columns, landing, src_dtype);
            } else {
                convert_to(x, src_dtype, landing, dst, w->format->dtype, some * columns);
            }
        }
    }
}

// --- codes -------------------------------------------------------------------------------------

static size_t codes_packed_size(const msgl_wformat *f, int n, int k)
{
    msgl_codes_row l;
    size_t bytes, padded;
    const size_t order = f->order != NULL ? (size_t)f->order->num * sizeof(int32_t) : 0;
    if (n < 1 || !msgl__codes_row_of(f->blocks, msgl__codes_row_places(f, k), &l) ||
        msgl__size_mul((size_t)n, l.codes + l.scales, &bytes) != 0 ||
        msgl__size_add(bytes, order + 63 + 16, &padded) != 0) {
        return 0;
    }
    // Without an order the 16 bytes in front of one are not there either.
    return (f->order != NULL ? padded : bytes + 63) / 64 * 64;
}

static void copy_order(const void *what, char *slot, int task, int tasks)
{
    const msgl_column_order *order = (const msgl_column_order *)what;
    (void)task, (void)tasks;
    memcpy(slot, order->columns, (size_t)order->num * sizeof order->columns[0]);
}

// A file's rows, ld_src bytes apart, which are laid out in the slot.
struct codes_piece {
    const msgl_codes_row *layout;
    const msgl_blocks *blocks;
    const uint8_t *src;
    size_t ld_src, rows;
};

static void lay_out_piece(const void *what, char *slot, int task, int tasks)
{
    const codes_piece *p = (const codes_piece *)what;
    const size_t end = p->rows * (size_t)(task + 1) / (size_t)tasks;
    for (size_t r = p->rows * (size_t)task / (size_t)tasks; r < end; r++) {
        msgl__codes_row_put(p->layout, p->blocks, p->src + r * p->ld_src,
                            (uint8_t *)slot + r * p->layout->bytes);
    }
}

// Rows by themselves, a block each, to rows `row` and up of a weight of n.
static __global__ void __launch_bounds__(BLOCK)
    settle_rows(const uint8_t *rows, const __grid_constant__ msgl_codes_row l, uint8_t *w, int n,
                int row)
{
    const uint8_t *const from = rows + (size_t)blockIdx.x * l.bytes;
    const size_t r = (size_t)row + blockIdx.x;
    uint4 *const codes = (uint4 *)(w + r * l.codes);
    uint8_t *const scales = w + (size_t)n * l.codes;
    for (uint32_t i = threadIdx.x; i < l.codes / 16; i += BLOCK)
        codes[i] = ((const uint4 *)from)[i];
    for (uint32_t i = threadIdx.x; i < l.scales; i += BLOCK) {
        scales[msgl__codes_row_place(&l, (size_t)n, r, i)] = from[l.codes + i];
    }
}

// Rows of parts from `first` on.
struct parts_piece {
    const msgl_codes_row *layout;
    const msgl_part_rows *src;
    size_t first, rows;
};

static void lay_out_parts(const void *what, char *slot, int task, int tasks)
{
    const parts_piece *p = (const parts_piece *)what;
    (void)tasks;
    msgl__codes_rows_put(p->layout, p->src, p->first, p->rows, task, (uint8_t *)slot);
}

// The layout of w's rows. Those from the first one on bring the columns' order with them, which is
// behind all rows, once.
static bool begin_codes(msgl_exec *x, const msgl_weight *w, int row, msgl_codes_row *l)
{
    const msgl_column_order *order = w->format->order;
    if (!msgl__codes_row_of(w->format->blocks, msgl__codes_row_places(w->format, w->k), l)) {
        x->status = MSGL_EUNSUPPORTED;
        return false;
    }
    if (order != NULL && row == 0) {
        stage(x, copy_order, order, 1, (uint8_t *)w->data + msgl__codes_rows_bytes(l, (size_t)w->n),
              (size_t)order->num * sizeof order->columns[0]);
    }
    return x->status == 0;
}

// Rows [row, row + rows) of w, which the tasks write to a slot by themselves.
static void settle(msgl_exec *x, const msgl_weight *w, const msgl_codes_row *l, int row,
                   size_t rows, fill_fn fill, const void *what, int tasks)
{
    uint8_t *const landing = (uint8_t *)msgl__cuda_device(x)->blas->workspace;
    stage(x, fill, what, tasks, landing, rows * l->bytes);
    if (x->status != 0) return;
    settle_rows<<<(unsigned)rows, BLOCK, 0, msgl__cuda_stream(x)>>>(landing, *l, (uint8_t *)w->data,
                                                                    w->n, row);
    MSGL_CUDA_LAUNCHED(x);
}

static void repack_codes(msgl_exec *x, msgl_weight *w, int row, int rows, const uint8_t *src,
                         size_t ld_src)
{
    msgl_codes_row l;
    if (!begin_codes(x, w, row, &l)) return;
    const size_t step = MSGL_GEMM_STAGE_BYTES / l.bytes;
    for (size_t r = 0; r < (size_t)rows && x->status == 0; r += step) {
        const size_t some = (size_t)rows - r < step ? (size_t)rows - r : step;
        const codes_piece p = {&l, w->format->blocks, src + r * ld_src, ld_src, some};
        settle(x, w, &l, row + (int)r, some, lay_out_piece, &p, pieces(x));
    }
}

static void repack_parts(msgl_exec *x, msgl_weight *w, int row, int rows, const msgl_part_rows *src)
{
    msgl_codes_row l;
    if (!begin_codes(x, w, row, &l)) return;
    size_t step = MSGL_GEMM_STAGE_BYTES / l.bytes;
    if (step > MSGL_TASK_ROWS) step -= step % MSGL_TASK_ROWS;
    for (size_t r = 0; r < (size_t)rows && x->status == 0; r += step) {
        const size_t some = (size_t)rows - r < step ? (size_t)rows - r : step;
        const parts_piece p = {&l, src, r, some};
        settle(x, w, &l, row + (int)r, some, lay_out_parts, &p,
               msgl__stored_tasks(some, (size_t)l.k));
    }
}

bool msgl__cuda_keep(const msgl_blocks *b, int k, bool exact, msgl_wformat *out)
{
    msgl_codes_row l;
    (void)exact; // products are made of the values in any case
    if (!msgl__codes_row_of(b, k, &l) || l.bytes > MSGL_GEMM_STAGE_BYTES) return false;
    *out = {};
    out->name = b->name;
    out->id = MSGL_W_CODES;
    out->dtype = MSGL_DTYPE_COUNT;
    out->group = b->codes->group;
    out->packed_size = codes_packed_size;
    out->gather = msgl__cuda_codes_gather;
    out->blocks = b;
    out->repack = repack_codes;
    if (b->codes->split == NULL) out->repack_parts = repack_parts;
    return true;
}

// --- rows that are looked up -------------------------------------------------------------------

// Of the whole matrix w has rows [first, first + n); the others are zeros here.
struct gathered_rows {
    const int32_t *ids;
    int first, n;
};

// -1: not among them.
__device__ __forceinline__ int row_of(const gathered_rows &r)
{
    const int row = r.ids[blockIdx.x] - r.first;
    return (unsigned)row < (unsigned)r.n ? row : -1;
}

// One block per row; 16 bytes per access where the row allows it.
template <typename S, typename D>
__global__ void gather_rows(const S *w, const gathered_rows r, int k, D *out)
{
    const int row = row_of(r);
    const S *src = w + (size_t)max(row, 0) * (size_t)k;
    D *dst = out + (size_t)blockIdx.x * (size_t)k;
    for (int i = threadIdx.x; i < k; i += blockDim.x) dst[i] = D(row >= 0 ? as_f32(src[i]) : 0.0f);
}

// Launched without programmatic dependence, where ops/embed.cu leaves the work to it: the layers
// behind it may read what the step's first kernels wrote (the page table) without waiting for those
// themselves.
__global__ void gather_16(const uint4 *w, const gathered_rows r, int row16, uint4 *out)
{
    const int row = row_of(r);
    const uint4 *src = w + (size_t)max(row, 0) * (size_t)row16;
    uint4 *dst = out + (size_t)blockIdx.x * (size_t)row16;
    for (int i = threadIdx.x; i < row16; i += blockDim.x) dst[i] = row >= 0 ? src[i] : uint4();
}

template <typename S>
static void gather_as(msgl_exec *x, const S *w, const gathered_rows &r, int rows, int k, void *out)
{
    cudaStream_t stream = msgl__cuda_stream(x);
    if (x->act == MSGL_F32) {
        gather_rows<<<rows, BLOCK, 0, stream>>>(w, r, k, (float *)out);
    } else if (x->act == MSGL_F16) {
        gather_rows<<<rows, BLOCK, 0, stream>>>(w, r, k, (__half *)out);
    } else {
        gather_rows<<<rows, BLOCK, 0, stream>>>(w, r, k, (__nv_bfloat16 *)out);
    }
}

void msgl__cuda_gemm_gather(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows,
                            void *out)
{
    const size_t row_bytes = (size_t)w->k * msgl__dtype_size(w->format->dtype);
    const gathered_rows r = {ids, w->first, w->n};
    if (rows <= 0 || x->status != 0) return;
    if (w->format->dtype == x->act && row_bytes % 16 == 0) {
        const int row16 = (int)(row_bytes / 16),
                  threads = row16 < 512 ? (row16 + 31) / 32 * 32 : 512;
        gather_16<<<rows, threads, 0, msgl__cuda_stream(x)>>>((const uint4 *)w->data, r, row16,
                                                              (uint4 *)out);
    } else if (w->format->dtype == MSGL_F32) {
        gather_as(x, (const float *)w->data, r, rows, w->k, out);
    } else if (w->format->dtype == MSGL_F16) {
        gather_as(x, (const __half *)w->data, r, rows, w->k, out);
    } else {
        gather_as(x, (const __nv_bfloat16 *)w->data, r, rows, w->k, out);
    }
    MSGL_CUDA_LAUNCHED(x);
}

// In the order of msgl_wformat_id. What is missing cannot be planned on a GPU. What is quantised is
// codes as a file's are.
const msgl_wformat msgl__cuda_formats[MSGL_WFORMATS] = {
    {MSGL_WFORMAT_F32, msgl__cuda_packed_size, msgl__cuda_pack, msgl__cuda_gemm_gather},
    {MSGL_WFORMAT_F16, msgl__cuda_packed_size, msgl__cuda_pack, msgl__cuda_gemm_gather},
    {MSGL_WFORMAT_BF16, msgl__cuda_packed_size, msgl__cuda_pack, msgl__cuda_gemm_gather},
    {MSGL_WFORMAT_INT8(MSGL_W_CODES), codes_packed_size, msgl__cuda_pack, msgl__cuda_codes_gather,
     &msgl__int8_blocks},
    {MSGL_WFORMAT_Q4(MSGL_W_CODES), codes_packed_size, msgl__cuda_pack, msgl__cuda_codes_gather,
     &msgl__blocks_q4_0},
};
