// SPDX-License-Identifier: Apache-2.0
//
// Writes docs/http.md, the reference of the server's endpoints, from the descriptors that route to
// them and the rows that read their fields. tests/e2e/http_reference.py runs its curl lines.
#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "cli/common.h"
#include "core/attributes.h"
#include "program/endpoints.h"
#include "api/fields.h"

#define ADDRESS "http://127.0.0.1:1919"

// Fields that several endpoints have; they are written once.
static const msgl_fields *const SHARED[] = {&msgl__conversation_fields, &msgl__request_fields,
                                            &msgl__sampling_fields};

// Writes a text into a cell of a table.
static void put_cell(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) fprintf(out, *text == '|' ? "\\|" : "%c", *text);
}

static const char *type_of(const msgl_field_row *row)
{
    const msgl_setting *s = msgl__field_setting(row);
    if (s != NULL) {
        return s->type == MSGL_SETTING_FLAG  ? "boolean"
               : s->type == MSGL_SETTING_INT ? "integer"
                                             : "number";
    }
    switch (row->type) {
    case MSGL_FIELD_BOOL: return "boolean";
    case MSGL_FIELD_INT: return "integer";
    case MSGL_FIELD_REAL: return "number";
    case MSGL_FIELD_STRING: return "string";
    case MSGL_FIELD_STRINGS: return "array of strings";
    case MSGL_FIELD_IDS: return "array of token ids";
    case MSGL_FIELD_ARRAY: return "array";
    case MSGL_FIELD_OBJECT: return "object";
    case MSGL_FIELD_ANY:
    case MSGL_FIELD_SETTING: break;
    }
    return "";
}

static void put_limits(FILE *out, const msgl_field_row *row)
{
    const msgl_setting *s = msgl__field_setting(row);
    if (s != NULL && s->type != MSGL_SETTING_FLAG) {
        fprintf(out, s->max == INT32_MAX ? "%.10g to %.0f" : "%.10g to %.10g", s->min, s->max);
    } else if (row->min != 0 || row->max != 0) {
        fprintf(out, "%s%" PRId64 " to %" PRId64, row->unlimited ? "-1, or " : "", row->min,
                row->max);
    }
    if (row->max_items > 0) fprintf(out, "at most %d elements", row->max_items);
    if (row->max_bytes == 0) return;
    fprintf(out, row->max_items > 0 ? ", each of up to %d bytes" : "up to %d bytes",
            row->max_bytes);
}

static void put_default(FILE *out, const msgl_field_row *row)
{
    const msgl_setting *s = msgl__field_setting(row);
    if (row->required) {
        fprintf(out, "**required**");
    } else if (row->preset != NULL) {
        put_cell(out, row->preset);
    } else if (s != NULL && s->by_default != NULL) {
        put_cell(out, s->by_default + strspn(s->by_default, ":; "));
    } else if (s != NULL && s->type == MSGL_SETTING_FLAG) {
        fprintf(out, "%s", s->preset != 0 ? "true" : "false");
    } else if (s != NULL) {
        fprintf(out, "%.10g", s->preset);
    }
}

static void put_row(FILE *out, const msgl_field_row *row)
{
    const msgl_setting *s = msgl__field_setting(row);
    fprintf(out, "| `%s` | %s | ", row->name, type_of(row));
    put_limits(out, row);
    fprintf(out, " | ");
    put_default(out, row);
    fprintf(out, " | ");
    if (row->only != NULL) fprintf(out, "only ");
    put_cell(out, row->only != NULL ? row->only : row->help != NULL ? row->help : s->help);
    fprintf(out, " |\n");
}

static const char *neutral_name(msgl_neutral n)
{
    switch (n) {
    case MSGL_NEUTRAL_NULL: return "`null`";
    case MSGL_NEUTRAL_ZERO: return "0";
    case MSGL_NEUTRAL_ONE: return "1";
    case MSGL_NEUTRAL_FALSE: return "`false`";
    case MSGL_NEUTRAL_EMPTY: return "empty";
    case MSGL_NEUTRAL_OFF: return "off (empty, `false`, 0, -1)";
    case MSGL_NEUTRAL_TEXT: return "`{\"type\": \"text\"}`";
    case MSGL_NEUTRAL_NO_AUDIO: return "`[\"text\"]`";
    }
    return "";
}

// Writes the fields that are refused, grouped by the value that they may have all the same.
static void put_refused(FILE *out, const msgl_refused_field *list)
{
    for (int n = MSGL_NEUTRAL_NULL; list != NULL && n <= MSGL_NEUTRAL_NO_AUDIO; n++) {
        const char *before = NULL;
        for (const msgl_refused_field *r = list; r->name != NULL; r++) {
            if ((int)r->neutral != n) continue;
            if (before == NULL) fprintf(out, "\nRefused unless %s: ", neutral_name(r->neutral));
            fprintf(out, "%s`%s`", before == NULL ? "" : ", ", r->name);
            before = r->name;
        }
        if (before != NULL) fprintf(out, ".\n");
    }
}

