// SPDX-License-Identifier: Apache-2.0
//
// Selection for GPUs that are not here: for each compute capability, head count, head dimension,
// page size, dtype and set of windows, `auto` takes what docs/gpu.md says, and what is chosen can
// be made. Plug-ins are stubs that have the real ones' kernels.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/chosen.h"
#include "attention/fake_gpu.h"
#include "core/attributes.h"
#include "core/seqs.h"
#include "utils/random.h"

// A model like Llama 3 on a GPU like the H200.
static msgl_attn_needs hopper(void)
{
    return fake_needs(90, 4, 128, MSGL_BF16);
}

static struct {
    bool fi, trtllm;
} plugins; // that are there

static void set_plugins(bool fi, bool trtllm)
{
    fake_plugins(fi, trtllm);
    plugins.fi = fi;
    plugins.trtllm = trtllm;
}

static bool takes_pages(const char *name, int32_t size)
{
    if (strncmp(name, "trtllm", 6) != 0) return true;
    return size == 16 || size == 32 || size == 64 ||
           (size == 128 && strcmp(name, "trtllm_mha") == 0);
}

// What backends promise in README.md and docs/internals, written down a second time.
static bool can(const char *name, const msgl_attn_needs *n)
{
    if (strcmp(name, "fi") == 0 || strcmp(name, "flashinfer") == 0) {
        const msgl_fi_shape s = {n->kv_dtype, n->num_q_heads, n->num_kv_heads,
                                 n->head_dim, n->head_dim,    n->page_size};
        return plugins.fi && stub_fi_has(&s, MSGL_FI_TENSOR_CORES, n->capability);
    }
    if (strncmp(name, "trtllm", 6) == 0) {
        const msgl_xqa_shape s = {n->kv_dtype, n->num_q_heads, n->num_kv_heads, n->head_dim,
                                  n->page_size};
        const bool pages = takes_pages(name, n->page_size);
        return plugins.trtllm && n->capability == 90 && pages && stub_xqa_page(&s) != 0;
    }
    if (strcmp(name, "triton") == 0) return n->kv_dtype != MSGL_F32;
    return true; // fa, torch_native
}

// Answers of capped layers are fa's there.
static bool gains(const char *name, const msgl_attn_needs *n)
{
    bool softcap = false;
    for (int i = 0; i < n->variants.count; i++) softcap |= n->variants.all[i].softcap > 0;
    return !softcap || strncmp(name, "trtllm", 6) != 0;
}

// The fastest that can run of the nearest measured row; NULL: nothing was measured.
static const char *measured(const msgl_attn_needs *n, msgl_phase phase)
{
    static const struct {
        int32_t capability;
        msgl_phase phase;
        int32_t head_dim, group, page_size;
        const char *names[4];
    } rows[] = {
#include "cuda/backends/auto_table.inc"
    };
    const char *const *best = NULL;
    int32_t best_page = 0;
    for (int32_t away = 0; away < 32 && best == NULL; away++) {
        for (size_t i = 0; i < MSGL_COUNT(rows); i++) {
            if (rows[i].capability == n->capability && rows[i].phase == phase &&
                rows[i].head_dim == n->head_dim && rows[i].page_size <= n->page_size &&
                rows[i].page_size > best_page &&
                abs(rows[i].group - n->num_q_heads / n->num_kv_heads) == away) {
                best = rows[i].names;
                best_page = rows[i].page_size;
            }
        }
    }
    for (int i = 0; best != NULL && i < 4 && best[i] != NULL; i++) {
        if (can(best[i], n) && gains(best[i], n)) return best[i];
    }
    return NULL;
}

static const char *automatic(const msgl_attn_needs *n, msgl_phase phase)
{
    const char *name = measured(n, phase);
    if (name != NULL) return name;
    if (n->capability / 10 == 9 && phase == MSGL_PREFILL) return "fa";
    return can("fi", n) ? "fi" : "fa";
}

// What was chosen for the needs can be made, with the page size that goes with it.
static void create(const msgl_attn_choice *c, const msgl_attn_needs *needs, const char *spec)
{
    msgl_attn_needs n = *needs;
    n.page_size = msgl__attn_page_size(c, needs->page_size, NULL);
    fake_world w;
    fake_world_open(&w, &n);
    msgl_attn a;
    msgl_err err = {0};
    if (msgl__attn_create(c, &w.cfg, &a, &err) != 0) {
        fail_msg("%s chose %s,%s for %d: group %d, head_dim %d, page %d, dtype %d: %s", spec,
                 c->prefill->name, c->decode->name, (int)n.capability,
                 (int)(n.num_q_heads / n.num_kv_heads), (int)n.head_dim, (int)n.page_size,
                 (int)n.kv_dtype, err.text);
    }
    msgl__attn_destroy(&a);
    fake_world_close(&w);
    fake_gpu_check();
}

