// SPDX-License-Identifier: Apache-2.0
//
// The input is a GGUF file. Whatever is accepted has every tensor inside the file, and their bytes,
// its strings and its config are read. Build with -fsanitize=fuzzer,address and link msgl_models.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t read_all(const uint8_t *p, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += p[i];
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy =
        malloc(size > 0 ? size : 1); // of exactly its size, so that a read past it is found
    if (copy == NULL) return 0;
    if (size > 0) memcpy(copy, data, size);
    msgl_gguf g;
    msgl_err err = {0};
    static msgl_model_config config; // large
    uint32_t sum = 0;
    int code = msgl__gguf_parse(copy, size, "fuzz", &g, &err);
    for (size_t i = 0; i < g.num_tensors && code == 0; i++) {
        const msgl_gguf_tensor *t = &g.tensors[i];
        if (t->data < copy || t->bytes > (size_t)(copy + size - t->data)) __builtin_trap();
        sum += read_all(t->data, t->bytes);
    }
    for (size_t i = 0; i < g.num_values && code == 0; i++) {
        const msgl_gguf_value *v = &g.values[i];
        size_t at = 0;
        for (size_t k = 0; k < v->count && v->type == MSGL_GGUF_STRING; k++) {
            const msgl_gguf_str s = msgl__gguf_next(v, &at);
            sum += read_all((const uint8_t *)s.p, s.n);
        }
    }
    if (code == 0) code = msgl__gguf_config(&g, &config, &err);
    if (code != 0 && (err.text[0] == '\0' || strchr(err.text, '\n') != NULL)) __builtin_trap();
    msgl__gguf_close(&g);
    free(copy);
    return sum == 0xffffffffu;
}
