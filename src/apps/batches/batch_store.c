// SPDX-License-Identifier: Apache-2.0
#include "apps/batches/batch_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "utils/file.h"

enum { HEX = 24 }; // digits of an id: time, then chance

static const char digits[] = "0123456789abcdef";

// ID.json or ID.data.
static void name_of(const char *id, const char *suffix, char name[64])
{
    (void)snprintf(name, 64, "%s.%s", id, suffix);
}

// The same as a path.
static int path_of(const msgl_batch_store *s, const char *id, const char *suffix,
                   char path[PATH_MAX], msgl_err *err)
{
    char name[64];
    name_of(id, suffix, name);
    return msgl__path_join(s->path, name, path, PATH_MAX, err);
}

bool msgl__store_is_id(const char *text, const char *prefix)
{
    const size_t n = strlen(prefix);
    return strncmp(text, prefix, n) == 0 && strlen(text + n) == HEX &&
           strspn(text + n, digits) == HEX;
}

void msgl__store_new_id(msgl_batch_store *s, const char *prefix, char id[MSGL_STORE_ID])
{
    struct timespec now;
    uint32_t chance = 0;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    const uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    s->last = ns > s->last ? ns : s->last + 1;
    if (getrandom(&chance, sizeof chance, 0) < 0) chance = (uint32_t)getpid();
    (void)snprintf(id, MSGL_STORE_ID, "%s%016" PRIx64 "%08" PRIx32, prefix, s->last, chance);
}

// The id of a directory's entry, if it is that of an object's `suffix`.
static bool entry_id(const struct dirent *e, const char *prefix, const char *suffix,
                     char id[MSGL_STORE_ID])
{
    const char *dot = strchr(e->d_name, '.');
    if (dot == NULL || strcmp(dot + 1, suffix) != 0) return false;
    const size_t n = (size_t)(dot - e->d_name);
    if (n >= MSGL_STORE_ID) return false;
    memcpy(id, e->d_name, n);
    id[n] = '\0';
    return msgl__store_is_id(id, prefix);
}

static DIR *open_list(const msgl_batch_store *s)
{
    const int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (d == NULL && fd >= 0) close(fd);
    return d;
}

// How many files there are, and their bytes.
static int count_files(const msgl_batch_store *s, int *files, int64_t *bytes)
{
    DIR *d = open_list(s);
    if (d == NULL) return MSGL_EIO;
    char id[MSGL_STORE_ID];
    *files = 0;
    *bytes = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat st;
        if (!entry_id(e, MSGL_STORE_FILE, "data", id)) continue;
        ++*files;
        if (fstatat(s->dir, e->d_name, &st, 0) == 0) *bytes += st.st_size;
    }
    closedir(d);
    return 0;
}

int msgl__store_open(msgl_batch_store *s, const char *path, msgl_err *err)
{
    *s = (msgl_batch_store){.path = path, .dir = -1, .lock = -1};
    if (mkdir(path, 0700) != 0 && errno != EEXIST) {
        return msgl__err_set(err, MSGL_EIO, "--batch-dir %.180s: %m", path);
    }
    s->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir >= 0) s->lock = openat(s->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->lock < 0) {
        const int rc = msgl__err_set(err, MSGL_EIO, "--batch-dir %.180s: %m", path);
        msgl__store_close(s);
        return rc;
    }
    if (flock(s->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        msgl__store_close(s);
        return msgl__err_set(err, MSGL_EBUSY, "--batch-dir %.180s: another server has it", path);
    }
    return 0;
}

void msgl__store_close(msgl_batch_store *s)
{
    if (s->lock >= 0) close(s->lock);
    if (s->dir >= 0) close(s->dir);
    s->lock = s->dir = -1;
}

json_t *msgl__store_get(const msgl_batch_store *s, const char *id)
{
    char path[PATH_MAX], *text;
    size_t len;
    msgl_err err;
    if (path_of(s, id, "json", path, &err) != 0) return NULL;
    if (msgl__file_read(path, 1 << 20, &text, &len, &err) != 0) return NULL;
    json_t *o = json_loadb(text, len, 0, NULL);
    msgl__free(text);
    if (json_is_object(o)) return o;
    json_decref(o);
    return NULL;
}

static int put(const msgl_batch_store *s, const char *id, const char *suffix, const void *data,
               size_t len, msgl_err *err)
{
    char path[PATH_MAX];
    const int rc = path_of(s, id, suffix, path, err);
    return rc == 0 ? msgl__file_replace(path, 0600, data, len, err) : rc;
}

