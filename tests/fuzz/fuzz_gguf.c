// SPDX-License-Identifier: Apache-2.0
//
// The input is a GGUF file. Whatever is accepted has every tensor inside the file, and their bytes,
// its strings, its config and its tokenizer are read.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "models/gguf.h"
#include "tokenizer/load_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint32_t read_all(const uint8_t *p, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += p[i];
    return sum;
}

// What loads must encode.
static int load_tokenizer(const msgl_gguf *g, msgl_err *err)
{
    static const char text[] = "ab <s> 12  \xc3\xa9 \xe2\x98\x83 <|im_end|>\n";
    msgl_tokenizer *t = NULL;
    msgl_ids ids = {0};
    const msgl_encode_opts opts = {.add_special = 1};
    const int code = msgl__tokenizer_from_gguf(g, &t, err);
    if (code == 0) {
        (void)msgl__tokenizer_encode(t, text, sizeof text - 1, &opts, &ids, NULL);
        for (size_t i = 0; i < ids.len; i++) {
            if (ids.data[i] < 0 || ids.data[i] >= msgl__tokenizer_vocab_size(t)) __builtin_trap();
        }
    }
    msgl__ids_free(&ids);
    msgl__tokenizer_free(t);
    return code;
}

static void check_text(int code, const msgl_err *err)
{
    if (code != 0 && (err->text[0] == '\0' || strchr(err->text, '\n') != NULL)) __builtin_trap();
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
    check_text(code, &err);
    if (code == 0) {
        check_text(msgl__gguf_config(&g, &config, &err), &err);
        check_text(load_tokenizer(&g, &err), &err);
    }
    msgl__gguf_close(&g);
    free(copy);
    return sum == 0xffffffffu;
}
