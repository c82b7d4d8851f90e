// SPDX-License-Identifier: Apache-2.0
#include "cuda/backends/local.h"

#include "core/round.h"

// Integers from one list to the next.
static size_t stride(int32_t most)
{
    return msgl__round_up((size_t)most + 1, 16);
}

int32_t msgl__fa_local_most(int32_t chunk, int32_t max_running, int32_t max_tokens)
{
    // n >= 1 tokens lie in (n - 1) / chunk + 2 chunks at most.
    return chunk > 0 ? 2 * max_running + max_tokens / chunk : max_running;
}

size_t msgl__fa_local_bytes(int32_t most)
{
    return 3 * stride(most) * sizeof(int32_t);
}

void msgl__fa_local_place(char *lists, int32_t most, msgl_fa_local *out)
{
    out->cu_seqlens_q = (int32_t *)(void *)lists;
    out->seqlens_k = out->cu_seqlens_q + stride(most);
    out->table_rows = out->seqlens_k + stride(most);
}

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

void msgl__fa_local_cut(const msgl_seqs *seqs, int32_t chunk, size_t table_stride,
                        msgl_fa_local *out)
{
    int32_t n = 0;
    out->cu_seqlens_q[0] = 0;
    for (int32_t i = 0; i < seqs->size; i++) {
        const int32_t len = seqs->seqlens_k[i];
        const int32_t tokens = seqs->cu_seqlens_q[i + 1] - seqs->cu_seqlens_q[i];
        for (int32_t at = len - tokens; at < len;) { // its next token's position
            const int32_t start = at / chunk * chunk;
            const int32_t end = len - start > chunk ? start + chunk : len;
            out->cu_seqlens_q[n + 1] = out->cu_seqlens_q[n] + (end - at);
            out->seqlens_k[n] = end - start;
            out->table_rows[n] = (int32_t)((size_t)seqs->table_rows[i] * table_stride) + start;
            n++;
            at = end;
        }
    }
    out->size = n;
    out->max_seqlen_q = least(seqs->max_seqlen_q, chunk);
    out->max_seqlen_k = least(seqs->max_seqlen_k, chunk);
}
