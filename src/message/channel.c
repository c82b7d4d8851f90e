// SPDX-License-Identifier: Apache-2.0
//
// Both kinds of channel carry the same frames (frame.h), so that the in-process one exercises the
// same code and copies on sending as promised. They differ in where bytes go: to a socket, or to
// the peer's queue.
//
// An end keeps what it has read beyond the current message in rx. Because such bytes no longer
// make the socket readable, an eventfd says so in their place; poll_fd is an epoll descriptor over
// both.
#include "message/message.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/mem.h"
#include "message/codec.h"
#include "message/frame.h"
#include "utils/clock.h"
#include "utils/packet.h"

enum { WAIT_MS = 100 }; // from one call of on_wait to the next
enum { READ_CHUNK = 64 * 1024, KEEP_CAPACITY = 1 << 20 };
static const size_t rx_max = MSGL_MSG_FRAME_MAX * 4;

// One direction of an in-process pair.
typedef struct queue {
    msgl_strbuf bytes;
    bool closed;
    bool signalled; // the reader's eventfd is set
    int wake;       // the reader's eventfd
} queue;

typedef struct local {
    pthread_mutex_t lock;
    queue q[2]; // q[i] is read by end i
    int ends;   // that are not destroyed yet
} local;

struct msgl_channel {
    int fd;       // socket, or -1
    int line;     // packet socket over which sockets to the next peers come, or -1
    local *pair;  // in-process pair, or NULL
    int side;     // of the pair
    int epoll_fd; // over fd and wake
    int wake;     // eventfd: rx has something although the socket does not say so

    pthread_mutex_t rx_lock; // a sender that waits for room reads, too
    msgl_strbuf rx;
    size_t rx_off;
    bool rx_eof, signalled;
    msgl_msg_mem mem;
    bool broken;

    msgl_strbuf tx;
    size_t tx_off;
    void (*on_wait)(void *ctx); // or NULL
    void *wait_ctx;
};

static void wake_set(int fd)
{
    if (fd < 0) return;
    const uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static void wake_clear(int fd)
{
    uint64_t n;
    while (read(fd, &n, sizeof n) < 0 && errno == EINTR) {
    }
}

static int channel_new(msgl_channel **out, int fd, msgl_err *err)
{
    msgl_channel *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "channel: out of memory");
    c->fd = fd;
    c->line = -1;
    c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN};
    int rc = c->wake < 0 || c->epoll_fd < 0 ? -1 : 0;
    if (rc == 0) rc = epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, c->wake, &ev);
    if (rc == 0 && fd >= 0) rc = epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &ev);
    if (rc != 0) {
        rc = msgl__err_set(err, MSGL_EIO, "channel: %s", strerror(errno));
        if (c->wake >= 0) close(c->wake);
        if (c->epoll_fd >= 0) close(c->epoll_fd);
        msgl__free(c);
        return rc;
    }
    pthread_mutex_init(&c->rx_lock, NULL);
    msgl__strbuf_init(&c->rx, rx_max);
    msgl__strbuf_init(&c->tx, rx_max);
    *out = c;
    return 0;
}

