// SPDX-License-Identifier: Apache-2.0
//
// The page at `/`.
#ifndef MSGL_APPS_PAGE_ENDPOINTS_H
#define MSGL_APPS_PAGE_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_page;

#endif
