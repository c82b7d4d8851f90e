// SPDX-License-Identifier: Apache-2.0
//
// A rank that comes sends a `hello` on each of its connections, and rank 0 answers it with a
// `welcome` or with why not, both of fixed size. Whoever connects and says something else, or
// nothing in time, is a stranger: it is hung up on, and rank 0 waits on.
#include "distributed/hosts.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "utils/clock.h"

enum {
    HELLO_MS = 5000,    // for a connection to say who it is
    RETRY_MS = 200,     // between two tries to reach rank 0
    MAX_STRANGERS = 64, // connections that have not said who they are
    KEEP_IDLE_S = 10,   // a host that is gone without a word is noticed after
    KEEP_BETWEEN_S = 5, // KEEP_IDLE_S + KEEP_PROBES * KEEP_BETWEEN_S,
    KEEP_PROBES = 4,    // where no watch looks yet
};

static const char MAGIC[8] = "minisgl";

typedef enum purpose { FOR_WAY, FOR_BEATS, FOR_DATA } purpose;

typedef struct hello {
    char magic[8];
    char version[16];
    uint64_t build, token;
    int32_t rank, size, purpose, unused;
} hello;

typedef struct welcome {
    char magic[8];
    int32_t code, unused; // 0, or why this rank is not let in:
    char text[192];
} welcome;

// --- addresses ---------------------------------------------------------------------------------

// The addresses of "HOST:PORT", to be freed with freeaddrinfo.
static int resolve(const char *address, bool passive, struct addrinfo **out, msgl_err *err)
{
    char host[MSGL_HOSTS_ADDRESS];
    const char *colon = strrchr(address, ':');
    const size_t n = colon != NULL ? (size_t)(colon - address) : 0;
    const bool brackets = n > 2 && address[0] == '[' && address[n - 1] == ']';
    const char *port = colon != NULL ? colon + 1 : "";
    const size_t digits = strspn(port, "0123456789");
    if (n == 0 || n >= sizeof host || digits == 0 || digits > 5 || port[digits] != '\0' ||
        (!brackets && (address[0] == '[' || memchr(address, ':', n) != NULL))) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "address \"%.100s\"; allowed: HOST:PORT, [HOST]:PORT", address);
    }
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), address + brackets);
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0)};
    const int rc = getaddrinfo(host, port, &hints, out);
    if (rc == 0) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "address \"%.100s\": %s", address, gai_strerror(rc));
}

