// SPDX-License-Identifier: Apache-2.0
#include "models/lora.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "kernel/device.h"
#include "models/formats.h"
#include "models/lora_config.h"
#include "models/lora_experts.h"
#include "models/lora_gguf.h"
#include "models/lora_latent.h"
#include "models/lora_saved.h"
#include "models/lora_sites.h"
#include "models/safetensors.h"
#include "utils/file.h"
#include "utils/strbuf.h"

static const char FILE_NAME[] = "adapter_model.safetensors", PEFT_PREFIX[] = "base_model.model.";
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

// The sites [first, end) of one module.
static size_t module_end(const msgl_lora_sites *s, size_t first)
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

// What a module's rank takes of a product's rows or columns.
static int32_t room_of(const msgl_lora_sites *s, int32_t rank)
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
    for (size_t i = 0; i < s->num; i = module_end(s, i)) {
        if (s->at[i].linear == NULL) continue;
        const bool same = i > 0 && s->at[i - 1].linear == s->at[i].linear;
        parts = same ? parts + 1 : 1;
        if (!same) s->linears[s->num_linears++] = s->at[i].linear;
        s->parts[s->num_linears - 1] = parts;
        s->size.parts = larger(s->size.parts, parts);
    }
    msgl__lora_blocks_size(&s->blocks, &s->size);
    msgl__lora_latent_size(m, &s->size);
    s->size.ranks = s->size.parts * room_of(s, s->max_rank);
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
    const int code = msgl__lora_blocks_create(m, max_rank, &s->blocks, err);
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
    s->on_host = k->moe.ids_on_host && !s->by_tiles;
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
                             .rank = room_of(s, s->max_rank)};
}

size_t msgl__lora_scratch(const msgl_lora_sites *s, int32_t tokens)
{
    msgl_lora_size size = s->size;
    size.rows = tokens;
    const size_t lora = s->kernels->lora_scratch(&size, s->act);
    if (!s->on_host) return lora;
    // What an adapter has in the place of a weight is in a form of its own.
    const msgl_weight w = {.format = s->formats.converted, .n = size.n, .k = size.k};
    const float norm = 1;
    const msgl_linear_call whole = {.w = &w, .m = tokens, .norm = &norm};
    const size_t linear = s->kernels->linear_scratch(&whole, s->act);
    return lora > linear ? lora : linear;
}

size_t msgl__lora_arena(const msgl_lora_sites *s, int32_t tokens)
{
    const size_t rows = (size_t)(tokens < s->block_rows ? tokens : s->block_rows);
    return msgl__activation_bytes(rows, s->gated, s->act) +
           msgl__lora_blocks_arena(&s->blocks, s->act, rows) +
           msgl__activation_bytes((size_t)tokens, (size_t)room_of(s, s->max_rank), s->act);
}

// A module of the adapter: where it goes, and its two tensors.
typedef struct module {
    char name[2 * MSGL_TENSOR_NAME]; // as PEFT matches it
    const site *sites;               // [num_sites] that are one module
    size_t num_sites;
    const msgl_tensor *a, *b; // [rank, in], [out, rank]
    int32_t rank;
    int32_t room;       // of A's rows and B's columns: rank, and the zeros behind
    int32_t first, end; // rows of the linear that B is for
    float scale;
} module;

typedef struct reading {
    const msgl_lora_sites *s;
    msgl_checkpoint *c;
    msgl_lora_config *config;
    bool gguf;  // the adapter is a GGUF file, ...
    bool pairs; // ... whose rows of q and k are neighbours where they rotate together
    module *modules;
    size_t num;
    msgl_lora_expert_reader experts;
    msgl_lora_latent_reader latents;
    msgl_lora_saved_reader saved;
    msgl_err *err;
} reading;

int msgl__lora_fail(const msgl_checkpoint *c, const msgl_tensor *t, int code, const char *what,
                    msgl_err *err)
{
    char name[96];
    return msgl__err_set(err, code, "%s: tensor %s: %s", msgl__checkpoint_file(c, t),
                         msgl__printable(t->name, name, sizeof name), what);
}

