// SPDX-License-Identifier: Apache-2.0
//
// The supervisor talks with the front over a packet socket (control.h), and has another one to each
// engine, its line: when a front has died it sends over it the engine's end of a new channel, whose
// other end the next front gets.
// Signals of a terminal reach the whole process group. The children ignore SIGINT and SIGTERM, and
// the supervisor tells the front to stop, so that it can end requests in flight first.
#include "launch/launch.h"

#include <errno.h>
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
#include "launch/child.h"
#include "launch/confine.h"
#include "launch/control.h"
#include "launch/front_process.h"
#include "http/tcp_socket.h"
#include "http/tls.h"
#include "http/unix_socket.h"
#include "launch/watchdog.h"
#include "utils/clock.h"
#include "utils/packet.h"
#include "utils/process.h"

enum {
    ENGINE_EXIT_MS = 3000,
    LAST_WORDS_MS = 2000,
    EXPORTER_START_MS = 20000,
    EXPORTER_LINGER_MS = 2000,
};

msgl_serve_config msgl__serve_config_default(void)
{
    return (msgl_serve_config){.host = "127.0.0.1",
                               .port = 1919,
                               .front = msgl__front_config_default(),
                               .watchdog_timeout_s = 10,
                               .engine_silence_ms = 10000,
                               .front_silence_ms = 30000,
                               .restart_delay_ms = 500,
                               .min_life_ms = 10000,
                               .max_failed_starts = 5};
}

static void close_fd(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

typedef struct engine_process {
    msgl_child child;
    int index;
    int front_fd;              // the front's end of its channel until a front has it, or -1
    int line;                  // our end of its line, or -1
    msgl_heartbeat *heartbeat; // for front and watchdog; the same for every engine of this replica
    msgl_watchdog watchdog;
    bool lost; // the front has reported that its channel is at its end
    // Earlier engines of this index that have ended and that the front has not reported yet: its
    // next reports are of them, not of the engine that runs now.
    int unreported;
    // When an engine is ended whose loss the front has reported and that lives on, as it waits for
    // a new channel; ns, 0: it is not.
    uint64_t end_at;
} engine_process;

typedef struct supervisor {
    const msgl_serve_config *cfg;
    const msgl_log *log;
    pid_t self;
    msgl_child front;
    msgl_heartbeat *front_heartbeat; // the same for every front
    msgl_watchdog front_watchdog;
    msgl_child exporter; // of traces
    msgl_traces_counts *trace_counts;
    int traces[2]; // the front's end and the exporter's, kept for those that follow; -1: none
    msgl_traces traces_front;
    int num_engines;
    engine_process engines[MSGL_FRONT_MAX_REPLICAS];
    msgl_heartbeat *heartbeats[MSGL_FRONT_MAX_REPLICAS]; // the engines'
    bool announced;                                      // all engines were ready once
    msgl_unix_socket unix_socket;
    int listen_fd, port; // kept for the next front
    msgl_tls *tls;       // the front's; NULL: none
    int control[2];      // [0] ours, -1 without a front; [1] the front's until it has it
    int signals;
    sigset_t old_mask;
    bool stopping;
    uint64_t deadline; // ns; 0: none
    msgl_err failure;  // why it is stopping, if not on request; code 0: none
} supervisor;

static uint64_t in_ms(int ms)
{
    return msgl__now_ns() + (uint64_t)ms * 1000000u;
}

// What every child does first. It closes descriptors that belong to others, because a socket's peer
// sees its end only when no process has it any more. The supervisor may have died before prctl took
// effect, which its children see by their new parent.
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
    for (int i = 0; i < s->num_engines; i++) close_fd(&s->engines[i].line);
}

static void close_traces(supervisor *s)
{
    close_fd(&s->traces[0]);
    close_fd(&s->traces[1]);
}

