// SPDX-License-Identifier: Apache-2.0
//
// Writing JSON: the one escaping of strings, and the one writer of jansson's values, into buffers
// that say when there is no memory.
#ifndef MSGL_UTILS_JSON_WRITE_H
#define MSGL_UTILS_JSON_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "utils/strbuf.h"

// What stands for the character cp inside a JSON string, without a terminator: \" \\ \b \f \n \r
// \t, \u001f for other control characters and, if `ascii`, for all from U+007F on (a pair of
// surrogates beyond U+FFFF), as Python's ensure_ascii has it. Returns its length; 0: cp stands for
// itself.
size_t msgl__json_escape(uint32_t cp, bool ascii, char out[12]);

// Each appends and returns 0, MSGL_ENOMEM or MSGL_ELIMIT; what was written before a failure stays.

// s inside quotes. Bytes that are not UTF-8 become U+FFFD.
int msgl__json_put_str(msgl_strbuf *out, const char *s, size_t len);

// v by jansson's flags: JSON_COMPACT, JSON_INDENT(n) or neither, which is Python's `", "` and
// `": "`; JSON_ENSURE_ASCII; JSON_REAL_PRECISION(n), without which a real is the shortest text that
// is read as it. Integers beyond 64 bits keep their digits. MSGL_ENOMEM also for v NULL.
int msgl__json_put(msgl_strbuf *out, const json_t *v, size_t flags);

// The same as a new C string, freed with msgl__free(); NULL: out of memory.
char *msgl__json_text(const json_t *v, size_t flags);

#endif
