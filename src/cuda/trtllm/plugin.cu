// SPDX-License-Identifier: Apache-2.0
//
// The plug-in's table, and a kernel of our own that makes the block table.
#include "cuda/trtllm/entry.cuh"

enum { BLOCK = 256, MAX_SPLITS = 16, XQA_TILE = 256 };

static __global__ void xqa_pages(const msgl_xqa_pages_call c)
{
    const int32_t i = blockIdx.x;
    const int32_t n = (c.seqlens_k[i] + c.page_size - 1) / c.page_size;
    const int32_t *row = c.table + (size_t)c.table_rows[i] * c.table_stride;
    int32_t *out = c.pages + (size_t)i * c.pages_stride;
    for (int32_t j = blockIdx.y * BLOCK + threadIdx.x; j < n; j += gridDim.y * BLOCK) {
        out[j] = row[j / c.parts] * c.parts + j % c.parts;
    }
}

static int plugin_pages(const msgl_xqa_pages_call *c, void *stream)
{
    const int32_t blocks = (c->max_pages + BLOCK - 1) / BLOCK;
    const dim3 grid(c->batch, blocks < MAX_SPLITS ? blocks : MAX_SPLITS);
    xqa_pages<<<grid, BLOCK, 0, (cudaStream_t)stream>>>(*c);
    return cudaGetLastError();
}

static const msgl_xqa_entry *find(const msgl_xqa_shape *s)
{
    const msgl_xqa_entry *best = NULL; // the largest page that divides the pool's
    for (int i = 0; i < msgl__xqa_num_entries; i++) {
        const msgl_xqa_entry *e = &msgl__xqa_entries[i];
        if (e->dtype == s->dtype && e->head_dim == s->head_dim &&
            e->group * s->num_kv_heads == s->num_q_heads && s->page_size % e->page_size == 0 &&
            (best == NULL || e->page_size > best->page_size)) {
            best = e;
        }
    }
    return best;
}

static int32_t plugin_kernel_page_size(const msgl_xqa_shape *shape)
{
    const msgl_xqa_entry *e = find(shape);
    return e != NULL ? e->page_size : 0;
}

static int plugin_prepare(const msgl_xqa_shape *shape, msgl_xqa_device *out)
{
    const msgl_xqa_entry *e = find(shape);
    if (e == NULL) return cudaErrorNotSupported;
    int device = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess) {
        code = cudaDeviceGetAttribute(&out->sm_count, cudaDevAttrMultiProcessorCount, device);
    }
    return code == cudaSuccess ? e->prepare(&out->shared_bytes) : code;
}

// One CTA per SM is faster than the two that fit.
static int32_t choose_splits(const msgl_xqa_call *c)
{
    if (c->deterministic) return 1;
    const int32_t tiles = (c->max_seqlen_k + XQA_TILE - 1) / XQA_TILE;
    int32_t n = c->splits > 0 ? c->splits : c->device.sm_count / (c->batch * c->shape.num_kv_heads);
    if (n > tiles) n = tiles;
    return n > 1 ? n : 1;
}

static size_t plugin_scratch_bytes(const msgl_xqa_shape *shape, const msgl_xqa_device *device,
                                   int32_t max_batch)
{
    // Splits fill at most the SMs, or are a caller's own; each keeps its rows of partial results
    // and two floats per row.
    const size_t rows = (size_t)(shape->num_q_heads / shape->num_kv_heads + 15) / 16 * 16;
    const size_t partials = (size_t)device->sm_count + (size_t)max_batch * shape->num_kv_heads;
    return partials * (rows * ((size_t)shape->head_dim * 4 + 64) + 1024);
}

static int plugin_decode(const msgl_xqa_call *c, void *stream)
{
    const msgl_xqa_entry *e = find(&c->shape);
    const bool scales = c->shape.dtype == MSGL_E4M3;
    if (e == NULL || (c->bmm2_scale != 1 && !scales)) return cudaErrorNotSupported;
    return e->launch(c, choose_splits(c), (cudaStream_t)stream);
}

static const msgl_trtllm_api API = {
    MSGL_TRTLLM_ABI, MSGL_XQA_BUILD, plugin_kernel_page_size, plugin_prepare, plugin_scratch_bytes,
    plugin_decode,   plugin_pages,
};

extern "C" __attribute__((visibility("default"))) const msgl_trtllm_api *msgl_trtllm_plugin(void)
{
    return &API;
}
