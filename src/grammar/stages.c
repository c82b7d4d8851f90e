// SPDX-License-Identifier: Apache-2.0
#include "grammar/stages.h"

#include <jansson.h>
#include <string.h>

#include "core/mem.h"
#include "grammar/vocab.h"
#include "utils/json.h"
#include "utils/strbuf.h"

enum {
    SEEN_MAX = 4096, // bytes of a text that is looked for, and of a token behind it
    BLANK_MAX = 4,   // bytes of the white space that may come behind thoughts
};

struct msgl_stages {
    json_t *root; // an object
    bool thinking;
    int64_t budget; // -1: none
    // Arrays in root, or NULL.
    const json_t *open, *close, *away, *calls, *end, *opening, *behind;
};

typedef enum stage {
    START,   // at the beginning of the answer, or behind thoughts: what comes is not decided yet
    THINK,   // in thoughts
    FORCED,  // only the next token of `ids` may come
    GRAMMAR, // in a text of the grammar, or a call with a grammar
    FREE,    // any token may come up to the end
} stage;

struct msgl_staged {
    msgl_stages *s;
    msgl_grammar *answer, *calls; // references, or NULL
    msgl_grammar_vocab *v;        // a reference
    // In START and GRAMMAR. In START it is NULL without a grammar, or where the text so far is no
    // beginning of the grammar's.
    msgl_matcher *matcher;
    stage stage;
    bool thought;     // the thoughts have ended
    bool may_blank;   // START: white space may come
    msgl_strbuf seen; // START: the text so far; THINK: the last bytes of the thoughts
    // FORCED: the tokens that have to come, of which num_ids came. START: the same where all tokens
    // so far were these, else NULL.
    const json_t *ids;
    size_t num_ids;
    int64_t num_thoughts; // THINK: tokens of thoughts so far
};

// --- the text of stages ---

// Whether all of a list, which may be missing, are ids (or texts that `seen` has room for).
static bool all_of(const json_t *list, bool ids)
{
    if (list != NULL && !json_is_array(list)) return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t id = json_integer_value(v);
        const bool text = json_string_length(v) > 0 && json_string_length(v) < SEEN_MAX / 2;
        if (ids ? !json_is_integer(v) || id < 0 || id >= INT32_MAX : !text) return false;
    }
    return true;
}

