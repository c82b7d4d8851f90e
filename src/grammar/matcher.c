// SPDX-License-Identifier: Apache-2.0
//
// One answer's way through a grammar. A state is a number in the matcher's own tables; what it
// allows is put together from msgl_local parts, one per stack that is open.
#include <string.h>

#include "core/mem.h"
#include "grammar/compiled.h"

enum { LOCALS = 64, MASKS = 2 };

typedef struct kept_mask {
    int32_t state; // -1: none
    uint32_t *bits;
} kept_mask;

struct msgl_matcher {
    msgl_grammar *g;
    msgl_grammar_vocab *v;
    msgl_pda p;
    int rc;     // of what failed; nothing goes on after it
    bool ended; // an end token was accepted
    int32_t state;
    // The states before the last tokens, the youngest at [(num_back - 1) % HISTORY].
    int32_t back[MSGL_MATCHER_HISTORY];
    bool back_ended[MSGL_MATCHER_HISTORY];
    int32_t num_back, back_at;
    msgl_local *locals[LOCALS]; // by hash; references
    msgl_local_key *key;        // [cap_key]
    int32_t cap_key;
    int32_t *states;        // of walks
    kept_mask masks[MASKS]; // a string's state comes again with every token of it
    int32_t next_mask;
};

msgl_matcher *msgl__matcher_create(msgl_grammar *g, msgl_grammar_vocab *v)
{
    msgl_matcher *m = msgl__calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    m->g = msgl__grammar_ref(g);
    m->v = msgl__grammar_vocab_ref(v);
    for (int i = 0; i < MASKS; i++) m->masks[i].state = -1;
    m->states = msgl__reallocarray(NULL, MSGL_GRAMMAR_MAX_TOKEN + 1, sizeof *m->states);
    int rc = m->states == NULL ? MSGL_ENOMEM : 0;
    if (rc == 0) {
        rc = msgl__pda_init(&m->p, &g->nfa, &g->limits);
    }
    if (rc == 0) m->state = msgl__pda_start(&m->p);
    // A start state that is too wide fails the first call, not this one.
    if (rc == 0 && m->p.rc == MSGL_ENOMEM) rc = MSGL_ENOMEM;
    if (rc == 0) return m;
    msgl__matcher_destroy(m);
    return NULL;
}

void msgl__matcher_destroy(msgl_matcher *m)
{
    if (m == NULL) return;
    for (int i = 0; i < LOCALS; i++) msgl__local_unref(m->locals[i]);
    for (int i = 0; i < MASKS; i++) msgl__free(m->masks[i].bits);
    msgl__pda_free(&m->p);
    msgl__free(m->key);
    msgl__free(m->states);
    msgl__grammar_unref(m->g);
    msgl__grammar_vocab_unref(m->v);
    msgl__free(m);
}

size_t msgl__matcher_bytes(const msgl_matcher *m)
{
    size_t sum = sizeof *m + msgl__pda_bytes(&m->p) + (size_t)m->cap_key * sizeof *m->key +
                 (MSGL_GRAMMAR_MAX_TOKEN + 1) * sizeof *m->states;
    for (int i = 0; i < MASKS; i++) {
        if (m->masks[i].bits != NULL) sum += ((size_t)m->v->size + 31) / 32 * 4;
    }
    return sum;
}

// The tables anew from the states that are still needed.
static int compact(msgl_matcher *m)
{
    int32_t roots[MSGL_MATCHER_HISTORY + 1];
    const int32_t n = m->num_back;
    memcpy(roots, m->back, sizeof m->back);
    // Slots of the ring that are not in use hold any number; the dead state is always there.
    for (int32_t i = n; i < MSGL_MATCHER_HISTORY; i++) {
        roots[(m->back_at + i - n) % MSGL_MATCHER_HISTORY] = MSGL_STATE_DEAD;
    }
    roots[MSGL_MATCHER_HISTORY] = m->state;
    const int rc = msgl__pda_compact(&m->p, roots, MSGL_MATCHER_HISTORY + 1);
    if (rc != 0) return m->rc = rc;
    memcpy(m->back, roots, sizeof m->back);
    m->state = roots[MSGL_MATCHER_HISTORY];
    for (int i = 0; i < MASKS; i++) m->masks[i].state = -1;
    return 0;
}

// Tables that grew too large are made anew.
static int tidy(msgl_matcher *m)
{
    msgl__pda_rest(&m->p);
    if (m->rc == 0) m->rc = m->p.rc;
    if (m->rc != 0 || msgl__pda_bytes(&m->p) <= m->g->limits.matcher_bytes) return m->rc;
    return compact(m);
}

static int key_room(msgl_matcher *m, int32_t n)
{
    if (n <= m->cap_key) return 0;
    const int32_t cap = n < 64 ? 64 : n * 2;
    void *more = msgl__reallocarray(m->key, (size_t)cap, sizeof *m->key);
    if (more == NULL) return m->rc = MSGL_ENOMEM;
    m->key = more;
    m->cap_key = cap;
    return 0;
}

