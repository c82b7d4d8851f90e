// SPDX-License-Identifier: Apache-2.0
//
// Two quantised files that people have downloaded: SmolLM2 135M Instruct in Q4_1 and Gemma 3 270M
// in Q4_K_M (of which most is Q5_0, its rows being 640 wide). With --dtype float32 they say what
// their weights say, by vectors of tools/make_real_file_vectors.py; otherwise how far from that
// they may be is known. MINISGL_REAL_FILES is the folder that bench/peers_files.py has put them
// into; the tests are skipped without it.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/attributes.h"
#include "engine/harness.h"
#include "engine/loss.h"
#include "kernel/cpu.h"

#define VECTORS MSGL_SOURCE_DIR "/tests/vectors/real_files"
enum { MAX_POSITIONS = 400 };

typedef struct real_file {
    char path[1024];
    int32_t ids[MAX_POSITIONS], choices[MAX_POSITIONS];
    int32_t positions;
    json_t *vectors;
} real_file;

static void load(real_file *f, const char *name)
{
    char vectors[1024];
    const char *folder = getenv("MINISGL_REAL_FILES");
    if (folder == NULL) skip();
    snprintf(f->path, sizeof f->path, "%s/%s.gguf", folder, name);
    snprintf(vectors, sizeof vectors, VECTORS "/%s.json", name);
    f->positions = load_ids(vectors, "input_ids", f->ids, MAX_POSITIONS);
    assert_int_equal(load_ids(vectors, "choices", f->choices, MAX_POSITIONS), f->positions);
    f->vectors = json_load_file(vectors, 0, NULL);
    assert_non_null(f->vectors);
}

// Log-probabilities [positions, *vocab].
static float *run(const real_file *f, const char *dtype, const char *weights, const char *level,
                  int32_t *vocab)
{
    const harness_target target = {.threads = 2, .level = level, .weights = weights};
    msgl_options o = harness_config_for(f->path, dtype, &target);
    harness h;
    o.max_prefill_tokens = MAX_POSITIONS;
    o.max_seq_len = MAX_POSITIONS + 1;
    harness_open(&h, &o);
    *vocab = h.info->vocab_size;
    harness_close(&h);
    return harness_prompt(&o, f->ids, f->positions);
}

static void check_exact(const real_file *f, const float *got, int32_t vocab)
{
    const json_t *logprobs = json_object_get(f->vectors, "logprobs");
    int32_t same = 0;
    for (int32_t t = 0; t < f->positions; t++) {
        const float *row = got + (size_t)t * (size_t)vocab;
        int32_t best = 0;
        for (int32_t i = 0; i < vocab; i++) best = row[i] > row[best] ? i : best;
        same += best == f->choices[t];
        if (t + 1 == f->positions) continue;
        const double want = json_number_value(json_array_get(logprobs, (size_t)t));
        if (fabs(want - (double)row[f->ids[t + 1]]) > 1e-3) {
            fail_msg("position %d: %f, not %f", t, row[f->ids[t + 1]], want);
        }
    }
    if (same < f->positions - f->positions / 100) fail_msg("%d first choices are the same", same);
}

// `by8` and `by16`: the KL divergence that is allowed where activations are rounded to 8 and to 16
// bits.
static void check_file(const char *name, double by8, double by16)
{
    static const char *const levels[] = {"avx2", "avx512", "avx512vnni", "amx"};
    real_file f = {0};
    int32_t vocab;
    load(&f, name);
    float *want = run(&f, "float32", NULL, NULL, &vocab);
    check_exact(&f, want, vocab);
    for (size_t i = 0; i < MSGL_COUNT(levels); i++) {
        msgl_cpu_level level;
        msgl_err err = {0};
        if (msgl__cpu_level_select(levels[i], &level, &err) != 0) continue;
        float *got = run(&f, "bfloat16", NULL, levels[i], &vocab);
        const loss l = loss_of(want, got, f.positions, vocab);
        printf("%s, %s: KL %.3g, first choices equal %.1f %%\n", name, levels[i], l.kl,
               100 * l.same_choice);
        if (l.kl > (strcmp(levels[i], "amx") == 0 ? by16 : by8)) {
            fail_msg("%s, %s: KL %g", name, levels[i], l.kl);
        }
        free(got);
    }
    free(want);
    json_decref(f.vectors);
}

static void test_smollm2(void **state)
{
    (void)state;
    check_file("smollm2", 9e-4, 3e-4);
}

static void test_gemma3(void **state)
{
    (void)state;
    check_file("gemma3", 6e-4, 3e-4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_smollm2),
                                       cmocka_unit_test(test_gemma3)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
