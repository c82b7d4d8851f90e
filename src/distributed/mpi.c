// SPDX-License-Identifier: Apache-2.0
//
// The communicator of the processes of an MPI job. A call computes before it returns, on the
// calling thread.
//
// MPI's own sums would be in an order of its own, so that ranks could differ; here MPI carries the
// parts, and distributed/sum.h adds them in rank order. Every call is one or two exchanges a piece,
// in which a rank sends to all others and receives from all. They are begun and asked after, never
// waited for in MPI: a rank that has died or stopped would be waited for without end.
#include <assert.h>
#include <string.h>
#include <time.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "distributed/communicator.h"
#include "distributed/internal.h"
#include "distributed/mpi/plugin.h"
#include "distributed/sum.h"
#include "kernel/exec.h"
#include "utils/clock.h"
#include "utils/hash.h"
#include "utils/plugin.h"

enum {
    // A rank asks for so long, then sleeps between. Where MPI was told that there are more ranks
    // than processors, it lets others run while it is asked.
    SPIN_NS = 2000000,
    SLEEP_NS = 50000,
    LEFT_NS = 1000000000,   // what a rank sent before it left is here by then
    ONE_SHOT_BYTES = 16384, // as in shm.c
    LINE = 64,
    PIECE = (1 << 20) / sizeof(float), // elements
};

enum { OP_ALL_REDUCE, OP_ALL_GATHER, OP_ALL_TO_ALL, OP_BROADCAST, OPS };

typedef struct mpi_comm {
    msgl_comm base;
    const msgl_mpi_api *api;
    msgl_group *group;
    int tag;     // of the current call
    int failed;  // 0, or why every call ends at once
    float *rows; // [size, PIECE]: the ranks' values of a piece
    msgl_mpi_message sent[MSGL_GROUP_MAX_SIZE], received[MSGL_GROUP_MAX_SIZE];
    int num_sent, num_received;
} mpi_comm;

_Static_assert(2 * MSGL_GROUP_MAX_SIZE <= MSGL_MPI_MAX_MESSAGES, "of one exchange");

static void add(msgl_mpi_message *messages, int *num, int rank, const void *data, size_t bytes)
{
    messages[(*num)++] =
        (msgl_mpi_message){.data = (void *)(uintptr_t)data, .bytes = bytes, .rank = rank};
}

static void add_send(mpi_comm *c, int rank, const void *data, size_t bytes)
{
    add(c->sent, &c->num_sent, rank, data, bytes);
}

static void add_receive(mpi_comm *c, int rank, void *data, size_t bytes)
{
    add(c->received, &c->num_received, rank, data, bytes);
}

// Whether somebody is to blame, or left long ago.
static bool in_vain(const mpi_comm *c, uint64_t waited)
{
    if (msgl__group_blamed(c->group) >= 0) return true;
    for (int r = 0; waited >= LEFT_NS && r < c->base.size; r++) {
        if (atomic_load(&c->group->ranks[r].state) == MSGL_RANK_LEFT) return true;
    }
    return false;
}

