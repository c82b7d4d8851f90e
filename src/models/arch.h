// SPDX-License-Identifier: Apache-2.0
//
// What a model architecture is: a name in config.json, the fields that only it has, the tensors it
// wants from a checkpoint, and its forward pass. One file per architecture ends in one const
// descriptor; registry.c has one line for each. docs/adding-a-model.md walks through it.
#ifndef MSGL_MODELS_ARCH_H
#define MSGL_MODELS_ARCH_H

#include "models/config.h"
#include "models/json_read.h"
#include "models/model.h"
#include "models/weights.h"

struct msgl_arch {
    const char *name;         // as in config.json's "architectures"
    int32_t default_head_dim; // when config.json has none; 0: hidden_size / num_attention_heads
    // Reads the fields that are this architecture's own, after the common ones; failures go to the
    // reader.
    void (*configure)(msgl_json_reader *r, msgl_model_config *c);
    // Names every tensor with its shape and where it goes. Failures go to the plan.
    void (*declare)(msgl_model *m, msgl_weight_plan *p);
    // Step arena bytes that forward takes at most for this many tokens and rows.
    size_t (*workspace)(const msgl_model *m, int32_t max_tokens, int32_t max_rows);
    // The step's tokens -> hidden states, before the final norm, of those in rows [num_rows]
    // (indices into the step's tokens, on the device): [num_rows, hidden] in the step arena, NULL
    // when num_rows is 0 or on failure (exec->status). Begins with msgl__embed. Stores K and V of
    // all tokens on the way.
    void *(*forward)(const msgl_model *m, msgl_forward *f, const int32_t *rows, int32_t num_rows);
};

// registry.c
const msgl_arch *msgl__arch_find(const char *name); // NULL: unknown
void msgl__arch_names(char *buf, size_t size);      // "A, B, C", cut to fit
int msgl__arch_count(void);
const msgl_arch *msgl__arch_at(int i);

// config.c: use_sliding_window, sliding_window and, with by_layer, which layers have it
// (layer_types or max_window_layers); for the Qwen family.
void msgl__config_read_windows(msgl_json_reader *r, msgl_model_config *c, bool by_layer);

#endif
