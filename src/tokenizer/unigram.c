// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/unigram.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/workspace.h"

static const double UNKNOWN_PENALTY = 10; // below the lowest score, as in SentencePiece

typedef struct piece {
    const char *p;
    size_t n;
    int32_t id;
} piece;

static int by_bytes(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    const int order = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return order != 0 ? order : x->n < y->n ? -1 : x->n > y->n;
}

// sorted [num]: ids by the bytes of their tokens; where tokens of each first byte begin.
static void sort_pieces(msgl_unigram *u, piece *all, size_t num)
{
    qsort(all, num, sizeof *all, by_bytes);
    size_t at = 0;
    for (int b = 0; b < 256; b++) {
        u->first[b] = (uint32_t)at;
        while (at < num && (unsigned char)all[at].p[0] == b) at++;
    }
    u->first[256] = (uint32_t)num;
    for (size_t i = 0; i < num; i++) u->sorted[i] = all[i].id;
}

int msgl__unigram_build(msgl_tokenizer *t, msgl_err *err)
{
    msgl_unigram *u = &t->unigram;
    const msgl_strset *v = &t->bpe.vocab;
    piece *all = msgl__calloc(v->num_ids, sizeof *all);
    u->sorted = msgl__calloc(v->num_ids, sizeof *u->sorted);
    int rc =
        all == NULL || u->sorted == NULL ? msgl__err_set(err, MSGL_ENOMEM, "out of memory") : 0;
    size_t num = 0;
    double lowest = 0;
    for (size_t id = 0; id < v->num_ids && rc == 0; id++) {
        piece *one = &all[num];
        one->p = msgl__strset_at(v, (int32_t)id, &one->n);
        one->id = (int32_t)id;
        if (id == 0 || u->scores[id] < lowest) lowest = u->scores[id];
        if (one->p == NULL || one->n == 0) continue;
        num++;
        if (one->n > MSGL_UNIGRAM_MAX_PIECE) {
            rc = msgl__err_set(err, MSGL_ELIMIT, "model.vocab[%zu]: %zu bytes; at most %d", id,
                               one->n, MSGL_UNIGRAM_MAX_PIECE);
        }
    }
    if (rc == 0) sort_pieces(u, all, num);
    msgl__free(all);
    u->unk_score = lowest - UNKNOWN_PENALTY;
    for (unsigned b = 0; b < 256; b++) {
        char name[8];
        const int n = snprintf(name, sizeof name, "<0x%02X>", b);
        u->bytes[b] = u->byte_fallback ? msgl__strset_get(v, name, (size_t)n) : -1;
    }
    return rc;
}

void msgl__unigram_free(msgl_unigram *u)
{
    msgl__free(u->scores);
    msgl__free(u->sorted);
}

// Tokens [lo, hi) of the sorted ones that begin with the same `depth` bytes.
typedef struct range {
    uint32_t lo, hi;
} range;

// Byte `depth` of the i-th token; -1: it ends there.
static int byte_at(const msgl_tokenizer *t, uint32_t i, size_t depth)
{
    const msgl_strset *v = &t->bpe.vocab;
    const int32_t id = t->unigram.sorted[i];
    return depth < v->len[id] ? (unsigned char)v->pool[v->off[id] + depth] : -1;
}

// The first of them whose byte `depth` is `least` or more; r->hi: none.
static uint32_t lower(const msgl_tokenizer *t, const range *r, size_t depth, int least)
{
    uint32_t lo = r->lo, hi = r->hi;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (byte_at(t, mid, depth) < least) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

static void offer(msgl_lattice_node *to, double score, size_t start, int32_t id)
{
    if (to->id != MSGL_LATTICE_NONE && score <= to->score) return;
    *to = (msgl_lattice_node){.score = score, .start = (uint32_t)start, .id = id};
}

// Offers every token that p begins with at `at`, and, where none is one character, the unknown one.
static void offer_tokens(const msgl_tokenizer *t, const msgl_tok_ws *ws, const char *p, size_t n,
                         size_t at)
{
    const msgl_unigram *u = &t->unigram;
    const double so_far = ws->lattice[at].score;
    const unsigned char first = (unsigned char)p[at];
    const size_t one = msgl__utf8_len(first);
    bool single = false;
    range r = {u->first[first], u->first[first + 1]};
    for (size_t depth = 1; r.lo < r.hi; depth++) {
        const int32_t id = u->sorted[r.lo]; // the shortest one of the range comes first
        if (byte_at(t, r.lo, depth) < 0) {
            r.lo++;
            if (!(ws->guard != NULL && ws->guard[id])) {
                offer(&ws->lattice[at + depth], so_far + u->scores[id], at, id);
                single = single || depth == one;
            }
        }
        if (at + depth == n) break;
        const int next = (unsigned char)p[at + depth];
        r.lo = lower(t, &r, depth, next);
        r.hi = lower(t, &r, depth, next + 1);
    }
    if (!single) offer(&ws->lattice[at + one], so_far + u->unk_score, at, u->unk);
}

// A run of characters that are no tokens.
static int push_unknown(const msgl_tokenizer *t, const msgl_tok_ws *ws, const char *p, size_t n,
                        msgl_ids *out)
{
    const msgl_unigram *u = &t->unigram;
    bool all = u->byte_fallback;
    for (size_t i = 0; i < n && all; i++) all = u->bytes[(unsigned char)p[i]] >= 0;
    if (!all) return msgl__ws_push(ws, out, u->unk);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = msgl__ws_push(ws, out, u->bytes[(unsigned char)p[i]]);
    return rc;
}

// Turns the nodes' starts on the best way to n into ends: node i, if it is on it, then says in
// `start` where the token from i on ends, and in `id` which it is.
static void turn(msgl_lattice_node *nodes, size_t n)
{
    uint32_t end = (uint32_t)n;
    msgl_lattice_node at = nodes[n];
    while (end > 0) {
        const uint32_t start = at.start;
        const msgl_lattice_node before = nodes[start];
        nodes[start].start = end;
        nodes[start].id = at.id;
        end = start;
        at = before;
    }
}

int msgl__unigram_encode(const msgl_tokenizer *t, msgl_tok_ws *ws, const char *p, size_t n,
                         msgl_ids *out)
{
    int rc = n < UINT32_MAX ? msgl__tok_grow((void **)&ws->lattice, &ws->cap_lattice, n + 1,
                                             sizeof *ws->lattice)
                            : MSGL_ELIMIT;
    if (rc != 0) return rc;
    msgl_lattice_node *nodes = ws->lattice;
    nodes[0] = (msgl_lattice_node){0};
    for (size_t i = 1; i <= n; i++) nodes[i].id = MSGL_LATTICE_NONE;
    for (size_t i = 0; i < n; i += msgl__utf8_len((unsigned char)p[i])) {
        offer_tokens(t, ws, p, n, i);
    }
    turn(nodes, n);
    for (size_t i = 0; i < n && rc == 0;) {
        size_t end = nodes[i].start;
        if (nodes[i].id != t->unigram.unk) {
            rc = msgl__ws_push(ws, out, nodes[i].id);
        } else {
            while (end < n && nodes[end].id == t->unigram.unk) end = nodes[end].start;
            rc = push_unknown(t, ws, p + i, end - i, out);
        }
        i = end;
    }
    return rc;
}
