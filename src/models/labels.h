// SPDX-License-Identifier: Apache-2.0
//
// What a model that classifies texts calls its labels.
#ifndef MSGL_MODELS_LABELS_H
#define MSGL_MODELS_LABELS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

typedef struct msgl_labels {
    const char **names; // [num] in one block with their text; owned
    int32_t num;
    bool several; // of which a text may have several (problem_type)
} msgl_labels;

// Of the folder's config.json, num of them, which it has checked: id2label's names, "LABEL_2" for
// one that is missing there.
int msgl__labels_load(const char *dir, int32_t num, msgl_labels *out, msgl_err *err);
void msgl__labels_free(msgl_labels *l);

#endif
