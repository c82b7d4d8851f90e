// SPDX-License-Identifier: Apache-2.0
//
// Sparse prompts of dual chunk attention against their definition in f64, said once more and
// without any blocks of keys, and against what SGLang makes of a prompt; the files that patterns
// come from.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/dual_chunk/dual_chunk.h"
#include "attention/dual_chunk/pattern.h"
#include "attention/world.h"
#include "core/attributes.h"
#include "models/folder.h"
#include "utils/random.h"

enum { DIM = 64, HEADS = 4, LAST = 8, LEN = 150, SIZE = 180, THRESHOLD = 260, KEYS = 700 };

// ---- the definition ----

typedef struct chosen {
    bool column[KEYS], distance[KEYS];
} chosen;

typedef struct definition {
    const world *w;
    const msgl_dual_pattern *pattern;
    const float *inv_freq;
    int req, begin, end; // positions of a piece, in one chunk
} definition;

static const float *key_of(const definition *d, int head, int key)
{
    return d->w->reqs[d->req].k + ((size_t)key * 2 + (size_t)(head / 2)) * DIM;
}

static const float *query(const definition *d, int head, int pos, int set)
{
    return d->w->reqs[d->req].q + (size_t)pos * d->w->q_width + (size_t)(set * HEADS + head) * DIM;
}

// The score of a key by a query that is rotated `by` positions further.
static double rotated_score(const definition *d, int head, int pos, int key, int by)
{
    const float *q = query(d, head, pos, 0), *k = key_of(d, head, key);
    double s = 0;
    for (int i = 0; i < DIM / 2; i++) {
        const double a = (double)by * (double)d->inv_freq[i], x = (double)q[i];
        const double y = (double)q[i + DIM / 2];
        s += (x * cos(a) - y * sin(a)) * (double)k[i];
        s += (y * cos(a) + x * sin(a)) * (double)k[i + DIM / 2];
    }
    return s * (double)d->w->layer.scale;
}

static int apart(const definition *d, int key)
{
    const int chunks = d->begin / LEN - key / LEN;
    return chunks < 2 ? chunks : 2;
}

// Marks the n largest of d->end sums, by sorting them out one after the other.
static void mark(const definition *d, const double *sums, int n, bool *marks)
{
    for (int i = 0; i < d->end; i++) {
        int before = 0;
        for (int j = 0; j < d->end; j++)
            before += sums[j] > sums[i] || (sums[j] == sums[i] && j < i);
        marks[i] = before < n;
    }
}

static void choose(const definition *d, int head, chosen *c)
{
    static const int rotations[] = {0, LEN, SIZE};
    const msgl_head_pattern want = msgl__dual_heads(d->pattern, d->w->layer.layer)[head];
    double columns[KEYS] = {0}, distances[KEYS] = {0}, p[KEYS];
    for (int pos = d->end - LAST; pos < d->end; pos++) {
        double sum = 0;
        for (int k = 0; k <= pos; k++) {
            p[k] = exp(rotated_score(d, head, pos, k, rotations[apart(d, k)]));
            sum += p[k];
        }
        for (int k = 0; k <= pos; k++) {
            columns[k] += p[k] / sum;
            distances[pos - k] += p[k] / sum;
        }
    }
    for (int i = 0; i < 30 && i < d->end; i++) columns[i] = INFINITY;
    for (int i = 0; i < 100 && i < d->end; i++) distances[i] = INFINITY;
    mark(d, columns, want.columns == 30 ? 130 : want.columns, c->column);
    mark(d, distances, want.distances, c->distance);
}

static bool sees(const definition *d, const chosen *c, int pos, int key)
{
    const int first = d->begin + (pos - d->begin) / 64 * 64; // of the row's block
    if (key > pos) return false;
    for (int i = first - key; i < first - key + 64; i++) {
        if (i < 0 || i >= d->end || !c->distance[i]) continue;
        if (apart(d, key) >= apart(d, d->end - 1 - i)) return true;
    }
    return c->column[key];
}

// The largest error of a row, over the largest |v|.
static double row_error(const definition *d, const chosen *c, int head, int pos, const float *out)
{
    const world_req *r = &d->w->reqs[d->req];
    double o[DIM] = {0}, sum = 0, worst = 0, most = 0;
    for (int key = 0; key <= pos; key++) {
        if (c != NULL && !sees(d, c, pos, key)) continue;
        const float *q = query(d, head, pos, apart(d, key)), *k = key_of(d, head, key);
        const float *v = r->v + ((size_t)key * 2 + (size_t)(head / 2)) * DIM;
        double s = 0;
        for (int i = 0; i < DIM; i++) s += (double)q[i] * (double)k[i];
        s = exp(s * (double)d->w->layer.scale);
        sum += s;
        for (int i = 0; i < DIM; i++) {
            o[i] += s * (double)v[i];
            most = fmax(most, fabs((double)v[i]));
        }
    }
    for (int i = 0; i < DIM; i++) {
        const double error = fabs((double)out[head * DIM + i] - o[i] / sum);
        if (!(error <= worst)) worst = error;
    }
    return worst / most;
}

