// SPDX-License-Identifier: Apache-2.0
//
// The fields that all generation endpoints share.
#include <string.h>
#include <sys/random.h>

#include "core/batch.h"
#include "core/mem.h"
#include "core/settings.h"
#include "api/constraint.h"
#include "api/fields.h"
#include "api/logit_bias.h"
#include "text/bad_words.h"
#include "text/dry_breakers.h"

#define SETTING(name_)                                                                             \
    {                                                                                              \
        .name = name_, .type = MSGL_FIELD_SETTING                                                  \
    }
// Two spellings of one setting: the later row wins where both are given.
static const msgl_field_row sampling_rows[] = {
    {"temperature", MSGL_FIELD_SETTING, .preset = "the model's generation_config.json, else 1"},
    SETTING("top_p"),
    SETTING("top_k"),
    SETTING("min_p"),
    SETTING("frequency_penalty"),
    SETTING("presence_penalty"),
    {"repeat_penalty", MSGL_FIELD_SETTING, .setting = "repetition_penalty",
     .help = "llama-server's name of `repetition_penalty`"},
    SETTING("repetition_penalty"),
    {"typ_p", MSGL_FIELD_SETTING, .setting = "typical_p",
     .help = "llama-server's name of `typical_p`"},
    {"typical_p", MSGL_FIELD_SETTING,
     .help = "locally typical sampling: 1 is off. From here on llama.cpp's samplers "
             "([sampling.md](sampling.md)). The order of all: `logit_bias`, penalties, DRY, "
             "temperature, `top_n_sigma`, `top_k`, `typical_p`, `top_p`, `min_p`, XTC"},
    SETTING("top_n_sigma"),
    SETTING("xtc_probability"),
    SETTING("xtc_threshold"),
    SETTING("dynatemp_range"),
    SETTING("dynatemp_exponent"),
    SETTING("dry_multiplier"),
    SETTING("dry_base"),
    SETTING("dry_allowed_length"),
    SETTING("dry_penalty_last_n"),
    {"dry_sequence_breakers", MSGL_FIELD_STRINGS, .max_items = MSGL_MAX_BREAKERS,
     .max_bytes = MSGL_MAX_BREAKER_BYTES, .preset = "`[\"\\n\", \":\", \"\\\"\", \"*\"]`",
     .help = "DRY sees no repeat across a token whose text has one of these in it; of one that "
             "only several tokens spell, across the last of them"},
    SETTING("mirostat"),
    SETTING("mirostat_tau"),
    SETTING("mirostat_eta"),
    {"logit_bias", MSGL_FIELD_ANY, .max_items = MSGL_MAX_LOGIT_BIAS,
     .help = "an object from token ids to numbers from -100 to 100, or an array of pairs of them: "
             "what is added to these tokens' logits"},
    {"allowed_token_ids", MSGL_FIELD_IDS, .max_items = MSGL_MAX_ALLOWED_TOKENS,
     .help = "the only tokens that an answer may have"},
    {"bad_words", MSGL_FIELD_STRINGS, .max_items = MSGL_MAX_BAD_WORDS,
     .max_bytes = MSGL_MAX_BAD_WORD_BYTES, .help = "what an answer must not have"},
    {"seed", MSGL_FIELD_INT, .preset = "random", .help = "of the choices that are drawn"},
    {"n", MSGL_FIELD_INT, .min = 1, .max = MSGL_API_MAX_N, .preset = "1",
     .help = "answers to each prompt"},
    {"stop", MSGL_FIELD_ANY, .max_items = MSGL_MAX_STOPS, .max_bytes = MSGL_MAX_STOP_BYTES,
     .help = "a string or an array of strings, any of which ends an answer; 16384 bytes in all"},
    {"stop_token_ids", MSGL_FIELD_IDS, .max_items = MSGL_MAX_STOP_IDS,
     .help = "tokens that end an answer, beside the model's own"},
    {"include_stop_str_in_output", MSGL_FIELD_BOOL, .preset = "false",
     .help = "the stop string that ended an answer is part of it"},
    SETTING("ignore_eos"),
    SETTING("min_tokens"),
    {"speculative", MSGL_FIELD_ANY, .preset = "true",
     .help = "a boolean, or the number of drafts in a step at most ([speculation.md]"
             "(speculation.md)); answers do not depend on it"},
    {"skip_special_tokens", MSGL_FIELD_BOOL, .preset = "true",
     .help = "special tokens are not shown as text"},
    {"response_format", MSGL_FIELD_OBJECT, .preset = "{\"type\": \"text\"}",
     .help = "`json_object`, or `json_schema` with a schema: the form that the answer has "
             "([structured.md](structured.md)); one of the fields from here on"},
    {"structured_outputs", MSGL_FIELD_OBJECT,
     .help = "vLLM's: one of `json`, `regex`, `choice`, `grammar`, `json_object`"},
    {"guided_json", MSGL_FIELD_ANY, .help = "vLLM's: a JSON schema, or one as a string"},
    {"guided_regex", MSGL_FIELD_STRING, .help = "vLLM's: a regular expression"},
    {"guided_choice", MSGL_FIELD_STRINGS, .help = "vLLM's: the answer is one of these"},
    {"guided_grammar", MSGL_FIELD_STRING, .help = "vLLM's: a grammar in GBNF or Lark's form"},
    {"json_schema", MSGL_FIELD_ANY, .help = "SGLang's and llama-server's: as `guided_json`"},
    {"regex", MSGL_FIELD_STRING, .help = "SGLang's: as `guided_regex`"},
    {"ebnf", MSGL_FIELD_STRING, .help = "SGLang's: as `guided_grammar`"},
    {"grammar", MSGL_FIELD_STRING, .help = "llama-server's: as `guided_grammar`"},
    {0},
};
#undef SETTING
static const msgl_field_row request_rows[] = {
    MSGL_ROW_MODEL,
    MSGL_ROW_RID,
    MSGL_ROW_STREAM,
    {"stream_options", MSGL_FIELD_OBJECT,
     .help = "only with `stream`: `include_usage` (boolean): the last event has `usage`; "
             "`continuous_usage_stats` (boolean): with it, each event has it"},
    {"max_tokens", MSGL_FIELD_INT, .min = 1, .max = INT32_MAX, .unlimited = true,
     .help = "of each answer; -1: as if it were not given"},
    {"truncate_prompt_tokens", MSGL_FIELD_INT, .min = -1, .max = INT32_MAX,
     .help = "only so many last tokens of a prompt are read; -1: as many as the context has; not "
             "0"},
    MSGL_ROW_CACHE_SALT,
    MSGL_ROW_LORA_PATH,
    {0},
};
const msgl_fields msgl__sampling_fields = {.title = "Fields of sampling", .read = sampling_rows};
const msgl_fields msgl__request_fields = {
    .title = "Fields of generation", .read = request_rows, .also = &msgl__sampling_fields};

