// SPDX-License-Identifier: Apache-2.0
//
// What an answer has to be, in the forms that clients send: OpenAI's response_format, vLLM's
// structured_outputs and guided_*, SGLang's json_schema, regex and ebnf, llama-server's grammar.
#ifndef MSGL_API_CONSTRAINT_H
#define MSGL_API_CONSTRAINT_H

#include "api/api.h"

typedef struct msgl_constraint_text {
    msgl_grammar_kind kind; // MSGL_GRAMMAR_NONE: anything
    char *text;             // owned; NULL where the kind needs none
} msgl_constraint_text;

// Reads o's fields and compiles what they say, so that what the engine would refuse is refused
// here; *left_out names what of a schema that is not `strict` is not kept to. 0 with *out to be
// freed, or MSGL_EINVAL with *e (400: of a wrong type, two at once, not
// supported, or not valid; 500: out of memory) and *out empty.
int msgl__constraint_parse(const json_t *o, const msgl_api_config *cfg, msgl_strbuf *left_out,
                           msgl_constraint_text *out, msgl_api_error *e);
// Compiles a form. What a schema has that is not supported is refused if it is strict; else it is
// added to *left_out, with a NUL behind it. The status of msgl__grammar_compile.
int msgl__constraint_compile(const msgl_constraint_text *c, bool strict, msgl_strbuf *left_out,
                             msgl_err *err);
void msgl__constraint_text_free(msgl_constraint_text *c);

#endif
