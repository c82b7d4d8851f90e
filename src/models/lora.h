// SPDX-License-Identifier: Apache-2.0
//
// Adapters of a model from PEFT folders (adapter_config.json, adapter_model.safetensors) and GGUF
// files. A module of the adapter is found by the tensor that the model's own weight came from, and
// goes the way of that: its rows are B's, its columns A's, in the same order, and of several ranks
// each keeps of B and A what it keeps of the weight (docs/adapters.md).
#ifndef MSGL_MODELS_LORA_H
#define MSGL_MODELS_LORA_H

#include "layers/lora.h"
#include "models/digest.h"
#include "models/model.h"

enum { MSGL_MAX_LORA_RANK = 256 };

// What adapters can change of a model.
typedef struct msgl_lora_sites msgl_lora_sites;

// Of a model that is open and not loaded yet, for adapters of ranks up to max_rank. MSGL_ENOMEM;
// MSGL_EUNSUPPORTED: the device has no products of adapters.
int msgl__lora_sites_create(const msgl_model *m, int32_t max_rank, msgl_lora_sites **out,
                            msgl_err *err);
void msgl__lora_sites_free(msgl_lora_sites *s);
// Largest bytes of scratch that adapters take in a step of so many tokens, and of the step's arena
// for blocks of so many rows.
size_t msgl__lora_scratch(const msgl_lora_sites *s, int32_t tokens);
size_t msgl__lora_arena(const msgl_lora_sites *s, int32_t tokens);

// Whether the device computes adapters by tiles; and what its table is to have beside the slots'
// entries, which are the caller's. Pointers are the sites'.
bool msgl__lora_by_tiles(const msgl_lora_sites *s);
msgl_lora_table msgl__lora_table(const msgl_lora_sites *s);

// One adapter in memory of x's device.
typedef struct msgl_loaded_lora {
    msgl_lora lora;
    msgl_model_digest digest; // of its files; config: of adapter_config.json
    size_t bytes;
    void *region;
    msgl_lora_linear *linears;
    msgl_lora_experts *experts;
    msgl_lora_saved *saved;
    msgl_lora_latent *latents;
} msgl_loaded_lora;

// Reads the folder, or the GGUF file. Errors are one line that names file and tensor or field:
// MSGL_ENOENT, MSGL_EIO; MSGL_EFORMAT, MSGL_EUNSUPPORTED, MSGL_ELIMIT for what cannot be used;
// MSGL_ENOMEM. x: of the model's device, with a pool that nobody else runs on.
int msgl__lora_load(const msgl_lora_sites *s, const char *path, msgl_exec *x,
                    msgl_loaded_lora **out, msgl_err *err);
// One with random values that depend on the seed, for benchmarks, of this rank: of q, k, v and o of
// all layers, or of all their linear layers. MSGL_ELIMIT, MSGL_EUNSUPPORTED, MSGL_ENOMEM.
int msgl__lora_dummy(const msgl_lora_sites *s, int32_t rank, bool attention, uint64_t seed,
                     msgl_exec *x, msgl_loaded_lora **out, msgl_err *err);
void msgl__lora_free(msgl_loaded_lora *l, msgl_device *d); // NULL is allowed

#endif
