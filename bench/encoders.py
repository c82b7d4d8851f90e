#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An encoder's texts a second beside sentence-transformers' (torch), on the same cores in one run, turn by turn.

    bench/encoders.py MINISGL MODEL [--dtype TYPE] [--threads N] [--texts 32] [--tokens 128] [--rounds 7]

Each side computes the same texts of as many tokens each, over HTTP or by encode(), torch in float32 whatever TYPE is; the
median of the rounds counts.
Needs sentence-transformers.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import serving  # noqa: E402

WORDS = "the quick brown fox jumps over a lazy dog and runs home to eat".split()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("minisgl")
    p.add_argument("model")
    p.add_argument("--dtype", default="auto")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--texts", type=int, default=32)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--rounds", type=int, default=7)
    a = p.parse_args()
    import torch
    from sentence_transformers import SentenceTransformer
    torch.set_num_threads(a.threads)
    model = SentenceTransformer(a.model, device="cpu", model_kwargs={"torch_dtype": torch.float32})
    rng = random.Random(1)
    texts = [" ".join(rng.choice(WORDS) for _ in range(a.tokens - 2)) for _ in range(a.texts)]
    assert all(len(model.tokenizer(t)["input_ids"]) == a.tokens for t in texts), "a word of several tokens"
    with serving.Server(a.minisgl, a.model, "--dtype", a.dtype, "--threads", a.threads) as server:
        def ours():
            return [d["embedding"] for d in json.loads(server.call("/v1/embeddings", {"input": texts})[1])["data"]]

        def theirs():
            with torch.inference_mode():
                return model.encode(texts, normalize_embeddings=True, batch_size=a.texts)
        seconds = {ours: [], theirs: []}
        worst = min(sum(float(x) * y for x, y in zip(v, w)) for v, w in zip(theirs(), ours()))
        for _ in range(a.rounds):
            for side, times in seconds.items():
                start = time.perf_counter()
                side()
                times.append(time.perf_counter() - start)
    mine, peer = (statistics.median(seconds[side]) for side in (ours, theirs))
    print(json.dumps({"texts": a.texts, "tokens": a.tokens, "dtype": a.dtype, "threads": a.threads,
                      "minisgl_ms": round(1e3 * mine, 1), "torch_ms": round(1e3 * peer, 1), "ratio": round(peer / mine, 2),
                      "least_cosine": round(worst, 8)}))


main()
