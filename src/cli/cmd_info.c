// SPDX-License-Identifier: Apache-2.0
//
// `minisgl info`: what this machine has, the state of each plug-in, which attention backends there
// are and why one cannot run here, and, with --model, the model's shape and what its files hold.
#include <string.h>
#include <unistd.h>

#include "attention/attention.h"
#include "cli/common.h"
#include "core/attributes.h"
#include "core/err.h"
#include "kernel/cuda_loader.h"
#include "models/arch.h"
#include "models/contents.h"
#include "models/model.h"

static void page_rule(const msgl_attn_desc *d, char *out, size_t size)
{
    size_t n = 0;
    if (d->page_rule == MSGL_PAGE_ANY) {
        snprintf(out, size, "any");
    } else if (d->page_rule == MSGL_PAGE_FLATTENED) {
        snprintf(out, size, "any (as 1)");
    } else {
        out[0] = '\0';
        for (int i = 0; i < MSGL_ATTN_MAX_SET && d->page_sizes[i] != 0 && n < size; i++) {
            n += (size_t)snprintf(out + n, size - n, "%s%d", i > 0 ? " " : "", d->page_sizes[i]);
        }
    }
}

static bool latent_only(const msgl_attn_desc *d)
{
    return d->caches == 1u << MSGL_CACHE_LATENT;
}

static const char *latent(const msgl_attn_desc *d)
{
    return latent_only(d) ? "only" : (d->caches & 1u << MSGL_CACHE_LATENT) != 0 ? "yes" : "no";
}

static void head_dims(const msgl_attn_desc *d, char *out, size_t size)
{
    size_t n = 0;
    if (d->head_dims[0] == 0) {
        snprintf(out, size, "8..%d", latent_only(d) ? MSGL_ATTN_MAX_LATENT : MSGL_ATTN_MAX_DIM);
        return;
    }
    for (int i = 0; i < MSGL_ATTN_MAX_SET && d->head_dims[i] != 0 && n < size; i++) {
        n += (size_t)snprintf(out + n, size - n, "%s%d", i > 0 ? " " : "", d->head_dims[i]);
    }
}

// The GPU that `auto` would take, or why there is none.
typedef struct gpu {
    bool usable;
    msgl_cuda_props props;
    msgl_err why; // it is not usable
} gpu;

// What the engine would need of this backend for a group of layers. Without a model (NULL) it is
// what most models need.
static msgl_attn_needs needs_of(const msgl_attn_desc *d, const msgl_model_config *model,
                                int32_t group, const gpu *g, msgl_device_kind kind)
{
    const msgl_attn_choice alone = msgl__attn_alone(d, kind);
    const msgl_dtype dtype = model != NULL ? model->dtype : MSGL_BF16;
    msgl_attn_needs n = {.device = kind,
                         .num_q_heads = model != NULL ? model->num_heads : 1,
                         .num_kv_heads = 1,
                         .head_dim = 128,
                         .page_size = msgl__attn_page_size(&alone, 1, NULL),
                         .act = kind == MSGL_DEVICE_CPU ? MSGL_F32 : dtype,
                         .kv_dtype = dtype};
    if (kind == MSGL_DEVICE_CUDA) n.capability = g->props.capability;
    if (model == NULL && latent_only(d)) { // of DeepSeek's models
        n.cache = MSGL_CACHE_LATENT;
        n.head_dim = 576;
        n.v_dim = 512;
    }
    if (model == NULL && d->dual_chunk) n.dual_len = 7168; // of Qwen2.5-Turbo's
    if (model == NULL) return n;
    n.dual_len = model->ropes[0].dual.len;
    msgl_cache_specs specs;
    msgl__model_caches(model, 1, dtype, n.act, &specs);
    n.cache = specs.all[group].kind;
    n.num_kv_heads = specs.all[group].num_heads;
    n.head_dim = specs.all[group].k_dim;
    n.v_dim = specs.all[group].v_dim;
    n.variants = msgl__model_variants(model, group);
    return n;
}

// Whether the backend can attend over every group of the model.
static bool supports(const msgl_attn_desc *d, const msgl_model_config *model, const gpu *g,
                     msgl_device_kind kind, msgl_err *why)
{
    msgl_cache_specs specs = {.count = 1};
    if (model != NULL) msgl__model_caches(model, 1, model->dtype, model->dtype, &specs);
    for (int32_t i = 0; i < specs.count; i++) {
        const msgl_attn_needs needs = needs_of(d, model, i, g, kind);
        if (needs.cache == MSGL_CACHE_STATE) continue;
        if (msgl__attn_supports(d, &needs, why) != 0) return false;
    }
    return true;
}

