// SPDX-License-Identifier: Apache-2.0
//
// vLLM's --speculative-config: an object that says in one text what minisgl's options say apart.
#ifndef MSGL_CLI_SPECULATIVE_H
#define MSGL_CLI_SPECULATIVE_H

#include <minisgl/minisgl.h>

// Sets o's speculative_ fields from the text of an object. MSGL_EINVAL names the member and what is
// allowed; o is as before then.
int msgl__speculative_config(const char *text, msgl_options *o, msgl_err *err);

#endif
