// SPDX-License-Identifier: Apache-2.0
#include "apps/batches/batches.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "apps/batches/batch_run.h"
#include "api/json.h"
#include "utils/clock.h"
#include "utils/json.h"
#include "utils/json_write.h"

enum {
    LOOK_MS = 100,         // between looks for room, while a batch has more to send
    SWEEP_MS = 600 * 1000, // between looks for what is too old
    READ_AT_ONCE = 64,     // of the batches that a start finds, between two looks for calls
    BODY_MAX = 2 << 20,    // of what makes a batch
    FILES_MAX = 10000,     // of a list, as OpenAI has it
    BATCHES_MAX = 100,     // the same
    BATCHES_USUAL = 20,    // without `limit`
    LATER_BYTES = 4096,    // that a running batch's object may have more than is stored
    MAX_FDS = MSGL_BATCH_SLOTS,
};

struct msgl_batches {
    msgl_batch_store store;
    const msgl_log *log;
    int wake_fd, own_fd; // the event loop's, the thread's
    pthread_t thread;
    pthread_mutex_t lock;
    msgl_batch_call *todo, **todo_last, *done, **done_last;
    int fds[MAX_FDS], num_fds;
    int room; // requests that may be under way
    bool stopping;
    // The thread's:
    msgl_batch run;
    bool running;
    // Batches that are to run, the oldest first: objects with `id`, and the ids of the files that
    // are theirs, `input`, `_output` and `_errors`.
    json_t *waiting;
    msgl_store_page found; // batches of earlier servers, of which the first `len` are not read yet
    bool all_read;
    uint64_t sweep_at; // ns
    bool told_full;
};

