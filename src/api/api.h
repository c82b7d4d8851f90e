// SPDX-License-Identifier: Apache-2.0
//
// A generation request as typed data, whichever endpoint it came to, and the error object that
// answers a bad one. From body to struct is a pure function (no sockets, no tokenizer), so that it
// can be tested and fuzzed.
#ifndef MSGL_API_API_H
#define MSGL_API_API_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/req_extra.h"
#include "core/sampling_params.h"
#include "models/prompts.h"
#include "parsers/parser.h"
#include "api/json.h"
#include "text/stop.h"
#include "utils/strbuf.h"

typedef struct msgl_endpoint msgl_endpoint;             // endpoint.h
typedef struct msgl_loras msgl_loras;                   // loras.h
typedef struct msgl_response_store msgl_response_store; // openai/response_store.h

enum {
    MSGL_API_MAX_SALT = 1024,     // bytes
    MSGL_API_MAX_N = 128,         // choices per prompt
    MSGL_API_MAX_PROMPTS = 1024,  // prompts per request
    MSGL_API_MAX_CHOICES = 1024,  // their product
    MSGL_API_MAX_MESSAGES = 4096, // of a chat
    MSGL_API_MAX_RID = 128,       // bytes
};

// OpenAI's error object, with the HTTP status that carries it.
typedef struct msgl_api_error {
    int status;
    const char *type; // "invalid_request_error", ...
    const char *code; // NULL: null
    char param[64];   // empty: null
    char message[400];
} msgl_api_error;

// Where a status may come from; a row of the table has several.
typedef enum msgl_api_place {
    MSGL_AT_ANY = 1,       // any path
    MSGL_AT_KEY = 2,       // those that need a key
    MSGL_AT_BODY = 4,      // those with a body
    MSGL_AT_PARSE = 8,     // those that read fields of one
    MSGL_AT_NAME = 16,     // those that have a name behind their path
    MSGL_AT_ENGINE = 32,   // those that wait for an engine
    MSGL_AT_OPTIONAL = 64, // those that not every server has
} msgl_api_place;

// Every status that says no, with the type of its error object and what it means.
typedef struct msgl_api_status {
    int status; // 0: behind the last one
    const char *type;
    unsigned places;
    const char *help;
} msgl_api_status;
extern const msgl_api_status msgl__api_statuses[];

// Every code of an error object.
typedef struct msgl_api_code {
    const char *code; // NULL: behind the last one
    const char *help;
} msgl_api_code;
extern const msgl_api_code msgl__api_codes[];

// Fills *e (type from the status); returns MSGL_EINVAL. param and code may be NULL.
int msgl__api_fail(msgl_api_error *e, int status, const char *param, const char *code,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));
int msgl__api_oom(msgl_api_error *e); // 500
// rc of a claim on the budget as 413 or 429 (queue_full).
int msgl__api_fail_memory(msgl_api_error *e, int rc);
// Appends {"error":{...}}.
int msgl__api_error_put(const msgl_api_error *e, msgl_strbuf *out);

// What becomes of fields that are not read.
typedef enum msgl_unknown_fields {
    MSGL_UNKNOWN_WARN, // named in the log, once each; one that looks like a typing error is refused
    MSGL_UNKNOWN_IGNORE, // nothing
    MSGL_UNKNOWN_REFUSE, // 400
} msgl_unknown_fields;

