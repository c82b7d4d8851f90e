// SPDX-License-Identifier: Apache-2.0
#include "attention/double_sparsity/channels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "utils/file.h"
#include "utils/json.h"
#include "utils/json_write.h"

enum { MAX_BYTES = 256 << 20 }; // of a file: a hundred layers of 128 heads are 20 MB a type

static const char *const TYPES[] = {"q", "k", "qk"};

static void member_name(int32_t layer, const char *type, char name[64])
{
    snprintf(name, 64, "model.layers.%d.self_attn.%s_proj", (int)layer, type);
}

// ---- reading ----

typedef struct reading {
    const char *file; // for messages
    const char *type;
    const msgl_attn_sparse *s;
    int32_t *ranks; // [head_dim] sums over a KV head's rows
} reading;

// Adds the place of each channel in a row to r->ranks; those that it does not list come last.
static int add_row(const reading *r, const char *member, size_t index, const json_t *row,
                   msgl_err *err)
{
    const int32_t dim = r->s->dims.head_dim, most = r->s->heavy_channels;
    bool listed[MSGL_ATTN_MAX_DIM] = {false};
    const size_t n = json_array_size(row);
    if (!json_is_array(row) || n < (size_t)most || n > (size_t)dim) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: row %zu of %s is no list of %d (--ds-heavy-channel-num) to %d "
                             "(head_dim) channels",
                             r->file, index, member, (int)most, (int)dim);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(row, i);
        const json_int_t c = json_is_integer(v) ? json_integer_value(v) : -1;
        if (c < 0 || c >= dim || listed[c]) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%s: entry %zu in row %zu of %s; allowed: different channels "
                                 "from 0 to %d",
                                 r->file, i, index, member, (int)dim - 1);
        }
        listed[c] = true;
        r->ranks[c] += (int32_t)i;
    }
    for (int32_t c = 0; c < dim; c++) {
        if (!listed[c]) r->ranks[c] += (int32_t)n;
    }
    return 0;
}

// The heavy_channels channels with the smallest ranks, the lowest first where they are equal.
static void take_smallest(const reading *r, uint16_t *channels)
{
    for (int32_t i = 0; i < r->s->heavy_channels; i++) {
        int32_t best = 0;
        for (int32_t c = 1; c < r->s->dims.head_dim; c++) {
            if (r->ranks[c] < r->ranks[best]) best = c;
        }
        r->ranks[best] = INT32_MAX;
        channels[i] = (uint16_t)best;
    }
}

static int read_layer(const reading *r, const json_t *root, int32_t layer, msgl_err *err)
{
    const msgl_channel_dims *d = &r->s->dims;
    char member[64];
    member_name(layer, r->type, member);
    const json_t *rows = json_object_get(root, member);
    if (rows == NULL) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s: no \"%s\"; the model has %d layers", r->file,
                             member, (int)d->num_layers);
    }
    const size_t n = json_array_size(rows);
    if (!json_is_array(rows) || (n != (size_t)d->num_kv_heads && n != (size_t)d->num_q_heads)) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: %s has %zu rows; allowed: %d (KV heads) or %d (query heads)",
                             r->file, member, n, (int)d->num_kv_heads, (int)d->num_q_heads);
    }
    const size_t each = n / (size_t)d->num_kv_heads;
    uint16_t *channels = (uint16_t *)(uintptr_t)msgl__attn_channels(r->s, layer);
    for (size_t h = 0; h < (size_t)d->num_kv_heads; h++) {
        memset(r->ranks, 0, (size_t)d->head_dim * sizeof *r->ranks);
        for (size_t i = h * each; i < (h + 1) * each; i++) {
            const int rc = add_row(r, member, i, json_array_get(rows, i), err);
            if (rc != 0) return rc;
        }
        take_smallest(r, channels + h * (size_t)r->s->heavy_channels);
    }
    return 0;
}

