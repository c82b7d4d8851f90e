// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "core/settings.h"
#include "engine/internal.h"
#include "utils/file.h"

void msgl__engine_print(const msgl_options *o, const char *line)
{
    if (o->log != NULL && line[0] != '\0') o->log(o->ctx, line);
}

void *msgl__engine_take(msgl_engine *e, size_t count, size_t size, bool host, int *code,
                        msgl_err *err)
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

// Ranks that share this host.
static int32_t ranks_here(const msgl_engine *e)
{
    return e->place.local > 0 ? e->place.local : 1;
}

static size_t available(const msgl_engine *e)
{
    const msgl_device *d = e->device;
    return d->on_host ? msgl__memory_available() : d->ops->available(e->device);
}

// For what runs behind the memory plan: what did not get its memory, though the plan seemed to
// leave some, says what is left and how to leave more.
static int explain_no_memory(const msgl_engine *e, int code, msgl_err *err)
{
    if (code != MSGL_ENOMEM) return code;
    const msgl_err what = *err;
    return msgl__err_set(err, code,
                         "%.300s; have %.0f MiB free; a smaller --num-pages, --memory-ratio or "
                         "--max-running-requests leaves more",
                         what.text, (double)available(e) / (1024.0 * 1024.0));
}

static size_t scratch_bytes(const msgl_engine *e)
{
    const size_t gemm = msgl__products_scratch(&e->model.products, &e->kernels, e->model.target.act,
                                               e->max_step_tokens, e->max_seqs, e->logits_rows);
    const size_t sample = e->kernels.sample.scratch_size(e->logits_rows, e->model.cfg.vocab_size);
    const size_t lora = msgl__engine_lora_scratch(e), most = gemm > sample ? gemm : sample;
    return (most > lora ? most : lora) + msgl__masked_bytes(e) + 4096;
}

// Breakers and mirostat's state, of each row.
static size_t chain_bytes(const msgl_engine *e)
{
    const size_t words = (size_t)msgl__mask_words(e);
    return ((size_t)e->max_running + 1) * (words * sizeof *e->dev.breakers + sizeof *e->dev.mu);
}

// Of the rows that get logits, where others are computed as far.
static size_t rows_bytes(const msgl_engine *e)
{
    if (!msgl__hidden_all_rows(e)) return 0;
    return msgl__activation_bytes((size_t)e->max_step_tokens, (size_t)e->model.cfg.hidden_size,
                                  e->model.target.act);
}

static size_t arena_bytes(const msgl_engine *e)
{
    return e->model.cfg.arch->family->workspace(&e->model, e->max_step_tokens, e->max_step_tokens) +
           msgl__logits_bytes(e) + msgl__pool_bytes(e) + rows_bytes(e) +
           msgl__engine_lora_arena(e) + 4096;
}

// What there is of every row of the page table.
static int take_tables(msgl_engine *e, msgl_err *err)
{
    int code = 0;
    msgl_engine_dev *d = &e->dev;
    const size_t rows = (size_t)e->max_running + 1;
    const size_t row = (size_t)e->token_stride * sizeof(int32_t);
    const size_t table_row = row / (size_t)e->info.cache.page_size;
    d->token_pool = msgl__engine_take(e, rows, row, false, &code, err);
    // Backends on the host read the scheduler's page tables themselves.
    for (int32_t i = 0; i < e->num_tables && !e->device->on_host; i++) {
        d->page_tables[i] = msgl__engine_take(e, rows, table_row, false, &code, err);
    }
    d->saved = msgl__engine_take(e, rows, row, false, &code, err);
    const size_t most = MSGL_MAX_LOGIT_BIAS;
    d->bias = msgl__engine_take(e, rows, most * sizeof *d->bias, false, &code, err);
    d->bias_saved = msgl__engine_take(e, rows, most * sizeof *d->bias_saved, false, &code, err);
    const size_t words = (size_t)msgl__mask_words(e) * sizeof *d->breakers;
    d->breakers = msgl__engine_take(e, rows, words, false, &code, err);
    d->mu = msgl__engine_take(e, rows, sizeof *d->mu, false, &code, err);
    return code;
}

// A draft model finds tokens and pages where its target has them. Samplers that keep something of a
// request are the target's alone.
static void share_tables(msgl_engine *e)
{
    const msgl_engine_dev *of = &e->parent->dev;
    e->dev.token_pool = of->token_pool;
    e->dev.page_tables[0] = of->page_tables[0];
}

