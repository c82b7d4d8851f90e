// SPDX-License-Identifier: Apache-2.0
//
// Methods of strings. Positions are code points, as in Python; bytes keep their provenance.
#include <string.h>

#include "template/jinja_eval.h"

static int give(msgl_jstr *s, msgl_jval *out)
{
    *out = msgl__jstrval(s);
    return 0;
}

static int finish(msgl_jbuf *b, msgl_jval *out)
{
    msgl_jstr *s;
    MSGL_JTRY(msgl__jbuf_finish(b, &s));
    return give(s, out);
}

static int sub(msgl_jctx *c, const msgl_jstr *s, size_t from, size_t to, msgl_jval *out)
{
    msgl_jstr *r;
    MSGL_JTRY(msgl__jstr_sub(c, s, from, to - from, &r));
    return give(r, out);
}

// --- case ---
typedef enum case_mode { UPPER, LOWER, TITLE, CAPITALIZE, SWAP } case_mode;

static bool case_ignorable(int32_t cp)
{
    return cp == '\'' || cp == '.' || cp == ':' || cp == 0xb7 || cp == 0x2019;
}

// Greek capital sigma is a final sigma at the end of a word: behind a cased character, before none.
static bool final_sigma(const msgl_jstr *s, size_t at, size_t n)
{
    int32_t cp = ' ';
    do {
        if (at == 0) return false;
        do at--;
        while (((unsigned char)s->data[at] & 0xc0) == 0x80);
        msgl__jutf8_get(s->data + at, s->data + s->len, &cp);
        n += msgl__utf8_len((unsigned char)s->data[at]);
    } while (case_ignorable(cp));
    if (!msgl__jis_cased(cp)) return false;
    size_t i = at + n;
    do {
        if (i >= s->len) return true;
        i += msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
    } while (case_ignorable(cp));
    return !msgl__jis_cased(cp);
}

static int change_case(msgl_jctx *c, const msgl_jstr *s, case_mode mode, msgl_jval *out)
{
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jctx_chars(c, s->len));
    MSGL_JTRY(msgl__jbuf_new(c, s->len, &b));
    bool word = false; // the character before was cased
    for (size_t i = 0; i < s->len;) {
        int32_t cp, to[3];
        const size_t n = msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
        const bool first = mode == CAPITALIZE ? i == 0 : !word;
        int k;
        if (mode == UPPER || (mode == SWAP && msgl__jis_lower(cp))) {
            k = msgl__jto_upper(cp, to);
        } else if ((mode == TITLE || mode == CAPITALIZE) && first) {
            k = msgl__jto_title(cp, to);
        } else if (mode == SWAP && !msgl__jis_upper(cp)) {
            to[0] = cp;
            k = 1;
        } else if (cp == 0x3a3) {
            MSGL_JTRY(msgl__jctx_steps(c, 1));
            to[0] = final_sigma(s, i, n) ? 0x3c2 : 0x3c3;
            k = 1;
        } else {
            k = msgl__jto_lower(cp, to);
        }
        for (int j = 0; j < k; j++) {
            MSGL_JTRY(msgl__jbuf_add_cp(b, to[j], msgl__jstr_untrusted_at(s, i)));
        }
        word = msgl__jis_cased(cp);
        i += n;
    }
    return finish(b, out);
}

MSGL_JBUILTIN(str_upper)
{
    return change_case(c, self->as.s, UPPER, out);
}
MSGL_JBUILTIN(str_lower)
{
    return change_case(c, self->as.s, LOWER, out);
}
MSGL_JBUILTIN(str_title)
{
    return change_case(c, self->as.s, TITLE, out);
}
MSGL_JBUILTIN(str_capitalize)
{
    return change_case(c, self->as.s, CAPITALIZE, out);
}
MSGL_JBUILTIN(str_swapcase)
{
    return change_case(c, self->as.s, SWAP, out);
}

// --- stripping ---
static bool strippable(const msgl_jstr *chars, const char *p, size_t n)
{
    if (chars != NULL) return n <= chars->len && memmem(chars->data, chars->len, p, n) != NULL;
    int32_t cp;
    msgl__jutf8_get(p, p + n, &cp);
    return msgl__jis_space(cp);
}

