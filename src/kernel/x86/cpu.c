// SPDX-License-Identifier: Apache-2.0
//
// Asks the processor (CPUID) what it has, the operating system (XCR0) which registers it saves, and
// the Linux kernel for permission to use AMX tile data.
#include <cpuid.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel/x86/init.h"

enum {
    XCR0_YMM = 0x6,      // SSE and AVX state
    XCR0_ZMM = 0xe6,     // + opmask and both halves of the ZMM registers
    XCR0_TILE = 0x60000, // tile configuration and tile data
    XFEATURE_TILEDATA = 18,
    ARCH_REQ_XCOMP_PERM_ = 0x1023, // arch_prctl: not in the headers of every C library
};

typedef struct cpuid_regs {
    uint32_t a, b, c, d;
} cpuid_regs;

static cpuid_regs cpuid(uint32_t leaf, uint32_t sub)
{
    cpuid_regs r = {0};
    if (!__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d)) return (cpuid_regs){0};
    return r;
}

static bool bits(uint32_t word, uint32_t mask)
{
    return (word & mask) == mask;
}

static uint64_t xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

// The permission is per process and inherited by threads made later; asking again is harmless.
static bool request_amx(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_TILEDATA) == 0;
}

uint32_t msgl__x86_flags(void)
{
    const cpuid_regs l1 = cpuid(1, 0), l7 = cpuid(7, 0), l71 = cpuid(7, 1);
    const uint32_t avx_fma_f16c_osxsave = 1u << 28 | 1u << 12 | 1u << 29 | 1u << 27;
    const uint32_t f_dq_cd_bw_vl = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
    const uint32_t fp16_amx_bf16_tile = 1u << 23 | 1u << 22 | 1u << 24;
    if (!bits(l1.c, avx_fma_f16c_osxsave) || !bits(l7.b, 1u << 5)) return 0;
    const uint64_t saved = xcr0();
    if ((saved & XCR0_YMM) != XCR0_YMM) return 0;
    uint32_t flags = MSGL_X86_AVX2;
    if (!bits(l7.b, f_dq_cd_bw_vl) || (saved & XCR0_ZMM) != XCR0_ZMM) return flags;
    flags |= MSGL_X86_AVX512;
    if (bits(l7.c, 1u << 11)) flags |= MSGL_X86_AVX512_VNNI;
    if (bits(l71.a, 1u << 5)) flags |= MSGL_X86_AVX512_BF16;
    if (bits(l7.d, fp16_amx_bf16_tile) && (saved & XCR0_TILE) == XCR0_TILE && request_amx())
        flags |= MSGL_X86_AMX;
    return flags;
}
