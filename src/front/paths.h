// SPDX-License-Identifier: Apache-2.0
//
// Which endpoint a path means. Settings pages of clients want a base URL, and people give it with
// and without /v1, with a slash behind it, or with what Azure's clients put in between.
#ifndef MSGL_FRONT_PATHS_H
#define MSGL_FRONT_PATHS_H

#include "api/endpoint.h"
#include "utils/strbuf.h"

enum { MSGL_PATH_MAX = 256 }; // bytes of a path that is looked at in other forms

// The place in the table of the endpoint that has this path, or -1.
int msgl__path_place(const msgl_endpoint *const *all, const char *path, size_t len);
// The same for a path that nobody has: /chat/completions, /v1/v1/chat/completions,
// //v1/chat/completions/ and /openai/deployments/NAME/chat/completions are /v1/chat/completions,
// which `out` is then. Only endpoints that answer with the model have other paths: a proxy that
// keeps clients from, say, /metrics keeps them from it by all of its names.
int msgl__path_other(const msgl_endpoint *const *all, const char *path, size_t len,
                     char out[MSGL_PATH_MAX]);
// The path of the table that is nearest, or NULL if none is near.
const char *msgl__path_nearest(const msgl_endpoint *const *all, const char *path);

#endif
