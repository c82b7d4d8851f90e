// SPDX-License-Identifier: Apache-2.0
#include "engine/ranks.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/req_extra.h"
#include "engine/rank_meet.h"
#include "engine/rank_wire.h"

enum { STOP_MS = 2000 }; // for the others to end by themselves

// --- start and end -----------------------------------------------------------------------------

void msgl__ranks_detach(bool by_main, unsigned first_closed)
{
    // The end of the thread that forked; a stopped process sees no socket close.
    if (by_main) prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    close_range(first_closed, ~0U, 0);
}

// The other rank's process: nothing of its parent but the mapping, its end of the socket and the
// standard streams.
static _Noreturn void become(const msgl_options *o, int32_t rank, msgl_group *group, int fd,
                             bool by_main)
{
    if (fd != 3) {
        dup2(fd, 3);
        close(fd);
    }
    msgl__ranks_detach(by_main, 4);
    msgl_rank_place place = {.rank = rank,
                             .size = o->tp_size,
                             .local = o->tp_size,
                             .local_rank = rank,
                             .group = group,
                             .forked = true,
                             .fd = 3};
    _exit(msgl__ranks_follow(o, &place) == 0 ? 0 : 1);
}

static int fork_rank(const msgl_options *o, msgl_group *group, msgl_ranks *r, msgl_err *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        return msgl__err_set(err, MSGL_EINTERNAL, "ranks: no socket: %s", strerror(errno));
    }
    const bool by_main = gettid() == getpid();
    const pid_t pid = fork();
    if (pid == 0) become(o, r->count + 1, group, pair[1], by_main);
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        return msgl__err_set(err, MSGL_ENOMEM, "ranks: no process: %s", strerror(errno));
    }
    r->fds[r->count++] = pair[0];
    r->pids[r->num_forked++] = pid;
    return 0;
}

int msgl__ranks_start(const msgl_options *o, msgl_rank_place *out, msgl_err *err)
{
    msgl_ranks *r = msgl__calloc(1, sizeof *r);
    *out = (msgl_rank_place){
        .size = o->tp_size, .local = o->tp_size, .others = r, .fd = -1, .beats = -1, .data = -1};
    if (r == NULL) return msgl__err_set(err, MSGL_ENOMEM, "ranks: out of memory");
    int code = msgl__group_create(o->tp_size, &out->group, err);
    r->group = out->group;
    if (code == 0 && o->mpi) {
        code = msgl__job_start(o, out, err);
    } else if (code == 0 && o->nnodes > 1) {
        code = msgl__nodes_start(o, out, err);
    } else {
        while (code == 0 && r->count + 1 < o->tp_size) code = fork_rank(o, out->group, r, err);
    }
    if (code != 0) msgl__ranks_stop(out);
    return code;
}

static bool ended(pid_t pid, int milliseconds)
{
    for (int i = 0; i <= milliseconds; i++) {
        if (waitpid(pid, NULL, WNOHANG) != 0) return true;
        usleep(1000);
    }
    return false;
}

