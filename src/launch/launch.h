// SPDX-License-Identifier: Apache-2.0
//
// `minisgl serve` without its command line: three processes, or more with several replicas. The
// caller's becomes the supervisor, which stays small and single-threaded, so that it can fork at
// any time: it starts an engine for each replica and the front, starts each again when it dies,
// passes signals on, and reaps. Engines are forked before any thread or device context exists. They
// outlive a front: it takes its clients with it, the next one gets new channels to the same
// engines, which have aborted what the last one asked; clients that connect meanwhile wait, as the
// supervisor keeps the listening socket. All children die with the supervisor.
#ifndef MSGL_LAUNCH_LAUNCH_H
#define MSGL_LAUNCH_LAUNCH_H

#include "front/front.h"

typedef struct msgl_serve_config {
    const char *host;
    int port;                  // 0: any free one
    const char *uds;           // a path to listen at instead; NULL: none
    const char *model_dir;     // tokenizer and chat template are loaded from here, by the front
    const char *chat_template; // the text of one in place of that; NULL: the model's
    const char *ssl_certfile, *ssl_keyfile; // PEM (tls.h); NULL: no TLS, key in certfile
    const char *user;                       // NAME[:GROUP] to become (confine.h); NULL: none
    bool seccomp;                // limit the processes' system calls; only engines on the CPU
    unsigned engine_permissions; // MSGL_CONFINE_RANKS and _HOSTS, if engines need them for seccomp
    bool gpu;      // engines may have to start a program of the driver's that is root's
    bool insecure; // serve everybody who can reach a host beyond loopback, without keys
    const msgl_traces_settings *traces; // where those of requests go; NULL: there are none
    // Tokenizer, templates and the callbacks in it are filled in by msgl__serve.
    msgl_front_config front;
    // An engine process: serve the channel until it ends; the result is its exit status. Errors
    // go to the front as MSGL_MSG_FATAL. replica: 0 to front.num_replicas - 1.
    int (*engine_main)(msgl_channel *ch, msgl_heartbeat *heartbeat, int replica, void *ctx);
    // The first time that all engines are ready. Runs in the front process.
    void (*on_ready)(void *ctx, const char *host, int port, const msgl_msg_ready *ready);
    void *ctx;
    // A step may take so long, s, or ten times what it is expected to (watchdog.h); 0: for ever.
    int watchdog_timeout_s;
    // An engine between steps, and a front, that give no sign of life for so long are ended and
    // started again; more than the second from one to the next; 0: never.
    int engine_silence_ms, front_silence_ms;
    // An engine, or a front, that ends before it was ready for min_life_ms has failed to start,
    // whatever it said. Each such end doubles the pause before the next start, from
    // restart_delay_ms up to 30 s, and that many in a row end the server unless another engine is
    // ready: what starts it (systemd, Kubernetes) then sees it. One that never was ready ends it at
    // once.
    int restart_delay_ms, min_life_ms, max_failed_starts;
    // The engine cannot be started again (a process of an MPI job): when it ends, requests in
    // flight get their error, then the server ends with the engine's last words.
    bool engine_once;
} msgl_serve_config;

msgl_serve_config msgl__serve_config_default(void);

// Returns when the server has stopped, no child left: 0 after SIGTERM or SIGINT (requests in flight
// ended or were given stop_timeout_ms), MSGL_EABORTED after a second one, else why it could not
// start or go on. Must be called while the process has one thread.
int msgl__serve(const msgl_serve_config *cfg, msgl_err *err);

#endif
