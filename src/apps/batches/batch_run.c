// SPDX-License-Identifier: Apache-2.0
#include "apps/batches/batch_run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "core/mem.h"
#include "api/json.h"
#include "utils/clock.h"
#include "utils/file.h"
#include "utils/json.h"
#include "utils/json_write.h"

enum {
    FULL_MS = 10000,       // pause after an answer that could not be stored
    RETRY_MS = 500,        // pause after an answer that says "later"
    MAX_TRIES = 3,         // how often a request is sent that stops the engine, or has no answer
    MAX_ERRORS = 100,      // lines of a refused input that its batch names
    ANSWER_MAX = 1 << 30,  // bytes of an answer, its head included
    HEAD_MAX = 16 * 1024,  // bytes of an answer's head
    READ_STEP = 64 * 1024, // bytes that are received at once
};

typedef enum line_state { LINE_WAITING, LINE_SENT, LINE_DONE } line_state;

struct msgl_batch_line {
    size_t at, len; // its bytes are input[at, at + len)
    int number;     // of the input's lines, from 1: blank ones count, and are no requests
    uint8_t state;  // line_state
    uint8_t tries;  // how often it was sent without an answer that counts
};

// --- the input ---

// Adds an error to those that the batch's object will have. 0, or MSGL_ENOMEM, which has to end the
// check: a batch without errors is run.
static int add_error(json_t *errors, int line, const char *param, const char *message)
{
    char text[400];
    if (json_array_size(errors) >= MAX_ERRORS) return 0;
    json_t *o = json_pack("{s:s,s:s,s:s?,s:o}", "code", "invalid_request", "message",
                          msgl__printable(message, text, sizeof text), "param", param, "line",
                          line == 0 ? json_null() : json_integer(line));
    return json_array_append_new(errors, o) == 0 ? 0 : MSGL_ENOMEM;
}

static json_t *parse_line(const msgl_batch_run *b, const msgl_batch_line *l, msgl_err *err)
{
    msgl_json_room room = {0};
    return msgl__json_parse_object(b->input + l->at, l->len, &room, err);
}

// Says what is wrong with a request, and sets *param to the field; NULL: nothing is.
static const char *check_request(const msgl_batch_run *b, const json_t *o, const char **param)
{
    const json_t *id = json_object_get(o, "custom_id"), *body = json_object_get(o, "body");
    *param = "custom_id";
    if (!json_is_string(id) || json_string_length(id) == 0) {
        return "'custom_id' must be a string that is not empty.";
    }
    *param = "method";
    if (strcmp(msgl__store_text(o, "method"), "POST") != 0) return "'method' must be 'POST'.";
    *param = "url";
    if (strcmp(msgl__store_text(o, "url"), msgl__store_text(b->object, "endpoint")) != 0) {
        return "'url' must be the 'endpoint' of the batch.";
    }
    *param = "body";
    if (!json_is_object(body)) return "'body' must be an object.";
    *param = "body.stream";
    if (json_is_true(json_object_get(body, "stream"))) {
        return "'stream' is true; allowed in a batch: false.";
    }
    return NULL;
}

// Checks one line of the input. seen: indices of lines by their custom_id.
static int check_line(msgl_batch_run *b, const msgl_batch_line *l, json_t *seen, json_t *errors)
{
    msgl_err err = {0};
    json_t *o = parse_line(b, l, &err);
    if (o == NULL) {
        if (err.code == MSGL_ENOMEM) return MSGL_ENOMEM;
        return add_error(errors, l->number, NULL, err.text);
    }
    const char *param = NULL, *wrong = check_request(b, o, &param);
    const char *id = msgl__store_text(o, "custom_id");
    if (wrong == NULL && json_object_get(seen, id) != NULL) {
        param = "custom_id";
        wrong = "The 'custom_id' is that of an earlier line; each must be its own.";
    }
    int rc = 0;
    if (wrong != NULL) {
        rc = add_error(errors, l->number, param, wrong);
    } else if (json_object_set_new(seen, id, json_integer((json_int_t)(l - b->lines))) != 0) {
        rc = MSGL_ENOMEM;
    }
    json_decref(o);
    return rc;
}

