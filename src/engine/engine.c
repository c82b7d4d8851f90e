// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "engine/internal.h"

static void print_line(const msgl_engine_config *cfg, const char *line)
{
    if (cfg->print != NULL && line[0] != '\0') cfg->print(cfg->print_ctx, line);
}

static int check_int(const char *flag, int32_t v, int32_t lo, int32_t hi, msgl_err *err)
{
    if (v >= lo && v <= hi) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "%s: found %d, allowed %d..%d", flag, v, lo, hi);
}

static int check_config(const msgl_engine_config *c, msgl_err *err)
{
    if (c->model_dir == NULL || c->model_dir[0] == '\0') {
        return msgl__err_set(err, MSGL_EINVAL, "--model: no model folder given");
    }
    if (c->device != NULL && strcmp(c->device, "auto") != 0 && strcmp(c->device, "cpu") != 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "--device: found \"%.40s\", allowed auto, cpu",
                             c->device);
    }
    if (!(c->memory_ratio > 0 && c->memory_ratio <= 1)) {
        return msgl__err_set(err, MSGL_EINVAL, "--memory-ratio: found %g, allowed above 0 up to 1",
                             c->memory_ratio);
    }
    int code = check_int("--threads", c->num_threads, 0, 1024, err);
    if (code == 0) code = check_int("--max-running-requests", c->max_running, 1, 65536, err);
    if (code == 0) code = check_int("--max-seq-len-override", c->max_seq_len, 0, 1 << 30, err);
    if (code == 0) {
        code = check_int("--max-prefill-length", c->max_prefill_tokens, 1, 1 << 20, err);
    }
    if (code == 0) code = check_int("--page-size", c->page_size, 1, 65536, err);
    if (code == 0) code = check_int("--num-pages", c->num_pages, 0, INT32_MAX / 2, err);
    return code;
}

// What --dtype stores weights, and the KV pool, as.
static int choose_dtype(const char *flag, msgl_dtype of_model, msgl_dtype *out, msgl_err *err)
{
    if (flag == NULL || strcmp(flag, "auto") == 0) {
        *out = of_model;
        return 0;
    }
    if (msgl__dtype_parse(flag, out) == 0) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "--dtype: found \"%.40s\", allowed auto, bfloat16, float16, float32",
                         flag);
}

// Memory that lives as long as the engine. NULL sets *code.
static void *take(msgl_engine *e, size_t count, size_t size, bool host, int *code, msgl_err *err)
{
    size_t bytes;
    if (*code != 0) return NULL;
    if (msgl__size_mul(count, size, &bytes) == 0 &&
        e->num_blocks < (int32_t)(sizeof e->blocks / sizeof e->blocks[0])) {
        const msgl_device_ops *ops = e->device->ops;
        void *p = host ? ops->host_alloc(e->device, bytes) : ops->alloc(e->device, bytes);
        if (p != NULL) {
            e->blocks[e->num_blocks++] = (msgl_block){.p = p, .bytes = bytes, .host = host};
            return p;
        }
    }
    *code = msgl__err_set(err, MSGL_ENOMEM, "engine: no memory for %zu x %zu bytes", count, size);
    return NULL;
}

// Cuts `total` elements of `size` bytes off a block, 64-byte aligned.
static void *cut(msgl_arena *a, size_t count, size_t size)
{
    return msgl__arena_alloc(a, count * size);
}

