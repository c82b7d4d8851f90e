// SPDX-License-Identifier: Apache-2.0
//
// Answers of models as tests feed them: whole and in pieces.
#ifndef MSGL_TESTS_PARSERS_ANSWERS_H
#define MSGL_TESTS_PARSERS_ANSWERS_H

#include "parsers/parser.h"

// A text, and what it is as one line: content as it stands, <think: ...>, <call NAME ARGUMENTS>.
// Lists of them have a text that is NULL at their end.
typedef struct answer_sample {
    const char *text, *want;
} answer_sample;

// Tools f, o, get.w-2 and odd, whose parameters are of all types. Freed by the caller.
msgl_tool_set *make_test_tools(void);

// Fails unless the text is `want`, whole, cut at each place, and byte by byte. And each beginning
// of it, whatever that is, has to be the same however it comes.
void check_answer(const msgl_parser_config *cfg, const char *text, const char *want);
// The same of all samples, with the forms of these names and the test's tools.
void check_answers(const char *tools, const char *reasoning, const answer_sample *samples);

#endif
