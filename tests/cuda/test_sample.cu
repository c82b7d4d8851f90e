// SPDX-License-Identifier: Apache-2.0
//
// Family sample on a GPU: greedy tokens exactly, kept sets against f64, the distribution of draws
// by chi-square, log-probabilities against f64, bias and penalties against the CPU's.
#include "tests/cuda/ops_check.cuh"

extern "C" {
#include "kernel/ref/adjust.h"
}

struct token { // one of a row, for sorting
    float logit;
    int id;
};

static int token_order(const void *a, const void *b)
{
    const token *p = (const token *)a, *q = (const token *)b;
    if (p->logit != q->logit) return p->logit > q->logit ? -1 : 1;
    return p->id - q->id;
}

static token *sorted_row(const float *l, int vocab)
{
    token *t = (token *)malloc(sizeof(token) * vocab);
    for (int i = 0; i < vocab; i++) t[i] = token{l[i], i};
    qsort(t, vocab, sizeof *t, token_order);
    return t;
}

// Length of the prefix of the sorted tokens that the filters keep; `slack` scales top_p and min_p.
static int kept_length(const token *t, int vocab, const msgl_sample_row *r, double slack)
{
    const int k = r->top_k > 0 && r->top_k < vocab ? r->top_k : vocab;
    double total = 0, kept = 0;
    for (int i = 0; i < k; i++) total += exp((t[i].logit - (double)t[0].logit) / r->temperature);
    int n = 0;
    while (n < k) {
        const double p = exp((t[n].logit - (double)t[0].logit) / r->temperature);
        if (n > 0 && p < r->min_p / slack) break;
        kept += p;
        n++;
        if (r->top_p < 1 && kept >= r->top_p * total * slack) break;
    }
    return n;
}

struct draws {
    int32_t *tokens, *status;
    int n;
    bool pool_right; // the pool has the tokens where it should
};

