// SPDX-License-Identifier: Apache-2.0
#include "core/sampling_params.h"

#include "core/attributes.h"
#include "core/batch.h"
#include "core/settings.h"

#define FLAGS (MSGL_CMD_CHAT | MSGL_CMD_RUN)

static const msgl_setting ROWS[] = {
    {
        .name = "temperature",
        MSGL_REAL(msgl_sampling_params, temperature),
        .max = 1e6,
        .unset = true,
        .by_default = ": the model's generation_config.json, else 1; bench serve: 0",
        .commands = FLAGS | MSGL_CMD_BENCH,
        .group = "requests",
        .metavar = "X",
        .help = "0 is greedy",
    },
    {
        .name = "top-p",
        MSGL_REAL(msgl_sampling_params, top_p),
        .min = 1e-37, // it is above 0 as a float, too
        .max = 1,
        .preset = 1,
        .unset = true,
        .by_default = ": the model's, else 1",
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "nucleus sampling",
    },
    {
        .name = "min-p",
        MSGL_REAL(msgl_sampling_params, min_p),
        .max = 1,
        .unset = true,
        .by_default = ": the model's, else 0",
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "drop tokens less likely than X times the most likely",
    },
    {
        .name = "top-k",
        MSGL_INT(msgl_sampling_params, top_k),
        .min = -1,
        .max = INT32_MAX,
        .unset = true,
        .by_default = ": the model's, else 0",
        .commands = FLAGS,
        .group = "requests",
        .metavar = "N",
        .help = "sample among the N most likely; 0 or -1 is off",
    },
    {
        .name = "repetition-penalty",
        MSGL_REAL(msgl_sampling_params, repetition_penalty),
        .min = 0.01, // logits are divided by it; the limits are far beyond what anyone uses, and
        .max = 100,  // no logit overflows
        .preset = 1,
        .unset = true,
        .by_default = ": the model's, else 1",
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "above 1: makes tokens of prompt and answer less likely",
    },
    // A model's generation_config.json can set the MSGL_SAMPLING_OF_MODEL rows above, and none
    // below.
    {
        .name = "frequency-penalty",
        MSGL_REAL(msgl_sampling_params, frequency_penalty),
        .min = -2,
        .max = 2,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "taken off the logit of a token, times how often the answer has it",
    },
    {
        .name = "presence-penalty",
        MSGL_REAL(msgl_sampling_params, presence_penalty),
        .min = -2,
        .max = 2,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "taken off the logits of tokens that the answer has",
    },
    // These are llama.cpp's samplers, with its defaults for those that are on (docs/sampling.md).
    {
        .name = "typical-p",
        MSGL_REAL(msgl_sampling_params, typical_p),
        .min = 1e-37,
        .max = 1,
        .preset = 1,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "locally typical sampling: 1 is off",
    },
    {
        .name = "xtc-probability",
        MSGL_REAL(msgl_sampling_params, xtc_probability),
        .max = 1,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "how often XTC drops all likely tokens but the least likely of them; 0 is off",
    },
    {
        .name = "xtc-threshold",
        MSGL_REAL(msgl_sampling_params, xtc_threshold),
        .max = 1,
        .preset = 0.1,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "probability from which a token is likely for XTC",
    },
    {
        .name = "top-n-sigma",
        MSGL_REAL(msgl_sampling_params, top_n_sigma),
        .min = -1,
        .max = 1e6,
        .preset = -1,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "drop tokens whose logit is more than X standard deviations below the largest; 0 "
                "or less is off",
    },
    {
        .name = "dynatemp-range",
        MSGL_REAL(msgl_sampling_params, dynatemp_range),
        .max = 1e6,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "the temperature is up to X more or less, by the entropy of the distribution; 0 is "
                "off",
    },
    {
        .name = "dynatemp-exponent",
        MSGL_REAL(msgl_sampling_params, dynatemp_exponent),
        .max = 100,
        .preset = 1,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "exponent of the normalised entropy in this",
    },
    {
        .name = "dry-multiplier",
        MSGL_REAL(msgl_sampling_params, dry_multiplier),
        .max = 100,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "DRY: what a token costs that goes on with a repeat; 0 is off",
    },
    {
        .name = "dry-base",
        MSGL_REAL(msgl_sampling_params, dry_base),
        .min = 1,
        .max = 100,
        .preset = 1.75,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "what it costs more for each token that the repeat is longer",
    },
    {
        .name = "dry-allowed-length",
        MSGL_INT(msgl_sampling_params, dry_allowed_length),
        .max = 512,
        .preset = 2,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "N",
        .help = "length of a repeat from which on it costs",
    },
    {
        .name = "dry-penalty-last-n",
        MSGL_INT(msgl_sampling_params, dry_penalty_last_n),
        .min = -1,
        .max = INT32_MAX,
        .preset = -1,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "N",
        .help = "tokens that DRY looks for repeats in; 0 is off, -1 all",
    },
    {
        .name = "mirostat",
        MSGL_INT(msgl_sampling_params, mirostat),
        .max = 2,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "N",
        .help =
            "2: Mirostat 2.0 chooses, without top-k, top-p and other filters; 0 is off, 1 refused",
    },
    {
        .name = "mirostat-tau",
        MSGL_REAL(msgl_sampling_params, mirostat_tau),
        .max = 1000,
        .preset = 5,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "surprise of tokens that Mirostat aims at, in bits",
    },
    {
        .name = "mirostat-eta",
        MSGL_REAL(msgl_sampling_params, mirostat_eta),
        .max = 10,
        .preset = 0.1,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "X",
        .help = "how fast Mirostat adapts",
    },
    {
        .name = "ignore-eos",
        MSGL_FLAG(msgl_sampling_params, ignore_eos),
        .commands = FLAGS,
        .group = "requests",
        .help = "go on after the model's end token",
    },
    {
        .name = "min-tokens",
        MSGL_INT(msgl_sampling_params, min_tokens),
        .max = INT32_MAX,
        .commands = FLAGS,
        .group = "requests",
        .metavar = "N",
        .help = "tokens that an answer has at least: before, no end token is chosen, and stop "
                "strings are not looked for",
    },
    {
        MSGL_INT(msgl_sampling_params, speculative),
        .min = -1,
        .max = MSGL_MAX_DRAFTS,
        .preset = -1,
        .help = "drafts of an answer and step at most, where the engine makes some; false or 0: "
                "none; true or -1: as many as pay",
    },
};
const msgl_setting_table msgl__sampling_settings = {ROWS, MSGL_COUNT(ROWS)};

msgl_sampling_params msgl__sampling_params_default(void)
{
    msgl_sampling_params p = {
        .max_tokens = MSGL_USUAL_MAX_TOKENS,
        .logprobs = -1,
        .prompt_logprobs = -1,
    };
    msgl__settings_default(&msgl__sampling_settings, &p);
    return p;
}

msgl_sampling_params msgl__sampling_params_plain(void)
{
    msgl_sampling_params p = msgl__sampling_params_default();
    p.temperature = 1.0f;
    return p;
}

int msgl__sampling_params_check(const msgl_sampling_params *p, int vocab_size, msgl_err *err)
{
    const int rc = msgl__settings_check(&msgl__sampling_settings, p, err);
    if (rc != 0) return rc;
    if (p->mirostat == 1) {
        return msgl__err_set(err, MSGL_EINVAL, "mirostat is 1; allowed: 0, or 2 (Mirostat 2.0)");
    }
    if (p->max_tokens < 1) {
        return msgl__err_set(err, MSGL_EINVAL, "max_tokens is %d; allowed: 1 or more",
                             p->max_tokens);
    }
    if (p->min_tokens > p->max_tokens) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "min_tokens is %d; allowed: at most max_tokens, which is %d",
                             p->min_tokens, p->max_tokens);
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
