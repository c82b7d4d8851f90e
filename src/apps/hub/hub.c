// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/hub.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/mem.h"
#include "apps/hub/cache.h"
#include "apps/hub/fetch.h"
#include "apps/hub/list.h"
#include "utils/file.h"
#include "utils/json.h"
#include "utils/strbuf.h"

struct pull {
    const msgl_hub *hub;
    msgl_hub_name name; // with the hub's revision, and the file once one is chosen
    const char *endpoint;
    char older[MSGL_HUB_PATH]; // a copy of its client's; "": none
    msgl_hub_cache cache;
    msgl_hub_list list;
    msgl_fetch *fetch;
    uint64_t done;    // bytes of files before this one
    uint64_t start;   // bytes of this one that were here before
    uint64_t current; // and now
    uint64_t received;
};

static void tell(const struct pull *p, const char *line)
{
    if (p->hub->log != NULL) p->hub->log(p->hub->ctx, line);
}

static void on_log(void *ctx, const char *line)
{
    tell(ctx, line);
}

static void on_waiting(void *ctx)
{
    tell(ctx, "another process downloads this file; waiting for it");
}

static void on_bytes(void *ctx, uint64_t done)
{
    struct pull *p = ctx;
    if (done >= p->current) p->received += done - p->current;
    p->current = done;
    if (p->hub->progress == NULL) return;
    p->hub->progress(p->hub->ctx, p->done + done, p->list.bytes, p->received);
}

static uint64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
}

static void blob_path(const struct pull *p, const msgl_hub_file *f, const char *end,
                      char out[MSGL_HUB_PATH])
{
    (void)snprintf(out, MSGL_HUB_PATH, "%s/blobs/%s%s", p->cache.folder, f->checksum, end);
}

// A blob is written elsewhere and renamed when it is right, so that its being there is enough.
static bool has_blob(const struct pull *p, const msgl_hub_file *f)
{
    char path[MSGL_HUB_PATH];
    struct stat st;
    blob_path(p, f, "", path);
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->size;
}

// Whether the hub's own client has written a file of this size: in the place where a snapshot of
// ours has a link, or in its older layout.
static bool client_file(const struct pull *p, const msgl_hub_file *f, char path[MSGL_HUB_PATH])
{
    struct stat st;
    if (p->hub->kind->refs) return false;
    (void)snprintf(path, MSGL_HUB_PATH, "%s/snapshots/%s/%s", p->cache.folder, p->list.commit,
                   f->path);
    if (lstat(path, &st) != 0 && p->older[0] != '\0') {
        (void)snprintf(path, MSGL_HUB_PATH, "%.*s/%s", MSGL_HUB_PATH - MSGL_HUB_MAX_PATH - 2,
                       p->older, f->path);
    }
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == f->size;
}

// ---- the list ----

// Reads the text at the address that `make` writes.
static int get_text(struct pull *p,
                    int (*make)(msgl_strbuf *url, const char *endpoint, const msgl_hub_name *name),
                    msgl_strbuf *text, msgl_err *err)
{
    msgl_strbuf url;
    char what[400];
    (void)snprintf(what, sizeof what, "%s (revision %.60s)", p->name.repo, p->name.revision);
    msgl__strbuf_init(&url, 4096);
    int rc = make(&url, p->endpoint, &p->name);
    if (rc != 0) {
        rc = msgl__err_set(err, rc, "%.100s: the hub's address is too long", p->name.repo);
    } else {
        rc = msgl__fetch_text(p->fetch, msgl__strbuf_str(&url), what, text, err);
    }
    msgl__strbuf_free(&url);
    return rc;
}

// Whether a list was refused because there is no such revision; *err says so then. A hub that
// cannot tell leaves it as it is.
static bool no_revision(struct pull *p, msgl_err *err)
{
    const msgl_hub_kind *kind = p->hub->kind;
    msgl_strbuf text;
    json_t *root = NULL;
    msgl_err ignored;
    if (kind->revisions_url == NULL) return false;
    msgl__strbuf_init(&text, MSGL_HUB_MAX_LIST);
    bool none = get_text(p, kind->revisions_url, &text, &ignored) == 0 &&
                msgl__json_parse("list", msgl__strbuf_str(&text), text.len, 0, &root, NULL) == 0;
    none = none && kind->no_revision(root, &p->name, err);
    json_decref(root);
    msgl__strbuf_free(&text);
    return none;
}

static int get_list(struct pull *p, msgl_err *err)
{
    msgl_strbuf text;
    msgl__strbuf_init(&text, MSGL_HUB_MAX_LIST);
    int rc = get_text(p, p->hub->kind->list_url, &text, err);
    if (rc == 0) {
        rc = msgl__hub_list_parse(p->hub->kind, msgl__strbuf_str(&text), text.len, &p->name,
                                  &p->list, err);
    } else if ((rc == MSGL_ENOENT || rc == MSGL_EINVAL) && no_revision(p, err)) {
        rc = MSGL_ENOENT;
    }
    msgl__strbuf_free(&text);
    return rc;
}

