// SPDX-License-Identifier: Apache-2.0
//
// Arguments of the kernels that fuse several operations. A call says what has to come out; each
// device decides how much of it one kernel does (a GPU folds a norm into a small product, the CPU
// does one after the other).
//
// Activations are rows of elements of exec->act: f32 on the CPU, the weights' dtype on a GPU, sums
// always f32. Every pointer is memory of the exec's device. Norm weights and biases are f32.
#ifndef MSGL_KERNEL_CALLS_H
#define MSGL_KERNEL_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <minisgl/minisgl.h>

#include "core/dtype.h"
#include "kernel/step_tokens.h"
#include "kernel/wformat.h"

// Of the gate in a feed-forward block: x sigmoid(x) (Shazeer 2020, SwiGLU), or x Phi(x) with the
// normal distribution by a tanh (Hendrycks & Gimpel 2016, section 2). Both times up; gpt-oss has
// min(x, 7) sigmoid(1.702 min(x, 7)) times (up + 1), up in [-7, 7] (openai/gpt-oss,
// torch/model.py).
typedef enum msgl_activation {
    MSGL_SILU,
    MSGL_GELU_TANH,
    MSGL_SWIGLU_CLAMPED,
    MSGL_GELU_ERF, // x Phi(x) by erf (ModernBERT)
    // min(x, 10) sigmoid(min(x, 10)) times up in [-10, 10] (DeepSeek-V4).
    MSGL_SILU_CLAMPED,
    MSGL_ACTIVATIONS,
} msgl_activation;

// Of a feed-forward block without a gate: one value in, one out. GELU is x Phi(x) (Hendrycks &
// Gimpel 2016), by erf or by a tanh; RELU2 max(x, 0)^2 (So et al. 2021, Primer); XIELU has
// parameters (pointwise.h). TANH is of heads over pooled vectors (BERT).
typedef enum msgl_pointwise {
    MSGL_POINTWISE_SILU,
    MSGL_POINTWISE_GELU,
    MSGL_POINTWISE_GELU_TANH,
    MSGL_POINTWISE_RELU2,
    MSGL_POINTWISE_XIELU,
    MSGL_POINTWISE_TANH,
} msgl_pointwise;

struct msgl_peer_sum; // cuda/peer_sum.h

// Fused add + RMSNorm, cut between two products. The one that adds to the residual stream x writes
// x * weight and each row's sums of squares in its epilogue; the next product multiplies the scaled
// rows and applies the factor 1 / sqrt(mean of squares + eps) of each row to its result.
typedef struct msgl_norm_stats {
    // [m, n], dense, of exec->act: x * weight; or, where `coded`, that in a form of the device's
    // own with no more bytes, which only the product behind is able to read.
    void *scaled;
    // [num_tiles, m]: sums of x^2 over the columns of a tile of the kernel; room for n /
    // MSGL_NORM_STATS_COLUMNS + 1 tiles. With n 5120 and tiles of 64 columns num_tiles is 80, and
    // sums[2 * m + 7] is that of row 7 over columns [128, 192).
    float *sums;
    int32_t num_tiles; // 0: there is nothing here
    // Whose values these are.
    const void *x;
    const float *weight;
    int32_t m;
    bool coded;
} msgl_norm_stats;

enum { MSGL_NORM_STATS_COLUMNS = 32 }; // fewest of a tile

// What a gated product may leave for the product behind it, the only one that reads its result:
// rows in the form in which that one multiplies them, which takes no more bytes, instead of values.
// Both calls get it.
typedef struct msgl_handover {
    const msgl_weight *reader; // that of the product behind
    bool left;                 // the result's rows are in that form
} msgl_handover;

