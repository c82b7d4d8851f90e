// SPDX-License-Identifier: Apache-2.0
//
// The part of a model's config that is the decoder family's own (decoder.h): what its layers are
// made of. An architecture's `configure` changes what is not as in Llama.
#ifndef MSGL_MODELS_DECODER_CONFIG_H
#define MSGL_MODELS_DECODER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "kernel/calls.h"
#include "kernel/conv.h"
#include "kernel/dual_chunk.h"
#include "kernel/ssm.h"
#include "kernel/temper.h"

#define MSGL_MAX_LAYERS 1024

// Bits of layer_flags.
enum {
    MSGL_LAYER_SLIDING = 1,
    MSGL_LAYER_SPARSE = 2,
    MSGL_LAYER_SECOND_ROPE = 4,     // rotates by msgl_model_config.ropes[1]
    MSGL_LAYER_RECURRENT = 8,       // has the mixer with states that the config has
    MSGL_LAYER_NO_MIXER = 16,       // is a feed-forward block alone
    MSGL_LAYER_NO_FFN = 32,         // is a mixer alone
    MSGL_LAYER_CHOOSES_BLOCKS = 64, // of keys that it attends to
    MSGL_LAYER_SHARES_INDEX = 128,  // attends to the keys that a layer before it chose
    // Of compressed attention: attends to keys that stand for windows of tokens, too, to all of
    // them or, with the second flag, to those that an index chooses.
    MSGL_LAYER_COMPRESSES = 256,
    MSGL_LAYER_CHOOSES_WINDOWS = 512,
    MSGL_LAYER_TABLE = 1024,  // experts are looked up by token ids
    MSGL_LAYER_NGRAMS = 2048, // has embeddings of n-grams
};

typedef enum msgl_qk_norm {
    MSGL_QK_NORM_NONE,
    MSGL_QK_NORM_HEAD, // each head of q and k
    MSGL_QK_NORM_ALL,  // all heads of q, and all of k, as one vector each
    MSGL_QK_NORM_UNIT, // each head of layers that rotate, without weights
    // LayerNorm of each head of q and k, which all have their own weights, in a tensor for all of
    // them (Cohere) or one for each (StableLM).
    MSGL_QK_NORM_LAYER,
    MSGL_QK_NORM_LAYER_APART,
} msgl_qk_norm;

// Names of tensors, without what they begin with (prefix and "layers.N."; the head with nothing)
// and end in (".weight", ".bias"). NULL: there is none.
typedef struct msgl_decoder_names {
    const char *prefix, *head;
    const char *attn_norm, *attn_post_norm; // before the block, and of its result
    const char *ffn_norm, *ffn_post_norm;
    const char *embed, *norm; // of the model, behind prefix
    const char *mamba;        // what begins the names of Mamba-2's tensors
    const char *attn;         // what begins those of attention's q, K and V
    const char *qkv;          // q, k and v in one tensor
    const char *out;          // of attention's result
    const char *q_norm, *k_norm;
    const char *sinks;   // all of the name behind "layers.N."
    const char *gate_up; // gate and up in one tensor
    const char *mlp;     // the block of dense layers, and its products
    const char *mlp_gate, *mlp_up, *mlp_down;
    const char *mlp_gate_up; // its gate and up in one tensor; NULL: in two, or in gate_up
    // experts: what stands before ".N.gate"; NULL: no file has a tensor for each of them.
    const char *router, *experts, *gate, *up, *down;
    // Sparse layers have the dense block beside the experts (moe_norm not NULL): its result and
    // theirs are normed each, then added and joined as one block. The experts have a norm of the
    // stream of their own.
    const char *mlp_post_norm, *moe_norm, *moe_post_norm;
    // All of the names behind "layers.N.": [hidden] of the router's own norm, which is times
    // hidden^-0.5; [experts] of the choices' weights; one number that the stream is multiplied by
    // behind the layer.
    const char *router_norm, *choice_scale, *layer_scale;
    // Of per-layer embeddings, behind the prefix and behind "layers.N.".
    const char *layer_embed, *layer_projection, *layer_projection_norm;
    const char *layer_gate, *layer_out, *layer_out_norm;
    const char *table;      // of experts by token id: all of the name behind "layers.N."
    const char *correction; // what the router adds to scores: all of the name behind "layers.N."
    bool correction_row;    // which is [1, experts]
    const char *shared, *shared_gate;
    const char *latent_in, *latent_out; // of experts of latent vectors
    // In files whose experts are stacked: a tensor of all experts' gate and up, and one of their
    // down, the names behind "layers.N.", biases with _bias at the end; and the router of such
    // files, and what it adds, NULL: as of the others.
    const char *all_gate_up, *all_down, *all_router, *all_correction;
    // In files that stack the parts by themselves (GGUF): a tensor [experts, out, in] for all
    // experts' gates, their ups, and their downs, or one for their gates and ups; the names behind
    // "layers.N." and before .weight and .bias. each_down NULL: in no such file.
    const char *each_gate, *each_up, *each_gate_up, *each_down;
    bool all_by_columns; // [experts, in, out], else [experts, out, in]
    bool all_alternate;  // gate and up; else all of gate comes first
} msgl_decoder_names;