static size_t padded(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

// Staging bytes of one step (host) and of the device's set: the order and number of the cuts below.
static size_t step_host_bytes(const msgl_engine *e)
{
    const size_t t = (size_t)e->max_step_tokens, r = (size_t)e->max_running;
    const size_t rope = (size_t)msgl__rope_max_rows(&e->model.cfg.rope, e->max_running);
    const size_t half = (size_t)e->model.cfg.rope.dim / 2;
    return padded(r * sizeof(msgl_batch_req)) + 7 * padded(t * 4) +
           padded(t * sizeof(msgl_token_logprobs)) + padded(rope * half * 4) +
           padded(rope * sizeof(msgl_rope_segment)) + padded(r * sizeof(msgl_sample_row)) +
           6 * padded(r * 4);
}

static size_t step_device_bytes(const msgl_engine *e)
{
    const size_t t = (size_t)e->max_step_tokens, r = (size_t)e->max_running;
    const size_t rope = (size_t)msgl__rope_max_rows(&e->model.cfg.rope, e->max_running);
    const size_t half = (size_t)e->model.cfg.rope.dim / 2;
    return 6 * padded(t * 4) + padded(t * sizeof(msgl_token_logprobs)) + 3 * padded(r * 4) +
           padded(r * sizeof(msgl_sample_row)) + padded(rope * half * 4);
}

static void cut_step(msgl_engine *e, msgl_engine_step *s, msgl_arena *a)
{
    const size_t t = (size_t)e->max_step_tokens, r = (size_t)e->max_running;
    const size_t rope = (size_t)msgl__rope_max_rows(&e->model.cfg.rope, e->max_running);
    s->reqs = cut(a, r, sizeof *s->reqs);
    s->positions = cut(a, t, 4);
    s->out_loc = cut(a, t, 4);
    s->id_index = cut(a, t, 4);
    s->rows = cut(a, t, 4);
    s->row_sample = cut(a, t, 4);
    s->row_record = cut(a, t, 4);
    s->record_index = cut(a, t, 4);
    s->records = cut(a, t, sizeof *s->records);
    s->inv_freq = cut(a, rope * (size_t)e->model.cfg.rope.dim / 2, 4);
    s->segments = cut(a, rope, sizeof *s->segments);
    s->sample_rows = cut(a, r, sizeof *s->sample_rows);
    s->sample_index = cut(a, r, 4);
    s->sample_req = cut(a, r, 4);
    s->sampled = cut(a, r, 4);
    s->sample_status = cut(a, r, 4);
    s->tokens = cut(a, r, 4);
    s->status = cut(a, r, 4);
}

static void cut_device(msgl_engine *e, msgl_arena *a)
{
    const size_t t = (size_t)e->max_step_tokens, r = (size_t)e->max_running;
    const size_t rope = (size_t)msgl__rope_max_rows(&e->model.cfg.rope, e->max_running);
    e->dev.positions = cut(a, t, 4);
    e->dev.out_loc = cut(a, t, 4);
    e->dev.id_index = cut(a, t, 4);
    e->dev.ids = cut(a, t, 4);
    e->dev.rows = cut(a, t, 4);
    e->dev.record_index = cut(a, t, 4);
    e->dev.records = cut(a, t, sizeof *e->dev.records);
    e->dev.sample_rows = cut(a, r, sizeof *e->dev.sample_rows);
    e->dev.sample_index = cut(a, r, 4);
    e->dev.sampled = cut(a, r, 4);
    e->dev.sample_status = cut(a, r, 4);
    e->dev.inv_freq = cut(a, rope * (size_t)e->model.cfg.rope.dim / 2, 4);
}

static size_t scratch_bytes(const msgl_engine *e)
{
    const size_t gemm = msgl__model_scratch(&e->model, e->max_step_tokens, MSGL_LOGITS_ROWS);
    const size_t sample = e->kernels.sample.scratch_size(MSGL_LOGITS_ROWS, e->model.cfg.vocab_size);
    return (gemm > sample ? gemm : sample) + 4096;
}

static size_t arena_bytes(const msgl_engine *e)
{
    return e->model.cfg.arch->workspace(&e->model, e->max_step_tokens, e->max_step_tokens) +
           msgl__logits_bytes(&e->model, e->max_step_tokens) + 4096;
}

static int take_workspace(msgl_engine *e, msgl_err *err)
{
    int code = 0;
    const size_t step = step_host_bytes(e), dev = step_device_bytes(e);
    char *host = take(e, MSGL_ENGINE_SLOTS, step, true, &code, err);
    char *device = take(e, 1, dev, false, &code, err);
    e->writes = take(e, MSGL_ENGINE_WRITES, sizeof *e->writes, true, &code, err);
    const size_t arena = arena_bytes(e), scratch = scratch_bytes(e);
    void *arena_base = take(e, 1, arena, false, &code, err);
    void *scratch_base = take(e, 1, scratch, false, &code, err);
    e->dev.token_pool = take(e, (size_t)e->max_running + 1,
                             (size_t)e->token_stride * sizeof(int32_t), false, &code, err);
    if (code != 0) return code;
    msgl_arena a;
    for (int i = 0; i < MSGL_ENGINE_SLOTS; i++) {
        msgl__arena_init(&a, host + (size_t)i * step, step);
        cut_step(e, &e->steps[i], &a);
    }
    msgl__arena_init(&a, device, dev);
    cut_device(e, &a);
    msgl__arena_init(&e->arena, arena_base, arena);
    msgl__arena_init(&e->scratch, scratch_base, scratch);
    return 0;
}

static void warn_seq_len(const msgl_engine_config *cfg, int32_t decided, int32_t context)
{
    char line[160] = "";
    if (cfg->max_seq_len > decided) {
        snprintf(
            line, sizeof line,
            "warning: --max-seq-len-override %d is cut to %d, the tokens that the KV pool holds",
            cfg->max_seq_len, decided);
    } else if (cfg->max_seq_len > context) {
        snprintf(line, sizeof line,
                 "warning: --max-seq-len-override %d is beyond the %d tokens the model is made for",
                 cfg->max_seq_len, context);
    }
    print_line(cfg, line);
}

// The parts that only compute sizes: nothing large is allocated yet.
static int plan_memory(msgl_engine *e, const msgl_engine_config *cfg, msgl_err *err)
{
    const msgl_model_config *m = &e->model.cfg;
    msgl_attn_needs needs = {
        .device = MSGL_DEVICE_CPU,
        .num_q_heads = m->num_heads,
        .num_kv_heads = m->num_kv_heads,
        .head_dim = m->head_dim,
        .page_size = cfg->page_size,
        .kv_dtype = e->info.dtype,
        .sliding_window = m->sliding_window > 0,
    };
    char warning[256] = "";
    int code = msgl__attn_select(cfg->attention != NULL ? cfg->attention : "auto", &needs,
                                 &e->attn_choice, warning, err);
    if (code != 0) return code;
    print_line(cfg, warning);
    warning[0] = '\0';
    const int32_t page_size = msgl__attn_page_size(&e->attn_choice, cfg->page_size, warning);
    print_line(cfg, warning);

    const int32_t context = msgl__model_config_context(m);
    msgl_memory_plan p = {
        .available = msgl__memory_available(),
        .weight_bytes = e->model.plan.bytes,
        .weight_dtype = e->info.dtype,
        .step_bytes = arena_bytes(e) + scratch_bytes(e) + step_device_bytes(e),
        .staging_bytes =
            MSGL_ENGINE_SLOTS * step_host_bytes(e) + MSGL_ENGINE_WRITES * sizeof(msgl_token_write),
        .kv = {.dtype = e->info.dtype,
               .num_layers = m->num_layers,
               .num_pages = cfg->num_pages,
               .page_size = page_size,
               .num_kv_heads = m->num_kv_heads,
               .head_dim = m->head_dim},
        .max_running = e->max_running,
        .max_step_tokens = e->max_step_tokens,
        .max_seq_len = cfg->max_seq_len > 0 ? cfg->max_seq_len : context,
        .memory_ratio = cfg->memory_ratio,
    };
    code = msgl__memory_plan(&p, err);
    if (code != 0) return code;
    warn_seq_len(cfg, p.max_seq_len, context);
    if (cfg->print != NULL) msgl__memory_plan_print(&p, cfg->print, cfg->print_ctx);
    e->kv = p.kv;
    e->info.max_seq_len = p.max_seq_len;
    e->info.weight_bytes = p.weight_bytes;
    e->info.kv_bytes = p.kv_bytes;
    e->info.workspace_bytes = p.step_bytes + p.staging_bytes + p.table_bytes;
    return 0;
}

static int create_kv(msgl_engine *e, msgl_err *err)
{
    int code = 0;
    e->kv.bytes = e->info.kv_bytes;
    e->kv.base = take(e, 1, e->kv.bytes, false, &code, err);
    if (code != 0) return code;
    const int64_t slots = ((int64_t)e->kv.num_pages + 1) * e->kv.page_size;
    e->token_stride = (e->info.max_seq_len + 32) / 32 * 32; // at least one more than max_seq_len
    if (slots > INT32_MAX || ((int64_t)e->max_running + 1) * e->token_stride > INT32_MAX) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "engine: %d pages of %d tokens or %d requests of %d tokens are more "
                             "than 2^31 places; lower --num-pages or --max-running-requests",
                             e->kv.num_pages, e->kv.page_size, e->max_running, e->info.max_seq_len);
    }
    return msgl__page_table_create(e->max_running, e->info.max_seq_len,
                                   e->kv.num_pages * e->kv.page_size, &e->page_table, err);
}