static void wake(int fd)
{
    const uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

void msgl__batch_call_free(msgl_batch_call *c)
{
    if (c == NULL) return;
    msgl__strbuf_free(&c->body);
    msgl__strbuf_free(&c->answer);
    msgl__claim_free(&c->claim);
    msgl__free(c);
}

// --- answers ---

static void reply_error(msgl_batch_call *c, int status, const char *param, const char *text)
{
    msgl_api_error e;
    (void)msgl__api_fail(&e, status, param, NULL, "%s", text);
    c->status = status;
    msgl__strbuf_clear(&c->answer);
    (void)msgl__api_error_put(&e, &c->answer);
}

// o without what is not shown; takes o.
static json_t *shown(json_t *o)
{
    json_object_del(o, "_output");
    json_object_del(o, "_errors");
    return o;
}

static void reply(msgl_batch_call *c, json_t *o)
{
    char *text = o == NULL ? NULL : msgl__json_text(o, JSON_COMPACT);
    if (text == NULL || msgl__strbuf_adds(&c->answer, text) != 0) {
        reply_error(c, 500, NULL, "Out of memory.");
    }
    msgl__free(text);
    json_decref(o);
}

// Makes sure of the answer's memory; false: the call is answered.
static bool claim_answer(msgl_batch_call *c, size_t bytes)
{
    const int rc = msgl__claim_add(&c->claim, MSGL_BUDGET_ANSWER, bytes);
    if (rc == 0) return true;
    msgl_api_error e;
    (void)msgl__api_fail_memory(&e, rc);
    reply_error(c, e.status, NULL, e.message);
    return false;
}

int msgl__batch_list_max(msgl_batch_object what)
{
    return what == MSGL_BATCH_FILES ? FILES_MAX : BATCHES_MAX;
}

// One object of a list; those that are gone or damaged are left out.
static int put_object(msgl_batches *b, const char *id, bool first, msgl_strbuf *out)
{
    json_t *o = msgl__store_get(&b->store, id);
    if (o == NULL) return 0;
    // Its counts are not stored as they grow.
    if (b->running && strcmp(id, b->run.id) == 0) json_object_update(o, b->run.object);
    char *text = msgl__json_text(shown(o), JSON_COMPACT);
    int rc = text == NULL || (!first && msgl__strbuf_addc(out, ',') != 0) ? MSGL_ENOMEM : 0;
    if (rc == 0) rc = msgl__strbuf_adds(out, text);
    msgl__free(text);
    json_decref(o);
    return rc;
}

// Read and written one by one: the answer is all that there is of them in memory.
static int put_page(msgl_batches *b, const msgl_store_page *page, msgl_strbuf *out)
{
    int rc = msgl__strbuf_adds(out, "{\"object\":\"list\",\"data\":[");
    const size_t begin = out->len;
    const char *first = NULL, *last = NULL;
    for (size_t i = 0; i < page->len && rc == 0; i++) {
        const size_t before = out->len;
        rc = put_object(b, page->ids[i], before == begin, out);
        if (out->len == before) continue;
        if (first == NULL) first = page->ids[i];
        last = page->ids[i];
    }
    const char *quote = first == NULL ? "" : "\"";
    if (rc != 0) return rc;
    return msgl__strbuf_addf(out, "],\"first_id\":%s%s%s,\"last_id\":%s%s%s,\"has_more\":%s}",
                             quote, first == NULL ? "null" : first, quote, quote,
                             last == NULL ? "null" : last, quote, page->more ? "true" : "false");
}

static void reply_list(msgl_batches *b, msgl_batch_call *c, const char *prefix)
{
    msgl_store_page page;
    const int usual = c->what == MSGL_BATCH_FILES ? FILES_MAX : BATCHES_USUAL;
    const int rc = msgl__store_list(&b->store, prefix, c->after[0] == '\0' ? NULL : c->after,
                                    (size_t)(c->limit > 0 ? c->limit : usual), &page);
    if (rc != 0) {
        reply_error(c, 500, NULL, "The list cannot be read.");
    } else if (claim_answer(c, page.bytes + page.len + LATER_BYTES) &&
               put_page(b, &page, &c->answer) != 0) {
        reply_error(c, 500, NULL, "Out of memory.");
    }
    msgl__free(page.ids);
}

static void reply_no_such(msgl_batch_call *c)
{
    char text[192];
    (void)snprintf(text, sizeof text, "There is no %s '%s'.",
                   c->what == MSGL_BATCH_FILES ? "file" : "batch", c->rest);
    reply_error(c, 404, "id", text);
}

// --- files ---

enum { FORM_PURPOSE, FORM_FILE };
static const msgl_field_row form_rows[] = {
    [FORM_PURPOSE] = {"purpose", MSGL_FIELD_STRING, .required = true, .help = "only `batch`"},
    [FORM_FILE] = {"file", MSGL_FIELD_STRING, .required = true,
                   .help = "a request a line ([batch.md](batch.md))"},
    {0},
};
const msgl_fields msgl__file_fields = {.title = "A form, multipart/form-data", .read = form_rows};

static bool is_called(const msgl_multipart_field *f, const msgl_field_row *row)
{
    return f->name_len == strlen(row->name) && memcmp(f->name, row->name, f->name_len) == 0;
}

// The form's fields; false: the call is answered.
static bool read_form(msgl_batch_call *c, msgl_multipart_field *file, bool *for_batch)
{
    size_t at = 0;
    int rc = 0;
    msgl_multipart_field f;
    bool purpose = false;
    *file = (msgl_multipart_field){0};
    *for_batch = false;
    if (c->boundary[0] == '\0') {
        reply_error(c, 415, NULL,
                    "A file is sent as multipart/form-data with 'purpose' and 'file'.");
        return false;
    }
    while ((rc = msgl__multipart_next(msgl__strbuf_str(&c->body), c->body.len, c->boundary, &at,
                                      &f)) > 0) {
        if (is_called(&f, &form_rows[FORM_FILE])) *file = f;
        if (is_called(&f, &form_rows[FORM_PURPOSE])) {
            purpose = true;
            *for_batch = f.len == 5 && memcmp(f.value, "batch", 5) == 0;
        }
    }
    if (rc < 0) {
        reply_error(c, 400, NULL, "The body is no whole multipart/form-data.");
    } else if (!purpose || !*for_batch) {
        reply_error(c, 400, "purpose",
                    purpose ? "'purpose' is another; allowed: batch." : "'purpose' is missing.");
    } else if (file->value == NULL) {
        reply_error(c, 400, "file", "'file' is missing.");
    }
    return c->status == 200;
}

static void upload(msgl_batches *b, msgl_batch_call *c)
{
    msgl_multipart_field file;
    bool for_batch;
    msgl_err err;
    char id[MSGL_STORE_ID];
    if (!read_form(c, &file, &for_batch)) return;
    msgl__store_new_id(&b->store, MSGL_STORE_FILE, id);
    // A name is shown as it was given, and used for nothing.
    msgl_strbuf name;
    msgl__strbuf_init(&name, 4096);
    const size_t len = file.filename == NULL ? 0 : file.filename_len;
    json_t *text = NULL;
    if (msgl__json_put_str(&name, file.filename, len < 255 ? len : 255) == 0) {
        text = msgl__json_loadb(msgl__strbuf_str(&name), strlen(msgl__strbuf_str(&name)),
                                JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL, NULL);
    }
    msgl__strbuf_free(&name);
    json_t *o =
        json_pack("{s:s,s:s,s:I,s:I,s:o,s:s,s:s}", "id", id, "object", "file", "bytes",
                  (json_int_t)file.len, "created_at", (json_int_t)time(NULL), "filename",
                  text != NULL ? text : json_string(""), "purpose", "batch", "status", "processed");
    const int rc = o == NULL ? msgl__err_set(&err, MSGL_ENOMEM, "Out of memory.")
                             : msgl__store_put_file(&b->store, id, o, file.value, file.len, &err);
    if (rc == 0) {
        reply(c, o);
        return;
    }
    json_decref(o);
    reply_error(c, rc == MSGL_ELIMIT ? 413 : 500, NULL, err.text);
}

static void reply_content(msgl_batches *b, msgl_batch_call *c, const char *id)
{
    const int64_t size = msgl__store_data_size(&b->store, id);
    msgl_err err;
    if (!claim_answer(c, (size_t)size)) return;
    char *data = NULL;
    size_t len = 0;
    const int rc = msgl__store_read_data(&b->store, id, (size_t)size, &data, &len, &err);
    if (rc != 0) {
        reply_error(c, 500, NULL, "The file cannot be read.");
        return;
    }
    msgl__strbuf_free(&c->answer);
    c->answer = (msgl_strbuf){data, len, len + 1, SIZE_MAX / 2};
    c->type = "application/octet-stream";
}

static bool is_final(const json_t *batch)
{
    static const char *const open[] = {"validating", "in_progress"};
    const char *status = json_string_value(json_object_get(batch, "status"));
    for (size_t i = 0; i < 2 && status != NULL; i++) {
        if (strcmp(status, open[i]) == 0) return false;
    }
    return true;
}

static const char *member(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text == NULL ? "" : text;
}

// A batch that is to run: behind the older ones.
static int add_waiting(msgl_batches *b, const json_t *batch)
{
    const char *id = member(batch, "id");
    size_t at = json_array_size(b->waiting);
    while (at > 0 && strcmp(member(json_array_get(b->waiting, at - 1), "id"), id) > 0) at--;
    json_t *o = json_pack("{s:s,s:s,s:s,s:s}", "id", id, "input", member(batch, "input_file_id"),
                          "_output", member(batch, "_output"), "_errors", member(batch, "_errors"));
    return json_array_insert_new(b->waiting, at, o) == 0 ? 0 : MSGL_ENOMEM;
}

// Whether a batch that has not ended has this file, by one of these names.
static bool is_in_use(const msgl_batches *b, const char *id, const char *const *keys, size_t n)
{
    size_t i;
    json_t *waiting;
    json_array_foreach(b->waiting, i, waiting)
    {
        for (size_t k = 0; k < n; k++) {
            if (strcmp(member(waiting, keys[k]), id) == 0) return true;
        }
    }
    return false;
}

static const char *const own_files[] = {"input", "_output", "_errors"};

static bool is_own_file(const msgl_batches *b, const char *id)
{
    return is_in_use(b, id, own_files, 3);
}

static bool is_waiting(const msgl_batches *b, const char *id)
{
    static const char *const key[] = {"id"};
    return is_in_use(b, id, key, 1);
}

// What an upload has left that was cut short, or a batch that is no more: data that belong to
// nobody.
static void remove_orphans(msgl_batches *b)
{
    json_t *used = json_object();
    size_t i;
    json_t *waiting;
    json_array_foreach(b->waiting, i, waiting)
    {
        for (size_t k = 0; k < 3; k++) {
            json_object_set_new(used, member(waiting, own_files[k]), json_true());
        }
    }
    if (used != NULL) msgl__store_remove_orphans(&b->store, used);
    json_decref(used);
}

// Reads some of the batches that earlier servers have left, the oldest first: those that have not
// ended wait. A start does not wait for it, however many there are.
static void read_some(msgl_batches *b, size_t most)
{
    for (; most > 0 && b->found.len > 0; most--) {
        const char *id = b->found.ids[--b->found.len];
        json_t *o = msgl__store_get(&b->store, id);
        const bool open = o != NULL && strcmp(member(o, "id"), id) == 0 && !is_final(o);
        if (open && add_waiting(b, o) != 0) {
            msgl__log(b->log, MSGL_LOG_ERROR, "%s is left to the next start: out of memory", id);
        }
        json_decref(o);
    }
    if (b->all_read || b->found.len > 0) return;
    b->all_read = true;
    msgl__free(b->found.ids);
    b->found = (msgl_store_page){0};
    remove_orphans(b);
}

static void read_all(msgl_batches *b)
{
    read_some(b, SIZE_MAX);
}

static void delete_file(msgl_batches *b, msgl_batch_call *c)
{
    read_all(b);
    if (is_own_file(b, c->rest)) {
        reply_error(c, 400, "id", "The file is the input of a batch that has not ended.");
        return;
    }
    msgl__store_remove(&b->store, c->rest);
    reply(c, json_pack("{s:s,s:s,s:b}", "id", c->rest, "object", "file", "deleted", 1));
}

static void call_files(msgl_batches *b, msgl_batch_call *c)
{
    if (c->rest[0] == '\0') {
        if (c->method == MSGL_HTTP_POST) {
            upload(b, c);
        } else {
            reply_list(b, c, MSGL_STORE_FILE);
        }
        return;
    }
    char *slash = strchr(c->rest, '/');
    const bool content = slash != NULL && strcmp(slash, "/content") == 0;
    if (content) *slash = '\0';
    json_t *o =
        msgl__store_is_id(c->rest, MSGL_STORE_FILE) ? msgl__store_get(&b->store, c->rest) : NULL;
    if (o == NULL) {
        reply_no_such(c);
    } else if (c->method == MSGL_HTTP_DELETE && content) {
        reply_error(c, 405, NULL, "The content of a file takes GET.");
    } else if (c->method == MSGL_HTTP_DELETE) {
        delete_file(b, c);
    } else if (content) {
        reply_content(b, c, c->rest);
    } else {
        reply(c, json_incref(o));
    }
    json_decref(o);
}

// --- batches ---

enum { METADATA_MAX = 16 };
static const msgl_field_row batch_rows[] = {
    {"input_file_id", MSGL_FIELD_STRING, .required = true, .help = "the `id` of a file"},
    {"endpoint", MSGL_FIELD_STRING, .required = true,
     .help = "`/v1/chat/completions` or `/v1/completions`"},
    {"completion_window", MSGL_FIELD_STRING, .required = true,
     .help =
         "`24h`, or another time of up to 168 hours (`h`) or 7 days (`d`); a batch is answered as "
         "soon as may be, and none expires while it waits"},
    {"metadata", MSGL_FIELD_OBJECT, .max_items = METADATA_MAX,
     .help = "strings of up to 512 bytes, names of up to 64, which the batch's object repeats"},
    {0},
};
const msgl_fields msgl__batch_fields = {.read = batch_rows};

static const char *string_field(msgl_batch_call *c, const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));
    char text[96];
    if (s != NULL) return s;
    (void)snprintf(text, sizeof text, "'%s' must be given, as a string.", name);
    if (c->status == 200) reply_error(c, 400, name, text);
    return "";
}

