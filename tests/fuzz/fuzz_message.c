// SPDX-License-Identifier: Apache-2.0
//
// The input is one encoded message. What is accepted encodes again, and decodes to the same bytes:
// decoding loses nothing.
#include <stdint.h>
#include <string.h>

#include "message/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    msgl_msg_mem mem = {0}, mem2 = {0};
    msgl_msg m, again;
    msgl_err err = {0};
    const int rc = msgl__msg_decode(data, size, &mem, &m, &err);
    if (rc == 0) {
        msgl_strbuf a, b;
        msgl__strbuf_init(&a, MSGL_MSG_FRAME_MAX);
        msgl__strbuf_init(&b, MSGL_MSG_FRAME_MAX);
        if (msgl__msg_encode(&m, &a) != 0) __builtin_trap();
        if (msgl__msg_decode(a.data, a.len, &mem2, &again, NULL) != 0) __builtin_trap();
        if (msgl__msg_encode(&again, &b) != 0) __builtin_trap();
        if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0) __builtin_trap();
        msgl__strbuf_free(&a);
        msgl__strbuf_free(&b);
    } else if (err.text[0] == '\0') {
        __builtin_trap();
    }
    msgl__msg_mem_free(&mem);
    msgl__msg_mem_free(&mem2);
    return 0;
}
