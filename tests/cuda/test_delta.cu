// SPDX-License-Identifier: Apache-2.0
//
// Family delta on a GPU against the recurrence in f64 on the host: chunks and answers, cuts,
// checkpoints saved and begun with, padding, and that bits do not depend on what they must not.
#include <functional>

#include "tests/cuda/delta_case.cuh"

enum { GAP = 48 }; // bytes between states

// A request's inputs, as bf16 holds them, and what the recurrence makes of them.
struct request {
    int len;
    std::vector<float> qkv, z, a, b;         // [len, ...]
    std::vector<double> out;                 // [len, v_heads, 128]
    std::vector<double> loss;                // [len, v_heads] |S| |q| / |o|
    std::vector<std::vector<double>> states; // behind the lengths asked for
};

static float as_bf16(float v)
{
    return msgl__bf16_to_f32(msgl__f32_to_bf16(v));
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

// Of a token and a head: 128 channels after convolution and silu.
static void mixed(const delta_layer &l, const request &r, int t, int head, double *y)
{
    const int channels = l.channels();
    for (int i = 0; i < DELTA_DIM; i++) {
        const int c = head * DELTA_DIM + i;
        double sum = 0;
        for (int tap = 0; tap < 4; tap++) {
            if (t - 3 + tap < 0) continue;
            sum += (double)l.conv.host[c * 4 + tap] * r.qkv[(size_t)(t - 3 + tap) * channels + c];
        }
        y[i] = silu(sum);
    }
}

static void unit(double *y, double scale)
{
    double sum = 0;
    for (int i = 0; i < DELTA_DIM; i++) sum += y[i] * y[i];
    for (int i = 0; i < DELTA_DIM; i++) y[i] *= scale / sqrt(sum + 1e-6);
}

// One v head of a request from its beginning; states [num lengths] of this head.
static void recur(const delta_layer &l, request *r, int head, const std::vector<int> &lengths)
{
    const int dim = DELTA_DIM, k_head = head / (l.v_heads / l.k_heads);
    std::vector<double> s((size_t)dim * dim, 0);
    double q[DELTA_DIM], k[DELTA_DIM], v[DELTA_DIM], u[DELTA_DIM], o[DELTA_DIM];
    for (int t = 0; t < r->len; t++) {
        mixed(l, *r, t, k_head, q);
        mixed(l, *r, t, l.k_heads + k_head, k);
        mixed(l, *r, t, 2 * l.k_heads + head, v);
        unit(q, 1 / sqrt((double)dim));
        unit(k, 1);
        const double x = (double)r->a[(size_t)t * l.v_heads + head] + l.dt_bias.host[head];
        const double decay = exp(-exp((double)l.a_log.host[head]) * log1p(exp(x)));
        const double beta = 1 / (1 + exp(-(double)r->b[(size_t)t * l.v_heads + head]));
        for (int c = 0; c < dim; c++) u[c] = o[c] = 0;
        for (int d = 0; d < dim; d++) {
            for (int c = 0; c < dim; c++) u[c] += (s[d * dim + c] *= decay) * k[d];
        }
        for (int c = 0; c < dim; c++) u[c] = beta * (v[c] - u[c]);
        for (int d = 0; d < dim; d++) {
            for (int c = 0; c < dim; c++) o[c] += (s[d * dim + c] += k[d] * u[c]) * q[d];
        }
        double sum = 0;
        for (int c = 0; c < dim; c++) sum += o[c] * o[c];
        const size_t at = ((size_t)t * l.v_heads + head) * dim;
        for (int c = 0; c < dim; c++) {
            const double z = r->z[at + c], gate = l.sigmoid ? 1 / (1 + exp(-z)) : silu(z);
            r->out[at + c] = o[c] / sqrt(sum / dim + 1e-6) * l.norm.host[c] * gate;
        }
        double squares = 0;
        for (double d : s) squares += d * d;
        r->loss[(size_t)t * l.v_heads + head] = sqrt(squares / dim / (sum + 1e-30));
        for (size_t i = 0; i < lengths.size(); i++) {
            if (lengths[i] == t + 1) {
                std::copy(s.begin(), s.end(),
                          r->states[i].begin() + (ptrdiff_t)((size_t)head * dim * dim));
            }
        }
    }
}

static request request_new(const delta_layer &l, int len, const std::vector<int> &lengths,
                           uint64_t *seed)
{
    request r;
    r.len = len;
    const size_t rows = (size_t)len, wide = (size_t)l.v_heads * DELTA_DIM;
    const auto fill = [&](std::vector<float> *v, size_t n) {
        v->resize(rows * n);
        for (float &f : *v) f = as_bf16(rng_normal(seed));
    };
    fill(&r.qkv, (size_t)l.channels());
    fill(&r.z, wide);
    fill(&r.a, (size_t)l.v_heads);
    fill(&r.b, (size_t)l.v_heads);
    r.out.resize(rows * wide);
    r.loss.resize(rows * (size_t)l.v_heads);
    r.states.assign(lengths.size(), std::vector<double>(l.matrix()));
    for (int h = 0; h < l.v_heads; h++) recur(l, &r, h, lengths);
    return r;
}

// How a call is run: number of blocks that share something, whether from a graph, and how many
// requests in front are answers with drafts.
struct how {
    int split;
    bool graph;
    int answers = 0;
};

struct part { // of a request
    request *r;
    delta_piece piece;
};

// Runs a step over `parts`; returns rows of out as f32 [tokens, v_heads, 128]. Rows have gaps
// between them, of NaN, which must stay.
static std::vector<float> run_step(bench_exec *e, family *f, const delta_layer &l,
                                   const std::vector<part> &parts, msgl_phase phase, how how)
{
    std::vector<delta_piece> pieces;
    for (const part &p : parts) pieces.push_back(p.piece);
    delta_step s;
    CUDA_OK(cudaMalloc((void **)&s.dev, 65536));
    delta_step_fill(&s, l, pieces, phase);
    delta_step_upload(&s);
    const size_t rows = (size_t)s.seqs.num_tokens, wide = (size_t)l.v_heads * DELTA_DIM;
    const size_t channels = (size_t)l.channels(), ld_in = channels + wide + 8, ld_out = wide + 16;
    const size_t ld_ab = 2 * (size_t)l.v_heads + 1;
    array in = array_new(MSGL_BF16, rows * ld_in, 0, NULL);
    array ab = array_new(MSGL_BF16, rows * ld_ab, 0, NULL);
    array out = array_new(MSGL_BF16, rows * ld_out, 0, NULL);
    size_t row = 0;
    for (const part &p : parts) {
        for (int t = p.piece.begin; t < p.piece.end; t++, row++) {
            if (p.r == NULL) continue; // padding: NaN
            const request &r = *p.r;
            for (size_t i = 0; i < channels; i++)
                in.host[row * ld_in + i] = r.qkv[(size_t)t * channels + i];
            for (size_t i = 0; i < wide; i++)
                in.host[row * ld_in + channels + i] = r.z[(size_t)t * wide + i];
            for (int h = 0; h < l.v_heads; h++) {
                const size_t at = (size_t)t * (size_t)l.v_heads + (size_t)h;
                ab.host[row * ld_ab + (size_t)h] = r.a[at];
                ab.host[row * ld_ab + (size_t)(l.v_heads + h)] = r.b[at];
            }
        }
    }
    array_upload(&in);
    array_upload(&ab);
    msgl_delta_call &c = s.call;
    c.qkv = in.dev, c.ld_qkv = ld_in;
    c.z = (char *)in.dev + channels * 2, c.ld_z = ld_in;
    c.a = ab.dev, c.b = (char *)ab.dev + l.v_heads * 2, c.ld_a = c.ld_b = ld_ab;
    c.out = out.dev, c.ld_out = ld_out;
    CUDA_OK(cudaMemset(e->scratch.base, 0xff, e->scratch.size));
    CUDA_OK(cudaDeviceSynchronize());
    s.seqs.graph = how.graph;
    const auto queue = [&] {
        c.io.at.num_answers = how.answers;
        if (how.answers > 0)
            msgl__cuda_delta(&e->x, &c);
        else if (phase == MSGL_DECODE)
            msgl__cuda_delta_decode(&e->x, &c, how.split);
        else
            msgl__cuda_delta_prefill(&e->x, &c, how.split);
    };
    if (how.graph) {
        const cudaGraphExec_t g = cuda_capture(e->device.stream, queue);
        CUDA_OK(cudaGraphLaunch(g, e->device.stream));
        exec_sync(e);
        CUDA_OK(cudaGraphExecDestroy(g));
    } else {
        queue();
    }
    exec_sync(e);
    array_download(&out);
    std::vector<float> got(rows * wide);
    for (size_t t = 0; t < rows; t++) {
        for (size_t i = 0; i < wide; i++) got[t * wide + i] = out.host[t * ld_out + i];
        for (size_t i = wide; i < ld_out; i++) expect(f, isnan(out.host[t * ld_out + i]), "gap");
    }
    array_free(&in), array_free(&ab), array_free(&out);
    CUDA_OK(cudaFree(s.dev));
    return got;
}

struct errors {
    double row, all, state; // worst of a row's head, of a request, of a state's head
    int row_at, head_at;    // that row's position and head
};

// Rows [begin, end) of a request against what they should be, by the norm of a head's 128 values
// and of all. A row may lose more where o is small against what it is summed from: that is lost
// before the norm makes it large again.
static void check_rows(family *f, const delta_layer &l, const request &r, int begin, int end,
                       const float *got, double allowed_row, double allowed, errors *worst)
{
    const size_t dim = DELTA_DIM, wide = (size_t)l.v_heads * dim;
    double all = 0, size = 0;
    for (int t = begin; t < end; t++) {
        for (int h = 0; h < l.v_heads; h++) {
            double diff = 0, norm = 0;
            for (size_t i = 0; i < dim; i++) {
                const double want = r.out[(size_t)t * wide + (size_t)h * dim + i];
                const double d = got[(size_t)(t - begin) * wide + (size_t)h * dim + i] - want;
                diff += d * d, norm += want * want;
            }
            all += diff, size += norm;
            const double loss = r.loss[(size_t)t * l.v_heads + h];
            const double error = sqrt(diff / (norm + 1e-30)) / loss;
            if (error > worst->row || isnan(error)) {
                worst->row = error, worst->row_at = t, worst->head_at = h;
            }
            expect_near(f, error, 0, allowed_row, "row");
        }
    }
    const double error = sqrt(all / size);
    if (error > worst->all) worst->all = error;
    expect_near(f, error, 0, allowed, "rows");
}

static void check_state(family *f, const delta_layer &l, const request &r, int len, int index,
                        int state, double allowed, errors *worst)
{
    std::vector<char> raw(l.stride);
    CUDA_OK(cudaMemcpy(raw.data(), l.states + (size_t)state * l.stride, l.stride,
                       cudaMemcpyDeviceToHost));
    const float *s = (const float *)raw.data();
    const size_t head = (size_t)DELTA_DIM * DELTA_DIM, channels = (size_t)l.channels();
    for (int h = 0; h < l.v_heads; h++) {
        double diff = 0, norm = 0;
        for (size_t i = (size_t)h * head; i < (size_t)(h + 1) * head; i++) {
            const double want = r.states[(size_t)index][i], d = s[i] - want;
            diff += d * d, norm += want * want;
        }
        const double error = sqrt(diff / (norm + 1e-30));
        if (error > worst->state || isnan(error)) worst->state = error;
        expect_near(f, error, 0, allowed, "state");
    }
    const char *ring = raw.data() + l.matrix() * 4;
    for (int pos = len - 3; pos < len; pos++) {
        for (size_t i = 0; pos >= 0 && i < channels; i++) {
            const float got = msgl__load_f32(ring, MSGL_BF16, (size_t)(pos % 4) * channels + i);
            expect(f, got == r.qkv[(size_t)pos * channels + i], "input kept");
        }
    }
    for (size_t i = l.stride - GAP; i < l.stride; i++) {
        expect(f, (unsigned char)raw[i] == 0xff, "behind a state");
    }
}

static std::vector<char> state_bits(const delta_layer &l, int state)
{
    std::vector<char> raw(l.matrix() * 4);
    CUDA_OK(cudaMemcpy(raw.data(), l.states + (size_t)state * l.stride, raw.size(),
                       cudaMemcpyDeviceToHost));
    return raw;
}

static const double ROW = 5e-3, ALL = 1e-2, STATE = 1e-2, DECODE_ROW = 4e-3, DECODE_STATE = 2e-6;

static int check_decode(bench_exec *e, int k_heads, int v_heads, uint64_t *seed)
{
    family f = {"decode"};
    errors worst = {};
    const int steps = 9, n = 3;
    delta_layer l = delta_layer_new(k_heads, v_heads, 16, GAP, seed);
    std::vector<int> lengths = {5, steps};
    std::vector<request> r;
    for (int i = 0; i < n; i++) r.push_back(request_new(l, steps, lengths, seed));
    // Live states 0 to 2; checkpoint 3 + i behind token 5; request 1 then goes on from there in 6.
    for (int t = 0; t < steps; t++) {
        std::vector<float> first;
        const how ways[] = {{1, false}, {2, false}, {0, true}};
        std::vector<char> before(l.stride * 16);
        CUDA_OK(cudaMemcpy(before.data(), l.states, before.size(), cudaMemcpyDeviceToHost));
        std::vector<char> bits;
        for (const how &way : ways) {
            device_write(l.states, before.data(), before.size());
            std::vector<part> parts;
            for (int i = 0; i < n; i++) {
                const int live = i == 1 && t >= 5 ? 6 : i;
                delta_piece p = {t, t + 1, t == 0 ? -1 : i == 1 && t == 5 ? 4 : live, live, {}};
                if (t == 4) p.saves.push_back({5, 3 + i});
                parts.push_back({&r[(size_t)i], p});
                if (i == 0) parts.push_back({NULL, {t, t + 1, -1, -1, {}}});
            }
            const std::vector<float> got = run_step(e, &f, l, parts, MSGL_DECODE, way);
            const size_t wide = (size_t)v_heads * DELTA_DIM;
            for (size_t i = 0; i < wide; i++) expect(&f, got[wide + i] == 0, "padding is 0");
            for (int i = 0; i < n; i++) {
                check_rows(&f, l, r[(size_t)i], t, t + 1,
                           got.data() + (size_t)(i == 0 ? 0 : i + 1) * wide, DECODE_ROW, DECODE_ROW,
                           &worst);
                if (t == 4) {
                    check_state(&f, l, r[(size_t)i], 5, 0, 3 + i, DECODE_STATE, &worst);
                    check_state(&f, l, r[(size_t)i], 5, 0, i, DECODE_STATE, &worst);
                }
            }
            std::vector<char> now = state_bits(l, 1);
            if (&way == ways) first = got, bits = now;
            expect(&f, first == got && bits == now, "bits by the number of blocks");
        }
    }
    for (int i = 0; i < n; i++) {
        check_state(&f, l, r[(size_t)i], steps, 1, i == 1 ? 6 : i, DECODE_STATE, &worst);
    }
    printf("decode %d/%d heads: worst row %.2e state %.2e\n", k_heads, v_heads, worst.row,
           worst.state);
    delta_layer_free(&l);
    return family_end(&f);
}

// A prompt of `len` in one piece and in pieces; a step's other requests are of other lengths.
static int check_prefill(bench_exec *e, int k_heads, int v_heads, int len,
                         const std::vector<int> &cuts, uint64_t *seed)
{
    family f = {"prefill"};
    errors worst = {};
    delta_layer l = delta_layer_new(k_heads, v_heads, 12, GAP, seed);
    const size_t wide = (size_t)v_heads * DELTA_DIM;
    const int saved = len / 64 * 64;
    const std::vector<int> lengths = {saved > 0 ? saved : len, len};
    request r = request_new(l, len, lengths, seed), other = request_new(l, 77, {77, 77}, seed);
    std::vector<float> whole;
    std::vector<char> bits;
    const how ways[] = {{4, false}, {8, false}, {0, true}};
    for (const how &way : ways) { // whole: state 0, saved in 1
        CUDA_OK(cudaMemset(l.states, 0xff, l.stride * 12));
        const delta_piece piece = {0, len, -1, 0, {{lengths[0], 1}}};
        const std::vector<float> got = run_step(e, &f, l,
                                                {{&other, {0, 77, -1, 5, {}}},
                                                 {NULL, {0, 3, -1, -1, {}}},
                                                 {&r, piece},
                                                 {&other, {0, 1, -1, 6, {}}}},
                                                MSGL_PREFILL, way);
        const float *rows = got.data() + 80 * wide;
        for (size_t i = 77 * wide; i < 80 * wide; i++) expect(&f, got[i] == 0, "padding is 0");
        check_rows(&f, l, r, 0, len, rows, ROW, ALL, &worst);
        check_rows(&f, l, other, 0, 77, got.data(), ROW, ALL, &worst);
        check_state(&f, l, r, lengths[0], 0, 1, STATE, &worst);
        check_state(&f, l, r, len, 1, 0, STATE, &worst);
        const std::vector<float> mine(rows, rows + (size_t)len * wide);
        std::vector<char> now = state_bits(l, 0);
        if (&way == ways) whole = mine, bits = now;
        expect(&f, memcmp(whole.data(), mine.data(), whole.size() * 4) == 0 && bits == now,
               "bits by the number of blocks");
    }
    // In pieces: state 2; the same bits if all cuts are at multiples of 64.
    bool aligned = true;
    int at = 0;
    std::vector<float> got;
    for (size_t i = 0; i <= cuts.size(); i++) {
        const int end = i < cuts.size() ? cuts[i] : len;
        const std::vector<float> some = run_step(
            e, &f, l, {{&r, {at, end, at == 0 ? -1 : 2, 2, {}}}}, MSGL_PREFILL, {0, false});
        got.insert(got.end(), some.begin(), some.end());
        aligned = aligned && (end == len || end % 64 == 0);
        at = end;
    }
    check_rows(&f, l, r, 0, len, got.data(), ROW, ALL, &worst);
    check_state(&f, l, r, len, 1, 2, STATE, &worst);
    expect(&f,
           !aligned || (memcmp(whole.data(), got.data(), whole.size() * 4) == 0 &&
                        bits == state_bits(l, 2)),
           "bits by cut");
    if (saved > 0 && saved < len) { // from the checkpoint into state 3: the same bits
        const std::vector<float> rest =
            run_step(e, &f, l, {{&r, {saved, len, 1, 3, {}}}}, MSGL_PREFILL, {0, false});
        expect(&f, memcmp(whole.data() + (size_t)saved * wide, rest.data(), rest.size() * 4) == 0,
               "bits from a checkpoint");
        expect(&f, bits == state_bits(l, 3), "state from a checkpoint");
        check_state(&f, l, r, len, 1, 3, STATE, &worst);
    }
    printf("prefill %d/%d heads, %d tokens: worst row %.2e (%d, head %d), all %.2e, state %.2e\n",
           k_heads, v_heads, len, worst.row, worst.row_at, worst.head_at, worst.all, worst.state);
    delta_layer_free(&l);
    return family_end(&f);
}

// Answers with drafts, of several tokens a step, beside a chunk that is saved, too: the bits of
// answers of one token a step, behind every token, wherever a step begins.
static int check_answers(bench_exec *e, int k_heads, int v_heads, bool quick, uint64_t *seed)
{
    family f = {"answers with drafts"};
    errors worst = {};
    const int tokens = 24, first = 5;
    delta_layer l = delta_layer_new(k_heads, v_heads, 40, GAP, seed);
    const size_t wide = (size_t)v_heads * DELTA_DIM;
    std::vector<int> lengths;
    for (int t = 1; t <= tokens; t++) lengths.push_back(t);
    request r = request_new(l, tokens, lengths, seed), chunk = request_new(l, 70, {64, 70}, seed);
    std::vector<float> want; // rows, and states behind each of them, of one token a step in state 0
    std::vector<std::vector<char>> states;
    for (int t = 0; t < tokens; t++) {
        delta_piece p = {t, t + 1, t == 0 ? -1 : 0, 0, {}};
        if (t + 1 == first) p.saves.push_back({first, 1});
        const std::vector<float> row = run_step(e, &f, l, {{&r, p}}, MSGL_DECODE, {0, false});
        want.insert(want.end(), row.begin(), row.end());
        states.push_back(state_bits(l, 0));
    }
    for (int n = 1; n <= 9;
         n += quick ? 4 : 1) { // rows of a step: those of state 2, from the one in 1
        for (int begin = first, from = 1; begin + n <= tokens;) {
            // Behind all but the last: 3 + i or, every other step, 20 + i; the next one begins
            // behind the middle row, or with the last one's in 2.
            const int slot = from >= 3 && from < 20 ? 20 : 3,
                      taken = begin % 3 == 0 ? n : n / 2 + 1;
            delta_piece p = {begin, begin + n, from, 2, {}};
            for (int i = 0; i + 1 < n; i++) p.saves.push_back({begin + 1 + i, slot + i});
            const std::vector<float> got = run_step(e, &f, l,
                                                    {{&r, p},
                                                     {NULL, {0, 2, -1, -1, {}}},
                                                     {&r, {0, 3, -1, 36, {{1, 37}, {2, 38}}}},
                                                     {&chunk, {0, 70, -1, 34, {{64, 35}}}}},
                                                    MSGL_PREFILL, {0, false, 3});
            expect(&f, memcmp(got.data(), &want[(size_t)begin * wide], (size_t)n * wide * 4) == 0,
                   "bits of rows");
            for (size_t i = 0; i < 2 * wide; i++) {
                expect(&f, got[(size_t)n * wide + i] == 0, "padding is 0");
            }
            expect(&f, memcmp(&got[(size_t)(n + 2) * wide], want.data(), 3 * wide * 4) == 0,
                   "bits of rows from the beginning");
            for (int i = 0; i < n; i++) {
                const int at = i + 1 < n ? slot + i : 2;
                expect(&f, state_bits(l, at) == states[(size_t)(begin + i)], "bits of a state");
                check_state(&f, l, r, begin + i + 1, begin + i, at, DECODE_STATE, &worst);
            }
            for (int i = 0; i < 3; i++) {
                const int at = i == 2 ? 36 : 37 + i;
                expect(&f, state_bits(l, at) == states[(size_t)i], "bits of a state");
                check_state(&f, l, r, i + 1, i, at, DECODE_STATE, &worst);
            }
            check_rows(&f, l, chunk, 0, 70, got.data() + (size_t)(n + 5) * wide, ROW, ALL, &worst);
            check_state(&f, l, chunk, 64, 0, 35, STATE, &worst);
            check_state(&f, l, chunk, 70, 1, 34, STATE, &worst);
            from = taken < n ? slot + taken - 1 : 2;
            begin += taken;
        }
    }
    printf("answers with drafts %d/%d heads: worst state %.2e\n", k_heads, v_heads, worst.state);
    delta_layer_free(&l);
    return family_end(&f);
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 256 << 20);
    e.x.act = MSGL_BF16;
    int failed = check_decode(&e, 2, 4, &seed);
    failed += check_decode(&e, 1, 3, &seed);
    failed += check_answers(&e, 2, 4, o.quick, &seed);
    failed += check_answers(&e, 1, 3, o.quick, &seed);
    failed += check_prefill(&e, 2, 4, 1, {}, &seed);
    failed += check_prefill(&e, 1, 2, 64, {2, 3, 40}, &seed);
    failed += check_prefill(&e, 1, 3, 200, {64, 128}, &seed);
    failed += check_prefill(&e, 1, 1, 263, {1, 65, 200}, &seed);
    if (!o.quick) {
        failed += check_prefill(&e, 2, 4, 1000, {192, 512, 960}, &seed);
        failed += check_prefill(&e, 1, 2, 2500, {100, 612, 2049}, &seed);
    }
    return failed > 0;
}
