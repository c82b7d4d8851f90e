// SPDX-License-Identifier: Apache-2.0
#include "front/paths.h"

#include <stdio.h>
#include <string.h>

#include "utils/edits.h"

int msgl__path_place(const msgl_endpoint *const *all, const char *path, size_t len)
{
    for (int i = 0; all[i] != NULL; i++) {
        const size_t n = strlen(all[i]->path);
        if (all[i]->prefix ? len <= n : len != n) continue;
        if (memcmp(path, all[i]->path, n) == 0) return i;
    }
    return -1;
}

// Without empty parts: one slash for several, none at the end.
static void squeeze(const char *path, size_t len, char out[MSGL_PATH_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (path[i] == '/' && n > 0 && out[n - 1] == '/') continue;
        out[n++] = path[i];
    }
    if (n > 1 && out[n - 1] == '/') n--;
    out[n] = '\0';
}

// Behind /v1 and what may stand before it, once or several times; the rest begins with a slash.
static const char *behind_version(const char *path)
{
    static const char azure[] = "/openai", deployments[] = "/deployments/", v1[] = "/v1";
    const size_t n = sizeof azure - 1, d = sizeof deployments - 1, v = sizeof v1 - 1;
    if (strncmp(path, azure, n) == 0 && path[n] == '/') {
        path += n;
        const char *rest = strncmp(path, deployments, d) == 0 ? strchr(path + d, '/') : NULL;
        if (rest != NULL) path = rest; // the deployment is the model, which the body names, too
    }
    while (strncmp(path, v1, v) == 0 && path[v] == '/') path += v;
    return path;
}

int msgl__path_other(const msgl_endpoint *const *all, const char *path, size_t len,
                     char out[MSGL_PATH_MAX])
{
    char squeezed[MSGL_PATH_MAX];
    if (len + sizeof "/v1" > MSGL_PATH_MAX || len == 0 || path[0] != '/') return -1;
    squeeze(path, len, squeezed);
    const int n = snprintf(out, MSGL_PATH_MAX, "/v1%s", behind_version(squeezed));
    const int place = msgl__path_place(all, out, (size_t)n);
    if (place < 0) return -1;
    const msgl_endpoint *ep = all[place];
    const bool models = strncmp(ep->path, "/v1/models", sizeof "/v1/models" - 1) == 0;
    return ep->parse != NULL || models ? place : -1;
}

const char *msgl__path_nearest(const msgl_endpoint *const *all, const char *path)
{
    char squeezed[MSGL_PATH_MAX];
    const size_t len = strlen(path);
    const char *found = NULL;
    int best = MSGL_EDITS_MAX;
    if (len >= MSGL_PATH_MAX) return NULL;
    squeeze(path, len, squeezed);
    const char *given = behind_version(squeezed);
    for (int i = 0; all[i] != NULL; i++) {
        const char *is = behind_version(all[i]->path);
        const int n = (int)strlen(is), d = msgl__edits(given, (int)strlen(given), is, n);
        // A third of a path may be wrong: /chat/completion, /api/embeddings.
        if (d >= best || 3 * d > n) continue;
        best = d;
        found = all[i]->path;
    }
    return found;
}
