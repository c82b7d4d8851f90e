// SPDX-License-Identifier: Apache-2.0
//
// Every CUDA backend of the registry on this machine's GPU, through its descriptor as the engine
// uses it: the CPU suite's worlds and exact answers (tests/attention), graphs, and the promise of
// --deterministic. Exit code 77 without a GPU.
//
//     cuda_conformance [--quick] [--seed N] [--only PATTERN] [--part I/N] [--public]
//
// PATTERN: of names, with * and ?. Part I of N is every N-th case from the I-th on. --public: the
// shapes of the originals' public tests (attention/public_cases.h) instead of the others.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/invariance.h"
#include "attention/public_cases.h"
#include "core/attributes.h"
#include "device/devices.h"

typedef struct gpu {
    const msgl_plugin *plugin;
    msgl_device *plain, *fixed; // fixed: deterministic
    bool quick;
    uint64_t seed;
} gpu;

static gpu GPU; // cmocka's tests take no argument

// One test: what it checks is in its name too.
typedef struct test_case {
    const msgl_attn_desc *desc;
    msgl_dtype dtype;
    int mix;            // random steps: chunks, answers, or both
    bool latent;        // a latent cache
    bool deterministic; // graphs
    int variant;        // determinism
    int window, chunk;  // graphs
    const public_group *group;
    char name[128];
} test_case;

enum { MIX_CHUNKS, MIX_ANSWERS, MIX_BOTH };
enum { MAX_CASES = 512 };

static int pick(world *w, const int *set, int n)
{
    return set[world_int(w, 0, n - 1)];
}

// Page size i of those that the backend takes, if it takes only some.
static int page_size(const msgl_attn_desc *d, int i)
{
    int n = 0;
    while (n < MSGL_ATTN_MAX_SET && d->page_sizes[n] != 0) n++;
    return d->page_sizes[i % n];
}

static world_spec base_spec(const msgl_attn_desc *d, bool deterministic)
{
    return (world_spec){.desc = d,
                        .dtype = MSGL_BF16,
                        .group = 2,
                        .num_kv_heads = 2,
                        .head_dim = 128,
                        .page_size = d->page_rule == MSGL_PAGE_SET ? page_size(d, 0) : 16,
                        .max_running = 40,
                        .max_seq_len = 1300,
                        .max_step_tokens = 2400,
                        .threads = 8, // of the exact answer
                        .window = -1,
                        .dual_len = d->dual_chunk ? 160 : 0,
                        .deterministic = deterministic,
                        .seed = GPU.seed,
                        .dev = deterministic ? GPU.fixed : GPU.plain,
                        .plugin = GPU.plugin};
}

// The shape of DeepSeek's published models, with a few heads.
static void make_latent(world_spec *s)
{
    s->group = 4;
    s->num_kv_heads = 1;
    s->head_dim = 576;
    s->v_dim = 512;
}

// Of backends with labels.
static void make_sparse(world_spec *s, int channels, int tokens, int threshold)
{
    if (!s->desc->labels) return;
    s->heavy_channels = channels;
    s->heavy_tokens = tokens;
    s->threshold = threshold;
}

// What a backend is tested with: a latent cache if it takes nothing else.
static world_spec usual_spec(const msgl_attn_desc *d, bool deterministic)
{
    world_spec s = base_spec(d, deterministic);
    make_sparse(&s, 32, 100, 200);
    if (d->caches != 1u << MSGL_CACHE_LATENT) return s;
    make_latent(&s);
    s.page_size = d->page_override;
    return s;
}

// Heads and vectors of a latent cache.
static void random_latent(world *rng, world_spec *s)
{
    static const int latent[][2] = {{40, 32}, {72, 64}, {200, 136}, {576, 512}};
    static const int groups[] = {1, 16, 20, 64, 5, 128};
    const bool wide = world_int(rng, 0, 2) != 0;
    const int *dim = latent[wide ? 3 : world_int(rng, 0, 3)];
    s->head_dim = dim[0];
    s->v_dim = dim[1];
    s->group = pick(rng, groups, 6);
    s->num_kv_heads = 1;
    s->window = -1;
    s->softcap = 0;
}

