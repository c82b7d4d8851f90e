// SPDX-License-Identifier: Apache-2.0
//
// Families conv and ssm, and delta for heads of any dimension, on a GPU against their formulas in
// f64 on the host. What a token gets and what states hold must be the same to the bit however a
// request was cut into steps, as a step's only token or with others, from a checkpoint, with
// padding beside it, and from a captured graph.
#include "tests/cuda/states_case.cuh"

struct part { // tokens [begin, end) of a request; r NULL: padding
    const state_request *r;
    int begin, end, from, to;
    std::vector<msgl_kept_state> saves;
};

// Arrays of a call over parts, on host and device.
struct step_arrays {
    std::vector<int32_t> host; // cu_seqlens_q, seqlens_k, from, to, save_start; then saves
    int32_t *dev;
    msgl_seqs seqs;
    msgl_states io;
};

static void lay(step_arrays *s, const state_layer &l, const std::vector<part> &parts,
                msgl_phase phase)
{
    const size_t n = parts.size(), row = n + 1;
    s->host.assign(5 * row, 0);
    for (size_t r = 0; r < n; r++) {
        const part &p = parts[r];
        s->host[r + 1] = s->host[r] + p.end - p.begin;
        s->host[row + r] = p.end, s->host[2 * row + r] = p.from, s->host[3 * row + r] = p.to;
        s->host[4 * row + r + 1] = s->host[4 * row + r] + (int32_t)p.saves.size();
    }
    for (const part &p : parts) {
        for (const msgl_kept_state &v : p.saves)
            s->host.push_back(v.len), s->host.push_back(v.state);
    }
    s->dev = ints_upload(s->host.data(), s->host.size());
    const int32_t *h = s->host.data(), *d = s->dev;
    s->seqs = msgl_seqs{};
    s->seqs.phase = phase, s->seqs.size = (int32_t)n, s->seqs.num_tokens = h[n];
    s->seqs.cu_seqlens_q = h, s->seqs.seqlens_k = h + row;
    s->seqs.dev_cu_seqlens_q = d, s->seqs.dev_seqlens_k = d + row;
    s->io = msgl_states{};
    s->io.seqs = &s->seqs, s->io.base = l.states, s->io.stride = l.stride;
    s->io.at.from = h + 2 * row, s->io.at.to = h + 3 * row, s->io.at.save_start = h + 4 * row;
    s->io.at.saves = (const msgl_kept_state *)(h + 5 * row);
    s->io.at.dev_from = d + 2 * row, s->io.at.dev_to = d + 3 * row;
    s->io.at.dev_save_start = d + 4 * row;
    s->io.at.dev_saves = (const msgl_kept_state *)(d + 5 * row);
}

// in: the device's rows, ld elements apart.
static void call(msgl_exec *x, const state_layer &l, const msgl_states &io, const char *in,
                 size_t ld, void *out, size_t ld_out)
{
    const size_t elem = msgl__dtype_size(x->act);
    const auto column = [&](int i) { return (const void *)(in + (size_t)i * elem); };
    if (l.kind == state_layer::CONV) {
        msgl_conv_call c = l.conv;
        const bool gates = l.in > c.channels;
        c.io = io, c.ld_in = ld, c.out = out, c.ld_out = ld_out;
        c.weight = l.dev(c.weight), c.bias = l.dev(c.bias);
        c.in = column(gates ? c.channels : 0);
        if (gates) c.before = column(0), c.behind = column(2 * c.channels);
        msgl__cuda_conv(x, &c);
    } else if (l.kind == state_layer::SSM) {
        msgl_ssm_call c = l.ssm;
        const int n = c.groups * c.state_dim;
        c.io = io, c.ld_x = c.ld_z = ld, c.out = out, c.ld_out = ld_out;
        c.a_log = l.dev(c.a_log), c.d = l.dev(c.d), c.dt_bias = l.dev(c.dt_bias);
        c.norm_weight = l.dev(c.norm_weight);
        c.z = column(0), c.x = column(l.out), c.b = column(2 * l.out), c.c = column(2 * l.out + n);
        c.dt = column(2 * l.out + 2 * n);
        msgl__cuda_ssm(x, &c);
    } else {
        msgl_delta_call c = l.delta;
        c.io = io, c.ld_qkv = c.ld_z = c.ld_a = c.ld_b = ld, c.out = out, c.ld_out = ld_out;
        c.conv = l.dev(c.conv), c.a_log = l.dev(c.a_log), c.dt_bias = l.dev(c.dt_bias);
        c.norm = l.dev(c.norm);
        c.qkv = column(0), c.z = column(l.ring), c.a = column(l.ring + l.out);
        c.b = column(l.in - c.v_heads);
        msgl__cuda_delta(x, &c);
    }
}

