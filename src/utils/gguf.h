// SPDX-License-Identifier: Apache-2.0
//
// GGUF files of version 2 and 3, little-endian (github.com/ggml-org/ggml, docs/gguf.md): metadata
// by key, and where the tensors are. The whole file's structure is checked before anything can be
// seen: every count, length and offset against the file's size, so that readers need no checks of
// their own. What keys and tensors mean is for models/ and tokenizer/.
//
// File: "GGUF", u32 version, u64 tensors, u64 values; the values: key, u32 type, and for an array
// u32 type and u64 count, then the elements; the tensors: name, u32 dimensions, u64 each, u32 type,
// u64 offset; then, aligned, their data. A string is a u64 length and its bytes.
#ifndef MSGL_UTILS_GGUF_H
#define MSGL_UTILS_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "core/err.h"

#define MSGL_GGUF_MAX_DIMS 4

typedef enum msgl_gguf_type {
    MSGL_GGUF_U8,
    MSGL_GGUF_I8,
    MSGL_GGUF_U16,
    MSGL_GGUF_I16,
    MSGL_GGUF_U32,
    MSGL_GGUF_I32,
    MSGL_GGUF_F32,
    MSGL_GGUF_BOOL,
    MSGL_GGUF_STRING,
    MSGL_GGUF_ARRAY,
    MSGL_GGUF_U64,
    MSGL_GGUF_I64,
    MSGL_GGUF_F64,
    MSGL_GGUF_TYPES,
} msgl_gguf_type;

// Bytes in the file, not terminated.
typedef struct msgl_gguf_str {
    const char *p;
    size_t n;
} msgl_gguf_str;

typedef struct msgl_gguf_value {
    msgl_gguf_str key;   // printable ASCII
    msgl_gguf_type type; // of an array: of its elements, never ARRAY
    bool array;
    size_t count; // elements
    const uint8_t *data;
} msgl_gguf_value;

// How a tensor type stores its elements: `block` of them in `bytes` bytes.
typedef struct msgl_gguf_storage {
    const char *name; // as ggml calls the type
    uint16_t block, bytes;
} msgl_gguf_storage;

typedef struct msgl_gguf_tensor {
    msgl_gguf_str name; // printable ASCII
    const msgl_gguf_storage *storage;
    int32_t ndim;
    int64_t dims[MSGL_GGUF_MAX_DIMS]; // the first one's elements are adjacent; a multiple of block
    const uint8_t *data;
    size_t bytes;
} msgl_gguf_tensor;

// Which of a model's files it is (utils/gguf_split.h).
typedef struct msgl_gguf_split {
    uint32_t no, count; // from 0; of one file: 0 and 1
    uint64_t tensors;   // of all files; with one: 0
} msgl_gguf_split;

typedef struct msgl_gguf {
    const char *file; // for messages, the caller's
    void *map;        // NULL when the bytes are the caller's
    size_t size;
    msgl_gguf_value *values; // by key
    size_t num_values;
    msgl_gguf_tensor *tensors; // in the file's order; names may still occur twice
    size_t num_tensors;
    msgl_gguf_split split;
} msgl_gguf;

// Whether the model at `model` is a GGUF file: a file, or a folder with one *.gguf and no
// *.safetensors; the splits of a model are one. 1, with its path in `path`, of splits the first
// one's whichever was named; 0; or an error: the folder has several models, or the first split is
// missing.
int msgl__gguf_find(const char *model, char *path, size_t size, msgl_err *err);

// Maps and checks a file. `path` must stay: messages name its end. MSGL_ENOENT, MSGL_EFORMAT,
// MSGL_EUNSUPPORTED (version, tensor type), MSGL_ELIMIT, MSGL_ENOMEM.
int msgl__gguf_open(const char *path, msgl_gguf *out, msgl_err *err);
// The same of bytes in memory, which must stay.
int msgl__gguf_parse(const uint8_t *bytes, size_t size, const char *file, msgl_gguf *out,
                     msgl_err *err);
void msgl__gguf_close(msgl_gguf *g); // also after a failure

// NULL: there is none.
const msgl_gguf_value *msgl__gguf_get(const msgl_gguf *g, const char *key);
const msgl_gguf_tensor *msgl__gguf_tensor_named(const msgl_gguf *g, const char *name);
// The value if it is an array of the type; NULL if there is none. Anything else is an error that
// names the key.
int msgl__gguf_array(const msgl_gguf *g, const char *key, msgl_gguf_type type,
                     const msgl_gguf_value **out, msgl_err *err);
// Element i of an array of I32 or F32.
int32_t msgl__gguf_i32(const msgl_gguf_value *v, size_t i);
float msgl__gguf_f32(const msgl_gguf_value *v, size_t i);
// The strings of an array one after the other; *at starts at 0. Call it `count` times at most.
msgl_gguf_str msgl__gguf_next(const msgl_gguf_value *v, size_t *at);

// All values as a JSON object, arrays of strings and long arrays left out.
int msgl__gguf_metadata(const msgl_gguf *g, json_t **out, msgl_err *err);

#endif
