// SPDX-License-Identifier: Apache-2.0
//
// Ranks on GPUs: sums and gathers of every type and length against sums on the host, in graphs and
// behind one another; models of every architecture on ranks against transformers; ranks that
// are killed or stopped. Two ranks share one GPU where there are no more, which needs peer memory
// alone: NCCL refuses it. Every test is a process, since what has used CUDA cannot fork ranks.
//
//     cuda_ranks [--quick] [--device cuda:A,B[,C...]] [--bench] [--only PATTERN] [--part I/N]
//
// --device: as many ranks as it names GPUs.
// --bench: microseconds of sums in a graph, for GPUs of their own. --part: every N-th case, of
// those from I on, so that several processes share them out.
#include <fnmatch.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "device/devices.h"
#include "engine/parity.h"
#include "kernel/kernel.h"
#include "models/folder.h"
#include "utils/clock.h"

enum { MAX_RANKS = 8, SKIPPED = 77 };

static const char *device = "cuda:0,0";
static int ranks = 2; // those that it names

// How ranks may be connected.
typedef struct way {
    const char *name, *nccl;
    bool no_peers;
} way;
static way BOTH = {"as it is", "auto", false}, PEERS = {"peer memory alone", "none", false},
           NCCL = {"NCCL alone", "auto", true};

// --- the communicator --------------------------------------------------------------------------

typedef struct rank {
    msgl_group_member *member;
    msgl_comm *host, *comm;
    msgl_device *d;
    msgl_exec x;
    msgl_kernels kernels;
    msgl_arena scratch;
    char note[128];
} rank;

static bool exchange(void *ctx, const void *own, size_t bytes, void *all)
{
    rank *r = ctx;
    msgl_exec x = {0};
    r->host->ops->all_gather(r->host, &x, own, bytes / sizeof(float), all);
    return x.status == 0;
}

static void open_rank(rank *r, msgl_group *g, int index, int size, const char *where, const way *by)
{
    msgl_err err = {0};
    msgl_device_choice choice;
    *r = (rank){0};
    if (size > 1) {
        assert_int_equal(msgl__group_join(g, index, &r->member, &err), 0);
        assert_int_equal(msgl__comm_shm_create(r->member, &r->host, &err), 0);
    } else {
        r->host = calloc(1, sizeof *r->host);
        msgl__comm_self_init(r->host);
    }
    if (msgl__device_choose(where, index, size, &choice, &err) != 0) fail_msg("%s", err.text);
    const msgl_plugin *plugin = choice.plugin;
    const msgl_device_options options = {.ordinal = choice.ordinal};
    if (plugin->open(&options, &r->d, NULL, &err) != 0) fail_msg("%s", err.text);
    const msgl_device_ranks place = {.rank = index,
                                     .size = size,
                                     .exchange = exchange,
                                     .ctx = r,
                                     .nccl = by->nccl,
                                     .no_peers = by->no_peers};
    const int code = plugin->communicator(r->d, &place, &r->comm, r->note, sizeof r->note, &err);
    // NCCL wants GPUs of their own; what is then said names both.
    if (code == MSGL_EUNSUPPORTED && by->no_peers) {
        if (index == 0) print_message("%s\n", err.text);
        _exit(SKIPPED);
    }
    if (code != 0) fail_msg("%s", err.text);
    r->x = (msgl_exec){.device = r->d, .act = MSGL_F32, .scratch = &r->scratch};
    if (plugin->kernels(&options, &r->kernels, &err) != 0) fail_msg("%s", err.text);
    if (index == 0) print_message("%s\n", r->note);
}

static void settle(rank *r)
{
    r->d->ops->record(r->d, 0);
    if (r->d->ops->wait(r->d, 0) != 0) fail_msg("%s", r->d->fault.text);
}

static void close_rank(rank *r)
{
    settle(r);
    if (r->member != NULL) exchange(r, &(int32_t){0}, sizeof(int32_t), (int32_t[MAX_RANKS]){0});
    r->comm->ops->destroy(r->comm);
    r->d->ops->destroy(r->d);
    r->host->ops->destroy(r->host);
    msgl__group_leave(r->member);
}

// Values that are exact in every type, so that sums of two are, too.
static float value(size_t i, int who, int call)
{
    return (float)((int)((i * 7 + (size_t)who * 3 + (size_t)call * 5) % 16) - 8) / 2;
}

static float sum_of(size_t i, int size, int call)
{
    float all = 0;
    for (int w = 0; w < size; w++) all += value(i, w, call);
    return all;
}

