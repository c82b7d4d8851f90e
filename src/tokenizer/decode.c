// SPDX-License-Identifier: Apache-2.0
//
// From ids to text, all at once or one by one, by the same machine, so that the two cannot differ.
// Every decoder is a stage that is fed tokens in fragments (text, then end of token) and passes on
// what has become certain. Stages that look at a whole token collect it first; ByteFallback also
// has to wait for the end of a run of byte tokens, because one bad byte turns the whole run into
// U+FFFD.
#include <string.h>

#include "tokenizer/tokenizer.h"
#include "core/hex.h"
#include "tokenizer/internal.h"

#define MAX_DECODED ((size_t)1 << 31)
static const char replacement_char[3] = {(char)0xef, (char)0xbf, (char)0xbd}; // U+FFFD

typedef struct stage {
    const msgl_dec *d;
    msgl_strbuf token; // the current token, where it has to be seen whole
    msgl_strbuf run;   // ByteFallback: bytes not passed on yet
    size_t run_valid;  // of them, this many are complete characters
    int run_broken;    // the run holds a byte that no character can: each byte is U+FFFD
    char partial[4];   // ByteLevel: the start of a character
    size_t num_partial;
    size_t lead,
        pending;  // Strip: characters cut at the start; characters that may be cut at the end
    size_t index; // Metaspace: how many tokens came before
} stage;

struct msgl_detok {
    const msgl_tokenizer *t;
    msgl_strbuf *out; // where the call in progress writes
    msgl_regex_ws *regex;
    int skip_special;
    size_t num_tokens;
    size_t num_stages;
    stage stages[];
};

static int end_token(msgl_detok *d, size_t k);

// What a (cut off) UTF-8 sequence can still become.
enum utf8_state { UTF8_BAD, UTF8_INCOMPLETE, UTF8_COMPLETE };

static enum utf8_state utf8_state(const char *p, size_t n)
{
    const size_t need = msgl__utf8_len((unsigned char)p[0]);
    if (n >= need) return msgl__utf8_valid(p, need) == need ? UTF8_COMPLETE : UTF8_BAD;
    // A prefix is good when some continuation makes it valid: only the second byte has limits that
    // depend on the first, and 0x80 or 0xbf meets them for every first byte.
    char full[4] = {p[0], (char)0xbf, (char)0xbf, (char)0xbf};
    memcpy(full, p, n);
    if (msgl__utf8_valid(full, need) == need) return UTF8_INCOMPLETE;
    memset(full, 0x80, sizeof(full));
    memcpy(full, p, n);
    return msgl__utf8_valid(full, need) == need ? UTF8_INCOMPLETE : UTF8_BAD;
}

static int frag(msgl_detok *d, size_t k, const char *p, size_t n);

// Bytes on their way to being text: whole characters go on, what cannot become one is U+FFFD (one
// for each maximal start of a character, as String::from_utf8_lossy has it).
static int byte_level_bytes(msgl_detok *d, size_t k, const char *p, size_t n)
{
    stage *s = &d->stages[k];
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0;) {
        if (s->num_partial == 0) {
            const size_t good = msgl__utf8_valid(p + i, n - i);
            if (good > 0) rc = frag(d, k + 1, p + i, good);
            i += good;
            if (i == n || rc != 0) break;
        }
        s->partial[s->num_partial] = p[i];
        const enum utf8_state state = utf8_state(s->partial, s->num_partial + 1);
        if (state == UTF8_BAD) {
            // The byte before the bad one ended a start of a character; a first byte is bad alone.
            if (s->num_partial == 0) i++;
            s->num_partial = 0;
            rc = frag(d, k + 1, replacement_char, 3);
            continue;
        }
        i++;
        s->num_partial++;
        if (state == UTF8_COMPLETE) {
            rc = frag(d, k + 1, s->partial, s->num_partial);
            s->num_partial = 0;
        }
    }
    return rc;
}

