// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/err.h"
#include "utils/json.h"
#include "utils/json_write.h"
#include "utils/utf8.h"

size_t msgl__json_escape(uint32_t cp, bool ascii, char out[12])
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    static const char hex[] = "0123456789abcdef";
    if (cp >= 0x20 && cp != '"' && cp != '\\' && (!ascii || cp < 0x7f)) return 0;
    const char *known = cp < 0x80 && cp != 0 ? strchr(from, (char)cp) : NULL;
    out[0] = '\\';
    if (known != NULL) {
        out[1] = to[known - from];
        return 2;
    }
    const bool pair = cp > 0xffff;
    const uint32_t units[2] = {pair ? 0xd7c0 + (cp >> 10) : cp, 0xdc00 | (cp & 0x3ff)};
    size_t n = 0;
    for (int k = 0; k < 1 + pair; k++) {
        out[n++] = '\\';
        out[n++] = 'u';
        for (int shift = 12; shift >= 0; shift -= 4) out[n++] = hex[units[k] >> shift & 0xf];
    }
    return n;
}

static int put_string(msgl_strbuf *out, const char *s, size_t len, bool ascii)
{
    int rc = msgl__strbuf_addc(out, '"');
    size_t run = 0; // start of what is copied as it is
    for (size_t i = 0; i < len && rc == 0;) {
        const unsigned char c = (unsigned char)s[i];
        const size_t n = c < 0x80 ? 1 : msgl__utf8_char(s + i, len - i);
        char escape[12] = "\xef\xbf\xbd";
        size_t at = i, e = 3;
        if (n > 0) e = msgl__json_escape(msgl__utf8_next(s, &at), ascii, escape);
        if (e > 0) {
            rc = msgl__strbuf_add(out, s + run, i - run);
            if (rc == 0) rc = msgl__strbuf_add(out, escape, e);
            run = i + (n > 0 ? n : 1);
        }
        i += n > 0 ? n : 1;
    }
    if (rc == 0) rc = msgl__strbuf_add(out, s + run, len - run);
    return rc == 0 ? msgl__strbuf_addc(out, '"') : rc;
}

int msgl__json_put_str(msgl_strbuf *out, const char *s, size_t len)
{
    return put_string(out, s, len, false);
}

// With a fraction or an exponent, so that a reader finds a real again.
static int put_real(msgl_strbuf *out, double v, int precision)
{
    char text[40];
    int digits = precision > 0 ? precision : 15;
    do {
        (void)snprintf(text, sizeof text, "%.*g", digits, v);
    } while (precision == 0 && digits++ < 17 && strtod(text, NULL) != v);
    int rc = msgl__strbuf_adds(out, text);
    if (rc == 0 && strpbrk(text, ".e") == NULL) rc = msgl__strbuf_adds(out, ".0");
    return rc;
}

static int put_value(msgl_strbuf *out, const json_t *v, size_t flags, size_t level);

// What stands before an element, or before the bracket behind the last one.
static int put_gap(msgl_strbuf *out, size_t flags, size_t level)
{
    const size_t indent = flags & JSON_MAX_INDENT;
    int rc = indent > 0 ? msgl__strbuf_addc(out, '\n') : 0;
    for (size_t i = 0; i < indent * level && rc == 0; i++) rc = msgl__strbuf_addc(out, ' ');
    return rc;
}

static int put_comma(msgl_strbuf *out, size_t i, size_t flags, size_t level)
{
    const bool spaced = (flags & (JSON_COMPACT | JSON_MAX_INDENT)) == 0;
    const int rc = i == 0 ? 0 : msgl__strbuf_adds(out, spaced ? ", " : ",");
    return rc == 0 ? put_gap(out, flags, level) : rc;
}

static int put_array(msgl_strbuf *out, const json_t *v, size_t flags, size_t level)
{
    const size_t n = json_array_size(v);
    int rc = msgl__strbuf_addc(out, '[');
    for (size_t i = 0; i < n && rc == 0; i++) {
        rc = put_comma(out, i, flags, level + 1);
        if (rc == 0) rc = put_value(out, json_array_get(v, i), flags, level + 1);
    }
    if (rc == 0 && n > 0) rc = put_gap(out, flags, level);
    return rc == 0 ? msgl__strbuf_addc(out, ']') : rc;
}

static int put_object(msgl_strbuf *out, const json_t *v, size_t flags, size_t level)
{
    json_t *o = (json_t *)v, *member; // jansson's iteration wants it so, and changes nothing
    const char *key;
    size_t n, i = 0;
    int rc = msgl__strbuf_addc(out, '{');
    json_object_keylen_foreach(o, key, n, member)
    {
        if (rc == 0) rc = put_comma(out, i++, flags, level + 1);
        if (rc == 0) rc = put_string(out, key, n, (flags & JSON_ENSURE_ASCII) != 0);
        if (rc == 0) rc = msgl__strbuf_adds(out, flags & JSON_COMPACT ? ":" : ": ");
        if (rc == 0) rc = put_value(out, member, flags, level + 1);
        if (rc != 0) return rc;
    }
    if (rc == 0 && i > 0) rc = put_gap(out, flags, level);
    return rc == 0 ? msgl__strbuf_addc(out, '}') : rc;
}

static int put_value(msgl_strbuf *out, const json_t *v, size_t flags, size_t level)
{
    const char *digits = msgl__json_digits(v);
    if (digits != NULL) return msgl__strbuf_adds(out, digits);
    switch (json_typeof(v)) {
    case JSON_NULL: return msgl__strbuf_adds(out, "null");
    case JSON_TRUE: return msgl__strbuf_adds(out, "true");
    case JSON_FALSE: return msgl__strbuf_adds(out, "false");
    case JSON_INTEGER: return msgl__strbuf_addf(out, "%" PRId64, (int64_t)json_integer_value(v));
    case JSON_REAL: return put_real(out, json_real_value(v), (int)(flags >> 11 & 31));
    case JSON_STRING:
        return put_string(out, json_string_value(v), json_string_length(v),
                          (flags & JSON_ENSURE_ASCII) != 0);
    case JSON_ARRAY: return put_array(out, v, flags, level);
    case JSON_OBJECT: return put_object(out, v, flags, level);
    }
    return MSGL_EINTERNAL;
}

int msgl__json_put(msgl_strbuf *out, const json_t *v, size_t flags)
{
    return v == NULL ? MSGL_ENOMEM : put_value(out, v, flags, 0);
}

char *msgl__json_text(const json_t *v, size_t flags)
{
    msgl_strbuf out;
    msgl__strbuf_init(&out, SIZE_MAX / 2);
    if (msgl__json_put(&out, v, flags) == 0) return msgl__strbuf_take(&out);
    msgl__strbuf_free(&out);
    return NULL;
}