// Lengths around an eight, a tile, a slot and beyond it, one after another and without waiting.
static void check_sums(rank *r, int size, msgl_dtype t)
{
    static const size_t lengths[] = {1, 7, 8, 9, 1000, 1023, 5120, 64 * 5120, (4 << 20) + 24, 130};
    const msgl_device_ops *ops = r->d->ops;
    const size_t bytes = msgl__dtype_size(t);
    char *host[MSGL_COUNT(lengths)], *dev[MSGL_COUNT(lengths)];
    for (size_t l = 0; l < MSGL_COUNT(lengths); l++) {
        host[l] = ops->host_alloc(r->d, lengths[l] * bytes);
        dev[l] = ops->alloc(r->d, lengths[l] * bytes);
        assert_true(host[l] != NULL && dev[l] != NULL);
        for (size_t i = 0; i < lengths[l]; i++) {
            msgl__store_f32(host[l], t, i, value(i, r->comm->rank, (int)l));
        }
        ops->copy_in(r->d, dev[l], host[l], lengths[l] * bytes);
    }
    for (size_t l = 0; l < MSGL_COUNT(lengths); l++) {
        r->comm->ops->all_reduce(r->comm, &r->x, t, dev[l], lengths[l]);
        ops->copy_out(r->d, host[l], dev[l], lengths[l] * bytes);
    }
    settle(r);
    for (size_t l = 0; l < MSGL_COUNT(lengths); l++) {
        for (size_t i = 0; i < lengths[l]; i++) {
            const float want = sum_of(i, size, (int)l), got = msgl__load_f32(host[l], t, i);
            if (got != want) fail_msg("%zu of %zu: %g, not %g", i, lengths[l], got, want);
        }
        ops->free(r->d, dev[l], lengths[l] * bytes);
        ops->host_free(r->d, host[l], lengths[l] * bytes);
    }
}

static void check_gathers(rank *r, int size)
{
    static const size_t lengths[] = {1, 4, 22, 75968, (2 << 20) + 5, 64};
    const msgl_device_ops *ops = r->d->ops;
    for (size_t l = 0; l < MSGL_COUNT(lengths); l++) {
        const size_t n = lengths[l], all = n * (size_t)size;
        float *host = ops->host_alloc(r->d, all * sizeof *host);
        float *in = ops->alloc(r->d, n * sizeof *in), *out = ops->alloc(r->d, all * sizeof *out);
        assert_true(host != NULL && in != NULL && out != NULL);
        for (size_t i = 0; i < n; i++) host[i] = value(i, r->comm->rank, (int)l);
        ops->copy_in(r->d, in, host, n * sizeof *in);
        settle(r);
        r->comm->ops->all_gather(r->comm, &r->x, in, n, out);
        ops->copy_out(r->d, host, out, all * sizeof *out);
        settle(r);
        for (size_t i = 0; i < all; i++) {
            assert_float_equal(host[i], value(i % n, (int)(i / n), (int)l), 0);
        }
        ops->host_free(r->d, host, all * sizeof *host);
        ops->free(r->d, in, n * sizeof *in);
        ops->free(r->d, out, all * sizeof *out);
    }
}

typedef struct stream {
    msgl_dtype t;
    size_t rows, dim;
    void *part, *residual, *scaled; // device
    float *weight, *sums;
    msgl_norm_stats norm_stats;
    char *host;
} stream;

static void add_part(rank *r, stream *s)
{
    const msgl_reduce_add a = {.in = s->part,
                               .residual = s->residual,
                               .scale = 0.5f,
                               .rows = (int32_t)s->rows,
                               .dim = (int32_t)s->dim,
                               .next_norm = s->weight,
                               .norm_stats = &s->norm_stats};
    s->norm_stats = (msgl_norm_stats){.scaled = s->scaled, .sums = s->sums};
    assert_true(r->comm->ops->all_reduce_add(r->comm, &r->x, &a));
    assert_int_equal(s->norm_stats.num_tiles, (s->dim + 1023) / 1024);
    assert_ptr_equal(s->norm_stats.x, s->residual);
}

static void check_stream(rank *r, stream *s, int size, int times)
{
    const msgl_device_ops *ops = r->d->ops;
    const size_t n = s->rows * s->dim, bytes = n * msgl__dtype_size(s->t);
    float *sums = ops->host_alloc(r->d, s->rows * 64 * sizeof *sums);
    ops->copy_out(r->d, s->host, s->residual, bytes);
    ops->copy_out(r->d, s->host + bytes, s->scaled, bytes);
    ops->copy_out(r->d, sums, s->sums, s->rows * (size_t)s->norm_stats.num_tiles * sizeof *sums);
    settle(r);
    for (size_t row = 0; row < s->rows; row++) {
        double squares = 0, got = 0;
        for (size_t i = row * s->dim; i < (row + 1) * s->dim; i++) {
            const float want = 1 + (float)times * 0.5f * sum_of(i, size, 3);
            assert_float_equal(msgl__load_f32(s->host, s->t, i), want, 0);
            assert_float_equal(msgl__load_f32(s->host + bytes, s->t, i), 2 * want, 0);
            squares += (double)want * want;
        }
        for (int p = 0; p < s->norm_stats.num_tiles; p++) got += sums[(size_t)p * s->rows + row];
        assert_true(fabs(got - squares) < 1e-5 * squares);
    }
    ops->host_free(r->d, sums, s->rows * 64 * sizeof *sums);
}

