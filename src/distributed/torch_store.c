// SPDX-License-Identifier: Apache-2.0
#include "distributed/torch_store.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "utils/clock.h"

enum { VALIDATE = 0, GET = 3, ADD = 4, CHECK = 5 }; // what is asked
enum { READY = 0, NOT_READY = 1 };                  // the answer to CHECK
enum { RETRY_MS = 200, ANSWER_MS = 30000, MAX_KEY = 512 };

static const uint32_t MAGIC = 0x3C85F7CE;

// A question that is being made.
typedef struct question {
    char bytes[MAX_KEY + 64];
    size_t used;
} question;

static void put(question *q, const void *p, size_t n)
{
    memcpy(q->bytes + q->used, p, n);
    q->used += n;
}

static void put_text(question *q, const char *text)
{
    const uint64_t n = strlen(text);
    put(q, &n, sizeof n);
    put(q, text, n);
}

static question ask(uint8_t what)
{
    question q = {.used = 0};
    put(&q, &what, 1);
    return q;
}

static bool send_all(int fd, const question *q)
{
    for (size_t at = 0; at < q->used;) {
        const ssize_t n = send(fd, q->bytes + at, q->used - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

static bool receive_all(int fd, void *to, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int ready = poll(&p, 1, ANSWER_MS);
        if (ready < 0 && errno == EINTR) continue;
        const ssize_t n = ready > 0 ? recv(fd, (char *)to + at, bytes - at, 0) : -1;
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

static int gone(msgl_err *err)
{
    return msgl__err_set(err, MSGL_EIO, "the store of torch.distributed does not answer");
}

// Says who comes, and is one more of the processes.
static int introduce(int fd, msgl_err *err)
{
    const int64_t one = 1;
    int64_t now;
    question hello = ask(VALIDATE), count = ask(ADD);
    put(&hello, &MAGIC, sizeof MAGIC);
    put_text(&count, "init/");
    put(&count, &one, sizeof one);
    return send_all(fd, &hello) && send_all(fd, &count) && receive_all(fd, &now, sizeof now)
               ? 0
               : gone(err);
}

static int connect_once(const struct addrinfo *list)
{
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        const int yes = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) continue;
        if (connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            return fd;
        }
        close(fd);
    }
    return -1;
}

int msgl__torch_store_open(const char *host, int port, int timeout_ms, const atomic_bool *stop,
                           int *fd, msgl_err *err)
{
    char text[16];
    struct addrinfo *list = NULL;
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    (void)snprintf(text, sizeof text, "%d", port);
    const int wrong = getaddrinfo(host, text, &hints, &list);
    if (wrong != 0) {
        return msgl__err_set(err, MSGL_EINVAL, "master_address \"%.100s\": %s", host,
                             gai_strerror(wrong));
    }
    const uint64_t end = msgl__now_ns() + (uint64_t)timeout_ms * 1000000;
    while ((*fd = connect_once(list)) < 0 && !atomic_load(stop) && msgl__now_ns() < end) {
        (void)poll(NULL, 0, RETRY_MS);
    }
    freeaddrinfo(list);
    if (*fd < 0 && atomic_load(stop)) return msgl__err_set(err, MSGL_EABORTED, "left meanwhile");
    if (*fd < 0) {
        return msgl__err_set(err, MSGL_EIO, "nobody listens at %.100s, port %d", host, port);
    }
    const int code = introduce(*fd, err);
    if (code != 0) {
        close(*fd);
        *fd = -1;
    }
    return code;
}

int msgl__torch_store_get(int fd, const char *key, void *out, size_t size, msgl_err *err)
{
    const uint64_t keys = 1;
    uint8_t there = NOT_READY;
    uint64_t bytes = 0;
    if (strlen(key) > MAX_KEY) {
        return msgl__err_set(err, MSGL_EINVAL, "a key of %zu bytes; allowed: at most %d",
                             strlen(key), MAX_KEY);
    }
    question check = ask(CHECK), get = ask(GET);
    put(&check, &keys, sizeof keys);
    put_text(&check, key);
    put_text(&get, key);
    if (!send_all(fd, &check) || !receive_all(fd, &there, 1)) return gone(err);
    if (there != READY) return 0;
    if (!send_all(fd, &get) || !receive_all(fd, &bytes, sizeof bytes)) return gone(err);
    if (bytes != size) {
        return msgl__err_set(err, MSGL_EFORMAT, "the store has %llu bytes of %.100s, not %zu",
                             (unsigned long long)bytes, key, size);
    }
    return receive_all(fd, out, size) ? 1 : gone(err);
}
