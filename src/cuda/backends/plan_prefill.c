// SPDX-License-Identifier: Apache-2.0
#include "cuda/backends/plan_prefill.h"

#include <stdlib.h>

#include "cuda/attn/prefill_sm90.h"

typedef struct msgl_fa_prefill_plan plan_head;
typedef struct msgl_fa_prefill_section section;
typedef struct msgl_fa_prefill_tile tile;

static int tokens_per_tile(int num_q_heads, int num_kv_heads)
{
    return MSGL_FA_PREFILL_ROWS / msgl__fa_prefill_pack(num_q_heads, num_kv_heads);
}

size_t msgl__fa_plan_prefill_size(int num_q_heads, int num_kv_heads, int batch, int total_q)
{
    const size_t tiles = (size_t)total_q / tokens_per_tile(num_q_heads, num_kv_heads) + batch;
    return sizeof(plan_head) + (MSGL_FA_PREFILL_MAX_SECTIONS + 1) * sizeof(section) +
           tiles * sizeof(tile);
}

// Most keys first; equal ones in the batch's order.
static int longest_first(const void *a, const void *b)
{
    const tile *x = a, *y = b;
    const int nx = x->key_hi - x->key_lo, ny = y->key_hi - y->key_lo;
    if (nx != ny) return nx > ny ? -1 : 1;
    return x->row0 < y->row0 ? -1 : 1;
}

static int keys_of(const msgl_fa_prefill_batch *b, int i)
{
    return b->keys != NULL ? b->keys[i] : b->seqlens_k[i];
}

static bool leaves_out(const msgl_dual_sparse *s, int32_t rows, int32_t keys)
{
    return s != NULL && rows > s->rows && keys > s->keys;
}

// Query rows of a tile that begins at position pos, `rows` before the request's end.
static int tile_rows(const msgl_fa_prefill_batch *b, int tokens, int rows, int pos)
{
    const int n = rows < tokens ? rows : tokens;
    const int of_chunk = b->dual_len > 0 ? b->dual_len - pos % b->dual_len : n;
    return n < of_chunk ? n : of_chunk;
}

// Tiles of request i, appended to out. Returns how many.
static int cut_request(const msgl_fa_prefill_batch *b, int i, int tokens, tile *out)
{
    const int row0 = b->cu_seqlens_q[i], rows = b->cu_seqlens_q[i + 1] - row0;
    const int first = b->seqlens_k[i] - rows, keys = keys_of(b, i);
    int n = 0;
    if (leaves_out(b->left_out, rows, b->seqlens_k[i])) return 0;
    for (int at = 0; at < rows; at += out[n - 1].tokens) {
        tile *t = &out[n++];
        *t = (tile){.row0 = row0 + at,
                    .pos0 = first + at,
                    .tokens = tile_rows(b, tokens, rows - at, first + at),
                    .klen = keys,
                    .table_row = b->table_rows[i]};
        t->key_hi = t->pos0 + t->tokens < keys ? t->pos0 + t->tokens : keys;
        t->key_lo = b->window >= 0 && t->pos0 > b->window ? t->pos0 - b->window : 0;
    }
    return n;
}

typedef struct {
    section *out;
    int count, work;
} section_list;

static void add_section(section_list *l, int tile0, int tiles, int head0, int heads)
{
    l->out[l->count++] = (section){l->work, tile0, head0, heads};
    l->work += tiles * heads;
}

size_t msgl__fa_plan_prefill(const msgl_fa_prefill_batch *b, void *out)
{
    const int pack = msgl__fa_prefill_pack(b->num_q_heads, b->num_kv_heads);
    const int tokens = MSGL_FA_PREFILL_ROWS / pack;
    const int groups = b->num_q_heads / pack, per_kv = groups / b->num_kv_heads;
    const int64_t key_bytes = 2ll * b->num_kv_heads * b->head_dim * b->elem_size;
    const int64_t budget = (int64_t)(b->l2_bytes / 2);

    plan_head *head = out;
    section_list list = {.out = (section *)(head + 1)};
    tile *tiles = (tile *)(list.out + MSGL_FA_PREFILL_MAX_SECTIONS + 1);
    int num_tiles = 0;
    for (int i = 0; i < b->batch;) {
        const int tile0 = num_tiles;
        int64_t bytes = 0;
        const bool last = list.count >= MSGL_FA_PREFILL_MAX_SECTIONS - b->num_kv_heads - 1;
        do {
            bytes += key_bytes * keys_of(b, i);
            num_tiles += cut_request(b, i, tokens, tiles + num_tiles);
            i++;
        } while (i < b->batch && (last || bytes + key_bytes * keys_of(b, i) <= budget));
        const int count = num_tiles - tile0;
        if (count == 0) continue;
        qsort(tiles + tile0, (size_t)count, sizeof(tile), longest_first);
        int kv_heads = b->num_kv_heads; // of one section
        while (!last && kv_heads > 1 && bytes / b->num_kv_heads * kv_heads > budget)
            kv_heads = (kv_heads + 1) / 2;
        for (int h = 0; h < b->num_kv_heads; h += kv_heads) {
            const int n = b->num_kv_heads - h < kv_heads ? b->num_kv_heads - h : kv_heads;
            add_section(&list, tile0, count, h * per_kv, n * per_kv);
        }
    }
    list.out[list.count] = (section){.work0 = list.work};
    *head = (plan_head){.num_work = list.work, .num_tiles = num_tiles, .num_sections = list.count};
    return (size_t)((char *)(tiles + num_tiles) - (char *)out);
}