// With the residual, launched and in a graph, which runs often.
static void check_adding(rank *r, int size, msgl_dtype t, size_t rows, size_t dim)
{
    const msgl_device_ops *ops = r->d->ops;
    const size_t n = rows * dim, bytes = n * msgl__dtype_size(t);
    msgl_err err = {0};
    stream s = {.t = t, .rows = rows, .dim = dim};
    r->x.act = t;
    s.host = ops->host_alloc(r->d, 2 * bytes);
    float *twos = ops->host_alloc(r->d, dim * sizeof *twos);
    s.part = ops->alloc(r->d, bytes);
    s.residual = ops->alloc(r->d, bytes);
    s.scaled = ops->alloc(r->d, bytes);
    s.weight = ops->alloc(r->d, dim * sizeof *s.weight);
    s.sums = ops->alloc(r->d, rows * 64 * sizeof *s.sums);
    for (size_t i = 0; i < n; i++) msgl__store_f32(s.host, t, i, 1);
    for (size_t i = 0; i < n; i++)
        msgl__store_f32(s.host + bytes, t, i, value(i, r->comm->rank, 3));
    for (size_t i = 0; i < dim; i++) twos[i] = 2;
    ops->copy_in(r->d, s.residual, s.host, bytes);
    ops->copy_in(r->d, s.part, s.host + bytes, bytes);
    ops->copy_in(r->d, s.weight, twos, dim * sizeof *twos);
    settle(r);
    add_part(r, &s);
    check_stream(r, &s, size, 1);
    ops->graph_begin(r->d);
    add_part(r, &s);
    msgl_graph *g = ops->graph_end(r->d, &err);
    if (g == NULL) fail_msg("%s", err.text);
    for (int i = 0; i < 4; i++) ops->graph_launch(r->d, g);
    check_stream(r, &s, size, 5);
    ops->graph_destroy(r->d, g);
    r->x.act = MSGL_F32;
    ops->host_free(r->d, twos, dim * sizeof *twos);
    ops->host_free(r->d, s.host, 2 * bytes);
    void *const device_memory[] = {s.part, s.residual, s.scaled, s.weight, s.sums};
    for (size_t i = 0; i < MSGL_COUNT(device_memory); i++) ops->free(r->d, device_memory[i], 0);
}

// --- products that add their ranks' sums -------------------------------------------------------

typedef struct product {
    msgl_weight w;
    size_t rows;
    void *in, *stream, *scaled; // device; stream: what is added to
    float *weight, *sums;
    msgl_norm_stats norm_stats;
} product;

// -1, 0 or 1, so that sums are exact in every type.
static float weight_at(size_t row, size_t col, int who)
{
    const uint32_t z = (uint32_t)(row * 2654435761u + col * 40503u + (size_t)who * 69069u);
    return (float)(((z ^ z >> 15) * 2246822519u >> 16) % 3) - 1;
}

// Of a row every 251st is not 0.
static float input_at(size_t row, size_t col, int who)
{
    return col % 251 == row % 61 ? weight_at(row + 7, col, who + 2) : 0;
}

static float two(size_t row, size_t col, int who)
{
    (void)row, (void)col, (void)who;
    return 2;
}

static void *device_matrix(rank *r, msgl_dtype t, size_t rows, size_t cols,
                           float (*at)(size_t row, size_t col, int who))
{
    const msgl_device_ops *ops = r->d->ops;
    const size_t bytes = rows * cols * msgl__dtype_size(t);
    char *host = ops->host_alloc(r->d, bytes);
    void *dev = ops->alloc(r->d, bytes);
    assert_true(host != NULL && dev != NULL);
    for (size_t i = 0; i < rows * cols; i++) {
        msgl__store_f32(host, t, i, at(i / cols, i % cols, r->comm->rank));
    }
    ops->copy_in(r->d, dev, host, bytes);
    settle(r);
    ops->host_free(r->d, host, bytes);
    return dev;
}

static bool add_product(rank *r, product *p)
{
    const size_t n = (size_t)p->w.n;
    msgl_linear_call c = {.w = &p->w,
                          .in = p->in,
                          .ld_in = (size_t)p->w.k,
                          .m = (int32_t)p->rows,
                          .accumulate = true,
                          .out = p->stream,
                          .ld_out = n,
                          .norm_stats = &p->norm_stats,
                          .next_norm = p->weight,
                          .sum = r->comm->ops->meeting(r->comm, p->rows * n)};
    p->norm_stats = (msgl_norm_stats){.scaled = p->scaled, .sums = p->sums};
    assert_non_null(c.sum);
    return r->kernels.gemm.linear_sum(&r->x, &c);
}

// The sum over ranks of an output, in f64.
static double product_at(const product *p, size_t row, size_t o, int size)
{
    double all = 0;
    for (int who = 0; who < size; who++) {
        for (size_t i = row % 61; i < (size_t)p->w.k; i += 251) {
            all += (double)input_at(row, i, who) * weight_at(o, i, who);
        }
    }
    return all;
}

// After `times` products: the stream, and what they left for the norm behind.
static void check_product_sums(rank *r, const product *p, int size, int times)
{
    const msgl_device_ops *ops = r->d->ops;
    const msgl_dtype t = p->w.format->dtype;
    const size_t n = (size_t)p->w.n, elements = p->rows * n, bytes = elements * 2;
    char *host = ops->host_alloc(r->d, 2 * bytes);
    float *sums = ops->host_alloc(r->d, p->rows * (n / MSGL_NORM_STATS_COLUMNS + 1) * sizeof *sums);
    ops->copy_out(r->d, host, p->stream, bytes);
    ops->copy_out(r->d, host + bytes, p->scaled, bytes);
    ops->copy_out(r->d, sums, p->sums, p->rows * (size_t)p->norm_stats.num_tiles * sizeof *sums);
    settle(r);
    for (size_t row = 0; row < p->rows; row++) {
        double squares = 0, got = 0;
        for (size_t o = 0; o < n; o++) {
            const double want = 2 + times * product_at(p, row, o, size);
            const float is = msgl__load_f32(host, t, row * n + o);
            if (is != (float)want) {
                fail_msg("%zu rows, %d x %d: %g, not %g at %zu, %zu", p->rows, p->w.n, p->w.k, is,
                         want, row, o);
            }
            squares += want * want;
            if (p->norm_stats.num_tiles > 0) {
                assert_float_equal(msgl__load_f32(host + bytes, t, row * n + o), 2 * want, 0);
            }
        }
        for (int part = 0; part < p->norm_stats.num_tiles; part++)
            got += sums[(size_t)part * p->rows + row];
        if (p->norm_stats.num_tiles > 0) assert_true(fabs(got - squares) <= 1e-5 * squares);
    }
    ops->host_free(r->d, host, 0);
    ops->host_free(r->d, sums, 0);
}

