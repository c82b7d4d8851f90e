// SPDX-License-Identifier: Apache-2.0
//
// oneOf: a value is valid for exactly one of the alternatives. Alternatives that are disjoint, as
// their types, listed values, bounds or required members show, are compiled like those of anyOf. Of
// others, the values that are valid for two are left out: numbers by intervals, other scalars one
// by one.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "grammar/schema.h"
#include "grammar/schema_number.h"

enum { NUMBERS = MSGL_T_INTEGER | MSGL_T_NUMBER, DISJOINT_DEPTH = 8 };

static bool has_list(const json_t *schema)
{
    return json_object_get(schema, "enum") != NULL || json_object_get(schema, "const") != NULL;
}

// The i-th value that a schema lists; NULL: there are no more.
static json_t *listed(const json_t *schema, size_t i)
{
    json_t *only = json_object_get(schema, "const");
    if (only != NULL) return i == 0 ? only : NULL;
    return json_array_get(json_object_get(schema, "enum"), i);
}

static int types_of(msgl_schema *s, const json_t *schema)
{
    if (json_is_true(schema)) return MSGL_T_ALL;
    if (json_is_false(schema)) return 0;
    if (json_object_get(schema, "type") != NULL || !has_list(schema)) {
        const bool free =
            json_object_get(schema, "type") == NULL &&
            (json_object_get(schema, "anyOf") != NULL || json_object_get(schema, "oneOf") != NULL);
        return free ? MSGL_T_ALL : msgl__schema_types(s, schema);
    }
    int types = 0;
    const json_t *v;
    for (size_t i = 0; (v = listed(schema, i)) != NULL && msgl__gx_spend(s->b, 1, 0) == 0; i++) {
        for (int bit = 1; bit < MSGL_T_ALL; bit *= 2) {
            if (msgl__schema_has_type(s, v, bit)) types |= bit;
        }
    }
    return types;
}

static bool is_required(const msgl_schema *s, const json_t *schema, const char *key)
{
    const json_t *required = json_object_get(schema, "required");
    size_t i;
    const json_t *v;
    if (msgl__gx_spend(s->b, json_array_size(required) / 8 + 1, 0) != 0) return false;
    json_array_foreach(required, i, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), key) == 0) return true;
    }
    return false;
}

static bool disjoint(msgl_schema *s, json_t *a, json_t *b, int types, int depth);

// Whether objects have no members but those that are named.
static bool is_closed(const msgl_schema *s, const json_t *schema)
{
    const json_t *more = json_object_get(schema, "additionalProperties");
    if (more == NULL) more = json_object_get(schema, "unevaluatedProperties");
    return json_object_get(schema, "patternProperties") == NULL &&
           (more != NULL ? json_is_false(more)
                         : !s->open && json_object_get(schema, "properties") != NULL);
}

// Whether a requires a member that objects of b do not have.
static bool needs_other(const msgl_schema *s, const json_t *a, const json_t *b)
{
    size_t i;
    const json_t *v, *named = json_object_get(b, "properties");
    if (!is_closed(s, b)) return false;
    json_array_foreach(json_object_get(a, "required"), i, v)
    {
        const char *key = json_string_value(v);
        if (key != NULL && json_object_get(named, key) == NULL && !is_required(s, b, key))
            return true;
    }
    return false;
}

static bool objects_disjoint(msgl_schema *s, json_t *a, json_t *b, int depth)
{
    const json_t *pa = json_object_get(a, "properties"), *pb = json_object_get(b, "properties");
    const char *key;
    json_t *v;
    const bool a_needs = needs_other(s, a, b), b_needs = needs_other(s, b, a);
    if (a_needs && b_needs) return true;
    if (a_needs && json_is_false(json_object_get(b, "additionalProperties"))) return true;
    if (b_needs && json_is_false(json_object_get(a, "additionalProperties"))) return true;
    json_object_foreach((json_t *)(uintptr_t)pa, key, v)
    {
        json_t *w = json_object_get(pb, key);
        if (w == NULL || (!is_required(s, a, key) && !is_required(s, b, key))) continue;
        if (disjoint(s, v, w, MSGL_T_ALL, depth + 1)) return true;
    }
    return false;
}

