// SPDX-License-Identifier: Apache-2.0
#include "models/lora_latent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "models/decoder.h"
#include "models/lora_sites.h"

typedef struct msgl_lora_latent_module {
    char name[2 * MSGL_TENSOR_NAME]; // as PEFT matches it
    const msgl_latent_attention *of;
    const msgl_tensor *a, *b;
    int32_t rank;
    float scale;
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
    static const char LAYERS[] = "layers.", BEHIND[] = ".self_attn.kv_b_proj";
    const char *s = strstr(name, LAYERS);
    char *end;
    if (s == NULL || s[sizeof LAYERS - 1] < '0' || s[sizeof LAYERS - 1] > '9') return NULL;
    const unsigned long layer = strtoul(s + sizeof LAYERS - 1, &end, 10);
    if (strncmp(end, BEHIND, sizeof BEHIND - 1) != 0) return NULL;
    if (end[sizeof BEHIND - 1] != '\0' && end[sizeof BEHIND - 1] != '.') return NULL;
    return layer < INT32_MAX ? latent_of(m, (int32_t)layer) : NULL;
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
    if (last == NULL || strlen(last->name) != len || memcmp(last->name, name, len) != 0) {
        if (r->num == r->room) {
            r->room = 2 * r->room + 16;
            module *grown = msgl__reallocarray(r->modules, r->room, sizeof *grown);
            if (grown == NULL) return fail(r, t, MSGL_ENOMEM, "out of memory");
            r->modules = grown;
        }
        last = &r->modules[r->num];
        *last = (module){.of = find(r->m, name)};
        if (len >= sizeof last->name) return fail(r, t, MSGL_ELIMIT, "its name is too long");
        memcpy(last->name, name, len);
        for (size_t i = 0; i < r->num; i++) {
            if (r->modules[i].of != last->of) continue;
            return fail(r, t, MSGL_EFORMAT, "its module is there twice");
        }
        r->num++;
    }
    if (!t->loadable || t->packing.form != NULL || t->ndim != 2) {
        return fail(r, t, MSGL_EFORMAT, "allowed: two dimensions of F32, F16 or BF16");
    }
    *(is_a ? &last->a : &last->b) = t;
    return 0;
}

static int check_module(const msgl_lora_latent_reader *r, module *m)
{
    const msgl_latent_attention *a = m->of;
    const msgl_tensor *t = m->a != NULL ? m->a : m->b;
    if (m->a == NULL || m->b == NULL) {
        return fail(r, t, MSGL_EFORMAT, m->a == NULL ? "its A is missing" : "its B is missing");
    }
    const int64_t rank = m->a->dims[0], rows = (int64_t)r->m->cfg.num_heads * (a->nope + a->v_dim);
    char what[200], found_a[48], found_b[48];
    if (rank < 1 || rank > r->max_rank) {
        (void)snprintf(what, sizeof what, "rank: found %lld, allowed 1 to %d (--max-lora-rank)",
                       (long long)rank, (int)r->max_rank);
        return fail(r, m->a, MSGL_ELIMIT, what);
    }
    if (m->a->dims[1] != a->rank || m->b->dims[0] != rows || m->b->dims[1] != rank) {
        (void)snprintf(what, sizeof what,
                       "shapes: found A %s and B %s, expected A [rank, %d] and B [%lld, rank]",
                       msgl__shape_show(m->a->dims, 2, found_a, sizeof found_a),
                       msgl__shape_show(m->b->dims, 2, found_b, sizeof found_b), (int)a->rank,
                       (long long)rows);
        return fail(r, m->a, MSGL_EFORMAT, what);
    }
    m->rank = (int32_t)rank;
    return msgl__lora_config_scale(r->config, m->name, m->rank, &m->scale, r->err);
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
        msgl__plan_weight(p, &k_down[h], m->rank, a->nope);
        msgl__plan_weight(p, &v_up[h], a->v_dim, m->rank);
    }
    msgl__plan_weight(p, &l->k_up, a->rank, m->rank);
    msgl__plan_weight(p, &l->v_down, m->rank, a->rank);
    msgl__plan_weight(p, &l->kv_up, a->num_heads * (a->nope + a->v_dim), m->rank);
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
    const size_t rank = (size_t)m->rank, latent = (size_t)a->rank, nope = (size_t)a->nope;
    const size_t v_dim = (size_t)a->v_dim, head = nope + v_dim, heads = (size_t)a->num_heads;
    const size_t row0 = head * (size_t)msgl__shard(&r->m->target, r->m->cfg.num_heads).from;
    for (size_t i = 0; i < rank * latent; i++) stage[i] = msgl__lora_element(m->a, i);
    pack(&l->v_down, stage, x);
    for (size_t i = 0; i < rank; i++) {
        for (size_t c = 0; c < latent; c++)
            stage[c * rank + i] = msgl__lora_element(m->a, i * latent + c);
    }
    pack(&l->k_up, stage, x);
    for (size_t i = 0; i < heads * head * rank; i++) {
        stage[i] = m->scale * msgl__lora_element(m->b, row0 * rank + i);
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
        float *stage = msgl__reallocarray(NULL, rows * (size_t)m->rank, sizeof *stage);
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
