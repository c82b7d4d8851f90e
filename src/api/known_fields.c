// SPDX-License-Identifier: Apache-2.0
#include "api/known_fields.h"

#include <string.h>

#include "api/endpoint.h"
#include "api/fields.h"
#include "utils/edits.h"

enum {
    NOTED = 64, // bytes of an unknown name that are kept
    NAME_MAX_LEN = 40,
    MAX_UNKNOWN = 64, // names looked at in one request
};

const msgl_refused_field msgl__refused_fields[] = {
    {"suffix", MSGL_NEUTRAL_EMPTY},
    {"use_beam_search", MSGL_NEUTRAL_FALSE},
    {"response_format", MSGL_NEUTRAL_TEXT},
    {"modalities", MSGL_NEUTRAL_NO_AUDIO},
    {"audio", MSGL_NEUTRAL_NULL},
    {"functions", MSGL_NEUTRAL_EMPTY},
    {"function_call", MSGL_NEUTRAL_NULL},
    {"web_search_options", MSGL_NEUTRAL_NULL},
    {"chat_template", MSGL_NEUTRAL_NULL},
    {"prompt_embeds", MSGL_NEUTRAL_NULL},
    {"prompt_logprobs", MSGL_NEUTRAL_NULL},
    {"structured_outputs", MSGL_NEUTRAL_EMPTY},
    {"guided_json", MSGL_NEUTRAL_NULL},
    {"guided_regex", MSGL_NEUTRAL_NULL},
    {"guided_choice", MSGL_NEUTRAL_NULL},
    {"guided_grammar", MSGL_NEUTRAL_NULL},
    {"json_schema", MSGL_NEUTRAL_NULL},
    {"regex", MSGL_NEUTRAL_NULL},
    {"ebnf", MSGL_NEUTRAL_NULL},
    {"logits_processors", MSGL_NEUTRAL_EMPTY},
    {NULL, MSGL_NEUTRAL_NULL},
};

const char *const msgl__harmless_fields[] = {
    "id_slot",
    "log_metrics",
    "logprob_start_len",
    "metadata",
    "prediction",
    "prompt_cache_key",
    "request_id",
    "return_text_in_logprobs",
    "safety_identifier",
    "service_tier",
    "store",
    "sse_ping_interval",
    "user",
    "verbosity",
    NULL,
};

// Never taken for a near miss of one of ours.
const char *const msgl__foreign_fields[] = {
    // llama-server
    "adaptive_decay",
    "adaptive_target",
    "cache_prompt",
    "chat_format",
    "generation_prompt",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "input_extra",
    "input_prefix",
    "input_suffix",
    "lora",
    "min_keep",
    "n_cmpl",
    "n_discard",
    "n_indent",
    "n_keep",
    "n_predict",
    "n_probs",
    "parse_tool_calls",
    "penalty_last_n",
    "post_sampling_probs",
    "prompt_progress",
    "reasoning_format",
    "repeat_last_n",
    "response_fields",
    "return_progress",
    "return_tokens",
    "samplers",
    "t_max_predict_ms",
    "t_max_prompt_ms",
    "tfs_z",
    "thinking_forced_open",
    "timings_per_token",
    // vLLM
    "add_special_tokens",
    "documents",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "include_reasoning",
    "kv_transfer_params",
    "length_penalty",
    "logprob_token_ids",
    "media_io_kwargs",
    "priority",
    "mm_processor_kwargs",
    "return_tokens_as_token_ids",
    "spaces_between_special_tokens",
    "vllm_xargs",
    // SGLang
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "custom_labels",
    "data_parallel_rank",
    "extra_key",
    "modality",
    "no_logs",
    "return_bytes",
    "return_cached_tokens_details",
    "stream_interval",
    "stream_reasoning",
    // Ollama, OpenAI's newer fields, routers and libraries in front of all of them
    "extra_body",
    "extra_headers",
    "format",
    "keep_alive",
    "models",
    "num_ctx",
    "num_predict",
    "options",
    "plugins",
    "preset",
    "provider",
    "raw",
    "route",
    "system",
    "template",
    "think",
    "thinking",
    "timeout",
    "top_a",
    "transforms",
    "usage",
    NULL,
};

static bool in_list(const char *const *list, const char *name)
{
    while (*list != NULL && strcmp(*list, name) != 0) list++;
    return *list != NULL;
}

static bool is_read(const msgl_fields *f, const char *name)
{
    for (; f != NULL; f = f->also) {
        for (const msgl_field_row *row = f->read; row->name != NULL; row++) {
            if (strcmp(row->name, name) == 0) return true;
        }
    }
    return false;
}

