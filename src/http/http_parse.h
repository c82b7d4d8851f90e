// SPDX-License-Identifier: Apache-2.0
//
// A parser of HTTP/1.1 requests, as a state machine without sockets: bytes go in as they arrive, a
// request or a refusal comes out. It is strict where leniency lets two parsers disagree about where
// a request ends (a bare LF, folded headers, both kinds of length or one of them twice), and
// everything has a limit.
#ifndef MSGL_HTTP_HTTP_PARSE_H
#define MSGL_HTTP_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "http/budget.h"
#include "utils/strbuf.h"

typedef struct msgl_http_limits {
    size_t max_target;       // bytes of the request target
    size_t max_header_bytes; // request line and headers together
    int max_headers;
    size_t max_body;
    const char *root_path; // that paths may begin with, such as "/llm": left out; NULL: none
    msgl_budget *budget;   // bodies are claimed from it as they arrive; NULL: not counted
} msgl_http_limits;

msgl_http_limits msgl__http_limits_default(void); // 8 KiB, 16 KiB, 100, 32 MiB

typedef enum msgl_http_method {
    MSGL_HTTP_GET = 1,
    MSGL_HTTP_HEAD = 2,
    MSGL_HTTP_POST = 4,
    MSGL_HTTP_OPTIONS = 8,
    MSGL_HTTP_OTHER = 16,
    MSGL_HTTP_DELETE = 32,
} msgl_http_method;

typedef enum msgl_http_event {
    MSGL_HTTP_MORE,     // everything was taken, the request goes on
    MSGL_HTTP_CONTINUE, // the client waits for "100 Continue" before it sends the body
    MSGL_HTTP_DONE,     // the request is complete
    MSGL_HTTP_BAD,      // refused: status and reason are set, the connection cannot go on
} msgl_http_event;

typedef struct msgl_http_value { // of a header, without blanks around it, not terminated
    const char *at;              // NULL: not given
    size_t len;
} msgl_http_value;

typedef struct msgl_http_parser {
    msgl_http_limits limits;
    int state;
    msgl_strbuf head;   // request line and headers until they are complete
    uint64_t body_left; // of a body with a length, or of the current chunk
    bool chunked, expect_continue;
    char line[128]; // chunk size line
    size_t line_len;
    size_t trailer_len;

    // The request is valid from MSGL_HTTP_DONE until the next call of msgl__http_parse:
    msgl_http_method method;
    msgl_strbuf path; // percent-decoded, without query and root_path; starts with "/" (or is "*")
    msgl_http_value query; // what is behind the target's '?', in `head`
    bool http10, keep_alive;
    msgl_http_value host, origin, content_type, authorization, api_key; // in `head`
    msgl_http_value request_headers; // Access-Control-Request-Headers
    msgl_http_value if_none_match;   // of several the first
    msgl_http_value traceparent;     // of several: empty
    msgl_http_value request_id;      // X-Request-Id, as the client wrote it; of several the first
    msgl_strbuf body;
    msgl_claim claim; // of the body's memory; whoever takes the body takes this, too
    // The refusal is valid from MSGL_HTTP_BAD on:
    int status;
    const char *reason; // one sentence
} msgl_http_parser;

void msgl__http_parser_init(msgl_http_parser *p, const msgl_http_limits *limits);
void msgl__http_parser_free(msgl_http_parser *p);
// Makes the parser ready for the next request on the connection.
void msgl__http_parser_reset(msgl_http_parser *p);
// Whether any byte of the next request has come.
bool msgl__http_parser_started(const msgl_http_parser *p);
bool msgl__http_parser_in_body(const msgl_http_parser *p);
// The value of the query's first parameter with this name, as it is written (percent escapes stay).
// False: there is none.
bool msgl__http_query(const msgl_http_parser *p, const char *name, msgl_http_value *out);
// Takes *used bytes of data[0, len): all of them if the result is MSGL_HTTP_MORE, else those up to
// what it is about.
msgl_http_event msgl__http_parse(msgl_http_parser *p, const char *data, size_t len, size_t *used);

#endif
