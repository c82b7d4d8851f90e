// SPDX-License-Identifier: Apache-2.0
//
// Adapters of experts and of heads against sums in f64: rows of any adapter or of none, members
// that an adapter has nothing of, ranks 16 to 256, one part or two, experts of other ranks, rows by
// token and results by choice. What has no adapter keeps its bits, and a row's bits do not depend
// on how many others there are; a captured call serves other adapters than it was captured with.
// And rows of an embedding that an adapter has in the place of the model's.
// cuda_lora_members [--seed N] [--quick].
#include <vector>

#include "cuda/gemm/gemm.h"
#include "tests/cuda/ops_check.cuh"

static int below(uint64_t *seed, int n)
{
    return (int)(rng_next(seed) % (uint64_t)n);
}

// One member of one adapter: B's of [n, rank], each with its columns.
struct member {
    bool has;
    int rank[2], n[2], col[2]; // rank 0: there is no such part
    array a, b[2];
};

// One product of many: what the slots have of its members.
struct product {
    msgl_dtype act;
    int n, k, members, base;                // members in front that are another product's
    std::vector<std::vector<member>> slots; // empty: the slot has nothing
    std::vector<msgl_lora_member *> sets;   // device, NULL
    const msgl_lora_member **table;         // device, [slots]
};

static member member_new(msgl_dtype act, int n, int k, int max_rank, bool two, uint64_t *seed)
{
    member m = {};
    m.has = below(seed, 5) > 0;
    if (!m.has) return m;
    const int half = two ? n / 2 : n;
    for (int p = 0; p < (two ? 2 : 1); p++) {
        m.rank[p] = 16 * (1 + below(seed, max_rank / 16));
        m.col[p] = p * half;
        m.n[p] = p == 0 ? half : n - half;
        m.b[p] = array_new(act, (size_t)m.n[p] * m.rank[p], 0.3f, seed);
    }
    m.a = array_new(act, (size_t)(m.rank[0] + m.rank[1]) * k, 1 / sqrtf((float)k), seed);
    return m;
}

static void slot_write(product *p, size_t slot)
{
    std::vector<msgl_lora_member> set(p->slots[slot].size() + (size_t)p->base);
    for (size_t i = 0; i < p->slots[slot].size(); i++) {
        const member &m = p->slots[slot][i];
        msgl_lora_member *to = &set[i + (size_t)p->base];
        *to = {};
        if (!m.has) continue;
        to->a = m.a.dev;
        for (int j = 0; j < 2 && m.rank[j] > 0; j++) {
            to->parts[j] = {m.b[j].dev, m.n[j], m.rank[j], m.col[j], 0};
        }
    }
    for (int i = 0; i < p->base; i++) set[(size_t)i] = {};
    p->sets[slot] = NULL;
    if (!p->slots[slot].empty()) {
        p->sets[slot] = (msgl_lora_member *)device_copy(set.data(), set.size() * sizeof set[0]);
    }
    device_write(p->table, p->sets.data(), p->sets.size() * sizeof p->sets[0]);
}

static product product_new(msgl_dtype act, int n, int k, int members, int slots, int max_rank,
                           bool two, uint64_t *seed)
{
    product p = {act, n, k, members, below(seed, 2) * members};
    CUDA_OK(cudaMalloc(&p.table, (size_t)slots * sizeof *p.table));
    p.sets.assign((size_t)slots, NULL);
    for (int s = 0; s < slots; s++) {
        std::vector<member> all;
        for (int m = 0; m < members && !(slots > 1 && s == 1); m++) {
            all.push_back(member_new(act, n, k, max_rank, two, seed));
        }
        p.slots.push_back(all);
        slot_write(&p, (size_t)s);
    }
    return p;
}

static void product_free(product *p)
{
    for (std::vector<member> &slot : p->slots) {
        for (member &m : slot) {
            if (!m.has) continue;
            array_free(&m.a);
            for (int j = 0; j < 2 && m.rank[j] > 0; j++) array_free(&m.b[j]);
        }
    }
    for (msgl_lora_member *s : p->sets) CUDA_OK(cudaFree(s));
    CUDA_OK(cudaFree(p->table));
}

