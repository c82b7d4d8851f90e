// SPDX-License-Identifier: Apache-2.0
//
// Every backend of the registry, at every ISA level, against exact attention in f64: random batches
// of mixed lengths, cached prefixes, permuted pages, all head dims, groups, windows and caps.
// Whatever a step must not read is poison. And trees against answers, to the bit.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/fa/fa.h"
#include "attention/trtllm/trtllm.h"
#include "attention/world.h"
#include "core/attributes.h"
#include "core/mem.h"

static int pick(world *w, const int *set, int n)
{
    return set[world_int(w, 0, n - 1)];
}

static world_spec random_spec(world *rng, const msgl_attn_desc *d, msgl_cpu_level level)
{
    static const int dims[] = {64, 80, 96, 128, 256, 72, 512}, pages[] = {1, 16, 32, 64, 7};
    static const int windows[] = {-1, -1, 0, 5, 100, 255, 256, 300};
    world_spec s = {.desc = d,
                    .level = level,
                    .max_running = 8,
                    .max_seq_len = 700,
                    .max_step_tokens = 2048,
                    .seed = world_random(rng)};
    do {
        s.dtype = (msgl_dtype)world_int(rng, 0, MSGL_DTYPE_COUNT - 1);
    } while ((d->kv_dtypes & 1u << s.dtype) == 0);
    s.group = world_int(rng, 1, 16);
    s.num_kv_heads = world_int(rng, 1, 3);
    s.head_dim = pick(rng, dims, msgl__attn_max_dim(d, MSGL_CACHE_KV) >= 512 ? 7 : 6);
    s.page_size = pick(rng, pages, 5);
    if (d->page_rule == MSGL_PAGE_SET) {
        int n = 0;
        while (n < MSGL_ATTN_MAX_SET && d->page_sizes[n] != 0) n++;
        s.page_size = d->page_sizes[world_int(rng, 0, n - 1)];
    }
    s.threads = world_int(rng, 1, 3);
    s.window = pick(rng, windows, 8);
    if (d->local_chunks && world_int(rng, 0, 2) == 0) {
        static const int chunks[] = {1, 7, 64, 256, 300, 1000};
        s.chunk = pick(rng, chunks, 6);
    }
    s.softcap = world_int(rng, 0, 2) == 0 ? 20 : 0;
    s.deterministic = world_int(rng, 0, 3) == 0;
    s.tree = d->tree && world_int(rng, 0, 2) == 0;
    if (d->masks != 0 && world_int(rng, 0, 3) != 0) world_random_mods(rng, &s);
    if (d->dual_chunk) {
        static const int lens[] = {48, 160, 256, 300, 7};
        s.dual_len = pick(rng, lens, 5);
        s.window = -1;
        s.softcap = 0;
    }
    if (d->labels) {
        static const int channels[] = {8, 16, 32, 64}, tokens[] = {1, 16, 64, 100, 300, 700};
        static const int thresholds[] = {0, 0, 100, 400};
        s.heavy_channels = pick(rng, channels, 4);
        s.heavy_tokens = pick(rng, tokens, 6);
        s.threshold = pick(rng, thresholds, 4);
        s.window = -1;
    }
    const bool only = d->caches == 1u << MSGL_CACHE_LATENT;
    if (only || ((d->caches & 1u << MSGL_CACHE_LATENT) != 0 && world_int(rng, 0, 2) == 0)) {
        static const int latent[][2] = {{40, 32}, {72, 64}, {200, 136}, {576, 512}};
        const int *dim = latent[world_int(rng, 0, 3)];
        s.head_dim = dim[0];
        s.v_dim = dim[1];
        s.group = dim[0] <= 72 && world_int(rng, 0, 2) == 0 ? 70 : world_int(rng, 1, 20);
        s.num_kv_heads = 1;
        s.window = -1;
        s.chunk = 0;
        if (only) s.softcap = 0;
    }
    if (d->own_v_dim && s.v_dim == 0 && world_int(rng, 0, 2) == 0) {
        static const int apart[][2] = {{40, 32}, {72, 64}, {192, 128}, {256, 200}};
        const int *dim = apart[world_int(rng, 0, 3)];
        s.head_dim = dim[0];
        s.v_dim = dim[1];
        s.v_apart = true;
    }
    s.sinks = d->sinks && world_int(rng, 0, 2) == 0;
    return s;
}

