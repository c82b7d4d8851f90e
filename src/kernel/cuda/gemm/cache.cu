// SPDX-License-Identifier: Apache-2.0
//
// The measured algorithms on disk: a text file per GPU and library version. An algorithm is the
// library's own 64 bytes, which it accepts back in the same version; a check sum per line keeps
// damaged ones away from it.
#include "kernel/cuda/gemm/lt.cuh"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern "C" {
#include "utils/log.h"
}

#define FORMAT "minisgl-gemm-2"

enum { ALGO_WORDS = sizeof(((cublasLtMatmulAlgo_t *)0)->data) / sizeof(uint64_t), LINE = 512 };

static uint64_t check_sum(const char *text, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h;
}

static void first_line(const msgl_cuda_blas *b, char *out, size_t size)
{
    snprintf(out, size, FORMAT " %s %zu\n", b->gpu, cublasLtGetVersion());
}

// n k bucket in out bias accumulate align_in align_out us algo... sum
static void write_choice(const msgl_gemm_choice *c, char *line, size_t size)
{
    const msgl_gemm_key *key = &c->key;
    size_t at = (size_t)snprintf(line, size, "%d %d %d %d %d %d %d %d %d %.3f", key->n, key->k,
                                 key->bucket, key->in_type, key->out_type, key->bias,
                                 key->accumulate, key->align_in, key->align_out, (double)c->us);
    for (int i = 0; i < ALGO_WORDS; i++) {
        at +=
            (size_t)snprintf(line + at, size - at, " %016llx", (unsigned long long)c->algo.data[i]);
    }
    snprintf(line + at, size - at, " %016llx\n", (unsigned long long)check_sum(line, at));
}

static bool read_choice(const char *line, msgl_gemm_choice *c)
{
    const char *last = strrchr(line, ' ');
    unsigned long long sum = 0;
    if (last == NULL || sscanf(last, " %16llx", &sum) != 1 ||
        sum != check_sum(line, (size_t)(last - line))) {
        return false;
    }
    int v[9], at = 0;
    memset(c, 0, sizeof *c);
    if (sscanf(line, "%d %d %d %d %d %d %d %d %d %f%n", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5],
               &v[6], &v[7], &v[8], &c->us, &at) != 10) {
        return false;
    }
    for (int i = 0; i < ALGO_WORDS; i++) {
        unsigned long long word = 0;
        int used = 0;
        if (sscanf(line + at, " %16llx%n", &word, &used) != 1) return false;
        c->algo.data[i] = word;
        at += used;
    }
    if (line + at != last) return false;
    c->key.n = v[0];
    c->key.k = v[1];
    c->key.bucket = v[2];
    c->key.in_type = (uint8_t)v[3];
    c->key.out_type = (uint8_t)v[4];
    c->key.bias = (uint8_t)v[5];
    c->key.accumulate = (uint8_t)v[6];
    c->key.align_in = (uint8_t)v[7];
    c->key.align_out = (uint8_t)v[8];
    c->source = MSGL_GEMM_MEASURED;
    return true;
}

void msgl__cuda_gemm_cache_load(msgl_cuda_blas *b)
{
    FILE *f = fopen(b->cache_path, "re");
    if (f == NULL) return; // nothing measured yet
    char line[LINE], expected[LINE];
    first_line(b, expected, sizeof expected);
    int bad = 0;
    if (fgets(line, sizeof line, f) == NULL || strcmp(line, expected) != 0) {
        bad = 1;
    } else {
        while (fgets(line, sizeof line, f) != NULL) {
            msgl_gemm_choice read;
            if (!read_choice(line, &read)) {
                bad++;
                continue;
            }
            msgl_gemm_choice *c = msgl__cuda_gemm_slot(b, &read.key);
            if (c == NULL) break;
            if (c->source == MSGL_GEMM_NONE) b->count++;
            *c = read;
        }
    }
    (void)fclose(f);
    if (bad > 0) {
        const msgl_log log = msgl__log_default();
        msgl__log(&log, MSGL_LOG_WARN, "%s: %d unusable line%s left out, will be measured again",
                  b->cache_path, bad, bad == 1 ? "" : "s");
    }
}

void msgl__cuda_gemm_cache_save(const msgl_cuda_blas *b)
{
    if (b->cache_path == NULL) return;
    const size_t size = strlen(b->cache_path) + 32;
    char *temporary = (char *)msgl__malloc(size);
    if (temporary == NULL) return;
    snprintf(temporary, size, "%s.%ld", b->cache_path, (long)getpid());
    FILE *f = fopen(temporary, "we");
    bool ok = f != NULL;
    if (ok) {
        char line[LINE];
        first_line(b, line, sizeof line);
        ok = fputs(line, f) >= 0;
        for (size_t i = 0; i < b->capacity && ok; i++) {
            if (b->table[i].source != MSGL_GEMM_MEASURED) continue;
            write_choice(&b->table[i], line, sizeof line);
            ok = fputs(line, f) >= 0;
        }
        ok = fclose(f) == 0 && ok;
        if (ok) ok = rename(temporary, b->cache_path) == 0;
        if (!ok) (void)unlink(temporary);
    }
    if (!ok) {
        const msgl_log log = msgl__log_default();
        msgl__log(&log, MSGL_LOG_WARN, "%s: cannot be written; products will be measured again",
                  b->cache_path);
    }
    msgl__free(temporary);
}