static int take_workspace(msgl_engine *e, msgl_err *err)
{
    int code = 0;
    void *host = msgl__engine_take(e, 1, msgl__staging_host_bytes(e), true, &code, err);
    void *device = msgl__engine_take(e, 1, msgl__staging_device_bytes(e), false, &code, err);
    if (e->parent == NULL) { // a draft model finds tokens where its target has them
        e->writes = msgl__engine_take(e, MSGL_ENGINE_WRITES, sizeof *e->writes, true, &code, err);
    }
    const size_t arena = arena_bytes(e), scratch = scratch_bytes(e);
    void *arena_base = msgl__engine_take(e, 1, arena, false, &code, err);
    void *scratch_base = msgl__engine_take(e, 1, scratch, false, &code, err);
    if (code == 0 && e->parent == NULL) code = take_tables(e, err);
    if (code != 0) return code;
    msgl__staging_place(e, host, device);
    if (e->parent != NULL) share_tables(e);
    code = msgl__hidden_create(e, err);
    if (code != 0) return code;
    msgl__arena_init(&e->arena, arena_base, arena);
    msgl__arena_init(&e->scratch, scratch_base, scratch);
    return 0;
}

static void warn_seq_len(const msgl_options *o, int32_t decided, int32_t context)
{
    char line[160] = "";
    if (o->max_seq_len > decided) {
        snprintf(
            line, sizeof line,
            "warning: --max-seq-len-override %d is cut to %d, the tokens that the KV pool holds",
            o->max_seq_len, decided);
    } else if (o->max_seq_len > context) {
        snprintf(line, sizeof line,
                 "warning: --max-seq-len-override %d is beyond the %d tokens the model is made for",
                 o->max_seq_len, context);
    }
    msgl__engine_print(o, line);
}

static int32_t wanted_seq_len(const msgl_engine *e, const msgl_options *o)
{
    return o->max_seq_len > 0 ? o->max_seq_len : msgl__model_config_context(&e->model.cfg);
}

// Every rank opens the model's files itself: they have to be rank 0's.
static int check_files(const msgl_engine *e, const msgl_options *o, msgl_rank_plan *of_all,
                       msgl_err *err)
{
    if (e->model.target.ranks == 1) return 0;
    msgl_model_digest own;
    const int code = msgl__model_digest(o->model_dir, !o->dummy_weight, &own, err);
    if (code != 0) return code;
    if (e->place.rank == 0) of_all->files = own;
    const char *differs = own.config != of_all->files.config     ? "config.json differs"
                          : own.weights != of_all->files.weights ? "weights differ"
                                                                 : NULL;
    if (differs == NULL) return 0;
    return msgl__err_set(err, MSGL_EFORMAT, "%s: found another model than rank 0: %s",
                         msgl__path_shown(o->model_dir), differs);
}

// What its steps take beside the pools.
static size_t step_bytes(const msgl_engine *e)
{
    return arena_bytes(e) + scratch_bytes(e) + msgl__staging_device_bytes(e) +
           (e->parent == NULL ? chain_bytes(e) : 0) + msgl__hidden_bytes(e);
}

// The same in host memory, which counts where host and device are one.
static size_t staging_bytes(const msgl_engine *e)
{
    if (!e->device->on_host) return 0;
    const size_t writes = e->parent == NULL ? MSGL_ENGINE_WRITES * sizeof(msgl_token_write) : 0;
    return msgl__staging_host_bytes(e) + writes;
}

void msgl__engine_take_plan(msgl_engine *e, const msgl_memory_plan *p, int32_t first_group)
{
    for (int32_t g = 0; g < e->specs.count; g++) {
        const int32_t at = first_group + g;
        e->groups[g].pool = msgl__memory_plan_pool(p, at);
        e->info.span_bytes[p->span_of[at]] +=
            msgl__cache_unit_bytes(&p->specs.all[at], p->cache.page_size);
    }
    e->info.cache = p->cache;
    if (e->parent != NULL) e->info.cache.num_spans = 1;
    e->info.max_seq_len = p->max_seq_len;
    e->token_stride = msgl__row_places(p->max_seq_len, p->cache.page_size);
}

// What rank 0's plan says to the others: units by number mean the same on all of them, though they
// have not as many weights each.
static void share_units(msgl_rank_plan *of_all, const msgl_cache_layout *c)
{
    for (int32_t i = 0; i < c->num_spans; i++) of_all->num_units[i] = c->spans[i].num_units;
    of_all->draft_states = c->spans[c->num_spans - 1].draft_states;
}

static void take_units(const msgl_rank_plan *of_all, msgl_memory_plan *p)
{
    msgl_cache_layout *c = &p->cache;
    for (int32_t i = 0; i < c->num_spans; i++) c->spans[i].num_units = of_all->num_units[i];
    c->spans[c->num_spans - 1].draft_states = of_all->draft_states;
    p->units_given = true;
}

