// SPDX-License-Identifier: Apache-2.0
//
// SipHash-2-4 (Aumasson and Bernstein 2012, "SipHash: a fast short-input PRF"): 64 bits of which
// nobody without the key can tell what gives the same. For names that clients choose.
#ifndef MSGL_UTILS_SIPHASH_H
#define MSGL_UTILS_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t msgl__siphash(const uint64_t key[2], const void *data, size_t n);

#endif
