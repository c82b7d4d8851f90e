// SPDX-License-Identifier: Apache-2.0
#include "models/lora_gguf.h"

#include <math.h>
#include <string.h>

#include "models/formats.h"
#include "models/gguf/arch.h"
#include "utils/file.h"
#include "utils/gguf.h"
#include "utils/strbuf.h"

bool msgl__lora_is_gguf(const char *path)
{
    return msgl__ends_with(path, ".gguf");
}

// The value of a key that has to be this text.
static int check_text(const msgl_gguf *g, const json_t *meta, const char *key, const char *text,
                      msgl_err *err)
{
    const char *v = json_string_value(json_object_get(meta, key));
    char shown[48];
    if (v != NULL && strcmp(v, text) == 0) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED, "%s: %s: found %s, allowed %s", g->file, key,
                         v != NULL ? msgl__printable(v, shown, sizeof shown) : "nothing", text);
}

static int read_values(const msgl_gguf *g, const json_t *meta, bool *pairs,
                       msgl_lora_config **config, msgl_err *err)
{
    const msgl_gguf_model m = {.g = g, .meta = (json_t *)meta};
    const json_t *alpha = json_object_get(meta, "adapter.lora.alpha");
    int code = check_text(g, meta, "general.type", "adapter", err);
    if (code == 0) code = check_text(g, meta, "adapter.type", "lora", err);
    if (code != 0) return code;
    if (!json_is_number(alpha) || !isfinite(json_number_value(alpha))) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s: adapter.lora.alpha: expected a number",
                             g->file);
    }
    const msgl_gguf_arch *arch = msgl__gguf_arch_find(&m);
    if (arch == NULL) {
        char names[MSGL_GGUF_NAMES_SHOWN];
        msgl__gguf_arch_names(names, sizeof names);
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s: general.architecture is none that is known here; allowed: %s",
                             g->file, names);
    }
    *pairs = arch->pairs;
    return msgl__lora_config_of_alpha(json_number_value(alpha), config, err);
}

int msgl__lora_gguf_open(const char *path, msgl_checkpoint *c, msgl_lora_config **config,
                         bool *pairs, msgl_err *err)
{
    msgl_gguf g;
    json_t *meta = NULL;
    int code = msgl__gguf_open(path, &g, err);
    if (code == 0) code = msgl__gguf_metadata(&g, &meta, err);
    if (code == 0) code = read_values(&g, meta, pairs, config, err);
    json_decref(meta);
    msgl__gguf_close(&g);
    if (code != 0) return code;
    c->format = &msgl__format_gguf;
    return c->format->open(path, c, err);
}
