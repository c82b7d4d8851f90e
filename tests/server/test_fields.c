// SPDX-License-Identifier: Apache-2.0
//
// Names of fields: typing errors are refused with the name that was meant, other servers' fields
// are not taken for them, whatever is not read is told. And SGLang's form of /generate.
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/mem.h"
#include "api/sglang/score.h"
#include "core/attributes.h"
#include "api/endpoint.h"
#include "api/fields.h"
#include "api/loras.h"
#include "server/fixture.h"
#include "api/openai/endpoints.h"
#include "api/sglang/endpoints.h"
#include "program/endpoints.h"

static const msgl_endpoint *const KINDS[] = {&msgl__endpoint_chat, &msgl__endpoint_completion,
                                             &msgl__endpoint_generate};

static const char *const basic[] = {"\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]",
                                    "\"prompt\":\"x\"", "\"prompt\":\"x\""};

static int parse_as(const msgl_endpoint *ep, msgl_unknown_fields what, const char *body,
                    msgl_gen_request *r, msgl_api_error *e)
{
    msgl_api_config c = {
        .model_name = "m", .model_path = "m", .vocab_size = 1000, .unknown_fields = what};
    c.defaults = msgl__sampling_params_default();
    c.defaults.temperature = 0.6f;
    // SGLang's form of /v1/score is of models that answer.
    c.pooled_size = ep->pooled && strstr(body, "label_token_ids") == NULL ? 64 : 0;
    c.classifies = ep->classifies;
    c.token_weights = ep->pooled;
    c.token_vector_size = ep->pooled ? 8 : 0;
    *e = (msgl_api_error){0};
    return msgl__api_parse(ep, body, strlen(body), &c, NULL, r, e);
}

static int parse(const msgl_endpoint *ep, bool refuse, const char *body, msgl_gen_request *r,
                 msgl_api_error *e)
{
    return parse_as(ep, refuse ? MSGL_UNKNOWN_REFUSE : MSGL_UNKNOWN_WARN, body, r, e);
}

static const char *basic_of(const msgl_endpoint *ep)
{
    int i = 0;
    while (KINDS[i] != ep) i++;
    return basic[i];
}

static void with(const msgl_endpoint *ep, const char *name, const char *value, char out[300])
{
    (void)snprintf(out, 300, "{%s,\"%s\":%s}", basic_of(ep), name, value);
}

static void test_near_misses(void **state)
{
    (void)state;
    static const struct {
        const msgl_endpoint *ep;
        const char *name, *meant;
    } cases[] = {
        {&msgl__endpoint_chat, "temprature", "temperature"},
        {&msgl__endpoint_chat, "temparature", "temperature"},
        {&msgl__endpoint_chat, "tempreature", "temperature"},
        {&msgl__endpoint_chat, "max_token", "max_tokens"},
        {&msgl__endpoint_chat, "stopp", "stop"},
        {&msgl__endpoint_chat, "stops", "stop"},
        {&msgl__endpoint_chat, "sotp", "stop"},
        {&msgl__endpoint_chat, "top_logprob", "top_logprobs"},
        {&msgl__endpoint_chat, "max_completions_tokens", "max_completion_tokens"},
        {&msgl__endpoint_chat, "frequency_penality", "frequency_penalty"},
        {&msgl__endpoint_chat, "respons_format", "response_format"},
        {&msgl__endpoint_completion, "strem", "stream"},
        {&msgl__endpoint_completion, "ehco", "echo"},
        {&msgl__endpoint_generate, "max_tokenss", "max_tokens"},
        {&msgl__endpoint_generate, "sampling_param", "sampling_params"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int refuse = 0; refuse < 2; refuse++) {
            char body[300], meant[80];
            msgl_gen_request r;
            msgl_api_error e;
            with(cases[i].ep, cases[i].name, "1", body);
            if (parse(cases[i].ep, refuse, body, &r, &e) == 0) fail_msg("%s: taken", body);
            assert_int_equal(e.status, 400);
            assert_string_equal(e.param, cases[i].name);
            (void)snprintf(meant, sizeof meant, "did you mean '%s'?", cases[i].meant);
            if (strstr(e.message, meant) == NULL) fail_msg("%s: %s", body, e.message);
            // null is no value, whatever the name.
            with(cases[i].ep, cases[i].name, "null", body);
            assert_int_equal(parse(cases[i].ep, refuse, body, &r, &e), 0);
            assert_int_equal(r.unknown.len, 0);
            msgl__gen_request_free(&r);
        }
    }
}

// Names of other conventions mean the same, unless the field is there by its own name, too.
static void test_other_conventions(void **state)
{
    (void)state;
    static const char *const seven[] = {
        "\"maxTokens\":7",
        "\"maxtokens\":7",
        "\"max-tokens\":7",
        "\"Max_Tokens\":7",
        "\"n_predict\":7",
        "\"max_new_tokens\":7",
        "\"maxOutputTokens\":7",
        "\"num_predict\":7",
        "\"max_tokens\":7,\"maxTokens\":9",
        "\"max_tokens\":7,\"n_predict\":-1",
    };
    for (size_t i = 0; i < MSGL_COUNT(seven); i++) {
        char body[300];
        msgl_gen_request r;
        msgl_api_error e;
        (void)snprintf(body, sizeof body, "{%s,%s}", basic[0], seven[i]);
        if (parse(&msgl__endpoint_chat, false, body, &r, &e) != 0)
            fail_msg("%s: %s", body, e.message);
        assert_int_equal(r.max_tokens, 7);
        assert_int_equal(r.unknown.len > 0, i >= MSGL_COUNT(seven) - 2);
        msgl__gen_request_free(&r);
    }
    msgl_gen_request r;
    msgl_api_error e;
    assert_int_equal(parse(&msgl__endpoint_chat, true,
                           "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"topK\":5,"
                           "\"topP\":0.5,\"Seed\":3,\"stopSequences\":[\"a\"],\"reasoningEffort\":"
                           "\"low\",\"chat_template_args\":{\"a\":1}}",
                           &r, &e),
                     0);
    assert_int_equal(r.sampling.top_k, 5);
    assert_true(r.sampling.top_p == 0.5f);
    assert_int_equal(r.sampling.seed, 3);
    assert_string_equal(r.stops[0], "a");
    assert_int_equal(json_integer_value(json_object_get(r.chat.vars, "a")), 1);
    const json_t *effort = json_object_get(r.chat.vars, "reasoning_effort");
    assert_string_equal(json_string_value(effort), "low");
    msgl__gen_request_free(&r);
}

