// SPDX-License-Identifier: Apache-2.0
//
// The front's files: front.c (its life), replica.c (an engine: channel, signs of life), routes.c
// (from a path to its endpoint), stats.c (what the engines say of themselves), status.c and
// access.c (what the log says of them and of requests); requests with a job: gen.c (their life),
// dispatch.c (their choices' way to the engines), answer.c (tokens back to the client), abort.c,
// trace.c (their spans), tenant.c (who they come from), fair_queue.c (whose choice an engine gets
// next). What admins ask of the engines: admin.c (one call at a time to all of them), weights.c and
// sleep.c (its endpoints).
#ifndef MSGL_FRONT_FRONT_IMPL_H
#define MSGL_FRONT_FRONT_IMPL_H

#include <time.h>

#include "api/endpoint.h"
#include "api/loras.h"
#include "api/openai/response_store.h"
#include "front/front.h"
#include "front/workers.h"
#include "utils/uids.h"

enum { ROUTE_BLOCK = 16 }; // tokens that routing compares prompts by

// The alpha of dynamic thresholds (Choudhury and Hahne, 1998): a tenant may have so many times what
// is then left for others. Example: of 8 rows 7, since 7 <= 7 x 1.
enum { DYNAMIC_THRESHOLD = 7 };
enum { TENANT_BUCKETS = 256 };

// What a connection's open request is, as its user pointer.
typedef enum client_kind { CLIENT_GEN, CLIENT_STATS, CLIENT_ADMIN, CLIENT_GUEST } client_kind;

typedef struct client {
    client_kind kind;
    msgl_http_conn *conn; // NULL: gone
} client;

typedef struct gen gen;
typedef struct lora_wait lora_wait; // loras.c

// One choice: routed to a replica, it waits in a queue, then is in the engine until it ends.
typedef struct choice choice;
struct choice {
    msgl_uid uid; // first, in the front's `uids`; id 0: not in the engine
    msgl_sequence seq;
    size_t seq_bytes; // of seq, claimed
    gen *owner;
    choice *next;     // of its request_queue, while it waits there
    msgl_route route; // where it goes and counts
    bool sent;        // it was handed to an engine
    bool waiting;     // in the engine, no event yet
    bool returned;    // its engine ended before it began it, once
    int32_t prompt;   // tokens
    uint64_t sent_ns; // when it was handed to the engine
    uint64_t last_ns; // when its last tokens came; 0: none yet
    int32_t tokens;   // that the engine is expected to keep for it: prompt and answer
    int32_t most;     // that it may have
    int32_t to_start; // prompt tokens that the engine has to compute for it
    int64_t ahead;    // of its request there, its own included, when it was handed over
};

// Queues that are served round-robin form a ring; NULL and NULL: this one is in none.
typedef struct ring {
    struct ring *prev, *next;
} ring;

// The choices of one request that one replica gets, served first in, first out.
typedef struct request_queue {
    ring ring; // first: of its tenant_queue, while choices wait
    gen *owner;
    choice *first, *last; // those that wait to be sent, in the request's order
    // Of those in the engine:
    int in_engine;
    int64_t tokens, to_start;
} request_queue;

// The request_queues of one tenant at one replica, served round-robin.
typedef struct tenant_queue {
    ring ring;      // first: of the replica, while there are any that wait
    ring *next;     // of its request_queues with choices that wait: the one to serve next
    int in_engine;  // choices
    int64_t tokens; // that the engine is expected to keep for them
} tenant_queue;

// Who requests come from, as far as fairness goes: an API key where keys are asked for, else an
// address, or all batches together.
typedef struct tenant_name {
    enum { TENANT_KEY, TENANT_ADDRESS, TENANT_BATCHES } kind;
    int key;
    msgl_http_source source;
} tenant_name;

// There while it has requests.
typedef struct tenant {
    struct tenant *next; // of its bucket
    tenant_name name;
    uint64_t number; // for engines; no other has or had it
    uint64_t id;     // for the workers; the same when it comes back
    int num_gens;
    int waiting;           // those of the front's `waiting` that are its own
    tenant_queue queues[]; // [num_replicas]
} tenant;

