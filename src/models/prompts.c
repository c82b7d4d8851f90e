// SPDX-License-Identifier: Apache-2.0
#include "models/prompts.h"

#include <string.h>

#include <jansson.h>

#include "core/mem.h"
#include "utils/file.h"
#include "utils/json.h"

enum { MAX_BYTES = 1 << 20, PATH_BYTES = 4096, MAX_PROMPTS = 256, MAX_TEXT = 4096 };

static char *put(char **at, const char *s, size_t n)
{
    char *copy = *at;
    memcpy(copy, s, n);
    copy[n] = '\0';
    *at += n + 1;
    return copy;
}

// Bytes of the names and texts, each with a NUL; all are checked.
static int measure(const char *file, const json_t *prompts, size_t *bytes, msgl_err *err)
{
    const char *name;
    json_t *text;
    *bytes = 0;
    if (json_object_size(prompts) > MAX_PROMPTS) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: found %zu prompts, allowed %d", file,
                             json_object_size(prompts), MAX_PROMPTS);
    }
    json_object_foreach((json_t *)prompts, name, text)
    {
        if (json_is_null(text)) continue;
        if (!json_is_string(text) || json_string_length(text) > MAX_TEXT ||
            strlen(json_string_value(text)) != json_string_length(text)) {
            char shown[64];
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%s: prompts: \"%s\": allowed: a string of up to %d bytes", file,
                                 msgl__printable(name, shown, sizeof shown), MAX_TEXT);
        }
        *bytes += strlen(name) + 1 + json_string_length(text) + 1;
    }
    return 0;
}

static int read(const char *file, const json_t *root, msgl_text_prompts *out, msgl_err *err)
{
    const json_t *prompts = json_object_get(root, "prompts"),
                 *usual = json_object_get(root, "default_prompt_name");
    const size_t pointers = json_object_size(prompts) * sizeof *out->at;
    size_t bytes;
    const char *name;
    json_t *text;
    const int code = measure(file, prompts, &bytes, err);
    if (code != 0) return code;
    out->at = msgl__malloc(pointers + bytes);
    if (out->at == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", file);
    char *at = (char *)out->at + pointers;
    json_object_foreach((json_t *)prompts, name, text)
    {
        if (json_is_null(text)) continue;
        msgl_text_prompt *p = &out->at[out->num++];
        p->name = put(&at, name, strlen(name));
        p->text = put(&at, json_string_value(text), json_string_length(text));
    }
    if (!json_is_string(usual)) return 0;
    out->usual = msgl__text_prompt(out, json_string_value(usual));
    if (out->usual != NULL) return 0;
    char shown[64];
    return msgl__err_set(err, MSGL_EFORMAT,
                         "%s: default_prompt_name: found \"%s\", allowed: a name in prompts", file,
                         msgl__printable(json_string_value(usual), shown, sizeof shown));
}

int msgl__text_prompts_load(const char *dir, msgl_text_prompts *out, msgl_err *err)
{
    char path[PATH_BYTES];
    json_t *root;
    *out = (msgl_text_prompts){0};
    int code = msgl__path_join(dir, "config_sentence_transformers.json", path, sizeof path, err);
    if (code == 0) code = msgl__json_load(path, MAX_BYTES, 0, &root, err);
    if (code != 0) return code == MSGL_ENOENT ? 0 : code;
    code = read(msgl__path_shown(path), root, out, err);
    json_decref(root);
    if (code != 0) msgl__text_prompts_free(out);
    return code;
}

void msgl__text_prompts_free(msgl_text_prompts *p)
{
    msgl__free(p->at);
    *p = (msgl_text_prompts){0};
}
