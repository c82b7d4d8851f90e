// SPDX-License-Identifier: Apache-2.0
//
// The chat templates of a model folder, or of a GGUF file, and the special tokens that they may
// name.
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "template/chat_template.h"
#include "template/content_form.h"
#include "template/jinja_render.h"
#include "utils/file.h"
#include "utils/gguf.h"
#include "utils/json.h"
#include "utils/strbuf.h"

enum { MAX_FILE = 64 << 20 };

struct msgl_chat_templates {
    msgl_chat_template *dflt, *tool_use; // either may be NULL
    msgl_strbuf text;                    // of both
    msgl_strbuf dflt_text;               // of dflt
    json_t *tokens; // bos_token, eos_token ..., and what variables are when the client sends none
    msgl_content_form forms[2][MSGL_CONTENT_ROLES]; // of dflt and tool_use
};

// *out NULL when there is no such file.
static int read_json(const char *dir, const char *name, json_t **out, msgl_err *err)
{
    char path[4096];
    int rc = msgl__path_join(dir, name, path, sizeof path, err);
    if (rc == 0) rc = msgl__json_load(path, MAX_FILE, JSON_ALLOW_NUL, out, err);
    return rc == MSGL_ENOENT ? 0 : rc;
}

// out: the member of t that it is.
static int parse_into(msgl_chat_templates *t, const char *file, const char *text, size_t len,
                      msgl_chat_template **out, msgl_err *err)
{
    if (*out != NULL) return 0; // an earlier source wins
    const int rc = msgl__chat_template_parse(text, len, out, err);
    if (rc != 0) return msgl__err_prefix(err, rc, "%s", file);
    int bad = msgl__strbuf_add(&t->text, text, len) | msgl__strbuf_addc(&t->text, '\n');
    if (out == &t->dflt) bad |= msgl__strbuf_add(&t->dflt_text, text, len);
    if (bad == 0) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "out of memory for the chat templates");
}

static int parse_json_string(msgl_chat_templates *t, const char *file, const json_t *j,
                             msgl_chat_template **out, msgl_err *err)
{
    return parse_into(t, file, json_string_value(j), json_string_length(j), out, err);
}

static int load_jinja(msgl_chat_templates *t, const char *dir, const char *name,
                      msgl_chat_template **out, msgl_err *err)
{
    char path[4096], *text;
    size_t len;
    int rc = msgl__path_join(dir, name, path, sizeof path, err);
    if (rc == 0) rc = msgl__file_read(path, MAX_FILE, &text, &len, err);
    if (rc == MSGL_ENOENT) return 0;
    if (rc != 0) return rc;
    rc = parse_into(t, path, text, len, out, err);
    msgl__free(text);
    return rc;
}

// "chat_template" of a JSON file: a string, or a list of {name, template}.
static int load_field(msgl_chat_templates *t, const char *file, const json_t *conf, msgl_err *err)
{
    const json_t *ct = json_object_get(conf, "chat_template"), *entry;
    size_t i;
    if (ct == NULL || json_is_null(ct)) return 0;
    if (json_is_string(ct)) return parse_json_string(t, file, ct, &t->dflt, err);
    if (!json_is_array(ct)) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s: chat_template: expected a string or a list",
                             file);
    }
    json_array_foreach(ct, i, entry)
    {
        const json_t *name = json_object_get(entry, "name");
        const json_t *text = json_object_get(entry, "template");
        if (!json_is_string(name) || !json_is_string(text)) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%s: chat_template[%zu]: expected the strings name and template",
                                 file, i);
        }
        msgl_chat_template **slot = strcmp(json_string_value(name), "default") == 0 ? &t->dflt
                                    : strcmp(json_string_value(name), "tool_use") == 0
                                        ? &t->tool_use
                                        : NULL;
        if (slot == NULL) continue;
        const int rc = parse_json_string(t, file, text, slot, err);
        if (rc != 0) return rc;
    }
    return 0;
}

// A token is a string or an object with its text as "content"; NULL for anything else.
static json_t *token_text(json_t *v)
{
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_is_string(v) ? v : NULL;
}