// out = f(norm(in)) W^T + bias): rows of `in` are RMS-normalised first when norm is given (Zhang &
// Sennrich 2019, eq. 4), and the result is gated, added or stored.
typedef struct msgl_linear_call {
    const msgl_weight *w;
    const float *bias; // [w->n], or NULL
    const void *in;    // [m, w->k], stride ld_in elements
    size_t ld_in;
    int32_t m;         // >= 0
    const float *norm; // [w->k] weight of the norm, or NULL: none
    float norm_eps;
    bool gated; // W holds n/2 gate rows, then n/2 up rows: out [m, n/2] = activation(gate) * up
    msgl_activation activation;
    bool accumulate; // out += instead of out =; not together with gated or f32_out
    bool f32_out;    // out is f32 whatever exec->act is (logits)
    void *out;       // [m, n or n/2], stride ld_out elements
    size_t ld_out;
    // NULL, or: with norm, the stats of `in`, empty or not; with next_norm, empty, and where a
    // kernel that can do that leaves the stats of `out`. Not both.
    msgl_norm_stats *norm_stats;
    const float *next_norm; // [w->n] weight of the norm behind, or NULL
    // NULL, or, with accumulate: the product is this rank's part of a sum over two ranks, which
    // meets the other's there: out += the sum. For msgl_gemm_kernels.linear_sum alone.
    const struct msgl_peer_sum *sum;
    msgl_handover *handover; // NULL, or that of `out`, or, where its reader is w, that of `in`
} msgl_linear_call;

// Expert e multiplies rows [offsets[e], offsets[e + 1]) of in and writes the same rows of out. All
// experts share n, k and format.
typedef struct msgl_grouped_call {
    const msgl_weight *experts; // [num_experts], host array
    int32_t num_experts;
    const int32_t *offsets; // [num_experts + 1], device
    int32_t rows;           // >= offsets[num_experts]; more where other ranks have experts too
    const void *in;
    size_t ld_in;
    bool gated; // as above
    msgl_activation activation;
    const float *bias; // [num_experts, n], or NULL
    void *out;
    size_t ld_out;
    // Only where msgl_gemm_kernels.indexed says so. NULL, or: row j is row from[j] / from_per of
    // in, which is dense; `gathered` has room for those rows, [rows, k].
    const int32_t *from;
    int32_t from_per;
    void *gathered;
    const int32_t *to; // NULL, or, not together with gated: row j's result is row to[j] of out
    // The device arrays offsets, from and to were complete before the grouped product in front of
    // this call began, so that the kernel may read them before that product ends.
    bool inputs_ready;
} msgl_grouped_call;

// What a low-rank adapter (Hu et al. 2021, LoRA, eq. 3) adds to some rows of a product's result:
// columns [col, col + b->n) += B (A x), with B's scale in its values. A's rows of all parts stand
// in one weight: of q, k and v with rank 16 it has 48 rows, and v's part begins `at` 32.
typedef struct msgl_lora_part {
    const msgl_weight *b; // [n, rank]
    int at, col;
} msgl_lora_part;

// Neighbouring rows of one adapter.
typedef struct msgl_lora_run {
    int row, rows;
    const msgl_weight *a; // [ranks of all parts, k]
    const msgl_lora_part *parts;
    int num_parts;
} msgl_lora_run;

// All of one call's A have the same k.
typedef struct msgl_lora_call {
    const msgl_lora_run *runs;
    int num_runs;
    const void *in; // rows of k, stride ld_in elements, of which `norm` is taken first
    size_t ld_in;
    const float *norm; // [k], or NULL: none
    float norm_eps;
    bool f32_out; // as in msgl_linear_call
    void *out;
    size_t ld_out;
} msgl_lora_call;

// Of an msgl_lora_call, what its scratch depends on: the largest of each.
typedef struct msgl_lora_size {
    int rows, k, n, ranks, parts; // ranks: of all parts; n: columns that one part adds to
} msgl_lora_size;

enum { MSGL_MAX_LORA_PARTS = 8 }; // modules that are one product here: q, k, v, gate, ...

// What one adapter has of one linear layer, in the memory of a device that computes adapters by
// tiles. Values are of exec->act. Ranks are multiples of MSGL_LORA_RANK_STEP: an adapter of rank 5
// has 11 rows of zeros in A and as many columns of zeros in B.
typedef struct msgl_lora_entry {
    const void *a; // [ranks, k], dense, of all parts below each other; NULL: the layer stays as is
    int32_t ranks, num_parts;
    struct {
        const void *b;            // [n, rank], dense
        int32_t n, rank, at, col; // at, col: as in msgl_lora_part
    } parts[MSGL_MAX_LORA_PARTS];
} msgl_lora_entry;

