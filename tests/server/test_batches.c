// SPDX-License-Identifier: Apache-2.0
//
// /v1/files and /v1/batches with a scripted engine: the forms of calls, right and wrong; what a
// batch makes of answers; and that a server which ended in its midst is followed by one that goes
// on, whatever its last bytes were.
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "core/attributes.h"
#include "core/mem.h"
#include "server/fixture.h"
#include "http/tcp_socket.h"

static const char type_line[] = "multipart/form-data; boundary=XX";

#define PART(head, value) "--XX\r\nContent-Disposition: form-data; " head "\r\n\r\n" value "\r\n"

// --- a server with a folder ---

typedef struct folder {
    char path[64];
    server_fixture s;
    msgl_store_limits limits; // max_files 0: the usual ones
    int max_waiting;          // 0: the usual
} folder;

static void folder_serve(folder *d)
{
    msgl_front_config cfg = msgl__front_config_default();
    cfg.stop_timeout_ms = 2000;
    cfg.batch_dir = d->path;
    if (d->limits.max_files > 0) cfg.batch_limits = d->limits;
    if (d->max_waiting > 0) cfg.max_waiting = d->max_waiting;
    server_open(&d->s, &cfg, true);
}

static void folder_make(folder *d)
{
    d->limits = (msgl_store_limits){0};
    d->max_waiting = 0;
    (void)snprintf(d->path, sizeof d->path, "/tmp/msgl-batches-XXXXXX");
    assert_non_null(mkdtemp(d->path));
}

static void folder_open(folder *d)
{
    folder_make(d);
    folder_serve(d);
}

static void folder_remove(const folder *d)
{
    DIR *all = opendir(d->path);
    char path[512];
    for (const struct dirent *e; (e = readdir(all)) != NULL;) {
        (void)snprintf(path, sizeof path, "%s/%s", d->path, e->d_name);
        if (e->d_name[0] != '.') assert_int_equal(unlink(path), 0);
    }
    closedir(all);
    assert_int_equal(rmdir(d->path), 0);
}

static void folder_close(folder *d)
{
    server_close(&d->s);
    folder_remove(d);
}

// body[0, len), which may have NUL bytes.
static response post_bytes(const server_fixture *s, const char *type, const char *body, size_t len)
{
    char head[512];
    const int fd = client_open(s);
    (void)snprintf(head, sizeof head,
                   "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\n"
                   "Content-Length: %zu\r\n\r\n",
                   type, len);
    client_send(fd, head);
    assert_int_equal(write(fd, body, len), len);
    response r = client_read(fd);
    close(fd);
    return r;
}

static response post_form(const server_fixture *s, const char *type, const char *body)
{
    return post_bytes(s, type, body, strlen(body));
}

// The object of a good answer, which it frees.
static json_t *object_of(response r)
{
    if (r.status != 200) fail_msg("%d %s", r.status, r.body);
    json_t *o = json_loadb(r.body, r.len, JSON_ALLOW_NUL, NULL);
    assert_true(json_is_object(o));
    response_free(&r);
    return o;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s == NULL ? "" : s;
}

static void upload(const server_fixture *s, const char *content, char id[64])
{
    msgl_strbuf body;
    msgl__strbuf_init(&body, 1 << 20);
    msgl__strbuf_adds(&body, PART("name=\"purpose\"", "batch"));
    msgl__strbuf_addf(&body, PART("name=\"file\"; filename=\"../x.jsonl\"", "%s") "--XX--\r\n",
                      content);
    json_t *o = object_of(post_form(s, type_line, msgl__strbuf_str(&body)));
    msgl__strbuf_free(&body);
    assert_string_equal(text_of(o, "filename"), "../x.jsonl");
    assert_int_equal(json_integer_value(json_object_get(o, "bytes")), strlen(content));
    (void)snprintf(id, 64, "%s", text_of(o, "id"));
    json_decref(o);
}

static json_t *get(const server_fixture *s, const char *what, const char *id)
{
    char path[160];
    (void)snprintf(path, sizeof path, "/v1/%s/%s", what, id);
    return object_of(client_request(s, "GET", path, NULL));
}

static void create(const server_fixture *s, const char *file, char id[64])
{
    char body[512];
    (void)snprintf(body, sizeof body,
                   "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/completions\","
                   "\"completion_window\":\"24h\",\"metadata\":{\"k\":\"v\"}}",
                   file);
    json_t *o = object_of(client_request(s, "POST", "/v1/batches", body));
    assert_string_equal(text_of(o, "status"), "validating");
    assert_null(json_object_get(o, "_output"));
    (void)snprintf(id, 64, "%s", text_of(o, "id"));
    json_decref(o);
}

