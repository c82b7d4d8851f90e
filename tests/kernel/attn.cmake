set(CHECKKERN_ATTN_SOURCES check_attn.c)
