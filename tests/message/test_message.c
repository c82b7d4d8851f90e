// SPDX-License-Identifier: Apache-2.0
//
// The message codec: every type survives a round trip at the borders of its fields; every
// truncation, extension and mutation of a valid frame is refused or decodes within bounds (the
// sanitizers watch); claims of huge counts allocate nothing.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "core/settings.h"
#include "message/codec.h"
#include "message/frame.h"

static msgl_strbuf enc(const msgl_msg *m)
{
    msgl_strbuf b;
    msgl__strbuf_init(&b, MSGL_MSG_FRAME_MAX);
    assert_int_equal(msgl__msg_encode(m, &b), 0);
    return b;
}

static msgl_msg request_message(const int32_t *ids, int32_t n)
{
    msgl_msg m = {.type = MSGL_MSG_REQUEST};
    m.u.request = (msgl_msg_request){
        .uid = UINT64_MAX, .client = 7, .cache_salt = UINT64_MAX - 1, .num_ids = n, .ids = ids};
    m.u.request.sampling = (msgl_sampling_params){.temperature = 0.7f,
                                                  .top_p = 0.9f,
                                                  .min_p = 0.05f,
                                                  .top_k = 40,
                                                  .repetition_penalty = 1.1f,
                                                  .frequency_penalty = -0.5f,
                                                  .presence_penalty = 2,
                                                  .typical_p = 0.5f,
                                                  .xtc_probability = 0.25f,
                                                  .xtc_threshold = 0.2f,
                                                  .top_n_sigma = 1.5f,
                                                  .dynatemp_range = 0.3f,
                                                  .dynatemp_exponent = 2,
                                                  .dry_multiplier = 0.8f,
                                                  .dry_base = 1.5f,
                                                  .dry_allowed_length = 3,
                                                  .dry_penalty_last_n = 64,
                                                  .mirostat = 2,
                                                  .mirostat_tau = 4,
                                                  .mirostat_eta = 0.2f,
                                                  .seed = 0x8000000000000000u,
                                                  .max_tokens = INT32_MAX,
                                                  .ignore_eos = true,
                                                  .min_tokens = 3,
                                                  .logprobs = 20,
                                                  .prompt_logprobs = -1,
                                                  .num_stop_ids = 3,
                                                  .stop_ids = {0, 127, 151643}};
    return m;
}

static void test_request(void **state)
{
    (void)state;
    const int32_t ids[] = {0,         1,  127,       128, 255, 256,  65535, 65536, 151643,
                           INT32_MAX, -1, INT32_MIN, -32, -33, -128, -129,  -300,  -32769};
    const msgl_msg m = request_message(ids, 18);
    msgl_strbuf b = enc(&m);
    msgl_msg_mem mem = {0};
    msgl_msg d;
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_int_equal(d.type, MSGL_MSG_REQUEST);
    assert_true(d.u.request.uid == UINT64_MAX);
    assert_true(d.u.request.client == 7 && d.u.request.cache_salt == UINT64_MAX - 1);
    assert_int_equal(d.u.request.num_ids, 18);
    assert_memory_equal(d.u.request.ids, ids, sizeof ids);
    const msgl_sampling_params *p = &d.u.request.sampling, *q = &m.u.request.sampling;
    for (int i = 0; i < msgl__sampling_settings.count; i++) {
        const msgl_setting *s = &msgl__sampling_settings.rows[i];
        assert_true(msgl__setting_number(s, q) != s->preset); // or it would prove nothing
        assert_true(msgl__setting_number(s, p) == msgl__setting_number(s, q));
    }
    assert_null(d.u.request.extra);
    assert_true(p->seed == q->seed);
    assert_int_equal(p->max_tokens, INT32_MAX);
    assert_int_equal(p->logprobs, 20);
    assert_int_equal(p->prompt_logprobs, -1);
    assert_int_equal(p->num_stop_ids, 3);
    assert_memory_equal(p->stop_ids, q->stop_ids, 3 * sizeof(int32_t));
    msgl__msg_mem_free(&mem);
    msgl__strbuf_free(&b);
}

// A bias arrives as it was sent, belongs to the decoder's memory, and can outlive it.
static void test_bias(void **state)
{
    (void)state;
    const int32_t id = 7;
    msgl_msg m = request_message(&id, 1);
    msgl_bias bias[MSGL_MAX_LOGIT_BIAS];
    for (int32_t i = 0; i < MSGL_MAX_LOGIT_BIAS; i++) {
        bias[i] = (msgl_bias){70000 - 3 * i, -100 + 0.125f * (float)i};
    }
    assert_int_equal(
        msgl__req_extra_create(bias, MSGL_MAX_LOGIT_BIAS, 70001, &m.u.request.extra, NULL), 0);
    const msgl_req_extra *want = m.u.request.extra;
    msgl_strbuf b = enc(&m);
    msgl_msg_mem mem = {0};
    msgl_msg d;
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_int_equal(d.u.request.extra->num_bias, MSGL_MAX_LOGIT_BIAS);
    assert_memory_equal(d.u.request.extra->bias, want->bias, sizeof bias);
    const msgl_frame_head flush = {.kind = MSGL_MSG_FLUSH};
    msgl_req_extra *kept = msgl__req_extra_ref(d.u.request.extra);
    assert_int_equal(kept->refs, 2);
    assert_int_equal(msgl__msg_decode(&flush, sizeof flush, &mem, &d, NULL), 0);
    assert_int_equal(kept->refs, 1);
    assert_memory_equal(kept->bias, want->bias, sizeof bias);
    msgl__req_extra_unref(kept);
    msgl__req_extra_unref(m.u.request.extra);
    msgl__msg_mem_free(&mem);
    msgl__strbuf_free(&b);
}

