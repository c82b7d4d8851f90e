// SPDX-License-Identifier: Apache-2.0
//
// Objects and arrays. Properties come in the schema's order, those that it does not name behind
// them: an order has to be chosen, since all of them would be as many states as there are subsets.
// What may follow a property is a rule per property, called last, so that an object of n optional
// properties is O(n) nodes and takes no stack.
#include <string.h>

#include "core/mem.h"
#include "grammar/compiled.h"
#include "grammar/regex.h"
#include "grammar/schema.h"
#include "utils/json.h"

typedef struct members {
    msgl_schema *s;
    int32_t n;       // named ones
    int32_t *member; // expressions: key, colon, value
    bool *required;
    int32_t extra;      // expression of any other member; -1: none
    int32_t *at, *then; // rules: a member from i on has to come; one has come before
} members;

static int32_t with_key(msgl_schema *s, int32_t key, int32_t value)
{
    const int32_t parts[4] = {key, msgl__gx_str(s->b, ":"), msgl__json_space(s->b, &s->json),
                              value};
    return msgl__gx_seq(s->b, parts, 4);
}

static int32_t closed(msgl_schema *s, const char *bracket)
{
    const int32_t end[2] = {msgl__json_space(s->b, &s->json), msgl__gx_str(s->b, bracket)};
    return msgl__gx_seq(s->b, end, 2);
}

static bool rest_optional(const members *m, int32_t i)
{
    for (; i < m->n; i++) {
        if (m->required[i]) return false;
    }
    return true;
}

// The rules from the last one back: rule i refers to i + 1.
static int32_t chain(members *m)
{
    msgl_gx_builder *b = m->s->b;
    const int32_t space = msgl__json_space(b, &m->s->json), end = closed(m->s, "}");
    for (int32_t i = 0; i <= m->n; i++) {
        m->at[i] = msgl__gx_rule_new(b, NULL, 0);
        m->then[i] = msgl__gx_rule_new(b, NULL, 0);
    }
    bool optional = true; // all from i on
    for (int32_t i = m->n; i >= 0 && b->rc == 0; i--) {
        int32_t ways[2];
        int32_t n = 0;
        const bool named = i < m->n;
        optional = optional && (!named || !m->required[i]);
        const int32_t member = named ? m->member[i] : m->extra;
        if (member >= 0) {
            const int32_t one[2] = {member, msgl__gx_ref(b, m->then[named ? i + 1 : i])};
            ways[n++] = msgl__gx_seq(b, one, 2);
        }
        if (named && !m->required[i]) ways[n++] = msgl__gx_ref(b, m->at[i + 1]);
        msgl__gx_rule_set(b, m->at[i], msgl__gx_alt(b, ways, n));
        const int32_t next[3] = {msgl__gx_str(b, ","), space, msgl__gx_ref(b, m->at[i])};
        ways[0] = msgl__gx_seq(b, next, 3);
        ways[1] = end;
        msgl__gx_rule_set(b, m->then[i], msgl__gx_alt(b, ways, optional ? 2 : 1));
    }
    const int32_t some[2] = {space, msgl__gx_ref(b, m->at[0])};
    const int32_t inside[2] = {msgl__gx_seq(b, some, 2), end};
    const int32_t whole[2] = {msgl__gx_str(b, "{"),
                              msgl__gx_alt(b, inside, rest_optional(m, 0) ? 2 : 1)};
    return msgl__gx_seq(b, whole, 2);
}

static bool is_required(const json_t *required, const char *key)
{
    size_t i;
    const json_t *v;
    json_array_foreach(required, i, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), key) == 0) return true;
    }
    return false;
}

// Whether the pattern is found in a name; -1 after a failure.
static int matches(msgl_schema *s, const char *pattern, const char *name)
{
    msgl_gx_builder b;
    msgl_nfa a = {0};
    msgl_pda p = {0};
    int found = -1;
    msgl__gx_init(&b, &s->b->limits, s->b->err);
    const msgl_regex_opts o = {.where = "json_schema: patternProperties", .search = true};
    const int32_t root = msgl__gx_rule_new(&b, NULL, 0);
    msgl__gx_rule_set(&b, root, msgl__regex(&b, pattern, strlen(pattern), &o));
    msgl__nfa_build(&b, root, &a);
    if (b.rc == 0 && (msgl__pda_init(&p, &a, &b.limits)) == 0) {
        int32_t state = msgl__pda_start(&p);
        for (const char *c = name; *c != '\0'; c++) state = msgl__pda_step(&p, state, (uint8_t)*c);
        found = msgl__pda_has(&p, state, MSGL_NODE_DONE);
    }
    const int rc = b.rc != 0 ? b.rc : p.rc;
    if (rc != 0) {
        if (s->b->rc == 0) s->b->rc = rc;
        if (b.rc == 0) msgl__err_set(s->b->err, rc, "json_schema: patternProperties");
        found = -1;
    }
    msgl__pda_free(&p);
    msgl__nfa_free(&a);
    msgl__gx_free(&b);
    return found;
}

