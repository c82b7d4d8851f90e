// SPDX-License-Identifier: Apache-2.0
#include "text/bad_words.h"

#include <stdbool.h>
#include <string.h>

// Appends the tokens of `text`, their number first. *at: where they begin.
static int add(const msgl_tokenizer *t, const char *text, size_t len, msgl_ids *out, size_t *at,
               msgl_err *err)
{
    if (msgl__ids_push(out, 0) != 0) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    *at = out->len;
    const int rc = msgl__tokenizer_encode(t, text, len, NULL, out, err);
    if (rc == 0 && out->len == *at) {
        return msgl__err_set(err, MSGL_EINVAL, "it has no tokens");
    }
    out->data[*at - 1] = (int32_t)(out->len - *at);
    return rc;
}

int msgl__bad_word_add(const msgl_tokenizer *t, const char *word, size_t len, msgl_ids *out,
                       msgl_err *err)
{
    char spaced[MSGL_MAX_BAD_WORD_BYTES + 1];
    const size_t blanks = strspn(word, " \t\r\n"), n = len - blanks;
    if (blanks >= len || n >= sizeof spaced) {
        return msgl__err_set(err, MSGL_EINVAL, "it has %zu bytes behind blanks; allowed: 1 to %d",
                             blanks >= len ? 0 : n, MSGL_MAX_BAD_WORD_BYTES);
    }
    spaced[0] = ' ';
    memcpy(spaced + 1, word + blanks, n);
    size_t first, second;
    int rc = add(t, spaced + 1, n, out, &first, err);
    if (rc != 0) return rc;
    const size_t end = out->len;
    rc = add(t, spaced, n + 1, out, &second, err);
    if (rc != 0) return rc;
    const bool other = out->data[second] != out->data[first] && out->len - second == end - first;
    if (!other) out->len = end;
    return 0;
}