// A token in the byte-level alphabet gives its bytes, any other its own text.
static int byte_level_token(msgl_detok *d, size_t k, const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (msgl__char_byte(msgl__utf8_next(p, &i)) < 0) return byte_level_bytes(d, k, p, n);
    }
    char bytes[256];
    size_t m = 0;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0;) {
        bytes[m++] = (char)msgl__char_byte(msgl__utf8_next(p, &i));
        if (m < sizeof(bytes) && i < n) continue;
        rc = byte_level_bytes(d, k, bytes, m);
        m = 0;
    }
    return rc;
}

// The byte of "<0xNN>"; -1 for any other token. (Rust's from_str_radix takes "+F" too.)
static int fallback_byte(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>') return -1;
    int v = 0;
    for (size_t i = p[3] == '+' ? 4 : 3; i < 5; i++) {
        const int digit = msgl__hex_digit(p[i]);
        if (digit < 0) return -1;
        v = v << 4 | digit;
    }
    return v;
}

static int one_token(msgl_detok *d, size_t k, const char *p, size_t n)
{
    const int rc = frag(d, k, p, n);
    return rc != 0 ? rc : end_token(d, k);
}

// The run of byte tokens is over, or is known to be no text.
static int end_run(msgl_detok *d, size_t k, int broken)
{
    stage *s = &d->stages[k];
    if (s->run.len == 0) return 0;
    int rc = 0;
    if (!broken && s->run_valid == s->run.len) {
        rc = one_token(d, k + 1, s->run.data, s->run.len);
    } else {
        for (size_t i = 0; i < s->run.len && rc == 0; i++) {
            rc = one_token(d, k + 1, replacement_char, 3);
        }
    }
    msgl__strbuf_clear(&s->run);
    s->run_valid = 0;
    return rc;
}

static int fallback_token(msgl_detok *d, size_t k, const char *p, size_t n)
{
    stage *s = &d->stages[k];
    const int byte = fallback_byte(p, n);
    int rc;
    if (byte < 0) {
        rc = end_run(d, k, 0);
        s->run_broken = 0;
        return rc != 0 ? rc : one_token(d, k + 1, p, n);
    }
    if (s->run_broken) return one_token(d, k + 1, replacement_char, 3);
    rc = msgl__strbuf_addc(&s->run, (char)byte);
    if (rc != 0) return rc;
    const enum utf8_state state = utf8_state(s->run.data + s->run_valid, s->run.len - s->run_valid);
    if (state == UTF8_COMPLETE) s->run_valid = s->run.len;
    if (state != UTF8_BAD) return 0;
    s->run_broken = 1;
    return end_run(d, k, 1);
}

static int replace_token(msgl_detok *d, size_t k, const char *p, size_t n)
{
    const msgl_dec *dec = d->stages[k].d;
    const msgl_tok_str *text = &dec->pattern.text;
    msgl_regex_iter it = {0};
    size_t done = 0;
    int rc = 0;
    while (rc == 0 && n > 0) {
        size_t start, end;
        if (dec->pattern.scan != MSGL_SCAN_NONE) {
            if (done == n) break;
            start = done;
            end = msgl__scan_next(dec->pattern.scan, d->t->uni, p, n, done);
        } else if (dec->pattern.regex != NULL) {
            rc = msgl__regex_next(dec->pattern.regex, d->regex, p, n, &it, &start, &end);
            if (rc < 0) return rc;
            if (rc == 0) break;
        } else {
            const char *hit = memmem(p + done, n - done, text->p, text->n);
            if (hit == NULL) break;
            start = (size_t)(hit - p);
            end = start + text->n;
        }
        rc = frag(d, k + 1, p + done, start - done);
        if (rc == 0) rc = frag(d, k + 1, dec->content.p, dec->content.n);
        done = end;
    }
    if (rc == 0) rc = frag(d, k + 1, p + done, n - done);
    return rc != 0 ? rc : end_token(d, k + 1);
}

