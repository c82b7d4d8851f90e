// SPDX-License-Identifier: Apache-2.0
#include "models/safetensors.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/adapters.h"
#include "models/config.h"
#include "models/formats.h"
#include "models/json_read.h"
#include "utils/file.h"
#include "utils/json.h"

// The format's own bound on the header.
static const size_t MAX_HEADER = 100u << 20;
enum { PATH_BYTES = 4096, MAX_SHARDS = 4096, INDEX_MAX_BYTES = 128 << 20 };

typedef struct dtype_info {
    const char *name;
    int bits;
} dtype_info;

// All dtypes of the format. Only floats of 16 and 32 bits can become weights by themselves; the
// others may occur as tensors that nothing asks for.
static const dtype_info DTYPES[] = {
    {"F32", 32}, {"F16", 16}, {"BF16", 16},   {"F64", 64},    {"I64", 64},
    {"I32", 32}, {"I16", 16}, {"I8", 8},      {"U64", 64},    {"U32", 32},
    {"U16", 16}, {"U8", 8},   {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E8M0", 8},
};

// What an entry of the header is being checked against.
typedef struct entry_ctx {
    const char *file, *name; // name printable
    size_t data_size;
    msgl_err *err;
} entry_ctx;

static int entry_error(const entry_ctx *c, const char *what, const json_t *found,
                       const char *allowed)
{
    char show[64];
    return msgl__err_set(c->err, MSGL_EFORMAT, "%s: tensor %s: %s: found %s, allowed %s", c->file,
                         c->name, what, msgl__json_show(found, show, sizeof show), allowed);
}

static int parse_dtype(const entry_ctx *c, const json_t *v, msgl_tensor *t, int *bits)
{
    for (size_t i = 0; json_is_string(v) && i < MSGL_COUNT(DTYPES); i++) {
        if (strcmp(json_string_value(v), DTYPES[i].name) != 0) continue;
        *bits = DTYPES[i].bits;
        t->type = DTYPES[i].name;
        t->loadable = i < 3 && msgl__dtype_parse(DTYPES[i].name, &t->dtype) == 0;
        return 0;
    }
    return entry_error(c, "dtype", v, "a dtype of the safetensors format");
}

// Fills ndim and dims; *count is their product.
static int parse_shape(const entry_ctx *c, const json_t *v, msgl_tensor *t, size_t *count)
{
    if (!json_is_array(v) || json_array_size(v) > MSGL_TENSOR_MAX_DIMS) {
        return entry_error(c, "shape", v, "a list of up to 8");
    }
    t->ndim = (int32_t)json_array_size(v);
    *count = 1;
    for (int32_t i = 0; i < t->ndim; i++) {
        const json_t *d = json_array_get(v, (size_t)i);
        if (!json_is_integer(d) || json_integer_value(d) < 0) {
            return entry_error(c, "shape", d, "integers of 0 or more");
        }
        t->dims[i] = json_integer_value(d);
        if (msgl__size_mul(*count, (size_t)t->dims[i], count) != 0) {
            return entry_error(c, "shape", v, "a product below 2^64");
        }
    }
    return 0;
}

static int parse_offsets(const entry_ctx *c, const json_t *v, size_t *begin, size_t *end)
{
    const json_t *b = json_array_get(v, 0), *e = json_array_get(v, 1);
    if (json_array_size(v) != 2) return entry_error(c, "data_offsets", v, "two integers");
    if (!json_is_integer(b) || !json_is_integer(e)) {
        return entry_error(c, "data_offsets", json_is_integer(b) ? e : b, "two integers");
    }
    const json_int_t from = json_integer_value(b), to = json_integer_value(e);
    if (from < 0 || to < from || (uint64_t)to > c->data_size) {
        return msgl__err_set(c->err, MSGL_EFORMAT,
                             "%s: tensor %s: data_offsets: found [%lld, %lld], the file has %zu "
                             "bytes of data",
                             c->file, c->name, (long long)from, (long long)to, c->data_size);
    }
    *begin = (size_t)from;
    *end = (size_t)to;
    return 0;
}

static int parse_entry(const entry_ctx *c, const json_t *v, const uint8_t *data, msgl_tensor *t)
{
    size_t count = 0, begin = 0, end = 0, size_bits;
    int bits = 0;
    if (!json_is_object(v)) return entry_error(c, "entry", v, "an object");
    int code = parse_dtype(c, json_object_get(v, "dtype"), t, &bits);
    if (code == 0) code = parse_shape(c, json_object_get(v, "shape"), t, &count);
    if (code == 0) code = parse_offsets(c, json_object_get(v, "data_offsets"), &begin, &end);
    if (code != 0) return code;
    if (msgl__size_mul(count, (size_t)bits, &size_bits) != 0 || size_bits % 8 != 0 ||
        size_bits / 8 != end - begin) {
        return msgl__err_set(c->err, MSGL_EFORMAT,
                             "%s: tensor %s: found %zu bytes of data, its shape and dtype %s need "
                             "another number",
                             c->file, c->name, end - begin, t->type);
    }
    t->data = data + begin;
    t->bytes = end - begin;
    return 0;
}

static int by_data(const void *a, const void *b)
{
    const msgl_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

// The tensors of one file cover its data from first to last byte, each byte once.
static int check_cover(const char *file, msgl_tensor *list, size_t count, const uint8_t *data,
                       size_t data_size, msgl_err *err)
{
    qsort(list, count, sizeof *list, by_data);
    const uint8_t *at = data;
    char name[96];
    for (size_t i = 0; i < count; i++) {
        if (list[i].data != at) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%s: tensor %s: data_offsets: found %s at byte %zu, allowed none",
                                 file, msgl__printable(list[i].name, name, sizeof name),
                                 list[i].data < at ? "an overlap" : "a gap", (size_t)(at - data));
        }
        at += list[i].bytes;
    }
    if (at != data + data_size) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: found %zu bytes of data, the tensors describe %zu", file,
                             data_size, (size_t)(at - data));
    }
    return 0;
}

