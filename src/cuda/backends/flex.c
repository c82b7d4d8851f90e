// SPDX-License-Identifier: Apache-2.0
//
// flex_attention and fa4 on GPUs: the tensor-core kernel of cuda/attn/flex.cu over block
// masks that `begin` makes on the device, one for each that the model's layers differ in. A step's
// answers and chunks may both be there at once, so each phase has its own. Where a model's layers
// have no functions of their own, chunks without trees are fa's, whose kernel has less to do.
#include "cuda/backends/flex.h"

#include "attention/flex/masks.h"
#include "attention/paged.h"
#include "core/mem.h"
#include "cuda/attn/flex.h"
#include "cuda/backends/call.h"
#include "cuda/backends/fa.h"

typedef struct flex_backend {
    msgl_attn_backend base;
    msgl_attn_config cfg;
    msgl_flex_masks masks;
    int32_t *lists; // [phases, masks, max_places, lists_ld] of the device
    size_t bytes;
    msgl_attn_backend *fa; // of models whose layers have no mods; or NULL
} flex_backend;

static void flex_destroy(msgl_attn_backend *base)
{
    flex_backend *b = (flex_backend *)base;
    if (b == NULL) return;
    if (b->fa != NULL) b->fa->desc->destroy(b->fa);
    if (b->lists != NULL) b->cfg.dev->ops->free(b->cfg.dev, b->lists, b->bytes);
    msgl__free(b);
}

// Integers of a block mask.
static size_t mask_size(const flex_backend *b)
{
    return (size_t)b->masks.max_places * b->masks.lists_ld;
}

static int take_memory(flex_backend *b, msgl_err *err)
{
    const char *name = b->base.desc->name;
    msgl_device *d = b->cfg.dev;
    if (msgl__size_mul(mask_size(b), 2 * (size_t)b->masks.count * sizeof(int32_t), &b->bytes) !=
        0) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: block masks too large", name);
    }
    b->lists = d->ops->alloc(d, b->bytes);
    if (b->lists != NULL) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "%s: no memory for %zu bytes of block masks", name,
                         b->bytes);
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
    bool plain = true;
    for (int32_t i = 0; i < b->masks.count; i++) plain &= b->masks.all[i].mods == NULL;
    rc = take_memory(b, err);
    if (rc == 0 && plain) rc = msgl__attn_fa_cuda.create(&msgl__attn_fa_cuda, cfg, &b->fa, err);
    if (rc != 0) {
        flex_destroy(&b->base);
        return rc;
    }
    *out = &b->base;
    return 0;
}

// fa, if it serves these sequences.
static msgl_attn_backend *fa_for(const flex_backend *b, const msgl_seqs *seqs)
{
    return seqs->tree == NULL && seqs->phase == MSGL_PREFILL ? b->fa : NULL;
}

static int flex_prepare(msgl_attn_backend *base, const msgl_seqs *seqs)
{
    msgl_attn_backend *fa = fa_for((const flex_backend *)base, seqs);
    return fa != NULL ? fa->desc->prepare(fa, seqs) : 0;
}

static void flex_copy_in(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    msgl_attn_backend *fa = fa_for((const flex_backend *)base, seqs);
    if (fa != NULL) fa->desc->copy_in(fa, x, seqs);
}

static int32_t *lists_of(const flex_backend *b, const msgl_seqs *seqs, int32_t mask)
{
    const int32_t phase = seqs->phase == MSGL_DECODE;
    return b->lists + (size_t)(phase * b->masks.count + mask) * mask_size(b);
}

static void flex_begin(msgl_attn_backend *base, msgl_exec *x, const msgl_seqs *seqs)
{
    const flex_backend *b = (const flex_backend *)base;
    if (fa_for(b, seqs) != NULL) return;
    for (int32_t i = 0; i < b->masks.count; i++) {
        const msgl_attn_variant *v = &b->masks.all[i];
        const msgl_cuda_flex_call c = {.attn = {.batch = seqs->size,
                                                .total_q = seqs->num_tokens,
                                                .cu_seqlens_q = seqs->dev_cu_seqlens_q,
                                                .seqlens_k = seqs->dev_seqlens_k,
                                                .table_rows = seqs->dev_table_rows},
                                       .mods = msgl__flex_mods(v->mods, v->window, 0, seqs),
                                       .tree = seqs->dev_tree,
                                       .lists = lists_of(b, seqs, i),
                                       .lists_ld = b->masks.lists_ld};
        msgl__cuda_attn_result(x, base->desc->name,
                               msgl__cuda_flex_lists(&c, msgl__cuda_device_stream(x->device)));
    }
}

static void flex_forward(msgl_attn_backend *base, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, const msgl_attn_input *in, void *out)
{
    const flex_backend *b = (const flex_backend *)base;
    const msgl_attn_config *cfg = &b->cfg;
    msgl_attn_backend *fa = fa_for(b, seqs);
    if (fa != NULL) {
        fa->desc->forward(fa, x, layer, seqs, in, out);
        return;
    }
    if (!msgl__cuda_attn_dtype(x, cfg)) return;
    const int32_t mask = msgl__flex_mask_of(&b->masks, layer->mods, layer->window);
    if (mask == b->masks.count) { // a layer that the configuration does not list
        if (x->status == 0) x->status = MSGL_EINVAL;
        return;
    }
    msgl_cuda_flex_call c = {.mods =
                                 msgl__flex_mods(layer->mods, layer->window, layer->softcap, seqs),
                             .tree = seqs->dev_tree,
                             .lists = lists_of(b, seqs, mask),
                             .lists_ld = b->masks.lists_ld};
    msgl__cuda_attn_call(cfg, layer, seqs, in, out, &c.attn);
    msgl__cuda_attn_result(x, base->desc->name,
                           msgl__cuda_flex_attend(&c, msgl__cuda_device_stream(x->device)));
}

// What both have.
#define FLEX                                                                                       \
    .kv_dtypes = 1u << MSGL_F16 | 1u << MSGL_BF16, .sliding_window = true, .softcap = true,        \
    .tree = true, .masks = MSGL_ALL_MASKS, .scores = MSGL_ALL_SCORES,                              \
    .supports = msgl__cuda_supports, .create = flex_create, .destroy = flex_destroy,               \
    .prepare = flex_prepare, .copy_in = flex_copy_in, .begin = flex_begin, .forward = flex_forward

const msgl_attn_desc msgl__attn_flex_cuda = {
    FLEX,
    .name = "flex_attention",
    .aliases = {"flex", NULL},
    .summary = "mask and score functions over block masks of 128 x 128; prompts without any by fa",
    .min_capability = 80,
    .page_rule = MSGL_PAGE_ANY,
};

const msgl_attn_desc msgl__attn_fa4_cuda = {
    FLEX,
    .name = "fa4",
    .aliases = {NULL},
    .summary =
        "prompts on pages of 128: flex_attention's kernel, fa's for Hopper without functions",
    .decode_by = "fa",
    .min_capability = 90,
    .page_rule = MSGL_PAGE_SET,
    .page_sizes = {128},
    .page_override = 128,
};
