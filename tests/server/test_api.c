// SPDX-License-Identifier: Apache-2.0
//
// Request bodies to typed requests: what each field means, and that hostile ones (wrong types,
// numbers beyond every width, nesting, floods) are refused with the field's name.
#include <malloc.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "core/settings.h"
#include "api/api.h"
#include "api/json.h"
#include "api/openai/endpoints.h"
#include "api/sglang/endpoints.h"
#include "program/endpoints.h"

static const msgl_endpoint *const KINDS[] = {&msgl__endpoint_chat, &msgl__endpoint_completion,
                                             &msgl__endpoint_generate};

static msgl_api_config config(void)
{
    msgl_api_config c = {.model_name = "m", .model_path = "org/folder", .vocab_size = 1000};
    c.defaults = msgl__sampling_params_default();
    c.defaults.temperature = 0.6f;
    c.defaults.top_k = 20;
    return c;
}

static int parse(const msgl_endpoint *ep, const char *body, msgl_gen_request *r, msgl_api_error *e)
{
    const msgl_api_config c = config();
    return msgl__api_parse(ep, body, strlen(body), &c, NULL, r, e);
}

static msgl_gen_request good(const msgl_endpoint *ep, const char *body)
{
    msgl_gen_request r;
    msgl_api_error e = {0};
    if (parse(ep, body, &r, &e) != 0) fail_msg("%s: %s", body, e.message);
    return r;
}

// "x": y inside an otherwise good request.
static void with_field(const msgl_endpoint *ep, const char *field, char *out, size_t size)
{
    (void)snprintf(out, size, "{%s%s%s}",
                   ep == &msgl__endpoint_chat
                       ? "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
                       : "\"prompt\":\"x\"",
                   field[0] == '\0' ? "" : ",", field);
}

static void refused(const msgl_endpoint *ep, const char *body, int status, const char *param)
{
    msgl_gen_request r;
    msgl_api_error e = {0};
    if (parse(ep, body, &r, &e) == 0) fail_msg("accepted: %.200s", body);
    if (e.status != status || (param != NULL && strcmp(e.param, param) != 0)) {
        fail_msg("%.200s: %d %s: %s", body, e.status, e.param, e.message);
    }
    assert_true(e.message[0] != '\0');
    assert_null(r.root);
    msgl_strbuf b; // the error object is JSON whatever it quotes
    msgl__strbuf_init(&b, 4096);
    assert_int_equal(msgl__api_error_put(&e, &b), 0);
    json_t *j = json_loadb(b.data, b.len, 0, NULL);
    assert_non_null(j);
    json_decref(j);
    msgl__strbuf_free(&b);
}

