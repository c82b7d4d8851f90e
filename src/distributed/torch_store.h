// SPDX-License-Identifier: Apache-2.0
//
// A client of the key-value store that processes of torch.distributed meet at: TCPStore, which rank
// 0 of a group serves. What goes over the connection is that of torch 2.4 to 2.15
// (torch/csrc/distributed/c10d: TCPStore.cpp, TCPStoreBackend.hpp): a byte that says what is asked,
// then its arguments in the machine's own form, texts behind their length of 8 bytes.
#ifndef MSGL_DISTRIBUTED_TORCH_STORE_H
#define MSGL_DISTRIBUTED_TORCH_STORE_H

#include <stdatomic.h>
#include <stddef.h>

#include "core/err.h"

// Connects to host:port, trying until timeout_ms are over or *stop is set, as the server may be
// started later, and counts itself among the group's processes, whom rank 0 waits for. *fd is the
// caller's to close. MSGL_EINVAL: not an address; MSGL_EIO: nobody answers; MSGL_EABORTED.
int msgl__torch_store_open(const char *host, int port, int timeout_ms, const atomic_bool *stop,
                           int *fd, msgl_err *err);
// The value of a key, of exactly `size` bytes, if it is there: 1; 0: not yet. MSGL_EIO: the server
// is gone; MSGL_EFORMAT: the value has another size.
int msgl__torch_store_get(int fd, const char *key, void *out, size_t size, msgl_err *err);

#endif