static void fill_logprobs(msgl_token_logprobs *l, int32_t position, int32_t num_top)
{
    *l = (msgl_token_logprobs){.position = position,
                               .token = 7 + position,
                               .logprob = -0.5f,
                               .rank = 3 + position,
                               .num_top = num_top};
    for (int32_t i = 0; i < num_top; i++) {
        l->top_ids[i] = 100 * i;
        l->top_logprobs[i] = i == 19 ? -INFINITY : -(float)i;
    }
}

static msgl_msg tokens_message(msgl_token_event e[3], msgl_token_logprobs rows[2])
{
    fill_logprobs(&rows[0], 0, 20);
    fill_logprobs(&rows[1], 5, 0);
    static const int32_t tokens[] = {17, 4, 9};
    static const float values[] = {0.5f, -1e-20f};
    e[0] = (msgl_token_event){
        .uid = 1, .tokens = tokens, .num_tokens = 3, .prompt_tokens = 5, .cached_tokens = 3};
    e[1] = (msgl_token_event){.uid = 2,
                              .finish = MSGL_FINISH_ERROR,
                              .status = MSGL_ENUMERIC,
                              .text = "the logits were NaN"};
    e[2] = (msgl_token_event){.uid = 3,
                              .tokens = tokens + 2,
                              .num_tokens = 1,
                              .finish = MSGL_FINISH_LENGTH,
                              .num_values = 2,
                              .values = values,
                              .num_logprobs = 2,
                              .logprobs = rows};
    msgl_msg m = {.type = MSGL_MSG_TOKENS};
    m.u.tokens = (msgl_msg_tokens){.num_events = 3, .events = e};
    return m;
}

static void test_tokens(void **state)
{
    (void)state;
    msgl_token_event e[3];
    msgl_token_logprobs rows[2];
    const msgl_msg m = tokens_message(e, rows);
    msgl_strbuf b = enc(&m);
    msgl_msg_mem mem = {0};
    msgl_msg d;
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_int_equal(d.u.tokens.num_events, 3);
    const msgl_token_event *g = d.u.tokens.events;
    assert_int_equal(g[0].num_tokens, 3);
    assert_memory_equal(g[0].tokens, e[0].tokens, 3 * sizeof *g[0].tokens);
    assert_int_equal(g[0].finish, MSGL_FINISH_NONE);
    assert_int_equal(g[0].prompt_tokens, 5);
    assert_int_equal(g[0].cached_tokens, 3);
    assert_null(g[0].text);
    assert_int_equal(g[1].num_tokens, 0);
    assert_int_equal(g[1].status, MSGL_ENUMERIC);
    assert_string_equal(g[1].text, "the logits were NaN");
    assert_int_equal(g[2].num_tokens, 1);
    assert_int_equal(g[2].tokens[0], 9);
    assert_null(g[0].values);
    assert_int_equal(g[2].num_values, 2);
    assert_memory_equal(g[2].values, e[2].values, 2 * sizeof(float));
    assert_int_equal(g[2].num_logprobs, 2);
    assert_memory_equal(&g[2].logprobs[0], &rows[0], sizeof rows[0]);
    assert_memory_equal(&g[2].logprobs[1], &rows[1], sizeof rows[1]);
    msgl__msg_mem_free(&mem);
    msgl__strbuf_free(&b);
}

// Of a request, and of what is asked of an engine; one without a path is dropped, and a request
// that has one has to say where it is.
static void test_adapters(void **state)
{
    (void)state;
    const int32_t id = 5;
    msgl_msg_mem mem = {0};
    msgl_msg d, m = request_message(&id, 1);
    msgl_err err;
    m.u.request.adapter = UINT64_MAX;
    m.u.request.adapter_path = "/srv/a b";
    msgl_strbuf b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_true(d.u.request.adapter == UINT64_MAX);
    assert_string_equal(d.u.request.adapter_path, "/srv/a b");
    msgl__strbuf_free(&b);

    m.u.request.adapter_path = NULL;
    msgl__strbuf_init(&b, MSGL_MSG_FRAME_MAX);
    assert_int_equal(msgl__msg_encode(&m, &b), MSGL_EINVAL);
    msgl__strbuf_free(&b);

    m = (msgl_msg){.type = MSGL_MSG_ADAPTER, .u.adapter = {.adapter = 1}};
    for (int i = 0; i < 2; i++) {
        b = enc(&m);
        assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, &err), 0);
        assert_true(d.u.adapter.adapter == 1);
        assert_true((d.u.adapter.path == NULL) == (m.u.adapter.path == NULL));
        msgl__strbuf_free(&b);
        m.u.adapter.path = "";
    }

    m = (msgl_msg){.type = MSGL_MSG_ADAPTER_DONE,
                   .u.adapter_done = {7, true, MSGL_EFORMAT, "a file: wrong"}};
    b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, &err), 0);
    assert_true(d.u.adapter_done.adapter == 7 && d.u.adapter_done.dropped);
    assert_int_equal(d.u.adapter_done.status, MSGL_EFORMAT);
    assert_string_equal(d.u.adapter_done.text, "a file: wrong");
    msgl__strbuf_free(&b);
    msgl__msg_mem_free(&mem);
}

