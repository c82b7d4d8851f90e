// SPDX-License-Identifier: Apache-2.0
#include "models/dummy_checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/adapters.h"
#include "models/dummy_bytes.h"
#include "models/dummy_scheme.h"
#include "utils/file.h"

enum { PATH_BYTES = 4096, MOST_PARTS = 5 }; // tensors that a module's weight becomes

// Bytes that tensors of equal content and size share: a mapped file of the checkpoint.
typedef struct area {
    msgl_dummy_content what;
    size_t bytes;
    uint8_t *data;
} area;

typedef struct making {
    const msgl_weight_plan *p;
    const msgl_dummy_scheme *s;
    msgl_checkpoint *c;
    int32_t layers;
    const msgl_weight *embed, *head; // the same where they are tied
    const msgl_weight **exact;       // [num_exact]
    size_t num_exact;
    const msgl_wanted *w; // whose tensors are made
    char module[MSGL_TENSOR_NAME];
    char path[PATH_BYTES]; // config.json, for messages
    float *normals;
    area *areas; // [c->num_files]
    msgl_err *err;
    int status; // first failure
} making;

static const struct {
    const char *name;
    size_t bytes;
} TYPES[] = {{"I64", 8},  {"I32", 4}, {"F32", 4},     {"F16", 2},
             {"BF16", 2}, {"I8", 1},  {"F8_E4M3", 1}, {"U8", 1}};

static const char *type_of(msgl_number number)
{
    switch (number) {
    case MSGL_NUMBER_F32: return "F32";
    case MSGL_NUMBER_F16: return "F16";
    case MSGL_NUMBER_BF16: return "BF16";
    case MSGL_NUMBER_E4M3: return "F8_E4M3";
    case MSGL_NUMBER_I8: return "I8";
    default: return "U8";
    }
}

static void fail(making *m, int code, const char *text)
{
    if (m->status == 0) m->status = msgl__err_set(m->err, code, "%s", text);
}

// ---- bytes ----

static void add_area(making *m, const msgl_dummy_content *what, size_t bytes)
{
    area *grown = msgl__reallocarray(m->areas, (size_t)m->c->num_files + 1, sizeof *grown);
    if (grown == NULL) {
        fail(m, MSGL_ENOMEM, "model: out of memory");
        return;
    }
    m->areas = grown;
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
        fail(m, MSGL_ENOMEM, "model: out of memory");
        return;
    }
    m->status = msgl__checkpoint_take(m->c, m->path, data, bytes, m->err);
    if (m->status != 0) {
        munmap(data, bytes);
        return;
    }
    m->areas[m->c->num_files - 1] = (area){*what, bytes, data};
    msgl__dummy_bytes(what, m->normals, data, bytes);
}

// The index of the area with such bytes.
static int32_t area_of(making *m, const msgl_dummy_content *what, size_t bytes)
{
    for (int32_t i = 0; i < m->c->num_files; i++) {
        const area *a = &m->areas[i];
        if (a->bytes == bytes && msgl__dummy_content_equal(&a->what, what)) return i;
    }
    add_area(m, what, bytes);
    return m->c->num_files - 1;
}

// ---- tensors ----

static msgl_tensor *push(making *m, const char *suffix, const char *type, int32_t ndim,
                         const int64_t *dims)
{
    msgl_tensor_list *l = &m->c->tensors;
    const size_t size = strlen(m->module) + strlen(suffix) + 1;
    msgl_tensor *t = &l->at[l->count];
    *t = (msgl_tensor){.type = type, .ndim = ndim, .name = msgl__malloc(size)};
    if (t->name == NULL) {
        fail(m, MSGL_ENOMEM, "model: out of memory");
        return NULL;
    }
    snprintf(t->name, size, "%s%s", m->module, suffix);
    memcpy(t->dims, dims, (size_t)ndim * sizeof *dims);
    t->loadable = msgl__dtype_parse(type, &t->dtype) == 0 && strcmp(type, "I8") != 0;
    l->count++;
    return t;
}