static int fail(const reading *r, const msgl_tensor *t, int code, const char *what)
{
    return msgl__lora_fail(r->c, t, code, what, r->err);
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

// The module that a tensor belongs to: names are sorted, so it is the last one or a new one.
static int module_of(reading *r, const msgl_tensor *t, const char *name, size_t len, module **out)
{
    if (r->num > 0) {
        module *last = &r->modules[r->num - 1];
        if (strlen(last->name) == len && memcmp(last->name, name, len) == 0) {
            *out = last;
            return 0;
        }
    }
    module *m = &r->modules[r->num];
    *m = (module){0};
    if (len >= sizeof m->name) return fail(r, t, MSGL_ELIMIT, "its name is too long");
    memcpy(m->name, name, len);
    m->sites = msgl__lora_find_sites(r->s, m->name, &m->num_sites);
    if (m->num_sites == 0) {
        return fail(r, t, MSGL_EUNSUPPORTED,
                    "the model has no such module, or none that adapters can change");
    }
    if (m->sites->linear == NULL && !m->sites->embeds) {
        return fail(r, t, MSGL_EUNSUPPORTED, "no adapter can change this module here");
    }
    const msgl_wanted *w = &m->sites->wanted;
    const bool moves = w->head_groups > 0 || m->num_sites > 1;
    if (r->s->gguf && !r->gguf && (w->pairs > 0 || moves)) {
        return fail(
            r, t, MSGL_EUNSUPPORTED,
            "the model's GGUF file has this module in another order than PEFT; allowed: its "
            "safetensors, or the adapter as a GGUF file");
    }
    if (!r->s->gguf && r->gguf && moves) {
        return fail(r, t, MSGL_EUNSUPPORTED,
                    "a GGUF file has this module in another order than the model; allowed: the "
                    "model's GGUF file");
    }
    r->num++;
    *out = m;
    return 0;
}

// What the name of a tensor ends in.
typedef struct kind {
    const char *suffix; // NULL: the end
    bool embeds, is_a;
} kind;

static const kind KINDS[] = {
    {".lora_A.weight", false, true},
    {".lora_B.weight", false, false},
    {".lora_embedding_A", true, true},
    {".lora_embedding_B", true, false},
    {NULL, false, false},
};
static const kind GGUF_KINDS[] = {
    {".weight.lora_a", false, true},
    {".weight.lora_b", false, false},
    {NULL, false, false},
};

// Frozen matrices that PEFT saves beside an adapter of the embedding or the head.
static bool is_frozen(const msgl_lora_sites *s, const char *name)
{
    static const char FROZEN[] = ".base_layer.weight", TOKENS[] = ".token_adapter";
    char of[2 * MSGL_TENSOR_NAME];
    size_t num;
    if (!msgl__ends_with(name, FROZEN) || strlen(name) >= sizeof of) return false;
    (void)snprintf(of, sizeof of, "%.*s", (int)(strlen(name) - (sizeof FROZEN - 1)), name);
    if (msgl__ends_with(of, TOKENS)) of[strlen(of) - (sizeof TOKENS - 1)] = '\0';
    const site *at = msgl__lora_find_sites(s, of, &num);
    return num > 0 && (at->embeds || at->linear == s->head);
}

static int refuse_device(const reading *r, const msgl_tensor *t)
{
    return fail(r, t, MSGL_EUNSUPPORTED,
                "adapters of this kind are not computed on this device; allowed: --device cpu");
}

// Of this kind, of the module that the name's first `len` bytes are.
static int take_part(reading *r, const msgl_tensor *t, const char *name, size_t len, const kind *k)
{
    module *m = NULL;
    const bool of_experts = !k->embeds && msgl__lora_of_experts(name);
    const bool of_latent = !k->embeds && msgl__lora_of_latent(r->s->model, name);
    if ((of_experts || of_latent) && !r->s->on_host) return refuse_device(r, t);
    if (of_experts) {
        return msgl__lora_experts_take(&r->experts, t, name, len, k->is_a);
    }
    if (of_latent) {
        return msgl__lora_latent_take(&r->latents, t, name, len, k->is_a);
    }
    const int code = module_of(r, t, name, len, &m);
    if (code != 0) return code;
    if (!r->gguf && m->sites->embeds != k->embeds) {
        return fail(r, t, MSGL_EFORMAT,
                    m->sites->embeds ? "of an embedding, allowed: lora_embedding_A and _B"
                                     : "of no embedding, allowed: lora_A and lora_B");
    }
    if (!t->loadable || t->packing.form != NULL || t->ndim != 2) {
        return fail(r, t, MSGL_EFORMAT, "allowed: two dimensions of F32, F16 or BF16");
    }
    *(k->is_a ? &m->a : &m->b) = t;
    return 0;
}

static int take_tensor(reading *r, const msgl_tensor *t)
{
    const size_t prefix = r->gguf ? 0 : sizeof PEFT_PREFIX - 1;
    if (strncmp(t->name, PEFT_PREFIX, prefix) != 0) {
        return fail(r, t, MSGL_EUNSUPPORTED, "allowed: names that begin with base_model.model.");
    }
    const char *name = t->name + prefix;
    if (!r->gguf && is_frozen(r->s, name)) return 0;
    if (msgl__ends_with(name, ".lora_magnitude_vector")) {
        return fail(r, t, MSGL_EUNSUPPORTED, "DoRA is not computed here");
    }
    for (const kind *k = r->gguf ? GGUF_KINDS : KINDS; k->suffix != NULL; k++) {
        if (!msgl__ends_with(name, k->suffix)) continue;
        return take_part(r, t, name, strlen(name) - strlen(k->suffix), k);
    }
    if (r->gguf) return fail(r, t, MSGL_EUNSUPPORTED, "allowed: .lora_a and .lora_b of weights");
    if (!r->s->on_host) return refuse_device(r, t);
    if (msgl__lora_saved_take(&r->saved, t, name)) return r->saved.status;
    return fail(r, t, MSGL_EUNSUPPORTED,
                "allowed: lora_A.weight, lora_B.weight, lora_embedding_A and lora_embedding_B, "
                "trainable_tokens_delta, and weight and bias of modules_to_save");
}

static int check_shape(const reading *r, const msgl_tensor *t, int64_t rows, int64_t cols)
{
    if (t->dims[0] == rows && t->dims[1] == cols) return 0;
    char what[160], found[80];
    (void)snprintf(what, sizeof what, "shape: found %s, expected [%lld, %lld]",
                   msgl__shape_show(t->dims, t->ndim, found, sizeof found), (long long)rows,
                   (long long)cols);
    return fail(r, t, MSGL_EFORMAT, what);
}

// Rows of the linear from the first site's to the last one's; none of another rank's module.
static void place(module *m)
{
    for (size_t i = 0; i < m->num_sites; i++) {
        const msgl_wanted *w = &m->sites[i].wanted;
        if (w->rows == 0) continue;
        if (m->end == 0 || w->row < m->first) m->first = w->row;
        m->end = larger(m->end, w->row + w->rows);
    }
}

// Rank and sizes, which the model says but for the rank.
static int check_module(const reading *r, module *m)
{
    const msgl_tensor *t = m->a != NULL ? m->a : m->b;
    if (m->a == NULL || m->b == NULL) {
        return fail(r, t, MSGL_EFORMAT, m->a == NULL ? "its A is missing" : "its B is missing");
    }
    const bool embeds = m->sites->embeds, turned = embeds && r->gguf;
    const int64_t rank = m->a->dims[turned ? 1 : 0];
    if (rank < 1 || rank > r->s->max_rank) {
        char what[96];
        (void)snprintf(what, sizeof what, "rank: found %lld, allowed 1 to %d (--max-lora-rank)",
                       (long long)rank, (int)r->s->max_rank);
        return fail(r, m->a, MSGL_ELIMIT, what);
    }
    const msgl_wanted *w = &m->sites->wanted;
    const int64_t out = w->tensor_rows > 0 ? w->tensor_rows : w->unsharded_rows;
    m->rank = (int32_t)rank;
    m->room = room_of(r->s, m->rank);
    int code = turned ? check_shape(r, m->a, r->s->vocab, rank)
                      : check_shape(r, m->a, rank, embeds ? r->s->vocab : w->all_cols);
    if (code == 0) code = check_shape(r, m->b, embeds ? r->s->hidden : out, rank);
    if (code != 0) return code;
    place(m);
    return msgl__lora_config_scale(r->config, m->name, m->rank, &m->scale, r->err);
}

static int read_modules(reading *r)
{
    const size_t n = msgl__checkpoint_count(r->c);
    r->modules = msgl__reallocarray(NULL, n + 1, sizeof *r->modules);
    if (r->modules == NULL) return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    int code = 0;
    for (size_t i = 0; i < n && code == 0; i++) code = take_tensor(r, msgl__checkpoint_at(r->c, i));
    for (size_t i = 0; i < r->num && code == 0; i++) code = check_module(r, &r->modules[i]);
    if (code != 0 || r->num + r->experts.num + r->latents.num + r->saved.num > 0) return code;
    return msgl__err_set(r->err, MSGL_EFORMAT, "%s: has no tensors of an adapter",
                         r->gguf ? r->c->files[0].shown : FILE_NAME);
}

static int by_linear(const void *a, const void *b)
{
    const module *x = a, *y = b;
    const msgl_linear *lx = x->sites->linear, *ly = y->sites->linear; // the embedding's is NULL
    if (lx != ly) return lx < ly ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

// The modules [first, end) of one linear layer.
static size_t group_end(const reading *r, size_t first)
{
    size_t end = first + 1;
    while (end < r->num && r->modules[end].sites->linear == r->modules[first].sites->linear) end++;
    return end;
}

static int plan_linear(const reading *r, msgl_weight_plan *p, size_t first, size_t end,
                       msgl_lora_linear *l)
{
    int32_t ranks = 0;
    *l = (msgl_lora_linear){.of = r->modules[first].sites->linear};
    const size_t most = (size_t)r->s->size.parts; // that scratch is taken for
    if (end - first > MSGL_MAX_LORA_PARTS || end - first > most) {
        return fail(r, r->modules[first].a, MSGL_ELIMIT, "too many modules of one product");
    }
    for (size_t i = first; i < end; i++) {
        const module *m = &r->modules[i];
        if (m->end > m->first) {
            const int j = l->num_parts++;
            msgl__plan_weight(p, &l->b[j], m->end - m->first, m->room);
            l->parts[j] = (msgl_lora_part){.b = &l->b[j], .at = ranks, .col = m->first};
        }
        ranks += m->room;
    }
    msgl__plan_weight(p, &l->a, ranks, l->of->w.k);
    return 0;
}

static void to_f32(const msgl_tensor *t, size_t n, float scale, float *restrict out)
{
    const uint8_t *restrict from = t->data; // maybe not aligned
    uint16_t half;
    if (t->dtype == MSGL_F32) {
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
    const size_t out = (size_t)m->b->dims[0], rank = (size_t)m->rank, room = (size_t)m->room;
    to_f32(m->b, out * rank, m->scale, stage);
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
           (msgl__ends_with(m->name, ".q_proj") || msgl__ends_with(m->name, ".k_proj"));
}

// B's rows go where the weight's rows are.
static void load_b(const reading *r, const module *m, msgl_weight *b, float *stage, msgl_exec *x)
{
    const int64_t out = m->b->dims[0];
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
    w.rows = w.unsharded_rows = m->rank;
    w.skip = w.tensor_rows = w.first = 0;
    w.head = w.unpaired = w.pairs = 0;
    const msgl_load_item item = {.want = &w, .tensor = m->a};
    msgl__load_weight(&item, 1, x);
}

static void pack(msgl_weight *w, const float *rows, msgl_exec *x)
{
    w->format->pack(x, w, 0, w->n, rows, MSGL_F32, (size_t)w->k);
}

static void load_embed(const reading *r, const module *m, msgl_lora_embed *e, float *stage,
                       float *turned, msgl_exec *x)
{
    const size_t vocab = (size_t)e->a.n, rank = (size_t)m->rank, room = (size_t)m->room;
    to_f32(m->a, rank * vocab, 1, stage);
    for (size_t i = 0; i < room; i++) {
        for (size_t v = 0; v < vocab; v++) {
            const size_t at = r->gguf ? v * rank + i : i * vocab + v;
            turned[v * room + i] = i < rank ? stage[at] : 0.0f;
        }
    }
    pack(&e->a, turned, x);
    stage_b(m, stage);
    pack(&e->b, stage, x);
}

// Most elements of one tensor, as it is staged.
static size_t stage_elements(const reading *r)
{
    size_t most = 1;
    for (size_t i = 0; i < r->num; i++) {
        const module *m = &r->modules[i];
        const size_t rank = (size_t)m->rank, room = (size_t)m->room;
        const size_t a = (size_t)m->a->dims[0] * (size_t)m->a->dims[1] / rank * room;
        const size_t b = room * (size_t)m->b->dims[0];
        most = a > most ? a : most;
        most = b > most ? b : most;
    }
    return most;
}

static int load_modules(const reading *r, msgl_loaded_lora *l, msgl_exec *x)
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
        const size_t end = group_end(r, first);
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

// Of sorted modules: by two names one may be there twice.
static int check_once(const reading *r)
{
    for (size_t i = 1; i < r->num; i++) {
        if (r->modules[i].sites != r->modules[i - 1].sites) continue;
        return fail(r, r->modules[i].a, MSGL_EFORMAT, "its module is there twice");
    }
    return 0;
}

// The device's memory for what is planned.
static int take_region(msgl_weight_plan *p, msgl_loaded_lora *l, msgl_exec *x, msgl_err *err)
{
    l->bytes = p->bytes;
    l->region = x->device->ops->alloc(x->device, p->bytes);
    if (l->region == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "adapter: no memory for %zu bytes", p->bytes);
    }
    msgl__weight_plan_place(p, l->region);
    return 0;
}

static int plan_and_load(reading *r, msgl_loaded_lora *l, msgl_exec *x)
{
    msgl_weight_plan p;
    msgl__weight_plan_init(&p, &r->s->formats, r->err);
    qsort(r->modules, r->num, sizeof *r->modules, by_linear);
    int code = check_once(r);
    l->linears = msgl__calloc(r->num + 1, sizeof *l->linears);
    if (code == 0 && l->linears == NULL)
        code = msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    size_t first = 0;
    if (code == 0 && r->num > 0 && r->modules[0].sites->embeds) {
        msgl__plan_weight(&p, &l->lora.embed.a, r->s->vocab, r->modules[0].room);
        msgl__plan_weight(&p, &l->lora.embed.b, r->s->hidden, r->modules[0].room);
        first = 1;
    }
    while (first < r->num && code == 0 && p.status == 0) {
        const size_t end = group_end(r, first);
        code = plan_linear(r, &p, first, end, &l->linears[l->lora.num++]);
        first = end;
    }
    l->lora.linears = l->linears;
    if (code == 0) {
        code = msgl__lora_experts_plan(&r->experts, &p, &l->experts, &l->lora.num_experts);
    }
    l->lora.experts = l->experts;
    if (code == 0) {
        code = msgl__lora_latent_plan(&r->latents, &p, &l->latents, &l->lora.num_latents);
    }
    l->lora.latents = l->latents;
    if (code == 0) code = msgl__lora_saved_plan(&r->saved, &p, &l->saved, &l->lora.num_saved);
    l->lora.saved = l->saved;
    if (code == 0) code = p.status;
    if (code == 0) code = take_region(&p, l, x, r->err);
    if (code == 0) {
        code = load_modules(r, l, x);
        if (code != 0) (void)msgl__err_set(r->err, code, "adapter: loading its weights failed");
    }
    msgl__weight_plan_free(&p);
    return code;
}

static int open_tensors(const char *dir, msgl_checkpoint *c, msgl_err *err)
{
    char path[4096];
    int code = msgl__path_join(dir, FILE_NAME, path, sizeof path, err);
    if (code == 0) code = msgl__checkpoint_map(c, path, err);
    if (code != 0) return code;
    const msgl_checkpoint_file *f = &c->files[0];
    code = msgl__safetensors_parse(f->map, f->size, msgl__path_shown(path), 0, &c->tensors, err);
    return code == 0 ? msgl__checkpoint_sort(c, err) : code;
}

int msgl__lora_load(const msgl_lora_sites *s, const char *path, msgl_exec *x,
                    msgl_loaded_lora **out, msgl_err *err)
{
    reading r = {
        .s = s, .c = msgl__calloc(1, sizeof *r.c), .gguf = msgl__lora_is_gguf(path), .err = err};
    msgl_loaded_lora *l = msgl__calloc(1, sizeof *l);
    int code = 0;
    if (r.c == NULL || l == NULL) code = msgl__err_set(err, MSGL_ENOMEM, "adapter: out of memory");
    if (code == 0 && r.gguf) {
        code = msgl__lora_gguf_open(path, r.c, &r.config, &r.pairs, err);
    } else if (code == 0) {
        code = msgl__lora_config_load(path, &r.config, err);
        if (code == 0) code = open_tensors(path, r.c, err);
    }
    r.experts =
        (msgl_lora_expert_reader){.blocks = &s->blocks, .c = r.c, .config = r.config, .err = err};
    r.latents = (msgl_lora_latent_reader){
        .m = s->model, .c = r.c, .config = r.config, .max_rank = s->max_rank, .err = err};
    r.saved = (msgl_lora_saved_reader){.sites = s, .c = r.c, .config = r.config, .err = err};
    if (code == 0) code = read_modules(&r);
    if (code == 0) code = plan_and_load(&r, l, x);
    msgl__lora_config_free(r.config);
    msgl__checkpoint_close(r.c);
    msgl__free(r.modules);
    msgl__lora_expert_reader_free(&r.experts);
    msgl__lora_latent_reader_free(&r.latents);
    msgl__lora_saved_reader_free(&r.saved);
    if (code != 0) {
        msgl__lora_free(l, x->device);
        return code;
    }
    *out = l;
    return 0;
}

// The sites of modules that a dummy adapter changes: all of layers, or those of attention alone.
static bool is_dummy_module(const msgl_lora_sites *s, const site *at, bool attention)
{
    static const char *const ENDS[] = {".q_proj", ".k_proj", ".v_proj", ".qkv_proj", ".o_proj"};
    if (at->linear == NULL || at->linear == s->head) return false;
    if (!attention) return true;
    for (size_t i = 0; i < MSGL_COUNT(ENDS); i++) {
        if (msgl__ends_with(at->module, ENDS[i])) return true;
    }
    return false;
}

static int dummy_modules(reading *r, int32_t rank, bool attention)
{
    const msgl_lora_sites *s = r->s;
    r->modules = msgl__calloc(s->num + 1, sizeof *r->modules);
    if (r->modules == NULL) return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    for (size_t i = 0; i < s->num; i = module_end(s, i)) {
        if (!is_dummy_module(s, &s->at[i], attention)) continue;
        module *m = &r->modules[r->num++];
        m->sites = &s->at[i];
        m->num_sites = module_end(s, i) - i;
        m->rank = rank;
        m->room = room_of(s, rank);
        place(m);
    }
    if (r->num > 0) return 0;
    return msgl__err_set(r->err, MSGL_EUNSUPPORTED,
                         "dummy adapters: the model has no modules called q_proj, k_proj, v_proj, "
                         "qkv_proj or o_proj");
}

// Values in [-0.02, 0.02), the same for every weight.
static int fill_dummy(msgl_loaded_lora *l, uint64_t seed, msgl_exec *x)
{
    size_t most = 1;
    for (int i = 0; i < l->lora.num; i++) {
        const msgl_lora_linear *of = &l->linears[i];
        const size_t a = (size_t)of->a.n * (size_t)of->a.k;
        most = a > most ? a : most;
        for (int j = 0; j < of->num_parts; j++) {
            const size_t b = (size_t)of->b[j].n * (size_t)of->b[j].k;
            most = b > most ? b : most;
        }
    }
    float *noise = msgl__reallocarray(NULL, most, sizeof *noise);
    if (noise == NULL) return MSGL_ENOMEM;
    for (size_t i = 0; i < most; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u; // Knuth's MMIX
        noise[i] = 0.02f * (float)(int32_t)(seed >> 32) * 0x1p-31f;
    }
    for (int i = 0; i < l->lora.num && x->status == 0; i++) {
        msgl_lora_linear *of = &l->linears[i];
        pack(&of->a, noise, x);
        for (int j = 0; j < of->num_parts; j++) pack(&of->b[j], noise, x);
    }
    msgl__free(noise);
    return x->status;
}

int msgl__lora_dummy(const msgl_lora_sites *s, int32_t rank, bool attention, uint64_t seed,
                     msgl_exec *x, msgl_loaded_lora **out, msgl_err *err)
{
    reading r = {.s = s, .err = err};
    if (rank < 1 || rank > s->max_rank) {
        return msgl__err_set(err, MSGL_ELIMIT, "dummy adapters: rank %d: allowed 1 to %d", rank,
                             (int)s->max_rank);
    }
    msgl_loaded_lora *l = msgl__calloc(1, sizeof *l);
    int code = l != NULL ? dummy_modules(&r, rank, attention)
                         : msgl__err_set(err, MSGL_ENOMEM, "adapter: out of memory");
    msgl_weight_plan p;
    msgl__weight_plan_init(&p, &s->formats, err);
    if (code == 0) {
        qsort(r.modules, r.num, sizeof *r.modules, by_linear);
        l->linears = msgl__calloc(r.num, sizeof *l->linears);
        if (l->linears == NULL) code = msgl__err_set(err, MSGL_ENOMEM, "adapter: out of memory");
    }
    for (size_t first = 0; first < r.num && code == 0 && p.status == 0;) {
        const size_t end = group_end(&r, first);
        code = plan_linear(&r, &p, first, end, &l->linears[l->lora.num++]);
        first = end;
    }
    if (code == 0) code = p.status;
    if (code == 0) code = take_region(&p, l, x, err);
    if (code == 0) {
        l->lora.linears = l->linears;
        code = fill_dummy(l, seed, x);
        if (code != 0) (void)msgl__err_set(err, code, "adapter: filling its weights failed");
    }
    msgl__weight_plan_free(&p);
    msgl__free(r.modules);
    if (code != 0) {
        msgl__lora_free(l, x->device);
        return code;
    }
    *out = l;
    return 0;
}

void msgl__lora_free(msgl_loaded_lora *l, msgl_device *d)
{
    if (l == NULL) return;
    if (l->region != NULL) d->ops->free(d, l->region, l->bytes);
    msgl__free(l->linears);
    msgl__lora_experts_free(l->experts, l->lora.num_experts);
    msgl__lora_latent_free(l->latents, l->lora.num_latents);
    msgl__lora_saved_free(l->saved, l->lora.num_saved);
    msgl__free(l);
}