void msgl__ranks_reap(const pid_t *pids, int32_t count, int milliseconds)
{
    for (int32_t i = 0; i < count; i++) {
        if (pids[i] == 0 || ended(pids[i], milliseconds)) continue;
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
}

void msgl__ranks_stop(msgl_rank_place *place)
{
    msgl_ranks *r = place->others;
    if (place->linked) {
        msgl__meet_leave(place);
    } else if (r != NULL) {
        for (int32_t i = 0; i < r->count; i++) close(r->fds[i]); // the sign to end
    }
    if (r != NULL) {
        // A rank that is to blame may be one that is stopped.
        const bool failed = place->group != NULL && msgl__group_blamed(place->group) >= 0;
        msgl__ranks_reap(r->pids, r->num_forked, failed ? 0 : STOP_MS);
        msgl__wire_free(&r->message);
        msgl__free(r);
        msgl__group_destroy(place->group);
    }
    *place = (msgl_rank_place){0};
}

pid_t msgl__ranks_process(const msgl_rank_place *place, int32_t rank)
{
    return place->others->pids[rank - 1];
}

void msgl__ranks_watch(const msgl_rank_place *place, msgl_group_member *member)
{
    const msgl_ranks *r = place->others;
    const bool linked = place->linked;
    if (r == NULL && linked) msgl__group_link(member, 0, place->beats, place->fd);
    if (r == NULL && !linked) msgl__group_watch(member, 0, place->fd);
    for (int32_t i = 0; r != NULL && i < r->count; i++) {
        if (linked) {
            msgl__group_link(member, i + 1, r->beats[i], r->fds[i]);
        } else {
            msgl__group_watch(member, i + 1, r->fds[i]);
        }
    }
}

void msgl__ranks_data(const msgl_rank_place *place, int *fds)
{
    fds[0] = place->data;
    for (int32_t i = 1; i < place->size && place->others != NULL; i++) {
        fds[i] = place->others->data[i - 1];
    }
}

// --- before the first step ---------------------------------------------------------------------

// What rank `rank` sends next: a message of this kind, or why it can send none.
static int hear(const msgl_rank_place *place, int32_t rank, msgl_wire_kind kind, void *p,
                size_t bytes, msgl_err *err)
{
    msgl_wire w = {0};
    msgl_err why;
    const int got = msgl__wire_receive(&w, place->others->fds[rank - 1], place->group);
    const bool failed = got == MSGL_WIRE_READY && msgl__wire_get(&w, &why, sizeof why);
    const bool whole = !failed && got == (int)kind && msgl__wire_get(&w, p, bytes);
    msgl__wire_free(&w);
    if (failed && why.code != 0) {
        return msgl__err_set(err, why.code, "rank %d: %.240s", (int)rank, why.text);
    }
    if (whole || (failed && kind == MSGL_WIRE_READY)) return 0;
    return msgl__err_set(err, MSGL_EPEER, "rank %d of %d ended unexpectedly", (int)rank,
                         (int)place->size);
}

int msgl__ranks_least_memory(const msgl_rank_place *place, size_t *available, int32_t *whose,
                             msgl_err *err)
{
    *whose = place->rank;
    if (place->rank > 0) {
        msgl_wire w = {0};
        msgl__wire_begin(&w, MSGL_WIRE_MEMORY);
        msgl__wire_put(&w, available, sizeof *available);
        const int code = msgl__wire_send(&w, place->fd, place->group);
        msgl__wire_free(&w);
        return code == 0 ? 0 : msgl__err_set(err, code, "rank 0 ended");
    }
    for (int32_t i = 1; i < place->size; i++) {
        size_t theirs = 0;
        const int code = hear(place, i, MSGL_WIRE_MEMORY, &theirs, sizeof theirs, err);
        if (code != 0) return code;
        if (theirs >= *available) continue;
        *available = theirs;
        *whose = i;
    }
    return 0;
}

// A message of rank 0 to all others. The first that is gone has said why, or not.
static int tell_all(const msgl_rank_place *place, msgl_err *err)
{
    msgl_ranks *r = place->others;
    for (int32_t i = 0; i < r->count; i++) {
        if (msgl__wire_send(&r->message, r->fds[i], r->group) == 0) continue;
        const int code = hear(place, i + 1, MSGL_WIRE_READY, NULL, 0, err);
        if (code != 0) return code;
        return msgl__err_set(err, MSGL_EPEER, "rank %d of %d ended unexpectedly", (int)(i + 1),
                             (int)place->size);
    }
    return 0;
}

static int exchange_with_0(const msgl_rank_place *place, const void *own, size_t bytes, void *all,
                           msgl_err *err)
{
    msgl_wire w = {0};
    msgl__wire_begin(&w, MSGL_WIRE_EXCHANGE);
    msgl__wire_put(&w, own, bytes);
    int code = msgl__wire_send(&w, place->fd, place->group);
    if (code == 0 && (msgl__wire_receive(&w, place->fd, place->group) != MSGL_WIRE_EXCHANGE ||
                      !msgl__wire_get(&w, all, bytes * (size_t)place->size))) {
        code = MSGL_EPEER;
    }
    msgl__wire_free(&w);
    return code == 0 ? 0 : msgl__err_set(err, code, "rank 0 ended");
}

int msgl__ranks_exchange(const msgl_rank_place *place, const void *own, size_t bytes, void *all,
                         msgl_err *err)
{
    if (place->rank > 0) return exchange_with_0(place, own, bytes, all, err);
    memcpy(all, own, bytes);
    for (int32_t i = 1; i < place->size; i++) {
        const int code =
            hear(place, i, MSGL_WIRE_EXCHANGE, (char *)all + (size_t)i * bytes, bytes, err);
        if (code != 0) return code;
    }
    msgl__wire_begin(&place->others->message, MSGL_WIRE_EXCHANGE);
    msgl__wire_put(&place->others->message, all, bytes * (size_t)place->size);
    return tell_all(place, err);
}

int msgl__ranks_explain(const msgl_rank_place *place, msgl_err *err)
{
    enum { MOMENT_MS = 200 };
    for (int32_t i = 1; i < place->size; i++) {
        struct pollfd p = {.fd = place->others->fds[i - 1], .events = POLLIN};
        msgl_err why = {0};
        if (poll(&p, 1, MOMENT_MS) <= 0) continue;
        const int code = hear(place, i, MSGL_WIRE_READY, NULL, 0, &why);
        if (code == 0 || code == MSGL_EPEER) continue; // it knows no more than we do
        *err = why;
        break;
    }
    return err->code;
}

int msgl__ranks_tell_plan(const msgl_rank_place *place, const msgl_rank_plan *plan, msgl_err *err)
{
    msgl_ranks *r = place->others;
    msgl__wire_begin(&r->message, MSGL_WIRE_PLAN);
    msgl__wire_put(&r->message, plan, sizeof *plan);
    return tell_all(place, err);
}

int msgl__ranks_hear_plan(const msgl_rank_place *place, msgl_rank_plan *plan, msgl_err *err)
{
    msgl_wire w = {0};
    const int kind = msgl__wire_receive(&w, place->fd, place->group);
    const bool whole = kind == MSGL_WIRE_PLAN && msgl__wire_get(&w, plan, sizeof *plan);
    msgl__wire_free(&w);
    return whole ? 0 : msgl__err_set(err, MSGL_EPEER, "rank 0 ended");
}

int msgl__ranks_wait_ready(msgl_rank_place *place, msgl_err *err)
{
    int code = 0;
    for (int32_t i = 1; i < place->size && code == 0; i++) {
        code = hear(place, i, MSGL_WIRE_READY, NULL, 0, err);
    }
    place->ready = code == 0;
    return code;
}

// --- what the scheduler says -------------------------------------------------------------------

static int send_all(msgl_ranks *r)
{
    int code = 0;
    for (int32_t i = 0; i < r->count; i++) {
        const int one = msgl__wire_send(&r->message, r->fds[i], r->group);
        if (one == MSGL_EPEER) msgl__group_blame(r->group, i + 1); // if nobody was yet
        if (code == 0) code = one;
    }
    return code;
}

// The pages of tokens [from, to) of a row in every table, as far as it goes.
static void put_pages(msgl_wire *w, const msgl_page_table *tables, int32_t num_tables, int32_t row,
                      int32_t from, int32_t to)
{
    for (int32_t k = 0; k < num_tables; k++) {
        int32_t first;
        const int32_t n = msgl__page_table_span(&tables[k], from, to, &first);
        msgl__wire_put(w, msgl__page_table_row(&tables[k], row) + first,
                       (size_t)n * sizeof(int32_t));
    }
}

int msgl__ranks_write_tokens(msgl_ranks *r, const msgl_page_table *tables, int32_t num_tables,
                             int32_t table_idx, int32_t pos, const int32_t *ids, int32_t n)
{
    const msgl_wire_tokens head = {.table_idx = table_idx, .pos = pos, .n = n};
    msgl__wire_begin(&r->message, MSGL_WIRE_TOKENS);
    msgl__wire_put(&r->message, &head, sizeof head);
    msgl__wire_put(&r->message, ids, (size_t)n * sizeof *ids);
    put_pages(&r->message, tables, num_tables, table_idx, pos, pos + n);
    return send_all(r);
}

int msgl__ranks_write_extra(msgl_ranks *r, int32_t table_idx, const msgl_req_extra *extra)
{
    const msgl_wire_extra head = {.table_idx = table_idx,
                                  .num_bias = extra->num_bias,
                                  .num_breakers = extra->num_breakers,
                                  .num_listed = extra->num_listed,
                                  .hidden = extra->hidden,
                                  .num_embeds = extra->num_embeds,
                                  .embed_dim = extra->embed_dim,
                                  .pair_from = extra->pair_from};
    const size_t embeds = (size_t)extra->num_embeds * (size_t)extra->embed_dim;
    msgl__wire_begin(&r->message, MSGL_WIRE_EXTRA);
    msgl__wire_put(&r->message, &head, sizeof head);
    msgl__wire_put(&r->message, extra->bias, (size_t)extra->num_bias * sizeof *extra->bias);
    msgl__wire_put(&r->message, extra->breakers,
                   (size_t)extra->num_breakers * sizeof *extra->breakers);
    msgl__wire_put(&r->message, extra->listed, (size_t)extra->num_listed * sizeof *extra->listed);
    msgl__wire_put(&r->message, extra->embeds, embeds * sizeof *extra->embeds);
    return send_all(r);
}

int msgl__ranks_admin(msgl_ranks *r, const msgl_admin *a)
{
    enum { PIECE = 64 << 20 }; // of a message
    const bool data = a->kind == MSGL_ADMIN_TENSORS || a->kind == MSGL_ADMIN_RECEIVE;
    const msgl_wire_admin head = {.kind = (int32_t)a->kind,
                                  .tags = a->tags,
                                  .discard = a->discard,
                                  .path = a->path == NULL ? 0 : (int32_t)strlen(a->path),
                                  .group = a->group == NULL ? 0 : (int32_t)strlen(a->group),
                                  .host = a->host == NULL ? 0 : (int32_t)strlen(a->host),
                                  .port = a->port,
                                  .rank = a->rank,
                                  .size = a->size,
                                  .total = data ? a->total : 0};
    msgl__wire_begin(&r->message, MSGL_WIRE_ADMIN);
    msgl__wire_put(&r->message, &head, sizeof head);
    msgl__wire_put(&r->message, a->path, (size_t)head.path);
    msgl__wire_put(&r->message, a->group, (size_t)head.group);
    msgl__wire_put(&r->message, a->host, (size_t)head.host);
    int code = send_all(r);
    for (uint64_t at = 0; at < head.total && code == 0; at += PIECE) {
        const size_t n = head.total - at < PIECE ? (size_t)(head.total - at) : PIECE;
        msgl__wire_begin(&r->message, MSGL_WIRE_DATA);
        msgl__wire_put(&r->message, (const char *)a->bytes + at, n);
        code = send_all(r);
    }
    return code;
}

int msgl__ranks_load_adapter(msgl_ranks *r, int32_t slot, const char *path)
{
    msgl__wire_begin(&r->message, MSGL_WIRE_ADAPTER);
    msgl__wire_put(&r->message, &slot, sizeof slot);
    if (path != NULL) msgl__wire_put(&r->message, path, strlen(path) + 1);
    return send_all(r);
}

int msgl__ranks_adapter_loaded(msgl_ranks *r)
{
    msgl__wire_begin(&r->message, MSGL_WIRE_LOADED);
    return send_all(r);
}

int msgl__ranks_submit(msgl_ranks *r, const msgl_page_table *tables, int32_t num_tables,
                       const msgl_batch *b, bool whole_rows)
{
    msgl_wire *w = &r->message;
    const int32_t whole = whole_rows;
    msgl__wire_begin(w, MSGL_WIRE_SUBMIT);
    msgl__wire_put(w, &whole, sizeof whole);
    msgl__wire_put(w, b, sizeof *b);
    msgl__wire_put(w, b->reqs, (size_t)b->size * sizeof *b->reqs);
    for (int32_t i = 0; i < b->size; i++) {
        const msgl_batch_req *q = &b->reqs[i];
        msgl__wire_put(w, q->saves, (size_t)q->num_saves * sizeof *q->saves);
        put_pages(w, tables, num_tables, q->table_idx, q->cached_len, q->device_len);
        msgl__wire_put(w, q->drafts, (size_t)q->num_drafts * sizeof *q->drafts);
        const size_t words = (size_t)b->mask_words * (1 + (size_t)q->num_drafts);
        if (q->mask != NULL) msgl__wire_put(w, q->mask, words * sizeof *q->mask);
    }
    return send_all(r);
}
