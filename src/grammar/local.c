// SPDX-License-Identifier: Apache-2.0
#include "grammar/local.h"

#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "utils/hash.h"

enum {
    MAX_REST = 1 << 16, // pairs (token, place where it pops the stack)
    MAX_OUT = 1 << 17,  // nodes of the tree that do
};

static inline void set_range(const msgl_trie *t, int32_t first, int32_t end, uint32_t *bits)
{
    for (int32_t k = first; k < end; k++) msgl__bit_set(bits, t->tokens[k]);
}

int msgl__trie_walk(const msgl_trie *t, msgl_pda *p, int32_t state, int32_t *states, uint32_t *bits)
{
    states[0] = state;
    for (int32_t i = 1; i < t->num_nodes;) {
        const int32_t depth = t->depth[i];
        const int32_t to = msgl__pda_step(p, states[depth - 1], t->byte[i]);
        if (to == MSGL_STATE_DEAD) {
            if (p->rc != 0) return p->rc;
            i += t->size[i];
            continue;
        }
        states[depth] = to;
        set_range(t, t->first[i], t->first[i + 1], bits);
        i++;
    }
    return p->rc;
}

// ---- the walk that makes a msgl_local ----

typedef struct rest_pair {
    const unsigned char *p;
    int32_t n, token;
} rest_pair;

typedef struct walk {
    msgl_pda *p;
    const msgl_grammar_vocab *v;
    uint32_t *bits;
    int32_t *out_node; // nodes at which the stack is popped, of both trees
    uint8_t *out_tree;
    int32_t num_out, cap_out;
    rest_pair *pairs;
    int32_t num_pairs, cap_pairs;
    bool too_large;
    // What is known of a state of the automaton, +2: MSGL_NODE_OUT is in it, and how many plain
    // characters may come; the same few states come again and again.
    int32_t *plain;
    int32_t cap_plain;
} walk;

static int grow(void **p, int32_t *cap, int32_t need, size_t size)
{
    if (need <= *cap) return 0;
    const int32_t grown = need < 256 ? 256 : need * 2;
    void *q = msgl__reallocarray(*p, (size_t)grown, size);
    if (q == NULL) return MSGL_ENOMEM;
    *p = q;
    *cap = grown;
    return 0;
}

enum { PLAIN_UNKNOWN = -1, OUT_BIT = 1 << 30 };

// Plain characters of a state, at most 254, and OUT_BIT.
static int32_t facts(walk *w, int32_t state)
{
    if (state >= w->cap_plain) {
        const int32_t before = w->cap_plain;
        if (grow((void **)&w->plain, &w->cap_plain, state + 1, sizeof *w->plain) != 0) {
            w->p->rc = MSGL_ENOMEM;
            return 0;
        }
        for (int32_t i = before; i < w->cap_plain; i++) w->plain[i] = PLAIN_UNKNOWN;
    }
    if (w->plain[state] == PLAIN_UNKNOWN) {
        const int32_t n = msgl__pda_plain(w->p, state);
        w->plain[state] =
            (n < 254 ? n : 254) | (msgl__pda_has(w->p, state, MSGL_NODE_OUT) ? OUT_BIT : 0);
    }
    return w->plain[state];
}

static int note_out(walk *w, int32_t node, int tree)
{
    if (w->num_out >= MAX_OUT) {
        w->too_large = true;
        return 0;
    }
    int32_t cap = w->cap_out;
    if (grow((void **)&w->out_node, &cap, w->num_out + 1, sizeof *w->out_node) != 0 ||
        grow((void **)&w->out_tree, &w->cap_out, w->num_out + 1, 1) != 0) {
        return MSGL_ENOMEM;
    }
    w->out_node[w->num_out] = node;
    w->out_tree[w->num_out++] = (uint8_t)tree;
    return 0;
}

// base: the tokens that are plain are in the bits already, as many characters as `start` allows.
static int walk_tree(walk *w, int tree, int32_t start, bool base, int32_t *states)
{
    const msgl_trie *t = &w->v->trie[tree];
    states[0] = start;
    for (int32_t i = 1; i < t->num_nodes && !w->too_large;) {
        const int32_t depth = t->depth[i];
        const int32_t to = msgl__pda_step(w->p, states[depth - 1], t->byte[i]);
        if (to == MSGL_STATE_DEAD) {
            if (w->p->rc != 0) return w->p->rc;
            i += t->size[i];
            continue;
        }
        const int32_t f = facts(w, to);
        if (t->plain[i] <= (f & 0xff)) {
            if (!base || !t->from_root[i]) {
                set_range(t, t->first[i], t->first[i + t->size[i]], w->bits);
            }
            i += t->size[i];
            continue;
        }
        states[depth] = to;
        set_range(t, t->first[i], t->first[i + 1], w->bits);
        if ((f & OUT_BIT) != 0 && note_out(w, i, tree) != 0) return MSGL_ENOMEM;
        i++;
    }
    return w->p->rc;
}