// n draws; ld 0 makes all of them from one row.
static draws draw(bench_exec *e, const float *d_logits, size_t ld, int vocab,
                  const msgl_sample_row *rows, int n)
{
    draws d = {(int32_t *)malloc(sizeof(int32_t) * n), (int32_t *)malloc(sizeof(int32_t) * n), n,
               true};
    memset(d.tokens, 0x77, sizeof(int32_t) * n);
    int32_t *d_tokens = ints_upload(d.tokens, n), *d_status = ints_upload(d.tokens, n);
    msgl_sample_row *d_rows;
    CUDA_OK(cudaMalloc((void **)&d_rows, sizeof *rows * n));
    device_write(d_rows, rows, sizeof *rows * n);
    msgl_sample_call c = {};
    c.logits = (float *)d_logits, c.ld = ld, c.num_rows = n, c.vocab = vocab, c.rows = d_rows;
    for (int i = 0; i < n; i++) {
        c.any_random |= rows[i].temperature > 0;
        c.any_filter |= rows[i].temperature > 0 &&
                        (rows[i].top_k > 0 || rows[i].top_p < 1 || rows[i].min_p > 0);
    }
    c.tokens = d_tokens, c.status = d_status;
    // Every other place of the pool, from the end.
    int32_t *pool = (int32_t *)malloc(sizeof(int32_t) * 2 * n);
    int32_t *index = (int32_t *)malloc(sizeof(int32_t) * n);
    for (int i = 0; i < n; i++) index[i] = 2 * (n - 1 - i), pool[2 * i] = pool[2 * i + 1] = -5;
    int32_t *d_pool = ints_upload(pool, 2 * n), *d_index = ints_upload(index, n);
    c.pool = d_pool, c.pool_index = d_index;
    msgl__cuda_sample(&e->x, &c);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(pool, d_pool, sizeof(int32_t) * 2 * n, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(d.tokens, d_tokens, sizeof(int32_t) * n, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(d.status, d_status, sizeof(int32_t) * n, cudaMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) {
        const int32_t got = pool[index[i]];
        d.pool_right &= got == (d.tokens[i] < 0 ? 0 : d.tokens[i]) && pool[index[i] + 1] == -5;
    }
    cudaFree(d_tokens), cudaFree(d_status), cudaFree(d_rows), cudaFree(d_pool), cudaFree(d_index);
    free(pool), free(index);
    return d;
}

static void draws_free(draws *d)
{
    free(d->tokens), free(d->status);
}

static msgl_sample_row plain_row(float temperature, uint64_t seed, int position)
{
    msgl_sample_row r = {};
    r.temperature = temperature, r.top_p = 1, r.seed = seed, r.position = position;
    return r;
}

// Logits of a kind: 0 normal, 1 rounded coarsely (many ties), 2 all equal, 3 one peak and a long
// tail, 4 mostly -inf.
static void make_row(float *l, int vocab, int kind, uint64_t *seed)
{
    for (int i = 0; i < vocab; i++) {
        const float v = 2.5f * rng_normal(seed);
        l[i] = kind == 0   ? v
               : kind == 1 ? 0.5f * roundf(v)
               : kind == 2 ? -3.25f
               : kind == 3 ? (i == vocab / 3 ? 12 : 0.01f * v)
                           : (i % 5 == 1 ? v : -INFINITY);
    }
    if (kind == 1 && vocab > 2) l[1] = -0.0f, l[2] = 0.0f;
}

// Drawn from columns that are apart, as ranks have them: the tokens of whole rows.
static void check_shards(bench_exec *e, family *f, int rows, int vocab, int ranks, uint64_t *seed)
{
    const int shard_columns = ((vocab + ranks - 1) / ranks + 3) / 4 * 4;
    array l = array_new(MSGL_F32, (size_t)rows * vocab, 0, seed);
    msgl_sample_row *p = (msgl_sample_row *)malloc(sizeof *p * rows), *d_rows;
    for (int r = 0; r < rows; r++) {
        make_row(l.host + (size_t)r * vocab, vocab, r % 5, seed);
        if (r % 7 == 3) l.host[(size_t)r * vocab + rng_next(seed) % vocab] = NAN;
        p[r] = plain_row(r % 2 ? 0.9f : 0, 11, r);
    }
    array_upload(&l);
    draws want = draw(e, (const float *)l.dev, vocab, vocab, p, rows);
    int32_t *out = (int32_t *)malloc(sizeof(int32_t) * 2 * rows),
            *d_out = ints_upload(out, 2 * rows);
    uint64_t *d_keys;
    float *d_shard;
    CUDA_OK(cudaMalloc((void **)&d_rows, sizeof *p * rows));
    CUDA_OK(cudaMalloc((void **)&d_keys, sizeof *d_keys * rows * ranks));
    CUDA_OK(cudaMalloc((void **)&d_shard, sizeof(float) * rows * shard_columns));
    device_write(d_rows, p, sizeof *p * rows);
    msgl_sample_call c = {};
    c.num_rows = rows, c.rows = d_rows, c.any_random = true;
    for (int i = 0; i < ranks; i++) {
        const int first = i * shard_columns,
                  columns = vocab - first < shard_columns ? vocab - first : shard_columns;
        CUDA_OK(cudaMemcpy2D(d_shard, columns * sizeof(float), (const float *)l.dev + first,
                             vocab * sizeof(float), columns * sizeof(float), rows,
                             cudaMemcpyDeviceToDevice));
        c.logits = d_shard, c.ld = columns, c.vocab = columns, c.first = first;
        c.keys = d_keys + (size_t)i * rows;
        msgl__cuda_draw(&e->x, &c);
        exec_sync(e);
    }
    c.keys = d_keys, c.tokens = d_out, c.status = d_out + rows;
    msgl__cuda_pick(&e->x, &c, ranks);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(out, d_out, sizeof(int32_t) * 2 * rows, cudaMemcpyDeviceToHost));
    for (int r = 0; r < rows; r++) {
        expect(f, out[r] == want.tokens[r], "a token from shards");
        expect(f, out[rows + r] == want.status[r], "a status from shards");
    }
    cudaFree(d_out), cudaFree(d_rows), cudaFree(d_keys), cudaFree(d_shard);
    free(out), free(p);
    draws_free(&want), array_free(&l);
}

// The replay inputs of a captured call: the first rows get the tokens of a plain call, the others
// and what the call itself names stay as they were.
static void check_replay(bench_exec *e, family *f, int rows, int vocab, uint64_t *seed)
{
    array l = array_new(MSGL_F32, (size_t)rows * vocab, 0, seed);
    for (size_t i = 0; i < (size_t)rows * vocab; i++) l.host[i] = 2.5f * rng_normal(seed);
    if (rows > 2) l.host[2 * (size_t)vocab] = NAN;
    array_upload(&l);
    msgl_sample_row *p = (msgl_sample_row *)malloc(sizeof *p * rows), *d_rows;
    for (int r = 0; r < rows; r++) {
        p[r] = msgl_sample_row{};
        p[r].temperature = r % 2 ? 0.9f : 0, p[r].top_p = 1, p[r].seed = 5, p[r].position = r;
    }
    draws want = draw(e, (const float *)l.dev, vocab, vocab, p, rows);
    const int counts[] = {0, rows / 2, rows};
    for (int n : counts) {
        // tokens, status, pool and the call's own, all of which only the kernel writes
        int32_t *out = (int32_t *)malloc(sizeof(int32_t) * 4 * rows);
        int32_t *index = (int32_t *)malloc(sizeof(int32_t) * rows);
        for (int i = 0; i < 4 * rows; i++) out[i] = -77;
        for (int r = 0; r < rows; r++) index[r] = rows - 1 - r;
        int32_t *d_out = ints_upload(out, 4 * rows), *d_index = ints_upload(index, rows);
        const msgl_sample_replay replay = {d_out, d_out + rows, n};
        msgl_sample_replay *d_replay;
        CUDA_OK(cudaMalloc((void **)&d_replay, sizeof replay));
        CUDA_OK(cudaMalloc((void **)&d_rows, sizeof *p * rows));
        device_write(d_replay, &replay, sizeof replay), device_write(d_rows, p, sizeof *p * rows);
        msgl_sample_call c = {};
        c.logits = (float *)l.dev, c.ld = vocab, c.num_rows = rows, c.vocab = vocab;
        c.rows = d_rows, c.any_random = true, c.replay = d_replay;
        c.tokens = c.status = d_out + 3 * rows;
        c.pool = d_out + 2 * rows, c.pool_index = d_index;
        msgl__cuda_sample(&e->x, &c);
        exec_sync(e);
        CUDA_OK(cudaMemcpy(out, d_out, sizeof(int32_t) * 4 * rows, cudaMemcpyDeviceToHost));
        for (int r = 0; r < rows; r++) {
            const int32_t token = want.tokens[r];
            expect(f, out[r] == (r < n ? token : -77), "a replayed token");
            expect(f, out[rows + r] == (r < n ? want.status[r] : -77), "a replayed status");
            expect(f,
                   out[2 * rows + index[r]] == (r >= n      ? -77
                                                : token < 0 ? 0
                                                            : token),
                   "a replayed token in the pool");
            expect(f, out[3 * rows + r] == -77, "the call's own memory");
        }
        cudaFree(d_out), cudaFree(d_index), cudaFree(d_replay), cudaFree(d_rows);
        free(out), free(index);
    }
    draws_free(&want), free(p), array_free(&l);
}

static void check_greedy(bench_exec *e, family *f, int rows, int vocab, size_t ld, uint64_t *seed)
{
    array l = array_new(MSGL_F32, (size_t)rows * ld, 0, seed);
    msgl_sample_row *p = (msgl_sample_row *)malloc(sizeof *p * rows);
    for (int r = 0; r < rows; r++) {
        make_row(l.host + r * ld, vocab, r % 5, seed);
        p[r] = plain_row(r % 3 == 2 ? 0.8f : 0, r, r);
        if (r % 3 == 2) p[r].top_k = 1; // greedy too
        if (r % 7 == 3) l.host[r * ld + rng_next(seed) % vocab] = r % 2 ? NAN : INFINITY;
        if (r % 11 == 5) {
            for (int i = 0; i < vocab; i++) l.host[r * ld + i] = -INFINITY;
        }
    }
    array_upload(&l);
    draws d = draw(e, (const float *)l.dev, ld, vocab, p, rows);
    for (int r = 0; r < rows; r++) {
        const float *row = l.host + r * ld;
        int want = -1;
        float max = -INFINITY;
        bool bad = false;
        for (int i = 0; i < vocab; i++) {
            bad |= !(row[i] < INFINITY);
            if (row[i] > max) max = row[i], want = i;
        }
        if (bad) want = -1;
        expect(f, d.tokens[r] == want, "greedy token");
        expect(f, d.status[r] == (want < 0 ? MSGL_ENUMERIC : 0), "status");
    }
    expect(f, d.pool_right, "token pool");
    draws_free(&d), free(p), array_free(&l);
}

// Draws of one row under one setting: only kept tokens, each as often as it should be.
static void check_draws(bench_exec *e, family *f, int vocab, int kind, const msgl_sample_row *p,
                        int n, uint64_t *seed)
{
    array l = array_new(MSGL_F32, vocab, 0, seed);
    make_row(l.host, vocab, kind, seed);
    array_upload(&l);
    msgl_sample_row *rows = (msgl_sample_row *)malloc(sizeof *rows * n);
    for (int i = 0; i < n; i++) {
        rows[i] = *p;
        rows[i].seed = p->seed + (uint64_t)(i % 7);
        rows[i].position = i / 7;
    }
    draws d = draw(e, (const float *)l.dev, 0, vocab, rows, n);
    token *t = sorted_row(l.host, vocab);
    const int least = kept_length(t, vocab, p, 1 - 2e-6);
    const int most = kept_length(t, vocab, p, 1 + 2e-6);
    const int kept = kept_length(t, vocab, p, 1);
    int *place = (int *)malloc(sizeof(int) * vocab);
    for (int i = 0; i < vocab; i++) place[t[i].id] = i;
    int *hits = (int *)calloc(vocab, sizeof(int));
    int last = -1;
    for (int i = 0; i < n; i++) {
        const bool in = d.tokens[i] >= 0 && d.tokens[i] < vocab;
        expect(f, in && d.status[i] == 0, "a token");
        if (!in) continue;
        const int at = place[d.tokens[i]];
        expect(f, at < most, "a token that the filters keep");
        hits[at]++;
        if (at > last) last = at;
    }
    // Chi-square over the tokens expected 10 times or more, the others pooled.
    double sum = 0, chi = 0, rest = n, rest_hits = n;
    int classes = 0;
    for (int i = 0; i < kept; i++) sum += exp((t[i].logit - (double)t[0].logit) / p->temperature);
    for (int i = 0; i < kept; i++) {
        const double want = n * exp((t[i].logit - (double)t[0].logit) / p->temperature) / sum;
        if (want < 10) break;
        chi += pow(hits[i] - want, 2) / want;
        rest -= want, rest_hits -= hits[i];
        classes++;
        // The last kept token has been drawn: the kept set is not shorter than it should be.
        if (i == least - 1 && want > 40) expect(f, last >= i, "all kept tokens are drawn");
    }
    if (rest >= 10) {
        chi += pow(rest_hits - rest, 2) / rest;
        classes++;
    }
    // Wilson and Hilferty: cube root of chi-square / df is nearly normal.
    const double df = classes - 1;
    if (df > 0) {
        const double z = (cbrt(chi / df) - (1 - 2 / (9 * df))) / sqrt(2 / (9 * df));
        expect_near(f, z < 0 ? 0 : z, 0, 4.5, "chi-square");
    }
    expect(f, d.pool_right, "token pool");
    free(hits), free(place), free(t), free(rows), draws_free(&d), array_free(&l);
}

// A row of a mixed batch draws what it draws alone, at any alignment: row 1 and every so many-th.
static void check_mixed(bench_exec *e, family *f, int rows, int vocab, int every, uint64_t *seed)
{
    const size_t ld = (size_t)vocab;
    array l = array_new(MSGL_F32, (size_t)rows * ld, 0, seed);
    msgl_sample_row *p = (msgl_sample_row *)malloc(sizeof *p * rows);
    for (int r = 0; r < rows; r++) {
        make_row(l.host + r * ld, vocab, r % 5, seed);
        p[r] = plain_row(r % 4 == 0 ? 0 : 0.5f + 0.25f * (r % 3), r * 17, r);
        if (r % 2) p[r].top_k = 1 + r * 13 % vocab;
        if (r % 3 == 1) p[r].top_p = 0.9f;
        if (r % 5 == 2) p[r].min_p = 0.05f;
        if (r % 11 == 9) l.host[r * ld + rng_next(seed) % vocab] = r % 2 ? NAN : INFINITY;
    }
    array_upload(&l);
    draws d = draw(e, (const float *)l.dev, ld, vocab, p, rows);
    array one = array_new(MSGL_F32, ld + 8, 0, seed);
    for (int r = 1 % every; r < rows; r += every) {
        for (int shift = 0; shift < 2; shift++) {
            float *at = (float *)one.dev + shift;
            CUDA_OK(cudaMemcpy(at, (float *)l.dev + r * ld, vocab * 4, cudaMemcpyDeviceToDevice));
            draws s = draw(e, at, ld, vocab, &p[r], 1);
            expect(f, s.tokens[0] == d.tokens[r], "a row alone draws the same");
            draws_free(&s);
        }
        if (r % 11 == 9) {
            expect(f, d.tokens[r] == -1 && d.status[r] == MSGL_ENUMERIC, "a bad row");
        } else if (p[r].temperature > 0) {
            token *t = sorted_row(l.host + r * ld, vocab);
            const int most = kept_length(t, vocab, &p[r], 1 + 2e-6);
            bool in = false;
            for (int i = 0; i < most; i++) in |= t[i].id == d.tokens[r];
            expect(f, in, "a token that the filters keep");
            free(t);
        }
    }
    draws_free(&d), free(p), array_free(&one), array_free(&l);
}

static void check_logprobs(bench_exec *e, family *f, int rows, int vocab, size_t ld, uint64_t *seed)
{
    array l = array_new(MSGL_F32, (size_t)rows * ld, 0, seed);
    msgl_token_logprobs *out = (msgl_token_logprobs *)calloc(rows, sizeof *out), *d_out;
    msgl_token_logprobs *before = (msgl_token_logprobs *)calloc(rows, sizeof *out);
    for (int r = 0; r < rows; r++) {
        make_row(l.host + r * ld, vocab, r % 5, seed);
        if (r % 9 == 7) l.host[r * ld + vocab / 2] = NAN;
        out[r].req = r + 5, out[r].position = r * 3;
        out[r].token = (int32_t)(rng_next(seed) % vocab);
        out[r].num_top = r % 3 == 0 ? 20 : r % 3 == 1 ? 0 : 5;
    }
    memcpy(before, out, sizeof *out * rows);
    array_upload(&l);
    CUDA_OK(cudaMalloc((void **)&d_out, sizeof *out * rows));
    device_write(d_out, out, sizeof *out * rows);
    // Listed tokens, with a place between rows that stays as it is.
    enum { LISTED = 131, LISTED_LD = LISTED + 1 };
    int32_t *ids;
    float *listed;
    CUDA_OK(cudaMallocHost((void **)&ids, sizeof *ids * LISTED));
    CUDA_OK(cudaMallocHost((void **)&listed, sizeof *listed * rows * LISTED_LD));
    for (int i = 0; i < LISTED; i++) ids[i] = (int32_t)(rng_next(seed) % vocab);
    for (int i = 0; i < rows * LISTED_LD; i++) listed[i] = 7;
    msgl__cuda_logprobs(&e->x, (const float *)l.dev, ld, rows, vocab, d_out);
    msgl__cuda_listed(&e->x, (const float *)l.dev, ld, d_out, rows, ids, LISTED, listed, LISTED_LD);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(out, d_out, sizeof *out * rows, cudaMemcpyDeviceToHost));
    for (int r = 0; r < rows; r++) {
        const float *row = l.host + r * ld;
        expect(f,
               out[r].req == r + 5 && out[r].position == r * 3 && out[r].token == before[r].token,
               "what is not logprobs' is left alone");
        bool possible = false;
        for (int i = 0; i < vocab; i++) possible |= row[i] > -INFINITY;
        if (r % 9 == 7 || !possible) {
            expect(f, isnan(out[r].logprob) && out[r].rank == 0 && out[r].num_top == 0, "NaN row");
            expect(f, isnan(listed[r * LISTED_LD]), "listed tokens of a NaN row");
            continue;
        }
        token *t = sorted_row(row, vocab);
        double sum = 0;
        for (int i = 0; i < vocab; i++) sum += exp((double)row[i] - t[0].logit);
        const double lse = t[0].logit + log(sum);
        if (row[out[r].token] > -INFINITY) {
            expect_near(f, out[r].logprob, row[out[r].token] - lse, 5e-6, "logprob");
        } else {
            expect(f, out[r].logprob == -INFINITY, "logprob of an impossible token");
        }
        for (int i = 0; i < LISTED; i++) {
            const float got = listed[r * LISTED_LD + i];
            if (row[ids[i]] > -INFINITY) expect_near(f, got, row[ids[i]] - lse, 5e-6, "listed");
            if (ids[i] == out[r].token) expect(f, got == out[r].logprob, "listed, the same bits");
        }
        expect(f, listed[r * LISTED_LD + LISTED] == 7, "nothing behind listed tokens");
        int place = 0;
        while (t[place].id != out[r].token) place++;
        expect(f, out[r].rank == place + 1, "rank");
        const int want = before[r].num_top < vocab ? before[r].num_top : vocab;
        expect(f, out[r].num_top == want, "num_top");
        for (int i = 0; i < want; i++) {
            expect(f, out[r].top_ids[i] == t[i].id, "top id");
            if (t[i].logit > -INFINITY) {
                expect_near(f, out[r].top_logprobs[i], t[i].logit - lse, 5e-6, "top logprob");
            }
        }
        free(t);
    }
    cudaFreeHost(ids), cudaFreeHost(listed);
    cudaFree(d_out), free(out), free(before), array_free(&l);
}

