// SPDX-License-Identifier: Apache-2.0
#include "http/http_parse.h"

#include <string.h>
#include <strings.h>

#include "core/hex.h"
#include "core/err.h"

enum { S_HEAD, S_BODY, S_CHUNK_SIZE, S_CHUNK_DATA, S_CHUNK_END, S_TRAILER, S_DONE, S_BAD };
enum { TRAILER_MAX = 4096, SMALL_BODY = 64 << 10 };

msgl_http_limits msgl__http_limits_default(void)
{
    return (msgl_http_limits){.max_target = 8 << 10,
                              .max_header_bytes = 16 << 10,
                              .max_headers = 100,
                              .max_body = (size_t)32 << 20};
}

void msgl__http_parser_init(msgl_http_parser *p, const msgl_http_limits *limits)
{
    *p = (msgl_http_parser){.limits = *limits, .claim.budget = limits->budget};
    msgl__strbuf_init(&p->head, limits->max_header_bytes);
    msgl__strbuf_init(&p->path, limits->max_target);
    msgl__strbuf_init(&p->body, limits->max_body);
}

void msgl__http_parser_free(msgl_http_parser *p)
{
    msgl__strbuf_free(&p->head);
    msgl__strbuf_free(&p->path);
    msgl__strbuf_free(&p->body);
    msgl__claim_free(&p->claim);
}

void msgl__http_parser_reset(msgl_http_parser *p)
{
    msgl__strbuf_clear(&p->head);
    msgl__strbuf_clear(&p->path);
    msgl__strbuf_free(&p->body);
    msgl__claim_free(&p->claim);
    p->state = S_HEAD;
    p->chunked = p->expect_continue = false;
    p->body_left = 0;
    p->line_len = p->trailer_len = 0;
    p->method = 0;
    p->query = p->host = p->origin = p->content_type = p->authorization = p->api_key =
        p->request_id = p->traceparent = p->request_headers = p->if_none_match =
            (msgl_http_value){0};
    p->status = 0;
    p->reason = NULL;
}

bool msgl__http_parser_started(const msgl_http_parser *p)
{
    return p->state != S_HEAD || p->head.len > 0;
}

bool msgl__http_parser_in_body(const msgl_http_parser *p)
{
    return p->state != S_HEAD;
}

static int bad(msgl_http_parser *p, int status, const char *reason)
{
    p->state = S_BAD;
    p->status = status;
    p->reason = reason;
    return -1;
}

// Which limit of the budget a body counts against: small ones may use memory that large ones have
// to leave, because most requests are small and should not wait for a few that are not.
static msgl_budget_use body_use(size_t size)
{
    return size <= SMALL_BODY ? MSGL_BUDGET_PROMPT : MSGL_BUDGET_BODY;
}

// Refuses a body that could not be claimed: with 413 if no request may claim as much, with 429 if
// it is not free now.
static int bad_claim(msgl_http_parser *p, int rc)
{
    return bad(p, rc == MSGL_ELIMIT ? 413 : 429, msgl__budget_refusal(rc));
}

