// SPDX-License-Identifier: Apache-2.0
//
// What adapters have in the place of the model's own: whole modules (modules_to_save:
// "lm_head.weight", maybe with its bias), and rows of the embedding or the head
// (trainable_token_indices: "embed_tokens.token_adapter.trainable_tokens_delta", which despite its
// name has the rows themselves). Of a head that is tied to the embedding PEFT has the same rows.
#ifndef MSGL_MODELS_LORA_SAVED_H
#define MSGL_MODELS_LORA_SAVED_H

#include "layers/lora.h"
#include "models/lora_config.h"
#include "models/model.h"

// All of one adapter whose tensors are in c.
typedef struct msgl_lora_saved_reader {
    const struct msgl_lora_sites *sites;
    const msgl_checkpoint *c;
    const msgl_lora_config *config;
    struct msgl_lora_saved_module *modules;
    size_t num, room;
    int status; // of what was taken last
    msgl_err *err;
} msgl_lora_saved_reader;

// Whether the tensor, called `name` behind PEFT's prefix, is one of these; in r->status 0 or, with
// one line in *err that names it, MSGL_EUNSUPPORTED, MSGL_ELIMIT, MSGL_EFORMAT, MSGL_ENOMEM. In the
// order of names.
bool msgl__lora_saved_take(msgl_lora_saved_reader *r, const msgl_tensor *t, const char *name);
// Behind the last one: checks shapes and plans *out [*num]. The caller frees it by
// msgl__lora_saved_free, whatever is returned.
int msgl__lora_saved_plan(msgl_lora_saved_reader *r, msgl_weight_plan *p, msgl_lora_saved **out,
                          int *num);
// Fills what has been placed. Failures go to x->status.
void msgl__lora_saved_load(const msgl_lora_saved_reader *r, const msgl_lora_saved *all, int num,
                           msgl_exec *x);
void msgl__lora_saved_free(msgl_lora_saved *all, int num);
void msgl__lora_saved_reader_free(msgl_lora_saved_reader *r);

#endif
