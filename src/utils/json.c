// SPDX-License-Identifier: Apache-2.0
#include "utils/json.h"

#include <stdint.h>
#include <string.h>

#include "core/mem.h"
#include "utils/file.h"
#include "core/hex.h"
#include "utils/utf8.h"

int msgl__json_parse(const char *name, const char *text, size_t len, size_t flags, json_t **out,
                     msgl_err *err)
{
    json_error_t why;
    int rc;
    *out = msgl__json_loadb(text, len, flags | MSGL_JSON_PYTHON, &why, &rc);
    if (rc == 0) return 0;
    if (rc != MSGL_EFORMAT) return msgl__err_set(err, rc, "%s: %s", name, msgl__status_text(rc));
    char shown[120];
    return msgl__err_set(err, rc, "%s: line %d column %d: %s", name, why.line, why.column,
                         msgl__printable(why.text, shown, sizeof shown));
}

static int load(const char *path, size_t max_bytes, size_t flags, json_type type, json_t **out,
                msgl_err *err)
{
    char *data = NULL;
    size_t len = 0;
    *out = NULL;
    int rc = msgl__file_read(path, max_bytes, &data, &len, err);
    if (rc == 0) rc = msgl__json_parse(msgl__path_shown(path), data, len, flags, out, err);
    msgl__free(data);
    if (rc != 0 || json_typeof(*out) == type) return rc;
    json_decref(*out);
    *out = NULL;
    return msgl__err_set(err, MSGL_EFORMAT, "%s: expected a JSON %s", msgl__path_shown(path),
                         type == JSON_OBJECT ? "object" : "array");
}

int msgl__json_load(const char *path, size_t max_bytes, size_t flags, json_t **out, msgl_err *err)
{
    return load(path, max_bytes, flags, JSON_OBJECT, out, err);
}

int msgl__json_load_array(const char *path, size_t max_bytes, size_t flags, json_t **out,
                          msgl_err *err)
{
    return load(path, max_bytes, flags, JSON_ARRAY, out, err);
}

// Four hex digits; -1: not that.
static int32_t hex4(const char *p, size_t n)
{
    int32_t v = 0;
    if (n < 4) return -1;
    for (size_t i = 0; i < 4; i++) {
        const int digit = msgl__hex_digit(p[i]);
        if (digit < 0) return -1;
        v = v << 4 | digit;
    }
    return v;
}

// The character of \uXXXX (and a second one for the low surrogate) at p; *used counts what was read
// behind the backslash. Returns its bytes in out, 0 for a malformed or lone one.
static size_t unicode_escape(const char *p, size_t n, char out[4], size_t *used)
{
    int32_t cp = hex4(p + 1, n - 1);
    *used = 5;
    if (cp < 0 || (cp >= 0xdc00 && cp < 0xe000)) return 0;
    if (cp >= 0xd800 && cp < 0xdc00) {
        const int32_t low = n >= 11 && p[5] == '\\' && p[6] == 'u' ? hex4(p + 7, n - 7) : -1;
        if (low < 0xdc00 || low >= 0xe000) return 0;
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        *used = 11;
    }
    return msgl__utf8_put((uint32_t)cp, out);
}

size_t msgl__json_unescape(const char *p, size_t n, char out[4], size_t *used)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (p[0] == 'u') return unicode_escape(p, n, out, used);
    const char *at = p[0] != '\0' ? strchr(letters, p[0]) : NULL;
    *used = 1;
    if (at == NULL) return 0;
    out[0] = values[at - letters];
    return 1;
}
