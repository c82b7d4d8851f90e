// SPDX-License-Identifier: Apache-2.0
//
// Models in several GGUF files, NAME-00001-of-00003.gguf and so on, as llama.cpp's gguf-split and
// gguf-py write them: the first has the metadata, each has some of the tensors, and all say in
// split.no (from 0), split.count and split.tensors.count what belongs together.
#ifndef MSGL_UTILS_GGUF_SPLIT_H
#define MSGL_UTILS_GGUF_SPLIT_H

#include "utils/gguf.h"

// What a file's name says of it.
typedef struct msgl_gguf_part {
    size_t stem;        // bytes of the path before "-00001-of-00003.gguf"
    uint32_t no, count; // from 1
} msgl_gguf_part;

// Whether `path` is named as a part of several.
bool msgl__gguf_part_of(const char *path, msgl_gguf_part *out);
// The path of part `no` of the model that `path`, which says `part`, is a part of. MSGL_EINVAL: it
// is too long.
int msgl__gguf_part_path(const char *path, const msgl_gguf_part *part, uint32_t no, char *out,
                         size_t size, msgl_err *err);
// Whether both are parts of one model, by their names.
bool msgl__gguf_same_model(const char *path, const char *other);
// Whether `path` is named as a model, or as its first part: a .gguf file, and none of those that go
// with models (projectors, importance matrices).
bool msgl__gguf_is_model(const char *path);
// The path of the first part of the model that `path` is a part of, or `path`. MSGL_EINVAL: it is
// too long; MSGL_ENOENT: there is no such file.
int msgl__gguf_first_part(const char *path, char *out, size_t size, msgl_err *err);

typedef struct msgl_gguf_parts {
    msgl_gguf *at; // [count], each mapped
    char **paths;  // [count]
    uint32_t count;
} msgl_gguf_parts;

// Opens the model whose only or first file is `path`, with all of its parts. Each is checked, and
// that they belong together: MSGL_ENOENT for one that is missing, MSGL_EFORMAT for one of another
// model; as msgl__gguf_open. A tensor may still occur twice.
int msgl__gguf_parts_open(const char *path, msgl_gguf_parts *out, msgl_err *err);
void msgl__gguf_parts_close(msgl_gguf_parts *p); // also after a failure

#endif