// The parts that only compute sizes: nothing large is allocated yet.
static int plan_memory(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    const msgl_model_config *m = &e->model.cfg;
    const bool on_host = e->device->on_host;
    const int32_t context = msgl__model_config_context(m);
    const size_t sharing = (size_t)(on_host ? ranks_here(e) * o->dp_size : e->sharing);
    msgl_rank_plan of_all = {.available = available(e) / sharing};
    int code = 0;
    int32_t least = 0; // rank with the least memory
    if (e->place.size > 1) {
        code = msgl__ranks_least_memory(&e->place, &of_all.available, &least, err);
    }
    if (code == 0 && e->place.rank > 0) {
        code = msgl__ranks_hear_plan(&e->place, &of_all, err);
        e->hidden.all_rows = of_all.all_rows != 0; // rank 0 has the head
    }
    if (code == 0) code = check_files(e, o, &of_all, err);
    if (code == 0) code = msgl__model_open(&e->model, o->model_dir, o->dummy_weight, err);
    if (code == 0) code = msgl__engine_lora_open(e, o, err);
    if (code != 0) return code;
    msgl_memory_plan p = {
        .available = of_all.available,
        .weight_bytes = e->model.plan.bytes,
        .weight_format = e->model.kept
                             ? (o->dummy_weight ? "as config.json says" : "as in the file")
                             : msgl__planned_format(&e->model.target.weights, false)->name,
        .step_bytes = step_bytes(e),
        .staging_bytes = staging_bytes(e),
        .specs = e->specs,
        .cache = e->info.cache,
        .max_prefill_tokens = e->info.max_prefill_tokens,
        .max_running = e->max_running,
        .max_step_tokens = e->max_step_tokens,
        .max_seq_len = wanted_seq_len(e, o),
        .memory_ratio = o->memory_ratio > 0 ? o->memory_ratio
                        : on_host           ? 0.4
                                            : 0.9,
        // A GPU has nothing else to do with its memory.
        .weights_ratio = on_host && !(o->memory_ratio > 0) ? 8 : 0,
        .mem_fraction =
            o->gpu_memory_utilization > 0 ? o->gpu_memory_utilization : o->mem_fraction_static,
        .whole = (on_host ? msgl__memory_whole() : e->device_props.total_bytes) / sharing,
        .with_workspace = o->gpu_memory_utilization > 0,
        .lazy = on_host,
    };
    for (int32_t g = 0; g < e->specs.count; g++) p.span_of[g] = e->groups[g].span;
    p.cache.spans[0].num_units = o->num_pages;
    if (e->place.rank > 0) take_units(&of_all, &p);
    if (e->draft != NULL) code = msgl__draft_model_plan(e->draft, o->model_dir, &p, err);
    if (code == 0) code = msgl__memory_plan(&p, err);
    if (code == MSGL_ENOMEM && e->place.others != NULL && least > 0) {
        const msgl_err what = *err;
        return msgl__err_set(err, code, "rank %d: %.300s", (int)least, what.text);
    }
    if (code == 0 && e->place.others != NULL) {
        share_units(&of_all, &p.cache);
        of_all.max_seq_len = p.max_seq_len;
        of_all.all_rows = msgl__hidden_all_rows(e);
        code = msgl__ranks_tell_plan(&e->place, &of_all, err);
    } else if (code == 0 && e->place.rank > 0 && p.max_seq_len != of_all.max_seq_len) {
        code = msgl__err_set(err, MSGL_EINTERNAL, "rank 0 plans for other lengths");
    }
    if (code != 0) return code;
    warn_seq_len(o, p.max_seq_len, context);
    if (o->log != NULL) msgl__memory_plan_print(&p, o->log, o->ctx);
    msgl__engine_take_plan(e, &p, 0);
    if (e->draft != NULL) msgl__draft_model_planned(e->draft, &p);
    e->info.weight_bytes = p.weight_bytes;
    e->info.kv_bytes = p.kv_bytes;
    e->info.workspace_bytes = p.step_bytes + p.staging_bytes + p.table_bytes;
    return 0;
}

typedef struct load_progress {
    const msgl_options *options;
} load_progress;

static void on_load(void *ctx, uint64_t done, uint64_t total)
{
    const msgl_options *o = ((load_progress *)ctx)->options;
    o->progress(o->ctx, "weights", done, total);
}

static int load_model(msgl_engine *e, msgl_model *m, const msgl_options *o, msgl_err *err)
{
    int code = 0;
    void *region = msgl__engine_take(e, 1, m->plan.bytes, false, &code, err);
    if (code != 0) return code;
    load_progress p = {.options = o};
    msgl_exec x = e->exec;
    if (e->loaders != NULL) x.pool = e->loaders;
    const size_t bytes = m->plan.bytes;
    const bool files = !m->dummy && m == &e->model;
    if (files) e->weights.digest.weights = msgl__checkpoint_digest(m->checkpoint);
    code = msgl__model_load(m, region, &x, o->progress != NULL ? on_load : NULL, &p, err);
    e->exec.status = x.status;
    if (code != 0 || m != &e->model) return code;
    return msgl__engine_weights_opened(e, o, region, bytes, err);
}

