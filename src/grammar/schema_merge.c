// SPDX-License-Identifier: Apache-2.0
//
// Subschemas that all have to hold, merged into one schema: this is how allOf, $ref beside other
// keywords, and keywords beside anyOf are compiled. What one schema cannot say is refused by the
// keyword's name. First a schema's subschemas are collected: the schema itself without $ref and
// allOf, those that $ref and allOf lead to, and so on, each of them once. The same subschemas are
// merged once, whoever asks for them: otherwise {"allOf": [d, d]}, nested 30 levels deep, would be
// 2^30 merges. A merged schema shares values with those that it was made of.
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/schema.h"
#include "grammar/schema_number.h"
#include "utils/hash.h"

enum { MAX_PRODUCT = 400 };

// ---- JSON that is made, and what it costs ----

// Upper bounds of what jansson takes for an object, an array and each of their values.
enum { OBJECT_BYTES = 256, ARRAY_BYTES = 160, VALUE_BYTES = 112 };

json_t *msgl__schema_keep(msgl_schema *s, json_t *made)
{
    const size_t n = json_object_size(made) + json_array_size(made);
    if (made == NULL || json_array_append_new(s->made, made) != 0) {
        msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
        return NULL;
    }
    if (msgl__gx_spend(s->b, n + 4, OBJECT_BYTES + VALUE_BYTES * (n + 1)) != 0) return NULL;
    return made;
}

json_t *msgl__schema_both(msgl_schema *s, json_t *a, json_t *b)
{
    if (msgl__gx_spend(s->b, 4, OBJECT_BYTES + ARRAY_BYTES + 3 * VALUE_BYTES) != 0) return NULL;
    json_t *all = json_pack("{s:[O,O]}", "allOf", a, b);
    if (all == NULL) msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
    return all;
}

static int set(msgl_schema *s, json_t *to, const char *key, json_t *value)
{
    if (s->b->rc == 0 && json_object_set_new(to, key, value) == 0) {
        return msgl__gx_spend(s->b, 1, VALUE_BYTES + strlen(key));
    }
    if (s->b->rc != 0) json_decref(value);
    return msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
}

// Appends v to a list, which owns it then; *bad is set where there was no memory for one of them.
static void push(json_t *list, json_t *v, bool *bad)
{
    *bad |= json_array_append_new(list, v) != 0;
}

// Returns v; or, where something of it could not be made, frees it and returns NULL.
static json_t *unless(bool bad, json_t *v)
{
    if (!bad) return v;
    json_decref(v);
    return NULL;
}

// How many values v has, itself among them, as steps of work: a comparison with it costs no more. A
// string counts one more for each 64 bytes.
static size_t weight(const json_t *v)
{
    size_t sum = 1, i; // v itself
    const char *key;
    json_t *x;
    if (json_is_string(v)) return 1 + json_string_length(v) / 64;
    json_object_foreach((json_t *)(uintptr_t)v, key, x) sum += weight(x);
    json_array_foreach(v, i, x)
    {
        sum += weight(x);
    }
    return sum;
}

static int never(msgl_schema *s, json_t *to)
{
    return set(s, to, "anyOf", json_pack("[b]", 0));
}

// ---- single keywords ----

// Whether the value of a "type" names a type: it is a list of names, or one name.
static bool names_type(const json_t *type, const char *name)
{
    if (json_is_string(type)) return strcmp(json_string_value(type), name) == 0;
    size_t i;
    const json_t *t;
    json_array_foreach(type, i, t)
    {
        if (json_is_string(t) && strcmp(json_string_value(t), name) == 0) return true;
    }
    return false;
}

static int merge_type(msgl_schema *s, json_t *to, const json_t *a, const json_t *b)
{
    static const char *const NAMES[] = {"null",   "boolean", "number", "integer",
                                        "string", "array",   "object"};
    json_t *list = json_array();
    bool number = false, bad = list == NULL;
    for (size_t i = 0; i < MSGL_COUNT(NAMES); i++) {
        const char *n = NAMES[i];
        bool in_a = names_type(a, n), in_b = names_type(b, n);
        if (strcmp(n, "number") == 0) number = in_a && in_b;
        if (strcmp(n, "integer") == 0) { // which is a number too
            in_a |= names_type(a, "number");
            in_b |= names_type(b, "number");
            if (number) continue;
        }
        if (in_a && in_b) push(list, json_string(n), &bad);
    }
    // No type in common: "never" is said by an anyOf of nothing that can be.
    if (!bad && json_array_size(list) == 0) {
        json_decref(list);
        return never(s, to);
    }
    return set(s, to, "type", unless(bad, list));
}

