// SPDX-License-Identifier: Apache-2.0
#include "attention/dual_chunk/sparse_prompt.h"

#include <math.h>
#include <string.h>

#include "attention/largest.h"
#include "attention/paged.h"
#include "attention/triton/softmax.h"
#include "core/mem.h"
#include "utils/threadpool.h"

enum {
    BLOCK = 64, // rows that attend together, and the keys that a distance is of each of them
    TILE = MSGL_TRITON_TILE,
};

// Of a worker, for one head at a time.
typedef struct worker_room {
    float *columns, *distances; // [max_seq_len] sums of probabilities
    int32_t *chosen;            // [max_seq_len]
    uint8_t *seen;              // [max_seq_len] whether a block sees a key
    float *queries;             // [MSGL_ATTN_RANGES - 1, last, head_dim] of earlier chunks
    float *max, *sum;           // [last] of the rows that choose
    float *k, *v;               // [TILE, head_dim]
} worker_room;

// Rows [row, row + end - begin) of the step, at positions [begin, end) of one chunk.
typedef struct piece {
    const msgl_attn_config *cfg;
    const msgl_sparse_room *room;
    const msgl_attn_layer *layer;
    const msgl_attn_input *in;
    int32_t table_row;
    float *out;
    int32_t row, begin, end;
    int32_t ranges[MSGL_ATTN_RANGES + 1]; // where they begin, and the last one's end
} piece;

static worker_room cut_room(const msgl_attn_config *cfg, char **at)
{
    const size_t len = (size_t)cfg->max_seq_len, dim = (size_t)cfg->head_dim;
    const size_t last = (size_t)cfg->pattern->prompts.last;
    worker_room w;
    w.columns = msgl__attn_carve(at, len * sizeof *w.columns);
    w.distances = msgl__attn_carve(at, len * sizeof *w.distances);
    w.chosen = msgl__attn_carve(at, len * sizeof *w.chosen);
    w.seen = msgl__attn_carve(at, len);
    w.queries = msgl__attn_carve(at, (MSGL_ATTN_RANGES - 1) * last * dim * sizeof *w.queries);
    w.max = msgl__attn_carve(at, last * sizeof *w.max);
    w.sum = msgl__attn_carve(at, last * sizeof *w.sum);
    w.k = msgl__attn_carve(at, TILE * dim * sizeof *w.k);
    w.v = msgl__attn_carve(at, TILE * dim * sizeof *w.v);
    return w;
}

static worker_room room_of(const piece *p, int worker)
{
    char *at = p->room->workers + (size_t)worker * p->room->stride;
    return cut_room(p->cfg, &at);
}

// Gives all arrays their places from *at on; with at counting from NULL, measures them.
static void carve(const msgl_attn_config *cfg, msgl_sparse_room *room, char **at)
{
    char *worker = NULL;
    (void)cut_room(cfg, &worker);
    room->stride = (size_t)(uintptr_t)worker;
    room->words = ((size_t)cfg->max_seq_len + 63) / 64;
    const size_t bits = (size_t)cfg->num_q_heads * room->words * sizeof *room->columns;
    room->columns = msgl__attn_carve(at, bits);
    room->distances = msgl__attn_carve(at, bits);
    room->workers = msgl__attn_carve(at, (size_t)cfg->num_threads * room->stride);
}

int msgl__sparse_room_create(const msgl_attn_config *cfg, msgl_sparse_room *room, msgl_err *err)
{
    char *at = NULL;
    carve(cfg, room, &at);
    room->bytes = (size_t)(uintptr_t)at;
    at = room->base = msgl__pages_alloc(room->bytes);
    if (room->base == NULL) {
        return msgl__err_set(err, MSGL_ENOMEM, "sparse prompts: no memory for %zu bytes",
                             room->bytes);
    }
    carve(cfg, room, &at);
    return 0;
}

void msgl__sparse_room_destroy(msgl_sparse_room *room)
{
    msgl__pages_free(room->base, room->bytes);
}

