// SPDX-License-Identifier: Apache-2.0
//
// WGMMA m64 n64/n128/n256 k16 with f32 accumulators; A from shared memory or registers, B from
// shared memory. Operands in shared memory have rows of 128 bytes with the 128-byte swizzle, so 8
// rows are an atom of 1024 bytes.
#ifndef MSGL_KERNEL_CUDA_ATTN_PREFILL_SM90_WGMMA_CUH
#define MSGL_KERNEL_CUDA_ATTN_PREFILL_SM90_WGMMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

// Matrix descriptor of an operand at shared address `at`: K-major (rows are M or N) or, with `lead`
// as the bytes between blocks of 64 columns, MN-major (rows are K).
static __device__ __forceinline__ uint64_t msgl__wgmma_desc(uint32_t at, uint32_t lead)
{
    return (uint64_t)1 << 62 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)(lead >> 4) << 16 |
           (at & 0x3ffff) >> 4;
}

static __device__ __forceinline__ void msgl__wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void msgl__wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most N committed groups are in flight; `acc` is what the finished ones wrote (the
// compiler must not read it earlier).
template <int N, int R> static __device__ __forceinline__ void msgl__wgmma_wait(float (&acc)[R])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#pragma unroll
    for (int i = 0; i < R; i++) asm volatile("" : "+f"(acc[i])::"memory");
}

// clang-format off
#define MSGL_WGMMA_REGS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MSGL_WGMMA_ACC_32 \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), \
    "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), \
    "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), \
    "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), \
    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
    "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
    "+f"(d[30]), "+f"(d[31])
#define MSGL_WGMMA_REGS_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MSGL_WGMMA_ACC_64 \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), \
    "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), \
    "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), \
    "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), \
    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
    "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
    "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
    "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
    "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), \
    "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), \
    "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), \
    "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
    "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define MSGL_WGMMA_REGS_128 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define MSGL_WGMMA_ACC_128 \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), \
    "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), \
    "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), \
    "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), \
    "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
    "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), \
    "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), \
    "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
    "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), \
    "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), \
    "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), \
    "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), \
    "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), \
    "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), \
    "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), \
    "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
    "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), \
    "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), \
    "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), \
    "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), \
    "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), \
    "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), \
    "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), \
    "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
    "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), \
    "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// D = A B + (add ? D : 0); A and B K-major in shared memory.
#define MSGL_WGMMA_SS(N, R, T, A, B, C) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." T "." T \
                 " {" MSGL_WGMMA_REGS_##R \
                 "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}\n" \
                 : MSGL_WGMMA_ACC_##R : "l"(a), "l"(b), "r"(add))

// The same with A in registers; B MN-major if TR is 1.
#define MSGL_WGMMA_RS(N, R, T, TR, A0, A1, A2, A3, B, C) \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #C ", 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." T "." T \
                 " {" MSGL_WGMMA_REGS_##R \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, " TR ";\n}\n" \
                 : MSGL_WGMMA_ACC_##R \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
// clang-format on

template <class T, int R>
static __device__ __forceinline__ void msgl__wgmma_ss(float (&d)[R], uint64_t a, uint64_t b,
                                                      int add)
{
    constexpr bool bf16 = __is_same(T, __nv_bfloat16);
    if constexpr (R == 32) {
        if constexpr (bf16)
            MSGL_WGMMA_SS(64, 32, "bf16", 32, 33, 34);
        else
            MSGL_WGMMA_SS(64, 32, "f16", 32, 33, 34);
    } else if constexpr (R == 64) {
        if constexpr (bf16)
            MSGL_WGMMA_SS(128, 64, "bf16", 64, 65, 66);
        else
            MSGL_WGMMA_SS(128, 64, "f16", 64, 65, 66);
    }
}

template <class T, bool TRANSPOSED, int R>
static __device__ __forceinline__ void msgl__wgmma_rs(float (&d)[R], const uint32_t (&a)[4],
                                                      uint64_t b, int add)
{
    constexpr bool bf16 = __is_same(T, __nv_bfloat16);
    if constexpr (R == 32) {
        if constexpr (bf16 && TRANSPOSED)
            MSGL_WGMMA_RS(64, 32, "bf16", "1", 32, 33, 34, 35, 36, 37);
        else if constexpr (bf16)
            MSGL_WGMMA_RS(64, 32, "bf16", "0", 32, 33, 34, 35, 36, 37);
        else if constexpr (TRANSPOSED)
            MSGL_WGMMA_RS(64, 32, "f16", "1", 32, 33, 34, 35, 36, 37);
        else
            MSGL_WGMMA_RS(64, 32, "f16", "0", 32, 33, 34, 35, 36, 37);
    } else if constexpr (R == 64) {
        if constexpr (bf16 && TRANSPOSED)
            MSGL_WGMMA_RS(128, 64, "bf16", "1", 64, 65, 66, 67, 68, 69);
        else if constexpr (bf16)
            MSGL_WGMMA_RS(128, 64, "bf16", "0", 64, 65, 66, 67, 68, 69);
        else if constexpr (TRANSPOSED)
            MSGL_WGMMA_RS(128, 64, "f16", "1", 64, 65, 66, 67, 68, 69);
        else
            MSGL_WGMMA_RS(128, 64, "f16", "0", 64, 65, 66, 67, 68, 69);
    } else if constexpr (R == 128) {
        if constexpr (bf16 && TRANSPOSED)
            MSGL_WGMMA_RS(256, 128, "bf16", "1", 128, 129, 130, 131, 132, 133);
        else if constexpr (bf16)
            MSGL_WGMMA_RS(256, 128, "bf16", "0", 128, 129, 130, 131, 132, 133);
        else if constexpr (TRANSPOSED)
            MSGL_WGMMA_RS(256, 128, "f16", "1", 128, 129, 130, 131, 132, 133);
        else
            MSGL_WGMMA_RS(256, 128, "f16", "0", 128, 129, 130, 131, 132, 133);
    }
}

#endif
