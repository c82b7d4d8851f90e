// SPDX-License-Identifier: Apache-2.0
//
// Alternatives that begin alike share their beginning: as many texts may be open at a time as there
// are ways on from it, not as there are alternatives. What they begin with is text (of thousands of
// words, or of objects with the same first members), or the same expression. Rules are looked into
// where two of them begin with the same byte, but not inside of a counted region, whose count they
// do not have.
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "grammar/nfa_build.h"

enum {
    MAX_DEPTH = 40,       // beginnings after beginnings
    MAX_INLINED = 100000, // rules that are looked into in an automaton
    HEAD_HOPS = 8,
};

// What is left of an alternative: expressions one after the other.
typedef struct rest {
    int32_t expr, next; // next: in job.rests, -1: none
} rest;

typedef struct job {
    msgl_nfa_builder *x;
    rest *rests;
    int32_t num_rests, cap_rests;
} job;

// A literal, as an offset into the builder's text, and what follows it.
typedef struct word {
    const char *p; // while it is sorted
    int32_t at, n, rest;
} word;

typedef struct words {
    word *at;
    int32_t n, cap;
} words;

static int32_t add_rest(job *j, int32_t expr, int32_t next)
{
    msgl_gx_builder *b = j->x->b;
    if (msgl__gx_spend(b, 1, 0) != 0 ||
        msgl__gx_room(b, (void **)&j->rests, &j->cap_rests, (int64_t)j->num_rests + 1,
                      sizeof *j->rests) != 0) {
        return -1;
    }
    j->rests[j->num_rests] = (rest){expr, next};
    return j->num_rests++;
}

// The byte that an expression begins with, as far as that is plain; -1: it is not.
static int head(const msgl_gx_builder *b, int32_t expr)
{
    for (int hops = 0; hops < HEAD_HOPS && expr >= 0; hops++) {
        const msgl_gx *e = &b->ex[expr];
        switch (e->kind) {
        case MSGL_GX_LIT: return e->n > 0 ? (uint8_t)b->text[e->at] : -1;
        case MSGL_GX_SEQ:
        case MSGL_GX_ALT: expr = b->kids[e->at]; break;
        case MSGL_GX_REF: expr = b->rules[e->at].expr; break;
        default: return -1;
        }
    }
    return -1;
}

static void emit_rests(job *j, int32_t at, int32_t from, int32_t to)
{
    if (at < 0) msgl__nfa_go(j->x, from, MSGL_EPS_GO, to, 0);
    while (at >= 0 && j->x->b->rc == 0) {
        const rest r = j->rests[at];
        const int32_t next = r.next < 0 ? to : msgl__nfa_node(j->x);
        msgl__nfa_emit(j->x, r.expr, from, next);
        from = next;
        at = r.next;
    }
}

// One step into an alternative: its parts instead of itself, onto the list. False: it is as it is.
static bool open_up(job *j, int32_t at, msgl_gx_list *to, bool into_rules)
{
    msgl_gx_builder *b = j->x->b;
    const rest r = j->rests[at];
    const msgl_gx e = b->ex[r.expr];
    if (e.kind == MSGL_GX_SEQ) {
        int32_t next = r.next;
        for (int32_t i = e.n - 1; i >= 0; i--) next = add_rest(j, b->kids[e.at + i], next);
        msgl__gx_list_add(b, to, next);
        return true;
    }
    // What follows alternatives would be there as often as there are of them: a call at most.
    const bool short_rest = r.next < 0 || (j->rests[r.next].next < 0 &&
                                           b->ex[j->rests[r.next].expr].kind == MSGL_GX_REF);
    if (e.kind == MSGL_GX_ALT && short_rest) {
        for (int32_t i = 0; i < e.n; i++) {
            msgl__gx_list_add(b, to, add_rest(j, b->kids[e.at + i], r.next));
        }
        return true;
    }
    if (e.kind == MSGL_GX_LIT && e.n == 0 && r.next >= 0) {
        msgl__gx_list_add(b, to, r.next);
        return true;
    }
    if (e.kind != MSGL_GX_REF || !into_rules || b->rules[e.at].expr < 0 || j->x->region >= 0 ||
        j->x->inlined >= MAX_INLINED) {
        return false;
    }
    j->x->inlined++;
    msgl__gx_list_add(b, to, add_rest(j, b->rules[e.at].expr, r.next));
    return true;
}

