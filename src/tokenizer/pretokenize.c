// SPDX-License-Identifier: Apache-2.0
//
// The pre-tokenizers: each step reads one list of pieces and writes the other; two of them
// (Metaspace, ByteLevel) also rewrite the text. The mapping into the byte-level alphabet is left
// out when it is the last step: the model then takes raw bytes (msgl_bpe.byte_mode).
#include <string.h>

#include "tokenizer/workspace.h"

// Turns ws->spans into pieces of list `to`, as SplitDelimiterBehavior says.
static int split_spans(msgl_tok_ws *ws, int to, enum msgl_behavior behavior, int invert)
{
    const size_t n = ws->num_spans;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const msgl_span *s = &ws->spans[i];
        const int match = s->match != invert;
        size_t end = i + 1; // spans [i, end) become one piece
        switch (behavior) {
        case MSGL_SPLIT_REMOVED:
            if (match) continue;
            break;
        case MSGL_SPLIT_ISOLATED: break;
        case MSGL_SPLIT_CONTIGUOUS:
            while (end < n && (ws->spans[end].match != invert) == match) end++;
            break;
        case MSGL_SPLIT_MERGED_WITH_PREVIOUS:
            if (!match && end < n && ws->spans[end].match != invert) end++;
            break;
        case MSGL_SPLIT_MERGED_WITH_NEXT:
            if (match && end < n && ws->spans[end].match == invert) end++;
            break;
        }
        const msgl_span *last = &ws->spans[end - 1];
        rc = msgl__ws_add_piece(ws, to, s->off, last->off + last->len - s->off);
        i = end - 1;
    }
    return rc;
}

static int step_split(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_pretok *step,
                      const msgl_text *text, int from)
{
    const int to = 1 - from;
    for (size_t i = 0; i < ws->num_pieces[from]; i++) {
        const msgl_tok_piece piece = ws->pieces[from][i];
        int rc = 0;
        if (step->pattern.scan != MSGL_SCAN_NONE && step->behavior == MSGL_SPLIT_ISOLATED) {
            const char *p = text->p + piece.off;
            for (size_t pos = 0; pos < piece.len && rc == 0;) {
                const size_t end = msgl__scan_next(step->pattern.scan, t->uni, p, piece.len, pos);
                rc = msgl__ws_add_piece(ws, to, piece.off + pos, end - pos);
                pos = end;
            }
        } else {
            rc = msgl__pattern_spans(t, &step->pattern, ws, text->p, piece.off, piece.len);
            if (rc == 0) rc = split_spans(ws, to, step->behavior, step->invert);
        }
        if (rc != 0) return rc;
    }
    return 0;
}

// Each character with one of the property bits is a match of its own.
static int step_chars(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_pretok *step,
                      const msgl_text *text, int from, unsigned bits)
{
    for (size_t i = 0; i < ws->num_pieces[from]; i++) {
        const msgl_tok_piece piece = ws->pieces[from][i];
        const size_t end = piece.off + piece.len;
        size_t start = piece.off; // of the characters that did not match
        int rc = 0;
        ws->num_spans = 0;
        for (size_t at = piece.off; at < end && rc == 0;) {
            size_t next = at;
            if ((msgl__uni(t->uni, msgl__utf8_next(text->p, &next)) & bits) != 0) {
                if (at > start) rc = msgl__ws_add_span(ws, start, at - start, 0);
                if (rc == 0) rc = msgl__ws_add_span(ws, at, next - at, 1);
                start = next;
            }
            at = next;
        }
        if (rc == 0 && start < end) rc = msgl__ws_add_span(ws, start, end - start, 0);
        if (rc == 0) rc = split_spans(ws, 1 - from, step->behavior, 0);
        if (rc != 0) return rc;
    }
    return 0;
}

