// SPDX-License-Identifier: Apache-2.0
//
// POST /classify: how likely each label of the model's own head is of a text, and the likeliest.
#include <math.h>
#include <string.h>

#include "api/fields.h"
#include "api/json.h"
#include "api/vllm/endpoints.h"

static const msgl_field_row rows[] = {
    MSGL_ROW_MODEL,
    {"input", MSGL_FIELD_ANY, .required = true, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "a string, an array of token ids, or an array of either"},
    {0},
};
static const msgl_refused_field refused[] = {{"truncate_prompt_tokens", MSGL_NEUTRAL_NULL},
                                             {"messages", MSGL_NEUTRAL_NULL},
                                             {NULL, MSGL_NEUTRAL_NULL}};
static const msgl_fields fields = {.read = rows, .refused = refused};
static const msgl_fields *const objects[] = {&fields, NULL};

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    const int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc < 0) return rc;
    msgl__request_pools(out);
    out->labels = cfg->labels;
    out->multi_label = cfg->multi_label;
    return msgl__parse_prompts(json_object_get(o, "input"), "input", cfg, out, e);
}

// Logits to probabilities: of one label, or of several that do not exclude each other, the sigmoid
// of each; else their softmax.
static void make_probabilities(float *values, int32_t n, bool several)
{
    double most = 0, sum = 0;
    if (n == 1 || several) {
        for (int32_t i = 0; i < n; i++) values[i] = (float)(1 / (1 + exp(-(double)values[i])));
        return;
    }
    for (int32_t i = 0; i < n; i++) most = i == 0 || values[i] > most ? (double)values[i] : most;
    for (int32_t i = 0; i < n; i++) sum += exp((double)values[i] - most);
    for (int32_t i = 0; i < n; i++) values[i] = (float)(exp((double)values[i] - most) / sum);
}

static int put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    const int rc = msgl__reply_head(r, "list", out);
    return rc == 0 ? msgl__strbuf_adds(out, ",\"data\":[") : rc;
}

static int put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    const msgl_gen_request *q = r->req;
    int32_t best = 0;
    make_probabilities(s->values, s->num_values, q->multi_label);
    for (int32_t i = 1; i < s->num_values; i++) {
        if (s->values[i] > s->values[best]) best = i;
    }
    const char *label = q->labels == NULL ? "" : q->labels[best];
    int rc = msgl__strbuf_addf(out, "%s{\"index\":%d,\"label\":", index == 0 ? "" : ",", index);
    if (rc == 0) rc = msgl__json_put_str(out, label, strlen(label));
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"probs\":[");
    for (int32_t i = 0; i < s->num_values && rc == 0; i++) {
        rc = msgl__strbuf_addf(out, "%s%.9g", i == 0 ? "" : ",", (double)s->values[i]);
    }
    return rc == 0 ? msgl__strbuf_addf(out, "],\"num_classes\":%d}", (int)s->num_values) : rc;
}

static int put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    return msgl__reply_end(r, cached, completion, out);
}

static const msgl_example examples[] = {
    {"Two texts", MSGL_HTTP_POST, .body = "{\"input\": [\"a red fox\", \"a blue car\"]}",
     .has = "id object model data usage"},
    {0},
};
const msgl_endpoint msgl__endpoint_classify = {
    .path = "/classify",
    .help = "Labels of texts, as vLLM has it, by a server of a model that classifies "
            "([embeddings.md](embeddings.md#models-that-classify)); others refuse it.",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .pooled = true,
    .classifies = true,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "input",
    .id_prefix = "classify",
    .put_begin = put_begin,
    .put_choice = put_choice,
    .put_end = put_end,
};
