// SPDX-License-Identifier: Apache-2.0
//
// Layers of the decoder family: how they are built, and the forward pass.
// Those of a draft head (decoder_config.h) are the same; what is in front of them is in
// decoder_head.c.
#include "models/decoder.h"

#include <math.h>
#include <stdio.h>

#include "core/mem.h"
#include "kernel/device.h"
#include "layers/embedding.h"
#include "layers/lora.h"
#include "models/declare.h"

static int refuse_experts(int32_t expert_ranks, const char *what, int32_t n, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "--ep-size %d: %s is %d; allowed: a divisor of it",
                         (int)expert_ranks, what, (int)n);
}

// By column, as other layers, where that divides: a step takes as long as its slowest rank, and
// tokens do not choose as many experts of one as of another.
static int check_experts(const msgl_decoder_config *d, int32_t ranks, int32_t *expert_ranks,
                         msgl_err *err)
{
    const int32_t inter = d->moe_intermediate_size;
    if (*expert_ranks == 0) {
        const bool whole = d->num_experts > 0 && inter % ranks != 0 && d->num_experts % ranks == 0;
        *expert_ranks = whole ? ranks : 1;
    }
    const int32_t each = ranks / *expert_ranks;
    if (ranks % *expert_ranks != 0) return refuse_experts(*expert_ranks, "--tp-size", ranks, err);
    if (d->num_experts == 0 && *expert_ranks > 1) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "--ep-size %d: the model has no experts; allowed: 1",
                             (int)*expert_ranks);
    }
    if (d->num_experts % *expert_ranks != 0) {
        return refuse_experts(*expert_ranks, "num_experts", d->num_experts, err);
    }
    if (d->num_experts == 0 || inter % each == 0) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "--tp-size %d, --ep-size %d: %d ranks share an expert, whose "
                         "moe_intermediate_size is %d; allowed: a divisor of it",
                         (int)ranks, (int)*expert_ranks, (int)each, (int)inter);
}

// Fewer KV heads than ranks are kept by several.
static int check_ranks(const msgl_model_config *c, int32_t ranks, int32_t *expert_ranks,
                       msgl_err *err)
{
    const msgl_decoder_config *d = &c->decoder;
    const bool latent = d->latent.rank > 0;
    const int32_t kv_full = msgl__attn_shape(c, false).num_kv_heads;
    const int32_t kv_sliding = msgl__attn_shape(c, true).num_kv_heads;
    const msgl_shared_dim shared[] = {
        {"num_attention_heads", c->num_heads, false},
        {"num_key_value_heads", latent ? 0 : kv_full, true},
        {"num_key_value_heads of layers with a window", latent ? 0 : kv_sliding, true},
        {"o_groups", d->compressed.groups, false},
        {"intermediate_size", d->intermediate_size, false},
        {"shared_expert_intermediate_size", d->shared_intermediate_size, false},
        {"linear_num_key_heads", d->delta.k_heads, false},
        {"linear_num_value_heads", d->delta.v_heads, false},
        {"hidden_size / 16", d->conv.channels / 16, false},
        {"linear_num_heads", d->kda.heads, false},
        {"mamba_n_heads", d->mamba.heads, false},
        {"mamba_n_groups", d->mamba.groups, false},
    };
    const int code = msgl__check_shared(shared, MSGL_COUNT(shared), ranks, err);
    return code == 0 ? check_experts(d, ranks, expert_ranks, err) : code;
}

static msgl_attn_variants variants(const msgl_model_config *c, int32_t group)
{
    msgl_cache_specs specs;
    msgl_attn_variants v = {0};
    msgl__decoder_caches(c, 1, c->dtype, c->dtype, &specs);
    const int32_t window = specs.all[group].window;
    const bool chunked = window >= 0 && c->decoder.chunked;
    const msgl_attn_variant all = {.window = chunked ? -1 : window,
                                   .softcap = c->decoder.attn_softcap,
                                   .sinks = c->decoder.shapes[window >= 0].sinks,
                                   .chunk = chunked ? c->decoder.sliding_window : 0};
    (void)msgl__attn_variants_add(&v, all);
    return v;
}

// --- building ----------------------------------------------------------------------------------

