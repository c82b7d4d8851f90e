// SPDX-License-Identifier: Apache-2.0
#include "models/lora_latent.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "kernel/device.h"
#include "models/decoder.h"
#include "models/lora_sites.h"

typedef struct msgl_lora_latent_module {
    msgl_lora_factors f;
    const msgl_latent_attention *of;
} module;

static const msgl_latent_attention *latent_of(const msgl_model *m, int32_t layer)
{
    const msgl_decoder *d = m->layers;
    if (m->cfg.arch->family != &msgl__decoder_family || layer >= m->cfg.num_layers) return NULL;
    const msgl_decoder_layer *l = &d->layers[layer];
    return l->mixer == &msgl__mixer_latent ? &l->latent_attn : NULL;
}

const msgl_weight *msgl__lora_latent_at(const msgl_model *m, int32_t layer)
{
    const msgl_latent_attention *a = latent_of(m, layer);
    return a != NULL ? a->k_up : NULL;
}

// The layer whose kv_b_proj the name is; NULL: none's.
static const msgl_latent_attention *find(const msgl_model *m, const char *name)
{
    static const char MODULE[] = ".self_attn.kv_b_proj";
    const size_t n = sizeof MODULE - 1;
    int32_t layer;
    const char *s = msgl__lora_behind_layer(name, &layer);
    if (s == NULL || strncmp(s, MODULE, n) != 0 || (s[n] != '\0' && s[n] != '.')) return NULL;
    return latent_of(m, layer);
}

