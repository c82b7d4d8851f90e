// SPDX-License-Identifier: Apache-2.0
#include "grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "tokenizer/tokenizer.h"

enum { NAME_MAX_BYTES = 64 }; // of a special token that is looked for

typedef struct sorted_token {
    const unsigned char *p;
    int32_t len, id;
} sorted_token;

static int token_order(const void *a, const void *b)
{
    const sorted_token *p = a, *q = b;
    const int c = memcmp(p->p, q->p, (size_t)(p->len < q->len ? p->len : q->len));
    if (c != 0) return c;
    if (p->len != q->len) return p->len < q->len ? -1 : 1;
    return (p->id > q->id) - (p->id < q->id);
}

static int32_t common(const sorted_token *a, const sorted_token *b)
{
    const int32_t n = a->len < b->len ? a->len : b->len;
    int32_t i = 0;
    while (i < n && a->p[i] == b->p[i]) i++;
    return i;
}

// ---- plain characters below a node ----

// Where a walk stands inside a character: how it began restricts its second byte.
enum { U_START, U_ONE, U_TWO, U_THREE, U_E0, U_ED, U_F0, U_F4, U_STATES, U_BAD = U_STATES };

static int plain_step(int u, uint8_t c)
{
    switch (u) {
    case U_START:
        if (c < 0x80) return c < 0x20 || c == '"' || c == '\\' ? U_BAD : U_START;
        if (c >= 0xc2 && c <= 0xdf) return U_ONE;
        if (c == 0xe0) return U_E0;
        if (c == 0xed) return U_ED;
        if (c >= 0xe1 && c <= 0xef) return U_TWO;
        if (c == 0xf0) return U_F0;
        if (c >= 0xf1 && c <= 0xf3) return U_THREE;
        return c == 0xf4 ? U_F4 : U_BAD;
    case U_ONE: return c >= 0x80 && c <= 0xbf ? U_START : U_BAD;
    case U_TWO: return c >= 0x80 && c <= 0xbf ? U_ONE : U_BAD;
    case U_THREE: return c >= 0x80 && c <= 0xbf ? U_TWO : U_BAD;
    case U_E0: return c >= 0xa0 && c <= 0xbf ? U_ONE : U_BAD;
    case U_ED: return c >= 0x80 && c <= 0x9f ? U_ONE : U_BAD;
    case U_F0: return c >= 0x90 && c <= 0xbf ? U_TWO : U_BAD;
    default: return c >= 0x80 && c <= 0x8f ? U_TWO : U_BAD;
    }
}

// From the leaves up: most[i][u] for a walk that comes to node i in state u.
static int find_plain(msgl_trie *t)
{
    const size_t n = (size_t)t->num_nodes;
    uint8_t(*most)[U_STATES] = msgl__calloc(n, sizeof *most);
    if (most == NULL) return MSGL_ENOMEM;
    for (int32_t i = t->num_nodes - 1; i >= 0; i--) {
        for (int u = 0; u < U_STATES; u++) {
            int best = 0;
            for (int32_t k = i + 1; k < i + t->size[i]; k += t->size[k]) {
                const int to = plain_step(u, t->byte[k]);
                const int below = to == U_BAD ? MSGL_TRIE_NOT_PLAIN : most[k][to];
                // A character counts where it begins: half of one may be the token's end.
                const int with = below + (u == U_START);
                if (with > best) best = with;
            }
            most[i][u] = best < MSGL_TRIE_NOT_PLAIN ? (uint8_t)best : MSGL_TRIE_NOT_PLAIN;
        }
        t->plain[i] = most[i][U_START];
    }
    msgl__free(most);
    return 0;
}

// Down from the root; u: room for a state per byte of the longest token.
static void find_from_root(msgl_trie *t, int32_t *u)
{
    u[0] = U_START;
    t->from_root[0] = 1;
    for (int32_t i = 1; i < t->num_nodes; i++) {
        const int d = t->depth[i];
        u[d] = u[d - 1] == U_BAD ? U_BAD : plain_step(u[d - 1], t->byte[i]);
        t->from_root[i] = u[d] == U_START;
    }
}

