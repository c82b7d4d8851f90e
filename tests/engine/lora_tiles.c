// SPDX-License-Identifier: Apache-2.0
//
// A CPU that computes adapters by tiles, as GPUs do: the engine's tables, tiles and padded ranks on
// every machine. Linked with --wrap=msgl__kernels_init_cpu. Weights and activations are f32.
#include "lora_tiles.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"
#include "layers/lora.h"

enum { MOST_RANKS = 4096, SCRATCH = 8 << 20 };

static const msgl_gemm_kernels *kernels;

static void multiply(msgl_exec *x, const void *w, int32_t n, int32_t k, msgl_linear_call c)
{
    const msgl_weight weight = {
        .format = &kernels->formats[MSGL_F32], .n = n, .k = k, .data = (void *)w};
    c.w = &weight;
    c.m = 1;
    c.ld_in = (size_t)k;
    c.ld_out = (size_t)n;
    kernels->linear(x, &c);
}

// What the adapter e adds to row `row` of the call.
static void add_row(msgl_exec *x, const msgl_lora_tiles_call *c, const msgl_lora_entry *e,
                    int32_t row)
{
    float h[MOST_RANKS];
    if (e->ranks > c->max_ranks || e->num_parts > c->parts || c->max_ranks > MOST_RANKS ||
        e->ranks % MSGL_LORA_RANK_STEP != 0) {
        x->status = MSGL_EINTERNAL;
        return;
    }
    multiply(x, e->a, e->ranks, c->k,
             (msgl_linear_call){.in = (const float *)c->in + (size_t)row * c->ld_in,
                                .norm = c->norm,
                                .norm_eps = c->norm_eps,
                                .out = h});
    for (int32_t i = 0; i < e->num_parts; i++) {
        float *out = (float *)c->out + (size_t)row * c->ld_out + e->parts[i].col;
        multiply(x, e->parts[i].b, e->parts[i].n, e->parts[i].rank,
                 (msgl_linear_call){.in = h + e->parts[i].at, .accumulate = true, .out = out});
    }
}

static void lora_tiles(msgl_exec *x, const msgl_lora_tiles_call *c)
{
    for (int32_t i = 0; i < c->num_tiles; i++) {
        const msgl_lora_tile *t = &c->tiles[i];
        const msgl_lora_entry *e = &c->entries[t->slot * c->stride];
        if (t->rows > c->tile_rows || t->first + t->rows > c->rows) x->status = MSGL_EINTERNAL;
        for (int32_t j = 0; j < t->rows && e->a != NULL && x->status == 0; j++) {
            const int32_t row = c->order[t->first + j] - c->first;
            if (row >= 0 && row < c->m) add_row(x, c, e, row);
        }
    }
}

// What the member m adds to a row of its product.
static void add_member(msgl_exec *x, const msgl_lora_member *m, int32_t k, const float *in,
                       float *out)
{
    float h[MSGL_LORA_MEMBER_RANKS];
    const int32_t behind = m->parts[0].rank;
    const int32_t ranks = behind + (m->parts[1].b != NULL ? m->parts[1].rank : 0);
    if (ranks > MSGL_LORA_MEMBER_RANKS || behind % MSGL_LORA_RANK_STEP != 0) {
        x->status = MSGL_EINTERNAL;
        return;
    }
    multiply(x, m->a, ranks, k, (msgl_linear_call){.in = in, .out = h});
    for (int i = 0; i < 2 && m->parts[i].b != NULL; i++) {
        multiply(x, m->parts[i].b, m->parts[i].n, m->parts[i].rank,
                 (msgl_linear_call){.in = h + (i == 0 ? 0 : behind),
                                    .accumulate = true,
                                    .out = out + m->parts[i].col});
    }
}

// A row of one product: where it comes from and goes to.
typedef struct place_row {
    const msgl_lora_member *member; // NULL: nothing is added to it
    const float *in;
    float *out;
} place_row;

static place_row row_of(const msgl_lora_members_call *c, int32_t place, int32_t head)
{
    const int32_t choice = c->source != NULL ? c->source[place] : place;
    const int32_t token = c->source != NULL ? choice / c->top_k : place;
    const int32_t member = c->source != NULL ? c->ids[choice] - c->first_id : head;
    const int32_t slot = c->slots[c->first + token];
    const int32_t from = c->by_token ? token : place, to = c->by_choice ? choice : place;
    const msgl_lora_member *set = slot >= 0 ? c->sets[slot * c->stride] : NULL;
    place_row r = {.in =
                       (const float *)c->in + (size_t)from * c->ld_in + (size_t)head * c->member_in,
                   .out = (float *)c->out + (size_t)to * c->ld_out + (size_t)head * c->member_out};
    if (set != NULL && member >= 0 && member < c->members) r.member = &set[c->base + member];
    if (r.member != NULL && r.member->a == NULL) r.member = NULL;
    return r;
}

static void lora_members(msgl_exec *x, const msgl_lora_members_call *c)
{
    const int32_t heads = c->source != NULL ? 1 : c->members;
    for (int32_t i = 0; i < c->places * heads; i++) {
        const place_row r = row_of(c, i / heads, i % heads);
        if (r.member != NULL) add_member(x, r.member, c->k, r.in, r.out);
    }
}