enum { MSGL_LORA_RANK_STEP = 16 };

// Rows order[first, first + rows) of a step have the adapter in this slot. rows 0: none.
typedef struct msgl_lora_tile {
    int32_t slot, first, rows, unused;
} msgl_lora_tile;

// The same additions as a msgl_lora_call's, read from device memory alone: a captured call serves
// whatever rows and adapters its arrays have when it is launched. All arrays are of the device; the
// order and the tiles were complete before the step's first kernel ended.
typedef struct msgl_lora_tiles_call {
    const msgl_lora_entry *entries; // that of slot s is entries[s * stride]
    int32_t stride;
    int32_t parts, max_ranks; // most that an entry can have
    const msgl_lora_tile *tiles;
    int32_t num_tiles, tile_rows; // tile_rows: most rows of a tile, 8 or 64
    const int32_t *order;         // [rows] rows of the step that have adapters, by slot, ascending
    int32_t rows;
    int32_t first, m; // the call's rows [0, m) are the step's rows [first, first + m)
    int32_t n, k;     // of the layer
    const void *in;   // as in msgl_lora_call, from here on
    size_t ld_in;
    const float *norm;
    float norm_eps;
    bool f32_out;
    void *out;
    size_t ld_out;
} msgl_lora_tiles_call;

// What one adapter has of one product of many alike (an expert's, or a head's), in the memory of a
// device that computes adapters by tiles. Ranks are as in msgl_lora_entry.
typedef struct msgl_lora_member {
    const void *a; // [ranks of both parts, k], dense; NULL: the product stays as it is
    struct {
        const void *b;                // [n, rank], dense; NULL: there is no such part
        int32_t n, rank, col, unused; // columns [col, col + n)
    } parts[2];                       // the second one's rows of A stand behind the first one's
} msgl_lora_member;

enum { MSGL_LORA_MEMBER_RANKS = 512 }; // most of both parts: gate and up of rank 256

// The additions of a msgl_lora_call to products of many weights, read from device memory alone.
// Place p of `places` is a row of one product, or, where there is no source, of each.
typedef struct msgl_lora_members_call {
    const msgl_lora_member *const *sets; // that of slot s is sets[s * stride]; NULL: it has none
    int32_t stride;
    int32_t base, members; // a set's members [base, base + members)
    const int32_t *slots;  // of the step's rows, -1: none, as complete as msgl_lora_tiles_call's
    int32_t first;         // the call's token 0 is the step's row `first`
    // NULL: place p is token p, and has a row of every member. Else place p is choice source[p],
    // of token source[p] / top_k and of member ids[source[p]] - first_id, if that is in [0,
    // members).
    const int32_t *source, *ids;
    int32_t top_k, first_id;
    int32_t places, k;
    const void *in; // row of place p, or, by_token, of its token; of member m member_in elements on
    size_t ld_in, member_in;
    bool by_token;
    void *out; // row of place p, or, by_choice, source[p]
    size_t ld_out, member_out;
    bool by_choice;
} msgl_lora_members_call;

// A product a head: out[t, h, :] = in[t, h, :] W_h^T. All weights have one n, k and format.
typedef struct msgl_heads_call {
    const msgl_weight *w; // [heads], host array
    int32_t heads, m;     // >= 0 rows
    const void *in;       // [m, heads, w->k], strides ld_in and head_in elements
    size_t ld_in, head_in;
    void *out; // [m, heads, w->n], strides ld_out and head_out
    size_t ld_out, head_out;
} msgl_heads_call;

