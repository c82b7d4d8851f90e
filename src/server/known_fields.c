// SPDX-License-Identifier: Apache-2.0
#include "server/known_fields.h"

#include <string.h>

#include "server/fields.h"

enum {
    CHAT = MSGL_IN_CHAT,
    COMPLETION = MSGL_IN_COMPLETION,
    OPENAI = CHAT | COMPLETION,
    TOP = OPENAI | MSGL_IN_GENERATE,
    GENERATE = MSGL_IN_GENERATE | MSGL_IN_SGLANG,
    PARAMS = MSGL_IN_PARAMS,
    ALL = TOP | MSGL_IN_SGLANG | PARAMS,
    NOTED = 64, // bytes of an unknown name that are kept
    NAME_MAX_LEN = 40,
    MAX_UNKNOWN = 64, // names looked at in one request
};

// Value of a field that means "as if it were not there".
typedef enum neutral {
    ANY,       // the field is read
    ZERO,      // the number 0
    ONE,       // the number 1
    FALSE,     // false
    EMPTY,     // {} or [] or ""
    OFF,       // EMPTY, false, 0 or -1
    TEXT_TYPE, // {"type": "text"}
    NEVER,     // only null
    NO_AUDIO,  // an array that is exactly ["text"]
} neutral;

typedef struct field {
    const char *name;
    int places;
    neutral takes; // any other value is refused: it would change the answer
} field;

// What is read or refused, and where.
static const field ours[] = {
    {"model", TOP | GENERATE, ANY},
    {"messages", CHAT, ANY},
    {"prompt", COMPLETION | GENERATE, ANY},
    {"text", GENERATE, ANY},
    {"input_ids", GENERATE, ANY},
    {"sampling_params", GENERATE, ANY},
    {"stream", TOP | GENERATE, ANY},
    {"stream_options", TOP, ANY},
    {"max_tokens", TOP, ANY},
    {"max_completion_tokens", CHAT, ANY},
    {"max_new_tokens", PARAMS, ANY},
    {"temperature", TOP | PARAMS, ANY},
    {"top_p", TOP | PARAMS, ANY},
    {"top_k", TOP | PARAMS, ANY},
    {"min_p", TOP | PARAMS, ANY},
    {"frequency_penalty", TOP | PARAMS, ANY},
    {"presence_penalty", TOP | PARAMS, ANY},
    {"repetition_penalty", TOP | PARAMS, ANY},
    {"repeat_penalty", TOP | PARAMS, ANY},
    {"logit_bias", TOP | PARAMS, ANY},
    {"seed", TOP | PARAMS, ANY},
    {"sampling_seed", PARAMS, ANY},
    {"n", TOP | PARAMS, ANY},
    {"best_of", COMPLETION, ANY},
    {"echo", COMPLETION, ANY},
    {"stop", TOP | PARAMS, ANY},
    {"stop_token_ids", TOP | PARAMS, ANY},
    {"ignore_eos", TOP | PARAMS, ANY},
    {"skip_special_tokens", TOP | PARAMS, ANY},
    {"logprobs", OPENAI, ANY},
    {"top_logprobs", CHAT, ANY},
    {"tools", CHAT, ANY},
    {"tool_choice", CHAT, ANY},
    {"chat_template_kwargs", CHAT, ANY},
    {"add_generation_prompt", CHAT, ANY},
    {"reasoning_effort", CHAT, ANY},
    {"min_tokens", ALL, ZERO},
    {"typical_p", ALL, ONE},
    {"suffix", ALL, EMPTY},
    {"use_beam_search", ALL, FALSE},
    {"include_stop_str_in_output", ALL, FALSE},
    {"continue_final_message", ALL, FALSE},
    {"response_format", ALL, TEXT_TYPE},
    {"modalities", ALL, NO_AUDIO},
    {"audio", ALL, NEVER},
    {"functions", ALL, EMPTY},
    {"function_call", ALL, NEVER},
    {"web_search_options", ALL, NEVER},
    {"chat_template", ALL, NEVER},
    {"prompt_embeds", ALL, NEVER},
    {"bad_words", ALL, EMPTY},
    {"allowed_token_ids", ALL, NEVER},
    {"prompt_logprobs", ALL, NEVER},
    {"truncate_prompt_tokens", ALL, NEVER},
    {"structured_outputs", ALL, EMPTY},
    {"guided_json", ALL, NEVER},
    {"guided_regex", ALL, NEVER},
    {"guided_choice", ALL, NEVER},
    {"guided_grammar", ALL, NEVER},
    {"json_schema", ALL, NEVER},
    {"regex", ALL, NEVER},
    {"ebnf", ALL, NEVER},
    {"lora_path", ALL, NEVER},
    {"logits_processors", ALL, EMPTY},
    {"return_logprob", GENERATE, OFF},
    {"top_logprobs_num", GENERATE, OFF},
    {"token_ids_logprob", GENERATE, OFF},
    {"return_hidden_states", GENERATE, OFF},
    {"image_data", GENERATE, OFF},
    {"audio_data", GENERATE, OFF},
    {"video_data", GENERATE, OFF},
    {"input_embeds", GENERATE, OFF},
    {"custom_logit_processor", GENERATE, OFF},
    {"session_params", GENERATE, OFF},
    {"min_new_tokens", PARAMS, OFF},
    {"structural_tag", PARAMS, OFF},
    {"stop_regex", PARAMS, OFF},
    {"no_stop_trim", PARAMS, OFF},
    {"custom_params", PARAMS, OFF},
};

