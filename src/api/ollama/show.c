// SPDX-License-Identifier: Apache-2.0
//
// POST /api/show: what Ollama's clients ask about a model before they use it.
#include <string.h>

#include "api/fields.h"
#include "api/fill_prompt.h"
#include "api/json.h"
#include "api/ollama/answer.h"
#include "api/ollama/endpoints.h"

static const msgl_field_row rows[] = {
    MSGL_ROW_MODEL,
    {"name", MSGL_FIELD_STRING, .help = "the older name of `model`"},
    {"verbose", MSGL_FIELD_BOOL, .preset = "false", .help = "changes nothing"},
    {0},
};
static const msgl_refused_field refused[] = {
    {"system", MSGL_NEUTRAL_EMPTY}, {"template", MSGL_NEUTRAL_EMPTY}, {NULL, MSGL_NEUTRAL_NULL}};
static const msgl_fields fields = {.read = rows, .refused = refused};
static const msgl_fields *const objects[] = {&fields, NULL};

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    const char *name = NULL;
    bool verbose;
    int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__field_bool(o, "verbose", &verbose, e);
    if (rc >= 0) rc = msgl__field_str(o, "name", &name, e);
    if (rc <= 0 || msgl__api_model_known(cfg, name, strlen(name))) return rc < 0 ? rc : 0;
    return msgl__api_fail(e, 404, "name", "model_not_found",
                          "The model '%.100s' does not exist; this server has '%.100s'.", name,
                          cfg->model_name);
}

static int put_capabilities(const msgl_api_config *cfg, const msgl_tokenizer *t, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, ",\"capabilities\":[");
    if (rc == 0 && cfg->pooled_size > 0) return msgl__strbuf_adds(out, "\"embedding\"]");
    if (rc == 0) rc = msgl__strbuf_adds(out, "\"completion\"");
    if (rc == 0 && cfg->tool_form != NULL) rc = msgl__strbuf_adds(out, ",\"tools\"");
    if (rc == 0 && cfg->reasoning_form != NULL) rc = msgl__strbuf_adds(out, ",\"thinking\"");
    if (rc == 0 && msgl__fill_form(t) != NULL) rc = msgl__strbuf_adds(out, ",\"insert\"");
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_model(const msgl_job *j, const msgl_tokenizer *t, msgl_strbuf *out)
{
    const msgl_api_config *cfg = &j->config;
    const msgl_sampling_params *p = &cfg->defaults;
    const char *text = cfg->template_text == NULL ? "" : cfg->template_text;
    int rc = msgl__strbuf_addf(out,
                               "{\"modelfile\":\"\",\"parameters\":\"temperature %.7g\\ntop_p "
                               "%.7g\\ntop_k %d\\nrepeat_penalty %.7g\",\"template\":",
                               (double)p->temperature, (double)p->top_p, p->top_k,
                               (double)p->repetition_penalty);
    if (rc == 0) rc = msgl__json_put_str(out, text, strlen(text));
    if (rc == 0) rc = msgl__strbuf_addc(out, ',');
    if (rc == 0) rc = msgl__ollama_put_details(cfg->model_path, out);
    // Clients look for ARCHITECTURE.context_length; the name of the architecture is the engine's.
    if (rc == 0) {
        rc = msgl__strbuf_addf(out,
                               ",\"model_info\":{\"general.architecture\":\"minisgl\","
                               "\"minisgl.context_length\":%d,\"minisgl.vocab_size\":%d",
                               j->max_seq_len, cfg->vocab_size);
    }
    if (rc == 0 && cfg->pooled_size > 0) {
        rc = msgl__strbuf_addf(out, ",\"minisgl.embedding_length\":%d", cfg->pooled_size);
    }
    if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    if (rc == 0) rc = put_capabilities(cfg, t, out);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static const msgl_example examples[] = {
    {"The model", MSGL_HTTP_POST, .body = "{}",
     .has = "parameters template details model_info capabilities"},
    {0},
};
const msgl_endpoint msgl__endpoint_ollama_show = {
    .path = "/api/show",
    .help = "The model: what it can do, its template, its defaults, and how much it reads.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .put_error = msgl__ollama_put_error,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "model",
    .put_job = put_model,
};