// The first answers requests have one token.
static void random_step(world *w, int answers)
{
    step_req reqs[8];
    const int n = world_int(w, answers > 1 ? answers : 1, 8);
    for (int i = 0; i < n; i++) {
        const bool decode = i < answers;
        const int len = w->reqs[i].len, at = world_int(w, 0, len - 1);
        const int chunk = decode ? 1 : world_int(w, 1, len - at < 90 ? len - at : 90);
        reqs[i] = (step_req){.req = i, .cached = at, .device = at + chunk};
        if (!decode && world_int(w, 0, 2) == 0) reqs[i].cached = 0; // and a whole prompt
        const int most = w->spec.tree ? MSGL_MAX_TREE : 200;
        if (reqs[i].device - reqs[i].cached > most) reqs[i].cached = reqs[i].device - most;
    }
    world_mixed(w, answers, reqs, n);
    const double error = world_error(w, reqs, n);
    const double allowed = world_tolerance(w->spec.desc->name, w->spec.dtype);
    if (error > allowed) {
        fail_msg("%s %s: error %g > %g (dtype %d, group %d, dim %d, page %d, window %d, chunk %d, "
                 "cap %g, "
                 "tree %d%s, masks %x, scores %x)",
                 w->spec.desc->name, msgl__cpu_level_name(w->spec.level), error, allowed,
                 (int)w->spec.dtype, w->spec.group, w->spec.head_dim, w->spec.page_size,
                 w->spec.window, w->spec.chunk, (double)w->spec.softcap, w->spec.tree,
                 w->spec.sinks ? ", sinks" : "", w->spec.masks, w->spec.scores);
    }
}

// Whether it has kernels of the ISA levels.
static bool has_levels(const msgl_attn_desc *d)
{
    return strcmp(d->name, "torch_native") != 0 && d->masks == 0;
}

static void check_backend(const msgl_attn_desc *d, msgl_cpu_level level, int worlds)
{
    world rng = {.rng = 1234 + (uint64_t)level};
    for (int i = 0; i < worlds; i++) {
        const world_spec spec = random_spec(&rng, d, level);
        world w;
        world_open(&w, &spec);
        for (int r = 0; r < 8; r++) {
            world_request(&w, r, r == 0 ? 1 : world_int(&w, 1, r < 3 ? 700 : 120));
        }
        const bool answers = spec.masks == 0 || d->decode_by == NULL;
        for (int step = 0; step < 4; step++) random_step(&w, answers ? world_int(&w, 0, 8) : 0);
        world_release(&w, 1); // its pages go to another request
        world_request(&w, 1, 300);
        random_step(&w, 0);
        world_close(&w);
    }
}

static void test_all(void **state)
{
    (void)state;
    const msgl_attn_desc *const *all = msgl__attn_cpu.all;
    const msgl_cpu_level have = msgl__cpu_level_detect();
    for (int i = 0; all[i] != NULL; i++) {
        for (int level = 0; level <= have; level++) {
            if (level != have && !has_levels(all[i])) continue;
            const int worlds = all[i]->masks != 0 ? 24 : level == MSGL_CPU_REF ? 4 : 12;
            check_backend(all[i], level, world_full() ? worlds : (worlds + 3) / 4);
        }
    }
}

// ---- trees ----

// n tokens of request `from` to positions [at, at + n) of request `to`.
static void copy_tokens(world *w, int to, int at, int from, const int *tokens, int n)
{
    const world_req *src = &w->reqs[from];
    world_req *dst = &w->reqs[to];
    const msgl_cache_spec *spec = &w->pool.spec;
    const size_t head = (size_t)spec->num_heads * msgl__dtype_size(spec->dtype);
    const size_t q = w->q_width * sizeof(float);
    for (int i = 0; i < n; i++) {
        const size_t d = (size_t)(at + i), t = (size_t)tokens[i];
        memcpy(dst->q + d * w->q_width, src->q + t * w->q_width, q);
        for (int array = 0; array < 2 && src->stored[array] != NULL; array++) {
            const size_t bytes = head * (size_t)(array == 0 ? spec->k_dim : spec->v_dim);
            memcpy((char *)dst->stored[array] + d * bytes,
                   (const char *)src->stored[array] + t * bytes, bytes);
        }
    }
}

enum { LEN = 1300, COMPACT = 3 }; // the request to which paths are copied