// \w+|[^\w\s]+
static int step_whitespace(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_text *text,
                           int from)
{
    for (size_t i = 0; i < ws->num_pieces[from]; i++) {
        const msgl_tok_piece piece = ws->pieces[from][i];
        const size_t end = piece.off + piece.len;
        size_t start = piece.off;
        unsigned run = MSGL_UNI_SPACE; // class of text[start, at)
        int rc = 0;
        for (size_t at = piece.off; at < end && rc == 0;) {
            size_t next = at;
            const unsigned v = msgl__uni(t->uni, msgl__utf8_next(text->p, &next));
            const unsigned cls = v & MSGL_UNI_WORD ? MSGL_UNI_WORD : v & MSGL_UNI_SPACE;
            if (cls != run) {
                if (run != MSGL_UNI_SPACE) rc = msgl__ws_add_piece(ws, 1 - from, start, at - start);
                start = at;
                run = cls;
            }
            at = next;
        }
        if (rc == 0 && run != MSGL_UNI_SPACE) {
            rc = msgl__ws_add_piece(ws, 1 - from, start, end - start);
        }
        if (rc != 0) return rc;
    }
    return 0;
}

// What is put before a piece stands for what the piece's first character stands for.
static void zero_piece(msgl_zero *zero, const msgl_tok_piece *piece, size_t out_len)
{
    if (piece->off >= zero->in) msgl__zero_element(zero, piece->off + 1, out_len);
}

// Writes one piece with every ' ' as the replacement, which is put before it where the scheme says.
static int metaspace_piece(msgl_tok_ws *ws, const msgl_pretok *step, const char *mark, size_t n,
                           const msgl_text *in, msgl_tok_piece piece, msgl_zero *zero,
                           msgl_tok_buf *out)
{
    const char *p = in->p + piece.off;
    const int marked = p[0] == ' ' || (piece.len >= n && memcmp(p, mark, n) == 0);
    int rc = 0;
    if (!marked && (step->prepend == MSGL_PREPEND_ALWAYS ||
                    (step->prepend == MSGL_PREPEND_FIRST && piece.off < ws->zero))) {
        rc = msgl__buf_put(ws, out, mark, n, 0);
    }
    for (size_t i = 0; i < piece.len && rc == 0;) {
        const char *space = memchr(p + i, ' ', piece.len - i);
        const size_t stop = space == NULL ? piece.len : (size_t)(space - p);
        msgl__zero_copy(zero, piece.off + i, piece.off + stop, out->len);
        rc = msgl__buf_copy(ws, out, in, piece.off + i, piece.off + stop);
        i = stop;
        if (rc == 0 && space != NULL) {
            msgl__zero_element(zero, piece.off + i + 1, out->len);
            rc = msgl__buf_put(ws, out, mark, n,
                               msgl__text_tag(in, piece.off + i, piece.off + i + 1));
            i++;
        }
    }
    return rc;
}

static int step_metaspace(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_pretok *step,
                          msgl_text *text, int from)
{
    msgl_tok_pattern mark = {0};
    char bytes[4];
    mark.text = (msgl_tok_str){bytes, msgl__utf8_put(step->replacement, bytes)};
    msgl_tok_buf *out = msgl__ws_other(ws, text);
    msgl_zero zero = msgl__zero_start(ws);
    int rc = msgl__buf_reserve(ws, out, text->n + 1);
    for (size_t i = 0; i < ws->num_pieces[from] && rc == 0; i++) {
        const msgl_tok_piece piece = ws->pieces[from][i];
        const size_t start = out->len;
        zero_piece(&zero, &piece, start);
        rc = metaspace_piece(ws, step, bytes, mark.text.n, text, piece, &zero, out);
        if (rc != 0) break;
        if (!step->split) {
            rc = msgl__ws_add_piece(ws, 1 - from, start, out->len - start);
            continue;
        }
        rc = msgl__pattern_spans(t, &mark, ws, out->data, start, out->len - start);
        if (rc == 0) rc = split_spans(ws, 1 - from, MSGL_SPLIT_MERGED_WITH_NEXT, 0);
    }
    msgl__zero_end(ws, &zero, out->len);
    *text = msgl__buf_text(ws, out);
    return rc;
}

