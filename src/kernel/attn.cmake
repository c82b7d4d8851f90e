# Family attn: the driver and plain C, and one file per ISA level.
set(KERNEL_ATTN_SOURCES ref/attn_paged.c ref/attn_ref.c ref/attn_flex.c ref/attn_expanded.c)
msgl_isa(ref ref/attn_ref.c)
if(MSGL_X86)
  foreach(level avx2 avx512 avx512bf16 amx)
    list(APPEND KERNEL_ATTN_SOURCES x86/attn_${level}.c)
    msgl_isa(${level} x86/attn_${level}.c)
  endforeach()
endif()
