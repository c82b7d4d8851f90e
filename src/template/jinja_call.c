// SPDX-License-Identifier: Apache-2.0
//
// Calls: placing arguments into a built-in's parameters, and dispatch on what is called.
#include <string.h>

#include "template/jinja_eval.h"

const msgl_jbuiltin *msgl__jbuiltin_in(const msgl_jbuiltin *table, size_t n, const char *name,
                                       size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

const msgl_jbuiltin *msgl__jfilter_find(const char *name, size_t len)
{
    const msgl_jbuiltin *f =
        msgl__jbuiltin_in(msgl__jfilters_text, msgl__jfilters_text_len, name, len);
    if (f != NULL) return f;
    return msgl__jbuiltin_in(msgl__jfilters_seq, msgl__jfilters_seq_len, name, len);
}

typedef struct param {
    const char *name;
    size_t len;
    bool optional;
} param;

static size_t split_params(const char *spec, param out[MSGL_JPARAMS_MAX])
{
    size_t n = 0;
    while (*spec != '\0' && n < MSGL_JPARAMS_MAX) {
        out[n].optional = *spec == '?';
        spec += out[n].optional;
        out[n].name = spec;
        out[n].len = strcspn(spec, " ");
        spec += out[n].len;
        spec += *spec == ' ';
        n++;
    }
    return n;
}

static int place_and_run(msgl_jctx *c, const msgl_jbuiltin *fn, const msgl_jval *self,
                         const msgl_jcall *call, msgl_jval *out)
{
    msgl_jval arg[MSGL_JPARAMS_MAX] = {{0}};
    if (fn->params[0] == '*') return fn->fn(c, self, arg, call, out);
    param params[MSGL_JPARAMS_MAX];
    const size_t n = split_params(fn->params, params);
    if (call->npos > n) {
        return msgl__jctx_fail(c, "%s takes at most %zu argument(s), got %zu", fn->name, n,
                               call->npos);
    }
    for (size_t i = 0; i < call->npos; i++) arg[i] = call->pos[i];
    for (size_t k = 0; k < call->nkw; k++) {
        const msgl_jstr *name = call->kw_names[k];
        size_t i = 0;
        while (i < n && !(params[i].len == name->len &&
                          memcmp(params[i].name, name->data, name->len) == 0)) {
            i++;
        }
        if (i == n || arg[i].type != MSGL_J_UNSET) {
            return msgl__jctx_fail(c, "%s: %s argument '%.*s'", fn->name,
                                   i == n ? "unexpected keyword" : "multiple values for",
                                   (int)(name->len < 60 ? name->len : 60), name->data);
        }
        arg[i] = call->kw[k];
    }
    for (size_t i = 0; i < n; i++) {
        if (arg[i].type == MSGL_J_UNSET && !params[i].optional) {
            return msgl__jctx_fail(c, "%s: missing argument '%.*s'", fn->name, (int)params[i].len,
                                   params[i].name);
        }
    }
    return fn->fn(c, self, arg, call, out);
}

int msgl__jbuiltin_call(msgl_jctx *c, const msgl_jbuiltin *fn, const msgl_jval *self,
                        const msgl_jcall *call, msgl_jval *out)
{
    MSGL_JTRY(msgl__jctx_steps(c, 1));
    MSGL_JTRY(msgl__jctx_enter(c)); // map('map', 'map' ...) nests without any source nesting
    const int rc = place_and_run(c, fn, self, call, out);
    c->depth--;
    return rc;
}

int msgl__jcall_value(msgl_jctx *c, const msgl_jval *callee, const msgl_jcall *call, msgl_jval *out)
{
    const msgl_jval nothing = {0};
    switch (callee->type) {
    case MSGL_J_FUNC: return msgl__jbuiltin_call(c, callee->as.fn, &nothing, call, out);
    case MSGL_J_METHOD:
        return msgl__jbuiltin_call(c, callee->as.method->fn, &callee->as.method->self, call, out);
    case MSGL_J_MACRO: return msgl__jcall_macro(c, callee->as.m, call, out);
    case MSGL_J_LOOP:
        if (call->npos != 1) return msgl__jctx_fail(c, "loop() takes one argument");
        return msgl__jloop_recurse(c, callee->as.loop, &call->pos[0], out);
    case MSGL_J_JOINER:
        *out = callee->as.joiner->sep;
        if (!callee->as.joiner->used) {
            msgl_jstr *empty;
            MSGL_JTRY(msgl__jstr_ref(c, "", 0, false, &empty));
            *out = msgl__jstrval(empty);
            callee->as.joiner->used = true;
        }
        return 0;
    case MSGL_J_UNDEF: return msgl__jundef_fail(c, callee->as.u);
    default: return msgl__jctx_fail(c, "'%s' object is not callable", msgl__jtype_name(callee));
    }
}

int msgl__jarg_int(msgl_jctx *c, const msgl_jval *arg, int64_t dflt, int64_t *out)
{
    *out = dflt;
    if (arg->type == MSGL_J_UNSET || msgl__jas_int(arg, out)) return 0;
    if (arg->type == MSGL_J_UNDEF) return msgl__jundef_fail(c, arg->as.u);
    return msgl__jctx_fail(c, "'%s' object cannot be interpreted as an integer",
                           msgl__jtype_name(arg));
}

int msgl__jarg_str(msgl_jctx *c, const msgl_jval *arg, const char *what, msgl_jstr **out)
{
    if (arg->type == MSGL_J_STR) {
        *out = arg->as.s;
        return 0;
    }
    return msgl__jctx_fail(c, "%s: expected a string, got '%s'", what, msgl__jtype_name(arg));
}

bool msgl__jarg_true(const msgl_jval *arg)
{
    return msgl__jtruth(arg);
}
