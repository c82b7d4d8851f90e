// SPDX-License-Identifier: Apache-2.0
//
// The folder of --batch-dir: objects by ids that are made here, each a JSON file ID.json (what the
// API shows of it) and, of files, the bytes in ID.data. An object is there when its JSON file is,
// which comes last and appears whole. Ids are in the order of their making. One thread at a time.
#ifndef MSGL_APPS_BATCHES_BATCH_STORE_H
#define MSGL_APPS_BATCHES_BATCH_STORE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "front/store_limits.h"

enum { MSGL_STORE_ID = 40 };              // bytes of an id with its NUL
enum { MSGL_STORE_OBJECT_MAX = 1 << 20 }; // bytes of a JSON file

#define MSGL_STORE_FILE "file-"
#define MSGL_STORE_BATCH "batch_"

typedef struct msgl_batch_store {
    const char *path; // as msgl__store_open got it
    int dir;          // descriptors
    int lock;
    uint64_t last; // of the ids
    msgl_store_limits limits;
} msgl_batch_store;

// Makes the folder if it is not there; reads nothing of what it has. path is borrowed. MSGL_EBUSY:
// another server has it.
int msgl__store_open(msgl_batch_store *s, const char *path, const msgl_store_limits *limits,
                     msgl_err *err);
void msgl__store_close(msgl_batch_store *s);

void msgl__store_new_id(msgl_batch_store *s, const char *prefix, char id[MSGL_STORE_ID]);
// Whether the text has the form of an id; only such may be passed to what follows.
bool msgl__store_is_id(const char *text, const char *prefix);

int64_t msgl__store_made_at(const char *id); // in seconds since 1970

// The string that an object has under a key; "": it has none.
static inline const char *msgl__store_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text == NULL ? "" : text;
}

// What is stored under an id, or NULL.
json_t *msgl__store_get(const msgl_batch_store *s, const char *id);
// MSGL_ELIMIT: it is too large.
int msgl__store_set(msgl_batch_store *s, const char *id, const json_t *object, msgl_err *err);

// Ids of a prefix, the newest first.
typedef struct msgl_store_page {
    char (*ids)[MSGL_STORE_ID]; // [len], freed with msgl__free
    size_t len, cap;
    size_t bytes; // of their JSON files
    bool more;    // there are older ones
} msgl_store_page;
// At most `limit` of those that are older than the id `after` (NULL: all). Names are read and no
// objects. MSGL_EIO, MSGL_ENOMEM; *out is empty then.
int msgl__store_list(const msgl_batch_store *s, const char *prefix, const char *after, size_t limit,
                     msgl_store_page *out);
// 0; MSGL_ELIMIT: the folder has all the batches that it keeps; MSGL_EIO.
int msgl__store_batch_room(const msgl_batch_store *s, msgl_err *err);
bool msgl__store_is_full(const msgl_batch_store *s); // of data
// The data of an id: opened for reading and appending, made if it is not there; or negative.
int msgl__store_open_data(const msgl_batch_store *s, const char *id);
// All of the data, freed with msgl__free. MSGL_ENOENT, MSGL_ELIMIT, ...
int msgl__store_read_data(const msgl_batch_store *s, const char *id, size_t max, char **data,
                          size_t *len, msgl_err *err);
int64_t msgl__store_data_size(const msgl_batch_store *s, const char *id); // 0: none
// A file with these bytes. MSGL_ELIMIT: the folder has too much.
int msgl__store_put_file(msgl_batch_store *s, const char *id, const json_t *object,
                         const void *data, size_t len, msgl_err *err);
// Removes data without an object, but for those whose ids `used` has.
void msgl__store_remove_orphans(const msgl_batch_store *s, const json_t *used);
void msgl__store_remove(msgl_batch_store *s, const char *id);

#endif