static void check_auto(const msgl_attn_needs *n)
{
    msgl_attn_choice c;
    char warning[256];
    msgl_err err = {0};
    if (msgl__attn_select("auto", n, &c, warning, &err) != 0) fail_msg("auto: %s", err.text);
    assert_string_equal(c.prefill->name, automatic(n, MSGL_PREFILL));
    assert_string_equal(c.decode->name, automatic(n, MSGL_DECODE));
    assert_int_equal(msgl__attn_page_size(&c, n->page_size, NULL), n->page_size);
    create(&c, n, "auto");
}

// A named backend or pair is taken if each half can, else refused with a reason.
static void check_named(const msgl_attn_needs *n, const char *prefill, const char *decode)
{
    char spec[64], warning[256];
    snprintf(spec, sizeof spec, "%s,%s", prefill, decode);
    msgl_attn_needs at = *n; // the page size that trtllm asks for
    if (!takes_pages(prefill, n->page_size) || !takes_pages(decode, n->page_size))
        at.page_size = 64;
    msgl_attn_choice c;
    msgl_err err = {0};
    const int rc = msgl__attn_select(spec, n, &c, warning, &err);
    if (!can(prefill, &at) || !can(decode, &at)) {
        assert_int_equal(rc, MSGL_EUNSUPPORTED);
        assert_true(err.text[0] != '\0');
        return;
    }
    if (rc != 0) fail_msg("%s: %s", spec, err.text);
    create(&c, n, spec);
}

static uint64_t state = 1;

static int pick(int n) // in [0, n)
{
    return (int)msgl__random_below(&state, (uint64_t)n);
}

static void random_variants(msgl_attn_variants *v)
{
    *v = (msgl_attn_variants){0};
    const int count = pick(4) == 0 ? MSGL_ATTN_MAX_VARIANTS : 1 + pick(2);
    const bool softcap = pick(5) == 0;
    for (int i = 0; i < count; i++) {
        const msgl_attn_variant one = {.window = pick(2) == 0 ? -1 : pick(5000),
                                       .softcap = softcap ? 30 : 0};
        msgl__attn_variants_add(v, one);
    }
}

static void walk_with(void (*check)(const msgl_attn_needs *), bool fi, bool trtllm)
{
    static const int32_t capabilities[] = {80, 86, 89, 90, 100, 103, 120};
    static const int32_t dims[] = {64, 96, 128, 256}, pages[] = {1, 16, 32, 64, 128};
    static const msgl_dtype dtypes[] = {MSGL_BF16, MSGL_F16, MSGL_F32};
    set_plugins(fi, trtllm);
    for (int i = 0; i < 7 * 16 * 4 * 5 * 3; i++) {
        msgl_attn_needs n =
            fake_needs(capabilities[i % 7], 1 + i / 7 % 16, dims[i / 112 % 4], dtypes[i / 2240]);
        n.page_size = pages[i / 448 % 5];
        n.deterministic = pick(4) == 0;
        random_variants(&n.variants);
        fake_gpu_reset(n.capability);
        check(&n);
    }
}

static void walk(void (*check)(const msgl_attn_needs *))
{
    for (int set = 3; set >= 0; set--) walk_with(check, (set & 1) != 0, (set & 2) != 0);
}

static void test_auto(void **unused)
{
    (void)unused;
    walk(check_auto);
}

static void check_any_pair(const msgl_attn_needs *n)
{
    static const char *const names[] = {"fa",         "fi",           "flashinfer", "trtllm",
                                        "trtllm_mha", "torch_native", "triton"};
    const int count = (int)MSGL_COUNT(names);
    check_named(n, names[pick(count)], names[pick(count)]);
}

static void test_named(void **unused)
{
    (void)unused;
    walk(check_any_pair);
}

// The documented order by name, apart from the oracle above.
static void test_order(void **unused)
{
    (void)unused;
    static const struct {
        int32_t capability;
        bool fi;
        const char *prefill, *decode;
    } rows[] = {{80, true, "fi", "fi"},   {86, true, "fi", "fi"},  {89, true, "fi", "fi"},
                {90, true, "fa", "fi"},   {100, true, "fi", "fi"}, {103, true, "fi", "fi"},
                {120, true, "fi", "fi"},  {80, false, "fa", "fa"}, {90, false, "fa", "fa"},
                {100, false, "fa", "fa"}, {120, false, "fa", "fa"}};
    for (size_t i = 0; i < MSGL_COUNT(rows); i++) {
        set_plugins(rows[i].fi, true);
        const msgl_attn_needs n = fake_needs(rows[i].capability, 4, 256, MSGL_BF16); // not measured
        msgl_attn_choice c;
        char warning[256];
        assert_int_equal(msgl__attn_select("auto", &n, &c, warning, NULL), 0);
        assert_string_equal(c.prefill->name, rows[i].prefill);
        assert_string_equal(c.decode->name, rows[i].decode);
    }
}

// DeepSeek-V4's layers, of which some have a window: K is V, and heads have sinks.
static msgl_attn_needs windows_needs(int32_t capability, msgl_dtype kv_dtype)
{
    msgl_attn_needs n = fake_latent_needs(capability, 64, 512, 0, kv_dtype);
    if (kv_dtype == MSGL_E4M3) n.act = MSGL_BF16;
    n.variants.count = 2;
    n.variants.all[0] = (msgl_attn_variant){.window = -1, .sinks = true};
    n.variants.all[1] = (msgl_attn_variant){.window = 127, .sinks = true};
    return n;
}