static json_t *wait_for(const server_fixture *s, const char *id, const char *status)
{
    for (int i = 0; i < 1000; i++) {
        json_t *o = get(s, "batches", id);
        if (strcmp(text_of(o, "status"), status) == 0) return o;
        json_decref(o);
        usleep(10000);
    }
    fail_msg("%s did not become %s", id, status);
    return NULL;
}

static int count_of(const json_t *batch, const char *which)
{
    return (int)json_integer_value(
        json_object_get(json_object_get(batch, "request_counts"), which));
}

static void content(const server_fixture *s, const char *file, msgl_strbuf *out)
{
    char path[160];
    (void)snprintf(path, sizeof path, "/v1/files/%s/content", file);
    response r = client_request(s, "GET", path, NULL);
    assert_int_equal(r.status, 200);
    msgl__strbuf_init(out, 1 << 20);
    msgl__strbuf_add(out, r.body, r.len);
    response_free(&r);
}

// n requests with the prompts "1", "2", ...
static void make_input(int n, char *out, size_t size)
{
    size_t at = 0;
    for (int i = 1; i <= n; i++) {
        at += (size_t)snprintf(out + at, size - at,
                               "{\"custom_id\":\"r%d\",\"method\":\"POST\",\"url\":"
                               "\"/v1/completions\",\"body\":{\"prompt\":\"%c\"}}\n",
                               i, '0' + i);
    }
}

static int next_request(server_fixture *s, uint64_t *uid)
{
    const msgl_msg m = engine_expect(s, MSGL_MSG_REQUEST);
    *uid = m.u.request.uid;
    return m.u.request.ids[0] - '0';
}

static void finish(server_fixture *s, uint64_t uid)
{
    engine_text(s, uid, "ok");
    engine_token(s, uid, ID_EOS, MSGL_FINISH_STOP);
}

// Every id once, with its answer, in whichever order.
static void expect_answers(const server_fixture *s, const char *file, int n)
{
    msgl_strbuf all;
    int lines = 0;
    content(s, file, &all);
    for (const char *p = msgl__strbuf_str(&all); (p = strchr(p, '\n')) != NULL; p++) lines++;
    assert_int_equal(lines, n);
    for (int i = 1; i <= n; i++) {
        char id[64];
        (void)snprintf(id, sizeof id, "\"custom_id\":\"r%d\"", i);
        const char *at = strstr(msgl__strbuf_str(&all), id);
        assert_non_null(at);
        assert_null(strstr(at + 1, id));
    }
    assert_non_null(strstr(msgl__strbuf_str(&all), "\"text\":\"ok\""));
    msgl__strbuf_free(&all);
}

// --- tests ---

static void expect_delete(const server_fixture *s, const char *what, const char *id, int status)
{
    char path[160];
    (void)snprintf(path, sizeof path, "/v1/%s/%s", what, id);
    response r = client_request(s, "DELETE", path, NULL);
    if (status == 200) assert_non_null(strstr(r.body, "\"deleted\":true"));
    expect_status(r, status);
    if (status == 200) expect_status(client_request(s, "GET", path, NULL), 404);
}

static void test_off(void **state)
{
    (void)state;
    server_fixture s;
    server_open(&s, NULL, true);
    static const char *const paths[] = {"/v1/files", "/v1/files/x", "/v1/batches", "/v1/batches/x"};
    for (size_t i = 0; i < MSGL_COUNT(paths); i++) {
        response r = client_request(&s, "GET", paths[i], NULL);
        assert_non_null(strstr(r.body, "--batch-dir"));
        expect_error(&r, 501, "batches_off");
    }
    expect_alive(&s);
    server_close(&s);
}