// Characters of a Strip stage: up to `start` of them go at the front; at the end up to `stop` are
// held back until something else follows.
static int strip_frag(msgl_detok *d, size_t k, const char *p, size_t n)
{
    stage *s = &d->stages[k];
    char ch[4];
    const size_t len = msgl__utf8_put(s->d->ch, ch);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0;) {
        const size_t at = i;
        const int same = msgl__utf8_next(p, &i) == s->d->ch;
        if (same && s->lead < s->d->start) {
            s->lead++;
            continue;
        }
        s->lead = s->d->start; // past the front
        if (same && s->pending < s->d->stop) {
            s->pending++;
            continue;
        }
        for (; !same && s->pending > 0 && rc == 0; s->pending--) rc = frag(d, k + 1, ch, len);
        if (rc == 0) rc = frag(d, k + 1, p + at, i - at);
    }
    return rc;
}

static int metaspace_frag(msgl_detok *d, size_t k, const char *p, size_t n)
{
    const stage *s = &d->stages[k];
    const int drop = s->index == 0 && s->d->prepend != MSGL_PREPEND_NEVER;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0;) {
        const size_t at = i;
        if (msgl__utf8_next(p, &i) != s->d->ch) {
            rc = frag(d, k + 1, p + at, i - at);
        } else if (!drop) {
            rc = frag(d, k + 1, " ", 1);
        }
    }
    return rc;
}

// Replaces `from`, everywhere and from the left, by what is no longer.
static void shorten(msgl_strbuf *b, const char *from, const char *to)
{
    const size_t n = strlen(from), m = strlen(to);
    size_t used = 0;
    for (size_t i = 0; i < b->len;) {
        if (b->len - i >= n && memcmp(b->data + i, from, n) == 0) {
            memcpy(b->data + used, to, m);
            used += m;
            i += n;
        } else {
            b->data[used++] = b->data[i++];
        }
    }
    b->len = used;
}