// Requests whose tokens and bias change their logits: on the host, as the CPU's kernels see them,
// and on the device.
struct adjusting {
    int rows, stride; // of the token pool; the last token of a row is the chosen one
    int32_t *pool;
    msgl_sample_row *row;
    msgl_bias *bias;
    msgl_sample_call host, dev;
};

enum { BIAS_ROOM = 64 };

static adjusting adjusting_new(int rows, int vocab, int stride, uint64_t *seed)
{
    adjusting a = {rows, stride};
    const size_t places = (size_t)rows * stride, pairs = (size_t)rows * BIAS_ROOM;
    a.pool = (int32_t *)malloc(sizeof(int32_t) * places);
    a.row = (msgl_sample_row *)malloc(sizeof *a.row * rows);
    a.bias = (msgl_bias *)calloc(pairs, sizeof *a.bias);
    for (int r = 0; r < rows; r++) {
        msgl_sample_row *p = &a.row[r];
        *p = plain_row(r % 2 ? 0 : 1.1f, 40 + r, 0);
        p->tokens = r * stride, p->bias = r * BIAS_ROOM;
        // Row 0 is the longest; some have no answer yet, one has no prompt to speak of.
        p->position = r == 0 ? stride - 1 : 1 + (int)(rng_next(seed) % (stride - 1));
        p->prompt_len = r % 5 == 4 ? p->position : 1 + (int)(rng_next(seed) % p->position);
        for (int i = 0; i < stride; i++) { // half of the answer from few tokens
            const int of = i >= p->prompt_len && i % 2 && vocab > 6 ? 6 : vocab;
            a.pool[p->tokens + i] = (int32_t)(rng_next(seed) % of);
        }
        const int kind = r % 8; // 7: none, 6: all
        p->adjusts = kind != 7;
        p->repetition = kind == 1 || kind == 5 || kind == 6 ? 1.3f : kind == 2 ? 0.6f : 1;
        p->frequency = kind == 3 || kind == 6 ? 0.7f : kind == 5 ? -0.9f : 0;
        p->presence = kind == 4 || kind == 6 ? 1.1f : kind == 2 ? -0.4f : 0;
        if (kind != 0 && kind != 6) continue;
        p->num_bias = vocab < BIAS_ROOM ? vocab : BIAS_ROOM - r % 3;
        for (int i = 0; i < p->num_bias; i++) {
            a.bias[p->bias + i].token = (int32_t)((int64_t)i * vocab / p->num_bias);
            a.bias[p->bias + i].value = 8 * rng_normal(seed);
        }
    }
    a.host.bias = a.bias, a.host.pool = a.pool;
    a.host.saved = (float *)malloc(sizeof(float) * places);
    a.host.bias_saved = (float *)malloc(sizeof(float) * pairs);
    a.dev.pool = ints_upload(a.pool, places);
    a.dev.rows = (msgl_sample_row *)device_copy(a.row, sizeof *a.row * rows);
    a.dev.bias = (msgl_bias *)device_copy(a.bias, sizeof *a.bias * pairs);
    CUDA_OK(cudaMalloc((void **)&a.dev.saved, sizeof(float) * places));
    CUDA_OK(cudaMalloc((void **)&a.dev.bias_saved, sizeof(float) * pairs));
    int32_t *index = (int32_t *)malloc(sizeof(int32_t) * rows);
    for (int r = 0; r < rows; r++) index[r] = a.row[r].tokens + a.row[r].position;
    a.dev.pool_index = ints_upload(index, rows);
    free(index);
    return a;
}