static int strip(msgl_jctx *c, const msgl_jstr *s, const msgl_jval *arg, bool left, bool right,
                 msgl_jval *out)
{
    msgl_jstr *chars = NULL;
    if (arg->type != MSGL_J_UNSET && arg->type != MSGL_J_NONE) {
        MSGL_JTRY(msgl__jarg_str(c, arg, "strip", &chars));
    }
    size_t from = 0, to = s->len;
    while (left && from < to) {
        const size_t n = msgl__utf8_len((unsigned char)s->data[from]);
        if (!strippable(chars, s->data + from, n)) break;
        from += n;
    }
    while (right && to > from) {
        size_t p = to - 1;
        while (p > from && ((unsigned char)s->data[p] & 0xc0) == 0x80) p--;
        if (!strippable(chars, s->data + p, to - p)) break;
        to = p;
    }
    const size_t each = chars != NULL ? chars->len / 16 + 1 : 1;
    MSGL_JTRY(msgl__jctx_chars(c, (s->len - (to - from)) * each));
    return sub(c, s, from, to, out);
}

MSGL_JBUILTIN(str_strip)
{
    return strip(c, self->as.s, &arg[0], true, true, out);
}
MSGL_JBUILTIN(str_lstrip)
{
    return strip(c, self->as.s, &arg[0], true, false, out);
}
MSGL_JBUILTIN(str_rstrip)
{
    return strip(c, self->as.s, &arg[0], false, true, out);
}

static bool has_prefix(const msgl_jstr *s, const msgl_jstr *p)
{
    return p->len <= s->len && (p->len == 0 || memcmp(s->data, p->data, p->len) == 0);
}
static bool has_suffix(const msgl_jstr *s, const msgl_jstr *p)
{
    return p->len <= s->len &&
           (p->len == 0 || memcmp(s->data + s->len - p->len, p->data, p->len) == 0);
}

MSGL_JBUILTIN(str_removeprefix)
{
    msgl_jstr *s = self->as.s, *p;
    MSGL_JTRY(msgl__jarg_str(c, &arg[0], "removeprefix", &p));
    return sub(c, s, has_prefix(s, p) ? p->len : 0, s->len, out);
}
MSGL_JBUILTIN(str_removesuffix)
{
    msgl_jstr *s = self->as.s, *p;
    MSGL_JTRY(msgl__jarg_str(c, &arg[0], "removesuffix", &p));
    return sub(c, s, 0, s->len - (has_suffix(s, p) ? p->len : 0), out);
}

// The part of s that optional start and end arguments (code points) select. *empty: nothing, not
// even an empty match.
static int window(msgl_jctx *c, msgl_jstr *s, const msgl_jval *start, const msgl_jval *end,
                  size_t *from, size_t *to, bool *empty)
{
    const int64_t len = (int64_t)msgl__jstr_chars(s);
    int64_t a = 0, b = len;
    if (start->type != MSGL_J_NONE) MSGL_JTRY(msgl__jarg_int(c, start, 0, &a));
    if (end->type != MSGL_J_NONE) MSGL_JTRY(msgl__jarg_int(c, end, len, &b));
    if (a < 0) a = a + len < 0 ? 0 : a + len;
    if (b < 0) b = b + len < 0 ? 0 : b + len;
    if (b > len) b = len;
    *empty = a > b;
    *from = msgl__jstr_offset(s, (size_t)a);
    *to = msgl__jstr_offset(s, (size_t)b);
    return (size_t)len == s->len ? msgl__jctx_work(c, s->len) : msgl__jctx_chars(c, s->len);
}

static int edge_matches(msgl_jctx *c, const msgl_jval *self, const msgl_jval *arg, bool prefix,
                        msgl_jval *out)
{
    size_t from, to, n = 1;
    bool empty;
    const msgl_jval *options = arg;
    MSGL_JTRY(window(c, self->as.s, &arg[1], &arg[2], &from, &to, &empty));
    if (arg[0].type == MSGL_J_TUPLE) {
        options = arg[0].as.l->items;
        n = arg[0].as.l->len;
    }
    *out = msgl__jbool(false);
    for (size_t i = 0; i < n; i++) {
        msgl_jstr *p;
        MSGL_JTRY(msgl__jarg_str(c, &options[i], prefix ? "startswith" : "endswith", &p));
        if (empty) continue;
        const msgl_jstr part = {.data = self->as.s->data + from, .len = to - from};
        if (prefix ? has_prefix(&part, p) : has_suffix(&part, p)) *out = msgl__jbool(true);
    }
    return 0;
}

