// SPDX-License-Identifier: Apache-2.0
//
// Engines with adapters of tests/vectors/lora, for test_lora.c and test_lora_files.c.
#ifndef MSGL_TESTS_ENGINE_LORA_CASE_H
#define MSGL_TESTS_ENGINE_LORA_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"

#ifndef TEST_DEVICE
#define TEST_DEVICE "cpu"
#endif
#define ON_CPU (strcmp(TEST_DEVICE, "cpu") == 0)

enum { PATH = 512, PLACES = 4 }; // of a path's bytes, of slots

static inline void lora_path(char *out, const char *name, const char *file)
{
    snprintf(out, PATH, MSGL_SOURCE_DIR "/tests/vectors/lora/%s%s%s", name,
             file[0] != '\0' ? "/" : "", file);
}

static inline msgl_options config(const char *dir, const char *dtype, bool adapters)
{
    // On a GPU bits are promised for a deterministic device alone.
    const harness_target target = {.device = TEST_DEVICE,
                                   .attention = "auto",
                                   .page_size = ON_CPU ? 0 : 16,
                                   .deterministic = !ON_CPU};
    msgl_options o = harness_config_for(dir, dtype, &target);
    o.enable_lora = adapters;
    o.max_loaded_loras = PLACES;
    return o;
}

static inline void load(harness *h, int32_t slot, const char *name)
{
    char dir[PATH];
    msgl_err err = {0};
    lora_path(dir, name, "");
    const int rc = msgl__runner_load_adapter(h->r, slot, dir, &err);
    if (rc != 0) fail_msg("%s: %s", name, err.text);
}

#endif
