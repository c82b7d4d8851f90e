# Families norm, rope, act, sample (one source compiled per level) and moe (plain C).
set(KERNEL_OPS_SOURCES ref/ops.c ref/moe.c x86/ops_avx2.c x86/ops_avx512.c)
msgl_isa(ref ref/ops.c ref/moe.c)
msgl_isa(avx2 x86/ops_avx2.c)
msgl_isa(avx512 x86/ops_avx512.c)
# vec.h passes 64-byte vectors between always-inlined functions only: no ABI is involved.
set_property(SOURCE ref/ops.c x86/ops_avx2.c x86/ops_avx512.c APPEND PROPERTY COMPILE_OPTIONS
             -Wno-psabi)
