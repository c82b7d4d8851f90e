// SPDX-License-Identifier: Apache-2.0
//
// torch_native's host part for GPUs where there is none: its blocks of queries, and the whole
// backend over launchers that compute what attn/native.h says in plain C, on "device" memory whose
// bounds they check and which begins as NaN, against exact attention.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/world.h"
#include "core/attributes.h"
#include "cuda/backends/registry.h"
#include "cuda/backends/torch_blocks.h"
#include "cuda/backends/torch_native.h"

// --- memory ------------------------------------------------------------------------------------

static struct {
    char *p;
    size_t bytes;
} BLOCKS[32];

static void *dev_alloc(msgl_device *d, size_t bytes)
{
    (void)d;
    for (size_t i = 0; i < MSGL_COUNT(BLOCKS); i++) {
        if (BLOCKS[i].p != NULL) continue;
        BLOCKS[i].p = aligned_alloc(64, (bytes + 63) / 64 * 64);
        BLOCKS[i].bytes = bytes;
        memset(BLOCKS[i].p, 0xff, bytes); // NaN in every dtype
        return BLOCKS[i].p;
    }
    fail_msg("more blocks than there are places for");
    return NULL;
}

static void dev_free(msgl_device *d, void *p, size_t bytes)
{
    (void)d;
    for (size_t i = 0; i < MSGL_COUNT(BLOCKS); i++) {
        if (BLOCKS[i].p != p) continue;
        assert_int_equal(BLOCKS[i].bytes, bytes);
        free(p);
        BLOCKS[i].p = NULL;
        return;
    }
    fail_msg("freed what was not allocated");
}

static void dev_copy(msgl_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    memcpy(dst, src, bytes);
}

static void dev_event(msgl_device *d, int32_t event)
{
    (void)d, (void)event;
}

static int dev_wait(msgl_device *d, int32_t event)
{
    (void)d, (void)event;
    return 0;
}

// [p, p + bytes) is inside one allocation.
static void check_inside(const char *at, size_t bytes)
{
    for (size_t i = 0; i < MSGL_COUNT(BLOCKS); i++) {
        if (BLOCKS[i].p != NULL && at >= BLOCKS[i].p && bytes <= BLOCKS[i].bytes &&
            (size_t)(at - BLOCKS[i].p) <= BLOCKS[i].bytes - bytes) {
            return;
        }
    }
    fail_msg("%zu bytes are not in device memory", bytes);
}

static void check_range(const void *p, size_t bytes)
{
    assert_int_equal((uintptr_t)p % 16, 0);
    check_inside(p, bytes);
}

// Matrices [heads] of [rows, columns].
static void check_matrices(const void *p, msgl_dtype type, size_t heads, size_t rows,
                           size_t columns, size_t ld, size_t head)
{
    const size_t size = msgl__dtype_size(type);
    assert_int_equal(ld * size % 16, 0);
    assert_int_equal(head * size % 16, 0);
    assert_true(ld >= columns);
    check_range(p, ((heads - 1) * head + (rows - 1) * ld + columns) * size);
}

// --- the launchers' contracts in plain C -------------------------------------------------------

static struct {
    int gathers, copies, softmaxes, products, zeros; // zeros: rows that were not gathered
    size_t most_scores;
} COUNT;

int msgl__cuda_native_gather(const msgl_native_gather *g, void *stream)
{
    (void)stream;
    const size_t width = (size_t)g->width, size = msgl__dtype_size(g->dtype);
    const msgl_dtype pool = g->e4m3 ? MSGL_E4M3 : g->dtype;
    assert_true(0 <= g->first && g->first < g->end && g->end <= g->rows);
    assert_int_equal(g->width % 8, 0);
    assert_true(!g->e4m3 || g->dtype == MSGL_BF16);
    for (int kv = 0; kv < (g->v != NULL ? 2 : 1); kv++) {
        const void *from = kv == 0 ? g->k : g->v;
        void *to = kv == 0 ? g->to_k : g->to_v;
        check_range(to, (size_t)g->rows * width * size);
        memset(to, 0, (size_t)g->rows * width * size);
        for (int32_t row = g->first; row < g->end; row++) {
            const int32_t place = g->place + row, page = g->table[place / g->paging.size];
            const size_t slot = (size_t)(page * g->paging.size + place % g->paging.size);
            assert_true(page >= 0);
            check_inside((const char *)from + slot * width * msgl__dtype_size(pool),
                         width * msgl__dtype_size(pool));
            for (size_t i = 0; i < width; i++) {
                msgl__store_f32(to, g->dtype, (size_t)row * width + i,
                                msgl__load_f32(from, pool, slot * width + i));
            }
        }
    }
    COUNT.gathers++;
    COUNT.zeros += g->rows - (g->end - g->first);
    return 0;
}

