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
    SPREAD = 4,     // steps that a backlog is spread over
    MAX_MIXED = 16, // in a row, before answers are measured alone again
    FULL_TILES = 2, // up to so many tiles of tokens reading the weights hides most of the products
    PATIENCE = 20,  // gaps that prompts wait before they get longer ones
};

static const uint64_t IDLE_NS = 500000000;  // of a step while nobody waits for a token
static const uint64_t SOON_NS = 40000000;   // of one that completes a prompt before
static const uint64_t STREAM_NS = 20000000; // of one that nobody notices in a stream
static const uint64_t CROWD_NS = 60000000;  // of one while many prompts wait
static const uint64_t MAX_NS = UINT64_MAX / 1000000;

static void observe_token(uint64_t *estimate, int32_t num_chunk, uint64_t ns, uint64_t least)
{
    const uint64_t per = ns * 1000 / (uint64_t)num_chunk + 1, mean = (*estimate + per) / 2;
    if (num_chunk >= LARGE) {
        *estimate = *estimate == 0 ? per : mean;
    } else if (mean < *estimate && least < *estimate) {
        *estimate = mean > least ? mean : least;
    }
}

void msgl__pace_observe(msgl_pace *p, int32_t num_answers, int32_t num_chunk, uint64_t compute_ns)
{
    if (compute_ns < 1) compute_ns = 1;
    if (compute_ns > MAX_NS) compute_ns = MAX_NS;
    if (num_chunk == 0) {
        p->answers_ns = p->answers_ns == 0 ? compute_ns : (3 * p->answers_ns + compute_ns) / 4;
        p->mixed_in_row = 0;
    } else if (num_answers == 0) {
        observe_token(&p->chunk_ps, num_chunk, compute_ns, 1);
    } else {
        const uint64_t alone = p->answers_ns;
        observe_token(&p->riding_ps, num_chunk, compute_ns > alone ? compute_ns - alone : 1,
                      p->chunk_ps);
        p->mixed_in_row++;
    }
}

static int64_t tokens_in(uint64_t ns, uint64_t token_ps)
{
    const uint64_t n = ns * 1000 / token_ps;
    return n > INT32_MAX ? INT32_MAX : (int64_t)n;
}

// What a step with answers may take while `backlog` prompt tokens of token_ps each wait.
static uint64_t promised_gap(const msgl_pace *p, int64_t backlog, uint64_t token_ps)
{
    const uint64_t most = p->answers_ns / 4 * 11;
    uint64_t gap = CROWD_NS;
    if (backlog < tokens_in(PATIENCE * CROWD_NS, token_ps)) {
        gap = (uint64_t)backlog * token_ps / 1000 / PATIENCE;
    }
    if (gap < STREAM_NS) gap = STREAM_NS;
    return gap > most ? gap : most;
}

static int64_t beside_answers(const msgl_pace *p, int32_t num_answers, int64_t backlog,
                              int32_t tile)
{
    const uint64_t alone = p->answers_ns;
    const uint64_t token_ps = p->riding_ps > 0 ? p->riding_ps : p->chunk_ps;
    if (alone == 0 || p->mixed_in_row >= MAX_MIXED) return 0;
    if (token_ps == 0) return LARGE;
    const uint64_t gap = promised_gap(p, backlog, p->chunk_ps > 0 ? p->chunk_ps : token_ps);
    const int64_t fit = tokens_in(gap - alone, token_ps);
    // Tokens for half of what the answers take are worth a step of their own, and so are those that
    // the products take nearly for nothing.
    int64_t wanted = tokens_in(alone / 2, token_ps);
    if (wanted < (int64_t)FULL_TILES * tile - num_answers) {
        wanted = (int64_t)FULL_TILES * tile - num_answers;
    }
    if (wanted < backlog / SPREAD) wanted = backlog / SPREAD;
    return wanted < fit ? wanted : fit;
}

int32_t msgl__pace_budget(const msgl_pace *p, int32_t num_answers, int64_t backlog, int32_t first,
                          int32_t tile, int32_t max_tokens)
{
    int64_t n = UNKNOWN;
    if (num_answers > 0) {
        n = beside_answers(p, num_answers, backlog, tile);
        if (n == 0) return 0;
    } else if (p->chunk_ps > 0) {
        const int64_t most = tokens_in(IDLE_NS, p->chunk_ps);
        const int64_t soon = tokens_in(SOON_NS, p->chunk_ps);
        n = first > soon ? (int64_t)first + ROUND - 1 : soon;
        if (n > most) n = most;
    }
    const int64_t whole = tile > 0 ? (num_answers + n) / tile * tile - num_answers : 0;
    n = whole >= n / 2 ? whole : n / ROUND * ROUND;
    if (n < ROUND) n = ROUND;
    return n < max_tokens ? (int32_t)n : max_tokens;
}
