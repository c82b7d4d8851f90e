// SPDX-License-Identifier: Apache-2.0
//
// A loaded model: its config, its layers with packed weights, and the decoder that all current
// architectures share (pre-norm blocks of attention and gated feed-forward, as in Llama).
#ifndef MSGL_MODELS_MODEL_H
#define MSGL_MODELS_MODEL_H

#include "layers/attention.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "models/config.h"
#include "models/weights.h"

typedef struct msgl_decoder_layer {
    msgl_norm attn_norm, ffn_norm;
    msgl_attention attn;
    bool sparse;
    msgl_mlp mlp; // unless sparse
    msgl_moe moe; // when sparse
} msgl_decoder_layer;

// Where and how a model will run.
typedef struct msgl_model_target {
    const msgl_kernels *kernels;
    const msgl_moe_desc *moe;
    msgl_dtype dtype; // of weights
    msgl_dtype act;   // of activations, as in msgl_exec
    int32_t ranks;    // that share the model
} msgl_model_target;

typedef struct msgl_model {
    msgl_model_config cfg;
    msgl_model_target target;
    msgl_weight embed;   // [vocab, hidden]
    msgl_linear lm_head; // [vocab, hidden]; with tied embeddings its weight is embed's
    msgl_norm final_norm;
    msgl_decoder_layer *layers; // [cfg.num_layers]
    msgl_weight *experts;       // [sparse layers, 2, num_experts], behind the layers' pointers
    msgl_weight_plan plan;      // until the weights are loaded
} msgl_model;

// What the attention of its layers differs in; needs the config only.
msgl_attn_variants msgl__model_variants(const msgl_model_config *c);

// Builds the layers and declares the weights; m->plan.bytes is what they will take. m->cfg must be
// loaded.
int msgl__model_build(msgl_model *m, const msgl_model_target *target, msgl_err *err);
void msgl__model_free(msgl_model *m); // not the weights' region

// Fills the weights in `region` (zeroed, m->plan.bytes): from DIR's checkpoint, checked first, or
// with random values when dir is NULL.
int msgl__model_load(msgl_model *m, void *region, const char *dir, msgl_exec *x,
                     msgl_load_progress progress, void *ctx, msgl_err *err);

// hidden [rows, hidden_size], before the final norm -> logits [rows, vocab_size].
void msgl__model_logits(const msgl_model *m, msgl_forward *f, const void *hidden, int32_t rows,
                        float *logits);
// Largest scratch that any product or expert kernel of this model takes for one call, with at most
// max_tokens tokens in a step and max_rows in a call of msgl__model_logits.
size_t msgl__model_scratch(const msgl_model *m, int32_t max_tokens, int32_t max_rows);

// Lets the device choose kernels for this model's products: of decode steps of up to max_batch
// requests and prefill steps of up to max_tokens tokens. Weights must be loaded; `memory` is a
// step's arena; failures go to x->status.
void msgl__model_tune(const msgl_model *m, msgl_exec *x, msgl_arena *memory, int32_t max_batch,
                      int32_t max_tokens);

// decoder.c: the functions of msgl_arch for this family.
void msgl__decoder_declare(msgl_model *m, msgl_weight_plan *p);
size_t msgl__decoder_workspace(const msgl_model *m, int32_t max_tokens, int32_t max_rows);
void *msgl__decoder_forward(const msgl_model *m, msgl_forward *f, const int32_t *rows,
                            int32_t num_rows);

#endif
