// SPDX-License-Identifier: Apache-2.0
//
// Which answers get how many drafts in the next step. Every request that could go on is asked what
// it would draft; the likeliest of all drafts are taken as long as a step brings more tokens for
// its time with them, by what steps have taken. So a crowd of answers, whose rows fill a step,
// drafts nothing, and a request whose drafts are wrong soon costs no more than the look.
//
// The length of an answer with drafts in flight is not known, so no step is started meanwhile. A
// step without drafts may be in flight when one with drafts is built: the first guess then stands
// for the token that this step chooses, and the drafts are those behind it.
#include <math.h>
#include <string.h>

#include "core/mem.h"
#include "scheduler/internal.h"

// The probability below which a draft is not worth a thought.
static const float HOPELESS = 0.02F;

enum {
    USUAL_DRAFTS = 15,
    USUAL_MIN_MATCH = 2, // of SUFFIX
    USUAL_MAX_MATCH = 32,
    NGRAM_MIN = 1, // SGLang's defaults
    NGRAM_MAX = 12,
};

static int check_windows(const msgl_draft_config *c, msgl_err *err)
{
    if (c->min_match <= c->max_match) return 0;
    return msgl__err_set(err, MSGL_EINVAL,
                         "--speculative-ngram-min-match-window-size is %d; allowed: up to "
                         "--speculative-ngram-max-match-window-size, %d",
                         c->min_match, c->max_match);
}

static int create_matches(msgl_scheduler *s, msgl_err *err)
{
    const msgl_options *o = &s->options;
    const char *name = o->speculative_algorithm;
    const bool ngram = strcmp(name, "NGRAM") == 0;
    msgl_draft_config c = {.recent = !ngram,
                           .min_match = ngram ? NGRAM_MIN : USUAL_MIN_MATCH,
                           .max_match = ngram ? NGRAM_MAX : USUAL_MAX_MATCH,
                           .most = USUAL_DRAFTS};
    if (ngram && o->speculative_ngram_min > 0) c.min_match = o->speculative_ngram_min;
    if (ngram && o->speculative_ngram_max > 0) c.max_match = o->speculative_ngram_max;
    if (o->speculative_num_draft_tokens > 0) c.most = o->speculative_num_draft_tokens - 1;
    const int rc = check_windows(&c, err);
    return rc != 0 ? rc : msgl__drafter_create(&c, &s->drafter, err);
}

int msgl__sched_drafter_create(msgl_scheduler *s, msgl_err *err)
{
    const char *name = s->options.speculative_algorithm;
    const size_t n = (size_t)s->options.max_running;
    if (name == NULL || strcmp(name, "none") == 0 || s->runner.max_drafts < 1) return 0;
    const int rc = s->runner.max_propose > 0 ? 0 : create_matches(s, err);
    if (rc != 0) return rc;
    s->drafting = true;
    s->offers = msgl__calloc(n, sizeof *s->offers);
    s->asks = msgl__calloc(n, sizeof *s->asks);
    bool ok = s->offers != NULL && s->asks != NULL;
    for (int32_t i = 0; i < s->depth; i++) {
        s->inflight[i].drafts = msgl__calloc(MSGL_MAX_STEP_DRAFTS, sizeof(int32_t));
        s->inflight[i].draft_parents = msgl__calloc(MSGL_MAX_STEP_DRAFTS, sizeof(int16_t));
        ok = ok && s->inflight[i].drafts != NULL && s->inflight[i].draft_parents != NULL;
    }
    return ok ? 0 : msgl__err_set(err, MSGL_ENOMEM, "speculation: no memory for drafts");
}

void msgl__sched_drafter_destroy(msgl_scheduler *s)
{
    for (int32_t i = 0; i < MSGL_MAX_IN_FLIGHT; i++) {
        msgl__free(s->inflight[i].drafts);
        msgl__free(s->inflight[i].draft_parents);
        msgl__free(s->inflight[i].draft_masks);
    }
    msgl__free(s->offers);
    msgl__free(s->asks);
    msgl__drafter_destroy(s->drafter);
}

// Of r's next step: the last row's choice gets to max_len - 1 at most.
static int32_t most_drafts(const msgl_scheduler *s, const msgl_req *r)
{
    const int32_t states = msgl__sched_draft_room(s, r), tokens = r->max_len - r->device_len - 2;
    const int32_t room = states < tokens ? states : tokens;
    return room < r->most_drafts ? room : r->most_drafts;
}

