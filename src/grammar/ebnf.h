// SPDX-License-Identifier: Apache-2.0
//
// What the readers of GBNF and Lark grammars share: rules by name, positions for messages, escapes,
// repetition, and the removal of direct left recursion.
#ifndef MSGL_GRAMMAR_EBNF_H
#define MSGL_GRAMMAR_EBNF_H

#include "grammar/expr.h"

#define MSGL_EBNF_GROUPS 100 // parentheses inside parentheses

typedef struct msgl_ebnf {
    msgl_gx_builder *b;
    const char *what; // "gbnf" or "lark", for messages
    const char *text;
    size_t n, at;
    int depth;
    int32_t *slot; // rules by name: open addressing, rule + 1
    uint32_t mask;
    int32_t num_names;
} msgl_ebnf;

// MSGL_EFORMAT and the like with the line and column of e->at.
int32_t msgl__ebnf_fail(msgl_ebnf *e, int code, const char *what);
static inline int msgl__ebnf_peek(const msgl_ebnf *e)
{
    return e->at < e->n ? (unsigned char)e->text[e->at] : -1;
}
bool msgl__ebnf_take(msgl_ebnf *e, const char *word);
// Length of the name at `at`: letters, digits, '_' and `extra`; 0: there is none.
size_t msgl__ebnf_name(const msgl_ebnf *e, size_t at, char extra);
// The rule of a name, made where there is none yet; -1: a failure.
int32_t msgl__ebnf_rule(msgl_ebnf *e, const char *name, size_t n);
// Where it is there, -1 where it is not.
int32_t msgl__ebnf_find(const msgl_ebnf *e, const char *name, size_t n);
// Sets a rule's body once; A: A x | y becomes y x*. A second one is MSGL_EFORMAT.
void msgl__ebnf_define(msgl_ebnf *e, int32_t rule, int32_t expr);
// A character behind a backslash.
uint32_t msgl__ebnf_escape(msgl_ebnf *e);
// A literal up to the quote, behind its opening one.
int32_t msgl__ebnf_string(msgl_ebnf *e, char quote, bool ignore_case);
// {m}, {m,}, {m,n} behind the brace.
int32_t msgl__ebnf_braces(msgl_ebnf *e, int32_t expr);
int32_t msgl__ebnf_number(msgl_ebnf *e); // -1: there is none
void msgl__ebnf_free(msgl_ebnf *e);

#endif
