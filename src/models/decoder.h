// SPDX-License-Identifier: Apache-2.0
//
// The decoder family: layers of rotary or linear attention and a gated feed-forward block or
// experts on one residual stream. Its architectures differ in options of these parts
// (decoder_config.h), each of which its file sets.
#ifndef MSGL_MODELS_DECODER_H
#define MSGL_MODELS_DECODER_H

#include "layers/attention.h"
#include "layers/compressed_attention.h"
#include "layers/delta.h"
#include "layers/kda.h"
#include "layers/latent_attention.h"
#include "layers/mamba.h"
#include "layers/mlp.h"
#include "layers/moe.h"
#include "layers/ngrams.h"
#include "layers/per_layer_input.h"
#include "layers/shared_block.h"
#include "layers/short_conv.h"
#include "layers/stream_block.h"
#include "models/arch.h"

extern const msgl_family msgl__decoder_family;

typedef struct msgl_mixer msgl_mixer;
typedef struct msgl_declaring msgl_declaring; // models/declare.h

enum {
    MSGL_LAYER_CACHES = 4, // that one layer may have, each in a group of its own
    MSGL_NGRAMS_CACHE = 1, // which is that of n-grams, behind the one of the layer's mixer
};

// Where a layer is among those of one of its caches: the group, and its place in the group's pool.
typedef struct msgl_layer_place {
    int32_t group, layer;
} msgl_layer_place;

// A norm that its architecture has not has dim 0.
typedef struct msgl_decoder_layer {
    msgl_norm attn_norm, attn_post_norm, ffn_norm, ffn_post_norm;
    msgl_join attn_join, ffn_join;
    const msgl_mixer *mixer;
    union { // by it
        msgl_attention attn;
        msgl_shared_block shared; // which begins with its attention
        msgl_latent_attention latent_attn;
        msgl_compressed_attention compressed;
        msgl_delta delta;
        msgl_short_conv short_conv;
        msgl_kda kda;
    };
    msgl_mamba mamba;      // of a mixer that has one, alone or beside attention
    msgl_linear mamba_out; // beside attention: [hidden, width of its result]
    msgl_join mamba_join;
    msgl_linear out; // [hidden, width of the mixer's result]; without a mixer empty
    bool parallel;   // the feed-forward block reads what the mixer has read, behind attn_norm
    bool has_ffn;
    bool sparse, beside;                              // beside: the dense block is there, too
    msgl_mlp mlp;                                     // unless sparse, or beside
    msgl_moe moe;                                     // when sparse
    msgl_norm mlp_post_norm, moe_norm, moe_post_norm; // beside
    msgl_join moe_join;                               // with moe_post_norm
    msgl_per_layer_input per_layer;
    msgl_stream_block attn_streams, ffn_streams;
    msgl_ngrams ngrams; // or num 0
    float scale;        // of the stream behind the layer
} msgl_decoder_layer;

// What a draft head has in front of its layers.
typedef struct msgl_decoder_head {
    msgl_norm embed_norm, state_norm;
    // MTP: [hidden, 2 hidden], of embedding and state; EAGLE-3: [hidden, num_states * state_dim],
    // of the target's states.
    msgl_linear fc;
} msgl_decoder_head;

// What msgl_model.layers is for this family.
typedef struct msgl_decoder {
    msgl_decoder_head head; // of a draft head
    msgl_per_layer_table per_layer;
    msgl_stream_block last_streams; // behind all layers
    msgl_decoder_layer *layers;     // [num_layers]
    msgl_weight *experts;           // [sparse layers, 2, num_experts], behind the layers' pointers
    // Likewise: [latent layers, 2, num_heads], or [layers, groups] of compressed attention.
    msgl_weight *heads;
} msgl_decoder;

static inline bool msgl__layer_has(const msgl_decoder_config *d, int32_t layer, int flag)
{
    return (d->layer_flags[layer] & flag) != 0;
}

// Tensor parallelism: how many of `all` heads or columns a rank's shard has. The ranks have equally
// many; where KV heads are fewer than ranks, a rank has the one that its query heads belong to. Of
// 8 heads over 4 ranks a shard has 2, of 2 KV heads over 4 ranks it has 1.
static inline int32_t msgl__shard_size(int32_t all, int32_t ranks)
{
    return all > 0 && all < ranks ? 1 : all / ranks;
}