// The messages that were added are sent, and received. False: the call ends here.
static bool exchange(mpi_comm *c)
{
    int code = c->api->start(c->sent, c->num_sent, c->received, c->num_received, c->tag);
    int rank = -1;
    c->num_sent = c->num_received = 0;
    const uint64_t begin = msgl__now_ns();
    while (code == 0 && !c->api->test(&code, &rank)) {
        const uint64_t waited = msgl__now_ns() - begin;
        if (waited < SPIN_NS) continue;
        if (in_vain(c, waited)) {
            code = MSGL_EPEER;
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    if (rank >= 0) msgl__group_blame(c->group, rank);
    c->failed = code;
    return code == 0;
}

// Begins a call; false: the group is over. Calls that differ have different tags, or messages of
// different sizes, sooner or later.
static bool begin(mpi_comm *c, int op, int root, size_t count)
{
    if (c->failed == 0 && msgl__group_blamed(c->group) >= 0) c->failed = MSGL_EPEER;
    if (c->failed != 0) return false;
    const size_t call = (count * MSGL_GROUP_MAX_SIZE + (size_t)root) * OPS + (size_t)op;
    c->tag = (int)(call % MSGL_MPI_MAX_TAG);
    return true;
}

static void end(const mpi_comm *c, msgl_exec *x)
{
    if (c->failed != 0 && x->status == 0) x->status = c->failed;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static float *row_of(const mpi_comm *c, int rank)
{
    return c->rows + (size_t)rank * PIECE;
}

static void sum(const mpi_comm *c, size_t n, float *out)
{
    const float *rows[MSGL_GROUP_MAX_SIZE];
    for (int r = 0; r < c->base.size; r++) rows[r] = row_of(c, r);
    msgl__sum_rows(rows, c->base.size, n, out);
}

// Every rank sums the pieces of all ranks.
static bool reduce_one_shot(mpi_comm *c, float *buf, size_t n)
{
    const int rank = c->base.rank;
    if (n > 0) memcpy(row_of(c, rank), buf, n * sizeof *buf);
    for (int r = 0; r < c->base.size; r++) {
        if (r == rank) continue;
        add_send(c, r, row_of(c, rank), n * sizeof *buf);
        add_receive(c, r, row_of(c, r), n * sizeof *buf);
    }
    if (!exchange(c)) return false;
    sum(c, n, buf);
    return true;
}

// Reduce-scatter: each rank sums its shard of a piece, [rank * shard, ...), and sends it to the
// others.
static bool reduce_two_shot(mpi_comm *c, float *buf, size_t n)
{
    const int size = c->base.size, rank = c->base.rank;
    const size_t line = LINE / sizeof *buf;
    const size_t shard = (n + line * (size_t)size - 1) / (line * (size_t)size) * line;
    const size_t from = least(n, (size_t)rank * shard), mine = least(n, from + shard) - from;
    for (int r = 0; r < size; r++) {
        if (r == rank) continue;
        const size_t at = least(n, (size_t)r * shard);
        add_send(c, r, buf + at, (least(n, at + shard) - at) * sizeof *buf);
        add_receive(c, r, row_of(c, r), mine * sizeof *buf);
    }
    memcpy(row_of(c, rank), buf + from, mine * sizeof *buf);
    if (!exchange(c)) return false;
    sum(c, mine, buf + from);
    for (int r = 0; r < size; r++) {
        if (r == rank) continue;
        const size_t at = least(n, (size_t)r * shard);
        add_send(c, r, buf + from, mine * sizeof *buf);
        add_receive(c, r, buf + at, (least(n, at + shard) - at) * sizeof *buf);
    }
    return exchange(c);
}

static void mpi_all_reduce(msgl_comm *base, msgl_exec *x, msgl_dtype dtype, void *buf, size_t n)
{
    assert(dtype == MSGL_F32);
    mpi_comm *c = (mpi_comm *)base;
    bool ok = begin(c, OP_ALL_REDUCE, 0, n);
    const bool one_shot = base->size == 2 || n * sizeof(float) <= ONE_SHOT_BYTES;
    float *at = buf;
    for (size_t left = n, m; ok; left -= m, at += m) {
        m = least(left, PIECE);
        ok = one_shot ? reduce_one_shot(c, at, m) : reduce_two_shot(c, at, m);
        if (left == m) break; // a call of nothing meets the others too
    }
    end(c, x);
}

static void mpi_all_gather(msgl_comm *base, msgl_exec *x, const float *in, size_t n, float *out)
{
    mpi_comm *c = (mpi_comm *)base;
    bool ok = begin(c, OP_ALL_GATHER, 0, n);
    float *own = out + (size_t)base->rank * n;
    if (ok && own != in && n > 0) memcpy(own, in, n * sizeof *in);
    for (size_t done = 0, m; ok; done += m) {
        m = least(n - done, PIECE);
        for (int r = 0; r < base->size; r++) {
            if (r == base->rank) continue;
            add_send(c, r, own + done, m * sizeof *in);
            add_receive(c, r, out + (size_t)r * n + done, m * sizeof *in);
        }
        ok = exchange(c);
        if (done + m == n) break;
    }
    end(c, x);
}

// A piece of what goes between two ranks: n elements in all, of which `done` have gone.
static size_t piece_of(size_t n, size_t done)
{
    return done < n ? least(n - done, PIECE) : 0;
}

static void mpi_all_to_all(msgl_comm *base, msgl_exec *x, const void *in, const size_t *counts,
                           void *out)
{
    mpi_comm *c = (mpi_comm *)base;
    const int size = base->size, rank = base->rank;
    const size_t bytes = (size_t)size * (size_t)size * sizeof *counts;
    size_t most = 0;
    for (int i = 0; i < size * size; i++) most = counts[i] > most ? counts[i] : most;
    bool ok = begin(c, OP_ALL_TO_ALL, 0, msgl__hash(MSGL_HASH_START, counts, bytes));
    for (size_t done = 0; ok; done += PIECE) {
        const float *from = in;
        float *to = out;
        for (int r = 0; r < size; r++) {
            const size_t goes = counts[rank * size + r], comes = counts[r * size + rank];
            const size_t now = piece_of(goes, done), then = piece_of(comes, done);
            if (r != rank && now > 0) add_send(c, r, from + done, now * sizeof *from);
            if (r != rank && then > 0) add_receive(c, r, to + done, then * sizeof *to);
            if (r == rank && now > 0) memcpy(to + done, from + done, now * sizeof *to);
            from += goes;
            to += comes;
        }
        ok = exchange(c);
        if (most <= done + PIECE) break;
    }
    end(c, x);
}

static void mpi_broadcast(msgl_comm *base, msgl_exec *x, void *buf, size_t bytes, int root)
{
    mpi_comm *c = (mpi_comm *)base;
    assert(root >= 0 && root < base->size);
    bool ok = begin(c, OP_BROADCAST, root, bytes);
    char *at = buf;
    for (size_t left = bytes, m; ok; left -= m, at += m) {
        m = least(left, PIECE * sizeof(float));
        if (base->rank != root) add_receive(c, root, at, m);
        for (int r = 0; base->rank == root && r < base->size; r++) {
            if (r != root) add_send(c, r, at, m);
        }
        ok = exchange(c);
        if (left == m) break;
    }
    end(c, x);
}

static void mpi_destroy(msgl_comm *base)
{
    mpi_comm *c = (mpi_comm *)base;
    // After a failure MPI still has its messages.
    if (c->failed != 0) return;
    msgl__free(c->rows);
    msgl__free(c);
}

static const msgl_comm_ops MPI_OPS = {
    .name = "mpi",
    .all_reduce = mpi_all_reduce,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .broadcast = mpi_broadcast,
    .destroy = mpi_destroy,
};

int msgl__comm_mpi_create(msgl_group_member *m, const msgl_mpi_api *api, msgl_comm **out,
                          msgl_err *err)
{
    *out = NULL;
    mpi_comm *c = msgl__calloc(1, sizeof *c);
    const size_t size = (size_t)msgl__group_size(msgl__group_of(m));
    float *rows = msgl__calloc(size * PIECE, sizeof *rows);
    if (c == NULL || rows == NULL) {
        msgl__free(c);
        msgl__free(rows);
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory for a communicator");
    }
    c->base = (msgl_comm){.ops = &MPI_OPS, .rank = msgl__group_rank(m), .size = (int)size};
    c->api = api;
    c->group = msgl__group_of(m);
    c->rows = rows;
    *out = &c->base;
    return 0;
}

const msgl_mpi_api *msgl__mpi_open(msgl_err *err)
{
    void *symbol = msgl__plugin_open("minisgl-mpi.so", "msgl_mpi_plugin", err);
    if (symbol == NULL) return NULL;
    msgl_mpi_plugin_fn fn;
    memcpy(&fn, &symbol, sizeof fn); // ISO C has no cast from an object to a function pointer
    const msgl_mpi_api *api = fn();
    if (api->abi == MSGL_MPI_ABI) return api;
    msgl__err_set(err, MSGL_EUNSUPPORTED,
                  "minisgl-mpi.so is of another build: interface %u, this program has %u",
                  (unsigned)api->abi, (unsigned)MSGL_MPI_ABI);
    return NULL;
}
