// SPDX-License-Identifier: Apache-2.0
//
// Where parts of sums over two ranks meet whose GPUs see each other's memory (peer_sum.cuh).
#ifndef MSGL_CUDA_PEER_SUM_H
#define MSGL_CUDA_PEER_SUM_H

#include <stddef.h>
#include <stdint.h>

enum { MSGL_PEER_SLOTS = 2 };
#define MSGL_PEER_SLOT_BYTES ((size_t)16 << 20)

// Of two ranks. The communicator's; kernels get a copy.
typedef struct msgl_peer_sum {
    char *theirs, *own; // [MSGL_PEER_SLOTS, MSGL_PEER_SLOT_BYTES]: the other's memory, this one's
    uint32_t *count, *ticket;      // sums done; blocks of the current one that are done
    const volatile uint32_t *over; // pinned host memory: not 0 when nobody need be waited for
} msgl_peer_sum;

#endif