// What the model and the operator fix.
typedef struct msgl_api_config {
    const char *model_name;        // served name
    const char *const *more_names; // [num_more_names] that mean it as well
    int num_more_names;            //
    msgl_loras *loras;             // names of adapters, which mean the model with one; NULL: none
    const char *model_path;        // also accepted, as is its last component
    // All that the server has, a NULL behind them: a field that another one reads is no typing
    // error. NULL: none.
    const msgl_endpoint *const *endpoints;
    msgl_sampling_params defaults;    // of what a request leaves out: the model's own
    int32_t vocab_size;               // ids of a prompt and stop ids are below it
    int32_t pooled_size;              // values that the engine makes of a prompt; 0: it answers
    int32_t hidden_size;              // of hidden states; 0: requests cannot have any
    int32_t embed_size;               // of a row of input_embeds; 0: the model takes none
    int32_t token_vector_size;        // of a vector of each token; 0: there are none
    bool token_weights;               // there are weights of each token
    bool reranks;                     // these are the logits of yes and no
    bool classifies;                  // these are the logits of labels, ...
    const char *const *labels;        // ... [pooled_size] of these names
    bool multi_label;                 // of which a text may have several
    const msgl_text_prompts *prompts; // of a model that embeds; NULL: there are none
    msgl_text_form text_form;         // the same: how it takes texts
    const char *template_text;        // of the model's chat template; "": it has none
    const msgl_tool_form *tool_form;  // of the model; NULL: calls stay text
    const msgl_reasoning_form *reasoning_form; // the same of thoughts
    bool tool_form_auto, reasoning_form_auto;  // they follow the template, also a request's own
    bool trust_template;                       // requests may bring one
    bool open_schemas; // objects of JSON schemas may have members beyond their properties
    msgl_unknown_fields unknown_fields;
    uint64_t salt_key[2]; // secret: what clients cannot guess the salts of the prefix cache by
    int salt_of;          // whose API key is part of the salt; 0: nobody's
    msgl_response_store *responses; // of earlier requests; NULL: nothing is stored
    uint64_t client;                // whose request it is, there
    bool added_from_text; // of a chat's messages: also tokens such as <think>, as transformers does
    bool defer_forms;     // a request with a form that has to be compiled is MSGL_API_FORM
} msgl_api_config;

typedef struct msgl_prompt {
    const char *text; // NULL: ids
    size_t len;
    int32_t *ids;
    int32_t num_ids;
} msgl_prompt;

// What the fields of one endpoint become that others do not have: its own struct behind `own` of a
// request, which msgl__api_parse makes, zeroed, before the endpoint's `parse`.
typedef struct msgl_own_fields {
    size_t size;
    void (*free)(void *own);          // what the struct owns; NULL: nothing
    size_t (*bytes)(const void *own); // of it; NULL: 0
} msgl_own_fields;

// Of a chat: how its prompt is made, and what its answer may be.
typedef struct msgl_chat_request {
    json_t *vars;           // variables of the template
    const json_t *template; // a string in root: the template; NULL: the model's
    bool continue_final;    // the answer goes on in the last message
    // What the answer's text is split by. `thinking` is known when the prompt is.
    msgl_parser_config split;
    msgl_tool_set *tools;    // what split.known is; owned
    bool no_thinking;        // there are to be no thoughts
    int32_t thinking_budget; // tokens of thoughts; -1: any number
    bool calls_beside;       // calls may come in place of what extra's grammar has ...
    char *call_grammar;      // ... of this grammar, in Lark's form; owned; NULL: of any text
    bool text_first;        // extra's grammar is of calls, with any text (and thoughts) before them
    bool force_call;        // the answer has to begin with a call ...
    const char *force_name; // ... of this tool, NULL: of any; until msgl__gen_request_detach
    msgl_strbuf prefill;    // what the prompt ends in for that reason, and the answer begins with
} msgl_chat_request;

// Of a reranker: each prompt is a document, read together with its query.
typedef struct msgl_pair_request {
    bool on;        // prompts are such pairs; else each text is embedded alone
    bool encoded;   // by the tokenizer's template for two texts; else as text
    bool one_token; // the score is one token's logit, not how much likelier it is than another
    const char *instruct; // what the model is to judge by, in root; NULL: its own
    int num_documents;    // prompts before the queries'
    int num_queries;      // 1, or one for each document
} msgl_pair_request;

