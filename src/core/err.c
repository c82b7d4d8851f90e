// SPDX-License-Identifier: Apache-2.0
#include "core/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// What files and clients wrote is quoted in errors: it stays one line.
static void make_line(char *text)
{
    for (char *p = text; *p != '\0'; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = ' ';
    }
}

int msgl__err_set(msgl_err *err, int code, const char *fmt, ...)
{
    if (err == NULL) return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    make_line(err->text);
    return code;
}

int msgl__err_prefix(msgl_err *err, int code, const char *fmt, ...)
{
    if (err == NULL) return code;
    char old[MSGL_ERR_TEXT_SIZE];
    memcpy(old, err->text, sizeof old);
    old[sizeof old - 1] = '\0';
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n + 2 < sizeof err->text) {
        const int room = (int)sizeof err->text - n - 3;
        snprintf(err->text + n, sizeof err->text - (size_t)n, ": %.*s", room > 0 ? room : 0, old);
    }
    make_line(err->text);
    return err->code;
}

const char *msgl__status_text(int code)
{
    switch (code) {
#define MSGL_STATUS_CASE(name, value, text)                                                        \
    case value: return text;
        MSGL_STATUS_MAP(MSGL_STATUS_CASE)
#undef MSGL_STATUS_CASE
    default: return "unknown status";
    }
}
