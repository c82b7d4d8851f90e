// SPDX-License-Identifier: Apache-2.0
//
// Latent attention on Hopper by the kernel of cuda/attn/mla.h, which fa, flashmla,
// trtllm_mla and cutlass_mla share: they differ in the pages that they take. Answers are one unit
// of work each, chunks are cut into runs of query rows. Who shares out the keys, a kernel as a pass
// begins, reads lengths in device memory: a captured graph follows them.
#ifndef MSGL_CUDA_BACKENDS_LATENT_H
#define MSGL_CUDA_BACKENDS_LATENT_H

#include "attention/attention.h"

typedef struct msgl_mla_cuda {
    msgl_attn_config cfg;
    int32_t page_size; // that the kernel works with
    struct {
        void *plan; // device
        size_t bytes;
    } phases[2]; // msgl_phase
    void *workspace;
    size_t workspace_bytes;
} msgl_mla_cuda;

// Whether the kernel takes these needs, which are of a latent cache.
int msgl__mla_cuda_supports(const msgl_attn_needs *n, msgl_err *err);

// desc: the backend's. close takes what open has left half-made, and zeros.
int msgl__mla_cuda_open(const msgl_attn_desc *desc, const msgl_attn_config *cfg, msgl_mla_cuda *m,
                        msgl_err *err);
void msgl__mla_cuda_close(msgl_mla_cuda *m);
// As the descriptor's begin and forward; name: its, for errors; scale: of q.k.
void msgl__mla_cuda_begin(const msgl_mla_cuda *m, const char *name, msgl_exec *x,
                          const msgl_seqs *seqs);
void msgl__mla_cuda_attend(const msgl_mla_cuda *m, const char *name, msgl_exec *x,
                           const msgl_attn_layer *layer, float scale, const msgl_seqs *seqs,
                           const msgl_attn_input *in, void *out);

// The backends that are nothing but that, by the names of those whose pages they take.
extern const msgl_attn_desc msgl__attn_flashmla_cuda, msgl__attn_trtllm_mla_cuda,
    msgl__attn_cutlass_mla_cuda;

#endif