static void test_files(void **state)
{
    (void)state;
    folder d;
    char id[64], other[64], path[160];
    folder_open(&d);
    server_fixture *s = &d.s;
    upload(s, "one\n", id);
    upload(s, "", other);
    json_t *o = get(s, "files", id);
    assert_string_equal(text_of(o, "purpose"), "batch");
    json_decref(o);
    o = object_of(client_request(s, "GET", "/v1/files", NULL));
    assert_int_equal(json_array_size(json_object_get(o, "data")), 2);
    assert_string_equal(text_of(o, "first_id"), other); // the newest
    json_decref(o);
    msgl_strbuf text;
    content(s, id, &text);
    assert_string_equal(msgl__strbuf_str(&text), "one\n");
    msgl__strbuf_free(&text);
    (void)snprintf(path, sizeof path, "/v1/files/%s", id);
    o = object_of(client_request(s, "DELETE", path, NULL));
    assert_true(json_is_true(json_object_get(o, "deleted")));
    json_decref(o);
    expect_status(client_request(s, "GET", path, NULL), 404);
    expect_status(client_request(s, "DELETE", path, NULL), 404);
    // A name may have any bytes: a NUL and what is no UTF-8 do not lose the file.
    static const char odd[] = PART("name=\"purpose\"", "batch")
        PART("name=\"file\"; filename=\"a\0\xff.jsonl\"", "odd\n") "--XX--\r\n";
    o = object_of(post_bytes(s, type_line, odd, sizeof odd - 1));
    (void)snprintf(id, sizeof id, "%s", text_of(o, "id"));
    json_decref(o);
    content(s, id, &text);
    assert_string_equal(msgl__strbuf_str(&text), "odd\n");
    msgl__strbuf_free(&text);
    expect_delete(s, "files", id, 200);
    // Names that are no ids are no files, whatever they would be in a folder.
    static const char *const bad[] = {"lock",
                                      ".",
                                      "..",
                                      "../lock",
                                      "%2e%2e%2flock",
                                      "file-",
                                      "file-18eb9908cbc10fe1361f8d5/",
                                      "batch_",

                                      "file-zzzzzzzzzzzzzzzzzzzzzzzz",
                                      "/etc/passwd"};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        (void)snprintf(path, sizeof path, "/v1/files/%s", bad[i]);
        expect_status(client_request(s, "GET", path, NULL), 404);
        (void)snprintf(path, sizeof path, "/v1/batches/%s", bad[i]);
        expect_status(client_request(s, "GET", path, NULL), 404);
    }
    static const struct {
        const char *type, *body;
        int status;
        const char *words;
    } wrong[] = {
        {"application/json", "{}", 415, "multipart/form-data"},
        {type_line, "", 400, "no whole"},
        {type_line, PART("name=\"file\"", "x") "--XX--", 400, "'purpose' is missing"},
        {type_line, PART("name=\"purpose\"", "batch") "--XX--", 400, "'file' is missing"},
        {type_line, PART("name=\"purpose\"", "vision") PART("name=\"file\"", "x") "--XX--", 400,
         "allowed: batch"},
        {type_line, PART("name=\"purpose\"", "batch") PART("name=\"file\"", "x"), 400, "no whole"},
    };
    for (size_t i = 0; i < MSGL_COUNT(wrong); i++) {
        response r = post_form(s, wrong[i].type, wrong[i].body);
        if (strstr(r.body, wrong[i].words) == NULL) fail_msg("%s", r.body);
        expect_status(r, wrong[i].status);
    }
    expect_status(client_request(s, "POST", "/v1/files/x", "{}"), 405);
    expect_status(client_request(s, "DELETE", "/v1/batches", NULL), 405);
    folder_close(&d);
}

static void test_batch(void **state)
{
    (void)state;
    folder d;
    char file[64], id[64], input[2048], path[160];
    folder_open(&d);
    server_fixture *s = &d.s;
    make_input(5, input, sizeof input);
    strcat(input, "\n{\"custom_id\":\"bad\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                  "\"body\":{\"prompt\":\"x\",\"temperature\":-1}}");
    upload(s, input, file);
    create(s, file, id);
    for (int i = 0; i < 5; i++) {
        uint64_t uid;
        (void)next_request(s, &uid);
        if (i == 0) { // while it runs
            (void)snprintf(path, sizeof path, "/v1/files/%s", file);
            response r = client_request(s, "DELETE", path, NULL);
            expect_error(&r, 400, NULL);
        }
        finish(s, uid);
    }
    json_t *o = wait_for(s, id, "completed");
    assert_int_equal(count_of(o, "total"), 6);
    assert_int_equal(count_of(o, "completed"), 5);
    assert_int_equal(count_of(o, "failed"), 1);
    assert_string_equal(text_of(json_object_get(o, "metadata"), "k"), "v");
    expect_answers(s, text_of(o, "output_file_id"), 5);
    msgl_strbuf errors;
    content(s, text_of(o, "error_file_id"), &errors);
    assert_non_null(strstr(msgl__strbuf_str(&errors), "\"custom_id\":\"bad\""));
    assert_non_null(strstr(msgl__strbuf_str(&errors), "\"status_code\":400"));
    msgl__strbuf_free(&errors);
    json_decref(o);
    (void)snprintf(path, sizeof path, "/v1/batches/%s/cancel", id);
    response r = client_request(s, "POST", path, "{}");
    assert_non_null(strstr(r.body, "ended already: completed"));
    expect_error(&r, 400, NULL);
    expect_alive(s);
    folder_close(&d);
}

