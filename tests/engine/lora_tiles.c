// SPDX-License-Identifier: Apache-2.0
//
// A CPU that computes adapters by tiles, as GPUs do: the engine's tables, tiles and padded ranks on
// every machine. Linked with --wrap=msgl__kernels_init_cpu. Weights and activations are f32.
#include "kernel/kernel.h"

enum { MOST_RANKS = 4096, SCRATCH = 8 << 20 };

static const msgl_gemm_kernels *kernels;

static void multiply(msgl_exec *x, const void *w, int32_t n, int32_t k, msgl_linear_call c)
{
    const msgl_weight weight = {
        .format = &kernels->formats[MSGL_F32], .n = n, .k = k, .data = (void *)w};
    c.w = &weight;
    c.m = 1;
    c.ld_in = (size_t)k;
    c.ld_out = (size_t)n;
    kernels->linear(x, &c);
}

// What the adapter e adds to row `row` of the call.
static void add_row(msgl_exec *x, const msgl_lora_tiles_call *c, const msgl_lora_entry *e,
                    int32_t row)
{
    float h[MOST_RANKS];
    if (e->ranks > c->max_ranks || e->num_parts > c->parts || c->max_ranks > MOST_RANKS ||
        e->ranks % MSGL_LORA_RANK_STEP != 0) {
        x->status = MSGL_EINTERNAL;
        return;
    }
    multiply(x, e->a, e->ranks, c->k,
             (msgl_linear_call){.in = (const float *)c->in + (size_t)row * c->ld_in,
                                .norm = c->norm,
                                .norm_eps = c->norm_eps,
                                .out = h});
    for (int32_t i = 0; i < e->num_parts; i++) {
        float *out = (float *)c->out + (size_t)row * c->ld_out + e->parts[i].col;
        multiply(x, e->parts[i].b, e->parts[i].n, e->parts[i].rank,
                 (msgl_linear_call){.in = h + e->parts[i].at, .accumulate = true, .out = out});
    }
}

static void lora_tiles(msgl_exec *x, const msgl_lora_tiles_call *c)
{
    for (int32_t i = 0; i < c->num_tiles; i++) {
        const msgl_lora_tile *t = &c->tiles[i];
        const msgl_lora_entry *e = &c->entries[t->slot * c->stride];
        if (t->rows > c->tile_rows || t->first + t->rows > c->rows) x->status = MSGL_EINTERNAL;
        for (int32_t j = 0; j < t->rows && e->a != NULL && x->status == 0; j++) {
            const int32_t row = c->order[t->first + j] - c->first;
            if (row >= 0 && row < c->m) add_row(x, c, e, row);
        }
    }
}

static size_t lora_scratch(const msgl_lora_size *s, msgl_dtype act)
{
    (void)s, (void)act;
    return SCRATCH;
}

void __real_msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level);
void __wrap_msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level);
void __wrap_msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level)
{
    static msgl_gemm_kernels own;
    __real_msgl__kernels_init_cpu(k, level);
    own = k->gemm;
    kernels = &own;
    k->gemm.lora = NULL;
    k->gemm.lora_tiles = lora_tiles;
    k->gemm.lora_scratch = lora_scratch;
}
