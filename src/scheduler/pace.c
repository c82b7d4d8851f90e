// SPDX-License-Identifier: Apache-2.0
#include "scheduler/pace.h"

// Below LARGE tokens a step's fixed costs (reading the weights) hide what a token costs: such steps
// can lower an estimate, but not make or raise one, or a short prompt would make all chunks tiny.
enum { LARGE = 32, ROUND = 8, UNKNOWN = 512 };

static const uint64_t IDLE_NS = 500000000;  // of a prefill step while nobody waits for a token
static const uint64_t STREAM_NS = 20000000; // of one that nobody notices in a stream

void msgl__pace_observe(msgl_pace *p, msgl_phase phase, int32_t num_tokens, uint64_t compute_ns)
{
    if (compute_ns < 1) compute_ns = 1;
    if (compute_ns > UINT64_MAX / 1000000) compute_ns = UINT64_MAX / 1000000;
    if (phase == MSGL_DECODE) {
        p->decode_ns = p->decode_ns == 0 ? compute_ns : (3 * p->decode_ns + compute_ns) / 4;
        return;
    }
    const uint64_t per = compute_ns * 1000 / (uint64_t)num_tokens + 1;
    if (num_tokens >= LARGE && p->prefill_token_ps == 0) {
        p->prefill_token_ps = per;
    } else if (num_tokens >= LARGE || per < p->prefill_token_ps) {
        p->prefill_token_ps = (p->prefill_token_ps + per) / 2;
    }
}

int32_t msgl__pace_budget(const msgl_pace *p, bool decoding, int32_t max_tokens)
{
    if (decoding && p->decode_ns == 0) return 0;
    int64_t n = decoding ? LARGE : UNKNOWN;
    if (p->prefill_token_ps > 0) {
        const uint64_t share = p->decode_ns / 4 * 7;
        const uint64_t ns = !decoding ? IDLE_NS : share > STREAM_NS ? share : STREAM_NS;
        const uint64_t fit = ns * 1000 / p->prefill_token_ps;
        n = fit > INT32_MAX ? INT32_MAX : (int64_t)fit;
    }
    n = n / ROUND * ROUND; // whole tiles of the GEMM kernels
    if (n < ROUND) n = ROUND;
    return n < max_tokens ? (int32_t)n : max_tokens;
}
