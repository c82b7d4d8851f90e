// SPDX-License-Identifier: Apache-2.0
//
// What is made of a hub's words before they become paths: names of models, revisions and files,
// checksums, lists. Downloads themselves are in tests/cli/test_pull.sh.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/attributes.h"
#include "apps/hub/cache.h"
#include "apps/hub/choose.h"
#include "apps/hub/list.h"
#include "apps/hub/sha.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SUM "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static msgl_err err;

static void test_names(void **state)
{
    (void)state;
    static const struct {
        const char *text, *beside, *repo, *file, *revision, *type;
    } GOOD[] = {
        {"Qwen/Qwen3-0.6B", NULL, "Qwen/Qwen3-0.6B", "", "", ""},
        {"a/b", "v1.0", "a/b", "", "v1.0", ""},
        {"a/b@refs/pr/1", NULL, "a/b", "", "refs/pr/1", ""},
        {"a/b@" COMMIT, COMMIT, "a/b", "", COMMIT, ""},
        {"a/b_c.d/m-Q8_0.gguf", NULL, "a/b_c.d", "m-Q8_0.gguf", "", ""},
        {"a/b/Q8/m.gguf@x", NULL, "a/b", "Q8/m.gguf", "x", ""},
        {"a/b:Q8_0", NULL, "a/b", "", "", "Q8_0"},
        {"a/b:UD-Q4_K_XL@v1", NULL, "a/b", "", "v1", "UD-Q4_K_XL"},
    };
    for (size_t i = 0; i < MSGL_COUNT(GOOD); i++) {
        msgl_hub_name n;
        assert_int_equal(msgl__hub_name_parse(GOOD[i].text, GOOD[i].beside, &n, &err), 0);
        assert_string_equal(n.repo, GOOD[i].repo);
        assert_string_equal(n.file, GOOD[i].file);
        assert_string_equal(n.revision, GOOD[i].revision);
        assert_string_equal(n.type, GOOD[i].type);
    }
    static const char *const BAD[][2] = {
        {"", NULL},        {"name", NULL},          {"/etc", NULL},        {"a/", NULL},
        {"/b", NULL},      {"../b", NULL},          {"a/..", NULL},        {"./b", NULL},
        {"a/b/c", NULL},   {"a/b/../x.gguf", NULL}, {"a/b//x.gguf", NULL}, {"a--b/c", NULL},
        {"a b/c", NULL},   {"a/b?x", NULL},         {"a/b%2e", NULL},      {"~/b", NULL},
        {"a/b@", NULL},    {"a/b@../x", NULL},      {"a/b@/x", NULL},      {"a/b@x y", NULL},
        {"a/b@x?y", NULL}, {"a/b@one", "two"},      {"a/b", ""},           {"a/b\n", NULL},
        {"a/.b", NULL},    {"a/b:", NULL},          {"a/b:x/y", NULL},     {"a/b:..", NULL},
        {"a:b/c", NULL},   {"a/b/c.gguf:Q8", NULL}, {"a/b:Q8 0", NULL},
    };
    for (size_t i = 0; i < MSGL_COUNT(BAD); i++) {
        msgl_hub_name n;
        assert_int_equal(msgl__hub_name_parse(BAD[i][0], BAD[i][1], &n, &err), MSGL_EINVAL);
    }
    char text[400];
    memset(text, 'x', sizeof text);
    memcpy(text, "a/", 2);
    text[2 + 97] = '\0';
    msgl_hub_name n;
    assert_int_equal(msgl__hub_name_parse(text, NULL, &n, &err), MSGL_EINVAL);
    text[2 + 96] = '\0';
    assert_int_equal(msgl__hub_name_parse(text, NULL, &n, &err), 0);
    memset(text, 'x', sizeof text);
    text[129] = '\0';
    assert_int_equal(msgl__hub_name_parse("a/b", text, &n, &err), MSGL_EINVAL);
    memset(text, 'x', sizeof text);
    memcpy(text, "a/b/", 4);
    memcpy(text + 4 + 252, ".gguf", 6);
    assert_int_equal(msgl__hub_name_parse(text, NULL, &n, &err), MSGL_EINVAL);
    memcpy(text + 4 + 251, ".gguf", 6);
    assert_int_equal(msgl__hub_name_parse(text, NULL, &n, &err), 0);
}

