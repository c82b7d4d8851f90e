// SPDX-License-Identifier: Apache-2.0
#include "models/lora_sites.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/formats.h"
#include "models/lora_latent.h"
#include "utils/strbuf.h"

static const char WEIGHT[] = ".weight";

typedef msgl_lora_site site;

// transformers has the two products of KDA's decay in a module of their own, the checkpoints do
// not: "layers.0.self_attn.forget_gate.f_a_proj" is "layers.0.self_attn.f_a_proj".
static void own_name(const char *name, char *out, size_t size)
{
    static const char PART[] = ".forget_gate.";
    const char *at = strstr(name, PART);
    if (at == NULL) {
        (void)snprintf(out, size, "%s", name);
    } else {
        (void)snprintf(out, size, "%.*s.%s", (int)(at - name), name, at + sizeof PART - 1);
    }
}

// Models differ in what stands in front of their layers, and so do the classes that adapters are
// made for: "model.language_model.layers.0" is "layers.0" in both.
static const char *without_prefix(const char *name)
{
    static const char *const PREFIXES[] = {"model.", "language_model.", "base_model."};
    for (size_t i = 0; i < MSGL_COUNT(PREFIXES); i++) {
        const size_t n = strlen(PREFIXES[i]);
        if (strncmp(name, PREFIXES[i], n) == 0) return without_prefix(name + n);
    }
    return name;
}

// *adds: whether some product of it adds its result to the stream.
static const msgl_linear *linear_of(const msgl_model *m, const msgl_weight *w, bool *adds)
{
    const msgl_linear *found = NULL;
    *adds = false;
    for (size_t i = 0; i < m->plan.num_same; i++) {
        if (m->plan.same[i].of == w) return NULL; // products of several layers
    }
    for (int32_t i = 0; i < m->products.num; i++) {
        if (&m->products.list[i].linear->w != w) continue;
        found = m->products.list[i].linear;
        *adds = *adds || m->products.list[i].use.adds;
    }
    return found;
}

static void add_site(msgl_lora_sites *s, const msgl_wanted *w, const char *name,
                     const msgl_linear *linear, bool adds, bool embeds)
{
    site *at = &s->at[s->num];
    const char *module = without_prefix(name);
    if (!msgl__ends_with(module, WEIGHT)) return;
    (void)snprintf(at->module, sizeof at->module, "%.*s",
                   (int)(strlen(module) - (sizeof WEIGHT - 1)), module);
    at->wanted = *w;
    at->linear = linear;
    at->adds = adds;
    at->embeds = embeds;
    s->num++;
}

static int by_module(const void *a, const void *b)
{
    const site *x = a, *y = b;
    const int c = strcmp(x->module, y->module);
    return c != 0 ? c : (x->wanted.row > y->wanted.row) - (x->wanted.row < y->wanted.row);
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

size_t msgl__lora_module_end(const msgl_lora_sites *s, size_t first)
{
    size_t end = first + 1;
    while (end < s->num && strcmp(s->at[end].module, s->at[first].module) == 0) end++;
    return end;
}

static int by_linear_and_module(const void *a, const void *b)
{
    const site *x = a, *y = b;
    if (x->linear != y->linear) return x->linear < y->linear ? -1 : 1;
    return by_module(a, b);
}

int32_t msgl__lora_room(const msgl_lora_sites *s, int32_t rank)
{
    const int32_t step = s->by_tiles ? MSGL_LORA_RANK_STEP : 1;
    return (rank + step - 1) / step * step;
}

// Leaves the sites in another order, and in linears each layer once.
static void measure(msgl_lora_sites *s, const msgl_model *m)
{
    for (int32_t i = 0; i < m->products.num; i++) {
        const msgl_product *p = &m->products.list[i];
        s->size.k = larger(s->size.k, p->linear->w.k);
        s->size.n = larger(s->size.n, p->linear->w.n);
        if (p->use.gated && (size_t)p->linear->w.n > s->gated) s->gated = (size_t)p->linear->w.n;
    }
    qsort(s->at, s->num, sizeof *s->at, by_linear_and_module);
    int32_t parts = 0;
    for (size_t i = 0; i < s->num; i = msgl__lora_module_end(s, i)) {
        if (s->at[i].linear == NULL) continue;
        const bool same = i > 0 && s->at[i - 1].linear == s->at[i].linear;
        parts = same ? parts + 1 : 1;
        if (!same) s->linears[s->num_linears++] = s->at[i].linear;
        s->parts[s->num_linears - 1] = parts;
        s->size.parts = larger(s->size.parts, parts);
    }
    msgl__lora_blocks_size(&s->blocks, &s->size);
    msgl__lora_latent_size(m, &s->size);
    s->size.ranks = s->size.parts * msgl__lora_room(s, s->max_rank);
}

// Layers of experts and of latent attention.
static int list_many(msgl_lora_sites *s, const msgl_model *m, msgl_err *err)
{
    const size_t most = (size_t)s->blocks.num + (size_t)m->cfg.num_layers;
    s->many = msgl__calloc(most + 1, sizeof *s->many);
    if (s->many == NULL) return msgl__err_set(err, MSGL_ENOMEM, "adapters: out of memory");
    for (int32_t i = 0; i < s->blocks.num; i++) s->many[s->num_many++] = s->blocks.at[i].of;
    for (int32_t i = 0; i < m->cfg.num_layers; i++) {
        const msgl_weight *k_up = msgl__lora_latent_at(m, i);
        if (k_up != NULL) s->many[s->num_many++] = k_up;
    }
    return 0;
}

int msgl__lora_sites_create(const msgl_model *m, int32_t max_rank, msgl_lora_sites **out,
                            msgl_err *err)
{
    const msgl_kernels *k = m->target.kernels;
    const msgl_weight_plan *p = &m->plan;
    if (k->gemm.lora == NULL && k->gemm.lora_tiles == NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "--lora-paths, --enable-lora: adapters are not computed on this "
                             "device; allowed: --device cpu, cuda");
    }
    msgl_lora_sites *s = msgl__calloc(1, sizeof *s);
    const size_t most = 2 * p->num_wanted + 1;
    if (s != NULL) {
        s->at = msgl__reallocarray(NULL, most, sizeof *s->at);
        s->linears = msgl__reallocarray(NULL, most, sizeof *s->linears);
        s->parts = msgl__reallocarray(NULL, most, sizeof *s->parts);
    }
    if (s == NULL || s->at == NULL || s->linears == NULL || s->parts == NULL) {
        msgl__lora_sites_free(s);
        return msgl__err_set(err, MSGL_ENOMEM, "adapters: out of memory");
    }
    s->by_tiles = k->gemm.lora_tiles != NULL;
    int code = msgl__lora_blocks_create(m, max_rank, &s->blocks, err);
    if (code == 0) code = list_many(s, m, err);
    if (code != 0) {
        msgl__lora_sites_free(s);
        return code;
    }
    s->model = m;
    s->head = &m->lm_head;
    s->kernels = &k->gemm;
    s->formats = (msgl_weight_formats){.kernels = &k->gemm,
                                       .dtype = m->target.weights.dtype,
                                       .converted = &k->gemm.formats[m->target.weights.dtype]};
    s->max_rank = max_rank;
    s->vocab = m->cfg.vocab_size;
    s->hidden = m->cfg.hidden_size;
    s->head_dim = m->cfg.head_dim;
    s->block_rows = k->gemm.block_rows;
    s->act = m->target.act;
    s->tied = m->cfg.tie_embeddings;
    const char *own = m->cfg.decoder.names.head;
    char head[MSGL_TENSOR_NAME];
    (void)snprintf(s->head_name, sizeof s->head_name, "%s", own != NULL ? own : "lm_head");
    (void)snprintf(head, sizeof head, "%.80s%s", s->head_name, WEIGHT);
    s->gguf = m->checkpoint != NULL && m->checkpoint->format == &msgl__format_gguf;
    for (size_t i = 0; i < p->num_wanted; i++) {
        const msgl_wanted *w = &p->wanted[i];
        if (w->weight == NULL) continue;
        const bool embeds = w->weight == &m->embed;
        bool adds;
        const msgl_linear *linear = linear_of(m, w->weight, &adds);
        add_site(s, w, w->name, linear, adds, embeds);
        if (embeds && m->cfg.tie_embeddings) add_site(s, w, head, s->head, false, false);
    }
    measure(s, m);
    qsort(s->at, s->num, sizeof *s->at, by_module);
    *out = s;
    return 0;
}