// Whether c may stand in a token: a method or the name of a header (RFC 9110 section 5.6.2).
static bool is_token_char(unsigned char c)
{
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
    return c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

// Takes root_path off the path: a proxy that serves this server below it may send it or not. With
// root_path "/llm", "/llm/v1/models" becomes "/v1/models" and "/llm" becomes "/"; "/llms" stays.
static void leave_root_out(msgl_http_parser *p)
{
    const char *root = p->limits.root_path;
    const size_t n = root == NULL ? 0 : strlen(root);
    msgl_strbuf *path = &p->path;
    if (n == 0 || path->len < n || memcmp(path->data, root, n) != 0) return;
    if (path->len == n) {
        path->len = 1; // the root itself, which begins with its "/"
        path->data[1] = '\0';
    } else if (path->data[n] == '/') {
        path->len -= n;
        memmove(path->data, path->data + n, path->len + 1);
    }
}

static int parse_target(msgl_http_parser *p, const char *s, size_t len)
{
    if (len > p->limits.max_target) return bad(p, 414, "The request target is too long.");
    if (len >= 7 && strncasecmp(s, "http://", 7) == 0) { // absolute form, as to a proxy
        const char *slash = memchr(s + 7, '/', len - 7);
        const size_t skip = slash == NULL ? len : (size_t)(slash - s);
        s += skip;
        len -= skip;
        if (len == 0) {
            s = "/";
            len = 1;
        }
    }
    const bool star = len == 1 && s[0] == '*' && p->method == MSGL_HTTP_OPTIONS;
    if (len == 0 || (s[0] != '/' && !star)) {
        return bad(p, 400, "The request target must be a path.");
    }
    const char *query = memchr(s, '?', len);
    if (query != NULL) {
        p->query = (msgl_http_value){query + 1, len - (size_t)(query + 1 - s)};
        len = (size_t)(query - s);
    }
    for (size_t i = 0; i < len; i++) {
        char c = s[i];
        if ((unsigned char)c <= ' ' || c == 0x7f) {
            return bad(p, 400, "The request target has a control character.");
        }
        if (c == '%') {
            const int hi = i + 2 < len ? msgl__hex_digit(s[i + 1]) : -1;
            const int lo = hi >= 0 ? msgl__hex_digit(s[i + 2]) : -1;
            if (lo < 0 || (hi == 0 && lo == 0)) {
                return bad(p, 400, "The request target has a malformed percent escape.");
            }
            c = (char)(hi * 16 + lo);
            i += 2;
        }
        if (msgl__strbuf_addc(&p->path, c) != 0) return bad(p, 500, "Out of memory.");
    }
    leave_root_out(p);
    return 0;
}

bool msgl__http_query(const msgl_http_parser *p, const char *name, msgl_http_value *out)
{
    const size_t n = strlen(name);
    const char *at = p->query.at, *end = at == NULL ? NULL : at + p->query.len;
    while (at < end) {
        const char *to = memchr(at, '&', (size_t)(end - at));
        if (to == NULL) to = end;
        if ((size_t)(to - at) > n && memcmp(at, name, n) == 0 && at[n] == '=') {
            *out = (msgl_http_value){at + n + 1, (size_t)(to - at) - n - 1};
            return true;
        }
        at = to + 1;
    }
    return false;
}

static int parse_request_line(msgl_http_parser *p, const char *s, size_t len)
{
    static const struct {
        const char *name;
        msgl_http_method method;
    } methods[] = {{"GET", MSGL_HTTP_GET},
                   {"HEAD", MSGL_HTTP_HEAD},
                   {"POST", MSGL_HTTP_POST},
                   {"OPTIONS", MSGL_HTTP_OPTIONS},
                   {"DELETE", MSGL_HTTP_DELETE}};
    const char *sp1 = memchr(s, ' ', len);
    const char *sp2 = sp1 == NULL ? NULL : memchr(sp1 + 1, ' ', len - (size_t)(sp1 + 1 - s));
    if (sp2 == NULL || sp1 == s) return bad(p, 400, "The request line is malformed.");
    p->method = MSGL_HTTP_OTHER;
    for (const char *c = s; c < sp1; c++) {
        if (!is_token_char((unsigned char)*c)) {
            return bad(p, 400, "The request method is malformed.");
        }
    }
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        const size_t n = strlen(methods[i].name);
        if (n == (size_t)(sp1 - s) && memcmp(s, methods[i].name, n) == 0) {
            p->method = methods[i].method;
        }
    }
    const size_t version_len = len - (size_t)(sp2 + 1 - s);
    const char *v = sp2 + 1;
    if (version_len != 8 || memcmp(v, "HTTP/", 5) != 0 || v[6] != '.') {
        return bad(p, 400, "The request line is malformed.");
    }
    if (v[5] != '1' || (v[7] != '0' && v[7] != '1')) {
        return bad(p, 505, "The HTTP version is not supported; use HTTP/1.1.");
    }
    p->http10 = v[7] == '0';
    p->keep_alive = !p->http10;
    return parse_target(p, sp1 + 1, (size_t)(sp2 - sp1 - 1));
}

static bool value_is(const char *v, size_t len, const char *word)
{
    return len == strlen(word) && strncasecmp(v, word, len) == 0;
}

// Whether a comma-separated list has `word`.
static bool list_has(const char *v, size_t len, const char *word)
{
    while (len > 0) {
        const char *comma = memchr(v, ',', len);
        size_t n = comma == NULL ? len : (size_t)(comma - v);
        const size_t step = comma == NULL ? len : n + 1;
        const char *item = v;
        while (n > 0 && (*item == ' ' || *item == '\t')) item++, n--;
        while (n > 0 && (item[n - 1] == ' ' || item[n - 1] == '\t')) n--;
        if (value_is(item, n, word)) return true;
        v += step;
        len -= step;
    }
    return false;
}

