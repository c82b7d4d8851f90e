// SPDX-License-Identifier: Apache-2.0
//
// The input is what a client sends; its first byte says into how long reads it is cut. Bodies that
// come out are read as forms of files, too.
#include <stdint.h>
#include <string.h>

#include "http/http_parse.h"
#include "http/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok) __builtin_trap();
}

static void read_form(const char *body, size_t len)
{
    char boundary[MSGL_MULTIPART_BOUNDARY_MAX + 1];
    const char *line = memchr(body, '\n', len); // the first line is the type
    if (line == NULL || !msgl__multipart_boundary(body, (size_t)(line - body), boundary)) return;
    require(strlen(boundary) > 0);
    const char *form = line + 1;
    const size_t n = len - (size_t)(form - body);
    msgl_multipart_field f;
    size_t at = 0, before = 0;
    while (msgl__multipart_next(form, n, boundary, &at, &f) == 1) {
        require(at > before && at <= n);
        before = at;
        require(f.value >= form && f.len <= (size_t)(form + n - f.value));
        require(f.name >= form && f.name_len <= (size_t)(form + n - f.name));
        if (f.filename == NULL) continue;
        require(f.filename >= form && f.filename_len <= (size_t)(form + n - f.filename));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const size_t step = 1 + data[0];
    const char *text = (const char *)data + 1;
    size--;
    read_form(text, size); // most inputs never get through the head
    const msgl_http_limits limits = {
        .max_target = 64, .max_header_bytes = 1024, .max_headers = 8, .max_body = 4096};
    msgl_http_parser p;
    msgl__http_parser_init(&p, &limits);
    for (size_t at = 0; at < size;) {
        const size_t n = size - at < step ? size - at : step;
        size_t used = 0;
        const msgl_http_event e = msgl__http_parse(&p, text + at, n, &used);
        require(used <= n && (e != MSGL_HTTP_MORE || used == n));
        require(p.body.len <= limits.max_body && p.head.len <= limits.max_header_bytes);
        at += used;
        if (e == MSGL_HTTP_BAD) break;
        if (e == MSGL_HTTP_DONE) {
            read_form(p.body.data == NULL ? "" : p.body.data, p.body.len);
            msgl__http_parser_reset(&p);
        }
    }
    msgl__http_parser_free(&p);
    return 0;
}
