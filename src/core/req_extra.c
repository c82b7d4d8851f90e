// SPDX-License-Identifier: Apache-2.0
#include "core/req_extra.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

static int token_order(const void *a, const void *b)
{
    const msgl_bias *p = a, *q = b;
    return (p->token > q->token) - (p->token < q->token);
}

static int check_token(const char *field, int32_t token, int vocab_size, msgl_err *err)
{
    if (token >= 0 && token < vocab_size) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "%s names token %d; allowed: 0 to %d", field, token,
                         vocab_size - 1);
}

static int check_bias(const msgl_bias *sorted, int32_t n, int vocab_size, msgl_err *err)
{
    for (int32_t i = 0; i < n; i++) {
        const msgl_bias *b = &sorted[i];
        const int rc = check_token("logit_bias", b->token, vocab_size, err);
        if (rc != 0) return rc;
        if (!(b->value >= -MSGL_LOGIT_BIAS_RANGE && b->value <= MSGL_LOGIT_BIAS_RANGE)) {
            return msgl__err_set(
                err, MSGL_EINVAL, "logit_bias of token %d is %g; allowed: -%g to %g", b->token,
                (double)b->value, (double)MSGL_LOGIT_BIAS_RANGE, (double)MSGL_LOGIT_BIAS_RANGE);
        }
        if (i > 0 && b->token == sorted[i - 1].token) {
            return msgl__err_set(err, MSGL_EINVAL, "logit_bias names token %d twice; allowed: once",
                                 b->token);
        }
    }
    return 0;
}

static int check_tokens(const char *field, const int32_t *ids, int32_t n, int vocab_size,
                        msgl_err *err)
{
    int rc = 0;
    for (int32_t i = 0; i < n && rc == 0; i++) rc = check_token(field, ids[i], vocab_size, err);
    return rc;
}

static int check_lists(const msgl_req_extra *x, int vocab_size, msgl_err *err)
{
    int rc = check_tokens("allowed_token_ids", x->allowed, x->num_allowed, vocab_size, err);
    if (rc == 0) {
        rc = check_tokens("dry_sequence_breakers", x->breakers, x->num_breakers, vocab_size, err);
    }
    if (rc != 0) return rc;
    return check_tokens("token_ids_logprob", x->listed, x->num_listed, vocab_size, err);
}

static int check_banned(const msgl_req_extra *x, int vocab_size, msgl_err *err)
{
    int rc = 0;
    for (int32_t i = 0, len; i < x->num_banned && rc == 0; i += len) {
        len = x->banned[i++];
        if (len < 1 || len > x->num_banned - i) {
            return msgl__err_set(err, MSGL_EINVAL, "bad_words has a sequence of %d tokens", len);
        }
        for (int32_t k = 0; k < len && rc == 0; k++) {
            rc = check_token("bad_words", x->banned[i + k], vocab_size, err);
        }
    }
    return rc;
}

static int check_count(const char *field, int64_t n, int64_t most, msgl_err *err)
{
    if (n >= 0 && n <= most) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "%s has %lld entries; allowed: at most %lld", field,
                         (long long)n, (long long)most);
}

int msgl__req_extra_create(const msgl_bias *bias, int64_t num_bias, int vocab_size,
                           msgl_req_extra **out, msgl_err *err)
{
    return msgl__req_extra_create_with(&(msgl_req_extra_parts){.bias = bias, .num_bias = num_bias},
                                       vocab_size, out, err);
}

static size_t num_ids(const msgl_req_extra_parts *p)
{
    return (size_t)p->num_allowed + (size_t)p->num_banned + (size_t)p->num_breakers +
           (size_t)p->num_listed;
}

static size_t num_embed_values(const msgl_req_extra_parts *p)
{
    return (size_t)p->num_embeds * (size_t)p->embed_dim;
}

static int32_t *copy_ids(const int32_t *from, int64_t n, int32_t *to)
{
    if (n > 0) memcpy(to, from, (size_t)n * sizeof *to);
    return to + n;
}

