// SPDX-License-Identifier: Apache-2.0
#include "apps/batches/batches.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "apps/batches/batches_impl.h"
#include "core/mem.h"

enum {
    LOOK_MS = 100,     // between looks for room, while a batch has more to send
    READ_AT_ONCE = 64, // batches that a start finds, between two looks for calls
};

static void wake(int fd)
{
    const uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void msgl__batch_call_free(msgl_batch_call *c)
{
    if (c == NULL) return;
    msgl__strbuf_free(&c->body);
    msgl__strbuf_free(&c->answer);
    msgl__claim_free(&c->claim);
    msgl__free(c);
}

// --- the thread ---

void msgl__batches_stop_running(msgl_batches *b)
{
    msgl__batch_close(&b->run);
    b->running = false;
}

// Makes a connection to this server: returns the batch's end, or -1, and leaves the other end to
// the event loop, which will serve it.
static int connect_loop(void *ctx)
{
    msgl_batches *b = ctx;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) return -1;
    pthread_mutex_lock(&b->lock);
    const bool room = b->num_fds < MSGL_BATCH_SLOTS && !b->stopping;
    if (room) b->fds[b->num_fds++] = pair[1];
    pthread_mutex_unlock(&b->lock);
    if (room) {
        wake(b->wake_fd);
        return pair[0];
    }
    close(pair[0]);
    close(pair[1]);
    return -1;
}

// Whether a batch would find no room for its answers, which the log says once.
static bool lacks_room(msgl_batches *b)
{
    const bool full = msgl__store_is_full(&b->store);
    if (full && !b->logged_full) {
        msgl__log(b->log, MSGL_LOG_WARN,
                  "batches wait: the files of --batch-dir have %lld bytes or more; some are to be "
                  "deleted",
                  (long long)b->store.limits.max_bytes);
    }
    b->logged_full = full;
    return full;
}

// Begins the oldest of the waiting batches if no batch is running.
static void begin_next(msgl_batches *b)
{
    while (!b->running && b->all_read && json_array_size(b->waiting) > 0) {
        char id[MSGL_STORE_ID];
        if (lacks_room(b)) return;
        (void)snprintf(id, sizeof id, "%s", msgl__store_text(json_array_get(b->waiting, 0), "id"));
        const int rc = msgl__batch_open(&b->run, &b->store, id);
        b->running = rc == 0;
        if (rc == 0) {
            msgl__log(b->log, MSGL_LOG_INFO, "%s: %d of %d requests are answered", id, b->run.done,
                      b->run.num_lines);
            return;
        }
        // An input that was refused is stored as such. Any other failure may be gone later, so
        // that the next start tries the batch again.
        msgl__log(b->log, MSGL_LOG_WARN, "%s cannot be run: %s", id,
                  rc == MSGL_EINVAL ? "its input is refused" : msgl__status_text(rc));
        msgl__batch_close(&b->run);
        msgl__batches_forget(b, id);
    }
}

static void end_if_done(msgl_batches *b)
{
    msgl_err err;
    if (!b->running || !msgl__batch_is_done(&b->run)) return;
    char id[MSGL_STORE_ID];
    (void)snprintf(id, sizeof id, "%s", b->run.id);
    const int rc = msgl__batch_end(&b->run, "completed", &err);
    msgl__log(b->log, rc == 0 ? MSGL_LOG_INFO : MSGL_LOG_ERROR, "%s %s%s", id,
              rc == 0 ? "is completed" : "cannot be ended: ", rc == 0 ? "" : err.text);
    msgl__batches_stop_running(b);
    msgl__batches_forget(b, id);
}

static bool is_stopping(msgl_batches *b)
{
    pthread_mutex_lock(&b->lock);
    const bool stopping = b->stopping;
    pthread_mutex_unlock(&b->lock);
    return stopping;
}

// Puts calls that were taken back in front of those that wait.
static void put_back(msgl_batches *b, msgl_batch_call *first)
{
    msgl_batch_call *last = first;
    while (last->next != NULL) last = last->next;
    pthread_mutex_lock(&b->lock);
    last->next = b->todo;
    if (b->todo == NULL) b->todo_last = &last->next;
    b->todo = first;
    pthread_mutex_unlock(&b->lock);
}

// Answers the calls of a list. After a stop they are not answered, and not freed before
// msgl__batches_close either: until then the event loop has connections that point to them. Their
// clients see the end of the connection.
static void answer_calls(msgl_batches *b, msgl_batch_call *all)
{
    for (msgl_batch_call *c = all, *next; c != NULL; c = next) {
        next = c->next;
        if (is_stopping(b)) {
            put_back(b, c);
            return;
        }
        c->next = NULL;
        c->status = 200;
        c->type = "application/json";
        msgl__strbuf_init(&c->answer, SIZE_MAX / 2);
        if (c->what == MSGL_BATCH_FILES) {
            msgl__batches_call_files(b, c);
        } else {
            msgl__batches_call_batches(b, c);
        }
        msgl__strbuf_free(&c->body);
        pthread_mutex_lock(&b->lock);
        *b->done_last = c;
        b->done_last = &c->next;
        pthread_mutex_unlock(&b->lock);
        wake(b->wake_fd);
    }
}