static msgl_norm norm_named(const msgl_model *m, const char *name)
{
    return (msgl_norm){.eps = m->cfg.decoder.rms_eps,
                       .dim = name != NULL ? m->cfg.hidden_size : 0,
                       .centred = m->cfg.decoder.layer_norm};
}

// The norm of what the layer reads first, unless experts do, which norm the stream themselves, or a
// shared block, which norms more than that.
static const msgl_norm *first_norm(const msgl_decoder_layer *layer)
{
    if (layer->mixer == &msgl__mixer_shared) return NULL;
    if (layer->mixer != &msgl__mixer_none) return msgl__norm_or_null(&layer->attn_norm);
    return layer->sparse ? NULL : msgl__norm_or_null(&layer->ffn_norm);
}

static void build_layers(msgl_model *m, msgl_decoder *decoder, const msgl_layer_place *places)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    const msgl_decoder_names *names = &d->names;
    msgl_weight *experts = decoder->experts;
    msgl__streams_build(m, decoder);
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        msgl_decoder_layer *layer = &decoder->layers[l];
        const bool mixes = !msgl__layer_has(d, l, MSGL_LAYER_NO_MIXER);
        layer->has_ffn = !msgl__layer_has(d, l, MSGL_LAYER_NO_FFN);
        layer->attn_norm = norm_named(m, mixes ? names->attn_norm : NULL);
        layer->attn_post_norm = norm_named(m, mixes ? names->attn_post_norm : NULL);
        layer->ffn_norm = norm_named(m, layer->has_ffn ? names->ffn_norm : NULL);
        layer->ffn_post_norm = norm_named(m, layer->has_ffn ? names->ffn_post_norm : NULL);
        layer->out.row_parallel = layer->mamba_out.row_parallel = true;
        layer->parallel = d->parallel;
        layer->scale = 1;
        layer->mixer = msgl__mixer_of(d, l);
        layer->mixer->build(m, l, &places[l * MSGL_LAYER_CACHES], layer);
        if (layer->has_ffn) msgl__ffn_build(m, l, experts, layer);
        if (layer->sparse) experts += 2 * (size_t)d->num_experts;
    }
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        msgl_decoder_layer *layer = &decoder->layers[l];
        const bool last = l + 1 == m->cfg.num_layers;
        // What is done to the stream behind the block.
        const bool more = d->per_layer_dim > 0 || names->layer_scale != NULL;
        // Of several streams what is read next is a mixture, which no product has made.
        const bool mixed = msgl__stream_count(&layer->attn_streams) > 0;
        const msgl_norm *behind = last || mixed ? NULL : first_norm(&layer[1]);
        // Experts norm the stream themselves.
        layer->attn_join =
            (msgl_join){.norm = msgl__norm_or_null(&layer->attn_post_norm),
                        .scale = d->residual_scale * d->attn_out_scale,
                        .next = !layer->has_ffn          ? behind
                                : layer->sparse || mixed ? NULL
                                                         : msgl__norm_or_null(&layer->ffn_norm)};
        layer->ffn_join = (msgl_join){.norm = msgl__norm_or_null(&layer->ffn_post_norm),
                                      .scale = d->residual_scale * d->ffn_out_scale,
                                      .next = more ? NULL : behind};
        layer->mamba_join = (msgl_join){.scale = d->residual_scale * d->mamba.out_scale};
    }
    msgl__per_layer_build(m, decoder);
    msgl__ngrams_build(m, places, decoder);
    m->final_norm = norm_named(m, names->norm);
    if (d->head.kind != MSGL_HEAD_NONE) msgl__head_build(m, decoder);
}