// Launched, and in a graph, which runs often.
static void check_product(rank *r, int size, msgl_dtype t, size_t rows, int n, int k)
{
    const msgl_device_ops *ops = r->d->ops;
    msgl_err err = {0};
    product p = {.w = {.format = &r->kernels.gemm.formats[t], .n = n, .k = k}, .rows = rows};
    r->x.act = t;
    p.w.data = device_matrix(r, t, (size_t)n, (size_t)k, weight_at);
    p.in = device_matrix(r, t, rows, (size_t)k, input_at);
    p.stream = device_matrix(r, t, rows, (size_t)n, two);
    p.scaled = device_matrix(r, t, rows, (size_t)n, two);
    p.weight = device_matrix(r, MSGL_F32, 1, (size_t)n, two);
    p.sums = ops->alloc(r->d, rows * ((size_t)n / MSGL_NORM_STATS_COLUMNS + 1) * sizeof *p.sums);
    const bool done = add_product(r, &p);
    if (r->comm->rank == 0) {
        print_message("%zu rows, %d x %d: %s\n", rows, n, k,
                      !done                        ? "not by a product"
                      : p.norm_stats.num_tiles > 0 ? "with norm_stats"
                                                   : "alone");
    }
    if (done) {
        check_product_sums(r, &p, size, 1);
        ops->graph_begin(r->d);
        assert_true(add_product(r, &p));
        // Sums of the other kind between, which share the slots.
        r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, p.sums, 8);
        assert_true(add_product(r, &p));
        msgl_graph *g = ops->graph_end(r->d, &err);
        if (g == NULL) fail_msg("%s", err.text);
        for (int i = 0; i < 2; i++) ops->graph_launch(r->d, g);
        check_product_sums(r, &p, size, 5);
        ops->graph_destroy(r->d, g);
    }
    r->x.act = MSGL_F32;
    void *const memory[] = {p.w.data, p.in, p.stream, p.scaled, p.weight, p.sums};
    for (size_t i = 0; i < MSGL_COUNT(memory); i++) ops->free(r->d, memory[i], 0);
}

static void check_products(rank *r, int size)
{
    static const struct {
        size_t rows;
        int n, k;
    } shapes[] = {
        {1, 5120, 2560},  {1, 5120, 8704},  {3, 1000, 512},  {8, 2560, 4864},  {1, 1024, 1536},
        {7, 2048, 3072},  {8, 24, 64},      {9, 5120, 2560}, {33, 1024, 1536}, {64, 5120, 8704},
        {64, 5120, 2560}, {50, 4096, 6144}, {64, 264, 96},
    };
    if (size != 2 || r->kernels.gemm.linear_sum == NULL) return;
    for (size_t i = 0; i < MSGL_COUNT(shapes); i++) {
        check_product(r, size, MSGL_BF16, shapes[i].rows, shapes[i].n, shapes[i].k);
    }
    check_product(r, size, MSGL_F16, 4, 5120, 2560);
}

// --- a step's beginning and end ------------------------------------------------------------------

static void *device_copy(rank *r, const void *from, size_t bytes)
{
    void *host = r->d->ops->host_alloc(r->d, bytes), *dev = r->d->ops->alloc(r->d, bytes);
    assert_true(host != NULL && dev != NULL);
    memcpy(host, from, bytes);
    r->d->ops->copy_in(r->d, dev, host, bytes);
    settle(r);
    r->d->ops->host_free(r->d, host, bytes);
    return dev;
}

enum { OWN_ROWS = 5, MOST_TOKENS = 200 }; // of the embedding each rank's; of a call

// Of calls whose tokens are all rank 0's, all rank 1's, and of either.
static int32_t token_of(int call, int t)
{
    return call % 3 < 2 ? OWN_ROWS * (call % 3) + t % OWN_ROWS : (t * 7 + call) % (2 * OWN_ROWS);
}

