// SPDX-License-Identifier: Apache-2.0
#include "attention/public_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/attributes.h"

// What would keep the exact answer busy for long is smaller here: lengths of 400 and more by
// multiples of 256 (answers' of 64), batches of chunks and of more than 40, heads where the test is
// not about them. What is left over at tiles and pages stays. Comments say what became of what.

// 8190 keys of which 7939 are new: 510 and 259; 8192: 512; 5000: 392; 4099: 515; 2048: 128; 1024:
// 64 and 256; 766: 62; 600: 88. The last causal one: chunks beside answers of 5 % of such lengths.
static const public_case BATCH_ATTENTION[] = {
    {28, 4, 64, 0, 8, MSGL_F16, .reqs = {{1, 146, 146}}, .softcap = 50},
    {32, 4, 128, 0, 1, MSGL_BF16, .reqs = {{1, 67, 67}}},
    {1, 1, 256, 0, 16, MSGL_BF16, .reqs = {{1, 510, 259}}},
    {8, 1, 128, 0, 8, MSGL_F16, .reqs = {{37, 128, 1}}, .softcap = 50},
    {4, 1, 128, 0, 16, MSGL_BF16, .reqs = {{2, 515, 129}}},
    {4, 1, 64, 0, 1, MSGL_F16, .reqs = {{26, 88, 1}, {8, 392, 3}}},
    {7, 1, 128, 0, 8, MSGL_BF16, .reqs = {{30, 64, 1}, {2, 512, 17}}},
    {8, 1, 64, 0, 16, MSGL_F16, .reqs = {{31, 62, 2}, {1, 256, 128}}},
    {7, 1, 64, 0, 1, MSGL_BF16, .reqs = {{30, 50, 1}, {7, 294, 1}, {1, 1000, 17}}},
    {28, 4, 64, 0, 8, MSGL_F16, .reqs = {{1, 146, 146}}, .softcap = 50, .all = true},
    {4, 1, 128, 0, 16, MSGL_BF16, .reqs = {{2, 515, 129}}, .all = true},
};

// 16384 and 2048 keys: 512; batch 128: 40.
static const public_case BATCH_DECODE[] = {
    {32, 4, 128, 0, 8, MSGL_F16, .reqs = {{12, 54, 1}}},
    {4, 4, 256, 0, 1, MSGL_E4M3, .reqs = {{17, 54, 1}}},
    {32, 4, 128, 0, 16, MSGL_E4M3, .reqs = {{3, 512, 1}}},
    {2, 2, 128, 0, 8, MSGL_F16, .reqs = {{40, 54, 1}}},
    {4, 4, 256, 0, 16, MSGL_F16, .reqs = {{1, 512, 1}}},
};

// 2048 keys: 1024; batch 12, 17, 128 of longer ones: 3 or less; 32 or 4 heads: 32 to 1.
static const public_case BATCH_PREFILL[] = {
    {4, 4, 128, 0, 5, MSGL_F16, .reqs = {{12, 54, 37}}},
    {32, 32, 128, 0, 1, MSGL_F16, .reqs = {{1, 54, 17}}},
    {1, 1, 256, 0, 5, MSGL_F16, .reqs = {{17, 97, 17}}},
    {8, 1, 128, 0, 16, MSGL_E4M3, .reqs = {{2, 512, 127}}},
    {1, 1, 128, 0, 5, MSGL_F16, .reqs = {{1, 1024, 577}}},
    {4, 4, 128, 0, 5, MSGL_F16, .reqs = {{12, 54, 37}}, .all = true},
    {8, 1, 256, 0, 16, MSGL_F16, .reqs = {{3, 97, 17}}, .all = true},
};

