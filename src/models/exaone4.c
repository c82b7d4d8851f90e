// SPDX-License-Identifier: Apache-2.0
//
// EXAONE 4: norms behind the blocks only, and of heads of q and K; where some layers have a window,
// those without one do not rotate.
#include <string.h>

#include "models/archs.h"
#include "models/decoder.h"

// sliding_window_pattern: "LLLG", a letter a layer again and again, or 4, every fourth G: layers
// with L have the window.
static void read_pattern(msgl_json_reader *r, msgl_model_config *c)
{
    static const char key[] = "sliding_window_pattern";
    const json_t *v = msgl__json_get(r, key);
    const char *letters = json_is_string(v) ? json_string_value(v) : NULL;
    if (letters != NULL && (letters[0] == '\0' || strspn(letters, "LG") != strlen(letters))) {
        msgl__json_reject(r, MSGL_EFORMAT, key, v, "letters L and G, or a number");
        return;
    }
    if (letters == NULL) {
        const int32_t every = msgl__json_int_or(r, key, 1, INT32_MAX, 4);
        msgl__decoder_set_all_but(c, every, MSGL_LAYER_SLIDING);
        return;
    }
    const size_t n = strlen(letters);
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (letters[(size_t)l % n] == 'L') c->decoder.layer_flags[l] |= MSGL_LAYER_SLIDING;
    }
}

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_decoder_config *d = &c->decoder;
    d->names.attn_norm = d->names.ffn_norm = NULL;
    d->names.attn_post_norm = "post_attention_layernorm";
    d->names.ffn_post_norm = "post_feedforward_layernorm";
    d->rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    d->qk_norm = MSGL_QK_NORM_HEAD;
    msgl__decoder_read_window(r, c, 4096);
    if (d->sliding_window == 0) return;
    if (!msgl__decoder_read_layer_types(r, c)) read_pattern(r, c);
    msgl__decoder_no_rope_without_window(c);
}

const msgl_arch msgl__arch_exaone4 = {
    .name = "Exaone4ForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
