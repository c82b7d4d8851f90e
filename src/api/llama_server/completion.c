// SPDX-License-Identifier: Apache-2.0
//
// POST /completion and /infill of llama-server: what goes on where a prompt ends, and what fills a
// gap. Their fields are read in a copy of the body, in which they have this server's names.
#include <stdio.h>
#include <string.h>

#include "api/fields.h"
#include "utils/json.h"
#include "api/llama_server/answer.h"
#include "api/llama_server/endpoints.h"

#define UNUSED(name) MSGL_ROW_UNUSED(name, "of how llama-server runs a model")
static const msgl_field_row common_rows[] = {
    MSGL_ROW_MODEL,
    MSGL_ROW_STREAM,
    {"n_predict", MSGL_FIELD_INT, .min = -2, .max = INT32_MAX, .preset = "what the context leaves",
     .help = "tokens of the answer; -1 and -2: no limit; 0: the prompt is only computed"},
    {"max_tokens", MSGL_FIELD_INT, .min = -2, .max = INT32_MAX,
     .help = "as `n_predict`, which wins"},
    {"n_probs", MSGL_FIELD_INT, .min = 0, .max = MSGL_MAX_LOGPROBS, .preset = "0",
     .help = "the answer has log-probabilities of its tokens, and of so many that were likelier"},
    {"return_tokens", MSGL_FIELD_BOOL, .preset = "false",
     .help = "the answer has its tokens; a stream always has"},
    {"timings_per_token", MSGL_FIELD_BOOL, .preset = "false",
     .help = "in a stream, each event has timings"},
    {"repeat_last_n", MSGL_FIELD_ANY,
     .help = "changes nothing: `repeat_penalty` is of the whole prompt and answer"},
    {"speculative.n_max", MSGL_FIELD_INT, .min = 0, .max = INT32_MAX,
     .help = "drafts in a step at most, in place of `speculative`"},
    MSGL_ROW_RID,
    MSGL_ROW_CACHE_SALT,
    UNUSED("speculative.n_min"),
    UNUSED("speculative.p_min"),
    UNUSED("speculative.type"),
    UNUSED("cache_prompt"),
    UNUSED("id_slot"),
    UNUSED("n_keep"),
    UNUSED("n_discard"),
    UNUSED("n_cache_reuse"),
    UNUSED("samplers"),
    UNUSED("min_keep"),
    UNUSED("return_progress"),
    {0},
};
#undef UNUSED
static const msgl_refused_field refused[] = {
    {"adaptive_target", MSGL_NEUTRAL_OFF},
    {"t_max_predict_ms", MSGL_NEUTRAL_OFF},
    {"n_indent", MSGL_NEUTRAL_ZERO},
    {"post_sampling_probs", MSGL_NEUTRAL_FALSE},
    {"response_fields", MSGL_NEUTRAL_EMPTY},
    {"lora", MSGL_NEUTRAL_EMPTY},
    {NULL, MSGL_NEUTRAL_NULL},
};
static const msgl_field_row prompt_rows[] = {
    {"prompt", MSGL_FIELD_ANY, .required = true, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "a string, an array of token ids, or an array of either; of several the answer is an "
             "array"},
    {0},
};
static const msgl_field_row fill_rows[] = {
    {"input_prefix", MSGL_FIELD_STRING, .preset = "\"\"", .help = "what stands before the gap"},
    {"input_suffix", MSGL_FIELD_STRING, .preset = "\"\"", .help = "what stands behind it"},
    {"input_extra", MSGL_FIELD_ARRAY, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "other files: objects with the strings `filename` and `text`"},
    {"prompt", MSGL_FIELD_STRING, .preset = "\"\"", .help = "how the answer begins"},
    {0},
};
static const msgl_fields common = {
    .read = common_rows, .refused = refused, .also = &msgl__sampling_fields};
static const msgl_fields fields = {.read = prompt_rows, .also = &common};
static const msgl_fields fill_fields = {.read = fill_rows, .also = &common};
static const msgl_fields *const objects[] = {&fields, NULL};
static const msgl_fields *const fill_objects[] = {&fill_fields, NULL};

// Removes values that mean for llama-server what leaving the field out means for this server.
static void drop_neutral(json_t *o)
{
    const json_t *seed = json_object_get(o, "seed"), *grammar = json_object_get(o, "grammar");
    if (json_is_integer(seed) && json_integer_value(seed) == -1) (void)json_object_del(o, "seed");
    if (json_is_string(grammar) && json_string_length(grammar) == 0) {
        (void)json_object_del(o, "grammar");
    }
    (void)json_object_del(o, "max_tokens"); // parse_limits reads it: -1 and 0 are allowed here
}

static int parse_limits(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    int64_t most = -1, probs = 0, drafts = -1;
    bool tokens = false;
    int rc = msgl__field_int_of(o, &common, "max_tokens", &most, e);
    if (rc >= 0) rc = msgl__field_int_of(o, &common, "n_predict", &most, e);
    if (rc >= 0) rc = msgl__field_int_of(o, &common, "n_probs", &probs, e);
    if (rc >= 0) rc = msgl__field_int_of(o, &common, "speculative.n_max", &drafts, e);
    if (rc >= 0) rc = msgl__field_bool(o, "return_tokens", &tokens, e);
    if (rc >= 0) rc = msgl__field_bool(o, "timings_per_token", &out->continuous_usage, e);
    if (rc < 0) return rc;
    out->max_tokens = most < 0 ? -1 : most == 0 ? 1 : (int32_t)most;
    out->no_output = most == 0; // the engine always makes one; it is not shown
    if (probs > 0) out->sampling.logprobs = (int32_t)probs;
    if (drafts > MSGL_MAX_DRAFTS) drafts = MSGL_MAX_DRAFTS; // no step has more of a request
    if (drafts >= 0) out->sampling.speculative = (int32_t)drafts;
    out->return_ids = tokens || out->stream;
    return 0;
}

