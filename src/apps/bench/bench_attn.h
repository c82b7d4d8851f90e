// SPDX-License-Identifier: Apache-2.0
//
// The two halves of `minisgl bench attn`: rows to look at, and the table that `auto` uses.
#ifndef MSGL_APPS_BENCH_BENCH_ATTN_H
#define MSGL_APPS_BENCH_BENCH_ATTN_H

#include "attention/bench.h"
#include "cli/common.h"

// Whether `name` stands in the comma-separated list (NULL: all).
bool msgl__bench_wanted(const char *list, const char *name);

// Measures a grid of head_dim, group and page size and rewrites `path`
// (cuda/backends/auto_table.inc): the rows of this kind of GPU are replaced, those of others kept.
int msgl__bench_attn_table(const msgl_args *a, const msgl_attn_bench_env *env, const char *path,
                           msgl_err *err);

#endif