// Every key "..._token", and the list additional_special_tokens, unless already known.
static int add_tokens(json_t *tokens, json_t *conf, msgl_err *err)
{
    const char *key;
    json_t *value;
    int bad = 0;
    json_object_foreach(conf, key, value)
    {
        if (json_object_get(tokens, key) != NULL) continue;
        json_t *text = msgl__ends_with(key, "_token") ? token_text(value) : NULL;
        if (text != NULL) bad |= json_object_set(tokens, key, text);
        if (strcmp(key, "additional_special_tokens") != 0 || !json_is_array(value)) continue;
        json_t *list = json_array(), *item;
        size_t i;
        json_array_foreach(value, i, item)
        {
            if (token_text(item) != NULL) bad |= json_array_append(list, token_text(item));
        }
        bad |= json_object_set_new(tokens, key, list);
    }
    return bad ? msgl__err_set(err, MSGL_ENOMEM, "out of memory for the special tokens") : 0;
}

// What the metadata of a GGUF file has of tokenizer_config.json: the templates and, by their ids,
// the texts of the tokens that these may name.
static json_t *gguf_fields(const msgl_gguf *g, json_t *meta)
{
    static const char *const TOKENS[][2] = {
        {"bos_token", "tokenizer.ggml.bos_token_id"},
        {"eos_token", "tokenizer.ggml.eos_token_id"},
        {"unk_token", "tokenizer.ggml.unknown_token_id"},
        {"sep_token", "tokenizer.ggml.seperator_token_id"}, // the format's spelling
        {"pad_token", "tokenizer.ggml.padding_token_id"},
        {"cls_token", "tokenizer.ggml.cls_token_id"},
        {"mask_token", "tokenizer.ggml.mask_token_id"},
    };
    const msgl_gguf_value *v = msgl__gguf_get(g, "tokenizer.ggml.tokens");
    const size_t n = v != NULL && v->array && v->type == MSGL_GGUF_STRING ? v->count : 0;
    json_t *conf = json_object();
    size_t at = 0;
    for (size_t id = 0; id < n; id++) {
        const msgl_gguf_str text = msgl__gguf_next(v, &at);
        for (size_t i = 0; i < MSGL_COUNT(TOKENS); i++) {
            const json_t *want = json_object_get(meta, TOKENS[i][1]);
            if (!json_is_integer(want) || json_integer_value(want) != (json_int_t)id) continue;
            (void)json_object_set_new(conf, TOKENS[i][0], json_stringn(text.p, text.n));
        }
    }
    json_t *text = json_object_get(meta, "tokenizer.chat_template");
    json_t *tools = json_object_get(meta, "tokenizer.chat_template.tool_use");
    if (text != NULL && tools != NULL) {
        text = json_pack("[{s:s,s:O},{s:s,s:O}]", "name", "default", "template", text, "name",
                         "tool_use", "template", tools);
        (void)json_object_set_new(conf, "chat_template", text);
    } else if (text != NULL) {
        (void)json_object_set(conf, "chat_template", text);
    }
    return conf;
}

// own: whether what the model has is not looked at.
static int load_gguf(const char *path, bool own, msgl_chat_templates *t, msgl_err *err)
{
    msgl_gguf g;
    json_t *meta = NULL, *conf = NULL;
    int rc = msgl__gguf_open(path, &g, err);
    if (rc != 0) return rc;
    rc = msgl__gguf_metadata(&g, &meta, err);
    if (rc == 0) {
        conf = gguf_fields(&g, meta);
        if (!own) rc = load_field(t, g.file, conf, err);
    }
    if (rc == 0) rc = add_tokens(t->tokens, conf, err);
    if (rc == 0 && !own && t->dflt == NULL && t->tool_use == NULL) {
        rc = msgl__err_set(err, MSGL_ENOENT, "%s: no chat template (tokenizer.chat_template)",
                           g.file);
    }
    json_decref(meta);
    json_decref(conf);
    msgl__gguf_close(&g);
    return rc;
}