int msgl__stages_parse(const char *text, msgl_stages **out, msgl_err *err)
{
    msgl_stages *s = msgl__calloc(1, sizeof *s);
    *out = NULL;
    if (s == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for a grammar");
    s->budget = -1;
    int rc = 0;
    if (*text != '\0') rc = msgl__json_parse("stages", text, strlen(text), 0, &s->root, err);
    if (rc == 0 && *text != '\0') {
        const json_t *budget = json_object_get(s->root, "budget");
        s->thinking = json_is_true(json_object_get(s->root, "thinking"));
        if (budget != NULL) s->budget = json_integer_value(budget);
        s->open = json_object_get(s->root, "open");
        s->close = json_object_get(s->root, "close");
        s->away = json_object_get(s->root, "away");
        s->calls = json_object_get(s->root, "calls");
        s->end = json_object_get(s->root, "end");
        s->opening = json_object_get(s->root, "opening");
        s->behind = json_object_get(s->root, "behind");
        const bool fine = all_of(s->open, false) && all_of(s->close, false) &&
                          all_of(s->away, false) && all_of(s->calls, false) &&
                          all_of(s->end, true) && all_of(s->opening, true) &&
                          all_of(s->behind, true) && s->budget >= -1;
        if (!fine)
            rc = msgl__err_set(err, MSGL_EFORMAT, "stages: not an object of the known members");
    }
    if (rc != 0) {
        msgl__stages_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void msgl__stages_free(msgl_stages *s)
{
    if (s == NULL) return;
    json_decref(s->root);
    msgl__free(s);
}

const char *msgl__stages_calls(const msgl_stages *s)
{
    return json_string_value(json_object_get(s->root, "grammar"));
}

// --- life ---

// Sets the stage in which the answer begins, or goes on behind its thoughts.
static int begin(msgl_staged *x)
{
    const msgl_stages *s = x->s;
    msgl__strbuf_clear(&x->seen);
    msgl__matcher_destroy(x->matcher);
    x->matcher = NULL;
    x->ids = x->thought && s->behind != NULL ? s->behind : s->opening;
    x->num_ids = 0;
    const bool forced = json_array_size(x->ids) > 0;
    if (!forced) x->ids = NULL;
    if (!forced && x->answer != NULL) {
        x->matcher = msgl__matcher_create(x->answer, x->v);
        if (x->matcher == NULL) return MSGL_ENOMEM;
    }
    const bool choice =
        (!x->thought && json_array_size(s->open) > 0) || json_array_size(s->calls) > 0;
    x->may_blank = x->thought && (forced || x->answer != NULL);
    if (choice || x->may_blank) {
        x->stage = START;
    } else {
        x->stage = forced ? FORCED : x->answer != NULL ? GRAMMAR : FREE;
    }
    return 0;
}

static int forced_done(msgl_staged *x);

static int end_thoughts(msgl_staged *x)
{
    x->stage = FORCED;
    x->ids = x->s->end;
    x->num_ids = 0;
    return forced_done(x);
}

static int think(msgl_staged *x)
{
    msgl__strbuf_clear(&x->seen);
    msgl__matcher_destroy(x->matcher);
    x->matcher = NULL;
    x->stage = THINK;
    x->num_thoughts = 0;
    return x->s->budget == 0 ? end_thoughts(x) : 0;
}

msgl_staged *msgl__staged_create(msgl_stages *s, msgl_grammar *answer, msgl_grammar *calls,
                                 msgl_grammar_vocab *v)
{
    msgl_staged *x = msgl__calloc(1, sizeof *x);
    if (x == NULL) {
        msgl__stages_free(s);
        return NULL;
    }
    x->s = s;
    x->answer = answer == NULL ? NULL : msgl__grammar_ref(answer);
    x->calls = calls == NULL ? NULL : msgl__grammar_ref(calls);
    x->v = msgl__grammar_vocab_ref(v);
    msgl__strbuf_init(&x->seen, SEEN_MAX);
    if ((s->thinking ? think(x) : begin(x)) == 0) return x;
    msgl__staged_destroy(x);
    return NULL;
}

void msgl__staged_destroy(msgl_staged *x)
{
    if (x == NULL) return;
    msgl__stages_free(x->s);
    msgl__matcher_destroy(x->matcher);
    msgl__grammar_unref(x->answer);
    msgl__grammar_unref(x->calls);
    msgl__grammar_vocab_unref(x->v);
    msgl__strbuf_free(&x->seen);
    msgl__free(x);
}

bool msgl__staged_is_finished(const msgl_staged *x)
{
    return x->stage == GRAMMAR && msgl__matcher_is_finished(x->matcher);
}

bool msgl__staged_is_free(const msgl_staged *x)
{
    return x->stage == FREE;
}

// --- texts ---

// Whether an answer has to have something behind its thoughts.
static bool is_bound(const msgl_staged *x)
{
    return x->answer != NULL || json_array_size(x->s->opening) > 0;
}

static bool is_blank(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r')) i++;
    return i == n;
}

static const char *text_at(const json_t *list, size_t i, size_t *len)
{
    const json_t *v = json_array_get(list, i);
    *len = json_string_length(v);
    return json_string_value(v);
}

// Whether seen is the beginning of a text of the list that is longer: "<to" is that of
// "<tool_call>". *whole is set to the length of a text that seen begins with, and left alone where
// there is none.
static bool may_come(const msgl_strbuf *seen, const json_t *list, size_t *whole)
{
    bool more = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        size_t len;
        const char *text = text_at(list, i, &len);
        const size_t n = len < seen->len ? len : seen->len;
        if (n > 0 && memcmp(text, seen->data, n) != 0) continue;
        if (len > seen->len) {
            more = true;
        } else {
            *whole = len;
        }
    }
    return more;
}

// Where the text of the list that ends first in seen ends: 11 for "</think>" in "ab </think>\n"; 0:
// none of them is there.
static size_t find(const msgl_strbuf *seen, const json_t *list)
{
    size_t best = 0;
    for (size_t i = 0; i < json_array_size(list) && seen->len > 0; i++) {
        size_t len;
        const char *text = text_at(list, i, &len);
        const char *at = memmem(seen->data, seen->len, text, len);
        const size_t end = at == NULL ? 0 : (size_t)(at - seen->data) + len;
        if (end > 0 && (best == 0 || end < best)) best = end;
    }
    return best;
}

// --- going on ---

// The beginning of a call came in place of the grammar's text: the first `used` bytes of seen.
static int begin_calls(msgl_staged *x, size_t used)
{
    msgl__matcher_destroy(x->matcher);
    x->matcher = NULL;
    x->stage = FREE;
    if (x->calls == NULL) return 0;
    x->stage = GRAMMAR;
    x->matcher = msgl__matcher_create(x->calls, x->v);
    if (x->matcher == NULL) return MSGL_ENOMEM;
    return msgl__matcher_accept_bytes(x->matcher, x->seen.data + used, x->seen.len - used);
}

// Accepts a token's text in START; token -1: the text is the rest of a token that ended the
// thoughts.
static int start_accept(msgl_staged *x, int32_t token, const char *text, size_t n)
{
    if (x->may_blank && n <= BLANK_MAX && is_blank(text, n)) {
        x->may_blank = false;
        return 0;
    }
    x->may_blank = false;
    int rc = msgl__strbuf_add(&x->seen, text, n);
    if (rc != 0) return rc;
    if (x->ids != NULL) {
        const json_t *next = json_array_get(x->ids, x->num_ids);
        const bool fits = next != NULL && token >= 0 && json_integer_value(next) == token;
        x->num_ids++;
        if (!fits) x->ids = NULL;
    }
    if (x->matcher != NULL) {
        rc = token >= 0 ? msgl__matcher_accept(x->matcher, token)
                        : msgl__matcher_accept_bytes(x->matcher, text, n);
        if (rc != 0 && rc != MSGL_EINVAL) return rc;
        if (rc != 0) {
            msgl__matcher_destroy(x->matcher);
            x->matcher = NULL;
        }
    }
    size_t opened = 0, called = 0;
    bool more = !x->thought && may_come(&x->seen, x->s->open, &opened);
    more |= may_come(&x->seen, x->s->calls, &called);
    if (opened > 0) return think(x);
    if (called > 0) return begin_calls(x, called);
    if (more) return 0;
    if (x->ids != NULL) {
        x->stage = FORCED;
        return forced_done(x);
    }
    x->stage = x->matcher != NULL ? GRAMMAR : FREE;
    // The grammar does not have this text, and no call begins with it.
    return x->stage == FREE && is_bound(x) ? MSGL_EINVAL : 0;
}

static int forced_done(msgl_staged *x)
{
    if (x->num_ids < json_array_size(x->ids)) return 0;
    if (x->ids == x->s->end) { // these tokens have ended the thoughts
        x->thought = true;
        const int rc = begin(x);
        x->may_blank = false;
        return rc;
    }
    x->ids = NULL;
    x->stage = x->answer != NULL ? GRAMMAR : FREE;
    if (x->answer == NULL) return 0;
    x->matcher = msgl__matcher_create(x->answer, x->v);
    return x->matcher == NULL ? MSGL_ENOMEM : 0;
}

static int think_accept(msgl_staged *x, const char *text, size_t n)
{
    // The text of a mark is shorter than SEEN_MAX / 2 (all_of), so that a mark which is there in
    // part is within the bytes that stay.
    if (x->seen.len > SEEN_MAX / 2) {
        const size_t keep = SEEN_MAX / 2;
        memmove(x->seen.data, x->seen.data + x->seen.len - keep, keep);
        x->seen.len = keep;
    }
    int rc = msgl__strbuf_add(&x->seen, text, n);
    if (rc != 0) return rc;
    const size_t closed = find(&x->seen, x->s->close), away = find(&x->seen, x->s->away);
    if (away > 0 && (closed == 0 || away < closed)) {
        x->stage = FREE;
        return 0;
    }
    if (closed > 0) {
        const size_t left = x->seen.len - closed;
        char rest[MSGL_GRAMMAR_MAX_TOKEN];
        if (left > sizeof rest) return MSGL_EINVAL;
        memcpy(rest, x->seen.data + closed, left);
        x->thought = true;
        rc = begin(x);
        return rc != 0 || is_blank(rest, left) || x->stage == FREE
                   ? rc
                   : start_accept(x, -1, rest, left);
    }
    return x->s->budget < 0 || ++x->num_thoughts < x->s->budget ? 0 : end_thoughts(x);
}

int msgl__staged_accept(msgl_staged *x, int32_t token)
{
    size_t n;
    const char *text = msgl__grammar_vocab_shown(x->v, token, &n);
    switch (x->stage) {
    case START: return start_accept(x, token, text, n);
    case THINK: return think_accept(x, text, n);
    case FORCED:
        if (json_integer_value(json_array_get(x->ids, x->num_ids)) != token) return MSGL_EINVAL;
        x->num_ids++;
        return forced_done(x);
    case GRAMMAR: return msgl__matcher_accept(x->matcher, token);
    default: return 0;
    }
}

// --- masks ---

static void set_all(const msgl_staged *x, uint32_t *bits, bool ends)
{
    const msgl_grammar_vocab *v = x->v;
    for (int32_t i = 0; i < v->size; i++) msgl__bit_set(bits, i);
    for (int32_t i = 0; i < v->num_eos && !ends; i++) {
        bits[v->eos[i] >> 5] &= ~(1u << (v->eos[i] & 31));
    }
}

// The bytes of a text behind those that have come.
typedef struct rest {
    const char *text;
    size_t len;
} rest;

// Allows the tokens with which seen becomes a longer beginning of a text of the list. The
// vocabulary is gone through once, however many texts there are: only the few tokens whose first
// byte is the next one of a text are compared with the texts.
static int set_towards(const msgl_staged *x, const json_t *list, uint32_t *bits)
{
    const size_t seen = x->seen.len, most = json_array_size(list);
    bool next[256] = {false};
    size_t n = 0;
    rest *rests = most == 0 ? NULL : msgl__calloc(most, sizeof *rests);
    if (most == 0) return 0;
    if (rests == NULL) return MSGL_ENOMEM;
    for (size_t i = 0; i < most; i++) {
        size_t len;
        const char *text = text_at(list, i, &len);
        if (len <= seen || (seen > 0 && memcmp(text, x->seen.data, seen) != 0)) continue;
        next[(unsigned char)text[seen]] = true;
        rests[n++] = (rest){text + seen, len - seen};
    }
    for (int32_t t = 0; t < x->v->size && n > 0; t++) {
        size_t len;
        const char *shown = msgl__grammar_vocab_shown(x->v, t, &len);
        if (len == 0 || !next[(unsigned char)shown[0]]) continue;
        size_t i = 0;
        while (i < n && (len > rests[i].len || memcmp(shown, rests[i].text, len) != 0)) i++;
        if (i < n) msgl__bit_set(bits, t);
    }
    msgl__free(rests);
    return 0;
}

static void set_blanks(const msgl_staged *x, uint32_t *bits)
{
    for (int32_t t = 0; t < x->v->size; t++) {
        size_t n;
        const char *shown = msgl__grammar_vocab_shown(x->v, t, &n);
        if (n > 0 && n <= BLANK_MAX && is_blank(shown, n)) msgl__bit_set(bits, t);
    }
}

// Forbids tokens that end the thoughts and have more than white space behind: after "</thi", the
// token "nk>{" would begin the grammar's text unseen by its mask.
static void clear_joined(const msgl_staged *x, uint32_t *bits)
{
    for (size_t i = 0; i < json_array_size(x->s->close); i++) {
        size_t len;
        const char *text = text_at(x->s->close, i, &len);
        size_t have = len - 1 < x->seen.len ? len - 1 : x->seen.len;
        while (have > 0 && memcmp(x->seen.data + x->seen.len - have, text, have) != 0) have--;
        for (int32_t t = 0; t < x->v->size && have > 0; t++) {
            size_t n;
            const char *shown = msgl__grammar_vocab_shown(x->v, t, &n);
            const size_t left = len - have;
            if (n <= left || memcmp(shown, text + have, left) != 0) continue;
            if (!is_blank(shown + left, n - left)) bits[t >> 5] &= ~(1u << (t & 31));
        }
    }
}

int msgl__staged_fill_mask(msgl_staged *x, uint32_t *bits)
{
    const size_t words = ((size_t)x->v->size + 31) / 32;
    const bool bound = is_bound(x);
    if (x->stage == GRAMMAR) return msgl__matcher_fill_mask(x->matcher, bits);
    memset(bits, 0, words * sizeof *bits);
    switch (x->stage) {
    case FORCED: {
        const json_int_t id = json_integer_value(json_array_get(x->ids, x->num_ids));
        if (id >= x->v->size) return MSGL_EINVAL;
        msgl__bit_set(bits, (int32_t)id);
        return 0;
    }
    case THINK:
        set_all(x, bits, !bound);
        if (bound) clear_joined(x, bits);
        return 0;
    case START: break;
    default: set_all(x, bits, true); return 0;
    }
    if (!bound) {
        set_all(x, bits, true);
        return 0;
    }
    int rc = x->matcher == NULL ? 0 : msgl__matcher_fill_mask(x->matcher, bits);
    if (rc != 0) return rc;
    if (x->ids != NULL && x->num_ids < json_array_size(x->ids)) {
        const json_int_t id = json_integer_value(json_array_get(x->ids, x->num_ids));
        if (id < x->v->size) msgl__bit_set(bits, (int32_t)id);
    }
    if (!x->thought) rc = set_towards(x, x->s->open, bits);
    if (rc == 0) rc = set_towards(x, x->s->calls, bits);
    if (x->may_blank) set_blanks(x, bits);
    return rc;
}

int32_t msgl__staged_look(msgl_staged *x, const int32_t *drafts, int32_t num, uint32_t *bits)
{
    const size_t words = ((size_t)x->v->size + 31) / 32;
    int32_t accepted = 0, filled = 0;
    if (x->stage != GRAMMAR) return 0;
    while (filled < num && msgl__matcher_accept(x->matcher, drafts[filled]) == 0) {
        accepted++;
        if (msgl__matcher_is_finished(x->matcher)) break; // an answer ends without a further token
        if (msgl__matcher_fill_mask(x->matcher, bits + (size_t)filled * words) != 0) break;
        filled++;
    }
    return msgl__matcher_rollback(x->matcher, accepted) == 0 ? filled : 0;
}