// Of the new tokens of a request, whose rows of the output begin at out; checks that some rows do
// not see all keys where `sparse`, and that all do otherwise.
static void check_request(definition *d, int cached, int device, bool sparse, const float *out)
{
    const double allowed = world_tolerance("dual_chunk_flash_attn", d->w->spec.dtype);
    double worst = 0, dense = 0;
    for (d->begin = cached; d->begin < device; d->begin = d->end) {
        d->end = (d->begin / LEN + 1) * LEN < device ? (d->begin / LEN + 1) * LEN : device;
        for (int head = 0; head < HEADS; head++) {
            chosen c = {0};
            const bool all = !sparse || d->end - d->begin <= LAST;
            if (!all) choose(d, head, &c);
            for (int pos = d->begin; pos < d->end; pos++) {
                const float *row = out + (size_t)(pos - cached) * d->w->out_ld;
                worst = fmax(worst, row_error(d, all ? NULL : &c, head, pos, row));
                dense = fmax(dense, row_error(d, NULL, head, pos, row));
            }
        }
    }
    assert_true(worst <= allowed);
    assert_int_equal(dense > 10 * allowed, sparse);
}

// ---- tests ----

static msgl_head_pattern g_heads[2 * HEADS];

static void make_pattern(msgl_dual_pattern *p, float inv_freq[DIM / 2])
{
    const msgl_dual_chunk dual = {.len = LEN, .size = SIZE};
    for (int i = 0; i < DIM / 2; i++) inv_freq[i] = (float)pow(100, -2.0 * i / DIM);
    for (int i = 0; i < 2 * HEADS; i++) g_heads[i] = (msgl_head_pattern){45 + i, 104 + 3 * i};
    g_heads[HEADS + 1].columns = 30;
    *p = (msgl_dual_pattern){.prompts = {.enabled = true, .threshold = THRESHOLD, .last = LAST},
                             .num_layers = 2,
                             .num_q_heads = HEADS,
                             .heads = g_heads};
    assert_int_equal(msgl__dual_pattern_rotations(p, &dual, inv_freq, DIM / 2, NULL), 0);
}

static void test_definition(void **state)
{
    (void)state;
    static const int pages[] = {1, 16, 7};
    static const msgl_dtype dtypes[] = {MSGL_F32, MSGL_BF16, MSGL_F16};
    msgl_dual_pattern pattern;
    float inv_freq[DIM / 2];
    make_pattern(&pattern, inv_freq);
    for (int round = 0; round < 3; round++) {
        world_spec s = world_base(&msgl__attn_dual_chunk, 5, KEYS, 2048);
        s.dual_len = LEN;
        s.pattern = &pattern;
        s.dtype = dtypes[round];
        s.page_size = pages[round];
        s.threads = 1 + round;
        world w;
        world_open(&w, &s);
        static const int lens[] = {300, KEYS, 200, 500, 303};
        for (int i = 0; i < 5; i++) world_request(&w, i, lens[i]);
        // An answer to a long request; a whole long prompt; a short one; the end of one, in two
        // chunks; few rows of one.
        const step_req step[] = {
            {0, 299, 300}, {1, 0, KEYS}, {2, 0, 200}, {3, 430, 500}, {4, 296, 303}};
        static const bool sparse[] = {false, true, false, true, false};
        world_mixed(&w, 1, step, 5);
        definition d = {.w = &w, .pattern = &pattern, .inv_freq = inv_freq};
        const float *out = w.out;
        for (int i = 0; i < 5; i++) {
            d.req = i;
            check_request(&d, step[i].cached, step[i].device, sparse[i], out);
            out += (size_t)(step[i].device - step[i].cached) * w.out_ld;
        }
        world_close(&w);
    }
    pattern.heads = NULL;
    msgl__dual_pattern_free(&pattern);
}

static void fill(float *to, size_t n, void *stored, uint64_t *rng)
{
    for (size_t i = 0; i < n; i++) to[i] = -2 + 4 * msgl__random_unit(rng);
    if (stored != NULL) memcpy(stored, to, n * sizeof *to);
}

