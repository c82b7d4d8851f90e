// SPDX-License-Identifier: Apache-2.0
//
// Products behind a text's pooled row, one behind the other: the Dense modules of a folder in
// sentence-transformers' form, or the head by which a decoder classifies.
#ifndef MSGL_MODELS_PROJECTION_H
#define MSGL_MODELS_PROJECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

typedef struct msgl_forward msgl_forward;
typedef struct msgl_model msgl_model;
typedef struct msgl_weight_plan msgl_weight_plan;
typedef struct msgl_checkpoint msgl_checkpoint;

enum { MSGL_MAX_PROJECTIONS = 4, MSGL_MODULE_NAME = 64 };

typedef enum msgl_projection_act {
    MSGL_PROJECTION_IDENTITY,
    MSGL_PROJECTION_TANH,
    MSGL_PROJECTION_GELU,
    MSGL_PROJECTION_SILU,
} msgl_projection_act;

// What it reads and makes, and where its tensors are. Example: 2_Dense/model.safetensors,
// "2_Dense.", "linear.": its weight is the file's "linear.weight", and the checkpoint's
// "2_Dense.linear.weight".
typedef struct msgl_projection {
    char file[MSGL_MODULE_NAME + 20]; // of its own, in the model's folder; "": the model's
    char prefix[MSGL_MODULE_NAME + 2];
    const char *tensor;
    int32_t in, out; // columns; out 0: there is none
    bool bias;
    msgl_projection_act act; // of its result
} msgl_projection;

// What a model may make of each token of a text, beside what it makes of the text (bge-m3): a
// vector, by a product with colbert_linear, and a weight, by one with sparse_linear.
typedef enum msgl_token_head {
    MSGL_TOKEN_VECTORS,
    MSGL_TOKEN_WEIGHTS,
    MSGL_TOKEN_HEADS,
} msgl_token_head;

// Reads which of them the model's folder has, colbert_linear.safetensors and
// sparse_linear.safetensors, for a model of `hidden` columns: out [MSGL_TOKEN_HEADS].
int msgl__token_heads_find(const char *dir, int32_t hidden, msgl_projection *out, msgl_err *err);

// Of the model's cfg.projections, whose products are m->projections, and cfg.token_heads,
// m->token_heads: declares weights and products.
void msgl__projections_declare(msgl_model *m, msgl_weight_plan *p);
// Adds the tensors of their own files, in the model's folder `dir`, to its checkpoint.
int msgl__projections_open(const msgl_model *m, const char *dir, msgl_checkpoint *c, msgl_err *err);
// Step arena bytes of msgl__project for up to so many rows, and of one msgl__project_tokens.
size_t msgl__projections_bytes(const msgl_model *m, int32_t rows, int32_t tokens);
// rows [rows, hidden_size] -> [rows, out of the last one] in the step arena, or, without any
// projections, the rows themselves. NULL sets f->x->status.
const void *msgl__project(const msgl_model *m, msgl_forward *f, const void *rows, int32_t num_rows);
// rows [rows, hidden_size] -> [rows, out of the head], f32, in the step arena. The same.
const float *msgl__project_tokens(const msgl_model *m, msgl_forward *f, msgl_token_head head,
                                  const void *rows, int32_t num_rows);

#endif