// A tensor MODULE and `suffix` of the form, with its bytes.
static void put(making *m, const char *suffix, const char *type, const msgl_dummy_content *what,
                int32_t ndim, const int64_t *dims)
{
    size_t bytes = 0;
    for (size_t i = 0; i < MSGL_COUNT(TYPES); i++) {
        if (strcmp(TYPES[i].name, type) == 0) bytes = TYPES[i].bytes;
    }
    for (int32_t i = 0; i < ndim; i++) bytes *= (size_t)dims[i];
    if (m->status != 0 || bytes == 0) {
        fail(m, MSGL_EUNSUPPORTED, "model: a matrix is too small for its quantization_config");
        return;
    }
    const int32_t at = area_of(m, what, bytes);
    msgl_tensor *t = m->status == 0 ? push(m, suffix, type, ndim, dims) : NULL;
    if (t == NULL) return;
    t->file = at;
    t->data = m->areas[at].data;
    t->bytes = bytes;
}

// Scales of what has this deviation in units of them.
static void put_scales(making *m, const char *suffix, msgl_number number, float deviation,
                       int32_t ndim, const int64_t *dims)
{
    const msgl_dummy_content what = {
        .kind = MSGL_DUMMY_SCALES, .number = number, .mean = MSGL_DUMMY_DEVIATION / deviation};
    put(m, suffix, type_of(number), &what, ndim, dims);
}

// Of codes less their zero points, which are middle - 1, middle or middle + 1: variance 2 / 3.
static float deviation_of_codes(const msgl_dummy_scheme *s)
{
    const float codes = s->bits == 4 ? MSGL_DUMMY_CODES_4 : MSGL_DUMMY_CODES_8;
    return s->zeros ? sqrtf(codes * codes + 2 / 3.0f) : codes;
}

static int64_t groups_of(int64_t cols, int64_t group)
{
    return group < 1 ? 1 : (cols + group - 1) / group;
}

static void put_codes(making *m, const char *suffix, int64_t first, int64_t second)
{
    const msgl_dummy_content what = {.kind = MSGL_DUMMY_CODES, .bits = m->s->bits};
    put(m, suffix, "I32", &what, 2, (int64_t[]){first, second});
}

// Zero points in the codes' middle, or up to 1 beside it, less `less`.
static void put_zeros(making *m, const char *suffix, int32_t less, int64_t first, int64_t second)
{
    const int32_t middle = (1 << (m->s->bits - 1)) - less, beside = m->s->zeros ? 1 : 0;
    const msgl_dummy_content what = {.kind = MSGL_DUMMY_ZEROS,
                                     .bits = m->s->bits,
                                     .least = middle - beside,
                                     .most = middle + beside};
    put(m, suffix, "I32", &what, 2, (int64_t[]){first, second});
}

static void put_order(making *m, const char *suffix, int64_t cols)
{
    const int64_t group = m->s->group > 0 ? m->s->group : cols;
    const msgl_dummy_content what = {.kind = MSGL_DUMMY_ORDER, .cols = cols, .group = group};
    put(m, suffix, "I32", &what, 1, &cols);
}

// ---- forms (models/adapt_*.c) ----

static void make_awq(making *m, int64_t rows, int64_t cols)
{
    const int64_t groups = groups_of(cols, m->s->group);
    put_codes(m, ".qweight", cols, rows / 8);
    put_zeros(m, ".qzeros", 0, groups, rows / 8);
    put_scales(m, ".scales", MSGL_NUMBER_F16, deviation_of_codes(m->s), 2,
               (int64_t[]){groups, rows});
}

static void make_gptq(making *m, int64_t rows, int64_t cols)
{
    const int64_t groups = groups_of(cols, m->s->group), per_word = 32 / m->s->bits;
    const int32_t less = m->s->quantization.zeros == MSGL_ZEROS_PLAIN ? 0 : 1;
    put_codes(m, ".qweight", cols / per_word, rows);
    put_zeros(m, ".qzeros", less, groups, (rows + per_word - 1) / per_word);
    put_scales(m, ".scales", MSGL_NUMBER_F16, deviation_of_codes(m->s), 2,
               (int64_t[]){groups, rows});
    if (m->s->ordered) put_order(m, ".g_idx", cols);
}

