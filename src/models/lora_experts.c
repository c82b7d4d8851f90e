// SPDX-License-Identifier: Apache-2.0
#include "models/lora_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "kernel/device.h"
#include "models/decoder.h"
#include "models/lora_sites.h"

// Rows of a block's first product that a module is of, or its second.
typedef enum part { GATE, UP, DOWN, NUM_PARTS } part;

typedef struct msgl_lora_expert_module {
    msgl_lora_factors f; // rank: of one expert
    int32_t block;       // of reader.blocks
    int32_t expert;      // -1: it stacks all of them; GATE then is gate and up
    part part;
} module;

static const struct {
    const char *name;
    part part;
} PARTS[] = {{"gate_proj", GATE}, {"w1", GATE},        {"up_proj", UP},
             {"w3", UP},          {"down_proj", DOWN}, {"w2", DOWN}};

static int fail(const msgl_lora_expert_reader *r, const msgl_tensor *t, int code, const char *what)
{
    return msgl__lora_fail(r->c, t, code, what, r->err);
}

// The number at *s, behind which *s goes on; -1: there is none.
static int32_t take_number(const char **s)
{
    char *end;
    if (**s < '0' || **s > '9') return -1;
    const unsigned long n = strtoul(*s, &end, 10);
    *s = end;
    return n <= INT32_MAX ? (int32_t)n : -1;
}

// What stands behind "layers.N." and the component "experts" of a module's name, "" or from the dot
// on; NULL: it is of no experts.
static const char *behind_experts(const char *name, int32_t *layer)
{
    static const char EXPERTS[] = ".experts";
    const char *s = msgl__lora_behind_layer(name, layer);
    while (s != NULL && (s = strstr(s, EXPERTS)) != NULL) {
        s += sizeof EXPERTS - 1;
        if (*s == '\0' || *s == '.') return s;
    }
    return NULL;
}

bool msgl__lora_of_experts(const char *name)
{
    int32_t layer;
    return behind_experts(name, &layer) != NULL;
}

// --- the model's ---

// The layer of experts whose first weight is w, from the name of a tensor that it wants.
static int32_t layer_of(const msgl_model *m, const msgl_weight *w)
{
    int32_t layer = -1;
    for (size_t i = 0; i < m->plan.num_wanted; i++) {
        if (m->plan.wanted[i].weight != w) continue;
        (void)behind_experts(m->plan.wanted[i].name, &layer);
        break;
    }
    return layer;
}

int msgl__lora_blocks_create(const msgl_model *m, int32_t max_rank, msgl_lora_blocks *out,
                             msgl_err *err)
{
    const msgl_decoder_config *d = &m->cfg.decoder;
    const msgl_products *p = &m->products;
    *out = (msgl_lora_blocks){.max_rank = max_rank};
    out->at = msgl__calloc((size_t)p->num_experts + 1, sizeof *out->at);
    if (out->at == NULL) return msgl__err_set(err, MSGL_ENOMEM, "adapters: out of memory");
    for (int32_t i = 0; i < p->num_experts; i++) {
        const msgl_moe_experts *e = &p->experts[i]->experts;
        const int32_t layer = layer_of(m, e->gate_up);
        if (layer < 0 || d->num_experts != e->num_experts) continue;
        out->at[out->num++] =
            (msgl_lora_block){.of = e,
                              .layer = layer,
                              .columns = msgl__own_columns(&m->target, d->moe_intermediate_size),
                              .inter = d->moe_intermediate_size,
                              .alternate = d->names.all_alternate};
    }
    return 0;
}

void msgl__lora_blocks_free(msgl_lora_blocks *b)
{
    msgl__free(b->at);
    b->at = NULL;
    b->num = 0;
}

static int larger(int a, int b)
{
    return a > b ? a : b;
}

void msgl__lora_blocks_size(const msgl_lora_blocks *b, msgl_lora_size *size)
{
    for (int32_t i = 0; i < b->num; i++) {
        const msgl_moe_experts *e = b->at[i].of;
        size->k = larger(size->k, larger(e->gate_up[0].k, e->down[0].k));
        size->n = larger(size->n, larger(e->gate_up[0].n, e->down[0].n));
        size->parts = larger(size->parts, 2);
    }
}