// Below this a softmax of logits / temperature is a one-hot vector in float32 anyway; dividing by
// less would overflow.
static const float min_temperature = 1e-5f;

static int parse_stop(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    const json_t *v = msgl__field(o, "stop");
    if (v == NULL) return 0;
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    size_t all = 0;
    if (n > MSGL_MAX_STOPS) {
        return msgl__api_fail(e, 400, "stop", "invalid_value",
                              "'stop' has %zu strings; allowed: at most %d.", n, MSGL_MAX_STOPS);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s)) {
            return msgl__api_fail(e, 400, "stop", "invalid_type",
                                  "'stop' has %s; it must be a string or a list of strings.",
                                  msgl__json_type_name(s));
        }
        if (json_string_length(s) == 0 || json_string_length(s) > MSGL_MAX_STOP_BYTES) {
            return msgl__api_fail(e, 400, "stop", "invalid_value",
                                  "'stop' has a string of %zu bytes; allowed: 1 to %d.",
                                  json_string_length(s), MSGL_MAX_STOP_BYTES);
        }
        out->stops[out->num_stops++] = json_string_value(s);
        all += json_string_length(s);
    }
    if (all > MSGL_MAX_STOPS_BYTES) {
        return msgl__api_fail(e, 400, "stop", "invalid_value",
                              "'stop' has strings of %zu bytes together; allowed: at most %d.", all,
                              MSGL_MAX_STOPS_BYTES);
    }
    return 0;
}