static void make_packed(making *m, int64_t rows, int64_t cols)
{
    const int64_t groups = groups_of(cols, m->s->group), per_word = 32 / m->s->bits, two = 2;
    const msgl_dummy_content shape = {.kind = MSGL_DUMMY_SHAPE, .rows = rows, .cols = cols};
    put_codes(m, ".weight_packed", rows, (cols + per_word - 1) / per_word);
    put_scales(m, ".weight_scale", m->s->scale, deviation_of_codes(m->s), 2,
               (int64_t[]){rows, groups});
    put(m, ".weight_shape", "I64", &shape, 1, &two);
    if (m->s->zeros) {
        put_zeros(m, ".weight_zero_point", 0, (rows + per_word - 1) / per_word, groups);
    }
    if (m->s->ordered) put_order(m, ".weight_g_idx", cols);
}

static void put_numbers(making *m, msgl_number number, int64_t rows, int64_t cols)
{
    const msgl_dummy_content what = {.kind = MSGL_DUMMY_NUMBERS, .number = number};
    put(m, ".weight", type_of(number), &what, 2, (int64_t[]){rows, cols});
}

static void make_numeric(making *m, int64_t rows, int64_t cols)
{
    const msgl_dummy_scheme *s = m->s;
    const float deviation = s->number == MSGL_NUMBER_I8 ? MSGL_DUMMY_CODES_8 : MSGL_DUMMY_E4M3;
    const bool one = s->group == 0;
    const int64_t dims[2] = {one ? 1 : groups_of(rows, s->rows),
                             one ? 1 : groups_of(cols, s->group)};
    char suffix[32];
    put_numbers(m, s->number, rows, cols);
    snprintf(suffix, sizeof suffix, ".weight%s", s->scale_name);
    put_scales(m, suffix, s->scale, deviation, one ? 1 : 2, dims);
}

static void make_mxfp8(making *m, int64_t rows, int64_t cols)
{
    put_numbers(m, MSGL_NUMBER_E4M3, rows, cols);
    put_scales(m, ".weight_scale", MSGL_NUMBER_E8M0, MSGL_DUMMY_E4M3, 2,
               (int64_t[]){rows, cols / 32});
}

static void put_e2m1(making *m, const char *suffix, int32_t ndim, const int64_t *dims)
{
    const msgl_dummy_content what = {.kind = MSGL_DUMMY_E2M1};
    put(m, suffix, "U8", &what, ndim, dims);
}

static void make_mxfp4(making *m, int64_t rows, int64_t cols)
{
    put_e2m1(m, ".weight_packed", 2, (int64_t[]){rows, cols / 2});
    put_scales(m, ".weight_scale", MSGL_NUMBER_E8M0, MSGL_DUMMY_FP4, 2,
               (int64_t[]){rows, cols / 32});
}

// Scales of groups are some 100, which E4M3 has; the scale of all makes them as small as they are.
static void put_two_scales(making *m, const char *global, bool divides, int64_t rows, int64_t cols)
{
    const float group = 100, all = MSGL_DUMMY_DEVIATION / MSGL_DUMMY_FP4 / group;
    const int64_t one = 1;
    msgl_dummy_content what = {
        .kind = MSGL_DUMMY_SCALES, .number = MSGL_NUMBER_E4M3, .mean = group};
    put(m, ".weight_scale", "F8_E4M3", &what, 2, (int64_t[]){rows, cols / 16});
    what.number = MSGL_NUMBER_F32;
    what.mean = divides ? 1 / all : all;
    put(m, global, "F32", &what, 1, &one);
}

static void make_nvfp4(making *m, int64_t rows, int64_t cols)
{
    put_e2m1(m, ".weight_packed", 2, (int64_t[]){rows, cols / 2});
    put_two_scales(m, ".weight_global_scale", true, rows, cols);
}

static void make_modelopt(making *m, int64_t rows, int64_t cols)
{
    put_e2m1(m, ".weight", 2, (int64_t[]){rows, cols / 2});
    put_two_scales(m, ".weight_scale_2", false, rows, cols);
}

