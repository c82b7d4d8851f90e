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
#include "device/devices.h"
#include "models/arch.h"
#include "models/contents.h"
#include "models/model.h"
#include "utils/plugin.h"

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

// A kind of device: its plug-in and the first device of it.
typedef struct kind {
    char name[40];
    bool asked;                // by --device: it is news if there is none
    const msgl_plugin *plugin; // NULL: it is not here
    bool usable;
    msgl_device_props props;
    msgl_err why; // it is not usable
} kind;

enum { MAX_KINDS = 4 };

// The CPU, then the kind that --device names, or those that `auto` looks for.
typedef struct kinds {
    kind all[MAX_KINDS];
    int num;
} kinds;

// What the engine would need of this backend for a group of layers. Without a model (NULL) it is
// what most models need.
static msgl_attn_needs needs_of(const msgl_attn_desc *d, const msgl_model_config *model,
                                int32_t group, const kind *k)
{
    const msgl_attn_set *set = k->plugin->backends;
    const msgl_attn_choice alone = msgl__attn_alone(set, d);
    const msgl_dtype dtype = model != NULL ? model->dtype : MSGL_BF16;
    msgl_attn_needs n = {.backends = set,
                         .capability = k->props.capability,
                         .num_q_heads = model != NULL ? model->num_heads : 1,
                         .num_kv_heads = 1,
                         .head_dim = 128,
                         .page_size = msgl__attn_page_size(&alone, 1, NULL),
                         .act = k->plugin == &msgl__cpu_plugin ? MSGL_F32 : dtype,
                         .kv_dtype = dtype};
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

// Whether the backend can attend over every group of the model here.
static bool runs_here(const msgl_attn_desc *d, const msgl_model_config *model, const kind *k,
                      msgl_err *why)
{
    msgl_cache_specs specs = {.count = 1};
    if (!k->usable) {
        *why = k->why;
        return false;
    }
    if (model != NULL) msgl__model_caches(model, 1, model->dtype, model->dtype, &specs);
    for (int32_t i = 0; i < specs.count; i++) {
        const msgl_attn_needs needs = needs_of(d, model, i, k);
        if (needs.cache == MSGL_CACHE_STATE || needs.cache == MSGL_CACHE_INDEX) continue;
        if (msgl__attn_supports(d, &needs, why) != 0) return false;
    }
    return true;
}

// Prints a row for each backend of this kind of device, from its descriptor.
static void backends(const msgl_model_config *model, const kind *k, msgl_rows *rows)
{
    for (const msgl_attn_desc *const *at = k->plugin->backends->all; *at != NULL; at++) {
        const msgl_attn_desc *d = *at;
        char pages[64], dims[64];
        page_rule(d, pages, sizeof pages);
        head_dims(d, dims, sizeof dims);
        msgl_err why;
        const bool runs = runs_here(d, model, k, &why);
        const msgl_cell cells[] = {
            msgl__cell_text("device", k->plugin->name),
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

static void print_device(const char *name, int i, const msgl_device_props *p)
{
    printf("gpu      %s:%d %s, %s, %.1f of %.1f GB free, %s\n", name, i, p->name, p->details,
           (double)p->free_bytes / 1e9, (double)p->total_bytes / 1e9, p->driver);
}

// Looks at the devices of a kind that is no CPU, and prints them.
static void look(kind *k, bool print)
{
    const char *name = k->name;
    k->plugin = msgl__plugin_of(name, &k->why);
    const int count = k->plugin != NULL ? k->plugin->count(&k->why) : 0;
    for (int i = 0; i < count; i++) {
        msgl_device_props p;
        msgl_err err;
        const bool usable = k->plugin->props(i, &p, &err) == 0;
        if (i == 0) {
            k->usable = usable;
            if (usable) k->props = p;
            if (!usable) k->why = err;
        }
        if (print && usable) print_device(name, i, &p);
        if (print && !usable) printf("gpu      %s:%d %s\n", name, i, err.text);
    }
    if (!print || count > 0) return;
    // Else there is none, whatever plug-ins say.
    const bool news = k->asked || msgl__device_has_driver(name);
    printf("gpu      none%s%s\n", news ? " used: " : "", news ? k->why.text : "");
}

// device: --device's "NAME" or "NAME:N".
static void look_around(kinds *out, const char *device, bool print)
{
    const int len = (int)strcspn(device, ":");
    *out = (kinds){.num = 1};
    out->all[0] = (kind){.name = "cpu", .plugin = &msgl__cpu_plugin, .usable = true};
    if (strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0) {
        kind *k = &out->all[out->num++];
        k->asked = true;
        snprintf(k->name, sizeof k->name, "%.*s", len, device);
        look(k, print);
        return;
    }
    for (int i = 0; msgl__device_kinds[i] != NULL && out->num < MAX_KINDS; i++) {
        kind *k = &out->all[out->num++];
        snprintf(k->name, sizeof k->name, "%s", msgl__device_kinds[i]);
        look(k, print);
    }
}

// Prints the plug-ins that a kind's backends need, each once.
static void more_plugins(const msgl_attn_set *set)
{
    const char *last = "";
    for (const msgl_attn_desc *const *d = set->all; *d != NULL; d++) {
        const char *name = (*d)->plugin;
        msgl_err why;
        if (name == NULL || strcmp(name, last) == 0) continue;
        const bool opens = msgl__plugin_open(name, NULL, &why) != NULL;
        printf("plug-in  %s%s\n", opens ? name : why.text, opens ? ": opens" : "");
        last = name;
    }
}

// Prints each plug-in and whether it opens, or why not; without a GPU, and unless all_lines, one
// line.
static void plugins(const kinds *k, bool all_lines)
{
    bool any = all_lines;
    for (int i = 1; i < k->num; i++) {
        const kind *one = &k->all[i];
        any = any || one->plugin != NULL || one->asked || msgl__device_has_driver(one->name);
    }
    if (!any) printf("plug-ins none, which GPUs alone need (docs/gpu.md)\n");
    for (int i = 1; i < k->num && any; i++) {
        const msgl_plugin *p = k->all[i].plugin;
        if (p != NULL) printf("plug-in  minisgl-%s.so: %s\n", p->name, p->build);
        if (p == NULL) printf("plug-in  %s\n", k->all[i].why.text);
        if (p != NULL) more_plugins(p->backends);
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

// "yes" where the backend of this name is one of the kind's and runs here.
static const char *state(const char *name, const msgl_model_config *model, const kind *k)
{
    msgl_err why;
    const msgl_attn_desc *d = k->plugin != NULL ? msgl__attn_find(k->plugin->backends, name) : NULL;
    return d != NULL && runs_here(d, model, k, &why) ? "yes" : "-";
}

// Whether a kind before this one has a backend of that name, whose line it then has.
static bool named_before(const kinds *k, int i, const char *name)
{
    bool found = false;
    for (int j = 0; j < i; j++) {
        found = found || (k->all[j].plugin != NULL &&
                          msgl__attn_find(k->all[j].plugin->backends, name) != NULL);
    }
    return found;
}

// Prints a line for each name of a backend.
static void overview(const msgl_model_config *model, const kinds *k)
{
    printf("attention backends%s\n  %-*s CPU  GPU\n", model != NULL ? " for this model" : "", NAMES,
           "");
    for (int i = 0; i < k->num; i++) {
        if (k->all[i].plugin == NULL) continue;
        for (const msgl_attn_desc *const *at = k->all[i].plugin->backends->all; *at != NULL; at++) {
            const msgl_attn_desc *d = *at;
            if (named_before(k, i, d->name)) continue;
            printf("  %-*s %-4s %-4s ", NAMES, d->name, state(d->name, model, &k->all[0]),
                   state(d->name, model, &k->all[1]));
            put_summary(d->summary, WHAT);
        }
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

static void put_backend(const msgl_attn_desc *d, const msgl_model_config *model, const kind *k)
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
    put_words(d->summary,
              printf("%s, %s:", d->name, k->plugin == &msgl__cpu_plugin ? "CPU" : "GPU"));
    size_t n = (size_t)snprintf(line, sizeof line, "pages %s, head dims %s", pages, dims);
    for (size_t i = 0; i < MSGL_COUNT(abilities); i++) {
        if (abilities[i].has && n < sizeof line) {
            n += (size_t)snprintf(line + n, sizeof line - n, ", %s", abilities[i].name);
        }
    }
    put_words(line, printf("   "));
    if (!runs_here(d, model, k, &why)) put_words(why.text, printf("    not here:"));
}

static void details(const msgl_model_config *model, const kinds *k)
{
    for (int i = 0; i < k->num; i++) {
        if (k->all[i].plugin == NULL) continue;
        for (const msgl_attn_desc *const *d = k->all[i].plugin->backends->all; *d != NULL; d++) {
            put_backend(*d, model, &k->all[i]);
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
    kinds all;
    if (!table) hardware();
    look_around(&all, a->engine.device, !table);
    if (table) {
        msgl_rows rows = {.format = a->format};
        for (int i = 0; i < all.num; i++) {
            if (all.all[i].plugin != NULL) backends(model, &all.all[i], &rows);
        }
        if (model != NULL) weight_rows(dir, a->format);
    } else {
        plugins(&all, a->verbose);
        if (model != NULL) print_model(dir, model);
        if (model != NULL) print_weights(dir);
        printf("\n");
        (a->verbose ? details : overview)(model, &all);
    }
    msgl_free(dir);
    return MSGL_EXIT_OK;
}