// Characters of a token, -1 where one of them is not plain. Half a character at the end counts.
static int32_t plain_chars(const char *p, int32_t n)
{
    int u = U_START;
    int32_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += u == U_START;
        u = plain_step(u, (uint8_t)p[i]);
        if (u == U_BAD) return -1;
    }
    return sum;
}

static void trie_free(msgl_trie *t)
{
    msgl__free(t->byte);
    msgl__free(t->depth);
    msgl__free(t->size);
    msgl__free(t->first);
    msgl__free(t->plain);
    msgl__free(t->from_root);
    msgl__free(t->tokens);
    *t = (msgl_trie){0};
}

static int trie_alloc(msgl_trie *t, size_t nodes, size_t tokens)
{
    t->byte = msgl__malloc(nodes);
    t->depth = msgl__reallocarray(NULL, nodes, sizeof *t->depth);
    t->size = msgl__reallocarray(NULL, nodes, sizeof *t->size);
    t->first = msgl__reallocarray(NULL, nodes + 1, sizeof *t->first);
    t->plain = msgl__malloc(nodes);
    t->from_root = msgl__malloc(nodes);
    t->tokens = msgl__reallocarray(NULL, tokens + 1, sizeof *t->tokens);
    return t->byte == NULL || t->depth == NULL || t->size == NULL || t->first == NULL ||
                   t->plain == NULL || t->from_root == NULL || t->tokens == NULL
               ? MSGL_ENOMEM
               : 0;
}

// toks sorted. path: room for a node per byte of the longest.
static int trie_build(msgl_trie *t, const sorted_token *toks, int32_t n, int32_t *path)
{
    int64_t nodes = 1;
    for (int32_t i = 0; i < n; i++) {
        nodes += toks[i].len - (i > 0 ? common(&toks[i - 1], &toks[i]) : 0);
    }
    if (nodes > INT32_MAX / 2) return MSGL_ELIMIT;
    if (trie_alloc(t, (size_t)nodes, (size_t)n) != 0) return MSGL_ENOMEM;
    t->byte[0] = 0;
    t->depth[0] = 0;
    t->first[0] = 0;
    t->num_nodes = 1;
    path[0] = 0;
    int32_t open = 0; // deepest node of path
    for (int32_t i = 0; i < n; i++) {
        const int32_t same = i > 0 ? common(&toks[i - 1], &toks[i]) : 0;
        for (; open > same; open--) t->size[path[open]] = t->num_nodes - path[open];
        for (int32_t k = same; k < toks[i].len; k++) {
            const int32_t node = t->num_nodes++;
            t->byte[node] = toks[i].p[k];
            t->depth[node] = (uint16_t)(k + 1);
            t->first[node] = i;
            path[k + 1] = node;
        }
        open = toks[i].len;
        t->tokens[i] = toks[i].id;
    }
    for (; open >= 0; open--) t->size[path[open]] = t->num_nodes - path[open];
    t->first[t->num_nodes] = n;
    find_from_root(t, path);
    return find_plain(t);
}

static bool is_eos(const msgl_grammar_vocab *v, int32_t id)
{
    for (int32_t i = 0; i < v->num_eos; i++) {
        if (v->eos[i] == id) return true;
    }
    return false;
}

static int32_t chars(const char *p, size_t n)
{
    int32_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((unsigned char)p[i] & 0xc0) != 0x80;
    return sum;
}

