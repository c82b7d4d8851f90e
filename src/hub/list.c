// SPDX-License-Identifier: Apache-2.0
#include "hub/list.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "utils/file.h"
#include "utils/json.h"

static int malformed(const msgl_hub_name *name, const char *what, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EFORMAT, "%.100s: the hub's list of files: %.120s", name->repo,
                         what);
}

static bool is_wanted(const msgl_hub_name *name, const char *path)
{
    return name->file[0] != '\0' ? strcmp(path, name->file) == 0 : msgl__hub_wanted(path);
}

// An entry's size and checksum: of its content if it is large (lfs), else git's.
static bool read_entry(const json_t *entry, msgl_hub_file *f)
{
    const json_t *lfs = json_object_get(entry, "lfs");
    const json_t *size = json_object_get(json_is_object(lfs) ? lfs : entry, "size");
    const char *sum = json_string_value(json_is_object(lfs) ? json_object_get(lfs, "sha256")
                                                            : json_object_get(entry, "blobId"));
    if (!json_is_integer(size) || json_integer_value(size) < 0 ||
        (uint64_t)json_integer_value(size) > MSGL_HUB_MAX_BYTES) {
        return false;
    }
    if (sum == NULL || !msgl__hub_is_checksum(sum)) return false;
    f->size = (uint64_t)json_integer_value(size);
    (void)snprintf(f->checksum, sizeof f->checksum, "%s", sum);
    return true;
}

// What is missing in a list without weights that can be run.
static int no_weights(const json_t *siblings, const msgl_hub_name *name, msgl_err *err)
{
    char example[128] = "";
    size_t i, gguf = 0;
    json_t *entry;
    json_array_foreach(siblings, i, entry)
    {
        const char *path = json_string_value(json_object_get(entry, "rfilename"));
        if (path == NULL || !msgl__hub_ends_with(path, ".gguf")) continue;
        if (gguf++ == 0) msgl__printable(path, example, sizeof example);
    }
    if (name->file[0] != '\0') {
        return msgl__err_set(err, MSGL_ENOENT, "%.80s has no file %.100s at revision %.40s",
                             name->repo, name->file, name->revision);
    }
    if (gguf > 0) {
        return msgl__err_set(err, MSGL_ENOENT,
                             "%.70s has no *.safetensors; name one of its %zu .gguf files, as in "
                             "%.70s/%.80s",
                             name->repo, gguf, name->repo, example);
    }
    return msgl__err_set(err, MSGL_ENOENT,
                         "%.100s has neither *.safetensors nor *.gguf: no weights that can be run "
                         "here",
                         name->repo);
}

static int read_files(const json_t *siblings, const msgl_hub_name *name, msgl_hub_list *out,
                      msgl_err *err)
{
    size_t i;
    json_t *entry;
    bool weights = false;
    json_array_foreach(siblings, i, entry)
    {
        const char *path = json_string_value(json_object_get(entry, "rfilename"));
        char shown[100];
        if (path == NULL || !msgl__hub_path_ok(path)) {
            msgl__printable(path != NULL ? path : "none", shown, sizeof shown);
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%.80s: the hub's list has the file name \"%s\", which is not "
                                 "allowed; nothing was downloaded",
                                 name->repo, shown);
        }
        if (!is_wanted(name, path)) continue;
        msgl_hub_file *f = &out->files[out->count];
        (void)snprintf(f->path, sizeof f->path, "%s", path);
        if (!read_entry(entry, f)) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%.80s: the hub's list says no size or no checksum of %.80s",
                                 name->repo, path);
        }
        out->bytes += f->size; // at most MSGL_HUB_MAX_FILES * MSGL_HUB_MAX_BYTES < 2^60
        out->count++;
        weights = weights || msgl__hub_ends_with(path, ".safetensors") || name->file[0] != '\0';
    }
    return weights ? 0 : no_weights(siblings, name, err);
}

int msgl__hub_list_parse(const char *text, size_t len, const msgl_hub_name *name,
                         msgl_hub_list *out, msgl_err *err)
{
    *out = (msgl_hub_list){0};
    json_t *root = NULL;
    if (msgl__json_parse("list", text, len, 0, &root, NULL) != 0) {
        return malformed(name, "found no JSON; is this a hub's address?", err);
    }
    const char *commit = json_string_value(json_object_get(root, "sha"));
    const json_t *siblings = json_object_get(root, "siblings");
    int rc = 0;
    if (commit == NULL || !msgl__hub_is_commit(commit)) {
        rc = malformed(name, "\"sha\" is no commit", err);
    } else if (!json_is_array(siblings) || json_array_size(siblings) > MSGL_HUB_MAX_FILES) {
        rc = malformed(name, "\"siblings\" is no list of up to 20000 files", err);
    } else {
        (void)snprintf(out->commit, sizeof out->commit, "%s", commit);
        out->files = msgl__calloc(json_array_size(siblings), sizeof *out->files);
        rc = out->files == NULL ? msgl__err_set(err, MSGL_ENOMEM, "out of memory")
                                : read_files(siblings, name, out, err);
    }
    json_decref(root);
    if (rc != 0) msgl__hub_list_free(out);
    return rc;
}

void msgl__hub_list_free(msgl_hub_list *l)
{
    msgl__free(l->files);
    *l = (msgl_hub_list){0};
}
