// SPDX-License-Identifier: Apache-2.0
//
// Batches over a folder. One thread answers the calls of /v1/files and /v1/batches and runs the
// batches that the folder has, the oldest first, as a client of the server that it belongs to: a
// batch's request is like any other, but is sent only when the server has room for it. The event
// loop submits calls to the thread; it is woken, and takes answered calls and the ends of the
// thread's new connections.
#ifndef MSGL_APPS_BATCHES_BATCHES_H
#define MSGL_APPS_BATCHES_BATCHES_H

#include "api/api.h"
#include "apps/batches/batch_store.h"
#include "http/http_parse.h"
#include "api/known_fields.h"
#include "http/multipart.h"
#include "utils/log.h"

typedef struct msgl_batches msgl_batches;

// The fields that POST reads, of /v1/files in a form, of /v1/batches in a JSON object.
extern const msgl_fields msgl__file_fields, msgl__batch_fields;

typedef enum msgl_batch_object { MSGL_BATCH_FILES, MSGL_BATCH_BATCHES } msgl_batch_object;

// A call of the API, and the answer that the thread writes into it.
typedef struct msgl_batch_call {
    struct msgl_batch_call *next;
    void *owner; // for who submits it; the thread leaves it alone
    msgl_batch_object what;
    msgl_http_method method;
    char rest[96];             // the path behind /v1/files/ or /v1/batches/; empty: the list
    int limit;                 // objects of a list's page; 0: the usual number
    char after[MSGL_STORE_ID]; // the last object of the page before; empty: this is the first page
    char boundary[MSGL_MULTIPART_BOUNDARY_MAX + 1]; // empty: the body is no form
    msgl_strbuf body;
    msgl_claim claim; // the memory of body and answer
    int status;
    const char *type;
    msgl_strbuf answer;
} msgl_batch_call;

void msgl__batch_call_free(msgl_batch_call *c);

// Starts the thread over a folder, which is made if it is not there. wake_fd is an eventfd that the
// thread writes to when there is something to take; it stays the caller's. Errors: those of
// msgl__store_open, MSGL_EIO, MSGL_ENOMEM, MSGL_EINTERNAL.
int msgl__batches_open(const char *dir, const msgl_store_limits *limits, const msgl_log *log,
                       int wake_fd, msgl_batches **out, msgl_err *err);
// How many objects of this kind a page of a list has at most.
int msgl__batch_list_max(msgl_batch_object what);
// Stops the thread and frees all of it, NULL allowed. A batch that has not ended goes on in the
// next server that opens the folder.
void msgl__batches_close(msgl_batches *b);
// Passes a call to the thread, which owns it until msgl__batches_take returns it.
void msgl__batches_submit(msgl_batches *b, msgl_batch_call *c);
// An answered call, which is the caller's again; NULL: there is none.
msgl_batch_call *msgl__batches_take(msgl_batches *b);
// The end of a new connection, which the caller serves and closes; -1: there is none.
int msgl__batches_take_fd(msgl_batches *b);
// Sets how many requests of batches there may be at once, at most MSGL_BATCH_SLOTS.
void msgl__batches_set_room(msgl_batches *b, int room);
// Has the thread end: it answers no more calls, and closes the connections of its requests.
void msgl__batches_stop(msgl_batches *b);

#endif