// Copies the bytes of what may be allowed; v->at and v->text.
static int copy_text(msgl_grammar_vocab *v, const msgl_grammar_token *tokens)
{
    size_t total = 0;
    for (int32_t i = 0; i < v->size; i++) {
        if (tokens[i].len <= MSGL_GRAMMAR_MAX_TOKEN && !is_eos(v, i)) total += tokens[i].len;
    }
    if (total > INT32_MAX) return MSGL_ELIMIT;
    v->text = msgl__malloc(total);
    if (v->text == NULL) return MSGL_ENOMEM;
    v->bytes += total;
    int32_t at = 0;
    for (int32_t i = 0; i < v->size; i++) {
        v->at[i] = at;
        const size_t n = tokens[i].len;
        if (n == 0 || n > MSGL_GRAMMAR_MAX_TOKEN || is_eos(v, i)) continue;
        memcpy(v->text + at, tokens[i].data, n);
        at += (int32_t)n;
        if ((int32_t)n > v->max_depth) v->max_depth = (int32_t)n;
    }
    v->at[v->size] = at;
    return 0;
}

// Whether a token is in a tree of msgl_grammar_vocab.trie.
static bool belongs(const char *p, int32_t len, int tree)
{
    const bool is_long = chars(p, (size_t)len) > MSGL_VOCAB_SHORT;
    if (tree < 2) return is_long == (tree == 1);
    const int32_t n = plain_chars(p, len);
    return !is_long && (n < 0 || n > MSGL_VOCAB_PLAIN(tree - 2));
}

static int build_tries(msgl_grammar_vocab *v)
{
    sorted_token *toks = msgl__reallocarray(NULL, (size_t)v->size + 1, sizeof *toks);
    int32_t *path = msgl__reallocarray(NULL, (size_t)v->max_depth + 1, sizeof *path);
    int rc = toks == NULL || path == NULL ? MSGL_ENOMEM : 0;
    for (int k = 0; k < 2 + MSGL_VOCAB_TREES && rc == 0; k++) {
        msgl_trie *t = &v->trie[k];
        int32_t n = 0;
        for (int32_t i = 0; i < v->size; i++) {
            const char *p = v->text + v->at[i];
            const int32_t len = v->at[i + 1] - v->at[i];
            if (len == 0 || !belongs(p, len, k)) continue;
            toks[n++] = (sorted_token){(const unsigned char *)p, len, i};
        }
        if (n > 0) qsort(toks, (size_t)n, sizeof *toks, token_order);
        rc = trie_build(t, toks, n, path);
        v->bytes += (size_t)t->num_nodes * 13 + (size_t)n * 4;
    }
    msgl__free(toks);
    msgl__free(path);
    return rc;
}

static int build_plain(msgl_grammar_vocab *v)
{
    const size_t words = ((size_t)v->size + 31) / 32;
    v->plain = msgl__calloc(MSGL_VOCAB_SHORT + 1, words * sizeof *v->plain);
    if (v->plain == NULL) return MSGL_ENOMEM;
    v->bytes += (MSGL_VOCAB_SHORT + 1) * words * sizeof *v->plain;
    for (int32_t i = 0; i < v->size; i++) {
        const int32_t len = v->at[i + 1] - v->at[i];
        const int32_t n = len > 0 ? plain_chars(v->text + v->at[i], len) : -1;
        for (int32_t k = n; k >= 0 && k <= MSGL_VOCAB_SHORT; k++) {
            msgl__bit_set(v->plain + (size_t)k * words, i);
        }
    }
    return 0;
}

