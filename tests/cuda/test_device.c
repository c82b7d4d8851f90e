// SPDX-License-Identifier: Apache-2.0
//
// The GPU as a device: copies, token kernels and events in order, a captured graph that does the
// same as what was captured and has its inputs in time, memory that runs out as an answer rather
// than a fault, and an asynchronous fault that every later wait reports.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "device/devices.h"
#include "kernel/kernel.h"

enum { N = 1000 };

typedef struct fixture {
    msgl_device *d;
    int32_t *pool, *index, *values, *out; // device
    int32_t *host;                        // [N] pinned
} fixture;

static const msgl_device_options FIRST = {.ordinal = 0};

static int open_fixture(void **state)
{
    msgl_err err = {0};
    fixture *f = calloc(1, sizeof *f);
    const msgl_plugin *plugin = msgl__plugin_of("cuda", &err);
    if (plugin == NULL || plugin->open(&FIRST, &f->d, NULL, &err) != 0) fail_msg("%s", err.text);
    const msgl_device_ops *ops = f->d->ops;
    int32_t **arrays[] = {&f->pool, &f->index, &f->values, &f->out};
    for (size_t i = 0; i < MSGL_COUNT(arrays); i++) {
        *arrays[i] = ops->alloc(f->d, N * sizeof(int32_t));
        assert_non_null(*arrays[i]);
    }
    f->host = ops->host_alloc(f->d, N * sizeof(int32_t));
    assert_non_null(f->host);
    *state = f;
    return 0;
}

static int close_fixture(void **state)
{
    fixture *f = *state;
    f->d->ops->destroy(
        f->d); // the memory goes with the process: after a fault nothing can be freed
    free(f);
    return 0;
}

static void put(fixture *f, int32_t *to, int32_t a, int32_t b)
{
    const msgl_device_ops *ops = f->d->ops;
    assert_int_equal(ops->wait(f->d, 0), 0); // the staging may still be read
    for (int32_t i = 0; i < N; i++) f->host[i] = (int32_t)((int64_t)i * a % N) + b;
    ops->copy_in(f->d, to, f->host, N * sizeof(int32_t));
    ops->record(f->d, 0);
}

static const int32_t *get(fixture *f, const int32_t *from)
{
    f->d->ops->copy_out(f->d, f->host, from, N * sizeof(int32_t));
    f->d->ops->record(f->d, 0);
    assert_int_equal(f->d->ops->wait(f->d, 0), 0);
    return f->host;
}

// Copies of any size and place, in the order of the queue, from pinned and from other memory.
static void test_copies(void **state)
{
    fixture *f = *state;
    const msgl_device_ops *ops = f->d->ops;
    enum { PAGE = 1 << 15 };
    int32_t *pinned = ops->host_alloc(f->d, 2 * PAGE * sizeof(int32_t));
    int32_t *device = ops->alloc(f->d, PAGE * sizeof(int32_t));
    int32_t plain[64];
    assert_non_null(pinned);
    assert_non_null(device);
    int32_t *back = pinned + PAGE;
    const int32_t sizes[] = {1, 3, 4, 127, 128, 513, 4000, 16384, 16385, PAGE - 8};
    for (size_t i = 0; i < MSGL_COUNT(sizes); i++) {
        for (int32_t at = 0; at < 8; at += i % 2 == 0 ? 1 : 4) {
            const int32_t n = sizes[i];
            for (int32_t j = 0; j < n; j++) pinned[at + j] = (int32_t)i * 100000 + j + at;
            for (int32_t j = 0; j < PAGE; j++) back[j] = -7;
            ops->copy_in(f->d, device + at, pinned + at, (size_t)n * sizeof(int32_t));
            ops->copy_out(f->d, back, device + at, (size_t)n * sizeof(int32_t));
            ops->record(f->d, 1);
            assert_int_equal(ops->wait(f->d, 1), 0);
            assert_memory_equal(back, pinned + at, (size_t)n * sizeof(int32_t));
            assert_int_equal(back[n], -7);
        }
    }
    for (int32_t i = 0; i < 64; i++) plain[i] = 3 * i;
    ops->copy_in(f->d, device, plain, sizeof plain);
    ops->copy_out(f->d, back, device, sizeof plain);
    ops->record(f->d, 1);
    assert_int_equal(ops->wait(f->d, 1), 0);
    for (int32_t i = 0; i < 64; i++) assert_int_equal(back[i], 3 * i);
    ops->host_free(f->d, pinned, 2 * PAGE * sizeof(int32_t));
    ops->free(f->d, device, PAGE * sizeof(int32_t));
}

