// SPDX-License-Identifier: Apache-2.0
//
// A loaded model: its config, the two ends that all models have (embedding, final norm and head),
// and between them the layers of its family, which nobody else looks into.
#ifndef MSGL_MODELS_MODEL_H
#define MSGL_MODELS_MODEL_H

#include "models/config.h"
#include "models/products.h"
#include "models/weights.h"

// Where and how a model will run.
typedef struct msgl_model_target {
    const msgl_kernels *kernels;
    const msgl_moe_desc *moe;
    msgl_dtype dtype;            // of weights on which choices depend
    const msgl_wformat *weights; // of all others
    msgl_dtype act;              // of activations, as in msgl_exec
    int32_t capability;          // of the device, as in msgl_device
    int32_t rank, ranks;         // which of how many that share the model
    // Of them: a divisor of ranks. Experts are shared out in so many parts, and each expert is
    // shared by ranks / expert_ranks neighbours, as other layers are by all.
    int32_t expert_ranks;
    msgl_prompts prompts; // over latent caches
} msgl_model_target;

typedef struct msgl_model {
    msgl_model_config cfg;
    msgl_model_target target;
    msgl_weight embed;   // [vocab, hidden]
    msgl_linear lm_head; // [vocab, hidden]; with tied embeddings its weight is embed's
    msgl_norm final_norm;
    void *layers;           // the family's
    msgl_products products; // of the layers and the head
    msgl_weight_plan plan;  // until the weights are loaded
} msgl_model;

// The family's functions of the same names (arch.h); they need the config only.
void msgl__model_caches(const msgl_model_config *c, int32_t ranks, msgl_dtype dtype, msgl_dtype act,
                        msgl_cache_specs *out);
msgl_attn_variants msgl__model_variants(const msgl_model_config *c, int32_t group);

// Whether so many ranks can share the model, and its experts *expert_ranks of them, where 0 becomes
// what is best; MSGL_EUNSUPPORTED names what does not divide.
int msgl__model_check_ranks(const msgl_model_config *c, int32_t ranks, int32_t *expert_ranks,
                            msgl_err *err);

// Builds the layers and declares the weights; m->plan.bytes is what they will take. m->cfg must be
// loaded.
int msgl__model_build(msgl_model *m, const msgl_model_target *target, msgl_err *err);
void msgl__model_free(msgl_model *m); // not the weights' region

// For a family's `declare`: the tensors of embedding, final norm and, unless it is tied, head.
// norm_plus_one: the norm's is stored as what is missing to 1.
void msgl__model_declare_ends(msgl_model *m, msgl_weight_plan *p, const char *embed,
                              const char *norm, const char *head, bool norm_plus_one);

// Fills the weights in `region` (zeroed, m->plan.bytes): from DIR's checkpoint, checked first, or
// with random values when dir is NULL.
int msgl__model_load(msgl_model *m, void *region, const char *dir, msgl_exec *x,
                     msgl_load_progress progress, void *ctx, msgl_err *err);

// hidden [rows, hidden_size], before the final norm -> logits [rows, vocab_size], the same on all
// ranks. With several it takes from the step arena what msgl__model_logits_bytes says.
size_t msgl__model_logits_bytes(const msgl_model *m, int32_t rows);
void msgl__model_logits(const msgl_model *m, msgl_forward *f, const void *hidden, int32_t rows,
                        float *logits);

#endif
