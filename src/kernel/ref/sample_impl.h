// SPDX-License-Identifier: Apache-2.0
//
// Choosing tokens, and log-probabilities. Part of ops_impl.h (compiled per ISA level).
//
// Nothing is sorted that need not be: without filters the token is found by scanning the cumulative
// sum; with top-k, top-p or min-p only a superset of the tokens that can survive is gathered (those
// above a lower bound of the threshold, found from the maxima of blocks) and that little set is
// sorted.

#define SAMPLE_BLOCK 64 // logits per block whose maximum bounds the k-th largest value from below

struct candidate {
    float logit;
    int32_t id;
};

// Uniform in [0, 1) from (seed, position) alone, so that a request's draws do not depend on its
// neighbours or on batching.
static inline double uniform01(uint64_t seed, int32_t position)
{
    const uint64_t at = seed + MSGL_RANDOM_STEP * (uint64_t)(uint32_t)position;
    const uint64_t z = msgl__mix_bits(msgl__mix_bits(at)) + MSGL_RANDOM_STEP;
    return (double)(z >> 11) * 0x1p-53;
}

// Largest logit, and whether any is NaN or +inf (then nothing can be sampled).
static float row_max(const float *l, int n, int *bad)
{
    msgl_vf m = msgl__vf_set(-INFINITY);
    msgl_vi wrong = msgl__vi_set(0);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        const msgl_vf v = msgl__vf_load(l + i);
        wrong |= ~(v < msgl__vf_set(INFINITY));
        m = msgl__vf_max(v, m);
    }
    if (i < n) {
        const msgl_vf v = msgl__vf_load_part(l + i, (size_t)(n - i), -INFINITY);
        wrong |= ~(v < msgl__vf_set(INFINITY));
        m = msgl__vf_max(v, m);
    }
    int32_t any = 0;
    for (int lane = 0; lane < 16; lane++) any |= wrong[lane];
    const float max = msgl__vf_hmax(m);
    *bad = any != 0 || !(max > -INFINITY);
    return max;
}

static int32_t row_argmax(const float *l, int n, float max)
{
    for (int i = 0; i < n; i++) {
        if (l[i] == max) return i;
    }
    return 0;
}

// Sum of exp((l - max) * inv_t) over `n` logits, f32 lanes added up in f64 every 1,024 logits.
static double row_sum_exp(const float *l, int n, float max, float inv_t)
{
    const msgl_vf m = msgl__vf_set(max), t = msgl__vf_set(inv_t);
    double total = 0;
    for (int at = 0; at < n; at += 1024) {
        const int end = at + 1024 < n ? at + 1024 : n;
        msgl_vf s = msgl__vf_set(0);
        int i = at;
        for (; i + 16 <= end; i += 16) s += msgl__vf_exp((msgl__vf_load(l + i) - m) * t);
        if (i < end) {
            s += msgl__vf_exp((msgl__vf_load_part(l + i, (size_t)(end - i), -INFINITY) - m) * t);
        }
        total += (double)msgl__vf_sum(s);
    }
    return total;
}

static inline float exp_one(float v)
{
    return msgl__vf_exp(msgl__vf_set(v))[0];
}

// First token whose cumulative probability exceeds u, over the whole row.
static int32_t draw_from_row(const float *l, int n, float max, float inv_t, double u)
{
    const double target = u * row_sum_exp(l, n, max, inv_t);
    double before = 0;
    for (int at = 0; at < n; at += 1024) {
        const int end = at + 1024 < n ? at + 1024 : n;
        const double block = row_sum_exp(l + at, end - at, max, inv_t);
        if (before + block > target) {
            for (int i = at; i < end; i++) {
                before += (double)exp_one((l[i] - max) * inv_t);
                if (before > target) return i;
            }
            return end - 1; // rounding left a sliver at the block's end
        }
        before += block;
    }
    return row_argmax(l, n, max);
}

static int candidate_order(const void *a, const void *b)
{
    const struct candidate *p = a, *q = b;
    if (p->logit != q->logit) return p->logit > q->logit ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

// Heap sort: no memory of its own, no bad case (libc's qsort may call malloc).
static void sort_candidates(struct candidate *c, int n)
{
    for (int root = n / 2 - 1, end = n; end > 1;) {
        struct candidate moving;
        if (root >= 0) {
            moving = c[root--];
        } else {
            moving = c[--end];
            c[end] = c[0];
        }
        int at = root + 1; // 0 once the heap stands
        for (int child; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && candidate_order(&c[child], &c[child + 1]) < 0) child++;
            if (candidate_order(&moving, &c[child]) >= 0) break;
            c[at] = c[child];
        }
        c[at] = moving;
    }
}

