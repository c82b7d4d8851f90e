// SPDX-License-Identifier: Apache-2.0
//
// Masks for the answers of an engine, made on threads of their own: the scheduler's thread never
// compiles a grammar, runs an automaton or waits for one. A constraint belongs to one answer and
// one thread, which gives it a token and asks later whether the mask for the next one is there.
// Grammars are kept by their text, the least recently used ones go first; tokenizer and vocabulary
// are read when the first constraint is opened.
#ifndef MSGL_GRAMMAR_CONSTRAIN_H
#define MSGL_GRAMMAR_CONSTRAIN_H

#include "core/batch.h"
#include "core/err.h"
#include "core/req_extra.h"
#include "grammar/grammar.h"

typedef struct msgl_constrainer msgl_constrainer;
typedef struct msgl_constraint msgl_constraint;

typedef struct msgl_constrain_config {
    const char *model_dir; // where the tokenizer is read; borrowed
    // Or, for tests, the vocabulary itself, borrowed until the constrainer is destroyed.
    msgl_grammar_vocab *vocab;
    int32_t vocab_size; // of the logits
    int32_t num_eos;
    const int32_t *eos_ids; // [num_eos], copied
} msgl_constrain_config;

enum { MSGL_CONSTRAIN_MAX_EOS = 8 };

// Starts the threads. MSGL_EINVAL (more EOS ids), MSGL_ENOMEM, MSGL_EINTERNAL.
int msgl__constrainer_create(const msgl_constrain_config *cfg, msgl_constrainer **out,
                             msgl_err *err);
void msgl__constrainer_destroy(msgl_constrainer *c); // NULL allowed; all constraints are closed
// Blocks until some constraint is not PENDING any more that was when this was last called, or `ms`
// milliseconds have passed.
void msgl__constrainer_wait(msgl_constrainer *c, int ms);

typedef enum msgl_constraint_state {
    MSGL_CONSTRAINT_PENDING,
    MSGL_CONSTRAINT_READY,  // there is a mask for the next token
    MSGL_CONSTRAINT_ENDED,  // the answer is whole, and nothing can follow
    MSGL_CONSTRAINT_FREE,   // whatever follows is allowed: it may be closed
    MSGL_CONSTRAINT_FAILED, // msgl__constraint_error says why
} msgl_constraint_state;

// The constraint of x's grammar and stages, at the beginning of an answer, PENDING. NULL:
// MSGL_ENOMEM. Takes a reference to x.
msgl_constraint *msgl__constraint_open(msgl_constrainer *c, msgl_req_extra *x);
void msgl__constraint_close(msgl_constraint *x); // in any state; NULL allowed
msgl_constraint_state msgl__constraint_state(const msgl_constraint *x);
// READY: [1 + ahead, ceil(vocab_size / 32)], until the next accept: for the next token, and behind
// each of the first `ahead` drafts that the last accept named, which may come one behind the other.
const uint32_t *msgl__constraint_mask(const msgl_constraint *x);
int32_t msgl__constraint_ahead(const msgl_constraint *x);
// READY: goes on by `num` tokens, 1 to MSGL_MAX_TREE, which the masks allow one behind the other;
// PENDING then. drafts[0, num_drafts), up to MSGL_MAX_DRAFTS: guesses at what follows.
void msgl__constraint_accept(msgl_constraint *x, const int32_t *tokens, int32_t num,
                             const int32_t *drafts, int32_t num_drafts);
const msgl_err *msgl__constraint_error(const msgl_constraint *x);

// A grammar from its kind and text, as msgl__grammar_* make it; of MSGL_GRAMMAR_CHOICE the text is
// a JSON array of strings.
int msgl__grammar_compile(msgl_grammar_kind kind, const char *text,
                          const msgl_grammar_limits *limits, msgl_grammar **out, msgl_err *err);

#endif
