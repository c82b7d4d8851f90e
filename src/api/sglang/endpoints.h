// SPDX-License-Identifier: Apache-2.0
//
// SGLang's own dialect.
#ifndef MSGL_API_SGLANG_ENDPOINTS_H
#define MSGL_API_SGLANG_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_generate;

#endif