static int add_line(msgl_batch_run *b, msgl_batch_line l)
{
    if (b->num_lines == b->cap_lines) {
        const int cap = b->cap_lines == 0 ? 64 : 2 * b->cap_lines;
        msgl_batch_line *more = msgl__reallocarray(b->lines, (size_t)cap, sizeof *more);
        if (more == NULL) return MSGL_ENOMEM;
        b->lines = more;
        b->cap_lines = cap;
    }
    b->lines[b->num_lines++] = l;
    return 0;
}

static int split_lines(msgl_batch_run *b)
{
    int rc = 0, number = 0;
    for (size_t at = 0; at < b->input_len && rc == 0;) {
        const char *end = memchr(b->input + at, '\n', b->input_len - at);
        const size_t len = (end == NULL ? b->input_len : (size_t)(end - b->input)) - at;
        number++;
        size_t blank = 0;
        while (blank < len && strchr(" \t\r", b->input[at + blank]) != NULL) blank++;
        if (blank < len && b->num_lines == MSGL_BATCH_MAX_REQUESTS) return MSGL_ELIMIT;
        if (blank < len) rc = add_line(b, (msgl_batch_line){at, len, number, LINE_WAITING, 0});
        at += len + 1;
    }
    return rc;
}

static int read_input(msgl_batch_run *b, json_t *seen, json_t *errors)
{
    char message[160];
    msgl_err err = {0};
    int rc = msgl__store_read_data(b->store, msgl__store_text(b->object, "input_file_id"),
                                   MSGL_BATCH_MAX_INPUT, &b->input, &b->input_len, &err);
    if (rc != 0) {
        (void)snprintf(message, sizeof message, "The input file cannot be read: %.100s", err.text);
        return rc == MSGL_ENOMEM ? rc : add_error(errors, 0, "input_file_id", message);
    }
    rc = split_lines(b);
    if (rc == MSGL_ELIMIT) {
        (void)snprintf(message, sizeof message, "The input has more than %d requests.",
                       MSGL_BATCH_MAX_REQUESTS);
        return add_error(errors, 0, "input_file_id", message);
    }
    if (rc == 0 && b->num_lines == 0) {
        rc = add_error(errors, 0, "input_file_id", "The input has no requests.");
    }
    for (int i = 0; i < b->num_lines && rc == 0; i++) {
        rc = check_line(b, &b->lines[i], seen, errors);
    }
    return rc;
}

// --- what earlier runs have answered ---

// Notes that the request of a line text[0, len) of a file of answers is done. 0, or MSGL_ENOMEM.
static int take_line(msgl_batch_run *b, const char *text, size_t len, const json_t *seen)
{
    int rc;
    json_t *o = msgl__json_loadb(text, len, JSON_ALLOW_NUL, NULL, &rc);
    if (rc == MSGL_ENOMEM) return rc; // its request may be answered already
    const json_t *i = json_object_get(seen, msgl__store_text(o, "custom_id"));
    if (i != NULL) {
        msgl_batch_line *l = &b->lines[json_integer_value(i)];
        b->done += l->state != LINE_DONE;
        l->state = LINE_DONE;
    }
    json_decref(o);
    return 0;
}

// Takes the whole lines out of text, of which only the bytes from `from` on are new: those before
// have no line break.
static int take_lines(msgl_batch_run *b, msgl_strbuf *text, size_t from, const json_t *seen,
                      int *lines)
{
    size_t begin = 0;
    int rc = 0;
    for (const char *end;
         rc == 0 && (end = memchr(text->data + from, '\n', text->len - from)) != NULL; ++*lines) {
        from = (size_t)(end - text->data) + 1;
        rc = take_line(b, text->data + begin, from - 1 - begin, seen);
        begin = from;
    }
    text->len -= begin;
    if (begin > 0) memmove(text->data, text->data + begin, text->len);
    return rc;
}

