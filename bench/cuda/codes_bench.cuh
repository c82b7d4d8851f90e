// SPDX-License-Identifier: Apache-2.0
//
// What the benchmarks of products of codes share.
#ifndef MSGL_BENCH_CUDA_CODES_BENCH_CUH
#define MSGL_BENCH_CUDA_CODES_BENCH_CUH

#include <cuda_bf16.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

#include "bench/cuda/median.cuh"
#include "bench/cuda/noise.cuh"
#include "tests/cuda/cuda_check.cuh"

// Bytes a microsecond that a copy of 2 GB within the device's memory reads and writes, which it
// prints beside the device's name.
static double print_copy_speed(cudaStream_t stream)
{
    const size_t bytes = (size_t)2 << 30;
    char *from = (char *)device_copy(NULL, bytes), *to = (char *)device_copy(NULL, bytes);
    noise<<<1024, 512, 0, stream>>>((__nv_bfloat16 *)from, bytes / 2, 1);
    const float ms = median_ms(stream, 2, 7, [&] {
        CUDA_OK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
    });
    CUDA_OK(cudaFree(from));
    CUDA_OK(cudaFree(to));
    const double speed = 2.0 * (double)bytes / (1e3 * (double)ms);
    cudaDeviceProp props;
    CUDA_OK(cudaGetDeviceProperties(&props, 0));
    printf("%s, a copy moves %.2f TB/s\n", props.name, speed * 1e-6);
    return speed;
}

// The names, or numbers, between the commas of an argument.
static std::vector<std::string> listed(const std::string &names)
{
    std::vector<std::string> list;
    for (size_t from = 0, end; from < names.size(); from = end + 1) {
        end = names.find(',', from);
        if (end == std::string::npos) end = names.size();
        list.push_back(names.substr(from, end - from));
    }
    return list;
}

static std::vector<int> listed_numbers(const std::string &numbers)
{
    std::vector<int> list;
    for (const std::string &number : listed(numbers)) list.push_back(atoi(number.c_str()));
    return list;
}

#endif