// "24h": from one hour to a week.
static bool is_window(const char *s)
{
    const size_t n = strspn(s, "0123456789");
    const bool days = n > 0 && s[n] == 'd';
    if (n < 1 || n > 3 || s[0] == '0' || (!days && s[n] != 'h') || s[n + 1] != '\0') return false;
    int value = 0;
    for (size_t i = 0; i < n; i++) value = 10 * value + (s[i] - '0');
    return value <= (days ? 7 : 7 * 24);
}

static bool is_metadata(const json_t *m)
{
    const char *key;
    json_t *v;
    if (m == NULL || json_is_null(m)) return true;
    if (!json_is_object(m) || json_object_size(m) > METADATA_MAX) return false;
    json_object_foreach((json_t *)(uintptr_t)m, key, v)
    {
        if (!json_is_string(v) || strlen(key) > 64 || json_string_length(v) > 512) return false;
    }
    return true;
}

// What a batch is made of, checked; false: the call is answered.
static bool check_batch(msgl_batches *b, msgl_batch_call *c, const json_t *o)
{
    for (const msgl_field_row *row = batch_rows; row->name != NULL; row++) {
        if (row->required) (void)string_field(c, o, row->name);
    }
    if (c->status != 200) return false;
    const char *input = string_field(c, o, "input_file_id"),
               *endpoint = string_field(c, o, "endpoint");
    json_t *file =
        msgl__store_is_id(input, MSGL_STORE_FILE) ? msgl__store_get(&b->store, input) : NULL;
    if (file == NULL) {
        reply_error(c, 400, "input_file_id", "There is no file with the id 'input_file_id'.");
    } else if (strcmp(endpoint, "/v1/chat/completions") != 0 &&
               strcmp(endpoint, "/v1/completions") != 0 &&
               strcmp(endpoint, "/v1/embeddings") != 0) {
        reply_error(c, 400, "endpoint",
                    "'endpoint' is another; allowed: /v1/chat/completions, /v1/completions, "
                    "/v1/embeddings.");
    } else if (!is_window(string_field(c, o, "completion_window"))) {
        reply_error(c, 400, "completion_window",
                    "'completion_window' is another; allowed: 24h, or from 1h to 168h or 1d to "
                    "7d.");
    } else if (!is_metadata(json_object_get(o, "metadata"))) {
        reply_error(c, 400, "metadata",
                    "'metadata' must be an object of at most 16 strings, names with up to 64 "
                    "bytes, values with up to 512.");
    }
    json_decref(file);
    return c->status == 200;
}

