// SPDX-License-Identifier: Apache-2.0
#ifndef MSGL_CORE_HEX_H
#define MSGL_CORE_HEX_H

// What a hexadecimal digit of either case is worth; -1: it is none.
static inline int msgl__hex_digit(int c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#endif
