// SPDX-License-Identifier: Apache-2.0
#include "core/sampling_params.h"

#include <math.h>

msgl_sampling_params msgl__sampling_params_default(void)
{
    return (msgl_sampling_params){
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .max_tokens = MSGL_USUAL_MAX_TOKENS,
        .logprobs = -1,
        .prompt_logprobs = -1,
    };
}

msgl_sampling_params msgl__sampling_params_plain(void)
{
    msgl_sampling_params p = msgl__sampling_params_default();
    p.temperature = 1.0f;
    return p;
}

static int check_penalty(const char *name, float v, float min, float max, msgl_err *err)
{
    if (v >= min && v <= max) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "%s is %g; allowed: %g to %g", name, (double)v,
                         (double)min, (double)max);
}

static int check_penalties(const msgl_sampling_params *p, msgl_err *err)
{
    int rc = check_penalty("repetition_penalty", p->repetition_penalty, MSGL_MIN_REPETITION,
                           MSGL_MAX_REPETITION, err);
    if (rc == 0) {
        rc = check_penalty("frequency_penalty", p->frequency_penalty, -MSGL_MAX_PENALTY,
                           MSGL_MAX_PENALTY, err);
    }
    if (rc == 0) {
        rc = check_penalty("presence_penalty", p->presence_penalty, -MSGL_MAX_PENALTY,
                           MSGL_MAX_PENALTY, err);
    }
    return rc;
}

int msgl__sampling_params_check(const msgl_sampling_params *p, int vocab_size, msgl_err *err)
{
    if (!(p->temperature >= 0.0f) || !isfinite(p->temperature)) {
        return msgl__err_set(err, MSGL_EINVAL, "temperature is %g; allowed: a number >= 0",
                             (double)p->temperature);
    }
    if (!(p->top_p > 0.0f && p->top_p <= 1.0f)) {
        return msgl__err_set(err, MSGL_EINVAL, "top_p is %g; allowed: above 0, at most 1",
                             (double)p->top_p);
    }
    if (!(p->min_p >= 0.0f && p->min_p <= 1.0f)) {
        return msgl__err_set(err, MSGL_EINVAL, "min_p is %g; allowed: 0 to 1", (double)p->min_p);
    }
    if (p->top_k < 0) {
        return msgl__err_set(err, MSGL_EINVAL, "top_k is %d; allowed: 0 (off) or more", p->top_k);
    }
    const int rc = check_penalties(p, err);
    if (rc != 0) return rc;
    if (p->max_tokens < 1) {
        return msgl__err_set(err, MSGL_EINVAL, "max_tokens is %d; allowed: 1 or more",
                             p->max_tokens);
    }
    if (p->logprobs < -1 || p->logprobs > MSGL_MAX_LOGPROBS || p->prompt_logprobs < -1 ||
        p->prompt_logprobs > MSGL_MAX_LOGPROBS) {
        return msgl__err_set(
            err, MSGL_EINVAL, "logprobs is %d; allowed: 0 to %d",
            p->logprobs < -1 || p->logprobs > MSGL_MAX_LOGPROBS ? p->logprobs : p->prompt_logprobs,
            MSGL_MAX_LOGPROBS);
    }
    if (p->num_stop_ids < 0 || p->num_stop_ids > MSGL_MAX_STOP_IDS) {
        return msgl__err_set(err, MSGL_EINVAL, "stop_token_ids has %d entries; allowed: at most %d",
                             p->num_stop_ids, MSGL_MAX_STOP_IDS);
    }
    for (int i = 0; i < p->num_stop_ids; i++) {
        if (p->stop_ids[i] < 0 || p->stop_ids[i] >= vocab_size) {
            return msgl__err_set(err, MSGL_EINVAL, "stop_token_ids contains %d; allowed: 0 to %d",
                                 p->stop_ids[i], vocab_size - 1);
        }
    }
    return 0;
}
