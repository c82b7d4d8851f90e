// SPDX-License-Identifier: Apache-2.0
//
// The conversation: messages as an API gets them, and the files that keep them.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/chat/chat.h"
#include "core/err.h"
#include "core/mem.h"
#include "utils/file.h"
#include "utils/json.h"
#include "utils/json_write.h"

static const size_t MAX_FILE = (size_t)64 << 20;

static int no_memory(msgl_err *err)
{
    return msgl__err_set(err, MSGL_ENOMEM, "out of memory for the conversation");
}

int msgl__chat_init(msgl_chat *c, const msgl_args *params, int limit, msgl_err *err)
{
    *c = (msgl_chat){.messages = json_array(), .limit = limit};
    c->params = msgl__malloc(sizeof *c->params);
    c->first_params = msgl__malloc(sizeof *c->first_params);
    int rc = 0;
    if (c->messages == NULL || c->params == NULL || c->first_params == NULL) {
        rc = no_memory(err);
    } else {
        *c->params = *c->first_params = *params;
        if (params->system != NULL) rc = msgl__chat_set_system(c, params->system, err);
    }
    if (rc != 0) msgl__chat_free(c);
    return rc;
}

void msgl__chat_free(msgl_chat *c)
{
    json_decref(c->messages);
    msgl__free(c->params);
    msgl__free(c->first_params);
    *c = (msgl_chat){0};
}

static const char *text_of(const json_t *message, const char *key)
{
    const char *text = json_string_value(json_object_get(message, key));
    return text != NULL ? text : "";
}

int msgl__chat_add(msgl_chat *c, const char *role, const char *content, const char *reasoning,
                   msgl_err *err)
{
    if (reasoning != NULL && *reasoning == '\0') reasoning = NULL;
    json_t *message = json_pack("{s:s,s:s,s:s*}", "role", role, "content", content,
                                "reasoning_content", reasoning);
    if (message == NULL) return msgl__err_set(err, MSGL_EFORMAT, "the text is not valid UTF-8");
    return json_array_append_new(c->messages, message) == 0 ? 0 : no_memory(err);
}

bool msgl__chat_last_is(const msgl_chat *c, const char *role)
{
    const size_t n = json_array_size(c->messages);
    return n > 0 && strcmp(text_of(json_array_get(c->messages, n - 1), "role"), role) == 0;
}

void msgl__chat_drop_last(msgl_chat *c)
{
    const size_t n = json_array_size(c->messages);
    if (n > 0) (void)json_array_remove(c->messages, n - 1);
}

const char *msgl__chat_system(const msgl_chat *c)
{
    const json_t *first = json_array_get(c->messages, 0);
    return strcmp(text_of(first, "role"), "system") == 0 ? text_of(first, "content") : NULL;
}

int msgl__chat_set_system(msgl_chat *c, const char *text, msgl_err *err)
{
    json_t *message = NULL;
    if (text != NULL) {
        message = json_pack("{s:s,s:s}", "role", "system", "content", text);
        if (message == NULL)
            return msgl__err_set(err, MSGL_EFORMAT, "the system message is not valid UTF-8");
    }
    if (msgl__chat_system(c) != NULL) (void)json_array_remove(c->messages, 0);
    if (message == NULL) return 0;
    return json_array_insert_new(c->messages, 0, message) == 0 ? 0 : no_memory(err);
}

void msgl__chat_reset(msgl_chat *c)
{
    const size_t kept = msgl__chat_system(c) != NULL;
    while (json_array_size(c->messages) > kept) msgl__chat_drop_last(c);
    c->used = 0;
}

char *msgl__chat_json(const msgl_chat *c)
{
    json_t *vars = json_pack("{s:O}", "messages", c->messages);
    char *json = vars != NULL ? msgl__json_text(vars, JSON_COMPACT) : NULL;
    json_decref(vars);
    return json;
}

// ---- files ----

// "~/x" is in the home of the user, as in a shell.
static int expand(const char *path, char *out, size_t size, msgl_err *err)
{
    const char *home = path[0] == '~' && path[1] == '/' ? getenv("HOME") : NULL;
    const int n = snprintf(out, size, "%s%s", home != NULL ? home : "", path + (home != NULL));
    if ((size_t)n < size) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "the path is too long; allowed: %zu bytes", size - 1);
}

int msgl__chat_save(const msgl_chat *c, const char *path, bool replace, msgl_err *err)
{
    char full[1024];
    int rc = expand(path, full, sizeof full, err);
    if (rc != 0) return rc;
    char *json = msgl__json_text(c->messages, JSON_INDENT(2));
    if (json == NULL) return no_memory(err);
    const int fd = open(full, O_WRONLY | O_CREAT | O_CLOEXEC | (replace ? O_TRUNC : O_EXCL), 0666);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (f == NULL) {
        const int code = errno;
        if (fd >= 0) close(fd);
        msgl__free(json);
        if (code == EEXIST) {
            return msgl__err_set(err, MSGL_EINVAL,
                                 "%s exists; /save -f FILE writes it nevertheless",
                                 msgl__path_shown(full));
        }
        return msgl__err_set(err, MSGL_EIO, "%s: %s", msgl__path_shown(full), strerror(code));
    }
    int code = fprintf(f, "%s\n", json) < 0 ? errno : 0;
    if (fclose(f) != 0 && code == 0) code = errno;
    msgl__free(json);
    if (code == 0) return 0;
    return msgl__err_set(err, MSGL_EIO, "%s: %s", msgl__path_shown(full), strerror(code));
}

static int check_message(const json_t *message, size_t at, msgl_err *err)
{
    const char *role = text_of(message, "role");
    const bool system = strcmp(role, "system") == 0;
    if (!system && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "message %zu has the role \"%.40s\"; allowed: system, user, assistant",
                             at + 1, role);
    }
    if (system && at > 0) {
        return msgl__err_set(err, MSGL_EFORMAT,
                             "message %zu has the role system; allowed: the first", at + 1);
    }
    if (json_is_string(json_object_get(message, "content"))) return 0;
    return msgl__err_set(err, MSGL_EFORMAT, "message %zu has no content that is a text", at + 1);
}

int msgl__chat_load(msgl_chat *c, const char *path, msgl_err *err)
{
    char full[1024], *data = NULL;
    size_t len = 0;
    int rc = expand(path, full, sizeof full, err);
    if (rc == 0) rc = msgl__file_read(full, MAX_FILE, &data, &len, err);
    if (rc != 0) return rc;
    json_error_t where;
    json_t *file = msgl__json_loadb(data, len, JSON_REJECT_DUPLICATES, &where, NULL);
    msgl__free(data);
    json_t *messages = json_is_object(file) ? json_object_get(file, "messages") : file;
    if (file == NULL) {
        rc = msgl__err_set(err, MSGL_EFORMAT, "line %d: %.100s", where.line, where.text);
    } else if (!json_is_array(messages)) {
        rc = msgl__err_set(err, MSGL_EFORMAT,
                           "no conversation; allowed: a JSON array of messages, or an object that "
                           "has it as \"messages\"");
    }
    for (size_t i = 0; rc == 0 && i < json_array_size(messages); i++) {
        rc = check_message(json_array_get(messages, i), i, err);
    }
    if (rc == 0) {
        json_incref(messages);
        json_decref(c->messages);
        c->messages = messages;
        c->used = 0;
    } else {
        (void)msgl__err_prefix(err, rc, "%s", msgl__path_shown(full));
    }
    json_decref(file);
    return rc;
}
