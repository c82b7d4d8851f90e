// SPDX-License-Identifier: Apache-2.0
//
// Models in several GGUF files: those that gguf-py has split (tests/vectors/gguf/split) have the
// tensors of the whole file, whichever split is named; sets that do not belong together are
// refused. The log-probabilities are compared in tests/engine/test_gguf.c.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "models/checkpoint.h"
#include "models/config.h"
#include "utils/file.h"
#include "utils/gguf_split.h"
#include "utils/gguf_writer.h"

#define DIR MSGL_SOURCE_DIR "/tests/vectors/gguf/"

static char folder[64];
static msgl_err err;

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/msgl-split-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

static void test_names(void **state)
{
    (void)state;
    msgl_gguf_split_name p;
    assert_true(msgl__gguf_split_of("d/m-Q8_0-00002-of-00010.gguf", &p));
    assert_int_equal(p.stem, 8);
    assert_int_equal(p.no, 2);
    assert_int_equal(p.count, 10);
    static const char *const NONE[] = {
        "m.gguf",
        "m-00000-of-00002.gguf",
        "m-00003-of-00002.gguf",
        "m-0001-of-0002.gguf",
        "m-00001-of-0000x.gguf",
        "m-00001-of-00002.gguf.incomplete",
        "-00001-of-00002.gguf",
        "d/-00001-of-00002.gguf",
        "m00001-of-00002.gguf",
        "",
    };
    for (size_t i = 0; i < MSGL_COUNT(NONE); i++) assert_false(msgl__gguf_split_of(NONE[i], &p));
    assert_true(msgl__gguf_same_model("a-00001-of-00003.gguf", "a-00003-of-00003.gguf"));
    assert_false(msgl__gguf_same_model("a-00001-of-00003.gguf", "b-00003-of-00003.gguf"));
    assert_false(msgl__gguf_same_model("a-00001-of-00003.gguf", "a-00001-of-00002.gguf"));
    assert_true(msgl__gguf_is_model("d/m.gguf"));
    assert_true(msgl__gguf_is_model("m-00001-of-00002.gguf"));
    assert_false(msgl__gguf_is_model("m-00002-of-00002.gguf"));
    assert_false(msgl__gguf_is_model("mmproj-m-f16.gguf"));
    assert_false(msgl__gguf_is_model("d/MMPROJ-m-f16.gguf"));
    assert_false(msgl__gguf_is_model("m.Imatrix.gguf"));
    assert_false(msgl__gguf_is_model(".gguf"));
}

static void same_tensors(const char *whole, const char *splits)
{
    msgl_checkpoint *a = NULL, *b = NULL;
    if (msgl__checkpoint_open(whole, &a, &err) != 0) fail_msg("%s", err.text);
    if (msgl__checkpoint_open(splits, &b, &err) != 0) fail_msg("%s", err.text);
    assert_int_equal(msgl__checkpoint_count(a), msgl__checkpoint_count(b));
    assert_true(a->num_files < b->num_files);
    for (size_t i = 0; i < msgl__checkpoint_count(a); i++) {
        const msgl_tensor *x = msgl__checkpoint_at(a, i), *y = msgl__checkpoint_at(b, i);
        assert_string_equal(x->name, y->name);
        assert_int_equal(x->bytes, y->bytes);
        assert_memory_equal(x->data, y->data, x->bytes);
        const msgl_checkpoint_file *f = &b->files[y->file];
        assert_true(y->data >= (uint8_t *)f->map && y->data < (uint8_t *)f->map + f->size);
    }
    msgl__checkpoint_close(a);
    msgl__checkpoint_close(b);
    msgl_model_config *c = calloc(2, sizeof *c);
    assert_non_null(c);
    assert_int_equal(msgl__model_config_load(whole, &c[0], &err), 0);
    assert_int_equal(msgl__model_config_load(splits, &c[1], &err), 0);
    assert_int_equal(c[0].tie_embeddings, c[1].tie_embeddings);
    assert_memory_equal(&c[0].decoder, &c[1].decoder, sizeof c->decoder);
    free(c);
}

static void put(const char *name, const void *bytes, size_t n)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void copy(const char *from, const char *to)
{
    char path[512], *bytes;
    size_t n;
    snprintf(path, sizeof path, DIR "%s", from);
    assert_int_equal(msgl__file_read(path, 1 << 20, &bytes, &n, &err), 0);
    put(to, bytes, n);
    msgl__free(bytes);
}

static void test_tensors(void **state)
{
    (void)state;
    char path[512];
    for (int i = 1; i <= 3; i++) {
        snprintf(path, sizeof path, DIR "split/llama-q8_0-0000%d-of-00003.gguf", i);
        same_tensors(DIR "llama-q8_0.gguf", path);
    }
    same_tensors(DIR "qwen3-f16.gguf", DIR "split/qwen3-f16-00001-of-00002.gguf");
    // A folder with the splits of one model, and what goes with models.
    copy("split/qwen3-f16-00001-of-00002.gguf", "q-00001-of-00002.gguf");
    copy("split/qwen3-f16-00002-of-00002.gguf", "q-00002-of-00002.gguf");
    put("mmproj-q.gguf", "x", 1);
    same_tensors(DIR "qwen3-f16.gguf", folder);
    copy("qwen3-f16.gguf", "q.gguf");
    assert_int_equal(msgl__gguf_find(folder, path, sizeof path, &err), MSGL_EINVAL);
    assert_non_null(strstr(err.text, "found 2 .gguf files"));
}

