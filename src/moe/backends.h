// SPDX-License-Identifier: Apache-2.0
//
// The descriptors that registry.c lists.
#ifndef MSGL_MOE_BACKENDS_H
#define MSGL_MOE_BACKENDS_H

#include "moe/moe.h"

extern const msgl_moe_desc msgl__moe_grouped; // grouped.c

#endif
