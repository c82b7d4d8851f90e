// SPDX-License-Identifier: Apache-2.0
//
// The communicator of ranks on one host's CPUs, over the memory that their group shares. A call
// computes before it returns, on the calling thread.
//
// Data cross in pieces of a slot. A rank writes a piece into one of its two slots, arrives at a
// barrier, and reads the others' slots; the next piece takes the other slot. Who writes to a slot
// again has passed the barrier of the piece between, at which everybody arrived after reading, so
// one barrier a piece is enough.
//
// A barrier is a counter a rank: a rank counts its own up and waits for those of the others, first
// spinning, then in a futex on the counter that is behind. Beside the counter stands which call the
// rank is in; ranks in different calls (which is a bug of who made them) see that at their next
// barrier and end, instead of taking each other's data for something else.
#include <assert.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "distributed/communicator.h"
#include "distributed/internal.h"
#include "distributed/sum.h"
#include "kernel/exec.h"
#include "utils/clock.h"
#include "utils/hash.h"

enum {
    SPIN_NS = 20000,
    SPINS_PER_CLOCK = 16,
    SLEEP_NS = 50000000, // at most, until a waiting rank looks whether it waits in vain
    // Up to so many bytes, and with two ranks, every rank sums all parts; else each sums its shard
    // of them for all, which reads less and takes a second barrier (docs/internals/ranks.md).
    ONE_SHOT_BYTES = 16384,
    LINE = 64,
    PIECE = MSGL_GROUP_SLOT_BYTES / sizeof(float), // elements of a slot
};

enum { OP_ALL_REDUCE = 1, OP_ALL_GATHER, OP_ALL_TO_ALL, OP_BROADCAST };

typedef struct shm_comm {
    msgl_comm base;
    msgl_group *group;
    msgl_rank_line *own;
    msgl_rank_call call; // the current one
    uint32_t barriers;   // passed, or arrived at
    unsigned slot;       // of the current piece
    int failed;          // 0, or why every call ends at once
} shm_comm;

static bool reached(const msgl_rank_line *p, uint32_t barrier)
{
    const uint32_t at = atomic_load_explicit(&p->arrived, memory_order_acquire);
    return (int32_t)(at - barrier) >= 0;
}

// Whether somebody is to blame, or has left and will never arrive.
static bool in_vain(const shm_comm *c)
{
    if (msgl__group_blamed(c->group) >= 0) return true;
    for (int r = 0; r < c->base.size; r++) {
        const msgl_rank_line *p = &c->group->ranks[r];
        if (atomic_load(&p->state) == MSGL_RANK_LEFT && !reached(p, c->barriers)) return true;
    }
    return false;
}

static bool spin_until_reached(const shm_comm *c, const msgl_rank_line *p)
{
    if (reached(p, c->barriers)) return true;
    // It cannot run where we spin. The scheduler puts who is woken beside who woke it, often.
    const int cpu = atomic_load_explicit(&c->own->cpu, memory_order_relaxed);
    if (atomic_load_explicit(&p->cpu, memory_order_relaxed) == cpu) return false;
    const uint64_t end = msgl__now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPINS_PER_CLOCK; i++) {
            if (reached(p, c->barriers)) return true;
            MSGL_CPU_RELAX();
        }
    } while (msgl__now_ns() < end);
    return false;
}

// False: it will not arrive any more.
static bool wait_for(const shm_comm *c, msgl_rank_line *p)
{
    if (spin_until_reached(c, p)) return true;
    // Sequentially consistent with `arrived`: either the other rank sees us and wakes us, or the
    // futex sees its new count.
    atomic_fetch_add(&p->waiters, 1);
    bool ok;
    for (;;) {
        const unsigned seen = atomic_load(&p->arrived);
        ok = (int32_t)(seen - c->barriers) >= 0;
        // Looked at again after: who left had arrived before.
        if (ok || (in_vain(c) && !(ok = reached(p, c->barriers)))) break;
        const struct timespec t = {.tv_nsec = SLEEP_NS};
        syscall(SYS_futex, &p->arrived, FUTEX_WAIT, seen, &t, NULL, 0);
    }
    atomic_fetch_sub(&p->waiters, 1);
    return ok;
}

static bool same_call(const msgl_rank_call *a, const msgl_rank_call *b)
{
    return a->count == b->count && a->op == b->op && a->root == b->root;
}

// Everybody finds the same rank: the first whose call is not rank 0's.
static bool check_calls(shm_comm *c)
{
    const msgl_rank_line *ranks = c->group->ranks;
    const unsigned at = c->barriers % 2;
    for (int r = 1; r < c->base.size; r++) {
        if (same_call(&ranks[r].calls[at], &ranks[0].calls[at])) continue;
        msgl__group_blame(c->group, r);
        c->failed = MSGL_EINTERNAL;
        return false;
    }
    return true;
}