// The member of patternProperties: one pattern, which must match none of the names.
static int32_t by_pattern(msgl_schema *s, json_t *names, json_t *patterns)
{
    if (!json_is_object(patterns) || json_object_size(patterns) != 1) {
        return msgl__schema_fail(s, MSGL_EUNSUPPORTED, "patternProperties",
                                 "more than one pattern is not supported");
    }
    const char *pattern = json_object_iter_key(json_object_iter(patterns));
    json_t *value = json_object_get(patterns, pattern);
    const char *name;
    json_t *v;
    json_object_foreach(names, name, v)
    {
        const int found = matches(s, pattern, name);
        if (found < 0) return -1;
        if (found > 0) {
            return msgl__schema_fail(
                s, MSGL_EUNSUPPORTED, "patternProperties",
                "a pattern that matches a name of properties is not supported");
        }
    }
    const msgl_regex_opts o = {
        .where = "json_schema: patternProperties", .search = true, .json = true};
    const int32_t key[3] = {msgl__gx_str(s->b, "\""),
                            msgl__regex(s->b, pattern, strlen(pattern), &o),
                            msgl__gx_str(s->b, "\"")};
    const int32_t e = msgl__schema_at(s, value, "patternProperties", -1);
    return with_key(s, msgl__gx_seq(s->b, key, 3), e);
}

// A member that the schema does not name; -1: none is allowed, or a failure.
static int32_t other_member(msgl_schema *s, json_t *schema, json_t *names)
{
    json_t *more = json_object_get(schema, "additionalProperties");
    json_t *patterns = json_object_get(schema, "patternProperties");
    if (patterns != NULL && json_object_size(patterns) > 0) return by_pattern(s, names, patterns);
    if (more != NULL && !json_is_object(more) && !json_is_boolean(more)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, "additionalProperties", "has to be a schema");
    }
    if (json_is_false(more)) return -1;
    const int32_t value = more == NULL ? msgl__json_rule(s->b, &s->json, MSGL_JSON_VALUE)
                                       : msgl__schema_at(s, more, "additionalProperties", -1);
    json_t *only = json_object_get(schema, "propertyNames");
    if (only != NULL) {
        if (json_object_size(names) > 0) {
            return msgl__schema_fail(s, MSGL_EUNSUPPORTED, "propertyNames",
                                     "beside properties it is not supported");
        }
        json_t *string = msgl__schema_keep(s, json_pack("{s:s}", "type", "string"));
        json_t *sum = string != NULL ? msgl__schema_merge(s, string, only) : NULL;
        return with_key(s, msgl__schema_at(s, sum, "propertyNames", -1), value);
    }
    if (json_object_size(names) == 0)
        return with_key(s, msgl__json_rule(s->b, &s->json, MSGL_JSON_KEY), value);
    msgl_gx_list l = {0};
    const char *name;
    json_t *v;
    json_object_foreach(names, name, v)
    {
        msgl__gx_list_add(s->b, &l, msgl__gx_str(s->b, name));
    }
    const int32_t rule = msgl__gx_rule_new(s->b, "key", 3);
    const int32_t key[2] = {msgl__gx_str(s->b, "\""),
                            s->b->rc == 0 ? msgl__gx_except(s->b, l.at, l.n) : -1};
    msgl__gx_rule_set(s->b, rule, msgl__gx_seq(s->b, key, 2));
    msgl__gx_list_free(&l);
    return with_key(s, msgl__gx_ref(s->b, rule), value);
}

