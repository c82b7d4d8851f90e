// SPDX-License-Identifier: Apache-2.0
//
// Prompts over a latent cache with K and V of every head expanded (docs/decisions/016): instead of
// the backend of a latent group, whose queries are absorbed. The keys of a step's requests, those
// before the new tokens too, are taken in passes of a bounded number: gathered from the pool,
// multiplied by W_UK and W_UV (the layer's product), attended. A pass has whole requests, or
// a range of keys of one that is too long, whose results are then merged into those over earlier
// keys by their log-sum-exps: for new tokens and cached ones there is one mechanism.
#ifndef MSGL_ATTENTION_EXPAND_H
#define MSGL_ATTENTION_EXPAND_H

#include "attention/attention.h"
#include "kernel/expanded.h"

typedef struct msgl_expand msgl_expand;

// What a pass's attention reads and writes beside the sequences; shapes as in msgl_expanded_call,
// rows from the sequences' first token on.
typedef struct msgl_expand_io {
    const void *q;
    size_t ld_q;
    const void *kv, *rotary_keys;
    void *out, *partial_out;
    float *lse, *partial_lse;
} msgl_expand_io;

// A device's part of it, a backend's descriptor's `expand`: where the kernels read the requests of
// a step's passes, and the kernels.
typedef struct msgl_expand_device msgl_expand_device; // of one group of layers, the device's own

struct msgl_expand_kernels {
    // Prompts are expanded where that takes fewer operations, unless answers have to be
    // deterministic; else only where they are told to be.
    bool by_default;
    size_t element; // bytes of an element of K and V
    // Whether there are kernels for these needs.
    bool (*supports)(const msgl_attn_needs *n, const msgl_attn_expanded *expanded);
    // Takes memory for steps of up to max_reqs requests over all passes.
    int (*create)(const msgl_attn_config *cfg, int32_t max_reqs, msgl_expand_device **out,
                  msgl_err *err);
    void (*destroy)(msgl_expand_device *d); // NULL allowed
    // [max_reqs] of a step slot in host memory, for prepare to fill.
    msgl_expand_req *(*reqs)(msgl_expand_device *d, int32_t step_slot);
    // NULL, or what else a kernel needs of pass `pass` of a step, whose requests are reqs
    // [num_reqs]; on the scheduler's thread, for passes 0, 1 and so on.
    void (*plan)(msgl_expand_device *d, int32_t step_slot, int32_t pass,
                 const msgl_expand_req *reqs, int32_t num_reqs);
    // NULL, or copies what the step's passes have to the device, on its queue.
    void (*copy_in)(msgl_expand_device *d, int32_t step_slot, int32_t num_passes);
    // A pass, the first of whose requests is req0 of the step; the calls lack what is the
    // device's: reqs, table and plan.
    void (*gather)(msgl_expand_device *d, msgl_exec *x, int32_t step_slot, int32_t req0,
                   msgl_gather_call *c);
    void (*attend)(msgl_expand_device *d, msgl_exec *x, int32_t step_slot, int32_t pass,
                   int32_t req0, msgl_expanded_call *c);
};

extern const msgl_expand_kernels msgl__expand_cpu; // expand_cpu.c

enum { MSGL_EXPAND_MAX_PASSES = 64 }; // of a step; one that needs more is not expanded

// Most keys of a pass for steps of up to max_tokens, with `heads` heads of K and V of elements of
// so many bytes; 0: such steps are not expanded.
int32_t msgl__expand_keys(const msgl_attn_expanded *expanded, int32_t heads, size_t elem,
                          int32_t max_tokens);

// *out is NULL where msgl__expand_keys is 0.
int msgl__expand_create(const msgl_expand_kernels *kernels, const msgl_attn_config *cfg,
                        msgl_expand **out, msgl_err *err);
void msgl__expand_destroy(msgl_expand *e); // NULL allowed
// Cuts the sequences' keys into passes, on the scheduler's thread; how many. 0: the backend is to
// attend, as these are no chunks, or have more keys before them than is worth expanding.
int32_t msgl__expand_prepare(msgl_expand *e, const msgl_seqs *seqs);
// The same for sequences that are prepared; e NULL: 0.
int32_t msgl__expand_passes(const msgl_expand *e, const msgl_seqs *seqs);
void msgl__expand_copy_in(msgl_expand *e, const msgl_seqs *seqs);
int32_t msgl__expand_pass_keys(const msgl_expand *e, const msgl_seqs *seqs, int32_t pass);
// Its requests, [*num], in host memory.
const msgl_expand_req *msgl__expand_pass_reqs(const msgl_expand *e, const msgl_seqs *seqs,
                                              int32_t pass, int32_t *num);
// latent [keys, rank], rotary_keys [keys, rotary] of exec->act.
void msgl__expand_gather(const msgl_expand *e, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, int32_t pass, void *latent, void *rotary_keys);
// Passes in order.
void msgl__expand_attend(const msgl_expand *e, msgl_exec *x, const msgl_attn_layer *layer,
                         const msgl_seqs *seqs, int32_t pass, const msgl_expand_io *io);

#endif
