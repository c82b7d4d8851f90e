// SPDX-License-Identifier: Apache-2.0
//
// Products of a warpgroup (WGMMA, sm_90a): 64 rows, f32 sums in registers, B and mostly A in shared
// memory, in rows of 128 bytes swizzled by 128 bytes. A thread has, of its warp's 16 rows, row
// lane / 4 and the eighth behind it: d[4 j], d[4 j + 1] of the first and d[4 j + 2], d[4 j + 3] of
// the second are columns 8 j + 2 (lane % 4) and the next one.
#ifndef MSGL_CUDA_PTX_WGMMA_CUH
#define MSGL_CUDA_PTX_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// Names of the sums' registers in the instruction's text.
#define MSGL_ACC_NAMES_4 "%0, %1, %2, %3"
#define MSGL_ACC_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define MSGL_ACC_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define MSGL_ACC_NAMES_24 MSGL_ACC_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define MSGL_ACC_NAMES_32 MSGL_ACC_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define MSGL_ACC_NAMES_40 MSGL_ACC_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define MSGL_ACC_NAMES_48 MSGL_ACC_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define MSGL_ACC_NAMES_56 MSGL_ACC_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define MSGL_ACC_NAMES_64 MSGL_ACC_NAMES_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define MSGL_ACC_NAMES_72 MSGL_ACC_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define MSGL_ACC_NAMES_80 MSGL_ACC_NAMES_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define MSGL_ACC_NAMES_88 MSGL_ACC_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define MSGL_ACC_NAMES_96 MSGL_ACC_NAMES_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define MSGL_ACC_NAMES_104 MSGL_ACC_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define MSGL_ACC_NAMES_112 MSGL_ACC_NAMES_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define MSGL_ACC_NAMES_120 MSGL_ACC_NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define MSGL_ACC_NAMES_128 MSGL_ACC_NAMES_120 ", %120, %121, %122, %123, %124, %125, %126, %127"

#define MSGL_ACC_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MSGL_ACC_8(d, i)                                                                           \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),    \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define MSGL_ACC_16(d, i) MSGL_ACC_8(d, i), MSGL_ACC_8(d, i + 8)
#define MSGL_ACC_24(d, i) MSGL_ACC_16(d, i), MSGL_ACC_8(d, i + 16)
#define MSGL_ACC_32(d, i) MSGL_ACC_24(d, i), MSGL_ACC_8(d, i + 24)
#define MSGL_ACC_40(d, i) MSGL_ACC_32(d, i), MSGL_ACC_8(d, i + 32)
#define MSGL_ACC_48(d, i) MSGL_ACC_40(d, i), MSGL_ACC_8(d, i + 40)
#define MSGL_ACC_56(d, i) MSGL_ACC_48(d, i), MSGL_ACC_8(d, i + 48)
#define MSGL_ACC_64(d, i) MSGL_ACC_56(d, i), MSGL_ACC_8(d, i + 56)
#define MSGL_ACC_72(d, i) MSGL_ACC_64(d, i), MSGL_ACC_8(d, i + 64)
#define MSGL_ACC_80(d, i) MSGL_ACC_72(d, i), MSGL_ACC_8(d, i + 72)
#define MSGL_ACC_88(d, i) MSGL_ACC_80(d, i), MSGL_ACC_8(d, i + 80)
#define MSGL_ACC_96(d, i) MSGL_ACC_88(d, i), MSGL_ACC_8(d, i + 88)
#define MSGL_ACC_104(d, i) MSGL_ACC_96(d, i), MSGL_ACC_8(d, i + 96)
#define MSGL_ACC_112(d, i) MSGL_ACC_104(d, i), MSGL_ACC_8(d, i + 104)
#define MSGL_ACC_120(d, i) MSGL_ACC_112(d, i), MSGL_ACC_8(d, i + 112)
#define MSGL_ACC_128(d, i) MSGL_ACC_120(d, i), MSGL_ACC_8(d, i + 120)

// d[64, n] (+)= a[64, 16] b[n, 16]^T; a, b: msgl__wgmma_operand, rows of k. sums: n / 2; x, y and
// z: the numbers of the operands behind them.
#define MSGL_WGMMA(n, sums, x, y, z, c_type, type)                                                 \
    static __device__ __forceinline__ void msgl__wgmma(float(&d)[sums], uint64_t a, uint64_t b,    \
                                                       int add, c_type)                            \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #z ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type               \
                     " {" MSGL_ACC_NAMES_##sums "}, %" #x ", %" #y ", p, 1, 1, 0, 0;\n}\n"         \
                     : MSGL_ACC_##sums(d, 0)                                                       \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }
#define MSGL_WGMMA_TYPES(n, sums, x, y, z)                                                         \
    MSGL_WGMMA(n, sums, x, y, z, __nv_bfloat16, "bf16")                                            \
    MSGL_WGMMA(n, sums, x, y, z, __half, "f16")

