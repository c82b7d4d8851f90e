// SPDX-License-Identifier: Apache-2.0
//
// Reads a flat mapping from libyaml's events. Everything else (nesting, anchors, tags, a second
// document) is refused where it begins, so that nothing can become larger than the file.
#include "cli/options_file.h"

#include <stdbool.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "core/mem.h"
#include "utils/file.h"

typedef struct reader {
    const char *path;
    msgl_options_file *out;
    yaml_parser_t parser;
    yaml_event_t event;
    msgl_err *err;
} reader;

int msgl__options_file_at(const char *path, int line, msgl_err *err)
{
    char text[sizeof err->text];
    memcpy(text, err->text, sizeof text);
    return msgl__err_set(err, err->code, "%s:%d: %s", msgl__path_shown(path), line, text);
}

static int line_of(const reader *r)
{
    return (int)r->event.start_mark.line + 1;
}

static int wrong(reader *r, const char *text)
{
    msgl__err_set(r->err, MSGL_EFORMAT, "%s", text);
    return msgl__options_file_at(r->path, line_of(r), r->err);
}

// Puts the next event in the place of the last one.
static int next(reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) return 0;
    r->event = (yaml_event_t){0};
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) {
        return msgl__err_set(r->err, MSGL_ENOMEM, "%s: out of memory", msgl__path_shown(r->path));
    }
    const size_t line = p->error == YAML_READER_ERROR ? p->mark.line : p->problem_mark.line;
    msgl__err_set(r->err, MSGL_EFORMAT, "no YAML: %s", p->problem == NULL ? "" : p->problem);
    return msgl__options_file_at(r->path, (int)line + 1, r->err);
}

// Reads the event, a scalar. *text NULL: it is null.
static int read_scalar(reader *r, const char **text)
{
    const yaml_event_t *e = &r->event;
    const char *s = (const char *)e->data.scalar.value;
    const size_t n = e->data.scalar.length;
    msgl_options_file *c = r->out;
    if (e->data.scalar.anchor != NULL || e->data.scalar.tag != NULL) {
        return wrong(r, "anchors (&) and tags (!) are not read; allowed: plain values");
    }
    if (memchr(s, '\0', n) != NULL) return wrong(r, "a text has a NUL byte");
    *text = NULL;
    const bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (plain && (n == 0 || strcmp(s, "~") == 0 || strcasecmp(s, "null") == 0)) return 0;
    if (n >= c->cap_texts - c->len) return wrong(r, "the texts are too long"); // escapes: never
    *text = memcpy(c->texts + c->len, s, n + 1);
    c->len += n + 1;
    return 0;
}

static int add(reader *r, const char *key, int index)
{
    msgl_options_file *c = r->out;
    const char *value;
    const int rc = read_scalar(r, &value);
    if (rc != 0) return rc;
    if (c->count == c->cap) {
        const int cap = c->cap == 0 ? 64 : 2 * c->cap;
        msgl_file_option *more = msgl__reallocarray(c->entries, (size_t)cap, sizeof *more);
        if (more == NULL) {
            return msgl__err_set(r->err, MSGL_ENOMEM, "%s: out of memory",
                                 msgl__path_shown(r->path));
        }
        c->entries = more;
        c->cap = cap;
    }
    c->entries[c->count++] =
        (msgl_file_option){.key = key, .value = value, .line = line_of(r), .index = index};
    return 0;
}

// Reads a value, or a list of values, which the event begins.
static int read_value(reader *r, const char *key)
{
    static const char nested[] = "options are not nested; allowed: NAME: VALUE, or NAME: [VALUE, "
                                 "...]";
    if (r->event.type == YAML_SCALAR_EVENT) return add(r, key, -1);
    if (r->event.type != YAML_SEQUENCE_START_EVENT) return wrong(r, nested);
    if (r->event.data.sequence_start.anchor != NULL || r->event.data.sequence_start.tag != NULL) {
        return wrong(r, nested);
    }
    int rc = 0;
    for (int i = 0; rc == 0; i++) {
        rc = next(r);
        if (rc != 0 || r->event.type == YAML_SEQUENCE_END_EVENT) return rc;
        rc = r->event.type == YAML_SCALAR_EVENT ? add(r, key, i) : wrong(r, nested);
    }
    return rc;
}

static int read_mapping(reader *r)
{
    for (;;) {
        const char *key;
        int rc = next(r);
        if (rc != 0 || r->event.type == YAML_MAPPING_END_EVENT) return rc;
        if (r->event.type != YAML_SCALAR_EVENT) return wrong(r, "a key is no option's name");
        rc = read_scalar(r, &key);
        if (rc == 0 && key == NULL) rc = wrong(r, "a key is no option's name");
        if (rc == 0) rc = next(r);
        if (rc == 0) rc = read_value(r, key);
        if (rc != 0) return rc;
    }
}

// A file of nothing but comments has no options.
static int read_stream(reader *r)
{
    static const char flat[] = "no list of options; allowed: lines of NAME: VALUE";
    int rc = next(r); // of the stream's start
    if (rc == 0) rc = next(r);
    if (rc != 0 || r->event.type == YAML_STREAM_END_EVENT) return rc;
    rc = next(r); // behind the document's start
    if (rc != 0) return rc;
    const bool empty = r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.length == 0 &&
                       r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (!empty && r->event.type != YAML_MAPPING_START_EVENT) return wrong(r, flat);
    if (!empty) rc = read_mapping(r);
    if (rc == 0) rc = next(r); // the document's end
    if (rc == 0) rc = next(r);
    return rc == 0 && r->event.type != YAML_STREAM_END_EVENT ? wrong(r, "a second document") : rc;
}

int msgl__options_file_read(const char *path, msgl_options_file *out, msgl_err *err)
{
    char *data;
    size_t len;
    *out = (msgl_options_file){0};
    int rc = msgl__file_read(path, MSGL_OPTIONS_FILE_MAX, &data, &len, err);
    if (rc != 0) return rc;
    // In UTF-8 "\L", with 2 bytes, stands for U+2028, with 3; and each text has a NUL. Twice the
    // file's length has room for both.
    out->cap_texts = 2 * len + 2;
    out->texts = msgl__malloc(out->cap_texts);
    reader r = {.path = path, .out = out, .err = err};
    if (out->texts == NULL || !yaml_parser_initialize(&r.parser)) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", msgl__path_shown(path));
    } else {
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)data, len);
        rc = read_stream(&r);
        yaml_event_delete(&r.event);
        yaml_parser_delete(&r.parser);
    }
    msgl__free(data);
    if (rc != 0) msgl__options_file_free(out);
    return rc;
}

void msgl__options_file_free(msgl_options_file *c)
{
    msgl__free(c->entries);
    msgl__free(c->texts);
    *c = (msgl_options_file){0};
}
