// SPDX-License-Identifier: Apache-2.0
//
// Draft models and heads that are broken, or no match for the model: an engine is not made, and one
// line says which option and which file is at fault. The folders are those of tests/vectors, with
// one thing changed.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "engine/harness.h"
#include "models/folder.h"

#define VECTORS MSGL_SOURCE_DIR "/tests/vectors/"

// A file of a folder, and what becomes of it.
typedef struct contents {
    json_t *config;      // config.json
    json_t *header;      // of model.safetensors, whose tensors are
    unsigned char *data; // [size]
    size_t size;
    const char *text; // not NULL: config.json instead
    bool no_config;
} contents;

static unsigned char *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s: cannot open", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *size = (size_t)ftell(f);
    rewind(f);
    unsigned char *data = malloc(*size);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *size, f), *size);
    fclose(f);
    return data;
}

static void read_contents(const char *dir, contents *c)
{
    char path[256];
    json_error_t e;
    *c = (contents){0};
    snprintf(path, sizeof path, "%s/config.json", dir);
    c->config = json_load_file(path, 0, &e);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unsigned char *all = read_file(path, &c->size);
    uint64_t length;
    memcpy(&length, all, sizeof length);
    c->header = json_loadb((const char *)all + sizeof length, (size_t)length, 0, &e);
    assert_true(c->config != NULL && c->header != NULL);
    c->size -= sizeof length + (size_t)length;
    c->data = malloc(c->size);
    assert_non_null(c->data);
    memcpy(c->data, all + sizeof length + length, c->size);
    free(all);
}

static void write_contents(contents *c, folder *f)
{
    folder_make(f);
    if (c->text != NULL) {
        folder_write(f, "config.json", c->text, strlen(c->text));
    } else if (!c->no_config) {
        folder_write_json(f, "config.json", c->config);
    }
    char *header = json_dumps(c->header, JSON_COMPACT);
    assert_non_null(header);
    write_safetensors(f, "model.safetensors", header, c->data, c->size);
    free(header);
    json_decref(c->config);
    json_decref(c->header);
    free(c->data);
}

static json_t *tensor(contents *c, const char *name)
{
    json_t *t = json_object_get(c->header, name);
    assert_non_null(t);
    return t;
}

static void rename_tensor(contents *c, const char *name, const char *to)
{
    assert_int_equal(json_object_set(c->header, to, tensor(c, name)), 0);
    json_object_del(c->header, name);
}

// --- what is changed ---

static void cut_off(contents *c)
{
    c->size -= 100;
}

static void no_fc(contents *c)
{
    rename_tensor(c, "fc.weight", "x.weight");
}

static void no_q_proj(contents *c)
{
    rename_tensor(c, "model.layers.1.self_attn.q_proj.weight", "x.weight");
}

// The bytes stay what they are: [48, 144] becomes [144, 48].
static void turn(contents *c, const char *name)
{
    json_t *shape = json_object_get(tensor(c, name), "shape");
    assert_int_equal(json_array_size(shape), 2);
    assert_int_equal(json_array_append(shape, json_array_get(shape, 0)), 0);
    assert_int_equal(json_array_remove(shape, 0), 0);
}

static void turn_fc(contents *c)
{
    turn(c, "fc.weight");
}

static void turn_eh_proj(contents *c)
{
    turn(c, "model.mtp.layers.0.eh_proj.weight");
}

static void turn_second_eh_proj(contents *c)
{
    turn(c, "model.mtp.layers.1.eh_proj.weight");
}

static void no_sinks(contents *c)
{
    rename_tensor(c, "model.mtp.layers.0.self_attn.attention_sink_bias", "model.mtp.x");
}

static void no_d2t(contents *c)
{
    rename_tensor(c, "d2t", "t2d.other"); // what begins with t2d nobody reads
}

static void unsigned_d2t(contents *c)
{
    json_object_set_new(tensor(c, "d2t"), "dtype", json_string("U64"));
}

static void set_d2t(contents *c, size_t i, int64_t offset)
{
    const json_t *at = json_object_get(tensor(c, "d2t"), "data_offsets");
    const size_t begin = (size_t)json_integer_value(json_array_get(at, 0));
    memcpy(c->data + begin + i * sizeof offset, &offset, sizeof offset);
}

// The model has 260 tokens: draft token 95 may be 165 behind, and 3 before itself.
static void d2t_beyond(contents *c)
{
    set_d2t(c, 95, 165);
}

static void d2t_before(contents *c)
{
    set_d2t(c, 3, -4);
}

static void d2t_most(contents *c)
{
    set_d2t(c, 95, INT64_MAX);
}

static void d2t_least(contents *c)
{
    set_d2t(c, 95, INT64_MIN);
}

static void no_json(contents *c)
{
    c->text = "{\"architectures\": [";
}

static void no_config(contents *c)
{
    c->no_config = true;
}

