// SPDX-License-Identifier: Apache-2.0
#include "apps/hub/kind.h"

#include <string.h>

#include "core/attributes.h"

static const msgl_hub_kind *const KINDS[] = {
    &msgl__hub_huggingface,
    &msgl__hub_modelscope,
};

const msgl_hub_kind *msgl__hub_kind_named(const char *name)
{
    for (size_t i = 0; i < MSGL_COUNT(KINDS); i++) {
        if (strcmp(KINDS[i]->name, name) == 0) return KINDS[i];
    }
    return NULL;
}

int msgl__hub_malformed(const msgl_hub_name *name, const char *what, msgl_err *err)
{
    return msgl__err_set(err, MSGL_EFORMAT, "%.100s: the hub's list of files: %.120s", name->repo,
                         what);
}

int msgl__hub_add_escaped(msgl_strbuf *b, const char *text, char keep)
{
    int rc = 0;
    for (const unsigned char *p = (const unsigned char *)text; rc == 0 && *p != '\0'; p++) {
        const bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                           (*p >= '0' && *p <= '9') || strchr("-_.~", *p) != NULL ||
                           (keep != '\0' && *p == (unsigned char)keep);
        rc = plain ? msgl__strbuf_addc(b, (char)*p) : msgl__strbuf_addf(b, "%%%02X", *p);
    }
    return rc;
}
