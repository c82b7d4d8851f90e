// SPDX-License-Identifier: Apache-2.0
#include "engine/stacked.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/parity.h"

enum { MOST_BYTES = 4 << 20, NAME = 128 };

// A safetensors file.
typedef struct file {
    json_t *header;
    uint8_t *data;
    size_t size;
} file;

static file read_file(const char *path)
{
    file r = {.data = malloc(MOST_BYTES)};
    uint8_t length[8];
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(length, 1, 8, f), 8);
    const size_t n = (size_t)length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16;
    r.size = fread(r.data, 1, n, f);
    r.header = json_loadb((const char *)r.data, r.size, 0, NULL);
    assert_non_null(r.header);
    r.size = fread(r.data, 1, MOST_BYTES, f);
    fclose(f);
    return r;
}

static void append(file *out, const file *in, const json_t *tensor)
{
    const json_t *at = json_object_get(tensor, "data_offsets");
    const size_t begin = (size_t)json_integer_value(json_array_get(at, 0));
    const size_t n = (size_t)json_integer_value(json_array_get(at, 1)) - begin;
    assert_true(out->size + n <= MOST_BYTES);
    memcpy(out->data + out->size, in->data + begin, n);
    out->size += n;
}

static void end_tensor(file *out, const char *name, const json_t *dtype, json_t *shape,
                       size_t begin)
{
    json_t *t = json_pack("{s:O, s:o, s:[I, I]}", "dtype", dtype, "shape", shape, "data_offsets",
                          (json_int_t)begin, (json_int_t)out->size);
    assert_non_null(t);
    assert_int_equal(json_object_set_new(out->header, name, t), 0);
}

static const json_t *expert_part(const file *in, const char *module, int expert, const char *part)
{
    char key[2 * NAME];
    snprintf(key, sizeof key, "%s.experts.%d.%s.weight", module, expert, part);
    return json_object_get(in->header, key);
}

// The tensors by the names of parts [num] of all experts in `module`, one behind the other.
static void stack(file *out, const file *in, const char *module, const char *name,
                  const char *const *parts, int num)
{
    char key[NAME];
    const size_t begin = out->size;
    int experts = 0;
    for (; expert_part(in, module, experts, parts[0]) != NULL; experts++) {
        for (int p = 0; p < num; p++) append(out, in, expert_part(in, module, experts, parts[p]));
    }
    const json_t *like = expert_part(in, module, 0, parts[0]);
    const json_t *shape = json_object_get(like, "shape");
    const json_int_t rows = json_integer_value(json_array_get(shape, 0));
    const char *const old = strstr(module, "block_sparse_moe"); // of Mixtral; in memory it is mlp
    snprintf(key, sizeof key, "%.*s%s.experts.%s",
             (int)(old != NULL ? (size_t)(old - module) : strlen(module)), module,
             old != NULL ? "mlp" : "", name);
    end_tensor(out, key, json_object_get(like, "dtype"),
               json_pack("[i, I, O]", experts, rows * num, json_array_get(shape, 1)), begin);
}

// `key` is that of a module's first expert's product out. Nemotron-H's experts have no gate.
static void stack_module(file *out, const file *in, const char *key)
{
    char module[NAME];
    const bool old = strstr(key, ".w2.") != NULL;
    const char *const up[] = {old ? "w1" : "gate_proj", old ? "w3" : "up_proj"};
    const char *const down[] = {old ? "w2" : "down_proj"};
    snprintf(module, sizeof module, "%.*s", (int)(strstr(key, ".experts.") - key), key);
    if (expert_part(in, module, 0, up[0]) != NULL) {
        stack(out, in, module, "gate_up_proj", up, 2);
    } else {
        stack(out, in, module, "up_proj", &up[1], 1);
    }
    stack(out, in, module, "down_proj", down, 1);
}

static void keep(file *out, const file *in, const char *key, const json_t *tensor)
{
    // Of Mixtral and MiniMax-M2, and of ERNIE.
    static const char *const others[][2] = {{".block_sparse_moe.", ".mlp."},
                                            {".mlp.moe_statics.", ".mlp.gate.moe_statics."}};
    static const char half[] = "language_model.model."; // of Gemma 3 that sees
    char name[NAME];
    const size_t begin = out->size, n = strlen(half);
    if (strncmp(key, half, n) == 0) {
        snprintf(name, sizeof name, "model.language_model.%s", key + n);
    } else {
        snprintf(name, sizeof name, "%s", key);
    }
    for (int i = 0; i < 2; i++) {
        const char *const at = strstr(key, others[i][0]);
        if (at == NULL) continue;
        snprintf(name, sizeof name, "%.*s%s%s", (int)(at - key), key, others[i][1],
                 at + strlen(others[i][0]));
    }
    append(out, in, tensor);
    end_tensor(out, name, json_object_get(tensor, "dtype"),
               json_incref(json_object_get(tensor, "shape")), begin);
}

void stacked_make(folder *f, const char *model)
{
    char path[512];
    folder_make(f);
    parity_path(path, model, "config.json");
    json_t *config = json_load_file(path, 0, NULL), *t;
    assert_non_null(config);
    folder_write_json(f, "config.json", config);
    json_decref(config);
    parity_path(path, model, "model.safetensors");
    file in = read_file(path), out = {.header = json_object(), .data = malloc(MOST_BYTES)};
    const char *key;
    json_object_foreach(in.header, key, t)
    {
        if (strcmp(key, "__metadata__") == 0) continue;
        if (strstr(key, ".experts.") == NULL) {
            keep(&out, &in, key, t);
        } else if (strstr(key, ".experts.0.down_proj.") != NULL ||
                   strstr(key, ".experts.0.w2.") != NULL) {
            stack_module(&out, &in, key);
        }
    }
    char *text = json_dumps(out.header, JSON_COMPACT);
    write_safetensors(f, "model.safetensors", text, out.data, out.size);
    free(text);
    json_decref(in.header);
    json_decref(out.header);
    free(in.data);
    free(out.data);
}