// Latent caches: own kernel on Hopper for the published models' shape, else torch_native.
static void test_latent(void **unused)
{
    (void)unused;
    set_plugins(true, true);
    const struct {
        const char *spec;
        msgl_attn_needs needs;
        const char *prefill, *decode;
        int32_t page_size;
    } rows[] = {
        {"auto", fake_latent_needs(90, 128, 512, 64, MSGL_BF16), "fa", "fi", 16}, // measured
        {"auto", fake_latent_needs(90, 20, 512, 64, MSGL_BF16), "fa", "fa", 16},
        {"auto", fake_latent_needs(90, 16, 512, 64, MSGL_F32), "torch_native", "torch_native", 16},
        {"auto", fake_latent_needs(90, 4, 32, 8, MSGL_BF16), "triton", "triton", 16},
        {"auto", fake_latent_needs(80, 16, 512, 64, MSGL_BF16), "fi", "fi", 16},
        {"auto", fake_latent_needs(100, 16, 512, 64, MSGL_F16), "fi", "fi", 16},
        {"auto", windows_needs(90, MSGL_BF16), "triton", "triton", 16},
        {"auto", windows_needs(80, MSGL_F16), "triton", "triton", 16},
        {"fa3", fake_latent_needs(90, 16, 512, 64, MSGL_BF16), "fa", "fa", 16},
        {"flashmla", fake_latent_needs(90, 16, 512, 64, MSGL_BF16), "fa", "flashmla", 64},
        {"trtllm_mla", fake_latent_needs(90, 16, 512, 64, MSGL_BF16), "fa", "trtllm_mla", 64},
        {"cutlass_mla", fake_latent_needs(90, 16, 512, 64, MSGL_BF16), "fa", "cutlass_mla", 128},
        {"torch_native,flashmla", fake_latent_needs(90, 16, 512, 64, MSGL_BF16), "torch_native",
         "flashmla", 64},
    };
    for (size_t i = 0; i < MSGL_COUNT(rows); i++) {
        msgl_attn_choice c;
        char warning[256];
        msgl_err err = {0};
        fake_gpu_reset(rows[i].needs.capability);
        if (msgl__attn_select(rows[i].spec, &rows[i].needs, &c, warning, &err) != 0) {
            fail_msg("%s, %zu: %s", rows[i].spec, i, err.text);
        }
        assert_string_equal(c.prefill->name, rows[i].prefill);
        assert_string_equal(c.decode->name, rows[i].decode);
        assert_int_equal(msgl__attn_page_size(&c, 16, NULL), rows[i].page_size);
        create(&c, &rows[i].needs, rows[i].spec);
    }
}

// One step of the backend: `answers` requests with a token each, then one chunk of 5 tokens unless
// chunk is false. tree: of the chunk's tokens, or NULL.
static void step(const msgl_attn *a, fake_world *w, int answers, bool chunk, const uint64_t *tree)
{
    msgl_batch_req reqs[3] = {{.device_len = 10, .cached_len = 9},
                              {.device_len = 30, .cached_len = 29},
                              {.device_len = 25, .cached_len = 20}};
    const int size = answers + chunk;
    const msgl_batch batch = {.size = size,
                              .num_decode = answers,
                              .num_tokens = answers + 5 * chunk,
                              .reqs = reqs + 2 - answers};
    int32_t ends[2], block[2][48];
    assert_true(msgl__seqs_bytes(2) <= sizeof block[0]);
    const int32_t parts = msgl__attn_split_seqs(true, answers, size, ends);
    for (int32_t i = 0; i < parts; i++) {
        msgl_seqs seqs;
        msgl__seqs_fill(&batch, i == 0 ? 0 : ends[0], ends[i], 0, 1, 2, block[i], block[i], &seqs);
        if (seqs.phase == MSGL_PREFILL) seqs.tree = seqs.dev_tree = tree;
        const msgl_attn_input in = {.ld = 16 * 576};
        const msgl_attn_variants *v = &w->cfg.variants;
        const msgl_attn_layer layer = {.scale = 0.5f,
                                       .window = -1,
                                       .bidirectional = v->count > 0 && v->all[0].bidirectional,
                                       .k_scale = 3,
                                       .v_scale = 1};
        assert_int_equal(msgl__attn_prepare(a, &seqs), 0);
        msgl__attn_copy_in(a, &w->exec, &seqs);
        msgl__attn_begin(a, &w->exec, &seqs);
        msgl__attn_forward(a, &w->exec, &layer, &seqs, &in, NULL);
    }
    assert_int_equal(w->exec.status, 0);
}