size_t msgl__lora_blocks_scratch(const msgl_lora_blocks *b, const msgl_gemm_kernels *k,
                                 msgl_dtype act, int32_t rows)
{
    size_t most = 0;
    for (int32_t i = 0; i < b->num; i++) {
        const msgl_moe_experts *e = b->at[i].of;
        const msgl_grouped_call c = {.experts = e->gate_up,
                                     .num_experts = e->own,
                                     .rows = rows * e->router.top_k,
                                     .ld_in = (size_t)e->gate_up->k,
                                     .from_per = e->router.top_k,
                                     .ld_out = (size_t)e->gate_up->n};
        const size_t bytes = k->grouped_scratch(&c, act);
        most = bytes > most ? bytes : most;
    }
    return most;
}

size_t msgl__lora_blocks_arena(const msgl_lora_blocks *b, msgl_dtype act, size_t rows)
{
    size_t most = 0;
    for (int32_t i = 0; i < b->num; i++) {
        const size_t bytes = msgl__lora_moe_bytes(b->at[i].of, act, rows);
        most = bytes > most ? bytes : most;
    }
    return most;
}

// --- the adapter's ---

static int find_block(const msgl_lora_blocks *b, int32_t layer)
{
    int32_t i = 0;
    while (i < b->num && b->at[i].layer != layer) i++;
    return i < b->num ? i : -1;
}

// Which module the name is of; false: none.
static bool parse(const msgl_lora_blocks *b, module *m)
{
    int32_t layer;
    const char *s = behind_experts(m->f.name, &layer);
    m->block = find_block(b, layer);
    m->expert = -1;
    m->part = NUM_PARTS; // the shape will say
    if (m->block < 0) return false;
    if (*s == '\0' || strcmp(s, ".base_layer") == 0) return true;
    s++;
    m->expert = take_number(&s);
    const msgl_moe_experts *e = b->at[m->block].of;
    if (m->expert < 0 || m->expert >= e->num_experts || *s != '.') return false;
    for (size_t i = 0; i < MSGL_COUNT(PARTS); i++) {
        if (strcmp(s + 1, PARTS[i].name) == 0) m->part = PARTS[i].part;
    }
    return m->part != NUM_PARTS && !(m->part == GATE && e->plain);
}

int msgl__lora_experts_take(msgl_lora_expert_reader *r, const msgl_tensor *t, const char *name,
                            size_t len, bool is_a)
{
    module *last = r->num > 0 ? &r->modules[r->num - 1] : NULL;
    if (last == NULL || !msgl__lora_factors_are(&last->f, name, len)) {
        if (r->num == r->room) {
            r->room = 2 * r->room + 64;
            module *grown = msgl__reallocarray(r->modules, r->room, sizeof *grown);
            if (grown == NULL) return fail(r, t, MSGL_ENOMEM, "out of memory");
            r->modules = grown;
        }
        last = &r->modules[r->num];
        *last = (module){0};
        const int code = msgl__lora_factors_begin(r->c, t, name, len, &last->f, r->err);
        if (code != 0) return code;
        if (!parse(r->blocks, last)) {
            return fail(r, t, MSGL_EUNSUPPORTED,
                        "the model has no such experts, or none that adapters can change");
        }
        r->num++;
    }
    return msgl__lora_factors_take(r->c, t, is_a, &last->f, r->err);
}

static int32_t in_of(const msgl_lora_block *b, part p)
{
    return p == DOWN ? b->inter : b->of->gate_up[0].k;
}

// Of a module's B; stacked: GATE stands for all rows of the first product.
static int32_t out_of(const msgl_lora_block *b, part p, bool stacked)
{
    if (p == DOWN) return b->of->down[0].n;
    return stacked && !b->of->plain ? 2 * b->inter : b->inter;
}

static bool fits(const msgl_lora_block *b, const module *m, part p)
{
    return m->f.a->dims[1] == in_of(b, p) && m->f.b->dims[0] == out_of(b, p, m->expert < 0);
}

