// SPDX-License-Identifier: Apache-2.0
//
// What an earlier `minisgl run` left behind: which lines of the input its output answers. A line is
// known by its custom_id or, without one, by its number. A custom_id that several lines have is
// taken to answer the first of them, in whose order answers are written.
#ifndef MSGL_CLI_RUN_RESUME_H
#define MSGL_CLI_RUN_RESUME_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/err.h"

typedef struct msgl_resume {
    uint8_t *lines;           // [num_lines] of the input: what is known of each
    int64_t num_lines;        //
    int64_t answered, failed; // lines of the output, and those with an error
    int64_t keep;             // its bytes: up to the end of its last whole line
    bool torn;                // there are some behind that
} msgl_resume;

// Reads the output, then the input. MSGL_EINVAL when the output has lines that are no answers, or
// answers lines that the input does not have. The names are for errors. The caller frees *r either
// way.
int msgl__resume_read(FILE *in, const char *in_name, FILE *out, const char *out_name,
                      msgl_resume *r, msgl_err *err);
void msgl__resume_free(msgl_resume *r);

// Whether line `number` (from 1) has its answer, and whether it is in OpenAI's form.
bool msgl__resume_done(const msgl_resume *r, int64_t number, bool *batch);

#endif
