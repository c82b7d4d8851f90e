// SPDX-License-Identifier: Apache-2.0
#include "utils/gguf_split.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "utils/file.h"

enum { DIGITS = 5, PATH_BYTES = 4096 };
#define EXAMPLE "-00001-of-00001.gguf"

// ---- names ----

static bool digits(const char *p, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (p[i] < '0' || p[i] > '9') return false;
        *out = *out * 10 + (uint32_t)(p[i] - '0');
    }
    return true;
}

bool msgl__gguf_split_of(const char *path, msgl_gguf_split_name *out)
{
    const size_t n = strlen(path), end = sizeof EXAMPLE - 1;
    if (n <= end) return false;
    const char *p = path + n - end;
    out->stem = n - end;
    return p[-1] != '/' && p[0] == '-' && digits(p + 1, &out->no) &&
           strncmp(p + 6, "-of-", 4) == 0 && digits(p + 10, &out->count) &&
           strcmp(p + 15, ".gguf") == 0 && out->no > 0 && out->no <= out->count;
}

bool msgl__gguf_same_model(const char *path, const char *other)
{
    msgl_gguf_split_name a, b;
    return msgl__gguf_split_of(path, &a) && msgl__gguf_split_of(other, &b) && a.count == b.count &&
           a.stem == b.stem && memcmp(path, other, a.stem) == 0;
}

bool msgl__gguf_is_model(const char *path)
{
    static const char *const BESIDE[] = {"mmproj", "imatrix"};
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    const size_t n = strlen(name);
    msgl_gguf_split_name split;
    if (n <= 5 || strcmp(name + n - 5, ".gguf") != 0) return false;
    for (size_t i = 0; i < MSGL_COUNT(BESIDE); i++) {
        if (strcasestr(name, BESIDE[i]) != NULL) return false;
    }
    return !msgl__gguf_split_of(path, &split) || split.no == 1;
}

int msgl__gguf_split_path(const char *path, const msgl_gguf_split_name *split, uint32_t no,
                          char *out, size_t size, msgl_err *err)
{
    const int n = snprintf(out, size, "%.*s-%05u-of-%05u.gguf", (int)split->stem, path,
                           (unsigned)no, (unsigned)split->count);
    if (n >= 0 && (size_t)n < size) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "model: the path is too long");
}

static int missing(const char *path, uint32_t no, uint32_t more, uint32_t count, msgl_err *err)
{
    char others[40] = "";
    if (more > 0) snprintf(others, sizeof others, ", nor are %u others", (unsigned)more);
    return msgl__err_set(err, MSGL_ENOENT,
                         "%s: part %u of the model's %u files is not here%s; allowed: all of them "
                         "in one folder",
                         msgl__path_shown(path), (unsigned)no, (unsigned)count, others);
}

int msgl__gguf_first_split(const char *path, char *out, size_t size, msgl_err *err)
{
    msgl_gguf_split_name split;
    if (!msgl__gguf_split_of(path, &split)) split = (msgl_gguf_split_name){.no = 1};
    const int n = split.no == 1 ? snprintf(out, size, "%s", path) : 0;
    if (n < 0 || (size_t)n >= size) {
        return msgl__err_set(err, MSGL_EINVAL, "model: the path is too long");
    }
    const int code = split.no > 1 ? msgl__gguf_split_path(path, &split, 1, out, size, err) : 0;
    if (code != 0 || split.no == 1 || access(out, F_OK) == 0) return code;
    return missing(out, 1, 0, split.count, err);
}

// ---- what belongs together ----

static int compare_value(const msgl_gguf *first, const msgl_gguf *g, const char *key, msgl_err *err)
{
    const msgl_gguf_value *a = msgl__gguf_get(first, key), *b = msgl__gguf_get(g, key);
    if (a == NULL || b == NULL) return 0;
    size_t at = 0, bt = 0;
    const bool text =
        a->type == MSGL_GGUF_STRING && b->type == MSGL_GGUF_STRING && !a->array && !b->array;
    const msgl_gguf_str x = text ? msgl__gguf_next(a, &at) : (msgl_gguf_str){0};
    const msgl_gguf_str y = text ? msgl__gguf_next(b, &bt) : (msgl_gguf_str){0};
    if (text && x.n == y.n && memcmp(x.p, y.p, x.n) == 0) return 0;
    return msgl__err_set(err, MSGL_EFORMAT, "%s: %s is not the first part's: parts of two models",
                         g->file, key);
}