// Refuses a download that the disk has no room for: its user should not learn of it after an hour.
static int check_room(const struct pull *p, msgl_err *err)
{
    struct statvfs fs;
    uint64_t needed = 0;
    for (size_t i = 0; i < p->list.count; i++) {
        char partial[MSGL_HUB_PATH], path[MSGL_HUB_PATH];
        const msgl_hub_file *f = &p->list.files[i];
        blob_path(p, f, ".incomplete", partial);
        const bool here = has_blob(p, f) || client_file(p, f, path);
        const uint64_t have = here ? f->size : size_of(partial);
        if (have < f->size) needed += f->size - have;
    }
    if (statvfs(p->cache.root, &fs) != 0) return 0; // writing says what is wrong
    const uint64_t room = (uint64_t)fs.f_bavail * (uint64_t)fs.f_frsize;
    if (needed <= room) return 0;
    return msgl__err_set(err, MSGL_EIO,
                         "%.80s needs %.1f MB more, and %.80s has room for %.1f MB; %s names "
                         "another folder",
                         p->name.repo, (double)needed / 1e6, p->cache.root, (double)room / 1e6,
                         p->hub->kind->cache_from);
}

// ---- one file ----

static int fetch_blob(struct pull *p, const msgl_hub_file *f, msgl_err *err)
{
    char path[MSGL_HUB_PATH], partial[MSGL_HUB_PATH], what[400];
    msgl_strbuf url;
    blob_path(p, f, "", path);
    blob_path(p, f, ".incomplete", partial);
    (void)snprintf(what, sizeof what, "%.90s/%.200s", p->name.repo, f->path);
    msgl__strbuf_init(&url, 8192);
    int rc = p->hub->kind->file_url(&url, p->endpoint, &p->name, p->list.commit, f->path);
    if (rc != 0) {
        rc = msgl__err_set(err, rc, "%.100s: the hub's address is too long", f->path);
    } else {
        const msgl_fetch_file file = {.url = msgl__strbuf_str(&url),
                                      .what = what,
                                      .partial = partial,
                                      .size = f->size,
                                      .checksum = f->checksum};
        p->current = p->start = size_of(partial);
        rc = msgl__fetch_file(p->fetch, &file, err);
    }
    msgl__strbuf_free(&url);
    if (rc == 0 && rename(partial, path) != 0) {
        rc = msgl__err_set(err, MSGL_EIO, "%.160s: %s", path, strerror(errno));
    }
    return rc;
}

// Makes the client's file a blob of ours. It is read once for that, which is faster than a
// download.
static bool adopt(const struct pull *p, const msgl_hub_file *f)
{
    char path[MSGL_HUB_PATH];
    return client_file(p, f, path) &&
           msgl__hub_cache_adopt(&p->cache, path, f->checksum, f->size, p->hub->interrupted);
}

static int get_file(struct pull *p, const msgl_hub_file *f, msgl_err *err)
{
    int lock;
    char path[MSGL_HUB_PATH];
    blob_path(p, f, "", path);
    int rc = msgl__file_make_parents(path, 0777, err);
    if (rc == 0 && !has_blob(p, f)) {
        rc = msgl__hub_cache_lock(&p->cache, f->checksum, p->hub->interrupted, on_waiting, p, &lock,
                                  err);
        if (rc != 0) return rc;
        // The process that had the lock may have downloaded the file.
        if (!has_blob(p, f) && !adopt(p, f)) rc = fetch_blob(p, f, err);
        close(lock);
    }
    if (rc == 0) rc = msgl__hub_cache_link(&p->cache, p->list.commit, f->path, f->checksum, err);
    if (rc == 0) p->done += f->size;
    p->current = 0;
    return rc;
}

// Downloads the weights last, because small files show what is wrong with a model's name or format.
static int get_files(struct pull *p, msgl_err *err)
{
    for (int large = 0; large < 2; large++) {
        for (size_t i = 0; i < p->list.count; i++) {
            const msgl_hub_file *f = &p->list.files[i];
            const int is_large =
                msgl__ends_with(f->path, ".safetensors") || msgl__ends_with(f->path, ".gguf");
            const int rc = is_large == large ? get_file(p, f, err) : 0;
            if (rc != 0) return rc;
        }
    }
    return 0;
}

// Says which of several GGUF files is taken where the name says none.
static void tell_choice(const struct pull *p)
{
    char line[1000];
    if (p->list.models < 2) return;
    (void)snprintf(line, sizeof line,
                   "%s has %zu GGUF models: %.256s is taken; %s:TYPE or %s/FILE.gguf names another",
                   p->name.repo, p->list.models, p->list.file, p->name.repo, p->name.repo);
    tell(p, line);
}

