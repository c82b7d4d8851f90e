// SPDX-License-Identifier: Apache-2.0
//
// Constrained decoding: which tokens may come next so that an answer stays inside a grammar.
// A grammar is compiled once and immutable (its cache of masks locks itself), a vocabulary is built
// once per model, a matcher belongs to one answer and one thread at a time. Everything works on
// bytes: a token is allowed if the grammar has a text that begins with what came before and the
// token's bytes. docs/internals/grammar.md has the structures and their bounds.
#ifndef MSGL_GRAMMAR_GRAMMAR_H
#define MSGL_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

typedef struct msgl_tokenizer msgl_tokenizer; // tokenizer/tokenizer.h
typedef struct msgl_grammar msgl_grammar;
typedef struct msgl_grammar_vocab msgl_grammar_vocab;
typedef struct msgl_matcher msgl_matcher;

// What a grammar may take. A bound that is passed is MSGL_ELIMIT, whose text names it.
typedef struct msgl_grammar_limits {
    size_t input_bytes;     // of a schema, regex or grammar text
    size_t compile_bytes;   // memory while compiling, all of it
    uint64_t compile_steps; // work of compiling: the same for the same text on every machine
    int32_t expr_depth;     // nesting of the input
    int32_t nodes;          // of the automaton
    int32_t stack_depth;  // rules inside rules while matching: the mask leaves out what goes deeper
    int32_t state_width;  // alternatives that are open at a time while matching; what has more at
                          // one place is refused, those that come together later are left out
    size_t matcher_bytes; // of one matcher's tables, which are then rebuilt from its present state
    size_t cache_bytes;   // of the masks that a grammar keeps for its matchers
    bool lenient;         // what of a JSON schema is not supported is left out, and *err says what
} msgl_grammar_limits;
// 1 MiB, 64 MiB, 2 M, 256, 500,000, 1,000, 16,384, 8 MiB, 32 MiB.
void msgl__grammar_limits_init(msgl_grammar_limits *l);

// Each makes a grammar with the count 1 from text[0, n); limits NULL: those of _limits_init.
// MSGL_EFORMAT (says where the text is wrong), MSGL_EUNSUPPORTED (names what is not supported and
// where), MSGL_EINVAL (no text satisfies it), MSGL_ELIMIT, MSGL_ENOMEM. On success err->text is
// empty or names what was left out: where limits are not lenient, uniqueItems alone.
// Of a JSON schema: objects that name properties and say nothing of others have no others.
int msgl__grammar_json_schema(const char *text, size_t n, const msgl_grammar_limits *limits,
                              msgl_grammar **out, msgl_err *err);
// The same, and such objects may have others, as the standard has it.
int msgl__grammar_json_schema_open(const char *text, size_t n, const msgl_grammar_limits *limits,
                                   msgl_grammar **out, msgl_err *err);
int msgl__grammar_json_object(const msgl_grammar_limits *limits, msgl_grammar **out, msgl_err *err);
// The whole answer matches the pattern, as if ^( )$ stood around it.
int msgl__grammar_regex(const char *text, size_t n, const msgl_grammar_limits *limits,
                        msgl_grammar **out, msgl_err *err);
// The answer is one of strings[0, num), NUL-terminated UTF-8.
int msgl__grammar_choice(const char *const *strings, size_t num, const msgl_grammar_limits *limits,
                         msgl_grammar **out, msgl_err *err);
int msgl__grammar_gbnf(const char *text, size_t n, const msgl_grammar_limits *limits,
                       msgl_grammar **out, msgl_err *err);
int msgl__grammar_lark(const char *text, size_t n, const msgl_grammar_limits *limits,
                       msgl_grammar **out, msgl_err *err);
msgl_grammar *msgl__grammar_ref(msgl_grammar *g);
void msgl__grammar_unref(msgl_grammar *g);         // NULL allowed
size_t msgl__grammar_bytes(const msgl_grammar *g); // without its cache of masks
int32_t msgl__grammar_num_nodes(const msgl_grammar *g);