static void test_refused(void **state)
{
    (void)state;
    folder d;
    char file[64], id[64], body[512];
    folder_open(&d);
    server_fixture *s = &d.s;
    upload(s,
           "no json\n{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\","
           "\"body\":{}}\n{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\","
           "\"body\":{}}\n{\"custom_id\":\"b\",\"method\":\"GET\",\"url\":\"/v1/completions\","
           "\"body\":{}}\n{\"custom_id\":\"c\",\"method\":\"POST\",\"url\":\"/v1/embeddings\","
           "\"body\":{}}\n{\"custom_id\":\"d\",\"method\":\"POST\",\"url\":\"/v1/completions\"}\n"
           "{\"custom_id\":\"e\",\"method\":\"POST\",\"url\":\"/v1/completions\","
           "\"body\":{\"stream\":true}}\n{\"method\":\"POST\"}\n",
           file);
    create(s, file, id);
    json_t *o = wait_for(s, id, "failed");
    const json_t *errors = json_object_get(json_object_get(o, "errors"), "data");
    static const struct {
        int line;
        const char *param;
    } want[] = {{1, ""},     {3, "custom_id"},   {4, "method"},   {5, "url"},
                {6, "body"}, {7, "body.stream"}, {8, "custom_id"}};
    assert_int_equal(json_array_size(errors), MSGL_COUNT(want));
    for (size_t i = 0; i < MSGL_COUNT(want); i++) {
        const json_t *e = json_array_get(errors, i);
        assert_int_equal(json_integer_value(json_object_get(e, "line")), want[i].line);
        assert_string_equal(text_of(e, "param"), want[i].param);
    }
    json_decref(o);
    upload(s, "\n \n", file);
    create(s, file, id);
    json_decref(wait_for(s, id, "failed"));
    static const char *const wrong[] = {
        "[]",
        "{\"input_file_id\":1}",
        "{\"input_file_id\":\"%s\"}",
        "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/completions\"}",
        "{\"input_file_id\":\"file-x\",\"endpoint\":\"/v1/"
        "completions\",\"completion_window\":\"24h\"}",
        "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/rerank\",\"completion_window\":\"24h\"}",
        "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/completions\",\"completion_window\":\"24h\","
        "\"metadata\":{\"a\":1}}"};
    for (size_t i = 0; i < MSGL_COUNT(wrong); i++) {
        const char *at = strstr(wrong[i], "%s");
        (void)snprintf(body, sizeof body, "%.*s%s%s",
                       at == NULL ? (int)strlen(wrong[i]) : (int)(at - wrong[i]), wrong[i],
                       at == NULL ? "" : file, at == NULL ? "" : at + 2);
        response r = client_request(s, "POST", "/v1/batches", body);
        expect_error(&r, 400, NULL);
    }
    expect_alive(s);
    folder_close(&d);
}

// The data file that has `words`, cut so that its last line is torn.
static void tear(const folder *d, const char *words)
{
    DIR *all = opendir(d->path);
    char path[512], text[8192];
    bool found = false;
    for (const struct dirent *e; (e = readdir(all)) != NULL;) {
        if (strstr(e->d_name, ".data") == NULL) continue;
        (void)snprintf(path, sizeof path, "%s/%s", d->path, e->d_name);
        FILE *f = fopen(path, "r+");
        const size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = '\0';
        if (strstr(text, words) != NULL) {
            assert_int_equal(ftruncate(fileno(f), (off_t)n - 9), 0);
            found = true;
        }
        fclose(f);
    }
    closedir(all);
    assert_true(found);
}

static void test_goes_on(void **state)
{
    (void)state;
    folder d;
    char file[64], id[64], second[64], input[2048];
    uint64_t uid;
    folder_open(&d);
    make_input(6, input, sizeof input);
    upload(&d.s, input, file);
    create(&d.s, file, id);
    create(&d.s, file, second);
    for (int i = 0; i < 3; i++) {
        (void)next_request(&d.s, &uid);
        finish(&d.s, uid);
    }
    for (int i = 0; i < 500; i++) {
        json_t *o = get(&d.s, "batches", id);
        const int n = count_of(o, "completed");
        json_decref(o);
        if (n == 3) break;
        usleep(10000);
    }
    server_close(&d.s);
    tear(&d, "batch_req_"); // of three answers, two are whole
    (void)snprintf(input, sizeof input, "%s/file-000000000000000000000000.data", d.path);
    fclose(fopen(input, "w")); // of an upload that was cut short
    folder_serve(&d);
    bool seen[10] = {false};
    for (int i = 0; i < 4; i++) {
        const int n = next_request(&d.s, &uid);
        assert_false(seen[n]);
        seen[n] = true;
        finish(&d.s, uid);
    }
    json_t *o = wait_for(&d.s, id, "completed");
    assert_int_equal(count_of(o, "completed"), 6);
    expect_answers(&d.s, text_of(o, "output_file_id"), 6);
    assert_string_equal(text_of(o, "error_file_id"), "");
    json_decref(o);
    assert_int_not_equal(access(input, F_OK), 0);
    for (int i = 0; i < 6; i++) {
        (void)next_request(&d.s, &uid);
        finish(&d.s, uid);
    }
    o = wait_for(&d.s, second, "completed");
    expect_answers(&d.s, text_of(o, "output_file_id"), 6);
    json_decref(o);
    // The folder is this server's alone.
    int fd, port;
    msgl_err err = {0};
    msgl_front *f = NULL;
    assert_int_equal(msgl__tcp_listen("127.0.0.1", 0, &fd, &port, &err), 0);
    assert_int_equal(msgl__front_create(&d.s.cfg, fd, &f, &err), MSGL_EBUSY);
    assert_non_null(strstr(err.text, "another server"));
    folder_close(&d);
}

