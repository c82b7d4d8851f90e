// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding: the inverse frequencies of each scaling variant, and the cos/sin
// table of a step. Everything here follows transformers' modeling_rope_utils, which is what the
// published models were checked with; the papers are named at each formula.
#ifndef MSGL_LAYERS_ROTARY_H
#define MSGL_LAYERS_ROTARY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/batch.h"
#include "core/err.h"
#include "kernel/dual_chunk.h"

typedef enum msgl_rope_type {
    MSGL_ROPE_DEFAULT,
    MSGL_ROPE_LINEAR,
    MSGL_ROPE_DYNAMIC,
    MSGL_ROPE_YARN,
    MSGL_ROPE_LLAMA3,
    MSGL_ROPE_LONGROPE,
    MSGL_ROPE_PROPORTIONAL, // only the first pairs rotate, all are (i, i + dim / 2) (Gemma 4)
    MSGL_ROPE_TYPES,        // names of config.json end here
    // Angles of 0: of layers without positions (NoPE; Kazemnejad et al. 2023).
    MSGL_ROPE_NONE = MSGL_ROPE_TYPES,
} msgl_rope_type;

// "default", "linear", ...: the names of rope_type in config.json.
const char *msgl__rope_type_name(msgl_rope_type t);

enum { MSGL_MAX_LONGROPE = 128 }; // pairs

typedef struct msgl_rope_config {
    msgl_rope_type type;
    int32_t dim; // rotated dimensions of a head, even
    double theta;
    double factor;
    int32_t max_position;                     // max_position_embeddings
    int32_t original_max;                     // llama3, yarn: context length before scaling
    double low_freq_factor, high_freq_factor; // llama3
    double beta_fast, beta_slow;              // yarn
    double attention_factor;                  // yarn; 0: inferred from factor or the mscales
    double mscale, mscale_all_dim;            // yarn; 0: absent
    double share;                             // proportional: of pairs that rotate
    bool truncate;                            // yarn: whole-numbered correction range
    // longrope: what frequencies are divided by, up to original_max positions and beyond.
    float short_factor[MSGL_MAX_LONGROPE], long_factor[MSGL_MAX_LONGROPE];
    msgl_dual_chunk dual;
} msgl_rope_config;

// Fills inv_freq [cfg->dim / 2] for a prompt of prompt_len tokens (only dynamic scaling and
// longrope look at it) and returns the factor that cos and sin are multiplied by.
float msgl__rope_inv_freq(const msgl_rope_config *cfg, int32_t prompt_len, float *inv_freq);

// Tokens [first, first + count) of a step that share row `row` of the step's inverse frequencies.
typedef struct msgl_rope_segment {
    int32_t first, count, row;
} msgl_rope_segment;

// With dynamic scaling and longrope the frequencies of a request are fixed by its prompt's length,
// so that its result does not depend on how the prompt is cut into chunks and equals one prefill by
// transformers. Requests of different frequencies must then not share cached prefixes.
static inline bool msgl__rope_per_request(const msgl_rope_config *cfg)
{
    return cfg->type == MSGL_ROPE_DYNAMIC ||
           (cfg->type == MSGL_ROPE_LONGROPE && cfg->original_max < cfg->max_position);
}

// Whether hidden states of a prefix depend on the length of the prompt behind it, in requests of up
// to max_seq_len tokens: by its frequencies, or by the scale of dual chunk attention.
static inline bool msgl__rope_by_length(const msgl_rope_config *cfg, int32_t max_seq_len)
{
    const int32_t original = cfg->dual.original;
    return msgl__rope_per_request(cfg) || (original > 0 && max_seq_len > original);
}

// Rows of inverse frequencies that a batch of max_requests can need.
static inline int32_t msgl__rope_max_rows(const msgl_rope_config *cfg, int32_t max_requests)
{
    return msgl__rope_per_request(cfg) ? max_requests : 1;
}

// The rotations that a model's layers choose from; layers of most models have one.
enum { MSGL_MAX_ROPES = 2 };

// One of them in a step: msgl__rope_prepare's results, inv_freq on the device.
typedef struct msgl_step_rope {
    const float *inv_freq;
    const msgl_rope_segment *segments;
    int32_t num_segments, half; // half: rotated dimensions / 2
    float scale;                // of cos and sin
    msgl_dual_chunk dual;
} msgl_step_rope;

// Floats that a token has in the step's table of this rope.
static inline int32_t msgl__rope_width(const msgl_rope_config *cfg)
{
    return cfg->dim * (cfg->dual.len > 0 ? MSGL_DUAL_SETS : 1);
}

// Host part of a step: fills inv_freq [rows used, dim / 2] and segments [at most
// msgl__rope_max_rows], which cover the batch's tokens in order. Returns the number of segments.
// *scale: of cos and sin.
int32_t msgl__rope_prepare(const msgl_rope_config *cfg, const msgl_batch *batch, float *inv_freq,
                           msgl_rope_segment *segments, float *scale);

// The same for all of a model's ropes [num], of which only the first may be per request. inv_freq
// has room for msgl__ropes_floats, segments for msgl__ropes_segments; `device` is where a copy of
// inv_freq will be when the step runs, which out[i].inv_freq points into.
size_t msgl__ropes_floats(const msgl_rope_config *ropes, int32_t num, int32_t max_requests);
size_t msgl__ropes_segments(const msgl_rope_config *ropes, int32_t num, int32_t max_requests);
void msgl__ropes_prepare(const msgl_rope_config *ropes, int32_t num, const msgl_batch *batch,
                         float *inv_freq, const float *device, msgl_rope_segment *segments,
                         msgl_step_rope *out);

#endif
