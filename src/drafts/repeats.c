// SPDX-License-Identifier: Apache-2.0
#include "drafts/repeats.h"

#include <string.h>

#include "core/mem.h"
#include "utils/random.h"

enum { MAX_LINKS = 64, MIN_BITS = 6, MAX_BITS = 20 };

bool msgl__repeats_create(int32_t order, int32_t capacity, msgl_repeats *out)
{
    int bits = MIN_BITS;
    while (bits < MAX_BITS && (int32_t)1 << (bits + 1) < capacity) bits++;
    *out = (msgl_repeats){.order = order, .capacity = capacity, .bits = bits};
    out->heads = msgl__reallocarray(NULL, (size_t)1 << bits, sizeof *out->heads);
    out->links = msgl__reallocarray(NULL, (size_t)capacity, sizeof *out->links);
    if (out->heads == NULL || out->links == NULL) {
        msgl__repeats_destroy(out);
        return false;
    }
    msgl__repeats_clear(out);
    return true;
}

void msgl__repeats_destroy(msgl_repeats *r)
{
    msgl__free(r->heads);
    msgl__free(r->links);
    *r = (msgl_repeats){0};
}

void msgl__repeats_clear(msgl_repeats *r)
{
    memset(r->heads, -1, ((size_t)1 << r->bits) * sizeof *r->heads);
    r->used = 0;
}

// Of the gram ids[end - order, end); -1: it has a negative token, or there are too few.
static int32_t hash_of(const msgl_repeats *r, const int32_t *ids, int32_t end)
{
    uint64_t h = 0;
    if (end < r->order) return -1;
    for (int32_t i = end - r->order; i < end; i++) {
        if (ids[i] < 0) return -1;
        h = msgl__mix_bits(h + (uint64_t)(uint32_t)ids[i]);
    }
    return (int32_t)(h >> (64 - r->bits));
}

void msgl__repeats_extend(msgl_repeats *r, const int32_t *ids, int32_t len)
{
    for (; r->used < len; r->used++) {
        const int32_t hash = hash_of(r, ids, r->used + 1);
        if (hash < 0) continue;
        r->links[r->used] = r->heads[hash];
        r->heads[hash] = r->used;
    }
}

// How many tokens before ids[n] and text[end] agree, up to `most`.
static int32_t agreeing(const int32_t *text, int32_t end, const int32_t *ids, int32_t n,
                        int32_t most)
{
    int32_t i = 0;
    while (i < most && i < end && i < n && ids[n - 1 - i] >= 0 &&
           text[end - 1 - i] == ids[n - 1 - i]) {
        i++;
    }
    return i;
}

int32_t msgl__repeats_find(const msgl_repeats *r, const int32_t *text, const int32_t *ids,
                           int32_t n, int32_t max_match, msgl_repeat *out, int32_t most)
{
    const int32_t hash = hash_of(r, ids, n);
    int32_t found = 0;
    int32_t at = hash < 0 ? -1 : r->heads[hash];
    for (int links = 0; at >= 0 && links < MAX_LINKS && found < most; links++, at = r->links[at]) {
        const int32_t end = at + 1;
        if (end >= r->used || text[end] < 0) continue; // nothing came behind it
        const int32_t match = agreeing(text, end, ids, n, max_match);
        if (match < r->order) continue; // another gram of this hash
        out[found++] = (msgl_repeat){.next = text + end, .room = r->used - end, .match = match};
    }
    return found;
}