int msgl__cuda_native_copy(const msgl_native_copy *c, void *stream)
{
    (void)stream;
    assert_int_equal(c->bytes % 16, 0);
    for (int32_t h = 0; h < c->heads; h++) {
        for (int32_t t = 0; t < c->tokens; t++) {
            const char *from = (const char *)c->from + (size_t)h * c->from_head;
            char *to = (char *)c->to + (size_t)h * c->to_head + (size_t)t * c->to_token;
            from += (size_t)t * c->from_token;
            check_range(from, (size_t)c->bytes);
            check_range(to, (size_t)c->bytes);
            memcpy(to, from, (size_t)c->bytes);
        }
    }
    COUNT.copies++;
    return 0;
}

static void host_row(const msgl_native_softmax *s, int32_t head, int32_t row)
{
    const int32_t pos = s->first_pos + row / s->group, rows = s->tokens * s->group;
    const size_t keys = (size_t)s->keys, at = ((size_t)head * (size_t)rows + (size_t)row) * keys;
    double most = -INFINITY, sum = 0, *e = calloc(keys, sizeof *e);
    for (int32_t i = 0; i < s->keys; i++) {
        const int32_t key = s->first_key + i;
        const bool chunk = s->chunk == 0 || key / s->chunk == pos / s->chunk;
        const bool seen = key <= pos && chunk && (s->window < 0 || key >= pos - s->window);
        e[i] = seen ? (double)s->scores[at + (size_t)i] : -INFINITY;
        if (s->softcap > 0) e[i] = (double)s->softcap * tanh(e[i] / (double)s->softcap);
        if (!seen) e[i] = -INFINITY;
        if (!(e[i] <= most)) most = e[i];
    }
    for (size_t i = 0; i < keys; i++) sum += e[i] = exp(e[i] - most);
    if (s->sinks != NULL) sum += exp((double)s->sinks[head * s->group + row % s->group] - most);
    for (size_t i = 0; i < keys; i++) {
        msgl__store_f32(s->p, s->dtype, at + i, (float)(e[i] / sum));
    }
    free(e);
}

int msgl__cuda_native_softmax(const msgl_native_softmax *s, void *stream)
{
    (void)stream;
    const size_t n = (size_t)s->num_kv_heads * (size_t)(s->tokens * s->group) * (size_t)s->keys;
    assert_int_equal(s->keys % MSGL_NATIVE_KEYS, 0);
    assert_int_equal(s->first_key % MSGL_NATIVE_KEYS, 0);
    check_range(s->scores, n * sizeof(float));
    check_range(s->p, n * msgl__dtype_size(s->dtype));
    for (int32_t h = 0; h < s->num_kv_heads; h++) {
        for (int32_t row = 0; row < s->tokens * s->group; row++) host_row(s, h, row);
    }
    COUNT.softmaxes++;
    if (n > COUNT.most_scores) COUNT.most_scores = n;
    return 0;
}

// [rows, columns] of a matrix, or its transpose.
static float *as_f32(const void *p, msgl_dtype type, size_t first, size_t rows, size_t columns,
                     size_t ld, bool transposed)
{
    float *copy = malloc(rows * columns * sizeof *copy);
    for (size_t r = 0; r < rows; r++) {
        for (size_t i = 0; i < columns; i++) {
            copy[transposed ? i * rows + r : r * columns + i] =
                msgl__load_f32(p, type, first + r * ld + i);
        }
    }
    return copy;
}