// What __metadata__ says of a tensor that torchao flattened: of MODULE._weight_qdata its member
// MODULE.weight, a JSON text. NULL: nothing.
static const char *note_of(const json_t *metadata, const char *name, char *key, size_t size)
{
    static const char SUFFIX[] = "._weight_qdata";
    const size_t n = strlen(name), suffix = sizeof SUFFIX - 1;
    if (n < suffix || strcmp(name + n - suffix, SUFFIX) != 0) return NULL;
    const int length = snprintf(key, size, "%.*s.weight", (int)(n - suffix), name);
    if (length < 0 || (size_t)length >= size) return NULL;
    return json_string_value(json_object_get(metadata, key));
}

static int parse_header(json_t *root, const uint8_t *data, size_t data_size, const char *file,
                        int32_t file_index, msgl_tensor_list *list, msgl_err *err)
{
    const size_t first = list->count;
    int code = msgl__tensor_list_grow(list, json_object_size(root), file, err);
    if (code != 0) return code;
    const json_t *metadata = json_object_get(root, "__metadata__");
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        if (strcmp(key, "__metadata__") == 0) continue;
        char name[96], noted[512];
        const entry_ctx c = {.file = file,
                             .name = msgl__printable(key, name, sizeof name),
                             .data_size = data_size,
                             .err = err};
        msgl_tensor *t = &list->at[list->count];
        *t = (msgl_tensor){.file = file_index};
        code = parse_entry(&c, value, data, t);
        if (code != 0) return code;
        t->name = msgl__strdup(key);
        if (t->name == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", file);
        list->count++;
        const char *note = note_of(metadata, key, noted, sizeof noted);
        if (note == NULL) continue;
        t->note = msgl__strdup(note);
        if (t->note == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", file);
    }
    return check_cover(file, list->at + first, list->count - first, data, data_size, err);
}

int msgl__safetensors_parse(const uint8_t *bytes, size_t size, const char *file_name,
                            int32_t file_index, msgl_tensor_list *list, msgl_err *err)
{
    if (size < 8) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: found %zu bytes, a safetensors file has 8 or "
                             "more",
                             file_name, size);
    }
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--) header = header << 8 | bytes[i];
    if (header > size - 8 || header > MAX_HEADER) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: header length: found %llu, the file has %zu bytes", file_name,
                             (unsigned long long)header, size);
    }
    json_t *root;
    int code = msgl__json_parse("header", (const char *)bytes + 8, (size_t)header,
                                JSON_REJECT_DUPLICATES, &root, err);
    if (code != 0) return msgl__err_prefix(err, code, "%s", file_name);
    if (json_is_object(root)) {
        code = parse_header(root, bytes + 8 + header, size - 8 - (size_t)header, file_name,
                            file_index, list, err);
    } else {
        code = msgl__err_set(err, MSGL_EFORMAT, "%s: header: not a JSON object", file_name);
    }
    json_decref(root);
    return code;
}

// ---- a folder of one file or of shards ----

