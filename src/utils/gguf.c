// SPDX-License-Identifier: Apache-2.0
#include "utils/gguf.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "core/round.h"
#include "utils/file.h"
#include "utils/gguf_split.h"
#include "utils/json.h"
#include "utils/strbuf.h"
#include "utils/utf8.h"

// Far above any published file; the file's own size bounds the rest.
enum { MAX_VALUES = 1 << 16, MAX_TENSORS = 1 << 20, MAX_NAME = 127, MAX_KEY = 1024 };
enum { MAX_STRING = 16 << 20, MAX_JSON_ARRAY = 4096, MAX_SPLITS = 65535 };

// Bytes of a value of each type; 0: not of one size.
static const uint8_t SIZES[MSGL_GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

// Of the ggml types, by number. Where there are no bytes, there is no such type any more.
static const msgl_gguf_storage STORAGES[] = {
    {"F32", 1, 4},        {"F16", 1, 2},        {"Q4_0", 32, 18},     {"Q4_1", 32, 20},
    {"Q4_2", 0, 0},       {"Q4_3", 0, 0},       {"Q5_0", 32, 22},     {"Q5_1", 32, 24},
    {"Q8_0", 32, 34},     {"Q8_1", 32, 36},     {"Q2_K", 256, 84},    {"Q3_K", 256, 110},
    {"Q4_K", 256, 144},   {"Q5_K", 256, 176},   {"Q6_K", 256, 210},   {"Q8_K", 256, 292},
    {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74},  {"IQ3_XXS", 256, 98}, {"IQ1_S", 256, 50},
    {"IQ4_NL", 32, 18},   {"IQ3_S", 256, 110},  {"IQ2_S", 256, 82},   {"IQ4_XS", 256, 136},
    {"I8", 1, 1},         {"I16", 1, 2},        {"I32", 1, 4},        {"I64", 1, 8},
    {"F64", 1, 8},        {"IQ1_M", 256, 56},   {"BF16", 1, 2},       {"Q4_0_4_4", 0, 0},
    {"Q4_0_4_8", 0, 0},   {"Q4_0_8_8", 0, 0},   {"TQ1_0", 256, 54},   {"TQ2_0", 256, 66},
    {"IQ4_NL_4_4", 0, 0}, {"IQ4_NL_4_8", 0, 0}, {"IQ4_NL_8_8", 0, 0}, {"MXFP4", 32, 17},
    {"NVFP4", 64, 36},    {"Q1_0", 128, 18},    {"Q2_0", 64, 18},
};

// ---- reading bytes ----

// Where the reader is; the first failure stays, and everything read after it is 0.
typedef struct cursor {
    const uint8_t *begin, *p, *end;
    const char *file;
    msgl_err *err;
    int status;
} cursor;

static const uint8_t *take(cursor *c, size_t n)
{
    if (c->status == 0 && n > (size_t)(c->end - c->p)) {
        c->status = msgl__err_set(c->err, MSGL_EFORMAT,
                                  "%s: at byte %zu: found the end of the file, %zu bytes expected",
                                  c->file, (size_t)(c->p - c->begin), n);
    }
    if (c->status != 0) return NULL;
    c->p += n;
    return c->p - n;
}

static uint64_t load(const uint8_t *p, size_t n)
{
    uint64_t v = 0;
    for (size_t i = n; i-- > 0;) v = v << 8 | p[i];
    return v;
}

static uint64_t get(cursor *c, size_t n)
{
    const uint8_t *p = take(c, n);
    return p != NULL ? load(p, n) : 0;
}

static msgl_gguf_str get_string(cursor *c)
{
    const uint64_t n = get(c, 8);
    const uint8_t *p = take(c, n);
    return (msgl_gguf_str){(const char *)p, p != NULL ? n : 0};
}

// A string that stands in messages: short, printable ASCII without spaces.
static msgl_gguf_str get_name(cursor *c, const char *what, size_t most)
{
    const size_t at = (size_t)(c->p - c->begin);
    const msgl_gguf_str s = get_string(c);
    if (c->status != 0) return s;
    size_t i = 0;
    while (i < s.n && s.n <= most && s.p[i] > 0x20 && s.p[i] < 0x7f) i++;
    if (s.n == 0 || i < s.n) {
        c->status = msgl__err_set(c->err, MSGL_EFORMAT,
                                  "%s: at byte %zu: %s: found %zu bytes, allowed 1 to %zu of "
                                  "printable ASCII",
                                  c->file, at, what, s.n, most);
    }
    return s;
}

// ---- values ----

static void reject_value(cursor *c, const msgl_gguf_value *v, int code, const char *what,
                         uint64_t found, uint64_t allowed)
{
    if (c->status != 0) return;
    c->status = msgl__err_set(c->err, code, "%s: %.*s: %s: found %llu, allowed up to %llu", c->file,
                              (int)v->key.n, v->key.p, what, (unsigned long long)found,
                              (unsigned long long)allowed);
}

static msgl_gguf_type get_type(cursor *c, const msgl_gguf_value *v)
{
    const uint64_t t = get(c, 4);
    if (t < MSGL_GGUF_TYPES) return (msgl_gguf_type)t;
    reject_value(c, v, MSGL_EFORMAT, "type", t, MSGL_GGUF_TYPES - 1);
    return MSGL_GGUF_U8;
}

static void get_value(cursor *c, msgl_gguf_value *v)
{
    *v = (msgl_gguf_value){.key = get_name(c, "key", MAX_KEY), .count = 1};
    v->type = get_type(c, v);
    if (v->type == MSGL_GGUF_ARRAY) {
        v->array = true;
        v->type = get_type(c, v);
        v->count = get(c, 8);
        if (v->type == MSGL_GGUF_ARRAY) {
            reject_value(c, v, MSGL_EUNSUPPORTED, "arrays inside the array", v->count, 0);
        }
    }
    if (c->status != 0) return;
    // An element takes a byte or more, a string eight: a larger count cannot be in this file.
    const size_t left = (size_t)(c->end - c->p), size = SIZES[v->type], least = size ? size : 8;
    if (v->count > left / least) {
        reject_value(c, v, MSGL_EFORMAT, "elements", v->count, left / least);
        return;
    }
    v->data = c->p;
    if (size > 0) {
        take(c, v->count * size);
        return;
    }
    for (size_t i = 0; i < v->count && c->status == 0; i++) {
        const size_t n = get_string(c).n;
        if (n > MAX_STRING) reject_value(c, v, MSGL_ELIMIT, "bytes of a string", n, MAX_STRING);
    }
}

static int compare(const char *a, size_t n, const char *b, size_t m)
{
    const int order = memcmp(a, b, n < m ? n : m);
    return order != 0 ? order : n < m ? -1 : n > m;
}

static int by_key(const void *a, const void *b)
{
    const msgl_gguf_str x = ((const msgl_gguf_value *)a)->key;
    const msgl_gguf_str y = ((const msgl_gguf_value *)b)->key;
    return compare(x.p, x.n, y.p, y.n);
}

static int get_values(cursor *c, msgl_gguf *g, size_t n)
{
    g->values = msgl__calloc(n, sizeof *g->values);
    if (g->values == NULL) return msgl__err_set(c->err, MSGL_ENOMEM, "%s: out of memory", c->file);
    for (; g->num_values < n && c->status == 0; g->num_values++) {
        get_value(c, &g->values[g->num_values]);
    }
    if (c->status != 0) return c->status;
    if (n > 1) qsort(g->values, n, sizeof *g->values, by_key);
    for (size_t i = 1; i < n; i++) {
        const msgl_gguf_str k = g->values[i].key;
        if (by_key(&g->values[i - 1], &g->values[i]) != 0) continue;
        return msgl__err_set(c->err, MSGL_EFORMAT, "%s: %.*s: found twice", c->file, (int)k.n, k.p);
    }
    return 0;
}

const msgl_gguf_value *msgl__gguf_get(const msgl_gguf *g, const char *key)
{
    const msgl_gguf_value k = {.key = {key, strlen(key)}};
    if (g->num_values == 0) return NULL;
    return bsearch(&k, g->values, g->num_values, sizeof k, by_key);
}

// ---- tensors ----

static int tensor_error(const cursor *c, const msgl_gguf_tensor *t, int code, const char *what,
                        uint64_t found, const char *allowed)
{
    return msgl__err_set(c->err, code, "%s: tensor %.*s: %s: found %llu, allowed %s", c->file,
                         (int)t->name.n, t->name.p, what, (unsigned long long)found, allowed);
}

// Name, shape and type; *offset is not checked yet.
static int get_tensor(cursor *c, msgl_gguf_tensor *t, uint64_t *offset)
{
    *t = (msgl_gguf_tensor){.name = get_name(c, "tensor name", MAX_NAME)};
    const uint64_t ndim = get(c, 4);
    if (c->status == 0 && ndim > MSGL_GGUF_MAX_DIMS) {
        return tensor_error(c, t, MSGL_EFORMAT, "dimensions", ndim, "up to 4");
    }
    size_t count = 1;
    for (t->ndim = 0; t->ndim < (int32_t)ndim && c->status == 0; t->ndim++) {
        const uint64_t d = get(c, 8);
        if (d > INT64_MAX || msgl__size_mul(count, d, &count) != 0) {
            return tensor_error(c, t, MSGL_EFORMAT, "dimension", d, "a product below 2^64");
        }
        t->dims[t->ndim] = (int64_t)d;
    }
    const uint64_t type = get(c, 4);
    *offset = get(c, 8);
    if (c->status != 0) return c->status;
    if (type >= MSGL_COUNT(STORAGES)) {
        return tensor_error(c, t, MSGL_EUNSUPPORTED, "type", type, "a type of ggml");
    }
    if (STORAGES[type].bytes == 0) {
        return msgl__err_set(c->err, MSGL_EUNSUPPORTED,
                             "%s: tensor %.*s: type: found %llu (%s), which ggml has removed: the "
                             "file has to be made again",
                             c->file, (int)t->name.n, t->name.p, (unsigned long long)type,
                             STORAGES[type].name);
    }
    t->storage = &STORAGES[type];
    const uint64_t row = t->ndim > 0 ? (uint64_t)t->dims[0] : 1;
    if (row % t->storage->block != 0) {
        return tensor_error(c, t, MSGL_EFORMAT, "first dimension", row,
                            "a multiple of its type's block");
    }
    if (msgl__size_mul(count / t->storage->block, t->storage->bytes, &t->bytes) != 0) {
        return tensor_error(c, t, MSGL_EFORMAT, "elements", count, "fewer");
    }
    return 0;
}

static int get_alignment(const cursor *c, const msgl_gguf *g, size_t *alignment)
{
    const msgl_gguf_value *v = msgl__gguf_get(g, "general.alignment");
    *alignment = 32;
    if (v == NULL) return 0;
    const uint64_t a = v->type == MSGL_GGUF_U32 && !v->array ? load(v->data, 4) : 0;
    if (a == 0 || (a & (a - 1)) != 0) {
        return msgl__err_set(c->err, MSGL_EFORMAT,
                             "%s: general.alignment: found %llu, allowed a power of 2 as u32",
                             c->file, (unsigned long long)a);
    }
    *alignment = a;
    return 0;
}

// Tensors follow each other in the order of the list, each aligned, as ggml demands too.
static int place_tensors(const cursor *c, msgl_gguf *g, const uint64_t *offsets, size_t alignment)
{
    const size_t size = (size_t)(c->end - c->begin);
    const size_t start = msgl__round_up((size_t)(c->p - c->begin), alignment);
    size_t at = 0; // of the next tensor, in the data
    for (size_t i = 0; i < g->num_tensors; i++) {
        msgl_gguf_tensor *t = &g->tensors[i];
        if (offsets[i] != at) {
            char allowed[32];
            snprintf(allowed, sizeof allowed, "%zu", at);
            return tensor_error(c, t, MSGL_EFORMAT, "offset", offsets[i], allowed);
        }
        if (start > size || at > size - start || t->bytes > size - start - at) {
            return tensor_error(c, t, MSGL_EFORMAT, "bytes", t->bytes, "what the file has left");
        }
        t->data = c->begin + start + at;
        at = msgl__round_up(at + t->bytes, alignment); // inside the file, and a u32 of padding
    }
    return 0;
}

static int get_tensors(cursor *c, msgl_gguf *g, size_t n)
{
    size_t alignment;
    int code = get_alignment(c, g, &alignment);
    if (code != 0) return code;
    uint64_t *offsets = msgl__calloc(n, sizeof *offsets);
    g->tensors = msgl__calloc(n, sizeof *g->tensors);
    if (g->tensors == NULL || offsets == NULL) {
        code = msgl__err_set(c->err, MSGL_ENOMEM, "%s: out of memory", c->file);
    }
    for (; g->num_tensors < n && code == 0; g->num_tensors++) {
        code = get_tensor(c, &g->tensors[g->num_tensors], &offsets[g->num_tensors]);
    }
    if (code == 0) code = place_tensors(c, g, offsets, alignment);
    msgl__free(offsets);
    return code;
}

const msgl_gguf_tensor *msgl__gguf_tensor_named(const msgl_gguf *g, const char *name)
{
    for (size_t i = 0; i < g->num_tensors; i++) {
        const msgl_gguf_str s = g->tensors[i].name;
        if (compare(s.p, s.n, name, strlen(name)) == 0) return &g->tensors[i];
    }
    return NULL;
}

// ---- the file ----

static int check_version(const cursor *c, uint64_t version)
{
    if (version == 2 || version == 3) return 0;
    const bool swapped = (version & 0xffff) == 0;
    return msgl__err_set(c->err, MSGL_EUNSUPPORTED, "%s: version: found %llu%s, allowed 2 or 3",
                         c->file, (unsigned long long)(swapped ? version >> 24 : version),
                         swapped ? " in big-endian" : "");
}

// A whole number from 0 to `most`, which the key must have.
static int get_whole(const cursor *c, const msgl_gguf *g, const char *key, uint64_t most,
                     uint64_t *out)
{
    const msgl_gguf_value *v = msgl__gguf_get(g, key);
    const bool whole = v != NULL && !v->array && SIZES[v->type] > 0 && v->type != MSGL_GGUF_BOOL &&
                       v->type != MSGL_GGUF_F32 && v->type != MSGL_GGUF_F64;
    *out = whole ? load(v->data, SIZES[v->type]) : 0;
    if (whole && *out <= most) return 0; // less than nothing is far above
    return msgl__err_set(c->err, MSGL_EFORMAT, "%s: %s: found %s, allowed 0 to %llu", c->file, key,
                         v == NULL ? "none"
                         : whole   ? "another number"
                                   : "no whole number",
                         (unsigned long long)most);
}

// What the file says of the others that it belongs to.
static int get_split(const cursor *c, msgl_gguf *g)
{
    uint64_t count, no;
    g->split = (msgl_gguf_split){.count = 1};
    if (msgl__gguf_get(g, "split.count") == NULL) return 0;
    int code = get_whole(c, g, "split.count", MAX_SPLITS, &count);
    if (code != 0 || count <= 1) return code;
    code = get_whole(c, g, "split.no", count - 1, &no);
    if (code == 0) {
        code = get_whole(c, g, "split.tensors.count", (uint64_t)MAX_TENSORS, &g->split.tensors);
    }
    if (code != 0) return code;
    g->split.count = (uint32_t)count;
    g->split.no = (uint32_t)no;
    return 0;
}

int msgl__gguf_parse(const uint8_t *bytes, size_t size, const char *file, msgl_gguf *out,
                     msgl_err *err)
{
    *out = (msgl_gguf){.file = file, .size = size};
    cursor c = {.begin = bytes, .p = bytes, .end = bytes + size, .file = file, .err = err};
    if (size < 4 || memcmp(bytes, "GGUF", 4) != 0) {
        return msgl__err_set(err, MSGL_EFORMAT, "%s: not a GGUF file: the first bytes are not GGUF",
                             file);
    }
    c.p += 4;
    const uint64_t version = get(&c, 4), tensors = get(&c, 8), values = get(&c, 8);
    int code = c.status != 0 ? c.status : check_version(&c, version);
    if (code != 0) return code;
    if (tensors > MAX_TENSORS || values > MAX_VALUES) {
        return msgl__err_set(
            err, MSGL_ELIMIT, "%s: found %llu tensors and %llu values, allowed %d and %d", file,
            (unsigned long long)tensors, (unsigned long long)values, MAX_TENSORS, MAX_VALUES);
    }
    code = get_values(&c, out, values);
    if (code == 0) code = get_split(&c, out);
    if (code == 0) code = get_tensors(&c, out, tensors);
    return code;
}

int msgl__gguf_open(const char *path, msgl_gguf *out, msgl_err *err)
{
    void *map;
    size_t size;
    *out = (msgl_gguf){0};
    int code = msgl__file_map(path, &map, &size, err);
    if (code != 0) return code;
    code = msgl__gguf_parse(map, size, msgl__path_tail(path), out, err);
    out->map = map;
    if (code != 0) msgl__gguf_close(out);
    return code;
}

void msgl__gguf_close(msgl_gguf *g)
{
    if (g->map != NULL) munmap(g->map, g->size);
    msgl__free(g->values);
    msgl__free(g->tensors);
    *g = (msgl_gguf){0};
}

// The models of a folder: how many, and one of them, or else a split whose first is missing.
static int find_in(const char *folder, char *path, size_t size, msgl_err *err)
{
    int found = 0, n = 0;
    msgl_gguf_split_name split;
    char name[256] = "";
    DIR *d = opendir(folder);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (msgl__ends_with(e->d_name, ".safetensors")) {
            found = 0;
            name[0] = '\0';
            break;
        }
        const bool model = msgl__gguf_is_model(e->d_name);
        if (!model && (found > 0 || !msgl__gguf_split_of(e->d_name, &split))) continue;
        if (found == 0) snprintf(name, sizeof name, "%s", e->d_name);
        found += model;
    }
    if (d != NULL) closedir(d);
    if (name[0] != '\0') n = snprintf(path, size, "%s/%s", folder, name);
    if (found > 1) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "%s: found %d .gguf files, allowed one: give the path of the file",
                             msgl__path_shown(folder), found);
    }
    if (n < 0 || (size_t)n >= size) {
        return msgl__err_set(err, MSGL_EINVAL, "model: the path is too long");
    }
    return name[0] != '\0';
}