static int build(msgl_model *m, msgl_err *err)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    const int lacking = msgl__decoder_check_kernels(m, err);
    if (lacking != 0) return lacking;
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        const msgl_mixer *mixer = msgl__mixer_of(d, l);
        const int code = mixer->check != NULL ? mixer->check(m, l, err) : 0;
        if (code != 0) return code;
    }
    size_t sparse = 0, latent = d->latent.rank > 0 ? (size_t)m->cfg.num_layers : 0;
    for (int32_t l = 0; l < m->cfg.num_layers; l++)
        sparse += msgl__layer_has(d, l, MSGL_LAYER_SPARSE);
    msgl_decoder *decoder = m->layers = msgl__calloc(1, sizeof *decoder);
    if (decoder != NULL) {
        decoder->layers = msgl__calloc((size_t)m->cfg.num_layers, sizeof *decoder->layers);
        decoder->experts =
            msgl__calloc(sparse * 2 * (size_t)d->num_experts, sizeof *decoder->experts);
        decoder->heads = msgl__calloc(latent * 2 * (size_t)m->cfg.num_heads +
                                          (size_t)(m->cfg.num_layers * d->compressed.groups),
                                      sizeof *decoder->heads);
    }
    msgl_layer_place *places =
        msgl__calloc((size_t)m->cfg.num_layers * MSGL_LAYER_CACHES, sizeof *places);
    if (decoder == NULL || decoder->layers == NULL || decoder->experts == NULL ||
        decoder->heads == NULL || places == NULL) {
        msgl__free(places);
        return msgl__err_set(err, MSGL_ENOMEM, "model: out of memory");
    }
    msgl__decoder_places(&m->cfg, places);
    build_layers(m, decoder, places);
    msgl__free(places);
    if (d->rounds_embed_scale) {
        float scale;
        msgl__store_f32(&scale, m->target.weights.dtype, 0, d->embed_scale);
        m->cfg.decoder.embed_scale = msgl__load_f32(&scale, m->target.weights.dtype, 0);
    }
    return 0;
}

static void free_layers(msgl_model *m)
{
    msgl_decoder *decoder = m->layers;
    if (decoder == NULL) return;
    msgl__free(decoder->layers);
    msgl__free(decoder->experts);
    msgl__free(decoder->heads);
    msgl__free(decoder);
    m->layers = NULL;
}

// --- tensors -----------------------------------------------------------------------------------

static void declare(msgl_model *m, msgl_weight_plan *p)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder_names *n = &c->decoder.names;
    const msgl_decoder *decoder = m->layers;
    const msgl_head_config *h = &c->decoder.head;
    char embed[48], norm[64], head[48];
    snprintf(embed, sizeof embed, "%s%s.weight", n->prefix, n->embed);
    const char *const final = h->kind != MSGL_HEAD_NONE ? h->final_norm : n->norm;
    if (final != NULL) {
        snprintf(norm, sizeof norm, "%s%s.weight", h->kind != MSGL_HEAD_NONE ? "" : n->prefix,
                 final);
    }
    snprintf(head, sizeof head, "%s.weight", n->head);
    msgl__model_declare_ends(m, p, embed, final != NULL ? norm : NULL, head,
                             c->decoder.norm_plus_one);
    if (h->kind != MSGL_HEAD_NONE) msgl__head_declare(m, p);
    if (c->decoder.shared_kv_layers > 0) {
        p->shared_kv_from = c->num_layers - c->decoder.shared_kv_layers;
    }
    msgl__per_layer_declare(m, p);
    msgl__streams_declare(m, p);
    for (int32_t l = 0; l < c->num_layers && p->status == 0; l++) {
        msgl_decoder_layer *layer = &decoder->layers[l];
        const bool behind = layer->mixer == &msgl__mixer_shared;
        const msgl_declaring d = {.m = m,
                                  .target = &m->target,
                                  .p = p,
                                  .layer = h->first_layer + l,
                                  .within = behind ? "mamba_decoder." : ""};
        msgl__declare_norm_of_stream(&d, &layer->attn_norm, n->attn_norm);
        layer->mixer->declare(&d, layer);
        msgl__declare_norm_of_stream(&d, &layer->attn_post_norm, n->attn_post_norm);
        msgl__declare_norm_of_stream(&d, &layer->ffn_norm, n->ffn_norm);
        msgl__plan_times(p, c->decoder.ffn_norm_scale);
        if (layer->has_ffn) msgl__ffn_declare(&d, layer);
        msgl__declare_norm_of_stream(&d, &layer->ffn_post_norm, n->ffn_post_norm);
        msgl__per_layer_declare_block(&d, layer);
        msgl__ngrams_declare(&d, &layer->ngrams);
        if (n->layer_scale != NULL) {
            msgl__plan_scale(p, &layer->scale, "%slayers.%d.%s", n->prefix, d.layer,
                             n->layer_scale);
        }
    }
}

// --- forward -----------------------------------------------------------------------------------

