// SPDX-License-Identifier: Apache-2.0
//
// Typed fields of a JSON request. null counts as absent (clients send it for defaults). A field of
// the wrong type or out of range fails with its name, what was found and what is allowed.
#ifndef MSGL_API_FIELDS_H
#define MSGL_API_FIELDS_H

#include "core/settings.h"
#include "api/api.h"
#include "api/known_fields.h"
#include "template/chat_template.h"

// Rows that several kinds of request have.
#define MSGL_ROW_MODEL                                                                             \
    {                                                                                              \
        "model", MSGL_FIELD_STRING, .preset = "the served model",                                  \
                                    .help = "one of the served names, or the model's path"         \
    }
#define MSGL_ROW_STREAM                                                                            \
    {                                                                                              \
        "stream", MSGL_FIELD_BOOL, .preset = "false",                                              \
                                   .help = "the answer comes as server-sent events"                \
    }
// A field of a service's or of another program that changes nothing here; whose: "of Anthropic's
// service".
#define MSGL_ROW_UNUSED(name, whose)                                                               \
    {                                                                                              \
        name, MSGL_FIELD_ANY, .help = "changes nothing: " whose                                    \
    }
#define MSGL_ROW_DIMENSIONS                                                                        \
    {                                                                                              \
        "dimensions", MSGL_FIELD_INT, .min = 1, .max = INT32_MAX,                                  \
                                      .preset = "all that the model has, which is the most",       \
                                      .help = "the first so many values, made of length 1 again"   \
    }
#define MSGL_ROW_CACHE_SALT                                                                        \
    {                                                                                              \
        "cache_salt", MSGL_FIELD_STRING,                                                           \
            .max_bytes = MSGL_API_MAX_SALT,                                                        \
            .help = "cached prefixes are shared only with requests of the same salt; not empty"    \
    }
#define MSGL_ROW_LORA_PATH                                                                         \
    {                                                                                              \
        "lora_path", MSGL_FIELD_STRING,                                                            \
            .help = "SGLang's name of an adapter by its name ([adapters.md](adapters.md)); as "    \
                    "`model` it means the same"                                                    \
    }
#define MSGL_ROW_RID                                                                               \
    {                                                                                              \
        "rid", MSGL_FIELD_STRING, .max_bytes = MSGL_API_MAX_RID,                                   \
                                  .help = "the request's name for /abort_request; not empty"       \
    }
#define MSGL_ROW_CHAT_TEMPLATE                                                                     \
    {                                                                                              \
        "chat_template", MSGL_FIELD_STRING,                                                        \
            .max_bytes = MSGL_REQUEST_TEMPLATE_MAX,                                                \
            .help = "a template in place of the model's; refused unless the server was started "   \
                    "with `--trust-request-chat-template` ([templates.md](templates.md))"          \
    }
#define MSGL_ROW_PROMPT_LOGPROBS                                                                   \
    {                                                                                              \
        "prompt_logprobs", MSGL_FIELD_INT,                                                         \
            .min = 0, .max = MSGL_MAX_LOGPROBS,                                                    \
            .help = "log-probabilities and ranks of the prompt's tokens, and of so many that "     \
                    "were likelier; not with `stream`"                                             \
    }
#define MSGL_ROW_RETURN_TOKEN_IDS                                                                  \
    {                                                                                              \
        "return_token_ids", MSGL_FIELD_BOOL,                                                       \
            .preset = "false", .help = "the answer has `prompt_token_ids` and `token_ids`"         \
    }

// NULL: absent, or null.
json_t *msgl__field(const json_t *o, const char *name);

// Each: 1 present and *out set, 0 absent (*out as before), negative with *e.
int msgl__field_bool(const json_t *o, const char *name, bool *out, msgl_api_error *e);
int msgl__field_int(const json_t *o, const char *name, int64_t lo, int64_t hi, int64_t *out,
                    msgl_api_error *e);
// The same within the limits of the row that f has of it.
int msgl__field_int_of(const json_t *o, const msgl_fields *f, const char *name, int64_t *out,
                       msgl_api_error *e);
int msgl__field_real(const json_t *o, const char *name, double lo, double hi, double *out,
                     msgl_api_error *e);
int msgl__field_str(const json_t *o, const char *name, const char **out, msgl_api_error *e);
// Of 1 to `most` bytes.
int msgl__field_name(const json_t *o, const char *name, size_t most, const char **out,
                     msgl_api_error *e);

// The row that f, or what it takes over, has of a field; NULL: none.
const msgl_field_row *msgl__field_row(const msgl_fields *f, const char *name);
// The setting that is a field's, if it is one.
const msgl_setting *msgl__field_setting(const msgl_field_row *row);

// 400: 'param' and what is wrong with it, such as "must be a string".
int msgl__field_bad(msgl_api_error *e, const char *param, const char *what);
int msgl__field_missing(msgl_api_error *e, const char *param); // 400: it must be given
// An error about `from`, or what is in it, is about `to`, as the client has called it.
void msgl__field_rename(msgl_api_error *e, const char *from, const char *to);
// Whether o is an object whose "type" is this.
bool msgl__field_is_type(const json_t *o, const char *type);

// The answer to msgl__json_parse_object's failure.
int msgl__json_fail(const msgl_err *err, msgl_api_error *e);

const char *msgl__json_type_name(const json_t *v); // "an integer", ...

// An array of token ids into new memory (*ids, freed with msgl__free).
int msgl__field_ids(const json_t *array, const char *name, int32_t vocab_size, int32_t **ids,
                    int32_t *count, msgl_api_error *e);

// sampling.c: what all that generate share. Starts from out->sampling.
int msgl__parse_sampling(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                         msgl_api_error *e);
// "rid", as msgl__field_str: 1 to MSGL_API_MAX_RID bytes.
int msgl__parse_rid(const json_t *o, char rid[MSGL_API_MAX_RID + 1], msgl_api_error *e);
// Gives the request's tree a tree that was made of the body, as the member `name`: what was read of
// it points to its texts. Takes the reference of `tree`. Returns rc, or, where that is 0 and there
// is no memory, MSGL_ENOMEM with *e.
int msgl__request_keep(msgl_gen_request *out, const char *name, json_t *tree, int rc,
                       msgl_api_error *e);
// For endpoints whose engine pools: a prompt is read, and no answer follows.
void msgl__request_pools(msgl_gen_request *out);
// completion.c
// "prompt" (string, ids, list of either) into out->prompts.
int msgl__parse_prompts(const json_t *prompt, const char *name, const msgl_api_config *cfg,
                        msgl_gen_request *out, msgl_api_error *e);
// chat.c: "messages", "tools" and what else makes a prompt of them, into out->chat.vars and
// out->chat.template.
extern const msgl_fields msgl__conversation_fields;
int msgl__parse_conversation(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                             msgl_api_error *e);
// chat.c: a body of /v1/chat/completions.
int msgl__chat_parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                     msgl_api_error *e);
// sampling.c: "prompt_logprobs", behind what asks for an echo's log-probabilities.
int msgl__parse_prompt_logprobs(const json_t *o, const msgl_fields *f, msgl_gen_request *out,
                                msgl_api_error *e);
// fill_prompt.c: what stands before a gap, behind it, how the answer begins, and other files with
// filename and text: strings of the body, or NULL, into out->fill.
int msgl__parse_fill(const json_t *prefix, const json_t *suffix, const json_t *begun,
                     const json_t *files, msgl_gen_request *out, msgl_api_error *e);
// completion.c: n times prompts against MSGL_API_MAX_CHOICES.
int msgl__check_choices(const msgl_gen_request *out, msgl_api_error *e);

#endif