// Runs a step over parts; its rows of results, [tokens, out]. Rows lie apart with NaN between them,
// and padding's are NaN.
static std::vector<float> run_step(bench_exec *e, family *f, const state_layer &l,
                                   const std::vector<part> &parts, msgl_phase phase, bool graph)
{
    step_arrays s;
    lay(&s, l, parts, phase);
    const size_t rows = (size_t)s.seqs.num_tokens, ld = (size_t)l.in + 3,
                 ld_out = (size_t)l.out + 5;
    array in = array_new(e->x.act, rows * ld, 0, NULL);
    array out = array_new(e->x.act, rows * ld_out, 0, NULL);
    size_t row = 0;
    for (const part &p : parts) {
        for (int t = p.begin; t < p.end; t++, row++) {
            if (p.r == NULL) continue;
            std::copy_n(&p.r->in[(size_t)t * l.in], l.in, in.host + row * ld);
        }
    }
    array_upload(&in);
    s.seqs.graph = graph;
    const auto queue = [&] { call(&e->x, l, s.io, (const char *)in.dev, ld, out.dev, ld_out); };
    if (graph) {
        const cudaGraphExec_t g = cuda_capture(e->device.stream, queue);
        CUDA_OK(cudaGraphLaunch(g, e->device.stream));
        exec_sync(e);
        CUDA_OK(cudaGraphExecDestroy(g));
    } else {
        queue();
    }
    exec_sync(e);
    array_download(&out);
    std::vector<float> got(rows * (size_t)l.out);
    for (size_t t = 0; t < rows; t++) {
        std::copy_n(out.host + t * ld_out, l.out, &got[t * (size_t)l.out]);
        for (size_t i = (size_t)l.out; i < ld_out; i++)
            expect(f, isnan(out.host[t * ld_out + i]), "between rows");
    }
    array_free(&in), array_free(&out);
    CUDA_OK(cudaFree(s.dev));
    return got;
}

static std::vector<char> state_bytes(const state_layer &l, int state)
{
    std::vector<char> raw(l.stride);
    CUDA_OK(cudaMemcpy(raw.data(), l.states + (size_t)state * l.stride, l.stride,
                       cudaMemcpyDeviceToHost));
    return raw;
}

// What of a state says something: its matrix and the inputs that a token behind it reads.
static std::vector<char> state_bits(const state_layer &l, msgl_dtype act, int len, int state)
{
    const std::vector<char> raw = state_bytes(l, state);
    const size_t row = (size_t)l.ring * msgl__dtype_size(act), at = l.matrix * sizeof(float);
    std::vector<char> bits(raw.begin(), raw.begin() + (ptrdiff_t)at);
    for (int pos = len > l.rows - 1 ? len - l.rows + 1 : 0; l.ring > 0 && pos < len; pos++) {
        const auto from = raw.begin() + (ptrdiff_t)(at + (size_t)(pos % l.rows) * row);
        bits.insert(bits.end(), from, from + (ptrdiff_t)row);
    }
    return bits;
}

static double off(const double *want, const float *got, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    return sqrt(diff / (norm + 1e-30));
}

// By the norm of all of a request's rows, in units of what activations round by.
static double allowed(msgl_dtype act)
{
    return act == MSGL_F32 ? 1e-5 : 2 * dtype_error(act);
}

static const double STATE = 3e-6; // by the norm of a state

