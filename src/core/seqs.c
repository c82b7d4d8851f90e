// SPDX-License-Identifier: Apache-2.0
#include "core/seqs.h"

#include "core/round.h"

// Integers from one array of a block to the next.
static size_t stride(int32_t max_size)
{
    return msgl__round_up((size_t)max_size + 1, 16);
}

size_t msgl__seqs_bytes(int32_t max_size)
{
    return 3 * stride(max_size) * sizeof(int32_t);
}

void msgl__seqs_fill(const msgl_batch *b, int32_t first, int32_t end, int32_t padded_size,
                     int32_t dummy_row, int32_t max_size, void *host, const void *device,
                     msgl_seqs *out)
{
    const size_t n = stride(max_size);
    int32_t *cu_seqlens_q = host, *seqlens_k = cu_seqlens_q + n, *table_rows = seqlens_k + n;
    const int32_t *dev = device;
    const int32_t real = end - first, size = padded_size > real ? padded_size : real;
    *out = (msgl_seqs){.phase = end <= b->num_decode ? MSGL_DECODE : MSGL_PREFILL,
                       .size = size,
                       .max_seqlen_q = 1,
                       .max_seqlen_k = 1,
                       .cu_seqlens_q = cu_seqlens_q,
                       .seqlens_k = seqlens_k,
                       .table_rows = table_rows,
                       .dev_cu_seqlens_q = dev,
                       .dev_seqlens_k = dev + n,
                       .dev_table_rows = dev + 2 * n,
                       .step_slot = b->step_slot};
    for (int32_t i = 0; i < first; i++) out->first_token += msgl__extend_len(&b->reqs[i]);
    cu_seqlens_q[0] = 0;
    for (int32_t i = 0; i < size; i++) {
        const msgl_batch_req *r = i < real ? &b->reqs[first + i] : NULL;
        // Behind the dummies there may be requests of nothing.
        const int32_t dummy = cu_seqlens_q[i] < padded_size;
        const int32_t q_len = r != NULL ? msgl__extend_len(r) : dummy;
        cu_seqlens_q[i + 1] = cu_seqlens_q[i] + q_len;
        seqlens_k[i] = r != NULL ? r->device_len : dummy;
        table_rows[i] = r != NULL ? r->table_idx : dummy_row;
        if (q_len > out->max_seqlen_q) out->max_seqlen_q = q_len;
        if (seqlens_k[i] > out->max_seqlen_k) out->max_seqlen_k = seqlens_k[i];
    }
    out->num_tokens = cu_seqlens_q[size];
}
