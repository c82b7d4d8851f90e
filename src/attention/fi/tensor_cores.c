// SPDX-License-Identifier: Apache-2.0
#include "attention/fi/tensor_cores.h"

#include <stdlib.h>
#include <strings.h>

#include "core/attributes.h"

static const char NAME[] = "FLASHINFER_USE_TENSOR_CORES";

bool msgl__fi_tensor_cores_set(void)
{
    const char *text = getenv(NAME);
    return text != NULL && text[0] != '\0';
}

int msgl__fi_tensor_cores(bool *use, msgl_err *err)
{
    static const char *const words[] = {"0", "1", "false", "true", "off", "on"};
    if (!msgl__fi_tensor_cores_set()) return 0;
    const char *text = getenv(NAME);
    for (size_t i = 0; i < MSGL_COUNT(words); i++) {
        if (strcasecmp(text, words[i]) != 0) continue;
        *use = i % 2 != 0;
        return 0;
    }
    return msgl__err_set(err, MSGL_EINVAL,
                         "%s: found \"%.40s\", allowed 0, 1, false, true, off, on", NAME, text);
}
