// SPDX-License-Identifier: Apache-2.0
//
// Family sample: llama.cpp's further samplers (kernel/chain.h, docs/sampling.md), a block per row.
//
// No row is sorted. What a filter leaves is said by limits of keys and values, which every pass
// over the row looks at anew; where a prefix of some order has to reach a mass, a radix selection
// over sums of masses finds its last key. Sums are integers, so that no result depends on the
// threads; the draw is that of kernel/ref/chain.inc, with the same number, in the order of ids.
//
// The logits are a copy: penalties and DRY change it for good.
#include "cuda/device.cuh"
#include "cuda/launch.cuh"
#include "cuda/ops/adjust_values.cuh"
#include "cuda/ops/ops.h"
// Behind CUDA's headers.
#include "kernel/chain.h"

typedef unsigned long long sum_t; // as atomics want it

enum { CHAIN_THREADS = 512, BINS = 2048, BINS_BITS = 11, BINS_PER_THREAD = BINS / CHAIN_THREADS };

struct chain_args {
    float *logits;
    size_t ld;
    int vocab;
    const msgl_sample_row *rows;
    const msgl_sample_chain *chains;
    int32_t *tokens, *status, *pool;
    const int32_t *pool_index;
    const msgl_bias *bias;
    float *saved, *mu, *mu_out;
    const uint32_t *breakers;
};

struct chain_shared {
    sum_t sums[CHAIN_THREADS], bins[BINS];
    double reals[CHAIN_THREADS];
    sum_t before; // of the bin that was looked for
    int bin;
};

// A row that is being chosen from, and what is left of it.
struct chain_row {
    chain_shared *shared;
    float *l;
    int vocab;
    float max;
    double inv_t;
    double bound;         // least logit
    uint64_t first, last; // keys by logit
    uint64_t typical;     // last key by typicality, with the two below
    double log_sum, entropy;
    double least; // smallest exp(x)
    bool mirostat;
    double mu;     // with mirostat: most surprise, over mirostat_log_sum, but for the key `best`
    double mu_log; //
    uint64_t best;
};

// ---- the block ----

// Combines the values of all threads, each of which gets the result, in `of` [CHAIN_THREADS] of
// shared memory. Halves are added to halves, so that the order is always the same: of 4 threads'
// values (v0 + v2) + (v1 + v3).
template <typename T, typename OP>
static __device__ __forceinline__ T block_reduce(T *of, T v, OP op)
{
    const int t = (int)threadIdx.x;
    of[t] = v;
    __syncthreads();
    for (int n = CHAIN_THREADS / 2; n > 0; n /= 2) {
        if (t < n) of[t] = op(of[t], of[t + n]);
        __syncthreads();
    }
    v = of[0];
    __syncthreads();
    return v;
}

static __device__ __forceinline__ sum_t block_sum(chain_shared *s, sum_t v)
{
    return block_reduce(s->sums, v, [](sum_t a, sum_t b) { return a + b; });
}

static __device__ __forceinline__ double block_sum(chain_shared *s, double v)
{
    return block_reduce(s->reals, v, [](double a, double b) { return a + b; });
}

static __device__ __forceinline__ uint64_t block_max(chain_shared *s, uint64_t v)
{
    return block_reduce(s->sums, (sum_t)v, [](sum_t a, sum_t b) { return a > b ? a : b; });
}

// The sum over the threads before this one: of 4 threads with 5, 1, 2 and 4 it is 0, 5, 6 and 8.
static __device__ __forceinline__ sum_t block_before(chain_shared *s, sum_t v)
{
    const int t = (int)threadIdx.x;
    s->sums[t] = v;
    __syncthreads();
    for (int n = 1; n < CHAIN_THREADS; n *= 2) {
        const sum_t more = t >= n ? s->sums[t - n] : 0;
        __syncthreads();
        s->sums[t] += more;
        __syncthreads();
    }
    const sum_t before = s->sums[t] - v;
    __syncthreads();
    return before;
}

// ---- what is left ----