// X_blocks and X_scales of experts that are one tensor X.
static void make_experts(making *m, int64_t rows, int64_t cols)
{
    put_e2m1(m, "_blocks", 4, (int64_t[]){m->w->experts, rows, cols / 32, 16});
    put_scales(m, "_scales", MSGL_NUMBER_E8M0, MSGL_DUMMY_FP4, 3,
               (int64_t[]){m->w->experts, rows, cols / 32});
}

// Of "model.layers.7.mlp.down_proj" 7; of what is in no layer 0.
static int32_t layer_of(const char *module)
{
    const char *at = strstr(module, "layers.");
    return at != NULL ? (int32_t)strtol(at + strlen("layers."), NULL, 10) : 0;
}

// What GGUF files hold is called by the model's names once it is read.
static void make_ggml(making *m, int64_t rows, int64_t cols)
{
    const char *name = m->w->weight == m->head ? "lm_head" : m->module;
    const msgl_blocks *b =
        msgl__dummy_ggml_blocks(m->s->file_type, name, layer_of(name), m->layers);
    if (cols % b->elements != 0) {
        fail(m, MSGL_EUNSUPPORTED,
             "model: a row of a matrix has no whole blocks of its quantization_config's file_type");
        return;
    }
    const msgl_dummy_content what = {.kind = MSGL_DUMMY_BLOCKS, .blocks = b};
    const int64_t bytes[2] = {rows, cols / b->elements * b->bytes};
    put(m, ".weight", "U8", &what, 2, bytes);
    if (m->status != 0) return;
    msgl_tensor *t = &m->c->tensors.at[m->c->tensors.count - 1];
    t->type = b->name;
    t->dims[1] = cols;
    t->packing = (msgl_packing){.form = &msgl__stored_blocks, .blocks = b};
    t->loadable = true;
}

static void (*const MAKE[])(making *m, int64_t rows, int64_t cols) = {
    [MSGL_DUMMY_AWQ] = make_awq,         [MSGL_DUMMY_GPTQ] = make_gptq,
    [MSGL_DUMMY_PACKED] = make_packed,   [MSGL_DUMMY_NUMERIC] = make_numeric,
    [MSGL_DUMMY_MXFP8] = make_mxfp8,     [MSGL_DUMMY_MXFP4] = make_mxfp4,
    [MSGL_DUMMY_NVFP4] = make_nvfp4,     [MSGL_DUMMY_MODELOPT] = make_modelopt,
    [MSGL_DUMMY_EXPERTS] = make_experts, [MSGL_DUMMY_GGML] = make_ggml,
};

// ---- which tensors ----

// There are few of them, and very many others.
static bool collect_exact(making *m)
{
    m->exact = msgl__reallocarray(NULL, m->p->num_planned + 1, sizeof *m->exact);
    if (m->exact == NULL) return false;
    for (size_t i = 0; i < m->p->num_planned; i++) {
        if (m->p->planned[i].exact) m->exact[m->num_exact++] = m->p->planned[i].w;
    }
    return true;
}

static bool is_exact(const making *m, const msgl_weight *w)
{
    for (size_t i = 0; i < m->num_exact; i++) {
        if (m->exact[i] == w) return true;
    }
    return false;
}

// Linear layers but routers and the like, which decide.
static bool packs(const making *m)
{
    const msgl_wanted *w = m->w;
    const bool ggml = m->s->layout == MSGL_DUMMY_GGML;
    if (w->weight == NULL || w->router) return false;
    if (m->s->layout == MSGL_DUMMY_EXPERTS) return w->experts > 0;
    if (w->weight == m->embed && !ggml) return false;
    if (w->weight == m->head && !m->s->head) return false;
    if (msgl__dummy_scheme_skips(m->s, m->module)) return false;
    return !is_exact(m, w->weight);
}

// Behind the module's name; one tensor of many experts has none.
static const char WEIGHT[] = ".weight";

static void name_module(making *m)
{
    const size_t n = strlen(m->w->name), suffix = sizeof WEIGHT - 1;
    snprintf(m->module, sizeof m->module, "%s", m->w->name);
    if (n > suffix && strcmp(m->module + n - suffix, WEIGHT) == 0) m->module[n - suffix] = '\0';
}