int msgl__grammar_vocab_create(const msgl_grammar_token *tokens, int32_t vocab_size,
                               const int32_t *eos, int32_t num_eos, msgl_grammar_vocab **out,
                               msgl_err *err)
{
    *out = NULL;
    if (vocab_size <= 0 || num_eos < 0) {
        return msgl__err_set(err, MSGL_EINVAL, "a vocabulary of %d tokens; allowed: at least 1",
                             vocab_size);
    }
    for (int32_t i = 0; i < num_eos; i++) {
        if (eos[i] >= 0 && eos[i] < vocab_size) continue;
        return msgl__err_set(err, MSGL_EINVAL, "end token %d; allowed: 0 to %d", eos[i],
                             vocab_size - 1);
    }
    msgl_grammar_vocab *v = msgl__calloc(1, sizeof *v);
    if (v == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory for a vocabulary");
    atomic_init(&v->refs, 1);
    v->size = vocab_size;
    v->num_eos = num_eos;
    v->eos = msgl__reallocarray(NULL, (size_t)num_eos + 1, sizeof *v->eos);
    v->at = msgl__reallocarray(NULL, (size_t)vocab_size + 1, sizeof *v->at);
    v->bytes = sizeof *v + ((size_t)vocab_size + 1) * sizeof *v->at;
    int rc = v->eos == NULL || v->at == NULL ? MSGL_ENOMEM : 0;
    if (rc == 0 && num_eos > 0) memcpy(v->eos, eos, (size_t)num_eos * sizeof *eos);
    if (rc == 0) rc = copy_text(v, tokens);
    if (rc == 0) rc = build_tries(v);
    if (rc == 0) rc = build_plain(v);
    if (rc != 0) {
        msgl__grammar_vocab_unref(v);
        return msgl__err_set(err, rc, "vocabulary: %s", msgl__status_text(rc));
    }
    *out = v;
    return 0;
}

int msgl__grammar_vocab_show(msgl_grammar_vocab *v, const int32_t *ids,
                             const msgl_grammar_token *texts, int32_t n)
{
    size_t total = 0;
    for (int32_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= v->size || (i > 0 && ids[i] <= ids[i - 1]) ||
            texts[i].len > MSGL_GRAMMAR_MAX_TOKEN) {
            return MSGL_EINVAL;
        }
        total += texts[i].len;
    }
    if (total > INT32_MAX || v->shown != NULL) return MSGL_EINVAL;
    v->shown = msgl__reallocarray(NULL, (size_t)n + 1, sizeof *v->shown);
    v->shown_at = msgl__reallocarray(NULL, (size_t)n + 1, sizeof *v->shown_at);
    v->shown_text = msgl__malloc(total + 1);
    if (v->shown == NULL || v->shown_at == NULL || v->shown_text == NULL) return MSGL_ENOMEM;
    v->bytes += total + ((size_t)n + 1) * 2 * sizeof *v->shown;
    int32_t at = 0;
    for (int32_t i = 0; i < n; i++) {
        v->shown[i] = ids[i];
        v->shown_at[i] = at;
        if (texts[i].len > 0) memcpy(v->shown_text + at, texts[i].data, texts[i].len);
        at += (int32_t)texts[i].len;
    }
    v->shown_at[n] = at;
    v->num_shown = n;
    return 0;
}

const char *msgl__grammar_vocab_shown(const msgl_grammar_vocab *v, int32_t token, size_t *len)
{
    *len = 0;
    if (token < 0 || token >= v->size) return "";
    *len = (size_t)(v->at[token + 1] - v->at[token]);
    if (*len > 0) return v->text + v->at[token];
    int32_t from = 0, to = v->num_shown;
    while (from < to) {
        const int32_t mid = from + (to - from) / 2;
        if (v->shown[mid] < token) {
            from = mid + 1;
        } else {
            to = mid;
        }
    }
    if (from == v->num_shown || v->shown[from] != token) return "";
    *len = (size_t)(v->shown_at[from + 1] - v->shown_at[from]);
    return v->shown_text + v->shown_at[from];
}

