// SPDX-License-Identifier: Apache-2.0
//
// Global functions, and the methods of everything but strings.
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "template/jinja_eval.h"

enum { MAX_RANGE = 100000, STRFTIME_MAX = 4096 };

// range(stop) or range(start, stop, step); the sandbox allows 100000 elements.
MSGL_JBUILTIN(fn_range)
{
    int64_t v[3] = {0, 0, 1};
    if (call->nkw > 0) return msgl__jctx_fail(c, "range() takes no keyword arguments");
    if (call->npos < 1 || call->npos > 3) {
        return msgl__jctx_fail(c, "range expected 1 to 3 arguments, got %zu", call->npos);
    }
    for (size_t i = 0; i < call->npos; i++) {
        MSGL_JTRY(msgl__jarg_int(c, &call->pos[i], 0, &v[call->npos == 1 ? 1 : i]));
    }
    if (v[2] == 0) return msgl__jctx_fail(c, "range() arg 3 must not be zero");
    // Unsigned: the distance of two int64 does not fit into one.
    const bool up = v[2] > 0, some = up ? v[0] < v[1] : v[0] > v[1];
    const uint64_t dist = up ? (uint64_t)v[1] - (uint64_t)v[0] : (uint64_t)v[0] - (uint64_t)v[1];
    const uint64_t step = up ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
    const uint64_t n = some ? (dist - 1) / step + 1 : 0;
    if (n > MAX_RANGE) {
        return msgl__jctx_limit(c,
                                "Range too big. The sandbox blocks ranges larger than MAX_RANGE "
                                "(%d).",
                                MAX_RANGE);
    }
    msgl_jrange *r = msgl__jctx_alloc(c, sizeof *r);
    if (r == NULL) return msgl__jctx_nomem(c, sizeof *r);
    *r = (msgl_jrange){v[0], v[1], v[2], (size_t)n};
    *out = (msgl_jval){.type = MSGL_J_RANGE, .as.r = r};
    return 0;
}

MSGL_JBUILTIN(fn_dict)
{
    msgl_jdict *d;
    MSGL_JTRY(msgl__jdict_from(c, call, &d));
    *out = (msgl_jval){.type = MSGL_J_DICT, .as.d = d};
    return 0;
}

MSGL_JBUILTIN(fn_namespace)
{
    msgl_jdict *d;
    MSGL_JTRY(msgl__jdict_from(c, call, &d));
    for (size_t i = 0; i < d->len; i++) {
        const msgl_jval *k = &d->keys[i];
        if (k->type == MSGL_J_STR && k->as.s->len > 0 && k->as.s->data[0] == '_') {
            return msgl__jctx_fail(c, "namespace attributes cannot start with '_'");
        }
    }
    *out = (msgl_jval){.type = MSGL_J_NAMESPACE, .as.d = d};
    return 0;
}

// The template's own words, without a line number before them: clients see this text.
MSGL_JBUILTIN(fn_raise_exception)
{
    msgl_jstr *s;
    MSGL_JTRY(msgl__jto_str(c, &arg[0], &s));
    size_t n = s->len < MSGL_ERR_TEXT_SIZE - 1 ? s->len : MSGL_ERR_TEXT_SIZE - 1;
    while (n > 0 && n < s->len && ((unsigned char)s->data[n] & 0xc0) == 0x80) n--;
    return msgl__err_set(c->err, MSGL_EINVAL, "%.*s", (int)n, s->data);
}

// datetime.now().strftime(format): the C library's, plus %f; %z and %Z are empty without a zone.
MSGL_JBUILTIN(fn_strftime_now)
{
    msgl_jstr *fmt;
    char one[STRFTIME_MAX];
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jarg_str(c, &arg[0], "strftime_now", &fmt));
    MSGL_JTRY(msgl__jctx_chars(c, fmt->len));
    MSGL_JTRY(msgl__jbuf_new(c, 64, &b));
    for (size_t i = 0; i < fmt->len;) {
        if (fmt->data[i] != '%' || i + 1 == fmt->len) {
            MSGL_JTRY(msgl__jbuf_add_sub(b, fmt, i, 1));
            i++;
            continue;
        }
        MSGL_JTRY(msgl__jctx_steps(c, 8));
        size_t n = 1; // "%", flags and width, then the letter
        while (i + n + 1 < fmt->len && strchr("-_0^#123456789EO", fmt->data[i + n]) != NULL) n++;
        const char letter = fmt->data[i + n];
        char spec[32];
        if (n + 2 > sizeof spec || (unsigned char)letter >= 0x80 || letter == '\0') {
            return msgl__jctx_fail(c, "Invalid format string");
        }
        if (letter == 'f') {
            const size_t len = (size_t)snprintf(one, sizeof one, "%06ld", c->clock->usec);
            MSGL_JTRY(msgl__jbuf_add(b, one, len, false));
        } else if (letter != 'z' && letter != 'Z') {
            memcpy(spec, fmt->data + i, n + 1);
            spec[n + 1] = '\0';
            // The blank tells an empty result from one that did not fit.
            char with_blank[40];
            snprintf(with_blank, sizeof with_blank, "%s ", spec);
            const size_t len = strftime(one, sizeof one, with_blank, &c->clock->tm);
            if (len == 0) return msgl__jctx_limit(c, "strftime_now: the result is too long");
            MSGL_JTRY(msgl__jbuf_add(b, one, len - 1, false));
        }
        i += n + 1;
    }
    msgl_jstr *s;
    MSGL_JTRY(msgl__jbuf_finish(b, &s));
    *out = msgl__jstrval(s);
    return 0;
}