// The bytes of a token; len 0: it is never allowed (special tokens, holes in the ids).
typedef struct msgl_grammar_token {
    const char *data;
    size_t len;
} msgl_grammar_token;

// A vocabulary with the count 1. tokens are copied. eos: ids that end an answer, allowed where the
// grammar may end, whatever their bytes. Tokens of more than MSGL_GRAMMAR_MAX_TOKEN bytes are never
// allowed. MSGL_EINVAL, MSGL_ENOMEM.
#define MSGL_GRAMMAR_MAX_TOKEN 1024
int msgl__grammar_vocab_create(const msgl_grammar_token *tokens, int32_t vocab_size,
                               const int32_t *eos, int32_t num_eos, msgl_grammar_vocab **out,
                               msgl_err *err);
// The same from a tokenizer, whose special tokens are left out. vocab_size may be larger than the
// tokenizer's (padded logits); 0: as the tokenizer's.
int msgl__grammar_vocab_from_tokenizer(const msgl_tokenizer *t, int32_t vocab_size,
                                       const int32_t *eos, int32_t num_eos,
                                       msgl_grammar_vocab **out, msgl_err *err);
// Gives tokens that have no bytes here texts that they are shown as, such as special tokens' names.
// ids ascend; before the vocabulary is shared. MSGL_EINVAL, MSGL_ENOMEM.
int msgl__grammar_vocab_show(msgl_grammar_vocab *v, const int32_t *ids,
                             const msgl_grammar_token *texts, int32_t n);
// The bytes of a token, or what it is shown as; *len 0: neither.
const char *msgl__grammar_vocab_shown(const msgl_grammar_vocab *v, int32_t token, size_t *len);
msgl_grammar_vocab *msgl__grammar_vocab_ref(msgl_grammar_vocab *v);
void msgl__grammar_vocab_unref(msgl_grammar_vocab *v); // NULL allowed
int32_t msgl__grammar_vocab_size(const msgl_grammar_vocab *v);
size_t msgl__grammar_vocab_bytes(const msgl_grammar_vocab *v);

// A matcher at the beginning of its answer; refers to both until it is destroyed. NULL on
// MSGL_ENOMEM.
msgl_matcher *msgl__matcher_create(msgl_grammar *g, msgl_grammar_vocab *v);
void msgl__matcher_destroy(msgl_matcher *m); // NULL allowed
// Sets bit t of bits[ceil(vocab_size / 32)] for each token t that may come next and clears all
// others; after the end, of none but the ids that end an answer. There is one for every grammar
// whose stack stays below its limit, if the vocabulary has all bytes; else a mask may be empty, and
// the answer has to end. MSGL_ELIMIT: more alternatives are open than the grammar's limit,
// MSGL_ENOMEM; the mask is then undefined and the answer has to end.
int msgl__matcher_fill_mask(msgl_matcher *m, uint32_t *bits);
// Goes on by a token. MSGL_EINVAL: it is not allowed here, and nothing changed; MSGL_ELIMIT,
// MSGL_ENOMEM as above.
int msgl__matcher_accept(msgl_matcher *m, int32_t token);
// The same by bytes, which need not be a token's.
int msgl__matcher_accept_bytes(msgl_matcher *m, const char *bytes, size_t n);
// Back by `tokens` calls of accept (those that failed do not count), at most
// MSGL_MATCHER_HISTORY. MSGL_EINVAL: there are not so many.
#define MSGL_MATCHER_HISTORY 64
int msgl__matcher_rollback(msgl_matcher *m, int32_t tokens);
bool msgl__matcher_may_end(const msgl_matcher *m);     // the text so far is a whole one
bool msgl__matcher_is_finished(const msgl_matcher *m); // it is, and nothing can follow but an end
// The bytes that must come next, whatever is chosen: up to cap of them to buf; returns how many.
size_t msgl__matcher_forced(msgl_matcher *m, char *buf, size_t cap);
size_t msgl__matcher_bytes(const msgl_matcher *m);

#endif
