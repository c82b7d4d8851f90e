// SPDX-License-Identifier: Apache-2.0
//
// The polynomial of 2^x that the vector levels share. x = n + r with n the nearest integer and
// |r| <= 1/2; 2^r = 1 + r g(r), where g is the polynomial of degree 5 that meets (2^r - 1) / r at
// the six Chebyshev nodes of [-1/2, 1/2]. Its error is 5.1e-9 of 2^r, so that with f32 rounding the
// result is within 1 ulp; integers are exact. The coefficients are those of g, lowest first,
// computed with 50 digits and rounded to f32.
#ifndef MSGL_KERNEL_X86_ATTN_EXP2_H
#define MSGL_KERNEL_X86_ATTN_EXP2_H

#define MSGL_EXP2_C0 0.693147182f
#define MSGL_EXP2_C1 0.240226507f
#define MSGL_EXP2_C2 0.0555035695f
#define MSGL_EXP2_C3 0.00961808302f
#define MSGL_EXP2_C4 0.00133908633f
#define MSGL_EXP2_C5 0.000154531634f

#endif