MSGL_JBUILTIN(str_startswith)
{
    return edge_matches(c, self, arg, true, out);
}
MSGL_JBUILTIN(str_endswith)
{
    return edge_matches(c, self, arg, false, out);
}

// --- searching ---
static size_t find_last(const msgl_jstr *s, const msgl_jstr *needle)
{
    if (needle->len > s->len) return SIZE_MAX;
    for (size_t i = s->len - needle->len + 1; i-- > 0;) {
        if (needle->len == 0 || memcmp(s->data + i, needle->data, needle->len) == 0) return i;
    }
    return SIZE_MAX;
}

static int locate(msgl_jctx *c, const msgl_jval *self, const msgl_jval *arg, bool last, bool must,
                  msgl_jval *out)
{
    msgl_jstr *s = self->as.s, *needle;
    size_t from, to, at = SIZE_MAX;
    bool empty;
    MSGL_JTRY(msgl__jarg_str(c, &arg[0], "find", &needle));
    MSGL_JTRY(window(c, s, &arg[1], &arg[2], &from, &to, &empty));
    MSGL_JTRY(last ? msgl__jctx_chars(c, s->len * (needle->len / 16 + 1))
                   : msgl__jctx_search(c, s->len, needle->len));
    const msgl_jstr part = {.data = s->data + from, .len = to - from};
    if (!empty) at = last ? find_last(&part, needle) : msgl__jstr_find(&part, needle, 0);
    if (at == SIZE_MAX && must) return msgl__jctx_fail(c, "substring not found");
    *out = msgl__jint(at == SIZE_MAX ? -1 : (int64_t)msgl__jstr_char_at(s, from + at));
    return 0;
}

MSGL_JBUILTIN(str_find)
{
    return locate(c, self, arg, false, false, out);
}
MSGL_JBUILTIN(str_rfind)
{
    return locate(c, self, arg, true, false, out);
}
MSGL_JBUILTIN(str_index)
{
    return locate(c, self, arg, false, true, out);
}
MSGL_JBUILTIN(str_rindex)
{
    return locate(c, self, arg, true, true, out);
}

MSGL_JBUILTIN(str_count)
{
    msgl_jstr *s = self->as.s, *needle;
    size_t from, to;
    bool empty;
    MSGL_JTRY(msgl__jarg_str(c, &arg[0], "count", &needle));
    MSGL_JTRY(window(c, s, &arg[1], &arg[2], &from, &to, &empty));
    const msgl_jstr part = {.data = s->data + from, .len = to - from};
    int64_t n = 0;
    if (needle->len == 0) {
        n = empty ? 0 : (int64_t)msgl__utf8_count(part.data, part.len) + 1;
    } else if (!empty) {
        size_t at = 0;
        MSGL_JTRY(msgl__jctx_search(c, part.len, needle->len));
        while ((at = msgl__jstr_find(&part, needle, at)) != SIZE_MAX) {
            MSGL_JTRY(msgl__jctx_steps(c, 1));
            n++;
            at += needle->len;
        }
    }
    *out = msgl__jint(n);
    return 0;
}

// --- replace, join ---
int msgl__jstr_replace(msgl_jctx *c, const msgl_jstr *s, const msgl_jstr *old,
                       const msgl_jstr *with, int64_t count, msgl_jval *out)
{
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jctx_search(c, s->len, old->len));
    MSGL_JTRY(msgl__jbuf_new(c, s->len, &b));
    size_t done = 0;
    if (old->len == 0) { // between all characters, and at both ends
        for (; count != 0; count--) {
            MSGL_JTRY(msgl__jctx_steps(c, 1));
            MSGL_JTRY(msgl__jbuf_add_jstr(b, with));
            if (done >= s->len) break;
            const size_t n = msgl__utf8_len((unsigned char)s->data[done]);
            MSGL_JTRY(msgl__jbuf_add_sub(b, s, done, n));
            done += n;
        }
    }
    for (; old->len > 0 && count != 0; count--) {
        const size_t at = msgl__jstr_find(s, old, done);
        if (at == SIZE_MAX) break;
        MSGL_JTRY(msgl__jctx_steps(c, 1));
        MSGL_JTRY(msgl__jbuf_add_sub(b, s, done, at - done));
        MSGL_JTRY(msgl__jbuf_add_jstr(b, with));
        done = at + old->len;
    }
    MSGL_JTRY(msgl__jbuf_add_sub(b, s, done, s->len - done));
    return finish(b, out);
}