typedef struct msgl_gen_request {
    const msgl_endpoint *ep;        // that it came to
    void *own;                      // fields of ep alone (ep->own); owned
    char rid[MSGL_API_MAX_RID + 1]; // the client's name of the request; "": none
    json_t *root; // the body; owns strings and chat.vars' values until msgl__gen_request_detach
    msgl_json_room room;
    // The prompts.
    msgl_prompt *prompts;    // of no chat; detached: with echo and keep_texts only
    int num_prompts;         // of a chat: 1
    msgl_chat_request chat;  // of a chat
    msgl_pair_request pairs; // of a reranker
    // Around each prompt that is a text, in root or cfg->prompts; NULL: nothing.
    const char *before, *behind;
    const char *const *labels;    // of a model that classifies: msgl_api_config's
    bool multi_label;             // the same
    const json_t *fill;           // of a gap: its parts, an object in root; NULL: there is none
    bool keep_texts;              // of prompts: the answer shows them
    bool without_special_tokens;  // prompts that are texts get no BOS and the like
    bool special_tokens_are_text; // special tokens that prompts spell stay text
    int32_t last_tokens; // of a prompt, which are all that is taken; 0: all, INT32_MAX: that fit
    bool keep_first;     // with last_tokens: the first ones instead
    // How tokens are chosen, and where an answer ends.
    int n;
    int32_t max_tokens;  // -1: not given
    uint64_t cache_salt; // 0: none
    // 0: no adapter; else its number, folder and name (cfg->loras), owned
    uint64_t adapter;
    char *adapter_path, *adapter_name;
    msgl_sampling_params sampling;
    msgl_req_extra *extra;   // a reference, or NULL
    msgl_req_extra **extras; // [num_prompts] of each prompt in its place; NULL: extra is all's
    // token_ids_logprob and input_embeds, in root, which the worker adds to extra; or NULL.
    const json_t *listed, *embeds;
    const json_t *bad_words;    // strings, in root, whose tokens the worker adds to extra; or NULL
    const json_t *dry_breakers; // the same of what DRY stops at; NULL: the default ones
    const char *stops[MSGL_MAX_STOPS];
    int num_stops;
    bool keep_stop; // the stop string that ends an answer is part of it
    // What the answer shows.
    bool stream, include_usage, echo, skip_special;
    bool continuous_usage;     // with include_usage: in every event, as far as the answer has come
    bool return_ids;           // of the prompt and the answer
    bool no_output;            // max_tokens 0 with echo: only the prompt is answered
    bool with_prompt_logprobs; // the answer has the prompt's in a list of their own ...
    int32_t prompt_logprobs;   // ... so many tokens beside each of the prompt ...
    int32_t prompt_from;       // ... from this one on, which has no prediction itself
    bool hidden;               // and hidden states of all tokens, ...
    int32_t hidden_size;       // ... of so many values
    bool every_logprob; // log-probabilities are of all tokens, whether their text is shown or not
    // Forms of log-probabilities and of the prompt's; NULL: ep's, and vLLM's.
    const struct msgl_logprobs_form *form, *prompt_form;
    // What is stored of it beside the answer: a conversation (openai/response_store.h); or nothing.
    msgl_strbuf kept;
    // What is logged of the request.
    msgl_strbuf
        left_out; // what of its schemas does not constrain the answer, each with a NUL behind
    msgl_strbuf unknown; // names of fields that are not read here, each with a NUL behind it
    msgl_strbuf notes;   // sentences that are logged once, each with a NUL behind it
    char *text;          // detached: what stops and prompts point into
    size_t text_len;
} msgl_gen_request;

// Which prompt is the query of document `i` of r's pairs: of 3 documents and one query the fourth.
static inline int msgl__pair_query(const msgl_gen_request *r, int i)
{
    return r->pairs.num_documents + (r->pairs.num_queries == 1 ? 0 : i);
}
// What prompt `i` has of msgl_req_extra, borrowed; NULL: nothing.
static inline msgl_req_extra *msgl__prompt_extra(const msgl_gen_request *r, int i)
{
    return r->extras != NULL ? r->extras[i] : r->extra;
}

// Zero-initialised is empty.
void msgl__gen_request_free(msgl_gen_request *r);

// What msgl__api_parse returns in place of compiling a form (cfg->defer_forms); nothing is wrong.
enum { MSGL_API_FORM = -1000 };

// Reads the body of an endpoint that has a `parse`. 0, or MSGL_EINVAL with *e filled (400, 404 for
// an unknown model, 413 and 429 for too much memory, 500 when memory ran out); *out is then empty.
// claim: what trees take is added to it before they are built; NULL: not counted. MSGL_API_FORM:
// see cfg->defer_forms.
int msgl__api_parse(const msgl_endpoint *ep, const char *body, size_t len,
                    const msgl_api_config *cfg, msgl_claim *claim, msgl_gen_request *out,
                    msgl_api_error *e);

// When the prompts are ids: copies what the answer still needs (stop strings, echoed text) and
// frees the body's tree. 0 or MSGL_ENOMEM.
int msgl__gen_request_detach(msgl_gen_request *r);

// What clients are shown of a path: all of a relative one, such as ORG/NAME of a hub, and the last
// part of an absolute one.
void msgl__api_put_path(const char *path, char *out, size_t size);
// Whether `name` (not terminated) means the served model, with or without ":latest" behind it.
bool msgl__api_model_known(const msgl_api_config *cfg, const char *name, size_t len);

#endif
