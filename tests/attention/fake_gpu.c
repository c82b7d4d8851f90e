// SPDX-License-Identifier: Apache-2.0
#include "attention/fake_gpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "core/round.h"
#include "utils/plugin.h"

fake_gpu FAKE_GPU;

static struct block {
    char *p;
    size_t bytes;
    bool host;
} blocks[64];

// By pages, as workspaces that nobody touches then cost nothing, also under sanitizers.
static void *take(size_t bytes, bool host)
{
    for (size_t i = 0; i < MSGL_COUNT(blocks); i++) {
        if (blocks[i].p != NULL) continue;
        blocks[i] = (struct block){msgl__pages_alloc(bytes), bytes, host};
        return blocks[i].p;
    }
    fail_msg("more blocks than the fake GPU has places for");
    return NULL;
}

static void give(void *p, size_t bytes, bool host)
{
    for (size_t i = 0; i < MSGL_COUNT(blocks); i++) {
        if (blocks[i].p != p) continue;
        assert_int_equal(blocks[i].bytes, bytes);
        assert_int_equal(blocks[i].host, host);
        msgl__pages_free(p, bytes);
        blocks[i].p = NULL;
        return;
    }
    fail_msg("freed what was not allocated");
}

static bool holds(const char *p, size_t bytes, bool host)
{
    for (size_t i = 0; i < MSGL_COUNT(blocks); i++) {
        const struct block *b = &blocks[i];
        if (b->p != NULL && b->host == host && p >= b->p && bytes <= b->bytes &&
            (size_t)(p - b->p) <= b->bytes - bytes) {
            return true;
        }
    }
    return false;
}

static void *gpu_alloc(msgl_device *d, size_t bytes)
{
    (void)d;
    return take(bytes, false);
}

static void gpu_free(msgl_device *d, void *p, size_t bytes)
{
    (void)d;
    give(p, bytes, false);
}

static void *gpu_host_alloc(msgl_device *d, size_t bytes)
{
    (void)d;
    return take(bytes, true);
}

static void gpu_host_free(msgl_device *d, void *p, size_t bytes)
{
    (void)d;
    give(p, bytes, true);
}

static void gpu_copy_in(msgl_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (holds(dst, bytes, false) && holds(src, bytes, true)) {
        memcpy(dst, src, bytes);
    } else {
        FAKE_GPU.bad_copies++;
    }
}

static void gpu_copy(msgl_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (holds(dst, bytes, false) && holds(src, bytes, false)) {
        memcpy(dst, src, bytes);
    } else {
        FAKE_GPU.bad_copies++;
    }
}

static int attend(const msgl_cuda_attn_call *c, void *stream)
{
    (void)stream;
    if (FAKE_GPU.num_calls < FAKE_MAX_CALLS) FAKE_GPU.calls[FAKE_GPU.num_calls] = *c;
    FAKE_GPU.num_calls++;
    return 0;
}

int msgl__cuda_fa_prefill(const msgl_cuda_attn_call *c, void *stream)
{
    return attend(c, stream);
}

int msgl__cuda_fa_decode(const msgl_cuda_attn_call *c, void *stream)
{
    return attend(c, stream);
}

int msgl__cuda_fa_prefill_sm80(const msgl_cuda_attn_call *c, void *stream)
{
    return attend(c, stream);
}

int msgl__cuda_fa_wide(const msgl_cuda_attn_call *c, bool answers, const uint64_t *tree,
                       void *stream)
{
    (void)stream;
    FAKE_GPU.wide = *c;
    FAKE_GPU.wide_answers = answers;
    FAKE_GPU.tree = tree;
    FAKE_GPU.num_wide++;
    return 0;
}

int msgl__cuda_attn_reference(const msgl_cuda_attn_call *c, void *stream)
{
    return attend(c, stream);
}

int msgl__cuda_attn_tree(const msgl_cuda_attn_call *c, const uint64_t *tree, void *stream)
{
    (void)c, (void)stream;
    FAKE_GPU.tree = tree;
    FAKE_GPU.num_trees++;
    return 0;
}

int msgl__cuda_mla_plan(const msgl_mla_call *c, void *stream)
{
    (void)stream;
    FAKE_GPU.mla_plan = *c;
    FAKE_GPU.num_mla_plans++;
    return 0;
}

int msgl__cuda_mla(const msgl_mla_call *c, void *stream)
{
    (void)stream;
    FAKE_GPU.mla = *c;
    return 0;
}

int msgl__cuda_gather(const msgl_gather_call *c, void *stream)
{
    (void)stream;
    FAKE_GPU.gather = *c;
    return 0;
}

int msgl__cuda_expanded(const msgl_expanded_call *c, void *stream)
{
    (void)stream;
    FAKE_GPU.expanded = *c;
    return 0;
}

