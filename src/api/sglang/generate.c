// SPDX-License-Identifier: Apache-2.0
//
// POST /generate in two forms. Mini-SGLang's has everything at the top, is greedy and streams plain
// text. SGLang's has an object "sampling_params" (or "input_ids"), the model's own sampling
// defaults, and answers with "text" and "meta_info".
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "api/sglang/endpoints.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/row_values.h"

static const msgl_field_row both_rows[] = {
    {"text", MSGL_FIELD_ANY,
     .help = "the prompt: a string or an array of token ids; with `sampling_params` also an array "
             "of either"},
    {"prompt", MSGL_FIELD_ANY, .help = "Mini-SGLang's name of `text`; one of the two is required"},
    {"input_ids", MSGL_FIELD_ANY,
     .help = "the prompt as an array of token ids, or an array of such; makes it SGLang's form"},
    {"input_embeds", MSGL_FIELD_ARRAY,
     .help = "in place of them the prompt as rows of numbers, one a token, which enter the first "
             "layer as they are; or an array of such prompts; makes it SGLang's form. Nothing of "
             "it is in the prefix cache"},
    {"sampling_params", MSGL_FIELD_OBJECT,
     .help = "what is asked of the answers; makes it SGLang's form"},
    {0},
};
static const msgl_refused_field plain_refused[] = {
    {"return_logprob", MSGL_NEUTRAL_OFF},
    {"top_logprobs_num", MSGL_NEUTRAL_OFF},
    {"token_ids_logprob", MSGL_NEUTRAL_OFF},
    {"return_hidden_states", MSGL_NEUTRAL_OFF},
    {NULL, MSGL_NEUTRAL_NULL},
};
static const msgl_refused_field both_refused[] = {
    {"image_data", MSGL_NEUTRAL_OFF},     {"audio_data", MSGL_NEUTRAL_OFF},
    {"video_data", MSGL_NEUTRAL_OFF},     {"custom_logit_processor", MSGL_NEUTRAL_OFF},
    {"session_params", MSGL_NEUTRAL_OFF}, {NULL, MSGL_NEUTRAL_NULL},
};
static const msgl_field_row sglang_rows[] = {
    MSGL_ROW_MODEL,
    MSGL_ROW_RID,
    MSGL_ROW_STREAM,
    MSGL_ROW_CACHE_SALT,
    MSGL_ROW_LORA_PATH,
    {"return_logprob", MSGL_FIELD_BOOL, .preset = "false",
     .help = "`meta_info` has log-probabilities of the answer's tokens, and of the prompt's from "
             "`logprob_start_len` on"},
    {"logprob_start_len", MSGL_FIELD_INT, .min = -1, .max = INT32_MAX, .preset = "-1",
     .help = "the prompt's token that they begin at; -1: none of the prompt's"},
    {"top_logprobs_num", MSGL_FIELD_INT, .min = 0, .max = MSGL_MAX_LOGPROBS, .preset = "0",
     .help = "so many of the likeliest tokens beside each"},
    {"token_ids_logprob", MSGL_FIELD_ANY,
     .help =
         "token ids, whose log-probabilities stand beside each: `output_token_ids_logprobs` and "
         "`input_token_ids_logprobs`; or an array of such arrays, one for each prompt"},
    {"return_text_in_logprobs", MSGL_FIELD_BOOL, .preset = "false",
     .help = "tokens have their texts there, in place of `null`"},
    {"return_hidden_states", MSGL_FIELD_BOOL, .preset = "false",
     .help =
         "`meta_info.hidden_states`: an array with the prompt's, one a token, then that of each "
         "token of the answer but the last, behind the final norm; refused without "
         "`--enable-return-hidden-states`"},
    {0},
};
static const msgl_field_row params_rows[] = {
    {"max_new_tokens", MSGL_FIELD_INT, .min = 1, .max = INT32_MAX, .preset = "128",
     .help = "of each answer"},
    {"min_new_tokens", MSGL_FIELD_INT, .min = 0, .max = INT32_MAX, .preset = "0",
     .help = "as `min_tokens`"},
    {"sampling_seed", MSGL_FIELD_INT, .preset = "random", .help = "as `seed`"},
    {"no_stop_trim", MSGL_FIELD_BOOL, .preset = "false", .help = "as `include_stop_str_in_output`"},
    MSGL_ROW_UNUSED("spaces_between_special_tokens", "tokens bring their own spaces"),
    {0},
};
static const msgl_refused_field params_refused[] = {
    {"structural_tag", MSGL_NEUTRAL_OFF},
    {"stop_regex", MSGL_NEUTRAL_OFF},
    {"custom_params", MSGL_NEUTRAL_OFF},
    {NULL, MSGL_NEUTRAL_NULL},
};
static const msgl_field_row old_rows[] = {{.name = "max_tokens", .type = MSGL_FIELD_INT},
                                          {0}}; // max_new_tokens