static int check_rank(const msgl_lora_expert_reader *r, module *m)
{
    const msgl_lora_block *b = &r->blocks->at[m->block];
    const int64_t all = m->f.a->dims[0], of = m->expert < 0 ? b->of->num_experts : 1;
    // PEFT makes one of rank 2 r of the gate's and the up's of each expert.
    const int64_t most = (int64_t)r->blocks->max_rank * (m->expert < 0 && m->part == GATE ? 2 : 1);
    char what[128];
    if (all % of != 0 || all / of < 1 || all / of > most) {
        (void)snprintf(
            what, sizeof what,
            "rank: found %lld rows, allowed 1 to %lld (--max-lora-rank) for each of %lld "
            "experts",
            (long long)all, (long long)most, (long long)of);
        return fail(r, m->f.a, MSGL_ELIMIT, what);
    }
    m->f.rank = (int32_t)(all / of);
    return 0;
}

static int check_module(const msgl_lora_expert_reader *r, module *m)
{
    const msgl_lora_block *b = &r->blocks->at[m->block];
    int code = msgl__lora_factors_check(r->c, &m->f, r->err);
    if (code != 0) return code;
    const bool stacked = m->expert < 0;
    if (stacked) m->part = fits(b, m, GATE) ? GATE : DOWN;
    if (!fits(b, m, m->part) || m->f.b->dims[1] != m->f.a->dims[0]) {
        char what[200], a[48], own[48];
        (void)snprintf(what, sizeof what,
                       "shapes: found A %s and B %s, expected A [ranks, %d] and B [%d, ranks]",
                       msgl__shape_show(m->f.a->dims, 2, a, sizeof a),
                       msgl__shape_show(m->f.b->dims, 2, own, sizeof own), (int)in_of(b, m->part),
                       (int)out_of(b, m->part, stacked));
        return fail(r, m->f.a, MSGL_EFORMAT, what);
    }
    code = check_rank(r, m);
    if (code != 0) return code;
    char name[sizeof m->f.name + 16];
    (void)snprintf(name, sizeof name, "%s", m->f.name);
    if (stacked) { // PEFT's name of the parameter
        char *end = strstr(name, ".base_layer");
        if (end != NULL) *end = '\0';
        const size_t n = strlen(name);
        (void)snprintf(name + n, sizeof name - n, ".%s",
                       m->part == DOWN ? "down_proj"
                       : b->of->plain  ? "up_proj"
                                       : "gate_up_proj");
    }
    return msgl__lora_config_scale(r->config, name, m->f.rank, &m->f.scale, r->err);
}

static int by_block(const void *a, const void *b)
{
    const module *x = a, *y = b;
    if (x->block != y->block) return x->block < y->block ? -1 : 1;
    return strcmp(x->f.name, y->f.name);
}

// The modules [first, end) of one block.
static size_t block_end(const msgl_lora_expert_reader *r, size_t first)
{
    size_t end = first + 1;
    while (end < r->num && r->modules[end].block == r->modules[first].block) end++;
    return end;
}

// Those of expert number e of the model, by part; what stacks all is there as GATE or DOWN.
// MSGL_EFORMAT: one is there twice.
static int modules_of(const msgl_lora_expert_reader *r, size_t first, size_t end, int32_t e,
                      const module *out[NUM_PARTS])
{
    out[GATE] = out[UP] = out[DOWN] = NULL;
    for (size_t i = first; i < end; i++) {
        const module *m = &r->modules[i];
        if (m->expert >= 0 && m->expert != e) continue;
        if (out[m->part] != NULL) return fail(r, m->f.a, MSGL_EFORMAT, "its module is there twice");
        out[m->part] = m;
    }
    if (out[GATE] != NULL && out[GATE]->expert < 0 && out[UP] != NULL) {
        return fail(r, out[UP]->f.a, MSGL_EFORMAT, "its module is there twice");
    }
    return 0;
}

static void plan_expert(const msgl_lora_expert_reader *r, msgl_weight_plan *p,
                        const msgl_lora_block *b, const module *const of[NUM_PARTS], bool second,
                        msgl_lora_expert *e)
{
    const int32_t own = b->columns.count;
    int32_t ranks = 0;
    for (part i = second ? DOWN : GATE; i <= (second ? DOWN : UP); i++) {
        const module *m = of[i];
        if (m == NULL) continue;
        const int32_t n = second ? b->of->down[0].n : m->expert < 0 ? b->of->gate_up[0].n : own;
        const int j = e->num_parts++;
        const int32_t room = msgl__lora_room(r->sites, m->f.rank);
        msgl__plan_weight(p, &e->b[j], n, room);
        e->parts[j] =
            (msgl_lora_part){.b = &e->b[j], .at = ranks, .col = i == UP && !b->of->plain ? own : 0};
        ranks += room;
    }
    if (ranks > 0) {
        msgl__plan_weight(p, &e->a, ranks, second ? own : b->of->gate_up[0].k);
    }
}