static json_t *new_batch(msgl_batches *b, const json_t *o, const char *id)
{
    char output[MSGL_STORE_ID], errors[MSGL_STORE_ID];
    msgl__store_new_id(&b->store, MSGL_STORE_FILE, output);
    msgl__store_new_id(&b->store, MSGL_STORE_FILE, errors);
    json_t *made =
        json_pack("{s:s,s:s,s:O,s:n,s:O,s:O,s:s,s:n,s:n,s:I,s:{s:i,s:i,s:i},s:O?,s:s,s:s}", "id",
                  id, "object", "batch", "endpoint", json_object_get(o, "endpoint"), "errors",
                  "input_file_id", json_object_get(o, "input_file_id"), "completion_window",
                  json_object_get(o, "completion_window"), "status", "validating", "output_file_id",
                  "error_file_id", "created_at", (json_int_t)time(NULL), "request_counts", "total",
                  0, "completed", 0, "failed", 0, "metadata", json_object_get(o, "metadata"),
                  "_output", output, "_errors", errors);
    static const char *const later[] = {"in_progress_at", "expires_at",  "finalizing_at",
                                        "completed_at",   "failed_at",   "expired_at",
                                        "cancelling_at",  "cancelled_at"};
    for (size_t i = 0; made != NULL && i < sizeof later / sizeof later[0]; i++) {
        json_object_set_new(made, later[i], json_null());
    }
    return made;
}