static void test_cancel(void **state)
{
    (void)state;
    folder d;
    char file[64], id[64], second[64], input[2048], path[160];
    uint64_t uid;
    folder_open(&d);
    server_fixture *s = &d.s;
    make_input(6, input, sizeof input);
    upload(s, input, file);
    create(s, file, id);
    create(s, file, second);
    (void)next_request(s, &uid);
    finish(s, uid);
    for (int i = 0; i < 5; i++) (void)next_request(s, &uid);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "/v1/batches/%s/cancel", i == 0 ? second : id);
        json_t *o = object_of(client_request(s, "POST", path, "{}"));
        assert_string_equal(text_of(o, "status"), "cancelled");
        if (i == 1) expect_answers(s, text_of(o, "output_file_id"), 1);
        json_decref(o);
    }
    for (int i = 0; i < 5; i++) (void)engine_expect(s, MSGL_MSG_ABORT);
    (void)snprintf(path, sizeof path, "/v1/files/%s", file);
    expect_status(client_request(s, "DELETE", path, NULL), 200);
    expect_alive(s);
    folder_close(&d);
}

// The id of the batch's file of answers, which has no object yet: the data are all that there is.
static void answers_id(const folder *d, const char *input, char id[64])
{
    DIR *all = opendir(d->path);
    char path[512];
    struct stat st;
    id[0] = '\0';
    for (const struct dirent *e; (e = readdir(all)) != NULL;) {
        const char *dot = strstr(e->d_name, ".data");
        (void)snprintf(path, sizeof path, "%s/%s", d->path, e->d_name);
        if (dot == NULL || strncmp(e->d_name, input, strlen(input)) == 0) continue;
        assert_int_equal(stat(path, &st), 0);
        if (st.st_size > 0) (void)snprintf(id, 64, "%.*s", (int)(dot - e->d_name), e->d_name);
    }
    closedir(all);
    assert_string_not_equal(id, "");
}

// A batch whose end cannot be stored is one that has not ended: its requests are sent again.
static void test_end_fails(void **state)
{
    (void)state;
    folder d;
    char file[64], id[64], answers[64], input[2048], path[160];
    uint64_t uid;
    folder_open(&d);
    server_fixture *s = &d.s;
    make_input(3, input, sizeof input);
    upload(s, input, file);
    create(s, file, id);
    (void)next_request(s, &uid);
    finish(s, uid);
    for (int i = 0; i < 2; i++) (void)next_request(s, &uid);
    json_t *o = get(s, "batches", id);
    for (; count_of(o, "completed") == 0; o = get(s, "batches", id)) json_decref(o);
    json_decref(o);
    answers_id(&d, file, answers);
    (void)snprintf(path, sizeof path, "%s/%s.json", d.path, answers);
    assert_int_equal(mkdir(path, 0700), 0); // where a file would have to be
    char cancel[160];
    (void)snprintf(cancel, sizeof cancel, "/v1/batches/%s/cancel", id);
    expect_status(client_request(s, "POST", cancel, "{}"), 500);
    assert_int_equal(rmdir(path), 0);
    for (int i = 0; i < 2; i++) (void)engine_expect(s, MSGL_MSG_ABORT);
    o = get(s, "batches", id);
    assert_string_equal(text_of(o, "status"), "in_progress");
    json_decref(o);
    for (int i = 0; i < 2; i++) {
        (void)next_request(s, &uid);
        finish(s, uid);
    }
    o = wait_for(s, id, "completed");
    expect_answers(s, text_of(o, "output_file_id"), 3);
    json_decref(o);
    folder_close(&d);
}

