// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/list.h"

#include <stdio.h>
#include <string.h>

#include "core/mem.h"
#include "apps/hub/choose.h"
#include "utils/file.h"
#include "utils/gguf_split.h"
#include "utils/json.h"
#include "utils/strbuf.h"

static bool take_file(const msgl_hub_said *said, msgl_hub_file *f)
{
    if (!json_is_integer(said->size) || json_integer_value(said->size) < 0 ||
        (uint64_t)json_integer_value(said->size) > MSGL_HUB_MAX_BYTES) {
        return false;
    }
    if (said->checksum == NULL || !msgl__hub_is_checksum(said->checksum)) return false;
    f->size = (uint64_t)json_integer_value(said->size);
    (void)snprintf(f->path, sizeof f->path, "%s", said->path);
    (void)snprintf(f->checksum, sizeof f->checksum, "%s", said->checksum);
    return true;
}

// Looks at every name before one is used, and refuses the list for a single bad one.
static int check_names(const msgl_hub_kind *kind, const json_t *files, const msgl_hub_name *name,
                       msgl_err *err)
{
    size_t i;
    const json_t *entry;
    json_array_foreach(files, i, entry)
    {
        char shown[100];
        msgl_hub_said said = {0};
        (void)kind->file(entry, &said);
        if (said.path != NULL && msgl__hub_path_ok(said.path)) continue;
        msgl__printable(said.path != NULL ? said.path : "none", shown, sizeof shown);
        return msgl__err_set(err, MSGL_EFORMAT,
                             "%.80s: the hub's list has the file name \"%s\", which is not "
                             "allowed; nothing was downloaded",
                             name->repo, shown);
    }
    return 0;
}

// Takes the files that `wanted` says, all of which have to have a size and a checksum.
static int take(const msgl_hub_kind *kind, const json_t *files, const msgl_hub_name *name,
                bool (*wanted)(const char *path, const char *file), msgl_hub_list *out,
                msgl_err *err)
{
    size_t i;
    const json_t *entry;
    json_array_foreach(files, i, entry)
    {
        msgl_hub_said said = {0};
        if (!kind->file(entry, &said) || !wanted(said.path, out->file)) continue;
        msgl_hub_file *f = &out->files[out->count];
        if (!take_file(&said, f)) {
            return msgl__err_set(err, MSGL_EFORMAT,
                                 "%.80s: the hub's list says no size or no checksum of %.80s",
                                 name->repo, said.path);
        }
        out->bytes += f->size; // at most MSGL_HUB_MAX_FILES * MSGL_HUB_MAX_BYTES < 2^60
        out->count++;
    }
    return 0;
}

static bool of_model(const char *path, const char *file)
{
    (void)file;
    return msgl__hub_wanted(path);
}

static bool of_file(const char *path, const char *file)
{
    return strcmp(path, file) == 0 || msgl__gguf_same_model(path, file);
}

// Sets out->file to the .gguf file that is asked for. How many there are.
static size_t choose(const msgl_hub_kind *kind, const json_t *files, const msgl_hub_name *name,
                     msgl_hub_list *out)
{
    size_t i;
    const json_t *entry;
    msgl_hub_choice c = {.name = name};
    json_array_foreach(files, i, entry)
    {
        msgl_hub_said said = {0};
        if (kind->file(entry, &said)) msgl__hub_offer(&c, said.path);
    }
    (void)snprintf(out->file, sizeof out->file, "%s", c.file);
    out->models = name->file[0] == '\0' && name->type[0] == '\0' ? c.models : 0;
    return c.models;
}