// Objects of members that have no names in the schema, min to max of them.
static int32_t counted_members(msgl_schema *s, int32_t member, int32_t min, int32_t max)
{
    msgl_gx_builder *b = s->b;
    const int32_t space = msgl__json_space(b, &s->json);
    if (member < 0 && (b->rc != 0 || min > 0)) return b->rc != 0 ? -1 : msgl__gx_never(b);
    const int32_t open = msgl__gx_str(b, "{");
    const int32_t empty[2] = {open, closed(s, "}")};
    if (max == 0 || member < 0) return msgl__gx_seq(b, empty, 2);
    const int32_t next[3] = {msgl__gx_str(b, ","), space, member};
    const int32_t rest = msgl__gx_rep(b, msgl__gx_seq(b, next, 3), min > 0 ? min - 1 : 0,
                                      max == MSGL_GX_INF ? max : max - 1);
    const int32_t full[5] = {open, space, member, rest, closed(s, "}")};
    const int32_t ways[2] = {msgl__gx_seq(b, full, 5), msgl__gx_seq(b, empty, 2)};
    return msgl__gx_alt(b, ways, min > 0 ? 1 : 2);
}

// The properties, and what "required" names beside them.
static json_t *named(msgl_schema *s, json_t *schema)
{
    json_t *own = json_object_get(schema, "properties");
    if (own != NULL && !json_is_object(own)) {
        msgl__schema_fail(s, MSGL_EFORMAT, "properties", "has to be an object");
        return NULL;
    }
    json_t *names = msgl__schema_keep(s, own != NULL ? msgl__json_copy(own) : json_object());
    json_t *required = json_object_get(schema, "required");
    json_t *more = json_object_get(schema, "additionalProperties");
    // Draft 3 and 4 had booleans inside properties, which say nothing here.
    if (required != NULL && !json_is_array(required) && !json_is_boolean(required)) {
        msgl__schema_fail(s, MSGL_EFORMAT, "required", "has to be a list of strings");
        return NULL;
    }
    size_t i;
    json_t *v;
    json_array_foreach(required, i, v)
    {
        if (!json_is_string(v)) {
            msgl__schema_fail(s, MSGL_EFORMAT, "required", "has to be a list of strings");
            return NULL;
        }
        if (names != NULL && json_object_get(names, json_string_value(v)) == NULL &&
            json_object_set_new(names, json_string_value(v),
                                more != NULL ? json_incref(more) : json_true()) != 0) {
            (void)msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
            return NULL;
        }
    }
    return names;
}

static int fill_members(members *m, json_t *schema, json_t *names)
{
    msgl_schema *s = m->s;
    const json_t *required = json_object_get(schema, "required");
    const size_t before = msgl__schema_enter(s, "properties", -1);
    const char *name;
    json_t *v;
    json_object_foreach(names, name, v)
    {
        // What a property that is not required allows may be nothing: it is then left out.
        const int32_t value = msgl__schema_at(s, v, name, -1);
        m->member[m->n] = with_key(s, msgl__json_quoted(s->b, name, strlen(name)), value);
        m->required[m->n++] = is_required(required, name);
    }
    s->place[before] = '\0';
    return s->b->rc;
}

int32_t msgl__schema_object(msgl_schema *s, json_t *schema)
{
    json_t *names = named(s, schema);
    const int32_t min = msgl__schema_count(s, schema, "minProperties", 0);
    const int32_t max = msgl__schema_count(s, schema, "maxProperties", MSGL_GX_INF);
    if (names == NULL || s->b->rc != 0) return -1;
    const int32_t n = (int32_t)json_object_size(names);
    const int32_t extra = other_member(s, schema, names);
    if (s->b->rc != 0) return -1;
    if (n == 0) return counted_members(s, extra, min, max);
    const int32_t least = (int32_t)json_array_size(json_object_get(schema, "required"));
    if (min > least || (max != MSGL_GX_INF && (extra >= 0 || max < n))) {
        return msgl__schema_fail(s, MSGL_EUNSUPPORTED,
                                 min > least ? "minProperties" : "maxProperties",
                                 "beside properties it is not supported");
    }
    members m = {.s = s, .extra = extra};
    m.member = msgl__reallocarray(NULL, (size_t)n + 1, sizeof *m.member);
    m.required = msgl__reallocarray(NULL, (size_t)n + 1, sizeof *m.required);
    m.at = msgl__reallocarray(NULL, (size_t)n + 1, sizeof *m.at);
    m.then = msgl__reallocarray(NULL, (size_t)n + 1, sizeof *m.then);
    int32_t e = -1;
    if (m.member == NULL || m.required == NULL || m.at == NULL || m.then == NULL) {
        msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
    } else if (fill_members(&m, schema, names) == 0) {
        e = chain(&m);
    }
    msgl__free(m.member);
    msgl__free(m.required);
    msgl__free(m.at);
    msgl__free(m.then);
    return e;
}

