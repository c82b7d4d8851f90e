// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/vectors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define DIR MSGL_SOURCE_DIR "/tests/vectors/tokenizer/"

const char *const vector_names[] = {
    "qwen2", "llama3", "gpt2", "llama2", "mistral",    "tekken",  "flags", "pieces",       "words",
    "spm",   "smollm", "kimi", "bert",   "bert_cased", "roberta", "xlmr",  "unigram_bytes"};

msgl_tokenizer *vector_tokenizer(const char *name)
{
    char path[512];
    msgl_err err;
    msgl_tokenizer *t = NULL;
    snprintf(path, sizeof(path), DIR "%s", name);
    if (msgl__tokenizer_load(path, &t, &err) != 0) fail_msg("%s", err.text);
    return t;
}

json_t *vector_cases(const char *name)
{
    char path[512];
    json_error_t e;
    snprintf(path, sizeof(path), DIR "%s/cases.json", name);
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (j == NULL) fail_msg("%s: %s", path, e.text);
    return j;
}

void vector_ids(const json_t *array, msgl_ids *out)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        const int32_t id = (int32_t)json_integer_value(json_array_get(array, i));
        assert_int_equal(msgl__ids_push(out, id), 0);
    }
}
