// SPDX-License-Identifier: Apache-2.0
//
// Where a download's redirects may lead and which hosts see the token, with a scripted libcurl in
// place of the real one: hosts by name, and https.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "apps/hub/fetch.h"
#include "http/curl.h"

#undef curl_easy_setopt // checks types, as a macro
#undef curl_easy_getinfo

enum { MOST = 4 };

// The hub answers the first request with a redirect to `next`, whoever is there all others with
// 200.
static struct {
    const char *next;
    const char *url; // of the request that is set up
    const struct curl_slist *headers;
    int requests;
    char seen[MOST][128]; // the urls
    bool token[MOST];     // and which of them came with it
} script;

static CURLcode fake_init(long flags)
{
    (void)flags;
    return CURLE_OK;
}

static CURL *fake_easy_init(void)
{
    return &script;
}

static void fake_reset(CURL *easy)
{
    (void)easy;
    script.url = NULL;
    script.headers = NULL;
}

static void fake_cleanup(CURL *easy)
{
    (void)easy;
}

static CURLcode fake_setopt(CURL *easy, CURLoption option, ...)
{
    va_list ap;
    (void)easy;
    va_start(ap, option);
    if (option == CURLOPT_URL) script.url = va_arg(ap, const char *);
    if (option == CURLOPT_HTTPHEADER) script.headers = va_arg(ap, const struct curl_slist *);
    va_end(ap);
    return CURLE_OK;
}

static CURLcode fake_getinfo(CURL *easy, CURLINFO info, ...)
{
    va_list ap;
    (void)easy;
    va_start(ap, info);
    if (info == CURLINFO_RESPONSE_CODE) *va_arg(ap, long *) = script.requests == 1 ? 302 : 200;
    if (info == CURLINFO_REDIRECT_URL) *va_arg(ap, const char **) = script.next;
    va_end(ap);
    return CURLE_OK;
}

static CURLcode fake_perform(CURL *easy)
{
    (void)easy;
    assert_true(script.requests < MOST);
    snprintf(script.seen[script.requests], sizeof script.seen[0], "%s", script.url);
    script.token[script.requests++] = script.headers != NULL;
    return CURLE_OK;
}

static const char *fake_strerror(CURLcode code)
{
    return code == CURLE_URL_MALFORMAT ? "no such redirect" : "?";
}

static struct curl_slist *fake_append(struct curl_slist *list, const char *line)
{
    static struct curl_slist one;
    (void)list;
    assert_non_null(strstr(line, "secret"));
    return &one;
}

static void fake_free_all(struct curl_slist *list)
{
    (void)list;
}

// In place of that of src/http/curl.c.
int msgl__curl_open(const char *what, const msgl_curl **out, msgl_err *err)
{
    static const msgl_curl table = {.global_init = fake_init,
                                    .init = fake_easy_init,
                                    .reset = fake_reset,
                                    .cleanup = fake_cleanup,
                                    .setopt = fake_setopt,
                                    .getinfo = fake_getinfo,
                                    .perform = fake_perform,
                                    .strerror = fake_strerror,
                                    .append = fake_append,
                                    .free_all = fake_free_all};
    (void)what;
    (void)err;
    *out = &table;
    return 0;
}

// Asks the endpoint for /a, which leads to `next`. Returns the status of the whole.
static int follow(const char *endpoint, const char *next)
{
    static const volatile sig_atomic_t never = 0;
    msgl_err err = {0};
    msgl_fetch *f;
    msgl_strbuf out;
    char url[256];
    const msgl_fetch_config cfg = {.kind = &msgl__hub_huggingface,
                                   .endpoint = endpoint,
                                   .token = "secret",
                                   .interrupted = &never};
    memset(&script, 0, sizeof script);
    script.next = next;
    snprintf(url, sizeof url, "%s/a", endpoint);
    msgl__strbuf_init(&out, 1000);
    assert_int_equal(msgl__fetch_open(&cfg, &f, &err), 0);
    const int rc = msgl__fetch_text(f, url, "a", &out, &err);
    msgl__fetch_close(f);
    msgl__strbuf_free(&out);
    if (rc != 0) assert_non_null(strstr(err.text, "no such redirect"));
    assert_string_equal(script.seen[0], url);
    assert_true(script.token[0]);
    return rc;
}

// Only the hub's own scheme, host and port see the token: none that begins like them.
static void test_token(void **state)
{
    (void)state;
    static const struct {
        const char *endpoint, *next;
        bool token;
    } cases[] = {
        {"https://huggingface.co", "https://huggingface.co/b", true},
        {"https://huggingface.co", "https://huggingface.co?b", true},
        {"https://huggingface.co", "https://huggingface.co", true},
        {"https://huggingface.co/mirror", "https://huggingface.co/b", true},
        {"https://huggingface.co", "https://huggingface.co.example/b", false},
        {"https://huggingface.co", "https://huggingface.company/b", false},
        {"https://huggingface.co", "https://huggingface.co:8443/b", false},
        {"https://huggingface.co", "https://huggingface.co@example.org/b", false},
        {"https://huggingface.co", "https://cdn.huggingface.co/b", false},
        {"https://huggingface.co:444", "https://huggingface.co:4443/b", false},
        {"http://127.0.0.1:80", "http://127.0.0.1:8080/b", false},
        {"http://huggingface.co", "https://huggingface.co/b", false},
    };
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        assert_int_equal(follow(cases[i].endpoint, cases[i].next), 0);
        assert_int_equal(script.requests, 2);
        assert_string_equal(script.seen[1], cases[i].next);
        if (script.token[1] != cases[i].token) fail_msg("%s: the token", cases[i].next);
    }
}

// From https a redirect leads to https alone: to the same host or another.
static void test_downgrade(void **state)
{
    (void)state;
    static const char *const BAD[] = {"http://huggingface.co/b", "http://cdn.example/b",
                                      "HTTP://cdn.example/b", "httpsx://cdn.example/b"};
    for (size_t i = 0; i < MSGL_COUNT(BAD); i++) {
        assert_true(follow("https://huggingface.co", BAD[i]) < 0);
        assert_int_equal(script.requests, 1);
    }
    assert_int_equal(follow("https://huggingface.co", "https://cdn.example/b"), 0);
    assert_int_equal(follow("http://127.0.0.1:8000", "http://127.0.0.1:8001/b"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token),
        cmocka_unit_test(test_downgrade),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
