// SPDX-License-Identifier: Apache-2.0
#include "core/attributes.h"
#include "core/mem.h"
#include "models/lora_modules.h"
#include "utils/random.h"
#include "utils/strbuf.h"

typedef msgl_lora_module module;
typedef msgl_lora_reading reading;

// The sites of modules that a dummy adapter changes: all of layers, or those of attention alone.
static bool is_dummy_module(const msgl_lora_sites *s, const msgl_lora_site *at, bool attention)
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
    for (size_t i = 0; i < s->num; i = msgl__lora_module_end(s, i)) {
        if (!is_dummy_module(s, &s->at[i], attention)) continue;
        module *m = &r->modules[r->num++];
        m->sites = &s->at[i];
        m->num_sites = msgl__lora_module_end(s, i) - i;
        m->f.rank = rank;
        m->room = msgl__lora_room(s, rank);
        msgl__lora_module_place(m);
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
        noise[i] = 0.04f * (msgl__random_unit(&seed) - 0.5f);
    }
    for (int i = 0; i < l->lora.num && x->status == 0; i++) {
        msgl_lora_linear *of = &l->linears[i];
        msgl__lora_pack(&of->a, noise, x);
        for (int j = 0; j < of->num_parts; j++) msgl__lora_pack(&of->b[j], noise, x);
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
        msgl__lora_sort_modules(&r);
        code = msgl__lora_plan_linears(&r, &p, 0, l);
    }
    if (code == 0) code = msgl__lora_take_region(&p, l, x, err);
    if (code == 0) {
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
