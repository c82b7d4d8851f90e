// SPDX-License-Identifier: Apache-2.0
//
// libcurl, opened when something is to be downloaded or traces are exported: a program that only
// runs models neither loads nor needs it.
#ifndef MSGL_HTTP_CURL_H
#define MSGL_HTTP_CURL_H

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
    __typeof__(curl_multi_init) *multi_init;
    __typeof__(curl_multi_cleanup) *multi_cleanup;
    __typeof__(curl_multi_add_handle) *multi_add;
    __typeof__(curl_multi_remove_handle) *multi_remove;
    __typeof__(curl_multi_perform) *multi_perform;
    __typeof__(curl_multi_wait) *multi_wait;
    __typeof__(curl_multi_info_read) *multi_info_read;
} msgl_curl;

// Opens the library, once in a process, and gives its functions. `what` needs them, such as
// "downloading": MSGL_EUNSUPPORTED names it, and the package that is missing.
int msgl__curl_open(const char *what, const msgl_curl **out, msgl_err *err);

#endif
