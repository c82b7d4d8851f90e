// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/embeddings: a vector for each input. The engine makes it of the input's last token; it
// is cut to the dimensions that are asked for and made of length 1.
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>

#include "core/attributes.h"
#include "api/openai/embeddings.h"
#include "api/openai/endpoints.h"
#include "api/fields.h"
#include "api/json.h"

static const msgl_field_row rows[] = {
    MSGL_ROW_MODEL,
    {"input", MSGL_FIELD_ANY, .required = true, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "a string, an array of token ids, or an array of either"},
    {"encoding_format", MSGL_FIELD_STRING, .preset = "\"float\"",
     .help = "`\"float\"`, or `\"base64\"`: of little-endian float32"},
    MSGL_ROW_DIMENSIONS,
    MSGL_ROW_PROMPT_NAME,
    MSGL_ROW_CACHE_SALT,
    {0},
};
static const msgl_refused_field refused[] = {{"truncate_prompt_tokens", MSGL_NEUTRAL_NULL},
                                             {NULL, MSGL_NEUTRAL_NULL}};
static const msgl_fields fields = {.read = rows, .refused = refused};
static const msgl_fields *const objects[] = {&fields, NULL};

// Fields that no other endpoint has.
typedef struct embeddings {
    bool base64;        // values as base64 instead of numbers
    int32_t dimensions; // how many values of a vector are shown; 0: all
    msgl_token_task task;
    int32_t vector_size; // of MSGL_TASK_VECTORS
} embeddings;
static const msgl_own_fields own_fields = {.size = sizeof(embeddings)};

static int parse_format(const json_t *o, msgl_gen_request *out, msgl_api_error *e)
{
    static const char name[] = "encoding_format";
    const char *format = "float";
    const int rc = msgl__field_str(o, name, &format, e);
    if (rc < 0) return rc;
    embeddings *own = out->own;
    own->base64 = strcmp(format, "base64") == 0;
    if (own->base64 || strcmp(format, "float") == 0) return 0;
    return msgl__api_fail(e, 400, name, "invalid_value",
                          "'%s' is '%.40s'; allowed: float and base64.", name, format);
}

int msgl__parse_prompt_name(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                            msgl_api_error *e)
{
    static const char field[] = "prompt_name";
    const msgl_text_prompts *all = cfg->prompts;
    const char *name = NULL;
    char names[200] = "";
    const int rc = msgl__field_str(o, field, &name, e);
    out->before = msgl__usual_prompt(cfg);
    if (rc <= 0) return rc;
    out->before = all == NULL ? NULL : msgl__text_prompt(all, name);
    if (out->before != NULL) return 0;
    for (int i = 0; all != NULL && i < all->num; i++) {
        const size_t n = strlen(names);
        (void)snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? ", " : "", all->at[i].name);
    }
    return msgl__api_fail(e, 400, field, "invalid_value", "'%s' is '%.40s'; allowed: %s.", field,
                          name, names[0] != '\0' ? names : "none, as the model has no prompts");
}

int msgl__want_tokens(msgl_token_task task, const msgl_api_config *cfg, const char *param,
                      msgl_gen_request *out, msgl_api_error *e)
{
    const bool vectors = task == MSGL_TASK_VECTORS;
    const msgl_req_extra_parts parts = {.token_task = task};
    if (vectors ? cfg->token_vector_size == 0 : !cfg->token_weights) {
        return msgl__api_fail(e, param == NULL ? 501 : 400, param,
                              param == NULL ? NULL : "unsupported_parameter",
                              "This server's model has no head for single tokens: its folder needs "
                              "%s.safetensors (what is in its .pt, a pickle, which is not read).",
                              vectors ? "colbert_linear" : "sparse_linear");
    }
    msgl_err err;
    return msgl__req_extra_create_with(&parts, INT32_MAX, &out->extra, &err) == 0
               ? 0
               : msgl__api_oom(e);
}

