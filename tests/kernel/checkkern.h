// SPDX-License-Identifier: Apache-2.0
//
// checkkern: one runner that checks every kernel of every family at every ISA level against an f64
// oracle written in the family's own check file, then times it against this machine's limits.
//
// A family is one function `void msgl__check_<family>(checkkern *ck)` and one line in families.h.
// The runner calls it once per level. It asks msgl__ck_func() about each kernel; a kernel is due
// when the level brings a new pointer for it and the command line does not filter it out:
//
//     if (msgl__ck_func(ck, CK_FN(ck->cur->norm.rms_norm), CK_PREV(ck, norm.rms_norm),
//                       "rms_norm_%d", dim)) {
//         ck_buf out = msgl__ck_buf(ck, rows, dim, ld);
//         double *want = msgl__ck_alloc(ck, rows * dim * sizeof *want);
//         ... oracle into want; ck->cur->norm.rms_norm(ck->exec, ..., out.data, out.ld, ...);
//         msgl__ck_near(ck, "out", &out, want, tolerance);
//         if (ck->bench) msgl__ck_time(ck, run_it, &args, bytes, flops, CK_LIMIT_READ);
//     }
//
// Memory from msgl__ck_alloc and msgl__ck_buf is freed by the runner when the family returns or at
// msgl__ck_reset.
#ifndef MSGL_TESTS_KERNEL_CHECKKERN_H
#define MSGL_TESTS_KERNEL_CHECKKERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/attributes.h"
#include "kernel/kernel.h"

typedef struct checkkern checkkern;
typedef void (*ck_fn)(void); // any function pointer, for comparing only

#define CK_FN(f) ((ck_fn)(f))
#define CK_PREV(ck, member) ((ck)->prev == NULL ? NULL : (ck_fn)(ck)->prev->member)

struct checkkern {
    const msgl_kernels *cur;  // table of the level under test
    const msgl_kernels *prev; // of the level below; NULL at the lowest
    msgl_exec *exec;          // pool of two or more threads; 256 MiB of scratch
    msgl_exec *exec1;         // one thread, for "does not depend on the number of threads"
    bool bench;               // timing was asked for
    struct ck_state *state;   // the runner's
};

// True when this kernel is to be checked now; the name says which variant (`--function=` matches
// its beginning).
bool msgl__ck_func(checkkern *ck, ck_fn cur, ck_fn prev, const char *name, ...)
    __attribute__((format(printf, 4, 5)));

// Random numbers, determined by --seed and the name of the current check.
uint64_t msgl__ck_rand(checkkern *ck);
int msgl__ck_int(checkkern *ck, int lo, int hi); // inclusive
float msgl__ck_uniform(checkkern *ck, float lo, float hi);
float msgl__ck_normal(checkkern *ck); // mean 0, variance 1

// Zeroed, 64-byte aligned. Ends the program when the memory is not there.
void *msgl__ck_alloc(checkkern *ck, size_t bytes);

// A rows x cols result with ld >= cols, filled with a pattern, and guard zones before and after it.
typedef struct ck_buf {
    float *data;
    int rows, cols;
    size_t ld;
} ck_buf;
ck_buf msgl__ck_buf(checkkern *ck, int rows, int cols, size_t ld);
void msgl__ck_reset(checkkern *ck); // frees all memory of this family so far

// An element passes when |got - want| <= abs + rel * |want|; all together when the normalised mean
// square error sum (got - want)^2 / sum want^2 is at most nmse. Infinities and NaNs must be in the
// same places (with the same sign).
typedef struct ck_tol {
    double abs, rel, nmse;
} ck_tol;

// Compares and checks the guard zones and padding of buf. want is dense [rows, cols] and must not
// be the buffer itself. Reports on failure and returns whether it passed.
bool msgl__ck_near(checkkern *ck, const char *what, const ck_buf *buf, const double *want,
                   ck_tol tol);
// Bitwise, for what a contract says is equal: n floats.
bool msgl__ck_same(checkkern *ck, const char *what, const float *a, const float *b, size_t n);
// Any other property.
bool msgl__ck_true(checkkern *ck, bool ok, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

typedef enum ck_limit {
    CK_LIMIT_READ, // memory only
    CK_LIMIT_F32,  // the slower of memory and f32 multiply-adds of the level under test
    CK_LIMIT_BF16, // the slower of memory and bf16 multiply-adds of the level under test
    CK_LIMIT_INT8, // the slower of memory and int8 multiply-adds of the level under test
} ck_limit;

// With --bench: calls fn(arg, i) with i = 0, 1, 2, ... (to walk through more data than caches hold)
// for a while and prints the median time, GB/s, GFLOP/s and the share of the limit, i.e. the time
// that the machine would need at its measured rates over the median time.
void msgl__ck_time(checkkern *ck, void (*fn)(void *arg, int i), void *arg, double bytes,
                   double flops, ck_limit limit);

#endif
