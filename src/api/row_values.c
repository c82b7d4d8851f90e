// SPDX-License-Identifier: Apache-2.0
#include "api/row_values.h"

#include <float.h>
#include <math.h>

#include "core/mem.h"
#include "api/fields.h"
#include "api/job.h"
#include "api/logprobs.h"

enum { TEXT_MAX = 1 << 30 };

// --- what an answer shows ---

void msgl__row_texts_init(msgl_row_texts *t, const msgl_req_extra *extra, int32_t hidden_size,
                          bool text)
{
    *t = (msgl_row_texts){.extra = extra, .hidden_size = hidden_size, .text = text};
    msgl__strbuf_init(&t->listed_prompt, TEXT_MAX);
    msgl__strbuf_init(&t->listed, TEXT_MAX);
    msgl__strbuf_init(&t->hidden_prompt, TEXT_MAX);
    msgl__strbuf_init(&t->hidden, TEXT_MAX);
}

void msgl__row_texts_free(msgl_row_texts *t)
{
    msgl__strbuf_free(&t->listed_prompt);
    msgl__strbuf_free(&t->listed);
    msgl__strbuf_free(&t->hidden_prompt);
    msgl__strbuf_free(&t->hidden);
}

size_t msgl__row_texts_bytes(const msgl_row_texts *t)
{
    return t->listed_prompt.cap + t->listed.cap + t->hidden_prompt.cap + t->hidden.cap;
}

int msgl__row_texts_share(msgl_row_texts *t, const msgl_row_texts *first)
{
    const int rc = msgl__strbuf_add(&t->listed_prompt, msgl__strbuf_str(&first->listed_prompt),
                                    first->listed_prompt.len);
    if (rc != 0) return rc;
    t->shared = first->shared;
    return msgl__strbuf_add(&t->hidden_prompt, msgl__strbuf_str(&first->hidden_prompt),
                            first->shared);
}

int msgl__row_texts_listed(msgl_row_texts *t, const msgl_tokenizer *tokenizer, const float *values,
                           bool prompt)
{
    if (t->extra == NULL || t->extra->num_listed == 0) return 0;
    msgl_strbuf *out = prompt ? &t->listed_prompt : &t->listed;
    const int rc = out->len > 0 ? msgl__strbuf_addc(out, ',') : 0;
    if (rc != 0) return rc;
    if (values == NULL) return msgl__strbuf_adds(out, "null");
    return msgl__logprobs_put_listed(out, tokenizer, t->extra->listed, t->extra->num_listed, values,
                                     t->text);
}

int msgl__row_texts_hidden(msgl_row_texts *t, const float *values, int32_t position,
                           size_t prompt_len)
{
    if (t->extra == NULL || !t->extra->hidden || values == NULL) return 0;
    const bool prompt = (size_t)position <= prompt_len;
    msgl_strbuf *out = prompt ? &t->hidden_prompt : &t->hidden;
    int rc = !prompt || out->len > 0 ? msgl__strbuf_addc(out, ',') : 0;
    if (rc == 0) {
        rc = msgl__json_put_floats(out, values + t->extra->num_listed, t->hidden_size);
    }
    if ((size_t)position < prompt_len) t->shared = out->len;
    return rc;
}

int msgl__row_texts_put_hidden(const msgl_row_texts *t, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "[[");
    if (rc == 0) {
        rc = msgl__strbuf_add(out, msgl__strbuf_str(&t->hidden_prompt), t->hidden_prompt.len);
    }
    if (rc == 0) rc = msgl__strbuf_addc(out, ']');
    if (rc == 0) rc = msgl__strbuf_add(out, msgl__strbuf_str(&t->hidden), t->hidden.len);
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

// --- what a request asks for ---

static bool is_nested(const json_t *list)
{
    const json_t *first = json_array_get(list, 0);
    return json_is_array(first) || json_is_null(first);
}

