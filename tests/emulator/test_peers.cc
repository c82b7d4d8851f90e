// SPDX-License-Identifier: Apache-2.0
//
// Sums and gathers over peer memory (cuda/ranks/peer.cu), two to four ranks, which are
// processes that share it: every type, in one shot and in two, against sums on the host, bit for
// bit; calls behind one another without a pause; minus zeros; and a rank that nobody answers.
#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "cuda/ranks/comm.h"
#include "cuda/launch.cuh"
#include "cuda/ops/vec8.cuh"
#include "cuda/peer_sum.cuh"

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: rank %d of %d: %s\n", __FILE__, __LINE__, peers.rank,          \
                    peers.size, #cond);                                                            \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static msgl_peers peers;

template <typename T> static msgl_dtype type_of(T);
template <> msgl_dtype type_of(float)
{
    return MSGL_F32;
}
template <> msgl_dtype type_of(__half)
{
    return MSGL_F16;
}
template <> msgl_dtype type_of(__nv_bfloat16)
{
    return MSGL_BF16;
}

// What rank `who` has at i in a call: of any sign and size, some of them minus zeros.
static float value(size_t i, int who, int call)
{
    const uint32_t z = (uint32_t)(i * 2654435761u) ^ (uint32_t)(who * 40503 + call * 9973) * 69069u;
    if (z % 7 == 0) return -0.0f;
    return (float)((int)(z >> 8 & 1023) - 512) * (float)(1u << (z >> 4 & 15)) * 0x1p-10f;
}

// The sum in rank order, and as T.
template <typename T> static T sum_of(size_t i, int call)
{
    float sum = 0;
    for (int r = 0; r < peers.size; r++) {
        const float part = to_f32(from_f32<T>(value(i, r, call))) + 0.0f;
        sum = r == 0 ? part : sum + part;
    }
    return from_f32<T>(sum);
}

template <typename T> static std::vector<T> parts(size_t n, int call)
{
    std::vector<T> v(n);
    for (size_t i = 0; i < n; i++) v[i] = from_f32<T>(value(i, peers.rank, call));
    return v;
}

// Equal bits, but for the sign of zero in two shots.
template <typename T> static bool same(const std::vector<T> &a, const std::vector<T> &b)
{
    for (size_t i = 0; i < a.size(); i++) {
        if (memcmp(&a[i], &b[i], sizeof(T)) != 0 && !(to_f32(a[i]) == 0 && to_f32(b[i]) == 0)) {
            return false;
        }
    }
    return true;
}

template <typename T> static void check_sum(size_t n, int call)
{
    std::vector<T> buf = parts<T>(n, call), want(n);
    for (size_t i = 0; i < n; i++) want[i] = sum_of<T>(i, call);
    msgl_peer_reduce c = {};
    c.dtype = type_of(T());
    c.in = c.out = buf.data();
    c.rows = 1, c.dim = n;
    CHECK(msgl__peer_reduce(&peers, &c, NULL) == cudaSuccess);
    CHECK(same(buf, want));
}

template <typename T> static void check_addition(size_t rows, size_t dim, int call)
{
    const size_t n = rows * dim, tiles = (size_t)msgl__peer_norm_stats_tiles(dim);
    std::vector<T> in = parts<T>(n, call), residual(n), scaled(n), want(n), wanted(n);
    std::vector<float> weight(dim), sums(tiles * rows, -1);
    for (size_t i = 0; i < dim; i++) weight[i] = (float)(i % 5) - 2;
    for (size_t i = 0; i < n; i++) {
        residual[i] = from_f32<T>((float)(i % 9) - 4);
        want[i] = from_f32<T>(to_f32(residual[i]) + 0.5f * to_f32(sum_of<T>(i, call)));
        wanted[i] = from_f32<T>(weight[i % dim] * to_f32(want[i]));
    }
    msgl_peer_reduce c = {};
    c.dtype = type_of(T());
    c.in = in.data(), c.residual = residual.data();
    c.scale = 0.5f;
    c.rows = rows, c.dim = dim;
    c.next_norm = weight.data(), c.scaled = scaled.data(), c.sums = sums.data();
    CHECK(rows <= msgl__peer_most_rows(c.dtype, dim));
    CHECK(msgl__peer_reduce(&peers, &c, NULL) == cudaSuccess);
    CHECK(same(residual, want) && same(scaled, wanted));
    for (size_t row = 0; row < rows; row++) {
        double all = 0, squares = 0;
        for (size_t tile = 0; tile < tiles; tile++) all += sums[tile * rows + row];
        for (size_t i = 0; i < dim; i++) {
            squares += (double)to_f32(want[row * dim + i]) * to_f32(want[row * dim + i]);
        }
        CHECK(fabs(all - squares) <= 1e-5 * squares);
    }
}

static void check_gather(size_t n, int call)
{
    const size_t stride = n + 4;
    std::vector<float> in = parts<float>(n, call), out(stride * (size_t)peers.size, 7);
    CHECK(msgl__peer_gather(&peers, in.data(), n, stride, out.data(), NULL) == cudaSuccess);
    for (int r = 0; r < peers.size; r++) {
        for (size_t i = 0; i < n; i++) CHECK(out[(size_t)r * stride + i] == value(i, r, call));
        for (size_t i = n; i < stride; i++) CHECK(out[(size_t)r * stride + i] == 7);
    }
}

