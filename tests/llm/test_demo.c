// SPDX-License-Identifier: Apache-2.0
//
// The shipped model: answers greedily in float32 exactly what transformers answered, with bias and
// penalties too, renders and tokenizes like transformers, ends its answers itself, and adds
// two-digit numbers that its training never saw right in at least nine of ten cases (in the dtype
// that it ships in).
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <minisgl/minisgl.h>

#include "llm/llm.h"
#include "template/chat_template.h"
#include "tokenizer/tokenizer.h"

#define MODEL MSGL_SOURCE_DIR "/models/demo"
#define VECTORS MSGL_SOURCE_DIR "/tests/vectors/demo/"

struct answer {
    char text[4096];
    size_t len;
    int32_t ids[1024];
    int count, finish;
};

static int on_piece(void *ctx, const msgl_piece *p)
{
    struct answer *a = ctx;
    assert_true(a->len + p->text_len < sizeof a->text);
    memcpy(a->text + a->len, p->text, p->text_len);
    a->len += p->text_len;
    a->text[a->len] = '\0';
    if (p->token >= 0 && a->count < 1024) a->ids[a->count++] = p->token;
    a->finish = p->finish;
    return 0;
}

static msgl_llm *open_demo(const char *dtype)
{
    msgl_err err;
    msgl_llm *l = NULL;
    msgl_options o;
    msgl_options_init(&o);
    o.model_dir = MODEL;
    o.dtype = dtype;
    o.num_pages = 16384;
    if (msgl_open(&o, &l, &err) != 0) fail_msg("%s", err.text);
    return l;
}

static void ask(msgl_llm *l, const char *question, struct answer *a)
{
    msgl_err err;
    msgl_params p;
    msgl_params_init(l, &p);
    p.temperature = 0;
    p.max_tokens = 200;
    json_t *vars = json_pack("{s:[{s:s,s:s}]}", "messages", "role", "user", "content", question);
    char *json = json_dumps(vars, 0);
    memset(a, 0, sizeof *a);
    if (msgl_submit_chat(l, json, &p, on_piece, a, NULL, &err) != 0) fail_msg("%s", err.text);
    free(json);
    json_decref(vars);
}

static json_t *load(const char *name)
{
    json_error_t where;
    char path[512];
    snprintf(path, sizeof path, VECTORS "%s", name);
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (j == NULL) fail_msg("%s: %s", path, where.text);
    return j;
}

// Held-out sums: the answer must contain the sum as a number of its own.
static void test_additions(void **state)
{
    (void)state;
    enum { MAX = 400 };
    static struct answer answers[MAX];
    static char sums[MAX][16];
    msgl_llm *l = open_demo("auto");
    FILE *f = fopen(VECTORS "additions.jsonl", "r");
    assert_non_null(f);
    char line[512];
    int n = 0;
    while (n < MAX && fgets(line, sizeof line, f) != NULL) {
        json_t *j = json_loads(line, 0, NULL);
        ask(l, json_string_value(json_object_get(j, "prompt")), &answers[n]);
        snprintf(sums[n], sizeof sums[n], "%d", (int)json_integer_value(json_object_get(j, "sum")));
        json_decref(j);
        n++;
    }
    fclose(f);
    assert_true(n >= 100);
    msgl_err err;
    assert_int_equal(msgl_run(l, &err), 0);
    int right = 0, ended = 0;
    for (int i = 0; i < n; i++) {
        // The last number of the answer is its result ("47 + 38 = 85.").
        char *last = answers[i].text + answers[i].len;
        while (last > answers[i].text && (last[-1] < '0' || last[-1] > '9')) *--last = '\0';
        while (last > answers[i].text && last[-1] >= '0' && last[-1] <= '9') last--;
        right += strcmp(last, sums[i]) == 0;
        ended += answers[i].finish == MSGL_STOP;
    }
    print_message("additions: %d of %d right, %d ended by the model\n", right, n, ended);
    assert_true(right * 10 >= n * 9);
    assert_int_equal(ended, n);
    msgl_close(l);
}

static void test_greedy_equals_transformers(void **state)
{
    (void)state;
    static struct answer answers[64];
    json_t *cases = load("greedy.json");
    const size_t n = json_array_size(cases);
    assert_in_range(n, 5, 64);
    msgl_llm *l = open_demo("float32");
    for (size_t i = 0; i < n; i++) {
        ask(l, json_string_value(json_object_get(json_array_get(cases, i), "prompt")), &answers[i]);
    }
    msgl_err err;
    assert_int_equal(msgl_run(l, &err), 0);
    for (size_t i = 0; i < n; i++) {
        const json_t *want = json_object_get(json_array_get(cases, i), "output_ids");
        const size_t m = json_array_size(want);
        assert_true(answers[i].count >= (int)m - 1); // with or without the end token
        for (size_t k = 0; k < m && (int)k < answers[i].count; k++) {
            assert_int_equal(answers[i].ids[k], json_integer_value(json_array_get(want, k)));
        }
    }
    json_decref(cases);
    msgl_close(l);
}

static float number(const json_t *j, const char *name)
{
    return (float)json_number_value(json_object_get(j, name));
}