static msgl_local *local_of(msgl_matcher *m, int32_t n, bool clamped)
{
    const uint64_t hash = msgl__local_hash(m->key, n);
    msgl_local **slot = &m->locals[hash % LOCALS];
    msgl_local *l = *slot;
    if (l != NULL && l->hash == hash && l->num_key == n && l->no_long == clamped &&
        memcmp(l->key, m->key, (size_t)n * sizeof *m->key) == 0) {
        return l;
    }
    l = msgl__local_get(&m->g->cache, m->v, &m->p, m->key, n, clamped, &m->rc);
    if (l == NULL) return NULL;
    msgl__local_unref(*slot);
    *slot = l;
    return l;
}

static void put_local(const msgl_matcher *m, const msgl_local *l, uint32_t *bits)
{
    if (l->bits != NULL) {
        const size_t words = ((size_t)m->v->size + 31) / 32;
        for (size_t i = 0; i < words; i++) bits[i] |= l->bits[i];
    } else {
        for (int32_t i = 0; i < l->num_list; i++) msgl__bit_set(bits, l->list[i]);
    }
}

// The tokens of the configurations [at, at + n) of a state, which have one stack.
static int fill_group(msgl_matcher *m, int32_t at, int32_t n, bool *want_long, uint32_t *bits)
{
    const int32_t frame = m->p.configs[at].frame;
    if (key_room(m, n) != 0) return m->rc;
    const bool clamped = msgl__local_make_key(&m->p, m->p.configs + at, n, m->key);
    const msgl_local *l = local_of(m, n, clamped);
    if (l == NULL) return m->rc;
    // Where the stack's limit is near, what the limit leaves out is not what the part leaves out.
    if (l->too_large || m->p.frames[frame].depth + l->depth >= m->g->limits.stack_depth) {
        const int32_t whole = msgl__pda_state(&m->p, m->p.configs + at, n);
        if (m->p.rc != 0) return m->rc = m->p.rc;
        for (int k = 0; k < 2 && m->rc == 0; k++) {
            m->rc = msgl__trie_walk(&m->v->trie[k], &m->p, whole, m->states, bits);
        }
        return m->rc;
    }
    put_local(m, l, bits);
    *want_long |= clamped;
    if (l->rest.num_nodes == 0 || frame == MSGL_FRAME_ROOT) return 0;
    const int32_t popped = msgl__pda_pop(&m->p, frame);
    if (m->p.rc == 0) m->rc = msgl__trie_walk(&l->rest, &m->p, popped, m->states, bits);
    if (m->rc == 0) m->rc = m->p.rc;
    return m->rc;
}

static int fill_state(msgl_matcher *m, uint32_t *bits)
{
    memset(bits, 0, ((size_t)m->v->size + 31) / 32 * sizeof *bits);
    const msgl_pda_state s = m->p.states[m->state];
    bool want_long = false;
    for (int32_t i = 0; i < s.n;) {
        const int32_t frame = m->p.configs[s.at + i].frame;
        int32_t k = i;
        while (k < s.n && m->p.configs[s.at + k].frame == frame) k++;
        while (i < k && m->p.configs[s.at + i].node < 0) i++; // an end
        if (i < k && fill_group(m, s.at + i, k - i, &want_long, bits) != 0) return m->rc;
        i = k;
    }
    if (want_long) m->rc = msgl__trie_walk(&m->v->trie[1], &m->p, m->state, m->states, bits);
    return m->rc;
}

// Where putting the mask together takes too much work or memory: the tokens of the state itself, as
// far as there is work for them. The first one that is found costs little, and all are right.
static int fill_some(msgl_matcher *m, uint32_t *bits)
{
    m->rc = m->p.rc = 0;
    if (compact(m) != 0) return m->rc;
    msgl__pda_rest(&m->p);
    const size_t words = ((size_t)m->v->size + 31) / 32;
    memset(bits, 0, words * sizeof *bits);
    for (int k = 0; k < 2 && m->rc == 0; k++) {
        m->rc = msgl__trie_walk(&m->v->trie[k], &m->p, m->state, m->states, bits);
    }
    uint32_t any = 0;
    for (size_t i = 0; i < words; i++) any |= bits[i];
    if (m->rc == MSGL_ELIMIT && any != 0) {
        m->rc = m->p.rc = 0;
        return compact(m);
    }
    return m->rc;
}

static void put_eos(const msgl_matcher *m, uint32_t *bits)
{
    for (int32_t i = 0; i < m->v->num_eos; i++) msgl__bit_set(bits, m->v->eos[i]);
}

