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

enum { MAX_DIFFERENT = 6 }; // values of a list in which none comes twice

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

int msgl__schema_matches(msgl_schema *s, const char *pattern, bool whole, const char *const *texts,
                         int32_t n)
{
    msgl_gx_builder b;
    msgl_nfa a = {0};
    msgl_pda p = {0};
    msgl_grammar_limits limits = s->b->limits;
    limits.compile_steps -= s->b->work;
    limits.compile_bytes -= s->b->bytes;
    msgl__gx_init(&b, &limits, s->b->err);
    const msgl_regex_opts o = {.where = "json_schema: a pattern", .search = !whole};
    const int32_t root = msgl__gx_rule_new(&b, NULL, 0);
    msgl__gx_rule_set(&b, root, msgl__regex(&b, pattern, strlen(pattern), &o));
    msgl__nfa_build(&b, root, &a);
    bool found = false;
    int rc = b.rc;
    if (rc == 0) rc = msgl__pda_init(&p, &a, &limits);
    const int32_t start = rc == 0 ? msgl__pda_start(&p) : MSGL_STATE_DEAD;
    for (int32_t i = 0; i < n && rc == 0 && !found; i++) {
        int32_t state = start;
        for (const char *c = texts[i]; *c != '\0'; c++) {
            state = msgl__pda_step(&p, state, (uint8_t)*c);
        }
        found = msgl__pda_has(&p, state, MSGL_NODE_DONE);
        rc = p.rc != 0 ? p.rc : msgl__gx_spend(s->b, strlen(texts[i]), 0);
    }
    const uint64_t steps = b.work + (uint64_t)(MSGL_PDA_EFFORT - p.effort);
    if (rc != 0) msgl__gx_fail(s->b, rc, "%s", b.rc != 0 ? b.why : "json_schema: a pattern");
    if (b.rc == MSGL_EINVAL && s->b->rc == MSGL_EINVAL) s->b->rc = 0; // a pattern of no text
    msgl__pda_free(&p);
    msgl__nfa_free(&a);
    msgl__gx_free(&b);
    return msgl__gx_spend(s->b, steps, 0) != 0 ? -1 : found;
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
    const size_t num = json_object_size(names);
    const char **list = msgl__calloc(num + 1, sizeof *list), *name;
    json_t *v;
    int32_t n = 0;
    if (list == NULL) return msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
    json_object_foreach(names, name, v) list[n++] = name;
    const int found = n > 0 ? msgl__schema_matches(s, pattern, false, list, n) : 0;
    msgl__free(list);
    if (found < 0) return -1;
    if (found > 0) {
        return msgl__schema_fail(s, MSGL_EUNSUPPORTED, "patternProperties",
                                 "a pattern that matches a name of properties is not supported");
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
    if (more == NULL) more = json_object_get(schema, "unevaluatedProperties");
    // Whoever names properties and says nothing of others means these: a model that may invent
    // members does so until it is cut off.
    if (more == NULL && !s->open && json_object_get(schema, "properties") != NULL) return -1;
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
        json_t *sum =
            string != NULL ? msgl__schema_keep(s, msgl__schema_both(s, string, only)) : NULL;
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
    if (b->rc != 0) return -1;
    if ((max != MSGL_GX_INF && min > max) || (member < 0 && min > 0)) return msgl__gx_never(b);
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
        if (names != NULL && json_object_get(names, json_string_value(v)) == NULL) {
            if (json_object_set_new(names, json_string_value(v),
                                    more != NULL ? json_incref(more) : json_true()) != 0) {
                msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
                return NULL;
            }
        }
    }
    return names;
}

// The names that are required, as an object: lists are long in schemas that hurt. NULL: no memory.
static json_t *required_names(const json_t *schema)
{
    json_t *names = json_object();
    bool bad = names == NULL;
    size_t i;
    const json_t *v;
    json_array_foreach(json_object_get(schema, "required"), i, v)
    {
        bad |= json_object_set_new(names, json_string_value(v), json_true()) != 0;
    }
    if (!bad) return names;
    json_decref(names);
    return NULL;
}

