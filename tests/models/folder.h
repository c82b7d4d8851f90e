// SPDX-License-Identifier: Apache-2.0
//
// A model folder made for one test: written into a temporary directory, removed afterwards.
#ifndef MSGL_TESTS_MODELS_FOLDER_H
#define MSGL_TESTS_MODELS_FOLDER_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

typedef struct folder {
    char dir[64];
} folder;

void folder_make(folder *f);
void folder_remove(folder *f); // with all that is in it
void folder_add(const folder *f, const char *name);
void folder_path(const folder *f, const char *file, char *out, size_t size);
void folder_write(const folder *f, const char *file, const void *data, size_t size);
void folder_write_json(const folder *f, const char *file, const json_t *v);

// A small valid config.json of this architecture.
json_t *small_config(const char *architecture);
// Sets obj[key] to the value that `text` is as JSON, or removes it when text is NULL.
void set_field(json_t *obj, const char *key, const char *text);

// A safetensors file: header text, then data.
void write_safetensors(const folder *f, const char *file, const char *header, const void *data,
                       size_t size);

#endif
