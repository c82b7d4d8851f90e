// SPDX-License-Identifier: Apache-2.0
//
// The calls of /v1/batches: a batch is created, shown, cancelled and deleted.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/json.h"
#include "apps/batches/batches_impl.h"
#include "utils/json.h"

enum { BODY_MAX = 2 << 20 }; // bytes of the body that makes a batch

enum { METADATA_MAX = 16 };
static const msgl_field_row batch_rows[] = {
    {"input_file_id", MSGL_FIELD_STRING, .required = true, .help = "the `id` of a file"},
    {"endpoint", MSGL_FIELD_STRING, .required = true,
     .help = "`/v1/chat/completions`, `/v1/completions` or `/v1/embeddings`"},
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
    if (c->status == 200) msgl__batch_reply_error(c, 400, name, text);
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
        msgl__batch_reply_error(c, 400, "input_file_id",
                                "There is no file with the id 'input_file_id'.");
    } else if (strcmp(endpoint, "/v1/chat/completions") != 0 &&
               strcmp(endpoint, "/v1/completions") != 0 &&
               strcmp(endpoint, "/v1/embeddings") != 0) {
        msgl__batch_reply_error(
            c, 400, "endpoint",
            "'endpoint' is another; allowed: /v1/chat/completions, /v1/completions, "
            "/v1/embeddings.");
    } else if (!is_window(string_field(c, o, "completion_window"))) {
        msgl__batch_reply_error(
            c, 400, "completion_window",
            "'completion_window' is another; allowed: 24h, or from 1h to 168h or 1d to "
            "7d.");
    } else if (!is_metadata(json_object_get(o, "metadata"))) {
        msgl__batch_reply_error(
            c, 400, "metadata",
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
    if (rc == 0 && (rc = msgl__batches_add_waiting(b, made)) != 0) {
        msgl__store_remove(&b->store, id);
        (void)msgl__err_set(&err, rc, "Out of memory.");
    }
    if (rc == 0) {
        msgl__batch_reply(c, msgl__batch_shown(made));
        return;
    }
    json_decref(made);
    msgl__batch_reply_error(c, rc == MSGL_ELIMIT ? 413 : 500, NULL, err.text);
}

static void create(msgl_batches *b, msgl_batch_call *c)
{
    msgl_json_room room = {0};
    msgl_err err = {0};
    if (c->body.len > BODY_MAX) {
        msgl__batch_reply_error(c, 413, NULL, "The body has more than 2 MiB.");
        return;
    }
    json_t *o = msgl__json_parse_object(msgl__strbuf_str(&c->body), c->body.len, &room, &err);
    if (o == NULL) {
        msgl__batch_reply_error(c, 400, NULL, err.text);
        return;
    }
    if (check_batch(b, c, o)) begin(b, c, o);
    json_decref(o);
}

static int cancel_running(msgl_batches *b, msgl_err *err)
{
    const int rc = msgl__batch_end(&b->run, "cancelled", err);
    if (rc == 0) msgl__batches_stop_running(b);
    return rc;
}

// Cancels a waiting batch that an earlier server has begun: it may have answers, which its object
// then names.
static int cancel_begun(msgl_batches *b, const char *id, msgl_err *err)
{
    msgl_batch_run batch;
    int rc = msgl__batch_open(&batch, &b->store, id);
    if (rc == 0) {
        rc = msgl__batch_end(&batch, "cancelled", err);
    } else if (rc == MSGL_EINVAL) {
        rc = 0; // its input was refused, and it has failed before it could be cancelled
    } else {
        (void)msgl__err_set(err, rc, "The batch cannot be read: %s", msgl__status_text(rc));
    }
    msgl__batch_close(&batch);
    return rc;
}

static int cancel_waiting(msgl_batches *b, const char *id, json_t *o, msgl_err *err)
{
    if (strcmp(msgl__store_text(o, "status"), "validating") != 0) return cancel_begun(b, id, err);
    json_object_set_new(o, "status", json_string("cancelled"));
    json_object_set_new(o, "cancelled_at", json_integer((json_int_t)time(NULL)));
    return msgl__store_set(&b->store, id, o, err);
}

static void cancel(msgl_batches *b, msgl_batch_call *c, json_t *o)
{
    msgl_err err;
    if (msgl__batch_is_final(o)) {
        char text[96];
        (void)snprintf(text, sizeof text, "The batch has ended already: %.40s.",
                       msgl__store_text(o, "status"));
        msgl__batch_reply_error(c, 400, NULL, text);
        return;
    }
    const bool runs = b->running && strcmp(b->run.id, c->rest) == 0;
    const int rc = runs ? cancel_running(b, &err) : cancel_waiting(b, c->rest, o, &err);
    if (rc != 0) {
        msgl__batch_reply_error(c, 500, NULL, err.text);
        return;
    }
    msgl__batches_forget(b, c->rest);
    msgl__batch_reply(c, msgl__batch_shown(msgl__store_get(&b->store, c->rest)));
}

static void delete_batch(msgl_batches *b, msgl_batch_call *c, const json_t *o)
{
    if (!msgl__batch_is_final(o)) {
        msgl__batch_reply_error(c, 400, "id",
                                "The batch has not ended: it is to be cancelled first.");
        return;
    }
    msgl__store_remove(&b->store, c->rest);
    msgl__batch_reply(c,
                      json_pack("{s:s,s:s,s:b}", "id", c->rest, "object", "batch", "deleted", 1));
}

void msgl__batches_call_batches(msgl_batches *b, msgl_batch_call *c)
{
    if (c->rest[0] == '\0') {
        if (c->method == MSGL_HTTP_POST) {
            create(b, c);
        } else {
            msgl__batch_reply_list(b, c, MSGL_STORE_BATCH);
        }
        return;
    }
    char *slash = strchr(c->rest, '/');
    const bool cancels = slash != NULL && strcmp(slash, "/cancel") == 0;
    if (cancels) *slash = '\0';
    json_t *o =
        msgl__store_is_id(c->rest, MSGL_STORE_BATCH) ? msgl__store_get(&b->store, c->rest) : NULL;
    if (o == NULL) {
        msgl__batch_reply_no_such(c);
    } else if (cancels != (c->method == MSGL_HTTP_POST)) {
        msgl__batch_reply_error(c, 405, NULL,
                                "A batch takes GET and DELETE, and its '/cancel' POST.");
    } else if (c->method == MSGL_HTTP_DELETE) {
        delete_batch(b, c, o);
    } else if (cancels) {
        cancel(b, c, o);
    } else if (b->running && strcmp(b->run.id, c->rest) == 0) {
        msgl__batch_reply(c, msgl__batch_shown(msgl__json_copy(
                                 b->run.object))); // its counts are not stored as they grow
    } else {
        msgl__batch_reply(c, msgl__batch_shown(json_incref(o)));
    }
    json_decref(o);
}