static void test_paths(void **state)
{
    (void)state;
    static const char *const BAD[] = {"",       "/a",   "a/",    "a//b", ".",    "..",    "../a",
                                      "a/../b", "a/..", "a/./b", "a\\b", "a\nb", "a\x7f", "./a"};
    for (size_t i = 0; i < MSGL_COUNT(BAD); i++) assert_false(msgl__hub_path_ok(BAD[i]));
    static const char *const GOOD[] = {"a", ".gitattributes", "...", "a/b/c.d", "a b", "\xc3\xa9"};
    for (size_t i = 0; i < MSGL_COUNT(GOOD); i++) assert_true(msgl__hub_path_ok(GOOD[i]));
    static const char *const READ[] = {"config.json",
                                       "generation_config.json",
                                       "model.safetensors",
                                       "model-00001-of-00002.safetensors",
                                       "model.safetensors.index.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "chat_template.jinja",
                                       "vocab.json",
                                       "merges.txt",
                                       "tiktoken.model",
                                       "modules.json",
                                       "1_Pooling/config.json",
                                       "2_Dense/config.json",
                                       "2_Dense/model.safetensors",
                                       "1_LogitScore/config.json",
                                       "config_sentence_transformers.json",
                                       "sparse_linear.safetensors"};
    for (size_t i = 0; i < MSGL_COUNT(READ); i++) assert_true(msgl__hub_wanted(READ[i]));
    static const char *const LEFT[] = {"pytorch_model.bin",
                                       "original/config.json",
                                       "README.md",
                                       "m.gguf",
                                       "onnx/model.onnx",
                                       "x.pth",
                                       "tokenizer.py",
                                       "modeling_x.py",
                                       "a/1_Pooling/config.json",
                                       "2_Dense/pytorch_model.bin",
                                       "a/model.safetensors"};
    for (size_t i = 0; i < MSGL_COUNT(LEFT); i++) assert_false(msgl__hub_wanted(LEFT[i]));
    assert_true(msgl__hub_is_commit(COMMIT));
    assert_false(msgl__hub_is_commit("main"));
    assert_true(msgl__hub_is_checksum(SUM));
    assert_false(msgl__hub_is_checksum("../" COMMIT));
    assert_false(msgl__hub_is_checksum(""));
}

static void test_sha(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int times;
        const char *sha1, *sha256;
    } CASES[] = {
        // FIPS 180-4's examples
        {"", 0, "da39a3ee5e6b4b0d3255bfef95601890afd80709", SUM},
        {"abc", 1, "a9993e364706816aba3e25717850c26c9cd0d89d",
         "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
         "84983e441c3bd26ebaae4aa1f95129e5e54670f1",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"a", 1000000, "34aa973cd4c4daa4f61eeb2bdbad27316534016f",
         "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    };
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        for (int kind = MSGL_SHA1; kind <= MSGL_SHA256; kind++) {
            msgl_sha s = {0};
            char out[65];
            msgl__sha_start(&s, (msgl_sha_kind)kind);
            for (int k = 0; k < CASES[i].times; k++) {
                msgl__sha_add(&s, CASES[i].text, strlen(CASES[i].text));
            }
            msgl__sha_end(&s, out);
            msgl__sha_free(&s);
            assert_string_equal(out, kind == MSGL_SHA1 ? CASES[i].sha1 : CASES[i].sha256);
        }
    }
}

static int parse_list(const char *text, const char *of, msgl_hub_list *l)
{
    msgl_hub_name n;
    assert_int_equal(msgl__hub_name_parse(of, NULL, &n, &err), 0);
    return msgl__hub_list_parse(&msgl__hub_huggingface, text, strlen(text), &n, l, &err);
}