void msgl__cuda_native_product(msgl_exec *x, const msgl_native_product *p)
{
    const size_t heads = (size_t)p->heads, m = (size_t)p->m, n = (size_t)p->n, k = (size_t)p->k;
    const size_t b_rows = p->transposed ? n : k, b_columns = p->transposed ? k : n;
    check_matrices(p->a, p->in_type, heads, m, k, p->ld_a, p->head_a);
    check_matrices(p->b, p->in_type, heads, b_rows, b_columns, p->ld_b, p->head_b);
    check_matrices(p->out, p->out_type, heads, m, n, p->ld_out, p->head_out);
    float *sums = malloc(n * sizeof *sums);
    for (size_t h = 0; h < heads; h++) {
        float *a = as_f32(p->a, p->in_type, h * p->head_a, m, k, p->ld_a, false);
        float *b =
            as_f32(p->b, p->in_type, h * p->head_b, b_rows, b_columns, p->ld_b, p->transposed);
        for (size_t i = 0; i < m; i++) {
            memset(sums, 0, n * sizeof *sums);
            for (size_t l = 0; l < k; l++) {
                for (size_t j = 0; j < n; j++) sums[j] += a[i * k + l] * b[l * n + j];
            }
            for (size_t j = 0; j < n; j++) {
                msgl__store_f32(p->out, p->out_type, h * p->head_out + i * p->ld_out + j,
                                p->scale * sums[j]);
            }
        }
        free(a);
        free(b);
    }
    free(sums);
    COUNT.products++;
    (void)x;
}

static int no_kernels(const msgl_device_options *o, struct msgl_kernels *k, msgl_err *err)
{
    (void)o, (void)k, (void)err;
    return 0;
}

static const msgl_device_ops OPS = {.alloc = dev_alloc,
                                    .free = dev_free,
                                    .copy_in = dev_copy,
                                    .copy_out = dev_copy,
                                    .record = dev_event,
                                    .arm = dev_event,
                                    .wait = dev_wait};
static const msgl_plugin PLUGIN = {.kernels = no_kernels, .backends = &msgl__attn_cuda};
static msgl_device DEVICE = {.ops = &OPS, .capability = 90};

// --- tests -------------------------------------------------------------------------------------

// Blocks follow one another, have room, begin and end where products may, and have every key.
static void test_blocks(void **unused)
{
    (void)unused;
    world rng = {.rng = 1};
    int full = 0, narrow = 0;
    for (int i = 0; i < 2000; i++) {
        const int32_t len = world_int(&rng, 1, i % 3 == 0 ? 40000 : 900);
        const int32_t first = world_int(&rng, 0, len - 1), unit = MSGL_NATIVE_KEYS;
        const size_t least = (size_t)((len + unit - 1) / unit * unit);
        const size_t room = least * (size_t)world_int(&rng, 1, 400) + (size_t)world_int(&rng, 0, 9);
        msgl_attn_layer layer = {.window = world_int(&rng, 0, 1) ? world_int(&rng, 0, 600) : -1,
                                 .chunk = world_int(&rng, 0, 1) ? world_int(&rng, 1, 3000) : 0};
        for (int32_t pos = first; pos < len;) {
            const msgl_torch_block b = msgl__torch_block(&layer, pos, len - pos, room);
            assert_in_range(b.tokens, 1, MSGL_TORCH_ROWS);
            assert_true(b.tokens <= len - pos);
            assert_true((size_t)b.tokens * (size_t)b.keys <= room);
            assert_int_equal(b.first_key % unit, 0);
            assert_int_equal(b.keys % unit, 0);
            assert_true(b.first_key >= 0 && (size_t)(b.first_key + b.keys) <= least);
            assert_true(b.first_key + b.keys >= pos + b.tokens);
            const int32_t before = b.first_key - 1; // which none of them sees
            for (int32_t p = pos; before >= 0 && p < pos + b.tokens; p++) {
                assert_true((layer.window >= 0 && before < p - layer.window) ||
                            (layer.chunk > 0 && before / layer.chunk != p / layer.chunk));
            }
            assert_true(msgl__torch_first_key(&layer, pos) < b.first_key + unit);
            full += b.tokens == MSGL_TORCH_ROWS;
            narrow += b.tokens < MSGL_TORCH_ROWS && b.tokens < len - pos;
            pos += b.tokens;
        }
    }
    assert_true(full > 0 && narrow > 0);
}

static int pick(world *w, const int *set, int n)
{
    return set[world_int(w, 0, n - 1)];
}