// The shape of attention in layers that see all tokens, or in those with a window. 0: as the
// model's config says for all of them; of v_dim head_dim.
typedef struct msgl_attn_shape {
    int32_t head_dim, v_dim; // of q and K, and of V
    int32_t num_kv_heads;
    bool k_is_v; // V is the product that K is made of, before its norm and rotation
    bool sinks;  // a logit a head
} msgl_attn_shape;

// Index queries and keys of DeepSeek sparse attention.
typedef struct msgl_index_config {
    int32_t heads, dim, top_k;
    bool interleaved; // its pairs (2 i, 2 i + 1) rotate, not (i, i + half)
} msgl_index_config;

// Blocks of keys (kernel/index.h) that layers with MSGL_LAYER_CHOOSES_BLOCKS attend to; top_k 0:
// there are no such layers.
typedef struct msgl_block_index_config {
    int32_t dim; // of index queries, of which each KV head has one, and keys
    int32_t size, top_k, local;
    // Not 0: blocks are chosen by the means of their keys, for all KV heads alike, with so many
    // queries.
    int32_t mean_queries;
    const char *q, *k, *q_norm, *k_norm; // names of tensors behind "layers.N."
    const char *qk;                      // of queries and key in one
} msgl_block_index_config;

// Gated residual streams (layers/gated_streams.h); num 0: the stream is one, and has norms.
typedef struct msgl_streams_config {
    int32_t num, rank;
} msgl_streams_config;

// Embeddings of hashed n-grams (layers/ngrams.h), in layers with MSGL_LAYER_NGRAMS, which are some
// of those with MSGL_LAYER_RECURRENT.
typedef struct msgl_ngrams_config {
    int32_t size, heads; // tokens of the longest n-gram; heads of each order
    int32_t dim;         // of all heads of a layer
    int32_t base;        // the primes of heads are those from it on
    int32_t divisor;     // of the table's rows
    int32_t parts;       // tensors that the table is in
    int32_t taps;        // of the convolution, whose inputs are `size` apart
    int32_t seed, end;   // of the hash, and the token that n-grams do not reach over
} msgl_ngrams_config;

// Multi-head latent attention: dimensions of latent vectors and of a head's parts; rank 0: none.
typedef struct msgl_latent_config {
    int32_t rank, q_rank; // of K and V; of q, 0: none
    int32_t nope, rotary; // of q and K without and with rotation
    int32_t v_dim;
    // Which keys a token attends to (kernel/index.h); top_k 0: all.
    msgl_index_config index;
    // kv_b_proj is in two tensors: k_b_proj [heads * rank, nope], v_b_proj [heads * v_dim, rank].
    bool apart;
} msgl_latent_config;