// A call's tokens, and where its places come from; heads: no source.
struct places {
    int tokens, top_k, num, first; // num: places; first: of the step's rows
    std::vector<int32_t> slots, ids, source;
    int32_t *dev_slots, *dev_ids, *dev_source;
};

static places places_new(int tokens, int top_k, int experts, int slots, uint64_t *seed)
{
    places p = {tokens, top_k, top_k > 0 ? tokens * top_k : tokens, below(seed, 5)};
    p.slots.assign((size_t)p.first, 0);
    for (int t = 0; t < tokens; t++) {
        const bool same = t > 0 && below(seed, 4) > 0;
        p.slots.push_back(same ? p.slots.back() : below(seed, slots + 1) - 1);
    }
    p.dev_slots = ints_upload(p.slots.data(), p.slots.size());
    if (top_k == 0) return p;
    for (int i = 0; i < p.num; i++) p.ids.push_back(below(seed, experts));
    for (int e = 0; e < experts; e++) { // sorted by expert, as the call's are
        for (int i = 0; i < p.num; i++) {
            if (p.ids[(size_t)i] == e) p.source.push_back(i);
        }
    }
    p.dev_ids = ints_upload(p.ids.data(), p.ids.size());
    p.dev_source = ints_upload(p.source.data(), p.source.size());
    return p;
}

static void places_free(places *p)
{
    CUDA_OK(cudaFree(p->dev_slots));
    CUDA_OK(cudaFree(p->dev_ids));
    CUDA_OK(cudaFree(p->dev_source));
}

static msgl_lora_members_call call_of(const product *p, const places *at, int first_id)
{
    msgl_lora_members_call c = {};
    c.sets = p->table;
    c.stride = 1;
    c.base = p->base;
    c.members = p->members;
    c.slots = at->dev_slots;
    c.first = at->first;
    c.source = at->dev_source;
    c.ids = at->dev_ids;
    c.top_k = at->top_k;
    c.first_id = first_id;
    c.places = at->num;
    c.k = p->k;
    c.ld_in = (size_t)p->k;
    c.ld_out = (size_t)p->n;
    if (at->top_k > 0) return c;
    c.ld_in *= (size_t)p->members;
    c.member_in = (size_t)p->k;
    c.member_out = (size_t)p->n + 8; // what rotates stands behind
    c.ld_out = c.member_out * (size_t)p->members;
    return c;
}

// Where a row of one product is, and what is added to it; of experts head is 0.
struct row {
    const member *m; // NULL: nothing
    size_t in, out;
};

static row row_of(const product *p, const places *at, const msgl_lora_members_call *c, int place,
                  int head)
{
    const bool experts = at->top_k > 0;
    const int choice = experts ? at->source[(size_t)place] : place;
    const int token = experts ? choice / at->top_k : place;
    const int index = experts ? at->ids[(size_t)choice] - c->first_id : head;
    const int slot = at->slots[(size_t)(at->first + token)];
    row r = {NULL, (size_t)(c->by_token ? token : place) * c->ld_in + (size_t)head * c->member_in,
             (size_t)(c->by_choice ? choice : place) * c->ld_out + (size_t)head * c->member_out};
    if (slot < 0 || index < 0 || index >= p->members || p->slots[(size_t)slot].empty()) return r;
    const member *m = &p->slots[(size_t)slot][(size_t)index];
    if (m->has) r.m = m;
    return r;
}