static const msgl_fields plain_own = {
    .read = both_rows, .refused = both_refused, .also = &msgl__request_fields};
static const msgl_field_row no_rows[] = {{0}};
static const msgl_fields plain = {
    .title = "Mini-SGLang's form: greedy and a stream of plain text; `max_tokens` left out is 16",
    .read = no_rows,
    .refused = plain_refused,
    .also = &plain_own};
static const msgl_fields params = {.member = "sampling_params",
                                   .read = params_rows,
                                   .refused = params_refused,
                                   .also = &msgl__sampling_fields};
// Meant for the params, most likely, where it stands beside them.
static const msgl_fields misplaced = {.read = old_rows, .also = &params};
static const msgl_fields both = {.read = both_rows, .refused = both_refused};
static const msgl_fields sglang = {
    .title = "SGLang's form: the model's sampling defaults, and an object",
    .read = sglang_rows,
    .also = &both,
    .inside = &misplaced};
static const msgl_fields *const objects[] = {&plain, &sglang, &params, NULL};

// Fields of this alone.
typedef struct generate {
    bool sglang;   // in SGLang's form
    bool logprobs; // its answer has some ...
    bool tops;     // ... of other tokens ...
    bool listed;   // ... and of those that it lists
} generate;
static const msgl_own_fields own_fields = {.size = sizeof(generate)};

static bool in_sglang(const msgl_gen_request *r)
{
    return ((const generate *)r->own)->sglang;
}

static bool is_sglang(const json_t *o)
{
    return msgl__field(o, "sampling_params") != NULL || msgl__field(o, "input_ids") != NULL ||
           msgl__field(o, "input_embeds") != NULL;
}

static int one_prompt(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                      msgl_api_error *e)
{
    const char *name =
        msgl__field(o, "prompt") == NULL && msgl__field(o, "text") != NULL ? "text" : "prompt";
    const int rc = msgl__parse_prompts(json_object_get(o, name), name, cfg, out, e);
    if (rc == 0 && out->num_prompts != 1) {
        return msgl__api_fail(e, 400, name, "invalid_value", "'%s' must be one prompt.", name);
    }
    return rc;
}

