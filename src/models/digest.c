// SPDX-License-Identifier: Apache-2.0
#include "models/digest.h"

#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"
#include "models/checkpoint.h"
#include "utils/file.h"
#include "utils/hash.h"

enum { MAX_CONFIG = 16 << 20, END_BYTES = 4096 };

int msgl__config_digest(const char *dir, const char *name, uint64_t *out, msgl_err *err)
{
    char path[4096], *text;
    size_t n;
    *out = 0;
    int code = msgl__path_join(dir, name, path, sizeof path, err);
    if (code == 0) code = msgl__file_read(path, MAX_CONFIG, &text, &n, err);
    if (code == MSGL_ENOENT) return 0;
    if (code != 0) return code;
    *out = msgl__hash(MSGL_HASH_START, text, n);
    msgl__free(text);
    return 0;
}

static uint64_t hash_tensor(uint64_t h, const msgl_tensor *t)
{
    h = msgl__hash(h, t->name, strlen(t->name) + 1);
    h = msgl__hash(h, t->type, strlen(t->type) + 1);
    h = msgl__hash(h, t->dims, (size_t)t->ndim * sizeof *t->dims);
    return msgl__hash(h, &t->bytes, sizeof t->bytes);
}

uint64_t msgl__checkpoint_digest(const msgl_checkpoint *c)
{
    uint64_t h = MSGL_HASH_START;
    for (size_t i = 0; i < msgl__checkpoint_count(c); i++) {
        h = hash_tensor(h, msgl__checkpoint_at(c, i));
    }
    for (int32_t i = 0; i < c->num_files; i++) {
        const msgl_checkpoint_file *f = &c->files[i];
        const size_t end = f->size < END_BYTES ? f->size : END_BYTES;
        h = msgl__hash(h, &f->size, sizeof f->size);
        h = msgl__hash(h, f->map, end);
        h = msgl__hash(h, (const char *)f->map + f->size - end, end);
    }
    return h;
}

static int digest_weights(const char *path, uint64_t *out, msgl_err *err)
{
    msgl_checkpoint *c;
    const int code = msgl__checkpoint_open(path, &c, err);
    if (code != 0) return code;
    *out = msgl__checkpoint_digest(c);
    msgl__checkpoint_close(c);
    return 0;
}

int msgl__model_digest(const char *path, bool weights, msgl_model_digest *out, msgl_err *err)
{
    struct stat s;
    *out = (msgl_model_digest){0};
    const bool folder = stat(path, &s) == 0 && S_ISDIR(s.st_mode);
    // A folder with a GGUF file has no config.json: what it would say is in the file.
    int code = folder ? msgl__config_digest(path, "config.json", &out->config, err) : 0;
    if (code == 0 && weights) code = digest_weights(path, &out->weights, err);
    return code;
}
