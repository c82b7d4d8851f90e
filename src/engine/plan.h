// SPDX-License-Identifier: Apache-2.0
//
// How memory is divided before any of it is taken: weights, workspace, and what the KV pool gets of
// the rest.
#ifndef MSGL_ENGINE_PLAN_H
#define MSGL_ENGINE_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/err.h"
#include "kvcache/kvcache.h"

typedef struct msgl_memory_plan {
    // Wanted:
    size_t available;          // memory that this process may still take
    size_t weight_bytes;       // packed
    size_t step_bytes;         // activations, logits and temporaries of a step
    size_t staging_bytes;      // per-step host data
    msgl_kv_pool kv;           // dimensions; num_pages 0: decided here
    const char *weight_format; // name of the large ones'
    int32_t max_running, max_step_tokens;
    int32_t max_seq_len; // wanted; bounded by the pool here
    double memory_ratio;
    // Decided:
    size_t kv_bytes, table_bytes; // table: page table, and what is shaped like it
    size_t left;
} msgl_memory_plan;

// Fills the decided fields, kv.num_pages and max_seq_len. MSGL_ENOMEM says what is needed, what
// there is, and which flag helps.
int msgl__memory_plan(msgl_memory_plan *p, msgl_err *err);
// Prints the plan as a table, a line a call.
void msgl__memory_plan_print(const msgl_memory_plan *p, void (*print)(void *ctx, const char *line),
                             void *ctx);
// MemAvailable, bounded by what the control group and the limit on address space still allow.
size_t msgl__memory_available(void);

#endif
