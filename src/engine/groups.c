// SPDX-License-Identifier: Apache-2.0
//
// The groups of the model's layers that keep the same of a request: which backends attend over
// each, and their memory. Page size and sequences are the same for all.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/chosen.h"
#include "attention/expand.h"
#include "engine/internal.h"
#include "models/decoder.h"

static bool attends(const msgl_engine *e, int32_t group)
{
    const msgl_cache_kind kind = e->specs.all[group].kind;
    return kind == MSGL_CACHE_KV || kind == MSGL_CACHE_LATENT;
}

// Whether every layer that attends chooses keys, or has lists of them.
static bool all_choose(const msgl_engine *e)
{
    const msgl_decoder_config *d = &e->model.cfg.decoder;
    return d->latent.index.top_k > 0 || d->compressed.groups > 0;
}

static msgl_attn_needs needs_of(const msgl_engine *e, int32_t group, int32_t page_size)
{
    const msgl_cache_spec *spec = &e->specs.all[group];
    return (msgl_attn_needs){
        .cache = spec->kind,
        .backends = e->plugin->backends,
        .capability = e->device->capability,
        .num_q_heads = e->model.cfg.num_heads / e->model.target.ranks,
        .num_kv_heads = spec->num_heads,
        .head_dim = spec->k_dim,
        .v_dim = spec->v_dim,
        .page_size = page_size,
        .act = e->model.target.act,
        .kv_dtype = spec->dtype,
        .deterministic = e->deterministic,
        .tree = e->topk > 1,
        .variants = msgl__model_variants(&e->model.cfg, group),
        .dual_len = e->model.cfg.ropes[0].dual.len,
        .sparse = e->sparse.heavy_channels > 0 ? &e->sparse : NULL,
    };
}

// How prompts are computed over a latent cache: expanded where the backend does so by default,
// unless an answer's bits must not depend on what was prompt. MINISGL_LATENT_PROMPTS, of tests and
// measurements, says it for any device: absorbed, or expanded.
static int choose_prompts(msgl_engine *e, const msgl_attn_needs *needs, const msgl_attn_desc *d,
                          msgl_err *err)
{
    const char *const name = "MINISGL_LATENT_PROMPTS", *want = getenv(name);
    const msgl_latent_config *l = &e->model.cfg.decoder.latent;
    const msgl_attn_expanded expanded = {.nope = l->nope, .v_dim = l->v_dim};
    const bool can = !all_choose(e) && d->expand != NULL && d->expand->supports(needs, &expanded);
    if (want == NULL) {
        const bool expand = can && d->expand->by_default && !e->deterministic;
        e->prompts = expand ? MSGL_PROMPTS_CHEAPER : MSGL_PROMPTS_ABSORBED;
    } else if (strcmp(want, "absorbed") == 0) {
        e->prompts = MSGL_PROMPTS_ABSORBED;
    } else if (strcmp(want, "expanded") != 0) {
        return msgl__err_set(err, MSGL_EINVAL, "%s: \"%s\"; allowed: absorbed, expanded", name,
                             want);
    } else if (!can || e->deterministic) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s: attention backend %s cannot expand prompts of this model here%s",
                             name, d->name, e->deterministic ? " and be deterministic" : "");
    } else {
        e->prompts = MSGL_PROMPTS_EXPANDED;
    }
    if (e->prompts != MSGL_PROMPTS_ABSORBED) e->apart = true;
    return 0;
}

// *warnings: those of the group before, printed already.
static int choose_backends(msgl_engine *e, const msgl_options *o, int32_t group, int32_t *page_size,
                           char warnings[2][256], msgl_err *err)
{
    const msgl_attn_needs needs = needs_of(e, group, o->page_size);
    msgl_attn_choice *choice = &e->attn_choices[group];
    char now[2][256] = {"", ""};
    const char *attention;
    int code = msgl__sparse_spec(o, &attention, err);
    if (code == 0) code = msgl__attn_select(attention, &needs, choice, now[0], err);
    if (code != 0) return code;
    if (choice->decode->labels && e->sparse.channels != NULL) {
        e->specs.all[group].label_dim = e->sparse.heavy_channels;
    }
    // Only a backend that is named changes it, and a name is for all groups.
    *page_size = msgl__attn_page_size(choice, o->page_size, now[1]);
    for (int i = 0; i < 2; i++) {
        if (strcmp(now[i], warnings[i]) != 0) msgl__engine_print(o, now[i]);
        memcpy(warnings[i], now[i], sizeof now[i]);
    }
    if (msgl__attn_apart(choice)) e->apart = true;
    if (all_choose(e) && !e->device->on_host) {
        code = msgl__chosen_select(&needs, &choice->decode, err);
        if (code != 0) return code;
        choice->prefill = choice->decode;
    }
    if (needs.cache == MSGL_CACHE_LATENT) {
        code = choose_prompts(e, &needs, choice->prefill, err);
        if (code != 0) return code;
    }
    if (choice->prefill->reads_behind_window || choice->decode->reads_behind_window) {
        e->specs.all[group].window = -1;
    }
    return 0;
}