static __device__ __forceinline__ double x_of(const chain_row &r, float l)
{
    return ((double)l - (double)r.max) * r.inv_t;
}

// Whether token i is left; *x and *key are its own.
static __device__ bool is_left(const chain_row &r, int i, double *x, uint64_t *key)
{
    const float l = r.l[i];
    if (!(l > -INFINITY) || (double)l < r.bound) return false;
    *x = x_of(r, l);
    *key = chain_key(l, i);
    if (*key < r.first || *key > r.last) return false;
    if (r.typical != CHAIN_ALL && chain_typical_key(*x, r.log_sum, r.entropy, i) > r.typical) {
        return false;
    }
    if (r.mirostat) return *key == r.best || (r.mu_log - *x) / 0.693147180559945309417 <= r.mu;
    return r.least <= 0 || exp(*x) >= r.least;
}

// Calls fn(i, x, key) for all tokens that are left; by all threads.
template <typename FN> static __device__ __forceinline__ void each_left(const chain_row &r, FN fn)
{
    for (int i = (int)threadIdx.x; i < r.vocab; i += CHAIN_THREADS) {
        double x;
        uint64_t key;
        if (is_left(r, i, &x, &key)) fn(i, x, key);
    }
}

static __device__ uint64_t total_mass(const chain_row &r)
{
    sum_t sum = 0;
    each_left(r, [&](int, double x, uint64_t) { sum += chain_mass(x); });
    return block_sum(r.shared, sum);
}

// The bin in which a mass of *want ends, which becomes the mass that is wanted of this bin: with
// bins of 3, 0 and 4 and *want 5 it is bin 2, and *want becomes 2.
static __device__ int find_bin(chain_shared *s, sum_t *want)
{
    const int at = (int)threadIdx.x * BINS_PER_THREAD;
    sum_t own = 0;
    for (int b = 0; b < BINS_PER_THREAD; b++) own += s->bins[at + b];
    sum_t before = block_before(s, own);
    for (int b = 0; b < BINS_PER_THREAD; b++) {
        const sum_t in = s->bins[at + b];
        if (before < *want && *want <= before + in) s->bin = at + b, s->before = before;
        before += in;
    }
    __syncthreads();
    *want -= s->before;
    const int bin = s->bin;
    __syncthreads();
    return bin;
}

// The key of the token with which the prefix of those that are left, by keys, reaches `want`, which
// is at most all of them. fn(i, x, &key): the token's key and mass.
template <typename FN>
static __device__ __forceinline__ uint64_t last_key(const chain_row &r, sum_t want, FN fn)
{
    chain_shared *const s = r.shared;
    uint64_t prefix = 0;
    for (int shift = 32 + CHAIN_ID_BITS; shift > 0;) {
        const int bits = shift < BINS_BITS ? shift : BINS_BITS;
        shift -= bits;
        for (int b = (int)threadIdx.x; b < BINS; b += CHAIN_THREADS) s->bins[b] = 0;
        __syncthreads();
        each_left(r, [&](int i, double x, uint64_t key) {
            const sum_t mass = fn(i, x, &key);
            if (key >> (shift + bits) != prefix) return;
            atomicAdd(&s->bins[(key >> shift) & ((1u << bits) - 1)], mass);
        });
        __syncthreads();
        prefix = prefix << bits | (uint64_t)find_bin(s, &want);
    }
    return prefix;
}

// ---- the filters ----

// Standard deviation of the finite logits, for a bound.
static __device__ void keep_sigma(chain_row *r, float n_sigma)
{
    double sum = 0, squares = 0;
    sum_t count = 0;
    each_left(*r, [&](int i, double, uint64_t) { sum += (double)r->l[i], count++; });
    count = block_sum(r->shared, count);
    const double mean = block_sum(r->shared, sum) / (double)count;
    each_left(*r, [&](int i, double, uint64_t) {
        const double d = (double)r->l[i] - mean;
        squares += d * d;
    });
    squares = block_sum(r->shared, squares);
    r->bound = (double)r->max - (double)n_sigma * sqrt(squares / (double)count);
}

