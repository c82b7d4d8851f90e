// SPDX-License-Identifier: Apache-2.0
//
// The terminal of the shell: lines with editing and history by libedit, and the signals that a
// terminal sends. One at a time.
#ifndef MSGL_APPS_CHAT_CHAT_TERMINAL_H
#define MSGL_APPS_CHAT_CHAT_TERMINAL_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct msgl_terminal msgl_terminal;

// SIGINT sets msgl__cli_interrupted, which what computes looks at; a second one that comes a second
// later or more, before the first was heard, ends the process. SIGTERM, SIGHUP and SIGQUIT also set
// msgl__chat_ended to their number; a second one ends the process. The terminal is as it was then.
extern volatile sig_atomic_t msgl__chat_ended;
void msgl__chat_catch_signals(void);

// NULL: standard input and output are no terminal, or there is no memory.
msgl_terminal *msgl__terminal_open(void);
void msgl__terminal_close(msgl_terminal *t); // NULL allowed

typedef enum msgl_line {
    MSGL_LINE_READ,
    MSGL_LINE_INTERRUPTED, // by Ctrl-C: the line is gone
    MSGL_LINE_END,         // Ctrl-D on an empty line, a hang-up, or a signal that ends the shell
} msgl_line;

// Reads a line; more: it goes on with a text. *text has no line end and is valid until the next
// call; it may have lines in it that the history had. *goes_on: its end was pasted.
msgl_line msgl__terminal_line(msgl_terminal *t, bool more, const char **text, size_t *len,
                              bool *goes_on);
// What the arrow keys find.
void msgl__terminal_remember(msgl_terminal *t, const char *entry);

#endif
