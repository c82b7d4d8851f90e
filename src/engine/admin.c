// SPDX-License-Identifier: Apache-2.0
//
// Weights that change and memory that is given back while the engine lives (docs/decisions/065).
// Nothing here runs beside a step. New weights are loaded into a second region where one fits, and
// their bytes then copied to the first, so that its addresses stay: layers, draft heads and
// captured graphs have them. Every rank does the same, and none takes the new weights before all
// have loaded theirs.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "engine/internal.h"
#include "models/replace.h"
#include "utils/hash.h"
#include "utils/heartbeat.h"
#include "utils/thread.h"

enum {
    SPARE_BYTES = 64 << 20,   // that a second copy of the weights leaves free
    BACKUP_BYTES = 256 << 20, // of memory that the system takes and gives well within a watch
};

static const char *unusable(const msgl_engine_weights *w)
{
    if ((w->released & MSGL_MEMORY_WEIGHTS) != 0) {
        return "The weights' memory is given back; /resume_memory_occupation or /wake_up takes it "
               "again.";
    }
    if ((w->released & MSGL_MEMORY_CACHE) != 0) {
        return "The cache's memory is given back; /resume_memory_occupation or /wake_up takes it "
               "again.";
    }
    return w->unusable[0] == '\0' ? NULL : w->unusable;
}

void msgl__engine_admin_state(void *engine, msgl_admin_state *out)
{
    const msgl_engine_weights *w = &((const msgl_engine *)engine)->weights;
    out->unusable = unusable(w);
    out->released = w->released;
}

int msgl__engine_weights_opened(msgl_engine *e, const msgl_options *o, void *region, size_t bytes,
                                msgl_err *err)
{
    msgl_engine_weights *w = &e->weights;
    w->region = region;
    w->bytes = bytes;
    w->dummy = o->dummy_weight;
    w->dir = msgl__strdup(o->model_dir);
    e->nccl_path = msgl__strdup(o->nccl_path == NULL ? "auto" : o->nccl_path);
    if (w->dir == NULL || e->nccl_path == NULL)
        return msgl__err_set(err, MSGL_ENOMEM, "engine: out of memory");
    msgl_model_digest config;
    const int code = msgl__model_digest(w->dir, false, &config, err);
    w->digest.config = config.config;
    return code;
}

// Piece i of the backup has BACKUP_BYTES, the last one what is left.
static size_t backup_len(const msgl_engine_weights *w, size_t i)
{
    const size_t left = w->bytes - i * BACKUP_BYTES;
    return left < BACKUP_BYTES ? left : BACKUP_BYTES;
}

static void drop_backup(msgl_engine *e)
{
    msgl_engine_weights *w = &e->weights;
    for (size_t i = 0; i < w->num_backup; i++) {
        e->device->ops->host_free(e->device, w->backup[i], backup_len(w, i));
    }
    msgl__free(w->backup);
    w->backup = NULL;
    w->num_backup = 0;
}

static void *run_drop(void *engine)
{
    drop_backup(engine);
    return NULL;
}

// On a thread of its own: the system takes seconds for 25 GB of pinned memory, and the weights are
// in their place already.
static void drop_backup_later(msgl_engine *e)
{
    msgl_engine_weights *w = &e->weights;
    w->dropping = msgl__thread_start(&w->dropper, run_drop, e) == 0;
    if (!w->dropping) drop_backup(e);
}

static void wait_for_drop(msgl_engine_weights *w)
{
    if (w->dropping) (void)pthread_join(w->dropper, NULL);
    w->dropping = false;
}

void msgl__engine_weights_free(msgl_engine *e)
{
    msgl_engine_weights *w = &e->weights;
    wait_for_drop(w);
    msgl__weight_groups_destroy(e->groups_of_trainers);
    msgl__free(e->nccl_path);
    msgl__free(w->dir);
    msgl__free(w->wanted);
    drop_backup(e);
    *w = (msgl_engine_weights){0};
}

// --- what ranks tell each other ---

