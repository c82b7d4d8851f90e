// SPDX-License-Identifier: Apache-2.0
#include "round_trip.h"

#include <string.h>

#include "utils/utf8.h"

static void require(int ok)
{
    if (!ok) __builtin_trap();
}

void round_trip(const msgl_tokenizer *t, const char *text, size_t n, const msgl_encode_opts *opts)
{
    msgl_ids ids = {0};
    msgl_strbuf whole, stream;
    msgl__strbuf_init(&whole, (size_t)1 << 26);
    msgl__strbuf_init(&stream, (size_t)1 << 26);
    if (msgl__tokenizer_encode(t, text, n, opts, &ids, NULL) == 0) {
        for (int skip = 0; skip < 2; skip++) {
            msgl__strbuf_clear(&whole);
            msgl__strbuf_clear(&stream);
            require(msgl__tokenizer_decode(t, ids.data, ids.len, skip, &whole, NULL) == 0);
            msgl_detok *d = msgl__detok_create(t, skip);
            require(d != NULL);
            for (size_t i = 0; i < ids.len; i++) {
                const size_t at = stream.len;
                require(msgl__detok_push(d, ids.data[i], &stream) == 0);
                const size_t piece = stream.len - at;
                require(msgl__utf8_valid(msgl__strbuf_str(&stream) + at, piece) == piece);
            }
            require(msgl__detok_finish(d, &stream) == 0);
            msgl__detok_destroy(d);
            require(whole.len == stream.len);
            require(memcmp(msgl__strbuf_str(&whole), msgl__strbuf_str(&stream), whole.len) == 0);
        }
    }
    msgl__strbuf_free(&whole);
    msgl__strbuf_free(&stream);
    msgl__ids_free(&ids);
}
