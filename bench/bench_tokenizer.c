// SPDX-License-Identifier: Apache-2.0
//
// How fast a tokenizer loads, encodes and decodes on one thread.
//   bench_tokenizer MODEL_DIR TEXT_FILE [SECONDS]
// The text is encoded as one string, over and over for about SECONDS (default 2); the best pass
// counts. Times are CPU time of the thread, as nothing here waits; MB are 10^6 bytes of UTF-8.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/mem.h"
#include "tokenizer/tokenizer.h"

static double cpu(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static char *read_all(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL || fseek(f, 0, SEEK_END) != 0) return NULL;
    const long size = ftell(f);
    rewind(f);
    char *p = size > 0 ? msgl__malloc((size_t)size) : NULL;
    *len = p != NULL ? fread(p, 1, (size_t)size, f) : 0;
    fclose(f);
    return p;
}

int main(int argc, char **argv)
{
    msgl_err err;
    msgl_tokenizer *t = NULL;
    size_t len = 0;
    char *text = argc >= 3 ? read_all(argv[2], &len) : NULL;
    if (text == NULL || len == 0) {
        fprintf(stderr, "usage: bench_tokenizer MODEL_DIR TEXT_FILE [SECONDS]\n");
        return 2;
    }
    const double seconds = argc > 3 ? strtod(argv[3], NULL) : 2.0;
    double t0 = cpu();
    if (msgl__tokenizer_load(argv[1], &t, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    const double load = cpu() - t0;
    msgl_ids ids = {0};
    msgl_strbuf out;
    msgl__strbuf_init(&out, (size_t)1 << 31);
    double first = 0, encode = 1e9, decode = 1e9;
    const double start = cpu();
    do {
        ids.len = 0;
        t0 = cpu();
        if (msgl__tokenizer_encode(t, text, len, NULL, &ids, &err) != 0) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        const double d = cpu() - t0;
        if (first == 0) first = d;
        if (d < encode) encode = d;
        msgl__strbuf_clear(&out);
        t0 = cpu();
        if (msgl__tokenizer_decode(t, ids.data, ids.len, 0, &out, &err) != 0) return 1;
        if (cpu() - t0 < decode) decode = cpu() - t0;
    } while (cpu() - start < seconds);
    const double mb = (double)len * 1e-6;
    printf("vocab %d, text %.2f MB, %zu tokens (%.2f bytes each)\n", msgl__tokenizer_vocab_size(t),
           mb, ids.len, (double)len / (double)(ids.len > 0 ? ids.len : 1));
    printf("load %.0f ms, first encode %.1f MB/s, encode %.1f MB/s, decode %.1f MB/s\n", load * 1e3,
           mb / first, mb / encode, mb / decode);
    msgl__strbuf_free(&out);
    msgl__ids_free(&ids);
    msgl__tokenizer_free(t);
    msgl__free(text);
    return 0;
}
