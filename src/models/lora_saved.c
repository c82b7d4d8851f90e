// SPDX-License-Identifier: Apache-2.0
#include "models/lora_saved.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "kernel/device.h"
#include "models/lora_sites.h"
#include "models/source.h"
#include "utils/file.h"
#include "utils/strbuf.h"

typedef struct msgl_lora_saved_module {
    const msgl_linear *of; // NULL: the embedding
    const msgl_lora_site *sites;
    size_t num_sites;
    const msgl_tensor *weight, *bias;
    const int32_t *ids; // [num_ids] rows that the weight has; NULL: all
    int32_t num_ids;
    size_t first; // of the list that is planned, this module's own
    size_t num;
} module;

static const char WEIGHT[] = ".weight", BIAS[] = ".bias";
static const char TOKENS[] = ".token_adapter.trainable_tokens_delta";

static int fail(const msgl_lora_saved_reader *r, const msgl_tensor *t, int code, const char *what)
{
    return msgl__lora_fail(r->c, t, code, what, r->err);
}

// That of these sites, whole or as tokens, which is a new one if there is none.
static int add_module(msgl_lora_saved_reader *r, const msgl_tensor *t, const msgl_lora_site *sites,
                      size_t num, bool tokens, module **out)
{
    for (size_t i = 0; i < r->num; i++) {
        *out = &r->modules[i];
        if ((*out)->sites == sites && ((*out)->ids != NULL) == tokens) return 0;
    }
    if (r->num == r->room) {
        r->room = 2 * r->room + 8;
        module *grown = msgl__reallocarray(r->modules, r->room, sizeof *grown);
        if (grown == NULL) return fail(r, t, MSGL_ENOMEM, "out of memory");
        r->modules = grown;
    }
    *out = &r->modules[r->num++];
    **out = (module){.of = sites->embeds ? NULL : sites->linear, .sites = sites, .num_sites = num};
    return 0;
}

static int check_site(const msgl_lora_saved_reader *r, const msgl_tensor *t,
                      const msgl_lora_site *s, size_t num)
{
    const msgl_wanted *w = &s->wanted;
    if (num == 0 || (s->linear == NULL && !s->embeds)) {
        return fail(r, t, MSGL_EUNSUPPORTED,
                    "the model has no such module, or none that adapters can replace");
    }
    if (s->adds && !s->embeds) {
        return fail(r, t, MSGL_EUNSUPPORTED,
                    "a module whose result is added to the stream is not replaced here");
    }
    if (r->sites->gguf && (w->pairs > 0 || w->head_groups > 0 || num > 1)) {
        return fail(
            r, t, MSGL_EUNSUPPORTED,
            "the model's GGUF file has this module in another order than PEFT; allowed: its "
            "safetensors");
    }
    return 0;
}

bool msgl__lora_saved_take(msgl_lora_saved_reader *r, const msgl_tensor *t, const char *name)
{
    static const char *const SUFFIXES[] = {WEIGHT, BIAS, TOKENS};
    const char *suffix = NULL;
    for (size_t i = 0; i < MSGL_COUNT(SUFFIXES); i++) {
        if (msgl__ends_with(name, SUFFIXES[i])) suffix = SUFFIXES[i];
    }
    if (suffix == NULL) return false;
    char of[2 * MSGL_TENSOR_NAME];
    const size_t len = strlen(name) - strlen(suffix);
    if (len >= sizeof of) {
        r->status = fail(r, t, MSGL_ELIMIT, "its name is too long");
        return true;
    }
    (void)snprintf(of, sizeof of, "%.*s", (int)len, name);
    size_t num;
    const msgl_lora_site *sites = msgl__lora_find_sites(r->sites, of, &num);
    module *m = NULL;
    r->status = check_site(r, t, sites, num);
    if (r->status == 0) r->status = add_module(r, t, sites, num, suffix == TOKENS, &m);
    if (r->status != 0) return true;
    const msgl_tensor **to = suffix == BIAS ? &m->bias : &m->weight;
    if (*to != NULL) {
        r->status = fail(r, t, MSGL_EFORMAT, "its module is there twice");
    } else if (!t->loadable || t->packing.form != NULL || t->ndim != (suffix == BIAS ? 1 : 2)) {
        r->status = fail(r, t, MSGL_EFORMAT,
                         "allowed: F32, F16 or BF16, a bias of one dimension "
                         "and all else of two");
    }
    *to = t;
    if (r->status == 0 && suffix == TOKENS) {
        m->ids = msgl__lora_config_tokens(r->config, of, sites->embeds, &m->num_ids);
        if (m->ids == NULL) {
            r->status =
                fail(r, t, MSGL_EFORMAT, "trainable_token_indices says nothing of its tokens");
        }
    }
    return true;
}

static int64_t rows_of(const module *m)
{
    const msgl_wanted *w = &m->sites->wanted;
    return w->tensor_rows > 0 ? w->tensor_rows : w->unsharded_rows;
}