// The shard of one rank: of 8 heads over 4 ranks, rank 3 has [6, 8); of 2 KV heads it has [1, 2).
static inline msgl_range msgl__shard_of(int32_t all, int32_t rank, int32_t ranks)
{
    return (msgl_range){.from = (int32_t)((int64_t)rank * all / ranks),
                        .count = msgl__shard_size(all, ranks)};
}

static inline msgl_range msgl__shard(const msgl_model_target *t, int32_t all)
{
    return msgl__shard_of(all, t->rank, t->ranks);
}

// The experts that a rank has, and the columns that it has of each of them.
static inline msgl_range msgl__own_experts(const msgl_model_target *t, int32_t all)
{
    return msgl__shard_of(all, t->rank / (t->ranks / t->expert_ranks), t->expert_ranks);
}

static inline msgl_range msgl__own_columns(const msgl_model_target *t, int32_t all)
{
    const int32_t ranks = t->ranks / t->expert_ranks;
    return msgl__shard_of(all, t->rank % ranks, ranks);
}

// The norm as products take it; NULL: there is none, or it is a LayerNorm, which is done before.
static inline const msgl_norm *msgl__norm_or_null(const msgl_norm *n)
{
    return n->dim > 0 && !n->centred ? n : NULL;
}

static inline msgl_attn_shape msgl__attn_shape(const msgl_model_config *c, bool sliding)
{
    msgl_attn_shape s = c->decoder.shapes[sliding];
    if (s.head_dim == 0) s.head_dim = c->head_dim;
    if (s.v_dim == 0) s.v_dim = s.head_dim;
    if (s.num_kv_heads == 0) s.num_kv_heads = c->num_kv_heads;
    return s;
}

static inline msgl_attn_shape msgl__attn_shape_of(const msgl_model_config *c, int32_t layer)
{
    return msgl__attn_shape(c, msgl__layer_has(&c->decoder, layer, MSGL_LAYER_SLIDING));
}

static inline bool msgl__shares_kv(const msgl_model_config *c, int32_t layer)
{
    return layer >= c->num_layers - c->decoder.shared_kv_layers;
}

// The layer whose K and V a layer attends to: its own number, or with shared_kv_layers that of the
// last one before those with the same window. Of layers w w f w w f whose last three share, 3 and 4
// have those of 1 and 5 those of 2. -1: there is none.
static inline int32_t msgl__kv_owner(const msgl_model_config *c, int32_t layer)
{
    const msgl_decoder_config *d = &c->decoder;
    if (!msgl__shares_kv(c, layer)) return layer;
    int32_t l = c->num_layers - d->shared_kv_layers - 1;
    while (l >= 0 && msgl__layer_has(d, l, MSGL_LAYER_SLIDING) !=
                         msgl__layer_has(d, layer, MSGL_LAYER_SLIDING)) {
        l--;
    }
    return l;
}

// Most experts that a token may choose.
static inline int32_t msgl__max_top_k(const msgl_decoder_config *d)
{
    return d->num_experts < MSGL_MAX_TOP_K ? d->num_experts : MSGL_MAX_TOP_K;
}

// Columns of a layer's dense block.
static inline int32_t msgl__mlp_width(const msgl_model_config *c, int32_t layer)
{
    const msgl_decoder_config *d = &c->decoder;
    return d->intermediate_size * (d->wide_shared_mlp && msgl__shares_kv(c, layer) ? 2 : 1);
}

