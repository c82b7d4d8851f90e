// SPDX-License-Identifier: Apache-2.0
//
// What the paged backends (fa, trtllm) share: turning a batch's lengths into the kernel's work
// list, and the memory that a call needs. Splitting is by whole tiles of MSGL_ATTN_TILE keys at
// absolute positions and each tile is a partial of its own, so the plan (which depends on the batch
// and on the number of threads) never shows in the results.
#ifndef MSGL_ATTENTION_PAGED_H
#define MSGL_ATTENTION_PAGED_H

#include "attention/attention.h"
#include "core/round.h"

// Rows of an item that may be split over the keys.
#define MSGL_ATTN_PARTIAL_ROWS 16

typedef struct msgl_attn_plan {
    msgl_attn_work *works;
    msgl_attn_group *groups;
    int32_t num_works, num_groups, num_partials;
    int32_t heads_per_task;
} msgl_attn_plan;

static inline bool msgl__attn_latent(const msgl_attn_config *cfg)
{
    return cfg->pool->spec.kind == MSGL_CACHE_LATENT;
}

// Memory of the paged kernel, one per backend: a step uses it layer by layer, steps do not overlap
// on the device.
typedef struct msgl_attn_workspace {
    void *base;
    size_t bytes;
    float *partials;
    atomic_int *pending;
    char *scratch;
    size_t scratch_stride;
    int32_t max_works, max_groups, max_partials, partial_rows;
} msgl_attn_workspace;

// Limits that hold every batch of cfg.
void msgl__attn_workspace_limits(const msgl_attn_config *cfg, msgl_attn_workspace *w);
// Takes the memory for w's limits; MSGL_ENOMEM, MSGL_ELIMIT.
int msgl__attn_workspace_create(const msgl_attn_config *cfg, msgl_attn_workspace *w, msgl_err *err);
void msgl__attn_workspace_destroy(msgl_attn_workspace *w);

// Fills p (arrays of w's limits) for requests with query lengths cu_seqlens_q and key lengths
// seqlens_k, [bs] of them. A rule of table.h, which has no ints.
void msgl__attn_plan_tiles(const msgl_attn_config *cfg, const msgl_attn_workspace *w, int32_t bs,
                           const int32_t *cu_seqlens_q, const int32_t *seqlens_k, int32_t *ints,
                           msgl_attn_plan *p);

// The fields of a call that depend on the backend, the layer and the lengths only.
void msgl__attn_call_init(const msgl_attn_config *cfg, const msgl_attn_workspace *w,
                          const msgl_attn_layer *layer, const msgl_seqs *seqs,
                          const msgl_attn_input *in, void *out, msgl_attn_call *c);

// Flattens pages: the slots of all requests' tokens end to end, request i's in indices [indptr[i],
// indptr[i + 1]). indptr [size + 1].
void msgl__attn_list_slots(const msgl_page_table *table, const msgl_seqs *seqs, int32_t *indptr,
                           int32_t *indices);

// Checks limits that every backend relies on; MSGL_EINVAL names the field. And the page size, as
// msgl__attn_check_page_size.
int msgl__attn_config_check(const msgl_attn_desc *desc, const msgl_attn_config *cfg, msgl_err *err);

// Carves size bytes (rounded up to 64) from *at.
static inline void *msgl__attn_carve(char **at, size_t size)
{
    void *p = *at;
    *at += msgl__round_up(size, 64);
    return p;
}

#endif