static int merge_enum(msgl_schema *s, json_t *to, const json_t *a, const json_t *b)
{
    json_t *list = json_array();
    bool bad = list == NULL;
    size_t i, k;
    json_t *x, *y;
    json_array_foreach(a, i, x)
    {
        if (msgl__gx_spend(s->b, weight(x) * json_array_size(b), VALUE_BYTES) != 0) break;
        json_array_foreach(b, k, y)
        {
            if (!json_equal(x, y)) continue;
            push(list, json_incref(x), &bad);
            break;
        }
    }
    if (!bad && json_array_size(list) == 0) {
        json_decref(list);
        (void)json_object_del(to, "enum");
        return never(s, to);
    }
    return set(s, to, "enum", unless(bad, list));
}

static int merge_required(msgl_schema *s, json_t *to, const json_t *a, const json_t *b)
{
    json_t *merged = json_array(), *seen = json_object();
    bool bad = merged == NULL || seen == NULL;
    for (int side = 0; side < 2; side++) {
        size_t i;
        json_t *x;
        json_array_foreach(side == 0 ? a : b, i, x)
        {
            const char *name = json_is_string(x) ? json_string_value(x) : NULL;
            if (name != NULL && json_object_get(seen, name) != NULL) continue;
            if (name != NULL) bad |= json_object_set_new(seen, name, json_true()) != 0;
            push(merged, json_incref(x), &bad);
            if (msgl__gx_spend(s->b, 2, VALUE_BYTES) != 0) break;
        }
    }
    json_decref(seen);
    return set(s, to, "required", unless(bad, merged));
}

// "anyOf" or "oneOf" of both: one alternative for every pair, as {"allOf": [a, b]}.
static int merge_product(msgl_schema *s, json_t *to, const char *key, const json_t *a,
                         const json_t *b)
{
    if (json_array_size(a) * json_array_size(b) > MAX_PRODUCT) {
        return msgl__schema_fail(s, MSGL_ELIMIT, key, "too many combinations (limit: 400)");
    }
    json_t *merged = json_array();
    bool bad = merged == NULL;
    size_t i, k;
    json_t *x, *y;
    json_array_foreach(a, i, x)
    {
        json_array_foreach(b, k, y)
        {
            push(merged, msgl__schema_both(s, x, y), &bad);
        }
    }
    return set(s, to, key, unless(bad, merged));
}

static int merge_key(msgl_schema *s, json_t *to, const char *key, json_t *a, json_t *b)
{
    static const struct {
        const char *name;
        bool larger;
    } BOUNDS[] = {{"minimum", true},       {"exclusiveMinimum", true},  {"minLength", true},
                  {"minItems", true},      {"minProperties", true},     {"maximum", false},
                  {"maxLength", false},    {"exclusiveMaximum", false}, {"maxItems", false},
                  {"maxProperties", false}};
    for (size_t i = 0; i < MSGL_COUNT(BOUNDS); i++) {
        if (strcmp(key, BOUNDS[i].name) != 0 || !json_is_number(a) || !json_is_number(b)) continue;
        msgl_dec x, y;
        msgl__dec_of(s, a, &x);
        msgl__dec_of(s, b, &y);
        const bool take_b = (msgl__dec_compare(&y, &x) > 0) == BOUNDS[i].larger;
        return set(s, to, key, json_incref(take_b ? b : a));
    }
    if (msgl__schema_is_note(key)) return 0;
    if (strcmp(key, "type") == 0) return merge_type(s, to, a, b);
    if (strcmp(key, "enum") == 0) return merge_enum(s, to, a, b);
    if (strcmp(key, "required") == 0) return merge_required(s, to, a, b);
    if (strcmp(key, "items") == 0) return set(s, to, key, msgl__schema_both(s, a, b));
    if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0)
        return merge_product(s, to, key, a, b);
    if (msgl__gx_spend(s->b, weight(b), 0) != 0 || json_equal(a, b)) return s->b->rc;
    if (strcmp(key, "const") == 0) return never(s, to);
    if (strcmp(key, "uniqueItems") == 0) return set(s, to, key, json_true());
    return msgl__schema_leave_out(s, key,
                                  "two different ones that both have to hold are not supported");
}

// ---- properties ----

// The schema of properties that are not named; NULL: they may have any value.
static json_t *said_of_others(const json_t *schema)
{
    json_t *more = json_object_get(schema, "additionalProperties");
    return more == NULL || json_is_true(more) ? NULL : more;
}