// The exporter's process. The first one says that it has started; any says why it cannot.
static _Noreturn void exporter_child(supervisor *s)
{
    const char *scheme = s->tls != NULL ? "https" : "http";
    child_begin(s);
    close_fd(&s->control[1]);
    close_fd(&s->listen_fd);
    msgl__tls_free(s->tls);
    for (int i = 0; i < s->num_engines; i++) close_fd(&s->engines[i].front_fd);
    close_fd(&s->traces[0]);
    const msgl_exporter_config cfg = {.settings = s->cfg->traces,
                                      .model = s->cfg->front.model_name,
                                      .scheme = scheme,
                                      .log = s->log,
                                      .counts = s->trace_counts,
                                      .fd = s->traces[1],
                                      .linger_ms = EXPORTER_LINGER_MS};
    msgl_exporter *e = NULL;
    msgl_err err = {0};
    int rc = msgl__no_new_privileges(&err);
    if (rc == 0 && s->cfg->seccomp) rc = msgl__shut_in(NULL, &err);
    if (rc == 0 && s->cfg->seccomp) rc = msgl__confine(MSGL_CONFINE_TRACES, &err);
    if (rc == 0) rc = msgl__exporter_create(&cfg, &e, &err);
    if (!s->exporter.ever_ready || rc != 0) {
        (void)msgl__control_send(cfg.fd, rc == 0 ? MSGL_CONTROL_SERVES : MSGL_CONTROL_FAILED, 0,
                                 err.text, -1);
    }
    if (rc == 0) msgl__exporter_run(e);
    msgl__exporter_destroy(e);
    fflush(NULL);
    _exit(rc == 0 ? 0 : 1);
}

static _Noreturn void engine_child(supervisor *s, engine_process *e, int fd, int line)
{
    child_begin(s);
    close_fd(&s->control[1]);
    close_fd(&s->listen_fd);
    close_traces(s);
    msgl__tls_free(s->tls);
    msgl_err err = {0};
    const unsigned permissions = MSGL_CONFINE_ENGINE | s->cfg->engine_permissions;
    if (s->cfg->seccomp &&
        (msgl__shut_in(NULL, &err) != 0 || msgl__confine(permissions, &err) != 0)) {
        msgl__log(s->log, MSGL_LOG_ERROR, "%s", err.text);
        _exit(1);
    }
    for (int i = 0; i < s->num_engines; i++) close_fd(&s->engines[i].front_fd);
    msgl_channel *ch = NULL;
    int rc = msgl__channel_from_fd(fd, &ch, &err);
    if (rc != 0) { // without a channel the log is the only way to say it
        msgl__log(s->log, MSGL_LOG_ERROR, "%s: %s", e->child.name, err.text);
    } else {
        msgl__channel_set_line(ch, line);
        rc = s->cfg->engine_main(ch, e->heartbeat, e->index, s->cfg->ctx);
    }
    msgl__channel_destroy(ch);
    msgl__process_end(rc == 0 ? 0 : 1);
}

static _Noreturn void front_child(supervisor *s)
{
    child_begin(s);
    close_fd(&s->traces[1]);
    int fds[MSGL_FRONT_MAX_REPLICAS];
    for (int i = 0; i < s->num_engines; i++) fds[i] = s->engines[i].front_fd;
    const msgl_front_start start = {.cfg = s->cfg,
                                    .control = s->control[1],
                                    .listen_fd = s->listen_fd,
                                    .port = s->port,
                                    .announced = s->announced,
                                    .engine_fds = fds,
                                    .heartbeats = s->heartbeats,
                                    .own_heartbeat = s->front_heartbeat,
                                    .tls = s->tls,
                                    .traces = s->cfg->traces == NULL ? NULL : &s->traces_front};
    const int rc = msgl__front_process(&start);
    msgl__process_end(rc == 0 ? 0 : 1);
}

static int make_pair(int type, int fd[2], msgl_err *err)
{
    if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fd) == 0) return 0;
    return msgl__err_set(err, MSGL_EIO, "socketpair: %s", strerror(errno));
}

