// SPDX-License-Identifier: Apache-2.0
//
// Attention to blocks of keys that the KV heads choose, as far as the host's part goes: on a GPU
// that notes its calls, with lists that are made up. What every token of every head attends with,
// where its result goes, and that a step of any length is done in calls that fit the memory. And
// what memory the scores of keys take that are chosen one by one.
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "attention/chosen.h"
#include "attention/fake_gpu.h"
#include "core/attributes.h"
#include "kernel/kernel.h"

enum { HEADS = 2, GROUP = 4, DIM = 128, INDEX_DIM = 32, SIZE = 16, TOP_K = 3, LIST = SIZE * TOP_K };

static struct {
    int32_t num_calls, first[FAKE_MAX_CALLS], tokens[FAKE_MAX_CALLS];
    msgl_index_blocks_call last;
} chose;

static int32_t count_of(int32_t head, int32_t token)
{
    return 1 + (7 * token + head) % LIST;
}

// A token's list is its number and the head's, its length something of both.
static void choose_blocks(msgl_exec *x, const msgl_index_blocks_call *c)
{
    (void)x;
    for (int32_t h = 0; h < c->heads; h++) {
        for (int32_t t = 0; t < c->tokens; t++) {
            const size_t at = (size_t)h * (size_t)c->tokens + (size_t)t;
            for (int32_t i = 0; i < LIST; i++) {
                c->keys[at * LIST + (size_t)i] = 100 * (c->first + t) + h;
            }
            c->counts[at] = count_of(h, c->first + t);
        }
    }
    chose.first[chose.num_calls] = c->first;
    chose.tokens[chose.num_calls++] = c->tokens;
    chose.last = *c;
}

// What call `call` has its tokens attend with, which are [first, first + n) of head `head`.
static void check_call(const msgl_cuda_attn_call *call, int32_t head, int32_t first, int32_t n,
                       bool newest)
{
    assert_int_equal(call->batch, n);
    assert_int_equal(call->total_q, n);
    assert_int_equal(call->num_q_heads, GROUP);
    assert_int_equal(call->num_kv_heads, 1);
    assert_int_equal(call->page_size, 1);
    assert_int_equal(call->table_stride, LIST);
    assert_int_equal(call->max_seqlen_q, 1);
    assert_true(call->max_seqlen_k >= LIST);
    assert_int_equal(call->ld_out, HEADS * GROUP * DIM);
    for (int32_t t = 0; t < n; t++) {
        assert_int_equal(call->cu_seqlens_q[t + 1] - call->cu_seqlens_q[t], 1);
        assert_int_equal(call->cu_seqlens_q[t], t);
        if (!newest) continue; // the lists are of the last call to choose
        const int32_t row = call->table_rows[t];
        assert_int_equal(call->seqlens_k[t], count_of(head, first + t));
        for (int32_t i = 0; i < LIST; i++) {
            assert_int_equal(call->table[(size_t)row * LIST + (size_t)i], 100 * (first + t) + head);
        }
    }
}

static void check_step(msgl_attn_chosen *c, fake_world *w, int32_t tokens)
{
    const size_t ld = (HEADS * GROUP + 2 * HEADS) * DIM, index_ld = (HEADS + 1) * INDEX_DIM;
    const msgl_seqs seqs = {.num_tokens = tokens, .size = 1};
    const msgl_attn_layer layer = {.scale = 1, .window = -1, .k_scale = 1, .v_scale = 1};
    uint16_t *q = calloc((size_t)tokens * ld, sizeof *q);
    uint16_t *out = calloc((size_t)tokens * HEADS * GROUP * DIM, sizeof *out);
    const msgl_attn_block_index index = {
        .dim = INDEX_DIM, .q = q, .ld_q = index_ld, .dtype = MSGL_BF16, .pool = q};
    assert_true(q != NULL && out != NULL);
    memset(&chose, 0, sizeof chose);
    FAKE_GPU.num_calls = 0;
    msgl__chosen_attend_blocks(c, &w->exec, &layer, &seqs, &index, q, ld, out);
    assert_int_equal(w->exec.status, 0);
    int32_t done = 0;
    assert_int_equal(FAKE_GPU.num_calls, HEADS * chose.num_calls);
    for (int32_t i = 0; i < chose.num_calls; i++) {
        const int32_t n = chose.tokens[i];
        assert_int_equal(chose.first[i], done);
        for (int32_t h = 0; h < HEADS; h++) {
            const msgl_cuda_attn_call *call = &FAKE_GPU.calls[i * HEADS + h];
            check_call(call, h, done, n, i + 1 == chose.num_calls);
            assert_ptr_equal(call->q, q + (size_t)done * ld + (size_t)h * GROUP * DIM);
            assert_int_equal(call->ld_q, ld);
            assert_ptr_equal(call->out, out + ((size_t)done * HEADS + (size_t)h) * GROUP * DIM);
        }
        done += n;
    }
    assert_int_equal(done, tokens);
    const msgl_index_blocks_call *last = &chose.last;
    const size_t lists = HEADS * (size_t)last->tokens;
    assert_true(fake_gpu_contains(last->keys, lists * LIST * sizeof *last->keys));
    assert_true(fake_gpu_contains(last->counts, lists * sizeof *last->counts));
    assert_true(fake_gpu_contains(last->scores, lists * (size_t)last->max_blocks * sizeof(float)));
    assert_int_equal(last->max_blocks, FAKE_SEQ_LEN / SIZE);
    assert_int_equal(last->dim, INDEX_DIM);
    assert_int_equal(last->ld_q, index_ld);
    assert_int_equal(last->page_size, w->table.paging.size);
    assert_ptr_equal(last->pages, w->cfg.device_table);
    assert_int_equal(last->page_stride, w->table.stride);
    free(q), free(out);
}

