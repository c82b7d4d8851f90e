// SPDX-License-Identifier: Apache-2.0
#include "api/constraint.h"

#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/constrain.h"
#include "api/fields.h"
#include "utils/json_write.h"

enum { GRAMMAR = MSGL_GRAMMAR_LARK + 1 }; // MSGL_GRAMMAR_GBNF or MSGL_GRAMMAR_LARK, by its text

typedef struct constraint_field {
    const char *name;
    int kind;
} constraint_field;

static const constraint_field OUTSIDE[] = {
    {"guided_json", MSGL_GRAMMAR_JSON_SCHEMA},
    {"guided_regex", MSGL_GRAMMAR_REGEX},
    {"guided_choice", MSGL_GRAMMAR_CHOICE},
    {"guided_grammar", GRAMMAR},
    {"json_schema", MSGL_GRAMMAR_JSON_SCHEMA},
    {"regex", MSGL_GRAMMAR_REGEX},
    {"ebnf", GRAMMAR},
    {"grammar", GRAMMAR},
};
static const constraint_field INSIDE[] = {
    {"structured_outputs.json", MSGL_GRAMMAR_JSON_SCHEMA},
    {"structured_outputs.regex", MSGL_GRAMMAR_REGEX},
    {"structured_outputs.choice", MSGL_GRAMMAR_CHOICE},
    {"structured_outputs.grammar", GRAMMAR},
    {"structured_outputs.json_object", MSGL_GRAMMAR_JSON_OBJECT},
};

typedef struct reader {
    msgl_constraint_text *out;
    const char *name; // of the field that it came from
    const msgl_api_config *cfg;
    msgl_strbuf *left_out;
    bool strict; // a schema is kept to as a whole
    msgl_api_error *e;
} reader;

void msgl__constraint_text_free(msgl_constraint_text *c)
{
    msgl__free(c->text);
    *c = (msgl_constraint_text){0};
}

static int wrong(const reader *r, const char *name, const json_t *v, const char *want)
{
    return msgl__api_fail(r->e, 400, name, "invalid_type", "'%s' is %s; it must be %s.", name,
                          msgl__json_type_name(v), want);
}

// The first constraint, or one too many. text: copied; NULL: none.
static int put(reader *r, const char *name, msgl_grammar_kind kind, const char *text)
{
    if (r->out->kind != MSGL_GRAMMAR_NONE) {
        return msgl__api_fail(r->e, 400, name, "invalid_value",
                              "'%s' and '%s' both say what the answer has to be; allowed: one of "
                              "them.",
                              r->name, name);
    }
    r->name = name;
    r->out->kind = kind;
    if (text == NULL) return 0;
    const size_t n = strlen(text) + 1;
    r->out->text = msgl__malloc(n);
    if (r->out->text == NULL) return msgl__api_oom(r->e);
    memcpy(r->out->text, text, n);
    return 0;
}

static int put_json(reader *r, const char *name, msgl_grammar_kind kind, const json_t *v)
{
    if (r->out->kind != MSGL_GRAMMAR_NONE) return put(r, name, kind, NULL); // which refuses it
    char *text = msgl__json_text(v, JSON_COMPACT);
    if (text == NULL) return msgl__api_oom(r->e);
    r->name = name;
    r->out->kind = kind;
    r->out->text = text;
    return 0;
}

// A schema: as JSON, or as a string that is one.
static int put_schema(reader *r, const char *name, const json_t *v)
{
    const msgl_grammar_kind kind =
        r->cfg->open_schemas ? MSGL_GRAMMAR_JSON_SCHEMA_OPEN : MSGL_GRAMMAR_JSON_SCHEMA;
    if (json_is_string(v)) return put(r, name, kind, json_string_value(v));
    if (!json_is_object(v) && !json_is_boolean(v)) return wrong(r, name, v, "a JSON schema");
    return put_json(r, name, kind, v);
}

static int put_field(reader *r, const constraint_field *f, const json_t *v)
{
    if (f->kind == MSGL_GRAMMAR_JSON_SCHEMA) return put_schema(r, f->name, v);
    if (f->kind == MSGL_GRAMMAR_JSON_OBJECT) {
        if (!json_is_boolean(v)) return wrong(r, f->name, v, "a boolean");
        return json_is_true(v) ? put(r, f->name, MSGL_GRAMMAR_JSON_OBJECT, NULL) : 0;
    }
    if (f->kind == MSGL_GRAMMAR_CHOICE) {
        if (!json_is_array(v)) return wrong(r, f->name, v, "an array of strings");
        return put_json(r, f->name, MSGL_GRAMMAR_CHOICE, v);
    }
    if (!json_is_string(v)) return wrong(r, f->name, v, "a string");
    const char *text = json_string_value(v);
    if (f->kind == MSGL_GRAMMAR_REGEX) return put(r, f->name, MSGL_GRAMMAR_REGEX, text);
    // Rules of GBNF have this sign, and those of Lark never.
    const bool gbnf = strstr(text, "::=") != NULL;
    return put(r, f->name, gbnf ? MSGL_GRAMMAR_GBNF : MSGL_GRAMMAR_LARK, text);
}

