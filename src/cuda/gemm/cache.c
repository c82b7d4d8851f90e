// SPDX-License-Identifier: Apache-2.0
//
// The measured choices on disk: a text file per GPU and library version. An algorithm is the
// library's own 64 bytes, which it accepts back in the same version; a check sum per line keeps
// damaged ones away from it.
#include "cuda/gemm/choices.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "utils/hash.h"
#include "utils/log.h"

// To be counted up also when a kernel of the table becomes faster: files remember who lost.
#define FORMAT "minisgl-gemm-3"

enum { LINE = 512, FIELDS = 10, NAME = 32 };

static void first_line(const char *gpu, size_t version, char *out, size_t size)
{
    snprintf(out, size, FORMAT " %s %zu\n", gpu, version);
}

// n k bucket in out bias accumulate align_in align_out call us, a kernel's name or the
// algorithm, sum
void msgl__choice_write(const msgl_gemm_choice *c, msgl_kernel_names names, char *line, size_t size)
{
    const msgl_gemm_key *key = &c->key;
    size_t at =
        (size_t)snprintf(line, size, "%d %d %d %d %d %d %d %d %d %d %.3f", key->n, key->k,
                         key->bucket, key->in_type, key->out_type, key->bias, key->accumulate,
                         key->align_in, key->align_out, key->call, (double)c->us);
    if (key->call != 0) {
        at += (size_t)snprintf(line + at, size - at, " %s", names.of(c->kernel));
    }
    for (int i = 0; i < MSGL_ALGO_WORDS && key->call == 0; i++) {
        at += (size_t)snprintf(line + at, size - at, " %016" PRIx64, c->algo[i]);
    }
    snprintf(line + at, size - at, " %016" PRIx64 "\n", msgl__hash(MSGL_HASH_START, line, at));
}

static bool read_kernel(const char *text, msgl_kernel_names names, msgl_gemm_choice *c, int *used)
{
    char name[NAME];
    if (sscanf(text, " %31s%n", name, used) != 1) return false;
    for (c->kernel = 0; c->kernel < names.num; c->kernel++) {
        if (strcmp(names.of(c->kernel), name) == 0) return true;
    }
    return false;
}

static bool read_algorithm(const char *text, msgl_gemm_choice *c, int *used)
{
    *used = 0;
    for (int i = 0; i < MSGL_ALGO_WORDS; i++) {
        int more = 0;
        if (sscanf(text + *used, " %16" SCNx64 "%n", &c->algo[i], &more) != 1) return false;
        *used += more;
    }
    return true;
}

bool msgl__choice_read(const char *line, msgl_kernel_names names, msgl_gemm_choice *c)
{
    const char *last = strrchr(line, ' ');
    uint64_t sum = 0;
    if (last == NULL || sscanf(last, " %16" SCNx64, &sum) != 1 ||
        sum != msgl__hash(MSGL_HASH_START, line, (size_t)(last - line))) {
        return false;
    }
    int v[FIELDS], at = 0, used = 0;
    memset(c, 0, sizeof *c);
    for (int i = 0; i < FIELDS; i++, at += used) {
        if (sscanf(line + at, " %d%n", &v[i], &used) != 1) return false;
    }
    if (sscanf(line + at, " %f%n", &c->us, &used) != 1) return false;
    at += used;
    c->key = (msgl_gemm_key){
        .n = v[0],
        .k = v[1],
        .bucket = v[2],
        .in_type = (uint8_t)v[3],
        .out_type = (uint8_t)v[4],
        .bias = (uint8_t)v[5],
        .accumulate = (uint8_t)v[6],
        .align_in = (uint8_t)v[7],
        .align_out = (uint8_t)v[8],
        .call = (uint16_t)v[9],
    };
    const bool read = c->key.call != 0 ? read_kernel(line + at, names, c, &used)
                                       : read_algorithm(line + at, c, &used);
    c->source = MSGL_GEMM_MEASURED;
    return read && line + at + used == last;
}

void msgl__choices_load(msgl_gemm_choices *t, const char *path, const char *gpu, size_t version,
                        msgl_kernel_names names)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) return; // nothing measured yet
    char line[LINE], expected[LINE];
    first_line(gpu, version, expected, sizeof expected);
    int bad = 0;
    if (fgets(line, sizeof line, f) == NULL || strcmp(line, expected) != 0) {
        bad = 1;
    } else {
        while (fgets(line, sizeof line, f) != NULL) {
            msgl_gemm_choice read;
            if (!msgl__choice_read(line, names, &read)) {
                bad++;
            } else if (!msgl__choices_put(t, &read)) {
                break;
            }
        }
    }
    (void)fclose(f);
    if (bad > 0) {
        const msgl_log log = msgl__log_default();
        msgl__log(&log, MSGL_LOG_WARN, "%s: %d unusable line%s left out, will be measured again",
                  path, bad, bad == 1 ? "" : "s");
    }
}

static bool write_all(const msgl_gemm_choices *t, FILE *f, const char *gpu, size_t version,
                      msgl_kernel_names names)
{
    char line[LINE];
    first_line(gpu, version, line, sizeof line);
    bool ok = fputs(line, f) >= 0;
    for (size_t i = 0; i < t->capacity && ok; i++) {
        if (t->slots[i].source != MSGL_GEMM_MEASURED) continue;
        msgl__choice_write(&t->slots[i], names, line, sizeof line);
        ok = fputs(line, f) >= 0;
    }
    return ok;
}

void msgl__choices_save(const msgl_gemm_choices *t, const char *path, const char *gpu,
                        size_t version, msgl_kernel_names names)
{
    const size_t size = strlen(path) + 32;
    char *temporary = msgl__malloc(size);
    if (temporary == NULL) return;
    snprintf(temporary, size, "%s.%ld", path, (long)getpid());
    FILE *f = fopen(temporary, "we");
    bool ok = f != NULL;
    if (ok) {
        ok = write_all(t, f, gpu, version, names);
        ok = fclose(f) == 0 && ok;
        if (ok) ok = rename(temporary, path) == 0;
        if (!ok) (void)unlink(temporary);
    }
    if (!ok) {
        const msgl_log log = msgl__log_default();
        msgl__log(&log, MSGL_LOG_WARN, "%s: cannot be written; products will be measured again",
                  path);
    }
    msgl__free(temporary);
}
