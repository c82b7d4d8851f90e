// SPDX-License-Identifier: Apache-2.0
//
// Vocabularies for tests, and the mask by brute force: each token fed to the matcher and taken
// back.
#ifndef MSGL_TESTS_GRAMMAR_FIXTURE_H
#define MSGL_TESTS_GRAMMAR_FIXTURE_H

#include "grammar/grammar.h"

#define FIXTURE_EOS 0 // of fixture_vocab

// All single bytes, and `more` random tokens of pieces that grammars are made of; ids from 1.
msgl_grammar_vocab *fixture_vocab(int32_t more, uint64_t seed);
// Fails the test unless the mask is that of brute force. Returns the number of tokens in it.
int32_t fixture_check_mask(msgl_matcher *m, const msgl_grammar_vocab *v);
// Takes up to `tokens` random allowed tokens, checking every mask; returns how many.
int fixture_random_way(msgl_matcher *m, const msgl_grammar_vocab *v, int tokens, uint64_t *rng);
// Whether a text is a whole one of the grammar, byte by byte.
bool fixture_accepts(msgl_grammar *g, msgl_grammar_vocab *v, const char *text, size_t n);

#endif