// As many stop strings, of so many bytes in all, as are allowed, and one more.
static void test_stops(void **state)
{
    (void)state;
    static char body[2 * MSGL_MAX_STOPS_BYTES];
    msgl_gen_request r;
    msgl_api_error e;
    for (int more = 0; more < 4; more++) {
        const int count = more < 2 ? MSGL_MAX_STOPS + more : 16;
        const int bytes = more < 2 ? 1 : MSGL_MAX_STOPS_BYTES / 16;
        int n = snprintf(body, sizeof body, "{\"prompt\":\"x\",\"stop\":[%s",
                         more == 3 ? "\"b\"," : "");
        for (int i = 0; i < count; i++) {
            n += snprintf(body + n, sizeof body - (size_t)n, "%s\"", i == 0 ? "" : ",");
            memset(body + n, 'a', (size_t)bytes);
            n += bytes;
            body[n++] = '"';
        }
        strcpy(body + n, "]}");
        if (more % 2 == 0) {
            assert_int_equal(parse(&msgl__endpoint_completion, false, body, &r, &e), 0);
            assert_int_equal(r.num_stops, count);
            msgl__gen_request_free(&r);
        } else {
            assert_true(parse(&msgl__endpoint_completion, false, body, &r, &e) < 0);
            assert_string_equal(e.param, "stop");
        }
    }
}

// Two letters away: it may be anybody's. One letter: a typing error, unless nobody asks.
static void test_far_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        msgl_unknown_fields what;
        bool taken, noted;
    } cases[] = {
        {"temprture", MSGL_UNKNOWN_WARN, true, true},
        {"temprture", MSGL_UNKNOWN_IGNORE, true, false},
        {"temprture", MSGL_UNKNOWN_REFUSE, false, false},
        {"temprature", MSGL_UNKNOWN_WARN, false, false},
        {"temprature", MSGL_UNKNOWN_IGNORE, true, false},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        char body[300];
        msgl_gen_request r;
        msgl_api_error e;
        with(&msgl__endpoint_chat, cases[i].name, "1", body);
        const int rc = parse_as(&msgl__endpoint_chat, cases[i].what, body, &r, &e);
        assert_int_equal(rc == 0, cases[i].taken);
        assert_int_equal(r.unknown.len > 0, cases[i].noted);
        msgl__gen_request_free(&r);
    }
}

// Fields of llama-server, vLLM, SGLang, Ollama, OpenAI and OpenRouter that clients were seen to
// send: some are a letter or two from one of ours.
static void test_foreign_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "repeat_last_n",
        "tfs_z",
        "top_a",
        "samplers",
        "length_penalty",
        "documents",
        "thinking",
        "echo",
        "best_of",
        "add_special_tokens",
        "spaces_between_special_tokens",
        "return_tokens_as_token_ids",
        "cache_prompt",
        "priority",
        "n_probs",
        "sampling_params",
        "session_params",
        "custom_params",
        "return_hidden_states",
        "stream_reasoning",
        "guided_decoding_backend",
        "kv_transfer_params",
        "vllm_xargs",
        "mm_processor_kwargs",
        "no_stop_trim",
        "extra_body",
        "n_cmpl",
        "post_sampling_probs",
        "logprob_token_ids",
        "reasoning_format",
        "return_progress",
        "timings_per_token",
        "num_ctx",
        "keep_alive",
        "options",
        "format",
        "top_logprobs_num",
        "min_new_tokens",
        "models",
        "structural_tag",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char body[300];
        msgl_gen_request r;
        msgl_api_error e;
        with(&msgl__endpoint_chat, names[i], "1", body);
        if (parse(&msgl__endpoint_chat, false, body, &r, &e) != 0)
            fail_msg("%s: %s", body, e.message);
        assert_string_equal(msgl__strbuf_str(&r.unknown), names[i]); // told, not silent
        msgl__gen_request_free(&r);
        assert_true(parse(&msgl__endpoint_chat, true, body, &r, &e) < 0);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, names[i]);
        assert_null(strstr(e.message, "did you mean"));
    }
    static const char *const harmless[] = {
        "user",      "store",      "metadata",          "service_tier",     "prediction",
        "verbosity", "request_id", "safety_identifier", "prompt_cache_key", "id_slot",
    };
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++) {
        char body[300];
        msgl_gen_request r;
        msgl_api_error e;
        with(&msgl__endpoint_completion, harmless[i], "1", body);
        if (parse(&msgl__endpoint_completion, true, body, &r, &e) != 0) fail_msg("%s", e.message);
        assert_int_equal(r.unknown.len, 0);
        msgl__gen_request_free(&r);
    }
}

