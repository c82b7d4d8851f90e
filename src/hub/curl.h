// SPDX-License-Identifier: Apache-2.0
//
// libcurl, opened when something is to be downloaded: a program that only runs models neither
// loads nor needs it.
#ifndef MSGL_HUB_CURL_H
#define MSGL_HUB_CURL_H

#include <curl/curl.h>

#include "core/err.h"

typedef struct msgl_curl {
    __typeof__(curl_global_init) *global_init;
    __typeof__(curl_easy_init) *init;
    __typeof__(curl_easy_reset) *reset;
    __typeof__(curl_easy_cleanup) *cleanup;
    __typeof__(curl_easy_setopt) *setopt;
    __typeof__(curl_easy_getinfo) *getinfo;
    __typeof__(curl_easy_perform) *perform;
    __typeof__(curl_easy_strerror) *strerror;
    __typeof__(curl_slist_append) *append;
    __typeof__(curl_slist_free_all) *free_all;
} msgl_curl;

// The library's functions, for good. MSGL_EUNSUPPORTED says which package is missing.
int msgl__curl_open(const msgl_curl **out, msgl_err *err);

#endif
