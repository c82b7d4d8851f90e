// SPDX-License-Identifier: Apache-2.0
//
// Models in several GGUF files, NAME-00001-of-00003.gguf and so on, as llama.cpp's gguf-split and
// gguf-py write them: the first has the metadata, each has some of the tensors, and all say in
// split.no (from 0), split.count and split.tensors.count what belongs together.
#ifndef MSGL_UTILS_GGUF_SPLIT_H
#define MSGL_UTILS_GGUF_SPLIT_H

#include "utils/gguf.h"

// What a file's name says of it: no 2 and count 3 of "m-00002-of-00003.gguf", with stem 1.
typedef struct msgl_gguf_split_name {
    size_t stem;        // bytes of the path before "-00001-of-00003.gguf"
    uint32_t no, count; // from 1
} msgl_gguf_split_name;

// Whether `path` is named as a split of several.
bool msgl__gguf_split_of(const char *path, msgl_gguf_split_name *out);
// The path of split `no` of the model that `path`, whose name says `split`, is one of. MSGL_EINVAL:
// it is too long.
int msgl__gguf_split_path(const char *path, const msgl_gguf_split_name *split, uint32_t no,
                          char *out, size_t size, msgl_err *err);
// Whether both are splits of one model, by their names.
bool msgl__gguf_same_model(const char *path, const char *other);
// Whether `path` is named as a model, or as its first split: a .gguf file, and none of those that
// go with models (projectors, importance matrices).
bool msgl__gguf_is_model(const char *path);
// The path of the first split of the model that `path` is one of, or `path`. MSGL_EINVAL: it is
// too long; MSGL_ENOENT: there is no such file.
int msgl__gguf_first_split(const char *path, char *out, size_t size, msgl_err *err);

typedef struct msgl_gguf_splits {
    msgl_gguf *at; // [count], each mapped
    char **paths;  // [count]
    uint32_t count;
} msgl_gguf_splits;

// Opens the model whose only or first file is `path`, with all of its splits. Each is checked, and
// that they belong together: MSGL_ENOENT for one that is missing, MSGL_EFORMAT for one of another
// model; as msgl__gguf_open. A tensor may still occur twice.
int msgl__gguf_splits_open(const char *path, msgl_gguf_splits *out, msgl_err *err);
void msgl__gguf_splits_close(msgl_gguf_splits *p); // also after a failure

#endif
