// SPDX-License-Identifier: Apache-2.0
//
// adapter_config.json of a PEFT folder: what its adapter's scale is, and what in it is no LoRA that
// is computed here.
#ifndef MSGL_MODELS_LORA_CONFIG_H
#define MSGL_MODELS_LORA_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

typedef struct msgl_lora_config msgl_lora_config;

// Reads DIR/adapter_config.json. MSGL_EFORMAT, and MSGL_EUNSUPPORTED for what changes the result
// and is not computed (DoRA, biases, saved modules, ...), and for fields that nobody knows: one
// line that names the field.
int msgl__lora_config_load(const char *dir, msgl_lora_config **out, msgl_err *err);
// Of an adapter that has one alpha and nothing else to say. MSGL_ENOMEM.
int msgl__lora_config_of_alpha(double alpha, msgl_lora_config **out, msgl_err *err);
void msgl__lora_config_free(msgl_lora_config *c);

// Which rows of a module, by its dotted name, the adapter has been trained as tokens of their own:
// [*num], in the order of its tensor; NULL: none. Of a list without a name they are the
// embedding's.
const int32_t *msgl__lora_config_tokens(const msgl_lora_config *c, const char *module, bool embeds,
                                        int32_t *num);

// What B A is multiplied by in a module of the model, by its dotted name: alpha / r, or with
// use_rslora alpha / sqrt(r) (Kalajdzievski 2023, eq. 9). alpha is that of the first pattern in the
// file's order that matches the name's end at a dot, as PEFT matches it, else lora_alpha.
// MSGL_ELIMIT: a pattern takes too long.
int msgl__lora_config_scale(const msgl_lora_config *c, const char *module, int r, float *scale,
                            msgl_err *err);

#endif