static int load_weights(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    if (o->collapsed_routing && e->model.products.num_experts == 0) {
        return msgl__err_set(err, MSGL_EINVAL, "collapsed routing: the model has no experts");
    }
    e->model.plan.collapsed = o->collapsed_routing;
    const int code = e->ends.plan.bytes > 0 ? load_model(e, &e->ends, o, err) : 0;
    return code == 0 ? load_model(e, &e->model, o, err) : code;
}

static void fill_info(msgl_engine *e)
{
    msgl_engine_info *i = &e->info;
    const msgl_model_config *m = &e->model.cfg;
    i->vocab_size = m->vocab_size;
    i->max_running = e->max_running;
    i->num_pages = i->cache.spans[0].num_units;
    i->page_size = i->cache.page_size;
    const msgl_products *products = &e->model.products;
    i->num_experts = products->num_experts > 0 ? products->experts[0]->experts.num_experts : 0;
    i->embed_bytes = m->tie_embeddings ? 0 : msgl__weight_bytes(&e->model.embed);
    i->num_eos = m->num_eos;
    memcpy(i->eos_ids, m->eos_ids, sizeof i->eos_ids);
    msgl__groups_describe(e, i->attention, sizeof i->attention);
    if (e->plugin != &msgl__cpu_plugin) {
        snprintf(i->device, sizeof i->device, "%.24s:%d %.90s", e->plugin->name, e->ordinal,
                 e->device_props.name);
    } else {
        snprintf(i->device, sizeof i->device, "cpu %s, %d threads",
                 msgl__cpu_level_name(e->kernels.level), msgl__pool_threads(e->threads));
    }
    snprintf(i->architecture, sizeof i->architecture, "%s", m->arch->name);
    i->sampling = m->sampling;
    i->no_prefix_sharing =
        m->arch->family->encodes || msgl__rope_by_length(&m->ropes[0], e->info.max_seq_len);
}

// Where to keep algorithms chosen by measurement: $XDG_CACHE_HOME/minisgl or ~/.cache/minisgl, made
// if it is missing. False when neither variable is set.
static bool cache_folder(char *out, size_t size)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const bool own = xdg != NULL && xdg[0] == '/';
    if (!own && (home == NULL || home[0] != '/')) return false;
    const int base = snprintf(out, size, "%s%s", own ? xdg : home, own ? "" : "/.cache");
    if (base >= (int)size - (int)sizeof "/minisgl") return false;
    (void)mkdir(out, 0755); // whoever writes there reports what is wrong with it
    snprintf(out + base, size - (size_t)base, "/minisgl");
    (void)mkdir(out, 0755);
    return true;
}

// The device with its kernels, and the threads of the host.
static int open_device(msgl_engine *e, const msgl_options *o, struct msgl_heartbeat *heartbeat,
                       msgl_err *err)
{
    msgl_device_choice choice;
    char cache[512];
    // Engines beside this one take devices before it, or behind it.
    const int32_t here = ranks_here(e);
    int code = msgl__device_choose(o->device, o->dp_rank * here + e->place.local_rank,
                                   o->dp_size * here, &choice, err);
    if (code != 0) return code;
    const msgl_plugin *plugin = choice.plugin;
    const bool measures = plugin != &msgl__cpu_plugin; // and keeps what it found
    const msgl_device_options options = {
        .ordinal = choice.ordinal,
        .deterministic = e->deterministic,
        .cache_dir = measures && cache_folder(cache, sizeof cache) ? cache : NULL,
        .cpu_level = o->cpu_level,
    };
    e->plugin = plugin;
    e->ordinal = choice.ordinal;
    e->sharing = choice.sharing;
    code = plugin->kernels(&options, &e->kernels, err);
    if (code != 0) return code;
    msgl__engine_print(o, choice.note);
    code = plugin->open(&options, &e->device, &e->device_props, err);
    if (code != 0) return code;
    int threads = o->threads > 0 ? o->threads : msgl__physical_cores() / (here * o->dp_size);
    if (threads < 1) threads = 1;
    if (e->device->on_host) {
        code = msgl__pool_create(threads, &e->threads, err);
        if (code == 0) msgl__pool_set_heartbeat(e->threads, heartbeat);
        return code;
    }
    // The device computes; the host's cores read weights, whose layouts they change, and are done.
    enum { MOST = 16 }; // more are not faster than memory
    code = msgl__pool_create(1, &e->threads, err);
    if (code == 0) code = msgl__pool_create(threads < MOST ? threads : MOST, &e->loaders, err);
    if (code != 0) return code;
    msgl__pool_set_heartbeat(e->threads, heartbeat);
    msgl__pool_set_heartbeat(e->loaders, heartbeat);
    return 0;
}

