// SPDX-License-Identifier: Apache-2.0
#include "models/projection.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "models/model.h"
#include "models/safetensors.h"
#include "utils/file.h"

enum { PATH_BYTES = 4096 };

static const char *const HEADS[] = {
    [MSGL_TOKEN_VECTORS] = "colbert_linear", [MSGL_TOKEN_WEIGHTS] = "sparse_linear"};

// The shape of a head's weight, in its file.
static int read_head(const char *dir, msgl_token_head head, int32_t hidden, msgl_projection *p,
                     msgl_err *err)
{
    msgl_checkpoint *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    int code = msgl__safetensors_add_file(c, dir, p->file, "", err);
    if (code == 0) code = msgl__checkpoint_sort(c, err);
    const msgl_tensor *w = code == 0 ? msgl__checkpoint_find(c, "weight") : NULL;
    const int64_t most = head == MSGL_TOKEN_WEIGHTS ? 1 : MSGL_MAX_HIDDEN;
    if (code == 0 && (w == NULL || w->ndim != 2 || w->dims[1] != hidden || w->dims[0] < 1 ||
                      w->dims[0] > most)) {
        char shape[80] = "";
        code = msgl__err_set(err, MSGL_EFORMAT, "%s: weight: found %s%s, allowed [1 to %lld, %d]",
                             p->file, w == NULL ? "none" : "",
                             w == NULL ? "" : msgl__shape_show(w->dims, w->ndim, shape, 80),
                             (long long)most, (int)hidden);
    }
    if (code == 0) {
        p->in = hidden;
        p->out = (int32_t)w->dims[0];
        p->bias = msgl__checkpoint_find(c, "bias") != NULL;
    }
    msgl__checkpoint_close(c);
    return code;
}

int msgl__token_heads_find(const char *dir, int32_t hidden, msgl_projection *out, msgl_err *err)
{
    int code = 0;
    for (int i = 0; i < MSGL_TOKEN_HEADS && code == 0; i++) {
        char path[PATH_BYTES];
        msgl_projection *p = &out[i];
        *p = (msgl_projection){.tensor = ""};
        (void)snprintf(p->file, sizeof p->file, "%s.safetensors", HEADS[i]);
        (void)snprintf(p->prefix, sizeof p->prefix, "%s.", HEADS[i]);
        code = msgl__path_join(dir, p->file, path, sizeof path, err);
        if (code == 0 && access(path, F_OK) == 0) code = read_head(dir, i, hidden, p, err);
    }
    return code;
}

static void declare(msgl_model *m, msgl_weight_plan *plan, const msgl_projection *p, msgl_linear *l)
{
    const msgl_linear_use use = {.rows = MSGL_ROWS_STEP};
    msgl__plan_weight(plan, &l->w, p->out, p->in);
    msgl__plan_rows(plan, &l->w, 0, p->out, "%s%sweight", p->prefix, p->tensor);
    if (p->bias) {
        msgl__plan_vector(plan, &l->bias, p->out);
        msgl__plan_elements(plan, &l->bias, 0, p->out, 0, "%s%sbias", p->prefix, p->tensor);
    }
    msgl__products_add(&m->products, l, &use);
}

void msgl__projections_declare(msgl_model *m, msgl_weight_plan *plan)
{
    const msgl_model_config *c = &m->cfg;
    for (int32_t i = 0; i < c->num_projections && plan->status == 0; i++) {
        declare(m, plan, &c->projections[i], &m->projections[i]);
    }
    for (int i = 0; i < MSGL_TOKEN_HEADS; i++) {
        if (c->token_heads[i].out > 0) declare(m, plan, &c->token_heads[i], &m->token_heads[i]);
    }
}

int msgl__projections_open(const msgl_model *m, const char *dir, msgl_checkpoint *c, msgl_err *err)
{
    const msgl_model_config *cfg = &m->cfg;
    int code = 0, num = 0;
    for (int32_t i = 0; i < cfg->num_projections + MSGL_TOKEN_HEADS && code == 0; i++) {
        const int32_t head = i - cfg->num_projections;
        const msgl_projection *p = head < 0 ? &cfg->projections[i] : &cfg->token_heads[head];
        if (p->out == 0 || p->file[0] == '\0') continue;
        code = msgl__safetensors_add_file(c, dir, p->file, p->prefix, err);
        num++;
    }
    return code == 0 && num > 0 ? msgl__checkpoint_sort(c, err) : code;
}

size_t msgl__projections_bytes(const msgl_model *m, int32_t rows, int32_t tokens)
{
    const msgl_model_config *c = &m->cfg;
    size_t bytes = 0, most = 0;
    for (int32_t i = 0; i < c->num_projections; i++) {
        bytes += msgl__activation_bytes((size_t)rows, (size_t)c->projections[i].out, m->target.act);
    }
    for (int i = 0; i < MSGL_TOKEN_HEADS; i++) {
        const size_t one =
            msgl__activation_bytes((size_t)tokens, (size_t)c->token_heads[i].out, MSGL_F32);
        most = one > most ? one : most;
    }
    return bytes + most;
}

static void apply(msgl_forward *f, msgl_projection_act act, void *rows, size_t n)
{
    switch (act) {
    case MSGL_PROJECTION_IDENTITY: return;
    case MSGL_PROJECTION_TANH: f->k->act.apply(f->x, MSGL_POINTWISE_TANH, NULL, rows, n); return;
    case MSGL_PROJECTION_GELU: f->k->act.apply(f->x, MSGL_POINTWISE_GELU, NULL, rows, n); return;
    case MSGL_PROJECTION_SILU: f->k->act.apply(f->x, MSGL_POINTWISE_SILU, NULL, rows, n); return;
    }
}

const void *msgl__project(const msgl_model *m, msgl_forward *f, const void *rows, int32_t num_rows)
{
    for (int32_t i = 0; i < m->cfg.num_projections; i++) {
        const msgl_projection *p = &m->cfg.projections[i];
        const size_t out = (size_t)p->out;
        void *to = msgl__activation(f, (size_t)num_rows, out);
        if (to == NULL) return NULL;
        msgl__linear(f, &m->projections[i], NULL, rows, to, num_rows);
        apply(f, p->act, to, (size_t)num_rows * out);
        rows = to;
    }
    return rows;
}

const float *msgl__project_tokens(const msgl_model *m, msgl_forward *f, msgl_token_head head,
                                  const void *rows, int32_t num_rows)
{
    const size_t out = (size_t)m->cfg.token_heads[head].out;
    float *to = msgl__take_rows(f, (size_t)num_rows, out, MSGL_F32);
    if (to != NULL) msgl__linear_f32(f, &m->token_heads[head], NULL, rows, to, num_rows);
    return to;
}