// Activations of one step.
typedef struct buffers {
    float *cos_sin[MSGL_MAX_ROPES];   // [tokens, 2 half] each
    void *residual;                   // [tokens, hidden]
    void *normed;                     // [tokens, hidden] where norms_apart; what a block reads
    void *mixed;                      // [tokens, width of the layer's mixer's result]
    void *rows_mixed, *rows_residual; // the same of the rows that get logits
    void *per_layer, *rows_per_layer; // [tokens or rows, width of per-layer embeddings]
    msgl_step_streams streams;        // then `residual` has embeddings, and at last their mixture
    int32_t *rows_ids;                // of tokens that get logits, where experts are looked up
} buffers;

// Whether what a block reads is normed by itself, and not by its first product.
static bool norms_apart(const msgl_decoder_config *d)
{
    return d->layer_norm || d->parallel;
}

// Parts of a row's sum of squares.
static size_t norm_stats_tiles(const msgl_model_config *c)
{
    return (size_t)c->hidden_size / MSGL_NORM_STATS_COLUMNS + 1;
}

static size_t norm_stats_bytes(const msgl_model_config *c, const msgl_kernels *k, msgl_dtype act,
                               int32_t max_tokens)
{
    const int32_t most = k->gemm.norm_stats_rows;
    const size_t rows = (size_t)(max_tokens < most ? max_tokens : most);
    return msgl__activation_bytes(rows, (size_t)c->hidden_size, act) +
           msgl__activation_bytes(rows, norm_stats_tiles(c), MSGL_F32);
}

// Most columns of a layer's mixer's result.
static size_t mixed_width(const msgl_model *m)
{
    const msgl_decoder_layer *layers = ((const msgl_decoder *)m->layers)->layers;
    int32_t most = 0;
    for (int32_t l = 0; l < m->cfg.num_layers; l++) {
        if (layers[l].out.w.k > most) most = layers[l].out.w.k;
    }
    return (size_t)most;
}

// What a layer takes beside the step's buffers.
static size_t layer_bytes(const msgl_model *m, const msgl_decoder_layer *l, int32_t max_tokens)
{
    const msgl_dtype act = m->target.act;
    const size_t t = (size_t)max_tokens, hidden = (size_t)m->cfg.hidden_size;
    const int ranks = m->target.ranks;
    const bool direct =
        msgl__joins_directly(&l->attn_join, ranks) && msgl__joins_directly(&l->ffn_join, ranks);
    const size_t own = msgl__per_layer_workspace(&l->per_layer, act, max_tokens);
    const size_t block = l->has_ffn ? msgl__ffn_workspace(m, l, max_tokens) : 0;
    const size_t ffn = block > own ? block : own;
    const size_t added = direct ? 0 : msgl__activation_bytes(t, hidden, act); // msgl__linear_add
    const size_t mixer = l->mixer->workspace(l, act, max_tokens);
    const size_t ngrams =
        l->ngrams.num > 0 ? msgl__ngrams_workspace(&l->ngrams, act, max_tokens) : 0;
    const size_t most = mixer > ngrams ? mixer : ngrams;
    return most > ffn + added ? most : ffn + added;
}

// Keys that a step's tokens have chosen, from layer to layer.
static size_t chosen_bytes(const msgl_decoder_config *d, size_t tokens)
{
    const size_t top_k = (size_t)d->latent.index.top_k;
    if (top_k == 0) return 0;
    // Slots and counts have as many bytes as f32.
    return msgl__activation_bytes(tokens, top_k, MSGL_F32) +
           msgl__activation_bytes(tokens, 1, MSGL_F32);
}