// Heads of 512, or V of fewer elements than K; 0: as many.
static void random_wide(world *rng, world_spec *s)
{
    static const int dims[][2] = {{512, 0}, {192, 128}, {512, 256},
                                  {40, 32}, {256, 200}, {128, 64}};
    const int *dim = dims[world_int(rng, 0, 5)];
    s->head_dim = dim[0];
    s->v_dim = dim[1];
    s->v_apart = dim[1] != 0;
}

// Shapes that the descriptor allows: random, but half of the draws are those of published models.
// `chunks`: for prompts only.
static bool random_spec(world *rng, const msgl_attn_desc *d, msgl_dtype dtype, bool latent,
                        bool chunks, world_spec *out)
{
    static const int dims[] = {64, 128, 80, 96, 256, 72}, pages[] = {1, 16, 32, 64, 128, 7};
    static const int groups[] = {1, 2, 4, 5, 8, 7, 16, 3}, windows[] = {-1, -1, 0, 5, 100, 300};
    int num_pages = 0;
    while (num_pages < MSGL_ATTN_MAX_SET && d->page_sizes[num_pages] != 0) num_pages++;
    for (int tries = 0; tries < 1000; tries++) {
        world_spec s = base_spec(d, world_int(rng, 0, 3) == 0);
        const bool usual = world_int(rng, 0, 1) == 0;
        s.dtype = dtype;
        s.head_dim = pick(rng, dims, usual ? 2 : 6);
        s.group = pick(rng, groups, usual ? 5 : 8);
        s.num_kv_heads = world_int(rng, 1, usual ? 8 : 3);
        s.page_size = d->page_rule == MSGL_PAGE_SET ? pick(rng, d->page_sizes, num_pages)
                                                    : pick(rng, pages, 6);
        s.window = usual ? -1 : pick(rng, windows, 6);
        s.sinks = d->sinks && world_int(rng, 0, 2) == 0;
        s.softcap = !usual && world_int(rng, 0, 2) == 0 ? 20 : 0;
        if (d->local_chunks && !latent && world_int(rng, 0, 2) == 0) {
            static const int lens[] = {1, 7, 64, 256, 300, 1000};
            s.chunk = pick(rng, lens, 6);
        }
        if (d->own_v_dim && !latent && world_int(rng, 0, 2) == 0) random_wide(rng, &s);
        if (latent) random_latent(rng, &s);
        s.tree = d->tree && world_int(rng, 0, 2) == 0;
        static const int channels[] = {8, 32, 48}, tokens[] = {1, 20, 64, 100, 300, 600};
        if (d->labels)
            make_sparse(&s, pick(rng, channels, 3), pick(rng, tokens, 6),
                        world_int(rng, 0, 1) * 150);
        if (d->dual_chunk) s.dual_len = world_int(rng, 40, 400);
        s.max_running = 8;
        s.max_seq_len = 700;
        s.max_step_tokens = 1700;
        s.seed = world_random(rng);
        // What only flex_attention's kernel has; fa4's answers are fa's.
        const bool own = d->masks != 0 && (d->decode_by == NULL || chunks);
        if (own && world_int(rng, 0, 3) != 0) world_random_mods(rng, &s);
        *out = s;
        if (world_supports(&s, NULL) == 0) return true;
    }
    return false;
}