// What mixes the tokens of a layer, up to its output projection: one file each, and a row in
// msgl__mixer_of.
struct msgl_mixer {
    // What the layer keeps of a request on each of so many ranks, with K and V of dtype and
    // activations of act: fills out [MSGL_LAYER_CACHES] and returns how many. Layers that keep
    // alike are a group. num_layers is the caller's.
    int (*caches)(const msgl_model_config *c, int32_t layer, int32_t ranks, msgl_dtype dtype,
                  msgl_dtype act, msgl_cache_spec *out);
    // NULL: kernels for it take all dimensions; else whether those of the model's device, which has
    // some (msgl__decoder_check_kernels), take the layer's.
    int (*check)(const msgl_model *m, int32_t layer, msgl_err *err);
    // Layer number `index` of m->layers, zeroed; at: its places, in the order of `caches`.
    void (*build)(msgl_model *m, int32_t index, const msgl_layer_place *at,
                  msgl_decoder_layer *layer);
    // With the output projection, which is layer->out.
    void (*declare)(const msgl_declaring *d, msgl_decoder_layer *layer);
    // Step arena bytes of run for up to max_tokens tokens with activations of act.
    size_t (*workspace)(const msgl_decoder_layer *layer, msgl_dtype act, int32_t max_tokens);
    // in [num_tokens, hidden], before `norm` (or NULL) -> out [num_tokens, layer->out.w.k].
    // cos_sin: the step's angles by rope, as msgl__attention takes them. `in` is the residual
    // stream (of a draft head's first layer something else), to which a mixer of two parts adds
    // what one of them has made.
    void (*run)(msgl_forward *f, const msgl_decoder_layer *layer, const msgl_norm *norm, void *in,
                float *const *cos_sin, void *out);
};

extern const msgl_mixer msgl__mixer_attention, msgl__mixer_latent, msgl__mixer_delta,
    msgl__mixer_short_conv, msgl__mixer_kda, msgl__mixer_mamba, msgl__mixer_compressed;
extern const msgl_mixer msgl__mixer_beside; // Mamba-2 and attention side by side
extern const msgl_mixer msgl__mixer_shared; // Mamba-2 behind a block that layers share
extern const msgl_mixer msgl__mixer_none;   // which reads and leaves nothing

// decoder_mamba.c, of mixers that have Mamba-2 beside something else: all but the output
// projection.
int msgl__mamba_caches(const msgl_model_config *c, int32_t ranks, msgl_dtype act,
                       msgl_cache_spec *out);
void msgl__mamba_build(msgl_model *m, const msgl_layer_place *at, msgl_decoder_layer *layer);
void msgl__mamba_declare(const msgl_declaring *d, msgl_decoder_layer *layer);

// decoder_caches.c
const msgl_mixer *msgl__mixer_of(const msgl_decoder_config *d, int32_t layer);
// msgl_family.caches. A config has layers of fewer kinds than MSGL_MAX_GROUPS: attention with and
// without the window, of one shape each, latent attention and one recurrence; compressed attention
// has keys with and without the window, raw rows of two kinds, and index keys.
void msgl__decoder_caches(const msgl_model_config *c, int32_t ranks, msgl_dtype dtype,
                          msgl_dtype act, msgl_cache_specs *out);
// Fills places [num_layers, MSGL_LAYER_CACHES], which do not depend on the number of ranks.
void msgl__decoder_places(const msgl_model_config *c, msgl_layer_place *places);

// decoder_ffn.c: the feed-forward block of layer `index`. experts: of a sparse layer, 2 *
// num_experts weights, gate_up and down.
void msgl__ffn_build(const msgl_model *m, int32_t index, msgl_weight *experts,
                     msgl_decoder_layer *layer);
// Behind msgl__ffn_build, when the layers' norms are there.
void msgl__ffn_declare(const msgl_declaring *d, msgl_decoder_layer *layer);
// Joins it to residual [rows, hidden], and its step arena bytes for up to max_rows rows.
void msgl__ffn_run(msgl_forward *f, const msgl_decoder_layer *layer, void *in, void *residual,
                   int32_t rows);
size_t msgl__ffn_workspace(const msgl_model *m, const msgl_decoder_layer *layer, int32_t max_rows);

// decoder_compressed.c: most keys that a token attends to in layers of that group, whose window is
// -1 where there are compressed keys.
int32_t msgl__compressed_list(const msgl_decoder_config *d, int32_t window, int32_t max_seq_len);
// How many positions have one key that layers of that group choose from; 0: none of them chooses.
int32_t msgl__compressed_every(const msgl_model_config *c, int32_t window);

// decoder_kernels.c: whether the model's device has all kernels that its layers take.
// MSGL_EUNSUPPORTED names what it has none for.
int msgl__decoder_check_kernels(const msgl_model *m, msgl_err *err);