static int fill_members(members *m, json_t *schema, json_t *names)
{
    msgl_schema *s = m->s;
    json_t *required = required_names(schema);
    if (required == NULL) return msgl__gx_fail(s->b, MSGL_ENOMEM, "out of memory for a grammar");
    const size_t before = msgl__schema_enter(s, "properties", -1);
    const char *name;
    json_t *v;
    json_object_foreach(names, name, v)
    {
        // What a property that is not required allows may be nothing: it is then left out.
        const int32_t value = msgl__schema_at(s, v, name, -1);
        m->member[m->n] = with_key(s, msgl__json_quoted(s->b, name, strlen(name)), value);
        m->required[m->n++] = json_object_get(required, name) != NULL;
    }
    json_decref(required);
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

// A list of different values out of a few: a rule per set of those that were there, `left` being
// the sets' size so far.
static int32_t different(msgl_schema *s, const int32_t *values, int n, int32_t min, int32_t max)
{
    msgl_gx_builder *b = s->b;
    int32_t rules[1 << MAX_DIFFERENT]; // what follows when the values of a set were there
    const int32_t end = closed(s, "]"), space = msgl__json_space(b, &s->json);
    for (int set = 0; set < 1 << n; set++) rules[set] = msgl__gx_rule_new(b, NULL, 0);
    for (int set = 0; set < 1 << n && b->rc == 0; set++) {
        const int32_t had = __builtin_popcount((unsigned)set);
        int32_t ways[MAX_DIFFERENT + 1];
        int32_t k = 0;
        for (int i = 0; i < n && (max == MSGL_GX_INF || had < max); i++) {
            if ((set >> i & 1) != 0) continue;
            const int32_t next[4] = {msgl__gx_str(b, had > 0 ? "," : ""), space, values[i],
                                     msgl__gx_ref(b, rules[set | 1 << i])};
            ways[k++] = msgl__gx_seq(b, next, 4);
        }
        if (had >= min) ways[k++] = end;
        msgl__gx_rule_set(b, rules[set], msgl__gx_alt(b, ways, k));
    }
    const int32_t whole[2] = {msgl__gx_str(b, "["), msgl__gx_ref(b, rules[0])};
    return msgl__gx_seq(b, whole, 2);
}

// uniqueItems: -1 without a failure where lists of any values have to be made, which may only be
// said of lists of one.
static int32_t unique_items(msgl_schema *s, json_t *schema, int32_t min, int32_t max)
{
    if (max == 0 || max == 1) return -1;
    json_t *items = json_object_get(schema, "items");
    // A list has a schema for each of the first elements, and none that all of them are values of.
    items = json_is_array(items) ? NULL : msgl__schema_flat(s, items);
    json_t *list = json_object_get(items, "enum");
    const char *type = json_string_value(json_object_get(items, "type"));
    if (list == NULL && type != NULL && strcmp(type, "boolean") == 0) {
        list = msgl__schema_keep(s, json_pack("[b,b]", 1, 0));
    }
    const size_t n = json_array_size(list);
    if (s->b->rc != 0) return -1;
    if (n == 0 || n > MAX_DIFFERENT || json_object_get(schema, "prefixItems") != NULL) {
        // It is left out of strict schemas, too: the openai package calls every class strict, a
        // set[str] among its members included, and reads ["a", "a"] as the set of "a".
        msgl__schema_fail(s, MSGL_EUNSUPPORTED, "uniqueItems",
                          "supported of lists of at most one item, or of at most 6 values of an "
                          "enum");
        (void)msgl__gx_forgive_strict(s->b);
        return -1;
    }
    int32_t values[MAX_DIFFERENT];
    int num = 0;
    for (size_t i = 0; i < n && s->b->rc == 0; i++) {
        json_t *v = json_array_get(list, i);
        bool again = false;
        for (size_t k = 0; k < i; k++) again |= json_equal(json_array_get(list, k), v) != 0;
        if (!again && msgl__schema_allows(s, items, v) == 1)
            values[num++] = msgl__schema_const(s, v);
    }
    return s->b->rc == 0 ? different(s, values, num, min, max) : -1;
}

int32_t msgl__schema_array(msgl_schema *s, json_t *schema)
{
    const int32_t min = msgl__schema_count(s, schema, "minItems", 0);
    const int32_t max = msgl__schema_count(s, schema, "maxItems", MSGL_GX_INF);
    json_t *items = json_object_get(schema, "items"),
           *list = json_object_get(schema, "prefixItems");
    if (json_is_true(json_object_get(schema, "uniqueItems"))) {
        const int32_t unique = unique_items(s, schema, min, max);
        if (unique >= 0 || s->b->rc != 0) return unique;
    }
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