// Stores a checked batch, which then waits.
static void begin(msgl_batches *b, msgl_batch_call *c, const json_t *o)
{
    char id[MSGL_STORE_ID];
    msgl_err err;
    int rc = msgl__store_batch_room(&b->store, &err);
    json_t *made = NULL;
    if (rc == 0) {
        msgl__store_new_id(&b->store, MSGL_STORE_BATCH, id);
        made = new_batch(b, o, id);
        rc = made == NULL ? msgl__err_set(&err, MSGL_ENOMEM, "Out of memory.")
                          : msgl__store_set(&b->store, id, made, &err);
    }
    if (rc == 0 && (rc = add_waiting(b, made)) != 0) {
        msgl__store_remove(&b->store, id);
        (void)msgl__err_set(&err, rc, "Out of memory.");
    }
    if (rc == 0) {
        reply(c, shown(made));
        return;
    }
    json_decref(made);
    reply_error(c, rc == MSGL_ELIMIT ? 413 : 500, NULL, err.text);
}

static void create(msgl_batches *b, msgl_batch_call *c)
{
    msgl_json_room room = {0};
    msgl_err err = {0};
    if (c->body.len > BODY_MAX) {
        reply_error(c, 413, NULL, "The body has more than 2 MiB.");
        return;
    }
    json_t *o = msgl__json_parse_object(msgl__strbuf_str(&c->body), c->body.len, &room, &err);
    if (o == NULL) {
        reply_error(c, 400, NULL, err.text);
        return;
    }
    if (check_batch(b, c, o)) begin(b, c, o);
    json_decref(o);
}

// The batch is no longer to be run.
static void forget(msgl_batches *b, const char *id)
{
    size_t i;
    json_t *waiting;
    json_array_foreach(b->waiting, i, waiting)
    {
        if (strcmp(member(waiting, "id"), id) != 0) continue;
        json_array_remove(b->waiting, i);
        return;
    }
}

static void stop_running(msgl_batches *b)
{
    msgl__batch_close(&b->run);
    b->running = false;
}