static __device__ void keep_top(chain_row *r, int top_k)
{
    sum_t count = 0;
    each_left(*r, [&](int, double, uint64_t) { count++; });
    if ((sum_t)top_k >= block_sum(r->shared, count)) return;
    r->last = last_key(*r, (sum_t)top_k, [](int, double, uint64_t *) { return (sum_t)1; });
}

static __device__ void keep_typical(chain_row *r, float p)
{
    sum_t mass = 0, surprise = 0;
    each_left(
        *r, [&](int, double x, uint64_t) { mass += chain_mass(x), surprise += chain_surprise(x); });
    mass = block_sum(r->shared, mass);
    surprise = block_sum(r->shared, surprise);
    r->entropy = chain_entropy(mass, surprise);
    r->log_sum = log((double)mass / CHAIN_ONE);
    r->typical =
        last_key(*r, chain_mass_target(p, mass, true), [r](int i, double x, uint64_t *key) {
            *key = chain_typical_key(x, r->log_sum, r->entropy, i);
            return (sum_t)chain_mass(x);
        });
}

static __device__ void keep_nucleus(chain_row *r, float p)
{
    const uint64_t want = chain_mass_target(p, total_mass(*r), false);
    r->last = last_key(*r, want, [](int, double x, uint64_t *) { return (sum_t)chain_mass(x); });
}

// The key of the most likely token that is left.
static __device__ uint64_t best_key(const chain_row &r)
{
    uint64_t best = 0; // of ~key, so that none is 0
    each_left(r, [&](int, double, uint64_t key) { best = ~key > best ? ~key : best; });
    return ~block_max(r.shared, best);
}

static __device__ void drop_likely(chain_row *r, float threshold)
{
    const double least = (double)threshold * (double)total_mass(*r);
    uint64_t last = 0;
    each_left(*r, [&](int, double x, uint64_t key) {
        if ((double)chain_mass(x) >= least && key > last) last = key;
    });
    r->first = block_max(r->shared, last);
}

static __device__ void filter(chain_row *r, const msgl_sample_row &p, const msgl_sample_chain &c)
{
    if (c.top_n_sigma > 0) keep_sigma(r, c.top_n_sigma);
    if (p.top_k > 0) keep_top(r, p.top_k);
    if (c.typical_p < 1) keep_typical(r, c.typical_p);
    if (p.top_p < 1) keep_nucleus(r, p.top_p);
    if (p.min_p > 0) {
        const double best = x_of(*r, r->l[chain_id(best_key(*r))]);
        r->least = (double)p.min_p * exp(best);
    }
    if (chain_uniform(p.seed, p.position, 1) < (double)c.xtc_probability) {
        drop_likely(r, c.xtc_threshold);
    }
}

static __device__ void keep_expected(chain_row *r, float mu)
{
    r->mu_log = log((double)total_mass(*r) / CHAIN_ONE);
    r->best = best_key(*r);
    r->mu = (double)mu;
    r->mirostat = true;
}

// Draws in the order of ids, of which each thread has a range. *log_sum is that of the tokens left.
static __device__ int draw(const chain_row &r, double u, double *log_sum)
{
    chain_shared *const s = r.shared;
    const int per = (r.vocab + CHAIN_THREADS - 1) / CHAIN_THREADS;
    const int from = (int)threadIdx.x * per, to = min(from + per, r.vocab);
    double x;
    uint64_t key;
    sum_t own = 0;
    for (int i = from; i < to; i++) {
        if (is_left(r, i, &x, &key)) own += chain_mass(x);
    }
    const sum_t total = block_sum(s, own);
    *log_sum = log((double)total / CHAIN_ONE);
    if (total == 0) return chain_id(best_key(r));
    const sum_t at = (sum_t)(u * (double)total), target = at < total ? at : total - 1;
    sum_t before = block_before(s, own);
    if (before <= target && target < before + own) {
        for (int i = from; i < to; i++) {
            if (is_left(r, i, &x, &key)) before += chain_mass(x);
            if (before <= target) continue;
            s->bin = i;
            break;
        }
    }
    __syncthreads();
    return s->bin;
}