static void test_defaults(void **state)
{
    (void)state;
    msgl_gen_request r =
        good(&msgl__endpoint_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    assert_true(r.sampling.temperature == 0.6f && r.sampling.top_p == 1.0f);
    assert_int_equal(r.sampling.top_k, 20);
    assert_int_equal(r.max_tokens, -1);
    assert_int_equal(r.n, 1);
    assert_false(r.stream);
    assert_int_equal(r.sampling.logprobs, -1);
    assert_true(json_is_true(json_object_get(r.chat.vars, "add_generation_prompt")));
    assert_true(json_is_null(json_object_get(r.chat.vars, "tools")));
    const uint64_t seed = r.sampling.seed;
    msgl__gen_request_free(&r);
    r = good(&msgl__endpoint_completion, "{\"prompt\":\"x\"}");
    assert_int_equal(r.max_tokens, 16);
    assert_true(r.sampling.seed != seed); // random where none is given
    msgl__gen_request_free(&r);
    r = good(&msgl__endpoint_generate, "{\"prompt\":\"x\",\"max_tokens\":4}");
    assert_true(r.stream && r.sampling.temperature == 0);
    msgl__gen_request_free(&r);
}

static void test_fields(void **state)
{
    (void)state;
    msgl_gen_request r = good(
        &msgl__endpoint_chat,
        "{\"model\":\"folder\",\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
        "\"temperature\":"
        "1e-9,\"top_p\":0.5,\"top_k\":-1,\"min_p\":0.25,\"seed\":-1,\"max_tokens\":5,"
        "\"max_completion_tokens\":7,\"n\":3,\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":[0,999],"
        "\"ignore_eos\":true,\"min_tokens\":4,\"speculative\":false,\"logprobs\":true,\"top_"
        "logprobs\":20,\"stream\":"
        "true,"
        "\"stream_options\":{\"include_usage\":true},\"user\":\"u\",\"store\":true,\"metadata\":{},"
        "\"frequency_penalty\":0,\"presence_penalty\":0.0,\"logit_bias\":{},\"response_format\":"
        "{\"type\":\"text\"},\"parallel_tool_calls\":false,\"service_tier\":\"auto\",\"functions\":"
        "null,\"modalities\":[\"text\"],\"unheard_of\":[1]}");
    assert_true(r.sampling.temperature == 0 && r.sampling.top_p == 0.5f &&
                r.sampling.min_p == 0.25f);
    assert_int_equal(r.sampling.top_k, -1);
    assert_true(r.sampling.seed == UINT64_MAX);
    assert_int_equal(r.max_tokens, 7);
    assert_int_equal(r.n, 3);
    assert_int_equal(r.num_stops, 2);
    assert_string_equal(r.stops[1], "bc");
    assert_int_equal(r.sampling.num_stop_ids, 2);
    assert_int_equal(r.sampling.stop_ids[1], 999);
    assert_true(r.sampling.ignore_eos && r.stream && r.include_usage);
    assert_int_equal(r.sampling.min_tokens, 4);
    assert_int_equal(r.sampling.speculative, 0);
    assert_int_equal(r.sampling.logprobs, 20);
    assert_int_equal(r.sampling.prompt_logprobs, -1);
    msgl__gen_request_free(&r);

    // null is absent, as clients send it.
    r = good(
        &msgl__endpoint_completion,
        "{\"prompt\":\"x\",\"max_tokens\":null,\"temperature\":null,\"stop\":null,\"seed\":null,"
        "\"logprobs\":null,\"suffix\":null,\"best_of\":null,\"stream_options\":null}");
    assert_int_equal(r.max_tokens, 16);
    msgl__gen_request_free(&r);

    r = good(&msgl__endpoint_completion,
             "{\"prompt\":\"x\",\"echo\":true,\"max_tokens\":0,\"logprobs\":0}");
    assert_true(r.no_output);
    assert_int_equal(r.max_tokens, 1);
    assert_int_equal(r.sampling.prompt_logprobs, 0);
    msgl__gen_request_free(&r);
}

static void test_prompts(void **state)
{
    (void)state;
    msgl_gen_request r = good(&msgl__endpoint_completion, "{\"prompt\":[0,999]}");
    assert_int_equal(r.num_prompts, 1);
    assert_int_equal(r.prompts[0].num_ids, 2);
    assert_int_equal(r.prompts[0].ids[1], 999);
    msgl__gen_request_free(&r);
    r = good(&msgl__endpoint_completion, "{\"prompt\":[\"a\",\"bc\"]}");
    assert_int_equal(r.num_prompts, 2);
    assert_string_equal(r.prompts[1].text, "bc");
    msgl__gen_request_free(&r);
    r = good(&msgl__endpoint_completion, "{\"prompt\":[[1],[2,3]],\"n\":2}");
    assert_int_equal(r.num_prompts, 2);
    assert_int_equal(r.prompts[1].num_ids, 2);
    msgl__gen_request_free(&r);
    static const char *const bad[] = {
        "null",
        "\"\"",
        "[]",
        "[[]]",
        "[\"\"]",
        "[1,\"a\"]",
        "[\"a\",1]",
        "[[1],2]",
        "[[1],[]]",
        "{}",
        "1",
        "true",
        "[1.5]",
        "[-1]",
        "[1000]",
        "[null]",
        "[[null]]",
        "[true]",
        "[[1e3]]",
        "[2147483648]",
        "[9223372036854775807]",
        "[[1],\"a\"]",
        "[{}]",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[128];
        (void)snprintf(body, sizeof body, "{\"prompt\":%s}", bad[i]);
        refused(&msgl__endpoint_completion, body, 400, "prompt");
    }
    refused(&msgl__endpoint_completion, "{}", 400, "prompt");
    refused(&msgl__endpoint_generate, "{\"prompt\":[\"a\",\"b\"]}", 400, "prompt");
}

// Every integer field with every number and type that is not one of its values.
static void test_no_limit(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":-1}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_completion_tokens\":-1}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        msgl_gen_request r = good(&msgl__endpoint_chat, bodies[i]);
        assert_int_equal(r.max_tokens, -1);
        msgl__gen_request_free(&r);
    }
    msgl_gen_request r = good(&msgl__endpoint_completion, "{\"prompt\":\"x\",\"max_tokens\":-1}");
    msgl_gen_request usual = good(&msgl__endpoint_completion, "{\"prompt\":\"x\"}");
    assert_int_equal(r.max_tokens, usual.max_tokens);
    msgl__gen_request_free(&r);
    msgl__gen_request_free(&usual);
}

static void test_hostile_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int kinds; // bit per place in KINDS
        const char *also_bad;
    } ints[] = {
        {"max_tokens", 7, "0"}, {"max_completion_tokens", 1, "0"},
        {"n", 7, "129"},        {"top_logprobs", 1, "21"},
        {"best_of", 2, "2"},
    };
    static const char *const values[] = {
        "-1",         "-2",    "-2147483648", "2147483648", "9223372036854775807",
        "1000000000", "1.5",   "\"5\"",       "true",       "[]",
        "{}",         "1e308", "-1e308"};
    for (size_t f = 0; f < sizeof ints / sizeof ints[0]; f++) {
        for (int kind = 0; kind < 3; kind++) {
            if ((ints[f].kinds & 1 << kind) == 0) continue;
            for (size_t v = 0; v <= sizeof values / sizeof values[0]; v++) {
                const char *value =
                    v == sizeof values / sizeof values[0] ? ints[f].also_bad : values[v];
                const bool free = strcmp(value, "1000000000") == 0 || strcmp(value, "-1") == 0;
                if (free && strncmp(ints[f].name, "max_", 4) == 0) {
                    continue; // fine: an upper bound, and none
                }
                char field[128], body[256];
                (void)snprintf(field, sizeof field, "\"%s\":%s", ints[f].name, value);
                with_field(KINDS[kind], field, body, sizeof body);
                refused(KINDS[kind], body, 400, ints[f].name);
            }
        }
    }
    static const char *const reals[] = {"temperature", "top_p", "min_p"};
    static const char *const bad_reals[] = {"-0.1", "-1e308", "1e308", "\"1\"", "true", "[]", "{}"};
    for (size_t f = 0; f < 3; f++) {
        for (size_t v = 0; v < sizeof bad_reals / sizeof bad_reals[0]; v++) {
            char field[128], body[256];
            (void)snprintf(field, sizeof field, "\"%s\":%s", reals[f], bad_reals[v]);
            with_field(&msgl__endpoint_chat, field, body, sizeof body);
            refused(&msgl__endpoint_chat, body, 400, reals[f]);
        }
    }
}

