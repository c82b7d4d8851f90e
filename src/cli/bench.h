// SPDX-License-Identifier: Apache-2.0
//
// The sub-commands of `minisgl bench`; each prints rows and returns an exit code.
#ifndef MSGL_CLI_BENCH_H
#define MSGL_CLI_BENCH_H

#include "cli/common.h"

int msgl__bench_step(const msgl_args *a);
int msgl__bench_offline(const msgl_args *a);
int msgl__bench_serve_cmd(const msgl_args *a);
int msgl__bench_attn_cmd(const msgl_args *a);
int msgl__bench_startup(const msgl_args *a);
int msgl__bench_limits(const msgl_args *a);

// Median of n values, which it sorts.
double msgl__median(double *values, int n);

#endif