MSGL_JBUILTIN(fn_cycler)
{
    if (call->npos == 0) return msgl__jctx_fail(c, "at least one item has to be provided");
    msgl_jcycler *y = msgl__jarena_zalloc(&c->arena, sizeof *y);
    if (y == NULL) return msgl__jctx_nomem(c, sizeof *y);
    y->items = (msgl_jlist){.items = call->pos, .len = call->npos};
    *out = (msgl_jval){.type = MSGL_J_CYCLER, .as.cycler = y};
    return 0;
}

MSGL_JBUILTIN(fn_joiner)
{
    msgl_jjoiner *j = msgl__jarena_zalloc(&c->arena, sizeof *j);
    if (j == NULL) return msgl__jctx_nomem(c, sizeof *j);
    j->sep = arg[0];
    if (arg[0].type == MSGL_J_UNSET) {
        msgl_jstr *sep;
        MSGL_JTRY(msgl__jstr_ref(c, ", ", 2, false, &sep));
        j->sep = msgl__jstrval(sep);
    }
    *out = (msgl_jval){.type = MSGL_J_JOINER, .as.joiner = j};
    return 0;
}

static const msgl_jbuiltin GLOBALS[] = {
    {"range", "*", fn_range},
    {"dict", "*", fn_dict},
    {"namespace", "*", fn_namespace},
    {"raise_exception", "message", fn_raise_exception},
    {"strftime_now", "format", fn_strftime_now},
    {"cycler", "*", fn_cycler},
    {"joiner", "?sep", fn_joiner},
};

const msgl_jbuiltin *msgl__jglobal_find(const char *name, size_t len)
{
    return msgl__jbuiltin_in(GLOBALS, MSGL_COUNT(GLOBALS), name, len);
}

// --- methods of dicts, lists, loops, cyclers, floats ---
static int dict_view(msgl_jctx *c, const msgl_jval *self, msgl_jview_kind kind, msgl_jval *out)
{
    msgl_jview *v = msgl__jctx_alloc(c, sizeof *v);
    if (v == NULL) return msgl__jctx_nomem(c, sizeof *v);
    *v = (msgl_jview){kind, self->as.d};
    *out = (msgl_jval){.type = MSGL_J_VIEW, .as.v = v};
    return 0;
}

MSGL_JBUILTIN(dict_keys)
{
    return dict_view(c, self, MSGL_JVIEW_KEYS, out);
}
MSGL_JBUILTIN(dict_values)
{
    return dict_view(c, self, MSGL_JVIEW_VALUES, out);
}
MSGL_JBUILTIN(dict_items)
{
    return dict_view(c, self, MSGL_JVIEW_ITEMS, out);
}

MSGL_JBUILTIN(dict_get)
{
    msgl_jval *v;
    MSGL_JTRY(msgl__jdict_get(c, self->as.d, &arg[0], &v));
    *out = v != NULL ? *v : arg[1].type != MSGL_J_UNSET ? arg[1] : msgl__jnone();
    return 0;
}

MSGL_JBUILTIN(copy_self)
{
    *out = *self; // nothing can change it
    return 0;
}

MSGL_JBUILTIN(list_count)
{
    int64_t n = 0;
    for (size_t i = 0; i < self->as.l->len; i++) {
        bool eq;
        MSGL_JTRY(msgl__jequal(c, &self->as.l->items[i], &arg[0], &eq));
        n += eq;
    }
    *out = msgl__jint(n);
    return 0;
}