// Rows of the step's trees against answers whose requests have the paths' tokens alone.
static void check_paths(world *w, const step_req *reqs, int n)
{
    int rows = 0, row = 0;
    for (int i = 0; i < n; i++) rows += reqs[i].device - reqs[i].cached;
    w->spec.tree = true;
    world_mixed(w, 0, reqs, n);
    const size_t bytes = w->out_ld * sizeof(float);
    float *trees = malloc((size_t)rows * bytes);
    uint64_t *words = malloc((size_t)rows * sizeof *words);
    memcpy(trees, w->out, (size_t)rows * bytes);
    memcpy(words, w->tree, (size_t)rows * sizeof *words);
    w->spec.tree = false;
    for (int i = 0; i < n; i++) {
        const int cached = reqs[i].cached;
        int tokens[LEN];
        for (int p = 0; p < cached; p++) tokens[p] = p;
        copy_tokens(w, COMPACT, 0, reqs[i].req, tokens, cached);
        for (int token = 0; token < reqs[i].device - cached; token++, row++) {
            int depth = 0;
            for (int j = 0; j <= token; j++) {
                if (words[row] >> j & 1) tokens[depth++] = cached + j;
            }
            copy_tokens(w, COMPACT, cached, reqs[i].req, tokens, depth);
            const step_req answer = {COMPACT, cached + depth - 1, cached + depth};
            world_step(w, MSGL_DECODE, &answer, 1);
            if (memcmp(trees + (size_t)row * w->out_ld, w->out, bytes) != 0) {
                fail_msg("%s %s: token %d behind %d differs (dtype %d, group %d, dim %d, window "
                         "%d, chunk %d, cap %g)",
                         w->spec.desc->name, msgl__cpu_level_name(w->spec.level), token, cached,
                         (int)w->spec.dtype, w->spec.group, w->spec.head_dim, w->spec.window,
                         w->spec.chunk, (double)w->spec.softcap);
            }
        }
    }
    free(trees);
    free(words);
}

typedef struct tree_case {
    int group, num_kv_heads, head_dim, v_dim, page_size, window, chunk, threads;
    float softcap;
    bool sinks, v_apart;
} tree_case;

static const tree_case TREES[] = {
    {4, 2, 64, 0, 16, -1, 0, 1, 0, false, false},
    {3, 1, 80, 0, 32, 100, 0, 2, 20, true, false},
    {20, 1, 128, 0, 64, -1, 300, 3, 0, true, false},
    {1, 4, 256, 0, 16, 300, 0, 2, 20, false, false},
    {5, 1, 72, 64, 64, -1, 0, 1, 0, true, false},
    {70, 1, 72, 64, 64, -1, 0, 2, 0, false, false},
    {16, 1, 576, 512, 64, -1, 0, 2, 0, false, false},
    {8, 2, 192, 128, 16, 128, 0, 2, 0, true, true},
    {4, 2, 512, 0, 16, -1, 0, 2, 0, false, false},
};

static void check_trees(const msgl_attn_desc *d, msgl_cpu_level level, msgl_dtype dtype,
                        const tree_case *t)
{
    // At ends of tiles and across them, behind nothing, and where keys are split into parts.
    static const step_req STEPS[][2] = {{{0, 230, 270}, {1, 256, 272}},
                                        {{0, 0, 64}, {1, 505, 520}},
                                        {{0, 1000, 1017}, {1, 3, 5}},
                                        {{0, 1296, LEN}, {1, 1023, 1026}}};
    world_spec spec = world_base(d, COMPACT + 1, LEN, 128);
    spec.level = level;
    spec.dtype = dtype;
    spec.group = t->group;
    spec.num_kv_heads = t->num_kv_heads;
    spec.head_dim = t->head_dim;
    spec.v_dim = t->v_dim;
    spec.v_apart = t->v_apart;
    spec.page_size = t->page_size;
    spec.window = t->window;
    spec.chunk = t->chunk;
    spec.softcap = t->softcap;
    spec.sinks = t->sinks;
    spec.threads = t->threads;
    world w;
    world_open(&w, &spec);
    for (int r = 0; r <= COMPACT; r++) world_request(&w, r, LEN);
    for (size_t i = 0; i < MSGL_COUNT(STEPS); i++) {
        check_paths(&w, STEPS[i], 2);
        check_paths(&w, STEPS[i], 1);
    }
    world_close(&w);
}