// Makes the backends of `spec`, which takes these needs.
static void open_backend(const char *spec, const msgl_attn_needs *n, fake_world *w, msgl_attn *a)
{
    msgl_attn_choice c;
    char warning[256];
    msgl_err err = {0};
    fake_gpu_reset(n->capability);
    if (msgl__attn_select(spec, n, &c, warning, &err) != 0) fail_msg("%s: %s", spec, err.text);
    fake_world_open(w, n);
    w->cfg.apart = true;
    if (msgl__attn_create(&c, &w->cfg, a, &err) != 0) fail_msg("%s: %s", spec, err.text);
}

static void close_backend(fake_world *w, msgl_attn *a)
{
    msgl__attn_destroy(a);
    fake_world_close(w);
    fake_gpu_check();
}

// Trees go by the kernel for them, those of latent caches by their own; answers and chunks do not.
static void test_trees(void **unused)
{
    (void)unused;
    static const char *const names[] = {"fa", "fi", "flashinfer", "trtllm", "trtllm_mha"};
    static const uint64_t tree[5] = {1, 3, 5, 11, 17};
    set_plugins(true, true);
    msgl_attn_needs n = hopper();
    n.tree = true;
    fake_world w;
    msgl_attn a;
    for (size_t i = 0; i < 2 * MSGL_COUNT(names); i++) {
        n.kv_dtype = i % 2 != 0 ? MSGL_E4M3 : MSGL_BF16;
        open_backend(names[i / 2], &n, &w, &a);
        step(&a, &w, 1, true, NULL);
        assert_int_equal(FAKE_GPU.num_trees, 0);
        fake_fi()->num_runs = 0;
        step(&a, &w, 0, true, tree);
        assert_int_equal(FAKE_GPU.num_trees, 1);
        assert_ptr_equal(FAKE_GPU.tree, tree);
        assert_int_equal(fake_fi()->num_runs, 0);
        close_backend(&w, &a);
    }
    n = fake_latent_needs(90, 16, 512, 64, MSGL_BF16);
    n.tree = true;
    n.page_size = 64;
    for (int i = 0; i < 2; i++) {
        n.kv_dtype = i == 1 ? MSGL_E4M3 : MSGL_BF16;
        open_backend("flashmla", &n, &w, &a);
        step(&a, &w, 1, false, NULL);
        assert_null(FAKE_GPU.mla.tree);
        step(&a, &w, 0, true, tree);
        assert_ptr_equal(FAKE_GPU.mla.tree, tree);
        close_backend(&w, &a);
    }
}

// Heads of 512, and V of fewer elements than K, are fa's in every phase, by a kernel of their own
// where there is one for the pool.
static void test_wide(void **unused)
{
    (void)unused;
    static const int32_t capabilities[] = {80, 90, 100};
    static const uint64_t tree[5] = {1, 3, 5, 11, 17};
    const struct {
        int32_t head_dim, v_dim;
        msgl_dtype dtype;
        bool own; // not the reference kernel
    } rows[] = {{512, 0, MSGL_BF16, true},   {192, 128, MSGL_F16, true},
                {192, 128, MSGL_E4M3, true}, {128, 64, MSGL_BF16, true},
                {512, 512, MSGL_F32, false}, {40, 32, MSGL_E4M3, false}};
    set_plugins(true, true);
    for (size_t i = 0; i < MSGL_COUNT(capabilities) * MSGL_COUNT(rows); i++) {
        const size_t r = i % MSGL_COUNT(rows);
        const msgl_dtype act = rows[r].dtype == MSGL_E4M3 ? MSGL_BF16 : rows[r].dtype;
        msgl_attn_needs n =
            fake_needs(capabilities[i / MSGL_COUNT(rows)], 8, rows[r].head_dim, act);
        n.kv_dtype = rows[r].dtype;
        n.v_dim = rows[r].v_dim;
        n.deterministic = i % 2 != 0;
        n.tree = !n.deterministic;
        fake_world w;
        msgl_attn a;
        open_backend("auto", &n, &w, &a);
        assert_string_equal(a.prefill->desc->name, "fa");
        assert_string_equal(a.decode->desc->name, "fa");
        step(&a, &w, 2, false, NULL);
        assert_int_equal(FAKE_GPU.num_wide, rows[r].own);
        assert_int_equal(FAKE_GPU.num_calls, !rows[r].own);
        assert_true(FAKE_GPU.wide_answers == rows[r].own);
        step(&a, &w, 0, true, NULL);
        assert_int_equal(FAKE_GPU.num_wide, 2 * rows[r].own);
        assert_false(FAKE_GPU.wide_answers);
        const int32_t v_dim = rows[r].v_dim != 0 ? rows[r].v_dim : rows[r].head_dim;
        const msgl_cuda_attn_call *c = rows[r].own ? &FAKE_GPU.wide : &FAKE_GPU.calls[1];
        assert_int_equal(c->v_dim, v_dim);
        assert_int_equal(c->ld_out, 16 * v_dim);
        if (rows[r].own) assert_true(fake_gpu_contains(c->workspace, 64)); // what the stub asks for
        if (n.tree) {
            step(&a, &w, 0, true, tree);
            assert_ptr_equal(FAKE_GPU.tree, tree);
            assert_int_equal(FAKE_GPU.num_trees, !rows[r].own);
        }
        close_backend(&w, &a);
    }
}