// decoder_hyper.c: what builds and declares a hyper-connection; block: "attn" or "ffn" of a layer,
// NULL: behind the last one.
msgl_hyper_connection msgl__hyper_build(const msgl_model_config *c);
void msgl__hyper_declare(msgl_model *m, msgl_weight_plan *p, msgl_hyper_connection *h,
                         int32_t layer, const char *block);

// decoder_per_layer.c, of models with per-layer embeddings: what builds and declares the table, and
// a layer's part of it.
void msgl__per_layer_build(const msgl_model *m, msgl_decoder *decoder);
void msgl__per_layer_declare(msgl_model *m, msgl_weight_plan *p);
void msgl__per_layer_declare_block(const msgl_declaring *d, msgl_decoder_layer *layer);

// decoder_streams.c, of models with several residual streams (all of it does nothing of others):
// what builds and declares them, and what a step has of them.
typedef struct msgl_step_streams {
    void *all, *rows_all; // [tokens, streams * hidden], and of the rows that get logits; or NULL
    void *read, *result;  // [tokens, hidden] what a block reads, and what it has made
    void *mix, *rows_mix; // of the block (layers/stream_block.h)
} msgl_step_streams;
void msgl__streams_build(const msgl_model *m, msgl_decoder *decoder);
void msgl__streams_declare(msgl_model *m, msgl_weight_plan *p);
msgl_step_streams msgl__streams_take(const msgl_model *m, msgl_forward *f, int32_t num_rows);
size_t msgl__streams_bytes(const msgl_model *m, int32_t max_tokens, int32_t max_rows); // of `take`

// decoder_ngrams.c, of models whose layers have embeddings of n-grams: what such a layer keeps of a
// request, and what builds and declares them.
msgl_cache_spec msgl__ngrams_cache(const msgl_model_config *c, msgl_dtype act);
void msgl__ngrams_build(const msgl_model *m, const msgl_layer_place *places, msgl_decoder *decoder);
void msgl__ngrams_declare(const msgl_declaring *d, msgl_ngrams *n);
// The hash of the layer that is number `ordinal` of those with n-grams. *last: the prime of the
// head before its first, base - 1 at the beginning; becomes that of its last head. Returns the
// table's rows; 0: they would be more than MSGL_NGRAMS_MAX_ROWS.
enum { MSGL_NGRAMS_MAX_ROWS = 1 << 30 };
int32_t msgl__ngrams_hash(const msgl_model_config *c, int32_t ordinal, int32_t *last,
                          msgl_ngram_hash *h);

// decoder_config.c: msgl_family.configure.
void msgl__decoder_configure(msgl_json_reader *r, msgl_model_config *c);

// decoder_head.c, of a draft head: its part of build, workspace (0 where it is none), declare and
// msgl_family.take_states; and the beginning of forward: embeddings, in `residual`, and f->hidden
// become the stream, in `residual`, and what the first layer's mixer reads, which is returned; NULL
// on failure.
void msgl__head_build(msgl_model *m, msgl_decoder *decoder);
size_t msgl__head_workspace(const msgl_model *m, int32_t max_tokens);
void msgl__head_declare(msgl_model *m, msgl_weight_plan *p);
void msgl__head_take_states(const msgl_model *m, msgl_forward *f, const void *states, int32_t rows,
                            void *out);
void *msgl__head_begin(const msgl_model *m, msgl_forward *f, void *residual);

// For `configure` of several architectures:
// layer_types: which layers have the window or chunks, or are linear attention where the
// architecture has that. False: there is no such field.
bool msgl__decoder_read_layer_types(msgl_json_reader *r, msgl_model_config *c);
// per_layer_config, as transformers writes it: {"5": {"head_dim": 512}, ...}, the same for all
// layers with the window, and for all others; behind layer_types. False: there is no such field.
bool msgl__decoder_read_shapes(msgl_json_reader *r, msgl_model_config *c);
// qwen3_next.c, of all models since: dimensions of linear attention, of every layer that has some;
// and experts in every layer, with one that all tokens have.
void msgl__qwen_read_delta(msgl_json_reader *r, msgl_model_config *c);
void msgl__qwen_read_experts(msgl_json_reader *r, msgl_model_config *c);
// deepseek.c: dimensions of latent attention, whose rotating part is c->head_dim.
void msgl__decoder_read_latent(msgl_json_reader *r, msgl_model_config *c);
// What a list with a name for each layer says: the flags of layers with this name.
typedef struct msgl_layer_kind {
    const char *name;
    uint16_t flags;
} msgl_layer_kind;
// The list `key` of the names in kinds [num], whose flags layers get. False: there is no such
// field.
bool msgl__decoder_read_kinds(msgl_json_reader *r, msgl_model_config *c, const char *key,
                              const msgl_layer_kind *kinds, size_t num);
