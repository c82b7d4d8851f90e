// SPDX-License-Identifier: Apache-2.0
//
// What a server finds in the folder of batches as it begins: answers that are larger than memory,
// and memory that runs out.
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "apps/batches/batches_impl.h"
#include "core/mem.h"

typedef struct folder {
    char path[64];
    msgl_batch_store store;
    // A batch that an earlier server has begun.
    char batch[MSGL_STORE_ID], answers[2][MSGL_STORE_ID];
} folder;

static void folder_open(folder *d, const char *input)
{
    const msgl_store_limits limits = {.max_files = 10, .max_bytes = 1 << 30, .max_batches = 10};
    char file[MSGL_STORE_ID];
    msgl_err err;
    (void)snprintf(d->path, sizeof d->path, "/tmp/msgl-batch-run-XXXXXX");
    assert_non_null(mkdtemp(d->path));
    assert_int_equal(msgl__store_open(&d->store, d->path, &limits, &err), 0);
    msgl__store_new_id(&d->store, MSGL_STORE_FILE, file);
    msgl__store_new_id(&d->store, MSGL_STORE_FILE, d->answers[0]);
    msgl__store_new_id(&d->store, MSGL_STORE_FILE, d->answers[1]);
    msgl__store_new_id(&d->store, MSGL_STORE_BATCH, d->batch);
    json_t *o = json_pack("{s:s}", "id", file);
    assert_int_equal(msgl__store_put_file(&d->store, file, o, input, strlen(input), &err), 0);
    json_decref(o);
    o = json_pack("{s:s,s:s,s:s,s:s,s:{},s:s,s:s}", "id", d->batch, "endpoint", "/v1/completions",
                  "input_file_id", file, "status", "in_progress", "request_counts", "_output",
                  d->answers[0], "_errors", d->answers[1]);
    assert_int_equal(msgl__store_set(&d->store, d->batch, o, &err), 0);
    json_decref(o);
}

static void folder_close(folder *d)
{
    msgl__store_close(&d->store);
    DIR *all = opendir(d->path);
    char path[512];
    for (const struct dirent *e; (e = readdir(all)) != NULL;) {
        (void)snprintf(path, sizeof path, "%s/%s", d->path, e->d_name);
        if (e->d_name[0] != '.') assert_int_equal(unlink(path), 0);
    }
    closedir(all);
    assert_int_equal(rmdir(d->path), 0);
}

