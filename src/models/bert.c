// SPDX-License-Identifier: Apache-2.0
//
// BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020): tables of
// words, positions and token types, norms behind the blocks.
#include <string.h>

#include "core/attributes.h"
#include "models/archs.h"
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

static void configure(msgl_json_reader *r, msgl_model_config *c)
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

// Positions begin behind that of padding: with pad_token_id 1 at row 2 of the table.
static void configure_roberta(msgl_json_reader *r, msgl_model_config *c)
{
    const int32_t pad = msgl__json_int_or(r, "pad_token_id", 0, MSGL_MAX_VOCAB, 1);
    configure(r, c);
    if (r->status == 0 && c->max_position <= pad + 1) {
        msgl__json_reject(r, MSGL_EFORMAT, "max_position_embeddings",
                          msgl__json_get(r, "max_position_embeddings"),
                          "a number above pad_token_id + 1");
        return;
    }
    c->encoder.first_position = pad + 1;
    c->max_position -= pad + 1;
}

// bge-m3 with all of its heads in the model's file, as the class BgeM3Model that comes with such
// folders saves it: a vector of each token, of colbert_dim columns, and a weight.
static void configure_bge_m3(msgl_json_reader *r, msgl_model_config *c)
{
    static const char key[] = "sentence_pooling_method";
    const char *method = msgl__json_str_or(r, key, "cls");
    const int32_t hidden = c->hidden_size;
    configure_roberta(r, c);
    c->encoder.pool = strcmp(method, "mean") == 0 ? MSGL_POOL_MEAN : MSGL_POOL_FIRST;
    if (strcmp(method, "mean") != 0 && strcmp(method, "cls") != 0)
        msgl__json_reject(r, MSGL_EUNSUPPORTED, key, msgl__json_get(r, key), "cls, mean");
    const int32_t dim = msgl__json_int_or(r, "colbert_dim", 1, MSGL_MAX_HIDDEN, hidden);
    c->token_heads[MSGL_TOKEN_VECTORS] = (msgl_projection){
        .prefix = "colbert_linear.", .tensor = "", .in = hidden, .out = dim, .bias = true};
    c->token_heads[MSGL_TOKEN_WEIGHTS] = (msgl_projection){
        .prefix = "sparse_linear.", .tensor = "", .in = hidden, .out = 1, .bias = true};
}

static void configure_classifier(msgl_json_reader *r, msgl_model_config *c)
{
    configure(r, c);
    msgl__encoder_read_labels(r, c);
    c->encoder.names.head_dense = "pooler.dense";
    c->encoder.names.head_out = "classifier";
}

static void configure_roberta_classifier(msgl_json_reader *r, msgl_model_config *c)
{
    configure_roberta(r, c);
    msgl__encoder_read_labels(r, c);
    c->encoder.names.head_dense = "classifier.dense";
    c->encoder.names.head_out = "classifier.out_proj";
}

#define OF(prefix)                                                                                 \
    {                                                                                              \
        {"embeddings.", prefix ".embeddings."}, {"encoder.", prefix ".encoder."},                  \
        {                                                                                          \
            "pooler.", prefix ".pooler."                                                           \
        }                                                                                          \
    }

const msgl_arch msgl__arch_bert = {
    .name = "BertModel",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = OF("bert"),
    .ignored = {"pooler.", "bert.pooler.", "cls."},
    .configure = configure,
};

const msgl_arch msgl__arch_roberta = {
    .name = "RobertaModel",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = OF("roberta"),
    .ignored = {"pooler.", "roberta.pooler.", "lm_head."},
    .configure = configure_roberta,
};

const msgl_arch msgl__arch_xlm_roberta = {
    .name = "XLMRobertaModel",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = OF("roberta"),
    .ignored = {"pooler.", "roberta.pooler.", "lm_head."},
    .configure = configure_roberta,
};

const msgl_arch msgl__arch_bge_m3 = {
    .name = "BgeM3Model",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = OF("roberta"),
    .ignored = {"roberta.pooler."},
    .configure = configure_bge_m3,
};

const msgl_arch msgl__arch_bert_classifier = {
    .name = "BertForSequenceClassification",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = OF("bert"),
    .configure = configure_classifier,
};

const msgl_arch msgl__arch_roberta_classifier = {
    .name = "RobertaForSequenceClassification",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = OF("roberta"),
    .ignored = {"roberta.pooler."},
    .configure = configure_roberta_classifier,
};

const msgl_arch msgl__arch_xlm_roberta_classifier = {
    .name = "XLMRobertaForSequenceClassification",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = OF("roberta"),
    .ignored = {"roberta.pooler."},
    .configure = configure_roberta_classifier,
};