MSGL_JBUILTIN(str_replace)
{
    msgl_jstr *old, *with;
    int64_t count;
    MSGL_JTRY(msgl__jarg_str(c, &arg[0], "replace", &old));
    MSGL_JTRY(msgl__jarg_str(c, &arg[1], "replace", &with));
    MSGL_JTRY(msgl__jarg_int(c, &arg[2], -1, &count));
    return msgl__jstr_replace(c, self->as.s, old, with, count, out);
}

MSGL_JBUILTIN(str_join)
{
    msgl_jval *items;
    size_t n;
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jto_array(c, &arg[0], &items, &n));
    MSGL_JTRY(msgl__jbuf_new(c, 0, &b));
    for (size_t i = 0; i < n; i++) {
        if (items[i].type != MSGL_J_STR) {
            return msgl__jctx_fail(c, "sequence item %zu: expected str instance, %s found", i,
                                   msgl__jtype_name(&items[i]));
        }
        if (i > 0) MSGL_JTRY(msgl__jbuf_add_jstr(b, self->as.s));
        MSGL_JTRY(msgl__jbuf_add_jstr(b, items[i].as.s));
        MSGL_JTRY(msgl__jctx_steps(c, 1));
    }
    return finish(b, out);
}

// --- splitting ---
typedef struct pieces {
    msgl_jctx *c;
    msgl_jval *items;
    size_t len, cap;
} pieces;

static int push_piece(pieces *p, const msgl_jstr *s, size_t from, size_t to)
{
    MSGL_JTRY(msgl__jctx_steps(p->c, 1));
    if (p->len == p->cap) {
        const size_t cap = p->cap ? p->cap * 2 : 8;
        msgl_jval *grown = msgl__jctx_alloc(p->c, cap * sizeof *grown);
        if (grown == NULL) return msgl__jctx_nomem(p->c, cap * sizeof *grown);
        if (p->len > 0) memcpy(grown, p->items, p->len * sizeof *grown);
        p->items = grown;
        p->cap = cap;
    }
    return sub(p->c, s, from, to, &p->items[p->len++]);
}

static int finish_pieces(pieces *p, bool reversed, msgl_jval *out)
{
    msgl_jlist *l;
    MSGL_JTRY(msgl__jlist_new(p->c, p->len, &l));
    for (size_t i = 0; i < p->len; i++) l->items[i] = p->items[reversed ? p->len - 1 - i : i];
    *out = (msgl_jval){.type = MSGL_J_LIST, .as.l = l};
    return 0;
}

static bool space_at(const msgl_jstr *s, size_t i, size_t *n)
{
    int32_t cp;
    *n = msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
    return msgl__jis_space(cp);
}

static int split_space(pieces *p, const msgl_jstr *s, int64_t max)
{
    size_t i = 0, n;
    for (;;) {
        while (i < s->len && space_at(s, i, &n)) i += n;
        if (i >= s->len) return 0;
        const size_t from = i;
        if (max-- == 0) return push_piece(p, s, from, s->len);
        while (i < s->len && !space_at(s, i, &n)) i += n;
        MSGL_JTRY(push_piece(p, s, from, i));
    }
}

// From the right; pieces come out last first.
static int rsplit_space(pieces *p, const msgl_jstr *s, int64_t max)
{
    size_t end = s->len, n;
    for (;;) {
        size_t from, q;
        for (; end > 0; end = q) {
            for (q = end - 1; q > 0 && ((unsigned char)s->data[q] & 0xc0) == 0x80;) q--;
            if (!space_at(s, q, &n)) break;
        }
        if (end == 0) return 0;
        if (max-- == 0) return push_piece(p, s, 0, end);
        for (from = end; from > 0; from = q) {
            for (q = from - 1; q > 0 && ((unsigned char)s->data[q] & 0xc0) == 0x80;) q--;
            if (space_at(s, q, &n)) break;
        }
        MSGL_JTRY(push_piece(p, s, from, end));
        end = from;
    }
}

