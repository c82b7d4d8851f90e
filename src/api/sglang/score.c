// SPDX-License-Identifier: Apache-2.0
#include "api/sglang/score.h"

#include <math.h>
#include <string.h>

#include "api/fields.h"
#include "core/mem.h"

enum { MAX_IDS = 4 << 20 }; // of all prompts, where query and items are ids

static const msgl_field_row rows[] = {
    MSGL_ROW_MODEL,
    {"query", MSGL_FIELD_ANY, .required = true, .help = "a string, or an array of token ids"},
    {"items", MSGL_FIELD_ANY, .required = true, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "what is put behind the query: a string or an array of them; where the query is ids, "
             "an array of arrays of ids"},
    {"label_token_ids", MSGL_FIELD_ARRAY, .required = true, .max_items = MSGL_MAX_LISTED,
     .help = "ids of the tokens whose probabilities behind query and item are the scores"},
    {"apply_softmax", MSGL_FIELD_BOOL, .preset = "false",
     .help = "the scores of an item are the softmax of these tokens alone"},
    {"item_first", MSGL_FIELD_BOOL, .preset = "false", .help = "items stand before the query"},
    MSGL_ROW_CACHE_SALT,
    MSGL_ROW_LORA_PATH,
    {0},
};
const msgl_fields msgl__token_score_fields = {.title = "SGLang's form, of a model that answers",
                                              .read = rows};

// What is asked for of each prompt: one token, with the labels' log-probabilities beside its own.
static int want_labels(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                       msgl_api_error *e)
{
    static const char field[] = "label_token_ids";
    const json_t *list = json_object_get(o, field);
    int32_t *ids = NULL, num = 0;
    msgl_err err;
    if (json_array_size(list) == 0 || json_array_size(list) > MSGL_MAX_LISTED) {
        return msgl__api_fail(e, 400, field, "invalid_value", "'%s' has %zu ids; allowed: 1 to %d.",
                              field, json_array_size(list), MSGL_MAX_LISTED);
    }
    int rc = msgl__field_ids(list, field, cfg->vocab_size, &ids, &num, e);
    if (rc != 0) return rc;
    const msgl_req_extra_parts parts = {.listed = ids, .num_listed = num};
    rc = msgl__req_extra_create_with(&parts, cfg->vocab_size, &out->extra, &err);
    msgl__free(ids);
    if (rc == MSGL_ENOMEM) return msgl__api_oom(e);
    if (rc != 0) {
        return msgl__api_fail(e, 400, field, "invalid_value", "'%s': %s.", field, err.text);
    }
    msgl__request_pools(out);
    out->sampling.logprobs = 0;
    return 0;
}

// Query and item, both ids, as one prompt.
static int join_ids(msgl_prompt *p, const msgl_prompt *query, bool item_first, size_t *total,
                    msgl_api_error *e)
{
    const size_t q = (size_t)query->num_ids, n = (size_t)p->num_ids;
    *total += q + n;
    if (*total > MAX_IDS) {
        return msgl__api_fail(e, 413, "items", "request_too_large",
                              "Query and items make more than %d token ids.", MAX_IDS);
    }
    int32_t *ids = msgl__reallocarray(NULL, q + n, sizeof *ids);
    if (ids == NULL) return msgl__api_oom(e);
    memcpy(ids + (item_first ? n : 0), query->ids, q * sizeof *ids);
    memcpy(ids + (item_first ? 0 : q), p->ids, n * sizeof *ids);
    msgl__free(p->ids);
    p->ids = ids;
    p->num_ids = (int32_t)(q + n);
    return 0;
}

static int parse_ids(const json_t *query, bool item_first, const msgl_api_config *cfg,
                     msgl_gen_request *out, msgl_api_error *e)
{
    msgl_prompt q = {0};
    size_t total = 0;
    int rc = msgl__field_ids(query, "query", cfg->vocab_size, &q.ids, &q.num_ids, e);
    for (int i = 0; i < out->num_prompts && rc == 0; i++) {
        rc = join_ids(&out->prompts[i], &q, item_first, &total, e);
    }
    msgl__free(q.ids);
    return rc;
}

int msgl__token_scores_parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                             bool *softmax, msgl_api_error *e)
{
    const json_t *query = msgl__field(o, "query");
    bool item_first = false;
    int rc = msgl__check_fields(o, &msgl__token_score_fields, cfg, cfg->unknown_fields,
                                &out->unknown, e);
    if (rc == 0) rc = msgl__field_bool(o, "apply_softmax", softmax, e);
    if (rc >= 0) rc = msgl__field_bool(o, "item_first", &item_first, e);
    if (rc < 0) return rc;
    const bool text = json_is_string(query);
    if (!text && !json_is_array(query)) {
        return msgl__api_fail(e, 400, "query",
                              query == NULL ? "missing_required_parameter" : "invalid_type",
                              "'query' must be a string or an array of token ids.");
    }
    rc = want_labels(o, cfg, out, e);
    if (rc == 0) rc = msgl__parse_prompts(json_object_get(o, "items"), "items", cfg, out, e);
    if (rc != 0) return rc;
    if (text != (out->prompts[0].text != NULL)) {
        return msgl__api_fail(e, 400, "items", "invalid_type",
                              "'query' and 'items' must both be text, or both token ids.");
    }
    if (!text) return parse_ids(query, item_first, cfg, out, e);
    *(item_first ? &out->behind : &out->before) = json_string_value(query);
    return 0;
}

static int put_item(const msgl_sequence *s, bool softmax, msgl_strbuf *out)
{
    double sum = 0, most = -INFINITY;
    for (int32_t i = 0; i < s->num_values; i++) most = fmax(most, (double)s->values[i]);
    for (int32_t i = 0; i < s->num_values; i++) sum += exp((double)s->values[i] - most);
    int rc = msgl__strbuf_addc(out, '[');
    for (int32_t i = 0; i < s->num_values && rc == 0; i++) {
        const double v = (double)s->values[i];
        rc = msgl__strbuf_addf(out, "%s%.9g", i > 0 ? "," : "",
                               softmax ? exp(v - most) / sum : exp(v));
    }
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

int msgl__token_scores_put(const msgl_reply *r, const msgl_sequence *const *all, bool softmax,
                           int64_t cached, msgl_strbuf *out)
{
    int rc = msgl__reply_head(r, "scoring", out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"scores\":[");
    for (int i = 0; i < r->num_choices && rc == 0; i++) {
        if (i > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = put_item(all[i], softmax, out);
    }
    return rc == 0 ? msgl__reply_end(r, cached, 0, out) : rc;
}
