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
    msgl_weight_formats weights;
    msgl_dtype act;      // of activations, as in msgl_exec
    int32_t capability;  // of the device, as in msgl_device
    int32_t rank, ranks; // which of how many that share the model
    // Of them: a divisor of ranks. Experts are shared out in so many parts, and each expert is
    // shared by ranks / expert_ranks neighbours, as other layers are by all.
    int32_t expert_ranks;
    msgl_prompts prompts; // over latent caches
    // Of a draft head: whose embedding and head it may use, its target's where that is on one rank,
    // else a model of msgl__model_build_ends. It is built, opened and loaded before.
    const struct msgl_model *of;
} msgl_model_target;

typedef struct msgl_model {
    msgl_model_config cfg;
    int32_t *draft_ids; // [vocab_size] of an EAGLE-3 head: the target's ids of its own; owned
    msgl_model_target target;
    msgl_weight embed;    // [vocab, hidden]
    msgl_linear lm_head;  // [vocab, hidden]; with tied embeddings its weight is embed's
    msgl_norm final_norm; // dim 0: there is none
    msgl_linear projections[MSGL_MAX_PROJECTIONS], token_heads[MSGL_TOKEN_HEADS]; // as in cfg
    void *layers;                                                                 // the family's
    msgl_products products;       // of the layers and the head
    msgl_weight_plan plan;        // trimmed when the weights are loaded
    msgl_weight *parts;           // of weights with several; owned
    struct msgl_kept_form *forms; // of weights that are kept; owned
    bool kept;                    // some weights are as the file has them
    bool dummy;                   // weights are random, and so is what the checkpoint has
    msgl_checkpoint *checkpoint;  // from msgl__model_open to msgl__model_load; else NULL
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

// In *m (zeroed) embedding and product of logits of `of`, which is built and has shards of them,
// whole: [vocab, hidden] each, those that a draft head of this config has none of its own of. It is
// opened (from of's folder), loaded and freed as any model, and computes nothing by itself.
int msgl__model_build_ends(msgl_model *m, const msgl_model *of, const msgl_head_config *head,
                           msgl_err *err);

// Of a draft head: embedding and product of logits from target.of, when that is open, which may
// change their format. Nothing of other models.
void msgl__model_take_shared(msgl_model *m);

// For a family's `declare`: the embedding, of which each rank has some of the vocabulary's rows.
void msgl__model_declare_embed(msgl_model *m, msgl_weight_plan *p, const char *name);
// For a family's `declare`: the tensors of embedding, final norm (NULL: there is none) and, unless
// it is tied, head. norm_plus_one: the norm's is stored as what is missing to 1.
void msgl__model_declare_ends(msgl_model *m, msgl_weight_plan *p, const char *embed,
                              const char *norm, const char *head, bool norm_plus_one);

// For a table of `all` rows by id: those that this rank has, of which the last rank has fewer.
msgl_range msgl__model_vocab_rows(const msgl_model *m, int32_t all);

// Opens DIR's checkpoint and checks that it has all weights, in forms that can be read. What is
// wrong with it is known before any memory is taken. dummy: no file is read but config.json, whose
// quantization_config says which weights are packed, and how.
int msgl__model_open(msgl_model *m, const char *dir, bool dummy, msgl_err *err);
// Fills the weights in `region` (zeroed, m->plan.bytes): from the checkpoint that is open, and then
// is closed, or with random values.
int msgl__model_load(msgl_model *m, void *region, msgl_exec *x, msgl_load_progress progress,
                     void *ctx, msgl_err *err);

// Where the logits of some rows are, in the step arena.
typedef struct msgl_logits {
    void *normed; // [rows, hidden] where the final norm is a LayerNorm, else NULL
    float *whole; // [rows, vocab_size]
    // With several ranks each makes the columns of its own tokens; with one these are all.
    float *own; // [rows, own_tokens.count]
    msgl_range own_tokens;
    float *all;     // several ranks: all their own, one after the other
    uint64_t *keys; // several ranks: [1 + ranks, rows], msgl_sample_call's
} msgl_logits;

size_t msgl__model_logits_bytes(const msgl_model *m, int32_t rows);
// From the step arena, for up to so many rows. false sets f->x->status.
bool msgl__model_take_logits(const msgl_model *m, msgl_forward *f, int32_t rows, msgl_logits *out);
// out = what the product of logits reads of hidden, both [rows, hidden_size]: the final norm of it,
// or, where there is none, itself.
void msgl__model_norm(const msgl_model *m, msgl_forward *f, const void *hidden, void *out,
                      int32_t rows);
// hidden [rows, hidden_size], before the final norm -> l->own.
void msgl__model_logits(const msgl_model *m, msgl_forward *f, const void *hidden, int32_t rows,
                        const msgl_logits *l);
// l->own of all ranks -> l->whole, the same on all of them, which call this together. Of f only
// what computes and communicates is used.
void msgl__model_join_logits(const msgl_model *m, msgl_forward *f, int32_t rows,
                             const msgl_logits *l);
// Whether ranks can choose tokens from their own columns (msgl_sample_kernels.draw).
bool msgl__model_draws_apart(const msgl_model *m);

#endif