static void test_list(void **state)
{
    (void)state;
    msgl_hub_list l;
    const char *good = "{\"sha\":\"" COMMIT "\",\"siblings\":["
                       "{\"rfilename\":\"config.json\",\"size\":3,\"blobId\":\"" COMMIT "\"},"
                       "{\"rfilename\":\"README.md\"},"
                       "{\"rfilename\":\"q8/m.gguf\",\"size\":4,\"blobId\":\"" COMMIT "\"},"
                       "{\"rfilename\":\"m.safetensors\",\"size\":9,\"blobId\":\"" COMMIT
                       "\",\"lfs\":{\"size\":9,\"sha256\":\"" SUM "\"}}]}";
    assert_int_equal(parse_list(good, "a/b", &l), 0);
    assert_int_equal(l.count, 2);
    assert_int_equal(l.bytes, 12);
    assert_string_equal(l.commit, COMMIT);
    assert_string_equal(l.files[1].checksum, SUM);
    msgl__hub_list_free(&l);
    assert_int_equal(parse_list(good, "a/b/q8/m.gguf", &l), 0);
    assert_int_equal(l.count, 1);
    msgl__hub_list_free(&l);
    assert_int_equal(parse_list(good, "a/b/none.gguf", &l), MSGL_ENOENT);
    static const struct {
        const char *sha, *file, *sum, *size;
    } BAD[] = {
        {COMMIT, "../m.safetensors", SUM, "9"},
        {COMMIT, "/m.safetensors", SUM, "9"},
        {COMMIT, "m.safetensors", "../x", "9"},
        {COMMIT, "m.safetensors", COMMIT "0", "9"},
        {COMMIT, "m.safetensors", SUM, "-1"},
        {COMMIT, "m.safetensors", SUM, "1e3"},
        {COMMIT, "m.safetensors", SUM, "\"9\""},
        {COMMIT, "m.safetensors", SUM, "99999999999999999"},
        {"../../x", "m.safetensors", SUM, "9"},
        {"main", "m.safetensors", SUM, "9"},
    };
    for (size_t i = 0; i < MSGL_COUNT(BAD); i++) {
        char text[1000];
        snprintf(text, sizeof text,
                 "{\"sha\":\"%s\",\"siblings\":[{\"rfilename\":\"%s\",\"lfs\":{\"size\":%s,"
                 "\"sha256\":\"%s\"}}]}",
                 BAD[i].sha, BAD[i].file, BAD[i].size, BAD[i].sum);
        assert_int_equal(parse_list(text, "a/b", &l), MSGL_EFORMAT);
    }
    static const char *const NO_LIST[] = {"",
                                          "[]",
                                          "{}",
                                          "<html>",
                                          "{\"sha\":\"" COMMIT "\"}",
                                          "{\"sha\":\"" COMMIT "\",\"siblings\":[1]}"};
    for (size_t i = 0; i < MSGL_COUNT(NO_LIST); i++) {
        assert_int_equal(parse_list(NO_LIST[i], "a/b", &l), MSGL_EFORMAT);
    }
}

// What ModelScope answers: folders are no files, checksums are of the content, and the snapshot is
// the revision's.
static void test_modelscope(void **state)
{
    (void)state;
    static const char *const FORMAT =
        "{\"Code\":200,\"Success\":true,\"Data\":{\"Files\":["
        "{\"Type\":\"tree\",\"Path\":\"x\",\"Size\":0,\"Sha256\":\"\"},"
        "{\"Type\":\"blob\",\"Path\":\"config.json\",\"Size\":3,\"Sha256\":\"" SUM "\"},"
        "{\"Type\":\"blob\",\"Path\":\"%s\",\"Size\":%s,\"Sha256\":\"%s\"}]}}";
    static const struct {
        const char *path, *size, *sum;
        int code;
    } CASES[] = {
        {"m.safetensors", "9", SUM, 0},
        {"m.safetensors", "9", "", MSGL_EFORMAT},
        {"../m.safetensors", "9", SUM, MSGL_EFORMAT},
        {"m.safetensors", "-1", SUM, MSGL_EFORMAT},
        {"README.md", "9", SUM, MSGL_ENOENT},
    };
    const msgl_hub_kind *kind = msgl__hub_kind_named("modelscope");
    const msgl_hub_name name = {.repo = "a/b", .revision = "v1"};
    msgl_hub_list l;
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        char text[1000];
        snprintf(text, sizeof text, FORMAT, CASES[i].path, CASES[i].size, CASES[i].sum);
        assert_int_equal(msgl__hub_list_parse(kind, text, strlen(text), &name, &l, &err),
                         CASES[i].code);
        if (CASES[i].code != 0) continue;
        assert_int_equal(l.count, 2);
        assert_string_equal(l.commit, "v1");
        msgl__hub_list_free(&l);
    }
    static const char *const NONE[] = {"{}", "[]", "{\"Code\":200,\"Data\":null}", "",
                                       "{\"Code\":200,\"Data\":{\"Files\":[1]}}"};
    for (size_t i = 0; i < MSGL_COUNT(NONE); i++) {
        assert_int_equal(msgl__hub_list_parse(kind, NONE[i], strlen(NONE[i]), &name, &l, &err),
                         MSGL_EFORMAT);
    }
    assert_null(msgl__hub_kind_named("local"));
}