static int parse_plain(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                       msgl_api_error *e)
{
    out->sampling = msgl__sampling_params_default(); // Mini-SGLang's /generate is greedy
    out->stream = true;                              // and always streams
    int rc = msgl__check_fields(o, &plain, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__parse_sampling(o, cfg, out, e);
    if (rc < 0) return rc;
    if (out->max_tokens < 0) out->max_tokens = MSGL_USUAL_MAX_TOKENS;
    if (out->n != 1) {
        return msgl__api_fail(e, 400, "n", "unsupported_parameter", "'n' must be 1 here.");
    }
    return one_prompt(o, cfg, out, e);
}

// A field of the params beside them does nothing: most likely a mistake.
static int check_places(const json_t *o, msgl_api_error *e)
{
    for (const msgl_fields *f = &misplaced; f != NULL; f = f->also) {
        for (const msgl_field_row *row = f->read; row->name != NULL; row++) {
            if (msgl__field(o, row->name) == NULL) continue;
            return msgl__api_fail(e, 400, row->name, "invalid_value",
                                  "'%s' must stand in 'sampling_params' here%s.", row->name,
                                  f == &misplaced ? ", as 'max_new_tokens'" : "");
        }
    }
    return 0;
}

static int parse_params(json_t *p, const msgl_api_config *cfg, msgl_gen_request *out,
                        msgl_api_error *e)
{
    const msgl_unknown_fields strict =
        cfg->unknown_fields == MSGL_UNKNOWN_IGNORE ? MSGL_UNKNOWN_IGNORE : MSGL_UNKNOWN_REFUSE;
    int rc = msgl__check_fields(p, &params, cfg, strict, NULL, e);
    // Read under their own names first, which errors have.
    int64_t num = 0;
    if (rc == 0) rc = msgl__field_int_of(p, &params, "min_new_tokens", &num, e);
    if (rc >= 0) rc = msgl__field_int_of(p, &params, "sampling_seed", &num, e);
    if (rc < 0) return rc;
    json_t *seed = msgl__field(p, "sampling_seed"), *least = msgl__field(p, "min_new_tokens");
    if ((seed != NULL && json_object_set(p, "seed", seed) != 0) ||
        (least != NULL && json_object_set(p, "min_tokens", least) != 0)) {
        return msgl__api_oom(e);
    }
    rc = msgl__parse_sampling(p, cfg, out, e);
    if (rc == 0) rc = msgl__field_bool(p, "no_stop_trim", &out->keep_stop, e);
    num = 128; // SGLang's default
    if (rc >= 0) rc = msgl__field_int_of(p, &params, "max_new_tokens", &num, e);
    out->max_tokens = (int32_t)num;
    return rc < 0 ? rc : 0;
}

// What of log-probabilities is asked for.
static int parse_logprobs(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    generate *own = out->own;
    bool text = false;
    int64_t from = -1, top = 0;
    int rc = msgl__field_bool(o, "return_logprob", &own->logprobs, e);
    if (rc >= 0) rc = msgl__field_int_of(o, &sglang, "logprob_start_len", &from, e);
    if (rc >= 0) rc = msgl__field_int_of(o, &sglang, "top_logprobs_num", &top, e);
    if (rc >= 0) rc = msgl__field_bool(o, "return_text_in_logprobs", &text, e);
    if (rc < 0 || !own->logprobs) return rc < 0 ? rc : 0;
    own->tops = top > 0;
    out->sampling.logprobs = (int32_t)top;
    out->every_logprob = true;
    out->form = out->prompt_form = text ? &msgl__logprobs_sglang_text : &msgl__logprobs_sglang;
    if (from < 0) return 0;
    out->with_prompt_logprobs = true;
    out->sampling.prompt_logprobs = out->prompt_logprobs = (int32_t)top;
    out->prompt_from = (int32_t)from;
    return 0;
}

// The prompts, by whichever of their names.
static int parse_sglang_prompts(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                                msgl_api_error *e)
{
    static const char *const names[] = {"text", "input_ids", "prompt", "input_embeds"};
    const char *name = NULL;
    for (size_t i = 0; i < MSGL_COUNT(names); i++) {
        if (msgl__field(o, names[i]) == NULL) continue;
        if (name != NULL) {
            return msgl__api_fail(e, 400, names[i], "invalid_value",
                                  "'%s' and '%s' are both given; one of them is the prompt.", name,
                                  names[i]);
        }
        name = names[i];
    }
    if (name == NULL) name = "text";
    const json_t *prompts = json_object_get(o, name);
    return strcmp(name, "input_embeds") == 0 ? msgl__embeds_parse(prompts, cfg, out, e)
                                             : msgl__parse_prompts(prompts, name, cfg, out, e);
}

// SGLang's clients give some fields once for all prompts or, as an array, once for each. Where such
// an array has the same value for all of several prompts, that becomes the field.
static int take_common(json_t *o, const char *name, int num_prompts, msgl_api_error *e)
{
    const json_t *list = msgl__field(o, name);
    if (!json_is_array(list)) return 0;
    const size_t n = json_array_size(list);
    json_t *first = json_array_get(list, 0);
    bool common = n == (size_t)num_prompts;
    for (size_t i = 1; i < n && common; i++) {
        common = json_equal(json_array_get(list, i), first) != 0;
    }
    if (!common) {
        return msgl__api_fail(
            e, 400, name, "invalid_value",
            "'%s' is an array of %zu; allowed: one value, or the same one for each "
            "of the %d prompts.",
            name, n, num_prompts);
    }
    return json_object_set(o, name, first) == 0 ? 0 : msgl__api_oom(e);
}

static int take_commons(json_t *o, int num_prompts, msgl_api_error *e)
{
    static const char *const names[] = {"sampling_params",      "return_logprob",
                                        "logprob_start_len",    "top_logprobs_num",
                                        "return_hidden_states", "lora_path"};
    int rc = 0;
    for (size_t i = 0; i < MSGL_COUNT(names) && rc == 0; i++) {
        rc = take_common(o, names[i], num_prompts, e);
    }
    return rc;
}

static int parse_sglang(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                        msgl_api_error *e)
{
    ((generate *)out->own)->sglang = true;
    int rc = check_places(o, e);
    if (rc == 0) rc = msgl__check_fields(o, &sglang, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = parse_sglang_prompts(o, cfg, out, e);
    if (rc == 0) rc = take_commons(out->root, out->num_prompts, e);
    if (rc < 0) return rc;
    json_t *p = msgl__field(o, "sampling_params"), *none = NULL;
    if (p == NULL) p = none = json_object();
    if (!json_is_object(p)) {
        return msgl__api_fail(e, 400, "sampling_params", "invalid_type",
                              "'sampling_params' is %s; it must be an object.",
                              p == NULL ? "missing" : msgl__json_type_name(p));
    }
    rc = parse_params(p, cfg, out, e);
    if (rc < 0 && e->param[0] != '\0') {
        char name[sizeof e->param];
        (void)snprintf(name, sizeof name, "sampling_params.%.40s", e->param);
        memcpy(e->param, name, sizeof name);
    }
    json_decref(none);
    if (rc == 0) rc = msgl__field_bool(o, "stream", &out->stream, e);
    if (rc >= 0) rc = msgl__parse_rid(o, out->rid, e);
    if (rc >= 0) rc = parse_logprobs(o, out, e);
    const bool logprobs = ((const generate *)out->own)->logprobs;
    if (rc >= 0) rc = msgl__row_values_parse(o, logprobs, cfg, out, e);
    ((generate *)out->own)->listed = out->listed != NULL;
    out->return_ids = true;
    return rc < 0 ? rc : msgl__check_choices(out, e);
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    return is_sglang(o) ? parse_sglang(o, cfg, out, e) : parse_plain(o, cfg, out, e);
}

// --- answers ---

// ,"NAME":[...] of one of the lists.
static int put_list(const char *name, const msgl_logprobs *l, int part, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(out, ",\"%s\":[", name);
    if (rc == 0) rc = msgl__logprobs_put_part(l, part, out);
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

// The same of lists that are not kept as msgl_logprobs.
static int put_texts(const char *name, const msgl_strbuf *entries, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(out, ",\"%s\":[", name);
    if (rc == 0) rc = msgl__strbuf_add(out, msgl__strbuf_str(entries), entries->len);
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_logprobs(const msgl_reply *r, const msgl_sequence *s, msgl_strbuf *out)
{
    const generate *own = r->req->own;
    if (!own->logprobs) return 0;
    int rc = put_list("input_token_logprobs", &s->prompt_logprobs, 0, out);
    if (rc == 0) rc = put_list("output_token_logprobs", &s->logprobs, 0, out);
    if (rc == 0 && own->tops) rc = put_list("input_top_logprobs", &s->prompt_logprobs, 1, out);
    if (rc == 0 && own->tops) rc = put_list("output_top_logprobs", &s->logprobs, 1, out);
    if (rc != 0 || !own->listed) return rc;
    rc = put_texts("input_token_ids_logprobs", &s->rows.listed_prompt, out);
    return rc == 0 ? put_texts("output_token_ids_logprobs", &s->rows.listed, out) : rc;
}

static int put_hidden(const msgl_sequence *s, msgl_strbuf *out)
{
    if (!s->req->hidden) return 0;
    const int rc = msgl__strbuf_adds(out, ",\"hidden_states\":");
    return rc == 0 ? msgl__row_texts_put_hidden(&s->rows, out) : rc;
}

// Why it ended, as an object; a token that ended it is named.
static int put_finish(const msgl_sequence *s, msgl_strbuf *out)
{
    if (s->finish == NULL) return msgl__strbuf_adds(out, "null");
    if (strcmp(s->finish, "length") == 0) {
        return msgl__strbuf_addf(out, "{\"type\":\"length\",\"length\":%d}", s->completion_tokens);
    }
    if (strcmp(s->finish, "abort") == 0) {
        return msgl__strbuf_adds(out, "{\"type\":\"abort\",\"message\":\"Aborted\"}");
    }
    if (s->answer.stopped || s->ids.len == 0) {
        return msgl__strbuf_addf(out, "{\"type\":\"%s\"}", s->finish);
    }
    return msgl__strbuf_addf(out, "{\"type\":\"%s\",\"matched\":%d}", s->finish,
                             (int)s->ids.data[s->ids.len - 1]);
}

// SGLang's object of one choice: all of its text so far, in a stream, too.
static int put_sglang(const msgl_reply *r, int index, const msgl_sequence *s, msgl_strbuf *out)
{
    const char *id = r->req->rid[0] == '\0' ? r->id : r->req->rid, *version = r->weight_version;
    int rc = msgl__strbuf_adds(out, "{\"text\":");
    if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&s->text), s->text.len);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"meta_info\":{\"id\":");
    if (rc == 0) rc = msgl__json_put_str(out, id, strlen(id));
    if (rc == 0) {
        rc = msgl__strbuf_addf(out,
                               ",\"prompt_tokens\":%zu,\"completion_tokens\":%d,"
                               "\"cached_tokens\":%d,\"finish_reason\":",
                               s->prompt->len, s->completion_tokens, s->cached_tokens);
    }
    if (rc == 0) rc = put_finish(s, out);
    if (rc == 0) {
        rc = msgl__strbuf_addf(
            out, ",\"e2e_latency\":%.6f,\"weight_version\":", (double)r->total_ns / 1e9);
    }
    if (rc == 0) rc = msgl__json_put_str(out, version, strlen(version));
    if (rc == 0) rc = put_logprobs(r, s, out);
    if (rc == 0) rc = put_hidden(s, out);
    if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    if (rc == 0) rc = msgl__reply_put_ids("output_ids", &s->ids, out);
    return rc == 0 ? msgl__strbuf_addf(out, ",\"index\":%d}", index) : rc;
}

static int put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    if (!in_sglang(r->req)) return msgl__strbuf_addc(out, '{');
    return r->num_choices > 1 ? msgl__strbuf_addc(out, '[') : 0;
}