// The first `answers` requests have one token.
static void random_step(world *w, int answers, double *worst)
{
    step_req reqs[8];
    const int n = world_int(w, answers > 1 ? answers : 1, 8);
    for (int i = 0; i < n; i++) {
        const bool decode = i < answers;
        const int len = w->reqs[i].len, at = world_int(w, 0, len - 1);
        const int chunk = decode ? 1 : world_int(w, 1, len - at < 90 ? len - at : 90);
        reqs[i] = (step_req){.req = i, .cached = at, .device = at + chunk};
        if (!decode && world_int(w, 0, 2) == 0) reqs[i].cached = 0;
        const int most = w->spec.tree ? MSGL_MAX_TREE : 200;
        if (reqs[i].device - reqs[i].cached > most) reqs[i].cached = reqs[i].device - most;
    }
    world_mixed(w, answers, reqs, n);
    const world_spec *s = &w->spec;
    const double error = world_error(w, reqs, n), allowed = world_tolerance_gpu(s);
    if (error / allowed > *worst) *worst = error / allowed;
    if (error > allowed) {
        fail_msg(
            "%s, %d answers of %d: error %g > %g (dtype %d, heads %d x %d, dims %d %d, page %d, "
            "window %d, chunk %d, cap %g%s, deterministic %d, tree %d, masks %x, scores %x)",
            s->desc->name, answers, n, error, allowed, (int)s->dtype, s->group, s->num_kv_heads,
            s->head_dim, s->v_dim, s->page_size, s->window, s->chunk, (double)s->softcap,
            s->sinks ? ", sinks" : "", s->deterministic, s->tree, s->masks, s->scores);
    }
}

static int answers_of(world *w, const test_case *c)
{
    return c->mix == MIX_CHUNKS ? 0 : c->mix == MIX_ANSWERS ? 8 : world_int(w, 1, 6);
}

static void test_random(void **state)
{
    const test_case *c = *state;
    world rng = {.rng = GPU.seed + (uint64_t)c->mix};
    const int worlds = GPU.quick ? 2 : 16;
    double worst = 0;
    for (int i = 0; i < worlds; i++) {
        world_spec spec;
        if (!random_spec(&rng, c->desc, c->dtype, c->latent, c->mix == MIX_CHUNKS, &spec)) {
            fail_msg("no shape that it supports");
        }
        world w;
        world_open(&w, &spec); // create refuses nothing that supports has accepted
        for (int r = 0; r < 8; r++) {
            world_request(&w, r, r == 0 ? 1 : world_int(&w, 1, r < 3 ? 700 : 120));
        }
        random_step(&w, answers_of(&w, c), &worst);
        random_step(&w, answers_of(&w, c), &worst);
        world_release(&w, 1); // its pages go to another request
        world_request(&w, 1, 300);
        random_step(&w, answers_of(&w, c), &worst);
        world_close(&w);
    }
    print_message("%d worlds, largest error %.2f of what is allowed\n", worlds, worst);
}