int msgl__engine_agree(const msgl_engine *e, msgl_verdict *own, msgl_err *err)
{
    if (e->place.size > 1) {
        msgl_verdict all[MSGL_GROUP_MAX_SIZE];
        const int code = msgl__ranks_exchange(&e->place, own, sizeof *own, all, err);
        if (code != 0) return code;
        for (int32_t i = 0; i < e->place.size; i++) {
            const bool same = memcmp(&all[i].files, &all[0].files, sizeof all[0].files) == 0;
            own->fits = own->fits != 0 && all[i].fits != 0;
            if (own->err.code == 0 && all[i].err.code != 0) {
                own->err.code = msgl__err_set(&own->err, all[i].err.code, "rank %d: %.220s", (int)i,
                                              all[i].err.text);
            } else if (own->err.code == 0 && !same) {
                own->err.code = msgl__err_set(&own->err, MSGL_EINVAL,
                                              "rank %d: found other weights than rank 0", (int)i);
            }
        }
    }
    if (own->err.code != 0) *err = own->err;
    return own->err.code;
}

// --- new weights ---

static bool second_fits(const msgl_engine *e)
{
    const msgl_device *d = e->device;
    const size_t free_bytes = d->on_host ? msgl__memory_available() : d->ops->available(e->device);
    const size_t here = d->on_host && e->place.local > 1 ? (size_t)e->place.local : 1;
    return free_bytes / here > e->weights.bytes + SPARE_BYTES;
}

static void on_load(void *ctx, uint64_t done, uint64_t total)
{
    (void)done, (void)total;
    msgl__beat(((msgl_engine *)ctx)->heartbeat, MSGL_BEAT_SCHEDULER);
}

// What has come of them so far counts no more.
static void forget_wanted(msgl_engine_weights *w)
{
    msgl__free(w->wanted);
    w->wanted = NULL;
    w->num_wanted = 0;
}

static void break_weights(msgl_engine *e, const char *why)
{
    forget_wanted(&e->weights);
    (void)snprintf(e->weights.unusable, sizeof e->weights.unusable,
                   "The weights are not whole since an update failed (%.150s); one that succeeds "
                   "makes them so.",
                   why);
}

static int device_failed(const msgl_engine *e, int code, msgl_err *err)
{
    return msgl__err_set(err, code, "%s", e->device->fault.text);
}

// Writes the open model next to `region`; for a device with memory of its own with as many threads
// as at the start.
static int load(msgl_engine *e, msgl_model *next, void *region, msgl_err *err)
{
    enum { MOST = 16 };
    msgl_exec x = e->exec;
    const int here = e->place.local > 0 ? e->place.local : 1, cores = msgl__physical_cores() / here;
    msgl_pool *loaders = NULL;
    int code = 0;
    if (!e->device->on_host) {
        code = msgl__pool_create(cores < 1 ? 1 : cores < MOST ? cores : MOST, &loaders, err);
    }
    if (code != 0) return code;
    if (loaders != NULL) x.pool = loaders;
    code = msgl__model_load(next, region, &x, on_load, e, err);
    if (loaders != NULL) msgl__pool_destroy(loaders);
    const int failed = x.status != 0 ? x.status : e->device->fault.code;
    return code == 0 && failed != 0 ? device_failed(e, failed, err) : code;
}

typedef void (*copy_fn)(msgl_device *d, void *to, const void *from, size_t bytes);

// A piece of the weights on its way.
typedef struct piece {
    msgl_device *d;
    copy_fn copy;
    void *to;
    const void *from;
} piece;

static void copy_piece(void *ctx, int64_t bytes)
{
    const piece *p = ctx;
    p->copy(p->d, p->to, p->from, (size_t)bytes);
    p->d->ops->record(p->d, 0);
}

// Waits until these bytes have been copied, few enough that the watch does not wait for them.
static int move_piece(msgl_engine *e, copy_fn copy, void *to, const void *from, size_t bytes,
                      msgl_err *err)
{
    piece p = {e->device, copy, to, from};
    e->device->ops->arm(e->device, 0);
    e->device->ops->submit(e->device, copy_piece, &p, (int64_t)bytes);
    const int code = e->device->ops->wait(e->device, 0);
    msgl__beat(e->heartbeat, MSGL_BEAT_SCHEDULER);
    return code == 0 ? 0 : device_failed(e, code, err);
}

