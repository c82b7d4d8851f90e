// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "apps/hub/choose.h"
#include "apps/hub/sha.h"
#include "utils/file.h"
#include "utils/gguf_split.h"
#include "utils/json.h"
#include "utils/strbuf.h"

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static int fail(const char *path, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EIO, "%.160s: %s", path, strerror(errno));
}

int msgl__hub_cache_init(const char *root, const msgl_hub_kind *kind, const msgl_hub_name *name,
                         msgl_hub_cache *out, msgl_err *err)
{
    if (strlen(root) >= sizeof out->root) {
        return msgl__err_set(err, MSGL_EINVAL, "the cache's path has more than %zu bytes",
                             sizeof out->root - 1);
    }
    const int org = (int)strcspn(name->repo, "/");
    const char *model = name->repo + org + 1;
    out->kind = kind;
    (void)snprintf(out->root, sizeof out->root, "%s", root);
    (void)snprintf(out->folder, sizeof out->folder, "%s/%s%.*s--%s", root, kind->prefix, org,
                   name->repo, model);
    (void)snprintf(out->locks, sizeof out->locks, "%s/.locks/%s%.*s--%s", root, kind->prefix, org,
                   name->repo, model);
    return 0;
}

bool msgl__hub_cache_commit(const msgl_hub_cache *c, const char *revision,
                            char commit[MSGL_HUB_MAX_REVISION + 1])
{
    char path[MSGL_HUB_PATH], *text;
    size_t len;
    if (!c->kind->refs) {
        (void)snprintf(commit, MSGL_HUB_MAX_REVISION + 1, "%s", revision);
        return true;
    }
    (void)snprintf(path, sizeof path, "%s/refs/%s", c->folder, revision);
    if (msgl__file_read(path, 4096, &text, &len, NULL) != 0) {
        if (!msgl__hub_is_commit(revision)) return false;
        (void)snprintf(commit, 41, "%s", revision);
        return true;
    }
    text[strcspn(text, "\r\n")] = '\0';
    const bool ok = strlen(text) <= 40 && msgl__hub_path_ok(text) && strchr(text, '/') == NULL;
    if (ok) (void)snprintf(commit, 41, "%s", text);
    msgl__free(text);
    return ok;
}

bool msgl__hub_cache_snapshot(const msgl_hub_cache *c, const char *commit, char out[MSGL_HUB_PATH])
{
    struct stat st;
    (void)snprintf(out, MSGL_HUB_PATH, "%s/snapshots/%s", c->folder, commit);
    return stat(out, &st) == 0 && S_ISDIR(st.st_mode);
}

// Whether every shard that an index names is there.
static bool has_shards(const char *snapshot, const char *index)
{
    json_t *root = NULL;
    if (msgl__json_load(index, (size_t)64 << 20, 0, &root, NULL) != 0) return false;
    bool all = true;
    const char *key;
    json_t *file;
    json_object_foreach(json_object_get(root, "weight_map"), key, file)
    {
        char path[MSGL_HUB_PATH + MSGL_HUB_MAX_PATH + 2];
        const char *name = json_string_value(file);
        if (name == NULL || !msgl__hub_path_ok(name)) continue; // whoever reads it says so
        (void)snprintf(path, sizeof path, "%s/%s", snapshot, name);
        if (!exists(path)) all = false;
    }
    json_decref(root);
    return all;
}

static void path_in(const char *folder, const char *name, char out[MSGL_HUB_PATH])
{
    (void)snprintf(out, MSGL_HUB_PATH, "%.*s/%.*s", MSGL_HUB_PATH - 260, folder, 256, name);
}

static bool has_safetensors(const char *snapshot)
{
    bool any = false;
    DIR *d = opendir(snapshot);
    for (struct dirent *e; d != NULL && !any && (e = readdir(d)) != NULL;) {
        char path[MSGL_HUB_PATH];
        path_in(snapshot, e->d_name, path);
        any = msgl__ends_with(e->d_name, ".safetensors") && exists(path);
    }
    if (d != NULL) closedir(d);
    return any;
}

// Offers the .gguf files of a folder and of those in it.
static void offer(const char *snapshot, const char *folder, int depth, msgl_hub_choice *c)
{
    char path[MSGL_HUB_PATH];
    path_in(snapshot, folder, path);
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        char name[MSGL_HUB_MAX_PATH + 1];
        struct stat st;
        const int n =
            snprintf(name, sizeof name, "%s%s%s", folder, *folder != '\0' ? "/" : "", e->d_name);
        if (n < 0 || (size_t)n >= sizeof name || !msgl__hub_path_ok(name)) continue;
        path_in(snapshot, name, path);
        if (stat(path, &st) != 0) continue;
        if (S_ISDIR(st.st_mode) && depth > 0) offer(snapshot, name, depth - 1, c);
        if (S_ISREG(st.st_mode)) msgl__hub_offer(c, name);
    }
    if (d != NULL) closedir(d);
}

// Whether all parts of the file are there; name->file becomes the first of them.
static bool has_file(const char *snapshot, msgl_hub_name *name)
{
    char first[MSGL_HUB_PATH], path[MSGL_HUB_PATH];
    msgl_gguf_split_name split;
    path_in(snapshot, name->file, path);
    if (!msgl__gguf_split_of(path, &split)) return exists(path);
    for (uint32_t no = split.count; no > 0; no--) {
        if (msgl__gguf_split_path(path, &split, no, first, sizeof first, NULL) != 0) return false;
        if (!exists(first)) return false;
    }
    (void)snprintf(name->file, sizeof name->file, "%s", first + strlen(snapshot) + 1);
    return true;
}

