// SPDX-License-Identifier: Apache-2.0
#include "cuda/gemm/choices.h"

#include <string.h>

#include "core/mem.h"
#include "utils/hash.h"

enum { FIRST_CAPACITY = 512 };

// Buckets: multiples of 8 to 256, where a decode step's tile fits or just does not fit m; then
// quarters of the power of two below, since a step of answers and chunks has any m and an algorithm
// whose tile just does not fit takes up to twice as long; from 2,048 on halves, where only the
// number of waves changes.
static int32_t top_of(int32_t m)
{
    int32_t top = 512;
    while (top < m && top < (1 << 29)) top *= 2;
    return top;
}

static int32_t step_of(int32_t top)
{
    return top <= 2048 ? top / 8 : top / 4;
}

int32_t msgl__gemm_bucket(int32_t m)
{
    if (m <= 2) return m;
    if (m <= 4) return 4;
    if (m <= 256) return (m + 7) / 8 * 8;
    const int32_t top = top_of(m), step = step_of(top), least = top / 2 + step;
    return m <= least ? least : (m + step - 1) / step * step;
}

static int32_t bucket_below(int32_t bucket)
{
    if (bucket <= 8) return bucket / 2;
    if (bucket <= 256) return bucket - 8;
    return bucket - step_of(top_of(bucket));
}

bool msgl__choices_create(msgl_gemm_choices *t)
{
    t->count = 0;
    t->capacity = FIRST_CAPACITY;
    t->slots = msgl__calloc(t->capacity, sizeof *t->slots);
    return t->slots != NULL;
}

void msgl__choices_destroy(msgl_gemm_choices *t)
{
    msgl__free(t->slots);
    *t = (msgl_gemm_choices){0};
}

static size_t hash(const msgl_gemm_key *key)
{
    const uint64_t h = msgl__hash(MSGL_HASH_START, key, sizeof *key);
    return (size_t)(h ^ (h >> 32));
}

// The key's slot, or the free one that it would get.
static msgl_gemm_choice *probe(const msgl_gemm_choices *t, const msgl_gemm_key *key)
{
    size_t i = hash(key) & (t->capacity - 1);
    while (t->slots[i].source != MSGL_GEMM_NONE &&
           memcmp(&t->slots[i].key, key, sizeof *key) != 0) {
        i = (i + 1) & (t->capacity - 1);
    }
    return &t->slots[i];
}

const msgl_gemm_choice *msgl__choices_find(const msgl_gemm_choices *t, const msgl_gemm_key *key)
{
    const msgl_gemm_choice *c = probe(t, key);
    return c->source != MSGL_GEMM_NONE ? c : NULL;
}

static const msgl_gemm_choice *measured(const msgl_gemm_choices *t, const msgl_gemm_key *key)
{
    const msgl_gemm_choice *c = probe(t, key);
    return c->source == MSGL_GEMM_MEASURED ? c : NULL;
}

const msgl_gemm_choice *msgl__choices_nearest(const msgl_gemm_choices *t, const msgl_gemm_key *key)
{
    const int32_t most = key->bucket < (1 << 28) ? 2 * key->bucket : key->bucket;
    msgl_gemm_key other = *key;
    const msgl_gemm_choice *c = measured(t, key);
    while (c == NULL) {
        other.bucket = msgl__gemm_bucket(other.bucket + 1);
        if (other.bucket > most) break;
        c = measured(t, &other);
    }
    for (other = *key; c == NULL;) {
        other.bucket = bucket_below(other.bucket);
        if (other.bucket < 1 || other.bucket < key->bucket / 2) break;
        c = measured(t, &other);
    }
    return c;
}

static bool grow(msgl_gemm_choices *t)
{
    msgl_gemm_choices larger = {.capacity = 2 * t->capacity, .count = t->count};
    larger.slots = msgl__calloc(larger.capacity, sizeof *larger.slots);
    if (larger.slots == NULL) return false;
    for (size_t i = 0; i < t->capacity; i++) {
        const msgl_gemm_choice *c = &t->slots[i];
        if (c->source != MSGL_GEMM_NONE) *probe(&larger, &c->key) = *c;
    }
    msgl__free(t->slots);
    *t = larger;
    return true;
}

bool msgl__choices_put(msgl_gemm_choices *t, const msgl_gemm_choice *c)
{
    msgl_gemm_choice *slot = probe(t, &c->key);
    if (slot->source == MSGL_GEMM_NONE) {
        if (2 * (t->count + 1) > t->capacity) {
            if (!grow(t)) return false;
            slot = probe(t, &c->key);
        }
        t->count++;
    }
    *slot = *c;
    return true;
}
