// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target without a fuzzer: standalone ROUNDS [SEED_FILE...]. Each round mutates one of
// the seed files (or random bytes) with a fixed generator, so a failure repeats. It keeps the
// targets building and the obvious damage out; coverage-guided runs (SAN=fuzz, see README.md) find
// the rest.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utils/random.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT = 1 << 16 };

static uint64_t g_rng = 1;

static uint32_t next(uint32_t below)
{
    return (uint32_t)msgl__random_below(&g_rng, below);
}

static size_t read_seed(const char *path, uint8_t *out)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(2);
    }
    const size_t n = fread(out, 1, MAX_INPUT, f);
    fclose(f);
    return n;
}

static size_t mutate(uint8_t *data, size_t size)
{
    static const char *const WORDS[] = {"-1",   "null",  "{",  "[[", "\"",   "99999999999999999999",
                                        "\xff", "1e308", "{{", "%}", "\r\n", "\\u0000"};
    for (uint32_t i = next(6); i > 0 && size > 0; i--) {
        const size_t at = next((uint32_t)size);
        switch (next(5)) {
        case 0: data[at] = (uint8_t)next(256); break;
        case 1: data[at] ^= (uint8_t)(1u << next(8)); break;
        case 2: size = at; break;
        case 3: { // cut a piece out
            const size_t n = 1 + next(16) < size - at ? 1 + next(16) : size - at;
            const size_t cut = n < size - at ? n : size - at;
            memmove(data + at, data + at + cut, size - at - cut);
            size -= cut;
            break;
        }
        default: { // put a word in
            const char *w = WORDS[next(sizeof WORDS / sizeof *WORDS)];
            const size_t n = strlen(w);
            if (size + n > MAX_INPUT) break;
            memmove(data + at + n, data + at, size - at);
            memcpy(data + at, w, n);
            size += n;
        }
        }
    }
    return size;
}

int main(int argc, char **argv)
{
    static uint8_t data[MAX_INPUT];
    const int rounds = argc > 1 ? atoi(argv[1]) : 1000;
    for (int r = 0; r < rounds; r++) {
        size_t size;
        if (argc > 2) {
            size = mutate(data, read_seed(argv[2 + next((uint32_t)argc - 2)], data));
        } else {
            size = next(4096);
            for (size_t i = 0; i < size; i++) data[i] = (uint8_t)next(256);
        }
        // An exact-size copy, so that the address sanitizer sees a read past the end.
        uint8_t *copy = malloc(size > 0 ? size : 1);
        memcpy(copy, data, size);
        LLVMFuzzerTestOneInput(copy, size);
        free(copy);
    }
    printf("%d inputs\n", rounds);
    return 0;
}
