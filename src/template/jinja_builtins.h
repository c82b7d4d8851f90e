// SPDX-License-Identifier: Apache-2.0
//
// Filters, tests, methods and global functions: one table row each, giving the name, the parameters
// and the function. Arguments arrive already placed by position or name.
#ifndef MSGL_TEMPLATE_JINJA_BUILTINS_H
#define MSGL_TEMPLATE_JINJA_BUILTINS_H

#include "template/jinja_value.h"

enum { MSGL_JPARAMS_MAX = 6 };

typedef int (*msgl_jbuiltin_fn)(msgl_jctx *c, const msgl_jval *self, const msgl_jval *arg,
                                const msgl_jcall *call, msgl_jval *out);

// Head of a built-in function; not every one reads every argument.
#define MSGL_JBUILTIN(fname)                                                                       \
    static int fname(msgl_jctx *c MSGL_UNUSED, const msgl_jval *self MSGL_UNUSED,                  \
                     const msgl_jval *arg MSGL_UNUSED, const msgl_jcall *call MSGL_UNUSED,         \
                     msgl_jval *out MSGL_UNUSED)

typedef struct msgl_jbuiltin {
    const char *name;
    // Parameter names with a blank between, "?" before the optional ones (UNSET when not given).
    // "*": no placing; the function reads `call` itself.
    const char *params;
    msgl_jbuiltin_fn fn;
} msgl_jbuiltin;

// NULL when there is none of that name.
const msgl_jbuiltin *msgl__jfilter_find(const char *name, size_t len);
const msgl_jbuiltin *msgl__jtest_find(const char *name, size_t len);
const msgl_jbuiltin *msgl__jglobal_find(const char *name, size_t len);
const msgl_jbuiltin *msgl__jstr_method_find(const char *name, size_t len);
// Methods of every type; NULL when the type has none of that name.
const msgl_jbuiltin *msgl__jmethod_find(const msgl_jval *self, const char *name, size_t len);
// Python attribute that the sandbox hides (mutating methods, dunder names).
bool msgl__junsafe_attribute(const msgl_jval *self, const char *name, size_t len);

// One table of the above, by name.
const msgl_jbuiltin *msgl__jbuiltin_in(const msgl_jbuiltin *table, size_t n, const char *name,
                                       size_t len);
extern const msgl_jbuiltin msgl__jfilters_text[], msgl__jfilters_seq[];
extern const size_t msgl__jfilters_text_len, msgl__jfilters_seq_len;

// Places the arguments of `call` and runs `fn`.
int msgl__jbuiltin_call(msgl_jctx *c, const msgl_jbuiltin *fn, const msgl_jval *self,
                        const msgl_jcall *call, msgl_jval *out);

// Arguments: typed access with Python's kind of message. UNSET gives the default.
int msgl__jarg_int(msgl_jctx *c, const msgl_jval *arg, int64_t dflt, int64_t *out);
int msgl__jarg_str(msgl_jctx *c, const msgl_jval *arg, const char *what, msgl_jstr **out);
bool msgl__jarg_true(const msgl_jval *arg); // UNSET: false

// `text % values` and text.format(...) (jinja_format.c)
int msgl__jformat_percent(msgl_jctx *c, msgl_jstr *fmt, const msgl_jval *args, msgl_jval *out);
int msgl__jformat_braces(msgl_jctx *c, msgl_jstr *fmt, const msgl_jcall *call, msgl_jval *out);
// Python's int(text, base) and float(text); *ok false when the text is no number.
// A JSON integer's value; false: it is beyond 64 bits.
bool msgl__jfits_int(const msgl_jstr *s, int64_t *out);
int msgl__jparse_int(msgl_jctx *c, const msgl_jstr *s, int base, bool *ok, int64_t *out);
bool msgl__jparse_float(const msgl_jstr *s, double *out);
// Shared by methods and filters (jinja_methods.c).
int msgl__jstr_replace(msgl_jctx *c, const msgl_jstr *s, const msgl_jstr *old,
                       const msgl_jstr *with, int64_t count, msgl_jval *out);
int msgl__jstr_splitlines(msgl_jctx *c, const msgl_jstr *s, bool keep, msgl_jval *out);
// Pads to `width` code points; align '<', '>' or '^'.
int msgl__jstr_pad(msgl_jctx *c, msgl_jstr *s, int64_t width, const msgl_jstr *fill, char align,
                   msgl_jval *out);
// Half to even at `digits` decimals, as Python's round().
double msgl__jround_half_even(double x, int digits);

#endif
