// SPDX-License-Identifier: Apache-2.0
//
// Programmable attention: functions that say which keys a query sees and what becomes of a score.
// Adding one is a line of a table below, an expression that C and CUDA both compile, and in
// msgl_attn_mods the parameters that it reads (docs/internals/flex.md).
#ifndef MSGL_KERNEL_ATTN_MODS_H
#define MSGL_KERNEL_ATTN_MODS_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__CUDACC__)
#define MSGL_MOD static __device__ __forceinline__
#define MSGL_MOD_POPCOUNT(x) __popcll(x)
#define MSGL_MOD_TANH(x) (1.f - __fdividef(2.f, 1.f + __expf(2.f * (x))))
#else
#include "core/attributes.h"
#define MSGL_MOD static inline
#define MSGL_MOD_POPCOUNT(x) MSGL_POPCOUNT64(x)
#define MSGL_MOD_TANH(x) tanhf(x)
#endif

// X(name, text, expression): true where query `q` sees `key`. `a` is the layer's msgl_attn_mods,
// `distance` how many positions the key lies before the query.
#define MSGL_ATTN_MASKS(X)                                                                         \
    X(CAUSAL, "causal", distance >= 0)                                                             \
    X(WINDOW, "window", distance <= a->window)                                                     \
    X(TREE, "tree", key < q->first_new || (q->tree >> (key - q->first_new) & 1) != 0)              \
    X(DOCUMENT, "document", msgl__attn_document(a, q, key) == msgl__attn_document(a, q, q->at))    \
    X(PREFIX, "prefix-LM", distance >= 0 || key < a->prefixes[q->row])

// X(name, text, expression): what becomes of score `s` of query head `head`, in this order. ALiBi:
// Press, Smith & Lewis 2022; a bias for every distance: Raffel et al. 2020 (T5).
#define MSGL_ATTN_SCORES(X)                                                                        \
    X(SOFTCAP, "soft cap", a->softcap *MSGL_MOD_TANH(s / a->softcap))                              \
    X(ALIBI, "ALiBi", s - a->slopes[head] * (float)distance)                                       \
    X(BIAS, "relative bias", s + msgl__attn_bias(a, head, distance))

#define X(name, text, expression) MSGL_MASK_##name,
typedef enum msgl_attn_mask { MSGL_ATTN_MASKS(X) MSGL_MASK_COUNT } msgl_attn_mask;
#undef X
#define X(name, text, expression) MSGL_SCORE_##name,
typedef enum msgl_attn_score { MSGL_ATTN_SCORES(X) MSGL_SCORE_COUNT } msgl_attn_score;
#undef X

#define MSGL_ALL_MASKS ((1u << MSGL_MASK_COUNT) - 1)
#define MSGL_ALL_SCORES ((1u << MSGL_SCORE_COUNT) - 1)

// What a layer attends by. Arrays are memory of the kernels' device; rows are those of the page
// table.
typedef struct msgl_attn_mods {
    uint32_t masks; // bits of 1u << msgl_attn_mask: a query sees a key that all of them let through
    uint32_t scores; // bits of 1u << msgl_attn_score; scale comes first
    int32_t window;  // W: keys up to W positions before the query
    float softcap;
    const int32_t *documents; // [rows, documents_ld] document of every position
    size_t documents_ld;
    const int32_t *prefixes; // [rows] length of what is seen from everywhere
    const float *slopes;     // [num_q_heads]
    const float *bias;       // [num_q_heads, 2 * radius + 1], distances -radius to radius
    int32_t radius;          // what is further away has the bias of the radius
} msgl_attn_mods;

// A query: new token of a request whose keys are 0, 1, ...; the new tokens' are first_new and on.
typedef struct msgl_attn_query {
    int32_t at;        // its own key
    int32_t pos;       // its position: at; in a tree the end of its path
    int32_t first_new; //
    int32_t row;       // of the page table
    uint64_t tree;     // msgl_seqs' word of it; 0: there are no trees
} msgl_attn_query;

MSGL_MOD msgl_attn_query msgl__attn_query_at(int32_t first_new, int32_t token, int32_t row,
                                             const uint64_t *tree)
{
    msgl_attn_query q;
    q.at = q.pos = first_new + token;
    q.first_new = first_new;
    q.row = row;
    q.tree = tree != NULL ? *tree : 0;
    if (tree != NULL) q.pos = first_new + (int32_t)MSGL_MOD_POPCOUNT(q.tree) - 1;
    return q;
}

// Of keys before the new ones and on the query's path; of no meaning for others of its tree.
MSGL_MOD int32_t msgl__attn_distance(const msgl_attn_query *q, int32_t key)
{
    if (q->tree == 0 || key < q->first_new) return q->pos - key;
    return (int32_t)MSGL_MOD_POPCOUNT(q->tree >> (key - q->first_new) >> 1);
}

MSGL_MOD int32_t msgl__attn_document(const msgl_attn_mods *a, const msgl_attn_query *q, int32_t key)
{
    return a->documents[(size_t)q->row * a->documents_ld + (size_t)key];
}

MSGL_MOD float msgl__attn_bias(const msgl_attn_mods *a, int32_t head, int32_t distance)
{
    const int32_t r = a->radius;
    const int32_t d = distance < -r ? -r : distance > r ? r : distance;
    return a->bias[(size_t)head * (size_t)(2 * r + 1) + (size_t)(d + r)];
}

// The functions by name; `distance` is msgl__attn_distance(q, key).
#define X(name, text, expression)                                                                  \
    MSGL_MOD bool msgl__attn_mask_##name(const msgl_attn_mods *a, const msgl_attn_query *q,        \
                                         int32_t key, int32_t distance)                            \
    {                                                                                              \
        (void)a, (void)q, (void)key, (void)distance;                                               \
        return (expression);                                                                       \
    }
MSGL_ATTN_MASKS(X)
#undef X
#define X(name, text, expression)                                                                  \
    MSGL_MOD float msgl__attn_score_##name(const msgl_attn_mods *a, int32_t head,                  \
                                           int32_t distance, float s)                              \
    {                                                                                              \
        (void)a, (void)head, (void)distance;                                                       \
        return (expression);                                                                       \
    }
MSGL_ATTN_SCORES(X)
#undef X

// Whether the query sees `key`, one of its request's.
MSGL_MOD bool msgl__attn_sees(const msgl_attn_mods *a, const msgl_attn_query *q, int32_t key)
{
    const int32_t distance = msgl__attn_distance(q, key);
    bool seen = true;
#define X(name, text, expression)                                                                  \
    if ((a->masks & 1u << MSGL_MASK_##name) != 0) {                                                \
        seen = seen && msgl__attn_mask_##name(a, q, key, distance);                                \
    }
    MSGL_ATTN_MASKS(X)
#undef X
    return seen;
}

MSGL_MOD float msgl__attn_rescore(const msgl_attn_mods *a, const msgl_attn_query *q, int32_t key,
                                  int32_t head, float s)
{
    const int32_t distance = msgl__attn_distance(q, key);
#define X(name, text, expression)                                                                  \
    if ((a->scores & 1u << MSGL_SCORE_##name) != 0) {                                              \
        s = msgl__attn_score_##name(a, head, distance, s);                                         \
    }
    MSGL_ATTN_SCORES(X)
#undef X
    return s;
}

#endif
