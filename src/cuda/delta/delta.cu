// SPDX-License-Identifier: Apache-2.0
//
// Family delta: what a call has to be like, and which kernels take it.
#include "cuda/delta/args.cuh"
#include "cuda/device.cuh"

static bool at_16(const void *p, size_t stride_bytes)
{
    return ((uintptr_t)p | stride_bytes) % 16 == 0;
}

extern "C" bool msgl__cuda_delta_supports(int32_t capability, msgl_dtype act,
                                          const msgl_delta_call *dims)
{
    (void)capability, (void)act;
    return dims->k_dim <= MSGL_DELTA_MAX_DIM && dims->v_dim <= MSGL_DELTA_MAX_DIM;
}

// What kernels for Hopper take; any.cu takes the rest.
static bool is_fast(const msgl_exec *x, const msgl_delta_call *c)
{
    return x->act == MSGL_BF16 && msgl__cuda_device(x)->base.capability == 90 &&
           msgl__delta_fast_dims(c);
}

static bool supported(const msgl_exec *x, const msgl_delta_call *c)
{
    const size_t size = sizeof(msgl_delta_act);
    return is_fast(x, c) && c->k_heads > 0 && c->v_heads % c->k_heads == 0 && c->ld_a == c->ld_b &&
           at_16(c->qkv, c->ld_qkv * size) && at_16(c->z, c->ld_z * size) &&
           at_16(c->out, c->ld_out * size) && at_16(c->io.base, c->io.stride) &&
           at_16(c->conv, 0) && at_16(c->norm, 0);
}

bool msgl__delta_args(msgl_exec *x, const msgl_delta_call *c, msgl_delta_args *out)
{
    if (!supported(x, c)) {
        x->status = MSGL_EUNSUPPORTED;
        return false;
    }
    *out = msgl_delta_args{};
    out->qkv = (const msgl_delta_act *)c->qkv, out->ld_qkv = c->ld_qkv;
    out->z = (const msgl_delta_act *)c->z, out->ld_z = c->ld_z;
    out->a = (const msgl_delta_act *)c->a, out->b = (const msgl_delta_act *)c->b;
    out->ld_ab = c->ld_a;
    out->out = (msgl_delta_act *)c->out, out->ld_out = c->ld_out;
    out->conv = c->conv, out->a_log = c->a_log, out->dt_bias = c->dt_bias;
    out->norm = c->norm, out->norm_eps = c->norm_eps, out->sigmoid_gate = c->sigmoid_gate;
    out->k_heads = c->k_heads, out->v_heads = c->v_heads, out->group_size = c->v_heads / c->k_heads;
    out->channels = msgl__delta_channels(c);
    out->size = c->io.seqs->size;
    out->cu_seqlens_q = c->io.seqs->dev_cu_seqlens_q, out->seqlens_k = c->io.seqs->dev_seqlens_k;
    out->from = c->io.at.dev_from, out->to = c->io.at.dev_to;
    out->saves = c->io.at.dev_saves, out->save_start = c->io.at.dev_save_start;
    out->states = (char *)c->io.base, out->state_stride = c->io.stride;
    out->ring_at = msgl__delta_matrix_bytes(c);
    return true;
}

// Requests [first, end) of a call; seqs: theirs.
static msgl_delta_call part_of(const msgl_delta_call *c, int first, int end, msgl_seqs *seqs)
{
    *seqs = *c->io.seqs;
    seqs->size = end - first;
    seqs->cu_seqlens_q += first, seqs->dev_cu_seqlens_q += first;
    seqs->seqlens_k += first, seqs->dev_seqlens_k += first;
    msgl_delta_call part = *c;
    part.io.seqs = seqs;
    part.io.at.from += first, part.io.at.dev_from += first;
    part.io.at.to += first, part.io.at.dev_to += first;
    if (c->io.at.saves != NULL) part.io.at.save_start += first, part.io.at.dev_save_start += first;
    return part;
}

extern "C" void msgl__cuda_delta(msgl_exec *x, const msgl_delta_call *c)
{
    if (!is_fast(x, c)) {
        msgl__cuda_delta_any(x, c);
        return;
    }
    if (c->io.seqs->phase == MSGL_DECODE) {
        msgl__cuda_delta_decode(x, c, 0);
        return;
    }
    msgl_seqs seqs;
    const msgl_delta_call answers = part_of(c, 0, c->io.at.num_answers, &seqs);
    msgl__cuda_delta_rows(x, &answers);
    const msgl_delta_call chunks = part_of(c, c->io.at.num_answers, c->io.seqs->size, &seqs);
    msgl__cuda_delta_prefill(x, &chunks, 0);
}
