# Families norm, rope, act, sample, delta (one source compiled per level) and moe (plain C).
set(KERNEL_OPS_SOURCES ref/ops.c ref/moe.c)
msgl_isa(ref ref/ops.c ref/moe.c)
# vec.h passes 64-byte vectors between always-inlined functions only: no ABI is involved.
set_property(SOURCE ref/ops.c APPEND PROPERTY COMPILE_OPTIONS -Wno-psabi)
if(MSGL_X86)
  foreach(level avx2 avx512)
    list(APPEND KERNEL_OPS_SOURCES x86/ops_${level}.c)
    msgl_isa(${level} x86/ops_${level}.c)
    set_property(SOURCE x86/ops_${level}.c APPEND PROPERTY COMPILE_OPTIONS -Wno-psabi)
  endforeach()
endif()