// A token that goes on a word joins what is before it, any other gets a space; cleanup takes spaces
// before punctuation and English contractions away, token by token.
static int wordpiece_token(msgl_detok *d, size_t k)
{
    static const char *const CLEAN[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                           {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                           {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                           {" 've", "'ve"}, {" 're", "'re"}};
    stage *s = &d->stages[k];
    const msgl_tok_str *prefix = &s->d->content;
    msgl_strbuf out;
    msgl__strbuf_init(&out, MAX_DECODED);
    const char *p = msgl__strbuf_str(&s->token);
    size_t n = s->token.len;
    int rc = 0;
    if (s->index > 0 && n >= prefix->n && memcmp(p, prefix->p, prefix->n) == 0) {
        p += prefix->n;
        n -= prefix->n;
    } else if (s->index > 0) {
        rc = msgl__strbuf_addc(&out, ' ');
    }
    s->index++;
    if (rc == 0) rc = msgl__strbuf_add(&out, p, n);
    for (size_t i = 0; i < sizeof CLEAN / sizeof CLEAN[0] && s->d->cleanup && rc == 0; i++) {
        shorten(&out, CLEAN[i][0], CLEAN[i][1]);
    }
    if (rc == 0 && out.len > 0) rc = frag(d, k + 1, out.data, out.len);
    msgl__strbuf_free(&out);
    return rc == 0 ? end_token(d, k + 1) : rc;
}

// Feeds a fragment (valid UTF-8) of the current token to stage k; behind the last stage is the
// output.
static int frag(msgl_detok *d, size_t k, const char *p, size_t n)
{
    if (n == 0) return 0;
    if (k == d->num_stages) return msgl__strbuf_add(d->out, p, n);
    stage *s = &d->stages[k];
    switch (s->d->type) {
    case MSGL_DEC_FUSE: return frag(d, k + 1, p, n);
    case MSGL_DEC_STRIP: return strip_frag(d, k, p, n);
    case MSGL_DEC_METASPACE: return metaspace_frag(d, k, p, n);
    case MSGL_DEC_BYTE_LEVEL:
    case MSGL_DEC_BYTE_FALLBACK:
    case MSGL_DEC_WORDPIECE:
    case MSGL_DEC_REPLACE: break;
    }
    return msgl__strbuf_add(&s->token, p, n);
}

static int end_token(msgl_detok *d, size_t k)
{
    if (k == d->num_stages) return 0;
    stage *s = &d->stages[k];
    const char *p = msgl__strbuf_str(&s->token);
    const size_t n = s->token.len;
    int rc = 0;
    switch (s->d->type) {
    case MSGL_DEC_FUSE: return 0;
    case MSGL_DEC_STRIP: s->lead = s->pending = 0; return end_token(d, k + 1);
    case MSGL_DEC_METASPACE: s->index++; return end_token(d, k + 1);
    case MSGL_DEC_BYTE_LEVEL: rc = byte_level_token(d, k, p, n); break;
    case MSGL_DEC_BYTE_FALLBACK: rc = fallback_token(d, k, p, n); break;
    case MSGL_DEC_REPLACE: rc = replace_token(d, k, p, n); break;
    case MSGL_DEC_WORDPIECE: rc = wordpiece_token(d, k); break;
    }
    msgl__strbuf_clear(&s->token);
    return rc;
}

msgl_detok *msgl__detok_create(const msgl_tokenizer *t, int skip_special)
{
    const size_t n = t->has_decoder ? t->num_decs : 0;
    msgl_detok *d = msgl__calloc(1, sizeof(*d) + n * sizeof(d->stages[0]));
    if (d == NULL) return NULL;
    d->t = t;
    d->skip_special = skip_special;
    d->num_stages = n;
    for (size_t k = 0; k < n; k++) {
        d->stages[k].d = &t->decs[k];
        msgl__strbuf_init(&d->stages[k].token, MAX_DECODED);
        msgl__strbuf_init(&d->stages[k].run, MAX_DECODED);
        if (t->decs[k].pattern.regex != NULL && d->regex == NULL) {
            d->regex = msgl__regex_ws_create();
            if (d->regex == NULL) {
                msgl__detok_destroy(d);
                return NULL;
            }
        }
    }
    return d;
}

void msgl__detok_destroy(msgl_detok *d)
{
    if (d == NULL) return;
    for (size_t k = 0; k < d->num_stages; k++) {
        msgl__strbuf_free(&d->stages[k].token);
        msgl__strbuf_free(&d->stages[k].run);
    }
    msgl__regex_ws_free(d->regex);
    msgl__free(d);
}

int msgl__detok_push(msgl_detok *d, int32_t id, msgl_strbuf *out)
{
    const msgl_tokenizer *t = d->t;
    if (id < 0 || id >= t->vocab_size) return MSGL_EINVAL;
    size_t n;
    const char *p = msgl__tok_text(t, id, &n);
    if (p == NULL || (d->skip_special && t->skip[id])) return 0;
    d->out = out;
    if (!t->has_decoder && d->num_tokens > 0) {
        const int rc = msgl__strbuf_addc(out, ' ');
        if (rc != 0) return rc;
    }
    d->num_tokens++;
    return one_token(d, 0, p, n);
}

int msgl__detok_finish(msgl_detok *d, msgl_strbuf *out)
{
    d->out = out;
    int rc = 0;
    for (size_t k = 0; k < d->num_stages && rc == 0; k++) {
        stage *s = &d->stages[k];
        switch (s->d->type) {
        case MSGL_DEC_BYTE_LEVEL:
            if (s->num_partial > 0) rc = frag(d, k + 1, replacement_char, 3);
            s->num_partial = 0;
            if (rc == 0) rc = end_token(d, k + 1); // it makes one token of all
            break;
        case MSGL_DEC_FUSE: rc = end_token(d, k + 1); break;
        case MSGL_DEC_BYTE_FALLBACK:
            rc = end_run(d, k, 0);
            s->run_broken = 0;
            break;
        case MSGL_DEC_REPLACE:
        case MSGL_DEC_STRIP:
        case MSGL_DEC_WORDPIECE:
        case MSGL_DEC_METASPACE: break;
        }
    }
    return rc;
}

int msgl__tokenizer_decode(const msgl_tokenizer *t, const int32_t *ids, size_t n, int skip_special,
                           msgl_strbuf *out, msgl_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocab_size) {
            return msgl__err_set(err, MSGL_EINVAL, "token id %d at index %zu is outside 0 to %d",
                                 (int)ids[i], i, (int)t->vocab_size - 1);
        }
    }
    msgl_detok *d = msgl__detok_create(t, skip_special);
    if (d == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const size_t start = out->len;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) rc = msgl__detok_push(d, ids[i], out);
    if (rc == 0) rc = msgl__detok_finish(d, out);
    msgl__detok_destroy(d);
    if (rc == 0) return 0;
    out->len = start;
    if (out->data != NULL) out->data[start] = '\0';
    return msgl__err_set(err, rc, "decoded text of %zu tokens: %s", n, msgl__status_text(rc));
}

