// SPDX-License-Identifier: Apache-2.0
//
// What was found fastest, by product: which kernel of the table (table.cuh) does a call, and by
// which of its algorithms the library does a product. Kept in memory and on disk. Plain C, so that
// it is tested where there is no GPU.
#ifndef MSGL_CUDA_GEMM_CHOICES_H
#define MSGL_CUDA_GEMM_CHOICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// What a key says of a call beside its product; 0: the key is that of a product of the library.
// Whether the norm behind wants norm_stats is not said: of calls of so many rows nearly all are
// alike.
enum {
    MSGL_CALL = 1,
    MSGL_CALL_GATED = 2,
    MSGL_CALL_NORM = 4,
    MSGL_CALL_NORM_STATS = 8, // norm_stats of its input are there
    MSGL_CALL_ROPE = 16,      // with the rope kernel behind it
    MSGL_CALL_NOT_SILU = 32,  // gated by another function than silu
    MSGL_CALL_SUM = 64,       // a rank's part of a sum: a kernel that adds the other's, or none
};

// What a choice was made for. No padding, so that keys compare by memcmp.
typedef struct msgl_gemm_key {
    int32_t n, k;
    int32_t bucket; // largest m that it serves; 0: every m (deterministic)
    uint8_t in_type, out_type;
    uint8_t bias, accumulate;
    uint8_t align_in, align_out; // bytes, up to 16, of every row's first element
    uint16_t call;               // bits, as above
} msgl_gemm_key;

enum { MSGL_ALGO_WORDS = 8 }; // of the library's description of an algorithm

typedef enum msgl_gemm_source {
    MSGL_GEMM_NONE,     // free slot of the table
    MSGL_GEMM_PROPOSED, // the library's first proposal
    MSGL_GEMM_MEASURED,
} msgl_gemm_source;

typedef struct msgl_gemm_choice {
    msgl_gemm_key key;
    int32_t kernel;                 // of the table, for a call
    float us;                       // when measured
    uint64_t algo[MSGL_ALGO_WORDS]; // for a product
    msgl_gemm_source source;
} msgl_gemm_choice;

typedef struct msgl_gemm_choices {
    msgl_gemm_choice *slots; // open addressing, capacity a power of two
    size_t capacity, count;
} msgl_gemm_choices;

// Rows share a choice by buckets: the largest m of the bucket that m is in.
int32_t msgl__gemm_bucket(int32_t m);

bool msgl__choices_create(msgl_gemm_choices *t); // false: out of memory
void msgl__choices_destroy(msgl_gemm_choices *t);
// The choice of exactly this key, or NULL. Valid until the next put.
const msgl_gemm_choice *msgl__choices_find(const msgl_gemm_choices *t, const msgl_gemm_key *key);
// The measured choice of this key, else of the next larger bucket that has one within twice the
// rows, else of the next smaller one within half of them; or NULL.
const msgl_gemm_choice *msgl__choices_nearest(const msgl_gemm_choices *t, const msgl_gemm_key *key);
// In place of what there is for its key. False: out of memory.
bool msgl__choices_put(msgl_gemm_choices *t, const msgl_gemm_choice *c);

// cache.c: a choice as a line of text with its check sum, and back. names: of the table's kernels.
typedef struct msgl_kernel_names {
    const char *(*of)(int kernel);
    int num;
} msgl_kernel_names;

void msgl__choice_write(const msgl_gemm_choice *c, msgl_kernel_names names, char *line,
                        size_t size);
// False: the line is damaged, or of a kernel that there is not.
bool msgl__choice_read(const char *line, msgl_kernel_names names, msgl_gemm_choice *c);
// Reads the file at `path` into the table: measured choices of the same GPU and version of the
// library. Lines that cannot be used are left out, with a warning.
void msgl__choices_load(msgl_gemm_choices *t, const char *path, const char *gpu, size_t version,
                        msgl_kernel_names names);
// Writes the measured choices in place of the file.
void msgl__choices_save(const msgl_gemm_choices *t, const char *path, const char *gpu,
                        size_t version, msgl_kernel_names names);

#ifdef __cplusplus
}
#endif

#endif
