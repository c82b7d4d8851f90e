// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_APPS_HUB_COMMAND_H
#define MSGL_APPS_HUB_COMMAND_H

#include "cli/common.h"

// Models by names of Hugging Face and ModelScope.
extern const msgl_model_names msgl__hub_names;

#endif
