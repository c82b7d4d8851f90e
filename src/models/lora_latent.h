// SPDX-License-Identifier: Apache-2.0
//
// Adapters of latent attention's kv_b_proj, whose rows are for each head those of K, then those of
// V, and which the model has by heads, absorbed (layers/latent_attention.h).
#ifndef MSGL_MODELS_LORA_LATENT_H
#define MSGL_MODELS_LORA_LATENT_H

#include "layers/lora.h"
#include "models/lora_config.h"
#include "models/model.h"

// All of one adapter whose tensors are in c.
typedef struct msgl_lora_latent_reader {
    const struct msgl_lora_sites *sites;
    const msgl_checkpoint *c;
    const msgl_lora_config *config;
    struct msgl_lora_latent_module *modules;
    size_t num, room;
    msgl_err *err;
} msgl_lora_latent_reader;

// What the products of adapters take at most: *size becomes larger where that is not enough.
void msgl__lora_latent_size(const msgl_model *m, msgl_lora_size *size);
// The k_up of a layer; NULL: it has no latent attention.
const msgl_weight *msgl__lora_latent_at(const msgl_model *m, int32_t layer);
// Whether the module of this name is one of these.
bool msgl__lora_of_latent(const msgl_model *m, const char *module);
// A tensor, A or B, of the module called by the name's first `len` bytes, in the order of names.
// One line that names file and tensor goes to *err with MSGL_EFORMAT, MSGL_ELIMIT or MSGL_ENOMEM.
int msgl__lora_latent_take(msgl_lora_latent_reader *r, const msgl_tensor *t, const char *name,
                           size_t len, bool is_a);
// Behind the last one: checks shapes and plans *out [*num]. The caller frees it by
// msgl__lora_latent_free, whatever is returned.
int msgl__lora_latent_plan(msgl_lora_latent_reader *r, msgl_weight_plan *p, msgl_lora_latent **out,
                           int *num);
// Fills what has been placed. Failures go to x->status.
void msgl__lora_latent_load(const msgl_lora_latent_reader *r, msgl_lora_latent *all, msgl_exec *x);
void msgl__lora_latent_free(msgl_lora_latent *all, int num);
void msgl__lora_latent_reader_free(msgl_lora_latent_reader *r);

#endif
