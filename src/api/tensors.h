// SPDX-License-Identifier: Apache-2.0
//
// Tensors in the JSON body of /update_weights_from_tensor, as the bytes of a safetensors file,
// which is what engines take. No sockets.
#ifndef MSGL_API_TENSORS_H
#define MSGL_API_TENSORS_H

#include <jansson.h>

#include "api/api.h"

// Appends to *out the file of o's tensors: either `safetensors`, a file in base64, or
// `named_tensors`, an array of {"name", "dtype", "shape", "data"}, data in base64. 0, or
// MSGL_EINVAL with *e: neither, both, or what is wrong with an element. The file's bytes are not
// looked at.
int msgl__tensors_file(const json_t *o, msgl_strbuf *out, msgl_api_error *e);
// The same of o's `names`, `dtypes` and `shapes`, whose data come another way: what
// MSGL_ADMIN_RECEIVE has in its bytes (core/admin.h).
int msgl__tensors_parts(const json_t *o, msgl_strbuf *out, msgl_api_error *e);

#endif
