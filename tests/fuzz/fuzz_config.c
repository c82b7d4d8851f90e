// SPDX-License-Identifier: Apache-2.0
//
// The input is a config.json. Whatever is accepted can be planned: layers are built and weights
// declared, with sizes that do not overflow. Build with -fsanitize=fuzzer,address and link
// msgl_models and msgl_layers.
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
    const msgl_kernels kernels = {.gemm = {.formats = formats}};
    msgl_err err = {0};
    msgl_model *m = calloc(1, sizeof *m);
    if (m == NULL) __builtin_trap();
    m->cfg = *cfg;
    const msgl_model_target target = {.kernels = &kernels,
                                      .dtype = MSGL_BF16,
                                      .weights = &formats[MSGL_W_BF16],
                                      .ranks = 1,
                                      .expert_ranks = 1};
    const int code = msgl__model_build(m, &target, &err);
    if (code != 0 && err.text[0] == '\0') __builtin_trap();
    if (code == 0 && m->plan.bytes == 0) __builtin_trap();
    msgl__model_free(m);
    free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char dir[] = "/tmp/fuzz-config-XXXXXX", path[64];
    if (mkdtemp(dir) == NULL) return 0;
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "wb");
    if (f != NULL) {
        fwrite(data, 1, size, f);
        fclose(f);
    }
    msgl_model_config *cfg = malloc(sizeof *cfg);
    msgl_err err = {0};
    if (cfg != NULL && msgl__model_config_load(dir, cfg, &err) == 0) {
        plan(cfg);
    } else if (err.text[0] == '\0' || strchr(err.text, '\n') != NULL) {
        __builtin_trap();
    }
    free(cfg);
    unlink(path);
    rmdir(dir);
    return 0;
}
