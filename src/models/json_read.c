// SPDX-License-Identifier: Apache-2.0
#include "models/json_read.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"

const char *msgl__printable(const char *s, char *buf, size_t size)
{
    size_t n = 0;
    for (; s[n] != '\0' && n + 1 < size; n++) {
        const unsigned char c = (unsigned char)s[n];
        buf[n] = c < 0x20 || c == 0x7f ? '?' : (char)c;
    }
    buf[n] = '\0';
    return buf;
}

const char *msgl__path_tail(const char *path)
{
    const size_t n = strlen(path), most = 80;
    if (n <= most) return path;
    const char *tail = path + n - most, *slash = strchr(tail, '/');
    return slash != NULL ? slash + 1 : tail;
}

// The whole file, to be freed with msgl__free.
static int read_file(const char *path, size_t max_bytes, char **out, size_t *out_len, msgl_err *err)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        const int code = errno == ENOENT || errno == ENOTDIR ? MSGL_ENOENT : MSGL_EIO;
        return msgl__err_set(err, code, "%s: %s", msgl__path_tail(path), strerror(errno));
    }
    struct stat st;
    char *data = NULL;
    int code = 0;
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode)) {
        code = msgl__err_set(err, MSGL_EIO, "%s: not a regular file", msgl__path_tail(path));
    } else if ((uint64_t)st.st_size > max_bytes) {
        code = msgl__err_set(err, MSGL_ELIMIT, "%s: found %lld bytes, allowed %zu",
                             msgl__path_tail(path), (long long)st.st_size, max_bytes);
    } else if ((data = msgl__malloc((size_t)st.st_size)) == NULL) {
        code = msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", msgl__path_tail(path));
    } else if (fread(data, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
        code = msgl__err_set(err, MSGL_EIO, "%s: cannot read", msgl__path_tail(path));
    }
    fclose(f);
    if (code != 0) {
        msgl__free(data);
        return code;
    }
    *out = data;
    *out_len = (size_t)st.st_size;
    return 0;
}

int msgl__json_load(const char *path, size_t max_bytes, json_t **out, msgl_err *err)
{
    char *data = NULL;
    size_t len = 0;
    const int code = read_file(path, max_bytes, &data, &len, err);
    if (code != 0) return code;
    json_error_t je;
    json_t *root = json_loadb(data, len, 0, &je);
    msgl__free(data);
    if (root == NULL) {
        char text[120];
        return msgl__err_set(err, MSGL_EFORMAT, "%s:%d: %s", msgl__path_tail(path), je.line,
                             msgl__printable(je.text, text, sizeof text));
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return msgl__err_set(err, MSGL_EFORMAT, "%s: the top level is not a JSON object",
                             msgl__path_tail(path));
    }
    *out = root;
    return 0;
}

const char *msgl__json_show(const json_t *v, char *buf, size_t size)
{
    char text[48];
    switch (v == NULL ? JSON_NULL : json_typeof(v)) {
    case JSON_INTEGER: snprintf(buf, size, "%lld", (long long)json_integer_value(v)); break;
    case JSON_REAL: snprintf(buf, size, "%.10g", json_real_value(v)); break;
    case JSON_STRING:
        snprintf(buf, size, "\"%s\"", msgl__printable(json_string_value(v), text, sizeof text));
        break;
    case JSON_TRUE: snprintf(buf, size, "true"); break;
    case JSON_FALSE: snprintf(buf, size, "false"); break;
    case JSON_ARRAY: snprintf(buf, size, "a list of %zu", json_array_size(v)); break;
    case JSON_OBJECT: snprintf(buf, size, "an object"); break;
    case JSON_NULL:
    default: snprintf(buf, size, "nothing"); break;
    }
    return buf;
}

void msgl__json_reject(msgl_json_reader *r, int code, const char *key, const json_t *v,
                       const char *allowed)
{
    if (r->status != 0) return;
    char found[64];
    r->status = msgl__err_set(r->err, code, "%s: %s%s%s: found %s, allowed %s", r->file, r->section,
                              r->section[0] != '\0' ? "." : "", key,
                              msgl__json_show(v, found, sizeof found), allowed);
}

const json_t *msgl__json_get(const msgl_json_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->obj, key);
    return json_is_null(v) ? NULL : v;
}

static int32_t check_int(msgl_json_reader *r, const char *key, const json_t *v, int32_t lo,
                         int32_t hi, int32_t fallback)
{
    if (json_is_integer(v) && json_integer_value(v) >= lo && json_integer_value(v) <= hi) {
        return (int32_t)json_integer_value(v);
    }
    char allowed[64];
    snprintf(allowed, sizeof allowed, "an integer in %d..%d", lo, hi);
    msgl__json_reject(r, MSGL_EFORMAT, key, v, allowed);
    return fallback;
}

int32_t msgl__json_int(msgl_json_reader *r, const char *key, int32_t lo, int32_t hi)
{
    return check_int(r, key, msgl__json_get(r, key), lo, hi, lo);
}

int32_t msgl__json_int_or(msgl_json_reader *r, const char *key, int32_t lo, int32_t hi,
                          int32_t fallback)
{
    const json_t *v = msgl__json_get(r, key);
    return v == NULL ? fallback : check_int(r, key, v, lo, hi, fallback);
}

double msgl__json_num_or(msgl_json_reader *r, const char *key, double lo, double hi,
                         double fallback)
{
    const json_t *v = msgl__json_get(r, key);
    if (v == NULL) return fallback;
    const double d = json_number_value(v);
    if (json_is_number(v) && d >= lo && d <= hi) return d;
    char allowed[64];
    snprintf(allowed, sizeof allowed, "a number in %g..%g", lo, hi);
    msgl__json_reject(r, MSGL_EFORMAT, key, v, allowed);
    return fallback;
}

bool msgl__json_bool_or(msgl_json_reader *r, const char *key, bool fallback)
{
    const json_t *v = msgl__json_get(r, key);
    if (v == NULL) return fallback;
    if (json_is_boolean(v)) return json_is_true(v);
    msgl__json_reject(r, MSGL_EFORMAT, key, v, "true or false");
    return fallback;
}

const char *msgl__json_str_or(msgl_json_reader *r, const char *key, const char *fallback)
{
    const json_t *v = msgl__json_get(r, key);
    if (v == NULL) return fallback;
    if (json_is_string(v)) return json_string_value(v);
    msgl__json_reject(r, MSGL_EFORMAT, key, v, "a string");
    return fallback;
}
