// SPDX-License-Identifier: Apache-2.0
//
// The communicator of ranks on the CPU that nothing but TCP connects: each has one connection, to
// rank 0, which adds the parts and sends the sums back. That is twice the bytes of a network that
// all ranks use at once, and needs nothing installed; where more is asked for there is MPI.
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "core/mem.h"
#include "distributed/communicator.h"
#include "distributed/internal.h"
#include "distributed/sum.h"
#include "kernel/exec.h"
#include "utils/clock.h"

enum {
    PIECE = (1 << 20) / sizeof(float), // elements
    // A rank asks for so long before it sleeps until data come: sleeping and waking takes longer
    // than most waits.
    SPIN_NS = 50000,
    LOOK_MS = 50, // between two looks at whether the wait is in vain
    LEFT_NS = 1000000000,
};

typedef enum call_kind { ALL_REDUCE, ALL_GATHER } call_kind;

// Before a rank's part.
typedef struct call_head {
    uint64_t count; // elements of the call
    uint32_t kind, unused;
} call_head;

typedef struct tcp_comm {
    msgl_comm base;
    msgl_group *group;
    int fds[MSGL_GROUP_MAX_SIZE]; // of rank 0: to each of the others; of those: [0], to rank 0
    int failed;                   // 0, or why every call ends at once
    float *rows;                  // of rank 0, [size, PIECE]: the parts of a piece
} tcp_comm;

// Whether somebody is to blame, or `rank` left long ago.
static bool in_vain(const tcp_comm *c, int rank, uint64_t since)
{
    const bool left = atomic_load(&c->group->ranks[rank].state) == MSGL_RANK_LEFT;
    return msgl__group_blamed(c->group) >= 0 || (left && msgl__now_ns() - since >= LEFT_NS);
}

// Until rank `rank` has read or sent something; false: the call ends here.
static bool await(const tcp_comm *c, int rank, short what, uint64_t since)
{
    if (msgl__now_ns() - since < SPIN_NS) return true;
    struct pollfd p = {.fd = c->fds[rank], .events = what};
    while (poll(&p, 1, LOOK_MS) <= 0) {
        if (in_vain(c, rank, since)) return false;
    }
    return true;
}

typedef ssize_t (*move_fn)(int fd, void *p, size_t bytes);