static void test_choice(void **state)
{
    (void)state;
    static const struct {
        const char *text, *files[7], *want; // the file that is meant; "": none
    } CASES[] = {
        // The name says none: llama.cpp's type, then those that cost no quality, then any.
        {"a/b", {"m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-F16.gguf"}, "m-Q4_K_M.gguf"},
        {"a/b", {"m.q4_k_m.gguf", "m.q8_0.gguf", "m.i1-Q4_K.gguf"}, "m.q4_k_m.gguf"},
        {"a/b",
         {"m-Q8_0.gguf", "Q4_K_M/m-00002-of-00002.gguf", "Q4_K_M/m-00001-of-00002.gguf"},
         "Q4_K_M/m-00001-of-00002.gguf"},
        {"a/b",
         {"q/m_Q4_K_M-00001-of-00002.gguf", "m-IQ1_S.gguf", "q/m_Q4_K_M-00002-of-00002.gguf"},
         "q/m_Q4_K_M-00001-of-00002.gguf"},
        {"a/b", {"mmproj-Q4_K_M.gguf", "m-Q4_K_M.imatrix.gguf", "m-Q8_0.gguf"}, "m-Q8_0.gguf"},
        {"a/b", {"MMPROJ-Q4_K_M.gguf", "Imatrix-Q4_K_M.gguf", "m-Q2_K.gguf"}, "m-Q2_K.gguf"},
        {"a/b", {"m-Q4_K_M-v2-IQ4_K_M.bin", "m-IQ4_K_M.gguf", "m-Q8_0.gguf"}, "m-Q8_0.gguf"},
        {"a/b", {"m.Q8_0.gguf", "m-q8_0.gguf", "README.md"}, "m-q8_0.gguf"},
        {"a/b",
         {"m-BF16-00002-of-00002.gguf", "m-BF16-00001-of-00002.gguf", "mmproj-F16.gguf"},
         "m-BF16-00001-of-00002.gguf"},
        {"a/b", {"m-Q5_K_M.gguf", "IQ4_XS/m-IQ4_XS.gguf"}, "IQ4_XS/m-IQ4_XS.gguf"},
        {"a/b", {"m-2.gguf", "m-1.gguf"}, "m-1.gguf"},
        {"a/b", {"mmproj-m-F16.gguf", "m-Q4_K_M-00002-of-00002.gguf"}, ""},
        {"a/b", {NULL}, ""},
        // A type.
        {"a/b:f16", {"m-BF16.gguf", "mmproj-F16.gguf"}, ""},
        {"a/b:q4_k_m", {"m-Q8_0.gguf", "m-Q4_K_M.gguf"}, "m-Q4_K_M.gguf"},
        {"a/b:q8_0", {"m-Q8_0.gguf", "m-Q4_K_M.gguf"}, "m-Q8_0.gguf"},
        {"a/b:Q4_K", {"m-Q4_K_M.gguf"}, ""},
        {"a/b:IQ4_XS", {"m-Q4_K_M.gguf", "IQ4_XS/m-IQ4_XS.gguf"}, "IQ4_XS/m-IQ4_XS.gguf"},
        {"a/b:Q4_XS", {"IQ4_XS/m-IQ4_XS.gguf"}, ""},
        // A file, also one that is no model, and any part.
        {"a/b/m.Q8_0.gguf", {"m-Q4_K_M.gguf", "m.Q8_0.gguf"}, "m.Q8_0.gguf"},
        {"a/b/mmproj-F16.gguf", {"m-Q4_K_M.gguf", "mmproj-F16.gguf"}, "mmproj-F16.gguf"},
        {"a/b/m-BF16-00002-of-00002.gguf",
         {"m-BF16-00002-of-00002.gguf", "m-BF16-00001-of-00002.gguf"},
         "m-BF16-00001-of-00002.gguf"},
    };
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        msgl_hub_name n;
        int count = 0;
        assert_int_equal(msgl__hub_name_parse(CASES[i].text, NULL, &n, &err), 0);
        while (CASES[i].files[count] != NULL) count++;
        for (int reversed = 0; reversed < 2; reversed++) { // the order decides nothing
            msgl_hub_choice c = {.name = &n};
            for (int k = 0; k < count; k++) {
                msgl__hub_offer(&c, CASES[i].files[reversed ? count - 1 - k : k]);
            }
            assert_string_equal(c.file, CASES[i].want);
        }
    }
}