static int parse_stop_ids(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                          msgl_api_error *e)
{
    static const char name[] = "stop_token_ids";
    const json_t *v = msgl__field(o, name);
    if (v == NULL) return 0;
    if (!json_is_array(v)) {
        return msgl__api_fail(e, 400, name, "invalid_type", "'%s' is %s; it must be an array.",
                              name, msgl__json_type_name(v));
    }
    if (json_array_size(v) > MSGL_MAX_STOP_IDS) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' has %zu ids; allowed: at most %d.", name, json_array_size(v),
                              MSGL_MAX_STOP_IDS);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *id = json_array_get(v, i);
        const int64_t n = json_is_integer(id) ? json_integer_value(id) : -1;
        if (n < 0 || n >= cfg->vocab_size) {
            return msgl__api_fail(e, 400, name, "invalid_value",
                                  "'%s[%zu]' must be a token id, 0 to %d.", name, i,
                                  cfg->vocab_size - 1);
        }
        out->sampling.stop_ids[out->sampling.num_stop_ids++] = (int32_t)n;
    }
    return 0;
}

// A field called `name` into the setting's place. 1: it was there.
static int parse_setting(const json_t *o, const char *name, const msgl_setting *s,
                         msgl_sampling_params *out, msgl_api_error *e)
{
    int64_t whole = 0;
    double v = 0;
    bool yes = false;
    int rc;
    if (s->type == MSGL_SETTING_FLAG) {
        rc = msgl__field_bool(o, name, &yes, e);
        v = yes;
    } else if (s->type == MSGL_SETTING_INT) {
        rc = msgl__field_int(o, name, (int64_t)s->min, (int64_t)s->max, &whole, e);
        v = (double)whole;
    } else {
        rc = msgl__field_real(o, name, s->min, s->max, &v, e);
    }
    if (rc > 0) msgl__setting_put(s, v, out);
    return rc;
}

static int parse_settings(const json_t *o, msgl_sampling_params *out, msgl_api_error *e)
{
    int rc = 0;
    for (const msgl_field_row *row = sampling_rows; rc >= 0 && row->name != NULL; row++) {
        const msgl_setting *s = msgl__field_setting(row);
        if (s != NULL) rc = parse_setting(o, row->name, s, out, e);
    }
    if (out->temperature < min_temperature) out->temperature = 0;
    if (rc >= 0 && out->mirostat == 1) {
        return msgl__api_fail(e, 400, "mirostat", "invalid_value",
                              "'mirostat' is 1, which this server does not have; allowed: 0, or 2 "
                              "(Mirostat 2.0).");
    }
    return rc < 0 ? rc : 0;
}

static int parse_numbers(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    msgl_sampling_params *p = &out->sampling;
    int64_t num;
    int rc = msgl__field_int_of(o, &msgl__sampling_fields, "seed", &num, e);
    if (rc > 0) p->seed = (uint64_t)num;
    if (rc == 0 && getrandom(&p->seed, sizeof p->seed, 0) != sizeof p->seed) p->seed = 0;
    if (rc >= 0) rc = msgl__field_bool(o, "skip_special_tokens", &out->skip_special, e);
    if (rc >= 0 && (rc = msgl__field_int_of(o, &msgl__sampling_fields, "n", &num, e)) > 0) {
        out->n = (int)num;
    }
    return rc < 0 ? rc : 0;
}

// Strings, which the worker makes tokens of. *out: the array, NULL where it is not there.
static int parse_strings(const json_t *o, const char *name, int max_items, int max_bytes,
                         const json_t **out, msgl_api_error *e)
{
    const json_t *v = msgl__field(o, name);
    *out = NULL;
    if (v == NULL) return 0;
    if (!json_is_array(v)) {
        return msgl__api_fail(e, 400, name, "invalid_type",
                              "'%s' is %s; it must be an array of strings.", name,
                              msgl__json_type_name(v));
    }
    if (json_array_size(v) > (size_t)max_items) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' has %zu strings; allowed: at most %d.", name,
                              json_array_size(v), max_items);
    }
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *s = json_array_get(v, i);
        const size_t len = json_is_string(s) ? json_string_length(s) : 0;
        if (len > 0 && len <= (size_t)max_bytes) continue;
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s[%zu]' must be a string of 1 to %d bytes.", name, i, max_bytes);
    }
    *out = v;
    return 0;
}