static int parse_of(const json_t *o, const msgl_fields *read, const msgl_api_config *cfg,
                    msgl_gen_request *out, msgl_api_error *e)
{
    int64_t num = 0;
    int rc = msgl__check_fields(o, read, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = parse_format(o, out, e);
    if (rc == 0) rc = msgl__parse_prompt_name(o, cfg, out, e);
    if (rc == 0) rc = msgl__field_int(o, "dimensions", 1, cfg->pooled_size, &num, e);
    if (rc < 0) return rc;
    ((embeddings *)out->own)->dimensions = (int32_t)num;
    msgl__request_pools(out);
    return msgl__parse_prompts(json_object_get(o, "input"), "input", cfg, out, e);
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    return parse_of(o, &fields, cfg, out, e);
}

// --- answers ---

// The floats' bytes, little-endian.
static int put_base64(const float *values, int32_t n, msgl_strbuf *out)
{
    const size_t bytes = (size_t)n * sizeof *values;
    int rc = msgl__strbuf_addc(out, '"');
    if (rc == 0) rc = msgl__strbuf_reserve(out, (bytes + 2) / 3 * 4); // and its NUL
    if (rc != 0) return rc;
    out->len += (size_t)EVP_EncodeBlock((unsigned char *)out->data + out->len,
                                        (const unsigned char *)values, (int)bytes);
    return msgl__strbuf_addc(out, '"');
}

static void normalise(float *values, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)values[i] * (double)values[i];
    const double length = sqrt(sum);
    for (int32_t i = 0; i < n && length > 0; i++) {
        values[i] = (float)((double)values[i] / length);
    }
}

static int put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    (void)r;
    return msgl__strbuf_adds(out, "{\"object\":\"list\",\"data\":[");
}

int msgl__embedding_put(msgl_sequence *s, int32_t dimensions, bool base64, msgl_strbuf *out)
{
    const int32_t n = dimensions > 0 && dimensions < s->num_values ? dimensions : s->num_values;
    normalise(s->values, n);
    return base64 ? put_base64(s->values, n, out) : msgl__json_put_floats(out, s->values, n);
}