void msgl__lora_sites_free(msgl_lora_sites *s)
{
    if (s == NULL) return;
    msgl__lora_blocks_free(&s->blocks);
    msgl__free(s->at);
    msgl__free(s->linears);
    msgl__free(s->parts);
    msgl__free(s->many);
    msgl__free(s);
}

bool msgl__lora_by_tiles(const msgl_lora_sites *s)
{
    return s->by_tiles;
}

msgl_lora_table msgl__lora_table(const msgl_lora_sites *s)
{
    return (msgl_lora_table){.linears = s->linears,
                             .parts = s->parts,
                             .num = s->num_linears,
                             .rank = MSGL_LORA_RANK_STEP,
                             .many = s->many,
                             .num_many = s->num_many};
}

size_t msgl__lora_scratch(const msgl_lora_sites *s, int32_t tokens)
{
    msgl_lora_size size = s->size;
    size.rows = tokens;
    const size_t lora = s->kernels->lora_scratch(&size, s->act);
    // What an adapter has in the place of a weight is in a form of its own.
    const msgl_weight w = {.format = s->formats.converted, .n = size.n, .k = size.k};
    const float one = 1;
    const msgl_linear_call whole = {.w = &w, .m = tokens, .norm = &one, .bias = &one};
    const size_t linear = s->kernels->linear_scratch(&whole, s->act);
    const int32_t rows = tokens < s->block_rows ? tokens : s->block_rows;
    const size_t up = msgl__lora_blocks_scratch(&s->blocks, s->kernels, s->act, rows);
    const size_t most = lora > linear ? lora : linear;
    return most > up ? most : up;
}

size_t msgl__lora_arena(const msgl_lora_sites *s, int32_t tokens)
{
    const size_t rows = (size_t)(tokens < s->block_rows ? tokens : s->block_rows);
    // Of keys that are expanded there are more than tokens.
    const int32_t most = tokens > MSGL_LORA_EXPANDED_ROWS ? tokens : MSGL_LORA_EXPANDED_ROWS;
    return msgl__activation_bytes(rows, s->gated, s->act) +
           msgl__lora_blocks_arena(&s->blocks, s->act, rows) +
           msgl__activation_bytes((size_t)most, (size_t)msgl__lora_room(s, s->max_rank), s->act);
}

const site *msgl__lora_find_sites(const msgl_lora_sites *s, const char *name, size_t *num)
{
    char want[2 * MSGL_TENSOR_NAME];
    own_name(without_prefix(name), want, sizeof want);
    size_t lo = 0, hi = s->num;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (strcmp(s->at[mid].module, want) < 0) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    size_t end = lo;
    while (end < s->num && strcmp(s->at[end].module, want) == 0) end++;
    *num = end - lo;
    return &s->at[lo];
}
