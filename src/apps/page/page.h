// SPDX-License-Identifier: Apache-2.0
//
// The page at `/`, as cmake/page.cmake joins it from src/apps/page/parts/ when the server is built.
#ifndef MSGL_APPS_PAGE_PAGE_H
#define MSGL_APPS_PAGE_PAGE_H

#include <stddef.h>

extern const unsigned char msgl__page_text[]; // not terminated
extern const size_t msgl__page_len;
extern const char msgl__page_headers[]; // Content-Security-Policy and the like, and the ETag
extern const char msgl__page_etag[];

#endif
