// SPDX-License-Identifier: Apache-2.0
//
// Settings: what a user may choose, by a flag, a variable of the environment or a field of the C
// API, or of a request. A row says all there is to know about one; parsing, checking, --help and
// docs/cli.md are loops over rows, so that a limit stands once. The engine's settings are the
// fields of msgl_options (engine_settings.c), those of sampling stand in sampling_params.c; the
// command line has a table of its own beside them.
#ifndef MSGL_CORE_SETTINGS_H
#define MSGL_CORE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

typedef enum msgl_setting_type {
    MSGL_SETTING_INT,
    MSGL_SETTING_REAL,
    MSGL_SETTING_FLAG, // 0 or 1; as a flag it needs no value, and makes it what it is not by
                       // default
    MSGL_SETTING_TEXT,
    MSGL_SETTING_LIST, // of texts; known to the command line only
} msgl_setting_type;

// Commands that read a setting.
enum {
    MSGL_CMD_SERVE = 1,
    MSGL_CMD_CHAT = 2,
    MSGL_CMD_RUN = 4,
    MSGL_CMD_BENCH = 8,
    MSGL_CMD_INFO = 16,
    MSGL_CMD_TOKENIZE = 32,
    MSGL_CMD_TEMPLATE = 64,
    MSGL_CMD_HELP = 128,
    MSGL_CMD_CALIBRATE = 4096,
    MSGL_CMD_SIMULATE = 16384,
    MSGL_CMD_PULL = 32768,
    MSGL_CMD_ALL = 255 | MSGL_CMD_CALIBRATE | MSGL_CMD_SIMULATE | MSGL_CMD_PULL,
    MSGL_CMD_ENGINE =
        MSGL_CMD_SERVE | MSGL_CMD_CHAT | MSGL_CMD_RUN | MSGL_CMD_BENCH | MSGL_CMD_CALIBRATE,
    // With MSGL_CMD_BENCH: the only benchmark that reads it; ENGINE: those of an engine of their
    // own.
    MSGL_BENCH_STEP = 256,
    MSGL_BENCH_OFFLINE = 512,
    MSGL_BENCH_SERVE = 1024,
    MSGL_BENCH_ATTN = 2048,
    MSGL_BENCH_ENGINE = 8192,
    MSGL_BENCH_ANSWERS = 65536, // offline, serve and speculation
    MSGL_BENCH_SPECULATION = 131072,
    MSGL_BENCH_DRAFTS = 262144, // those and step
    MSGL_CMD_ANSWERS =
        MSGL_CMD_SERVE | MSGL_CMD_CHAT | MSGL_CMD_RUN | MSGL_CMD_BENCH | MSGL_BENCH_ANSWERS,
    MSGL_CMD_DRAFTS =
        MSGL_CMD_SERVE | MSGL_CMD_CHAT | MSGL_CMD_RUN | MSGL_CMD_BENCH | MSGL_BENCH_DRAFTS,
};

typedef struct msgl_setting {
    const char *name;  // "page-size" of --page-size and MINISGL_PAGE_SIZE; NULL: only in the C API
    const char *field; // its member of the struct that holds the values
    msgl_setting_type type;
    size_t offset, size;     // of the member
    double min, max;         // of a number
    const char *choices;     // of a text: "a|b|c"; NULL: any
    bool more;               // other names in [a-z0-9_] are checked by who reads them
    double preset;           // default of a number or flag; always allowed, also beyond min..max
    const char *preset_text; // default of a text
    bool unset;              // the default says "not given": it cannot be asked for
    const char *by_default;  // what help says behind the default, such as ": one per core"
    unsigned commands;       // that read it
    const char *group;       // of --help
    const char *metavar;     // NULL: a flag
    const char *help;
} msgl_setting;

typedef struct msgl_setting_table {
    const msgl_setting *rows;
    int count;
} msgl_setting_table;

// Type and place of a row's value: member f of struct T, whose C type has to fit.
#define MSGL_INT(T, f) MSGL_MEMBER(T, f, INT, _Generic(((T *)0)->f, int32_t : 4, int64_t : 8))
#define MSGL_REAL(T, f) MSGL_MEMBER(T, f, REAL, _Generic(((T *)0)->f, float : 4, double : 8))
#define MSGL_FLAG(T, f) MSGL_MEMBER(T, f, FLAG, _Generic(((T *)0)->f, bool : 1, int32_t : 4))
#define MSGL_TEXT(T, f)                                                                            \
    MSGL_MEMBER(T, f, TEXT, _Generic(((T *)0)->f, const char * : sizeof(char *)))
#define MSGL_MEMBER(T, f, kind, bytes)                                                             \
    .field = #f, .type = MSGL_SETTING_##kind, .offset = offsetof(T, f), .size = (bytes)

// Of engine and scheduler; the values are an msgl_options.
extern const msgl_setting_table msgl__engine_settings;
// Of one request's sampling; the values are an msgl_sampling_params. The first rows may stand in a
// model's generation_config.json, too.
extern const msgl_setting_table msgl__sampling_settings;
enum { MSGL_SAMPLING_OF_MODEL = 5 };

// Gives every row's member of `values` its default.
void msgl__settings_default(const msgl_setting_table *t, void *values);
// Checks them all. MSGL_EINVAL: `FIELD is "VALUE"; allowed: ...`.
int msgl__settings_check(const msgl_setting_table *t, const void *values, msgl_err *err);
// The same for engine and scheduler, and that there is a model.
int msgl__options_check(const msgl_options *o, msgl_err *err);

// Reads a value from text, which a setting that is a text keeps. The error names `source`, the flag
// or the variable as the user wrote it.
int msgl__setting_parse(const msgl_setting *s, const char *source, const char *text, void *values,
                        msgl_err *err);
// The value of a number or flag, and storing one that is allowed; of a text.
double msgl__setting_number(const msgl_setting *s, const void *values);
void msgl__setting_put(const msgl_setting *s, double value, void *values);
const char *msgl__setting_text(const msgl_setting *s, const void *values);
void msgl__setting_put_text(const msgl_setting *s, const char *text, void *values); // borrows it

#endif