static int create_attention(msgl_engine *e, msgl_err *err)
{
    const msgl_model_config *m = &e->model.cfg;
    const msgl_attn_config cfg = {
        .device = MSGL_DEVICE_CPU,
        .num_q_heads = m->num_heads,
        .num_kv_heads = m->num_kv_heads,
        .head_dim = m->head_dim,
        .page_size = e->kv.page_size,
        .max_running = e->max_running,
        .max_seq_len = e->info.max_seq_len,
        .max_step_tokens = e->max_step_tokens,
        .num_slots = MSGL_ENGINE_SLOTS,
        .kernels = &e->kernels,
        .pool = &e->kv,
        .page_table = &e->page_table,
        .num_threads = msgl__pool_threads(e->pool),
    };
    return msgl__attn_create(&e->attn_choice, &cfg, &e->attn, err);
}

typedef struct load_progress {
    const msgl_engine_config *cfg;
} load_progress;

static void on_load(void *ctx, uint64_t done, uint64_t total)
{
    const msgl_engine_config *cfg = ((load_progress *)ctx)->cfg;
    cfg->progress(cfg->progress_ctx, "weights", done, total);
}

static int load_weights(msgl_engine *e, const msgl_engine_config *cfg, msgl_err *err)
{
    int code = 0;
    void *region = take(e, 1, e->model.plan.bytes, false, &code, err);
    if (code != 0) return code;
    load_progress p = {.cfg = cfg};
    code = msgl__model_load(&e->model, region, cfg->dummy_weight ? NULL : cfg->model_dir, &e->exec,
                            cfg->progress != NULL ? on_load : NULL, &p, err);
    return code;
}

