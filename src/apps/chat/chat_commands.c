// SPDX-License-Identifier: Apache-2.0
//
// The commands of the shell: a table of names, each with what it does and a line of /help.
#include <string.h>

#include "apps/chat/chat.h"
#include "core/attributes.h"
#include "core/err.h"
#include "core/mem.h"

struct call {
    msgl_chat *chat;
    char *rest; // behind the command, without white space around it; "" if there is nothing
    FILE *out;
    msgl_chat_act act;
};

static int help(struct call *k, msgl_err *err);

static int reset(struct call *k, msgl_err *err)
{
    (void)err;
    msgl__chat_reset(k->chat);
    fprintf(k->out, "conversation forgotten%s\n",
            msgl__chat_system(k->chat) != NULL ? "; the system message stays" : "");
    return 0;
}

static int set_system(struct call *k, msgl_err *err)
{
    if (*k->rest == '\0') {
        const char *text = msgl__chat_system(k->chat);
        fprintf(k->out, "%s\n", text != NULL ? text : "no system message");
        return 0;
    }
    const bool none = strcmp(k->rest, "-") == 0;
    const int rc = msgl__chat_set_system(k->chat, none ? NULL : k->rest, err);
    if (rc == 0) fprintf(k->out, "%s\n", none ? "no system message" : "system message set");
    return rc;
}

static int params(struct call *k, msgl_err *err)
{
    if (*k->rest == '\0') {
        msgl__chat_params_print(k->chat, k->out);
        return 0;
    }
    const size_t n = strcspn(k->rest, " \t=");
    const char *value = k->rest + n + strspn(k->rest + n, " \t=");
    k->rest[n] = '\0';
    if (*value == '\0') {
        return msgl__err_set(err, MSGL_EINVAL,
                             "/params %.40s has no value; allowed: /params NAME VALUE, VALUE may "
                             "be default",
                             k->rest);
    }
    const int rc = msgl__chat_params_set(k->chat, k->rest, value, err);
    if (rc == 0) msgl__chat_params_print_one(k->chat, k->rest, k->out);
    return rc;
}

static int save(struct call *k, msgl_err *err)
{
    const bool replace = strncmp(k->rest, "-f", 2) == 0 && strchr(" \t", k->rest[2]) != NULL;
    const char *path = k->rest + (replace ? 2 : 0);
    path += strspn(path, " \t");
    if (*path == '\0')
        return msgl__err_set(err, MSGL_EINVAL, "/save needs a file: /save FILE, or /save -f FILE");
    const int rc = msgl__chat_save(k->chat, path, replace, err);
    if (rc == 0)
        fprintf(k->out, "%zu messages saved in %s\n", json_array_size(k->chat->messages), path);
    return rc;
}

static int load(struct call *k, msgl_err *err)
{
    if (*k->rest == '\0') return msgl__err_set(err, MSGL_EINVAL, "/load needs a file: /load FILE");
    const int rc = msgl__chat_load(k->chat, k->rest, err);
    if (rc == 0) {
        fprintf(k->out, "%zu messages loaded%s\n", json_array_size(k->chat->messages),
                msgl__chat_last_is(k->chat, "user") ? "; /regenerate answers the last one" : "");
    }
    return rc;
}

static int regenerate(struct call *k, msgl_err *err)
{
    if (!msgl__chat_last_is(k->chat, "assistant") && !msgl__chat_last_is(k->chat, "user"))
        return msgl__err_set(err, MSGL_EINVAL, "there is no answer to generate again");
    k->act = MSGL_CHAT_ANSWER;
    return 0;
}

static int undo(struct call *k, msgl_err *err)
{
    msgl_chat *c = k->chat;
    if (!msgl__chat_last_is(c, "assistant") && !msgl__chat_last_is(c, "user"))
        return msgl__err_set(err, MSGL_EINVAL, "there is no question to take back");
    while (msgl__chat_last_is(c, "assistant")) msgl__chat_drop_last(c);
    if (msgl__chat_last_is(c, "user")) msgl__chat_drop_last(c);
    c->used = 0;
    fprintf(k->out, "the last question and its answer are forgotten\n");
    return 0;
}

static int leave(struct call *k, msgl_err *err)
{
    (void)err;
    k->act = MSGL_CHAT_END;
    return 0;
}

static const struct command {
    const char *name, *also[2], *args, *help;
    bool takes_args;
    int (*run)(struct call *k, msgl_err *err);
} COMMANDS[] = {
    {"/help", {"/?"}, "", "show this", false, help},
    {"/reset", {"/clear"}, "", "forget the conversation, not the system message", false, reset},
    {"/system", {NULL}, "[TEXT]", "show or set the system message; - is none", true, set_system},
    {"/params",
     {"/set"},
     "[NAME VALUE]",
     "show or set what answers are sampled with; VALUE may be default",
     true,
     params},
    {"/regenerate", {"/retry"}, "", "answer the last question again", false, regenerate},
    {"/undo", {NULL}, "", "take back the last question and its answer", false, undo},
    {"/save",
     {NULL},
     "[-f] FILE",
     "write the conversation as JSON messages; -f: also over a file that exists",
     true,
     save},
    {"/load", {NULL}, "FILE", "go on with a conversation that was saved", true, load},
    {"/exit", {"/quit", "/bye"}, "", "end; so does Ctrl-D on an empty line", false, leave},
};

