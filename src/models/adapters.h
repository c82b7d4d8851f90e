// SPDX-License-Identifier: Apache-2.0
//
// From a module's tensors as packers name them (q_proj.qweight, q_proj.scales, ...) to one tensor
// MODULE.weight [out, in] with a packing. An adapter is one const msgl_adapter at the end of its
// functions and one line in adapters.c. It is asked about each tensor that has its suffix and type;
// what it proves about shapes is all that keeps reads inside of the files (quant/stored.h).
#ifndef MSGL_MODELS_ADAPTERS_H
#define MSGL_MODELS_ADAPTERS_H

#include "models/checkpoint.h"
#include "models/quantization.h"

typedef struct msgl_adapting {
    msgl_checkpoint *c;
    const msgl_quantization *q;
    msgl_tensor *t; // that is asked about, by its name in the file
    size_t module;  // characters of the name in front of the suffix
    msgl_err *err;
} msgl_adapting;

typedef struct msgl_adapter {
    const char *name; // of the form, as who writes it calls it; of several adapters the same
    const char *from; // who writes it
    uint32_t bits;    // of a code, as a set: 1 << 4 | 1 << 8 is 4 or 8
    int32_t group;    // elements that share a scale of 8 bits; 0: the file says what they share
    const char *suffix, *type; // ".qweight" and "I32", or "U8 or I32"; a NULL type: any
    int32_t ndim;              // 0: any
    const char *named;         // behind MODULE, what the model calls it; NULL: as the file does
    // Fills the tensor's packing, shape and loadable: 1. 0: not this adapter's. Negative: an error.
    int (*claim)(msgl_adapting *a);
} msgl_adapter;

// All adapters; several may have one name.
const msgl_adapter *const *msgl__adapters(int *count);

// Finds every packed tensor's form. Tensors that are another one's are marked as sides. A packed
// tensor that no adapter knows is an error that says its name.
int msgl__adapt(msgl_checkpoint *c, const msgl_quantization *q, msgl_err *err);

// For adapters. The tensor that is called MODULE and `name`, or NULL.
msgl_tensor *msgl__beside(const msgl_adapting *a, const char *name);
// It becomes the tensor's side of this role: its type is one of `types` ("F32, F16 or BF16"), its
// shape this one. Else, and where there is none, an error.
int msgl__take_side(msgl_adapting *a, msgl_role role, const char *name, const char *types,
                    int32_t ndim, const int64_t *dims);
// The tensor becomes one of those beside a->t, whether its values are read or not.
void msgl__take(const msgl_adapting *a, msgl_tensor *s);
// A tensor that is read in no other way, if there is one.
void msgl__take_unused(const msgl_adapting *a, const char *name);
// The rows and columns that share one of MODULE's `name`: one number for all, one for each row, for
// each `group` columns of a row, or for each block of `block`. They become SCALES and the packing's
// groups.
int msgl__take_scales(msgl_adapting *a, const char *name, const char *types, int64_t rows,
                      int64_t cols, const int64_t block[2]);
// Whether the type is one of the words: of "F32, F16 or BF16".
bool msgl__is_among(const char *types, const char *type);
// "FILE: tensor NAME: found TYPE SHAPE, allowed ALLOWED" of a tensor.
int msgl__adapt_error(const msgl_adapting *a, const msgl_tensor *t, const char *allowed);
// It is a matrix of rows x cols.
void msgl__claim_matrix(msgl_adapting *a, int64_t rows, int64_t cols);

// adapt_numbers.c: numbers of eight bits with scales.
extern const msgl_adapter msgl__adapter_fp8, msgl__adapter_mxfp8, msgl__adapter_int8,
    msgl__adapter_bnb_int8, msgl__adapter_v4_fp8;
// adapt_codes.c: integers of 2 to 8 bits in words of 32 bits.
extern const msgl_adapter msgl__adapter_awq, msgl__adapter_gptq, msgl__adapter_packed,
    msgl__adapter_mlx;
// adapt_hqq.c: integers of 1 to 8 bits whose zero points are floats.
extern const msgl_adapter msgl__adapter_hqq;
// adapt_torchao.c: tensors of torchao's classes.
extern const msgl_adapter msgl__adapter_ao_int4, msgl__adapter_ao_int8, msgl__adapter_ao_intx,
    msgl__adapter_ao_float8;
// adapt_fp4.c: e2m1 with scales.
extern const msgl_adapter msgl__adapter_gpt_oss, msgl__adapter_mxfp4, msgl__adapter_nvfp4,
    msgl__adapter_modelopt_fp4, msgl__adapter_v4_fp4;
// adapt_codebook.c: codes of 4 bits that stand for 16 values.
extern const msgl_adapter msgl__adapter_nf4, msgl__adapter_bnb_fp4;

#endif
