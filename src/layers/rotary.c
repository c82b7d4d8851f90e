// SPDX-License-Identifier: Apache-2.0
#include "layers/rotary.h"

#include <math.h>

static const double TWO_PI = 6.283185307179586476925;

const char *msgl__rope_type_name(msgl_rope_type t)
{
    static const char *const NAMES[MSGL_ROPE_TYPES] = {"default", "linear",   "dynamic",     "yarn",
                                                       "llama3",  "longrope", "proportional"};
    return (unsigned)t < MSGL_ROPE_TYPES ? NAMES[t] : "unknown";
}

// 1 / base^(2 i / dim), in f32 like transformers (Su et al. 2021, section 3.2.2).
static void plain(double base, int32_t dim, float *inv_freq)
{
    for (int32_t i = 0; i < dim / 2; i++) {
        inv_freq[i] = 1.0f / powf((float)base, (float)(2 * i) / (float)dim);
    }
}

// NTK-aware scaling whose base follows the sequence length ("dynamic NTK", bloc97 and emozilla
// 2023; Peng et al. 2023, appendix B.1).
static void dynamic(const msgl_rope_config *c, int32_t prompt_len, float *inv_freq)
{
    const double longest = c->max_position;
    const double n = prompt_len > c->max_position ? prompt_len : longest;
    const double stretch = c->factor * n / longest - (c->factor - 1);
    plain(c->theta * pow(stretch, (double)c->dim / (c->dim - 2)), c->dim, inv_freq);
}

// Llama 3.1: wavelengths beyond the original context are stretched by `factor`, short ones kept,
// those between interpolated (Meta's reference implementation, apply_scaling).
static void llama3(const msgl_rope_config *c, float *inv_freq)
{
    plain(c->theta, c->dim, inv_freq);
    const double low_wavelen = c->original_max / c->low_freq_factor;
    const double high_wavelen = c->original_max / c->high_freq_factor;
    for (int32_t i = 0; i < c->dim / 2; i++) {
        const double f = inv_freq[i], wavelen = TWO_PI / f;
        if (wavelen < high_wavelen) continue;
        if (wavelen >= low_wavelen) { // the two may be one: then nothing is between
            inv_freq[i] = (float)(f / c->factor);
            continue;
        }
        const double smooth = (c->original_max / wavelen - c->low_freq_factor) /
                              (c->high_freq_factor - c->low_freq_factor);
        inv_freq[i] = (float)((1 - smooth) * f / c->factor + smooth * f);
    }
}

// Dimension that makes `rotations` turns over the original context (Peng et al. 2023, section 3.2).
static double correction_dim(const msgl_rope_config *c, double rotations)
{
    return c->dim * log(c->original_max / (rotations * TWO_PI)) / (2 * log(c->theta));
}

// YaRN, "NTK-by-parts" (Peng et al. 2023, eq. 19-23 and the ramp of section 3.2).
static void yarn(const msgl_rope_config *c, float *inv_freq)
{
    double low = correction_dim(c, c->beta_fast), high = correction_dim(c, c->beta_slow);
    if (c->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->dim - 1);
    if (low == high) high += 0.001; // keeps the ramp finite
    plain(c->theta, c->dim, inv_freq);
    for (int32_t i = 0; i < c->dim / 2; i++) {
        const double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        const double f = inv_freq[i];
        inv_freq[i] = (float)(f / c->factor * ramp + f * (1 - ramp));
    }
}

// Peng et al. 2023, eq. 25, with the optional multiplier of later models.
static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * log(factor) + 1.0;
}

static double yarn_attention_factor(const msgl_rope_config *c)
{
    if (c->attention_factor > 0) return c->attention_factor;
    if (c->mscale > 0 && c->mscale_all_dim > 0) {
        return yarn_mscale(c->factor, c->mscale) / yarn_mscale(c->factor, c->mscale_all_dim);
    }
    return yarn_mscale(c->factor, 1);
}

// LongRoPE (Ding et al. 2024): every pair is stretched by a factor of its own, found by a search.
static void longrope(const msgl_rope_config *c, int32_t prompt_len, float *inv_freq)
{
    const float *by = prompt_len > c->original_max ? c->long_factor : c->short_factor;
    plain(c->theta, c->dim, inv_freq);
    for (int32_t i = 0; i < c->dim / 2; i++) inv_freq[i] /= by[i];
}

// Ding et al. 2024, section 3.3.
static double longrope_attention_factor(const msgl_rope_config *c)
{
    if (c->attention_factor > 0) return c->attention_factor;
    return c->factor <= 1 ? 1.0 : sqrt(1 + log(c->factor) / log(c->original_max));
}