// One call behind the other, with sums of other kinds between, whose slots are the same.
static void check_rows(rank *r, msgl_dtype t, int tokens, int hidden)
{
    enum { CALLS = 7 };
    const msgl_device_ops *ops = r->d->ops;
    const size_t bytes = (size_t)tokens * (size_t)hidden * msgl__dtype_size(t);
    int32_t index[MOST_TOKENS], ids[MOST_TOKENS];
    char *out[CALLS], *host = ops->host_alloc(r->d, bytes);
    int32_t *pool[CALLS];
    const float one = 1;
    float *ones = device_copy(r, &one, sizeof one);
    for (int i = 0; i < tokens; i++) index[i] = i;
    msgl_weight w = {.format = &r->kernels.gemm.formats[t],
                     .n = OWN_ROWS,
                     .k = hidden,
                     .first = OWN_ROWS * r->comm->rank};
    r->x.act = t;
    w.data = device_matrix(r, t, OWN_ROWS, (size_t)hidden, weight_at);
    msgl_embed_call c = {
        .tokens = {.count = tokens, .num_answers = tokens, .paging = msgl__paging_of(1)},
        .w = &w,
        .half = 1,
        .scale = 1,
        .inv_freq = ones};
    c.tokens.index = device_copy(r, index, (size_t)tokens * sizeof *index);
    c.positions = c.tokens.index;
    c.cos_sin = ops->alloc(r->d, (size_t)tokens * 2 * sizeof(float));
    for (int call = 0; call < CALLS; call++) {
        for (int i = 0; i < tokens; i++) ids[i] = token_of(call, i);
        pool[call] = device_copy(r, ids, (size_t)tokens * sizeof *ids);
        out[call] = ops->alloc(r->d, bytes);
    }
    for (int call = 0; call < CALLS; call++) {
        c.tokens.pool = pool[call], c.out = out[call];
        c.sum = r->comm->ops->meeting(r->comm, (size_t)tokens * (size_t)(hidden + 1));
        assert_non_null(c.sum);
        assert_true(r->kernels.gemm.embed(&r->x, &c));
        if (call % 2 != 0) r->comm->ops->all_reduce(r->comm, &r->x, MSGL_F32, c.cos_sin, 2);
    }
    for (int call = 0; call < CALLS; call++) {
        ops->copy_out(r->d, host, out[call], bytes);
        settle(r);
        for (int i = 0; i < tokens; i++) {
            const int id = token_of(call, i);
            for (int col = 0; col < hidden; col++) {
                const size_t at = (size_t)i * (size_t)hidden + (size_t)col;
                const float want = weight_at((size_t)id % OWN_ROWS, (size_t)col, id / OWN_ROWS);
                assert_float_equal(msgl__load_f32(host, t, at), want, 0);
            }
        }
        ops->free(r->d, out[call], 0), ops->free(r->d, pool[call], 0);
    }
    r->x.act = MSGL_F32;
    ops->host_free(r->d, host, bytes);
    void *const memory[] = {w.data, ones, (void *)c.tokens.index, c.cos_sin};
    for (size_t i = 0; i < MSGL_COUNT(memory); i++) ops->free(r->d, memory[i], 0);
}

enum { OWN_COLUMNS = 8, PICKED_ROWS = 150 };

// Some rows' largest is 0, of either rank; others' stands twice, or is not there.
static float logit_at(size_t row, size_t col, int who)
{
    if (row % 10 == 9) return -INFINITY;
    const size_t all = col + OWN_COLUMNS * (size_t)who;
    const float least = row % 2 == 0 ? -9 : -4;
    return least + (float)((all * 7 + row * 3) % (row % 3 == 0 ? 10 : 5));
}

static void check_picks(rank *r)
{
    const msgl_device_ops *ops = r->d->ops;
    msgl_sample_row rows[PICKED_ROWS];
    for (int i = 0; i < PICKED_ROWS; i++) rows[i] = (msgl_sample_row){.top_p = 1};
    msgl_sample_row *d_rows = device_copy(r, rows, sizeof rows);
    int32_t *out = ops->host_alloc(r->d, 2 * PICKED_ROWS * sizeof *out);
    msgl_sample_call c = {.ld = OWN_COLUMNS,
                          .num_rows = PICKED_ROWS,
                          .vocab = OWN_COLUMNS,
                          .rows = d_rows,
                          .any_random = true,
                          .first = OWN_COLUMNS * r->comm->rank};
    c.logits = device_matrix(r, MSGL_F32, PICKED_ROWS, OWN_COLUMNS, logit_at);
    c.keys = ops->alloc(r->d, PICKED_ROWS * sizeof *c.keys);
    c.tokens = ops->alloc(r->d, 2 * PICKED_ROWS * sizeof *c.tokens);
    c.status = c.tokens + PICKED_ROWS;
    c.sum = r->comm->ops->meeting(r->comm, 2 * PICKED_ROWS);
    assert_non_null(c.sum);
    for (int call = 0; call < 3; call++) {
        r->kernels.sample.draw(&r->x, &c);
        r->kernels.sample.pick(&r->x, &c, r->comm->size);
    }
    ops->copy_out(r->d, out, c.tokens, 2 * PICKED_ROWS * sizeof *out);
    settle(r);
    for (size_t row = 0; row < PICKED_ROWS; row++) {
        int32_t best = 0;
        for (size_t i = 1; i < 2 * OWN_COLUMNS; i++) {
            const float most = logit_at(row, (size_t)best % OWN_COLUMNS, best / OWN_COLUMNS);
            if (logit_at(row, i % OWN_COLUMNS, (int)(i / OWN_COLUMNS)) > most) best = (int32_t)i;
        }
        const bool bad = row % 10 == 9;
        assert_int_equal(out[row], bad ? -1 : best);
        assert_int_equal(out[PICKED_ROWS + row], bad ? MSGL_ENUMERIC : 0);
    }
    ops->host_free(r->d, out, 0);
    void *const memory[] = {d_rows, c.logits, c.keys, c.tokens};
    for (size_t i = 0; i < MSGL_COUNT(memory); i++) ops->free(r->d, memory[i], 0);
}