static void test_small_types(void **state)
{
    (void)state;
    msgl_msg_mem mem = {0};
    const msgl_msg_type bare[] = {MSGL_MSG_FLUSH, MSGL_MSG_GET_STATS, MSGL_MSG_GET_TREE,
                                  MSGL_MSG_EXIT};
    msgl_msg d;
    for (size_t i = 0; i < sizeof bare / sizeof bare[0]; i++) {
        const msgl_msg m = {.type = bare[i]};
        msgl_strbuf b = enc(&m);
        assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
        assert_int_equal(d.type, bare[i]);
        msgl__strbuf_free(&b);
    }
    msgl_msg m = {.type = MSGL_MSG_ABORT, .u.abort_uid = 1u << 31};
    msgl_strbuf b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_true(d.u.abort_uid == 1u << 31);
    msgl__strbuf_free(&b);

    m = (msgl_msg){.type = MSGL_MSG_READY};
    m.u.ready = (msgl_msg_ready){.max_seq_len = 4096,
                                 .max_running = 256,
                                 .num_pages = 1000,
                                 .page_size = 16,
                                 .vocab_size = 151936,
                                 .attention = "fa,fi",
                                 .pooling = MSGL_POOL_EMBED,
                                 .pooled_size = 1024,
                                 .hidden_size = 2048,
                                 .embed_size = 4096,
                                 .token_vector_size = 24,
                                 .token_weights = true,
                                 .admin = {"step-3", "asleep", 3, true}};
    b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_int_equal(d.u.ready.max_seq_len, 4096);
    assert_int_equal(d.u.ready.vocab_size, 151936);
    assert_string_equal(d.u.ready.attention, "fa,fi");
    assert_null(d.u.ready.device);
    assert_int_equal(d.u.ready.pooling, MSGL_POOL_EMBED);
    assert_int_equal(d.u.ready.pooled_size, 1024);
    assert_true(d.u.ready.hidden_size == 2048 && d.u.ready.embed_size == 4096);
    assert_int_equal(d.u.ready.token_vector_size, 24);
    assert_true(d.u.ready.token_weights);
    assert_string_equal(d.u.ready.admin.version, "step-3");
    assert_string_equal(d.u.ready.admin.unusable, "asleep");
    assert_true(d.u.ready.admin.released == 3 && d.u.ready.admin.paused);
    msgl__strbuf_free(&b);

    m = (msgl_msg){.type = MSGL_MSG_STATS};
    m.u.stats = (msgl_msg_stats){UINT64_MAX, 1, 2, 3, 4, 5, 12, 6, 7, 8, 9, 10, 11, 13, 14};
    b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_memory_equal(&d.u.stats, &m.u.stats, sizeof m.u.stats);
    msgl__strbuf_free(&b);

    const msgl_msg_stats counters = m.u.stats;
    m = (msgl_msg){.type = MSGL_MSG_REPORT};
    m.u.report = (msgl_msg_report){.stats = counters,
                                   .process = {1u << 30, UINT64_MAX},
                                   .steps = {.counts = {1, 2, [MSGL_DURATION_BOUNDS] = 3}, 4},
                                   .num_groups = 2};
    m.u.report.groups[1].total = 5;
    m.u.report.groups[1].evicted = 6;
    b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_memory_equal(&d.u.report, &m.u.report, sizeof m.u.report);
    msgl__strbuf_free(&b);
    m.u.report.num_groups = MSGL_MAX_REPORT_GROUPS + 1;
    msgl_strbuf none;
    msgl__strbuf_init(&none, 1 << 16);
    assert_int_equal(msgl__msg_encode(&m, &none), MSGL_EINVAL);
    msgl__strbuf_free(&none);

    m = (msgl_msg){.type = MSGL_MSG_FATAL, .u.fatal = "weights: no such file"};
    b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_string_equal(d.u.fatal, "weights: no such file");
    msgl__strbuf_free(&b);
    msgl__msg_mem_free(&mem);
}

static void test_tree(void **state)
{
    (void)state;
    msgl_msg_mem mem = {0};
    msgl_msg d;
    static const msgl_tree_run runs[] = {{-1, 32, 1, 7}, {0, 16, 0, INT64_MAX}};
    msgl_msg m = {.type = MSGL_MSG_TREE, .u.tree = {true, INT64_MAX, 2, runs}};
    msgl_strbuf b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_true(d.u.tree.all && d.u.tree.tokens == INT64_MAX);
    assert_int_equal(d.u.tree.num_runs, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(d.u.tree.runs[i].parent, runs[i].parent);
        assert_int_equal(d.u.tree.runs[i].tokens, runs[i].tokens);
        assert_int_equal(d.u.tree.runs[i].pins, runs[i].pins);
        assert_true(d.u.tree.runs[i].hits == runs[i].hits);
    }
    msgl__strbuf_free(&b);
    m.u.tree.num_runs = 0;
    b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_int_equal(d.u.tree.num_runs, 0);
    msgl__strbuf_free(&b);
    m.u.tree.num_runs = MSGL_MAX_TREE_RUNS + 1;
    msgl__strbuf_init(&b, 1 << 16);
    assert_int_equal(msgl__msg_encode(&m, &b), MSGL_EINVAL);
    msgl__strbuf_free(&b);
    msgl__msg_mem_free(&mem);
}

