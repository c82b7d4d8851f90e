// SPDX-License-Identifier: Apache-2.0
#include "api/fill_prompt.h"

#include <string.h>

#include "core/mem.h"
#include "api/fields.h"

// As the models' own pages write them: Qwen, StarCoder, SantaCoder, DeepSeek, GLM, Code Llama.
static const msgl_fill_form forms[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<repo_name>", "<file_sep>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>", NULL, NULL},
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", NULL, NULL},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>", NULL, NULL},
    {"▁<PRE>", "▁<SUF>", "▁<MID>", NULL, NULL},
};
enum { NUM_FORMS = sizeof forms / sizeof forms[0] };

static bool has(const msgl_tokenizer *t, const char *token)
{
    return token != NULL && msgl__tokenizer_id(t, token) >= 0;
}

const msgl_fill_form *msgl__fill_form(const msgl_tokenizer *t)
{
    for (size_t i = 0; i < NUM_FORMS; i++) {
        const msgl_fill_form *f = &forms[i];
        if (has(t, f->prefix) && has(t, f->suffix) && has(t, f->middle)) return f;
    }
    return NULL;
}

static int unsupported(msgl_err *err)
{
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "This model does not fill in: its tokenizer has not the three tokens of a "
                         "prefix, a suffix and the middle, such as %s, %s and %s; use "
                         "/v1/completions or /completion.",
                         forms[0].prefix, forms[0].suffix, forms[0].middle);
}

// A string of the client's; v NULL: nothing.
static int add_client_text(const json_t *v, msgl_rendered *r)
{
    const size_t len = json_string_length(v);
    if (len == 0) return 0;
    msgl_text_span *spans =
        msgl__reallocarray(r->untrusted, r->num_untrusted + 1, sizeof *r->untrusted);
    if (spans == NULL) return MSGL_ENOMEM;
    r->untrusted = spans;
    spans[r->num_untrusted++] = (msgl_text_span){r->text.len, r->text.len + len};
    return msgl__strbuf_add(&r->text, json_string_value(v), len);
}

// A line's end is the template's.
static int add_line(const json_t *v, msgl_rendered *r)
{
    const int rc = add_client_text(v, r);
    return rc == 0 ? msgl__strbuf_addc(&r->text, '\n') : rc;
}

// Other files, and where the model tells files apart the name of the one with the gap, which is not
// known.
static int add_files(const json_t *files, const msgl_fill_form *form, const msgl_tokenizer *t,
                     msgl_rendered *r)
{
    const bool apart = has(t, form->file);
    int rc = 0;
    if (json_array_size(files) == 0) return 0;
    if (has(t, form->repository)) {
        rc = msgl__strbuf_addf(&r->text, "%srepository\n", form->repository);
    }
    for (size_t i = 0; i < json_array_size(files) && rc == 0; i++) {
        const json_t *file = json_array_get(files, i);
        if (apart) rc = msgl__strbuf_adds(&r->text, form->file);
        if (rc == 0) rc = add_line(json_object_get(file, "filename"), r);
        if (rc == 0) rc = add_line(json_object_get(file, "text"), r);
    }
    return rc == 0 && apart ? msgl__strbuf_addf(&r->text, "%sfile\n", form->file) : rc;
}

int msgl__fill_render(const msgl_gen_request *req, const msgl_tokenizer *t, msgl_rendered *out,
                      msgl_err *err)
{
    const msgl_fill_form *form = msgl__fill_form(t);
    if (form == NULL) return unsupported(err);
    msgl__strbuf_init(&out->text, SIZE_MAX / 2);
    int rc = add_files(json_object_get(req->fill, "files"), form, t, out);
    if (rc == 0) rc = msgl__strbuf_adds(&out->text, form->prefix);
    if (rc == 0) rc = add_client_text(json_object_get(req->fill, "prefix"), out);
    if (rc == 0) rc = msgl__strbuf_adds(&out->text, form->suffix);
    if (rc == 0) rc = add_client_text(json_object_get(req->fill, "suffix"), out);
    if (rc == 0) rc = msgl__strbuf_adds(&out->text, form->middle);
    if (rc == 0) rc = add_client_text(json_object_get(req->fill, "begun"), out);
    return rc == 0 ? 0 : msgl__err_set(err, rc, "%s", msgl__status_text(rc));
}

int msgl__parse_fill(const json_t *prefix, const json_t *suffix, const json_t *begun,
                     const json_t *files, msgl_gen_request *out, msgl_api_error *e)
{
    json_t *fill = json_object();
    if (json_object_set_new(out->root, "\nfill", fill) != 0) return msgl__api_oom(e);
    int bad = 0;
    if (prefix != NULL) bad |= json_object_set(fill, "prefix", (json_t *)prefix);
    if (suffix != NULL) bad |= json_object_set(fill, "suffix", (json_t *)suffix);
    if (begun != NULL) bad |= json_object_set(fill, "begun", (json_t *)begun);
    if (files != NULL) bad |= json_object_set(fill, "files", (json_t *)files);
    out->prompts = msgl__calloc(1, sizeof *out->prompts);
    if (bad != 0 || out->prompts == NULL) return msgl__api_oom(e);
    out->num_prompts = 1;
    out->fill = fill;
    return 0;
}