// The fields that change logits: their ranges' ends, both forms of a bias, both names of the
// repetition penalty, and the model's own value where the request has none.
static void test_penalties(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "\"repetition_penalty\":1.25,\"repeat_penalty\":3,\"frequency_penalty\":-2,"
        "\"presence_penalty\":2,\"logit_bias\":{\"999\":-100,\"7\":0.5,\"0\":100}",
        "\"repeat_penalty\":1.25,\"frequency_penalty\":-2.0,\"presence_penalty\":2.0,"
        "\"logit_bias\":[[999,-100.0],[7,0.5],[0,100]]",
    };
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 2; i++) {
            char body[512];
            with_field(KINDS[kind], bodies[i], body, sizeof body);
            msgl_gen_request r = good(KINDS[kind], body);
            assert_true(r.sampling.repetition_penalty == 1.25f);
            assert_true(r.sampling.frequency_penalty == -2 && r.sampling.presence_penalty == 2);
            assert_int_equal(r.extra->num_bias, 3);
            const msgl_bias want[] = {{0, 100}, {7, 0.5f}, {999, -100}};
            assert_memory_equal(r.extra->bias, want, sizeof want);
            msgl__gen_request_free(&r);
        }
    }
    static const char *const none[] = {"", "\"logit_bias\":null,\"repetition_penalty\":null",
                                       "\"logit_bias\":{},\"frequency_penalty\":null",
                                       "\"logit_bias\":[]"};
    msgl_api_config c = config();
    c.defaults.repetition_penalty = 1.05f;
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        char body[512];
        with_field(&msgl__endpoint_chat, none[i], body, sizeof body);
        msgl_gen_request r;
        msgl_api_error e;
        assert_int_equal(
            msgl__api_parse(&msgl__endpoint_chat, body, strlen(body), &c, NULL, &r, &e), 0);
        assert_null(r.extra);
        assert_true(r.sampling.repetition_penalty == 1.05f);
        assert_true(r.sampling.frequency_penalty == 0 && r.sampling.presence_penalty == 0);
        msgl__gen_request_free(&r);
    }
}

// A bias of as many entries as there may be, and of one more, in both forms.
static void test_bias_limit(void **state)
{
    (void)state;
    msgl_api_config c = config();
    c.vocab_size = 5000;
    msgl_strbuf b;
    msgl__strbuf_init(&b, 1 << 20);
    for (int form = 0; form < 2; form++) {
        for (int n = MSGL_MAX_LOGIT_BIAS; n <= MSGL_MAX_LOGIT_BIAS + 1; n++) {
            msgl__strbuf_clear(&b);
            assert_int_equal(
                msgl__strbuf_addf(&b, "{\"prompt\":\"x\",\"logit_bias\":%c", form == 0 ? '{' : '['),
                0);
            for (int i = 0; i < n; i++) {
                assert_int_equal(msgl__strbuf_addf(&b, form == 0 ? "%s\"%d\":1" : "%s[%d,1]",
                                                   i > 0 ? "," : "", 4 * i),
                                 0);
            }
            assert_int_equal(msgl__strbuf_adds(&b, form == 0 ? "}}" : "]}"), 0);
            msgl_gen_request r;
            msgl_api_error e;
            const int rc =
                msgl__api_parse(&msgl__endpoint_completion, b.data, b.len, &c, NULL, &r, &e);
            assert_int_equal(rc, n > MSGL_MAX_LOGIT_BIAS ? MSGL_EINVAL : 0);
            if (rc == 0) {
                assert_int_equal(r.extra->num_bias, n);
                msgl__gen_request_free(&r);
            } else {
                assert_string_equal(e.message,
                                    "logit_bias has 1025 entries; allowed: at most 1024.");
            }
        }
    }
    msgl__strbuf_free(&b);
}

// The ends of every setting's range are taken as they are, what lies beyond is refused.
static void test_ranges_of_settings(void **state)
{
    (void)state;
    for (int i = 0; i < msgl__sampling_settings.count; i++) {
        const msgl_setting *s = &msgl__sampling_settings.rows[i];
        const double most = s->type == MSGL_SETTING_FLAG ? 1 : s->max, ends[] = {s->min, most};
        for (int k = 0; k < 4; k++) {
            char field[96], body[192];
            const double beyond = k % 2 == 0 ? s->min - 1 : s->max + 1;
            const double v = k < 2 ? ends[k] : beyond;
            if (s->type == MSGL_SETTING_FLAG) {
                const char *const values[] = {"false", "true", "1", "0"};
                (void)snprintf(field, sizeof field, "\"%s\":%s", s->field, values[k]);
            } else {
                (void)snprintf(field, sizeof field, "\"%s\":%.17g", s->field, v);
            }
            with_field(&msgl__endpoint_completion, field, body, sizeof body);
            if (k >= 2) {
                refused(&msgl__endpoint_completion, body, 400, s->field);
                continue;
            }
            msgl_gen_request r = good(&msgl__endpoint_completion, body);
            assert_int_equal(r.unknown.len, 0); // sampling.c names it
            const double got = msgl__setting_number(s, &r.sampling);
            assert_true(s->type == MSGL_SETTING_REAL ? (float)got == (float)v : got == v);
            msgl__gen_request_free(&r);
        }
    }
}

