// SPDX-License-Identifier: Apache-2.0
//
// JSON schema to expressions: what the files schema*.c have in common. A place in the schema is a
// JSON pointer, which messages name. Each schema is a rule, which is found by the address of its
// JSON object and is there before its body is compiled: so recursion through $ref ends.
#ifndef MSGL_GRAMMAR_SCHEMA_H
#define MSGL_GRAMMAR_SCHEMA_H

#include <jansson.h>

#include "grammar/json_text.h"

#define MSGL_SCHEMA_DEPTH 100 // schemas inside schemas
#define MSGL_SCHEMA_PLACE 160 // bytes of a place that are kept for messages
#define MSGL_SCHEMA_REFS 100  // $ref to allOf to $ref to ...
#define MSGL_SCHEMA_HEADS 256
#define MSGL_SCHEMA_STRINGS 64

typedef struct msgl_schema_rule {
    const json_t *schema;
    int32_t rule;
} msgl_schema_rule;

// A schema that the last walk through subschemas came to (schema_merge.c).
typedef struct msgl_schema_seen {
    const json_t *schema;
    int32_t walk;  // the number of that walk
    int32_t state; // whether the walk has left it again
} msgl_schema_seen;

// Subschemas that all have to hold, and the schema that they are merged into.
typedef struct msgl_schema_sum {
    uint64_t hash;       // of their addresses
    int32_t n, next;     // next: the next one in the chain of its head, -1: none
    json_t **subschemas; // [n]
    json_t *merged;
} msgl_schema_merge;

// An integer beyond 64 bits, as the text has it. The reader of JSON would round it, and reads
// another real in its place, such as 3e201 for the third of them, by which the integer's text is
// found.
typedef struct msgl_schema_large {
    double value;
    const char *text;
    size_t n;
} msgl_schema_large;

typedef struct msgl_schema {
    msgl_gx_builder *b;
    json_t *root;
    json_t *made; // array: schemas that merging made, kept until the end
    msgl_json_rules json;
    msgl_schema_rule *rules; // open addressing by the schema's address
    int32_t num_rules, cap_rules;
    msgl_schema_seen *seen; // the same
    int32_t num_seen, cap_seen, walk;
    msgl_schema_merge *merges;
    int32_t num_merges, cap_merges;
    int32_t merge_heads[MSGL_SCHEMA_HEADS]; // the index + 1 of the first in a chain, 0: none
    msgl_schema_large *large;
    int32_t num_large, cap_large;
    int32_t character; // of a string, as an expression; -1: not made yet
    struct {           // rules of strings by their length
        int32_t min, max, rule;
    } strings[MSGL_SCHEMA_STRINGS];
    int32_t num_strings;
    bool open;        // objects may have members that their properties do not name
    char refused[48]; // keyword of the last failure
    char place[MSGL_SCHEMA_PLACE];
    int depth;
} msgl_schema;

// Types as bits. MSGL_T_NUMBER stands for numbers that are no integers: "number" is both bits.
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
                          const char *text, size_t n, bool open);
// The reference to a schema's rule; a boolean schema is allowed. `key` (and `index` when
// key is NULL and it is not -1) is added to the place while it is compiled.
int32_t msgl__schema_at(msgl_schema *s, json_t *schema, const char *key, int index);
int32_t msgl__schema_fail(msgl_schema *s, int code, const char *keyword, const char *what);
// A count of 0 or more under keyword: `none` if it is not there; -1 after a failure.
int32_t msgl__schema_count(msgl_schema *s, const json_t *schema, const char *keyword, int32_t none);
// A keyword that is not supported here, and whose leaving out needs nothing else: 0 if that is
// allowed (the notes then name it), else -1.
int msgl__schema_leave_out(msgl_schema *s, const char *keyword, const char *what);
json_t *msgl__schema_ref_target(msgl_schema *s, const json_t *ref); // NULL: failed
bool msgl__schema_is_note(const char *keyword);                     // it constrains nothing
bool msgl__schema_only_links(const json_t *schema); // $ref, allOf, and what constrains nothing
int32_t msgl__schema_const(msgl_schema *s, const json_t *value);
// Keeps what was made for the schema's compilation; takes the reference. NULL: out of memory.
json_t *msgl__schema_keep(msgl_schema *s, json_t *made);
// Extends the place by a token of a JSON pointer; returns the length before, to cut it back to.
size_t msgl__schema_enter(msgl_schema *s, const char *key, int index);

static inline uint32_t msgl__schema_slot(const json_t *schema, int32_t cap)
{
    return (uint32_t)(((uintptr_t)schema >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32) &
           (uint32_t)(cap - 1);
}

// schema_merge.c. The schema with what allOf and $ref lead to merged into it, which has neither of
// them and is the same one for the same schema; or a boolean. NULL: failed.
json_t *msgl__schema_flat(msgl_schema *s, json_t *schema);
// {"allOf": [a, b]}; a new reference, NULL: failed.
json_t *msgl__schema_both(msgl_schema *s, json_t *a, json_t *b);

// schema_check.c. Whether a value is valid, as the standard has it (objects are open): 1, 0, or -1
// after a failure, which is MSGL_EUNSUPPORTED where that cannot be decided.
int msgl__schema_allows(msgl_schema *s, json_t *schema, const json_t *value);
// schema_one.c. The expression of values that are valid for exactly one of the alternatives, each
// of which is flat.
int32_t msgl__schema_one_of(msgl_schema *s, json_t **list, int32_t n);

// schema_object.c, schema_array.c, schema_number.c, schema_string.c: bodies by type.
int32_t msgl__schema_object(msgl_schema *s, json_t *schema);
int32_t msgl__schema_array(msgl_schema *s, json_t *schema);
// Shortest text that reads back as v, with a point or an exponent in it.
void msgl__schema_real(double v, char *out, size_t size);
int32_t msgl__schema_number(msgl_schema *s, const json_t *schema, bool integer);
int32_t msgl__schema_string(msgl_schema *s, const json_t *schema);
// The pattern of "format", NULL: there is none to keep to, or a failure.
const char *msgl__schema_format(msgl_schema *s, const json_t *schema);
// Whether a pattern is found in a text, or (whole) is all of it: 1, 0, or -1 after a failure.
int msgl__schema_matches(msgl_schema *s, const char *pattern, bool whole, const char *const *texts,
                         int32_t n);
int msgl__schema_check_keywords(msgl_schema *s, json_t *schema);
// NULL: the number is none of the large integers.
const msgl_schema_large *msgl__schema_large_of(const msgl_schema *s, const json_t *v);
int msgl__schema_types(msgl_schema *s, const json_t *schema); // 0: failed
bool msgl__schema_has_type(const msgl_schema *s, const json_t *v, int types);

#endif