// What SGLang makes of a prompt (tools/make_sparse_prompt_vectors.py).
static void test_sglang(void **state)
{
    enum { STEP = 23, ROWS = (KEYS + STEP - 1) / STEP, WIDTH = HEADS * DIM };
    (void)state;
    msgl_dual_pattern pattern;
    float inv_freq[DIM / 2];
    make_pattern(&pattern, inv_freq);
    world_spec s = world_base(&msgl__attn_dual_chunk, 5, KEYS, 2048);
    s.dual_len = LEN;
    s.pattern = &pattern;
    s.dtype = MSGL_F32;
    world w;
    world_open(&w, &s);
    world_request(&w, 0, KEYS);
    const world_req *r = &w.reqs[0];
    uint64_t rng = 1;
    fill(r->q, (size_t)KEYS * w.q_width, NULL, &rng);
    fill(r->k, (size_t)KEYS * 2 * DIM, r->stored[0], &rng);
    fill(r->v, (size_t)KEYS * 2 * DIM, r->stored[1], &rng);
    const step_req step = {0, 0, KEYS};
    world_mixed(&w, 0, &step, 1);
    FILE *f = fopen(MSGL_SOURCE_DIR "/tests/vectors/sparse_prompt.bin", "rb");
    assert_non_null(f);
    double worst = 0;
    for (int row = 0; row < ROWS; row++) {
        float want[WIDTH];
        assert_int_equal(fread(want, sizeof *want, WIDTH, f), WIDTH);
        const float *got = w.out + (size_t)(row * STEP) * w.out_ld;
        for (int i = 0; i < WIDTH; i++) worst = fmax(worst, fabs((double)(got[i] - want[i])));
    }
    fclose(f);
    print_message("largest difference from SGLang's %.2e\n", worst);
    assert_true(worst < 4e-6); // of values up to 2, as the tolerance says
    world_close(&w);
    pattern.heads = NULL;
    msgl__dual_pattern_free(&pattern);
}

// Loads the pattern of a model of two layers of two heads from a folder with these files.
static int load(const char *list, const char *config, msgl_dual_pattern *p, msgl_err *err)
{
    const msgl_sparse_prompts prompts = {.enabled = true, .threshold = 5, .last = 64};
    folder f;
    folder_make(&f);
    if (list != NULL) folder_write(&f, "sparse_attention_config.json", list, strlen(list));
    folder_write(&f, "config.json", config, strlen(config));
    *p = (msgl_dual_pattern){.num_layers = 2, .num_q_heads = 2};
    const int rc = msgl__dual_pattern_load(f.dir, &prompts, p, err);
    folder_remove(&f);
    return rc;
}

#define HEAD(v, s) "[\"vertical_and_slash\", " #v ", " #s ", 0.9]"
#define LAYER(a, b) "{\"0\": " a ", \"1\": " b "}"

static void test_files(void **state)
{
    (void)state;
    static const char list[] =
        "[" LAYER(HEAD(30, 800), HEAD(1000, 6096)) ", " LAYER(HEAD(0, 1), HEAD(500, 700)) "]";
    char config[512];
    snprintf(config, sizeof config,
             "{\"dual_chunk_attention_config\": {\"sparse_attention_config\": %s}}", list);
    const char *const folders[][2] = {{list, "{}"}, {NULL, config}};
    msgl_dual_pattern p;
    msgl_err err;
    for (int i = 0; i < 2; i++) {
        if (load(folders[i][0], folders[i][1], &p, &err) != 0) fail_msg("%s", err.text);
        assert_int_equal(msgl__dual_heads(&p, 0)[1].columns, 1000);
        assert_int_equal(msgl__dual_heads(&p, 0)[1].distances, 6096);
        assert_int_equal(msgl__dual_heads(&p, 1)[0].columns, 0);
        msgl__dual_pattern_free(&p);
    }
    static const char *const none[] = {"{}", "{\"dual_chunk_attention_config\": null}",
                                       "{\"dual_chunk_attention_config\": "
                                       "{\"sparse_attention_config\": null}}"};
    for (size_t i = 0; i < MSGL_COUNT(none); i++) {
        assert_int_equal(load(NULL, none[i], &p, &err), 0);
        assert_null(p.heads);
    }
}

static void test_bad_files(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        int code;
        const char *says;
    } bad[] = {
        {"[]", MSGL_EFORMAT, "no list of 2 objects"},
        {"{}", MSGL_EFORMAT, "no list of 2 objects"},
        {"[1, 2]", MSGL_EFORMAT, "layer 0, head 0: not [\"vertical_and_slash\""},
        {"[" LAYER(HEAD(1, 1), HEAD(1, 1)) ", {\"0\": " HEAD(1, 1) "}]", MSGL_EFORMAT,
         "layer 1, head 1"},
        {"[" LAYER(HEAD(1, 1), HEAD(1, 0)) ", {}]", MSGL_EFORMAT, "DISTANCES from 1 on"},
        {"[" LAYER(HEAD(-1, 1), HEAD(1, 1)) ", {}]", MSGL_EFORMAT, "layer 0, head 0"},
        {"[" LAYER(HEAD(99999999999, 1), HEAD(1, 1)) ", {}]", MSGL_EFORMAT, "up to 268435456"},
        {"[" LAYER("[\"stream_llm\", 1, 2]", HEAD(1, 1)) ", {}]", MSGL_EUNSUPPORTED,
         "pattern \"stream_llm\"; allowed: vertical_and_slash"},
        {"[{", MSGL_EFORMAT, "sparse_attention_config.json: line 1"},
    };
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        msgl_dual_pattern p;
        msgl_err err = {0};
        assert_int_equal(load(bad[i].list, "{}", &p, &err), bad[i].code);
        if (strstr(err.text, bad[i].says) == NULL) fail_msg("%s", err.text);
        msgl__dual_pattern_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_definition),
                                       cmocka_unit_test(test_sglang), cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_bad_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