static void choose_limits(msgl_engine *e, const msgl_options *o)
{
    const bool on_host = e->device->on_host;
    e->max_running = o->max_running;
    e->topk = o->speculative_eagle_topk;
    e->info.max_prefill_tokens = o->max_prefill_tokens;
    e->max_step_tokens = o->max_prefill_tokens + o->max_running; // chunks beside answers
    const int32_t context = msgl__model_config_context(&e->model.cfg);
    // A whole text of any length, by itself.
    if (e->model.cfg.arch->family->encodes && context > e->max_step_tokens) {
        e->max_step_tokens = context;
    }
    // Mini-SGLang's defaults, but for its 80 GB: a card of 80 GB has less, and 256 clients need
    // them.
    const bool large = e->device_props.free_bytes > (size_t)40 << 30;
    e->graph_max_bs = o->graph_max_bs >= 0 ? o->graph_max_bs : large ? 256 : 160;
    if (e->info.pooling != MSGL_POOL_NONE) e->graph_max_bs = 0; // nothing is decoded
    e->logits_rows = on_host ? 64 : 256;
    if (!on_host && e->graph_max_bs > e->logits_rows) e->logits_rows = e->graph_max_bs;
}

// A dtype's setting; auto: `otherwise`.
static msgl_dtype dtype_of(const char *setting, msgl_dtype otherwise)
{
    msgl_dtype t = otherwise;
    if (strcmp(setting, "auto") != 0) (void)msgl__dtype_parse(setting, &t); // the table allows it
    return t;
}

// A GPU's attention wants keys and values in the activations' dtype, or E4M3 beside bf16.
static int choose_cache(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    e->kv_dtype = dtype_of(o->kv_cache_dtype, e->info.dtype);
    const bool bf16 = e->info.dtype == MSGL_BF16;
    if (e->device->on_host || e->kv_dtype == e->info.dtype) return 0;
    if (e->kv_dtype == MSGL_E4M3 && bf16) return 0;
    const char *act = msgl__dtype_name(e->info.dtype);
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "--kv-cache-dtype %s: not on this device with --dtype %s; allowed: %s%s",
                         o->kv_cache_dtype, act, act, bf16 ? " or fp8_e4m3" : "");
}

// Whether weights can be stored so. Of dtypes a device with memory of its own multiplies only that
// of its activations.
static bool weights_fit(const msgl_engine *e, const msgl_wformat *f)
{
    // q4 has two places in a CPU's table: with f32 no activation is rounded, so W_BLOCKS.
    const msgl_wformat_id other = e->info.dtype == MSGL_F32 ? MSGL_W_CODES : MSGL_W_BLOCKS;
    const bool two = e->kernels.gemm.formats[MSGL_W_BLOCKS].name != NULL;
    if (f->name == NULL || (two && f->id == other)) return false;
    return e->device->on_host || f->dtype == e->info.dtype || f->dtype == MSGL_DTYPE_COUNT;
}

// Format `i` of those that --weight-dtype can name, of the kernels' table and then of the plug-in;
// NULL: there are no more.
static const msgl_wformat *weight_format(const msgl_engine *e, int i)
{
    if (i < MSGL_WFORMATS) return &e->kernels.gemm.formats[i];
    return e->plugin->formats != NULL ? e->plugin->formats[i - MSGL_WFORMATS] : NULL;
}

// The format that --weight-dtype names.
static int choose_weights(const msgl_engine *e, const msgl_options *o, msgl_weight_formats *out,
                          msgl_err *err)
{
    const char *act = msgl__dtype_name(e->info.dtype);
    const bool any = strcmp(o->weight_dtype, "auto") == 0;
    const char *name = any ? act : o->weight_dtype;
    char allowed[160] = "auto";
    const msgl_wformat *f;
    for (int i = 0; (f = weight_format(e, i)) != NULL; i++) {
        if (!weights_fit(e, f)) continue;
        if (strcmp(f->name, name) == 0) {
            *out = (msgl_weight_formats){
                .kernels = &e->kernels.gemm, .dtype = e->info.dtype, .converted = f, .keeps = any};
            return 0;
        }
        const size_t used = strlen(allowed);
        snprintf(allowed + used, sizeof allowed - used, ", %.24s", f->name);
    }
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "--weight-dtype %.40s: not on this device with --dtype %s; allowed: %s",
                         name, act, allowed);
}

// What is measured or recorded before the first step: products' kernels, decode graphs.
static int warm_up(msgl_engine *e, msgl_err *err)
{
    if (e->device->on_host) return 0;
    const int32_t rank = e->place.rank, ranks = e->model.target.ranks;
    int code = ranks > 1 && rank > 0 ? msgl__engine_share_choices(e, err) : 0;
    if (code != 0) return code;
    msgl__products_tune(&e->model.products, &e->kernels, &e->exec, &e->arena, e->kv_dtype,
                        e->graph_max_bs, e->info.max_prefill_tokens);
    if (e->exec.status != 0) return msgl__err_set(err, e->exec.status, "%s", e->device->fault.text);
    if (ranks > 1 && rank == 0) code = msgl__engine_share_choices(e, err);
    if (code != 0) return code;
    return msgl__graphs_capture(e, e->graph_max_bs, err);
}

