// SPDX-License-Identifier: Apache-2.0
//
// The adapters that a server has, by their names: which folder is which, and the number of each
// reading of one. The event loop changes the list, workers read it.
#ifndef MSGL_API_LORAS_H
#define MSGL_API_LORAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MSGL_MAX_LORAS = 1024, MSGL_MAX_LORA_NAME = 128 };

typedef struct msgl_loras msgl_loras;

typedef struct msgl_lora_path {
    const char *name, *path;
} msgl_lora_path;

msgl_loras *msgl__loras_create(void); // NULL: out of memory
void msgl__loras_free(msgl_loras *l); // NULL is allowed

// One more, or in the place of one of this name. MSGL_ENOMEM, MSGL_ELIMIT.
int msgl__loras_put(msgl_loras *l, const char *name, const char *path, uint64_t id);
// *id: whose name it was. False: there is none.
bool msgl__loras_remove(msgl_loras *l, const char *name, uint64_t *id);
// The adapter of this name (not terminated): 1, with *path a copy of its folder; 0: there is none;
// MSGL_ENOMEM. path NULL: it is not wanted.
int msgl__loras_find(msgl_loras *l, const char *name, size_t len, uint64_t *id, char **path);
// For the event loop: the i-th, or false; the texts stay until the list is changed.
bool msgl__loras_at(const msgl_loras *l, int i, const char **name, const char **path);

#endif