static void test_refused_fields(void **state)
{
    (void)state;
    static const char *const fields[][2] = {
        {"\"frequency_penalty\":2.1", "frequency_penalty"},
        {"\"frequency_penalty\":\"1\"", "frequency_penalty"},
        {"\"presence_penalty\":-2.0001", "presence_penalty"},
        {"\"presence_penalty\":true", "presence_penalty"},
        {"\"repetition_penalty\":0", "repetition_penalty"},
        {"\"repetition_penalty\":-1", "repetition_penalty"},
        {"\"repetition_penalty\":1e300", "repetition_penalty"},
        {"\"repeat_penalty\":0.001", "repeat_penalty"},
        {"\"logit_bias\":5", "logit_bias"},
        {"\"logit_bias\":\"5\"", "logit_bias"},
        {"\"logit_bias\":{\"5\":101}", "logit_bias"},
        {"\"logit_bias\":{\"5\":-100.001}", "logit_bias"},
        {"\"logit_bias\":{\"5\":1e300}", "logit_bias"},
        {"\"logit_bias\":{\"5\":\"1\"}", "logit_bias"},
        {"\"logit_bias\":{\"5\":null}", "logit_bias"},
        {"\"logit_bias\":{\"5\":{}}", "logit_bias"},
        {"\"logit_bias\":{\"1000\":1}", "logit_bias"},
        {"\"logit_bias\":{\"-1\":1}", "logit_bias"},
        {"\"logit_bias\":{\"+1\":1}", "logit_bias"},
        {"\"logit_bias\":{\" 1\":1}", "logit_bias"},
        {"\"logit_bias\":{\"1 \":1}", "logit_bias"},
        {"\"logit_bias\":{\"01\":1}", "logit_bias"},
        {"\"logit_bias\":{\"\":1}", "logit_bias"},
        {"\"logit_bias\":{\"abc\":1}", "logit_bias"},
        {"\"logit_bias\":{\"0x5\":1}", "logit_bias"},
        {"\"logit_bias\":{\"5.0\":1}", "logit_bias"},
        {"\"logit_bias\":{\"4294967301\":1}", "logit_bias"},
        {"\"logit_bias\":{\"18446744073709551621\":1}", "logit_bias"},
        {"\"logit_bias\":[5]", "logit_bias"},
        {"\"logit_bias\":[[5]]", "logit_bias"},
        {"\"logit_bias\":[[5,1,1]]", "logit_bias"},
        {"\"logit_bias\":[[1.5,1]]", "logit_bias"},
        {"\"logit_bias\":[[\"5\",1]]", "logit_bias"},
        {"\"logit_bias\":[[-1,1]]", "logit_bias"},
        {"\"logit_bias\":[[4294967301,1]]", "logit_bias"},
        {"\"logit_bias\":[[5,1],[6,2],[5,1]]", "logit_bias"},
        {"\"logit_bias\":[{\"5\":1}]", "logit_bias"},
        {"\"response_format\":{\"type\":\"xml\"}", "response_format"},
        {"\"response_format\":\"text\"", "response_format"},
        {"\"min_tokens\":-1", "min_tokens"},
        {"\"speculative\":64", "speculative"},
        {"\"speculative\":-2", "speculative"},
        {"\"speculative\":1.5", "speculative"},
        {"\"speculative\":\"yes\"", "speculative"},
        {"\"min_tokens\":1.5", "min_tokens"},
        {"\"min_tokens\":1,\"response_format\":{\"type\":\"json_object\"}", "min_tokens"},
        {"\"suffix\":\"x\"", "suffix"},
        {"\"chat_template\":\"{{ 1 }}\"", "chat_template"},
        {"\"prompt_embeds\":\"AAAA\"", "prompt_embeds"},
        {"\"allowed_token_ids\":[]", "allowed_token_ids"},
        {"\"allowed_token_ids\":1", "allowed_token_ids"},
        {"\"allowed_token_ids\":[-1]", "allowed_token_ids"},
        {"\"allowed_token_ids\":[1,\"2\"]", "allowed_token_ids"},
        {"\"allowed_token_ids\":[2147483647]", "allowed_token_ids"},
        {"\"allowed_token_ids\":[1],\"regex\":\"a\"", "allowed_token_ids"},
        {"\"bad_words\":\"a\"", "bad_words"},
        {"\"bad_words\":[\"\"]", "bad_words"},
        {"\"bad_words\":[\"a\",5]", "bad_words"},
        {"\"bad_words\":[\"a\"],\"guided_choice\":[\"b\"]", "bad_words"},
        {"\"guided_regex\":\"(?=a)b\"", "guided_regex"},
        {"\"use_beam_search\":true", "use_beam_search"},
        {"\"top_p\":0", "top_p"},
        {"\"top_p\":1e-300", "top_p"},
        {"\"top_p\":1.0001", "top_p"},
        {"\"top_k\":-2", "top_k"},
        {"\"top_k\":2147483648", "top_k"},
        {"\"seed\":1.5", "seed"},
        {"\"seed\":\"a\"", "seed"},
        {"\"stop\":5", "stop"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":[\"a\",5]", "stop"},
        {"\"stop_token_ids\":[-1]", "stop_token_ids"},
        {"\"stop_token_ids\":[1000]", "stop_token_ids"},
        {"\"stop_token_ids\":[1.5]", "stop_token_ids"},
        {"\"stop_token_ids\":5", "stop_token_ids"},
        {"\"stop_token_ids\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]", "stop_token_ids"},
        {"\"stream\":1", "stream"},
        {"\"stream\":\"true\"", "stream"},
        {"\"stream_options\":{\"include_usage\":true}", "stream_options"},
        {"\"stream\":true,\"stream_options\":5", "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}", "include_usage"},
        {"\"stream\":true,\"stream_options\":{\"continuous_usage_stats\":0}",
         "continuous_usage_stats"},
        {"\"ignore_eos\":0", "ignore_eos"},
        {"\"model\":5", "model"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        for (int kind = 0; kind < 2; kind++) {
            char body[512];
            with_field(KINDS[kind], fields[i][0], body, sizeof body);
            refused(KINDS[kind], body, 400, fields[i][1]);
        }
    }
}

static void test_refused_fields_of_one(void **state)
{
    (void)state;
    static const char *const chat_only[][2] = {
        {"\"top_logprobs\":2", "top_logprobs"},
        {"\"logprobs\":5", "logprobs"},
        {"\"tool_choice\":\"required\"", "tool_choice"},
        {"\"tool_choice\":{\"type\":\"function\"}", "tool_choice"},
        {"\"tool_choice\":\"any\"", "tool_choice"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":"
         "\"required\"",
         "tool_choice"}, // the form of this model's calls is not known
        {"\"parallel_tool_calls\":1", "parallel_tool_calls"},
        {"\"separate_reasoning\":\"no\"", "separate_reasoning"},
        {"\"tools\":{}", "tools"},
        {"\"tools\":[{}]", "tools"},
        {"\"tools\":[{\"type\":\"function\",\"function\":{}}]", "tools"},
        {"\"chat_template_kwargs\":[]", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"messages\":[]}", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"tools\":[]}", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"documents\":[]}", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"add_generation_prompt\":false}", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"continue_final_message\":true}", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"chat_template\":\"{{ 1 }}\"}", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"x\":1,\"tokenize\":true}", "chat_template_kwargs"},
        {"\"chat_template_kwargs\":{\"tokenize\":null}", "chat_template_kwargs"},
        {"\"modalities\":[\"text\",\"audio\"]", "modalities"},
        {"\"continue_final_message\":true", "continue_final_message"},
    };
    for (size_t i = 0; i < sizeof chat_only / sizeof chat_only[0]; i++) {
        char body[512];
        with_field(&msgl__endpoint_chat, chat_only[i][0], body, sizeof body);
        refused(&msgl__endpoint_chat, body, 400, chat_only[i][1]);
    }
    static const char *const completion_only[][2] = {
        {"\"logprobs\":true", "logprobs"},
        {"\"logprobs\":21", "logprobs"},
        {"\"logprobs\":-1", "logprobs"},
        {"\"echo\":\"yes\"", "echo"},
        {"\"n\":2,\"best_of\":3", "best_of"},
        {"\"prompt_logprobs\":21", "prompt_logprobs"},
        {"\"prompt_logprobs\":true", "prompt_logprobs"},
        {"\"prompt_logprobs\":-1", "prompt_logprobs"},
        {"\"prompt_logprobs\":1,\"stream\":true", "prompt_logprobs"},
    };
    for (size_t i = 0; i < sizeof completion_only / sizeof completion_only[0]; i++) {
        char body[512];
        with_field(&msgl__endpoint_completion, completion_only[i][0], body, sizeof body);
        refused(&msgl__endpoint_completion, body, 400, completion_only[i][1]);
    }
}

// What an answer has to be: of no known form, two of them, what is not supported.
static void test_refused_constraints(void **state)
{
    (void)state;
    static const char *const fields[][2] = {
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema.schema"},
        {"\"response_format\":{\"type\":\"json_object\"},\"guided_regex\":\"a\"", "guided_regex"},
        {"\"guided_json\":{\"type\":5}", "guided_json"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":true,"
         "\"schema\":{\"not\":{}}}}",
         "response_format.json_schema.schema"},
        {"\"guided_choice\":[]", "guided_choice"},
        {"\"guided_choice\":[1]", "guided_choice"},
        {"\"structured_outputs\":{\"structural_tag\":\"x\"}", "structured_outputs"},
        {"\"grammar\":\"root ::= x\"", "grammar"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char body[512];
        with_field(&msgl__endpoint_completion, fields[i][0], body, sizeof body);
        refused(&msgl__endpoint_completion, body, 400, fields[i][1]);
    }
}

// The grammar's kind and text, from each way to say it.
static void test_constraints(void **state)
{
    (void)state;
    static const struct {
        const char *field;
        msgl_grammar_kind kind;
        const char *text;
    } cases[] = {
        {"\"response_format\":{\"type\":\"text\"}", MSGL_GRAMMAR_NONE, ""},
        {"\"response_format\":{\"type\":\"json_object\"}", MSGL_GRAMMAR_JSON_OBJECT, ""},
        {"\"response_format\":{\"type\":\"json_schema\",\"schema\":{\"type\":\"null\"}}",
         MSGL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"null\"}"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\": "
         "\"null\"}}}",
         MSGL_GRAMMAR_JSON_SCHEMA, "{\"type\":\"null\"}"},
        {"\"guided_json\":\"true\"", MSGL_GRAMMAR_JSON_SCHEMA, "true"},
        {"\"guided_choice\":[\"a\",\"b\"]", MSGL_GRAMMAR_CHOICE, "[\"a\",\"b\"]"},
        {"\"regex\":\"a+\"", MSGL_GRAMMAR_REGEX, "a+"},
        {"\"ebnf\":\"root ::= \\\"a\\\"\"", MSGL_GRAMMAR_GBNF, "root ::= \"a\""},
        {"\"grammar\":\"start: \\\"a\\\"\"", MSGL_GRAMMAR_LARK, "start: \"a\""},
        {"\"structured_outputs\":{\"json_object\":true}", MSGL_GRAMMAR_JSON_OBJECT, ""},
        {"\"structured_outputs\":{\"json\":{}}", MSGL_GRAMMAR_JSON_SCHEMA, "{}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char body[512];
        msgl_gen_request r;
        msgl_api_error e;
        with_field(&msgl__endpoint_completion, cases[i].field, body, sizeof body);
        assert_int_equal(parse(&msgl__endpoint_completion, body, &r, &e), 0);
        assert_int_equal(r.extra == NULL ? MSGL_GRAMMAR_NONE : r.extra->grammar_kind,
                         cases[i].kind);
        if (r.extra != NULL) assert_string_equal(r.extra->grammar, cases[i].text);
        msgl__gen_request_free(&r);
    }
}

// What a schema that is not strict has beyond what is supported is noted; objects are open if the
// server is to have them so.
static void test_schemas(void **state)
{
    (void)state;
    static const char *const fields[] = {
        "\"guided_json\":{\"type\":\"array\",\"uniqueItems\":true}",
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":false,"
        "\"schema\":"
        "{\"type\":\"array\",\"uniqueItems\":true}}}",
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char body[512];
        with_field(&msgl__endpoint_completion, fields[i], body, sizeof body);
        msgl_gen_request r = good(&msgl__endpoint_completion, body);
        assert_non_null(strstr(r.left_out.data, "\"uniqueItems\""));
        msgl__gen_request_free(&r);
        msgl_api_config c = config();
        msgl_api_error e;
        c.open_schemas = true;
        assert_int_equal(
            msgl__api_parse(&msgl__endpoint_completion, body, strlen(body), &c, NULL, &r, &e), 0);
        assert_int_equal(r.extra->grammar_kind, MSGL_GRAMMAR_JSON_SCHEMA_OPEN);
        msgl__gen_request_free(&r);
    }
}

static void test_messages(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"[]", "messages"},
        {"{}", "messages"},
        {"\"hi\"", "messages"},
        {"[5]", "messages[0]"},
        {"[{}]", "messages[0].role"},
        {"[{\"role\":\"user\"}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":null}]", "messages[0].content"},
        {"[{\"role\":\"user\",\"content\":5}]", "messages[0].content"},
        {"[{\"role\":\"owner\",\"content\":\"x\"}]", "messages[0].role"},
        {"[{\"role\":5,\"content\":\"x\"}]", "messages[0].role"},
        {"[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\",\"content\":[5]}]",
         "messages[1].content[0]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":"
         "\"image_url\",\"image_url\":{\"url\":\"http://169.254.169.254/\"}}]}]",
         "messages[0].content[1]"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":5}]}]",
         "messages[0].content[0]"},
        {"[{\"role\":\"assistant\",\"tool_calls\":5}]", "messages[0].tool_calls"},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{}]}]", "messages[0].tool_calls"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[512];
        (void)snprintf(body, sizeof body, "{\"messages\":%s}", bad[i][0]);
        refused(&msgl__endpoint_chat, body, 400, bad[i][1]);
    }
    refused(&msgl__endpoint_chat, "{}", 400, "messages");
}

