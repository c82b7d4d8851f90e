// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "core/mem.h"
#include "models/lora_modules.h"
#include "utils/strbuf.h"

typedef msgl_lora_module module;
typedef msgl_lora_reading reading;

// All n elements of t.
static void to_f32(const msgl_tensor *t, size_t n, float scale, float *restrict out)
{
    const uint8_t *restrict from = t->data; // maybe not aligned
    const msgl_packed p = msgl__packed_of(t);
    uint16_t half;
    if (t->packing.form != NULL) {
        for (size_t row = 0; row < p.rows; row++)
            t->packing.form->expand(&p, row, 0, p.cols, out + row * p.cols);
    } else if (t->dtype == MSGL_F32) {
        memcpy(out, from, n * sizeof *out);
    } else if (t->dtype == MSGL_BF16) {
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            out[i] = msgl__bf16_to_f32(half);
        }
    } else {
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            out[i] = msgl__f16_to_f32(half);
        }
    }
    for (size_t i = 0; i < n && scale != 1; i++) out[i] *= scale;
}

// A matrix in memory in the place of a tensor.
static msgl_tensor matrix(const float *data, int64_t rows, int64_t cols)
{
    return (msgl_tensor){.name = (char *)"adapter",
                         .type = "F32",
                         .loadable = true,
                         .dtype = MSGL_F32,
                         .ndim = 2,
                         .dims = {rows, cols},
                         .data = (const uint8_t *)data,
                         .bytes = (size_t)rows * (size_t)cols * sizeof *data};
}

// B, scaled, with zeros behind its rank.
static void stage_b(const module *m, float *stage)
{
    const size_t out = (size_t)m->f.b->dims[0], rank = (size_t)m->f.rank, room = (size_t)m->room;
    to_f32(m->f.b, out * rank, m->f.scale, stage);
    // From the last row on, which goes farthest.
    for (size_t i = out; i-- > 0 && room > rank;) {
        memmove(stage + i * room, stage + i * rank, rank * sizeof *stage);
        memset(stage + i * room + rank, 0, (room - rank) * sizeof *stage);
    }
}

// Whether a GGUF file has the module's rows as neighbours where they rotate together, and the
// model's files have not.
static bool permuted(const reading *r, const module *m)
{
    return r->pairs && !r->s->gguf && m->sites->wanted.pairs == 0 &&
           (msgl__ends_with(m->f.name, ".q_proj") || msgl__ends_with(m->f.name, ".k_proj"));
}

// B's rows go where the weight's rows are.
static void load_b(const reading *r, const module *m, msgl_weight *b, float *stage, msgl_exec *x)
{
    const int64_t out = m->f.b->dims[0];
    stage_b(m, stage);
    const msgl_tensor t = matrix(stage, out, m->room);
    for (size_t i = 0; i < m->num_sites && x->status == 0; i++) {
        msgl_wanted w = m->sites[i].wanted;
        if (w.rows == 0) continue;
        w.weight = b;
        w.row -= m->first;
        w.cols = w.all_cols = m->room;
        w.first_col = 0;
        w.head_groups = w.group_heads = w.head_cols = 0;
        if (permuted(r, m)) {
            w.head = r->s->head_dim;
            w.unpaired = 0;
            w.pairs = w.head / 2;
        }
        const msgl_load_item item = {.want = &w, .tensor = &t};
        msgl__load_weight(&item, 1, x);
    }
}

// A's columns are those of the weight, in its order.
static void load_a(const module *m, msgl_weight *a, int32_t at, msgl_exec *x)
{
    msgl_wanted w = m->sites->wanted;
    w.weight = a;
    w.row = at;
    w.rows = w.unsharded_rows = m->f.rank;
    w.skip = w.tensor_rows = w.first = 0;
    w.head = w.unpaired = w.pairs = 0;
    const msgl_load_item item = {.want = &w, .tensor = m->f.a};
    msgl__load_weight(&item, 1, x);
}

static void load_embed(const reading *r, const module *m, msgl_lora_embed *e, float *stage,
                       float *turned, msgl_exec *x)
{
    const size_t vocab = (size_t)e->a.n, rank = (size_t)m->f.rank, room = (size_t)m->room;
    to_f32(m->f.a, rank * vocab, 1, stage);
    for (size_t i = 0; i < room; i++) {
        for (size_t v = 0; v < vocab; v++) {
            const size_t at = r->gguf ? v * rank + i : i * vocab + v;
            turned[v * room + i] = i < rank ? stage[at] : 0.0f;
        }
    }
    msgl__lora_pack(&e->a, turned, x);
    stage_b(m, stage);
    msgl__lora_pack(&e->b, stage, x);
}

// Most elements of one tensor, as it is staged.
static size_t stage_elements(const reading *r)
{
    size_t most = 1;
    for (size_t i = 0; i < r->num; i++) {
        const module *m = &r->modules[i];
        const size_t rank = (size_t)m->f.rank, room = (size_t)m->room;
        const size_t a = (size_t)m->f.a->dims[0] * (size_t)m->f.a->dims[1] / rank * room;
        const size_t b = room * (size_t)m->f.b->dims[0];
        most = a > most ? a : most;
        most = b > most ? b : most;
    }
    return most;
}

int msgl__lora_load_modules(const msgl_lora_reading *r, msgl_loaded_lora *l, msgl_exec *x)
{
    const size_t most = stage_elements(r);
    const bool embeds = r->num > 0 && r->modules[0].sites->embeds;
    float *stage = msgl__reallocarray(NULL, most, sizeof *stage);
    float *turned = embeds ? msgl__reallocarray(NULL, most, sizeof *turned) : NULL;
    if (stage == NULL || (embeds && turned == NULL)) x->status = MSGL_ENOMEM;
    size_t first = 0;
    if (embeds && x->status == 0) {
        load_embed(r, &r->modules[first++], &l->lora.embed, stage, turned, x);
    }
    for (int n = 0; n < l->lora.num && x->status == 0; n++) {
        msgl_lora_linear *to = &l->linears[n];
        const size_t end = msgl__lora_group_end(r, first);
        int32_t at = 0;
        for (int part = 0; first < end; first++) {
            const module *m = &r->modules[first];
            load_a(m, &to->a, at, x);
            at += m->room;
            if (m->end > m->first) load_b(r, m, &to->b[part++], stage, x);
        }
    }
    msgl__free(stage);
    msgl__free(turned);
    if (x->status == 0) {
        msgl__lora_experts_load(&r->experts, l->experts, l->lora.num_experts, x);
    }
    if (x->status == 0) msgl__lora_latent_load(&r->latents, l->latents, x);
    if (x->status == 0) msgl__lora_saved_load(&r->saved, l->saved, l->lora.num_saved, x);
    return x->status;
}