static int32_t at_most(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

// Query of a row of the step for the keys of a range.
static const float *query_of(const piece *p, int32_t row, int range, int head)
{
    const size_t dim = (size_t)p->cfg->head_dim, heads = (size_t)p->cfg->num_q_heads;
    const size_t set = (size_t)(MSGL_ATTN_RANGES - 1 - range);
    return (const float *)p->in->q + (size_t)row * p->in->ld + (set * heads + (size_t)head) * dim;
}

// K of keys[0, n) of a head's group, and V where it is wanted.
static void load_keys(const piece *p, int head, const int32_t *keys, int n, float *k, float *v)
{
    const msgl_attn_config *cfg = p->cfg;
    const msgl_kv_pool *pool = cfg->pool;
    const size_t dim = (size_t)cfg->head_dim, heads = (size_t)cfg->num_kv_heads;
    const size_t kv_head = (size_t)(head / (cfg->num_q_heads / cfg->num_kv_heads));
    for (int j = 0; j < n; j++) {
        const int32_t slot = msgl__page_table_slot(cfg->page_table, p->table_row, keys[j]);
        const size_t at = ((size_t)slot * heads + kv_head) * dim;
        const int d = cfg->head_dim;
        msgl__to_f32(msgl__kv_k(pool, p->layer->layer), pool->spec.dtype, at, d,
                     k + (size_t)j * dim);
        if (v == NULL) continue;
        msgl__to_f32(msgl__kv_v(pool, p->layer->layer), pool->spec.dtype, at, d,
                     v + (size_t)j * dim);
    }
}

// ---- choosing a pattern ----

static int32_t choosing_rows(const piece *p)
{
    return at_most(p->cfg->pattern->prompts.last, p->end - p->begin);
}

// The queries that choose among keys of earlier chunks are rotated by the whole distance, so that
// they find what is near across the border: by len for the chunk before, by size for others.
static void rotate_queries(const piece *p, int head, const worker_room *w)
{
    const msgl_dual_pattern *pattern = p->cfg->pattern;
    const int dim = p->cfg->head_dim, half = pattern->half, rows = choosing_rows(p);
    for (int t = 0; t < 2; t++) {
        const float *cosines = pattern->rotations + (size_t)t * 2 * (size_t)half;
        const float *sines = cosines + half;
        for (int i = 0; i < rows; i++) {
            const int32_t row = p->row + (p->end - p->begin) - rows + i;
            const float *q = query_of(p, row, MSGL_ATTN_RANGES - 1, head);
            float *to = w->queries + (size_t)(t * pattern->prompts.last + i) * (size_t)dim;
            memcpy(to, q, (size_t)dim * sizeof *to);
            for (int d = 0; d < half; d++) {
                to[d] = q[d] * cosines[d] - q[half + d] * sines[d];
                to[half + d] = q[half + d] * cosines[d] + q[d] * sines[d];
            }
        }
    }
}

// Scores that choosing row i gives to n keys of a range, whose K are in w->k.
static void score_row(const piece *p, const worker_room *w, int head, int range, int i, int n,
                      float *scores)
{
    const int dim = p->cfg->head_dim, rows = choosing_rows(p);
    const float *q = w->queries;
    if (range == MSGL_ATTN_RANGES - 1) {
        q = query_of(p, p->row + (p->end - p->begin) - rows + i, range, head);
    } else { // 1: the chunk before, by the first rotation; 0: by the second
        q += (size_t)((1 - range) * p->cfg->pattern->prompts.last + i) * (size_t)dim;
    }
    for (int j = 0; j < n; j++) {
        scores[j] = msgl__dot(q, w->k + (size_t)j * (size_t)dim, dim) * p->layer->scale;
    }
}

// What a pass does with the scores of choosing row i, at position pos, for n keys from `key` on.
typedef void (*row_fn)(const worker_room *w, int i, int32_t pos, int32_t key, const float *s,
                       int n);

// First pass: the row's maximum, and its sum of exponentials.
static void sum_row(const worker_room *w, int i, int32_t pos, int32_t key, const float *s, int n)
{
    (void)pos;
    (void)key;
    float m = w->max[i];
    for (int j = 0; j < n; j++) m = s[j] > m ? s[j] : m;
    w->sum[i] *= expf(w->max[i] - m);
    w->max[i] = m;
    for (int j = 0; j < n; j++) w->sum[i] += expf(s[j] - m);
}

// Second pass: what the row gives to each key and distance. To do it in one, [last, keys] of scores
// would have to be kept.
static void add_probs(const worker_room *w, int i, int32_t pos, int32_t key, const float *s, int n)
{
    for (int j = 0; j < n; j++) {
        const float prob = expf(s[j] - w->max[i]) / w->sum[i];
        w->columns[key + j] += prob;
        w->distances[pos - key - j] += prob;
    }
}

static void pass_tile(const piece *p, const worker_room *w, int head, int range, int32_t key, int n,
                      row_fn fn)
{
    const int32_t rows = choosing_rows(p);
    int32_t keys[TILE];
    float s[TILE];
    for (int j = 0; j < n; j++) keys[j] = key + j;
    load_keys(p, head, keys, n, w->k, NULL);
    for (int32_t i = 0; i < rows; i++) {
        const int32_t pos = p->end - rows + i, visible = at_most(n, pos + 1 - key);
        if (visible <= 0) continue;
        score_row(p, w, head, range, i, visible, s);
        fn(w, i, pos, key, s, visible);
    }
}

static void pass_keys(const piece *p, const worker_room *w, int head, row_fn fn)
{
    for (int range = 0; range < MSGL_ATTN_RANGES; range++) {
        const int32_t to = p->ranges[range + 1];
        for (int32_t key = p->ranges[range]; key < to; key += TILE) {
            pass_tile(p, w, head, range, key, at_most(TILE, to - key), fn);
        }
    }
}

// Sets the bits of the n largest of len sums, `kept` first ones among them whatever they are.
static void choose_bits(float *sums, int32_t len, int32_t n, int32_t kept, int32_t *chosen,
                        uint64_t *bits)
{
    for (int32_t i = 0; i < at_most(kept, len); i++) sums[i] = INFINITY;
    n = at_most(n, len);
    msgl__attn_largest(sums, len, n, chosen);
    for (int32_t i = 0; i < n; i++) bits[chosen[i] / 64] |= UINT64_C(1) << chosen[i] % 64;
}

// Task: query head.
static void choose_pattern(void *arg, int head, int worker)
{
    const piece *p = arg;
    const worker_room w = room_of(p, worker);
    const msgl_head_pattern *pattern = msgl__dual_heads(p->cfg->pattern, p->layer->layer) + head;
    uint64_t *columns = p->room->columns + (size_t)head * p->room->words;
    uint64_t *distances = p->room->distances + (size_t)head * p->room->words;
    const size_t bytes = (size_t)(p->end + 63) / 64 * sizeof *columns;
    const int32_t rows = choosing_rows(p);
    const bool all = rows == p->end - p->begin; // no rows but those that would choose
    memset(distances, 0, bytes);
    memset(columns, all ? 255 : 0, bytes);
    if (all) return;
    rotate_queries(p, head, &w);
    memset(w.columns, 0, (size_t)p->end * sizeof *w.columns);
    memset(w.distances, 0, (size_t)p->end * sizeof *w.distances);
    for (int32_t i = 0; i < rows; i++) {
        w.max[i] = -INFINITY;
        w.sum[i] = 0;
    }
    pass_keys(p, &w, head, sum_row);
    pass_keys(p, &w, head, add_probs);
    choose_bits(w.columns, p->end, msgl__dual_columns(pattern), MSGL_SPARSE_FIRST_KEYS, w.chosen,
                columns);
    choose_bits(w.distances, p->end, pattern->distances, MSGL_SPARSE_NEAR_KEYS, w.chosen,
                distances);
}

// ---- attending by it ----

// The first bit that is set from `from` on; n if there is none below n.
static int32_t next_bit(const uint64_t *bits, int32_t from, int32_t n)
{
    while (from < n) {
        const uint64_t left = bits[from / 64] >> from % 64;
        if (left != 0) return at_most(from + __builtin_ctzll(left), n);
        from = (from / 64 + 1) * 64;
    }
    return n;
}

// Where the range ends in which the piece's last row has its key at a distance: no row has one
// beyond.
static int32_t reach(const piece *p, int32_t distance)
{
    int range = MSGL_ATTN_RANGES - 1;
    while (p->ranges[range] > p->end - 1 - distance) range--;
    return p->ranges[range + 1];
}

// Which keys rows [begin, end) of a block see: the columns, and at each distance as many keys as a
// block has rows, from the first row's on.
static void see_keys(const piece *p, int head, int32_t begin, int32_t end, uint8_t *seen)
{
    const uint64_t *columns = p->room->columns + (size_t)head * p->room->words;
    const uint64_t *distances = p->room->distances + (size_t)head * p->room->words;
    memset(seen, 0, (size_t)end);
    for (int32_t i = 0; (i = next_bit(columns, i, end)) < end; i++) seen[i] = 1;
    for (int32_t i = 0; (i = next_bit(distances, i, p->end)) < p->end; i++) {
        const int32_t from = begin - i > 0 ? begin - i : 0;
        const int32_t to = at_most(at_most(begin - i + BLOCK, end), reach(p, i));
        if (to > from) memset(seen + from, 1, (size_t)(to - from));
    }
}

// The next keys of a range that are seen, at most TILE; returns how many. *key: where to look on.
static int next_keys(const uint8_t *seen, int32_t *key, int32_t to, int32_t keys[TILE])
{
    int n = 0;
    for (; *key < to && n < TILE; ++*key) {
        if (seen[*key]) keys[n++] = *key;
    }
    return n;
}

// Task: query head, block of rows.
static void attend_block(void *arg, int task, int worker)
{
    const piece *p = arg;
    const worker_room w = room_of(p, worker);
    const int heads = p->cfg->num_q_heads, head = task % heads, dim = p->cfg->head_dim;
    const int32_t begin = p->begin + task / heads * BLOCK, end = at_most(begin + BLOCK, p->end);
    msgl_softmax rows[BLOCK];
    see_keys(p, head, begin, end, w.seen);
    for (int32_t pos = begin; pos < end; pos++) {
        const size_t row = (size_t)(p->row + pos - p->begin) * (size_t)heads + (size_t)head;
        rows[pos - begin] = (msgl_softmax){.dim = dim,
                                           .v_dim = dim,
                                           .scale = p->layer->scale,
                                           .m = -INFINITY,
                                           .acc = p->out + row * (size_t)dim};
        memset(rows[pos - begin].acc, 0, (size_t)dim * sizeof *p->out);
    }
    for (int range = 0; range < MSGL_ATTN_RANGES; range++) {
        const int32_t to = at_most(p->ranges[range + 1], end);
        int32_t keys[TILE], key = p->ranges[range];
        for (int n; (n = next_keys(w.seen, &key, to, keys)) > 0;) {
            load_keys(p, head, keys, n, w.k, w.v);
            for (int32_t pos = begin; pos < end; pos++) {
                int visible = n;
                while (visible > 0 && keys[visible - 1] > pos) visible--;
                if (visible == 0) continue;
                const float *q = query_of(p, p->row + pos - p->begin, range, head);
                msgl__softmax_tile(&rows[pos - begin], q, w.k, w.v, visible);
            }
        }
    }
    for (int32_t i = 0; i < end - begin; i++) {
        for (int d = 0; d < dim; d++) rows[i].acc[d] /= rows[i].l;
    }
}

void msgl__sparse_prompt_attend(const msgl_attn_config *cfg, const msgl_sparse_room *room,
                                msgl_exec *x, const msgl_attn_layer *layer, const msgl_seqs *seqs,
                                int32_t req, const msgl_attn_input *in, float *out)
{
    const int32_t rows = seqs->cu_seqlens_q[req + 1] - seqs->cu_seqlens_q[req];
    const int32_t len = seqs->seqlens_k[req];
    piece p = {.cfg = cfg,
               .room = room,
               .layer = layer,
               .in = in,
               .table_row = seqs->table_rows[req],
               .out = out,
               .row = seqs->cu_seqlens_q[req]};
    for (p.begin = len - rows; p.begin < len; p.begin = p.end) {
        p.end = at_most((p.begin / cfg->dual_len + 1) * cfg->dual_len, len);
        msgl__attn_ranges(cfg->dual_len, p.begin, p.ranges);
        p.ranges[MSGL_ATTN_RANGES] = p.end;
        const int32_t blocks = msgl__ceil_div(p.end - p.begin, BLOCK);
        msgl__pool_run(x->pool, cfg->num_q_heads, choose_pattern, &p);
        msgl__pool_run(x->pool, blocks * cfg->num_q_heads, attend_block, &p);
        p.row += p.end - p.begin;
    }
}