// Maps and parses DIR/FILE as the next shard.
static int add_shard(msgl_checkpoint *c, const char *dir, const char *file, msgl_err *err)
{
    char path[PATH_BYTES];
    int code = msgl__path_join(dir, file, path, sizeof path, err);
    if (code == 0) code = msgl__checkpoint_map(c, path, err);
    if (code != 0) return code;
    const msgl_checkpoint_file *f = &c->files[c->num_files - 1];
    return msgl__safetensors_parse(f->map, f->size, msgl__path_shown(path), c->num_files - 1,
                                   &c->tensors, err);
}

// A shard's name is a plain file name: an index must not lead out of its folder.
static int check_shard_name(const char *index, const char *name, msgl_err *err)
{
    const size_t n = strlen(name);
    const char *suffix = ".safetensors";
    if (n > strlen(suffix) && n < 256 && strchr(name, '/') == NULL && name[0] != '.' &&
        strcmp(name + n - strlen(suffix), suffix) == 0) {
        return 0;
    }
    char text[96];
    return msgl__err_set(err, MSGL_EFORMAT,
                         "%s: weight_map: found file \"%s\", allowed a plain name ending in "
                         ".safetensors",
                         index, msgl__printable(name, text, sizeof text));
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Opens every distinct shard of the weight map, in the order of their names.
static int open_shards(msgl_checkpoint *c, const char *dir, const char *index, const json_t *map,
                       msgl_err *err)
{
    const size_t n = json_object_size(map);
    const char **names = msgl__reallocarray(NULL, n + 1, sizeof *names);
    if (names == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", index);
    int code = 0;
    size_t i = 0, distinct = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value)
    {
        if (code != 0) break;
        const char *file = json_string_value(value);
        code = check_shard_name(index, file != NULL ? file : "", err);
        names[i++] = file;
    }
    if (code == 0) qsort(names, n, sizeof *names, by_string);
    for (i = 0; i < n && code == 0; i++) {
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) names[distinct++] = names[i];
    }
    if (code == 0 && distinct > MAX_SHARDS) {
        code = msgl__err_set(err, MSGL_ELIMIT, "%s: found %zu shards, allowed %d", index, distinct,
                             MAX_SHARDS);
    }
    for (i = 0; i < distinct && code == 0; i++) code = add_shard(c, dir, names[i], err);
    msgl__free(names);
    return code;
}

// Every tensor of the index is where the index says.
static int check_index(const msgl_checkpoint *c, const char *index, const json_t *map,
                       msgl_err *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)map, key, value)
    {
        const msgl_tensor *t = msgl__checkpoint_find(c, key);
        const char *path = t != NULL ? c->files[t->file].path : NULL;
        const char *base = path != NULL ? strrchr(path, '/') + 1 : "no file";
        if (strcmp(base, json_string_value(value)) == 0) continue;
        char name[96];
        return msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: expected in %s, found in %s", index,
                             msgl__printable(key, name, sizeof name), json_string_value(value),
                             base);
    }
    return 0;
}

static int open_index(msgl_checkpoint *c, const char *dir, const char *index, msgl_err *err)
{
    json_t *root;
    int code = msgl__json_load(index, INDEX_MAX_BYTES, 0, &root, err);
    if (code != 0) return code;
    index = msgl__path_shown(index); // for messages from here on
    const json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        code =
            msgl__err_set(err, MSGL_EFORMAT, "%s: weight_map: not an object with entries", index);
    }
    if (code == 0) code = open_shards(c, dir, index, map, err);
    if (code == 0) code = msgl__checkpoint_sort(c, err);
    if (code == 0) code = check_index(c, index, map, err);
    json_decref(root);
    return code;
}

// A folder without model.safetensors: its weights are in another form, if there are any.
static int no_weights(const char *dir, msgl_err *err)
{
    static const char *const OTHERS[] = {"*.bin", "*.pth",     "*.pt",  "*.onnx",
                                         "*.h5",  "*.msgpack", "*.npz", "*.nemo"};
    char other[100] = "";
    DIR *d = opendir(dir);
    for (const struct dirent *e; d != NULL && other[0] == '\0' && (e = readdir(d)) != NULL;) {
        for (size_t i = 0; i < MSGL_COUNT(OTHERS); i++) {
            if (fnmatch(OTHERS[i], e->d_name, 0) != 0) continue;
            msgl__printable(e->d_name, other, sizeof other);
        }
    }
    if (d != NULL) closedir(d);
    return msgl__err_set(err, MSGL_ENOENT,
                         "%s: has no model.safetensors%s%s%s; allowed: "
                         "*.safetensors with their index, or a .gguf file",
                         msgl__path_shown(dir), other[0] != '\0' ? ", but " : "", other,
                         other[0] != '\0' ? ", which is not read" : "");
}