static int cancel_running(msgl_batches *b, msgl_err *err)
{
    const int rc = msgl__batch_end(&b->run, "cancelled", err);
    if (rc == 0) stop_running(b);
    return rc;
}

// One that has not begun: it has no answers.
static int cancel_waiting(msgl_batches *b, const char *id, json_t *o, msgl_err *err)
{
    json_object_set_new(o, "status", json_string("cancelled"));
    json_object_set_new(o, "cancelled_at", json_integer((json_int_t)time(NULL)));
    return msgl__store_set(&b->store, id, o, err);
}

static void cancel(msgl_batches *b, msgl_batch_call *c, json_t *o)
{
    msgl_err err;
    if (is_final(o)) {
        char text[96];
        (void)snprintf(text, sizeof text, "The batch has ended already: %.40s.",
                       json_string_value(json_object_get(o, "status")));
        reply_error(c, 400, NULL, text);
        return;
    }
    const bool runs = b->running && strcmp(b->run.id, c->rest) == 0;
    const int rc = runs ? cancel_running(b, &err) : cancel_waiting(b, c->rest, o, &err);
    if (rc != 0) {
        reply_error(c, 500, NULL, err.text);
        return;
    }
    forget(b, c->rest);
    reply(c, shown(msgl__store_get(&b->store, c->rest)));
}

static void delete_batch(msgl_batches *b, msgl_batch_call *c, const json_t *o)
{
    if (!is_final(o)) {
        reply_error(c, 400, "id", "The batch has not ended: it is to be cancelled first.");
        return;
    }
    msgl__store_remove(&b->store, c->rest);
    reply(c, json_pack("{s:s,s:s,s:b}", "id", c->rest, "object", "batch", "deleted", 1));
}

static void call_batches(msgl_batches *b, msgl_batch_call *c)
{
    if (c->rest[0] == '\0') {
        if (c->method == MSGL_HTTP_POST) {
            create(b, c);
        } else {
            reply_list(b, c, MSGL_STORE_BATCH);
        }
        return;
    }
    char *slash = strchr(c->rest, '/');
    const bool cancels = slash != NULL && strcmp(slash, "/cancel") == 0;
    if (cancels) *slash = '\0';
    json_t *o =
        msgl__store_is_id(c->rest, MSGL_STORE_BATCH) ? msgl__store_get(&b->store, c->rest) : NULL;
    if (o == NULL) {
        reply_no_such(c);
    } else if (cancels != (c->method == MSGL_HTTP_POST)) {
        reply_error(c, 405, NULL, "A batch takes GET and DELETE, and its '/cancel' POST.");
    } else if (c->method == MSGL_HTTP_DELETE) {
        delete_batch(b, c, o);
    } else if (cancels) {
        cancel(b, c, o);
    } else if (b->running && strcmp(b->run.id, c->rest) == 0) {
        reply(c, shown(msgl__json_copy(b->run.object))); // its counts are not stored as they grow
    } else {
        reply(c, shown(json_incref(o)));
    }
    json_decref(o);
}

// --- the thread ---

// The end of a new connection that the event loop will serve.
static int connect_loop(void *ctx)
{
    msgl_batches *b = ctx;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) return -1;
    pthread_mutex_lock(&b->lock);
    const bool room = b->num_fds < MAX_FDS && !b->stopping;
    if (room) b->fds[b->num_fds++] = pair[1];
    pthread_mutex_unlock(&b->lock);
    if (room) {
        wake(b->wake_fd);
        return pair[0];
    }
    close(pair[0]);
    close(pair[1]);
    return -1;
}

// Whether a batch would find no room for its answers, which the log says once.
static bool lacks_room(msgl_batches *b)
{
    const bool full = msgl__store_is_full(&b->store);
    if (full && !b->told_full) {
        msgl__log(b->log, MSGL_LOG_WARN,
                  "batches wait: the files of --batch-dir have %lld bytes or more; some are to be "
                  "deleted",
                  (long long)b->store.limits.max_bytes);
    }
    b->told_full = full;
    return full;
}