// Whether the counts that one allows are all less than those that the other allows.
static bool counts_disjoint(msgl_schema *s, const json_t *a, const json_t *b, const char *least,
                            const char *most)
{
    for (int side = 0; side < 2; side++) {
        const int32_t max = msgl__schema_count(s, side == 0 ? a : b, most, MSGL_GX_INF);
        const int32_t min = msgl__schema_count(s, side == 0 ? b : a, least, 0);
        if (max != MSGL_GX_INF && max < min) return true;
    }
    return false;
}

static bool numbers_disjoint(msgl_schema *s, const json_t *a, const json_t *b)
{
    const msgl_bounds x = msgl__schema_bounds(s, a), y = msgl__schema_bounds(s, b);
    for (int side = 0; side < 2; side++) {
        const msgl_bounds *p = side == 0 ? &x : &y, *q = side == 0 ? &y : &x;
        if (!p->has_hi || !q->has_lo) continue;
        const int c = msgl__dec_compare(&p->hi, &q->lo);
        if (c < 0 || (c == 0 && (p->open_hi || q->open_lo))) return true;
    }
    return false;
}

// Whether no value of these types that a lists is valid for b.
static bool list_disjoint(msgl_schema *s, json_t *a, json_t *b, int types)
{
    const json_t *v;
    for (size_t i = 0; (v = listed(a, i)) != NULL && s->b->rc == 0; i++) {
        if (!msgl__schema_has_type(s, v, types)) continue;
        if (msgl__schema_allows(s, b, v) != 0) return false;
    }
    return s->b->rc == 0;
}

static bool any_disjoint(msgl_schema *s, json_t *a, json_t *b, int types, int depth)
{
    static const char *const KEYS[] = {"anyOf", "oneOf"};
    for (int k = 0; k < 2; k++) {
        const json_t *list = json_object_get(a, KEYS[k]);
        size_t i;
        json_t *v;
        bool all = list != NULL;
        json_array_foreach(list, i, v)
        {
            all = all && disjoint(s, v, b, types, depth + 1);
        }
        if (all) return true;
    }
    return false;
}

// Whether no value of these types is valid for both; false also where that is not plain.
static bool disjoint(msgl_schema *s, json_t *a, json_t *b, int types, int depth)
{
    a = msgl__schema_flat(s, a);
    b = msgl__schema_flat(s, b);
    if (a == NULL || b == NULL || depth > DISJOINT_DEPTH || msgl__gx_spend(s->b, 16, 0) != 0) {
        return false;
    }
    types &= types_of(s, a) & types_of(s, b);
    if (types == 0) return true;
    if (json_is_boolean(a) || json_is_boolean(b)) return false;
    if (has_list(a) && list_disjoint(s, a, b, types)) return true;
    if (has_list(b) && list_disjoint(s, b, a, types)) return true;
    if (any_disjoint(s, a, b, types, depth) || any_disjoint(s, b, a, types, depth)) return true;
    if ((types & (MSGL_T_NULL | MSGL_T_BOOL)) != 0) return false;
    if ((types & NUMBERS) != 0 && !numbers_disjoint(s, a, b)) return false;
    if ((types & MSGL_T_STRING) != 0 && !counts_disjoint(s, a, b, "minLength", "maxLength")) {
        return false;
    }
    if ((types & MSGL_T_ARRAY) != 0 && !counts_disjoint(s, a, b, "minItems", "maxItems"))
        return false;
    return (types & MSGL_T_OBJECT) == 0 || objects_disjoint(s, a, b, depth);
}

// ---- many alternatives, each with listed values of its own ----

// Values that were listed: strings, and integers by their digits.
typedef struct listed_values {
    json_t *strings, *integers;
} listed_values;

