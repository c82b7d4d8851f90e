// SPDX-License-Identifier: Apache-2.0
//
// The batches that wait to be run, and what of the folder is removed: data that no object has, and
// objects that are too old.
#include <string.h>
#include <time.h>

#include "apps/batches/batches_impl.h"
#include "core/mem.h"
#include "utils/clock.h"

bool msgl__batch_is_final(const json_t *batch)
{
    static const char *const open[] = {"validating", "in_progress"};
    const char *status = json_string_value(json_object_get(batch, "status"));
    for (size_t i = 0; i < 2 && status != NULL; i++) {
        if (strcmp(status, open[i]) == 0) return false;
    }
    return true;
}

int msgl__batches_add_waiting(msgl_batches *b, const json_t *batch)
{
    const char *id = msgl__store_text(batch, "id");
    size_t at = json_array_size(b->waiting);
    while (at > 0 && strcmp(msgl__store_text(json_array_get(b->waiting, at - 1), "id"), id) > 0)
        at--;
    json_t *o = json_pack(
        "{s:s,s:s,s:s,s:s}", "id", id, "input", msgl__store_text(batch, "input_file_id"), "_output",
        msgl__store_text(batch, "_output"), "_errors", msgl__store_text(batch, "_errors"));
    return json_array_insert_new(b->waiting, at, o) == 0 ? 0 : MSGL_ENOMEM;
}

// Whether a batch that has not ended names this id, under one of the keys.
static bool is_in_use(const msgl_batches *b, const char *id, const char *const *keys, size_t n)
{
    size_t i;
    json_t *waiting;
    json_array_foreach(b->waiting, i, waiting)
    {
        for (size_t k = 0; k < n; k++) {
            if (strcmp(msgl__store_text(waiting, keys[k]), id) == 0) return true;
        }
    }
    return false;
}

static const char *const own_files[] = {"input", "_output", "_errors"};

bool msgl__batches_use_file(const msgl_batches *b, const char *id)
{
    return is_in_use(b, id, own_files, 3);
}

static bool is_waiting(const msgl_batches *b, const char *id)
{
    static const char *const key[] = {"id"};
    return is_in_use(b, id, key, 1);
}

// Removes the data that an upload has left which was cut short, or a batch that was deleted while
// it ran: no object and no waiting batch names them.
static void remove_orphans(msgl_batches *b)
{
    json_t *used = json_object();
    bool bad = used == NULL;
    size_t i;
    json_t *waiting;
    json_array_foreach(b->waiting, i, waiting)
    {
        for (size_t k = 0; k < 3; k++) {
            const char *id = msgl__store_text(waiting, own_files[k]);
            bad |= json_object_set_new(used, id, json_true()) != 0;
        }
    }
    if (!bad) msgl__store_remove_orphans(&b->store, used);
    json_decref(used);
}

void msgl__batches_read_found(msgl_batches *b, size_t most)
{
    for (; most > 0 && b->found.len > 0; most--) {
        const char *id = b->found.ids[--b->found.len];
        json_t *o = msgl__store_get(&b->store, id);
        const bool open =
            o != NULL && strcmp(msgl__store_text(o, "id"), id) == 0 && !msgl__batch_is_final(o);
        b->any_unread |= o == NULL;
        if (open && msgl__batches_add_waiting(b, o) != 0) {
            b->any_unread = true;
            msgl__log(b->log, MSGL_LOG_ERROR, "%s is left to the next start: out of memory", id);
        }
        json_decref(o);
    }
    if (b->all_read || b->found.len > 0) return;
    b->all_read = true;
    msgl__free(b->found.ids);
    b->found = (msgl_store_page){0};
    if (!b->any_unread) remove_orphans(b);
}

void msgl__batches_forget(msgl_batches *b, const char *id)
{
    size_t i;
    json_t *waiting;
    json_array_foreach(b->waiting, i, waiting)
    {
        if (strcmp(msgl__store_text(waiting, "id"), id) != 0) continue;
        json_array_remove(b->waiting, i);
        return;
    }
}

// Removes the objects of a prefix that are too old, but for those that is_kept names.
static void sweep(msgl_batches *b, const char *prefix,
                  bool (*is_kept)(const msgl_batches *, const char *))
{
    msgl_store_page all;
    const int64_t now = (int64_t)time(NULL);
    if (msgl__store_list(&b->store, prefix, NULL, SIZE_MAX, &all) != 0) return;
    for (size_t i = all.len; i-- > 0;) {
        const char *id = all.ids[i];
        if (now - msgl__store_made_at(id) < b->store.limits.max_age_s) break;
        if (!is_kept(b, id)) msgl__store_remove(&b->store, id);
    }
    msgl__free(all.ids);
}

void msgl__batches_sweep(msgl_batches *b)
{
    const uint64_t now = msgl__now_ns();
    if (!b->all_read || now < b->sweep_at) return;
    b->sweep_at = now + (uint64_t)MSGL_BATCH_SWEEP_MS * 1000000u;
    sweep(b, MSGL_STORE_FILE, msgl__batches_use_file);
    sweep(b, MSGL_STORE_BATCH, is_waiting);
}