static void fill_info(msgl_engine *e, const msgl_engine_config *cfg)
{
    msgl_engine_info *i = &e->info;
    const msgl_model_config *m = &e->model.cfg;
    i->vocab_size = m->vocab_size;
    i->max_running = e->max_running;
    i->num_pages = e->kv.num_pages;
    i->page_size = e->kv.page_size;
    i->num_eos = m->num_eos;
    memcpy(i->eos_ids, m->eos_ids, sizeof i->eos_ids);
    const char *prefill = e->attn_choice.prefill->name, *decode = e->attn_choice.decode->name;
    const bool one = e->attn_choice.prefill == e->attn_choice.decode;
    snprintf(i->attention, sizeof i->attention, "%s%s%s", prefill, one ? "" : ",",
             one ? "" : decode);
    snprintf(i->device, sizeof i->device, "cpu %s, %d threads",
             msgl__cpu_level_name(e->kernels.level), msgl__pool_threads(e->pool));
    snprintf(i->architecture, sizeof i->architecture, "%s", m->arch->name);
    i->gen_temperature = m->gen_temperature;
    i->gen_top_p = m->gen_top_p;
    i->gen_min_p = m->gen_min_p;
    i->gen_top_k = m->gen_top_k;
    i->no_prefix_sharing = cfg->naive_cache || msgl__rope_per_request(&m->rope);
}

