// SPDX-License-Identifier: Apache-2.0
//
// Finding markers in bytes that come one by one.
#ifndef MSGL_PARSERS_MARKS_H
#define MSGL_PARSERS_MARKS_H

enum { MSGL_MARK_MAX = 32 }; // bytes of a marker

// The end of the text, as far as it begins a marker. Zero-initialised is empty.
typedef struct msgl_match {
    char buf[MSGL_MARK_MAX];
    int len;
} msgl_match;

// Adds c. marks: a NULL behind them, none the beginning of another. Returns the index of the
// marker that c completes, else -1. Into plain: the *n bytes that belong to no marker, in order;
// they come before the marker.
int msgl__match_add(msgl_match *m, const char *const *marks, char c, char plain[MSGL_MARK_MAX],
                    int *n);

#endif
