// SPDX-License-Identifier: Apache-2.0
//
// Sparse prompts of dual chunk attention on a GPU: what was chosen against exact sums, attention
// against f64 over the keys that the choice says. cuda_dual_sparse [--seed N] [--quick] [--bench]
#include "tests/cuda/dual_world.cuh"

#include "cuda/attn/dual_sparse.h"

static const int GROUPS[] = {1, 2, 7}, PAGES[] = {1, 16, 64, 7};

// A piece of request 0, and what each of its heads is to choose.
typedef struct sparse_world {
    dual_world d;
    msgl_sparse_piece piece;
    int32_t counts[16][2];
    float freq[128];
    uint32_t *bits; // of the piece, on the host
} sparse_world;

static bool has_bit(const sparse_world *s, int head, int which, int i)
{
    const int words = (s->piece.end + 31) / 32;
    return (s->bits[(head * 2 + which) * words + i / 32] >> i % 32 & 1) != 0;
}

static int chunks_apart(const sparse_world *s, int key)
{
    const int n = s->piece.begin / s->d.len - key / s->d.len;
    return n < 2 ? n : 2;
}

// Exact sums of what the last rows give to each key and distance.
static void exact_sums(const sparse_world *s, int head, double *columns, double *distances)
{
    const attn_world *w = &s->d.w;
    const msgl_cuda_attn_call *c = &w->call;
    const int dim = c->head_dim, half = s->piece.half, end = s->piece.end;
    const int kv_head = head / (c->num_q_heads / c->num_kv_heads);
    const int rotations[] = {0, s->d.len, s->d.len + 20};
    const int32_t *slots = w->slots + (size_t)w->rows[0] * c->table_stride;
    double *p = (double *)malloc((size_t)end * sizeof *p), q[3][256];
    for (int i = 0; i < end; i++) columns[i] = distances[i] = 0;
    for (int pos = end - s->piece.last; pos < end; pos++) {
        const size_t row = (size_t)(s->piece.row + pos - s->piece.begin);
        const float *from = w->qf + row * c->ld_q + (size_t)(head * dim);
        for (int t = 0; t < 3; t++) {
            for (int i = 0; i < dim; i++) {
                const double a = (double)((float)rotations[t] * s->freq[i % half]);
                const double other = i >= 2 * half ? 0
                                     : i < half    ? -from[i + half]
                                                   : from[i - half];
                q[t][i] = i < 2 * half ? from[i] * cos(a) + other * sin(a) : from[i];
            }
        }
        double sum = 0;
        for (int key = 0; key <= pos; key++) {
            const float *k = w->kf + (size_t)((slots[key] * c->num_kv_heads + kv_head) * dim);
            double x = 0;
            for (int i = 0; i < dim; i++) x += q[chunks_apart(s, key)][i] * (double)k[i];
            sum += p[key] = exp(x * (double)c->scale);
        }
        for (int key = 0; key <= pos; key++) {
            columns[key] += p[key] / sum;
            distances[pos - key] += p[key] / sum;
        }
    }
    free(p);
}

// As many as wanted, the first ones among them, and none that is clearly smaller than one that was
// left out: rotated queries are rounded.
static void check_chosen(const sparse_world *s, int head, int which, const double *sums, family *f)
{
    const int end = s->piece.end, kept = which == 0 ? 30 : 100, wanted = s->counts[head][which];
    double least = INFINITY, most = 0;
    int count = 0;
    for (int i = 0; i < end; i++) {
        const bool chosen = has_bit(s, head, which, i);
        count += chosen;
        if (i < kept) {
            expect(f, chosen || wanted < kept, "one of the first is missing");
        } else if (chosen) {
            least = fmin(least, sums[i]);
        } else {
            most = fmax(most, sums[i]);
        }
    }
    expect(f, count == (wanted < end ? wanted : end), "number chosen");
    expect(f, least > most * 0.97, "a smaller one was chosen");
}