bool msgl__hub_cache_complete(const char *snapshot, msgl_hub_name *name)
{
    char path[MSGL_HUB_PATH];
    if (name->file[0] != '\0') return has_file(snapshot, name);
    path_in(snapshot, "model.safetensors.index.json", path);
    if (name->type[0] == '\0' && exists(path)) return has_shards(snapshot, path);
    if (name->type[0] == '\0' && has_safetensors(snapshot)) return true;
    msgl_hub_choice c = {.name = name};
    offer(snapshot, "", 2, &c);
    msgl_hub_name chosen = *name;
    (void)snprintf(chosen.file, sizeof chosen.file, "%s", c.file);
    if (chosen.file[0] == '\0' || !has_file(snapshot, &chosen)) return false;
    *name = chosen;
    return true;
}

bool msgl__hub_cache_older(const msgl_hub_cache *c, msgl_hub_name *name, char out[MSGL_HUB_PATH])
{
    for (size_t i = 0; c->kind->older != NULL && c->kind->older[i] != NULL; i++) {
        for (int dots = 0; dots < 2; dots++) { // "." of NAME as it is, or as "___"
            size_t n = (size_t)snprintf(out, MSGL_HUB_PATH, "%s/%s", c->root, c->kind->older[i]);
            bool model = false;
            for (const char *p = name->repo; *p != '\0' && n + 4 < MSGL_HUB_PATH; p++) {
                const bool dot = model && dots == 0 && *p == '.';
                n += (size_t)snprintf(out + n, MSGL_HUB_PATH - n, "%.*s", dot ? 3 : 1,
                                      dot ? "___" : p);
                model = model || *p == '/';
            }
            if (msgl__hub_cache_complete(out, name)) return true;
        }
    }
    return false;
}

bool msgl__hub_cache_adopt(const msgl_hub_cache *c, const char *path, const char *checksum,
                           uint64_t size, const volatile sig_atomic_t *interrupted)
{
    static char buf[1 << 16];
    char blob[MSGL_HUB_PATH], sum[65];
    msgl_sha sha = {0};
    uint64_t seen = 0;
    ssize_t n = 0;
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    const bool same = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == size &&
                      strlen(checksum) == 64;
    msgl__sha_start(&sha, MSGL_SHA256);
    while (same && !*interrupted && (n = read(fd, buf, sizeof buf)) > 0) {
        msgl__sha_add(&sha, buf, (size_t)n);
        seen += (uint64_t)n;
    }
    msgl__sha_end(&sha, sum);
    msgl__sha_free(&sha);
    close(fd);
    if (!same || seen != size || strcmp(sum, checksum) != 0) return false;
    (void)snprintf(blob, sizeof blob, "%s/blobs/%s", c->folder, checksum);
    return link(path, blob) == 0;
}

int msgl__hub_cache_set_commit(const msgl_hub_cache *c, const char *revision, const char *commit,
                               msgl_err *err)
{
    char path[MSGL_HUB_PATH];
    if (!c->kind->refs) return 0;
    (void)snprintf(path, sizeof path, "%s/refs/%s", c->folder, revision);
    const int rc = msgl__file_make_parents(path, 0777, err);
    return rc == 0 ? msgl__file_replace(path, 0666, commit, strlen(commit), err) : rc;
}

int msgl__hub_cache_link(const msgl_hub_cache *c, const char *commit, const char *file,
                         const char *checksum, msgl_err *err)
{
    char path[MSGL_HUB_PATH + MSGL_HUB_MAX_PATH], tmp[sizeof path + 32];
    char target[3 * (MSGL_HUB_MAX_PATH + MSGL_HUB_MAX_REVISION) + 128], now[sizeof target];
    (void)snprintf(path, sizeof path, "%s/snapshots/%s/%s", c->folder, commit, file);
    int n = snprintf(target, sizeof target, "../");
    for (const char *p = path + strlen(c->folder) + sizeof "/snapshots/" - 1;
         (p = strchr(p, '/')) != NULL; p++) { // folders of the snapshot's name too
        n += snprintf(target + n, sizeof target - (size_t)n, "../");
    }
    (void)snprintf(target + n, sizeof target - (size_t)n, "blobs/%s", checksum);
    const ssize_t have = readlink(path, now, sizeof now - 1);
    if (have > 0 && (size_t)have == strlen(target) && memcmp(now, target, (size_t)have) == 0) {
        return 0;
    }
    const int rc = msgl__file_make_parents(path, 0777, err);
    if (rc != 0) return rc;
    (void)snprintf(tmp, sizeof tmp, "%s.%ld.tmp", path, (long)getpid());
    (void)unlink(tmp);
    if (symlink(target, tmp) != 0 || rename(tmp, path) != 0) {
        const int why = errno;
        (void)unlink(tmp);
        errno = why;
        return fail(path, err);
    }
    return 0;
}

int msgl__hub_cache_lock(const msgl_hub_cache *c, const char *checksum,
                         const volatile sig_atomic_t *interrupted, void (*waiting)(void *ctx),
                         void *ctx, int *fd, msgl_err *err)
{
    char path[MSGL_HUB_PATH];
    (void)snprintf(path, sizeof path, "%s/%s.lock", c->locks, checksum);
    const int rc = msgl__file_make_parents(path, 0777, err);
    if (rc != 0) return rc;
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0) return fail(path, err);
    for (bool first = true; flock(*fd, LOCK_EX | LOCK_NB) != 0; first = false) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || *interrupted) {
            const int why = errno;
            close(*fd);
            errno = why;
            return *interrupted ? msgl__err_set(err, MSGL_EABORTED, "interrupted")
                                : fail(path, err);
        }
        if (first && waiting != NULL) waiting(ctx);
        const struct timespec t = {.tv_nsec = 100000000};
        nanosleep(&t, NULL);
    }
    return 0;
}