// Opens all items until none is a sequence or a list of alternatives; rules, where several begin
// with the same byte, once each round.
static void open_all(job *j, msgl_gx_list *items)
{
    msgl_gx_builder *b = j->x->b;
    for (int round = 0; round < HEAD_HOPS && b->rc == 0; round++) {
        int32_t heads[256] = {0};
        bool again = false;
        for (int32_t i = 0; i < items->n; i++) {
            const int32_t expr = j->rests[items->at[i]].expr;
            const int h = b->ex[expr].kind == MSGL_GX_REF ? head(b, expr) : -1;
            if (h >= 0) heads[h]++;
        }
        msgl_gx_list opened = {0};
        for (int32_t i = 0; i < items->n && b->rc == 0; i++) {
            const int32_t at = items->at[i], expr = j->rests[at].expr;
            const int h = b->ex[expr].kind == MSGL_GX_REF ? head(b, expr) : -1;
            if (open_up(j, at, &opened, h >= 0 && heads[h] > 1)) {
                again = true;
            } else {
                msgl__gx_list_add(b, &opened, at);
            }
        }
        msgl__gx_list_free(items);
        *items = opened;
        if (!again) break;
    }
}

static int word_order(const void *a, const void *b)
{
    const word *p = a, *q = b;
    const int32_t n = p->n < q->n ? p->n : q->n;
    const int c = n > 0 ? memcmp(p->p, q->p, (size_t)n) : 0;
    return c != 0 ? c : (p->n > q->n) - (p->n < q->n);
}

static void join(job *j, msgl_gx_list *items, int32_t from, int32_t to, int depth);

// What follows the words [i, end), which are the same.
static void join_words(job *j, const words *w, int32_t i, int32_t end, int32_t from, int32_t to,
                       int depth)
{
    msgl_gx_list rests = {0};
    bool ends = false;
    for (; i < end; i++) {
        if (w->at[i].rest < 0) ends = true;
        if (w->at[i].rest >= 0) msgl__gx_list_add(j->x->b, &rests, w->at[i].rest);
    }
    if (ends) msgl__nfa_go(j->x, from, MSGL_EPS_GO, to, 0);
    join(j, &rests, from, to, depth + 1);
}

// Words as a tree of their common beginnings.
static void emit_words(job *j, words *w, int32_t from, int32_t to, int depth)
{
    msgl_nfa_builder *x = j->x;
    int32_t longest = 0;
    for (int32_t i = 0; i < w->n; i++) {
        w->at[i].p = x->b->text + w->at[i].at;
        if (w->at[i].n > longest) longest = w->at[i].n;
    }
    int32_t *path = msgl__reallocarray(NULL, (size_t)longest + 1, sizeof *path);
    if (path == NULL) {
        msgl__gx_fail(x->b, MSGL_ENOMEM, "out of memory for a grammar");
        return;
    }
    qsort(w->at, (size_t)w->n, sizeof *w->at, word_order);
    path[0] = from;
    for (int32_t i = 0, end; i < w->n && x->b->rc == 0; i = end) {
        const char *p = x->b->text + w->at[i].at;
        const int32_t n = w->at[i].n;
        int32_t same = 0;
        if (i > 0) {
            const char *before = x->b->text + w->at[i - 1].at;
            const int32_t most = n < w->at[i - 1].n ? n : w->at[i - 1].n;
            while (same < most && p[same] == before[same]) same++;
        }
        for (int32_t k = same; k < n && x->b->rc == 0; k++) {
            path[k + 1] = msgl__nfa_node(x);
            msgl__nfa_range(x, path[k], (uint8_t)p[k], (uint8_t)p[k], path[k + 1]);
        }
        end = i + 1;
        while (end < w->n && w->at[end].n == n &&
               memcmp(x->b->text + w->at[end].at, p, (size_t)n) == 0) {
            end++;
        }
        if (x->b->rc == 0) join_words(j, w, i, end, path[n], to, depth);
    }
    msgl__free(path);
}

