// SPDX-License-Identifier: Apache-2.0
//
// Token ids in the token pool (cuda/ops/tokens.cu): those of a draft head become the model's, and
// what is no id of the head's stays what it is.
#include <vector>

#include "cuda/device_api.h"
#include "tests/cuda/cuda_check.cuh"
#include "tests/cuda/family.cuh"

static int below(uint64_t *seed, int n)
{
    return (int)(splitmix64(seed) % (uint64_t)n);
}

// n places of a pool, scattered, each once; ids of a head of num_ids tokens.
static void check_map(family *f, uint64_t *seed, int n, int num_ids)
{
    const int size = 3 * n + 7;
    std::vector<int32_t> pool(size), index(n), ids(num_ids), places(size);
    for (int i = 0; i < size; i++) places[i] = i;
    for (int i = 0; i < n; i++) {
        std::swap(places[i], places[i + below(seed, size - i)]);
        index[i] = places[i];
    }
    for (int i = 0; i < num_ids; i++) ids[i] = 100000 + below(seed, 100000);
    for (int i = 0; i < size; i++) {
        // Of five: what failed, one beyond the last, far beyond, and two of the head's.
        const int kind = below(seed, 5);
        pool[i] = kind == 0   ? -1
                  : kind == 1 ? num_ids
                  : kind == 2 ? INT32_MAX - below(seed, 9)
                              : below(seed, num_ids);
    }
    std::vector<int32_t> want = pool;
    for (int i = 0; i < n; i++) {
        int32_t *token = &want[index[i]];
        if (*token >= 0 && *token < num_ids) *token = ids[*token];
    }
    int32_t *d_pool = (int32_t *)device_copy(pool.data(), pool.size() * sizeof(int32_t));
    int32_t *d_index = (int32_t *)device_copy(index.data(), index.size() * sizeof(int32_t));
    int32_t *d_ids = (int32_t *)device_copy(ids.data(), ids.size() * sizeof(int32_t));
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    msgl__cuda_map_tokens(stream, d_pool, d_index, n, d_ids, num_ids);
    CUDA_OK(cudaStreamSynchronize(stream));
    std::vector<int32_t> got(size);
    CUDA_OK(cudaMemcpy(got.data(), d_pool, got.size() * sizeof(int32_t), cudaMemcpyDeviceToHost));
    expect(f, got == want, "map_tokens");
    CUDA_OK(cudaStreamDestroy(stream));
    cudaFree(d_pool), cudaFree(d_index), cudaFree(d_ids);
}

int main(int argc, char **argv)
{
    options o = parse_options(argc, argv);
    family f = {"tokens"};
    static const int numbers[] = {0, 1, 2, 127, 128, 129, 300, 1000};
    for (int n : numbers) {
        check_map(&f, &o.seed, n, 1);
        check_map(&f, &o.seed, n, 32000);
    }
    return family_end(&f);
}
