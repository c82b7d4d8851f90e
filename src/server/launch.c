// SPDX-License-Identifier: Apache-2.0
//
// Supervisor and front talk over a packet socket, one letter and a payload per packet:
//   front -> supervisor   R  the engine is ready
//                         L  the engine is gone; text: its last words
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
                               .restart_delay_ms = 500,
                               .min_life_ms = 10000,
                               .max_failed_starts = 5};
}

// --- control packets ---

static int control_send(int fd, char letter, const char *text, int pass_fd)
{
    char kind = letter;
    struct iovec iov[2] = {{&kind, 1}, {(void *)(uintptr_t)text, text == NULL ? 0 : strlen(text)}};
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
static int control_recv(int fd, char *text, int *passed_fd)
{
    char kind = 0;
    struct iovec iov[2] = {{&kind, 1}, {text, TEXT_MAX}};
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
    if (n == 0) return -1;
    text[n - 1] = '\0';
    const struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        memcpy(passed_fd, CMSG_DATA(c), sizeof(int));
    }
    return kind;
}

// --- the front process ---

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

typedef struct front_process {
    const msgl_serve_config *cfg;
    msgl_front_config front_cfg;
    msgl_front *front;
    int control, port;
    // Descriptors kept for the channel to the next engine, which has a socket, an eventfd and an
    // epoll: clients may hold all others. -1: free to be used.
    int spare[CHANNEL_FILES];
    bool announced;
} front_process;

static void keep_spares(front_process *p)
{
    for (int i = 0; i < CHANNEL_FILES; i++) {
        if (p->spare[i] < 0) p->spare[i] = fcntl(p->control, F_DUPFD_CLOEXEC, 0);
    }
}

static void use_spares(front_process *p)
{
    for (int i = 0; i < CHANNEL_FILES; i++) close_fd(&p->spare[i]);
}

static void front_ready(void *ctx, const msgl_msg_ready *ready)
{
    front_process *p = ctx;
    (void)control_send(p->control, 'R', NULL, -1);
    if (!p->announced && p->cfg->on_ready != NULL) {
        p->cfg->on_ready(p->cfg->ctx, p->cfg->host, p->port, ready);
    }
    p->announced = true;
}

static void front_lost(void *ctx, const char *fatal)
{
    front_process *p = ctx;
    keep_spares(p); // the channel's are free now
    (void)control_send(p->control, 'L', fatal, -1);
}

static int use_engine(front_process *p, int fd, msgl_err *err)
{
    msgl_channel *ch = NULL;
    const int rc = msgl__channel_from_fd(fd, &ch, err);
    if (rc != 0) {
        close(fd);
        return rc;
    }
    if (msgl__front_set_channel(p->front, ch) == 0) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "front: cannot watch the engine");
}

static void on_control(evutil_socket_t fd, short what, void *arg)
{
    (void)what;
    front_process *p = arg;
    char text[TEXT_MAX + 1];
    int passed;
    use_spares(p);
    const int kind = control_recv((int)fd, text, &passed);
    if (passed < 0) keep_spares(p);
    if (kind == 'C' && passed >= 0) {
        msgl_err err;
        if (use_engine(p, passed, &err) != 0) {
            msgl__log(p->front_cfg.log, MSGL_LOG_ERROR, "%s", err.text);
            front_lost(p, err.text);
        }
    } else if (kind == 'C') { // the engine sees its channel closed and ends
        static const char why[] = "the front could not take the engine's channel: no descriptor "
                                  "free (ulimit -n)";
        msgl__log(p->front_cfg.log, MSGL_LOG_ERROR, "%s", why);
        front_lost(p, why);
    } else if (kind == 'T' || kind < 0) {
        msgl__front_stop(p->front);
    }
}

// As many descriptors as allowed; fewer connections when that is not enough for all of them.
static void raise_file_limit(msgl_front_config *cfg)
{
    struct rlimit lim;
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0) return;
    const rlim_t want = (rlim_t)cfg->http.max_connections + 128;
    if (lim.rlim_cur < want) {
        lim.rlim_cur = lim.rlim_max < want ? lim.rlim_max : want;
        if (setrlimit(RLIMIT_NOFILE, &lim) != 0) (void)getrlimit(RLIMIT_NOFILE, &lim);
    }
    if (lim.rlim_cur >= want) return;
    // What is kept back is for the engine's channel, workers, files and a connection to refuse.
    const int room = (int)lim.rlim_cur;
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

static int front_serve(front_process *p, int listen_fd, int engine_fd, msgl_err *err)
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
    rc = use_engine(p, engine_fd, err);
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

