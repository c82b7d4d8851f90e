// SPDX-License-Identifier: Apache-2.0
//
// Writes GGUF files for tests, good and bad ones: whatever is added is written as it is.
#ifndef MSGL_TESTS_UTILS_GGUF_WRITER_H
#define MSGL_TESTS_UTILS_GGUF_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "utils/gguf.h"

typedef struct gguf_bytes {
    uint8_t *p;
    size_t n;
} gguf_bytes;

typedef struct gguf_writer {
    gguf_bytes values, tensors, data;
    uint64_t num_values, num_tensors;
} gguf_writer; // zero-initialised is empty

void gguf_put_int(gguf_writer *w, const char *key, msgl_gguf_type type, uint64_t v);
void gguf_put_f32(gguf_writer *w, const char *key, float v);
void gguf_put_string(gguf_writer *w, const char *key, const char *text);
void gguf_put_strings(gguf_writer *w, const char *key, const char *const *texts, size_t n);
// n elements of 4 bytes each.
void gguf_put_array(gguf_writer *w, const char *key, msgl_gguf_type type, const void *elements,
                    size_t n);
// dims as in the file, the adjacent elements' first. The data is padded to 32 bytes.
void gguf_put_tensor(gguf_writer *w, const char *name, uint32_t type, int ndim, const int64_t *dims,
                     const void *data, size_t bytes);

// The file, version 3, and the writer is empty again.
gguf_bytes gguf_finish(gguf_writer *w);

#endif