// Has the oldest batch run, if none does.
static void begin_next(msgl_batches *b)
{
    while (!b->running && b->all_read && json_array_size(b->waiting) > 0) {
        char id[MSGL_STORE_ID];
        if (lacks_room(b)) return;
        (void)snprintf(id, sizeof id, "%s", member(json_array_get(b->waiting, 0), "id"));
        const int rc = msgl__batch_open(&b->run, &b->store, id);
        b->running = rc == 0;
        if (rc == 0) {
            msgl__log(b->log, MSGL_LOG_INFO, "%s: %d of %d requests are answered", id, b->run.done,
                      b->run.num_lines);
            return;
        }
        // What a look at it later may find in order is left to the next start.
        msgl__log(b->log, MSGL_LOG_WARN, "%s cannot be run: %s", id,
                  rc == MSGL_EINVAL ? "its input is refused" : msgl__status_text(rc));
        msgl__batch_close(&b->run);
        forget(b, id);
    }
}

static void end_if_done(msgl_batches *b)
{
    msgl_err err;
    if (!b->running || !msgl__batch_is_done(&b->run)) return;
    char id[MSGL_STORE_ID];
    (void)snprintf(id, sizeof id, "%s", b->run.id);
    const int rc = msgl__batch_end(&b->run, "completed", &err);
    msgl__log(b->log, rc == 0 ? MSGL_LOG_INFO : MSGL_LOG_ERROR, "%s %s%s", id,
              rc == 0 ? "is completed" : "cannot be ended: ", rc == 0 ? "" : err.text);
    stop_running(b);
    forget(b, id);
}

static bool is_stopping(msgl_batches *b)
{
    pthread_mutex_lock(&b->lock);
    const bool stopping = b->stopping;
    pthread_mutex_unlock(&b->lock);
    return stopping;
}

// Those that a stop leaves over are freed: their clients see the end of the connection.
static void answer_calls(msgl_batches *b, msgl_batch_call *all)
{
    for (msgl_batch_call *c = all, *next; c != NULL; c = next) {
        next = c->next;
        if (is_stopping(b)) {
            msgl__batch_call_free(c);
            continue;
        }
        c->next = NULL;
        c->status = 200;
        c->type = "application/json";
        msgl__strbuf_init(&c->answer, SIZE_MAX / 2);
        if (c->what == MSGL_BATCH_FILES) {
            call_files(b, c);
        } else {
            call_batches(b, c);
        }
        msgl__strbuf_free(&c->body);
        pthread_mutex_lock(&b->lock);
        *b->done_last = c;
        b->done_last = &c->next;
        pthread_mutex_unlock(&b->lock);
        wake(b->wake_fd);
    }
}

// Waits for something to do, and does what connections bring.
static void serve(msgl_batches *b, bool more)
{
    struct pollfd fds[MSGL_BATCH_SLOTS + 1];
    int slots[MSGL_BATCH_SLOTS];
    const int n = b->running ? msgl__batch_poll(&b->run, fds, slots) : 0;
    fds[n] = (struct pollfd){.fd = b->own_fd, .events = POLLIN};
    const int wait = !b->all_read ? 0 : more ? LOOK_MS : SWEEP_MS;
    if (poll(fds, (nfds_t)n + 1, wait) < 0) return;
    for (int i = 0; i < n && b->running; i++) {
        msgl_err err;
        if (fds[i].revents == 0 || msgl__batch_ready(&b->run, slots[i], &err) == 0) continue;
        msgl__log(b->log, MSGL_LOG_ERROR, "%s: an answer cannot be stored: %s", b->run.id,
                  err.text);
    }
    uint64_t times;
    if (fds[n].revents != 0 && read(b->own_fd, &times, sizeof times) < 0) return;
}

// What is too old is removed, but for what batches have that have not ended.
static void sweep(msgl_batches *b, const char *prefix,
                  bool (*is_kept)(const msgl_batches *, const char *))
{
    msgl_store_page all;
    const int64_t now = (int64_t)time(NULL);
    if (msgl__store_list(&b->store, prefix, NULL, SIZE_MAX, &all) != 0) return;
    for (size_t i = all.len; i-- > 0;) {
        const char *id = all.ids[i];
        if (now - msgl__store_made_at(id) < b->store.limits.max_age_s) break;
        if (!is_kept(b, id)) msgl__store_remove(&b->store, id);
    }
    msgl__free(all.ids);
}

static void sweep_if_due(msgl_batches *b)
{
    const uint64_t now = msgl__now_ns();
    if (!b->all_read || now < b->sweep_at) return;
    b->sweep_at = now + (uint64_t)SWEEP_MS * 1000000u;
    sweep(b, MSGL_STORE_FILE, is_own_file);
    sweep(b, MSGL_STORE_BATCH, is_waiting);
}