static void write_answers(const folder *d, int which, const char *text)
{
    const int fd = msgl__store_open_data(&d->store, d->answers[which]);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

#define REQUEST(id)                                                                                \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":{}}\n"

static void test_answers(void **state)
{
    (void)state;
    folder d;
    msgl_batch_run b;
    folder_open(&d, REQUEST("a") REQUEST("b") REQUEST("c") REQUEST("d"));
    write_answers(&d, 0, "{\"custom_id\":\"b\"}\nno json\n{\"custom_id\":\"c\"");
    write_answers(&d, 1, "{\"custom_id\":\"d\"}\n");
    assert_int_equal(msgl__batch_open(&b, &d.store, d.batch), 0);
    assert_int_equal(b.done, 2);
    assert_false(msgl__batch_is_done(&b));
    // What has no end is cut off.
    assert_int_equal(msgl__store_data_size(&d.store, d.answers[0]), 26);
    assert_int_equal(msgl__store_data_size(&d.store, d.answers[1]), 18);
    const json_t *counts = json_object_get(b.object, "request_counts");
    assert_int_equal(json_integer_value(json_object_get(counts, "completed")), 2);
    assert_int_equal(json_integer_value(json_object_get(counts, "failed")), 1);
    msgl__batch_close(&b);
    folder_close(&d);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) // they reserve terabytes
// Answers of 400 MiB are read by a process that may have 320 MiB of memory: a line at a time is
// there.
static void test_large_answers(void **state)
{
    (void)state;
    enum { LINES = 25, LINE = 16 << 20 };
    folder d;
    folder_open(&d, REQUEST("a") REQUEST("b"));
    int fd = msgl__store_open_data(&d.store, d.answers[0]);
    for (int i = 1; i <= LINES; i++) {
        assert_int_equal(ftruncate(fd, (off_t)i * LINE - 1), 0); // a hole, which takes no disk
        assert_int_equal(write(fd, "\n", 1), 1);
    }
    close(fd);
    write_answers(&d, 0, "{\"custom_id\":\"b\"}\n{\"custom");
    const pid_t child = fork();
    if (child == 0) {
        const rlim_t most = 320u << 20;
        msgl_batch_run b;
        if (setrlimit(RLIMIT_AS, &(struct rlimit){most, most}) != 0) _exit(1);
        if (msgl__batch_open(&b, &d.store, d.batch) != 0) _exit(2);
        _exit(b.done == 1 ? 0 : 3);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(msgl__store_data_size(&d.store, d.answers[0]), (int64_t)LINES * LINE + 18);
    folder_close(&d);
}
#endif

// Where memory runs out as the batches of earlier servers are read, no answers of theirs are taken
// for data that nobody needs.
static void test_found_without_memory(void **state)
{
    (void)state;
    folder d;
    folder_open(&d, "x\n");
    write_answers(&d, 0, "{}\n");
    write_answers(&d, 1, "{}\n");
    bool all_read = false;
    for (uint64_t nth = 1; !all_read; nth++) {
        msgl_batches b = {.store = d.store, .waiting = json_array()};
        assert_int_equal(msgl__store_list(&b.store, MSGL_STORE_BATCH, NULL, SIZE_MAX, &b.found), 0);
        msgl__mem_fail_from(nth);
        msgl__batches_read_found(&b, SIZE_MAX);
        msgl__mem_fail_from(0);
        all_read = json_array_size(b.waiting) == 1 && nth > 100;
        for (int i = 0; i < 2; i++) {
            const int64_t left = msgl__store_data_size(&b.store, d.answers[i]);
            if (left == 0) fail_msg("allocation %d: answers %d are gone", (int)nth, i);
        }
        msgl__free(b.found.ids);
        json_decref(b.waiting);
    }
    folder_close(&d);
}

// In the place of a thread that has been joined.
static void *ends_at_once(void *arg)
{
    return arg;
}

// Calls that wait when the thread is stopped stay there until it is closed: connections point to
// them, and the event loop, which goes on for a while, writes to them as their clients leave.
static void test_stopped(void **state)
{
    (void)state;
    folder d;
    msgl_batches *b = NULL;
    msgl_err err;
    folder_open(&d, "x\n");
    msgl__store_close(&d.store); // the thread's from here on
    const int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_int_equal(msgl__batches_open(d.path, &d.store.limits, NULL, wake_fd, &b, &err), 0);
    msgl_batch_call *calls[2];
    // Both and the stop are there when the thread looks next.
    pthread_mutex_lock(&b->lock);
    for (int i = 0; i < 2; i++) {
        calls[i] = msgl__calloc(1, sizeof *calls[i]);
        assert_non_null(calls[i]);
        calls[i]->method = MSGL_HTTP_GET;
        *b->todo_last = calls[i];
        b->todo_last = &calls[i]->next;
    }
    b->stopping = true;
    pthread_mutex_unlock(&b->lock);
    msgl__batches_stop(b);
    pthread_join(b->thread, NULL); // which msgl__batches_close would do
    assert_ptr_equal(b->todo, calls[0]);
    assert_ptr_equal(calls[0]->next, calls[1]);
    assert_null(calls[1]->next);
    assert_null(msgl__batches_take(b));
    // A call that comes behind them is freed with them.
    pthread_mutex_lock(&b->lock);
    assert_ptr_equal(b->todo_last, &calls[1]->next);
    pthread_mutex_unlock(&b->lock);
    assert_int_equal(pthread_create(&b->thread, NULL, ends_at_once, NULL), 0);
    msgl__batches_close(b);
    close(wake_fd);
    folder_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        cmocka_unit_test(test_large_answers),
#endif
        cmocka_unit_test(test_found_without_memory),
        cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
