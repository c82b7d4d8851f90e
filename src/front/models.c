// SPDX-License-Identifier: Apache-2.0
//
// GET /v1/models, /v1/models/NAME and, as SGLang has it, /get_model_info: the one model there is,
// by each of its served names. GET /version, as from vLLM.
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "front/endpoints.h"
#include "front/front_impl.h"
#include "api/json.h"

// A model as OpenAI's, Mistral's (`type`) and Anthropic's (`type`, `display_name`, `created_at`)
// clients read it. It is as old as the server.
static int put_model(const msgl_front *f, const char *name, msgl_strbuf *out)
{
    const char *path = f->shown_path;
    char at[32];
    struct tm tm;
    gmtime_r(&f->started_at, &tm);
    (void)strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", &tm);
    int rc = msgl__strbuf_adds(out, "{\"id\":");
    if (rc == 0) rc = msgl__json_put_str(out, name, strlen(name));
    if (rc == 0) {
        rc = msgl__strbuf_addf(out,
                               ",\"object\":\"model\",\"type\":\"model\",\"created\":%" PRId64
                               ",\"created_at\":\"%s\",\"display_name\":",
                               (int64_t)f->started_at, at);
    }
    if (rc == 0) rc = msgl__json_put_str(out, name, strlen(name));
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"owned_by\":\"minisgl\",\"root\":");
    if (rc == 0) rc = msgl__json_put_str(out, path, strlen(path));
    const int32_t len = msgl__front_engine(f)->max_seq_len;
    if (rc == 0 && len > 0) rc = msgl__strbuf_addf(out, ",\"max_model_len\":%d", len);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_models(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)rest, (void)status;
    int rc = msgl__strbuf_adds(out, "{\"object\":\"list\",\"has_more\":false,\"data\":[");
    if (rc == 0) rc = put_model(f, f->cfg.model_name, out);
    for (int i = 0; i < f->cfg.num_more_names && rc == 0; i++) {
        rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = put_model(f, f->cfg.more_names[i], out);
    }
    return rc == 0 ? msgl__strbuf_adds(out, "]}") : rc;
}

static int put_named(const msgl_front *f, const char *name, int *status, msgl_strbuf *out)
{
    for (int i = 0; i < f->cfg.num_more_names; i++) {
        if (strcmp(name, f->cfg.more_names[i]) == 0) return put_model(f, name, out);
    }
    if (msgl__api_model_known(&f->api, name, strlen(name))) {
        return put_model(f, f->cfg.model_name, out);
    }
    msgl_api_error e;
    (void)msgl__api_fail(&e, 404, "model", "model_not_found",
                         "The model '%.100s' does not exist; this server has '%.100s'.", name,
                         f->cfg.model_name);
    *status = e.status;
    return msgl__api_error_put(&e, out);
}

static int put_info(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)rest, (void)status;
    const char *name = f->cfg.model_name, *path = f->shown_path;
    int rc = msgl__strbuf_adds(out, "{\"model_path\":");
    if (rc == 0) rc = msgl__json_put_str(out, path, strlen(path));
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"tokenizer_path\":");
    if (rc == 0) rc = msgl__json_put_str(out, path, strlen(path));
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"served_model_name\":");
    if (rc == 0) rc = msgl__json_put_str(out, name, strlen(name));
    const bool answers = f->api.pooled_size == 0;
    if (rc != 0) return rc;
    const char *version = msgl__admin_version(f);
    rc = msgl__strbuf_adds(out, ",\"weight_version\":");
    if (rc == 0) rc = msgl__json_put_str(out, version, strlen(version));
    if (rc != 0) return rc;
    return msgl__strbuf_addf(out, ",\"is_generation\":%s}", answers ? "true" : "false");
}

