// SPDX-License-Identifier: Apache-2.0
//
// Typed access to tokenizer.json, and the loaders of its parts. `where` is the path of the object
// in the file ("normalizer.normalizers[1]"); every error names it.
#ifndef MSGL_TOKENIZER_LOAD_H
#define MSGL_TOKENIZER_LOAD_H

#include <jansson.h>

#include "tokenizer/internal.h"
#include "tokenizer/json_scan.h"

#define MSGL_WHERE_SIZE 96

// The member, NULL when it is absent or null.
json_t *msgl__j_get(const json_t *obj, const char *key);
// Each: 0, or MSGL_EFORMAT naming where, key, what was expected and found. `missing` is the value
// of an absent member; MSGL_J_REQUIRED makes that an error.
#define MSGL_J_REQUIRED INT64_MIN
int msgl__j_bool(const json_t *obj, const char *where, const char *key, int64_t missing, int *out,
                 msgl_err *err);
int msgl__j_int(const json_t *obj, const char *where, const char *key, int64_t lo, int64_t hi,
                int64_t missing, int64_t *out, msgl_err *err);
// A copy that *out owns. Absent: an error unless `optional`, then out->p is NULL.
int msgl__j_string(const json_t *obj, const char *where, const char *key, int optional,
                   msgl_tok_str *out, msgl_err *err);
int msgl__j_char(const json_t *obj, const char *where, const char *key, uint32_t *out,
                 msgl_err *err);
// Checks that `j` has the JSON type; `what` says which ("an array").
int msgl__j_expect(const json_t *j, const char *where, json_type type, const char *what,
                   msgl_err *err);
int msgl__j_enomem(msgl_err *err);

// The member "type" of a component.
int msgl__j_type(const json_t *obj, const char *where, const char **type, msgl_err *err);

// Calls `load` for a component or for each member of its (nested) Sequence; `list` is the name of
// the array in a Sequence. j NULL or null: nothing to do.
typedef int msgl_load_step(msgl_tokenizer *t, const json_t *j, const char *where, const char *type,
                           msgl_err *err);
int msgl__load_steps(msgl_tokenizer *t, const json_t *j, const char *where, const char *list,
                     msgl_load_step *load, msgl_err *err);

// {"String": ...} or {"Regex": ...} under `key`.
int msgl__load_pattern(const msgl_tokenizer *t, const json_t *obj, const char *where,
                       const char *key, msgl_tok_pattern *out, msgl_err *err);

// The parts, in the order in which they have to be loaded. The model needs to know whether the
// pre-tokenizer ends in ByteLevel; the added tokens need the normalizer and the model.
int msgl__load_normalizer(msgl_tokenizer *t, const json_t *j, msgl_err *err);
int msgl__load_pre_tokenizer(msgl_tokenizer *t, const json_t *j, msgl_err *err);
int msgl__load_model(msgl_tokenizer *t, const json_t *j, const msgl_jspan *vocab,
                     const msgl_jspan *merges, msgl_err *err);
int msgl__load_unigram(msgl_tokenizer *t, const json_t *j, const msgl_jspan *vocab, msgl_err *err);
int msgl__load_added(msgl_tokenizer *t, const json_t *j, const json_t *config, msgl_err *err);
int msgl__load_post_processor(msgl_tokenizer *t, const json_t *j, msgl_err *err);
int msgl__load_decoder(msgl_tokenizer *t, const json_t *j, msgl_err *err);

// An empty tokenizer, to be freed with msgl__tokenizer_free also after a failure.
int msgl__tokenizer_create(msgl_tokenizer **out, msgl_err *err);

// Builds a tokenizer from the text of tokenizer.json and, unless NULL, of tokenizer_config.json;
// what msgl__tokenizer_load does once the files are read.
int msgl__tokenizer_parse(const char *json, size_t len, const char *config, size_t config_len,
                          msgl_tokenizer **out, msgl_err *err);

#endif
