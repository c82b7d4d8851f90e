// SPDX-License-Identifier: Apache-2.0
//
// Tables of the command line's own options, whose values are an msgl_args. The engine's and those
// of sampling stand beside them (core/settings.h).
#ifndef MSGL_CLI_OPTIONS_H
#define MSGL_CLI_OPTIONS_H

#include "cli/args.h"

#define MSGL_LIST(T, f)                                                                            \
    MSGL_MEMBER(T, f, LIST, _Generic(((T *)0)->f, msgl_list : sizeof(msgl_list)))

extern const msgl_setting_table msgl__model_options, msgl__server_options, msgl__request_options,
    msgl__bench_options, msgl__help_options;

#endif
