#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/sparse_prompt.bin: what SGLang 0.5.4 makes of a sparse prompt of dual chunk attention.

    pip download sglang==0.5.4 --no-deps && unzip -q sglang-0.5.4-py3-none-any.whl -d SGLANG
    python3 tools/make_sparse_prompt_vectors.py SGLANG tests/vectors/sparse_prompt.bin

SGLang's own _dual_chunk_flash_attn_prefill_func chooses columns and distances, part by part, and merges what
each part gives; its GPU kernel, which attends to what was chosen, is replaced by the same in f64 (attend below).
Inputs are random numbers that tests/attention/test_sparse_prompt.c makes too (splitmix64 from seed 1: q, then k,
then v), so that the file holds results alone: every STEP-th row in float32. Needs torch.
"""

import importlib.util
import math
import sys
import types
from pathlib import Path

import torch

from splitmix import Random

KEYS, HEADS, KV_HEADS, DIM, CHUNK, SIZE, LAST, STEP = 700, 4, 2, 64, 150, 180, 8, 23
BLOCK = 64  # queries that share what they see


def stub(name, **members):
    """A module of that name, so that SGLang's file can be imported without the rest of SGLang."""
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def seen(n, m, offset, columns, distances):
    """[n, m]: the keys of a part that its queries see, but for causality."""
    see = torch.zeros(n, m, dtype=torch.bool)
    see[:, columns] = True
    for distance in distances.tolist():
        for first in range(0, n, BLOCK):
            low = first + offset - distance
            if low + BLOCK > 0:
                see[first : first + BLOCK, max(low, 0) : low + BLOCK] = True
    return see


def pack(q_lens, k_lens, columns, distances, num_columns, num_distances, *_, causal=None):
    """In place of the conversion for the GPU kernel: the lists as they are."""
    return (columns, distances), (num_columns, num_distances), None, None


def attend(q, k, v, lists, counts, *_, causal, softmax_scale, return_softmax_lse):
    (columns, distances), (num_columns, num_distances) = lists, counts
    n, m = q.shape[1], k.shape[1]
    offset = m - n if causal else m
    out, lse = torch.zeros_like(q), torch.full((1, q.shape[2], n), -math.inf)
    for head in range(q.shape[2]):
        see = seen(n, m, offset, columns[0, head, : num_columns[head]].long(),
                   distances[0, head, : num_distances[head]])
        if causal:
            see &= torch.arange(n)[:, None] + offset >= torch.arange(m)[None]
        scores = (q[0, :, head].double() @ k[0, :, head].double().T) * softmax_scale
        scores = scores.masked_fill(~see, -math.inf)
        sums = torch.logsumexp(scores, -1)
        lse[0, head] = sums
        p = torch.nan_to_num(torch.exp(scores - sums[:, None]))  # rows that see none
        out[0, :, head] = (p @ v[0, :, head].double()).float()
    return out, lse


def load(folder):
    unused = dict(flash_attn_varlen_func=None, flash_attn_with_kvcache=None)
    stub("sgl_kernel")
    stub("sgl_kernel.flash_attn", **unused)
    stub("sgl_kernel.sparse_flash_attn", sparse_attn_func=attend, convert_vertical_slash_indexes=None,
         convert_vertical_slash_indexes_mergehead=pack)
    for name in ("", ".srt", ".srt.distributed", ".srt.layers", ".srt.layers.attention", ".srt.model_executor"):
        stub("sglang" + name)
    stub("sglang.srt.distributed.parallel_state", get_tensor_model_parallel_rank=lambda: 0)
    stub("sglang.srt.layers.attention.base_attn_backend", AttentionBackend=object)
    stub("sglang.srt.layers.attention.flashattention_backend", FlashAttentionMetadata=object)
    stub("sglang.srt.model_executor.forward_batch_info", ForwardBatch=object, ForwardMode=object)
    path = Path(folder) / "sglang/srt/layers/attention/dual_chunk_flashattention_backend.py"
    spec = importlib.util.spec_from_file_location("dual_chunk", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["dual_chunk"] = module
    spec.loader.exec_module(module)
    return module


def turn(x, by):
    """x rotated `by` positions further, as test_sparse_prompt.c's make_pattern has the frequencies."""
    inv_freq = torch.tensor([100 ** (-2 * i / DIM) for i in range(DIM // 2)], dtype=torch.float32)
    c, s = (by * inv_freq.double()).cos(), (by * inv_freq.double()).sin()
    a, b = x.double()[..., : DIM // 2], x.double()[..., DIM // 2 :]
    return torch.cat([a * c - b * s, b * c + a * s], -1).float()


def main():
    module = load(sys.argv[1])
    random = Random(1)
    q = random.tensor(-2, 2, KEYS, 3, HEADS, DIM)
    k = random.tensor(-2, 2, KEYS, KV_HEADS, DIM)
    v = random.tensor(-2, 2, KEYS, KV_HEADS, DIM)
    backend = object.__new__(module.DualChunkFlashAttentionBackend)
    backend.sparse_attention_last_q = LAST
    backend.original_max_position_embeddings = 0
    last = torch.arange(LAST)
    backend.last_q_mask = last[None, None, :, None] >= last[None, None, None, :]
    # The second layer's; the original's caller adds 100 to 30 columns.
    columns = torch.tensor([130 if i == 1 else 45 + HEADS + i for i in range(HEADS)], dtype=torch.int32)
    distances = torch.tensor([104 + 3 * (HEADS + i) for i in range(HEADS)], dtype=torch.int32)
    out = backend._dual_chunk_flash_attn_prefill_func(
        q[:, 0], q[:, 1], q[:, 2], turn(q[:, 0], CHUNK), turn(q[:, 0], SIZE), k, v, None, DIM**-0.5, SIZE,
        SIZE - CHUNK, 1.0, KEYS, sparse_attn_enabled=True, heads_vertical_size=columns, heads_slash_size=distances,
        group_size=HEADS // KV_HEADS)
    Path(sys.argv[2]).write_bytes(out[::STEP].contiguous().numpy().tobytes())


if __name__ == "__main__":
    main()