// Gathers all (logit, id) with logit >= bound, in id order; returns how many.
static int gather_above(const float *l, int n, float bound, struct candidate *out)
{
    const msgl_vf b = msgl__vf_set(bound);
    int count = 0, i = 0;
    for (; i + 16 <= n; i += 16) {
        const msgl_vi hit = msgl__vf_load(l + i) >= b;
        int32_t any = 0;
        for (int lane = 0; lane < 16; lane++) any |= hit[lane];
        if (any == 0) continue;
        for (int lane = 0; lane < 16; lane++) {
            if (hit[lane]) out[count++] = (struct candidate){l[i + lane], i + lane};
        }
    }
    for (; i < n; i++) {
        if (l[i] >= bound) out[count++] = (struct candidate){l[i], i};
    }
    return count;
}

// The k largest, sorted, in out[0, k) (k <= n). out has room for n.
static void top_candidates(const float *l, int n, int k, struct candidate *out)
{
    // At least k blocks have a maximum >= the k-th largest block maximum, so at least k logits do:
    // it bounds the k-th largest logit from below.
    const int blocks = msgl__ceil_div(n, SAMPLE_BLOCK);
    float bound = -INFINITY;
    if (k <= blocks) {
        for (int b = 0; b < blocks; b++) {
            const int at = b * SAMPLE_BLOCK, len = n - at < SAMPLE_BLOCK ? n - at : SAMPLE_BLOCK;
            float m = l[at];
            for (int i = 1; i < len; i++) m = l[at + i] > m ? l[at + i] : m;
            out[b] = (struct candidate){m, b};
        }
        sort_candidates(out, blocks);
        bound = out[k - 1].logit;
    }
    sort_candidates(out, gather_above(l, n, bound, out));
}

// Candidates that top-p over the whole row can keep, sorted; returns how many. Their mass is at
// least top_p of `total`.
static int nucleus_candidates(const float *l, int n, float max, float inv_t, double top_p,
                              double total, struct candidate *out)
{
    for (float range = 8; range < 80; range *= 2) { // probabilities down to e^-range of the largest
        const int count = gather_above(l, n, max - range / inv_t, out);
        double mass = 0;
        for (int i = 0; i < count; i++) mass += (double)exp_one((out[i].logit - max) * inv_t);
        if (mass >= top_p * total || count == n) {
            sort_candidates(out, count);
            return count;
        }
    }
    const int count = gather_above(l, n, -INFINITY, out);
    sort_candidates(out, count);
    return count;
}

static int32_t sample_filtered(const float *l, int vocab, float max, const msgl_sample_row *r,
                               struct candidate *c)
{
    const float inv_t = 1.0f / r->temperature;
    int count;
    double total;
    if (r->top_k > 0 && r->top_k < vocab) {
        top_candidates(l, vocab, r->top_k, c);
        count = r->top_k;
        total = 0;
        for (int i = 0; i < count; i++) total += (double)exp_one((c[i].logit - max) * inv_t);
    } else {
        total = row_sum_exp(l, vocab, max, inv_t);
        const double top_p = r->top_p < 1 ? (double)r->top_p : 1;
        if (top_p < 1) {
            count = nucleus_candidates(l, vocab, max, inv_t, top_p, total, c);
        } else { // min-p alone: a bound on the logit
            count = gather_above(l, vocab, max + logf(r->min_p) * r->temperature - 1e-3f, c);
            sort_candidates(c, count);
        }
    }
    // Keep the shortest prefix that reaches top_p of the mass, then drop what min-p forbids.
    double kept = 0;
    int n = 0;
    while (n < count) {
        const double p = (double)exp_one((c[n].logit - max) * inv_t);
        if (n > 0 && p < (double)r->min_p) break;
        kept += p;
        n++;
        if (r->top_p < 1 && kept >= (double)r->top_p * total) break;
    }
    const double target = uniform01(r->seed, r->position) * kept;
    double before = 0;
    for (int i = 0; i < n; i++) {
        before += (double)exp_one((c[i].logit - max) * inv_t);
        if (before > target) return c[i].id;
    }
    return c[n - 1].id;
}

