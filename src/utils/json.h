// SPDX-License-Identifier: Apache-2.0
//
// The JSON files of model folders, as Python writes them: integers of any size (transformers saves
// model_max_length as 10^30), reals beyond a double, NaN, Infinity and -Infinity. jansson refuses
// all of these wherever they stand. A field that nobody reads must not stop a model, so they are
// rewritten before jansson sees them; a field that is read is still checked by its reader.
#ifndef MSGL_UTILS_JSON_H
#define MSGL_UTILS_JSON_H

#include <float.h>
#include <stddef.h>

#include <jansson.h>

#include "core/err.h"

// What stands for NaN, the infinities and numbers beyond a double: the largest double, with the
// sign. Every range of a reader ends far below it.
#define MSGL_JSON_BEYOND DBL_MAX

// Parses `text` with jansson's `flags`. An integer of more than 64 bits becomes a real (so no
// integer ever changes its value), what no double holds becomes MSGL_JSON_BEYOND.
// MSGL_EFORMAT: "NAME: line L column C: what", MSGL_ENOMEM.
int msgl__json_parse(const char *name, const char *text, size_t len, size_t flags, json_t **out,
                     msgl_err *err);

// The same of the file at `path`, at most max_bytes long, whose top level must be an object. Errors
// name the file: those of msgl__file_read (utils/file.h) and MSGL_EFORMAT.
int msgl__json_load(const char *path, size_t max_bytes, size_t flags, json_t **out, msgl_err *err);

// msgl__json_load of a file whose top level must be an array.
int msgl__json_load_array(const char *path, size_t max_bytes, size_t flags, json_t **out,
                          msgl_err *err);

// json_loadb() that says why it returned NULL: *rc is MSGL_EFORMAT, with *why, or MSGL_ENOMEM,
// which jansson's own code calls an invalid token at times.
json_t *msgl__json_loadb(const char *text, size_t len, size_t flags, json_error_t *why, int *rc);

// What stands for the escape whose letter, the first of n > 0 bytes, is at p. Returns its bytes in
// out, 0 for a malformed one or half of a surrogate pair; *used counts what was read behind the
// backslash.
size_t msgl__json_unescape(const char *p, size_t n, char out[4], size_t *used);

#endif