static int open_single(msgl_checkpoint *c, const char *dir, msgl_err *err)
{
    const int code = add_shard(c, dir, "model.safetensors", err);
    if (code == MSGL_ENOENT) return no_weights(dir, err);
    return code != 0 ? code : msgl__checkpoint_sort(c, err);
}

// Puts `prefix` before a tensor's name.
static int add_prefix(msgl_tensor *t, const char *prefix, msgl_err *err)
{
    const size_t n = strlen(prefix), size = strlen(t->name) + 1;
    char *name = msgl__malloc(n + size);
    if (name == NULL) return msgl__err_set(err, MSGL_ENOMEM, "model: out of memory");
    memcpy(name, prefix, n);
    memcpy(name + n, t->name, size);
    if (t->label == NULL) {
        t->label = t->name;
    } else {
        msgl__free(t->name);
    }
    t->name = name;
    return 0;
}

int msgl__safetensors_add_file(msgl_checkpoint *c, const char *dir, const char *file,
                               const char *prefix, msgl_err *err)
{
    const size_t first = c->tensors.count;
    int code = add_shard(c, dir, file, err);
    if (code == MSGL_ENOENT) { // then the module has other forms of it, or none
        char path[PATH_BYTES];
        const char *slash = strchr(file, '/');
        const int n = slash == NULL ? 0 : (int)(slash - file);
        (void)snprintf(path, sizeof path, "%s/%.*s", dir, n, file);
        return no_weights(path, err);
    }
    for (size_t i = first; i < c->tensors.count && code == 0; i++) {
        code = add_prefix(&c->tensors.at[i], prefix, err);
    }
    return code;
}

// A model that was saved without its head, as those that are made to embed are (Qwen3-Embedding):
// its tensors have no "model." in front.
static int add_model_prefix(msgl_checkpoint *c, msgl_err *err)
{
    static const char EMBED[] = "embed_tokens.weight";
    static const char *const parts[] = {"embed_tokens.", "layers.", "norm."};
    if (msgl__checkpoint_find(c, EMBED) == NULL) return 0;
    for (size_t i = 0; i < c->tensors.count; i++) {
        msgl_tensor *t = &c->tensors.at[i];
        bool named = false;
        for (size_t k = 0; k < MSGL_COUNT(parts) && !named; k++) {
            named = strncmp(t->name, parts[k], strlen(parts[k])) == 0;
        }
        const int code = named ? add_prefix(t, "model.", err) : 0;
        if (code != 0) return code;
    }
    return msgl__checkpoint_sort(c, err);
}

static int open_folder(const char *dir, msgl_checkpoint *c, msgl_err *err)
{
    char index[PATH_BYTES];
    int code = msgl__path_join(dir, "model.safetensors.index.json", index, sizeof index, err);
    if (code != 0) return code;
    code = access(index, F_OK) == 0 ? open_index(c, dir, index, err) : open_single(c, dir, err);
    msgl_quantization q;
    if (code == 0) code = msgl__quantization_load(dir, &q, err);
    if (code == 0) code = msgl__adapt(c, &q, err);
    return code != 0 ? code : add_model_prefix(c, err);
}

int msgl__safetensors_open_bytes(const void *file, size_t size, msgl_checkpoint **out,
                                 msgl_err *err)
{
    static const char NAME[] = "tensors"; // in place of a path
    msgl_checkpoint *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", NAME);
    c->format = &msgl__format_safetensors;
    int code = msgl__checkpoint_take(c, NAME, NULL, 0, err); // nothing is to be unmapped
    if (code == 0) code = msgl__safetensors_parse(file, size, NAME, 0, &c->tensors, err);
    if (code == 0) code = msgl__checkpoint_sort(c, err);
    if (code != 0) {
        msgl__checkpoint_close(c);
        return code;
    }
    *out = c;
    return 0;
}

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

const msgl_checkpoint_format msgl__format_safetensors = {
    .name = "safetensors",
    .types = "F32, F16 or BF16, or packed values with their scales, as FP8, INT8, AWQ, GPTQ, "
             "AutoRound, compressed-tensors, ModelOpt, bitsandbytes, HQQ, torchao, MLX and MXFP4 "
             "name them",
    .is = is_folder,
    .config = msgl__config_load_folder,
    .open = open_folder,
};
