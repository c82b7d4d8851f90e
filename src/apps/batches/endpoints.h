// SPDX-License-Identifier: Apache-2.0
//
// OpenAI's files and batches.
#ifndef MSGL_APPS_BATCHES_ENDPOINTS_H
#define MSGL_APPS_BATCHES_ENDPOINTS_H

#include "api/endpoint.h"
#include "front/front.h"

extern const msgl_endpoint msgl__endpoint_files;
extern const msgl_endpoint msgl__endpoint_batches;
extern const msgl_endpoint msgl__endpoint_batch;
extern const msgl_endpoint msgl__endpoint_file;

extern const msgl_guest msgl__batches_guest;

#endif
