// SPDX-License-Identifier: Apache-2.0
#include "message/frame.h"

#include <string.h>

#include "core/err.h"

int msgl__frame_begin(msgl_strbuf *b, size_t *start)
{
    static const msgl_frame_head none;
    *start = b->len;
    return msgl__strbuf_add(b, (const char *)&none, sizeof none);
}

int msgl__frame_end(msgl_strbuf *b, size_t start, uint32_t kind, size_t max)
{
    const size_t bytes = b->len - start - sizeof(msgl_frame_head);
    if (bytes > max || bytes > UINT32_MAX) return MSGL_ELIMIT;
    const msgl_frame_head head = {.bytes = (uint32_t)bytes, .kind = kind};
    memcpy(b->data + start, &head, sizeof head);
    return 0;
}

int msgl__frame_peek(const void *data, size_t have, size_t max, msgl_frame_head *out)
{
    if (have < sizeof *out) return 0;
    memcpy(out, data, sizeof *out);
    if (out->bytes > max || out->kind == 0) return MSGL_EFORMAT;
    return have - sizeof *out >= out->bytes;
}