// Greedy answers under bias and penalties: transformers' processors, and OpenAI's formula in torch.
static void test_penalties_equal_transformers(void **state)
{
    (void)state;
    enum { MAX_CASES = 32, MAX_BIAS = 8, MAX_PROMPT = 64 };
    static struct answer answers[MAX_CASES];
    json_t *cases = load("../sampling/answers.json");
    const size_t n = json_array_size(cases);
    assert_in_range(n, 8, MAX_CASES);
    msgl_llm *l = open_demo("float32");
    msgl_err err;
    for (size_t i = 0; i < n; i++) {
        const json_t *c = json_array_get(cases, i), *pairs = json_object_get(c, "logit_bias");
        const json_t *prompt = json_object_get(c, "prompt_ids");
        msgl_bias bias[MAX_BIAS];
        int32_t ids[MAX_PROMPT];
        msgl_params p;
        msgl_params_init(l, &p);
        p.temperature = 0;
        p.max_tokens = 48;
        p.repetition_penalty = number(c, "repetition_penalty");
        p.frequency_penalty = number(c, "frequency_penalty");
        p.presence_penalty = number(c, "presence_penalty");
        p.logit_bias = bias;
        p.num_logit_bias = (int)json_array_size(pairs);
        assert_true(p.num_logit_bias <= MAX_BIAS && json_array_size(prompt) <= MAX_PROMPT);
        for (int k = 0; k < p.num_logit_bias; k++) {
            const json_t *pair = json_array_get(pairs, (size_t)k);
            bias[k].token = (int32_t)json_integer_value(json_array_get(pair, 0));
            bias[k].value = (float)json_number_value(json_array_get(pair, 1));
        }
        for (size_t k = 0; k < json_array_size(prompt); k++) {
            ids[k] = (int32_t)json_integer_value(json_array_get(prompt, k));
        }
        memset(&answers[i], 0, sizeof answers[i]);
        if (msgl_submit_ids(l, ids, json_array_size(prompt), &p, on_piece, &answers[i], NULL,
                            &err) != 0) {
            fail_msg("%s", err.text);
        }
    }
    assert_int_equal(msgl_run(l, &err), 0);
    for (size_t i = 0; i < n; i++) {
        const json_t *want = json_object_get(json_array_get(cases, i), "output_ids");
        assert_int_equal(answers[i].count, json_array_size(want));
        for (int k = 0; k < answers[i].count; k++) {
            assert_int_equal(answers[i].ids[k],
                             json_integer_value(json_array_get(want, (size_t)k)));
        }
    }
    json_decref(cases);
    msgl_close(l);
}

static void test_templates(void **state)
{
    (void)state;
    msgl_err err;
    msgl_chat_templates *t;
    if (msgl__chat_templates_load(MODEL, &t, &err) != 0) fail_msg("%s", err.text);
    json_t *cases = load("templates.json");
    assert_true(json_array_size(cases) > 3);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        json_t *vars = json_object();
        const char *const names[] = {"messages", "tools", "add_generation_prompt"};
        for (int k = 0; k < 3; k++) json_object_set(vars, names[k], json_object_get(c, names[k]));
        msgl_rendered r = {0};
        if (msgl__chat_templates_render(t, vars, NULL, &r, &err) != 0) fail_msg("%s", err.text);
        assert_string_equal(msgl__strbuf_str(&r.text),
                            json_string_value(json_object_get(c, "rendered")));
        msgl__rendered_free(&r);
        json_decref(vars);
    }
    json_decref(cases);
    msgl__chat_templates_free(t);
}

static void test_tokenizer(void **state)
{
    (void)state;
    msgl_err err;
    msgl_tokenizer *t;
    if (msgl__tokenizer_load(MODEL, &t, &err) != 0) fail_msg("%s", err.text);
    json_t *cases = load("tokenizer.json");
    assert_true(json_array_size(cases) > 10);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i), *text = json_object_get(c, "text");
        const json_t *want = json_object_get(c, "ids");
        msgl_ids ids = {0};
        assert_int_equal(msgl__tokenizer_encode(t, json_string_value(text),
                                                json_string_length(text), NULL, &ids, &err),
                         0);
        assert_int_equal(ids.len, json_array_size(want));
        for (size_t k = 0; k < ids.len; k++) {
            assert_int_equal(ids.data[k], json_integer_value(json_array_get(want, k)));
        }
        for (int skip = 0; skip < 2; skip++) {
            const char *key = skip ? "decoded_skip_special" : "decoded";
            msgl_strbuf out;
            msgl__strbuf_init(&out, 1 << 20);
            assert_int_equal(msgl__tokenizer_decode(t, ids.data, ids.len, skip, &out, &err), 0);
            assert_string_equal(msgl__strbuf_str(&out), json_string_value(json_object_get(c, key)));
            msgl__strbuf_free(&out);
        }
        msgl__ids_free(&ids);
    }
    json_decref(cases);
    msgl__tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_templates),
        cmocka_unit_test(test_penalties_equal_transformers),
        cmocka_unit_test(test_greedy_equals_transformers),
        cmocka_unit_test(test_additions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
