// SPDX-License-Identifier: Apache-2.0
//
// What Ollama's clients ask of the server: which models there are, which are loaded (the one that
// there is), and its version. What would add or remove models is refused, and says what to do
// instead.
#include <string.h>

#include <openssl/evp.h>

#include "api/json.h"
#include "api/ollama/answer.h"
#include "front/endpoints.h"
#include "front/front_impl.h"

// Of Ollama's API as it is served here, by which clients tell what they may ask for: from 0.12.11
// on answers have logprobs, from 0.9 on thoughts apart.
#define OLLAMA_VERSION "0.12.11"

// 64 hexadecimal digits of a name, as Ollama names what a model consists of.
static int put_digest(const char *name, msgl_strbuf *out)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_Digest(name, strlen(name), sum, &n, EVP_sha256(), NULL) != 1) return MSGL_ENOMEM;
    int rc = msgl__strbuf_adds(out, ",\"digest\":\"");
    for (unsigned i = 0; i < n && rc == 0; i++) rc = msgl__strbuf_addf(out, "%02x", sum[i]);
    return rc == 0 ? msgl__strbuf_addc(out, '"') : rc;
}

static int put_model(const msgl_front *f, const char *name, bool loaded, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"name\":");
    if (rc == 0) rc = msgl__ollama_put_name(name, out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"model\":");
    if (rc == 0) rc = msgl__ollama_put_name(name, out);
    if (rc == 0) rc = put_digest(name, out);
    if (rc == 0) rc = msgl__strbuf_addc(out, ',');
    if (rc == 0) rc = msgl__ollama_put_details(f->cfg.model_path, out);
    if (rc == 0 && loaded) { // and stays so
        rc = msgl__strbuf_addf(out,
                               ",\"expires_at\":\"9999-12-31T23:59:59Z\",\"context_length\":%d}",
                               msgl__front_engine(f)->max_seq_len);
    } else if (rc == 0) {
        rc = msgl__strbuf_adds(out, ",\"modified_at\":");
        if (rc == 0) rc = msgl__ollama_put_time(f->started, out);
        if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    }
    return rc;
}

static int put_models(const msgl_front *f, bool loaded, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"models\":[");
    if (rc == 0) rc = put_model(f, f->cfg.model_name, loaded, out);
    for (int i = 0; i < f->cfg.num_more_names && rc == 0; i++) {
        rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = put_model(f, f->cfg.more_names[i], loaded, out);
    }
    return rc == 0 ? msgl__strbuf_adds(out, "]}") : rc;
}

static int put_tags(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)rest, (void)status;
    return put_models(f, false, out);
}

static int put_ps(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)rest, (void)status;
    if (msgl__front_num_serving(f) == 0) return msgl__strbuf_adds(out, "{\"models\":[]}");
    return put_models(f, true, out);
}

static int put_version(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)
{
    (void)f, (void)rest, (void)status;
    return msgl__strbuf_adds(out, "{\"version\":\"" OLLAMA_VERSION "\"}");
}

static int put_refusal(const char *path, const char *instead, int *status, msgl_strbuf *out)
{
    msgl_api_error e;
    *status = 501;
    (void)msgl__api_fail(&e, 501, NULL, NULL,
                         "'%s' is not served: this server has the one model that it was started "
                         "with. %s",
                         path, instead);
    return msgl__ollama_put_error(&e, out);
}

static const char start_with[] =
    "To have another one, start `minisgl serve ORG/NAME`, which fetches it.";

#define REFUSED(name, instead_)                                                                    \
    static int put_##name(const msgl_front *f, const char *rest, int *status, msgl_strbuf *out)    \
    {                                                                                              \
        (void)f, (void)rest;                                                                       \
        return put_refusal("/api/" #name, instead_, status, out);                                  \
    }                                                                                              \
    static const msgl_example name##_examples[] = {                                                \
        {.help = "The refusal",                                                                    \
         .method = MSGL_METHOD_##name,                                                             \
         .body = "{}",                                                                             \
         .status = 501,                                                                            \
         .has = "error"},                                                                          \
        {0},                                                                                       \
    };                                                                                             \
    const msgl_endpoint msgl__endpoint_ollama_##name = {                                           \
        .path = "/api/" #name,                                                                     \
        .help = "Not served (501): the server has the one model that it was started with.",        \
        .examples = name##_examples,                                                               \
        .optional = true,                                                                          \
        .method = MSGL_METHOD_##name,                                                              \
        .put_error = msgl__ollama_put_error,                                                       \
        .put_now = put_##name}
#define MSGL_METHOD_pull MSGL_HTTP_POST
#define MSGL_METHOD_push MSGL_HTTP_POST
#define MSGL_METHOD_create MSGL_HTTP_POST
#define MSGL_METHOD_copy MSGL_HTTP_POST
#define MSGL_METHOD_delete MSGL_HTTP_DELETE
REFUSED(pull, start_with);
REFUSED(push, "Models are published with their hub's own tools.");
REFUSED(create, start_with);
REFUSED(copy, "Further names of it are options of `minisgl serve`: --served-model-name A B.");
REFUSED(delete, "Fetched models are files of the cache; they are deleted there.");

static const msgl_example tags_examples[] = {
    {"The list", MSGL_HTTP_GET, .has = "models"},
    {0},
};
const msgl_endpoint msgl__endpoint_ollama_tags = {
    .path = "/api/tags",
    .help = "Ollama's list of models: the one there is, by each of its names.",
    .examples = tags_examples,
    .method = MSGL_HTTP_GET,
    .put_error = msgl__ollama_put_error,
    .put_now = put_tags};
static const msgl_example ps_examples[] = {
    {"The list", MSGL_HTTP_GET, .has = "models"},
    {0},
};
const msgl_endpoint msgl__endpoint_ollama_ps = {
    .path = "/api/ps",
    .help = "Ollama's list of loaded models: the same, or none while no engine is ready.",
    .examples = ps_examples,
    .method = MSGL_HTTP_GET,
    .put_error = msgl__ollama_put_error,
    .put_now = put_ps};
static const msgl_example version_examples[] = {
    {"The version", MSGL_HTTP_GET, .has = "version"},
    {0},
};
const msgl_endpoint msgl__endpoint_ollama_version = {
    .path = "/api/version",
    .help = "The version of Ollama whose API is served; /version has this server's own.",
    .examples = version_examples,
    .method = MSGL_HTTP_GET,
    .put_error = msgl__ollama_put_error,
    .put_now = put_version};
