// SPDX-License-Identifier: Apache-2.0
//
// POST /embed_sparse: a weight for each token of the vocabulary that a text has, as bge-m3's
// lexical weights are: of a token that is there several times the largest, of special tokens none.
#include <stdlib.h>

#include "api/fields.h"
#include "api/openai/embeddings.h"
#include "api/tei/endpoints.h"
#include "core/mem.h"

static const msgl_field_row rows[] = {
    MSGL_ROW_MODEL,
    {"inputs", MSGL_FIELD_ANY, .required = true, .max_items = MSGL_API_MAX_PROMPTS,
     .help = "a string, or an array of them"},
    {"truncate", MSGL_FIELD_BOOL, .preset = "false",
     .help = "of a text that is too long its beginning is taken; else it is refused"},
    MSGL_ROW_PROMPT_NAME,
    MSGL_ROW_CACHE_SALT,
    {0},
};
static const msgl_fields fields = {.read = rows};
static const msgl_fields *const objects[] = {&fields, NULL};

static int parse(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                 msgl_api_error *e)
{
    bool cut = false;
    int rc = msgl__check_fields(o, &fields, cfg, cfg->unknown_fields, &out->unknown, e);
    if (rc == 0) rc = msgl__field_bool(o, "truncate", &cut, e);
    if (rc >= 0) rc = msgl__parse_prompt_name(o, cfg, out, e);
    if (rc >= 0) rc = msgl__want_tokens(MSGL_TASK_WEIGHTS, cfg, NULL, out, e);
    if (rc < 0) return rc;
    msgl__request_pools(out);
    out->keep_first = cut;
    out->last_tokens = cut ? INT32_MAX : 0;
    return msgl__parse_prompts(json_object_get(o, "inputs"), "inputs", cfg, out, e);
}

typedef struct weight {
    int32_t token;
    float value;
} weight;

static int by_token(const void *a, const void *b)
{
    const weight *x = a, *y = b;
    if (x->token != y->token) return x->token < y->token ? -1 : 1;
    return (x->value < y->value) - (x->value > y->value); // the largest first
}

// The text's weights above 0, in the order of the tokens.
static int put_weights(const msgl_sequence *s, msgl_strbuf *out)
{
    const size_t n = (size_t)s->num_values;
    size_t num = 0;
    if (n > s->prompt->len) return MSGL_EINTERNAL;
    weight *all = msgl__calloc(n, sizeof *all);
    if (all == NULL) return MSGL_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const int32_t token = s->prompt->data[i];
        if (s->values[i] <= 0 || msgl__tokenizer_is_special(s->tokenizer, token)) continue;
        all[num++] = (weight){token, s->values[i]};
    }
    if (num > 1) qsort(all, num, sizeof *all, by_token);
    int rc = msgl__strbuf_addc(out, '[');
    for (size_t i = 0; i < num && rc == 0; i++) {
        if (i > 0 && all[i].token == all[i - 1].token) continue;
        rc = msgl__strbuf_addf(out, "%s{\"index\":%d,\"value\":%.9g}", i > 0 ? "," : "",
                               (int)all[i].token, (double)all[i].value);
    }
    msgl__free(all);
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_begin(const msgl_reply *r, msgl_strbuf *out)
{
    (void)r;
    return msgl__strbuf_addc(out, '[');
}

static int put_choice(const msgl_reply *r, int index, msgl_sequence *s, msgl_strbuf *out)
{
    (void)r;
    const int rc = index > 0 ? msgl__strbuf_addc(out, ',') : 0;
    return rc == 0 ? put_weights(s, out) : rc;
}

static int put_end(const msgl_reply *r, int64_t cached, int64_t completion, msgl_strbuf *out)
{
    (void)r, (void)cached, (void)completion;
    return msgl__strbuf_addc(out, ']');
}

static const msgl_example examples[] = {
    {"Two texts", MSGL_HTTP_POST, .body = "{\"inputs\": [\"a red fox\", \"a blue car\"]}"},
    {0},
};
const msgl_endpoint msgl__endpoint_embed_sparse = {
    .path = "/embed_sparse",
    .help = "Lexical weights of texts as text-embeddings-inference has them, by a server of a "
            "model that makes some ([embeddings.md](embeddings.md#values-of-each-token)).",
    .examples = examples,
    .method = MSGL_HTTP_POST,
    .optional = true,
    .pooled = true,
    .parse = parse,
    .objects = objects,
    .prompt = MSGL_PROMPT_TEXT,
    .prompt_field = "inputs",
    .id_prefix = "sparse",
    .put_begin = put_begin,
    .put_choice = put_choice,
    .put_end = put_end,
};