static void describe(int fd, char out[MSGL_HOSTS_ADDRESS])
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    char host[256] = "?", port[16] = "?";
    if (getsockname(fd, (struct sockaddr *)&a, &len) == 0) {
        (void)getnameinfo((struct sockaddr *)&a, len, host, sizeof host, port, sizeof port,
                          NI_NUMERICHOST | NI_NUMERICSERV);
    }
    const bool v6 = strchr(host, ':') != NULL;
    snprintf(out, MSGL_HOSTS_ADDRESS, "%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

int msgl__hosts_listen(const char *address, int *fd, char bound[MSGL_HOSTS_ADDRESS], msgl_err *err)
{
    struct addrinfo *list;
    const int code = resolve(address, true, &list, err);
    *fd = -1;
    if (code != 0) return code;
    const int one = 1;
    const int s = socket(list->ai_family, list->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s >= 0) setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    const bool ok = s >= 0 && bind(s, list->ai_addr, list->ai_addrlen) == 0 &&
                    listen(s, 2 * MSGL_GROUP_MAX_SIZE) == 0;
    const int why = errno;
    freeaddrinfo(list);
    if (!ok) {
        if (s >= 0) close(s);
        return msgl__err_set(err, MSGL_EIO, "cannot listen at %.100s: %s", address, strerror(why));
    }
    describe(s, bound);
    *fd = s;
    return 0;
}

// --- both sides --------------------------------------------------------------------------------

static void set_options(int fd)
{
    const int on = 1, idle = KEEP_IDLE_S, between = KEEP_BETWEEN_S, probes = KEEP_PROBES;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof between);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

static int64_t ms_now(void)
{
    return (int64_t)(msgl__now_ns() / 1000000u);
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

void msgl__hosts_close(msgl_hosts_link *l)
{
    close_fd(&l->way);
    close_fd(&l->beats);
    close_fd(&l->data);
}

static int purposes(const msgl_hosts_job *job)
{
    return job->data ? FOR_DATA + 1 : FOR_DATA;
}

static int *end_of(msgl_hosts_link *l, purpose p)
{
    return p == FOR_WAY ? &l->way : p == FOR_BEATS ? &l->beats : &l->data;
}

// --- rank 0 ------------------------------------------------------------------------------------

typedef struct visitor {
    int fd;
    size_t used;
    int64_t until; // ms
    hello said;
} visitor;

typedef struct reception {
    const msgl_hosts_job *job;
    msgl_hosts_link *links;
    visitor visitors[MAX_STRANGERS];
    int num_visitors, missing; // missing: connections
    msgl_err *err;
} reception;

static void answer(int fd, int code, const char *text)
{
    welcome w = {.code = code};
    memcpy(w.magic, MAGIC, sizeof w.magic);
    snprintf(w.text, sizeof w.text, "%s", text);
    (void)send(fd, &w, sizeof w, MSG_NOSIGNAL | MSG_DONTWAIT); // a new connection has the room
}

static int same_program(const msgl_hosts_job *job, const hello *h, char *why, size_t size)
{
    if (strncmp(h->version, MSGL_VERSION, sizeof h->version) != 0 || h->build != job->build) {
        snprintf(why, size, "it is another build: minisgl %.15s, rank 0 is %s", h->version,
                 MSGL_VERSION);
        return MSGL_EPEER;
    }
    if (h->size != job->size) {
        snprintf(why, size, "it is one of %d ranks, rank 0 one of %d", (int)h->size,
                 (int)job->size);
        return MSGL_EPEER;
    }
    return 0;
}

// A whole hello: lets it in, or not. What is wrong with a rank of this job ends the waiting.
static int admit(reception *r, visitor *v)
{
    const hello *h = &v->said;
    char why[160];
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0 || h->token != r->job->token) {
        answer(v->fd, MSGL_EPEER, "it is not of this job");
        close_fd(&v->fd);
        return 0;
    }
    int code = same_program(r->job, h, why, sizeof why);
    if (code != 0) {
        answer(v->fd, code, why);
        close_fd(&v->fd);
        return msgl__err_set(r->err, code, "rank %d was refused: %s", (int)h->rank, why);
    }
    const bool known =
        h->rank > 0 && h->rank < h->size && h->purpose >= 0 && h->purpose < purposes(r->job);
    int *end = known ? end_of(&r->links[h->rank], (purpose)h->purpose) : NULL;
    if (end == NULL || *end >= 0) {
        snprintf(why, sizeof why, "there is a rank %d already", (int)h->rank);
        answer(v->fd, MSGL_EBUSY, why);
        close_fd(&v->fd);
        return 0;
    }
    answer(v->fd, 0, "");
    *end = v->fd;
    v->fd = -1;
    r->missing--;
    return 0;
}

// Reads what a visitor has said; one that ended, or took too long, is gone after.
static int hear(reception *r, visitor *v, bool readable)
{
    if (readable) {
        const ssize_t n =
            recv(v->fd, (char *)&v->said + v->used, sizeof v->said - v->used, MSG_DONTWAIT);
        if (n > 0) v->used += (size_t)n;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) close_fd(&v->fd);
    }
    if (v->fd >= 0 && v->used == sizeof v->said) return admit(r, v);
    if (v->fd >= 0 && ms_now() >= v->until) close_fd(&v->fd);
    return 0;
}

static void let_in(reception *r, int fd)
{
    const int s = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    if (s < 0) return;
    set_options(s);
    r->visitors[r->num_visitors++] = (visitor){.fd = s, .until = ms_now() + HELLO_MS};
}

static int one_look(reception *r, int fd)
{
    struct pollfd p[MAX_STRANGERS + 1];
    const int n = r->num_visitors;
    for (int i = 0; i < n; i++) p[i] = (struct pollfd){.fd = r->visitors[i].fd, .events = POLLIN};
    const bool full = n == MAX_STRANGERS;
    p[n] = (struct pollfd){.fd = full ? -1 : fd, .events = POLLIN};
    if (poll(p, (nfds_t)n + 1, RETRY_MS) < 0) return 0;
    int code = 0, kept = 0;
    for (int i = 0; i < n && code == 0; i++) code = hear(r, &r->visitors[i], p[i].revents != 0);
    for (int i = 0; i < n; i++) {
        if (r->visitors[i].fd >= 0) r->visitors[kept++] = r->visitors[i];
    }
    r->num_visitors = kept;
    if (!full && p[n].revents != 0) let_in(r, fd);
    return code;
}

// "1, 2 and 5 of 8"
static int name_missing(const reception *r, int timeout_ms)
{
    char list[128] = "";
    for (int32_t i = 1; i < r->job->size; i++) {
        const size_t used = strlen(list);
        bool all = true;
        for (int p = 0; p < purposes(r->job); p++) all = all && *end_of(&r->links[i], p) >= 0;
        if (all) continue;
        snprintf(list + used, sizeof list - used, "%s%d", used > 0 ? ", " : "", (int)i);
    }
    return msgl__err_set(r->err, MSGL_EPEER, "not all ranks came within %d s; missing of %d: %s",
                         timeout_ms / 1000, (int)r->job->size, list);
}

