// SPDX-License-Identifier: Apache-2.0
//
// The memory that request bodies take: trees, and forms that are compiled.
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

// What is claimed for a tree is what jansson takes for it, or somewhat more. Sanitizers replace the
// heap: there is nothing to compare then.
static void test_tree_memory(void **state)
{
    (void)state;
    static const struct {
        const char *item;
        int count;
    } shapes[] = {
        {"{}", 20000},
        {"[]", 20000},
        {"1", 20000},
        {"1.5", 20000},
        {"\"\"", 20000},
        {"\"abcdefghijklmnopqrstuvwxyz0123456789\"", 20000},
        {"{\"a\":1}", 20000},
        {"{\"a\":\"b\",\"c\":[{\"d\":null}]}", 20000},
        {"[[[[[]]]]]", 20000},
        {"{\"a\":{\"b\":{\"c\":{}}}}", 20000},
        {"{\"a\":\"\"}", 20000},
    };
    for (size_t i = 0; i <= sizeof shapes / sizeof shapes[0]; i++) {
        msgl_strbuf b;
        msgl__strbuf_init(&b, 16 << 20);
        msgl__strbuf_adds(&b, "{\"prompt\":\"x\",\"user\":");
        if (i == sizeof shapes / sizeof shapes[0]) { // one object of many members
            for (int k = 0; k < 20000; k++) msgl__strbuf_addf(&b, "%s\"%d\":1", k ? "," : "{", k);
            msgl__strbuf_adds(&b, "}}");
        } else {
            for (int k = 0; k < shapes[i].count; k++) {
                msgl__strbuf_addf(&b, "%s%s", k ? "," : "[", shapes[i].item);
            }
            msgl__strbuf_adds(&b, "]}");
        }
        msgl_budget budget;
        msgl__budget_init(&budget, (size_t)1 << 30);
        msgl_claim claim = {.budget = &budget};
        msgl_gen_request r;
        msgl_api_error e;
        const msgl_api_config c = config();
        const size_t before = mallinfo2().uordblks;
        assert_int_equal(
            msgl__api_parse(&msgl__endpoint_completion, b.data, b.len, &c, &claim, &r, &e), 0);
        const size_t taken = mallinfo2().uordblks - before;
        assert_int_equal(claim.bytes, atomic_load(&budget.used));
        if (taken > claim.bytes || (taken > 0 && claim.bytes > 4 * taken)) {
            fail_msg("%.60s: %zu bytes taken, %zu claimed", b.data, taken, claim.bytes);
        }
        assert_int_equal(msgl__gen_request_detach(&r), 0);
        assert_null(r.root);
        msgl__gen_request_free(&r);
        msgl__claim_free(&claim);
        msgl__strbuf_free(&b);
    }
}

// Values are counted over the body and the JSON texts in it; memory is refused before it is taken.
static void test_tree_limits(void **state)
{
    (void)state;
    msgl_strbuf b;
    msgl__strbuf_init(&b, 16 << 20);
    msgl__strbuf_adds(&b, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[");
    for (int call = 0; call < 3; call++) {
        msgl__strbuf_addf(&b, "%s{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[0",
                          call ? "," : "");
        for (int i = 0; i < 700000; i++) msgl__strbuf_adds(&b, ",1");
        msgl__strbuf_adds(&b, "]}\"}}");
    }
    msgl__strbuf_adds(&b, "]}]}");
    refused(&msgl__endpoint_chat, b.data, 413, NULL); // 2.1 million in three strings
    // With a budget: more than a quarter of it is too much for one request, what others hold is too
    // much for now; nothing is built, nothing stays claimed but what the caller had.
    const msgl_api_config c = config();
    for (int busy = 0; busy < 2; busy++) {
        msgl_budget budget;
        msgl__budget_init(&budget, busy ? 40 << 20 : 6 << 20);
        msgl_claim claim = {.budget = &budget}, other = {.budget = &budget};
        if (busy) msgl__claim_count(&other, 29 << 20);
        msgl__strbuf_clear(&b);
        msgl__strbuf_adds(&b, "{\"prompt\":\"x\",\"user\":[0");
        for (int i = 0; i < 20000; i++) msgl__strbuf_adds(&b, ",1");
        msgl__strbuf_adds(&b, "]}");
        msgl_gen_request r;
        msgl_api_error e;
        const uint64_t allocs = msgl__mem_allocs();
        assert_int_equal(
            msgl__api_parse(&msgl__endpoint_completion, b.data, b.len, &c, &claim, &r, &e),
            MSGL_EINVAL);
        assert_int_equal(e.status, busy ? 429 : 413);
        assert_true(msgl__mem_allocs() - allocs < 4);
        assert_int_equal(claim.bytes, 0);
        msgl__claim_free(&other);
    }
    msgl__strbuf_free(&b);
}

// What compiling a form may take is claimed before, and given back; a form that is deferred costs
// nothing yet.
static void test_form_memory(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "{\"prompt\":\"x\",\"regex\":\"[a-z]{1,8}\"}",
        "{\"prompt\":\"x\",\"guided_json\":{\"type\":\"integer\",\"maximum\":18446744073709551615}"
        "}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        for (int busy = 0; busy < 2; busy++) {
            // A body of 100 bytes fits in both cases, an eighth of the budget in one.
            msgl_budget budget;
            msgl__budget_init(&budget, 64 << 20);
            msgl_claim claim = {.budget = &budget}, other = {.budget = &budget};
            msgl__claim_count(&other, busy ? 44 << 20 : 16 << 20);
            msgl_gen_request r;
            msgl_api_error e;
            msgl_api_config c = config();
            c.defer_forms = true;
            const size_t len = strlen(bodies[i]);
            assert_int_equal(
                msgl__api_parse(&msgl__endpoint_completion, bodies[i], len, &c, &claim, &r, &e),
                MSGL_API_FORM);
            assert_null(r.root);
            msgl__claim_free(&claim);
            c.defer_forms = false;
            const int rc =
                msgl__api_parse(&msgl__endpoint_completion, bodies[i], len, &c, &claim, &r, &e);
            assert_int_equal(rc, busy ? MSGL_EINVAL : 0);
            if (busy) assert_int_equal(e.status, 429);
            assert_true(claim.bytes < 64 * 1024);
            msgl__gen_request_free(&r);
            msgl__claim_free(&claim);
            msgl__claim_free(&other);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_memory),
        cmocka_unit_test(test_tree_limits),
        cmocka_unit_test(test_form_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
