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
// here. 0 with *out to be freed, or with *out empty MSGL_API_FORM (cfg->defer_forms), or
// MSGL_EINVAL with *e (400: of a wrong type, two at once, not supported, or not valid; 413, 429:
// too much memory; 500: out of memory). claim (NULL allowed): what compiling may take is part of it
// meanwhile. *left_out names what of a schema that is not `strict` is not kept to.
int msgl__constraint_parse(const json_t *o, const msgl_api_config *cfg, msgl_claim *claim,
                           msgl_strbuf *left_out, msgl_constraint_text *out, msgl_api_error *e);

// What compiling a form needs beside it; members as msgl__constraint_parse has them.
typedef struct msgl_constraint_use {
    const msgl_api_config *cfg;
    msgl_claim *claim;
    msgl_strbuf *left_out;
    bool strict; // what is not supported is refused, else added to *left_out with a NUL behind it
} msgl_constraint_use;
// Whether the form can be compiled: 0, MSGL_API_FORM, MSGL_EBUSY (no memory left in the budget), or
// what msgl__grammar_compile says.
int msgl__constraint_compile(const msgl_constraint_text *c, const msgl_constraint_use *use,
                             msgl_err *err);
void msgl__constraint_text_free(msgl_constraint_text *c);

#endif
