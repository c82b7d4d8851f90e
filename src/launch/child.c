// SPDX-License-Identifier: Apache-2.0
#include "launch/child.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>

#include "utils/clock.h"

enum { RESTART_DELAY_MAX_MS = 30000 };

void msgl__child_begin_start(msgl_child *c)
{
    fflush(NULL); // parent and child would both write what is buffered
    c->ready = false;
    c->restart_at = 0;
    c->last_words[0] = '\0';
}

void msgl__child_set_ready(msgl_child *c)
{
    if (!c->ready) c->ready_at = msgl__now_ns();
    c->ready = c->ever_ready = true;
}

void msgl__child_kill(const msgl_child *c)
{
    if (c->pid > 0) kill(c->pid, SIGKILL);
}

void msgl__child_reap(msgl_child *c)
{
    while (c->pid > 0 && waitpid(c->pid, NULL, 0) < 0 && errno == EINTR) {
    }
    c->pid = 0;
}

const char *msgl__child_how_ended(int status, char buf[64])
{
    if (WIFSIGNALED(status)) {
        (void)snprintf(buf, 64, "killed by signal %d", WTERMSIG(status));
    } else {
        (void)snprintf(buf, 64, "exit status %d", WEXITSTATUS(status));
    }
    return buf;
}

int msgl__child_give_up(const msgl_child *c, const char *how, msgl_err *err)
{
    const char *words = c->last_words;
    if (c->ever_ready) {
        return msgl__err_set(err, MSGL_EINTERNAL,
                             "the %s ended %d times in a row soon after its start (%s)%s%s",
                             c->name, c->failed_starts, how, words[0] == '\0' ? "" : ": ", words);
    }
    if (words[0] != '\0') return msgl__err_set(err, MSGL_EINTERNAL, "%s", words);
    return msgl__err_set(err, MSGL_EINTERNAL, "the %s ended while it started (%s)", c->name, how);
}

bool msgl__child_failed_again(const msgl_serve_config *cfg, msgl_child *c)
{
    const uint64_t least = (uint64_t)cfg->min_life_ms * 1000000u;
    const bool lived = c->ready && msgl__now_ns() - c->ready_at >= least;
    c->ready = false;
    if (!lived) return ++c->failed_starts >= cfg->max_failed_starts;
    c->failed_starts = 0;
    c->delay_ms = cfg->restart_delay_ms;
    return false;
}

void msgl__child_start_later(const msgl_log *log, msgl_child *c, const char *how)
{
    msgl__log(log, MSGL_LOG_ERROR, "%s ended (%s); starting it again in %d ms", c->name, how,
              c->delay_ms);
    c->restart_at = msgl__now_ns() + (uint64_t)c->delay_ms * 1000000u;
    c->delay_ms = 2 * c->delay_ms < RESTART_DELAY_MAX_MS ? 2 * c->delay_ms : RESTART_DELAY_MAX_MS;
}

bool msgl__child_is_due(const msgl_child *c, uint64_t now, uint64_t *next)
{
    if (c->restart_at == 0 || now >= c->restart_at) return c->restart_at != 0;
    if (*next == 0 || c->restart_at < *next) *next = c->restart_at;
    return false;
}