// Of each prompt, or of all.
static int check_lists(const json_t *lists, const msgl_gen_request *out, msgl_api_error *e)
{
    static const char name[] = "token_ids_logprob";
    const bool nested = is_nested(lists);
    if (nested && json_array_size(lists) != (size_t)out->num_prompts) {
        return msgl__api_fail(e, 400, name, "invalid_value",
                              "'%s' has %zu lists; allowed: one of token ids, or one for each of "
                              "the %d prompts.",
                              name, json_array_size(lists), out->num_prompts);
    }
    for (size_t i = 0; i < json_array_size(lists); i++) {
        const json_t *list = nested ? json_array_get(lists, i) : lists;
        if (!json_is_array(list) && !json_is_null(list)) {
            return msgl__field_bad(e, name, "must be token ids, or a list of them for each prompt");
        }
        if (json_array_size(list) > MSGL_MAX_LISTED) {
            return msgl__api_fail(e, 400, name, "invalid_value",
                                  "'%s' has %zu ids; allowed: at most %d.", name,
                                  json_array_size(list), MSGL_MAX_LISTED);
        }
        if (!nested) break;
    }
    return 0;
}

int msgl__row_values_parse(const json_t *o, bool logprobs, const msgl_api_config *cfg,
                           msgl_gen_request *out, msgl_api_error *e)
{
    const json_t *lists = msgl__field(o, "token_ids_logprob");
    int rc = msgl__field_bool(o, "return_hidden_states", &out->hidden, e);
    if (rc >= 0 && lists != NULL && !json_is_array(lists)) {
        rc = msgl__field_bad(e, "token_ids_logprob",
                             "must be token ids, or a list of them for each prompt");
    }
    if (rc >= 0 && json_array_size(lists) > 0) rc = check_lists(lists, out, e);
    if (rc < 0) return rc;
    if (logprobs && json_array_size(lists) > 0) out->listed = lists;
    if (!out->hidden) return 0;
    if (cfg->hidden_size == 0) {
        return msgl__api_fail(e, 400, "return_hidden_states", "unsupported_parameter",
                              "'return_hidden_states' is true; this server was started without "
                              "--enable-return-hidden-states.");
    }
    out->hidden_size = cfg->hidden_size;
    msgl_sampling_params *p = &out->sampling; // a state comes with each row
    if (p->logprobs < 0) p->logprobs = 0;
    if (p->prompt_logprobs < 0) p->prompt_logprobs = 0;
    return 0;
}

static int bad_value(msgl_api_error *e, size_t row, size_t at, const json_t *v)
{
    return msgl__api_fail(e, 400, "input_embeds", "invalid_value",
                          "'input_embeds' has %s at row %zu, place %zu; it must be finite numbers.",
                          json_is_number(v) ? "a number beyond a float's" : msgl__json_type_name(v),
                          row, at);
}

// One prompt's rows: arrays of as many finite numbers as the model's hidden states have.
static int check_rows(const json_t *rows, int32_t dim, msgl_api_error *e)
{
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        if (!json_is_array(row) || json_array_size(row) != (size_t)dim) {
            return msgl__api_fail(e, 400, "input_embeds", "invalid_value",
                                  "'input_embeds' has %s of %zu values as row %zu; allowed: arrays "
                                  "of %d numbers.",
                                  msgl__json_type_name(row), json_array_size(row), i, dim);
        }
        for (size_t k = 0; k < (size_t)dim; k++) {
            const json_t *v = json_array_get(row, k);
            if (!json_is_number(v) || !(fabs(json_number_value(v)) <= (double)FLT_MAX)) {
                return bad_value(e, i, k, v);
            }
        }
    }
    return 0;
}

// A prompt of as many tokens as there are rows; which ids they have nobody looks at.
static int add_prompt(const json_t *rows, const msgl_api_config *cfg, msgl_gen_request *out,
                      msgl_api_error *e)
{
    const size_t n = json_array_size(rows);
    if (!json_is_array(rows) || n == 0 || n > (size_t)(MSGL_MAX_EMBED_VALUES / cfg->embed_size)) {
        return msgl__api_fail(e, 400, "input_embeds", "invalid_value",
                              "'input_embeds' has a prompt of %zu rows; allowed: 1 to %lld.", n,
                              (long long)(MSGL_MAX_EMBED_VALUES / cfg->embed_size));
    }
    const int rc = check_rows(rows, cfg->embed_size, e);
    if (rc != 0) return rc;
    msgl_prompt *p = &out->prompts[out->num_prompts++];
    *p = (msgl_prompt){.ids = msgl__calloc(n, sizeof *p->ids), .num_ids = (int32_t)n};
    return p->ids != NULL ? 0 : msgl__api_oom(e);
}

