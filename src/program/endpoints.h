// SPDX-License-Identifier: Apache-2.0
//
// Every endpoint that this program has, in the order of docs/http.md, and the guests of its front.
// Which apps are part of it is chosen by CMake's options MSGL_APP_*.
#ifndef MSGL_PROGRAM_ENDPOINTS_H
#define MSGL_PROGRAM_ENDPOINTS_H

#include "api/endpoint.h"
#include "front/front.h"

extern const msgl_endpoint *const msgl__endpoints[];  // a NULL behind the last one
extern const msgl_guest *const msgl__program_batches; // NULL: there are none

#endif