static bool runs_here(const msgl_attn_desc *d, const msgl_model_config *model, const gpu *g,
                      msgl_device_kind kind, msgl_err *why)
{
    if (kind == MSGL_DEVICE_CPU || g->usable) return supports(d, model, g, kind, why);
    *why = g->why;
    return false;
}

// Prints a row for each backend of this kind of device, from its descriptor.
static void backends(const msgl_model_config *model, const gpu *g, msgl_device_kind kind,
                     msgl_rows *rows)
{
    int count;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    for (int i = 0; i < count; i++) {
        const msgl_attn_desc *d = all[i];
        if ((d->devices & 1u << kind) == 0) continue;
        char pages[64], dims[64];
        page_rule(d, pages, sizeof pages);
        head_dims(d, dims, sizeof dims);
        msgl_err why;
        const bool runs = runs_here(d, model, g, kind, &why);
        const msgl_cell cells[] = {
            msgl__cell_text("device", kind == MSGL_DEVICE_CUDA ? "cuda" : "cpu"),
            msgl__cell_text("backend", d->name),
            msgl__cell_text("what", d->summary),
            msgl__cell_text("page size", pages),
            msgl__cell_text("head dim", dims),
            msgl__cell_text("latent", latent(d)),
            msgl__cell_text("window", d->sliding_window ? "yes" : "no"),
            msgl__cell_text("local", d->local_chunks ? "yes" : "no"),
            msgl__cell_text("soft cap", d->softcap ? "yes" : "no"),
            msgl__cell_text("fp8 cache", (d->kv_dtypes & 1u << MSGL_E4M3) != 0 ? "yes" : "no"),
            msgl__cell_text("sinks", d->sinks ? "yes" : "no"),
            msgl__cell_text("graph", d->graph ? "yes" : "no"),
            msgl__cell_text("here", runs ? "yes" : why.text),
        };
        msgl__cli_row(rows, cells, (int)MSGL_COUNT(cells));
    }
}

static void gpus(gpu *g, bool print)
{
    const msgl_cuda_api *api = msgl__cuda_api_open(&g->why);
    const int count = api != NULL ? api->device_count(&g->why) : 0;
    for (int i = 0; i < count; i++) {
        msgl_cuda_props p;
        msgl_err err;
        const bool usable = api->props(i, &p, &err) == 0;
        if (i == 0) {
            g->usable = usable;
            if (usable) g->props = p;
            if (!usable) g->why = err;
        }
        if (print && usable) {
            printf("gpu      cuda:%d %s, compute capability %d.%d, %d SMs, %.1f of %.1f GB free, "
                   "driver for CUDA %d.%d\n",
                   i, p.name, (int)p.capability / 10, (int)p.capability % 10, (int)p.sm_count,
                   (double)p.free_bytes / 1e9, (double)p.total_bytes / 1e9, (int)p.driver / 1000,
                   (int)p.driver % 1000 / 10);
        } else if (print) {
            printf("gpu      cuda:%d %s\n", i, err.text);
        }
    }
    if (!print || count > 0) return;
    const bool news = msgl__cuda_has_driver(); // else there is none, whatever plug-ins say
    printf("gpu      none%s%s\n", news ? " used: " : "", news ? g->why.text : "");
}

// Prints each plug-in and whether it opens, or why not; without a GPU, and unless all_lines, one
// line.
static void plugins(bool all_lines)
{
    if (!all_lines && !msgl__cuda_has_driver() && msgl__cuda_api_open(NULL) == NULL) {
        printf("plug-ins none, which GPUs alone need (docs/gpu.md)\n");
        return;
    }
    int count;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    msgl_err why;
    const msgl_cuda_api *api = msgl__cuda_api_open(&why);
    if (api != NULL) printf("plug-in  minisgl-cuda.so: %s\n", api->build);
    if (api == NULL) printf("plug-in  %s\n", why.text);
    const char *last = "minisgl-cuda.so";
    for (int i = 0; i < count; i++) {
        const msgl_attn_desc *d = all[i];
        if ((d->devices & 1u << MSGL_DEVICE_CUDA) == 0 || d->plugin == NULL ||
            strcmp(d->plugin, "minisgl-cuda.so") == 0 || strcmp(d->plugin, last) == 0) {
            continue;
        }
        const bool opens = msgl__plugin_open(d->plugin, NULL, &why) != NULL;
        printf("plug-in  %s%s\n", opens ? d->plugin : why.text, opens ? ": opens" : "");
        last = d->plugin;
    }
}

static void hardware(void)
{
    const msgl_cpu_level level = msgl__cpu_level_detect();
    char model[128] = "unknown CPU", line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            snprintf(model, sizeof model, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
            break;
        }
    }
    if (f != NULL) fclose(f);
    printf("minisgl %s\n", msgl_version());
    printf("cpu      %s, %d physical cores, kernels %s\n", model, msgl__physical_cores(),
           msgl__cpu_level_name(level));
    printf("memory   %.1f GB\n",
           (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) / 1e9);
}