// Notes the values that a schema lists; false: it lists none, or one that was there before.
static bool new_values(msgl_schema *s, json_t *schema, const listed_values *seen)
{
    const json_t *v;
    size_t i = 0;
    schema = msgl__schema_flat(s, schema);
    for (; (v = listed(schema, i)) != NULL; i++) {
        char digits[32];
        const bool string = json_is_string(v);
        if (!string && !json_is_integer(v)) return false;
        if (!string) snprintf(digits, sizeof digits, "%lld", (long long)json_integer_value(v));
        json_t *in = string ? seen->strings : seen->integers;
        const char *key = string ? json_string_value(v) : digits;
        if (json_object_get(in, key) != NULL || json_object_set_new(in, key, json_true()) != 0 ||
            msgl__gx_spend(s->b, 16, 0) != 0) {
            return false;
        }
    }
    return i > 0;
}

// Whether no two alternatives list the same value; with a key: as values of this member, which all
// of them require.
static bool lists_disjoint(msgl_schema *s, json_t **list, int32_t n, const char *key)
{
    const listed_values seen = {json_object(), json_object()};
    bool all = seen.strings != NULL && seen.integers != NULL;
    for (int32_t i = 0; i < n && all; i++) {
        json_t *v = list[i];
        if (key != NULL) {
            all = types_of(s, v) == MSGL_T_OBJECT && is_required(s, v, key);
            v = json_object_get(json_object_get(v, "properties"), key);
        }
        all = all && v != NULL && new_values(s, v, &seen);
    }
    json_decref(seen.strings);
    json_decref(seen.integers);
    return all;
}

static bool all_disjoint(msgl_schema *s, json_t **list, int32_t n)
{
    if (lists_disjoint(s, list, n, NULL)) return true;
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(list[0], "properties"), key, v)
    {
        if (lists_disjoint(s, list, n, key)) return true;
    }
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < i && s->b->rc == 0; k++) {
            if (!disjoint(s, list[i], list[k], MSGL_T_ALL, 0)) return false;
        }
    }
    return s->b->rc == 0;
}

// ---- values that are valid for two alternatives are left out ----

typedef struct one_of {
    msgl_schema *s;
    json_t **list;
    int32_t n;
    msgl_gx_list out;
} one_of;

static int32_t overlap(one_of *o)
{
    return msgl__schema_fail(o->s, MSGL_EUNSUPPORTED, "oneOf",
                             "alternatives that may hold at once are not supported");
}

// The expression of the alternative's values of one type.
static int32_t only_type(one_of *o, int32_t i, const char *type)
{
    msgl_schema *s = o->s;
    json_t *t = msgl__schema_keep(s, json_pack("{s:s}", "type", type));
    json_t *both = t != NULL ? msgl__schema_keep(s, msgl__schema_both(s, o->list[i], t)) : NULL;
    return msgl__schema_at(s, both, NULL, i);
}

// How many alternatives a value satisfies; -1: failed.
static int satisfied(one_of *o, const json_t *v)
{
    int n = 0;
    for (int32_t i = 0; i < o->n; i++) {
        const int rc = msgl__schema_allows(o->s, o->list[i], v);
        if (rc < 0) return -1;
        n += rc;
    }
    return n;
}

// Adds the strings that are valid for one alternative: those that one lists, and, if one allows all
// strings, all that none lists.
static int add_strings(one_of *o)
{
    msgl_schema *s = o->s;
    msgl_gx_list names = {0};
    json_t *seen = json_object();
    int free = 0;
    for (int32_t i = 0; i < o->n && s->b->rc == 0; i++) {
        const json_t *v;
        if ((types_of(s, o->list[i]) & MSGL_T_STRING) == 0) continue;
        if (!has_list(o->list[i])) {
            static const char *const BOUNDS[] = {"minLength", "maxLength", "pattern",
                                                 "format",    "anyOf",     "oneOf"};
            for (size_t k = 0; k < MSGL_COUNT(BOUNDS); k++) {
                if (json_object_get(o->list[i], BOUNDS[k]) != NULL) overlap(o);
            }
            if (free++ > 0) overlap(o);
            continue;
        }
        for (size_t k = 0; (v = listed(o->list[i], k)) != NULL && s->b->rc == 0; k++) {
            const char *text = json_string_value(v);
            if (text == NULL || json_object_get(seen, text) != NULL) continue;
            if (json_object_set_new(seen, text, json_true()) != 0) {
                msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
                break;
            }
            const int holds = satisfied(o, v);
            if (holds > 1) msgl__gx_list_add(s->b, &names, msgl__gx_str(s->b, text));
            // Where one alternative takes all strings it takes this one, too.
            if (holds == 1) msgl__gx_list_add(s->b, &o->out, msgl__schema_const(s, v));
        }
    }
    if (free > 0 && s->b->rc == 0) {
        const int32_t key[2] = {msgl__gx_str(s->b, "\""), msgl__gx_except(s->b, names.at, names.n)};
        msgl__gx_list_add(s->b, &o->out, msgl__gx_seq(s->b, key, 2));
    }
    json_decref(seen);
    msgl__gx_list_free(&names);
    return s->b->rc;
}

