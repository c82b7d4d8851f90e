// SPDX-License-Identifier: Apache-2.0
#include "drafts/depth.h"

#include <stdbool.h>

static const float MEMORY = 64;         // drafts that a rate is of, about
static const float FIRST_RATE = 0.7F;   // before any was seen
static const float WEIGHT_OF_ALL = 4;   // what all requests say counts as so many of its own drafts
static const float MOST = 0.98F;        // that is ever expected
static const float USELESS = 0.1F;      // a request whose first draft is right so seldom gets none
static const float GOOD_TRY = 0.8F;     // what a try may find
static const float UNKNOWN_PASS = 0.1F; // of a step without drafts
static const float WORTH = 1.02F, SMOOTHING = 0.25F;

enum { FIRST_GAP = 32, LARGEST_GAP = 1024, STEPS_BETWEEN_TRIES = 16 };

// Of all requests.
static float rate_at(const msgl_depths *d, int32_t place)
{
    float rate = FIRST_RATE;
    // Further places than were seen are as the last one that was.
    for (int32_t i = 0; i <= place && d->seen[i] > 0; i++) rate = d->rate[i];
    return rate;
}

// all: of all requests at the place.
static float rate_of(const msgl_depth *of, float all)
{
    const float rate = all * (of->right + WEIGHT_OF_ALL) / (of->expected + WEIGHT_OF_ALL);
    return rate < MOST ? rate : MOST;
}

float msgl__depth_rate(const msgl_depths *d, const msgl_depth *of, int32_t place)
{
    return rate_of(of, rate_at(d, place));
}

static void observe(msgl_depths *d, msgl_depth *of, int32_t place, bool right)
{
    const float now = right ? 1 : 0;
    of->right += now - of->right / MEMORY;
    of->expected += rate_at(d, place) - of->expected / MEMORY;
    if (d->seen[place] < MEMORY) ++d->seen[place];
    d->rate[place] += (now - d->rate[place]) / d->seen[place];
}

// For now: it is tried again when twice as many tokens have come as the last time.
static void leave_out(msgl_depth *of, int32_t tokens)
{
    of->gap = of->gap == 0 ? FIRST_GAP : of->gap < LARGEST_GAP ? 2 * of->gap : LARGEST_GAP;
    of->try_at = tokens + of->gap;
}

void msgl__depth_verified(msgl_depths *d, msgl_depth *of, int32_t tokens, int32_t num,
                          int32_t accepted)
{
    for (int32_t i = 0; i < num && i <= accepted && i < MSGL_MAX_PROPOSALS; i++) {
        observe(d, of, i, i < accepted);
    }
    if (of->try_at > 0 && accepted == num) {
        *of = (msgl_depth){0}; // what was before says little any more
        if (d->seen[0] > WEIGHT_OF_ALL) d->seen[0] = WEIGHT_OF_ALL;
    } else if (msgl__depth_rate(d, of, 0) < USELESS || of->try_at > 0) {
        leave_out(of, tokens);
    }
}

static int32_t size_of(int32_t requests)
{
    int32_t size = 0;
    while (size < MSGL_PASS_SIZES - 1 && 1 << size < requests) size++;
    return size;
}

void msgl__depth_proposed(msgl_depths *d, int32_t requests, int32_t passes, uint64_t ns)
{
    if (requests < 1 || passes < 1) return;
    float *of = &d->pass_ns[size_of(requests)];
    const float now = ns > 0 ? (float)ns / (float)passes : 1;
    *of += *of > 0 ? SMOOTHING * (now - *of) : now;
}

// Expected of a pass, where `step` is what a step without drafts takes.
static float pass_of(const msgl_depths *d, int32_t requests, float step)
{
    const int32_t size = size_of(requests);
    for (int32_t i = 0; i < MSGL_PASS_SIZES; i++) { // of the nearest size
        if (size - i >= 0 && d->pass_ns[size - i] > 0) return d->pass_ns[size - i];
        if (size + i < MSGL_PASS_SIZES && d->pass_ns[size + i] > 0) return d->pass_ns[size + i];
    }
    return UNKNOWN_PASS * step;
}

static bool takes_part(const msgl_depth_ask *a)
{
    return a->of->try_at == 0;
}

// Whether tokens come faster with one draft for one of the answers, were it most likely right.
static bool may_pay(const msgl_depths *d, const msgl_step_costs *c, int32_t answers)
{
    const float alone = msgl__costs_of(c, answers), with = msgl__costs_of(c, answers + 1);
    const float tokens = (float)answers;
    return alone > 0 && (tokens + GOOD_TRY) / (with + pass_of(d, 1, alone)) > tokens / alone;
}

// One draft for the requests whose turn it is: beside others' drafts, or where it may pay, so many
// steps after the last time. What does not pay now is tried again like what is no use.
static void try_again(msgl_depths *d, const msgl_step_costs *c, int32_t answers,
                      msgl_depth_ask *asks, int32_t num, bool beside)
{
    bool any = false;
    if (!beside && (++d->since_try <= STEPS_BETWEEN_TRIES || !may_pay(d, c, answers))) return;
    for (int32_t i = 0; i < num; i++) {
        msgl_depth *of = asks[i].of;
        if (takes_part(&asks[i]) && !beside) leave_out(of, asks[i].tokens);
        if (of->try_at == 0 || asks[i].tokens < of->try_at) continue;
        asks[i].depth = 1;
        any = true;
    }
    if (any) d->since_try = 0;
}

// Rows more that a step has with the k-th pass of a request.
static int32_t rows_of(const msgl_depth_ask *a, int32_t k)
{
    if (a->width == 0) return 1;
    const int32_t left = a->rows - (k - 1) * a->width;
    return left < 0 ? 0 : left < a->width ? left : a->width;
}

void msgl__depth_choose(msgl_depths *d, const msgl_step_costs *c, int32_t answers,
                        msgl_depth_ask *asks, int32_t num)
{
    const float alone = msgl__costs_of(c, answers);
    float likely[MSGL_MAX_STEP_DRAFTS]; // that all drafts of a request so far are right
    float tokens = (float)answers, best = WORTH * tokens / alone;
    int32_t rows = answers, depth = 0;
    if (num > MSGL_MAX_STEP_DRAFTS) num = MSGL_MAX_STEP_DRAFTS;
    for (int32_t i = 0; i < num; i++) {
        likely[i] = 1;
        asks[i].depth = 0;
    }
    if (alone <= 0) return;
    for (int32_t k = 1; k <= MSGL_MAX_PROPOSALS; k++) {
        const float all = rate_at(d, k - 1);
        int32_t more = 0, more_rows = 0;
        for (int32_t i = 0; i < num; i++) {
            if (!takes_part(&asks[i]) || asks[i].most < k) continue;
            likely[i] *= rate_of(asks[i].of, all);
            tokens += likely[i];
            more_rows += rows_of(&asks[i], k);
            more++;
        }
        if (more == 0 || rows + more_rows - answers > MSGL_MAX_STEP_DRAFTS) break;
        rows += more_rows;
        const float time = msgl__costs_of(c, rows) + (float)k * pass_of(d, more, alone);
        if (tokens / time > best) {
            best = tokens / time;
            depth = k;
        }
    }
    for (int32_t i = 0; i < num; i++) {
        if (takes_part(&asks[i])) asks[i].depth = depth < asks[i].most ? depth : asks[i].most;
    }
    try_again(d, c, answers, asks, num, depth > 0);
}
