// SPDX-License-Identifier: Apache-2.0
//
// What a model asks its device to measure: which products, of which layers, with how many rows.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "models/arch.h"
#include "models/folder.h"
#include "models/decoder.h"

enum { MOST = 8, LAYERS = 12, BLOCK = 700, BATCH = 100, TOKENS = 5000 };

// What tune was called with.
static struct {
    int num;
    struct {
        const msgl_weight *w[LAYERS];
        msgl_linear_call first;
        bool alike, rope;
        int32_t num_calls, num_rows, last_row;
        const msgl_weight *behind;
    } product[MOST];
} seen;

static size_t packed_size(const msgl_wformat *f, int n, int k)
{
    return (size_t)n * (size_t)k * msgl__dtype_size(f->dtype);
}

static bool same_kind(const msgl_linear_call *a, const msgl_linear_call *b)
{
    return a->w->n == b->w->n && a->w->k == b->w->k && a->gated == b->gated &&
           a->accumulate == b->accumulate && a->f32_out == b->f32_out &&
           (a->norm != NULL) == (b->norm != NULL) && (a->bias != NULL) == (b->bias != NULL) &&
           (a->next_norm != NULL) == (b->next_norm != NULL);
}

static void tune(msgl_exec *x, msgl_arena *memory, const msgl_tune_product *p, const int32_t *ms,
                 int32_t num)
{
    assert_true(seen.num < MOST && p->num_calls > 0 && p->num_calls <= LAYERS && num > 0);
    assert_true(x->scratch->used == 0 && memory->used == 0);
    assert_true(p->behind == NULL || p->behind->num_calls > 0);
    assert_int_equal(ms[0], 1);
    for (int32_t i = 1; i < num; i++) assert_true(ms[i] > ms[i - 1]);
    const int n = seen.num++;
    seen.product[n].first = p->calls[0];
    seen.product[n].alike = true;
    seen.product[n].rope = p->rope != NULL;
    seen.product[n].num_calls = p->num_calls;
    seen.product[n].num_rows = num;
    seen.product[n].last_row = ms[num - 1];
    seen.product[n].behind = p->behind != NULL ? p->behind->calls[0].w : NULL;
    for (int32_t i = 0; i < p->num_calls; i++) {
        seen.product[n].w[i] = p->calls[i].w;
        seen.product[n].alike &= same_kind(&p->calls[0], &p->calls[i]);
        for (int32_t j = 0; j < i; j++) assert_ptr_not_equal(p->calls[i].w, p->calls[j].w);
    }
    memory->used = x->scratch->used = 1; // tune may leave them in any state
}

static const msgl_wformat FORMATS[MSGL_WFORMATS] = {
    [MSGL_W_BF16] = {MSGL_WFORMAT_BF16, .packed_size = packed_size}};
static const msgl_kernels KERNELS = {
    .gemm = {.formats = FORMATS, .block_rows = BLOCK, .tune = tune}};

typedef struct tiny {
    msgl_model m;
    void *region;
} tiny;

// Builds the model, places its weights and tunes it.
static void run(tiny *t, json_t *config, int32_t ranks)
{
    folder f;
    msgl_err err = {0};
    folder_make(&f);
    folder_write_json(&f, "config.json", config);
    json_decref(config);
    memset(t, 0, sizeof *t);
    memset(&seen, 0, sizeof seen);
    if (msgl__model_config_load(f.dir, &t->m.cfg, &err) != 0) fail_msg("%s", err.text);
    folder_remove(&f);
    const msgl_model_target target = {.kernels = &KERNELS,
                                      .weights = {.kernels = &KERNELS.gemm,
                                                  .dtype = MSGL_BF16,
                                                  .converted = &FORMATS[MSGL_W_BF16]},
                                      .act = MSGL_BF16,
                                      .ranks = ranks,
                                      .expert_ranks = 1};
    if (msgl__model_build(&t->m, &target, &err) != 0) fail_msg("%s", err.text);
    t->region = calloc(1, t->m.plan.bytes);
    assert_non_null(t->region);
    msgl__weight_plan_place(&t->m.plan, t->region);
    msgl_arena scratch = {0}, memory = {0};
    msgl_exec x = {.act = MSGL_BF16, .scratch = &scratch};
    msgl__products_tune(&t->m.products, &KERNELS, &x, &memory, MSGL_BF16, BATCH, TOKENS);
}

static void end(tiny *t)
{
    msgl__model_free(&t->m);
    free(t->region);
}

static const msgl_decoder_layer *layers_of(const tiny *t)
{
    return ((const msgl_decoder *)t->m.layers)->layers;
}