static void adjusting_free(adjusting *a)
{
    free(a->pool), free(a->row), free(a->bias), free(a->host.saved), free(a->host.bias_saved);
    cudaFree(a->dev.pool), cudaFree((void *)a->dev.rows), cudaFree((void *)a->dev.bias);
    cudaFree(a->dev.saved), cudaFree(a->dev.bias_saved), cudaFree((void *)a->dev.pool_index);
}

// A row with a bias or penalties draws what its logits draw as the CPU's kernel changes them, a
// row without them what it drew before, and all logits are afterwards what they were; in a call of
// its own, and by replay inputs (`replay`), with filters and without.
static void check_adjusts(bench_exec *e, family *f, int rows, int vocab, int stride, bool filters,
                          bool replay, uint64_t *seed)
{
    adjusting a = adjusting_new(rows, vocab, stride, seed);
    const size_t n = (size_t)rows * vocab;
    array raw = array_new(MSGL_F32, n, 0, seed), changed = array_new(MSGL_F32, n, 0, seed);
    for (int r = 0; r < rows; r++) {
        make_row(raw.host + (size_t)r * vocab, vocab, r % 2, seed);
        if (r % 16 == 13) raw.host[(size_t)r * vocab + a.pool[a.row[r].tokens]] = NAN;
    }
    memcpy(changed.host, raw.host, sizeof(float) * n);
    for (int r = 0; r < rows; r++) {
        msgl_sample_row *p = &a.row[r];
        if (filters && r % 4 == 0) p->top_k = 1 + r % 40;
        if (filters && r % 4 == 2) p->top_p = 0.8f, p->min_p = 0.01f;
        if (p->adjusts) adjust_row(changed.host + (size_t)r * vocab, p, &a.host);
    }
    array_upload(&raw), array_upload(&changed);
    device_write((void *)a.dev.rows, a.row, sizeof *a.row * rows);
    for (int r = 0; r < rows; r++) a.row[r].adjusts = false;
    draws want = draw(e, (const float *)changed.dev, vocab, vocab, a.row, rows);

    int32_t *out = (int32_t *)malloc(sizeof(int32_t) * 2 * rows);
    memset(out, 0x77, sizeof(int32_t) * 2 * rows);
    int32_t *d_out = ints_upload(out, 2 * rows);
    const msgl_sample_replay inputs = {d_out, d_out + rows, rows};
    msgl_sample_replay *d_replay = (msgl_sample_replay *)device_copy(&inputs, sizeof inputs);
    msgl_sample_call c = a.dev;
    c.logits = (float *)raw.dev, c.ld = vocab, c.num_rows = rows, c.vocab = vocab;
    c.any_random = true, c.any_filter = filters;
    c.tokens = d_out, c.status = d_out + rows;
    if (replay) c.replay = d_replay, c.tokens = c.status = NULL;
    msgl__cuda_sample(&e->x, &c);
    exec_sync(e);
    CUDA_OK(cudaMemcpy(out, d_out, sizeof(int32_t) * 2 * rows, cudaMemcpyDeviceToHost));
    float *after = (float *)malloc(sizeof(float) * n);
    CUDA_OK(cudaMemcpy(after, raw.dev, sizeof(float) * n, cudaMemcpyDeviceToHost));
    for (int r = 0; r < rows; r++) {
        expect(f, out[r] == want.tokens[r], "token of adjusted logits");
        expect(f, out[rows + r] == want.status[r], "status of adjusted logits");
        const size_t at = (size_t)r * vocab;
        expect(f, memcmp(after + at, raw.host + at, sizeof(float) * vocab) == 0,
               "logits as they were");
    }
    free(after), free(out), cudaFree(d_out), cudaFree(d_replay);
    draws_free(&want), array_free(&raw), array_free(&changed), adjusting_free(&a);
}

