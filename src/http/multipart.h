// SPDX-License-Identifier: Apache-2.0
//
// A body of multipart/form-data (RFC 7578), whole and in memory: its fields, without a copy.
#ifndef MSGL_HTTP_MULTIPART_H
#define MSGL_HTTP_MULTIPART_H

#include <stdbool.h>
#include <stddef.h>

enum { MSGL_MULTIPART_BOUNDARY_MAX = 70 }; // RFC 2046, 5.1.1

typedef struct msgl_multipart_field {
    const char *name, *filename; // in the body, not terminated; filename NULL: none
    size_t name_len, filename_len;
    const char *value;
    size_t len;
} msgl_multipart_field;

// The boundary that a Content-Type names. False: it is no multipart/form-data, or has none.
bool msgl__multipart_boundary(const char *type, size_t len,
                              char boundary[MSGL_MULTIPART_BOUNDARY_MAX + 1]);

// Gives the fields in their order. *at is 0 before the first call and not changed between calls. 1:
// *out is a field; 0: there is no further one; -1: the body is no form with this boundary.
int msgl__multipart_next(const char *body, size_t len, const char *boundary, size_t *at,
                         msgl_multipart_field *out);

#endif