static int by_number(const void *a, const void *b)
{
    const rest *p = a, *q = b;
    return p->expr != q->expr ? (p->expr > q->expr) - (p->expr < q->expr)
                              : (p->next > q->next) - (p->next < q->next);
}

// Items that begin with no text: those that begin with the same expression together.
static void emit_groups(job *j, rest *others, int32_t n, int32_t from, int32_t to, int depth)
{
    if (n > 1) qsort(others, (size_t)n, sizeof *others, by_number);
    for (int32_t i = 0, end; i < n && j->x->b->rc == 0; i = end) {
        end = i + 1;
        while (end < n && others[end].expr == others[i].expr) end++;
        const bool last = end == i + 1 && others[i].next < 0;
        const int32_t mid = last ? to : msgl__nfa_node(j->x);
        msgl__nfa_emit(j->x, others[i].expr, from, mid);
        if (last) continue;
        msgl_gx_list rests = {0};
        bool ends = false;
        for (int32_t k = i; k < end; k++) {
            if (others[k].next < 0) ends = true;
            if (others[k].next >= 0) msgl__gx_list_add(j->x->b, &rests, others[k].next);
        }
        if (ends) msgl__nfa_go(j->x, mid, MSGL_EPS_GO, to, 0);
        join(j, &rests, mid, to, depth + 1);
    }
}

// All items from `from` to `to`; frees them.
static void join(job *j, msgl_gx_list *items, int32_t from, int32_t to, int depth)
{
    msgl_gx_builder *b = j->x->b;
    if (items->n == 1 || depth > MAX_DEPTH) {
        for (int32_t i = 0; i < items->n; i++) emit_rests(j, items->at[i], from, to);
        msgl__gx_list_free(items);
        return;
    }
    open_all(j, items);
    words w = {0};
    rest *others = NULL;
    int32_t num_others = 0, cap_others = 0;
    for (int32_t i = 0; i < items->n && b->rc == 0; i++) {
        const rest r = j->rests[items->at[i]];
        const msgl_gx *e = &b->ex[r.expr];
        if (e->kind == MSGL_GX_LIT) {
            if (msgl__gx_room(b, (void **)&w.at, &w.cap, (int64_t)w.n + 1, sizeof *w.at) != 0)
                break;
            w.at[w.n++] = (word){NULL, e->at, e->n, r.next};
        } else if (msgl__gx_room(b, (void **)&others, &cap_others, (int64_t)num_others + 1,
                                 sizeof *others) == 0) {
            others[num_others++] = r;
        }
    }
    msgl__gx_list_free(items);
    if (b->rc == 0 && w.n > 0) emit_words(j, &w, from, to, depth);
    if (b->rc == 0) emit_groups(j, others, num_others, from, to, depth);
    msgl__free(w.at);
    msgl__free(others);
    msgl__gx_give_back(b, (size_t)w.cap * sizeof *w.at + (size_t)cap_others * sizeof *others);
}

void msgl__nfa_alt(msgl_nfa_builder *x, int32_t id, int32_t from, int32_t to)
{
    const msgl_gx e = x->b->ex[id];
    job j = {.x = x};
    msgl_gx_list items = {0};
    for (int32_t i = 0; i < e.n && x->b->rc == 0; i++) {
        const int32_t at = add_rest(&j, x->b->kids[e.at + i], -1);
        msgl__gx_list_add(x->b, &items, at);
    }
    join(&j, &items, from, to, 0);
    msgl__free(j.rests);
    msgl__gx_give_back(x->b, (size_t)j.cap_rests * sizeof *j.rests);
}
