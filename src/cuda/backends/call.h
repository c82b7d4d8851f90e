// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA backends share: a layer's attention as the launchers take it, and plans on their
// way to the GPU. A plan is written by the scheduler's thread into the pinned
// set of the step's slot (msgl_batch.step_slot); a copy takes it to device memory at a fixed
// address, which captured graphs read too. One set on the device suffices, as steps run one after
// the other.
#ifndef MSGL_CUDA_BACKENDS_CALL_H
#define MSGL_CUDA_BACKENDS_CALL_H

#include "attention/attention.h"
#include "cuda/attn/call.h"
#include "cuda/host.h"
#include "kernel/device.h"

// What holds for every CUDA backend: queries and output have the pool's dtype, or are bf16 beside
// E4M3.
int msgl__cuda_supports(const msgl_attn_needs *needs, msgl_err *err);
static inline msgl_dtype msgl__cuda_attn_act(const msgl_attn_config *cfg)
{
    return cfg->pool->spec.dtype == MSGL_E4M3 ? MSGL_BF16 : cfg->pool->spec.dtype;
}

typedef struct msgl_cuda_plans {
    msgl_device *dev;
    size_t bytes;           // of a set
    int32_t num_sets;       //
    char *staging, *device; // [num_sets] sets, one per step slot, pinned; one set
} msgl_cuda_plans;

// Sets of up to `bytes` (64-byte aligned). destroy takes half-made ones too.
int msgl__cuda_plans_create(const msgl_attn_config *cfg, const char *name, size_t bytes,
                            msgl_cuda_plans *out, msgl_err *err);
void msgl__cuda_plans_destroy(msgl_cuda_plans *p);
static inline char *msgl__cuda_plan(const msgl_cuda_plans *p, int32_t step_slot)
{
    return p->staging + (size_t)step_slot * p->bytes;
}
// Queues the copy of bytes [from, from + bytes) of the step slot's set.
void msgl__cuda_plans_copy(const msgl_cuda_plans *p, int32_t step_slot, size_t from, size_t bytes);

// One layer's attention. plan and workspace are the caller's to set.
void msgl__cuda_attn_call(const msgl_attn_config *cfg, const msgl_attn_layer *layer,
                          const msgl_seqs *seqs, const msgl_attn_input *in, void *out,
                          msgl_cuda_attn_call *c);

// Whether there is more to trees than one token of each request.
static inline bool msgl__cuda_forks(const msgl_seqs *seqs)
{
    return seqs->tree != NULL && seqs->max_seqlen_q > 1;
}
// Attends where msgl__cuda_forks, by the kernel that all backends of K and V share
// (attn/prefill.h); name: the backend's, for errors.
void msgl__cuda_attend_tree(const msgl_attn_config *cfg, const char *name, msgl_exec *x,
                            const msgl_attn_layer *layer, const msgl_seqs *seqs,
                            const msgl_attn_input *in, void *out, void *workspace);

// False, with x->status set, if activations are not what every kernel wants beside this pool.
bool msgl__cuda_attn_dtype(msgl_exec *x, const msgl_attn_config *cfg);
// A launcher's cudaError_t: kept as the device's fault, status becomes MSGL_EDEVICE.
void msgl__cuda_attn_result(msgl_exec *x, const char *name, int code);

#endif
