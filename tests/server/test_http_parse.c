// SPDX-License-Identifier: Apache-2.0
//
// The HTTP parser: the same requests whatever the cuts between reads, a status for every kind of
// malformed or oversized input, and no byte of one request taken for another.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/mem.h"
#include "http/http_parse.h"

// Feeds text in pieces of `step` bytes and describes what comes out: "method path keep body|..."
// or "!status|", "^|" for an interim answer.
static void transcript(const char *text, size_t len, size_t step, const msgl_http_limits *limits,
                       msgl_strbuf *out)
{
    msgl_http_parser p;
    msgl__http_parser_init(&p, limits);
    msgl__strbuf_clear(out);
    size_t at = 0;
    for (;;) {
        size_t n = len - at, used = 0;
        if (n > step) n = step;
        // An exact copy, so that a read past the piece is seen.
        char *piece = msgl__malloc(n);
        memcpy(piece, text + at, n);
        const msgl_http_event e = msgl__http_parse(&p, piece, n, &used);
        msgl__free(piece);
        assert_true(used <= n);
        at += used;
        if (e == MSGL_HTTP_CONTINUE) {
            msgl__strbuf_adds(out, "^|");
        } else if (e == MSGL_HTTP_DONE) {
            msgl__strbuf_addf(out, "%d %s %d ", p.method, msgl__strbuf_str(&p.path), p.keep_alive);
            msgl__strbuf_add(out, msgl__strbuf_str(&p.body), p.body.len);
            msgl__strbuf_addc(out, '|');
            msgl__http_parser_reset(&p);
        } else if (e == MSGL_HTTP_BAD) {
            assert_non_null(p.reason);
            msgl__strbuf_addf(out, "!%d|", p.status);
            break;
        } else {
            assert_int_equal(used, n);
            if (at == len) break;
        }
    }
    if (msgl__http_parser_started(&p) && p.status == 0) msgl__strbuf_adds(out, "...");
    msgl__http_parser_free(&p);
}

static void check(const char *text, size_t len, const char *want)
{
    const msgl_http_limits limits = {
        .max_target = 64, .max_header_bytes = 512, .max_headers = 8, .max_body = 100};
    msgl_strbuf got;
    msgl__strbuf_init(&got, 1 << 16);
    for (size_t step = 1; step <= len; step = step < 40 ? step + 1 : len + (step >= len)) {
        transcript(text, len, step, &limits, &got);
        if (strcmp(msgl__strbuf_str(&got), want) != 0) {
            fail_msg("'%s' in pieces of %zu: '%s' instead of '%s'", text, step,
                     msgl__strbuf_str(&got), want);
        }
    }
    msgl__strbuf_free(&got);
}

#define H "Host: x\r\n"

static void test_good(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"GET / HTTP/1.1\r\n" H "\r\n", "1 / 1 |"},
        {"GET / HTTP/1.0\r\n\r\n", "1 / 0 |"},
        {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", "1 / 1 |"},
        {"GET /a?b=%zz HTTP/1.1\r\n" H "connection: x, close\r\n\r\n", "1 /a 0 |"},
        {"GET /%2e%2E/%41 HTTP/1.1\r\n" H "\r\n", "1 /../A 1 |"},
        {"GET http://h:80/p HTTP/1.1\r\n" H "\r\n", "1 /p 1 |"},
        {"GET http://h HTTP/1.1\r\n" H "\r\n", "1 / 1 |"},
        {"OPTIONS * HTTP/1.1\r\n" H "\r\n", "8 * 1 |"},
        {"DELETE /x HTTP/1.1\r\n" H "\r\n", "32 /x 1 |"},
        {"PUT /x HTTP/1.1\r\n" H "\r\n", "16 /x 1 |"},
        {"HEAD /x HTTP/1.1\r\nhOsT:\tx \t\r\n\r\n", "2 /x 1 |"},
        {"POST /x HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabcGET /y HTTP/1.1\r\n" H "\r\n",
         "4 /x 1 abc|1 /y 1 |"},
        {"POST /x HTTP/1.1\r\n" H "Content-Length: 3\r\ncontent-length: 3\r\n\r\nabc",
         "4 /x 1 abc|"},
        {"POST /x HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
         "1\r\na\r\n00B;ext=1\r\n0123456789\n\r\n0\r\nTrailer: y\r\n\r\nGET /z HTTP/1.1\r\n" H
         "\r\n",
         "4 /x 1 a0123456789\n|1 /z 1 |"},
        {"POST /x HTTP/1.1\r\n" H "Expect: 100-continue\r\nContent-Length: 2\r\n\r\nhi",
         "^|4 /x 1 hi|"},
        {"\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n\r\n", "1 / 1 |"},
        {"POST /x HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nab", "..."},
        {"GET / HT", "..."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check(cases[i][0], strlen(cases[i][0]), cases[i][1]);
    }
}

