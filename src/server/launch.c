// SPDX-License-Identifier: Apache-2.0
//
// Supervisor and front talk over a packet socket, one letter, a replica and a payload per packet:
//   front -> supervisor   R  the replica's engine is ready
//                         L  it is gone; text: its last words
//                         X  the front cannot start; text: why
//   supervisor -> front   C  here is the channel to a new engine (with the descriptor)
//                         T  stop gracefully
// Signals of a terminal reach the whole process group, so the children ignore SIGINT and SIGTERM
// and hear of them from the supervisor only.
#include "server/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mem.h"
#include "server/confine.h"
#include "server/tls.h"
#include "server/watchdog.h"
#include "utils/clock.h"

enum {
    CHANNEL_FILES = 3,
    TEXT_MAX = 512,
    RESTART_DELAY_MAX_MS = 30000,
    ENGINE_EXIT_MS = 3000,
    LAST_WORDS_MS = 2000
};

msgl_serve_config msgl__serve_config_default(void)
{
    return (msgl_serve_config){.host = "127.0.0.1",
                               .port = 1919,
                               .front = msgl__front_config_default(),
                               .watchdog_timeout_s = 10,
                               .restart_delay_ms = 500,
                               .min_life_ms = 10000,
                               .max_failed_starts = 5};
}

// --- control packets ---

static int control_send(int fd, char letter, int replica, const char *text, int pass_fd)
{
    char head[2] = {letter, (char)replica};
    struct iovec iov[2] = {{head, 2}, {(void *)(uintptr_t)text, text == NULL ? 0 : strlen(text)}};
    if (iov[1].iov_len > TEXT_MAX) iov[1].iov_len = TEXT_MAX;
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    if (pass_fd >= 0) {
        msg.msg_control = control.buf;
        msg.msg_controllen = sizeof control.buf;
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &pass_fd, sizeof(int));
    }
    ssize_t n;
    do {
        n = sendmsg(fd, &msg, MSG_NOSIGNAL);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? MSGL_EIO : 0;
}

// The letter, or 0 when there is none now, or -1 at the end. text: TEXT_MAX + 1 bytes.
static int control_recv(int fd, int *replica, char *text, int *passed_fd)
{
    char head[2] = {0};
    struct iovec iov[2] = {{head, 2}, {text, TEXT_MAX}};
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr msg = {.msg_iov = iov,
                         .msg_iovlen = 2,
                         .msg_control = control.buf,
                         .msg_controllen = sizeof control.buf};
    *passed_fd = -1;
    ssize_t n;
    do {
        n = recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
    if (n < 2) return -1;
    text[n - 2] = '\0';
    *replica = head[1];
    const struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        memcpy(passed_fd, CMSG_DATA(c), sizeof(int));
    }
    return head[0];
}

// --- the front process ---

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

// What the front's process keeps of an engine.
typedef struct front_engine {
    bool ready;
    // Descriptors kept for the channel to the next engine, which has a socket, an eventfd and an
    // epoll: clients may hold all others. -1: not kept now.
    int spare[CHANNEL_FILES];
    bool used; // its channel has them
} front_engine;

typedef struct front_process {
    const msgl_serve_config *cfg;
    msgl_front_config front_cfg;
    msgl_front *front;
    int control, port;
    front_engine engines[MSGL_FRONT_MAX_REPLICAS];
    bool announced;
} front_process;

static void keep_spares(front_process *p)
{
    for (int i = 0; i < p->front_cfg.num_replicas; i++) {
        front_engine *e = &p->engines[i];
        for (int k = 0; k < CHANNEL_FILES && !e->used; k++) {
            if (e->spare[k] < 0) e->spare[k] = fcntl(p->control, F_DUPFD_CLOEXEC, 0);
        }
    }
}

static void use_spares(front_process *p)
{
    for (int i = 0; i < p->front_cfg.num_replicas; i++) {
        for (int k = 0; k < CHANNEL_FILES; k++) close_fd(&p->engines[i].spare[k]);
    }
}

static void front_ready(void *ctx, int replica, const msgl_msg_ready *ready)
{
    front_process *p = ctx;
    bool all = true;
    p->engines[replica].ready = true;
    for (int i = 0; i < p->front_cfg.num_replicas; i++) all = all && p->engines[i].ready;
    (void)control_send(p->control, 'R', replica, NULL, -1);
    if (!all || p->announced) return;
    if (p->cfg->on_ready != NULL) p->cfg->on_ready(p->cfg->ctx, p->cfg->host, p->port, ready);
    p->announced = true;
}

