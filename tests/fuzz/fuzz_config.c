// SPDX-License-Identifier: Apache-2.0
//
// The input is a config.json. Whatever is accepted can be planned: layers are built and weights
// declared, with sizes that do not overflow.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "models/arch.h"
#include "models/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Planning needs sizes only: no kernel is called.
static size_t packed_size(const msgl_wformat *f, int n, int k)
{
    if (n < 1 || k < 1) __builtin_trap();
    return (size_t)n * (size_t)k * msgl__dtype_size(f->dtype);
}

static void plan(const msgl_model_config *cfg)
{
    static const msgl_wformat formats[MSGL_WFORMATS] = {
        [MSGL_W_BF16] = {MSGL_WFORMAT_BF16, .packed_size = packed_size}};
    msgl_kernels kernels;
    msgl__kernels_init_cpu(&kernels, MSGL_CPU_REF); // which has kernels for all layers
    kernels.gemm = (msgl_gemm_kernels){.formats = formats};
    msgl_err err = {0};
    msgl_model *m = calloc(1, sizeof *m);
    if (m == NULL) __builtin_trap();
    m->cfg = *cfg;
    const msgl_model_target target = {.kernels = &kernels,
                                      .weights = {.kernels = &kernels.gemm,
                                                  .dtype = MSGL_BF16,
                                                  .converted = &formats[MSGL_W_BF16]},
                                      .ranks = 1,
                                      .expert_ranks = 1};
    const int code = msgl__model_build(m, &target, &err);
    if (code != 0 && err.text[0] == '\0') __builtin_trap();
    if (code == 0 && m->plan.bytes == 0) __builtin_trap();
    msgl__model_free(m);
    free(m);
}

static char g_dir[] = "/tmp/fuzz-config-XXXXXX", g_path[64];

static void remove_dir(void)
{
    unlink(g_path);
    rmdir(g_dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static msgl_model_config cfg; // large
    if (g_path[0] == '\0') {
        if (mkdtemp(g_dir) == NULL) __builtin_trap();
        snprintf(g_path, sizeof g_path, "%s/config.json", g_dir);
        atexit(remove_dir);
    }
    FILE *f = fopen(g_path, "wb");
    if (f == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0) __builtin_trap();
    msgl_err err = {0};
    if (msgl__model_config_load(g_dir, &cfg, &err) == 0) {
        plan(&cfg);
    } else if (err.text[0] == '\0' || strchr(err.text, '\n') != NULL) {
        __builtin_trap();
    }
    return 0;
}