// Every field that is read is known to be: none is taken for a foreign one in a strict server.
static void test_own_names(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"model\":\"m\",\"max_tokens\":1,"
        "\"max_completion_tokens\":1,\"temperature\":1,\"top_p\":1,\"top_k\":1,\"min_p\":0,"
        "\"seed\":1,\"n\":1,\"stop\":\"a\",\"stop_token_ids\":[1],\"ignore_eos\":true,"
        "\"skip_special_tokens\":true,\"logprobs\":true,\"top_logprobs\":1,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true},\"tools\":[],\"tool_choice\":\"auto\","
        "\"chat_template_kwargs\":{},\"add_generation_prompt\":true,\"reasoning_effort\":\"low\","
        "\"frequency_penalty\":0,\"presence_penalty\":0,\"repetition_penalty\":1,\"logit_bias\":{},"
        "\"min_tokens\":0,\"response_format\":{\"type\":\"text\"},\"modalities\":[\"text\"],"
        "\"bad_words\":[],\"use_beam_search\":false,\"suffix\":\"\"}",
        "{\"prompt\":\"x\",\"model\":\"m\",\"max_tokens\":1,\"echo\":true,\"best_of\":1,"
        "\"logprobs\":1,\"temperature\":1,\"top_p\":1,\"top_k\":1,\"min_p\":0,\"seed\":1,\"n\":1,"
        "\"stop\":\"a\",\"stop_token_ids\":[1],\"ignore_eos\":true,\"skip_special_tokens\":true,"
        "\"stream\":true,\"stream_options\":{}}",
        "{\"prompt\":\"x\",\"model\":\"m\",\"max_tokens\":1,\"ignore_eos\":true,\"stream\":true,"
        "\"temperature\":1,\"top_p\":1,\"top_k\":1,\"min_p\":0,\"seed\":1,\"stop\":\"a\"}",
        "{\"text\":\"x\",\"stream\":true,\"rid\":\"r\",\"return_logprob\":false,\"sampling_"
        "params\":{"
        "\"temperature\":1,\"top_p\":1,\"top_k\":-1,\"min_p\":0,\"max_new_tokens\":1,"
        "\"stop\":null,\"stop_token_ids\":[1],\"ignore_eos\":true,\"n\":2,\"sampling_seed\":1,"
        "\"skip_special_tokens\":true,\"frequency_penalty\":0,\"min_new_tokens\":0,"
        "\"regex\":null,\"no_stop_trim\":false}}",
    };
    for (int i = 0; i < 4; i++) {
        msgl_gen_request r;
        msgl_api_error e;
        const msgl_endpoint *ep = KINDS[i < 2 ? i : 2];
        if (parse(ep, true, bodies[i], &r, &e) != 0) fail_msg("%d: %s", i, e.message);
        msgl__gen_request_free(&r);
    }
}

// A flood of names costs little and is kept short; long ones are cut between characters.
static void test_many_names(void **state)
{
    (void)state;
    msgl_strbuf b;
    msgl__strbuf_init(&b, 64 << 20);
    msgl__strbuf_adds(&b, "{\"prompt\":\"x\"");
    for (int i = 0; i < 300000; i++) msgl__strbuf_addf(&b, ",\"unheard of %d\":1", i);
    msgl__strbuf_addc(&b, '}');
    msgl_gen_request r;
    msgl_api_error e;
    assert_int_equal(parse(&msgl__endpoint_completion, false, b.data, &r, &e), 0);
    assert_true(r.unknown.len > 0 && r.unknown.len <= 1024);
    msgl__gen_request_free(&r);
    msgl__strbuf_clear(&b);
    msgl__strbuf_adds(&b, "{\"prompt\":\"x\",\"zz");
    for (int i = 0; i < 100; i++) msgl__strbuf_adds(&b, "\xe2\x82\xac");
    msgl__strbuf_adds(&b, "\":1}");
    assert_int_equal(parse(&msgl__endpoint_completion, false, b.data, &r, &e), 0);
    assert_int_equal(strlen(r.unknown.data), 2 + 20 * 3);
    msgl__gen_request_free(&r);
    msgl__strbuf_free(&b);
}

// Values of llama.cpp's samplers that are out of their limits, or of no sampler here.
static void test_samplers(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"typical_p", "0"},
        {"typ_p", "1.5"},
        {"xtc_probability", "-0.1"},
        {"dry_base", "0.5"},
        {"dry_allowed_length", "513"},
        {"dry_sequence_breakers", "\"a\""},
        {"dry_sequence_breakers", "[\"a\",\"\"]"},
        {"mirostat", "1"},
        {"mirostat", "3"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[300];
        msgl_gen_request r;
        msgl_api_error e;
        with(&msgl__endpoint_completion, bad[i][0], bad[i][1], body);
        if (parse(&msgl__endpoint_completion, false, body, &r, &e) == 0) fail_msg("%s", body);
        assert_int_equal(e.status, 400);
        assert_string_equal(e.param, bad[i][0]);
        if (i == 7) assert_non_null(strstr(e.message, "allowed: 0, or 2"));
    }
}

