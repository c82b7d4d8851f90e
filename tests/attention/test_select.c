// SPDX-License-Identifier: Apache-2.0
//
// Registry, selection and page rules: names, pairs, auto, the texts of errors.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/double_sparsity/channels.h"
#include "attention/fa/fa.h"
#include "attention/fi/fi.h"
#include "attention/trtllm/trtllm.h"
#include "attention/world.h"
#include "cuda/backends/auto.h"
#include "cuda/backends/registry.h"

static const msgl_attn_needs NEEDS = {.backends = &msgl__attn_cpu,
                                      .num_q_heads = 16,
                                      .num_kv_heads = 8,
                                      .head_dim = 128,
                                      .page_size = 1,
                                      .kv_dtype = MSGL_BF16};

static void expect(const char *spec, const char *prefill, const char *decode, const char *warned)
{
    msgl_attn_choice c;
    char warning[256];
    msgl_err err = {0};
    if (msgl__attn_select(spec, &NEEDS, &c, warning, &err) != 0) fail_msg("%s", err.text);
    assert_string_equal(c.prefill->name, prefill);
    assert_string_equal(c.decode->name, decode);
    assert_string_equal(warning, warned);
}

static void expect_error(const char *spec, const msgl_attn_needs *needs, int code, const char *text)
{
    msgl_attn_choice c;
    char warning[256];
    msgl_err err = {0};
    assert_int_equal(msgl__attn_select(spec, needs, &c, warning, &err), code);
    assert_int_equal(err.code, code);
    assert_string_equal(err.text, text);
}

static void test_names(void **state)
{
    (void)state;
    expect("fa", "fa", "fa", "");
    expect("fa3", "fa", "fa", "");
    expect("flashinfer", "flashinfer", "flashinfer", "");
    expect("flashinfer,fi", "flashinfer", "fi", "");
    expect("fa,fi", "fa", "fi", "");
    expect("auto,trtllm", "fa", "trtllm", "");
    expect("fi,auto", "fi", "fa", "");
    expect("fa,auto", "fa", "fa", "");
    expect("torch_native,trtllm_mha", "torch_native", "trtllm_mha", "");
    expect("fa,fa3", "fa", "fa",
           "attention backend \"fa,fa3\" names fa twice; using it for both phases");
    expect("auto", "fa", "fa", "");
    expect("flex", "flex_attention", "flex_attention", "");
    expect("fa4", "fa4", "fa", ""); // which serves prompts only
    expect("fa4,fi", "fa4", "fi", "");
}

// What is said of a name that nothing has.
static void expect_unknown(const char *spec, const char *name)
{
    char text[256];
    snprintf(
        text, sizeof text,
        "unknown attention backend \"%s\"; allowed: auto, fa, fi, flashinfer, trtllm, trtllm_mha, "
        "torch_native, triton, flashmla, trtllm_mla, cutlass_mla, flex_attention, fa4, "
        "dual_chunk_flash_attn, double_sparsity, or a pair "
        "\"PREFILL,DECODE\"",
        name);
    expect_error(spec, &NEEDS, MSGL_EINVAL, text);
}

// `auto` finds the one backend of models with dual chunk attention, which is for no others.
static void test_dual_chunk(void **state)
{
    (void)state;
    msgl_attn_needs dual = NEEDS;
    msgl_attn_choice c;
    char warning[256];
    dual.dual_len = 24;
    assert_int_equal(msgl__attn_select("auto", &dual, &c, warning, NULL), 0);
    assert_string_equal(c.prefill->name, "dual_chunk_flash_attn");
    assert_ptr_equal(c.prefill, c.decode);
    expect_error("fa", &dual, MSGL_EUNSUPPORTED,
                 "attention backend fa has no dual chunk attention, which this model needs");
    expect_error("dual_chunk_flash_attn", &NEEDS, MSGL_EUNSUPPORTED,
                 "attention backend dual_chunk_flash_attn is for models with "
                 "dual_chunk_attention_config; this one has none");
}

// Labels are of all tokens, so the backend that keeps them shares its layers with no other.
static void test_labels(void **state)
{
    (void)state;
    msgl_attn_needs n = NEEDS;
    msgl_attn_sparse sparse = {.heavy_channels = 32};
    expect_error("double_sparsity", &n, MSGL_EUNSUPPORTED,
                 "attention backend double_sparsity: which channels are heavy? `minisgl calibrate "
                 "--model DIR --text FILE -o CHANNELS` finds out, then --ds-channel-config-path "
                 "CHANNELS");
    n.sparse = &sparse;
    static const char *const pairs[] = {"fa,double_sparsity", "double_sparsity,triton",
                                        "auto,double_sparsity"};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        expect_error(pairs[i], &n, MSGL_EINVAL,
                     "attention backend double_sparsity serves both phases or none; use "
                     "\"double_sparsity\"");
    }
    msgl_attn_choice c;
    char warning[256];
    assert_int_equal(msgl__attn_select("double_sparsity", &n, &c, warning, NULL), 0);
    assert_ptr_equal(c.prefill, c.decode);
    assert_true(msgl__attn_apart(&c));
}

