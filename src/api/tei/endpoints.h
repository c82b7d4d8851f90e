// SPDX-License-Identifier: Apache-2.0
//
// The dialect of text-embeddings-inference.
#ifndef MSGL_API_TEI_ENDPOINTS_H
#define MSGL_API_TEI_ENDPOINTS_H

#include "api/endpoint.h"

extern const msgl_endpoint msgl__endpoint_embed_sparse;

#endif
