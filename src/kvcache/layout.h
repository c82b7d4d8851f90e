// SPDX-License-Identifier: Apache-2.0
//
// What a model keeps of a request between steps, and for how long. Layers that keep the same form a
// group (msgl_cache_spec), named by the model's family. Groups that keep it equally long share a
// span: its pages, or states, are numbered and handed out once for all of them, so that scheduler
// and prefix cache know spans only, and memory and kernels know groups.
#ifndef MSGL_KVCACHE_LAYOUT_H
#define MSGL_KVCACHE_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"

enum { MSGL_MAX_GROUPS = 8, MSGL_MAX_SPANS = 4 };

// Tokens between two checkpoints of states in the prefix cache, rounded up to whole pages and whole
// chunks of kernels (MSGL_DELTA_CHUNK).
enum { MSGL_STATE_INTERVAL = 512 };

typedef enum msgl_cache_kind {
    MSGL_CACHE_KV,     // K and V of every token
    MSGL_CACHE_LATENT, // one vector a token that all heads' K and V are made of (DeepSeek-V2)
    // A key a token by which attention chooses others (DeepSeek-V3.2), or a row that keys are made
    // of (DeepSeek-V4).
    MSGL_CACHE_INDEX,
    MSGL_CACHE_STATE, // a block of bytes a request that every token changes (linear attention)
} msgl_cache_kind;

// What a group of layers keeps, per layer.
typedef struct msgl_cache_spec {
    msgl_cache_kind kind;
    int32_t num_layers;
    // Tokens in front of its own that a token still reads, as in msgl_attn_layer; -1: all.
    int32_t window;
    // KV: elements of K and of V a token and head. LATENT: one head of k_dim elements, the first
    // v_dim of which are its V. INDEX: one head of k_dim elements, and v_dim 0.
    int32_t num_heads, k_dim, v_dim;
    // KV: elements of a label a token and head (docs/internals/double-sparsity.md); 0: none.
    int32_t label_dim;
    msgl_dtype dtype;
    size_t state_bytes; // STATE: of one request
} msgl_cache_spec;

typedef struct msgl_cache_specs {
    int32_t count;
    msgl_cache_spec all[MSGL_MAX_GROUPS];
} msgl_cache_specs;

typedef enum msgl_span_kind {
    MSGL_SPAN_ALL,    // pages of every token, until the request ends
    MSGL_SPAN_WINDOW, // pages of the last tokens only; those behind the window are given back
    MSGL_SPAN_STATE,  // a state a row of the page table, and checkpoints of it
} msgl_span_kind;

typedef struct msgl_cache_span {
    msgl_span_kind kind;
    int32_t window;    // WINDOW: tokens in front of a query's own that it reads
    int32_t interval;  // STATE: tokens between two checkpoints, a multiple of the page size
    int32_t num_units; // pages, the dummy page not counted; of STATE: checkpoints, >= 0
    // STATE: units behind the checkpoints, [num_units, num_units + draft_states), that no cache
    // hands out: the scheduler's, for the states behind rows of drafts.
    int32_t draft_states;
} msgl_cache_span;

// Span 0 is one of all tokens, whose pages are what the prefix cache is made of; no group may have
// memory in it. Behind it come those with windows, ascending, then the states', if there are any.
typedef struct msgl_cache_layout {
    int32_t page_size; // tokens, of all spans
    int32_t num_spans;
    msgl_cache_span spans[MSGL_MAX_SPANS];
} msgl_cache_layout;

// The span of states, or NULL.
static inline const msgl_cache_span *msgl__cache_state_span(const msgl_cache_layout *l)
{
    const msgl_cache_span *last = &l->spans[l->num_spans - 1];
    return last->kind == MSGL_SPAN_STATE ? last : NULL;
}

// Spans of these groups (num_units 0) and the span of each group. A window that reaches over
// max_seq_len tokens is none; windows beyond what MSGL_MAX_SPANS has room for count as the next
// larger one (all tokens at last).
void msgl__cache_layout_of(const msgl_cache_specs *specs, int32_t max_seq_len, int32_t page_size,
                           msgl_cache_layout *out, int32_t span_of[MSGL_MAX_GROUPS]);

// Pages that a span of this window needs to hold for the next token of a request.
static inline int32_t msgl__window_pages(int32_t window, int32_t page_size)
{
    return (window + page_size - 1) / page_size;
}

// Pages of a window that one request has at most while it computes chunks of up to chunk_len
// tokens: the pages that the chunk's first token reads, begun ones counted, and the chunk's own.
static inline int32_t msgl__window_pages_most(int32_t window, int32_t chunk_len, int32_t page_size)
{
    return msgl__window_pages(window, page_size) + msgl__window_pages(chunk_len, page_size) + 1;
}

// Bytes of a page in one group, and of a state; 0 on overflow.
size_t msgl__cache_unit_bytes(const msgl_cache_spec *s, int32_t page_size);

#endif