static void as_it_is(contents *c)
{
    (void)c;
}

typedef struct fault {
    const char *of, *algorithm; // folder in tests/vectors
    void (*change)(contents *c);
    const char *key, *value; // or a field of config.json instead, as JSON
    const char *says;        // beside the option
} fault;

#define EAGLE3 "drafts/eagle3/draft", "EAGLE3"
#define SPECULATORS "drafts/eagle3_speculators/draft", "EAGLE3"
#define SMALLER "models/qwen3", "STANDALONE"
#define MTP "drafts/qwen3_mtp/draft", "NEXTN"

static const fault FAULTS[] = {
    // Files.
    {EAGLE3, cut_off, .says = "/model.safetensors: "},
    {EAGLE3, no_json, .says = "/config.json: "},
    {EAGLE3, no_config, .says = "/config.json: "},
    {EAGLE3, no_fc, .says = "/model.safetensors: tensor fc.weight: missing"},
    {EAGLE3, turn_fc,
     .says = "/model.safetensors: tensor fc.weight: shape: found [144, 48], "
             "expected [48, 144]"},
    {SMALLER, cut_off, .says = "/model.safetensors: "},
    {SMALLER, no_json, .says = "/config.json: "},
    {SMALLER, no_q_proj, .says = "tensor model.layers.1.self_attn.q_proj.weight: missing"},
    {MTP, cut_off, .says = "/model.safetensors: "},
    {MTP, .key = "intermediate_size", .value = "40", .says = "expected [40, 48]"},
    // Ids of drafts.
    {EAGLE3, no_d2t, .says = "tensor d2t: found none; allowed: I64 of [96]"},
    {EAGLE3, unsigned_d2t, .says = "tensor d2t: found U64 of [96]; allowed: I64 of [96]"},
    {EAGLE3, d2t_beyond,
     .says = "tensor d2t: 165 behind draft token 95; allowed: what gives a "
             "token of the model, 0 to 259"},
    {EAGLE3, d2t_before, .says = "tensor d2t: -4 behind draft token 3; allowed: "},
    {EAGLE3, d2t_most, .says = "tensor d2t: 9223372036854775807 behind draft token 95; "},
    {EAGLE3, d2t_least, .says = "tensor d2t: -9223372036854775808 behind draft token 95; "},
    {SPECULATORS, d2t_beyond, .says = "tensor d2t: 165 behind draft token 95; "},
    {EAGLE3, .key = "draft_vocab_size", .value = "95", .says = "expected [95, 48]"},
    {EAGLE3, .key = "draft_vocab_size", .value = "261", .says = "draft_vocab_size: found 261"},
    // Not for this model.
    {EAGLE3, .key = "vocab_size", .value = "250",
     .says = "a head for states of 48 and 250 tokens; allowed: the model's, 48 and 260"},
    {EAGLE3, .key = "target_hidden_size", .value = "40", .says = "a head for states of 40 and"},
    {EAGLE3, .key = "eagle_config", .value = "{\"eagle_aux_hidden_state_layer_ids\": [2, 3, 6]}",
     .says = "a head that reads layers 1, 2, 5; allowed: ascending ones before the last of 6"},
    {"drafts/eagle3/draft", "STANDALONE", as_it_is,
     .says = "LlamaForCausalLMEagle3; allowed with STANDALONE: a model"},
    {"models/qwen3", "EAGLE3", as_it_is,
     .says = "Qwen3ForCausalLM; allowed with EAGLE3: an EAGLE-3 head"},
    // What speculators' fields ask for and we do not compute.
    {SPECULATORS, .key = "norm_before_residual", .says = "norm_before_residual: found nothing, "},
    {SPECULATORS, .key = "norm_output", .value = "true", .says = "norm_output: found true"},
    {SPECULATORS, .key = "fc_norm", .value = "true", .says = "fc_norm: found true"},
    {SPECULATORS, .key = "norm_before_fc", .value = "true", .says = "norm_before_fc: found true"},
    {SPECULATORS, .key = "speculators_model_type", .value = "\"peagle\"",
     .says = "speculators_model_type: found \"peagle\", allowed eagle3"},
    {SPECULATORS, .key = "transformer_layer_config", .value = "[]",
     .says = "transformer_layer_config: found a list of 0, allowed an object"},
    {SPECULATORS, .key = "transformer_layer_config.model_type", .value = "\"qwen3\"",
     .says = "transformer_layer_config.model_type: found \"qwen3\", allowed llama"},
    {SPECULATORS, .key = "transformer_layer_config.num_hidden_layers", .value = "2",
     .says = "num_hidden_layers: found 2, allowed 1"},
    {SPECULATORS, .key = "transformer_layer_config.layer_types", .value = "[\"sliding_attention\"]",
     .says = "layer_types: found \"sliding_attention\", allowed full_attention"},
};

