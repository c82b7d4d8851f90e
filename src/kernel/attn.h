// SPDX-License-Identifier: Apache-2.0
//
// Kernel family attn of the CPU: paged attention over a work list. Every CPU backend (fa, fi,
// trtllm) plans its batch into the same kind of list, so there is one kernel per ISA level and
// dtype, for prefill and decode alike.
//
// One row's arithmetic is defined once. Keys are taken in tiles of MSGL_ATTN_TILE at absolute
// positions; a tile gives (m, l, o): maximum, sum of exp2(s - m) and sum of exp2(s - m) v, with
// s = scale * log2(e) * q.k. Tiles are folded in ascending order:
//     M' = max(M, m);  L' = L exp2(M - M') + l exp2(m - M');  O' likewise;  result O / L
// (the online softmax of Milakov & Gimelshein 2018, algorithm 3, with a tile as the element); the
// sink of a head joins L once, behind the last tile. A tile's value for a row depends on that row's
// q and on the visible keys only: masked keys are exact zeros in every sum. (With dual chunks a
// tile that lies in two ranges is two.) So it makes no difference to the bits of the result how
// rows are grouped into work items, which pages hold the keys, whether one item folds all tiles or
// each tile is a partial of its own folded later, or how many threads there are.
#ifndef MSGL_KERNEL_ATTN_H
#define MSGL_KERNEL_ATTN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"
#include "core/round.h"
#include "kernel/exec.h"
#include "kernel/expanded.h"

#define MSGL_ATTN_TILE 256     // keys
#define MSGL_ATTN_MAX_ROWS 256 // packed query rows of one work item
#define MSGL_ATTN_MAX_DIM 512  // head_dim of K; V has at most as many
// The same where V lies in K (multi-head latent attention): a latent vector and a rotary key.
#define MSGL_ATTN_MAX_LATENT 576
#define MSGL_ATTN_PARTIAL_ALIGN 16 // floats
// A task may take up to FEW_HEADS KV heads of an item of at most FEW_ROWS rows (decode), as long as
// heads * padded head_dim <= FEW_COLUMNS: K and V are then read in the order of memory.
#define MSGL_ATTN_FEW_ROWS 16
#define MSGL_ATTN_FEW_HEADS 8
#define MSGL_ATTN_FEW_COLUMNS 2048

// Ranges of keys, ascending, that a row meets with a query of their own each.
#define MSGL_ATTN_RANGES 3

// Keys [at[i], at[i + 1]) of a row at position pos are range i, some of which are empty; the last
// is open at its end, and is the only one without dual chunks. Its query: MSGL_ATTN_RANGES - 1 - i.
static inline void msgl__attn_ranges(int32_t dual_len, int32_t pos, int32_t at[MSGL_ATTN_RANGES])
{
    const int32_t own = dual_len > 0 ? pos / dual_len * dual_len : 0;
    at[0] = 0;
    at[1] = own > dual_len ? own - dual_len : 0;
    at[2] = own;
}

// A piece of the batch's attention, for every KV head: packed query rows [row, row + rows) of
// request req against its keys [kv_begin, kv_end). Packed row r is token r / group and query head
// kv_head * group + r % group, so that K and V are read once for all heads of a group.
typedef struct msgl_attn_work {
    int32_t req;
    int32_t row, rows;        // rows <= MSGL_ATTN_MAX_ROWS; 0: nothing to do; of one dual chunk
    int32_t kv_begin, kv_end; // the causal rule and the window restrict further
    // First partial that this item writes, of consecutive ones; -1: it writes out itself. The keys
    // of an item with partials are in one range.
    int32_t partial;
    int32_t group; // index into groups when partial >= 0
} msgl_attn_work;

// Rows whose result is folded from partials [partial, partial + num_partials), in this order. With
// tiles of 256 keys, 600 keys and two items of keys [0, 512) and [512, 600), the first one writes
// partials 0 and 1, the second one partial 2, and num_partials is 3.
typedef struct msgl_attn_group {
    int32_t req, row, rows;
    int32_t partial, num_partials;
    int32_t num_works; // items that write these partials
} msgl_attn_group;

typedef enum msgl_attn_partial_kind {
    // One partial per tile: (m, l, o) as above. Folding repeats exactly what one item would have
    // done.
    MSGL_ATTN_PARTIAL_TILE,
    // One partial per work item: o normalised, and its log-sum-exp in base 2 (FlashInfer's
    // convention)
    // in the place of m. L = log2(sum 2^lse_i); o = sum 2^(lse_i - L) o_i; empty partials have lse
    // -inf.
    MSGL_ATTN_PARTIAL_LSE2,
} msgl_attn_partial_kind;

