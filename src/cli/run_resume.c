// SPDX-License-Identifier: Apache-2.0
#include "cli/run_resume.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/run_line.h"
#include "core/mem.h"
#include "utils/json_write.h"

enum { DONE = 1, BATCH = 2 };

static const char batch_id[] = "batch_req_";

// The name of a line in the tables below: its custom_id as JSON text, or its number as digits,
// which no JSON string begins with. NULL: out of memory.
static char *key_of(const json_t *custom_id, int64_t number)
{
    if (json_is_string(custom_id)) return msgl__json_text(custom_id, 0);
    char text[24];
    (void)snprintf(text, sizeof text, "%" PRId64, number);
    return msgl__strdup(text);
}

// The number of the line that an answer belongs to, of either form; 0: it has none.
static int64_t number_of(const json_t *answer)
{
    const json_t *line = json_object_get(answer, "line");
    if (json_is_integer(line)) return json_integer_value(line);
    const char *id = json_string_value(json_object_get(answer, "id"));
    const size_t n = sizeof batch_id - 1;
    if (id == NULL || strncmp(id, batch_id, n) != 0) return 0;
    return strtoll(id + n, NULL, 10);
}

static bool has_failed(const json_t *answer)
{
    const json_t *error = json_object_get(answer, "error");
    return error != NULL && !json_is_null(error);
}

// Adds 1 to the number of answers with this key, or -1, which is MSGL_ENOENT if there is none.
static int count(json_t *answers, const char *key, int by)
{
    const int64_t n = json_integer_value(json_object_get(answers, key)) + by;
    if (n < 0) return MSGL_ENOENT;
    if (n == 0) return json_object_del(answers, key) == 0 ? 0 : MSGL_ENOENT;
    return json_object_set_new(answers, key, json_integer(n)) == 0 ? 0 : MSGL_ENOMEM;
}

static int take_answer(msgl_resume *r, const char *text, size_t len, json_t *answers,
                       const char *out_name, msgl_err *err)
{
    json_error_t where;
    json_t *answer = msgl__run_line_json(text, len, &where);
    const json_t *id = json_object_get(answer, "custom_id");
    const int64_t number = number_of(answer);
    int rc = 0;
    if (number < 1) {
        rc = msgl__err_set(err, MSGL_EINVAL,
                           "%.120s: line %" PRId64 " is no answer of minisgl run; --resume goes on "
                           "with such a file only",
                           out_name, r->answered + 1);
    } else {
        char *key = key_of(id, number);
        rc = key == NULL ? MSGL_ENOMEM : count(answers, key, 1);
        if (rc != 0) (void)msgl__err_set(err, rc, "out of memory");
        msgl__free(key);
    }
    r->answered++;
    if (has_failed(answer)) r->failed++;
    json_decref(answer);
    return rc;
}

static int read_error(FILE *f, const char *name, msgl_err *err)
{
    return ferror(f) ? msgl__err_set(err, MSGL_EIO, "%.180s: %m", name) : 0;
}

static int read_output(msgl_resume *r, FILE *out, const char *out_name, json_t *answers,
                       msgl_err *err)
{
    char *text = NULL;
    size_t cap = 0;
    int rc = 0;
    for (ssize_t n; rc == 0 && (n = getline(&text, &cap, out)) > 0;) {
        r->torn = text[n - 1] != '\n';
        if (r->torn) break;
        rc = take_answer(r, text, (size_t)n, answers, out_name, err);
        r->keep += n;
    }
    msgl__free(text);
    return rc == 0 ? read_error(out, out_name, err) : rc;
}

// Makes room for one more line of the input: 1, 2, 4, 8... of them, as num_lines gets to a power of
// two.
static int add_line(msgl_resume *r)
{
    if ((r->num_lines & (r->num_lines - 1)) == 0) {
        const size_t cap = r->num_lines == 0 ? 1 : 2 * (size_t)r->num_lines;
        uint8_t *lines = msgl__reallocarray(r->lines, cap, sizeof *lines);
        if (lines == NULL) return MSGL_ENOMEM;
        r->lines = lines;
    }
    r->lines[r->num_lines++] = 0;
    return 0;
}

static int take_line(msgl_resume *r, const char *text, size_t len, json_t *answers)
{
    int rc = add_line(r);
    if (rc != 0) return rc;
    // A line that is no object is answered in the form of the line before it, as when it is run.
    uint8_t *flags = &r->lines[r->num_lines - 1];
    if (r->num_lines > 1) *flags = flags[-1] & BATCH;
    if (strspn(text, " \t\r\n") == len) return 0;
    json_error_t where;
    json_t *line = msgl__run_line_json(text, len, &where);
    if (json_is_object(line)) *flags = msgl__run_line_is_batch(line) ? BATCH : 0;
    char *key = key_of(json_object_get(line, "custom_id"), r->num_lines);
    if (key == NULL) {
        rc = MSGL_ENOMEM;
    } else if ((rc = count(answers, key, -1)) == 0) {
        *flags |= DONE;
    } else if (rc == MSGL_ENOENT) {
        rc = 0;
    }
    msgl__free(key);
    json_decref(line);
    return rc;
}

static int read_input(msgl_resume *r, FILE *in, const char *in_name, json_t *answers, msgl_err *err)
{
    char *text = NULL;
    size_t cap = 0;
    int rc = 0;
    for (ssize_t n; rc == 0 && (n = getline(&text, &cap, in)) > 0;) {
        rc = take_line(r, text, (size_t)n, answers);
    }
    msgl__free(text);
    if (rc != 0) return msgl__err_set(err, rc, "out of memory");
    return read_error(in, in_name, err);
}

int msgl__resume_read(FILE *in, const char *in_name, FILE *out, const char *out_name,
                      msgl_resume *r, msgl_err *err)
{
    *r = (msgl_resume){0};
    json_t *answers = json_object(); // how many a key has
    if (answers == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    int rc = read_output(r, out, out_name, answers, err);
    if (rc == 0) rc = read_input(r, in, in_name, answers, err);
    const char *left = json_object_iter_key(json_object_iter(answers));
    if (rc == 0 && left != NULL) {
        rc = msgl__err_set(err, MSGL_EINVAL,
                           "%.80s: answers %s %.60s, which %.80s does not have: it is the output "
                           "of another input",
                           out_name, left[0] == '"' ? "custom_id" : "line", left, in_name);
    }
    json_decref(answers);
    return rc;
}

void msgl__resume_free(msgl_resume *r)
{
    msgl__free(r->lines);
    r->lines = NULL;
    r->num_lines = 0;
}

bool msgl__resume_done(const msgl_resume *r, int64_t number, bool *batch)
{
    const int flags = number <= r->num_lines ? r->lines[number - 1] : 0;
    if ((flags & DONE) == 0) return false;
    *batch = (flags & BATCH) != 0;
    return true;
}
