// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "models/lora_modules.h"
#include "utils/file.h"
#include "utils/strbuf.h"

typedef msgl_lora_module module;
typedef msgl_lora_reading reading;

// What PEFT's names begin with.
static const char PEFT_PREFIX[] = "base_model.model.";

static int fail(const reading *r, const msgl_tensor *t, int code, const char *what)
{
    return msgl__lora_fail(r->c, t, code, what, r->err);
}

// The module that a tensor belongs to: names are sorted, so it is the last one or a new one.
static int module_of(reading *r, const msgl_tensor *t, const char *name, size_t len, module **out)
{
    if (r->num > 0) {
        *out = &r->modules[r->num - 1];
        if (msgl__lora_factors_are(&(*out)->f, name, len)) return 0;
    }
    module *m = *out = &r->modules[r->num];
    *m = (module){0};
    const int code = msgl__lora_factors_begin(r->c, t, name, len, &m->f, r->err);
    if (code != 0) return code;
    m->sites = msgl__lora_find_sites(r->s, m->f.name, &m->num_sites);
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
    const msgl_lora_site *at = msgl__lora_find_sites(s, of, &num);
    return num > 0 && (at->embeds || at->linear == s->head);
}

// Of this kind, of the module that the name's first `len` bytes are.
static int take_part(reading *r, const msgl_tensor *t, const char *name, size_t len, const kind *k)
{
    module *m = NULL;
    if (!k->embeds && msgl__lora_of_experts(name)) {
        return msgl__lora_experts_take(&r->experts, t, name, len, k->is_a);
    }
    if (!k->embeds && msgl__lora_of_latent(r->s->model, name)) {
        return msgl__lora_latent_take(&r->latents, t, name, len, k->is_a);
    }
    const int code = module_of(r, t, name, len, &m);
    if (code != 0) return code;
    if (!r->gguf && m->sites->embeds != k->embeds) {
        return fail(r, t, MSGL_EFORMAT,
                    m->sites->embeds ? "of an embedding, allowed: lora_embedding_A and _B"
                                     : "of no embedding, allowed: lora_A and lora_B");
    }
    return msgl__lora_factors_take(r->c, t, k->is_a, &m->f, r->err);
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

void msgl__lora_module_place(msgl_lora_module *m)
{
    for (size_t i = 0; i < m->num_sites; i++) {
        const msgl_wanted *w = &m->sites[i].wanted;
        if (w->rows == 0) continue;
        if (m->end == 0 || w->row < m->first) m->first = w->row;
        if (w->row + w->rows > m->end) m->end = w->row + w->rows;
    }
}

// Rank and sizes, which the model says but for the rank.
static int check_module(const reading *r, module *m)
{
    int code = msgl__lora_factors_check(r->c, &m->f, r->err);
    if (code != 0) return code;
    const bool embeds = m->sites->embeds, turned = embeds && r->gguf;
    const int64_t rank = m->f.a->dims[turned ? 1 : 0];
    code = msgl__lora_check_rank(r->c, m->f.a, rank, r->s->max_rank, r->err);
    if (code != 0) return code;
    const msgl_wanted *w = &m->sites->wanted;
    const int64_t out = w->tensor_rows > 0 ? w->tensor_rows : w->unsharded_rows;
    m->f.rank = (int32_t)rank;
    m->room = msgl__lora_room(r->s, m->f.rank);
    code = turned ? check_shape(r, m->f.a, r->s->vocab, rank)
                  : check_shape(r, m->f.a, rank, embeds ? r->s->vocab : w->all_cols);
    if (code == 0) code = check_shape(r, m->f.b, embeds ? r->s->hidden : out, rank);
    if (code != 0) return code;
    msgl__lora_module_place(m);
    return msgl__lora_config_scale(r->config, m->f.name, m->f.rank, &m->f.scale, r->err);
}

int msgl__lora_read_modules(msgl_lora_reading *r)
{
    const size_t n = msgl__checkpoint_count(r->c);
    r->modules = msgl__reallocarray(NULL, n + 1, sizeof *r->modules);
    if (r->modules == NULL) return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    int code = 0;
    for (size_t i = 0; i < n && code == 0; i++) code = take_tensor(r, msgl__checkpoint_at(r->c, i));
    for (size_t i = 0; i < r->num && code == 0; i++) code = check_module(r, &r->modules[i]);
    if (code != 0 || r->num + r->experts.num + r->latents.num + r->saved.num > 0) return code;
    return msgl__err_set(r->err, MSGL_EFORMAT, "%s: has no tensors of an adapter",
                         r->c->files[0].shown);
}