static int parse_common(const json_t *o, const msgl_fields *f, const msgl_api_config *cfg,
                        msgl_gen_request *out, msgl_api_error *e)
{
    int rc = msgl__check_fields(o, f, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc != 0) return rc;
    json_t *copy = msgl__json_copy(o);
    if (copy == NULL) return msgl__api_oom(e);
    drop_neutral(copy);
    rc = msgl__parse_sampling(copy, cfg, out, e);
    if (rc == 0) rc = parse_limits(o, out, e);
    return msgl__request_keep(out, "\ncopy", copy, rc, e);
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    int rc = parse_common(o, &fields, cfg, out, e);
    if (rc == 0) rc = msgl__parse_prompts(json_object_get(o, "prompt"), "prompt", cfg, out, e);
    return rc == 0 ? msgl__check_choices(out, e) : rc;
}

static int check_files(const json_t *files, msgl_api_error *e)
{
    if (files == NULL) return 0;
    if (!json_is_array(files)) return msgl__field_bad(e, "input_extra", "must be an array");
    if (json_array_size(files) > MSGL_API_MAX_PROMPTS) {
        return msgl__api_fail(e, 400, "input_extra", "invalid_value",
                              "'input_extra' has %zu files; allowed: at most %d.",
                              json_array_size(files), MSGL_API_MAX_PROMPTS);
    }
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *file = json_array_get(files, i);
        if (json_is_string(json_object_get(file, "filename")) &&
            json_is_string(json_object_get(file, "text"))) {
            continue;
        }
        char param[64];
        (void)snprintf(param, sizeof param, "input_extra[%zu]", i);
        return msgl__field_bad(e, param, "must have the strings filename and text");
    }
    return 0;
}

static int parse_infill(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                        msgl_api_error *e)
{
    static const char *const names[] = {"input_prefix", "input_suffix", "prompt"};
    const json_t *files = msgl__field(o, "input_extra"), *texts[3];
    const char *text;
    int rc = parse_common(o, &fill_fields, cfg, out, e);
    for (int i = 0; i < 3 && rc >= 0; i++) {
        rc = msgl__field_str(o, names[i], &text, e);
        texts[i] = msgl__field(o, names[i]);
    }
    if (rc >= 0) rc = check_files(files, e);
    return rc < 0 ? rc : msgl__parse_fill(texts[0], texts[1], texts[2], files, out, e);
}

static const msgl_example examples[] = {
    {"A completion", MSGL_HTTP_POST, .body = "{\"prompt\": \"Count: 1, 2,\", \"n_predict\": 8}",
     .has = "content stop stop_type tokens_predicted tokens_evaluated generation_settings timings"},
    {"A stream", MSGL_HTTP_POST,
     .body = "{\"prompt\": \"Count: 1, 2,\", \"n_predict\": 8, \"stream\": true}",
     .type = "text/event-stream", .has = "content stop tokens", .end = "\"stop\":true"},
    {0},
};
const msgl_endpoint msgl__endpoint_llama_completion = {
    .path = "/completion",
    .help = "llama-server's completion ([llama-server.md](llama-server.md)): goes on where a "
            "prompt, or each of several, ends.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .put_error = msgl__llama_put_error,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "prompt",
    .id_prefix = "cmpl",
    .logprobs = &msgl__logprobs_with_ids,
    .put_begin = msgl__llama_put_begin,
    .put_choice = msgl__llama_put_choice,
    .put_end = msgl__llama_put_end,
    .put_chunk = msgl__llama_put_chunk,
    .put_stream_end = msgl__llama_put_stream_end,
    .put_stream_error = msgl__llama_put_stream_error,
};

static const msgl_example fill_examples[] = {
    {"A gap, of a model that does not fill in", MSGL_HTTP_POST,
     .body = "{\"input_prefix\": \"def add(a, b):\\n\", \"input_suffix\": \"\\n\", "
             "\"n_predict\": 8}",
     .status = 501, .has = "error"},
    {0},
};
const msgl_endpoint msgl__endpoint_llama_infill = {
    .path = "/infill",
    .help =
        "llama-server's infill ([llama-server.md](llama-server.md#infill)): what stands between "
        "a prefix and a suffix; 501 of a model that was not trained for it.",
    .examples = fill_examples,
    .method = MSGL_HTTP_POST,
    .optional = true,
    .put_error = msgl__llama_put_error,
    .parse = parse_infill,
    .objects = fill_objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "input_prefix",
    .id_prefix = "fill",
    .logprobs = &msgl__logprobs_with_ids,
    .put_begin = msgl__llama_put_begin,
    .put_choice = msgl__llama_put_choice,
    .put_end = msgl__llama_put_end,
    .put_chunk = msgl__llama_put_chunk,
    .put_stream_end = msgl__llama_put_stream_end,
    .put_stream_error = msgl__llama_put_stream_error,
};
