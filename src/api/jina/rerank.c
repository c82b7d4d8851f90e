// SPDX-License-Identifier: Apache-2.0
//
// POST /v1/rerank and /v1/score: how near texts are to a query, by the cosine of the vectors that
// the engine makes of them or, of a reranker, by how much likelier yes is than no behind both. The
// first is Jina's and Cohere's form, sorted; the second is vLLM's.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "api/jina/endpoints.h"
#include "api/fields.h"
#include "api/json.h"
#include "api/pair_prompt.h"
#include "api/sglang/score.h"

enum { MAX_TEXTS = MSGL_API_MAX_PROMPTS };

#define ROW_INSTRUCT                                                                               \
    {                                                                                              \
        "instruct", MSGL_FIELD_STRING, .preset = "the model's own",                                \
                                       .help = "what a reranker judges by; not of embeddings"      \
    }

static const msgl_field_row rerank_rows[] = {
    MSGL_ROW_MODEL,
    {"query", MSGL_FIELD_STRING, .required = true, .help = "not empty"},
    {"documents", MSGL_FIELD_ARRAY, .required = true, .max_items = MAX_TEXTS - 1,
     .help = "strings, or objects whose `text` is one; not empty"},
    {"top_n", MSGL_FIELD_INT, .min = 1, .max = INT32_MAX, .preset = "all",
     .help = "so many of the best documents are in the answer"},
    {"return_documents", MSGL_FIELD_BOOL, .preset = "false",
     .help = "the answer has the documents' texts"},
    ROW_INSTRUCT,
    MSGL_ROW_CACHE_SALT,
    {0},
};
// They would cut documents, or choose parts of them.
static const msgl_refused_field refused[] = {{"truncate_prompt_tokens", MSGL_NEUTRAL_NULL},
                                             {"max_tokens_per_doc", MSGL_NEUTRAL_NULL},
                                             {"max_chunks_per_doc", MSGL_NEUTRAL_NULL},
                                             {"rank_fields", MSGL_NEUTRAL_NULL},
                                             {NULL, MSGL_NEUTRAL_NULL}};
static const msgl_fields rerank_fields = {.read = rerank_rows, .refused = refused};
static const msgl_fields *const rerank_objects[] = {&rerank_fields, NULL};

static const msgl_field_row score_rows[] = {
    MSGL_ROW_MODEL,
    {"text_1", MSGL_FIELD_ANY, .required = true, .max_items = MAX_TEXTS - 1,
     .help = "a string, or an array of them: one for all of `text_2`, or one for each"},
    {"text_2", MSGL_FIELD_ANY, .required = true, .max_items = MAX_TEXTS - 1,
     .help = "a string, or an array of them"},
    ROW_INSTRUCT,
    MSGL_ROW_CACHE_SALT,
    {0},
};
static const msgl_fields score_fields = {
    .title = "vLLM's form, of a model that makes embeddings or ranks",
    .read = score_rows,
    .refused = refused};
static const msgl_fields *const score_objects[] = {&score_fields, &msgl__token_score_fields, NULL};

// --- bodies ---

// A field of texts: one, or an array of them.
typedef struct text_field {
    const char *name;
    const json_t *value; // NULL: it is missing
    bool objects;        // a text may be an object's `text`
} text_field;

// index: in the field's array; -1: it is none.
static int add_text(const text_field *f, const json_t *v, int index, msgl_gen_request *out,
                    msgl_api_error *e)
{
    char param[sizeof e->param];
    (void)snprintf(param, sizeof param, index < 0 ? "%s" : "%s[%d]", f->name, index);
    const json_t *text = f->objects && json_is_object(v) ? json_object_get(v, "text") : v;
    if (!json_is_string(text)) {
        return msgl__api_fail(e, 400, param, "invalid_type", "'%s' must be a string%s.", param,
                              f->objects ? ", or an object whose 'text' is one" : "");
    }
    if (json_string_length(text) == 0) {
        return msgl__api_fail(e, 400, param, "invalid_value",
                              "'%s' is empty; it must have at least one token.", param);
    }
    out->prompts[out->num_prompts++] =
        (msgl_prompt){.text = json_string_value(text), .len = json_string_length(text)};
    return 0;
}

static int add_texts(const text_field *f, msgl_gen_request *out, msgl_api_error *e)
{
    if (!json_is_array(f->value)) return add_text(f, f->value, -1, out, e);
    int rc = 0;
    for (size_t i = 0; i < json_array_size(f->value) && rc == 0; i++) {
        rc = add_text(f, json_array_get(f->value, i), (int)i, out, e);
    }
    return rc;
}

