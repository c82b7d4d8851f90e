// SPDX-License-Identifier: Apache-2.0
//
// What a GGUF file's architecture is: its name in general.architecture, the architecture of
// config.json that it is, and what its keys, tensors and rows differ in from the common ones. One
// file for each family ends in its rows; archs.c has the list of them and what they have in common.
// Keys and names are those that llama.cpp's converters write (its folder conversion/), and what a
// missing key means is what llama.cpp takes for it (its folder src/models/).
#ifndef MSGL_MODELS_GGUF_ARCH_H
#define MSGL_MODELS_GGUF_ARCH_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "utils/gguf.h"

// How the dimensions of a tensor in the file become those that the architectures declare. The
// converters leave out dimensions of 1.
typedef enum msgl_gguf_shape {
    MSGL_GGUF_AS_IT_IS,
    MSGL_GGUF_ONE_ROW, // [n] is [1, n]
    MSGL_GGUF_TAPS,    // [n, taps] or [1, n, 1, taps] is [n, 1, taps]
    MSGL_GGUF_FLAT,    // [heads, n, k] is [heads * n, k]
    MSGL_GGUF_VECTOR,  // [groups, n] is [groups * n]
} msgl_gguf_shape;

// Beginnings of tensors' names: in the file, and as the architectures declare them. In a block they
// stand behind "blk.N." and "model.layers.N.".
typedef struct msgl_gguf_name {
    const char *gguf, *model; // gguf NULL: the end of a list
    msgl_gguf_shape shape;
} msgl_gguf_name;

typedef enum msgl_gguf_place {
    MSGL_GGUF_CONFIG,
    MSGL_GGUF_ROPE,       // rope_scaling in CONFIG
    MSGL_GGUF_GENERATION, // generation_config.json
    MSGL_GGUF_PLACES,
    MSGL_GGUF_DERIVED = MSGL_GGUF_PLACES, // no field: `derive` looks at the key
} msgl_gguf_place;

// A key's value and the field of config.json that it is.
typedef struct msgl_gguf_field {
    msgl_gguf_place in;
    const char *hf;  // NULL with DERIVED
    const char *key; // behind the architecture's name; NULL: the end of a list
} msgl_gguf_field;

enum { MSGL_GGUF_MAX_FIELDS = 64 };

// A key that files of a converter's older releases lack, and what is taken then: said in the log,
// of files that have the key `with`.
typedef struct msgl_gguf_default {
    const char *key, *with, *taken; // key NULL: the end of a list
} msgl_gguf_default;

// A key whose value is an array with a number for each block, and the tensor of one number that the
// architectures declare in its place, behind "model.layers.N.".
typedef struct msgl_gguf_array {
    const char *key, *model; // key NULL: the end of a list
} msgl_gguf_array;

typedef struct msgl_gguf_arch msgl_gguf_arch;

// A file while its config is read.
typedef struct msgl_gguf_model {
    const msgl_gguf *g;
    const msgl_gguf_arch *arch;
    json_t *meta;   // msgl__gguf_metadata
    json_t *config; // what config.json would say; complete but for what `derive` adds
    json_t *rope;   // its rope_scaling
    int bad;        // not 0: memory is out
} msgl_gguf_model;

struct msgl_gguf_arch {
    const char *name; // general.architecture, and the prefix of its keys
    const char *hf;   // the architecture in config.json
    // NULL: every file of the name is of this row; else those of whose values it is true. The first
    // row of a name that takes a file has it.
    bool (*takes)(const msgl_gguf_model *m);
    bool pairs;       // rows that rotate together are neighbours
    bool pairs_all;   // so are those of a head that do not rotate
    bool norms_whole; // norms are stored with the 1 added that config.json's architecture adds
    const msgl_gguf_name *names;       // in blocks, before the common ones; NULL: none
    const msgl_gguf_field *fields;     // before the common ones; NULL: none
    const msgl_gguf_default *defaults; // NULL: none
    const msgl_gguf_array *arrays;     // NULL: none
    // Adds fields that follow from several values, or from tensors; NULL: none.
    void (*derive)(msgl_gguf_model *m);
};

