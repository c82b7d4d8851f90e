// SPDX-License-Identifier: Apache-2.0
//
// POST /api/embed, and /api/embeddings, its older form with one prompt and one vector.
#include <inttypes.h>
#include <string.h>

#include "api/fields.h"
#include "api/json.h"
#include "api/ollama/answer.h"
#include "api/ollama/endpoints.h"
#include "api/openai/embeddings.h"

#define UNUSED(name) MSGL_ROW_UNUSED(name, "of how Ollama runs a model")
static const msgl_field_row rows[] = {
    MSGL_ROW_MODEL,
    {"input", MSGL_FIELD_ANY, .required = true, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "a string or an array of strings"},
    {"truncate", MSGL_FIELD_BOOL, .preset = "true",
     .help = "of a text that is too long its beginning is taken; else it is refused"},
    MSGL_ROW_DIMENSIONS,
    MSGL_ROW_CACHE_SALT,
    UNUSED("options"),
    UNUSED("keep_alive"),
    {0},
};
static const msgl_field_row old_rows[] = {
    MSGL_ROW_MODEL,
    {"prompt", MSGL_FIELD_STRING, .required = true,
     .help = "the text; of one that is too long its beginning is taken"},
    MSGL_ROW_CACHE_SALT,
    UNUSED("options"),
    UNUSED("keep_alive"),
    {0},
};
#undef UNUSED
static const msgl_fields fields = {.read = rows}, old_fields = {.read = old_rows};
static const msgl_fields *const objects[] = {&fields, NULL};
static const msgl_fields *const old_objects[] = {&old_fields, NULL};

// Fields that no other endpoint has.
typedef struct embed {
    int32_t dimensions; // of the vectors; 0: all
} embed;
static const msgl_own_fields own_fields = {.size = sizeof(embed)};

static int parse_texts(const json_t *o, const char *name, bool cut, const msgl_api_config *cfg,
                       msgl_gen_request *out, msgl_api_error *e)
{
    msgl__request_pools(out);
    out->before = msgl__usual_prompt(cfg);
    out->keep_first = cut;
    out->last_tokens = cut ? INT32_MAX : 0;
    return msgl__parse_prompts(json_object_get(o, name), name, cfg, out, e);
}

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    int64_t num = 0;
    bool cut = true;
    int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__field_int(o, "dimensions", 1, cfg->pooled_size, &num, e);
    if (rc >= 0) rc = msgl__field_bool(o, "truncate", &cut, e);
    if (rc < 0) return rc;
    ((embed *)out->own)->dimensions = (int32_t)num;
    return parse_texts(o, "input", cut, cfg, out, e);
}

static int parse_old(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                     msgl_api_error *e)
{
    const char *text = NULL;
    int rc = msgl__check_fields(o, &old_fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__field_str(o, "prompt", &text, e);
    return rc < 0 ? rc : parse_texts(o, "prompt", true, cfg, out, e);
}

static int put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"model\":");
    if (rc == 0) rc = msgl__json_put_str(out, r->model, strlen(r->model));
    return rc == 0 ? msgl__strbuf_adds(out, ",\"embeddings\":[") : rc;
}

static int put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    const embed *own = r->req->own;
    const int rc = index == 0 ? 0 : msgl__strbuf_addc(out, ',');
    return rc == 0 ? msgl__embedding_put(s, own->dimensions, false, out) : rc;
}

static int put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    (void)cached, (void)completion;
    return msgl__strbuf_addf(out,
                             "],\"total_duration\":%" PRId64
                             ",\"load_duration\":0,\"prompt_eval_count\":%" PRId64 "}",
                             r->total_ns, r->prompt_tokens);
}

static int put_old_begin(const msgl_reply *r, msgl_strbuf *out)
{
    (void)r;
    return msgl__strbuf_adds(out, "{\"embedding\":");
}

static int put_old_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    (void)r, (void)cached, (void)completion;
    return msgl__strbuf_addc(out, '}');
}

static const msgl_example examples[] = {
    {"Two texts", MSGL_HTTP_POST, .body = "{\"input\": [\"a red fox\", \"a blue car\"]}",
     .has = "model embeddings total_duration prompt_eval_count"},
    {0},
};
const msgl_endpoint msgl__endpoint_ollama_embed = {
    .path = "/api/embed",
    .help = "Ollama's vectors of texts, by a server of a model that makes them "
            "([embeddings.md](embeddings.md)); others refuse it.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .pooled = true,
    .put_error = msgl__ollama_put_error,
    .parse = parse,
    .own = &own_fields,
    .objects = objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "input",
    .id_prefix = "embd",
    .put_begin = put_begin,
    .put_choice = put_choice,
    .put_end = put_end,
};

static const msgl_example old_examples[] = {
    {"A text", MSGL_HTTP_POST, .body = "{\"prompt\": \"a red fox\"}", .has = "embedding"},
    {0},
};
const msgl_endpoint msgl__endpoint_ollama_embeddings = {
    .path = "/api/embeddings",
    .help = "The older form of /api/embed: one text, one vector.",
    .examples = old_examples,
    .method = MSGL_HTTP_POST,
    .pooled = true,
    .put_error = msgl__ollama_put_error,
    .parse = parse_old,
    .own = &own_fields,
    .objects = old_objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "prompt",
    .id_prefix = "embd",
    .put_begin = put_old_begin,
    .put_choice = put_choice,
    .put_end = put_old_end,
};
