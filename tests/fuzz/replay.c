// SPDX-License-Identifier: Apache-2.0
//
// Runs a target without a fuzzer on inputs that are there: replay FILE_OR_FOLDER... Compilers other
// than clang so test what fuzzing found once.
#include <errno.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int g_inputs;

// Memory of exactly the file's size, so that the address sanitizer sees a read past its end.
static int run_file(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)ftw;
    if (type == FTW_D) return 0;
    const size_t size = (size_t)st->st_size;
    FILE *f = type == FTW_F ? fopen(path, "rb") : NULL;
    uint8_t *data = malloc(size > 0 ? size : 1);
    const int ok = f != NULL && data != NULL && fread(data, 1, size, f) == size;
    if (f != NULL) (void)fclose(f);
    if (ok) {
        LLVMFuzzerTestOneInput(data, size);
        g_inputs++;
    } else {
        fprintf(stderr, "%s: cannot be read\n", path);
    }
    free(data);
    return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        errno = 0;
        const int rc = nftw(argv[i], run_file, 16, FTW_PHYS);
        if (rc < 0) fprintf(stderr, "%s: %s\n", argv[i], strerror(errno));
        if (rc != 0) return 1;
    }
    printf("%d inputs\n", g_inputs);
    return g_inputs > 0 ? 0 : 1;
}
