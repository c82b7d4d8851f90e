// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints in one GGUF file or the splits of one: config and tensors as llama.cpp's
// convert_hf_to_gguf.py has written them, under the names that the architectures declare.
#include "models/gguf.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/decoder_config.h"
#include "models/formats.h"
#include "models/gguf/arch.h"
#include "quant/stored.h"
#include "utils/gguf_split.h"
#include "utils/log.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 192 };

// ---- names ----

// The model's name of a tensor, its own where no pattern fits, and how its dimensions are to be
// read.
static msgl_gguf_shape model_name(const msgl_gguf_arch *arch, const char *name,
                                  char out[NAME_BYTES])
{
    const char *digits = name + 4, *part = NULL;
    const size_t n = strncmp(name, "blk.", 4) == 0 ? strspn(digits, "0123456789") : 0;
    if (n > 0 && digits[n] == '.' && (digits[0] != '0' || n == 1)) part = digits + n + 1;
    const msgl_gguf_name *p = msgl__gguf_name_of(arch, part != NULL, part != NULL ? part : name);
    if (p == NULL) {
        snprintf(out, NAME_BYTES, "%s", name);
        return MSGL_GGUF_AS_IT_IS;
    }
    if (part != NULL) {
        snprintf(out, NAME_BYTES, "model.layers.%.*s.%s%s", (int)n, digits, p->model,
                 part + strlen(p->gguf));
    } else {
        snprintf(out, NAME_BYTES, "%s%s", p->model, name + strlen(p->gguf));
    }
    return p->shape;
}

// ---- tensors ----

static void set_type(msgl_tensor *t, const msgl_gguf_storage *s)
{
    t->type = s->name;
    t->dtype = MSGL_F32;
    t->packing.blocks = msgl__blocks_of_ggml(s->name);
    if (t->packing.blocks != NULL) t->packing.form = &msgl__stored_blocks;
    // ggml spells the types without blocks as safetensors do.
    t->loadable = t->packing.form != NULL || msgl__dtype_parse(s->name, &t->dtype) == 0;
}

// Example: attn_k_b of 4 heads, [4, 32, 16], is [128, 16] when it is flat.
static void set_shape(msgl_tensor *t, msgl_gguf_shape shape)
{
    int64_t *const d = t->dims;
    if (shape == MSGL_GGUF_ONE_ROW && t->ndim == 1) {
        d[1] = d[0];
        d[0] = 1;
        t->ndim = 2;
    } else if (shape == MSGL_GGUF_TAPS && t->ndim == 2) {
        d[2] = d[1];
        d[1] = 1;
        t->ndim = 3;
    } else if (shape == MSGL_GGUF_TAPS && t->ndim == 4 && d[0] == 1 && d[2] == 1) {
        d[0] = d[1];
        d[1] = 1;
        d[2] = d[3];
        t->ndim = 3;
    } else if (shape == MSGL_GGUF_VECTOR && t->ndim == 2) {
        int64_t all;
        if (__builtin_mul_overflow(d[0], d[1], &all)) return; // a row has no elements
        d[0] = all;
        t->ndim = 1;
    } else if (shape == MSGL_GGUF_FLAT && t->ndim == 3) {
        int64_t rows;
        if (__builtin_mul_overflow(d[0], d[1], &rows)) return; // a row has no elements
        d[0] = rows;
        d[1] = d[2];
        t->ndim = 2;
    }
}

static int add_tensor(const msgl_gguf *g, const msgl_gguf_arch *arch, const msgl_gguf_tensor *from,
                      int32_t file, msgl_tensor_list *list, msgl_err *err)
{
    char stored[NAME_BYTES], name[NAME_BYTES];
    snprintf(stored, sizeof stored, "%.*s", (int)from->name.n, from->name.p);
    if (strncmp(stored, "rope_f", 6) == 0) return 0; // the config's
    const msgl_gguf_shape shape = model_name(arch, stored, name);
    msgl_tensor *t = &list->at[list->count];
    *t = (msgl_tensor){
        .name = msgl__strdup(name),
        .label = msgl__strdup(stored),
        .file = file,
        .ndim = from->ndim,
        .data = from->data,
        .bytes = from->bytes,
    };
    list->count++;
    if (t->name == NULL || t->label == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", g->file);
    }
    for (int32_t i = 0; i < t->ndim; i++) t->dims[i] = from->dims[t->ndim - 1 - i];
    set_shape(t, shape);
    set_type(t, from->storage);
    return 0;
}

static int add_tensors(const msgl_gguf *g, const msgl_gguf_arch *arch, int32_t file,
                       msgl_tensor_list *list, msgl_err *err)
{
    int code = msgl__tensor_list_grow(list, g->num_tensors, g->file, err);
    for (size_t i = 0; i < g->num_tensors && code == 0; i++) {
        code = add_tensor(g, arch, &g->tensors[i], file, list, err);
    }
    return code;
}

