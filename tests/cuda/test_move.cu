// SPDX-License-Identifier: Apache-2.0
//
// Moves of K and V within pools: what each slot has afterwards, byte by byte, against copies on the
// host. cuda_move [--seed N] [--quick].
#include <vector>

#include "tests/cuda/ops_check.cuh"

enum { SLOTS = 1000 };

struct moves {
    std::vector<int32_t> from, to, cu;
};

static int below(uint64_t *seed, int n)
{
    return (int)(rng_next(seed) % (uint64_t)n);
}

// Each request has its share of the slots, in any order, as positions; rows of its path go behind
// each other: all rows (nothing changes), none, or any.
static moves moves_new(int reqs, uint64_t *seed)
{
    std::vector<int32_t> slots(SLOTS);
    for (int i = 0; i < SLOTS; i++) slots[i] = i;
    for (int i = SLOTS - 1; i > 0; i--) std::swap(slots[i], slots[below(seed, i + 1)]);
    moves m;
    m.cu.push_back(0);
    const int rows = SLOTS / reqs < 64 ? SLOTS / reqs : 64;
    for (int r = 0; r < reqs; r++) {
        const int32_t *const own = slots.data() + r * (SLOTS / reqs);
        const int share = r % 4; // of rows, 0: none, 1: all, 2: a half, 3: a third
        for (int row = 0, kept = 0; row < rows && share > 0; row++) {
            if (below(seed, share) != 0) continue;
            m.from.push_back(own[row]);
            m.to.push_back(own[kept++]);
        }
        m.cu.push_back((int32_t)m.from.size());
    }
    return m;
}

// [layers, SLOTS, bytes]; `shift` bytes off the start of an allocation.
struct pool {
    size_t bytes, size, shift;
    std::vector<uint8_t> host;
    char *dev;
};

static pool pool_new(size_t bytes, int layers, size_t shift, uint64_t *seed)
{
    enum { GUARD = 64 };
    pool p = {bytes, (size_t)layers * SLOTS * bytes, shift, {}, NULL};
    p.host.resize(shift + p.size + GUARD);
    for (uint8_t &v : p.host) v = (uint8_t)rng_next(seed);
    p.dev = (char *)device_copy(p.host.data(), p.host.size());
    return p;
}

static void pool_check(family *f, pool *p, const moves &m, int layers, const char *what)
{
    std::vector<uint8_t> want = p->host, got(p->host.size());
    for (int l = 0; l < layers; l++) {
        const size_t at = p->shift + (size_t)l * SLOTS * p->bytes;
        for (size_t i = 0; i < m.from.size(); i++) {
            memcpy(&want[at + (size_t)m.to[i] * p->bytes],
                   &p->host[at + (size_t)m.from[i] * p->bytes], p->bytes);
        }
    }
    CUDA_OK(cudaMemcpy(got.data(), p->dev, got.size(), cudaMemcpyDeviceToHost));
    expect(f, got == want, what);
    CUDA_OK(cudaFree(p->dev));
}

static void check(bench_exec *e, family *f, size_t k_bytes, size_t v_bytes, int layers, int reqs,
                  size_t shift, uint64_t *seed)
{
    const moves m = moves_new(reqs, seed);
    pool k = pool_new(k_bytes, layers, shift, seed);
    pool v = pool_new(v_bytes > 0 ? v_bytes : 1, layers, shift, seed);
    int32_t *from = ints_upload(m.from.data(), m.from.size());
    int32_t *to = ints_upload(m.to.data(), m.to.size());
    int32_t *cu = ints_upload(m.cu.data(), m.cu.size());
    msgl_kv_move_call c = {};
    c.k = k.dev + shift, c.k_bytes = k_bytes;
    c.v = v_bytes > 0 ? v.dev + shift : NULL, c.v_bytes = v_bytes;
    c.slots = SLOTS, c.num_layers = layers, c.num_reqs = reqs;
    c.from = from, c.to = to, c.cu_moves = cu;
    msgl__cuda_move_kv(&e->x, &c);
    exec_sync(e);
    char what[120];
    snprintf(what, sizeof what, "rows of %zu and %zu bytes, %d layers, %d requests", k_bytes,
             v_bytes, layers, reqs);
    pool_check(f, &k, m, layers, what);
    const moves none = {{}, {}, {}};
    pool_check(f, &v, v_bytes > 0 ? m : none, layers, what);
    CUDA_OK(cudaFree(from));
    CUDA_OK(cudaFree(to));
    CUDA_OK(cudaFree(cu));
}

int main(int argc, char **argv)
{
    const options o = parse_options(argc, argv);
    uint64_t seed = o.seed;
    static bench_exec e;
    exec_open(&e, 1 << 20);
    family f = {"move"};
    check(&e, &f, 2048, 2048, o.quick ? 2 : 36, 4, 0, &seed); // 8 heads of 128, bf16
    check(&e, &f, 1024, 1024, 3, 15, 0, &seed);               // E4M3
    check(&e, &f, 512, 256, 1, 2, 0, &seed);                  // dims of their own
    check(&e, &f, 1152, 0, o.quick ? 2 : 61, 7, 0, &seed);    // latent, bf16
    check(&e, &f, 576, 0, 2, 1, 0, &seed);
    check(&e, &f, 16, 16, 2, 33, 0, &seed);
    check(&e, &f, 24, 10, 3, 6, 0, &seed);   // not of 16 bytes
    check(&e, &f, 64, 64, 2, 6, 2, &seed);   // nor at multiples of them
    check(&e, &f, 64, 64, 2, 500, 0, &seed); // two slots each
    return family_end(&f);
}
