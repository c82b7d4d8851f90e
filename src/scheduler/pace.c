// SPDX-License-Identifier: Apache-2.0
#include "scheduler/pace.h"

enum {
    // Below LARGE tokens a step says little of what a token costs in a larger one: beside answers
    // next to nothing, alone mostly what reading the weights takes. Such steps can lower an
    // estimate (after a stall), but not make or raise one, and beside answers not below what a
    // token costs alone.
    LARGE = 32,
    ROUND = 8,      // whole tiles of the GEMM kernels
    UNKNOWN = 512,  // tokens, while nothing is known
    SPREAD = 2,     // steps that a prompt is spread over
    MAX_MIXED = 16, // in a row, before answers are measured alone again
    FULL_TILES = 2, // up to so many tiles of tokens reading the weights hides most of the products
    PATIENCE = 30,  // gaps that prompts wait before they get longer ones
};

static const uint64_t IDLE_NS = 500000000;  // of a step while nobody waits for a token
static const uint64_t SOON_NS = 40000000;   // of one that completes a prompt before
static const uint64_t STREAM_NS = 20000000; // of one that nobody notices in a stream
static const uint64_t CROWD_NS = 60000000;  // of one while many prompts wait
static const uint64_t MAX_NS = UINT64_MAX / 1000000;

// Of n tokens beside num_answers, those that fill tiles.
static int64_t filling(int32_t num_answers, int32_t tile, int64_t n)
{
    const int64_t room = (int64_t)FULL_TILES * tile - num_answers;
    if (room <= 0) return 0;
    return n < room ? n : room;
}

static void observe_token(uint64_t *estimate, int32_t num_chunk, uint64_t ns, uint64_t least)
{
    const uint64_t per = ns * 1000 / (uint64_t)num_chunk + 1, mean = (*estimate + per) / 2;
    if (num_chunk >= LARGE) {
        *estimate = *estimate == 0 ? per : mean;
    } else if (mean < *estimate && least < *estimate) {
        *estimate = mean > least ? mean : least;
    }
}

// What a chunk added to a step: first the price of those that fill tiles is taken from it, once it
// is known.
static void observe_chunk(msgl_pace *p, int32_t num_answers, int32_t num_chunk, int32_t tile,
                          uint64_t ns)
{
    const int32_t fill = (int32_t)filling(num_answers, tile, num_chunk);
    if (fill == num_chunk) {
        observe_token(&p->filling_ps, num_chunk, ns, p->chunk_ps);
    } else if (p->filling_ps == 0) {
        observe_token(&p->riding_ps, num_chunk, ns, p->chunk_ps);
    } else {
        const uint64_t filled = p->filling_ps * (uint64_t)fill / 1000;
        observe_token(&p->riding_ps, num_chunk - fill, ns > filled ? ns - filled : 1, p->chunk_ps);
    }
}

void msgl__pace_observe(msgl_pace *p, int32_t num_answers, int32_t num_chunk, int32_t tile,
                        uint64_t compute_ns)
{
    if (compute_ns < 1) compute_ns = 1;
    if (compute_ns > MAX_NS) compute_ns = MAX_NS;
    if (num_chunk == 0) {
        p->answers_ns = p->answers_ns == 0 ? compute_ns : (p->answers_ns + compute_ns) / 2;
        p->mixed_in_row = 0;
    } else if (num_answers == 0) {
        observe_token(&p->chunk_ps, num_chunk, compute_ns, 1);
    } else {
        const uint64_t alone = p->answers_ns;
        observe_chunk(p, num_answers, num_chunk, tile, compute_ns > alone ? compute_ns - alone : 1);
        p->mixed_in_row++;
    }
}

static uint64_t first_known(uint64_t a, uint64_t b, uint64_t c)
{
    return a > 0 ? a : b > 0 ? b : c;
}

static int64_t tokens_in(uint64_t ns, uint64_t token_ps)
{
    const uint64_t n = ns * 1000 / token_ps;
    return n > INT32_MAX ? INT32_MAX : (int64_t)n;
}