static void front_lost(void *ctx, int replica, const char *fatal)
{
    front_process *p = ctx;
    p->engines[replica].ready = p->engines[replica].used = false;
    keep_spares(p); // the channel's are free now
    (void)control_send(p->control, 'L', replica, fatal, -1);
}

static int use_engine(front_process *p, int replica, int fd, msgl_err *err)
{
    msgl_channel *ch = NULL;
    const int rc = msgl__channel_from_fd(fd, &ch, err);
    if (rc != 0) {
        close(fd);
        return rc;
    }
    if (msgl__front_set_channel(p->front, replica, ch) == 0) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "front: cannot watch the engine");
}

static void on_control(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    front_process *p = arg;
    char text[TEXT_MAX + 1];
    int passed, replica = 0;
    use_spares(p);
    const int kind = control_recv((int)fd, &replica, text, &passed);
    if (kind == 'C' && passed >= 0) {
        msgl_err err;
        p->engines[replica].used = true;
        if (use_engine(p, replica, passed, &err) != 0) {
            msgl__log(p->front_cfg.log, MSGL_LOG_ERROR, "%s", err.text);
            front_lost(p, replica, err.text);
        }
    }
    keep_spares(p);
    if (kind == 'C' && passed < 0) { // the engine sees its channel closed and ends
        static const char why[] = "the front could not take the engine's channel: no descriptor "
                                  "free (ulimit -n)";
        msgl__log(p->front_cfg.log, MSGL_LOG_ERROR, "%s", why);
        front_lost(p, replica, why);
    } else if (kind == 'T' || kind < 0) {
        msgl__front_stop(p->front);
    }
}

// As many descriptors as allowed; fewer connections when that is not enough for all of them.
static void raise_file_limit(msgl_front_config *cfg)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0) return;
    // 128 are enough with one engine.
    const int more = 2 * CHANNEL_FILES * (cfg->num_replicas - 1);
    const rlim_t want = (rlim_t)cfg->http.max_connections + 128 + (rlim_t)more;
    if (lim.rlim_cur < want) {
        lim.rlim_cur = lim.rlim_max < want ? lim.rlim_max : want;
        if (setrlimit(RLIMIT_NOFILE, &lim) != 0) (void)getrlimit(RLIMIT_NOFILE, &lim);
    }
    if (lim.rlim_cur >= want) return;
    // What is kept back is for the engine's channel, workers, files and a connection to refuse.
    const int room = (int)lim.rlim_cur > more ? (int)lim.rlim_cur - more : 0;
    const int most = room > 256 ? room - 128 : room > 64 ? room - 48 : room / 4;
    if (cfg->http.max_connections > most) cfg->http.max_connections = most;
}

static int front_load(front_process *p, msgl_tokenizer **tokenizer, msgl_chat_templates **templates,
                      msgl_err *err)
{
    int rc = msgl__tokenizer_load(p->cfg->model_dir, tokenizer, err);
    if (rc != 0) return rc;
    rc = msgl__chat_templates_load(p->cfg->model_dir, templates, err);
    if (rc == MSGL_ENOENT) {
        msgl__log(p->front_cfg.log, MSGL_LOG_WARN,
                  "the model has no chat template: /v1/chat/completions will refuse requests");
        *templates = NULL;
        return 0;
    }
    return rc;
}

// Takes over listen_fd and the channels' descriptors.
static int front_serve(front_process *p, int listen_fd, const int *engine_fds, msgl_err *err)
{
    msgl_tokenizer *tokenizer = NULL;
    msgl_chat_templates *templates = NULL;
    struct event *control = NULL;
    raise_file_limit(&p->front_cfg);
    int rc = front_load(p, &tokenizer, &templates, err);
    if (rc != 0) goto out;
    p->front_cfg.tokenizer = tokenizer;
    p->front_cfg.templates = templates;
    p->front_cfg.ctx = p;
    p->front_cfg.on_ready = front_ready;
    p->front_cfg.on_lost = front_lost;
    rc = msgl__front_create(&p->front_cfg, listen_fd, &p->front, err);
    if (rc != 0) goto out;
    for (int i = 0; i < p->front_cfg.num_replicas && rc == 0; i++) {
        rc = use_engine(p, i, engine_fds[i], err);
    }
    if (rc != 0) goto out;
    control =
        event_new(msgl__front_base(p->front), p->control, EV_READ | EV_PERSIST, on_control, p);
    if (control == NULL || event_add(control, NULL) != 0) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "front: cannot watch the supervisor");
        goto out;
    }
    rc = msgl__front_run(p->front);