static int plan_block(const msgl_lora_expert_reader *r, msgl_weight_plan *p, size_t first,
                      size_t end, msgl_lora_experts *l)
{
    const msgl_lora_block *b = &r->blocks->at[r->modules[first].block];
    l->of = b->of;
    l->first = msgl__calloc((size_t)b->of->own, sizeof *l->first);
    l->second = msgl__calloc((size_t)b->of->own, sizeof *l->second);
    if (l->first == NULL || l->second == NULL) {
        return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    }
    for (int32_t e = 0; e < b->of->own; e++) {
        const module *of[NUM_PARTS];
        const int code = modules_of(r, first, end, b->of->first + e, of);
        if (code != 0) return code;
        plan_expert(r, p, b, of, false, &l->first[e]);
        plan_expert(r, p, b, of, true, &l->second[e]);
    }
    if (r->sites->by_tiles) {
        msgl__plan_place(p, &l->members, 2 * (size_t)b->of->own * sizeof(msgl_lora_member));
    }
    return 0;
}

static int by_of(const void *a, const void *b)
{
    const msgl_lora_experts *x = a, *y = b;
    return (x->of > y->of) - (x->of < y->of);
}

int msgl__lora_experts_plan(msgl_lora_expert_reader *r, msgl_weight_plan *p,
                            msgl_lora_experts **out, int *num)
{
    *out = NULL;
    *num = 0;
    if (r->num == 0) return 0;
    for (size_t i = 0; i < r->num; i++) {
        const int code = check_module(r, &r->modules[i]);
        if (code != 0) return code;
    }
    qsort(r->modules, r->num, sizeof *r->modules, by_block);
    msgl_lora_experts *all = *out = msgl__calloc((size_t)r->blocks->num, sizeof *all);
    if (all == NULL) return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    // In the order in which they are looked for, so that what is planned stays where it is.
    for (size_t first = 0, end; first < r->num; first = end) {
        end = block_end(r, first);
        all[(*num)++].of = r->blocks->at[r->modules[first].block].of;
    }
    qsort(all, (size_t)*num, sizeof *all, by_of);
    for (size_t first = 0, end; first < r->num; first = end) {
        end = block_end(r, first);
        const msgl_lora_experts key = {.of = r->blocks->at[r->modules[first].block].of};
        msgl_lora_experts *l = bsearch(&key, all, (size_t)*num, sizeof *all, by_of);
        const int code = plan_block(r, p, first, end, l);
        if (code != 0) return code;
    }
    return 0;
}

// Row of the module's B that becomes row i of the part that this rank has.
static size_t row_of(const msgl_lora_block *b, const module *m, size_t i)
{
    const size_t own = (size_t)b->columns.count, from = (size_t)b->columns.from;
    if (m->part == DOWN) return i;
    if (m->expert >= 0 || b->of->plain) return from + i;
    const size_t up = i >= own, at = from + i - up * own;
    return b->alternate ? 2 * at + up : up * (size_t)b->inter + at;
}

// A and B of one expert from one module: rows [at, at + room) of e->a, and the part's B. What the
// room has beside the rank are zeros.
static void load_module(const msgl_lora_block *b, const module *m, int32_t expert,
                        msgl_lora_expert *e, int j, float *stage, msgl_exec *x)
{
    const bool stacked = m->expert < 0;
    const size_t rank = (size_t)m->f.rank, k = (size_t)e->a.k, cols = (size_t)m->f.a->dims[1];
    const size_t from = m->part == DOWN ? (size_t)b->columns.from : 0;
    const size_t first = stacked ? (size_t)expert * rank : 0, room = (size_t)e->b[j].k;
    for (size_t i = 0; i < room; i++) {
        for (size_t c = 0; c < k; c++) {
            stage[i * k + c] =
                i < rank ? msgl__lora_element(m->f.a, (first + i) * cols + from + c) : 0.0f;
        }
    }
    e->a.format->pack(x, &e->a, e->parts[j].at, e->b[j].k, stage, MSGL_F32, k);
    const size_t rows = (size_t)e->b[j].n, all = (size_t)m->f.b->dims[1];
    const size_t step = stacked ? (size_t)b->of->num_experts : 1,
                 own = stacked ? (size_t)expert : 0;
    for (size_t i = 0; i < rows; i++) {
        const size_t row = row_of(b, m, i) * all;
        for (size_t c = 0; c < room; c++) {
            stage[i * room + c] =
                c < rank ? m->f.scale * msgl__lora_element(m->f.b, row + c * step + own) : 0.0f;
        }
    }
    e->b[j].format->pack(x, &e->b[j], 0, e->b[j].n, stage, MSGL_F32, room);
}