// One layer's attention of a batch. All arrays are device memory and stay unchanged until done.
typedef struct msgl_attn_call {
    msgl_dtype dtype;
    int32_t num_q_heads, num_kv_heads, head_dim; // num_q_heads a multiple of num_kv_heads
    int32_t v_dim;                               // of a head's V, at most head_dim
    // K is the only array, and V of a slot and head the first v_dim elements of its K: v is k.
    bool latent;
    const void *k, *v; // [slots, num_kv_heads, head_dim or v_dim] of this layer
    const float *q;    // [num_tokens, num_q_heads, head_dim]
    size_t ld_q;       // elements from token to token
    float *out;        // [num_tokens, num_q_heads, v_dim]
    size_t ld_out;
    float scale, softcap; // softcap 0: off; scale: of q.k as it is in the pool
    float out_scale;      // of the result; 1 in most cases
    const float *sinks;   // [num_q_heads] attention/attention.h has the formula; NULL: none
    int32_t window;       // W: keys in [p - W, p]; -1: all up to p
    int32_t chunk;        // C: of these those from p / C * C on; 0: all
    // Keys behind p are seen, too: with a window those in [p - W, p + W]. A request's queries are
    // then all of its tokens; no chunk, tree or dual chunks.
    bool bidirectional;
    // Dual chunk attention: keys of a row's own chunk of dual_len positions meet its first query,
    // those of the chunk before it the second one, earlier keys the third, each q_next elements
    // behind the one before. 0: a row has one query, for all keys.
    int32_t dual_len;
    size_t q_next;

    // Requests. Position p's K and V are in slot pages[start + p / page_size] * page_size + p %
    // page_size, where start = page_indptr[req], or req * page_stride when page_indptr is NULL.
    // Entries of positions >= seqlens_k[req] are never read.
    const int32_t *pages, *page_indptr;
    size_t page_stride;
    int32_t page_size;
    const int32_t *cu_seqlens_q; // [requests + 1] first q row of each request
    const int32_t *seqlens_k;    // [requests]; the last query token is at position seqlens_k - 1
    // NULL, or [q rows] whom a token sees of its request's new ones (msgl_seqs). Tiles, window and
    // chunks then count along its path: its bits are those of a call in which the path's tokens
    // stand behind each other. Not with dual chunks.
    const uint64_t *tree;

    const msgl_attn_work *works;
    const msgl_attn_group *groups;
    int32_t num_works;
    int32_t heads_per_task; // KV heads that one task takes; > 1 only if all items have few rows
    msgl_attn_partial_kind partial_kind;
    int32_t partial_rows; // rows reserved in a partial, >= rows of every item that writes partials
    float *partials;      // [partials, num_kv_heads, msgl__attn_partial_floats]
    atomic_int *pending;  // [groups, num_kv_heads] zero at the start; every call leaves zeros
    char *scratch;        // [threads, scratch_stride], 64-byte aligned
    size_t scratch_stride;
} msgl_attn_call;

// Columns of q and of o in partials and states: rounded up so that no kernel has a tail there.
static inline int msgl__attn_padded_dim(int dim)
{
    return (dim + 31) & ~31;
}

// Floats of one partial of one KV head: m [rows], l [rows], o [rows, padded_dim], padded. Columns
// of o are in the ISA level's order.
static inline size_t msgl__attn_partial_floats(int partial_rows, int v_dim)
{
    const size_t n = (size_t)partial_rows * ((size_t)msgl__attn_padded_dim(v_dim) + 2);
    return msgl__round_up(n, MSGL_ATTN_PARTIAL_ALIGN);
}

// The largest number of KV heads of up to `rows` rows each that a task may take, at most `wanted`
// and a divisor of num_kv_heads.
static inline int msgl__attn_heads_per_task(int wanted, int num_kv_heads, int rows, int head_dim)
{
    int n = MSGL_ATTN_FEW_COLUMNS / msgl__attn_padded_dim(head_dim);
    if (n > MSGL_ATTN_FEW_HEADS) n = MSGL_ATTN_FEW_HEADS;
    if (n > wanted) n = wanted;
    if (n > num_kv_heads) n = num_kv_heads;
    if (rows > MSGL_ATTN_FEW_ROWS || n < 1) return 1;
    while (num_kv_heads % n != 0) n--;
    return n;
}

struct msgl__attn_ops; // attn_internal.h

typedef struct msgl_attn_kernels {
    const char *name; // ISA level of this table, for reports
    // The level's functions for a pool of each dtype, and for one where V lies in K. Those of E4M3
    // get tiles that `expand` has made bf16.
    const struct msgl__attn_ops *ops[MSGL_DTYPE_COUNT], *latent_ops[MSGL_DTYPE_COUNT];
    void (*expand)(const uint8_t *from, uint16_t *to, int n);
    // Runs the work list over the pool: tasks (item, KV heads), handed out one by one in list
    // order.
    void (*paged)(const struct msgl_attn_kernels *k, msgl_exec *x, const msgl_attn_call *c);
    // Bytes of scratch that paged needs for each thread, a multiple of 64.
    size_t (*scratch_size)(const struct msgl_attn_kernels *k, msgl_dtype dtype, int head_dim,
                           bool latent);
    // Of latent caches: kernel/expanded.h.
    void (*gather)(msgl_exec *x, const msgl_gather_call *c);
    void (*expanded)(msgl_exec *x, const msgl_expanded_call *c);
} msgl_attn_kernels;

#endif