static void check_ends(rank *r, int size)
{
    if (size != 2) return;
    check_rows(r, MSGL_BF16, 1, 5120);
    check_rows(r, MSGL_BF16, 64, 5120);
    check_rows(r, MSGL_F16, 7, 24);
    check_rows(r, MSGL_F32, MOST_TOKENS, 2304);
    check_picks(r);
}

static void check_communicator(rank *r, int size)
{
    static const msgl_dtype types[] = {MSGL_F32, MSGL_F16, MSGL_BF16};
    for (size_t t = 0; t < MSGL_COUNT(types); t++) check_sums(r, size, types[t]);
    check_gathers(r, size);
    if (r->comm->ops->all_reduce_add == NULL || strstr(r->note, "peer memory") == NULL) return;
    check_adding(r, size, MSGL_BF16, 1, 5120);
    check_adding(r, size, MSGL_BF16, 512, 5120);
    check_adding(r, size, MSGL_BF16, 64, 5120);
    check_adding(r, size, MSGL_F32, 3, 1000);
    check_adding(r, size, MSGL_F16, 5, 7168);
    check_products(r, size);
    check_ends(r, size);
}

// The other ranks of `size` are this process's children; they end with its asserts.
static void with_ranks(int size, const char *where, const way *by, void (*body)(rank *r, int size))
{
    msgl_err err = {0};
    msgl_group *g = NULL;
    pid_t others[MAX_RANKS] = {0};
    rank r;
    if (size > 1) assert_int_equal(msgl__group_create(size, &g, &err), 0);
    for (int i = 1; i < size; i++) {
        fflush(NULL);
        others[i] = fork();
        if (others[i] != 0) continue;
        open_rank(&r, g, i, size, where, by);
        body(&r, size);
        close_rank(&r);
        _exit(0);
    }
    open_rank(&r, g, 0, size, where, by);
    body(&r, size);
    close_rank(&r);
    for (int i = 1; i < size; i++) {
        int status = -1;
        assert_int_equal(waitpid(others[i], &status, 0), others[i]);
        assert_int_equal(status, 0);
    }
    msgl__group_destroy(g);
}

static void test_communicator(void **state)
{
    with_ranks(ranks, device, *state, check_communicator);
}

// What of NCCL one GPU can show: it is found, and long messages go through it.
static void test_one_rank(void **state)
{
    (void)state;
    with_ranks(1, "cuda", &BOTH, check_communicator);
}

// --- times -------------------------------------------------------------------------------------

typedef struct timed {
    rank *r;
    msgl_graph *graph;
} timed;

static void launch(void *ctx, int64_t times)
{
    const timed *t = ctx;
    for (int64_t i = 0; i < times; i++) t->r->d->ops->graph_launch(t->r->d, t->graph);
}

static void time_sums(rank *r, int size)
{
    enum { ROUNDS = 7 };
    static const size_t bytes[] = {10240,   81920,    655360,   2621440,
                                   8 << 20, 16 << 20, 64 << 20, 160 << 20};
    const msgl_device_ops *ops = r->d->ops;
    msgl_err err = {0};
    for (size_t l = 0; l < MSGL_COUNT(bytes); l++) {
        const int calls = bytes[l] > 4 << 20 ? 8 : 64, graphs = bytes[l] > 32 << 20 ? 4 : 20;
        void *buf = ops->alloc(r->d, bytes[l]);
        double best = 0;
        r->comm->ops->all_reduce(r->comm, &r->x, MSGL_BF16, buf, bytes[l] / 2);
        settle(r);
        ops->graph_begin(r->d);
        for (int i = 0; i < calls; i++) {
            r->comm->ops->all_reduce(r->comm, &r->x, MSGL_BF16, buf, bytes[l] / 2);
        }
        timed t = {r, ops->graph_end(r->d, &err)};
        if (t.graph == NULL) fail_msg("%s", err.text);
        for (int i = 0; i < ROUNDS; i++) {
            const double us = ops->time_ms(r->d, launch, &t, graphs) * 1e3 / (calls * graphs);
            if (i == 1 || (i > 1 && us < best)) best = us;
        }
        if (r->comm->rank == 0) {
            print_message("%s: all_reduce of %zu bytes on %d ranks: %.1f us, %.1f GB/s\n", r->note,
                          bytes[l], size, best, (double)bytes[l] / best * 1e-3);
        }
        ops->graph_destroy(r->d, t.graph);
        ops->free(r->d, buf, bytes[l]);
    }
}

// --- models ------------------------------------------------------------------------------------

// Whether the model's answers, computed token by token, are what its prompts are: not so where
// angles depend on the length of the request or its prompt.
static bool answers_as_prompts(const char *model)
{
    char dir[512];
    msgl_model_config *c = malloc(sizeof *c);
    msgl_err err = {0};
    parity_path(dir, model, "");
    if (msgl__model_config_load(dir, c, &err) != 0) fail_msg("%s", err.text);
    const bool same = !msgl__rope_per_request(&c->ropes[0]) && c->ropes[0].dual.len == 0;
    free(c);
    return same;
}

typedef struct model_case {
    const char *model, *dtype, *expected; // dtype NULL: float32
    int32_t page_size, graph_max_bs;
    bool deterministic;
    int32_t expert_ranks;
    bool no_peers;
} model_case;