static msgl_graph *end_graph(fixture *f)
{
    msgl_err err = {0};
    msgl_graph *g = f->d->ops->graph_end(f->d, &err);
    if (g == NULL) fail_msg("%s", err.text);
    return g;
}

// A graph's inputs are there when it runs, for any size and place: behind the launches before it,
// though the host is far ahead of them.
static void test_inputs(void **state)
{
    fixture *f = *state;
    const msgl_device_ops *ops = f->d->ops;
    enum { ROUNDS = 40, EACH = 3, LARGE = 70000, RESULT = 3 * N, PIECES = 10 };
    const size_t bytes = (size_t)ROUNDS * (2 * N + LARGE + RESULT) * sizeof(int32_t);
    int32_t *pinned = ops->host_alloc(f->d, bytes);
    int32_t *large = ops->alloc(f->d, LARGE * sizeof(int32_t));
    assert_non_null(pinned);
    assert_non_null(large);
    put(f, f->index, 3, 0);
    ops->graph_begin(f->d);
    ops->gather_tokens(f->d, f->pool, f->index, N, f->out, 1);
    msgl_graph *g = end_graph(f);
    for (int32_t r = 0; r < ROUNDS; r++) {
        int32_t *from = pinned + (size_t)r * (2 * N + LARGE + RESULT);
        int32_t *far = from + 2 * N, *result = far + LARGE;
        for (int32_t i = 0; i < 2 * N + LARGE; i++) from[i] = 1000000 * (r + 1) + i;
        ops->inputs_begin(f->d); // nothing to copy is no error
        ops->graph_launch(f->d, g);
        ops->inputs_begin(f->d);
        ops->copy_in(f->d, f->pool, from, N / 2 * sizeof(int32_t));
        // Neither whole vectors nor aligned; and the second one is longer than a buffer.
        ops->copy_in(f->d, f->pool + N / 2, from + N / 2, (N / 2 - 1) * sizeof(int32_t));
        ops->copy_in(f->d, f->pool + N - 1, from + N - 1, sizeof(int32_t));
        ops->copy_in(f->d, large, far, (r % EACH == 0 ? LARGE : 4096) * sizeof(int32_t));
        // With the rest of them more than are noted.
        for (int32_t i = 0; i < N; i += N / PIECES) {
            ops->copy_in(f->d, f->values + i, from + N + i, N / PIECES * sizeof(int32_t));
        }
        ops->graph_launch(f->d, g);
        ops->copy_out(f->d, result, f->out, N * sizeof(int32_t));
        ops->copy_out(f->d, result + N, f->values, N * sizeof(int32_t));
        ops->copy_out(f->d, result + 2 * N, large, N * sizeof(int32_t));
        if (r % EACH == 1) ops->record(f->d, 1); // the host looks now and then
        if (r % EACH == 2) assert_int_equal(ops->wait(f->d, 1), 0);
    }
    ops->record(f->d, 0);
    assert_int_equal(ops->wait(f->d, 0), 0);
    for (int32_t r = 0; r < ROUNDS; r++) {
        const int32_t *from = pinned + (size_t)r * (2 * N + LARGE + RESULT);
        const int32_t *far = from + 2 * N, *result = far + LARGE;
        for (int32_t i = 0; i < N; i++) assert_int_equal(result[i], from[i * 3 % N]);
        assert_memory_equal(result + N, from + N, N * sizeof(int32_t));
        assert_memory_equal(result + 2 * N, far, N * sizeof(int32_t));
    }
    ops->graph_destroy(f->d, g);
    ops->host_free(f->d, pinned, bytes);
    ops->free(f->d, large, LARGE * sizeof(int32_t));
}