// Everything that takes the memory which the plan has shared out.
static int take_memory(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    int code = msgl__groups_create_memory(e, err);
    if (code == 0) code = take_workspace(e, err);
    if (code == 0) code = msgl__groups_create_attention(e, err);
    if (code == 0) code = load_weights(e, o, err);
    if (code == 0) code = warm_up(e, err);
    return code;
}

// The model's experts want grouped products, which read whole vectors on a GPU.
static int check_experts(const msgl_engine *e, msgl_err *err)
{
    enum { COLUMNS = 8 }; // that kernels of a GPU read at once
    const msgl_model_target *t = &e->model.target;
    const msgl_products *products = &e->model.products;
    for (int32_t i = 0;
         i < products->num_experts && t->weights.dtype != MSGL_F32 && !e->device->on_host; i++) {
        const int32_t columns = products->experts[i]->experts.down[0].k;
        if (columns % COLUMNS == 0) continue;
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "experts with %d intermediate values on each of %d ranks: allowed on "
                             "GPUs in %s: a multiple of %d",
                             (int)columns, (int)t->ranks, msgl__dtype_name(t->weights.dtype),
                             COLUMNS);
    }
    return 0;
}

// How prompts are computed is the backends' and decides on weights.
static int build_model(msgl_engine *e, msgl_err *err)
{
    msgl_model_target target = e->model.target;
    target.prompts = e->prompts;
    return msgl__model_build(&e->model, &target, err);
}

static void say_experts(const msgl_engine *e, const msgl_options *o)
{
    const int32_t parts = e->model.target.expert_ranks;
    char line[96];
    if (o->ep_size > 0 || e->model.cfg.decoder.num_experts == 0) return;
    snprintf(line, sizeof line, "experts: each process has %s (--ep-size %d)",
             parts > 1 ? "whole ones" : "a part of every one", (int)parts);
    msgl__engine_print(o, line);
}

// Which rank this is; rank 0 starts the others as soon as the model is known to be one that they
// can share, and while this process has no threads.
static int take_place(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    e->model.target.ranks = e->place.size > 0 ? e->place.size : o->tp_size;
    const int32_t ranks = e->model.target.ranks;
    e->model.target.expert_ranks = o->ep_size;
    const int code =
        msgl__model_check_ranks(&e->model.cfg, ranks, &e->model.target.expert_ranks, err);
    if (code != 0 || ranks == 1 || e->place.size > 0) return code;
    say_experts(e, o);
    return msgl__ranks_start(o, &e->place, err);
}

// What the model's folder is, without its weights; role: of a draft model, else NULL.
static int open_folder(msgl_engine *e, const msgl_options *o, const msgl_draft_role *role,
                       const msgl_moe_desc **moe, msgl_err *err)
{
    msgl_model_config *c = &e->model.cfg;
    int code = role == NULL ? msgl__options_check(o, err) : 0;
    if (code == 0) {
        code = role != NULL && role->in_target
                   ? msgl__model_config_load_mtp(o->model_dir, role->ahead, c, err)
                   : msgl__model_config_load(o->model_dir, c, err);
    }
    if (code == 0 && role == NULL && c->decoder.head.kind != MSGL_HEAD_NONE) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s is a draft head (%s) and no model; allowed: as "
                             "--speculative-draft-model-path",
                             msgl__path_shown(o->model_dir), c->arch->name);
    }
    if (code == 0) code = msgl__pool_choose(e, o, err);
    if (code == 0) code = msgl__moe_select(o->moe_backend, moe, err);
    if (code == 0) e->info.dtype = dtype_of(o->dtype, c->dtype);
    e->deterministic = o->deterministic;
    e->returns_hidden = o->return_hidden_states && e->info.pooling == MSGL_POOL_NONE;
    return code;
}

// On its device: who computes what, and how large everything is.
static int choose(msgl_engine *e, const msgl_options *o, const msgl_moe_desc *moe, msgl_err *err)
{
    choose_limits(e, o);
    // Three choices: none of K and V, weights and activations has to have the others' type.
    msgl_weight_formats weights;
    int code = choose_cache(e, o, err);
    if (code == 0) code = choose_weights(e, o, &weights, err);
    if (code != 0) return code;
    e->model.target = (msgl_model_target){
        .kernels = &e->kernels,
        .moe = moe,
        .weights = weights,
        .act = e->device->on_host ? MSGL_F32 : e->info.dtype,
        .capability = e->device->capability,
        .rank = e->place.rank,
        .ranks = e->model.target.ranks,
        .expert_ranks = e->model.target.expert_ranks,
        .of = e->model.target.of,
    };
    code = msgl__groups_choose(e, o, wanted_seq_len(e, o), err);
    if (code == 0) code = msgl__drafts_choose(e, o, err);
    e->max_step_tokens += e->parent != NULL ? e->parent->max_drafts : e->max_drafts;
    if (e->parent != NULL && e->topk > 1) e->max_drafts = e->parent->max_drafts;
    e->max_samples = e->max_running + e->max_drafts;
    e->max_seqs = e->max_running + (e->draft_rows != MSGL_ROWS_CHUNK ? e->max_drafts : 0);
    if (code == 0) code = build_model(e, err);
    return code == 0 ? check_experts(e, err) : code;
}

