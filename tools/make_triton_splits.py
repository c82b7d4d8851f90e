#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden values for the triton backend's number of splits: tests/attention/triton_splits.inc.

    python3 tools/make_triton_splits.py > tests/attention/triton_splits.inc

The formula is SGLang's (get_num_kv_splits_triton of srt/layers/attention/triton_backend.py, 0.5.4), stated here
once more, in numpy's int32 and float32, for the 132 multiprocessors of an H100 or H200 and at most 8 splits.
"""
import random

import numpy as np

CORES, MAX_SPLITS, MAX_BATCH = 132, 8, 8


def cdiv(a, b):
    return -(-a // b)


def num_splits(lens, heads, kv_heads):
    lens = np.array(lens, np.int64)
    longest, shortest = lens.max(), lens.min()
    if longest * 8 < shortest * 10:
        shortest = longest
    chunk1 = cdiv(longest, min(cdiv(longest, shortest), MAX_SPLITS))
    octaves = max(np.log2(np.float32(longest) / np.float32(64)), np.float32(1))
    cores = np.int32(np.float32(CORES) * octaves)
    group = heads // kv_heads
    grid = len(lens) * (heads if group == 1 else cdiv(heads, min(16, group)))
    chunk2 = cdiv(longest, min(cdiv(cores, grid), MAX_SPLITS))
    return np.maximum(cdiv(lens, chunk1), cdiv(lens, chunk2))


def row(batch, lens, heads, kv_heads):
    full = list(lens) + [lens[-1]] * (batch - len(lens))
    splits = num_splits(full, heads, kv_heads)[: len(lens)]
    lens_text, splits_text = (", ".join(str(int(x)) for x in v) for v in (lens, splits))
    print(f"{{{batch}, {heads}, {kv_heads}, {len(lens)}, {{{lens_text}}}, {{{splits_text}}}}},")


print("// SPDX-License-Identifier: Apache-2.0")
print("// Made by tools/make_triton_splits.py: batch (filled with the last length), query heads, KV heads,")
print("// count, lengths, splits.")
print("// clang-format off")
for heads, kv_heads in ((32, 8), (32, 32), (16, 8), (40, 2), (128, 1)):
    for batch in (1, 16, 64, 256):
        for length in (1, 64, 129, 1000, 4096, 8192, 100000):
            row(batch, [length], heads, kv_heads)
rng = random.Random(1)
for _ in range(40):
    heads, kv_heads = rng.choice(((32, 8), (8, 8), (64, 8), (16, 1)))
    count = rng.randint(2, MAX_BATCH)
    most = 2 ** rng.randint(3, 17)
    row(count, [rng.randint(1, most) for _ in range(count)], heads, kv_heads)
