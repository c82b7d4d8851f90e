// SPDX-License-Identifier: Apache-2.0
//
// Adapters of experts in PEFT's folders, in both forms that they have, whichever the checkpoint is
// in:
//   layers.0.mlp.experts.3.up_proj.lora_A.weight   [r, hidden]: of each expert's linear layers
//   layers.0.mlp.experts.lora_A.weight             [experts * r, in]: of a parameter that stacks
//                                                  all (target_parameters)
// Of the second kind row e r + i of A is expert e's, and so is column i experts + e of B. Where
// both parameters of a layer have one, gate_up_proj's is called experts.base_layer; which one a
// single one is of, its shape says.
#ifndef MSGL_MODELS_LORA_EXPERTS_H
#define MSGL_MODELS_LORA_EXPERTS_H

#include "layers/lora.h"
#include "models/lora_config.h"
#include "models/model.h"

// The experts of a model, by layer.
typedef struct msgl_lora_block {
    const msgl_moe_experts *of;
    int32_t layer;
    msgl_range columns; // that this rank has of the intermediate ones
    int32_t inter;      // all of them
    bool alternate;     // rows of a stacked gate_up_proj are gate, up, gate, up, ...
} msgl_lora_block;

typedef struct msgl_lora_blocks {
    msgl_lora_block *at; // [num]
    int32_t num, max_rank;
} msgl_lora_blocks;

// Of a model that is open and not loaded yet. MSGL_ENOMEM.
int msgl__lora_blocks_create(const msgl_model *m, int32_t max_rank, msgl_lora_blocks *out,
                             msgl_err *err);
void msgl__lora_blocks_free(msgl_lora_blocks *b);
// What the products of adapters take at most: *size becomes larger where that is not enough.
void msgl__lora_blocks_size(const msgl_lora_blocks *b, msgl_lora_size *size);
// Bytes of scratch of their first products, which are done without a gate, of blocks of so many
// rows.
size_t msgl__lora_blocks_scratch(const msgl_lora_blocks *b, const msgl_gemm_kernels *k,
                                 msgl_dtype act, int32_t rows);
// Bytes of the step's arena for blocks of so many rows.
size_t msgl__lora_blocks_arena(const msgl_lora_blocks *b, msgl_dtype act, size_t rows);

// What a tensor is called without prefix and suffix ("layers.0.mlp.experts.3.up_proj"): whether it
// is of experts.
bool msgl__lora_of_experts(const char *module);

// The rest is of one adapter whose tensors are in c. One line that names file and tensor goes to
// *err with MSGL_EFORMAT, MSGL_EUNSUPPORTED, MSGL_ELIMIT or MSGL_ENOMEM.
typedef struct msgl_lora_expert_reader {
    const struct msgl_lora_sites *sites;
    const msgl_lora_blocks *blocks;
    const msgl_checkpoint *c;
    const msgl_lora_config *config;
    struct msgl_lora_expert_module *modules;
    size_t num, room;
    msgl_err *err;
} msgl_lora_expert_reader;

// A tensor, A or B, of the module that it is named for (as PEFT matches it), in the order of names.
int msgl__lora_experts_take(msgl_lora_expert_reader *r, const msgl_tensor *t, const char *name,
                            size_t len, bool is_a);
// Behind the last one: shapes and scales; then what *out [*num, one for each layer] is planned for.
// The caller frees it by msgl__lora_experts_free, whatever is returned.
int msgl__lora_experts_plan(msgl_lora_expert_reader *r, msgl_weight_plan *p,
                            msgl_lora_experts **out, int *num);
// Fills what has been placed. Failures go to x->status.
void msgl__lora_experts_load(const msgl_lora_expert_reader *r, const msgl_lora_experts *all,
                             int num, msgl_exec *x);
void msgl__lora_experts_free(msgl_lora_experts *all, int num);
void msgl__lora_expert_reader_free(msgl_lora_expert_reader *r);

#endif
