// SPDX-License-Identifier: Apache-2.0
//
// The families that checkkern runs: X(name) stands for msgl__check_<name>, whose file is listed in
// this folder's CMake files.
#define MSGL_CHECK_FAMILIES(X) X(gemm) X(codes) X(attn)
