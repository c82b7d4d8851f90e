// SPDX-License-Identifier: Apache-2.0
//
// `minisgl info`: what this machine has, which attention backends there are and why one cannot run
// here, and, with --model, the model's shape.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attention/attention.h"
#include "cli/common.h"
#include "core/attributes.h"
#include "core/err.h"
#include "models/config.h"
#include "models/arch.h"

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

static void head_dims(const msgl_attn_desc *d, char *out, size_t size)
{
    size_t n = 0;
    if (d->head_dims[0] == 0) {
        snprintf(out, size, "8..256");
        return;
    }
    for (int i = 0; i < MSGL_ATTN_MAX_SET && d->head_dims[i] != 0 && n < size; i++) {
        n += (size_t)snprintf(out + n, size - n, "%s%d", i > 0 ? " " : "", d->head_dims[i]);
    }
}

// One row per backend, straight from its descriptor; the README's matrix says the same in words.
static void backends(const msgl_args *a, const msgl_model_config *model)
{
    int count;
    const msgl_attn_desc *const *all = msgl__attn_backends(&count);
    msgl_rows rows = {.format = a->format};
    for (int i = 0; i < count; i++) {
        const msgl_attn_desc *d = all[i];
        char pages[64], dims[64];
        page_rule(d, pages, sizeof pages);
        head_dims(d, dims, sizeof dims);
        msgl_attn_needs needs = {.device = MSGL_DEVICE_CPU,
                                 .num_q_heads = model != NULL ? model->num_heads : 1,
                                 .num_kv_heads = model != NULL ? model->num_kv_heads : 1,
                                 .head_dim = model != NULL ? model->head_dim : 128,
                                 .page_size = 1,
                                 .kv_dtype = MSGL_BF16};
        msgl_err why;
        const bool runs = msgl__attn_supports(d, &needs, &why) == 0;
        const msgl_cell cells[] = {
            msgl__cell_text("backend", d->name),
            msgl__cell_text("what", d->summary),
            msgl__cell_text("page size", pages),
            msgl__cell_text("head dim", dims),
            msgl__cell_text("window", d->sliding_window ? "yes" : "no"),
            msgl__cell_text("soft cap", d->softcap ? "yes" : "no"),
            msgl__cell_text("graph", d->graph ? "yes" : "no"),
            msgl__cell_text("here", runs ? "yes" : why.text),
        };
        msgl__cli_row(&rows, cells, (int)MSGL_COUNT(cells));
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
    printf("gpu      none used: this build has CPU kernels only\n");
}

int msgl__cmd_info(const msgl_args *a)
{
    msgl_err err;
    static msgl_model_config config;
    char *dir = NULL;
    int rc = 0;
    if (a->model != NULL) {
        rc = msgl__cli_model_dir(a, &dir, &err);
        if (rc == 0) rc = msgl__model_config_load(dir, &config, &err);
    }
    if (rc != 0) {
        msgl_free(dir);
        return msgl__cli_fail(MSGL_EXIT_FAILED, &err);
    }
    const bool table_only = strcmp(a->format, "md") != 0;
    if (!table_only) hardware();
    if (dir != NULL && !table_only) {
        printf("model    %s: %s, %d layers, hidden %d, %d heads (%d KV) of %d, vocabulary %d, "
               "context %d, "
               "%s\n",
               dir, config.arch->name, config.num_layers, config.hidden_size, config.num_heads,
               config.num_kv_heads, config.head_dim, config.vocab_size,
               msgl__model_config_context(&config), msgl__dtype_name(config.dtype));
    }
    if (!table_only) printf("\n");
    backends(a, dir != NULL ? &config : NULL);
    msgl_free(dir);
    return MSGL_EXIT_OK;
}