// A request with a job, from its body to the last byte of its answer.
struct gen {
    client base;
    const msgl_endpoint *ep;
    gen *prev, *next; // all of them
    gen *next_dirty;
    bool dirty;     // has news for its client
    bool in_worker; // job belongs to a worker
    bool streaming; // the answer has begun
    bool inner;     // of a batch
    bool aborted;   // to be, when the worker has done with it
    tenant *tenant;
    msgl_job *job; // its claim is the request's: everything it holds, but for unsent bytes
    choice *choices;
    int num_choices, num_left; // all, and those that have not ended
    int num_sent;              // choices that were handed to an engine
    request_queue *queues;     // [num_replicas]
    char id[48];
    uint64_t number; // in the order of opening
    int64_t created;
    uint64_t arrived_ns;
    bool first_seen;   // a token of it
    uint64_t first_ns; // when
    msgl_span *span;   // of its trace; NULL: it is not traced
};

// An engine as the front sees it.
typedef struct replica {
    msgl_front *front;
    int index;
    char name[16]; // in the log: "engine", one of several "engine 3"
    msgl_channel *chan;
    struct event *chan_read, *chan_write;
    bool ready, started;   // now; once at least
    uint64_t beats;        // seen last
    int silence_s;         // seconds, of the timer, without a beat while ready
    bool in_step;          // at the timer's last look
    msgl_msg_ready engine; // its strings are ours
    char *attention, *device;
    char *fatal;
    // What admins' calls have made of it.
    struct {
        bool paused, named;
        int32_t released; // MSGL_MEMORY_ bits
        char version[MSGL_MAX_WEIGHT_VERSION + 1], unusable[MSGL_ERR_TEXT_SIZE];
    } admin;
    msgl_msg_report report;          // the engine's last; zero: none yet
    msgl_msg_report logged;          // the one that the log's last line about it knew
    uint64_t reported_ns, logged_ns; // when they came; before, when it was ready
    // What it has been given:
    ring *next;            // of tenants' queues with choices that wait: the one to serve next
    int in_engine;         // choices
    int tenants;           // whose they are
    int64_t tokens;        // that the engine is expected to keep for them
    int64_t start_max;     // prompt tokens of one request that may be in the engine and not started
    int queued;            // choices that wait in queues here
    int64_t queued_tokens; // of their prompts
} replica;

// A request that waits for the engines' MSGL_MSG_STATS, or MSGL_MSG_TREE; each answers in the order
// of asking.
typedef struct stats_wait {
    client base;
    struct stats_wait *next;
    const msgl_endpoint *ep;
    int num_left;             // that have still to answer
    msgl_replica_stats all[]; // [num_replicas]
} stats_wait;

// Engines that have been asked for the same, and have still to answer.
typedef struct engines_wait {
    int num_left;
    int code; // of the first failure; 0: there was none
    char text[MSGL_ERR_TEXT_SIZE + 32];
    bool asked[MSGL_FRONT_MAX_REPLICAS]; // and has not answered
} engines_wait;

typedef struct admin_call admin_call;

// An admin's call that engines answer (docs/decisions/065). They are done one by one, in the order
// of asking.
struct admin_call {
    client base;
    admin_call *next;
    const msgl_endpoint *ep;
    msgl_admin what;                     // its texts are these:
    char *path, *version, *group, *host; // owned
    msgl_strbuf data;                    // of MSGL_ADMIN_TENSORS and _RECEIVE
    bool abort;                          // all requests end first
    bool waits;                          // for those that engines have, unless these are paused
    bool sent;
    engines_wait wait;
    int64_t num_requests; // that the engines had
    int (*put)(const msgl_front *f, const admin_call *a, msgl_strbuf *out);
};
// Reads a call of its body o, NULL where that is no JSON, and of p, its query and body as they
// came.
typedef int (*admin_read)(const json_t *o, const msgl_http_parser *p, admin_call *a,
                          msgl_api_error *e);