// The log has each name once, however many requests bring it; a strict server answers 400.
static void test_log(void **state)
{
    (void)state;
    int fd[2];
    assert_int_equal(pipe2(fd, O_NONBLOCK | O_CLOEXEC), 0);
    const msgl_log log = {.level = MSGL_LOG_WARN, .fd = fd[1]};
    msgl_front_config cfg = msgl__front_config_default();
    cfg.log = &log;
    cfg.tool_parser = "none"; // auto would say that the template's form is not known
    server_fixture s;
    server_open(&s, &cfg, true);
    for (int i = 0; i < 100; i++) {
        char body[200];
        (void)snprintf(
            body, sizeof body,
            "{\"prompt\":\"x\",\"max_tokens\":1,\"top_a\":1,\"made_up_%d\":2,\"user\":3}", i);
        uint64_t uid;
        const int c = client_ask(&s, body, &uid);
        engine_token(&s, uid, 'y', MSGL_FINISH_LENGTH);
        expect_status(client_read(c), 200);
        close(c);
    }
    server_close(&s);
    static char text[65536];
    const ssize_t n = read(fd[0], text, sizeof text - 1);
    assert_true(n > 0);
    text[n] = '\0';
    const char *first = strstr(text, "'top_a'");
    assert_non_null(first);
    assert_null(strstr(first + 1, "'top_a'"));
    assert_non_null(strstr(text, "'made_up_0'"));
    assert_null(strstr(text, "'user'"));
    int lines = 0;
    for (const char *p = text; (p = strchr(p, '\n')) != NULL; p++) lines++;
    assert_int_equal(lines, 64);
    close(fd[0]);
    close(fd[1]);
    cfg = msgl__front_config_default();
    cfg.unknown_fields = MSGL_UNKNOWN_REFUSE;
    server_open(&s, &cfg, true);
    response r = client_request(&s, "POST", "/v1/completions", "{\"prompt\":\"x\",\"top_a\":1}");
    assert_non_null(strstr(r.body, "\"param\":\"top_a\""));
    expect_error(&r, 400, "unknown_parameter");
    server_close(&s);
}

