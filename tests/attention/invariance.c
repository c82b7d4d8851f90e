// SPDX-License-Identifier: Apache-2.0
#include "attention/invariance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Out rows of positions [0, len) of row 0, computed in one prefill: the yardstick.
static float *whole(world *w, int len, double tolerance)
{
    const step_req r = {.req = 0, .cached = 0, .device = len};
    world_step(w, MSGL_PREFILL, &r, 1);
    const double error = world_error(w, &r, 1);
    if (error > tolerance) fail_msg("%s: error %g", w->backend->desc->name, error);
    const size_t n = (size_t)len * w->out_ld * sizeof(float);
    float *copy = malloc(n);
    memcpy(copy, w->out, n);
    return copy;
}

static void expect_row(const world *w, const float *want, int row, int position, const char *what)
{
    const float *got = w->out + (size_t)row * w->out_ld;
    if (memcmp(got, want, w->out_ld * sizeof *got) != 0) {
        fail_msg("%s, %s: position %d differs (group %d, dim %d, dtype %d, page %d, level %s)",
                 w->backend->desc->name, what, position, w->spec.group, w->spec.head_dim,
                 (int)w->spec.dtype, w->spec.page_size, msgl__cpu_level_name(w->spec.level));
    }
}

static void expect_rows(const world *w, const float *whole_out, int row, int from, int to,
                        const char *what)
{
    for (int p = from; p < to; p++) {
        expect_row(w, whole_out + (size_t)p * w->out_ld, row + p - from, p, what);
    }
}

static void check_chunks(world *w, const float *want, int len, const invariance *how)
{
    static const int chunks[] = {1, 2, 3, 4, 5, 7, 8, 16, 97, 256, 300};
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        const int step = chunks[c];
        const msgl_phase phase = step == 1 && how->phases ? MSGL_DECODE : MSGL_PREFILL;
        for (int at = 0; at < len; at += step * (step < 16 ? 41 : 1)) {
            const step_req r = {
                .req = 0, .cached = at, .device = at + step < len ? at + step : len};
            world_step(w, phase, &r, 1);
            expect_rows(w, want, 0, r.cached, r.device, "chunks");
        }
    }
}

// The request amid 31 others, decoding in even rounds.
static void check_batch(world *w, const float *want, int len, const invariance *how)
{
    step_req reqs[32];
    float *alone = malloc(w->out_ld * sizeof *alone);
    for (int i = 1; i < 32; i++) world_request(w, i, world_int(w, 1, i % 7 == 0 ? len : 300));
    for (int round = 0; round < how->rounds; round++) {
        const bool decode = round % 2 == 0;
        const int at = world_int(w, 0, len - 1), me = world_int(w, 0, 31);
        if (decode) {
            const step_req r = {.req = 0, .cached = at, .device = at + 1};
            if (!how->phases) world_step(w, MSGL_DECODE, &r, 1);
            memcpy(alone, how->phases ? want + (size_t)at * w->out_ld : w->out,
                   w->out_ld * sizeof *alone);
        }
        for (int i = 0; i < 32; i++) {
            const int row = i == me ? 0 : i == 0 ? me : i;
            const int last = row == 0 ? at : w->reqs[row].len - 1;
            const int chunk = decode ? 1 : world_int(w, 1, last + 1 < 60 ? last + 1 : 60);
            reqs[i] = (step_req){.req = row, .cached = last + 1 - chunk, .device = last + 1};
        }
        world_step(w, decode ? MSGL_DECODE : MSGL_PREFILL, reqs, 32);
        int row = 0;
        for (int i = 0; i < me; i++) row += reqs[i].device - reqs[i].cached;
        if (decode) {
            expect_row(w, alone, row, at, "decode in a batch");
        } else {
            expect_rows(w, want, row, reqs[me].cached, reqs[me].device, "prefill in a batch");
        }
    }
    free(alone);
}

void check_invariance(const world_spec *base, int len, const invariance *how)
{
    world_spec spec = *base;
    const step_req last = {.req = 0, .cached = len - 1, .device = len};
    world w;
    world_open(&w, &spec);
    const size_t row_bytes = w.out_ld * sizeof(float);
    world_request(&w, 0, len);
    float *want = whole(&w, len, how->tolerance), *decoded = malloc(row_bytes);
    world_step(&w, MSGL_DECODE, &last, 1);
    memcpy(decoded, w.out, row_bytes);
    check_chunks(&w, want, len, how);
    check_batch(&w, want, len, how);
    world_close(&w);
    for (int i = 0; how->pages[i] != 0; i++) {
        spec.page_size = how->pages[i];
        spec.threads = i == 0 ? 1 : 3;
        world other;
        world_open(&other, &spec);
        other.rng = spec.seed; // the same data; pages differ
        world_request(&other, 0, len);
        float *got = whole(&other, len, how->tolerance);
        expect_rows(&other, want, 0, 0, len, "page size");
        world_step(&other, MSGL_DECODE, &last, 1);
        expect_row(&other, how->phases ? want + (size_t)(len - 1) * other.out_ld : decoded, 0,
                   len - 1, "decode, page size");
        free(got);
        world_close(&other);
    }
    free(decoded);
    free(want);
}
