// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/embeddings: a vector for each input. The engine makes it of the input's last token; it
// is cut to the dimensions that are asked for and made of length 1.
#include <math.h>
#include <string.h>

#include <openssl/evp.h>

#include "core/mem.h"
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

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    int64_t num = 0;
    int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = parse_format(o, out, e);
    if (rc == 0) rc = msgl__field_int(o, "dimensions", 1, cfg->pooled_size, &num, e);
    if (rc < 0) return rc;
    ((embeddings *)out->own)->dimensions = (int32_t)num;
    msgl__request_pools(out);
    return msgl__parse_prompts(json_object_get(o, "input"), "input", cfg, out, e);
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
    if (rc == 0) rc = msgl__embedding_put(s, own->dimensions, own->base64, out);
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
        "The vectors of `/v1/embeddings` as vLLM's pooling has them, by a server of a model that "
        "makes them ([embeddings.md](embeddings.md)); others refuse it.",
    .examples = pooling_examples,
    .method = MSGL_HTTP_POST,
    .pooled = true,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "input",
    .id_prefix = "pool",
    .put_begin = put_pooling_begin,
    .put_choice = put_pooling,
    .put_end = msgl__reply_end,
};
