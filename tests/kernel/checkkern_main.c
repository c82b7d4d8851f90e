// SPDX-License-Identifier: Apache-2.0
//
// The command line of checkkern: walks the ISA levels upward and calls every family at each.
// Exit status: 0 all passed, 1 a failure or nothing checked, 2 bad usage, 77 the machine lacks the
// level that was asked for.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkkern_state.h"
#include "core/mem.h"
#include "families.h"
#include "utils/threadpool.h"

#define DECLARE(name) void msgl__check_##name(checkkern *ck);
MSGL_CHECK_FAMILIES(DECLARE)

static const struct family {
    const char *name;
    void (*check)(checkkern *ck);
} FAMILIES[] = {
#define ENTRY(name) {#name, msgl__check_##name},
    MSGL_CHECK_FAMILIES(ENTRY)};

static const size_t SCRATCH = (size_t)256 << 20;

typedef struct options {
    const char *family, *cpu;
    int threads;
    bool bench;
} options;

static int usage(const char *bad)
{
    fprintf(stderr, "checkkern: bad argument %s\n", bad);
    fputs("usage: checkkern [--test=FAMILY] [--function=PREFIX] [--cpu=LEVEL] [--seed=N]\n"
          "                 [--threads=N] [--bench] [--list]\n"
          "LEVEL:",
          stderr);
    for (int l = 0; l < msgl__cpu_levels(); l++) {
        fprintf(stderr, "%s %s", l > 0 ? "," : "", msgl__cpu_level_name(l));
    }
    fputs("; only the kernels that this level adds\nFAMILY:", stderr);
    for (size_t i = 0; i < MSGL_COUNT(FAMILIES); i++) fprintf(stderr, " %s", FAMILIES[i].name);
    fputc('\n', stderr);
    return 2;
}

static const char *value_of(const char *arg, const char *name)
{
    const size_t n = strlen(name);
    return strncmp(arg, name, n) == 0 ? arg + n : NULL;
}

static bool parse(int argc, char **argv, options *o, ck_state *s)
{
    for (int i = 1; i < argc; i++) {
        const char *v;
        if ((v = value_of(argv[i], "--test=")) != NULL) {
            o->family = v;
        } else if ((v = value_of(argv[i], "--function=")) != NULL) {
            s->only_function = v;
        } else if ((v = value_of(argv[i], "--cpu=")) != NULL) {
            o->cpu = v;
        } else if ((v = value_of(argv[i], "--seed=")) != NULL) {
            s->seed = strtoull(v, NULL, 0);
        } else if ((v = value_of(argv[i], "--threads=")) != NULL) {
            o->threads = (int)strtol(v, NULL, 10);
        } else if (strcmp(argv[i], "--bench") == 0) {
            o->bench = true;
        } else if (strcmp(argv[i], "--list") == 0) {
            s->list = true;
        } else {
            usage(argv[i]);
            return false;
        }
    }
    return true;
}

static void run_level(checkkern *ck, const options *o)
{
    ck_state *s = ck->state;
    for (size_t i = 0; i < MSGL_COUNT(FAMILIES); i++) {
        if (o->family != NULL && strcmp(o->family, FAMILIES[i].name) != 0) continue;
        s->family = FAMILIES[i].name;
        s->worst_nmse = 0;
        const int before = s->checks, failed = s->failures;
        FAMILIES[i].check(ck);
        msgl__ck_finish(ck);
        if (s->list || o->bench || s->checks == before) continue;
        printf("%-11s %-6s %4d checks, %d failures, worst nmse %.2g\n",
               msgl__cpu_level_name(ck->cur->level), s->family, s->checks - before,
               s->failures - failed, s->worst_nmse);
    }
}

// The machine's limits, printed once; a bench that cannot have them reports shares of 0.
static void measure_limits(msgl_exec *x, ck_state *s, msgl_cpu_level top)
{
    if (msgl__measure_limits(x->pool, top, &s->limits, 2.0) != 0) return;
    printf("limits with %d threads: read %.1f GB/s", msgl__pool_threads(x->pool),
           s->limits.read_gb_s);
    for (int l = 0; l <= top; l++) {
        printf("; %s f32 %.0f bf16 %.0f GFLOP/s, int8 %.0f GOP/s", msgl__cpu_level_name(l),
               s->limits.f32_gflop_s[l], s->limits.bf16_gflop_s[l], s->limits.int8_gop_s[l]);
    }
    putchar('\n');
}

static int run_all(const options *o, ck_state *s, msgl_exec *many, msgl_exec *one)
{
    msgl_err err;
    msgl_cpu_level top, from = MSGL_CPU_REF;
    const int rc = msgl__cpu_level_select(o->cpu, &top, &err);
    if (rc == MSGL_EUNSUPPORTED) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    if (rc != 0) return usage(err.text);
    if (o->cpu != NULL && o->cpu[0] != '\0') from = top;
    if (o->bench) measure_limits(many, s, top);
    static msgl_kernels tables[MSGL_CPU_MAX_LEVELS];
    for (int l = 0; l <= top; l++) msgl__kernels_init_cpu(&tables[l], l);
    for (int l = from; l <= top; l++) {
        checkkern ck = {.cur = &tables[l],
                        .prev = l > 0 ? &tables[l - 1] : NULL,
                        .exec = many,
                        .exec1 = one,
                        .bench = o->bench,
                        .state = s};
        run_level(&ck, o);
    }
    if (s->checks == 0) {
        fputs("nothing was checked: no kernel matches\n", stderr);
        return 1;
    }
    return s->failures > 0;
}

static bool make_exec(msgl_exec *x, msgl_arena *arena, int threads)
{
    msgl_err err;
    void *scratch = msgl__pages_alloc(SCRATCH);
    if (scratch == NULL || msgl__pool_create(threads, &x->pool, &err) != 0) return false;
    msgl__arena_init(arena, scratch, SCRATCH);
    x->scratch = arena;
    return true;
}

int main(int argc, char **argv)
{
    static ck_state state = {.seed = 1};
    const int cores = msgl__physical_cores();
    options o = {.threads = cores > 2 ? cores : 2};
    if (!parse(argc, argv, &o, &state)) return 2;
    bool known = o.family == NULL;
    for (size_t i = 0; i < MSGL_COUNT(FAMILIES); i++) {
        known = known || strcmp(o.family, FAMILIES[i].name) == 0;
    }
    if (!known) return usage(o.family);
    msgl_arena arenas[2];
    msgl_exec many = {0}, one = {0};
    if (!make_exec(&many, &arenas[0], o.threads) || !make_exec(&one, &arenas[1], 1)) {
        fputs("checkkern: cannot start the thread pool\n", stderr);
        return 1;
    }
    const int rc = run_all(&o, &state, &many, &one);
    msgl__pool_destroy(many.pool);
    msgl__pool_destroy(one.pool);
    msgl__pages_free(arenas[0].base, SCRATCH);
    msgl__pages_free(arenas[1].base, SCRATCH);
    return rc;
}