// What the template sees: parts joined, arguments as objects where they are, else as they came.
static void test_template_variables(void **state)
{
    (void)state;
    msgl_gen_request r = good(
        &msgl__endpoint_chat,
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{"
        "\"type\":"
        "\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":["
        "{\"id\":\"1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
        "\"{\\\"x\\\": 1}\"}},{\"id\":\"2\",\"type\":\"function\",\"function\":{\"name\":\"g\","
        "\"arguments\":\"{\\\"a\\\":\\\"b\\\"c\\\"}\"}}]},{\"role\":\"tool\",\"content\":\"7\","
        "\"tool_call_id\":\"1\"}],\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
        ","
        "\"tool_choice\":\"auto\",\"reasoning_effort\":\"low\",\"chat_template_kwargs\":{\"enable_"
        "thinking\":false}}");
    assert_string_equal(json_string_value(json_object_get(r.chat.vars, "reasoning_effort")), "low");
    json_t *messages = json_object_get(r.chat.vars, "messages");
    assert_int_equal(json_array_size(messages), 3);
    const json_t *m = json_array_get(messages, 0);
    assert_int_equal(json_array_size(json_object_get(m, "content")), 2);
    m = json_array_get(messages, 1);
    assert_null(json_object_get(m, "content")); // null is as if it were not there
    const json_t *calls = json_object_get(m, "tool_calls");
    const json_t *args =
        json_object_get(json_object_get(json_array_get(calls, 0), "function"), "arguments");
    assert_int_equal(json_integer_value(json_object_get(args, "x")), 1);
    args = json_object_get(json_object_get(json_array_get(calls, 1), "function"), "arguments");
    assert_string_equal(json_string_value(args), "{\"a\":\"b\"c\"}");
    assert_int_equal(json_array_size(json_object_get(r.chat.vars, "tools")), 1);
    assert_true(json_is_false(json_object_get(r.chat.vars, "enable_thinking")));
    msgl__gen_request_free(&r);
    r = good(&msgl__endpoint_chat,
             "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[{\"type\":"
             "\"function\",\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"none\"}");
    assert_true(json_is_null(json_object_get(r.chat.vars, "tools")));
    msgl__gen_request_free(&r);
}

static void test_models(void **state)
{
    (void)state;
    static const char *const known[] = {"m", "org/folder", "folder", "folder/", ""};
    static const char *const unknown[] = {"other", "../m", "org", "M", "foldero", "/", "m\\u007f"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char body[128];
        (void)snprintf(body, sizeof body, "{\"prompt\":\"x\",\"model\":\"%s\"}", known[i]);
        msgl_gen_request r = good(&msgl__endpoint_completion, body);
        msgl__gen_request_free(&r);
    }
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        char body[128];
        (void)snprintf(body, sizeof body, "{\"prompt\":\"x\",\"model\":\"%s\"}", unknown[i]);
        refused(&msgl__endpoint_completion, body, 404, "model");
    }
}

static void test_hostile_bodies(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "}",
        "null",
        "[]",
        "\"x\"",
        "{\"prompt\":\"x\"",
        "{\"prompt\":\"x\"}}",
        "{\"prompt\":'x'}",
        "{prompt:1}",
        "{\"prompt\":NaN}",
        "{\"prompt\":Infinity}",
        "{\"prompt\":01}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"\\u0000\"}",
        "{\"prompt\":\"\xff\"}",
        "{\"prompt\":\"\xed\xa0\x80\"}",
        "{\"prompt\":\"\xc0\xaf\"}",
        "{\"prompt\":\"a\nb\"}",
        "{\"prompt\":\"x\",\"n\":99999999999999999999}",
        "{\"prompt\":\"x\"} x",
        "{\"prompt\":\"x\",\"n\":1e999}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        refused(&msgl__endpoint_completion, bad[i], 400, NULL);
    }
    // JSON has numbers that nothing here holds; the member that has one is named.
    static const char *const large[][2] = {
        {"{\"prompt\":\"x\",\"n\":9223372036854775808}", "'n' is an integer of more than 64 bits"},
        {"{\"a\":{\"b\":1,\"c\":[]},\"temperature\" : -1e999}", "'temperature' has"},
        {"{\"prompt\":[1,{\"x\":\"\\\"y\\\":\"},[1e400]]}", "'prompt' has"},
        {"{\"a\":{\"logit_bias\":{\"7\":1e309}}}", "'7' has"},
        {"[99999999999999999999]", "must be an object"},
    };
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        msgl_gen_request r;
        msgl_api_error e = {0};
        assert_int_not_equal(parse(&msgl__endpoint_completion, large[i][0], &r, &e), 0);
        assert_int_equal(e.status, 400);
        if (strstr(e.message, large[i][1]) == NULL) fail_msg("%s: %s", large[i][0], e.message);
    }
    // Nested a million deep, as arrays and as objects; brackets in strings do not count.
    char *deep = msgl__malloc(6000001);
    for (int objects = 0; objects < 2; objects++) {
        size_t n = 0;
        for (int i = 0; i < 1000000; i++) {
            memcpy(deep + n, objects ? "{\"a\":" : "[", objects ? 5 : 1);
            n += objects ? 5 : 1;
        }
        deep[n] = '\0';
        refused(&msgl__endpoint_completion, deep, 400, NULL);
    }
    // A flood of values.
    size_t n = strlen("{\"prompt\":[");
    memcpy(deep, "{\"prompt\":[", n);
    while (n < 5999990) {
        memcpy(deep + n, "1,", 2);
        n += 2;
    }
    memcpy(deep + n, "1]}", 4);
    const uint64_t allocs = msgl__mem_allocs();
    refused(&msgl__endpoint_completion, deep, 413, NULL);
    assert_true(msgl__mem_allocs() - allocs < 64); // of the error, which is read as JSON, too
    // A million prompts; a thousand is the limit, and with n the product counts.
    n = strlen("{\"prompt\":[");
    for (int i = 0; i < 1000000; i++) {
        memcpy(deep + n, "\"a\",", 4);
        n += 4;
    }
    memcpy(deep + n, "\"a\"]}", 6);
    refused(&msgl__endpoint_completion, deep, 400, "prompt");
    n = strlen("{\"n\":2,\"prompt\":[");
    memcpy(deep, "{\"n\":2,\"prompt\":[", n);
    for (int i = 0; i < 600; i++) {
        memcpy(deep + n, "\"a\",", 4);
        n += 4;
    }
    memcpy(deep + n, "\"a\"]}", 6);
    refused(&msgl__endpoint_completion, deep, 400, "n");
    msgl__free(deep);
    char body[512];
    char brackets[300];
    memset(brackets, '[', 200);
    brackets[200] = '\0';
    (void)snprintf(body, sizeof body, "{\"prompt\":\"%s\\\"[[{{\\\\\"}", brackets);
    msgl_gen_request r = good(&msgl__endpoint_completion, body);
    msgl__gen_request_free(&r);
}