// Attention to the keys of a window and to compressed ones (layers/compressed_attention.h), in all
// layers; groups 0: none.
typedef struct msgl_compressed_config {
    int32_t q_rank;
    int32_t groups, out_rank;  // of the product of results
    int32_t rate, chosen_rate; // tokens of a window; with MSGL_LAYER_CHOOSES_WINDOWS
    msgl_index_config index;   // of those
} msgl_compressed_config;

// The residual as several streams (kernel/hyper.h); streams 0: it is one.
typedef struct msgl_hyper_config {
    int32_t streams, iterations;
    float eps;
} msgl_hyper_config;

// Linear attention by the gated delta rule (kernel/delta.h), in layers with MSGL_LAYER_RECURRENT;
// v_heads 0: none.
typedef struct msgl_delta_config {
    int32_t k_heads, v_heads, k_dim, v_dim;
    // in_proj_qkvz and in_proj_ba have what belongs to a k head side by side; otherwise
    // in_proj_qkv, in_proj_z, in_proj_b and in_proj_a have heads in their order.
    bool by_k_head;
    bool only_ba_by_k_head; // in_proj_ba is, and in_proj_qkv and in_proj_z are apart (GGUF)
    bool a_is_minus_exp;    // A_log is stored as -exp of it (GGUF)
    // The v heads of one k head are not side by side but k_heads apart (GGUF of Qwen3.5). Example:
    // 2 k heads, 6 v heads; the file's v heads 0 2 4 are k head 0's, our 0 1 2.
    bool v_heads_apart;
    bool sigmoid_gate; // of results: the sigmoid of z, not its silu
} msgl_delta_config;

// Short convolutions (layers/short_conv.h), likewise; channels 0: none.
typedef struct msgl_conv_config {
    int32_t channels, taps;
    bool bias; // of the convolution and both products
} msgl_conv_config;

// Mamba-2 (layers/mamba.h), likewise; heads 0: none.
typedef struct msgl_mamba_config {
    int32_t heads, groups, head_dim, state_dim, taps;
    bool conv_bias, proj_bias, out_bias; // of convolution, product in and product out
    float dt_min, dt_max;
    msgl_ssm_norm norm;
    int32_t norm_groups;
    // The product in times these: z, x, b, c and dt.
    float z_scale, x_scale, b_scale, c_scale, dt_scale;
    bool beside_attention; // its layers have attention too, and both add to the stream
    float out_scale;       // then: of what it adds
    bool a_is_minus_exp;   // as in msgl_delta_config
    float norm_eps;        // 0: rms_eps
} msgl_mamba_config;

// Blocks of attention and feed-forward that layers without MSGL_LAYER_RECURRENT have in front of
// Mamba-2, in turn: of 2 blocks the first, third, fifth of these layers have the first one. Tensors
// of a block are those of the first layer that has it. num 0: there are none.
typedef struct msgl_shared_block_config {
    int32_t num;
    // Of the low-rank parts that each of these layers has of its own; qkv 0: none there.
    int32_t mlp_rank, qkv_rank;
} msgl_shared_block_config;

// Kimi Delta Attention (layers/kda.h), likewise; heads 0: none.
typedef struct msgl_kda_config {
    int32_t heads, dim;
    bool a_is_minus_exp; // as in msgl_delta_config
} msgl_kda_config;

enum { MSGL_MAX_AUX_STATES = 3 };

typedef enum msgl_head_kind {
    MSGL_HEAD_NONE,   // a model by itself
    MSGL_HEAD_MTP,    // the stream is a product of embedding and state, side by side
    MSGL_HEAD_EAGLE3, // the stream is the state, and its first layer's attention reads both
} msgl_head_kind;

// A draft head: beside a token it is given a state of the target (docs/decisions/059).
typedef struct msgl_head_config {
    msgl_head_kind kind;
    int32_t state_dim, num_states; // of the target, those of a row side by side
    // EAGLE-3: behind which of the target's layers, from 0; [0] -1: the usual ones.
    int32_t state_layers[MSGL_MAX_AUX_STATES];
    int32_t vocab;   // of the target, which ids and embeddings are of
    bool own_logits; // it has a product of logits, of vocab_size drafts; else the target's
    bool own_embed;  // it has an embedding; else the target's
    // EAGLE-3: what attention adds to is the state behind its norm; else before it.
    bool norm_before_residual;
    // Names of tensors, whole but for ".weight".
    char embed_norm[48], state_norm[48], fc[48], final_norm[48];
    int32_t first_layer; // what its first layer is called in the file
    bool in_target;      // its tensors are among the target's
} msgl_head_config;

