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
#include "utils/json.h"
#include "utils/json_write.h"

enum { HEX = 24 }; // digits of an id: 16 of its time, 8 of chance

static const char digits[] = "0123456789abcdef";

// ID.json or ID.data.
static void name_of(const char *id, const char *suffix, char name[64])
{
    (void)snprintf(name, 64, "%s.%s", id, suffix);
}

// The path of ID.json or ID.data.
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

int64_t msgl__store_made_at(const char *id)
{
    uint64_t ns = 0;
    const char *at = id + strlen(id) - HEX;
    for (int i = 0; i < 16; i++) ns = ns << 4 | (uint64_t)(strchr(digits, at[i]) - digits);
    return (int64_t)(ns / 1000000000u);
}

// Sets id to that of a directory's entry ID.suffix. False: its name has another form or prefix.
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

int msgl__store_open(msgl_batch_store *s, const char *path, const msgl_store_limits *limits,
                     msgl_err *err)
{
    *s = (msgl_batch_store){.path = path, .dir = -1, .lock = -1, .limits = *limits};
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
    if (msgl__file_read(path, MSGL_STORE_OBJECT_MAX, &text, &len, &err) != 0) return NULL;
    // An uploaded file's name, as the client gave it, may have a NUL.
    json_t *o = msgl__json_loadb(text, len, JSON_ALLOW_NUL, NULL, NULL);
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
    char *text = msgl__json_text(object, JSON_COMPACT);
    if (text == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const size_t len = strlen(text);
    const int rc = len > MSGL_STORE_OBJECT_MAX
                       ? msgl__err_set(err, MSGL_ELIMIT, "An object of %zu bytes; allowed: %d.",
                                       len, MSGL_STORE_OBJECT_MAX)
                       : put(s, id, "json", text, len, err);
    msgl__free(text);
    return rc;
}

static int newest_first(const void *a, const void *b)
{
    return strcmp(b, a);
}

static int page_add(msgl_store_page *p, const char *id)
{
    if (p->len == p->cap) {
        const size_t cap = p->cap == 0 ? 64 : 2 * p->cap;
        void *more = msgl__reallocarray(p->ids, cap, sizeof *p->ids);
        if (more == NULL) return MSGL_ENOMEM;
        p->ids = more;
        p->cap = cap;
    }
    memcpy(p->ids[p->len++], id, MSGL_STORE_ID);
    return 0;
}

// Adds all ids that are older than `after` (NULL: all), in any order.
static int read_ids(const msgl_batch_store *s, const char *prefix, const char *after,
                    msgl_store_page *out)
{
    DIR *d = open_list(s);
    if (d == NULL) return MSGL_EIO;
    int rc = 0;
    char id[MSGL_STORE_ID] = "";
    for (const struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;) {
        if (!entry_id(e, prefix, "json", id)) continue;
        if (after == NULL || strcmp(id, after) < 0) rc = page_add(out, id);
    }
    closedir(d);
    return rc;
}

int msgl__store_list(const msgl_batch_store *s, const char *prefix, const char *after, size_t limit,
                     msgl_store_page *out)
{
    *out = (msgl_store_page){0};
    const int rc = read_ids(s, prefix, after, out);
    if (rc != 0) {
        msgl__free(out->ids);
        *out = (msgl_store_page){0};
        return rc;
    }
    if (out->len > 0) qsort(out->ids, out->len, sizeof *out->ids, newest_first);
    out->more = out->len > limit;
    if (out->more) out->len = limit;
    for (size_t i = 0; i < out->len; i++) {
        struct stat st;
        char name[64];
        name_of(out->ids[i], "json", name);
        if (fstatat(s->dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0) out->bytes += (size_t)st.st_size;
    }
    return 0;
}

int msgl__store_batch_room(const msgl_batch_store *s, msgl_err *err)
{
    msgl_store_page all = {0};
    const int rc = read_ids(s, MSGL_STORE_BATCH, NULL, &all);
    msgl__free(all.ids);
    if (rc != 0) return msgl__err_set(err, rc, "The batches cannot be counted.");
    if (all.len < (size_t)s->limits.max_batches) return 0;
    return msgl__err_set(err, MSGL_ELIMIT,
                         "The server keeps %zu batches; allowed: %d. Delete some that have ended.",
                         all.len, s->limits.max_batches);
}

bool msgl__store_is_full(const msgl_batch_store *s)
{
    int files;
    int64_t bytes;
    return count_files(s, &files, &bytes) == 0 && bytes >= s->limits.max_bytes;
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
    const msgl_store_limits *l = &s->limits;
    if (files >= l->max_files || bytes + (int64_t)len > l->max_bytes) {
        return msgl__err_set(err, MSGL_ELIMIT,
                             "The server keeps %d files with %" PRId64 " bytes; allowed: %d files, "
                             "%" PRId64 " bytes. Delete some.",
                             files, bytes, l->max_files, l->max_bytes);
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