struct sample_args {
    const float *logits;
    size_t ld;
    int vocab;
    const msgl_sample_call *call; // NULL for logprobs
    msgl_token_logprobs *logprobs;
    struct candidate *scratch; // [min(threads, rows), vocab]
    bool per_row;              // the rows are fewer than the threads
};

static struct candidate *own_scratch(const struct sample_args *a, int task, int worker)
{
    return a->scratch + (size_t)(a->per_row ? task : worker) * (size_t)a->vocab;
}

// The row's token, or -1 where nothing can be chosen.
static int32_t choose(const float *l, int vocab, const msgl_sample_row *r, struct candidate *c)
{
    int bad;
    const float max = row_max(l, vocab, &bad);
    if (bad) return -1;
    // Temperatures so small that 1 / T overflows are greedy.
    if (r->temperature < 1e-6f || r->top_k == 1) return row_argmax(l, vocab, max);
    if ((r->top_k <= 0 || r->top_k >= vocab) && r->top_p >= 1 && r->min_p <= 0) {
        return draw_from_row(l, vocab, max, 1.0f / r->temperature, uniform01(r->seed, r->position));
    }
    return sample_filtered(l, vocab, max, r, c);
}

static void sample_task(void *arg, int task, int worker)
{
    const struct sample_args *a = arg;
    const msgl_sample_call *c = a->call;
    const msgl_sample_row *r = &c->rows[task];
    float *l = c->logits + (size_t)task * c->ld;
    if (r->adjusts) adjust_row(l, r, c);
    const int32_t token = choose(l, c->vocab, r, own_scratch(a, task, worker));
    if (r->adjusts) restore_row(l, r, c);
    c->tokens[task] = token;
    c->status[task] = token < 0 ? MSGL_ENUMERIC : 0;
    if (c->pool != NULL) c->pool[c->pool_index[task]] = token < 0 ? 0 : token;
}

static void logprobs_task(void *arg, int task, int worker)
{
    const struct sample_args *a = arg;
    const float *l = a->logits + (size_t)task * a->ld;
    msgl_token_logprobs *out = &a->logprobs[task];
    int bad;
    const float max = row_max(l, a->vocab, &bad);
    if (bad) {
        out->logprob = NAN;
        out->num_top = 0;
        return;
    }
    const double lse = (double)max + log(row_sum_exp(l, a->vocab, max, 1));
    out->logprob =
        out->token >= 0 && out->token < a->vocab ? (float)((double)l[out->token] - lse) : NAN;
    if (out->num_top <= 0) return;
    if (out->num_top > a->vocab) out->num_top = a->vocab;
    struct candidate *c = own_scratch(a, task, worker);
    top_candidates(l, a->vocab, out->num_top, c);
    for (int i = 0; i < out->num_top; i++) {
        out->top_ids[i] = c[i].id;
        out->top_logprobs[i] = (float)((double)c[i].logit - lse);
    }
}

static size_t sample_scratch(int num_rows, int vocab)
{
    return (size_t)num_rows * (size_t)vocab * sizeof(struct candidate) + 64;
}

static void run_rows(msgl_exec *x, struct sample_args *a, int rows, msgl_task_fn fn)
{
    if (rows <= 0) return;
    const int threads = x->pool == NULL ? 1 : msgl__pool_threads(x->pool);
    const size_t used = x->scratch->used;
    a->per_row = rows < threads;
    a->scratch =
        msgl__arena_alloc(x->scratch, sample_scratch(a->per_row ? rows : threads, a->vocab) - 64);
    if (a->scratch == NULL) {
        x->status = MSGL_EINTERNAL;
        return;
    }
    if (x->pool != NULL) {
        msgl__pool_run(x->pool, rows, fn, a);
    } else {
        for (int i = 0; i < rows; i++) fn(a, i, 0);
    }
    x->scratch->used = used;
}

static void sample(msgl_exec *x, const msgl_sample_call *c)
{
    struct sample_args a = {.vocab = c->vocab, .call = c};
    run_rows(x, &a, c->num_rows, sample_task);
}

static void logprobs(msgl_exec *x, const float *logits, size_t ld, int num_rows, int vocab,
                     msgl_token_logprobs *out)
{
    struct sample_args a = {.logits = logits, .ld = ld, .vocab = vocab, .logprobs = out};
    run_rows(x, &a, num_rows, logprobs_task);
}