// Single requests of the original go into one step; 1999 keys of chunks: 463; 1177: 409 at times.
static const public_case SLIDING_WINDOW[] = {
    {4, 1, 64, 0, 1, MSGL_F16, .reqs = {{1, 1, 1}, {1, 3, 1}, {1, 19, 1}, {1, 99, 1}},
     .window = 13},
    {8, 4, 128, 0, 1, MSGL_F16, .reqs = {{1, 199, 1}, {1, 409, 1}, {1, 99, 1}}, .window = 3},
    {4, 1, 256, 0, 16, MSGL_F16, .reqs = {{1, 1177, 1}, {1, 19, 1}}, .window = 43},
    {4, 1, 256, 0, 16, MSGL_F16, .reqs = {{13, 99, 1}}, .window = 33},
    {8, 1, 64, 0, 16, MSGL_F16, .reqs = {{2, 1999, 1}}, .window = 533},
    {4, 4, 64, 0, 1, MSGL_F16, .reqs = {{32, 3, 1}}, .window = 33},
    {4, 1, 128, 0, 1, MSGL_F16, .reqs = {{1, 99, 99}, {1, 199, 199}}, .window = 43},
    {4, 1, 64, 0, 16, MSGL_F16, .reqs = {{1, 463, 463}}, .window = 233},
    {4, 4, 64, 0, 1, MSGL_F16, .reqs = {{17, 54, 47}}, .window = 13},
    {4, 1, 64, 0, 16, MSGL_F16, .reqs = {{12, 397, 37}}, .window = 111},
    {4, 1, 256, 0, 1, MSGL_F16, .reqs = {{3, 409, 47}}, .window = 33},
};

// The original's prefills are not causal. 33001 and 31111 keys: 233 and 391.
static const public_case LOGITS_CAP[] = {
    {4, 4, 128, 0, 16, MSGL_F16, .reqs = {{1, 1, 1}, {1, 9, 1}, {1, 81, 1}, {1, 729, 1}},
     .softcap = 1},
    {8, 8, 256, 0, 1, MSGL_F16, .reqs = {{1, 233, 1}, {1, 81, 1}}, .softcap = 30},
    {32, 32, 128, 0, 16, MSGL_F16, .reqs = {{1, 81, 1}}, .softcap = 50},
    {4, 4, 128, 0, 16, MSGL_F16, .reqs = {{1, 17, 17}, {1, 81, 17}, {1, 81, 81}}, .softcap = 1},
    {4, 4, 128, 0, 1, MSGL_F16, .reqs = {{1, 81, 1}, {1, 17, 17}}, .softcap = 1, .all = true},
    {4, 4, 128, 0, 16, MSGL_F16, .reqs = {{1, 391, 81}}, .softcap = 30, .all = true},
    {1, 1, 256, 0, 16, MSGL_F16, .reqs = {{1, 987, 17}}, .softcap = 50, .all = true},
};

// 32 heads: in most 8 or 4, with the group of 1 or 4.
static const public_case ATTENTION_SINK[] = {
    {32, 8, 128, 0, 1, MSGL_BF16, .reqs = {{4, 1, 1}, {1, 4, 4}, {1, 16, 16}}, .sinks = true},
    {32, 32, 128, 0, 1, MSGL_F16, .reqs = {{1, 128, 128}}, .window = 128, .sinks = true},
    {8, 2, 128, 0, 1, MSGL_BF16, .reqs = {{16, 129, 1}, {4, 130, 1}}, .window = 128, .sinks = true},
    {8, 2, 128, 0, 16, MSGL_F16, .reqs = {{1, 384, 128}, {1, 768, 256}}, .window = 128,
     .sinks = true},
    {8, 2, 128, 0, 1, MSGL_BF16, .reqs = {{2, 128, 32}, {1, 256, 64}, {1, 512, 128}},
     .sinks = true},
    {8, 8, 128, 0, 16, MSGL_F16, .reqs = {{1, 200, 50}, {1, 400, 100}}, .window = 128,
     .sinks = true},
    {4, 1, 128, 0, 1, MSGL_BF16, .reqs = {{1, 300, 100}, {1, 600, 200}}, .sinks = true},
};