// What decode would refuse is not sent.
static void test_encode_refuses(void **state)
{
    (void)state;
    const int32_t id = 1;
    msgl_strbuf b;
    msgl__strbuf_init(&b, 1 << 20);
    msgl_msg m = request_message(&id, 0);
    assert_int_equal(msgl__msg_encode(&m, &b), MSGL_EINVAL);
    m = request_message(&id, 1);
    m.u.request.sampling.num_stop_ids = MSGL_MAX_STOP_IDS + 1;
    assert_int_equal(msgl__msg_encode(&m, &b), MSGL_EINVAL);
    m = (msgl_msg){.type = (msgl_msg_type)99};
    assert_int_equal(msgl__msg_encode(&m, &b), MSGL_EINVAL);
    m = (msgl_msg){.type = MSGL_MSG_FATAL};
    assert_int_equal(msgl__msg_encode(&m, &b), MSGL_EINVAL);
    msgl_token_event e = {.uid = 1, .finish = (msgl_finish)7};
    m = (msgl_msg){.type = MSGL_MSG_TOKENS, .u.tokens = {1, &e}};
    assert_int_equal(msgl__msg_encode(&m, &b), MSGL_EINVAL);
    assert_int_equal(b.len, 0);
    msgl__strbuf_free(&b);
}

static void decode_all_truncations(const msgl_strbuf *b)
{
    msgl_msg_mem mem = {0};
    msgl_msg d;
    for (size_t n = 0; n < b->len; n++) {
        // An exact heap copy, so that a read past the end is seen.
        char *copy = msgl__malloc(n);
        memcpy(copy, b->data, n);
        msgl_err err;
        assert_int_equal(msgl__msg_decode(copy, n, &mem, &d, &err), MSGL_EFORMAT);
        assert_true(err.text[0] != '\0');
        msgl__free(copy);
    }
    char *copy = msgl__malloc(b->len + 1);
    memcpy(copy, b->data, b->len);
    copy[b->len] = 0;
    assert_int_equal(msgl__msg_decode(copy, b->len + 1, &mem, &d, NULL), MSGL_EFORMAT);
    msgl__free(copy);
    msgl__msg_mem_free(&mem);
}

// Each byte replaced by others, at the ends of their range and between: no crash, and what is
// accepted encodes again.
static void decode_mutations(const msgl_strbuf *b)
{
    static const uint8_t values[] = {0x00, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0c,
                                     0x10, 0x14, 0x7f, 0x80, 0xc0, 0xfe, 0xff};
    msgl_msg_mem mem = {0};
    msgl_strbuf again;
    msgl__strbuf_init(&again, MSGL_MSG_FRAME_MAX);
    char *copy = msgl__malloc(b->len);
    for (size_t i = 0; i < b->len; i++) {
        for (size_t v = 0; v < sizeof values; v++) {
            memcpy(copy, b->data, b->len);
            copy[i] = (char)values[v];
            msgl_msg d;
            const int rc = msgl__msg_decode(copy, b->len, &mem, &d, NULL);
            assert_true(rc == 0 || rc == MSGL_EFORMAT);
            msgl__strbuf_clear(&again);
            if (rc == 0) assert_int_equal(msgl__msg_encode(&d, &again), 0);
        }
    }
    msgl__free(copy);
    msgl__strbuf_free(&again);
    msgl__msg_mem_free(&mem);
}

static void test_hostile_variants(void **state)
{
    (void)state;
    const int32_t ids[] = {5, 300, 70000};
    msgl_msg r = request_message(ids, 3);
    const msgl_bias bias[] = {{3, -1}, {300, 100}, {70000, 0.5f}};
    assert_int_equal(msgl__req_extra_create(bias, 3, 70001, &r.u.request.extra, NULL), 0);
    msgl_token_event e[3];
    msgl_token_logprobs rows[2];
    const msgl_msg t = tokens_message(e, rows);
    msgl_msg ready = {.type = MSGL_MSG_READY};
    ready.u.ready = (msgl_msg_ready){.max_seq_len = 1,
                                     .max_running = 1,
                                     .num_pages = 1,
                                     .page_size = 1,
                                     .vocab_size = 1,
                                     .attention = "fa",
                                     .embed_size = 64,
                                     .device = "cpu"};
    msgl_msg stats = {.type = MSGL_MSG_STATS};
    const msgl_tree_run runs[] = {{-1, 32, 1, 7}, {0, 300, 70000, 1}};
    const msgl_msg tree = {.type = MSGL_MSG_TREE, .u.tree = {true, 332, 2, runs}};
    const msgl_msg fatal = {.type = MSGL_MSG_FATAL, .u.fatal = "x"};
    const msgl_msg abort_msg = {.type = MSGL_MSG_ABORT, .u.abort_uid = 77};
    const msgl_msg *all[] = {&r, &t, &ready, &stats, &tree, &fatal, &abort_msg};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        msgl_strbuf b = enc(all[i]);
        decode_all_truncations(&b);
        decode_mutations(&b);
        msgl__strbuf_free(&b);
    }
    msgl__req_extra_unref(r.u.request.extra);
}

// Where in a frame the body has these bytes, which it has once.
static size_t place_of(const msgl_strbuf *b, const void *bytes, size_t len)
{
    const char *at = memmem(b->data, b->len, bytes, len);
    assert_non_null(at);
    assert_null(memmem(at + 1, b->len - (size_t)(at + 1 - b->data), bytes, len));
    return (size_t)(at - b->data);
}

// The frame with `len` bytes at `at` taken out and others put in, its length set right.
static msgl_strbuf spliced(const msgl_strbuf *b, size_t at, size_t len, const void *bytes,
                           size_t more)
{
    msgl_strbuf out;
    msgl__strbuf_init(&out, MSGL_MSG_FRAME_MAX);
    assert_int_equal(msgl__strbuf_add(&out, b->data, at), 0);
    assert_int_equal(msgl__strbuf_add(&out, bytes, more), 0);
    assert_int_equal(msgl__strbuf_add(&out, b->data + at + len, b->len - at - len), 0);
    msgl_frame_head head;
    memcpy(&head, out.data, sizeof head);
    head.bytes = (uint32_t)(out.len - sizeof head);
    memcpy(out.data, &head, sizeof head);
    return out;
}