// The templates of a folder's files, of which `conf` is tokenizer_config.json.
static int load_files(const char *dir, const json_t *conf, msgl_chat_templates *t, msgl_err *err)
{
    json_t *legacy = NULL;
    int rc = load_jinja(t, dir, "chat_template.jinja", &t->dflt, err);
    const bool from_files = t->dflt != NULL;
    if (rc == 0) {
        rc = load_jinja(t, dir, "additional_chat_templates/tool_use.jinja", &t->tool_use, err);
    }
    if (rc == 0 && !from_files) rc = read_json(dir, "chat_template.json", &legacy, err);
    if (rc == 0 && !from_files) rc = load_field(t, "tokenizer_config.json", conf, err);
    if (rc == 0 && legacy != NULL) rc = load_field(t, "chat_template.json", legacy, err);
    json_decref(legacy);
    if (rc == 0 && t->dflt == NULL && t->tool_use == NULL) {
        rc = msgl__err_set(err, MSGL_ENOENT,
                           "%s: no chat template (chat_template.jinja, or chat_template in "
                           "tokenizer_config.json)",
                           dir);
    }
    return rc;
}

static int load(const char *dir, const char *own, msgl_chat_templates *t, msgl_err *err)
{
    char path[4096];
    int rc = 0;
    if (own != NULL && *own != '\0') {
        rc = parse_into(t, "chat_template", own, strlen(own), &t->dflt, err);
        if (rc != 0) return rc;
    }
    const int gguf = msgl__gguf_find(dir, path, sizeof path, err);
    if (gguf != 0) return gguf < 0 ? gguf : load_gguf(path, own != NULL, t, err);

    json_t *conf = NULL, *map = NULL;
    rc = read_json(dir, "tokenizer_config.json", &conf, err);
    if (rc == 0) rc = read_json(dir, "special_tokens_map.json", &map, err);
    if (rc == 0 && own == NULL) rc = load_files(dir, conf, t, err);
    if (rc == 0 && conf != NULL) rc = add_tokens(t->tokens, conf, err);
    if (rc == 0 && map != NULL) rc = add_tokens(t->tokens, map, err);
    json_decref(conf);
    json_decref(map);
    return rc;
}

bool msgl__chat_template_has_tags(const char *text)
{
    return strstr(text, "{{") != NULL || strstr(text, "{%") != NULL;
}

// Whether a text that may be a template is the name of a file.
static bool is_file(const char *spec)
{
    struct stat st;
    return !msgl__chat_template_has_tags(spec) || msgl__ends_with(spec, ".jinja") ||
           stat(spec, &st) == 0;
}

int msgl__chat_template_read(const char *spec, char **out, msgl_err *err)
{
    msgl_chat_template *parsed = NULL;
    const bool file = is_file(spec);
    size_t len = strlen(spec);
    int rc = 0;
    *out = NULL;
    if (file) {
        rc = msgl__file_read(spec, MAX_FILE, out, &len, err);
    } else if ((*out = msgl__malloc(len + 1)) != NULL) {
        memcpy(*out, spec, len + 1);
    } else {
        rc = msgl__err_set(err, MSGL_ENOMEM, "out of memory for the chat template");
    }
    if (rc == MSGL_ENOENT) {
        char shown[80];
        return msgl__err_set(err, MSGL_EINVAL,
                             "chat_template is \"%s\"; allowed: a file that exists, or the text "
                             "of a template, which has {{ or {%% in it",
                             msgl__printable(spec, shown, sizeof shown));
    }
    if (rc == 0 && (strlen(*out) != len || !msgl__chat_template_has_tags(*out))) {
        rc = msgl__err_set(err, MSGL_EFORMAT, "%s: no chat template: %s in it",
                           msgl__path_shown(spec),
                           strlen(*out) != len ? "a NUL byte is" : "neither {{ nor {% is");
    }
    if (rc == 0) {
        rc = msgl__chat_template_parse(*out, len, &parsed, err);
        if (rc != 0 && file) rc = msgl__err_prefix(err, rc, "%s", msgl__path_shown(spec));
    }
    msgl__chat_template_free(parsed);
    if (rc == 0) return 0;
    msgl__free(*out);
    *out = NULL;
    return rc;
}

// What the templates make of contents, once for all requests.
static int probe_forms(msgl_chat_templates *t, msgl_err *err)
{
    const msgl_chat_template *const both[2] = {t->dflt, t->tool_use};
    for (int i = 0; i < 2; i++) {
        for (int role = 0; role < MSGL_CONTENT_ROLES && both[i] != NULL; role++) {
            const int rc = msgl__content_form_probe(both[i], t->tokens, (msgl_content_role)role,
                                                    NULL, &t->forms[i][role]);
            if (rc != 0) return msgl__err_set(err, rc, "out of memory for the chat templates");
        }
    }
    return 0;
}

