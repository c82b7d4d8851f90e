// SPDX-License-Identifier: Apache-2.0
#include "api/logit_bias.h"

#include <string.h>

// A token id in decimal digits, without sign, blanks or leading zeros, so that one token has one
// key. -1: not one.
static int64_t key_token(const char *key)
{
    const size_t n = strspn(key, "0123456789");
    if (n == 0 || n > 9 || key[n] != '\0' || (key[0] == '0' && n > 1)) return -1;
    int64_t id = 0;
    for (size_t i = 0; i < n; i++) id = 10 * id + (key[i] - '0');
    return id;
}

// A value that is no number fails here, one out of range in msgl__req_extra_create.
static int add_entry(int64_t token, const json_t *value, msgl_bias *out, msgl_err *err)
{
    if (!json_is_number(value)) {
        return msgl__err_set(
            err, MSGL_EINVAL, "logit_bias of token %lld is no number; allowed: -%g to %g",
            (long long)token, (double)MSGL_LOGIT_BIAS_RANGE, (double)MSGL_LOGIT_BIAS_RANGE);
    }
    *out = (msgl_bias){(int32_t)token, (float)json_number_value(value)};
    return 0;
}

static int parse_object(const json_t *v, msgl_bias *out, msgl_err *err)
{
    const char *key;
    json_t *value;
    int rc = 0, n = 0;
    json_object_foreach((json_t *)v, key, value)
    {
        const int64_t token = key_token(key);
        if (token < 0) {
            return msgl__err_set(err, MSGL_EINVAL,
                                 "logit_bias has the key \"%.40s\"; allowed: token ids, as in "
                                 "{\"50256\": -100}",
                                 key);
        }
        rc = add_entry(token, value, &out[n++], err);
        if (rc != 0) return rc;
    }
    return 0;
}

static int parse_pairs(const json_t *v, msgl_bias *out, msgl_err *err)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *pair = json_array_get(v, i), *id = json_array_get(pair, 0);
        const int64_t token = json_is_integer(id) ? json_integer_value(id) : -1;
        if (json_array_size(pair) != 2 || token < 0 || token >= INT32_MAX) {
            return msgl__err_set(err, MSGL_EINVAL,
                                 "logit_bias[%zu] is no pair; allowed: a token id and a number, as "
                                 "in [50256, -100]",
                                 i);
        }
        const int rc = add_entry(token, json_array_get(pair, 1), &out[i], err);
        if (rc != 0) return rc;
    }
    return 0;
}

int msgl__logit_bias_parse(const json_t *v, int vocab_size, msgl_req_extra **out, msgl_err *err)
{
    *out = NULL;
    if (v == NULL || json_is_null(v)) return 0;
    if (!json_is_object(v) && !json_is_array(v)) {
        return msgl__err_set(
            err, MSGL_EINVAL,
            "logit_bias is neither object nor array; allowed: an object from token ids to numbers, "
            "or an array of pairs of them");
    }
    const size_t n = json_is_object(v) ? json_object_size(v) : json_array_size(v);
    msgl_bias bias[MSGL_MAX_LOGIT_BIAS];
    int rc = 0;
    if (n <= MSGL_MAX_LOGIT_BIAS) {
        rc = json_is_object(v) ? parse_object(v, bias, err) : parse_pairs(v, bias, err);
    }
    return rc != 0 ? rc : msgl__req_extra_create(bias, (int64_t)n, vocab_size, out, err);
}
