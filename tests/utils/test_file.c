// SPDX-License-Identifier: Apache-2.0
//
// Files of our own: in the place of what was there, whole, with nothing left beside them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/mem.h"
#include "utils/file.h"

static char dir[64];

static int setup(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/minisgl-file-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int teardown(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static int entries(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void expect(const char *path, const char *want)
{
    char *data;
    size_t len;
    assert_int_equal(msgl__file_read(path, 100, &data, &len, NULL), 0);
    assert_string_equal(data, want);
    msgl__free(data);
}

static void test_replace(void **state)
{
    (void)state;
    char path[128], tmp[160];
    struct stat st;
    msgl_err err;
    snprintf(path, sizeof path, "%s/a", dir);
    assert_int_equal(msgl__file_replace(path, 0600, "one", 3, &err), 0);
    expect(path, "one");
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    // What an earlier process of this number has left is in nobody's way.
    snprintf(tmp, sizeof tmp, "%s.%ld.tmp", path, (long)getpid());
    FILE *f = fopen(tmp, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(msgl__file_replace(path, 0600, "", 0, &err), 0);
    expect(path, "");
    assert_int_equal(entries(dir), 1);
    // A folder stays what it is, and nothing stays beside it.
    snprintf(path, sizeof path, "%s/b", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(msgl__file_replace(path, 0600, "x", 1, &err), MSGL_EIO);
    assert_non_null(strstr(err.text, "/b: "));
    assert_int_equal(entries(dir), 2);
    assert_int_equal(rmdir(path), 0);
    snprintf(path, sizeof path, "%s/no/c", dir);
    assert_int_equal(msgl__file_replace(path, 0600, "x", 1, &err), MSGL_EIO);
}

static void test_parents(void **state)
{
    (void)state;
    char path[160], longer[PATH_MAX + 8];
    struct stat st;
    msgl_err err;
    snprintf(path, sizeof path, "%s/p/q/file", dir);
    assert_int_equal(msgl__file_make_parents(path, 0700, &err), 0);
    assert_int_equal(msgl__file_make_parents(path, 0700, &err), 0); // they are there
    assert_int_equal(stat(path, &st), -1);
    *strrchr(path, '/') = '\0';
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    // A file where a folder has to be.
    snprintf(path, sizeof path, "%s/p/f", dir);
    assert_int_equal(msgl__file_replace(path, 0600, "x", 1, &err), 0);
    snprintf(path, sizeof path, "%s/p/f/g/h", dir);
    assert_int_equal(msgl__file_make_parents(path, 0700, &err), MSGL_EIO);
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(msgl__file_make_parents(longer, 0700, &err), MSGL_EINVAL);
    assert_int_equal(msgl__file_replace(longer, 0600, "x", 1, &err), MSGL_EINVAL);
}

static void test_write_all(void **state)
{
    (void)state;
    int ends[2];
    char got[4];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(msgl__write_all(ends[1], "abc", 3), 0);
    assert_int_equal(read(ends[0], got, 4), 3);
    assert_memory_equal(got, "abc", 3);
    assert_int_equal(msgl__write_all(ends[0], "abc", 3), MSGL_EIO); // not its end to write to
    close(ends[0]);
    close(ends[1]);
}

// What Git LFS leaves in a clone is no file of its kind, whoever reads or maps it.
static void test_pointer(void **state)
{
    (void)state;
    static const char text[] =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9\n";
    char path[96], *data;
    void *map;
    size_t len;
    msgl_err err;
    (void)snprintf(path, sizeof path, "%s/m.gguf", dir);
    assert_int_equal(msgl__file_replace(path, 0600, text, sizeof text - 1, NULL), 0);
    assert_int_equal(msgl__file_read(path, 1000, &data, &len, &err), MSGL_EFORMAT);
    assert_non_null(strstr(err.text, "/m.gguf: is a Git LFS pointer, not the file itself"));
    assert_int_equal(msgl__file_map(path, &map, &len, &err), MSGL_EFORMAT);
    assert_non_null(strstr(err.text, "/m.gguf: is a Git LFS pointer, not the file itself"));
    assert_int_equal(msgl__file_replace(path, 0600, text, 20, NULL), 0); // only begins so
    assert_int_equal(msgl__file_map(path, &map, &len, &err), 0);
    assert_int_equal(munmap(map, len), 0);
}

// A long path keeps its beginning and its end, from a component's start where one is there, and
// no half characters.
static void test_path_short(void **state)
{
    (void)state;
    char path[200], want[200], buf[MSGL_PATH_SHOWN];
    memset(path, 'a', 95);
    path[95] = '\0';
    assert_ptr_equal(msgl__path_short(path, buf), path);
    snprintf(path, sizeof path, "/models/%0150d/config.json", 7);
    snprintf(want, sizeof want, "/models/%022d.../config.json", 0);
    assert_string_equal(msgl__path_short(path, buf), want);
    for (int i = 0; i < 60; i++) snprintf(path + 2 * i, 3, "\u00e9"); // of two bytes each
    assert_int_equal(strlen(msgl__path_short(path, buf)), 30 + 3 + 60);
    memmove(path + 1, path, 120);
    path[0] = '/';
    path[121] = '\0';
    assert_int_equal(strlen(msgl__path_short(path, buf)), 29 + 3 + 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replace), cmocka_unit_test(test_parents),
        cmocka_unit_test(test_write_all), cmocka_unit_test(test_pointer),
        cmocka_unit_test(test_path_short)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
