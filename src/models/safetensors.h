// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint in the safetensors format, one file or the shards of an index, memory-mapped and
// checked: every offset, length, dtype and shape is proved consistent before a tensor can be seen,
// so that readers need no checks of their own.
//
// Format: u64 little-endian header length, that many bytes of JSON {name: {dtype, shape,
// data_offsets [begin, end)}}, then the data, which the tensors cover without gap or overlap.
#ifndef MSGL_MODELS_SAFETENSORS_H
#define MSGL_MODELS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"

#define MSGL_TENSOR_MAX_DIMS 8

typedef struct msgl_tensor {
    char *name;
    int32_t file;        // index of its shard
    bool loadable;       // dtype is F32, F16 or BF16
    msgl_dtype dtype;    // when loadable
    char dtype_name[12]; // as in the file
    int32_t ndim;
    int64_t dims[MSGL_TENSOR_MAX_DIMS];
    const uint8_t *data; // in the mapping; not necessarily aligned
    size_t bytes;
} msgl_tensor;

typedef struct msgl_checkpoint msgl_checkpoint;

// DIR/model.safetensors.index.json with its shards when that exists, else DIR/model.safetensors.
int msgl__checkpoint_open(const char *dir, msgl_checkpoint **out, msgl_err *err);
void msgl__checkpoint_close(msgl_checkpoint *c);
size_t msgl__checkpoint_count(const msgl_checkpoint *c);
const msgl_tensor *msgl__checkpoint_at(const msgl_checkpoint *c, size_t i); // ordered by name
const msgl_tensor *msgl__checkpoint_find(const msgl_checkpoint *c, const char *name);
const char *msgl__checkpoint_file(const msgl_checkpoint *c,
                                  const msgl_tensor *t); // end of its path
// Starts reading the tensor's bytes from disk; and gives its pages back once they were used, so
// that the mapped file does not count as resident beside the packed weights.
void msgl__tensor_will_need(const msgl_tensor *t);
void msgl__tensor_drop(const msgl_tensor *t);

// Checks one file's bytes and appends its tensors to *list (*count of them, grown with
// msgl__reallocarray; names freed by the caller). For the above and for fuzzing.
int msgl__safetensors_parse(const uint8_t *bytes, size_t size, const char *file_name,
                            int32_t file_index, msgl_tensor **list, size_t *count, msgl_err *err);

#endif