// p's sequences, grammar and bias into a block that has room for them.
static void fill(msgl_req_extra *x, const msgl_req_extra_parts *p, size_t grammar_len,
                 size_t stages_len)
{
    int32_t *allowed = (int32_t *)&x->bias[p->num_bias];
    int32_t *banned = allowed + p->num_allowed, *breakers = banned + p->num_banned;
    int32_t *listed = breakers + p->num_breakers;
    float *embeds = (float *)(listed + p->num_listed);
    char *text = (char *)(embeds + num_embed_values(p));
    *x = (msgl_req_extra){.num_bias = (int32_t)p->num_bias,
                          .grammar_kind = p->grammar_kind,
                          .grammar = text,
                          .stages = text + grammar_len + 1,
                          .num_allowed = (int32_t)p->num_allowed,
                          .num_banned = (int32_t)p->num_banned,
                          .num_breakers = (int32_t)p->num_breakers,
                          .num_listed = (int32_t)p->num_listed,
                          .pair_from = p->pair_from,
                          .token_task = p->token_task,
                          .pool_from = p->pool_from,
                          .allowed = allowed,
                          .banned = banned,
                          .breakers = breakers,
                          .listed = listed,
                          .hidden = p->hidden,
                          .num_embeds = (int32_t)p->num_embeds,
                          .embed_dim = (int32_t)p->embed_dim,
                          .embeds = embeds};
    atomic_init(&x->refs, 1);
    const size_t n = (size_t)p->num_bias;
    if (n > 0) memcpy(x->bias, p->bias, n * sizeof *p->bias);
    if (n > 1) qsort(x->bias, n, sizeof x->bias[0], token_order);
    int32_t *to = copy_ids(p->allowed, p->num_allowed, allowed);
    to = copy_ids(p->banned, p->num_banned, to);
    to = copy_ids(p->breakers, p->num_breakers, to);
    (void)copy_ids(p->listed, p->num_listed, to);
    if (p->num_embeds > 0) memcpy(embeds, p->embeds, num_embed_values(p) * sizeof *embeds);
    if (grammar_len > 0) memcpy(text, p->grammar, grammar_len);
    text[grammar_len] = '\0';
    if (stages_len > 0) memcpy(text + grammar_len + 1, p->stages, stages_len);
    text[grammar_len + 1 + stages_len] = '\0';
}

static int check_counts(const msgl_req_extra_parts *p, msgl_err *err)
{
    int rc = check_count("logit_bias", p->num_bias, MSGL_MAX_LOGIT_BIAS, err);
    if (rc == 0) {
        rc = check_count("allowed_token_ids", p->num_allowed, MSGL_MAX_ALLOWED_TOKENS, err);
    }
    if (rc == 0) rc = check_count("bad_words", p->num_banned, MSGL_MAX_BANNED, err);
    if (rc == 0) {
        rc = check_count("dry_sequence_breakers", p->num_breakers, MSGL_MAX_DRY_BREAKERS, err);
    }
    if (rc == 0) rc = check_count("token_ids_logprob", p->num_listed, MSGL_MAX_LISTED, err);
    if (rc != 0 || p->num_embeds == 0) return rc;
    if (p->num_embeds > 0 && p->embed_dim > 0 &&
        p->num_embeds <= MSGL_MAX_EMBED_VALUES / p->embed_dim) {
        return 0;
    }
    return msgl__err_set(
        err, MSGL_EINVAL, "input_embeds has %lld times %lld values; allowed: at most %lld",
        (long long)p->num_embeds, (long long)p->embed_dim, (long long)MSGL_MAX_EMBED_VALUES);
}

