// SPDX-License-Identifier: Apache-2.0
//
// Weights for tests of what is expanded on a GPU: of codes, plain, and of parts of these, with the
// values that they stand for. Few rows are drawn, and come again further down.
#ifndef MSGL_TESTS_CUDA_CODES_CASE_CUH
#define MSGL_TESTS_CUDA_CODES_CASE_CUH

#include <algorithm>
#include <vector>

#include "cuda/gemm/codes_row.h"
#include "cuda/gemm/expand.h"
#include "cuda/gemm/gemm.h"
#include "tests/cuda/gate_case.cuh"
#include "tests/cuda/ops_check.cuh"
#include "tests/utils/code_forms.h"
#include "tests/utils/rounded.h"

// A format that stays where it is.
static inline msgl_wformat format_of_codes(const msgl_blocks *b)
{
    msgl_wformat f = {};
    f.name = b->name;
    f.id = MSGL_W_CODES;
    f.dtype = MSGL_DTYPE_COUNT;
    f.blocks = b;
    f.gather = msgl__cuda_codes_gather;
    return f;
}

// An order of k columns, shuffled, in runs of 32 places that are partly empty. The caller frees it.
static inline msgl_column_order *draw_order(int k, uint64_t *seed)
{
    std::vector<int32_t> columns((size_t)k), places;
    for (int i = 0; i < k; i++) columns[(size_t)i] = i;
    for (int i = k - 1; i > 0; i--) {
        std::swap(columns[(size_t)i], columns[rng_next(seed) % (uint64_t)(i + 1)]);
    }
    for (size_t at = 0; at < columns.size();) {
        const size_t most = std::min((size_t)32, columns.size() - at);
        const size_t some = 1 + (size_t)(rng_next(seed) % most);
        places.insert(places.end(), columns.begin() + (ptrdiff_t)at,
                      columns.begin() + (ptrdiff_t)(at + some));
        places.insert(places.end(), 32 - some, -1);
        at += some;
    }
    const size_t bytes = places.size() * sizeof(int32_t);
    msgl_column_order *order = (msgl_column_order *)malloc(sizeof *order + bytes);
    order->num = (int32_t)places.size();
    memcpy(order->columns, places.data(), bytes);
    return order;
}

static inline msgl_wformat format_of_dtype(msgl_dtype dtype)
{
    msgl_wformat f = {};
    f.id = (msgl_wformat_id)dtype;
    f.dtype = dtype;
    return f;
}

// Rows as the device holds them, and as values. Row r is drawn row r % drawn.
struct rows_of {
    const msgl_wformat *format;
    int n, k, drawn;
    std::vector<float> values;  // [drawn, k]
    std::vector<uint8_t> bytes; // of all n rows
    const float *row(int r) const
    {
        return values.data() + (size_t)(r % drawn) * (size_t)k;
    }
};

static inline void draw_codes(rows_of *m, uint64_t *seed)
{
    const msgl_blocks *b = m->format->blocks;
    const msgl_column_order *order = m->format->order;
    const int places = msgl__codes_row_places(m->format, m->k);
    msgl_codes_row l;
    if (!msgl__codes_row_of(b, places, &l)) {
        printf("%s: no rows of %d\n", b->name, places);
        exit(1);
    }
    std::vector<uint8_t> file((size_t)(places / b->elements) * (size_t)b->bytes), row(l.bytes);
    std::vector<float> values((size_t)places);
    const size_t n = (size_t)m->n, drawn = (size_t)m->drawn;
    m->bytes.resize(msgl__codes_rows_bytes(&l, n));
    uint8_t *const codes = m->bytes.data(), *const scales = codes + n * l.codes;
    for (size_t r = 0; r < drawn; r++) {
        code_row_draw(seed, b, places, file.data(), values.data());
        for (int i = 0; i < places; i++) {
            const int column = order != NULL ? order->columns[i] : i < m->k ? i : -1;
            if (column >= 0) m->values[r * (size_t)m->k + column] = values[(size_t)i];
        }
        msgl__codes_row_put(&l, b, file.data(), row.data());
        for (size_t to = r; to < n; to += drawn) {
            memcpy(codes + to * l.codes, row.data(), l.codes);
            for (uint32_t i = 0; i < l.scales; i++) {
                scales[msgl__codes_row_place(&l, n, to, i)] = row[l.codes + i];
            }
        }
    }
    if (order == NULL) return;
    const uint8_t *const columns = (const uint8_t *)order->columns;
    m->bytes.insert(m->bytes.end(), columns, columns + (size_t)places * sizeof(int32_t));
}

static inline void draw_plain(rows_of *m, uint64_t *seed)
{
    const msgl_dtype dtype = m->format->dtype;
    const size_t size = msgl__dtype_size(dtype);
    m->bytes.resize((size_t)m->n * m->k * size);
    for (size_t i = 0; i < m->values.size(); i++) {
        msgl__store_f32(m->bytes.data(), dtype, i, 0.1f * rng_normal(seed));
        m->values[i] = msgl__load_f32(m->bytes.data(), dtype, i);
    }
    const size_t row = (size_t)m->k * size;
    for (size_t r = (size_t)m->drawn; r < (size_t)m->n; r++) {
        memcpy(&m->bytes[r * row], &m->bytes[(r - (size_t)m->drawn) * row], row);
    }
}

static inline rows_of draw_rows(const msgl_wformat *format, int n, int k, uint64_t *seed)
{
    rows_of m = {format, n, k, n < 61 ? n : 61};
    m.values.resize((size_t)m.drawn * (size_t)k);
    if (format->id == MSGL_W_CODES) {
        draw_codes(&m, seed);
    } else {
        draw_plain(&m, seed);
    }
    return m;
}

// A weight on the device, of one part or more.
struct test_weight {
    msgl_weight w;
    std::vector<rows_of> parts;
    std::vector<msgl_weight> list;
    const float *row(int r) const
    {
        size_t i = 0;
        for (; r >= parts[i].n; i++) r -= parts[i].n;
        return parts[i].row(r);
    }
};

static inline size_t padded_bytes(const test_weight *t)
{
    size_t bytes = 0;
    for (const rows_of &m : t->parts) bytes += (m.bytes.size() + 63) / 64 * 64;
    return bytes;
}

// To memory of padded_bytes at `to`.
static inline void put_weight(test_weight *t, uint8_t *to)
{
    const int k = t->parts[0].k;
    int n = 0;
    t->list.clear();
    for (const rows_of &m : t->parts) {
        msgl_weight w = {};
        w.format = m.format;
        w.n = m.n;
        w.k = k;
        w.data = to;
        device_write(to, m.bytes.data(), m.bytes.size());
        t->list.push_back(w);
        to += (m.bytes.size() + 63) / 64 * 64;
        n += m.n;
    }
    t->w = t->list[0];
    if (t->list.size() == 1) return;
    t->w.n = n;
    t->w.parts = t->list.data();
    t->w.num_parts = (int)t->list.size();
    t->w.data = NULL;
}

// NaN in every dtype, before anything that is queued behind it.
static inline void poison(void *p, size_t bytes)
{
    CUDA_OK(cudaMemset(p, 0xff, bytes));
    CUDA_OK(cudaDeviceSynchronize());
}

static inline void round_row(const msgl_wformat *format, float *v, int n)
{
    format->blocks == &msgl__int8_blocks ? round_to_int8(v, n) : round_to_q4(v, n);
}

#endif