static void test_bad_names(void **state)
{
    (void)state;
    const char *pair = "a pair is \"PREFILL,DECODE\", for example \"fa,fi\"";
    const char *bad[] = {"fa,fi,fa", ",fi", "fa,", ",", "fa,,fi"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "attention backend \"%s\": %s", bad[i], pair);
        expect_error(bad[i], &NEEDS, MSGL_EINVAL, text);
    }
    expect_unknown("tritons", "tritons");
    expect_unknown("fa,fa5", "fa5");
    expect_error("fa,fa4", &NEEDS, MSGL_EINVAL,
                 "attention backend fa4 serves prompts only; use \"fa4,fa\"");
    expect_unknown("", "");
    char huge[5000];
    memset(huge, 'x', sizeof huge - 1);
    huge[sizeof huge - 1] = '\0';
    msgl_attn_choice c;
    char warning[256];
    msgl_err err = {0};
    assert_int_equal(msgl__attn_select(huge, &NEEDS, &c, warning, &err), MSGL_EINVAL);
    huge[2000] = ',';
    assert_int_equal(msgl__attn_select(huge, &NEEDS, &c, warning, &err), MSGL_EINVAL);
}

// Backends of latent attention, which serve answers only, and those of K and V.
static void test_latent(void **state)
{
    (void)state;
    static const struct {
        const char *spec, *prefill, *decode;
        int32_t page_size;
    } good[] = {
        {"auto", "fa", "fa", 1},
        {"flashmla", "fi", "flashmla", 64},
        {"trtllm_mla", "fi", "trtllm_mla", 64},
        {"cutlass_mla", "fi", "cutlass_mla", 128},
        {"fa,flashmla", "fa", "flashmla", 64},
        {"torch_native", "torch_native", "torch_native", 1},
    };
    msgl_attn_needs n = NEEDS;
    n.cache = MSGL_CACHE_LATENT;
    n.num_q_heads = 128;
    n.num_kv_heads = 1;
    n.head_dim = 576;
    n.v_dim = 512;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        msgl_attn_choice c;
        char warning[256];
        msgl_err err = {0};
        if (msgl__attn_select(good[i].spec, &n, &c, warning, &err) != 0) fail_msg("%s", err.text);
        assert_string_equal(c.prefill->name, good[i].prefill);
        assert_string_equal(c.decode->name, good[i].decode);
        assert_int_equal(msgl__attn_page_size(&c, 1, NULL), good[i].page_size);
    }
    expect_error("flashmla,fa", &n, MSGL_EINVAL,
                 "attention backend flashmla serves answers only; use \"fi,flashmla\"");
    expect_error(
        "trtllm", &n, MSGL_EUNSUPPORTED,
        "attention backend trtllm: no kernel for layers that keep a latent vector a token; "
        "allowed: K and V of every token");
    expect_error("flashmla", &NEEDS, MSGL_EUNSUPPORTED,
                 "attention backend flashmla: no kernel for layers that keep K and V of every "
                 "token; allowed: a latent vector a token");
}

static void test_cannot_run(void **state)
{
    (void)state;
    msgl_attn_needs n = NEEDS;
    n.head_dim = 516;
    expect_error("fa", &n, MSGL_EUNSUPPORTED,
                 "attention backend fa: head_dim 516; allowed: multiples of 8 up to 512");
    expect_error("auto", &n, MSGL_EUNSUPPORTED,
                 "no attention backend can run this model on the CPU: attention backend fa: "
                 "head_dim 516; allowed: multiples of 8 up to 512");
    n = NEEDS;
    n.num_q_heads = 12;
    expect_error("fi", &n, MSGL_EUNSUPPORTED,
                 "attention: 12 query heads are no multiple of 8 KV heads");
    n = NEEDS;
    n.backends = &msgl__attn_cuda;
    n.capability = 75;
    expect_error("fi", &n, MSGL_EUNSUPPORTED,
                 "attention backend fi needs compute capability 8.0; this GPU has 7.5");
    n.head_dim = 64;
    n.capability = 80;
    expect_error("trtllm", &n, MSGL_EUNSUPPORTED,
                 "attention backend trtllm needs compute capability 9.0; this GPU has 8.0");
}