struct msgl_front {
    msgl_front_config cfg;
    msgl_api_config api;
    char shown_path[256]; // of the model, for clients
    struct event_base *base;
    msgl_http_server *http;
    msgl_workers *workers;
    void *batches; // of cfg.batches; NULL: there are none
    msgl_response_store *responses;
    int done_fd, stop_fd;
    struct event *done_event, *stop_event, *stop_timer, *second_timer, *beat_timer;
    bool stopping;
    int64_t started;     // Unix time
    bool awaits_engines; // msgl__front_await_engines
    replica *replicas;   // [cfg.num_replicas]
    msgl_router *router;
    uint64_t route_seed;
    uint64_t *route_keys; // scratch, of one prompt
    size_t cap_route_keys;

    gen *gens, *dirty;
    int num_gens, num_inner; // all, and those of batches
    tenant *tenants[TENANT_BUCKETS];
    uint64_t last_tenant;
    stats_wait *stats_first, **stats_last;
    admin_call *admin_first, **admin_last; // the first is under way
    lora_wait *lora_waits;                 // loads of adapters that engines are asked for
    msgl_uids uids;                        // choices in engines
    uint64_t last_uid;
    int waiting;        // jobs with workers and choices without an event
    msgl_budget budget; // of memory, for everything that requests hold
    int32_t answer_len; // of answers so far, smoothed, in 1/16 tokens
    msgl_strbuf out;    // scratch of one answer
    uint64_t id_base, next_id;
    uint64_t num_opened; // requests with a job
    // Aborts whose request may still be with a worker, which reads its name: of those up to this
    // number. The newest ones.
    struct pending_abort {
        char rid[MSGL_API_MAX_RID + 1];
        uint64_t up_to;
        uint64_t of; // the number of whose they are; 0: anybody's
    } pending_aborts[64];
    uint64_t num_pending_aborts; // in all
    time_t started_at;
    char *unknown[64]; // what the log has said once: names of fields, keywords of schemas
    int num_unknown;
    msgl_metrics metrics;
    int status_seconds; // since the log's last lines about engines
};

// front.c
void msgl__front_idle_check(msgl_front *f);   // while stopping: are we done?
void msgl__front_engine_ready(msgl_front *f); // one more

// replica.c
void msgl__replica_init(msgl_front *f, int index);
void msgl__replica_free(replica *r);
int msgl__replica_post(replica *r, const msgl_msg *m); // to its engine
void msgl__replica_look_for_beats(replica *r);         // once a second
bool msgl__replica_hangs(const replica *r);
bool msgl__replica_serves(const replica *r); // ready, and does not hang
int msgl__front_num_serving(const msgl_front *f);
// Some ready engine's description, the first one's if it is; before any is ready an empty one.
const msgl_msg_ready *msgl__front_engine(const msgl_front *f);

// routes.c
const char *msgl__route_head(void *front, msgl_http_conn *c, const msgl_http_parser *p,
                             int *status);
void msgl__route(void *front, msgl_http_conn *c, msgl_http_parser *p);
void msgl__route_gone(void *front, msgl_http_conn *c);
void msgl__route_answer(void *front, msgl_http_conn *c, int status);
void msgl__route_write_error(void *front, int status, const char *reason, msgl_strbuf *out);
// ep: whose form the error has; NULL: OpenAI's.
void msgl__front_reply_error(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                             const msgl_api_error *e);
// The front's scratch as an endpoint's whole answer, or 500 if rc says that it is none.
void msgl__front_reply(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, int status,
                       int rc);

// access.c
void msgl__access_log(void *front, const msgl_http_done *d);

// status.c
void msgl__status_second(msgl_front *f); // once a second

// stats.c
void msgl__stats_open(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c);
void msgl__stats_arrived(replica *r, const msgl_msg *m); // MSGL_MSG_STATS or MSGL_MSG_TREE
void msgl__stats_lost(replica *r);                       // the engine is gone

