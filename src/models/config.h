// SPDX-License-Identifier: Apache-2.0
//
// config.json and generation_config.json as one typed, range-checked struct. Both spellings are
// read: the one of most published folders (rope_theta, rope_scaling, torch_dtype) and the one that
// transformers 5 writes (rope_parameters, dtype). After a successful load every number here is safe
// to multiply and to allocate by.
#ifndef MSGL_MODELS_CONFIG_H
#define MSGL_MODELS_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"
#include "core/sampling_params.h"
#include "layers/rotary.h"
#include "models/decoder_config.h"
#include "models/encoder_config.h"
#include "models/projection.h"

#define MSGL_MAX_HEADS 1024
#define MSGL_MAX_HEAD_DIM 1024
#define MSGL_MAX_HIDDEN (1 << 17)
#define MSGL_MAX_INTERMEDIATE (1 << 20)
#define MSGL_MAX_VOCAB (1 << 24)
#define MSGL_MAX_EXPERTS 1024
#define MSGL_MAX_TOP_K 64
#define MSGL_MAX_EOS 8

typedef struct msgl_arch msgl_arch;
typedef struct msgl_json_reader msgl_json_reader; // models/json_read.h

typedef struct msgl_model_config {
    const msgl_arch *arch; // registry.c
    msgl_dtype dtype;      // that the file says the weights have
    int32_t vocab_size, hidden_size, num_layers, max_position;
    int32_t num_heads, num_kv_heads, head_dim;
    bool tie_embeddings;
    msgl_rope_config ropes[MSGL_MAX_ROPES]; // that layers rotate by
    int32_t num_ropes;
    float logit_scale, logit_cap; // of the head's results, in this order; cap 0: none
    msgl_decoder_config decoder;  // of the architecture's family, the one or ...
    msgl_encoder_config encoder;  // ... the other
    int32_t num_labels;           // of a head that classifies texts; 0: there is none
    // Behind a text's pooled row; Dense modules are the engine's to add, as the folder says.
    msgl_projection projections[MSGL_MAX_PROJECTIONS];
    int32_t num_projections;
    msgl_projection token_heads[MSGL_TOKEN_HEADS]; // the same
    int32_t num_eos;                               // generation_config.json's where it has them
    int32_t eos_ids[MSGL_MAX_EOS];
    // Of a request that leaves these fields out: generation_config.json's, else plain sampling.
    msgl_sampling_params sampling;
} msgl_model_config;

// Reads the config of the model at `path`, in whatever format it is (models/checkpoint.h). Errors
// are one line with file, field, what was found and what is allowed.
int msgl__model_config_load(const char *path, msgl_model_config *out, msgl_err *err);

// The same of the head for multi-token prediction that the model's files have, of several the one
// `ahead` (msgl_arch.mtp); MSGL_EUNSUPPORTED: minisgl knows of none in files of this architecture.
int msgl__model_config_load_mtp(const char *path, int32_t ahead, msgl_model_config *out,
                                msgl_err *err);

// For formats: the config of a folder with config.json and, when there, generation_config.json; and
// the fields of these two files in whatever `r` reads. Return the reader's status.
int msgl__config_load_folder(const char *dir, msgl_model_config *out, msgl_err *err);
int msgl__config_read(msgl_json_reader *r, msgl_model_config *out);
int msgl__config_read_generation(msgl_json_reader *r, msgl_model_config *out);

// num_labels, or as many as id2label has, of which config.json has two where it does not say.
void msgl__config_read_labels(msgl_json_reader *r, msgl_model_config *c);

// For an architecture's own fields of rope_parameters or rope_scaling: *out reads that object.
// False: there is none.
bool msgl__config_rope_section(const msgl_json_reader *r, msgl_json_reader *out);

// Tokens of context that the model is made for: max_position_embeddings, or what its rope scaling
// stretches that to.
int32_t msgl__model_config_context(const msgl_model_config *c);

#endif