static void test_bad(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"GET / HTTP/1.1\r\n\r\n", "!400|"}, // no Host
        {"GET / HTTP/1.1\r\n" H H "\r\n", "!400|"},
        {"GET / HTTP/2.0\r\n" H "\r\n", "!505|"},
        {"GET / HTTP/1.2\r\n" H "\r\n", "!505|"},
        {"GET / http/1.1\r\n" H "\r\n", "!400|"},
        {"GET /\r\n" H "\r\n", "!400|"},
        {"GET  / HTTP/1.1\r\n" H "\r\n", "!400|"},
        {" GET / HTTP/1.1\r\n" H "\r\n", "!400|"},
        {"G\x01T / HTTP/1.1\r\n" H "\r\n", "!400|"},
        {"GET x HTTP/1.1\r\n" H "\r\n", "!400|"},
        {"GET * HTTP/1.1\r\n" H "\r\n", "!400|"},
        {"GET /%4 HTTP/1.1\r\n" H "\r\n", "!400|"},
        {"GET /%00 HTTP/1.1\r\n" H "\r\n", "!400|"},
        {"GET /\x7f HTTP/1.1\r\n" H "\r\n", "!400|"},
        {"GET / HTTP/1.1\n" H "\n\n\r\n\r\n", "!400|"},
        {"GET / HTTP/1.1\r\n" H "a: b\n\r\n\r\n", "!400|"},
        {"GET / HTTP/1.1\r\n" H "a: b\r\n folded\r\n\r\n", "!400|"},
        {"GET / HTTP/1.1\r\n" H "a : b\r\n\r\n", "!400|"},
        {"GET / HTTP/1.1\r\n" H ": b\r\n\r\n", "!400|"},
        {"GET / HTTP/1.1\r\n" H "nothing\r\n\r\n", "!400|"},
        {"GET / HTTP/1.1\r\n" H "a: \x02\r\n\r\n", "!400|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\n", "!400|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 1e3\r\n\r\n", "!400|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: +1\r\n\r\n", "!400|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 1, 1\r\n\r\n", "!400|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length:\r\n\r\n", "!400|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", "!400|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 101\r\n\r\n", "!413|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 9223372036854775808\r\n\r\n", "!413|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 18446744073709551617\r\n\r\n", "!413|"},
        {"POST / HTTP/1.1\r\n" H "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
         "!400|"},
        {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
         "!501|"},
        {"POST / HTTP/1.1\r\n" H "Transfer-Encoding: gzip, chunked\r\n\r\n", "!501|"},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "!400|"},
        {"POST / HTTP/1.1\r\n" H "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n", "!415|"},
        {"POST / HTTP/1.1\r\n" H "Expect: magic\r\n\r\n", "!417|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        check(cases[i][0], strlen(cases[i][0]), cases[i][1]);
    }
    static const char nul[] = "GET / HTTP/1.1\r\n" H "a: b\0c\r\n\r\n";
    check(nul, sizeof nul - 1, "!400|");
}