static int response_format(reader *r, const json_t *v)
{
    static const char name[] = "response_format", schema[] = "response_format.json_schema.schema";
    if (!json_is_object(v)) return wrong(r, name, v, "an object");
    const char *type = json_string_value(json_object_get(v, "type"));
    if (type == NULL) {
        return msgl__api_fail(r->e, 400, name, "invalid_value",
                              "'response_format' has no 'type'; allowed: \"text\", "
                              "\"json_object\", \"json_schema\".");
    }
    if (strcmp(type, "text") == 0) return 0;
    if (strcmp(type, "json_object") == 0) {
        const json_t *own = msgl__field(v, "schema"); // llama-server's
        return own != NULL ? put_schema(r, "response_format.schema", own)
                           : put(r, name, MSGL_GRAMMAR_JSON_OBJECT, NULL);
    }
    if (strcmp(type, "json_schema") != 0) {
        return msgl__api_fail(r->e, 400, name, "unsupported_parameter",
                              "'response_format.type' is \"%.40s\"; allowed: \"text\", "
                              "\"json_object\", \"json_schema\".",
                              type);
    }
    // LM Studio's and Together's clients leave the object in between out.
    const json_t *js = msgl__field(v, "json_schema"), *flat = msgl__field(v, "schema");
    if (js == NULL && flat != NULL) return put_schema(r, "response_format.schema", flat);
    const json_t *s = js == NULL ? NULL : msgl__field(js, "schema");
    if (s == NULL) {
        return msgl__field_missing(r->e, schema);
    }
    r->strict = json_is_true(msgl__field(js, "strict"));
    return put_schema(r, schema, s);
}

static int structured_outputs(reader *r, const json_t *v)
{
    static const char name[] = "structured_outputs";
    const size_t skip = sizeof name; // and the dot
    if (!json_is_object(v)) return wrong(r, name, v, "an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value)
    {
        size_t i = 0;
        if (json_is_null(value)) continue;
        while (i < MSGL_COUNT(INSIDE) && strcmp(INSIDE[i].name + skip, key) != 0) i++;
        if (i == MSGL_COUNT(INSIDE)) {
            return msgl__api_fail(r->e, 400, name, "unsupported_parameter",
                                  "'structured_outputs.%.40s' is not supported by this server; "
                                  "allowed: json, regex, choice, grammar, json_object.",
                                  key);
        }
        const int rc = put_field(r, &INSIDE[i], value);
        if (rc != 0) return rc;
    }
    return 0;
}

static int compile(const reader *r, msgl_claim *claim)
{
    msgl_err err = {0};
    const msgl_constraint_use use = {r->cfg, claim, r->left_out, r->strict};
    const int rc = msgl__constraint_compile(r->out, &use, &err);
    if (rc == 0 || rc == MSGL_API_FORM) return rc;
    if (rc == MSGL_EBUSY) return msgl__api_fail_memory(r->e, rc);
    if (rc == MSGL_ENOMEM) return msgl__api_oom(r->e);
    return msgl__api_fail(r->e, 400, r->name,
                          rc == MSGL_EUNSUPPORTED ? "unsupported_parameter" : "invalid_value",
                          "'%s': %s.", r->name, err.text);
}

int msgl__constraint_compile(const msgl_constraint_text *c, const msgl_constraint_use *use,
                             msgl_err *err)
{
    const bool fixed = c->kind == MSGL_GRAMMAR_JSON_OBJECT; // it is small, whoever asks for it
    if (use->cfg->defer_forms && !fixed) return MSGL_API_FORM;
    msgl_claim *claim = use->claim;
    msgl_grammar_limits limits;
    msgl__grammar_limits_init(&limits);
    limits.lenient = !use->strict;
    const size_t most = claim == NULL || claim->budget == NULL
                            ? limits.compile_bytes
                            : msgl__budget_request_limit(claim->budget) / 2;
    if (limits.compile_bytes > most) limits.compile_bytes = most;
    const size_t taken = fixed ? 0 : limits.compile_bytes;
    int rc = claim == NULL ? 0 : msgl__claim_add(claim, MSGL_BUDGET_PROMPT, taken);
    if (rc != 0) return msgl__err_set(err, MSGL_EBUSY, "%s", msgl__budget_refusal(rc));
    msgl_grammar *g = NULL;
    rc = msgl__grammar_compile(c->kind, c->text == NULL ? "" : c->text, &limits, &g, err);
    msgl__grammar_unref(g);
    if (claim != NULL) msgl__claim_sub(claim, taken);
    if (rc != 0 || err->text[0] == '\0') return rc;
    // What was left out is not logged where there is no room for it: the log names only a few
    // anyway.
    msgl_strbuf *out = use->left_out;
    if (msgl__strbuf_adds(out, err->text) == 0) (void)msgl__strbuf_addc(out, '\0');
    return 0;
}

int msgl__constraint_parse(const json_t *o, const msgl_api_config *cfg, msgl_claim *claim,
                           msgl_strbuf *left_out, msgl_constraint_text *out, msgl_api_error *e)
{
    reader r = {.out = out, .name = "", .cfg = cfg, .left_out = left_out, .e = e};
    int rc = 0;
    *out = (msgl_constraint_text){0};
    const json_t *v = msgl__field(o, "response_format");
    if (v != NULL) rc = response_format(&r, v);
    v = msgl__field(o, "structured_outputs");
    if (rc == 0 && v != NULL) rc = structured_outputs(&r, v);
    for (size_t i = 0; i < MSGL_COUNT(OUTSIDE) && rc == 0; i++) {
        v = msgl__field(o, OUTSIDE[i].name);
        if (v == NULL || (json_is_string(v) && json_string_length(v) == 0)) continue;
        rc = put_field(&r, &OUTSIDE[i], v);
    }
    if (rc == 0 && out->kind != MSGL_GRAMMAR_NONE) rc = compile(&r, claim);
    if (rc != 0) msgl__constraint_text_free(out);
    return rc;
}