static int split_sep(pieces *p, const msgl_jstr *s, const msgl_jstr *sep, int64_t max)
{
    size_t from = 0;
    for (; max != 0; max--) {
        const size_t at = msgl__jstr_find(s, sep, from);
        if (at == SIZE_MAX) break;
        MSGL_JTRY(push_piece(p, s, from, at));
        from = at + sep->len;
    }
    return push_piece(p, s, from, s->len);
}

static int rsplit_sep(pieces *p, const msgl_jstr *s, const msgl_jstr *sep, int64_t max)
{
    msgl_jstr left = *s;
    for (; max != 0; max--) {
        const size_t at = find_last(&left, sep);
        if (at == SIZE_MAX) break;
        MSGL_JTRY(push_piece(p, s, at + sep->len, left.len));
        left.len = at;
    }
    return push_piece(p, s, 0, left.len);
}

static int split(msgl_jctx *c, const msgl_jval *self, const msgl_jval *arg, bool right,
                 msgl_jval *out)
{
    pieces p = {.c = c};
    const msgl_jstr *s = self->as.s;
    int64_t max;
    MSGL_JTRY(msgl__jarg_int(c, &arg[1], -1, &max));
    if (arg[0].type == MSGL_J_UNSET || arg[0].type == MSGL_J_NONE) {
        MSGL_JTRY(msgl__jctx_chars(c, s->len));
        MSGL_JTRY(right ? rsplit_space(&p, s, max) : split_space(&p, s, max));
    } else {
        msgl_jstr *sep;
        MSGL_JTRY(msgl__jarg_str(c, &arg[0], "split", &sep));
        if (sep->len == 0) return msgl__jctx_fail(c, "empty separator");
        MSGL_JTRY(right ? msgl__jctx_chars(c, s->len * (sep->len / 16 + 1))
                        : msgl__jctx_search(c, s->len, sep->len));
        MSGL_JTRY(right ? rsplit_sep(&p, s, sep, max) : split_sep(&p, s, sep, max));
    }
    return finish_pieces(&p, right, out);
}

MSGL_JBUILTIN(str_split)
{
    return split(c, self, arg, false, out);
}
MSGL_JBUILTIN(str_rsplit)
{
    return split(c, self, arg, true, out);
}

int msgl__jstr_splitlines(msgl_jctx *c, const msgl_jstr *s, bool keep, msgl_jval *out)
{
    pieces p = {.c = c};
    size_t from = 0;
    MSGL_JTRY(msgl__jctx_chars(c, s->len));
    for (size_t i = 0; i < s->len;) {
        int32_t cp;
        const size_t end = i;
        i += msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
        if (!msgl__jis_line_end(cp)) continue;
        if (cp == '\r' && i < s->len && s->data[i] == '\n') i++;
        MSGL_JTRY(push_piece(&p, s, from, keep ? i : end));
        from = i;
    }
    if (from < s->len) MSGL_JTRY(push_piece(&p, s, from, s->len));
    return finish_pieces(&p, false, out);
}

MSGL_JBUILTIN(str_splitlines)
{
    return msgl__jstr_splitlines(c, self->as.s, msgl__jarg_true(&arg[0]), out);
}

static int partition(msgl_jctx *c, const msgl_jval *self, const msgl_jval *arg, bool right,
                     msgl_jval *out)
{
    const msgl_jstr *s = self->as.s;
    msgl_jstr *sep;
    msgl_jlist *l;
    MSGL_JTRY(msgl__jarg_str(c, &arg[0], "partition", &sep));
    if (sep->len == 0) return msgl__jctx_fail(c, "empty separator");
    MSGL_JTRY(right ? msgl__jctx_chars(c, s->len * (sep->len / 16 + 1))
                    : msgl__jctx_search(c, s->len, sep->len));
    const size_t at = right ? find_last(s, sep) : msgl__jstr_find(s, sep, 0);
    MSGL_JTRY(msgl__jlist_new(c, 3, &l));
    const bool found = at != SIZE_MAX;
    const size_t a = found ? at : right ? 0 : s->len, b = found ? at + sep->len : a;
    MSGL_JTRY(sub(c, s, 0, a, &l->items[0]));
    MSGL_JTRY(sub(c, s, a, b, &l->items[1]));
    MSGL_JTRY(sub(c, s, b, s->len, &l->items[2]));
    *out = (msgl_jval){.type = MSGL_J_TUPLE, .as.l = l};
    return 0;
}

