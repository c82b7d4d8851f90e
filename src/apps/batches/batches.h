// SPDX-License-Identifier: Apache-2.0
//
// Batches over a folder: one thread that answers calls of /v1/files and /v1/batches, and runs the
// batches that are there, the oldest first, over connections to the server that it is part of: a
// batch's request is one as any other, but for its being sent when the server has room for it. The
// event loop hands calls over, is woken, and takes answers and the ends of connections back.
#ifndef MSGL_APPS_BATCHES_BATCHES_H
#define MSGL_APPS_BATCHES_BATCHES_H

#include "api/api.h"
#include "apps/batches/batch_store.h"
#include "http/http_parse.h"
#include "api/known_fields.h"
#include "http/multipart.h"
#include "utils/log.h"

typedef struct msgl_batches msgl_batches;

// What POST reads: a form's parts, a JSON object.
extern const msgl_fields msgl__file_fields, msgl__batch_fields;

typedef enum msgl_batch_object { MSGL_BATCH_FILES, MSGL_BATCH_BATCHES } msgl_batch_object;

// A call, and its answer.
typedef struct msgl_batch_call {
    struct msgl_batch_call *next;
    void *owner; // the submitter's
    msgl_batch_object what;
    msgl_http_method method;
    char rest[96]; // of the path, behind /v1/files/ or /v1/batches/; empty: the list
    // Of a list: how many, 0: as many as a list has; the last one of the page before, empty: none.
    int limit;
    char after[MSGL_STORE_ID];
    char boundary[MSGL_MULTIPART_BOUNDARY_MAX + 1]; // empty: the body is no form
    msgl_strbuf body;
    msgl_claim claim; // of body and answer
    int status;
    const char *type;
    msgl_strbuf answer;
} msgl_batch_call;

void msgl__batch_call_free(msgl_batch_call *c);

// wake_fd: an eventfd that is written to when there is something to take.
int msgl__batches_open(const char *dir, const msgl_store_limits *limits, const msgl_log *log,
                       int wake_fd, msgl_batches **out, msgl_err *err);
// How many objects of this kind a list has at most.
int msgl__batch_list_max(msgl_batch_object what);
// Gives up what is under way; the next server that has the folder goes on with it.
void msgl__batches_close(msgl_batches *b);
void msgl__batches_submit(msgl_batches *b, msgl_batch_call *c); // takes c
msgl_batch_call *msgl__batches_take(msgl_batches *b);           // answered, or NULL
int msgl__batches_take_fd(msgl_batches *b);                     // to serve, or -1
// How many requests may be under way at once from now on, at most MSGL_BATCH_SLOTS.
void msgl__batches_set_room(msgl_batches *b, int room);
void msgl__batches_stop(msgl_batches *b); // those that are under way are given up

#endif