// While another client is served, a batch has two requests at once.
static void test_makes_room(void **state)
{
    (void)state;
    folder d;
    char file[64], id[64], input[2048];
    uint64_t uid[6], mine;
    folder_open(&d);
    server_fixture *s = &d.s;
    make_input(6, input, sizeof input);
    upload(s, input, file);
    const int fd = client_ask(s, "{\"prompt\":\"me\",\"stream\":true}", &mine);
    create(s, file, id);
    for (int i = 0; i < 2; i++) (void)next_request(s, &uid[i]);
    engine_expect_nothing(s);
    finish(s, uid[0]);
    (void)next_request(s, &uid[2]);
    engine_expect_nothing(s);
    finish(s, mine); // and alone again, all that there are
    for (int i = 3; i < 6; i++) (void)next_request(s, &uid[i]);
    for (int i = 1; i < 6; i++) finish(s, uid[i]);
    json_decref(wait_for(s, id, "completed"));
    close(fd);
    folder_close(&d);
}

static json_t *list(const server_fixture *s, const char *path)
{
    return object_of(client_request(s, "GET", path, NULL));
}

// Page by page, the newest first, each of them once; what is no page is refused.
static void test_pages(void **state)
{
    (void)state;
    enum { MANY = 5 };
    folder d;
    char file[64], ids[MANY][64], path[200];
    folder_open(&d);
    server_fixture *s = &d.s;
    upload(s, "x", file); // which fails them all
    for (int i = 0; i < MANY; i++) create(s, file, ids[i]);
    json_t *o = list(s, "/v1/batches?limit=2");
    for (int i = MANY - 1; i >= 0; i -= 2) {
        const json_t *data = json_object_get(o, "data");
        const int here = i > 0 ? 2 : 1;
        assert_int_equal(json_array_size(data), here);
        for (int k = 0; k < here; k++) {
            assert_string_equal(text_of(json_array_get(data, (size_t)k), "id"), ids[i - k]);
        }
        assert_string_equal(text_of(o, "first_id"), ids[i]);
        assert_string_equal(text_of(o, "last_id"), ids[i - here + 1]);
        assert_true(json_is_boolean(json_object_get(o, "has_more")));
        assert_int_equal(json_is_true(json_object_get(o, "has_more")), i > 1);
        (void)snprintf(path, sizeof path, "/v1/batches?after=%s&limit=2", text_of(o, "last_id"));
        json_decref(o);
        o = list(s, path);
    }
    assert_int_equal(json_array_size(json_object_get(o, "data")), 0); // behind the last
    assert_true(json_is_null(json_object_get(o, "first_id")));
    assert_true(json_is_false(json_object_get(o, "has_more")));
    json_decref(o);
    o = list(s, "/v1/files?limit=1&order=desc");
    assert_string_equal(text_of(json_array_get(json_object_get(o, "data"), 0), "id"), file);
    json_decref(o);
    static const char *const bad[] = {"batches?limit=0",
                                      "batches?limit=101",
                                      "batches?limit=-1",
                                      "batches?limit=",
                                      "batches?limit=1x",
                                      "files?limit=10001",
                                      "batches?after=x",
                                      "batches?after=file-18eb9908cbc10fe1361f8d5",
                                      "batches?limit=99999999999999999999"};
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) {
        (void)snprintf(path, sizeof path, "/v1/%s", bad[i]);
        response r = client_request(s, "GET", path, NULL);
        if (strstr(r.body, "allowed: ") == NULL) fail_msg("%s: %s", path, r.body);
        expect_error(&r, 400, NULL);
    }
    folder_close(&d);
}

static void expect_window(const server_fixture *s, const char *file, const char *window, int status)
{
    msgl_strbuf body;
    msgl__strbuf_init(&body, 4 << 20);
    msgl__strbuf_addf(&body, "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/completions\",", file);
    msgl__strbuf_adds(&body, "\"completion_window\":\"");
    msgl__strbuf_adds(&body, window);
    msgl__strbuf_adds(&body, "\"}");
    response r = client_request(s, "POST", "/v1/batches", msgl__strbuf_str(&body));
    if (r.status != status) fail_msg("%.40s: %d %s", window, r.status, r.body);
    if (status == 400 && strstr(r.body, "allowed: 24h") == NULL) fail_msg("%s: %s", window, r.body);
    response_free(&r);
    msgl__strbuf_free(&body);
}

static void test_windows(void **state)
{
    (void)state;
    folder d;
    char file[64], *large = msgl__calloc(1, (2 << 20) + 1);
    folder_open(&d);
    upload(&d.s, "x", file);
    static const char *const good[] = {"24h", "1h", "168h", "1d", "7d"};
    static const char *const bad[] = {"",    "24",   "h",     "0h",   "024h", "169h", "8d",
                                      "24H", "24 h", "9999h", "24hh", "-1h",  "1w"};
    for (size_t i = 0; i < MSGL_COUNT(good); i++) expect_window(&d.s, file, good[i], 200);
    for (size_t i = 0; i < MSGL_COUNT(bad); i++) expect_window(&d.s, file, bad[i], 400);
    memset(large, 'B', 1000000);
    expect_window(&d.s, file, large, 400);
    memset(large, 'B', 2 << 20); // more than any batch has
    expect_window(&d.s, file, large, 413);
    msgl__free(large);
    folder_close(&d);
}