static int help(struct call *k, msgl_err *err)
{
    (void)err;
    for (size_t i = 0; i < MSGL_COUNT(COMMANDS); i++) {
        const struct command *m = &COMMANDS[i];
        char names[64];
        snprintf(names, sizeof names, "%s%s%s%s%s%s%s", m->name, m->also[0] != NULL ? ", " : "",
                 m->also[0] != NULL ? m->also[0] : "", m->also[1] != NULL ? ", " : "",
                 m->also[1] != NULL ? m->also[1] : "", *m->args != '\0' ? " " : "", m->args);
        fprintf(k->out, "  %-28s %s\n", names, m->help);
    }
    fprintf(k->out,
            "A line that ends in \\ goes on in the next one; all between two \"\"\" is one text; "
            "// is a / that\nbegins a text. Ctrl-C stops an answer, of which what has come stays "
            "in the conversation, and\nclears the line at the prompt. Lines that begin with a "
            "blank are not kept in the history.\n");
    return 0;
}

static const struct command *find(const char *word, size_t len)
{
    for (size_t i = 0; i < MSGL_COUNT(COMMANDS); i++) {
        const char *const names[] = {COMMANDS[i].name, COMMANDS[i].also[0], COMMANDS[i].also[1]};
        for (size_t j = 0; j < MSGL_COUNT(names) && names[j] != NULL; j++) {
            if (strlen(names[j]) == len && memcmp(names[j], word, len) == 0) return &COMMANDS[i];
        }
    }
    return NULL;
}

// Whether a line that begins with / is one for the model: "/etc/hosts is what?", or three words and
// more of which the first is not even nearly a command, as its first two letters say.
static bool is_question(const char *text, size_t len)
{
    if (memchr(text + 1, '/', len - 1) != NULL || memchr(text, '.', len) != NULL) return true;
    for (size_t i = 0; i < MSGL_COUNT(COMMANDS); i++) {
        const char *const names[] = {COMMANDS[i].name, COMMANDS[i].also[0], COMMANDS[i].also[1]};
        for (size_t j = 0; j < MSGL_COUNT(names) && names[j] != NULL; j++) {
            if (strncmp(names[j], text, 3) == 0) return false;
        }
    }
    int words = 0;
    for (const char *p = text; *p != '\0'; words++) {
        p += strcspn(p, " \t\n");
        p += strspn(p, " \t\n");
    }
    return words > 2;
}

static int unknown(const char *word, size_t len, msgl_err *err)
{
    msgl_strbuf all;
    msgl__strbuf_init(&all, MSGL_ERR_TEXT_SIZE);
    for (size_t i = 0; i < MSGL_COUNT(COMMANDS); i++) {
        (void)msgl__strbuf_addf(&all, "%s%s", i > 0 ? ", " : "", COMMANDS[i].name);
    }
    const int rc =
        msgl__err_set(err, MSGL_EINVAL, "no command %.*s; commands: %s; // begins a text with /",
                      len > 40 ? 40 : (int)len, word, msgl__strbuf_str(&all));
    msgl__strbuf_free(&all);
    return rc;
}

int msgl__chat_enter(msgl_chat *c, const char *text, bool literal, FILE *out, msgl_chat_act *act,
                     const char **question, msgl_err *err)
{
    *act = MSGL_CHAT_NOTHING;
    if (text[strspn(text, " \t\n")] == '\0') return 0;
    if (literal || text[0] != '/' || text[1] == '/') {
        *act = MSGL_CHAT_ASK;
        *question = text + (!literal && text[0] == '/');
        return 0;
    }
    const size_t len = strcspn(text, " \t\n");
    const struct command *m = find(text, len);
    if (m == NULL && is_question(text, len)) {
        *act = MSGL_CHAT_ASK;
        *question = text;
        return 0;
    }
    if (m == NULL) return unknown(text, len, err);
    const char *from = text + len;
    from += strspn(from, " \t\n");
    size_t n = strlen(from);
    while (n > 0 && strchr(" \t\n", from[n - 1]) != NULL) n--;
    if (n > 0 && !m->takes_args) {
        return msgl__err_set(err, MSGL_EINVAL, "%s is followed by \"%.*s\"; allowed: nothing",
                             m->name, n > 40 ? 40 : (int)n, from);
    }
    struct call k = {.chat = c, .rest = msgl__strndup(from, n), .out = out};
    if (k.rest == NULL) return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    const int rc = m->run(&k, err);
    msgl__free(k.rest);
    *act = k.act;
    return rc;
}