out:
    if (control != NULL) event_free(control);
    msgl__front_destroy(p->front);
    if (templates != NULL) msgl__chat_templates_free(templates);
    if (tokenizer != NULL) msgl__tokenizer_free(tokenizer);
    return rc;
}

// --- the supervisor ---

// An engine's process, and how its starts went.
typedef struct engine_process {
    int index;
    pid_t pid;                 // 0: not running
    int front_fd;              // the front's end of its channel until the front has it, or -1
    msgl_heartbeat *heartbeat; // for front and watchdog; the same for every engine of this replica
    msgl_watchdog watchdog;
    bool ready, ever_ready;
    bool lost; // the front says so
    int failed_starts, delay_ms;
    uint64_t ready_at, restart_at; // ns; restart_at 0: none
    char last_words[TEXT_MAX + 1];
} engine_process;

typedef struct supervisor {
    const msgl_serve_config *cfg;
    const msgl_log *log;
    pid_t self, front; // 0: not running
    int num_engines;
    engine_process engines[MSGL_FRONT_MAX_REPLICAS];
    msgl_heartbeat *heartbeats[MSGL_FRONT_MAX_REPLICAS]; // of them
    int listen_fd, port;
    msgl_tls *tls;  // the front's; NULL: none
    int control[2]; // [0] ours, [1] the front's
    int signals;
    sigset_t old_mask;
    bool stopping;
    bool control_closed; // the front is gone; its end comes as SIGCHLD, too
    uint64_t deadline;   // ns; 0: none
    msgl_err failure;    // why it is stopping, if not on request; code 0: none
} supervisor;

static uint64_t in_ms(int ms)
{
    return msgl__now_ns() + (uint64_t)ms * 1000000u;
}

// What both children do first. The parent may have died before prctl took effect.
static void child_begin(supervisor *s)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != s->self) _exit(1);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
    close_fd(&s->signals);
    close_fd(&s->control[0]);
}

static _Noreturn void engine_child(supervisor *s, engine_process *e, int fd)
{
    child_begin(s);
    close_fd(&s->control[1]);
    close_fd(&s->listen_fd);
    msgl__tls_free(s->tls);
    msgl_err err = {0};
    if (s->cfg->seccomp && msgl__confine(MSGL_CONFINE_ENGINE | s->cfg->engine_parts, &err) != 0) {
        msgl__log(s->log, MSGL_LOG_ERROR, "%s", err.text);
        _exit(1);
    }
    // Else the front's death would not be seen.
    for (int i = 0; i < s->num_engines; i++) close_fd(&s->engines[i].front_fd);
    msgl_channel *ch = NULL;
    int rc = msgl__channel_from_fd(fd, &ch, NULL);
    if (rc == 0) rc = s->cfg->engine_main(ch, e->heartbeat, e->index, s->cfg->ctx);
    msgl__channel_destroy(ch);
    fflush(NULL);
    _exit(rc == 0 ? 0 : 1);
}

static int confine_front(const msgl_serve_config *cfg, msgl_err *err)
{
    const unsigned batches = cfg->front.batch_dir == NULL ? 0 : MSGL_CONFINE_BATCHES;
    const int rc = msgl__no_new_privileges(err);
    return rc == 0 && cfg->seccomp ? msgl__confine(MSGL_CONFINE_FRONT | batches, err) : rc;
}

static _Noreturn void front_child(supervisor *s)
{
    static front_process p; // too large for the stack
    child_begin(s);
    p = (front_process){
        .cfg = s->cfg, .front_cfg = s->cfg->front, .control = s->control[1], .port = s->port};
    int fds[MSGL_FRONT_MAX_REPLICAS];
    for (int i = 0; i < s->num_engines; i++) {
        fds[i] = s->engines[i].front_fd;
        for (int k = 0; k < CHANNEL_FILES; k++) p.engines[i].spare[k] = -1;
    }
    keep_spares(&p);
    p.front_cfg.guard.local = msgl__guard_is_local(s->listen_fd);
    p.front_cfg.guard.host = s->cfg->host;
    p.front_cfg.heartbeats = s->heartbeats;
    p.front_cfg.http.tls = s->tls;
    msgl_err err = {0};
    int rc = confine_front(s->cfg, &err);
    if (rc == 0) rc = front_serve(&p, s->listen_fd, fds, &err);
    if (rc != 0) (void)control_send(p.control, 'X', 0, err.text, -1);
    fflush(NULL);
    _exit(rc == 0 ? 0 : 1);
}