static int check_module(const msgl_lora_saved_reader *r, const module *m)
{
    if (m->weight == NULL) return fail(r, m->bias, MSGL_EFORMAT, "its weight is missing");
    const int64_t all = m->sites->embeds ? r->sites->vocab : rows_of(m);
    const int64_t rows = m->ids != NULL ? m->num_ids : all;
    const int64_t cols = m->sites->embeds ? r->sites->hidden : m->sites->wanted.all_cols;
    const msgl_tensor *t = m->weight;
    char what[160], found[48];
    if (t->dims[0] != rows || t->dims[1] != cols || (m->bias != NULL && m->bias->dims[0] != rows)) {
        (void)snprintf(what, sizeof what, "shape: found %s, expected [%lld, %lld]",
                       msgl__shape_show(t->dims, t->ndim, found, sizeof found), (long long)rows,
                       (long long)cols);
        return fail(r, t, MSGL_EFORMAT, what);
    }
    for (int32_t i = 0; i < m->num_ids; i++) {
        if (m->ids[i] < all) continue;
        (void)snprintf(what, sizeof what, "token %d: allowed 0 to %lld", (int)m->ids[i],
                       (long long)all - 1);
        return fail(r, t, MSGL_EFORMAT, what);
    }
    return 0;
}

// Trained tokens of the embedding are those of the head that is tied to it, unless that has its
// own.
static int tie(msgl_lora_saved_reader *r)
{
    const size_t num = r->num;
    bool head = false;
    if (!r->sites->tied) return 0;
    for (size_t i = 0; i < num; i++) head = head || r->modules[i].of == r->sites->head;
    for (size_t i = 0; i < num && !head; i++) {
        const module tokens = r->modules[i];
        if (tokens.of != NULL || tokens.ids == NULL) continue;
        module *m = NULL;
        size_t n;
        const msgl_lora_site *sites = msgl__lora_find_sites(r->sites, r->sites->head_name, &n);
        if (n == 0) return 0;
        const int code = add_module(r, tokens.weight, sites, n, true, &m);
        if (code != 0) return code;
        m->weight = tokens.weight;
        m->ids = tokens.ids;
        m->num_ids = tokens.num_ids;
    }
    return 0;
}

// How many neighbouring rows follow each other in the tensor as they do in the weight: of tokens
// 7 8 3 it is 2 from the first on.
static int32_t stretch(const module *m, int32_t first)
{
    int32_t n = 1;
    while (first + n < m->num_ids && m->ids[first + n] == m->ids[first] + n) n++;
    return n;
}

// A site's rows that this rank has, as [from, end) of the tensor, and where they go.
typedef struct span {
    int32_t from, end, to;
} span;

// Of the tensor's rows [from, end), which are rows `at` and following of the module's weight.
static span own_rows(const module *m, int32_t at, int32_t rows)
{
    const msgl_wanted *w = &m->sites->wanted;
    if (m->of == NULL) return (span){0, rows, at};
    const int32_t first = w->skip > at ? w->skip : at;
    const int32_t end = w->skip + w->rows < at + rows ? w->skip + w->rows : at + rows;
    return (span){first - at, end > first ? end - at : first - at, w->row + first - w->skip};
}

static void plan_one(msgl_lora_saved_reader *r, msgl_weight_plan *p, const module *m,
                     msgl_lora_replaced *out, int *num)
{
    const int32_t cols = m->of == NULL ? r->sites->hidden : m->of->w.k;
    if (m->ids == NULL) {
        int32_t first = 0, end = 0;
        for (size_t i = 0; i < m->num_sites && m->of != NULL; i++) {
            const msgl_wanted *w = &m->sites[i].wanted;
            if (w->rows == 0) continue;
            if (end == 0 || w->row < first) first = w->row;
            end = w->row + w->rows > end ? w->row + w->rows : end;
        }
        if (m->of == NULL) end = r->sites->vocab;
        if (end == first) return;
        msgl_lora_replaced *to = &out[(*num)++];
        to->first = first;
        msgl__plan_weight(p, &to->w, end - first, cols);
        if (m->bias != NULL) msgl__plan_vector(p, &to->bias, end - first);
        return;
    }
    for (int32_t i = 0, n; i < m->num_ids; i += n) {
        n = stretch(m, i);
        const span s = own_rows(m, m->ids[i], n);
        if (s.end == s.from) continue;
        msgl_lora_replaced *to = &out[(*num)++];
        to->first = s.to;
        msgl__plan_weight(p, &to->w, s.end - s.from, cols);
    }
}

static int by_of(const void *a, const void *b)
{
    const module *x = a, *y = b;
    return x->of != y->of ? (x->of < y->of ? -1 : 1) : 0;
}

