// SPDX-License-Identifier: Apache-2.0
//
// A batch that is run. All of its input is checked first; then its requests are sent over HTTP
// connections of this server, a few at a time, and their answers are appended to two files, a line
// each. A request whose answer is there as a whole line is not sent again; the last line, which a
// killed process may have left without its end, is cut off. One thread at a time uses a run, and no
// function here waits.
#ifndef MSGL_APPS_BATCHES_BATCH_RUN_H
#define MSGL_APPS_BATCHES_BATCH_RUN_H

#include <poll.h>

#include "apps/batches/batch_store.h"
#include "utils/strbuf.h"

enum {
    MSGL_BATCH_SLOTS = 16,            // requests at once, at most
    MSGL_BATCH_MAX_REQUESTS = 50000,  // of a batch, as OpenAI has it
    MSGL_BATCH_MAX_INPUT = 256 << 20, // bytes of its input
};

typedef struct msgl_batch_line msgl_batch_line;

// A request that was sent, or is being sent, and has no whole answer yet.
typedef struct msgl_batch_slot {
    int fd;          // its connection; -1: the slot is free
    int line;        // the request, as an index of the lines
    msgl_strbuf out; // all of the request, of which `sent` bytes are sent
    msgl_strbuf in;  // the answer so far
    size_t sent;
} msgl_batch_slot;

typedef struct msgl_batch_run {
    msgl_batch_store *store;
    char id[MSGL_STORE_ID];
    json_t *object; // the batch as the API shows it; owned
    char *input;
    size_t input_len;
    msgl_batch_line *lines; // the requests, in the order of the input
    int num_lines, cap_lines;
    int first;              // no line before this one waits to be sent
    int done;               // lines that are answered
    int out_fd, err_fd;     // the files of answers: of status 200, and of any other
    uint64_t wait_until_ns; // until then no request is sent: the server was full, or had no engine
    bool one_by_one;        // behind such a pause one request at a time is sent, until an answer
    msgl_batch_slot slots[MSGL_BATCH_SLOTS];
} msgl_batch_run;

// Makes a connection to the server: its descriptor, which the run closes, or -1.
typedef int (*msgl_batch_connect)(void *ctx);

// Reads the stored batch `id`, checks its input and reads what answers there are. 0; MSGL_EINVAL:
// the input is refused, and the stored object is "failed" and says why; MSGL_EIO, MSGL_ENOMEM, ...:
// it may be tried again. The run is freed with msgl__batch_close either way.
int msgl__batch_open(msgl_batch_run *b, msgl_batch_store *store, const char *id);
// Frees the run and closes the connections of its requests; the stored object is left as it is.
void msgl__batch_close(msgl_batch_run *b);
// Sends requests until `slots` of them have no answer.
void msgl__batch_fill(msgl_batch_run *b, int slots, msgl_batch_connect connect, void *ctx);
// Sets fds[0, n) to what the run waits for, and slot_of[i] to the slot that fds[i] belongs to; both
// have room for MSGL_BATCH_SLOTS. Returns n.
int msgl__batch_poll(msgl_batch_run *b, struct pollfd *fds, int *slot_of);
// Sends and receives what a slot's connection is ready for, and stores the answer once it is whole.
// 0, or negative with *err: the answer cannot be stored, and the request is sent again later.
int msgl__batch_ready(msgl_batch_run *b, int slot, msgl_err *err);
bool msgl__batch_is_done(const msgl_batch_run *b);
// Ends the batch: its files of answers become files of the API, and its object has this status,
// "completed" or "cancelled".
// Negative, with *err: the end cannot be stored, and the batch goes on where it was; its requests
// that had no answer are sent again.
int msgl__batch_end(msgl_batch_run *b, const char *status, msgl_err *err);

#endif