// How many texts it has; negative with *e.
static int count_texts(const text_field *f, msgl_api_error *e)
{
    if (f->value == NULL) {
        return msgl__field_missing(e, f->name);
    }
    const size_t n = json_is_array(f->value) ? json_array_size(f->value) : 1;
    if (n >= 1 && n < MAX_TEXTS) return (int)n;
    return msgl__api_fail(e, 400, f->name, "invalid_value", "'%s' has %zu texts; allowed: 1 to %d.",
                          f->name, n, MAX_TEXTS - 1);
}

static int check_counts(const text_field *queries, const text_field *documents,
                        const msgl_gen_request *out, msgl_api_error *e)
{
    const int q = out->pairs.num_queries, d = out->pairs.num_documents;
    if (q != 1 && q != d) {
        return msgl__api_fail(e, 400, queries->name, "invalid_value",
                              "'%s' has %d texts and '%s' has %d; allowed: one, or as many.",
                              queries->name, q, documents->name, d);
    }
    if (q + d <= MAX_TEXTS) return 0;
    return msgl__api_fail(e, 400, documents->name, "invalid_value",
                          "'%s' and '%s' have %d texts; allowed: at most %d.", queries->name,
                          documents->name, q + d, MAX_TEXTS);
}

static int parse_instruct(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                          msgl_api_error *e)
{
    const int rc = msgl__field_str(o, "instruct", &out->pairs.instruct, e);
    if (rc <= 0 || cfg->reranks || (cfg->classifies && msgl__pair_template(cfg->template_text)))
        return rc;
    return msgl__api_fail(
        e, 400, "instruct", "unsupported_parameter",
        "'instruct' is for rerankers with a prompt, which this server's model has "
        "not: write it in front of the query.");
}

// The documents, and behind them the queries, which a reranker has in the same prompts.
static int parse_texts(const text_field *queries, const text_field *documents,
                       const msgl_api_config *cfg, msgl_gen_request *out, msgl_api_error *e)
{
    const int q = count_texts(queries, e), d = q < 0 ? q : count_texts(documents, e);
    if (d < 0) return d;
    out->pairs.num_queries = q;
    out->pairs.num_documents = d;
    int rc = check_counts(queries, documents, out, e);
    if (rc != 0) return rc;
    out->prompts = msgl__calloc((size_t)(q + d), sizeof *out->prompts);
    if (out->prompts == NULL) return msgl__api_oom(e);
    msgl__request_pools(out);
    rc = add_texts(documents, out, e);
    if (rc == 0) rc = add_texts(queries, out, e);
    out->pairs.on = cfg->reranks || cfg->classifies;
    out->pairs.encoded = cfg->classifies && !msgl__pair_template(cfg->template_text);
    out->pairs.one_token = cfg->reranks && cfg->pooled_size == 1;
    if (out->pairs.on) out->num_prompts = d;
    return rc;
}

// Fields of /rerank alone.
typedef struct rerank {
    int32_t top_n; // documents that the answer has, at most
} rerank;
static const msgl_own_fields rerank_own = {.size = sizeof(rerank)};

