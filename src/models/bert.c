// SPDX-License-Identifier: Apache-2.0
//
// BERT (Devlin et al. 2019): tables of words, positions and token types, norms behind the blocks.
#include <string.h>

#include "core/attributes.h"
#include "models/archs.h"
#include "models/bert.h"
#include "models/encoder.h"

static const msgl_encoder_names NAMES = {
    .words = "embeddings.word_embeddings",
    .positions = "embeddings.position_embeddings",
    .types = "embeddings.token_type_embeddings",
    .embed_norm = "embeddings.LayerNorm",
    .layer = "encoder.layer",
    .q = "attention.self.query",
    .k = "attention.self.key",
    .v = "attention.self.value",
    .attn_out = "attention.output.dense",
    .attn_norm = "attention.output.LayerNorm",
    .up = "intermediate.dense",
    .down = "output.dense",
    .ffn_norm = "output.LayerNorm",
};

static void read_activation(msgl_json_reader *r, msgl_encoder_config *e)
{
    static const struct {
        const char *name;
        msgl_pointwise f;
    } known[] = {{"gelu", MSGL_POINTWISE_GELU},
                 {"gelu_new", MSGL_POINTWISE_GELU_TANH},
                 {"gelu_pytorch_tanh", MSGL_POINTWISE_GELU_TANH},
                 {"silu", MSGL_POINTWISE_SILU}};
    const char *name = msgl__json_str_or(r, "hidden_act", "gelu");
    for (size_t i = 0; i < MSGL_COUNT(known); i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        e->pointwise = known[i].f;
        return;
    }
    msgl__json_reject(r, MSGL_EUNSUPPORTED, "hidden_act", msgl__json_get(r, "hidden_act"),
                      "gelu, gelu_new, gelu_pytorch_tanh, silu");
}

void msgl__bert_configure(msgl_json_reader *r, msgl_model_config *c)
{
    msgl_encoder_config *e = &c->encoder;
    e->names = NAMES;
    e->norm_eps = (float)msgl__json_num_or(r, "layer_norm_eps", 0, 1, 1e-12);
    e->num_positions = c->max_position;
    e->num_types = msgl__json_int_or(r, "type_vocab_size", 1, MSGL_MAX_TOKEN_TYPES, 2);
    c->ropes[0] = (msgl_rope_config){.type = MSGL_ROPE_NONE, .dim = 2};
    read_activation(r, e);
    msgl__json_only(r, "position_embedding_type", "absolute");
}

static void configure_classifier(msgl_json_reader *r, msgl_model_config *c)
{
    msgl__bert_configure(r, c);
    msgl__encoder_read_labels(r, c);
    c->encoder.names.head_dense = "pooler.dense";
    c->encoder.names.head_out = "classifier";
}

const msgl_arch msgl__arch_bert = {
    .name = "BertModel",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = {{"embeddings.", "bert.embeddings."},
                {"encoder.", "bert.encoder."},
                {"pooler.", "bert.pooler."}},
    .ignored = {"pooler.", "bert.pooler.", "cls."},
    .configure = msgl__bert_configure,
};

const msgl_arch msgl__arch_bert_classifier = {
    .name = "BertForSequenceClassification",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = {{"embeddings.", "bert.embeddings."},
                {"encoder.", "bert.encoder."},
                {"pooler.", "bert.pooler."}},
    .configure = configure_classifier,
};