// A captured decode step, replayed for other requests and lengths, against exact attention; the
// same bits when launched twice, and those of an eager step when deterministic.
static void test_graph(void **state)
{
    enum { SIZE = 8 };
    const test_case *c = *state;
    const msgl_attn_desc *d = c->desc;
    const bool deterministic = c->deterministic;
    world_spec spec = base_spec(d, deterministic);
    spec.dtype = c->dtype;
    spec.window = c->window;
    spec.chunk = c->chunk;
    spec.group = c->window >= 0 ? 4 : 2; // from 4 on fi decodes with tensor cores
    if (c->latent) make_latent(&spec);
    make_sparse(&spec, 32, 100, 200);
    if (d->page_rule == MSGL_PAGE_SET) spec.page_size = d->page_override;
    msgl_err err = {0};
    if (!d->graph) skip();
    if (world_supports(&spec, &err) != 0) fail_msg("%s", err.text);
    world w;
    world_open(&w, &spec);
    for (int i = 0; i < SIZE; i++) world_request(&w, i, world_int(&w, 1, 1200));
    const msgl_device_ops *ops = spec.dev->ops;
    world_prepare_dummies(&w, SIZE);
    world_upload(&w);
    world_attend(&w); // kernels load at their first use, which a capture cannot contain
    ops->graph_begin(spec.dev);
    world_attend(&w);
    msgl_graph *graph = ops->graph_end(spec.dev, &err);
    if (graph == NULL) fail_msg("%s: capture: %s", d->name, err.text);
    for (int round = 0; round < (GPU.quick ? 3 : 20); round++) {
        step_req reqs[SIZE];
        const int n = world_int(&w, 1, SIZE);
        for (int i = 0; i < n; i++) {
            const int at = world_int(&w, 0, w.reqs[i].len - 1);
            reqs[i] = (step_req){.req = i, .cached = at, .device = at + 1};
        }
        w.graph_size = 0;
        world_step(&w, MSGL_DECODE, reqs, n);
        const size_t bytes = (size_t)n * w.out_ld * sizeof(float);
        float *eager = malloc(bytes);
        memcpy(eager, w.out, bytes);
        w.graph_size = SIZE;
        world_prepare(&w, MSGL_DECODE, reqs, n);
        memset(w.qkv + (size_t)n * w.ld, 0, (size_t)(SIZE - n) * w.ld * sizeof(float));
        world_upload(&w);
        ops->graph_launch(spec.dev, graph);
        world_download(&w);
        const double error = world_error(&w, reqs, n);
        if (error > world_tolerance_gpu(&spec)) fail_msg("%s: replay: error %g", d->name, error);
        if (deterministic && memcmp(eager, w.out, bytes) != 0) {
            fail_msg("%s: a replay's bits differ from an eager step's (round %d)", d->name, round);
        }
        // Launched again on the same inputs.
        memcpy(eager, w.out, bytes);
        world_upload(&w);
        ops->graph_launch(spec.dev, graph);
        world_download(&w);
        assert_memory_equal(eager, w.out, bytes);
        free(eager);
    }
    ops->graph_destroy(spec.dev, graph);
    world_close(&w);
}

static const struct {
    int group, head_dim, window;
    float softcap;
    msgl_dtype dtype;
    int v_dim; // 0: head_dim
} VARIANTS[] = {{2, 128, -1, 0, MSGL_BF16, 0},  {5, 128, -1, 0, MSGL_BF16, 0},
                {1, 64, 300, 0, MSGL_F16, 0},   {4, 128, -1, 30, MSGL_BF16, 0},
                {2, 64, -1, 0, MSGL_F32, 0},    {8, 512, -1, 0, MSGL_BF16, 0},
                {4, 192, 300, 0, MSGL_F16, 128}};

static void test_deterministic(void **state)
{
    const test_case *c = *state;
    const int v = c->variant;
    world_spec s = base_spec(c->desc, true);
    s.group = VARIANTS[v].group;
    s.head_dim = VARIANTS[v].head_dim;
    s.v_dim = VARIANTS[v].v_dim;
    s.v_apart = s.v_dim != 0;
    s.window = VARIANTS[v].window;
    s.softcap = VARIANTS[v].softcap;
    s.dtype = VARIANTS[v].dtype;
    if (c->desc->page_rule == MSGL_PAGE_SET) s.page_size = page_size(c->desc, 1);
    if (c->latent) make_latent(&s);
    make_sparse(&s, 16, 150, 300);
    msgl_err err = {0};
    if (world_supports(&s, &err) != 0) {
        print_message("%s\n", err.text);
        skip();
    }
    invariance how = {.tolerance = world_tolerance_gpu(&s), .pages = {1, 64}, .rounds = 6};
    if (c->desc->page_rule == MSGL_PAGE_SET) {
        how.pages[0] = page_size(c->desc, 0);
        how.pages[1] = page_size(c->desc, 2);
    }
    check_invariance(&s, GPU.quick ? 300 : 1100, &how);
}

