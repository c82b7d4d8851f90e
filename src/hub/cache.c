// SPDX-License-Identifier: Apache-2.0
#include "hub/cache.h"

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
#include "utils/file.h"
#include "utils/json.h"

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static int fail(const char *path, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EIO, "%.160s: %s", path, strerror(errno));
}

int msgl__hub_cache_init(const char *root, const msgl_hub_name *name, msgl_hub_cache *out,
                         msgl_err *err)
{
    if (strlen(root) >= sizeof out->root) {
        return msgl__err_set(err, MSGL_EINVAL, "the cache's path has more than %zu bytes",
                             sizeof out->root - 1);
    }
    const int org = (int)strcspn(name->repo, "/");
    const char *model = name->repo + org + 1;
    (void)snprintf(out->root, sizeof out->root, "%s", root);
    (void)snprintf(out->folder, sizeof out->folder, "%s/models--%.*s--%s", root, org, name->repo,
                   model);
    (void)snprintf(out->locks, sizeof out->locks, "%s/.locks/models--%.*s--%s", root, org,
                   name->repo, model);
    return 0;
}

bool msgl__hub_cache_commit(const msgl_hub_cache *c, const char *revision, char commit[41])
{
    char path[MSGL_HUB_PATH], *text;
    size_t len;
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

static bool has_weights(const char *snapshot)
{
    bool any = false;
    DIR *d = opendir(snapshot);
    for (struct dirent *e; d != NULL && !any && (e = readdir(d)) != NULL;) {
        char path[MSGL_HUB_PATH + 300];
        (void)snprintf(path, sizeof path, "%s/%s", snapshot, e->d_name);
        any = (msgl__hub_ends_with(e->d_name, ".safetensors") ||
               msgl__hub_ends_with(e->d_name, ".gguf")) &&
              exists(path);
    }
    if (d != NULL) closedir(d);
    return any;
}

bool msgl__hub_cache_complete(const char *snapshot, const msgl_hub_name *name)
{
    char path[MSGL_HUB_PATH + MSGL_HUB_MAX_PATH + 2];
    if (name->file[0] != '\0') {
        (void)snprintf(path, sizeof path, "%s/%s", snapshot, name->file);
        return exists(path);
    }
    (void)snprintf(path, sizeof path, "%s/model.safetensors.index.json", snapshot);
    if (exists(path)) return has_shards(snapshot, path);
    return has_weights(snapshot);
}

int msgl__hub_cache_set_commit(const msgl_hub_cache *c, const char *revision, const char *commit,
                               msgl_err *err)
{
    char path[MSGL_HUB_PATH];
    (void)snprintf(path, sizeof path, "%s/refs/%s", c->folder, revision);
    const int rc = msgl__file_make_parents(path, 0777, err);
    return rc == 0 ? msgl__file_replace(path, 0666, commit, strlen(commit), err) : rc;
}

int msgl__hub_cache_link(const msgl_hub_cache *c, const char *commit, const char *file,
                         const char *checksum, msgl_err *err)
{
    char path[MSGL_HUB_PATH + MSGL_HUB_MAX_PATH], tmp[sizeof path + 32];
    char target[3 * MSGL_HUB_MAX_PATH + 128], now[sizeof target];
    (void)snprintf(path, sizeof path, "%s/snapshots/%s/%s", c->folder, commit, file);
    int n = snprintf(target, sizeof target, "../../");
    for (const char *p = file; (p = strchr(p, '/')) != NULL; p++) {
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
    for (bool told = false; flock(*fd, LOCK_EX | LOCK_NB) != 0; told = true) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || *interrupted) {
            const int why = errno;
            close(*fd);
            errno = why;
            return *interrupted ? msgl__err_set(err, MSGL_EABORTED, "interrupted")
                                : fail(path, err);
        }
        if (!told && waiting != NULL) waiting(ctx);
        const struct timespec t = {.tv_nsec = 100000000};
        nanosleep(&t, NULL);
    }
    return 0;
}
