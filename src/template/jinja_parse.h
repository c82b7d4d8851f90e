// SPDX-License-Identifier: Apache-2.0
//
// Tokens to the tree of jinja_ast.h. Recursive descent with a fixed depth limit; statements in
// jinja_parse.c, expressions in jinja_parse_expr.c.
#ifndef MSGL_TEMPLATE_JINJA_PARSE_H
#define MSGL_TEMPLATE_JINJA_PARSE_H

#include "template/jinja_ast.h"
#include "template/jinja_lex.h"

enum {
    MSGL_JPARSE_DEPTH = 200, // open statements and sub-expressions while parsing
    MSGL_JTREE_DEPTH = 400,  // longest way down the finished tree
    MSGL_JPARSE_MACROS = 64, // macros within macros
    MSGL_JNAMES_HASH = 4096,
    MSGL_JREFS_HASH = 1024,
};

typedef struct msgl_jname {
    msgl_jstr str;
    struct msgl_jname *next;
} msgl_jname;

// The first mention of a name in a block.
typedef struct msgl_jref {
    const struct msgl_jframe *frame;
    const msgl_jstr *name;
    struct msgl_jref *chain, *next_store;
} msgl_jref;

// A block with names of its own (template, loop, macro ...); see jinja_scope.c.
typedef struct msgl_jframe {
    struct msgl_jframe *parent, *next;
    msgl_jbody *body;  // NULL: nothing but expressions
    msgl_jref *stores; // names whose first mention assigns them, outside of any branch
    size_t nstores;
    int branches; // open ifs
} msgl_jframe;

typedef struct msgl_jparser {
    struct msgl_chat_template *tmpl;
    msgl_jarena *arena;
    msgl_err *err;
    msgl_jtok *toks;
    size_t pos;
    int depth;
    int loops; // open for loops of the innermost macro (break and continue need one)
    msgl_jsignature *macros[MSGL_JPARSE_MACROS];
    int nmacros;
    bool in_target;              // names are being assigned to, not read
    msgl_jframe *frame, *frames; // innermost; all
    msgl_jname *names[MSGL_JNAMES_HASH];
    msgl_jref *refs[MSGL_JREFS_HASH];
} msgl_jparser;

// Growing list of nodes, in the arena.
typedef struct msgl_jnodes {
    msgl_jnode **items;
    size_t len, cap;
} msgl_jnodes;

// Parses a whole template into t (whose arena is set up).
int msgl__jparse(struct msgl_chat_template *t, const char *source, size_t len, msgl_err *err);

// --- shared by the two files ---
static inline const msgl_jtok *msgl__jp_cur(const msgl_jparser *p)
{
    return &p->toks[p->pos];
}
int msgl__jp_fail(msgl_jparser *p, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int msgl__jp_unexpected(msgl_jparser *p, const char *expected);
int msgl__jp_nomem(msgl_jparser *p, size_t size);
bool msgl__jp_is_op(const msgl_jtok *t, const char *op);
bool msgl__jp_is_name(const msgl_jtok *t, const char *name);
bool msgl__jp_skip_op(msgl_jparser *p, const char *op);
bool msgl__jp_skip_name(msgl_jparser *p, const char *name);
int msgl__jp_expect_op(msgl_jparser *p, const char *op);
int msgl__jp_enter(msgl_jparser *p); // one level deeper, paired with p->depth--
int msgl__jp_intern(msgl_jparser *p, const char *text, size_t len, const msgl_jstr **out);
int msgl__jp_node(msgl_jparser *p, msgl_jkind kind, int line, msgl_jnode **out);
int msgl__jp_push(msgl_jparser *p, msgl_jnodes *v, msgl_jnode *n);
// Computes n->depth from its children; MSGL_ELIMIT past the limit.
int msgl__jp_close(msgl_jparser *p, msgl_jnode *n);

// Name resolution (jinja_scope.c).
int msgl__jp_frame_open(msgl_jparser *p);
void msgl__jp_frame_close(msgl_jparser *p, msgl_jbody *body);
int msgl__jp_note_load(msgl_jparser *p, const msgl_jstr *name);
int msgl__jp_note_store(msgl_jparser *p, const msgl_jstr *name);
int msgl__jp_note_target(msgl_jparser *p, const msgl_jnode *target, bool param);
int msgl__jp_resolve_frames(msgl_jparser *p); // after all is parsed

int msgl__jp_expr(msgl_jparser *p, bool with_cond, msgl_jnode **out);
int msgl__jp_primary(msgl_jparser *p, bool with_ns, msgl_jnode **out);
// Expressions with commas between. `end_name` (or NULL): a name that ends the list.
int msgl__jp_tuple(msgl_jparser *p, bool targets, bool with_cond, bool in_parens,
                   const char *end_name, bool with_ns, msgl_jnode **out);
// Filters after "|"; `start_inline`: the first has no "|".
int msgl__jp_filter(msgl_jparser *p, msgl_jnode *input, bool start_inline, msgl_jnode **out);

#endif