int msgl__lora_saved_plan(msgl_lora_saved_reader *r, msgl_weight_plan *p, msgl_lora_saved **out,
                          int *num)
{
    *out = NULL;
    *num = 0;
    for (size_t i = 0; i < r->num; i++) {
        const int code = check_module(r, &r->modules[i]);
        if (code != 0) return code;
    }
    const int code = tie(r);
    if (code != 0 || r->num == 0) return code;
    qsort(r->modules, r->num, sizeof *r->modules, by_of);
    msgl_lora_saved *all = *out = msgl__calloc(r->num, sizeof *all);
    if (all == NULL) return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    for (size_t first = 0, end; first < r->num; first = end) {
        size_t room = 0;
        for (end = first; end < r->num && r->modules[end].of == r->modules[first].of; end++) {
            room += r->modules[end].ids != NULL ? (size_t)r->modules[end].num_ids : 1;
        }
        msgl_lora_saved *l = &all[(*num)++];
        msgl_lora_replaced *at = msgl__calloc(room, sizeof *at);
        l->of = r->modules[first].of;
        l->at = at;
        if (at == NULL) return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
        for (size_t i = first; i < end; i++) {
            r->modules[i].first = (size_t)l->num;
            plan_one(r, p, &r->modules[i], at, &l->num);
            r->modules[i].num = (size_t)l->num - r->modules[i].first;
        }
    }
    return 0;
}

static void load_bias(const module *m, const msgl_lora_replaced *to, msgl_exec *x)
{
    float *host = msgl__reallocarray(NULL, (size_t)to->w.n, sizeof *host);
    if (host == NULL) {
        x->status = MSGL_ENOMEM;
        return;
    }
    for (size_t i = 0; i < m->num_sites; i++) {
        const msgl_wanted *w = &m->sites[i].wanted;
        const msgl_source s = {.t = m->bias,
                               .want = MSGL_F32,
                               .first = (size_t)w->first,
                               .head = w->head,
                               .unpaired = w->unpaired,
                               .pairs = w->pairs};
        for (int32_t j = 0; j < w->rows; j++) {
            host[w->row - to->first + j] = msgl__source_element(&s, (size_t)(w->skip + j));
        }
    }
    x->device->ops->copy_in(x->device, to->bias, host, (size_t)to->w.n * sizeof *host);
    msgl__free(host);
}

static void load_whole(const msgl_lora_saved_reader *r, const module *m, msgl_lora_replaced *to,
                       msgl_exec *x)
{
    msgl_load_item item = {.tensor = m->weight};
    if (m->of == NULL) { // every rank has all rows
        const int32_t rows = r->sites->vocab, cols = r->sites->hidden;
        const msgl_wanted w = {
            .weight = &to->w, .rows = rows, .cols = cols, .unsharded_rows = rows, .all_cols = cols};
        item.want = &w;
        msgl__load_weight(&item, 1, x);
        return;
    }
    for (size_t i = 0; i < m->num_sites && x->status == 0; i++) {
        msgl_wanted w = m->sites[i].wanted;
        if (w.rows == 0) continue;
        w.weight = &to->w;
        w.row -= to->first;
        item.want = &w;
        msgl__load_weight(&item, 1, x);
    }
    if (m->bias != NULL && x->status == 0) load_bias(m, to, x);
}

static void load_tokens(const module *m, msgl_lora_replaced *to, msgl_exec *x)
{
    for (int32_t i = 0, n; i < m->num_ids; i += n) {
        n = stretch(m, i);
        const span s = own_rows(m, m->ids[i], n);
        if (s.end == s.from) continue;
        msgl_wanted w = {.weight = &to->w,
                         .rows = s.end - s.from,
                         .cols = to->w.k,
                         .unsharded_rows = m->num_ids,
                         .skip = i + s.from,
                         .all_cols = to->w.k};
        const msgl_load_item item = {.want = &w, .tensor = m->weight};
        msgl__load_weight(&item, 1, x);
        if (m->of == NULL) to->w.first = to->first;
        to++;
    }
}

void msgl__lora_saved_load(const msgl_lora_saved_reader *r, const msgl_lora_saved *all, int num,
                           msgl_exec *x)
{
    for (size_t i = 0; i < r->num && x->status == 0; i++) {
        const module *m = &r->modules[i];
        int l = 0;
        while (l < num && all[l].of != m->of) l++;
        // The lists are this file's; only reading them is everyone's.
        msgl_lora_replaced *to = (msgl_lora_replaced *)all[l].at + m->first;
        if (m->num == 0) continue;
        if (m->ids != NULL) {
            load_tokens(m, to, x);
        } else {
            load_whole(r, m, to, x);
        }
        msgl__arena_reset(x->scratch);
    }
}

void msgl__lora_saved_free(msgl_lora_saved *all, int num)
{
    for (int i = 0; i < num; i++) msgl__free((void *)all[i].at);
    msgl__free(all);
}

void msgl__lora_saved_reader_free(msgl_lora_saved_reader *r)
{
    msgl__free(r->modules);
    r->modules = NULL;
    r->num = r->room = 0;
}
