// SPDX-License-Identifier: Apache-2.0
#include "apps/simulation/json_lines.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "core/mem.h"
#include "utils/file.h"
#include "utils/json.h"
#include "utils/json_write.h"

static bool is_blank(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (strchr(" \t\r", text[i]) == NULL) return false;
    }
    return true;
}

static int read_line(msgl_json_line *line, const char *text, size_t len, msgl_json_line_fn fn,
                     void *ctx, msgl_err *err)
{
    json_error_t why = {0};
    json_t *object = msgl__json_loadb(text, len, 0, &why, NULL);
    int rc = 0;
    if (!json_is_object(object)) {
        char shown[120];
        const char *what = object == NULL ? why.text : "not a JSON object";
        rc = msgl__err_set(err, MSGL_EFORMAT, "%s: line %lld: %s", line->name,
                           (long long)line->number, msgl__printable(what, shown, sizeof shown));
    } else {
        line->object = object;
        rc = fn(ctx, line, err);
    }
    json_decref(object);
    return rc;
}

int msgl__json_lines_read(const char *path, msgl_json_line_fn fn, void *ctx, msgl_err *err)
{
    void *map;
    size_t size;
    int rc = msgl__file_map(path, &map, &size, err);
    if (rc != 0) return rc;
    msgl_json_line line = {.name = msgl__path_shown(path)};
    const char *text = map;
    for (size_t at = 0; rc == 0 && at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t len = end != NULL ? (size_t)(end - text) - at : size - at;
        line.number++;
        if (!is_blank(text + at, len)) rc = read_line(&line, text + at, len, fn, ctx, err);
        at += len + 1;
    }
    munmap(map, size);
    return rc;
}

int msgl__json_line_error(const msgl_json_line *line, const char *field, const char *allowed,
                          msgl_err *err)
{
    const json_t *value = json_object_get(line->object, field);
    char shown[64];
    if (value == NULL) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s: line %lld: %s is missing; allowed: %s",
                             line->name, (long long)line->number, field, allowed);
    }
    char *text = msgl__json_text(value, JSON_COMPACT);
    msgl__printable(text != NULL ? text : "?", shown, sizeof shown);
    msgl__free(text);
    return msgl__err_set(err, MSGL_EFORMAT, "%s: line %lld: %s is %s; allowed: %s", line->name,
                         (long long)line->number, field, shown, allowed);
}

int msgl__json_line_number(const msgl_json_line *line, const char *field, double min, double max,
                           const double *preset, double *out, msgl_err *err)
{
    const json_t *value = json_object_get(line->object, field);
    if (value == NULL && preset != NULL) {
        *out = *preset;
        return 0;
    }
    const double number = json_number_value(value);
    if (json_is_number(value) && number >= min && number <= max) {
        *out = number;
        return 0;
    }
    char allowed[64];
    (void)snprintf(allowed, sizeof allowed, "%.10g to %.10g", min, max);
    return msgl__json_line_error(line, field, allowed, err);
}
