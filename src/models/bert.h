// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_MODELS_BERT_H
#define MSGL_MODELS_BERT_H

#include "models/config.h"
#include "models/json_read.h"

// What BERT and RoBERTa have alike.
void msgl__bert_configure(msgl_json_reader *r, msgl_model_config *c);

#endif