static int build(msgl_engine *e, const msgl_engine_config *cfg, msgl_err *err)
{
    msgl_cpu_level level = MSGL_CPU_REF;
    const msgl_moe_desc *moe = NULL;
    int code = check_config(cfg, err);
    if (code == 0) code = msgl__model_config_load(cfg->model_dir, &e->model.cfg, err);
    if (code == 0) code = choose_dtype(cfg->dtype, e->model.cfg.dtype, &e->info.dtype, err);
    if (code == 0) code = msgl__moe_select(cfg->moe, &moe, err);
    if (code == 0) code = msgl__cpu_level_select(cfg->cpu_level, &level, err);
    if (code != 0) return code;
    e->max_running = cfg->max_running;
    e->info.max_prefill_tokens = cfg->max_prefill_tokens;
    e->max_step_tokens =
        cfg->max_prefill_tokens > cfg->max_running ? cfg->max_prefill_tokens : cfg->max_running;
    msgl__kernels_init_cpu(&e->kernels, level);
    const msgl_model_target target = {
        .kernels = &e->kernels, .moe = moe, .dtype = e->info.dtype, .act = MSGL_F32, .ranks = 1};
    code = msgl__model_build(&e->model, &target, err);
    if (code == 0) code = plan_memory(e, cfg, err);
    const int threads = cfg->num_threads > 0 ? cfg->num_threads : msgl__physical_cores();
    if (code == 0) code = msgl__pool_create(threads, &e->pool, err);
    if (code == 0) code = msgl__device_cpu_create(&e->device, err);
    if (code != 0) return code;
    msgl__comm_self_init(&e->comm);
    e->exec = (msgl_exec){
        .device = e->device, .act = e->model.target.act, .pool = e->pool, .scratch = &e->scratch};
    float *unused = msgl__reallocarray(NULL, (size_t)e->model.cfg.rope.dim, sizeof *unused);
    if (unused == NULL) return msgl__err_set(err, MSGL_ENOMEM, "engine: out of memory");
    e->rope_scale = msgl__rope_inv_freq(&e->model.cfg.rope, 0, unused);
    msgl__free(unused);
    code = create_kv(e, err);
    if (code == 0) code = take_workspace(e, err);
    if (code == 0) code = create_attention(e, err);
    if (code == 0) code = load_weights(e, cfg, err);
    if (code == 0) fill_info(e, cfg);
    return code;
}

int msgl__engine_create(const msgl_engine_config *cfg, msgl_engine **out, msgl_err *err)
{
    msgl_engine *e = msgl__calloc(1, sizeof *e);
    if (e == NULL) return msgl__err_set(err, MSGL_ENOMEM, "engine: out of memory");
    const int code = build(e, cfg, err);
    if (code != 0) {
        msgl__engine_destroy(e);
        return code;
    }
    e->runner = (msgl_runner){
        .ctx = e,
        .num_slots = MSGL_ENGINE_SLOTS,
        .write_tokens = msgl__engine_write_tokens,
        .submit = msgl__engine_submit,
        .wait = msgl__engine_wait,
    };
    *out = e;
    return 0;
}

void msgl__engine_destroy(msgl_engine *e)
{
    if (e == NULL) return;
    if (e->attn != NULL) e->attn->desc->destroy(e->attn);
    msgl__page_table_destroy(&e->page_table);
    for (int32_t i = e->num_blocks - 1; i >= 0; i--) {
        const msgl_block *b = &e->blocks[i];
        const msgl_device_ops *ops = e->device->ops;
        (b->host ? ops->host_free : ops->free)(e->device, b->p, b->bytes);
    }
    if (e->device != NULL) e->device->ops->destroy(e->device);
    if (e->pool != NULL) msgl__pool_destroy(e->pool);
    msgl__model_free(&e->model);
    msgl__free(e);
}

const msgl_engine_info *msgl__engine_info(const msgl_engine *e)
{
    return &e->info;
}

msgl_page_table *msgl__engine_page_table(msgl_engine *e)
{
    return &e->page_table;
}

const msgl_runner *msgl__engine_runner(msgl_engine *e)
{
    return &e->runner;
}
