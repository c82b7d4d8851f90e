// SPDX-License-Identifier: Apache-2.0
#include "launch/front_process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "launch/confine.h"
#include "launch/control.h"

enum { CHANNEL_FILES = 3 };

// --- life ---

// What the front's process knows of an engine.
typedef struct front_engine {
    bool ready;
    // Descriptors that are reserved for the channel to the next engine, which needs three (a
    // socket, an eventfd and an epoll), because clients may have taken all others by then. -1: none
    // is reserved.
    int spare[CHANNEL_FILES];
    bool used; // the channel of this engine has taken them, and gives them back with its end
} front_engine;

typedef struct front_process {
    const msgl_serve_config *cfg;
    msgl_front_config front_cfg;
    msgl_front *front;
    int control, port;
    front_engine engines[MSGL_FRONT_MAX_REPLICAS];
    bool announced;
} front_process;

static void close_spare(int *fd)
{
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

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
        for (int k = 0; k < CHANNEL_FILES; k++) close_spare(&p->engines[i].spare[k]);
    }
}

static void front_ready(void *ctx, int replica, const msgl_msg_ready *ready)
{
    front_process *p = ctx;
    bool all = true;
    p->engines[replica].ready = true;
    for (int i = 0; i < p->front_cfg.num_replicas; i++) all = all && p->engines[i].ready;
    (void)msgl__control_send(p->control, MSGL_CONTROL_READY, replica, NULL, -1);
    if (!all || p->announced) return;
    if (p->cfg->on_ready != NULL) p->cfg->on_ready(p->cfg->ctx, p->cfg->host, p->port, ready);
    p->announced = true;
}

static void front_lost(void *ctx, int replica, const char *fatal)
{
    front_process *p = ctx;
    p->engines[replica].ready = p->engines[replica].used = false;
    keep_spares(p); // the channel has given its descriptors back
    (void)msgl__control_send(p->control, MSGL_CONTROL_LOST, replica, fatal, -1);
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
    char text[MSGL_CONTROL_TEXT + 1];
    int passed, replica = 0;
    use_spares(p);
    const int kind = msgl__control_recv((int)fd, &replica, text, &passed);
    if (kind == MSGL_CONTROL_CHANNEL && passed >= 0) {
        msgl_err err;
        p->engines[replica].used = true;
        if (use_engine(p, replica, passed, &err) != 0) {
            msgl__log(p->front_cfg.log, MSGL_LOG_ERROR, "%s", err.text);
            front_lost(p, replica, err.text);
        }
    }
    keep_spares(p);
    if (kind == MSGL_CONTROL_CHANNEL && passed < 0) { // the engine sees its channel closed and ends
        static const char why[] = "the front could not take the engine's channel: no descriptor "
                                  "free (ulimit -n)";
        msgl__log(p->front_cfg.log, MSGL_LOG_ERROR, "%s", why);
        front_lost(p, replica, why);
    } else if (kind == MSGL_CONTROL_STOP || kind < 0) {
        msgl__front_stop(p->front);
    }
}

// Raises the limit of descriptors as far as it is allowed, and lowers that of connections if this
// does not suffice for all of them. With one engine and a hard limit of 1024, 4096 connections
// become 896.
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
    // The rest is for engines' channels, workers, files, and a connection that is refused.
    const int room = (int)lim.rlim_cur > more ? (int)lim.rlim_cur - more : 0;
    const int most = room > 256 ? room - 128 : room > 64 ? room - 48 : room / 4;
    if (cfg->http.max_connections > most) cfg->http.max_connections = most;
}

static int front_load(front_process *p, msgl_tokenizer **tokenizer, msgl_chat_templates **templates,
                      msgl_err *err)
{
    const char *dir = p->cfg->model_dir;
    int rc = msgl__tokenizer_load(dir, tokenizer, err);
    if (rc != 0) return rc;
    rc = msgl__chat_templates_load_own(dir, p->cfg->chat_template, templates, err);
    if (rc != MSGL_ENOENT) return rc;
    if (p->front_cfg.text_form.turns) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "the model embeds texts in its chat template (modality_config of "
                             "sentence_bert_config.json), and its folder has none");
    }
    const bool bring = p->front_cfg.trust_template;
    msgl__log(p->front_cfg.log, MSGL_LOG_WARN,
              "the model has no chat template: /v1/chat/completions will refuse requests%s",
              bring ? " that bring none" : "");
    *templates = NULL;
    return bring ? msgl__chat_templates_load_own(dir, "", templates, err) : 0;
}

// Serves until the front has stopped. Takes over listen_fd and the descriptors of engines'
// channels, which are -1 for an engine that does not run now.
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
        if (engine_fds[i] >= 0) rc = use_engine(p, i, engine_fds[i], err);
    }
    if (rc != 0) goto out;
    if (p->announced) msgl__front_await_engines(p->front);
    control =
        event_new(msgl__front_base(p->front), p->control, EV_READ | EV_PERSIST, on_control, p);
    if (control == NULL || event_add(control, NULL) != 0) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "front: cannot watch the supervisor");
        goto out;
    }
    (void)msgl__control_send(p->control, MSGL_CONTROL_SERVES, 0, NULL, -1);
    rc = msgl__front_run(p->front);
out:
    if (control != NULL) event_free(control);
    msgl__front_destroy(p->front);
    if (templates != NULL) msgl__chat_templates_free(templates);
    if (tokenizer != NULL) msgl__tokenizer_free(tokenizer);
    return rc;
}

static int confine_front(const msgl_serve_config *cfg, msgl_err *err)
{
    const unsigned batches = cfg->front.batch_dir == NULL ? 0 : MSGL_CONFINE_BATCHES;
    int rc = msgl__no_new_privileges(err);
    if (rc == 0 && cfg->seccomp) rc = msgl__shut_in(cfg->front.batch_dir, err);
    return rc == 0 && cfg->seccomp ? msgl__confine(MSGL_CONFINE_FRONT | batches, err) : rc;
}

int msgl__front_process(const msgl_front_start *start)
{
    static front_process p; // too large for the stack
    const msgl_serve_config *cfg = start->cfg;
    p = (front_process){.cfg = cfg,
                        .front_cfg = cfg->front,
                        .control = start->control,
                        .port = start->port,
                        .announced = start->announced};
    for (int i = 0; i < cfg->front.num_replicas; i++) {
        for (int k = 0; k < CHANNEL_FILES; k++) p.engines[i].spare[k] = -1;
    }
    keep_spares(&p);
    p.front_cfg.guard.local = msgl__guard_is_local(start->listen_fd);
    p.front_cfg.guard.host = cfg->host;
    p.front_cfg.heartbeats = start->heartbeats;
    p.front_cfg.own_heartbeat = start->own_heartbeat;
    p.front_cfg.http.tls = start->tls;
    p.front_cfg.traces = start->traces;
    msgl_err err = {0};
    int rc = confine_front(cfg, &err);
    if (rc == 0) rc = front_serve(&p, start->listen_fd, start->engine_fds, &err);
    if (rc != 0) (void)msgl__control_send(p.control, MSGL_CONTROL_FAILED, 0, err.text, -1);
    return rc;
}