static ssize_t give(int fd, void *p, size_t bytes)
{
    return send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t take(int fd, void *p, size_t bytes)
{
    return recv(fd, p, bytes, MSG_DONTWAIT);
}

// A connection has ended. Rank 0 knows whose; the others soon hear whom it blames.
static void lost(tcp_comm *c, int rank)
{
    enum { LOOKS = 25 };
    const struct timespec look = {.tv_nsec = 10000000};
    if (c->base.rank == 0) msgl__group_blame(c->group, rank);
    for (int i = 0; i < LOOKS && msgl__group_blamed(c->group) < 0; i++) nanosleep(&look, NULL);
}

// All bytes to or from a rank.
static bool move(tcp_comm *c, int rank, move_fn fn, void *p, size_t bytes)
{
    const uint64_t since = msgl__now_ns();
    for (size_t at = 0; at < bytes && c->failed == 0;) {
        const ssize_t n = fn(c->fds[rank], (char *)p + at, bytes - at);
        const bool again = n < 0 && (errno == EAGAIN || errno == EINTR);
        if (n > 0) at += (size_t)n;
        if (n <= 0 && !again) lost(c, rank);
        if (n <= 0 && (!again || !await(c, rank, fn == give ? POLLOUT : POLLIN, since))) {
            c->failed = MSGL_EPEER;
        }
    }
    return c->failed == 0;
}

// A rank tells rank 0 which call it is in; rank 0 sees that all are in its own.
static bool begin(tcp_comm *c, call_kind kind, size_t count)
{
    const call_head own = {.count = count, .kind = kind};
    if (c->failed == 0 && msgl__group_blamed(c->group) >= 0) c->failed = MSGL_EPEER;
    if (c->failed != 0) return false;
    if (c->base.rank > 0) return move(c, 0, give, (void *)(uintptr_t)&own, sizeof own);
    for (int r = 1; r < c->base.size; r++) {
        call_head theirs;
        if (!move(c, r, take, &theirs, sizeof theirs)) return false;
        if (memcmp(&theirs, &own, sizeof own) == 0) continue;
        msgl__group_blame(c->group, r);
        c->failed = MSGL_EINTERNAL;
        return false;
    }
    return true;
}

static void end(const tcp_comm *c, msgl_exec *x)
{
    if (c->failed != 0 && x->status == 0) x->status = c->failed;
}

static bool reduce_piece(tcp_comm *c, float *buf, size_t n)
{
    const size_t bytes = n * sizeof *buf;
    const float *rows[MSGL_GROUP_MAX_SIZE];
    if (c->base.rank > 0) return move(c, 0, give, buf, bytes) && move(c, 0, take, buf, bytes);
    for (int r = 0; r < c->base.size; r++) {
        float *row = c->rows + (size_t)r * PIECE;
        rows[r] = row;
        if (r == 0 && n > 0) memcpy(row, buf, bytes);
        if (r > 0 && !move(c, r, take, row, bytes)) return false;
    }
    msgl__sum_rows(rows, c->base.size, n, buf);
    bool ok = true;
    for (int r = 1; r < c->base.size && ok; r++) ok = move(c, r, give, buf, bytes);
    return ok;
}

// With nothing to send, too, no rank goes on before all have come.
static void meet(tcp_comm *c)
{
    char unused = 0;
    if (c->base.rank > 0) (void)move(c, 0, take, &unused, 1);
    for (int r = 1; c->base.rank == 0 && r < c->base.size; r++) {
        if (!move(c, r, give, &unused, 1)) return;
    }
}

static void tcp_all_reduce(msgl_comm *base, msgl_exec *x, msgl_dtype dtype, void *buf, size_t n)
{
    assert(dtype == MSGL_F32);
    tcp_comm *c = (tcp_comm *)base;
    bool ok = begin(c, ALL_REDUCE, n);
    for (size_t done = 0, m; ok && done < n; done += m) {
        m = n - done < PIECE ? n - done : PIECE;
        ok = reduce_piece(c, (float *)buf + done, m);
    }
    if (ok && n == 0) meet(c);
    end(c, x);
}

static void tcp_all_gather(msgl_comm *base, msgl_exec *x, const float *in, size_t n, float *out)
{
    tcp_comm *c = (tcp_comm *)base;
    const size_t bytes = n * sizeof *in;
    float *own = out + (size_t)base->rank * n;
    bool ok = begin(c, ALL_GATHER, n);
    if (ok && own != in && n > 0) memcpy(own, in, bytes);
    if (n == 0) {
        if (ok) meet(c);
    } else if (base->rank > 0) {
        if (ok && move(c, 0, give, own, bytes)) {
            (void)move(c, 0, take, out, bytes * (size_t)base->size);
        }
    } else {
        for (int r = 1; r < base->size && ok; r++) {
            ok = move(c, r, take, out + (size_t)r * n, bytes);
        }
        for (int r = 1; r < base->size && ok; r++) {
            ok = move(c, r, give, out, bytes * (size_t)base->size);
        }
    }
    end(c, x);
}

static void tcp_destroy(msgl_comm *base)
{
    tcp_comm *c = (tcp_comm *)base;
    msgl__free(c->rows);
    msgl__free(c);
}

static const msgl_comm_ops TCP_OPS = {
    .name = "tcp",
    .all_reduce = tcp_all_reduce,
    .all_gather = tcp_all_gather,
    .destroy = tcp_destroy,
};

int msgl__comm_tcp_create(msgl_group_member *m, const int *fds, msgl_comm **out, msgl_err *err)
{
    *out = NULL;
    const int rank = msgl__group_rank(m), size = msgl__group_size(msgl__group_of(m));
    tcp_comm *c = msgl__calloc(1, sizeof *c);
    if (c != NULL && rank == 0) c->rows = msgl__calloc((size_t)size * PIECE, sizeof *c->rows);
    if (c == NULL || (rank == 0 && c->rows == NULL)) {
        msgl__free(c);
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory for a communicator");
    }
    c->base = (msgl_comm){.ops = &TCP_OPS, .rank = rank, .size = size};
    c->group = msgl__group_of(m);
    if (rank > 0) c->fds[0] = fds[0];
    for (int r = 1; rank == 0 && r < size; r++) c->fds[r] = fds[r];
    *out = &c->base;
    return 0;
}