MSGL_JBUILTIN(list_index)
{
    const int64_t len = (int64_t)self->as.l->len;
    int64_t from, to;
    MSGL_JTRY(msgl__jarg_int(c, &arg[1], 0, &from));
    MSGL_JTRY(msgl__jarg_int(c, &arg[2], len, &to));
    if (from < 0) from = from + len < 0 ? 0 : from + len;
    if (to < 0) to += len;
    for (int64_t i = from; i < to && i < len; i++) {
        bool eq;
        MSGL_JTRY(msgl__jequal(c, &self->as.l->items[i], &arg[0], &eq));
        if (eq) {
            *out = msgl__jint(i);
            return 0;
        }
    }
    return msgl__jctx_fail(c, "the value is not in the %s", msgl__jtype_name(self));
}

MSGL_JBUILTIN(loop_cycle)
{
    if (call->npos == 0) return msgl__jctx_fail(c, "no items for cycling given");
    *out = call->pos[self->as.loop->index0 % call->npos];
    return 0;
}

MSGL_JBUILTIN(loop_changed)
{
    msgl_jlist *l;
    bool eq = false;
    MSGL_JTRY(msgl__jlist_new(c, call->npos, &l));
    for (size_t i = 0; i < l->len; i++) l->items[i] = call->pos[i];
    const msgl_jval now = {.type = MSGL_J_TUPLE, .as.l = l};
    MSGL_JTRY(msgl__jequal(c, &self->as.loop->changed, &now, &eq));
    self->as.loop->changed = now;
    *out = msgl__jbool(!eq);
    return 0;
}

MSGL_JBUILTIN(cycler_next)
{
    msgl_jcycler *y = self->as.cycler;
    *out = y->items.items[y->pos];
    y->pos = (y->pos + 1) % y->items.len;
    return 0;
}

MSGL_JBUILTIN(cycler_reset)
{
    self->as.cycler->pos = 0;
    *out = msgl__jnone();
    return 0;
}

MSGL_JBUILTIN(float_is_integer)
{
    *out = msgl__jbool(isfinite(self->as.f) && self->as.f == floor(self->as.f));
    return 0;
}

static const msgl_jbuiltin DICT_METHODS[] = {
    {"get", "key ?default", dict_get}, {"items", "", dict_items}, {"keys", "", dict_keys},
    {"values", "", dict_values},       {"copy", "", copy_self},
};
static const msgl_jbuiltin LIST_METHODS[] = {
    {"index", "value ?start ?stop", list_index},
    {"count", "value", list_count},
    {"copy", "", copy_self}, // last: tuples have none
};
static const msgl_jbuiltin LOOP_METHODS[] = {
    {"cycle", "*", loop_cycle},
    {"changed", "*", loop_changed},
};
static const msgl_jbuiltin CYCLER_METHODS[] = {
    {"next", "", cycler_next},
    {"reset", "", cycler_reset},
};
static const msgl_jbuiltin FLOAT_METHODS[] = {{"is_integer", "", float_is_integer}};

const msgl_jbuiltin *msgl__jmethod_find(const msgl_jval *self, const char *name, size_t len)
{
    switch (self->type) {
    case MSGL_J_STR: return msgl__jstr_method_find(name, len);
    case MSGL_J_DICT: return msgl__jbuiltin_in(DICT_METHODS, MSGL_COUNT(DICT_METHODS), name, len);
    case MSGL_J_LIST: return msgl__jbuiltin_in(LIST_METHODS, MSGL_COUNT(LIST_METHODS), name, len);
    case MSGL_J_TUPLE: return msgl__jbuiltin_in(LIST_METHODS, 2, name, len);
    case MSGL_J_LOOP: return msgl__jbuiltin_in(LOOP_METHODS, MSGL_COUNT(LOOP_METHODS), name, len);
    case MSGL_J_CYCLER:
        return msgl__jbuiltin_in(CYCLER_METHODS, MSGL_COUNT(CYCLER_METHODS), name, len);
    case MSGL_J_FLOAT:
        return msgl__jbuiltin_in(FLOAT_METHODS, MSGL_COUNT(FLOAT_METHODS), name, len);
    default: return NULL;
    }
}

bool msgl__junsafe_attribute(const msgl_jval *self, const char *name, size_t len)
{
    static const char *const dict_hidden[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const list_hidden[] = {"append", "clear",  "extend",  "insert",
                                              "pop",    "remove", "reverse", "sort"};
    const bool is_dict = self->type == MSGL_J_DICT;
    const char *const *hidden = is_dict ? dict_hidden : list_hidden;
    const size_t n = is_dict                     ? MSGL_COUNT(dict_hidden)
                     : self->type == MSGL_J_LIST ? MSGL_COUNT(list_hidden)
                                                 : 0;
    for (size_t i = 0; i < n; i++) {
        if (strlen(hidden[i]) == len && memcmp(hidden[i], name, len) == 0) return true;
    }
    static const char dunder_class[] = "__class__";
    return len == sizeof dunder_class - 1 && memcmp(name, dunder_class, len) == 0;
}