static const msgl_fields *shared(const msgl_field_row *rows)
{
    for (size_t i = 0; i < MSGL_COUNT(SHARED); i++) {
        if (SHARED[i]->read == rows) return SHARED[i];
    }
    return NULL;
}

static void put_link(FILE *out, const char *title)
{
    fprintf(out, "[%s](#", title);
    for (; *title != '\0'; title++)
        fputc(*title == ' ' ? '-' : tolower((unsigned char)*title), out);
    fputc(')', out);
}

// Writes the fields of a kind of object, and links to those that others have, too.
static void put_fields(FILE *out, const msgl_fields *f)
{
    const msgl_fields *links[MSGL_COUNT(SHARED)];
    size_t num_links = 0;
    bool begun = false;
    for (const msgl_fields *more = f; more != NULL; more = more->also) {
        const msgl_fields *in = shared(more->read);
        if (in != NULL && in != f) {
            links[num_links++] = in;
            continue;
        }
        if (!begun) {
            fprintf(out,
                    "\n| field | type | limits | default | meaning |\n|---|---|---|---|---|\n");
        }
        begun = true;
        for (const msgl_field_row *row = more->read; row->name != NULL; row++) put_row(out, row);
    }
    for (size_t i = 0; i < num_links; i++) {
        fprintf(out, i == 0 ? "\nAnd: " : ", ");
        put_link(out, links[i]->title);
    }
    if (num_links > 0) fprintf(out, ".\n");
    for (; f != NULL; f = f->also) put_refused(out, f->refused);
}

static const char *method_name(msgl_http_method m)
{
    return m == MSGL_HTTP_GET ? "GET" : m == MSGL_HTTP_POST ? "POST" : "DELETE";
}

