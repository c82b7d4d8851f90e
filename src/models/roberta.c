// SPDX-License-Identifier: Apache-2.0
//
// RoBERTa (Liu et al. 2019) and XLM-R (Conneau et al. 2020): BERT with other positions.
#include <string.h>

#include "models/archs.h"
#include "models/bert.h"
#include "models/encoder.h"

// Positions begin behind that of padding: with pad_token_id 1 at row 2 of the table.
static void configure_roberta(msgl_json_reader *r, msgl_model_config *c)
{
    const int32_t pad = msgl__json_int_or(r, "pad_token_id", 0, MSGL_MAX_VOCAB, 1);
    msgl__bert_configure(r, c);
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

static void configure_roberta_classifier(msgl_json_reader *r, msgl_model_config *c)
{
    configure_roberta(r, c);
    msgl__encoder_read_labels(r, c);
    c->encoder.names.head_dense = "classifier.dense";
    c->encoder.names.head_out = "classifier.out_proj";
}

#define RENAMED                                                                                    \
    {                                                                                              \
        {"embeddings.", "roberta.embeddings."}, {"encoder.", "roberta.encoder."},                  \
        {                                                                                          \
            "pooler.", "roberta.pooler."                                                           \
        }                                                                                          \
    }

const msgl_arch msgl__arch_roberta = {
    .name = "RobertaModel",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = RENAMED,
    .ignored = {"pooler.", "roberta.pooler.", "lm_head."},
    .configure = configure_roberta,
};

const msgl_arch msgl__arch_xlm_roberta = {
    .name = "XLMRobertaModel",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = RENAMED,
    .ignored = {"pooler.", "roberta.pooler.", "lm_head."},
    .configure = configure_roberta,
};

const msgl_arch msgl__arch_bge_m3 = {
    .name = "BgeM3Model",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = RENAMED,
    .ignored = {"roberta.pooler."},
    .configure = configure_bge_m3,
};

const msgl_arch msgl__arch_roberta_classifier = {
    .name = "RobertaForSequenceClassification",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = RENAMED,
    .ignored = {"roberta.pooler."},
    .configure = configure_roberta_classifier,
};

const msgl_arch msgl__arch_xlm_roberta_classifier = {
    .name = "XLMRobertaForSequenceClassification",
    .family = &msgl__encoder_family,
    .default_dtype = "float32",
    .renamed = RENAMED,
    .ignored = {"roberta.pooler."},
    .configure = configure_roberta_classifier,
};
