// SPDX-License-Identifier: Apache-2.0
#include "models/adapters.h"

#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "utils/file.h"
#include "utils/strbuf.h"

enum { NAME_BYTES = 512 };

// Of a dimension: what can be multiplied by 32 without a thought, and is more than any model has.
static const int64_t MAX_DIM = (int64_t)1 << 31;

static const msgl_adapter *const ADAPTERS[] = {
    &msgl__adapter_fp8,       &msgl__adapter_mxfp8,        &msgl__adapter_int8,
    &msgl__adapter_bnb_int8,  &msgl__adapter_awq,          &msgl__adapter_gptq,
    &msgl__adapter_packed,    &msgl__adapter_gpt_oss,      &msgl__adapter_mxfp4,
    &msgl__adapter_nvfp4,     &msgl__adapter_modelopt_fp4, &msgl__adapter_nf4,
    &msgl__adapter_bnb_fp4,   &msgl__adapter_mlx,          &msgl__adapter_hqq,
    &msgl__adapter_ao_int4,   &msgl__adapter_ao_int8,      &msgl__adapter_ao_intx,
    &msgl__adapter_ao_float8, &msgl__adapter_v4_fp8,       &msgl__adapter_v4_fp4,
};

const msgl_adapter *const *msgl__adapters(int *count)
{
    *count = (int)MSGL_COUNT(ADAPTERS);
    return ADAPTERS;
}

// Suffixes of what only packers write.
static const char *const PACKED[] = {".qweight", ".weight_packed", "_blocks", ".W_q", "_qdata"};

static const struct {
    const char *type;
    msgl_number number;
} NUMBERS[] = {
    {"F32", MSGL_NUMBER_F32},      {"F16", MSGL_NUMBER_F16},      {"BF16", MSGL_NUMBER_BF16},
    {"F8_E4M3", MSGL_NUMBER_E4M3}, {"F8_E8M0", MSGL_NUMBER_E8M0}, {"I8", MSGL_NUMBER_I8},
    {"U8", MSGL_NUMBER_U8},        {"I32", MSGL_NUMBER_I32},      {"I64", MSGL_NUMBER_I64},
};

msgl_tensor *msgl__beside(const msgl_adapting *a, const char *name)
{
    char whole[NAME_BYTES];
    const int n = snprintf(whole, sizeof whole, "%.*s%s", (int)a->module, a->t->name, name);
    if (n < 0 || n >= NAME_BYTES || a->module >= NAME_BYTES) return NULL;
    const msgl_tensor *t = msgl__checkpoint_find(a->c, whole);
    return t != NULL ? &a->c->tensors.at[t - a->c->tensors.at] : NULL;
}

int msgl__adapt_error(const msgl_adapting *a, const msgl_tensor *t, const char *allowed)
{
    char shown[96], shape[80];
    return msgl__err_set(a->err, MSGL_EUNSUPPORTED, "%s: tensor %s: found %s %s, allowed %s",
                         msgl__checkpoint_file(a->c, t),
                         msgl__printable(t->name, shown, sizeof shown), t->type,
                         msgl__shape_show(t->dims, t->ndim, shape, sizeof shape), allowed);
}

static int missing(const msgl_adapting *a, const char *name, const char *types)
{
    char shown[96];
    return msgl__err_set(a->err, MSGL_EUNSUPPORTED,
                         "%s: tensor %s: found nothing beside it that ends in %s, allowed %s",
                         msgl__checkpoint_file(a->c, a->t),
                         msgl__printable(a->t->name, shown, sizeof shown), name, types);
}

bool msgl__is_among(const char *types, const char *type)
{
    const size_t n = strlen(type);
    for (const char *at = types; (at = strstr(at, type)) != NULL; at += n) {
        const bool begins = at == types || at[-1] == ' ';
        if (begins && (at[n] == '\0' || at[n] == ' ' || at[n] == ',')) return true;
    }
    return false;
}

void msgl__take(const msgl_adapting *a, msgl_tensor *s)
{
    if (!s->is_side) a->t->beside += s->bytes;
    s->is_side = true;
}

static void set_side(msgl_adapting *a, msgl_role role, msgl_tensor *s)
{
    msgl_number number = MSGL_NUMBER_U8;
    for (size_t i = 0; i < MSGL_COUNT(NUMBERS); i++) {
        if (strcmp(s->type, NUMBERS[i].type) == 0) number = NUMBERS[i].number;
    }
    a->t->packing.sides[role] = (msgl_side){s->data, s->bytes, number};
    msgl__take(a, s);
}

int msgl__take_side(msgl_adapting *a, msgl_role role, const char *name, const char *types,
                    int32_t ndim, const int64_t *dims)
{
    msgl_tensor *s = msgl__beside(a, name);
    char shape[80], allowed[160];
    if (s == NULL) return missing(a, name, types);
    if (!msgl__is_among(types, s->type) || s->ndim != ndim ||
        memcmp(s->dims, dims, (size_t)ndim * sizeof *dims) != 0) {
        snprintf(allowed, sizeof allowed, "%s %s", types,
                 msgl__shape_show(dims, ndim, shape, sizeof shape));
        return msgl__adapt_error(a, s, allowed);
    }
    set_side(a, role, s);
    return 0;
}