static void test_bad_chunks(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"ffffffffffffffff\r\n", "!413|"},
        {"fffffffffffffffffffffff\r\n", "!413|"},
        {"65\r\n", "!413|"},
        {"60\r\n", "..."},
        {"1 \t;a=b\r\n", "..."},
        {"1;a\rb\r\n", "!400|"},
        {"1\rb\r\n", "!400|"},
        {"1 1\r\n", "!400|"},
        {"\r\n", "!400|"},
        {"g\r\n", "!400|"},
        {"-1\r\n", "!400|"},
        {"0x1\r\n", "!400|"},
        {"1\n", "!400|"},
        {"1\r\nab\r\n", "!400|"},
        {"1\r\na\n", "!400|"},
        {"0\r\n\n", "!400|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[256];
        const int n =
            snprintf(text, sizeof text,
                     "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n%s", cases[i][0]);
        check(text, (size_t)n, cases[i][1]);
    }
}

// Sizes: each limit passes at its value and fails beyond it, without the end having come.
static void test_limits(void **state)
{
    (void)state;
    char text[2048];
    memset(text, 'a', sizeof text);
    memcpy(text, "GET /", 5);
    check(text, 1000, "!414|"); // no line end at all
    const int n = snprintf(text, sizeof text, "GET /%0*d HTTP/1.1\r\n" H "\r\n", 64, 1);
    check(text, (size_t)n, "!414|");
    msgl_strbuf b;
    msgl__strbuf_init(&b, 4096);
    msgl__strbuf_adds(&b, "GET / HTTP/1.1\r\n" H);
    for (int i = 0; i < 7; i++) msgl__strbuf_adds(&b, "a:\r\n");
    msgl_strbuf eight;
    msgl__strbuf_init(&eight, 4096);
    msgl__strbuf_add(&eight, b.data, b.len);
    msgl__strbuf_adds(&eight, "\r\n");
    check(eight.data, eight.len, "1 / 1 |");
    msgl__strbuf_adds(&b, "a:\r\n\r\n");
    check(b.data, b.len, "!431|");
    msgl__strbuf_clear(&b);
    msgl__strbuf_adds(&b, "GET / HTTP/1.1\r\n" H "a: ");
    while (b.len < 600) msgl__strbuf_addc(&b, 'x');
    check(b.data, b.len, "!431|");
    msgl__strbuf_free(&b);
    msgl__strbuf_free(&eight);
}

// 64 KiB of body in one-byte chunks: memory stays in proportion to the body.
static void test_tiny_chunks(void **state)
{
    (void)state;
    const msgl_http_limits limits = msgl__http_limits_default();
    msgl_http_parser p;
    msgl__http_parser_init(&p, &limits);
    static const char head[] = "POST / HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n";
    size_t used;
    assert_int_equal(msgl__http_parse(&p, head, sizeof head - 1, &used), MSGL_HTTP_MORE);
    for (int i = 0; i < 65536; i++) {
        assert_int_equal(msgl__http_parse(&p, "1\r\nx\r\n", 6, &used), MSGL_HTTP_MORE);
    }
    assert_int_equal(msgl__http_parse(&p, "0\r\n\r\n", 5, &used), MSGL_HTTP_DONE);
    assert_int_equal(p.body.len, 65536);
    assert_true(p.body.cap <= 2 * 65536 + 64);
    msgl__http_parser_free(&p);
}