// Encoders' layers are fa's, by the kernel of all GPUs, which needs no plan.
static void test_both_ways(void **unused)
{
    (void)unused;
    static const int32_t capabilities[] = {80, 90, 100};
    set_plugins(true, true);
    for (size_t i = 0; i < MSGL_COUNT(capabilities); i++) {
        msgl_attn_needs n = fake_needs(capabilities[i], 1, 64, MSGL_BF16);
        const msgl_attn_variant variant = {.window = -1, .bidirectional = true};
        msgl__attn_variants_add(&n.variants, variant);
        fake_world w;
        msgl_attn a;
        open_backend("auto", &n, &w, &a);
        assert_string_equal(a.prefill->desc->name, "fa");
        step(&a, &w, 0, true, NULL);
        assert_int_equal(FAKE_GPU.num_calls, 1);
        assert_true(FAKE_GPU.calls[0].both_ways);
        assert_null(FAKE_GPU.calls[0].plan);
        close_backend(&w, &a);
    }
}

// Lists of chosen keys are the work of what reads them on the device, in 16 bits.
static void test_chosen(void **unused)
{
    (void)unused;
    const struct {
        msgl_attn_needs needs;
        const char *name; // NULL: refused
    } rows[] = {{fake_latent_needs(90, 128, 512, 64, MSGL_BF16), "fa"},
                {fake_latent_needs(90, 128, 512, 64, MSGL_F16), "triton"},
                {fake_latent_needs(80, 128, 512, 64, MSGL_BF16), "triton"},
                {fake_latent_needs(90, 4, 32, 8, MSGL_BF16), "triton"},
                {windows_needs(90, MSGL_BF16), "triton"},
                {windows_needs(80, MSGL_F16), "triton"},
                {fake_latent_needs(90, 128, 512, 64, MSGL_F32), NULL}};
    set_plugins(true, true);
    for (size_t i = 0; i < MSGL_COUNT(rows); i++) {
        const msgl_attn_desc *d = NULL;
        msgl_err err = {0};
        const int code = msgl__chosen_select(&rows[i].needs, &d, &err);
        assert_int_equal(code, rows[i].name != NULL ? 0 : MSGL_EUNSUPPORTED);
        if (rows[i].name != NULL) {
            assert_string_equal(d->name, rows[i].name);
        } else {
            assert_non_null(strstr(err.text, "in float32; allowed: bfloat16, float16"));
        }
    }
}

// FlashInfer's kernels for latent caches, of both phases.
static void test_latent_fi(void **unused)
{
    (void)unused;
    static const int32_t capabilities[] = {80, 90, 100};
    set_plugins(true, true);
    for (size_t i = 0; i < MSGL_COUNT(capabilities); i++) {
        const msgl_attn_needs n = fake_latent_needs(capabilities[i], 16, 512, 64, MSGL_BF16);
        const bool hopper = capabilities[i] == 90;
        stub_fi *fi = fake_fi();
        fake_world w;
        msgl_attn a;
        open_backend("fi", &n, &w, &a);
        fi->num_runs = 0;
        step(&a, &w, 2, true, NULL);
        assert_int_equal(fi->num_runs, 2);
        for (int run = 0; run < 2; run++) {
            assert_int_equal(fi->runs[run].plan->kernel,
                             hopper ? MSGL_FI_LATENT_HOPPER : MSGL_FI_LATENT);
            assert_int_equal(fi->runs[run].shape.v_dim, 512);
        }
        close_backend(&w, &a);
    }
    const msgl_attn_desc *fi = msgl__attn_find(&msgl__attn_cuda, "fi");
    msgl_attn_needs n = fake_latent_needs(90, 16, 512, 64, MSGL_BF16);
    msgl_err why = {0};
    n.tree = true;
    assert_int_equal(msgl__attn_supports(fi, &n, &why), MSGL_EUNSUPPORTED);
    assert_string_equal(why.text,
                        "fi: latent attention: its kernel has no window, soft cap, sinks or trees");
    n.tree = false;
    n.kv_dtype = MSGL_E4M3;
    assert_int_equal(msgl__attn_supports(fi, &n, &why), MSGL_EUNSUPPORTED);
    assert_string_equal(why.text, "fi: latent attention: its kernel has no fp8_e4m3 cache");
}

