// SPDX-License-Identifier: Apache-2.0
#include "scheduler/token_masks.h"

#include <string.h>

#include "core/mem.h"

struct msgl_token_masks {
    int32_t words; // of each mask
    int32_t min_tokens;
    const msgl_req_extra *extra; // sequences of two tokens or more in its `banned`; NULL: none
    const uint32_t *early;       // for the first min_tokens
    const uint32_t *usual;       // for the others, and NULL if they may be any
    uint32_t *now;               // either without the ends of sequences
    uint32_t bits[];
};

static void forbid(uint32_t *mask, int32_t vocab_size, int32_t token)
{
    // An end that no logit is of stays away by itself.
    if (token >= 0 && token < vocab_size) mask[token / 32] &= ~(UINT32_C(1) << token % 32);
}

// Tokens outside the vocabulary are never in a mask.
static void begin(uint32_t *mask, int32_t vocab_size, const msgl_req_extra *x)
{
    const int32_t n = x == NULL ? 0 : x->num_allowed;
    for (int32_t i = 0; n == 0 && i < vocab_size; i++) mask[i / 32] |= UINT32_C(1) << i % 32;
    for (int32_t i = 0; i < n; i++) {
        mask[x->allowed[i] / 32] |= UINT32_C(1) << x->allowed[i] % 32;
    }
}

// Ends of the sequences of at least `least` and at most `most` tokens. Their number.
static int32_t forbid_ends(uint32_t *mask, int32_t vocab_size, const msgl_req_extra *x,
                           int32_t least, int32_t most)
{
    int32_t found = 0;
    for (int32_t i = 0, len; x != NULL && i < x->num_banned; i += len) {
        len = x->banned[i++];
        if (len < least || len > most) continue;
        found++;
        if (mask != NULL) forbid(mask, vocab_size, x->banned[i + len - 1]);
    }
    return found;
}

static bool is_empty(const uint32_t *mask, int32_t words)
{
    for (int32_t i = 0; i < words; i++) {
        if (mask[i] != 0) return false;
    }
    return true;
}

// With every sequence about to end: there is less to choose from at no time.
static int check(msgl_token_masks *m, int32_t vocab_size, const msgl_req_extra *x, msgl_err *err)
{
    const uint32_t *const masks[] = {m->early, m->usual};
    for (int i = 0; i < 2; i++) {
        if (masks[i] == NULL) continue;
        memcpy(m->now, masks[i], (size_t)m->words * sizeof *m->now);
        forbid_ends(m->now, vocab_size, x, 2, INT32_MAX);
        if (!is_empty(m->now, m->words)) continue;
        return msgl__err_set(err, MSGL_EINVAL,
                             "allowed_token_ids, bad_words and min_tokens leave no token to "
                             "choose; allowed: such that at least one is always left");
    }
    return 0;
}

int msgl__token_masks_create(int32_t vocab_size, const int32_t *ends, int32_t num_ends,
                             const msgl_sampling_params *p, const msgl_req_extra *x,
                             msgl_token_masks **out, msgl_err *err)
{
    *out = NULL;
    const bool early = p->min_tokens > 0 && num_ends + p->num_stop_ids > 0;
    const bool back = forbid_ends(NULL, vocab_size, x, 2, INT32_MAX) > 0;
    const bool usual = x != NULL && (x->num_allowed > 0 || x->num_banned > 0);
    if (!early && !usual) return 0;
    const int32_t words = (vocab_size + 31) / 32;
    msgl_token_masks *m = msgl__calloc(1, sizeof *m + 3 * (size_t)words * sizeof m->bits[0]);
    if (m == NULL) return msgl__err_set(err, MSGL_ENOMEM, "no memory for masks");
    uint32_t *const first = m->bits, *const then = m->bits + words;
    m->words = words;
    m->min_tokens = early ? p->min_tokens : 0;
    m->extra = back ? x : NULL;
    m->now = then + words;
    begin(then, vocab_size, x);
    forbid_ends(then, vocab_size, x, 1, 1);
    memcpy(first, then, (size_t)words * sizeof *first);
    for (int32_t i = 0; early && i < num_ends; i++) forbid(first, vocab_size, ends[i]);
    for (int32_t i = 0; early && i < p->num_stop_ids; i++) {
        forbid(first, vocab_size, p->stop_ids[i]);
    }
    m->early = early ? first : NULL;
    m->usual = usual ? then : NULL;
    const int rc = check(m, vocab_size, x, err);
    if (rc != 0) {
        msgl__free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void msgl__token_masks_destroy(msgl_token_masks *m)
{
    msgl__free(m);
}

bool msgl__token_masks_look_back(const msgl_token_masks *m)
{
    return m != NULL && m->extra != NULL;
}

const uint32_t *msgl__token_masks_at(msgl_token_masks *m, const int32_t *answer, int32_t n)
{
    const uint32_t *mask = n < m->min_tokens ? m->early : m->usual;
    const msgl_req_extra *x = m->extra;
    if (x == NULL) return mask;
    memcpy(m->now, mask, (size_t)m->words * sizeof *m->now);
    for (int32_t i = 0, len; i < x->num_banned; i += len) {
        len = x->banned[i++];
        const int32_t before = len - 1;
        const size_t bytes = (size_t)before * sizeof *answer;
        if (before < 1 || before > n || memcmp(answer + n - before, x->banned + i, bytes) != 0) {
            continue;
        }
        const int32_t last = x->banned[i + before];
        m->now[last / 32] &= ~(UINT32_C(1) << last % 32);
    }
    return m->now;
}
