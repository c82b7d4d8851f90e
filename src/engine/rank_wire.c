// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_wire.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/mem.h"
#include "message/frame.h"

#define MAX_BYTES ((size_t)1 << 30)

static bool reserve(msgl_wire *w, size_t bytes)
{
    if (bytes <= w->room) return true;
    const size_t room = bytes < 4096 ? 4096 : 2 * bytes;
    char *grown = msgl__reallocarray(w->bytes, room, 1);
    if (grown == NULL) {
        w->failed = true;
        return false;
    }
    w->bytes = grown;
    w->room = room;
    return true;
}

void msgl__wire_begin(msgl_wire *w, msgl_wire_kind kind)
{
    const msgl_frame_head h = {.kind = kind};
    w->used = w->at = 0;
    w->failed = false;
    msgl__wire_put(w, &h, sizeof h);
}

void msgl__wire_put(msgl_wire *w, const void *p, size_t bytes)
{
    if (bytes == 0 || !reserve(w, w->used + bytes)) return;
    memcpy(w->bytes + w->used, p, bytes);
    w->used += bytes;
}

// Until the other end has read or sent something; false: it is of no use any more.
static bool await(int fd, short what, const msgl_group *group)
{
    enum { LOOK_MS = 50 };
    struct pollfd p = {.fd = fd, .events = what};
    while (poll(&p, 1, LOOK_MS) <= 0) {
        if (group != NULL && msgl__group_blamed(group) >= 0) return false;
    }
    return true;
}

int msgl__wire_send(msgl_wire *w, int fd, const msgl_group *group)
{
    if (w->failed) return MSGL_ENOMEM;
    msgl_frame_head h;
    memcpy(&h, w->bytes, sizeof h);
    if (w->used - sizeof h > MAX_BYTES) return MSGL_ELIMIT;
    h.bytes = (uint32_t)(w->used - sizeof h);
    memcpy(w->bytes, &h, sizeof h);
    for (size_t at = 0; at < w->used;) {
        const ssize_t n = send(fd, w->bytes + at, w->used - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN && await(fd, POLLOUT, group)) continue;
        if (n <= 0) return MSGL_EPEER;
        at += (size_t)n;
    }
    return 0;
}

static bool receive_all(int fd, void *to, size_t bytes, const msgl_group *group)
{
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = recv(fd, (char *)to + at, bytes - at, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN && await(fd, POLLIN, group)) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

int msgl__wire_receive(msgl_wire *w, int fd, const msgl_group *group)
{
    msgl_frame_head h;
    w->used = w->at = 0;
    w->failed = false;
    if (!receive_all(fd, &h, sizeof h, group)) return MSGL_EPEER;
    if (msgl__frame_peek(&h, sizeof h, MAX_BYTES, &h) < 0) return MSGL_ELIMIT;
    if (!reserve(w, h.bytes)) return MSGL_ENOMEM;
    if (!receive_all(fd, w->bytes, h.bytes, group)) return MSGL_EPEER;
    w->used = h.bytes;
    return (int)h.kind;
}

const void *msgl__wire_take(msgl_wire *w, size_t bytes)
{
    if (bytes > w->used - w->at) return NULL;
    const void *p = w->bytes + w->at;
    w->at += bytes;
    return p;
}

bool msgl__wire_get(msgl_wire *w, void *p, size_t bytes)
{
    const void *from = msgl__wire_take(w, bytes);
    if (from == NULL) return false;
    memcpy(p, from, bytes);
    return true;
}

void msgl__wire_free(msgl_wire *w)
{
    msgl__free(w->bytes);
    *w = (msgl_wire){0};
}
