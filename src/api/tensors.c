// SPDX-License-Identifier: Apache-2.0
#include "api/tensors.h"

#include <inttypes.h>
#include <string.h>

#include "api/fields.h"
#include "api/json.h"
#include "core/admin.h"
#include "core/dtype.h"
#include "core/mem.h"
#include "utils/base64.h"

enum { MAX_TENSORS = 1 << 16, MAX_DIMS = 8 };

// One of the array, read.
typedef struct tensor {
    const char *name, *dtype, *data;
    size_t len; // of data
    json_t *shape;
    msgl_dtype type;
    size_t bytes; // that its shape and dtype need
} tensor;

// PyTorch's names and the format's own, which models/safetensors.c reads the second of.
static const struct {
    const char *name, *type;
    msgl_dtype dtype;
} DTYPES[] = {
    {"float32", "F32", MSGL_F32}, {"float16", "F16", MSGL_F16}, {"bfloat16", "BF16", MSGL_BF16},
    {"F32", "F32", MSGL_F32},     {"F16", "F16", MSGL_F16},     {"BF16", "BF16", MSGL_BF16},
};

static int bad_of(const char *field, size_t index, const char *what, msgl_api_error *e)
{
    return msgl__api_fail(e, 400, field, "invalid_value", "'%s[%zu]' %s.", field, index, what);
}

static int bad(size_t index, const char *what, msgl_api_error *e)
{
    return bad_of("named_tensors", index, what, e);
}

// Of PyTorch's name of a type, with or without "torch.", or the format's. False: it is no other.
static bool read_dtype(const char *name, tensor *t)
{
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (size_t i = 0; i < sizeof DTYPES / sizeof DTYPES[0]; i++) {
        if (strcmp(name, DTYPES[i].name) != 0) continue;
        t->dtype = DTYPES[i].type;
        t->type = DTYPES[i].dtype;
        return true;
    }
    return false;
}

// The product of the shape's dimensions times `bytes`. False: it is none, or too large.
static bool shape_bytes(const json_t *shape, size_t bytes, size_t *out)
{
    size_t i;
    const json_t *d;
    *out = bytes;
    if (!json_is_array(shape) || json_array_size(shape) > MAX_DIMS) return false;
    json_array_foreach(shape, i, d)
    {
        if (!json_is_integer(d) || json_integer_value(d) < 0 ||
            msgl__size_mul(*out, (size_t)json_integer_value(d), out) != 0) {
            return false;
        }
    }
    return true;
}

static int read_tensor(const json_t *o, size_t index, tensor *t, msgl_api_error *e)
{
    const json_t *data = json_object_get(o, "data");
    *t = (tensor){.name = json_string_value(json_object_get(o, "name")),
                  .data = json_string_value(data),
                  .len = json_string_length(data),
                  .shape = json_object_get(o, "shape")};
    const char *dtype = json_string_value(json_object_get(o, "dtype"));
    if (t->name == NULL || t->name[0] == '\0' || t->data == NULL || dtype == NULL) {
        return bad(index, "is not an object with 'name', 'dtype', 'shape' and 'data' (base64)", e);
    }
    if (!read_dtype(dtype, t)) {
        return bad(index, "has a 'dtype' that is not float32, float16 or bfloat16", e);
    }
    if (!shape_bytes(t->shape, msgl__dtype_size(t->type), &t->bytes)) {
        return bad(index, "has a 'shape' that is not an array of up to 8 integers of 0 or more", e);
    }
    return 0;
}

// Appends the bytes of a base64 text. MSGL_EINVAL: it is none; MSGL_ENOMEM, MSGL_ELIMIT.
static int put_decoded(const char *text, size_t len, msgl_strbuf *out)
{
    const int rc = msgl__strbuf_reserve(out, len / 4 * 3 + 2);
    if (rc != 0) return rc;
    const size_t n = msgl__base64_decode(text, len, (unsigned char *)out->data + out->len);
    if (n == SIZE_MAX) return MSGL_EINVAL;
    out->len += n;
    out->data[out->len] = '\0';
    return 0;
}

// "NAME":{"dtype":...,"shape":[...],"data_offsets":[at, at + bytes]}
static int put_entry(const tensor *t, size_t at, msgl_strbuf *out)
{
    size_t i;
    const json_t *d;
    int rc = msgl__json_put_str(out, t->name, strlen(t->name));
    if (rc == 0) rc = msgl__strbuf_addf(out, ":{\"dtype\":\"%s\",\"shape\":[", t->dtype);
    json_array_foreach(t->shape, i, d)
    {
        if (rc != 0) break;
        rc = msgl__strbuf_addf(out, "%s%" JSON_INTEGER_FORMAT, i == 0 ? "" : ",",
                               json_integer_value(d));
    }
    return rc == 0 ? msgl__strbuf_addf(out, "],\"data_offsets\":[%zu,%zu]}", at, at + t->bytes)
                   : rc;
}

static int memory(int rc, msgl_api_error *e)
{
    return rc == 0 ? 0 : msgl__api_oom(e);
}

typedef int (*read_fn)(const json_t *list, size_t i, tensor *t, msgl_api_error *e);