// The list `key` of the layers, counted from `first` on, that lose the flags `clear`. False: there
// is no such field.
bool msgl__decoder_read_numbers(msgl_json_reader *r, msgl_model_config *c, const char *key,
                                int32_t first, int clear);
// The list `key` with 0 or 1 for each layer: those with `value` get these flags. False: there is no
// such field.
bool msgl__decoder_read_bits(msgl_json_reader *r, msgl_model_config *c, const char *key, int value,
                             int flags);
// mlp_layer_types: which layers are "dense" and which "sparse". False: there is no such field.
bool msgl__decoder_read_mlp_layer_types(msgl_json_reader *r, msgl_model_config *c);
// mlp_layer_types, or as hubs have it moe_layer_freq with 1 for layers with experts; without them
// those from `first` on.
void msgl__decoder_read_sparse_layers(msgl_json_reader *r, msgl_model_config *c, int32_t first);
// rotary_dim: how many dimensions of a head rotate, where others say which share of them. A share
// that is given counts.
void msgl__decoder_read_rotary_dim(msgl_json_reader *r, msgl_model_config *c);
// Takes these flags from all layers.
void msgl__decoder_clear_layers(msgl_model_config *c, int flags);
// The index of layers that choose blocks of keys: cfg.decoder.blocks. section: an object whose
// fields count before those of r; its obj may be NULL.
void msgl__decoder_read_block_index(msgl_json_reader *r, msgl_json_reader *section,
                                    msgl_model_config *c);
// The index that chooses blocks by the means of their keys: cfg.decoder.blocks, for the layers that
// have MSGL_LAYER_CHOOSES_BLOCKS, which they lose where config.json has no index.
void msgl__decoder_read_mean_index(msgl_json_reader *r, msgl_model_config *c);
// decoder_ngrams.c: ple_layer_ids and what such layers have. Behind the kinds of layers.
void msgl__decoder_read_ngrams(msgl_json_reader *r, msgl_model_config *c);
// Gives these flags to the layers from `first` on.
void msgl__decoder_set_layers(msgl_model_config *c, int32_t first, int flags);
// The same to all but every so many layers: with 4 to all but layers 3, 7, 11, ....
void msgl__decoder_set_all_but(msgl_model_config *c, int32_t every, int flags);
// sliding_window, `usual` where it is missing; null: there is none.
void msgl__decoder_read_window(msgl_json_reader *r, msgl_model_config *c, int32_t usual);
// Layers with a window rotate by ropes[1].
void msgl__decoder_rope_of_windows(msgl_model_config *c);
// Layers without a window do not rotate: ropes[1], of those, is none.
void msgl__decoder_no_rope_without_window(msgl_model_config *c);
// Gives the window, if there is one, to the layers from `first` on.
void msgl__decoder_slide(msgl_model_config *c, int32_t first);
// use_sliding_window, sliding_window, and layer_types or max_window_layers; of Qwen models.
void msgl__decoder_read_windows(msgl_json_reader *r, msgl_model_config *c);
// no_rope_layers, a list with 1 where a layer rotates, or no_rope_layer_interval, of which the last
// layer does not: the second rope, of those layers, is none.
void msgl__decoder_read_no_rope(msgl_json_reader *r, msgl_model_config *c);
// num_experts, num_experts_per_tok, norm_topk_prob, and which layers are sparse
// (decoder_sparse_step, mlp_only_layers). width: the field with the experts' intermediate size.
void msgl__decoder_read_experts(msgl_json_reader *r, msgl_model_config *c, const char *width);
// The field `key` (where it is missing `usual`) of experts that every token has, of `each` columns:
// they are one of so many times that. Behind the others.
void msgl__decoder_read_shared_experts(msgl_json_reader *r, msgl_model_config *c, const char *key,
                                       int32_t usual, int32_t each);

#endif
