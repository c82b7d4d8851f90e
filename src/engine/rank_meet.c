// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_meet.h"

#include <string.h>
#include <unistd.h>

#include "core/settings.h"
#include "distributed/hosts.h"
#include "distributed/mpi/plugin.h"
#include "utils/hash.h"

// Of the program: two that differ in what they send have different ones, most likely.
static uint64_t build_mark(void)
{
    const size_t sizes[] = {sizeof(msgl_batch), sizeof(msgl_batch_req), sizeof(msgl_rank_plan),
                            sizeof(msgl_wire_tokens), sizeof(msgl_wire_extra)};
    uint64_t h = msgl__hash(MSGL_HASH_START, sizes, sizeof sizes);
    for (int i = 0; i < msgl__engine_settings.count; i++) {
        const char *field = msgl__engine_settings.rows[i].field;
        h = msgl__hash(h, field, strlen(field) + 1);
    }
    return h;
}

static msgl_hosts_job job_of(const msgl_rank_place *place, uint64_t token, bool data)
{
    return (msgl_hosts_job){.size = place->size,
                            .rank = place->rank,
                            .token = token,
                            .build = build_mark(),
                            .data = data};
}

// --- options -----------------------------------------------------------------------------------

// What each rank has of its own: paths, hardware, its host's number.
static bool is_own(const msgl_setting *s)
{
    static const char *const own[] = {"model_dir", "device", "threads", "cpu_level", "node_rank"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (strcmp(s->field, own[i]) == 0) return true;
    }
    return false;
}

static void put_options(msgl_wire *w, const msgl_options *o)
{
    msgl__wire_begin(w, MSGL_WIRE_OPTIONS);
    for (int i = 0; i < msgl__engine_settings.count; i++) {
        const msgl_setting *s = &msgl__engine_settings.rows[i];
        if (is_own(s)) continue;
        if (s->type == MSGL_SETTING_TEXT) {
            const char *text = msgl__setting_text(s, o);
            const uint64_t bytes = text != NULL ? strlen(text) + 1 : 0;
            msgl__wire_put(w, &bytes, sizeof bytes);
            msgl__wire_put(w, text, bytes);
        } else {
            const double v = msgl__setting_number(s, o);
            msgl__wire_put(w, &v, sizeof v);
        }
    }
    const int scores[] = {o->is_reranker, o->score_token_ids[0], o->score_token_ids[1]}; // no rows
    msgl__wire_put(w, scores, sizeof scores);
}

// Texts stay in the message.
static bool take_options(msgl_wire *w, msgl_options *o)
{
    for (int i = 0; i < msgl__engine_settings.count; i++) {
        const msgl_setting *s = &msgl__engine_settings.rows[i];
        uint64_t bytes;
        double v;
        if (is_own(s)) continue;
        if (s->type != MSGL_SETTING_TEXT) {
            if (!msgl__wire_get(w, &v, sizeof v)) return false;
            msgl__setting_put(s, v, o);
            continue;
        }
        if (!msgl__wire_get(w, &bytes, sizeof bytes)) return false;
        const char *text = bytes > 0 ? msgl__wire_take(w, bytes) : NULL;
        if (bytes > 0 && (text == NULL || text[bytes - 1] != '\0')) return false;
        msgl__setting_put_text(s, text, o);
    }
    int scores[3];
    if (!msgl__wire_get(w, scores, sizeof scores)) return false;
    o->is_reranker = scores[0];
    memcpy(o->score_token_ids, scores + 1, sizeof o->score_token_ids);
    return true;
}

// --- both sides --------------------------------------------------------------------------------

int msgl__meet_others(msgl_rank_place *place, int fd, uint64_t token, bool data, int timeout_ms,
                      const msgl_options *o, msgl_err *err)
{
    msgl_ranks *r = place->others;
    msgl_hosts_link links[MSGL_GROUP_MAX_SIZE];
    const msgl_hosts_job job = job_of(place, token, data);
    int code = msgl__hosts_accept(fd, &job, timeout_ms, links, err);
    for (int32_t i = 1; i < place->size; i++) {
        r->fds[i - 1] = links[i].way;
        r->beats[i - 1] = links[i].beats;
        r->data[i - 1] = links[i].data;
    }
    r->count = place->size - 1;
    place->linked = true;
    put_options(&r->message, o);
    for (int32_t i = 0; i < r->count && code == 0; i++) {
        if (msgl__wire_send(&r->message, r->fds[i], r->group) == 0) continue;
        code = msgl__err_set(err, MSGL_EPEER, "rank %d of %d ended unexpectedly", (int)(i + 1),
                             (int)place->size);
    }
    return code;
}

static void close_fd(int fd)
{
    if (fd >= 0) close(fd);
}

// Takes rank 0's options, whose texts stay in w, and follows.
static int follow(msgl_rank_place *place, const msgl_options *o, msgl_wire *w, msgl_err *err)
{
    msgl_options options = *o;
    const int kind = msgl__wire_receive(w, place->fd, place->group);
    if (kind != MSGL_WIRE_OPTIONS || !take_options(w, &options)) {
        return msgl__err_set(err, MSGL_ECLOSED, "rank 0 ended");
    }
    const int code = msgl__ranks_follow(&options, place);
    place->blamed = msgl__group_blamed(place->group);
    if (code == 0) return 0;
    if (place->ready && place->blamed >= 0 && place->blamed != place->rank) {
        return msgl__err_set(err, MSGL_EPEER, "rank %d of %d failed", (int)place->blamed,
                             (int)place->size);
    }
    return msgl__err_set(err, MSGL_ECLOSED, "rank 0 says why");
}

int msgl__meet_rank_0(msgl_rank_place *place, const char *address, uint64_t token, bool data,
                      int timeout_ms, const msgl_options *o, msgl_err *err)
{
    msgl_wire w = {0};
    msgl_hosts_link link = {-1, -1, -1};
    const msgl_hosts_job job = job_of(place, token, data);
    int code = msgl__group_create(place->size, &place->group, err);
    if (code == 0) code = msgl__hosts_connect(address, &job, timeout_ms, &link, err);
    place->fd = link.way;
    place->beats = link.beats;
    place->data = link.data;
    place->linked = true;
    if (code == 0) code = follow(place, o, &w, err);
    close_fd(place->fd);
    close_fd(place->beats);
    close_fd(place->data);
    msgl__group_destroy(place->group);
    msgl__wire_free(&w);
    return code;
}

void msgl__meet_leave(msgl_rank_place *place)
{
    msgl_ranks *r = place->others;
    bool all = r != NULL && place->ready && msgl__group_blamed(place->group) < 0;
    if (all) msgl__wire_begin(&r->message, MSGL_WIRE_END);
    for (int32_t i = 0; r != NULL && i < r->count; i++) {
        if (all) all = msgl__wire_send(&r->message, r->fds[i], r->group) == 0;
        close_fd(r->fds[i]);
        close_fd(r->beats[i]);
        close_fd(r->data[i]);
    }
    // Waits for all, so only if all come; else the end of the processes is MPI's end.
    if (all && place->mpi != NULL) place->mpi->finish();
}