// Descriptor limits that no backend has today, on made-up descriptors.
static void test_limits(void **state)
{
    (void)state;
    const msgl_attn_desc narrow = {.name = "narrow",
                                   .min_capability = 90,
                                   .head_dims = {64, 128},
                                   .max_group = 2,
                                   .kv_dtypes = 1u << MSGL_BF16};
    const struct {
        msgl_attn_needs needs;
        const char *text;
    } cases[] = {
        {{.capability = 86},
         "attention backend narrow needs compute capability 9.0; this GPU has 8.6"},
        {{.head_dim = 96}, "attention backend narrow: no kernel for head_dim 96"},
        {{.num_q_heads = 24},
         "attention backend narrow: 3 query heads per KV head; allowed: up to 2"},
        {{.kv_dtype = MSGL_F16},
         "attention backend narrow: no kernel for a KV cache of float16; those that have one here: "
         "fa, fi, flashinfer, trtllm, trtllm_mha, torch_native, triton, flex_attention, "
         "fa4, double_sparsity"},
        {{.variants = {2, {{.window = -1}, {.window = 100}}}},
         "attention backend narrow has no sliding window, which this model needs"},
        {{.variants = {1, {{.window = -1, .chunk = 64}}}},
         "attention backend narrow has no local attention by chunks, which this model needs"},
        {{.variants = {1, {{.window = -1, .softcap = 30}}}},
         "attention backend narrow has no logit soft cap, which this model needs"},
        {{.dual_len = 24},
         "attention backend narrow has no dual chunk attention, which this model needs"},
        {{.variants = {1, {{.mods = &(const msgl_attn_mods){.masks = 1u << MSGL_MASK_PREFIX}}}}},
         "attention backend narrow: no mask \"prefix-LM\", which this model needs"},
        {{.variants = {1, {{.mods = &(const msgl_attn_mods){.scores = 1u << MSGL_SCORE_ALIBI}}}}},
         "attention backend narrow: no score function \"ALiBi\", which this model needs"},
        {{.variants = {2, {{.window = -1}, {.window = -1, .sinks = true}}}},
         "attention backend narrow has no attention sinks, which this model needs"},
        {{.tree = true}, "attention backend narrow: no kernel for trees of new tokens"},
        {{.cache = MSGL_CACHE_LATENT},
         "attention backend narrow: no kernel for layers that keep a latent vector a token; "
         "allowed: K and V of every token"},
        {{.cache = MSGL_CACHE_STATE},
         "attention backend narrow: no kernel for layers that keep a state; allowed: K and V of "
         "every token"},
        {{.v_dim = 64},
         "attention backend narrow: no kernel for V of 64 beside K of 128 per head; allowed: the "
         "same"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        msgl_attn_needs n = cases[i].needs;
        n.backends = &msgl__attn_cpu;
        if (n.capability == 0) n.capability = 90;
        if (n.head_dim == 0) n.head_dim = 128;
        if (n.num_q_heads == 0) n.num_q_heads = 16;
        if (n.kv_dtype == MSGL_F32) n.kv_dtype = MSGL_BF16;
        n.num_kv_heads = 8;
        msgl_err err = {0};
        assert_int_equal(msgl__attn_supports(&narrow, &n, &err), MSGL_EUNSUPPORTED);
        assert_string_equal(err.text, cases[i].text);
    }
    msgl_attn_desc absent = narrow;
    absent.plugin = "minisgl-absent.so";
    absent.plugin_hint = "build it";
    msgl_attn_needs fine = NEEDS;
    fine.capability = 90;
    msgl_err err = {0};
    assert_int_equal(msgl__attn_supports(&absent, &fine, &err), MSGL_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "attention backend narrow: minisgl-absent.so is not in "));
    assert_non_null(strstr(err.text, "; build it"));
    assert_int_equal(msgl__attn_supports(&narrow, &fine, NULL), 0);
}

// Rows name backends that there are, and a GPU without rows has none. (Which row is taken:
// test_gpu_select.c.)
static void test_measured(void **state)
{
    (void)state;
    static const int32_t capabilities[] = {80, 89, 90, 100, 120}, dims[] = {64, 128};
    for (size_t i = 0; i < 5 * 2 * 2 * 16 * 3; i++) {
        msgl_attn_needs n = NEEDS;
        n.backends = &msgl__attn_cuda;
        n.capability = capabilities[i % 5];
        n.head_dim = dims[i / 5 % 2];
        n.num_q_heads = n.num_kv_heads * (int32_t)(1 + i / 20 % 16);
        n.page_size = 1 << (4 * (i / 320 % 3));
        const msgl_phase phase = i / 10 % 2 ? MSGL_DECODE : MSGL_PREFILL;
        const char *const *names = msgl__attn_measured(&n, phase);
        if (n.capability == 90) assert_non_null(names);
        for (int k = 0; names != NULL && k < MSGL_ATTN_AUTO_NAMES && names[k] != NULL; k++) {
            assert_non_null(msgl__attn_find(&msgl__attn_cuda, names[k]));
        }
        n.capability = 70;
        assert_null(msgl__attn_measured(&n, phase));
    }
}

