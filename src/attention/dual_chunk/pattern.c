// SPDX-License-Identifier: Apache-2.0
#include "attention/dual_chunk/pattern.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "utils/file.h"
#include "utils/json.h"

enum {
    MAX_BYTES = 64 << 20, // of a file: a hundred layers of 128 heads are 1 MB
    MAX_KEYS = 1 << 28,   // of a head's columns or distances
};

static const char LIST[] = "sparse_attention_config";

typedef struct reading {
    char path[4096];
    json_t *root;
    const json_t *layers; // of root; NULL: there is none
} reading;

// Parses DIR/name, whatever its top level is; a file that is missing leaves root NULL.
static int parse(const char *dir, const char *name, reading *r, msgl_err *err)
{
    char *text = NULL;
    size_t len = 0;
    int rc = msgl__path_join(dir, name, r->path, sizeof r->path, err);
    if (rc == 0) rc = msgl__file_read(r->path, MAX_BYTES, &text, &len, err);
    if (rc == MSGL_ENOENT) return 0;
    if (rc == 0) rc = msgl__json_parse(msgl__path_shown(r->path), text, len, 0, &r->root, err);
    msgl__free(text);
    return rc;
}

static int find_list(const char *dir, reading *r, msgl_err *err)
{
    int rc = parse(dir, "sparse_attention_config.json", r, err);
    if (rc != 0 || r->root != NULL) {
        r->layers = r->root;
        return rc;
    }
    rc = parse(dir, "config.json", r, err);
    r->layers = json_object_get(json_object_get(r->root, "dual_chunk_attention_config"), LIST);
    if (json_is_null(r->layers)) r->layers = NULL;
    return rc;
}

// A row always sees itself, so there is no head without distances.
static bool read_count(const json_t *v, int32_t least, int32_t *out)
{
    const json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    if (n < least || n > MAX_KEYS) return false;
    *out = (int32_t)n;
    return true;
}

static int read_head(const reading *r, int32_t layer, int32_t head, msgl_head_pattern *to,
                     msgl_err *err)
{
    char key[16];
    snprintf(key, sizeof key, "%d", (int)head);
    const json_t *row = json_object_get(json_array_get(r->layers, (size_t)layer), key);
    const char *kind = json_string_value(json_array_get(row, 0));
    const char *file = msgl__path_shown(r->path);
    char shown[32];
    if (kind != NULL && strcmp(kind, "vertical_and_slash") != 0) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s: layer %d, head %d: pattern \"%s\"; allowed: vertical_and_slash",
                             file, (int)layer, (int)head,
                             msgl__printable(kind, shown, sizeof shown));
    }
    if (kind == NULL || !read_count(json_array_get(row, 1), 0, &to->columns) ||
        !read_count(json_array_get(row, 2), 1, &to->distances)) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: layer %d, head %d: not [\"vertical_and_slash\", COLUMNS, "
                             "DISTANCES, ...] with numbers up to %d, DISTANCES from 1 on",
                             file, (int)layer, (int)head, (int)MAX_KEYS);
    }
    return 0;
}

static int read_list(const reading *r, msgl_dual_pattern *p, msgl_err *err)
{
    const size_t layers = (size_t)p->num_layers, heads = (size_t)p->num_q_heads;
    if (!json_is_array(r->layers) || json_array_size(r->layers) != layers) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s: %s is no list of %d objects, one a layer",
                             msgl__path_shown(r->path), LIST, (int)p->num_layers);
    }
    p->heads = msgl__calloc(layers * heads, sizeof *p->heads);
    if (p->heads == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", LIST);
    int rc = 0;
    for (size_t i = 0; i < layers * heads && rc == 0; i++) {
        rc = read_head(r, (int32_t)(i / heads), (int32_t)(i % heads), &p->heads[i], err);
    }
    return rc;
}

int msgl__dual_pattern_load(const char *dir, const msgl_sparse_prompts *prompts,
                            msgl_dual_pattern *p, msgl_err *err)
{
    p->prompts = *prompts;
    if (!prompts->enabled) return 0;
    reading r = {.root = NULL};
    int rc = find_list(dir, &r, err);
    if (rc == 0 && r.layers != NULL) rc = read_list(&r, p, err);
    json_decref(r.root);
    return rc;
}

int msgl__dual_pattern_rotations(msgl_dual_pattern *p, const msgl_dual_chunk *dual,
                                 const float *inv_freq, int32_t half, msgl_err *err)
{
    const int32_t by[2] = {dual->len, dual->size};
    p->half = half;
    p->rotations = msgl__calloc(2, 2 * (size_t)half * sizeof *p->rotations);
    if (p->rotations == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", LIST);
    for (int i = 0; i < 2; i++) {
        float *to = p->rotations + (size_t)i * 2 * (size_t)half;
        for (int32_t j = 0; j < half; j++) {
            const double angle = (double)by[i] * (double)inv_freq[j];
            to[j] = (float)cos(angle);
            to[half + j] = (float)sin(angle);
        }
    }
    return 0;
}

void msgl__dual_pattern_free(msgl_dual_pattern *p)
{
    msgl__free(p->heads);
    msgl__free(p->rotations);
    *p = (msgl_dual_pattern){.heads = NULL};
}
