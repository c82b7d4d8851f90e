// SPDX-License-Identifier: Apache-2.0
//
// Two hash tables with chains, in one mapping: blocks by key, and copies by (block, replica). A
// copy is in its block's list of copies and in its replica's list by last use. Numbers in
// buckets are one too large, so that memory as it is mapped is an empty table.
#include "routing/prefix_index.h"

#include "core/mem.h"
#include "utils/lru.h"
#include "utils/random.h"

// A block that some replica has. The list of its copies begins with the latest one.
typedef struct block {
    uint64_t key;
    int32_t next;  // the next block of its bucket or, of a free one, of the free list
    int32_t first; // its latest copy
    int32_t count; // number of its copies
} block;

// A replica's copy of a block.
typedef struct copy {
    int32_t block, replica;
    int32_t next;         // the next copy of its bucket or, of a free one, of the free list
    int32_t later, prior; // its neighbours in the list of its block's copies, -1: none
} copy;

struct msgl_prefix_index {
    int32_t mask;                // of both tables
    int32_t new_block, new_copy; // blocks and copies from these indexes on were never used
    int32_t free_block, free_copy;
    msgl_lru *used;        // [num_replicas] the copies of each, by last use
    int32_t *limit;        // [num_replicas] most copies of each
    msgl_lru_link *links;  // of all copies
    block *blocks;         //
    copy *copies;          //
    int32_t *block_bucket; // [mask + 1]
    int32_t *copy_bucket;
    size_t mapped;
};

static int32_t table_size(int32_t entries)
{
    int32_t n = 16;
    while (n < entries) n *= 2;
    return n;
}

size_t msgl__prefix_index_bytes(int32_t num_replicas, int32_t blocks_per_replica)
{
    const size_t n = (size_t)num_replicas * (size_t)blocks_per_replica;
    return n * (sizeof(block) + sizeof(copy) + sizeof(msgl_lru_link)) +
           2 * (size_t)table_size((int32_t)n) * sizeof(int32_t);
}

int msgl__prefix_index_create(int32_t num_replicas, int32_t blocks_per_replica,
                              msgl_prefix_index **out, msgl_err *err)
{
    const size_t n = (size_t)num_replicas * (size_t)blocks_per_replica;
    msgl_prefix_index *x = msgl__calloc(1, sizeof *x);
    if (x != NULL) {
        x->used = msgl__reallocarray(NULL, (size_t)num_replicas, sizeof *x->used);
        x->limit = msgl__reallocarray(NULL, (size_t)num_replicas, sizeof *x->limit);
        x->mapped = msgl__prefix_index_bytes(num_replicas, blocks_per_replica);
        x->blocks = msgl__pages_alloc(x->mapped);
    }
    if (x == NULL || x->used == NULL || x->limit == NULL || x->blocks == NULL) {
        msgl__prefix_index_destroy(x);
        return msgl__err_set(err, MSGL_ENOMEM, "no memory for an index of %zu cached blocks", n);
    }
    x->mask = table_size((int32_t)n) - 1;
    x->free_block = x->free_copy = -1;
    x->copies = (copy *)(x->blocks + n);
    x->links = (msgl_lru_link *)(x->copies + n);
    x->block_bucket = (int32_t *)(x->links + n);
    x->copy_bucket = x->block_bucket + x->mask + 1;
    for (int32_t r = 0; r < num_replicas; r++) {
        x->used[r] = (msgl_lru){.links = x->links, .oldest = -1, .newest = -1};
        x->limit[r] = blocks_per_replica;
    }
    *out = x;
    return 0;
}

void msgl__prefix_index_destroy(msgl_prefix_index *x)
{
    if (x == NULL) return;
    if (x->blocks != NULL) msgl__pages_free(x->blocks, x->mapped);
    msgl__free(x->used);
    msgl__free(x->limit);
    msgl__free(x);
}

// --- the two tables ---

static int32_t *bucket_of_key(const msgl_prefix_index *x, uint64_t key)
{
    return &x->block_bucket[key & (uint64_t)x->mask];
}

static int32_t *bucket_of_pair(const msgl_prefix_index *x, int32_t b, int32_t replica)
{
    const uint64_t h = msgl__mix_bits((uint64_t)(uint32_t)b << 32 | (uint32_t)replica);
    return &x->copy_bucket[h & (uint64_t)x->mask];
}

static int32_t find_block(const msgl_prefix_index *x, uint64_t key)
{
    int32_t b = *bucket_of_key(x, key) - 1;
    while (b >= 0 && x->blocks[b].key != key) b = x->blocks[b].next;
    return b;
}

static int32_t find_copy(const msgl_prefix_index *x, int32_t b, int32_t replica)
{
    int32_t h = *bucket_of_pair(x, b, replica) - 1;
    while (h >= 0 && (x->copies[h].block != b || x->copies[h].replica != replica)) {
        h = x->copies[h].next;
    }
    return h;
}

static int32_t add_block(msgl_prefix_index *x, uint64_t key)
{
    const int32_t b = x->free_block >= 0 ? x->free_block : x->new_block++;
    if (b == x->free_block) x->free_block = x->blocks[b].next;
    int32_t *bucket = bucket_of_key(x, key);
    x->blocks[b] = (block){.key = key, .next = *bucket - 1, .first = -1};
    *bucket = b + 1;
    return b;
}