static int read_named(const json_t *list, size_t i, tensor *t, msgl_api_error *e)
{
    return read_tensor(json_array_get(list, i), i, t, e);
}

// The header: its length, and the entries of all `num` tensors, which `read` finds in `list`.
static int put_header(const json_t *list, size_t num, read_fn read, msgl_strbuf *out,
                      msgl_api_error *e)
{
    const size_t begin = out->len;
    size_t at = 0;
    int rc = memory(msgl__strbuf_add(out, "\0\0\0\0\0\0\0\0{", 9), e);
    for (size_t i = 0; i < num; i++) {
        tensor t;
        if (rc == 0) rc = read(list, i, &t, e);
        if (rc != 0) return rc;
        if (i > 0) rc = memory(msgl__strbuf_addc(out, ','), e);
        if (rc == 0) rc = memory(put_entry(&t, at, out), e);
        if (msgl__size_add(at, t.bytes, &at) != 0) return bad(i, "is too large", e);
    }
    if (rc == 0) rc = memory(msgl__strbuf_addc(out, '}'), e);
    if (rc != 0) return rc;
    const uint64_t header = out->len - begin - 8;
    for (int b = 0; b < 8; b++) out->data[begin + (size_t)b] = (char)(header >> (8 * b) & 0xff);
    return 0;
}

static int put_list(const json_t *list, msgl_strbuf *out, msgl_api_error *e)
{
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > MAX_TENSORS) {
        return msgl__field_bad(e, "named_tensors", "must be an array of 1 to 65536 tensors");
    }
    int rc = put_header(list, json_array_size(list), read_named, out, e);
    size_t i;
    const json_t *o;
    json_array_foreach(list, i, o)
    {
        tensor t;
        if (rc == 0) rc = read_tensor(o, i, &t, e);
        if (rc != 0) return rc;
        const size_t before = out->len;
        const int decoded = put_decoded(t.data, t.len, out);
        if (decoded == MSGL_EINVAL) return bad(i, "has 'data' that is no base64", e);
        rc = memory(decoded, e);
        if (rc == 0 && out->len - before != t.bytes) {
            char what[128];
            (void)snprintf(what, sizeof what,
                           "has %zu bytes of 'data'; its 'shape' and 'dtype' need %zu",
                           out->len - before, t.bytes);
            return bad(i, what, e);
        }
    }
    return rc;
}

int msgl__tensors_file(const json_t *o, msgl_strbuf *out, msgl_api_error *e)
{
    const json_t *file = msgl__field(o, "safetensors"), *list = msgl__field(o, "named_tensors");
    if ((file == NULL) == (list == NULL)) {
        return msgl__api_fail(e, 400, "named_tensors", "invalid_value",
                              "'named_tensors' and 'safetensors' are %s; allowed: one of them.",
                              file == NULL ? "both missing" : "both given");
    }
    if (list != NULL) return put_list(list, out, e);
    if (!json_is_string(file)) return msgl__field_bad(e, "safetensors", "must be a string");
    const int rc = put_decoded(json_string_value(file), json_string_length(file), out);
    if (rc == MSGL_EINVAL) return msgl__field_bad(e, "safetensors", "must be a file in base64");
    return memory(rc, e);
}

// The i-th of the arrays `names`, `dtypes` and `shapes` of o.
static int read_part(const json_t *o, size_t i, tensor *t, msgl_api_error *e)
{
    const json_t *dtype = json_array_get(json_object_get(o, "dtypes"), i);
    *t = (tensor){.name = json_string_value(json_array_get(json_object_get(o, "names"), i)),
                  .shape = json_array_get(json_object_get(o, "shapes"), i)};
    if (t->name == NULL || t->name[0] == '\0') return bad_of("names", i, "is not a name", e);
    if (!json_is_string(dtype) || !read_dtype(json_string_value(dtype), t)) {
        return bad_of("dtypes", i, "is not float32, float16 or bfloat16", e);
    }
    if (shape_bytes(t->shape, msgl__dtype_size(t->type), &t->bytes)) return 0;
    return bad_of("shapes", i, "is not an array of up to 8 integers of 0 or more", e);
}

int msgl__tensors_parts(const json_t *o, msgl_strbuf *out, msgl_api_error *e)
{
    static const char *const fields[] = {"names", "dtypes", "shapes"};
    const uint64_t num = json_array_size(json_object_get(o, "names"));
    for (int i = 0; i < 3; i++) {
        const json_t *list = json_object_get(o, fields[i]);
        if (!json_is_array(list) || num < 1 || num > MAX_TENSORS || json_array_size(list) != num) {
            return msgl__field_bad(e, fields[i],
                                   "must be an array of 1 to 65536, as long as the others");
        }
    }
    int rc = memory(msgl__strbuf_add(out, &num, sizeof num), e);
    for (size_t i = 0; i < num && rc == 0; i++) {
        tensor t;
        rc = read_part(o, i, &t, e);
        if (rc != 0) break;
        const msgl_weight_part part = {.dtype = (uint64_t)t.type,
                                       .count = t.bytes / msgl__dtype_size(t.type)};
        rc = memory(msgl__strbuf_add(out, &part, sizeof part), e);
    }
    return rc == 0 ? put_header(o, num, read_part, out, e) : rc;
}