// Special tokens as their names.
static int show_special(msgl_grammar_vocab *v, const msgl_tokenizer *t)
{
    const int32_t own = msgl__tokenizer_vocab_size(t), n = own < v->size ? own : v->size;
    int32_t num = 0;
    for (int32_t i = 0; i < n; i++) num += msgl__tokenizer_is_special(t, i) != 0;
    int32_t *ids = msgl__calloc((size_t)num + 1, sizeof *ids);
    msgl_grammar_token *texts = msgl__calloc((size_t)num + 1, sizeof *texts);
    char *names = msgl__calloc((size_t)num + 1, NAME_MAX_BYTES);
    int rc = ids == NULL || texts == NULL || names == NULL ? MSGL_ENOMEM : 0;
    int32_t at = 0;
    for (int32_t i = 0; i < n && at < num && rc == 0; i++) {
        if (!msgl__tokenizer_is_special(t, i)) continue;
        char *name = names + (size_t)at * NAME_MAX_BYTES;
        const int len = msgl__tokenizer_token_bytes(t, i, name, NAME_MAX_BYTES);
        ids[at] = i;
        // What is longer is no mark of anything.
        texts[at++] =
            (msgl_grammar_token){name, len > 0 && len <= NAME_MAX_BYTES ? (size_t)len : 0};
    }
    if (rc == 0) rc = msgl__grammar_vocab_show(v, ids, texts, num);
    msgl__free(ids);
    msgl__free(texts);
    msgl__free(names);
    return rc;
}

int msgl__grammar_vocab_from_tokenizer(const msgl_tokenizer *t, int32_t vocab_size,
                                       const int32_t *eos, int32_t num_eos,
                                       msgl_grammar_vocab **out, msgl_err *err)
{
    *out = NULL;
    const int32_t own = msgl__tokenizer_vocab_size(t);
    const int32_t size = vocab_size > 0 ? vocab_size : own;
    size_t cap = (size_t)1 << 16, used = 0;
    char *text = msgl__malloc(cap);
    msgl_grammar_token *tokens = msgl__calloc((size_t)size, sizeof *tokens);
    int rc = text == NULL || tokens == NULL ? MSGL_ENOMEM : 0;
    for (int32_t i = 0; i < own && i < size && rc == 0; i++) {
        if (msgl__tokenizer_is_special(t, i)) continue;
        const int n = msgl__tokenizer_token_bytes(t, i, text + used, cap - used);
        if (n <= 0 || n > MSGL_GRAMMAR_MAX_TOKEN) continue;
        if ((size_t)n > cap - used) {
            char *more = msgl__reallocarray(text, cap, 2);
            if (more == NULL) {
                rc = MSGL_ENOMEM;
                break;
            }
            text = more;
            cap *= 2;
            i--;
            continue;
        }
        tokens[i].len = (size_t)n;
        used += (size_t)n;
    }
    size_t at = 0; // text does not move any more
    for (int32_t i = 0; i < size && rc == 0; i++) {
        tokens[i].data = text + at;
        at += tokens[i].len;
    }
    rc = rc == 0 ? msgl__grammar_vocab_create(tokens, size, eos, num_eos, out, err)
                 : msgl__err_set(err, rc, "out of memory for a vocabulary");
    if (rc == 0 && (rc = show_special(*out, t)) != 0) {
        msgl__grammar_vocab_unref(*out);
        *out = NULL;
        rc = msgl__err_set(err, rc, "out of memory for a vocabulary");
    }
    msgl__free(text);
    msgl__free(tokens);
    return rc;
}

msgl_grammar_vocab *msgl__grammar_vocab_ref(msgl_grammar_vocab *v)
{
    atomic_fetch_add_explicit(&v->refs, 1, memory_order_relaxed);
    return v;
}

void msgl__grammar_vocab_unref(msgl_grammar_vocab *v)
{
    if (v == NULL || atomic_fetch_sub_explicit(&v->refs, 1, memory_order_acq_rel) != 1) return;
    for (int k = 0; k < 2 + MSGL_VOCAB_TREES; k++) trie_free(&v->trie[k]);
    msgl__free(v->plain);
    msgl__free(v->shown);
    msgl__free(v->shown_at);
    msgl__free(v->shown_text);
    msgl__free(v->eos);
    msgl__free(v->at);
    msgl__free(v->text);
    msgl__free(v);
}

int32_t msgl__grammar_vocab_size(const msgl_grammar_vocab *v)
{
    return v->size;
}

size_t msgl__grammar_vocab_bytes(const msgl_grammar_vocab *v)
{
    return v->bytes;
}