// admin.c
// Asks r's engine for m: a failure is noted. arrived: what it says, or that it has ended (text
// NULL: the code's); false: it was not asked, or has answered.
void msgl__wait_ask(engines_wait *w, replica *r, const msgl_msg *m);
bool msgl__wait_arrived(engines_wait *w, const replica *r, int code, const char *text);
// Bytes of a body that the event loop reads, which all connections wait for; with tensors it may be
// as large as HTTP lets it.
enum { MSGL_ADMIN_BODY = 65536 };
// The body, of at most max_body bytes, as an object of these fields (an empty one is {}), or NULL
// with *e.
json_t *msgl__front_read_json(const msgl_front *f, const msgl_fields *fields,
                              const msgl_strbuf *body, size_t max_body, msgl_unknown_fields unknown,
                              msgl_api_error *e);
void msgl__admin_free(admin_call *a); // NULL allowed
// Reads the call of this connection, queues it, and answers when all engines have. max_json: its
// body is an object of ep->objects[0] in at most so many bytes; 0: only `read` looks at it.
void msgl__admin_take(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,
                      const msgl_http_parser *p, size_t max_json, admin_read read);
// An endpoint's `take` that does so.
#define MSGL_ADMIN_TAKE(NAME, MAX_JSON, READ)                                                      \
    static void NAME(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c,                    \
                     msgl_http_parser *p)                                                          \
    {                                                                                              \
        msgl__admin_take(f, ep, c, p, MAX_JSON, READ);                                             \
    }
// {"success":...,"message":...} as SGLang has it, up to what is behind.
int msgl__admin_put_success(const admin_call *a, const char *done, msgl_strbuf *out);
// The first call goes to the engines, if nothing is in its way any more. True: one has ended, and
// what it held back may go.
bool msgl__admin_turn(msgl_front *f);
void msgl__admin_state(replica *r, const msgl_admin_state *s); // from its engine
void msgl__admin_arrived(replica *r, const msgl_msg_admin_done *d);
void msgl__admin_lost(replica *r); // the engine is gone
// Whether a choice of g may go to the replica: no call holds it back.
bool msgl__admin_lets(const msgl_front *f, const replica *r, const gen *g);
const char *msgl__admin_unusable(const msgl_front *f); // why requests are refused now, or NULL
const char *msgl__admin_version(const msgl_front *f);  // of the weights

// fair_queue.c
void msgl__fair_join(replica *r, request_queue *p);
void msgl__fair_leave(replica *r, request_queue *p); // not in the ring: nothing happens
// The choice was handed to the engine; had its first event; left the engine.
void msgl__fair_sent(msgl_front *f, choice *c);
void msgl__fair_started(msgl_front *f, choice *c);
void msgl__fair_grown(msgl_front *f, choice *c); // and any later event
void msgl__fair_left(msgl_front *f, choice *c);
// How many tokens answers have had lately, about.
int32_t msgl__fair_usual_answer(const msgl_front *f);
// The queue whose first choice the engine may have now, moved to the end of the ring, or NULL.
request_queue *msgl__fair_next(replica *r);

// tenant.c
// The request's tenant, which has one request more; NULL: no memory.
tenant *msgl__tenant_join(msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p);
void msgl__tenant_leave(msgl_front *f, tenant *p);
// The number that such a request's tenant has, whether it has requests now or not.
uint64_t msgl__tenant_id(const msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p);
// Whose such a request is; NULL: of somebody who has none now.
const tenant *msgl__tenant_find(msgl_front *f, const msgl_http_conn *c, const msgl_http_parser *p);

// loras.c. open: the names of --lora-paths; MSGL_ENOMEM, MSGL_ELIMIT. done, lost: an engine has
// answered, or is gone.
int msgl__loras_open(msgl_front *f, msgl_err *err);
void msgl__loras_close(msgl_front *f);
void msgl__lora_done(replica *r, const msgl_msg_adapter_done *done);
void msgl__lora_lost(replica *r);