// Merges what a subschema says of properties. The object under "properties" of `merged` is not
// shared with a subschema, so that it may change.
static int merge_properties(msgl_schema *s, json_t *merged, const json_t *subschema)
{
    json_t *own = json_object_get(merged, "properties"),
           *theirs = json_object_get(subschema, "properties");
    json_t *xa = said_of_others(merged), *xb = said_of_others(subschema);
    const char *key;
    json_t *v;
    if (own == NULL && (theirs != NULL || xb != NULL)) {
        // Without "properties" of its own, "additionalProperties" of `merged` is about the names of
        // the others.
        if (theirs != NULL && set(s, merged, "properties", json_object()) != 0) return s->b->rc;
        own = json_object_get(merged, "properties");
    }
    if (xb != NULL && own != NULL) {
        void *tmp;
        json_object_foreach_safe(own, tmp, key, v)
        {
            if (json_object_get(theirs, key) != NULL) continue;
            if (set(s, own, key, msgl__schema_both(s, v, xb)) != 0) return s->b->rc;
        }
    }
    json_object_foreach(theirs, key, v)
    {
        json_t *other = json_object_get(own, key);
        if (other == NULL) other = xa;
        json_t *value = other != NULL ? msgl__schema_both(s, other, v) : json_incref(v);
        if (set(s, own, key, value) != 0) return s->b->rc;
    }
    if (xa == NULL || xb == NULL) {
        json_t *more = json_object_get(subschema, "additionalProperties");
        if (xb == NULL && (xa != NULL || more == NULL)) return 0;
        return set(s, merged, "additionalProperties", json_incref(more));
    }
    const bool closed = json_is_false(xa) || json_is_false(xb);
    return set(s, merged, "additionalProperties",
               closed ? json_false() : msgl__schema_both(s, xa, xb));
}

// ---- the subschemas of a schema ----

typedef struct subschemas {
    msgl_schema *s;
    json_t **at;
    int32_t n, cap;
    bool never; // one of them is the schema `false`
    int depth;
} subschemas;

enum { OPEN = 1, DONE = 2 };

static msgl_schema_seen *seen_at(msgl_schema *s, const json_t *schema)
{
    if (s->num_seen * 2 >= s->cap_seen) {
        const int32_t before = s->cap_seen;
        msgl_schema_seen *old = s->seen;
        const int32_t cap = before == 0 ? 64 : before * 2;
        msgl_schema_seen *more = NULL;
        if (msgl__gx_spend(s->b, (size_t)cap, (size_t)cap * sizeof *more) == 0) {
            more = msgl__calloc((size_t)cap, sizeof *more);
            if (more == NULL) msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
        }
        if (more == NULL) return NULL;
        s->seen = more;
        s->cap_seen = cap;
        s->num_seen = 0;
        for (int32_t i = 0; i < before; i++) {
            if (old[i].schema != NULL) *seen_at(s, old[i].schema) = old[i];
        }
        msgl__free(old);
    }
    uint32_t k = msgl__schema_slot(schema, s->cap_seen);
    while (s->seen[k].schema != NULL && s->seen[k].schema != schema) {
        k = (k + 1) & (uint32_t)(s->cap_seen - 1);
    }
    if (s->seen[k].schema == NULL) {
        s->seen[k].schema = schema;
        s->num_seen++;
    }
    return &s->seen[k];
}

static int collect(subschemas *p, json_t *schema);

static int collect_list(subschemas *p, const json_t *list)
{
    size_t i;
    json_t *v;
    if (!json_is_array(list) || json_array_size(list) == 0) {
        return msgl__schema_fail(p->s, MSGL_EFORMAT, "allOf", "has to be a list that is not empty");
    }
    json_array_foreach(list, i, v)
    {
        if (collect(p, v) != 0) return -1;
    }
    return 0;
}