// --quick is for compute-sanitizer: every kernel and filter, small rows. How many they are decides
// how many threads a row has: FEW rows have clusters of up to eight blocks, SOME clusters of four,
// MANY a block each. racecheck takes 0.2 s for 40 rows of SOME and seconds for one of FEW, so that
// there are hardly any of those.
enum { FEW = 4, SOME = 40, MANY = 140 };

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family greedy = {"greedy"}, draws = {"draws"}, mixed = {"mixed"}, logprobs = {"logprobs"};
    family replay = {"replay"}, adjusts = {"adjusts"}, shards = {"shards"};
    const int big = o.quick ? 5003 : 151936;
    check_greedy(&e, &greedy, SOME, 1, 1, &seed);
    check_greedy(&e, &greedy, MANY, 7, 7, &seed);
    check_greedy(&e, &greedy, SOME, 1000, 1003, &seed);
    check_greedy(&e, &greedy, FEW, big, big, &seed);
    check_greedy(&e, &greedy, SOME, big + 1, big + 1, &seed);
    if (!o.quick) {
        check_greedy(&e, &greedy, 2, 300007, 300007, &seed);
        check_greedy(&e, &greedy, 300, 32000, 32000, &seed);
    }

    check_shards(&e, &shards, SOME, 777, 2, &seed);
    check_shards(&e, &shards, MANY, 778, 3, &seed);
    if (!o.quick) check_shards(&e, &shards, 1, big, 2, &seed);
    if (!o.quick) check_shards(&e, &shards, 64, big, 4, &seed);

    check_replay(&e, &replay, SOME, 777, &seed);
    if (!o.quick) check_replay(&e, &replay, 1, big, &seed);
    if (!o.quick) check_replay(&e, &replay, 24, big, &seed);

    const struct {
        int vocab, kind;
        float temperature, top_p, min_p;
        int top_k;
    } settings[] = {
        {50, 0, 1, 1, 0, 0},
        {50, 0, 0.6f, 1, 0, 0},
        {3, 0, 2, 1, 0, 0},
        {1, 0, 1, 1, 0, 0},
        {50, 0, 1, 1, 0, 10},
        {50, 0, 1, 0.7f, 0, 0},
        {50, 0, 1, 1, 0.1f, 0},
        {50, 0, 0.8f, 0.8f, 0, 20},
        {50, 0, 1.5f, 0.9f, 0.05f, 30},
        {50, 1, 1, 1, 0, 17},
        {50, 1, 1, 0.6f, 0, 0},
        {50, 1, 1, 0.6f, 0.2f, 23},
        {50, 2, 1, 1, 0, 9},
        {50, 2, 1, 0.5f, 0, 0},
        {50, 2, 1, 0.35f, 0, 40},
        {50, 4, 1, 1, 0, 30},
        {50, 4, 1, 0.9f, 0, 0},
        {50, 3, 1, 0.99f, 0, 0},
        {1000, 0, 1, 0.95f, 0, 0},
        {1000, 1, 1, 0.95f, 0, 333},
        {1000, 2, 1, 1, 0, 100},
        {1000, 0, 0.3f, 1, 0, 2},
        {4099, 0, 1, 0.5f, 0.01f, 1000},
        {4099, 1, 1, 1, 0, 2000},
        {64, 0, 0.01f, 1, 0, 0},
        {50, 0, 1, 1, 0, 50},
        {50, 0, 1, 1e-6f, 0, 0},
        {50, 1, 1, 1, 1, 0},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        msgl_sample_row p = plain_row(settings[i].temperature, 1000 + i, 0);
        p.top_p = settings[i].top_p, p.min_p = settings[i].min_p, p.top_k = settings[i].top_k;
        const int n = o.quick                   ? (i % 9 == 8 ? MANY : SOME)
                      : settings[i].vocab <= 64 ? 140000
                                                : 60000;
        check_draws(&e, &draws, settings[i].vocab, settings[i].kind, &p, n, &seed);
    }
    if (!o.quick) {
        msgl_sample_row p = plain_row(1, 7, 0);
        check_draws(&e, &draws, big, 2, &p, 20000, &seed);
        p.top_k = 50;
        check_draws(&e, &draws, big, 0, &p, 5000, &seed);
        p.top_k = 60001, p.top_p = 0.3f;
        check_draws(&e, &draws, big, 1, &p, 5000, &seed);
        p.top_k = 0, p.top_p = 0.9f;
        check_draws(&e, &draws, big + 1, 0, &p, 5000, &seed);
        check_draws(&e, &draws, 300007, 2, &p, 500, &seed); // more than the blocks keep
    }
    for (int i = 0; i < 3; i++) { // filters, neither, replay
        const bool filters = i == 0, in_graph = i == 2;
        check_adjusts(&e, &adjusts, SOME, 777, 90, filters, in_graph, &seed);
        check_adjusts(&e, &adjusts, MANY, 1000, 200, filters, in_graph, &seed);
        check_adjusts(&e, &adjusts, FEW, big, o.quick ? 300 : 3000, filters, in_graph, &seed);
        if (o.quick) continue;
        check_adjusts(&e, &adjusts, 8, 1, 50, filters, in_graph, &seed);
        check_adjusts(&e, &adjusts, 16, 7, 50, filters, in_graph, &seed);
        check_adjusts(&e, &adjusts, 8, big + 1, 40000, filters, in_graph, &seed);
        check_adjusts(&e, &adjusts, 24, big, 3000, filters, in_graph, &seed);
        check_adjusts(&e, &adjusts, 300, 32000, 500, filters, in_graph, &seed);
    }
    check_mixed(&e, &mixed, o.quick ? SOME : 30, 777, o.quick ? SOME : 1, &seed);
    check_mixed(&e, &mixed, o.quick ? MANY : 16, big, o.quick ? MANY : 1, &seed);
    if (!o.quick) {
        check_mixed(&e, &mixed, 1, 500, 1, &seed);
        check_mixed(&e, &mixed, 100, big + 1, 13, &seed);
        check_mixed(&e, &mixed, 300, 5000, 13, &seed);
    }
    check_logprobs(&e, &logprobs, SOME, 1, 1, &seed);
    check_logprobs(&e, &logprobs, MANY, 7, 9, &seed);
    check_logprobs(&e, &logprobs, SOME, big, big, &seed);
    if (!o.quick) check_logprobs(&e, &logprobs, FEW, big, big, &seed);
    if (!o.quick) check_logprobs(&e, &logprobs, 200, 4001, 4001, &seed);
    int failed = family_end(&greedy);
    failed |= family_end(&replay);
    failed |= family_end(&adjusts);
    failed |= family_end(&shards);
    failed |= family_end(&draws);
    failed |= family_end(&mixed);
    failed |= family_end(&logprobs);
    return failed;
}