static int put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    int rc = 0;
    if (in_sglang(r->req)) {
        if (index > 0) rc = msgl__strbuf_addc(out, ',');
        return rc == 0 ? put_sglang(r, index, s, out) : rc;
    }
    rc = msgl__strbuf_adds(out, "\"text\":");
    if (rc == 0) rc = msgl__json_put_str(out, msgl__strbuf_str(&s->text), s->text.len);
    return rc == 0 ? msgl__reply_finish(s->finish, out) : rc;
}

static int put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    if (in_sglang(r->req)) return r->num_choices > 1 ? msgl__strbuf_addc(out, ']') : 0;
    const msgl_usage usage = {.prompt = r->prompt_tokens,
                              .cached = cached,
                              .completion = completion,
                              .reasoning = -1,
                              .drafted = r->drafted,
                              .accepted = r->accepted};
    int rc = msgl__strbuf_addc(out, ',');
    if (rc == 0) rc = msgl__reply_usage(&usage, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_chunk(const msgl_reply *r, int index, msgl_sequence *s, bool silent,
                     msgl_strbuf *out)
{
    int rc = 0;
    if (in_sglang(r->req)) {
        if (s->first_shown && !silent && s->finish == NULL) return 0;
        rc = msgl__strbuf_adds(out, "data: ");
        if (rc == 0) rc = put_sglang(r, index, s, out);
        return rc == 0 ? msgl__strbuf_adds(out, "\n\n") : rc;
    }
    if (s->text.len > 0) rc = msgl__sse_put(out, msgl__strbuf_str(&s->text), s->text.len);
    msgl__strbuf_clear(&s->text);
    return rc;
}

static int put_stream_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    (void)r, (void)cached, (void)completion;
    return msgl__reply_done(out);
}