static void expect_refused(const msgl_strbuf *b, const char *says)
{
    msgl_msg_mem mem = {0};
    msgl_msg d;
    msgl_err err = {0};
    // An exact heap copy, so that a read past the end is seen.
    char *copy = msgl__malloc(b->len);
    assert_non_null(copy);
    memcpy(copy, b->data, b->len);
    assert_int_equal(msgl__msg_decode(copy, b->len, &mem, &d, &err), MSGL_EFORMAT);
    assert_int_equal(err.code, MSGL_EFORMAT);
    if (strstr(err.text, says) == NULL) fail_msg("%s instead of %s", err.text, says);
    msgl__free(copy);
    msgl__msg_mem_free(&mem);
}

// What a bias may not be: pairs of a token and a float, behind their number.
static void test_bad_bias(void **state)
{
    (void)state;
    const int32_t id = 7;
    msgl_msg m = request_message(&id, 1);
    const msgl_bias one = {0x1234567, 0.5f};
    assert_int_equal(msgl__req_extra_create(&one, 1, 0x1234568, &m.u.request.extra, NULL), 0);
    msgl_strbuf b = enc(&m);
    const size_t pair = place_of(&b, &one, sizeof one), number = pair - 4;
    const struct {
        int32_t number;
        msgl_bias pairs[2];
        int given;
        const char *says;
    } bad[] = {
        {1, {{-1, 1}}, 1, "request.extra: not valid"},
        {1, {{5, 101}}, 1, "request.extra: not valid"},
        {1, {{5, NAN}}, 1, "request.extra: not valid"},
        {1, {{5, -INFINITY}}, 1, "request.extra: not valid"},
        {2, {{5, 0}, {5, 0}}, 2, "request.extra: not valid"}, // twice
        {1025, {{5, 0}}, 1, "request.logit_bias: out of range"},
        {1024, {{5, 0}}, 1, "request.logit_bias: too many elements"},
        {-1, {{5, 0}}, 1, "request.logit_bias: out of range"},
    };
    assert_int_equal(MSGL_MAX_LOGIT_BIAS, 1024);
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        char bytes[4 + sizeof bad[i].pairs];
        const size_t len = 4 + (size_t)bad[i].given * sizeof(msgl_bias);
        memcpy(bytes, &bad[i].number, 4);
        memcpy(bytes + 4, bad[i].pairs, len - 4);
        msgl_strbuf frame = spliced(&b, number, 4 + sizeof one, bytes, len);
        expect_refused(&frame, bad[i].says);
        msgl__strbuf_free(&frame);
    }
    msgl__strbuf_free(&b);
    msgl__req_extra_unref(m.u.request.extra);
}

// A grammar goes with its kind, with and without a bias beside it.
static void test_grammar(void **state)
{
    (void)state;
    const int32_t id = 7;
    const msgl_bias bias = {3, -1};
    for (int n = 0; n < 2; n++) {
        msgl_msg m = request_message(&id, 1), d;
        msgl_msg_mem mem = {0};
        const msgl_req_extra_parts parts = {.bias = &bias,
                                            .num_bias = n,
                                            .grammar_kind = MSGL_GRAMMAR_REGEX,
                                            .grammar = "a+",
                                            .stages = n == 0 ? "{\"budget\":3}" : NULL};
        assert_int_equal(msgl__req_extra_create_with(&parts, 10, &m.u.request.extra, NULL), 0);
        msgl_strbuf b = enc(&m);
        assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
        assert_int_equal(d.u.request.extra->grammar_kind, MSGL_GRAMMAR_REGEX);
        assert_string_equal(d.u.request.extra->grammar, "a+");
        assert_string_equal(d.u.request.extra->stages, n == 0 ? "{\"budget\":3}" : "");
        assert_int_equal(d.u.request.extra->num_bias, n);
        decode_all_truncations(&b);
        decode_mutations(&b);
        msgl__strbuf_free(&b);
        msgl__msg_mem_free(&mem);
        msgl__req_extra_unref(m.u.request.extra);
    }
}

