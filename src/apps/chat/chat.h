// SPDX-License-Identifier: Apache-2.0
//
// What a chat is without its terminal and its model: the conversation, the commands that begin with
// "/", lines that become one question, and the file of questions that were asked before.
#ifndef MSGL_APPS_CHAT_CHAT_H
#define MSGL_APPS_CHAT_CHAT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "cli/args.h"
#include "utils/strbuf.h"

// ---- the conversation (chat_talk.c) ----

typedef struct msgl_chat {
    json_t *messages; // as an API gets them; the first may be of the role system
    // What answers are asked with, and what /params NAME default brings back. The model's own
    // defaults stand in their sampling.
    msgl_args *params, *first_params;
    int used, limit; // tokens of the context, after the last answer; 0: not known
} msgl_chat;

// params: the options of the command with the model's defaults in sampling; copied, but the strings
// are borrowed. MSGL_ENOMEM, MSGL_EFORMAT (--system is not UTF-8).
int msgl__chat_init(msgl_chat *c, const msgl_args *params, int limit, msgl_err *err);
void msgl__chat_free(msgl_chat *c);

// Appends a message; reasoning NULL or "": none. MSGL_EFORMAT: it is not UTF-8.
int msgl__chat_add(msgl_chat *c, const char *role, const char *content, const char *reasoning,
                   msgl_err *err);
bool msgl__chat_last_is(const msgl_chat *c, const char *role);
void msgl__chat_drop_last(msgl_chat *c);
// Forgets all but the system message.
void msgl__chat_reset(msgl_chat *c);
// NULL: there is none.
const char *msgl__chat_system(const msgl_chat *c);
int msgl__chat_set_system(msgl_chat *c, const char *text, msgl_err *err); // NULL: none
// {"messages": [...]}, freed with msgl__free; NULL: out of memory.
char *msgl__chat_json(const msgl_chat *c);

// The messages as a JSON array. Without `replace` a file that exists is left alone: MSGL_EINVAL.
int msgl__chat_save(const msgl_chat *c, const char *path, bool replace, msgl_err *err);
// Takes the place of the conversation: an array of messages, or an object that has it as
// "messages". After a failure the conversation is what it was.
int msgl__chat_load(msgl_chat *c, const char *path, msgl_err *err);

// ---- parameters (chat_params.c) ----

// The options of requests that are numbers or flags, from the table that parses them.
void msgl__chat_params_print(const msgl_chat *c, FILE *out);
// name: with - or _, also with the -- of a flag; value "default": as the chat began.
int msgl__chat_params_set(msgl_chat *c, const char *name, const char *value, msgl_err *err);
// The one line about a parameter.
void msgl__chat_params_print_one(const msgl_chat *c, const char *name, FILE *out);

// ---- commands (chat_commands.c) ----

typedef enum msgl_chat_act {
    MSGL_CHAT_NOTHING, // done, or nothing to do
    MSGL_CHAT_ASK,     // *question is for the model
    MSGL_CHAT_ANSWER,  // the conversation ends with a question: answer it
    MSGL_CHAT_END,
} msgl_chat_act;

// What a text that was entered wants. What a command has to say goes to `out`, a failure to *err.
// literal: it cannot be a command. *question: within text.
int msgl__chat_enter(msgl_chat *c, const char *text, bool literal, FILE *out, msgl_chat_act *act,
                     const char **question, msgl_err *err);

// ---- lines (chat_input.c) ----

typedef struct msgl_chat_input {
    msgl_strbuf text;   // what they say
    msgl_strbuf source; // how that was written, for the history
    bool more;          // lines are to come
    bool block;         // in """
    bool literal;       // it was a block: no command
} msgl_chat_input;

void msgl__chat_input_init(msgl_chat_input *in);
void msgl__chat_input_free(msgl_chat_input *in);
// The next line, without its end; goes_on: the line's end was pasted, so that it ends nothing. Once
// in->more is false the text is complete, and the next line begins another one.
// MSGL_ELIMIT, MSGL_ENOMEM, and MSGL_EFORMAT for a NUL; the text is given up then.
int msgl__chat_input_line(msgl_chat_input *in, const char *line, size_t len, bool goes_on,
                          msgl_err *err);
// Several lines at once, as the history has them.
int msgl__chat_input_lines(msgl_chat_input *in, const char *lines, size_t len, bool goes_on,
                           msgl_err *err);
void msgl__chat_input_drop(msgl_chat_input *in); // begin again

// ---- history (chat_history.c) ----

enum { MSGL_CHAT_HISTORY_MAX = 1000 }; // entries that are kept

// $XDG_STATE_HOME/minisgl/chat_history, or below ~/.local/state. MSGL_ENOENT: there is no home.
int msgl__chat_history_path(char *out, size_t size, msgl_err *err);
// Calls fn for each entry, the oldest first. No file is no entry. When it has become too long, the
// newest entries are written anew.
int msgl__chat_history_read(const char *path, void (*fn)(void *ctx, const char *entry), void *ctx,
                            msgl_err *err);
// Appends an entry, in a file of mode 0600 that is made with its folder if need be.
int msgl__chat_history_add(const char *path, const char *entry, msgl_err *err);

#endif
