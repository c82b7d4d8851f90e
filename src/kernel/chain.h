// SPDX-License-Identifier: Apache-2.0
//
// What the samplers of msgl_sample_chain compute per token, for the CPU's loops
// (kernel/ref/chain.h) and the GPU's threads (cuda/ops/chain.cu). Sums of probabilities and
// of surprises are integers in fixed point, so that no result depends on the order in which threads
// add; both devices draw with the same uniform number from the survivors in the order of their ids,
// and so choose the same tokens but where their exp() differs in the last bit at a limit.
#ifndef MSGL_KERNEL_CHAIN_H
#define MSGL_KERNEL_CHAIN_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernel/calls.h"
#include "utils/random.h"

#ifdef __CUDACC__
#define CHAIN_FN static __device__ __forceinline__
#else
#define CHAIN_FN static inline
#endif

#define CHAIN_ONE 0x1p39     // the most likely token's weight in fixed point
#define CHAIN_ALL UINT64_MAX // as a limit of keys: none
#define CHAIN_ID_BITS 24     // MSGL_MAX_VOCAB
#define CHAIN_GREEDY 1e-6    // temperatures below it choose the most likely token

CHAIN_FN uint64_t chain_mix(uint64_t z) // msgl__mix_bits, which is no function of a GPU
{
    z += MSGL_RANDOM_STEP;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

// Uniform in [0, 1) from (seed, position): 0 is the draw's number, the CPU sampler's, 1 XTC's.
CHAIN_FN double chain_uniform(uint64_t seed, int32_t position, int which)
{
    uint64_t z = chain_mix(seed + MSGL_RANDOM_STEP * (uint64_t)(uint32_t)position);
    if (which == 1) z = ~z;
    return (double)((chain_mix(z) + MSGL_RANDOM_STEP) >> 11) * 0x1p-53;
}

// Ascending keys are descending logits, then ascending ids; -0 and 0 are one.
CHAIN_FN uint64_t chain_key(float logit, int32_t id)
{
    uint32_t u;
    logit += 0.0f;
    memcpy(&u, &logit, sizeof u);
    u ^= u >> 31 != 0 ? 0xffffffffu : 0x80000000u;
    return (uint64_t)~u << CHAIN_ID_BITS | (uint32_t)id;
}

CHAIN_FN int32_t chain_id(uint64_t key)
{
    return (int32_t)(key & ((1u << CHAIN_ID_BITS) - 1));
}

// exp(x) for x <= 0, and x exp(x) negated, in fixed point: 2^18 tokens' sum fits 64 bits.
CHAIN_FN uint64_t chain_mass(double x)
{
    return (uint64_t)(exp(x) * CHAIN_ONE);
}

CHAIN_FN uint64_t chain_surprise(double x)
{
    return (uint64_t)(-x * exp(x) * CHAIN_ONE);
}

// Entropy, in nats, of a distribution whose masses and surprises have these sums.
CHAIN_FN double chain_entropy(uint64_t mass, uint64_t surprise)
{
    return log((double)mass / CHAIN_ONE) + (double)surprise / (double)mass;
}

// Ascending keys are tokens ever less typical, then ascending ids. A token's surprise is log_sum -
// x, in nats; f32, so that both devices see the same ties.
CHAIN_FN uint64_t chain_typical_key(double x, double log_sum, double entropy, int32_t id)
{
    const float score = (float)fabs(log_sum - x - entropy);
    uint32_t u;
    memcpy(&u, &score, sizeof u); // not negative: its bits are in order
    return (uint64_t)u << CHAIN_ID_BITS | (uint32_t)id;
}

// Mass that a prefix has to reach to have the fraction p of all, or, `beyond`, more than that.
CHAIN_FN uint64_t chain_mass_target(float p, uint64_t total, bool beyond)
{
    const double target = (double)p * (double)total;
    const uint64_t mass = (uint64_t)(beyond ? floor(target) + 1 : ceil(target));
    return mass < 1 ? 1 : mass > total ? total : mass;
}

// The temperature that the entropy of `count` tokens asks for.
CHAIN_FN double chain_temperature(const msgl_sample_chain *c, float temperature, int32_t count,
                                  double entropy)
{
    const double range = (double)c->dynatemp_range, t = (double)temperature;
    if (!(range > 0) || c->mirostat != 0 || count < 2) return t;
    const double low = t > range ? t - range : 0, high = t + range;
    const double fraction = entropy > 0 ? entropy / log((double)count) : 0;
    return low + (high - low) * pow(fraction < 1 ? fraction : 1, (double)c->dynatemp_exponent);
}

// Mirostat 2's mu behind a token of probability e^(x - log_sum) among those that were left.
CHAIN_FN float chain_next_mu(const msgl_sample_chain *c, float mu, double x, double log_sum)
{
    const double surprise = (log_sum - x) / 0.693147180559945309417;
    return (float)((double)mu - (double)c->mirostat_eta * (surprise - (double)c->mirostat_tau));
}

// ---- DRY ----

// Tokens of the history that DRY looks at, up to the last one.
CHAIN_FN int32_t chain_dry_window(const msgl_sample_chain *c, int32_t position)
{
    if (!(c->dry_multiplier > 0) || c->dry_last_n == 0) return 0;
    return c->dry_last_n > 0 && c->dry_last_n < position ? c->dry_last_n : position;
}

// Beyond it the penalty grows no more: the largest exponent is that of llama.cpp, which keeps
// base^exponent below the largest float, and never more than MSGL_DRY_MAX_EXPONENT.
CHAIN_FN int32_t chain_dry_longest(const msgl_sample_chain *c)
{
    if (!(c->dry_base > 1.000001f)) return c->dry_allowed_length;
    const double most = 88.7228391 / log((double)c->dry_base);
    const int32_t cut = most < MSGL_DRY_MAX_EXPONENT ? (int32_t)most : MSGL_DRY_MAX_EXPONENT;
    return c->dry_allowed_length + cut;
}

CHAIN_FN float chain_dry_penalty(const msgl_sample_chain *c, int32_t len)
{
    const double p =
        (double)c->dry_multiplier * pow((double)c->dry_base, (double)(len - c->dry_allowed_length));
    return (float)(p < 1e30 ? p : 1e30); // finite: something stays to be chosen
}

// breakers: of the row, or NULL.
CHAIN_FN bool chain_breaks(const uint32_t *breakers, int32_t token)
{
    return breakers != NULL && breakers[token / 32] >> (token % 32) & 1;
}

// How many tokens up to the one `back` before the end are those up to the end, `most` at most.
// Ends of a window of n tokens: of a b c x a b with back 4, b b and a a match, so 2.
CHAIN_FN int32_t chain_dry_match(const int32_t *end, int32_t n, int32_t back, int32_t most)
{
    int32_t len = 0;
    while (len < most && len + back < n && end[-1 - len] == end[-1 - len - back]) len++;
    return len;
}

#endif