// archs.c. The row that takes the file; NULL: none has its name. m->g and m->meta are read.
const msgl_gguf_arch *msgl__gguf_arch_find(const msgl_gguf_model *m);
// "A, B, C", or as many as there is room for, "A, B and 7 more".
void msgl__gguf_arch_names(char *buf, size_t size);
enum { MSGL_GGUF_NAMES_SHOWN = 160 }; // room for them in a message
// The pair that the name of a tensor begins with, in a block or outside of one; NULL: none.
const msgl_gguf_name *msgl__gguf_name_of(const msgl_gguf_arch *a, bool in_block, const char *name);

// For `derive` and `takes`: the value of a key behind the architecture's name, NULL: there is none;
// the same as an integer (cut to 2^40) or number, `missing` where it is none. Keys that begin with
// "general." or "tokenizer." are whole.
const json_t *msgl__gguf_field(const msgl_gguf_model *m, const char *key);
int64_t msgl__gguf_int(const msgl_gguf_model *m, const char *key, int64_t missing);
double msgl__gguf_num(const msgl_gguf_model *m, const char *key, double missing);
// The same of a key that has a number, or an array with one for each block.
int64_t msgl__gguf_int_of(const msgl_gguf_model *m, const char *key, int64_t block);
void msgl__gguf_key(const msgl_gguf_model *m, const char *key, char out[64]);
bool msgl__gguf_has(const msgl_gguf_model *m, const char *tensor);
bool msgl__gguf_block_has(const msgl_gguf_model *m, int64_t block, const char *tensor);
bool msgl__gguf_some_block_has(const msgl_gguf_model *m, const char *tensor);
int64_t msgl__gguf_blocks(const msgl_gguf_model *m);   // bounded by what config.json may say
int64_t msgl__gguf_layers(const msgl_gguf_model *m);   // without those that predict further tokens
int64_t msgl__gguf_head_dim(const msgl_gguf_model *m); // 0: nothing says it
// Fields of config.json; `v` is taken.
void msgl__gguf_set(msgl_gguf_model *m, json_t *object, const char *hf, json_t *v);

// More than one family's: what they do is at their definitions in archs.c.
bool msgl__gguf_has_experts(const msgl_gguf_model *m);
void msgl__gguf_dense_layers(msgl_gguf_model *m);
void msgl__gguf_kinds(msgl_gguf_model *m, const char *hf, const char *tensor, const char *with,
                      const char *without);
void msgl__gguf_kv_heads(msgl_gguf_model *m);
void msgl__gguf_set_bool(msgl_gguf_model *m, const char *hf, bool value);
void msgl__gguf_set_int(msgl_gguf_model *m, const char *hf, int64_t value);
void msgl__gguf_partial_rotation(msgl_gguf_model *m);
bool msgl__gguf_slides(const msgl_gguf_model *m, int64_t layer); // as an array says
void msgl__gguf_sliding_layers(msgl_gguf_model *m);
void msgl__gguf_long_factors(msgl_gguf_model *m);
void msgl__gguf_one_set_of_factors(msgl_gguf_model *m);

// Of all architectures with experts: how many there are, how many of them a token has, the width.
#define MSGL_GGUF_EXPERTS(count_field, width_field)                                                \
    {MSGL_GGUF_CONFIG, count_field, "expert_count"},                                               \
        {MSGL_GGUF_CONFIG, "num_experts_per_tok", "expert_used_count"},                            \
    {                                                                                              \
        MSGL_GGUF_CONFIG, width_field, "expert_feed_forward_length"                                \
    }

// The rows of each family, ended by one without a name.
extern const msgl_gguf_arch msgl__gguf_llama[], msgl__gguf_qwen[], msgl__gguf_gemma[],
    msgl__gguf_phi[], msgl__gguf_glm[], msgl__gguf_gpt_oss[], msgl__gguf_deepseek[],
    msgl__gguf_llama4[], msgl__gguf_single[], msgl__gguf_parts[], msgl__gguf_gemma4[],
    msgl__gguf_lfm2[], msgl__gguf_mamba[], msgl__gguf_mimo[], msgl__gguf_bailing[],
    msgl__gguf_kimi[];

#endif