static int parse_lists(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    const int rc = parse_strings(o, "bad_words", MSGL_MAX_BAD_WORDS, MSGL_MAX_BAD_WORD_BYTES,
                                 &out->bad_words, e);
    if (json_array_size(out->bad_words) == 0) out->bad_words = NULL;
    return rc != 0 ? rc
                   : parse_strings(o, "dry_sequence_breakers", MSGL_MAX_BREAKERS,
                                   MSGL_MAX_BREAKER_BYTES, &out->dry_breakers, e);
}

// The ids into new memory, *ids.
static int parse_allowed(const json_t *o, const msgl_api_config *cfg, int32_t **ids, int32_t *count,
                         msgl_api_error *e)
{
    static const char name[] = "allowed_token_ids";
    const json_t *v = msgl__field(o, name);
    const size_t n = json_array_size(v);
    if (v == NULL) return 0;
    if (n >= 1 && n <= MSGL_MAX_ALLOWED_TOKENS) {
        return msgl__field_ids(v, name, cfg->vocab_size, ids, count, e);
    }
    return msgl__api_fail(e, 400, name, "invalid_value",
                          "'%s' must be an array of 1 to %d token ids.", name,
                          MSGL_MAX_ALLOWED_TOKENS);
}

// A grammar says alone what an answer is made of.
static int check_alone(const msgl_gen_request *out, const msgl_req_extra_parts *p,
                       msgl_api_error *e)
{
    const char *beside = out->sampling.min_tokens > 0 ? "min_tokens"
                         : p->num_allowed > 0         ? "allowed_token_ids"
                         : out->bad_words != NULL     ? "bad_words"
                                                      : NULL;
    if (p->grammar_kind == MSGL_GRAMMAR_NONE || beside == NULL) return 0;
    return msgl__api_fail(e, 400, beside, "invalid_value",
                          "'%s' is given, and a form that the answer has to have; allowed: one of "
                          "them.",
                          beside);
}

// The parts of a request that vary in size.
static int parse_extra(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                       msgl_api_error *e)
{
    msgl_err err;
    msgl_req_extra *bias = NULL;
    msgl_constraint_text c = {0};
    int32_t *allowed = NULL, num_allowed = 0;
    int rc = msgl__logit_bias_parse(json_object_get(o, "logit_bias"), cfg->vocab_size, &bias, &err);
    if (rc == MSGL_ENOMEM) return msgl__api_oom(e);
    if (rc != 0) return msgl__api_fail(e, 400, "logit_bias", "invalid_value", "%s.", err.text);
    rc = parse_allowed(o, cfg, &allowed, &num_allowed, e);
    if (rc == 0) rc = parse_lists(o, out, e);
    if (rc == 0) {
        rc = msgl__constraint_parse(o, cfg, out->room.claim, &out->left_out, &c, e);
    }
    msgl_req_extra_parts parts = msgl__req_extra_parts_of(bias);
    parts.allowed = allowed;
    parts.num_allowed = num_allowed;
    parts.grammar_kind = c.kind;
    parts.grammar = c.text;
    if (rc == 0) rc = check_alone(out, &parts, e);
    if (rc == 0 && msgl__req_extra_create_with(&parts, cfg->vocab_size, &out->extra, &err) != 0) {
        rc = msgl__api_oom(e); // all else has been looked at
    }
    msgl__req_extra_unref(bias);
    msgl__constraint_text_free(&c);
    msgl__free(allowed);
    return rc;
}

// A boolean, or a number of drafts.
static int parse_speculative(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    static const char name[] = "speculative";
    const json_t *v = msgl__field(o, name);
    if (v == NULL) return 0;
    const int64_t n = json_is_boolean(v) ? -json_is_true(v) : json_integer_value(v);
    if ((json_is_boolean(v) || json_is_integer(v)) && n >= -1 && n <= MSGL_MAX_DRAFTS) {
        out->sampling.speculative = (int32_t)n;
        return 0;
    }
    return msgl__api_fail(e, 400, name, "invalid_value",
                          "'%s' must be a boolean, or a whole number from 0 to %d.", name,
                          MSGL_MAX_DRAFTS);
}