// Forks an engine; its front_fd is the front's end of its channel.
static int start_engine(supervisor *s, engine_process *e, msgl_err *err)
{
    int fd[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0) {
        return msgl__err_set(err, MSGL_EIO, "socketpair: %s", strerror(errno));
    }
    fflush(NULL); // what is buffered must not be written twice
    e->ready = e->lost = false;
    e->front_fd = fd[0];
    msgl__heartbeat_reset(e->heartbeat);
    e->pid = fork();
    if (e->pid == 0) engine_child(s, e, fd[1]);
    close(fd[1]);
    if (e->pid < 0) {
        e->pid = 0;
        close_fd(&e->front_fd);
        return msgl__err_set(err, MSGL_EIO, "fork: %s", strerror(errno));
    }
    return 0;
}

static int start_all(supervisor *s, msgl_err *err)
{
    int rc = 0;
    for (int i = 0; i < s->num_engines && rc == 0; i++) rc = start_engine(s, &s->engines[i], err);
    if (rc != 0) return rc;
    s->front = fork();
    if (s->front == 0) front_child(s);
    for (int i = 0; i < s->num_engines; i++) close_fd(&s->engines[i].front_fd);
    close_fd(&s->control[1]);
    close_fd(&s->listen_fd);
    if (s->front < 0) {
        s->front = 0;
        return msgl__err_set(err, MSGL_EIO, "fork: %s", strerror(errno));
    }
    return 0;
}

static void kill_child(pid_t pid)
{
    if (pid > 0) kill(pid, SIGKILL);
}

// Waits for one that was killed.
static void end_child(pid_t *pid)
{
    while (*pid > 0 && waitpid(*pid, NULL, 0) < 0 && errno == EINTR) {
    }
    *pid = 0;
}

// Kills and reaps whatever is left.
static void end_children(supervisor *s)
{
    kill_child(s->front);
    for (int i = 0; i < s->num_engines; i++) kill_child(s->engines[i].pid);
    end_child(&s->front);
    for (int i = 0; i < s->num_engines; i++) end_child(&s->engines[i].pid);
}

static void begin_stop(supervisor *s)
{
    s->stopping = true;
    s->deadline = in_ms(s->cfg->front.stop_timeout_ms + ENGINE_EXIT_MS);
    for (int i = 0; i < s->num_engines; i++) {
        engine_process *e = &s->engines[i];
        e->restart_at = 0;
        // An engine that is still loading listens to nobody, and has nothing in flight.
        if (!e->ready) kill_child(e->pid);
    }
    if (control_send(s->control[0], 'T', 0, NULL, -1) != 0) kill_child(s->front);
}

// 0, or MSGL_EABORTED for the second signal.
static int on_signals(supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue; // children are looked at anyway
        // Who started the ranks ends them all when one has ended: no second signal of a user's.
        if (s->failure.code != 0) continue;
        if (s->stopping) return MSGL_EABORTED;
        begin_stop(s);
    }
    return 0;
}

// 0, or why the server cannot start.
static int on_packets(supervisor *s, msgl_err *err)
{
    char text[TEXT_MAX + 1];
    int passed, kind, replica;
    while ((kind = control_recv(s->control[0], &replica, text, &passed)) > 0) {
        engine_process *e = &s->engines[replica];
        if (kind == 'R') {
            e->ready = e->ever_ready = true;
            e->ready_at = msgl__now_ns();
            (void)msgl__no_new_privileges(NULL); // what a GPU's driver needs has been started
            e->watchdog = (msgl_watchdog){0};
        } else if (kind == 'L') {
            e->lost = true;
            memcpy(e->last_words, text, sizeof e->last_words);
        } else if (kind == 'X') {
            return msgl__err_set(err, MSGL_EINTERNAL, "%s", text);
        }
    }
    s->control_closed = s->control_closed || kind < 0;
    return 0;
}

