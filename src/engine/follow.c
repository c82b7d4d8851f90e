// SPDX-License-Identifier: Apache-2.0
//
// A rank that follows rank 0: its engine does what the scheduler told rank 0's, in the same order.
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/mem.h"
#include "engine/internal.h"
#include "engine/rank_wire.h"

typedef struct follower {
    const msgl_rank_place *place;
    msgl_engine *e;
    const msgl_runner *runner;
    msgl_wire w;
    bool in_flight[MSGL_ENGINE_STEP_SLOTS];
    int32_t *ids;            // of a message
    msgl_batch_req *reqs;    // [max_running] of the next step
    msgl_req_extra **extras; // [max_running] of each row
} follower;

static int take_pages(follower *f, int32_t row, int32_t from, int32_t to)
{
    for (int32_t k = 0; k < f->e->num_tables; k++) {
        msgl_page_table *table = &f->e->page_tables[k];
        int32_t first;
        const int32_t n = msgl__page_table_span(table, from, to, &first);
        if (!msgl__wire_get(&f->w, msgl__page_table_row(table, row) + first,
                            (size_t)n * sizeof(int32_t))) {
            return MSGL_EINTERNAL;
        }
    }
    return 0;
}

static bool is_row(const follower *f, int32_t row)
{
    return row >= 0 && row < f->e->max_running;
}

static int follow_tokens(follower *f)
{
    msgl_wire_tokens t;
    if (!msgl__wire_get(&f->w, &t, sizeof t) || !is_row(f, t.table_idx) || t.n < 0 ||
        t.n > f->e->token_stride || t.pos < 0 ||
        !msgl__wire_get(&f->w, f->ids, (size_t)t.n * sizeof *f->ids)) {
        return MSGL_EINTERNAL;
    }
    const int code = take_pages(f, t.table_idx, t.pos, t.pos + t.n);
    if (code != 0) return code;
    return f->runner->write_tokens(f->e, t.table_idx, t.pos, f->ids, t.n);
}

static int follow_extra(follower *f)
{
    msgl_wire_extra x;
    msgl_err err;
    if (!msgl__wire_get(&f->w, &x, sizeof x) || !is_row(f, x.table_idx)) return MSGL_EINTERNAL;
    const msgl_bias *bias = msgl__wire_take(&f->w, (size_t)x.num_bias * sizeof *bias);
    const int32_t *breakers = msgl__wire_take(&f->w, (size_t)x.num_breakers * sizeof *breakers);
    const int32_t *listed = msgl__wire_take(&f->w, (size_t)x.num_listed * sizeof *listed);
    const float *embeds =
        msgl__wire_take(&f->w, (size_t)x.num_embeds * (size_t)x.embed_dim * sizeof *embeds);
    if (bias == NULL || breakers == NULL || listed == NULL || embeds == NULL) return MSGL_EINTERNAL;
    const msgl_req_extra_parts parts = {.bias = bias,
                                        .num_bias = x.num_bias,
                                        .breakers = breakers,
                                        .num_breakers = x.num_breakers,
                                        .listed = listed,
                                        .num_listed = x.num_listed,
                                        .hidden = x.hidden != 0,
                                        .embeds = embeds,
                                        .num_embeds = x.num_embeds,
                                        .embed_dim = x.embed_dim,
                                        .pair_from = x.pair_from};
    msgl_req_extra **mine = &f->extras[x.table_idx];
    msgl__req_extra_unref(*mine);
    *mine = NULL;
    const int code = msgl__req_extra_create_with(&parts, f->e->info.vocab_size, mine, &err);
    if (code != 0 || *mine == NULL) return code;
    return f->runner->write_extra(f->e, x.table_idx, *mine);
}

static int wait_for(follower *f, int32_t step_slot)
{
    msgl_step_result unused;
    if (!f->in_flight[step_slot]) return 0;
    f->in_flight[step_slot] = false;
    return f->runner->wait(f->e, step_slot, &unused);
}