static void test_sglang_fields(void **state)
{
    (void)state;
    msgl_gen_request r;
    msgl_api_error e;
    if (parse(&msgl__endpoint_generate, false,
              "{\"text\":\"The fox\",\"sampling_params\":{\"temperature\":1.5,\"top_p\":0.5,"
              "\"top_k\":7,\"min_p\":0.25,\"max_new_tokens\":3,\"stop\":[\"a\",\"b\"],"
              "\"stop_token_ids\":[5],\"ignore_eos\":true,\"n\":2,\"sampling_seed\":9,"
              "\"min_new_tokens\":2,\"skip_special_tokens\":false}}",
              &r, &e) != 0) {
        fail_msg("%s", e.message);
    }
    assert_false(r.stream);
    assert_true(r.sampling.temperature == 1.5f && r.sampling.top_p == 0.5f);
    assert_true(r.sampling.min_p == 0.25f && r.sampling.ignore_eos && !r.skip_special);
    assert_int_equal(r.sampling.top_k, 7);
    assert_int_equal(r.max_tokens, 3);
    assert_int_equal(r.num_stops, 2);
    assert_int_equal(r.sampling.stop_ids[0], 5);
    assert_int_equal(r.n, 2);
    assert_true(r.sampling.seed == 9);
    assert_int_equal(r.sampling.min_tokens, 2);
    msgl__gen_request_free(&r);
    assert_int_equal(
        parse(&msgl__endpoint_completion, false,
              "{\"prompt\":\"a\",\"allowed_token_ids\":[7,3],\"bad_words\":[\"b\",\" c\"]}", &r,
              &e),
        0);
    assert_int_equal(r.extra->num_allowed, 2);
    assert_int_equal(r.extra->allowed[1], 3);
    assert_int_equal(json_array_size(r.bad_words), 2);
    assert_true(r.sampling.typical_p == 1 && r.sampling.dry_multiplier == 0);
    assert_false(msgl__sampling_has_chain(&r.sampling));
    assert_null(r.dry_breakers);
    msgl__gen_request_free(&r);
    // llama-server's, whose spelling of one is another; nothing asks for DRY's tokens to be empty.
    assert_int_equal(parse(&msgl__endpoint_completion, true,
                           "{\"prompt\":\"a\",\"typ_p\":0.5,\"mirostat\":2,\"dry_multiplier\":0.8,"
                           "\"dry_sequence_breakers\":[],\"xtc_threshold\":0.3}",
                           &r, &e),
                     0);
    assert_true(r.sampling.typical_p == 0.5f && r.sampling.xtc_threshold == 0.3f);
    assert_true(r.sampling.dry_multiplier == 0.8f && r.sampling.dry_base == 1.75f);
    assert_int_equal(r.sampling.mirostat, 2);
    assert_true(r.sampling.mirostat_tau == 5 && msgl__sampling_has_chain(&r.sampling));
    assert_non_null(r.dry_breakers);
    msgl__gen_request_free(&r);
    // Defaults are SGLang's: the model's sampling, 128 tokens.
    assert_int_equal(parse(&msgl__endpoint_generate, false,
                           "{\"input_ids\":[[1,2],[3]],\"sampling_params\":{}}", &r, &e),
                     0);
    assert_true(r.sampling.temperature == 0.6f);
    assert_int_equal(r.max_tokens, 128);
    assert_int_equal(r.num_prompts, 2);
    msgl__gen_request_free(&r);
    static const char *const bad[][2] = {
        {"\"sampling_params\":[]", "sampling_params"},
        {"\"sampling_params\":5", "sampling_params"},
        {"\"sampling_params\":{\"temperature\":-1}", "sampling_params.temperature"},
        {"\"sampling_params\":{\"temperature\":\"1\"}", "sampling_params.temperature"},
        {"\"sampling_params\":{\"max_new_tokens\":0}", "sampling_params.max_new_tokens"},
        {"\"sampling_params\":{\"max_new_tokens\":1e9}", "sampling_params.max_new_tokens"},
        {"\"sampling_params\":{\"temprature\":1}", "sampling_params.temprature"},
        {"\"sampling_params\":{\"max_tokens\":1}", "sampling_params.max_tokens"},
        {"\"sampling_params\":{\"unheard_of\":1}", "sampling_params.unheard_of"},
        {"\"sampling_params\":{\"regex\":\"(\"}", "sampling_params.regex"},
        {"\"sampling_params\":{\"json_schema\":\"{\"}", "sampling_params.json_schema"},
        {"\"sampling_params\":{\"min_new_tokens\":-4}", "sampling_params.min_new_tokens"},
        {"\"sampling_params\":{\"structural_tag\":\"{\"}", "sampling_params.structural_tag"},
        {"\"sampling_params\":{\"n\":1000}", "sampling_params.n"},
        {"\"sampling_params\":{},\"temperature\":1", "temperature"},
        {"\"sampling_params\":{},\"max_new_tokens\":1", "max_new_tokens"},
        {"\"sampling_params\":{},\"sampling_seed\":1", "sampling_seed"},
        {"\"sampling_params\":{},\"return_logprob\":1", "return_logprob"},
        {"\"sampling_params\":{},\"top_logprobs_num\":21", "top_logprobs_num"},
        {"\"sampling_params\":{},\"logprob_start_len\":-2", "logprob_start_len"},
        {"\"sampling_params\":{},\"token_ids_logprob\":1", "token_ids_logprob"},
        {"\"sampling_params\":{},\"token_ids_logprob\":[[1],[2]]", "token_ids_logprob"},
        {"\"sampling_params\":{},\"token_ids_logprob\":[[1],2]", "token_ids_logprob"},
        {"\"sampling_params\":{},\"return_logprob\":[true,true]", "return_logprob"},
        {"\"sampling_params\":{},\"return_hidden_states\":true", "return_hidden_states"},
        {"\"sampling_params\":{},\"return_hidden_states\":1", "return_hidden_states"},
        {"\"input_embeds\":[[1,2]]", "input_embeds"},  // beside a text
        {"\"return_logprob\":true", "return_logprob"}, // the plain form
        {"\"token_ids_logprob\":[1]", "token_ids_logprob"},
        {"\"sampling_params\":{},\"image_data\":\"x\"", "image_data"},
        {"\"sampling_params\":{},\"input_ids\":[1]", "input_ids"},
        {"\"sampling_params\":{},\"stream\":1", "stream"},
        {"\"sampling_params\":{},\"samplingparam\":{}", "samplingparam"},
        {"\"sampling_params\":{},\"temprature\":1", "temprature"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char body[300];
        (void)snprintf(body, sizeof body, "{\"text\":\"x\",%s}", bad[i][0]);
        if (parse(&msgl__endpoint_generate, false, body, &r, &e) == 0) fail_msg("%s: taken", body);
        if (e.status != 400 || strcmp(e.param, bad[i][1]) != 0) {
            fail_msg("%s: %d %s: %s", body, e.status, e.param, e.message);
        }
    }
    assert_true(parse(&msgl__endpoint_generate, false, "{\"sampling_params\":{}}", &r, &e) < 0);
    assert_string_equal(e.param, "text");
    // A null beside it is no prompt, in the plain form either.
    assert_int_equal(
        parse(&msgl__endpoint_generate, false, "{\"prompt\":null,\"text\":\"x\"}", &r, &e), 0);
    assert_string_equal(r.prompts[0].text, "x");
    msgl__gen_request_free(&r);
}

static int parse_rows_with(msgl_loras *loras, const char *body, msgl_gen_request *r,
                           msgl_api_error *e)
{
    msgl_api_config c = {.model_name = "m",
                         .model_path = "m",
                         .loras = loras,
                         .vocab_size = 1000,
                         .hidden_size = 2,
                         .embed_size = 2};
    c.defaults = msgl__sampling_params_default();
    *e = (msgl_api_error){0};
    return msgl__api_parse(&msgl__endpoint_generate, body, strlen(body), &c, NULL, r, e);
}

static int parse_rows(const char *body, msgl_gen_request *r, msgl_api_error *e)
{
    return parse_rows_with(NULL, body, r, e);
}

// SGLang's engine sends an adapter for each prompt: the same one is the request's.
static void test_sglang_adapters(void **state)
{
    (void)state;
    static const struct {
        const char *value;
        uint64_t id;
        int status;
    } cases[] = {
        {"\"a\"", 5, 0},
        {"[\"a\",\"a\"]", 5, 0},
        {"[null,null]", 0, 0},
        {"[\"a\",\"b\"]", 0, 400},
        {"[\"a\",null]", 0, 400},
        {"[\"a\"]", 0, 400},
        {"[]", 0, 400},
        {"[1,1]", 0, 400},
        {"[\"x\",\"x\"]", 0, 404},
    };
    msgl_loras *loras = msgl__loras_create();
    assert_int_equal(msgl__loras_put(loras, "a", "/a", 5), 0);
    assert_int_equal(msgl__loras_put(loras, "b", "/b", 6), 0);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        char body[200];
        msgl_gen_request r;
        msgl_api_error e;
        (void)snprintf(body, sizeof body, "{\"input_ids\":[[1],[2]],\"lora_path\":%s}",
                       cases[i].value);
        const int rc = parse_rows_with(loras, body, &r, &e);
        if (cases[i].status == 0) {
            if (rc != 0) fail_msg("%s: %s", body, e.message);
            assert_true(r.adapter == cases[i].id);
            msgl__gen_request_free(&r);
        } else if (rc == 0 || e.status != cases[i].status || strcmp(e.param, "lora_path") != 0) {
            fail_msg("%s: %d %s", body, e.status, e.message);
        }
    }
    msgl__loras_free(loras);
}