static void print_model(const char *dir, const msgl_model_config *c)
{
    msgl_cache_specs specs;
    printf("model    %s\n"
           "         %s, %d layers, hidden %d, %d heads (%d KV) of %d,\n"
           "         vocabulary %d, context %d, %s\n",
           dir, c->arch->name, c->num_layers, c->hidden_size, c->num_heads, c->num_kv_heads,
           c->head_dim, c->vocab_size, msgl__model_config_context(c), msgl__dtype_name(c->dtype));
    msgl__model_caches(c, 1, c->dtype, c->dtype, &specs);
    for (int32_t g = 0; g < specs.count; g++) {
        const msgl_cache_spec *s = &specs.all[g];
        if (s->kind != MSGL_CACHE_STATE) continue;
        printf("states   %d layer%s of linear attention, %.2f MiB a request\n", s->num_layers,
               s->num_layers == 1 ? "" : "s",
               (double)s->num_layers * (double)s->state_bytes / (1024.0 * 1024.0));
    }
}

// ---- for people ----

enum { WIDTH = 100, NAMES = 23, WHAT = 64 };

// Prints a summary in `room` columns: all of it, or as much as ends before a comma, colon or
// semicolon.
static void put_summary(const char *text, int room)
{
    int n = (int)strlen(text);
    for (int i = n <= room ? -1 : room; i >= 0; i--) {
        if (i > 0 && text[i] != ',' && text[i] != ':' && text[i] != ';') continue;
        n = i;
        break;
    }
    printf("%.*s\n", n, text);
}

static const msgl_attn_desc *find_backend(const char *name, msgl_device_kind kind)
{
    int count;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    for (int i = 0; i < count; i++) {
        if ((all[i]->devices & 1u << kind) != 0 && strcmp(all[i]->name, name) == 0) return all[i];
    }
    return NULL;
}

// Prints a line for each name of a backend.
static void overview(const msgl_model_config *model, const gpu *g)
{
    int count;
    msgl_err why;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    printf("attention backends%s\n  %-*s CPU  GPU\n", model != NULL ? " for this model" : "", NAMES,
           "");
    for (int i = 0; i < count; i++) {
        const msgl_attn_desc *cpu = find_backend(all[i]->name, MSGL_DEVICE_CPU);
        const msgl_attn_desc *cuda = find_backend(all[i]->name, MSGL_DEVICE_CUDA);
        if (all[i] != (cpu != NULL ? cpu : cuda)) continue; // the same name's other half
        const bool on_cpu = cpu != NULL && runs_here(cpu, model, g, MSGL_DEVICE_CPU, &why);
        const bool on_gpu = cuda != NULL && runs_here(cuda, model, g, MSGL_DEVICE_CUDA, &why);
        printf("  %-*s %-4s %-4s ", NAMES, all[i]->name, on_cpu ? "yes" : "-",
               on_gpu ? "yes" : "-");
        put_summary(all[i]->summary, WHAT);
    }
    printf("\n`minisgl info%s --verbose` says why one cannot run here, and what each can do.\n",
           model != NULL ? " MODEL" : "");
}

// Prints words behind the `column` characters that the line has, and breaks it where it is full.
static void put_words(const char *text, int column)
{
    while (*text != '\0') {
        const int n = (int)strcspn(text, " ");
        if (column + n + 1 > WIDTH) column = printf("\n     ") - 1;
        column += printf(" %.*s", n, text);
        text += n;
        text += strspn(text, " ");
    }
    printf("\n");
}

static void put_backend(const msgl_attn_desc *d, const msgl_model_config *model, const gpu *g,
                        msgl_device_kind kind)
{
    const struct {
        bool has;
        const char *name;
    } abilities[] = {{latent_only(d), "latent caches only"},
                     {!latent_only(d) && strcmp(latent(d), "yes") == 0, "latent caches"},
                     {d->sliding_window, "windows"},
                     {d->local_chunks, "local attention"},
                     {d->softcap, "soft caps"},
                     {(d->kv_dtypes & 1u << MSGL_E4M3) != 0, "FP8 cache"},
                     {d->sinks, "sinks"},
                     {d->graph, "graphs"}};
    char pages[64], dims[64], line[400];
    msgl_err why;
    page_rule(d, pages, sizeof pages);
    head_dims(d, dims, sizeof dims);
    put_words(d->summary, printf("%s, %s:", d->name, kind == MSGL_DEVICE_CPU ? "CPU" : "GPU"));
    size_t n = (size_t)snprintf(line, sizeof line, "pages %s, head dims %s", pages, dims);
    for (size_t i = 0; i < MSGL_COUNT(abilities); i++) {
        if (abilities[i].has && n < sizeof line) {
            n += (size_t)snprintf(line + n, sizeof line - n, ", %s", abilities[i].name);
        }
    }
    put_words(line, printf("   "));
    if (!runs_here(d, model, g, kind, &why)) put_words(why.text, printf("    not here:"));
}