// So many files, batches and bytes, and no more until some are deleted.
static void test_limits(void **state)
{
    (void)state;
    folder d;
    char file[64], ids[3][64], input[512], body[1024];
    uint64_t uid;
    folder_make(&d);
    d.limits =
        (msgl_store_limits){.max_files = 3, .max_batches = 2, .max_bytes = 500, .max_age_s = 1000};
    folder_serve(&d);
    server_fixture *s = &d.s;
    make_input(1, input, sizeof input); // about 90 bytes; an answer has some 400
    upload(s, input, file);
    for (int i = 0; i < 2; i++) create(s, file, ids[i]);
    (void)snprintf(body, sizeof body,
                   "{\"input_file_id\":\"%s\",\"endpoint\":\"/v1/completions\","
                   "\"completion_window\":\"24h\"}",
                   file);
    response r = client_request(s, "POST", "/v1/batches", body);
    assert_non_null(strstr(r.body, "keeps 2 batches; allowed: 2"));
    expect_error(&r, 413, NULL);
    (void)next_request(s, &uid);
    expect_delete(s, "batches", ids[0], 400); // it runs
    expect_delete(s, "batches", ids[1], 400); // it waits
    finish(s, uid);
    json_t *o = wait_for(s, ids[0], "completed");
    // There is no room for the other's answers, nor for another file, but for another batch.
    r = post_form(s, type_line,
                  PART("name=\"purpose\"", "batch") PART("name=\"file\"", "x") "--XX--");
    assert_non_null(strstr(r.body, "500 bytes. Delete some."));
    expect_error(&r, 413, NULL);
    engine_expect_nothing(s);
    expect_delete(s, "batches", ids[0], 200);
    create(s, file, ids[2]);
    expect_delete(s, "files", file, 400);
    expect_delete(s, "files", text_of(o, "output_file_id"), 200);
    json_decref(o);
    (void)next_request(s, &uid); // and it goes on
    finish(s, uid);
    json_decref(wait_for(s, ids[1], "completed"));
    folder_close(&d);
}

static void put(const folder *d, const char *id, const char *suffix, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.%s", d->path, id, suffix);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

// An object's id as it was made so many seconds ago.
static void old_id(const char *prefix, int64_t age_s, int chance, char id[64])
{
    const uint64_t ns = (uint64_t)(time(NULL) - age_s) * 1000000000u;
    (void)snprintf(id, 64, "%s%016llx%08x", prefix, (unsigned long long)ns, (unsigned)chance);
}

static void put_file(const folder *d, const char *id, const char *data)
{
    char text[256];
    (void)snprintf(text, sizeof text, "{\"id\":\"%s\",\"object\":\"file\"}", id);
    put(d, id, "data", data);
    put(d, id, "json", text);
}

static void put_batch(const folder *d, const char *id, const char *file, const char *status)
{
    char text[640], other[2][64];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(other[i], 64, "file-%.23s%c", id + strlen("batch_"), "ef"[i]);
    }
    (void)snprintf(text, sizeof text,
                   "{\"id\":\"%s\",\"object\":\"batch\",\"endpoint\":\"/v1/completions\","
                   "\"input_file_id\":\"%s\",\"status\":\"%s\",\"request_counts\":{},"
                   "\"_output\":\"%s\",\"_errors\":\"%s\"}",
                   id, file, status, other[0], other[1]);
    put(d, id, "json", text);
}