static int check_split(const msgl_gguf *first, const msgl_gguf *g, uint32_t no, msgl_err *err)
{
    if (g->split.count != first->split.count || g->split.no != no) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: its metadata says part %u of %u, its name part %u of %u", g->file,
                             (unsigned)g->split.no + 1, (unsigned)g->split.count, (unsigned)no + 1,
                             (unsigned)first->split.count);
    }
    if (g->split.tensors != first->split.tensors) {
        return msgl__err_set(
            err, MSGL_EFORMAT,
            "%s: split.tensors.count: found %llu, the first part has %llu: parts of "
            "two models",
            g->file, (unsigned long long)g->split.tensors,
            (unsigned long long)first->split.tensors);
    }
    const int code = compare_value(first, g, "general.architecture", err);
    return code == 0 ? compare_value(first, g, "general.name", err) : code;
}

static int check_count(const msgl_gguf_splits *p, msgl_err *err)
{
    uint64_t found = 0;
    for (uint32_t i = 0; i < p->count; i++) found += p->at[i].num_tensors;
    if (p->count == 1 || found == p->at[0].split.tensors) return 0;
    return msgl__err_set(err, MSGL_EFORMAT,
                         "%s: split.tensors.count: found %llu, its %u files have %llu tensors",
                         p->at[0].file, (unsigned long long)p->at[0].split.tensors,
                         (unsigned)p->count, (unsigned long long)found);
}

// All splits are there, before anything is read.
static int check_files(const char *path, const msgl_gguf_split_name *split, msgl_err *err)
{
    char at[PATH_BYTES];
    uint32_t gone = 0, first = 0;
    for (uint32_t no = 1; no <= split->count; no++) {
        const int code = msgl__gguf_split_path(path, split, no, at, sizeof at, err);
        if (code != 0) return code;
        if (access(at, F_OK) != 0 && gone++ == 0) first = no;
    }
    if (gone == 0) return 0;
    (void)msgl__gguf_split_path(path, split, first, at, sizeof at, err);
    return missing(at, first, gone - 1, split->count, err);
}

static int open_split(msgl_gguf_splits *p, const char *path, msgl_err *err)
{
    char *own = msgl__strdup(path);
    if (own == NULL) return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", path);
    p->paths[p->count] = own;
    const int code = msgl__gguf_open(own, &p->at[p->count], err);
    p->count++;
    return code;
}

// The name and the metadata of the first split have to agree on how many there are.
static int check_first(const msgl_gguf *g, const msgl_gguf_split_name *split, bool named,
                       msgl_err *err)
{
    const uint32_t said = named ? split->count : 1;
    if (g->split.no != 0) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%s: its metadata says part %u of %u; a model is opened by its first",
                             g->file, (unsigned)g->split.no + 1, (unsigned)g->split.count);
    }
    if (g->split.count == said) return 0;
    return msgl__err_set(err, MSGL_EFORMAT,
                         "%s: split.count: found %u, the file's name says %u; allowed: names "
                         "like NAME-00001-of-%05u.gguf",
                         g->file, (unsigned)g->split.count, (unsigned)said,
                         (unsigned)g->split.count);
}

int msgl__gguf_splits_open(const char *path, msgl_gguf_splits *out, msgl_err *err)
{
    msgl_gguf_split_name split = {.count = 1};
    const bool named = msgl__gguf_split_of(path, &split);
    *out = (msgl_gguf_splits){0};
    if (!named) split = (msgl_gguf_split_name){.count = 1};
    int code = named ? check_files(path, &split, err) : 0;
    if (code != 0) return code;
    out->at = msgl__calloc(split.count, sizeof *out->at);
    out->paths = msgl__calloc(split.count, sizeof *out->paths);
    if (out->at == NULL || out->paths == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "%s: out of memory", path);
    }
    code = open_split(out, path, err);
    if (code == 0) code = check_first(&out->at[0], &split, named, err);
    for (uint32_t no = 1; no < split.count && code == 0; no++) {
        char next[PATH_BYTES];
        code = msgl__gguf_split_path(path, &split, no + 1, next, sizeof next, err);
        if (code == 0) code = open_split(out, next, err);
        if (code == 0) code = check_split(&out->at[0], &out->at[no], no, err);
    }
    return code == 0 ? check_count(out, err) : code;
}

void msgl__gguf_splits_close(msgl_gguf_splits *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        msgl__gguf_close(&p->at[i]);
        msgl__free(p->paths[i]);
    }
    msgl__free(p->at);
    msgl__free(p->paths);
    *p = (msgl_gguf_splits){0};
}