static void (*gate)(msgl_exec *x, msgl_activation f, const void *gate_up, void *out, int rows,
                    int dim);

static void lora_gate(msgl_exec *x, const msgl_lora_members_call *c, msgl_activation f)
{
    for (int32_t i = 0; i < c->places; i++) {
        const place_row r = row_of(c, i, 0);
        if (r.member != NULL) gate(x, f, r.in, r.out, 1, c->k);
    }
}

static size_t lora_scratch(const msgl_lora_size *s, msgl_dtype act)
{
    (void)s, (void)act;
    return SCRATCH;
}

void __real_msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level);
void __wrap_msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level);
void __wrap_msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level)
{
    static msgl_gemm_kernels own;
    __real_msgl__kernels_init_cpu(k, level);
    own = k->gemm;
    kernels = &own;
    k->gemm.lora = NULL;
    k->gemm.lora_tiles = lora_tiles;
    k->gemm.lora_members = lora_members;
    k->gemm.lora_gate = lora_gate;
    k->moe.gate_in_product = true; // as where bits are promised
    gate = k->act.gate;
    k->gemm.lora_scratch = lora_scratch;
}

// --- captured steps ------------------------------------------------------------------------------

// What stands in for a GPU's graphs, of one engine: what was captured is computed again when it is
// launched, from where it read and wrote at the time.
static struct {
    msgl_engine *e;
    msgl_device_ops ops;
    msgl_attn_desc desc;
    const msgl_device_ops *real_ops;
    const msgl_attn_desc *real_desc;
    void (*sample)(msgl_exec *x, const msgl_sample_call *c);
} gpu;

struct msgl_graph {
    msgl_engine_step step;
    msgl_lora_step lora;   // of the step, which has it no longer when it is launched
    msgl_lora_table table; // as it was then
};

static void begin(msgl_device *d)
{
    (void)d;
}

static msgl_graph *end(msgl_device *d, msgl_err *err)
{
    (void)d, (void)err;
    msgl_graph *g = calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    g->step = gpu.e->steps[0];
    if (g->step.lora != NULL) {
        g->lora = *g->step.lora;
        g->table = *g->lora.table;
        g->lora.table = &g->table;
        g->step.lora = &g->lora;
    }
    return g;
}

// The lengths, which the CPU's kernels read from the host, are those of the step that runs.
static void launch(msgl_device *d, msgl_graph *g)
{
    (void)d;
    const msgl_engine_step *now = &gpu.e->steps[0];
    assert(now->graph != NULL && (now->graph->graph == g || now->graph->with_adapters == g));
    memcpy(g->step.seqs, now->seqs, sizeof g->step.seqs);
    g->step.num_seqs = now->num_seqs;
    msgl_logits l;
    if (!msgl__step_forward(gpu.e, &g->step, &l)) gpu.e->exec.status = MSGL_EINTERNAL;
}

static void drop(msgl_device *d, msgl_graph *g)
{
    (void)d;
    free(g);
}

static void inputs_begin(msgl_device *d)
{
    (void)d;
}

static void sample(msgl_exec *x, const msgl_sample_call *c)
{
    if (c->replay == NULL) gpu.sample(x, c); // no captured step of the test chooses tokens
}

static void capture(void *ctx, int64_t max_size)
{
    msgl_err err;
    if (msgl__graphs_capture(gpu.e, (int32_t)max_size, &err) != 0) *(int *)ctx = 1;
    gpu.e->device->ops->record(gpu.e->device, MSGL_DEVICE_MAX_EVENTS - 1);
}

bool lora_tiles_capture(msgl_engine *e, int32_t max_size)
{
    int failed = 0;
    memset(&gpu, 0, sizeof gpu);
    gpu.e = e;
    gpu.real_ops = e->device->ops;
    gpu.ops = *gpu.real_ops;
    gpu.ops.graph_begin = begin;
    gpu.ops.graph_end = end;
    gpu.ops.graph_launch = launch;
    gpu.ops.graph_destroy = drop;
    gpu.ops.inputs_begin = inputs_begin;
    e->device->ops = &gpu.ops;
    gpu.real_desc = e->groups[0].attn.decode->desc; // of all groups
    gpu.desc = *gpu.real_desc;
    gpu.desc.graph = true;
    for (int32_t g = 0; g < e->specs.count; g++) e->groups[g].attn.decode->desc = &gpu.desc;
    gpu.sample = e->kernels.sample.sample;
    e->kernels.sample.sample = sample;
    gpu.ops.arm(e->device, MSGL_DEVICE_MAX_EVENTS - 1);
    gpu.ops.submit(e->device, capture, &failed, max_size);
    return gpu.ops.wait(e->device, MSGL_DEVICE_MAX_EVENTS - 1) == 0 && failed == 0;
}

void lora_tiles_release(void)
{
    msgl_engine *e = gpu.e;
    msgl__graphs_destroy(e);
    memset(e->graphs, 0, sizeof e->graphs);
    e->device->ops = gpu.real_ops;
    for (int32_t g = 0; g < e->specs.count; g++) e->groups[g].attn.decode->desc = gpu.real_desc;
}