MSGL_JBUILTIN(str_partition)
{
    return partition(c, self, arg, false, out);
}
MSGL_JBUILTIN(str_rpartition)
{
    return partition(c, self, arg, true, out);
}

// --- padding ---
int msgl__jstr_pad(msgl_jctx *c, msgl_jstr *s, int64_t width, const msgl_jstr *fill, char align,
                   msgl_jval *out)
{
    const int64_t len = (int64_t)msgl__jstr_chars(s);
    if (width <= len) return give(s, out);
    const size_t pad = (size_t)(width - len);
    // Python's str.center puts the odd blank left when the width is odd.
    size_t left = align == '<' ? 0 : align == '>' ? pad : pad / 2 + (pad & (size_t)width & 1);
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jbuf_new(c, 0, &b));
    MSGL_JTRY(msgl__jbuf_add_repeat(b, fill, left));
    MSGL_JTRY(msgl__jbuf_add_jstr(b, s));
    MSGL_JTRY(msgl__jbuf_add_repeat(b, fill, pad - left));
    return finish(b, out);
}

static int justify(msgl_jctx *c, const msgl_jval *self, const msgl_jval *arg, char align,
                   msgl_jval *out)
{
    int64_t width;
    msgl_jstr *fill;
    MSGL_JTRY(msgl__jarg_int(c, &arg[0], 0, &width));
    if (arg[1].type == MSGL_J_UNSET) {
        MSGL_JTRY(msgl__jstr_ref(c, " ", 1, false, &fill));
    } else {
        MSGL_JTRY(msgl__jarg_str(c, &arg[1], "fill character", &fill));
    }
    if (msgl__jstr_chars(fill) != 1) {
        return msgl__jctx_fail(c, "The fill character must be exactly one character long");
    }
    return msgl__jstr_pad(c, self->as.s, width, fill, align, out);
}

MSGL_JBUILTIN(str_ljust)
{
    return justify(c, self, arg, '<', out);
}
MSGL_JBUILTIN(str_rjust)
{
    return justify(c, self, arg, '>', out);
}
MSGL_JBUILTIN(str_center)
{
    return justify(c, self, arg, '^', out);
}

MSGL_JBUILTIN(str_zfill)
{
    msgl_jstr *s = self->as.s, *zero, *body;
    int64_t width;
    MSGL_JTRY(msgl__jarg_int(c, &arg[0], 0, &width));
    MSGL_JTRY(msgl__jstr_ref(c, "0", 1, false, &zero));
    const size_t sign = s->len > 0 && (s->data[0] == '-' || s->data[0] == '+');
    MSGL_JTRY(msgl__jstr_sub(c, s, sign, s->len - sign, &body));
    msgl_jval padded;
    MSGL_JTRY(msgl__jstr_pad(c, body, width - (int64_t)sign, zero, '>', &padded));
    msgl_jstr *head, *all;
    MSGL_JTRY(msgl__jstr_sub(c, s, 0, sign, &head));
    MSGL_JTRY(msgl__jstr_concat(c, head, padded.as.s, &all));
    return give(all, out);
}

MSGL_JBUILTIN(str_expandtabs)
{
    const msgl_jstr *s = self->as.s;
    int64_t size, column = 0;
    msgl_jstr *blank;
    msgl_jbuf *b;
    MSGL_JTRY(msgl__jarg_int(c, &arg[0], 8, &size));
    MSGL_JTRY(msgl__jctx_chars(c, s->len));
    MSGL_JTRY(msgl__jstr_ref(c, " ", 1, false, &blank));
    MSGL_JTRY(msgl__jbuf_new(c, s->len, &b));
    for (size_t i = 0; i < s->len;) {
        const size_t n = msgl__utf8_len((unsigned char)s->data[i]);
        if (s->data[i] == '\t') {
            const int64_t k = size > 0 ? size - column % size : 0;
            MSGL_JTRY(msgl__jbuf_add_repeat(b, blank, (size_t)k));
            column += k;
        } else {
            column = s->data[i] == '\n' || s->data[i] == '\r' ? 0 : column + 1;
            MSGL_JTRY(msgl__jbuf_add_sub(b, s, i, n));
        }
        i += n;
    }
    return finish(b, out);
}

