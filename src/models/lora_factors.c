// SPDX-License-Identifier: Apache-2.0
#include "models/lora_factors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils/file.h"

int msgl__lora_fail(const msgl_checkpoint *c, const msgl_tensor *t, int code, const char *what,
                    msgl_err *err)
{
    char name[96];
    return msgl__err_set(err, code, "%s: tensor %s: %s", msgl__checkpoint_file(c, t),
                         msgl__printable(t->name, name, sizeof name), what);
}

bool msgl__lora_factors_are(const msgl_lora_factors *f, const char *name, size_t len)
{
    return strlen(f->name) == len && memcmp(f->name, name, len) == 0;
}

int msgl__lora_factors_begin(const msgl_checkpoint *c, const msgl_tensor *t, const char *name,
                             size_t len, msgl_lora_factors *f, msgl_err *err)
{
    *f = (msgl_lora_factors){0};
    if (len >= sizeof f->name) {
        return msgl__lora_fail(c, t, MSGL_ELIMIT, "its name is too long", err);
    }
    memcpy(f->name, name, len);
    return 0;
}

int msgl__lora_factors_take(const msgl_checkpoint *c, const msgl_tensor *t, bool is_a,
                            msgl_lora_factors *f, msgl_err *err)
{
    const bool blocks = t->packing.form == &msgl__stored_blocks;
    if (!t->loadable || (t->packing.form != NULL && !blocks) || t->ndim != 2) {
        return msgl__lora_fail(c, t, MSGL_EFORMAT,
                               "allowed: two dimensions of F32, F16 or BF16, or of a GGUF file's "
                               "blocks",
                               err);
    }
    *(is_a ? &f->a : &f->b) = t;
    return 0;
}

int msgl__lora_factors_check(const msgl_checkpoint *c, const msgl_lora_factors *f, msgl_err *err)
{
    if (f->a == NULL) return msgl__lora_fail(c, f->b, MSGL_EFORMAT, "its A is missing", err);
    if (f->b == NULL) return msgl__lora_fail(c, f->a, MSGL_EFORMAT, "its B is missing", err);
    return 0;
}

int msgl__lora_check_rank(const msgl_checkpoint *c, const msgl_tensor *a, int64_t rank,
                          int32_t most, msgl_err *err)
{
    char what[96];
    if (rank >= 1 && rank <= most) return 0;
    (void)snprintf(what, sizeof what, "rank: found %lld, allowed 1 to %d (--max-lora-rank)",
                   (long long)rank, (int)most);
    return msgl__lora_fail(c, a, MSGL_ELIMIT, what, err);
}

const char *msgl__lora_behind_layer(const char *name, int32_t *layer)
{
    static const char LAYERS[] = "layers.";
    const char *s = strstr(name, LAYERS);
    char *end;
    if (s == NULL) return NULL;
    s += sizeof LAYERS - 1;
    if (*s < '0' || *s > '9') return NULL;
    const unsigned long n = strtoul(s, &end, 10);
    *layer = (int32_t)n;
    return n <= INT32_MAX ? end : NULL;
}