// trace.c
// The request has been read; its first choice was given to an engine; it has its first token.
void msgl__trace_open(msgl_front *f, gen *g, const msgl_http_parser *p);
void msgl__trace_sent(const gen *g);
void msgl__trace_first(const gen *g, uint64_t now_ns);
// Of its choices, before what they have answered is freed; later calls change nothing.
void msgl__trace_count(const gen *g);
// It is answered with this status, or ends with this error behind an answer that has begun.
void msgl__trace_status(const gen *g, int status);
void msgl__trace_error(const gen *g, const msgl_api_error *e);
void msgl__trace_gone(const gen *g);
// The request is over.
void msgl__trace_end(msgl_front *f, gen *g);
// There is no more of it than this error.
void msgl__trace_refused(msgl_front *f, const msgl_endpoint *ep, const msgl_http_conn *c,
                         const msgl_http_parser *p, const msgl_api_error *e);

// gen.c
void msgl__gen_open(msgl_front *f, const msgl_endpoint *ep, msgl_http_conn *c, msgl_http_parser *p);
void msgl__gen_jobs_done(msgl_front *f);
// The client has left: the request ends.
void msgl__gen_gone(msgl_front *f, gen *g);
// Answers with an error, in the form that fits how far the answer is, and ends the request. One
// that a worker has stays without a client until its job comes back.
void msgl__gen_fail(msgl_front *f, gen *g, const msgl_api_error *e);
void msgl__gen_fail_status(msgl_front *f, gen *g, int rc); // with the error that an MSGL_E* means
// All requests but those that workers have.
void msgl__gen_fail_all(msgl_front *f, const msgl_api_error *e);
void msgl__gen_free(msgl_front *f, gen *g); // answered: nothing of it is left
// The engine is done with this choice, or is told to be (abort_it). Not in an engine: nothing.
void msgl__choice_leave(msgl_front *f, choice *c, bool abort_it);
// The engine has this choice no longer: it is none of its uids, and counts in no load there.
void msgl__choice_lost(msgl_front *f, choice *c);
// n of the tenant's places in the queue are free again.
void msgl__queue_give(msgl_front *f, tenant *p, int n);

// dispatch.c
// Makes the request's n choices and routes each; then they join the queues of their replicas.
int msgl__gen_route(msgl_front *f, gen *g, int n);
void msgl__gen_join(msgl_front *f, gen *g);
// It waits neither for another of its request nor for an admin's call.
bool msgl__gen_can_send(const msgl_front *f, const choice *c);
void msgl__dispatch(msgl_front *f); // gives the engines what they may have now
// The queue's choices wait no longer, and count nowhere. Returns the list of them.
choice *msgl__queue_clear(msgl_front *f, request_queue *q);
// The replica does not serve, or does again: what waits for it is routed anew if any serves.
void msgl__reroute(replica *r);
// The engine is gone. keep: it hung before it saw what was sent last. Requests of which it had
// begun nothing then wait for the next engine, once; all others that it had end with this error,
// and so do those that waited for their turn, unless another replica serves. Returns how many wait.
int msgl__dispatch_lost(replica *r, bool keep, const msgl_api_error *e);

// answer.c
msgl_reply msgl__gen_reply(const msgl_front *f, const gen *g);
// Sends what there is: what a stream has new, or a whole answer when its last choice has ended.
void msgl__gen_answer(msgl_front *f, gen *g);
void msgl__gen_tokens(msgl_front *f, const msgl_msg_tokens *t);
// Claims what the choice's buffers have grown by. MSGL_ELIMIT, MSGL_EBUSY.
int msgl__choice_claim(gen *g, choice *c);

// abort.c
int msgl__front_abort_all(msgl_front *f); // but those of batches; how many
// Whether it was aborted by a name that only its worker knew.
bool msgl__gen_is_aborted(const msgl_front *f, const gen *g);
// Its choices end, and so its answer does, with what there is of it: of a vector nothing.
void msgl__gen_end_aborted(msgl_front *f, gen *g);

#endif