// Its window of 256 counts the query's own key.
static const public_case XQA[] = {
    {32, 2, 32, 0, 64, MSGL_BF16, .reqs = {{4, 514, 1}}, .window = 255, .sinks = true},
    {32, 4, 32, 0, 16, MSGL_F16, .reqs = {{1, 2, 1}, {1, 15, 1}, {1, 256, 1}, {1, 514, 1}}},
    {32, 4, 32, 0, 16, MSGL_E4M3, .reqs = {{4, 514, 1}}, .window = 255},
    {64, 4, 128, 0, 64, MSGL_E4M3, .reqs = {{1, 256, 1}, {2, 15, 1}}, .window = 255, .sinks = true},
    {32, 2, 128, 0, 16, MSGL_BF16, .reqs = {{4, 2, 1}}, .sinks = true},
};

// 8736 and 2743 keys: 288 and 183; 1024: 514, another of its lengths; batch 157: 30.
static const public_case DEEPSEEK_MLA[] = {
    {16, 1, 576, 512, 1, MSGL_F16, .reqs = {{1, 11, 3}, {1, 17, 3}, {1, 514, 3}}},
    {16, 1, 576, 512, 1, MSGL_F16, .reqs = {{3, 17, 17}, {1, 33, 17}, {1, 288, 17}}},
    {64, 1, 576, 512, 1, MSGL_F16, .reqs = {{1, 1, 1}, {1, 33, 1}, {1, 183, 1}}},
    {16, 1, 576, 512, 16, MSGL_F16, .reqs = {{7, 33, 7}, {2, 17, 17}}},
    {16, 1, 576, 512, 32, MSGL_F16, .reqs = {{2, 75, 7}, {1, 197, 7}}},
    {16, 1, 576, 512, 1, MSGL_F16, .reqs = {{3, 96, 5}, {1, 97, 9}, {1, 114, 15}}},
    {16, 1, 576, 512, 16, MSGL_F16, .reqs = {{1, 514, 1}, {1, 17, 1}}},
    {16, 1, 576, 512, 16, MSGL_F16, .reqs = {{30, 17, 1}}},
    {16, 1, 512, 512, 16, MSGL_F16, .reqs = {{2, 97, 3}}},
    {128, 1, 576, 512, 128, MSGL_BF16, .reqs = {{1, 128, 1}}},
};

// 4096 keys: 1024, and around it where lengths vary.
static const public_case FLASH_MLA[] = {
    {1, 1, 576, 512, 64, MSGL_BF16, .reqs = {{1, 1024, 2}}},
    {3, 1, 576, 512, 64, MSGL_BF16, .reqs = {{6, 140, 2}}},
    {9, 1, 576, 512, 64, MSGL_F16, .reqs = {{6, 20, 4}}},
    {9, 1, 576, 512, 64, MSGL_BF16, .reqs = {{40, 20, 1}}},
    {63, 1, 576, 512, 64, MSGL_BF16, .reqs = {{1, 140, 1}, {1, 71, 1}}},
    {64, 1, 576, 512, 64, MSGL_BF16, .reqs = {{2, 20, 4}, {1, 140, 4}}},
    {126, 1, 576, 512, 64, MSGL_F16, .reqs = {{1, 20, 4}}},
    {128, 1, 576, 512, 64, MSGL_BF16, .reqs = {{1, 20, 2}, {1, 41, 2}, {1, 2, 2}}},
    {3, 1, 576, 512, 64, MSGL_BF16, .reqs = {{1, 2, 1}, {1, 1023, 1}, {2, 317, 1}}},
};

