// SPDX-License-Identifier: Apache-2.0
#include "attention/fi/tensor_cores.h"

#include <stdlib.h>
#include <strings.h>

#include "core/attributes.h"

// Mini-SGLang's own name of it, which goes first, and that of its documents.
static const char *const NAMES[] = {"MINISGL_FLASHINFER_USE_TENSOR_CORES",
                                    "FLASHINFER_USE_TENSOR_CORES"};

// The variable that is set, to anything but ""; NULL: none.
static const char *name_set(void)
{
    for (size_t i = 0; i < MSGL_COUNT(NAMES); i++) {
        const char *text = getenv(NAMES[i]);
        if (text != NULL && text[0] != '\0') return NAMES[i];
    }
    return NULL;
}

bool msgl__fi_tensor_cores_set(void)
{
    return name_set() != NULL;
}

int msgl__fi_tensor_cores(bool *use, msgl_err *err)
{
    static const char *const words[] = {"0", "1", "false", "true", "no", "yes", "off", "on"};
    const char *name = name_set();
    if (name == NULL) return 0;
    const char *text = getenv(name);
    for (size_t i = 0; i < MSGL_COUNT(words); i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *use = i % 2 != 0;
        return 0;
    }
    return msgl__err_set(err, MSGL_EINVAL,
                         "%s: found \"%.40s\", allowed 0, 1, false, true, no, yes, off, on", name,
                         text);
}