int msgl__hosts_accept(int fd, const msgl_hosts_job *job, int timeout_ms, msgl_hosts_link *links,
                       msgl_err *err)
{
    reception r = {
        .job = job, .links = links, .missing = purposes(job) * (job->size - 1), .err = err};
    const int64_t until = ms_now() + timeout_ms;
    int code = 0;
    for (int32_t i = 0; i < job->size; i++) links[i] = (msgl_hosts_link){-1, -1, -1};
    while (code == 0 && r.missing > 0) {
        code = one_look(&r, fd);
        if (code == 0 && r.missing > 0 && ms_now() >= until) code = name_missing(&r, timeout_ms);
    }
    for (int i = 0; i < r.num_visitors; i++) close_fd(&r.visitors[i].fd);
    return code;
}

// --- the others --------------------------------------------------------------------------------

// A connection to the first of the addresses that answers before `until`; -1: errno.
static int reach(const struct addrinfo *list, int64_t until)
{
    int why = EHOSTUNREACH;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        const int s = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (s < 0) return -1;
        int rc = connect(s, a->ai_addr, a->ai_addrlen);
        why = errno;
        if (rc != 0 && why == EINPROGRESS) {
            struct pollfd p = {.fd = s, .events = POLLOUT};
            const int64_t left = until - ms_now();
            socklen_t len = sizeof why;
            rc = poll(&p, 1, left > 0 ? (int)left : 0) == 1 ? 0 : -1;
            why = ETIMEDOUT;
            if (rc == 0) getsockopt(s, SOL_SOCKET, SO_ERROR, &why, &len);
            if (why != 0) rc = -1;
        }
        if (rc == 0) return s;
        close(s);
    }
    errno = why;
    return -1;
}

// The answer to a hello. False: there was none.
static bool hear_answer(int fd, welcome *w, int64_t until)
{
    size_t used = 0;
    while (used < sizeof *w) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int64_t left = until - ms_now();
        if (left <= 0 || poll(&p, 1, (int)left) < 0) return false;
        if (p.revents == 0) continue;
        const ssize_t n = recv(fd, (char *)w + used, sizeof *w - used, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return false;
        if (n > 0) used += (size_t)n;
    }
    w->text[sizeof w->text - 1] = '\0';
    return memcmp(w->magic, MAGIC, sizeof w->magic) == 0;
}

// One connection; 1: it is worth another try.
static int join(const struct addrinfo *list, const char *address, const msgl_hosts_job *job,
                purpose why, int64_t until, int *out, msgl_err *err)
{
    hello h = {.version = MSGL_VERSION,
               .build = job->build,
               .token = job->token,
               .rank = job->rank,
               .size = job->size,
               .purpose = (int32_t)why};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    int fd = reach(list, until);
    if (fd < 0) {
        msgl__err_set(err, MSGL_EPEER, "rank %d: rank 0 at %.100s cannot be reached: %s",
                      (int)job->rank, address, strerror(errno));
        return 1;
    }
    set_options(fd);
    welcome w = {.code = MSGL_EPEER};
    const bool heard = send(fd, &h, sizeof h, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof h &&
                       hear_answer(fd, &w, until);
    if (heard && w.code == 0) {
        (void)fcntl(fd, F_SETFL, 0); // blocking from here on
        *out = fd;
        return 0;
    }
    close(fd);
    if (!heard) {
        msgl__err_set(err, MSGL_EPEER, "rank %d: what listens at %.100s is not rank 0",
                      (int)job->rank, address);
        return 1;
    }
    return msgl__err_set(err, MSGL_EPEER, "rank %d was refused at %.60s: %.150s", (int)job->rank,
                         address, w.text);
}

int msgl__hosts_connect(const char *address, const msgl_hosts_job *job, int timeout_ms,
                        msgl_hosts_link *out, msgl_err *err)
{
    struct addrinfo *list;
    *out = (msgl_hosts_link){-1, -1, -1};
    int code = resolve(address, false, &list, err);
    if (code != 0) return code;
    const int64_t until = ms_now() + timeout_ms;
    for (int p = 0; p < purposes(job) && code == 0; p++) {
        while ((code = join(list, address, job, (purpose)p, until, end_of(out, (purpose)p), err)) >
                   0 &&
               ms_now() < until) {
            (void)poll(NULL, 0, RETRY_MS);
        }
        if (code > 0) code = MSGL_EPEER;
    }
    freeaddrinfo(list);
    if (code != 0) msgl__hosts_close(out);
    return code;
}