// ---- bytes of one token ----

// Output that counts what does not fit.
typedef struct counted {
    char *buf;
    size_t cap, len;
} counted;

static void put_bytes(counted *c, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++, c->len++) {
        if (c->len < c->cap) c->buf[c->len] = p[i];
    }
}

// The characters of a token where each stage maps character by character: the first stage that
// knows a character decides. What depends on neighbours (Strip, a dropped first space) does not
// apply.
static void map_token(const msgl_tokenizer *t, const char *p, size_t n, counted *out)
{
    int byte_level = 0;
    for (size_t k = 0; k < t->num_decs; k++) {
        const msgl_dec *d = &t->decs[k];
        byte_level |= d->type == MSGL_DEC_BYTE_LEVEL;
        if (d->type != MSGL_DEC_WORDPIECE || n < d->content.n ||
            memcmp(p, d->content.p, d->content.n) != 0) {
            continue;
        }
        p += d->content.n;
        n -= d->content.n;
    }
    for (size_t i = 0; i < n && byte_level;) {
        if (msgl__char_byte(msgl__utf8_next(p, &i)) < 0) byte_level = 0;
    }
    for (size_t i = 0; i < n;) {
        const size_t at = i;
        const uint32_t cp = msgl__utf8_next(p, &i);
        const char byte = (char)msgl__char_byte(cp);
        const char *to = byte_level ? &byte : p + at;
        size_t len = byte_level ? 1 : i - at;
        for (size_t k = 0; k < t->num_decs && !byte_level; k++) {
            const msgl_dec *d = &t->decs[k];
            if (d->type == MSGL_DEC_METASPACE && d->ch == cp) {
                to = " ";
                len = 1;
                break;
            }
            const msgl_tok_str *text = &d->pattern.text;
            if (d->type == MSGL_DEC_REPLACE && d->pattern.regex == NULL && text->n <= n - at &&
                memcmp(p + at, text->p, text->n) == 0) {
                to = d->content.p;
                len = d->content.n;
                i = at + text->n;
                break;
            }
        }
        put_bytes(out, to, len);
    }
}

int msgl__tokenizer_token_bytes(const msgl_tokenizer *t, int32_t id, char *buf, size_t cap)
{
    if (id < 0 || id >= t->vocab_size) return -1;
    counted out = {buf, cap, 0};
    size_t n;
    const char *p = msgl__tok_text(t, id, &n);
    if (p == NULL) return 0;
    int fallback = -1;
    for (size_t k = 0; k < t->num_decs; k++) {
        if (t->decs[k].type == MSGL_DEC_BYTE_FALLBACK) fallback = fallback_byte(p, n);
    }
    if (fallback >= 0) {
        const char byte = (char)fallback;
        put_bytes(&out, &byte, 1);
    } else {
        map_token(t, p, n, &out);
    }
    return (int)out.len;
}

int32_t msgl__tokenizer_differs(const msgl_tokenizer *a, const msgl_tokenizer *b)
{
    const int32_t both = a->vocab_size < b->vocab_size ? a->vocab_size : b->vocab_size;
    for (int32_t id = 0; id < both; id++) {
        char of_a[256], of_b[256];
        const int n = msgl__tokenizer_token_bytes(a, id, of_a, sizeof of_a);
        const int m = msgl__tokenizer_token_bytes(b, id, of_b, sizeof of_b);
        if (n == 0 || m == 0) continue; // one of them has no such token
        const size_t seen = (size_t)n < sizeof of_a ? (size_t)n : sizeof of_a;
        if (n != m || memcmp(of_a, of_b, seen) != 0) return id;
    }
    return -1;
}