// ---- arrays ----

// Elements behind the first `had`, and the bracket.
static int32_t more_items(msgl_schema *s, int32_t item, int32_t had, int32_t min, int32_t max)
{
    msgl_gx_builder *b = s->b;
    const int32_t least = min > had ? min - had : 0;
    const int32_t most = max == MSGL_GX_INF ? max : max - had;
    const int32_t end = closed(s, "]");
    if (item < 0 && least > 0) return msgl__gx_never(b);
    if (item < 0 || most == 0) return end;
    const int32_t next[3] = {msgl__gx_str(b, ","), msgl__json_space(b, &s->json), item};
    const int32_t all[2] = {msgl__gx_rep(b, msgl__gx_seq(b, next, 3), least, most), end};
    return msgl__gx_seq(b, all, 2);
}

// prefix[0, n), each with its own schema, then item: from the last one back.
static int32_t array_of(msgl_schema *s, const int32_t *prefix, int32_t n, int32_t item, int32_t min,
                        int32_t max)
{
    msgl_gx_builder *b = s->b;
    const int32_t space = msgl__json_space(b, &s->json);
    const int32_t first = n > 0 ? prefix[0] : item;
    const int32_t empty[2] = {msgl__gx_str(b, "["), closed(s, "]")};
    if (max != MSGL_GX_INF && min > max) return msgl__gx_never(b);
    if (max == 0 || first < 0) return min > 0 ? msgl__gx_never(b) : msgl__gx_seq(b, empty, 2);
    if (max != MSGL_GX_INF && n > max) n = max;
    int32_t rest = more_items(s, item, n > 0 ? n : 1, min, max);
    for (int32_t i = n - 1; i > 0 && b->rc == 0; i--) {
        const int32_t next[4] = {msgl__gx_str(b, ","), space, prefix[i], rest};
        const int32_t ways[2] = {msgl__gx_seq(b, next, 4), closed(s, "]")};
        // A rule each: the expression would be as deep as the list is long.
        const int32_t rule = msgl__gx_rule_new(b, NULL, 0);
        msgl__gx_rule_set(b, rule, msgl__gx_alt(b, ways, i >= min ? 2 : 1));
        rest = msgl__gx_ref(b, rule);
    }
    const int32_t full[4] = {msgl__gx_str(b, "["), space, first, rest};
    const int32_t ways[2] = {msgl__gx_seq(b, full, 4), msgl__gx_seq(b, empty, 2)};
    return msgl__gx_alt(b, ways, min > 0 ? 1 : 2);
}

int32_t msgl__schema_array(msgl_schema *s, json_t *schema)
{
    const int32_t min = msgl__schema_count(s, schema, "minItems", 0);
    const int32_t max = msgl__schema_count(s, schema, "maxItems", MSGL_GX_INF);
    json_t *items = json_object_get(schema, "items"),
           *list = json_object_get(schema, "prefixItems");
    if (json_is_array(items)) { // up to draft 2019-09
        list = items;
        items = json_object_get(schema, "additionalItems");
    }
    if (list != NULL && !json_is_array(list)) {
        return msgl__schema_fail(s, MSGL_EFORMAT, "prefixItems", "has to be a list");
    }
    msgl_gx_list prefix = {0};
    const size_t before = msgl__schema_enter(s, "prefixItems", -1);
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        msgl__gx_list_add(s->b, &prefix, msgl__schema_at(s, v, NULL, (int)i));
    }
    s->place[before] = '\0';
    int32_t item = -1;
    if (items == NULL) item = msgl__json_rule(s->b, &s->json, MSGL_JSON_VALUE);
    if (items != NULL && !json_is_false(items)) item = msgl__schema_at(s, items, "items", -1);
    const int32_t e = s->b->rc == 0 ? array_of(s, prefix.at, prefix.n, item, min, max) : -1;
    msgl__gx_list_free(&prefix);
    return e;
}