// A name with a dot, as ModelScope's older clients spelt its folder; and what is no copy.
static void test_older(void **state)
{
    (void)state;
    char root[] = "/tmp/msgl-hub-XXXXXX", path[MSGL_HUB_PATH], command[MSGL_HUB_PATH];
    assert_non_null(mkdtemp(root));
    msgl_hub_name n;
    msgl_hub_cache c;
    const msgl_hub_kind *kind = &msgl__hub_modelscope;
    assert_int_equal(msgl__hub_name_parse("org/name-0.6B", NULL, &n, &err), 0);
    assert_int_equal(msgl__hub_cache_init(root, kind, &n, &c, &err), 0);
    snprintf(command, sizeof command, "mkdir -p %s/hub/models/org/name-0___6B %s/org/name-0.6B",
             root, root);
    assert_int_equal(system(command), 0);
    assert_false(msgl__hub_cache_older(&c, &n, path));
    snprintf(command, sizeof command, "touch %s/org/name-0.6B/m.safetensors", root);
    assert_int_equal(system(command), 0);
    assert_true(msgl__hub_cache_older(&c, &n, path));
    assert_non_null(strstr(path, "/org/name-0.6B"));
    snprintf(command, sizeof command, "touch %s/hub/models/org/name-0___6B/m.safetensors", root);
    assert_int_equal(system(command), 0);
    assert_true(msgl__hub_cache_older(&c, &n, path));
    assert_non_null(strstr(path, "/hub/models/org/name-0___6B"));
    // Links of a revision with folders in its name; a file that is adopted only when it is the one.
    assert_int_equal(msgl__hub_cache_link(&c, "a/b", "d/m.gguf", SUM, &err), 0);
    snprintf(command, sizeof command, "%s/snapshots/a/b/d/m.gguf", c.folder);
    const ssize_t len = readlink(command, path, sizeof path - 1);
    assert_true(len > 0);
    path[len] = '\0';
    assert_string_equal(path, "../../../../blobs/" SUM);
    const volatile sig_atomic_t go = 0;
    snprintf(path, sizeof path, "%s/org/name-0.6B/m.safetensors", root);
    assert_false(msgl__hub_cache_adopt(&c, path, SUM, 1, &go));
    assert_false(msgl__hub_cache_adopt(&c, path, COMMIT, 0, &go));
    snprintf(command, sizeof command, "mkdir -p %s/blobs", c.folder);
    assert_int_equal(system(command), 0);
    assert_true(msgl__hub_cache_adopt(&c, path, SUM, 0, &go)); // SUM is of nothing
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

// Links are relative, from any depth, and replace what was there; a revision may have folders.
static void test_cache(void **state)
{
    (void)state;
    char root[] = "/tmp/msgl-hub-XXXXXX", path[MSGL_HUB_PATH], target[400],
         commit[MSGL_HUB_MAX_REVISION + 1];
    assert_non_null(mkdtemp(root));
    msgl_hub_name n;
    msgl_hub_cache c;
    assert_int_equal(msgl__hub_name_parse("org/name", NULL, &n, &err), 0);
    assert_int_equal(msgl__hub_cache_init(root, &msgl__hub_huggingface, &n, &c, &err), 0);
    assert_non_null(strstr(c.folder, "/models--org--name"));
    for (int twice = 0; twice < 2; twice++) {
        assert_int_equal(msgl__hub_cache_link(&c, COMMIT, "d/e/m.gguf", SUM, &err), 0);
    }
    assert_int_equal(msgl__hub_cache_link(&c, COMMIT, "config.json", SUM, &err), 0);
    assert_int_equal(msgl__hub_cache_link(&c, COMMIT, "config.json", COMMIT, &err), 0);
    snprintf(path, sizeof path, "%s/snapshots/" COMMIT "/d/e/m.gguf", c.folder);
    ssize_t len = readlink(path, target, sizeof target - 1);
    assert_true(len > 0);
    target[len] = '\0';
    assert_string_equal(target, "../../../../blobs/" SUM);
    snprintf(path, sizeof path, "%s/snapshots/" COMMIT "/config.json", c.folder);
    len = readlink(path, target, sizeof target - 1);
    assert_true(len > 0);
    target[len] = '\0';
    assert_string_equal(target, "../../blobs/" COMMIT);
    assert_false(msgl__hub_cache_commit(&c, "refs/pr/1", commit));
    assert_int_equal(msgl__hub_cache_set_commit(&c, "refs/pr/1", COMMIT, &err), 0);
    assert_true(msgl__hub_cache_commit(&c, "refs/pr/1", commit));
    assert_string_equal(commit, COMMIT);
    // What the file says becomes part of a path.
    assert_int_equal(msgl__hub_cache_set_commit(&c, "bad", "../../x", &err), 0);
    assert_false(msgl__hub_cache_commit(&c, "bad", commit));
    char clean[MSGL_HUB_PATH];
    snprintf(clean, sizeof clean, "rm -r %s", root);
    assert_int_equal(system(clean), 0);
}

// What pages of hubs and other programs give to be copied.
static void test_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name, *source; // name NULL: it is no address
    } CASES[] = {
        {"https://huggingface.co/Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "huggingface"},
        {"HTTPS://www.HuggingFace.co/a/b/", "a/b", "huggingface"},
        {"https://huggingface.co/a/b/tree/v1?not=this", "a/b@v1", "huggingface"},
        {"https://huggingface.co/a/b/tree/main/sub#x", "a/b/sub@main", "huggingface"},
        {"https://huggingface.co/a/b/blob/main/m-Q8_0.gguf", "a/b/m-Q8_0.gguf@main", "huggingface"},
        {"https://huggingface.co/a/b/resolve/v1/q/m.gguf?download=true", "a/b/q/m.gguf@v1",
         "huggingface"},
        {"hf.co/a/b:Q8_0", "a/b:Q8_0", "huggingface"},
        {"hf://a/b@v1", "a/b@v1", "huggingface"},
        {"https://modelscope.cn/models/a/b", "a/b", "modelscope"},
        {"https://www.modelscope.cn/models/a/b/files", "a/b", "modelscope"},
        {"modelscope.cn/models/a/b/summary", "a/b", "modelscope"},
        {"https://huggingface.co/gpt2", NULL, NULL},
        {"https://huggingface.co/", NULL, NULL},
        {"https://huggingface.co", NULL, NULL},
        {"https://example.com/a/b", NULL, NULL},
        {"hf.co/name", NULL, NULL},
        {"a/b", NULL, NULL},
    };
    for (size_t i = 0; i < MSGL_COUNT(CASES); i++) {
        char name[64];
        const char *source;
        const bool is = msgl__hub_name_of_address(CASES[i].text, name, sizeof name, &source);
        assert_int_equal(is, CASES[i].name != NULL);
        if (!is) continue;
        assert_string_equal(name, CASES[i].name);
        assert_string_equal(source, CASES[i].source);
    }
    char name[8];
    const char *source;
    assert_false(msgl__hub_name_of_address("hf.co/org/longer", name, sizeof name, &source));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),     cmocka_unit_test(test_paths),
        cmocka_unit_test(test_sha),       cmocka_unit_test(test_list),
        cmocka_unit_test(test_cache),     cmocka_unit_test(test_modelscope),
        cmocka_unit_test(test_choice),    cmocka_unit_test(test_older),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