// A draft model's layers keep all tokens, whatever their window: its pages are those of span 0.
static void keep_all(msgl_engine *e)
{
    for (int32_t g = 0; g < e->specs.count; g++) e->specs.all[g].window = -1;
}

int msgl__groups_choose(msgl_engine *e, const msgl_options *o, int32_t max_seq_len, msgl_err *err)
{
    int32_t page_size = o->page_size, span_of[MSGL_MAX_GROUPS];
    char warnings[2][256] = {"", ""};
    msgl__model_caches(&e->model.cfg, e->model.target.ranks, e->kv_dtype, e->model.target.act,
                       &e->specs);
    if (e->parent != NULL) keep_all(e);
    int sparse = msgl__sparse_open(e, o, err);
    if (sparse == 0) sparse = msgl__sparse_prompts_open(e, o, max_seq_len, err);
    if (sparse != 0) return sparse;
    for (int32_t g = 0; g < e->specs.count; g++) {
        // A token's state has a kernel of its own.
        if (e->specs.all[g].kind == MSGL_CACHE_STATE) e->apart = true;
        if (!attends(e, g)) continue;
        const int code = choose_backends(e, o, g, &page_size, warnings, err);
        if (code != 0) return code;
    }
    msgl_cache_layout *c = &e->info.cache;
    msgl__cache_layout_of(&e->specs, max_seq_len, page_size, c, span_of);
    for (int32_t g = 0; g < e->specs.count; g++) e->groups[g].span = span_of[g];
    e->num_tables = c->num_spans - (msgl__cache_state_span(c) != NULL);
    return 0;
}

// The page table of a span.
static int create_table(msgl_engine *e, int32_t span, msgl_err *err)
{
    const msgl_cache_layout *c = &e->info.cache;
    const int32_t pages = c->spans[span].num_units;
    const int64_t slots = ((int64_t)pages + 1) * c->page_size;
    if (slots > INT32_MAX || ((int64_t)e->max_running + 1) * e->token_stride > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "engine: %d pages of %d tokens or %d requests of %d tokens are more "
                             "than 2^31 places; lower --num-pages or --max-running-requests",
                             pages, c->page_size, e->max_running, e->info.max_seq_len);
    }
    return msgl__page_table_create(e->max_running, e->info.max_seq_len, c->page_size, pages,
                                   &e->page_tables[span], err);
}

int msgl__groups_create_memory(msgl_engine *e, msgl_err *err)
{
    int code = 0;
    for (int32_t g = 0; g < e->specs.count; g++) {
        msgl_kv_pool *pool = &e->groups[g].pool;
        pool->base = msgl__engine_take(e, 1, pool->bytes, false, &code, err);
    }
    if (e->parent != NULL) {
        e->page_tables[0] = e->parent->page_tables[0];
        return code;
    }
    for (int32_t i = 0; i < e->num_tables && code == 0; i++) code = create_table(e, i, err);
    return code;
}

// Layers that choose keys: all of those over latent vectors or with compressed keys, or some of
// those over K and V.
static int create_chosen(msgl_engine *e, const msgl_attn_config *cfg, int32_t g, msgl_err *err)
{
    const msgl_decoder_config *d = &e->model.cfg.decoder;
    const msgl_attn_choosing keys = {.top_k = d->latent.index.top_k};
    const msgl_attn_choosing blocks = {.top_k = d->blocks.top_k,
                                       .block_size = d->blocks.size,
                                       .local_blocks = d->blocks.local,
                                       .mean_queries = d->blocks.mean_queries};
    const bool latent = cfg->pool->spec.kind == MSGL_CACHE_LATENT;
    const msgl_attn_desc *desc = e->device->on_host ? NULL : e->attn_choices[g].decode;
    if (desc != NULL && !latent) {
        // Other layers of the group have what was chosen for it.
        msgl_attn_needs needs = needs_of(e, g, cfg->page_size);
        needs.num_q_heads /= needs.num_kv_heads;
        needs.num_kv_heads = 1;
        const int code = msgl__chosen_select(&needs, &desc, err);
        if (code != 0) return code;
    }
    msgl_attn_choosing what = latent ? keys : blocks;
    if (d->compressed.groups > 0) {
        const int32_t window = e->groups[g].pool.spec.window;
        what.every = msgl__compressed_every(&e->model.cfg, window);
        what.top_k = what.every > 0 ? d->compressed.index.top_k : 0;
        what.list_keys = msgl__compressed_list(d, window, cfg->max_seq_len);
    }
    return msgl__chosen_create(cfg, desc, &what, &e->groups[g].chosen, err);
}

