// SPDX-License-Identifier: Apache-2.0
//
// The folder of --batch-dir: objects by their ids, which are made here. Each object is a JSON file
// ID.json, which has what the API shows of it; a file's bytes are in ID.data. An object is there
// when its JSON file is: this file is written last, beside its place, and renamed, so that it is
// never seen in part. A newer id is greater as a text. One thread at a time uses a store.
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
    int dir, lock;    // descriptors of the folder and of its file "lock"
    uint64_t last;    // time of the last id that was made, in ns since 1970
    msgl_store_limits limits;
} msgl_batch_store;

// Opens the folder, which is made if it is not there; none of its objects is read. path is
// borrowed. MSGL_EIO; MSGL_EBUSY: another server has the folder open.
int msgl__store_open(msgl_batch_store *s, const char *path, const msgl_store_limits *limits,
                     msgl_err *err);
void msgl__store_close(msgl_batch_store *s);

// Makes an id that is greater than all before: the prefix, 16 hex digits of the time in ns since
// 1970, and 8 random ones, as in file-18ebffdf1311d4000000000e.
void msgl__store_new_id(msgl_batch_store *s, const char *prefix, char id[MSGL_STORE_ID]);
// Whether the text has the form of an id with this prefix. The functions below take no other text:
// the id is a part of a file's name.
bool msgl__store_is_id(const char *text, const char *prefix);

// When the id was made, in seconds since 1970.
int64_t msgl__store_made_at(const char *id);

// The string that an object has under a key; "": it has none.
static inline const char *msgl__store_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text == NULL ? "" : text;
}

// The object of an id, a new reference; NULL: there is none, it is damaged, or there is no memory.
json_t *msgl__store_get(const msgl_batch_store *s, const char *id);
// Stores an object under an id, in the place of what was there. MSGL_ELIMIT: its text has more than
// MSGL_STORE_OBJECT_MAX bytes; MSGL_EIO, MSGL_ENOMEM.
int msgl__store_set(msgl_batch_store *s, const char *id, const json_t *object, msgl_err *err);

// Ids of a prefix, the newest first.
typedef struct msgl_store_page {
    char (*ids)[MSGL_STORE_ID]; // [len], freed with msgl__free
    size_t len, cap;
    size_t bytes; // of their JSON files
    bool more;    // there are older ones
} msgl_store_page;
// At most `limit` of the ids that are older than the id `after` (NULL: of all ids). The folder's
// names are read, but none of its objects. MSGL_EIO, MSGL_ENOMEM; *out is empty then.
int msgl__store_list(const msgl_batch_store *s, const char *prefix, const char *after, size_t limit,
                     msgl_store_page *out);
// 0; MSGL_ELIMIT: the folder has all the batches that it keeps; MSGL_EIO.
int msgl__store_batch_room(const msgl_batch_store *s, msgl_err *err);
// Whether the data of files have as many bytes as the folder may keep.
bool msgl__store_is_full(const msgl_batch_store *s);
// A descriptor for reading and appending an id's data, which are made if they are not there, or -1.
int msgl__store_open_data(const msgl_batch_store *s, const char *id);
// Reads all of an id's data, at most max bytes; *data is freed with msgl__free. Errors: those of
// msgl__file_read (utils/file.h).
int msgl__store_read_data(const msgl_batch_store *s, const char *id, size_t max, char **data,
                          size_t *len, msgl_err *err);
int64_t msgl__store_data_size(const msgl_batch_store *s, const char *id); // 0: none
// Stores a new file: its object and its bytes data[0, len). MSGL_ELIMIT: the folder keeps no more
// files, or no more bytes; MSGL_EIO, MSGL_ENOMEM.
int msgl__store_put_file(msgl_batch_store *s, const char *id, const json_t *object,
                         const void *data, size_t len, msgl_err *err);
// Removes the data of ids that have no object and are no members of the object `used`.
void msgl__store_remove_orphans(const msgl_batch_store *s, const json_t *used);
// Removes an object and its data, if they are there.
void msgl__store_remove(msgl_batch_store *s, const char *id);

#endif
