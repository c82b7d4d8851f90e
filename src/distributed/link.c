// SPDX-License-Identifier: Apache-2.0
#include "distributed/link.h"

#include <errno.h>
#include <sys/socket.h>

// A byte is a beat, a rank's leaving, or who is to blame: 0, 1, ...
enum { BEAT = 255, LEAVE = 254 };

_Static_assert(MSGL_GROUP_MAX_SIZE <= LEAVE, "ranks and marks are told apart");

// What cannot be sent at once is not worth sending: the next tick has another one.
static void send_all(const msgl_links *l, int size, unsigned char byte)
{
    for (int r = 0; r < size; r++) {
        if (l->beats[r] == 0) continue;
        (void)send(l->beats[r] - 1, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

void msgl__links_add(msgl_links *l, int rank, int beats, int way)
{
    const unsigned char byte = BEAT;
    l->beats[rank] = beats + 1;
    l->ways[rank] = way + 1;
    // Not at the next look: by the first beat the other one knows that it has somebody to judge.
    (void)send(beats, &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void heed(msgl_group *g, int rank, unsigned char byte)
{
    msgl_rank_line *p = &g->ranks[rank];
    if (byte == BEAT) {
        unsigned state = MSGL_RANK_NEW;
        atomic_compare_exchange_strong(&p->state, &state, MSGL_RANK_JOINED);
        atomic_fetch_add_explicit(&p->beats, 1, memory_order_relaxed);
    } else if (byte == LEAVE) {
        atomic_store(&p->state, MSGL_RANK_LEFT);
    } else if (byte < g->size) {
        msgl__group_blame(g, byte);
    }
}

static void receive(const msgl_links *l, msgl_group *g, int rank)
{
    unsigned char bytes[256];
    for (;;) {
        const ssize_t n = recv(l->beats[rank] - 1, bytes, sizeof bytes, MSG_DONTWAIT);
        for (ssize_t i = 0; i < n; i++) heed(g, rank, bytes[i]);
        if (n > 0 || (n < 0 && errno == EINTR)) continue;
        if (n == 0 || errno != EAGAIN) msgl__group_blame(g, rank); // unless it has left
        return;
    }
}

static void tell_blame(msgl_links *l, const msgl_group *g)
{
    const int rank = msgl__group_blamed(g);
    if (rank < 0 || l->reported) return;
    l->reported = true;
    send_all(l, g->size, (unsigned char)rank);
    for (int r = 0; r < g->size; r++) {
        if (l->ways[r] != 0) shutdown(l->ways[r] - 1, SHUT_RDWR);
    }
}

void msgl__links_look(msgl_links *l, msgl_group *g)
{
    send_all(l, g->size, BEAT);
    for (int r = 0; r < g->size; r++) {
        if (l->beats[r] != 0) receive(l, g, r);
    }
    tell_blame(l, g);
}

void msgl__links_leave(msgl_links *l, msgl_group *g)
{
    tell_blame(l, g);
    if (!l->reported) send_all(l, g->size, LEAVE);
}