static int start(msgl_engine *e, const msgl_options *o, msgl_err *err)
{
    e->exec = (msgl_exec){.device = e->device,
                          .act = e->model.target.act,
                          .pool = e->threads,
                          .scratch = &e->scratch,
                          .prompts_only = e->info.pooling != MSGL_POOL_NONE};
    int code = take_memory(e, o, err);
    if (code == 0 && e->draft != NULL) code = msgl__draft_model_start(e->draft, err);
    if (e->loaders != NULL && e->parent == NULL) msgl__pool_destroy(e->loaders);
    e->loaders = NULL;
    return explain_no_memory(e, code, err);
}

static int build(msgl_engine *e, const msgl_options *o, struct msgl_heartbeat *heartbeat,
                 msgl_err *err)
{
    const msgl_moe_desc *moe = NULL;
    int code = open_folder(e, o, NULL, &moe, err);
    if (code == 0) code = take_place(e, o, err);
    if (code == 0) code = open_device(e, o, heartbeat, err);
    if (code == 0) code = choose(e, o, moe, err);
    if (code == 0) code = msgl__draft_model_open(e, o, err);
    if (code == 0) code = plan_memory(e, o, err);
    if (code != 0) return code;
    code = msgl__engine_connect(e, o, heartbeat, err);
    if (code == MSGL_EPEER && e->place.others != NULL) code = msgl__ranks_explain(&e->place, err);
    if (code != 0) return code;
    code = start(e, o, err);
    if (code == 0 && e->place.others != NULL) code = msgl__ranks_wait_ready(&e->place, err);
    if (code == 0) fill_info(e);
    return code;
}

// Layers of some models read the tokens' ids, too.
static bool takes_embeds(const msgl_engine *e)
{
    const msgl_decoder_config *d = &e->model.cfg.decoder;
    const bool read = d->per_layer_dim > 0 || d->ngrams.size > 0 || d->names.table != NULL;
    return e->info.pooling == MSGL_POOL_NONE && !e->model.cfg.arch->family->encodes && !read;
}

static void set_runner(msgl_engine *e)
{
    e->runner = (msgl_runner){
        .ctx = e,
        .max_in_flight = MSGL_ENGINE_STEP_SLOTS,
        // Rows that a product begins at once: of a packed panel, of a tile of tensor cores.
        .tile = e->device->on_host ? 8 : 128,
        .cut = msgl__states_cut(e),
        .whole_prompts = e->model.cfg.arch->family->encodes,
        .max_drafts = e->max_drafts,
        .max_propose = e->draft != NULL ? msgl__draft_model_most(e->draft) : 0,
        .max_adapters = msgl__engine_adapters(e),
        .max_row_values = msgl__row_values_most(e),
        .hidden_size = e->returns_hidden ? e->model.cfg.hidden_size : 0,
        .embed_size = takes_embeds(e) ? e->model.cfg.hidden_size : 0,
        .write_tokens = msgl__engine_write_tokens,
        .write_extra = msgl__engine_write_extra,
        .load_adapter = e->lora != NULL ? msgl__engine_load_adapter : NULL,
        .adapter_loaded = e->lora != NULL ? msgl__engine_adapter_loaded : NULL,
        .submit = msgl__engine_submit,
        .wait = msgl__engine_wait,
        .fault = msgl__engine_fault,
    };
}

static int create(const msgl_options *o, struct msgl_heartbeat *heartbeat,
                  const msgl_rank_place *place, msgl_engine **out, msgl_err *err)
{
    msgl_engine *e = msgl__calloc(1, sizeof *e);
    if (e == NULL) return msgl__err_set(err, MSGL_ENOMEM, "engine: out of memory");
    e->heartbeat = heartbeat;
    if (place != NULL) e->place = *place;
    const int code = build(e, o, heartbeat, err);
    if (code != 0) {
        msgl__engine_destroy(e);
        return code;
    }
    set_runner(e);
    *out = e;
    return 0;
}