// Random prefixes and extensions of up to 6165 tokens: up to 165; 3000 keys: 952.
static const public_case TRITON[] = {
    {12, 4, 128, 0, 1, MSGL_BF16, .reqs = {{12, 37, 1}, {1, 165, 64}, {2, 97, 96}, {4, 12, 11}}},
    {12, 4, 80, 0, 1, MSGL_BF16, .reqs = {{2, 165, 37}, {17, 32, 31}}},
    {12, 4, 96, 0, 1, MSGL_BF16, .reqs = {{1, 2, 1}, {16, 70, 1}, {2, 130, 65}}},
    {8, 2, 64, 0, 1, MSGL_BF16, .reqs = {{1, 9, 1}, {1, 23, 7}, {1, 45, 13}, {1, 193, 129}}},
    {8, 1, 128, 0, 1, MSGL_BF16, .reqs = {{14, 133, 1}, {3, 150, 30}, {2, 200, 65}}, .window = 127},
    {4, 4, 80, 0, 1, MSGL_F32, .reqs = {{1, 8, 8}, {1, 12, 12}}},
    {4, 4, 96, 0, 1, MSGL_F32, .reqs = {{1, 8, 8}, {1, 12, 12}}, .all = true},
    {4, 2, 64, 0, 1, MSGL_BF16, .reqs = {{2, 10, 1}}},
    {16, 16, 64, 0, 1, MSGL_BF16, .reqs = {{1, 500, 1}, {2, 5, 1}}},
    {16, 1, 64, 0, 1, MSGL_BF16, .reqs = {{2, 100, 1}, {2, 128, 1}}},
    {128, 1, 80, 0, 1, MSGL_BF16, .reqs = {{2, 100, 1}, {2, 5, 1}}},
    {128, 1, 576, 512, 1, MSGL_BF16, .reqs = {{2, 5, 1}, {1, 100, 1}}},
    {12, 1, 576, 512, 1, MSGL_BF16, .reqs = {{1, 96, 32}, {1, 119, 23}}},
    {8, 2, 128, 0, 1, MSGL_BF16, .reqs = {{1, 129, 1}, {1, 256, 128}}},
    {64, 8, 80, 0, 1, MSGL_BF16, .reqs = {{1, 77, 50}}},
    {1, 1, 64, 0, 1, MSGL_BF16, .reqs = {{1, 952, 808}, {1, 952, 795}, {1, 952, 100}},
     .window = 128},
};

// Windows to both sides: the left one alone; 385 keys: 129.
static const public_case WINDOW_SINK[] = {
    {8, 8, 64, 0, 16, MSGL_BF16, .reqs = {{1, 128, 128}, {1, 200, 200}}, .window = 16},
    {8, 4, 64, 0, 16, MSGL_BF16, .reqs = {{1, 91, 91}, {1, 37, 37}}, .window = 16, .sinks = true},
    {2, 2, 64, 0, 1, MSGL_BF16, .reqs = {{1, 300, 300}, {1, 257, 257}, {1, 129, 129}}, .window = 1},
    {2, 2, 64, 0, 16, MSGL_BF16, .reqs = {{1, 300, 300}, {1, 257, 257}}, .window = 64, .all = true},
};

static const public_case FLASHATTN_BACKEND[] = {
    {2, 2, 8, 0, 1, MSGL_F16, .reqs = {{2, 256, 256}}},
    {2, 2, 8, 0, 64, MSGL_F16, .reqs = {{2, 257, 1}}},
    {2, 2, 8, 0, 1, MSGL_F16, .reqs = {{2, 256, 128}}},
    {2, 2, 8, 0, 64, MSGL_F16, .reqs = {{2, 256, 256}}},
};

// Up to 128 and 256 keys: 64 and less; batch 32: 10.
static const public_case TRTLLM_MLA[] = {
    {128, 1, 576, 512, 32, MSGL_BF16, .reqs = {{1, 32, 1}, {4, 16, 1}}},
    {128, 1, 576, 512, 64, MSGL_BF16, .reqs = {{1, 64, 1}, {1, 63, 1}, {1, 33, 1}}},
    {128, 1, 576, 512, 32, MSGL_BF16, .reqs = {{10, 5, 1}}},
};