// out, of which `before` was there.
static void check_rows(family *f, const product *p, const places *at,
                       const msgl_lora_members_call *c, const array *in,
                       const std::vector<float> &before, const array *out, const char *what)
{
    std::vector<double> want(before.begin(), before.end()), off(before.size(), 0);
    std::vector<bool> changes(before.size(), false);
    for (int i = 0; i < at->num * (at->top_k > 0 ? 1 : p->members); i++) {
        const int heads = at->top_k > 0 ? 1 : p->members;
        const row r = row_of(p, at, c, i / heads, i % heads);
        if (r.m == NULL) continue;
        for (int j = 0, behind = 0; j < 2 && r.m->rank[j] > 0; behind += r.m->rank[j++]) {
            for (int q = 0; q < r.m->rank[j]; q++) {
                const float *a = r.m->a.host + (size_t)(behind + q) * p->k;
                double h = 0, size = 0;
                for (int k = 0; k < p->k; k++) {
                    h += (double)in->host[r.in + (size_t)k] * a[k];
                    size += fabs((double)in->host[r.in + (size_t)k] * a[k]);
                }
                for (int col = 0; col < r.m->n[j]; col++) {
                    const double b = r.m->b[j].host[(size_t)col * r.m->rank[j] + q];
                    const size_t to = r.out + (size_t)(r.m->col[j] + col);
                    want[to] += h * b;
                    off[to] += fabs(b) * size * 0x1p-19;
                    changes[to] = true;
                }
            }
        }
    }
    bool kept = true;
    for (size_t i = 0; i < before.size(); i++) {
        if (!changes[i]) {
            kept = kept && memcmp(&out->host[i], &before[i], sizeof(float)) == 0;
            continue;
        }
        expect_near(f, out->host[i], want[i], off[i] + fabs(want[i]) * dtype_error(p->act) + 1e-30,
                    what);
    }
    expect(f, kept, "what has no adapter keeps its bits");
}

struct shape {
    int n, k, members, slots, max_rank, tokens, top_k, first_id; // top_k 0: heads
    bool two, by_token, by_choice;
};

static void check(bench_exec *e, family *f, msgl_dtype act, const shape &s, uint64_t *seed)
{
    product p = product_new(act, s.n, s.k, s.members, s.slots, s.max_rank, s.two, seed);
    // Some experts are of other ranks.
    places at = places_new(s.tokens, s.top_k, s.members + 2 * s.first_id, s.slots, seed);
    msgl_lora_members_call c = call_of(&p, &at, s.first_id);
    c.by_token = s.by_token;
    c.by_choice = s.by_choice;
    array in = array_new(act, (size_t)at.num * c.ld_in, 1, seed);
    array out = array_new(act, (size_t)at.num * c.ld_out, 1, seed);
    const std::vector<float> before(out.host, out.host + out.n);
    c.in = in.dev;
    c.out = out.dev;
    e->x.act = act;
    msgl__cuda_lora_members(&e->x, &c);
    exec_sync(e);
    array_download(&out);
    char what[160];
    snprintf(what, sizeof what, "dtype %d, n %d, k %d, %d members, rank %d, %d tokens of %d",
             (int)act, s.n, s.k, s.members, s.max_rank, s.tokens, s.top_k);
    check_rows(f, &p, &at, &c, &in, before, &out, what);
    array_free(&in);
    array_free(&out);
    places_free(&at);
    product_free(&p);
}

static shape random_shape(bool quick, uint64_t *seed)
{
    static const int RANKS[] = {16, 32, 64, 256};
    shape s = {};
    s.n = 1 + below(seed, quick ? 90 : 700);
    s.k = 8 * (1 + below(seed, quick ? 20 : 120));
    if (below(seed, 4) == 0) s.k += 1 + below(seed, 7); // nothing is aligned
    s.members = 1 + below(seed, 6);
    s.slots = 1 + below(seed, 5);
    s.max_rank = RANKS[below(seed, quick ? 3 : 4)];
    s.tokens = 1 + below(seed, quick ? 12 : 60);
    s.two = s.n > 1 && below(seed, 2) == 0;
    if (below(seed, 3) == 0) return s;
    s.top_k = 1 + below(seed, 4);
    s.first_id = below(seed, 3);
    s.by_token = below(seed, 2) == 0;
    s.by_choice = below(seed, 2) == 0;
    return s;
}