int msgl__gguf_find(const char *model, char *path, size_t size, msgl_err *err)
{
    struct stat st;
    char named[4096];
    if (stat(model, &st) != 0) return 0;
    int found = S_ISREG(st.st_mode);
    if (S_ISDIR(st.st_mode)) found = find_in(model, named, sizeof named, err);
    if (found <= 0) return found;
    const int code = msgl__gguf_first_split(S_ISREG(st.st_mode) ? model : named, path, size, err);
    return code != 0 ? code : 1;
}

// ---- what the values are ----

int msgl__gguf_array(const msgl_gguf *g, const char *key, msgl_gguf_type type,
                     const msgl_gguf_value **out, msgl_err *err)
{
    static const char *const NAMES[MSGL_GGUF_TYPES] = {"u8",  "i8",  "u16",   "i16",     "u32",
                                                       "i32", "f32", "bools", "strings", "arrays",
                                                       "u64", "i64", "f64"};
    const msgl_gguf_value *v = *out = msgl__gguf_get(g, key);
    if (v == NULL || (v->array && v->type == type)) return 0;
    *out = NULL;
    return msgl__err_set(err, MSGL_EFORMAT, "%s: found %s of %s, allowed a list of %s", key,
                         v->array ? "a list" : "a value", NAMES[v->type], NAMES[type]);
}

