// SPDX-License-Identifier: Apache-2.0
#include "grammar/grammar.h"

#include <string.h>

#include "core/mem.h"
#include "grammar/compiled.h"
#include "grammar/json_text.h"
#include "utils/utf8.h"

void msgl__grammar_limits_init(msgl_grammar_limits *l)
{
    *l = (msgl_grammar_limits){
        .input_bytes = (size_t)1 << 20,
        .compile_bytes = (size_t)64 << 20,
        .compile_steps = UINT64_C(2000000),
        .expr_depth = 256,
        .nodes = 500000,
        .stack_depth = 1000,
        .state_width = 16384,
        .matcher_bytes = (size_t)8 << 20,
        .cache_bytes = (size_t)32 << 20,
    };
}

int msgl__grammar_begin(msgl_gx_builder *b, size_t n, const msgl_grammar_limits *limits,
                        msgl_err *err)
{
    msgl_grammar_limits usual;
    msgl__grammar_limits_init(&usual);
    if (limits == NULL) limits = &usual;
    msgl__gx_init(b, limits, err);
    if (n > limits->input_bytes) {
        msgl__gx_fail(b, MSGL_ELIMIT, "grammar: %zu bytes; allowed: at most %zu (limit: input)", n,
                      limits->input_bytes);
    }
    return b->rc;
}

int msgl__grammar_finish(msgl_gx_builder *b, int32_t root, msgl_grammar **out)
{
    *out = NULL;
    msgl_grammar *g = msgl__calloc(1, sizeof *g);
    if (g == NULL) msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
    if (b->rc == 0) {
        atomic_init(&g->refs, 1);
        g->limits = b->limits;
        if (msgl__local_cache_init(&g->cache, b->limits.cache_bytes) != 0) {
            msgl__gx_fail(b, MSGL_ENOMEM, "out of memory for a grammar");
        }
    }
    if (b->rc == 0) msgl__nfa_build(b, root, &g->nfa);
    const int rc = b->rc;
    if (rc == 0) (void)msgl__err_set(b->err, 0, "%s", b->notes);
    msgl__gx_free(b);
    if (rc == 0) {
        *out = g;
    } else if (g != NULL) {
        msgl__nfa_free(&g->nfa);
        msgl__local_cache_free(&g->cache);
        msgl__free(g);
    }
    return rc;
}

int msgl__grammar_choice(const char *const *strings, size_t num, const msgl_grammar_limits *limits,
                         msgl_grammar **out, msgl_err *err)
{
    msgl_gx_builder b;
    size_t total = 0;
    *out = NULL;
    for (size_t i = 0; i < num; i++) total += strlen(strings[i]);
    msgl__grammar_begin(&b, total, limits, err);
    msgl_gx_list l = {0};
    for (size_t i = 0; i < num && b.rc == 0; i++) {
        const size_t n = strlen(strings[i]);
        if (msgl__utf8_valid(strings[i], n) != n) {
            msgl__gx_fail(&b, MSGL_EFORMAT, "choice: string %zu is not UTF-8", i);
        }
        msgl__gx_list_add(&b, &l, msgl__gx_lit(&b, strings[i], n));
    }
    const int32_t root = msgl__gx_rule_new(&b, "choice", 6);
    msgl__gx_rule_set(&b, root, msgl__gx_alt(&b, l.at, l.n));
    msgl__gx_list_free(&l);
    return msgl__grammar_finish(&b, root, out);
}

int msgl__grammar_json_object(const msgl_grammar_limits *limits, msgl_grammar **out, msgl_err *err)
{
    msgl_gx_builder b;
    msgl__grammar_begin(&b, 0, limits, err);
    msgl_json_rules rules;
    msgl__json_rules_init(&rules);
    const int32_t root = msgl__gx_rule_new(&b, "json", 4);
    msgl__gx_rule_set(&b, root, msgl__json_rule(&b, &rules, MSGL_JSON_OBJECT));
    return msgl__grammar_finish(&b, root, out);
}

msgl_grammar *msgl__grammar_ref(msgl_grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    return g;
}

void msgl__grammar_unref(msgl_grammar *g)
{
    if (g == NULL || atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
    msgl__nfa_free(&g->nfa);
    msgl__local_cache_free(&g->cache);
    msgl__free(g);
}

size_t msgl__grammar_bytes(const msgl_grammar *g)
{
    return sizeof *g + g->nfa.bytes;
}

int32_t msgl__grammar_num_nodes(const msgl_grammar *g)
{
    return g->nfa.num_nodes;
}