// A token alone, a block each, and among so many that a block has several.
static void check_same_bits(bench_exec *e, family *f, msgl_dtype act, uint64_t *seed)
{
    enum { TOKENS = 3000, PICKED = 4, K = 136, N = 72, HEADS = 2 };
    product p = product_new(act, N, K, HEADS, 3, 32, false, seed);
    places all = places_new(TOKENS, 0, 0, 3, seed);
    msgl_lora_members_call c = call_of(&p, &all, 0);
    array in = array_new(act, TOKENS * c.ld_in, 1, seed);
    array out = array_new(act, TOKENS * c.ld_out, 1, seed), one = out;
    const std::vector<float> before(out.host, out.host + out.n);
    one.n = c.ld_out;
    one.host = (float *)malloc((one.n + 1) * sizeof(float));
    CUDA_OK(cudaMalloc(&one.dev, one.n * sizeof(float)));
    c.in = in.dev;
    c.out = out.dev;
    e->x.act = act;
    msgl__cuda_lora_members(&e->x, &c);
    exec_sync(e);
    array_download(&out);
    for (int i = 0; i < PICKED; i++) {
        const size_t t = (size_t)below(seed, TOKENS);
        memcpy(one.host, &before[t * c.ld_out], one.n * sizeof(float));
        array_upload(&one);
        msgl_lora_members_call alone = c;
        alone.first = c.first + (int)t;
        alone.places = 1;
        alone.in = (const char *)in.dev + t * c.ld_in * msgl__dtype_size(act);
        alone.out = one.dev;
        msgl__cuda_lora_members(&e->x, &alone);
        exec_sync(e);
        array_download(&one);
        expect(f, memcmp(one.host, out.host + t * c.ld_out, one.n * sizeof(float)) == 0,
               "a row has the same bits alone and among many");
    }
    array_free(&in);
    array_free(&out);
    array_free(&one);
    places_free(&all);
    product_free(&p);
}

// Captured over rows that have no adapter, launched with others.
static void check_captured(bench_exec *e, family *f, msgl_dtype act, uint64_t *seed)
{
    enum { TOKENS = 24, SLOTS = 4 };
    product p = product_new(act, 64, 128, 5, SLOTS, 32, true, seed);
    places at = places_new(TOKENS, 3, 5, SLOTS, seed);
    msgl_lora_members_call c = call_of(&p, &at, 0);
    c.by_token = true;
    array in = array_new(act, (size_t)at.num * c.ld_in, 1, seed);
    array out = array_new(act, (size_t)at.num * c.ld_out, 1, seed);
    c.in = in.dev;
    c.out = out.dev;
    e->x.act = act;
    const std::vector<int32_t> first(at.slots.size(), -1);
    device_write(at.dev_slots, first.data(), first.size() * sizeof first[0]);
    const cudaGraphExec_t graph =
        cuda_capture(e->device.stream, [&] { msgl__cuda_lora_members(&e->x, &c); });
    for (int round = 0; round < 3; round++) {
        for (int32_t &s : at.slots) s = round == 0 ? -1 : below(seed, SLOTS + 1) - 1;
        device_write(at.dev_slots, at.slots.data(), at.slots.size() * sizeof at.slots[0]);
        if (round == 2) { // slot 1 had nothing
            p.slots[1] = std::vector<member>(5);
            for (member &m : p.slots[1]) m = member_new(act, 64, 128, 16, false, seed);
            slot_write(&p, 1);
        }
        for (size_t i = 0; i < out.n; i++) out.host[i] = rng_normal(seed);
        array_upload(&out);
        array_download(&out);
        const std::vector<float> before(out.host, out.host + out.n);
        CUDA_OK(cudaGraphLaunch(graph, e->device.stream));
        exec_sync(e);
        array_download(&out);
        check_rows(f, &p, &at, &c, &in, before, &out, "captured");
    }
    CUDA_OK(cudaGraphExecDestroy(graph));
    array_free(&in);
    array_free(&out);
    places_free(&at);
    product_free(&p);
}

