// SPDX-License-Identifier: Apache-2.0
//
// What a path does: one const descriptor at the end of the endpoint's own file, and one row of the
// program's table (program/endpoints.c). Everything else asks the descriptor
// (docs/adding-an-endpoint.md).
#ifndef MSGL_API_ENDPOINT_H
#define MSGL_API_ENDPOINT_H

#include "message/message.h"
#include "http/http.h"
#include "api/job.h"
#include "api/known_fields.h"
#include "api/reply.h"

typedef struct msgl_front msgl_front;

// Where a request's token ids come from.
typedef enum msgl_prompt_source {
    MSGL_PROMPT_TEXT,     // req.prompts: texts, or ids as they are
    MSGL_PROMPT_CHAT,     // req.chat_vars through the chat template
    MSGL_PROMPT_EITHER,   // those where there are any, else the prompts
    MSGL_PROMPT_RENDERED, // as MSGL_PROMPT_CHAT, but the job's `rendered` text instead of ids
} msgl_prompt_source;

// What one engine said of itself.
typedef struct msgl_replica_stats {
    enum { MSGL_STATS_NONE, MSGL_STATS_ASKED, MSGL_STATS_GIVEN } state; // NONE: it is not there
    msgl_msg_stats stats;
    // With MSGL_MSG_GET_TREE instead:
    msgl_msg_tree tree; // its runs are owned
} msgl_replica_stats;

// A call that docs/http.md shows as a curl line, which a test runs against models/demo.
typedef struct msgl_example {
    const char *help; // what it does; NULL: behind the last one
    msgl_http_method method;
    const char
        *rest; // of the path, behind a prefix; $FILE, $BATCH and $RESPONSE: ids of earlier answers
    const char *body; // JSON, or with `form` arguments of curl; NULL: none
    bool form;
    int status;       // of the answer; 0: 200
    const char *type; // of the answer; NULL: the endpoint's
    const char *has;  // members of its object (in a stream, of the first event), by blanks; or NULL
    const char *end;  // of a stream's last line
} msgl_example;

// All put_ functions append to *out and return 0 or the buffer's failure, which the client gets as
// an error instead.
struct msgl_endpoint {
    const char *path;
    const char *help; // what it does, a sentence of docs/http.md
    const msgl_example *examples;
    bool prefix;      // path and at least one character behind it
    bool open;        // needs no API key
    bool probe;       // is answered while the server stops
    bool admin;       // concerns all clients: who may ask is said in routes.c
    bool optional;    // 501 where this server, or its model, has it not
    int method;       // MSGL_HTTP_GET (and HEAD), MSGL_HTTP_POST, MSGL_HTTP_DELETE, or several
    const char *type; // of a whole answer; NULL: application/json
    const char *stream_type; // of a stream; NULL: text/event-stream
    const char *headers;     // of it, further lines, each ending in CR LF; NULL: none
    const char *etag;        // of put_now's answer, quoted: who has it gets 304; NULL: none
    // The body of an error; NULL: OpenAI's (msgl__api_error_put).
    int (*put_error)(const msgl_api_error *e, msgl_strbuf *out);

    // It is answered in one of five ways, by the event loop unless it says otherwise; the functions
    // of the others are NULL.
    // 1. At once. rest: the path behind a prefix. *status is 200 before.
    int (*put_now)(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out);

    // 2. From the engines' answers to `ask` (MSGL_MSG_GET_STATS, _FLUSH or _GET_TREE), one
    // a replica.
    msgl_msg_type ask;
    int (*put_stats)(const msgl_front *f, const msgl_replica_stats *all, msgl_strbuf *out);

    // 5. By itself, now or later (batch_calls.c).
    void (*take)(msgl_front *f, const struct msgl_endpoint *ep, msgl_http_conn *c,
                 msgl_http_parser *p);

    // 3. and 4. By a job: the body is parsed and its prompts become ids, in a worker.
    // The typed request of the body o into *out (with cfg's sampling defaults in it). 0, or
    // MSGL_EINVAL with *e.
    int (*parse)(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e);
    const msgl_own_fields *own; // fields that no other endpoint has; NULL: none
    // Kinds of object in its bodies, a NULL behind them: names that are not typing errors. Those of
    // a `take` that reads JSON are here, too.
    const msgl_fields *const *objects;
    msgl_prompt_source prompt;
    const char *prompt_field; // what errors about the prompt name
    // What errors about one of several prompts name instead; NULL: they name prompt_field.
    void (*name_prompt)(const msgl_gen_request *r, int prompt, char *out, size_t size);

    // 3. The job ends in the worker, and this is its answer. j->req and j->ids are complete; ids
    // may be none, or more than the context has. Of an endpoint that has the functions of 4., too:
    // where the request has no prompts.
    int (*put_job)(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out);

    // 4. The job goes on to the engine, and its tokens come back as an answer or a stream.
    bool pooled;     // or, of an engine that pools, values: there are no streams of them
    bool classifies; // with pooled: they are labels', of a model that has some
    bool lists; // with pooled: of an engine that answers, too, the log-probabilities of some tokens
    const char *id_prefix;              // of the answer's id
    const msgl_logprobs_form *logprobs; // NULL: parse never asks for any
    // A prompt's log-probabilities stand in the answer once, with the first choice's.
    bool prompt_logprobs_once;
    // A whole answer, of which choices are written one by one and freed.
    int (*put_begin)(const msgl_reply *r, msgl_strbuf *out);
    int (*put_choice)(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out);
    int (*put_end)(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out);
    // Instead of these three, of an engine that pools: an answer of all choices' values together.
    // all: [r->num_choices].
    int (*put_all)(const msgl_reply *r, const msgl_sequence *const *all, int64_t cached,
                   msgl_strbuf *out);
    // The events of what choice `index` has to show now, or none; takes (clears) what it shows.
    // With s->finish set, the last that comes. silent: a token may complete no character, or begin
    // what could become a stop string. The stream has something of it all the same (a comment,
    // where it has no event): nobody takes it for a stall.
    int (*put_chunk)(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                     msgl_strbuf *out);
    int (*put_stream_end)(const msgl_reply *r, int64_t cached, int64_t completion,
                          msgl_strbuf *out);
    int (*put_stream_error)(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out);
};

static inline const char *msgl__endpoint_type(const msgl_endpoint *ep)
{
    return ep->type == NULL ? "application/json" : ep->type;
}

// Whether an engine is asked for what it answers, at least for some requests.
static inline bool msgl__endpoint_has_engine(const msgl_endpoint *ep)
{
    return ep->parse != NULL &&
           (ep->put_job == NULL || ep->put_begin != NULL || ep->put_all != NULL);
}

// Whether the request, which was read, is answered in the worker.
static inline bool msgl__endpoint_ends_here(const msgl_endpoint *ep, const msgl_gen_request *r)
{
    return ep->put_job != NULL && (!msgl__endpoint_has_engine(ep) || r->num_prompts == 0);
}

#endif