// Without peer memory ranks need NCCL, and a GPU each. By the name alone: what has used CUDA cannot
// fork ranks.
static void skip_without_nccl(void)
{
    unsigned named = 0;
    bool twice = false;
    for (const char *at = strchr(device, ':'); at != NULL; at = strchr(at + 1, ',')) {
        const unsigned gpu = 1U << (atoi(at + 1) & 31);
        twice |= (named & gpu) != 0;
        named |= gpu;
    }
    if (!twice) return;
    print_message("NCCL allows one rank a GPU\n");
    exit(SKIPPED);
}

static void test_model(void **state)
{
    const model_case *c = *state;
    const harness_target t = {.device = device,
                              .attention = "auto",
                              .page_size = c->page_size,
                              .graph_max_bs = c->graph_max_bs,
                              .answers_from =
                                  c->graph_max_bs > 0 && answers_as_prompts(c->model) ? 40 : 0,
                              .deterministic = c->deterministic,
                              .expert_ranks = c->expert_ranks,
                              .no_peers = c->no_peers,
                              .ranks = ranks};
    if (c->no_peers) skip_without_nccl();
    const bool ran = c->dtype == NULL ? parity_f32(c->model, &t)
                                      : parity_half(c->model, c->dtype, c->expected, &t);
    if (!ran) exit(SKIPPED); // not on this GPU, or too few heads; the reason is printed
}

// A rank that is killed or stopped ends the step that needs it, with its name.
static void test_failing(void **state)
{
    const int with = *(const int *)*state;
    const harness_target t = {
        .device = device, .attention = "auto", .page_size = 16, .ranks = ranks};
    harness h;
    char dir[512];
    int32_t ids[64];
    parity_path(dir, "gpt_oss", "prompt.json");
    assert_int_equal(load_ids(dir, "ids", ids, 64), 64);
    parity_path(dir, "gpt_oss", "");
    msgl_options o = harness_config_for(dir, "bfloat16", &t);
    harness_open(&h, &o);
    harness_pages(&h, 3, 64);
    harness_tokens(&h, 3, ids, 64);
    int code = 0;
    uint64_t begin = 0;
    for (int32_t at = 0; at < 60 && code == 0; at++) {
        msgl_batch_req req = harness_req(3, at, at + 1);
        msgl_batch b = {.size = 1, .num_tokens = 1, .reqs = &req};
        if (at == 20) {
            begin = msgl__now_ns();
            kill(msgl__ranks_process(&h.e->place, 1), with);
        }
        code = h.r->submit(h.r->ctx, &b);
        if (code == 0) code = h.r->wait(h.r->ctx, 0, &h.result);
    }
    const double seconds = (double)(msgl__now_ns() - begin) * 1e-9;
    print_message("signal %d: %.2f s\n", with, seconds);
    assert_int_equal(code, MSGL_EPEER);
    char fault[64];
    snprintf(fault, sizeof fault, "rank 1 of %d failed", ranks);
    assert_string_equal(h.r->fault(h.r->ctx), fault);
    assert_true(seconds < 3);
    harness_close(&h);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

// Graphs end before the communicator: NCCL's end waits for those that have its calls, which two
// ranks have where they have no peer memory.
static void test_graphs_end(void **state)
{
    (void)state;
    const harness_target t = {.device = device,
                              .attention = "auto",
                              .page_size = 16,
                              .graph_max_bs = 32,
                              .no_peers = true,
                              .ranks = ranks};
    skip_without_nccl();
    json_t *c = small_config("Qwen3ForCausalLM");
    folder f;
    harness h;
    set_field(c, "vocab_size", "300000");
    set_field(c, "head_dim", "64");
    set_field(c, "hidden_size", "128");
    set_field(c, "intermediate_size", "128");
    folder_make(&f);
    folder_write_json(&f, "config.json", c);
    json_decref(c);
    msgl_options o = harness_config_for(f.dir, "bfloat16", &t);
    o.dummy_weight = 1;
    harness_open(&h, &o);
    alarm(30);
    harness_close(&h);
    alarm(0);
    folder_remove(&f);
}

// What names too few GPUs, or more than there are.
static void test_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"cuda:0", "cuda:0,99", "cuda:0,0,0", "cuda:0,", "cuda:0,x"};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        msgl_device_choice choice;
        msgl_err err = {0};
        const int code = msgl__device_choose(bad[i], 1, ranks, &choice, &err);
        print_message("%s\n", err.text);
        assert_int_equal(code, MSGL_EINVAL);
        assert_non_null(strstr(err.text, "allowed"));
    }
}

// --- processes ---------------------------------------------------------------------------------

enum { MAX_CASES = 256 };

typedef struct all_cases {
    struct CMUnitTest tests[MAX_CASES];
    model_case models[MAX_CASES];
    char names[MAX_CASES][96];
    int count, num_models;
} all_cases;

static void add_plain(all_cases *a, const char *name, void (*fn)(void **state), void *state)
{
    a->tests[a->count++] = (struct CMUnitTest){name, fn, NULL, NULL, state};
}