static json_t *config_of(const char *architecture, const char *layers)
{
    json_t *c = small_config(architecture);
    set_field(c, "num_hidden_layers", layers);
    set_field(c, "tie_word_embeddings", "false");
    return c;
}

static void a_dense_model_has_five_products_with_several_layers_each(void **state)
{
    (void)state;
    tiny t;
    run(&t, config_of("Qwen3ForCausalLM", "12"), 1);
    const msgl_decoder_layer *l = layers_of(&t);
    const msgl_weight *const first[] = {&t.m.lm_head.w, &l->attn.qkv.w, &l->mlp.gate_up.w,
                                        &l->out.w, &l->mlp.down.w};
    static const int32_t last[] = {96, 4096, 640, 4096, 640}; // batch, tokens, block
    assert_int_equal(seen.num, 5);
    for (int i = 0; i < 5; i++) {
        assert_ptr_equal(seen.product[i].first.w, first[i]);
        assert_true(seen.product[i].alike);
        assert_int_equal(seen.product[i].num_calls, i == 0 ? 1 : 8);
        assert_int_equal(seen.product[i].last_row, last[i]);
        assert_int_equal(seen.product[i].rope, i == 1);
        assert_int_equal(seen.product[i].first.gated, i == 2);
        assert_int_equal(seen.product[i].first.accumulate, i >= 3);
        assert_int_equal(seen.product[i].first.f32_out, i == 0);
    }
    assert_ptr_equal(seen.product[0].first.norm, t.m.final_norm.weight);
    assert_ptr_equal(seen.product[1].first.norm, l->attn_norm.weight);
    assert_ptr_equal(seen.product[2].first.norm, l->ffn_norm.weight);
    // Which product leaves norm_stats, and for which one.
    assert_ptr_equal(seen.product[3].first.next_norm, l->ffn_norm.weight);
    assert_ptr_equal(seen.product[3].behind, &l->mlp.gate_up.w);
    assert_ptr_equal(seen.product[4].first.next_norm, l[1].attn_norm.weight);
    assert_ptr_equal(seen.product[4].behind, &l->attn.qkv.w);
    end(&t);
}

static void the_last_layer_leaves_no_norm_stats_and_is_alone_only_in_a_model_of_one(void **state)
{
    (void)state;
    tiny t;
    run(&t, config_of("LlamaForCausalLM", "2"), 1);
    assert_int_equal(seen.product[3].num_calls, 2);
    assert_int_equal(seen.product[4].num_calls, 1);
    assert_non_null(seen.product[4].first.next_norm);
    end(&t);
    run(&t, config_of("LlamaForCausalLM", "1"), 1);
    assert_int_equal(seen.num, 5);
    assert_int_equal(seen.product[4].num_calls, 1);
    assert_null(seen.product[4].first.next_norm);
    end(&t);
}

static void experts_layers_have_no_products_of_their_own(void **state)
{
    (void)state;
    tiny t;
    run(&t, config_of("Qwen3MoeForCausalLM", "12"), 1);
    assert_int_equal(seen.num, 3); // head, qkv, o
    assert_ptr_equal(seen.product[2].first.w, &layers_of(&t)[0].out.w);
    assert_null(seen.product[2].first.next_norm); // experts norm the stream themselves
    end(&t);
    json_t *c = config_of("Qwen3MoeForCausalLM", "12");
    set_field(c, "decoder_sparse_step", "3"); // two dense layers, then one of experts
    run(&t, c, 1);
    assert_int_equal(seen.num, 5);
    for (int i = 0; i < 5; i++) assert_true(seen.product[i].alike);
    assert_ptr_equal(seen.product[2].w[2], &layers_of(&t)[3].mlp.gate_up.w);
    assert_ptr_equal(seen.product[3].w[2], &layers_of(&t)[3].out.w); // as the first layer's
    end(&t);
}

static void ranks_add_their_parts_up_elsewhere(void **state)
{
    (void)state;
    tiny t;
    run(&t, config_of("Qwen3ForCausalLM", "2"), 2);
    for (int i = 3; i < 5; i++) {
        assert_false(seen.product[i].first.accumulate);
        assert_null(seen.product[i].first.next_norm);
    }
    end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_model_has_five_products_with_several_layers_each),
        cmocka_unit_test(the_last_layer_leaves_no_norm_stats_and_is_alone_only_in_a_model_of_one),
        cmocka_unit_test(experts_layers_have_no_products_of_their_own),
        cmocka_unit_test(ranks_add_their_parts_up_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