// An expert's score from the logits of its token: the softmax over all experts, or the sigmoid of
// its own logit (DeepSeek-AI 2024, "DeepSeek-V3", eq. 15). SparseMixer (Liu et al. 2024, as Phi-3.5
// MoE has it): each choice has the softmax over the experts that are not chosen yet and are near
// the best of them, l: those with (l - logit) / max(|logit|, l) <= spread.
typedef enum msgl_scoring {
    MSGL_SCORE_SOFTMAX,
    MSGL_SCORE_SIGMOID,
    MSGL_SCORE_SQRT_SOFTPLUS, // sqrt(ln(1 + exp(logit))) (DeepSeek-V4)
    MSGL_SCORE_SPARSEMIXER,   // with a scale of 1 and neither norm_topk, correction nor groups
} msgl_scoring;

enum { MSGL_MAX_EXPERT_GROUPS = 32 };

// How a token's experts are chosen: those with the largest score + correction. With groups (of
// experts next to each other, equally many) only experts of the best groups, which are those with
// the largest best score + correction or, with group_pairs, sum of the best two. Ties: the lowest
// index. A weight is scale * score, with norm_topk divided by the chosen experts' sum of scores, or
// by least_sum where that is more.
typedef struct msgl_router {
    int32_t top_k; // at most the experts of top_groups groups
    msgl_scoring scoring;
    bool norm_topk;
    float least_sum; // 0: none
    float scale;
    float *correction;  // [experts], device, or NULL
    int32_t num_groups; // <= MSGL_MAX_EXPERT_GROUPS; 0 or 1: none
    int32_t top_groups; // <= num_groups
    bool group_pairs;   // two experts or more in a group
    float spread;       // of MSGL_SCORE_SPARSEMIXER
    // [vocab, top_k] of the experts that tokens have by their ids, as f32, device, or NULL: by
    // their scores (DeepSeek-V4's first layers).
    float *table;
    int32_t table_ids; // vocab; other ids have the last one's
} msgl_router;

// A mixture's experts behind their choice: out[r, :] = (or, with accumulate, +=) sum over c < top_k
// of weights[r, c] * down(activation(gate in[r]) * up in[r]) of expert ids[r, c], each product with
// its bias; and, with shared_up, of the expert of all tokens with weight 1, which has none.
typedef struct msgl_experts_call {
    const msgl_weight *gate_up, *down; // [num_experts], host arrays
    msgl_activation activation;
    const float *gate_up_bias, *down_bias; // [num_experts, rows of the weights], or NULL
    int32_t num_experts, top_k, rows;
    const void *in;        // [rows, hidden], dense, as out
    const int32_t *ids;    // [rows, top_k]
    const float *weights;  // the same
    const int32_t *source; // msgl_moe_kernels.sort
    void *act;             // [rows * top_k, inter], for what is between
    bool accumulate;
    void *out;
    const msgl_weight *shared_up, *shared_down; // NULL: there is none
    void *shared_act;                           // [rows, its inter]
} msgl_experts_call;

// What a mixture of experts begins with: rows of in are normed, the router gives each expert its
// logit, and the kernels route and sort (kernel/ops.h) choose and order. rows * top_k assignments.
typedef struct msgl_choose_call {
    const void *in; // [rows, router->k], dense
    int32_t rows;
    const float *norm; // [router->k]
    float norm_eps;
    const msgl_weight *router; // [experts, k]
    const msgl_router *choice;
    void *normed;  // [rows, k]
    float *logits; // [rows, experts]
    int32_t *ids;  // [rows, top_k]
    float *weights;
    int32_t *offsets; // [experts + 1]
    int32_t *source;  // [rows * top_k]
} msgl_choose_call;

