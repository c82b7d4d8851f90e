// SPDX-License-Identifier: Apache-2.0
//
// Ranks of several hosts, on each of which the same command was started with its --node-rank. Rank
// 0 listens at --dist-init-addr and forks the others of its host; on the other hosts a process
// forks all of them and watches them. All but rank 0 connect to it, those of its own host too, so
// that there is one way in which ranks follow, stop and fail.
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "distributed/hosts.h"
#include "engine/internal.h"
#include "engine/rank_meet.h"

enum {
    TOKEN = 0,        // there is nothing that rank 0 could have told the others beforehand
    MEET_MS = 600000, // for people, or scripts, who start the hosts one after another
    STOP_MS = 2000,   // for ranks of a host to end when one of them has
    LOOK_MS = 20,
};

// What a forked rank's parent sees of it: whether it was ready, also of one that is killed, and how
// it ended.
typedef struct outcome {
    msgl_rank_place place;
    int code;
    msgl_err err;
} outcome;

// The process of a rank that is not rank 0: nothing of its parent but the standard streams.
static _Noreturn void become(const msgl_options *o, int32_t local_rank, const char *address,
                             bool by_main, outcome *out)
{
    msgl__ranks_detach(by_main, 3);
    const int32_t local = o->tp_size / o->nnodes;
    out->place = (msgl_rank_place){.rank = o->node_rank * local + local_rank,
                                   .size = o->tp_size,
                                   .local = local,
                                   .local_rank = local_rank,
                                   .forked = true,
                                   .blamed = -1};
    out->code = msgl__meet_rank_0(&out->place, address, TOKEN, true, MEET_MS, o, &out->err);
    _exit(out->code == 0 ? 0 : 1);
}

static int fork_rank(const msgl_options *o, int32_t local_rank, const char *address, outcome *out,
                     pid_t *pid, msgl_err *err)
{
    const bool by_main = gettid() == getpid();
    *pid = fork();
    if (*pid == 0) become(o, local_rank, address, by_main, out);
    return *pid > 0 ? 0 : msgl__err_set(err, MSGL_ENOMEM, "ranks: no process");
}

// --- rank 0 ------------------------------------------------------------------------------------

static void say_waiting(const msgl_options *o, const char *address)
{
    char line[MSGL_HOSTS_ADDRESS + 128];
    snprintf(line, sizeof line, "ranks: waiting at %s for %d of %d hosts", address, o->nnodes - 1,
             o->nnodes);
    msgl__engine_print(o, line);
}

int msgl__nodes_start(const msgl_options *o, msgl_rank_place *out, msgl_err *err)
{
    msgl_ranks *r = out->others;
    char address[MSGL_HOSTS_ADDRESS];
    int fd = -1;
    out->local = o->tp_size / o->nnodes;
    if (o->node_rank > 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "--node-rank is %d: that host opens no model, it follows the first",
                             o->node_rank);
    }
    outcome unused = {0}; // rank 0 hears from its ranks itself
    int code = msgl__hosts_listen(o->dist_init_addr, &fd, address, err);
    for (int32_t i = 1; i < out->local && code == 0; i++) {
        code = fork_rank(o, i, address, &unused, &r->pids[r->num_forked], err);
        if (code == 0) r->num_forked++;
    }
    if (code == 0) say_waiting(o, address);
    if (code == 0) code = msgl__meet_others(out, fd, TOKEN, true, MEET_MS, o, err);
    if (fd >= 0) close(fd);
    return code;
}

// --- the other hosts ---------------------------------------------------------------------------

typedef struct node {
    const msgl_options *o;
    int32_t count;
    pid_t pids[MSGL_GROUP_MAX_SIZE]; // 0: has ended
    outcome *outcomes;
} node;

// The rank whose end another one sees first, -1: none. One that is stopped has ended to the others.
static int32_t first_ended(node *n)
{
    const int32_t before = n->o->node_rank * n->count;
    for (int32_t i = 0; i < n->count; i++) {
        int status;
        outcome *one = &n->outcomes[i];
        const pid_t pid = waitpid(n->pids[i], &status, WNOHANG | WUNTRACED);
        if (pid == 0) continue;
        if (pid > 0 && WIFSTOPPED(status)) {
            one->code =
                msgl__err_set(&one->err, MSGL_EPEER, "rank %d was stopped", (int)(before + i));
            return i;
        }
        n->pids[i] = 0;
        if (pid > 0 && WIFSIGNALED(status)) {
            one->code = msgl__err_set(&one->err, MSGL_EPEER, "rank %d was killed by signal %d",
                                      (int)(before + i), WTERMSIG(status));
        }
        return i;
    }
    return -1;
}

// Runs the host's ranks once, to the end of all of them. *out: the end of the first, and whether
// any was ready before.
static int run_ranks(node *n, outcome *out, msgl_err *err)
{
    int32_t started = 0, first = -1;
    int code = 0;
    memset(n->outcomes, 0, (size_t)n->count * sizeof *n->outcomes);
    while (code == 0 && started < n->count) {
        code = fork_rank(n->o, started, n->o->dist_init_addr, &n->outcomes[started],
                         &n->pids[started], err);
        if (code == 0) started++;
    }
    while (code == 0 && (first = first_ended(n)) < 0) (void)poll(NULL, 0, LOOK_MS);
    msgl__ranks_reap(n->pids, started, STOP_MS);
    if (code != 0) return code;
    *out = n->outcomes[first];
    for (int32_t i = 0; i < n->count; i++) out->place.ready |= n->outcomes[i].place.ready;
    return 0;
}

static void say(const msgl_options *o, const char *what)
{
    char line[MSGL_HOSTS_ADDRESS + 256];
    snprintf(line, sizeof line, "ranks of host %d: %s rank 0 at %s", o->node_rank, what,
             o->dist_init_addr);
    msgl__engine_print(o, line);
}

int msgl__nodes_follow(const msgl_options *o, msgl_err *err)
{
    node n = {.o = o, .count = o->tp_size / o->nnodes};
    // Shared with the ranks that are forked.
    const size_t bytes = (size_t)n.count * sizeof *n.outcomes;
    n.outcomes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (n.outcomes == MAP_FAILED) return msgl__err_set(err, MSGL_ENOMEM, "ranks: no memory");
    outcome last = {0};
    int code;
    say(o, "connecting to");
    while ((code = run_ranks(&n, &last, err)) == 0 && last.code != 0 && last.place.ready) {
        char what[sizeof last.err.text + 32];
        snprintf(what, sizeof what, "%.200s; going back to", last.err.text);
        say(o, what);
    }
    munmap(n.outcomes, bytes);
    if (code != 0 || last.code == 0) return code;
    return msgl__err_set(err, last.code, "%s", last.err.text);
}

int msgl__engine_follow(const msgl_options *o, msgl_err *err)
{
    if (o->nnodes == 1) return msgl__job_follow(o, err);
    if (o->node_rank > 0) return msgl__nodes_follow(o, err);
    return msgl__err_set(err, MSGL_EINVAL,
                         "the first host opens the model; allowed: --node-rank 1 "
                         "or more");
}