static void add(test_case *cases, struct CMUnitTest *tests, int *n, CMUnitTestFunction fn,
                test_case c)
{
    if (*n == MAX_CASES) {
        fprintf(stderr, "more than %d cases\n", MAX_CASES);
        exit(1);
    }
    cases[*n] = c;
    tests[*n] = (struct CMUnitTest){cases[*n].name, fn, NULL, NULL, &cases[*n]};
    (*n)++;
}

// Random steps and graphs of a backend with a dtype and a kind of cache.
static void add_steps(test_case *cases, struct CMUnitTest *tests, int *n, test_case c)
{
    static const char *const names[] = {"chunks", "answers", "both"};
    const char *name = c.desc->name, *dtype = msgl__dtype_name(c.dtype);
    const char *kind = c.latent ? " latent" : "";
    for (c.mix = MIX_CHUNKS; c.mix <= MIX_BOTH; c.mix++) {
        snprintf(c.name, sizeof c.name, "%s%s %s %s", name, kind, dtype, names[c.mix]);
        add(cases, tests, n, test_random, c);
    }
    const bool local = c.desc->local_chunks;
    for (int i = 0; i < (c.latent ? 2 : local ? 6 : 4); i++) {
        c.deterministic = i % 2 != 0;
        c.window = i / 2 == 1 ? 100 : -1;
        c.chunk = i / 2 == 2 ? 200 : 0;
        if (c.window >= 0 && !c.desc->sliding_window) continue;
        snprintf(c.name, sizeof c.name, "%s%s %s graph%s%s%s", name, kind, dtype,
                 c.window >= 0 ? ", window" : "", c.chunk > 0 ? ", local" : "",
                 c.deterministic ? ", deterministic" : "");
        add(cases, tests, n, test_graph, c);
    }
}

// That bits do not depend on the batch.
static void add_deterministic(test_case *cases, struct CMUnitTest *tests, int *n, test_case c)
{
    for (size_t i = 0; i < (GPU.quick || c.latent ? 1 : MSGL_COUNT(VARIANTS)); i++) {
        c.variant = (int)i;
        snprintf(c.name, sizeof c.name, "%s%s deterministic: %s, group %d, head_dim %d%s%s",
                 c.desc->name, c.latent ? " latent" : "", msgl__dtype_name(VARIANTS[i].dtype),
                 VARIANTS[i].group, c.latent ? 576 : VARIANTS[i].head_dim,
                 VARIANTS[i].window >= 0 ? ", window" : "", VARIANTS[i].softcap > 0 ? ", cap" : "");
        add(cases, tests, n, test_deterministic, c);
    }
}

// What the backend has kernels for of a public test's cases.
static void test_public(void **state)
{
    const test_case *c = *state;
    int runs = 0;
    double worst = 0;
    for (int i = 0; i < c->group->count; i++) {
        world_spec s = public_spec(&c->group->cases[i], c->desc);
        s.threads = 8; // of the exact answer
        s.dev = GPU.plain;
        s.plugin = GPU.plugin;
        if (world_supports(&s, NULL) != 0) continue;
        const double error = public_run(&c->group->cases[i], &s);
        const double allowed = world_tolerance_gpu(&s);
        if (error > allowed) fail_msg("case %d: error %g > %g", i, error, allowed);
        if (error / allowed > worst) worst = error / allowed;
        runs++;
    }
    if (runs == 0) skip();
    print_message("%d of %d cases, largest error %.2f of what is allowed\n", runs, c->group->count,
                  worst);
}

// Every backend, with each group of public cases.
static int add_public(test_case *cases, struct CMUnitTest *tests)
{
    int num_groups, n = 0;
    const msgl_attn_desc *const *all = GPU.plugin->backends->all;
    const public_group *groups = public_groups(&num_groups);
    for (int i = 0; all[i] != NULL; i++) {
        for (int g = 0; g < num_groups; g++) {
            test_case c = {.desc = all[i], .group = &groups[g]};
            snprintf(c.name, sizeof c.name, "%s: %s", all[i]->name, groups[g].source);
            add(cases, tests, &n, test_public, c);
        }
    }
    return n;
}