// Puts a space before every piece that has none.
static int prefix_spaces(msgl_tok_ws *ws, msgl_text *text, int from)
{
    msgl_tok_buf *out = msgl__ws_other(ws, text);
    msgl_zero zero = msgl__zero_start(ws);
    int rc = msgl__buf_reserve(ws, out, text->n + 1);
    for (size_t i = 0; i < ws->num_pieces[from] && rc == 0; i++) {
        msgl_tok_piece *piece = &ws->pieces[from][i];
        const size_t start = out->len;
        zero_piece(&zero, piece, start);
        if (text->p[piece->off] != ' ') rc = msgl__buf_put(ws, out, " ", 1, 0);
        msgl__zero_copy(&zero, piece->off, piece->off + piece->len, out->len);
        if (rc == 0) rc = msgl__buf_copy(ws, out, text, piece->off, piece->off + piece->len);
        *piece = (msgl_tok_piece){start, out->len - start};
    }
    msgl__zero_end(ws, &zero, out->len);
    *text = msgl__buf_text(ws, out);
    return rc;
}

// Writes every piece in the byte-level alphabet.
static int map_bytes(msgl_tok_ws *ws, msgl_text *text, int list)
{
    msgl_tok_buf *out = msgl__ws_other(ws, text);
    msgl_zero zero = msgl__zero_start(ws);
    int rc = msgl__buf_reserve(ws, out, 2 * text->n + 1);
    for (size_t i = 0; i < ws->num_pieces[list] && rc == 0; i++) {
        msgl_tok_piece *piece = &ws->pieces[list][i];
        const size_t start = out->len;
        for (size_t k = 0; k < piece->len && rc == 0; k++) {
            rc = msgl__ws_put_byte(ws, &zero, text, piece->off + k, out);
        }
        *piece = (msgl_tok_piece){start, out->len - start};
    }
    msgl__zero_end(ws, &zero, out->len);
    *text = msgl__buf_text(ws, out);
    return rc;
}

static int step_byte_level(const msgl_tokenizer *t, msgl_tok_ws *ws, const msgl_pretok *step,
                           msgl_text *text, int *list)
{
    int rc = 0;
    if (step->add_prefix_space) rc = prefix_spaces(ws, text, *list);
    if (rc == 0 && step->use_regex) {
        rc = step_split(t, ws, step, text, *list);
        *list = 1 - *list;
    }
    const int last = step == &t->pretoks[t->num_pretoks - 1];
    if (rc == 0 && !(last && t->bpe.byte_mode)) rc = map_bytes(ws, text, *list);
    return rc;
}

int msgl__pre_tokenize(const msgl_tokenizer *t, msgl_tok_ws *ws, msgl_text *text, int *list)
{
    *list = 0;
    ws->num_pieces[0] = 0;
    int rc = msgl__ws_add_piece(ws, 0, 0, text->n);
    for (size_t i = 0; i < t->num_pretoks && rc == 0; i++) {
        const msgl_pretok *step = &t->pretoks[i];
        const int from = *list;
        ws->num_pieces[1 - from] = 0;
        if (step->type == MSGL_PRETOK_BYTE_LEVEL) {
            rc = step_byte_level(t, ws, step, text, list);
            continue;
        }
        switch (step->type) {
        case MSGL_PRETOK_SPLIT: rc = step_split(t, ws, step, text, from); break;
        case MSGL_PRETOK_DIGITS: rc = step_chars(t, ws, step, text, from, MSGL_UNI_NUMERIC); break;
        case MSGL_PRETOK_PUNCTUATION:
            rc = step_chars(t, ws, step, text, from, MSGL_UNI_PUNCT);
            break;
        case MSGL_PRETOK_WHITESPACE_SPLIT:
            rc = step_chars(t, ws, step, text, from, MSGL_UNI_SPACE);
            break;
        case MSGL_PRETOK_WHITESPACE: rc = step_whitespace(t, ws, text, from); break;
        case MSGL_PRETOK_METASPACE: rc = step_metaspace(t, ws, step, text, from); break;
        case MSGL_PRETOK_BYTE_LEVEL: break;
        }
        *list = 1 - from;
    }
    return rc;
}