// Waits for something to do, and does what connections bring.
static void serve(msgl_batches *b, bool more)
{
    struct pollfd fds[MSGL_BATCH_SLOTS + 1];
    int slots[MSGL_BATCH_SLOTS];
    const int n = b->running ? msgl__batch_poll(&b->run, fds, slots) : 0;
    fds[n] = (struct pollfd){.fd = b->own_fd, .events = POLLIN};
    const int wait = !b->all_read ? 0 : more ? LOOK_MS : MSGL_BATCH_SWEEP_MS;
    if (poll(fds, (nfds_t)n + 1, wait) < 0) return;
    for (int i = 0; i < n && b->running; i++) {
        msgl_err err;
        if (fds[i].revents == 0 || msgl__batch_ready(&b->run, slots[i], &err) == 0) continue;
        msgl__log(b->log, MSGL_LOG_ERROR, "%s: an answer cannot be stored: %s", b->run.id,
                  err.text);
    }
    uint64_t times;
    if (fds[n].revents != 0 && read(b->own_fd, &times, sizeof times) < 0) return;
}

static void *batch_thread(void *arg)
{
    msgl_batches *b = arg;
    for (;;) {
        pthread_mutex_lock(&b->lock);
        msgl_batch_call *calls = b->todo;
        b->todo = NULL;
        b->todo_last = &b->todo;
        const bool stop = b->stopping;
        const int room = b->room;
        pthread_mutex_unlock(&b->lock);
        answer_calls(b, calls);
        if (stop) break;
        msgl__batches_read_found(b, READ_AT_ONCE);
        msgl__batches_sweep(b);
        begin_next(b);
        if (b->running) {
            msgl__batch_fill(&b->run, room, connect_loop, b);
        }
        serve(b, b->running);
        end_if_done(b);
    }
    if (b->running) msgl__batches_stop_running(b);
    return NULL;
}

// --- life ---

int msgl__batches_open(const char *dir, const msgl_store_limits *limits, const msgl_log *log,
                       int wake_fd, msgl_batches **out, msgl_err *err)
{
    msgl_batches *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "--batch-dir: out of memory");
    b->log = log;
    b->wake_fd = wake_fd;
    b->room = 1;
    b->todo_last = &b->todo;
    b->done_last = &b->done;
    pthread_mutex_init(&b->lock, NULL);
    b->own_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    b->waiting = json_array();
    int rc = msgl__store_open(&b->store, dir, limits, err);
    if (rc == 0 && (b->own_fd < 0 || b->waiting == NULL)) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "--batch-dir: out of memory");
    }
    if (rc == 0) {
        rc = msgl__store_list(&b->store, MSGL_STORE_BATCH, NULL, SIZE_MAX, &b->found);
        if (rc != 0) (void)msgl__err_set(err, rc, "--batch-dir: the batches cannot be listed");
    }
    if (rc == 0) {
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        if (pthread_create(&b->thread, NULL, batch_thread, b) != 0) {
            rc = msgl__err_set(err, MSGL_EINTERNAL, "--batch-dir: no thread");
        }
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (rc == 0) {
        *out = b;
        return 0;
    }
    msgl__store_close(&b->store);
    if (b->own_fd >= 0) close(b->own_fd);
    json_decref(b->waiting);
    msgl__free(b->found.ids);
    pthread_mutex_destroy(&b->lock);
    msgl__free(b);
    return rc;
}

void msgl__batches_stop(msgl_batches *b)
{
    if (b == NULL) return;
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    pthread_mutex_unlock(&b->lock);
    wake(b->own_fd);
}

void msgl__batches_close(msgl_batches *b)
{
    if (b == NULL) return;
    msgl__batches_stop(b);
    pthread_join(b->thread, NULL);
    for (int fd; (fd = msgl__batches_take_fd(b)) >= 0;) close(fd);
    for (msgl_batch_call *c; (c = msgl__batches_take(b)) != NULL;) msgl__batch_call_free(c);
    for (msgl_batch_call *c = b->todo, *next; c != NULL; c = next) {
        next = c->next;
        msgl__batch_call_free(c);
    }
    msgl__store_close(&b->store);
    close(b->own_fd);
    json_decref(b->waiting);
    msgl__free(b->found.ids);
    pthread_mutex_destroy(&b->lock);
    msgl__free(b);
}

void msgl__batches_submit(msgl_batches *b, msgl_batch_call *c)
{
    c->next = NULL;
    pthread_mutex_lock(&b->lock);
    *b->todo_last = c;
    b->todo_last = &c->next;
    pthread_mutex_unlock(&b->lock);
    wake(b->own_fd);
}

msgl_batch_call *msgl__batches_take(msgl_batches *b)
{
    pthread_mutex_lock(&b->lock);
    msgl_batch_call *c = b->done;
    if (c != NULL) b->done = c->next;
    if (b->done == NULL) b->done_last = &b->done;
    pthread_mutex_unlock(&b->lock);
    return c;
}

int msgl__batches_take_fd(msgl_batches *b)
{
    pthread_mutex_lock(&b->lock);
    const int fd = b->num_fds > 0 ? b->fds[--b->num_fds] : -1;
    pthread_mutex_unlock(&b->lock);
    return fd;
}

void msgl__batches_set_room(msgl_batches *b, int room)
{
    pthread_mutex_lock(&b->lock);
    b->room = room;
    pthread_mutex_unlock(&b->lock);
}