void msgl__sched_draft_open(const msgl_scheduler *s, msgl_req *r)
{
    const int32_t most = r->sampling.speculative;
    // Mirostat's state goes from one token to the next.
    const bool mirostat = r->sampling.mirostat != 0 && r->sampling.temperature > 0;
    // Nor are values of rows that turn out to be no one's, or drafts behind tokens that are none.
    const bool none = mirostat || r->row_values > 0 || r->private_kv;
    r->most_drafts = !s->drafting || none ? 0 : most < 0 ? MSGL_MAX_DRAFTS : most;
    if (r->most_drafts > 0 && s->drafter != NULL) msgl__draft_open(s->drafter, &r->draft);
    // Without memory for it there are no drafts.
    if (r->most_drafts > 0 && r->constraint != NULL) r->ahead = msgl__calloc(1, sizeof *r->ahead);
}

void msgl__sched_draft_close(msgl_req *r)
{
    msgl__draft_close(&r->draft);
    msgl__free(r->ahead);
}

// What comes behind the tokens of r that the host knows.
static void make_drafts(msgl_scheduler *s, msgl_req *r, int32_t most, msgl_draft *out)
{
    out->tree = false;
    if (s->drafter == NULL) {
        msgl__sched_offer_proposed(s, r, most, out);
    } else {
        msgl__draft_make(s->drafter, &r->draft, r->salt, r->ids, r->num_ids, r->max_len, most, out);
    }
}

// Masks of drafts are made with that of the next token, so they are made up now.
void msgl__sched_go_on(msgl_scheduler *s, msgl_req *r, const int32_t *tokens, int32_t num)
{
    const int32_t most = most_drafts(s, r);
    if (r->ahead != NULL) {
        make_drafts(s, r, most, r->ahead);
        if (r->ahead->num > most) r->ahead->num = most > 0 ? most : 0;
    }
    const bool any = r->ahead != NULL && r->ahead->num > 0;
    msgl__constraint_accept(r->constraint, tokens, num, any ? r->ahead->tokens : NULL,
                            any ? r->ahead->num : 0);
}

bool msgl__sched_drafts_in_flight(const msgl_scheduler *s)
{
    // None is started behind one that has some, so it is the newest.
    const msgl_inflight_step *newest = &s->inflight[(s->next_step_slot + s->depth - 1) % s->depth];
    return s->num_in_flight > 0 && (newest->num_drafts > 0 || newest->num_proposing > 0);
}

// What r could draft behind its next row.
static void make_offer(msgl_scheduler *s, msgl_req *r, msgl_draft *offer)
{
    const int32_t ahead = r->inflight > 0; // tokens that the step in flight chooses
    const int32_t most = most_drafts(s, r);
    if (r->constraint != NULL) {
        const int32_t masked = msgl__constraint_ahead(r->constraint);
        offer->num = 0;
        r->draft_ahead = -1;
        if (r->ahead == NULL) return;
        *offer = *r->ahead;
        if (offer->num > masked) offer->num = masked;
        if (offer->num > most) offer->num = most;
        return;
    }
    make_drafts(s, r, most + ahead, offer);
    if (offer->tree) { // no deeper than that
        r->draft_ahead = -1;
        return;
    }
    r->draft_ahead = ahead > 0 && offer->num > 0 ? offer->tokens[0] : -1;
    offer->num -= ahead;
    if (offer->num > most) offer->num = most;
    if (offer->num < 0) offer->num = 0;
    if (ahead == 0) return;
    memmove(offer->tokens, offer->tokens + 1, sizeof offer->tokens - sizeof *offer->tokens);
    memmove(offer->accepted, offer->accepted + 1, sizeof offer->accepted - sizeof *offer->accepted);
    offer->match++;
}

// Takes the likeliest draft that is left of all offers into its request's num_drafts, `most` times:
// whose the n-th is, and its probability, descending. How many there were.
static int32_t rank_drafts(msgl_scheduler *s, int32_t most, msgl_req **owners, float *accepted)
{
    for (int32_t n = 0; n < most; n++) {
        owners[n] = NULL;
        accepted[n] = HOPELESS;
        for (msgl_req *r = s->running.head; r != NULL; r = r->next) {
            if (r->offer < 0 || r->num_drafts >= s->offers[r->offer].num) continue;
            const float p = s->offers[r->offer].accepted[r->num_drafts];
            if (p <= accepted[n]) continue;
            accepted[n] = p;
            owners[n] = r;
        }
        if (owners[n] == NULL) return n;
        owners[n]->num_drafts++;
    }
    return most;
}