int msgl__store_set(msgl_batch_store *s, const char *id, const json_t *object, msgl_err *err)
{
    char *text = json_dumps(object, JSON_COMPACT);
    if (text == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const int rc = put(s, id, "json", text, strlen(text), err);
    msgl__free(text);
    return rc;
}

typedef struct id_list {
    char (*ids)[MSGL_STORE_ID];
    size_t len, cap;
} id_list;

static int newest_first(const void *a, const void *b)
{
    return strcmp(b, a);
}

static int list_ids(const msgl_batch_store *s, const char *prefix, id_list *out)
{
    DIR *d = open_list(s);
    if (d == NULL) return MSGL_EIO;
    int rc = 0;
    char id[MSGL_STORE_ID];
    for (const struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;) {
        if (!entry_id(e, prefix, "json", id)) continue;
        if (out->len == out->cap) {
            const size_t cap = out->cap == 0 ? 64 : 2 * out->cap;
            void *more = msgl__reallocarray(out->ids, cap, sizeof *out->ids);
            if (more == NULL) {
                rc = MSGL_ENOMEM;
                break;
            }
            out->ids = more;
            out->cap = cap;
        }
        memcpy(out->ids[out->len++], id, sizeof id);
    }
    closedir(d);
    if (out->len > 0) qsort(out->ids, out->len, sizeof *out->ids, newest_first);
    return rc;
}

json_t *msgl__store_list(const msgl_batch_store *s, const char *prefix)
{
    id_list list = {0};
    json_t *all = list_ids(s, prefix, &list) == 0 ? json_array() : NULL;
    for (size_t i = 0; i < list.len && all != NULL; i++) {
        json_t *o = msgl__store_get(s, list.ids[i]);
        if (o != NULL) json_array_append_new(all, o);
    }
    msgl__free(list.ids);
    return all;
}

int msgl__store_open_data(const msgl_batch_store *s, const char *id)
{
    char name[64];
    name_of(id, "data", name);
    return openat(s->dir, name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

int msgl__store_read_data(const msgl_batch_store *s, const char *id, size_t max, char **data,
                          size_t *len, msgl_err *err)
{
    char path[PATH_MAX];
    const int rc = path_of(s, id, "data", path, err);
    return rc == 0 ? msgl__file_read(path, max, data, len, err) : rc;
}

int64_t msgl__store_data_size(const msgl_batch_store *s, const char *id)
{
    char name[64];
    struct stat st;
    name_of(id, "data", name);
    return fstatat(s->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? st.st_size : 0;
}

int msgl__store_put_file(msgl_batch_store *s, const char *id, const json_t *object,
                         const void *data, size_t len, msgl_err *err)
{
    int files;
    int64_t bytes;
    if (count_files(s, &files, &bytes) != 0) return msgl__err_set(err, MSGL_EIO, "%m");
    if (files >= MSGL_STORE_MAX_FILES || bytes + (int64_t)len > MSGL_STORE_MAX_BYTES) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "The server keeps %d files with %" PRId64 " bytes; allowed: %d files, "
                             "%" PRId64 " bytes. Delete some.",
                             files, bytes, MSGL_STORE_MAX_FILES, MSGL_STORE_MAX_BYTES);
    }
    int rc = put(s, id, "data", data, len, err);
    if (rc != 0) return rc;
    rc = msgl__store_set(s, id, object, err);
    if (rc != 0) msgl__store_remove(s, id);
    return rc;
}

void msgl__store_remove(msgl_batch_store *s, const char *id)
{
    char name[64];
    name_of(id, "json", name);
    (void)unlinkat(s->dir, name, 0);
    name_of(id, "data", name);
    (void)unlinkat(s->dir, name, 0);
}

void msgl__store_remove_orphans(const msgl_batch_store *s, const json_t *used)
{
    DIR *d = open_list(s);
    char id[MSGL_STORE_ID], name[64];
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (!entry_id(e, MSGL_STORE_FILE, "data", id)) continue;
        name_of(id, "json", name);
        if (json_object_get(used, id) != NULL || faccessat(s->dir, name, F_OK, 0) == 0) continue;
        (void)unlinkat(s->dir, e->d_name, 0);
    }
    if (d != NULL) closedir(d);
}
