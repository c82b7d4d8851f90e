// SPDX-License-Identifier: Apache-2.0
#include "models/lora.h"

#include <stdlib.h>

#include "core/mem.h"
#include "kernel/device.h"
#include "models/lora_gguf.h"
#include "models/lora_modules.h"
#include "models/safetensors.h"
#include "utils/file.h"

static const char FILE_NAME[] = "adapter_model.safetensors";

typedef msgl_lora_module module;
typedef msgl_lora_reading reading;

static int by_linear(const void *a, const void *b)
{
    const module *x = a, *y = b;
    const msgl_linear *lx = x->sites->linear, *ly = y->sites->linear; // the embedding's is NULL
    if (lx != ly) return lx < ly ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

void msgl__lora_sort_modules(msgl_lora_reading *r)
{
    qsort(r->modules, r->num, sizeof *r->modules, by_linear);
}

size_t msgl__lora_group_end(const msgl_lora_reading *r, size_t first)
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
        return msgl__lora_fail(r->c, r->modules[first].f.a, MSGL_ELIMIT,
                               "too many modules of one product", r->err);
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

int msgl__lora_plan_linears(const msgl_lora_reading *r, msgl_weight_plan *p, size_t first,
                            msgl_loaded_lora *l)
{
    int code = 0;
    l->lora.linears = l->linears = msgl__calloc(r->num + 1, sizeof *l->linears);
    if (l->linears == NULL) return msgl__err_set(r->err, MSGL_ENOMEM, "adapter: out of memory");
    for (size_t end; first < r->num && code == 0 && p->status == 0; first = end) {
        end = msgl__lora_group_end(r, first);
        code = plan_linear(r, p, first, end, &l->linears[l->lora.num++]);
    }
    return code == 0 ? p->status : code;
}

// Of sorted modules: by two names one may be there twice.
static int check_once(const reading *r)
{
    for (size_t i = 1; i < r->num; i++) {
        if (r->modules[i].sites != r->modules[i - 1].sites) continue;
        return msgl__lora_fail(r->c, r->modules[i].f.a, MSGL_EFORMAT, "its module is there twice",
                               r->err);
    }
    return 0;
}

int msgl__lora_take_region(msgl_weight_plan *p, msgl_loaded_lora *l, msgl_exec *x, msgl_err *err)
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
    msgl__lora_sort_modules(r);
    int code = check_once(r);
    const bool embeds = r->num > 0 && r->modules[0].sites->embeds;
    if (code == 0 && embeds) {
        msgl__plan_weight(&p, &l->lora.embed.a, r->s->vocab, r->modules[0].room);
        msgl__plan_weight(&p, &l->lora.embed.b, r->s->hidden, r->modules[0].room);
    }
    if (code == 0) code = msgl__lora_plan_linears(r, &p, embeds ? 1 : 0, l);
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
    if (code == 0) code = msgl__lora_take_region(&p, l, x, r->err);
    if (code == 0) {
        code = msgl__lora_load_modules(r, l, x);
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
        if (code == 0) {
            code = msgl__config_digest(path, "adapter_config.json", &l->digest.config, err);
        }
    }
    if (code == 0) l->digest.weights = msgl__checkpoint_digest(r.c);
    r.experts = (msgl_lora_expert_reader){
        .sites = s, .blocks = &s->blocks, .c = r.c, .config = r.config, .err = err};
    r.latents = (msgl_lora_latent_reader){.sites = s, .c = r.c, .config = r.config, .err = err};
    r.saved = (msgl_lora_saved_reader){.sites = s, .c = r.c, .config = r.config, .err = err};
    if (code == 0) code = msgl__lora_read_modules(&r);
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