MSGL_WGMMA_TYPES(32, 16, 16, 17, 18)
MSGL_WGMMA_TYPES(48, 24, 24, 25, 26)
MSGL_WGMMA_TYPES(64, 32, 32, 33, 34)
MSGL_WGMMA_TYPES(80, 40, 40, 41, 42)
MSGL_WGMMA_TYPES(96, 48, 48, 49, 50)
MSGL_WGMMA_TYPES(112, 56, 56, 57, 58)
MSGL_WGMMA_TYPES(128, 64, 64, 65, 66)
MSGL_WGMMA_TYPES(144, 72, 72, 73, 74)
MSGL_WGMMA_TYPES(160, 80, 80, 81, 82)
MSGL_WGMMA_TYPES(192, 96, 96, 97, 98)
MSGL_WGMMA_TYPES(208, 104, 104, 105, 106)
MSGL_WGMMA_TYPES(224, 112, 112, 113, 114)
MSGL_WGMMA_TYPES(240, 120, 120, 121, 122)
MSGL_WGMMA_TYPES(256, 128, 128, 129, 130)

// d[64, n] (+)= a[64, 32] b[n, 32]^T of E4M3, in bytes where the ones above have elements of two.
// The tensor cores add up its products with fewer bits than an f32 has: sums of more than some
// hundred columns belong in sums of their own.
#define MSGL_WGMMA_E4M3(n, sums, x, y, z)                                                          \
    static __device__ __forceinline__ void msgl__wgmma_e4m3(float(&d)[sums], uint64_t a,           \
                                                            uint64_t b, int add)                   \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #z ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3"                    \
                     " {" MSGL_ACC_NAMES_##sums "}, %" #x ", %" #y ", p, 1, 1;\n}\n"               \
                     : MSGL_ACC_##sums(d, 0)                                                       \
                     : "l"(a), "l"(b), "r"(add));                                                  \
    }

MSGL_WGMMA_E4M3(8, 4, 4, 5, 6)
MSGL_WGMMA_E4M3(16, 8, 8, 9, 10)
MSGL_WGMMA_E4M3(32, 16, 16, 17, 18)
MSGL_WGMMA_E4M3(64, 32, 32, 33, 34)
MSGL_WGMMA_E4M3(128, 64, 64, 65, 66)

// The same with A in registers, a warp's fragment of 16 rows as of msgl__load_matrix_4. TRANSPOSED:
// b has rows of n, columns of k.
#define MSGL_WGMMA_REGISTERS(n, sums, x0, x1, x2, x3, y, z, t, c_type, type)                       \
    template <bool TRANSPOSED>                                                                     \
    static __device__ __forceinline__ void msgl__wgmma_registers(                                  \
        float(&d)[sums], const uint32_t(&a)[4], uint64_t b, int add, c_type)                       \
    {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #z ", 0;\n"                              \
                     "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type               \
                     " {" MSGL_ACC_NAMES_##sums "}, {%" #x0 ", %" #x1 ", %" #x2 ", %" #x3          \
                                                "}, %" #y ", p, 1, 1, %" #t ";\n}\n"               \
                     : MSGL_ACC_##sums(d, 0)                                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add),               \
                       "n"(TRANSPOSED ? 1 : 0));                                                   \
    }
#define MSGL_WGMMA_REGISTERS_TYPES(n, sums, x0, x1, x2, x3, y, z, t)                               \
    MSGL_WGMMA_REGISTERS(n, sums, x0, x1, x2, x3, y, z, t, __nv_bfloat16, "bf16")                  \
    MSGL_WGMMA_REGISTERS(n, sums, x0, x1, x2, x3, y, z, t, __half, "f16")

MSGL_WGMMA_REGISTERS_TYPES(8, 4, 4, 5, 6, 7, 8, 9, 10)
MSGL_WGMMA_REGISTERS_TYPES(32, 16, 16, 17, 18, 19, 20, 21, 22)
MSGL_WGMMA_REGISTERS_TYPES(64, 32, 32, 33, 34, 35, 36, 37, 38)
MSGL_WGMMA_REGISTERS_TYPES(128, 64, 64, 65, 66, 67, 68, 69, 70)
MSGL_WGMMA_REGISTERS_TYPES(256, 128, 128, 129, 130, 131, 132, 133, 134)

// An operand at a shared address that is a multiple of 1,024: rows of 128 bytes, eight rows after
// another 1,024 bytes on. lead: of an operand whose rows are k, the bytes between blocks of 64
// columns; else it does not matter.
static __device__ __forceinline__ uint64_t msgl__wgmma_operand(uint32_t shared, uint32_t lead = 16)
{
    return (uint64_t)((shared & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

// Before the first product of a group: it may read the registers that were written before.
static __device__ __forceinline__ void msgl__wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void msgl__wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most PENDING committed groups are in flight.
template <int PENDING> static __device__ __forceinline__ void msgl__wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The same; d is what the finished ones wrote, which the compiler must not read earlier.
template <int PENDING, int SUMS>
static __device__ __forceinline__ void msgl__wgmma_wait(float (&d)[SUMS])
{
    msgl__wgmma_wait<PENDING>();
#pragma unroll
    for (int i = 0; i < SUMS; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// The warpgroup takes registers that others have given back, up to N a thread.
template <int N> static __device__ __forceinline__ void msgl__registers_up(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ __forceinline__ void msgl__registers_down(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