// Writes the names of up to three of a hub's .gguf files, models or others, as they stand behind
// ORG/NAME. How many there are.
static size_t show_files(const msgl_hub_kind *kind, const json_t *files, bool models, char out[160])
{
    static const char MORE[] = ", ...";
    size_t i, n = 0, shown = 0, count = 0;
    const json_t *entry;
    out[0] = '\0';
    json_array_foreach(files, i, entry)
    {
        char path[100];
        msgl_hub_said said = {0};
        if (!kind->file(entry, &said) || !msgl__ends_with(said.path, ".gguf") ||
            msgl__gguf_is_model(said.path) != models) {
            continue;
        }
        msgl__printable(said.path, path, sizeof path);
        count++;
        if (shown == 3 || n + strlen(path) + sizeof MORE >= 160) continue;
        n += (size_t)snprintf(out + n, 160 - n, "%s%s", shown++ > 0 ? ", " : "", path);
    }
    if (shown < count) (void)snprintf(out + n, 160 - n, "%s", MORE);
    return count;
}

// Sets the error of a model that has nothing to run.
static int no_weights(const msgl_hub_kind *kind, const json_t *files, const msgl_hub_name *name,
                      size_t models, msgl_err *err)
{
    char list[160];
    if (name->file[0] != '\0') {
        return msgl__err_set(err, MSGL_ENOENT, "%.80s has no file %.100s at revision %.40s",
                             name->repo, name->file, name->revision);
    }
    const size_t count = show_files(kind, files, models > 0, list);
    if (models > 0) {
        return msgl__err_set(err, MSGL_ENOENT, "%.60s has no .gguf file of type %s; its %zu are %s",
                             name->repo, name->type, models, list);
    }
    if (count > 0) {
        return msgl__err_set(err, MSGL_ENOENT,
                             "%.60s has no model: found %s, allowed .gguf files other than "
                             "projectors (mmproj), importance matrices and later parts",
                             name->repo, list);
    }
    return msgl__err_set(err, MSGL_ENOENT, "%.100s has %s: no weights that can be run here",
                         name->repo,
                         name->type[0] != '\0' ? "no *.gguf" : "neither *.safetensors nor *.gguf");
}

// Checks that all parts of a model are in the list; out->file becomes the first of them.
static int check_parts(const msgl_hub_name *name, msgl_hub_list *out, msgl_err *err)
{
    msgl_gguf_split_name split;
    if (!msgl__gguf_split_of(out->file, &split)) return 0;
    for (size_t i = 0; i < out->count; i++) {
        if (msgl__gguf_is_model(out->files[i].path)) { // the first part's name
            (void)snprintf(out->file, sizeof out->file, "%s", out->files[i].path);
        }
    }
    if (out->count == split.count) return 0;
    return msgl__err_set(err, MSGL_ENOENT, "%.80s has %zu of the %u files that %.100s is one of",
                         name->repo, out->count, (unsigned)split.count, out->file);
}

static int read_files(const msgl_hub_kind *kind, const json_t *files, const msgl_hub_name *name,
                      msgl_hub_list *out, msgl_err *err)
{
    int rc = check_names(kind, files, name, err);
    if (rc != 0) return rc;
    if (name->file[0] == '\0' && name->type[0] == '\0') {
        rc = take(kind, files, name, of_model, out, err);
        for (size_t i = 0; i < out->count; i++) {
            if (msgl__ends_with(out->files[i].path, ".safetensors")) return rc;
        }
        if (rc != 0) return rc;
        out->count = out->bytes = 0;
    }
    const size_t models = choose(kind, files, name, out);
    if (out->file[0] == '\0') return no_weights(kind, files, name, models, err);
    rc = take(kind, files, name, of_file, out, err);
    return rc == 0 ? check_parts(name, out, err) : rc;
}

int msgl__hub_list_parse(const msgl_hub_kind *kind, const char *text, size_t len,
                         const msgl_hub_name *name, msgl_hub_list *out, msgl_err *err)
{
    *out = (msgl_hub_list){0};
    json_t *root = NULL;
    const json_t *files = NULL;
    if (msgl__json_parse("list", text, len, 0, &root, NULL) != 0) {
        return msgl__hub_malformed(name, "found no JSON; is this a hub's address?", err);
    }
    int rc = kind->list(root, name, out->commit, &files, err);
    if (rc == 0) {
        out->files = msgl__calloc(json_array_size(files), sizeof *out->files);
        rc = out->files == NULL ? msgl__err_set(err, MSGL_ENOMEM, "out of memory")
                                : read_files(kind, files, name, out, err);
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
