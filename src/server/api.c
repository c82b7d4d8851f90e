// SPDX-License-Identifier: Apache-2.0
#include "server/api.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "server/endpoint.h"
#include "server/fields.h"
#include "server/json.h"

enum {
    UNKNOWN_BYTES = 1024, // of a request's unknown names
    PREFILL_BYTES = 4096,
};

static const char *error_type(int status)
{
    switch (status) {
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

int msgl__api_fail(msgl_api_error *e, int status, const char *param, const char *code,
                   const char *fmt, ...)
{
    *e = (msgl_api_error){.status = status, .type = error_type(status), .code = code};
    if (param != NULL) (void)snprintf(e->param, sizeof e->param, "%s", param);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return MSGL_EINVAL;
}

int msgl__api_oom(msgl_api_error *e)
{
    return msgl__api_fail(e, 500, NULL, NULL, "Out of memory.");
}

int msgl__api_fail_memory(msgl_api_error *e, int rc)
{
    const bool never = rc == MSGL_ELIMIT;
    return msgl__api_fail(e, never ? 413 : 429, NULL, never ? "request_too_large" : "queue_full",
                          "%s", msgl__budget_refusal(rc));
}

int msgl__api_error_put(const msgl_api_error *e, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"error\":{\"message\":");
    if (rc == 0) rc = msgl__json_put_str(out, e->message, strlen(e->message));
    if (rc == 0) rc = msgl__strbuf_addf(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (rc == 0) {
        rc = e->param[0] == '\0' ? msgl__strbuf_adds(out, "null")
                                 : msgl__json_put_str(out, e->param, strlen(e->param));
    }
    if (rc == 0) {
        rc = e->code == NULL ? msgl__strbuf_adds(out, ",\"code\":null}}")
                             : msgl__strbuf_addf(out, ",\"code\":\"%s\"}}", e->code);
    }
    return rc;
}

void msgl__gen_request_free(msgl_gen_request *r)
{
    for (int i = 0; i < r->num_prompts && r->prompts != NULL; i++) msgl__free(r->prompts[i].ids);
    msgl__free(r->prompts);
    json_decref(r->chat_vars);
    json_decref(r->root);
    msgl__req_extra_unref(r->extra);
    msgl__tool_set_free(r->tools);
    msgl__strbuf_free(&r->prefill);
    msgl__strbuf_free(&r->repeated);
    msgl__free(r->text);
    msgl__strbuf_free(&r->unknown);
    *r = (msgl_gen_request){0};
}

// Copies s[0, len) and a NUL to *at, and moves *at behind it.
static const char *put_text(char **at, const char *s, size_t len)
{
    char *copy = *at;
    memcpy(copy, s, len);
    copy[len] = '\0';
    *at += len + 1;
    return copy;
}

int msgl__gen_request_settle(msgl_gen_request *r)
{
    size_t len = 0;
    const int prompts = r->echo && r->prompts != NULL ? r->num_prompts : 0;
    for (int i = 0; i < r->num_stops; i++) len += strlen(r->stops[i]) + 1;
    for (int i = 0; i < prompts; i++) len += r->prompts[i].text == NULL ? 0 : r->prompts[i].len + 1;
    char *at = msgl__malloc(len);
    if (at == NULL) return MSGL_ENOMEM;
    r->text = at;
    r->text_len = len;
    for (int i = 0; i < r->num_stops; i++) {
        r->stops[i] = put_text(&at, r->stops[i], strlen(r->stops[i]));
    }
    for (int i = 0; i < prompts; i++) {
        msgl_prompt *p = &r->prompts[i];
        if (p->text != NULL) p->text = put_text(&at, p->text, p->len);
    }
    if (prompts == 0 && r->prompts != NULL) {
        for (int i = 0; i < r->num_prompts; i++) msgl__free(r->prompts[i].ids);
        msgl__free(r->prompts);
        r->prompts = NULL;
    }
    json_decref(r->chat_vars);
    json_decref(r->root);
    r->chat_vars = r->root = NULL;
    r->bad_words = NULL;
    r->force_name = NULL;
    return 0;
}

static size_t strip_slashes(const char *s)
{
    size_t n = strlen(s);
    while (n > 1 && s[n - 1] == '/') n--;
    return n;
}

bool msgl__api_model_known(const msgl_api_config *cfg, const char *name, size_t len)
{
    for (int i = 0; i < cfg->num_more_names; i++) {
        const char *other = cfg->more_names[i];
        if (len == strlen(other) && memcmp(name, other, len) == 0) return true;
    }
    while (len > 1 && name[len - 1] == '/') len--;
    const size_t path_len = strip_slashes(cfg->model_path);
    const char *base = memrchr(cfg->model_path, '/', path_len);
    base = base == NULL || path_len == 1 ? cfg->model_path : base + 1;
    const size_t base_len = path_len - (size_t)(base - cfg->model_path);
    return (len == strlen(cfg->model_name) && memcmp(name, cfg->model_name, len) == 0) ||
           (len == path_len && memcmp(name, cfg->model_path, len) == 0) ||
           (len == base_len && memcmp(name, base, len) == 0);
}

static int check_model(const json_t *o, const msgl_api_config *cfg, msgl_api_error *e)
{
    const char *model = NULL;
    const int rc = msgl__field_str(o, "model", &model, e);
    // No name means the only model there is; Mini-SGLang's own clients send an empty one.
    if (rc <= 0 || model[0] == '\0' || msgl__api_model_known(cfg, model, strlen(model))) {
        return rc < 0 ? rc : 0;
    }
    return msgl__api_fail(e, 404, "model", "model_not_found",
                          "The model '%.100s' does not exist; this server has '%.100s'.", model,
                          cfg->model_name);
}

int msgl__json_fail(const msgl_err *err, msgl_api_error *e)
{
    switch (err->code) {
    case MSGL_ELIMIT: return msgl__api_fail(e, 413, NULL, "request_too_large", "%s", err->text);
    case MSGL_EBUSY: return msgl__api_fail_memory(e, err->code);
    case MSGL_ENOMEM: return msgl__api_oom(e);
    default: return msgl__api_fail(e, 400, NULL, "invalid_json", "%s", err->text);
    }
}

int msgl__api_parse(msgl_api_kind kind, const char *body, size_t len, const msgl_api_config *cfg,
                    msgl_claim *claim, msgl_gen_request *out, msgl_api_error *e)
{
    const msgl_endpoint *ep = msgl__endpoint(kind);
    *out = (msgl_gen_request){.kind = kind,
                              .n = 1,
                              .max_tokens = -1,
                              .sampling = cfg->defaults,
                              .skip_special = true,
                              .room = {.claim = claim, .copied = ep->prompt != MSGL_PROMPT_TEXT}};
    msgl_err err;
    out->root = msgl__json_parse_object(body, len, &out->room, &err);
    if (out->root == NULL) return msgl__json_fail(&err, e);
    msgl__strbuf_init(&out->unknown, UNKNOWN_BYTES);
    msgl__strbuf_init(&out->prefill, PREFILL_BYTES);
    int rc = check_model(out->root, cfg, e);
    if (rc == 0) rc = ep->parse(out->root, cfg, out, e);
    if (rc < 0) msgl__gen_request_free(out);
    return rc < 0 ? rc : 0;
}