void msgl__sched_plan_drafts(msgl_scheduler *s)
{
    if (!s->drafting) return;
    msgl_req *owners[MSGL_MAX_STEP_DRAFTS];
    float accepted[MSGL_MAX_STEP_DRAFTS];
    int32_t answers = 0, offers = 0;
    s->trees_allowed = msgl__sched_trees_allowed(s);
    for (msgl_req *r = s->running.head; r != NULL; r = r->next) {
        r->offer = -1;
        r->num_drafts = 0;
        if (!msgl__sched_goes_on(r)) continue;
        answers++;
        if (r->most_drafts == 0) continue;
        make_offer(s, r, &s->offers[offers]);
        if (s->offers[offers].num > 0) r->offer = offers++;
    }
    if (offers == 0) return;
    const int32_t states = msgl__sched_draft_states_left(s);
    int32_t most =
        s->runner.max_drafts < MSGL_MAX_STEP_DRAFTS ? s->runner.max_drafts : MSGL_MAX_STEP_DRAFTS;
    if (states < most) most = states;
    const int32_t num = rank_drafts(s, most, owners, accepted);
    const int32_t chosen = msgl__costs_choose(&s->costs, answers, accepted, num);
    for (int32_t n = chosen; n < num; n++) owners[n]->num_drafts--;
}

// Masks of the rows of r's drafts in the step, where there are any: each as if the drafts before
// it were its tokens.
static const uint32_t *make_masks(msgl_inflight_step *step, msgl_req *r, const int32_t *drafts,
                                  int32_t num)
{
    const size_t words = (size_t)step->batch.mask_words;
    if (r->constraint != NULL) return msgl__constraint_mask(r->constraint);
    if (r->masks == NULL) return NULL;
    if (step->draft_masks == NULL) {
        step->draft_masks =
            msgl__calloc(2 * MSGL_MAX_STEP_DRAFTS * words, sizeof *step->draft_masks);
        if (step->draft_masks == NULL) return NULL;
    }
    uint32_t *masks = step->draft_masks + (size_t)(step->num_drafts + step->num_drafting) * words;
    memcpy(r->ids + r->num_ids, drafts, (size_t)num * sizeof *drafts);
    for (int32_t i = 0; i <= num; i++) {
        const uint32_t *mask = msgl__token_masks_at(r->masks, r->ids + r->prompt_len,
                                                    r->device_len + 1 + i - r->prompt_len);
        if (mask != NULL) {
            memcpy(masks + (size_t)i * words, mask, words * sizeof *mask);
        } else {
            memset(masks + (size_t)i * words, -1, words * sizeof *mask);
        }
    }
    return masks;
}

bool msgl__sched_take_drafts(msgl_scheduler *s, msgl_inflight_step *step, msgl_req *r,
                             msgl_batch_req *b)
{
    const msgl_draft *offer = &s->offers[r->offer];
    int32_t num = r->num_drafts;
    if (num > s->cfg.max_seq_len - r->device_len - 1) num = s->cfg.max_seq_len - r->device_len - 1;
    while (num > 0 && !msgl__sched_has_room(s, r, r->device_len + 1 + num)) num--;
    if (num == 0) return false;
    int32_t *drafts = step->drafts + step->num_drafts;
    const uint32_t *masks = make_masks(step, r, offer->tokens, num);
    if (r->masks != NULL && masks == NULL) return false;
    memcpy(drafts, offer->tokens, (size_t)num * sizeof *drafts);
    if (offer->tree) {
        int16_t *parents = step->draft_parents + step->num_drafts;
        b->draft_parents = memcpy(parents, offer->parents, (size_t)num * sizeof *parents);
        step->has_trees = true;
    }
    b->drafts = drafts;
    b->num_drafts = num;
    b->mask = masks;
    step->num_drafts += num;
    step->num_drafting++;
    r->draft_match = offer->match;
    return true;
}

void msgl__sched_drafts_verified(msgl_scheduler *s, const msgl_batch_req *b, msgl_req *r,
                                 const int32_t *tokens, int32_t num_tokens)
{
    const int32_t accepted = num_tokens - 1;
    const int32_t tried = msgl__sched_depth_tried(b, tokens, accepted);
    r->device_len += accepted;
    r->drafted += b->num_drafts;
    s->stats.drafted_tokens += (uint64_t)b->num_drafts;
    s->stats.accepted_tokens += (uint64_t)accepted;
    for (int32_t i = 0; i < tried; i++) {
        const int32_t at = i < MSGL_DRAFT_POSITIONS ? i : MSGL_DRAFT_POSITIONS - 1;
        s->drafted_at[at]++;
        s->accepted_at[at] += i < accepted;
    }
    // Behind a token that was guessed wrongly they say nothing.
    if (r->state == MSGL_REQ_DONE) return;
    if (r->draft_ahead >= 0 && r->ids[b->cached_len] != r->draft_ahead) return;
    if (s->drafter == NULL) {
        msgl__depth_verified(&s->depths, &r->depth, r->num_ids, tried, accepted);
    } else {
        msgl__draft_verified(s->drafter, &r->draft, r->draft_match, b->num_drafts, accepted);
    }
}