// The frequencies are those of a whole head; pairs beyond the share stay.
static void proportional(const msgl_rope_config *c, float *inv_freq)
{
    plain(c->theta, c->dim, inv_freq);
    const int32_t rotated = (int32_t)(c->share * c->dim / 2);
    for (int32_t i = 0; i < c->dim / 2; i++) {
        inv_freq[i] = i < rotated ? inv_freq[i] / (float)c->factor : 0;
    }
}

float msgl__rope_inv_freq(const msgl_rope_config *cfg, int32_t prompt_len, float *inv_freq)
{
    switch (cfg->type) {
    case MSGL_ROPE_LINEAR: // Chen et al. 2023: positions divided by the factor
        plain(cfg->theta, cfg->dim, inv_freq);
        for (int32_t i = 0; i < cfg->dim / 2; i++) inv_freq[i] /= (float)cfg->factor;
        return 1.0f;
    case MSGL_ROPE_DYNAMIC: dynamic(cfg, prompt_len, inv_freq); return 1.0f;
    case MSGL_ROPE_YARN: yarn(cfg, inv_freq); return (float)yarn_attention_factor(cfg);
    case MSGL_ROPE_LLAMA3: llama3(cfg, inv_freq); return 1.0f;
    case MSGL_ROPE_LONGROPE:
        longrope(cfg, prompt_len, inv_freq);
        return (float)longrope_attention_factor(cfg);
    case MSGL_ROPE_PROPORTIONAL: proportional(cfg, inv_freq); return 1.0f;
    case MSGL_ROPE_NONE:
        for (int32_t i = 0; i < cfg->dim / 2; i++) inv_freq[i] = 0;
        return 1.0f;
    case MSGL_ROPE_DEFAULT:
    default: plain(cfg->theta, cfg->dim, inv_freq); return 1.0f;
    }
}

// The length that decides a request's frequencies: prompts that share a set have the same.
static int32_t effective_len(const msgl_rope_config *cfg, const msgl_batch_req *r)
{
    if (cfg->type == MSGL_ROPE_LONGROPE) {
        return r->prompt_len > cfg->original_max ? cfg->max_position : cfg->original_max;
    }
    return r->prompt_len > cfg->max_position ? r->prompt_len : cfg->max_position;
}

int32_t msgl__rope_prepare(const msgl_rope_config *cfg, const msgl_batch *batch, float *inv_freq,
                           msgl_rope_segment *segments, float *scale)
{
    if (!msgl__rope_per_request(cfg)) {
        *scale = msgl__rope_inv_freq(cfg, 0, inv_freq);
        segments[0] = (msgl_rope_segment){.first = 0, .count = batch->num_tokens, .row = 0};
        return 1;
    }
    int32_t n = 0, token = 0, last_len = -1;
    for (int32_t i = 0; i < batch->size; i++) {
        const msgl_batch_req *r = &batch->reqs[i];
        const int32_t len = effective_len(cfg, r), count = msgl__extend_len(r);
        if (len != last_len) {
            float *row = inv_freq + (size_t)n * (size_t)(cfg->dim / 2);
            *scale = msgl__rope_inv_freq(cfg, len, row); // the same for all lengths
            segments[n] = (msgl_rope_segment){.first = token, .count = 0, .row = n};
            n++;
            last_len = len;
        }
        segments[n - 1].count += count;
        token += count;
    }
    return n;
}

size_t msgl__ropes_floats(const msgl_rope_config *ropes, int32_t num, int32_t max_requests)
{
    size_t n = 0;
    for (int32_t i = 0; i < num; i++) {
        n += (size_t)msgl__rope_max_rows(&ropes[i], max_requests) * (size_t)(ropes[i].dim / 2);
    }
    return n;
}

size_t msgl__ropes_segments(const msgl_rope_config *ropes, int32_t num, int32_t max_requests)
{
    size_t n = 0;
    for (int32_t i = 0; i < num; i++) n += (size_t)msgl__rope_max_rows(&ropes[i], max_requests);
    return n;
}

void msgl__ropes_prepare(const msgl_rope_config *ropes, int32_t num, const msgl_batch *batch,
                         float *inv_freq, const float *device, msgl_rope_segment *segments,
                         msgl_step_rope *out)
{
    for (int32_t i = 0; i < num; i++) {
        const int32_t half = ropes[i].dim / 2;
        out[i] = (msgl_step_rope){
            .inv_freq = device, .segments = segments, .half = half, .dual = ropes[i].dual};
        out[i].num_segments =
            msgl__rope_prepare(&ropes[i], batch, inv_freq, segments, &out[i].scale);
        const size_t floats = (size_t)out[i].num_segments * (size_t)half;
        inv_freq += floats;
        device += floats;
        segments += out[i].num_segments;
    }
}
