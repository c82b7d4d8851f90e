// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints in the safetensors format: a folder with one file, or with the shards of an index.
//
// A file: u64 little-endian header length, that many bytes of JSON {name: {dtype, shape,
// data_offsets [begin, end)}}, then the data, which the tensors cover without gap or overlap.
#ifndef MSGL_MODELS_SAFETENSORS_H
#define MSGL_MODELS_SAFETENSORS_H

#include "models/checkpoint.h"

// Checks one file's bytes and appends its tensors to *list. For the format and for fuzzing.
int msgl__safetensors_parse(const uint8_t *bytes, size_t size, const char *file_name,
                            int32_t file_index, msgl_tensor_list *list, msgl_err *err);

// Adds the tensors of DIR/FILE to a checkpoint, with `prefix` before their names. They are not
// sorted in.
int msgl__safetensors_add_file(msgl_checkpoint *c, const char *dir, const char *file,
                               const char *prefix, msgl_err *err);

// Opens a file of tensors that is in memory, `size` bytes at `file`, which stay the caller's and
// have to be there until the checkpoint is closed. Its tensors are as they stand there: nothing
// says which of them are another one's.
int msgl__safetensors_open_bytes(const void *file, size_t size, msgl_checkpoint **out,
                                 msgl_err *err);

#endif
