// SPDX-License-Identifier: Apache-2.0
//
// The front process: an event loop that owns the HTTP connections, every request's state, and one
// end of the channel to each engine. Tokenizer workers do the slow text work beside it. Engines are
// replicas of one model; a request's choices go where routing says (src/routing).
//
// A request's errors stay its own: everything it brings is checked before the engine sees it, and
// whatever fails later answers only the connection that it came from.
#ifndef MSGL_FRONT_FRONT_H
#define MSGL_FRONT_FRONT_H

#include "message/message.h"
#include "routing/router.h"
#include "front/guard.h"
#include "http/http.h"
#include "api/loras.h"
#include "api/endpoint.h"
#include "front/metrics.h"
#include "front/store_limits.h"
#include "traces/exporter.h"
#include "utils/heartbeat.h"
#include "utils/log.h"

typedef struct msgl_front msgl_front;

// An app that lives on the front's loop and sends requests of its own, as batches do.
typedef struct msgl_guest {
    // *guest: what the others get. On failure nothing is left.
    int (*open)(msgl_front *f, void **guest, msgl_err *err);
    // How many requests of it may be under way at once from now on.
    void (*set_room)(void *guest, int room);
    void (*stop)(void *guest); // gives up those that are under way
    void (*close)(void *guest);
} msgl_guest;

typedef struct msgl_front_config {
    // Every endpoint, a NULL behind them; those with a longer path before a prefix of it. At most
    // MSGL_METRICS_ENDPOINTS - 1.
    const msgl_endpoint *const *endpoints;
    const char *model_name, *model_path;
    const char *const *more_names; // of the model, [num_more_names]
    int num_more_names;
    bool enable_lora; // there may be adapters
    // Those that there are from the start, by the numbers 1, 2, ...: [num_loras]
    const msgl_lora_path *loras;
    int num_loras;
    const msgl_tokenizer *tokenizer;
    const msgl_chat_templates *templates; // NULL: the model has none
    msgl_sampling_params defaults;        // generation_config.json's; max_tokens is not used
    // Names of parsers.h, "auto" looks into the templates; NULL: auto.
    const char *tool_parser, *reasoning_parser;
    const char *const *labels;          // of a model that classifies, else NULL
    bool multi_label;                   // the same: a text may have several
    const msgl_text_prompts *prompts;   // of a model that embeds, or NULL
    msgl_text_form text_form;           // the same: how it takes texts
    int num_workers;                    // tokenizer threads, at least 1
    int max_waiting;                    // requests without a first token; beyond: 429
    size_t max_request_memory;          // bytes that all requests may hold here; beyond: 429
    bool added_from_text;               // msgl_api_config has it
    bool trust_template;                // the same
    bool open_schemas;                  // see msgl_api_config
    msgl_unknown_fields unknown_fields; // what becomes of them
    int stop_timeout_ms;                // requests in flight may end for this long
    int num_replicas;                   // engines, 1 to MSGL_FRONT_MAX_REPLICAS
    msgl_routing routing;               // between them
    double balance;                     // of routing by cached prefix (msgl_router_config)
    msgl_heartbeat *const *heartbeats;  // [num_replicas] of ready engines; NULL: never looked at
    int max_silence_s;                  // without a beat: the engine gets no requests
    msgl_heartbeat *own_heartbeat;      // which the loop beats; NULL: nobody looks
    int beat_ms;                        // from one of those to the next
    msgl_metrics_compat metrics_compat;
    msgl_guard guard; // nobody is refused by default
    bool salt_by_key; // requests share cached prefixes with those of the same key only
    msgl_http_config http;
    // Where spans of requests go; NULL: nowhere.
    const msgl_traces *traces;

    const char *batch_dir; // of files and batches; NULL: there are none
    msgl_store_limits batch_limits;
    const msgl_guest *batches; // what runs them; NULL: nothing in this program does
    const char *info_json;     // an object for /get_server_info's "config", or NULL
    const msgl_log *log;       // NULL: none
    bool access_log;           // a line in it for each request
    int log_stats_interval_s;  // between lines about engines that have something to do; 0: none
    void *ctx;
    void (*on_ready)(void *ctx, int replica, const msgl_msg_ready *ready); // each time; or NULL
    void (*on_lost)(void *ctx, int replica, const char *fatal); // it is gone; last words or NULL
} msgl_front_config;

enum { MSGL_FRONT_MAX_REPLICAS = 64 };

msgl_front_config msgl__front_config_default(void); // without endpoints

// Takes over listen_fd (also on failure). Everything in cfg must outlive the front.
int msgl__front_create(const msgl_front_config *cfg, int listen_fd, msgl_front **out,
                       msgl_err *err);
void msgl__front_destroy(msgl_front *f);
// The channel to a (new) engine, taken over; it gets no requests before its READY, and while there
// is no ready engine they are answered 503. Loop's thread, or before it runs.
int msgl__front_set_channel(msgl_front *f, int replica, msgl_channel *ch);
// Runs until stopped. SIGPIPE is blocked in the calling thread.
int msgl__front_run(msgl_front *f);
// Graceful stop: no new requests but /health and /ready, those in flight end or are aborted after
// stop_timeout_ms, the engines are told to exit, run returns. From any thread.
void msgl__front_stop(msgl_front *f);
// Takes no connections until all engines whose channels it has are ready, or for a moment. They
// wait in the listener's queue: of a front that is started anew beside engines that run.
void msgl__front_await_engines(msgl_front *f);
struct event_base *msgl__front_base(msgl_front *f);

#endif
