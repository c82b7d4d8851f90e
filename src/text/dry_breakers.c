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

// Of a text that only several tokens spell, the last one stops repeats, as in the original DRY
// (text-generation-webui, extensions of sampler "dry"): the one behind a letter, where most
// breakers stand. Example: " ###" as " #" "##" breaks at every "##".
static int add_last_token(const msgl_tokenizer *t, const char *text, msgl_ids *out, msgl_err *err)
{
    char behind_letter[MSGL_MAX_BREAKER_BYTES + 2];
    msgl_ids ids = {0};
    const size_t len = strlen(text);
    if (len == 0 || len > MSGL_MAX_BREAKER_BYTES) {
        return msgl__err_set(err, MSGL_EINVAL, "it has %zu bytes; allowed: 1 to %d", len,
                             MSGL_MAX_BREAKER_BYTES);
    }
    behind_letter[0] = 'a';
    memcpy(behind_letter + 1, text, len);
    int rc = msgl__tokenizer_encode(t, behind_letter, len + 1, NULL, &ids, err);
    const int32_t last = ids.len > 0 ? ids.data[ids.len - 1] : -1;
    bool there = last < 0;
    for (size_t i = 0; i < out->len && !there; i++) there = out->data[i] == last;
    if (rc == 0 && !there && msgl__ids_push(out, last) != 0) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    msgl__ids_free(&ids);
    return rc;
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
    int rc = 0;
    for (*at = 0; *at < n; ++*at) {
        if (!found[*at] && texts != NULL) rc = add_last_token(t, all[*at], out, err);
        if (rc != 0) return rc;
    }
    return 0;
}