// A string's beginning: tokens of as many plain characters as it takes are known, and most of the
// others are in a tree of their own.
static int walk_all(walk *w, int32_t start, bool with_long, int32_t *states)
{
    const size_t words = ((size_t)w->v->size + 31) / 32;
    const int32_t n = facts(w, start) & 0xff;
    int32_t short_tree = 0;
    if (n > 0) {
        const int32_t k = n < MSGL_VOCAB_SHORT ? n : MSGL_VOCAB_SHORT;
        memcpy(w->bits, w->v->plain + (size_t)k * words, words * sizeof *w->bits);
        for (int i = MSGL_VOCAB_TREES - 1; i >= 0; i--) {
            if (n >= MSGL_VOCAB_PLAIN(i)) short_tree = 2 + i;
        }
    }
    int rc = walk_tree(w, short_tree, start, n > 0, states);
    if (rc == 0 && with_long) rc = walk_tree(w, 1, start, false, states);
    return rc;
}

// What is left of the tokens behind the places where they popped the stack. Those that are allowed
// without popping it need no second way.
static int gather(walk *w)
{
    for (int32_t o = 0; o < w->num_out; o++) {
        const msgl_trie *t = &w->v->trie[w->out_tree[o]];
        const int32_t node = w->out_node[o];
        const int32_t end = t->first[node + t->size[node]];
        for (int32_t k = t->first[node + 1]; k < end; k++) {
            const int32_t token = t->tokens[k];
            if (msgl__bit_get(w->bits, token)) continue;
            if (w->num_pairs >= MAX_REST) {
                w->too_large = true;
                return 0;
            }
            if (grow((void **)&w->pairs, &w->cap_pairs, w->num_pairs + 1, sizeof *w->pairs) != 0) {
                return MSGL_ENOMEM;
            }
            const int32_t at = w->v->at[token] + t->depth[node];
            w->pairs[w->num_pairs++] = (rest_pair){(const unsigned char *)w->v->text + at,
                                                   w->v->at[token + 1] - at, token};
        }
    }
    return 0;
}

static int pair_order(const void *a, const void *b)
{
    const rest_pair *p = a, *q = b;
    const int c = memcmp(p->p, q->p, (size_t)(p->n < q->n ? p->n : q->n));
    if (c != 0) return c;
    if (p->n != q->n) return p->n < q->n ? -1 : 1;
    return (p->token > q->token) - (p->token < q->token);
}

static int32_t same_start(const rest_pair *a, const rest_pair *b)
{
    const int32_t n = a->n < b->n ? a->n : b->n;
    int32_t i = 0;
    while (i < n && a->p[i] == b->p[i]) i++;
    return i;
}

// The tree of what is left; states is room for its open nodes.
static int build_rest(walk *w, msgl_trie *t, int32_t *path)
{
    const int32_t n = w->num_pairs;
    if (n == 0) return 0;
    qsort(w->pairs, (size_t)n, sizeof *w->pairs, pair_order);
    int64_t nodes = 1;
    for (int32_t i = 0; i < n; i++) {
        nodes += w->pairs[i].n - (i > 0 ? same_start(&w->pairs[i - 1], &w->pairs[i]) : 0);
    }
    t->byte = msgl__calloc((size_t)nodes, 1);
    t->depth = msgl__calloc((size_t)nodes, sizeof *t->depth);
    t->size = msgl__reallocarray(NULL, (size_t)nodes, sizeof *t->size);
    t->first = msgl__calloc((size_t)nodes + 1, sizeof *t->first);
    t->tokens = msgl__reallocarray(NULL, (size_t)n, sizeof *t->tokens);
    if (t->byte == NULL || t->depth == NULL || t->size == NULL || t->first == NULL ||
        t->tokens == NULL) {
        return MSGL_ENOMEM;
    }
    t->num_nodes = 1;
    path[0] = 0;
    int32_t open = 0;
    for (int32_t i = 0; i < n; i++) {
        const rest_pair *p = &w->pairs[i];
        const int32_t same = i > 0 ? same_start(&w->pairs[i - 1], p) : 0;
        for (; open > same; open--) t->size[path[open]] = t->num_nodes - path[open];
        for (; open < p->n; open++) {
            const int32_t node = t->num_nodes++;
            t->byte[node] = p->p[open];
            t->depth[node] = (uint16_t)(open + 1);
            t->first[node] = i;
            path[open + 1] = node;
        }
        t->tokens[i] = p->token;
    }
    for (; open >= 0; open--) t->size[path[open]] = t->num_nodes - path[open];
    t->first[t->num_nodes] = n;
    return 0;
}