static int follow_submit(follower *f)
{
    msgl_batch b;
    int32_t whole;
    if (!msgl__wire_get(&f->w, &whole, sizeof whole) || !msgl__wire_get(&f->w, &b, sizeof b) ||
        b.size < 1 || b.size > f->e->max_running || b.step_slot < 0 ||
        b.step_slot >= MSGL_ENGINE_STEP_SLOTS ||
        !msgl__wire_get(&f->w, f->reqs, (size_t)b.size * sizeof *f->reqs)) {
        return MSGL_EINTERNAL;
    }
    b.reqs = f->reqs;
    for (int32_t i = 0; i < b.size; i++) {
        msgl_batch_req *q = &f->reqs[i];
        if (!is_row(f, q->table_idx) || q->num_saves < 0) return MSGL_EINTERNAL;
        // Aligned: everything in the message is a multiple of 4 bytes, and a save two of them.
        q->saves = msgl__wire_take(&f->w, (size_t)q->num_saves * sizeof *q->saves);
        if (q->saves == NULL) return MSGL_EINTERNAL;
        if (q->extra != NULL) q->extra = f->extras[q->table_idx];
        const int code = take_pages(f, q->table_idx, q->cached_len, q->device_len);
        if (code != 0) return code;
        if (q->num_drafts < 0 || q->num_drafts > MSGL_MAX_DRAFTS) return MSGL_EINTERNAL;
        q->drafts = msgl__wire_take(&f->w, (size_t)q->num_drafts * sizeof *q->drafts);
        if (q->drafts == NULL) return MSGL_EINTERNAL;
        if (q->mask == NULL) continue;
        if (b.mask_words != msgl__mask_words(f->e)) return MSGL_EINTERNAL;
        const size_t words = (size_t)b.mask_words * (1 + (size_t)q->num_drafts);
        q->mask = msgl__wire_take(&f->w, words * sizeof *q->mask);
        if (q->mask == NULL) return MSGL_EINTERNAL;
    }
    const int code = wait_for(f, b.step_slot);
    if (code != 0) return code;
    f->in_flight[b.step_slot] = true;
    f->e->whole_rows = whole != 0;
    return f->runner->submit(f->e, &b);
}

// The tensors of an admin call, which follow it in pieces. NULL: they do not.
static void *follow_data(follower *f, uint64_t total)
{
    char *all = msgl__pages_alloc(total);
    for (uint64_t at = 0; at < total && all != NULL;) {
        const int kind = msgl__wire_receive(&f->w, f->place->fd, f->place->group);
        const size_t n = f->w.used - f->w.at;
        if (kind != MSGL_WIRE_DATA || n == 0 || n > total - at ||
            !msgl__wire_get(&f->w, all + at, n)) {
            msgl__pages_free(all, total);
            return NULL;
        }
        at += n;
    }
    return all;
}

// Until this rank's steps have ended, as rank 0's have.
static int settle(follower *f)
{
    int code = 0;
    for (int32_t i = 0; i < MSGL_ENGINE_STEP_SLOTS && code == 0; i++) code = wait_for(f, i);
    return code;
}

// What it comes to all ranks have agreed on; only the loss of one of them ends this one.
static int follow_admin(follower *f)
{
    msgl_wire_admin h;
    msgl_err err = {0};
    char path[MSGL_MAX_ADMIN_PATH] = "", group[MSGL_MAX_GROUP_NAME + 1] = "";
    char host[MSGL_MAX_GROUP_HOST + 1] = "";
    if (!msgl__wire_get(&f->w, &h, sizeof h) || h.path < 0 || h.path >= MSGL_MAX_ADMIN_PATH ||
        h.group < 0 || h.group > MSGL_MAX_GROUP_NAME || h.host < 0 ||
        h.host > MSGL_MAX_GROUP_HOST || !msgl__wire_get(&f->w, path, (size_t)h.path) ||
        !msgl__wire_get(&f->w, group, (size_t)h.group) ||
        !msgl__wire_get(&f->w, host, (size_t)h.host)) {
        return MSGL_EINTERNAL;
    }
    int code = settle(f);
    if (code != 0) return code;
    void *data = h.total > 0 ? follow_data(f, h.total) : NULL;
    if (h.total > 0 && data == NULL) return MSGL_ENOMEM;
    const msgl_admin a = {.kind = (msgl_admin_kind)h.kind,
                          .tags = h.tags,
                          .discard = h.discard != 0,
                          .path = path,
                          .group = group,
                          .host = host,
                          .port = h.port,
                          .rank = h.rank,
                          .size = h.size,
                          .bytes = data,
                          .total = h.total};
    code = msgl__engine_admin(f->e, &a, &err);
    if (data != NULL) msgl__pages_free(data, h.total);
    return code == MSGL_EPEER ? code : 0;
}

