// SPDX-License-Identifier: Apache-2.0
//
// Latent attention over expanded keys in plain C: what it computes, to read and to compare with.
#include <math.h>
#include <string.h>

#include "kernel/attn_internal.h"

static void gather_task(void *arg, int task, int worker)
{
    const msgl_gather_call *c = arg;
    const msgl_expand_req *r = &c->reqs[task];
    const int32_t first = r->table_row * (int32_t)c->table_stride + r->first;
    const size_t rank = (size_t)c->rank, rotary = (size_t)c->rotary;
    (void)worker;
    for (int32_t i = 0; i < r->keys; i++) {
        const size_t row = (size_t)(r->row0 + i),
                     slot = (size_t)msgl__paging_slot(c->paging, c->table, first + i);
        const size_t from = slot * (rank + rotary);
        float *latent = (float *)c->latent + row * rank;
        float *key = (float *)c->rotary_keys + row * rotary;
        for (size_t d = 0; d < rank; d++) {
            latent[d] = c->scale * msgl__load_f32(c->pool, c->dtype, from + d);
        }
        for (size_t d = 0; d < rotary; d++) {
            key[d] = c->scale * msgl__load_f32(c->pool, c->dtype, from + rank + d);
        }
    }
}

void msgl__attn_gather_ref(msgl_exec *x, const msgl_gather_call *c)
{
    msgl_gather_call args = *c;
    msgl__pool_run(x->pool, c->num_reqs, gather_task, &args);
}

static float dot(const float *a, const float *b, int32_t n)
{
    float sum = 0;
    for (int32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// One query of one head over rows [row0, row0 + keys) of the pass: an online softmax that begins
// with what earlier keys gave, a result out of weight exp(lse).
static void attend_row(const msgl_expanded_call *c, const float *q, int32_t head, int32_t row0,
                       int32_t keys, float *out, float *lse)
{
    const int32_t width = c->nope + c->v_dim;
    float max = c->merges ? *lse : -INFINITY, sum = c->merges ? 1 : 0;
    if (!c->merges) memset(out, 0, (size_t)c->v_dim * sizeof *out);
    for (int32_t j = row0; j < row0 + keys; j++) {
        const float *k =
            (const float *)c->kv + ((size_t)j * (size_t)c->heads + (size_t)head) * (size_t)width;
        const float *rotary = (const float *)c->rotary_keys + (size_t)j * (size_t)c->rotary;
        const float *v = k + c->nope;
        const float s = c->scale * (dot(q, k, c->nope) + dot(q + c->nope, rotary, c->rotary));
        if (s > max) {
            const float f = expf(max - s);
            for (int32_t d = 0; d < c->v_dim; d++) out[d] *= f;
            sum *= f;
            max = s;
        }
        const float p = expf(s - max);
        for (int32_t d = 0; d < c->v_dim; d++) out[d] += p * v[d];
        sum += p;
    }
    for (int32_t d = 0; d < c->v_dim; d++) out[d] /= sum;
    *lse = max + logf(sum);
}

// A head of a request.
static void expanded_task(void *arg, int task, int worker)
{
    const msgl_expanded_call *c = arg;
    const msgl_expand_req *r = &c->reqs[task / c->heads];
    const int32_t head = task % c->heads;
    (void)worker;
    for (int32_t t = 0; t < r->tokens; t++) {
        const int32_t seen = r->pos + t + 1 - r->first;
        const size_t row = (size_t)(r->q_row + t);
        const size_t at = row * (size_t)c->heads + (size_t)head;
        const float *q = (const float *)c->q + row * c->ld_q + head * (c->nope + c->rotary);
        attend_row(c, q, head, r->row0, seen < r->keys ? seen : r->keys,
                   (float *)c->out + at * (size_t)c->v_dim, c->lse + at);
    }
}

void msgl__attn_expanded_ref(msgl_exec *x, const msgl_expanded_call *c)
{
    msgl_expanded_call call = *c;
    msgl__pool_run(x->pool, c->num_reqs * c->heads, expanded_task, &call);
}