// silu(gate) * up of places with adapters; the other rows stay.
static void check_gate(bench_exec *e, family *f, msgl_dtype act, uint64_t *seed)
{
    enum { TOKENS = 20, DIM = 44 };
    product p = product_new(act, 2 * DIM, 64, 4, 3, 16, true, seed);
    places at = places_new(TOKENS, 2, 6, 3, seed);
    msgl_lora_members_call c = call_of(&p, &at, 1);
    array in = array_new(act, (size_t)at.num * 2 * DIM, 1, seed);
    array out = array_new(act, (size_t)at.num * DIM, 1, seed);
    const std::vector<float> before(out.host, out.host + out.n);
    c.k = DIM;
    c.in = in.dev;
    c.ld_in = 2 * DIM;
    c.out = out.dev;
    c.ld_out = DIM;
    e->x.act = act;
    msgl__cuda_lora_gate(&e->x, &c, MSGL_SILU);
    exec_sync(e);
    array_download(&out);
    bool kept = true;
    for (int i = 0; i < at.num; i++) {
        const row r = row_of(&p, &at, &c, i, 0);
        for (int j = 0; j < DIM; j++) {
            const size_t to = r.out + (size_t)j;
            const double g = in.host[r.in + (size_t)j], u = in.host[r.in + (size_t)(DIM + j)];
            const double want = g / (1 + exp(-g)) * u;
            if (r.m == NULL) {
                kept = kept && memcmp(&out.host[to], &before[to], sizeof(float)) == 0;
            } else {
                expect_near(f, out.host[to], want, fabs(want) * dtype_error(act) + 1e-6, "gate");
            }
        }
    }
    expect(f, kept, "rows without an adapter keep their bits");
    array_free(&in);
    array_free(&out);
    places_free(&at);
    product_free(&p);
}

// Rows [first, first + n) of an embedding are an adapter's.
static void check_own_rows(bench_exec *e, family *f, msgl_dtype act, int first, int n, int k,
                           uint64_t *seed)
{
    enum { TOKENS = 37, VOCAB = 50 };
    std::vector<int32_t> ids;
    for (int t = 0; t < TOKENS; t++) ids.push_back(below(seed, VOCAB));
    array w = array_new(act, (size_t)n * k, 1, seed),
          out = array_new(act, TOKENS * (size_t)k, 1, seed);
    const std::vector<float> before(out.host, out.host + out.n);
    int32_t *dev = ints_upload(ids.data(), ids.size());
    msgl_wformat format = {};
    format.dtype = act;
    msgl_weight weight = {};
    weight.format = &format;
    weight.n = n;
    weight.k = k;
    weight.first = first;
    weight.data = w.dev;
    e->x.act = act;
    msgl__cuda_gather_own(&e->x, &weight, dev, TOKENS, out.dev);
    exec_sync(e);
    array_download(&out);
    bool same = true;
    for (int t = 0; t < TOKENS; t++) {
        const int row = ids[(size_t)t] - first;
        const bool own = row >= 0 && row < n;
        const float *want = own ? w.host + (size_t)row * k : &before[(size_t)t * k];
        same = same && memcmp(out.host + (size_t)t * k, want, (size_t)k * sizeof(float)) == 0;
    }
    expect(f, same, "rows of its ids are the adapter's, all others stay");
    array_free(&w);
    array_free(&out);
    CUDA_OK(cudaFree(dev));
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, (size_t)1 << 20);
    family shapes = {"shapes"}, bits = {"bits"}, captured = {"captured"}, gate = {"gate"},
           own = {"own rows"};
    for (int i = 0; i < (o.quick ? 60 : 240); i++) {
        check(&e, &shapes, (msgl_dtype)(i % 3), random_shape(o.quick, &seed), &seed);
    }
    for (int act = 0; act < 3; act++) {
        // Qwen3-30B-A3B's experts and DeepSeek-V2-Lite's heads.
        if (!o.quick) {
            check(&e, &shapes, (msgl_dtype)act, {1536, 2048, 16, 4, 16, 64, 8, 4, true, true},
                  &seed);
            check(&e, &shapes, (msgl_dtype)act, {512, 128, 16, 4, 64, 90}, &seed);
        }
        check_same_bits(&e, &bits, (msgl_dtype)act, &seed);
        check_captured(&e, &captured, (msgl_dtype)act, &seed);
        check_gate(&e, &gate, (msgl_dtype)act, &seed);
        check_own_rows(&e, &own, (msgl_dtype)act, 7, 3, 24, &seed);
        check_own_rows(&e, &own, (msgl_dtype)act, 0, 50, 1029, &seed);
    }
    int failed = family_end(&shapes);
    failed |= family_end(&bits);
    failed |= family_end(&captured);
    failed |= family_end(&gate);
    failed |= family_end(&own);
    return failed;
}