// Forks an engine. The front's end of its channel stays in e->front_fd until a front takes it.
static int start_engine(supervisor *s, engine_process *e, msgl_err *err)
{
    int fd[2], line[2];
    int rc = make_pair(SOCK_STREAM, fd, err);
    if (rc != 0) return rc;
    rc = make_pair(SOCK_SEQPACKET, line, err);
    if (rc != 0) {
        close(fd[0]);
        close(fd[1]);
        return rc;
    }
    msgl__child_begin_start(&e->child);
    e->lost = false;
    e->end_at = 0;
    e->front_fd = fd[0];
    e->line = line[0];
    msgl__heartbeat_reset(e->heartbeat);
    e->child.pid = fork();
    if (e->child.pid == 0) engine_child(s, e, fd[1], line[1]);
    close(fd[1]);
    close(line[1]);
    if (e->child.pid < 0) {
        e->child.pid = 0;
        close_fd(&e->front_fd);
        close_fd(&e->line);
        return msgl__err_set(err, MSGL_EIO, "fork: %s", strerror(errno));
    }
    return 0;
}

// Gives a running engine, whose front has died, a new channel for the next front.
static int renew_channel(engine_process *e, msgl_err *err)
{
    int fd[2];
    const int rc = make_pair(SOCK_STREAM, fd, err);
    if (rc != 0) return rc;
    // This fails if the engine has just died: fd[1] is closed below, and the front sees that end.
    (void)msgl__packet_send(e->line, "C", 1, fd[1]);
    close(fd[1]);
    e->front_fd = fd[0];
    e->lost = false;
    e->end_at = 0;
    return 0;
}

// Forks the front. Engines that are started later reach it by MSGL_CONTROL_CHANNEL.
static int start_front(supervisor *s, msgl_err *err)
{
    close_fd(&s->control[0]); // to the front before this one
    int rc = make_pair(SOCK_SEQPACKET, s->control, err);
    for (int i = 0; i < s->num_engines && rc == 0; i++) {
        engine_process *e = &s->engines[i];
        e->unreported = 0;
        if (e->child.pid > 0 && e->front_fd < 0) rc = renew_channel(e, err);
    }
    if (rc != 0) return rc;
    msgl__child_begin_start(&s->front);
    s->front.pid = fork();
    if (s->front.pid == 0) front_child(s);
    for (int i = 0; i < s->num_engines; i++) close_fd(&s->engines[i].front_fd);
    close_fd(&s->control[1]);
    if (s->front.pid < 0) {
        s->front.pid = 0;
        return msgl__err_set(err, MSGL_EIO, "fork: %s", strerror(errno));
    }
    return 0;
}

// Forks the exporter, and waits until the first one has said that it can do its work: a server
// whose traces cannot be exported does not start.
static int start_exporter(supervisor *s, msgl_err *err)
{
    msgl__child_begin_start(&s->exporter);
    s->exporter.pid = fork();
    if (s->exporter.pid == 0) exporter_child(s);
    if (s->exporter.pid < 0) {
        s->exporter.pid = 0;
        return msgl__err_set(err, MSGL_EIO, "fork: %s", strerror(errno));
    }
    if (s->exporter.ever_ready) {
        msgl__child_set_ready(&s->exporter);
        return 0;
    }
    struct pollfd p = {.fd = s->traces[0], .events = POLLIN};
    char text[MSGL_CONTROL_TEXT + 1];
    int index;
    const int n = poll(&p, 1, EXPORTER_START_MS);
    const int kind = n > 0 ? msgl__control_recv(s->traces[0], &index, text, NULL) : 0;
    if (kind == MSGL_CONTROL_FAILED) return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s", text);
    if (kind != MSGL_CONTROL_SERVES)
        return msgl__err_set(err, MSGL_EIO, "the exporter of traces does not start");
    msgl__child_set_ready(&s->exporter);
    return 0;
}

// Comes before anything else is forked, so that there is nothing to undo when it fails.
static int start_traces(supervisor *s, msgl_err *err)
{
    if (s->cfg->traces == NULL) return 0;
    const int rc = msgl__traces_open(s->traces, &s->trace_counts, err);
    if (rc != 0) return rc;
    s->traces_front = (msgl_traces){s->traces[0], s->trace_counts};
    return start_exporter(s, err);
}

