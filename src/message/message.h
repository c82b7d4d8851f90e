// SPDX-License-Identifier: Apache-2.0
//
// What the front process and the engine process say to each other, as typed structs. On a socket
// each message is one frame (frame.h). Decoding checks every length, type and range; an unknown
// type is an error, never a crash.
#ifndef MSGL_MESSAGE_MESSAGE_H
#define MSGL_MESSAGE_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/admin.h"
#include "core/batch.h"
#include "core/err.h"
#include "core/req_extra.h"
#include "core/sampling_params.h"
#include "utils/durations.h"
#include "utils/process.h"

typedef enum msgl_msg_type {
    MSGL_MSG_REQUEST = 1, // front -> engine
    MSGL_MSG_ABORT,       // front -> engine
    MSGL_MSG_FLUSH,       // front -> engine: drop the prefix cache; answered by MSGL_MSG_STATS
    MSGL_MSG_GET_STATS,   // front -> engine
    MSGL_MSG_EXIT,        // front -> engine
    MSGL_MSG_READY,       // engine -> front, once
    MSGL_MSG_TOKENS,      // engine -> front, one per step
    MSGL_MSG_STATS,       // engine -> front
    MSGL_MSG_REPORT,      // engine -> front, unasked, about once a second
    MSGL_MSG_FATAL,       // engine -> front: start-up or run-time failure; the engine ends after it
    MSGL_MSG_GET_TREE,    // front -> engine
    MSGL_MSG_TREE,        // engine -> front
    MSGL_MSG_ADMIN,       // front -> engine; answered by MSGL_MSG_ADMIN_DONE, but for bytes of data
    MSGL_MSG_ADMIN_DONE,  // engine -> front
    MSGL_MSG_ADAPTER, // front -> engine: read one, or drop it; answered by MSGL_MSG_ADAPTER_DONE
    MSGL_MSG_ADAPTER_DONE, // engine -> front
} msgl_msg_type;

typedef struct msgl_msg_request {
    uint64_t uid;        // unique among requests in flight; chosen by the front
    uint64_t client;     // any number; each client gets as much of the engine as another
    uint64_t cache_salt; // prefixes are shared with requests of the same; 0 as well
    // Of the adapter that it has: a number that is that of one reading of one folder, and the
    // folder. 0: it has none.
    uint64_t adapter;
    const char *adapter_path; // NULL with 0
    int32_t num_ids;
    const int32_t *ids; // prompt, not empty
    msgl_sampling_params sampling;
    msgl_req_extra *extra; // or NULL; who keeps it beyond the call takes a reference
} msgl_msg_request;

typedef enum msgl_finish {
    MSGL_FINISH_NONE,   // more tokens follow
    MSGL_FINISH_STOP,   // an EOS or stop token id
    MSGL_FINISH_LENGTH, // max_tokens or the sequence limit
    MSGL_FINISH_ABORT,  // aborted by the front
    MSGL_FINISH_ERROR,  // refused, or failed (status and text say why)
} msgl_finish;

// What a step has brought for one request.
typedef struct msgl_token_event {
    uint64_t uid;
    const int32_t *tokens; // [num_tokens] the answer's next ones; none with an abort, an error, or
    int32_t num_tokens;    // a prompt chunk that only brings prompt logprobs
    msgl_finish finish;    // after the last of them
    int32_t prompt_tokens, cached_tokens; // of the request; cached: prefix found at admission
    int32_t drafted, accepted; // drafts that were computed for it so far; of its tokens, those that
                               // were drafts
    int32_t status;            // MSGL_FINISH_ERROR: MSGL_E code
    const char *text;          // MSGL_FINISH_ERROR: one line, else NULL
    // The values of an engine that pools; they come with the end, and there are no tokens. Else
    // those that are beside the rows of log-probabilities, as many for each (row_values in
    // core/batch.h).
    int32_t num_values;
    const float *values;
    // If the request asks for them: rows for prompt tokens, then for `tokens`, by ascending
    // positions.
    int32_t num_logprobs;
    const msgl_token_logprobs *logprobs; // .req is not meaningful here
} msgl_token_event;

typedef struct msgl_msg_tokens {
    int32_t num_events;
    const msgl_token_event *events;
} msgl_msg_tokens;

typedef struct msgl_msg_ready {
    int32_t max_seq_len, max_running, num_pages, page_size, vocab_size;
    const char *attention;           // "fa", "fa,fi"
    const char *device;              // one line
    msgl_pooling pooling;            // what requests get
    int32_t pooled_size;             // values of each, or 0
    int32_t hidden_size, embed_size; // as msgl_runner has them
    int32_t token_vector_size;       // of a vector of each token, where there are such; else 0
    bool token_weights;              // there are weights of each token
    msgl_admin_state admin;
} msgl_msg_ready;

typedef struct msgl_msg_admin_done {
    int32_t code;         // 0, or MSGL_E code
    const char *text;     // of a failure, one line; else NULL
    int32_t num_requests; // that the engine had meanwhile
    msgl_admin_state state;
} msgl_msg_admin_done;

typedef struct msgl_msg_stats {
    uint64_t step; // steps done
    int32_t running, waiting;
    int32_t free_pages, cached_pages, used_pages, total_pages; // free + cached + used = total
    uint64_t prompt_tokens, generated_tokens, cached_tokens, requests_done, requests_aborted;
    // Requests that were sent back to the queue for want of pages, or for another client, and went
    // on later.
    uint64_t requests_retracted;
    uint64_t drafted_tokens, accepted_tokens; // drafts computed, and those that were right
} msgl_msg_stats;

