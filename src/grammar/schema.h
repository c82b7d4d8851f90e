// SPDX-License-Identifier: Apache-2.0
//
// JSON schema to expressions; shared by schema*.c. Places in the schema are JSON pointers, for
// messages. A schema that is being compiled is a rule of its own, found again by its object, which
// is how recursion through $ref ends.
#ifndef MSGL_GRAMMAR_SCHEMA_H
#define MSGL_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "grammar/json_text.h"

#define MSGL_SCHEMA_MADE 10000 // schemas that merging may make
#define MSGL_SCHEMA_DEPTH 100  // schemas inside schemas
#define MSGL_SCHEMA_PLACE 160  // bytes of a place that are kept for messages
#define MSGL_SCHEMA_REFS 100   // $ref to $ref to ...

typedef struct msgl_schema_rule {
    const json_t *schema;
    int32_t rule;
} msgl_schema_rule;

typedef struct msgl_schema {
    msgl_gx_builder *b;
    json_t *root;
    json_t *made; // array: schemas that merging made, kept until the end
    msgl_json_rules json;
    msgl_schema_rule *rules; // open addressing by the schema's address
    int32_t num_rules, cap_rules;
    char place[MSGL_SCHEMA_PLACE];
    int depth;
} msgl_schema;

// Types as bits; integer is apart from number.
enum {
    MSGL_T_NULL = 1,
    MSGL_T_BOOL = 2,
    MSGL_T_INTEGER = 4,
    MSGL_T_NUMBER = 8,
    MSGL_T_STRING = 16,
    MSGL_T_ARRAY = 32,
    MSGL_T_OBJECT = 64,
    MSGL_T_ALL = 127,
};

// schema.c. The expression of the schema in text[0, n); `place` is the root's in messages. rules:
// those of JSON's own parts that b has already, which are added to.
int32_t msgl__schema_expr(msgl_gx_builder *b, msgl_json_rules *rules, const char *place,
                          const char *text, size_t n);
// The reference to a schema's rule; a boolean schema is allowed. `key` (and `index` when
// key is NULL and it is not -1) is added to the place while it is compiled.
int32_t msgl__schema_at(msgl_schema *s, json_t *schema, const char *key, int index);
int32_t msgl__schema_fail(msgl_schema *s, int code, const char *keyword, const char *what);
// A count of 0 or more under keyword: `none` if it is not there; -1 after a failure.
int32_t msgl__schema_count(msgl_schema *s, const json_t *schema, const char *keyword, int32_t none);
json_t *msgl__schema_resolve(msgl_schema *s, json_t *schema); // follows $ref; NULL: failed
int32_t msgl__schema_const(msgl_schema *s, const json_t *value);
// Keeps what was made for the schema's compilation; takes the reference. NULL: out of memory.
json_t *msgl__schema_keep(msgl_schema *s, json_t *made);
// Extends the place by a token of a JSON pointer; returns what to cut it back to.
size_t msgl__schema_enter(msgl_schema *s, const char *key, int index);

// schema_merge.c. allOf, $ref beside other keywords: one schema that says both. NULL: failed.
json_t *msgl__schema_merge(msgl_schema *s, json_t *a, json_t *b);

// schema_object.c, schema_array.c, schema_number.c, schema_string.c: bodies by type.
int32_t msgl__schema_object(msgl_schema *s, json_t *schema);
int32_t msgl__schema_array(msgl_schema *s, json_t *schema);
// Shortest text that reads back as v, with a point or an exponent in it.
void msgl__schema_real(double v, char *out, size_t size);
int32_t msgl__schema_number(msgl_schema *s, const json_t *schema, bool integer);
int32_t msgl__schema_string(msgl_schema *s, const json_t *schema);

#endif