// Waits until the second region has been copied to the first.
static int take_region(msgl_engine *e, const void *second, msgl_err *err)
{
    const size_t step = (size_t)1 << 30;
    int code = 0;
    for (size_t at = 0; at < e->weights.bytes && code == 0; at += step) {
        const size_t left = e->weights.bytes - at;
        code = move_piece(e, e->device->ops->copy, (char *)e->weights.region + at,
                          (const char *)second + at, left < step ? left : step, err);
    }
    return code;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

// These tensors have come, which need be in no order; whether no more are wanted now.
static bool note_wanted(msgl_engine_weights *w, uint64_t *come, size_t num)
{
    size_t left = 0;
    if (num > 0) qsort(come, num, sizeof *come, by_value);
    for (size_t i = 0; i < w->num_wanted; i++) {
        const bool found =
            num > 0 && bsearch(&w->wanted[i], come, num, sizeof *come, by_value) != NULL;
        if (!found) w->wanted[left++] = w->wanted[i];
    }
    w->num_wanted = left;
    return left == 0;
}

// Hashes of the names that a plan wants, in new memory.
static uint64_t *hash_wanted(const msgl_weight_plan *p)
{
    uint64_t *all = msgl__reallocarray(NULL, p->num_wanted + 1, sizeof *all);
    for (size_t i = 0; i < p->num_wanted && all != NULL; i++) {
        const char *name = p->wanted[i].name;
        all[i] = msgl__hash(MSGL_HASH_START, name, strlen(name));
    }
    return all;
}

// The weights have other values where graphs have them by value.
static int take_host_side(msgl_engine *e, const msgl_model *next, msgl_err *err)
{
    if (!msgl__replace_take(next, &e->model) || e->num_graphs + e->num_verify_graphs == 0) return 0;
    msgl__graphs_destroy(e);
    e->num_graphs = e->num_verify_graphs = 0;
    return msgl__graphs_capture(e, e->graph_max_bs, err);
}

// next has been opened with code: loads it, and makes it the weights on all ranks or on none. A
// part goes to its place at once: all that can be wrong with it was found when it was opened.
static int replace(msgl_engine *e, msgl_model *next, int code, const msgl_model_digest *files,
                   bool part, msgl_err *err)
{
    const msgl_device_ops *ops = e->device->ops;
    msgl_verdict v = {.fits =
                          !part && code == 0 && e->weights.unusable[0] == '\0' && second_fits(e)};
    if (files != NULL) v.files = *files;
    if (code != 0) v.err = *err;
    code = msgl__engine_agree(e, &v, err);
    if (code != 0) return code;
    void *second = v.fits != 0 ? ops->alloc(e->device, e->weights.bytes) : NULL;
    v = (msgl_verdict){.fits = second != NULL};
    code = msgl__engine_agree(e, &v, err);
    if (code == 0) {
        const bool beside = v.fits != 0;
        v = (msgl_verdict){0};
        v.err.code = load(e, next, beside ? second : e->weights.region, &v.err);
        code = msgl__engine_agree(e, &v, err);
        if (code == 0 && beside) code = take_region(e, second, err);
        if (code != 0 && !beside) break_weights(e, err->text);
    }
    if (second != NULL) ops->free(e->device, second, e->weights.bytes);
    return code == 0 ? take_host_side(e, next, err) : code;
}

// The weights are whole, and those of this checkpoint.
static void are_of(msgl_engine *e, char *dir, bool dummy, const msgl_model_digest *files)
{
    msgl_engine_weights *w = &e->weights;
    if (dir != w->dir) msgl__free(w->dir);
    w->dir = dir;
    w->dummy = dummy;
    w->digest = *files;
    w->changed = false;
    w->unusable[0] = '\0';
    forget_wanted(w);
}

// Loads the checkpoint `dir`, which becomes the engine's when it succeeds. expected: it has to be
// as it was then; or NULL.
static int from_disk(msgl_engine *e, const char *dir, bool dummy, const msgl_model_digest *expected,
                     msgl_err *err)
{
    msgl_model_digest files = {0};
    msgl_model *next = msgl__calloc(1, sizeof *next); // large
    char *own = msgl__strdup(dir);
    int code = next != NULL && own != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    if (code == 0) code = msgl__replace_open(&e->model, dir, dummy, next, err);
    if (code == 0) code = msgl__model_digest(dir, false, &files, err);
    if (code == 0 && !dummy) files.weights = msgl__checkpoint_digest(next->checkpoint);
    if (code == 0 && expected != NULL && memcmp(&files, expected, sizeof files) != 0) {
        code = msgl__err_set(err, MSGL_EFORMAT, "%s is no longer what it was when it was loaded",
                             msgl__path_shown(dir));
    }
    code = replace(e, next, code, &files, false, err);
    if (next != NULL) msgl__model_free(next);
    if (code == 0) {
        are_of(e, own, dummy, &files);
    } else {
        msgl__free(own);
    }
    msgl__free(next);
    return code;
}

// After a discard: what of all the plan's tensors is to come.
static int want_all(msgl_engine_weights *w, const msgl_weight_plan *p, msgl_err *err)
{
    if (w->unusable[0] == '\0' || w->wanted != NULL) return 0;
    w->wanted = hash_wanted(p);
    w->num_wanted = p->num_wanted;
    return w->wanted != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "out of memory");
}