// Whether a level has functions of its own for such pools.
static bool adds(msgl_cpu_level level, msgl_dtype dtype, bool latent)
{
    msgl_kernels own, below;
    if (level == MSGL_CPU_REF) return true;
    msgl__kernels_init_cpu(&own, level);
    msgl__kernels_init_cpu(&below, (msgl_cpu_level)(level - 1));
    return latent ? own.attn.latent_ops[dtype] != below.attn.latent_ops[dtype]
                  : own.attn.ops[dtype] != below.attn.ops[dtype];
}

// A token of a tree has the bits of an answer's token behind the same path.
static void test_trees(void **state)
{
    (void)state;
    const int levels = msgl__cpu_level_detect() + 1, dtypes = MSGL_DTYPE_COUNT;
    for (int i = 0; i < levels * dtypes * (int)MSGL_COUNT(TREES); i++) {
        const tree_case *t = &TREES[i % (int)MSGL_COUNT(TREES)];
        const msgl_dtype dtype = (msgl_dtype)(i / (int)MSGL_COUNT(TREES) % dtypes);
        const msgl_cpu_level level = (msgl_cpu_level)(i / (int)MSGL_COUNT(TREES) / dtypes);
        const bool slow = level == MSGL_CPU_REF && t->group * t->head_dim > 512;
        if ((msgl__attn_fa.kv_dtypes & 1u << dtype) == 0) continue;
        if (!adds(level, dtype, t->v_dim > 0 && !t->v_apart) || (slow && !world_full())) continue;
        check_trees(&msgl__attn_fa, level, dtype, t);
    }
    check_trees(&msgl__attn_trtllm, msgl__cpu_level_detect(), MSGL_BF16, &TREES[0]);
}

// No backend takes memory after create.
static void test_no_heap(void **state)
{
    (void)state;
    const msgl_attn_desc *const *all = msgl__attn_cpu.all;
    for (int i = 0; all[i] != NULL; i++) {
        world_spec spec = world_base(all[i], 4, 900, 900);
        world_suit(&spec);
        world w;
        world_open(&w, &spec);
        world_request(&w, 0, 900);
        const step_req r = {.req = 0, .cached = 899, .device = 900};
        const uint64_t before = msgl__mem_allocs();
        for (int step = 0; step < 5; step++) world_step(&w, MSGL_DECODE, &r, 1);
        assert_int_equal(msgl__mem_allocs(), before);
        world_close(&w);
    }
}

// A step of which nothing can be created leaves nothing behind.
static void test_failed_allocations(void **state)
{
    (void)state;
    const msgl_attn_desc *const *all = msgl__attn_cpu.all;
    msgl_kernels kernels;
    msgl__kernels_init_cpu(&kernels, MSGL_CPU_REF);
    msgl_kv_pool pool = {.spec = {.kind = MSGL_CACHE_KV,
                                  .num_layers = 1,
                                  .window = -1,
                                  .num_heads = 1,
                                  .k_dim = 64,
                                  .v_dim = 64,
                                  .dtype = MSGL_F32},
                         .num_pages = 4,
                         .page_size = 16};
    const msgl_page_table table = {.max_running = 2, .stride = 64};
    const msgl_attn_sparse sparse = {.heavy_channels = 16, .heavy_tokens = 32};
    msgl_attn_config cfg = {.num_q_heads = 2,
                            .num_kv_heads = 1,
                            .head_dim = 64,
                            .page_size = 16,
                            .max_running = 2,
                            .max_seq_len = 64,
                            .max_step_tokens = 64,
                            .max_in_flight = 2,
                            .kernels = &kernels,
                            .pool = &pool,
                            .page_table = &table,
                            .sparse = &sparse,
                            .num_threads = 1};
    for (int i = 0; all[i] != NULL; i++) {
        const bool set = all[i]->page_rule == MSGL_PAGE_SET;
        pool.page_size = cfg.page_size = set ? all[i]->page_override : 16;
        int rc = -1;
        for (uint64_t nth = 1; rc != 0 && nth < 20; nth++) {
            msgl_attn_backend *b = NULL;
            msgl_err err = {0};
            msgl__mem_fail_from(nth);
            rc = all[i]->create(all[i], &cfg, &b, &err);
            msgl__mem_fail_from(0);
            if (rc == 0) {
                b->desc->destroy(b);
            } else {
                assert_int_equal(rc, MSGL_ENOMEM);
                assert_true(err.text[0] != '\0');
            }
        }
        assert_int_equal(rc, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all),
        cmocka_unit_test(test_trees),
        cmocka_unit_test(test_no_heap),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
