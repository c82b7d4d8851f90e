#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/local_batches.bin: how SGLang 0.5.4 cuts steps into virtual requests of local attention.

    pip download sglang==0.5.4 --no-deps && unzip -q sglang-0.5.4-py3-none-any.whl -d SGLANG
    python3 tools/make_local_batches.py SGLANG tests/vectors/local_batches.bin

SGLang's own make_local_attention_virtual_batches cuts random steps. Its chunk is one of whole pages and at most
the longest sequence, so the file has, beside the step's chunk, the one that was cut by. A page table's entry
tells its row and place, so that the pages of a virtual request can be followed back.

The file is int32, little-endian: the number of steps; of each the chunk, the page size, the chunk cut by, the
requests n and the virtual requests m; n times (keys, the new ones included; new tokens); m times (queries, keys,
the request and the position in it that the first page begins with). Needs numpy and torch.
"""

import importlib.util
import sys
import types
from pathlib import Path

import numpy as np
import torch

from splitmix import Random

STEPS, ROW = 60, 1 << 16
KINDS = ("prompts", "chunks", "answers", "mixed")
CHUNKS = (1, 2, 3, 5, 8, 16, 21, 32)  # in pages


def stub(name, **members):
    """A module of that name, so that SGLang's file can be imported without the rest of SGLang."""
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


def load(folder):
    language = stub("triton.language")
    stub("triton", jit=lambda function: function, language=language)
    stub("sgl_kernel", merge_state_v2=None)
    stub("sgl_kernel.flash_attn", flash_attn_varlen_func=None, flash_attn_with_kvcache=None)
    for name in ("", ".srt", ".srt.configs", ".srt.layers", ".srt.layers.attention", ".srt.model_executor",
                 ".srt.speculative"):
        stub("sglang" + name)
    stub("sglang.srt.configs.model_config", AttentionArch=object)
    stub("sglang.srt.layers.attention.base_attn_backend", AttentionBackend=object)
    stub("sglang.srt.layers.radix_attention", AttentionType=object)
    stub("sglang.srt.model_executor.forward_batch_info", ForwardBatch=object, ForwardMode=object)
    stub("sglang.srt.server_args", get_global_server_args=None)
    stub("sglang.srt.speculative.spec_info", SpecInput=object)
    path = Path(folder) / "sglang/srt/layers/attention/flashattention_backend.py"
    spec = importlib.util.spec_from_file_location("flashattention_backend", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    # The file's one use of the compiler, which is slow to import.
    torch._dynamo = types.SimpleNamespace(disable=lambda: lambda function: function)
    spec.loader.exec_module(module)
    return module.make_local_attention_virtual_batches


class Steps(Random):
    def integer(self, low, high):
        return low + int(self.unit() * (high - low + 1))

    def pick(self, values):
        return values[self.integer(0, len(values) - 1)]

    def request(self, kind, most):
        """(keys, new tokens); lengths at and around multiples of a sixteenth of the most now and then."""
        keys = self.integer(1, most)
        if self.integer(0, 2) == 0:
            keys = min(max(self.integer(1, 16) * (most // 16) + self.integer(-1, 1), 1), most)
        if kind == "mixed":
            kind = self.pick(KINDS[:3])
        if kind == "prompts":
            return keys, keys
        return keys, 1 if kind == "answers" else self.integer(1, keys)

    def step(self, i):
        page = self.pick((1, 16, 32, 64, 128))
        # Every tenth has the chunk of Llama 4's models.
        chunk = 8192 if i % 10 == 0 else page * self.pick(CHUNKS)
        most = 20000 if chunk == 8192 else min(6 * chunk + 40, 2000)
        if i % 6 == 5:
            most = chunk  # no request is longer than a chunk
        kind = KINDS[i % len(KINDS)]
        return chunk, page, [self.request(kind, most) for _ in range(self.integer(1, 6))]


def cut(function, chunk, page, requests):
    """The chunk cut by, and (queries, keys, request, position of the first page) of each virtual request."""
    keys = np.array([r[0] for r in requests], dtype=np.int32)
    starts = np.cumsum([0] + [r[1] for r in requests]).astype(np.int32)
    pages = -(-int(keys.max()) // page)
    table = torch.arange(len(requests))[:, None] * ROW + torch.arange(pages)[None]
    queries, cu_queries, lengths, places = function(chunk, starts, keys, table, page)
    assert (np.diff(cu_queries) == queries).all()
    out = []
    for q, k, row in zip(queries.tolist(), lengths.tolist(), places.tolist()):
        used = row[: -(-k // page)]
        assert used == list(range(row[0], row[0] + len(used)))
        out.append((q, k, row[0] // ROW, row[0] % ROW * page))
    return places.shape[1] * page, out


def main():
    function, random = load(sys.argv[1]), Steps(1)
    values = [STEPS]
    for i in range(STEPS):
        chunk, page, requests = random.step(i)
        cut_by, virtual = cut(function, chunk, page, requests)
        values += [chunk, page, cut_by, len(requests), len(virtual)]
        values += [x for r in requests + virtual for x in r]
    Path(sys.argv[2]).write_bytes(np.array(values, dtype="<i4").tobytes())


if __name__ == "__main__":
    main()
