// SPDX-License-Identifier: Apache-2.0
//
// Requests with page tables, for tests of kernels that find a token's keys by its position.
#ifndef MSGL_TESTS_CUDA_PAGED_SEQS_CUH
#define MSGL_TESTS_CUDA_PAGED_SEQS_CUH

#include <algorithm>
#include <vector>

#include "tests/cuda/ops_check.cuh"

static inline int below(uint64_t *seed, int n)
{
    return (int)(rng_next(seed) % (uint64_t)n);
}

// Requests whose new tokens are the last q_lens of k_lens keys, in pages in any order.
struct paged {
    std::vector<int32_t> q_lens, k_lens, cu, rows, pages; // cu, rows: of seqs; pages: the table
    std::vector<bool> owned;                              // slots that some request has
    int page, stride, most, tokens;
    int32_t *device[4];
    msgl_seqs seqs; // of the device

    int slot(int req, int key) const
    {
        return pages[rows[req] * stride + key / page] * page + key % page;
    }
};

static inline paged paged_new(const std::vector<int32_t> &q_lens,
                              const std::vector<int32_t> &k_lens, int page, uint64_t *seed)
{
    paged p = {q_lens, k_lens, {0}};
    const int batch = (int)q_lens.size();
    p.page = page;
    p.most = *std::max_element(k_lens.begin(), k_lens.end());
    p.stride = p.most / page + 2;
    int num = 0;
    for (int i = 0; i < batch; i++) {
        p.cu.push_back(p.cu[i] + q_lens[i]);
        p.rows.push_back(batch - i); // row 0 is nobody's
        num += (k_lens[i] + page - 1) / page;
    }
    p.tokens = p.cu[batch];
    std::vector<int32_t> order;
    for (int i = 0; i <= num; i++) order.push_back(i);
    for (int i = num; i > 0; i--) std::swap(order[i], order[below(seed, i + 1)]);
    p.pages.assign((size_t)(batch + 1) * p.stride, order[0]);
    p.owned.assign((size_t)(num + 1) * page, false);
    for (int i = 0, next = 1; i < batch; i++) {
        for (int at = 0; at * page < k_lens[i]; at++) {
            p.pages[p.rows[i] * p.stride + at] = order[next++];
        }
        for (int key = 0; key < k_lens[i]; key++) p.owned[p.slot(i, key)] = true;
    }
    const std::vector<int32_t> *const all[] = {&p.cu, &p.k_lens, &p.rows, &p.pages};
    for (int i = 0; i < 4; i++) p.device[i] = ints_upload(all[i]->data(), all[i]->size());
    p.seqs = {};
    p.seqs.size = batch, p.seqs.num_tokens = p.tokens, p.seqs.max_seqlen_k = p.most;
    p.seqs.max_seqlen_q = *std::max_element(q_lens.begin(), q_lens.end());
    p.seqs.dev_cu_seqlens_q = p.device[0], p.seqs.dev_seqlens_k = p.device[1];
    p.seqs.dev_table_rows = p.device[2];
    return p;
}

static inline void paged_free(paged *p)
{
    for (int32_t *d : p->device) cudaFree(d);
}

static inline std::vector<int32_t> ints_download(const int32_t *from, size_t n)
{
    std::vector<int32_t> v(n);
    CUDA_OK(cudaMemcpy(v.data(), from, n * 4, cudaMemcpyDeviceToHost));
    return v;
}

// The same sequences for the CPU's kernels; p outlives them.
static inline msgl_seqs paged_host(const paged &p)
{
    msgl_seqs s = p.seqs;
    s.cu_seqlens_q = p.cu.data(), s.seqlens_k = p.k_lens.data(), s.table_rows = p.rows.data();
    return s;
}

#endif