static bool in_refused(const msgl_refused_field *r, const char *name)
{
    while (r != NULL && r->name != NULL && strcmp(r->name, name) != 0) r++;
    return r != NULL && r->name != NULL;
}

// Read or refused: what becomes of such a field is decided by its value.
static bool decided(const msgl_fields *f, const char *name)
{
    if (is_read(f, name)) return true;
    for (; f != NULL; f = f->also) {
        if (in_refused(f->refused, name)) return true;
    }
    return false;
}

// By any endpoint, or known from another server.
static bool known(const msgl_api_config *cfg, const char *name)
{
    for (const msgl_endpoint *const *ep = cfg->endpoints; ep != NULL && *ep != NULL; ep++) {
        for (const msgl_fields *const *o = (*ep)->objects; o != NULL && *o != NULL; o++) {
            if (decided(*o, name)) return true;
        }
    }
    return in_list(msgl__foreign_fields, name);
}

static bool is_neutral(const json_t *v, msgl_neutral kind)
{
    switch (kind) {
    case MSGL_NEUTRAL_ZERO: return json_is_number(v) && json_number_value(v) == 0;
    case MSGL_NEUTRAL_ONE: return json_is_number(v) && json_number_value(v) == 1;
    case MSGL_NEUTRAL_FALSE: return json_is_false(v);
    case MSGL_NEUTRAL_EMPTY:
        return (json_is_object(v) && json_object_size(v) == 0) ||
               (json_is_array(v) && json_array_size(v) == 0) ||
               (json_is_string(v) && json_string_length(v) == 0);
    case MSGL_NEUTRAL_OFF:
        return is_neutral(v, MSGL_NEUTRAL_EMPTY) || is_neutral(v, MSGL_NEUTRAL_FALSE) ||
               is_neutral(v, MSGL_NEUTRAL_ZERO) ||
               (json_is_number(v) && json_number_value(v) == -1);
    case MSGL_NEUTRAL_TEXT: {
        const char *type = json_string_value(json_object_get(v, "type"));
        return type != NULL && strcmp(type, "text") == 0;
    }
    case MSGL_NEUTRAL_NO_AUDIO: {
        const char *first = json_string_value(json_array_get(v, 0));
        return json_array_size(v) == 1 && first != NULL && strcmp(first, "text") == 0;
    }
    case MSGL_NEUTRAL_NULL: break;
    }
    return false;
}

static int check_values(const json_t *o, const msgl_fields *f, const msgl_refused_field *r,
                        msgl_api_error *e)
{
    for (; r != NULL && r->name != NULL; r++) {
        const json_t *v = msgl__field(o, r->name);
        if (v == NULL || is_neutral(v, r->neutral) || is_read(f, r->name)) continue;
        return msgl__api_fail(e, 400, r->name, "unsupported_parameter",
                              "'%s' is not supported by this server.", r->name);
    }
    return 0;
}

// Lower case without separators: maxTokens, max-tokens and max_tokens are one. The length, or 0 for
// what is too long to be a near miss.
static int plain(const char *name, char out[NAME_MAX_LEN])
{
    int n = 0;
    for (; *name != '\0'; name++) {
        if (*name == '_' || *name == '-' || *name == ' ') continue;
        if (n == NAME_MAX_LEN) return 0;
        out[n++] = *name >= 'A' && *name <= 'Z' ? (char)(*name - 'A' + 'a') : *name;
    }
    return n;
}

// Other servers' and libraries' names of fields, by which a request means the same.
static const char *const aliases[][2] = {
    {"chattemplateargs", "chat_template_kwargs"}, // as plain() has them
    {"maxoutputtokens", "max_tokens"},
    {"maxnewtokens", "max_tokens"},
    {"npredict", "max_tokens"},
    {"numpredict", "max_tokens"},
    {"stopsequences", "stop"},
};

// The field that is read by this name in another convention, or NULL.
static const char *meant_by(const char *name, const msgl_fields *f)
{
    char a[NAME_MAX_LEN], b[NAME_MAX_LEN];
    const int n = plain(name, a);
    for (const msgl_fields *g = f; g != NULL && n > 0; g = g->also) {
        for (const msgl_field_row *row = g->read; row->name != NULL; row++) {
            if (plain(row->name, b) == n && memcmp(a, b, (size_t)n) == 0) return row->name;
        }
    }
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0] && n > 0; i++) {
        if (strlen(aliases[i][0]) != (size_t)n || memcmp(a, aliases[i][0], (size_t)n) != 0)
            continue;
        if (is_read(f, aliases[i][1])) return aliases[i][1];
    }
    return NULL;
}