// A step's beginning, alone and as a graph's first kernel, which then moves the inputs. One block
// of memory has all of them, as the engine's has.
enum { TOKENS = 5, HIDDEN = 520, HALF = 20, ROWS = 64, PLACES = 96, PAGE = 4 };

typedef struct inputs {
    int32_t index[16], pages[2][16], positions[16];
    float inv_freq[32];
} inputs;

typedef struct outputs {
    uint16_t rows[TOKENS][HIDDEN];
    float cos_sin[TOKENS][2 * HALF];
    int32_t tables[2][PLACES / PAGE], slots[2][TOKENS];
} outputs;

typedef struct opening {
    fixture *f;
    msgl_kernels k;
    msgl_exec x;
    msgl_weight w;
    inputs *in;   // device
    outputs *out; // device
    int32_t *pool;
} opening;

static void embed(const opening *o, int32_t tokens)
{
    const msgl_embed_call c = {
        .tokens = {.count = tokens,
                   .pool = o->pool,
                   .index = o->in->index,
                   .num_answers = tokens,
                   .row_places = PLACES / 2,
                   .paging = msgl__paging_of(PAGE),
                   .num_tables = 2,
                   .pages = {o->in->pages[0], o->in->pages[1]},
                   .tables = {o->out->tables[0], o->out->tables[1]},
                   .slots = {o->out->slots[0], o->out->slots[1]}},
        .w = &o->w,
        .out = o->out->rows,
        .positions = o->in->positions,
        .inv_freq = o->in->inv_freq,
        .half = HALF,
        .scale = 1.25f,
        .cos_sin = o->out->cos_sin[0],
    };
    msgl_exec x = o->x;
    assert_true(o->k.gemm.embed(&x, &c));
    assert_int_equal(x.status, 0);
}

static void open_steps(fixture *f, opening *o)
{
    const msgl_device_ops *ops = f->d->ops;
    msgl_err err = {0};
    *o = (opening){.f = f, .x = {.device = f->d, .act = MSGL_BF16}};
    assert_int_equal(msgl__plugin_of("cuda", &err)->kernels(&FIRST, &o->k, &err), 0);
    o->w = (msgl_weight){.format = &o->k.gemm.formats[MSGL_W_BF16], .n = ROWS, .k = HIDDEN};
    o->w.data = ops->alloc(f->d, sizeof(uint16_t) * ROWS * HIDDEN);
    o->in = ops->alloc(f->d, sizeof *o->in);
    o->out = ops->alloc(f->d, sizeof *o->out);
    o->pool = ops->alloc(f->d, sizeof(int32_t) * PLACES);
    uint16_t *w = ops->host_alloc(f->d, sizeof(uint16_t) * ROWS * HIDDEN);
    int32_t *pool = ops->host_alloc(f->d, sizeof(int32_t) * PLACES);
    assert_true(o->w.data != NULL && o->in != NULL && o->out != NULL && o->pool != NULL);
    assert_true(w != NULL && pool != NULL);
    for (int32_t i = 0; i < ROWS * HIDDEN; i++) w[i] = (uint16_t)(i * 7);
    for (int32_t i = 0; i < PLACES; i++) pool[i] = i * 5 % ROWS;
    ops->copy_in(f->d, o->w.data, w, sizeof(uint16_t) * ROWS * HIDDEN);
    ops->copy_in(f->d, o->pool, pool, sizeof(int32_t) * PLACES);
    ops->record(f->d, 0);
    assert_int_equal(ops->wait(f->d, 0), 0);
    ops->host_free(f->d, w, sizeof(uint16_t) * ROWS * HIDDEN);
    ops->host_free(f->d, pool, sizeof(int32_t) * PLACES);
}