// Plain text is the data of Mini-SGLang's stream, so its errors have an event name of their own.
static int put_stream_error(const msgl_reply *r, const msgl_api_error *e, msgl_strbuf *out)
{
    const int rc = in_sglang(r->req) ? 0 : msgl__strbuf_adds(out, "event: error\n");
    return rc == 0 ? msgl__reply_stream_error(r, e, out) : rc;
}

static const msgl_example examples[] = {
    {"Mini-SGLang's form: a stream of texts", MSGL_HTTP_POST,
     .body = "{\"prompt\": \"Count: 1, 2,\"}", .type = "text/event-stream", .end = "data: [DONE]"},
    {"SGLang's form", MSGL_HTTP_POST,
     .body = "{\"text\": \"Count: 1, 2,\", \"sampling_params\": {\"max_new_tokens\": 8}}",
     .has = "text meta_info"},
    {0},
};

const msgl_endpoint msgl__endpoint_generate = {
    .path = "/generate",
    .own = &own_fields,
    .help = "The completions of Mini-SGLang and of SGLang, told apart by `sampling_params` and "
            "`input_ids`.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "prompt",
    .id_prefix = "cmpl",
    .put_begin = put_begin,
    .put_choice = put_choice,
    .put_end = put_end,
    .put_chunk = put_chunk,
    .put_stream_end = put_stream_end,
    .put_stream_error = put_stream_error,
};