int msgl__matcher_fill_mask(msgl_matcher *m, uint32_t *bits)
{
    if (tidy(m) != 0) return m->rc;
    const size_t bytes = ((size_t)m->v->size + 31) / 32 * sizeof *bits;
    if (m->ended) {
        memset(bits, 0, bytes);
        put_eos(m, bits);
        return 0;
    }
    for (int i = 0; i < MASKS; i++) {
        if (m->masks[i].state != m->state) continue;
        memcpy(bits, m->masks[i].bits, bytes);
        return 0;
    }
    if (fill_state(m, bits) == MSGL_ELIMIT) fill_some(m, bits);
    if (m->rc != 0) return m->rc;
    if (msgl__matcher_may_end(m)) put_eos(m, bits);
    kept_mask *keep = &m->masks[m->next_mask];
    m->next_mask = (m->next_mask + 1) % MASKS;
    if (keep->bits == NULL) keep->bits = msgl__malloc(bytes);
    keep->state = keep->bits != NULL ? m->state : -1; // without memory it is computed again
    if (keep->bits != NULL) memcpy(keep->bits, bits, bytes);
    return 0;
}

static void remember(msgl_matcher *m)
{
    m->back[m->back_at] = m->state;
    m->back_ended[m->back_at] = m->ended;
    m->back_at = (m->back_at + 1) % MSGL_MATCHER_HISTORY;
    if (m->num_back < MSGL_MATCHER_HISTORY) m->num_back++;
}

static int32_t step_all(msgl_matcher *m, int32_t state, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n && state != MSGL_STATE_DEAD; i++) {
        state = msgl__pda_step(&m->p, state, (uint8_t)bytes[i]);
    }
    return state;
}

// Where alternatives were left out, what one of them allows may have been left out on the way of
// all together: each goes its way alone, until one comes through.
static int32_t step_apart(msgl_matcher *m, const char *bytes, size_t n)
{
    int32_t to = MSGL_STATE_DEAD;
    for (int32_t i = 0; i < m->p.states[m->state].n && to == MSGL_STATE_DEAD && m->p.rc == 0; i++) {
        const msgl_config c = m->p.configs[m->p.states[m->state].at + i];
        if (c.node >= 0) to = step_all(m, msgl__pda_state(&m->p, &c, 1), bytes, n);
    }
    return to;
}

int msgl__matcher_accept_bytes(msgl_matcher *m, const char *bytes, size_t n)
{
    if (tidy(m) != 0) return m->rc;
    if (m->ended) return n == 0 ? 0 : MSGL_EINVAL;
    m->p.effort = INT64_MAX; // a token is short, and has to be taken if the mask has it
    int32_t s = step_all(m, m->state, bytes, n);
    if (s == MSGL_STATE_DEAD && m->p.rc == 0 && m->p.pruned) s = step_apart(m, bytes, n);
    if (s == MSGL_STATE_DEAD) return m->p.rc != 0 ? (m->rc = m->p.rc) : MSGL_EINVAL;
    remember(m);
    m->state = s;
    return 0;
}

int msgl__matcher_accept(msgl_matcher *m, int32_t token)
{
    if (m->rc != 0) return m->rc;
    if (token < 0 || token >= m->v->size) return MSGL_EINVAL;
    for (int32_t i = 0; i < m->v->num_eos; i++) {
        if (m->v->eos[i] != token) continue;
        if (!msgl__matcher_may_end(m)) return MSGL_EINVAL;
        remember(m);
        m->ended = true;
        return 0;
    }
    const int32_t at = m->v->at[token], n = m->v->at[token + 1] - at;
    return n == 0 ? MSGL_EINVAL : msgl__matcher_accept_bytes(m, m->v->text + at, (size_t)n);
}

int msgl__matcher_rollback(msgl_matcher *m, int32_t tokens)
{
    if (m->rc != 0) return m->rc;
    if (tokens < 0 || tokens > m->num_back) return MSGL_EINVAL;
    for (; tokens > 0; tokens--) {
        m->back_at = (m->back_at + MSGL_MATCHER_HISTORY - 1) % MSGL_MATCHER_HISTORY;
        m->num_back--;
        m->state = m->back[m->back_at];
        m->ended = m->back_ended[m->back_at];
    }
    return 0;
}

bool msgl__matcher_may_end(const msgl_matcher *m)
{
    return m->ended || msgl__pda_has(&m->p, m->state, MSGL_NODE_DONE);
}

bool msgl__matcher_is_finished(const msgl_matcher *m)
{
    return m->ended || (msgl__matcher_may_end(m) && m->p.states[m->state].n == 1);
}

size_t msgl__matcher_forced(msgl_matcher *m, char *buf, size_t cap)
{
    if (tidy(m) != 0 || m->ended) return 0;
    int32_t s = m->state;
    size_t n = 0;
    while (n < cap && !msgl__pda_has(&m->p, s, MSGL_NODE_DONE)) {
        int32_t next = MSGL_STATE_DEAD;
        int ways = 0, byte = 0;
        for (int c = 0; c < 256 && ways < 2; c++) {
            const int32_t to = msgl__pda_step(&m->p, s, (uint8_t)c);
            if (to == MSGL_STATE_DEAD) continue;
            ways++;
            next = to;
            byte = c;
        }
        if (ways != 1 || m->p.rc != 0) break;
        buf[n++] = (char)byte;
        s = next;
    }
    return n;
}
