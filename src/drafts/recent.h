// SPDX-License-Identifier: Apache-2.0
//
// Recent answers, in which others are looked up: the last half million tokens or so of them, each
// answer with the salt of its request, in 6 MiB. Answers with different salts know nothing of each
// other.
#ifndef MSGL_DRAFTS_RECENT_H
#define MSGL_DRAFTS_RECENT_H

#include "drafts/repeats.h"

typedef struct msgl_recent_answer {
    uint64_t salt;
    int32_t begin;
} msgl_recent_answer;

typedef struct msgl_recent {
    int32_t *ids; // answers, -1 behind each
    int32_t len;
    msgl_recent_answer *answers; // [num_answers] by where they begin
    int32_t num_answers;
    msgl_repeats repeats;
} msgl_recent;

enum { MSGL_RECENT_TOKENS = 1 << 19, MSGL_RECENT_ANSWERS = 1 << 16 };

bool msgl__recent_create(msgl_recent *out); // false: MSGL_ENOMEM
void msgl__recent_destroy(msgl_recent *r);  // {0} is allowed
void msgl__recent_add(msgl_recent *r, uint64_t salt, const int32_t *ids, int32_t n);
// As msgl__repeats_find, among the answers with this salt.
int32_t msgl__recent_find(const msgl_recent *r, uint64_t salt, const int32_t *ids, int32_t n,
                          int32_t max_match, msgl_repeat *out, int32_t most);

#endif
