// SPDX-License-Identifier: Apache-2.0
//
// How long a step takes, from steps that were measured: the rows of `minisgl bench step --grid -o
// json`, one JSON object a line. What lies between them is interpolated.
//
// Steps with answers only are a surface over (answers, mean context), steps with prompt tokens only
// one over (tokens, tokens before them): linear between neighbouring measurements in both. Few
// answers or tokens take what the fewest measured take; beyond the most measured, and outside of
// the contexts, the last two measurements are continued. Steps with both are estimated from these
// two,
//
//     answers(B, c) + chunk(n + B, 0) - chunk(B, 0) + chunk(n, p) - chunk(n, 0)
//
// since prompt tokens beside answers share the reading of the weights with them, times how far the
// measured ones are off that, interpolated over (answers, tokens).
#ifndef MSGL_APPS_SIMULATION_STEP_TABLE_H
#define MSGL_APPS_SIMULATION_STEP_TABLE_H

#include <stdint.h>

#include "core/batch.h"
#include "core/err.h"

typedef struct msgl_step_table msgl_step_table;

// What of a step decides how long it takes.
typedef struct msgl_step_shape {
    double answers; // requests with one new token each
    double context; // tokens before that one, in the mean
    double chunk;   // new tokens of prompts, and drafts
    // Tokens before a chunk, in the mean, as one chunk of them all would have them: several chunks
    // attend to fewer keys than one of their sum, so that this may be negative.
    double prefix;
} msgl_step_shape;

// An answer with drafts is one, and its drafts are a chunk behind it.
msgl_step_shape msgl__step_shape_of(const msgl_batch *b);

// Each row has "phase" ("decode", "prefill" or "mixed"), "batch" (answers), "context", "chunk",
// "prefix", "ms_per_step" and "tile" (as in msgl_runner), of which a phase reads those that it has.
// Rows of the same step count as their mean. MSGL_EFORMAT names line and field.
int msgl__step_table_load(const char *path, msgl_step_table **out, msgl_err *err);
void msgl__step_table_destroy(msgl_step_table *t); // NULL allowed

uint64_t msgl__step_table_ns(const msgl_step_table *t, const msgl_step_shape *s);
int32_t msgl__step_table_tile(const msgl_step_table *t);

#endif
