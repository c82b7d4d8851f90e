// SPDX-License-Identifier: Apache-2.0
//
// huggingface.co, and mirrors that speak as it does.
#include <stdio.h>

#include "apps/hub/kind.h"
#include "apps/hub/list.h"

static int list_url(msgl_strbuf *url, const char *endpoint, const msgl_hub_name *name)
{
    int rc = msgl__strbuf_addf(url, "%s/api/models/%s/revision/", endpoint, name->repo);
    if (rc == 0) rc = msgl__hub_add_escaped(url, name->revision, '\0');
    return rc == 0 ? msgl__strbuf_adds(url, "?blobs=true") : rc;
}

static int file_url(msgl_strbuf *url, const char *endpoint, const msgl_hub_name *name,
                    const char *commit, const char *path)
{
    const int rc = msgl__strbuf_addf(url, "%s/%s/resolve/%s/", endpoint, name->repo, commit);
    return rc == 0 ? msgl__hub_add_escaped(url, path, '/') : rc;
}

static int read_list(const json_t *root, const msgl_hub_name *name,
                     char commit[MSGL_HUB_MAX_REVISION + 1], const json_t **files, msgl_err *err)
{
    const char *sha = json_string_value(json_object_get(root, "sha"));
    *files = json_object_get(root, "siblings");
    if (sha == NULL || !msgl__hub_is_commit(sha)) {
        return msgl__hub_malformed(name, "\"sha\" is no commit", err);
    }
    if (!json_is_array(*files) || json_array_size(*files) > MSGL_HUB_MAX_FILES) {
        return msgl__hub_malformed(name, "\"siblings\" is no list of up to 20000 files", err);
    }
    (void)snprintf(commit, MSGL_HUB_MAX_REVISION + 1, "%s", sha);
    return 0;
}

// The checksum is of the content if the file is large (lfs), else git's.
static bool read_file(const json_t *entry, msgl_hub_said *out)
{
    const json_t *lfs = json_object_get(entry, "lfs");
    const bool large = json_is_object(lfs);
    out->path = json_string_value(json_object_get(entry, "rfilename"));
    out->size = json_object_get(large ? lfs : entry, "size");
    out->checksum = json_string_value(large ? json_object_get(lfs, "sha256")
                                            : json_object_get(entry, "blobId"));
    return true;
}

const msgl_hub_kind msgl__hub_huggingface = {
    .name = "huggingface",
    .endpoint = "https://huggingface.co",
    .revision = "main",
    .endpoint_vars = {"HF_ENDPOINT"},
    .token_var = "HF_TOKEN",
    .cache_var = "HF_HUB_CACHE",
    .home_var = "HF_HOME",
    .token_file = "token",
    .token_from = "HF_TOKEN or HF_HOME",
    .cache_from = "HF_HOME or HF_HUB_CACHE",
    .home = "huggingface",
    .cache = "/hub",
    .xdg = true,
    .prefix = "models--",
    .refs = true,
    .list_url = list_url,
    .file_url = file_url,
    .list = read_list,
    .file = read_file,
};
