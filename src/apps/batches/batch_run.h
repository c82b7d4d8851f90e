// SPDX-License-Identifier: Apache-2.0
//
// One batch: its input is checked whole, then its requests are sent to the server's own HTTP
// connections, a few at a time, and the answers appended to two files, each line whole or (when the
// process is killed) torn at the end. What those files have is not asked again. One thread at a
// time; nothing here waits.
#ifndef MSGL_APPS_BATCHES_BATCH_RUN_H
#define MSGL_APPS_BATCHES_BATCH_RUN_H

#include <poll.h>

#include "apps/batches/batch_store.h"
#include "utils/strbuf.h"

enum {
    MSGL_BATCH_SLOTS = 16,           // requests at once, at most
    MSGL_BATCH_MAX_REQUESTS = 50000, // of a batch, as OpenAI has it
    MSGL_BATCH_MAX_INPUT = 256 << 20,
};

typedef struct msgl_batch_line msgl_batch_line;

// A request that is under way.
typedef struct msgl_batch_slot {
    int fd; // -1: free
    int line;
    msgl_strbuf out, in; // what is to be sent, what has come
    size_t sent;
} msgl_batch_slot;

typedef struct msgl_batch_run {
    msgl_batch_store *store;
    char id[MSGL_STORE_ID];
    json_t *object; // what the API shows; ours
    char *input;
    size_t input_len;
    msgl_batch_line *lines;
    int num_lines, cap_lines;
    int first; // all before it are done or under way
    int done;  //
    int out_fd, err_fd;
    uint64_t wait_until_ns; // the server is full, or its engine gone: no request before
    bool one_by_one;        // and then one, until it is answered
    msgl_batch_slot slots[MSGL_BATCH_SLOTS];
} msgl_batch_run;

// A descriptor of a new connection to the server, or -1.
typedef int (*msgl_batch_connect)(void *ctx);

// The batch of a stored object, with its input read and checked. 0, or negative: it cannot be run,
// and the object says why ("failed"). Freed with msgl__batch_close either way.
int msgl__batch_open(msgl_batch_run *b, msgl_batch_store *store, const char *id);
void msgl__batch_close(msgl_batch_run *b); // what is under way is given up
// Begins as many requests as may be under way at once.
void msgl__batch_fill(msgl_batch_run *b, int slots, msgl_batch_connect connect, void *ctx);
// What to wait for, into fds (MSGL_BATCH_SLOTS); how many. slot_of: whose each is.
int msgl__batch_poll(msgl_batch_run *b, struct pollfd *fds, int *slot_of);
// Something can be read or written. 0, or negative: an answer cannot be stored, with *err.
int msgl__batch_ready(msgl_batch_run *b, int slot, msgl_err *err);
bool msgl__batch_is_done(const msgl_batch_run *b);
// Ends it: the files of answers become the API's. status: "completed", "cancelled" or "failed".
// Negative, with *err: the end cannot be stored, and the batch goes on where it was, its requests
// that were under way to be sent again.
int msgl__batch_end(msgl_batch_run *b, const char *status, msgl_err *err);

#endif