// As vLLM has it, for lm-eval's tokenizer_backend=remote: special tokens, and the template that it
// renders itself.
static int put_tokenizer_info(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    static const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    const msgl_chat_templates *t = f->cfg.templates;
    const json_t *special = t == NULL ? NULL : msgl__chat_templates_special(t);
    const char *text = t == NULL ? NULL : msgl__chat_templates_default(t);
    (void)rest, (void)status;
    int rc = msgl__strbuf_addf(out, "{\"tokenizer_class\":\"minisgl\",\"vocab_size\":%d",
                               msgl__tokenizer_vocab_size(f->cfg.tokenizer));
    for (size_t i = 0; i < sizeof names / sizeof names[0] && rc == 0; i++) {
        const json_t *v = json_object_get(special, names[i]);
        if (!json_is_string(v)) continue;
        rc = msgl__strbuf_addf(out, ",\"%s\":", names[i]);
        if (rc == 0) rc = msgl__json_put_str(out, json_string_value(v), json_string_length(v));
    }
    if (rc == 0 && text != NULL) rc = msgl__strbuf_adds(out, ",\"chat_template\":");
    if (rc == 0 && text != NULL) rc = msgl__json_put_str(out, text, strlen(text));
    const int32_t len = msgl__front_engine(f)->max_seq_len;
    if (rc == 0 && len > 0) rc = msgl__strbuf_addf(out, ",\"model_max_length\":%d", len);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_version(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)f, (void)rest, (void)status;
    return msgl__strbuf_adds(out, "{\"version\":\"" MSGL_VERSION "\"}");
}

static const msgl_example version_examples[] = {
    {"The version", MSGL_HTTP_GET, .has = "version"},
    {0},
};
const msgl_endpoint msgl__endpoint_version = {.path = "/version",
                                              .help = "The server's version.",
                                              .examples = version_examples,
                                              .method = MSGL_HTTP_GET,
                                              .put_now = put_version};
static const msgl_example tokenizer_examples[] = {
    {"The special tokens and the template", MSGL_HTTP_GET, .has = "tokenizer_class eos_token"},
    {0},
};
const msgl_endpoint msgl__endpoint_tokenizer_info = {
    .path = "/tokenizer_info",
    .help = "Special tokens and the chat template, as vLLM has it: what lm-eval's "
            "`tokenizer_backend=remote` asks for.",
    .examples = tokenizer_examples,
    .method = MSGL_HTTP_GET,
    .put_now = put_tokenizer_info};
static const msgl_example info_examples[] = {
    {"The model", MSGL_HTTP_GET,
     .has = "model_path tokenizer_path served_model_name weight_version is_generation"},
    {0},
};
const msgl_endpoint msgl__endpoint_get_model_info = {.path = "/get_model_info",
                                                     .help = "The model, as SGLang has it.",
                                                     .examples = info_examples,
                                                     .method = MSGL_HTTP_GET,
                                                     .put_now = put_info};
const msgl_endpoint msgl__endpoint_model_info = {.path = "/model_info",
                                                 .help = "The same by SGLang's newer name.",
                                                 .examples = info_examples,
                                                 .method = MSGL_HTTP_GET,
                                                 .put_now = put_info};
static const msgl_example models_examples[] = {
    {"The list", MSGL_HTTP_GET, .has = "object data"},
    {0},
};
const msgl_endpoint msgl__endpoint_models = {.path = "/v1/models",
                                             .help = "The model, by each of its served names.",
                                             .examples = models_examples,
                                             .method = MSGL_HTTP_GET,
                                             .put_now = put_models};
static const msgl_example model_examples[] = {
    {"One model", MSGL_HTTP_GET, .rest = "demo", .has = "id object created owned_by max_model_len"},
    {0},
};
const msgl_endpoint msgl__endpoint_model = {.path = "/v1/models/",
                                            .help =
                                                "The model by one of its names; 404 for another.",
                                            .examples = model_examples,
                                            .prefix = true,
                                            .method = MSGL_HTTP_GET,
                                            .put_now = put_named};