int msgl__embeds_parse(const json_t *embeds, const msgl_api_config *cfg, msgl_gen_request *out,
                       msgl_api_error *e)
{
    if (cfg->embed_size == 0) {
        return msgl__api_fail(
            e, 400, "input_embeds", "unsupported_parameter",
            "'input_embeds' is given; layers of this model need the tokens' ids.");
    }
    const json_t *first = json_array_get(embeds, 0); // a row, or a prompt's rows
    if (!json_is_array(embeds) || !json_is_array(first)) {
        return msgl__field_bad(e, "input_embeds",
                               "must be an array of rows of numbers, or of such arrays");
    }
    const bool nested = json_is_array(json_array_get(first, 0));
    const size_t n = nested ? json_array_size(embeds) : 1;
    if (n > MSGL_API_MAX_PROMPTS) {
        return msgl__api_fail(e, 400, "input_embeds", "invalid_value",
                              "'input_embeds' has %zu prompts; allowed: at most %d.", n,
                              MSGL_API_MAX_PROMPTS);
    }
    out->prompts = msgl__calloc(n, sizeof *out->prompts);
    if (out->prompts == NULL) return msgl__api_oom(e);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = add_prompt(nested ? json_array_get(embeds, i) : embeds, cfg, out, e);
    }
    out->embeds = embeds;
    return rc;
}

// --- what the engine gets of it ---

static float *floats_of(const json_t *rows, size_t dim)
{
    const size_t n = json_array_size(rows);
    float *all = msgl__reallocarray(NULL, n * dim, sizeof *all);
    for (size_t i = 0; all != NULL && i < n; i++) {
        const json_t *row = json_array_get(rows, i);
        for (size_t k = 0; k < dim; k++) {
            all[i * dim + k] = (float)json_number_value(json_array_get(row, k));
        }
    }
    return all;
}

// The request's extra with what the prompt has of its own: a list of tokens, or NULL, and rows, or
// NULL.
static int make_extra(msgl_job *j, const json_t *list, const json_t *rows, msgl_req_extra **out)
{
    const msgl_gen_request *r = &j->req;
    msgl_req_extra_parts parts = msgl__req_extra_parts_of(r->extra);
    int32_t *ids = NULL, count = 0;
    float *embeds = NULL;
    msgl_err err = {0};
    parts.hidden = r->hidden;
    int rc = 0;
    if (json_is_array(list)) {
        rc = msgl__field_ids(list, "token_ids_logprob", j->config.vocab_size, &ids, &count,
                             &j->error);
    }
    if (rc == 0 && rows != NULL) {
        embeds = floats_of(rows, (size_t)j->config.embed_size);
        if (embeds == NULL) rc = msgl__api_oom(&j->error);
    }
    parts.listed = ids;
    parts.num_listed = count;
    parts.embeds = embeds;
    parts.num_embeds = embeds == NULL ? 0 : (int64_t)json_array_size(rows);
    parts.embed_dim = embeds == NULL ? 0 : j->config.embed_size;
    if (rc == 0 && msgl__req_extra_create_with(&parts, j->config.vocab_size, out, &err) != 0) {
        rc = msgl__api_fail(&j->error, err.code == MSGL_ENOMEM ? 500 : 400, NULL, NULL, "%s",
                            err.text);
    }
    msgl__free(ids);
    msgl__free(embeds);
    if (rc != 0) return rc;
    rc = msgl__claim_add(&j->claim, MSGL_BUDGET_PROMPT, msgl__req_extra_bytes(*out));
    return rc == 0 ? 0 : msgl__api_fail_memory(&j->error, rc);
}

int msgl__row_values_extras(msgl_job *j)
{
    msgl_gen_request *r = &j->req;
    if (r->listed == NULL && r->embeds == NULL && !r->hidden) return 0;
    const bool lists = r->listed != NULL && is_nested(r->listed);
    if (!lists && r->embeds == NULL) {
        msgl_req_extra *all = NULL;
        const int rc = make_extra(j, r->listed, NULL, &all);
        msgl__req_extra_unref(r->extra);
        r->extra = all;
        return rc;
    }
    const bool nested =
        r->embeds != NULL && json_is_array(json_array_get(json_array_get(r->embeds, 0), 0));
    r->extras = msgl__calloc((size_t)r->num_prompts, sizeof *r->extras);
    if (r->extras == NULL) return msgl__api_oom(&j->error);
    int rc = 0;
    for (int i = 0; i < r->num_prompts && rc == 0; i++) {
        rc = make_extra(j, lists ? json_array_get(r->listed, (size_t)i) : r->listed,
                        nested ? json_array_get(r->embeds, (size_t)i) : r->embeds, &r->extras[i]);
    }
    return rc;
}
