// SPDX-License-Identifier: Apache-2.0
#include "front/keys.h"

#include <string.h>
#include <strings.h>

#include "core/mem.h"
#include "utils/file.h"

enum { FILE_MAX = 1 << 20 };

void msgl__keys_free(msgl_keys *k)
{
    for (int i = 0; i < k->count; i++) msgl__free(k->all[i]);
    msgl__free(k->all);
    *k = (msgl_keys){0};
}

int msgl__keys_add(msgl_keys *k, const char *key, size_t len, msgl_err *err)
{
    bool printable = len > 0;
    for (size_t i = 0; i < len; i++) printable = printable && key[i] > ' ' && key[i] < 0x7f;
    // Not shown: it is a secret all the same.
    if (!printable || len > MSGL_KEY_MAX_LEN) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "API key %d is not valid; allowed: 1 to %d printable ASCII "
                             "characters without blanks",
                             k->count + 1, MSGL_KEY_MAX_LEN);
    }
    if (k->count == MSGL_KEYS_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT, "there are more than %d API keys", MSGL_KEYS_MAX);
    }
    char **all = msgl__reallocarray(k->all, (size_t)k->count + 1, sizeof *all);
    if (all != NULL) k->all = all;
    char *copy = all == NULL ? NULL : msgl__calloc(1, len + 1);
    if (copy == NULL) return msgl__err_set(err, MSGL_ENOMEM, "API keys: out of memory");
    memcpy(copy, key, len);
    k->all[k->count++] = copy;
    return 0;
}

int msgl__keys_read(msgl_keys *k, const char *path, msgl_err *err)
{
    char *text;
    size_t len;
    const int before = k->count;
    int rc = msgl__file_check_private(path, "API keys", err);
    if (rc == 0) rc = msgl__file_read(path, FILE_MAX, &text, &len, err);
    if (rc != 0) return rc;
    for (const char *line = text, *end = text + len; line < end && rc == 0;) {
        const char *eol = memchr(line, '\n', (size_t)(end - line));
        if (eol == NULL) eol = end;
        const char *to = eol;
        while (line < to && strchr(" \t\r", *line) != NULL) line++;
        while (to > line && strchr(" \t\r", to[-1]) != NULL) to--;
        if (to > line && *line != '#') rc = msgl__keys_add(k, line, (size_t)(to - line), err);
        line = eol + 1;
    }
    msgl__free(text);
    if (rc == 0 && k->count == before) {
        rc = msgl__err_set(err, MSGL_EINVAL, "%s has no API key", msgl__path_shown(path));
    }
    return rc;
}

// No early end, and no branch on what either has: an answer's time tells nothing of a key.
static unsigned differs(const char *key, const char *given, size_t len)
{
    const size_t n = strlen(key);
    volatile unsigned diff = n != len;
    for (size_t i = 0; i < len; i++) {
        diff |= (unsigned char)given[i] ^ (unsigned char)key[i < n ? i : n];
    }
    return diff;
}

int msgl__keys_find(const msgl_keys *k, const char *given, size_t len)
{
    if (given == NULL || len > MSGL_KEY_MAX_LEN) return 0; // no key is, and each would be compared
    unsigned found = 0;
    for (int i = 0; i < k->count; i++) {
        const unsigned same = differs(k->all[i], given, len) == 0;
        found = (found & (same - 1)) | ((0u - same) & (unsigned)(i + 1));
    }
    return (int)found;
}

int msgl__keys_find_bearer(const msgl_keys *k, const char *authorization, size_t len)
{
    static const char scheme[] = "Bearer ";
    const size_t n = sizeof scheme - 1;
    if (authorization == NULL || len <= n || strncasecmp(authorization, scheme, n) != 0) {
        return 0;
    }
    const char *given = authorization + n;
    len -= n;
    while (len > 0 && *given == ' ') given++, len--;
    return msgl__keys_find(k, given, len);
}
