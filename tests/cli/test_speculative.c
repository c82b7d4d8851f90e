// SPDX-License-Identifier: Apache-2.0
//
// vLLM's object, and what is wrong with others.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/speculative.h"
#include "core/attributes.h"
#include "core/settings.h"

static void test_taken(void **state)
{
    (void)state;
    msgl_options o;
    msgl__settings_default(&msgl__engine_settings, &o);
    assert_int_equal(
        msgl__speculative_config("{\"method\": \"ngram\", \"num_speculative_tokens\": 5, "
                                 "\"prompt_lookup_max\": 4, \"prompt_lookup_min\": 2}",
                                 &o, NULL),
        0);
    assert_string_equal(o.speculative_algorithm, "NGRAM");
    assert_int_equal(o.speculative_num_draft_tokens, 6); // the known token is one of them
    assert_int_equal(o.speculative_ngram_min, 2);
    assert_int_equal(o.speculative_ngram_max, 4);
    assert_int_equal(msgl__speculative_config("{\"method\": \"suffix\"}", &o, NULL), 0);
    assert_string_equal(o.speculative_algorithm, "SUFFIX");
    const char *heads =
        "{\"method\": \"eagle3\", \"model\": \"x/y\", \"num_speculative_tokens\": 3}";
    assert_int_equal(msgl__speculative_config(heads, &o, NULL), 0);
    assert_string_equal(o.speculative_algorithm, "EAGLE3");
    assert_string_equal(o.speculative_draft_model_path, "x/y");
    assert_int_equal(o.speculative_num_draft_tokens, 4);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "an object with a \"method\""},
        {"ngram", "an object with a \"method\""},
        {"[]", "an object with a \"method\""},
        {"{\"num_speculative_tokens\": 5}", "an object with a \"method\""},
        {"{\"method\": \"ngram\", \"method\": \"suffix\"}", "an object with a \"method\""},
        {"{\"method\": \"medusa\"}", "\"method\" is \"medusa\"; allowed: \"ngram\", \"suffix\", "},
        {"{\"method\": \"eagle3\", \"model\": 1}", "\"model\" must be a folder"},
        {"{\"method\": 3}", "\"method\" is no string"},
        {"{\"method\": \"ngram\", \"num_speculative_tokens\": 0}", "from 1 to 63"},
        {"{\"method\": \"ngram\", \"num_speculative_tokens\": 64}", "from 1 to 63"},
        {"{\"method\": \"ngram\", \"prompt_lookup_max\": \"4\"}", "\"prompt_lookup_max\" must be"},
        {"{\"method\": \"ngram\", \"draft\": \"x\"}", "has \"draft\"; allowed: method, model, "},
    };
    msgl_options o, before;
    memset(&before, 0, sizeof before);
    msgl__settings_default(&msgl__engine_settings, &before);
    for (size_t i = 0; i < MSGL_COUNT(cases); i++) {
        msgl_err err;
        memcpy(&o, &before, sizeof o);
        assert_int_equal(msgl__speculative_config(cases[i].text, &o, &err), MSGL_EINVAL);
        if (strstr(err.text, cases[i].says) == NULL) fail_msg("%s: %s", cases[i].text, err.text);
        assert_memory_equal(&o, &before, sizeof o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