static const char *how_it_ended(int status, char buf[64])
{
    if (WIFSIGNALED(status)) {
        (void)snprintf(buf, 64, "killed by signal %d", WTERMSIG(status));
    } else {
        (void)snprintf(buf, 64, "exit status %d", WEXITSTATUS(status));
    }
    return buf;
}

// The engine's last words come by way of the front and may be later than its death. 0, or why the
// front cannot start.
static int await_last_words(supervisor *s, const engine_process *e, msgl_err *err)
{
    const uint64_t until = in_ms(LAST_WORDS_MS);
    while (!e->lost && s->front > 0 && !s->control_closed && msgl__now_ns() < until) {
        struct pollfd p = {.fd = s->control[0], .events = POLLIN};
        (void)poll(&p, 1, 50);
        const int rc = on_packets(s, err);
        if (rc != 0) return rc;
    }
    return 0;
}

// Why the server ends with an engine that does not start.
static int give_up(const engine_process *e, const char *how, msgl_err *err)
{
    const char *words = e->last_words;
    if (e->ever_ready) {
        return msgl__err_set(err, MSGL_EINTERNAL,
                             "the engine ended %d times in a row soon after its start (%s)%s%s",
                             e->failed_starts, how, words[0] == '\0' ? "" : ": ", words);
    }
    if (words[0] != '\0') return msgl__err_set(err, MSGL_EINTERNAL, "%s", words);
    return msgl__err_set(err, MSGL_EINTERNAL, "the engine ended while it started (%s)", how);
}

// The end of an engine that is not started again. The front says so to whoever waits, and ends.
static int end_with_engine(supervisor *s, engine_process *e, const char *how, msgl_err *err)
{
    const int rc = await_last_words(s, e, err);
    if (rc != 0) return rc;
    const bool told = e->last_words[0] != '\0';
    msgl__err_set(&s->failure, MSGL_EINTERNAL, "the engine ended (%s)%s%.180s", how,
                  told ? ": " : "", e->last_words);
    e->ready = false;
    if (!s->stopping) begin_stop(s);
    return 0;
}

static bool any_ready(const supervisor *s)
{
    bool any = false;
    for (int i = 0; i < s->num_engines; i++) any = any || s->engines[i].ready;
    return any;
}

static int on_engine_end(supervisor *s, engine_process *e, int status, msgl_err *err)
{
    char buf[64];
    const char *how = how_it_ended(status, buf);
    const uint64_t least = (uint64_t)s->cfg->min_life_ms * 1000000u;
    e->pid = 0;
    if (s->cfg->engine_once && status != 0 && e->ever_ready) {
        return end_with_engine(s, e, how, err);
    }
    if (s->stopping) return 0;
    if (!e->ready) { // or its READY is still under way
        const int rc = await_last_words(s, e, err);
        if (rc != 0) return rc;
    }
    if (!e->ever_ready) return give_up(e, how, err);
    const bool lived = e->ready && msgl__now_ns() - e->ready_at >= least;
    e->ready = false;
    if (lived) {
        e->failed_starts = 0;
        e->delay_ms = s->cfg->restart_delay_ms;
    } else if (++e->failed_starts >= s->cfg->max_failed_starts && !any_ready(s)) {
        return give_up(e, how, err);
    }
    char which[16] = "";
    if (s->num_engines > 1) (void)snprintf(which, sizeof which, " %d", e->index);
    msgl__log(s->log, MSGL_LOG_ERROR, "engine%s ended (%s); starting it again in %d ms", which, how,
              e->delay_ms);
    e->restart_at = in_ms(e->delay_ms);
    e->delay_ms = 2 * e->delay_ms < RESTART_DELAY_MAX_MS ? 2 * e->delay_ms : RESTART_DELAY_MAX_MS;
    return 0;
}

static int reap(supervisor *s, msgl_err *err)
{
    int status, rc = 0;
    for (int i = 0; i < s->num_engines && rc == 0; i++) {
        engine_process *e = &s->engines[i];
        if (e->pid <= 0 || waitpid(e->pid, &status, WNOHANG) != e->pid) continue;
        rc = on_packets(s, err); // a READY or last words that were sent before
        if (rc == 0) rc = on_engine_end(s, e, status, err);
    }
    if (rc == 0 && s->front > 0 && waitpid(s->front, &status, WNOHANG) == s->front) {
        s->front = 0;
        rc = on_packets(s, err);
        if (rc == 0 && !s->stopping) {
            char buf[64];
            rc = msgl__err_set(err, MSGL_EINTERNAL, "the front process ended (%s)",
                               how_it_ended(status, buf));
        }
        // It told the engines to exit, and closed the channels; no long wait for that.
        s->deadline = in_ms(ENGINE_EXIT_MS);
    }
    return rc;
}