static int from_tensors(msgl_engine *e, const void *file, size_t size, msgl_err *err)
{
    msgl_engine_weights *w = &e->weights;
    uint64_t *come = NULL;
    size_t num = 0;
    msgl_model *next = msgl__calloc(1, sizeof *next);
    int code = next != NULL ? 0 : msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    if (code == 0) code = msgl__replace_open_tensors(&e->model, file, size, next, err);
    if (code == 0) code = want_all(w, &next->plan, err);
    if (code == 0) code = msgl__weights_check_some(&next->plan, next->checkpoint, err);
    if (code == 0) {
        come = hash_wanted(&next->plan);
        num = next->plan.num_wanted;
        if (come == NULL) code = msgl__err_set(err, MSGL_ENOMEM, "out of memory");
    }
    code = replace(e, next, code, NULL, true, err);
    if (next != NULL) msgl__model_free(next);
    msgl__free(next);
    if (code == 0) w->changed = true;
    if (code == 0 && w->unusable[0] != '\0' && note_wanted(w, come, num)) {
        w->unusable[0] = '\0';
        forget_wanted(w);
    }
    msgl__free(come);
    return code;
}

// --- weights of a group ---

static int join_group(msgl_engine *e, const msgl_admin *a, msgl_err *err)
{
    msgl_verdict v = {0};
    const msgl_group_ops *ops = e->plugin->groups;
    if (ops == NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED,
                             "%s joins no groups of NCCL; /update_weights_from_tensor and "
                             "/update_weights_from_disk take the same weights",
                             e->plugin->name);
    }
    if (e->groups_of_trainers == NULL) {
        e->groups_of_trainers = msgl__weight_groups_create(ops, e->ordinal, e->nccl_path);
    }
    v.err.code = e->groups_of_trainers == NULL
                     ? msgl__err_set(&v.err, MSGL_ENOMEM, "out of memory")
                     : msgl__weight_groups_join(e->groups_of_trainers, a, e->place.rank,
                                                e->heartbeat, &v.err);
    const int own = v.err.code, code = msgl__engine_agree(e, &v, err);
    if (code != 0 && own == 0) { // another rank has not
        (void)msgl__weight_groups_leave(e->groups_of_trainers, a->group, &v.err);
    }
    return code;
}

static int leave_group(msgl_engine *e, const msgl_admin *a, msgl_err *err)
{
    if (e->groups_of_trainers != NULL) {
        return msgl__weight_groups_leave(e->groups_of_trainers, a->group, err);
    }
    return msgl__err_set(err, MSGL_EINVAL, "no group is joined");
}

// The parts of a broadcast and the header behind them; *bytes: of the tensors. MSGL_EFORMAT.
static int read_parts(const msgl_engine *e, const msgl_admin *a, uint64_t *num, size_t *bytes,
                      msgl_err *err)
{
    const msgl_weight_part *parts = (const void *)((const char *)a->bytes + sizeof *num);
    bool ok = a->total >= sizeof *num;
    if (ok) memcpy(num, a->bytes, sizeof *num);
    ok = ok && *num <= (a->total - sizeof *num) / sizeof *parts;
    *bytes = 0;
    for (uint64_t i = 0; ok && i < *num; i++) {
        size_t n;
        ok =
            parts[i].dtype < MSGL_E4M3 &&
            msgl__size_mul(parts[i].count, msgl__dtype_size((msgl_dtype)parts[i].dtype), &n) == 0 &&
            msgl__size_add(*bytes, n, bytes) == 0;
    }
    if (!ok) return msgl__err_set(err, MSGL_EFORMAT, "what is to be received makes no sense");
    // Of a checkpoint in f32, all of whose ranks' parts come.
    const size_t most = 8 * e->weights.bytes * (size_t)(e->place.size > 0 ? e->place.size : 1);
    if (*bytes <= most) return 0;
    return msgl__err_set(err, MSGL_EINVAL, "%zu bytes of tensors; allowed: %zu at a time", *bytes,
                         most);
}