static void make_plain(making *m)
{
    const msgl_tensor plain = {.loadable = true};
    int64_t dims[3];
    const int32_t ndim = msgl__wanted_shape(m->w, &plain, dims);
    snprintf(m->module, sizeof m->module, "%s", m->w->name);
    push(m, "", "BF16", ndim, dims);
}

static void make_one(making *m)
{
    const msgl_tensor packed = {.packing = {.form = &msgl__stored_blocks}};
    int64_t dims[3];
    name_module(m);
    if (!packs(m)) {
        make_plain(m);
        return;
    }
    const int32_t ndim = msgl__wanted_shape(m->w, &packed, dims);
    if (ndim == 3 && m->s->layout != MSGL_DUMMY_EXPERTS) {
        m->status = msgl__err_set(m->err, MSGL_EUNSUPPORTED,
                                  "%s: found experts in one tensor, %s, allowed quant_method mxfp4 "
                                  "alone with --dummy-weight",
                                  msgl__path_shown(m->path), m->w->name);
        return;
    }
    MAKE[m->s->layout](m, dims[ndim - 2], dims[ndim - 1]);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const msgl_wanted *const *)a)->name, (*(const msgl_wanted *const *)b)->name);
}

// Each of the plan's names once.
static void make_all(making *m)
{
    const size_t n = m->p->num_wanted;
    const msgl_wanted **sorted = msgl__reallocarray(NULL, n + 1, sizeof *sorted);
    if (sorted == NULL ||
        msgl__tensor_list_grow(&m->c->tensors, n * MOST_PARTS, "model", m->err) != 0) {
        fail(m, MSGL_ENOMEM, "model: out of memory");
        msgl__free(sorted);
        return;
    }
    for (size_t i = 0; i < n; i++) sorted[i] = &m->p->wanted[i];
    qsort(sorted, n, sizeof *sorted, by_name);
    for (size_t i = 0; i < n && m->status == 0; i++) {
        m->w = sorted[i];
        if (i == 0 || strcmp(sorted[i - 1]->name, m->w->name) != 0) make_one(m);
    }
    msgl__free(sorted);
}

static const msgl_checkpoint_format FORMAT = {.name = "random", .types = "F32, F16 or BF16"};

static int make(making *m, const char *dir)
{
    m->c = msgl__calloc(1, sizeof *m->c);
    m->normals = msgl__reallocarray(NULL, MSGL_DUMMY_NORMALS, sizeof *m->normals);
    if (m->c == NULL || m->normals == NULL || !collect_exact(m)) {
        return msgl__err_set(m->err, MSGL_ENOMEM, "model: out of memory");
    }
    m->c->format = &FORMAT;
    m->status = msgl__path_join(dir, "config.json", m->path, sizeof m->path, m->err);
    msgl__dummy_normals(m->normals);
    if (m->status == 0) make_all(m);
    if (m->status == 0) m->status = msgl__checkpoint_sort(m->c, m->err);
    if (m->status == 0) m->status = msgl__adapt(m->c, &m->s->quantization, m->err);
    return m->status;
}

int msgl__dummy_checkpoint(const msgl_weight_plan *p, const char *dir, int32_t layers,
                           const msgl_weight *embed, const msgl_weight *head, msgl_checkpoint **out,
                           msgl_err *err)
{
    msgl_dummy_scheme s;
    making m = {.p = p, .s = &s, .layers = layers, .embed = embed, .head = head, .err = err};
    *out = NULL;
    if (!p->formats.keeps || p->formats.kernels->keep == NULL) return 0;
    int code = msgl__dummy_scheme_load(dir, &s, err);
    if (code == 0 && s.layout != MSGL_DUMMY_PLAIN) {
        code = make(&m, dir);
        if (code == 0) *out = m.c;
        if (code != 0) msgl__checkpoint_close(m.c);
    }
    msgl__free(m.areas);
    msgl__free(m.exact);
    msgl__free(m.normals);
    msgl__dummy_scheme_free(&s);
    return code;
}