// Tokens that an answer is made of, and sequences that it does not have.
static void test_token_lists(void **state)
{
    (void)state;
    const int32_t id = 7, allowed[] = {9, 3}, banned[] = {1, 4, 2, 8, 70000};
    const int32_t breakers[] = {5, 6, 9}, listed[] = {69999, 0};
    const float embeds[] = {1, -2, 0.5F, 0, 3, 1e30F};
    msgl_msg m = request_message(&id, 1), d;
    msgl_msg_mem mem = {0};
    msgl_req_extra_parts parts = {.allowed = allowed,
                                  .num_allowed = 2,
                                  .banned = banned,
                                  .num_banned = 5,
                                  .breakers = breakers,
                                  .num_breakers = 3,
                                  .listed = listed,
                                  .num_listed = 2,
                                  .hidden = true,
                                  .embeds = embeds,
                                  .num_embeds = 2,
                                  .embed_dim = 3};
    assert_int_equal(msgl__req_extra_create_with(&parts, 70001, &m.u.request.extra, NULL), 0);
    msgl_strbuf b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    const msgl_req_extra *x = d.u.request.extra;
    assert_int_equal(x->num_allowed, 2);
    assert_memory_equal(x->allowed, allowed, sizeof allowed);
    assert_int_equal(x->num_banned, 5);
    assert_memory_equal(x->banned, banned, sizeof banned);
    assert_int_equal(x->num_breakers, 3);
    assert_memory_equal(x->breakers, breakers, sizeof breakers);
    assert_int_equal(x->num_listed, 2);
    assert_memory_equal(x->listed, listed, sizeof listed);
    assert_true(x->hidden && x->num_embeds == 2 && x->embed_dim == 3);
    assert_memory_equal(x->embeds, embeds, sizeof embeds);
    assert_int_equal(msgl__req_extra_row_values(x, 3), 5);
    msgl_err err;
    assert_int_equal(msgl__req_extra_check(x, 70001, &err), 0);
    assert_int_equal(msgl__req_extra_check(x, 70000, &err), MSGL_EINVAL);
    assert_string_equal(err.text, "bad_words names token 70000; allowed: 0 to 69999");
    assert_int_equal(msgl__req_extra_check(x, 9, &err), MSGL_EINVAL);
    assert_string_equal(err.text, "allowed_token_ids names token 9; allowed: 0 to 8");
    decode_all_truncations(&b);
    decode_mutations(&b);
    msgl__strbuf_free(&b);
    msgl__msg_mem_free(&mem);
    msgl__req_extra_unref(m.u.request.extra);
    // Lengths that do not fit what is there.
    const int32_t wrong[][3] = {{0, 1, 1}, {3, 1, 1}, {-1, 1, 1}, {1, 1, 1}};
    for (size_t i = 0; i < MSGL_COUNT(wrong); i++) {
        parts = (msgl_req_extra_parts){.banned = wrong[i], .num_banned = 3};
        msgl_req_extra *none = NULL;
        assert_int_equal(msgl__req_extra_create_with(&parts, 100, &none, &err), MSGL_EINVAL);
        assert_null(none);
    }
}

// An admin's call, the tensors that it loads, and what became of it.
static void test_admin(void **state)
{
    (void)state;
    msgl_msg_mem mem = {0};
    msgl_msg d, m = {.type = MSGL_MSG_ADMIN};
    m.u.admin = (msgl_admin){.kind = MSGL_ADMIN_DISK,
                             .mode = MSGL_PAUSE_RETRACT,
                             .tags = MSGL_MEMORY_CACHE,
                             .discard = true,
                             .flush = true,
                             .path = "/models/step-7",
                             .version = "7",
                             .at = 1,
                             .total = UINT64_MAX};
    msgl_strbuf b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    const msgl_admin *a = &d.u.admin;
    assert_true(a->kind == MSGL_ADMIN_DISK && a->mode == MSGL_PAUSE_RETRACT && a->tags == 2);
    assert_true(a->discard && a->flush && a->at == 1 && a->total == UINT64_MAX &&
                a->num_bytes == 0);
    assert_string_equal(a->path, "/models/step-7");
    assert_string_equal(a->version, "7");
    msgl__strbuf_free(&b);
    m.u.admin.path = NULL;
    msgl_strbuf none;
    msgl__strbuf_init(&none, 1 << 20);
    assert_int_equal(msgl__msg_encode(&m, &none), MSGL_EINVAL); // of disk, but of which?
    msgl__strbuf_free(&none);
    m.u.admin = (msgl_admin){
        .kind = MSGL_ADMIN_DATA_OF, .at = 3, .total = 8, .bytes = "\0tens", .num_bytes = 5};
    b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_true(d.u.admin.num_bytes == 5 && memcmp(d.u.admin.bytes, "\0tens", 5) == 0);
    msgl__strbuf_free(&b);
    m.u.admin = (msgl_admin){.kind = MSGL_ADMIN_JOIN,
                             .group = "g",
                             .host = "trainer",
                             .port = 29500,
                             .rank = 3,
                             .size = 9};
    b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_string_equal(d.u.admin.group, "g");
    assert_string_equal(d.u.admin.host, "trainer");
    assert_true(d.u.admin.port == 29500 && d.u.admin.rank == 3 && d.u.admin.size == 9);
    msgl__strbuf_free(&b);
    m.type = MSGL_MSG_ADMIN_DONE;
    m.u.admin_done = (msgl_msg_admin_done){
        MSGL_EFORMAT, "tensor x: missing", 12, {NULL, "not whole", MSGL_MEMORY_WEIGHTS, true}};
    b = enc(&m);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    const msgl_msg_admin_done *e = &d.u.admin_done;
    assert_true(e->code == MSGL_EFORMAT && e->num_requests == 12 && e->state.version == NULL);
    assert_true(e->state.released == MSGL_MEMORY_WEIGHTS && e->state.paused);
    assert_string_equal(e->text, "tensor x: missing");
    assert_string_equal(e->state.unusable, "not whole");
    msgl__strbuf_free(&b);
    msgl__msg_mem_free(&mem);
}

