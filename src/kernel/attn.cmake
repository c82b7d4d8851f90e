# Family attn: the driver and plain C, and one file per ISA level.
set(KERNEL_ATTN_SOURCES ref/attn_paged.c ref/attn_ref.c x86/attn_amx.c)
msgl_isa(ref ref/attn_ref.c)
msgl_isa(amx x86/attn_amx.c)
