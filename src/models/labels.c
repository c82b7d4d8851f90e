// SPDX-License-Identifier: Apache-2.0
#include "models/labels.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "core/mem.h"
#include "utils/file.h"
#include "utils/json.h"

enum { MAX_BYTES = 16 << 20, PATH_BYTES = 4096, MAX_LABEL = 256 };

// The name of label i; a longer one is cut at a character.
static void put_name(const json_t *names, int32_t i, char out[MAX_LABEL])
{
    char key[16];
    (void)snprintf(key, sizeof key, "%d", (int)i);
    const char *name = json_string_value(json_object_get(names, key));
    (void)snprintf(out, MAX_LABEL, name != NULL ? "%s" : "LABEL_%s", name != NULL ? name : key);
    size_t n = strlen(out);
    if (n < MAX_LABEL - 1) return;
    while (n > 0 && ((unsigned char)out[n - 1] & 0xc0) == 0x80) n--;
    out[n > 0 ? n - 1 : 0] = '\0';
}

static int read(const json_t *root, int32_t num, msgl_labels *out, msgl_err *err)
{
    const json_t *names = json_object_get(root, "id2label");
    const char *kind = json_string_value(json_object_get(root, "problem_type"));
    const size_t n = (size_t)num, pointers = n * sizeof *out->names;
    out->names = msgl__malloc(pointers + n * MAX_LABEL);
    if (out->names == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    char *at = (char *)out->names + pointers;
    for (int32_t i = 0; i < num; i++, at += MAX_LABEL) {
        put_name(names, i, at);
        out->names[i] = at;
    }
    out->num = num;
    out->several = kind != NULL && strcmp(kind, "multi_label_classification") == 0;
    return 0;
}

int msgl__labels_load(const char *dir, int32_t num, msgl_labels *out, msgl_err *err)
{
    char path[PATH_BYTES];
    json_t *root;
    *out = (msgl_labels){0};
    int code = msgl__path_join(dir, "config.json", path, sizeof path, err);
    if (code == 0) code = msgl__json_load(path, MAX_BYTES, 0, &root, err);
    if (code != 0) return code;
    code = read(root, num, out, err);
    json_decref(root);
    return code;
}

void msgl__labels_free(msgl_labels *l)
{
    msgl__free(l->names);
    *l = (msgl_labels){0};
}
