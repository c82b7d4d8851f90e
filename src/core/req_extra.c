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

static int check_token(int32_t token, int vocab_size, msgl_err *err)
{
    if (token >= 0 && token < vocab_size) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "logit_bias names token %d; allowed: 0 to %d", token,
                         vocab_size - 1);
}

static int check_bias(const msgl_bias *sorted, int32_t n, int vocab_size, msgl_err *err)
{
    for (int32_t i = 0; i < n; i++) {
        const msgl_bias *b = &sorted[i];
        const int rc = check_token(b->token, vocab_size, err);
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

int msgl__req_extra_create(const msgl_bias *bias, int64_t num_bias, int vocab_size,
                           msgl_req_extra **out, msgl_err *err)
{
    return msgl__req_extra_create_with(bias, num_bias, vocab_size, MSGL_GRAMMAR_NONE, NULL, out,
                                       err);
}

int msgl__req_extra_create_with(const msgl_bias *bias, int64_t num_bias, int vocab_size,
                                msgl_grammar_kind kind, const char *grammar, msgl_req_extra **out,
                                msgl_err *err)
{
    *out = NULL;
    if (num_bias == 0 && kind == MSGL_GRAMMAR_NONE) return 0;
    if (num_bias < 0 || num_bias > MSGL_MAX_LOGIT_BIAS) {
        return msgl__err_set(err, MSGL_EINVAL, "logit_bias has %lld entries; allowed: at most %d",
                             (long long)num_bias, MSGL_MAX_LOGIT_BIAS);
    }
    const size_t n = (size_t)num_bias;
    const size_t len = kind == MSGL_GRAMMAR_NONE || grammar == NULL ? 0 : strlen(grammar);
    msgl_req_extra *x = msgl__malloc(sizeof *x + n * sizeof x->bias[0] + len + 1);
    if (x == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for logit_bias");
    char *text = (char *)&x->bias[n];
    if (len > 0) memcpy(text, grammar, len);
    text[len] = '\0';
    x->grammar_kind = kind;
    x->grammar = text;
    atomic_init(&x->refs, 1);
    x->num_bias = (int32_t)num_bias;
    if (n > 0) memcpy(x->bias, bias, n * sizeof x->bias[0]);
    if (n > 1) qsort(x->bias, n, sizeof x->bias[0], token_order);
    const int rc = check_bias(x->bias, x->num_bias, vocab_size, err);
    if (rc != 0) {
        msgl__free(x);
        return rc;
    }
    *out = x;
    return 0;
}

int msgl__req_extra_check(const msgl_req_extra *x, int vocab_size, msgl_err *err)
{
    if (x == NULL || x->num_bias == 0) return 0;
    return check_token(x->bias[x->num_bias - 1].token, vocab_size, err);
}

size_t msgl__req_extra_bytes(const msgl_req_extra *x)
{
    if (x == NULL) return 0;
    return sizeof *x + (size_t)x->num_bias * sizeof x->bias[0] + strlen(x->grammar) + 1;
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
