// SPDX-License-Identifier: Apache-2.0
//
// Post-processors of tokenizer.json: what stands around the tokens of one text, and of two.
#include <string.h>

#include "tokenizer/load.h"

#define MAX_POST 1024

// A template as it is read: for two texts, whose second text and what follows it is of type 1.
typedef struct template
{
    msgl_ids ids;
    int64_t pair_from; // -1: everything is of type 0 so far
}
template;

static int post_add(template *t, int32_t id, int64_t type, const char *where, msgl_err *err)
{
    if (t->ids.len >= MAX_POST) {
        return msgl__err_set(err, MSGL_ELIMIT, "%s: a template of more than %d ids", where,
                             MAX_POST);
    }
    if (type > 0 && t->pair_from < 0) t->pair_from = (int64_t)t->ids.len;
    return msgl__ids_push(&t->ids, id) == 0 ? 0 : msgl__j_enomem(err);
}

static int post_special(const msgl_tokenizer *t, const json_t *j, const char *name, int64_t type,
                        const char *where, template *out, msgl_err *err)
{
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(j, "special_tokens"), name), "ids");
    if (!json_is_array(ids)) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s.special_tokens: no ids for \"%.40s\"", where,
                             name);
    }
    int rc = 0;
    for (size_t i = 0; i < json_array_size(ids) && rc == 0; i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= t->vocab_size) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%s.special_tokens: an id of \"%.40s\" is not in the vocabulary "
                                 "(0 to %d)",
                                 where, name, (int)t->vocab_size - 1);
        }
        rc = post_add(out, (int32_t)json_integer_value(id), type, where, err);
    }
    return rc;
}

// One piece of a template: {"Sequence": {"id": "A"}} or {"SpecialToken": {"id": name}}, each with a
// type_id.
static int post_piece(const msgl_tokenizer *t, const json_t *j, const json_t *piece, bool pair,
                      const char *where, template *out, msgl_err *err)
{
    const json_t *seq = json_object_get(piece, "Sequence");
    const json_t *special = json_object_get(piece, "SpecialToken");
    const json_t *object = seq != NULL ? seq : special, *id = json_object_get(object, "id");
    const char *name = json_is_string(id) ? json_string_value(id) : NULL;
    const bool second = pair && name != NULL && strcmp(name, "B") == 0;
    if (name == NULL || (seq != NULL && strcmp(name, "A") != 0 && !second)) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s.%s: expected {\"Sequence\": {\"id\": \"A\"%s}} or "
                             "{\"SpecialToken\": {\"id\": name}}",
                             where, pair ? "pair" : "single", pair ? " or \"B\"" : "");
    }
    const int64_t type = json_integer_value(json_object_get(object, "type_id"));
    if (seq == NULL) return post_special(t, j, name, type, where, out, err);
    if (second) return post_add(out, MSGL_POST_SECOND, type, where, err);
    int rc = 0; // what a processor before this one made of the text
    for (size_t i = 0; i < t->num_post && rc == 0; i++) {
        rc = post_add(out, t->post[i], type, where, err);
    }
    return rc;
}

static int load_template(const msgl_tokenizer *t, const json_t *j, const char *key,
                         const char *where, template *out, msgl_err *err)
{
    const json_t *pieces = msgl__j_get(j, key);
    char path[MSGL_WHERE_SIZE];
    snprintf(path, sizeof(path), "%s.%s", where, key);
    int rc = msgl__j_expect(pieces, path, JSON_ARRAY, "an array", err);
    for (size_t i = 0; rc == 0 && i < json_array_size(pieces); i++) {
        rc = post_piece(t, j, json_array_get(pieces, i), strcmp(key, "pair") == 0, where, out, err);
    }
    return rc;
}

// "sep": ["[SEP]", 102]
static int load_pair_token(const msgl_tokenizer *t, const json_t *j, const char *where,
                           const char *key, int32_t *out, msgl_err *err)
{
    const json_t *v = msgl__j_get(j, key), *id = json_array_get(v, 1);
    if (!json_is_integer(id) || json_integer_value(id) < 0 ||
        json_integer_value(id) >= t->vocab_size) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s.%s: expected [token, id] with an id of the vocabulary (0 to %d)",
                             where, key, (int)t->vocab_size - 1);
    }
    *out = (int32_t)json_integer_value(id);
    return 0;
}

// BertProcessing: CLS A SEP, and CLS A SEP B SEP, the second text of type 1; RobertaProcessing has
// two SEP between the texts and no types.
static int load_classic(const msgl_tokenizer *t, const json_t *j, const char *where, bool roberta,
                        template *single, template *pair, msgl_err *err)
{
    int32_t cls = 0, sep = 0;
    int rc = load_pair_token(t, j, where, "cls", &cls, err);
    if (rc == 0) rc = load_pair_token(t, j, where, "sep", &sep, err);
    const int32_t of_one[] = {cls, MSGL_POST_SEQUENCE, sep};
    const int32_t of_two[] = {MSGL_POST_SECOND, sep};
    for (size_t i = 0; i < MSGL_COUNT(of_one) && rc == 0; i++) {
        rc = post_add(single, of_one[i], 0, where, err);
        if (rc == 0) rc = post_add(pair, of_one[i], 0, where, err);
    }
    if (roberta && rc == 0) rc = post_add(pair, sep, 0, where, err);
    for (size_t i = 0; i < MSGL_COUNT(of_two) && rc == 0; i++) {
        rc = post_add(pair, of_two[i], roberta ? 0 : 1, where, err);
    }
    return rc;
}

static int load_post(msgl_tokenizer *t, const json_t *j, const char *where, const char *type,
                     msgl_err *err)
{
    template single = {.pair_from = -1}, pair = {.pair_from = -1};
    int rc;
    if (strcmp(type, "ByteLevel") == 0) return 0; // it moves offsets only
    if (strcmp(type, "TemplateProcessing") == 0) {
        rc = load_template(t, j, "single", where, &single, err);
        if (rc == 0 && msgl__j_get(j, "pair") != NULL) {
            rc = load_template(t, j, "pair", where, &pair, err);
        }
    } else if (strcmp(type, "BertProcessing") == 0 || strcmp(type, "RobertaProcessing") == 0) {
        rc = load_classic(t, j, where, type[0] == 'R', &single, &pair, err);
    } else {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s: type \"%.40s\" is not supported; known: TemplateProcessing "
                             "BertProcessing RobertaProcessing ByteLevel Sequence",
                             where, type);
    }
    if (rc != 0) {
        msgl__ids_free(&single.ids);
        msgl__ids_free(&pair.ids);
        return rc;
    }
    msgl__free(t->post);
    msgl__free(t->post_pair);
    t->post = single.ids.data;
    t->num_post = single.ids.len;
    t->post_pair = pair.ids.data;
    t->num_post_pair = pair.ids.len;
    t->pair_from = pair.pair_from < 0 ? pair.ids.len : (size_t)pair.pair_from;
    return 0;
}

int msgl__load_post_processor(msgl_tokenizer *t, const json_t *j, msgl_err *err)
{
    t->post = msgl__malloc(sizeof(*t->post));
    t->post_pair = msgl__malloc(2 * sizeof(*t->post_pair));
    if (t->post == NULL || t->post_pair == NULL) return msgl__j_enomem(err);
    t->post[0] = t->post_pair[0] = MSGL_POST_SEQUENCE; // two texts one behind the other
    t->post_pair[1] = MSGL_POST_SECOND;
    t->num_post = t->pair_from = 1;
    t->num_post_pair = 2;
    return msgl__load_steps(t, j, "post_processor", "processors", load_post, err);
}