// Receives them behind the header, as the file that tensors come in elsewhere.
static int from_group(msgl_engine *e, const msgl_admin *a, msgl_err *err)
{
    uint64_t num = 0;
    size_t bytes = 0;
    msgl_verdict v = {0};
    char *file = NULL;
    size_t header = 0;
    v.err.code = e->groups_of_trainers == NULL
                     ? msgl__err_set(&v.err, MSGL_EINVAL, "no group is joined")
                     : read_parts(e, a, &num, &bytes, &v.err);
    if (v.err.code == 0) {
        const char *behind = (const char *)a->bytes + sizeof num + num * sizeof(msgl_weight_part);
        header = a->total - (size_t)(behind - (const char *)a->bytes);
        file = msgl__pages_alloc(header + bytes);
        if (file != NULL) memcpy(file, behind, header);
        v.err.code = file == NULL
                         ? msgl__err_set(&v.err, MSGL_ENOMEM,
                                         "there is no memory for %zu bytes of tensors", bytes)
                         : 0;
    }
    int code = msgl__engine_agree(e, &v, err);
    if (code == 0) {
        v = (msgl_verdict){0};
        const msgl_weight_part *parts = (const void *)((const char *)a->bytes + sizeof num);
        v.err.code = msgl__weight_groups_receive(e->groups_of_trainers, a->group, parts, num,
                                                 file + header, e->heartbeat, &v.err);
        code = msgl__engine_agree(e, &v, err);
    }
    if (code == 0) code = from_tensors(e, file, header + bytes, err);
    if (file != NULL) msgl__pages_free(file, header + bytes);
    return code;
}

// --- memory ---

// The memory of the cache, this engine's and its draft's: gives it back, or takes it again. False:
// there is none for some of it.
static bool move_cache(msgl_engine *e, bool restore)
{
    const msgl_device_ops *ops = e->device->ops;
    bool all = true;
    for (int32_t g = 0; g < e->specs.count; g++) {
        const msgl_kv_pool *p = &e->groups[g].pool;
        if (!restore) {
            ops->discard(e->device, p->base, p->bytes);
        } else if (ops->restore != NULL) {
            all = ops->restore(e->device, p->base, p->bytes) && all;
        }
    }
    const int32_t drafts = e->draft == NULL ? 0 : msgl__draft_model_engines(e->draft);
    for (int32_t i = 0; i < drafts; i++) {
        all = move_cache(msgl__draft_model_engine(e->draft, i), restore) && all;
    }
    return all;
}

// Weights that are no checkpoint's are kept: of a device with memory of its own in the host's, and
// on the CPU where they are, as that is the host's. Whether these stay.
static bool stay(const msgl_engine *e)
{
    return e->device->on_host && e->weights.changed && e->weights.unusable[0] == '\0';
}

static int back_up(msgl_engine *e, msgl_err *err)
{
    msgl_engine_weights *w = &e->weights;
    const msgl_device_ops *ops = e->device->ops;
    const size_t num = (w->bytes + BACKUP_BYTES - 1) / BACKUP_BYTES;
    if (e->device->on_host || w->unusable[0] != '\0') return 0;
    w->backup = msgl__calloc(num, sizeof *w->backup);
    int code = 0;
    for (size_t i = 0; i < num && w->backup != NULL && code == 0; i++) {
        const size_t len = backup_len(w, i);
        w->backup[i] = ops->host_alloc(e->device, len);
        if (w->backup[i] == NULL) break;
        w->num_backup++;
        code = move_piece(e, ops->copy_out, w->backup[i], (char *)w->region + i * BACKUP_BYTES, len,
                          err);
    }
    if (code != 0 || w->num_backup == num) return code;
    return msgl__err_set(err, MSGL_ENOMEM, "there is no host memory for %zu bytes of weights",
                         w->bytes);
}

static int take_backup(msgl_engine *e, msgl_err *err)
{
    msgl_engine_weights *w = &e->weights;
    int code = 0;
    for (size_t i = 0; i < w->num_backup && code == 0; i++) {
        code = move_piece(e, e->device->ops->copy_in, (char *)w->region + i * BACKUP_BYTES,
                          w->backup[i], backup_len(w, i), err);
    }
    return code;
}