static bool set_nonblocking(int fd)
{
    const int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

int msgl__channel_from_fd(int fd, msgl_channel **out, msgl_err *err)
{
    if (!set_nonblocking(fd)) return msgl__err_set(err, MSGL_EIO, "channel: %s", strerror(errno));
    return channel_new(out, fd, err);
}

void msgl__channel_set_line(msgl_channel *c, int line)
{
    c->line = line;
}

int msgl__channel_pair_local(msgl_channel **a, msgl_channel **b, msgl_err *err)
{
    *a = *b = NULL;
    local *p = msgl__calloc(1, sizeof *p);
    if (p == NULL) return msgl__err_set(err, MSGL_ENOMEM, "channel: out of memory");
    int rc = channel_new(a, -1, err);
    if (rc == 0) rc = channel_new(b, -1, err);
    if (rc != 0) {
        msgl__channel_destroy(*a);
        msgl__free(p);
        *a = NULL;
        return rc;
    }
    pthread_mutex_init(&p->lock, NULL);
    p->ends = 2;
    msgl_channel *const end[2] = {*a, *b};
    for (int i = 0; i < 2; i++) {
        msgl__strbuf_init(&p->q[i].bytes, rx_max);
        p->q[i].wake = end[i]->wake;
        end[i]->pair = p;
        end[i]->side = i;
    }
    return 0;
}

static void local_leave(local *p, int side)
{
    pthread_mutex_lock(&p->lock);
    queue *peer = &p->q[1 - side];
    p->q[side].closed = true; // nobody reads here any more
    p->q[side].wake = -1;
    wake_set(peer->wake);
    peer->signalled = true;
    const bool last = --p->ends == 0;
    pthread_mutex_unlock(&p->lock);
    if (!last) return;
    for (int i = 0; i < 2; i++) msgl__strbuf_free(&p->q[i].bytes);
    pthread_mutex_destroy(&p->lock);
    msgl__free(p);
}

void msgl__channel_destroy(msgl_channel *c)
{
    if (c == NULL) return;
    if (c->pair != NULL) local_leave(c->pair, c->side);
    if (c->fd >= 0) close(c->fd);
    if (c->line >= 0) close(c->line);
    close(c->epoll_fd);
    close(c->wake);
    pthread_mutex_destroy(&c->rx_lock);
    msgl__strbuf_free(&c->rx);
    msgl__strbuf_free(&c->tx);
    msgl__msg_mem_free(&c->mem);
    msgl__free(c);
}

int msgl__channel_poll_fd(const msgl_channel *c)
{
    return c->epoll_fd;
}

int msgl__channel_write_fd(const msgl_channel *c)
{
    return c->fd;
}

// --- receiving ---

static void buffer_compact(msgl_strbuf *b, size_t *off)
{
    if (*off == 0) return;
    b->len -= *off;
    if (b->len > 0) memmove(b->data, b->data + *off, b->len);
    *off = 0;
    if (b->len == 0 && b->cap > KEEP_CAPACITY) msgl__strbuf_free(b);
}

// Moves what the socket has into rx; the end of the stream sets rx_eof. The caller has locked
// rx_lock. 0, MSGL_ENOMEM or MSGL_ELIMIT.
static int rx_fill_socket(msgl_channel *c)
{
    while (!c->rx_eof) {
        if (c->rx_off > c->rx.len / 2) buffer_compact(&c->rx, &c->rx_off);
        const int rc = msgl__strbuf_reserve(&c->rx, READ_CHUNK);
        if (rc != 0) return rc;
        const ssize_t n = recv(c->fd, c->rx.data + c->rx.len, READ_CHUNK, 0);
        if (n > 0) {
            c->rx.len += (size_t)n;
            if (n < READ_CHUNK) return 0;
        } else if (n == 0) {
            c->rx_eof = true;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return 0;
        } else if (errno != EINTR) {
            c->rx_eof = true; // reset: nothing more will come
        }
    }
    return 0;
}

// The same of the in-process queue.
static int rx_fill_local(msgl_channel *c)
{
    local *p = c->pair;
    queue *q = &p->q[c->side];
    int rc = 0;
    buffer_compact(&c->rx, &c->rx_off);
    pthread_mutex_lock(&p->lock);
    if (c->rx.len == 0) {
        const msgl_strbuf t = c->rx;
        c->rx = q->bytes;
        q->bytes = t;
    } else {
        rc = msgl__strbuf_add(&c->rx, q->bytes.data, q->bytes.len);
        if (rc == 0) msgl__strbuf_clear(&q->bytes);
    }
    if (p->ends < 2) c->rx_eof = true;
    pthread_mutex_unlock(&p->lock);
    return rc;
}

// 1: rx starts with a whole frame, of *len bytes; 0: not yet; MSGL_EFORMAT.
static int rx_frame(const msgl_channel *c, size_t *len)
{
    msgl_frame_head head = {0};
    const size_t have = c->rx.len - c->rx_off;
    if (have < sizeof head) return 0;
    const int rc = msgl__frame_peek(c->rx.data + c->rx_off, have, MSGL_MSG_FRAME_MAX, &head);
    *len = sizeof head + head.bytes;
    return rc;
}

// Keeps the eventfd equal to "rx (or the queue) has a frame or the end to report".
static void rx_signal(msgl_channel *c)
{
    size_t len;
    bool more = rx_frame(c, &len) != 0 || c->rx_eof;
    bool *signalled = &c->signalled;
    if (c->pair != NULL) {
        pthread_mutex_lock(&c->pair->lock);
        const queue *q = &c->pair->q[c->side];
        more = more || q->bytes.len > 0 || c->pair->ends < 2;
        signalled = &c->pair->q[c->side].signalled;
    }
    if (more && !*signalled) wake_set(c->wake);
    if (!more && *signalled) wake_clear(c->wake);
    *signalled = more;
    if (c->pair != NULL) pthread_mutex_unlock(&c->pair->lock);
}

static int rx_take(msgl_channel *c, msgl_msg *m)
{
    size_t len = 0;
    int rc = rx_frame(c, &len);
    if (rc == 0) {
        rc = c->pair != NULL ? rx_fill_local(c) : rx_fill_socket(c);
        if (rc == 0) rc = rx_frame(c, &len);
    }
    if (rc == 0 && c->rx_eof) return MSGL_ECLOSED;
    if (rc == 1) {
        rc = msgl__msg_decode(c->rx.data + c->rx_off, len, &c->mem, m, NULL);
        c->rx_off += len;
        if (c->rx_off == c->rx.len) buffer_compact(&c->rx, &c->rx_off);
        if (rc == 0) rc = 1;
    }
    return rc;
}

int msgl__channel_recv(msgl_channel *c, int timeout_ms, msgl_msg *m)
{
    const uint64_t end =
        timeout_ms < 0 ? UINT64_MAX : msgl__now_ns() + (uint64_t)timeout_ms * 1000000u;
    for (;;) {
        pthread_mutex_lock(&c->rx_lock);
        int rc = c->broken ? MSGL_EFORMAT : rx_take(c, m);
        if (rc == MSGL_EFORMAT || rc == MSGL_ELIMIT) {
            c->broken = true;
            rc = MSGL_EFORMAT;
        }
        rx_signal(c);
        pthread_mutex_unlock(&c->rx_lock);
        if (rc != 0) return rc;

        int wait = -1;
        if (timeout_ms >= 0) {
            const uint64_t now = msgl__now_ns();
            if (now >= end) return 0;
            wait = (int)((end - now + 999999u) / 1000000u);
        }
        struct pollfd p = {.fd = c->epoll_fd, .events = POLLIN};
        if (poll(&p, 1, wait) < 0 && errno != EINTR) return MSGL_EIO;
    }
}

// --- sending ---

// Appends the frame of *m to tx.
static int tx_add(msgl_channel *c, const msgl_msg *m)
{
    buffer_compact(&c->tx, &c->tx_off);
    return msgl__msg_encode(m, &c->tx);
}

static int local_flush(msgl_channel *c)
{
    local *p = c->pair;
    queue *q = &p->q[1 - c->side];
    pthread_mutex_lock(&p->lock);
    int rc = q->closed ? MSGL_ECLOSED : 0;
    if (rc == 0) rc = msgl__strbuf_add(&q->bytes, c->tx.data, c->tx.len);
    if (rc == 0 && !q->signalled) {
        wake_set(q->wake);
        q->signalled = true;
    }
    pthread_mutex_unlock(&p->lock);
    c->tx_off = c->tx.len;
    buffer_compact(&c->tx, &c->tx_off);
    return rc;
}

int msgl__channel_flush(msgl_channel *c)
{
    if (c->pair != NULL) return c->tx.len == 0 ? 0 : local_flush(c);
    while (c->tx_off < c->tx.len) {
        const ssize_t n = send(c->fd, c->tx.data + c->tx_off, c->tx.len - c->tx_off, MSG_NOSIGNAL);
        if (n >= 0) {
            c->tx_off += (size_t)n;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return 1;
        } else if (errno != EINTR) {
            c->tx_off = c->tx.len;
            buffer_compact(&c->tx, &c->tx_off);
            return MSGL_ECLOSED;
        }
    }
    buffer_compact(&c->tx, &c->tx_off);
    return 0;
}

int msgl__channel_post(msgl_channel *c, const msgl_msg *m)
{
    int rc = tx_add(c, m);
    if (rc == 0) rc = msgl__channel_flush(c);
    return rc > 0 ? 0 : rc;
}

void msgl__channel_on_wait(msgl_channel *c, void (*on_wait)(void *ctx), void *ctx)
{
    c->on_wait = on_wait;
    c->wait_ctx = ctx;
}

int msgl__channel_send(msgl_channel *c, const msgl_msg *m)
{
    int rc = tx_add(c, m);
    if (rc != 0) return rc;
    while ((rc = msgl__channel_flush(c)) == 1) {
        pthread_mutex_lock(&c->rx_lock);
        const bool read_more = !c->rx_eof && !c->broken;
        pthread_mutex_unlock(&c->rx_lock);
        struct pollfd p = {.fd = c->fd, .events = (short)(POLLOUT | (read_more ? POLLIN : 0))};
        if (poll(&p, 1, c->on_wait == NULL ? -1 : WAIT_MS) < 0 && errno != EINTR) return MSGL_EIO;
        if (c->on_wait != NULL) c->on_wait(c->wait_ctx);
        if ((p.revents & POLLIN) == 0) continue;
        pthread_mutex_lock(&c->rx_lock);
        rc = rx_fill_socket(c);
        rx_signal(c);
        pthread_mutex_unlock(&c->rx_lock);
        if (rc != 0) return rc;
    }
    return rc;
}

// --- the next peer ---

// Goes on with this socket. What was read from the last one and not taken, and what was not written
// to it, is dropped: the new peer has not asked for it.
static int use_socket(msgl_channel *c, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN};
    close(c->fd); // which takes it out of the epoll set
    c->fd = fd;
    msgl__strbuf_clear(&c->rx);
    msgl__strbuf_clear(&c->tx);
    c->rx_off = c->tx_off = 0;
    c->rx_eof = c->broken = false;
    rx_signal(c);
    if (!set_nonblocking(fd) || epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
        return MSGL_EIO;
    }
    return 1;
}

int msgl__channel_renew(msgl_channel *c, int timeout_ms)
{
    if (c->line < 0) return MSGL_ECLOSED;
    struct pollfd p = {.fd = c->line, .events = POLLIN};
    if (poll(&p, 1, timeout_ms) < 0) return errno == EINTR ? 0 : MSGL_EIO;
    char letter;
    int fd;
    const ssize_t n = msgl__packet_recv(c->line, &letter, sizeof letter, &fd);
    if (n < 0) return MSGL_ECLOSED;
    return fd < 0 ? 0 : use_socket(c, fd);
}