static size_t workspace(const msgl_model *m, int32_t max_tokens, int32_t max_rows)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder *decoder = m->layers;
    const msgl_dtype act = m->target.act;
    const size_t t = (size_t)max_tokens, r = (size_t)max_rows, h = (size_t)c->hidden_size;
    const size_t mixed = mixed_width(m);
    size_t layers = 0, angles = 0;
    for (int32_t l = 0; l < c->num_layers; l++) {
        const size_t need = layer_bytes(m, &decoder->layers[l], max_tokens);
        if (need > layers) layers = need;
    }
    for (int32_t i = 0; i < c->num_ropes; i++) {
        angles += msgl__activation_bytes(t, (size_t)msgl__rope_width(&c->ropes[i]), MSGL_F32);
    }
    const size_t embeds = c->decoder.shared_blocks.num > 0 ? 2 * t : 0;
    const size_t streams = msgl__streams_bytes(m, max_tokens, max_rows);
    return angles + msgl__activation_bytes(embeds, h, act) + msgl__activation_bytes(t, h, act) +
           msgl__activation_bytes(t, mixed, act) + msgl__activation_bytes(r, mixed, act) +
           (streams > 0 ? streams : msgl__activation_bytes(r, h, act)) +
           (norms_apart(&c->decoder) ? msgl__activation_bytes(t, h, act) : 0) +
           norm_stats_bytes(c, m->target.kernels, act, max_tokens) + layers +
           msgl__per_layer_bytes(&decoder->per_layer, act, max_tokens) +
           msgl__activation_bytes(r, msgl__per_layer_width(&decoder->per_layer), act) +
           (c->decoder.names.table != NULL ? msgl__activation_bytes(r, 1, MSGL_F32) : 0) +
           chosen_bytes(&c->decoder, t) + msgl__head_workspace(m, max_tokens);
}

static bool take_buffers(const msgl_model *m, msgl_forward *f, int32_t num_rows, buffers *b)
{
    const msgl_model_config *c = &m->cfg;
    const size_t t = (size_t)f->num_tokens, h = (size_t)c->hidden_size;
    const size_t mixed = mixed_width(m);
    const msgl_per_layer_table *table = &((const msgl_decoder *)m->layers)->per_layer;
    for (int32_t i = 0; i < c->num_ropes; i++) {
        b->cos_sin[i] = msgl__take_rows(f, t, (size_t)msgl__rope_width(&c->ropes[i]), MSGL_F32);
    }
    b->residual = msgl__activation(f, t, h);
    b->normed = norms_apart(&c->decoder) ? msgl__activation(f, t, h) : NULL;
    b->mixed = msgl__activation(f, t, mixed);
    b->rows_mixed = msgl__activation(f, (size_t)num_rows, mixed);
    b->rows_per_layer = msgl__activation(f, (size_t)num_rows, msgl__per_layer_width(table));
    if (c->decoder.latent.index.top_k > 0) {
        f->chosen_slots = msgl__take_rows(f, t, (size_t)c->decoder.latent.index.top_k, MSGL_F32);
        f->chosen_counts = msgl__take_rows(f, t, 1, MSGL_F32);
    }
    b->streams = msgl__streams_take(m, f, num_rows);
    b->rows_residual = b->streams.all == NULL ? msgl__activation(f, (size_t)num_rows, h) : NULL;
    b->rows_ids = NULL;
    if (c->decoder.names.table != NULL) {
        b->rows_ids = msgl__take_rows(f, (size_t)num_rows, 1, MSGL_F32);
    }
    f->first_stream = c->decoder.shared_blocks.num > 0 ? msgl__activation(f, 2 * t, h) : NULL;
    f->norm_stats = (msgl_norm_stats){0};
    if (f->num_tokens <= f->k->gemm.norm_stats_rows) {
        f->norm_stats.scaled = msgl__activation(f, t, h);
        f->norm_stats.sums = msgl__take_rows(f, t, norm_stats_tiles(c), MSGL_F32);
    }
    return f->x->status == 0;
}

// The layer up to its mixer's result; in: the stream, or of a draft head's first layer what that
// reads. normed is left as what a parallel feed-forward block reads.
static void mix(msgl_forward *f, const msgl_decoder_layer *layer, void *in, const buffers *b)
{
    const msgl_step_streams *s = &b->streams;
    if (s->all != NULL) {
        if (layer->ngrams.num > 0) msgl__ngrams(f, &layer->ngrams, s->all);
        msgl__stream_open(f, &layer->attn_streams, s->all, f->num_tokens, s->mix, s->read,
                          s->result);
        in = s->read;
    }
    const msgl_norm *norm = &layer->attn_norm;
    const bool apart = norm->dim > 0 && (norm->centred || layer->parallel);
    if (apart) msgl__norm(f, norm, in, b->normed, f->num_tokens);
    layer->mixer->run(f, layer, apart ? NULL : msgl__norm_or_null(norm), apart ? b->normed : in,
                      b->cos_sin, b->mixed);
}

