// SPDX-License-Identifier: Apache-2.0
//
// Reading JSON into jansson's values. Every read goes through here: jansson's own lexer is not safe
// when memory runs out (docs/decisions/043), and takes neither integers beyond 64 bits, as in the
// schemas that programs write for unsigned fields, nor what Python writes into the files of model
// folders: integers of any size (transformers saves model_max_length as 10^30), reals beyond a
// double, NaN, Infinity and -Infinity.
#ifndef MSGL_UTILS_JSON_H
#define MSGL_UTILS_JSON_H

#include <float.h>
#include <stddef.h>

#include <jansson.h>

#include "core/err.h"

// The largest double, with the sign: what numbers beyond it are. Every range of a reader ends far
// below it.
#define MSGL_JSON_BEYOND DBL_MAX

// A flag beside jansson's JSON_DECODE_ANY, JSON_ALLOW_NUL and JSON_REJECT_DUPLICATES: what stands
// for NaN, the infinities and reals beyond a double is MSGL_JSON_BEYOND; without it they are
// errors.
#define MSGL_JSON_PYTHON 0x10000

// A new value from the whole of text[0, len), or NULL: *rc (NULL allowed) is MSGL_EFORMAT, with
// *why (NULL allowed) where it stops being JSON, or MSGL_ENOMEM. Of members of one name, the last
// one counts. An integer of more than 64 bits is a real, the nearest there is, that has its digits:
// msgl__json_digits().
json_t *msgl__json_loadb(const char *text, size_t len, size_t flags, json_error_t *why, int *rc);

// The text of an integer beyond 64 bits, such as "18446744073709551615", as long as v lives; NULL
// for every other value, and for NULL. json_deep_copy() of one is a real without digits.
const char *msgl__json_digits(const json_t *v);

// A copy of an object or array, whose members are shared, or of any value, with nothing shared,
// digits included; NULL for want of memory. (jansson's json_copy() leaves members out then.)
json_t *msgl__json_copy(const json_t *v);
json_t *msgl__json_deep_copy(const json_t *v);

// msgl__json_loadb with MSGL_JSON_PYTHON and a sentence for what is wrong.
// MSGL_EFORMAT: "NAME: line L column C: what", MSGL_ENOMEM.
int msgl__json_parse(const char *name, const char *text, size_t len, size_t flags, json_t **out,
                     msgl_err *err);

// The same of the file at `path`, at most max_bytes long, whose top level must be an object. Errors
// name the file: those of msgl__file_read (utils/file.h) and MSGL_EFORMAT.
int msgl__json_load(const char *path, size_t max_bytes, size_t flags, json_t **out, msgl_err *err);

// msgl__json_load of a file whose top level must be an array.
int msgl__json_load_array(const char *path, size_t max_bytes, size_t flags, json_t **out,
                          msgl_err *err);

// What stands for the escape whose letter, the first of n > 0 bytes, is at p. Returns its bytes in
// out, 0 for a malformed one or half of a surrogate pair; *used counts what was read behind the
// backslash.
size_t msgl__json_unescape(const char *p, size_t n, char out[4], size_t *used);

#endif