static int download(struct pull *p, char commit[MSGL_HUB_MAX_REVISION + 1], msgl_err *err)
{
    const msgl_fetch_config cfg = {.kind = p->hub->kind,
                                   .endpoint = p->endpoint,
                                   .token = p->hub->token,
                                   .interrupted = p->hub->interrupted,
                                   .log = on_log,
                                   .progress = on_bytes,
                                   .ctx = p};
    char line[1400], path[MSGL_HUB_PATH];
    int rc = msgl__fetch_open(&cfg, &p->fetch, err);
    if (rc == 0) rc = get_list(p, err);
    (void)snprintf(path, sizeof path, "%s/blobs/", p->cache.folder);
    if (rc == 0) rc = msgl__file_make_parents(path, 0777, err);
    if (rc == 0) rc = check_room(p, err);
    if (rc == 0) {
        tell_choice(p);
        (void)snprintf(line, sizeof line, "%s: %zu files, %.1f MB, from %.100s into %.150s",
                       p->name.repo, p->list.count, (double)p->list.bytes / 1e6, p->endpoint,
                       p->cache.root);
        tell(p, line);
        rc = get_files(p, err);
    }
    // The revision is written last, so that one that is known here has all of its files.
    if (rc == 0 && strcmp(p->name.revision, p->list.commit) != 0) {
        rc = msgl__hub_cache_set_commit(&p->cache, p->name.revision, p->list.commit, err);
    }
    (void)snprintf(p->name.file, sizeof p->name.file, "%s", p->list.file);
    (void)snprintf(commit, MSGL_HUB_MAX_REVISION + 1, "%s", p->list.commit);
    msgl__fetch_close(p->fetch);
    msgl__hub_list_free(&p->list);
    return rc;
}

// ---- finding ----

static int result(const char *snapshot, const msgl_hub_name *name, char **out, msgl_err *err)
{
    char path[MSGL_HUB_PATH + MSGL_HUB_MAX_PATH + 2];
    (void)snprintf(path, sizeof path, "%s%s%s", snapshot, name->file[0] != '\0' ? "/" : "",
                   name->file);
    *out = msgl__strdup(path);
    return *out != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "out of memory");
}

int msgl__hub_find(const msgl_hub *hub, const msgl_hub_name *name, char **out, msgl_err *err)
{
    struct pull p = {.hub = hub, .name = *name, .endpoint = hub->endpoint};
    char commit[MSGL_HUB_MAX_REVISION + 1], snapshot[MSGL_HUB_PATH], endpoint[512];
    const bool unsaid = name->revision[0] == '\0';
    if (unsaid) {
        (void)snprintf(p.name.revision, sizeof p.name.revision, "%s", hub->kind->revision);
    }
    int rc = msgl__hub_cache_init(hub->cache, hub->kind, name, &p.cache, err);
    if (rc != 0) return rc;
    const bool here = msgl__hub_cache_commit(&p.cache, p.name.revision, commit) &&
                      msgl__hub_cache_snapshot(&p.cache, commit, snapshot);
    const bool take = !hub->refresh || hub->offline != NULL; // whatever is here
    msgl_hub_name found = p.name;
    if (here && take && msgl__hub_cache_complete(snapshot, &found)) {
        return result(snapshot, &found, out, err);
    }
    if (!unsaid || !msgl__hub_cache_older(&p.cache, &found, p.older)) p.older[0] = '\0';
    if (take && p.older[0] != '\0') return result(p.older, &found, out, err);
    if (hub->offline != NULL) {
        // A command that needs no weights can use what there is.
        if (here && name->file[0] == '\0' && name->type[0] == '\0') {
            return result(snapshot, &p.name, out, err);
        }
        const char *part = name->file[0] != '\0' ? name->file : name->type;
        return msgl__err_set(err, MSGL_ENOENT,
                             "%.70s%s%.50s (revision %.30s) is not in the cache %.60s, and %.60s",
                             name->repo,
                             name->file[0] != '\0'   ? "/"
                             : name->type[0] != '\0' ? ":"
                                                     : "",
                             part, p.name.revision, hub->cache, hub->offline);
    }
    (void)snprintf(endpoint, sizeof endpoint, "%s",
                   p.endpoint != NULL ? p.endpoint : hub->kind->endpoint);
    for (size_t n = strlen(endpoint); n > 0 && endpoint[n - 1] == '/';) endpoint[--n] = '\0';
    p.endpoint = endpoint;
    rc = download(&p, commit, err);
    if (rc != 0) return rc;
    if (msgl__hub_cache_snapshot(&p.cache, commit, snapshot)) {
        return result(snapshot, &p.name, out, err);
    }
    return msgl__err_set(err, MSGL_EINTERNAL, "%.200s is gone", snapshot);
}