// Adds null, or true and false, each if it is valid for one alternative.
static int add_fixed(one_of *o, int type)
{
    json_t *const values[3] = {json_null(), json_false(), json_true()};
    for (int i = type == MSGL_T_NULL ? 0 : 1; i < (type == MSGL_T_NULL ? 1 : 3); i++) {
        if (satisfied(o, values[i]) != 1) continue;
        msgl__gx_list_add(o->s->b, &o->out, msgl__schema_const(o->s, values[i]));
    }
    return o->s->b->rc;
}

// ---- numbers ----

typedef struct numbers {
    msgl_dec *at; // where membership may change, ascending
    int32_t n, cap;
} numbers;

static int by_value(const void *a, const void *b)
{
    return msgl__dec_compare(a, b);
}

static void add_point(msgl_schema *s, numbers *p, const msgl_dec *d)
{
    if (msgl__gx_room(s->b, (void **)&p->at, &p->cap, (int64_t)p->n + 1, sizeof *p->at) == 0) {
        p->at[p->n++] = *d;
    }
}

static void add_points(one_of *o, numbers *p, json_t *schema)
{
    msgl_schema *s = o->s;
    const json_t *v;
    if (json_object_get(schema, "multipleOf") != NULL || json_object_get(schema, "anyOf") != NULL ||
        json_object_get(schema, "oneOf") != NULL) {
        overlap(o);
    }
    const msgl_bounds r = msgl__schema_bounds(s, schema);
    if (r.has_lo) add_point(s, p, &r.lo);
    if (r.has_hi) add_point(s, p, &r.hi);
    for (size_t i = 0; (v = listed(schema, i)) != NULL && s->b->rc == 0; i++) {
        msgl_dec d;
        if (!json_is_number(v)) continue;
        msgl__dec_of(s, v, &d);
        add_point(s, p, &d);
    }
}

// Whether all numbers of a region are valid, those of the kind: a point, or what is between two.
static bool covers(one_of *o, json_t *schema, const msgl_bounds *region, bool point)
{
    msgl_schema *s = o->s;
    const msgl_bounds r = msgl__schema_bounds(s, schema);
    const json_t *v;
    if (point && has_list(schema)) {
        for (size_t i = 0; (v = listed(schema, i)) != NULL && s->b->rc == 0; i++) {
            msgl_dec d;
            if (!json_is_number(v)) continue;
            msgl__dec_of(s, v, &d);
            if (msgl__dec_compare(&d, &region->lo) == 0) return msgl__bounds_have(&r, &d);
        }
        return false;
    }
    if (has_list(schema)) return false;
    if (point) return msgl__bounds_have(&r, &region->lo);
    return (!r.has_lo || (region->has_lo && msgl__dec_compare(&r.lo, &region->lo) <= 0)) &&
           (!r.has_hi || (region->has_hi && msgl__dec_compare(&r.hi, &region->hi) >= 0));
}

