// SPDX-License-Identifier: Apache-2.0
//
// Stop strings over a stream of text pieces. Text that might turn out to begin a stop string is
// held back, so what is released never has to be taken back.
#ifndef MSGL_TEXT_STOP_H
#define MSGL_TEXT_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "utils/strbuf.h"

// A token costs some comparisons for each byte of all of them, so their sum has a limit, too.
#define MSGL_MAX_STOPS 256
#define MSGL_MAX_STOP_BYTES 1024         // longest stop string
#define MSGL_MAX_STOPS_BYTES (16 * 1024) // of all

typedef struct msgl_stop {
    const char *const *strings; // borrowed; not empty strings
    int count;
    bool keep;           // what is complete is shown, too
    int which;           // of the strings, the one that is complete
    msgl_strbuf pending; // text that is not certain: shorter than the longest stop string
} msgl_stop;

// strings must outlive *s. MSGL_EINVAL for more than MSGL_MAX_STOPS, an empty or a too long string,
// and for more than MSGL_MAX_STOPS_BYTES in all.
int msgl__stop_init(msgl_stop *s, const char *const *strings, int count);
void msgl__stop_free(msgl_stop *s);
// The caller has put more text behind `pending`: moves what is certain now to the end of *out.
// *matched: a stop string is complete; *out then ends right before the earliest one, or with
// s->keep behind it, and the rest is dropped. 0, MSGL_ENOMEM, MSGL_ELIMIT.
int msgl__stop_release(msgl_stop *s, msgl_strbuf *out, bool *matched);
// The end without a stop: appends what was held back.
int msgl__stop_finish(msgl_stop *s, msgl_strbuf *out);

#endif
