// SPDX-License-Identifier: Apache-2.0
//
// The files of a checkpoint: which they are, their mappings, and one list of all tensors by name.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/round.h"
#include "models/safetensors.h"
#include "utils/file.h"
#include "utils/json.h"

enum { PATH_BYTES = 4096, MAX_SHARDS = 4096, INDEX_MAX_BYTES = 128 << 20 };

typedef struct shard {
    char *path;
    void *map;
    size_t size;
} shard;

struct msgl_checkpoint {
    shard *shards;
    int32_t num_shards;
    msgl_tensor *tensors;
    size_t count;
};

static int map_file(shard *s, msgl_err *err)
{
    int fd;
    size_t size;
    int code = msgl__file_open(s->path, &fd, &size, err);
    if (code != 0) return code;
    if (size == 0) {
        code = msgl__err_set(err, MSGL_EFORMAT, "%s: empty", msgl__path_tail(s->path));
    } else {
        void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            code =
                msgl__err_set(err, MSGL_EIO, "%s: %s", msgl__path_tail(s->path), strerror(errno));
        } else {
            s->map = map;
            s->size = size;
        }
    }
    close(fd);
    return code;
}

// Maps and parses DIR/FILE as the next shard.
static int add_shard(msgl_checkpoint *c, const char *dir, const char *file, msgl_err *err)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    if (n < 0 || (size_t)n >= sizeof path) {
        return msgl__err_set(err, MSGL_EINVAL, "model folder: the path is too long");
    }
    shard *s = &c->shards[c->num_shards];
    s->path = msgl__strdup(path);
    if (s->path == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", path);
    c->num_shards++;
    const int code = map_file(s, err);
    if (code != 0) return code;
    return msgl__safetensors_parse(s->map, s->size, msgl__path_tail(s->path), c->num_shards - 1,
                                   &c->tensors, &c->count, err);
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
    if (code == 0) {
        c->shards = msgl__calloc(distinct, sizeof *c->shards);
        if (c->shards == NULL) code = msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", index);
    }
    for (i = 0; i < distinct && code == 0; i++) code = add_shard(c, dir, names[i], err);
    msgl__free(names);
    return code;
}

static int tensor_by_name(const void *a, const void *b)
{
    return strcmp(((const msgl_tensor *)a)->name, ((const msgl_tensor *)b)->name);
}

// Sorts the list and refuses a name that two shards have.
static int sort_tensors(msgl_checkpoint *c, msgl_err *err)
{
    if (c->count > 1) qsort(c->tensors, c->count, sizeof *c->tensors, tensor_by_name);
    for (size_t i = 1; i < c->count; i++) {
        const msgl_tensor *t = &c->tensors[i];
        if (strcmp(t->name, t[-1].name) != 0) continue;
        char name[96];
        return msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: also in %s",
                             msgl__path_tail(c->shards[t->file].path),
                             msgl__printable(t->name, name, sizeof name),
                             msgl__path_tail(c->shards[t[-1].file].path));
    }
    return 0;
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
        const char *path = t != NULL ? c->shards[t->file].path : NULL;
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
    index = msgl__path_tail(index); // for messages from here on
    const json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0) {
        code =
            msgl__err_set(err, MSGL_EFORMAT, "%s: weight_map: not an object with entries", index);
    }
    if (code == 0) code = open_shards(c, dir, index, map, err);
    if (code == 0) code = sort_tensors(c, err);
    if (code == 0) code = check_index(c, index, map, err);
    json_decref(root);
    return code;
}

static int open_single(msgl_checkpoint *c, const char *dir, msgl_err *err)
{
    c->shards = msgl__calloc(1, sizeof *c->shards);
    if (c->shards == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", dir);
    const int code = add_shard(c, dir, "model.safetensors", err);
    return code != 0 ? code : sort_tensors(c, err);
}

int msgl__checkpoint_open(const char *dir, msgl_checkpoint **out, msgl_err *err)
{
    char index[PATH_BYTES];
    const int n = snprintf(index, sizeof index, "%s/model.safetensors.index.json", dir);
    if (n < 0 || (size_t)n >= sizeof index) {
        return msgl__err_set(err, MSGL_EINVAL, "model folder: the path is too long");
    }
    msgl_checkpoint *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", dir);
    const int code =
        access(index, F_OK) == 0 ? open_index(c, dir, index, err) : open_single(c, dir, err);
    if (code != 0) {
        msgl__checkpoint_close(c);
        return code;
    }
    *out = c;
    return 0;
}

void msgl__checkpoint_close(msgl_checkpoint *c)
{
    if (c == NULL) return;
    for (size_t i = 0; i < c->count; i++) msgl__free(c->tensors[i].name);
    msgl__free(c->tensors);
    for (int32_t i = 0; i < c->num_shards; i++) {
        if (c->shards[i].map != NULL) munmap(c->shards[i].map, c->shards[i].size);
        msgl__free(c->shards[i].path);
    }
    msgl__free(c->shards);
    msgl__free(c);
}

size_t msgl__checkpoint_count(const msgl_checkpoint *c)
{
    return c->count;
}

const msgl_tensor *msgl__checkpoint_at(const msgl_checkpoint *c, size_t i)
{
    return &c->tensors[i];
}

const msgl_tensor *msgl__checkpoint_find(const msgl_checkpoint *c, const char *name)
{
    const msgl_tensor key = {.name = (char *)name};
    if (c->count == 0) return NULL;
    return bsearch(&key, c->tensors, c->count, sizeof *c->tensors, tensor_by_name);
}

const char *msgl__checkpoint_file(const msgl_checkpoint *c, const msgl_tensor *t)
{
    return msgl__path_tail(c->shards[t->file].path);
}

// The whole pages inside [data, data + bytes): a page shared with a neighbour is left alone.
static void advise(const msgl_tensor *t, int advice, bool outward)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)t->data, to = from + t->bytes;
    from = outward ? from & ~(page - 1) : msgl__round_up(from, page);
    to = outward ? to : to & ~(page - 1);
    if (to > from) madvise((void *)from, to - from, advice);
}

void msgl__tensor_will_need(const msgl_tensor *t)
{
    advise(t, MADV_WILLNEED, true);
}

void msgl__tensor_drop(const msgl_tensor *t)
{
    advise(t, MADV_DONTNEED, false);
}