// What earlier servers have left: what is too old goes, but for what a batch needs that has not
// ended; of many batches that is found, and run, while lists and calls are answered.
static void test_left(void **state)
{
    (void)state;
    enum { DAY = 24 * 3600, MANY = 300 };
    folder d;
    char id[64], input[512], needed[64], open[64], gone[3][64], kept[64];
    uint64_t uid;
    folder_make(&d);
    make_input(1, input, sizeof input);
    old_id("file-", 31 * DAY, 1, needed);
    old_id("file-", 31 * DAY, 2, gone[0]);
    old_id("batch_", 31 * DAY, 3, open);
    old_id("batch_", 31 * DAY, 4, gone[1]);
    old_id("batch_", 31 * DAY, 5, gone[2]);
    old_id("file-", 29 * DAY, 6, kept);
    put_file(&d, needed, input);
    put_file(&d, gone[0], input);
    put_file(&d, kept, input);
    put_batch(&d, open, needed, "in_progress");
    put_batch(&d, gone[1], needed, "completed");
    put_batch(&d, gone[2], gone[0], "cancelled");
    for (int i = 0; i < MANY; i++) {
        old_id("batch_", DAY, i, id);
        put_batch(&d, id, kept, "completed");
    }
    folder_serve(&d);
    server_fixture *s = &d.s;
    json_t *o = list(s, "/v1/batches?limit=100");
    assert_int_equal(json_array_size(json_object_get(o, "data")), 100);
    json_decref(o);
    o = list(s, "/v1/batches");
    assert_int_equal(json_array_size(json_object_get(o, "data")), 20);
    json_decref(o);
    assert_int_equal(next_request(s, &uid), 1);
    // As it runs all is read and looked through.
    char path[256];
    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof path, "/v1/%s/%s", i == 0 ? "files" : "batches", gone[i]);
        expect_status(client_request(s, "GET", path, NULL), 404);
    }
    json_decref(get(s, "files", needed));
    json_decref(get(s, "files", kept));
    expect_delete(s, "files", needed, 400);
    finish(s, uid);
    json_decref(wait_for(s, open, "completed"));
    folder_close(&d);
}

// A batch that an earlier server has begun keeps its answers when it is cancelled as it waits for
// an older one: the whole lines, without the torn one behind them.
static void test_cancel_begun(void **state)
{
    (void)state;
    folder d;
    char older[64], begun[64], output[64], file[64], input[2048], path[160];
    uint64_t uid;
    folder_make(&d);
    make_input(3, input, sizeof input);
    old_id("file-", 100, 1, file);
    old_id("batch_", 90, 2, older);
    old_id("batch_", 80, 3, begun);
    (void)snprintf(output, sizeof output, "file-%.23se", begun + strlen("batch_"));
    put_file(&d, file, input);
    put_batch(&d, older, file, "validating");
    put_batch(&d, begun, file, "in_progress");
    put(&d, output, "data", "{\"custom_id\":\"r2\",\"text\":\"ok\"}\n{\"custom_id\":\"r1\"");
    folder_serve(&d);
    for (int i = 0; i < 3; i++) (void)next_request(&d.s, &uid); // of the older one
    (void)snprintf(path, sizeof path, "/v1/batches/%s/cancel", begun);
    json_t *o = object_of(client_request(&d.s, "POST", path, "{}"));
    assert_string_equal(text_of(o, "status"), "cancelled");
    assert_string_equal(text_of(o, "output_file_id"), output);
    assert_int_equal(count_of(o, "completed"), 1);
    assert_int_equal(count_of(o, "total"), 3);
    json_decref(o);
    msgl_strbuf text;
    content(&d.s, output, &text);
    assert_string_equal(msgl__strbuf_str(&text), "{\"custom_id\":\"r2\",\"text\":\"ok\"}\n");
    msgl__strbuf_free(&text);
    // Its input is that of the older one, which still runs.
    expect_delete(&d.s, "files", file, 400);
    folder_close(&d);
}

// A request for which there is no room in the queue is sent again, and the batch ends.
static void test_again(void **state)
{
    (void)state;
    folder d;
    char file[64], id[64], input[512];
    uint64_t uid, mine;
    folder_make(&d);
    d.max_waiting = 1;
    folder_serve(&d);
    server_fixture *s = &d.s;
    make_input(1, input, sizeof input);
    upload(s, input, file);
    const int fd = client_ask(s, "{\"prompt\":\"me\"}", &mine);
    create(s, file, id);
    // Until the batch's has met a 429; this client's own requests would be the next ones of it.
    static const char refused[] = "minisgl_errors_total{code=\"queue_full\"}";
    for (bool seen = false; !seen; usleep(1000)) {
        response r = client_request(s, "GET", "/metrics", NULL);
        const char *at = strstr(r.body, refused);
        seen = at != NULL && atoi(at + strlen(refused)) > 0;
        response_free(&r);
    }
    finish(s, mine);
    expect_status(client_read(fd), 200);
    close(fd);
    assert_int_equal(next_request(s, &uid), 1);
    finish(s, uid);
    json_t *o = wait_for(s, id, "completed");
    expect_answers(s, text_of(o, "output_file_id"), 1);
    json_decref(o);
    folder_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_again),     cmocka_unit_test(test_off),
        cmocka_unit_test(test_files),     cmocka_unit_test(test_batch),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_goes_on),
        cmocka_unit_test(test_cancel),    cmocka_unit_test(test_makes_room),
        cmocka_unit_test(test_pages),     cmocka_unit_test(test_windows),
        cmocka_unit_test(test_limits),    cmocka_unit_test(test_left),
        cmocka_unit_test(test_end_fails), cmocka_unit_test(test_cancel_begun)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