static int parse_rerank(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                        msgl_api_error *e)
{
    int64_t top = INT32_MAX;
    const char *query = NULL;
    int rc = msgl__check_fields(o, &rerank_fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__field_str(o, "query", &query, e);
    if (rc >= 0) rc = msgl__field_int_of(o, &rerank_fields, "top_n", &top, e);
    if (rc >= 0) rc = msgl__field_bool(o, "return_documents", &out->keep_texts, e);
    if (rc >= 0) rc = parse_instruct(o, cfg, out, e);
    if (rc < 0) return rc;
    ((rerank *)out->own)->top_n = (int32_t)top;
    const text_field queries = {"query", msgl__field(o, "query"), false},
                     documents = {"documents", msgl__field(o, "documents"), true};
    if (documents.value != NULL && !json_is_array(documents.value)) {
        return msgl__api_fail(e, 400, documents.name, "invalid_type",
                              "'%s' is %s; it must be an array.", documents.name,
                              msgl__json_type_name(documents.value));
    }
    return parse_texts(&queries, &documents, cfg, out, e);
}

// Fields of /score alone.
typedef struct token_scores {
    bool on, softmax; // in SGLang's form
} token_scores;
static const msgl_own_fields score_own = {.size = sizeof(token_scores)};

static int parse_score(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                       msgl_api_error *e)
{
    token_scores *own = out->own;
    own->on = cfg->pooled_size == 0;
    if (own->on && msgl__field(o, "label_token_ids") == NULL) {
        return msgl__api_fail(e, 400, "label_token_ids", "missing_required_parameter",
                              "This server answers: it scores by 'label_token_ids' (SGLang's "
                              "form). Without them a model is needed that makes embeddings or "
                              "ranks documents.");
    }
    if (own->on) return msgl__token_scores_parse(o, cfg, out, &own->softmax, e);
    int rc = msgl__check_fields(o, &score_fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = parse_instruct(o, cfg, out, e);
    if (rc < 0) return rc;
    const text_field queries = {"text_1", msgl__field(o, "text_1"), false},
                     documents = {"text_2", msgl__field(o, "text_2"), false};
    return parse_texts(&queries, &documents, cfg, out, e);
}

static void name_one(const char *name, int index, char *out, size_t size)
{
    (void)snprintf(out, size, "%s[%d]", name, index);
}

static void name_document(const msgl_gen_request *r, int prompt, char *out, size_t size)
{
    if (prompt < r->pairs.num_documents) {
        name_one("documents", prompt, out, size);
    } else {
        (void)snprintf(out, size, "query");
    }
}

static void name_text(const msgl_gen_request *r, int prompt, char *out, size_t size)
{
    if (((const token_scores *)r->own)->on) {
        name_one("items", prompt, out, size);
        return;
    }
    const bool first = prompt >= r->pairs.num_documents;
    name_one(first ? "text_1" : "text_2", first ? prompt - r->pairs.num_documents : prompt, out,
             size);
}

// --- answers ---

typedef struct score {
    int index;
    double value;
} score;

// Of vectors of any length; 0 if one of them is nothing.
static double cosine(const msgl_sequence *a, const msgl_sequence *b)
{
    double dot = 0, aa = 0, bb = 0;
    for (int32_t i = 0; i < a->num_values && i < b->num_values; i++) {
        const double x = (double)a->values[i], y = (double)b->values[i];
        dot += x * y;
        aa += x * x;
        bb += y * y;
    }
    return aa > 0 && bb > 0 ? dot / sqrt(aa * bb) : 0;
}

// The probability of yes, of the two, or of the only label; 0 if there are none. Of one token's
// logit zerank's page makes that with a temperature of 5.
static double yes_of(const msgl_gen_request *q, const msgl_sequence *s)
{
    if (s->num_values < 1) return 0;
    const double no = s->num_values < 2 ? 0 : (double)s->values[1];
    const double temperature = q->pairs.one_token ? 5 : 1;
    return 1 / (1 + exp((no - (double)s->values[0]) / temperature));
}

// [num_documents], freed with msgl__free; NULL: no memory.
static score *scores_of(const msgl_gen_request *q, const msgl_sequence *const *all)
{
    score *scores = msgl__calloc((size_t)q->pairs.num_documents, sizeof *scores);
    for (int i = 0; i < q->pairs.num_documents && scores != NULL; i++) {
        const double value =
            q->pairs.on ? yes_of(q, all[i]) : cosine(all[msgl__pair_query(q, i)], all[i]);
        scores[i] = (score){i, value};
    }
    return scores;
}

static int best_first(const void *a, const void *b)
{
    const score *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? 1 : -1;
    return x->index < y->index ? -1 : 1;
}

static int put_result(const msgl_reply *r, const score *s, msgl_strbuf *out)
{
    int rc = msgl__strbuf_addf(out, "{\"index\":%d,\"relevance_score\":%.9g", s->index, s->value);
    if (rc == 0 && r->req->keep_texts) {
        const msgl_prompt *p = &r->req->prompts[s->index];
        rc = msgl__strbuf_adds(out, ",\"document\":{\"text\":");
        if (rc == 0) rc = msgl__json_put_str(out, p->text, p->len);
        if (rc == 0) rc = msgl__strbuf_addc(out, '}');
    }
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_results(const msgl_reply *r, const msgl_sequence *const *all, int64_t cached,
                       msgl_strbuf *out)
{
    const msgl_gen_request *q = r->req;
    const int32_t top_n = ((const rerank *)q->own)->top_n;
    const int n = top_n < q->pairs.num_documents ? top_n : q->pairs.num_documents;
    score *scores = scores_of(q, all);
    if (scores == NULL) return MSGL_ENOMEM;
    qsort(scores, (size_t)q->pairs.num_documents, sizeof *scores, best_first);
    int rc = msgl__reply_head(r, "list", out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"results\":[");
    for (int i = 0; i < n && rc == 0; i++) {
        if (i > 0) rc = msgl__strbuf_addc(out, ',');
        if (rc == 0) rc = put_result(r, &scores[i], out);
    }
    msgl__free(scores);
    return rc == 0 ? msgl__reply_end(r, cached, 0, out) : rc;
}

static int put_scores(const msgl_reply *r, const msgl_sequence *const *all, int64_t cached,
                      msgl_strbuf *out)
{
    const token_scores *own = r->req->own;
    if (own->on) return msgl__token_scores_put(r, all, own->softmax, cached, out);
    score *scores = scores_of(r->req, all);
    if (scores == NULL) return MSGL_ENOMEM;
    int rc = msgl__reply_head(r, "list", out);
    if (rc == 0) rc = msgl__strbuf_adds(out, ",\"data\":[");
    for (int i = 0; i < r->req->pairs.num_documents && rc == 0; i++) {
        rc = msgl__strbuf_addf(out, "%s{\"index\":%d,\"object\":\"score\",\"score\":%.9g}",
                               i == 0 ? "" : ",", i, scores[i].value);
    }
    msgl__free(scores);
    return rc == 0 ? msgl__reply_end(r, cached, 0, out) : rc;
}

static const msgl_example rerank_examples[] = {
    {"Which text is nearer", MSGL_HTTP_POST,
     .body = "{\"query\": \"What do foxes eat?\", \"documents\": [\"a blue car\", "
             "\"a fox eats mice\"]}",
     .has = "id object model results usage"},
    {"The best one, with its text", MSGL_HTTP_POST,
     .body = "{\"query\": \"What do foxes eat?\", \"documents\": [{\"text\": \"a blue car\"}, "
             "{\"text\": \"a fox eats mice\"}], \"top_n\": 1, \"return_documents\": true}",
     .has = "results"},
    {0},
};
static const msgl_example score_examples[] = {
    {"One text against two", MSGL_HTTP_POST,
     .body = "{\"text_1\": \"What do foxes eat?\", \"text_2\": [\"a blue car\", "
             "\"a fox eats mice\"]}",
     .has = "id object model data usage"},
    {"Two pairs", MSGL_HTTP_POST,
     .body = "{\"text_1\": [\"a red fox\", \"a blue car\"], \"text_2\": [\"a fox\", \"a bus\"]}",
     .has = "data"},
    {"How likely two tokens are behind a query and items, of a model that answers", MSGL_HTTP_POST,
     .body = "{\"query\": \"Is this a city? \", \"items\": [\"Paris\", \"a fox\"], "
             "\"label_token_ids\": [10, 11], \"apply_softmax\": true}",
     .has = "id object model scores usage"},
    {0},
};

#define RERANK(PATH, HELP)                                                                         \
    {                                                                                              \
        .path = PATH, .help = HELP, .examples = rerank_examples, .method = MSGL_HTTP_POST,         \
        .pooled = true, .parse = parse_rerank, .own = &rerank_own, .objects = rerank_objects,      \
        .prompt = MSGL_PROMPT_TEXT, .prompt_field = "documents", .name_prompt = name_document,     \
        .id_prefix = "rerank", .put_all = put_results,                                             \
    }
#define SCORE(PATH, HELP)                                                                          \
    {                                                                                              \
        .path = PATH, .help = HELP, .examples = score_examples, .method = MSGL_HTTP_POST,          \
        .pooled = true, .lists = true, .parse = parse_score, .own = &score_own,                    \
        .objects = score_objects, .prompt = MSGL_PROMPT_TEXT, .prompt_field = "text_2",            \
        .name_prompt = name_text, .id_prefix = "score", .put_all = put_scores,                     \
    }

const msgl_endpoint msgl__endpoint_rerank =
    RERANK("/v1/rerank", "Documents in the order of their nearness to a query, in Jina's and "
                         "Cohere's form, by a server of a model that makes embeddings or ranks "
                         "([embeddings.md](embeddings.md)); others refuse it.");
const msgl_endpoint msgl__endpoint_rerank_short = RERANK("/rerank", "The same.");
const msgl_endpoint msgl__endpoint_rerank_v2 =
    RERANK("/v2/rerank", "The same, as Cohere's client has it.");
const msgl_endpoint msgl__endpoint_score =
    SCORE("/v1/score",
          "How near texts are to another, or to others one by one, in vLLM's form, by "
          "a server of a model that makes embeddings or ranks; in SGLang's, how likely some tokens "
          "are behind a query and items, by one that answers ([embeddings.md](embeddings.md)).");
const msgl_endpoint msgl__endpoint_score_short = SCORE("/score", "The same.");
