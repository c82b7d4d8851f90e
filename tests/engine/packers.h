// SPDX-License-Identifier: Apache-2.0
//
// Matrices as packers write them into safetensors, of random codes and scales, with the values that
// they stand for. Nothing here is shared with what reads them.
#ifndef MSGL_TESTS_ENGINE_PACKERS_H
#define MSGL_TESTS_ENGINE_PACKERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

// A safetensors file as it grows.
typedef struct tensors_out {
    json_t *header;
    uint8_t *data;
    size_t n;
} tensors_out;

void out_open(tensors_out *o);
void out_close(tensors_out *o);
// The tensor `module` and `suffix`.
void out_put(tensors_out *o, const char *module, const char *suffix, const char *dtype,
             int32_t ndim, const int64_t *dims, const void *bytes, size_t n);

// What the header's __metadata__ says of `module`.weight.
void out_note(tensors_out *o, const char *module, const char *text);

// What some have. WITH_ORDERED: columns in an order of groups of any size, each matrix in its own;
// WITH_SHUFFLED: in one of equal groups, as quantisers write it, all matrices the same. WITH_OTHER,
// WITH_THIRD: the form's second and third variant, which its function says. WITH_APART: columns
// that share scales are apart, which nothing keeps.
enum {
    WITH_ZEROS = 1,
    WITH_ORDERED = 2,
    WITH_OTHER = 4,
    WITH_SHUFFLED = 8,
    WITH_THIRD = 16,
    WITH_APART = 32,
};

typedef struct packer {
    const char *name, *config; // quantization_config; NULL: none
    // Adds the tensors of `module`, a matrix [rows, cols], and writes its values.
    void (*pack)(const struct packer *k, tensors_out *o, const char *module, int rows, int cols,
                 uint64_t *seed, float *values);
    int bits, group_rows, group; // 0: all of them
    const char *scale, *dtype;   // how scales are called, and of what type they are
    unsigned with;
} packer;

extern const packer packers[]; // the last one has no name

#endif