// q and k heads are normed (q_weight, k_weight [head_dim], or NULL) and rotated in place, v heads
// are normed if v_weight [v_dim] is there; then k and v of token t are stored, rounded to nearest
// even, at slot slots[t] of one layer's pool. num_kv_heads 0: there is only q. msgl_rope_kernels
// alone knows norms behind the rotation and clipped values: for other kernels that take such a call
// both are off.
typedef struct msgl_rope_call {
    void *qkv; // [tokens, ld]: q heads, k heads, v heads
    size_t ld;
    int32_t tokens, num_q_heads, num_kv_heads, head_dim;
    int32_t v_dim; // 0: head_dim
    const float *q_weight, *k_weight, *v_weight;
    float eps;
    bool norm_behind;     // heads rotate first (Hunyuan)
    float clip;           // q, k and v are first cut to [-clip, clip] (OLMoE); 0: they are not
    const float *cos_sin; // [tokens, 2 half]: half cosines, then half sines
    int32_t half;         // pairs (i, i + half) rotate; 2 half <= head_dim
    msgl_dtype kv_dtype;
    float k_scale, v_scale; // > 0; of E4M3, which holds k / k_scale and v / v_scale, else not read
    void *k_pool, *v_pool;  // [slots, num_kv_heads, head_dim or v_dim]
    const int32_t *slots;   // [tokens]
} msgl_rope_call;

// The same for multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): one latent
// vector and one rotary key a token. The latent vector is normed, the key rotated, and both are
// stored, rounded to nearest even; the rotary part of each query head is rotated on its way.
typedef struct msgl_latent_rope_call {
    int32_t tokens, num_heads;
    int32_t rank, half;   // of the latent vector; of the rotary key 2 half
    const void *latent;   // [tokens, ld_latent]: rank, then 2 half elements
    size_t ld_latent;     //
    const float *weight;  // [rank] of the norm
    float eps;            //
    const float *cos_sin; // [tokens, 2 half]: half cosines, then half sines
    const void *q;        // rotary part of token 0, head 0, strides ld_q and head_q elements
    size_t ld_q, head_q;  //
    void *out;            // where it goes; may be q
    size_t ld_out, head_out;
    msgl_dtype dtype;     // of the pool
    float scale;          // > 0; of E4M3: what is stored is divided by it
    void *pool;           // [slots, rank + 2 half]
    const int32_t *slots; // [tokens]
} msgl_latent_rope_call;

// Tokens of requests go to other slots of a pool, with their K and V of all its layers, as they
// are: move i takes what slot from[i] has to slot to[i]. Of a tree of drafts the accepted path gets
// behind the tokens before it: of rows 0, 2, 5 those of rows 2 and 5 go where rows 1 and 2 were.
// Moves [cu_moves[r], cu_moves[r + 1]) are request r's and done in this order; slots of a request
// are those of no other, its to[] are different ones, and none is the from[] of a later move: that
// of row 2 above is read first and written then. from[i] may be to[i].
typedef struct msgl_kv_move_call {
    // [num_layers, slots, k_bytes or v_bytes]; what a slot has in a layer. Latent: v NULL, v_bytes
    // 0.
    void *k, *v;
    size_t k_bytes, v_bytes, slots;
    int32_t num_layers, num_reqs;
    const int32_t *from, *to; // [cu_moves[num_reqs]]
    const int32_t *cu_moves;  // [num_reqs + 1], ascending from 0 on
} msgl_kv_move_call;

// What a step begins with: its tokens' ids and places, their rows of the embedding, and the table
// of their rotation (kernel/ops.h).
typedef struct msgl_embed_call {
    msgl_step_tokens tokens;  // ids in [0, w->n)
    const msgl_weight *w;     // [vocab, hidden]
    void *out;                // [tokens, hidden]
    const int32_t *positions; // [tokens]
    const float *inv_freq;    // [half], one set for all tokens
    int32_t half;
    float scale;
    float *cos_sin; // [tokens, 2 half]
    // NULL: rows that w has not are zeros. Or where two ranks, each with some of the rows, give
    // each other theirs; for tokens * (hidden + 1) elements.
    const struct msgl_peer_sum *sum;
} msgl_embed_call;

// What the sampler needs per row; copied from the request.
typedef struct msgl_sample_row {
    float temperature, top_p, min_p;
    int32_t top_k;
    uint64_t seed;
    int32_t position; // of the token being chosen: (seed, position) determines the random number
    // The request has a bias or a penalty: before anything else, and in this order,
    //   l[t] += value              for its pairs (t, value) of the call's bias,
    //   l[t] = l[t] > 0 ? l[t] / repetition : l[t] * repetition    for t in prompt or answer,
    //   l[t] = l[t] - frequency * n - presence                     for t that is n > 0 times in the
    //                                                              answer,
    // each operation rounded to f32. Prompt and answer so far are in the call's pool at
    // [tokens, tokens + position), of which the first prompt_len are the prompt. False: none of the
    // fields below is read.
    bool adjusts;
    float repetition, frequency, presence;
    int32_t tokens, prompt_len;
    int32_t bias, num_bias; // pairs [bias, bias + num_bias), tokens ascending
} msgl_sample_row;