// Prompt tokens that add ns to a step with num_answers answers; some price is known.
static int64_t tokens_beside(const msgl_pace *p, int32_t num_answers, int32_t tile, uint64_t ns)
{
    const uint64_t riding = first_known(p->riding_ps, p->chunk_ps, p->filling_ps);
    const uint64_t fill_ps = first_known(p->filling_ps, riding, 0);
    const int64_t n = tokens_in(ns, fill_ps), fill = filling(num_answers, tile, n);
    if (fill == n) return n;
    return fill + tokens_in(ns - fill_ps * (uint64_t)fill / 1000, riding);
}

// What a step with answers may take while `tokens` of prompts wait.
static uint64_t promised_gap(const msgl_pace *p, int64_t tokens)
{
    const uint64_t token_ps = first_known(p->chunk_ps, p->riding_ps, p->filling_ps);
    const uint64_t usual = p->answers_ns / 5 * 9;
    uint64_t gap = CROWD_NS;
    if (tokens < tokens_in(PATIENCE * CROWD_NS, token_ps)) {
        gap = (uint64_t)tokens * token_ps / 1000 / PATIENCE;
    }
    if (gap < STREAM_NS) gap = STREAM_NS;
    return gap > usual ? gap : usual;
}

// Prompt tokens a step by which as many prompts end as answers do, and two and a half times that,
// for what waits to get less, too.
static int64_t keeping_up(int32_t num_answers, const msgl_pace_queue *q)
{
    if (q->prompts == 0) return 0;
    return 5 * num_answers * (q->tokens / q->prompts) / (2 * (int64_t)q->answer_len);
}

static int64_t beside_answers(const msgl_pace *p, int32_t num_answers, const msgl_pace_queue *q,
                              int32_t tile)
{
    const uint64_t alone = p->answers_ns;
    if (alone == 0 || p->mixed_in_row >= MAX_MIXED) return 0;
    if (first_known(p->riding_ps, p->chunk_ps, p->filling_ps) == 0) return LARGE;
    int64_t fit = tokens_beside(p, num_answers, tile, promised_gap(p, q->tokens) - alone);
    const int64_t most = tokens_beside(p, num_answers, tile, alone / 4 * 7);
    int64_t needed = keeping_up(num_answers, q);
    if (needed < LARGE) needed = LARGE; // fewer would never show what many cost
    if (fit < needed && fit < most) fit = needed < most ? needed : most;
    // Tokens for half of what the answers take are worth a step of their own, and so are those that
    // the products take nearly for nothing.
    int64_t wanted = tokens_beside(p, num_answers, tile, alone / 2);
    if (wanted < (int64_t)FULL_TILES * tile - num_answers) {
        wanted = (int64_t)FULL_TILES * tile - num_answers;
    }
    if (wanted < q->tokens / SPREAD) wanted = q->tokens / SPREAD;
    return wanted < fit ? wanted : fit;
}

int32_t msgl__pace_budget(const msgl_pace *p, int32_t num_answers, const msgl_pace_queue *queue,
                          int32_t tile, int32_t max_tokens)
{
    int64_t n = UNKNOWN;
    if (num_answers > 0) {
        n = beside_answers(p, num_answers, queue, tile);
        if (n == 0) return 0;
    } else if (p->chunk_ps > 0) {
        const int64_t most = tokens_in(IDLE_NS, p->chunk_ps);
        const int64_t soon = tokens_in(SOON_NS, p->chunk_ps);
        n = queue->first > soon ? (int64_t)queue->first + ROUND - 1 : soon;
        if (n > most) n = most;
    }
    const int64_t whole = tile > 0 ? (num_answers + n) / tile * tile - num_answers : 0;
    n = whole >= n / 2 ? whole : n / ROUND * ROUND;
    if (n < ROUND) n = ROUND;
    return n < max_tokens ? (int32_t)n : max_tokens;
}
