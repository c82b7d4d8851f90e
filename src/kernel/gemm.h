// SPDX-License-Identifier: Apache-2.0
//
// Kernel family gemm: y = x W^T + b with W packed once at load, what surrounds such a product in a
// transformer (a norm before it; a gate or an addition after it), and row lookup in a packed W
// (embeddings). Activations are exec->act. On the CPU, with bf16 weights they are rounded to bf16
// (nearest even) before the product at every ISA level; sums are f32. f16 and f32 weights multiply
// f32 activations.
//
// A row of y depends only on that row of x, on W and on exec->prompts_only: on the CPU not on m and
// not on the number of threads. (Sums run over k in an order fixed by the ISA level.) This is what
// makes a request's tokens independent of what else is in the batch. On a GPU it holds for a
// deterministic device.
#ifndef MSGL_KERNEL_GEMM_H
#define MSGL_KERNEL_GEMM_H

#include <stdbool.h>
#include <stddef.h>

#include "kernel/calls.h"
#include "kernel/exec.h"

// The same product of layers that follow each other, for tune: a step reads other weights between
// two uses of one, which a measurement has to do too.
typedef struct msgl_tune_product {
    // Weights and flags of calls that differ in their weights only; no m, activations and
    // norm_stats.
    const msgl_linear_call *calls;
    int32_t num_calls;
    bool summed; // they are made by linear_sum
    // NULL, or: projections to q, K and V, which linear_rope may be called with; heads and weights.
    const msgl_rope_call *rope;
    // NULL, or: the product that the norm behind is for. tune has been given it before.
    const struct msgl_tune_product *behind;
} msgl_tune_product;

typedef struct msgl_gemm_kernels {
    const char *name; // ISA level or device of this table, for reports
    const msgl_wformat
        *formats; // [MSGL_WFORMATS] how weights can be stored for the functions below
    // The format that keeps blocks, which have to stay where they are, as they are; false where k
    // columns of them cannot: they are no whole blocks, or integers that have no kernel. exact:
    // activations are not rounded to integers. NULL: a device that keeps none.
    bool (*keep)(const struct msgl_blocks *b, int k, bool exact, msgl_wformat *out);
    bool keeps_order; // formats of keep may then be given a msgl_wformat.order
    // For MSGL_W_CODES values and activations are rounded to bf16, not activations to integers.
    bool codes_by_bf16;
    // A step's beginning (msgl_embed_call) as one kernel instead of the device's take_tokens,
    // the format's gather and the rotation's table. In captured work it comes first: it also moves
    // the inputs of a replay to their places (kernel/device.h). false, and nothing done, where it
    // cannot do that. NULL: never.
    bool (*embed)(msgl_exec *x, const msgl_embed_call *c);
    // What w, of w->format, has of ids [rows], as its gather leaves it; rows of other ids stay what
    // they are. out [rows, w->k]. For weights as values (formats of dtypes).
    void (*gather_own)(msgl_exec *x, const msgl_weight *w, const int32_t *ids, int rows, void *out);
    // See msgl_linear_call and msgl_grouped_call.
    void (*linear)(msgl_exec *x, const msgl_linear_call *c);
    void (*grouped)(msgl_exec *x, const msgl_grouped_call *c);
    // See msgl_heads_call. On a GPU the weights are evenly spaced and of exec->act.
    void (*heads)(msgl_exec *x, const msgl_heads_call *c);
    // See msgl_lora_call: two products for each run. NULL: by tiles, or not on this device.
    void (*lora)(msgl_exec *x, const msgl_lora_call *c);
    // See msgl_lora_tiles_call: two kernels, whatever the number of adapters. NULL: by runs.
    void (*lora_tiles)(msgl_exec *x, const msgl_lora_tiles_call *c);
    size_t (*lora_scratch)(const msgl_lora_size *s, msgl_dtype act); // of that one of the two
    // See msgl_lora_members_call: one kernel. Where there is lora_tiles.
    void (*lora_members)(msgl_exec *x, const msgl_lora_members_call *c);
    // The gate of those places that the call adds to, of in [places, 2 k] to out [places, k]; the
    // other places' rows of out stay. f as in msgl_act_kernels.gate.
    void (*lora_gate)(msgl_exec *x, const msgl_lora_members_call *c, msgl_activation f);
    // A projection to q, K and V with the rope kernel behind it (kernel/ops.h), in the fastest way;
    // false, and nothing done, where that is linear and the rope kernel. rope->qkv is the call's
    // output, whose columns of K and V it may leave as they were. NULL: never. Scratch as for
    // linear.
    bool (*linear_rope)(msgl_exec *x, const msgl_linear_call *c, const msgl_rope_call *rope);
    // A call with `sum`; false, and nothing done, where the fastest kernel cannot add the ranks'
    // parts: always the same on all ranks. NULL: never. Like a communicator's call it is made, and
    // done, whatever exec->status says.
    bool (*linear_sum)(msgl_exec *x, const msgl_linear_call *c);
    // Largest scratch that these take from exec->scratch for a call of this shape (pointers to
    // activations are not looked at), with activations of this dtype (exec->act).
    size_t (*linear_scratch)(const msgl_linear_call *c, msgl_dtype act);
    size_t (*grouped_scratch)(const msgl_grouped_call *c, msgl_dtype act);
    size_t (*heads_scratch)(const msgl_heads_call *c, msgl_dtype act);
    // Rows that feed-forward blocks work on at a time: bounds their temporaries, while the weights,
    // read once per block, still cost little beside the products.
    int32_t block_rows;
    bool indexed; // grouped can take and leave rows by index
    // Most rows for which products use a msgl_norm_stats; 0: never.
    int32_t norm_stats_rows;
    // Measures which kernels and algorithms are fastest for calls with ms[0..num) rows, those apart
    // that are known. For start-up, outside steps; scratch as for the calls, activations in
    // `memory`; counts of rows that do not fit there are left out. NULL: there is nothing to
    // choose.
    void (*tune)(msgl_exec *x, msgl_arena *memory, const msgl_tune_product *p, const int32_t *ms,
                 int32_t num);
} msgl_gemm_kernels;

#endif