static void seen_keys(const sparse_world *s, int head, int pos, bool *seen)
{
    const int first = s->piece.begin + (pos - s->piece.begin) / 64 * 64;
    for (int key = 0; key <= pos; key++) {
        seen[key] = has_bit(s, head, 0, key);
        for (int i = 0; i < 64 && !seen[key]; i++) {
            const int distance = first - key + i;
            if (distance < 0 || distance >= s->piece.end) continue;
            seen[key] = has_bit(s, head, 1, distance) &&
                        chunks_apart(s, key) >= chunks_apart(s, s->piece.end - 1 - distance);
        }
    }
}

static void check_piece(sparse_world *s, family *f)
{
    attn_world *w = &s->d.w;
    const msgl_cuda_attn_call *c = &w->call;
    const msgl_sparse_piece *p = &s->piece;
    const size_t bytes = (size_t)c->num_q_heads * 2 * ((p->end + 31) / 32) * 4;
    const bool chooses = p->end - p->begin > p->last;
    void *out = malloc(w->out_bytes);
    double *columns = (double *)malloc((size_t)p->end * 16), *distances = columns + p->end, o[256];
    bool *seen = (bool *)malloc((size_t)p->end);
    s->bits = (uint32_t *)malloc(bytes);
    CUDA_OK(cudaMemcpy(s->bits, p->workspace, bytes, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaMemcpy(out, w->out_dev, w->out_bytes, cudaMemcpyDeviceToHost));
    for (int h = 0; h < c->num_q_heads; h++) {
        if (chooses) {
            exact_sums(s, h, columns, distances);
            check_chosen(s, h, 0, columns, f);
            check_chosen(s, h, 1, distances, f);
        }
        for (int pos = p->begin + h % 5; pos < p->end; pos += 5) {
            const int row = p->row + pos - p->begin;
            seen_keys(s, h, pos, seen);
            dual_exact(&s->d, 0, row - w->cu_q[0], h, chooses ? seen : NULL, o);
            for (int i = 0; i < c->head_dim; i++) {
                const size_t at = (size_t)row * c->ld_out + (size_t)(h * c->head_dim + i);
                expect_near(f, attn_get(c->dtype, out, at), o[i], allowed_error(c->dtype),
                            "sparse prompt");
            }
        }
    }
    free(out), free(columns), free(seen), free(s->bits);
}

// Request 0 is sparse, piece by piece; the others are not, and nobody writes what is another's.
static void check_sparse(attn_rng *rng, family *f, int i, bool quick)
{
    static const int dims[] = {128, 64, 80, 256};
    sparse_world s = {};
    // Far: more keys than a block scores, and than it looks for at a time.
    const bool far = i % 4 == 2;
    const int32_t most = quick || far ? 200 : 900;
    int32_t q[3] = {attn_range(rng, 100, most), 1, attn_range(rng, 1, 60)};
    int32_t k[3] = {q[0] + (i % 2 ? 0 : attn_range(rng, 0, 500)), 700, 100};
    int32_t len = attn_range(rng, 90, 300);
    if (far) {
        k[0] += attn_range(rng, 9000, 12000);
        len = attn_range(rng, 3000, 5500);
    }
    dual_open(&s.d, rng, i % 2 ? MSGL_F16 : MSGL_BF16, 3, q, k, far ? 2 : GROUPS[i % 3] * 2, 2,
              dims[i % 4], PAGES[i % 4], len);
    attn_world *w = &s.d.w;
    msgl_cuda_attn_call *c = &w->call;
    c->lse = NULL;
    msgl_sparse_piece *p = &s.piece;
    p->dual_len = len;
    p->last = attn_range(rng, 1, 64);
    p->half = c->head_dim / 2;
    float rotations[2][256];
    for (int j = 0; j < p->half; j++) {
        s.freq[j] = attn_uniform(rng);
        for (int t = 0; t < 2; t++) {
            const double a = (double)((float)(len + 20 * t) * s.freq[j]);
            (&rotations[0][0])[t * 2 * p->half + j] = (float)cos(a);
            (&rotations[0][0])[t * 2 * p->half + p->half + j] = (float)sin(a);
        }
    }
    for (int h = 0; h < c->num_q_heads; h++) {
        s.counts[h][0] = attn_range(rng, 0, h == 1 ? 2000 : far ? 900 : 90);
        s.counts[h][1] = attn_range(rng, 1, h == 0 ? 2000 : 160);
    }
    p->counts = (const int32_t *)device_copy(s.counts, sizeof s.counts);
    p->rotations = (const float *)device_copy(rotations, sizeof rotations);
    CUDA_OK(cudaMalloc(&p->workspace,
                       msgl__cuda_dual_sparse_workspace(c->num_q_heads, c->head_dim, k[0])));
    decode_world(w);
    attn_poison(w);
    const msgl_dual_sparse left_out = {p->last, q[0] > p->last ? k[0] - 1 : INT32_MAX};
    CUDA_OK(msgl__cuda_dual_prefill(c, len, left_out, 0));
    for (int at = k[0] - q[0]; at < k[0] && q[0] > p->last; at = p->end) {
        p->row = at - (k[0] - q[0]);
        p->begin = at;
        p->end = (at / len + 1) * len < k[0] ? (at / len + 1) * len : k[0];
        CUDA_OK(msgl__cuda_dual_sparse_prompt(c, p, 0));
        CUDA_OK(cudaDeviceSynchronize());
        check_piece(&s, f);
    }
    CUDA_OK(cudaFree((void *)p->counts));
    CUDA_OK(cudaFree((void *)p->rotations));
    CUDA_OK(cudaFree(p->workspace));
    dual_close(&s.d);
}

// All of a prompt, chunk by chunk.
static void sparse_prompt(const dual_world *d, msgl_sparse_piece *s)
{
    const int32_t n = d->w.call.total_q;
    for (s->begin = s->row = 0; s->begin < n; s->begin = s->row = s->end) {
        s->end = s->begin + s->dual_len < n ? s->begin + s->dual_len : n;
        CUDA_OK(msgl__cuda_dual_sparse_prompt(&d->w.call, s, 0));
    }
}

// Qwen2.5-7B-Instruct-1M's shape: 28 heads over 4, chunks of 7168 tokens.
static void bench(attn_rng *rng)
{
    enum { HEADS = 28, KV = 4, DIM = 128, CHUNK = 7168, KEYS = 65536 };
    msgl_sparse_piece s = {};
    int32_t counts[HEADS][2]; // as MInference has them for most heads
    float rotations[2 * DIM] = {};
    for (int h = 0; h < HEADS; h++) counts[h][0] = 1000, counts[h][1] = 6096;
    for (int j = 0; j < DIM / 2; j++) rotations[j] = rotations[DIM + j] = 1;
    s.dual_len = CHUNK;
    s.last = 64;
    s.half = DIM / 2;
    s.counts = (const int32_t *)device_copy(counts, sizeof counts);
    s.rotations = (const float *)device_copy(rotations, sizeof rotations);
    CUDA_OK(cudaMalloc(&s.workspace, msgl__cuda_dual_sparse_workspace(HEADS, DIM, 65536)));
    const msgl_dual_sparse none = {INT32_MAX, INT32_MAX};
    const int32_t one[1] = {1}, n[1] = {KEYS};
    dual_world d;
    dual_open(&d, rng, MSGL_BF16, 1, one, n, HEADS, KV, DIM, 64, CHUNK);
    make_prompt(&d);
    const double dense =
        time_us(2, [&] { CUDA_OK(msgl__cuda_dual_prefill(&d.w.call, CHUNK, none, 0)); });
    const double sparse = time_us(2, [&] { sparse_prompt(&d, &s); });
    printf("1x%d, bf16, %d heads over %d of %d: dense %.0f us, 1000 columns and 6096 distances "
           "%.0f us\n",
           (int)n[0], HEADS, KV, DIM, dense, sparse);
    dual_close(&d);
    CUDA_OK(cudaFree((void *)s.counts));
    CUDA_OK(cudaFree((void *)s.rotations));
    CUDA_OK(cudaFree(s.workspace));
}

int main(int argc, char **argv)
{
    const options args = parse_options(argc, argv);
    attn_rng rng = {args.seed};
    family sparse = {"sparse prompts"};
    for (int i = 0; i < (args.quick ? 4 : 24); i++) check_sparse(&rng, &sparse, i, args.quick);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) bench(&rng);
    }
    return family_end(&sparse);
}
