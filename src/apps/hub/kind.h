// SPDX-License-Identifier: Apache-2.0
//
// A hub: where models are published, how it is asked, and where its own client keeps copies. One
// file with a const msgl_hub_kind each (huggingface.c, modelscope.c), and one line in kind.c.
#ifndef MSGL_APPS_HUB_KIND_H
#define MSGL_APPS_HUB_KIND_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "apps/hub/name.h"
#include "utils/strbuf.h"

// What a hub says of a file, in its list's own memory; a member is NULL if it says nothing of that.
typedef struct msgl_hub_said {
    const char *path, *checksum;
    const json_t *size;
} msgl_hub_said;

typedef struct msgl_hub_kind {
    const char *name;     // as --model-source has it
    const char *endpoint; // where it is
    const char *revision; // that a name without one means
    const char *cookie;   // in which it takes the token beside "Authorization: Bearer"; or NULL
    bool hides;           // answers 404 also for what the token may not see

    // The variables that its own client reads; of several the first that is set counts.
    const char *endpoint_vars[2], *token_var, *cache_var, *home_var; // or NULL
    const char *token_file;                                          // in the home; or NULL
    const char *token_from; // for messages: where a token was looked for
    const char *cache_from; // and what moves the cache
    const char *home;       // below ~/.cache; what is below that is the cache
    const char *cache;
    bool xdg; // XDG_CACHE_HOME is for ~/.cache

    // The cache. The folder of a model is PREFIX ORG "--" NAME; with refs, snapshots are of commits
    // and refs/ says which a revision is, else they are of revisions.
    const char *prefix;
    bool refs;
    // Folders ORG/NAME in which older versions of its client kept a copy without a revision, also
    // with "___" for the dots of NAME; NULL: none.
    const char *const *older;

    // The address of a model's list and of a file of the snapshot `commit`.
    int (*list_url)(msgl_strbuf *url, const char *endpoint, const msgl_hub_name *name);
    int (*file_url)(msgl_strbuf *url, const char *endpoint, const msgl_hub_name *name,
                    const char *commit, const char *path);
    // From a list: the snapshot that it is of, and where its files are, up to MSGL_HUB_MAX_FILES.
    // MSGL_EFORMAT, or what the hub says instead of a list.
    int (*list)(const json_t *root, const msgl_hub_name *name,
                char commit[MSGL_HUB_MAX_REVISION + 1], const json_t **files, msgl_err *err);
    bool (*file)(const json_t *entry, msgl_hub_said *out); // false: none, but a folder
    // Or NULL: the address of a list of revisions, and whether `name` asks for one that is not in
    // it; *err says so then.
    int (*revisions_url)(msgl_strbuf *url, const char *endpoint, const msgl_hub_name *name);
    bool (*no_revision)(const json_t *root, const msgl_hub_name *name, msgl_err *err);
} msgl_hub_kind;

extern const msgl_hub_kind msgl__hub_huggingface, msgl__hub_modelscope;

const msgl_hub_kind *msgl__hub_kind_named(const char *name); // NULL: there is none

// Says what is wrong with the list of a model's files. MSGL_EFORMAT.
int msgl__hub_malformed(const msgl_hub_name *name, const char *what, msgl_err *err);
// Adds `text` with everything but letters, digits, "-_.~" and `keep` (NUL: nothing more) as %XX: "a
// b/c" is "a%20b/c" if '/' is kept.
int msgl__hub_add_escaped(msgl_strbuf *b, const char *text, char keep);

#endif
