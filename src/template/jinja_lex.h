// SPDX-License-Identifier: Apache-2.0
//
// Template source to tokens, with the whitespace rules of trim_blocks and lstrip_blocks applied.
#ifndef MSGL_TEMPLATE_JINJA_LEX_H
#define MSGL_TEMPLATE_JINJA_LEX_H

#include "template/jinja_mem.h"
#include "template/jinja_value.h"

typedef enum msgl_jtok_kind {
    MSGL_JT_EOF,
    MSGL_JT_DATA,
    MSGL_JT_VAR_BEGIN,
    MSGL_JT_VAR_END,
    MSGL_JT_BLOCK_BEGIN,
    MSGL_JT_BLOCK_END,
    MSGL_JT_NAME,
    MSGL_JT_STRING,
    MSGL_JT_INT,
    MSGL_JT_FLOAT,
    MSGL_JT_OP,
} msgl_jtok_kind;

typedef struct msgl_jtok {
    msgl_jtok_kind kind;
    int line;
    const char *text; // DATA, STRING: final bytes; NAME, OP: as written
    size_t len;
    int64_t i;
    double f;
} msgl_jtok;

typedef struct msgl_jtokens {
    msgl_jtok *toks; // ends with EOF
    size_t len, cap;
} msgl_jtokens;

// Tokens and their text live in `arena`. MSGL_EFORMAT names line and cause.
int msgl__jlex(msgl_jarena *arena, const char *source, size_t len, msgl_jtokens *out,
               msgl_err *err);
// The token for messages: 'name', 'end of statement block' ...; written to buf.
const char *msgl__jtok_describe(const msgl_jtok *t, char buf[64]);

#endif