// Bodies are claimed before they are stored: half of the budget for large ones, three quarters for
// small ones, a quarter for one; all of it is back afterwards.
static void test_budget(void **state)
{
    (void)state;
    enum { MIB = 1 << 20 };
    static const struct {
        int others; // bytes that others hold
        size_t body;
        int status; // 0: taken
    } cases[] = {
        {0, 1900000, 0},      {0, 2 * MIB - 1, 0},
        {0, 2 * MIB, 413},    {4 * MIB, 100000, 429},
        {4 * MIB, 50000, 0},  {6 * MIB - 40000, 30000, 0},
        {6 * MIB, 1000, 429}, {4 * MIB - 99999, 100000, 429},
    };
    char *body = msgl__malloc(3 * MIB);
    memset(body, 'a', 3 * MIB);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int chunked = 0; chunked < 2; chunked++) {
            msgl_budget budget;
            msgl__budget_init(&budget, 8 * MIB);
            msgl_claim others = {.budget = &budget};
            msgl__claim_count(&others, (size_t)cases[i].others);
            msgl_http_limits limits = msgl__http_limits_default();
            limits.budget = &budget;
            msgl_http_parser p;
            msgl__http_parser_init(&p, &limits);
            char head[200];
            const int n = snprintf(head, sizeof head,
                                   chunked ? "POST / HTTP/1.1\r\n" H
                                             "Transfer-Encoding: chunked\r\n\r\n%zx\r\n"
                                           : "POST / HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n",
                                   cases[i].body);
            size_t used;
            msgl_http_event e = msgl__http_parse(&p, head, (size_t)n, &used);
            for (size_t at = 0; e == MSGL_HTTP_MORE && at < cases[i].body;) {
                const size_t left = cases[i].body - at;
                e = msgl__http_parse(&p, body, left < 60000 ? left : 60000, &used);
                at += used;
                assert_true(atomic_load(&budget.used) >= (size_t)cases[i].others + p.body.cap);
            }
            if (chunked && e == MSGL_HTTP_MORE) e = msgl__http_parse(&p, "\r\n0\r\n\r\n", 7, &used);
            if (e != (cases[i].status == 0 ? MSGL_HTTP_DONE : MSGL_HTTP_BAD) ||
                p.status != cases[i].status) {
                fail_msg("%zu chunked %d: event %d, status %d", i, chunked, (int)e, p.status);
            }
            msgl__http_parser_free(&p);
            assert_int_equal(atomic_load(&budget.used), cases[i].others);
        }
    }
    msgl__free(body);
    // A request without a body, such as a probe of /health, is read when all of it is in use.
    msgl_budget budget;
    msgl__budget_init(&budget, 8 * MIB);
    msgl_claim others = {.budget = &budget};
    msgl__claim_count(&others, 8 * MIB);
    msgl_http_limits limits = msgl__http_limits_default();
    limits.budget = &budget;
    msgl_http_parser p;
    msgl__http_parser_init(&p, &limits);
    static const char probe[] = "GET /health HTTP/1.1\r\n" H "\r\n";
    size_t used;
    assert_int_equal(msgl__http_parse(&p, probe, sizeof probe - 1, &used), MSGL_HTTP_DONE);
    msgl__http_parser_free(&p);
}

// The path below which a proxy serves us is left out, whether the proxy did so or not.
static void test_root_path(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"/llm/v1/models", "/v1/models"},
        {"/v1/models", "/v1/models"},
        {"/llm", "/"},
        {"/llm/", "/"},
        {"/", "/"},
        {"/llm?x=1", "/"},
        {"/llmx/v1", "/llmx/v1"},
        {"/ll", "/ll"},
        {"/llm//v1", "//v1"},
        {"/%6clm/v1", "/v1"},
        {"/llm/llm/v1", "/llm/v1"},
        {"http://x/llm/v1", "/v1"},
    };
    msgl_http_limits limits = msgl__http_limits_default();
    limits.root_path = "/llm";
    msgl_strbuf got;
    msgl__strbuf_init(&got, 1 << 16);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[128], want[64];
        const int n = snprintf(text, sizeof text, "GET %s HTTP/1.1\r\n" H "\r\n", cases[i][0]);
        (void)snprintf(want, sizeof want, "1 %s 1 |", cases[i][1]);
        transcript(text, (size_t)n, (size_t)n, &limits, &got);
        assert_string_equal(msgl__strbuf_str(&got), want);
    }
    msgl__strbuf_free(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_root_path), cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),       cmocka_unit_test(test_bad_chunks),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_tiny_chunks),
        cmocka_unit_test(test_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
