// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a model's files, whatever the format of these: one list by the names that the
// architectures declare. A format is one file that ends in a const msgl_checkpoint_format, and one
// line in checkpoint.c (docs/adding-a-format.md). It proves every offset, length, type and shape
// consistent before a tensor can be seen, so that readers need no checks of their own.
#ifndef MSGL_MODELS_CHECKPOINT_H
#define MSGL_MODELS_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"
#include "quant/stored.h"
#include "utils/file.h"

#define MSGL_TENSOR_MAX_DIMS 8

typedef struct msgl_model_config msgl_model_config; // models/config.h

typedef struct msgl_tensor {
    char *name;           // as the architectures declare it
    char *label;          // as the file has it; NULL: the same
    int32_t file;         // index of its file
    const char *type;     // of the elements, as the file calls it; static
    bool loadable;        // they can become weights: `packing` and `dtype` say how
    msgl_packing packing; // without a form: they stand one by one, as dtype
    char *note; // what the file's header says of it beside its entry, as JSON; NULL: nothing
    const char *packed; // what those who write such a packing call it; NULL: `type` says it; static
    msgl_dtype dtype;
    int32_t ndim;
    int64_t dims[MSGL_TENSOR_MAX_DIMS]; // the last one's elements are adjacent
    const uint8_t *data;                // in the mapping; not necessarily aligned
    size_t bytes;
    bool is_side;  // the model need not have it: another one's packing has, or nothing does
    size_t beside; // bytes of those that stand beside this one as sides of it, read or not
} msgl_tensor;

// A list of tensors that grows while files are read.
typedef struct msgl_tensor_list {
    msgl_tensor *at;
    size_t count;
} msgl_tensor_list;

// Room for `more` tensors behind the last one. MSGL_ENOMEM naming `file`.
int msgl__tensor_list_grow(msgl_tensor_list *l, size_t more, const char *file, msgl_err *err);
void msgl__tensor_list_free(msgl_tensor_list *l);

// A mapped file.
typedef struct msgl_checkpoint_file {
    char *path;
    char shown[MSGL_PATH_SHOWN]; // of it, for messages
    void *map;
    size_t size;
} msgl_checkpoint_file;

typedef struct msgl_checkpoint {
    const struct msgl_checkpoint_format *format;
    msgl_checkpoint_file *files;
    int32_t num_files;
    msgl_tensor_list tensors; // sorted by name once it is open
} msgl_checkpoint;

typedef struct msgl_checkpoint_format {
    const char *name;
    const char *types; // the element types that weights can have, for messages
    // Whether this format reads the model at `path`, a folder or a file. By names only: what is
    // wrong inside is for `config` and `open` to say.
    bool (*is)(const char *path);
    // msgl__model_config_load.
    int (*config)(const char *path, msgl_model_config *out, msgl_err *err);
    // Maps the files (msgl__checkpoint_map), lists their tensors and sorts them
    // (msgl__checkpoint_sort). When it fails the caller gives back what it has done so far.
    int (*open)(const char *path, msgl_checkpoint *c, msgl_err *err);
} msgl_checkpoint_format;

// The format of the model at `path`; the last one in the list takes what no other does.
const msgl_checkpoint_format *msgl__checkpoint_format_of(const char *path);

int msgl__checkpoint_open(const char *path, msgl_checkpoint **out, msgl_err *err);
void msgl__checkpoint_close(msgl_checkpoint *c);
size_t msgl__checkpoint_count(const msgl_checkpoint *c);
const msgl_tensor *msgl__checkpoint_at(const msgl_checkpoint *c, size_t i); // ordered by name
const msgl_tensor *msgl__checkpoint_find(const msgl_checkpoint *c, const char *name);
const char *msgl__checkpoint_file(const msgl_checkpoint *c,
                                  const msgl_tensor *t); // end of its path
const char *msgl__tensor_label(const msgl_tensor *t);    // for messages
// "[3, 4]" in buf, which it returns.
const char *msgl__shape_show(const int64_t *dims, int32_t ndim, char *buf, size_t size);
// Starts reading `bytes` of the tensor from `from` on, and its sides, from disk; and gives its
// pages back once they were used, so that the mapped file does not count as resident beside the
// packed weights.
void msgl__tensor_will_need(const msgl_tensor *t, size_t from, size_t bytes);
void msgl__tensor_drop(const msgl_tensor *t);

// For formats: maps PATH as the next file of c. Its bytes are c->files[c->num_files - 1].
int msgl__checkpoint_map(msgl_checkpoint *c, const char *path, msgl_err *err);
// The same of a file that is mapped already. The mapping is c's then, unless it fails.
int msgl__checkpoint_take(msgl_checkpoint *c, const char *path, void *map, size_t size,
                          msgl_err *err);
// Sorts the tensors by name and refuses a name that occurs twice.
int msgl__checkpoint_sort(msgl_checkpoint *c, msgl_err *err);

#endif