// What ranks wrote before it can be read by all after it. False: the call ends here.
static bool meet(shm_comm *c)
{
    c->barriers++;
    c->own->calls[c->barriers % 2] = c->call;
    atomic_store_explicit(&c->own->cpu, sched_getcpu(), memory_order_relaxed);
    atomic_store(&c->own->arrived, c->barriers);
    if (atomic_load(&c->own->waiters) > 0) {
        syscall(SYS_futex, &c->own->arrived, FUTEX_WAKE, c->base.size, NULL, NULL, 0);
    }
    for (int r = 0; r < c->base.size; r++) {
        if (wait_for(c, &c->group->ranks[r])) continue;
        c->failed = MSGL_EPEER;
        return false;
    }
    return check_calls(c);
}

// Begins a call; false: the group is over.
static bool begin(shm_comm *c, int op, int root, size_t count)
{
    if (c->failed == 0 && msgl__group_blamed(c->group) >= 0) c->failed = MSGL_EPEER;
    if (c->failed != 0) return false;
    c->call = (msgl_rank_call){.op = (uint32_t)op, .root = (uint32_t)root, .count = count};
    return true;
}

static void end(const shm_comm *c, msgl_exec *x)
{
    if (c->failed != 0 && x->status == 0) x->status = c->failed;
}