// Other servers' fields that do not change the answer: read over without a word.
static const char *const harmless[] = {
    "id_slot",          "log_metrics", "logprob_start_len",       "metadata", "prediction",
    "prompt_cache_key", "request_id",  "return_text_in_logprobs", "rid",      "safety_identifier",
    "service_tier",     "store",       "sse_ping_interval",       "user",     "verbosity",
};

// Other servers' fields that are ignored here although they may change the answer. Named in the log
// (or refused), and never taken for a near miss of one of ours.
static const char *const foreign[] = {
    // llama-server
    "adaptive_decay",
    "adaptive_target",
    "cache_prompt",
    "chat_format",
    "dry_allowed_length",
    "dry_base",
    "dry_multiplier",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "dynatemp_range",
    "generation_prompt",
    "grammar",
    "grammar_lazy",
    "grammar_triggers",
    "input_extra",
    "input_prefix",
    "input_suffix",
    "lora",
    "min_keep",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
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
    "reasoning_budget",
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
    "top_n_sigma",
    "typ_p",
    "xtc_probability",
    "xtc_threshold",
    // vLLM
    "add_special_tokens",
    "cache_salt",
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
    "return_token_ids",
    "return_tokens_as_token_ids",
    "spaces_between_special_tokens",
    "thinking_token_budget",
    "vllm_xargs",
    // SGLang
    "background",
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
    "separate_reasoning",
    "stream_interval",
    "stream_reasoning",
    // Ollama, OpenAI's newer fields, routers and libraries in front of all of them
    "enable_thinking",
    "extra_body",
    "extra_headers",
    "format",
    "include",
    "input",
    "instructions",
    "keep_alive",
    "max_output_tokens",
    "models",
    "num_ctx",
    "num_predict",
    "options",
    "parallel_tool_calls",
    "plugins",
    "preset",
    "provider",
    "raw",
    "reasoning",
    "route",
    "system",
    "template",
    "think",
    "thinking",
    "timeout",
    "top_a",
    "transforms",
    "truncation",
    "usage",
};

static bool in_list(const char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i], name) == 0) return true;
    }
    return false;
}

static const field *find(const char *name)
{
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        if (strcmp(ours[i].name, name) == 0) return &ours[i];
    }
    return NULL;
}

static bool is_neutral(const json_t *v, neutral kind)
{
    switch (kind) {
    case ANY: return true;
    case ZERO: return json_is_number(v) && json_number_value(v) == 0;
    case ONE: return json_is_number(v) && json_number_value(v) == 1;
    case FALSE: return json_is_false(v);
    case EMPTY:
        return (json_is_object(v) && json_object_size(v) == 0) ||
               (json_is_array(v) && json_array_size(v) == 0) ||
               (json_is_string(v) && json_string_length(v) == 0);
    case OFF:
        return is_neutral(v, EMPTY) || is_neutral(v, FALSE) || is_neutral(v, ZERO) ||
               (json_is_number(v) && json_number_value(v) == -1);
    case TEXT_TYPE: {
        const char *type = json_string_value(json_object_get(v, "type"));
        return type != NULL && strcmp(type, "text") == 0;
    }
    case NO_AUDIO: {
        const char *first = json_string_value(json_array_get(v, 0));
        return json_array_size(v) == 1 && first != NULL && strcmp(first, "text") == 0;
    }
    case NEVER: break;
    }
    return false;
}

