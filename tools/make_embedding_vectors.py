#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/embeddings: the last token's hidden state, behind the final norm, that
transformers computes in float32 for the first tokens of a small random model's prompt.

    python3 tools/make_embedding_vectors.py tests/vectors/models tests/vectors/embeddings

Needs torch and transformers >= 5. Never needed to build, run or test; README.md in the output
folder describes the file.
"""

import json
import struct
import sys
from pathlib import Path

import torch
from transformers import AutoModel

MODEL = "qwen3_f32"
LENGTHS = [1, 7, 40, 64]


@torch.no_grad()
def main():
    models, out = map(Path, sys.argv[1:])
    folder = models / MODEL
    ids = json.loads((folder / "prompt.json").read_text())["ids"]
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    rows = []
    for n in LENGTHS:
        hidden = model.eval()(torch.tensor([ids[:n]])).last_hidden_state
        rows += hidden[0, -1].tolist()
    (out / f"{MODEL}.bin").write_bytes(struct.pack(f"<{len(rows)}f", *rows))


main()