static void refuse(const char *name, int code, const char *why)
{
    char path[256];
    msgl_checkpoint *c = NULL;
    snprintf(path, sizeof path, "%s%s%s", folder, name[0] != '\0' ? "/" : "", name);
    const int got = msgl__checkpoint_open(path, &c, &err);
    if (got != code || strstr(err.text, why) == NULL) {
        fail_msg("%s: %d \"%s\", expected %d \"%s\"", name, got, got != 0 ? err.text : "", code,
                 why);
    }
}

static void test_missing(void **state)
{
    (void)state;
    copy("split/llama-q8_0-00003-of-00003.gguf", "m-00003-of-00003.gguf");
    const char *first = "m-00001-of-00003.gguf: part 1 of the model's 3 files is not here";
    refuse("m-00003-of-00003.gguf", MSGL_ENOENT, first);
    refuse("", MSGL_ENOENT, first);
    copy("split/llama-q8_0-00001-of-00003.gguf", "m-00001-of-00003.gguf");
    refuse("", MSGL_ENOENT, "m-00002-of-00003.gguf: part 2 of the model's 3 files is not here;");
    char third[128];
    snprintf(third, sizeof third, "%s/m-00003-of-00003.gguf", folder);
    assert_int_equal(unlink(third), 0);
    refuse("", MSGL_ENOENT, "part 2 of the model's 3 files is not here, nor are 1 others");
}

static void test_mixed(void **state)
{
    (void)state;
    // The second and the third of one model in each other's place.
    copy("split/llama-q8_0-00001-of-00003.gguf", "m-00001-of-00003.gguf");
    copy("split/llama-q8_0-00002-of-00003.gguf", "m-00003-of-00003.gguf");
    copy("split/llama-q8_0-00003-of-00003.gguf", "m-00002-of-00003.gguf");
    refuse("m-00001-of-00003.gguf", MSGL_EFORMAT,
           "m-00002-of-00003.gguf: its metadata says part 3 of 3, its name part 2 of 3");
    // One that is not the first under its name.
    copy("split/llama-q8_0-00002-of-00003.gguf", "n-00001-of-00003.gguf");
    copy("split/llama-q8_0-00002-of-00003.gguf", "n-00002-of-00003.gguf");
    copy("split/llama-q8_0-00003-of-00003.gguf", "n-00003-of-00003.gguf");
    refuse("n-00001-of-00003.gguf", MSGL_EFORMAT, "its metadata says part 2 of 3; a model is");
    // Names that say less, nothing, or more.
    copy("split/llama-q8_0-00001-of-00003.gguf", "o-00001-of-00002.gguf");
    copy("split/llama-q8_0-00002-of-00003.gguf", "o-00002-of-00002.gguf");
    refuse("o-00001-of-00002.gguf", MSGL_EFORMAT, "split.count: found 3, the file's name says 2");
    copy("split/llama-q8_0-00001-of-00003.gguf", "p.gguf");
    refuse("p.gguf", MSGL_EFORMAT, "names like NAME-00001-of-00003.gguf");
    copy("qwen3-f16.gguf", "r-00001-of-00002.gguf");
    copy("qwen3-f16.gguf", "r-00002-of-00002.gguf");
    refuse("r-00001-of-00002.gguf", MSGL_EFORMAT, "split.count: found 1, the file's name says 2");
    copy("qwen3-f16.gguf", "s-00001-of-00001.gguf"); // one of one is whole
    same_tensors(DIR "qwen3-f16.gguf", DIR "split/qwen3-f16-00001-of-00002.gguf");
    char path[256];
    msgl_checkpoint *c = NULL;
    snprintf(path, sizeof path, "%s/s-00001-of-00001.gguf", folder);
    assert_int_equal(msgl__checkpoint_open(path, &c, &err), 0);
    msgl__checkpoint_close(c);
}

// t-0000N-of-00002.gguf with one tensor.
static void write_split(int no, const char *arch, const char *name, uint64_t tensors,
                        const char *tensor)
{
    gguf_writer w = {0};
    const int64_t dims[] = {8};
    const float data[8] = {0};
    char file[64];
    gguf_put_string(&w, "general.architecture", arch);
    gguf_put_string(&w, "general.name", name);
    gguf_put_int(&w, "split.no", MSGL_GGUF_U16, (uint64_t)no - 1);
    gguf_put_int(&w, "split.count", MSGL_GGUF_U16, 2);
    gguf_put_int(&w, "split.tensors.count", MSGL_GGUF_I32, tensors);
    gguf_put_tensor(&w, tensor, 0, 1, dims, data, sizeof data);
    const gguf_bytes b = gguf_finish(&w);
    snprintf(file, sizeof file, "t-0000%d-of-00002.gguf", no);
    put(file, b.p, b.n);
    free(b.p);
}

static void test_other_model(void **state)
{
    (void)state;
    write_split(1, "llama", "a", 2, "output_norm.weight");
    write_split(2, "llama", "a", 3, "token_embd.weight");
    refuse("", MSGL_EFORMAT, "split.tensors.count: found 3, the first part has 2");
    write_split(2, "qwen3", "a", 2, "token_embd.weight");
    refuse("", MSGL_EFORMAT, "general.architecture is not the first part's");
    write_split(2, "llama", "b", 2, "token_embd.weight");
    refuse("", MSGL_EFORMAT, "general.name is not the first part's");
    write_split(2, "llama", "a", 2, "output_norm.weight");
    refuse("", MSGL_EFORMAT, "tensor output_norm.weight: also in ");
    write_split(1, "llama", "a", 5, "output_norm.weight");
    write_split(2, "llama", "a", 5, "token_embd.weight");
    refuse("", MSGL_EFORMAT, "split.tensors.count: found 5, its 2 files have 2 tensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test_setup_teardown(test_tensors, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_missing, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_mixed, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_other_model, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