static void test_lists(void **unused)
{
    (void)unused;
    msgl_kernels kernels = {.index = {.choose_blocks = choose_blocks}};
    msgl_attn_needs needs = fake_needs(90, GROUP, DIM, MSGL_BF16), of_head = needs;
    const msgl_attn_choosing what = {.top_k = TOP_K, .block_size = SIZE, .local_blocks = 1};
    const msgl_attn_desc *desc;
    msgl_attn_chosen *c;
    msgl_err err = {0};
    fake_world w;
    fake_plugins(false, false);
    fake_gpu_reset(90);
    of_head.num_q_heads = GROUP;
    of_head.num_kv_heads = 1;
    assert_int_equal(msgl__chosen_select(&of_head, &desc, &err), 0);
    assert_string_equal(desc->name, "fa");
    fake_world_open(&w, &needs);
    w.cfg.kernels = &kernels;
    if (msgl__chosen_create(&w.cfg, desc, &what, &c, &err) != 0) fail_msg("%s", err.text);
    static const int32_t tokens[] = {1, 33, 256, 1000};
    for (size_t i = 0; i < MSGL_COUNT(tokens); i++) check_step(c, &w, tokens[i]);
    msgl__chosen_destroy(c);
    fake_world_close(&w);
    fake_gpu_check();
}

static msgl_index_choose_call chose_keys;

static void choose(msgl_exec *x, const msgl_index_choose_call *c)
{
    (void)x;
    chose_keys = *c;
}

// Bytes of device memory that layers like DeepSeek-V4's, of which this is chosen, take, but for
// those of scores; how many of these there are, the call of the kernel is told.
static size_t bytes_beside_scores(const msgl_attn_choosing *what, int32_t scores)
{
    msgl_kernels kernels = {.index = {.choose = choose}};
    msgl_attn_needs needs = fake_latent_needs(90, 64, 512, 0, MSGL_BF16);
    const msgl_index_choose_call call = {.heads = 64, .every = what->every};
    const msgl_attn_desc *desc;
    msgl_attn_chosen *c;
    msgl_err err = {0};
    fake_world w;
    fake_gpu_reset(90);
    needs.variants.all[0].sinks = true;
    assert_int_equal(msgl__chosen_select(&needs, &desc, &err), 0);
    assert_string_equal(desc->name, "triton");
    fake_world_open(&w, &needs);
    w.cfg.kernels = &kernels;
    if (msgl__chosen_create(&w.cfg, desc, what, &c, &err) != 0) fail_msg("%s", err.text);
    msgl__chosen_choose(c, &w.exec, &call);
    assert_int_equal(chose_keys.max_keys, scores);
    assert_int_equal(chose_keys.top_k, what->top_k);
    assert_true(chose_keys.score_rows >= MSGL_INDEX_ROWS);
    const size_t of_scores = (size_t)chose_keys.score_rows * (size_t)scores * sizeof(float);
    assert_true(fake_gpu_contains(chose_keys.scores, of_scores));
    const size_t bytes = fake_gpu_bytes();
    assert_true(bytes > of_scores);
    msgl__chosen_destroy(c);
    fake_world_close(&w);
    fake_gpu_check();
    return bytes - of_scores;
}

// There is a score for each key that one may choose, and memory for no more.
static void test_scores(void **unused)
{
    (void)unused;
    fake_plugins(false, false);
    const struct {
        msgl_attn_choosing what;
        int32_t scores;
    } cases[] = {{{.top_k = 512}, FAKE_SEQ_LEN},
                 {{.top_k = 512, .every = 1}, FAKE_SEQ_LEN},
                 {{.top_k = 512, .every = 4}, FAKE_SEQ_LEN / 4},
                 {{.top_k = 512, .every = 96}, FAKE_SEQ_LEN / 96}, // the last 32 end no window
                 {{.top_k = 512, .every = FAKE_SEQ_LEN + 1}, 0}};
    const size_t rest = bytes_beside_scores(&cases[0].what, cases[0].scores);
    for (size_t i = 1; i < MSGL_COUNT(cases); i++) {
        assert_int_equal(bytes_beside_scores(&cases[i].what, cases[i].scores), rest);
    }
    // With lists of windows, too, of a group whose layers choose, and of one where none does.
    const msgl_attn_choosing some = {.top_k = 512, .every = 4, .list_keys = 640};
    const msgl_attn_choosing none = {.list_keys = 640};
    assert_int_equal(bytes_beside_scores(&some, FAKE_SEQ_LEN / 4), bytes_beside_scores(&none, 0));
}

// Any dtype that fa has.
static void test_dtypes(void **unused)
{
    (void)unused;
    static const msgl_dtype dtypes[] = {MSGL_F32, MSGL_F16, MSGL_BF16, MSGL_E4M3};
    for (size_t i = 0; i < MSGL_COUNT(dtypes); i++) {
        msgl_attn_needs n = fake_needs(80, GROUP, 32, dtypes[i]);
        if (dtypes[i] == MSGL_E4M3) n.act = MSGL_BF16;
        n.num_q_heads = GROUP;
        n.num_kv_heads = 1;
        const msgl_attn_desc *desc;
        msgl_err err = {0};
        assert_int_equal(msgl__chosen_select(&n, &desc, &err), 0);
        assert_string_equal(desc->name, "fa");
    }
    msgl_attn_needs old = fake_needs(75, GROUP, 32, MSGL_F16);
    const msgl_attn_desc *desc;
    msgl_err err = {0};
    assert_int_equal(msgl__chosen_select(&old, &desc, &err), MSGL_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "index_topk_blocks"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
