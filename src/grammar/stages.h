// SPDX-License-Identifier: Apache-2.0
//
// An answer in stages, one behind the other: thoughts, in which any token may come; then a text of
// a grammar, or calls of tools in its place. Thoughts may be ended after a number of tokens. A
// staged answer belongs to one request, and to one thread at a time, as its matchers do.
#ifndef MSGL_GRAMMAR_STAGES_H
#define MSGL_GRAMMAR_STAGES_H

#include "grammar/grammar.h"

// The stages of an answer, which a request has as the text of a JSON object. Every member may be
// missing. Texts are what tokens show, those of special tokens among them; ids are of tokens.
//   thinking   true: the prompt has opened the thoughts
//   open       [text]: any of them opens thoughts at the answer's beginning
//   close      [text]: any of them ends the thoughts
//   away       [text]: behind any of them in the thoughts (a call), any token may come up to the
//   end budget     how many tokens thoughts may have; then `end` comes end        [id]: the tokens
//   that end thoughts which have used up the budget opening    [id]: the tokens that come first,
//   or, with `behind`, first where there were no thoughts behind     [id]: the tokens that come
//   first behind thoughts calls      [text]: any of them begins a call, which may come in place of
//   the grammar's text grammar    text: the grammar of a call behind that, in Lark's form; without
//   it any token may come
// The empty text stands for an answer that is a text of the grammar and no more.
typedef struct msgl_stages msgl_stages;

// MSGL_EFORMAT, MSGL_ENOMEM.
int msgl__stages_parse(const char *text, msgl_stages **out, msgl_err *err);
void msgl__stages_free(msgl_stages *s);               // NULL allowed
const char *msgl__stages_calls(const msgl_stages *s); // the grammar of calls; NULL: none

typedef struct msgl_staged msgl_staged;

// A new answer, which owns s (which is freed also where this fails) and references to the others.
// answer: the grammar of its text; NULL: any token may come. calls: the compiled grammar of
// msgl__stages_calls(), or NULL. Returns NULL for want of memory.
msgl_staged *msgl__staged_create(msgl_stages *s, msgl_grammar *answer, msgl_grammar *calls,
                                 msgl_grammar_vocab *v);
void msgl__staged_destroy(msgl_staged *x); // NULL allowed
// As msgl__matcher_fill_mask and msgl__matcher_accept.
int msgl__staged_fill_mask(msgl_staged *x, uint32_t *bits);
int msgl__staged_accept(msgl_staged *x, int32_t token);
// Masks behind drafts: bits + i * ceil(vocab_size / 32) is set as msgl__staged_fill_mask would
// behind drafts[0, i], for as many drafts as may come one behind the other, up to `num` <=
// MSGL_MATCHER_HISTORY, and do not end the answer; how many these are. The answer stays where it
// is. None but within the text of a grammar.
int32_t msgl__staged_look(msgl_staged *x, const int32_t *drafts, int32_t num, uint32_t *bits);
// Whether only the end of the answer can follow.
bool msgl__staged_is_finished(const msgl_staged *x);
// Whether any token may come from here on.
bool msgl__staged_is_free(const msgl_staged *x);

#endif