bool msgl__lora_of_latent(const msgl_model *m, const char *name)
{
    return find(m, name) != NULL;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

void msgl__lora_latent_size(const msgl_model *m, msgl_lora_size *size)
{
    for (int32_t i = 0; i < m->cfg.num_layers; i++) {
        const msgl_latent_attention *a = latent_of(m, i);
        if (a == NULL) continue;
        size->k = larger(size->k, larger(a->rank, a->nope));
        size->n = larger(size->n, larger(a->rank, a->num_heads * (a->nope + a->v_dim)));
        size->parts = larger(size->parts, 1);
    }
}

static int fail(const msgl_lora_latent_reader *r, const msgl_tensor *t, int code, const char *what)
{
    return msgl__lora_fail(r->c, t, code, what, r->err);
}

int msgl__lora_latent_take(msgl_lora_latent_reader *r, const msgl_tensor *t, const char *name,
                           size_t len, bool is_a)
{
    module *last = r->num > 0 ? &r->modules[r->num - 1] : NULL;
    if (last == NULL || !msgl__lora_factors_are(&last->f, name, len)) {
        if (r->num == r->room) {
            r->room = 2 * r->room + 16;
            module *grown = msgl__reallocarray(r->modules, r->room, sizeof *grown);
            if (grown == NULL) return fail(r, t, MSGL_ENOMEM, "out of memory");
            r->modules = grown;
        }
        last = &r->modules[r->num];
        *last = (module){.of = find(r->sites->model, name)};
        const int code = msgl__lora_factors_begin(r->c, t, name, len, &last->f, r->err);
        if (code != 0) return code;
        for (size_t i = 0; i < r->num; i++) {
            if (r->modules[i].of != last->of) continue;
            return fail(r, t, MSGL_EFORMAT, "its module is there twice");
        }
        r->num++;
    }
    return msgl__lora_factors_take(r->c, t, is_a, &last->f, r->err);
}

static int check_module(const msgl_lora_latent_reader *r, module *m)
{
    const msgl_latent_attention *a = m->of;
    int code = msgl__lora_factors_check(r->c, &m->f, r->err);
    if (code != 0) return code;
    const int64_t rank = m->f.a->dims[0],
                  rows = (int64_t)r->sites->model->cfg.num_heads * (a->nope + a->v_dim);
    char what[200], found_a[48], found_b[48];
    code = msgl__lora_check_rank(r->c, m->f.a, rank, r->sites->max_rank, r->err);
    if (code != 0) return code;
    if (m->f.a->dims[1] != a->rank || m->f.b->dims[0] != rows || m->f.b->dims[1] != rank) {
        (void)snprintf(what, sizeof what,
                       "shapes: found A %s and B %s, expected A [rank, %d] and B [%lld, rank]",
                       msgl__shape_show(m->f.a->dims, 2, found_a, sizeof found_a),
                       msgl__shape_show(m->f.b->dims, 2, found_b, sizeof found_b), (int)a->rank,
                       (long long)rows);
        return fail(r, m->f.a, MSGL_EFORMAT, what);
    }
    m->f.rank = (int32_t)rank;
    return msgl__lora_config_scale(r->config, m->f.name, m->f.rank, &m->f.scale, r->err);
}

static int plan_module(const msgl_lora_latent_reader *r, msgl_weight_plan *p, const module *m,
                       msgl_lora_latent *l)
{
    const msgl_latent_attention *a = m->of;
    const size_t heads = (size_t)a->num_heads;
    msgl_weight *k_down = msgl__calloc(heads, sizeof *k_down);
    msgl_weight *v_up = msgl__calloc(heads, sizeof *v_up);
    *l = (msgl_lora_latent){.of = a->k_up, .k_down = k_down, .v_up = v_up};
    if (k_down == NULL || v_up == NULL) {
        return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    }
    const int32_t room = msgl__lora_room(r->sites, m->f.rank);
    for (size_t h = 0; h < heads; h++) {
        msgl__plan_weight(p, &k_down[h], room, a->nope);
        msgl__plan_weight(p, &v_up[h], a->v_dim, room);
    }
    msgl__plan_weight(p, &l->k_up, a->rank, room);
    msgl__plan_weight(p, &l->v_down, room, a->rank);
    msgl__plan_weight(p, &l->kv_up, a->num_heads * (a->nope + a->v_dim), room);
    if (r->sites->by_tiles) {
        msgl__plan_place(p, &l->members, 2 * heads * sizeof(msgl_lora_member));
    }
    return 0;
}

int msgl__lora_latent_plan(msgl_lora_latent_reader *r, msgl_weight_plan *p, msgl_lora_latent **out,
                           int *num)
{
    *out = NULL;
    *num = 0;
    if (r->num == 0) return 0;
    *out = msgl__calloc(r->num, sizeof **out);
    if (*out == NULL) return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    int code = 0;
    for (size_t i = 0; i < r->num && code == 0; i++) {
        code = check_module(r, &r->modules[i]);
        if (code == 0) code = plan_module(r, p, &r->modules[i], &(*out)[(*num)++]);
    }
    return code;
}

static void pack(const msgl_weight *w, const float *rows, msgl_exec *x)
{
    w->format->pack(x, (msgl_weight *)w, 0, w->n, rows, MSGL_F32, (size_t)w->k);
    msgl__arena_reset(x->scratch);
}

static msgl_lora_member member_of(const msgl_weight *a, const msgl_weight *b)
{
    msgl_lora_member m = {.a = a->data};
    m.parts[0].b = b->data;
    m.parts[0].n = b->n;
    m.parts[0].rank = b->k;
    return m;
}

static void load_members(const msgl_lora_latent *l, size_t heads, msgl_exec *x)
{
    msgl_lora_member *host = msgl__reallocarray(NULL, 2 * heads, sizeof *host);
    if (host == NULL) {
        x->status = MSGL_ENOMEM;
        return;
    }
    for (size_t h = 0; h < heads; h++) {
        host[h] = member_of(&l->k_down[h], &l->k_up);
        host[heads + h] = member_of(&l->v_down, &l->v_up[h]);
    }
    x->device->ops->copy_in(x->device, l->members, host, 2 * heads * sizeof *host);
    msgl__free(host);
}

// What a rank's room has beside it are zeros.
static void load_module(const msgl_lora_latent_reader *r, const module *m, msgl_lora_latent *l,
                        float *stage, msgl_exec *x)
{
    const msgl_latent_attention *a = m->of;
    const msgl_model *model = r->sites->model;
    const size_t rank = (size_t)m->f.rank, room = (size_t)l->v_down.n, latent = (size_t)a->rank;
    const size_t v_dim = (size_t)a->v_dim, nope = (size_t)a->nope, head = nope + v_dim;
    const size_t heads = (size_t)a->num_heads;
    const size_t row0 = head * (size_t)msgl__shard(&model->target, model->cfg.num_heads).from;
    for (size_t i = 0; i < room * latent; i++) {
        stage[i] = i < rank * latent ? msgl__lora_element(m->f.a, i) : 0.0f;
    }
    pack(&l->v_down, stage, x);
    for (size_t i = 0; i < room; i++) {
        for (size_t c = 0; c < latent; c++) {
            stage[c * room + i] = i < rank ? msgl__lora_element(m->f.a, i * latent + c) : 0.0f;
        }
    }
    pack(&l->k_up, stage, x);
    for (size_t row = 0; row < heads * head; row++) {
        for (size_t i = 0; i < room; i++) {
            const size_t at = (row0 + row) * rank + i;
            stage[row * room + i] = i < rank ? m->f.scale * msgl__lora_element(m->f.b, at) : 0.0f;
        }
    }
    pack(&l->kv_up, stage, x);
    float *turned = stage + heads * head * room;
    for (size_t h = 0; h < heads; h++) {
        const float *b = stage + h * head * room;
        for (size_t i = 0; i < nope; i++) {
            for (size_t c = 0; c < room; c++) turned[c * nope + i] = b[i * room + c];
        }
        pack(&l->k_down[h], turned, x);
        pack(&l->v_up[h], b + nope * room, x);
    }
    if (l->members != NULL && x->status == 0) load_members(l, heads, x);
}

void msgl__lora_latent_load(const msgl_lora_latent_reader *r, msgl_lora_latent *all, msgl_exec *x)
{
    for (size_t i = 0; i < r->num && x->status == 0; i++) {
        const msgl_latent_attention *a = r->modules[i].of;
        const size_t b = (size_t)a->num_heads * (size_t)(a->nope + a->v_dim) + (size_t)a->nope;
        const size_t rows = b > (size_t)a->rank ? b : (size_t)a->rank;
        float *stage = msgl__reallocarray(NULL, rows * (size_t)all[i].v_down.n, sizeof *stage);
        if (stage == NULL) {
            x->status = MSGL_ENOMEM;
            return;
        }
        load_module(r, &r->modules[i], &all[i], stage, x);
        msgl__free(stage);
    }
}

void msgl__lora_latent_free(msgl_lora_latent *all, int num)
{
    for (int i = 0; i < num; i++) {
        msgl__free((void *)all[i].k_down);
        msgl__free((void *)all[i].v_up);
    }
    msgl__free(all);
}

void msgl__lora_latent_reader_free(msgl_lora_latent_reader *r)
{
    msgl__free(r->modules);
    r->modules = NULL;
    r->num = r->room = 0;
}