// The layer behind its mixer. inputs: of per-layer embeddings, [rows, width], where there are any.
// normed: as above, or where a norm of the stream goes.
static void finish_layer(const msgl_model *m, msgl_forward *f, const msgl_decoder_layer *layer,
                         const void *mixed, const void *inputs, void *normed, void *residual,
                         int32_t rows)
{
    const msgl_per_layer_table *table = &((const msgl_decoder *)m->layers)->per_layer;
    const bool apart = layer->ffn_norm.dim > 0 && layer->ffn_norm.centred;
    if (layer->mixer != &msgl__mixer_none) {
        msgl__linear_add(f, &layer->out, mixed, residual, &layer->attn_join, rows, NULL);
    }
    if (apart) msgl__norm(f, &layer->ffn_norm, residual, normed, rows);
    if (layer->has_ffn) {
        msgl__ffn_run(f, layer, apart || layer->parallel ? normed : residual, residual, rows);
    }
    if (table->dim > 0) {
        msgl__per_layer_add(f, &layer->per_layer, inputs, msgl__per_layer_width(table), residual,
                            rows);
    }
    if (layer->scale == 1) return;
    f->k->norm.scale(f->x, residual, layer->scale, (size_t)rows * (size_t)m->cfg.hidden_size);
}

// The same where the residual is several streams, `all`, whose mixture the mixer has read by mix.
static void finish_streams(msgl_forward *f, const msgl_decoder_layer *layer, const void *mixed,
                           const msgl_step_streams *s, void *mix, void *all, int32_t rows)
{
    msgl__linear_add(f, &layer->out, mixed, s->result, &layer->attn_join, rows, NULL);
    msgl__stream_close(f, &layer->attn_streams, mix, s->result, rows, all);
    msgl__stream_open(f, &layer->ffn_streams, all, rows, mix, s->read, s->result);
    msgl__ffn_run(f, layer, s->read, s->result, rows);
    msgl__stream_close(f, &layer->ffn_streams, mix, s->result, rows, all);
}

// Rows of n values of dtype, which has as many bytes as activations or a multiple of them: the
// kernel copies rows of activations.
static void gather_values(msgl_forward *f, msgl_dtype dtype, const void *in, const int32_t *rows,
                          int32_t num_rows, int32_t n, void *out)
{
    const size_t each = msgl__dtype_size(dtype) / msgl__dtype_size(f->x->act);
    f->k->moe.gather(f->x, in, rows, num_rows, 1, n * (int32_t)each, out);
}

// Copies, for the rows that get logits alone, of what is read behind the last layer's mixer.
static void gather_rows(const msgl_model *m, msgl_forward *f, const int32_t *rows, int32_t num_rows,
                        const buffers *b)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder *decoder = m->layers;
    const msgl_decoder_layer *last = &decoder->layers[c->num_layers - 1];
    const msgl_step_streams *s = &b->streams;
    if (last->mixer != &msgl__mixer_none) {
        f->k->moe.gather(f->x, b->mixed, rows, num_rows, 1, last->out.w.k, b->rows_mixed);
    }
    if (decoder->per_layer.dim > 0) {
        f->k->moe.gather(f->x, b->per_layer, rows, num_rows, 1,
                         (int)msgl__per_layer_width(&decoder->per_layer), b->rows_per_layer);
    }
    if (b->rows_ids != NULL) { // as many bytes as f32
        gather_values(f, MSGL_F32, f->ids, rows, num_rows, 1, b->rows_ids);
        f->row_ids = b->rows_ids;
    }
    if (s->all == NULL) {
        f->k->moe.gather(f->x, b->residual, rows, num_rows, 1, c->hidden_size, b->rows_residual);
        if (last->parallel) msgl__norm(f, &last->attn_norm, b->rows_residual, b->normed, num_rows);
        return;
    }
    const msgl_stream_block *block = &last->attn_streams;
    f->k->moe.gather(f->x, s->all, rows, num_rows, 1, msgl__stream_count(block) * c->hidden_size,
                     s->rows_all);
    gather_values(f, msgl__stream_mix_dtype(block, f->x->act), s->mix, rows, num_rows,
                  msgl__stream_mix(block), s->rows_mix);
}

