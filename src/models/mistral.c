// SPDX-License-Identifier: Apache-2.0
//
// Mistral: Llama without biases; every layer attends to a sliding window when there is one.
// Ministral 3: without a window, and with queries that are sharper with their distance from the
// start. Mistral3 is either of them beside eyes (Mistral Small 3.1 and later, Ministral 3).
#include <string.h>

#include "models/archs.h"
#include "models/decoder.h"

static void configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl__decoder_read_window(r, c, 4096);
    msgl__decoder_slide(c, 0);
}

// llama_4_scaling_beta stands among the parameters of the rotation; 0 is none.
static void read_temper(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_json_reader sub;
    if (!msgl__config_rope_section(r, &sub)) return;
    const float beta = (float)msgl__json_num_or(&sub, "llama_4_scaling_beta", 0, 1e6, 0);
    if (beta > 0) {
        c->decoder.temper = (msgl_temper){.every = (float)c->ropes[0].original_max, .scale = beta};
        c->decoder.tempers_all = true;
    }
    r->status = sub.status;
}

// What a Ministral 3 rotates by that says nothing.
static void set_usual_rope(msgl_model_config *c)
{
    msgl_rope_config *p = &c->ropes[0];
    p->type = MSGL_ROPE_YARN;
    p->theta = 1e6;
    p->factor = 16;
    p->original_max = 16384;
    p->beta_fast = 32;
    p->beta_slow = p->mscale = p->mscale_all_dim = 1;
    p->truncate = true;
    c->decoder.temper = (msgl_temper){.every = 16384, .scale = 0.1f};
    c->decoder.tempers_all = true;
}

static void configure_ministral(msgl_json_reader *r, msgl_model_config *c)
{
    c->decoder.rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-5);
    msgl__decoder_read_window(r, c, 0);
    msgl__decoder_slide(c, 0);
    msgl_json_reader rope;
    if (!msgl__config_rope_section(r, &rope)) {
        set_usual_rope(c);
    } else {
        read_temper(r, c);
    }
}

// The language half of a model that also sees; its other tensors are left. Whether its embedding is
// its head is said by the half itself first.
static void configure_3(msgl_json_reader *r, msgl_model_config *c)
{
    if (strcmp(msgl__json_str_or(r, "model_type", "mistral"), "ministral3") == 0) {
        configure_ministral(r, c);
    } else {
        c->decoder.rms_eps = (float)msgl__json_num_or(r, "rms_norm_eps", 0, 1, 1e-6);
        configure(r, c);
    }
    c->tie_embeddings = msgl__json_bool_or(r, "tie_word_embeddings", c->tie_embeddings);
    c->decoder.names.prefix = "language_model.model.";
    c->decoder.names.head = "language_model.lm_head";
}

const msgl_arch msgl__arch_mistral = {
    .name = "MistralForCausalLM",
    .family = &msgl__decoder_family,
    .configure = configure,
};

const msgl_arch msgl__arch_ministral3 = {
    .name = "Ministral3ForCausalLM",
    .family = &msgl__decoder_family,
    .default_head_dim = 128,
    .configure = configure_ministral,
};

const msgl_arch msgl__arch_mistral3 = {
    .name = "Mistral3ForConditionalGeneration",
    .family = &msgl__decoder_family,
    .text_section = "text_config",
    .text_defaults = "{}",
    .ignored = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                "model.multi_modal_projector."},
    .renamed = {{"language_model.model.", "model.language_model."},
                {"language_model.lm_head.", "lm_head."}},
    .configure = configure_3,
};
