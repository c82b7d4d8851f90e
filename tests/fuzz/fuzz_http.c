// SPDX-License-Identifier: Apache-2.0
//
// The input is what a client sends; its first byte chooses how it is cut into reads. Bodies of
// requests that come out go through all endpoints' parsers. Build with
// -fsanitize=fuzzer,address and link msgl_server.
#include <stdint.h>
#include <string.h>

#include "server/api.h"
#include "server/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse_body(const char *body, size_t len)
{
    msgl_api_config cfg = {.model_name = "m",
                           .model_path = "/models/m",
                           .defaults = msgl__sampling_params_default(),
                           .vocab_size = 1000,
                           .tool_form = msgl__tool_form("hermes", NULL),
                           .reasoning_form = msgl__reasoning_form("qwen3", NULL)};
    for (int kind = MSGL_API_CHAT; kind <= MSGL_API_APPLY_TEMPLATE; kind++) {
        msgl_gen_request r;
        cfg.pooled_size = kind == MSGL_API_EMBEDDINGS ? 64 : 0;
        msgl_api_error e = {0};
        const int rc = msgl__api_parse((msgl_api_kind)kind, body, len, &cfg, NULL, &r, &e);
        if (rc != 0 && (e.status < 400 || e.message[0] == '\0')) __builtin_trap();
        if (rc == 0 && msgl__sampling_params_check(&r.sampling, cfg.vocab_size, NULL) != 0) {
            __builtin_trap();
        }
        if (rc == 0) msgl__gen_request_free(&r);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    const size_t step = 1 + data[0];
    const char *text = (const char *)data + 1;
    size--;
    // The rest as a body on its own, too: most inputs never get through the head.
    parse_body(text, size);
    const msgl_http_limits limits = {
        .max_target = 64, .max_header_bytes = 1024, .max_headers = 8, .max_body = 4096};
    msgl_http_parser p;
    msgl__http_parser_init(&p, &limits);
    for (size_t at = 0; at < size;) {
        const size_t n = size - at < step ? size - at : step;
        size_t used = 0;
        const msgl_http_event e = msgl__http_parse(&p, text + at, n, &used);
        if (used > n || (e == MSGL_HTTP_MORE && used != n)) __builtin_trap();
        if (p.body.len > limits.max_body || p.head.len > limits.max_header_bytes) __builtin_trap();
        at += used;
        if (e == MSGL_HTTP_BAD) break;
        if (e == MSGL_HTTP_DONE) {
            parse_body(p.body.data == NULL ? "" : p.body.data, p.body.len);
            msgl__http_parser_reset(&p);
        }
    }
    msgl__http_parser_free(&p);
    return 0;
}
