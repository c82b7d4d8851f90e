// SPDX-License-Identifier: Apache-2.0
//
// What adapters can change of a model, as the files that read adapters see it.
#ifndef MSGL_MODELS_LORA_SITES_H
#define MSGL_MODELS_LORA_SITES_H

#include <string.h>

#include "models/lora.h"
#include "models/lora_experts.h"
#include "models/lora_factors.h"
#include "models/source.h"

// A tensor of the model, and the layer that its rows and columns are in.
typedef struct msgl_lora_site {
    char module[MSGL_TENSOR_NAME]; // without what stands in front of "layers." and the like
    msgl_wanted wanted;
    const msgl_linear *linear; // NULL: of the embedding, or of what adapters cannot change
    bool embeds;               // the embedding's
    bool adds;                 // the linear's result goes straight to the stream
} msgl_lora_site;

struct msgl_lora_sites {
    const msgl_model *model;
    msgl_lora_site *at; // [num], by module
    size_t num;
    const msgl_linear *head;
    char head_name[MSGL_TENSOR_NAME]; // its module
    const msgl_gemm_kernels *kernels;
    msgl_weight_formats formats;
    int32_t vocab, hidden, head_dim, block_rows, max_rank;
    msgl_lora_size size; // largest of any layer
    msgl_lora_blocks blocks;
    size_t gated; // columns of the widest product with a gate
    // On a device that computes by tiles: linears [num_linears], ascending, and the modules of
    // each.
    bool by_tiles;
    const msgl_linear **linears;
    int32_t *parts, num_linears;
    const void **many; // [num_many] msgl_lora_table.many
    int32_t num_many;
    msgl_dtype act;
    bool tied; // the head's weight is the embedding's
    bool gguf; // the model's file may have rows and columns in an order of its own
};

// The sites of a module by its dotted name, *num of them, 0: there are none.
const msgl_lora_site *msgl__lora_find_sites(const msgl_lora_sites *s, const char *name,
                                            size_t *num);

// Sites [first, end) are those of one module.
size_t msgl__lora_module_end(const msgl_lora_sites *s, size_t first);
// What a module's rank takes of a product's rows or columns: itself and, by tiles, zeros behind.
int32_t msgl__lora_room(const msgl_lora_sites *s, int32_t rank);

// Element i of a tensor whose elements stand one by one, or in blocks.
static inline float msgl__lora_element(const msgl_tensor *t, size_t i)
{
    uint32_t aligned = 0;
    if (t->packing.form != NULL) {
        const msgl_packed p = msgl__packed_of(t);
        float value;
        t->packing.form->expand(&p, i / p.cols, i % p.cols, 1, &value);
        return value;
    }
    const size_t size = msgl__dtype_size(t->dtype);
    memcpy(&aligned, t->data + i * size, size);
    return msgl__load_f32(&aligned, t->dtype, 0);
}

#endif
