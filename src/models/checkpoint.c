// SPDX-License-Identifier: Apache-2.0
//
// The list of formats, and what they share: mapped files and one list of all tensors by name.
#include "models/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "core/round.h"
#include "models/formats.h"
#include "utils/file.h"

static const msgl_checkpoint_format *const FORMATS[] = {
    &msgl__format_gguf,
    &msgl__format_safetensors,
};

const msgl_checkpoint_format *msgl__checkpoint_format_of(const char *path)
{
    size_t i = 0;
    while (i + 1 < MSGL_COUNT(FORMATS) && !FORMATS[i]->is(path)) i++;
    return FORMATS[i];
}

int msgl__checkpoint_open(const char *path, msgl_checkpoint **out, msgl_err *err)
{
    msgl_checkpoint *c = msgl__calloc(1, sizeof *c);
    if (c == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", path);
    c->format = msgl__checkpoint_format_of(path);
    const int code = c->format->open(path, c, err);
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
    msgl__tensor_list_free(&c->tensors);
    for (int32_t i = 0; i < c->num_files; i++) {
        munmap(c->files[i].map, c->files[i].size);
        msgl__free(c->files[i].path);
    }
    msgl__free(c->files);
    msgl__free(c);
}

int msgl__checkpoint_take(msgl_checkpoint *c, const char *path, void *map, size_t size,
                          msgl_err *err)
{
    msgl_checkpoint_file *files =
        msgl__reallocarray(c->files, (size_t)c->num_files + 1, sizeof *files);
    if (files != NULL) c->files = files;
    char *own = files != NULL ? msgl__strdup(path) : NULL;
    if (own == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", path);
    msgl_checkpoint_file *f = &files[c->num_files++];
    *f = (msgl_checkpoint_file){.path = own, .map = map, .size = size};
    char buf[MSGL_PATH_SHOWN];
    snprintf(f->shown, sizeof f->shown, "%s", msgl__path_short(path, buf));
    return 0;
}

int msgl__checkpoint_map(msgl_checkpoint *c, const char *path, msgl_err *err)
{
    void *map;
    size_t size;
    int code = msgl__file_map(path, &map, &size, err);
    if (code != 0) return code;
    code = msgl__checkpoint_take(c, path, map, size, err);
    if (code != 0) munmap(map, size);
    return code;
}

int msgl__tensor_list_grow(msgl_tensor_list *l, size_t more, const char *file, msgl_err *err)
{
    size_t n;
    msgl_tensor *grown = msgl__size_add(l->count, more, &n) == 0
                             ? msgl__reallocarray(l->at, n, sizeof *grown)
                             : NULL;
    if (grown == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", file);
    l->at = grown;
    return 0;
}

void msgl__tensor_list_free(msgl_tensor_list *l)
{
    for (size_t i = 0; i < l->count; i++) {
        msgl__free(l->at[i].name);
        msgl__free(l->at[i].label);
        msgl__free(l->at[i].note);
    }
    msgl__free(l->at);
    *l = (msgl_tensor_list){0};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const msgl_tensor *)a)->name, ((const msgl_tensor *)b)->name);
}

int msgl__checkpoint_sort(msgl_checkpoint *c, msgl_err *err)
{
    const msgl_tensor_list *l = &c->tensors;
    if (l->count > 1) qsort(l->at, l->count, sizeof *l->at, by_name);
    for (size_t i = 1; i < l->count; i++) {
        const msgl_tensor *t = &l->at[i];
        if (strcmp(t->name, t[-1].name) != 0) continue;
        char name[96];
        return msgl__err_set(err, MSGL_EFORMAT, "%s: tensor %s: also in %s",
                             msgl__checkpoint_file(c, t),
                             msgl__printable(msgl__tensor_label(t), name, sizeof name),
                             msgl__checkpoint_file(c, &t[-1]));
    }
    return 0;
}

size_t msgl__checkpoint_count(const msgl_checkpoint *c)
{
    return c->tensors.count;
}

const msgl_tensor *msgl__checkpoint_at(const msgl_checkpoint *c, size_t i)
{
    return &c->tensors.at[i];
}

const msgl_tensor *msgl__checkpoint_find(const msgl_checkpoint *c, const char *name)
{
    const msgl_tensor key = {.name = (char *)name};
    if (c->tensors.count == 0) return NULL;
    return bsearch(&key, c->tensors.at, c->tensors.count, sizeof key, by_name);
}

const char *msgl__checkpoint_file(const msgl_checkpoint *c, const msgl_tensor *t)
{
    return c->files[t->file].shown;
}

const char *msgl__tensor_label(const msgl_tensor *t)
{
    return t->label != NULL ? t->label : t->name;
}

const char *msgl__shape_show(const int64_t *dims, int32_t ndim, char *buf, size_t size)
{
    size_t n = (size_t)snprintf(buf, size, "[");
    for (int32_t i = 0; i < ndim && n < size; i++) {
        n += (size_t)snprintf(buf + n, size - n, "%s%lld", i > 0 ? ", " : "", (long long)dims[i]);
    }
    if (n < size) snprintf(buf + n, size - n, "]");
    return buf;
}

// The pages of [data, data + bytes): outward all of them, else only those that no neighbour shares.
static void advise(const uint8_t *data, size_t bytes, int advice, bool outward)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)data, to = from + bytes;
    from = outward ? from & ~(page - 1) : msgl__round_up(from, page);
    to = outward ? to : to & ~(page - 1);
    if (to > from) madvise((void *)from, to - from, advice);
}

static void advise_sides(const msgl_tensor *t, int advice, bool outward)
{
    for (int i = 0; i < MSGL_ROLES; i++) {
        const msgl_side *side = &t->packing.sides[i];
        if (side->data != NULL) advise(side->data, side->bytes, advice, outward);
    }
}

void msgl__tensor_will_need(const msgl_tensor *t, size_t from, size_t bytes)
{
    advise(t->data + from, bytes, MADV_WILLNEED, true);
    advise_sides(t, MADV_WILLNEED, true);
}

void msgl__tensor_drop(const msgl_tensor *t)
{
    advise(t->data, t->bytes, MADV_DONTNEED, false);
    advise_sides(t, MADV_DONTNEED, false);
}
