// SPDX-License-Identifier: Apache-2.0
//
// Rows dealt out to experts, for tests of grouped products.
#ifndef MSGL_TESTS_CUDA_ROUTING_CASE_CUH
#define MSGL_TESTS_CUDA_ROUTING_CASE_CUH

#include <algorithm>
#include <vector>

#include "tests/cuda/ops_check.cuh"

// Some experts have no rows, one has many.
struct routing {
    std::vector<int32_t> expert_of;           // of each row, ascending
    std::vector<int32_t> offsets;             // [experts + 1]
    std::vector<int32_t> from, to;            // orders of the rows
    int32_t *dev_offsets, *dev_from, *dev_to; // the same on the device
};

// all: one expert has all rows.
static inline routing routing_new(int experts, int rows, bool all, uint64_t *seed)
{
    routing r = {};
    r.expert_of.resize((size_t)rows);
    r.offsets.resize((size_t)experts + 1);
    for (int32_t &v : r.expert_of) {
        v = (int32_t)(rng_next(seed) % (uint64_t)experts);
        if (all || v % 3 == 1 || rng_next(seed) % 4 == 0) v = experts / 2;
    }
    std::sort(r.expert_of.begin(), r.expert_of.end());
    for (int32_t v : r.expert_of) r.offsets[(size_t)v + 1]++;
    for (int i = 0; i < experts; i++) r.offsets[(size_t)i + 1] += r.offsets[(size_t)i];
    for (int i = 0; i < rows; i++) r.from.push_back(i);
    r.to = r.from;
    for (int i = rows - 1; i > 0; i--) {
        std::swap(r.from[(size_t)i], r.from[rng_next(seed) % (uint64_t)(i + 1)]);
        std::swap(r.to[(size_t)i], r.to[rng_next(seed) % (uint64_t)(i + 1)]);
    }
    r.dev_offsets = ints_upload(r.offsets.data(), r.offsets.size());
    r.dev_from = ints_upload(r.from.data(), r.from.size());
    r.dev_to = ints_upload(r.to.data(), r.to.size());
    return r;
}

static inline void routing_free(routing *r)
{
    for (int32_t *p : {r->dev_offsets, r->dev_from, r->dev_to}) CUDA_OK(cudaFree(p));
}

// A call over the routing, without bias, whose gate is silu's. top_k: 0, or rows come from as many
// fewer of in.
static inline msgl_grouped_call routing_call(const routing *r, int top_k, bool to,
                                             const msgl_weight *experts, const array *in,
                                             const array *out, bool gated)
{
    msgl_grouped_call call = {};
    call.experts = experts;
    call.in = in->dev;
    call.ld_in = (size_t)experts->k;
    call.gated = gated;
    call.activation = MSGL_SILU;
    call.out = out->dev;
    call.ld_out = (size_t)(gated ? experts->n / 2 : experts->n);
    call.inputs_ready = true; // which holds for the inputs, not for weights that are expanded
    call.num_experts = (int32_t)r->offsets.size() - 1;
    call.offsets = r->dev_offsets;
    call.rows = (int32_t)r->expert_of.size();
    call.from = top_k > 0 ? r->dev_from : NULL;
    call.from_per = top_k > 0 ? top_k : 1;
    call.to = to ? r->dev_to : NULL;
    return call;
}

#endif