// Few tokens as a list, many as bits.
static int keep_tokens(walk *w, msgl_local *l)
{
    const size_t words = ((size_t)w->v->size + 31) / 32;
    int32_t n = 0;
    for (size_t i = 0; i < words; i++) n += __builtin_popcount(w->bits[i]);
    l->num_list = n;
    if ((size_t)n > words / 2) {
        l->bits = w->bits;
        w->bits = NULL;
        l->bytes += words * sizeof *l->bits;
        return 0;
    }
    l->list = msgl__reallocarray(NULL, (size_t)n + 1, sizeof *l->list);
    if (l->list == NULL) return MSGL_ENOMEM;
    n = 0;
    for (size_t i = 0; i < words; i++) {
        for (uint32_t b = w->bits[i]; b != 0; b &= b - 1) {
            l->list[n++] = (int32_t)(i * 32) + __builtin_ctz(b);
        }
    }
    l->bytes += (size_t)n * sizeof *l->list;
    return 0;
}

static int fill(walk *w, msgl_local *l)
{
    msgl_config *c = msgl__reallocarray(NULL, (size_t)l->num_key, sizeof *c);
    int32_t *states = msgl__reallocarray(NULL, MSGL_GRAMMAR_MAX_TOKEN + 1, sizeof *states);
    w->bits = msgl__calloc(((size_t)w->v->size + 31) / 32, sizeof *w->bits);
    int rc = c == NULL || states == NULL || w->bits == NULL ? MSGL_ENOMEM : 0;
    if (rc == 0) {
        for (int32_t i = 0; i < l->num_key; i++) {
            c[i] = (msgl_config){l->key[i].node, l->key[i].count, MSGL_FRAME_UNKNOWN};
        }
        const int32_t start = msgl__pda_state(w->p, c, l->num_key);
        rc = w->p->rc;
        if (rc == 0) rc = walk_all(w, start, !l->no_long, states);
    }
    if (rc == 0 && !w->too_large) rc = gather(w);
    l->too_large = w->too_large;
    l->depth = w->p->unknown_depth;
    if (rc == 0 && !l->too_large) rc = build_rest(w, &l->rest, states);
    if (rc == 0 && !l->too_large) rc = keep_tokens(w, l);
    l->bytes += sizeof *l + (size_t)l->num_key * sizeof *l->key + (size_t)w->num_pairs * 4 +
                (size_t)l->rest.num_nodes * 11;
    msgl__free(c);
    msgl__free(states);
    return rc;
}

void msgl__local_unref(msgl_local *l)
{
    if (l == NULL || atomic_fetch_sub_explicit(&l->refs, 1, memory_order_acq_rel) != 1) return;
    msgl__free(l->key);
    msgl__free(l->bits);
    msgl__free(l->list);
    msgl__free(l->rest.byte);
    msgl__free(l->rest.depth);
    msgl__free(l->rest.size);
    msgl__free(l->rest.first);
    msgl__free(l->rest.tokens);
    msgl__free(l);
}

static msgl_local *make(const msgl_grammar_vocab *v, msgl_pda *p, const msgl_local_key *key,
                        int32_t n, bool clamped, int *rc)
{
    msgl_local *l = msgl__calloc(1, sizeof *l);
    walk w = {.p = p, .v = v};
    *rc = MSGL_ENOMEM;
    if (l != NULL) {
        atomic_init(&l->refs, 1);
        l->hash = msgl__local_hash(key, n);
        l->num_key = n;
        l->no_long = clamped;
        l->key = msgl__reallocarray(NULL, (size_t)n, sizeof *l->key);
        if (l->key != NULL) {
            memcpy(l->key, key, (size_t)n * sizeof *key);
            *rc = fill(&w, l);
        }
    }
    msgl__free(w.bits);
    msgl__free(w.out_node);
    msgl__free(w.out_tree);
    msgl__free(w.pairs);
    msgl__free(w.plain);
    if (*rc == 0) return l;
    msgl__local_unref(l);
    return NULL;
}

// ---- keys and the cache ----

// A count that behaves like `count` for as many ticks as a short token can bring, one more for the
// character that it may end.
static int32_t stand_in(const msgl_nfa_region *r, int32_t count)
{
    const int32_t far = MSGL_VOCAB_SHORT + 1;
    if (count < r->min - far) return r->min - far - 1;
    if (r->max == MSGL_GX_INF || count < r->min) return count;
    if (count < r->max - far) return r->min > r->max - far - 1 ? r->min : r->max - far - 1;
    return count;
}