// Reads a file of answers: their requests are done. A last line without an end is cut off. *lines:
// how many whole lines there are. All of the answers may be larger than memory, so that they are
// read a line at a time.
static int take_answers(msgl_batch_run *b, int fd, const json_t *seen, int *lines)
{
    off_t at = 0;
    ssize_t n = 0;
    int rc = 0;
    msgl_strbuf text;
    msgl__strbuf_init(&text, SIZE_MAX / 2);
    *lines = 0;
    while (rc == 0 && (rc = msgl__strbuf_reserve(&text, READ_STEP)) == 0) {
        n = pread(fd, text.data + text.len, READ_STEP, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        at += n;
        text.len += (size_t)n;
        rc = take_lines(b, &text, text.len - (size_t)n, seen, lines);
    }
    if (n < 0) rc = MSGL_EIO;
    if (rc == 0 && text.len > 0 && ftruncate(fd, at - (off_t)text.len) != 0) rc = MSGL_EIO;
    msgl__strbuf_free(&text);
    return rc;
}

static int open_answers(msgl_batch_run *b, const json_t *seen)
{
    int completed, failed;
    b->out_fd = msgl__store_open_data(b->store, msgl__store_text(b->object, "_output"));
    b->err_fd = msgl__store_open_data(b->store, msgl__store_text(b->object, "_errors"));
    if (b->out_fd < 0 || b->err_fd < 0) return MSGL_EIO;
    int rc = take_answers(b, b->out_fd, seen, &completed);
    if (rc == 0) rc = take_answers(b, b->err_fd, seen, &failed);
    if (rc != 0) return rc;
    json_t *counts = json_object_get(b->object, "request_counts");
    json_object_set_new(counts, "total", json_integer(b->num_lines));
    json_object_set_new(counts, "completed", json_integer(completed));
    json_object_set_new(counts, "failed", json_integer(failed));
    return 0;
}

static void now_at(json_t *object, const char *key)
{
    json_object_set_new(object, key, json_integer((json_int_t)time(NULL)));
}

int msgl__batch_open(msgl_batch_run *b, msgl_batch_store *store, const char *id)
{
    msgl_err err;
    *b = (msgl_batch_run){.store = store, .out_fd = -1, .err_fd = -1};
    (void)snprintf(b->id, sizeof b->id, "%s", id);
    for (int i = 0; i < MSGL_BATCH_SLOTS; i++) {
        b->slots[i].fd = -1;
        msgl__strbuf_init(&b->slots[i].out, SIZE_MAX / 2);
        msgl__strbuf_init(&b->slots[i].in, ANSWER_MAX);
    }
    b->object = msgl__store_get(store, id);
    json_t *seen = json_object(), *errors = json_array();
    int rc = b->object == NULL || seen == NULL || errors == NULL ? MSGL_ENOMEM : 0;
    if (rc == 0) rc = read_input(b, seen, errors);
    if (rc == 0 && json_array_size(errors) > 0) {
        json_object_set_new(b->object, "errors",
                            json_pack("{s:s,s:O}", "object", "list", "data", errors));
        json_object_set_new(b->object, "status", json_string("failed"));
        now_at(b->object, "failed_at");
        rc = msgl__store_set(store, id, b->object, &err);
        if (rc == 0) rc = MSGL_EINVAL;
    } else if (rc == 0) {
        rc = open_answers(b, seen);
        if (rc == 0 && strcmp(msgl__store_text(b->object, "status"), "validating") == 0) {
            json_object_set_new(b->object, "status", json_string("in_progress"));
            now_at(b->object, "in_progress_at");
        }
        if (rc == 0) rc = msgl__store_set(store, id, b->object, &err);
    }
    json_decref(seen);
    json_decref(errors);
    return rc;
}

static void slot_close(msgl_batch_slot *s)
{
    if (s->fd >= 0) close(s->fd);
    s->fd = -1;
    msgl__strbuf_free(&s->in);
    msgl__strbuf_free(&s->out);
}

void msgl__batch_close(msgl_batch_run *b)
{
    for (int i = 0; i < MSGL_BATCH_SLOTS; i++) slot_close(&b->slots[i]);
    if (b->out_fd >= 0) close(b->out_fd);
    if (b->err_fd >= 0) close(b->err_fd);
    json_decref(b->object);
    msgl__free(b->input);
    msgl__free(b->lines);
    *b = (msgl_batch_run){.out_fd = -1, .err_fd = -1};
}

// --- requests ---

static void request_id(const msgl_batch_run *b, const msgl_batch_line *l, char id[64])
{
    (void)snprintf(id, 64, "batch_req_%s_%d", b->id + sizeof MSGL_STORE_BATCH - 1, l->number);
}

static int put_request(const msgl_batch_run *b, const msgl_batch_line *l, msgl_strbuf *out)
{
    msgl_err err;
    char id[64];
    json_t *o = parse_line(b, l, &err);
    char *body = o == NULL ? NULL : msgl__json_text(json_object_get(o, "body"), JSON_COMPACT);
    request_id(b, l, id);
    int rc = body == NULL
                 ? MSGL_ENOMEM
                 : msgl__strbuf_addf(out,
                                     "POST %s HTTP/1.1\r\nHost: localhost\r\n"
                                     "Content-Type: application/json\r\n"
                                     "X-Request-Id: %s\r\nConnection: close\r\n"
                                     "Content-Length: %zu\r\n\r\n",
                                     msgl__store_text(b->object, "endpoint"), id, strlen(body));
    if (rc == 0) rc = msgl__strbuf_adds(out, body);
    msgl__free(body);
    json_decref(o);
    return rc;
}

static void wait_ms(msgl_batch_run *b, int ms)
{
    b->wait_until_ns = msgl__now_ns() + (uint64_t)ms * 1000000u;
    b->one_by_one = true;
}

// Gives up the request that a slot has sent, which is then one that was never sent.
static void unsend(msgl_batch_run *b, msgl_batch_slot *s)
{
    b->lines[s->line].state = LINE_WAITING;
    if (s->line < b->first) b->first = s->line;
    slot_close(s);
}

// The same after the server said "later": the next request waits for a while.
static void send_later(msgl_batch_run *b, msgl_batch_slot *s)
{
    unsend(b, s);
    wait_ms(b, RETRY_MS);
}

void msgl__batch_fill(msgl_batch_run *b, int slots, msgl_batch_connect connect, void *ctx)
{
    int used = 0;
    for (int i = 0; i < MSGL_BATCH_SLOTS; i++) used += b->slots[i].fd >= 0;
    if (b->one_by_one) slots = 1;
    if (used >= slots || msgl__now_ns() < b->wait_until_ns) return;
    for (int i = 0; i < MSGL_BATCH_SLOTS && used < slots; i++) {
        msgl_batch_slot *s = &b->slots[i];
        if (s->fd >= 0) continue;
        while (b->first < b->num_lines && b->lines[b->first].state != LINE_WAITING) b->first++;
        if (b->first == b->num_lines) return;
        s->line = b->first;
        s->sent = 0;
        const int rc = put_request(b, &b->lines[s->line], &s->out);
        s->fd = rc == 0 ? connect(ctx) : -1;
        if (s->fd < 0) {
            slot_close(s);
            wait_ms(b, RETRY_MS);
            return;
        }
        b->lines[s->line].state = LINE_SENT;
        used++;
    }
}

int msgl__batch_poll(msgl_batch_run *b, struct pollfd *fds, int *slot_of)
{
    int n = 0;
    for (int i = 0; i < MSGL_BATCH_SLOTS; i++) {
        const msgl_batch_slot *s = &b->slots[i];
        if (s->fd < 0) continue;
        fds[n] = (struct pollfd){.fd = s->fd,
                                 .events = s->sent < s->out.len ? POLLIN | POLLOUT : POLLIN};
        slot_of[n++] = i;
    }
    return n;
}

// --- answers ---

// Finds the status and the body of an answer, whose bytes are in[*body, *body + *len). 1: it is
// whole; 0: more has to come; -1: this is no answer.
static int parse_answer(const msgl_strbuf *in, int *status, size_t *body, size_t *len)
{
    static const char length[] = "\r\nContent-Length: ";
    const char *text = msgl__strbuf_str(in), *end = strstr(text, "\r\n\r\n");
    if (end == NULL) return in->len > HEAD_MAX ? -1 : 0;
    if (sscanf(text, "HTTP/1.1 %3d", status) != 1) return -1;
    const char *at = strstr(text, length);
    if (at == NULL || at > end || sscanf(at + sizeof length - 1, "%zu", len) != 1) return -1;
    *body = (size_t)(end - text) + 4;
    return in->len - *body >= *len ? 1 : 0;
}

static int put_answer(const msgl_batch_run *b, const msgl_batch_line *l, int status,
                      const char *body, size_t len, msgl_strbuf *out)
{
    char id[64];
    msgl_err err;
    json_t *o = parse_line(b, l, &err);
    if (o == NULL) return MSGL_ENOMEM;
    request_id(b, l, id);
    char *custom_id = msgl__json_text(json_object_get(o, "custom_id"), 0);
    json_decref(o);
    int rc = custom_id == NULL ? MSGL_ENOMEM
                               : msgl__strbuf_addf(out, "{\"id\":\"%s\",\"custom_id\":", id);
    if (rc == 0) rc = msgl__strbuf_adds(out, custom_id);
    if (rc == 0) {
        rc = msgl__strbuf_addf(
            out, ",\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":", status, id);
    }
    if (rc == 0) rc = msgl__strbuf_add(out, body, len);
    if (rc == 0) rc = msgl__strbuf_adds(out, "},\"error\":null}\n");
    msgl__free(custom_id);
    return rc;
}

// Appends a line. Where only a part of it could be written the file is cut back to its length
// before.
static int append(int fd, const msgl_strbuf *line, msgl_err *err)
{
    const off_t before = lseek(fd, 0, SEEK_END);
    if (msgl__write_all(fd, line->data, line->len) == 0) return 0;
    (void)msgl__err_set(err, MSGL_EIO, "%m");
    const int cut = before >= 0 ? ftruncate(fd, before) : -1;
    (void)cut; // otherwise the next start of the batch cuts off the line, which has no end
    return MSGL_EIO;
}

static void count_one(const msgl_batch_run *b, const char *what)
{
    json_t *counts = json_object_get(b->object, "request_counts");
    const json_int_t n = json_integer_value(json_object_get(counts, what));
    json_object_set_new(counts, what, json_integer(n + 1));
}

// Stores a whole answer, or sends the request again where the answer says that it could not be
// served now.
static int take_answer(msgl_batch_run *b, msgl_batch_slot *s, int status, const char *body,
                       size_t len, msgl_err *err)
{
    msgl_batch_line *l = &b->lines[s->line];
    const bool full = status == 408 || status == 429 || status == 503;
    const bool engine = status == 500 && memmem(body, len, "engine_stopped", 14) != NULL;
    if (full || (engine && ++l->tries < MAX_TRIES)) {
        send_later(b, s);
        return 0;
    }
    msgl_strbuf line;
    msgl__strbuf_init(&line, SIZE_MAX / 2);
    int rc = put_answer(b, l, status, body, len, &line);
    if (rc != 0) {
        (void)msgl__err_set(err, rc, "out of memory");
    } else {
        rc = append(status == 200 ? b->out_fd : b->err_fd, &line, err);
    }
    msgl__strbuf_free(&line);
    if (rc != 0) {
        send_later(b, s);
        wait_ms(b, FULL_MS);
        return rc;
    }
    b->one_by_one = false;
    l->state = LINE_DONE;
    b->done++;
    count_one(b, status == 200 ? "completed" : "failed");
    slot_close(s);
    return 0;
}

// The connection was closed without an answer. After MAX_TRIES of these the request itself may be
// the reason, and it is answered by an error.
static int take_silence(msgl_batch_run *b, msgl_batch_slot *s, msgl_err *err)
{
    static const char body[] =
        "{\"error\":{\"message\":\"The server gave no answer.\",\"type\":\"server_error\","
        "\"param\":null,\"code\":\"no_answer\"}}";
    if (++b->lines[s->line].tries >= MAX_TRIES) {
        return take_answer(b, s, 500, body, sizeof body - 1, err);
    }
    send_later(b, s);
    return 0;
}

// Removes interim answers (100 Continue) that stand before the answer.
static void skip_interim(msgl_strbuf *in)
{
    static const char interim[] = "HTTP/1.1 100 ";
    const char *end;
    while (in->len > sizeof interim && strncmp(in->data, interim, sizeof interim - 1) == 0 &&
           (end = strstr(in->data, "\r\n\r\n")) != NULL) {
        const size_t n = (size_t)(end - in->data) + 4;
        memmove(in->data, in->data + n, in->len - n + 1);
        in->len -= n;
    }
}

static int send_more(msgl_batch_slot *s)
{
    while (s->sent < s->out.len) {
        const ssize_t n =
            send(s->fd, s->out.data + s->sent, s->out.len - s->sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : MSGL_ECLOSED;
        s->sent += (size_t)n;
    }
    return 0;
}

int msgl__batch_ready(msgl_batch_run *b, int slot, msgl_err *err)
{
    msgl_batch_slot *s = &b->slots[slot];
    if (s->fd < 0) return 0;
    // A server may refuse a request before it has read all of it, and close: then nothing more can
    // be sent, and the answer is still there to be received.
    const bool sent = send_more(s) == 0;
    for (;;) {
        if (msgl__strbuf_reserve(&s->in, READ_STEP) != 0) break;
        const ssize_t n = recv(s->fd, s->in.data + s->in.len, READ_STEP, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && sent && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
        if (n <= 0) break;
        s->in.len += (size_t)n;
        s->in.data[s->in.len] = '\0';
        int status;
        size_t body, len;
        skip_interim(&s->in);
        const int whole = parse_answer(&s->in, &status, &body, &len);
        if (whole < 0) break;
        if (whole > 0) return take_answer(b, s, status, s->in.data + body, len, err);
    }
    return take_silence(b, s, err);
}

bool msgl__batch_is_done(const msgl_batch_run *b)
{
    return b->done == b->num_lines;
}

// --- the end ---

// Makes a file of answers one of the API's, named in the object `ended`, unless it is empty.
static int publish(const msgl_batch_run *b, json_t *ended, const char *own, const char *key,
                   const char *name, msgl_err *err)
{
    const char *id = msgl__store_text(ended, own);
    char filename[96];
    const int64_t bytes = msgl__store_data_size(b->store, id);
    if (bytes == 0) return 0;
    (void)snprintf(filename, sizeof filename, "%s_%s.jsonl", b->id, name);
    json_t *file = json_pack("{s:s,s:s,s:I,s:I,s:s,s:s,s:s}", "id", id, "object", "file", "bytes",
                             (json_int_t)bytes, "created_at", (json_int_t)time(NULL), "filename",
                             filename, "purpose", "batch_output", "status", "processed");
    const int rc = file == NULL ? msgl__err_set(err, MSGL_ENOMEM, "out of memory")
                                : msgl__store_set(b->store, id, file, err);
    json_decref(file);
    if (rc == 0) json_object_set_new(ended, key, json_string(id));
    return rc;
}

static void remove_if_empty(const msgl_batch_run *b, const char *own)
{
    const char *id = msgl__store_text(b->object, own);
    if (msgl__store_data_size(b->store, id) == 0) msgl__store_remove(b->store, id);
}

// Stores the object as it is when the batch has ended, which it then is.
static int store_end(msgl_batch_run *b, json_t *ended, const char *status, msgl_err *err)
{
    char key[32];
    int rc = publish(b, ended, "_output", "output_file_id", "output", err);
    if (rc == 0) rc = publish(b, ended, "_errors", "error_file_id", "error", err);
    if (rc != 0) return rc;
    (void)snprintf(key, sizeof key, "%s_at", status);
    json_object_set_new(ended, "status", json_string(status));
    now_at(ended, "finalizing_at");
    now_at(ended, key);
    rc = msgl__store_set(b->store, b->id, ended, err);
    if (rc != 0) return rc;
    json_decref(b->object);
    b->object = json_incref(ended);
    remove_if_empty(b, "_output");
    remove_if_empty(b, "_errors");
    return 0;
}

int msgl__batch_end(msgl_batch_run *b, const char *status, msgl_err *err)
{
    for (int i = 0; i < MSGL_BATCH_SLOTS; i++) {
        if (b->slots[i].fd >= 0) unsend(b, &b->slots[i]);
    }
    if ((b->out_fd >= 0 && fsync(b->out_fd) != 0) || (b->err_fd >= 0 && fsync(b->err_fd) != 0)) {
        return msgl__err_set(err, MSGL_EIO, "%m");
    }
    json_t *ended = msgl__json_copy(b->object);
    const int rc = ended == NULL ? msgl__err_set(err, MSGL_ENOMEM, "out of memory")
                                 : store_end(b, ended, status, err);
    json_decref(ended);
    return rc;
}