static void set_pages(const msgl_engine *e, msgl_cache_group *group)
{
    const msgl_page_table *table = &e->page_tables[group->span];
    group->page_size = table->paging.size;
    if (e->device->on_host) {
        group->pages = table->pages;
        group->page_stride = (size_t)table->stride;
    } else {
        group->pages = e->dev.page_tables[group->span];
        group->page_stride = (size_t)(e->token_stride / group->page_size);
    }
}

int msgl__groups_create_attention(msgl_engine *e, msgl_err *err)
{
    msgl_attn_config cfg = {
        .dev = e->device,
        .device_table_stride = (size_t)e->token_stride,
        .deterministic = e->deterministic,
        .apart = e->apart,
        .num_q_heads = e->model.cfg.num_heads / e->model.target.ranks,
        .dual_len = e->model.cfg.ropes[0].dual.len,
        .sparse = &e->sparse,
        .expanded = {.prompts = e->prompts,
                     .nope = e->model.cfg.decoder.latent.nope,
                     .v_dim = e->model.cfg.decoder.latent.v_dim},
        .pattern = e->pattern.heads != NULL ? &e->pattern : NULL,
        .page_size = e->info.cache.page_size,
        .max_running = e->max_seqs,
        .max_seq_len = e->info.max_seq_len,
        .max_step_tokens = e->max_step_tokens,
        .max_in_flight = MSGL_ENGINE_STEP_SLOTS,
        .kernels = &e->kernels,
        .num_threads = msgl__pool_threads(e->threads),
    };
    int code = 0;
    for (int32_t g = 0; g < e->specs.count && code == 0; g++) {
        msgl_cache_group *group = &e->groups[g];
        if (e->specs.all[g].kind != MSGL_CACHE_STATE) set_pages(e, group);
        if (!attends(e, g)) continue;
        cfg.variants = msgl__model_variants(&e->model.cfg, g);
        cfg.num_kv_heads = group->pool.spec.num_heads;
        cfg.head_dim = group->pool.spec.k_dim;
        cfg.pool = &group->pool;
        cfg.page_table = &e->page_tables[group->span];
        cfg.device_table = e->dev.page_tables[group->span];
        const msgl_attn_choice *choice = &e->attn_choices[g];
        const bool some_choose = e->model.cfg.decoder.blocks.top_k > 0;
        if (!all_choose(e)) code = msgl__attn_create(choice, &cfg, &group->attn, err);
        if (code == 0 && (all_choose(e) || some_choose)) {
            code = create_chosen(e, &cfg, g, err);
        }
    }
    return code;
}

void msgl__groups_destroy(msgl_engine *e)
{
    for (int32_t g = 0; g < MSGL_MAX_GROUPS; g++) {
        msgl__attn_destroy(&e->groups[g].attn);
        msgl__chosen_destroy(e->groups[g].chosen);
    }
    for (int32_t i = 0; i < MSGL_MAX_SPANS && e->parent == NULL; i++) {
        msgl__page_table_destroy(&e->page_tables[i]);
    }
    msgl__attn_sparse_free(&e->sparse);
    msgl__dual_pattern_free(&e->pattern);
}

void msgl__groups_describe(const msgl_engine *e, char *text, size_t size)
{
    const msgl_attn_choice *first = NULL;
    bool same = true;
    for (int32_t g = 0; g < e->specs.count; g++) {
        const msgl_attn_choice *c = &e->attn_choices[g];
        if (!attends(e, g)) continue;
        if (first == NULL) first = c;
        if (c->prefill != first->prefill || c->decode != first->decode) same = false;
    }
    size_t at = 0;
    text[0] = '\0';
    for (int32_t g = 0; g < e->specs.count && at < size; g++) {
        const msgl_attn_choice *c = &e->attn_choices[g];
        if (!attends(e, g) || (same && at > 0)) continue;
        const char *which = same ? "" : e->specs.all[g].window < 0 ? "full " : "window ";
        const bool one = c->prefill == c->decode;
        at += (size_t)snprintf(text + at, size - at, "%s%s%s%s%s", at > 0 ? "; " : "", which,
                               c->prefill->name, one ? "" : ",", one ? "" : c->decode->name);
    }
}