typedef struct msgl_decoder_config {
    msgl_head_config head;
    msgl_decoder_names names; // Llama's, but where `configure` changes them
    int32_t intermediate_size;
    float rms_eps;
    bool norm_plus_one; // norms multiply by 1 + weight
    bool layer_norm;    // norms of the stream are LayerNorms; rms_eps is theirs
    bool norm_bias;     // with biases
    bool parallel; // x += attention(norm(x)) + feed_forward(norm(x)); then there is no ffn_norm
    bool qkv_bias, o_bias, mlp_bias;
    bool router_bias, experts_bias;
    msgl_attn_shape shapes[2]; // of layers that see all tokens; with MSGL_LAYER_SLIDING
    // The last so many layers have no K and V: they attend to those of the last layer before them
    // with the same shape and window.
    int32_t shared_kv_layers;
    bool wide_shared_mlp;                   // and have twice intermediate_size
    bool v_norm;                            // each head of V, without weights
    float value_scale;                      // of V
    int32_t per_layer_dim, per_layer_vocab; // layers/per_layer_input.h; 0: none
    bool interleaved; // pairs (2 i, 2 i + 1) of a head rotate, not (i, i + half)
    // And all rows of a head are stored so, also those that do not rotate (GGUF of Bamba). Example:
    // head 8 of which 4 rotate; the file's rows 0 1 2 3 4 5 6 7 become 0 2 4 6 1 3 5 7.
    bool interleaved_all;
    msgl_qk_norm qk_norm;
    bool norms_behind; // norms of heads of q and K are behind the rotation
    float clip_qkv;    // q, K and V are cut to [-clip_qkv, clip_qkv] before it; 0: they are not
    bool gated_attn; // q_proj has q and gate of a head side by side: heads' results times sigmoids
    msgl_activation activation;
    msgl_pointwise pointwise; // of architectures with plain_mlp
    bool head_bias;           // of the product of logits
    msgl_block_index_config blocks;
    msgl_latent_config latent;
    msgl_compressed_config compressed;
    msgl_hyper_config hyper;
    msgl_delta_config delta;
    msgl_conv_config conv;
    msgl_mamba_config mamba;
    msgl_shared_block_config shared_blocks;
    msgl_kda_config kda;
    msgl_streams_config streams;
    msgl_ngrams_config ngrams;
    float attn_scale;                    // of scores
    float attn_softcap;                  // 0: none
    float embed_scale;                   // of embeddings
    bool rounds_embed_scale;             // to the weights' dtype
    float residual_scale;                // of what a block adds to the stream
    float attn_out_scale, ffn_out_scale; // and then of what the one and the other adds
    float ffn_norm_scale;                // of the norm before the feed-forward block
    int32_t sliding_window; // keys that a query of a sliding layer sees, itself included; 0: none
    bool chunked;           // sliding_window is the length of chunks (msgl_attn_layer)
    msgl_temper temper;     // of layers that do not rotate
    bool tempers_all;       // of all layers
    msgl_sparse_prompts sparse_prompts; // with dual chunks
    uint16_t layer_flags[MSGL_MAX_LAYERS];
    // Mixture of experts, in layers with MSGL_LAYER_SPARSE.
    int32_t num_experts, moe_intermediate_size;
    int32_t moe_latent_size; // of the vectors that experts read and make; 0: hidden_size
    msgl_router router;      // but for its correction
    bool weighs_input;       // of experts, not their results; then top_k is 1
    // An expert that every token has, its result scaled by the sigmoid of a product if that has a
    // name; 0: none.
    int32_t shared_intermediate_size;
} msgl_decoder_config;

#endif
