// SPDX-License-Identifier: Apache-2.0
//
// SentencePiece's BPE has no list of merges: of all neighbours whose text together is a piece,
// those whose piece has the highest score are joined first. transformers turns that into merges,
// ordered by score, and this is its order (generate_merges): among the ways to cut one piece the
// longest first half comes first.
#include <math.h>
#include <stdlib.h>

#include "tokenizer/build.h"
#include "tokenizer/load_gguf.h"

// Trying every cut of a piece costs the square of its length; SentencePiece makes none of more than
// some dozen characters.
enum { MAX_PIECE = 512 };

typedef struct cut {
    float score;
    uint16_t left, right; // characters
    int32_t id, left_id, right_id;
} cut;

typedef struct cut_list {
    cut *at;
    size_t n, cap;
} cut_list;

static int by_rank(const void *a, const void *b)
{
    const cut *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    if (x->left != y->left) return x->left > y->left ? -1 : 1;
    if (x->right != y->right) return x->right > y->right ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

// The id of a piece; -1: p[0, n) is none, or none that merging gives.
static int32_t piece(const msgl_bpe *bpe, const float *scores, const char *p, size_t n)
{
    const int32_t id = msgl__strset_get(&bpe->vocab, p, n);
    return id >= 0 && !isnan(scores[id]) ? id : -1;
}

static int add_cuts(const msgl_bpe *bpe, const float *scores, int32_t id, cut_list *list)
{
    size_t n = 0, chars = 0;
    const char *p = msgl__strset_at(&bpe->vocab, id, &n);
    for (size_t i = 0; i < n; i += msgl__utf8_len((unsigned char)p[i])) chars++;
    size_t left = 0;
    for (size_t i = 0; i < n;) {
        i += msgl__utf8_len((unsigned char)p[i]);
        left++;
        const int32_t a = i < n ? piece(bpe, scores, p, i) : -1;
        const int32_t b = a >= 0 ? piece(bpe, scores, p + i, n - i) : -1;
        if (b < 0) continue;
        if (list->n == MSGL_TOK_MAX_MERGES) return MSGL_ELIMIT;
        if (list->n == list->cap &&
            msgl__tok_grow((void **)&list->at, &list->cap, list->n + 1, sizeof(*list->at)) != 0) {
            return MSGL_ENOMEM;
        }
        list->at[list->n++] = (cut){.score = scores[id],
                                    .left = (uint16_t)left,
                                    .right = (uint16_t)(chars - left),
                                    .id = id,
                                    .left_id = a,
                                    .right_id = b};
    }
    return 0;
}

static msgl_tok_str text_of(const msgl_bpe *bpe, int32_t id)
{
    msgl_tok_str s = {0};
    s.p = (char *)msgl__strset_at(&bpe->vocab, id, &s.n);
    return s;
}

int msgl__score_merges(msgl_bpe *bpe, const float *scores, bool by_piece, const char *name,
                       msgl_err *err)
{
    const msgl_model_names names = {.vocab = name, .merges = name};
    cut_list list = {0};
    int rc = 0;
    for (int32_t id = 0; (size_t)id < bpe->vocab.num_ids && rc == 0; id++) {
        if (isnan(scores[id])) continue;
        const size_t n = text_of(bpe, id).n;
        if (n > MAX_PIECE) {
            rc = msgl__err_set(err, MSGL_ELIMIT, "%s[%d]: %zu bytes; at most %d", name, (int)id, n,
                               MAX_PIECE);
        } else if ((rc = add_cuts(bpe, scores, id, &list)) != 0) {
            rc = msgl__err_set(err, rc, "%s: merges: %s", name, msgl__status_text(rc));
        }
    }
    if (rc == 0) rc = msgl__model_merges(bpe, &names, list.n, err);
    if (rc == 0 && list.n > 1) qsort(list.at, list.n, sizeof(*list.at), by_rank);
    for (size_t i = 0, rank = 0; i < list.n && rc == 0; i++) {
        const cut *c = &list.at[i];
        if (i > 0 && (!by_piece || c->id != c[-1].id)) rank = i;
        const msgl_tok_str left = text_of(bpe, c->left_id), right = text_of(bpe, c->right_id);
        msgl__model_pair(bpe, &left, &right, c->left_id, c->right_id, (uint32_t)rank, c->id);
    }
    msgl__free(list.at);
    return rc;
}