// What trainers ask for beside log-probabilities, of one prompt and of several.
static void test_sglang_rows(void **state)
{
    (void)state;
    msgl_gen_request r;
    msgl_api_error e;
    // One prompt of three tokens, and two of one.
    assert_int_equal(parse_rows("{\"input_embeds\":[[1,2],[0.5,-1e9],[3,4]]}", &r, &e), 0);
    assert_true(r.num_prompts == 1 && r.prompts[0].num_ids == 3 && r.embeds != NULL);
    msgl__gen_request_free(&r);
    assert_int_equal(parse_rows("{\"input_embeds\":[[[1,2]],[[3,4]]],\"return_logprob\":true,"
                                "\"token_ids_logprob\":[[5],null]}",
                                &r, &e),
                     0);
    assert_true(r.num_prompts == 2 && r.prompts[1].num_ids == 1 && r.listed != NULL && !r.hidden);
    msgl__gen_request_free(&r);
    // Hidden states come with rows of log-probabilities, whether these are shown or not. Lists of
    // one value for each prompt are that value.
    assert_int_equal(
        parse_rows("{\"input_ids\":[[1],[2]],\"return_hidden_states\":[true,true],"
                   "\"sampling_params\":[{\"max_new_tokens\":3},{\"max_new_tokens\":3}],"
                   "\"token_ids_logprob\":[7]}",
                   &r, &e),
        0);
    assert_true(r.hidden && r.hidden_size == 2 && r.max_tokens == 3 && r.listed == NULL);
    assert_true(r.sampling.logprobs == 0 && r.sampling.prompt_logprobs == 0 && r.form == NULL);
    msgl__gen_request_free(&r);
    static const char *const bad[][2] = {
        {"{\"input_embeds\":[]}", "input_embeds"},
        {"{\"input_embeds\":7}", "input_embeds"},
        {"{\"input_embeds\":[1,2]}", "input_embeds"},
        {"{\"input_embeds\":[[1,2,3]]}", "input_embeds"},
        {"{\"input_embeds\":[[1,\"2\"]]}", "input_embeds"},
        {"{\"input_embeds\":[[1,1e39]]}", "input_embeds"},
        {"{\"input_embeds\":[[1,2],[1]]}", "input_embeds"},
        {"{\"input_embeds\":[[[1,2]],[]]}", "input_embeds"},
        {"{\"input_embeds\":[[[1,2]],5]}", "input_embeds"},
        {"{\"input_embeds\":[[1,2]],\"input_ids\":[1]}", "input_embeds"},
        {"{\"input_ids\":[[1],[2]],\"top_logprobs_num\":[1,2]}", "top_logprobs_num"},
        {"{\"input_ids\":[[1],[2]],\"return_logprob\":[true]}", "return_logprob"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse_rows(bad[i][0], &r, &e) == 0) fail_msg("%s: taken", bad[i][0]);
        if (e.status != 400 || strcmp(e.param, bad[i][1]) != 0) {
            fail_msg("%s: %d %s: %s", bad[i][0], e.status, e.param, e.message);
        }
    }
}

// Its answers: an object per prompt and choice, a list where there are several; streamed, each
// event has the text so far.
static void test_sglang_answers(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    const int fd = client_open(&s);
    client_post(fd, "/generate",
                "{\"text\":\"x\",\"sampling_params\":{\"max_new_tokens\":2,\"temperature\":0}}");
    msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    assert_int_equal(m.u.request.sampling.max_tokens, 2);
    assert_true(m.u.request.sampling.temperature == 0);
    engine_text(&s, m.u.request.uid, "a");
    engine_token(&s, m.u.request.uid, 'b', MSGL_FINISH_LENGTH);
    response r = client_read(fd);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "{\"text\":\"ab\",\"meta_info\":{\"id\":\"cmpl-"));
    assert_non_null(strstr(r.body,
                           "\"prompt_tokens\":1,\"completion_tokens\":2,\"cached_tokens\":2,"
                           "\"finish_reason\":{\"type\":\"length\",\"length\":2},"));
    assert_non_null(strstr(r.body, "\"weight_version\":\"default\"},\"output_ids\":[97,98],"));
    assert_int_equal(r.body[0], '{');
    response_free(&r);
    client_post(fd, "/generate",
                "{\"text\":[\"x\",\"y\"],\"sampling_params\":{\"n\":2,\"max_new_tokens\":1}}");
    for (int i = 0; i < 4; i++) {
        m = engine_expect(&s, MSGL_MSG_REQUEST);
        assert_int_equal(m.u.request.ids[0], i < 2 ? 'x' : 'y');
        engine_token(&s, m.u.request.uid, 'a' + i, MSGL_FINISH_STOP + (i > 0));
    }
    r = client_read(fd);
    assert_int_equal(r.body[0], '[');
    assert_int_equal(r.body[r.len - 1], ']');
    assert_non_null(strstr(r.body, "\"finish_reason\":{\"type\":\"stop\",\"matched\":97},"));
    assert_non_null(strstr(r.body, "\"output_ids\":[97],\"index\":0},{\"text\":\"b\""));
    assert_non_null(strstr(r.body, "{\"text\":\"d\""));
    response_free(&r);
    client_post(fd, "/generate",
                "{\"text\":\"x\",\"stream\":true,\"sampling_params\":{\"max_new_tokens\":3}}");
    m = engine_expect(&s, MSGL_MSG_REQUEST);
    msgl_strbuf seen;
    msgl__strbuf_init(&seen, 1 << 16);
    engine_text(&s, m.u.request.uid, "a");
    client_read_until(fd, &seen, "data: {\"text\":\"a\",\"meta_info\"");
    engine_text(&s, m.u.request.uid, "b");
    client_read_until(fd, &seen, "data: {\"text\":\"ab\",\"meta_info\"");
    engine_token(&s, m.u.request.uid, 'c', MSGL_FINISH_LENGTH);
    client_read_until(fd, &seen, "data: {\"text\":\"abc\",\"meta_info\"");
    client_read_until(fd, &seen, "\"output_ids\":[97,98,99],\"index\":0}\n\ndata: [DONE]\n\n");
    msgl__strbuf_free(&seen);
    close(fd);
    server_close(&s);
}

