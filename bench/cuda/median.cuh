// SPDX-License-Identifier: Apache-2.0
//
// How long what is queued on a stream takes, by events.
#ifndef MSGL_BENCH_CUDA_MEDIAN_CUH
#define MSGL_BENCH_CUDA_MEDIAN_CUH

#include <algorithm>
#include <vector>

#include "tests/cuda/cuda_check.cuh"

// Milliseconds of queue(), the median of `rounds` after `warm` that do not count. The host waits
// for each round.
template <typename QUEUE>
static inline float median_ms(cudaStream_t stream, int warm, int rounds, QUEUE queue)
{
    cudaEvent_t from, to;
    CUDA_OK(cudaEventCreate(&from));
    CUDA_OK(cudaEventCreate(&to));
    std::vector<float> ms;
    for (int i = 0; i < warm + rounds; i++) {
        float t = 0;
        CUDA_OK(cudaEventRecord(from, stream));
        queue();
        CUDA_OK(cudaEventRecord(to, stream));
        CUDA_OK(cudaEventSynchronize(to));
        CUDA_OK(cudaEventElapsedTime(&t, from, to));
        if (i >= warm) ms.push_back(t);
    }
    CUDA_OK(cudaEventDestroy(from));
    CUDA_OK(cudaEventDestroy(to));
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
}

// The same of launching a graph.
static inline float median_graph_ms(cudaStream_t stream, cudaGraphExec_t graph, int warm,
                                    int rounds)
{
    return median_ms(stream, warm, rounds, [&] { CUDA_OK(cudaGraphLaunch(graph, stream)); });
}

// Microseconds of one of several calls in a graph; call(i) queues on the stream.
template <typename CALL> static inline double graph_us(cudaStream_t stream, int launches, CALL call)
{
    call(0); // loaded outside the capture
    CUDA_OK(cudaStreamSynchronize(stream));
    const cudaGraphExec_t exec = cuda_capture(stream, [&] {
        for (int i = 0; i < launches; i++) call(i);
    });
    const double ms = median_graph_ms(stream, exec, 2, 7);
    CUDA_OK(cudaGraphExecDestroy(exec));
    return ms * 1e3 / launches;
}

#endif
