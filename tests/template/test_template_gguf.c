// SPDX-License-Identifier: Apache-2.0
//
// Chat templates in the metadata of GGUF files.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "template/chat_template.h"
#include "utils/gguf_writer.h"

static const char *const tokens[] = {"a", "<s>", "<u>"};

static void write_file(gguf_writer *w, char path[64])
{
    const gguf_bytes b = gguf_finish(w);
    snprintf(path, 64, "/tmp/minisgl-gguf-XXXXXX");
    FILE *f = fdopen(mkstemp(path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(b.p, 1, b.n, f), b.n);
    fclose(f);
    free(b.p);
}

static void check_render(const msgl_chat_templates *c, const char *vars, const char *want)
{
    msgl_rendered r = {0};
    msgl_err err = {0};
    json_t *v = json_loads(vars, 0, NULL);
    if (msgl__chat_templates_render(c, v, NULL, &r, &err) != 0) fail_msg("%s", err.text);
    assert_string_equal(msgl__strbuf_str(&r.text), want);
    msgl__rendered_free(&r);
    json_decref(v);
}

static void test_templates(void **state)
{
    (void)state;
    char path[64];
    gguf_writer w = {0};
    msgl_err err = {0};
    msgl_chat_templates *c = NULL;
    gguf_put_strings(&w, "tokenizer.ggml.tokens", tokens, 3);
    write_file(&w, path);
    assert_int_equal(msgl__chat_templates_load(path, &c, &err), MSGL_ENOENT);
    assert_non_null(strstr(err.text, "no chat template (tokenizer.chat_template)"));
    remove(path);

    for (int tools = 0; tools < 2; tools++) {
        gguf_put_strings(&w, "tokenizer.ggml.tokens", tokens, 3);
        gguf_put_int(&w, "tokenizer.ggml.bos_token_id", MSGL_GGUF_U32, 1);
        gguf_put_int(&w, "tokenizer.ggml.eos_token_id", MSGL_GGUF_U32, 2);
        gguf_put_string(&w, "tokenizer.chat_template", "{{ bos_token }}x{{ eos_token }}");
        if (tools) gguf_put_string(&w, "tokenizer.chat_template.tool_use", "t{{ bos_token }}");
        write_file(&w, path);
        if (msgl__chat_templates_load(path, &c, &err) != 0) fail_msg("%s", err.text);
        check_render(c, "{\"messages\": []}", "<s>x<u>");
        check_render(c, "{\"messages\": [], \"tools\": [1]}", tools ? "t<s>" : "<s>x<u>");
        msgl__chat_templates_free(c);
        const char *own = "{{ eos_token }}{{ tools is none }}"; // in place of both
        if (msgl__chat_templates_load_own(path, own, &c, &err) != 0) fail_msg("%s", err.text);
        check_render(c, "{\"messages\": []}", "<u>True");
        check_render(c, "{\"messages\": [], \"tools\": [1]}", "<u>False");
        msgl__chat_templates_free(c);
        remove(path);
    }
    gguf_put_strings(&w, "tokenizer.ggml.tokens", tokens, 3);
    gguf_put_string(&w, "tokenizer.chat_template", "{% if %}");
    write_file(&w, path);
    assert_int_equal(msgl__chat_templates_load(path, &c, &err), MSGL_EFORMAT);
    assert_non_null(strstr(err.text, "minisgl-gguf-"));
    remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
