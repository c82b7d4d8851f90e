// SPDX-License-Identifier: Apache-2.0
//
// Base64 (RFC 4648, section 4).
#ifndef MSGL_UTILS_BASE64_H
#define MSGL_UTILS_BASE64_H

#include <stddef.h>

// The bytes of text[0, len), with or without the '=' behind it and without blanks, into out, which
// has room for len / 4 * 3 + 2 of them. Returns how many; SIZE_MAX: it is no base64.
size_t msgl__base64_decode(const char *text, size_t len, unsigned char *out);

#endif
