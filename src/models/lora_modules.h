// SPDX-License-Identifier: Apache-2.0
//
// The modules of an adapter that is being read (lora_read.c), or made up (lora_dummy.c), and how
// they come into the device's memory (lora.c, lora_load.c).
#ifndef MSGL_MODELS_LORA_MODULES_H
#define MSGL_MODELS_LORA_MODULES_H

#include "models/lora_latent.h"
#include "models/lora_saved.h"
#include "models/lora_sites.h"

// A module of the adapter: where it goes, and its two tensors.
typedef struct msgl_lora_module {
    msgl_lora_factors f;
    const msgl_lora_site *sites; // [num_sites] that are one module
    size_t num_sites;
    int32_t room;       // of A's rows and B's columns: rank, and the zeros behind
    int32_t first, end; // rows of the linear that B is for
} msgl_lora_module;

// An adapter while it is read.
typedef struct msgl_lora_reading {
    const msgl_lora_sites *s;
    msgl_checkpoint *c;
    msgl_lora_config *config;
    bool gguf;  // the adapter is a GGUF file, ...
    bool pairs; // ... whose rows of q and k are neighbours where they rotate together
    msgl_lora_module *modules; // [num]
    size_t num;
    msgl_lora_expert_reader experts;
    msgl_lora_latent_reader latents;
    msgl_lora_saved_reader saved;
    msgl_err *err;
} msgl_lora_reading;

// Rows of the linear from a module's first site to its last one; none of another rank's.
void msgl__lora_module_place(msgl_lora_module *m);
// lora_read.c: all tensors of r->c, whose modules then have what loading needs. One line in r->err:
// MSGL_EFORMAT, MSGL_EUNSUPPORTED, MSGL_ELIMIT, MSGL_ENOMEM.
int msgl__lora_read_modules(msgl_lora_reading *r);

// Modules from `first` on that are sorted by linear layer (msgl__lora_sort_modules): [first, end)
// are of one.
size_t msgl__lora_group_end(const msgl_lora_reading *r, size_t first);
void msgl__lora_sort_modules(msgl_lora_reading *r);
// Plans what l->linears has of the modules from `first` on. MSGL_ELIMIT, MSGL_ENOMEM.
int msgl__lora_plan_linears(const msgl_lora_reading *r, msgl_weight_plan *p, size_t first,
                            msgl_loaded_lora *l);
// The device's memory for what is planned. MSGL_ENOMEM.
int msgl__lora_take_region(msgl_weight_plan *p, msgl_loaded_lora *l, msgl_exec *x, msgl_err *err);
// lora_load.c: fills what is planned and placed. Returns x->status.
int msgl__lora_load_modules(const msgl_lora_reading *r, msgl_loaded_lora *l, msgl_exec *x);

// All rows of a weight, dense, in float32.
static inline void msgl__lora_pack(msgl_weight *w, const float *rows, msgl_exec *x)
{
    w->format->pack(x, w, 0, w->n, rows, MSGL_F32, (size_t)w->k);
}

#endif
