// SPDX-License-Identifier: Apache-2.0
//
// /tokenize, /detokenize and /apply-template in the forms of vLLM, SGLang and llama-server, to the
// byte: of a tokenizer whose ids are bytes. The engine hears of none.
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "server/fixture.h"

typedef struct question {
    const char *path, *body;
    int status;
    const char *answer; // all of it, or, of an error, its code
} question;

static const question questions[] = {
    {"/tokenize", "{\"prompt\":\"Hi\"}", 200,
     "{\"tokens\":[72,105],\"count\":2,\"max_model_len\":4096}"},
    {"/tokenize", "{\"model\":\"test-model\",\"prompt\":\"\"}", 200,
     "{\"tokens\":[],\"count\":0,\"max_model_len\":4096}"},
    {"/tokenize", "{\"prompt\":[\"Hi\",\"\"]}", 200,
     "{\"tokens\":[[72,105],[]],\"count\":[2,0],\"max_model_len\":4096}"},
    {"/tokenize", "{\"prompt\":[\"Hi\"]}", 200,
     "{\"tokens\":[[72,105]],\"count\":[2],\"max_model_len\":4096}"},
    {"/tokenize", "{\"content\":\"a<|im_end|>\"}", 200,
     "{\"tokens\":[97,257],\"count\":2,\"max_model_len\":4096}"},
    {"/tokenize", "{\"content\":\"<|im_end|>\",\"parse_special\":false}", 200,
     "{\"tokens\":[60,124,105,109,95,101,110,100,124,62],\"count\":10,\"max_model_len\":4096}"},
    {"/tokenize", "{\"content\":\"a\\u00e9\",\"with_pieces\":true}", 200,
     "{\"tokens\":[{\"id\":97,\"piece\":\"a\"},{\"id\":195,\"piece\":[195]},"
     "{\"id\":169,\"piece\":[169]}],\"count\":3,\"max_model_len\":4096}"},
    {"/tokenize", "{}", 400, "missing_required_parameter"},
    {"/tokenize", "{\"prompt\":[]}", 400, "invalid_value"},
    {"/tokenize", "{\"prompt\":[1,2]}", 400, "invalid_type"},
    {"/tokenize", "{\"prompt\":\"a\",\"messages\":[]}", 400, "invalid_value"},
    {"/tokenize", "{\"prompt\":\"a\",\"add_special_token\":true}", 400, "unknown_parameter"},
    {"/tokenize", "{\"prompt\":\"a\",\"return_token_strs\":true}", 400, "unsupported_parameter"},
    {"/tokenize", "{\"messages\":[]}", 400, "invalid_value"},
    {"/tokenize", "{\"messages\":[{\"role\":\"nobody\",\"content\":\"\"}]}", 400, "invalid_value"},
    {"/detokenize", "{\"tokens\":[72,105,257]}", 200,
     "{\"prompt\":\"Hi<|im_end|>\",\"content\":\"Hi<|im_end|>\",\"text\":\"Hi<|im_end|>\"}"},
    {"/detokenize", "{\"tokens\":[72,105,257],\"skip_special_tokens\":true}", 200,
     "{\"prompt\":\"Hi\",\"content\":\"Hi\",\"text\":\"Hi\"}"},
    {"/detokenize", "{\"tokens\":[[72],[105]]}", 200,
     "{\"prompt\":[\"H\",\"i\"],\"content\":[\"H\",\"i\"],\"text\":[\"H\",\"i\"]}"},
    {"/detokenize", "{\"tokens\":[]}", 200, "{\"prompt\":\"\",\"content\":\"\",\"text\":\"\"}"},
    {"/detokenize", "{\"tokens\":[195]}", 200,
     "{\"prompt\":\"\xef\xbf\xbd\",\"content\":\"\xef\xbf\xbd\",\"text\":\"\xef\xbf\xbd\"}"},
    {"/detokenize", "{}", 400, "missing_required_parameter"},
    {"/detokenize", "{\"tokens\":\"Hi\"}", 400, "invalid_type"},
    {"/detokenize", "{\"tokens\":[259]}", 400, "invalid_value"},
    {"/detokenize", "{\"tokens\":[-1]}", 400, "invalid_value"},
    {"/detokenize", "{\"tokens\":[[1],2]}", 400, "invalid_type"},
    {"/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}]}", 200,
     "{\"prompt\":\"<|im_start|>user\\n<|im_end|><|im_end|>\\n<|im_start|>assistant\\n\"}"},
    {"/apply-template",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\" "
     "so \"}],"
     "\"continue_final_message\":true}",
     200, "{\"prompt\":\"<|im_start|>user\\nq<|im_end|>\\n<|im_start|>assistant\\n so \"}"},
    {"/apply-template",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":"
     "\"so\"}],"
     "\"continue_final_message\":true,\"add_generation_prompt\":true}",
     400, "invalid_value"},
    {"/apply-template",
     "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"continue_final_message\":true}", 400,
     "invalid_value"},
    {"/apply-template",
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\" \"}],\"continue_final_message\":true}",
     200, "{\"prompt\":\"<|im_start|>assistant\\n \"}"},
    {"/apply-template",
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\"}],\"continue_final_message\":true}",
     200, "{\"prompt\":\"<|im_start|>assistant\\n\"}"},
    {"/tokenize",
     "{\"messages\":[{\"role\":\"assistant\",\"content\":\"Hi\"}],\"continue_final_message\":true}",
     200,
     "{\"tokens\":[256,97,115,115,105,115,116,97,110,116,10,72,105],\"count\":13,"
     "\"max_model_len\":4096}"},
    {"/apply-template", "{}", 400, "missing_required_parameter"},
    {"/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"tools\":{}}", 400,
     "invalid_type"},
};

static void test_answers(void **state)
{
    server_fixture s;
    (void)state;
    server_open(&s, NULL, true);
    for (size_t i = 0; i < MSGL_COUNT(questions); i++) {
        const question *q = &questions[i];
        response r = client_request(&s, "POST", q->path, q->body);
        print_message("%s %s: %s\n", q->path, q->body, r.body);
        if (q->status != 200) {
            expect_error(&r, q->status, q->answer);
            continue;
        }
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, q->answer);
        response_free(&r);
    }
    engine_expect_nothing(&s);
    server_close(&s);
}

// What a conversation is for /tokenize is what its template's text is: markers of the template are
// tokens, a client's are bytes.
static void test_conversation(void **state)
{
    server_fixture s;
    (void)state;
    server_open(&s, NULL, true);
    response r = client_request(&s, "POST", "/tokenize",
                                "{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}]}");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, "{\"tokens\":[256,117,115,101,114,10,60,124,105,"));
    assert_non_null(strstr(r.body, ",124,62,257,10,256,"));
    response_free(&r);
    r = client_request(&s, "GET", "/version", NULL);
    assert_string_equal(r.body, "{\"version\":\"" MSGL_VERSION "\"}");
    response_free(&r);
    expect_alive(&s);
    server_close(&s);
}

// More tokens than the context has are counted all the same.
static void test_long(void **state)
{
    enum { LEN = 3 * CONTEXT };
    static char body[LEN + 64];
    server_fixture s;
    (void)state;
    server_open(&s, NULL, true);
    strcpy(body, "{\"prompt\":\"");
    const size_t at = strlen(body);
    memset(body + at, 'a', LEN);
    strcpy(body + at + LEN, "\"}");
    response r = client_request(&s, "POST", "/tokenize", body);
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body, ",\"count\":12288,\"max_model_len\":4096}"));
    response_free(&r);
    server_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_conversation),
        cmocka_unit_test(test_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
