// SPDX-License-Identifier: Apache-2.0
//
// Requests of a day: when they come, how long they are, and what of them is the same. The form is
// that of Mooncake's public traces (Qin et al. 2024), one JSON object a line, with conversations as
// AIPerf has them (docs/simulation.md). No text is in it; token ids are made up, so that prompts
// have as much in common as the trace says, and answers come again as often as it says, so that
// drafts of them are right.
#ifndef MSGL_APPS_SIMULATION_TRACE_H
#define MSGL_APPS_SIMULATION_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum { MSGL_TRACE_VOCAB = 1 << 20, MSGL_TRACE_MAX_LEN = 1 << 24, MSGL_TRACE_CYCLE = 32 };

typedef struct msgl_trace_line {
    uint64_t at_ns;       // arrival; of a later turn: from the end of the one before
    int32_t input;        // tokens that it adds to those of the turns before
    int32_t output;       // of its answer
    int32_t history;      // of the turns before, answers included; history + input is its prompt
    int32_t before, next; // turns of its conversation, lines; -1: none
    float acceptance;     // probability that a draft is right which stands behind right ones
    int32_t num_hashes;
    size_t hashes; // of its input's first blocks, in msgl_trace.hashes
} msgl_trace_line;

typedef struct msgl_trace {
    msgl_trace_line *lines; // [count]
    int32_t count;
    int32_t block;   // tokens that one of `hashes` stands for
    int32_t longest; // prompt and answer
    int64_t *hashes;
    size_t num_hashes;
} msgl_trace;

// block: tokens of a hash id; acceptance: of lines without one, 0 to 1. MSGL_EFORMAT names line and
// field.
int msgl__trace_load(const char *path, int32_t block, double acceptance, msgl_trace *out,
                     msgl_err *err);
void msgl__trace_free(msgl_trace *t); // zero-initialised allowed

// Writes the prompt of a line, history + input ids below MSGL_TRACE_VOCAB, to ids; returns how
// many.
int32_t msgl__trace_prompt(const msgl_trace *t, int32_t line, int32_t *ids);
// Token i of the answer to a line, as it stands in the prompts of later turns. Of a line with an
// acceptance it is one of MSGL_TRACE_CYCLE tokens that come again and again: with this probability
// the next one, else any. What is the prompt's own ends with them, as with a text that is to be
// edited. line: beyond the trace, too, as one without acceptance.
int32_t msgl__trace_answer(const msgl_trace *t, int32_t line, int32_t i);

#endif