static int resume_weights(msgl_engine *e, msgl_err *err)
{
    msgl_engine_weights *w = &e->weights;
    const msgl_device_ops *ops = e->device->ops;
    wait_for_drop(w);
    msgl_verdict v = {0};
    const bool kept = stay(e);
    if (!kept && ops->restore != NULL && !ops->restore(e->device, w->region, w->bytes)) {
        v.err.code = msgl__err_set(&v.err, MSGL_ENOMEM, "there is no memory for the weights");
    } else if (w->backup != NULL) {
        v.err.code = take_backup(e, &v.err);
    }
    int code = msgl__engine_agree(e, &v, err);
    if (code != 0) return code; // with the backup: this rank may have to copy it again
    if (w->backup != NULL) drop_backup_later(e);
    w->released &= ~MSGL_MEMORY_WEIGHTS;
    if (kept || w->unusable[0] != '\0' || !e->device->on_host) return 0;
    // What is there is zero until it is read again.
    break_weights(e, "their file has not been read again");
    const msgl_model_digest was = w->digest;
    code = from_disk(e, w->dir, w->dummy, &was, err);
    if (code != 0) break_weights(e, err->text);
    return code;
}

// No rank's weights go before those of all ranks are safe.
static int release(msgl_engine *e, const msgl_admin *a, msgl_err *err)
{
    msgl_engine_weights *w = &e->weights;
    wait_for_drop(w);
    const int32_t tags = a->tags & ~w->released;
    const bool weights = (tags & MSGL_MEMORY_WEIGHTS) != 0 && (a->discard || !stay(e));
    if (e->device->ops->discard == NULL) {
        return msgl__err_set(err, MSGL_EUNSUPPORTED, "this device cannot give memory back");
    }
    msgl_verdict v = {0};
    if (weights && !a->discard) v.err.code = back_up(e, &v.err);
    const int code = msgl__engine_agree(e, &v, err);
    if (code != 0) {
        if (weights) drop_backup(e);
        return code;
    }
    if (weights) {
        e->device->ops->discard(e->device, w->region, w->bytes);
        forget_wanted(w);
    }
    if (weights && a->discard) {
        (void)snprintf(w->unusable, sizeof w->unusable,
                       "The weights were discarded; an update of all of them is needed.");
    }
    if ((tags & MSGL_MEMORY_CACHE) != 0) (void)move_cache(e, false);
    w->released |= a->tags;
    return 0;
}

static int resume(msgl_engine *e, const msgl_admin *a, msgl_err *err)
{
    msgl_engine_weights *w = &e->weights;
    int code = 0;
    if ((a->tags & w->released & MSGL_MEMORY_WEIGHTS) != 0) code = resume_weights(e, err);
    if ((a->tags & w->released & MSGL_MEMORY_CACHE) != 0) {
        msgl_verdict v = {0};
        if (!move_cache(e, true)) {
            v.err.code = msgl__err_set(&v.err, MSGL_ENOMEM, "there is no memory for the cache");
        }
        msgl_err of_cache = {0};
        const int more = msgl__engine_agree(e, &v, &of_cache);
        if (more == 0) w->released &= ~MSGL_MEMORY_CACHE;
        if (code == 0 && more != 0) {
            code = more;
            *err = of_cache;
        }
    }
    return code;
}

// --- from the scheduler, or from rank 0 ---

int msgl__engine_admin(void *engine, const msgl_admin *a, msgl_err *err)
{
    msgl_engine *e = engine;
    if (msgl__admin_updates(a) && (e->weights.released & MSGL_MEMORY_WEIGHTS) != 0) {
        return msgl__err_set(err, MSGL_EINVAL,
                             "the weights' memory is given back; /resume_memory_occupation or "
                             "/wake_up takes it again");
    }
    if (e->place.others != NULL) {
        const int code = msgl__ranks_admin(e->place.others, a);
        if (code != 0) return msgl__err_set(err, code, "a rank is gone");
    }
    msgl__engine_drain(e);
    switch (a->kind) {
    case MSGL_ADMIN_DISK: return from_disk(e, a->path, false, NULL, err);
    case MSGL_ADMIN_TENSORS: return from_tensors(e, a->bytes, (size_t)a->total, err);
    case MSGL_ADMIN_RELEASE: return release(e, a, err);
    case MSGL_ADMIN_RESUME: return resume(e, a, err);
    case MSGL_ADMIN_JOIN: return join_group(e, a, err);
    case MSGL_ADMIN_LEAVE: return leave_group(e, a, err);
    case MSGL_ADMIN_RECEIVE: return from_group(e, a, err);
    default: return msgl__err_set(err, MSGL_EINTERNAL, "no such call of an engine");
    }
}
