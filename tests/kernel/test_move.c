// SPDX-License-Identifier: Apache-2.0
//
// Moves of K and V within pools: what each slot has afterwards, byte by byte, for all dtypes,
// latent pools and not, several layers and requests whose pages are anywhere.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "kernel/kernel.h"
#include "kvcache/kvcache.h"
#include "utils/random.h"

enum { PAGES = 40, PAGE = 4, SLOTS = (PAGES + 1) * PAGE, REQS = 5, SPAN = 24 };
enum { MAX_MOVES = REQS * SPAN };

typedef struct moves {
    int32_t from[MAX_MOVES], to[MAX_MOVES], cu[REQS + 1];
} moves;

// Request r's tokens are at 24 positions, in pages of its own in any order; rows of its paths, of
// which the second request has none and the third all (nothing changes), go behind each other.
static void make_moves(uint64_t *rng, moves *m)
{
    int32_t pages[PAGES];
    for (int i = 0; i < PAGES; i++) pages[i] = i;
    for (int i = PAGES - 1; i > 0; i--) {
        const int j = (int)msgl__random_below(rng, (uint64_t)i + 1);
        const int32_t page = pages[i];
        pages[i] = pages[j];
        pages[j] = page;
    }
    int32_t n = 0;
    m->cu[0] = 0;
    for (int r = 0; r < REQS; r++) {
        const int32_t *own = pages + r * (SPAN / PAGE);
        const int first = (int)msgl__random_below(rng, PAGE);
        for (int row = 0, kept = 0; first + row < SPAN && r != 1; row++) {
            if (row > 0 && r != 2 && msgl__random_below(rng, 3) == 0) continue;
            const int from = first + row, to = first + kept++;
            m->from[n] = own[from / PAGE] * PAGE + from % PAGE;
            m->to[n++] = own[to / PAGE] * PAGE + to % PAGE;
        }
        m->cu[r + 1] = n;
    }
}

// What is where afterwards: all is read before anything is written, which is the same as in order.
static void move_rows(const moves *m, const char *before, char *after, size_t bytes)
{
    memcpy(after, before, SLOTS * bytes);
    for (int32_t i = 0; i < m->cu[REQS]; i++) {
        memcpy(after + (size_t)m->to[i] * bytes, before + (size_t)m->from[i] * bytes, bytes);
    }
}

static void check(const msgl_kernels *k, msgl_exec *x, uint64_t *rng, msgl_cache_kind kind,
                  msgl_dtype dtype, int heads, int k_dim, int v_dim, int layers)
{
    msgl_kv_pool pool = {.spec = {.kind = kind,
                                  .num_layers = layers,
                                  .num_heads = heads,
                                  .k_dim = k_dim,
                                  .v_dim = v_dim,
                                  .dtype = dtype},
                         .num_pages = PAGES,
                         .page_size = PAGE};
    pool.bytes = msgl__kv_pool_bytes(&pool);
    assert_true(pool.bytes > 0);
    char *base = malloc(pool.bytes), *want = malloc(pool.bytes);
    for (size_t i = 0; i < pool.bytes; i++) base[i] = (char)msgl__random(rng);
    pool.base = base;
    moves m;
    make_moves(rng, &m);
    msgl_kv_move_call c = {.from = m.from, .to = m.to, .cu_moves = m.cu, .num_reqs = REQS};
    msgl__kv_pool_moved(&pool, &c);
    const size_t element = (size_t)heads * msgl__dtype_size(dtype);
    size_t at = 0;
    for (int array = 0; array < (kind == MSGL_CACHE_LATENT ? 1 : 2); array++) {
        const size_t bytes = element * (size_t)(array == 0 ? k_dim : v_dim);
        for (int l = 0; l < layers; l++, at += SLOTS * bytes) {
            move_rows(&m, base + at, want + at, bytes);
        }
    }
    assert_int_equal(at, pool.bytes);
    k->rope.move_kv(x, &c);
    assert_memory_equal(base, want, pool.bytes);
    c.num_reqs = 0;
    k->rope.move_kv(x, &c);
    assert_memory_equal(base, want, pool.bytes);
    free(base);
    free(want);
}

static void test_moves(void **state)
{
    (void)state;
    static const msgl_dtype DTYPES[] = {MSGL_F32, MSGL_BF16, MSGL_F16, MSGL_E4M3};
    const msgl_cpu_level top = msgl__cpu_level_detect();
    uint64_t rng = 11;
    msgl_pool *threads;
    msgl_err err;
    assert_int_equal(msgl__pool_create(2, &threads, &err), 0);
    msgl_exec x = {.pool = threads};
    for (int level = 0; level <= (int)top; level++) {
        msgl_kernels k;
        msgl__kernels_init_cpu(&k, (msgl_cpu_level)level);
        for (size_t d = 0; d < MSGL_COUNT(DTYPES); d++) {
            check(&k, &x, &rng, MSGL_CACHE_KV, DTYPES[d], 2, 64, 64, 3);
            check(&k, &x, &rng, MSGL_CACHE_KV, DTYPES[d], 3, 10, 7, 2);
            check(&k, &x, &rng, MSGL_CACHE_KV, DTYPES[d], 8, 128, 128, 5); // for several threads
            check(&k, &x, &rng, MSGL_CACHE_LATENT, DTYPES[d], 1, 72, 64, 2);
        }
    }
    msgl__pool_destroy(threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_moves)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
