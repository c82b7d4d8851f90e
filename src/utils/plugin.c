// SPDX-License-Identifier: Apache-2.0
#include "utils/plugin.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The folder of the program or library that contains this code, "" if it cannot be found.
static void own_folder(char *out, size_t size)
{
    Dl_info info;
    const char *path = dladdr((void *)(uintptr_t)own_folder, &info) != 0 ? info.dli_fname : NULL;
    char exe[512];
    // dladdr has argv[0] for the program itself, which need not be a path.
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n > 0) exe[n] = '\0';
    if (path == NULL || strstr(path, ".so") == NULL) path = n > 0 ? exe : "";
    const char *slash = strrchr(path, '/');
    snprintf(out, size, "%.*s", slash != NULL ? (int)(slash - path) : 0, path);
}

// Opens DIR/NAME if the file exists; *tried lists the folders.
static void *open_in(const char *dir, const char *name, char *tried, size_t size, msgl_err *err)
{
    char path[640];
    const size_t used = strlen(tried);
    snprintf(tried + used, size - used, "%s%s", used > 0 ? ", " : "", dir);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (access(path, F_OK) != 0) return NULL;
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        const char *why = dlerror();
        msgl__err_set(err, MSGL_EUNSUPPORTED, "%s cannot be opened: %.180s", name,
                      why != NULL ? why : "unknown reason");
    }
    return handle;
}

void *msgl__plugin_open(const char *name, const char *symbol, msgl_err *err)
{
    const char *env = getenv("MINISGL_PLUGIN_DIR");
    char own[512], installed[544], tried[200] = "";
    msgl_err why = {0};
    void *handle = NULL;
    if (env != NULL && env[0] != '\0') {
        handle = open_in(env, name, tried, sizeof tried, &why);
    } else {
        own_folder(own, sizeof own);
        snprintf(installed, sizeof installed, "%s/../lib/minisgl", own);
        handle = open_in(own, name, tried, sizeof tried, &why);
        if (handle == NULL && why.code == 0) {
            handle = open_in(installed, name, tried, sizeof tried, &why);
        }
    }
    if (handle == NULL) {
        if (why.code == 0) {
            msgl__err_set(&why, MSGL_ENOENT, "%s is not in %s", name, tried);
        }
        if (err != NULL) *err = why;
        return NULL;
    }
    if (symbol == NULL) return handle;
    void *found = dlsym(handle, symbol);
    if (found == NULL) {
        msgl__err_set(err, MSGL_EUNSUPPORTED, "%s has no %s: not a plug-in of minisgl", name,
                      symbol);
    }
    return found;
}