// Writes a body within the single quotes of a shell. A name such as $FILE is outside of them, so
// that the shell puts its value there.
static void put_body(FILE *out, const char *body)
{
    fputs(" -H 'Content-Type: application/json' -d '", out);
    while (*body != '\0') {
        const size_t name = *body == '$' ? 1 + strspn(body + 1, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") : 0;
        if (name > 0) {
            fprintf(out, "'%.*s'", (int)name, body);
            body += name;
        } else {
            fputc(*body++, out);
        }
    }
    fputc('\'', out);
}

static void put_example(FILE *out, const msgl_endpoint *ep, const msgl_example *x)
{
    fprintf(out, "\n%s:\n\n    curl -s %s%s%s", x->help,
            x->method == MSGL_HTTP_DELETE                    ? "-X DELETE "
            : x->method == MSGL_HTTP_POST && x->body == NULL ? "-X POST "
                                                             : "",
            ADDRESS, ep->path);
    if (x->rest != NULL) fputs(x->rest, out);
    if (x->body != NULL && x->form) fprintf(out, " %s", x->body);
    if (x->body != NULL && !x->form) put_body(out, x->body);
    fprintf(out, "\n\nAnswer: %d, `%s`", x->status == 0 ? 200 : x->status,
            x->type != NULL ? x->type : msgl__endpoint_type(ep));
    for (const char *name = x->has; name != NULL && *name != '\0';) {
        const size_t n = strcspn(name, " ");
        fprintf(out, "%s`%.*s`", name == x->has ? " with " : ", ", (int)n, name);
        name += n + (name[n] == ' ');
    }
    if (x->end != NULL) fprintf(out, "; its end has `%s`", x->end);
    fprintf(out, ".\n");
}

static unsigned places_of(const msgl_endpoint *ep)
{
    unsigned at = MSGL_AT_ANY;
    if (!ep->open) at |= MSGL_AT_KEY;
    if (ep->parse != NULL || ep->take != NULL) at |= MSGL_AT_BODY;
    if (ep->parse != NULL) at |= MSGL_AT_PARSE;
    if (ep->prefix) at |= MSGL_AT_NAME;
    if (ep->put_stats != NULL || msgl__endpoint_has_engine(ep)) at |= MSGL_AT_ENGINE;
    if (ep->optional) at |= MSGL_AT_OPTIONAL;
    return at;
}

// Writes the errors that not every path has.
static void put_errors(FILE *out, const msgl_endpoint *ep)
{
    int n = 0;
    for (const msgl_api_status *s = msgl__api_statuses; s->status != 0; s++) {
        if ((s->places & MSGL_AT_ANY) != 0 || (s->places & places_of(ep)) == 0) continue;
        fprintf(out, "%s%d", n++ == 0 ? "\n[Errors](#errors), beside those of any path: " : ", ",
                s->status);
    }
    if (n > 0) fprintf(out, ".\n");
}

// An earlier endpoint whose fields ep has, or NULL.
static const msgl_endpoint *same_fields(const msgl_endpoint *ep)
{
    const msgl_endpoint *other;
    for (int i = 0; (other = msgl__endpoints[i]) != ep; i++) {
        if (ep->objects != NULL && other->objects == ep->objects) return other;
    }
    return NULL;
}

static void put_endpoint(FILE *out, const msgl_endpoint *ep)
{
    static const msgl_http_method all[] = {MSGL_HTTP_GET, MSGL_HTTP_POST, MSGL_HTTP_DELETE};
    int n = 0;
    fprintf(out, "\n## ");
    for (size_t i = 0; i < MSGL_COUNT(all); i++) {
        if ((ep->method & (int)all[i]) == 0) continue;
        fprintf(out, "%s%s", n++ == 0 ? "" : ", ", method_name(all[i]));
    }
    fprintf(out, " %s%s\n\n%s\n", ep->path, ep->prefix ? "..." : "", ep->help);
    const msgl_endpoint *like = same_fields(ep);
    if (like != NULL) fprintf(out, "\nIts fields are those of %s.\n", like->path);
    for (const msgl_fields *const *o = ep->objects; like == NULL && o != NULL && *o != NULL; o++) {
        if ((*o)->member != NULL) fprintf(out, "\nIn `%s`:\n", (*o)->member);
        if ((*o)->title != NULL && shared((*o)->read) == NULL) fprintf(out, "\n%s:\n", (*o)->title);
        put_fields(out, *o);
    }
    put_errors(out, ep);
    for (const msgl_example *x = ep->examples; x->help != NULL; x++) put_example(out, ep, x);
}

static void put_names(FILE *out, const char *const *names)
{
    for (int i = 0; names[i] != NULL; i++) fprintf(out, "%s`%s`", i == 0 ? "" : ", ", names[i]);
    fprintf(out, ".\n");
}

static void put_common(FILE *out)
{
    for (size_t i = 0; i < MSGL_COUNT(SHARED); i++) {
        fprintf(out, "\n## %s\n", SHARED[i]->title);
        put_fields(out, SHARED[i]);
    }
    fprintf(
        out,
        "\n## Other fields\n\nA field is also read by the same words in another convention "
        "(`maxTokens`, `max-tokens`), and by the names `chat_template_args`, `n_predict`, "
        "`num_predict`, `max_new_tokens`, `max_output_tokens` and `stop_sequences`, unless it is "
        "there by its own name, too. A name that is a letter away from one that is read is a "
        "400, any other is named in the log once (`--unknown-fields`).\n\n"
        "Fields of other servers that change nothing are read over: ");
    put_names(out, msgl__harmless_fields);
    fprintf(out, "\nFields of other servers that may change the answer are named in the log, or "
                 "refused with `--unknown-fields refuse`: ");
    put_names(out, msgl__foreign_fields);
    put_refused(out, msgl__refused_fields);
    fprintf(out,
            "That is where they are not read.\n\n## Errors\n\n"
            "`{\"error\": {\"message\": ..., \"type\": ..., \"param\": ..., \"code\": ...}}`; "
            "`param` is the field that is wrong.\n\n| status | type | meaning |\n|---|---|---|\n");
    for (const msgl_api_status *s = msgl__api_statuses; s->status != 0; s++) {
        fprintf(out, "| %d | `%s` | %s |\n", s->status, s->type, s->help);
    }
    fprintf(out, "\n| code | meaning |\n|---|---|\n");
    for (const msgl_api_code *c = msgl__api_codes; c->code != NULL; c++) {
        fprintf(out, "| `%s` | %s |\n", c->code, c->help);
    }
}

void msgl__help_http(FILE *out)
{
    fprintf(out,
            "# HTTP\n\nWritten by `minisgl help --http` from the tables that route requests and "
            "read their fields. A test runs the\ncurl lines, from top to bottom, against `minisgl "
            "serve models/demo --batch-dir DIR`. `null` is as if a field were left out.\n"
            "With a key (`--api-key`), paths want `-H 'Authorization: Bearer KEY'`, `X-Api-Key` or "
            "`Api-Key`. Limits on bytes, connections, time and\nmemory are options of "
            "[`serve`](cli.md#minisgl-serve).\n\n"
            "What answers with the model also does without `/v1`, with a slash at the end or twice "
            "within, and at Azure's\n`/openai/deployments/NAME/...` and `/openai/v1/...`; a 404 "
            "names the "
            "nearest path.\n");
    const msgl_endpoint *ep;
    for (int i = 0; (ep = msgl__endpoints[i]) != NULL; i++) put_endpoint(out, ep);
    put_common(out);
}
