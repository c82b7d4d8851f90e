// SPDX-License-Identifier: Apache-2.0
#include "text/dry_breakers.h"

#include <stdbool.h>
#include <string.h>

#include "core/attributes.h"

static const char *const USUAL[] = {"\n", ":", "\"", "*"};

static bool has(const char *text, size_t len, const char *part, size_t part_len)
{
    for (size_t i = 0; part_len > 0 && i + part_len <= len; i++) {
        if (memcmp(text + i, part, part_len) == 0) return true;
    }
    return false;
}

int msgl__dry_breakers(const msgl_tokenizer *t, const char *const *texts, int count, msgl_ids *out,
                       int *at, msgl_err *err)
{
    enum { LONGEST = 512 }; // bytes of a token that are looked at
    const char *const *const all = texts != NULL ? texts : USUAL;
    const int n = texts != NULL ? count : (int)MSGL_COUNT(USUAL);
    bool found[MSGL_MAX_BREAKERS] = {0};
    char text[LONGEST];
    *at = n;
    if (n > MSGL_MAX_BREAKERS) {
        return msgl__err_set(err, MSGL_EINVAL, "there are %d; allowed: at most %d", n,
                             MSGL_MAX_BREAKERS);
    }
    const int vocab_size = n > 0 ? msgl__tokenizer_vocab_size(t) : 0;
    for (int32_t id = 0; id < vocab_size; id++) {
        const int len = msgl__tokenizer_token_bytes(t, id, text, sizeof text);
        const size_t known = len < 0 ? 0 : (size_t)len < sizeof text ? (size_t)len : sizeof text;
        bool any = false;
        for (int i = 0; i < n; i++) {
            if (!has(text, known, all[i], strlen(all[i]))) continue;
            any = found[i] = true;
        }
        if (any && msgl__ids_push(out, id) != 0) {
            return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        }
    }
    for (*at = 0; *at < n && (found[*at] || texts == NULL); ++*at) {
    }
    if (*at == n) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "no token of the model has it in its text; allowed: what lies within one "
                         "token");
}
