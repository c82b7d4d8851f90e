// SPDX-License-Identifier: Apache-2.0
//
// Names of models on a hub and of their files. What a hub says is somebody else's input: a name is
// used only when it can mean nothing outside of the model's own folder.
#ifndef MSGL_APPS_HUB_NAME_H
#define MSGL_APPS_HUB_NAME_H

#include <stdbool.h>

#include "core/err.h"

enum { MSGL_HUB_MAX_PATH = 256, MSGL_HUB_MAX_REVISION = 128, MSGL_HUB_MAX_TYPE = 32 };

// ORG/NAME[/FILE.gguf|:TYPE][@REVISION]
typedef struct msgl_hub_name {
    char repo[2 * 96 + 2];            // "ORG/NAME"
    char file[MSGL_HUB_MAX_PATH + 1]; // a .gguf file of it; "": the whole model
    char type[MSGL_HUB_MAX_TYPE + 1]; // "Q8_0": its .gguf file that is named so; "": none said
    char revision[MSGL_HUB_MAX_REVISION + 1]; // branch, tag or commit; "": the hub's own
} msgl_hub_name;

// Reads a name. revision: what --revision says beside it; NULL: nothing. MSGL_EINVAL names what is
// allowed.
int msgl__hub_name_parse(const char *text, const char *revision, msgl_hub_name *out, msgl_err *err);

// An address that a hub's pages give, as "https://huggingface.co/ORG/NAME/tree/v1" or
// "hf.co/ORG/NAME:Q8_0", as the name that it stands for, ORG/NAME[/FILE.gguf|:TYPE][@REVISION], in
// `out`; *source: which hub it is of, as --model-source says it. False: it is none, or too long.
bool msgl__hub_name_of_address(const char *text, char *out, size_t size, const char **source);

// Whether a file name, with / between folders, stays inside of the folder that it is used in: no
// empty part, none that begins with a dot and has nothing else ("." and ".."), no control
// characters or backslashes, at most MSGL_HUB_MAX_PATH bytes.
bool msgl__hub_path_ok(const char *path);
// Whether a model's file is one that minisgl reads.
bool msgl__hub_wanted(const char *path);
bool msgl__hub_is_commit(const char *revision); // 40 hexadecimal digits
bool msgl__hub_is_checksum(const char *etag);   // 40 of SHA-1 or 64 of SHA-256, lower case
bool msgl__hub_is_letter(char c);               // or a digit

#endif
