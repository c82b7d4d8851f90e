#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/blocks: blocks of every type that GGUF files have, and the f32 that they stand for.

    python3 tools/make_block_vectors.py tests/vectors/blocks

Needs numpy, gguf 0.19.0 and libgguf 0.2.2 (ggml's own C code) from PyPI. Never needed to build, run or test;
README.md in the output folder describes the files. Both libraries have to agree, but in the sign of zero, which is
then libgguf's; the script prints where that was. Of Q1_0 there is libgguf alone, of F64 numpy, of Q2_0 the formula
below (the struct block_q2_0 and dequantize_row_q2_0 of ggml).
"""
import sys
from importlib.metadata import version
from pathlib import Path

import libgguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

# Where a block's f16 are: d, then dmin or m. IQ1_M's is in four nibbles.
SCALES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ1_S": [0], "IQ1_M": [], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
    "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": [], "Q1_0": [0], "Q2_0": [0], "F64": [],
}
SIZES = {"Q1_0": (128, 18), "Q2_0": (64, 18)}  # newer than gguf 0.19.0
# d of a block and its second scale: ordinary ones, both zeros, the smallest and largest, infinities, a NaN.
EDGES = [(0x2c12, 0x2e01), (0x8000, 0x8000), (0x0001, 0x83ff), (0xfbff, 0x7bff), (0x7c00, 0xfc00), (0x7e00, 0x3c00)]


def put_scales(name, block, pair):
    for at, scale in zip(SCALES[name], pair):
        block[at:at + 2] = scale & 255, scale >> 8
    if name == "IQ1_M":
        for k in range(4):
            block[49 + 2 * k] = block[49 + 2 * k] & 15 | (pair[0] >> 4 * k & 15) << 4


def f64_blocks(rng):
    words = [0, 1 << 63, 1, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0x3FF0000010000000,
             0x3FF0000030000000, 0x3690000000000000, 0x47EFFFFFEFFFFFFF, 0x47EFFFFFF0000000, 0xC009_21FB_5444_2D18]
    words += list(rng.normal(0, 1, 8).view(np.uint64))
    return np.array(words, np.uint64).view(np.uint8).reshape(-1, 8)


def blocks_of(name, size, rng):
    if name == "F64":
        return f64_blocks(rng)
    out = [np.zeros(size, np.uint8)]
    for pair in EDGES:
        block = rng.integers(0, 256, size, np.uint8)
        put_scales(name, block, pair)
        out.append(block)
    if name == "MXFP4":
        for i, e in enumerate((0, 1, 126, 127, 254, 255)):
            out[i + 1][0] = e
        out[3][1:] = [c << 4 | 15 - c for c in range(16)]
    if name == "NVFP4":
        scales = [(0x38, 0x80, 0x7F, 0xFF), (0x00, 0x01, 0x08, 0x7E), (0xB8, 0x81, 0x88, 0xFE), (0x2A, 0x07, 0x0F, 0x31)]
        for i, four in enumerate(scales):
            out[i + 1][:4] = four
        out[1][4:] = out[4][4:] = [c << 4 | 15 - c for c in range(16)] * 2
    return np.stack(out)


def q2_0(blocks):
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    codes = np.stack([blocks[:, 2:] >> 2 * k & 3 for k in range(4)], axis=-1).reshape(len(blocks), -1)
    return d * (codes.astype(np.float32) - 1)


def expand(name, blocks):
    if name == "F64":
        return blocks.copy().view(np.float64).astype(np.float32)
    if name == "Q2_0":
        return q2_0(blocks)
    if name == "Q1_0":
        return libgguf.dequantize_rows(blocks, 41)
    kind = GGMLQuantizationType[name]
    want = libgguf.dequantize_rows(blocks, int(kind))
    other = quants.dequantize(blocks, kind)
    assert np.array_equal(want, other, equal_nan=True), name
    zeros = (want == 0) & (np.signbit(want) != np.signbit(other))
    if zeros.any():
        print(f"{name}: the sign of {zeros.sum()} zeros differs")
    return want


def main():
    assert version("gguf") == "0.19.0" and version("libgguf") == "0.2.2"
    np.seterr(all="ignore")
    folder = Path(sys.argv[1])
    for number, name in enumerate(SCALES):
        elements, size = (1, 8) if name == "F64" else SIZES.get(name) or GGML_QUANT_SIZES[GGMLQuantizationType[name]]
        blocks = blocks_of(name, size, np.random.default_rng(number))
        values = expand(name, blocks).reshape(len(blocks), elements).copy()
        values[np.isnan(values)] = np.nan  # any of them
        with open(folder / f"{name.lower()}.bin", "wb") as f:
            for block, row in zip(blocks, values):
                f.write(block.tobytes() + row.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
