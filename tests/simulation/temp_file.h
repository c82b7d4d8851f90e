// SPDX-License-Identifier: Apache-2.0
//
// A file with some text in it, for readers of files.
#ifndef TESTS_SIMULATION_TEMP_FILE_H
#define TESTS_SIMULATION_TEMP_FILE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct temp_file {
    char path[64];
} temp_file;

static inline temp_file temp_file_with(const char *text)
{
    temp_file t = {"/tmp/minisgl_simulation_XXXXXX"};
    FILE *f = fdopen(mkstemp(t.path), "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
    return t;
}

#endif
