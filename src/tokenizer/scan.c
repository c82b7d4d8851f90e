// SPDX-License-Identifier: Apache-2.0
//
// Each pattern is an ordered choice, so the scanner looks at the first character or two, picks the
// first alternative that can match there, and runs it; what backtracking would do is worked out in
// the comments.
#include "tokenizer/scan.h"

#include <string.h>

#include "utils/utf8.h"

enum { OTHER, LETTER, NUMBER, SPACE, NEWLINE };

// Classes of ASCII: L letter, N number, W white space, R carriage return or line feed.
enum { L = LETTER, N = NUMBER, W = SPACE, R = NEWLINE };
static const unsigned char ascii_class[128] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, W, R, W, W, R, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    W, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, N, N, N, N, N, N, N, N, N, N, 0, 0, 0, 0, 0, 0,
    0, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, 0, 0, 0, 0, 0,
    0, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, L, 0, 0, 0, 0, 0,
};

static const struct {
    enum msgl_scan scan;
    const char *pattern;
} known[] = {
    {MSGL_SCAN_GPT2,
     "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {MSGL_SCAN_QWEN2, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {MSGL_SCAN_LLAMA3, "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
                       " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
};

const char *msgl__scan_pattern(enum msgl_scan scan)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].scan == scan) return known[i].pattern;
    }
    return NULL;
}

enum msgl_scan msgl__scan_known(const char *pattern, size_t len)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strlen(known[i].pattern) == len && memcmp(known[i].pattern, pattern, len) == 0) {
            return known[i].scan;
        }
    }
    return MSGL_SCAN_NONE;
}

// Class of the character at text[*i]; moves *i past it.
static inline int class_next(const msgl_unicode *u, const char *text, size_t *i)
{
    const unsigned char c = (unsigned char)text[*i];
    if (c < 0x80) {
        *i += 1;
        return ascii_class[c];
    }
    const unsigned v = msgl__uni(u, msgl__utf8_next(text, i));
    const uint32_t bit = MSGL_GC_BIT(v & MSGL_UNI_GC);
    if ((bit & MSGL_GCS_L) != 0) return LETTER;
    if ((bit & MSGL_GCS_N) != 0) return NUMBER;
    return (v & MSGL_UNI_SPACE) != 0 ? SPACE : OTHER;
}

// End of the run of class `cls` from text[i] on.
static inline size_t run_of(const msgl_unicode *u, const char *text, size_t len, size_t i, int cls)
{
    size_t next = i;
    while (i < len && class_next(u, text, &next) == cls) i = next;
    return i;
}

static size_t newlines(const char *text, size_t len, size_t i)
{
    while (i < len && (text[i] == '\n' || text[i] == '\r')) i++;
    return i;
}

// 's 't 're 've 'm 'll 'd at text[pos] == '\'': the end, or pos when there is none. Without regard
// to case, U+017F (long s) is an s too.
static size_t contraction(const char *text, size_t len, size_t pos, int fold)
{
    const size_t left = len - pos;
    if (left < 2) return pos;
    unsigned char a = (unsigned char)text[pos + 1], b = left > 2 ? (unsigned char)text[pos + 2] : 0;
    if (fold) {
        if (a == 0xc5 && b == 0xbf) return pos + 3;
        if (a >= 'A' && a <= 'Z') a |= 0x20;
        if (b >= 'A' && b <= 'Z') b |= 0x20;
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return pos + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return pos + 3;
    return pos;
}

// \s+(?!\S)|\s+ on the white space text[pos, end): all of it at the end of the text, else all but
// the last character, which the next piece may take as its prefix; a single one stays whole.
static size_t spaces(const char *text, size_t len, size_t pos, size_t end)
{
    if (end == len) return end;
    const size_t last = msgl__utf8_prev(text, end);
    return last > pos ? last : end;
}

static size_t gpt2_next(const msgl_unicode *u, const char *text, size_t len, size_t pos)
{
    if (text[pos] == '\'') {
        const size_t end = contraction(text, len, pos, 0);
        if (end > pos) return end;
    }
    size_t i = pos;
    int cls = class_next(u, text, &i);
    if (text[pos] == ' ' && i < len) {
        size_t j = i;
        const int after = class_next(u, text, &j);
        if (after < SPACE) { // " ?" takes the space
            cls = after;
            i = j;
        }
    }
    if (cls < SPACE) return run_of(u, text, len, i, cls);
    for (size_t next = i; i < len && class_next(u, text, &next) >= SPACE; i = next) {
    }
    return spaces(text, len, pos, i);
}

static size_t cl100k_next(const msgl_unicode *u, const char *text, size_t len, size_t pos,
                          int max_digits)
{
    size_t i = pos;
    const int cls = class_next(u, text, &i);
    if (cls == LETTER) return run_of(u, text, len, i, LETTER);
    if (cls == NUMBER) {
        for (size_t next = i; --max_digits > 0 && i < len; i = next) {
            if (class_next(u, text, &next) != NUMBER) break;
        }
        return i;
    }
    if (text[pos] == '\'') {
        const size_t end = contraction(text, len, pos, 1);
        if (end > pos) return end;
    }
    size_t j = i;
    const int after = i < len ? class_next(u, text, &j) : NEWLINE;
    if (cls != NEWLINE && after == LETTER) return run_of(u, text, len, j, LETTER);
    if (cls == OTHER) return newlines(text, len, run_of(u, text, len, i, OTHER));
    if (text[pos] == ' ' && i < len && after == OTHER) {
        return newlines(text, len, run_of(u, text, len, j, OTHER));
    }
    // White space. \s*[\r\n]+ gives back until a newline is last: it ends after the last newline.
    size_t after_newline = cls == NEWLINE ? i : pos;
    for (size_t next = i; i < len; i = next) {
        const int c = class_next(u, text, &next);
        if (c < SPACE) break;
        if (c == NEWLINE) after_newline = next;
    }
    return after_newline > pos ? after_newline : spaces(text, len, pos, i);
}

size_t msgl__scan_next(enum msgl_scan scan, const msgl_unicode *u, const char *text, size_t len,
                       size_t pos)
{
    switch (scan) {
    case MSGL_SCAN_GPT2: return gpt2_next(u, text, len, pos);
    case MSGL_SCAN_QWEN2: return cl100k_next(u, text, len, pos, 1);
    case MSGL_SCAN_LLAMA3: return cl100k_next(u, text, len, pos, 3);
    case MSGL_SCAN_NONE: break;
    }
    return len;
}