static const public_case DENSE_FA3[] = {
    {4, 4, 64, 0, 16, MSGL_BF16, .reqs = {{1, 15, 1}, {1, 16, 1}, {1, 17, 1}}},
    {4, 4, 64, 0, 16, MSGL_BF16, .reqs = {{1, 7, 3}, {1, 10, 3}}},
    {4, 4, 64, 0, 16, MSGL_BF16, .reqs = {{1, 17, 1}, {1, 15, 15}, {1, 16, 8}}},
    {4, 2, 64, 0, 16, MSGL_BF16, .reqs = {{1, 17, 2}}},
    {12, 12, 64, 0, 16, MSGL_BF16, .reqs = {{1, 16, 8}, {1, 32, 16}}},
};

// Only pairs of no more queries than keys; 4224: 384; 3577 keys, 2048 of them new: 1529 and 512;
// 20000: 544; batch 9: 1 or 2. 40, 56, 160 and 224 elements of a head are in lists that it has
// commented out.
static const public_case HOPPER[] = {
    {6, 2, 192, 0, 16, MSGL_BF16, .reqs = {{2, 1, 1}, {1, 128, 64}, {1, 192, 128}}, .softcap = 15},
    {6, 1, 192, 0, 16, MSGL_E4M3, .reqs = {{1, 203, 113}, {1, 128, 113}, {1, 217, 128}}},
    {6, 2, 192, 0, 4, MSGL_F16, .reqs = {{1, 211, 113}, {1, 256, 108}}, .window = 97},
    {6, 6, 96, 0, 1, MSGL_BF16, .reqs = {{1, 256, 256}, {1, 512, 256}}, .chunk = 301},
    {6, 2, 64, 0, 128, MSGL_BF16, .reqs = {{1, 512, 511}}},
    {6, 1, 64, 0, 16, MSGL_F16, .reqs = {{1, 384, 384}}, .window = 133, .softcap = 15},
    {6, 3, 128, 0, 1, MSGL_BF16, .reqs = {{1, 339, 1}, {2, 128, 1}, {1, 799, 3}, {1, 1024, 3}}},
    {6, 3, 128, 0, 4, MSGL_F16, .reqs = {{1, 800, 64}, {1, 256, 64}}, .chunk = 501},
    {6, 3, 128, 0, 128, MSGL_BF16, .reqs = {{1, 256, 64}, {1, 128, 128}}, .window = 171},
    {6, 1, 128, 0, 128, MSGL_E4M3, .reqs = {{1, 2048, 64}, {1, 544, 16}}},
    {6, 1, 128, 0, 4, MSGL_BF16, .reqs = {{1, 1529, 512}}, .chunk = 2000},
    {6, 2, 40, 0, 16, MSGL_BF16, .reqs = {{1, 203, 1}, {1, 203, 113}}},
    {6, 2, 56, 0, 16, MSGL_F16, .reqs = {{1, 256, 1}, {1, 256, 108}}},
    {6, 2, 160, 0, 16, MSGL_BF16, .reqs = {{1, 217, 1}, {1, 217, 128}}},
    {6, 6, 224, 0, 16, MSGL_BF16, .reqs = {{1, 211, 1}, {1, 211, 113}}},
    {6, 2, 192, 0, 16, MSGL_BF16, .reqs = {{1, 203, 113}}, .softcap = 15, .all = true},
    {6, 6, 96, 0, 16, MSGL_F16, .reqs = {{1, 217, 128}}, .window = 60, .all = true},
};

#define GROUP(source, cases)                                                                       \
    {                                                                                              \
        source, cases, (int)MSGL_COUNT(cases)                                                      \
    }

