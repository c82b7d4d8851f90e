// SPDX-License-Identifier: Apache-2.0
//
// Which model --model means: a path, or a name that the program looks up (msgl_model_names).
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/common.h"
#include "core/attributes.h"
#include "core/err.h"
#include "core/mem.h"
#include "utils/file.h"
#include "utils/gguf.h"

// Finds the snapshot in a folder of the hub's cache: the one that refs/main names, or the only one.
static int find_snapshot(const char *folder, char *out, size_t size, msgl_err *err)
{
    char path[1100], *text = NULL;
    size_t len = 0;
    msgl_err ignored;
    struct stat st;
    (void)snprintf(path, sizeof path, "%.1000s/refs/main", folder);
    const bool named = msgl__file_read(path, 128, &text, &len, &ignored) == 0;
    if (named) {
        (void)snprintf(out, size, "%.1000s/snapshots/%.*s", folder, (int)strcspn(text, "\r\n/"),
                       text);
    }
    msgl__free(text);
    if (named && stat(out, &st) == 0 && S_ISDIR(st.st_mode)) return 0;
    (void)snprintf(path, sizeof path, "%.1000s/snapshots", folder);
    DIR *d = opendir(path);
    int found = 0;
    for (const struct dirent *e; d != NULL && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        (void)snprintf(out, size, "%.1000s/%.200s", path, e->d_name);
        found++;
    }
    if (d != NULL) closedir(d);
    if (found == 1) return 0;
    return msgl__err_set(err, MSGL_ENOENT,
                         "--model %s: found %d snapshots and no refs/main; allowed: one of them, "
                         "as snapshots/COMMIT in it",
                         msgl__path_shown(folder), found);
}

int msgl__cli_take_address(msgl_args *a, msgl_err *err)
{
    static char name[1400];
    const char *source, *model = a->engine.model_dir;
    struct stat st;
    if (model == NULL) return 0;
    if (stat(model, &st) != 0) {
        if (a->names == NULL || !a->names->of_address(model, name, sizeof name, &source)) return 0;
        a->engine.model_dir = name;
        if (a->model_source == NULL) a->model_source = source;
        return 0;
    }
    char path[1200], folder[1000];
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/') n--;
    if (n >= sizeof folder) return 0;
    (void)snprintf(folder, sizeof folder, "%.*s", (int)n, model);
    (void)snprintf(path, sizeof path, "%s/snapshots", folder);
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return 0;
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    if (stat(path, &st) == 0) return 0;
    const int rc = find_snapshot(folder, name, sizeof name, err);
    if (rc == 0) a->engine.model_dir = name;
    return rc;
}

// What a folder without a model is, as the words behind "is"; NULL: it is not known.
static const char *kind_of_folder(const char *dir)
{
    static const struct {
        const char *file, *kind;
    } KINDS[] = {
        {"adapter_config.json", "a LoRA adapter; merge it into its model, and give that"},
        {"model_index.json", "a pipeline of diffusers, which makes images"},
        {"params.json", "in Meta's or Mistral's own form; the hub has it as *.safetensors, too"},
        {"tokenizer.json", "a tokenizer alone"},
    };
    char path[1200];
    for (size_t i = 0; i < MSGL_COUNT(KINDS); i++) {
        (void)snprintf(path, sizeof path, "%.1100s/%s", dir, KINDS[i].file);
        if (access(path, F_OK) == 0) return KINDS[i].kind;
    }
    return NULL;
}

// Refuses a folder that has no model. Whether a file has one, its format says when it is read.
static int check_folder(const char *flag, const char *dir, msgl_err *err)
{
    char path[1200], file[1200];
    (void)snprintf(path, sizeof path, "%.1100s/config.json", dir);
    if (access(path, F_OK) == 0 || msgl__gguf_find(dir, file, sizeof file, NULL) != 0) return 0;
    const char *kind = kind_of_folder(dir);
    return msgl__err_set(err, MSGL_ENOENT,
                         "%s %s: %s%s; allowed: a folder with config.json and *.safetensors, "
                         "or with one model as .gguf",
                         flag, msgl__path_shown(dir), kind != NULL ? "is " : "has no config.json",
                         kind != NULL ? kind : "");
}

// The model that `flag` names.
static int find_dir(const msgl_args *a, const char *flag, char **out, msgl_err *err)
{
    const char *model = a->engine.model_dir;
    struct stat st;
    if (stat(model, &st) == 0) {
        if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode)) {
            return msgl__err_set(err, MSGL_EINVAL, "%s %.150s: neither a folder nor a file", flag,
                                 model);
        }
        if (a->revision != NULL) {
            return msgl__err_set(err, MSGL_EINVAL,
                                 "--revision is for models of a hub, and %s %.150s is here", flag,
                                 model);
        }
        const int rc = S_ISDIR(st.st_mode) ? check_folder(flag, model, err) : 0;
        if (rc != 0) return rc;
        *out = msgl__strdup(model);
        if (*out == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
        for (size_t n = strlen(model); n > 1 && model[n - 1] == '/';) (*out)[--n] = '\0';
        return 0;
    }
    if (errno != ENOENT && errno != ENOTDIR) {
        return msgl__err_set(err, MSGL_EIO, "%s %.150s: %s", flag, model, strerror(errno));
    }
    if (a->names != NULL) return a->names->find(a, flag, out, err);
    return msgl__err_set(err, MSGL_ENOENT,
                         "%s %.150s: no such folder or file, and this program was built without "
                         "hubs",
                         flag, model);
}

int msgl__cli_model_dir(const msgl_args *a, char **out, msgl_err *err)
{
    if (a->engine.model_dir != NULL) return find_dir(a, "--model", out, err);
    return msgl__err_set(err, MSGL_EINVAL,
                         "--model PATH is needed: a Hugging Face model folder, a .gguf file, or "
                         "ORG/NAME of the hub");
}

int msgl__cli_draft_dir(const msgl_args *a, const char *model, char **out, msgl_err *err)
{
    msgl_args of_draft = *a;
    of_draft.engine.model_dir = model;
    of_draft.revision = NULL; // which is the model's
    return find_dir(&of_draft, "--speculative-draft-model-path", out, err);
}

const char *msgl__cli_model_name(const msgl_args *a, const char *dir)
{
    struct stat st;
    const char *model = a->engine.model_dir;
    const bool path = stat(model, &st) == 0;
    const char *text = path ? dir : model, *repo = strstr(dir, "models--");
    const char *cached = repo != NULL ? strstr(repo, "/snapshots/") : NULL;
    if (path && cached != NULL) { // ".../models--ORG--NAME/snapshots/COMMIT"
        static char name[256];    // of a folder
        const char *last = repo, *p = repo;
        while ((p = memmem(p, (size_t)(cached - p), "--", 2)) != NULL) last = p += 2;
        (void)snprintf(name, sizeof name, "%.*s", (int)(cached - last), last);
        return name;
    }
    const char *slash = memrchr(text, '/', path ? strlen(text) : strcspn(text, "@"));
    return slash != NULL && slash[1] != '\0' ? slash + 1 : text;
}
