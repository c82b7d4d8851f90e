#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/vectors/real_files: what two quantised files from PyPI say in exact arithmetic.

usage: make_real_file_vectors.py MINISGL OUT    (PyPI: numpy, gguf; and the packages that FILES names, 1 min)

The matrices are expanded by gguf-py and everything behind that is computed in float64 by the few lines below, which
share nothing with minisgl; MINISGL, the program, only tokenizes the text. Of each position there is the logarithm of
the probability of the text's next token, and the token that is the most probable.
"""
import json
import pathlib
import subprocess
import sys

import gguf
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
import peers_files  # noqa: E402

TEXT = """The mill stood where the river left the hills. In spring the water came down brown and fast, and the miller opened
the upper gate by two hands and no more, because the wheel was old and its paddles were of soft wood. In summer there
was so little water that he worked at night only, when the gardens of the village no longer drew from the stream. He
kept a book in which every sack was written down: the name of the farmer, the weight of the grain, the weight of the
flour, and what he had kept for his work, which was one part in sixteen. Nobody had ever asked to see the book, but
everybody knew that it was there.

When his daughter took over the mill she changed three things. She replaced the paddles with iron ones, which a smith
in the next valley made for her in the winter. She built a second pond above the first, so that the water of a whole
day could be used in the four hours when it was needed. And she wrote the book in such a way that each farmer could read
his own page. "A number that cannot be checked is only an opinion," she said. The first two changes cost her the
earnings of three years. The third one cost nothing, and it brought her more grain than both of the others together,
because farmers from two other villages came to her as soon as they heard of it. Her father, who was by then very old,
sat on the bench in front of the house and counted the carts.
"""


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x, base, neighbours):
    """x [positions, heads, size]: by pairs of neighbours, or of the two halves."""
    t, size = len(x), x.shape[-1]
    angles = np.arange(t)[:, None, None] * base ** (-np.arange(0, size, 2) / size)
    a, b = (x[..., 0::2], x[..., 1::2]) if neighbours else (x[..., :size // 2], x[..., size // 2:])
    turned = a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)
    return np.stack(turned, -1).reshape(x.shape) if neighbours else np.concatenate(turned, -1)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attend(q, k, v, scale, window):
    """q [positions, heads, size], k and v with fewer heads; a window counts the position itself."""
    t, group = len(q), q.shape[1] // k.shape[1]
    distance = np.arange(t)[:, None] - np.arange(t)[None, :]
    hidden = (distance < 0) | (distance >= window)
    out = np.empty_like(q)
    for h in range(q.shape[1]):
        scores = np.where(hidden, -np.inf, q[:, h] @ k[:, h // group].T * scale)
        out[:, h] = softmax(scores) @ v[:, h // group]
    return out.reshape(t, -1)


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


class Model:
    """Of the architectures llama and gemma3 as GGUF files have them: norms of Gemma are stored + 1, rows of Llama's q and k
    in the order that rotates neighbours."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.values = {f.name: f.contents() for f in reader.fields.values()}
        self.tensors = {t.name: t for t in reader.tensors}
        self.arch = self.values["general.architecture"]
        self.gemma = self.arch == "gemma3"
        assert self.arch in ("llama", "gemma3"), self.arch

    def value(self, key, default=None):
        return self.values.get(f"{self.arch}.{key}", default)

    def tensor(self, name):
        t = self.tensors[name]
        return gguf.dequantize(t.data, t.tensor_type).astype(np.float64)

    def layer(self, x, i):
        w = lambda name: self.tensor(f"blk.{i}.{name}.weight")
        eps = self.value("attention.layer_norm_rms_epsilon")
        heads = self.value("attention.head_count")
        size = self.value("attention.key_length", x.shape[-1] // heads)
        whole = self.gemma and i % 6 == 5  # every sixth layer of Gemma sees everything
        y = rms_norm(x, w("attn_norm"), eps)
        q, k, v = ((y @ w(f"attn_{n}").T).reshape(len(x), -1, size) for n in "qkv")
        if self.gemma:
            q, k = rms_norm(q, w("attn_q_norm"), eps), rms_norm(k, w("attn_k_norm"), eps)
        base = self.value("rope.freq_base", 10000.0) if whole or not self.gemma else 10000.0
        q, k = rotate(q, base, not self.gemma), rotate(k, base, not self.gemma)
        window = self.value("attention.sliding_window") if self.gemma and not whole else len(x)
        y = attend(q, k, v, size ** -0.5, window) @ w("attn_output").T
        x = x + (rms_norm(y, w("post_attention_norm"), eps) if self.gemma else y)
        y = rms_norm(x, w("ffn_norm"), eps)
        gate = y @ w("ffn_gate").T
        y = (gelu_tanh(gate) if self.gemma else silu(gate)) * (y @ w("ffn_up").T) @ w("ffn_down").T
        return x + (rms_norm(y, w("post_ffw_norm"), eps) if self.gemma else y)

    def logprobs(self, ids):
        table = self.tensor("token_embd.weight")
        x = table[ids] * (table.shape[1] ** 0.5 if self.gemma else 1)
        for i in range(self.value("block_count")):
            x = self.layer(x, i)
        x = rms_norm(x, self.tensor("output_norm.weight"), self.value("attention.layer_norm_rms_epsilon"))
        logits = x @ (self.tensor("output.weight") if "output.weight" in self.tensors else table).T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for name, make in (("smollm2", peers_files.smollm2), ("gemma3", peers_files.gemma3)):
        path = make()
        said = subprocess.run([sys.argv[1], "tokenize", "--model", path], input=TEXT, text=True, check=True,
                              capture_output=True).stdout
        ids = json.loads(said)
        p = Model(path).logprobs(ids)
        rows = {"file": path.name, "input_ids": ids, "choices": p.argmax(-1).tolist(),
                "logprobs": [round(float(p[t, ids[t + 1]]), 6) for t in range(len(ids) - 1)]}
        (out / f"{name}.json").write_text(json.dumps(rows, separators=(",", ":")) + "\n")
        print(name, len(ids), "positions, perplexity", float(np.exp(-np.mean(rows["logprobs"]))))


if __name__ == "__main__":
    main()
