// SPDX-License-Identifier: Apache-2.0
//
// The buffers of one encode call: text is rewritten from one buffer to another, pieces from one of
// two lists to the other.
#ifndef MSGL_TOKENIZER_WORKSPACE_H
#define MSGL_TOKENIZER_WORKSPACE_H

#include "tokenizer/internal.h"

// The text at some stage of the pipeline: the caller's, or one of the buffers'.
typedef struct msgl_text {
    const char *p;
    const unsigned char *tags; // NULL unless the workspace uses tags
    size_t n;
} msgl_text;

msgl_tok_ws *msgl__ws_create(void); // NULL: out of memory
void msgl__ws_free(msgl_tok_ws *ws);
// A workspace from the tokenizer's list or a new one, and back. NULL: out of memory.
msgl_tok_ws *msgl__ws_take(const msgl_tokenizer *t);
void msgl__ws_give(const msgl_tokenizer *t, msgl_tok_ws *ws);

// No sane rule makes more than this of `len` bytes: compatibility forms give up to 11 for one, the
// byte-level alphabet 2, a replaced space 3.
static inline size_t msgl__ws_buf_limit(size_t len)
{
    return 64 * len + 65536;
}

// One more id of what the call makes. 0, MSGL_ENOMEM, or MSGL_ELIMIT past ws->id_limit.
static inline int msgl__ws_push(const msgl_tok_ws *ws, msgl_ids *out, int32_t id)
{
    if (out->len >= ws->id_limit) return MSGL_ELIMIT;
    if (out->len == out->cap) return msgl__ids_push(out, id);
    out->data[out->len++] = id;
    return 0;
}

// A buffer that neither holds `in` nor is held, emptied.
msgl_tok_buf *msgl__ws_other(msgl_tok_ws *ws, const msgl_text *in);
// Room for `extra` more bytes. 0, MSGL_ENOMEM, or MSGL_ELIMIT past ws->buf_limit.
int msgl__buf_reserve(const msgl_tok_ws *ws, msgl_tok_buf *b, size_t extra);
// Appends p[0, n) with one tag for all bytes, or with a tag for each.
int msgl__buf_put(const msgl_tok_ws *ws, msgl_tok_buf *b, const char *p, size_t n,
                  unsigned char tag);
int msgl__buf_copy(const msgl_tok_ws *ws, msgl_tok_buf *b, const msgl_text *in, size_t start,
                   size_t end);
static inline msgl_text msgl__buf_text(const msgl_tok_ws *ws, const msgl_tok_buf *b)
{
    return (msgl_text){b->data == NULL ? "" : b->data, ws->use_tags ? b->tags : NULL, b->len};
}
// All tags of in[start, end) or-ed together; 0 without tags.
unsigned char msgl__text_tag(const msgl_text *in, size_t start, size_t end);

int msgl__ws_add_piece(msgl_tok_ws *ws, int list, size_t off, size_t len); // drops empty pieces
int msgl__ws_add_span(msgl_tok_ws *ws, size_t off, size_t len, int match);

// Where the output stands when the input passes ws->zero: a rewrite announces each element (a
// character, a match) by its end in the input before it writes it.
typedef struct msgl_zero {
    size_t in, out;
    int done;
} msgl_zero;

static inline msgl_zero msgl__zero_start(const msgl_tok_ws *ws)
{
    return (msgl_zero){ws->zero, 0, ws->zero == 0};
}
static inline void msgl__zero_element(msgl_zero *z, size_t in_end, size_t out_len)
{
    if (!z->done && in_end > z->in) {
        z->out = out_len;
        z->done = 1;
    }
}
// Writes byte i of `in` in the byte-level alphabet, an element of its own.
int msgl__ws_put_byte(msgl_tok_ws *ws, msgl_zero *z, const msgl_text *in, size_t i,
                      msgl_tok_buf *out);
// A stretch in[start, end) that is copied as it is.
static inline void msgl__zero_copy(msgl_zero *z, size_t start, size_t end, size_t out_len)
{
    if (!z->done && end > z->in) {
        z->out = out_len + (z->in > start ? z->in - start : 0);
        z->done = 1;
    }
}
static inline void msgl__zero_end(msgl_tok_ws *ws, const msgl_zero *z, size_t out_len)
{
    ws->zero = z->done ? z->out : out_len;
}

// Fills ws->spans with the matches of a pattern in in[off, off + len) and what lies between them.
// MSGL_ELIMIT: the pattern needed too many steps.
int msgl__pattern_spans(const msgl_tokenizer *t, const msgl_tok_pattern *pattern, msgl_tok_ws *ws,
                        const char *text, size_t off, size_t len);

// Rewrites *text by every step of the normalizer; ws->zero and the tags follow.
int msgl__normalize(const msgl_tokenizer *t, msgl_tok_ws *ws, msgl_text *text);
// Splits *text, rewriting it where a step does, into ws->pieces[*list].
int msgl__pre_tokenize(const msgl_tokenizer *t, msgl_tok_ws *ws, msgl_text *text, int *list);

#endif