// Each is refused for its own reason, and nothing is taken for what it claims.
static void test_hostile_frames(void **state)
{
    (void)state;
    const struct {
        uint32_t bytes, kind;
        uint8_t body[16];
        size_t given;
        const char *says;
    } bad[] = {
        {0, 0, {0}, 0, "frame: not whole, or too long"},
        {1, MSGL_MSG_FLUSH, {0}, 0, "frame: not whole, or too long"},
        {0, MSGL_MSG_FLUSH, {0}, 1, "message: trailing bytes at byte 8"},
        {1, MSGL_MSG_FLUSH, {0}, 1, "message: trailing bytes at byte 8"},
        {UINT32_MAX, MSGL_MSG_FLUSH, {0}, 0, "frame: not whole, or too long"},
        {0, 999, {0}, 0, "type: unknown at byte 8"},
        {4, MSGL_MSG_ADMIN, {MSGL_ADMIN_RECEIVE + 1}, 4, "admin.kind: out of range at byte 12"},
        {8, MSGL_MSG_ADMIN, {0, 0, 0, 0, 3}, 8, "admin.mode: out of range at byte 16"},
        {4, MSGL_MSG_ADMIN_DONE, {1}, 4, "admin.code: out of range at byte 12"},
        {0, UINT32_MAX, {0}, 0, "type: unknown at byte 8"},
        {7, MSGL_MSG_ABORT, {0}, 7, "abort.uid: truncated at byte 8"},
        {4, MSGL_MSG_TOKENS, {0xff, 0xff, 0xff, 0xff}, 4, "tokens: out of range at byte 12"},
        {4, MSGL_MSG_TOKENS, {0xff, 0xff, 0xff, 0x7f}, 4, "tokens: too many elements at byte 12"},
        {5, MSGL_MSG_FATAL, {0xfe, 0xff, 0xff, 0xff, 'x'}, 5, "fatal: truncated at byte 12"},
        {4, MSGL_MSG_FATAL, {0xff, 0xff, 0xff, 0xff}, 4, "fatal: missing at byte 12"},
        {1, MSGL_MSG_TREE, {2}, 1, "tree.all: not a boolean at byte 9"},
    };
    msgl_msg_mem mem = {0};
    msgl_msg d;
    msgl_err err;
    // Warm, so that any allocation below would be for the claimed sizes.
    const msgl_frame_head flush = {.kind = MSGL_MSG_FLUSH};
    assert_int_equal(msgl__msg_decode(&flush, sizeof flush, &mem, &d, &err), 0);
    const uint64_t allocs = msgl__mem_allocs();
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        char frame[sizeof(msgl_frame_head) + 16];
        memcpy(frame, &bad[i], sizeof(msgl_frame_head));
        memcpy(frame + sizeof(msgl_frame_head), bad[i].body, 16);
        const size_t len = sizeof(msgl_frame_head) + bad[i].given;
        assert_int_equal(msgl__msg_decode(frame, len, &mem, &d, &err), MSGL_EFORMAT);
        assert_int_equal(err.code, MSGL_EFORMAT);
        if (strstr(err.text, bad[i].says) == NULL) fail_msg("%zu: %s", i, err.text);
    }
    assert_int_equal(msgl__mem_allocs(), allocs);
    msgl__msg_mem_free(&mem);
}

// A request whose prompt is empty, and one that claims 2^31 - 1 tokens.
static void test_hostile_prompt(void **state)
{
    (void)state;
    const int32_t id = 0x5555aaaa, none = 0, most = INT32_MAX;
    const msgl_msg m = request_message(&id, 1);
    msgl_strbuf b = enc(&m);
    const size_t at = place_of(&b, &id, 4) - 4;
    msgl_strbuf frame = spliced(&b, at, 8, &none, 4);
    expect_refused(&frame, "request.ids: empty");
    msgl__strbuf_free(&frame);
    frame = spliced(&b, at, 4, &most, 4);
    expect_refused(&frame, "request.ids: too many elements");
    msgl__strbuf_free(&frame);
    msgl__strbuf_free(&b);
}

// The frame of a message with one text, and the same with the text's byte `i` made NUL.
static void test_nul_in_text(void **state)
{
    (void)state;
    const msgl_msg m = {.type = MSGL_MSG_FATAL, .u.fatal = "abc"};
    msgl_strbuf b = enc(&m);
    const size_t at = place_of(&b, "abc", 3);
    for (size_t i = 0; i < 3; i++) {
        msgl_msg_mem mem = {0};
        msgl_msg d;
        assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
        assert_string_equal(d.u.fatal, "abc");
        msgl__msg_mem_free(&mem);
        b.data[at + i] = '\0';
        expect_refused(&b, "string with a NUL");
        b.data[at + i] = "abc"[i];
    }
    msgl__strbuf_free(&b);
}

// Log-probabilities that say they have more tops than there are, or than a row has room for: ids
// and values are as many as the one number in front of both.
static void test_uneven_logprobs(void **state)
{
    (void)state;
    msgl_token_logprobs row = {.num_top = 2, .top_ids = {0x414243, 0x424344}};
    row.top_logprobs[0] = -1;
    row.top_logprobs[1] = -2;
    const msgl_token_event e = {.uid = 1, .num_logprobs = 1, .logprobs = &row};
    const msgl_msg m = {.type = MSGL_MSG_TOKENS, .u.tokens = {1, &e}};
    msgl_strbuf b = enc(&m);
    const size_t ids = place_of(&b, row.top_ids, 8);
    msgl_msg_mem mem = {0};
    msgl_msg d;
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    assert_int_equal(d.u.tokens.events[0].logprobs[0].num_top, 2);
    msgl__msg_mem_free(&mem);
    static const struct {
        int32_t tops;
        const char *says;
    } bad[] = {{1, "message: trailing bytes"},
               {3, "tokens.logprobs: too many elements"},
               {MSGL_MAX_LOGPROBS + 1, "tokens.logprobs: out of range"},
               {-1, "tokens.logprobs: out of range"}};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        memcpy(b.data + ids - 4, &bad[i].tops, 4);
        expect_refused(&b, bad[i].says);
    }
    msgl__strbuf_free(&b);
}

