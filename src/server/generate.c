// SPDX-License-Identifier: Apache-2.0
//
// POST /generate in two forms. Mini-SGLang's has everything at the top, is greedy and streams plain
// text. SGLang's has an object "sampling_params" (or "input_ids"), the model's own sampling
// defaults, and answers with "text" and "meta_info".
#include <stdio.h>
#include <string.h>

#include "server/fields.h"

bool msgl__is_sglang(const json_t *o)
{
    return msgl__field(o, "sampling_params") != NULL || msgl__field(o, "input_ids") != NULL;
}

static int one_prompt(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                      msgl_api_error *e)
{
    const char *name =
        msgl__field(o, "prompt") == NULL && msgl__field(o, "text") != NULL ? "text" : "prompt";
    const int rc = msgl__parse_prompts(json_object_get(o, name), name, cfg, out, e);
    if (rc == 0 && out->num_prompts != 1) {
        return msgl__api_fail(e, 400, name, "invalid_value", "'%s' must be one prompt.", name);
    }
    return rc;
}

static int parse_plain(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                       msgl_api_error *e)
{
    out->sampling = msgl__sampling_params_default(); // Mini-SGLang's /generate is greedy
    out->stream = true;                              // and always streams
    const int rc = msgl__parse_sampling(o, cfg, out, e);
    if (rc < 0) return rc;
    if (out->max_tokens < 0) out->max_tokens = MSGL_USUAL_MAX_TOKENS;
    if (out->n != 1) {
        return msgl__api_fail(e, 400, "n", "unsupported_parameter", "'n' must be 1 here.");
    }
    return one_prompt(o, cfg, out, e);
}

static int parse_params(json_t *p, const msgl_api_config *cfg, msgl_gen_request *out,
                        msgl_api_error *e)
{
    int rc = msgl__check_fields(p, MSGL_IN_PARAMS, true, NULL, e);
    json_t *seed = msgl__field(p, "sampling_seed");
    if (rc == 0 && seed != NULL && json_object_set(p, "seed", seed) != 0) {
        return msgl__api_fail(e, 500, NULL, NULL, "Out of memory.");
    }
    if (rc == 0) rc = msgl__parse_sampling(p, cfg, out, e);
    int64_t num = 128; // SGLang's default
    if (rc == 0) rc = msgl__field_int(p, "max_new_tokens", 1, INT32_MAX, &num, e);
    out->max_tokens = (int32_t)num;
    return rc < 0 ? rc : 0;
}

static int parse_sglang(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                        msgl_api_error *e)
{
    out->sglang = true;
    json_t *params = msgl__field(o, "sampling_params"), *none = NULL;
    if (params == NULL) params = none = json_object();
    if (!json_is_object(params)) {
        return msgl__api_fail(e, 400, "sampling_params", "invalid_type",
                              "'sampling_params' is %s; it must be an object.",
                              params == NULL ? "missing" : msgl__json_type_name(params));
    }
    int rc = parse_params(params, cfg, out, e);
    if (rc < 0 && e->param[0] != '\0') {
        char name[sizeof e->param];
        (void)snprintf(name, sizeof name, "sampling_params.%.40s", e->param);
        memcpy(e->param, name, sizeof name);
    }
    json_decref(none);
    if (rc == 0) rc = msgl__field_bool(o, "stream", &out->stream, e);
    if (rc < 0) return rc;
    const char *const names[] = {"text", "input_ids", "prompt"};
    const char *name = NULL;
    for (int i = 0; i < 3; i++) {
        if (msgl__field(o, names[i]) == NULL) continue;
        if (name != NULL) {
            return msgl__api_fail(e, 400, names[i], "invalid_value",
                                  "'%s' and '%s' are both given; one of them is the prompt.", name,
                                  names[i]);
        }
        name = names[i];
    }
    if (name == NULL) name = "text";
    rc = msgl__parse_prompts(json_object_get(o, name), name, cfg, out, e);
    return rc < 0 ? rc : msgl__check_choices(out, e);
}

int msgl__parse_generate(const json_t *o, const msgl_api_config *cfg, msgl_gen_request *out,
                         msgl_api_error *e)
{
    return msgl__is_sglang(o) ? parse_sglang(o, cfg, out, e) : parse_plain(o, cfg, out, e);
}