static int start_all(supervisor *s, msgl_err *err)
{
    int rc = start_traces(s, err);
    for (int i = 0; i < s->num_engines && rc == 0; i++) rc = start_engine(s, &s->engines[i], err);
    return rc == 0 ? start_front(s, err) : rc;
}

// Kills and reaps whatever is left.
static void end_children(supervisor *s)
{
    msgl__child_kill(&s->front);
    msgl__child_kill(&s->exporter);
    for (int i = 0; i < s->num_engines; i++) msgl__child_kill(&s->engines[i].child);
    msgl__child_reap(&s->front);
    msgl__child_reap(&s->exporter);
    for (int i = 0; i < s->num_engines; i++) msgl__child_reap(&s->engines[i].child);
}

// Ends the engines of a server that stops and has no front: one that was not told to exit, by a
// message, sees by the end of its line that no other front will come.
static void end_engines(supervisor *s)
{
    for (int i = 0; i < s->num_engines; i++) close_fd(&s->engines[i].line);
    s->deadline = in_ms(ENGINE_EXIT_MS);
}

static void begin_stop(supervisor *s)
{
    s->stopping = true;
    s->deadline = in_ms(s->cfg->front.stop_timeout_ms + ENGINE_EXIT_MS);
    s->front.restart_at = s->exporter.restart_at = 0;
    close_traces(s); // the exporter ends when the front has
    for (int i = 0; i < s->num_engines; i++) {
        engine_process *e = &s->engines[i];
        e->child.restart_at = 0;
        // An engine that is still loading listens to nobody, and has nothing in flight.
        if (!e->child.ready) msgl__child_kill(&e->child);
    }
    if (s->front.pid == 0) {
        end_engines(s);
    } else if (msgl__control_send(s->control[0], MSGL_CONTROL_STOP, 0, NULL, -1) != 0) {
        msgl__child_kill(&s->front);
    }
}

// 0, or MSGL_EABORTED for the second signal.
static int on_signals(supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) continue; // the caller looks at all children anyway
        // When one rank has ended mpirun ends the others by a signal, which is not a user's second
        // one.
        if (s->failure.code != 0) continue;
        if (s->stopping) return MSGL_EABORTED;
        begin_stop(s);
    }
    return 0;
}

static void engine_is_ready(supervisor *s, engine_process *e)
{
    if (!e->child.ready) e->watchdog = (msgl_watchdog){0};
    msgl__child_set_ready(&e->child);
    bool all = true;
    for (int i = 0; i < s->num_engines; i++) all = all && s->engines[i].child.ready;
    s->announced = s->announced || all;
}

static void on_packets(supervisor *s)
{
    char text[MSGL_CONTROL_TEXT + 1];
    int kind, replica = 0;
    while ((kind = msgl__control_recv(s->control[0], &replica, text, NULL)) > 0) {
        if (replica < 0 || replica >= s->num_engines) continue;
        engine_process *e = &s->engines[replica];
        if (kind == MSGL_CONTROL_SERVES) {
            msgl__child_set_ready(&s->front);
            s->front_watchdog = (msgl_watchdog){0};
        } else if (kind == MSGL_CONTROL_READY) {
            engine_is_ready(s, e);
            (void)msgl__no_new_privileges(NULL); // what a GPU's driver needs has been started
        } else if (kind == MSGL_CONTROL_LOST && e->unreported > 0) {
            e->unreported--;
        } else if (kind == MSGL_CONTROL_LOST) {
            e->lost = true;
            e->end_at = in_ms(ENGINE_EXIT_MS);
            memcpy(e->child.last_words, text, sizeof e->child.last_words);
        } else if (kind == MSGL_CONTROL_FAILED) {
            memcpy(s->front.last_words, text, sizeof s->front.last_words);
        }
    }
    if (kind < 0) close_fd(&s->control[0]); // the front is gone; its end comes as SIGCHLD, too
}

