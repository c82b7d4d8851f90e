// SPDX-License-Identifier: Apache-2.0
//
// Base URLs as people give them: what answers by another path, what does not, and which path a 404
// names.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "front/paths.h"
#include "program/endpoints.h"

static void test_other(void **state)
{
    static const char *const cases[][2] = {
        {"/chat/completions", "/v1/chat/completions"},
        {"/v1/chat/completions/", "/v1/chat/completions"},
        {"//v1/chat/completions", "/v1/chat/completions"},
        {"/v1//chat///completions//", "/v1/chat/completions"},
        {"/v1/v1/chat/completions", "/v1/chat/completions"},
        {"/v1/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"},
        {"/openai/deployments/demo/chat/completions", "/v1/chat/completions"},
        {"/openai/v1/responses", "/v1/responses"},
        {"/embeddings", "/v1/embeddings"},
        {"/models", "/v1/models"},
        {"/v1/models/", "/v1/models"},
        {"/models/demo", "/v1/models/demo"},
        // What a proxy may keep clients from has one name.
        {"//metrics", NULL},
        {"/v1/metrics", NULL},
        {"/metrics/", NULL},
        {"/flush_cache/", NULL},
        {"//v1/files", NULL},
        {"/openai/deployments/demo", NULL},
        {"/openai/deployments/demo/", NULL},
        {"/nowhere", NULL},
        {"*", NULL},
        {"/v1/v1", NULL},
    };
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        char out[MSGL_PATH_MAX];
        const char *path = cases[i][0];
        assert_int_equal(msgl__path_place(msgl__endpoints, path, strlen(path)), -1);
        const int place = msgl__path_other(msgl__endpoints, path, strlen(path), out);
        if (place < 0 && cases[i][1] == NULL) continue;
        if (place < 0 || cases[i][1] == NULL) fail_msg("%s: %d", path, place);
        assert_string_equal(out, cases[i][1]);
        assert_int_equal(place, msgl__path_place(msgl__endpoints, out, strlen(out)));
    }
}

// As long as can be looked at, and longer.
static void test_long(void **state)
{
    char path[2 * MSGL_PATH_MAX], out[MSGL_PATH_MAX];
    (void)state;
    for (size_t n = 1; n < sizeof path; n++) {
        memset(path, '/', n);
        path[n] = '\0';
        assert_int_equal(msgl__path_other(msgl__endpoints, path, n, out), -1);
        (void)msgl__path_nearest(msgl__endpoints, path);
        memset(path + 1, 'a', n - 1);
        assert_int_equal(msgl__path_other(msgl__endpoints, path, n, out), -1);
    }
}

static void test_nearest(void **state)
{
    static const char *const cases[][2] = {
        {"/v1/chat/completion", "/v1/chat/completions"},
        {"/v1/chat/complete", "/v1/chat/completions"},
        {"/v1/response", "/v1/responses"},
        {"/metrics/", "/metrics"},
        {"/v1/metrics", "/metrics"},
        {"/v1/tokenise", "/tokenize"},
        {"/nowhere", NULL},
        {"/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", NULL},
    };
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        const char *near = msgl__path_nearest(msgl__endpoints, cases[i][0]);
        if (near == NULL && cases[i][1] == NULL) continue;
        if (near == NULL || cases[i][1] == NULL) fail_msg("%s", cases[i][0]);
        assert_string_equal(near, cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
