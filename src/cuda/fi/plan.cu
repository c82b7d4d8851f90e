// SPDX-License-Identifier: Apache-2.0
//
// FlashInfer's planners for prefill, and the plan of the deterministic mode. They take the staging
// memory as the base of the device buffers too: only offsets come out of them.
#include <stddef.h>

#include <vector>

#include "cuda/fi/plan.cuh"

using namespace flashinfer;

thread_local size_t msgl__fi_plan_bytes;

// One tile per MSGL_FI_FIXED_TILE packed rows, each over all of its keys: a row's result depends on
// its own query and keys only.
static cudaError_t plan_fixed(const msgl_fi_plan_call *c, PrefillPlanInfo *info)
{
    const int32_t group = c->shape.num_q_heads / c->shape.num_kv_heads;
    AlignedAllocator at(c->staging, c->staging_bytes);
    int64_t tiles = 0;
    for (int32_t i = 0; i < c->batch; i++) {
        tiles += ceil_div((c->qo_indptr[i + 1] - c->qo_indptr[i]) * group, MSGL_FI_FIXED_TILE);
    }
    const size_t bytes = (size_t)tiles * sizeof(int32_t);
    info->cta_tile_q = MSGL_FI_FIXED_TILE;
    info->padded_batch_size = tiles;
    info->total_num_rows = c->qo_indptr[c->batch];
    info->request_indices_offset = at.aligned_alloc_offset(bytes, 16, "requests");
    info->qo_tile_indices_offset = at.aligned_alloc_offset(bytes, 16, "query tiles");
    info->kv_tile_indices_offset = at.aligned_alloc_offset(bytes, 16, "key tiles");
    info->o_indptr_offset = at.aligned_alloc_offset(((size_t)c->batch + 1) * 4, 16, "rows");
    info->kv_chunk_size_ptr_offset = at.aligned_alloc_offset(4, 4, "chunk size");
    int32_t *request = msgl_fi_at<int32_t>(c->staging, info->request_indices_offset);
    int32_t *q_tile = msgl_fi_at<int32_t>(c->staging, info->qo_tile_indices_offset);
    int32_t *kv_tile = msgl_fi_at<int32_t>(c->staging, info->kv_tile_indices_offset);
    for (int32_t i = 0, n = 0; i < c->batch; i++) {
        const int32_t rows = (c->qo_indptr[i + 1] - c->qo_indptr[i]) * group;
        for (int32_t t = 0; t < ceil_div(rows, MSGL_FI_FIXED_TILE); t++, n++) {
            request[n] = i;
            q_tile[n] = t;
            kv_tile[n] = 0;
        }
    }
    memcpy(msgl_fi_at<int32_t>(c->staging, info->o_indptr_offset), c->qo_indptr,
           ((size_t)c->batch + 1) * 4);
    *msgl_fi_at<int32_t>(c->staging, info->kv_chunk_size_ptr_offset) = INT32_MAX;
    msgl__fi_plan_bytes = at.num_allocated_bytes();
    return cudaSuccess;
}

static cudaError_t plan_prefill(const msgl_fi_plan_call *c, bool graph, bool whole,
                                PrefillPlanInfo *info)
{
    const msgl_fi_shape *s = &c->shape;
    return PrefillPlan<int32_t>(c->staging, c->float_bytes, c->staging, c->staging,
                                c->staging_bytes, *info, (int32_t *)c->qo_indptr,
                                (int32_t *)c->page_indptr, c->qo_indptr[c->batch], c->batch,
                                s->num_q_heads, s->num_kv_heads, s->head_dim, s->head_dim,
                                s->page_size, graph, 2, c->window, -1, whole, 0, 0);
}

// Whether one work item per query tile fills FlashInfer's grid, so that keys need not be split.
static bool fills_grid(const msgl_fi_plan_call *c, int sm_count)
{
    const int32_t group = c->shape.num_q_heads / c->shape.num_kv_heads;
    return (int64_t)c->batch * ceil_div(group, 16) * c->shape.num_kv_heads >= 2 * sm_count;
}

