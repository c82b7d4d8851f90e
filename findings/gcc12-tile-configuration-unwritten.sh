#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# GCC 12.2 (Debian 12): _tile_loadconfig (AMX) loses what the program writes into most of the configuration.
# Expected: ldtilecfg reads 64 bytes (Intel SDM, volume 2), so what was written to any of them before is in memory then.
# Seen: at -O2 the intrinsic's assembly names only the first 8 bytes as its input. Writes to the others, columns (bytes 16 to 47)
# and rows (48 to 63) of every tile, are dead to the compiler and vanish when the struct is a local one; the program configures
# tiles of whatever lies on the stack. With a barrier ("memory") in front of it all are there. Programs built with this compiler
# fault at the first tile instruction or, with luck, work: llama.cpp as vendored in llama-cpp-python 0.3.36 does the former on
# prompts of quantised models, so a comparison with it on such a machine needs the barrier first.
# Exit status 0: as described, 1: it has changed.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
apt-get download -q=2 gcc-12=12.2.0-14+deb12u1 cpp-12=12.2.0-14+deb12u1 libgcc-12-dev=12.2.0-14+deb12u1 libisl23 libmpc3 \
    libmpfr6 libgmp10 2>/dev/null
for package in *.deb; do dpkg -x "$package" .; done
gcc=usr/lib/gcc/x86_64-linux-gnu/12
cat >tiles.c <<'END'
#include <amxtileintrin.h>
struct configuration {
    unsigned char palette, start_row, reserved[14];
    unsigned short columns[16];
    unsigned char rows[16];
};
void configure(int rows)
{
    struct configuration c = {.palette = 1};
    for (int i = 0; i < 16; i++) {
        c.columns[i] = 64;
        c.rows[i] = rows;
    }
#ifdef BARRIER
    __asm__ volatile("" : : "r"(&c) : "memory");
#endif
    _tile_loadconfig(&c);
}
END
# How many instructions write to the stack, where the configuration is.
writes() {
    LD_LIBRARY_PATH=usr/lib/x86_64-linux-gnu $gcc/cc1 -quiet -O2 -mamx-tile -D_IMMINTRIN_H_INCLUDED \
        -isystem $gcc/include "$@" tiles.c -o tiles.s
    grep -c 'mov.*,.*(%rsp)' tiles.s || true
}
without=$(writes)
with=$(writes -DBARRIER)
version=$(LD_LIBRARY_PATH=usr/lib/x86_64-linux-gnu $gcc/cc1 -quiet -version /dev/null -o /dev/null 2>&1 | head -1)
echo "$version: stores to the configuration: $without, with a barrier $with"
[ "$without" -lt "$with" ] && [ "$without" -le 2 ]
