#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/delta: what transformers' Qwen3-Next makes of a gated delta rule's inputs.

    python3 tools/make_delta_vectors.py tests/vectors/delta

The inputs are random numbers that tests/kernel/test_delta.c makes too (splitmix64 from seed 1, in the
order of main below), so that the file holds results alone. Needs torch, transformers >= 5.
"""

import sys
from pathlib import Path

import torch
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from splitmix import Random

TOKENS, K_HEADS, V_HEADS, K_DIM, V_DIM = 70, 2, 4, 16, 32
KEYS, VALUES = K_HEADS * K_DIM, V_HEADS * V_DIM
CHANNELS = 2 * KEYS + VALUES


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    random = Random(1)
    conv = random.tensor(-1, 1, CHANNELS, 4)
    a_log = random.tensor(-4, 2.75, V_HEADS)
    dt_bias = random.tensor(-6, 1, V_HEADS)
    weight = random.tensor(0.5, 1.5, V_DIM)
    qkv = random.tensor(-2, 2, TOKENS, CHANNELS)
    z = random.tensor(-3, 3, TOKENS, VALUES)
    a = random.tensor(-2, 2, TOKENS, V_HEADS)
    b = random.tensor(-3, 3, TOKENS, V_HEADS)

    mixed = qwen.causal_conv1d_fn(qkv.T[None], conv, None, activation="silu")[0].T
    query, key, value = mixed.split([KEYS, KEYS, VALUES], dim=-1)
    share = V_HEADS // K_HEADS
    query = query.reshape(1, TOKENS, K_HEADS, K_DIM).repeat_interleave(share, dim=2)
    key = key.reshape(1, TOKENS, K_HEADS, K_DIM).repeat_interleave(share, dim=2)
    value = value.reshape(1, TOKENS, V_HEADS, V_DIM)
    g = -a_log.exp() * torch.nn.functional.softplus(a + dt_bias)
    results, state = qwen.torch_chunk_gated_delta_rule(
        query, key, value, g=g[None], beta=b.sigmoid()[None], output_final_state=True,
        use_qk_l2norm_in_kernel=True)
    norm = qwen.Qwen3NextRMSNormGated(V_DIM, eps=1e-6)
    norm.weight.data.copy_(weight)
    with torch.no_grad():
        results = norm(results.reshape(-1, V_DIM), z.reshape(-1, V_DIM))
    with open(out / "qwen3_next.f32", "wb") as f:
        f.write(results.reshape(-1).numpy().astype("<f4").tobytes())
        f.write(state.reshape(-1).numpy().astype("<f4").tobytes())


main()
