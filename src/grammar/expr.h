// SPDX-License-Identifier: Apache-2.0
//
// What every front end (JSON schema, regex, choice, GBNF, Lark) makes of its input: rules whose
// bodies are expressions over bytes and characters. The builder's first failure sticks: later calls
// return -1 and change nothing, so that front ends need not look after every call. All memory is
// the builder's and counts against its limit.
#ifndef MSGL_GRAMMAR_EXPR_H
#define MSGL_GRAMMAR_EXPR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "grammar/grammar.h"

#define MSGL_GX_INF (-1) // of a repetition: no upper bound

typedef enum msgl_gx_kind {
    MSGL_GX_NEVER, // no text at all
    MSGL_GX_LIT,   // bytes; of length 0: the empty text
    MSGL_GX_CLASS, // one character (a scalar value, as UTF-8) of a set
    MSGL_GX_SEQ,
    MSGL_GX_ALT,
    MSGL_GX_REP, // min to max times
    MSGL_GX_REF, // a rule
    MSGL_GX_LEN, // the child's text if it has min to max characters; no references below
    MSGL_GX_ONE, // the child, which counts as one character (an escape)
    // The characters of a JSON string and its closing quote, if they are none of some names.
    MSGL_GX_EXCEPT,
} msgl_gx_kind;

typedef struct msgl_gx {
    uint8_t kind;
    bool simple;    // no reference below
    int32_t height; // of the tree, 1: a leaf
    int32_t at, n;  // LIT: text; CLASS: pairs of ranges; SEQ, ALT, EXCEPT: kids; REP, LEN: at is it
    int32_t min, max;
} msgl_gx;

typedef struct msgl_gx_rule {
    int32_t expr; // -1: not defined (yet)
    int32_t name; // in text, NUL-terminated; -1: none
} msgl_gx_rule;

typedef struct msgl_gx_builder {
    msgl_gx *ex;
    int32_t num_ex, cap_ex;
    int32_t *kids;
    int32_t num_kids, cap_kids;
    char *text;
    int32_t len_text, cap_text;
    uint32_t *ranges; // pairs [first, last]
    int32_t num_ranges, cap_ranges;
    msgl_gx_rule *rules;
    int32_t num_rules, cap_rules;
    msgl_grammar_limits limits;
    size_t bytes;  // taken so far
    uint64_t work; // steps made so far
    int rc;
    msgl_err *err;
    // What was left out so far, "" for nothing; why the last failure was one.
    char notes[MSGL_ERR_TEXT_SIZE], why[MSGL_ERR_TEXT_SIZE];
} msgl_gx_builder;

void msgl__gx_init(msgl_gx_builder *b, const msgl_grammar_limits *limits, msgl_err *err);
void msgl__gx_free(msgl_gx_builder *b);
// Sets the first failure; returns -1, which is no expression.
int32_t msgl__gx_fail(msgl_gx_builder *b, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// Room for `need` elements of *p: 0 or -1 (out of memory, or over the limit of bytes).
int msgl__gx_room(msgl_gx_builder *b, void **p, int32_t *cap, int64_t need, size_t size);
// Counts steps of work, of some 50 ns each, and bytes of memory that the builder does not own
// itself; 0, or the failure: too many of them.
int msgl__gx_spend(msgl_gx_builder *b, size_t steps, size_t bytes);
// Bytes that were spent are free again.
void msgl__gx_give_back(msgl_gx_builder *b, size_t bytes);
// After a failure of MSGL_EUNSUPPORTED with limits.lenient: it is none, and the notes say what it
// was. False: any other failure, which stays.
bool msgl__gx_forgive(msgl_gx_builder *b);
// The same, lenient or not.
bool msgl__gx_forgive_strict(msgl_gx_builder *b);

int32_t msgl__gx_never(msgl_gx_builder *b);
int32_t msgl__gx_lit(msgl_gx_builder *b, const char *bytes, size_t n);
int32_t msgl__gx_str(msgl_gx_builder *b, const char *s);
// A set of code points in any order, overlaps allowed; surrogates never match. negate: all others.
int32_t msgl__gx_class(msgl_gx_builder *b, const uint32_t *pairs, int32_t n, bool negate);
int32_t msgl__gx_seq(msgl_gx_builder *b, const int32_t *kids, int32_t n);
int32_t msgl__gx_alt(msgl_gx_builder *b, const int32_t *kids, int32_t n);
int32_t msgl__gx_rep(msgl_gx_builder *b, int32_t kid, int32_t min, int32_t max);
int32_t msgl__gx_ref(msgl_gx_builder *b, int32_t rule);
int32_t msgl__gx_len(msgl_gx_builder *b, int32_t kid, int32_t min, int32_t max);
int32_t msgl__gx_one(msgl_gx_builder *b, int32_t kid);
// names: literals whose bytes are names as UTF-8, not escaped.
int32_t msgl__gx_except(msgl_gx_builder *b, const int32_t *names, int32_t n);
// A new rule without a body; name (copied) is for messages and may be NULL.
int32_t msgl__gx_rule_new(msgl_gx_builder *b, const char *name, size_t n);
void msgl__gx_rule_set(msgl_gx_builder *b, int32_t rule, int32_t expr);
const char *msgl__gx_rule_name(const msgl_gx_builder *b, int32_t rule);

// A short list of expressions that is being put together.
typedef struct msgl_gx_list {
    int32_t *at;
    int32_t n, cap;
    msgl_gx_builder *b; // whose memory it is
} msgl_gx_list;
void msgl__gx_list_add(msgl_gx_builder *b, msgl_gx_list *l, int32_t expr);
void msgl__gx_list_free(msgl_gx_list *l);

#endif