// Numbers of each block that the file has in an array of float32, as tensors of one number.
static int add_arrays(const msgl_gguf *g, const msgl_gguf_arch *arch, int32_t file,
                      msgl_tensor_list *list, msgl_err *err)
{
    const msgl_gguf_array *a = arch != NULL ? arch->arrays : NULL;
    int code = 0;
    for (; a != NULL && a->key != NULL && code == 0; a++) {
        const msgl_gguf_value *v = msgl__gguf_get(g, a->key);
        if (v == NULL || !v->array || v->type != MSGL_GGUF_F32) continue; // then they are missing
        const size_t n = v->count < MSGL_MAX_LAYERS ? v->count : MSGL_MAX_LAYERS;
        code = msgl__tensor_list_grow(list, n, g->file, err);
        for (size_t l = 0; l < n && code == 0; l++) {
            char name[NAME_BYTES];
            snprintf(name, sizeof name, "model.layers.%zu.%s", l, a->model);
            msgl_tensor *t = &list->at[list->count++];
            *t = (msgl_tensor){.name = msgl__strdup(name),
                               .label = msgl__strdup(a->key),
                               .file = file,
                               .ndim = 1,
                               .dims = {1},
                               .data = v->data + l * sizeof(float),
                               .bytes = sizeof(float),
                               .type = "F32",
                               .dtype = MSGL_F32,
                               .loadable = true};
            if (t->name != NULL && t->label != NULL) continue;
            code = msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", g->file);
        }
    }
    return code;
}

// ---- the format ----

static bool is_gguf(const char *path)
{
    char file[PATH_BYTES];
    return msgl__gguf_find(path, file, sizeof file, NULL) != 0;
}

// The file of a model that is_gguf has said yes to.
static int find(const char *path, char file[PATH_BYTES], msgl_err *err)
{
    const int found = msgl__gguf_find(path, file, PATH_BYTES, err);
    if (found < 0) return found;
    return found > 0 ? 0 : msgl__err_set(err, MSGL_ENOENT, "%s: no GGUF file", path);
}

static int open_splits(const char *path, msgl_gguf_splits *out, msgl_err *err)
{
    char file[PATH_BYTES];
    *out = (msgl_gguf_splits){0};
    const int code = find(path, file, err);
    return code == 0 ? msgl__gguf_splits_open(file, out, err) : code;
}

// The first split's values, and the tensors of all.
static int merge(const msgl_gguf_splits *p, msgl_gguf *out, msgl_err *err)
{
    size_t n = 0;
    *out = p->at[0];
    for (uint32_t i = 0; i < p->count; i++) n += p->at[i].num_tensors;
    out->tensors = msgl__calloc(n, sizeof *out->tensors);
    out->num_tensors = 0;
    if (out->tensors == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", out->file);
    }
    for (uint32_t i = 0; i < p->count; i++) {
        const msgl_gguf *g = &p->at[i];
        if (g->num_tensors == 0) continue;
        memcpy(out->tensors + out->num_tensors, g->tensors, g->num_tensors * sizeof *g->tensors);
        out->num_tensors += g->num_tensors;
    }
    return 0;
}

static int load_config(const char *path, msgl_model_config *out, msgl_err *err)
{
    msgl_gguf_splits p;
    msgl_gguf whole = {0};
    int code = open_splits(path, &p, err);
    if (code == 0) code = merge(&p, &whole, err);
    if (code == 0) code = msgl__gguf_config(&whole, out, err);
    msgl__free(whole.tensors);
    msgl__gguf_splits_close(&p);
    return code;
}

// Once in a process, however many ranks open the file.
static void say_defaults(const msgl_gguf_model *m)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    const msgl_gguf_default *d = m->arch != NULL ? m->arch->defaults : NULL;
    const msgl_log log = msgl__log_default();
    if (d == NULL || atomic_flag_test_and_set(&said)) return;
    for (; d->key != NULL; d++) {
        if (msgl__gguf_field(m, d->key) != NULL || msgl__gguf_field(m, d->with) == NULL) continue;
        msgl__log(&log, MSGL_LOG_INFO, "%s: %s.%s: missing, %s is taken, as by llama.cpp",
                  m->g->file, m->arch->name, d->key, d->taken);
    }
}

// The row of the file's architecture; *arch NULL: there is none, which the config's reader has
// said.
static int find_arch(const msgl_gguf *g, const msgl_gguf_arch **arch, msgl_err *err)
{
    msgl_gguf_model m = {.g = g};
    const int code = msgl__gguf_metadata(g, &m.meta, err);
    *arch = m.arch = code == 0 ? msgl__gguf_arch_find(&m) : NULL;
    say_defaults(&m);
    json_decref(m.meta);
    return code;
}

static int open_files(const char *path, msgl_checkpoint *c, msgl_err *err)
{
    msgl_gguf_splits p;
    const msgl_gguf_arch *arch = NULL;
    int code = open_splits(path, &p, err);
    if (code == 0) code = find_arch(&p.at[0], &arch, err);
    for (uint32_t i = 0; i < p.count && code == 0; i++) {
        msgl_gguf *g = &p.at[i];
        code = msgl__checkpoint_take(c, p.paths[i], g->map, g->size, err);
        if (code == 0) {
            g->map = NULL;
            code = add_tensors(g, arch, c->num_files - 1, &c->tensors, err);
        }
        if (code == 0 && i == 0) code = add_arrays(g, arch, c->num_files - 1, &c->tensors, err);
    }
    msgl__gguf_splits_close(&p);
    return code == 0 ? msgl__checkpoint_sort(c, err) : code;
}

const msgl_checkpoint_format msgl__format_gguf = {
    .name = "gguf",
    .types = "F32, F16, BF16, F64, Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K, "
             "IQ1_S to IQ4_XS, TQ1_0, TQ2_0, MXFP4 or NVFP4",
    .is = is_gguf,
    .config = load_config,
    .open = open_files,
};