MSGL_JBUILTIN(str_format)
{
    return msgl__jformat_braces(c, self->as.s, call, out);
}

// --- questions about all characters ---
static int every(msgl_jctx *c, const msgl_jstr *s, bool (*is)(int32_t), bool empty, msgl_jval *out)
{
    bool yes = s->len > 0 || empty;
    for (size_t i = 0; i < s->len && yes;) {
        int32_t cp;
        i += msgl__jutf8_get(s->data + i, s->data + s->len, &cp);
        yes = is(cp);
    }
    *out = msgl__jbool(yes);
    return msgl__jctx_chars(c, s->len);
}

static bool is_ascii(int32_t cp)
{
    return cp < 0x80;
}

MSGL_JBUILTIN(str_isspace)
{
    return every(c, self->as.s, msgl__jis_space, false, out);
}
MSGL_JBUILTIN(str_isalpha)
{
    return every(c, self->as.s, msgl__jis_alpha, false, out);
}
MSGL_JBUILTIN(str_isalnum)
{
    return every(c, self->as.s, msgl__jis_alnum, false, out);
}
MSGL_JBUILTIN(str_isdigit)
{
    return every(c, self->as.s, msgl__jis_digit, false, out);
}
MSGL_JBUILTIN(str_isascii)
{
    return every(c, self->as.s, is_ascii, true, out);
}
MSGL_JBUILTIN(str_isprintable)
{
    return every(c, self->as.s, msgl__jis_printable, true, out);
}

static int case_test(msgl_jctx *c, const msgl_jval *self, const char *name, msgl_jval *out)
{
    const msgl_jcall none = {0};
    return msgl__jbuiltin_call(c, msgl__jtest_find(name, strlen(name)), self, &none, out);
}

MSGL_JBUILTIN(str_islower)
{
    return case_test(c, self, "lower", out);
}
MSGL_JBUILTIN(str_isupper)
{
    return case_test(c, self, "upper", out);
}

static const msgl_jbuiltin METHODS[] = {
    {"split", "?sep ?maxsplit", str_split},
    {"strip", "?chars", str_strip},
    {"lstrip", "?chars", str_lstrip},
    {"rstrip", "?chars", str_rstrip},
    {"startswith", "prefix ?start ?end", str_startswith},
    {"endswith", "suffix ?start ?end", str_endswith},
    {"replace", "old new ?count", str_replace},
    {"join", "iterable", str_join},
    {"upper", "", str_upper},
    {"lower", "", str_lower},
    {"title", "", str_title},
    {"capitalize", "", str_capitalize},
    {"swapcase", "", str_swapcase},
    {"rsplit", "?sep ?maxsplit", str_rsplit},
    {"splitlines", "?keepends", str_splitlines},
    {"partition", "sep", str_partition},
    {"rpartition", "sep", str_rpartition},
    {"removeprefix", "prefix", str_removeprefix},
    {"removesuffix", "suffix", str_removesuffix},
    {"find", "sub ?start ?end", str_find},
    {"rfind", "sub ?start ?end", str_rfind},
    {"index", "sub ?start ?end", str_index},
    {"rindex", "sub ?start ?end", str_rindex},
    {"count", "sub ?start ?end", str_count},
    {"format", "*", str_format},
    {"ljust", "width ?fillchar", str_ljust},
    {"rjust", "width ?fillchar", str_rjust},
    {"center", "width ?fillchar", str_center},
    {"zfill", "width", str_zfill},
    {"expandtabs", "?tabsize", str_expandtabs},
    {"isspace", "", str_isspace},
    {"isalpha", "", str_isalpha},
    {"isalnum", "", str_isalnum},
    {"isdigit", "", str_isdigit},
    {"isdecimal", "", str_isdigit},
    {"isnumeric", "", str_isdigit},
    {"isascii", "", str_isascii},
    {"isprintable", "", str_isprintable},
    {"islower", "", str_islower},
    {"isupper", "", str_isupper},
    {"casefold", "", str_lower},
};

const msgl_jbuiltin *msgl__jstr_method_find(const char *name, size_t len)
{
    return msgl__jbuiltin_in(METHODS, MSGL_COUNT(METHODS), name, len);
}