typedef struct supervisor {
    const msgl_serve_config *cfg;
    const msgl_log *log;
    pid_t self, front, engine; // 0: not running
    int listen_fd, port;
    int control[2];            // [0] ours, [1] the front's
    msgl_heartbeat *heartbeat; // the engine's, for the front; the same for every engine
    int signals;
    sigset_t old_mask;
    bool engine_ready, ever_ready, stopping;
    bool control_closed; // the front is gone; its end comes as SIGCHLD, too
    int failed_starts, delay_ms;
    uint64_t ready_at;             // ns; of this engine
    uint64_t restart_at, deadline; // ns; 0: none
    char last_words[TEXT_MAX + 1];
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

static _Noreturn void engine_child(supervisor *s, int fd, int peer_fd)
{
    child_begin(s);
    close_fd(&s->control[1]);
    close_fd(&s->listen_fd);
    close(peer_fd); // else the front's death would not be seen
    msgl_channel *ch = NULL;
    int rc = msgl__channel_from_fd(fd, &ch, NULL);
    if (rc == 0) rc = s->cfg->engine_main(ch, s->heartbeat, s->cfg->ctx);
    msgl__channel_destroy(ch);
    fflush(NULL);
    _exit(rc == 0 ? 0 : 1);
}

static _Noreturn void front_child(supervisor *s, int engine_fd)
{
    child_begin(s);
    front_process p = {.cfg = s->cfg,
                       .front_cfg = s->cfg->front,
                       .control = s->control[1],
                       .port = s->port,
                       .spare = {-1, -1, -1}};
    keep_spares(&p);
    p.front_cfg.guard.local = msgl__guard_is_local(s->listen_fd);
    p.front_cfg.guard.host = s->cfg->host;
    p.front_cfg.heartbeat = s->heartbeat;
    msgl_err err = {0};
    const int rc = front_serve(&p, s->listen_fd, engine_fd, &err);
    if (rc != 0) (void)control_send(p.control, 'X', err.text, -1);
    fflush(NULL);
    _exit(rc == 0 ? 0 : 1);
}

// Forks an engine; *front_fd is the front's end of its channel.
static int start_engine(supervisor *s, int *front_fd, msgl_err *err)
{
    int fd[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0) {
        return msgl__err_set(err, MSGL_EIO, "socketpair: %s", strerror(errno));
    }
    fflush(NULL); // what is buffered must not be written twice
    s->engine_ready = false;
    s->engine = fork();
    if (s->engine == 0) engine_child(s, fd[1], fd[0]);
    close(fd[1]);
    if (s->engine < 0) {
        s->engine = 0;
        close(fd[0]);
        return msgl__err_set(err, MSGL_EIO, "fork: %s", strerror(errno));
    }
    *front_fd = fd[0];
    return 0;
}

static int start_all(supervisor *s, msgl_err *err)
{
    int engine_fd;
    int rc = start_engine(s, &engine_fd, err);
    if (rc != 0) return rc;
    s->front = fork();
    if (s->front == 0) front_child(s, engine_fd);
    close(engine_fd);
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

// Kills and reaps whatever is left.
static void end_children(supervisor *s)
{
    kill_child(s->front);
    kill_child(s->engine);
    while (s->front > 0 && waitpid(s->front, NULL, 0) < 0 && errno == EINTR) {
    }
    while (s->engine > 0 && waitpid(s->engine, NULL, 0) < 0 && errno == EINTR) {
    }
    s->front = s->engine = 0;
}

static void begin_stop(supervisor *s)
{
    s->stopping = true;
    s->restart_at = 0;
    s->deadline = in_ms(s->cfg->front.stop_timeout_ms + ENGINE_EXIT_MS);
    // An engine that is still loading listens to nobody, and nothing is in flight.
    if (!s->engine_ready) kill_child(s->engine);
    if (control_send(s->control[0], 'T', NULL, -1) != 0) kill_child(s->front);
}

// 0, or MSGL_EABORTED for the second signal.
static int on_signals(supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue; // children are looked at anyway
        if (s->stopping) return MSGL_EABORTED;
        begin_stop(s);
    }
    return 0;
}

// 0, or why the server cannot start.
static int on_packets(supervisor *s, msgl_err *err)
{
    char text[TEXT_MAX + 1];
    int passed;
    int kind;
    while ((kind = control_recv(s->control[0], text, &passed)) > 0) {
        if (kind == 'R') {
            s->engine_ready = s->ever_ready = true;
            s->ready_at = msgl__now_ns();
        } else if (kind == 'L') {
            memcpy(s->last_words, text, sizeof s->last_words);
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
static int await_last_words(supervisor *s, msgl_err *err)
{
    const uint64_t until = in_ms(LAST_WORDS_MS);
    while (s->last_words[0] == '\0' && s->front > 0 && msgl__now_ns() < until) {
        struct pollfd p = {.fd = s->control[0], .events = POLLIN};
        (void)poll(&p, 1, 50);
        const int rc = on_packets(s, err);
        if (rc != 0) return rc;
        if (p.revents != 0 && s->last_words[0] == '\0') break; // lost without a word
    }
    return 0;
}

// Why the server ends with an engine that does not start.
static int give_up(const supervisor *s, const char *how, msgl_err *err)
{
    const char *words = s->last_words;
    if (s->ever_ready) {
        return msgl__err_set(err, MSGL_EINTERNAL,
                             "the engine ended %d times in a row soon after its start (%s)%s%s",
                             s->failed_starts, how, words[0] == '\0' ? "" : ": ", words);
    }
    if (words[0] != '\0') return msgl__err_set(err, MSGL_EINTERNAL, "%s", words);
    return msgl__err_set(err, MSGL_EINTERNAL, "the engine ended while it started (%s)", how);
}

static int on_engine_end(supervisor *s, int status, msgl_err *err)
{
    char buf[64];
    const char *how = how_it_ended(status, buf);
    const uint64_t least = (uint64_t)s->cfg->min_life_ms * 1000000u;
    s->engine = 0;
    if (s->stopping) return 0;
    if (!s->engine_ready) { // or its READY is still under way
        const int rc = await_last_words(s, err);
        if (rc != 0) return rc;
    }
    if (!s->ever_ready) return give_up(s, how, err);
    if (s->engine_ready && msgl__now_ns() - s->ready_at >= least) {
        s->failed_starts = 0;
        s->delay_ms = s->cfg->restart_delay_ms;
    } else if (++s->failed_starts >= s->cfg->max_failed_starts) {
        return give_up(s, how, err);
    }
    s->engine_ready = false;
    msgl__log(s->log, MSGL_LOG_ERROR, "engine ended (%s); starting it again in %d ms", how,
              s->delay_ms);
    s->restart_at = in_ms(s->delay_ms);
    s->delay_ms = 2 * s->delay_ms < RESTART_DELAY_MAX_MS ? 2 * s->delay_ms : RESTART_DELAY_MAX_MS;
    return 0;
}

static int reap(supervisor *s, msgl_err *err)
{
    int status, rc = 0;
    if (s->engine > 0 && waitpid(s->engine, &status, WNOHANG) == s->engine) {
        rc = on_packets(s, err); // a READY or last words that were sent before
        if (rc == 0) rc = on_engine_end(s, status, err);
    }
    if (rc == 0 && s->front > 0 && waitpid(s->front, &status, WNOHANG) == s->front) {
        s->front = 0;
        rc = on_packets(s, err);
        if (rc == 0 && !s->stopping) {
            char buf[64];
            rc = msgl__err_set(err, MSGL_EINTERNAL, "the front process ended (%s)",
                               how_it_ended(status, buf));
        }
        // It told the engine to exit, and closed the channel; no long wait for that.
        s->deadline = in_ms(ENGINE_EXIT_MS);
    }
    return rc;
}

static int restart(supervisor *s, msgl_err *err)
{
    int front_fd;
    s->restart_at = 0;
    s->last_words[0] = '\0';
    int rc = start_engine(s, &front_fd, err);
    if (rc != 0) return rc;
    rc = control_send(s->control[0], 'C', NULL, front_fd);
    close(front_fd);
    return rc == 0 ? 0 : msgl__err_set(err, rc, "the front process does not listen");
}

static int supervise(supervisor *s, msgl_err *err)
{
    for (;;) {
        int rc = reap(s, err);
        if (rc != 0) return rc;
        if (s->stopping && s->front == 0 && s->engine == 0) return 0;
        const uint64_t now = msgl__now_ns();
        if (s->restart_at != 0 && now >= s->restart_at) {
            rc = restart(s, err);
            if (rc != 0) return rc;
        }
        if (s->stopping && now >= s->deadline) {
            msgl__log(s->log, MSGL_LOG_WARN, "not everything stopped in time");
            return 0;
        }
        const uint64_t next = s->restart_at != 0 ? s->restart_at : s->stopping ? s->deadline : 0;
        const int wait = next == 0 ? -1 : next <= now ? 0 : (int)((next - now) / 1000000u) + 1;
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

int msgl__serve(const msgl_serve_config *cfg, msgl_err *err)
{
    supervisor s = {.cfg = cfg,
                    .log = cfg->front.log,
                    .self = getpid(),
                    .listen_fd = -1,
                    .control = {-1, -1},
                    .signals = -1,
                    .delay_ms = cfg->restart_delay_ms};
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGCHLD);
    int rc = msgl__http_listen(cfg->host, cfg->port, &s.listen_fd, &s.port, err);
    if (rc != 0) return rc;
    if (!msgl__guard_is_local(s.listen_fd)) {
        msgl__log(s.log, MSGL_LOG_WARN,
                  "everyone who can reach %s may use this server: there is no key%s", cfg->host,
                  cfg->front.guard.allowed != NULL
                      ? ""
                      : ", and web pages of any origin are served (--allowed-hosts says whose)");
    }
    sigprocmask(SIG_BLOCK, &mask, &s.old_mask);
    s.signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s.signals < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, s.control) != 0) {
        rc = msgl__err_set(err, MSGL_EIO, "cannot set up the supervisor: %s", strerror(errno));
    }
    if (rc == 0) rc = msgl__heartbeat_create(&s.heartbeat, err);
    if (rc == 0) rc = start_all(&s, err);
    if (rc == 0) rc = supervise(&s, err);
    end_children(&s);
    msgl__heartbeat_destroy(s.heartbeat);
    close_fd(&s.listen_fd);
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