static int parse_streaming(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    int rc = msgl__field_bool(o, "stream", &out->stream, e);
    const json_t *v = msgl__field(o, "stream_options");
    if (rc < 0 || v == NULL) return rc < 0 ? rc : 0;
    if (!json_is_object(v)) {
        return msgl__api_fail(e, 400, "stream_options", "invalid_type",
                              "'stream_options' is %s; it must be an object.",
                              msgl__json_type_name(v));
    }
    if (!out->stream) {
        return msgl__api_fail(e, 400, "stream_options", "invalid_value",
                              "'stream_options' is only allowed with 'stream': true.");
    }
    rc = msgl__field_bool(v, "include_usage", &out->include_usage, e);
    if (rc >= 0) rc = msgl__field_bool(v, "continuous_usage_stats", &out->continuous_usage, e);
    return rc < 0 ? rc : 0;
}

// The last tokens of a prompt, -1: as many as the context has. Not with an echo, which is text.
static int parse_truncate(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    static const char name[] = "truncate_prompt_tokens";
    int64_t num = 0;
    const int rc = msgl__field_int_of(o, &msgl__request_fields, name, &num, e);
    if (rc <= 0) return rc;
    if (num == 0 || out->echo) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              num == 0 ? "'%s' is 0; allowed: -1, or 1 and more."
                                       : "'%s' and 'echo' are both given; allowed: one of them.",
                              name);
    }
    out->last_tokens = num < 0 ? INT32_MAX : (int32_t)num;
    return 0;
}

int msgl__parse_rid(const json_t *o, char rid[MSGL_API_MAX_RID + 1], msgl_api_error *e)
{
    const char *name = NULL;
    const int rc = msgl__field_name(o, "rid", MSGL_API_MAX_RID, &name, e);
    if (rc > 0) (void)snprintf(rid, MSGL_API_MAX_RID + 1, "%s", name);
    return rc;
}

// Not in streams, as in vLLM: an answer has them as a whole.
int msgl__parse_prompt_logprobs(const json_t *o, const msgl_fields *f, msgl_gen_request *out,
                                msgl_api_error *e)
{
    static const char name[] = "prompt_logprobs";
    int64_t num;
    const int rc = msgl__field_int_of(o, f, name, &num, e);
    if (rc <= 0) return rc;
    if (out->stream) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' and 'stream' are both given; allowed: one of them.", name);
    }
    msgl_sampling_params *p = &out->sampling;
    out->with_prompt_logprobs = true;
    out->prompt_logprobs = (int32_t)num;
    if (p->prompt_logprobs < out->prompt_logprobs) p->prompt_logprobs = out->prompt_logprobs;
    return 0;
}

int msgl__parse_sampling(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                         msgl_api_error *e)
{
    int64_t num;
    int rc = parse_settings(o, &out->sampling, e);
    if (rc == 0) rc = parse_numbers(o, out, e);
    if (rc == 0) rc = parse_extra(o, cfg, out, e);
    if (rc == 0) rc = parse_stop(o, out, e);
    if (rc == 0) rc = msgl__field_bool(o, "include_stop_str_in_output", &out->keep_stop, e);
    if (rc >= 0) rc = parse_stop_ids(o, cfg, out, e);
    if (rc == 0) rc = parse_speculative(o, out, e);
    if (rc == 0) rc = parse_streaming(o, out, e);
    if (rc == 0) rc = msgl__parse_rid(o, out->rid, e);
    if (rc < 0) return rc;
    // With an echo, 0 asks for nothing else.
    const json_t *most = json_object_get(o, "max_tokens");
    const bool nothing = out->echo && json_is_integer(most) && json_integer_value(most) == 0;
    if (nothing) num = 0;
    rc = nothing ? 1 : msgl__field_int_of(o, &msgl__request_fields, "max_tokens", &num, e);
    if (rc > 0) out->max_tokens = (int32_t)num;
    if (rc >= 0) rc = parse_truncate(o, out, e);
    if (out->max_tokens == 0) {
        out->no_output = true;
        out->max_tokens = 1; // the engine always makes one; it is not shown
    }
    return rc < 0 ? rc : 0;
}
