// SPDX-License-Identifier: Apache-2.0
//
// The kernel table: one struct of function pointers per family, filled once at start. The plain C
// reference of every family goes in first; each ISA level that the machine has overrides upward.
#ifndef MSGL_KERNEL_KERNEL_H
#define MSGL_KERNEL_KERNEL_H

#include "kernel/attn.h"
#include "kernel/compress.h"
#include "kernel/conv.h"
#include "kernel/cpu.h"
#include "kernel/delta.h"
#include "kernel/gemm.h"
#include "kernel/hyper.h"
#include "kernel/index.h"
#include "kernel/ngrams.h"
#include "kernel/ops.h"
#include "kernel/ssm.h"
#include "kernel/streams.h"

typedef struct msgl_kernels {
    msgl_cpu_level level;
    msgl_gemm_kernels gemm;
    msgl_attn_kernels attn;
    msgl_norm_kernels norm;
    msgl_rope_kernels rope;
    msgl_act_kernels act;
    msgl_moe_kernels moe;
    msgl_sample_kernels sample;
    msgl_delta_kernels delta;
    msgl_conv_kernels conv;
    msgl_ssm_kernels ssm;
    msgl_index_kernels index;
    msgl_streams_kernels streams;
    msgl_ngrams_kernels ngrams;
    msgl_compress_kernels compress;
    msgl_hyper_kernels hyper;
} msgl_kernels;

// Fills the table for the CPU at `level`, which the machine must have.
void msgl__kernels_init_cpu(msgl_kernels *k, msgl_cpu_level level);

#endif