// "section.field" is a field of an object in config.json.
static void change_field(contents *c, const char *key, const char *value)
{
    const char *dot = strchr(key, '.');
    char section[64];
    if (dot == NULL) {
        set_field(c->config, key, value);
        return;
    }
    snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
    set_field(json_object_get(c->config, section), dot + 1, value);
}

// Target: the one that the vectors' heads are of; of models, themselves.
static msgl_options options_of(const char *of, const char *algorithm, char target[256])
{
    const char *slash = strrchr(of, '/');
    if (strncmp(of, "models/", 7) == 0) {
        snprintf(target, 256, VECTORS "%s", of);
    } else {
        snprintf(target, 256, VECTORS "%.*s/target", (int)(slash - of), of);
    }
    msgl_options o = harness_config(target, "float32");
    o.speculative_algorithm = algorithm;
    return o;
}

static void expect(const msgl_options *o, const char *option, const char *says)
{
    harness h;
    msgl_err err = {0};
    if (harness_try_open(&h, o, &err) == 0) fail_msg("%s: it was taken", says);
    if (strncmp(err.text, option, strlen(option)) != 0 || strstr(err.text, says) == NULL ||
        strchr(err.text, '\n') != NULL) {
        fail_msg("\"%s\": %s", says, err.text);
    }
}

static const char FLAG[] = "--speculative-draft-model-path: ";

static void test_faults(void **state)
{
    (void)state;
    for (size_t i = 0; i < MSGL_COUNT(FAULTS); i++) {
        const fault *v = &FAULTS[i];
        char dir[256], target[256];
        contents c;
        folder f;
        msgl_options o = options_of(v->of, v->algorithm, target);
        snprintf(dir, sizeof dir, VECTORS "%s", v->of);
        read_contents(dir, &c);
        if (v->change != NULL) {
            v->change(&c);
        } else {
            change_field(&c, v->key, v->value);
        }
        write_contents(&c, &f);
        o.speculative_draft_model_path = f.dir;
        expect(&o, FLAG, v->says);
        folder_remove(&f);
    }
}

// The same folders are taken as they are, through the same hands.
static void test_whole(void **state)
{
    (void)state;
    static const char *const whole[][2] = {{EAGLE3}, {SPECULATORS}, {SMALLER}, {MTP}};
    for (size_t i = 0; i < MSGL_COUNT(whole); i++) {
        char dir[256], target[256];
        contents c;
        folder f;
        harness h;
        msgl_options o = options_of(whole[i][0], whole[i][1], target);
        snprintf(dir, sizeof dir, VECTORS "%s", whole[i][0]);
        read_contents(dir, &c);
        write_contents(&c, &f);
        o.speculative_draft_model_path = f.dir;
        harness_open(&h, &o);
        assert_true(h.r->max_propose > 0);
        harness_close(&h);
        folder_remove(&f);
    }
}

static void test_no_folder(void **state)
{
    (void)state;
    static const char *const algorithms[] = {"STANDALONE", "EAGLE3", "NEXTN"};
    for (size_t i = 0; i < MSGL_COUNT(algorithms); i++) {
        char target[256];
        msgl_options o = options_of("models/qwen3", algorithms[i], target);
        o.speculative_draft_model_path = "/nowhere/at-all";
        expect(&o, FLAG, "nowhere/at-all");
    }
}

// A head in the model's own files, which no option names.
static void test_own_files(void **state)
{
    (void)state;
    char target[256];
    msgl_options o = options_of("models/deepseek_v3", "NEXTN", target);
    expect(&o, "NEXTN: ", "deepseek_v3/model.safetensors: tensor model.layers.2.");
    o = options_of("models/mimo_v2", "NEXTN", target);
    expect(&o, "NEXTN: ", "mimo_v2/model.safetensors: tensor model.mtp.layers.0.");
    o = options_of("models/qwen3", "NEXTN", target);
    expect(&o, "NEXTN: ", "Qwen3ForCausalLM has no layers that predict tokens further ahead");
    static const struct {
        void (*change)(contents *c);
        const char *says;
    } broken[] = {
        {turn_eh_proj, "/model.safetensors: tensor model.mtp.layers.0.eh_proj.weight: shape: found "
                       "[64, 32], expected [32, 64]"},
        {turn_second_eh_proj, "tensor model.mtp.layers.1.eh_proj.weight: shape: found [64, 32]"},
        {no_sinks, "tensor model.mtp.layers.0.self_attn.attention_sink_bias: missing"},
    };
    for (size_t i = 0; i < MSGL_COUNT(broken); i++) {
        contents c;
        folder f;
        o = options_of("drafts/mimo_v2/draft", "NEXTN", target);
        read_contents(target, &c);
        broken[i].change(&c);
        write_contents(&c, &f);
        o.model_dir = f.dir;
        expect(&o, "NEXTN: ", broken[i].says);
        folder_remove(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_no_folder),
        cmocka_unit_test(test_own_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
