// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints in one GGUF file or the splits of one: config and tensors as llama.cpp's
// convert_hf_to_gguf.py has written them, under the names that the architectures declare.
#include "models/gguf.h"

#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/formats.h"
#include "quant/blocks.h"
#include "utils/gguf_split.h"

enum { PATH_BYTES = 4096, NAME_BYTES = 192 };

// ---- names ----

typedef struct name_pair {
    const char *gguf, *model;
} name_pair;

static const name_pair TOP[] = {
    {"token_embd.", "model.embed_tokens."},
    {"output_norm.", "model.norm."},
    {"output.", "lm_head."},
};

// Behind "blk.N." and "model.layers.N.".
static const name_pair BLOCK[] = {
    {"attn_norm.", "input_layernorm."},    {"attn_q.", "self_attn.q_proj."},
    {"attn_k.", "self_attn.k_proj."},      {"attn_v.", "self_attn.v_proj."},
    {"attn_output.", "self_attn.o_proj."}, {"attn_q_norm.", "self_attn.q_norm."},
    {"attn_k_norm.", "self_attn.k_norm."}, {"ffn_norm.", "post_attention_layernorm."},
    {"ffn_gate.", "mlp.gate_proj."},       {"ffn_up.", "mlp.up_proj."},
    {"ffn_down.", "mlp.down_proj."},
};

// The pair whose name `s` begins with.
static const name_pair *find_pair(const name_pair *pairs, size_t n, const char *s)
{
    for (size_t i = 0; i < n; i++) {
        if (strncmp(s, pairs[i].gguf, strlen(pairs[i].gguf)) == 0) return &pairs[i];
    }
    return NULL;
}

// The model's name of a tensor, its own where no pattern fits.
static void model_name(const char *name, char out[NAME_BYTES])
{
    const char *digits = name + 4, *part = NULL;
    const size_t n = strncmp(name, "blk.", 4) == 0 ? strspn(digits, "0123456789") : 0;
    if (n > 0 && digits[n] == '.' && (digits[0] != '0' || n == 1)) part = digits + n + 1;
    const name_pair *p = part != NULL ? find_pair(BLOCK, MSGL_COUNT(BLOCK), part)
                                      : find_pair(TOP, MSGL_COUNT(TOP), name);
    if (p == NULL) {
        snprintf(out, NAME_BYTES, "%s", name);
    } else if (part != NULL) {
        snprintf(out, NAME_BYTES, "model.layers.%.*s.%s%s", (int)n, digits, p->model,
                 part + strlen(p->gguf));
    } else {
        snprintf(out, NAME_BYTES, "%s%s", p->model, name + strlen(p->gguf));
    }
}

// ---- tensors ----

static void set_type(msgl_tensor *t, const msgl_gguf_storage *s)
{
    t->type = s->name;
    t->dtype = MSGL_F32;
    t->blocks = msgl__blocks_of_ggml(s->name);
    // ggml spells the types without blocks as safetensors do.
    t->loadable = t->blocks != NULL || msgl__dtype_parse(s->name, &t->dtype) == 0;
}

static int add_tensor(const msgl_gguf *g, const msgl_gguf_tensor *from, int32_t file,
                      msgl_tensor_list *list, msgl_err *err)
{
    char stored[NAME_BYTES], name[NAME_BYTES];
    snprintf(stored, sizeof stored, "%.*s", (int)from->name.n, from->name.p);
    if (strcmp(stored, "rope_freqs.weight") == 0) return 0; // the config's
    model_name(stored, name);
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
    set_type(t, from->storage);
    return 0;
}

static int add_tensors(const msgl_gguf *g, int32_t file, msgl_tensor_list *list, msgl_err *err)
{
    int code = msgl__tensor_list_grow(list, g->num_tensors, g->file, err);
    for (size_t i = 0; i < g->num_tensors && code == 0; i++) {
        code = add_tensor(g, &g->tensors[i], file, list, err);
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

static int open_files(const char *path, msgl_checkpoint *c, msgl_err *err)
{
    msgl_gguf_splits p;
    int code = open_splits(path, &p, err);
    for (uint32_t i = 0; i < p.count && code == 0; i++) {
        msgl_gguf *g = &p.at[i];
        code = msgl__checkpoint_take(c, p.paths[i], g->map, g->size, err);
        if (code == 0) {
            g->map = NULL;
            code = add_tensors(g, c->num_files - 1, &c->tensors, err);
        }
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
