# Family attn: the driver and plain C, and one file per ISA level.
set(KERNEL_ATTN_SOURCES ref/attn_paged.c ref/attn_ref.c x86/attn_avx2.c x86/attn_avx512.c
                        x86/attn_avx512bf16.c x86/attn_amx.c)
msgl_isa(ref ref/attn_ref.c)
msgl_isa(avx2 x86/attn_avx2.c)
msgl_isa(avx512 x86/attn_avx512.c)
msgl_isa(avx512bf16 x86/attn_avx512bf16.c)
msgl_isa(amx x86/attn_amx.c)