int msgl__rename_fields(json_t *o, const msgl_fields *f)
{
    const char *name;
    json_t *value;
    void *next;
    int left = MAX_UNKNOWN;
    json_object_foreach_safe(o, next, name, value)
    {
        if (decided(f, name) || json_is_null(value)) continue;
        const char *meant = meant_by(name, f);
        if (meant != NULL && msgl__field(o, meant) == NULL) {
            if (json_object_set(o, meant, value) != 0) return MSGL_ENOMEM;
            (void)json_object_del(o, name);
        }
        if (--left == 0) break;
    }
    return 0;
}

typedef struct nearest {
    char name[NAME_MAX_LEN]; // that was given, plain
    int len;
    int most; // edits
    int best;
    const char *found;
} nearest;

static void look_near(nearest *n, const char *name)
{
    char b[NAME_MAX_LEN];
    const int nb = plain(name, b);
    if (nb < 4 || n->len > nb + 2 || nb > n->len + 2) return;
    const int d = msgl__edits(n->name, n->len, b, nb);
    const int far = 2 * d + (n->name[0] != b[0]); // people get the first letter right
    if (d > 0 && far < n->best && d <= (nb < 8 ? 1 : n->most)) {
        n->best = far;
        n->found = name;
    }
}

static void look_near_read(nearest *n, const msgl_fields *f)
{
    for (; f != NULL; f = f->also) {
        for (const msgl_field_row *row = f->read; row->name != NULL; row++) look_near(n, row->name);
    }
}

static void look_near_refused(nearest *n, const msgl_refused_field *r)
{
    for (; r != NULL && r->name != NULL; r++) look_near(n, r->name);
}

// The field that `name` misses by so many letters at most, or NULL. Those of an object inside
// count, too: the next error says where they belong. Another spelling of the same words is no miss.
static const char *near_miss(const char *name, const msgl_fields *f, int most)
{
    nearest n = {.most = most, .best = 6};
    n.len = plain(name, n.name);
    if (n.len == 0) return NULL;
    look_near_read(&n, f);
    look_near_read(&n, f->inside);
    look_near_refused(&n, msgl__refused_fields);
    for (; f != NULL; f = f->also) look_near_refused(&n, f->refused);
    return n.found;
}

static void note(const char *name, msgl_strbuf *unknown)
{
    size_t n = strlen(name);
    if (n > NOTED) {
        n = NOTED;
        while (n > 0 && ((unsigned char)name[n] & 0xc0) == 0x80) n--; // not inside a character
    }
    if (unknown->len + n + 1 > unknown->max) return;
    if (msgl__strbuf_add(unknown, name, n) == 0) (void)msgl__strbuf_addc(unknown, '\0');
}

static int check_names(const json_t *o, const msgl_fields *f, const msgl_api_config *cfg,
                       msgl_unknown_fields what, msgl_strbuf *unknown, msgl_api_error *e)
{
    const char *name;
    json_t *value;
    int left = MAX_UNKNOWN;
    const bool refuse = what == MSGL_UNKNOWN_REFUSE;
    if (what == MSGL_UNKNOWN_IGNORE) return 0;
    json_object_foreach((json_t *)o, name, value)
    {
        if (json_is_null(value) || decided(f, name) || in_refused(msgl__refused_fields, name))
            continue;
        if (in_list(msgl__harmless_fields, name)) continue;
        const bool elsewhere = known(cfg, name);
        const char *meant = elsewhere ? NULL : near_miss(name, f, refuse ? 2 : 1);
        if (meant != NULL) {
            return msgl__api_fail(e, 400, name, "unknown_parameter",
                                  "'%.64s' is not a field of this request; did you mean '%s'?",
                                  name, meant);
        }
        if (refuse) {
            return msgl__api_fail(e, 400, name, "unknown_parameter",
                                  "'%.64s' is not a field of this request%s.", name,
                                  elsewhere ? " on this server" : "");
        }
        note(name, unknown);
        if (--left == 0) break;
    }
    return 0;
}

int msgl__check_fields(const json_t *o, const msgl_fields *f, const msgl_api_config *cfg,
                       msgl_unknown_fields what, msgl_strbuf *unknown, msgl_api_error *e)
{
    if (msgl__rename_fields((json_t *)o, f) != 0) return msgl__api_oom(e);
    int rc = check_values(o, f, msgl__refused_fields, e);
    for (const msgl_fields *more = f; more != NULL && rc == 0; more = more->also) {
        rc = check_values(o, f, more->refused, e);
    }
    return rc != 0 ? rc : check_names(o, f, cfg, what, unknown, e);
}