static void test_page_size(void **state)
{
    (void)state;
    char warning[256];
    const msgl_attn_choice fa = {&msgl__attn_fa, &msgl__attn_fa};
    const msgl_attn_choice pair = {&msgl__attn_fa, &msgl__attn_trtllm};
    for (int32_t size = 1; size < 100; size++) {
        assert_int_equal(msgl__attn_page_size(&fa, size, warning), size);
        assert_string_equal(warning, "");
        const bool fits = size == 16 || size == 32 || size == 64;
        assert_int_equal(msgl__attn_page_size(&pair, size, warning), fits ? size : 64);
        char text[256] = "";
        if (!fits) {
            snprintf(text, sizeof text,
                     "attention backend trtllm needs a page size of 16, 32, 64; using 64 instead "
                     "of %d",
                     (int)size);
        }
        assert_string_equal(warning, text);
    }
}

static void check_set(const msgl_attn_set *set, bool ragged)
{
    for (const msgl_attn_desc *const *at = set->all; *at != NULL; at++) {
        const msgl_attn_desc *d = *at;
        assert_ptr_equal(msgl__attn_find(set, d->name), d);
        for (int a = 0; d->aliases[a] != NULL; a++) {
            assert_ptr_equal(msgl__attn_find(set, d->aliases[a]), d);
        }
        assert_non_null(d->summary);
        assert_non_null(d->create);
        assert_non_null(d->destroy);
        assert_non_null(d->forward);
        assert_true(d->copy_in == NULL || d->prepare != NULL);
        const bool both = d->prefill_by == NULL && d->decode_by == NULL;
        assert_int_equal(d->ragged, both && !d->labels && ragged);
        assert_int_equal(d->page_rule == MSGL_PAGE_SET, d->page_override != 0);
        assert_true(d->prefill_by == NULL || msgl__attn_find(set, d->prefill_by) != NULL);
        assert_true(d->decode_by == NULL || msgl__attn_find(set, d->decode_by) != NULL);
    }
    for (const msgl_attn_pair *p = set->pairs; p->prefill != NULL; p++) {
        assert_non_null(msgl__attn_find(set, p->prefill));
        assert_non_null(msgl__attn_find(set, p->decode));
    }
    assert_null(msgl__attn_find(set, "auto"));
}

// Names are unique and every descriptor is complete.
static void test_registry(void **state)
{
    (void)state;
    check_set(&msgl__attn_cpu, true);
    check_set(&msgl__attn_cuda, false);
}

static int create(const msgl_attn_desc *d, const msgl_attn_config *cfg, msgl_attn_backend **b,
                  msgl_err *err)
{
    return d->create(d, cfg, b, err);
}

// A wrong configuration is refused with the name of the field.
static void test_bad_config(void **state)
{
    (void)state;
    msgl_attn_backend *b;
    msgl_err err = {0};
    const msgl_kv_pool pool = {.spec = {.num_heads = 1, .k_dim = 64, .v_dim = 64}};
    msgl_attn_config cfg = {.pool = &pool,
                            .num_q_heads = 2,
                            .num_kv_heads = 1,
                            .head_dim = 64,
                            .page_size = 8,
                            .max_running = 1,
                            .max_seq_len = 8,
                            .max_step_tokens = 8,
                            .max_in_flight = 1,
                            .num_threads = 1};
    assert_int_equal(create(&msgl__attn_trtllm, &cfg, &b, &err), MSGL_EUNSUPPORTED);
    assert_string_equal(err.text, "attention backend trtllm: page size 8; allowed: 16, 32, 64");
    cfg.num_kv_heads = 0;
    assert_int_equal(create(&msgl__attn_fa, &cfg, &b, &err), MSGL_EINVAL);
    assert_string_equal(err.text, "attention: num_kv_heads 0 is not in [1, 65536]");
    cfg.num_kv_heads = 1;
    cfg.max_seq_len = 1 << 28;
    cfg.max_running = 1 << 20;
    assert_int_equal(create(&msgl__attn_fi, &cfg, &b, &err), MSGL_ELIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_labels),     cmocka_unit_test(test_dual_chunk),
        cmocka_unit_test(test_names),      cmocka_unit_test(test_bad_names),
        cmocka_unit_test(test_cannot_run), cmocka_unit_test(test_latent),
        cmocka_unit_test(test_limits),     cmocka_unit_test(test_measured),
        cmocka_unit_test(test_page_size),  cmocka_unit_test(test_registry),
        cmocka_unit_test(test_bad_config),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