// The end of a prompt is what the engine gets.
// What the engine gets as the salt of a request with this key and these fields.
static uint64_t salt_of(server_fixture *s, const char *key, const char *path, const char *body)
{
    const int fd = client_open(s);
    char text[400];
    (void)snprintf(text, sizeof text,
                   "POST %s HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: %s\r\n"
                   "Content-Length: %zu\r\n\r\n%s",
                   path, key, strlen(body), body);
    client_send(fd, text);
    const uint64_t salt = engine_expect(s, MSGL_MSG_REQUEST).u.request.cache_salt;
    close(fd);
    (void)engine_expect(s, MSGL_MSG_ABORT);
    return salt;
}

// cache_salt reaches the engine as a number, from each endpoint; with --cache-salt-by-key the key
// is part of it.
static void test_salts(void **state)
{
    (void)state;
    static const struct {
        const char *path, *body;
    } all[] = {
        {"/v1/completions", "{\"prompt\":\"x\",\"cache_salt\":\"a\"}"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"cache_salt\":\"a\"}"},
        {"/generate", "{\"prompt\":\"x\",\"cache_salt\":\"a\"}"},
        {"/generate", "{\"text\":\"x\",\"sampling_params\":{},\"cache_salt\":\"a\"}"},
        {"/v1/messages", "{\"max_tokens\":5,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
                         "\"cache_salt\":\"a\"}"},
        {"/v1/responses", "{\"input\":\"x\",\"cache_salt\":\"a\"}"},
    };
    static const char path[] = "/v1/completions", none[] = "{\"prompt\":\"x\"}",
                      b[] = "{\"prompt\":\"x\",\"cache_salt\":\"b\"}";
    msgl_front_config cfg = msgl__front_config_default();
    assert_int_equal(msgl__keys_add(&cfg.guard.keys, "1", 1, NULL), 0);
    assert_int_equal(msgl__keys_add(&cfg.guard.keys, "2", 1, NULL), 0);
    for (int by_key = 0; by_key < 2; by_key++) {
        cfg.salt_by_key = by_key;
        server_fixture s;
        server_open(&s, &cfg, true);
        const uint64_t a = salt_of(&s, "1", all[0].path, all[0].body);
        assert_true(a != 0);
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            assert_true(salt_of(&s, "1", all[i].path, all[i].body) == a);
            assert_true((salt_of(&s, "2", all[i].path, all[i].body) == a) == !by_key);
        }
        assert_true(salt_of(&s, "1", path, b) != a && salt_of(&s, "1", path, b) != 0);
        const uint64_t own = salt_of(&s, "1", path, none), other = salt_of(&s, "2", path, none);
        assert_true(by_key ? own != 0 && own != a && own != other : own == 0 && other == 0);
        server_close(&s);
    }
    msgl__keys_free(&cfg.guard.keys);
    const msgl_api_config api = {.model_name = "m", .model_path = "m", .vocab_size = 99};
    char longest[1100], body[1200];
    memset(longest, 'x', sizeof longest);
    longest[1025] = '\0';
    (void)snprintf(body, sizeof body, "{\"prompt\":\"x\",\"cache_salt\":\"%s\"}", longest);
    const char *const bad[] = {"{\"prompt\":\"x\",\"cache_salt\":\"\"}",
                               "{\"prompt\":\"x\",\"cache_salt\":5}", body};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        msgl_gen_request req;
        msgl_api_error e;
        assert_int_equal(msgl__api_parse(&msgl__endpoint_completion, bad[i], strlen(bad[i]), &api,
                                         NULL, &req, &e),
                         MSGL_EINVAL);
        assert_string_equal(e.param, "cache_salt");
    }
}

static void test_truncate(void **state)
{
    static const struct {
        const char *fields;
        int first, num; // of "abcdef"
    } cases[] = {
        {"\"truncate_prompt_tokens\":2", 4, 2},          {"\"truncate_prompt_tokens\":6", 0, 6},
        {"\"truncate_prompt_tokens\":2000000000", 0, 6}, {"\"truncate_prompt_tokens\":-1", 0, 6},
        {"\"truncate_prompt_tokens\":null", 0, 6},
    };
    static const char *const bad[] = {"0", "-2", "1.5", "\"1\"", "1,\"echo\":true"};
    server_fixture s;
    char body[128];
    (void)state;
    server_open(&s, NULL, true);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        (void)snprintf(body, sizeof body, "{\"prompt\":\"abcdef\",%s}", cases[i].fields);
        const int fd = client_open(&s);
        client_post(fd, "/v1/completions", body);
        const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
        assert_int_equal(m.u.request.num_ids, cases[i].num);
        assert_int_equal(m.u.request.ids[0], 'a' + cases[i].first);
        assert_int_equal(m.u.request.ids[cases[i].num - 1], 'f');
        engine_token(&s, m.u.request.uid, ID_EOS, MSGL_FINISH_STOP);
        expect_status(client_read(fd), 200);
    }
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        (void)snprintf(body, sizeof body, "{\"prompt\":\"a\",\"truncate_prompt_tokens\":%s}",
                       bad[i]);
        response r = client_request(&s, "POST", "/v1/completions", body);
        assert_non_null(strstr(r.body, "'truncate_prompt_tokens'"));
        expect_error(&r, 400, NULL);
    }
    // More than the context has: the last of it.
    static char longer[2 * CONTEXT];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 2] = 'y';
    static char all[2 * CONTEXT + 128];
    (void)snprintf(all, sizeof all, "{\"prompt\":\"%s\",\"truncate_prompt_tokens\":-1}", longer);
    const int fd = client_open(&s);
    client_post(fd, "/v1/completions", all);
    const msgl_msg m = engine_expect(&s, MSGL_MSG_REQUEST);
    assert_int_equal(m.u.request.num_ids, CONTEXT - 1);
    assert_int_equal(m.u.request.ids[CONTEXT - 2], 'y');
    engine_token(&s, m.u.request.uid, ID_EOS, MSGL_FINISH_STOP);
    expect_status(client_read(fd), 200);
    server_close(&s);
}

