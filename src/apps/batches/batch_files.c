// SPDX-License-Identifier: Apache-2.0
//
// The calls of /v1/files: a file is stored, shown, read and deleted.
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "apps/batches/batches_impl.h"
#include "utils/json.h"
#include "utils/json_write.h"

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

// Reads the form's fields into *file; false: the form is refused, and the call is answered.
static bool read_form(msgl_batch_call *c, msgl_multipart_field *file)
{
    size_t at = 0;
    int rc = 0;
    msgl_multipart_field f;
    bool purpose = false, for_batch = false;
    *file = (msgl_multipart_field){0};
    if (c->boundary[0] == '\0') {
        msgl__batch_reply_error(c, 415, NULL,
                                "A file is sent as multipart/form-data with 'purpose' and 'file'.");
        return false;
    }
    while ((rc = msgl__multipart_next(msgl__strbuf_str(&c->body), c->body.len, c->boundary, &at,
                                      &f)) > 0) {
        if (is_called(&f, &form_rows[FORM_FILE])) *file = f;
        if (is_called(&f, &form_rows[FORM_PURPOSE])) {
            purpose = true;
            for_batch = f.len == 5 && memcmp(f.value, "batch", 5) == 0;
        }
    }
    if (rc < 0) {
        msgl__batch_reply_error(c, 400, NULL, "The body is no whole multipart/form-data.");
    } else if (!purpose || !for_batch) {
        msgl__batch_reply_error(c, 400, "purpose",
                                purpose ? "'purpose' is another; allowed: batch."
                                        : "'purpose' is missing.");
    } else if (file->value == NULL) {
        msgl__batch_reply_error(c, 400, "file", "'file' is missing.");
    }
    return c->status == 200;
}

// The file's name, of which the server makes no other use than to show it: its first 255 bytes,
// with U+FFFD for those that are no UTF-8. NULL: there was no memory for it.
static json_t *shown_name(const msgl_multipart_field *file)
{
    const size_t len = file->filename == NULL ? 0 : file->filename_len;
    json_t *name = NULL;
    msgl_strbuf quoted;
    msgl__strbuf_init(&quoted, 4096);
    if (msgl__json_put_str(&quoted, file->filename, len < 255 ? len : 255) == 0) {
        name = msgl__json_loadb(msgl__strbuf_str(&quoted), quoted.len,
                                JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL, NULL);
    }
    msgl__strbuf_free(&quoted);
    return name;
}

static void upload(msgl_batches *b, msgl_batch_call *c)
{
    msgl_multipart_field file;
    msgl_err err;
    char id[MSGL_STORE_ID];
    if (!read_form(c, &file)) return;
    msgl__store_new_id(&b->store, MSGL_STORE_FILE, id);
    json_t *name = shown_name(&file);
    json_t *o =
        json_pack("{s:s,s:s,s:I,s:I,s:o,s:s,s:s}", "id", id, "object", "file", "bytes",
                  (json_int_t)file.len, "created_at", (json_int_t)time(NULL), "filename",
                  name != NULL ? name : json_string(""), "purpose", "batch", "status", "processed");
    const int rc = o == NULL ? msgl__err_set(&err, MSGL_ENOMEM, "Out of memory.")
                             : msgl__store_put_file(&b->store, id, o, file.value, file.len, &err);
    if (rc == 0) {
        msgl__batch_reply(c, o);
        return;
    }
    json_decref(o);
    msgl__batch_reply_error(c, rc == MSGL_ELIMIT ? 413 : 500, NULL, err.text);
}

static void reply_content(msgl_batches *b, msgl_batch_call *c, const char *id)
{
    const int64_t size = msgl__store_data_size(&b->store, id);
    msgl_err err;
    if (!msgl__batch_claim_answer(c, (size_t)size)) return;
    char *data = NULL;
    size_t len = 0;
    const int rc = msgl__store_read_data(&b->store, id, (size_t)size, &data, &len, &err);
    if (rc != 0) {
        msgl__batch_reply_error(c, 500, NULL, "The file cannot be read.");
        return;
    }
    msgl__strbuf_free(&c->answer);
    c->answer = (msgl_strbuf){data, len, len + 1, SIZE_MAX / 2};
    c->type = "application/octet-stream";
}

static void delete_file(msgl_batches *b, msgl_batch_call *c)
{
    msgl__batches_read_found(b, SIZE_MAX); // any of them may need the file
    if (msgl__batches_use_file(b, c->rest)) {
        msgl__batch_reply_error(c, 400, "id",
                                "The file is the input of a batch that has not ended.");
        return;
    }
    msgl__store_remove(&b->store, c->rest);
    msgl__batch_reply(c, json_pack("{s:s,s:s,s:b}", "id", c->rest, "object", "file", "deleted", 1));
}

void msgl__batches_call_files(msgl_batches *b, msgl_batch_call *c)
{
    if (c->rest[0] == '\0') {
        if (c->method == MSGL_HTTP_POST) {
            upload(b, c);
        } else {
            msgl__batch_reply_list(b, c, MSGL_STORE_FILE);
        }
        return;
    }
    char *slash = strchr(c->rest, '/');
    const bool content = slash != NULL && strcmp(slash, "/content") == 0;
    if (content) *slash = '\0';
    json_t *o =
        msgl__store_is_id(c->rest, MSGL_STORE_FILE) ? msgl__store_get(&b->store, c->rest) : NULL;
    if (o == NULL) {
        msgl__batch_reply_no_such(c);
    } else if (c->method == MSGL_HTTP_DELETE && content) {
        msgl__batch_reply_error(c, 405, NULL, "The content of a file takes GET.");
    } else if (c->method == MSGL_HTTP_DELETE) {
        delete_file(b, c);
    } else if (content) {
        reply_content(b, c, c->rest);
    } else {
        msgl__batch_reply(c, json_incref(o));
    }
    json_decref(o);
}