enum {
    MSGL_MAX_REPORT_GROUPS = 8,
    MSGL_DRAFT_POSITIONS = 16, // of drafts behind a known token, that are counted apart
};

// An engine's figures for /metrics; counters begin with its process.
typedef struct msgl_msg_report {
    msgl_msg_stats stats;
    msgl_process_use process;
    msgl_durations steps; // how long they took to compute
    // The first, second, ... drafts of steps; the last: that one and those behind it.
    uint64_t drafted_at[MSGL_DRAFT_POSITIONS], accepted_at[MSGL_DRAFT_POSITIONS];
    // Groups of layers that keep their cache equally long: first those that keep it for every
    // token, then those with a window, then those with states, whose checkpoints are counted
    // instead of pages.
    int32_t num_groups;
    struct {
        int32_t total, free, cached;
        uint64_t evicted; // taken from the prefix cache for want of room
    } groups[MSGL_MAX_REPORT_GROUPS];
} msgl_msg_report;

enum { MSGL_MAX_TREE_RUNS = 512 };

// The prefix cache's shape: runs of pages that branch nowhere, without what they hold.
typedef struct msgl_tree_run {
    int32_t parent; // its index, -1: the root
    int32_t tokens; // of this run alone
    int32_t pins; // running requests, and pinned runs below it, that need it; 0: it may be evicted
    int64_t hits; // requests that went on from its end or from behind it
} msgl_tree_run;

typedef struct msgl_msg_tree {
    bool all;         // nothing was left out
    int64_t tokens;   // in all of the cache
    int32_t num_runs; // at most MSGL_MAX_TREE_RUNS
    const msgl_tree_run *runs;
} msgl_msg_tree;

typedef struct msgl_msg_adapter {
    uint64_t adapter;
    const char *path; // NULL: drop it
} msgl_msg_adapter;

typedef struct msgl_msg_adapter_done {
    uint64_t adapter;
    bool dropped;
    int32_t status;   // 0, or an MSGL_E code
    const char *text; // why; NULL with 0
} msgl_msg_adapter_done;

typedef struct msgl_msg {
    msgl_msg_type type;
    union {
        msgl_msg_request request;
        uint64_t abort_uid;
        msgl_msg_ready ready;
        msgl_msg_tokens tokens;
        msgl_msg_stats stats;
        msgl_msg_report report;
        msgl_msg_tree tree;
        msgl_admin admin;
        msgl_msg_admin_done admin_done;
        msgl_msg_adapter adapter;
        msgl_msg_adapter_done adapter_done;
        const char *fatal;
    } u;
} msgl_msg;

// A stream of messages between two threads or processes. Sending copies the message. In each
// direction one thread may send and one may receive at the same time.
typedef struct msgl_channel msgl_channel;

// Makes an in-process pair: what is sent on one end is received on the other.
int msgl__channel_pair_local(msgl_channel **a, msgl_channel **b, msgl_err *err);
// Makes a channel over one end of a stream socketpair, which the channel owns from now on.
int msgl__channel_from_fd(int fd, msgl_channel **out, msgl_err *err);
void msgl__channel_destroy(msgl_channel *c); // the peer then receives MSGL_ECLOSED
// The peer may be followed by others: the ends of their socketpairs come over the packet socket
// `line`, one a packet, which the channel owns from now on.
void msgl__channel_set_line(msgl_channel *c, int line);
// Waits for the next peer when one is gone (timeout_ms as below). 1: the channel goes to it now, as
// if it were new; 0: none came in time; MSGL_ECLOSED: none will come; MSGL_EIO. No other thread may
// use the channel meanwhile.
int msgl__channel_renew(msgl_channel *c, int timeout_ms);

// A send that waits for room calls this several times a second; NULL: nothing.
void msgl__channel_on_wait(msgl_channel *c, void (*on_wait)(void *ctx), void *ctx);
// Sends a message. 0; MSGL_ECLOSED when the peer is gone; MSGL_ENOMEM; MSGL_ELIMIT for a message
// above the frame limit. It blocks only while the socket is full, and keeps reading meanwhile, so
// that two ends that send at the same time cannot wait for each other.
int msgl__channel_send(msgl_channel *c, const msgl_msg *m);
// The same without blocking, for an event loop: what the socket does not take now is kept, and
// goes out with the next post, send or flush.
int msgl__channel_post(msgl_channel *c, const msgl_msg *m);
// Writes what was kept. 1: some of it is left (call again when write_fd is writable); 0: none is;
// MSGL_ECLOSED.
int msgl__channel_flush(msgl_channel *c);
int msgl__channel_write_fd(const msgl_channel *c); // -1: in process, where nothing is ever kept
// Receives one message into *m, whose pointers stay valid until the next receive on this end.
// timeout_ms: 0 polls, -1 waits. 1: got one; 0: none in time; MSGL_ECLOSED; MSGL_EFORMAT (the
// stream cannot be used any more).
int msgl__channel_recv(msgl_channel *c, int timeout_ms, msgl_msg *m);
// A descriptor that polls readable while msgl__channel_recv(.., 0, ..) may have a message or a
// closed peer to report.
int msgl__channel_poll_fd(const msgl_channel *c);

#endif
