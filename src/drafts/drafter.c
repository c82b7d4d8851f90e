// SPDX-License-Identifier: Apache-2.0
#include "drafts/drafter.h"

#include "core/mem.h"

enum {
    MAX_PLACES = 16, // that say what comes next
    FORGETTING = 16, // a rate is that of about so many drafts
};

// Of drafts of which nothing is known: so low that a few have to be right before any is computed.
static const float UNKNOWN_RATE = 0.3F;

int msgl__drafter_create(const msgl_draft_config *cfg, msgl_drafter **out, msgl_err *err)
{
    msgl_drafter *d = msgl__calloc(1, sizeof *d);
    *out = NULL;
    if (d == NULL || (cfg->recent && !msgl__recent_create(&d->recent))) {
        msgl__free(d);
        return msgl__err_set(err, MSGL_ENOMEM, "speculation: no memory for recent answers");
    }
    d->cfg = *cfg;
    for (int i = 0; i < MSGL_MATCH_SIZES; i++) d->hits.rate[i] = UNKNOWN_RATE;
    *out = d;
    return 0;
}

void msgl__drafter_destroy(msgl_drafter *d)
{
    if (d == NULL) return;
    msgl__recent_destroy(&d->recent);
    msgl__free(d);
}

void msgl__draft_open(const msgl_drafter *d, msgl_draft_state *s)
{
    *s = (msgl_draft_state){.hits = d->hits, .guess_at = -1};
    for (int i = 0; i < MSGL_MATCH_SIZES; i++) s->hits.seen[i] = 0;
}

void msgl__draft_close(msgl_draft_state *s)
{
    msgl__repeats_destroy(&s->repeats);
}

static int size_of(int32_t match)
{
    int size = 0;
    for (int32_t most = 1; size < MSGL_MATCH_SIZES - 1 && match > most; size++) most *= 2;
    return size;
}

static void count(msgl_draft_hits *h, int32_t match, bool hit)
{
    const int size = size_of(match);
    const int32_t weight = h->seen[size] + 2 < FORGETTING ? h->seen[size] + 2 : FORGETTING;
    h->rate[size] += ((float)hit - h->rate[size]) / (float)weight;
    if (h->seen[size] < FORGETTING) h->seen[size]++;
}

static void count_all(msgl_drafter *d, msgl_draft_state *s, int32_t match, bool hit)
{
    count(&d->hits, match, hit);
    count(&s->hits, match, hit);
}

// The places where the most tokens agree, the request's own first.
static int32_t find_places(msgl_drafter *d, const msgl_draft_state *s, uint64_t salt,
                           const int32_t *ids, int32_t len, msgl_repeat *places)
{
    const msgl_draft_config *c = &d->cfg;
    int32_t n = msgl__repeats_find(&s->repeats, ids, ids, len, c->max_match, places, MAX_PLACES);
    if (c->recent) {
        n += msgl__recent_find(&d->recent, salt, ids, len, c->max_match, places + n, MAX_PLACES);
    }
    int32_t longest = c->min_match, kept = 0;
    for (int32_t i = 0; i < n; i++) {
        if (places[i].match > longest) longest = places[i].match;
    }
    for (int32_t i = 0; i < n; i++) {
        if (places[i].match == longest) places[kept++] = places[i];
    }
    return kept;
}

// The token that most of the places have next, the first of equally many, and the share that has
// it; places that do not are left out. False: all are at their ends.
static bool vote(msgl_repeat *places, int32_t *num, int32_t at, int32_t *token, float *share)
{
    int32_t best = -1, votes = 0, voters = 0, kept = 0;
    for (int32_t i = 0; i < *num; i++) {
        if (at >= places[i].room || places[i].next[at] < 0) continue;
        int32_t n = 0;
        for (int32_t k = 0; k < *num; k++) {
            n += at < places[k].room && places[k].next[at] == places[i].next[at];
        }
        voters++;
        if (n > votes) {
            votes = n;
            best = places[i].next[at];
        }
    }
    for (int32_t i = 0; i < *num && best >= 0; i++) {
        if (at < places[i].room && places[i].next[at] == best) places[kept++] = places[i];
    }
    *num = kept;
    *token = best;
    *share = voters > 0 ? (float)votes / (float)voters : 0;
    return best >= 0;
}

void msgl__draft_make(msgl_drafter *d, msgl_draft_state *s, uint64_t salt, const int32_t *ids,
                      int32_t len, int32_t max_len, int32_t most, msgl_draft *out)
{
    msgl_repeat places[2 * MAX_PLACES];
    const int32_t order = d->cfg.min_match < MSGL_MAX_GRAM ? d->cfg.min_match : MSGL_MAX_GRAM;
    out->num = out->match = 0;
    s->guess_at = -1;
    if (s->repeats.capacity == 0 && !msgl__repeats_create(order, max_len, &s->repeats)) return;
    msgl__repeats_extend(&s->repeats, ids, len);
    int32_t num = find_places(d, s, salt, ids, len, places);
    if (num == 0) return;
    out->match = places[0].match;
    float all = 1;
    if (most > d->cfg.most) most = d->cfg.most;
    if (most < 1) most = 1; // of which one is the guess that shows how good they are
    for (int32_t i = 0; i < most; i++) {
        float share;
        if (!vote(places, &num, i, &out->tokens[i], &share)) break;
        all *= share * s->hits.rate[size_of(out->match + i)];
        out->accepted[out->num++] = all;
    }
    if (out->num == 0) return;
    s->guess = out->tokens[0];
    s->guess_at = len;
    s->guess_match = out->match;
}

void msgl__draft_seen(msgl_drafter *d, msgl_draft_state *s, const int32_t *ids, int32_t len)
{
    if (s->guess_at >= len) return;
    if (s->guess_at >= 0) count_all(d, s, s->guess_match, ids[s->guess_at] == s->guess);
    s->guess_at = -1;
}

void msgl__draft_verified(msgl_drafter *d, msgl_draft_state *s, int32_t match, int32_t num,
                          int32_t accepted)
{
    s->guess_at = -1;
    for (int32_t i = 0; i < num && i <= accepted; i++) {
        count_all(d, s, match + i, i < accepted);
    }
}

void msgl__draft_remember(msgl_drafter *d, uint64_t salt, const int32_t *ids, int32_t n)
{
    if (d->cfg.recent) msgl__recent_add(&d->recent, salt, ids, n);
}
