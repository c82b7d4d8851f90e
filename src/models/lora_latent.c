// SPDX-License-Identifier: Apache-2.0
#include "models/lora_latent.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
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
        *last = (module){.of = find(r->m, name)};
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
                  rows = (int64_t)r->m->cfg.num_heads * (a->nope + a->v_dim);
    char what[200], found_a[48], found_b[48];
    code = msgl__lora_check_rank(r->c, m->f.a, rank, r->max_rank, r->err);
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
    for (size_t h = 0; h < heads; h++) {
        msgl__plan_weight(p, &k_down[h], m->f.rank, a->nope);
        msgl__plan_weight(p, &v_up[h], a->v_dim, m->f.rank);
    }
    msgl__plan_weight(p, &l->k_up, a->rank, m->f.rank);
    msgl__plan_weight(p, &l->v_down, m->f.rank, a->rank);
    msgl__plan_weight(p, &l->kv_up, a->num_heads * (a->nope + a->v_dim), m->f.rank);
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

static void load_module(const msgl_lora_latent_reader *r, const module *m, msgl_lora_latent *l,
                        float *stage, msgl_exec *x)
{
    const msgl_latent_attention *a = m->of;
    const size_t rank = (size_t)m->f.rank, latent = (size_t)a->rank, nope = (size_t)a->nope;
    const size_t v_dim = (size_t)a->v_dim, head = nope + v_dim, heads = (size_t)a->num_heads;
    const size_t row0 = head * (size_t)msgl__shard(&r->m->target, r->m->cfg.num_heads).from;
    for (size_t i = 0; i < rank * latent; i++) stage[i] = msgl__lora_element(m->f.a, i);
    pack(&l->v_down, stage, x);
    for (size_t i = 0; i < rank; i++) {
        for (size_t c = 0; c < latent; c++)
            stage[c * rank + i] = msgl__lora_element(m->f.a, i * latent + c);
    }
    pack(&l->k_up, stage, x);
    for (size_t i = 0; i < heads * head * rank; i++) {
        stage[i] = m->f.scale * msgl__lora_element(m->f.b, row0 * rank + i);
    }
    pack(&l->kv_up, stage, x);
    float *turned = stage + heads * head * rank;
    for (size_t h = 0; h < heads; h++) {
        const float *b = stage + h * head * rank;
        for (size_t i = 0; i < nope; i++) {
            for (size_t c = 0; c < rank; c++) turned[c * nope + i] = b[i * rank + c];
        }
        pack(&l->k_down[h], turned, x);
        pack(&l->v_up[h], b + nope * rank, x);
    }
}

void msgl__lora_latent_load(const msgl_lora_latent_reader *r, msgl_lora_latent *all, msgl_exec *x)
{
    for (size_t i = 0; i < r->num && x->status == 0; i++) {
        const module *m = &r->modules[i];
        const msgl_latent_attention *a = m->of;
        const size_t b = (size_t)a->num_heads * (size_t)(a->nope + a->v_dim) + (size_t)a->nope;
        const size_t rows = b > (size_t)a->rank ? b : (size_t)a->rank;
        float *stage = msgl__reallocarray(NULL, rows * (size_t)m->f.rank, sizeof *stage);
        if (stage == NULL) {
            x->status = MSGL_ENOMEM;
            return;
        }
        load_module(r, m, &all[i], stage, x);
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