// --- what docs/http.md says of fields is so ---

// Of another type than the row's.
static const char *wrong_type(const msgl_field_row *row)
{
    switch (row->type) {
    case MSGL_FIELD_BOOL:
    case MSGL_FIELD_INT:
    case MSGL_FIELD_REAL:
    case MSGL_FIELD_SETTING: return "\"x\"";
    case MSGL_FIELD_STRINGS:
    case MSGL_FIELD_IDS: return "[[]]";
    case MSGL_FIELD_STRING:
    case MSGL_FIELD_ARRAY:
    case MSGL_FIELD_OBJECT: return "7";
    case MSGL_FIELD_ANY: break;
    }
    return NULL;
}

// The example with `name` (in f's member) as `value` of JSON; NULL: without it. What the error says
// is wrong, or NULL.
static const char *error_with(const msgl_endpoint *ep, const msgl_example *x, const msgl_fields *f,
                              const char *name, const char *value, char param[96])
{
    msgl_gen_request r;
    msgl_api_error e;
    json_t *o = json_loads(x->body, 0, NULL);
    assert_non_null(o);
    if (f->member != NULL && json_object_get(o, f->member) == NULL) {
        json_object_set_new(o, f->member, json_object());
    }
    json_t *in = f->member == NULL ? o : json_object_get(o, f->member);
    if (value == NULL) json_object_del(in, name);
    if (value != NULL) json_object_set_new(in, name, json_loads(value, JSON_DECODE_ANY, NULL));
    char *body = json_dumps(o, 0);
    const int rc = parse(ep, false, body, &r, &e);
    msgl__free(body);
    json_decref(o);
    if (rc == 0) {
        msgl__gen_request_free(&r);
        return NULL;
    }
    (void)snprintf(param, 96, "%s %d", e.param, e.status);
    return param;
}

static void expect_wrong(const msgl_endpoint *ep, const msgl_example *x, const msgl_fields *f,
                         const char *name, const char *value)
{
    char param[96];
    const char *at = error_with(ep, x, f, name, value, param);
    if (at == NULL || strstr(at, name) == NULL || strstr(at, " 400") == NULL) {
        fail_msg("%s: %s = %s: %s", ep->path, name, value == NULL ? "" : value,
                 at == NULL ? "taken" : at);
    }
}

static void check_row(const msgl_endpoint *ep, const msgl_example *x, const msgl_fields *f,
                      const msgl_field_row *row)
{
    char value[64], param[96];
    // A prompt may have another form than the example has.
    const bool given = strstr(x->body, row->name) != NULL;
    if (row->required && given) {
        assert_non_null(error_with(ep, x, f, row->name, NULL, param));
    }
    if (row->only != NULL) expect_wrong(ep, x, f, row->name, "true");
    const char *wrong = wrong_type(row);
    if (wrong == NULL) return;
    expect_wrong(ep, x, f, row->name, wrong);
    const msgl_setting *s = msgl__field_setting(row);
    assert_true(row->type != MSGL_FIELD_SETTING || s != NULL);
    const double min = s != NULL ? s->min : (double)row->min;
    const double max = s != NULL ? s->max : (double)row->max;
    if (max != min) { // the setting is a number, or there are limits
        (void)snprintf(value, sizeof value, "%.0f", floor(min) - 1);
        expect_wrong(ep, x, f, row->name, value);
        (void)snprintf(value, sizeof value, "%.0f", max + 1);
        expect_wrong(ep, x, f, row->name, value);
    }
    if (row->type == MSGL_FIELD_BOOL) { // of the right type
        const char *at = error_with(ep, x, f, row->name, "false", param);
        if (at != NULL) fail_msg("%s: %s: %s", ep->path, row->name, at);
    }
}

static void test_rows(void **state)
{
    (void)state;
    const msgl_endpoint *ep;
    int rows = 0;
    for (int i = 0; (ep = msgl__endpoints[i]) != NULL; i++) {
        if (ep->parse == NULL) continue;
        const msgl_example *x = ep->examples;
        for (const msgl_fields *const *o = ep->objects; *o != NULL; o++) {
            for (const msgl_fields *f = *o; f != NULL; f = f->also) {
                msgl_fields in = *f;
                in.member = (*o)->member;
                const msgl_example *use = x; // /tokenize reads these of a conversation only
                while ((f->read == msgl__conversation_fields.read ||
                        f->read == msgl__token_score_fields.read) &&
                       use[1].help != NULL) {
                    use++;
                }
                for (const msgl_field_row *row = f->read; row->name != NULL; row++, rows++) {
                    check_row(ep, use, &in, row);
                }
            }
            if (o[1] != NULL && o[1]->member == NULL) x++; // an example for each form of a request
        }
    }
    assert_true(rows > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_near_misses),
        cmocka_unit_test(test_foreign_names),
        cmocka_unit_test(test_other_conventions),
        cmocka_unit_test(test_far_names),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_own_names),
        cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_samplers),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_sglang_fields),
        cmocka_unit_test(test_sglang_rows),
        cmocka_unit_test(test_sglang_adapters),
        cmocka_unit_test(test_sglang_answers),
        cmocka_unit_test(test_salts),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