int msgl__cuda_sink(const msgl_sink_call *c, void *stream)
{
    (void)stream;
    FAKE_GPU.sink = *c;
    FAKE_GPU.num_sinks++;
    return 0;
}

static const msgl_device_ops OPS = {.alloc = gpu_alloc,
                                    .free = gpu_free,
                                    .host_alloc = gpu_host_alloc,
                                    .host_free = gpu_host_free,
                                    .copy_in = gpu_copy_in,
                                    .copy = gpu_copy};

void fake_gpu_reset(int32_t capability)
{
    FAKE_GPU = (fake_gpu){.base = {.ops = &OPS, .capability = capability}};
}

bool fake_gpu_contains(const void *p, size_t bytes)
{
    return holds(p, bytes, false);
}

size_t fake_gpu_bytes(void)
{
    size_t bytes = 0;
    for (size_t i = 0; i < MSGL_COUNT(blocks); i++) {
        if (blocks[i].p != NULL && !blocks[i].host) bytes += blocks[i].bytes;
    }
    return bytes;
}

void fake_gpu_check(void)
{
    assert_int_equal(FAKE_GPU.bad_copies, 0);
    for (size_t i = 0; i < MSGL_COUNT(blocks); i++) assert_null(blocks[i].p);
}

void fake_plugins(bool fi, bool trtllm)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s/tests/attention/plugins%s", MSGL_BINARY_DIR,
             fi && trtllm ? ""
             : fi         ? "/fi"
             : trtllm     ? "/trtllm"
                          : "/none");
    assert_int_equal(setenv("MINISGL_PLUGIN_DIR", dir, 1), 0);
}

static void *stub_of(const char *plugin)
{
    msgl_err err = {0};
    void *p = msgl__plugin_open(plugin, "stub", &err);
    if (p == NULL) fail_msg("%s", err.text);
    return p;
}

stub_fi *fake_fi(void)
{
    return stub_of("minisgl-attn-fi.so");
}

stub_trtllm *fake_trtllm(void)
{
    return stub_of("minisgl-attn-trtllm.so");
}

msgl_attn_needs fake_needs(int32_t capability, int32_t group, int32_t head_dim, msgl_dtype dtype)
{
    return (msgl_attn_needs){.backends = &msgl__attn_cuda,
                             .capability = capability,
                             .num_q_heads = 2 * group,
                             .num_kv_heads = 2,
                             .head_dim = head_dim,
                             .page_size = 16,
                             .act = dtype,
                             .kv_dtype = dtype};
}

msgl_attn_needs fake_latent_needs(int32_t capability, int32_t heads, int32_t v_dim, int32_t rotary,
                                  msgl_dtype dtype)
{
    msgl_attn_needs n = fake_needs(capability, heads, v_dim + rotary, dtype);
    n.cache = MSGL_CACHE_LATENT;
    n.num_q_heads = heads;
    n.num_kv_heads = 1;
    n.v_dim = v_dim;
    return n;
}

void fake_world_open(fake_world *w, const msgl_attn_needs *n)
{
    static char nothing[64];
    *w = (fake_world){.needs = *n};
    const int32_t pages = FAKE_RUNNING * msgl__ceil_div(FAKE_SEQ_LEN, n->page_size);
    w->pool = (msgl_kv_pool){.spec = {.kind = n->cache,
                                      .num_layers = 1,
                                      .window = -1,
                                      .num_heads = n->num_kv_heads,
                                      .k_dim = n->head_dim,
                                      .v_dim = n->v_dim != 0 ? n->v_dim : n->head_dim,
                                      .dtype = n->kv_dtype},
                             .num_pages = pages,
                             .page_size = n->page_size,
                             .base = nothing};
    msgl_err err = {0};
    assert_int_equal(
        msgl__page_table_create(FAKE_RUNNING, FAKE_SEQ_LEN, n->page_size, pages, &w->table, &err),
        0);
    w->exec = (msgl_exec){.device = &FAKE_GPU.base, .act = n->act};
    w->cfg =
        (msgl_attn_config){.num_q_heads = n->num_q_heads,
                           .num_kv_heads = n->num_kv_heads,
                           .head_dim = n->head_dim,
                           .page_size = n->page_size,
                           .max_running = FAKE_RUNNING,
                           .max_seq_len = FAKE_SEQ_LEN,
                           .max_step_tokens = FAKE_STEP_TOKENS,
                           .max_in_flight = FAKE_STEP_SLOTS,
                           .deterministic = n->deterministic,
                           .variants = n->variants,
                           .pool = &w->pool,
                           .page_table = &w->table,
                           .num_threads = 1,
                           .dev = &FAKE_GPU.base,
                           .device_table = w->table.pages,
                           .device_table_stride = (size_t)w->table.stride * (size_t)n->page_size};
}

void fake_world_close(fake_world *w)
{
    msgl__page_table_destroy(&w->table);
}