// What the kernel gets: answers whole, chunks ragged, each with a plan and memory of its own, the
// largest pages that divide the pool's.
static void test_latent_calls(void **unused)
{
    (void)unused;
    static const int32_t pages[][2] = {{1, 1}, {48, 16}, {64, 64}, {128, 128}, {7, 1}};
    for (size_t i = 0; i < MSGL_COUNT(pages); i++) {
        msgl_attn_needs n = fake_latent_needs(90, 16, 512, 64, MSGL_BF16);
        n.page_size = pages[i][0];
        n.deterministic = i % 2 != 0;
        const bool e4m3 = i % 3 == 2;
        if (e4m3) n.kv_dtype = MSGL_E4M3;
        fake_world w;
        msgl_attn a;
        open_backend("fa", &n, &w, &a);
        step(&a, &w, 2, false, NULL);
        const msgl_mla_call answers = FAKE_GPU.mla;
        assert_int_equal(FAKE_GPU.num_mla_plans, 1);
        assert_ptr_equal(FAKE_GPU.mla_plan.plan, answers.plan);
        assert_null(answers.cu_seqlens_q);
        assert_int_equal(answers.batch, 2);
        assert_int_equal(answers.q_len, 1);
        assert_int_equal(answers.page_size, pages[i][1]);
        assert_int_equal(answers.ld_out, 16 * 512);
        assert_int_equal(answers.e4m3, e4m3);
        assert_float_equal(answers.scale, e4m3 ? 1.5f : 0.5f, 0);
        assert_float_equal(answers.out_scale, e4m3 ? 3 : 1, 0);
        assert_int_equal(answers.deterministic, n.deterministic);
        assert_true(fake_gpu_contains(answers.plan, msgl__mla_plan_bytes(16, FAKE_RUNNING, 0)));
        step(&a, &w, 1, true, NULL);
        const msgl_mla_call chunk = FAKE_GPU.mla;
        assert_int_equal(FAKE_GPU.num_mla_plans, 3);
        assert_non_null(chunk.cu_seqlens_q);
        assert_int_equal(chunk.batch, 1);
        assert_int_equal(chunk.q_len, 5);
        assert_int_equal(chunk.total_q, 5);
        assert_ptr_not_equal(chunk.plan, answers.plan);
        assert_true(fake_gpu_contains(chunk.plan,
                                      msgl__mla_plan_bytes(16, FAKE_RUNNING, FAKE_STEP_TOKENS)));
        assert_true(fake_gpu_contains(chunk.workspace, msgl__mla_workspace_bytes(16, 64)));
        close_backend(&w, &a);
    }
}

static void test_reasons(void **unused)
{
    (void)unused;
    set_plugins(true, true);
    const struct {
        const char *spec;
        msgl_attn_needs change;
        const char *text;
    } cases[] = {
        {"trtllm",
         {.capability = 120},
         "trtllm: its decode kernel is compiled for Hopper (9.0) only; this GPU has 12.0; choose "
         "fi or fa"},
        {"trtllm",
         {.num_q_heads = 24},
         "trtllm: no kernel for bfloat16, head_dim 128, 12 query heads per KV head and pages of "
         "16"},
        {"fi", {.head_dim = 96}, "attention backend fi: no kernel for head_dim 96"},
        {"fa",
         {.act = MSGL_F16},
         "attention on a GPU: activations are float16 and the KV cache is bfloat16; they have to "
         "be the same, or bfloat16 and fp8_e4m3"},
    };
    const msgl_attn_needs small = fake_latent_needs(90, 4, 32, 8, MSGL_BF16);
    const msgl_attn_needs ada = fake_latent_needs(89, 16, 512, 64, MSGL_BF16);
    msgl_err why = {0};
    assert_int_equal(msgl__attn_supports(msgl__attn_find(&msgl__attn_cuda, "fa"), &small, &why),
                     MSGL_EUNSUPPORTED);
    assert_string_equal(why.text, "latent attention: no kernel for 4 query heads and vectors of 32 "
                                  "+ 8 bfloat16 elements; allowed: up to 128 heads, 512 + 64 "
                                  "bfloat16 or fp8_e4m3 elements");
    assert_int_equal(msgl__attn_supports(msgl__attn_find(&msgl__attn_cuda, "fa"), &ada, &why),
                     MSGL_EUNSUPPORTED);
    assert_string_equal(why.text,
                        "latent attention: its kernel is for Hopper (9.0); this GPU has 8.9");
    const msgl_attn_variant sinks = {.window = -1, .sinks = true};
    msgl_attn_needs v4 = fake_latent_needs(90, 64, 512, 0, MSGL_E4M3); // DeepSeek-V4's
    v4.act = MSGL_BF16;
    v4.variants = (msgl_attn_variants){.count = 1, .all = {sinks}};
    assert_int_equal(msgl__attn_supports(msgl__attn_find(&msgl__attn_cuda, "fa"), &v4, &why),
                     MSGL_EUNSUPPORTED);
    assert_string_equal(why.text, "latent attention: no kernel for 64 query heads and vectors of "
                                  "512 + 0 fp8_e4m3 elements; allowed: up to 128 heads, 512 + 64 "
                                  "bfloat16 or fp8_e4m3 elements");
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_attn_needs n = hopper();
        const msgl_attn_needs *c = &cases[i].change;
        if (c->capability != 0) n.capability = c->capability;
        if (c->num_q_heads != 0) n.num_q_heads = c->num_q_heads;
        if (c->head_dim != 0) n.head_dim = c->head_dim;
        if (c->act != MSGL_F32) n.act = c->act;
        msgl_attn_choice choice;
        char warning[256];
        msgl_err err = {0};
        assert_int_equal(msgl__attn_select(cases[i].spec, &n, &choice, warning, &err),
                         MSGL_EUNSUPPORTED);
        assert_string_equal(err.text, cases[i].text);
    }
}