static int restart(supervisor *s, engine_process *e, msgl_err *err)
{
    e->restart_at = 0;
    e->last_words[0] = '\0';
    int rc = start_engine(s, e, err);
    if (rc != 0) return rc;
    rc = control_send(s->control[0], 'C', e->index, NULL, e->front_fd);
    close_fd(&e->front_fd);
    return rc == 0 ? 0 : msgl__err_set(err, rc, "the front process does not listen");
}

// Of a server that has stopped: 0, or why it did.
static int end_of(const supervisor *s, msgl_err *err)
{
    if (s->failure.code != 0 && err != NULL) *err = s->failure;
    return s->failure.code;
}

// Ends engines that hang; their deaths then come as any other's. Whether it is to look again.
static bool watch_engines(supervisor *s)
{
    char why[160];
    bool watches = false;
    for (int i = 0; i < s->num_engines; i++) {
        engine_process *e = &s->engines[i];
        // An engine that is the only one is watched to its end: its job may end all others first.
        if (!e->ready || (s->stopping && !s->cfg->engine_once)) continue;
        watches = true;
        if (!msgl__watchdog_look(&e->watchdog, e->heartbeat, s->cfg->watchdog_timeout_s,
                                 msgl__now_ns(), why)) {
            continue;
        }
        char which[32] = "";
        if (s->num_engines > 1) (void)snprintf(which, sizeof which, "engine %d: ", i);
        msgl__log(s->log, MSGL_LOG_ERROR, "%s%s: ending it", which, why);
        kill_child(e->pid);
        e->watchdog = (msgl_watchdog){0};
    }
    return watches;
}

// Starts the engines whose pause is over; *next: when the next one's is, or the stop's deadline, or
// 0.
static int restart_due(supervisor *s, uint64_t now, uint64_t *next, msgl_err *err)
{
    int rc = 0;
    *next = s->stopping ? s->deadline : 0;
    for (int i = 0; i < s->num_engines && rc == 0; i++) {
        engine_process *e = &s->engines[i];
        if (e->restart_at != 0 && now >= e->restart_at) rc = restart(s, e, err);
        if (e->restart_at != 0 && (*next == 0 || e->restart_at < *next)) *next = e->restart_at;
    }
    return rc;
}

static bool all_ended(const supervisor *s)
{
    bool any = s->front != 0;
    for (int i = 0; i < s->num_engines; i++) any = any || s->engines[i].pid != 0;
    return !any;
}

static int supervise(supervisor *s, msgl_err *err)
{
    for (;;) {
        int rc = reap(s, err);
        if (rc != 0) return rc;
        if (s->stopping && all_ended(s)) return end_of(s, err);
        const uint64_t now = msgl__now_ns();
        uint64_t next;
        rc = restart_due(s, now, &next, err);
        if (rc != 0) return rc;
        if (s->stopping && now >= s->deadline) {
            msgl__log(s->log, MSGL_LOG_WARN, "not everything stopped in time");
            return end_of(s, err);
        }
        int wait = next == 0 ? -1 : next <= now ? 0 : (int)((next - now) / 1000000u) + 1;
        const bool watches = watch_engines(s);
        if (watches && (wait < 0 || wait > MSGL_WATCHDOG_TICK_MS)) wait = MSGL_WATCHDOG_TICK_MS;
        struct pollfd p[2] = {{.fd = s->signals, .events = POLLIN},
                              {.fd = s->control_closed ? -1 : s->control[0], .events = POLLIN}};
        if (poll(p, 2, wait) < 0 && errno != EINTR) {
            return msgl__err_set(err, MSGL_EIO, "poll: %s", strerror(errno));
        }
        rc = on_signals(s);
        if (rc != 0) return msgl__err_set(err, rc, "stopped by a second signal");
        rc = on_packets(s, err);
        if (rc != 0) return rc;
    }
}