int32_t msgl__gguf_i32(const msgl_gguf_value *v, size_t i)
{
    return (int32_t)(uint32_t)load(v->data + 4 * i, 4);
}

float msgl__gguf_f32(const msgl_gguf_value *v, size_t i)
{
    const uint32_t bits = (uint32_t)load(v->data + 4 * i, 4);
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

msgl_gguf_str msgl__gguf_next(const msgl_gguf_value *v, size_t *at)
{
    const uint8_t *p = v->data + *at;
    const size_t n = load(p, 8);
    *at += 8 + n;
    return (msgl_gguf_str){(const char *)p + 8, n};
}

static json_t *real(double d)
{
    return json_real(isfinite(d) ? d : signbit(d) ? -MSGL_JSON_BEYOND : MSGL_JSON_BEYOND);
}

// Element i of a value of a type of fixed size.
static json_t *number(const msgl_gguf_value *v, size_t i)
{
    const size_t size = SIZES[v->type];
    const uint64_t u = load(v->data + i * size, size);
    double d;
    switch (v->type) {
    case MSGL_GGUF_I8: return json_integer((int8_t)u);
    case MSGL_GGUF_I16: return json_integer((int16_t)u);
    case MSGL_GGUF_I32: return json_integer((int32_t)u);
    case MSGL_GGUF_BOOL: return json_boolean(u != 0);
    case MSGL_GGUF_F32: return real((double)msgl__gguf_f32(v, i));
    case MSGL_GGUF_F64: memcpy(&d, &u, sizeof d); return real(d);
    case MSGL_GGUF_U64: return u > INT64_MAX ? real((double)u) : json_integer((json_int_t)u);
    default: return json_integer((json_int_t)u);
    }
}

// Whether what the value has of text is UTF-8.
static bool is_text(const msgl_gguf_value *v)
{
    size_t at = 0;
    if (v->type != MSGL_GGUF_STRING) return true;
    const msgl_gguf_str s = msgl__gguf_next(v, &at);
    return msgl__utf8_valid(s.p, s.n) == s.n;
}

// NULL: out of memory, or text that is not UTF-8.
static json_t *to_json(const msgl_gguf_value *v)
{
    if (v->type == MSGL_GGUF_STRING) {
        size_t at = 0;
        const msgl_gguf_str s = msgl__gguf_next(v, &at);
        return json_stringn(s.p, s.n);
    }
    if (!v->array) return number(v, 0);
    json_t *list = json_array();
    for (size_t i = 0; i < v->count && list != NULL; i++) {
        if (json_array_append_new(list, number(v, i)) == 0) continue;
        json_decref(list);
        list = NULL;
    }
    return list;
}

int msgl__gguf_metadata(const msgl_gguf *g, json_t **out, msgl_err *err)
{
    *out = json_object();
    for (size_t i = 0; i < g->num_values; i++) {
        const msgl_gguf_value *v = &g->values[i];
        char key[MAX_KEY + 1];
        if (v->array && (v->type == MSGL_GGUF_STRING || v->count > MAX_JSON_ARRAY)) continue;
        memcpy(key, v->key.p, v->key.n);
        key[v->key.n] = '\0';
        if (json_object_set_new_nocheck(*out, key, to_json(v)) == 0) continue;
        json_decref(*out);
        *out = NULL;
        if (is_text(v)) {
            return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", g->file);
        }
        return msgl__err_set(err, MSGL_EFORMAT, "%s: %s: not valid UTF-8", g->file, key);
    }
    return *out != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", g->file);
}
