#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens a second of a batch whose requests have LoRA adapters, beside the same batch without, turn by turn in one server.

    bench/adapters.py MINISGL MODEL [--adapters 4] [--rank 16] [--modules all|qkvo] [--batch 8] [--tokens 64]
                      [--prompt 32] [--rounds 7] [-- OPTIONS OF minisgl serve]

MODEL is a folder of the Qwen3 family with a config.json and a tokenizer; its weights are random (--dummy-weight),
and so are the adapters, which are written here and loaded over HTTP. A round is the time of `tokens` tokens less that
of one, so that prompts do not count. The ratio is the median of the rounds', each of two batches beside each other.
"""
import argparse
import array
import concurrent.futures
import json
import pathlib
import random
import statistics
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))
import serving  # noqa: E402

ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


def modules(config):
    """Name, columns in and columns out of each linear layer of a block."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = dim * config["num_attention_heads"], dim * config["num_key_value_heads"]
    return [("self_attn.q_proj", hidden, q), ("self_attn.k_proj", hidden, kv), ("self_attn.v_proj", hidden, kv),
            ("self_attn.o_proj", q, hidden), ("mlp.gate_proj", hidden, inner), ("mlp.up_proj", hidden, inner),
            ("mlp.down_proj", inner, hidden)]


def write_adapter(folder, config, rank, wanted, seed):
    """As PEFT saves it, in bfloat16, of values between 2^-8 and 2^-7 with either sign."""
    rng = random.Random(seed)
    noise = array.array("H", ((0x3B80 | (rng.getrandbits(16) & 0x807F)) for _ in range(1 << 16))).tobytes()
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": sorted(wanted), "bias": "none"}))
    shapes = {}
    for layer in range(config["num_hidden_layers"]):
        for name, k, n in modules(config):
            if name.split(".")[1] in wanted:
                at = "base_model.model.model.layers.%d.%s" % (layer, name)
                shapes[at + ".lora_A.weight"], shapes[at + ".lora_B.weight"] = (rank, k), (n, rank)
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * shape[0] * shape[1]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(folder / "adapter_model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            size = 2 * shape[0] * shape[1]
            f.write((noise * (size // len(noise) + 1))[:size])


def generate(server, a, tokens, names, seed):
    """Seconds that the batch takes, a connection a request; prompts that no cache has."""
    rng = random.Random(seed)

    def one(i, prompt):
        body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}}
        status, text = server.call("/generate", {**body, "lora_path": names[i % len(names)]} if names else body)
        if status != 200 or json.loads(text)["meta_info"]["completion_tokens"] != tokens:
            raise SystemExit("bench/adapters.py: " + text)

    prompts = [[rng.randrange(100, 5000) for _ in range(a.prompt)] for _ in range(a.batch)]
    start = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(a.batch) as pool:
        list(pool.map(one, range(a.batch), prompts))
    return time.perf_counter() - start


def main():
    p = argparse.ArgumentParser()
    p.add_argument("minisgl")
    p.add_argument("model", type=pathlib.Path)
    for name, usual in (("adapters", 4), ("rank", 16), ("batch", 8), ("tokens", 64), ("prompt", 32), ("rounds", 7)):
        p.add_argument("--" + name, type=int, default=usual)
    p.add_argument("--modules", choices=("all", "qkvo"), default="all")
    own, options = (sys.argv[1:], []) if "--" not in sys.argv else (
        sys.argv[1:sys.argv.index("--")], sys.argv[sys.argv.index("--") + 1:])
    a = p.parse_args(own)
    config = json.loads((a.model / "config.json").read_text())
    wanted = {m.split(".")[1] for m, _, _ in modules(config)}
    wanted = wanted & ATTENTION if a.modules == "qkvo" else wanted
    with tempfile.TemporaryDirectory() as temporary:
        names = ["a%d" % i for i in range(a.adapters)]
        for i, name in enumerate(names):
            write_adapter(pathlib.Path(temporary) / name, config, a.rank, wanted, i)
        with serving.Server(a.minisgl, str(a.model), "--dummy-weight", "--enable-lora", "--max-lora-rank", a.rank,
                            "--max-loras-per-batch", max(a.adapters, 1), *options) as server:
            loads = []
            for name in names:
                start = time.perf_counter()
                status, text = server.call("/v1/load_lora_adapter", {"lora_name": name,
                                                                     "lora_path": str(pathlib.Path(temporary) / name)})
                loads.append(time.perf_counter() - start)
                if status != 200:
                    raise SystemExit("bench/adapters.py: " + text)
            seconds, seed = {"without": [], "with": []}, 0
            for turn in range(a.rounds + 1):  # the first one warms both up
                for side, times in seconds.items():
                    seed += 2
                    chosen = names if side == "with" else []
                    short = generate(server, a, 1, chosen, seed)
                    times.append(generate(server, a, a.tokens, chosen, seed + 1) - short)
    rate = {side: (a.tokens - 1) * a.batch / statistics.median(times[1:]) for side, times in seconds.items()}
    ratios = [plain / own for plain, own in zip(seconds["without"][1:], seconds["with"][1:])]
    print(json.dumps({"model": a.model.name, "batch": a.batch, "adapters": a.adapters, "rank": a.rank,
                      "modules": a.modules, "tokens_per_s_without": round(rate["without"], 1),
                      "tokens_per_s_with": round(rate["with"], 1), "ratio": round(statistics.median(ratios), 3), "ratios": [round(r, 3) for r in sorted(ratios)],
                      "load_ms": round(1e3 * statistics.median(loads), 1)}))


main()
