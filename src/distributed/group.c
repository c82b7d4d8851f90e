// SPDX-License-Identifier: Apache-2.0
#include "distributed/group.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include "core/mem.h"
#include "distributed/internal.h"
#include "distributed/link.h"
#include "utils/clock.h"
#include "utils/heartbeat.h"
#include "utils/thread.h"

enum { PAGE = 4096 };

struct msgl_group_member {
    msgl_group *group;
    int rank;
    pthread_t thread;
    pthread_mutex_t lock; // of stop, sockets, links, heartbeat and on_blame
    pthread_cond_t wake;
    bool stop;
    int sockets[MSGL_GROUP_MAX_SIZE]; // 1 + those that tell of an end; 0: none
    msgl_links links;
    msgl_heartbeat *heartbeat;   // or NULL
    void (*on_blame)(void *ctx); // NULL: nobody asked, or was told
    void *on_blame_ctx;
    msgl_watch watch; // the thread's
};

static size_t header_bytes(void)
{
    return (sizeof(msgl_group) + PAGE - 1) / PAGE * PAGE;
}

int msgl__group_create(int size, msgl_group **out, msgl_err *err)
{
    *out = NULL;
    if (size < MSGL_GROUP_MIN_SIZE || size > MSGL_GROUP_MAX_SIZE) {
        return msgl__err_set(err, MSGL_EINVAL, "group of %d ranks; allowed: %d to %d", size,
                             MSGL_GROUP_MIN_SIZE, MSGL_GROUP_MAX_SIZE);
    }
    const size_t bytes = header_bytes() + (size_t)size * MSGL_GROUP_SLOTS * MSGL_GROUP_SLOT_BYTES;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return msgl__err_set(err, MSGL_ENOMEM, "no memory for %d ranks to share", size);
    }
    msgl_group *g = p; // zero: no rank has joined, nobody is to blame
    g->size = size;
    g->bytes = bytes;
    *out = g;
    return 0;
}

void msgl__group_destroy(msgl_group *g)
{
    if (g != NULL) munmap(g, g->bytes);
}

int msgl__group_size(const msgl_group *g)
{
    return g->size;
}

void *msgl__group_slot(msgl_group *g, int rank, unsigned slot)
{
    const size_t index = (size_t)rank * MSGL_GROUP_SLOTS + slot;
    return (char *)g + header_bytes() + index * MSGL_GROUP_SLOT_BYTES;
}

void msgl__group_blame(msgl_group *g, int rank)
{
    assert(rank >= 0 && rank < g->size);
    if (atomic_load(&g->ranks[rank].state) == MSGL_RANK_LEFT) return;
    unsigned nobody = 0;
    atomic_compare_exchange_strong(&g->blame, &nobody, (unsigned)rank + 1);
}

int msgl__group_blamed(const msgl_group *g)
{
    return (int)atomic_load(&g->blame) - 1;
}

void msgl__watch_look(msgl_watch *w, msgl_group *g, int rank, uint64_t now)
{
    atomic_fetch_add_explicit(&g->ranks[rank].beats, 1, memory_order_relaxed);
    const bool late = w->last == 0 || now - w->last > MSGL_WATCH_LATE_NS;
    w->last = now;
    for (int r = 0; r < g->size; r++) {
        const msgl_rank_line *p = &g->ranks[r];
        const unsigned beats = atomic_load_explicit(&p->beats, memory_order_relaxed);
        const bool judged = r != rank && atomic_load(&p->state) == MSGL_RANK_JOINED;
        if (late || !judged || beats != w->seen[r]) {
            w->seen[r] = beats;
            w->since[r] = now;
        } else if (now - w->since[r] >= MSGL_WATCH_STILL_NS) {
            msgl__group_blame(g, r);
        }
    }
}

// Beats for who looks from outside, and blames ranks whose sockets are closed at the other end.
static void look_outside(msgl_group_member *m)
{
    pthread_mutex_lock(&m->lock);
    if (m->heartbeat != NULL) atomic_fetch_add(&m->heartbeat->alive, 1);
    for (int r = 0; r < m->group->size; r++) {
        struct pollfd p = {.fd = m->sockets[r] - 1};
        if (p.fd >= 0 && poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0) {
            msgl__group_blame(m->group, r);
        }
    }
    msgl__links_look(&m->links, m->group);
    pthread_mutex_unlock(&m->lock);
}

