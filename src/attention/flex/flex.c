// SPDX-License-Identifier: Apache-2.0
//
// flex_attention and fa4 on the CPU: mask and score functions (kernel/attn_mods.h) over block masks
// (kernel/attn_flex.h). A step makes its block masks in `begin`, one for each that the model's
// layers differ in; slots come from the page table, so any page size will do. fa4 is the same for
// prompts alone, on pages of 128; its answers are fa's, as FlashAttention 4 had no decode of its
// own in SGLang 0.5.4.
//
// Tolerance against exact attention (tests/attention/world.c), over the largest |v|: 4e-6 for every
// KV dtype, whose rounding both sides see (2e-6 without ALiBi, whose scores reach hundreds); fa's
// where fa decodes.
#include "attention/flex/flex.h"

#include "attention/flex/masks.h"
#include "attention/paged.h"
#include "core/mem.h"

typedef struct flex_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_flex_masks masks;
    void *memory;
    size_t bytes;
    msgl_flex_place *places; // [max_places]
    int32_t num_places;      // of the step
    int32_t *lists;          // [masks, max_places, lists_ld]
    char *scratch;
    size_t scratch_stride;
} flex_backend;

static void flex_destroy(msgl_attn_backend *base)
{
    flex_backend *b = (flex_backend *)base;
    if (b == NULL) return;
    msgl__pages_free(b->memory, b->bytes);
    msgl__free(b);
}

static int take_memory(flex_backend *b, msgl_err *err)
{
    const char *name = b->base.desc->name;
    const size_t places = (size_t)b->masks.max_places * sizeof(msgl_flex_place);
    const size_t rows = (size_t)b->masks.count * (size_t)b->masks.max_places;
    size_t lists, scratch;
    b->scratch_stride = msgl__flex_scratch_size(b->cfg.head_dim);
    if (msgl__size_mul(rows, b->masks.lists_ld * sizeof(int32_t), &lists) != 0 ||
        msgl__size_mul((size_t)b->cfg.num_threads, b->scratch_stride, &scratch) != 0 ||
        msgl__size_add(lists, places + 128, &b->bytes) != 0 ||
        msgl__size_add(b->bytes, scratch, &b->bytes) != 0) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: block masks too large", name);
    }
    b->memory = msgl__pages_alloc(b->bytes);
    if (b->memory == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "%s: no memory for %zu bytes", name, b->bytes);
    }
    char *at = b->memory;
    b->scratch = msgl__attn_carve(&at, scratch);
    b->places = msgl__attn_carve(&at, places);
    b->lists = msgl__attn_carve(&at, lists);
    return 0;
}

static int flex_create(const msgl_attn_desc *desc, const msgl_attn_config *cfg,
                       msgl_attn_backend **out, msgl_err *err)
{
    int rc = msgl__attn_config_check(desc, cfg, err);
    if (rc != 0) return rc;
    flex_backend *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", desc->name);
    b->base.desc = desc;
    b->cfg = *cfg;
    msgl__flex_masks(cfg, &b->masks);
    rc = take_memory(b, err);
    if (rc != 0) {
        flex_destroy(&b->base);
        return rc;
    }
    *out = &b->base;
    return 0;
}

// What a call has of the sequences and of block mask `mask`.
static msgl_flex_call call_of(const flex_backend *b, const msgl_seqs *seqs, int32_t mask)
{
    const size_t rows = (size_t)mask * (size_t)b->masks.max_places;
    return (msgl_flex_call){.cu_seqlens_q = seqs->cu_seqlens_q,
                            .seqlens_k = seqs->seqlens_k,
                            .table_rows = seqs->table_rows,
                            .tree = seqs->tree,
                            .num_places = b->num_places,
                            .places = b->places,
                            .lists = b->lists + rows * b->masks.lists_ld,
                            .lists_ld = b->masks.lists_ld};
}

static void flex_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    flex_backend *b = (flex_backend *)base;
    b->num_places = 0;
    for (int32_t i = 0; i < seqs->size; i++) {
        const int32_t tokens = seqs->cu_seqlens_q[i + 1] - seqs->cu_seqlens_q[i];
        for (int32_t t = 0; t < tokens; t += MSGL_FLEX_BLOCK) {
            b->places[b->num_places++] = (msgl_flex_place){.req = i, .token = t};
        }
    }
    for (int32_t i = 0; i < b->masks.count; i++) {
        const msgl_attn_variant *v = &b->masks.all[i];
        msgl_flex_call c = call_of(b, seqs, i);
        c.mods = msgl__flex_mods(v->mods, v->window, 0, seqs);
        msgl__flex_make_lists(x, &c);
    }
}

static void flex_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const flex_backend *b = (const flex_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    const int32_t mask = msgl__flex_mask_of(&b->masks, layer->mods, layer->window);
    if (mask == b->masks.count) {
        if (x->status == 0) x->status = MSGL_EINVAL;
        return;
    }
    msgl_flex_call c = call_of(b, seqs, mask);
    c.mods = msgl__flex_mods(layer->mods, layer->window, layer->softcap, seqs);
    c.dtype = cfg->pool->spec.dtype;
    c.num_q_heads = cfg->num_q_heads;
    c.num_kv_heads = cfg->num_kv_heads;
    c.head_dim = cfg->head_dim;
    c.k = msgl__kv_k(cfg->pool, layer->layer);
    c.v = msgl__kv_v(cfg->pool, layer->layer);
    c.q = in->q;
    c.ld_q = in->ld;
    c.out = out;
    c.ld_out = (size_t)cfg->num_q_heads * (size_t)cfg->head_dim;
    c.scale = layer->scale;
    c.pages = cfg->page_table->pages;
    c.pages_ld = (size_t)cfg->page_table->stride;
    c.page_size = cfg->page_size;
    c.scratch = b->scratch;
    c.scratch_stride = b->scratch_stride;
    msgl__flex_attend(x, &c);
}

// What both have.
#define FLEX                                                                                       \
    .max_dim = MSGL_ATTN_MAX_DIM, .max_group = MSGL_FLEX_MAX_GROUP,                                \
    .kv_dtypes = 1u << MSGL_F32 | 1u << MSGL_F16 | 1u << MSGL_BF16, .sliding_window = true,        \
    .softcap = true, .tree = true, .masks = MSGL_ALL_MASKS, .scores = MSGL_ALL_SCORES,             \
    .create = flex_create, .destroy = flex_destroy, .begin = flex_begin, .forward = flex_forward

const msgl_attn_desc msgl__attn_flex = {
    FLEX,
    .name = "flex_attention",
    .aliases = {"flex", NULL},
    .summary = "mask and score functions over block masks of 128 x 128",
    .page_rule = MSGL_PAGE_ANY,
    .ragged = true,
};

const msgl_attn_desc msgl__attn_fa4 = {
    FLEX,
    .name = "fa4",
    .aliases = {NULL},
    .summary = "FlashAttention 4: prompts with mask and score functions on pages of 128",
    .decode_by = "fa",
    .page_rule = MSGL_PAGE_SET,
    .page_sizes = {128},
    .page_override = 128,
};