int msgl__chat_templates_content_form(const msgl_chat_templates *t, const msgl_chat_template *use,
                                      bool has_tools, msgl_content_role role,
                                      const atomic_bool *cancelled, msgl_content_form *out)
{
    if (use != NULL) {
        return msgl__content_form_probe(use, t != NULL ? t->tokens : NULL, role, cancelled, out);
    }
    *out = t->forms[has_tools && t->tool_use != NULL][role];
    return 0;
}

int msgl__chat_templates_load(const char *dir, msgl_chat_templates **out, msgl_err *err)
{
    return msgl__chat_templates_load_own(dir, NULL, out, err);
}

int msgl__chat_templates_load_own(const char *dir, const char *own, msgl_chat_templates **out,
                                  msgl_err *err)
{
    *out = NULL;
    msgl_chat_templates *t = msgl__calloc(1, sizeof *t);
    if (t != NULL) t->tokens = json_object();
    if (t != NULL) msgl__strbuf_init(&t->text, 2 * MAX_FILE);
    if (t != NULL) msgl__strbuf_init(&t->dflt_text, 2 * MAX_FILE);
    if (t == NULL || t->tokens == NULL) {
        msgl__chat_templates_free(t);
        return msgl__err_set(err, MSGL_ENOMEM, "out of memory for the chat templates");
    }
    // apply_chat_template always passes these three.
    int rc = json_object_set_new(t->tokens, "tools", json_null()) |
             json_object_set_new(t->tokens, "documents", json_null()) |
             json_object_set_new(t->tokens, "add_generation_prompt", json_false());
    rc = rc != 0 ? msgl__err_set(err, MSGL_ENOMEM, "out of memory for the chat templates")
                 : load(dir, own, t, err);
    if (rc == 0) rc = probe_forms(t, err);
    if (rc != 0) {
        msgl__chat_templates_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

int msgl__chat_templates_load_spec(const char *dir, const char *spec, msgl_chat_templates **out,
                                   msgl_err *err)
{
    char *own = NULL;
    *out = NULL;
    int rc = spec == NULL ? 0 : msgl__chat_template_read(spec, &own, err);
    if (rc == 0) rc = msgl__chat_templates_load_own(dir, own, out, err);
    msgl__free(own);
    return rc;
}

void msgl__chat_templates_free(msgl_chat_templates *t)
{
    if (t == NULL) return;
    msgl__chat_template_free(t->dflt);
    msgl__chat_template_free(t->tool_use);
    msgl__strbuf_free(&t->text);
    msgl__strbuf_free(&t->dflt_text);
    json_decref(t->tokens);
    msgl__free(t);
}

const char *msgl__chat_templates_text(const msgl_chat_templates *t)
{
    return msgl__strbuf_str(&t->text);
}

const json_t *msgl__chat_templates_special(const msgl_chat_templates *t)
{
    return t->tokens;
}

const char *msgl__chat_templates_default(const msgl_chat_templates *t)
{
    return t->dflt == NULL ? NULL : msgl__strbuf_str(&t->dflt_text);
}

int msgl__chat_templates_render(const msgl_chat_templates *t, json_t *vars,
                                const msgl_render_limits *limits, msgl_rendered *out, msgl_err *err)
{
    json_t *tools = json_object_get(vars, "tools");
    const bool has_tools = tools != NULL && !json_is_null(tools);
    const msgl_chat_template *use = has_tools && t->tool_use != NULL ? t->tool_use : t->dflt;
    if (use == NULL) {
        return msgl__err_set(err, MSGL_EINVAL, "the model has %s",
                             t->tool_use == NULL
                                 ? "no chat template"
                                 : "only a tool_use chat template: tools are required");
    }
    return msgl__chat_templates_render_as(t, use, vars, limits, out, err);
}

int msgl__chat_templates_render_as(const msgl_chat_templates *t, const msgl_chat_template *use,
                                   json_t *vars, const msgl_render_limits *limits,
                                   msgl_rendered *out, msgl_err *err)
{
    msgl_jclock now;
    msgl__jclock_now(&now);
    return msgl__chat_template_render_at(use, vars, t != NULL ? t->tokens : NULL, limits, &now, out,
                                         err);
}