static int follow_adapter(follower *f)
{
    int32_t slot;
    msgl_err err;
    if (!msgl__wire_get(&f->w, &slot, sizeof slot)) return MSGL_EINTERNAL;
    const size_t bytes = f->w.used - f->w.at;
    const char *path = bytes > 0 ? msgl__wire_take(&f->w, bytes) : NULL;
    if (path != NULL && path[bytes - 1] != '\0') return MSGL_EINTERNAL;
    const int code = path == NULL ? settle(f) : 0;
    return code == 0 ? msgl__engine_load_adapter(f->e, slot, path, &err) : code;
}

static int follow_loaded(follower *f)
{
    msgl_err err;
    uint64_t digest;
    int code = settle(f);
    if (code == 0) code = msgl__engine_adapter_loaded(f->e, -1, &digest, &err);
    return code == MSGL_EPEER ? code : 0; // of a folder that cannot be used rank 0 hears, too
}

static int follow(follower *f)
{
    int code = 0;
    while (code == 0) {
        const int kind = msgl__wire_receive(&f->w, f->place->fd, f->place->group);
        if (kind == MSGL_WIRE_END) return 0;
        if (kind == MSGL_WIRE_TOKENS) {
            code = follow_tokens(f);
        } else if (kind == MSGL_WIRE_EXTRA) {
            code = follow_extra(f);
        } else if (kind == MSGL_WIRE_SUBMIT) {
            code = follow_submit(f);
        } else if (kind == MSGL_WIRE_ADMIN) {
            code = follow_admin(f);
        } else if (kind == MSGL_WIRE_ADAPTER) {
            code = follow_adapter(f);
        } else if (kind == MSGL_WIRE_LOADED) {
            code = follow_loaded(f);
        } else {
            code = kind < 0 ? kind : MSGL_EINTERNAL;
        }
    }
    return code;
}

static int prepare(follower *f, const msgl_options *o, msgl_err *err)
{
    msgl_options mine = *o;
    mine.log = NULL;
    mine.progress = NULL;
    const int code = msgl__engine_create_rank(&mine, f->place, &f->e, err);
    if (code != 0) return code;
    const size_t rows = (size_t)f->e->max_running;
    f->runner = &f->e->runner;
    f->ids = msgl__calloc((size_t)f->e->token_stride, sizeof *f->ids);
    f->reqs = msgl__calloc(rows, sizeof *f->reqs);
    f->extras = msgl__calloc(rows, sizeof *f->extras);
    if (f->ids != NULL && f->reqs != NULL && f->extras != NULL) return 0;
    return msgl__err_set(err, MSGL_ENOMEM, "out of memory");
}

// Rank 0 is gone; whether on purpose, the watch says at its next look.
static void await_blame(const msgl_group *group)
{
    for (int i = 0; i < 25 && msgl__group_blamed(group) < 0; i++) usleep(10000);
}

static void free_all(follower *f)
{
    for (int32_t i = 0; f->extras != NULL && i < f->e->max_running; i++) {
        msgl__req_extra_unref(f->extras[i]);
    }
    msgl__free(f->extras);
    msgl__free(f->reqs);
    msgl__free(f->ids);
    msgl__wire_free(&f->w);
    msgl__engine_destroy(f->e);
}

int msgl__ranks_follow(const msgl_options *o, msgl_rank_place *place)
{
    follower f = {.place = place};
    msgl_err err = {0};
    int code = prepare(&f, o, &err);
    // A GPU's driver might have needed them before.
    if (place->forked) (void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    err.code = code;
    msgl__wire_begin(&f.w, MSGL_WIRE_READY);
    msgl__wire_put(&f.w, &err, sizeof err);
    if (msgl__wire_send(&f.w, place->fd, place->group) == 0 && code == 0) {
        place->ready = true;
        code = follow(&f);
        if (code != 0 && code != MSGL_EPEER) msgl__group_blame(place->group, place->rank);
    }
    // Steps in flight end, or fail with the group.
    for (int32_t i = 0; f.e != NULL && i < MSGL_ENGINE_STEP_SLOTS; i++) (void)wait_for(&f, i);
    if (code == MSGL_EPEER && place->linked) await_blame(place->group);
    free_all(&f);
    return code;
}
