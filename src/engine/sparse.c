// SPDX-License-Identifier: Apache-2.0
//
// What is sparse: double sparsity's settings, from the options to what its backend asks for, and
// the pattern of a model's long prompts.
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"

static const char NAME[] = "double_sparsity";

int msgl__sparse_spec(const msgl_options *o, const char **attention, msgl_err *err)
{
    *attention = o->attention;
    if (!o->double_sparsity && !o->ds_calibrate) return 0;
    static const char *const fitting[] = {NAME, "triton", "auto"};
    *attention = NAME;
    for (size_t i = 0; i < sizeof fitting / sizeof fitting[0]; i++) {
        if (strcmp(o->attention, fitting[i]) == 0) return 0;
    }
    return msgl__err_set(err, MSGL_EINVAL,
                         "--enable-double-sparsity: not with --attn %.64s; allowed: triton, %s",
                         o->attention, NAME);
}

// Of every layer's KV heads those of this rank, `own` of them; where there are fewer than ranks,
// several have one.
static void keep_channels(msgl_attn_sparse *s, int32_t own, int32_t rank, int32_t ranks)
{
    msgl_channel_dims *d = &s->dims;
    const size_t of_head = (size_t)s->heavy_channels, of_rank = (size_t)own * of_head;
    const size_t all = (size_t)d->num_kv_heads * of_head;
    const size_t from = (size_t)((int64_t)rank * d->num_kv_heads / ranks) * of_head;
    for (size_t l = 0; l < (size_t)d->num_layers; l++) {
        memmove(s->channels + l * of_rank, s->channels + l * all + from,
                of_rank * sizeof *s->channels);
    }
    d->num_q_heads /= ranks;
    d->num_kv_heads = own;
}

int msgl__sparse_open(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    const char *attention, *path = o->ds_channel_config_path;
    const int code = msgl__sparse_spec(o, &attention, err);
    if (code != 0 || (path == NULL && !o->ds_calibrate)) return code;
    if (strcmp(attention, NAME) != 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--ds-channel-config-path: not with --attn %.64s; allowed: %s",
                             attention, NAME);
    }
    if (o->ds_calibrate && !e->device->on_host) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "calibrating is for --device cpu only");
    }
    const int32_t ranks = e->model.target.ranks;
    if (o->ds_calibrate && ranks > 1) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "calibrating: not with --tp-size %d; allowed: 1", (int)ranks);
    }
    // Layers of the file are the model's, those of a pool its group's.
    if (e->specs.count != 1) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "attention backend %s: not all layers of this model keep K and V of "
                             "all tokens",
                             NAME);
    }
    const msgl_cache_spec *spec = &e->specs.all[0];
    e->sparse = (msgl_attn_sparse){.dims = {.num_layers = spec->num_layers,
                                            .num_q_heads = e->model.cfg.num_heads,
                                            .num_kv_heads = e->model.cfg.num_kv_heads,
                                            .head_dim = spec->k_dim},
                                   .heavy_channels = o->ds_heavy_channel_num,
                                   .heavy_tokens = o->ds_heavy_token_num,
                                   .threshold = o->ds_sparse_decode_threshold};
    if (o->ds_calibrate) return msgl__attn_sums_create(&e->sparse, err);
    const int loaded = msgl__attn_channels_load(path, o->ds_heavy_channel_type, &e->sparse, err);
    if (loaded == 0) keep_channels(&e->sparse, spec->num_heads, e->model.target.rank, ranks);
    return loaded;
}

int msgl__engine_write_channels(const msgl_engine *e, const char *path, msgl_err *err)
{
    if (e->sparse.sums.q == NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "the model was opened without ds_calibrate");
    }
    return msgl__attn_channels_write(path, &e->sparse, err);
}

// Of every layer's heads those of this rank.
static void keep_heads(msgl_dual_pattern *p, int32_t rank, int32_t ranks)
{
    const size_t all = (size_t)p->num_q_heads, own = all / (size_t)ranks;
    for (size_t l = 0; l < (size_t)p->num_layers; l++) {
        memmove(p->heads + l * own, p->heads + l * all + (size_t)rank * own,
                own * sizeof *p->heads);
    }
    p->num_q_heads = (int32_t)own;
}

int msgl__sparse_prompts_open(msgl_engine *e, const msgl_options *o, int32_t max_seq_len,
                              msgl_err *err)
{
    const msgl_model_config *c = &e->model.cfg;
    const msgl_rope_config *rope = &c->ropes[0];
    const msgl_sparse_prompts *prompts = &c->decoder.sparse_prompts;
    msgl_dual_pattern *p = &e->pattern;
    if (rope->dual.len == 0 || prompts->threshold >= max_seq_len) return 0;
    p->num_layers = c->num_layers;
    p->num_q_heads = c->num_heads;
    const int rc = msgl__dual_pattern_load(o->model_dir, prompts, p, err);
    if (rc != 0 || p->heads == NULL) return rc;
    keep_heads(p, e->model.target.rank, e->model.target.ranks);
    // The last rows of a step's piece of a prompt choose for the others, so what else is in a step
    // has a say.
    const msgl_attn_set *set = e->plugin->backends;
    const bool fits = (set->max_sparse_last == 0 || prompts->last <= set->max_sparse_last) &&
                      (set->max_sparse_keys == 0 || max_seq_len <= set->max_sparse_keys);
    if (e->deterministic || !fits) {
        char line[192];
        snprintf(line, sizeof line,
                 "prompts of more than %d tokens: dense, since sparse ones are not for %s",
                 (int)prompts->threshold,
                 e->deterministic ? "--deterministic"
                                  : "GPUs with this model's sparse_attention_last_q or length");
        msgl__engine_print(o, line);
        msgl__dual_pattern_free(p);
        return 0;
    }
    float inv_freq[MSGL_MAX_HEAD_DIM / 2];
    (void)msgl__rope_inv_freq(rope, 0, inv_freq);
    return msgl__dual_pattern_rotations(p, &rope->dual, inv_freq, rope->dim / 2, err);
}
