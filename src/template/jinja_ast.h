// SPDX-License-Identifier: Apache-2.0
//
// The parsed template. Immutable once the parser returns it; any number of renders may walk it at
// once. Depth is bounded while parsing, so that walking it cannot exhaust the native stack.
#ifndef MSGL_TEMPLATE_JINJA_AST_H
#define MSGL_TEMPLATE_JINJA_AST_H

#include "template/jinja_builtins.h"
#include "template/jinja_value.h"

typedef enum msgl_jkind {
    // expressions
    MSGL_JX_CONST,
    MSGL_JX_NAME,
    MSGL_JX_NSREF, // name.attr as an assignment target
    MSGL_JX_TUPLE,
    MSGL_JX_LIST,
    MSGL_JX_DICT, // list: key, value, key, value ...
    MSGL_JX_GETATTR,
    MSGL_JX_GETITEM,
    MSGL_JX_SLICE, // a[list[0]:list[1]:list[2]], each may be NULL
    MSGL_JX_CALL,
    MSGL_JX_FILTER, // a NULL: the captured text of a filter block
    MSGL_JX_TEST,
    MSGL_JX_NOT,
    MSGL_JX_NEG,
    MSGL_JX_POS,
    MSGL_JX_AND,
    MSGL_JX_OR,
    MSGL_JX_BINARY,
    MSGL_JX_CONCAT,
    MSGL_JX_COMPARE, // a, then list with ops
    MSGL_JX_COND,    // b if a else c
    // statements
    MSGL_JS_TEXT,
    MSGL_JS_PRINT,
    MSGL_JS_IF,        // list: condition or NULL (else) per branch, bodies beside
    MSGL_JS_FOR,       // a target, b iterable, c filter; bodies[0] loop, bodies[1] else
    MSGL_JS_SET,       // a target, b value
    MSGL_JS_SET_BLOCK, // a target, b filter or NULL; bodies[0]
    MSGL_JS_MACRO,
    MSGL_JS_CALL_BLOCK, // a call; signature and body of the caller
    MSGL_JS_FILTER_BLOCK,
    MSGL_JS_WITH, // list: target, value, target, value ...
    MSGL_JS_SCOPE,
    MSGL_JS_BREAK,
    MSGL_JS_CONTINUE,
} msgl_jkind;

typedef enum msgl_jop {
    MSGL_JOP_ADD,
    MSGL_JOP_SUB,
    MSGL_JOP_MUL,
    MSGL_JOP_DIV,
    MSGL_JOP_FLOORDIV,
    MSGL_JOP_MOD,
    MSGL_JOP_POW,
    MSGL_JOP_EQ,
    MSGL_JOP_NE,
    MSGL_JOP_LT,
    MSGL_JOP_LE,
    MSGL_JOP_GT,
    MSGL_JOP_GE,
    MSGL_JOP_IN,
    MSGL_JOP_NOTIN,
} msgl_jop;

typedef struct msgl_jnode msgl_jnode;

typedef struct msgl_jargs {
    msgl_jnode **pos;
    size_t npos;
    const msgl_jstr **kw_names;
    msgl_jnode **kw;
    size_t nkw;
    msgl_jnode *star, *dstar; // *x, **x; or NULL
} msgl_jargs;

typedef struct msgl_jbody {
    msgl_jnode **stmts;
    size_t len;
    const msgl_jstr **own; // names that are the block's own, without a value, from its start on
    size_t nown;
} msgl_jbody;

// Parameters of a macro or call block; the last `ndefaults` have default values.
typedef struct msgl_jsignature {
    const msgl_jstr **names;
    size_t len;
    msgl_jnode **defaults;
    size_t ndefaults;
    bool uses_caller, uses_varargs, uses_kwargs; // the body mentions them and they are no parameter
    bool has_caller_param;
} msgl_jsignature;

struct msgl_jnode {
    uint8_t kind, op;
    bool recursive; // FOR
    int line;
    int depth; // nodes on the longest way down, this one included
    msgl_jnode *a, *b, *c;
    msgl_jnode **list;
    uint8_t *ops; // COMPARE
    size_t nlist;
    msgl_jbody *bodies;
    msgl_jargs *args;
    msgl_jsignature *sig;
    const msgl_jstr *sym;    // NAME, GETATTR, MACRO, NSREF's name, FILTER and TEST without fn
    const msgl_jstr *attr;   // NSREF
    const msgl_jbuiltin *fn; // FILTER, TEST; NULL: nobody has it
    msgl_jval val;           // CONST, TEXT
};

struct msgl_chat_template {
    msgl_jarena arena;
    msgl_jbody body;
    const msgl_jstr *sym_loop, *sym_caller, *sym_varargs, *sym_kwargs;
    bool knows_developer; // the string 'developer' stands somewhere in its code
};

#endif