static void fill_inputs(inputs *in, int32_t step)
{
    for (int32_t t = 0; t < 16; t++) {
        in->index[t] = (t * 13 + step) % PLACES;
        in->pages[0][t] = 1000 * step + t;
        in->pages[1][t] = 100000 - 1000 * step - t;
        in->positions[t] = 300 * step + 7 * t;
    }
    for (int32_t i = 0; i < 32; i++) in->inv_freq[i] = powf(10000.0f, -(float)(i + step % 3) / 20);
}

static void check_outputs(const inputs *in, const outputs *out, int32_t tokens)
{
    for (int32_t t = 0; t < tokens; t++) {
        const int32_t id = in->index[t] * 5 % ROWS;
        for (int32_t i = 0; i < HIDDEN; i++) {
            assert_int_equal(out->rows[t][i], (uint16_t)((id * HIDDEN + i) * 7));
        }
        for (int32_t i = 0; i < HALF; i++) {
            const double angle = (double)((float)in->positions[t] * in->inv_freq[i]);
            assert_true(fabs(out->cos_sin[t][i] - 1.25 * cos(angle)) < 1e-6);
            assert_true(fabs(out->cos_sin[t][HALF + i] - 1.25 * sin(angle)) < 1e-6);
        }
        for (int i = 0; i < 2; i++) {
            const int32_t page = in->pages[i][t];
            assert_int_equal(out->tables[i][in->index[t] / PAGE], page);
            assert_int_equal(out->slots[i][t], page * PAGE + in->index[t] % PAGE);
        }
    }
}

static void test_embed(void **state)
{
    fixture *f = *state;
    const msgl_device_ops *ops = f->d->ops;
    enum { STEPS = 24 };
    opening o;
    open_steps(f, &o);
    inputs *in = ops->host_alloc(f->d, STEPS * sizeof *in);
    outputs *out = ops->host_alloc(f->d, STEPS * sizeof *out);
    assert_true(in != NULL && out != NULL);
    const int32_t sizes[] = {TOKENS, 2}; // graphs of several sizes take turns
    msgl_graph *graphs[2], *other;
    for (int i = 0; i < 2; i++) {
        embed(&o, sizes[i]);
        ops->graph_begin(f->d);
        embed(&o, sizes[i]);
        graphs[i] = end_graph(f);
    }
    ops->graph_begin(f->d); // of kernels that move nothing
    ops->gather_tokens(f->d, f->pool, f->index, N, f->out, 1);
    other = end_graph(f);
    for (int32_t s = 0; s < STEPS; s++) {
        fill_inputs(&in[s], s);
        if (s % 5 == 4) { // kernel by kernel
            ops->copy_in(f->d, o.in, &in[s], sizeof *in);
            embed(&o, TOKENS);
        } else {
            if (s % 7 == 3) ops->graph_launch(f->d, graphs[0]); // with the inputs of before
            ops->inputs_begin(f->d);
            ops->copy_in(f->d, o.in, &in[s], sizeof *in);
            if (s % 6 == 5) {
                ops->graph_launch(f->d, other);
                embed(&o, TOKENS);
            } else {
                ops->graph_launch(f->d, graphs[s % 2]);
            }
        }
        ops->copy_out(f->d, &out[s], o.out, sizeof *out);
    }
    ops->record(f->d, 0);
    assert_int_equal(ops->wait(f->d, 0), 0);
    for (int32_t s = 0; s < STEPS; s++) {
        check_outputs(&in[s], &out[s], s % 5 == 4 || s % 6 == 5 ? TOKENS : sizes[s % 2]);
    }
    for (int i = 0; i < 2; i++) ops->graph_destroy(f->d, graphs[i]);
    ops->graph_destroy(f->d, other);
    ops->host_free(f->d, in, STEPS * sizeof *in);
    ops->host_free(f->d, out, STEPS * sizeof *out);
}

