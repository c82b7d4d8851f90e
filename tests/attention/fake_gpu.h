// SPDX-License-Identifier: Apache-2.0
//
// A made-up GPU of any compute capability: its memory is the host's, copies are done at once and
// checked against what was allocated, kernels do nothing but note their calls. With the plug-ins of
// stubs/, backends for GPUs are tested as far as the host's part goes.
#ifndef MSGL_TESTS_ATTENTION_FAKE_GPU_H
#define MSGL_TESTS_ATTENTION_FAKE_GPU_H

#include "attention/attention.h"
#include "attention/stubs/stub.h"
#include "cuda/attn/decode.h"
#include "cuda/attn/expanded.h"
#include "cuda/attn/mla.h"
#include "cuda/attn/prefill.h"
#include "cuda/attn/prefill_sm80.h"
#include "cuda/attn/reference.h"
#include "cuda/attn/sink.h"
#include "cuda/attn/wide_sm80.h"
#include "cuda/backends/registry.h"
#include "kernel/device.h"

enum { FAKE_MAX_CALLS = 64 };

typedef struct fake_gpu {
    msgl_device base;
    int32_t bad_copies;                        // from or to what was not allocated
    msgl_cuda_attn_call calls[FAKE_MAX_CALLS]; // of fa's kernels and the reference one
    int32_t num_calls;
    msgl_mla_call mla_plan, mla; // last calls
    int32_t num_mla_plans;
    msgl_gather_call gather; // last calls of expanded attention
    msgl_expanded_call expanded;
    msgl_sink_call sink;
    int32_t num_sinks;
    int32_t num_trees;        // calls of `tree`,
    const uint64_t *tree;     // of the last one, or of that of wide heads
    int32_t num_wide;         // calls of the kernel of wide heads,
    msgl_cuda_attn_call wide; // the last one
    bool wide_answers;
} fake_gpu;

extern fake_gpu FAKE_GPU; // the only one

// Empty, of that capability.
void fake_gpu_reset(int32_t capability);
// Whether [p, p + bytes) is in one block of device memory.
bool fake_gpu_contains(const void *p, size_t bytes);
size_t fake_gpu_bytes(void); // of device memory that is allocated now
// Fails the test if a block was not freed or a copy was out of bounds.
void fake_gpu_check(void);

// Points MINISGL_PLUGIN_DIR at a folder that has these stub plug-ins and nothing else.
void fake_plugins(bool fi, bool trtllm);
stub_fi *fake_fi(void); // with fake_plugins(true, ...)
stub_trtllm *fake_trtllm(void);

// A model with `group` query heads for each of 2 KV heads, in pages of 16, on a GPU of that
// capability.
msgl_attn_needs fake_needs(int32_t capability, int32_t group, int32_t head_dim, msgl_dtype dtype);
// A model with a latent cache of v_dim + rotary elements, in pages of 16.
msgl_attn_needs fake_latent_needs(int32_t capability, int32_t heads, int32_t v_dim, int32_t rotary,
                                  msgl_dtype dtype);

// A model on the fake GPU, for backends; the pool has no memory.
typedef struct fake_world {
    msgl_attn_needs needs;
    msgl_kv_pool pool;
    msgl_page_table table;
    msgl_attn_config cfg;
    msgl_exec exec;
} fake_world;

enum { FAKE_RUNNING = 4, FAKE_SEQ_LEN = 2048, FAKE_STEP_TOKENS = 2048, FAKE_STEP_SLOTS = 2 };

// needs: with the page size that was chosen.
void fake_world_open(fake_world *w, const msgl_attn_needs *needs);
void fake_world_close(fake_world *w);

#endif