int msgl__fi_plan_tensor_cores(const msgl_fi_plan_call *c, msgl_fi_planned *out)
{
    static_assert(sizeof(PrefillPlanInfo) <= sizeof out->info, "plan info");
    PrefillPlanInfo info;
    int device = 0, sm_count = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) {
        code = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
    }
    if (code != cudaSuccess) return code;
    if (c->fixed) {
        code = plan_fixed(c, &info);
    } else if (c->whole || (c->graph && fills_grid(c, sm_count))) {
        // FlashInfer's graph plan always splits; its unsplit plan has a grid that depends on the
        // number of requests only, so it serves, and has no padding with stale work.
        code = plan_prefill(c, false, true, &info);
    } else {
        try {
            code = plan_prefill(c, c->graph, false, &info);
        } catch (const flashinfer::Error &) {
            if (c->graph) throw;
            info = PrefillPlanInfo(); // the partials do not fit the workspace
            code = plan_prefill(c, false, true, &info);
        }
    }
    // Without the padding behind the last member: plans are compared. out is all zeros.
    memcpy(out->info, &info, offsetof(PrefillPlanInfo, split_kv) + sizeof info.split_kv);
    return code;
}

int msgl__fi_plan_hopper(const msgl_fi_plan_call *c, msgl_fi_planned *out)
{
    static_assert(sizeof(PrefillPlanSM90Info) <= sizeof out->info, "plan info");
    const msgl_fi_shape *s = &c->shape;
    PrefillPlanSM90Info info;
    const cudaError_t code = PrefillSM90Plan<int32_t>(
        c->staging, c->float_bytes, c->staging, c->staging, c->staging_bytes, info,
        (int32_t *)c->qo_indptr, (int32_t *)c->page_indptr, (int32_t *)c->kv_len,
        c->qo_indptr[c->batch], c->batch, s->num_q_heads, s->num_kv_heads, s->head_dim, s->head_dim,
        s->page_size, c->kernel != MSGL_FI_PREFIX_HOPPER, false, 2, 0);
    // Beyond 4,096 tiles per head FlashInfer uses another schedule, which is not compiled here.
    if (code == cudaSuccess && info.same_schedule_for_all_heads) return cudaErrorNotSupported;
    const size_t last = offsetof(PrefillPlanSM90Info, same_schedule_for_all_heads);
    memcpy(out->info, &info, last + sizeof info.same_schedule_for_all_heads);
    return code;
}

// The list of a latent kernel, keys whole: tiles of query rows dealt to the clusters as
// FlashInfer's own planner deals them, but without its limit of 16,384, and of a batch alone if it
// is to be fixed.
static cudaError_t plan_latent_whole(const msgl_fi_plan_call *c, int sm_count, MLAPlanInfo *info)
{
    const int heads = c->shape.num_q_heads, clusters = (int)info->num_blks_y;
    const int rows = (int)info->num_blks_x * MSGL_FI_FIXED_TILE; // of a tile
    std::vector<int> owner;
    std::vector<int32_t> first((size_t)clusters + 1, 0);
    MinHeap heap(clusters);
    const auto tiles = [&](int i) {
        return ceil_div((c->qo_indptr[i + 1] - c->qo_indptr[i]) * heads, rows);
    };
    const auto end_of = [&](int i, int t) {
        return packed_causal_kv_end(c->qo_indptr[i + 1] - c->qo_indptr[i], c->kv_len[i], t, rows,
                                    tiles(i), heads);
    };
    for (int i = 0; i < c->batch; i++) {
        for (int t = tiles(i) - 1; t >= 0; t--) {
            const auto least = heap.pop();
            heap.insert({least.first, least.second + cost_function(rows, end_of(i, t))});
            owner.push_back(least.first);
            first[(size_t)least.first + 1]++;
        }
    }
    for (int k = 0; k < clusters; k++) first[(size_t)k + 1] += first[(size_t)k];
    AlignedAllocator at(c->staging, c->staging_bytes);
    const auto take = [&](size_t n, int64_t *offset) {
        *offset = at.aligned_alloc_offset(n * sizeof(int32_t), 16, "latent plan");
        return msgl_fi_at<int32_t>(c->staging, *offset);
    };
    const size_t n = owner.size(), sms = (size_t)sm_count;
    int32_t *work = take(first.size(), &info->work_indptr_offset);
    int32_t *q_indptr = take(n, &info->q_indptr_offset), *q_len = take(n, &info->q_len_offset);
    int32_t *kv_indptr = take(n, &info->kv_indptr_offset), *kv_len = take(n, &info->kv_len_offset);
    int32_t *q_start = take(n, &info->q_start_offset);
    int32_t *kv_start = take(n, &info->kv_start_offset), *kv_end = take(n, &info->kv_end_offset);
    int32_t *partial = take(n, &info->partial_indptr_offset);
    int32_t *merges = take(sms, &info->merge_packed_offset_start_offset); // none
    memset(merges, 0, sms * sizeof *merges);
    info->merge_packed_offset_end_offset = info->merge_packed_offset_start_offset;
    info->merge_partial_packed_offset_start_offset = info->merge_packed_offset_start_offset;
    info->merge_partial_packed_offset_end_offset = info->merge_packed_offset_start_offset;
    info->merge_partial_stride_offset = info->merge_packed_offset_start_offset;
    memcpy(work, first.data(), first.size() * sizeof *work);
    for (int i = 0, tile = 0; i < c->batch; i++) {
        for (int t = tiles(i) - 1; t >= 0; t--, tile++) {
            const int32_t to = first[(size_t)owner[(size_t)tile]]++;
            q_indptr[to] = c->qo_indptr[i];
            q_len[to] = c->qo_indptr[i + 1] - c->qo_indptr[i];
            kv_indptr[to] = c->page_indptr[i];
            kv_len[to] = c->kv_len[i];
            q_start[to] = t * rows;
            kv_start[to] = 0;
            kv_end[to] = end_of(i, t);
            partial[to] = -1;
        }
    }
    msgl__fi_plan_bytes = at.num_allocated_bytes();
    return cudaSuccess;
}

