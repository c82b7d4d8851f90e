// SPDX-License-Identifier: Apache-2.0
//
// `minisgl tokenize` and `minisgl template`: the model's text side alone, standard input to output.

#include "cli/common.h"
#include "core/err.h"
#include "llm/llm.h"
#include "template/chat_template.h"
#include "tokenizer/tokenizer.h"
#include "utils/json.h"

#define MAX_INPUT ((size_t)1 << 30)

static int read_stdin(msgl_strbuf *b, msgl_err *err)
{
    msgl__strbuf_init(b, MAX_INPUT);
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, stdin)) > 0) {
        const int rc = msgl__strbuf_add(b, chunk, n);
        if (rc == MSGL_ELIMIT) {
            return msgl__err_set(err, rc, "standard input is larger than %zu bytes", MAX_INPUT);
        }
        if (rc != 0) return msgl__err_set(err, rc, "out of memory");
    }
    return ferror(stdin) ? msgl__err_set(err, MSGL_EIO, "cannot read standard input") : 0;
}

static int encode(const msgl_tokenizer *t, const msgl_strbuf *in, msgl_err *err)
{
    msgl_ids ids = {0};
    const msgl_encode_opts opts = {.add_special = 1};
    const int rc = msgl__tokenizer_encode(t, msgl__strbuf_str(in), in->len, &opts, &ids, err);
    if (rc == 0) {
        putchar('[');
        for (size_t i = 0; i < ids.len; i++) printf("%s%d", i > 0 ? ", " : "", ids.data[i]);
        printf("]\n");
    }
    msgl__ids_free(&ids);
    return rc;
}

static int decode(const msgl_tokenizer *t, const msgl_strbuf *in, msgl_err *err)
{
    json_error_t where;
    json_t *array = msgl__json_loadb(msgl__strbuf_str(in), in->len, 0, &where, NULL);
    if (!json_is_array(array)) {
        json_decref(array);
        return msgl__err_set(err, MSGL_EFORMAT, "standard input is not a JSON array of token ids");
    }
    msgl_ids ids = {0};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < json_array_size(array); i++) {
        const json_t *v = json_array_get(array, i);
        const json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= msgl__tokenizer_vocab_size(t)) {
            rc = msgl__err_set(err, MSGL_EINVAL, "entry %zu is not a token id; allowed: 0 to %d", i,
                               msgl__tokenizer_vocab_size(t) - 1);
        } else if (msgl__ids_push(&ids, (int32_t)id) != 0) {
            rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        }
    }
    json_decref(array);
    msgl_strbuf out;
    msgl__strbuf_init(&out, MAX_INPUT);
    if (rc == 0) rc = msgl__tokenizer_decode(t, ids.data, ids.len, 0, &out, err);
    if (rc == 0) fwrite(msgl__strbuf_str(&out), 1, out.len, stdout);
    msgl__strbuf_free(&out);
    msgl__ids_free(&ids);
    return rc;
}

int msgl__cmd_tokenize(const msgl_args *a)
{
    msgl_err err;
    char *dir = NULL;
    msgl_tokenizer *t = NULL;
    msgl_strbuf in = {0};
    int rc = msgl__cli_model_dir(a, &dir, &err);
    if (rc == 0) rc = msgl__tokenizer_load(dir, &t, &err);
    if (rc == 0) rc = read_stdin(&in, &err);
    if (rc == 0) rc = a->decode ? decode(t, &in, &err) : encode(t, &in, &err);
    msgl__strbuf_free(&in);
    msgl__tokenizer_free(t);
    msgl_free(dir);
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}

int msgl__cmd_template(const msgl_args *a)
{
    msgl_err err;
    char *dir = NULL;
    msgl_chat_templates *templates = NULL;
    msgl_strbuf in = {0};
    msgl_rendered rendered = {0};
    int rc = msgl__cli_model_dir(a, &dir, &err);
    if (rc == 0) {
        rc = msgl__chat_templates_load_spec(dir, a->engine.chat_template, &templates, &err);
    }
    if (rc == 0) rc = read_stdin(&in, &err);
    if (rc == 0) rc = msgl__render_chat(templates, msgl__strbuf_str(&in), false, &rendered, &err);
    if (rc == 0) fwrite(msgl__strbuf_str(&rendered.text), 1, rendered.text.len, stdout);
    msgl__rendered_free(&rendered);
    msgl__strbuf_free(&in);
    msgl__chat_templates_free(templates);
    msgl_free(dir);
    return rc == 0 ? MSGL_EXIT_OK : msgl__cli_fail(MSGL_EXIT_FAILED, &err);
}
