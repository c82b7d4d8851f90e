// SPDX-License-Identifier: Apache-2.0
//
// What a device may lack for the layers of the decoder family: of the kernel table
// (kernel/kernel.h) those functions that may be NULL.
#include "models/decoder.h"

static bool any_has(const msgl_model_config *c, int flag)
{
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (msgl__layer_has(&c->decoder, l, flag)) return true;
    }
    return false;
}

static bool any_mixes(const msgl_model_config *c, const msgl_mixer *mixer)
{
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (msgl__mixer_of(&c->decoder, l) == mixer) return true;
    }
    return false;
}

// Something that layers may have.
typedef struct need {
    bool there; // the model's layers have it
    bool has;   // the device has all kernels that it takes
    const char *what;
} need;

int msgl__decoder_check_kernels(const msgl_model *m, msgl_err *err)
{
    const msgl_model_config *c = &m->cfg;
    const msgl_decoder_config *d = &c->decoder;
    const msgl_kernels *k = m->target.kernels;
    const bool blocks = any_has(c, MSGL_LAYER_CHOOSES_BLOCKS), means = d->blocks.mean_queries > 0;
    const bool mamba = any_mixes(c, &msgl__mixer_mamba) || any_mixes(c, &msgl__mixer_beside) ||
                       any_mixes(c, &msgl__mixer_shared);
    const bool delta =
        k->delta.run != NULL && k->delta.supports != NULL && k->delta.scratch_size != NULL;
    const need needs[] = {
        {d->streams.num > 0,
         k->streams.spread != NULL && k->streams.squash != NULL && k->streams.mix != NULL &&
             k->streams.inject != NULL && k->streams.clear != NULL,
         "gated residual streams (hc_count)"},
        {d->hyper.streams > 0,
         k->streams.spread != NULL && k->hyper.open != NULL && k->hyper.close != NULL &&
             k->hyper.head != NULL,
         "hyper-connections (hc_mult)"},
        {any_mixes(c, &msgl__mixer_compressed), k->compress.rotate != NULL && k->index.list != NULL,
         "attention to lists of keys (sliding_window)"},
        {any_has(c, MSGL_LAYER_COMPRESSES), k->compress.store != NULL && k->compress.make != NULL,
         "compressed keys (compress_rates)"},
        {any_has(c, MSGL_LAYER_CHOOSES_WINDOWS) || d->latent.index.top_k > 0,
         k->index.choose != NULL, "sparse attention (index_topk)"},
        {d->latent.index.top_k > 0, k->index.store != NULL, "index keys (index_topk)"},
        {blocks && !means, k->index.store != NULL && k->index.choose_blocks != NULL,
         "attention to chosen blocks (index_topk_blocks)"},
        {blocks && means, k->index.store_means != NULL && k->index.choose_means != NULL,
         "attention to chosen blocks (indexer_budget)"},
        {any_has(c, MSGL_LAYER_TABLE), k->moe.look_up != NULL,
         "experts by token id (num_hash_layers)"},
        {any_has(c, MSGL_LAYER_NGRAMS),
         k->ngrams.ids != NULL && k->ngrams.gate != NULL && k->conv.run != NULL,
         "embeddings of n-grams (ple_layer_ids)"},
        {any_mixes(c, &msgl__mixer_short_conv), k->conv.run != NULL, "short convolutions"},
        {any_mixes(c, &msgl__mixer_delta), delta, "linear attention by the gated delta rule"},
        {any_mixes(c, &msgl__mixer_kda), delta, "Kimi Delta Attention"},
        {mamba, k->conv.run != NULL && k->ssm.run != NULL, "Mamba-2"},
    };
    for (size_t i = 0; i < MSGL_COUNT(needs); i++) {
        if (!needs[i].there || needs[i].has) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s: this device has no kernel for %s; allowed: --device cpu",
                             c->arch->name, needs[i].what);
    }
    return 0;
}