// Whether it has a kernel for this kind of cache of this dtype: descriptors list them apart.
static bool has_cache(const test_case *c)
{
    msgl_err why = {0};
    world_spec s = base_spec(c->desc, false);
    s.dtype = c->dtype;
    if (c->latent) make_latent(&s);
    if (world_supports(&s, &why) == 0) return true;
    printf("%s not checked: %s\n", c->desc->name, why.text);
    return false;
}

// The cases of one backend.
static void add_backend(test_case *cases, struct CMUnitTest *tests, int *n, const msgl_attn_desc *d)
{
    for (int latent = 0; latent < 2; latent++) {
        const uint32_t caches = d->caches != 0 ? d->caches : 1u << MSGL_CACHE_KV;
        test_case c = {.desc = d, .latent = latent != 0};
        if ((caches & 1u << (latent ? MSGL_CACHE_LATENT : MSGL_CACHE_KV)) == 0) continue;
        for (int t = 0; t < MSGL_DTYPE_COUNT; t++) {
            // Fast kernels are for bfloat16 and E4M3; all others are torch_native's.
            const bool fast = t == MSGL_BF16 || t == MSGL_E4M3;
            const bool fits = !latent || fast || strcmp(d->name, "torch_native") == 0;
            c.dtype = (msgl_dtype)t;
            if (!fits || (d->kv_dtypes & 1u << t) == 0) continue;
            if (has_cache(&c)) add_steps(cases, tests, n, c);
        }
        add_deterministic(cases, tests, n, c);
    }
}

// Every backend that this machine can use.
static int add_all(test_case *cases, struct CMUnitTest *tests)
{
    int n = 0;
    const msgl_attn_desc *const *all = GPU.plugin->backends->all;
    for (int i = 0; all[i] != NULL; i++) {
        msgl_err why = {0};
        const world_spec s = usual_spec(all[i], false);
        if (world_supports(&s, &why) != 0) {
            printf("%s not checked: %s\n", all[i]->name, why.text);
        } else {
            add_backend(cases, tests, &n, all[i]);
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    msgl_err err = {0};
    GPU.seed = 1234;
    int part = 1, parts = 1;
    bool shapes = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) GPU.quick = true;
        if (strcmp(argv[i], "--public") == 0) shapes = true;
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) GPU.seed = strtoull(argv[++i], NULL, 0);
        if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) cmocka_set_test_filter(argv[++i]);
        if (strcmp(argv[i], "--part") == 0 && i + 1 < argc &&
            (sscanf(argv[++i], "%d/%d", &part, &parts) != 2 || part < 1 || part > parts)) {
            fprintf(stderr, "--part %s: I/N with 1 <= I <= N\n", argv[i]);
            return 2;
        }
    }
    GPU.plugin = msgl__plugin_of("cuda", &err);
    if (GPU.plugin == NULL || GPU.plugin->count(&err) == 0) {
        fprintf(stderr, "skipped: %s\n", err.text);
        return 77;
    }
    const msgl_device_options plain = {.ordinal = 0}, fixed = {.deterministic = true};
    if (GPU.plugin->open(&plain, &GPU.plain, NULL, &err) != 0 ||
        GPU.plugin->open(&fixed, &GPU.fixed, NULL, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    static test_case cases[MAX_CASES];
    static struct CMUnitTest tests[MAX_CASES];
    const int all = shapes ? add_public(cases, tests) : add_all(cases, tests);
    if (all == 0) return 1;
    int n = 0;
    for (int i = part - 1; i < all; i += parts) tests[n++] = tests[i];
    const int failed = _cmocka_run_group_tests("conformance", tests, (size_t)n, NULL, NULL);
    GPU.plain->ops->destroy(GPU.plain);
    GPU.fixed->ops->destroy(GPU.fixed);
    return failed;
}