static void *batch_thread(void *arg)
{
    msgl_batches *b = arg;
    for (;;) {
        pthread_mutex_lock(&b->lock);
        msgl_batch_call *calls = b->todo;
        b->todo = NULL;
        b->todo_last = &b->todo;
        const bool stop = b->stopping;
        const int room = b->room;
        pthread_mutex_unlock(&b->lock);
        answer_calls(b, calls);
        if (stop) break;
        read_some(b, READ_AT_ONCE);
        sweep_if_due(b);
        begin_next(b);
        if (b->running) {
            msgl__batch_fill(&b->run, room, connect_loop, b);
        }
        serve(b, b->running);
        end_if_done(b);
    }
    if (b->running) stop_running(b);
    return NULL;
}

// --- life ---

int msgl__batches_open(const char *dir, const msgl_store_limits *limits, const msgl_log *log,
                       int wake_fd, msgl_batches **out, msgl_err *err)
{
    msgl_batches *b = msgl__calloc(1, sizeof *b);
    if (b == NULL) return msgl__err_set(err, MSGL_ENOMEM, "--batch-dir: out of memory");
    b->log = log;
    b->wake_fd = wake_fd;
    b->room = 1;
    b->todo_last = &b->todo;
    b->done_last = &b->done;
    pthread_mutex_init(&b->lock, NULL);
    b->own_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    b->waiting = json_array();
    int rc = msgl__store_open(&b->store, dir, limits, err);
    if (rc == 0 && (b->own_fd < 0 || b->waiting == NULL)) {
        rc = msgl__err_set(err, MSGL_ENOMEM, "--batch-dir: out of memory");
    }
    if (rc == 0) {
        rc = msgl__store_list(&b->store, MSGL_STORE_BATCH, NULL, SIZE_MAX, &b->found);
        if (rc != 0) (void)msgl__err_set(err, rc, "--batch-dir: the batches cannot be listed");
    }
    if (rc == 0) {
        sigset_t all, old;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        if (pthread_create(&b->thread, NULL, batch_thread, b) != 0) {
            rc = msgl__err_set(err, MSGL_EINTERNAL, "--batch-dir: no thread");
        }
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (rc == 0) {
        *out = b;
        return 0;
    }
    msgl__store_close(&b->store);
    if (b->own_fd >= 0) close(b->own_fd);
    json_decref(b->waiting);
    msgl__free(b->found.ids);
    pthread_mutex_destroy(&b->lock);
    msgl__free(b);
    return rc;
}

void msgl__batches_stop(msgl_batches *b)
{
    if (b == NULL) return;
    pthread_mutex_lock(&b->lock);
    b->stopping = true;
    pthread_mutex_unlock(&b->lock);
    wake(b->own_fd);
}

void msgl__batches_close(msgl_batches *b)
{
    if (b == NULL) return;
    msgl__batches_stop(b);
    pthread_join(b->thread, NULL);
    for (int fd; (fd = msgl__batches_take_fd(b)) >= 0;) close(fd);
    for (msgl_batch_call *c; (c = msgl__batches_take(b)) != NULL;) msgl__batch_call_free(c);
    for (msgl_batch_call *c = b->todo, *next; c != NULL; c = next) {
        next = c->next;
        msgl__batch_call_free(c);
    }
    msgl__store_close(&b->store);
    close(b->own_fd);
    json_decref(b->waiting);
    msgl__free(b->found.ids);
    pthread_mutex_destroy(&b->lock);
    msgl__free(b);
}

void msgl__batches_submit(msgl_batches *b, msgl_batch_call *c)
{
    c->next = NULL;
    pthread_mutex_lock(&b->lock);
    *b->todo_last = c;
    b->todo_last = &c->next;
    pthread_mutex_unlock(&b->lock);
    wake(b->own_fd);
}

msgl_batch_call *msgl__batches_take(msgl_batches *b)
{
    pthread_mutex_lock(&b->lock);
    msgl_batch_call *c = b->done;
    if (c != NULL) b->done = c->next;
    if (b->done == NULL) b->done_last = &b->done;
    pthread_mutex_unlock(&b->lock);
    return c;
}

int msgl__batches_take_fd(msgl_batches *b)
{
    pthread_mutex_lock(&b->lock);
    const int fd = b->num_fds > 0 ? b->fds[--b->num_fds] : -1;
    pthread_mutex_unlock(&b->lock);
    return fd;
}

void msgl__batches_set_room(msgl_batches *b, int room)
{
    pthread_mutex_lock(&b->lock);
    b->room = room;
    pthread_mutex_unlock(&b->lock);
}
