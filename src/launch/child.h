// SPDX-License-Identifier: Apache-2.0
//
// A process of the supervisor's (launch.c): how it ended, how its starts went, and when it is
// started again. What the process is, and how it is forked, the supervisor knows.
#ifndef MSGL_LAUNCH_CHILD_H
#define MSGL_LAUNCH_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "launch/control.h"
#include "launch/launch.h"

typedef struct msgl_child {
    char name[16]; // "front", "engine", one of several "engine 3"
    pid_t pid;     // 0: not running
    bool ready, ever_ready;
    int failed_starts, delay_ms;   // short lives in a row; the pause before the next start
    uint64_t ready_at, restart_at; // ns; restart_at 0: none
    char last_words[MSGL_CONTROL_TEXT + 1];
} msgl_child;

// What is to be done before it is forked: writes buffered output, which parent and child would both
// write else, and forgets the last life.
void msgl__child_begin_start(msgl_child *c);
// Notes that it is ready. An engine is so for each front that it gets; its life begins with the
// first.
void msgl__child_set_ready(msgl_child *c);
void msgl__child_kill(const msgl_child *c);
// Waits for the end of a child that was killed.
void msgl__child_reap(msgl_child *c);

// "killed by signal 9" or "exit status 1", in buf, of a status of waitpid's.
const char *msgl__child_how_ended(int status, char buf[64]);
// The error of a server that ends because a process does not start, or not for long.
int msgl__child_give_up(const msgl_child *c, const char *how, msgl_err *err);
// Counts an end. Whether that was the cfg->max_failed_starts-th life in a row that was shorter than
// cfg->min_life_ms; a longer one resets count and pause.
bool msgl__child_failed_again(const msgl_serve_config *cfg, msgl_child *c);
// Sets the time of the next start, and logs it. The pause after that is twice as long, at most 30
// s.
void msgl__child_start_later(const msgl_log *log, msgl_child *c, const char *how);
// Whether the pause before the next start is over. If not, *next becomes the end of the pause
// unless it is earlier already (0: there was none): with *next 700 and restart_at 500 it becomes
// 500.
bool msgl__child_is_due(const msgl_child *c, uint64_t now, uint64_t *next);

#endif