static int put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    const embeddings *own = r->req->own;
    int rc = msgl__strbuf_addf(out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":",
                               index == 0 ? "" : ",", index);
    if (rc == 0) rc = msgl__embedding_put(s, own->dimensions, own->base64, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    const msgl_usage usage = {
        .prompt = r->prompt_tokens, .cached = cached, .completion = completion, .reasoning = -1};
    int rc = msgl__strbuf_adds(out, "],\"model\":");
    if (rc == 0) rc = msgl__json_put_str(out, r->model, strlen(r->model));
    if (rc == 0) rc = msgl__strbuf_addc(out, ',');
    if (rc == 0) rc = msgl__reply_usage(&usage, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static const msgl_example examples[] = {
    {"Two texts", MSGL_HTTP_POST,
     .body = "{\"input\": [\"a red fox\", \"a blue car\"], \"dimensions\": 64}",
     .has = "object data model usage"},
    {0},
};
const msgl_endpoint msgl__endpoint_embeddings = {
    .path = "/v1/embeddings",
    .own = &own_fields,
    .help = "Vectors of texts, by a server of a model that makes them "
            "([embeddings.md](embeddings.md)); others refuse it.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .pooled = true,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "input",
    .id_prefix = "embd",
    .put_begin = put_begin,
    .put_choice = put_choice,
    .put_end = put_end,
};

// --- vLLM's /pooling ---

static const msgl_field_row pooling_rows[] = {
    {"task", MSGL_FIELD_STRING, .preset = "\"embed\"",
     .help = "`\"embed\"`; of a model with heads for them also `\"token_embed\"`, a vector of each "
             "token but the first special one, and `\"token_classify\"`, a weight of each token "
             "but special ones at the ends"},
    {0},
};
static const msgl_fields pooling_fields = {.read = pooling_rows, .also = &fields};
static const msgl_fields *const pooling_objects[] = {&pooling_fields, NULL};

static int parse_pooling(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                         msgl_api_error *e)
{
    static const char *const tasks[] = {[MSGL_TASK_TEXT] = "embed",
                                        [MSGL_TASK_VECTORS] = "token_embed",
                                        [MSGL_TASK_WEIGHTS] = "token_classify"};
    static const char field[] = "task";
    const char *name = tasks[MSGL_TASK_TEXT];
    embeddings *own = out->own;
    size_t i = 0;
    int rc = parse_of(o, &pooling_fields, cfg, out, e);
    if (rc == 0) rc = msgl__field_str(o, field, &name, e);
    if (rc < 0) return rc;
    while (i < MSGL_COUNT(tasks) && strcmp(name, tasks[i]) != 0) i++;
    if (i == MSGL_COUNT(tasks)) {
        return msgl__api_fail(e, 400, field, "invalid_value",
                              "'%s' is '%.40s'; allowed: embed, token_embed, token_classify.",
                              field, name);
    }
    own->task = (msgl_token_task)i;
    own->vector_size = cfg->token_vector_size;
    if (own->task == MSGL_TASK_TEXT) return 0;
    if (own->dimensions > 0 || own->base64) {
        return msgl__api_fail(e, 400, own->dimensions > 0 ? "dimensions" : "encoding_format",
                              "unsupported_parameter", "'%s' is for the task embed.",
                              own->dimensions > 0 ? "dimensions" : "encoding_format");
    }
    return msgl__want_tokens(own->task, cfg, field, out, e);
}

// Whether the prompt's token at `index`, counted from its end with -1, is a special one.
static bool special_at(const msgl_sequence *s, int64_t index)
{
    const int64_t at = index < 0 ? (int64_t)s->prompt->len + index : index;
    if (at < 0 || at >= (int64_t)s->prompt->len) return false;
    return msgl__tokenizer_is_special(s->tokenizer, s->prompt->data[at]) != 0;
}

// A vector of each token, of length 1.
static int put_vectors(const msgl_sequence *s, int32_t size, msgl_strbuf *out)
{
    const int32_t num = s->num_values / size;
    int rc = msgl__strbuf_addc(out, '[');
    for (int32_t i = special_at(s, 0) ? 1 : 0, first = i; i < num && rc == 0; i++) {
        float *values = s->values + (size_t)i * (size_t)size;
        normalise(values, size);
        if (i > first) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = msgl__json_put_floats(out, values, size);
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_weights(msgl_sequence *s, msgl_strbuf *out)
{
    const int32_t first = special_at(s, 0) ? 1 : 0, end = s->num_values - special_at(s, -1);
    for (int32_t i = first; i < end; i++) s->values[i] = fmaxf(s->values[i], 0);
    return msgl__json_put_floats(out, s->values + first, end - first);
}

static int put_pooling_begin(const msgl_reply *r, msgl_strbuf *out)
{
    const int rc = msgl__reply_head(r, "list", out);
    return rc == 0 ? msgl__strbuf_adds(out, ",\"data\":[") : rc;
}

static int put_pooling(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    const embeddings *own = r->req->own;
    int rc = msgl__strbuf_addf(
        out, "%s{\"index\":%d,\"object\":\"pooling\",\"data\":", index == 0 ? "" : ",", index);
    if (rc != 0) return rc;
    switch (own->task) {
    case MSGL_TASK_TEXT: rc = msgl__embedding_put(s, own->dimensions, own->base64, out); break;
    case MSGL_TASK_VECTORS: rc = put_vectors(s, own->vector_size, out); break;
    case MSGL_TASK_WEIGHTS: rc = put_weights(s, out); break;
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static const msgl_example pooling_examples[] = {
    {"Two texts", MSGL_HTTP_POST,
     .body = "{\"input\": [\"a red fox\", \"a blue car\"], \"dimensions\": 64}",
     .has = "id object data model usage"},
    {0},
};
const msgl_endpoint msgl__endpoint_pooling = {
    .path = "/pooling",
    .own = &own_fields,
    .help =
        "The vectors of `/v1/embeddings` as vLLM's pooling has them, or values of each token, by a "
        "server of a model that makes them ([embeddings.md](embeddings.md)); others refuse it.",
    .examples = pooling_examples,
    .method = MSGL_HTTP_POST,
    .pooled = true,
    .parse = parse_pooling,
    .objects = pooling_objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "input",
    .id_prefix = "pool",
    .put_begin = put_pooling_begin,
    .put_choice = put_pooling,
    .put_end = msgl__reply_end,
};
