// SPDX-License-Identifier: Apache-2.0
//
// What an answer is made of, one stage behind the other: thoughts, in which all is free; then a
// text of a grammar, or calls of tools in its place. Thoughts may be ended after a number of
// tokens. A staged answer belongs to one request and one thread at a time, as its matchers do.
#ifndef MSGL_GRAMMAR_STAGES_H
#define MSGL_GRAMMAR_STAGES_H

#include "grammar/grammar.h"

// How it is told: a JSON object, every member of which may be missing. Texts are those that tokens
// show, special ones, too.
//   thinking   true: the prompt has opened the thoughts
//   open       [text]: what opens them where the answer begins
//   close      [text]: what ends them
//   away       [text]: in thoughts, what leads to where all is free up to the end (calls)
//   budget     so many tokens of thoughts; then `end` comes
//   end        [id]: what ends them then
//   opening    [id]: what comes first, or, with `behind`, where there were no thoughts
//   behind     [id]: what comes first behind thoughts
//   calls      [text]: what calls begin with, which may come in place of the grammar's text
//   grammar    of calls behind that, in Lark's form; else they are free
// "" : all that there is, is a grammar.
typedef struct msgl_stages msgl_stages;

// MSGL_EFORMAT, MSGL_ENOMEM.
int msgl__stages_parse(const char *text, msgl_stages **out, msgl_err *err);
void msgl__stages_free(msgl_stages *s);               // NULL allowed
const char *msgl__stages_calls(const msgl_stages *s); // the grammar of calls; NULL: none

typedef struct msgl_staged msgl_staged;

// Takes over s (also where it fails), refers to the others until it is destroyed. answer NULL: it
// is free, too; calls: of msgl__stages_calls. NULL: MSGL_ENOMEM.
msgl_staged *msgl__staged_create(msgl_stages *s, msgl_grammar *answer, msgl_grammar *calls,
                                 msgl_grammar_vocab *v);
void msgl__staged_destroy(msgl_staged *x); // NULL allowed
// As msgl__matcher_fill_mask and _accept.
int msgl__staged_fill_mask(msgl_staged *x, uint32_t *bits);
int msgl__staged_accept(msgl_staged *x, int32_t token);
bool msgl__staged_is_finished(const msgl_staged *x); // nothing can follow but an end
bool msgl__staged_is_free(const msgl_staged *x);     // from here on, whatever follows is allowed

#endif
