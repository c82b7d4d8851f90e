// SPDX-License-Identifier: Apache-2.0
//
// What the files of batches.h share: the thread's state, the answers to calls, and the batches that
// wait to be run. All but the lock's fields belong to the thread.
#ifndef MSGL_APPS_BATCHES_BATCHES_IMPL_H
#define MSGL_APPS_BATCHES_BATCHES_IMPL_H

#include <jansson.h>
#include <pthread.h>

#include "apps/batches/batch_run.h"
#include "apps/batches/batches.h"

enum { MSGL_BATCH_SWEEP_MS = 600 * 1000 }; // between two looks for what is too old

struct msgl_batches {
    msgl_batch_store store;
    const msgl_log *log;
    int wake_fd; // an eventfd of the event loop, written to when it has something to take
    int own_fd;  // an eventfd of the thread, written to when it has something to do
    pthread_t thread;
    pthread_mutex_t lock;
    // Under the lock: calls to be answered and answered calls, each list with its last link; ends
    // of connections for the event loop; how many requests may be under way.
    msgl_batch_call *todo, **todo_last, *done, **done_last;
    int fds[MSGL_BATCH_SLOTS], num_fds;
    int room;
    bool stopping;
    // The thread's: the batch that runs, if one does.
    msgl_batch_run run;
    bool running;
    // Batches that are to run, the oldest first, the running one among them: objects with `id` and
    // the ids of their files, `input`, `_output` and `_errors`.
    json_t *waiting;
    msgl_store_page found; // batches of earlier servers, of which the first `len` are not read yet
    bool all_read;
    bool any_unread;   // one of them could not be read, and which files it needs is not known
    uint64_t sweep_at; // ns, of msgl__now_ns()
    bool logged_full;  // the log has said that there is no room for answers
};

// batch_reply.c: answers to calls.

void msgl__batch_reply_error(msgl_batch_call *c, int status, const char *param, const char *text);
// Answers with a JSON object, whose reference it takes; NULL: there was no memory for it.
void msgl__batch_reply(msgl_batch_call *c, json_t *o);
// 404: there is no object with the id in c->rest.
void msgl__batch_reply_no_such(msgl_batch_call *c);
// Answers with a page of the objects whose ids begin with the prefix.
void msgl__batch_reply_list(msgl_batches *b, msgl_batch_call *c, const char *prefix);
// Claims so many bytes for the answer; false: there are not so many, and the call is answered.
bool msgl__batch_claim_answer(msgl_batch_call *c, size_t bytes);
// The same object without the members that clients do not see.
json_t *msgl__batch_shown(json_t *o);

// batch_files.c, batch_objects.c: a call of /v1/files, of /v1/batches.
void msgl__batches_call_files(msgl_batches *b, msgl_batch_call *c);
void msgl__batches_call_batches(msgl_batches *b, msgl_batch_call *c);

// batch_queue.c: the batches that wait, and what of the folder is no longer needed.

// Whether a batch's object says that it has ended.
bool msgl__batch_is_final(const json_t *batch);
// Queues a batch behind the older ones. 0, or MSGL_ENOMEM.
int msgl__batches_add_waiting(msgl_batches *b, const json_t *batch);
// Takes a batch out of the queue: it is no longer to be run.
void msgl__batches_forget(msgl_batches *b, const char *id);
// Whether a batch that has not ended reads or writes this file.
bool msgl__batches_use_file(const msgl_batches *b, const char *id);
// Reads at most so many of the batches that earlier servers have left, the oldest first, and queues
// those that have not ended: a start does not wait until all of them are read.
void msgl__batches_read_found(msgl_batches *b, size_t most);
// Removes what is too old, some minutes after it did so last.
void msgl__batches_sweep(msgl_batches *b);

// batches.c: gives up the requests that are under way; another batch may run then.
void msgl__batches_stop_running(msgl_batches *b);

#endif