static void check_state(family *f, const state_layer &l, const state_request &r, msgl_dtype act,
                        int len, int state)
{
    const std::vector<char> raw = state_bytes(l, state);
    if (l.matrix > 0) {
        expect_near(f, off(r.states[(size_t)len].data(), (const float *)raw.data(), l.matrix), 0,
                    STATE, "state");
    }
    const char *ring = raw.data() + l.matrix * sizeof(float);
    for (int pos = len > l.rows - 1 ? len - l.rows + 1 : 0; l.ring > 0 && pos < len; pos++) {
        for (int i = 0; i < l.ring; i++) {
            const size_t at = (size_t)(pos % l.rows) * (size_t)l.ring + (size_t)i;
            expect(f, msgl__load_f32(ring, act, at) == r.ring[(size_t)pos][(size_t)i],
                   "input kept");
        }
    }
    for (size_t i = l.stride - STATE_GAP; i < l.stride; i++) {
        expect(f, (unsigned char)raw[i] == 0xff, "behind a state");
    }
}

enum { LEN = 37, OTHER = 21, SAVED = 18 };

struct world {
    bench_exec *e;
    family *f;
    state_layer *l;
    state_request r, other;
    std::vector<float> whole; // rows of r
    std::vector<char> saved, last;
};

// The prompt in one piece in state 0, kept behind SAVED tokens in 1, with other requests.
static void check_whole(world *w, bool graph)
{
    family *f = w->f;
    const state_layer &l = *w->l;
    const msgl_dtype act = w->e->x.act;
    const size_t wide = (size_t)l.out;
    CUDA_OK(cudaMemset(l.states, 0xff, l.stride * NUM_STATES));
    const std::vector<float> got = run_step(w->e, f, l,
                                            {{&w->other, 0, OTHER, -1, 5, {}},
                                             {NULL, 0, 3, -1, -1, {}},
                                             {&w->r, 0, LEN, -1, 0, {{1, 3}, {SAVED, 1}, {LEN, 2}}},
                                             {&w->other, 0, 1, -1, 6, {}}},
                                            MSGL_PREFILL, graph);
    const float *rows = got.data() + (OTHER + 3) * wide;
    for (size_t i = OTHER * wide; i < (OTHER + 3) * wide; i++)
        expect(f, got[i] == 0, "padding is 0");
    expect_near(f, off(w->r.out.data(), rows, LEN * wide), 0, allowed(act), "rows");
    expect_near(f, off(w->other.out.data(), got.data(), OTHER * wide), 0, allowed(act), "rows");
    check_state(f, l, w->r, act, LEN, 0);
    check_state(f, l, w->r, act, LEN, 2);
    check_state(f, l, w->r, act, SAVED, 1);
    check_state(f, l, w->r, act, 1, 3);
    check_state(f, l, w->other, act, OTHER, 5);
    check_state(f, l, w->other, act, 1, 6);
    const std::vector<float> mine(rows, rows + LEN * wide);
    if (w->whole.empty()) {
        w->whole = mine;
        w->saved = state_bits(l, act, SAVED, 1), w->last = state_bits(l, act, LEN, 0);
    }
    expect(f, memcmp(w->whole.data(), mine.data(), mine.size() * 4) == 0, "rows' bits");
    expect(f, w->saved == state_bits(l, act, SAVED, 1), "saved bits");
    expect(f, w->last == state_bits(l, act, LEN, 0), "state's bits");
}

// The same in pieces that end at `cuts`, from state `from` at token `begin` on, in state 7; pieces
// of one token as answers beside padding if asked for.
static void check_pieces(world *w, int begin, int from, const std::vector<int> &cuts, bool answers)
{
    family *f = w->f;
    const state_layer &l = *w->l;
    const msgl_dtype act = w->e->x.act;
    const size_t wide = (size_t)l.out;
    int at = begin;
    for (size_t i = 0; i <= cuts.size(); i++) {
        const int end = i < cuts.size() ? cuts[i] : LEN;
        const bool answer = answers && end - at == 1;
        part p = {&w->r, at, end, at == begin ? from : 7, 7, {}};
        if (at < SAVED && end >= SAVED) p.saves.push_back({SAVED, 8});
        std::vector<part> parts = {{NULL, 0, 1, -1, -1, {}}, p};
        const std::vector<float> got =
            run_step(w->e, f, l, parts, answer ? MSGL_DECODE : MSGL_PREFILL, answer && at % 2 == 0);
        for (size_t j = 0; j < wide; j++) expect(f, got[j] == 0, "padding is 0");
        expect(f,
               memcmp(&got[wide], &w->whole[(size_t)at * wide], (size_t)(end - at) * wide * 4) == 0,
               "rows' bits by cut");
        if (!p.saves.empty())
            expect(f, w->saved == state_bits(l, act, SAVED, 8), "saved bits by cut");
        at = end;
    }
    expect(f, w->last == state_bits(l, act, LEN, 7), "state's bits by cut");
}

