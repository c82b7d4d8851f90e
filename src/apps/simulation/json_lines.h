// SPDX-License-Identifier: Apache-2.0
//
// Files of one JSON object a line, and numbers in them. Errors name file, line and field.
#ifndef MSGL_APPS_SIMULATION_JSON_LINES_H
#define MSGL_APPS_SIMULATION_JSON_LINES_H

#include <jansson.h>
#include <stdint.h>

#include "core/err.h"

typedef struct msgl_json_line {
    const char *name; // of the file, for messages
    int64_t number;   // from 1; empty lines count
    const json_t *object;
} msgl_json_line;

// Called for each line that is not empty; what is not 0 ends the reading.
typedef int (*msgl_json_line_fn)(void *ctx, const msgl_json_line *line, msgl_err *err);

// Those of msgl__file_map (utils/file.h), MSGL_EFORMAT for a line that is no object, and what `fn`
// returned.
int msgl__json_lines_read(const char *path, msgl_json_line_fn fn, void *ctx, msgl_err *err);

// The field as a number from min to max; where it is missing *preset, if that is not NULL.
// MSGL_EFORMAT.
int msgl__json_line_number(const msgl_json_line *line, const char *field, double min, double max,
                           const double *preset, double *out, msgl_err *err);
// MSGL_EFORMAT: "FILE: line N: FIELD is VALUE; allowed: ..."; without a value "... is missing".
int msgl__json_line_error(const msgl_json_line *line, const char *field, const char *allowed,
                          msgl_err *err);

#endif