static size_t most_elements(const msgl_lora_expert *e)
{
    size_t most = (size_t)e->a.n * (size_t)e->a.k;
    for (int j = 0; j < e->num_parts; j++) {
        const size_t n = (size_t)e->b[j].n * (size_t)e->b[j].k;
        most = n > most ? n : most;
    }
    return most;
}

static msgl_lora_member member_of(const msgl_lora_expert *e)
{
    msgl_lora_member m = {.a = e->num_parts > 0 ? e->a.data : NULL};
    for (int j = 0; j < e->num_parts; j++) {
        m.parts[j].b = e->b[j].data;
        m.parts[j].n = e->b[j].n;
        m.parts[j].rank = e->b[j].k;
        m.parts[j].col = e->parts[j].col;
    }
    return m;
}

static void load_members(const msgl_lora_experts *l, msgl_exec *x)
{
    const size_t own = (size_t)l->of->own;
    msgl_lora_member *host = msgl__reallocarray(NULL, 2 * own, sizeof *host);
    if (host == NULL) {
        x->status = MSGL_ENOMEM;
        return;
    }
    for (size_t e = 0; e < own; e++) {
        host[e] = member_of(&l->first[e]);
        host[own + e] = member_of(&l->second[e]);
    }
    x->device->ops->copy_in(x->device, l->members, host, 2 * own * sizeof *host);
    msgl__free(host);
}

static void load_block(const msgl_lora_expert_reader *r, size_t first, size_t end,
                       const msgl_lora_experts *l, msgl_exec *x)
{
    const msgl_lora_block *b = &r->blocks->at[r->modules[first].block];
    size_t most = 1;
    for (int32_t e = 0; e < b->of->own; e++) {
        const size_t n = most_elements(&l->first[e]), m = most_elements(&l->second[e]);
        most = n > most ? n : most;
        most = m > most ? m : most;
    }
    float *stage = msgl__reallocarray(NULL, most, sizeof *stage);
    if (stage == NULL) x->status = MSGL_ENOMEM;
    for (int32_t e = 0; e < b->of->own && x->status == 0; e++) {
        const module *of[NUM_PARTS];
        const int32_t expert = b->of->first + e;
        int j = 0;
        (void)modules_of(r, first, end, expert, of); // as when it was planned
        if (of[GATE] != NULL) load_module(b, of[GATE], expert, &l->first[e], j++, stage, x);
        if (of[UP] != NULL) load_module(b, of[UP], expert, &l->first[e], j, stage, x);
        if (of[DOWN] != NULL) load_module(b, of[DOWN], expert, &l->second[e], 0, stage, x);
        msgl__arena_reset(x->scratch);
    }
    msgl__free(stage);
    if (l->members != NULL && x->status == 0) load_members(l, x);
}

void msgl__lora_experts_load(const msgl_lora_expert_reader *r, const msgl_lora_experts *all,
                             int num, msgl_exec *x)
{
    for (size_t first = 0, end; first < r->num && x->status == 0; first = end) {
        end = block_end(r, first);
        const msgl_lora_experts key = {.of = r->blocks->at[r->modules[first].block].of};
        const msgl_lora_experts *l = bsearch(&key, all, (size_t)num, sizeof *all, by_of);
        load_block(r, first, end, l, x);
    }
}

void msgl__lora_experts_free(msgl_lora_experts *all, int num)
{
    for (int i = 0; i < num; i++) {
        msgl__free(all[i].first);
        msgl__free(all[i].second);
    }
    msgl__free(all);
}

void msgl__lora_expert_reader_free(msgl_lora_expert_reader *r)
{
    msgl__free(r->modules);
    r->modules = NULL;
    r->num = r->room = 0;
}