static void *slot_of(const shm_comm *c, int rank)
{
    return msgl__group_slot(c->group, rank, c->slot);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Every rank sums all parts of a piece.
static bool reduce_one_shot(shm_comm *c, float *buf, size_t n)
{
    const float *rows[MSGL_GROUP_MAX_SIZE];
    for (int r = 0; r < c->base.size; r++) rows[r] = slot_of(c, r);
    if (n > 0) memcpy(slot_of(c, c->base.rank), buf, n * sizeof *buf);
    if (!meet(c)) return false;
    msgl__sum_rows(rows, c->base.size, n, buf);
    return true;
}

// Reduce-scatter: each rank sums its shard of a piece, [rank * shard, ...), and leaves it in its
// slot. The shards are whole cache lines, so that nobody writes to a line that another one writes
// to.
static bool reduce_two_shot(shm_comm *c, float *buf, size_t n)
{
    const int size = c->base.size, rank = c->base.rank;
    const size_t line = LINE / sizeof *buf;
    const size_t shard = (n + line * (size_t)size - 1) / (line * (size_t)size) * line;
    const size_t from = least(n, (size_t)rank * shard), to = least(n, from + shard);
    float *own = slot_of(c, rank);
    memcpy(own, buf, from * sizeof *buf); // what others sum
    memcpy(own + to, buf + to, (n - to) * sizeof *buf);
    if (!meet(c)) return false;
    const float *rows[MSGL_GROUP_MAX_SIZE];
    for (int r = 0; r < size; r++) {
        rows[r] = (r == rank ? buf : (const float *)slot_of(c, r)) + from;
    }
    msgl__sum_rows(rows, size, to - from, own + from);
    if (!meet(c)) return false;
    for (int r = 0; r < size; r++) {
        const size_t at = least(n, (size_t)r * shard), m = least(n, at + shard) - at;
        memcpy(buf + at, (const float *)slot_of(c, r) + at, m * sizeof *buf);
    }
    return true;
}

static void shm_all_reduce(msgl_comm *base, msgl_exec *x, msgl_dtype dtype, void *buf, size_t n)
{
    assert(dtype == MSGL_F32);
    shm_comm *c = (shm_comm *)base;
    bool ok = begin(c, OP_ALL_REDUCE, 0, n);
    const bool one_shot = base->size == 2 || n * sizeof(float) <= ONE_SHOT_BYTES;
    float *at = buf;
    for (size_t left = n, m; ok; left -= m, at += m) {
        m = least(left, PIECE);
        ok = one_shot ? reduce_one_shot(c, at, m) : reduce_two_shot(c, at, m);
        c->slot ^= 1;
        if (left == m) break; // a call of nothing meets the others too
    }
    end(c, x);
}

static void shm_all_gather(msgl_comm *base, msgl_exec *x, const float *in, size_t n, float *out)
{
    shm_comm *c = (shm_comm *)base;
    bool ok = begin(c, OP_ALL_GATHER, 0, n);
    for (size_t done = 0, m; ok; done += m) {
        m = least(n - done, PIECE);
        if (m > 0) memcpy(slot_of(c, base->rank), in + done, m * sizeof *in);
        ok = meet(c);
        for (int r = 0; r < base->size && ok && m > 0; r++) {
            float *row = out + (size_t)r * n;
            if (r != base->rank)
                memcpy(row + done, slot_of(c, r), m * sizeof *in);
            else if (row != in)
                memcpy(row + done, in + done, m * sizeof *in);
        }
        c->slot ^= 1;
        if (done + m == n) break;
    }
    end(c, x);
}

// Where what rank `from` has for `to` begins among what it shows: what it has for the others, in
// their order. to == size: how much that is.
static size_t shown(const size_t *counts, int size, int from, int to)
{
    size_t n = 0;
    for (int r = 0; r < to; r++) n += r == from ? 0 : counts[from * size + r];
    return n;
}

// Where elements [at, at + n) of what is shown meet the piece from `done` on: returns how many do,
// and the first of them.
static size_t in_piece(size_t at, size_t n, size_t done, size_t *first)
{
    const size_t end = least(at + n, done + PIECE);
    *first = at > done ? at : done;
    return end > *first ? end - *first : 0;
}

// Of what this rank shows, the piece from `done` on.
static void write_piece(const shm_comm *c, const float *in, const size_t *counts, size_t done)
{
    const int size = c->base.size, rank = c->base.rank;
    const size_t *own = counts + rank * size;
    for (int to = 0; to < size; in += own[to++]) {
        const size_t at = shown(counts, size, rank, to);
        size_t first;
        const size_t m = to == rank ? 0 : in_piece(at, own[to], done, &first);
        float *slot = slot_of(c, rank);
        if (m > 0) memcpy(slot + (first - done), in + (first - at), m * sizeof *in);
    }
}

// What is for this rank in the others' pieces from `done` on.
static void read_piece(const shm_comm *c, const size_t *counts, size_t done, float *out)
{
    const int size = c->base.size, rank = c->base.rank;
    for (int from = 0; from < size; out += counts[from++ * size + rank]) {
        const size_t n = counts[from * size + rank], at = shown(counts, size, from, rank);
        size_t first;
        const size_t m = from == rank ? 0 : in_piece(at, n, done, &first);
        const float *slot = slot_of(c, from);
        if (m > 0) memcpy(out + (first - at), slot + (first - done), m * sizeof *out);
    }
}

static void shm_all_to_all(msgl_comm *base, msgl_exec *x, const void *in, const size_t *counts,
                           void *out)
{
    shm_comm *c = (shm_comm *)base;
    const int size = base->size, rank = base->rank;
    const size_t keeps = counts[rank * size + rank];
    size_t most = 0, before = 0, behind = 0; // of what is kept: in `in`, in `out`
    for (int r = 0; r < size; r++) {
        const size_t n = shown(counts, size, r, size);
        most = n > most ? n : most;
    }
    for (int r = 0; r < rank; r++) {
        before += counts[rank * size + r];
        behind += counts[r * size + rank];
    }
    if (keeps > 0) memcpy((float *)out + behind, (const float *)in + before, keeps * sizeof(float));
    const uint64_t same =
        msgl__hash(MSGL_HASH_START, counts, (size_t)size * (size_t)size * sizeof *counts);
    bool ok = begin(c, OP_ALL_TO_ALL, 0, same);
    for (size_t done = 0; ok; done += PIECE) {
        write_piece(c, in, counts, done);
        ok = meet(c);
        if (ok) read_piece(c, counts, done, out);
        c->slot ^= 1;
        if (most <= done + PIECE) break;
    }
    end(c, x);
}

static void shm_broadcast(msgl_comm *base, msgl_exec *x, void *buf, size_t bytes, int root)
{
    shm_comm *c = (shm_comm *)base;
    assert(root >= 0 && root < base->size);
    bool ok = begin(c, OP_BROADCAST, root, bytes);
    char *at = buf;
    for (size_t left = bytes, m; ok; left -= m, at += m) {
        m = least(left, MSGL_GROUP_SLOT_BYTES);
        if (base->rank == root && m > 0) memcpy(slot_of(c, root), at, m);
        ok = meet(c);
        if (ok && base->rank != root && m > 0) memcpy(at, slot_of(c, root), m);
        c->slot ^= 1;
        if (left == m) break;
    }
    end(c, x);
}

static void shm_destroy(msgl_comm *base)
{
    msgl__free(base);
}

static const msgl_comm_ops SHM_OPS = {
    .name = "shm",
    .all_reduce = shm_all_reduce,
    .all_gather = shm_all_gather,
    .all_to_all = shm_all_to_all,
    .broadcast = shm_broadcast,
    .destroy = shm_destroy,
};

int msgl__comm_shm_create(msgl_group_member *m, msgl_comm **out, msgl_err *err)
{
    *out = NULL;
    shm_comm *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for a communicator");
    c->group = msgl__group_of(m);
    c->base = (msgl_comm){
        .ops = &SHM_OPS, .rank = msgl__group_rank(m), .size = msgl__group_size(c->group)};
    c->own = &c->group->ranks[c->base.rank];
    *out = &c->base;
    return 0;
}