void msgl__take_unused(const msgl_adapting *a, const char *name)
{
    msgl_tensor *s = msgl__beside(a, name);
    if (s != NULL) msgl__take(a, s);
}

// The dimensions of scales without those of 1 in between and behind ([a, 1, b, 1] of ModelOpt), or
// of one row: at most two.
static bool two_dims(const msgl_tensor *s, int64_t dims[2])
{
    dims[0] = s->ndim > 0 ? s->dims[0] : 1;
    dims[1] = 1;
    for (int32_t i = 1; i < s->ndim; i++) {
        if (s->dims[i] == 1) continue;
        if (dims[1] != 1) return false;
        dims[1] = s->dims[i];
    }
    return true;
}

int msgl__take_scales(msgl_adapting *a, const char *name, const char *types, int64_t rows,
                      int64_t cols, const int64_t block[2])
{
    msgl_tensor *s = msgl__beside(a, name);
    if (s == NULL) return missing(a, name, types);
    msgl_packing *p = &a->t->packing;
    int64_t d[2];
    const int64_t grid[2] = {(rows + block[0] - 1) / block[0], (cols + block[1] - 1) / block[1]};
    bool good = two_dims(s, d) && msgl__is_among(types, s->type);
    if (good && d[0] == 1 && d[1] == 1) {
        p->group_rows = (size_t)rows, p->group = (size_t)cols;
    } else if (good && d[0] == grid[0] && d[1] == grid[1]) {
        p->group_rows = (size_t)block[0], p->group = (size_t)block[1];
    } else if (good && d[0] == rows && d[1] > 0 && cols % d[1] == 0) {
        p->group_rows = 1, p->group = (size_t)(cols / d[1]);
    } else {
        char allowed[240];
        snprintf(
            allowed, sizeof allowed,
            "%s [1], [%lld, 1], [%lld, groups] or [%lld, %lld]: a scale for all, for each row, "
            "or for each %lld x %lld elements",
            types, (long long)rows, (long long)rows, (long long)grid[0], (long long)grid[1],
            (long long)block[0], (long long)block[1]);
        return msgl__adapt_error(a, s, allowed);
    }
    set_side(a, MSGL_SCALES, s);
    return 0;
}

void msgl__claim_matrix(msgl_adapting *a, int64_t rows, int64_t cols)
{
    a->t->ndim = 2;
    a->t->dims[0] = rows;
    a->t->dims[1] = cols;
}

// Plain numbers are asked about too where the type says nothing.
static bool may_be(const msgl_tensor *t, const msgl_adapter *with)
{
    if (t->packing.form != NULL || t->is_side || !msgl__ends_with(t->name, with->suffix))
        return false;
    if (with->ndim != 0 && t->ndim != with->ndim) return false;
    return with->type == NULL || (!t->loadable && msgl__is_among(with->type, t->type));
}

static int claim(msgl_adapting *a, const msgl_adapter *with)
{
    msgl_tensor *t = a->t;
    if (!may_be(t, with)) return 0;
    a->module = strlen(t->name) - strlen(with->suffix);
    // One that is asked about all tensors has to see for itself what is its own.
    const bool all = with->type == NULL && with->suffix[0] == '\0';
    for (int32_t i = 0; i < t->ndim && !all; i++) {
        if (t->dims[i] > 0 && t->dims[i] < MAX_DIM) continue;
        return msgl__adapt_error(a, t, "dimensions from 1 to 2147483647");
    }
    const int code = with->claim(a);
    if (code <= 0) return code;
    t->loadable = true;
    t->packed = with->name;
    if (with->named == NULL) return 1;
    // The list stays sorted by the files' names until all tensors have been asked about.
    const size_t size = a->module + strlen(with->named) + 1;
    t->label = msgl__malloc(size);
    if (t->label == NULL) return msgl__err_set(a->err, MSGL_ENOMEM, "model: out of memory");
    snprintf(t->label, size, "%.*s%s", (int)a->module, t->name, with->named);
    return 1;
}

static int check_claimed(const msgl_adapting *a, const msgl_tensor *t)
{
    for (size_t i = 0; i < MSGL_COUNT(PACKED) && t->packing.form == NULL && !t->is_side; i++) {
        if (!msgl__ends_with(t->name, PACKED[i])) continue;
        return msgl__adapt_error(a, t,
                                 t->loadable ? "codes as integers, of HQQ with view_as_float false"
                                             : a->c->format->types);
    }
    return 0;
}

int msgl__adapt(msgl_checkpoint *c, const msgl_quantization *q, msgl_err *err)
{
    msgl_adapting a = {.c = c, .q = q, .err = err};
    int code = 0;
    for (size_t i = 0; i < c->tensors.count && code >= 0; i++) {
        code = 0;
        a.t = &c->tensors.at[i];
        for (size_t k = 0; k < MSGL_COUNT(ADAPTERS) && code == 0; k++) {
            code = claim(&a, ADAPTERS[k]);
        }
        if (code == 0) code = check_claimed(&a, a.t);
    }
    for (size_t i = 0; i < c->tensors.count; i++) {
        msgl_tensor *t = &c->tensors.at[i];
        if (t->label == NULL) continue;
        char *name = t->label;
        t->label = t->name;
        t->name = name;
    }
    return code < 0 ? code : msgl__checkpoint_sort(c, err);
}