static int key_order(const void *a, const void *b)
{
    const msgl_local_key *p = a, *q = b;
    if (p->node != q->node) return p->node < q->node ? -1 : 1;
    return (p->count > q->count) - (p->count < q->count);
}

bool msgl__local_make_key(const msgl_pda *p, const msgl_config *c, int32_t n, msgl_local_key *key)
{
    bool changed = false;
    for (int32_t i = 0; i < n; i++) {
        key[i] = (msgl_local_key){c[i].node, c[i].count};
        const int32_t region = p->a->nodes[c[i].node].region;
        if (region < 0 || p->a->regions[region].is_len) continue; // there each count differs
        key[i].count = stand_in(&p->a->regions[region], c[i].count);
        changed |= key[i].count != c[i].count;
        // The stand-in itself: it is the same for long tokens only by chance.
        const msgl_nfa_region *r = &p->a->regions[region];
        changed |= c[i].count == r->min - MSGL_VOCAB_SHORT - 2 ||
                   c[i].count == r->max - MSGL_VOCAB_SHORT - 2;
    }
    if (changed) qsort(key, (size_t)n, sizeof *key, key_order);
    return changed;
}

uint64_t msgl__local_hash(const msgl_local_key *key, int32_t n)
{
    return msgl__hash(MSGL_HASH_START, key, (size_t)n * sizeof *key);
}

int msgl__local_cache_init(msgl_local_cache *c, size_t max_bytes)
{
    *c = (msgl_local_cache){.max_bytes = max_bytes};
    c->slot = msgl__calloc(MSGL_LOCAL_SLOTS, sizeof *c->slot);
    if (c->slot == NULL || pthread_mutex_init(&c->lock, NULL) != 0) return MSGL_ENOMEM;
    c->has_lock = true;
    return 0;
}

static void drop_all(msgl_local_cache *c)
{
    for (int i = 0; i < MSGL_LOCAL_SLOTS; i++) {
        while (c->slot[i] != NULL) {
            msgl_local *l = c->slot[i];
            c->slot[i] = l->next;
            msgl__local_unref(l);
        }
    }
    c->bytes = 0;
}

void msgl__local_cache_free(msgl_local_cache *c)
{
    if (c->slot != NULL) drop_all(c);
    if (c->has_lock) pthread_mutex_destroy(&c->lock);
    msgl__grammar_vocab_unref(c->vocab);
    msgl__free(c->slot);
    *c = (msgl_local_cache){0};
}

static bool same_key(const msgl_local *l, uint64_t hash, const msgl_local_key *key, int32_t n,
                     bool clamped)
{
    return l->hash == hash && l->num_key == n && l->no_long == clamped &&
           memcmp(l->key, key, (size_t)n * sizeof *key) == 0;
}

static msgl_local *find(msgl_local_cache *c, const msgl_grammar_vocab *v, uint64_t hash,
                        const msgl_local_key *key, int32_t n, bool clamped)
{
    msgl_local *l = c->vocab == v ? c->slot[hash % MSGL_LOCAL_SLOTS] : NULL;
    while (l != NULL && !same_key(l, hash, key, n, clamped)) l = l->next;
    if (l != NULL) atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
    return l;
}

// Puts l into the cache, unless another thread was faster or it is one for another vocabulary. A
// cache that is full starts anew; matchers keep what they refer to.
static void publish(msgl_local_cache *c, msgl_grammar_vocab *v, msgl_local *l)
{
    pthread_mutex_lock(&c->lock);
    if (c->vocab == NULL) c->vocab = msgl__grammar_vocab_ref(v);
    msgl_local *other = find(c, v, l->hash, l->key, l->num_key, l->no_long);
    if (other == NULL && c->vocab == v && l->bytes <= c->max_bytes) {
        if (c->bytes + l->bytes > c->max_bytes) drop_all(c);
        atomic_fetch_add_explicit(&l->refs, 1, memory_order_relaxed);
        l->next = c->slot[l->hash % MSGL_LOCAL_SLOTS];
        c->slot[l->hash % MSGL_LOCAL_SLOTS] = l;
        c->bytes += l->bytes;
    }
    msgl__local_unref(other);
    pthread_mutex_unlock(&c->lock);
}

msgl_local *msgl__local_get(msgl_local_cache *c, msgl_grammar_vocab *v, msgl_pda *p,
                            const msgl_local_key *key, int32_t n, bool clamped, int *rc)
{
    *rc = 0;
    const uint64_t hash = msgl__local_hash(key, n);
    pthread_mutex_lock(&c->lock);
    msgl_local *l = find(c, v, hash, key, n, clamped);
    pthread_mutex_unlock(&c->lock);
    if (l != NULL) return l;
    l = make(v, p, key, n, clamped, rc);
    if (l != NULL) publish(c, v, l);
    return l;
}