static const int64_t MAX_LATENT_WORKS = 16384; // of FlashInfer's planner

int msgl__fi_plan_latent(const msgl_fi_plan_call *c, msgl_fi_planned *out)
{
    static_assert(sizeof(MLAPlanInfo) <= sizeof out->info, "plan info");
    MLAPlanInfo info = {};
    int device = 0, sm_count = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) {
        code = cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, device);
    }
    if (code != cudaSuccess) return code;
    const int64_t rows = (int64_t)c->qo_indptr[c->batch] * c->shape.num_q_heads;
    // A fixed plan's tiles must not depend on the batch.
    const int64_t each = c->fixed ? c->shape.num_q_heads : rows / c->batch;
    info.num_blks_x = each > MSGL_FI_FIXED_TILE ? 2 : 1;
    info.num_blks_y = sm_count / info.num_blks_x;
    const int64_t works = rows / MSGL_FI_FIXED_TILE + c->batch + 2 * (int64_t)sm_count;
    code = c->fixed || works > MAX_LATENT_WORKS
               ? plan_latent_whole(c, sm_count, &info)
               : MLAPlan<int32_t>(c->staging, c->float_bytes, c->staging, c->staging,
                                  c->staging_bytes, info, (int32_t *)c->qo_indptr,
                                  (int32_t *)c->page_indptr, (int32_t *)c->kv_len, c->batch,
                                  c->shape.num_q_heads, c->shape.v_dim, true, 0);
    memcpy(out->info, &info, sizeof info);
    return code;
}

// FlashInfer's request, 128 MiB, is more than most shapes can use.
static const size_t MAX_FLOAT_BYTES = (size_t)128 << 20;
static const int64_t MAX_SMS = 256;
static const int64_t MAX_GRID = 16 * MAX_SMS; // blocks per SM times SMs, and to spare

extern "C" void msgl__fi_sizes(const msgl_fi_shape *shape, int32_t max_batch, int32_t max_tokens,
                               size_t *staging_bytes, size_t *float_bytes)
{
    const int64_t group = shape->num_q_heads / shape->num_kv_heads;
    if (shape->v_dim < shape->head_dim) {
        const int64_t tiles = max_tokens * group / MSGL_FI_FIXED_TILE + max_batch;
        // Nine arrays of works, five of multiprocessors; two partials of each cluster.
        const int64_t most = tiles > MAX_LATENT_WORKS ? tiles : MAX_LATENT_WORKS;
        *staging_bytes = (size_t)(9 * most + 5 * MAX_SMS) * sizeof(int32_t) + 4096;
        *float_bytes = (size_t)(2 * MAX_SMS * MSGL_FI_FIXED_TILE * (shape->v_dim * 2 + 4) + 4096);
        return;
    }
    const int64_t works = max_tokens * group / 16 + 2 * (int64_t)max_batch + MAX_GRID;
    const int64_t hopper = ((int64_t)max_tokens / 128 + max_batch) * shape->num_q_heads + MAX_GRID;
    const int64_t a = works * 13 + ((int64_t)max_tokens + max_batch) * 4, b = hopper * 28;
    *staging_bytes = (size_t)((a > b ? a : b) + 4096);
    const size_t partials =
        (size_t)(2 * 256 * group * 128) * ((size_t)shape->head_dim + 1) * 4 + 4096;
    *float_bytes = partials < MAX_FLOAT_BYTES ? partials : MAX_FLOAT_BYTES;
}
