// SPDX-License-Identifier: Apache-2.0
//
// How memory is divided before any of it is taken: weights, workspace, and what the pools of the
// cache's groups (kvcache/layout.h) get of the rest.
#ifndef MSGL_ENGINE_PLAN_H
#define MSGL_ENGINE_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"
#include "core/round.h"
#include "kvcache/kvcache.h"

enum { MSGL_PLAN_CONTEXTS = 4 };

typedef struct msgl_memory_plan {
    // Wanted:
    size_t available;                 // memory that this process may still take
    size_t weight_bytes;              // packed
    size_t step_bytes;                // activations, logits and temporaries of a step
    size_t staging_bytes;             // per-step host data
    const char *weight_format;        // name of the large ones'
    size_t draft_bytes;               // of weight_bytes those of a draft model; 0: there is none
    msgl_cache_specs specs;           // the model's groups, then the draft model's
    int32_t span_of[MSGL_MAX_GROUPS]; // of each group
    // Its num_units are decided here, but for spans[0]'s where that is not 0. draft_states: the
    // most that are wanted; as many as there is memory for. units_given: all of them are decided.
    msgl_cache_layout cache;
    bool units_given;
    int32_t max_running, max_step_tokens, max_prefill_tokens;
    int32_t max_seq_len; // wanted; bounded by span 0 here
    double memory_ratio; // of what is left, for the pools
    // Where not 0: the pools take no more than so many times the weights, but have room for
    // MSGL_PLAN_CONTEXTS whole contexts.
    double weights_ratio;
    // Where not 0, in place of memory_ratio: the fraction of `whole`, all memory of the device,
    // that weights, pools and, with_workspace, the rest take together.
    double mem_fraction;
    size_t whole;
    bool with_workspace;
    bool lazy; // memory is only taken as pages are filled
    // Decided:
    size_t kv_bytes, table_bytes; // of all pools; of page tables, and what is shaped like them
    size_t left;
} msgl_memory_plan;

// Places of a row of the token pool: whole pages, and one more than a request has tokens.
static inline int32_t msgl__row_places(int32_t max_seq_len, int32_t page_size)
{
    return msgl__ceil_div((max_seq_len + 32) / 32 * 32, page_size) * page_size;
}

// Fills the decided fields, the spans' num_units and max_seq_len. MSGL_ENOMEM says what is needed,
// what there is, and which flag helps.
int msgl__memory_plan(msgl_memory_plan *p, msgl_err *err);
// A group's pool as planned, without its memory.
msgl_kv_pool msgl__memory_plan_pool(const msgl_memory_plan *p, int32_t group);
// Prints the plan as a table, a line a call.
void msgl__memory_plan_print(const msgl_memory_plan *p, void (*print)(void *ctx, const char *line),
                             void *ctx);
// What the control group in this folder (its files memory.max, memory.current and memory.stat)
// still allows; SIZE_MAX when it does not limit. Cached file pages count as used there, but give
// way.
size_t msgl__cgroup_room(const char *dir);
// MemAvailable, or what is free where there is no /proc, bounded by what the control group and the
// limit on address space still allow.
size_t msgl__memory_available(void);
// All memory of the machine, bounded by what the control group allows.
size_t msgl__memory_whole(void);

#endif