// Adds the subschemas of a schema that were not added since the walk s->walk began.
static int collect(subschemas *p, json_t *schema)
{
    msgl_schema *s = p->s;
    if (json_is_true(schema)) return 0;
    if (json_is_false(schema)) p->never = true;
    if (json_is_false(schema)) return 0;
    if (!json_is_object(schema)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, "schema", "has to be an object or a boolean");
    }
    msgl_schema_seen *seen = seen_at(s, schema);
    if (seen == NULL || msgl__gx_spend(s->b, 8, 0) != 0) return -1;
    if (seen->walk == s->walk && seen->state == DONE) return 0;
    if (seen->walk == s->walk || ++p->depth > MSGL_SCHEMA_REFS) {
        return msgl__schema_fail(s, MSGL_ELIMIT, "$ref", "leads on and on (limit: references)");
    }
    *seen = (msgl_schema_seen){schema, s->walk, OPEN};
    if (msgl__gx_room(s->b, (void **)&p->at, &p->cap, (int64_t)p->n + 1, sizeof(json_t *)) != 0) {
        return -1;
    }
    const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    if ((ref == NULL && all == NULL) || !msgl__schema_only_links(schema)) p->at[p->n++] = schema;
    if (ref != NULL) {
        json_t *to = msgl__schema_ref_target(s, ref);
        if (to == NULL || collect(p, to) != 0) return -1;
    }
    if (all != NULL && collect_list(p, all) != 0) return -1;
    p->depth--;
    seen = seen_at(s, schema); // the table may have grown
    if (seen != NULL) seen->state = DONE;
    return s->b->rc;
}

// Merges one of the subschemas; first: nothing was merged before it.
static int merge_subschema(msgl_schema *s, json_t *merged, json_t *subschema, bool first)
{
    const char *key;
    json_t *v;
    json_object_foreach(subschema, key, v)
    {
        if (strcmp(key, "properties") == 0 || strcmp(key, "additionalProperties") == 0 ||
            strcmp(key, "$ref") == 0 || strcmp(key, "allOf") == 0) {
            continue;
        }
        if (!first && strcmp(key, "unevaluatedProperties") == 0 && !json_is_true(v)) {
            if (msgl__schema_leave_out(s, key, "inside of allOf it is not supported") != 0) break;
            continue;
        }
        json_t *own = json_object_get(merged, key);
        if (own == NULL && set(s, merged, key, json_incref(v)) != 0) break;
        if (own != NULL && merge_key(s, merged, key, own, v) != 0) break;
    }
    json_t *named = json_object_get(subschema, "properties");
    if (s->b->rc == 0 && named != NULL && !json_is_object(named)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, "properties", "has to be an object");
    }
    return s->b->rc == 0 ? merge_properties(s, merged, subschema) : s->b->rc;
}

// The merged schema, which is the same one when the same subschemas come again.
static json_t *merge_of(msgl_schema *s, subschemas *p)
{
    const size_t bytes = (size_t)p->n * sizeof *p->at;
    const uint64_t h = msgl__hash(MSGL_HASH_START, p->at, bytes);
    int32_t *const head = &s->merge_heads[h % MSGL_SCHEMA_HEADS];
    for (int32_t i = *head - 1; i >= 0; i = s->merges[i].next) {
        const msgl_schema_merge *x = &s->merges[i];
        if (msgl__gx_spend(s->b, 1, 0) != 0) return NULL;
        if (x->hash == h && x->n == p->n && memcmp(x->subschemas, p->at, bytes) == 0)
            return x->merged;
    }
    if (msgl__gx_room(s->b, (void **)&s->merges, &s->cap_merges, (int64_t)s->num_merges + 1,
                      sizeof *s->merges) != 0) {
        return NULL;
    }
    json_t *merged = msgl__schema_keep(s, json_object());
    if (merged == NULL) return NULL;
    // It can be found before it is whole, by subschemas that lead back to it.
    s->merges[s->num_merges] = (msgl_schema_merge){h, p->n, *head - 1, p->at, merged};
    *head = ++s->num_merges;
    json_t **at = p->at;
    p->at = NULL;
    p->cap = 0;
    for (int32_t i = 0; i < p->n; i++) {
        if (merge_subschema(s, merged, at[i], i == 0) != 0) return NULL;
    }
    return merged;
}

json_t *msgl__schema_flat(msgl_schema *s, json_t *schema)
{
    if (s->b->rc != 0 || schema == NULL) return NULL;
    if (json_is_boolean(schema)) return schema;
    subschemas p = {.s = s};
    s->walk++;
    json_t *out = NULL;
    if (collect(&p, schema) == 0) {
        if (p.never) {
            out = json_false();
        } else if (p.n == 0) {
            out = json_true();
        } else if (p.n == 1 && json_object_get(p.at[0], "$ref") == NULL &&
                   json_object_get(p.at[0], "allOf") == NULL) {
            out = p.at[0];
        } else {
            out = merge_of(s, &p);
        }
    }
    msgl__free(p.at);
    msgl__gx_give_back(s->b, (size_t)p.cap * sizeof *p.at);
    return out;
}
