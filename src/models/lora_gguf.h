// SPDX-License-Identifier: Apache-2.0
//
// Adapters in GGUF files, as llama.cpp's convert_lora_to_gguf.py writes them: general.type is
// "adapter", adapter.type "lora", and tensors are "blk.0.attn_q.weight.lora_a" [r, in] and
// ".lora_b" [out, r], of token_embd.weight.lora_a [vocab, r]. Rows of B are where the converter
// puts rows of the weight. Their scale is adapter.lora.alpha / r; what else PEFT's config said is
// lost.
#ifndef MSGL_MODELS_LORA_GGUF_H
#define MSGL_MODELS_LORA_GGUF_H

#include "models/checkpoint.h"
#include "models/lora_config.h"

bool msgl__lora_is_gguf(const char *path); // by its name

// In *c, which is empty, the tensors, called as the architectures declare their weights and
// ".weight.lora_a" or ".weight.lora_b" behind that; *pairs: rows of q and k that rotate together
// are neighbours. MSGL_ENOENT, MSGL_EIO; MSGL_EFORMAT, MSGL_EUNSUPPORTED, MSGL_ELIMIT, MSGL_ENOMEM.
int msgl__lora_gguf_open(const char *path, msgl_checkpoint *c, msgl_lora_config **config,
                         bool *pairs, msgl_err *err);

#endif