typedef struct head_facts {
    bool have_length;
    int count;
} head_facts;

static int content_length(msgl_http_parser *p, head_facts *f, const char *v, size_t len)
{
    uint64_t n = 0;
    if (len == 0) return bad(p, 400, "Content-Length is not a number.");
    for (size_t i = 0; i < len; i++) {
        if (v[i] < '0' || v[i] > '9') return bad(p, 400, "Content-Length is not a number.");
        n = n > UINT64_MAX / 100 ? n : n * 10 + (uint64_t)(v[i] - '0'); // saturates
    }
    if (f->have_length && n != p->body_left) {
        return bad(p, 400, "Content-Length is given twice, with different values.");
    }
    f->have_length = true;
    p->body_left = n;
    return 0;
}

static int keep(msgl_http_parser *p, msgl_http_value *to, const char *v, size_t len,
                const char *twice)
{
    if (to->at != NULL) return bad(p, 400, twice);
    *to = (msgl_http_value){v, len};
    return 0;
}

static int header(msgl_http_parser *p, head_facts *f, const char *name, size_t name_len,
                  const char *v, size_t len)
{
    if (value_is(name, name_len, "content-length")) return content_length(p, f, v, len);
    if (value_is(name, name_len, "transfer-encoding")) {
        if (p->chunked || !value_is(v, len, "chunked")) {
            return bad(p, 501, "Only the transfer encoding \"chunked\" is supported.");
        }
        p->chunked = true;
    } else if (value_is(name, name_len, "connection")) {
        if (list_has(v, len, "close")) p->keep_alive = false;
        if (p->http10 && list_has(v, len, "keep-alive")) p->keep_alive = true;
    } else if (value_is(name, name_len, "expect")) {
        if (!value_is(v, len, "100-continue")) {
            return bad(p, 417, "Only the expectation \"100-continue\" is supported.");
        }
        p->expect_continue = !p->http10;
    } else if (value_is(name, name_len, "host")) {
        return keep(p, &p->host, v, len, "The Host header is given twice.");
    } else if (value_is(name, name_len, "origin")) {
        return keep(p, &p->origin, v, len, "The Origin header is given twice.");
    } else if (value_is(name, name_len, "content-type")) {
        return keep(p, &p->content_type, v, len, "The Content-Type header is given twice.");
    } else if (value_is(name, name_len, "authorization")) {
        return keep(p, &p->authorization, v, len, "The Authorization header is given twice.");
    } else if (value_is(name, name_len, "x-api-key") || value_is(name, name_len, "api-key")) {
        return keep(p, &p->api_key, v, len, "The X-Api-Key header is given twice."); // Azure's
    } else if (value_is(name, name_len, "x-request-id")) {
        // A proxy may have added its own behind the client's, which is no reason to refuse a
        // request.
        if (p->request_id.at == NULL) p->request_id = (msgl_http_value){v, len};
    } else if (value_is(name, name_len, "traceparent")) {
        // Of two nobody knows which is meant; W3C's rule is that a new trace begins then.
        p->traceparent = (msgl_http_value){v, p->traceparent.at == NULL ? len : 0};
    } else if (value_is(name, name_len, "access-control-request-headers")) {
        if (p->request_headers.at == NULL) p->request_headers = (msgl_http_value){v, len};
    } else if (value_is(name, name_len, "if-none-match")) {
        if (p->if_none_match.at == NULL) p->if_none_match = (msgl_http_value){v, len};
    } else if (value_is(name, name_len, "content-encoding")) {
        if (!value_is(v, len, "identity")) {
            return bad(p, 415, "Compressed bodies are not supported.");
        }
    }
    return 0;
}

static int parse_header_line(msgl_http_parser *p, head_facts *f, const char *s, size_t len)
{
    if (++f->count > p->limits.max_headers) return bad(p, 431, "There are too many headers.");
    const char *colon = memchr(s, ':', len);
    if (colon == NULL || colon == s) return bad(p, 400, "A header line is malformed.");
    for (const char *c = s; c < colon; c++) {
        if (!is_token_char((unsigned char)*c)) return bad(p, 400, "A header name is malformed.");
    }
    const char *v = colon + 1;
    size_t n = len - (size_t)(v - s);
    while (n > 0 && (*v == ' ' || *v == '\t')) v++, n--;
    while (n > 0 && (v[n - 1] == ' ' || v[n - 1] == '\t')) n--;
    for (size_t i = 0; i < n; i++) {
        if (((unsigned char)v[i] < ' ' && v[i] != '\t') || v[i] == 0x7f) {
            return bad(p, 400, "A header value has a control character.");
        }
    }
    return header(p, f, s, (size_t)(colon - s), v, n);
}