static void test_tokens(void **state)
{
    fixture *f = *state;
    const msgl_device_ops *ops = f->d->ops;
    put(f, f->index, 7, 0); // a permutation: 7 and 1,000 have no common factor
    put(f, f->values, 1, 500);
    put(f, f->pool, 3, 2);
    int32_t *table = ops->alloc(f->d, 2 * N * sizeof(int32_t));
    assert_non_null(table);
    const msgl_step_tokens s = {.count = N,
                                .pool = f->pool,
                                .index = f->index,
                                .num_answers = N,
                                .row_places = N,
                                .paging = msgl__paging_of(1),
                                .num_tables = 1,
                                .pages = {f->values},
                                .tables = {table},
                                .slots = {table + N}};
    ops->take_tokens(f->d, &s, f->out);
    const int32_t *ids = get(f, f->out);
    for (int32_t i = 0; i < N; i++) assert_int_equal(ids[i], i * 21 % N + 2);
    const int32_t *pages = get(f, table);
    for (int32_t i = 0; i < N; i++) assert_int_equal(pages[i * 7 % N], i + 500);
    const int32_t *slots = get(f, table + N);
    for (int32_t i = 0; i < N; i++) assert_int_equal(slots[i], i + 500);
    ops->free(f->d, table, 2 * N * sizeof(int32_t));
    ops->gather_tokens(f->d, f->pool, f->index, N / 2, f->out, 2);
    const int32_t *out = get(f, f->out);
    for (int32_t i = 0; i < N / 2; i++) assert_int_equal(out[2 * i], i * 21 % N + 2);
}

static void test_graph(void **state)
{
    fixture *f = *state;
    const msgl_device_ops *ops = f->d->ops;
    put(f, f->index, 3, 0);
    ops->graph_begin(f->d);
    ops->gather_tokens(f->d, f->pool, f->index, N, f->out, 1);
    msgl_graph *g = end_graph(f);
    for (int32_t round = 1; round < 4; round++) { // with inputs that differ from the captured ones
        put(f, f->pool, 1, 1000 * round);
        ops->graph_launch(f->d, g);
        const int32_t *out = get(f, f->out);
        for (int32_t i = 0; i < N; i++) assert_int_equal(out[i], i * 3 % N + 1000 * round);
    }
    ops->graph_destroy(f->d, g);
}

static void test_no_memory(void **state)
{
    fixture *f = *state;
    const msgl_device_ops *ops = f->d->ops;
    assert_null(ops->alloc(f->d, ops->available(f->d) + ((size_t)1 << 40)));
    put(f, f->pool, 1, 5);
    assert_int_equal(get(f, f->pool)[3], 8); // and the device goes on
    assert_int_equal(f->d->fault.code, 0);
}

static void test_bad_ordinal(void **state)
{
    (void)state;
    msgl_err err = {0};
    msgl_device_choice choice;
    assert_int_equal(msgl__device_choose("cuda:999", 0, 1, &choice, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "cuda:0"));
}

// The last one: it costs the process its GPU context.
static void test_fault(void **state)
{
    fixture *f = *state;
    const msgl_device_ops *ops = f->d->ops;
    assert_int_equal(ops->wait(f->d, 1), 0);
    ops->gather_tokens(f->d, (const int32_t *)(uintptr_t)64, f->index, N, f->out, 1);
    ops->record(f->d, 1);
    assert_int_equal(ops->wait(f->d, 1), MSGL_EDEVICE);
    assert_non_null(strstr(f->d->fault.text, "CUDA"));
    assert_non_null(strstr(f->d->fault.text, "illegal memory access"));
    ops->record(f->d, 2);
    assert_int_equal(ops->wait(f->d, 2), MSGL_EDEVICE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies),      cmocka_unit_test(test_inputs),
        cmocka_unit_test(test_embed),       cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_graph),       cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_bad_ordinal), cmocka_unit_test(test_fault),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
