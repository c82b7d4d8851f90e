// SPDX-License-Identifier: Apache-2.0
//
// Bodies of multipart/form-data: whole ones, and those that are cut or wrong anywhere.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "http/multipart.h"
#include "utils/strbuf.h"

static const char type_line[] = "multipart/form-data; boundary=XX";

typedef struct form_case {
    const char *body, *seen; // name=value;... and how it ends
} form_case;

#define PART(head, value) "--XX\r\nContent-Disposition: form-data; " head "\r\n\r\n" value "\r\n"

static const form_case forms[] = {
    {PART("name=\"a\"", "1") "--XX--\r\n", "a=1;0"},
    {PART("name=\"a\"", "") "--XX--", "a=;0"},
    {PART("name=a", "1") PART("name=\"b\"; filename=\"x;y\"", "2\r\n--X") "--XX--",
     "a=1;b(x;y)=2\r\n--X;0"},
    {"preamble\r\n" PART("NAME=\"a\"", "x--XX") "--XX--", "a=x--XX;0"},
    {"--XX--", "0"},
    {"", "-1"},
    {"--XX", "-1"},
    {"--XX\r\n", "-1"},
    {"--XX\r\n\r\n", "-1"},
    {"--XX\r\n\r\nx\r\n--XX--", "-1"}, // no name
    {PART("filename=\"a\"", "1") "--XX--", "-1"},
    {PART("name=\"a", "1") "--XX--", "-1"},
    {PART("name=\"a\"", "1"), "-1"}, // no end
    {PART("name=\"a\"", "1") "--XX", "a=1;-1"},
    {"--XX\r\nContent-Disposition: form-data; name=\"a\"\r\n--XX--", "-1"},
};

static void read_form(const char *body, size_t len, msgl_strbuf *seen)
{
    size_t at = 0;
    msgl_multipart_field f;
    int rc;
    while ((rc = msgl__multipart_next(body, len, "XX", &at, &f)) > 0) {
        msgl__strbuf_add(seen, f.name, f.name_len);
        if (f.filename != NULL) {
            msgl__strbuf_addf(seen, "(%.*s)", (int)f.filename_len, f.filename);
        }
        msgl__strbuf_addc(seen, '=');
        msgl__strbuf_add(seen, f.value, f.len);
        msgl__strbuf_addc(seen, ';');
    }
    msgl__strbuf_addf(seen, "%d", rc);
}

static void test_multipart(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(forms); i++) {
        msgl_strbuf seen;
        msgl__strbuf_init(&seen, 4096);
        // A copy of its size: reading behind it is noticed.
        const size_t len = strlen(forms[i].body);
        char *body = msgl__malloc(len);
        memcpy(body, forms[i].body, len);
        read_form(body, len, &seen);
        assert_string_equal(msgl__strbuf_str(&seen), forms[i].seen);
        // Cut anywhere it is no whole form, but never read beyond.
        for (size_t n = 0; n < len; n++) {
            char *cut = msgl__malloc(n);
            memcpy(cut, body, n);
            msgl__strbuf_clear(&seen);
            read_form(cut, n, &seen);
            msgl__free(cut);
        }
        msgl__free(body);
        msgl__strbuf_free(&seen);
    }
    char boundary[MSGL_MULTIPART_BOUNDARY_MAX + 1];
    assert_true(msgl__multipart_boundary(type_line, strlen(type_line), boundary));
    assert_string_equal(boundary, "XX");
    static const char quoted[] = "Multipart/Form-Data; charset=x; boundary=\"a b\"";
    assert_true(msgl__multipart_boundary(quoted, strlen(quoted), boundary));
    assert_string_equal(boundary, "a b");
    static const char *const bad[] = {
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=\"x",
        "multipart/form-data; xboundary=y",
        "multipart/form-data; boundary="
        "1234567890123456789012345678901234567890123456789012345678901234567890x"};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        assert_false(msgl__multipart_boundary(bad[i], strlen(bad[i]), boundary));
    }
    assert_false(msgl__multipart_boundary(NULL, 0, boundary));
    static const char nul[] = "multipart/form-data; boundary=\0x";
    assert_false(msgl__multipart_boundary(nul, sizeof nul - 1, boundary));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_multipart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