// Leaves the residual behind `layer` where somebody wants it; how many have been left now.
static int32_t capture(const msgl_forward *f, int32_t layer, int32_t captured, const void *residual,
                       int32_t hidden)
{
    if (captured == f->capture.num || f->capture.layers[captured] != layer) return captured;
    const size_t size = msgl__dtype_size(f->x->act);
    msgl_device *d = f->x->device;
    d->ops->copy(d, (char *)f->capture.to + (size_t)captured * f->capture.plane * size, residual,
                 (size_t)f->num_tokens * (size_t)hidden * size);
    return captured + 1;
}

static void *forward(const msgl_model *m, msgl_forward *f, const int32_t *rows, int32_t num_rows)
{
    const msgl_model_config *c = &m->cfg;
    const int32_t tokens = f->num_tokens;
    const msgl_decoder *decoder = m->layers;
    const msgl_decoder_layer *layers = decoder->layers, *last = &layers[c->num_layers - 1];
    const msgl_per_layer_table *table = &decoder->per_layer;
    buffers b;
    if (!take_buffers(m, f, num_rows, &b)) return NULL;
    const bool ids = table->dim > 0 || c->decoder.names.table != NULL;
    msgl__embed(f, &m->embed, c->decoder.embed_scale, ids, b.residual, b.cos_sin);
    const msgl_step_streams *streams = &b.streams;
    if (streams->all != NULL) {
        f->k->streams.spread(f->x, b.residual, tokens, msgl__stream_count(&decoder->last_streams),
                             c->hidden_size, streams->all);
    }
    f->row_ids = f->ids;
    if (f->first_stream != NULL) {
        msgl_device *d = f->x->device;
        d->ops->copy(d, msgl__row(f, f->first_stream, tokens, (size_t)c->hidden_size), b.residual,
                     (size_t)tokens * (size_t)c->hidden_size * msgl__dtype_size(f->x->act));
    }
    void *first = b.residual;
    if (c->decoder.head.kind != MSGL_HEAD_NONE) first = msgl__head_begin(m, f, b.residual);
    if (first == NULL) return NULL;
    b.per_layer = table->dim > 0 ? msgl__per_layer_inputs(f, table, first) : NULL;
    if (f->x->status != 0) return NULL;
    int32_t captured = 0;
    for (const msgl_decoder_layer *layer = layers; layer <= last; layer++) {
        mix(f, layer, layer == layers ? first : b.residual, &b);
        if (layer == last) break;
        if (streams->all != NULL) {
            finish_streams(f, layer, b.mixed, streams, streams->mix, streams->all, tokens);
            continue;
        }
        finish_layer(m, f, layer, b.mixed, b.per_layer, b.normed, b.residual, tokens);
        captured = capture(f, (int32_t)(layer - layers), captured, b.residual, c->hidden_size);
    }
    if (num_rows == 0) return NULL;
    // Behind the last mixer only rows that get logits are still of use. When those are all,
    // they are in token order.
    const bool all = num_rows == tokens;
    if (!all) gather_rows(m, f, rows, num_rows, &b);
    if (f->lora != NULL) f->lora->of_logits = !all;
    if (streams->all != NULL) {
        void *of_rows = all ? streams->all : streams->rows_all;
        finish_streams(f, last, all ? b.mixed : b.rows_mixed, streams,
                       all ? streams->mix : streams->rows_mix, of_rows, num_rows);
        msgl__stream_head(f, &decoder->last_streams, of_rows, num_rows, streams->mix, b.residual);
        return f->x->status == 0 ? b.residual : NULL;
    }
    void *residual = all ? b.residual : b.rows_residual;
    finish_layer(m, f, last, all ? b.mixed : b.rows_mixed, all ? b.per_layer : b.rows_per_layer,
                 b.normed, residual, num_rows);
    return f->x->status == 0 ? residual : NULL;
}

const msgl_family msgl__decoder_family = {
    .configure = msgl__decoder_configure,
    .caches = msgl__decoder_caches,
    .check_ranks = check_ranks,
    .variants = variants,
    .build = build,
    .free = free_layers,
    .declare = declare,
    .workspace = workspace,
    .take_states = msgl__head_take_states,
    .forward = forward,
};