void msgl__group_link(msgl_group_member *m, int rank, int beats, int way)
{
    assert(rank >= 0 && rank < m->group->size);
    pthread_mutex_lock(&m->lock);
    msgl__links_add(&m->links, rank, beats, way);
    pthread_mutex_unlock(&m->lock);
}

void msgl__group_watch(msgl_group_member *m, int rank, int fd)
{
    assert(rank >= 0 && rank < m->group->size);
    pthread_mutex_lock(&m->lock);
    m->sockets[rank] = fd + 1;
    pthread_mutex_unlock(&m->lock);
}

static void tell_of_blame(msgl_group_member *m)
{
    if (msgl__group_blamed(m->group) < 0) return;
    pthread_mutex_lock(&m->lock);
    void (*fn)(void *ctx) = m->on_blame;
    m->on_blame = NULL;
    pthread_mutex_unlock(&m->lock);
    if (fn != NULL) fn(m->on_blame_ctx);
}

void msgl__group_on_blame(msgl_group_member *m, void (*fn)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&m->lock);
    m->on_blame_ctx = ctx;
    m->on_blame = fn;
    pthread_mutex_unlock(&m->lock);
}

void msgl__group_beat(msgl_group_member *m, msgl_heartbeat *h)
{
    pthread_mutex_lock(&m->lock);
    m->heartbeat = h;
    // Not at the next look: a process that is stopped before it would never have been alive.
    if (h != NULL) atomic_fetch_add(&h->alive, 1);
    pthread_mutex_unlock(&m->lock);
}

// Until the next tick; false: the member leaves.
static bool wait_tick(msgl_group_member *m, uint64_t until)
{
    pthread_mutex_lock(&m->lock);
    int rc = 0;
    while (!m->stop && rc == 0) rc = msgl__cond_wait_until(&m->wake, &m->lock, until);
    const bool on = !m->stop;
    pthread_mutex_unlock(&m->lock);
    return on;
}

static void *watch_main(void *arg)
{
    msgl_group_member *m = arg;
    pthread_setname_np(pthread_self(), "msgl-watch"); // any other's is a file to write
    uint64_t now = msgl__now_ns();
    do {
        msgl__watch_look(&m->watch, m->group, m->rank, now);
        look_outside(m);
        tell_of_blame(m);
    } while (wait_tick(m, now + MSGL_WATCH_TICK_NS) && (now = msgl__now_ns()) != 0);
    return NULL;
}

static int start_watch(msgl_group_member *m)
{
    pthread_mutex_init(&m->lock, NULL);
    msgl__cond_init(&m->wake);
    return msgl__thread_start(&m->thread, watch_main, m);
}

static void member_free(msgl_group_member *m)
{
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    msgl__free(m);
}

int msgl__group_join(msgl_group *g, int rank, msgl_group_member **out, msgl_err *err)
{
    *out = NULL;
    if (rank < 0 || rank >= g->size) {
        return msgl__err_set(err, MSGL_EINVAL, "rank %d of %d", rank, g->size);
    }
    msgl_group_member *m = msgl__calloc(1, sizeof *m);
    if (m == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for rank %d", rank);
    m->group = g;
    m->rank = rank;
    unsigned state = MSGL_RANK_NEW;
    if (!atomic_compare_exchange_strong(&g->ranks[rank].state, &state, MSGL_RANK_JOINED)) {
        msgl__free(m);
        return msgl__err_set(err, MSGL_EBUSY, "rank %d has joined before", rank);
    }
    const int rc = start_watch(m);
    if (rc != 0) {
        atomic_store(&g->ranks[rank].state, MSGL_RANK_NEW);
        member_free(m);
        return msgl__err_set(err, MSGL_EINTERNAL, "cannot start the watch of rank %d: %s", rank,
                             strerror(rc));
    }
    *out = m;
    return 0;
}

void msgl__group_leave(msgl_group_member *m)
{
    if (m == NULL) return;
    // Before the last beat, so that nobody sees a joined rank without one.
    atomic_store(&m->group->ranks[m->rank].state, MSGL_RANK_LEFT);
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    msgl__links_leave(&m->links, m->group);
    if (m->heartbeat != NULL) atomic_store(&m->heartbeat->alive, 0);
    member_free(m);
}

int msgl__group_rank(const msgl_group_member *m)
{
    return m->rank;
}

msgl_group *msgl__group_of(const msgl_group_member *m)
{
    return m->group;
}
