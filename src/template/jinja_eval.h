// SPDX-License-Identifier: Apache-2.0
//
// Walking the parsed template. Statuses above 0 are loop control on its way to the loop.
#ifndef MSGL_TEMPLATE_JINJA_EVAL_H
#define MSGL_TEMPLATE_JINJA_EVAL_H

#include "template/jinja_ast.h"
#include "template/jinja_string.h"

enum { MSGL_J_BREAK = 1, MSGL_J_CONTINUE = 2 };

int msgl__jeval(msgl_jctx *c, msgl_jscope *s, const msgl_jnode *n, msgl_jval *out);
int msgl__jexec_body(msgl_jctx *c, msgl_jscope *s, const msgl_jbody *body);
// loop(items) of a recursive for loop.
int msgl__jloop_recurse(msgl_jctx *c, msgl_jloop *loop, const msgl_jval *items, msgl_jval *out);

int msgl__jscope_new(msgl_jctx *c, msgl_jscope *parent, msgl_jscope **out);
int msgl__jscope_set(msgl_jctx *c, msgl_jscope *s, const msgl_jstr *name, msgl_jval v);
// Makes the name one of s, without a value yet.
int msgl__jscope_own(msgl_jctx *c, msgl_jscope *s, const msgl_jstr *name);
// Scopes, then the client's variables, the folder's, the global functions; else undefined.
int msgl__jlookup(msgl_jctx *c, msgl_jscope *s, const msgl_jstr *name, msgl_jval *out);

int msgl__jgetattr(msgl_jctx *c, const msgl_jval *obj, const msgl_jstr *name, msgl_jval *out);
int msgl__jgetitem(msgl_jctx *c, const msgl_jval *obj, const msgl_jval *key, msgl_jval *out);
int msgl__jslice(msgl_jctx *c, const msgl_jval *obj, const msgl_jval *start, const msgl_jval *stop,
                 const msgl_jval *step, msgl_jval *out);
int msgl__jbinary(msgl_jctx *c, msgl_jop op, const msgl_jval *a, const msgl_jval *b,
                  msgl_jval *out);
int msgl__jcompare_op(msgl_jctx *c, msgl_jop op, const msgl_jval *a, const msgl_jval *b, bool *out);

int msgl__jcall_value(msgl_jctx *c, const msgl_jval *callee, const msgl_jcall *call,
                      msgl_jval *out);
int msgl__jcall_macro(msgl_jctx *c, const msgl_jmacro *m, const msgl_jcall *call, msgl_jval *out);
// Runs the filter or test of a node. One that nobody has is an error here and not while parsing:
// templates ask for filters of other programs in branches that are never taken.
int msgl__japply(msgl_jctx *c, const msgl_jnode *n, const msgl_jval *self, const msgl_jcall *call,
                 msgl_jval *out);
int msgl__jeval_args(msgl_jctx *c, msgl_jscope *s, const msgl_jargs *args, size_t extra,
                     msgl_jcall *out);

#endif
