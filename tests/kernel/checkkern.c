// SPDX-License-Identifier: Apache-2.0
//
// The part of checkkern that families call: which kernels are due, random numbers, guarded buffers,
// comparison, timing.
#include "kernel/checkkern.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkkern_state.h"
#include "core/round.h"
#include "utils/clock.h"
#include "utils/hash.h"
#include "utils/random.h"
#include "utils/stats.h"

enum { GUARD = 256, ALIGN = 64 };            // bytes around a guarded buffer
static const uint32_t PATTERN = 0x7fb5a5a5u; // a NaN that no kernel produces

static void finish_function(ck_state *s)
{
    if (s->function[0] == '\0') return;
    if (s->compared == 0) {
        fprintf(stderr, "%s/%s: nothing was compared\n", s->family, s->function);
        s->failures++;
    }
    s->function[0] = '\0';
}

void msgl__ck_finish(checkkern *ck)
{
    finish_function(ck->state);
    msgl__ck_reset(ck);
}

bool msgl__ck_func(checkkern *ck, ck_fn cur, ck_fn prev, const char *name, ...)
{
    ck_state *s = ck->state;
    finish_function(s);
    char text[sizeof s->function];
    va_list ap;
    va_start(ap, name);
    vsnprintf(text, sizeof text, name, ap);
    va_end(ap);
    if (s->only_function != NULL && strncmp(text, s->only_function, strlen(s->only_function)) != 0)
        return false;
    if (cur == NULL) {
        fprintf(stderr, "%s/%s: no kernel in the table\n", s->family, text);
        s->failures++;
        return false;
    }
    if (cur == prev) return false;
    if (s->list) {
        printf("%-11s %s/%s\n", msgl__cpu_level_name(ck->cur->level), s->family, text);
        s->checks++;
        return false;
    }
    memcpy(s->function, text, sizeof text);
    s->compared = 0;
    s->checks++;
    // Of the name, so that a check's numbers do not depend on which checks ran before it.
    s->rng = msgl__hash(MSGL_HASH_START ^ s->seed, text, strlen(text));
    return true;
}

uint64_t msgl__ck_rand(checkkern *ck)
{
    return msgl__random(&ck->state->rng);
}

int msgl__ck_int(checkkern *ck, int lo, int hi)
{
    return lo + (int)(msgl__ck_rand(ck) % (uint64_t)(hi - lo + 1));
}

float msgl__ck_uniform(checkkern *ck, float lo, float hi)
{
    return lo + (hi - lo) * msgl__random_unit(&ck->state->rng);
}

float msgl__ck_normal(checkkern *ck) // Box-Muller
{
    const double u = ((double)(msgl__ck_rand(ck) >> 11) + 0.5) * 0x1p-53;
    const double v = (double)(msgl__ck_rand(ck) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

typedef struct block {
    struct block *next;
    char pad[ALIGN - sizeof(struct block *)];
} block;

void *msgl__ck_alloc(checkkern *ck, size_t bytes)
{
    const size_t size = msgl__round_up(sizeof(block) + bytes, ALIGN);
    block *b = aligned_alloc(ALIGN, size);
    if (b == NULL) {
        fprintf(stderr, "checkkern: no memory for %zu bytes\n", size);
        exit(1);
    }
    memset(b, 0, size);
    b->next = ck->state->blocks;
    ck->state->blocks = b;
    return b + 1;
}

void msgl__ck_reset(checkkern *ck)
{
    for (block *b = ck->state->blocks, *next; b != NULL; b = next) {
        next = b->next;
        free(b);
    }
    ck->state->blocks = NULL;
}

ck_buf msgl__ck_buf(checkkern *ck, int rows, int cols, size_t ld)
{
    const size_t n = (size_t)rows * ld * sizeof(float) + 2 * GUARD;
    uint32_t *p = msgl__ck_alloc(ck, n);
    for (size_t i = 0; i < n / 4; i++) p[i] = PATTERN;
    return (ck_buf){(float *)((char *)p + GUARD), rows, cols, ld};
}

static bool fail(checkkern *ck, const char *what, const char *fmt, ...)
{
    ck_state *s = ck->state;
    va_list ap;
    s->failures++;
    if (s->failures > 50) return false; // enough to see what is wrong
    fprintf(stderr, "FAIL %s %s/%s %s: ", msgl__cpu_level_name(ck->cur->level), s->family,
            s->function, what);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return false;
}

static bool untouched(const float *p, size_t n)
{
    uint32_t u;
    for (size_t i = 0; i < n; i++) {
        memcpy(&u, &p[i], sizeof u);
        if (u != PATTERN) return false;
    }
    return true;
}

static bool guards_ok(checkkern *ck, const char *what, const ck_buf *b)
{
    const size_t g = GUARD / sizeof(float);
    if (!untouched(b->data - g, g)) return fail(ck, what, "wrote before the result");
    if (!untouched(b->data + (size_t)b->rows * b->ld, g)) {
        return fail(ck, what, "wrote after the result");
    }
    for (int r = 0; r < b->rows; r++) {
        if (!untouched(b->data + (size_t)r * b->ld + b->cols, b->ld - (size_t)b->cols)) {
            return fail(ck, what, "wrote into the padding of row %d", r);
        }
    }
    return true;
}

bool msgl__ck_near(checkkern *ck, const char *what, const ck_buf *buf, const double *want,
                   ck_tol tol)
{
    ck_state *s = ck->state;
    s->compared++;
    if ((const void *)buf->data == (const void *)want) {
        return fail(ck, what, "compared with itself");
    }
    double err2 = 0, ref2 = 0;
    for (int r = 0; r < buf->rows; r++) {
        for (int c = 0; c < buf->cols; c++) {
            const double g = (double)buf->data[(size_t)r * buf->ld + (size_t)c];
            const double w = want[(size_t)r * (size_t)buf->cols + (size_t)c];
            if (!isfinite(g) || !isfinite(w)) {
                if ((isnan(g) && isnan(w)) || g == w) continue;
                return fail(ck, what, "[%d,%d] is %g, oracle %g", r, c, g, w);
            }
            const double e = fabs(g - w);
            if (e > tol.abs + tol.rel * fabs(w)) {
                return fail(ck, what, "[%d,%d] is %.9g, oracle %.9g: off by %.3g, allowed %.3g", r,
                            c, g, w, e, tol.abs + tol.rel * fabs(w));
            }
            err2 += e * e;
            ref2 += w * w;
        }
    }
    const double nmse = err2 > 0 ? err2 / ref2 : 0;
    if (!(nmse <= tol.nmse)) {
        return fail(ck, what, "normalised mean square error %.3g, allowed %.3g", nmse, tol.nmse);
    }
    if (isfinite(tol.nmse) && nmse > s->worst_nmse) s->worst_nmse = nmse;
    return guards_ok(ck, what, buf);
}

bool msgl__ck_same(checkkern *ck, const char *what, const float *a, const float *b, size_t n)
{
    ck->state->compared++;
    if (a == b) return fail(ck, what, "compared with itself");
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0) {
            return fail(ck, what, "element %zu: %.9g and %.9g differ", i, (double)a[i],
                        (double)b[i]);
        }
    }
    return true;
}

