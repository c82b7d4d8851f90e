// SPDX-License-Identifier: Apache-2.0
//
// The input is a safetensors file. Whatever is accepted has every tensor inside the file, and their
// bytes are read.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size); // of exactly its size, so that a read past it is found
    if (copy == NULL) return 0;
    if (size > 0) memcpy(copy, data, size);
    msgl_tensor_list list = {0};
    msgl_err err = {0};
    const int code = msgl__safetensors_parse(copy, size, "fuzz", 0, &list, &err);
    uint32_t sum = 0;
    for (size_t i = 0; i < list.count && code == 0; i++) {
        const msgl_tensor *t = &list.at[i];
        if (t->data < copy || t->bytes > (size_t)(copy + size - t->data)) __builtin_trap();
        for (size_t b = 0; b < t->bytes; b++) sum += t->data[b];
    }
    if (code != 0 && (err.text[0] == '\0' || strchr(err.text, '\n') != NULL)) __builtin_trap();
    msgl__tensor_list_free(&list);
    free(copy);
    return sum == 0xffffffffu;
}