// ---- the logits ----

// Bias and penalties, as adjust.cuh has them for a cluster.
static __device__ void penalise(float *l, const msgl_sample_row &p, const chain_args &a)
{
    const int t = (int)threadIdx.x;
    const adjust_range at = adjust_places(p);
    const int32_t *const ids = a.pool + p.tokens;
    float *const saved = a.saved + p.tokens;
    for (int i = t; i < p.num_bias; i += CHAIN_THREADS) {
        const msgl_bias b = a.bias[p.bias + i];
        l[b.token] = __fadd_rn(l[b.token], b.value);
    }
    __syncthreads();
    if (at.first == at.end) return;
    for (int i = at.first + t; i < at.end; i += CHAIN_THREADS) saved[i] = l[ids[i]];
    __syncthreads();
    for (int i = at.first + t; i < at.answer; i += CHAIN_THREADS) {
        l[ids[i]] = adjust_repeated(p, saved[i]);
    }
    __syncthreads();
    for (int i = at.answer + t; i < at.end; i += CHAIN_THREADS) {
        l[ids[i]] =
            p.frequency == 0 ? adjust_answered(p, saved[i], 0) : __uint_as_float(COUNTER_BITS);
    }
    __syncthreads();
    if (p.frequency == 0) return;
    for (int i = at.answer + t; i < at.end; i += CHAIN_THREADS) {
        atomicAdd((uint32_t *)&l[ids[i]], 1u);
    }
    __syncthreads();
    for (int i = at.answer + t; i < at.end; i += CHAIN_THREADS) {
        const float counter = *(volatile float *)&l[ids[i]]; // or its final value already
        if (isnan(counter)) {
            l[ids[i]] = adjust_answered(p, saved[i], __float_as_uint(counter) - COUNTER_BITS);
        }
    }
    __syncthreads();
}

static __device__ void lower(float *at, float v)
{
    unsigned old = __float_as_uint(*(volatile float *)at);
    while (__uint_as_float(old) > v) {
        const unsigned seen = atomicCAS((unsigned *)at, old, __float_as_uint(v));
        if (seen == old) break;
        old = seen;
    }
}

// As chain_dry of kernel/ref/chain.inc, a thread for each place of the history.
static __device__ void dry(float *l, const msgl_sample_row &p, const msgl_sample_chain &c,
                           const chain_args &a)
{
    const int n = chain_dry_window(&c, p.position);
    if (n <= c.dry_allowed_length) return;
    const size_t words = (size_t)(a.vocab + 31) / 32;
    const uint32_t *const breakers =
        c.breaks ? a.breakers + (size_t)c.table_idx * words : (const uint32_t *)NULL;
    const int32_t *const end = a.pool + c.tokens + p.position;
    float *const saved = a.saved + c.tokens + p.position;
    const int longest = min(chain_dry_longest(&c), n);
    int most = 0; // the same in all threads
    while (most < longest && !chain_breaks(breakers, end[-1 - most])) most++;
    if (most < c.dry_allowed_length) return;
    for (int back = 1 + (int)threadIdx.x; back < n; back += CHAIN_THREADS) {
        saved[-back] = l[end[-back]];
    }
    __syncthreads();
    for (int back = 1 + (int)threadIdx.x; back < n; back += CHAIN_THREADS) {
        const int len = chain_dry_match(end, n, back, most);
        if (len < c.dry_allowed_length || chain_breaks(breakers, end[-back])) continue;
        lower(&l[end[-back]], saved[-back] - chain_dry_penalty(&c, len));
    }
    __syncthreads();
}

// ---- the row ----

