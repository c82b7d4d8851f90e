// SPDX-License-Identifier: Apache-2.0
//
// What the layers of both families declare their tensors by: where a tensor goes in a weight,
// and what of it this rank keeps. Names are those behind "layers.N.", without .weight and .bias.
#ifndef MSGL_MODELS_DECLARE_H
#define MSGL_MODELS_DECLARE_H

#include "models/decoder.h"

// Where declarations of one layer go.
struct msgl_declaring {
    msgl_model *m;
    const msgl_model_target *target; // of m
    msgl_weight_plan *p;
    int32_t layer;      // as its file counts
    const char *within; // what the names of all its tensors begin with behind "layers.N.", or ""
};

// A dimension of the config that ranks share.
typedef struct msgl_shared_dim {
    const char *name;
    int32_t n;
    bool repeats; // may be fewer, of which each rank has one
} msgl_shared_dim;

// Whether so many ranks can. MSGL_EUNSUPPORTED names the dimension that they cannot share.
int msgl__check_shared(const msgl_shared_dim *shared, size_t num, int32_t ranks, msgl_err *err);

static inline int32_t msgl__ranges_count(const msgl_range *ranges, int32_t num)
{
    int32_t n = 0;
    for (int32_t i = 0; i < num; i++) n += ranges[i].count;
    return n;
}

// A range of `unit` rows each, behind `at` others.
static inline msgl_range msgl__rows_of(msgl_range r, int32_t unit, int32_t at)
{
    return (msgl_range){.from = at + r.from * unit, .count = r.count * unit};
}

// A weight that every rank has whole.
void msgl__declare_linear(const msgl_declaring *d, msgl_linear *l, int32_t n, int32_t k, bool bias,
                          const msgl_linear_use *use);
// The last product of a block. With `join` its result is added to the residual stream, without it
// the result is stored. Where several ranks have a part of the product each, a kernel that can add
// the parts up does so; both uses are declared then.
void msgl__declare_joined(const msgl_declaring *d, msgl_linear *l, int32_t k, bool bias,
                          const msgl_join *join, msgl_use_rows rows);
// This rank keeps the ranges rows [num] of a weight's rows, or of a vector's elements.
void msgl__keep_rows(const msgl_declaring *d, const void *what, const msgl_range *rows,
                     int32_t num);
// A product of which each rank has some rows and computes those results (column-parallel): here the
// ranges rows [num].
void msgl__declare_shared_rows(const msgl_declaring *d, msgl_linear *l, const msgl_range *rows,
                               int32_t num, int32_t k, bool bias, const msgl_linear_use *use);
// A product of which each rank has some columns, here `cols` of `all`, and whose results the ranks
// add up (row-parallel).
void msgl__keep_columns(const msgl_declaring *d, const msgl_weight *w, msgl_range cols,
                        int32_t all);
// Rows of a projection that come from one tensor, with its bias. pairs: of neighbours behind
// `unpaired` ones in every head of `head` rows that rotate together.
void msgl__declare_heads(const msgl_declaring *d, msgl_linear *l, int32_t row, int32_t rows,
                         bool bias, int32_t head, int32_t unpaired, int32_t pairs,
                         const char *name);
void msgl__declare_rows(const msgl_declaring *d, msgl_linear *l, int32_t row, int32_t rows,
                        bool bias, const char *name);
// A norm of `all` elements of which this rank keeps the range `kept`.
void msgl__declare_norm_slice(const msgl_declaring *d, float **v, msgl_range kept, int32_t all,
                              const char *name);
void msgl__declare_norm(const msgl_declaring *d, float **v, int32_t dim, const char *name);
void msgl__declare_norm_of_stream(const msgl_declaring *d, msgl_norm *n, const char *name);
// Rows [at, at + rows) of a tensor of `all` as rows of a projection, with its bias.
void msgl__declare_slice(const msgl_declaring *d, msgl_linear *l, int32_t row, int32_t rows,
                         bool bias, int32_t all, int32_t at, const char *name);
// The projection of a result of `width` columns on one rank to the stream, which it joins.
void msgl__declare_out_to(const msgl_declaring *d, msgl_linear *out, const msgl_join *join,
                          int32_t width, bool bias, const char *name);
// The mixer's own. width: of its result on one rank.
void msgl__declare_out(const msgl_declaring *d, msgl_decoder_layer *layer, int32_t width, bool bias,
                       const char *name);
// By the names under which vLLM and SGLang find it: llm-compressor's, modelopt's, and those of
// older compressed-tensors files.
void msgl__declare_cache_scale(const msgl_declaring *d, float *scale, char k_or_v);

// A group of layers with states of so many bytes; a GPU moves them fastest where they begin at
// whole lines.
static inline msgl_cache_spec msgl__states_spec(size_t bytes)
{
    enum { LINE = 128 };
    return (msgl_cache_spec){
        .kind = MSGL_CACHE_STATE, .window = -1, .state_bytes = msgl__round_up(bytes, LINE)};
}

// For a mixer's check: refuses layers with heads that no kernel of this device takes, and CPUs' do.
static inline int msgl__check_heads(const msgl_model *m, bool takes, const char *what,
                                    msgl_err *err)
{
    if (takes) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "%s: this device has no kernel for %s with such heads; "
                         "allowed: --device cpu",
                         m->cfg.arch->name, what);
}

// The same: devices whose activations have 16 bits choose single keys by kernels that read them in
// pieces of 16 bytes.
static inline int msgl__check_index_dim(const msgl_model *m, int32_t dim, msgl_err *err)
{
    if (m->target.act == MSGL_F32 || dim % 8 == 0) return 0;
    return msgl__err_set(err, MSGL_EUNSUPPORTED,
                         "index_head_dim: found %d; allowed on this device: a multiple of 8",
                         (int)dim);
}

#endif