static int check_layer(bench_exec *e, const char *name, state_layer l, uint64_t *seed)
{
    family f = {name};
    const msgl_dtype act = e->x.act;
    world w = {
        e,  &f, &l, state_request_new(l, act, LEN, seed), state_request_new(l, act, OTHER, seed),
        {}, {}, {}};
    std::vector<int> ones;
    for (int t = 1; t < LEN; t++) ones.push_back(t);
    check_whole(&w, false);
    check_whole(&w, true);
    check_pieces(&w, 0, -1, {2, 5, 6, 22}, false);
    check_pieces(&w, 0, -1, ones, true);
    check_pieces(&w, SAVED, 1, {}, false);
    layer_free(&l);
    return family_end(&f);
}

static int check_all(bench_exec *e, msgl_dtype act, bool quick, uint64_t *seed)
{
    int failed = 0;
    e->x.act = act;
    printf("%s\n", msgl__dtype_name(act));
    failed += check_layer(e, "conv 2 taps", conv_layer(act, 48, 2, 0, false, false, seed), seed);
    failed += check_layer(e, "conv gates", conv_layer(act, 144, 3, 0, true, false, seed), seed);
    failed += check_layer(e, "conv bias", conv_layer(act, 272, 4, 0, false, true, seed), seed);
    failed += check_layer(e, "conv skip 1", conv_layer(act, 48, 3, 1, true, true, seed), seed);
    failed += check_layer(e, "conv skip 2", conv_layer(act, 144, 4, 2, false, false, seed), seed);
    failed += check_layer(e, "conv skip 7", conv_layer(act, 16, 4, 7, false, false, seed), seed);
    failed += check_layer(e, "ssm small",
                          ssm_layer(act, 6, 2, 16, 16, MSGL_SSM_NORM_GATED, 2, seed), seed);
    failed += check_layer(e, "ssm 80x24",
                          ssm_layer(act, 3, 1, 80, 24, MSGL_SSM_NORM_FIRST, 15, seed), seed);
    failed += check_layer(e, "ssm no norm",
                          ssm_layer(act, 4, 4, 32, 8, MSGL_SSM_NORM_NONE, 1, seed), seed);
    failed += check_layer(e, "ssm 64x128",
                          ssm_layer(act, 8, 2, 64, 128, MSGL_SSM_NORM_GATED, 1, seed), seed);
    failed +=
        check_layer(e, "delta 16x16", delta_layer_any(act, 2, 4, 16, 16, false, false, seed), seed);
    failed += check_layer(e, "delta sigmoid", delta_layer_any(act, 1, 2, 32, 48, false, true, seed),
                          seed);
    failed +=
        check_layer(e, "kda 48x80", delta_layer_any(act, 2, 2, 48, 80, true, false, seed), seed);
    failed += check_layer(e, "kda 128x128", delta_layer_any(act, 2, 2, 128, 128, true, false, seed),
                          seed);
    if (quick) return failed;
    failed += check_layer(e, "ssm 64x256",
                          ssm_layer(act, 24, 1, 64, 256, MSGL_SSM_NORM_GATED, 1, seed), seed);
    failed += check_layer(e, "ssm 256x40",
                          ssm_layer(act, 16, 4, 256, 40, MSGL_SSM_NORM_GATED, 1, seed), seed);
    failed += check_layer(e, "delta 256x64",
                          delta_layer_any(act, 1, 3, 256, 64, false, false, seed), seed);
    return failed;
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    int failed = check_all(&e, MSGL_BF16, o.quick, &seed);
    failed += check_all(&e, MSGL_F32, o.quick, &seed);
    if (!o.quick) failed += check_all(&e, MSGL_F16, true, &seed);
    return failed > 0;
}
