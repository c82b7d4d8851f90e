#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a folder of random 4-bit weights as AutoAWQ saves one, to measure how long a start takes.

usage: make_packed_model.py OUT_DIR [--shape DIR] [--layers N]

The shape is a folder of bench/models whose quantization_config is awq's of 4 bits. A linear layer of n rows and k
columns has qweight [k, n / 8] and qzeros [k / group_size, n / 8] of int32, and scales [k / group_size, n] of f16;
embeddings, norms and the head are bf16. A file has at most 4 GB, as folders from a hub have. Loading time does not
depend on the values: codes are random bytes, repeated.
"""
import argparse
import json
import math
import pathlib
import random
import shutil
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE_BYTES = 4 << 30  # at most, unless one tensor is larger
SIZES = {"I32": 4, "F16": 2, "BF16": 2}


def linear(name, n, k, group):
    yield name + ".qweight", "I32", (k, n // 8)
    yield name + ".qzeros", "I32", (k // group, n // 8)
    yield name + ".scales", "F16", (k // group, n)


def tensors(c):
    """(name, type, shape) of a config's tensors."""
    hidden, ffn, group = c["hidden_size"], c["intermediate_size"], c["quantization_config"]["group_size"]
    q, kv = (c[heads] * c["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", "BF16", (c["vocab_size"], hidden)
    for i in range(c["num_hidden_layers"]):
        h = f"model.layers.{i}."
        for norm, size in (("input_layernorm", hidden), ("post_attention_layernorm", hidden),
                           ("self_attn.q_norm", c["head_dim"]), ("self_attn.k_norm", c["head_dim"])):
            yield f"{h}{norm}.weight", "BF16", (size,)
        for name, n, k in (("self_attn.q_proj", q, hidden), ("self_attn.k_proj", kv, hidden),
                           ("self_attn.v_proj", kv, hidden), ("self_attn.o_proj", hidden, q),
                           ("mlp.gate_proj", ffn, hidden), ("mlp.up_proj", ffn, hidden),
                           ("mlp.down_proj", hidden, ffn)):
            yield from linear(h + name, n, k, group)
    yield "model.norm.weight", "BF16", (hidden,)
    if not c["tie_word_embeddings"]:
        yield "lm_head.weight", "BF16", (c["vocab_size"], hidden)


def files(all_tensors):
    """The tensors of each file, with where each begins and ends."""
    part, end = [], 0
    for name, kind, shape in all_tensors:
        size = SIZES[kind] * math.prod(shape)
        if part and end + size > FILE_BYTES:
            yield part
            part, end = [], 0
        part.append((name, kind, shape, end, end + size))
        end += size
    yield part


def write(path, part, noise):
    header = {name: {"dtype": kind, "shape": shape, "data_offsets": [begin, end]} for name, kind, shape, begin, end in part}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, kind, _, begin, end in part:
            for at in range(begin, end, len(noise[kind])):
                f.write(noise[kind][: end - at])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--shape", type=pathlib.Path, default=ROOT / "bench" / "models" / "qwen3-14b-awq")
    p.add_argument("--layers", type=int, help="instead of the shape's own number")
    args = p.parse_args()
    c = json.loads((args.shape / "config.json").read_text())
    packed = c.get("quantization_config", {})
    if (packed.get("quant_method"), packed.get("bits"), packed.get("version")) != ("awq", 4, "gemm"):
        p.error(f"{args.shape}: its quantization_config is not awq's of 4 bits, version gemm")
    if args.layers is not None:
        c["num_hidden_layers"] = args.layers
    args.out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(args.shape / name, args.out)
    (args.out / "config.json").write_text(json.dumps(c, indent=2) + "\n")
    rng = random.Random(1)
    values = [rng.gauss(0, 0.02) for _ in range(1 << 18)]
    bf16 = b"".join(struct.pack("<f", v)[2:] for v in values)
    f16 = struct.pack(f"<{len(values)}e", *(abs(v) / 8 for v in values))
    noise = {kind: memoryview(once * 16) for kind, once in (("I32", rng.randbytes(1 << 20)), ("F16", f16), ("BF16", bf16))}
    parts = list(files(tensors(c)))
    index = {}
    for i, part in enumerate(parts):
        name = f"model-{i + 1:05}-of-{len(parts):05}.safetensors" if len(parts) > 1 else "model.safetensors"
        write(args.out / name, part, noise)
        index |= {t[0]: name for t in part}
    if len(parts) > 1:
        total = sum(part[-1][4] for part in parts)
        (args.out / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": total}, "weight_map": index}) + "\n")


if __name__ == "__main__":
    main()
