// SPDX-License-Identifier: Apache-2.0
//
// MB/s and bytes a value of reading JSON, ours beside jansson's own: bench_json FILE...
// Times are CPU time, the best of ten rounds; docs/decisions/043 has the figures.
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/mem.h"
#include "utils/file.h"
#include "utils/json.h"

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static json_t *ours(const char *text, size_t len)
{
    return msgl__json_loadb(text, len, JSON_ALLOW_NUL, NULL, NULL);
}

static json_t *theirs(const char *text, size_t len)
{
    return json_loadb(text, len, JSON_ALLOW_NUL, NULL);
}

static size_t count(const json_t *v)
{
    size_t n = 1, i;
    const char *key;
    json_t *e;
    json_object_foreach((json_t *)v, key, e) n += count(e);
    json_array_foreach(v, i, e) n += count(e);
    return n;
}

static void measure(const char *name, json_t *(*load)(const char *, size_t), const char *text,
                    size_t len)
{
    const int times = len > 1000000 ? 1 : (int)(1000000 / len);
    double best = 1e9;
    for (int round = 0; round < 10; round++) {
        const double began = cpu_s();
        for (int i = 0; i < times; i++) json_decref(load(text, len));
        const double took = (cpu_s() - began) / times;
        if (took < best) best = took;
    }
    const size_t before = mallinfo2().uordblks;
    json_t *v = load(text, len);
    const size_t bytes = mallinfo2().uordblks - before, values = v == NULL ? 0 : count(v);
    printf("  %-8s %7.1f MB/s  %9zu bytes of %zu values: %.1f each\n", name,
           (double)len / best / 1e6, bytes, values,
           values > 0 ? (double)bytes / (double)values : 0);
    json_decref(v);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *text;
        size_t len;
        msgl_err err = {0};
        if (msgl__file_read(argv[i], (size_t)1 << 30, &text, &len, &err) != 0) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        printf("%s, %zu bytes\n", argv[i], len);
        measure("ours", ours, text, len);
        measure("jansson", theirs, text, len);
        msgl__free(text);
    }
    return 0;
}