static void add_region(one_of *o, const msgl_bounds *region, bool point)
{
    msgl_schema *s = o->s;
    int integers = 0, fractions = 0;
    for (int32_t i = 0; i < o->n && msgl__gx_spend(s->b, 16, 0) == 0; i++) {
        const int types = types_of(s, o->list[i]) & NUMBERS;
        if (types == 0 || (!json_is_boolean(o->list[i]) && !covers(o, o->list[i], region, point))) {
            continue;
        }
        integers++;
        fractions += (types & MSGL_T_NUMBER) != 0;
    }
    // Listed integers have the type integer alone, which says nothing of fractions; at a point
    // that is none there are no integers.
    if (integers != 1 && fractions != 1) return;
    const msgl_number_kind kind = integers != 1    ? MSGL_NUMBER_FRACTION
                                  : fractions != 1 ? MSGL_NUMBER_INTEGER
                                                   : MSGL_NUMBER_ANY;
    if (point && kind != MSGL_NUMBER_ANY &&
        (kind == MSGL_NUMBER_INTEGER) != msgl__dec_is_integer(&region->lo)) {
        return;
    }
    msgl__gx_list_add(s->b, &o->out, msgl__number_between(s, region, kind));
}

static int add_numbers(one_of *o)
{
    msgl_schema *s = o->s;
    numbers p = {0};
    for (int32_t i = 0; i < o->n && s->b->rc == 0; i++) {
        if (json_is_object(o->list[i]) && (types_of(s, o->list[i]) & NUMBERS) != 0) {
            add_points(o, &p, o->list[i]);
        }
    }
    if (p.n > 1) qsort(p.at, (size_t)p.n, sizeof *p.at, by_value);
    msgl_bounds between = {0};
    for (int32_t i = 0; i < p.n && s->b->rc == 0; i++) {
        if (i > 0 && msgl__dec_compare(&p.at[i - 1], &p.at[i]) == 0) continue;
        between.has_hi = between.open_hi = true;
        between.hi = p.at[i];
        add_region(o, &between, false);
        const msgl_bounds point = {.has_lo = true, .has_hi = true, .lo = p.at[i], .hi = p.at[i]};
        add_region(o, &point, true);
        between = (msgl_bounds){.has_lo = true, .open_lo = true, .lo = p.at[i]};
    }
    add_region(o, &between, false);
    msgl__free(p.at);
    return s->b->rc;
}

static int add_type(one_of *o, int types, const char *name)
{
    msgl_schema *s = o->s;
    bool all = true;
    for (int32_t i = 0; i < o->n; i++) {
        for (int32_t k = 0; k < i && all && s->b->rc == 0; k++) {
            all = disjoint(s, o->list[i], o->list[k], types, 0);
        }
    }
    if (s->b->rc != 0) return s->b->rc;
    if (!all && types == MSGL_T_STRING) return add_strings(o);
    if (!all && (types & (MSGL_T_NULL | MSGL_T_BOOL)) != 0) return add_fixed(o, types);
    if (!all && types == NUMBERS) return add_numbers(o);
    if (!all) return overlap(o);
    for (int32_t i = 0; i < o->n && s->b->rc == 0; i++) {
        if ((types_of(s, o->list[i]) & types) == 0) continue;
        msgl__gx_list_add(s->b, &o->out, only_type(o, i, name));
    }
    return s->b->rc;
}

int32_t msgl__schema_one_of(msgl_schema *s, json_t **list, int32_t n)
{
    static const struct {
        int types;
        const char *name;
    } TYPES[] = {{MSGL_T_OBJECT, "object"}, {MSGL_T_ARRAY, "array"},  {MSGL_T_STRING, "string"},
                 {NUMBERS, "number"},       {MSGL_T_BOOL, "boolean"}, {MSGL_T_NULL, "null"}};
    one_of o = {.s = s, .list = list, .n = n};
    if (n == 1 || all_disjoint(s, list, n)) {
        for (int32_t i = 0; i < n && s->b->rc == 0; i++) {
            msgl__gx_list_add(s->b, &o.out, msgl__schema_at(s, list[i], NULL, i));
        }
    } else {
        for (size_t i = 0; i < MSGL_COUNT(TYPES) && s->b->rc == 0; i++) {
            add_type(&o, TYPES[i].types, TYPES[i].name);
        }
    }
    const int32_t e = s->b->rc == 0 ? msgl__gx_alt(s->b, o.out.at, o.out.n) : -1;
    msgl__gx_list_free(&o.out);
    return e;
}