// A frame has few bytes an element and a number of them: what they would become in memory is
// bounded before it is taken. A row without tops has 20 bytes, and 184 in memory.
static void test_decoded_limit(void **state)
{
    (void)state;
    enum { ROW_BYTES = 20 };
    const size_t event = (sizeof(msgl_token_event) + 15) & ~(size_t)15;
    const size_t most = (MSGL_MSG_DECODED_MAX - event) / sizeof(msgl_token_logprobs);
    // The number of rows is the last field of an event that has none.
    const msgl_token_event e = {.uid = 1};
    const msgl_msg m = {.type = MSGL_MSG_TOKENS, .u.tokens = {1, &e}};
    msgl_strbuf b = enc(&m);
    const size_t head = b.len - 4, bytes = b.len + (most + 1) * ROW_BYTES;
    assert_true(bytes <= MSGL_MSG_FRAME_MAX);
    uint8_t *frame = msgl__calloc(1, bytes);
    assert_non_null(frame);
    memcpy(frame, b.data, head);
    for (size_t rows = most; rows <= most + 1; rows++) {
        msgl_msg_mem mem = {0};
        msgl_msg d;
        msgl_err err = {0};
        const int32_t n = (int32_t)rows;
        const size_t len = b.len + rows * ROW_BYTES;
        const msgl_frame_head h = {(uint32_t)(len - sizeof h), MSGL_MSG_TOKENS};
        memcpy(frame, &h, sizeof h);
        memcpy(frame + head, &n, 4);
        assert_int_equal(msgl__msg_decode(frame, len, &mem, &d, &err),
                         rows == most ? 0 : MSGL_ELIMIT);
        if (rows > most) assert_non_null(strstr(err.text, "tokens.logprobs"));
        msgl__msg_mem_free(&mem);
    }
    msgl__free(frame);
    msgl__strbuf_free(&b);
}

// Once warm, small messages take nothing from the heap in either direction.
static void test_no_heap_when_warm(void **state)
{
    (void)state;
    msgl_token_event e[3];
    msgl_token_logprobs rows[2];
    const msgl_msg t = tokens_message(e, rows);
    msgl_msg_mem mem = {0};
    msgl_msg d;
    msgl_strbuf b = enc(&t);
    assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    const uint64_t allocs = msgl__mem_allocs();
    for (int i = 0; i < 100; i++) {
        msgl__strbuf_clear(&b);
        assert_int_equal(msgl__msg_encode(&t, &b), 0);
        assert_int_equal(msgl__msg_decode(b.data, b.len, &mem, &d, NULL), 0);
    }
    assert_int_equal(msgl__mem_allocs(), allocs);
    msgl__strbuf_free(&b);
    msgl__msg_mem_free(&mem);
}

// Encodes or decodes with the nth allocation and all later ones failing (0: none); what must be the
// same message comes out as a frame in *b.
static int code_failing(const msgl_msg *m, const msgl_strbuf *frame, bool encode, uint64_t nth,
                        msgl_strbuf *b)
{
    msgl_msg_mem mem = {0};
    msgl_msg d;
    msgl_err err = {0};
    msgl__strbuf_init(b, MSGL_MSG_FRAME_MAX);
    msgl__mem_fail_from(nth);
    const int rc =
        encode ? msgl__msg_encode(m, b) : msgl__msg_decode(frame->data, frame->len, &mem, &d, &err);
    msgl__mem_fail_from(0);
    if (!encode && rc != 0) {
        assert_int_equal(err.code, rc);
        // What a failure left behind is good for the next frame.
        assert_int_equal(msgl__msg_decode(frame->data, frame->len, &mem, &d, NULL), 0);
    }
    if (!encode) assert_int_equal(msgl__msg_encode(&d, b), 0);
    msgl__msg_mem_free(&mem);
    return rc;
}

// Each allocation of an encode and of a decode fails in turn, and nothing but MSGL_ENOMEM comes of
// it: no allocation is ignored, and none is made that the undisturbed run did not make.
static void test_out_of_memory(void **state)
{
    (void)state;
    static int32_t ids[3000];
    msgl_token_event e[3];
    msgl_token_logprobs rows[2];
    const msgl_msg messages[] = {tokens_message(e, rows), request_message(ids, 3000)};
    for (int i = 0; i < 4; i++) {
        const msgl_msg *m = &messages[i / 2];
        const bool encode = i % 2 == 0;
        msgl_strbuf frame = enc(m), b;
        const uint64_t before = msgl__mem_allocs();
        if (encode) {
            b = enc(m);
        } else {
            msgl_msg_mem mem = {0};
            msgl_msg d;
            assert_int_equal(msgl__msg_decode(frame.data, frame.len, &mem, &d, NULL), 0);
            msgl__msg_mem_free(&mem);
            msgl__strbuf_init(&b, 1);
        }
        const uint64_t needed = msgl__mem_allocs() - before;
        msgl__strbuf_free(&b);
        assert_in_range(needed, 1, 100);
        for (uint64_t nth = 1; nth <= needed; nth++) {
            assert_int_equal(code_failing(m, &frame, encode, nth, &b), MSGL_ENOMEM);
            msgl__strbuf_free(&b);
        }
        assert_int_equal(code_failing(m, &frame, encode, needed + 1, &b), 0);
        assert_int_equal(b.len, frame.len);
        assert_memory_equal(b.data, frame.data, frame.len);
        msgl__strbuf_free(&b);
        msgl__strbuf_free(&frame);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_bad_bias),
        cmocka_unit_test(test_grammar),
        cmocka_unit_test(test_token_lists),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_small_types),
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_encode_refuses),
        cmocka_unit_test(test_hostile_variants),
        cmocka_unit_test(test_admin),
        cmocka_unit_test(test_hostile_frames),
        cmocka_unit_test(test_hostile_prompt),
        cmocka_unit_test(test_nul_in_text),
        cmocka_unit_test(test_uneven_logprobs),
        cmocka_unit_test(test_decoded_limit),
        cmocka_unit_test(test_no_heap_when_warm),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
