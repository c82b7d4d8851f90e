// SPDX-License-Identifier: Apache-2.0
//
// What a model architecture is: a name in config.json, the fields that only it has, and the family
// whose layers it is made of. One file per architecture ends in one const descriptor; registry.c
// has one line for each. docs/adding-a-model.md walks through it.
#ifndef MSGL_MODELS_ARCH_H
#define MSGL_MODELS_ARCH_H

#include "models/config.h"
#include "models/json_read.h"
#include "models/model.h"
#include "models/weights.h"

// Models that are built of the same layers: what they have in common, from config to forward pass.
typedef struct msgl_family {
    // Reads the fields that all of them have, before the architecture's own; failures go to the
    // reader.
    void (*configure)(msgl_json_reader *r, msgl_model_config *c);
    // What its layers keep of a request, by groups of layers that keep alike (kvcache/layout.h),
    // with K and V of this dtype and activations of act, on each of so many ranks. A layer's place
    // in its group is its place in the group's pool.
    void (*caches)(const msgl_model_config *c, int32_t ranks, msgl_dtype dtype, msgl_dtype act,
                   msgl_cache_specs *out);
    // msgl__model_check_ranks.
    int (*check_ranks)(const msgl_model_config *c, int32_t ranks, int32_t *expert_ranks,
                       msgl_err *err);
    // What the attention of a group's layers differs in.
    msgl_attn_variants (*variants)(const msgl_model_config *c, int32_t group);
    // Makes m->layers, whatever that is, of m->cfg and m->target. free takes what build has left.
    int (*build)(msgl_model *m, msgl_err *err);
    void (*free)(msgl_model *m);
    // Names every tensor with its shape and where it goes, and every product with its use
    // (m->products). Failures go to the plan.
    void (*declare)(msgl_model *m, msgl_weight_plan *p);
    // Step arena bytes that forward takes at most for this many tokens and rows.
    size_t (*workspace)(const msgl_model *m, int32_t max_tokens, int32_t max_rows);
    // Of an EAGLE-3 head, before forward: states of the target, [rows, num_states * state_dim], as
    // the stream that f.hidden is then, [rows, hidden].
    void (*take_states)(const msgl_model *m, msgl_forward *f, const void *states, int32_t rows,
                        void *out);
    // The step's tokens -> hidden states, before the final norm, of those in rows [num_rows]
    // (indices into the step's tokens, on the device): [num_rows, hidden] in the step arena, NULL
    // when num_rows is 0 or on failure (exec->status). Begins with msgl__embed. Stores K and V of
    // all tokens on the way.
    void *(*forward)(const msgl_model *m, msgl_forward *f, const int32_t *rows, int32_t num_rows);
    // Every token of a text sees every other, so that a step has whole texts; forward's rows are
    // one a text, pooled (msgl_pool_mode), behind all norms and, with labels, the head, and there
    // are no tokens to be chosen.
    bool encodes;
} msgl_family;

enum { MSGL_MAX_IGNORED = 8, MSGL_MAX_RENAMED = 5, MSGL_MAX_FIXED = 12, MSGL_MAX_LAYER_LISTS = 3 };

// A number or truth value (0, 1) in config.json that changes what the model computes and may have
// this value only, with which it may also be missing.
typedef struct msgl_fixed_field {
    const char *key;
    double value;
} msgl_fixed_field;

struct msgl_arch {
    const char *name;       // as in config.json's "architectures"
    const char *other_name; // or this one; NULL: none
    const msgl_family *family;
    // What config.json means where it does not say:
    const char *head_dim_key;       // NULL: head_dim; latent attention: of the rotary part
    int32_t default_head_dim;       // 0: hidden_size / num_attention_heads
    double default_theta;           // 0: 10,000
    const char *default_dtype;      // NULL: bfloat16
    const msgl_json_alias *aliases; // NULL, or what files of hubs call fields; as in the reader
    const char *activation_key, *default_activation; // NULL: hidden_act, silu
    // Lists or strings with an entry for each layer: the first of them that is there says how many
    // layers there are, and where none is num_hidden_layers. NULL: no more.
    const char *layer_lists[MSGL_MAX_LAYER_LISTS];
    bool gelu_is_erf;   // the activation is "gelu", and that MSGL_GELU_ERF
    bool gelu_is_tanh;  // "gelu" stands for gelu_pytorch_tanh
    bool clamps_swiglu; // the gate is MSGL_SWIGLU_CLAMPED, whatever hidden_act calls that
    bool plain_mlp;     // feed-forward blocks have no gate, and the activation is a msgl_pointwise
    bool ties_by_default;
    // Not 0: heads may rotate in part; the share where partial_rotary_factor is missing.
    double rotary_factor;
    bool only_experts; // intermediate_size is none of a dense layer, if it is there
    bool own_width;    // the width of a dense layer is `configure`'s to read
    // Layers with a window rotate by parameters of their own, ropes[1]; the base of those where
    // nothing says it, 0: as of the others.
    bool local_rope;
    double local_theta;
    // What the objects of rope_parameters for these two kinds of layers are called, the ones
    // without a window first; NULL: full_attention, sliding_attention.
    const char *rope_kinds[2];
    // Not NULL: the fields of its language model are in this object of config.json, and those
    // missing there are in this JSON object.
    const char *text_section, *text_defaults;
    bool text_beside; // fields that the object does not have may stand beside it
    // Tensors whose names begin so are not the language model's.
    const char *ignored[MSGL_MAX_IGNORED];
    // So are those of layers behind the last one: they predict tokens further ahead (MTP).
    bool ignores_layers_behind;
    // What else files call the tensors whose names, as they are declared, begin with own. Example:
    // {"language_model.model.", "model.language_model."}. A '*' is a layer's number. own NULL: no
    // more.
    struct {
        const char *own, *other;
    } renamed[MSGL_MAX_RENAMED];
    msgl_fixed_field fixed[MSGL_MAX_FIXED]; // key NULL: no more
    // Reads the fields that are this architecture's own; failures go to the reader.
    void (*configure)(msgl_json_reader *r, msgl_model_config *c);
    // Not NULL: files have layers that predict tokens further ahead (MTP); makes *c, which is
    // read, the config of such a head. mtp_several: there may be several, each for a token further
    // ahead than the one before; `ahead` says which, from 0.
    void (*mtp)(msgl_model_config *c, int32_t ahead);
    bool mtp_several;
};

// registry.c
const msgl_arch *msgl__arch_find(const char *name); // NULL: unknown
void msgl__arch_names(char *buf, size_t size);      // "A, B, C", cut to fit
int msgl__arch_count(void);
const msgl_arch *msgl__arch_at(int i);

#endif