int msgl__attn_channels_load(const char *path, const char *type, msgl_attn_sparse *s, msgl_err *err)
{
    const msgl_channel_dims *d = &s->dims;
    int32_t ranks[MSGL_ATTN_MAX_DIM];
    const reading r = {.file = msgl__path_shown(path), .type = type, .s = s, .ranks = ranks};
    if (s->heavy_channels % 8 != 0 || s->heavy_channels > d->head_dim ||
        d->head_dim > MSGL_ATTN_MAX_DIM) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--ds-heavy-channel-num %d; allowed: multiples of 8 up to %d, the "
                             "model's head_dim",
                             (int)s->heavy_channels, (int)d->head_dim);
    }
    json_t *root = NULL;
    int rc = msgl__json_load(path, MAX_BYTES, 0, &root, err);
    if (rc != 0) return rc;
    const size_t heads = (size_t)d->num_layers * (size_t)d->num_kv_heads;
    s->channels = msgl__calloc(heads * (size_t)s->heavy_channels, sizeof *s->channels);
    if (s->channels == NULL) rc = msgl__err_set(err, MSGL_ENOMEM, "channels: out of memory");
    for (int32_t l = 0; rc == 0 && l < d->num_layers; l++) rc = read_layer(&r, root, l, err);
    char beyond[64];
    member_name(d->num_layers, type, beyond);
    if (rc == 0 && json_object_get(root, beyond) != NULL) {
        rc = msgl__err_set(err, MSGL_EFORMAT, "%s: has \"%s\"; the model has %d layers", r.file,
                           beyond, (int)d->num_layers);
    }
    json_decref(root);
    return rc;
}

// ---- calibration ----

int msgl__attn_sums_create(msgl_attn_sparse *s, msgl_err *err)
{
    const size_t channels = (size_t)s->dims.num_layers * (size_t)s->dims.head_dim;
    s->sums.q = msgl__calloc(channels * (size_t)s->dims.num_q_heads, sizeof *s->sums.q);
    s->sums.k = msgl__calloc(channels * (size_t)s->dims.num_kv_heads, sizeof *s->sums.k);
    if (s->sums.q != NULL && s->sums.k != NULL) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "calibration: out of memory");
}

typedef struct weight {
    double value;
    int32_t channel;
} weight;

// Heaviest first, then the lowest channel.
static int heavier(const void *a, const void *b)
{
    const weight *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->channel - y->channel;
}

// A KV head's channels by their weight: sums over its query heads where q has a part in it.
static void weigh(const msgl_attn_sparse *s, const char *type, size_t layer, size_t head, weight *w)
{
    const size_t dim = (size_t)s->dims.head_dim, heads = (size_t)s->dims.num_kv_heads;
    const size_t group = (size_t)s->dims.num_q_heads / heads, at = layer * heads + head;
    const bool q = strcmp(type, "k") != 0, k = strcmp(type, "q") != 0;
    for (size_t c = 0; c < dim; c++) {
        double sum = q ? 0 : 1;
        for (size_t i = 0; q && i < group; i++) sum += s->sums.q[(at * group + i) * dim + c];
        w[c] = (weight){.value = k ? sum * s->sums.k[at * dim + c] : sum, .channel = (int32_t)c};
    }
    qsort(w, dim, sizeof *w, heavier);
}

// A layer's member; NULL: out of memory.
static json_t *make_member(const msgl_attn_sparse *s, int32_t layer, const char *type)
{
    weight w[MSGL_ATTN_MAX_DIM];
    json_t *rows = json_array();
    int failed = rows == NULL;
    for (int32_t h = 0; h < s->dims.num_kv_heads && !failed; h++) {
        json_t *row = json_array();
        weigh(s, type, (size_t)layer, (size_t)h, w);
        failed = json_array_append_new(rows, row);
        for (int32_t c = 0; c < s->dims.head_dim && !failed; c++) {
            failed = json_array_append_new(row, json_integer(w[c].channel));
        }
    }
    if (!failed) return rows;
    json_decref(rows);
    return NULL;
}

int msgl__attn_channels_write(const char *path, const msgl_attn_sparse *s, msgl_err *err)
{
    json_t *root = json_object();
    int failed = root == NULL;
    for (int32_t l = 0; l < s->dims.num_layers; l++) {
        for (size_t t = 0; t < MSGL_COUNT(TYPES) && !failed; t++) {
            char name[64];
            member_name(l, TYPES[t], name);
            failed = json_object_set_new(root, name, make_member(s, l, TYPES[t]));
        }
    }
    int rc = 0;
    char *text = NULL;
    if (failed) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "channels: out of memory");
    } else if ((text = msgl__json_text(root, 0)) == NULL) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "channels: out of memory");
    } else {
        rc = msgl__file_replace(path, 0666, text, strlen(text), err);
    }
    msgl__free(text);
    json_decref(root);
    return rc;
}

void msgl__attn_sparse_free(msgl_attn_sparse *s)
{
    msgl__free(s->channels);
    msgl__free(s->sums.q);
    msgl__free(s->sums.k);
    *s = (msgl_attn_sparse){0};
}