// Reads the head, which is complete with its empty line, and decides how the body is framed.
static int parse_head(msgl_http_parser *p)
{
    const char *s = p->head.data, *end = s + p->head.len - 2;
    head_facts f = {0};
    bool first = true;
    while (s < end) {
        const char *eol = memmem(s, (size_t)(end - s), "\r\n", 2);
        const size_t len = (size_t)(eol - s);
        if (memchr(s, '\n', len) != NULL || memchr(s, '\r', len) != NULL) {
            return bad(p, 400, "Lines must end with CR LF.");
        }
        const int rc = first ? parse_request_line(p, s, len) : parse_header_line(p, &f, s, len);
        if (rc != 0) return rc;
        first = false;
        s = eol + 2;
    }
    if (!p->http10 && p->host.at == NULL) return bad(p, 400, "The Host header is missing.");
    if (p->chunked && f.have_length) {
        return bad(p, 400, "Content-Length and Transfer-Encoding exclude each other.");
    }
    if (p->chunked && p->http10) return bad(p, 400, "HTTP/1.0 has no chunked bodies.");
    if (f.have_length && p->body_left > p->limits.max_body) {
        return bad(p, 413, "The body is too large.");
    }
    if (p->body_left > 0) { // a request without a body, such as a probe of /health, needs no memory
        const size_t body = (size_t)p->body_left + 1;
        const int rc = msgl__budget_fits(p->limits.budget, body_use(body), body);
        if (rc != 0) return bad_claim(p, rc);
    }
    p->state = p->chunked ? S_CHUNK_SIZE : p->body_left > 0 ? S_BODY : S_DONE;
    return 0;
}

static int read_head(msgl_http_parser *p, const char *data, size_t len, size_t *used)
{
    // Empty lines before a request are skipped (RFC 9112 section 2.2).
    if (p->head.len == 0) {
        while (*used < len && (data[*used] == '\r' || data[*used] == '\n')) ++*used;
    }
    const size_t room = p->limits.max_header_bytes - p->head.len;
    size_t n = len - *used;
    if (n > room) n = room;
    const size_t old = p->head.len;
    if (msgl__strbuf_add(&p->head, data + *used, n) != 0) return bad(p, 500, "Out of memory.");
    const size_t from = old < 3 ? 0 : old - 3;
    const char *end =
        p->head.len <= from ? NULL : memmem(p->head.data + from, p->head.len - from, "\r\n\r\n", 4);
    if (end == NULL) {
        *used += n;
        if (memchr(p->head.data == NULL ? "" : p->head.data, 0, p->head.len) != NULL) {
            return bad(p, 400, "The head has a NUL byte.");
        }
        if (p->head.len < p->limits.max_header_bytes) return 0;
        if (memchr(p->head.data, '\n', p->head.len) == NULL) {
            return bad(p, 414, "The request line is too long.");
        }
        return bad(p, 431, "The headers are too large.");
    }
    const size_t head_len = (size_t)(end - p->head.data) + 4;
    *used += head_len - old;
    p->head.len = head_len;
    return parse_head(p);
}

// Takes the next byte of a chunk's first line, "SIZE[;EXTENSION]" with CR LF at its end.
static int chunk_size(msgl_http_parser *p, char c)
{
    if (c != '\n') {
        if (p->line_len == sizeof p->line) return bad(p, 400, "A chunk size line is too long.");
        p->line[p->line_len++] = c;
        return 0;
    }
    if (p->line_len < 2 || p->line[p->line_len - 1] != '\r') {
        return bad(p, 400, "A chunk size line is malformed.");
    }
    uint64_t n = 0;
    size_t i = 0;
    for (int d; i < p->line_len && (d = msgl__hex_digit(p->line[i])) >= 0; i++) {
        n = n > UINT64_MAX / 32 ? n : n * 16 + (uint64_t)d; // saturates
    }
    const char *rest = p->line + i, *end = p->line + p->line_len - 1; // the CR
    while (*rest == ' ' || *rest == '\t') rest++;
    if (i == 0 || (rest != end && *rest != ';')) {
        return bad(p, 400, "A chunk size is not a hexadecimal number.");
    }
    // A parser that takes a bare CR for the end of a line would see other chunks here.
    if (memchr(rest, '\r', (size_t)(end - rest)) != NULL) {
        return bad(p, 400, "A chunk size line is malformed.");
    }
    p->line_len = 0;
    if (n > p->limits.max_body - p->body.len) return bad(p, 413, "The body is too large.");
    p->body_left = n;
    p->state = n == 0 ? S_TRAILER : S_CHUNK_DATA;
    return 0;
}