// A plug-in of another build, or without the kernel that every batch may need, stops its own
// backend alone.
static void test_faulty_plugins(void **unused)
{
    (void)unused;
    set_plugins(true, true);
    const msgl_attn_needs here = hopper(), ada = fake_needs(89, 4, 128, MSGL_BF16);
    stub_fi *fi = fake_fi();
    const msgl_attn_desc *desc = msgl__attn_find(&msgl__attn_cuda, "fi");
    msgl_attn_choice c;
    char warning[256];
    msgl_err err = {0};
    fi->api.abi++;
    assert_int_equal(msgl__attn_supports(desc, &here, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text, "minisgl-attn-fi.so is of another version of minisgl");
    for (int i = 0; i < 2; i++) {
        if (i == 1) fi->kernels = 1u << MSGL_FI_CUDA_CORES;
        assert_int_equal(msgl__attn_select("auto", &ada, &c, warning, &err), 0);
        assert_string_equal(c.prefill->name, "fa");
        assert_int_equal(msgl__attn_select("fa,trtllm", &here, &c, warning, &err), 0);
        fi->api.abi = MSGL_FI_ABI;
    }
    assert_int_equal(msgl__attn_supports(desc, &here, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text, "fi: no kernel for head_dim 128 and bfloat16");
    fi->kernels = (1u << MSGL_FI_NUM_KERNELS) - 1;
    stub_trtllm *trtllm = fake_trtllm();
    trtllm->api.abi++;
    assert_int_equal(msgl__attn_select("trtllm", &here, &c, warning, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text, "minisgl-attn-trtllm.so is of another version of minisgl");
    assert_int_equal(msgl__attn_select("fa,fi", &here, &c, warning, &err), 0);
    trtllm->api.abi = MSGL_TRTLLM_ABI;
}

#define TENSOR_CORES "FLASHINFER_USE_TENSOR_CORES"

// The variable decides fi's decode kernel.
static void test_tensor_cores(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        int32_t group;
        msgl_fi_kernel kernel;
    } cases[] = {{NULL, 4, MSGL_FI_TENSOR_CORES},  {NULL, 2, MSGL_FI_CUDA_CORES},
                 {"", 4, MSGL_FI_TENSOR_CORES},    {"0", 4, MSGL_FI_CUDA_CORES},
                 {"false", 4, MSGL_FI_CUDA_CORES}, {"Off", 4, MSGL_FI_CUDA_CORES},
                 {"1", 2, MSGL_FI_TENSOR_CORES},   {"TRUE", 2, MSGL_FI_TENSOR_CORES},
                 {"on", 2, MSGL_FI_TENSOR_CORES},  {"0", 5, MSGL_FI_TENSOR_CORES},
                 {"yes", 2, MSGL_FI_TENSOR_CORES}, {"No", 4, MSGL_FI_CUDA_CORES}};
    set_plugins(true, true);
    stub_fi *fi = fake_fi();
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        if (cases[i].text != NULL) setenv(TENSOR_CORES, cases[i].text, 1);
        if (cases[i].text == NULL) unsetenv(TENSOR_CORES);
        const msgl_attn_needs n = fake_needs(90, cases[i].group, 128, MSGL_BF16);
        msgl_attn_choice c;
        char warning[256];
        fake_gpu_reset(90);
        assert_int_equal(msgl__attn_select("fi", &n, &c, warning, NULL), 0);
        assert_string_equal(warning, "");
        fake_world w;
        fake_world_open(&w, &n);
        msgl_attn a;
        assert_int_equal(msgl__attn_create(&c, &w.cfg, &a, NULL), 0);
        msgl_batch_req r = {.device_len = 10, .cached_len = 9};
        const msgl_batch batch = {.size = 1, .num_decode = 1, .num_tokens = 1, .reqs = &r};
        int32_t block[48];
        msgl_seqs seqs;
        assert_true(msgl__seqs_bytes(1) <= sizeof block);
        msgl__seqs_fill(&batch, 0, 1, 0, 1, 1, block, block, &seqs);
        const msgl_attn_input in = {0};
        const msgl_attn_layer layer = {.scale = 1, .window = -1};
        fi->num_runs = 0;
        assert_int_equal(msgl__attn_prepare(&a, &seqs), 0);
        msgl__attn_copy_in(&a, &w.exec, &seqs);
        msgl__attn_begin(&a, &w.exec, &seqs);
        msgl__attn_forward(&a, &w.exec, &layer, &seqs, &in, NULL);
        assert_int_equal(w.exec.status, 0);
        assert_int_equal(fi->num_runs, 1);
        const stub_plan *plan = fi->runs[0].plan_arrays;
        assert_int_equal(plan->kernel, cases[i].kernel);
        msgl__attn_destroy(&a);
        fake_world_close(&w);
        fake_gpu_check();
    }
    unsetenv(TENSOR_CORES);
}

// A word that it does not know ends the selection, `auto`'s too: the user meant something. On the
// CPU it is checked, and said to have no effect, once.
static void test_tensor_cores_elsewhere(void **unused)
{
    (void)unused;
    set_plugins(true, true);
    setenv(TENSOR_CORES, "si", 1);
    const msgl_attn_needs here = hopper(), ada = fake_needs(89, 4, 128, MSGL_BF16);
    msgl_attn_needs cpu = here;
    cpu.backends = &msgl__attn_cpu;
    cpu.capability = 0;
    cpu.act = MSGL_F32;
    const struct {
        const char *spec;
        const msgl_attn_needs *needs;
    } refused[] = {{"fi", &here}, {"auto", &ada}, {"fi", &cpu}, {"fa,fi", &cpu}};
    msgl_attn_choice c;
    char warning[256];
    for (size_t i = 0; i < MSGL_COUNT(refused); i++) {
        msgl_err err = {0};
        assert_int_equal(msgl__attn_select(refused[i].spec, refused[i].needs, &c, warning, &err),
                         MSGL_EINVAL);
        assert_string_equal(err.text, TENSOR_CORES
                            ": found \"si\", allowed 0, 1, false, true, no, yes, off, on");
    }
    msgl_err err = {0}; // Mini-SGLang's own name goes first
    setenv("MINISGL_" TENSOR_CORES, "2", 1);
    setenv(TENSOR_CORES, "yes", 1);
    assert_int_equal(msgl__attn_select("fi", &here, &c, warning, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "MINISGL_" TENSOR_CORES ": found \"2\", allowed 0, 1,"));
    unsetenv("MINISGL_" TENSOR_CORES);
    assert_int_equal(msgl__attn_select("fa", &cpu, &c, warning, NULL), 0); // asks nobody else
    setenv(TENSOR_CORES, "true", 1);
    static const char *const specs[] = {"fi", "fa,fi", "fi,fa"};
    for (size_t i = 0; i < MSGL_COUNT(specs); i++) {
        assert_int_equal(msgl__attn_select(specs[i], &cpu, &c, warning, NULL), 0);
        assert_string_equal(warning, TENSOR_CORES " has no effect on the CPU");
    }
    assert_int_equal(msgl__attn_select("fi,fi", &cpu, &c, warning, NULL), 0);
    assert_string_equal(warning, "attention backend \"fi,fi\" names fi twice; using it for both "
                                 "phases; " TENSOR_CORES " has no effect on the CPU");
    unsetenv(TENSOR_CORES);
}

// E4M3 beside bf16: auto takes fa, of latent caches where it has a kernel; fi, and trtllm on
// Hopper, have kernels too, and the others say who has.
static void test_e4m3(void **unused)
{
    (void)unused;
    static const int capabilities[] = {80, 90, 100};
    set_plugins(true, true);
    for (size_t i = 0; i < MSGL_COUNT(capabilities); i++) {
        fake_gpu_reset(capabilities[i]);
        msgl_attn_needs n = fake_needs(capabilities[i], 4, 128, MSGL_BF16);
        n.kv_dtype = MSGL_E4M3;
        msgl_attn_choice c;
        char warning[256];
        msgl_err err = {0};
        assert_int_equal(msgl__attn_select("auto", &n, &c, warning, &err), 0);
        assert_string_equal(c.prefill->name, "fa");
        assert_string_equal(c.decode->name, "fa");
        create(&c, &n, "auto");
        assert_int_equal(msgl__attn_select("fa,fi", &n, &c, warning, &err), 0);
        create(&c, &n, "fa,fi");
        const bool hopper = capabilities[i] == 90;
        assert_int_equal(msgl__attn_select("trtllm", &n, &c, warning, &err),
                         hopper ? 0 : MSGL_EUNSUPPORTED);
        if (hopper) create(&c, &n, "trtllm");
        assert_int_equal(msgl__attn_select("triton", &n, &c, warning, &err), MSGL_EUNSUPPORTED);
        assert_string_equal(
            err.text,
            "attention backend triton: no kernel for a KV cache of fp8_e4m3; "
            "those that have one here: fa, fi, flashinfer, trtllm, trtllm_mha, torch_native");
        n.act = MSGL_F16;
        assert_int_equal(msgl__attn_select("fa", &n, &c, warning, &err), MSGL_EUNSUPPORTED);
        n = fake_latent_needs(capabilities[i], 16, 512, 64, MSGL_BF16);
        n.kv_dtype = MSGL_E4M3;
        assert_int_equal(msgl__attn_select("auto", &n, &c, warning, &err), 0);
        assert_string_equal(c.prefill->name, hopper ? "fa" : "torch_native");
        assert_string_equal(c.decode->name, hopper ? "fa" : "torch_native");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_auto),           cmocka_unit_test(test_named),
        cmocka_unit_test(test_order),          cmocka_unit_test(test_latent),
        cmocka_unit_test(test_latent_calls),   cmocka_unit_test(test_trees),
        cmocka_unit_test(test_latent_fi),      cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_faulty_plugins), cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_tensor_cores),   cmocka_unit_test(test_tensor_cores_elsewhere),
        cmocka_unit_test(test_wide),           cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