static void remove_block(msgl_prefix_index *x, int32_t b)
{
    int32_t *bucket = bucket_of_key(x, x->blocks[b].key);
    if (*bucket - 1 == b) {
        *bucket = x->blocks[b].next + 1;
    } else {
        int32_t p = *bucket - 1;
        while (x->blocks[p].next != b) p = x->blocks[p].next;
        x->blocks[p].next = x->blocks[b].next;
    }
    x->blocks[b].next = x->free_block;
    x->free_block = b;
}

// --- the copies of a block ---

static void list_add(msgl_prefix_index *x, int32_t h)
{
    block *b = &x->blocks[x->copies[h].block];
    x->copies[h].later = -1;
    x->copies[h].prior = b->first;
    if (b->first >= 0) x->copies[b->first].later = h;
    b->first = h;
    b->count++;
}

static void list_remove(msgl_prefix_index *x, int32_t h)
{
    const copy *p = &x->copies[h];
    block *b = &x->blocks[p->block];
    if (p->prior >= 0) x->copies[p->prior].later = p->later;
    if (p->later >= 0) {
        x->copies[p->later].prior = p->prior;
    } else {
        b->first = p->prior;
    }
    b->count--;
}

static int32_t add_copy(msgl_prefix_index *x, int32_t b, int32_t replica)
{
    const int32_t h = x->free_copy >= 0 ? x->free_copy : x->new_copy++;
    if (h == x->free_copy) x->free_copy = x->copies[h].next;
    int32_t *bucket = bucket_of_pair(x, b, replica);
    x->copies[h] = (copy){.block = b, .replica = replica, .next = *bucket - 1};
    *bucket = h + 1;
    list_add(x, h);
    msgl__lru_append(&x->used[replica], h);
    return h;
}

static void remove_copy(msgl_prefix_index *x, int32_t h)
{
    const int32_t b = x->copies[h].block, replica = x->copies[h].replica;
    int32_t *bucket = bucket_of_pair(x, b, replica);
    if (*bucket - 1 == h) {
        *bucket = x->copies[h].next + 1;
    } else {
        int32_t p = *bucket - 1;
        while (x->copies[p].next != h) p = x->copies[p].next;
        x->copies[p].next = x->copies[h].next;
    }
    list_remove(x, h);
    msgl__lru_remove(&x->used[replica], h);
    x->copies[h].next = x->free_copy;
    x->free_copy = h;
    if (x->blocks[b].count == 0) remove_block(x, b);
}

// --- questions ---

int32_t msgl__prefix_index_find(const msgl_prefix_index *x, const uint64_t *keys, int32_t n,
                                int32_t *out)
{
    int32_t i = 0;
    while (i < n && (out[i] = find_block(x, keys[i])) >= 0) i++;
    return i;
}

int32_t msgl__prefix_index_match(const msgl_prefix_index *x, const int32_t *found, int32_t n,
                                 int32_t replica)
{
    int32_t has = 0, lacks = n + 1; // who holds a block holds those before it
    while (lacks - has > 1) {
        const int32_t mid = has + (lacks - has) / 2;
        if (find_copy(x, found[mid - 1], replica) >= 0) {
            has = mid;
        } else {
            lacks = mid;
        }
    }
    return has;
}

int32_t msgl__prefix_index_num_copies(const msgl_prefix_index *x, int32_t found)
{
    return x->blocks[found].count;
}

int32_t msgl__prefix_index_replicas(const msgl_prefix_index *x, int32_t found, int32_t *replicas,
                                    int32_t max)
{
    int32_t n = 0;
    for (int32_t h = x->blocks[found].first; h >= 0 && n < max; h = x->copies[h].prior) {
        replicas[n++] = x->copies[h].replica;
    }
    return n;
}

// --- changes ---

void msgl__prefix_index_insert(msgl_prefix_index *x, int32_t replica, const uint64_t *keys,
                               int32_t n)
{
    msgl_lru *used = &x->used[replica];
    if (n > x->limit[replica]) n = x->limit[replica];
    // From the last to the first, so that a prefix is always later in use than what it begins.
    for (int32_t i = n; i-- > 0;) {
        int32_t b = find_block(x, keys[i]);
        const int32_t h = b < 0 ? -1 : find_copy(x, b, replica);
        if (h >= 0) {
            list_remove(x, h);
            list_add(x, h);
            msgl__lru_remove(used, h);
            msgl__lru_append(used, h);
            continue;
        }
        if (used->count == x->limit[replica]) remove_copy(x, used->oldest);
        if (b < 0) b = add_block(x, keys[i]);
        (void)add_copy(x, b, replica);
    }
}

void msgl__prefix_index_forget(msgl_prefix_index *x, int32_t replica)
{
    while (x->used[replica].oldest >= 0) remove_copy(x, x->used[replica].oldest);
}

void msgl__prefix_index_resize(msgl_prefix_index *x, int32_t replica, int32_t blocks)
{
    msgl__prefix_index_forget(x, replica);
    x->limit[replica] = blocks;
}
