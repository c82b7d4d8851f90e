// SPDX-License-Identifier: Apache-2.0
//
// --config FILE: options as YAML, a flat mapping from names to values or lists of them. What the
// file says is read here, what it means in args.c.
#ifndef MSGL_CLI_OPTIONS_FILE_H
#define MSGL_CLI_OPTIONS_FILE_H

#include "core/err.h"

// One value of an option; a list is one entry each.
typedef struct msgl_file_option {
    const char *key;   // as it stands there
    const char *value; // NULL: none, or null
    int line;          // of the value, from 1
    int index;         // in its list; -1: it stands alone
} msgl_file_option;

typedef struct msgl_options_file {
    msgl_file_option *entries; // in the file's order
    int count, cap;
    char *texts; // that entries point into
    size_t len, cap_texts;
} msgl_options_file;

enum { MSGL_OPTIONS_FILE_MAX = 256 * 1024 };

// MSGL_ENOENT, MSGL_EIO, MSGL_ELIMIT for what is no file that can be read, MSGL_EFORMAT for
// anything but a flat mapping, MSGL_ENOMEM. The error names the file, and the line if there is one.
int msgl__options_file_read(const char *path, msgl_options_file *out, msgl_err *err);
void msgl__options_file_free(msgl_options_file *c);
// Puts "FILE:LINE: " in front of an error's text, whose code it returns.
int msgl__options_file_at(const char *path, int line, msgl_err *err);

#endif
