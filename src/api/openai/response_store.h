// SPDX-License-Identifier: Apache-2.0
//
// Responses that were answered, which GET, DELETE and previous_response_id read: in memory, until
// the server ends. Each belongs to the client that asked for it; for others it does not exist.
// Number, bytes and age are bounded: where there is no room, the client whose responses have the
// most bytes loses its oldest. Any thread may call these functions at any time.
#ifndef MSGL_API_OPENAI_RESPONSE_STORE_H
#define MSGL_API_OPENAI_RESPONSE_STORE_H

#include <stdint.h>

#include "http/budget.h"
#include "utils/strbuf.h"

typedef struct msgl_response_limits {
    int max_count;
    size_t max_bytes;
    int64_t max_age_s;
} msgl_response_limits;
// 1,000 responses; 64 MiB, or 1/16 of the memory of requests if that is less; a day.
msgl_response_limits msgl__response_limits_default(size_t max_request_memory);

typedef struct msgl_response_store msgl_response_store;

// budget: what is stored is claimed from it; borrowed, or NULL. 0 or MSGL_ENOMEM.
int msgl__response_store_create(const msgl_response_limits *limits, msgl_budget *budget,
                                msgl_response_store **out);
void msgl__response_store_free(msgl_response_store *s); // NULL allowed

// Whether so many bytes of items and answer could be stored at all.
bool msgl__response_store_fits(const msgl_response_store *s, size_t bytes);
// Stores copies. items: the conversation that was answered, JSON texts with a NUL behind each;
// body: the response. now: Unix time. 0; MSGL_ENOMEM, MSGL_ELIMIT, MSGL_EBUSY: it is not stored.
int msgl__response_store_put(msgl_response_store *s, uint64_t owner, const char *id, int64_t now,
                             const msgl_strbuf *items, const void *body, size_t len);
// Appends copies of a client's response; either may be NULL. 0, MSGL_ENOENT, MSGL_ENOMEM.
int msgl__response_store_get(msgl_response_store *s, uint64_t owner, const char *id, int64_t now,
                             msgl_strbuf *items, msgl_strbuf *body);
// Removes a client's response. 0, or MSGL_ENOENT.
int msgl__response_store_remove(msgl_response_store *s, uint64_t owner, const char *id);
// Removes the responses that are too old.
void msgl__response_store_expire(msgl_response_store *s, int64_t now);

#endif