// Finds the largest logit; false: a logit is NaN or +inf, or all are -inf.
static __device__ bool find_max(chain_row *r)
{
    uint64_t best = 0;
    for (int i = (int)threadIdx.x; i < r->vocab; i += CHAIN_THREADS) {
        const float l = r->l[i];
        const uint64_t own = !(l < INFINITY) ? CHAIN_ALL : l > -INFINITY ? ~chain_key(l, i) : 0;
        best = own > best ? own : best;
    }
    best = block_max(r->shared, best);
    if (best == 0 || best == CHAIN_ALL) return false;
    r->best = ~best;
    r->max = r->l[chain_id(r->best)];
    return true;
}

static __device__ double find_temperature(const chain_row &r, const msgl_sample_row &p,
                                          const msgl_sample_chain &c)
{
    sum_t mass = 0, surprise = 0, count = 0;
    if (!(c.dynatemp_range > 0)) return (double)p.temperature;
    for (int i = (int)threadIdx.x; i < r.vocab; i += CHAIN_THREADS) {
        if (!(r.l[i] > -INFINITY)) continue;
        mass += chain_mass((double)r.l[i] - (double)r.max);
        surprise += chain_surprise((double)r.l[i] - (double)r.max);
        count++;
    }
    mass = block_sum(r.shared, mass);
    surprise = block_sum(r.shared, surprise);
    count = block_sum(r.shared, count);
    return chain_temperature(&c, p.temperature, (int32_t)count, chain_entropy(mass, surprise));
}

// The row's token, or -1; *mu as it is behind it.
static __device__ int choose(chain_row *r, const msgl_sample_row &p, const msgl_sample_chain &c,
                             float *mu)
{
    if (!find_max(r)) return -1;
    const int best = chain_id(r->best);
    if (p.temperature < CHAIN_GREEDY) return best;
    const double t = find_temperature(*r, p, c);
    if (t < CHAIN_GREEDY) return best;
    r->inv_t = 1 / t;
    if (c.mirostat != 0) {
        keep_expected(r, *mu);
    } else {
        filter(r, p, c);
    }
    double log_sum;
    const int token = draw(*r, chain_uniform(p.seed, p.position, 0), &log_sum);
    if (c.mirostat != 0) *mu = chain_next_mu(&c, *mu, x_of(*r, r->l[token]), log_sum);
    return token;
}

static __global__ void __launch_bounds__(CHAIN_THREADS)
    chain_kernel(const __grid_constant__ chain_args a)
{
    __shared__ chain_shared shared;
    msgl__pdl_trigger();
    msgl__pdl_wait();
    const int row = (int)blockIdx.x;
    const msgl_sample_row p = a.rows[row];
    const msgl_sample_chain c = a.chains[row];
    float *const l = a.logits + (size_t)row * a.ld;
    if (p.adjusts) penalise(l, p, a);
    dry(l, p, c, a);
    chain_row r = {};
    r.shared = &shared;
    r.l = l;
    r.vocab = a.vocab;
    r.bound = -INFINITY;
    r.last = r.typical = CHAIN_ALL;
    float mu = isnan(c.mu) ? a.mu[c.table_idx] : c.mu;
    const int token = choose(&r, p, c, &mu); // with barriers: all have read mu
    if (threadIdx.x != 0) return;
    a.mu[c.table_idx] = a.mu_out[row] = mu;
    a.tokens[row] = token;
    a.status[row] = token < 0 ? MSGL_ENUMERIC : 0;
    if (a.pool != NULL) a.pool[a.pool_index[row]] = token < 0 ? 0 : token;
}

extern "C" void msgl__cuda_chain(msgl_exec *x, const msgl_sample_call *c)
{
    if (c->num_rows <= 0) return;
    const chain_args a = {c->logits, c->ld,     c->vocab,  c->rows,       c->chains,
                          c->tokens, c->status, c->pool,   c->pool_index, c->bias,
                          c->saved,  c->mu,     c->mu_out, c->breakers};
    MSGL_CUDA_TRY(x, msgl__launch(chain_kernel, dim3((unsigned)c->num_rows), dim3(CHAIN_THREADS), 0,
                                  msgl__cuda_stream(x), a));
}
