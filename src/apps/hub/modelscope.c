// SPDX-License-Identifier: Apache-2.0
//
// modelscope.cn and modelscope.ai, as their own Python client asks them. Answers are
// {"Code": 200, "Data": ..., "Message": ..., "Success": true}; a list of files says of each what
// kind of thing it is, its size and the SHA-256 of its content, and of no commit as a whole: what
// is downloaded is of the revision.
#include <stdio.h>
#include <string.h>

#include "core/attributes.h"
#include "apps/hub/kind.h"
#include "apps/hub/list.h"
#include "utils/file.h"

static int list_url(msgl_strbuf *url, const char *endpoint, const msgl_hub_name *name)
{
    int rc =
        msgl__strbuf_addf(url, "%s/api/v1/models/%s/repo/files?Revision=", endpoint, name->repo);
    if (rc == 0) rc = msgl__hub_add_escaped(url, name->revision, '\0');
    return rc == 0 ? msgl__strbuf_adds(url, "&Recursive=True") : rc;
}

static int file_url(msgl_strbuf *url, const char *endpoint, const msgl_hub_name *name,
                    const char *commit, const char *path)
{
    int rc = msgl__strbuf_addf(url, "%s/api/v1/models/%s/repo?Revision=", endpoint, name->repo);
    if (rc == 0) rc = msgl__hub_add_escaped(url, commit, '\0');
    if (rc == 0) rc = msgl__strbuf_adds(url, "&FilePath=");
    return rc == 0 ? msgl__hub_add_escaped(url, path, '\0') : rc;
}

static int read_list(const json_t *root, const msgl_hub_name *name,
                     char commit[MSGL_HUB_MAX_REVISION + 1], const json_t **files, msgl_err *err)
{
    static const json_int_t GOOD = 200;
    const json_t *code = json_object_get(root, "Code");
    const char *message = json_string_value(json_object_get(root, "Message"));
    *files = json_object_get(json_object_get(root, "Data"), "Files");
    if (json_is_integer(code) && json_integer_value(code) != GOOD) {
        char shown[120];
        msgl__printable(message != NULL ? message : "no reason given", shown, sizeof shown);
        return msgl__err_set(err, MSGL_ENOENT, "%.80s (revision %.40s): the hub says: %s",
                             name->repo, name->revision, shown);
    }
    if (!json_is_array(*files) || json_array_size(*files) > MSGL_HUB_MAX_FILES) {
        return msgl__hub_malformed(name, "\"Files\" is no list of up to 20000 files", err);
    }
    (void)snprintf(commit, MSGL_HUB_MAX_REVISION + 1, "%s", name->revision);
    return 0;
}

static bool read_file(const json_t *entry, msgl_hub_said *out)
{
    const char *type = json_string_value(json_object_get(entry, "Type"));
    out->path = json_string_value(json_object_get(entry, "Path"));
    out->size = json_object_get(entry, "Size");
    out->checksum = json_string_value(json_object_get(entry, "Sha256"));
    return type == NULL || strcmp(type, "tree") != 0;
}

static int revisions_url(msgl_strbuf *url, const char *endpoint, const msgl_hub_name *name)
{
    return msgl__strbuf_addf(url, "%s/api/v1/models/%s/revisions", endpoint, name->repo);
}

static bool no_revision(const json_t *root, const msgl_hub_name *name, msgl_err *err)
{
    static const char *const KINDS[] = {"Branches", "Tags"};
    const json_t *map = json_object_get(json_object_get(root, "Data"), "RevisionMap");
    char known[160] = "";
    size_t n = 0, count = 0;
    for (size_t k = 0; k < MSGL_COUNT(KINDS); k++) {
        size_t i;
        const json_t *entry;
        json_array_foreach(json_object_get(map, KINDS[k]), i, entry)
        {
            char shown[60];
            const char *text = json_string_value(json_object_get(entry, "Revision"));
            if (text == NULL) continue;
            if (strcmp(text, name->revision) == 0) return false;
            msgl__printable(text, shown, sizeof shown);
            if (n + strlen(shown) + 8 >= sizeof known) shown[0] = '\0';
            const char *gap = count++ > 0 && shown[0] != '\0' ? ", " : "";
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", gap, shown);
        }
    }
    if (count == 0) return false;
    (void)msgl__err_set(err, MSGL_ENOENT, "%.80s has no revision %.60s; allowed: %s", name->repo,
                        name->revision, known);
    return true;
}

static const char *const OLDER[] = {"models/", "hub/models/", "", "hub/", NULL};

const msgl_hub_kind msgl__hub_modelscope = {
    .name = "modelscope",
    .endpoint = "https://modelscope.cn",
    .revision = "master",
    .cookie = "m_session_id",
    .hides = true,
    .endpoint_vars = {"MODELSCOPE_ENDPOINT", "MODELSCOPE_DOMAIN"},
    .token_var = "MODELSCOPE_API_TOKEN",
    .cache_var = "MODELSCOPE_CACHE",
    .token_from = "MODELSCOPE_API_TOKEN",
    .cache_from = "MODELSCOPE_CACHE",
    .home = "modelscope",
    .cache = "",
    .prefix = "models/",
    .older = OLDER,
    .list_url = list_url,
    .file_url = file_url,
    .list = read_list,
    .file = read_file,
    .revisions_url = revisions_url,
    .no_revision = no_revision,
};