static void add_model(all_cases *a, model_case c)
{
    model_case *kept = &a->models[a->num_models];
    char *name = a->names[a->num_models++];
    *kept = c;
    snprintf(name, sizeof a->names[0], "%s %s, pages of %d%s%s%s%s", c.model,
             c.dtype != NULL ? c.dtype : "float32", (int)c.page_size,
             c.graph_max_bs > 0 ? ", graphs" : "", c.deterministic ? ", deterministic" : "",
             c.expert_ranks > 1 ? ", experts" : "", c.no_peers ? ", NCCL alone" : "");
    add_plain(a, name, test_model, kept);
}

static void add_all(all_cases *a, bool quick)
{
    static int signals[] = {SIGKILL, SIGSTOP};
    add_plain(a, "communicator", test_communicator, &BOTH);
    add_plain(a, "communicator by peer memory alone", test_communicator, &PEERS);
    add_plain(a, "communicator by NCCL alone", test_communicator, &NCCL);
    add_plain(a, "communicator of one rank", test_one_rank, NULL);
    add_plain(a, "graphs with NCCL end", test_graphs_end, NULL);
    add_plain(a, "refused", test_refused, NULL);
    add_plain(a, "killed rank", test_failing, &signals[0]);
    add_plain(a, "stopped rank", test_failing, &signals[1]);
    for (int m = 0; parity_models[m] != NULL && (!quick || m < 1); m++) {
        add_model(a, (model_case){parity_models[m], .page_size = 16});
        // In bfloat16 this one is off at a single token (position 57, by 1.3 on average), as when
        // one of its experts is another: partial sums are rounded, and scores may be that near.
        // float32 shows the weights, and gpt_oss the rest.
        if (strcmp(parity_models[m], "gpt_oss_mxfp4") == 0) continue;
        add_model(a, (model_case){parity_models[m], "bfloat16", "expected_bf16.bin", 16,
                                  .graph_max_bs = 4});
    }
    add_model(a, (model_case){"qwen3", "bfloat16", "expected_bf16.bin", 64, .graph_max_bs = 0});
    add_model(a, (model_case){"qwen3", "bfloat16", "expected_bf16.bin", 16, 4,
                              .deterministic = true, .expert_ranks = 1});
    add_model(a, (model_case){"qwen3", .page_size = 16, .no_peers = true});
    add_model(a, (model_case){"qwen3", "bfloat16", "expected_bf16.bin", 16, 4, .no_peers = true});
    static const char *const mixtures[] = {"qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3"};
    for (size_t m = 0; m < MSGL_COUNT(mixtures); m++) {
        add_model(a, (model_case){mixtures[m], .page_size = 16, .expert_ranks = ranks});
        add_model(a, (model_case){mixtures[m], "bfloat16", "expected_bf16.bin", 16, 4,
                                  .expert_ranks = ranks});
    }
}

// In a process of its own.
static int run_case(const struct CMUnitTest *test)
{
    int status = -1;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        const int failed = _cmocka_run_group_tests(test->name, test, 1, NULL, NULL);
        fflush(NULL);
        _exit(failed == 0 ? 0 : 1);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return 1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static void test_there(void **state)
{
    (void)state;
    msgl_device_choice choice;
    msgl_err err = {0};
    if (msgl__device_choose(device, 0, ranks, &choice, &err) == 0) return;
    fprintf(stderr, "skipped: %s\n", err.text);
    _exit(SKIPPED);
}

static void test_times(void **state)
{
    with_ranks(ranks, device, *state, time_sums);
}

int main(int argc, char **argv)
{
    static all_cases a;
    const struct CMUnitTest there = {"a GPU", test_there, NULL, NULL, NULL};
    static way *const ways[] = {&PEERS, &NCCL};
    const char *only = "*";
    int part = 1, parts = 1;
    bool quick = false, bench = false;
    for (int i = 1; i < argc; i++) {
        quick |= strcmp(argv[i], "--quick") == 0;
        bench |= strcmp(argv[i], "--bench") == 0;
        if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) only = argv[++i];
        if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) device = argv[++i];
        if (strcmp(argv[i], "--part") == 0 && i + 1 < argc &&
            (sscanf(argv[++i], "%d/%d", &part, &parts) != 2 || part < 1 || part > parts)) {
            fprintf(stderr, "--part %s: allowed I/N, I from 1 to N\n", argv[i]);
            return 2;
        }
    }
    ranks = 1;
    for (const char *at = device; (at = strchr(at, ',')) != NULL; at++) ranks++;
    if (ranks < 2 || ranks > MAX_RANKS) {
        fprintf(stderr, "--device %s: allowed cuda:A,B and up to %d GPUs\n", device, MAX_RANKS);
        return 2;
    }
    const int code = run_case(&there);
    if (code != 0) return code;
    for (size_t i = 0; bench && i < MSGL_COUNT(ways); i++) {
        const struct CMUnitTest times = {ways[i]->name, test_times, NULL, NULL, ways[i]};
        if (run_case(&times) == 1) return 1;
    }
    if (bench) return 0;
    add_all(&a, quick);
    int failed = 0, skipped = 0, run = 0;
    for (int i = part - 1; i < a.count; i += parts) {
        if (fnmatch(only, a.tests[i].name, 0) != 0) continue;
        const int one = run_case(&a.tests[i]);
        run++;
        skipped += one == SKIPPED;
        if (one == 0 || one == SKIPPED) continue;
        failed++;
        fprintf(stderr, "FAILED: %s\n", a.tests[i].name);
    }
    printf("%d cases, %d failed, %d not possible here\n", run, failed, skipped);
    return failed > 0;
}