static int chunk_end(msgl_http_parser *p, char c)
{
    if (c != "\r\n"[p->line_len]) return bad(p, 400, "A chunk does not end with CR LF.");
    if (++p->line_len == 2) {
        p->line_len = 0;
        p->state = S_CHUNK_SIZE;
    }
    return 0;
}

// Takes the next byte of the trailer, whose lines are not used; an empty one ends the request.
static int trailer(msgl_http_parser *p, char c)
{
    if (++p->trailer_len > TRAILER_MAX) return bad(p, 431, "The trailer is too large.");
    if (c != '\n') {
        // line_len counts up to 2: enough to know whether the line is just CR.
        if (p->line_len < 2) p->line[p->line_len++] = c;
        return 0;
    }
    if (p->line_len == 1 && p->line[0] == '\r') p->state = S_DONE;
    if (p->line_len == 0) return bad(p, 400, "A trailer line is malformed.");
    p->line_len = 0;
    return 0;
}

// Claims and reserves memory for n more bytes: twice what there is, so that the body is not copied
// often, but not more than the whole body needs or than can be claimed. With 64 KiB, of which all
// are used, and 100 KiB still to come, one more byte makes it 128 KiB.
static int body_reserve(msgl_http_parser *p, size_t n)
{
    const size_t need = p->body.len + n + 1;
    if (need <= p->body.cap) return 0;
    const size_t rest = p->chunked ? p->limits.max_body - p->body.len : (size_t)p->body_left;
    const size_t whole = p->body.len + rest + 1;
    size_t cap = need < 2 * p->body.cap ? 2 * p->body.cap : need;
    if (cap > whole) cap = whole;
    int rc = msgl__claim_set(&p->claim, body_use(cap), cap);
    if (rc != 0 && cap > need) {
        cap = need;
        rc = msgl__claim_set(&p->claim, body_use(cap), cap);
    }
    if (rc != 0) return bad_claim(p, rc);
    rc = msgl__strbuf_reserve_exact(&p->body, cap - 1 - p->body.len);
    return rc == 0 ? 0 : bad(p, 500, "Out of memory.");
}

static int read_body(msgl_http_parser *p, const char *data, size_t len, size_t *used)
{
    size_t n = len - *used;
    if (n > p->body_left) n = (size_t)p->body_left;
    if (body_reserve(p, n) != 0) return -1;
    if (msgl__strbuf_add(&p->body, data + *used, n) != 0) return bad(p, 500, "Out of memory.");
    *used += n;
    p->body_left -= n;
    if (p->body_left == 0) p->state = p->chunked ? S_CHUNK_END : S_DONE;
    return 0;
}

msgl_http_event msgl__http_parse(msgl_http_parser *p, const char *data, size_t len, size_t *used)
{
    *used = 0;
    while (p->state != S_BAD && p->state != S_DONE && *used < len) {
        switch (p->state) {
        case S_HEAD:
            (void)read_head(p, data, len, used);
            if (p->expect_continue && p->state != S_HEAD && p->state < S_DONE) {
                p->expect_continue = false;
                return MSGL_HTTP_CONTINUE;
            }
            break;
        case S_BODY:
        case S_CHUNK_DATA: (void)read_body(p, data, len, used); break;
        case S_CHUNK_SIZE: (void)chunk_size(p, data[(*used)++]); break;
        case S_CHUNK_END: (void)chunk_end(p, data[(*used)++]); break;
        case S_TRAILER: (void)trailer(p, data[(*used)++]); break;
        }
    }
    if (p->state == S_BAD) return MSGL_HTTP_BAD;
    return p->state == S_DONE ? MSGL_HTTP_DONE : MSGL_HTTP_MORE;
}
