// SPDX-License-Identifier: Apache-2.0
//
// How far one word is from another, for "did you mean".
#ifndef MSGL_UTILS_EDITS_H
#define MSGL_UTILS_EDITS_H

enum { MSGL_EDITS_MAX = 63 }; // bytes of a word

// Insertions, deletions, replacements and swaps of neighbours that make a[0, na) of b[0, nb)
// (optimal string alignment). A longer word: its length.
int msgl__edits(const char *a, int na, const char *b, int nb);

#endif