bool msgl__ck_true(checkkern *ck, bool ok, const char *what, ...)
{
    ck->state->compared++;
    if (ok) return true;
    char text[256];
    va_list ap;
    va_start(ap, what);
    vsnprintf(text, sizeof text, what, ap);
    va_end(ap);
    return fail(ck, text, "not so");
}

enum { MAX_SAMPLES = 4096 };
static const double BENCH_S = 0.25;

// Shortest possible time in ns, and which limit it is.
static double least_ns(const checkkern *ck, double bytes, double flops, ck_limit which,
                       const char **name)
{
    const struct msgl_limits *l = &ck->state->limits;
    const int level = (int)ck->cur->level;
    const double rate = which == CK_LIMIT_BF16   ? l->bf16_gflop_s[level]
                        : which == CK_LIMIT_INT8 ? l->int8_gop_s[level]
                                                 : l->f32_gflop_s[level];
    const double read = l->read_gb_s > 0 ? bytes / l->read_gb_s : 0;
    const double math = which != CK_LIMIT_READ && rate > 0 ? flops / rate : 0;
    static const char *const MATH[] = {
        [CK_LIMIT_F32] = "f32", [CK_LIMIT_BF16] = "bf16", [CK_LIMIT_INT8] = "int8"};
    *name = read >= math ? "read" : MATH[which];
    return read >= math ? read : math;
}

void msgl__ck_time(checkkern *ck, void (*fn)(void *arg, int i), void *arg, double bytes,
                   double flops, ck_limit limit)
{
    ck_state *s = ck->state;
    static double samples[MAX_SAMPLES];
    int n = 0;
    const uint64_t start = msgl__now_ns();
    for (int i = 0; i < 2; i++) fn(arg, i); // wakes the pool, touches the pages
    while (n < MAX_SAMPLES && (n < 5 || (double)(msgl__now_ns() - start) < BENCH_S * 1e9)) {
        const uint64_t t = msgl__now_ns();
        fn(arg, n + 2);
        samples[n++] = (double)(msgl__now_ns() - t);
    }
    const double ns = msgl__median(samples, (size_t)n), best = samples[n / 20];
    const char *name;
    const double least = least_ns(ck, bytes, flops, limit, &name);
    printf("%-10s %-30s %9.1f us (best %9.1f) %6.1f GB/s %7.1f GFLOP/s %5.1f%% of %s\n",
           msgl__cpu_level_name(ck->cur->level), s->function, ns / 1e3, best / 1e3, bytes / ns,
           flops / ns, 100 * least / ns, name);
    fflush(stdout);
}