// Waits for an engine's last words, which come through the front, often after the engine's end.
static void await_last_words(supervisor *s, const engine_process *e)
{
    const uint64_t until = in_ms(LAST_WORDS_MS);
    while (!e->lost && s->control[0] >= 0 && msgl__now_ns() < until) {
        struct pollfd p = {.fd = s->control[0], .events = POLLIN};
        (void)poll(&p, 1, 50);
        on_packets(s);
    }
}

// Stops the server after the end of an engine that cannot be started again: the front answers those
// that wait with an error, and ends.
static void end_with_engine(supervisor *s, engine_process *e, const char *how)
{
    await_last_words(s, e);
    const char *words = e->child.last_words;
    msgl__err_set(&s->failure, MSGL_EINTERNAL, "the engine ended (%s)%s%.180s", how,
                  words[0] == '\0' ? "" : ": ", words);
    e->child.ready = false;
    if (!s->stopping) begin_stop(s);
}

static bool any_ready(const supervisor *s)
{
    bool any = false;
    for (int i = 0; i < s->num_engines; i++) any = any || s->engines[i].child.ready;
    return any;
}

// A process that leaked memory (as the leak sanitizer's exit status says) makes the server's own
// result a failure, also if it is stopped on request later.
static void note_leaks(supervisor *s, const msgl_child *c, int status)
{
    if (!WIFEXITED(status) || WEXITSTATUS(status) != MSGL_EXIT_LEAKS) return;
    msgl__err_set(&s->failure, MSGL_EINTERNAL, "the %s leaked memory", c->name);
}

static int on_engine_end(supervisor *s, engine_process *e, int status, msgl_err *err)
{
    char buf[64];
    const char *how = msgl__child_how_ended(status, buf);
    e->child.pid = 0;
    e->end_at = 0;
    close_fd(&e->line);
    note_leaks(s, &e->child, status);
    if (s->cfg->engine_once && status != 0 && e->child.ever_ready) {
        end_with_engine(s, e, how);
        return 0;
    }
    if (s->stopping) return 0;
    if (!e->child.ready) await_last_words(s, e); // its READY may still come, too
    if (!e->lost && s->front.pid > 0 && e->front_fd < 0) e->unreported++;
    // A channel that no front has seen yet is closed. A front that got it now would report it lost,
    // perhaps after the next engine's start, and that engine would be ended for it.
    close_fd(&e->front_fd);
    if (!e->child.ever_ready) return msgl__child_give_up(&e->child, how, err);
    if (msgl__child_failed_again(s->cfg, &e->child) && !any_ready(s))
        return msgl__child_give_up(&e->child, how, err);
    msgl__child_start_later(s->log, &e->child, how);
    return 0;
}

static int on_front_end(supervisor *s, int status, msgl_err *err)
{
    char buf[64];
    const char *how = msgl__child_how_ended(status, buf);
    s->front.pid = 0;
    close_fd(&s->control[0]);
    note_leaks(s, &s->front, status);
    if (s->stopping) { // a front that stops in order has told the engines to exit
        end_engines(s);
        close_fd(&s->listen_fd); // clients in its queue would wait for a front that does not come
        return 0;
    }
    if (!s->front.ever_ready || msgl__child_failed_again(s->cfg, &s->front))
        return msgl__child_give_up(&s->front, how, err);
    msgl__child_start_later(s->log, &s->front, how);
    return 0;
}

// Nothing depends on the exporter, so it is started again however often it ends.
static void on_exporter_end(supervisor *s, int status)
{
    char buf[64];
    const uint64_t lost = atomic_exchange(&s->trace_counts->queued, 0);
    (void)atomic_fetch_add(&s->trace_counts->dropped, lost);
    s->exporter.pid = 0;
    if (s->stopping) return;
    (void)msgl__child_failed_again(s->cfg, &s->exporter);
    msgl__child_start_later(s->log, &s->exporter, msgl__child_how_ended(status, buf));
}

