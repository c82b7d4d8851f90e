// SPDX-License-Identifier: Apache-2.0
#include "http/curl.h"

#include <dlfcn.h>
#include <string.h>

#include "core/attributes.h"

int msgl__curl_open(const char *what, const msgl_curl **out, msgl_err *err)
{
    static msgl_curl table;
    static const char *const NAMES[] = {
        "curl_global_init",      "curl_easy_init",           "curl_easy_reset",
        "curl_easy_cleanup",     "curl_easy_setopt",         "curl_easy_getinfo",
        "curl_easy_perform",     "curl_easy_strerror",       "curl_slist_append",
        "curl_slist_free_all",   "curl_multi_init",          "curl_multi_cleanup",
        "curl_multi_add_handle", "curl_multi_remove_handle", "curl_multi_perform",
        "curl_multi_wait",       "curl_multi_info_read"};
    _Static_assert(sizeof table == MSGL_COUNT(NAMES) * sizeof(void *), "one name for each");
    *out = &table;
    if (table.global_init != NULL) return 0;
    void *handle = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) handle = dlopen("libcurl-gnutls.so.4", RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s needs libcurl.so.4, which is not here: install the "
                             "package libcurl4 (Ubuntu 24.04: libcurl4t64)",
                             what);
    }
    void *found[MSGL_COUNT(NAMES)];
    for (size_t i = 0; i < MSGL_COUNT(NAMES); i++) {
        found[i] = dlsym(handle, NAMES[i]);
        if (found[i] == NULL) {
            return msgl__err_set(err, MSGL_EUNSUPPORTED, "libcurl.so.4 has no %s", NAMES[i]);
        }
    }
    memcpy(&table, found, sizeof table);
    if (table.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) return 0;
    table.global_init = NULL;
    return msgl__err_set(err, MSGL_EINTERNAL, "libcurl does not start");
}