static void details(const msgl_model_config *model, const gpu *g)
{
    static const msgl_device_kind kinds[] = {MSGL_DEVICE_CPU, MSGL_DEVICE_CUDA};
    int count;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < count; i++) {
            if ((all[i]->devices & 1u << kinds[k]) != 0) put_backend(all[i], model, g, kinds[k]);
        }
    }
}

// ---- weights ----

// The types that the model's files hold weights in. A model whose weights are not here, or are not
// read, still has a shape, so that this is no error of the command.
static int weight_types(const char *dir, msgl_type_rows *out, msgl_err *why)
{
    msgl_checkpoint *c;
    *out = (msgl_type_rows){0};
    int code = msgl__checkpoint_open(dir, &c, why);
    if (code != 0) return code;
    code = msgl__checkpoint_types(c, out, why);
    msgl__checkpoint_close(c);
    return code;
}

static void print_share(size_t bytes, size_t of, char out[16])
{
    const double percent = of > 0 ? 100.0 * (double)bytes / (double)of : 0;
    snprintf(out, 16, percent >= 1 ? "%.0f %%" : percent >= 0.05 ? "%.1f %%" : "<0.1 %%", percent);
}

// Prints "weights  241.4 MiB: Q5_0 52 %, Q8_0 31 %, ...", as many to a line as it has room for.
static void print_weights(const char *dir)
{
    msgl_type_rows types;
    msgl_err why;
    if (weight_types(dir, &types, &why) != 0) {
        put_words(why.text, printf("weights  not read:"));
        msgl__type_rows_free(&types);
        return;
    }
    static const char *const UNITS[] = {"KiB", "MiB", "GiB"};
    double size = (double)types.bytes / 1024.0;
    int unit = 0;
    for (; unit < 2 && size >= 1024; unit++) size /= 1024;
    int column = printf("weights  %.1f %s:", size, UNITS[unit]);
    for (size_t i = 0; i < types.count; i++) {
        char share[16], item[80];
        print_share(types.at[i].bytes, types.bytes, share);
        const int n = snprintf(item, sizeof item, " %s %s%s", types.at[i].name, share,
                               i + 1 < types.count ? "," : "");
        if (column + n > WIDTH) column = printf("\n        ") - 1;
        column += printf("%s", item);
    }
    printf("\n");
    msgl__type_rows_free(&types);
}

// Prints the same as a table of its own, behind that of the backends. CSV has one table in a file.
static void weight_rows(const char *dir, const char *format)
{
    msgl_type_rows types;
    msgl_err ignored;
    msgl_rows rows = {.format = format};
    if (strcmp(format, "csv") == 0) return;
    (void)weight_types(dir, &types, &ignored);
    if (types.count > 0 && strcmp(format, "md") == 0) printf("\n");
    for (size_t i = 0; i < types.count; i++) {
        const msgl_cell cells[] = {msgl__cell_text("type", types.at[i].name),
                                   msgl__cell_int("tensors", (int64_t)types.at[i].tensors),
                                   msgl__cell_int("bytes", (int64_t)types.at[i].bytes)};
        msgl__cli_row(&rows, cells, (int)MSGL_COUNT(cells));
    }
    msgl__type_rows_free(&types);
}

int msgl__cmd_info(const msgl_args *a)
{
    msgl_err err;
    static msgl_model_config config;
    char *dir = NULL;
    int rc = 0;
    if (a->engine.model_dir != NULL) {
        rc = msgl__cli_model_dir(a, &dir, &err);
        if (rc == 0) rc = msgl__model_config_load(dir, &config, &err);
    }
    if (rc != 0) {
        msgl_free(dir);
        return msgl__cli_fail(MSGL_EXIT_FAILED, &err);
    }
    const bool table = msgl__args_given(a, &a->format);
    const msgl_model_config *model = dir != NULL ? &config : NULL;
    gpu g = {0};
    if (!table) hardware();
    gpus(&g, !table);
    if (table) {
        msgl_rows rows = {.format = a->format};
        backends(model, &g, MSGL_DEVICE_CPU, &rows);
        backends(model, &g, MSGL_DEVICE_CUDA, &rows);
        if (model != NULL) weight_rows(dir, a->format);
    } else {
        plugins(a->verbose);
        if (model != NULL) print_model(dir, model);
        if (model != NULL) print_weights(dir);
        printf("\n");
        (a->verbose ? details : overview)(model, &g);
    }
    msgl_free(dir);
    return MSGL_EXIT_OK;
}