// A head takes what it shares with its target from there, or on several ranks, which have shards,
// from a copy of its own, which the first of several heads has for all.
static int take_ends(msgl_engine *e, const msgl_draft_role *role, msgl_err *err)
{
    const msgl_head_config *head = &e->model.cfg.decoder.head;
    const msgl_model *target = &e->parent->model;
    if (head->kind == MSGL_HEAD_NONE) return 0;
    msgl__hidden_of_head(e);
    const bool copies = target->target.ranks > 1 && role->first == NULL;
    e->model.target.of = role->first != NULL ? role->first->model.target.of
                         : copies            ? &e->ends
                                             : target;
    return copies ? msgl__model_build_ends(&e->ends, target, head, err) : 0;
}

int msgl__engine_open_draft(const msgl_engine *parent, const msgl_options *o,
                            const msgl_draft_role *role, msgl_engine **out, msgl_err *err)
{
    msgl_engine *e = *out = msgl__calloc(1, sizeof *e);
    if (e == NULL) return msgl__err_set(err, MSGL_ENOMEM, "draft model: out of memory");
    e->parent = parent;
    e->shift = role->head ? 1 + role->ahead : 0;
    e->device = parent->device;
    e->device_props = parent->device_props;
    e->plugin = parent->plugin;
    e->kernels = parent->kernels;
    e->threads = parent->threads;
    e->loaders = parent->loaders;
    e->ordinal = parent->ordinal;
    e->sharing = parent->sharing;
    e->first_event = MSGL_ENGINE_EVENTS + role->ahead * MSGL_ENGINE_STEP_SLOTS; // steps' alone
    e->model.target.ranks = e->model.target.expert_ranks = 1;
    msgl__comm_self_init(&e->alone);
    e->comm = &e->alone;
    const msgl_moe_desc *moe = NULL;
    int code = open_folder(e, o, role, &moe, err);
    if (code == 0) code = take_ends(e, role, err);
    return code == 0 ? choose(e, o, moe, err) : code;
}

int msgl__engine_add_sizes(const msgl_engine *draft, msgl_memory_plan *p, msgl_err *err)
{
    if (p->specs.count + draft->specs.count > MSGL_MAX_GROUPS) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "the models' layers keep %d different caches; allowed: %d",
                             (int)(p->specs.count + draft->specs.count), MSGL_MAX_GROUPS);
    }
    for (int32_t g = 0; g < draft->specs.count; g++) {
        p->span_of[p->specs.count] = 0;
        p->specs.all[p->specs.count++] = draft->specs.all[g];
    }
    const size_t bytes = draft->ends.plan.bytes + draft->model.plan.bytes;
    p->draft_bytes += bytes;
    p->weight_bytes += bytes;
    p->step_bytes += step_bytes(draft);
    p->staging_bytes += staging_bytes(draft);
    return 0;
}

int msgl__engine_start_draft(msgl_engine *draft, const msgl_options *o, msgl_err *err)
{
    draft->loaders = draft->parent->loaders;
    const int code = start(draft, o, err);
    if (code != 0) return code;
    fill_info(draft);
    set_runner(draft);
    return 0;
}

int msgl__engine_create(const msgl_options *o, struct msgl_heartbeat *heartbeat, msgl_engine **out,
                        msgl_err *err)
{
    return create(o, heartbeat, NULL, out, err);
}

int msgl__engine_create_rank(const msgl_options *o, const msgl_rank_place *place, msgl_engine **out,
                             msgl_err *err)
{
    return create(o, NULL, place, out, err);
}

void msgl__engine_destroy(msgl_engine *e)
{
    if (e == NULL) return;
    msgl__draft_model_destroy(e->draft);
    msgl__engine_drain(e);
    msgl__graphs_destroy(e); // first: NCCL does not end while a graph has its calls
    if (e->parent == NULL) msgl__engine_disconnect(e);
    msgl__engine_lora_close(e);
    msgl__engine_weights_free(e);
    msgl__groups_destroy(e);
    for (int32_t i = e->num_blocks - 1; i >= 0; i--) {
        const msgl_block *b = &e->blocks[i];
        const msgl_device_ops *ops = e->device->ops;
        (b->host ? ops->host_free : ops->free)(e->device, b->p, b->bytes);
    }
    if (e->device != NULL && e->parent == NULL) e->device->ops->destroy(e->device);
    if (e->threads != NULL && e->parent == NULL) msgl__pool_destroy(e->threads);
    if (e->loaders != NULL && e->parent == NULL) msgl__pool_destroy(e->loaders);
    msgl__model_free(&e->model);
    msgl__model_free(&e->ends);
    msgl__free(e);
}

const msgl_engine_info *msgl__engine_info(const msgl_engine *e)
{
    return &e->info;
}

msgl_page_table *msgl__engine_page_tables(msgl_engine *e)
{
    return e->page_tables;
}

msgl_admin_calls msgl__engine_admin_calls(msgl_engine *e)
{
    return (msgl_admin_calls){
        .ctx = e, .admin = msgl__engine_admin, .state = msgl__engine_admin_state};
}

const msgl_runner *msgl__engine_runner(msgl_engine *e)
{
    return &e->runner;
}