int msgl__req_extra_create_with(const msgl_req_extra_parts *p, int vocab_size, msgl_req_extra **out,
                                msgl_err *err)
{
    *out = NULL;
    const bool no_grammar = p->grammar_kind == MSGL_GRAMMAR_NONE;
    const size_t stages_len = p->stages == NULL ? 0 : strlen(p->stages);
    if (p->num_bias == 0 && no_grammar && p->num_allowed == 0 && p->num_banned == 0 &&
        p->num_breakers == 0 && stages_len == 0 && p->pair_from == 0 && p->token_task == 0 &&
        p->pool_from == 0 && p->num_listed == 0 && !p->hidden && p->num_embeds == 0) {
        return 0;
    }
    int rc = check_counts(p, err);
    if (rc != 0) return rc;
    const size_t len = no_grammar || p->grammar == NULL ? 0 : strlen(p->grammar);
    msgl_req_extra *x = msgl__malloc(
        sizeof *x + (size_t)p->num_bias * sizeof x->bias[0] + num_ids(p) * sizeof(int32_t) +
        num_embed_values(p) * sizeof(float) + len + 1 + stages_len + 1);
    if (x == NULL)
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory for the fields of a request");
    fill(x, p, len, stages_len);
    rc = check_bias(x->bias, x->num_bias, vocab_size, err);
    if (rc == 0) rc = check_lists(x, vocab_size, err);
    if (rc == 0) rc = check_banned(x, vocab_size, err);
    if (rc != 0) {
        msgl__free(x);
        return rc;
    }
    *out = x;
    return 0;
}

msgl_req_extra_parts msgl__req_extra_parts_of(const msgl_req_extra *x)
{
    if (x == NULL) return (msgl_req_extra_parts){0};
    return (msgl_req_extra_parts){.bias = x->bias,
                                  .num_bias = x->num_bias,
                                  .grammar_kind = x->grammar_kind,
                                  .grammar = x->grammar,
                                  .stages = x->stages,
                                  .allowed = x->allowed,
                                  .num_allowed = x->num_allowed,
                                  .banned = x->banned,
                                  .num_banned = x->num_banned,
                                  .breakers = x->breakers,
                                  .num_breakers = x->num_breakers,
                                  .pair_from = x->pair_from,
                                  .token_task = x->token_task,
                                  .pool_from = x->pool_from,
                                  .listed = x->listed,
                                  .num_listed = x->num_listed,
                                  .hidden = x->hidden,
                                  .embeds = x->embeds,
                                  .num_embeds = x->num_embeds,
                                  .embed_dim = x->embed_dim};
}

int msgl__req_extra_check(const msgl_req_extra *x, int vocab_size, msgl_err *err)
{
    if (x == NULL) return 0;
    int rc = 0;
    if (x->num_bias > 0) {
        rc = check_token("logit_bias", x->bias[x->num_bias - 1].token, vocab_size, err);
    }
    if (rc == 0) rc = check_lists(x, vocab_size, err);
    return rc == 0 ? check_banned(x, vocab_size, err) : rc;
}

bool msgl__req_extra_constrains(const msgl_req_extra *x)
{
    return x != NULL && (x->grammar_kind != MSGL_GRAMMAR_NONE || *x->stages != '\0');
}

bool msgl__req_extra_answers(const msgl_req_extra *x)
{
    return x != NULL &&
           (x->num_bias > 0 || x->num_allowed > 0 || x->num_banned > 0 || x->num_breakers > 0 ||
            x->num_listed > 0 || x->hidden || msgl__req_extra_constrains(x));
}

int32_t msgl__req_extra_row_values(const msgl_req_extra *x, int32_t hidden_size)
{
    return x == NULL ? 0 : x->num_listed + (x->hidden ? hidden_size : 0);
}

size_t msgl__req_extra_bytes(const msgl_req_extra *x)
{
    if (x == NULL) return 0;
    const msgl_req_extra_parts p = msgl__req_extra_parts_of(x);
    return sizeof *x + (size_t)x->num_bias * sizeof x->bias[0] + num_ids(&p) * sizeof(int32_t) +
           num_embed_values(&p) * sizeof(float) + strlen(x->grammar) + 1 + strlen(x->stages) + 1;
}

msgl_req_extra *msgl__req_extra_ref(msgl_req_extra *x)
{
    if (x != NULL) atomic_fetch_add_explicit(&x->refs, 1, memory_order_relaxed);
    return x;
}

void msgl__req_extra_unref(msgl_req_extra *x)
{
    if (x == NULL) return;
    // The last one must see what the others did with the block before it frees it.
    if (atomic_fetch_sub_explicit(&x->refs, 1, memory_order_acq_rel) == 1) msgl__free(x);
}