// Stop strings and echoed text outlive the tree; nothing else does.
static void test_detach(void **state)
{
    (void)state;
    msgl_gen_request r =
        good(&msgl__endpoint_completion, "{\"prompt\":[\"ab\",\"c\"],\"echo\":true,"
                                         "\"stop\":[\"xy\",\"z\"],\"metadata\":[1,2]}");
    assert_int_equal(msgl__gen_request_detach(&r), 0);
    assert_null(r.root);
    assert_string_equal(r.stops[0], "xy");
    assert_string_equal(r.stops[1], "z");
    assert_string_equal(r.prompts[0].text, "ab");
    assert_string_equal(r.prompts[1].text, "c");
    assert_int_equal(r.text_len, 3 + 2 + 3 + 2);
    msgl__gen_request_free(&r);
    r = good(&msgl__endpoint_chat, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    assert_int_equal(msgl__gen_request_detach(&r), 0);
    assert_null(r.root);
    assert_null(r.chat.vars);
    assert_int_equal(r.num_prompts, 1);
    msgl__gen_request_free(&r);
}

// Whatever comes out of the writer reads back as the same text, with bad bytes replaced.
static void test_json_strings(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t len;
        const char *want;
    } cases[] = {
        {"", 0, ""},
        {"a\"\\\n\r\t\b\f\x01\x7f/", 11, "a\"\\\n\r\t\b\f\x01\x7f/"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"x\xc3", 2, "x\xef\xbf\xbd"},
        {"\xed\xa0\x80", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80z", 5, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdz"},
        {"\xc0\xaf", 2, "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xff"
         "a",
         2,
         "\xef\xbf\xbd"
         "a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        msgl_strbuf b;
        msgl__strbuf_init(&b, 1000);
        assert_int_equal(msgl__json_put_str(&b, cases[i].in, cases[i].len), 0);
        json_t *j = json_loadb(b.data, b.len, JSON_DECODE_ANY, NULL);
        assert_non_null(j);
        assert_string_equal(json_string_value(j), cases[i].want);
        json_decref(j);
        msgl__strbuf_free(&b);
    }
    msgl_strbuf b;
    msgl__strbuf_init(&b, 1000);
    assert_int_equal(msgl__json_put_logprob(&b, -INFINITY), 0);
    assert_int_equal(msgl__strbuf_addc(&b, ' '), 0);
    assert_int_equal(msgl__json_put_logprob(&b, NAN), 0);
    assert_string_equal(b.data, "-9999 null");
    msgl__strbuf_free(&b);
}

// Each of many allowed tools is one of many tools: the request is read in a time that grows with
// their number, not with its square, which took half a minute here.
static void test_many_allowed_tools(void **state)
{
    (void)state;
    enum { MANY = 30000 };
    msgl_strbuf body;
    msgl__strbuf_init(&body, (size_t)8 << 20);
    msgl__strbuf_adds(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[");
    for (int i = 0; i < MANY; i++) {
        msgl__strbuf_addf(&body, "%s{\"type\":\"function\",\"function\":{\"name\":\"f%d\"}}",
                          i == 0 ? "" : ",", i);
    }
    msgl__strbuf_adds(&body, "],\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":"
                             "{\"mode\":\"auto\",\"tools\":[");
    // The last one first, and twice.
    for (int i = MANY; i >= 0; i--) {
        msgl__strbuf_addf(&body, "%s{\"type\":\"function\",\"function\":{\"name\":\"f%d\"}}",
                          i == MANY ? "" : ",", i == MANY ? MANY - 1 : i);
    }
    assert_int_equal(msgl__strbuf_adds(&body, "]}}}"), 0);
    msgl_gen_request r = good(&msgl__endpoint_chat, msgl__strbuf_str(&body));
    const json_t *tools = json_object_get(r.chat.vars, "tools");
    assert_int_equal(json_array_size(tools), MANY);
    const json_t *first = json_object_get(json_array_get(tools, 0), "function");
    assert_string_equal(json_string_value(json_object_get(first, "name")), "f29999");
    msgl__gen_request_free(&r);
    msgl__strbuf_free(&body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_no_limit),
        cmocka_unit_test(test_hostile_numbers),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_bias_limit),
        cmocka_unit_test(test_ranges_of_settings),
        cmocka_unit_test(test_refused_fields),
        cmocka_unit_test(test_refused_fields_of_one),
        cmocka_unit_test(test_refused_constraints),
        cmocka_unit_test(test_constraints),
        cmocka_unit_test(test_schemas),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_template_variables),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_hostile_bodies),
        cmocka_unit_test(test_detach),
        cmocka_unit_test(test_json_strings),
        cmocka_unit_test(test_many_allowed_tools),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
