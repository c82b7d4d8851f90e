// SPDX-License-Identifier: Apache-2.0
//
// Tests: the words behind `is`.

#include "template/jinja_eval.h"

#define SIMPLE(fname, condition)                                                                   \
    MSGL_JBUILTIN(fname)                                                                           \
    {                                                                                              \
        *out = msgl__jbool(condition);                                                             \
        return 0;                                                                                  \
    }

SIMPLE(is_defined, self->type != MSGL_J_UNDEF)
SIMPLE(is_undefined, self->type == MSGL_J_UNDEF)
SIMPLE(is_none, self->type == MSGL_J_NONE)
SIMPLE(is_boolean, self->type == MSGL_J_BOOL)
SIMPLE(is_true, self->type == MSGL_J_BOOL && self->as.b)
SIMPLE(is_false, self->type == MSGL_J_BOOL && !self->as.b)
SIMPLE(is_integer, self->type == MSGL_J_INT || self->type == MSGL_J_BIG)
SIMPLE(is_float, self->type == MSGL_J_FLOAT)
SIMPLE(is_number, msgl__jis_number(self) || self->type == MSGL_J_BIG)
SIMPLE(is_string, self->type == MSGL_J_STR)
SIMPLE(is_mapping, self->type == MSGL_J_DICT)
SIMPLE(is_iterable, msgl__jiterable(self))
SIMPLE(is_sequence,
       msgl__jhas_length(self) && self->type != MSGL_J_VIEW && self->type != MSGL_J_LOOP)
SIMPLE(is_callable, self->type == MSGL_J_UNDEF || self->type == MSGL_J_MACRO ||
                        self->type == MSGL_J_FUNC || self->type == MSGL_J_METHOD ||
                        self->type == MSGL_J_LOOP || self->type == MSGL_J_JOINER)
SIMPLE(is_escaped, self->type == MSGL_J_STR && self->as.s->markup)
SIMPLE(is_sameas, msgl__jsame(self, &arg[0]))

MSGL_JBUILTIN(is_odd)
{
    const msgl_jval two = msgl__jint(2), one = msgl__jint(1);
    msgl_jval rest;
    bool eq;
    MSGL_JTRY(msgl__jbinary(c, MSGL_JOP_MOD, self, &two, &rest));
    MSGL_JTRY(msgl__jequal(c, &rest, &one, &eq));
    *out = msgl__jbool(eq);
    return 0;
}

static int divisible(msgl_jctx *c, const msgl_jval *self, const msgl_jval *by, msgl_jval *out)
{
    const msgl_jval zero = msgl__jint(0);
    msgl_jval rest;
    bool eq;
    MSGL_JTRY(msgl__jbinary(c, MSGL_JOP_MOD, self, by, &rest));
    MSGL_JTRY(msgl__jequal(c, &rest, &zero, &eq));
    *out = msgl__jbool(eq);
    return 0;
}

MSGL_JBUILTIN(is_even)
{
    const msgl_jval two = msgl__jint(2);
    return divisible(c, self, &two, out);
}

MSGL_JBUILTIN(is_divisibleby)
{
    return divisible(c, self, &arg[0], out);
}

static int compared(msgl_jctx *c, msgl_jop op, const msgl_jval *a, const msgl_jval *b,
                    msgl_jval *out)
{
    bool yes;
    MSGL_JTRY(msgl__jcompare_op(c, op, a, b, &yes));
    *out = msgl__jbool(yes);
    return 0;
}

MSGL_JBUILTIN(is_eq)
{
    return compared(c, MSGL_JOP_EQ, self, &arg[0], out);
}
MSGL_JBUILTIN(is_ne)
{
    return compared(c, MSGL_JOP_NE, self, &arg[0], out);
}
MSGL_JBUILTIN(is_lt)
{
    return compared(c, MSGL_JOP_LT, self, &arg[0], out);
}
MSGL_JBUILTIN(is_le)
{
    return compared(c, MSGL_JOP_LE, self, &arg[0], out);
}
MSGL_JBUILTIN(is_gt)
{
    return compared(c, MSGL_JOP_GT, self, &arg[0], out);
}
MSGL_JBUILTIN(is_ge)
{
    return compared(c, MSGL_JOP_GE, self, &arg[0], out);
}
MSGL_JBUILTIN(is_in)
{
    return compared(c, MSGL_JOP_IN, self, &arg[0], out);
}

// islower / isupper: all cased characters are of that case, and there is one.
static int cased(msgl_jctx *c, const msgl_jval *self, bool upper, msgl_jval *out)
{
    msgl_jstr *s;
    MSGL_JTRY(msgl__jto_str(c, self, &s));
    bool some = false, all = true;
    for (size_t i = 0; i < s->len && all;) {
        int32_t cp;
        i += msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
        const bool want = upper ? msgl__jis_upper(cp) : msgl__jis_lower(cp);
        some |= want;
        all = want || !msgl__jis_cased(cp);
    }
    *out = msgl__jbool(some && all);
    return msgl__jctx_chars(c, s->len);
}

MSGL_JBUILTIN(is_lower)
{
    return cased(c, self, false, out);
}
MSGL_JBUILTIN(is_upper)
{
    return cased(c, self, true, out);
}

MSGL_JBUILTIN(is_filter)
{
    *out = msgl__jbool(self->type == MSGL_J_STR &&
                       msgl__jfilter_find(self->as.s->data, self->as.s->len) != NULL);
    return 0;
}
MSGL_JBUILTIN(is_test)
{
    *out = msgl__jbool(self->type == MSGL_J_STR &&
                       msgl__jtest_find(self->as.s->data, self->as.s->len) != NULL);
    return 0;
}

static const msgl_jbuiltin TESTS[] = {
    {"defined", "", is_defined},    {"undefined", "", is_undefined},
    {"none", "", is_none},          {"string", "", is_string},
    {"mapping", "", is_mapping},    {"sequence", "", is_sequence},
    {"iterable", "", is_iterable},  {"number", "", is_number},
    {"integer", "", is_integer},    {"float", "", is_float},
    {"boolean", "", is_boolean},    {"true", "", is_true},
    {"false", "", is_false},        {"callable", "", is_callable},
    {"escaped", "", is_escaped},    {"odd", "", is_odd},
    {"even", "", is_even},          {"divisibleby", "num", is_divisibleby},
    {"sameas", "other", is_sameas}, {"in", "seq", is_in},
    {"eq", "other", is_eq},         {"equalto", "other", is_eq},
    {"==", "other", is_eq},         {"ne", "other", is_ne},
    {"!=", "other", is_ne},         {"lt", "other", is_lt},
    {"lessthan", "other", is_lt},   {"<", "other", is_lt},
    {"le", "other", is_le},         {"<=", "other", is_le},
    {"gt", "other", is_gt},         {"greaterthan", "other", is_gt},
    {">", "other", is_gt},          {"ge", "other", is_ge},
    {">=", "other", is_ge},         {"lower", "", is_lower},
    {"upper", "", is_upper},        {"filter", "", is_filter},
    {"test", "", is_test},
};

const msgl_jbuiltin *msgl__jtest_find(const char *name, size_t len)
{
    return msgl__jbuiltin_in(TESTS, MSGL_COUNT(TESTS), name, len);
}