enum { MSGL_MAX_COUNTED = (1 << 22) - 1 }; // tokens before these count as the prompt

enum { MSGL_DRY_MAX_EXPONENT = 512 };

// Further samplers of a row, as llama.cpp has them (src/llama-sampling.cpp); docs/sampling.md has
// their formulas and order. With mirostat no other filter counts, neither these nor the row's.
typedef struct msgl_sample_chain {
    float typical_p;                      // 1: off
    float xtc_probability, xtc_threshold; // 0: off
    float top_n_sigma;                    // <= 0: off
    float dynatemp_range, dynatemp_exponent;
    float dry_multiplier, dry_base;         // 0: off
    int32_t dry_allowed_length, dry_last_n; // < 0: all
    int32_t mirostat;                       // 0 or 2
    float mirostat_tau, mirostat_eta;
    float mu;          // of mirostat: what to begin with; NaN: what the call's `mu` has
    int32_t table_idx; // of the call's `mu` and `breakers`
    int32_t tokens;    // as the row's, also where it does not adjust
    bool breaks;       // the call's `breakers` has something
} msgl_sample_chain;

// Replay inputs of a captured call: the graph keeps the address of this struct, and the kernel
// reads its members at each replay.
typedef struct msgl_sample_replay {
    int32_t *tokens, *status; // [num_rows], of host_alloc too
    int32_t num_rows;         // at most the call's; 0: nothing is done
} msgl_sample_replay;

// tokens[r] = token chosen from logits[r, 0..vocab) by rows[r]; status[r] = 0, or MSGL_ENUMERIC and
// token -1 when a logit is NaN or all are -inf. Filters apply in the order temperature, top_k,
// top_p, min_p; ties at argmax: lowest id.
typedef struct msgl_sample_call {
    float *logits; // [num_rows, vocab], stride ld; after the call what they were before it
    size_t ld;
    int32_t num_rows, vocab;
    const msgl_sample_row *rows; // [num_rows]
    bool any_random;             // some row has temperature > 0
    bool any_filter;             // some such row has top_k, top_p or min_p
    int32_t *tokens, *status;    // [num_rows], of host_alloc too
    // NULL, or replay inputs on the device, for captured calls: its tokens and status take the
    // place of those above, and only its first num_rows rows are sampled.
    const msgl_sample_replay *replay;
    // Where the next step finds the token, or NULL: pool[pool_index[r]] = tokens[r], 0 where no
    // token could be chosen. pool_index [num_rows], on the device.
    int32_t *pool;
    const int32_t *pool_index;
    // Of `draw`: the logits' columns are the tokens [first, first + vocab), a multiple of 4, and
    // what is chosen of them is a key, of which the largest of all columns is the row's:
    // [num_rows], two words each. tokens, status and pool are not written. No row may adjust or
    // have filters.
    int32_t first;
    uint64_t *keys;
    // Of `pick`: NULL, or where two ranks give each other their keys; for 2 * num_rows elements.
    const struct msgl_peer_sum *sum;
    // For rows that adjust, else not read: the pairs, and room for the logits that they had, for
    // those of tokens at the places of the pool. No two rows share a place.
    const msgl_bias *bias;
    float *bias_saved, *saved;
    // Of `chain`: that of each row; mirostat's state by table_idx, and a copy of it for the host,
    // [num_rows]; by table_idx, too, a bit for each token that ends what DRY compares, in
    // ceil(vocab / 32) words.
    const msgl_sample_chain *chains;
    float *mu, *mu_out;
    const uint32_t *breakers;
} msgl_sample_call;

#endif
