// SPDX-License-Identifier: Apache-2.0
//
// Opening plug-ins. A plug-in is a shared object with one exported function that returns a const
// table; it stays open until the process ends. They are looked for in $MINISGL_PLUGIN_DIR, if that
// is set, else in the folder of the program or library that this code is in, then in
// ../lib/minisgl beside that.
#ifndef MSGL_UTILS_PLUGIN_H
#define MSGL_UTILS_PLUGIN_H

#include "core/err.h"

// The address of `symbol` in plug-in `name` ("minisgl-cuda.so"); with symbol NULL, something that
// is not NULL if it opens at all. NULL sets *err: MSGL_ENOENT when there is no such file (says
// where it was looked for), MSGL_EUNSUPPORTED when it cannot be opened.
void *msgl__plugin_open(const char *name, const char *symbol, msgl_err *err);

#endif