static int reap(supervisor *s, msgl_err *err)
{
    int status, rc = 0;
    for (int i = 0; i < s->num_engines && rc == 0; i++) {
        engine_process *e = &s->engines[i];
        if (e->child.pid <= 0 || waitpid(e->child.pid, &status, WNOHANG) != e->child.pid) continue;
        on_packets(s); // a READY or last words that came before the end are read before it counts
        rc = on_engine_end(s, e, status, err);
    }
    if (rc == 0 && s->front.pid > 0 && waitpid(s->front.pid, &status, WNOHANG) == s->front.pid) {
        on_packets(s);
        rc = on_front_end(s, status, err);
    }
    const pid_t exporter = s->exporter.pid;
    if (exporter > 0 && waitpid(exporter, &status, WNOHANG) == exporter) on_exporter_end(s, status);
    return rc;
}

static int restart_engine(supervisor *s, engine_process *e, msgl_err *err)
{
    const int rc = start_engine(s, e, err);
    if (rc != 0) return rc;
    // A descriptor that could not be sent is kept for the next front.
    if (msgl__control_send(s->control[0], MSGL_CONTROL_CHANNEL, e->index, NULL, e->front_fd) == 0)
        close_fd(&e->front_fd);
    return 0;
}

// The result of a server that has stopped: 0, or why it did.
static int end_of(const supervisor *s, msgl_err *err)
{
    if (s->failure.code != 0 && err != NULL) *err = s->failure;
    return s->failure.code;
}

// Kills engines that hang, whose ends then come as any other's. Whether there is an engine to
// watch, so that this has to be called again within MSGL_WATCHDOG_TICK_MS.
static bool watch_engines(supervisor *s)
{
    char why[160];
    bool watches = false;
    for (int i = 0; i < s->num_engines; i++) {
        engine_process *e = &s->engines[i];
        // The engine of an MPI job is watched while it stops, too: its other ranks may end first,
        // and it would wait for them for ever.
        if (!e->child.ready || (s->stopping && !s->cfg->engine_once)) continue;
        watches = true;
        if (!msgl__watchdog_look(&e->watchdog, e->heartbeat, s->cfg->watchdog_timeout_s,
                                 s->cfg->engine_silence_ms, msgl__now_ns(), why)) {
            continue;
        }
        msgl__log(s->log, MSGL_LOG_ERROR, "%s: %s: ending it", e->child.name, why);
        msgl__child_kill(&e->child);
        e->watchdog = (msgl_watchdog){0};
    }
    return watches;
}

// Kills a front that hangs, which costs its clients their requests and the engines nothing. The
// result is as above.
static bool watch_front(supervisor *s)
{
    char why[160];
    if (!s->front.ready || s->front.pid == 0 || s->stopping) return false;
    if (msgl__watchdog_look(&s->front_watchdog, s->front_heartbeat, 0, s->cfg->front_silence_ms,
                            msgl__now_ns(), why)) {
        msgl__log(s->log, MSGL_LOG_ERROR, "%s: %s: ending it", s->front.name, why);
        msgl__child_kill(&s->front);
        s->front_watchdog = (msgl_watchdog){0};
    }
    return true;
}

// Starts the children that are due. *next: when the next one is, or the deadline of a stop, or 0.
static int restart_due(supervisor *s, uint64_t now, uint64_t *next, msgl_err *err)
{
    int rc = 0;
    *next = s->stopping ? s->deadline : 0;
    for (int i = 0; i < s->num_engines && rc == 0; i++) {
        engine_process *e = &s->engines[i];
        if (msgl__child_is_due(&e->child, now, next)) rc = restart_engine(s, e, err);
    }
    // A fork that fails ends the server with any other process; this one can wait.
    if (msgl__child_is_due(&s->exporter, now, next) && start_exporter(s, NULL) != 0) {
        msgl__child_start_later(s->log, &s->exporter, "fork failed");
        (void)msgl__child_is_due(&s->exporter, now, next);
    }
    return rc == 0 && msgl__child_is_due(&s->front, now, next) ? start_front(s, err) : rc;
}