// The end of a product of two ranks, whose parts are words or pairs of them.
template <typename V>
static __global__ void product_end(const msgl_peer_sum s, const V *parts, V *theirs, int n)
{
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    msgl__pdl_wait();
    const msgl_peer_slot slot = msgl__peer_open(s);
    if (i < n) msgl__peer_push(slot.theirs + (size_t)i * sizeof(V), parts[i]);
    __syncthreads();
    if (threadIdx.x == 0) msgl__peer_count(s.count, s.ticket, slot.call, gridDim.x);
    if (i >= n) return;
    msgl__peer_look(slot.own + (size_t)i * sizeof(V), &theirs[i]);
    msgl__peer_take(slot.own + (size_t)i * sizeof(V), s.over, &theirs[i]);
}

static uint32_t word(int i, int who, int call)
{
    const float v = value((size_t)i, who, call) + 0.0f;
    uint32_t bits;
    memcpy(&bits, &v, 4);
    return bits;
}

template <typename V> static void check_product(int n, int call)
{
    constexpr int WORDS = sizeof(V) / 4;
    std::vector<V> own(n), theirs(n);
    msgl_peer_shared *mine = peers.of[peers.rank], *other = peers.of[1 - peers.rank];
    const msgl_peer_sum s = {(char *)other + MSGL_PEER_PUSHED, (char *)mine + MSGL_PEER_PUSHED,
                             &mine->pushed, &mine->ticket, peers.over};
    for (int i = 0; i < n * WORDS; i++) ((uint32_t *)own.data())[i] = word(i, peers.rank, call);
    CHECK(msgl__launch(product_end<V>, dim3((unsigned)(n + 63) / 64), dim3(64), 0, NULL, s,
                       (const V *)own.data(), theirs.data(), n) == cudaSuccess);
    for (int i = 0; i < n * WORDS; i++) {
        CHECK(((const uint32_t *)theirs.data())[i] == word(i, 1 - peers.rank, call));
    }
}

template <typename T> static void check_type(int *call)
{
    static const size_t lengths[] = {1, 7, 8, 9, 1000, 1023, 1024, 5120, 3 * 5120 + 24, 130};
    for (int round = 0; round < 2; round++) {
        for (size_t n : lengths) check_sum<T>(n, ++*call);
        for (int n = 1; n < 2000 && peers.size == 2; n = 3 * n + 40) {
            check_product<uint32_t>(n, ++*call);
            check_product<uint2>(n, ++*call);
        }
        check_addition<T>(3, 1040, ++*call);
        check_addition<T>(1, 24, ++*call);
        check_gather(round == 0 ? 1001 : 1000, ++*call);
    }
    // More than one shot has, for more than two ranks; a block has several tiles of none.
    check_sum<T>(160000, ++*call);
    check_sum<T>(17, ++*call);
}

// All that came has been read, and made empty.
static void check_empty()
{
    const uint32_t *word = (const uint32_t *)((char *)peers.of[peers.rank] + MSGL_PEER_PUSHED);
    for (size_t i = 0; i < (MSGL_PEER_BYTES - MSGL_PEER_PUSHED) / 4; i++)
        CHECK(word[i] == 0x80000000u);
}

static void run_rank(int rank, uint32_t *ready)
{
    int call = 0;
    peers.rank = rank;
    emulator_seed = (uint64_t)rank + 1;
    CHECK(msgl__peer_prepare(peers.of[rank], NULL) == cudaSuccess);
    __atomic_add_fetch(ready, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) < (uint32_t)peers.size) usleep(1000);
    check_type<float>(&call);
    check_type<__half>(&call);
    check_type<__nv_bfloat16>(&call);
    __atomic_add_fetch(ready, 1, __ATOMIC_ACQ_REL); // nobody writes any more
    while (__atomic_load_n(ready, __ATOMIC_ACQUIRE) < 2 * (uint32_t)peers.size) usleep(1000);
    check_empty();
}

static void *share(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) perror("mmap"), exit(1);
    return p;
}

// Ranks [0, alone ? 1 : size) run; how many failed.
static int run(int size, bool alone)
{
    uint32_t *words = (uint32_t *)share(4096);
    words[1] = alone; // nobody need be waited for
    peers.size = size;
    peers.over = &words[1];
    for (int r = 0; r < size; r++) peers.of[r] = (msgl_peer_shared *)share(MSGL_PEER_BYTES);
    int failed = 0;
    for (int r = 0; r < (alone ? 1 : size); r++) {
        if (fork() != 0) continue;
        alarm(120);
        if (!alone) run_rank(r, &words[0]);
        float v[8] = {};
        msgl_peer_reduce c = {};
        c.dtype = MSGL_F32;
        c.in = c.out = v;
        c.rows = 1, c.dim = 8;
        if (alone) {
            CHECK(msgl__peer_prepare(peers.of[0], NULL) == cudaSuccess);
            CHECK(msgl__peer_reduce(&peers, &c, NULL) == cudaSuccess);
        }
        _exit(0);
    }
    for (int status; wait(&status) > 0;) failed += status != 0;
    for (int r = 0; r < size; r++) munmap(peers.of[r], MSGL_PEER_BYTES);
    return failed;
}

int main()
{
    emulator_in_order = true;
    int failed = run(2, true);
    for (int size = 2; size <= 4; size++) failed += run(size, false);
    printf("sums over peer memory: %s\n", failed == 0 ? "as on the host" : "wrong");
    return failed != 0;
}