static const public_group GROUPS[] = {
    GROUP("FlashInfer 1e5787a tests/attention/test_batch_attention.py", BATCH_ATTENTION),
    GROUP("FlashInfer 003c125 tests/attention/test_batch_decode_kernels.py", BATCH_DECODE),
    GROUP("FlashInfer 01fdedd tests/attention/test_batch_prefill_kernels.py", BATCH_PREFILL),
    GROUP("FlashInfer 102e31a tests/attention/test_sliding_window.py", SLIDING_WINDOW),
    GROUP("FlashInfer 1e5787a tests/attention/test_logits_cap.py", LOGITS_CAP),
    GROUP("FlashInfer 140cd84 tests/attention/test_attention_sink.py", ATTENTION_SINK),
    GROUP("FlashInfer 0a8300c tests/attention/test_xqa.py", XQA),
    GROUP("FlashInfer 00c6ba8 tests/attention/test_deepseek_mla.py", DEEPSEEK_MLA),
    GROUP("FlashMLA 9241ae3 tests/test_flash_mla_dense_decoding.py", FLASH_MLA),
    GROUP("SGLang 00f6b51 test/registered/attention/test_triton_attention_kernels.py", TRITON),
    GROUP("SGLang 92a0070 test/registered/attention/test_triton_attention_window_sink.py",
          WINDOW_SINK),
    GROUP("SGLang 07dac18 python/sglang/test/attention/test_flashattn_backend.py",
          FLASHATTN_BACKEND),
    GROUP("SGLang 13d3f64 python/sglang/test/attention/test_trtllm_mla_backend.py", TRTLLM_MLA),
    GROUP("SGLang 4f1725e test/registered/attention/unittest/dense/test_fa3.py", DENSE_FA3),
    GROUP("flash-attention 01afd16 hopper/test_flash_attn.py", HOPPER),
};

const public_group *public_groups(int *count)
{
    *count = (int)MSGL_COUNT(GROUPS);
    return GROUPS;
}

static int page_size(const msgl_attn_desc *d, int wanted)
{
    if (d->page_rule != MSGL_PAGE_SET) return wanted;
    int best = d->page_sizes[0];
    for (int i = 0; i < MSGL_ATTN_MAX_SET && d->page_sizes[i] != 0; i++) {
        if (abs(d->page_sizes[i] - wanted) < abs(best - wanted)) best = d->page_sizes[i];
    }
    return best;
}

world_spec public_spec(const public_case *c, const msgl_attn_desc *desc)
{
    world_spec s = world_base(desc, 0, 0, 0);
    s.samples = 8;
    s.dtype = c->dtype;
    s.group = c->q_heads / c->kv_heads;
    s.num_kv_heads = c->kv_heads;
    s.head_dim = c->head_dim;
    s.v_dim = c->v_dim;
    s.page_size = page_size(desc, c->page_size);
    s.softcap = c->softcap;
    s.window = c->window > 0 ? c->window : -1;
    s.chunk = c->chunk;
    s.sinks = c->sinks;
    for (int i = 0; i < PUBLIC_MOST_REQS; i++) {
        const public_reqs *r = &c->reqs[i];
        s.max_running += r->count;
        s.max_step_tokens += r->count * r->new_tokens;
        if (r->keys > s.max_seq_len) s.max_seq_len = r->keys;
        if (r->new_tokens > s.most_new) s.most_new = r->new_tokens;
    }
    if (!c->all) return s;
    s.masks = 1u << MSGL_MASK_PREFIX;
    if (s.window >= 0) s.masks |= 1u << MSGL_MASK_WINDOW;
    if (s.softcap > 0) s.scores = 1u << MSGL_SCORE_SOFTCAP;
    return s;
}

double public_run(const public_case *c, const world_spec *spec)
{
    world w;
    step_req reqs[MAX_REQS];
    int n = 0, answers = 0;
    world_open(&w, spec);
    for (int i = 0; i < PUBLIC_MOST_REQS; i++) {
        const public_reqs *r = &c->reqs[i];
        for (int j = 0; j < r->count; j++, n++) {
            assert_true(n < MAX_REQS && r->new_tokens <= r->keys);
            assert_true(r->new_tokens > 1 || answers == n);
            world_request(&w, n, r->keys);
            reqs[n] = (step_req){n, r->keys - r->new_tokens, r->keys};
            if (r->new_tokens == 1) answers++;
            if (c->all) w.prefixes[n] = r->keys;
        }
    }
    // Masks are for the half of a pair that takes chunks.
    if (c->all && spec->desc->decode_by != NULL) answers = 0;
    world_mixed(&w, answers, reqs, n);
    const double error = world_error(&w, reqs, n);
    world_close(&w);
    return error;
}