// Kills engines that live on although the front has lost their channel. *next is as above.
static void end_lost(supervisor *s, uint64_t now, uint64_t *next)
{
    for (int i = 0; i < s->num_engines; i++) {
        engine_process *e = &s->engines[i];
        if (e->child.pid <= 0 || e->end_at == 0 || s->stopping) continue;
        if (now < e->end_at) {
            if (*next == 0 || e->end_at < *next) *next = e->end_at;
            continue;
        }
        msgl__log(s->log, MSGL_LOG_ERROR, "the front has lost the %s: ending it", e->child.name);
        msgl__child_kill(&e->child);
        e->end_at = 0;
    }
}

static bool all_ended(const supervisor *s)
{
    bool any = s->front.pid != 0 || s->exporter.pid != 0;
    for (int i = 0; i < s->num_engines; i++) any = any || s->engines[i].child.pid != 0;
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
        end_lost(s, now, &next);
        if (s->stopping && now >= s->deadline) {
            msgl__log(s->log, MSGL_LOG_WARN, "not everything stopped in time");
            return end_of(s, err);
        }
        int wait = next == 0 ? -1 : next <= now ? 0 : (int)((next - now) / 1000000u) + 1;
        bool watches = watch_engines(s);
        watches = watch_front(s) || watches;
        if (watches && (wait < 0 || wait > MSGL_WATCHDOG_TICK_MS)) wait = MSGL_WATCHDOG_TICK_MS;
        struct pollfd p[2] = {{.fd = s->signals, .events = POLLIN},
                              {.fd = s->control[0], .events = POLLIN}};
        if (poll(p, 2, wait) < 0 && errno != EINTR) {
            return msgl__err_set(err, MSGL_EIO, "poll: %s", strerror(errno));
        }
        rc = on_signals(s);
        if (rc != 0) return msgl__err_set(err, rc, "stopped by a second signal");
        on_packets(s);
    }
}

// Refuses a limit of descriptors with which the front could answer nobody, or one client only after
// another has left. 32 were seen to be enough for one engine and a few clients. A further engine
// needs 3 for its channel and 3 that are kept for the next one; a batch under way has a connection
// for each of its requests. With 3 replicas and --batch-dir that is 32 + 2 * 6 + 40 = 84.
static int check_files(const supervisor *s, msgl_err *err)
{
    enum { LEAST = 32, ENGINE = 6, BATCHES = 40, TRACES = 2 };
    const msgl_front_config *f = &s->cfg->front;
    struct rlimit lim;
    const rlim_t least = LEAST + (rlim_t)(ENGINE * (f->num_replicas - 1)) +
                         (f->batch_dir == NULL ? 0 : BATCHES) +
                         (s->cfg->traces == NULL ? 0 : TRACES);
    if (getrlimit(RLIMIT_NOFILE, &lim) != 0 || lim.rlim_max >= least) return 0;
    return msgl__err_set(err, MSGL_ELIMIT,
                         "a process may have %llu open files here, and the server needs %llu "
                         "(ulimit -Hn, or LimitNOFILE of the service)",
                         (unsigned long long)lim.rlim_max, (unsigned long long)least);
}

