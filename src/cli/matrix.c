// SPDX-License-Identifier: Apache-2.0
//
// The matrix of attention backends that README.md and docs/attention.md show, made from the
// descriptors. Each name has one row, and may have a descriptor for the CPU and one for GPUs.
#include <string.h>

#include "attention/attention.h"
#include "cli/common.h"
#include "core/attributes.h"
#include "device/devices.h"

// The compute capability, 9.0, of the GPU that every release is run on (scripts/gpu-check). For
// others kernels are compiled and not run.
enum { RUN_CAPABILITY = 90 };

typedef struct pair {
    const msgl_attn_desc *cpu, *gpu; // NULL: not there
} pair;

typedef bool (*property)(const msgl_attn_desc *d);

static bool has_kv(const msgl_attn_desc *d)
{
    return d->caches == 0 || (d->caches & 1u << MSGL_CACHE_KV) != 0;
}

static bool has_latent(const msgl_attn_desc *d)
{
    return (d->caches & 1u << MSGL_CACHE_LATENT) != 0;
}

static bool has_window(const msgl_attn_desc *d)
{
    return d->sliding_window;
}

static bool has_local(const msgl_attn_desc *d)
{
    return d->local_chunks;
}

static bool has_softcap(const msgl_attn_desc *d)
{
    return d->softcap;
}

static bool has_sinks(const msgl_attn_desc *d)
{
    return d->sinks;
}

static bool has_tree(const msgl_attn_desc *d)
{
    return d->tree;
}

static bool has_mods(const msgl_attn_desc *d)
{
    return d->masks != 0;
}

static bool has_graph(const msgl_attn_desc *d)
{
    return d->graph;
}

static bool has_fp8(const msgl_attn_desc *d)
{
    return (d->kv_dtypes & 1u << MSGL_E4M3) != 0;
}

static const struct {
    const char *title;
    property has;
} COLUMNS[] = {{"K, V", has_kv},
               {"latent", has_latent},
               {"window", has_window},
               {"local", has_local},
               {"cap", has_softcap},
               {"sinks", has_sinks},
               {"masks (no model has any)", has_mods},
               {"trees (of drafts)", has_tree},
               {"FP8 cache", has_fp8},
               {"graph", has_graph}};

static void state(FILE *out, const pair *p)
{
    fprintf(out, " | %s | ", p->cpu != NULL ? "runs" : "");
    if (p->gpu == NULL) return;
    const int from = (int)p->gpu->min_capability;
    fprintf(out, "runs on %d.%d", RUN_CAPABILITY / 10, RUN_CAPABILITY % 10);
    if (from < RUN_CAPABILITY) fprintf(out, ", compiled from %d.%d on", from / 10, from % 10);
}

// Writes the cell that names the file which a GPU's backend is in.
static void plugin(FILE *out, const pair *p)
{
    fprintf(out, " | ");
    if (p->gpu == NULL) return;
    fprintf(out, "`%s`", p->gpu->plugin != NULL ? p->gpu->plugin : "minisgl-cuda.so");
}

static void pages(FILE *out, const msgl_attn_desc *d)
{
    fprintf(out, " | ");
    if (d->page_rule != MSGL_PAGE_SET) fprintf(out, "any");
    for (int i = 0; i < MSGL_ATTN_MAX_SET && d->page_sizes[i] != 0; i++) {
        fprintf(out, "%s%d", i > 0 ? ", " : "", (int)d->page_sizes[i]);
    }
}

// Writes whether the backend has a property: "yes" if it has it on each device that it is for, else
// the device that it has it on.
static void cell(FILE *out, const pair *p, property has)
{
    const bool cpu = p->cpu != NULL && has(p->cpu), gpu = p->gpu != NULL && has(p->gpu);
    const bool all = (cpu || p->cpu == NULL) && (gpu || p->gpu == NULL);
    fprintf(out, " | %s", all ? "yes" : cpu ? "CPU" : gpu ? "GPU" : "");
}

// " (prompts: `fi`, on GPUs `fa`)" for a backend that does not serve them itself.
static void others(FILE *out, const char *what, const char *cpu, const char *gpu)
{
    if (cpu == NULL && gpu == NULL) return;
    fprintf(out, " (%s: `%s`", what, cpu != NULL ? cpu : gpu);
    if (cpu != NULL && gpu != NULL && strcmp(cpu, gpu) != 0) fprintf(out, ", on GPUs `%s`", gpu);
    fprintf(out, ")");
}

static void names(FILE *out, const pair *p)
{
    const msgl_attn_desc none = {0}, *any = p->cpu != NULL ? p->cpu : p->gpu;
    const msgl_attn_desc *cpu = p->cpu != NULL ? p->cpu : &none;
    const msgl_attn_desc *gpu = p->gpu != NULL ? p->gpu : &none;
    fprintf(out, "| `%s`", any->name);
    for (int i = 0; any->aliases[i] != NULL; i++) fprintf(out, ", `%s`", any->aliases[i]);
    others(out, "prompts", cpu->prefill_by, gpu->prefill_by);
    others(out, "answers", cpu->decode_by, gpu->decode_by);
}

// The GPU's backends, or those of nothing where its plug-in is not here.
static const msgl_attn_set *gpu_backends(void)
{
    static const msgl_attn_desc *const NONE[] = {NULL};
    static const msgl_attn_set EMPTY = {.all = NONE};
    msgl_err why;
    const msgl_plugin *p = msgl__plugin_of("cuda", &why);
    return p != NULL ? p->backends : &EMPTY;
}

static void row(FILE *out, const pair *p)
{
    names(out, p);
    state(out, p);
    plugin(out, p);
    pages(out, p->cpu != NULL ? p->cpu : p->gpu);
    for (size_t c = 0; c < MSGL_COUNT(COLUMNS); c++) cell(out, p, COLUMNS[c].has);
    fprintf(out, " |\n");
}

void msgl__help_matrix(FILE *out)
{
    const msgl_attn_set *cpu = &msgl__attn_cpu, *gpu = gpu_backends();
    fprintf(out, "| backend | CPU | GPU | plug-in | pages");
    for (size_t c = 0; c < MSGL_COUNT(COLUMNS); c++) fprintf(out, " | %s", COLUMNS[c].title);
    fprintf(out, " |\n|---|---|---|---|---");
    for (size_t c = 0; c < MSGL_COUNT(COLUMNS); c++) fprintf(out, "|---");
    fprintf(out, "|\n");
    for (const msgl_attn_desc *const *d = cpu->all; *d != NULL; d++) {
        row(out, &(pair){*d, msgl__attn_find(gpu, (*d)->name)});
    }
    for (const msgl_attn_desc *const *d = gpu->all; *d != NULL; d++) {
        if (msgl__attn_find(cpu, (*d)->name) == NULL) row(out, &(pair){NULL, *d});
    }
}