// Beside SGLang's sampling_params such a field does nothing: most likely a mistake.
static bool stands_in_params(const field *f)
{
    if (strcmp(f->name, "max_tokens") == 0) return true;
    return f->takes == ANY && (f->places & (PARAMS | MSGL_IN_SGLANG)) == PARAMS;
}

static int check_values(const json_t *o, msgl_field_place place, msgl_api_error *e)
{
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        const field *f = &ours[i];
        const json_t *v = msgl__field(o, f->name);
        if (v == NULL) continue;
        if (place == MSGL_IN_SGLANG && stands_in_params(f)) {
            return msgl__api_fail(
                e, 400, f->name, "invalid_value", "'%s' must stand in 'sampling_params' here%s.",
                f->name, strcmp(f->name, "max_tokens") == 0 ? ", as 'max_new_tokens'" : "");
        }
        if ((f->places & (int)place) != 0 && !is_neutral(v, f->takes)) {
            return msgl__api_fail(e, 400, f->name, "unsupported_parameter",
                                  "'%s' is not supported by this server.", f->name);
        }
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

// Insertions, deletions, replacements and swaps of neighbours that make one of the other (optimal
// string alignment).
static int distance(const char *a, int na, const char *b, int nb)
{
    int row[3][NAME_MAX_LEN + 1];
    for (int j = 0; j <= nb; j++) row[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *now = row[i % 3];
        const int *last = row[(i + 2) % 3], *before = row[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= nb; j++) {
            int d = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < d) d = last[j] + 1;
            if (now[j - 1] + 1 < d) d = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                before[j - 2] + 1 < d) {
                d = before[j - 2] + 1;
            }
            now[j] = d;
        }
    }
    return row[na % 3][nb];
}

// The field of this place that `name` misses by a letter or two, or NULL. Beside sampling_params
// those that stand in it count, too: the next error says where they belong.
static const char *near_miss(const char *name, msgl_field_place place)
{
    char a[NAME_MAX_LEN], b[NAME_MAX_LEN];
    const int na = plain(name, a);
    const char *nearest = NULL;
    int best = 6;
    for (size_t i = 0; i < sizeof ours / sizeof ours[0] && na > 0; i++) {
        const int nb = plain(ours[i].name, b);
        const bool here = (ours[i].places & (int)place) != 0 ||
                          (place == MSGL_IN_SGLANG && stands_in_params(&ours[i]));
        if (!here || nb < 4 || na > nb + 2 || nb > na + 2) continue;
        const int d = distance(a, na, b, nb);
        const int far = 2 * d + (a[0] != b[0]); // people get the first letter right
        if (far < best && d <= (nb < 8 ? 1 : 2)) {
            best = far;
            nearest = ours[i].name;
        }
    }
    return nearest;
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

static int check_names(const json_t *o, msgl_field_place place, bool refuse, msgl_strbuf *unknown,
                       msgl_api_error *e)
{
    const char *name;
    json_t *value;
    int left = MAX_UNKNOWN;
    json_object_foreach((json_t *)o, name, value)
    {
        const field *f = find(name);
        if ((f != NULL && (f->places & (int)place) != 0) || json_is_null(value)) continue;
        if (in_list(harmless, sizeof harmless / sizeof harmless[0], name)) continue;
        const bool known = f != NULL || in_list(foreign, sizeof foreign / sizeof foreign[0], name);
        const char *meant = known ? NULL : near_miss(name, place);
        if (meant != NULL) {
            return msgl__api_fail(e, 400, name, "unknown_parameter",
                                  "'%.64s' is not a field of this request; did you mean '%s'?",
                                  name, meant);
        }
        if (refuse) {
            return msgl__api_fail(e, 400, name, "unknown_parameter",
                                  "'%.64s' is not a field of this request%s.", name,
                                  known ? " on this server" : "");
        }
        note(name, unknown);
        if (--left == 0) break;
    }
    return 0;
}

int msgl__check_fields(const json_t *o, msgl_field_place place, bool refuse, msgl_strbuf *unknown,
                       msgl_api_error *e)
{
    const int rc = check_values(o, place, e);
    return rc != 0 ? rc : check_names(o, place, refuse, unknown, e);
}