// A server without keys that other machines reach is open to all, so somebody has to ask for that.
static int check_reach(const supervisor *s, msgl_err *err)
{
    const msgl_guard *g = &s->cfg->front.guard;
    const char *host = s->cfg->host;
    if (s->cfg->uds != NULL) return 0; // its file lets in none but its owner
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

// Opens the socket that the front serves on.
static int open_port(supervisor *s, msgl_err *err)
{
    const msgl_serve_config *cfg = s->cfg;
    int rc = 0;
    if (cfg->ssl_certfile != NULL) {
        rc = msgl__tls_create(cfg->ssl_certfile, cfg->ssl_keyfile, &s->tls, err);
    }
    if (rc == 0) {
        rc = cfg->uds != NULL
                 ? msgl__unix_listen(cfg->uds, &s->unix_socket, &s->listen_fd, err)
                 : msgl__tcp_listen(cfg->host, cfg->port, &s->listen_fd, &s->port, err);
    }
    return rc == 0 ? check_reach(s, err) : rc;
}

// Gives up rights before anything is started, so that no child has more. Its own filter has to
// allow what those of its children allow, which inherit it.
static int give_up_rights(const supervisor *s, msgl_err *err)
{
    const msgl_serve_config *cfg = s->cfg;
    const unsigned permissions =
        MSGL_CONFINE_LAUNCHER | MSGL_CONFINE_FRONT | MSGL_CONFINE_ENGINE | cfg->engine_permissions;
    int rc = cfg->user == NULL ? 0 : msgl__become_user(cfg->user, err);
    if (rc == 0 && !cfg->gpu) rc = msgl__no_new_privileges(err);
    if (rc != 0 || !cfg->seccomp) return rc;
    return msgl__confine(permissions | (cfg->front.batch_dir == NULL ? 0 : MSGL_CONFINE_BATCHES) |
                             (cfg->traces == NULL ? 0 : MSGL_CONFINE_TRACES),
                         err);
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
                    .front = {.name = "front", .delay_ms = cfg->restart_delay_ms},
                    .exporter = {.name = "exporter", .delay_ms = cfg->restart_delay_ms},
                    .traces = {-1, -1},
                    .num_engines = num_engines,
                    .listen_fd = -1,
                    .control = {-1, -1},
                    .signals = -1};
    for (int i = 0; i < num_engines; i++) {
        s.engines[i] =
            (engine_process){.index = i,
                             .front_fd = -1,
                             .line = -1,
                             .child = {.name = "engine", .delay_ms = cfg->restart_delay_ms}};
        if (num_engines == 1) continue;
        (void)snprintf(s.engines[i].child.name, sizeof s.engines[i].child.name, "engine %d", i);
    }
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGINT);
    sigaddset(&mask, SIGTERM);
    sigaddset(&mask, SIGCHLD);
    int rc = check_files(&s, err);
    if (rc == 0) rc = open_port(&s, err);
    if (rc != 0) {
        close_fd(&s.listen_fd);
        msgl__tls_free(s.tls);
        return rc;
    }
    sigprocmask(SIG_BLOCK, &mask, &s.old_mask);
    s.signals = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s.signals < 0) {
        rc = msgl__err_set(err, MSGL_EIO, "cannot set up the supervisor: %s", strerror(errno));
    }
    for (int i = 0; i < num_engines && rc == 0; i++) {
        rc = msgl__heartbeat_create(&s.heartbeats[i], err);
        s.engines[i].heartbeat = s.heartbeats[i];
    }
    if (rc == 0) rc = msgl__heartbeat_create(&s.front_heartbeat, err);
    if (rc == 0) rc = give_up_rights(&s, err);
    if (rc == 0) rc = start_all(&s, err);
    if (rc == 0) rc = supervise(&s, err);
    end_children(&s);
    for (int i = 0; i < num_engines; i++) {
        msgl__heartbeat_destroy(s.heartbeats[i]);
        close_fd(&s.engines[i].front_fd);
        close_fd(&s.engines[i].line);
    }
    msgl__heartbeat_destroy(s.front_heartbeat);
    close_traces(&s);
    msgl__traces_counts_free(s.trace_counts);
    msgl__unix_remove(&s.unix_socket);
    close_fd(&s.listen_fd);
    msgl__tls_free(s.tls);
    close_fd(&s.control[0]);
    close_fd(&s.control[1]);
    close_fd(&s.signals);
    // The server has stopped, as a signal that came meanwhile asked for: it must not kill the
    // caller.
    const struct timespec now = {0, 0};
    while (sigtimedwait(&mask, NULL, &now) > 0) {
    }
    sigprocmask(SIG_SETMASK, &s.old_mask, NULL);
    return rc;
}