static world_spec random_spec(world *rng, msgl_dtype dtype, bool latent)
{
    static const int dims[] = {8, 64, 72, 128}, pages[] = {1, 16, 7, 64}, groups[] = {1, 2, 5};
    static const int windows[] = {-1, 0, 100, 300}, chunks[] = {0, 1, 64, 300};
    static const int latents[][2] = {{40, 32}, {72, 64}, {200, 136}};
    world_spec s = {.desc = &msgl__attn_torch_native_cuda,
                    .dtype = dtype,
                    .group = pick(rng, groups, 3),
                    .num_kv_heads = world_int(rng, 1, 2),
                    .head_dim = pick(rng, dims, 4),
                    .page_size = pick(rng, pages, 4),
                    .max_running = 6,
                    .max_seq_len = 700,
                    .max_step_tokens = 1700,
                    .threads = 2,
                    .window = pick(rng, windows, 4),
                    .chunk = world_int(rng, 0, 2) == 0 ? pick(rng, chunks, 4) : 0,
                    .softcap = world_int(rng, 0, 2) == 0 ? 20 : 0,
                    .sinks = world_int(rng, 0, 2) == 0,
                    .seed = world_random(rng),
                    .dev = &DEVICE,
                    .plugin = &PLUGIN};
    if (latent) {
        const int *dim = latents[world_int(rng, 0, 2)];
        s.head_dim = dim[0];
        s.v_dim = dim[1];
        s.num_kv_heads = 1;
    }
    return s;
}

static void check_step(world *w, int answers, const step_req *reqs, int n)
{
    world_mixed(w, answers, reqs, n);
    const double error = world_error(w, reqs, n), allowed = world_tolerance_gpu(&w->spec);
    if (error > allowed) {
        const world_spec *s = &w->spec;
        fail_msg("%d answers of %d: error %g > %g (dtype %d, heads %d x %d, dim %d, page %d, "
                 "window %d, chunk %d, cap %g%s)",
                 answers, n, error, allowed, (int)s->dtype, s->group, s->num_kv_heads, s->head_dim,
                 s->page_size, s->window, s->chunk, (double)s->softcap, s->sinks ? ", sinks" : "");
    }
}

static void test_worlds(void **unused)
{
    (void)unused;
    world rng = {.rng = 5};
    memset(&COUNT, 0, sizeof COUNT);
    for (int i = 0; i < 15; i++) {
        const bool latent = i % 5 == 4;
        const msgl_dtype dtype = (msgl_dtype)(latent ? i % 3 : i % 4);
        const world_spec spec = random_spec(&rng, dtype, latent);
        world w;
        world_open(&w, &spec);
        step_req reqs[6];
        for (int r = 0; r < 6; r++) {
            const int len = r == 0 ? 500 : world_int(&w, 1, 150), at = world_int(&w, 0, len - 1);
            world_request(&w, r, len);
            reqs[r] = (step_req){.req = r, .cached = at, .device = at + 1}; // an answer
        }
        check_step(&w, 6, reqs, 6);
        for (int r = 3; r < 6; r++) { // chunks beside three answers
            reqs[r].cached = world_int(&w, 0, reqs[r].device - 1);
            if (world_int(&w, 0, 1)) reqs[r].cached = 0;
        }
        check_step(&w, 3, reqs, 6);
        const step_req prompt = {.req = 0, .cached = i % 2 ? 0 : 200, .device = 500};
        check_step(&w, 0, &prompt, 1);
        world_close(&w);
    }
    for (size_t i = 0; i < MSGL_COUNT(BLOCKS); i++) assert_null(BLOCKS[i].p);
    assert_true(COUNT.gathers > 0 && COUNT.copies > 0 && COUNT.zeros > 0);
    assert_int_equal(COUNT.products, 2 * COUNT.softmaxes);
}

// So many heads that a block's scores are fewer than the most tokens have.
static void test_room(void **unused)
{
    (void)unused;
    world rng = {.rng = 9};
    world_spec spec = random_spec(&rng, MSGL_BF16, true);
    spec.head_dim = 40;
    spec.v_dim = 32;
    spec.group = 128;
    spec.window = -1;
    spec.chunk = 0;
    world w;
    world_open(&w, &spec);
    world_request(&w, 0, 700);
    memset(&COUNT, 0, sizeof COUNT);
    const step_req prompt = {.req = 0, .cached = 440, .device = 700};
    check_step(&w, 0, &prompt, 1);
    assert_in_range(COUNT.most_scores, 8 << 20, 16 << 20);
    assert_true(COUNT.softmaxes == 2);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_worlds),
        cmocka_unit_test(test_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
