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
    const int32_t every = letters != NULL ? 1 : msgl__json_int_or(r, key, 1, INT32_MAX, 4);
    for (int32_t l = 0; l < c->num_layers; l++) {
        const bool slides =
            letters != NULL ? letters[(size_t)l % strlen(letters)] == 'L' : (l + 1) % every != 0;
        if (slides) c->decoder.layer_flags[l] |= MSGL_LAYER_SLIDING;
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
    // An explicit null turns the window off; a config without the field means 4,096.
    const bool absent = json_object_get(r->obj, "sliding_window") == NULL;
    d->sliding_window = msgl__json_int_or(r, "sliding_window", 1, INT32_MAX, absent ? 4096 : 0);
    if (d->sliding_window == 0) return;
    if (!msgl__decoder_read_layer_types(r, c)) read_pattern(r, c);
    for (int32_t l = 0; l < c->num_layers; l++) {
        if (!msgl__layer_has(d, l, MSGL_LAYER_SLIDING)) d->layer_flags[l] |= MSGL_LAYER_SECOND_ROPE;
    }
    c->ropes[1] = (msgl_rope_config){.type = MSGL_ROPE_NONE, .dim = c->ropes[0].dim};
    c->num_ropes = 2;
}

const msgl_arch msgl__arch_exaone4 = {
    .name = "Exaone4ForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};