// Beyond this machine a server without keys is open to all: somebody has to want that.
static int check_reach(const supervisor *s, msgl_err *err)
{
    const msgl_guard *g = &s->cfg->front.guard;
    const char *host = s->cfg->host;
    if (msgl__guard_is_local(s->listen_fd) || g->keys.count > 0) return 0;
    if (!s->cfg->insecure) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "everyone who can reach %.100s could use this server: --api-key-file "
                             "FILE makes them need a key, --insecure lets them",
                             host);
    }
    msgl__log(s->log, MSGL_LOG_WARN,
              "everyone who can reach %s may use this server: there is no key%s", host,
              g->allowed != NULL
                  ? ""
                  : ", and web pages of any origin are served (--allowed-hosts says whose)");
    return 0;
}

// What the front serves on.
static int open_port(supervisor *s, msgl_err *err)
{
    const msgl_serve_config *cfg = s->cfg;
    int rc = 0;
    if (cfg->ssl_certfile != NULL) {
        rc = msgl__tls_create(cfg->ssl_certfile, cfg->ssl_keyfile, &s->tls, err);
    }
    if (rc == 0) rc = msgl__http_listen(cfg->host, cfg->port, &s->listen_fd, &s->port, err);
    return rc == 0 ? check_reach(s, err) : rc;
}

// Before anything is started, which then has no more: the launcher's calls are those of all.
static int give_up_rights(const supervisor *s, msgl_err *err)
{
    const msgl_serve_config *cfg = s->cfg;
    const unsigned parts =
        MSGL_CONFINE_LAUNCHER | MSGL_CONFINE_FRONT | MSGL_CONFINE_ENGINE | cfg->engine_parts;
    int rc = cfg->user == NULL ? 0 : msgl__become_user(cfg->user, err);
    if (rc == 0 && !cfg->gpu) rc = msgl__no_new_privileges(err);
    if (rc != 0 || !cfg->seccomp) return rc;
    return msgl__confine(parts | (cfg->front.batch_dir == NULL ? 0 : MSGL_CONFINE_BATCHES), err);
}

int msgl__serve(const msgl_serve_config *cfg, msgl_err *err)
{
    const int num_engines = cfg->front.num_replicas;
    if (num_engines < 1 || num_engines > MSGL_FRONT_MAX_REPLICAS) {
        return msgl__err_set(err, MSGL_EINVAL, "%d replicas; allowed: 1 to %d", num_engines,
                             MSGL_FRONT_MAX_REPLICAS);
    }
    supervisor s = {.cfg = cfg,
                    .log = cfg->front.log,
                    .self = getpid(),
                    .num_engines = num_engines,
                    .listen_fd = -1,
                    .control = {-1, -1},
                    .signals = -1};
    for (int i = 0; i < num_engines; i++) {
        s.engines[i] =
            (engine_process){.index = i, .front_fd = -1, .delay_ms = cfg->restart_delay_ms};
    }
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGCHLD);
    int rc = open_port(&s, err);
    if (rc != 0) {
        close_fd(&s.listen_fd);
        msgl__tls_free(s.tls);
        return rc;
    }
    sigprocmask(SIG_BLOCK, &mask, &s.old_mask);
    s.signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s.signals < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s.control) != 0) {
        rc = msgl__err_set(err, MSGL_EIO, "cannot set up the supervisor: %s", strerror(errno));
    }
    for (int i = 0; i < num_engines && rc == 0; i++) {
        rc = msgl__heartbeat_create(&s.heartbeats[i], err);
        s.engines[i].heartbeat = s.heartbeats[i];
    }
    if (rc == 0) rc = give_up_rights(&s, err);
    if (rc == 0) rc = start_all(&s, err);
    if (rc == 0) rc = supervise(&s, err);
    end_children(&s);
    for (int i = 0; i < num_engines; i++) {
        msgl__heartbeat_destroy(s.heartbeats[i]);
        close_fd(&s.engines[i].front_fd);
    }
    close_fd(&s.listen_fd);
    msgl__tls_free(s.tls);
    close_fd(&s.control[0]);
    close_fd(&s.control[1]);
    close_fd(&s.signals);
    // A signal that came meanwhile has been heeded; it must not also kill the caller.
    const struct timespec now = {0, 0};
    while (sigtimedwait(&mask, NULL, &now) > 0) {
    }
    sigprocmask(SIG_SETMASK, &s.old_mask, NULL);
    return rc;
}
